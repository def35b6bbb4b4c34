//! Tracked grants of quotas that are deleted: nobody can give them back any more, so their rows go.
//!
//! A holder that releases one hears that the quota was deleted, for [`KEPT`] after the deletion; after that, that there is no such
//! grant. They are found by a walk through all that are tracked, some at a time; those with an end go when it comes, if that is sooner.
//! No walk begins unless a quota was deleted since the last, or may have been before the site started.

use super::book::Quotas;
use super::row::{Grant, due_key, read_grant_key};
use super::walk::{KEPT, PAUSE, STEP};
use crate::codec::Malformed;
use crate::machine::{KeySet, View};
use crate::turn::Turn;

impl Quotas {
    /// The site serves again. Quotas may have been deleted before.
    pub(super) fn look_for_dead_grants(&mut self, now: u64) {
        let mut tables = self.list.iter().map(|quota| &quota.avantan.share.table);
        if self.epoch() > 0
            || tables.any(|table| table.generation > 1 || (table.generation == 1 && table.limit.is_none()))
        {
            self.grants.walk.due = Some(now + KEPT);
        }
    }

    /// What a step that is due needs from storage.
    pub(super) fn dead_grants_need(&self, now: u64, set: &mut KeySet) {
        if self.grants.walk.due.is_some_and(|due| due <= now) {
            set.ranges.push(self.grants.walk.range());
        }
    }

    /// Looks at some grants, and removes those of quotas that were deleted long ago.
    pub(super) fn remove_dead_grants(&mut self, turn: &mut Turn, view: &View) -> Result<(), Malformed> {
        let now = turn.here.now.mono;
        let range = self.grants.walk.range();
        if self.grants.walk.due.is_none_or(|due| due > now) || !view.ranges().contains(&range) {
            return Ok(());
        }
        if self.grants.walk.from.is_none() {
            self.grants.walk.until = now.saturating_sub(KEPT);
        }

        // A grant whose quota is deleted can give nothing back: its tokens went with the generation.
        let mut last = None;
        let mut count = 0;
        for (key, value) in view.rows_of(&range) {
            let grant = Grant::decode(value)?;
            let is_dead = self.numbered(grant.quota).is_none_or(|quota| {
                quota.limit().is_none() || quota.avantan.share.table.generation != grant.generation
            });

            // What was deleted since this walk began to count is kept for its time.
            let is_kept = self.grants.walk.deleted.get(&grant.quota).is_some_and(|at| *at > self.grants.walk.until);
            if is_dead && !is_kept {
                turn.out.batch.delete(key);
                if let Some(term) = grant.term {
                    let (incarnation, number) = read_grant_key(key)?;
                    turn.out.batch.delete(&due_key(term.uptime, incarnation, number));
                }
            }
            last = Some(key.to_vec());
            count += 1;
        }

        match last.filter(|_| count == STEP) {
            Some(mut last) => {
                last.push(0);
                (self.grants.walk.from, self.grants.walk.due) = (Some(last), Some(now + PAUSE));
            }
            None => self.grants.walk.end(now),
        }

        Ok(())
    }
}
