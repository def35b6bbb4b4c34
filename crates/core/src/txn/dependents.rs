//! Which calls of memoized functions depend on objects of this home (Warranties, NSDI 2014: computation warranties).
//!
//! A call's value is kept as an object, perhaps at another home; see [`Part`]. This home keeps, durably, the notes
//! which of its objects the call depends on. The transaction that put the call's value read and validated these
//! objects, and each transaction that writes one of them since must cover the call. A note may stand here for too long,
//! but never be missing: a note of a call that depends on nothing any more costs a writer one look, a missing one shows
//! a stale result.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::spans::Spans;
use crate::bounds::{ENTRY_BYTES, NAMED_BYTES};
use crate::codec::{Cursor, Malformed, put_u64};
use crate::id::SiteId;
use crate::machine::Batch;
use crate::object::{Abort, Cause, Dependency, ObjectKey, Part, TRANSACTION_OPERATIONS};
use crate::rows::DEPENDENT;

/// The most dependencies at one home; beyond it, transactions that bring more are refused.
const SUBJECTS: usize = 1_000_000;

/// The calls that depend on objects of this home.
#[derive(Clone, Debug, Default)]
pub(super) struct Dependents {
    /// The dependencies of each call, as in its row. The indexes below hold the same.
    calls: BTreeMap<ObjectKey, Noted>,
    /// The calls that depend on a name.
    names: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// The calls that depend on a span, each with the number of its rows.
    spans: Spans<(ObjectKey, u32)>,
    /// The number of dependencies of all calls.
    dependencies: usize,
    /// The number of registrations in this life.
    stamp: u64,
}

/// The dependencies of a call on this home.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Noted {
    /// Names and spans of this home that the call's function read.
    dependencies: BTreeSet<Dependency>,
    /// The stamp of its last registration.
    stamp: u64,
}

impl Dependents {
    /// The calls that depend on a name.
    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ObjectKey> {
        self.names.get(name).into_iter().flatten().chain(self.spans.over(name).map(|(call, _)| call))
    }

    /// Checks that a part covers every call that depends on what it writes, and that there is room for the dependencies
    /// it brings.
    pub(super) fn check(&self, site: SiteId, part: &Part) -> Result<(), Abort> {
        // The refusal names the calls: the client runs their functions on what it is about to write, and covers them.
        let mut missing = BTreeSet::new();
        let mut first = None;
        for (name, _) in &part.writes {
            for call in self.of(name).filter(|call| part.covers.binary_search(call).is_err()) {
                first.get_or_insert(name);
                missing.insert(call);
            }
        }
        if let Some(name) = first {
            // The rest are named when these are covered. A thousand outcomes of a session are kept.
            let mut left = NAMED_BYTES;
            let fits = |call: &&ObjectKey| {
                let rest = left.checked_sub(call.name.len() + ENTRY_BYTES);
                left = rest.unwrap_or(0);
                rest.is_some()
            };
            let calls = missing.into_iter().take_while(fits).cloned().collect();
            return Err(Abort { calls, ..Abort::about(Cause::Depended, site, name) });
        }

        // Only who brings more than it takes away is refused: at the bound, everything else goes on, and that a result is computed anew.
        let freed: usize =
            part.forgets.iter().filter_map(|call| self.calls.get(call)).map(|noted| noted.dependencies.len()).sum();
        let more = part.depends.len().saturating_sub(freed);
        if more > 0 && self.dependencies + more > SUBJECTS {
            return Err(Abort { site: Some(site), ..Abort::of(Cause::Overloaded) });
        }

        // A call rests on no more than one run of its function reads. Its row is written whole, and has to fit a segment of the log.
        let mut counts: BTreeMap<&ObjectKey, usize> = BTreeMap::new();
        for (dependency, call) in &part.depends {
            let kept = self.calls.get(call).filter(|_| part.forgets.binary_search(call).is_err());
            let count = counts.entry(call).or_insert_with(|| kept.map_or(0, |noted| noted.dependencies.len()));
            *count += usize::from(kept.is_none_or(|noted| !noted.dependencies.contains(dependency)));
            if *count > TRANSACTION_OPERATIONS {
                return Err(Abort { key: Some(call.clone()), site: Some(site), ..Abort::of(Cause::TooMuch) });
            }
        }

        Ok(())
    }

    /// Notes that a call depends on this from now on. [`Dependents::write`] makes it durable.
    pub(super) fn register(&mut self, call: &ObjectKey, dependency: &Dependency) {
        // The stamp rises although the call may be noted already: an older question about it is not to remove it.
        self.stamp += 1;
        let noted = self.calls.entry(call.clone()).or_default();
        noted.stamp = self.stamp;
        if !noted.dependencies.insert(dependency.clone()) {
            return;
        }

        // The indexes follow the row's content: a write finds the calls by them alone.
        self.dependencies += 1;
        match dependency {
            Dependency::Name(name) => drop(self.names.entry(name.clone()).or_default().insert(call.clone())),
            Dependency::Span(span) => self.spans.insert(span, (call.clone(), span.limit)),
        }
    }

    /// Writes a call's row.
    pub(super) fn write(&self, batch: &mut Batch, call: &ObjectKey) {
        let dependencies = &self.calls[call].dependencies;
        let mut row = Vec::new();
        put_u64(&mut row, dependencies.len() as u64);
        dependencies.iter().for_each(|dependency| dependency.encode(&mut row));
        batch.put(&key(call), &row);
    }

    /// Removes a call's notes: it depends on nothing here any more.
    pub(super) fn forget(&mut self, batch: &mut Batch, call: &ObjectKey) {
        let Some(Noted { dependencies, .. }) = self.calls.remove(call) else { return };
        batch.delete(&key(call));
        self.dependencies -= dependencies.len();
        for dependency in dependencies {
            match dependency {
                Dependency::Name(name) => {
                    if let Some(calls) = self.names.get_mut(&name) {
                        calls.remove(call);
                        if calls.is_empty() {
                            self.names.remove(&name);
                        }
                    }
                }
                Dependency::Span(span) => self.spans.remove(&span, (call.clone(), span.limit)),
            }
        }

        assert!(!self.calls.is_empty() || self.dependencies == 0, "no call is noted, and dependencies are counted");
    }

    /// The calls that come after this one, in their order.
    pub(super) fn calls_after(&self, after: Option<&ObjectKey>) -> impl Iterator<Item = &ObjectKey> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.calls.range::<ObjectKey, _>((from, Bound::Unbounded)).map(|(call, _)| call)
    }

    /// The stamp of the last registration: below those of all that follow.
    pub(super) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// True if a call was registered after this stamp.
    pub(super) fn is_newer(&self, call: &ObjectKey, stamp: u64) -> bool {
        self.calls.get(call).is_some_and(|noted| noted.stamp > stamp)
    }

    /// Restores a row of an earlier life.
    pub(super) fn restore(&mut self, key: &[u8], row: &[u8]) -> Result<(), Malformed> {
        let mut cursor = Cursor(&key[1..]);
        let call = ObjectKey::decode(&mut cursor)?;
        cursor.end()?;
        let mut cursor = Cursor(row);
        for _ in 0..cursor.u64()? {
            self.register(&call, &Dependency::decode(&mut cursor)?);
        }
        cursor.end()
    }

    /// The keys of its rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = Vec<u8>> {
        self.calls.keys().map(key)
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
    use crate::object::{Change, Span};

    fn span(prefix: &str, after: &str) -> Dependency {
        Dependency::Span(Span { prefix: prefix.into(), after: after.into(), limit: 3 })
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
        let dependencies =
            [(&f, Dependency::Name("é/x".into())), (&g, span("é/", "")), (&g, span("é/", "é/y")), (&f, span("", "z"))];
        for (call, dependency) in &dependencies {
            dependents.register(call, dependency);
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
        for (call, row) in [&f, &g].map(|call| (call, &dependents.calls[call].dependencies)) {
            let mut bytes = Vec::new();
            put_u64(&mut bytes, row.len() as u64);
            row.iter().for_each(|dependency| dependency.encode(&mut bytes));
            restored.restore(&key(call), &bytes).expect("as it was written");
        }
        assert_eq!(restored.names, dependents.names);
        assert_eq!(restored.spans, dependents.spans);
        dependents.forget(&mut batch, &g);
        assert_eq!(missing(&dependents, &writes("é/x", &[])), std::slice::from_ref(&f));
        dependents.forget(&mut batch, &f);
        assert_eq!((dependents.dependencies, dependents.names.len(), dependents.spans.is_empty()), (0, 0, true));
    }

    #[test]
    fn call_rests_on_no_more_than_one_run_of_its_function_may_read() {
        let site = SiteId::new(0, 0);
        let call = ObjectKey::new(0, "\u{1}f()");
        let mut dependents = Dependents::default();
        let name = |at: usize| Dependency::Name(at.to_string());
        (0..TRANSACTION_OPERATIONS - 2).for_each(|at| dependents.register(&call, &name(at)));
        let brings = |names: std::ops::Range<usize>, forgets: &[&ObjectKey]| {
            let depends = names.map(|at| (name(at), call.clone())).collect();
            let forgets = forgets.iter().map(|call| (*call).clone()).collect();
            let part = Part { depends, forgets, ..Part::default() };
            dependents.check(site, &part).map_err(|abort| abort.cause)
        };
        assert_eq!(brings(0..TRANSACTION_OPERATIONS, &[]), Ok(()), "what it rests on already counts once");
        assert_eq!(brings(9_000..9_003, &[]), Err(Cause::TooMuch));
        assert_eq!(brings(9_000..9_003, &[&call]), Ok(()), "in place of what it rested on");
    }
}
