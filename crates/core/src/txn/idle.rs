//! Calls of memoized functions that nobody uses any more are deleted by their home.
//!
//! A call costs whoever writes what it depends on: it is computed anew in the writer's transaction. That pays as long as
//! somebody uses the result. So the home of a call notes when it was last read by somebody who wanted its result, and
//! deletes it when that is long ago; who wants it then computes it, and it is back.
//!
//! To delete a call is a write of one object, at its home, judged like any other: what is prepared, rights that are out, and
//! other calls that depend on it keep it. No other site is asked. What is noted elsewhere, that the call depends on something
//! there, stays until somebody covers the call and finds nothing; that costs them a look, once.
//!
//! Uses are in memory only. After a start nothing is deleted until uses have been noted for as long as a call may be idle.

use std::collections::BTreeMap;

use super::table::{Table, row_range};
use super::{Timer, Txns};
use crate::clock::{MILLISECOND, Now};
use crate::id::Incarnation;
use crate::machine::KeySet;
use crate::object::{CALL_MARK, Change, ObjectKey, Part, Span, is_call};
use crate::turn::Turn;

/// The most calls that one step looks at.
const STEP: u32 = 32;
/// From one step to the next, in microseconds, as long as there are more calls to look at.
const PAUSE: u64 = 100 * MILLISECOND;
/// When all were looked at, the next look begins after this part of the time that a call may be idle.
const PART: u64 = 8;
/// The most calls whose last use is remembered; beyond it, all begin anew.
const USED: usize = 1_000_000;

/// When calls of this home were used.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    /// When each was used last, in monotonic microseconds.
    last: BTreeMap<String, u64>,
    /// Since when uses are noted.
    since: u64,
    /// The call after which the next step goes on.
    after: String,
}

impl Uses {
    fn begin(&mut self, now: u64) {
        *self = Self { since: now, ..Self::default() };
    }

    /// Somebody wanted its result.
    pub(super) fn note(&mut self, now: Now, name: &str) {
        if !is_call(name) {
            return;
        }
        if let Some(last) = self.last.get_mut(name) {
            *last = now.mono;
            return;
        }
        if self.last.len() >= USED {
            self.begin(now.mono);
        }
        self.last.insert(name.to_owned(), now.mono);
    }

    /// Whether nobody has used it for this long.
    fn is_idle(&self, now: Now, name: &str, idle: u64) -> bool {
        let last = self.last.get(name).copied().unwrap_or(self.since);
        now.mono.saturating_sub(last) >= idle
    }

    fn span(&self) -> Span {
        Span { prefix: CALL_MARK.to_string(), after: self.after.clone(), limit: STEP }
    }
}

impl Txns {
    /// The site serves: it looks after its calls from now on.
    pub(super) fn begin_to_look(&mut self, turn: &Turn) {
        let idle = turn.config.idle_calls;
        if idle > 0 {
            self.uses.begin(turn.now.mono);
            self.timers.insert((turn.now.mono + idle, Timer::Calls));
        }
    }

    /// What the next step needs from storage.
    pub(super) fn look_needs(&self, incarnation: Incarnation, set: &mut KeySet) {
        set.ranges.push(row_range(incarnation, &self.uses.span()));
    }

    /// Looks at some calls, and deletes those that nobody uses.
    pub(super) fn look_for_idle(&mut self, turn: &mut Turn, table: &Table) {
        let range = row_range(table.incarnation, &self.uses.span());
        if !table.view.ranges().contains(&range) {
            self.timers.insert((turn.now.mono, Timer::Calls));
            return;
        }
        let names: Vec<String> = table.view.rows_of(&range).map(|(key, _)| name_of(key)).collect();
        let idle = turn.config.idle_calls;
        for name in &names {
            if !self.uses.is_idle(turn.now, name, idle) {
                continue;
            }
            let call = ObjectKey { home: self.me.region, name: name.clone() };
            if self.backer.over_at(turn.now, &call.name).is_some() || self.backer.is_barred(&call.name) {
                continue;
            }
            let part =
                Part { writes: vec![(call.name.clone(), Change::Delete)], forgets: vec![call], ..Part::default() };
            if self.locks.check(table, &self.dependents, &part).is_ok() {
                self.apply(turn, Some(table), &part);
                turn.metrics.calls_evicted += 1;
            }
        }
        let is_full = names.len() >= range.limit;
        let pause = match names.into_iter().next_back().filter(|_| is_full) {
            Some(last) => {
                self.uses.after = last;
                PAUSE
            }
            None => {
                self.uses.after.clear();
                self.uses.last.retain(|_, last| turn.now.mono.saturating_sub(*last) < idle);
                self.uses.since = self.uses.since.max(turn.now.mono.saturating_sub(idle));
                (idle / PART).max(PAUSE)
            }
        };
        self.timers.insert((turn.now.mono + pause, Timer::Calls));
    }
}

/// The name in a row's key.
fn name_of(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[5..]).into_owned()
}
