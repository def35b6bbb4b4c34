//! Tracked grants of quotas that are deleted: nobody can give them back any more, so their rows go.
//!
//! A holder that releases one hears that the quota was deleted, for [`KEPT`] after the deletion; after that, that there is no such
//! grant. Grants with an end go when it comes. Those without one are found by a walk through all that are tracked, some at a
//! time. No walk begins unless a quota was deleted since the last, or may have been before the site started.

use std::collections::BTreeMap;

use super::row::Grant;
use super::{DUE, GRANT, Quotas};
use crate::clock::{MILLISECOND, SECOND};
use crate::codec::Malformed;
use crate::machine::{KeyRange, KeySet, View};
use crate::turn::Turn;

/// How long after the deletion of a quota its grants are kept, in microseconds.
pub const KEPT: u64 = 600 * SECOND;
/// The most grants that one step looks at.
const STEP: usize = 256;
/// From one step to the next, in microseconds.
const PAUSE: u64 = 20 * MILLISECOND;
/// The least from the end of a walk to the next, in microseconds: a walk may be long, and deletions frequent.
const REST: u64 = 60 * SECOND;

/// How far the walk is.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// When the quotas were deleted whose grants may still be here, in monotonic microseconds, by number.
    deleted: BTreeMap<u64, u64>,
    /// When the next step is due; none if there is nothing to look for.
    due: Option<u64>,
    /// The key at which it goes on; none between walks.
    from: Option<Vec<u8>>,
    /// Deletions since are not looked at by this walk.
    until: u64,
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

    fn range(&self) -> KeyRange {
        KeyRange { from: self.from.clone().unwrap_or_else(|| vec![GRANT]), to: vec![DUE], limit: STEP }
    }

    /// The walk is over: what was deleted since is looked for by the next.
    fn end(&mut self, now: u64) {
        let until = self.until;
        self.deleted.retain(|_, at| *at > until);
        self.from = None;
        let first = self.deleted.values().min();
        self.due = first.map(|at| (at + KEPT).max(now + REST));
    }
}

impl Quotas {
    /// The site serves anew. Quotas may have been deleted before.
    pub(super) fn look_for_dead_grants(&mut self, now: u64) {
        let mut tables = self.list.iter().map(|quota| &quota.avantan.share.table);
        if self.epoch() > 0
            || tables.any(|table| table.generation > 1 || (table.generation == 1 && table.limit.is_none()))
        {
            self.walk.due = Some(now + KEPT);
        }
    }

    /// What a step that is due needs from storage.
    pub fn dead_grants_need(&self, now: u64, set: &mut KeySet) {
        if self.walk.due.is_some_and(|due| due <= now) {
            set.ranges.push(self.walk.range());
        }
    }

    /// Looks at some grants, and removes those of quotas that were deleted long ago.
    pub fn remove_dead_grants(&mut self, turn: &mut Turn, view: &View) -> Result<(), Malformed> {
        let now = turn.now.mono;
        let range = self.walk.range();
        if self.walk.due.is_none_or(|due| due > now) || !view.ranges().contains(&range) {
            return Ok(());
        }
        if self.walk.from.is_none() {
            self.walk.until = now.saturating_sub(KEPT);
        }

        let mut last = None;
        let mut count = 0;
        for (key, value) in view.rows_of(&range) {
            let grant = Grant::decode(value)?;
            let is_dead = self.numbered(grant.quota).is_none_or(|quota| {
                quota.limit().is_none() || quota.avantan.share.table.generation != grant.generation
            });
            // What was deleted since this walk began to count is kept for its time.
            let is_kept = self.walk.deleted.get(&grant.quota).is_some_and(|at| *at > self.walk.until);
            if is_dead && !is_kept && grant.term.is_none() {
                turn.batch.delete(key);
            }
            last = Some(key.to_vec());
            count += 1;
        }

        match last.filter(|_| count == STEP) {
            Some(mut last) => {
                last.push(0);
                (self.walk.from, self.walk.due) = (Some(last), Some(now + PAUSE));
            }
            None => self.walk.end(now),
        }
        Ok(())
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
