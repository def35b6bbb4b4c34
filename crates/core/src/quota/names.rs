//! What a site has forgotten of names, has frozen, and might forget next; see `forget`.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::id::{Incarnation, SiteId, SiteSet};
use crate::peer::quota::Forgotten;

/// What a site has forgotten, has frozen, and might forget next.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// What is durable, in one row.
    pub(super) kept: Forgetting,
    /// True if that row is to be written.
    pub(super) is_dirty: bool,
    /// The quotas that do not exist, yet or any more, by number.
    pub(super) absent: FxHashMap<u64, Absent>,
    /// When to look at each of them again, with its number: one entry for each of `absent`.
    pub(super) due: BTreeSet<(u64, u64)>,
    /// The number of the last proposal of this site; durable.
    pub(super) last_proposal: u64,
    /// The proposal that this site leads.
    pub(super) leading: Option<Leading>,
    /// The time before which nothing is proposed, in this life's monotonic microseconds like the next two.
    pub(super) propose_at: u64,
    /// When to ask the leaders what became of what is frozen.
    pub(super) ask_at: u64,
    /// The time before which a member is not told of the last decision again, by position.
    pub(super) told_at: Vec<u64>,
}

/// Names that take part in nothing until it is known whether they are forgotten.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Freeze {
    /// The site that proposed it.
    pub leader: SiteId,
    /// The incarnation of it that did.
    pub incarnation: Incarnation,
    /// The number of the proposal, among those of that incarnation.
    pub number: u64,
    /// The names, in ascending order.
    pub names: Vec<String>,
}

/// What a site has forgotten, and what it has agreed to forget.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forgetting {
    /// The last decision.
    pub decided: Forgotten,
    /// The names that are frozen, by proposal. More than one only if the leader of the others has lost its disk.
    pub frozen: Vec<Freeze>,
}

/// A quota that does not exist, in this life's monotonic microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absent {
    /// The time since which it does not exist, or has not been wanted.
    pub(super) since: u64,
    /// The time of its entry in [`Names::due`].
    pub(super) due: u64,
}

/// A proposal that is not decided yet.
#[derive(Debug)]
pub(super) struct Leading {
    /// Its number.
    pub(super) number: u64,
    /// The incarnations of all members when it was proposed, by position. It is given up when another is heard of.
    pub(super) view: Vec<Incarnation>,
    /// The names that were proposed.
    pub(super) names: Vec<String>,
    /// Those of the names that all in `agreed` have frozen: what a decision forgets.
    pub(super) common: BTreeSet<String>,
    /// The members that have agreed, this site included, by position.
    pub(super) agreed: SiteSet,
    /// When it is given up.
    pub(super) give_up_at: u64,
    /// When those that have not agreed are asked again.
    pub(super) repeat_at: u64,
}

impl Names {
    /// When something is next to be done.
    pub(super) fn deadline(&self) -> Option<u64> {
        match &self.leading {
            Some(leading) => Some(leading.repeat_at.min(leading.give_up_at)),
            None if !self.kept.frozen.is_empty() => Some(self.ask_at),
            None => self.due.first().map(|(due, _)| (*due).max(self.propose_at)),
        }
    }

    pub(super) fn is_frozen(&self, name: &str) -> bool {
        self.kept.frozen.iter().any(|freeze| has(&freeze.names, name))
    }
}

/// Returns true if a list of names in ascending order has this one.
pub(super) fn has(names: &[String], name: &str) -> bool {
    names.binary_search_by(|known| known.as_str().cmp(name)).is_ok()
}
