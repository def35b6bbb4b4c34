//! What goes wrong: faults begin, end by themselves or at the healing, and sites crash and are started again.
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

use slackline_core::api::Readiness;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::machine::{Input, Machine, STALL_BOUND};
use slackline_core::node::Node;

use crate::clock::EPSILON;
use crate::kinds;
use crate::network::Weather;
use crate::state::Simulation;
use crate::state::faults::{DRIZZLE, Fault};
use crate::state::timer::Timer;
use crate::world::{After, Host, Keep, World};

/// What is left after the healing.
pub(crate) const CALM: Weather = Weather { loss: 0, duplication: 0, reordering: 0, detour: 0, jitter: 50 };

impl Simulation {
    /// Returns the time that storage takes to fetch what an input needs, where a fault has made it slow.
    pub(crate) fn slow_fetch(&mut self, world: &World, site: usize, input: &Input<Node>) -> u64 {
        let is_tick = matches!(input, Input::Tick);
        let ills = &mut self.faults.sites[site];
        let slow = if is_tick { &mut ills.slow_tick } else { &mut ills.slow_fetch };
        let Some(takes) = *slow else { return 0 };

        // An input that needs nothing from storage is not held up, and leaves the fault to the next one.
        let needs = |node: &Node| !node.working_set(world.time_at(site), input).is_empty();
        if !world.node(site).is_some_and(needs) {
            return 0;
        }

        *slow = None;
        self.probes.hit(if is_tick { "fault: slow fetch of a tick" } else { "fault: slow fetch" });
        takes
    }

    /// The site, which is up, crashes and is started again after a while.
    pub(crate) fn crash_for(&mut self, world: &mut World, site: usize, keep: Keep, down_for: u64) {
        self.faults.sites[site].down_for = down_for;
        self.crash(world, site, keep);
    }

    /// The site, which is up, crashes.
    pub(crate) fn crash(&mut self, world: &mut World, site: usize, keep: Keep) {
        self.trace(world, format_args!("site {site} crashes, {keep:?} of what is not synced is kept"));
        self.count_metrics(world, site);
        self.probe_turns(world, site);

        // The streams of the product's client break, and the oracle counts only what the disk has: both are told after the batches that
        // were kept.
        world.crash(self, site, keep);
        self.crashed(world, site, 0);
    }

    /// Counts a crash.
    pub(crate) fn probe_crash(&mut self, keep: Keep) {
        self.probes.hit(match keep {
            Keep::Nothing => "fault: crash, unsynced lost",
            Keep::Everything => "fault: crash, unsynced kept",
            Keep::Some(_) => "fault: crash, unsynced partly kept",
        });
    }

    /// Counts a turn that ends because its site crashes.
    fn probe_turns(&mut self, world: &World, site: usize) {
        if world.node(site).is_some_and(|node| node.chapters().txns.turns() > 0) {
            self.probes.hit("transaction: its turn ended with a crash");
        }
    }

    /// What happens to a site that has just handled an input of this kind.
    pub(crate) fn hazard(&mut self, world: &mut World, site: usize, kind: usize, persists: bool) -> After {
        let Some(hazard) = self.faults.sites[site].hazard else { return After::Go };
        let name = kinds::input_name(kind);
        if hazard.at.is_some_and(|at| !persists || at != name) {
            return After::Go;
        }

        // A hazard strikes once.
        self.faults.sites[site].hazard = None;
        self.count_metrics(world, site);
        match hazard.after {
            After::Crash(keep) => {
                self.probe_crash(keep);
                self.probe_turns(world, site);
                self.faults.sites[site].recovering = Some(name);
            }
            After::Stall(pause) if pause > STALL_BOUND => self.probes.hit("fault: stall past the bound"),
            _ => self.probes.hit("fault: pause between clock and effect"),
        }

        self.trace(world, format_args!("site {site}: {:?} at {name}", hazard.after));
        hazard.after
    }

    /// The site is started, if nobody has started it since it went down.
    pub(crate) fn restart(&mut self, world: &mut World, site: usize) {
        if world.node(site).is_some() || self.is_gone(site) {
            return;
        }
        // Its driver keeps the old copy, aside.
        if std::mem::take(&mut self.faults.sites[site].put_aside) {
            world.lose_disk(site);
        }

        world.start(site);
        if let Some(at) = self.faults.sites[site].recovering.take() {
            self.probes.recovered(at);
        }
        self.started(world, site);
    }

    /// A site crashes soon after it was told that a session is over in which a commit was under way.
    pub(crate) fn crash_after_close(&mut self, world: &mut World, site: usize) {
        if self.faults.healed || !self.faults.may_crash() || world.node(site).is_none() {
            return;
        }

        self.probes.hit("fault: crash after a session ended with a commit under way");
        let (keep, down_for) = (self.keep(), 50 * MILLISECOND + self.rng.below(SECOND));
        self.crash_for(world, site, keep, down_for);
    }

    /// A site says that it may be stopped.
    pub(crate) fn drained(&mut self, world: &mut World, site: usize) {
        // One that serves has been started again since.
        let fragile = !self.faults.may_crash() && self.faults.losses.impostor != Some(site);

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

    /// A fault begins, and ends after a while.
    pub(crate) fn begin(&mut self, world: &mut World, fault: Fault, lasts: u64) {
        self.trace(world, format_args!("{fault:?} for {lasts} us"));
        self.apply(world, fault, true);

        // The mark of a fault that ended stays, so that the numbers of the others do.
        let at = self.faults.active.len();
        self.faults.active.push(Some(fault));
        world.wake_at(world.now() + lasts, Timer::Mend(at).token());
    }

    /// A fault ends, if it has not ended before.
    pub(crate) fn mend(&mut self, world: &mut World, at: usize) {
        let Some(fault) = self.faults.active[at].take() else { return };
        self.trace(world, format_args!("{fault:?} ends"));
        self.apply(world, fault, false);
    }

    /// Does what a fault is, or undoes it.
    fn apply(&mut self, world: &mut World, fault: Fault, begins: bool) {
        let sites = world.len();
        let mut cut = |from: usize, to: usize| {
            let link = world.link(from, to);
            link.cut = if begins { link.cut + 1 } else { link.cut - 1 };
        };

        // Cuts are counted: a link is whole when the last of them has ended. The other faults of one kind end with the first of them.
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
            // Whoever begins it has set the clock wrong.
            Fault::Clock { site } if !begins => self.set_clocks_right(world, site),
            Fault::Clock { .. } => {}
        }
    }

    /// Everything that is wrong ends.
    pub(crate) fn heal(&mut self, world: &mut World) {
        self.trace(world, format_args!("healing"));

        // Nothing strikes from here on: what was about to happen is given up with what goes on.
        self.faults.healed = true;
        for at in 0..self.faults.active.len() {
            self.mend(world, at);
        }
        for ills in &mut self.faults.sites {
            (ills.hazard, ills.slow_fetch, ills.slow_tick) = (None, None, None);
        }
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

        // Clients have a bounded time from here on to settle what is in doubt.
        self.audit.healed_at = world.now();
    }
}
