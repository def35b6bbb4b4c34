//! What prepared transactions rely on and will change, at their home, until they are decided.
//!
//! | wants ↓, another has → | read | put, delete | add |
//! | --- | --- | --- | --- |
//! | to read | passes | fails | fails |
//! | to put, to delete | fails | fails | fails |
//! | to add | fails | fails | passes |
//!
//! What a call depends on here is changed by one at a time.
//!
//! Nobody waits for a lock: what fails is tried again by its client, on what it then reads. A span that was scanned is read
//! with all names in it, those that are not there included.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use super::dependents::Dependents;
use super::table::{Head, Holds, Table, is_within, judged};
use crate::id::{Incarnation, OperationId};
use crate::object::{Abort, Cause, Change, ObjectKey, Part, Span, Value, Version};

/// What prepared transactions hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Locks {
    names: BTreeMap<String, Lock>,
    spans: Vec<(OperationId, Span)>,
    /// Calls of which it changes what they depend on here. What is prepared is carried out in any order, so no two may.
    calls: BTreeSet<ObjectKey>,
    /// What was written in this turn: its view does not show it.
    written: BTreeMap<String, Head>,
}

#[derive(Clone, Debug, Default)]
struct Lock {
    reads: u32,
    is_put: bool,
    /// What prepared adds may add to it and take from it at most.
    up: i64,
    down: i64,
    adds: u32,
    /// What is there, as long as adds are prepared: they are applied without a look at storage.
    present: Option<Head>,
}

impl Lock {
    fn is_free(&self) -> bool {
        self.reads == 0 && !self.is_put && self.adds == 0
    }
}

/// Calls of which a part changes what they depend on.
fn registered(part: &Part) -> impl Iterator<Item = &ObjectKey> {
    part.forgets.iter().chain(part.depends.iter().map(|(_, call)| call))
}

impl Locks {
    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.spans.is_empty() && self.calls.is_empty()
    }

    /// See [`super::Txns::fingerprint`].
    pub(super) fn fingerprint(&self, state: &mut impl Hasher) {
        (self.names.len(), self.spans.len(), &self.calls).hash(state);
        for (name, lock) in &self.names {
            (name, lock.reads, lock.is_put, lock.up, lock.down, lock.adds).hash(state);
        }
    }

    /// The turn is over: the next one's view shows what it wrote.
    pub(super) fn end_turn(&mut self) {
        self.written.clear();
    }

    /// The version of a name now, and the number of a counter.
    pub(super) fn head(&self, table: &Table, name: &str) -> Result<Head, Abort> {
        self.written.get(name).copied().map_or_else(|| table.head(name), Ok)
    }

    /// The version numbers of what a span holds now.
    fn numbers(&self, table: &Table, span: &Span) -> Result<Vec<u64>, Abort> {
        let mut found: BTreeMap<String, u64> = table.numbers(span)?.into_iter().collect();
        let is_full = found.len() >= span.limit as usize;
        for (name, head) in self.written.iter().filter(|(name, _)| is_within(span, name)) {
            if head.holds != Holds::Nothing {
                found.insert(name.clone(), head.version.number);
            } else if found.remove(name).is_some() && is_full {
                // What comes after the last one is not in the view.
                return Err(Abort::about(Cause::Busy, table.site, name));
            }
        }
        Ok(found.into_values().take(span.limit as usize).collect())
    }

    /// Whether a prepared write of it is undecided.
    pub(super) fn is_changing(&self, name: &str) -> bool {
        self.names.get(name).is_some_and(|lock| lock.is_put || lock.adds > 0)
    }

    /// The names in a span of which a prepared write is undecided.
    pub(super) fn changing_in<'a>(&'a self, span: &'a Span) -> impl Iterator<Item = &'a String> {
        let from = self.names.range(span.prefix.clone()..).take_while(|(name, _)| name.starts_with(&span.prefix));
        let changing = from.filter(|(name, lock)| (lock.is_put || lock.adds > 0) && is_within(span, name));
        changing.map(|(name, _)| name)
    }

    /// Judges a part: whether all that it read is as it was, nothing that is prepared stands in the way, and all calls that
    /// depend on what it writes are covered.
    pub(super) fn check(&self, table: &Table, dependents: &Dependents, part: &Part) -> Result<(), Abort> {
        dependents.check(table.site, part)?;
        let refuse = |cause, name: &str| Err(Abort::about(cause, table.site, name));
        if let Some(call) = registered(part).find(|call| self.calls.contains(*call)) {
            return Err(Abort { key: Some(call.clone()), site: Some(table.site), ..Abort::of(Cause::Busy) });
        }
        for (name, number) in &part.reads {
            if self.is_changing(name) {
                return refuse(Cause::Busy, name);
            }
            if self.head(table, name)?.version.number != *number {
                return refuse(Cause::Changed, name);
            }
        }
        for (span, numbers) in &part.scans {
            if let Some(name) = self.changing_in(span).next() {
                return refuse(Cause::Busy, name);
            }
            if self.numbers(table, &judged(span, numbers.len()))? != *numbers {
                return refuse(Cause::Changed, &span.prefix);
            }
        }
        for (name, change) in &part.writes {
            if self.spans.iter().any(|(_, span)| is_within(span, name)) {
                return refuse(Cause::Busy, name);
            }
            let lock = self.names.get(name);
            if lock.is_some_and(|lock| lock.reads > 0 || lock.is_put || (lock.adds > 0 && !change.is_add())) {
                return refuse(Cause::Busy, name);
            }
            if let Change::Add(delta) = change {
                let present = lock.and_then(|lock| lock.present);
                let present = present.map_or_else(|| self.head(table, name), Ok)?;
                let Some(count) = present.holds.count() else { return refuse(Cause::NotACounter, name) };
                // Whichever of the prepared adds take effect, it stays in range.
                let (up, down) = lock.map_or((0, 0), |lock| (lock.up, lock.down));
                let fits = |pending: i64| pending.checked_add(*delta).and_then(|all| count.checked_add(all)).is_some();
                if !fits(up) || !fits(down) || count.checked_add(*delta).is_none() {
                    return refuse(Cause::OutOfRange, name);
                }
            }
        }
        Ok(())
    }

    /// Takes what a part that was checked needs until it is decided.
    pub(super) fn take(&mut self, id: OperationId, part: &Part, table: &Table) {
        for (name, _) in &part.reads {
            self.names.entry(name.clone()).or_default().reads += 1;
        }
        self.spans.extend(part.scans.iter().map(|(span, _)| (id, span.clone())));
        self.calls.extend(registered(part).cloned());
        for (name, change) in &part.writes {
            let Change::Add(delta) = change else {
                self.names.entry(name.clone()).or_default().is_put = true;
                continue;
            };
            let present = self.head(table, name).expect("checked, or prepared by an earlier life");
            let lock = self.names.entry(name.clone()).or_default();
            lock.adds += 1;
            lock.up = lock.up.saturating_add((*delta).max(0));
            lock.down = lock.down.saturating_add((*delta).min(0));
            lock.present.get_or_insert(present);
        }
    }

    /// Gives back what a part took.
    pub(super) fn free(&mut self, id: OperationId, part: &Part) {
        for (name, _) in &part.reads {
            self.loosen(name, |lock| lock.reads -= 1);
        }
        self.spans.retain(|(of, _)| *of != id);
        for call in registered(part) {
            self.calls.remove(call);
        }
        for (name, change) in &part.writes {
            self.loosen(name, |lock| match change {
                Change::Add(delta) => {
                    lock.adds -= 1;
                    lock.up -= (*delta).max(0);
                    lock.down -= (*delta).min(0);
                    if lock.adds == 0 {
                        lock.present = None;
                    }
                }
                _ => lock.is_put = false,
            });
        }
    }

    fn loosen(&mut self, name: &str, change: impl FnOnce(&mut Lock)) {
        let lock = self.names.get_mut(name).expect("taken when it was prepared");
        change(lock);
        if lock.is_free() {
            self.names.remove(name);
        }
    }

    /// What an object holds after a change, in its next version. Adds that are prepared see each other's results.
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

    fn changed(&mut self, table: Option<&Table>, name: &str, change: &Change, number: u64) -> Option<Value> {
        let delta = match change {
            Change::Put(value) => return Some(value.clone()),
            Change::Delete => return None,
            Change::Add(delta) => *delta,
        };
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
