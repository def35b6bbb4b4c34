//! Histories in the form that Elle reads, through `elle-cli` for one: a map a line, in EDN.
//!
//! ```text
//! {:index 0, :time 5000, :process 0, :type :invoke, :f :txn, :value [[:append "x" 1] [:r "y" nil]]}
//! {:index 1, :time 9000, :process 0, :type :ok, :f :txn, :value [[:append "x" 1] [:r "y" [2 3]]]}
//! ```
//!
//! Elle checks one data type at a time, so ops of other types are left out, and transactions without any that is left.
//! What remains of a good history is a good one; registers that are deleted are left out too, which Elle does not know. Elle takes a value for ambiguous even if all but one of its writers
//! aborted.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use super::object::Key;
use super::record::{Fate, History, Op, Transaction};

/// Which ops Elle is given; `elle-cli` has the names as `--model`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// `list-append`: [`Op::Append`] and [`Op::List`].
    ListAppend,
    /// `rw-register`: [`Op::Write`] and [`Op::Read`].
    RwRegister,
}

impl History {
    /// Writes the ops of one model as Elle reads them. Times are in nanoseconds, as Jepsen has them.
    ///
    /// Jepsen's processes do one thing at a time, and end with a transaction of unknown fate. So a client gets a new
    /// process number after such a one, and when it does two things at once.
    pub fn to_edn(&self, model: Model, out: &mut impl Write) -> io::Result<()> {
        let ops = self.transactions.iter().flat_map(|txn| &txn.ops);
        let deleted: HashSet<Key> =
            ops.filter_map(|op| if let Op::Delete { key } = op { Some(*key) } else { None }).collect();
        let has = |op: &&Op| model.has(op) && !(model == Model::RwRegister && deleted.contains(&op.object().key()));
        let mut events: Vec<(u64, bool, usize)> = Vec::new();
        for (at, txn) in self.transactions.iter().enumerate() {
            if txn.ops.iter().any(|op| has(&op)) {
                events.push((txn.invoked, false, at));
                events.push((txn.completed.filter(|_| txn.fate != Fate::Unknown).unwrap_or(u64::MAX), true, at));
            }
        }
        // Elle takes the order of the lines for real time. What happened at the same time is not ordered: invocations
        // first.
        events.sort_unstable();
        let last = events.iter().rev().map(|event| event.0).find(|time| *time < u64::MAX).unwrap_or(0);
        let mut processes = Processes { count: 0, free: HashMap::new(), busy: vec![0; self.transactions.len()] };
        for (index, (time, is_end, at)) in events.into_iter().enumerate() {
            let transaction = &self.transactions[at];
            let process = if is_end { processes.end(at, transaction) } else { processes.begin(at, transaction) };
            let kind = match (is_end, transaction.fate) {
                (false, _) => "invoke",
                (true, Fate::Committed) => "ok",
                (true, Fate::Aborted) => "fail",
                (true, Fate::Unknown) => "info",
            };
            let time = u128::from(time.min(last)) * 1000;
            write!(out, "{{:index {index}, :time {time}, :process {process}, :type :{kind}, :f :txn, :value [")?;
            for (at, op) in transaction.ops.iter().filter(has).enumerate() {
                let space = if at == 0 { "" } else { " " };
                write!(out, "{space}{}", self.mop(op, kind == "ok"))?;
            }
            writeln!(out, "]}}")?;
        }
        Ok(())
    }

    /// A micro-operation; what a read returned is known only once it is over.
    fn mop(&self, op: &Op, is_over: bool) -> String {
        let name = |key| format!("\"{}\"", self.name(key).replace('\\', "\\\\").replace('"', "\\\""));
        match op {
            Op::Append { key, element } => format!("[:append {} {element}]", name(*key)),
            Op::Write { key, value } => format!("[:w {} {value}]", name(*key)),
            Op::List { key, elements } if is_over => {
                let elements: Vec<String> = elements.iter().map(u64::to_string).collect();
                format!("[:r {} [{}]]", name(*key), elements.join(" "))
            }
            Op::Read { key, value: Some(value) } if is_over => format!("[:r {} {value}]", name(*key)),
            Op::List { key, .. } | Op::Read { key, .. } => format!("[:r {} nil]", name(*key)),
            _ => String::new(),
        }
    }
}

impl Model {
    fn has(self, op: &Op) -> bool {
        match op {
            Op::Append { .. } | Op::List { .. } => self == Self::ListAppend,
            Op::Write { .. } | Op::Read { .. } => self == Self::RwRegister,
            _ => false,
        }
    }
}

/// Hands out process numbers, so that each does one thing at a time.
struct Processes {
    /// The number of them.
    count: u64,
    /// The number of each client that is idle.
    free: HashMap<u64, u64>,
    /// The number of each transaction that has begun.
    busy: Vec<u64>,
}

impl Processes {
    fn begin(&mut self, at: usize, transaction: &Transaction) -> u64 {
        self.busy[at] = self.free.remove(&transaction.process).unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        self.busy[at]
    }

    fn end(&mut self, at: usize, transaction: &Transaction) -> u64 {
        if transaction.fate != Fate::Unknown {
            self.free.insert(transaction.process, self.busy[at]);
        }
        self.busy[at]
    }
}
