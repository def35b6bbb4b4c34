//! What can be wrong with a history, and how it is told to people.

use std::fmt;

use super::graph::{Class, Edge};
use super::object::{Object, Shape};
use super::record::{History, Op, Transaction};

/// Kinds of anomalies, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// A transaction's reads contradict its own earlier reads or writes.
    Internal,
    /// A value was read that nobody wrote.
    Garbage,
    /// A list or a set was read with the same element twice.
    Duplicate,
    /// G1a: a write of an aborted transaction was read.
    AbortedRead,
    /// G1b: a write was read that its transaction went on to overwrite or extend.
    IntermediateRead,
    /// Two reads of a list, neither a prefix of the other; or a list that has one transaction's elements out of order.
    IncompatibleOrder,
    /// A cycle of ww edges: a write cycle.
    G0,
    /// A cycle of ww and wr edges: information flows in a circle.
    G1c,
    /// Two transactions read the same version and both changed it.
    LostUpdate,
    /// A cycle with exactly one rw edge: read skew, or a stale read if it needs real time.
    GSingle,
    /// A cycle with several rw edges: write skew, long fork.
    G2,
    /// A cycle with an rw edge from a scan or a count under a prefix.
    Phantom,
    /// A count or a sum that no choice of the effects that were possible at its time can give.
    Bounds,
}

impl Kind {
    /// Its name, as in the literature where there is one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::Garbage => "garbage-read",
            Self::Duplicate => "duplicate-elements",
            Self::AbortedRead => "G1a",
            Self::IntermediateRead => "G1b",
            Self::IncompatibleOrder => "incompatible-order",
            Self::G0 => "G0",
            Self::G1c => "G1c",
            Self::LostUpdate => "lost-update",
            Self::GSingle => "G-single",
            Self::G2 => "G2",
            Self::Phantom => "phantom",
            Self::Bounds => "bounds",
        }
    }
}

/// Something that no strictly serializable system can show. Its `Display` form is a few lines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anomaly {
    /// Which kind.
    pub kind: Kind,
    /// True if it is one only because of real time: the same transactions, all concurrent, would be serializable as far
    /// as this anomaly goes.
    pub realtime: bool,
    /// Labels of the transactions that are part of it; of a cycle, in its order.
    pub labels: Vec<u64>,
    /// What was seen, one sentence a line; of a cycle, one line an edge.
    pub lines: Vec<String>,
}

impl Anomaly {
    /// An anomaly of transactions, by their places in the history, at one object. Says first what each did there.
    pub(super) fn at(history: &History, kind: Kind, object: Object, txns: &[u32], what: String) -> Self {
        let transaction = |txn: &u32| &history.transactions[*txn as usize];
        let did = |txn: &u32| deeds(history, *txn, object);
        let all: Vec<String> = txns.iter().map(did).collect();
        let lines = vec![format!("{}: {}", title(history, object), all.join("; ")), what];
        Self { kind, realtime: false, labels: txns.iter().map(|txn| transaction(txn).label).collect(), lines }
    }

    /// An anomaly that is a cycle of these edges.
    pub(super) fn of_cycle(history: &History, kind: Kind, realtime: bool, steps: &[Edge]) -> Self {
        let labels = steps.iter().map(|step| history.transactions[step.from as usize].label).collect();
        let lines = steps.iter().map(|step| {
            let (from, to) = (&history.transactions[step.from as usize], &history.transactions[step.to as usize]);
            let before = format!("T{} before T{}", from.label, to.label);
            if step.class == Class::RealTime {
                let completed = from.completed.unwrap_or(u64::MAX);
                return format!("{before} (real time): completed at {completed}, invoked at {}", to.invoked);
            }
            let (edge, by_time) = match step.class {
                Class::Ww => ("ww", ""),
                Class::Wr => ("wr", ""),
                Class::WwInTime => ("ww", ", by the times of all that used the values"),
                Class::RwInTime => ("rw", ", by the times of all that used the values"),
                _ => ("rw", ""),
            };
            let (one, other) = (deeds(history, step.from, step.object), deeds(history, step.to, step.object));
            format!("{before} ({edge}, {}{by_time}): {one}; {other}", title(history, step.object))
        });
        Self { kind, realtime, labels, lines: lines.collect() }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.name(), if self.realtime { "-realtime" } else { "" })?;
        self.lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl std::error::Error for Anomaly {}

/// Keeps the worst of what is found: what does not need real time before what does, then by kind, then the first.
#[derive(Default)]
pub(super) struct Worst(Option<Anomaly>);

impl Worst {
    /// Keeps what was found, if nothing worse was.
    pub(super) fn note(&mut self, found: Anomaly) {
        let rank = |anomaly: &Anomaly| (anomaly.realtime, anomaly.kind);
        if self.0.as_ref().is_none_or(|worst| rank(&found) < rank(worst)) {
            self.0 = Some(found);
        }
    }

    /// The worst, if anything was found.
    pub(super) fn verdict(self) -> Result<(), Anomaly> {
        self.0.map_or(Ok(()), Err)
    }
}

/// What an object is called.
fn title(history: &History, object: Object) -> String {
    let shape = match object.shape() {
        Shape::List => "list",
        Shape::Register => "register",
        Shape::Set => "prefix",
        Shape::Counter => "counter",
        Shape::Home => "home",
    };
    format!("{shape} {}", history.name(object.key()))
}

/// What a transaction did with an object: `T3 [1 2], append 3`.
fn deeds(history: &History, txn: u32, object: Object) -> String {
    let Transaction { label, ops, .. } = &history.transactions[txn as usize];
    let mut deeds: Vec<String> = ops.iter().filter(|op| op.object() == object).map(deed).collect();
    if deeds.len() > 6 {
        let left_out = format!("({} more)", deeds.len() - 6);
        deeds.splice(3..deeds.len() - 3, [left_out]);
    }
    format!("T{label} {}", deeds.join(", "))
}

/// What one op did.
fn deed(op: &Op) -> String {
    match op {
        Op::Append { element, .. } => format!("append {element}"),
        Op::List { elements, .. } => format!("read [{}]", ends(elements)),
        Op::Write { value, .. } => format!("write {value}"),
        Op::Delete { .. } => "delete".to_owned(),
        Op::Read { value: Some(value), .. } => format!("read {value}"),
        Op::Read { value: None, .. } => "read nothing".to_owned(),
        Op::Insert { element, .. } => format!("insert {element}"),
        Op::Remove { element, .. } => format!("take out {element}"),
        Op::Members { elements, .. } => format!("scan {{{}}}", ends(elements)),
        Op::Page { from, to, elements, .. } => format!("scan {from} to {to} {{{}}}", ends(elements)),
        Op::Count { count, .. } => format!("count {count}"),
        Op::Add { delta, .. } => format!("add {delta}"),
        Op::Sum { value, .. } => format!("sum {value}"),
        Op::Since { sum, .. } => format!("sum {sum} since it was written"),
        Op::Incarnation { number, .. } => format!("saw incarnation {number}"),
    }
}

/// Elements, or the ends of many.
fn ends(elements: &[u64]) -> String {
    let join = |part: &[u64]| part.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    match elements.len() {
        0..=12 => join(elements),
        all => format!("{} ..{} more.. {}", join(&elements[..3]), all - 9, join(&elements[all - 6..])),
    }
}
