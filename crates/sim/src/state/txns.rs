//! Transactions of clients that are under way, and their history.

use std::collections::BTreeMap;

use slackline_core::api::Claim;
use slackline_core::draft::Draft;
use slackline_core::draft::again::Footprint;
use slackline_core::id::Incarnation;
use slackline_core::object::{ObjectKey, Origin, Span};

use crate::calls::Treated;
use crate::history::{History, Op};
use crate::world::World;

/// Sets of which one is in use at a time at each home.
pub(crate) const SETS: u64 = 2;

/// What the clients do with objects.
#[derive(Debug, Default)]
pub(crate) struct Txns {
    /// What is judged in the end.
    pub(crate) history: History,
    /// Transactions that read, by the token of their read.
    pub(crate) reading: BTreeMap<u64, Running>,
    /// Transactions that were submitted, by operation.
    pub(crate) committing: BTreeMap<u32, Running>,
    /// Names given to runs and reads so far.
    pub(crate) labels: u64,
    /// Values and elements made up so far.
    pub(crate) values: u64,
    /// Transactions that were committed.
    pub(crate) committed: u64,
    /// Which set of each number is in use.
    pub(crate) epochs: [u64; SETS as usize],
    /// All that was to be inserted into it.
    pub(crate) inserted: [Vec<u64>; SETS as usize],
    /// Clients that have written every object at their homes at the end.
    pub(crate) rewritten: Vec<usize>,
    /// Clients that have read everything then.
    pub(crate) finished: Vec<usize>,
    /// Homes whose loss is being accepted, and until when nobody else does it.
    pub(crate) accepting: Vec<(usize, u64)>,
}

/// A program that is run until it is committed, or given up.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its name, by which sites know its runs as the same program's.
    pub(crate) nonce: u64,
    /// Since when it counts as waiting for its turn.
    pub(crate) since: u64,
    /// The number of times that others were in its way, each time counted as `haste`.
    pub(crate) contended: u32,
    /// As how many times one counts.
    pub(crate) haste: u32,
    /// What the run before has read and wanted to write.
    pub(crate) before: Option<Footprint>,
}

/// A transaction under way: one run of a program.
#[derive(Debug)]
pub(crate) struct Running {
    /// The program.
    pub(crate) program: Program,
    /// The client.
    pub(crate) client: usize,
    /// The site that it goes through.
    pub(crate) site: usize,
    /// What the program does.
    pub(crate) plan: Plan,
    /// What it has read and wants to write.
    pub(crate) draft: Draft,
    /// What it is waiting to read.
    pub(crate) reads: Reads,
    /// What the history is told of it.
    pub(crate) record: Record,
    /// What it does at the end, if it is one of the client's last.
    pub(crate) last: Option<Last>,
    /// True if what it writes is in the draft.
    pub(crate) has_written: bool,
    /// What was done about calls that depend on what it writes.
    pub(crate) treated: Treated,
    /// The number of times that it was refused because of such calls.
    pub(crate) refusals: u32,
}

/// What a client does at the end, once each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Last {
    /// It writes every object at its home.
    Writes,
    /// It reads everything.
    Reads,
}

/// What a transaction reads.
#[derive(Debug)]
pub(crate) struct Reads {
    /// The number of reads that were answered.
    pub(crate) answered: u32,
    /// True if all of what was read was so at one time.
    pub(crate) is_whole: bool,
    /// The client gives up waiting at this time.
    pub(crate) until: u64,
    /// Objects that were asked for last.
    pub(crate) gets: Vec<ObjectKey>,
    /// Spans that were asked for last.
    pub(crate) scans: Vec<(u16, Span)>,
}

/// What the history is told of a transaction.
#[derive(Debug)]
pub(crate) struct Record {
    /// Its name.
    pub(crate) label: u64,
    /// When it began.
    pub(crate) invoked: u64,
    /// Each home's incarnation that it has met, and before it meets one, the one of when it began.
    pub(crate) homes: Vec<Incarnation>,
    /// What it saw and did.
    pub(crate) ops: Vec<Op>,
    /// Blind writes: which home, and what for the history, by the name of the object without its incarnation.
    pub(crate) blind: Vec<(usize, String, Blind)>,
}

impl Program {
    /// Whose run it is, and for how long it has waited for its turn.
    pub(crate) fn origin(&self, world: &World) -> Origin {
        Origin { nonce: self.nonce, age: world.now() - self.since }
    }

    /// Returns the claim by which the first reads of a run ask for its turn, as the client's do.
    pub(crate) fn claim(&self, world: &World) -> Claim {
        let before = self.before.as_ref().filter(|before| before.told.is_empty());
        Claim {
            origin: self.origin(world),
            writes: before.map(|before| before.writes.clone()).unwrap_or_default(),
            again: before.is_some(),
            bars: before.is_some_and(|before| before.bars(self.contended)),
        }
    }
}

/// Something that is written without being read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blind {
    /// Bytes that name this value.
    Write(u64),
    /// A number that names this value.
    Put(u64),
    /// The object goes.
    Delete,
    /// So much is added.
    Add(i64),
    /// A member of a set.
    Insert(u64),
}

/// A look at a set.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    /// The set's home.
    pub(crate) home: u16,
    /// What the names of its members begin with.
    pub(crate) prefix: String,
    /// What is looked at.
    pub(crate) part: SetPart,
    /// True if a member that was found is taken out.
    pub(crate) takes_out: bool,
}

/// The part of a set that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SetPart {
    /// All of it, in pages of so many.
    All { page: u32 },
    /// The first so many after an element.
    After { element: u64, limit: u32 },
    /// One name, there or not.
    One { element: u64 },
}

/// What a client is about to do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Objects that it reads.
    pub(crate) gets: Vec<ObjectKey>,
    /// Sets that it looks at.
    pub(crate) looks: Vec<Look>,
    /// Positions among the gets to which something is appended, or which are written.
    pub(crate) updates: Vec<usize>,
    /// Positions among the gets that are deleted.
    pub(crate) deletes: Vec<usize>,
    /// Written without being read.
    pub(crate) blind: Vec<(ObjectKey, Blind)>,
    /// Memoized functions that it calls.
    pub(crate) calls: Vec<ObjectKey>,
    /// True if the program ends with an error of its own: nothing is written, and what it read is validated all the same.
    pub(crate) fails: bool,
    /// True if copies are good enough only under live warranties.
    pub(crate) fresh: bool,
}

/// The name of a member: in the order of the elements.
pub(crate) fn member(prefix: &str, element: u64) -> String {
    format!("{prefix}{element:08}")
}
