//! The reads of a transaction: one version of each object, and the spans that it scanned. They are validated when it is
//! committed.
//!
//! Reads of one transaction may come from different times. Where two of them contradict each other, the transaction
//! cannot be committed, and is ended at once ([`Contradiction`]); others that do not belong together are found when it
//! is committed.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::Incarnation;
use crate::object::{Home, ObjectKey, Part, Seen, Span, Value, is_call};

/// The object of which two reads cannot both be true.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contradiction(pub ObjectKey);

/// The reads of a transaction.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The reads by home region.
    homes: BTreeMap<u16, AtHome>,
}

/// The reads at one home.
#[derive(Debug, Default)]
struct AtHome {
    /// The incarnation of everything that was read there; zero before the first object.
    incarnation: Incarnation,
    /// Every object that was seen, in spans too, in one version each.
    seen: BTreeMap<String, Seen>,
    /// The names that were asked for; each is in `seen`.
    gets: BTreeSet<String>,
    /// The spans that were scanned.
    scans: Vec<Scanned>,
}

/// A span that was scanned.
#[derive(Debug)]
struct Scanned {
    /// The prefix, the name after which the scan begins, and its limit.
    span: Span,
    /// The names of the rows that were found, in order; each is in `seen`.
    names: Vec<String>,
    /// The last name up to which it tells what is there; none if it was read to its end.
    end: Option<String>,
}

impl Scanned {
    /// True if it tells whether there is an object of this name.
    fn covers(&self, name: &str) -> bool {
        is_within(&self.span, self.end.as_deref(), name)
    }
}

/// True if a name is in a span that was read up to `end`. Calls are in none.
pub fn is_within(span: &Span, end: Option<&str>, name: &str) -> bool {
    name.starts_with(&span.prefix) && !is_call(name) && name > span.after.as_str() && end.is_none_or(|end| name <= end)
}

/// The name at which the rows of a span end, if there may be more: the last one.
pub fn end_of<T>(span: &Span, rows: &[(String, T)]) -> Option<String> {
    let is_full = rows.len() >= span.limit as usize;
    rows.last().filter(|_| is_full).map(|(name, _)| name.clone())
}

impl Snapshot {
    /// The value of an object, if it is known: because it was read, or because a span shows that nothing is there.
    pub fn known(&self, key: &ObjectKey) -> Option<Option<Value>> {
        let home = self.homes.get(&key.home)?;
        match home.seen.get(&key.name) {
            Some(seen) => Some(seen.value.clone()),
            None => home.scans.iter().any(|scan| scan.covers(&key.name)).then_some(None),
        }
    }

    /// The rows of a span, if exactly the same was asked for before.
    pub fn scanned(&self, region: u16, span: &Span) -> Option<Vec<(String, Value)>> {
        let home = self.homes.get(&region)?;
        let scan = home.scans.iter().find(|scan| scan.span == *span)?;
        let row = |name: &String| home.seen.get(name).and_then(|seen| Some((name.clone(), seen.value.clone()?)));
        Some(scan.names.iter().filter_map(row).collect())
    }

    /// Notes the value of an object.
    pub fn note_get(&mut self, key: &ObjectKey, seen: Seen) -> Result<(), Contradiction> {
        let home = self.homes.entry(key.home).or_default();
        home.check(key, &seen)?;
        home.insert(key.name.clone(), seen);
        home.gets.insert(key.name.clone());
        Ok(())
    }

    /// Notes the rows of a span.
    pub fn note_scan(&mut self, region: u16, span: Span, rows: Vec<(String, Seen)>) -> Result<(), Contradiction> {
        let home = self.homes.entry(region).or_default();
        let end = end_of(&span, &rows);

        // An object that was there before and is missing now contradicts the earlier read, as one with another version
        // does.
        let names: Vec<String> = rows.iter().map(|(name, _)| name.clone()).collect();
        let found: BTreeSet<&String> = names.iter().collect();
        let mut before = home.seen.iter().filter(|(name, seen)| seen.value.is_some() && !found.contains(name));
        if let Some((name, _)) = before.find(|(name, _)| is_within(&span, end.as_deref(), name)) {
            return Err(Contradiction(ObjectKey::new(region, name)));
        }

        // All or nothing: everything that is noted will be validated, so a contradiction must leave nothing behind.
        for (name, seen) in &rows {
            home.check(&ObjectKey::new(region, name), seen)?;
        }
        rows.into_iter().for_each(|(name, seen)| home.insert(name, seen));
        home.scans.push(Scanned { span, names, end });
        Ok(())
    }

    /// The names and spans that were asked for; with those of calls, or without.
    pub fn asked(&self, with_calls: bool) -> (Vec<ObjectKey>, Vec<(u16, Span)>) {
        let gets = self.homes.iter().flat_map(|(region, home)| home.gets.iter().map(|name| (*region, name)));
        let gets = gets.filter(|(_, name)| with_calls || !is_call(name));
        let gets = gets.map(|(region, name)| ObjectKey::new(region, name));
        let scans = self.homes.iter().flat_map(|(region, home)| home.scans.iter().map(|scan| (*region, &scan.span)));
        (gets.collect(), scans.map(|(region, span)| (region, span.clone())).collect())
    }

    /// The number of operations that it counts as when it is committed.
    pub fn operations(&self) -> usize {
        let scans = |home: &AtHome| home.scans.iter().map(|scan| 1 + scan.names.len()).sum::<usize>();
        self.homes.values().map(|home| home.gets.len() + scans(home)).sum()
    }

    /// The version number of an object; zero if it was not read, or not found.
    pub fn number(&self, key: &ObjectKey) -> u64 {
        let seen = self.homes.get(&key.home).and_then(|home| home.seen.get(&key.name));
        seen.map_or(0, |seen| seen.version.number)
    }

    /// A span that was read, with the version numbers of its rows.
    pub fn scan_of(&self, region: u16, span: &Span) -> (Span, Vec<u64>) {
        let home = self.homes.get(&region);
        let scan = home.and_then(|home| home.scans.iter().find(|scan| scan.span == *span));
        let number = |name: &String| self.number(&ObjectKey::new(region, name.clone()));
        (span.clone(), scan.iter().flat_map(|scan| &scan.names).map(number).collect())
    }

    /// The incarnation of the reads in a region; zero if there are none.
    pub fn incarnation(&self, region: u16) -> Incarnation {
        self.homes.get(&region).map_or(Incarnation(0), |home| home.incarnation)
    }

    /// The reads that are to be validated, by home.
    pub fn to_homes(&self) -> BTreeMap<u16, Home> {
        // A name that a span covers is validated with the span.
        let home = |(&region, home): (&u16, &AtHome)| {
            let number = |name: &String| home.seen.get(name).map_or(0, |seen| seen.version.number);
            let gets = home.gets.iter().filter(|name| !home.scans.iter().any(|scan| scan.covers(name)));
            let scans = home.scans.iter().map(|scan| (scan.span.clone(), scan.names.iter().map(number).collect()));
            let part = Part {
                reads: gets.map(|name| (name.clone(), number(name))).collect(),
                scans: scans.collect(),
                ..Part::default()
            };
            (region, Home { region, incarnation: home.incarnation, part })
        };
        self.homes.iter().map(home).collect()
    }
}

impl AtHome {
    /// Checks that a read can be true together with all earlier ones.
    fn check(&self, key: &ObjectKey, seen: &Seen) -> Result<(), Contradiction> {
        // Version numbers of two incarnations count the writes of two storages: no instant has both.
        let is_of_other_storage = self.incarnation != Incarnation(0) && self.incarnation != seen.version.incarnation;
        let is_other = match self.seen.get(&key.name) {
            Some(before) => before.version != seen.version,
            None => seen.value.is_some() && self.scans.iter().any(|scan| scan.covers(&key.name)),
        };
        if is_of_other_storage || is_other { Err(Contradiction(key.clone())) } else { Ok(()) }
    }

    /// Adds a read that was checked.
    fn insert(&mut self, name: String, seen: Seen) {
        self.incarnation = seen.version.incarnation;
        self.seen.insert(name, seen);
    }
}

#[cfg(test)]
mod tests {
    use crate::object::{CALL_MARK, Version};

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(1, name)
    }

    fn seen(number: u64) -> Seen {
        let version = Version { incarnation: Incarnation(1), number };
        Seen { version, value: (number > 0).then_some(Value::Counter(number as i64)) }
    }

    fn span(prefix: &str, after: &str, limit: u32) -> Span {
        Span { prefix: prefix.into(), after: after.into(), limit }
    }

    fn rows(rows: &[(&str, u64)]) -> Vec<(String, Seen)> {
        rows.iter().map(|(name, number)| ((*name).to_owned(), seen(*number))).collect()
    }

    #[test]
    fn each_object_has_one_version() {
        let mut snapshot = Snapshot::default();
        assert_eq!(snapshot.known(&key("x")), None);
        assert_eq!(snapshot.note_get(&key("x"), seen(3)), Ok(()));
        assert_eq!(snapshot.known(&key("x")), Some(Some(Value::Counter(3))));
        assert_eq!(snapshot.note_get(&key("x"), seen(3)), Ok(()));
        assert_eq!(snapshot.note_get(&key("x"), seen(4)), Err(Contradiction(key("x"))));
        assert_eq!(snapshot.note_scan(1, span("", "", 9), rows(&[("x", 5)])), Err(Contradiction(key("x"))));
        assert_eq!(snapshot.note_scan(1, span("", "", 9), rows(&[("y", 5)])), Err(Contradiction(key("x"))));
        let other = Seen { version: Version { incarnation: Incarnation(2), number: 9 }, value: None };
        assert_eq!(snapshot.note_get(&key("y"), other), Err(Contradiction(key("y"))));
    }

    #[test]
    fn span_tells_of_what_is_not_there_as_far_as_it_goes() {
        let mut snapshot = Snapshot::default();
        let page = span("l/", "", 2);
        assert_eq!(snapshot.note_scan(1, page.clone(), rows(&[("l/b", 1), ("l/d", 2)])), Ok(()));
        assert_eq!(snapshot.known(&key("l/b")), Some(Some(Value::Counter(1))));
        assert_eq!(snapshot.known(&key("l/c")), Some(None));
        assert_eq!(snapshot.known(&key("l/e")), None, "there may be more");
        assert_eq!(snapshot.known(&key("m")), None);
        assert_eq!(snapshot.scanned(1, &page).expect("known").len(), 2);
        assert_eq!(snapshot.scanned(1, &span("l/", "", 3)), None);
        let contradiction = snapshot.note_scan(1, span("l/", "", 9), rows(&[("l/b", 1), ("l/c", 3), ("l/d", 2)]));
        assert_eq!(contradiction, Err(Contradiction(key("l/c"))));
        assert_eq!(snapshot.note_scan(1, span("l/", "l/d", 2), Vec::new()), Ok(()));
        assert_eq!(snapshot.known(&key("l/e")), Some(None));
    }

    #[test]
    fn span_tells_nothing_of_calls() {
        let call = key(&format!("{CALL_MARK}f"));
        let mut snapshot = Snapshot::default();
        snapshot.note_scan(1, span("", "", 9), rows(&[("x", 5)])).expect("new");
        assert_eq!(snapshot.known(&call), None);
        assert_eq!(snapshot.note_get(&call, seen(3)), Ok(()));
        assert_eq!(snapshot.note_scan(1, span("", "", 8), rows(&[("x", 5)])), Ok(()));
        assert_eq!(snapshot.to_homes()[&1].part.reads, [(call.name, 3)]);
    }

    #[test]
    fn what_is_validated_names_each_version_once() {
        let mut snapshot = Snapshot::default();
        snapshot.note_get(&key("a"), seen(0)).expect("new");
        snapshot.note_get(&key("l/b"), seen(1)).expect("new");
        snapshot.note_scan(1, span("l/", "", 9), rows(&[("l/b", 1), ("l/d", 2)])).expect("as before");
        assert_eq!(snapshot.operations(), 5);
        let homes = snapshot.to_homes();
        let home = &homes[&1];
        assert_eq!(home.incarnation, Incarnation(1));
        assert_eq!(home.part.reads, [("a".to_owned(), 0)]);
        assert_eq!(home.part.scans, [(span("l/", "", 9), vec![1, 2])]);
    }
}
