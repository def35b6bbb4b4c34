//! Running a program again that others were in the way of: what the run before has read and wanted to write, and how it asks the
//! homes of that for its turn ([`crate::api::Claim`]).

use std::collections::BTreeMap;

use super::Draft;
use crate::object::{Change, ObjectKey, Span, is_call};

/// A program keeps its age, and so goes before others in the end, when they were in its way so often: one that only reads, and one
/// that writes. Until then each run of it is as old as itself: who has read goes before who reads later.
const READERS_AGE: u32 = 3;
/// See [`READERS_AGE`]. From then on it bars others, too.
const WRITERS_AGE: u32 = 5;
/// A program that only reads bars others when they were in its way so often. (Its site bars them earlier where a span is
/// contended.)
const READERS_BAR: u32 = 2;
/// A program bars others from no more objects and spans: too many would be held up for one.
const BARRED: usize = 256;

/// What a run read and wanted to write. Of calls of memoized functions only those of a run that computed some anew, because they
/// depend on what it writes: the next run reads all that at once, too, and need not be told by each home in turn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// What it read by name.
    pub gets: Vec<ObjectKey>,
    /// Regions with the spans of which it read what they hold.
    pub scans: Vec<(u16, Span)>,
    /// What it wanted to write, and others must not read meanwhile. Who adds excludes nobody who adds.
    pub writes: Vec<ObjectKey>,
    /// By home, the calls that depend on what it writes there.
    pub told: BTreeMap<u16, Vec<ObjectKey>>,
    /// If there are any, what the program itself changes: they depend on that, and who changes something else is told anew.
    pub changes: Vec<ObjectKey>,
}

impl Footprint {
    /// Of a run that has ended.
    pub fn of(draft: &Draft) -> Self {
        let (gets, scans) = draft.snapshot.asked(draft.is_treating());
        let writes = draft.buffer.changes().filter(|(_, change)| !matches!(change, Change::Add(_)));
        let writes = writes.map(|(key, _)| key.clone()).filter(|key| !is_call(&key.name)).collect();
        let told = draft.told();
        let changes = if told.is_empty() { Vec::new() } else { changes_of(draft) };
        Self { gets, scans, writes, told, changes }
    }

    /// What homes will say of a run, if it changes what this one did: by home, the calls that depend on it.
    pub fn foretold(&self, draft: &Draft) -> BTreeMap<u16, Vec<ObjectKey>> {
        if changes_of(draft) == self.changes { self.told.clone() } else { BTreeMap::new() }
    }

    /// Whether there is nothing to wait for at any home: it only adds.
    pub fn is_empty(&self) -> bool {
        self.gets.is_empty() && self.scans.is_empty() && self.writes.is_empty()
    }

    /// Whether the next run is as old as the one before it, if others were in the program's way so often.
    pub fn keeps_age(&self, contended: u32) -> bool {
        contended >= if self.writes.is_empty() { READERS_AGE } else { WRITERS_AGE }
    }

    /// Whether the next run bars others that are younger.
    pub fn bars(&self, contended: u32) -> bool {
        let items = self.gets.len() + self.scans.len() + self.writes.len();
        items <= BARRED && contended >= if self.writes.is_empty() { READERS_BAR } else { WRITERS_AGE }
    }
}

fn changes_of(draft: &Draft) -> Vec<ObjectKey> {
    draft.buffer.changes().map(|(key, _)| key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::buffer::ROOT;
    use crate::object::{Seen, Value};

    #[test]
    fn footprint_has_what_was_read_and_what_others_must_not_read() {
        let key = |name: &str| ObjectKey::new(1, name);
        let span = Span { prefix: "s".to_owned(), after: String::new(), limit: 9 };
        let mut draft = Draft::new();
        draft.snapshot.note_get(&key("x"), Seen::default()).expect("the first");
        draft.snapshot.note_scan(1, span.clone(), Vec::new()).expect("the first");
        for (name, change) in [("y", Change::Put(Value::Counter(1))), ("z", Change::Delete), ("n", Change::Add(1))] {
            draft.buffer.write(ROOT, key(name), change).expect("fits");
        }
        let footprint = Footprint::of(&draft);
        let writes = vec![key("y"), key("z")];
        let expected = Footprint { gets: vec![key("x")], scans: vec![(1, span)], writes, ..Footprint::default() };
        assert_eq!(footprint, expected);
        // A call that it used is not read ahead, unless it came to depend on what is written.
        let call = key("\u{1}f(1)");
        draft.snapshot.note_get(&call, Seen::default()).expect("the first");
        assert_eq!(Footprint::of(&draft), expected);
        draft.demand(1, std::slice::from_ref(&call));
        let treating = Footprint::of(&draft);
        let told: BTreeMap<u16, Vec<ObjectKey>> = [(1, vec![call.clone()])].into();
        assert_eq!((&treating.gets, &treating.told), (&vec![call, key("x")], &told));
        // The next run is treated so if it changes the same.
        let mut next = Draft::new();
        for (name, change) in [("y", Change::Delete), ("z", Change::Delete)] {
            next.buffer.write(ROOT, key(name), change).expect("fits");
        }
        assert_eq!(treating.foretold(&next), BTreeMap::new());
        next.buffer.write(ROOT, key("n"), Change::Add(2)).expect("fits");
        assert_eq!(treating.foretold(&next), told);
        let reader = Footprint { writes: Vec::new(), ..expected };
        assert!(reader.bars(READERS_BAR) && !reader.keeps_age(READERS_BAR) && reader.keeps_age(READERS_AGE));
        let large = Footprint { gets: vec![key("x"); BARRED + 1], ..reader };
        assert!(large.keeps_age(READERS_AGE) && !large.bars(WRITERS_AGE));
        assert!(!footprint.bars(READERS_AGE) && !footprint.keeps_age(READERS_AGE));
        assert!(footprint.bars(WRITERS_AGE) && footprint.keeps_age(WRITERS_AGE));
    }
}
