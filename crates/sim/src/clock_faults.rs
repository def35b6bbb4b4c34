//! Clocks that are set wrong, drift and stand still, and machines that are suspended.

use slackline_core::clock::SECOND;

use crate::clock::EPSILON;
use crate::state::Simulation;
use crate::state::faults::Fault;
use crate::world::World;

/// The least by which a wall clock errs while warranties are in use: more than ε, a slow link and a drift of the monotonic clock can
/// explain. Sites could not notice less.
const MEASURABLE: u64 = 3 * SECOND;
/// The most by which a wall clock errs, in microseconds; it is off for some seconds only.
const FAR: u64 = 3_600 * SECOND;
/// The distance by which a wall clock is set back so that no deadline seems past, and none too far ahead, in microseconds.
const BACK: i64 = 6 * SECOND as i64;

impl Simulation {
    /// A wall clock is set beyond ε, and set right after a while.
    pub(crate) fn set_wall_wrong(&mut self, world: &mut World, site: usize, lasts: u64) {
        let least = if self.faults.errs_walls { MEASURABLE } else { 2 * EPSILON as u64 };
        let most = if self.rng.one_in(3) { FAR } else { 20 * SECOND };
        let error = (least + self.rng.below(most)) as i64;
        let error = if self.rng.one_in(2) { error } else { -error };
        let drift = if self.rng.one_in(3) { self.rng.below(2_000) as i64 - 1_000 } else { 0 };

        let now = world.now();
        world.clock(site).set_wall(now, error, drift);

        // The fault counts as one of a clock from now on, so that the other one of the same site stays right.
        self.begin(world, Fault::Clock { site }, lasts);
        self.probes.hit("fault: wall clock beyond epsilon");
        self.trace(world, format_args!("site {site}: wall clock {error} us off, drifts {drift} ppm"));

        // Sites that can hear a majority must notice.
        self.begin_vigil(world);
    }

    /// A wall clock is set so far back that no deadline seems past, and none too far ahead, and set right after a while.
    pub(crate) fn set_wall_back(&mut self, world: &mut World, site: usize, lasts: u64) {
        let now = world.now();
        world.clock(site).set_wall(now, -BACK, 0);
        self.begin(world, Fault::Clock { site }, lasts);
        self.probes.hit("fault: wall clock set back before a prepare");
        self.begin_vigil(world);
    }

    /// The machine of a site is suspended, and goes on after a while where it was.
    pub(crate) fn suspend(&mut self, world: &mut World, site: usize, lasts: u64, stands: bool) {
        let now = world.now();
        world.freeze(site, now + lasts);
        if stands {
            world.clock(site).stand(now, now + lasts);
            world.reschedule(site);
        }

        self.begin(world, Fault::Suspension { site }, lasts);
        self.probes.hit(if stands { "fault: suspended, clock stands" } else { "fault: suspended" });
    }

    /// Both clocks of a site are set right, as far as honest clocks are.
    pub(crate) fn set_clocks_right(&mut self, world: &mut World, site: usize) {
        let now = world.now();
        let was = world.clock(site).error(now);
        let error = self.rng.below(EPSILON as u64) as i64 - EPSILON / 2;
        world.clock(site).set_wall(now, error, 0);
        world.clock(site).set_mono_drift(now, self.rng.below(100) as i64 - 50);

        // What was planned by the clock as it was is planned again.
        world.reschedule(site);
        self.pass_error_on(world, site, was);
    }

    /// Another clock is set wrong by as much as this one, which has just been set right, was: before the two are compared
    /// again, they seem to agree.
    fn pass_error_on(&mut self, world: &mut World, site: usize, error: i64) {
        let planned = self.faults.passes_on.take_if(|(from, _)| *from == site);
        let may_pass = !self.faults.healed && self.settings.has_warranties && self.faults.errs_walls;
        if !may_pass || error.unsigned_abs() < MEASURABLE || planned.is_none() && !self.rng.one_in(3) {
            return;
        }

        let sites = world.len() as u64;
        let chosen = (site + 1 + self.rng.below(sites - 1) as usize) % world.len();
        let other = planned.map_or(chosen, |(_, other)| other);
        if self.faults.may_step(other) {
            let now = world.now();
            world.clock(other).set_wall(now, error, 0);

            let lasts = SECOND + self.rng.below(3 * SECOND);
            self.begin(world, Fault::Clock { site: other }, lasts);
            self.probes.hit("fault: wall clock set wrong as another is set right");
            self.trace(world, format_args!("site {other}: wall clock {error} us off, as that of site {site} was"));
            self.begin_vigil(world);
        }
    }
}
