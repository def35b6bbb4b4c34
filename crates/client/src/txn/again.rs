//! Running a program again: it reads at once, from their homes, what the run before has read, and asks for its turn where
//! others want the same objects.

use std::collections::BTreeMap;
use std::time::Instant;

use slackline_core::api::Claim;
use slackline_core::draft::again::Footprint;
use slackline_core::object::{ObjectKey, Origin, Seen, Span};
use slackline_core::txn::READ_ITEMS;

use super::Txn;
use crate::reads::Wanted;

/// A program, whichever run of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) nonce: u64,
    /// Since when it counts as waiting for its turn.
    pub(super) since: Instant,
}

impl Program {
    /// What sites are told of it.
    pub(super) fn origin(self, now: Instant) -> Origin {
        let age = now.saturating_duration_since(self.since).as_micros();
        Origin { nonce: self.nonce, age: u64::try_from(age).unwrap_or(u64::MAX) }
    }
}

/// What a span holds.
type Rows = Vec<(String, Seen)>;

/// What was read ahead of the program, and it has not asked for yet.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    pub(super) gets: BTreeMap<ObjectKey, Seen>,
    pub(super) scans: Vec<(u16, Span, Rows)>,
}

impl Ahead {
    pub(super) fn scan(&mut self, home: u16, span: &Span) -> Option<Rows> {
        let found = self.scans.iter().position(|(region, other, _)| (*region, other) == (home, span))?;
        Some(self.scans.swap_remove(found).2)
    }
}

impl Txn {
    /// Reads what the run before has read. What cannot be read is left to the program: it may not want it any more.
    pub(super) async fn read_ahead(&self, footprint: &Footprint, origin: Origin, bars: bool) {
        let Footprint { gets, scans, writes, told, .. } = footprint;
        if gets.len() + scans.len() > READ_ITEMS || writes.len() > READ_ITEMS || gets.is_empty() && scans.is_empty() {
            return;
        }
        // What computes calls anew is judged several times in a run, and would lose its turn at the first: it waits by itself.
        let claim = told.is_empty().then_some(Claim { origin, writes: writes.clone(), again: true, bars });
        // What is read to compute calls anew is no use of them.
        let upkeep = !told.is_empty();
        let wanted = Wanted { gets: gets.clone(), scans: scans.clone(), upkeep, claim, ..Wanted::default() };
        let Ok(reading) = self.read(wanted).await else { return };
        let Ok(mut state) = self.state() else { return };
        let found = gets.iter().zip(reading.gets);
        state.ahead.gets = found.filter_map(|(key, seen)| Some((key.clone(), seen.ok()?))).collect();
        let found = scans.iter().zip(reading.scans);
        state.ahead.scans = found.filter_map(|((home, span), rows)| Some((*home, span.clone(), rows.ok()?))).collect();
    }
}
