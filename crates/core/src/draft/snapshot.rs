//! What a transaction has read: one version of each object, and the spans that it looked through. These are what is
//! validated when it is committed.
//!
//! Reads of one transaction may come from different times. Where two of them contradict each other, the transaction cannot
//! be committed, and is ended at once ([`Contradiction`]); others that do not belong together are found when it is
//! committed.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::Incarnation;
use crate::object::{Home, ObjectKey, Part, Seen, Span, Value, is_call};

/// What was read now, and what was read before, cannot both be true: the object's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contradiction(pub ObjectKey);

/// See the module.
#[derive(Debug, Default)]
pub struct Snapshot {
    homes: BTreeMap<u16, AtHome>,
}

#[derive(Debug, Default)]
struct AtHome {
    incarnation: Incarnation,
    /// Everything that was seen, in spans too.
    seen: BTreeMap<String, Seen>,
    /// What was asked for by name.
    gets: BTreeSet<String>,
    scans: Vec<Scanned>,
}

/// A span that was looked through.
#[derive(Debug)]
struct Scanned {
    span: Span,
    names: Vec<String>,
    /// Where it ends, if there were as many rows as its limit.
    end: Option<String>,
}

impl Scanned {
    fn covers(&self, name: &str) -> bool {
        is_within(&self.span, self.end.as_deref(), name)
    }
}

/// Whether a name is in a span that was read up to `end`. Calls are in none.
pub fn is_within(span: &Span, end: Option<&str>, name: &str) -> bool {
    name.starts_with(&span.prefix) && !is_call(name) && name > span.after.as_str() && end.is_none_or(|end| name <= end)
}

/// Where rows of a span end: at the last one, if there may be more.
pub fn end_of<T>(span: &Span, rows: &[(String, T)]) -> Option<String> {
    let is_full = rows.len() >= span.limit as usize;
    rows.last().filter(|_| is_full).map(|(name, _)| name.clone())
}

impl Snapshot {
    /// What an object holds, if that is known: by itself, or because a span shows that nothing is there.
    pub fn known(&self, key: &ObjectKey) -> Option<Option<Value>> {
        let home = self.homes.get(&key.home)?;
        match home.seen.get(&key.name) {
            Some(seen) => Some(seen.value.clone()),
            None => home.scans.iter().any(|scan| scan.covers(&key.name)).then_some(None),
        }
    }

    /// What a span holds, if the very same was asked for before.
    pub fn scanned(&self, region: u16, span: &Span) -> Option<Vec<(String, Value)>> {
        let home = self.homes.get(&region)?;
        let scan = home.scans.iter().find(|scan| scan.span == *span)?;
        let row = |name: &String| home.seen.get(name).and_then(|seen| Some((name.clone(), seen.value.clone()?)));
        Some(scan.names.iter().filter_map(row).collect())
    }

    /// Notes what an object holds.
    pub fn note_get(&mut self, key: &ObjectKey, seen: Seen) -> Result<(), Contradiction> {
        let home = self.homes.entry(key.home).or_default();
        home.check(key, &seen)?;
        home.insert(key.name.clone(), seen);
        home.gets.insert(key.name.clone());
        Ok(())
    }

    /// Notes what a span holds.
    pub fn note_scan(&mut self, region: u16, span: Span, rows: Vec<(String, Seen)>) -> Result<(), Contradiction> {
        let home = self.homes.entry(region).or_default();
        let end = end_of(&span, &rows);
        let names: Vec<String> = rows.iter().map(|(name, _)| name.clone()).collect();
        let found: BTreeSet<&String> = names.iter().collect();
        let mut before = home.seen.iter().filter(|(name, seen)| seen.value.is_some() && !found.contains(name));
        if let Some((name, _)) = before.find(|(name, _)| is_within(&span, end.as_deref(), name)) {
            return Err(Contradiction(ObjectKey::new(region, name)));
        }
        // All or nothing: what is noted is what will be validated.
        for (name, seen) in &rows {
            home.check(&ObjectKey::new(region, name), seen)?;
        }
        rows.into_iter().for_each(|(name, seen)| home.insert(name, seen));
        home.scans.push(Scanned { span, names, end });
        Ok(())
    }

    /// What was asked for: names, calls aside or with them, and spans.
    pub fn asked(&self, with_calls: bool) -> (Vec<ObjectKey>, Vec<(u16, Span)>) {
        let gets = self.homes.iter().flat_map(|(region, home)| home.gets.iter().map(|name| (*region, name)));
        let gets = gets.filter(|(_, name)| with_calls || !is_call(name));
        let gets = gets.map(|(region, name)| ObjectKey::new(region, name));
        let scans = self.homes.iter().flat_map(|(region, home)| home.scans.iter().map(|scan| (*region, &scan.span)));
        (gets.collect(), scans.map(|(region, span)| (region, span.clone())).collect())
    }

    /// How many operations it counts as when it is committed.
    pub fn operations(&self) -> usize {
        let scans = |home: &AtHome| home.scans.iter().map(|scan| 1 + scan.names.len()).sum::<usize>();
        self.homes.values().map(|home| home.gets.len() + scans(home)).sum()
    }

    /// The version's number of what was read, or found not to be there.
    pub fn number(&self, key: &ObjectKey) -> u64 {
        let seen = self.homes.get(&key.home).and_then(|home| home.seen.get(&key.name));
        seen.map_or(0, |seen| seen.version.number)
    }

    /// The version numbers of what a span that was read holds.
    pub fn scan_of(&self, region: u16, span: &Span) -> (Span, Vec<u64>) {
        let home = self.homes.get(&region);
        let scan = home.and_then(|home| home.scans.iter().find(|scan| scan.span == *span));
        let number = |name: &String| self.number(&ObjectKey::new(region, name.clone()));
        (span.clone(), scan.iter().flat_map(|scan| &scan.names).map(number).collect())
    }

    /// The incarnation that what was read in a region is of.
    pub fn incarnation(&self, region: u16) -> Incarnation {
        self.homes.get(&region).map_or(Incarnation(0), |home| home.incarnation)
    }

    /// What is to be validated, by home.
    pub fn to_homes(&self) -> BTreeMap<u16, Home> {
        let home = |(&region, home): (&u16, &AtHome)| {
            let number = |name: &String| home.seen.get(name).map_or(0, |seen| seen.version.number);
            // What is in a span that was scanned is validated with it.
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
    fn check(&self, key: &ObjectKey, seen: &Seen) -> Result<(), Contradiction> {
        let is_of_other_storage = self.incarnation != Incarnation(0) && self.incarnation != seen.version.incarnation;
        let is_other = match self.seen.get(&key.name) {
            Some(before) => before.version != seen.version,
            None => seen.value.is_some() && self.scans.iter().any(|scan| scan.covers(&key.name)),
        };
        if is_of_other_storage || is_other { Err(Contradiction(key.clone())) } else { Ok(()) }
    }

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
