//! Which calls of memoized functions depend on objects of this home (Warranties, NSDI 2014: computation warranties).
//!
//! A call's value is kept as an object, perhaps at another home; see [`Part`]. Here is kept, durably, what of this home it
//! depends on. It was read, and validated, by the transaction that put the call's value, and whoever writes it since must
//! cover the call. Too much may stand here, never too little: a call that depends on nothing any more costs whoever covers
//! it a look.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::row::DEPENDENT;
use super::table::is_within;
use crate::codec::{Cursor, Malformed, put_u64};
use crate::id::SiteId;
use crate::machine::Batch;
use crate::object::{Abort, CALLS, Cause, ObjectKey, Part, Span, Subject};

/// The most that calls depend on at one home; beyond it none is taken in.
const SUBJECTS: usize = 1_000_000;

/// What is known of calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Dependents {
    /// What each call depends on: the rows.
    calls: BTreeMap<ObjectKey, Noted>,
    /// The calls that depend on a name.
    names: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// The calls that depend on a span, by its prefix.
    spans: BTreeMap<String, BTreeSet<(Span, ObjectKey)>>,
    subjects: usize,
    /// Counts what is registered in this life.
    stamp: u64,
}

/// What a call depends on here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Noted {
    subjects: BTreeSet<Subject>,
    /// When it was registered last.
    stamp: u64,
}

impl Dependents {
    /// The calls that depend on a name.
    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ObjectKey> {
        // A span's prefix is a prefix of the name.
        let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]).filter(|_| !self.spans.is_empty());
        let spans = ends.filter_map(|end| self.spans.get(&name[..end])).flatten();
        let spans = spans.filter(move |(span, _)| is_within(span, name)).map(|(_, call)| call);
        self.names.get(name).into_iter().flatten().chain(spans)
    }

    /// Whether a part covers every call that depends on what it writes, and there is room for those that it brings.
    pub(super) fn check(&self, site: SiteId, part: &Part) -> Result<(), Abort> {
        let mut missing = BTreeSet::new();
        let mut first = None;
        for (name, _) in &part.writes {
            for call in self.of(name).filter(|call| part.covers.binary_search(call).is_err()) {
                first.get_or_insert(name);
                missing.insert(call);
            }
        }
        if let Some(name) = first {
            let calls = missing.into_iter().take(CALLS).cloned().collect();
            return Err(Abort { calls, ..Abort::about(Cause::Depended, site, name) });
        }
        if self.subjects + part.depends.len() > SUBJECTS {
            return Err(Abort { site: Some(site), ..Abort::of(Cause::Overloaded) });
        }
        Ok(())
    }

    /// A call depends on this from now on. [`Dependents::write`] makes it durable.
    pub(super) fn register(&mut self, call: &ObjectKey, subject: &Subject) {
        self.stamp += 1;
        let noted = self.calls.entry(call.clone()).or_default();
        noted.stamp = self.stamp;
        if !noted.subjects.insert(subject.clone()) {
            return;
        }
        self.subjects += 1;
        match subject {
            Subject::Name(name) => drop(self.names.entry(name.clone()).or_default().insert(call.clone())),
            Subject::Span(span) => {
                let calls = self.spans.entry(span.prefix.clone()).or_default();
                calls.insert((span.clone(), call.clone()));
            }
        }
    }

    /// Writes a call's row.
    pub(super) fn write(&self, batch: &mut Batch, call: &ObjectKey) {
        let subjects = &self.calls[call].subjects;
        let mut row = Vec::new();
        put_u64(&mut row, subjects.len() as u64);
        subjects.iter().for_each(|subject| subject.encode(&mut row));
        batch.put(&key(call), &row);
    }

    /// A call depends on nothing here any more.
    pub(super) fn forget(&mut self, batch: &mut Batch, call: &ObjectKey) {
        let Some(Noted { subjects, .. }) = self.calls.remove(call) else { return };
        batch.delete(&key(call));
        self.subjects -= subjects.len();
        for subject in subjects {
            match subject {
                Subject::Name(name) => remove(&mut self.names, name, call),
                Subject::Span(span) => remove(&mut self.spans, span.prefix.clone(), &(span, call.clone())),
            }
        }
    }

    /// Calls that come after this one, in their order.
    pub(super) fn calls_after(&self, after: Option<&ObjectKey>) -> impl Iterator<Item = &ObjectKey> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.calls.range::<ObjectKey, _>((from, Bound::Unbounded)).map(|(call, _)| call)
    }

    /// A time before everything that is registered from now on.
    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Whether a call was registered since.
    pub(super) fn is_newer(&self, call: &ObjectKey, stamp: u64) -> bool {
        self.calls.get(call).is_some_and(|noted| noted.stamp > stamp)
    }

    /// Takes a row of an earlier life in.
    pub(super) fn restore(&mut self, key: &[u8], row: &[u8]) -> Result<(), Malformed> {
        let mut cursor = Cursor(&key[1..]);
        let call = ObjectKey::decode(&mut cursor)?;
        cursor.end()?;
        let mut cursor = Cursor(row);
        for _ in 0..cursor.u64()? {
            self.register(&call, &Subject::decode(&mut cursor)?);
        }
        cursor.end()
    }

    /// The keys of its rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = Vec<u8>> {
        self.calls.keys().map(key)
    }
}

fn remove<T: Ord>(map: &mut BTreeMap<String, BTreeSet<T>>, key: String, entry: &T) {
    if let Some(entries) = map.get_mut(&key) {
        entries.remove(entry);
        if entries.is_empty() {
            map.remove(&key);
        }
    }
}

/// The key of a call's row.
fn key(call: &ObjectKey) -> Vec<u8> {
    let mut key = vec![DEPENDENT];
    call.encode(&mut key);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Change;

    fn span(prefix: &str, after: &str) -> Subject {
        Subject::Span(Span { prefix: prefix.into(), after: after.into(), limit: 3 })
    }

    fn writes(name: &str, covers: &[&ObjectKey]) -> Part {
        let covers = covers.iter().map(|call| (*call).clone()).collect();
        Part { writes: vec![(name.into(), Change::Delete)], covers, ..Part::default() }
    }

    #[test]
    fn write_of_what_a_call_depends_on_must_cover_it_until_it_is_forgotten() {
        let site = SiteId::new(0, 0);
        let (f, g) = (ObjectKey::new(1, "\u{1}f()"), ObjectKey::new(2, "\u{1}g()"));
        let mut dependents = Dependents::default();
        let mut batch = Batch::default();
        let subjects =
            [(&f, Subject::Name("é/x".into())), (&g, span("é/", "")), (&g, span("é/", "é/y")), (&f, span("", "z"))];
        for (call, subject) in &subjects {
            dependents.register(call, subject);
            dependents.write(&mut batch, call);
        }
        let missing = |dependents: &Dependents, part: &Part| match dependents.check(site, part) {
            Ok(()) => Vec::new(),
            Err(abort) => {
                assert_eq!(abort.cause, Cause::Depended);
                abort.calls
            }
        };
        for (name, expected) in [("é/x", vec![&f, &g]), ("é/z", vec![&f, &g]), ("a", vec![]), ("zz", vec![&f])] {
            let expected: Vec<ObjectKey> = expected.into_iter().cloned().collect();
            assert_eq!(missing(&dependents, &writes(name, &[])), expected, "{name}");
            assert_eq!(missing(&dependents, &writes(name, &[&f, &g])), []);
        }
        assert_eq!(missing(&dependents, &writes("é/x", &[&g])), std::slice::from_ref(&f));
        // No span shows calls.
        assert_eq!(missing(&dependents, &writes("\u{1}f()", &[])), []);
        let mut restored = Dependents::default();
        for (call, row) in [&f, &g].map(|call| (call, &dependents.calls[call].subjects)) {
            let mut bytes = Vec::new();
            put_u64(&mut bytes, row.len() as u64);
            row.iter().for_each(|subject| subject.encode(&mut bytes));
            restored.restore(&key(call), &bytes).expect("as it was written");
        }
        assert_eq!(restored.names, dependents.names);
        assert_eq!(restored.spans, dependents.spans);
        dependents.forget(&mut batch, &g);
        assert_eq!(missing(&dependents, &writes("é/x", &[])), std::slice::from_ref(&f));
        dependents.forget(&mut batch, &f);
        assert_eq!((dependents.subjects, dependents.names.len(), dependents.spans.len()), (0, 0, 0));
    }
}
