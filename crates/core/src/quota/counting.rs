//! Counts of quotas that are under way, see `show`.

use std::collections::BTreeMap;

use crate::clock::Now;
use crate::machine::ClientId;
use crate::peer::quota::Tally;

/// The most counts under way at a time.
pub(super) const COUNTS: usize = 1024;

/// Counts under way.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// The name of the last round of tallies; another one in each life, so that late answers to an earlier life count for none.
    pub(super) next: u64,
    /// The counts under way, by the name of the round of tallies that they wait for; at most [`COUNTS`].
    pub(super) open: BTreeMap<u64, Count>,
}

/// A count under way.
#[derive(Debug)]
pub(super) struct Count {
    /// The client that asked.
    pub(super) client: ClientId,
    /// The name of the quota.
    pub(super) quota: String,
    /// The first round of tallies, once it is complete and the second one is asked for.
    pub(super) first: Option<Vec<Option<Tally>>>,
    /// The tallies of the present round, by position; none of a member that has not answered.
    pub(super) tallies: Vec<Option<Tally>>,
    /// When the present round ends, whoever has answered.
    pub(super) deadline: u64,
    /// The time that each round may take, in microseconds.
    pub(super) patience: u64,
}

impl Counts {
    /// Names counts from here on: another number in each life.
    pub(super) fn starting(from: u64) -> Self {
        Self { next: from, ..Self::default() }
    }

    /// When something is next to be done.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.open.values().map(|count| count.deadline).min()
    }

    /// Takes out those whose round of tallies takes too long.
    pub(super) fn take_overdue(&mut self, now: Now) -> Vec<Count> {
        let over: Vec<u64> =
            self.open.iter().filter(|(_, count)| count.deadline <= now.mono).map(|(token, _)| *token).collect();
        over.iter().filter_map(|token| self.open.remove(token)).collect()
    }
}
