//! The locks of prepared transactions at a home: on what they read and will write, until they are decided.
//!
//! | wants ↓, another has → | read | put, delete | add |
//! | --- | --- | --- | --- |
//! | to read | passes | fails | fails |
//! | to put, to delete | fails | fails | fails |
//! | to add | fails | fails | passes |
//!
//! One transaction at a time may change the notes of a call.
//!
//! No transaction waits for a lock: one that fails is run again by its client, on new reads. To scan a span is to read
//! all names in it, those that are not there included.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use super::calls::Calls;
use super::spans::Spans;
use super::table::{Head, Holds, Table, is_within, judged};
use crate::id::{Incarnation, OperationId};
use crate::object::message::Fetch;
use crate::object::{Abort, Cause, Change, ObjectKey, Part, Span, Value, Version};

/// The locks of prepared parts.
#[derive(Clone, Debug, Default)]
pub(super) struct Locks {
    /// The locks of objects, by name; none that is free.
    names: BTreeMap<String, Lock>,
    /// The spans that prepared parts have scanned.
    spans: Spans<OperationId>,
    /// The calls whose notes prepared parts change. Prepared parts are carried out in any order, so no two may change
    /// the same.
    calls: BTreeSet<ObjectKey>,
    /// The treaties that are being retracted: no part that reads one is prepared any more. Each with the number of its makings that
    /// are, which is not zero.
    barred: BTreeMap<String, u32>,
    /// The objects that were written in this call: its view does not show that. Empty between calls.
    written: BTreeMap<String, Head>,
}

/// The locks of one object.
#[derive(Clone, Debug, Default)]
struct Lock {
    /// The number of prepared parts that read it.
    reads: u32,
    /// True if a prepared part puts or deletes it; then no other part holds a lock on it but its own read.
    is_put: bool,
    /// The number that a counter has after a prepared put or deletion, zero for nothing; none if it is no counter then, or no put is
    /// prepared.
    put_to: Option<i64>,
    /// The sum of the prepared adds that are positive.
    up: i64,
    /// The sum of the prepared adds that are negative.
    down: i64,
    /// The number of prepared adds.
    adds: u32,
    /// The head of the object while adds are prepared: they are carried out without a look at storage.
    present: Option<Head>,
}

impl Lock {
    /// True if nothing holds it.
    fn is_free(&self) -> bool {
        self.reads == 0 && !self.is_put && self.adds == 0
    }
}

/// The calls whose notes a part changes.
fn registered(part: &Part) -> impl Iterator<Item = &ObjectKey> {
    let depends = part.depends.iter().map(|(_, call)| call);
    part.forgets.iter().chain(depends).chain(part.notes.iter().map(|note| &note.treaty))
}

impl Locks {
    /// True if no part holds a lock.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.spans.is_empty() && self.calls.is_empty()
    }

    /// See [`super::Txns::fingerprint`].
    pub(super) fn fingerprint(&self, state: &mut impl Hasher) {
        (self.names.len(), &self.spans, &self.calls).hash(state);
        for (name, lock) in &self.names {
            (name, lock.reads, lock.is_put, lock.up, lock.down, lock.adds).hash(state);
        }
    }

    /// Ends a call: the view of the next one shows what this one wrote.
    pub(super) fn end_turn(&mut self) {
        self.written.clear();
    }

    /// The head of a name now: its version, and the number of a counter.
    pub(super) fn head(&self, table: &Table, name: &str) -> Result<Head, Abort> {
        self.written.get(name).copied().map_or_else(|| table.head(name), Ok)
    }

    /// The version numbers of the objects that are in a span now.
    fn numbers(&self, table: &Table, span: &Span) -> Result<Vec<u64>, Abort> {
        // The view is of the beginning of the call. Several parts may be carried out in one call, so their writes are
        // laid over it.
        let mut found: BTreeMap<String, u64> = table.numbers(span)?.into_iter().collect();
        let is_full = found.len() >= span.limit as usize;
        for (name, head) in self.written.iter().filter(|(name, _)| is_within(span, name)) {
            if head.holds != Holds::Nothing {
                found.insert(name.clone(), head.version.number);
            } else if found.remove(name).is_some() && is_full {
                // The row that moves up into the limit is not in the view: it cannot be judged now.
                return Err(Abort::about(Cause::Busy, table.site, name));
            }
        }

        Ok(found.into_values().take(span.limit as usize).collect())
    }

    /// True if a prepared write of it is undecided.
    pub(super) fn is_changing(&self, name: &str) -> bool {
        self.names.get(name).is_some_and(|lock| lock.is_put || lock.adds > 0)
    }

    /// True if it was written in this call: the view does not show that.
    pub(super) fn is_written(&self, name: &str) -> bool {
        self.written.contains_key(name)
    }

    /// True if something that is asked for was written in this call.
    pub(super) fn has_written_of(&self, fetch: &Fetch) -> bool {
        let is_asked_for = |name: &String| {
            fetch.gets.iter().any(|(get, _)| get == name) || fetch.scans.iter().any(|span| is_within(span, name))
        };
        self.written.keys().any(is_asked_for)
    }

    /// True if a prepared part reads or writes it.
    pub(super) fn is_locked(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Between which numbers a counter may be that has come to `count`, whichever of the prepared writes take effect.
    pub(super) fn range(&self, name: &str, count: i64) -> (i64, i64) {
        match self.names.get(name) {
            None => (count, count),
            Some(Lock { is_put: true, put_to, .. }) => {
                let put_to = put_to.unwrap_or(0);
                (count.min(put_to), count.max(put_to))
            }
            Some(lock) => (count.saturating_add(lock.down), count.saturating_add(lock.up)),
        }
    }

    /// True if a prepared write may leave no counter of this name.
    pub(super) fn may_be_no_counter(&self, name: &str) -> bool {
        self.names.get(name).is_some_and(|lock| lock.is_put && lock.put_to.is_none())
    }

    /// Lets no part be prepared that reads a treaty, until it is retracted.
    pub(super) fn bar(&mut self, treaty: &str) {
        *self.barred.entry(treaty.to_owned()).or_default() += 1;
    }

    /// Lets parts read a treaty again.
    pub(super) fn unbar(&mut self, treaty: &str) {
        match self.barred.get_mut(treaty).expect("it was barred") {
            1 => drop(self.barred.remove(treaty)),
            makings => *makings -= 1,
        }
    }

    /// The names in a span with a prepared write that is undecided.
    pub(super) fn changing_in<'a>(&'a self, span: &'a Span) -> impl Iterator<Item = &'a String> {
        let from = self.names.range(span.prefix.clone()..).take_while(|(name, _)| name.starts_with(&span.prefix));
        let changing = from.filter(|(name, lock)| (lock.is_put || lock.adds > 0) && is_within(span, name));
        changing.map(|(name, _)| name)
    }

    /// Judges a part. It passes if nothing that it read has changed, no prepared part stands in its way, and it covers
    /// all calls that depend on what it writes.
    pub(super) fn check(&self, table: &Table, calls: &Calls, part: &Part) -> Result<(), Abort> {
        // No call is shown with a result that its function would not give: each writer of what it rests on covers it.
        calls.check(table.site, part)?;
        let refuse = |cause, name: &str| Err(Abort::about(cause, table.site, name));
        if let Some(call) = registered(part).find(|call| self.calls.contains(*call)) {
            return Err(Abort { key: Some(call.clone()), site: Some(table.site), ..Abort::of(Cause::Busy) });
        }

        // A read that still has its version is not enough: a prepared write of it may have taken effect elsewhere
        // already, and other clients may have seen that. So it fails, although it may turn out to have been right.
        for (name, number) in &part.reads {
            if self.is_changing(name) || self.barred.contains_key(name) {
                return refuse(Cause::Busy, name);
            }
            if self.head(table, name)?.version.number != *number {
                return refuse(Cause::Changed, name);
            }
        }

        // A scan is validated by repeating it, so that a name that has come into the span fails it too.
        for (span, numbers) in &part.scans {
            if let Some(name) = self.changing_in(span).next() {
                return refuse(Cause::Busy, name);
            }
            if self.numbers(table, &judged(span, numbers.len()))? != *numbers {
                return refuse(Cause::Changed, &span.prefix);
            }
        }

        // A write fails where a prepared part has read, by name or in a span: what that part read must stay until it is
        // decided.
        for (name, change) in &part.writes {
            if self.spans.over(name).next().is_some() {
                return refuse(Cause::Busy, name);
            }
            let lock = self.names.get(name);
            if lock.is_some_and(|lock| lock.reads > 0 || lock.is_put || (lock.adds > 0 && !change.is_add())) {
                return refuse(Cause::Busy, name);
            }

            // Adds pass each other, and are carried out in any order. So the counter must stay in range whichever of
            // those that are prepared take effect: with all that raise it, and with all that lower it.
            if let Change::Add(delta) = change {
                let present = lock.and_then(|lock| lock.present);
                let present = present.map_or_else(|| self.head(table, name), Ok)?;
                let Some(count) = present.holds.count() else { return refuse(Cause::NotACounter, name) };
                let (up, down) = lock.map_or((0, 0), |lock| (lock.up, lock.down));
                let fits = |pending: i64| pending.checked_add(*delta).and_then(|all| count.checked_add(all)).is_some();
                if !fits(up) || !fits(down) || count.checked_add(*delta).is_none() {
                    return refuse(Cause::OutOfRange, name);
                }
            }
        }

        Ok(())
    }

    /// Takes the locks of a part that was checked, until it is decided.
    pub(super) fn take(&mut self, id: OperationId, part: &Part, table: &Table) {
        let is_free = |(name, change): &(String, Change)| change.is_add() || !self.is_changing(name);
        debug_assert!(part.writes.iter().all(is_free), "{id} is prepared over a write of another that is undecided");
        for (name, _) in &part.reads {
            self.names.entry(name.clone()).or_default().reads += 1;
        }
        part.scans.iter().for_each(|(span, _)| self.spans.insert(span, id));
        self.calls.extend(registered(part).cloned());

        for (name, change) in &part.writes {
            let Change::Add(delta) = change else {
                let lock = self.names.entry(name.clone()).or_default();
                lock.is_put = true;
                lock.put_to = match change {
                    Change::Put(Value::Counter(count)) => Some(*count),
                    Change::Put(_) => None,
                    _ => Some(0),
                };
                continue;
            };

            // The counter is kept here from the first add on: a part may be carried out by a message whose call names
            // no rows. And it is the number that was judged: what is known of the object's home may have changed since.
            let known = self.names.get(name).and_then(|lock| lock.present);
            let present = known.map_or_else(|| self.head(table, name), Ok);
            let present = present.expect("checked, or prepared by an earlier life");
            let lock = self.names.entry(name.clone()).or_default();
            lock.adds += 1;
            lock.up = lock.up.saturating_add((*delta).max(0));
            lock.down = lock.down.saturating_add((*delta).min(0));
            lock.present.get_or_insert(present);
        }
    }

    /// Gives back the locks that a part took.
    pub(super) fn free(&mut self, id: OperationId, part: &Part) {
        for (name, _) in &part.reads {
            self.loosen(name, |lock| {
                assert!(lock.reads > 0, "{id} gives back a read of {name} that it does not hold");
                lock.reads -= 1;
            });
        }
        part.scans.iter().for_each(|(span, _)| self.spans.remove(span, id));
        for call in registered(part) {
            self.calls.remove(call);
        }

        // Exactly what `take` added, also if the add was carried out meanwhile: what is still pending decides what
        // others may add.
        for (name, change) in &part.writes {
            self.loosen(name, |lock| match change {
                Change::Add(delta) => {
                    assert!(lock.adds > 0, "{id} gives back an add to {name} that it does not hold");
                    lock.adds -= 1;
                    lock.up -= (*delta).max(0);
                    lock.down -= (*delta).min(0);
                    if lock.adds == 0 {
                        lock.present = None;
                    }
                }
                _ => (lock.is_put, lock.put_to) = (false, None),
            });
        }
    }

    /// Changes a lock that is held, and forgets it if it is free then.
    fn loosen(&mut self, name: &str, change: impl FnOnce(&mut Lock)) {
        let lock = self.names.get_mut(name).expect("taken when it was prepared");
        change(lock);
        if lock.is_free() {
            self.names.remove(name);
        }
    }

    /// Carries out a change of an object, in its next version; returns its value after it.
    pub(super) fn change(
        &mut self,
        incarnation: Incarnation,
        table: Option<&Table>,
        name: &str,
        change: &Change,
        number: u64,
    ) -> Option<Value> {
        let value = self.changed(table, name, change, number);
        let number = if value.is_some() { number } else { 0 };
        let head = Head { version: Version { incarnation, number }, holds: Holds::of(value.as_ref()) };
        self.written.insert(name.to_owned(), head);
        value
    }

    /// The value of an object after a change. Adds that are prepared see each other's results.
    fn changed(&mut self, table: Option<&Table>, name: &str, change: &Change, number: u64) -> Option<Value> {
        let delta = match change {
            Change::Put(value) => return Some(value.clone()),
            Change::Delete => return None,
            Change::Add(delta) => *delta,
        };

        // Other adds may have been carried out since this one was prepared, in this call too. The prepared head has
        // followed them; for an add that is judged and carried out at once, what this call wrote comes before what the
        // view shows.
        let written = self.written.get(name).and_then(|head| head.holds.count());
        let lock = self.names.get_mut(name);
        let shared = lock.and_then(|lock| lock.present.as_mut());
        let count = match (&shared, table) {
            (Some(present), _) => present.holds.count(),
            (None, Some(table)) => written.or_else(|| table.head(name).ok().and_then(|head| head.holds.count())),
            (None, None) => None,
        };
        let value = Value::Counter(count.expect("checked to be a counter") + delta);
        if let Some(present) = shared {
            present.version.number = number;
            present.holds = Holds::of(Some(&value));
        }

        Some(value)
    }
}
