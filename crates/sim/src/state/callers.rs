//! Callers of the product's client: what they stand on, hold, and were told.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::api::Outcome;
use slackline_core::id::{Incarnation, OperationId, SessionId, SiteId};
use slackline_core::stats::Rng;
use slackline_session::call::{CallFuture, Place};
use slackline_session::command::{Command, Terms};
use slackline_session::port::Port;
use slackline_session::time::Time;
use slackline_session::topology::Topology;
use slackline_session::txn::Memos;

use crate::desk::Desk;
use crate::invariants::callers::{Final, Program};

/// All of them.
#[derive(Debug)]
pub(crate) struct Callers {
    /// What runs them, and the product's client.
    pub(crate) desk: Desk,
    /// Their clients: one at each site.
    pub(crate) clients: Vec<Seat>,
    /// What they were told, shared with their futures.
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    /// Feeds their choices and their wires' faults.
    pub(crate) rng: Rng,
    /// The incarnation of each session that a wire's site opened.
    pub(crate) sessions: BTreeMap<(usize, SessionId), Incarnation>,
    /// The faults of each wire.
    pub(crate) wires: Vec<Wire>,
    /// When the outcome of an operation in doubt may be forgotten: its client is asked to keep it until then.
    pub(crate) wanted: BTreeMap<u32, u64>,
    /// What callers hold: the oracle's name, and the tokens.
    pub(crate) holds: BTreeMap<u64, (usize, i64)>,
    /// True if the first of them have begun.
    pub(crate) has_begun: bool,
    /// True if the pairs are being read at rest, or were.
    pub(crate) is_read: bool,
}

/// A wire's faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wire {
    /// Nothing gets through before this.
    pub(crate) silent_until: u64,
    /// When the last thing on its way arrives, there and back.
    pub(crate) last: [u64; 2],
}

/// One client, as its callers see it.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// What its calls stand on.
    pub(crate) port: Arc<dyn PortOf>,
    /// Its memoized functions.
    pub(crate) memos: Arc<Memos>,
    /// The number of sites.
    pub(crate) sites: usize,
    /// The number of those at which objects are at home: the first ones.
    pub(crate) homes: usize,
}

/// A port that can be printed.
pub(crate) trait PortOf: Port + std::fmt::Debug {}

impl<P: Port + std::fmt::Debug> PortOf for P {}

/// What callers were told, and have not been judged by yet.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// True if callers begin nothing new.
    pub(crate) is_over: bool,
    /// What has happened since the ledger was last looked at.
    pub(crate) events: Vec<Event>,
    /// The number of callers that have been granted something; the last one's number.
    pub(crate) holders: u64,
    /// Programs, by number.
    pub(crate) programs: BTreeMap<u64, Program>,
    /// The lists of each pair, and its counters, as they were read at rest.
    pub(crate) finals: Vec<Final>,
    /// Transactions over treaties that were committed.
    pub(crate) treaties: u64,
    /// What the programs over the treaty `ordered` add, by number.
    pub(crate) entries: BTreeMap<u64, Entry>,
    /// The end of the audit's present operation: an outcome, or why there is none.
    pub(crate) audited: Option<Result<Outcome, String>>,
}

/// What a program over the treaty `ordered` adds to its counters: to the first, and to the second in a block that may be undone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// What it adds to the first.
    pub(crate) adds: i64,
    /// What the block adds to the second.
    pub(crate) block: i64,
}

/// Something that happened to a caller.
#[derive(Debug)]
pub(crate) enum Event {
    /// A caller was told how its call ended.
    Told { id: OperationId, command: Command, outcome: Outcome },
    /// A caller holds what it was granted, until then.
    Held { holder: u64, id: OperationId, amount: i64, until: Option<u64> },
    /// It gives it back from now on.
    LetGo { holder: u64 },
    /// Its deadline passed, and it does not know.
    InDoubt { id: OperationId, command: Command },
    /// It was told whether a treaty's statement is true, by a program whose last run began then.
    Verdict { treaty: usize, began: u64, verdict: bool },
    /// The same of `ordered`, of the statement before and after the block; and what it has seen of the list.
    Ordered { entry: Entry, seen: Vec<u64>, told: [Option<bool>; 2] },
    /// It came across something that a sweep counts.
    Probe(&'static str),
}

impl Ledger {
    /// A caller holds tokens, until then if they end by themselves; its number.
    pub(crate) fn hold(&mut self, id: OperationId, amount: i64, until: Option<u64>) -> u64 {
        self.holders += 1;
        self.events.push(Event::Held { holder: self.holders, id, amount, until });
        self.holders
    }
}

impl Seat {
    /// The time in so many microseconds.
    pub(crate) fn at_most(&self, micros: u64) -> Time {
        self.port.now() + Duration::from_micros(micros)
    }

    /// A call that ends within so many microseconds.
    pub(crate) fn call(&self, command: Command, place: Place, deadline: u64, patience: Option<u64>) -> CallFuture {
        let pinned = place != Place::Nearest;
        let patience = patience.map(Duration::from_micros);
        let terms = Terms { deadline: self.at_most(deadline), pinned, patience };
        CallFuture::new(Arc::clone(&self.port) as Arc<dyn Port>, 0, command, place, terms)
    }
}

impl Callers {
    /// A client at each site, whose callers have not begun. Objects are at home at the first of the sites.
    pub(crate) fn new(members: &[SiteId], homes: usize, seed: u64) -> Self {
        let sites = members.len();
        let regions = (0..sites).map(|region| format!("r{region}")).collect();
        let addresses = members.iter().map(|id| (*id, String::new())).collect();
        let topology = Topology::new("sim".to_owned(), regions, 1, addresses).expect("regions of these sites");
        let mut desk = Desk::new(Arc::new(topology), seed);
        let clients = (0..sites).map(|home| {
            // Its own region first; the others as if by distance.
            let order: Vec<usize> = (0..sites).map(|far| (home + far) % sites).collect();
            let (port, _) = desk.client(&order);
            Seat { port, memos: Arc::default(), sites, homes }
        });
        let clients: Vec<Seat> = clients.collect();
        let wires = vec![Wire::default(); desk.wires()];
        Self {
            desk,
            clients,
            ledger: Rc::default(),
            rng: Rng::new(seed ^ 0x6361_6c6c),
            sessions: BTreeMap::new(),
            wires,
            wanted: BTreeMap::new(),
            holds: BTreeMap::new(),
            has_begun: false,
            is_read: false,
        }
    }

    /// True once all callers have ended, and nothing is under way for any of them.
    pub(crate) fn are_done(&self) -> bool {
        let is_idle = |wire| !self.desk.link(wire).change(|sessions, _| sessions.has_work());
        self.has_begun && self.desk.open() == 0 && (0..self.desk.wires()).all(is_idle)
    }

    /// Which incarnation's sessions a wire's batches name.
    pub(crate) fn session(&self, wire: usize, session: SessionId) -> Option<(usize, Incarnation)> {
        let incarnation = self.sessions.get(&(wire, session))?;
        Some((self.desk.site(wire), *incarnation))
    }
}
