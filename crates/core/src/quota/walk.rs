//! The search for grants of quotas that are deleted, see `dead`.

use std::collections::BTreeMap;

use crate::clock::{MILLISECOND, SECOND};
use crate::machine::KeyRange;
use crate::rows::{DUE, GRANT};

/// The time after the deletion of a quota for which its grants are kept, in microseconds.
pub const KEPT: u64 = 600 * SECOND;
/// The most grants that one step looks at.
pub(super) const STEP: usize = 256;
/// From one step to the next, in microseconds.
pub(super) const PAUSE: u64 = 20 * MILLISECOND;
/// The least from the end of a walk to the next, in microseconds: a walk may be long, and deletions frequent.
pub(super) const REST: u64 = 60 * SECOND;

/// The place that the walk has reached.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// When the quotas were deleted whose grants may still be here, in monotonic microseconds, by number.
    pub(super) deleted: BTreeMap<u64, u64>,
    /// When the next step is due; none if there is nothing to look for.
    pub(super) due: Option<u64>,
    /// The key at which it goes on; none between walks.
    pub(super) from: Option<Vec<u8>>,
    /// Deletions since are not looked at by this walk.
    pub(super) until: u64,
}

impl Walk {
    /// A quota was deleted.
    pub(super) fn note(&mut self, now: u64, number: u64) {
        self.deleted.insert(number, now);
        self.due = self.due.or(Some(now + KEPT));
    }

    /// When the next step is due.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.due
    }

    pub(super) fn range(&self) -> KeyRange {
        KeyRange { from: self.from.clone().unwrap_or_else(|| vec![GRANT]), to: vec![DUE], limit: STEP }
    }

    /// The walk is over: what was deleted since is looked for by the next.
    pub(super) fn end(&mut self, now: u64) {
        // What was deleted since this walk began may have grants that it has passed by already.
        let until = self.until;
        self.deleted.retain(|_, at| *at > until);
        self.from = None;
        let first = self.deleted.values().min();
        self.due = first.map(|at| (at + KEPT).max(now + REST));
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::grant_key;
    use super::*;
    use crate::id::Incarnation;

    #[test]
    fn walk_looks_again_for_what_was_deleted_while_it_went_on() {
        let mut walk = Walk::default();
        walk.note(SECOND, 3);
        assert_eq!(walk.deadline(), Some(SECOND + KEPT));
        walk.note(2 * KEPT, 4);
        assert_eq!(walk.deadline(), Some(SECOND + KEPT), "no deletion puts a walk off");
        walk.until = SECOND;
        walk.end(2 * KEPT);
        assert_eq!((walk.deleted.len(), walk.deadline()), (1, Some(3 * KEPT)));
        walk.until = 2 * KEPT;
        walk.end(3 * KEPT);
        assert_eq!(walk.deadline(), None);
    }

    #[test]
    fn range_begins_behind_the_last_grant() {
        let mut last = grant_key(Incarnation(1), 7).to_vec();
        last.push(0);
        let walk = Walk { from: Some(last.clone()), ..Walk::default() };
        assert!(walk.range().from > grant_key(Incarnation(1), 7).to_vec());
        assert!(walk.range().from < grant_key(Incarnation(1), 8).to_vec());
    }
}
