//! What clients saw: the transactions that are judged, as they know them.

use std::collections::HashMap;

use super::object::{Key, Object, Shape};

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
        /// The number of them.
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
    /// A counter was read of which each write or deletion of the register with its name begins again. No write or deletion of
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
    pub(super) fn object(&self) -> Object {
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
    /// Names of keys, by number.
    names: Vec<String>,
    /// The key of each name.
    keys: HashMap<String, Key>,
    /// The transactions, in any order.
    pub(super) transactions: Vec<Transaction>,
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
