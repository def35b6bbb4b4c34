//! Running a program again after others were in its way: the next run asks the homes of everything that the last one
//! read and wanted to write for its turn ([`crate::api::Claim`]).

use std::collections::BTreeMap;

use super::Draft;
use crate::object::{Change, ObjectKey, Span, is_call};

/// The number of times that others were in the way of a program that only reads, from which on it keeps its age, and so
/// goes before others in the end. Until then each run is as old as itself: a program that has read goes before one that
/// reads later.
const READERS_AGE: u32 = 3;
/// The same number for a program that writes. From then on it bars others, too.
const WRITERS_AGE: u32 = 5;
/// The number of times from which on a program that only reads bars others. (Its site bars them earlier where a span is
/// contended.)
const READERS_BAR: u32 = 2;
/// The most objects and spans from which a program bars others: with more, too many programs would be held up for one.
const BARRED: usize = 256;

/// The reads and the wanted writes of a run. Calls of memoized functions are among them only if the run computed some
/// again because they depend on what it writes: the next run then reads all that they need at once, and need not be
/// told by each home in turn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// The objects that it read by name.
    pub gets: Vec<ObjectKey>,
    /// The spans that it read, with their regions.
    pub scans: Vec<(u16, Span)>,
    /// The objects that it wanted to write and that others must not read meanwhile. Adds are not among them: they do
    /// not exclude each other.
    pub writes: Vec<ObjectKey>,
    /// By home, the calls that depend on what it writes there.
    pub told: BTreeMap<u16, Vec<ObjectKey>>,
    /// The objects that the program itself changes, if `told` is not empty: a run that changes others is told again.
    pub changes: Vec<ObjectKey>,
}

impl Footprint {
    /// The footprint of a run that has ended.
    pub fn of(draft: &Draft) -> Self {
        let (gets, scans) = draft.snapshot.asked(draft.is_treating());
        let writes = draft.buffer.changes().filter(|(_, change)| !matches!(change, Change::Add(_)));
        let writes = writes.map(|(key, _)| key.clone()).filter(|key| !is_call(&key.name)).collect();
        let told = draft.told();
        let changes = if told.is_empty() { Vec::new() } else { changes_of(draft) };
        Self { gets, scans, writes, told, changes }
    }

    /// The calls, by home, that homes will name to a run that changes the same objects as this one. Empty if it changes
    /// others.
    pub fn foretold(&self, draft: &Draft) -> BTreeMap<u16, Vec<ObjectKey>> {
        if changes_of(draft) == self.changes { self.told.clone() } else { BTreeMap::new() }
    }

    /// True if there is nothing to wait for at any home: it only adds.
    pub fn is_empty(&self) -> bool {
        self.gets.is_empty() && self.scans.is_empty() && self.writes.is_empty()
    }

    /// True if the next run is as old as the one before it, after others were in the program's way `contended` times.
    pub fn keeps_age(&self, contended: u32) -> bool {
        contended >= if self.writes.is_empty() { READERS_AGE } else { WRITERS_AGE }
    }

    /// True if the next run bars younger programs, after others were in the program's way `contended` times.
    pub fn bars(&self, contended: u32) -> bool {
        let items = self.gets.len() + self.scans.len() + self.writes.len();
        items <= BARRED && contended >= if self.writes.is_empty() { READERS_BAR } else { WRITERS_AGE }
    }
}

/// The objects that a program changes.
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
