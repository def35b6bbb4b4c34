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
    pub(super) next: u64,
    pub(super) open: BTreeMap<u64, Count>,
}

#[derive(Debug)]
pub(super) struct Count {
    pub(super) client: ClientId,
    pub(super) quota: String,
    /// The round of tallies that is complete, once the second one is asked for.
    pub(super) first: Option<Vec<Option<Tally>>>,
    pub(super) tallies: Vec<Option<Tally>>,
    pub(super) deadline: u64,
    /// How long each round may take.
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
