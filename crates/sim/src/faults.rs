//! What goes wrong: a seeded plan of faults, each of which ends by itself or at the healing.
//!
//! Faults are *fair*: what the product does not promise to survive does not happen. At most one disk is lost at a time,
//! the next only after every quota has recorded the new incarnation and every transaction in which the lost one took part is
//! settled, and never the disks of a majority in one run; an old copy is restored only if every other site has heard of
//! something newer, because nobody could notice otherwise, and has had the time to note it, if any of them crashes before it
//! is noticed; of a site's two clocks at most one errs beyond ε. While warranties are in use, one of the two kinds of clocks is
//! right at all sites in all of the run: either wall clocks stay within ε, and monotonic ones drift and stand still; or
//! monotonic clocks are right, and the wall clocks of less than a majority err, by so much at a time that it can be measured.
//!
//! The simulator also plays the person who says that a disk is lost, sooner or later; and who says nothing while a volume is
//! only not mounted. A majority of sites runs on its own storage all the time.

use slackline_core::api::{Readiness, Request};
use slackline_core::avantan::Table;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::Incarnation;
use slackline_core::machine::{Input, Machine, STALL_BOUND};
use slackline_core::node::Node;
use slackline_core::warranty::VOUCHED;

use crate::ambush::Ambush;
use crate::clients::Purpose;
use crate::disk::Copy;
use crate::kinds::{self, PERSISTING};
use crate::lease::Unheard;
use crate::network::Weather;
use crate::run::{Simulation, Timer};
use crate::world::{After, Keep, World};

/// Before this nothing goes wrong, so that there is something to go wrong with.
const FIRST: u64 = 4 * SECOND;
/// The bound on wall clocks' errors that sites are told, in microseconds.
pub(crate) const EPSILON: i64 = 10_000;

/// What goes on all the time while faults strike.
const DRIZZLE: Weather =
    Weather { loss: 4_000, duplication: 20_000, reordering: 30_000, detour: 300 * MILLISECOND, jitter: 100 };
/// What is left after the healing.
const CALM: Weather = Weather { loss: 0, duplication: 0, reordering: 0, detour: 0, jitter: 50 };

/// A site notes a peer's position durably at its next ping when the peer has moved on by this many batches.
const NOTED: u64 = 64;
/// How long a site that is not held up takes at most to ping, and to make durable what it noted then.
const NOTING: u64 = 8 * SECOND;

/// The number of the fault by which a wall clock errs beyond ε.
const WALL_CLOCK: u64 = 14;
/// The least by which it errs while warranties are in use: more than ε, a slow link and a drift of the monotonic clock can explain.
const MEASURABLE: u64 = 3 * SECOND;
/// The most by which a wall clock errs, in microseconds; it is off for some seconds only.
const FAR: u64 = 3_600 * SECOND;
/// The longest time that storage takes to fetch what a tick needs.
const TICK_FETCH: u64 = 400 * MILLISECOND;

/// A fault that goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Cut { from: usize, to: usize },
    CutAll { site: usize, inwards: bool, outwards: bool },
    Split { side: u64 },
    Slow { from: usize, to: usize, by: u64 },
    Loss,
    Duplication,
    Reordering,
    SlowDisk { site: usize },
    FullDisk { site: usize },
    Clock { site: usize },
    Suspension { site: usize },
}

/// A copy of a site's disk.
#[derive(Debug)]
struct Kept {
    incarnation: Incarnation,
    copy: Copy,
    /// For each other site: when, and in which of its lives, it was first seen to have heard of so much more that it notes it.
    heard: Vec<Option<(u64, u32)>>,
    /// For each other site: whether it has had the time to note that durably.
    noted: Vec<bool>,
}

/// Something that happens to a site at a certain input.
#[derive(Clone, Copy, Debug)]
struct Hazard {
    /// The name of a kind of input whose handling persists; none for any input.
    at: Option<&'static str>,
    after: After,
}

#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) struck: u64,
    planned: u64,
    active: Vec<Option<Fault>>,
    hazards: Vec<Option<Hazard>>,
    /// How long storage takes for the next input that needs something from it.
    slow_fetch: Vec<Option<u64>>,
    /// The same for the next tick. The site handles nothing else meanwhile, so it is short: a site that stands still for
    /// long is another fault.
    slow_tick: Vec<Option<u64>>,
    /// Crashes at a persist point that are still to be recovered from.
    recovering: Vec<Option<&'static str>>,
    copies: Vec<Vec<Kept>>,
    /// A site whose disk was lost or restored, until every quota has recorded its new incarnation.
    reborn: Option<usize>,
    /// An old copy is in place and not noticed yet.
    impostor: Option<usize>,
    /// The others have noted durably what betrays it: they may crash.
    impostor_is_noted: bool,
    /// Storage was found to be an old copy: the next start is on new storage.
    put_aside: Vec<bool>,
    /// Volumes that are not mounted; the sites run on what is beneath.
    unmounted: Vec<Option<Copy>>,
    /// Volumes that were mounted again and have not been confirmed since.
    remounted: Vec<bool>,
    /// A site that will lose its disk again as soon as it has joined, and what keeps it from a part of the others till then.
    relapse: Option<(usize, Vec<usize>)>,
    /// A site that has lost its disk, and another that has not heard of it.
    pub(crate) unheard: Option<Unheard>,
    /// When the clock of the one is set right, that of the other is set wrong by as much.
    pub(crate) passes_on: Option<(usize, usize)>,
    /// One that waits for its moment.
    pub(crate) ambush: Option<Ambush>,
    /// Restarts are due then.
    down_for: Vec<u64>,
    swizzled: Vec<usize>,
    pub(crate) healed: bool,
    /// Whether it is the monotonic clock that may err much at a site; else it is the wall clock.
    pub(crate) errs_mono: Vec<bool>,
    /// Whether wall clocks err while warranties are in use; then all monotonic clocks are right.
    pub(crate) errs_walls: bool,
}

impl Faults {
    pub(crate) fn new(sites: usize) -> Self {
        Self {
            struck: 0,
            planned: 0,
            active: Vec::new(),
            hazards: vec![None; sites],
            slow_fetch: vec![None; sites],
            slow_tick: vec![None; sites],
            recovering: vec![None; sites],
            copies: (0..sites).map(|_| Vec::new()).collect(),
            reborn: None,
            impostor: None,
            impostor_is_noted: false,
            put_aside: vec![false; sites],
            unmounted: vec![None; sites],
            remounted: vec![false; sites],
            relapse: None,
            unheard: None,
            passes_on: None,
            ambush: None,
            down_for: vec![SECOND; sites],
            swizzled: Vec::new(),
            healed: false,
            errs_mono: vec![false; sites],
            errs_walls: false,
        }
    }

    pub(crate) fn down_for(&self, site: usize) -> u64 {
        self.down_for[site]
    }

    /// A site has a new incarnation.
    pub(crate) fn rejoined(&mut self, site: usize) {
        if self.impostor == Some(site) {
            self.impostor = None;
        }
    }
}

impl Simulation {
    pub(crate) fn plan_faults(&mut self, world: &mut World) {
        *world.weather() = DRIZZLE;
        self.faults.errs_walls = self.has_warranties && self.rng.one_in(2);
        for site in 0..world.len() {
            // Honest clocks are not exact.
            let error = self.rng.below(EPSILON as u64) as i64 - EPSILON / 2;
            world.clock(site).set_wall(0, error, 0);
            world.clock(site).set_mono_drift(0, self.rng.below(100) as i64 - 50);
            self.faults.errs_mono[site] = self.rng.one_in(2) && !self.faults.errs_walls;
            let at = 3 * SECOND + self.rng.below(6 * SECOND);
            world.wake_at(at, Timer::Copy(site).token());
        }
        self.faults.planned = self.options.faults + self.rng.below(self.options.faults / 2 + 1);
        world.wake_at(FIRST + self.rng.below(2 * SECOND), Timer::Strike.token());
    }

    /// Whether the time of faults is over: all have struck, and clients have little left to do.
    pub(crate) fn faults_are_over(&self, _world: &World) -> bool {
        self.faults.struck >= self.faults.planned
            && self.quota_operations() + self.options.operations / 10 >= self.options.operations
            && self.txns.committed + self.options.transactions / 10 >= self.options.transactions
    }

    pub(crate) fn take_copy(&mut self, world: &mut World, site: usize) {
        if self.faults.healed {
            return;
        }
        if let Some(node) = world.node(site)
            && node.readiness() == Readiness::Ready
            && self.rng.one_in(2)
        {
            let incarnation = node.incarnation();
            let copy = world.copy(site);
            let sites = world.len();
            let copies = &mut self.faults.copies[site];
            // The oldest stays: that it is old is noted first.
            if copies.len() == 3 {
                copies.remove(1);
            }
            copies.push(Kept { incarnation, copy, heard: vec![None; sites], noted: vec![false; sites] });
        }
        world.wake_at(world.now() + 5 * SECOND + self.rng.below(15 * SECOND), Timer::Copy(site).token());
    }

    /// The next fault strikes.
    pub(crate) fn strike(&mut self, world: &mut World) {
        if self.faults.healed {
            return;
        }
        for _ in 0..20 {
            if self.try_strike(world) {
                self.faults.struck += 1;
                break;
            }
        }
        let pause = 200 * MILLISECOND + self.rng.below(5 * SECOND);
        world.wake_at(self.after_silence(world.now() + pause), Timer::Strike.token());
    }

    fn try_strike(&mut self, world: &mut World) -> bool {
        let now = world.now();
        self.settle_reborn(world);
        self.settle_copies(world);
        let sites = world.len();
        let site = self.rng.below(sites as u64) as usize;
        let other = (site + 1 + self.rng.below(sites as u64 - 1) as usize) % sites;
        let up = world.node(site).is_some();
        let ready = world.node(site).is_some_and(|node| node.readiness() == Readiness::Ready);
        // The others must not forget what they heard.
        let fragile = !self.may_crash();
        let lasts = 300 * MILLISECOND + self.rng.below(7 * SECOND);
        let is_prelude = now < self.txns_from;
        let kind = if is_prelude && self.rng.one_in(4) { WALL_CLOCK } else { self.rng.below(35) };
        match kind {
            // A crash at some moment, or at a persist point of a certain kind, with a part of what was not synced.
            0..=2 if up && !fragile => {
                let keep = self.keep();
                self.faults.down_for[site] = 50 * MILLISECOND + self.rng.below(4 * SECOND);
                self.crash(world, site, keep);
                self.probe_crash(keep);
            }
            3..=8 if up && !fragile && self.faults.hazards[site].is_none() => {
                let keep = self.keep();
                let at = PERSISTING[self.rng.below(PERSISTING.len() as u64) as usize];
                self.faults.down_for[site] = 50 * MILLISECOND + self.rng.below(3 * SECOND);
                self.faults.hazards[site] = Some(Hazard { at: Some(at), after: After::Crash(keep) });
                self.trace(world, format_args!("site {site} will crash at a persist of {at}"));
            }
            9 if ready && self.may_lose_disk(world, site) => {
                let down_for = 300 * MILLISECOND + self.rng.below(3 * SECOND);
                self.lose_disk(world, site, down_for);
            }
            10 if ready && self.may_lose_disk(world, site) => {
                let Some((copy, is_noted)) = self.fair_copy(world, site) else { return false };
                self.faults.down_for[site] = 300 * MILLISECOND + self.rng.below(2 * SECOND);
                self.faults.hazards.fill(None);
                self.crash(world, site, Keep::Everything);
                self.oracle.lose(site);
                self.trace(world, format_args!("site {site} has a copy of its disk that ends at batch {}", copy.last));
                world.restore(site, copy);
                self.faults.reborn = Some(site);
                self.faults.impostor = Some(site);
                self.faults.impostor_is_noted = is_noted;
                self.faults.copies[site].clear();
                self.probes.hit("fault: old copy restored");
                if is_noted && self.rng.one_in(2) {
                    self.crash_others(world, site);
                }
            }
            11 if up => {
                let until = now + 100 * MILLISECOND + self.rng.below(8 * SECOND);
                world.freeze(site, until);
                self.probes.hit("fault: pause");
                self.trace(world, format_args!("site {site} stands still until {until}"));
            }
            12 if up && !fragile && self.faults.hazards[site].is_none() => {
                let long = self.rng.one_in(2);
                let pause = if long { STALL_BOUND + self.rng.below(SECOND) + 1 } else { self.rng.below(STALL_BOUND) };
                self.faults.down_for[site] = 0;
                let at = if self.rng.one_in(2) {
                    Some(PERSISTING[self.rng.below(PERSISTING.len() as u64) as usize])
                } else {
                    None
                };
                self.faults.hazards[site] = Some(Hazard { at, after: After::Stall(pause) });
                self.trace(world, format_args!("site {site} will stall {pause} us"));
            }
            13 => {
                let error = self.rng.below(2 * EPSILON as u64) as i64 - EPSILON;
                world.clock(site).set_wall(now, error, 0);
                self.probes.hit("fault: wall clock within epsilon");
            }
            WALL_CLOCK
                if self.may_step(site) && !self.faults.errs_mono[site] && self.may_err(now + lasts + 4 * SECOND) =>
            {
                // Its monotonic clock goes right in all the run.
                self.set_wall_wrong(world, site, lasts + 3 * SECOND);
            }
            29..=30 if self.faults.errs_walls && self.may_step(site) => {
                self.set_wall_wrong(world, site, lasts + 3 * SECOND);
                self.probes.hit("fault: wall clock stepped while warranties are used");
                self.meet_at_home(world, site);
            }
            // The machine is suspended, also for longer than any right lasts. Its monotonic clock counts that, or stands still.
            31 if up && !self.errs(site) && !world.is_held_up(site) => {
                let lasts = 2 * lasts;
                let stands = self.faults.errs_mono[site] && self.rng.one_in(3) != self.has_warranties;
                self.suspend(world, site, lasts, stands);
            }
            15 if !self.errs(site) && self.faults.errs_mono[site] => {
                // Its wall clock goes right in all the run.
                let drift = self.rng.below(200_000) as i64 - 100_000;
                world.clock(site).set_mono_drift(now, drift);
                world.reschedule(site);
                self.begin(world, Fault::Clock { site }, lasts + 3 * SECOND);
                self.probes.hit("fault: monotonic drift");
                self.trace(world, format_args!("site {site}: monotonic clock drifts {drift} ppm"));
            }
            16 => {
                self.begin(world, Fault::Cut { from: site, to: other }, lasts);
                self.probes.hit("fault: one-way partition");
            }
            17 => {
                self.begin(world, Fault::Cut { from: site, to: other }, lasts);
                self.begin(world, Fault::Cut { from: other, to: site }, lasts);
                self.probes.hit("fault: partial partition");
            }
            18 => {
                let both = self.rng.below(3);
                let fault = Fault::CutAll { site, inwards: both != 1, outwards: both != 2 };
                self.begin(world, fault, lasts);
                self.probes.hit("fault: site isolated");
            }
            19 if sites > 3 || self.rng.one_in(3) => {
                let side = 1 + self.rng.below((1 << sites) - 2);
                self.begin(world, Fault::Split { side }, lasts);
                self.probes.hit("fault: split");
            }
            20 if self.faults.swizzled.is_empty() => {
                let mut order: Vec<usize> = (0..sites).collect();
                for at in (1..sites).rev() {
                    order.swap(at, self.rng.below(at as u64 + 1) as usize);
                }
                for (at, &site) in order.iter().enumerate() {
                    let when = now + at as u64 * (300 * MILLISECOND);
                    world.wake_at(when, Timer::Swizzle(site).token());
                }
                self.faults.swizzled = order;
                self.probes.hit("fault: swizzle");
            }
            21 => {
                let by = 100 * MILLISECOND + self.rng.below(SECOND);
                self.begin(world, Fault::Slow { from: site, to: other, by }, lasts);
                self.probes.hit("fault: slow link");
            }
            22 => {
                let (fault, name) = match self.rng.below(3) {
                    0 => (Fault::Loss, "fault: loss burst"),
                    1 => (Fault::Duplication, "fault: duplication burst"),
                    _ => (Fault::Reordering, "fault: reordering burst"),
                };
                self.begin(world, fault, lasts);
                self.probes.hit(name);
            }
            23 => {
                self.begin(world, Fault::SlowDisk { site }, lasts);
                self.probes.hit("fault: slow disk");
            }
            32..=33 if ready && self.faults.impostor.is_none() && self.may_unmount(world, site) => {
                self.unmount(world, site);
            }
            34 if ready && self.faults.relapse.is_none() && self.may_lose_disk(world, site) => {
                self.lose_disk_twice(world, site);
            }
            24 if up && (!fragile || self.faults.impostor == Some(site)) => {
                self.faults.down_for[site] = 100 * MILLISECOND + self.rng.below(2 * SECOND);
                self.ask_site(world, now, site, Purpose::Drain { site }, Request::Drain);
                self.probes.hit("fault: drain and restart");
                self.trace(world, format_args!("site {site} is to drain"));
            }
            25..=26 if !fragile && self.faults.reborn.is_none() && self.faults.ambush.is_none() => {
                self.faults.ambush = Some(Ambush::Lies);
            }
            27 if up && self.faults.slow_fetch[site].is_none() => {
                // Perhaps longer than any right lasts.
                let takes = 100 * MILLISECOND + self.rng.below(12 * SECOND);
                self.faults.slow_fetch[site] = Some(takes);
                self.faults.slow_tick[site] = Some(takes.min(TICK_FETCH));
                self.trace(world, format_args!("site {site}: the next fetch from storage takes {takes} us"));
            }
            28 if !self.faults.active.contains(&Some(Fault::FullDisk { site })) => {
                self.begin(world, Fault::FullDisk { site }, lasts / 2);
                self.probes.hit("fault: full disk");
            }
            _ => return false,
        }
        true
    }

    /// A wall clock is set beyond ε, and set right after a while.
    fn set_wall_wrong(&mut self, world: &mut World, site: usize, lasts: u64) {
        let least = if self.faults.errs_walls { MEASURABLE } else { 2 * EPSILON as u64 };
        let most = if self.rng.one_in(3) { FAR } else { 20 * SECOND };
        let error = (least + self.rng.below(most)) as i64;
        let error = if self.rng.one_in(2) { error } else { -error };
        let drift = if self.rng.one_in(3) { self.rng.below(2_000) as i64 - 1_000 } else { 0 };
        let now = world.now();
        world.clock(site).set_wall(now, error, drift);
        self.begin(world, Fault::Clock { site }, lasts);
        self.probes.hit("fault: wall clock beyond epsilon");
        self.trace(world, format_args!("site {site}: wall clock {error} us off, drifts {drift} ppm"));
        self.begin_vigil(world);
    }

    /// A wall clock is set so far back that no deadline seems past, and none too far ahead, and set right after a while.
    pub(crate) fn set_wall_back(&mut self, world: &mut World, site: usize, lasts: u64) {
        let now = world.now();
        world.clock(site).set_wall(now, -(6 * SECOND as i64), 0);
        self.begin(world, Fault::Clock { site }, lasts);
        self.probes.hit("fault: wall clock set back before a prepare");
        self.begin_vigil(world);
    }

    /// Whether the wall clock of a site may be wrong: those of a majority stay right.
    pub(crate) fn may_step(&self, site: usize) -> bool {
        let wrong = self.faults.active.iter().flatten().filter(|fault| matches!(fault, Fault::Clock { .. })).count();
        !self.errs(site) && wrong < (self.members.len() - 1) / 2
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

    /// Whether wall clocks may err beyond ε up to then.
    fn may_err(&self, until: u64) -> bool {
        !self.has_warranties || until < self.txns_from
    }

    fn keep(&mut self) -> Keep {
        match self.rng.below(3) {
            0 => Keep::Nothing,
            1 => Keep::Everything,
            _ => Keep::Some(self.rng.draw()),
        }
    }

    fn probe_crash(&mut self, keep: Keep) {
        self.probes.hit(match keep {
            Keep::Nothing => "fault: crash, unsynced lost",
            Keep::Everything => "fault: crash, unsynced kept",
            Keep::Some(_) => "fault: crash, unsynced partly kept",
        });
    }

    fn probe_turns(&mut self, world: &World, site: usize) {
        if world.node(site).is_some_and(|node| node.chapters().txns.turns() > 0) {
            self.probes.hit("transaction: its turn ended with a crash");
        }
    }

    /// Whether messages are lost, repeated or delayed in bursts.
    pub(crate) fn is_stormy(&self) -> bool {
        let is_storm = |fault: &Fault| matches!(fault, Fault::Loss | Fault::Duplication | Fault::Reordering);
        self.faults.active.iter().flatten().any(is_storm)
    }

    pub(crate) fn errs(&self, site: usize) -> bool {
        let of_site = [Fault::Clock { site }, Fault::Suspension { site }];
        self.faults.active.iter().flatten().any(|fault| of_site.contains(fault))
    }

    /// The site, which is up, loses its disk and is started again after a while.
    pub(crate) fn lose_disk(&mut self, world: &mut World, site: usize, down_for: u64) {
        self.faults.down_for[site] = down_for;
        self.crash(world, site, Keep::Everything);
        self.oracle.lose(site);
        world.lose_disk(site);
        self.faults.reborn = Some(site);
        self.faults.copies[site].clear();
        // What it had noted of others is gone too.
        for kept in self.faults.copies.iter_mut().flatten() {
            kept.noted[site] = false;
        }
        self.probes.hit("fault: disk lost");
        // It may come back on a machine whose clock nobody has set yet.
        let may_step = self.may_step(site) && (self.faults.errs_walls || !self.has_warranties);
        if may_step && !self.faults.errs_mono[site] && self.rng.one_in(2) {
            let lasts = down_for + 3 * SECOND + self.rng.below(20 * SECOND);
            self.set_wall_wrong(world, site, lasts);
            self.probes.hit("fault: new storage on a wrong wall clock");
        }
        self.trace(world, format_args!("site {site} has lost its disk"));
    }

    /// Sees to it that another site does not hear for a while that a site has lost its storage; perhaps it is suspended meanwhile, and
    /// goes on with what it knew. What it tells of that storage must not outlast the time for which the new one changes nothing.
    pub(crate) fn leave_unheard(&mut self, world: &mut World, site: usize) {
        if self.faults.healed || self.rng.one_in(3) {
            return;
        }
        let sites = world.len();
        // Suspended for longer than it may go by what it was told, while its monotonic clock stands; and then it hears nothing yet.
        // By that clock it must have been told lately.
        let was_told = |other: usize| {
            let peers = world.node(other).map(Node::peers).unwrap_or_default();
            let told = peers.iter().find(|peer| peer.site == self.members[site]).and_then(|peer| peer.vouched);
            told.is_some_and(|told| world.time_at(other).mono < told.mono + VOUCHED / 2)
        };
        let may_stand = |other: &usize| {
            self.faults.errs_mono[*other] && !self.errs(*other) && !world.is_held_up(*other) && was_told(*other)
        };
        let sleepers: Vec<usize> = (0..sites).filter(|other| *other != site).filter(may_stand).collect();
        let stands = !sleepers.is_empty() && self.rng.one_in(2);
        let other = match stands {
            true => sleepers[self.rng.below(sleepers.len() as u64) as usize],
            false => (site + 1 + self.rng.below(sites as u64 - 1) as usize) % sites,
        };
        let (asleep, awake) = match stands {
            true => (10 * SECOND + self.rng.below(6 * SECOND), 4 * SECOND + self.rng.below(8 * SECOND)),
            false => (0, 8 * SECOND + self.rng.below(16 * SECOND)),
        };
        self.begin(world, Fault::Cut { from: site, to: other }, asleep + awake);
        self.probes.hit("fault: new incarnation not heard of");
        self.read_what_was_lost(world, site, other);
        if stands {
            self.suspend(world, other, asleep, true);
        }
    }

    /// Whether the loss of this disk, or of what is new on it, would be fair.
    pub(crate) fn may_lose_disk(&self, world: &World, site: usize) -> bool {
        self.faults.impostor.is_none() && self.faults.reborn.is_none() && self.is_calm_for_loss(world, site)
    }

    /// Whether all the others are there and may vote in every quota, so that a loss of this disk leaves more than enough.
    fn is_calm_for_loss(&self, world: &World, site: usize) -> bool {
        let others = (0..world.len()).filter(|other| *other != site);
        others.into_iter().all(|other| {
            let incarnation = self.oracle.present(other);
            let serves = world.node(other).is_some_and(|node| node.readiness() == Readiness::Ready);
            let votes = |table: &Table| {
                incarnation == Incarnation(1)
                    || table.settled(self.members[other]).is_some_and(|last| last.row.incarnation == incarnation)
            };
            let tables = self.oracle.books.iter().filter_map(|book| book.decisions.newest());
            // For a name that does not exist the others tell a new incarnation whether it may vote.
            serves && tables.into_iter().all(|(_, table)| table.limit.is_none() || votes(table))
        })
    }

    /// Forgets that a site was reborn, once every quota has recorded its incarnation, and nothing that the lost one took part in
    /// is in doubt anywhere.
    fn settle_reborn(&mut self, world: &World) {
        let Some(site) = self.faults.reborn else { return };
        let incarnation = self.oracle.present(site);
        let serves = world.node(site).is_some_and(|node| node.readiness() == Readiness::Ready);
        let recorded = self.oracle.books.iter().all(|book| {
            let Some((instance, table)) = book.decisions.newest() else { return true };
            let row = table.settled(self.members[site]).is_some_and(|last| last.row.incarnation == incarnation);
            // And everybody knows.
            let known = (0..world.len()).all(|other| {
                let quota = world.node(other).and_then(|node| node.chapters().quotas.find(&book.name));
                quota.is_some_and(|quota| quota.avantan().share.applied == instance)
            });
            (row || table.limit.is_none()) && known
        });
        let in_doubt = |other: usize| {
            world.node(other).is_none_or(|node| node.chapters().txns.depends_on_lost(self.members[site], incarnation))
        };
        if serves && recorded && incarnation.0 > 0 && !(0..world.len()).any(in_doubt) {
            self.faults.reborn = None;
            self.probes.hit("round: new incarnation recorded");
        }
    }

    /// Looks which copies others have noted durably to be old.
    fn settle_copies(&mut self, world: &World) {
        let now = world.now();
        for site in 0..world.len() {
            for kept in &mut self.faults.copies[site] {
                for other in (0..world.len()).filter(|other| *other != site) {
                    let serves = |node: &&Node| node.readiness() == Readiness::Ready && !world.is_held_up(other);
                    let peer = world.node(other).filter(serves).map(|node| &node.peers()[site]);
                    let has_heard = peer.is_some_and(|peer| {
                        peer.incarnation == kept.incarnation && peer.position >= kept.copy.last + NOTED
                    });
                    let life = world.life(other);
                    kept.heard[other] = match kept.heard[other] {
                        _ if !has_heard => None,
                        Some((since, of)) if of == life => {
                            kept.noted[other] |= now >= since + NOTING;
                            Some((since, of))
                        }
                        _ => Some((now, life)),
                    };
                }
            }
        }
    }

    /// A copy that every other site knows to be old, and whether all have noted durably that it is.
    fn fair_copy(&mut self, world: &World, site: usize) -> Option<(Copy, bool)> {
        let incarnation = world.node(site)?.incarnation();
        let heard = (0..world.len()).filter(|other| *other != site).map(|other| {
            let peer = world.node(other).map(|node| &node.peers()[site]);
            peer.filter(|peer| peer.incarnation == incarnation).map_or(0, |peer| peer.position)
        });
        let heard = heard.min().unwrap_or(0);
        let copies = std::mem::take(&mut self.faults.copies[site]);
        let kept = copies.into_iter().find(|kept| kept.incarnation == incarnation && kept.copy.last < heard)?;
        let is_noted = (0..world.len()).all(|other| other == site || kept.noted[other]);
        Some((kept.copy, is_noted))
    }

    /// The others crash at the moment when an old copy of a site's disk is put in place.
    fn crash_others(&mut self, world: &mut World, site: usize) {
        self.probes.hit("fault: old copy restored, others crash");
        for other in (0..world.len()).filter(|other| *other != site) {
            if world.node(other).is_some() {
                let (keep, down_for) = (self.keep(), 50 * MILLISECOND + self.rng.below(4 * SECOND));
                self.crash_for(world, other, keep, down_for);
            }
        }
    }

    /// Whether a majority of sites would still run on their own storage.
    fn may_unmount(&self, world: &World, site: usize) -> bool {
        let is_without = |other: &usize| {
            *other == site || self.faults.unmounted[*other].is_some() || self.oracle.present(*other).0 == 0
        };
        (0..world.len()).filter(is_without).count() <= (world.len() - 1) / 2
    }

    /// The site stops, and is started where its volume is not mounted.
    fn unmount(&mut self, world: &mut World, site: usize) {
        let keep = self.keep();
        let down_for = 50 * MILLISECOND + self.rng.below(SECOND);
        self.crash_for(world, site, keep, down_for);
        self.faults.unmounted[site] = Some(world.copy(site));
        world.lose_disk(site);
        let until = world.now() + SECOND + self.rng.below(8 * SECOND);
        world.wake_at(until, Timer::Mount(site).token());
        self.probes.hit("fault: empty mount");
        self.trace(world, format_args!("site {site}: its volume is not mounted until {until}"));
    }

    /// The site's volume is mounted, and the site started on it.
    pub(crate) fn mount(&mut self, world: &mut World, site: usize) {
        let Some(volume) = self.faults.unmounted[site].take() else { return };
        if world.node(site).is_some() {
            let down_for = 50 * MILLISECOND + self.rng.below(SECOND);
            self.crash_for(world, site, Keep::Everything, down_for);
        }
        world.restore(site, volume);
        self.faults.remounted[site] = true;
        self.trace(world, format_args!("site {site}: its volume is mounted"));
    }

    /// A site's storage is confirmed.
    pub(crate) fn remounted(&mut self, site: usize) {
        if std::mem::take(&mut self.faults.remounted[site]) {
            self.probes.hit("fault: empty mount ends");
        }
    }

    /// A site's storage was found to be an old copy.
    pub(crate) fn put_aside(&mut self, site: usize) {
        self.faults.put_aside[site] = true;
        self.faults.down_for[site] = 50 * MILLISECOND;
        self.faults.rejoined(site);
    }

    /// A site waits for a person's word, which comes when the person has looked; never while only the volume is not mounted.
    pub(crate) fn await_word(&mut self, world: &mut World, site: usize) {
        if self.faults.unmounted[site].is_some() {
            return;
        }
        let is_expected = self.faults.relapse.as_ref().is_some_and(|(expected, _)| *expected == site);
        let most = if is_expected { SECOND / 2 } else { [SECOND, 10 * SECOND][self.rng.below(2) as usize] };
        let at = world.now() + self.rng.below(most);
        world.wake_at(at, Timer::Word(site).token());
    }

    /// The person starts the site with the word, if it still waits for it.
    pub(crate) fn give_word(&mut self, world: &mut World, site: usize) {
        let waits = world.node(site).is_some_and(|node| node.readiness() == Readiness::AwaitingNewStorage);
        if !waits || self.faults.unmounted[site].is_some() {
            return;
        }
        self.trace(world, format_args!("site {site} is to be started with the word that its earlier storage is lost"));
        self.crash_for(world, site, Keep::Everything, 50 * MILLISECOND);
        world.permit_new_storage(site);
    }

    /// The site loses its disk, joins while it can reach only a part of the others, and loses it again as soon as it has
    /// joined; the second time it can reach the other part first. Joining storage has to hear from so many that some of them
    /// hear of both.
    fn lose_disk_twice(&mut self, world: &mut World, site: usize) {
        let mut others: Vec<usize> = (0..world.len()).filter(|other| *other != site).collect();
        for at in (1..others.len()).rev() {
            others.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        others.truncate(others.len() / 2);
        let lasts = 6 * SECOND + self.rng.below(4 * SECOND);
        self.isolate(world, site, &others, lasts);
        self.faults.relapse = Some((site, others));
        let down_for = 100 * MILLISECOND + self.rng.below(300 * MILLISECOND);
        self.lose_disk(world, site, down_for);
    }

    /// Cuts a site off from some others, for a while.
    fn isolate(&mut self, world: &mut World, site: usize, others: &[usize], lasts: u64) {
        for &other in others {
            self.begin(world, Fault::Cut { from: other, to: site }, lasts);
            self.begin(world, Fault::Cut { from: site, to: other }, lasts);
        }
    }

    /// The site has joined.
    pub(crate) fn await_relapse(&mut self, world: &mut World, site: usize) {
        if self.faults.relapse.as_ref().is_some_and(|(expected, _)| *expected == site) {
            let at = world.now() + self.rng.below(SECOND);
            world.wake_at(at, Timer::Relapse(site).token());
        }
    }

    /// The site loses its disk again, if that is fair.
    pub(crate) fn relapse(&mut self, world: &mut World, site: usize) {
        let Some((expected, unheard)) = self.faults.relapse.take() else { return };
        let ready = world.node(site).is_some_and(|node| node.readiness() == Readiness::Ready);
        let is_fair = expected == site && ready && !self.faults.healed && self.is_calm_for_loss(world, site);
        if !is_fair || self.faults.impostor.is_some() {
            return;
        }

        // The first cut ends, another one begins.
        for at in 0..self.faults.active.len() {
            let Some(Fault::Cut { from, to }) = self.faults.active[at] else { continue };
            let is_ours = |one: usize, other: usize| one == site && unheard.contains(&other);
            if is_ours(from, to) || is_ours(to, from) {
                self.mend(world, at);
            }
        }
        let heard: Vec<usize> = (0..world.len()).filter(|other| *other != site && !unheard.contains(other)).collect();
        let lasts = 2 * SECOND + self.rng.below(4 * SECOND);
        self.isolate(world, site, &heard, lasts);
        let down_for = 100 * MILLISECOND + self.rng.below(300 * MILLISECOND);
        self.lose_disk(world, site, down_for);
        self.probes.hit("fault: disk lost again");
    }

    /// How long storage takes to fetch what an input needs, where a fault has made it slow.
    pub(crate) fn slow_fetch(&mut self, world: &World, site: usize, input: &Input<Node>) -> u64 {
        let is_tick = matches!(input, Input::Tick);
        let Faults { slow_fetch, slow_tick, .. } = &mut self.faults;
        let slow = if is_tick { &mut slow_tick[site] } else { &mut slow_fetch[site] };
        let Some(takes) = *slow else { return 0 };
        let needs = |node: &Node| !node.working_set(world.time_at(site), input).is_empty();
        if !world.node(site).is_some_and(needs) {
            return 0;
        }
        *slow = None;
        self.probes.hit(if is_tick { "fault: slow fetch of a tick" } else { "fault: slow fetch" });
        takes
    }

    /// Whether a site may crash without making another fault unfair.
    pub(crate) fn may_crash(&self) -> bool {
        self.faults.impostor.is_none() || self.faults.impostor_is_noted
    }

    /// The site, which is up, crashes and is started again after a while.
    pub(crate) fn crash_for(&mut self, world: &mut World, site: usize, keep: Keep, down_for: u64) {
        self.faults.down_for[site] = down_for;
        self.crash(world, site, keep);
    }

    fn crash(&mut self, world: &mut World, site: usize, keep: Keep) {
        self.trace(world, format_args!("site {site} crashes, {keep:?} of what is not synced is kept"));
        self.count_metrics(world, site);
        self.probe_turns(world, site);
        world.crash(self, site, keep);
        use crate::world::Host;
        self.crashed(world, site, 0);
    }

    /// What happens to a site that has just handled an input of this kind.
    pub(crate) fn hazard(&mut self, world: &mut World, site: usize, kind: usize, persists: bool) -> After {
        let Some(hazard) = self.faults.hazards[site] else { return After::Go };
        let name = kinds::input_name(kind);
        if hazard.at.is_some_and(|at| !persists || at != name) {
            return After::Go;
        }
        self.faults.hazards[site] = None;
        self.count_metrics(world, site);
        match hazard.after {
            After::Crash(keep) => {
                self.probe_crash(keep);
                self.probe_turns(world, site);
                self.faults.recovering[site] = Some(name);
            }
            After::Stall(pause) if pause > STALL_BOUND => self.probes.hit("fault: stall past the bound"),
            _ => self.probes.hit("fault: pause between clock and effect"),
        }
        self.trace(world, format_args!("site {site}: {:?} at {name}", hazard.after));
        hazard.after
    }

    pub(crate) fn restart(&mut self, world: &mut World, site: usize) {
        if world.node(site).is_some() {
            return;
        }
        // Its driver keeps the old copy, aside.
        if std::mem::take(&mut self.faults.put_aside[site]) {
            world.lose_disk(site);
        }
        world.start(site);
        if let Some(at) = self.faults.recovering[site].take() {
            self.probes.recovered(at);
        }
        self.started(world, site);
    }

    /// A site crashes soon after it was told that a session is over in which a commit was under way.
    pub(crate) fn crash_after_close(&mut self, world: &mut World, site: usize) {
        if self.faults.healed || !self.may_crash() || world.node(site).is_none() {
            return;
        }
        self.probes.hit("fault: crash after a session ended with a commit under way");
        let (keep, down_for) = (self.keep(), 50 * MILLISECOND + self.rng.below(SECOND));
        self.crash_for(world, site, keep, down_for);
    }

    /// A site says that it may be stopped.
    pub(crate) fn drained(&mut self, world: &mut World, site: usize) {
        // One that serves has been started again since.
        let fragile = !self.may_crash() && self.faults.impostor != Some(site);
        let Some(node) = world.node(site).filter(|node| node.readiness() != Readiness::Ready && !fragile) else {
            return;
        };
        let served = node.readiness() == Readiness::Draining;
        self.probes.hit(if served { "site: drained" } else { "site: drained before it served" });
        self.crash(world, site, Keep::Everything);
    }

    /// Isolates a site, and later, in another order, joins it again.
    pub(crate) fn swizzle(&mut self, world: &mut World, site: usize) {
        if self.faults.healed {
            return;
        }
        let lasts = 800 * MILLISECOND + self.rng.below(3 * SECOND);
        self.begin(world, Fault::CutAll { site, inwards: true, outwards: true }, lasts);
        self.faults.swizzled.retain(|other| *other != site);
    }

    pub(crate) fn begin(&mut self, world: &mut World, fault: Fault, lasts: u64) {
        self.trace(world, format_args!("{fault:?} for {lasts} us"));
        self.apply(world, fault, true);
        let at = self.faults.active.len();
        self.faults.active.push(Some(fault));
        world.wake_at(world.now() + lasts, Timer::Mend(at).token());
    }

    pub(crate) fn mend(&mut self, world: &mut World, at: usize) {
        let Some(fault) = self.faults.active[at].take() else { return };
        self.trace(world, format_args!("{fault:?} ends"));
        self.apply(world, fault, false);
    }

    fn apply(&mut self, world: &mut World, fault: Fault, begins: bool) {
        let sites = world.len();
        let now = world.now();
        let mut cut = |from: usize, to: usize| {
            let link = world.link(from, to);
            link.cut = if begins { link.cut + 1 } else { link.cut - 1 };
        };
        match fault {
            Fault::Cut { from, to } => cut(from, to),
            Fault::CutAll { site, inwards, outwards } => {
                for other in (0..sites).filter(|other| *other != site) {
                    if inwards {
                        cut(other, site);
                    }
                    if outwards {
                        cut(site, other);
                    }
                }
            }
            Fault::Split { side } => {
                for from in 0..sites {
                    (0..sites).filter(|to| side >> from & 1 != side >> to & 1).for_each(|to| cut(from, to));
                }
            }
            Fault::Slow { from, to, by } => world.link(from, to).slow = if begins { by } else { 0 },
            Fault::Loss => world.weather().loss = if begins { 200_000 } else { DRIZZLE.loss },
            Fault::Duplication => world.weather().duplication = if begins { 300_000 } else { DRIZZLE.duplication },
            Fault::Reordering => world.weather().reordering = if begins { 300_000 } else { DRIZZLE.reordering },
            Fault::SlowDisk { site } => {
                let more = if begins { 20 * MILLISECOND + self.rng.below(300 * MILLISECOND) } else { 0 };
                world.slow_disk(site, more);
            }
            Fault::FullDisk { site } => world.set_room(site, !begins),
            // What it was suspended with lasts as long.
            Fault::Suspension { .. } => {}
            Fault::Clock { site } => {
                if !begins {
                    let was = world.clock(site).error(now);
                    let error = self.rng.below(EPSILON as u64) as i64 - EPSILON / 2;
                    world.clock(site).set_wall(now, error, 0);
                    world.clock(site).set_mono_drift(now, self.rng.below(100) as i64 - 50);
                    world.reschedule(site);
                    self.pass_error_on(world, site, was);
                }
            }
        }
    }

    /// Another clock is set wrong by as much as this one, which has just been set right, was: before the two are compared again, they
    /// seem to agree.
    fn pass_error_on(&mut self, world: &mut World, site: usize, error: i64) {
        let planned = self.faults.passes_on.take_if(|(from, _)| *from == site);
        let may_pass = !self.faults.healed && self.has_warranties && self.faults.errs_walls;
        if !may_pass || error.unsigned_abs() < MEASURABLE || planned.is_none() && !self.rng.one_in(3) {
            return;
        }
        let sites = world.len() as u64;
        let chosen = (site + 1 + self.rng.below(sites - 1) as usize) % world.len();
        let other = planned.map_or(chosen, |(_, other)| other);
        if self.may_step(other) {
            let now = world.now();
            world.clock(other).set_wall(now, error, 0);
            let lasts = SECOND + self.rng.below(3 * SECOND);
            self.begin(world, Fault::Clock { site: other }, lasts);
            self.probes.hit("fault: wall clock set wrong as another is set right");
            self.trace(world, format_args!("site {other}: wall clock {error} us off, as that of site {site} was"));
            self.begin_vigil(world);
        }
    }

    /// Everything that is wrong ends.
    pub(crate) fn heal(&mut self, world: &mut World) {
        self.trace(world, format_args!("healing"));
        self.faults.healed = true;
        for at in 0..self.faults.active.len() {
            self.mend(world, at);
        }
        self.faults.hazards.fill(None);
        self.faults.slow_fetch.fill(None);
        self.faults.slow_tick.fill(None);
        self.faults.ambush = None;
        *world.weather() = CALM;
        for site in 0..world.len() {
            let error = self.rng.below(EPSILON as u64) as i64 - EPSILON / 2;
            let now = world.now();
            world.clock(site).set_wall(now, error, 0);
            self.mount(world, site);
            if world.node(site).is_none() {
                self.restart(world, site);
            }
        }
        self.audit.healed_at = world.now();
    }
}
