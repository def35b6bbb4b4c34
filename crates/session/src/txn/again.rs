//! Running a program again: what the run before has read is read ahead, at once and from its homes, and the program asks for its turn
//! where others want the same objects.

use std::collections::BTreeMap;

use slackline_core::object::{ObjectKey, Origin, Seen, Span};

use crate::time::Time;

/// A program, whichever run of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) nonce: u64,
    /// Since when it counts as waiting for its turn.
    pub(super) since: Time,
}

impl Program {
    /// What sites are told of it.
    pub(super) fn origin(self, now: Time) -> Origin {
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
