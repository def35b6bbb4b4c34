//! Calls of memoized functions that nobody uses any more are deleted by their home.
//!
//! A call costs each writer of an object that it depends on: it is computed again in the writer's transaction. That
//! pays while programs use the result. So the home of a call notes when its result was last wanted, and deletes it when
//! that is long ago. A program that wants it then computes it, and it is back.
//!
//! To delete a call is a write of one object, at its home, judged like any other: prepared parts, rights of other
//! sites, and other calls that depend on it keep it. No other site is asked.
//!
//! Uses are in memory only. After a start nothing is deleted until uses have been noted for as long as a call may be
//! idle.
//!
//! # Notes
//!
//! The notes at other homes, that a call depends on something there, outlive the call. Until a note is removed, every
//! writer must look for the call, and the note keeps the calls that it depended on. So each home goes through its
//! notes, and asks the homes of the calls which of them are gone.
//!
//! ```text
//!   a home  ── ProbeCalls, stamp ──▶  home of the calls
//!           ◀── AbsentCalls, stamp  not there, and nothing is prepared that puts them
//! ```
//!
//! A note is removed unless the call was registered here after the stamp. That is safe: a call's value is put by the
//! transaction that registers it at every home on which it depends. If the transaction was carried out here before the
//! question, then the call's home had prepared it, and says that the call is gone only if it was there and was deleted.
//! If it was carried out here after the question, its stamp is newer. If it is carried out later, it registers the call
//! again.

use std::collections::{BTreeMap, BTreeSet};

use super::dependents::Dependents;
use super::table::{Table, need_head, row_range};
use crate::bounds::AT_ONCE;
use crate::clock::{MILLISECOND, Now};
use crate::codec::Malformed;
use crate::id::{Incarnation, SiteId};
use crate::machine::{Batch, KeySet};
use crate::object::message::Message;
use crate::object::treaty::{is_unnamed, treaty_name};
use crate::object::{Abort, CALL_MARK, ObjectKey, Part, Span, is_call};
use crate::right::Start;
use crate::turn::{Here, Turn};
use crate::warranty::LEASE;

/// The most calls, or notes, that one step looks at.
const STEP: u32 = 64;
/// The time from one step to the next while there are more to look at, in microseconds.
const PAUSE: u64 = 50 * MILLISECOND;
/// When all were looked at, the next round begins after the time that a call may be idle, divided by this.
const PART: u64 = 8;
/// The most calls whose last use is remembered; beyond it, all count as just used.
const USED: usize = 262_144;

/// The last uses of this home's calls, and the places at which the rounds through calls and notes are.
#[derive(Clone, Debug, Default)]
struct Uses {
    /// The last use of each call, in monotonic microseconds.
    last: BTreeMap<String, u64>,
    /// The time since which uses are noted; a call that is not in `last` counts as used then.
    since: u64,
    /// The call after which the next step goes on.
    after: String,
    /// The noted call after which the next step through the notes goes on.
    noted: Option<ObjectKey>,
}

impl Uses {
    /// Notes that a program wanted a call's result.
    fn note(&mut self, now: Now, name: &str) {
        if !is_call(name) {
            return;
        }
        if let Some(last) = self.last.get_mut(name) {
            *last = now.mono;
            return;
        }

        // At the bound all count as just used: to forget a use could delete a call that is wanted, to invent one costs
        // time only.
        if self.last.len() >= USED {
            self.last.clear();
            self.since = now.mono;
        }

        self.last.insert(name.to_owned(), now.mono);
    }

    /// True if no program has used it for `idle` microseconds.
    fn is_idle(&self, now: Now, name: &str, idle: u64) -> bool {
        let last = self.last.get(name).copied().unwrap_or(self.since);
        now.mono.saturating_sub(last) >= idle
    }

    fn span(&self) -> Span {
        Span { prefix: CALL_MARK.to_string(), after: self.after.clone(), limit: STEP }
    }
}

/// A timer for calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// The next step through this home's calls.
    Calls,
    /// The next step through the notes.
    Notes,
    /// The notes of calls whose home, this region, is gone for good go, too: nobody can tell any more which of them are there.
    Gone(u16),
}

/// Calls of memoized functions: notes of those that depend on objects here, and uses of this home's own.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// The site's start: an answer to a question of another start does not count.
    start: Start,
    /// The calls that depend on objects of this home.
    dependents: Dependents,
    /// The uses of this home's calls.
    uses: Uses,
    /// When each step is due, in monotonic microseconds; at most one through the calls and one through the notes, and none of these before
    /// the site serves.
    timers: BTreeSet<(u64, Timer)>,
}

impl Calls {
    /// The site serves, in this start: it looks after its calls and notes from now on.
    pub(super) fn resume(&mut self, here: &Here, start: Start) {
        self.start = start;

        // Uses of an earlier life are forgotten, so nothing is deleted before uses were noted for the whole time again.
        let idle = here.config.idle_calls;
        if idle > 0 {
            self.uses = Uses { since: here.now.mono, ..Uses::default() };
            self.timers.insert((here.now.mono + idle, Timer::Calls));
            self.timers.insert((here.now.mono + idle, Timer::Notes));
        }
    }

    /// Checks that a part covers every call that depends on what it writes, and that there is room for what it registers.
    pub(super) fn check(&self, site: SiteId, part: &Part) -> Result<(), Abort> {
        self.dependents.check(site, part)
    }

    /// Notes that a program wanted a call's result.
    pub(super) fn note_use(&mut self, now: Now, name: &str) {
        self.uses.note(now, name);
    }

    /// Restores a row of an earlier life.
    pub(super) fn restore(&mut self, key: &[u8], row: &[u8]) -> Result<(), Malformed> {
        self.dependents.restore(key, row)
    }

    /// The keys of its rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = Vec<u8>> {
        self.dependents.rows()
    }

    /// Notes what a part that is carried out says of calls: those that depend on objects here from now on, and those
    /// that no longer do.
    pub(super) fn note_part(&mut self, batch: &mut Batch, part: &Part) {
        // First the old notes go: a call that is computed again names all that it depends on now.
        for call in &part.forgets {
            self.dependents.forget(batch, call);
        }
        for (dependency, call) in &part.depends {
            self.dependents.register(call, dependency);
        }
        let calls: BTreeSet<&ObjectKey> = part.depends.iter().map(|(_, call)| call).collect();
        calls.into_iter().for_each(|call| self.dependents.write(batch, call));
    }

    /// The earliest time at which something comes due, in monotonic microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Adds the rows that the timers need that are due.
    pub(super) fn timers_need(&self, here: &Here, set: &mut KeySet) {
        for (_, timer) in self.timers.iter().take_while(|(at, _)| *at <= here.now.mono) {
            match timer {
                Timer::Calls => self.calls_need(here.site.incarnation, set),
                Timer::Notes => self.notes_need(here, set),
                Timer::Gone(_) => {}
            }
        }
    }

    /// Does what is due. Returns the calls of this home that nobody uses, to be deleted.
    pub(super) fn tick(&mut self, turn: &mut Turn, table: &Table) -> Vec<ObjectKey> {
        let mut idle = Vec::new();
        let due = self.timers.iter().copied().take_while(|(at, _)| *at <= turn.here.now.mono);
        let due: Vec<(u64, Timer)> = due.take(AT_ONCE).collect();
        for (at, timer) in due {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Calls => idle.extend(self.look_for_idle(&turn.here, table)),
                Timer::Notes => self.look_at_notes(turn),
                Timer::Gone(home) => self.forget_of(turn, home),
            }
        }

        idle
    }

    /// Sets the timer of the next step of a round, or of the next round.
    fn look_again(&mut self, here: &Here, timer: Timer, is_over: bool) {
        let pause = if is_over { (here.config.idle_calls / PART).max(PAUSE) } else { PAUSE };
        self.timers.insert((here.now.mono + pause, timer));
    }

    // Calls.

    /// Adds the rows that the next step through the calls needs.
    fn calls_need(&self, incarnation: Incarnation, set: &mut KeySet) {
        // Names are all that is looked at, so heads of no bytes are enough.
        set.head_ranges.push((row_range(incarnation, &self.uses.span()), 0));
    }

    /// Takes the next step through the calls; returns those that nobody uses.
    fn look_for_idle(&mut self, here: &Here, table: &Table) -> Vec<ObjectKey> {
        // It became due after the working set was named: the next call has the rows.
        let range = row_range(table.incarnation, &self.uses.span());
        if !table.view.has_heads_of(&range) {
            self.timers.insert((here.now.mono, Timer::Calls));
            return Vec::new();
        }
        let names: Vec<String> = table.view.heads_of(&range).map(|(key, _)| name_of(key)).collect();
        let idle = here.config.idle_calls;

        // A treaty with a name of its own lasts until it is dropped: it costs nobody anything but a look at its bounds. Those that clients
        // make for themselves come with each new statement, and nobody would drop them.
        let may_go = names.iter().filter(|name| treaty_name(name).is_none_or(is_unnamed));
        let unused = may_go.filter(|name| self.uses.is_idle(here.now, name, idle));
        let unused = unused.map(|name| ObjectKey { home: here.site.me.region, name: name.clone() }).collect();

        // At the end of a round, uses that are long ago are forgotten, and count as at the time since which uses are
        // noted: that is moved up to the same time, so that this call is still idle.
        let is_over = names.len() < range.limit;
        self.uses.after = names.into_iter().next_back().filter(|_| !is_over).unwrap_or_default();
        if is_over {
            self.uses.last.retain(|_, last| here.now.mono.saturating_sub(*last) < idle);
            self.uses.since = self.uses.since.max(here.now.mono.saturating_sub(idle));
        }
        self.look_again(here, Timer::Calls, is_over);
        unused
    }

    // Notes.

    /// The calls whose notes the next step goes through.
    fn next_notes(&self) -> impl Iterator<Item = &ObjectKey> {
        self.dependents.calls_after(self.uses.noted.as_ref()).take(STEP as usize)
    }

    /// Adds the rows that the next step through the notes needs.
    fn notes_need(&self, here: &Here, set: &mut KeySet) {
        let own = self.next_notes().filter(|call| call.home == here.site.me.region);
        own.for_each(|call| need_head(here.site.incarnation, &call.name, set));
    }

    /// Takes the next step through the notes: asks the homes of the calls which of them are gone.
    fn look_at_notes(&mut self, turn: &mut Turn) {
        let mut names: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        let mut last = None;
        let mut count = 0;
        for call in self.next_notes() {
            names.entry(call.home).or_default().push(call.name.clone());
            last = Some(call.clone());
            count += 1;
        }

        // The stamp is taken now: what is registered after it is newer than every answer to this question.
        let (start, stamp, is_over) = (self.start, self.dependents.stamp(), count < STEP);
        for (home, names) in names {
            let home = SiteId::new(home, turn.here.site.me.lane);
            if turn.here.is_reachable(home) {
                turn.out.send(home, Message::ProbeCalls { start, stamp, names });
            }
        }
        self.uses.noted = last.filter(|_| !is_over);
        self.look_again(&turn.here, Timer::Notes, is_over);
    }

    /// The members have changed. Calls whose home is gone have gone with it; but until a lease is over, somebody may rely on one that was
    /// read there.
    pub(super) fn meet_members(&mut self, here: &Here) {
        let over_at = here.now.mono + LEASE + 2 * here.config.epsilon;
        let is_new = |timer: &Timer| !self.timers.iter().any(|(_, other)| other == timer);
        let gone = here.site.gone.iter().map(|gone| Timer::Gone(gone.region)).filter(is_new);
        let gone: Vec<(u64, Timer)> = gone.map(|timer| (over_at, timer)).collect();
        self.timers.extend(gone);
    }

    /// Removes notes of calls of a home that is gone. What was prepared before may bring some yet, so this is never over.
    fn forget_of(&mut self, turn: &mut Turn, home: u16) {
        let first = ObjectKey::new(home, String::new());
        let calls = self.dependents.calls_after(Some(&first)).take_while(|call| call.home == home);
        let calls: Vec<ObjectKey> = calls.take(STEP as usize).cloned().collect();
        calls.iter().for_each(|call| self.dependents.forget(&mut turn.out.batch, call));
        let pause = if calls.len() < STEP as usize { LEASE } else { PAUSE };
        self.timers.insert((turn.here.now.mono + pause, Timer::Gone(home)));
    }

    /// Removes the notes of calls that are gone, unless they were registered after the question.
    pub(super) fn gone(&mut self, turn: &mut Turn, from: SiteId, (start, stamp): (Start, u64), names: Vec<String>) {
        // Stamps count the registrations of one life: an answer to an earlier life's question says nothing.
        if start != self.start {
            return;
        }
        for name in names {
            let call = ObjectKey { home: from.region, name };
            if !self.dependents.is_newer(&call, stamp) {
                self.dependents.forget(&mut turn.out.batch, &call);
            }
        }
    }
}

/// The name in a row's key.
fn name_of(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[5..]).into_owned()
}
