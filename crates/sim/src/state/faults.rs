//! What is wrong now, and what is about to go wrong.

use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::Incarnation;

use super::brink::Brink;
use crate::disk::Copy;
use crate::network::Weather;
use crate::world::After;

/// What goes on all the time while faults strike.
pub(crate) const DRIZZLE: Weather =
    Weather { loss: 4_000, duplication: 20_000, reordering: 30_000, detour: 300 * MILLISECOND, jitter: 100 };

/// A fault that goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Nothing gets from one site to another.
    Cut { from: usize, to: usize },
    /// Nothing gets into a site, or out of it, or both.
    CutAll { site: usize, inwards: bool, outwards: bool },
    /// Nothing gets from one side to the other: one bit for each site says on which it is.
    Split { side: u64 },
    /// What is sent from one site to another takes longer by so many microseconds.
    Slow { from: usize, to: usize, by: u64 },
    /// Many messages are lost.
    Loss,
    /// Many messages arrive twice.
    Duplication,
    /// Many messages overtake others.
    Reordering,
    /// Syncs at a site take longer.
    SlowDisk { site: usize },
    /// The disk of a site has no room for what clients want written.
    FullDisk { site: usize },
    /// One of the clocks of a site errs.
    Clock { site: usize },
    /// The machine of a site stands still.
    Suspension { site: usize },
}

/// A copy of a site's disk.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The incarnation whose storage it is.
    pub(crate) incarnation: Incarnation,
    /// The copy.
    pub(crate) copy: Copy,
    /// For each other site: when, and in which of its lives, it was first seen to have heard of so much more that it notes it.
    pub(crate) heard: Vec<Option<(u64, u32)>>,
    /// For each other site: whether it has had the time to note that durably.
    pub(crate) noted: Vec<bool>,
}

/// Something that happens to a site at a certain input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hazard {
    /// The name of a kind of input whose handling persists; none for any input.
    pub(crate) at: Option<&'static str>,
    /// What happens.
    pub(crate) after: After,
}

/// The step that an ambush has reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ambush {
    /// Waits for a leader that asks for votes.
    Lies,
    /// The leader's value reaches a bare majority.
    Set {
        /// The leader.
        leader: usize,
        /// The site that is to forget its vote.
        victim: usize,
        /// The sites that get the value, the leader and the victim included; one bit for each site.
        quorum: u64,
        /// The quota.
        quota: String,
        /// The instance that is decided.
        instance: u64,
    },
}

/// A site that has lost its storage, and another one that has not heard of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unheard {
    /// The site that has lost its storage.
    pub(crate) lost: usize,
    /// The one that has not heard of it.
    pub(crate) keeper: usize,
    /// When the lost site joined again.
    pub(crate) since: u64,
}

/// A site that loses its disk again.
#[derive(Debug)]
pub(crate) struct Relapse {
    /// The site.
    pub(crate) site: usize,
    /// The sites that it cannot reach until it has joined.
    pub(crate) unheard: Vec<usize>,
}

/// What is wrong at one site, or waits to be.
#[derive(Debug)]
pub(crate) struct Ills {
    /// What happens to it at some input to come.
    pub(crate) hazard: Option<Hazard>,
    /// The time that storage takes for the next input that needs something from it.
    pub(crate) slow_fetch: Option<u64>,
    /// The same for the next tick. The site handles nothing else meanwhile, so it is short: a site that stands still for
    /// long is another fault.
    pub(crate) slow_tick: Option<u64>,
    /// It crashed at a persist for this kind of input, and has not been started since.
    pub(crate) recovering: Option<&'static str>,
    /// The time for which it stays down when it crashes, in microseconds.
    pub(crate) down_for: u64,
    /// Copies of its disk; the oldest first.
    pub(crate) copies: Vec<Kept>,
    /// Its storage was found to be an old copy: the next start is on new storage.
    pub(crate) put_aside: bool,
    /// Its volume, while that is not mounted and the site runs on what is beneath.
    pub(crate) unmounted: Option<Copy>,
    /// Its volume was mounted again, and has not been confirmed since.
    pub(crate) remounted: bool,
    /// True if it is the monotonic clock that may err much in this run; else it is the wall clock.
    pub(crate) errs_mono: bool,
}

/// Sites whose storage is not what it was, and not made up for yet.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// A site whose disk was lost or restored, until every quota has recorded its new incarnation.
    pub(crate) reborn: Option<usize>,
    /// A site that runs on an old copy, which is not noticed yet.
    pub(crate) impostor: Option<usize>,
    /// The others have noted durably what betrays the impostor: they may crash.
    pub(crate) impostor_is_noted: bool,
    /// A site that will lose its disk again as soon as it has joined.
    pub(crate) relapse: Option<Relapse>,
    /// A site that has lost its disk, and another that has not heard of it.
    pub(crate) unheard: Option<Unheard>,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Faults {
    /// Faults that have struck.
    pub(crate) struck: u64,
    /// The number that is to strike, at least.
    pub(crate) planned: u64,
    /// True if everything that was wrong has ended.
    pub(crate) healed: bool,
    /// When somebody asks next for a site to be a member; none if all are.
    pub(crate) joining: Option<u64>,
    /// Faults that go on, by the number that their timers carry.
    pub(crate) active: Vec<Option<Fault>>,
    /// What is wrong at each site.
    pub(crate) sites: Vec<Ills>,
    /// Sites without their storage.
    pub(crate) losses: Losses,
    /// One that waits for its moment.
    pub(crate) ambush: Option<Ambush>,
    /// Transactions that are held back.
    pub(crate) brink: Brink,
    /// Sites that the present swizzle has still to isolate.
    pub(crate) swizzled: Vec<usize>,
    /// When the clock of the one is set right, that of the other is set wrong by as much.
    pub(crate) passes_on: Option<(usize, usize)>,
    /// True if wall clocks err while warranties are in use; then all monotonic clocks are right.
    pub(crate) errs_walls: bool,
}

impl Ills {
    fn new() -> Self {
        Self {
            hazard: None,
            slow_fetch: None,
            slow_tick: None,
            recovering: None,
            down_for: SECOND,
            copies: Vec::new(),
            put_aside: false,
            unmounted: None,
            remounted: false,
            errs_mono: false,
        }
    }
}

impl Faults {
    /// Nothing is wrong yet. The brink draws from a generator of its own, which `seed` feeds.
    pub(crate) fn new(sites: usize, seed: u64) -> Self {
        Self {
            struck: 0,
            planned: 0,
            healed: false,
            joining: None,
            active: Vec::new(),
            sites: (0..sites).map(|_| Ills::new()).collect(),
            losses: Losses::default(),
            ambush: None,
            brink: Brink::new(seed),
            swizzled: Vec::new(),
            passes_on: None,
            errs_walls: false,
        }
    }

    /// A site has a new incarnation.
    pub(crate) fn rejoined(&mut self, site: usize) {
        if self.losses.impostor == Some(site) {
            self.losses.impostor = None;
        }
    }

    /// Returns true if a clock of the site errs, or its machine stands still.
    pub(crate) fn errs(&self, site: usize) -> bool {
        let of_site = [Fault::Clock { site }, Fault::Suspension { site }];
        self.active.iter().flatten().any(|fault| of_site.contains(fault))
    }

    /// Returns true if messages are lost, repeated or delayed in bursts.
    pub(crate) fn is_stormy(&self) -> bool {
        let is_storm = |fault: &Fault| matches!(fault, Fault::Loss | Fault::Duplication | Fault::Reordering);
        self.active.iter().flatten().any(is_storm)
    }

    /// Returns true if the wall clock of a site may be wrong: those of a majority stay right, because sites tell by a majority
    /// whose clock is.
    pub(crate) fn may_step(&self, site: usize) -> bool {
        let wrong = self.active.iter().flatten().filter(|fault| matches!(fault, Fault::Clock { .. })).count();
        !self.errs(site) && wrong < (self.sites.len() - 1) / 2
    }

    /// Returns true if a site may crash: not while an old copy of a disk is in place that only the memory of the others betrays.
    pub(crate) fn may_crash(&self) -> bool {
        self.losses.impostor.is_none() || self.losses.impostor_is_noted
    }
}
