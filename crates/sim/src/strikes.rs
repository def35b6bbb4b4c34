//! Which fault strikes when: a plan drawn at the start, and a table of what may strike.
//!
//! Every second or so a site, another one and a fault are drawn. If the fault would not be fair there and then, another draw is
//! made. What a fault does while it goes on, and how it ends, is in `faults`; what happens to storage is in `losses`.

use slackline_core::api::{Readiness, Request};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::machine::STALL_BOUND;

use crate::clock::EPSILON;
use crate::kinds::PERSISTING;
use crate::state::Simulation;
use crate::state::faults::{Ambush, DRIZZLE, Fault, Hazard};
use crate::state::post::Purpose;
use crate::state::timer::Timer;
use crate::world::{After, Keep, World};

/// Before this nothing goes wrong, so that there is something to go wrong with.
const FIRST: u64 = 4 * SECOND;
/// The number of times that another fault is drawn where one would not be fair.
const DRAWS: u32 = 20;
/// The longest time that storage takes to fetch what a tick needs.
const TICK_FETCH: u64 = 400 * MILLISECOND;

/// A fault that may strike.
struct Strike {
    /// The number of draws that mean it, of [`TOTAL`].
    weight: u64,
    /// True if it would be fair now.
    is_fair: fn(&Simulation, &World, Aim) -> bool,
    /// What it does. False if it comes to nothing after all, and another one is to be drawn.
    strike: fn(&mut Simulation, &mut World, Aim) -> bool,
}

/// Where a fault strikes, and what is there.
#[derive(Clone, Copy)]
struct Aim {
    /// The site.
    site: usize,
    /// Another one, for what happens between two.
    other: usize,
    /// The time for which the fault goes on, in microseconds.
    lasts: u64,
    /// True if the site runs.
    is_up: bool,
    /// True if the site serves.
    is_ready: bool,
    /// True if no site may crash but an impostor, see [`crate::state::faults::Faults::may_crash`].
    is_fragile: bool,
}

/// All of them. A seed's draws mean these by their order and weights.
const STRIKES: &[Strike] = &[
    Strike { weight: 3, is_fair: may_go_down, strike: Simulation::crash_now },
    // One hazard waits at a site at a time.
    Strike { weight: 6, is_fair: may_have_hazard, strike: Simulation::crash_at_a_persist },
    // At most one disk is lost at a time, and the loss is made up for before the next: see `losses`.
    Strike {
        weight: 1,
        is_fair: |of, world, aim| aim.is_ready && of.may_lose_disk(world, aim.site),
        strike: Simulation::lose_disk_now,
    },
    Strike {
        weight: 1,
        is_fair: |of, world, aim| aim.is_ready && of.may_lose_disk(world, aim.site),
        strike: |of, world, aim| of.restore_old_copy(world, aim.site),
    },
    Strike { weight: 1, is_fair: |_, _, aim| aim.is_up, strike: Simulation::pause },
    Strike { weight: 1, is_fair: may_have_hazard, strike: Simulation::stall_at_an_input },
    Strike { weight: 1, is_fair: |_, _, _| true, strike: Simulation::shift_wall_clock },
    WALL_CLOCK,
    // Its wall clock goes right in all the run.
    Strike {
        weight: 1,
        is_fair: |of, _, aim| !of.faults.errs(aim.site) && of.faults.sites[aim.site].errs_mono,
        strike: Simulation::drift,
    },
    Strike { weight: 1, is_fair: |_, _, _| true, strike: Simulation::cut_one_way },
    Strike { weight: 1, is_fair: |_, _, _| true, strike: Simulation::cut_both_ways },
    Strike { weight: 1, is_fair: |_, _, _| true, strike: Simulation::isolate_site },
    Strike { weight: 1, is_fair: |_, _, _| true, strike: Simulation::split },
    Strike { weight: 1, is_fair: |of, _, _| of.faults.swizzled.is_empty(), strike: Simulation::begin_swizzle },
    Strike { weight: 1, is_fair: |_, _, _| true, strike: Simulation::slow_link },
    Strike { weight: 1, is_fair: |_, _, _| true, strike: Simulation::storm },
    Strike { weight: 1, is_fair: |_, _, _| true, strike: Simulation::slow_disk },
    // A drained site stops. An impostor may: what betrays it is at the others.
    Strike {
        weight: 1,
        is_fair: |of, _, aim| aim.is_up && (!aim.is_fragile || of.faults.losses.impostor == Some(aim.site)),
        strike: Simulation::drain,
    },
    // It ends with a lost disk, so none may be lost already.
    Strike {
        weight: 2,
        is_fair: |of, _, aim| !aim.is_fragile && of.faults.losses.reborn.is_none() && of.faults.ambush.is_none(),
        strike: Simulation::lie_in_ambush,
    },
    Strike {
        weight: 1,
        is_fair: |of, _, aim| aim.is_up && of.faults.sites[aim.site].slow_fetch.is_none(),
        strike: Simulation::slow_next_fetch,
    },
    // A disk that is full already would get its room back when the first of the two faults ends.
    Strike {
        weight: 1,
        is_fair: |of, _, aim| !of.faults.active.contains(&Some(Fault::FullDisk { site: aim.site })),
        strike: Simulation::fill_disk,
    },
    Strike {
        weight: 2,
        is_fair: |of, _, aim| of.faults.errs_walls && of.faults.may_step(aim.site),
        strike: Simulation::step_wall_clock_at_a_home,
    },
    // At most one of a site's clocks errs, and a machine stands still for one reason at a time.
    Strike {
        weight: 1,
        is_fair: |of, world, aim| aim.is_up && !of.faults.errs(aim.site) && !world.is_held_up(aim.site),
        strike: Simulation::suspend_machine,
    },
    Strike {
        weight: 2,
        is_fair: |of, world, aim| {
            aim.is_ready && of.faults.losses.impostor.is_none() && of.may_unmount(world, aim.site)
        },
        strike: |of, world, aim| {
            of.unmount(world, aim.site);
            true
        },
    },
    Strike {
        weight: 1,
        is_fair: |of, world, aim| {
            aim.is_ready && of.faults.losses.relapse.is_none() && of.may_lose_disk(world, aim.site)
        },
        strike: |of, world, aim| {
            of.lose_disk_twice(world, aim.site);
            true
        },
    },
];

/// A wall clock errs beyond ε. While warranties are in use this would not be fair: it is right again before they are. Its monotonic
/// clock goes right in all the run, because of a site's two clocks at most one errs.
const WALL_CLOCK: Strike = Strike {
    weight: 1,
    is_fair: |of, world, aim| {
        of.faults.may_step(aim.site)
            && !of.faults.sites[aim.site].errs_mono
            && of.may_err(world.now() + aim.lasts + 4 * SECOND)
    },
    strike: Simulation::step_wall_clock,
};

/// The number of numbers that are drawn from.
const TOTAL: u64 = {
    let (mut at, mut total) = (0, 0);
    while at < STRIKES.len() {
        total += STRIKES[at].weight;
        at += 1;
    }
    total
};

/// The fault that a number below [`TOTAL`] means.
fn strike_of(number: u64) -> &'static Strike {
    let mut above = 0;
    let is_meant = |strike: &&Strike| {
        above += strike.weight;
        number < above
    };
    STRIKES.iter().find(is_meant).expect("the weights add up to the total")
}

/// Returns true if the site may crash: what it alone remembers of an impostor must not go.
fn may_go_down(_: &Simulation, _: &World, aim: Aim) -> bool {
    aim.is_up && !aim.is_fragile
}

/// The same, if nothing waits to happen to it already.
fn may_have_hazard(of: &Simulation, _: &World, aim: Aim) -> bool {
    aim.is_up && !aim.is_fragile && of.faults.sites[aim.site].hazard.is_none()
}

impl Simulation {
    /// Draws which clocks may err in this run, and when the first fault strikes.
    pub(crate) fn plan_faults(&mut self, world: &mut World) {
        *world.weather() = DRIZZLE;
        self.faults.errs_walls = self.settings.has_warranties && self.rng.one_in(2);
        for site in 0..world.len() {
            // Honest clocks are not exact.
            let error = self.rng.below(EPSILON as u64) as i64 - EPSILON / 2;
            world.clock(site).set_wall(0, error, 0);
            world.clock(site).set_mono_drift(0, self.rng.below(100) as i64 - 50);

            // While warranties are in use, one of the two kinds of clocks is right at all sites.
            self.faults.sites[site].errs_mono = self.rng.one_in(2) && !self.faults.errs_walls;
            let at = 3 * SECOND + self.rng.below(6 * SECOND);
            world.wake_at(at, Timer::Copy(site).token());
        }

        let faults = self.settings.options.faults;
        self.faults.planned = faults + self.rng.below(faults / 2 + 1);
        world.wake_at(FIRST + self.rng.below(2 * SECOND), Timer::Strike.token());
    }

    /// Returns true if the time of faults is over: all have struck, and clients have little left to do.
    pub(crate) fn faults_are_over(&self) -> bool {
        let options = self.settings.options;
        self.faults.struck >= self.faults.planned
            && self.clients.quota_operations() + options.operations / 10 >= options.operations
            && self.txns.committed + options.transactions / 10 >= options.transactions
    }

    /// The next fault strikes.
    pub(crate) fn strike(&mut self, world: &mut World) {
        if self.faults.healed {
            return;
        }

        // Where none of the draws is fair, nothing strikes this time.
        for _ in 0..DRAWS {
            if self.try_strike(world) {
                self.faults.struck += 1;
                break;
            }
        }

        let pause = 200 * MILLISECOND + self.rng.below(5 * SECOND);
        world.wake_at(self.settings.after_silence(world.now() + pause), Timer::Strike.token());
    }

    /// Draws a fault; true if it strikes.
    fn try_strike(&mut self, world: &mut World) -> bool {
        // What was unfair may be fair by now.
        self.settle_reborn(world);
        self.settle_copies(world);

        let sites = world.len() as u64;
        let site = self.rng.below(sites) as usize;
        let other = (site + 1 + self.rng.below(sites - 1) as usize) % world.len();
        let aim = Aim {
            site,
            other,
            lasts: 300 * MILLISECOND + self.rng.below(7 * SECOND),
            is_up: world.node(site).is_some(),
            is_ready: world.node(site).is_some_and(|node| node.readiness() == Readiness::Ready),
            is_fragile: !self.faults.may_crash(),
        };

        // Before the first transaction wall clocks may be as wrong as they like, and that time is short.
        let is_prelude = world.now() < self.settings.txns_from;
        let strike = if is_prelude && self.rng.one_in(4) { &WALL_CLOCK } else { strike_of(self.rng.below(TOTAL)) };
        (strike.is_fair)(self, world, aim) && (strike.strike)(self, world, aim)
    }

    /// Returns true if wall clocks may err beyond ε up to then: while there are no transactions, or none that rests on a clock.
    fn may_err(&self, until: u64) -> bool {
        !self.settings.has_warranties || until < self.settings.txns_from
    }

    /// The site crashes now, and keeps a part of what was not synced.
    fn crash_now(&mut self, world: &mut World, aim: Aim) -> bool {
        let keep = self.keep();
        let down_for = 50 * MILLISECOND + self.rng.below(4 * SECOND);
        self.crash_for(world, aim.site, keep, down_for);
        self.probe_crash(keep);
        true
    }

    /// The site crashes at its next persist point of some kind.
    fn crash_at_a_persist(&mut self, world: &mut World, aim: Aim) -> bool {
        let keep = self.keep();
        let at = self.persist_point();

        let ills = &mut self.faults.sites[aim.site];
        ills.down_for = 50 * MILLISECOND + self.rng.below(3 * SECOND);
        ills.hazard = Some(Hazard { at: Some(at), after: After::Crash(keep) });
        self.trace(world, format_args!("site {} will crash at a persist of {at}", aim.site));
        true
    }

    /// Some kind of input whose handling persists.
    fn persist_point(&mut self) -> &'static str {
        PERSISTING[self.rng.below(PERSISTING.len() as u64) as usize]
    }

    /// The site loses its disk.
    fn lose_disk_now(&mut self, world: &mut World, aim: Aim) -> bool {
        let down_for = 300 * MILLISECOND + self.rng.below(3 * SECOND);
        self.lose_disk(world, aim.site, down_for);
        true
    }

    /// The site stands still, and goes on where it was.
    fn pause(&mut self, world: &mut World, aim: Aim) -> bool {
        let until = world.now() + 100 * MILLISECOND + self.rng.below(8 * SECOND);
        world.freeze(aim.site, until);
        self.probes.hit("fault: pause");
        self.trace(world, format_args!("site {} stands still until {until}", aim.site));
        true
    }

    /// The site is held up between the clock and the first effect of an input, for less than its driver bears with, or for more.
    fn stall_at_an_input(&mut self, world: &mut World, aim: Aim) -> bool {
        let long = self.rng.one_in(2);
        let pause = if long { STALL_BOUND + self.rng.below(SECOND) + 1 } else { self.rng.below(STALL_BOUND) };
        let at = if self.rng.one_in(2) { Some(self.persist_point()) } else { None };

        // A site that is stalled for too long is started again as soon as it notices.
        let ills = &mut self.faults.sites[aim.site];
        ills.down_for = 0;
        ills.hazard = Some(Hazard { at, after: After::Stall(pause) });
        self.trace(world, format_args!("site {} will stall {pause} us", aim.site));
        true
    }

    /// A wall clock is set, no further off than sites are told that clocks may be.
    fn shift_wall_clock(&mut self, world: &mut World, aim: Aim) -> bool {
        let error = self.rng.below(2 * EPSILON as u64) as i64 - EPSILON;
        let now = world.now();
        world.clock(aim.site).set_wall(now, error, 0);
        self.probes.hit("fault: wall clock within epsilon");
        true
    }

    /// A wall clock is set beyond ε, while nothing rests on it.
    fn step_wall_clock(&mut self, world: &mut World, aim: Aim) -> bool {
        self.set_wall_wrong(world, aim.site, aim.lasts + 3 * SECOND);
        true
    }

    /// A wall clock is set so far off that it can be measured, and somebody writes there what others hold rights over.
    fn step_wall_clock_at_a_home(&mut self, world: &mut World, aim: Aim) -> bool {
        self.set_wall_wrong(world, aim.site, aim.lasts + 3 * SECOND);
        self.probes.hit("fault: wall clock stepped while warranties are used");
        self.meet_at_home(world, aim.site);
        true
    }

    /// The machine is suspended, also for longer than any right lasts. Its monotonic clock counts that, or stands still.
    fn suspend_machine(&mut self, world: &mut World, aim: Aim) -> bool {
        let may_stand = self.faults.sites[aim.site].errs_mono;
        let stands = may_stand && self.rng.one_in(3) != self.settings.has_warranties;
        self.suspend(world, aim.site, 2 * aim.lasts, stands);
        true
    }

    /// A monotonic clock drifts by up to a tenth.
    fn drift(&mut self, world: &mut World, aim: Aim) -> bool {
        let site = aim.site;
        let drift = self.rng.below(200_000) as i64 - 100_000;
        let now = world.now();
        world.clock(site).set_mono_drift(now, drift);
        world.reschedule(site);
        self.begin(world, Fault::Clock { site }, aim.lasts + 3 * SECOND);
        self.probes.hit("fault: monotonic drift");
        self.trace(world, format_args!("site {site}: monotonic clock drifts {drift} ppm"));
        true
    }

    /// Nothing gets from the site to the other.
    fn cut_one_way(&mut self, world: &mut World, aim: Aim) -> bool {
        self.begin(world, Fault::Cut { from: aim.site, to: aim.other }, aim.lasts);
        self.probes.hit("fault: one-way partition");
        true
    }

    /// Nothing gets through between two sites.
    fn cut_both_ways(&mut self, world: &mut World, aim: Aim) -> bool {
        self.begin(world, Fault::Cut { from: aim.site, to: aim.other }, aim.lasts);
        self.begin(world, Fault::Cut { from: aim.other, to: aim.site }, aim.lasts);
        self.probes.hit("fault: partial partition");
        true
    }

    /// Nothing gets into the site, or out of it, or both.
    fn isolate_site(&mut self, world: &mut World, aim: Aim) -> bool {
        let both = self.rng.below(3);
        let fault = Fault::CutAll { site: aim.site, inwards: both != 1, outwards: both != 2 };
        self.begin(world, fault, aim.lasts);
        self.probes.hit("fault: site isolated");
        true
    }

    /// The sites fall into two sides. Of three sites one is alone then, so that is done less often.
    fn split(&mut self, world: &mut World, aim: Aim) -> bool {
        if world.len() <= 3 && !self.rng.one_in(3) {
            return false;
        }
        let side = 1 + self.rng.below((1 << world.len()) - 2);
        self.begin(world, Fault::Split { side }, aim.lasts);
        self.probes.hit("fault: split");
        true
    }

    /// The sites are isolated one after another, and joined again in another order.
    fn begin_swizzle(&mut self, world: &mut World, _: Aim) -> bool {
        let order = self.shuffled(0..world.len());
        for (at, &site) in order.iter().enumerate() {
            let when = world.now() + at as u64 * (300 * MILLISECOND);
            world.wake_at(when, Timer::Swizzle(site).token());
        }
        self.faults.swizzled = order;
        self.probes.hit("fault: swizzle");
        true
    }

    /// What the site sends to the other takes longer.
    fn slow_link(&mut self, world: &mut World, aim: Aim) -> bool {
        let by = 100 * MILLISECOND + self.rng.below(SECOND);
        self.begin(world, Fault::Slow { from: aim.site, to: aim.other, by }, aim.lasts);
        self.probes.hit("fault: slow link");
        true
    }

    /// Many messages between all sites are lost, repeated or overtaken.
    fn storm(&mut self, world: &mut World, aim: Aim) -> bool {
        let (fault, name) = match self.rng.below(3) {
            0 => (Fault::Loss, "fault: loss burst"),
            1 => (Fault::Duplication, "fault: duplication burst"),
            _ => (Fault::Reordering, "fault: reordering burst"),
        };
        self.begin(world, fault, aim.lasts);
        self.probes.hit(name);
        true
    }

    /// Syncs at the site take longer.
    fn slow_disk(&mut self, world: &mut World, aim: Aim) -> bool {
        self.begin(world, Fault::SlowDisk { site: aim.site }, aim.lasts);
        self.probes.hit("fault: slow disk");
        true
    }

    /// The site is told to hand out what it has, and is started again once it may be stopped.
    fn drain(&mut self, world: &mut World, aim: Aim) -> bool {
        let (site, now) = (aim.site, world.now());
        self.faults.sites[site].down_for = 100 * MILLISECOND + self.rng.below(2 * SECOND);
        self.ask_site(world, now, site, Purpose::Drain { site }, Request::Drain { within: 5 * SECOND });
        self.probes.hit("fault: drain and restart");
        self.trace(world, format_args!("site {site} is to drain"));
        true
    }

    /// See `ambush`.
    fn lie_in_ambush(&mut self, _: &mut World, _: Aim) -> bool {
        self.faults.ambush = Some(Ambush::Lies);
        true
    }

    /// The next fetch from the site's storage takes long, perhaps longer than any right lasts.
    fn slow_next_fetch(&mut self, world: &mut World, aim: Aim) -> bool {
        let takes = 100 * MILLISECOND + self.rng.below(12 * SECOND);
        let ills = &mut self.faults.sites[aim.site];
        ills.slow_fetch = Some(takes);
        ills.slow_tick = Some(takes.min(TICK_FETCH));
        self.trace(world, format_args!("site {}: the next fetch from storage takes {takes} us", aim.site));
        true
    }

    /// The site's disk has no room for what clients want written.
    fn fill_disk(&mut self, world: &mut World, aim: Aim) -> bool {
        self.begin(world, Fault::FullDisk { site: aim.site }, aim.lasts / 2);
        self.probes.hit("fault: full disk");
        true
    }

    /// What a crash leaves of what is not synced.
    pub(crate) fn keep(&mut self) -> Keep {
        match self.rng.below(3) {
            0 => Keep::Nothing,
            1 => Keep::Everything,
            _ => Keep::Some(self.rng.draw()),
        }
    }
}
