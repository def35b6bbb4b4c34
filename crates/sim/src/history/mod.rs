//! Judges histories of transactions from outside: is there an order of the transactions, true to real time, in which
//! one after another would have seen what they saw? That is strict serializability.
//!
//! The checker knows nothing of the system that it judges. It sees what clients asked, what they were told and when.
//! From values that can be recognised (every element is written once) it infers which transaction must come before
//! which, and looks for a cycle. The method is Elle's (Kingsbury and Alvaro, VLDB 2020), the names of anomalies are
//! Adya's (1999).
//!
//! # Glossary
//!
//! - **object**: what one key names: a list, a register, a set under a prefix, a counter, or a home. A key may name one of
//!   each; they have nothing to do with each other, but for [`Op::Since`]. Lists and sets are empty at first, registers absent,
//!   counters 0.
//! - **home**: where objects live. One that loses its storage begins a new *incarnation*, with no objects.
//! - **node**: a transaction that is known to have committed, because its client was told so, or because a node read
//!   what it wrote. The latter is how unknown transactions become nodes; their effects may come late, so they never
//!   *completed*.
//! - **version**: what an object is between two transactions that change it. **Base**: the version that a transaction
//!   found, told from its reads less its own writes.
//! - **ww, wr, rw**: the second transaction overwrites or extends what the first wrote; reads it; changes what the
//!   first read (an *anti-dependency*).
//! - **real-time edge**: the first transaction completed before the second was invoked.
//!
//! # How it works
//!
//! ```text
//!   History ──▶ facts ──▶ lists, registers, sets, tallies ──▶ graph ──▶ cycles ──▶ anomaly
//!               what each    edges that must hold in any       no cycle:  the worst kind,
//!               node found   valid order                       all is well   shortest, explained
//! ```
//!
//! | file | what it infers |
//! | --- | --- |
//! | `facts` | bases, writers of values, nodes; what is wrong with a single read |
//! | `lists` | the order of versions is that of the longest list read; what nobody read comes after it |
//! | `registers` | who reads a value and overwrites it comes right after its writer; time orders such *blocks* |
//! | `sets` | a scan comes after the inserters that it saw, before the others, and before or after who takes members out |
//! | `tallies` | counts and sums: bounds from real time, and order where a number can only grow |
//! | `homes` | who saw an incarnation comes before all who saw a later one |
//! | `graph` | nodes, edges, and trees that stand for many edges at once |
//! | `cycles`, `components` | whether there is a cycle, real time included; a short one of the worst kind |
//!
//! # What a verdict means
//!
//! **No false alarm.** Every edge holds in every valid order, so a cycle means that there is none. Writes of an unknown
//! transaction that nobody saw give no edge. `tests/brute.rs` compares with a search through all orders, for 48,000
//! histories of two to six transactions in each run, and once for two million: none that has an order is blamed.
//!
//! **Some violations are missed.** Serializability is NP-complete to decide (Papadimitriou 1979). What only lists,
//! scans, and registers that are read before they are written have to say is decided. Missed is what follows only from:
//!
//! - the order of two blind writes of a register, if neither its read-modify-writes nor the times of all who used the
//!   two values settle it (of the bad histories in that comparison, 1 in 2,000 of those of registers);
//! - which of several deletions a read met that found nothing, or whether it came before all writers, if times leave more
//!   than one of these; and whether a scan that lacks a member came before its inserter or after who took it out, in the same way;
//! - the choice of blind inserts and removals that a count includes, beyond its bounds and the other counts (with what a scan
//!   lacks, 1 in 20);
//! - the choice of additions that a sum includes, in the same way (1 in 12). Where a counter both grows and shrinks,
//!   sums are not ordered, and nobody asks whether any choice within the bounds gives just that sum;
//! - the order within one client. A transaction that completes in the microsecond in which another is invoked is
//!   concurrent with it.
//!
//! **The kind** is the worst that has a cycle of at most four transactions; if none has, that of the shortest cycle. A
//! search that takes too long stops with the best it has, so a G-single may be called G2. What is wrong with single
//! reads is reported first, since it spoils what is inferred from them.
//!
//! Cost: linear in the ops and in the elements that reads returned, times a logarithm; 100,000 transactions take less
//! than a second. Only scans that miss elements here and there, not just the latest, cost more: one step for each gap.
//!
//! # Departures from Elle
//!
//! Elle infers one order for each data type, and checks one type at a time; here a transaction may use lists,
//! registers, sets and counters together. Registers use real time, as Elle does for `linearizable-keys?`, but with the
//! whole life of a value (Gibbons and Korach 1997) in place of pairs of operations. Reads of unknown transactions count
//! once somebody saw their writes. Elle's process order, and its anomalies of weaker models, are left out.
//! [`History::to_edn`] hands a history to Elle itself, for a second opinion.

mod anomaly;
mod components;
mod cycles;
mod edn;
mod facts;
mod graph;
mod homes;
mod lists;
mod registers;
mod sets;
mod tallies;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use anomaly::{Anomaly, Kind};
pub use edn::Model;

use anomaly::Worst;
use facts::{Object, Shape};
use graph::Graph;

/// A name that transactions use, as its [`History`] numbers it: of a list, a register, a prefix or a counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(u32);

/// One step of a transaction, with what it returned. Elements and values are unique per key among the transactions that
/// did not abort.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// An element was put at the end of a list.
    Append {
        /// The list.
        key: Key,
        /// What was appended.
        element: u64,
    },
    /// A whole list was read.
    List {
        /// The list.
        key: Key,
        /// All that it had, in its order; empty if it is absent.
        elements: Vec<u64>,
    },
    /// A register was written.
    Write {
        /// The register.
        key: Key,
        /// Its value from then on.
        value: u64,
    },
    /// A register was deleted: whoever reads it finds nothing, as if nobody had written it.
    Delete {
        /// The register.
        key: Key,
    },
    /// A register was read.
    Read {
        /// The register.
        key: Key,
        /// What it had; none if nobody has written it, or it was deleted last.
        value: Option<u64>,
    },
    /// An element was inserted under a prefix.
    Insert {
        /// The set that it is an element of.
        prefix: Key,
        /// What was inserted.
        element: u64,
    },
    /// Everything under a prefix was read.
    Members {
        /// The set.
        prefix: Key,
        /// All that it had, in any order.
        elements: Vec<u64>,
    },
    /// An element was taken out that was there, by another transaction than the one that inserted it. It does not come back.
    Remove {
        /// The set that it was an element of.
        prefix: Key,
        /// What was taken out.
        element: u64,
    },
    /// A part of what is under a prefix was read: a page of a scan, or one name. A transaction reads one part of each set, and
    /// either a part or all.
    Page {
        /// The set.
        prefix: Key,
        /// The first element that it would have shown.
        from: u64,
        /// The last one.
        to: u64,
        /// All that the set had between these, both included.
        elements: Vec<u64>,
    },
    /// The elements under a prefix were counted.
    Count {
        /// The set.
        prefix: Key,
        /// How many there were.
        count: u64,
    },
    /// An amount was added to a counter, unseen.
    Add {
        /// The counter.
        key: Key,
        /// By how much it changed.
        delta: i64,
    },
    /// A counter was read.
    Sum {
        /// The counter.
        key: Key,
        /// The sum of all that was added.
        value: i64,
    },
    /// A counter was read of which each write or deletion of the register with its name begins anew. No write or deletion of
    /// that by the same transaction comes before it.
    Since {
        /// The counter.
        key: Key,
        /// The sum of what was added since the register was written or deleted last.
        sum: i64,
    },
    /// What is at a home was seen, in this incarnation of it. Incarnations only rise: what was lost does not come back.
    Incarnation {
        /// The home.
        home: Key,
        /// Which incarnation, from 1.
        number: u64,
    },
}

impl Op {
    fn object(&self) -> Object {
        match *self {
            Self::Append { key, .. } | Self::List { key, .. } => Object::new(key, Shape::List),
            Self::Write { key, .. } | Self::Delete { key } | Self::Read { key, .. } => {
                Object::new(key, Shape::Register)
            }
            Self::Insert { prefix, .. }
            | Self::Remove { prefix, .. }
            | Self::Members { prefix, .. }
            | Self::Page { prefix, .. }
            | Self::Count { prefix, .. } => Object::new(prefix, Shape::Set),
            Self::Add { key, .. } | Self::Sum { key, .. } | Self::Since { key, .. } => Object::new(key, Shape::Counter),
            Self::Incarnation { home, .. } => Object::new(home, Shape::Home),
        }
    }
}

/// What became of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Its client was told that it committed, or that it ended in an error of its own after its reads were validated;
    /// then it has reads only.
    Committed,
    /// Its client was told that it took no effect. Its reads are not judged.
    Aborted,
    /// Nobody was told. It may take effect at any time after it was invoked, or never.
    Unknown,
}

/// One transaction as its client knows it.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// What reports call it.
    pub label: u64,
    /// The client. Only [`History::to_edn`] uses it.
    pub process: u64,
    /// When it was sent, in microseconds.
    pub invoked: u64,
    /// When its answer came, in microseconds; none if none came. That of an unknown transaction says nothing.
    pub completed: Option<u64>,
    /// What became of it.
    pub fate: Fate,
    /// Its steps in the order of the program. It is as if they were done at one moment, each seeing those before it.
    /// Reads of an unknown transaction are judged once somebody saw what it wrote; leave out those whose results are
    /// not known.
    pub ops: Vec<Op>,
}

/// Transactions to be judged, and the names that they use.
#[derive(Clone, Default, Debug)]
pub struct History {
    names: Vec<String>,
    keys: HashMap<String, Key>,
    transactions: Vec<Transaction>,
}

impl History {
    /// A history without transactions.
    pub fn new() -> Self {
        Self::default()
    }

    /// The key of a name.
    pub fn key(&mut self, name: &str) -> Key {
        if let Some(&key) = self.keys.get(name) {
            return key;
        }
        let key =
            Key(u32::try_from(self.names.len()).ok().filter(|key| *key < 1 << 29).expect("fewer than 2^29 names"));
        self.names.push(name.to_owned());
        self.keys.insert(name.to_owned(), key);
        key
    }

    /// The name of a key.
    pub fn name(&self, key: Key) -> &str {
        &self.names[key.0 as usize]
    }

    /// Adds a transaction; the order in which they are added does not matter.
    ///
    /// # Panics
    ///
    /// If it completed before it was invoked, or if a key is of another history.
    pub fn push(&mut self, transaction: Transaction) {
        let Transaction { label, invoked, completed, .. } = transaction;
        assert!(completed.is_none_or(|completed| completed >= invoked), "T{label} completed before it was invoked");
        let known = |op: &Op| (op.object().key().0 as usize) < self.names.len();
        assert!(transaction.ops.iter().all(known), "T{label} has a key of another history");
        self.transactions.push(transaction);
    }

    /// What was added, in that order.
    pub fn transactions(&self) -> &[Transaction] {
        &self.transactions
    }
}

/// What a clean verdict rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Transactions that are known to have committed; all their reads were judged.
    pub nodes: usize,
    /// How many of them are of unknown fate, and were seen.
    pub revealed: usize,
    /// Reads of the nodes.
    pub reads: usize,
    /// Edges between them but for real time; one may stand for many.
    pub edges: usize,
}

/// Judges a history: what the verdict rests on, or the worst anomaly found. See the [module](self) for what is missed.
///
/// # Panics
///
/// If two transactions that did not abort write the same value to the same key: then nobody can tell who was read.
pub fn check(history: &History) -> Result<Summary, Anomaly> {
    let facts = facts::gather(history)?;
    let mut graph = Graph::new(history.transactions.len());
    let mut worst = Worst::default();
    for touches in facts.objects() {
        match touches[0].object.shape() {
            Shape::List => lists::infer(&facts, touches, &mut graph, &mut worst),
            Shape::Register => registers::infer(&facts, touches, &mut graph, &mut worst),
            Shape::Set => {
                sets::infer(&facts, touches, &mut graph, &mut worst);
                tallies::infer(&facts, touches, &mut graph, &mut worst);
            }
            Shape::Counter => tallies::infer(&facts, touches, &mut graph, &mut worst),
            Shape::Home => homes::infer(touches, &mut graph),
        }
    }
    let summary = facts.summary(graph.len());
    if let Some(cycle) = cycles::worst(&facts, graph) {
        worst.note(Anomaly::of_cycle(history, &cycle));
    }
    worst.verdict().map(|()| summary)
}
