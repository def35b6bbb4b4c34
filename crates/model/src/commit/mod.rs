//! The model check of commitment: [`slackline_core::txn`] itself, coordinator and participants, through its own handlers.
//!
//! A state is three sites, each with its storage and, while it is up, its [`Txns`]; all messages that were ever sent; and the fate
//! of each transaction. From each state
//!
//! - a client may hand a transaction to its coordinator, or ask for its outcome;
//! - every message may arrive next, in any order, or never; in a setup that repeats them also more than once;
//! - a site's timers may fire, all together: an hour later, while it takes every other site to be down; or, in the setups that say so, a
//!   second later, while it hears from all;
//! - a site's clock may pass the deadline, with those of the others or without;
//! - a site may crash: its memory is lost. It starts again from its storage, or never does;
//! - a site may lose its disk and come back with a new incarnation, which the others have noted by then: joining requires that.
//!
//! Each step is atomic with its write, because the driver's release rule ([`slackline_core::machine::Gate`]) lets no message
//! leave before it: a crash between the two is a message that never arrives.
//!
//! Of time three things matter: a clock is before the deadline or after it, a timer that fires is due, and whether those who wait have
//! patience, which is the same in all of a setup. So times are no part of a state ([`Txns::fingerprint`]).
//!
//! # Properties
//!
//! - **atomicity**: no transaction is carried out by a site, or its client told so, and also refused permanently by another site,
//!   or its client told that. The contents of a lost disk count: somebody may have seen them;
//! - **commitment**: a transaction that is carried out, or whose client is told so, was durably prepared by every participant,
//!   by each before the deadline (or carried out then, in one write);
//! - **isolation**: of two transactions that each read what the other writes, at most one takes effect;
//! - **no doubt**: see below;
//! - **own invariants**: no assertion of the product fails.
//!
//! # No doubt
//!
//! From *every* state that is reached the rest is played to its end: all messages under way are lost, no site that is down comes
//! back, clocks pass the deadline, and timers fire and messages arrive in turn until nothing changes. Then no participant is in
//! doubt that can reach all others, or that can reach one that is not in doubt; no site without a doubt holds a lock; and if all
//! sites are up, none keeps anything of any transaction, and each client was told the outcome of its own.

mod rest;
pub(crate) mod trace;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline_core::api::{self, Operation, Outcome, Request, Submission};
use slackline_core::avantan::Membership;
use slackline_core::chapter::{Chapter as _, Order};
use slackline_core::clock::{Now, Offset, SECOND};
use slackline_core::config::Config;
use slackline_core::id::{Incarnation, Life, OperationId, SessionId, SiteId};
use slackline_core::machine::{Batch, KeySet, Machine, Overlay, View};
use slackline_core::metrics::Metrics;
use slackline_core::node::Node;
use slackline_core::object::message::{Fetch, Message};
use slackline_core::object::{Change, Home, Part, Transaction, Value};
use slackline_core::peer::Body;
use slackline_core::right::Start;
use slackline_core::rows;
use slackline_core::stats::Rng;
use slackline_core::turn::{Here, Out, Peer, Ticket, Turn};
use slackline_core::txn::{Stage, Txns};
use stateright::{Model, Property};

/// The number of sites.
const SITES: usize = 3;
/// The wall clock before the deadline, and after it.
const EARLY: i64 = 1_000_000 * SECOND as i64;
const LATE: i64 = EARLY + 100 * SECOND as i64;
/// The monotonic clock advances by this when timers fire, so that all are due, and nobody has patience any more.
const AN_HOUR: u64 = 3_600 * SECOND;
/// The same where everybody has patience: what was asked is asked again.
const SOON: u64 = SECOND;
/// The time that a transaction may take.
const TIMEOUT: u64 = 5 * SECOND;

/// A transaction that a client asks for. It puts its number in every object that it writes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The site that is asked.
    pub coordinator: usize,
    /// The homes at which it reads the object `x`, and finds nothing.
    pub reads: Vec<usize>,
    /// The homes at which it writes an object.
    pub writes: Vec<(usize, &'static str)>,
}

/// The bounds of an exploration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The name in the printed line.
    pub name: &'static str,
    /// The transactions.
    pub plans: Vec<Plan>,
    /// The number of crashes that may happen.
    pub crashes: u8,
    /// True if a site that crashed starts again.
    pub restarts: bool,
    /// The number of disks that may be lost.
    pub losses: u8,
    /// The number of times that timers may fire, at all sites together.
    pub looks: u8,
    /// The number of times that clients may ask for outcomes.
    pub asks: u8,
    /// True if timers fire a second later, before anybody's patience has passed; false if an hour later.
    pub soon: bool,
    /// True if a message may arrive more than once.
    pub repeats: bool,
    /// True if the clocks pass the deadline one by one, in any order; false if they do so together.
    pub skewed: bool,
    /// True if the third site holds a right over the object that is written at the second.
    pub right: bool,
    /// Shared by all states.
    shared: Arc<Shared>,
}

/// The data that all states share.
#[derive(Debug, Default)]
struct Shared {
    post: Mutex<Post>,
    /// The verdict at rest, by a state's fingerprint: none for those that come to rest without a doubt.
    rest: Mutex<HashMap<u64, Option<Wrong>>>,
}

/// The property that is broken, and how.
type Wrong = (&'static str, String);

/// Every message that was ever sent in any state; a state names them by their places.
#[derive(Debug, Default)]
struct Post {
    /// The place of each envelope, by its text.
    places: HashMap<String, u16>,
    envelopes: Vec<Arc<Envelope>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message.
#[derive(Debug)]
struct Envelope {
    from: usize,
    /// The sender's incarnation.
    incarnation: Incarnation,
    to: usize,
    message: Message,
}

/// One site.
#[derive(Clone, Debug)]
struct Site {
    /// None while it is down.
    txns: Option<Txns>,
    /// Its durable rows.
    disk: BTreeMap<Vec<u8>, Vec<u8>>,
    incarnation: Incarnation,
    life: Life,
    /// The highest incarnation of each site that it has heard of.
    heard: Vec<Incarnation>,
    /// True once its wall clock is past the deadline.
    is_late: bool,
    /// Its monotonic clock, in microseconds.
    mono: u64,
    /// The fingerprint of all fields above but the life and the monotonic clock.
    print: u64,
}

/// The fate of a transaction: each field only becomes true, or gets more sites.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Fate {
    is_submitted: bool,
    told_committed: bool,
    told_aborted: bool,
    /// The sites that have durably prepared it in time, a bit each.
    prepared: u8,
    /// The sites that have durably carried it out, a bit each.
    carried: u8,
    /// The sites that have durably refused it, a bit each.
    refused: u8,
}

/// One state of all sites, messages and transactions.
#[derive(Clone, Debug)]
pub struct State {
    sites: Vec<Arc<Site>>,
    /// The places of the messages that may arrive, in ascending order.
    sent: Vec<u16>,
    fates: Vec<Fate>,
    /// The numbers of these events that may still happen.
    crashes: u8,
    losses: u8,
    looks: u8,
    asks: u8,
    /// True once an assertion of the product has failed.
    broken: bool,
    /// The property that it breaks, now or when the rest is played to its end.
    breaks: Option<&'static str>,
}

impl State {
    fn key(&self) -> impl Hash + Eq + '_ {
        let prints = [0, 1, 2].map(|at: usize| self.sites[at].print);
        (prints, &self.sent, &self.fates, self.crashes, self.losses, self.looks, self.asks, self.broken)
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// An event that may happen next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A client hands its transaction over.
    Submit(usize),
    /// A client asks for its outcome.
    Ask(usize),
    /// A message arrives.
    Deliver(u16),
    /// A site's timers fire.
    Look(usize),
    /// A site's clock passes the deadline.
    Pass(usize),
    /// All clocks do.
    PassAll,
    /// A site loses its memory, and starts again or not.
    Crash(usize),
    /// A site loses everything, and comes back with a new incarnation.
    LoseDisk(usize),
}

fn site_id(at: usize) -> SiteId {
    SiteId::new(at as u16, 0)
}

fn members() -> Vec<SiteId> {
    (0..SITES).map(site_id).collect()
}

impl Plan {
    fn participants(&self) -> u8 {
        self.reads.iter().chain(self.writes.iter().map(|(home, _)| home)).fold(0, |all, home| all | 1 << home)
    }

    fn transaction(&self, number: usize) -> Transaction {
        let part = |home: usize| Part {
            reads: self.reads.iter().filter(|at| **at == home).map(|_| ("x".to_owned(), 0)).collect(),
            writes: self
                .writes
                .iter()
                .filter(|(at, _)| *at == home)
                .map(|(_, name)| ((*name).to_owned(), Change::Put(Value::Bytes(vec![number as u8].into()))))
                .collect(),
            ..Part::default()
        };

        // Reads are of version 0: nothing is there. So two transactions that read each other's writes cannot both be right.
        let homes = (0..SITES).map(|at| Home { region: at as u16, incarnation: Incarnation(1), part: part(at) });
        Transaction {
            homes: homes.filter(|home| !home.part.is_empty()).collect(),
            max_wait: TIMEOUT,
            ..Transaction::default()
        }
    }

    /// True if each reads an object that the other writes: one of the two must see the other's write, so both cannot take effect.
    fn excludes(&self, other: &Plan) -> bool {
        let reads = |one: &Plan, two: &Plan| one.reads.iter().any(|home| two.writes.contains(&(*home, "x")));
        reads(self, other) && reads(other, self)
    }
}

impl Fate {
    /// Notes that a site has carried it out. A site that had not prepared it has done so by the same write.
    fn carry_out(&mut self, site: u8, is_late: bool) {
        self.carried |= site;
        self.prepared |= if is_late { 0 } else { site };
    }

    fn took_effect(&self) -> bool {
        self.told_committed || self.carried != 0
    }

    fn did_not(&self) -> bool {
        self.told_aborted || self.refused != 0
    }
}

impl Site {
    fn new() -> Self {
        Self {
            txns: None,
            disk: BTreeMap::new(),
            incarnation: Incarnation(1),
            life: Life(0),
            heard: vec![Incarnation(1); SITES],
            is_late: false,
            mono: 1_000 * SECOND,
            print: 0,
        }
    }

    fn fingerprint(&mut self) {
        // Without the life and the monotonic clock: they only rise, and with them no state would ever be met a second time.
        let mut hasher = DefaultHasher::new();
        (&self.disk, self.incarnation, &self.heard, self.is_late, self.txns.is_some()).hash(&mut hasher);
        if let Some(txns) = &self.txns {
            txns.fingerprint(&mut hasher);
        }
        self.print = hasher.finish();
    }

    /// Starts it from its disk.
    fn open(&mut self, at: usize) {
        // As the node does it: resident rows are restored one by one, and paged ones are read when they are needed.
        let mut txns = Txns::new(site_id(at), 0);
        for (key, value) in self.disk.iter().filter(|(key, _)| !rows::is_paged(key)) {
            let restored = txns.restore(key, value, self.incarnation, &self.disk);
            restored.expect("a row that the product wrote");
        }
        self.life = Life(self.life.0 + 1);
        self.txns = Some(txns);
    }

    /// True if the site has prepared the transaction and does not know its outcome.
    fn doubts(&self, id: OperationId) -> bool {
        let rows = self.disk.iter().filter_map(|(key, value)| Txns::stage_of_row(key, value).ok().flatten());
        rows.into_iter().any(|row| row == (id, Stage::Prepared))
    }
}

/// Declares the keys that a handler needs from storage.
type Needs<'a> = dyn Fn(&Txns, &Here, &mut KeySet) + 'a;
/// Calls a handler.
type Act<'a> = dyn Fn(&mut Txns, &mut Turn, &View) + 'a;

impl Setup {
    fn id(&self, number: usize) -> OperationId {
        let site = site_id(self.plans[number].coordinator);
        OperationId { site, incarnation: Incarnation(1), session: SessionId(1), sequence: number as u64 }
    }

    /// One turn of a site: calls the handler, makes its batch durable, and sends its messages. Returns their places.
    fn turn(&self, state: &mut State, at: usize, hears: bool, needs: &Needs, act: &Act) -> Vec<u16> {
        let site = Arc::make_mut(&mut state.sites[at]);
        let (members, config) = (members(), Config { idle_calls: 0, ..Config::new(site_id(at), members()) });
        let heard = hears.then_some(site.mono);
        let now = Now { wall: if site.is_late { LATE } else { EARLY }, mono: site.mono };

        // Every order in which clocks pass the deadline is explored, so no site may notice how far they are apart.
        let offset = Some(Offset::measure(now, now.wall, now));
        let peer = |other: usize| Peer {
            offset,
            site: site_id(other),
            incarnation: site.heard[other],
            heard: heard.filter(|_| other != at),
            ..Peer::default()
        };
        let peers: Vec<Peer> = (0..SITES).map(peer).collect();
        let here = Here {
            now,
            uptime: site.mono,
            steady: 0,
            site: Membership::first(site_id(at), site.incarnation, &members),
            position: at,
            peers: &peers,
            config: &config,
            has_room: true,
            drained: None,
            under_way: 0,
        };
        let (mut rng, mut metrics) = (Rng::new(0), Metrics::default());
        let mut turn = Turn { here, out: Out::new(site_id(at), 0, &mut rng, &mut metrics) };

        // The view has only the keys that the handler declared: a handler that reads another one fails here as in the product.
        let txns = site.txns.as_mut().expect("only a site that is up has turns");
        let mut needed = KeySet::default();
        needs(txns, &here, &mut needed);
        let view = View::prepare(needed, &Overlay::default(), &site.disk).expect("a map can be read");
        let start = Start { incarnation: site.incarnation, life: site.life };
        let sound = catch_unwind(AssertUnwindSafe(|| {
            if txns.start() != start {
                txns.resume(&mut turn, start);
            }
            act(txns, &mut turn, &view);
            txns.persist(&mut turn);
        }));

        // Durable before anything leaves, as the release rule has it.
        let Out { batch, sends, finished, .. } = turn.out;
        state.broken |= sound.is_err();
        self.make_durable(&mut state.fates, site, at, &batch);
        site.fingerprint();
        let incarnation = site.incarnation;
        // The client hears an outcome only after the write that it rests on, so a fate never runs ahead of the disk.
        for (ticket, outcome) in finished {
            state.fates[ticket.sequence as usize].tell(&outcome);
        }

        let mut sent = Vec::new();
        for (to, body) in sends {
            let Body::Txn(message) = body else { continue };
            sent.push(self.send(Envelope { from: at, incarnation, to: usize::from(to.region), message: *message }));
        }
        for place in &sent {
            if let Err(free) = state.sent.binary_search(place) {
                state.sent.insert(free, *place);
            }
        }
        sent
    }

    /// Writes a batch to a site's disk, and notes in the fates of transactions what its rows say.
    fn make_durable(&self, fates: &mut [Fate], site: &mut Site, at: usize, batch: &Batch) {
        let bit = 1 << at;
        for (key, value) in batch.iter() {
            let Some(value) = value else {
                site.disk.remove(key);
                continue;
            };
            if let Some((id, stage)) = Txns::stage_of_row(key, value).expect("a row that the product wrote") {
                let fate = &mut fates[id.sequence as usize];
                match stage {
                    // In time only by the participant's own clock: that is the clock by which it refuses.
                    Stage::Prepared if !site.is_late => fate.prepared |= bit,
                    Stage::Prepared | Stage::Defending => {}
                    Stage::Committed => fate.carry_out(bit, site.is_late),
                    Stage::Refused => fate.refused |= bit,
                }
            } else if Node::is_paged(key) {
                // An object's row ends with its value, and that is the number of the transaction that put it there.
                let number = usize::from(*value.last().expect("no row is empty"));
                fates[number].carry_out(bit, site.is_late);
            }
            site.disk.insert(key.to_vec(), value.to_vec());
        }
    }

    /// The place of a message. The same message has the same place in every state.
    fn send(&self, envelope: Envelope) -> u16 {
        let mut post = lock(&self.shared.post);
        let Post { places, envelopes } = &mut *post;
        *places.entry(format!("{envelope:?}")).or_insert_with(|| {
            envelopes.push(Arc::new(envelope));
            u16::try_from(envelopes.len() - 1).expect("far fewer messages differ")
        })
    }

    fn envelope(&self, place: u16) -> Arc<Envelope> {
        lock(&self.shared.post).envelopes[usize::from(place)].clone()
    }

    /// A client hands its transaction to the coordinator.
    fn submit(&self, state: &mut State, number: usize) {
        let plan = &self.plans[number];
        let at = plan.coordinator;
        let transaction = plan.transaction(number);
        let ticket = Ticket { session: SessionId(1), sequence: number as u64 };
        let operation = || Operation::Commit(Box::new(transaction.clone()));
        let batch = Request::Batch(api::Batch {
            site: site_id(at),
            incarnation: Incarnation(1),
            session: ticket.session,
            low: 1,
            operations: vec![Submission { sequence: ticket.sequence, timeout: TIMEOUT, operation: operation() }],
        });

        let outcome = std::cell::RefCell::new(None);
        state.fates[number].is_submitted = true;
        let needs = |txns: &Txns, here: &Here, needed: &mut KeySet| txns.request_needs(here, &batch, needed);
        self.turn(state, at, true, &needs, &|txns, turn, view| {
            let order = Order { ticket, operation: &mut operation(), timeout: TIMEOUT, low: 1, digest: 1 };
            *outcome.borrow_mut() = txns.execute(turn, view, order);
        });
        if let Some(outcome) = outcome.into_inner() {
            state.fates[number].tell(&outcome);
        }
    }

    /// A message arrives. Returns the places of those that the receiver sends.
    fn deliver(&self, state: &mut State, place: u16) -> Vec<u16> {
        let envelope = self.envelope(place);
        let Envelope { from, incarnation, to, message } = &*envelope;
        let site = &state.sites[*to];

        // An incarnation that is gone never acts again: the node drops its messages.
        if site.txns.is_none() || *incarnation < site.heard[*from] {
            return Vec::new();
        }
        let body = Body::from(message.clone());
        let needs = |txns: &Txns, here: &Here, needed: &mut KeySet| txns.message_needs(here, &body, needed);
        self.turn(state, *to, true, &needs, &|txns, turn, view| txns.message(turn, view, *from, 0, body.clone()))
    }

    /// A site's timers fire, all of them, an hour later. Returns the places of the messages that it sends.
    fn look(&self, state: &mut State, at: usize) -> Vec<u16> {
        self.look_after(state, at, AN_HOUR, false)
    }

    /// The same so much later, while the site hears from the others or does not.
    fn look_after(&self, state: &mut State, at: usize, span: u64, hears: bool) -> Vec<u16> {
        let site = Arc::make_mut(&mut state.sites[at]);
        site.mono += span;
        let needs = |txns: &Txns, here: &Here, needed: &mut KeySet| txns.tick_needs(here, needed);
        self.turn(state, at, hears, &needs, &|txns, turn, view| txns.tick(turn, view))
    }

    /// A site's clock passes the deadline.
    fn pass(state: &mut State, at: usize) {
        let site = Arc::make_mut(&mut state.sites[at]);
        site.is_late = true;
        site.fingerprint();
    }

    /// A site starts from its disk.
    fn restart(&self, state: &mut State, at: usize) {
        Arc::make_mut(&mut state.sites[at]).open(at);
        self.turn(state, at, true, &|_, _, _| {}, &|_, _, _| {});
    }

    /// A site loses its disk, and starts as a new incarnation.
    fn lose_disk(&self, state: &mut State, at: usize) {
        let incarnation = Incarnation(state.sites[at].incarnation.0 + 1);
        let is_late = state.sites[at].is_late;
        let mut heard = vec![Incarnation(1); SITES];
        heard[at] = incarnation;
        state.sites[at] = Arc::new(Site { incarnation, heard, is_late, ..Site::new() });

        // A site joins only after every other one has noted its new incarnation.
        for other in (0..SITES).filter(|other| *other != at) {
            let site = Arc::make_mut(&mut state.sites[other]);
            site.heard[at] = incarnation;
            site.fingerprint();
        }
        self.restart(state, at);
    }

    /// A client asks for the outcome. As the node does it: the operation is withdrawn if it can be, and inquired about otherwise.
    fn ask(&self, state: &mut State, number: usize) {
        let id = self.id(number);
        let taken_back = std::cell::Cell::new(false);
        self.turn(state, id.site.region.into(), true, &|_, _, _| {}, &|txns, turn, _| {
            taken_back.set(!txns.withdraw(turn, id.session, &BTreeSet::from([id.sequence])).is_empty());
            if !taken_back.get() {
                txns.inquire(turn, id);
            }
        });
        state.fates[number].told_aborted |= taken_back.get();
    }
}

impl Fate {
    /// The client is told an outcome.
    fn tell(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Committed { .. } => self.told_committed = true,
            Outcome::Aborted(_) => self.told_aborted = true,
            // An unknown outcome is no promise; the client is told again when it is known.
            _ => {}
        }
    }
}

impl Model for Setup {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            sites: (0..SITES).map(|_| Arc::new(Site::new())).collect(),
            sent: Vec::new(),
            fates: vec![Fate::default(); self.plans.len()],
            crashes: self.crashes,
            losses: self.losses,
            looks: self.looks,
            asks: self.asks,
            broken: false,
            breaks: None,
        };

        (0..SITES).for_each(|at| self.restart(&mut state, at));
        if self.right {
            self.issue_right(&mut state);
        }

        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A counterexample is found: nothing more has to be seen behind it.
        if state.breaks.is_some() {
            return;
        }

        let up = |at: usize| state.sites[at].txns.is_some();
        for (number, (plan, fate)) in self.plans.iter().zip(&state.fates).enumerate() {
            let site = &state.sites[plan.coordinator];
            let serves = up(plan.coordinator) && site.incarnation == Incarnation(1);
            if serves && !fate.is_submitted && !site.is_late {
                actions.push(Action::Submit(number));
            }
            if serves && fate.is_submitted && state.asks > 0 {
                actions.push(Action::Ask(number));
            }
        }

        actions.extend(state.sent.iter().copied().map(Action::Deliver));
        if !self.skewed && !state.sites[0].is_late {
            actions.push(Action::PassAll);
        }
        for (at, site) in state.sites.iter().enumerate() {
            if state.looks > 0 && up(at) {
                actions.push(Action::Look(at));
            }
            if self.skewed && !site.is_late {
                actions.push(Action::Pass(at));
            }
            if state.crashes > 0 && up(at) {
                actions.push(Action::Crash(at));
            }
            // The other sites confirm its new incarnation, so all must be up.
            if state.losses > 0 && (0..SITES).all(up) {
                actions.push(Action::LoseDisk(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Submit(number) => self.submit(&mut state, number),
            Action::Ask(number) => {
                self.ask(&mut state, number);
                state.asks -= u8::from(state != *last);
            }
            Action::Deliver(place) => {
                self.deliver(&mut state, place);
                // A message that changes nothing now may still do so later, so it stays.
                if !self.repeats && state != *last {
                    state.sent.retain(|other| *other != place);
                }
            }
            Action::Look(at) => {
                match self.soon {
                    true => self.look_after(&mut state, at, SOON, true),
                    false => self.look(&mut state, at),
                };
                state.looks -= u8::from(state != *last);
            }
            Action::Pass(at) => Self::pass(&mut state, at),
            Action::PassAll => (0..SITES).for_each(|at| Self::pass(&mut state, at)),
            Action::Crash(at) => {
                state.crashes -= 1;
                if self.restarts {
                    self.restart(&mut state, at);
                } else {
                    let site = Arc::make_mut(&mut state.sites[at]);
                    site.txns = None;
                    site.fingerprint();
                }
            }
            Action::LoseDisk(at) => {
                state.losses -= 1;
                self.lose_disk(&mut state, at);
            }
        }

        // An event that changes nothing leads nowhere new. Of the others each one is judged, now and when the rest is played.
        if state == *last {
            return None;
        }
        state.breaks = self.wrong(&state).map(|(property, _)| property);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("atomicity", |_, state: &State| state.breaks != Some("atomicity")),
            Property::always("commitment", |_, state: &State| state.breaks != Some("commitment")),
            Property::always("isolation", |_, state: &State| state.breaks != Some("isolation")),
            Property::always("no doubt", |_, state: &State| state.breaks != Some("no doubt")),
            Property::always("own invariants", |_, state: &State| state.breaks != Some("own invariants")),
            Property::sometimes("a client is told that its transaction was committed", |_, state: &State| {
                state.fates.iter().any(|fate| fate.told_committed)
            }),
            Property::sometimes("a client is told that its transaction was aborted", |_, state: &State| {
                state.fates.iter().any(|fate| fate.told_aborted)
            }),
        ]
    }
}

impl Setup {
    /// Lets the third site read the second's object until it gets a right over it.
    fn issue_right(&self, state: &mut State) {
        for read in 0..5 {
            Arc::make_mut(&mut state.sites[1]).mono += SECOND;
            let gets = vec![("x".to_owned(), 1)];
            let start = Start { incarnation: Incarnation(1), life: Life(1) };
            let message = Message::Fetch(Box::new(Fetch {
                token: read,
                start,
                gets,
                scans: Vec::new(),
                rights: true,
                patience: 0,
                claim: None,
            }));
            let place = self.send(Envelope { from: 2, incarnation: Incarnation(1), to: 1, message });
            let answer = self.deliver(state, place);
            if read == 4 {
                answer.into_iter().for_each(|place| drop(self.deliver(state, place)));
            }
        }

        state.sent.clear();
        let issued = state.sites[1].txns.as_ref().map_or(0, Txns::warranties);
        assert_eq!(issued, 1, "an object that is read five times in a row must be worth a right");
    }
}

/// The setups that the project checks.
pub fn setups() -> Vec<Setup> {
    let everywhere = Plan { coordinator: 0, reads: vec![], writes: vec![(0, "x"), (1, "x"), (2, "x")] };
    let outside = Plan { coordinator: 0, reads: vec![], writes: vec![(1, "x"), (2, "x")] };
    let two = Plan { coordinator: 0, reads: vec![], writes: vec![(0, "x"), (1, "x")] };
    let exclude = vec![
        Plan { coordinator: 0, reads: vec![0], writes: vec![(1, "x")] },
        Plan { coordinator: 1, reads: vec![1], writes: vec![(0, "x")] },
    ];

    let at_one = vec![
        Plan { coordinator: 0, reads: vec![], writes: vec![(1, "x"), (2, "x")] },
        Plan { coordinator: 2, reads: vec![], writes: vec![(1, "x"), (2, "y")] },
    ];

    let setup = |name, plans: Vec<Plan>| Setup {
        name,
        plans,
        crashes: 1,
        restarts: true,
        losses: 0,
        looks: 1,
        asks: 0,
        soon: false,
        repeats: false,
        skewed: false,
        right: false,
        shared: Arc::default(),
    };

    let one = || vec![everywhere.clone()];
    let outside = || vec![outside.clone()];
    vec![
        setup("commit at three homes, one crash", one()),
        Setup { restarts: false, ..setup("commit at three homes, one crash for good", one()) },
        setup("commit, the coordinator takes no part, one crash", outside()),
        Setup {
            looks: 2,
            restarts: false,
            ..setup("commit, the coordinator takes no part, one crash for good", outside())
        },
        Setup {
            skewed: true,
            restarts: false,
            ..setup("commit at three homes, clocks differ, one crash for good", one())
        },
        Setup { crashes: 0, asks: 1, ..setup("commit at three homes, its client asks", one()) },
        Setup { crashes: 0, repeats: true, ..setup("commit at three homes, messages repeat", one()) },
        Setup { crashes: 0, repeats: true, ..setup("commit of two that write one object, messages repeat", at_one) },
        Setup { crashes: 0, soon: true, looks: 2, ..setup("commit at three homes, asked once more", one()) },
        Setup {
            soon: true,
            looks: 2,
            ..setup("commit, the coordinator takes no part, asked once more, one crash", outside())
        },
        Setup { right: true, looks: 2, ..setup("commit at three homes, a right in the way, one crash", one()) },
        Setup { looks: 2, ..setup("commit of two that exclude each other, one crash", exclude) },
        Setup { crashes: 0, losses: 1, looks: 3, ..setup("commit at two homes, one disk lost", vec![two]) },
        Setup { crashes: 0, losses: 1, ..setup("commit at three homes, one disk lost", one()) },
        Setup {
            crashes: 0,
            losses: 1,
            looks: 2,
            ..setup("commit, the coordinator takes no part, one disk lost", outside())
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is checked of transactions that take effect must not be checked of none.
    #[test]
    fn transactions_take_effect_in_every_setup_if_nothing_goes_wrong() {
        for setup in setups() {
            let mut state = setup.init_states().remove(0);
            setup.submit(&mut state, 0);
            let mut next = 0;
            // A part that waited for a right is checked when its timer fires.
            for look in [None, Some(1)] {
                look.into_iter().for_each(|at| drop(setup.look(&mut state, at)));
                while let Some(place) = state.sent.get(next).copied() {
                    setup.deliver(&mut state, place);
                    next += 1;
                }
            }
            let fate = state.fates[0];
            assert!(fate.told_committed && fate.carried == setup.plans[0].participants(), "{}: {fate:?}", setup.name);
            assert_eq!(setup.wrong(&state), None, "{}", setup.name);
        }
    }
}
