//! What each transaction found and did, object by object; which transactions are known to have committed; and what is
//! wrong with a read by itself.
//!
//! Transactions that committed are looked at first. Whoever wrote what they read has committed too, if its fate is
//! unknown, and is looked at in turn. Aborted ones, and unknown ones that nobody saw, are never judged.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::anomaly::{Anomaly, Kind, Worst};
use super::object::{Object, Shape};
use super::record::{Fate, History, Op, Transaction};

/// What a clean verdict rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Transactions that are known to have committed; all their reads were judged.
    pub nodes: usize,
    /// The number of them that are of unknown fate, and were seen.
    pub revealed: usize,
    /// Reads of the nodes.
    pub reads: usize,
    /// Edges between them but for real time; one may stand for many.
    pub edges: usize,
}

/// The base that a transaction found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Base<'a> {
    List(&'a [u64]),
    Register(Option<u64>),
    /// What a set had between two elements, both included; in order.
    Members {
        from: u64,
        to: u64,
        elements: Vec<u64>,
    },
    /// Of a set, only its size.
    Size(i128),
    Sum(i128),
    /// What was added to a counter since the register with its name was written.
    Since(i128),
    /// The incarnation of a home.
    Incarnation(u64),
}

/// In the values of registers: what a deletion writes, with the number of its transaction. No client's value has it.
const GONE: u64 = 1 << 63;

/// What a read finds of a register that was written like this.
fn shown(value: u64) -> Option<u64> {
    (value & GONE == 0).then_some(value)
}

/// What one transaction did with one object.
#[derive(Debug)]
pub(super) struct Touch<'a> {
    /// The transaction.
    pub(super) txn: u32,
    /// The object.
    pub(super) object: Object,
    /// What was there when it came, as far as it has read that.
    pub(super) base: Option<Base<'a>>,
    /// Elements or values in the order of the program; nothing for counters.
    pub(super) wrote: Vec<u64>,
    /// Elements that it took out of a set.
    pub(super) removed: Vec<u64>,
    /// By how much it changed the size of a set or the value of a counter.
    pub(super) net: i128,
}

/// Who wrote a value.
#[derive(Debug)]
struct Writer {
    /// The transaction.
    txn: u32,
    /// The last look at a base that had it, to notice the same element twice.
    look: u32,
}

/// A change of a set's size or a counter by a transaction that may have committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// The set or counter.
    pub(super) object: Object,
    /// The transaction.
    pub(super) txn: u32,
    /// By how much it changed in all.
    pub(super) net: i128,
    /// All that was taken away.
    pub(super) less: i128,
    /// All that was added.
    pub(super) more: i128,
}

/// An element that was taken out of a set by a transaction that may have committed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Removal {
    /// The set.
    pub(super) object: Object,
    /// The element.
    pub(super) element: u64,
    /// Who may have taken it out.
    pub(super) txn: u32,
}

/// All that the edges are inferred from.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    /// What is judged.
    pub(super) history: &'a History,
    /// What nodes did with objects, by object and transaction.
    touches: Vec<Touch<'a>>,
    /// Changes of sizes and sums, by object.
    changes: Vec<Change>,
    /// Elements that were taken out, by object and element.
    removals: Vec<Removal>,
    /// Registers that somebody may have written or deleted.
    written: HashSet<Object>,
    /// Who wrote each value or element.
    writers: HashMap<(Object, u64), Writer>,
    /// The longest base of each list that was looked at, and the look that its elements have.
    longest: HashMap<Object, (&'a [u64], u32)>,
    /// True if each transaction is known to have committed.
    nodes: Vec<bool>,
}

/// Looks at every transaction that counts.
pub(super) fn gather(history: &History) -> Result<Facts<'_>, Anomaly> {
    // Who committed counts, and whoever was seen to have: an unknown transaction whose write was read has taken effect.
    let nodes: Vec<bool> = history.transactions.iter().map(|txn| txn.fate == Fate::Committed).collect();
    let mut queue: Vec<u32> = (0..nodes.len() as u32).filter(|txn| nodes[*txn as usize]).collect();
    let mut facts = Facts {
        history,
        touches: Vec::new(),
        changes: Vec::new(),
        removals: Vec::new(),
        written: HashSet::new(),
        writers: HashMap::new(),
        longest: HashMap::new(),
        nodes,
    };
    facts.note_writes();

    let mut worst = Worst::default();
    let mut next = 0;
    while let Some(&txn) = queue.get(next) {
        next += 1;
        for ops in by_object(&history.transactions[txn as usize]).chunk_by(|one, other| one.0 == other.0) {
            let touch = match fold(txn, ops) {
                Ok(touch) => touch,
                Err((kind, what)) => {
                    worst.note(Anomaly::at(history, kind, ops[0].0, &[txn], what));
                    continue;
                }
            };
            let look = facts.touches.len() as u32;
            facts.judge(&touch, look, &mut queue, &mut worst);
            facts.touches.push(touch);
        }
    }

    // What needs all touches comes last, in the order of objects.
    facts.touches.sort_by_key(|touch| (touch.object, touch.txn));
    facts.tell_deletions_apart();
    facts.judge_ends(&mut worst);
    worst.verdict().map(|()| facts)
}

impl<'a> Facts<'a> {
    /// The touches of each object that has any.
    pub(super) fn objects(&self) -> impl Iterator<Item = &[Touch<'a>]> {
        self.touches.chunk_by(|one, other| one.object == other.object)
    }

    /// What a node did with an object.
    pub(super) fn touch(&self, object: Object, txn: u32) -> Option<&Touch<'a>> {
        let at = self.touches.binary_search_by_key(&(object, txn), |touch| (touch.object, touch.txn));
        at.ok().map(|at| &self.touches[at])
    }

    /// The changes that transactions of any fate but aborted made, or would have made.
    pub(super) fn changes(&self, object: Object) -> &[Change] {
        let start = self.changes.partition_point(|change| change.object < object);
        let end = self.changes.partition_point(|change| change.object <= object);
        &self.changes[start..end]
    }

    /// Who may have taken elements out of a set, by element.
    pub(super) fn removals(&self, object: Object) -> &[Removal] {
        let start = self.removals.partition_point(|removal| removal.object < object);
        let end = self.removals.partition_point(|removal| removal.object <= object);
        &self.removals[start..end]
    }

    /// Returns true if anybody may have written or deleted a register.
    pub(super) fn is_written(&self, register: Object) -> bool {
        self.written.contains(&register)
    }

    /// Returns true if a transaction is known to have committed.
    pub(super) fn is_node(&self, txn: u32) -> bool {
        self.nodes[txn as usize]
    }

    /// The node that wrote what a node read.
    pub(super) fn writer(&self, object: Object, value: u64) -> u32 {
        self.writers.get(&(object, value)).expect("a value without a writer is garbage").txn
    }

    /// When a transaction began.
    pub(super) fn invoked(&self, txn: u32) -> u64 {
        self.history.transactions[txn as usize].invoked
    }

    /// When a transaction was certainly over; the end of time if nobody knows.
    pub(super) fn completed(&self, txn: u32) -> u64 {
        let txn = &self.history.transactions[txn as usize];
        txn.completed.filter(|_| txn.fate == Fate::Committed).unwrap_or(u64::MAX)
    }

    /// What was looked at.
    pub(super) fn summary(&self, edges: usize) -> Summary {
        let nodes = self.nodes.iter().filter(|node| **node).count();
        let committed = self.history.transactions.iter().filter(|txn| txn.fate == Fate::Committed).count();
        let reads = self.touches.iter().filter(|touch| touch.base.is_some()).count();
        Summary { nodes, revealed: nodes - committed, reads, edges }
    }

    /// Notes what every transaction wrote or changed, or would have.
    fn note_writes(&mut self) {
        for (txn, transaction) in self.history.transactions.iter().enumerate() {
            let txn = txn as u32;
            for op in &transaction.ops {
                if let Some(value) = written(op, txn) {
                    self.note_writer(op.object(), value, txn);
                }
                if transaction.fate == Fate::Aborted {
                    continue;
                }

                if matches!(op, Op::Write { .. } | Op::Delete { .. }) {
                    self.written.insert(op.object());
                }

                let net = gain(op);
                self.changes.push(Change { object: op.object(), txn, net, less: net.min(0), more: net.max(0) });
                if let Op::Remove { element, .. } = *op {
                    self.removals.push(Removal { object: op.object(), element, txn });
                }
            }
        }

        self.removals.sort_unstable();
        // A transaction takes effect as a whole.
        self.changes.sort_by_key(|change| (change.object, change.txn));
        self.changes.dedup_by(|other, change| {
            let same = (other.object, other.txn) == (change.object, change.txn);
            if same {
                change.net += other.net;
                change.less += other.less;
                change.more += other.more;
            }
            same
        });
        self.changes.retain(|change| (change.less, change.more) != (0, 0));
    }

    /// A value that was tried again after its transaction aborted is the later one's.
    fn note_writer(&mut self, object: Object, value: u64, txn: u32) {
        let aborted = |txn: u32| self.history.transactions[txn as usize].fate == Fate::Aborted;
        let writer = Writer { txn, look: u32::MAX };
        match self.writers.entry((object, value)) {
            Entry::Vacant(entry) => {
                entry.insert(writer);
            }
            Entry::Occupied(mut entry) if aborted(entry.get().txn) => {
                entry.insert(writer);
            }
            // It deletes twice.
            Entry::Occupied(_) if value & GONE != 0 && object.shape() == Shape::Register => {}
            Entry::Occupied(entry) => {
                let label = |txn: u32| self.history.transactions[txn as usize].label;
                let (one, other, name) = (label(entry.get().txn), label(txn), self.history.name(object.key()));
                assert!(aborted(txn), "T{one} and T{other} both write {value} to {name}: values must be unique");
            }
        }
    }

    /// Of registers that are deleted: whose deletion a read that found nothing has met, or that it came before all writers.
    /// Where time leaves more than one of these possible, nothing is concluded from it.
    fn tell_deletions_apart(&mut self) {
        let mut deleters: HashMap<Object, Vec<u32>> = HashMap::new();
        for (txn, transaction) in self.history.transactions.iter().enumerate() {
            for op in transaction.ops.iter().filter(|_| transaction.fate != Fate::Aborted) {
                let Op::Delete { .. } = op else { continue };
                let is_change = |other: &&Op| {
                    other.object() == op.object() && matches!(other, Op::Write { .. } | Op::Delete { .. })
                };
                if transaction.ops.iter().rfind(is_change).is_some_and(|last| std::ptr::eq(last, op)) {
                    deleters.entry(op.object()).or_default().push(txn as u32);
                }
            }
        }

        let mut found: Vec<(usize, Option<Base<'a>>)> = Vec::new();
        let mut start = 0;
        for touches in self.objects() {
            let first = start;
            start += touches.len();

            let Some(deleters) = deleters.get(&touches[0].object) else { continue };
            // When the first of those is over that are invoked at some time or later.
            let writers = touches.iter().filter(|touch| !touch.wrote.is_empty());
            let mut over: Vec<(u64, u64)> =
                writers.map(|touch| (self.invoked(touch.txn), self.completed(touch.txn))).collect();
            over.sort_unstable();

            // From the back, so that each time has the least of all that are invoked later.
            for at in (1..over.len()).rev() {
                over[at - 1].1 = over[at - 1].1.min(over[at].1);
            }
            let overwritten = |after: u64| {
                let at = over.partition_point(|(invoked, _)| *invoked <= after);
                over.get(at).map_or(u64::MAX, |(_, completed)| *completed)
            };
            let first_write = over.first().map_or(u64::MAX, |(_, completed)| *completed);

            for (at, touch) in touches.iter().enumerate() {
                if touch.base != Some(Base::Register(None)) {
                    continue;
                }

                let (invoked, completed) = (self.invoked(touch.txn), self.completed(touch.txn));
                let may_be = |deleter: &&u32| {
                    let deleter = **deleter;
                    let is_later = self.invoked(deleter) > completed;
                    deleter != touch.txn && !is_later && overwritten(self.completed(deleter)) >= invoked
                };

                let mut possible = deleters.iter().filter(may_be);
                let base = match (possible.next(), possible.next(), first_write < invoked) {
                    // If neither is possible, the cycle with who wrote it first shows that.
                    (None, ..) => Some(Base::Register(None)),
                    (Some(deleter), None, true) if self.is_node(*deleter) => {
                        Some(Base::Register(Some(GONE | u64::from(*deleter))))
                    }
                    _ => None,
                };

                found.push((first + at, base));
            }
        }

        for (at, base) in found {
            self.touches[at].base = base;
        }
    }

    /// A base ends where a transaction ends: its last value is the last that its writer wrote.
    fn judge_ends(&self, worst: &mut Worst) {
        for touch in &self.touches {
            let (Some(Base::List([.., end])) | Some(Base::Register(Some(end)))) = &touch.base else { continue };
            let writer =
                self.writers.get(&(touch.object, *end)).and_then(|writer| self.touch(touch.object, writer.txn));
            if let Some(writer) = writer.filter(|writer| writer.wrote.last() != Some(end)) {
                let what = format!("{end} is not the last that its writer wrote");
                let txns = [touch.txn, writer.txn];
                worst.note(Anomaly::at(self.history, Kind::IntermediateRead, touch.object, &txns, what));
            }
        }
    }

    /// Looks at every value of the base that a node found, and at who wrote it.
    fn judge(&mut self, touch: &Touch<'a>, look: u32, queue: &mut Vec<u32>, worst: &mut Worst) {
        let (history, object) = (self.history, touch.object);
        let met = touch.met();
        let (values, mut look): (&[u64], u32) = match &touch.base {
            // It was there, or it could not be taken out.
            _ if !touch.removed.is_empty() => (&met, look),
            Some(Base::List(elements)) => (elements, look),
            Some(Base::Members { elements, .. }) => (elements, look),
            Some(Base::Register(Some(value))) => (std::slice::from_ref(value), look),
            _ => return,
        };

        let mut blame = |kind: Kind, other: Option<u32>, what: String| {
            let txns: Vec<u32> = [Some(touch.txn), other].into_iter().flatten().collect();
            worst.note(Anomaly::at(history, kind, object, &txns, what));
        };

        if let Some(own) = touch.wrote.iter().find(|own| values.contains(own)) {
            return blame(Kind::Internal, None, format!("its own {own} was there before it wrote it"));
        }
        // Of a list that goes on from one that was looked at, only the rest is new. Long lists are read often.
        let mut known = 0;
        if let Some(Base::List(elements)) = touch.base {
            let longest = self.longest.entry(object).or_insert((&[], look));
            if longest.0.starts_with(elements) {
                return;
            }
            if elements.starts_with(longest.0) {
                (known, look) = (longest.0.len(), longest.1);
                longest.0 = elements;
            }
        }

        for value in &values[known..] {
            let Some(writer) = self.writers.get_mut(&(object, *value)) else {
                blame(Kind::Garbage, None, format!("nobody wrote {value}"));
                continue;
            };
            if std::mem::replace(&mut writer.look, look) == look {
                blame(Kind::Duplicate, None, format!("{value} is there twice"));
            }

            // A read reveals that its writer has committed, and then all that the writer did counts, too.
            match history.transactions[writer.txn as usize].fate {
                Fate::Aborted => blame(Kind::AbortedRead, Some(writer.txn), format!("the writer of {value} aborted")),
                Fate::Unknown if !self.nodes[writer.txn as usize] => {
                    self.nodes[writer.txn as usize] = true;
                    queue.push(writer.txn);
                }
                _ => {}
            }
        }
    }
}

/// A transaction's ops, those on the same object together, in the order of the program.
fn by_object(transaction: &Transaction) -> Vec<(Object, &Op)> {
    let mut ops: Vec<(Object, &Op)> = transaction.ops.iter().map(|op| (op.object(), op)).collect();
    ops.sort_by_key(|op| op.0);
    ops
}

/// The value by which an op's effect is known again.
fn written(op: &Op, txn: u32) -> Option<u64> {
    match *op {
        Op::Delete { .. } => Some(GONE | u64::from(txn)),
        Op::Append { element: value, .. } | Op::Write { value, .. } | Op::Insert { element: value, .. } => Some(value),
        _ => None,
    }
}

/// By how much an op changes the size of a set or the value of a counter.
fn gain(op: &Op) -> i128 {
    match *op {
        Op::Insert { .. } => 1,
        Op::Remove { .. } => -1,
        Op::Add { delta, .. } => delta.into(),
        _ => 0,
    }
}

/// Replays a transaction's ops on one object over a base that its first read gives away.
fn fold<'a>(txn: u32, ops: &[(Object, &'a Op)]) -> Result<Touch<'a>, (Kind, String)> {
    let mut touch = Touch { txn, object: ops[0].0, base: None, wrote: Vec::new(), removed: Vec::new(), net: 0 };
    for (_, op) in ops {
        touch.wrote.extend(written(op, txn));

        if let Op::Remove { element, .. } = op {
            if touch.removed.contains(element) || touch.wrote.contains(element) {
                return Err((Kind::Internal, format!("it takes {element} out, which it inserted or took out")));
            }
            touch.removed.push(*element);
        }

        touch.net += gain(op);
        let Some(base) = touch.base_seen(op)? else { continue };
        touch.base = match (touch.base.take(), base) {
            (None, base) => Some(base),
            // A scan says more than a count.
            (Some(Base::Size(size)), all @ Base::Members { .. })
            | (Some(all @ Base::Members { .. }), Base::Size(size))
                if all.fits_size(size) =>
            {
                Some(all)
            }
            (Some(before), base) if before == base => Some(base),
            // Two ways of reading one counter; the first is judged.
            (Some(before @ Base::Sum(_)), Base::Since(_)) | (Some(before @ Base::Since(_)), Base::Sum(_)) => {
                Some(before)
            }
            _ => return Err((Kind::Internal, "its reads do not agree with each other".to_owned())),
        };
    }
    Ok(touch)
}

impl Base<'_> {
    /// The size of a set of which all was read.
    pub(super) fn size(&self) -> Option<i128> {
        match self {
            Base::Members { from: 0, to: u64::MAX, elements } => Some(elements.len() as i128),
            Base::Size(size) => Some(*size),
            _ => None,
        }
    }

    /// Returns true if members that were read can be all, or a part, of so many.
    fn fits_size(&self, size: i128) -> bool {
        let Base::Members { elements, .. } = self else { return false };
        self.size().map_or(elements.len() as i128 <= size, |all| all == size)
    }
}

impl<'a> Touch<'a> {
    /// Elements that were there when it came: those that it read, and those that it took out.
    fn met(&self) -> Vec<u64> {
        let read = match &self.base {
            Some(Base::Members { elements, .. }) => &elements[..],
            _ => &[],
        };

        let unread = self.removed.iter().filter(|element| read.binary_search(element).is_err());
        read.iter().chain(unread).copied().collect()
    }

    /// The base that a read stands on: what it returned, less what the transaction wrote before it. None if the op says
    /// nothing of the base.
    fn base_seen(&self, op: &'a Op) -> Result<Option<Base<'a>>, (Kind, String)> {
        let own = || (Kind::Internal, "a read does not have what the transaction wrote before it".to_owned());
        Ok(Some(match op {
            Op::List { elements, .. } => Base::List(elements.strip_suffix(&self.wrote[..]).ok_or_else(own)?),
            Op::Read { value, .. } => match self.wrote.last() {
                Some(wrote) if shown(*wrote) == *value => return Ok(None),
                Some(_) => return Err(own()),
                None => Base::Register(*value),
            },
            Op::Members { elements, .. } => self.members_seen((0, u64::MAX), elements)?,
            Op::Page { from, to, elements, .. } => self.members_seen((*from, *to), elements)?,
            Op::Count { count, .. } => {
                let size = i128::from(*count) - self.net;
                if size < 0 {
                    return Err(own());
                }
                Base::Size(size)
            }
            Op::Sum { value, .. } => Base::Sum(i128::from(*value) - self.net),
            Op::Since { sum, .. } => Base::Since(i128::from(*sum) - self.net),
            Op::Incarnation { number, .. } => Base::Incarnation(*number),
            _ => return Ok(None),
        }))
    }

    /// The base of a read of all that a set has between two elements: without what the transaction inserted before, and with
    /// what it took out.
    fn members_seen(&self, (from, to): (u64, u64), elements: &[u64]) -> Result<Base<'a>, (Kind, String)> {
        let own = || (Kind::Internal, "a read does not have what the transaction wrote before it".to_owned());
        let mut all = elements.to_vec();
        all.sort_unstable();
        if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err((Kind::Duplicate, format!("{} is there twice", pair[0])));
        }
        let is_within = |element: &&u64| (from..=to).contains(*element);
        if let Some(outside) = all.iter().find(|element| !is_within(element)) {
            return Err((Kind::Internal, format!("{outside} is not within what was read")));
        }
        let mut wrote: Vec<u64> = self.wrote.iter().filter(is_within).copied().collect();
        wrote.sort_unstable();
        all.retain(|element| wrote.binary_search(element).is_err());
        let is_back = self.removed.iter().any(|element| all.binary_search(element).is_ok());
        if all.len() + wrote.len() != elements.len() || is_back {
            return Err(own());
        }
        all.extend(self.removed.iter().filter(is_within));
        all.sort_unstable();
        Ok(Base::Members { from, to, elements: all })
    }
}
