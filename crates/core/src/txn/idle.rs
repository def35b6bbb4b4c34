//! Calls of memoized functions that nobody uses any more are deleted by their home.
//!
//! A call costs whoever writes what it depends on: it is computed anew in the writer's transaction. That pays as long as
//! somebody uses the result. So the home of a call notes when it was last read by somebody who wanted its result, and
//! deletes it when that is long ago; who wants it then computes it, and it is back.
//!
//! To delete a call is a write of one object, at its home, judged like any other: what is prepared, rights that are out, and
//! other calls that depend on it keep it. No other site is asked.
//!
//! Uses are in memory only. After a start nothing is deleted until uses have been noted for as long as a call may be idle.
//!
//! # Notes
//!
//! What is noted at other homes, that a call depends on something there, outlives the call. Until it is removed, every writer
//! must look for the call, and it keeps the calls that it depended on. So each home goes through its notes, and asks the homes
//! of the calls which of them are gone.
//!
//! ```text
//!   a home  ── Wonder, stamp ──▶  home of the calls
//!           ◀── Gone, stamp ────  not there, and nothing is prepared that puts them
//! ```
//!
//! A note is removed unless the call was registered here after the stamp. That is safe: a call's value is put by the
//! transaction that registers it at every home on which it depends. If the transaction was carried out here before the
//! question, then the call's home had prepared it, and says that the call is gone only if it was there and was deleted. If it
//! was carried out here after the question, its stamp is newer. If it will be, it registers the call anew.

use std::collections::BTreeMap;

use super::table::{Holds, Table, need_head, row_key, row_range};
use super::{Timer, Txns};
use crate::clock::{MILLISECOND, Now};
use crate::id::{Incarnation, SiteId};
use crate::machine::KeySet;
use crate::object::message::Message;
use crate::object::{CALL_MARK, Change, GONE, ObjectKey, Part, Span, is_call};
use crate::right::Start;
use crate::turn::Turn;
use crate::txn::READ_ITEMS;

/// The most calls, or notes, that one step looks at.
const STEP: u32 = 64;
/// From one step to the next, in microseconds, as long as there are more to look at.
const PAUSE: u64 = 50 * MILLISECOND;
/// When all were looked at, the next look begins after this part of the time that a call may be idle.
const PART: u64 = 8;
/// The most calls whose last use is remembered; beyond it, all count as just used.
const USED: usize = 262_144;

/// When calls of this home were used, and how far the looks are.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    /// When each was used last, in monotonic microseconds.
    last: BTreeMap<String, u64>,
    /// Since when uses are noted.
    since: u64,
    /// The call after which the next step goes on.
    after: String,
    /// The noted call after which the next step through the notes goes on.
    noted: Option<ObjectKey>,
}

impl Uses {
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
            self.last.clear();
            self.since = now.mono;
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
    /// The site serves: it looks after its calls and notes from now on.
    pub(super) fn begin_to_look(&mut self, turn: &Turn) {
        let idle = turn.config.idle_calls;
        if idle > 0 {
            self.uses = Uses { since: turn.now.mono, ..Uses::default() };
            self.timers.insert((turn.now.mono + idle, Timer::Calls));
            self.timers.insert((turn.now.mono + idle, Timer::Notes));
        }
    }

    fn look_again(&mut self, turn: &Turn, timer: Timer, is_over: bool) {
        let pause = if is_over { (turn.config.idle_calls / PART).max(PAUSE) } else { PAUSE };
        self.timers.insert((turn.now.mono + pause, timer));
    }

    // Calls.

    /// What the next step through the calls needs from storage.
    pub(super) fn calls_need(&self, incarnation: Incarnation, set: &mut KeySet) {
        // Their names are all that is looked at.
        set.head_ranges.push((row_range(incarnation, &self.uses.span()), 0));
    }

    /// Looks at some calls, and deletes those that nobody uses.
    pub(super) fn look_for_idle(&mut self, turn: &mut Turn, table: &Table) {
        let range = row_range(table.incarnation, &self.uses.span());
        if !table.view.has_heads_of(&range) {
            self.timers.insert((turn.now.mono, Timer::Calls));
            return;
        }
        let names: Vec<String> = table.view.heads_of(&range).map(|(key, _)| name_of(key)).collect();
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
        let is_over = names.len() < range.limit;
        self.uses.after = names.into_iter().next_back().filter(|_| !is_over).unwrap_or_default();
        if is_over {
            self.uses.last.retain(|_, last| turn.now.mono.saturating_sub(*last) < idle);
            self.uses.since = self.uses.since.max(turn.now.mono.saturating_sub(idle));
        }
        self.look_again(turn, Timer::Calls, is_over);
    }

    // Notes.

    /// The calls whose notes the next step looks at.
    fn next_notes(&self) -> impl Iterator<Item = &ObjectKey> {
        self.dependents.calls_after(self.uses.noted.as_ref()).take(STEP as usize)
    }

    /// What the next step through the notes needs from storage.
    pub(super) fn notes_need(&self, incarnation: Incarnation, set: &mut KeySet) {
        let own = self.next_notes().filter(|call| call.home == self.me.region);
        own.for_each(|call| need_head(incarnation, &call.name, set));
    }

    /// Looks at some notes: asks whether the calls are still there.
    pub(super) fn look_at_notes(&mut self, turn: &mut Turn, table: &Table) {
        let mut names: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        let mut last = None;
        let mut count = 0;
        for call in self.next_notes() {
            names.entry(call.home).or_default().push(call.name.clone());
            last = Some(call.clone());
            count += 1;
        }
        let (asked, is_over) = ((self.start, self.dependents.stamp()), count < STEP);
        for (home, names) in names {
            let home = SiteId::new(home, turn.site.me.lane);
            if home == turn.site.me {
                // What was registered since the working set was named is not in the view.
                let names = names.into_iter().filter(|name| table.view.knows_head(&row_key(table.incarnation, name)));
                let gone = self.gone_of(table, names.collect());
                self.gone(turn, home, asked, gone);
            } else if turn.is_reachable(home) {
                turn.send_object(home, Message::Wonder { start: asked.0, stamp: asked.1, names });
            }
        }
        self.uses.noted = last.filter(|_| !is_over);
        self.look_again(turn, Timer::Notes, is_over);
    }

    /// Which of these calls are not there, and not about to be.
    fn gone_of(&self, table: &Table, names: Vec<String>) -> Vec<String> {
        let is_gone = |name: &String| {
            let head = self.locks.head(table, name);
            // One that rests on what is lost is still there; and a home that lost its storage does not know yet.
            let is_nothing = head.is_ok_and(|head| head.holds == Holds::Nothing && head.version.number & GONE == 0);
            is_call(name) && is_nothing && !self.locks.is_changing(name)
        };
        names.into_iter().filter(is_gone).collect()
    }

    /// Another home has notes of these calls of this one.
    pub(super) fn wondered(
        &mut self,
        turn: &mut Turn,
        table: &Table,
        from: SiteId,
        (start, stamp): (Start, u64),
        names: Vec<String>,
    ) {
        if names.len() > READ_ITEMS {
            turn.metrics.ignored += 1;
            return;
        }
        let names = self.gone_of(table, names);
        if !names.is_empty() {
            turn.send_object(from, Message::Gone { start, stamp, names });
        }
    }

    /// These calls are gone: what is noted of them is removed, unless it was noted since that was asked.
    pub(super) fn gone(&mut self, turn: &mut Turn, from: SiteId, (start, stamp): (Start, u64), names: Vec<String>) {
        if start != self.start {
            return;
        }
        for name in names {
            let call = ObjectKey { home: from.region, name };
            if !self.dependents.is_newer(&call, stamp) {
                self.dependents.forget(&mut turn.batch, &call);
            }
        }
    }
}

/// The name in a row's key.
fn name_of(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[5..]).into_owned()
}
