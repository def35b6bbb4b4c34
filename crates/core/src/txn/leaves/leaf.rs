//! A leaf: what one home keeps of a treaty, how far that has come, and whom it asks for slack.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::clauses::Clauses;
use super::room::Room;
use crate::id::{Incarnation, SiteId};
use crate::object::ObjectKey;
use crate::object::message::Reported;
use crate::object::treaty::Tree;
use crate::turn::Here;
use crate::warranty::LEASE;

/// The stage of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The transaction that makes the treaty is prepared here: the bounds are kept already.
    Prepared,
    /// The bounds are kept.
    Kept,
    /// They are kept, and the treaty's home is asked to retract the treaty, since this monotonic time.
    Retracting(u64),
    /// They are kept until this monotonic time. The treaty's home cannot be reached, and this home no longer vouches to it.
    Leaving(u64),
    /// They are kept no longer; but this home does not vouch before the treaty's home says that the treaty is retracted.
    Free,
}

/// For how long a home that vouches no more has to wait before its leaf is free, in microseconds. Both ends of a right may be read on
/// clocks that err.
pub(super) fn lease(epsilon: u64) -> u64 {
    LEASE + 2 * epsilon
}

impl Stage {
    /// When the bounds are kept no longer, at the latest, even if nobody is heard any more: in monotonic microseconds.
    pub(super) fn free_at(self, now: u64, epsilon: u64) -> u64 {
        match self {
            Stage::Leaving(at) => at.max(now + 1),
            Stage::Retracting(since) => (since + LEASE).max(now) + lease(epsilon),
            Stage::Prepared | Stage::Kept => now + LEASE + lease(epsilon),
            Stage::Free => now,
        }
    }
}

/// A leaf.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// Its stage.
    pub(super) stage: Stage,
    /// The homes of all leaves, in ascending order, in the incarnations on which the treaty rests.
    pub(super) homes: Vec<(u16, Incarnation)>,
    /// Whom it asks for slack.
    pub(super) tree: Tree,
    /// The clauses that have terms here, by position.
    pub(super) clauses: Clauses,
    /// The question for slack that is under way.
    pub(super) asking: Option<Asking>,
    /// The slack that a part takes which was refused because it did not wait for it, by clause and by whether it relies on the treaty: the
    /// most of several parts. What is lacking of that is asked for as if the part waited. It goes when there is so much slack.
    pub(super) pressed: BTreeMap<(u32, bool), i128>,
    /// The number of times that slack was divided again since the treaty was new.
    pub(super) plans: u32,
    /// The monotonic time at which it gave something last in this life of the site; zero if it has not.
    pub(super) gave_at: u64,
    /// The monotonic time of the last report to each home that has asked, in this life of the site.
    pub(super) reported: BTreeMap<u16, u64>,
    /// The monotonic time at which some of each clause was last given away by a plan, in this life of the site.
    pub(super) gave: BTreeMap<u32, u64>,
    /// What it has counted since this life of the site began.
    pub(super) counts: Counts,
}

/// What a leaf counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    /// The times that slack was divided again because somebody waited for it.
    pub(super) rebalances: u64,
    /// The gifts that it gave, but for those by a standing order.
    pub(super) gifts: u64,
    /// The gifts that it gave by a standing order.
    pub(super) extensions: u64,
}

/// A question for slack.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    /// Repeated in the answers.
    pub(super) token: u64,
    /// The clauses.
    pub(super) clauses: BTreeSet<u32>,
    /// For what.
    pub(super) purpose: Purpose,
    /// The groups of homes that are not asked yet, the next one first.
    pub(super) groups: VecDeque<Vec<u16>>,
    /// The homes that are asked and have not answered.
    pub(super) missing: BTreeSet<u16>,
    /// The answers, by home and clause. There may be thousands of clauses, and dividing the slack of each looks for its lines.
    pub(super) reports: BTreeMap<u16, BTreeMap<u32, Reported>>,
    /// True once donors have been told what to give.
    pub(super) is_planned: bool,
    /// The number of times that donors were told so.
    pub(super) tries: u32,
    /// The monotonic time when it goes on without those that have not answered.
    pub(super) until: u64,
}

/// For what slack is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Parts wait for it, or were refused because they may not.
    Awaited,
    /// Nobody does yet: this much is wanted ahead, by clause.
    Ahead(BTreeMap<u32, i128>),
    /// Nobody does, and all of it is divided again.
    Divide,
}

impl Leaf {
    /// True if its bounds are kept.
    pub(super) fn is_kept(&self) -> bool {
        self.stage != Stage::Free
    }

    /// What it takes, as a leaf of this treaty.
    pub(super) fn takes(&self, treaty: &ObjectKey) -> Room {
        Room::of(treaty, self.clauses.terms())
    }

    /// True if several plans of others could each take from it what it may spare once. Between two, each gives to the other alone.
    pub(super) fn may_be_drained(&self) -> bool {
        self.homes.len() > 2
    }

    /// The incarnation of a home on which the treaty rests.
    pub(super) fn incarnation(&self, home: u16) -> Option<Incarnation> {
        let at = self.homes.binary_search_by_key(&home, |(home, _)| *home).ok()?;
        Some(self.homes[at].1)
    }

    /// The other homes, in the groups in which they are asked: each time those of one more group.
    pub(super) fn groups(&self, here: &Here) -> Vec<Vec<u16>> {
        let me = here.site.me;
        let others = || self.homes.iter().map(|(home, _)| *home).filter(|home| *home != me.region);
        let mut groups: Vec<Vec<u16>> = match &self.tree {
            Tree::Flat => vec![others().collect()],
            // Each group is twice as large as the one before: where the nearest has enough nobody else is asked, and all are after few rounds.
            Tree::Near => {
                let mut near: Vec<u16> = others().collect();
                near.sort_by_key(|home| (here.round_trip(SiteId::new(*home, me.lane)), *home));
                let mut groups = Vec::new();
                while !near.is_empty() {
                    let size = (1 << groups.len()).min(near.len());
                    groups.push(near.drain(..size).collect());
                }
                groups
            }
            // From the smallest group that this home is in outwards; whoever is in none of them comes last.
            Tree::Given(given) => {
                let (mut groups, mut left): (Vec<Vec<u16>>, BTreeSet<u16>) = (Vec::new(), others().collect());
                let mut mine: Vec<&BTreeSet<u16>> = given.iter().filter(|group| group.contains(&me.region)).collect();
                mine.sort_by_key(|group| group.len());
                for group in mine {
                    let next: Vec<u16> = group.iter().copied().filter(|home| left.remove(home)).collect();
                    groups.push(next);
                }
                groups.push(left.into_iter().collect());
                groups
            }
        };
        groups.retain(|group| !group.is_empty());
        groups
    }
}
