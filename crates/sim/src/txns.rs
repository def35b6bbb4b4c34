//! Transactions of clients, and the history by which they are judged.
//!
//! A few dozen objects are shared by all clients: lists to which elements are appended, registers, counters, and sets of
//! objects under a prefix that is scanned. Every element and value is written once in a run, so that whoever reads it
//! names its writer. A client reads through its site, makes up what to write, and submits the transaction like any other
//! operation: with repetition, questions and fail-over. What it was told, and when, goes into a [`History`]; when the run is
//! over the checker says whether it is strictly serializable.
//!
//! A home that loses its storage loses its objects. Those of its next incarnation are other objects to the history. A client
//! that is told of a loss accepts it for the operator after a while; until then what is not there cannot be read.

use std::collections::BTreeMap;

use slackline_core::api::{Operation, Outcome, Read, Reading};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::Incarnation;
use slackline_core::object::{Abort, Cause, Change, Home, ObjectKey, SCAN_ROWS, Seen, Span, Transaction, Value};

use crate::history::{self, Fate, History, Op};
use crate::invariants::serializable;
use crate::run::{Phase, Simulation};
use crate::world::World;

/// Lists; the first are read much and written seldom.
const LISTS: u64 = 22;
/// Those that are read much.
const POPULAR: u64 = 6;
/// Registers.
const REGISTERS: u64 = 8;
/// Counters.
const COUNTERS: u64 = 4;
/// Sets of which one is in use at a time at each home.
const SETS: u64 = 2;
/// A set that has so many elements is left for the next one.
const MEMBERS: usize = 40;
/// Transactions that a client has under way at most.
const AT_ONCE: usize = 5;
/// How long a client waits for what it reads, in microseconds.
const PATIENCE: u64 = 3 * SECOND;

/// What the clients do with objects.
#[derive(Debug, Default)]
pub(crate) struct Txns {
    pub(crate) history: History,
    /// Reading, by label.
    reading: BTreeMap<u64, Running>,
    /// Submitted, by operation.
    committing: BTreeMap<u32, Running>,
    labels: u64,
    values: u64,
    pub(crate) committed: u64,
    /// Which set is in use, by prefix number.
    epochs: [u64; SETS as usize],
    /// Clients that have read everything at the end.
    finished: Vec<usize>,
    /// Homes whose loss is being accepted.
    accepting: Vec<(usize, u64)>,
}

/// A transaction under way.
#[derive(Clone, Debug)]
struct Running {
    label: u64,
    client: usize,
    site: usize,
    invoked: u64,
    until: u64,
    plan: Plan,
    /// Incarnations of all homes when it was begun.
    homes: Vec<Incarnation>,
    ops: Vec<Op>,
    /// Blind writes: which home, and what for the history, by the name of the object without its incarnation.
    blind: Vec<(usize, String, Blind)>,
    /// Whether it reads everything at the end.
    is_last: bool,
}

#[derive(Clone, Copy, Debug)]
enum Blind {
    Write(u64),
    Add(i64),
    Insert(u64),
}

/// What a client is about to do.
#[derive(Clone, Debug, Default)]
struct Plan {
    gets: Vec<ObjectKey>,
    scans: Vec<(u16, Span)>,
    /// Positions among the gets to which something is appended, or which are written.
    updates: Vec<usize>,
    /// Written without being read.
    blind: Vec<(ObjectKey, Blind)>,
    fresh: bool,
}

fn elements(seen: &Seen) -> Vec<u64> {
    let Some(Value::Bytes(bytes)) = &seen.value else { return Vec::new() };
    bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes"))).collect()
}

fn is_list(key: &ObjectKey) -> bool {
    key.name.starts_with('l')
}

fn is_counter(key: &ObjectKey) -> bool {
    key.name.starts_with('n')
}

impl Simulation {
    fn object(&self, world: &World, kind: char, number: u64) -> ObjectKey {
        ObjectKey::new((number % world.len() as u64) as u16, format!("{kind}{number}"))
    }

    fn list(&mut self, world: &World, for_update: bool) -> ObjectKey {
        let popular = self.rng.below(100) < if for_update { 8 } else { 70 };
        let number = if popular { self.rng.below(POPULAR) } else { POPULAR + self.rng.below(LISTS - POPULAR) };
        self.object(world, 'l', number)
    }

    fn set(&self, world: &World, number: u64) -> (u16, String) {
        let home = (number % world.len() as u64) as u16;
        (home, format!("s{number}.{}/", self.txns.epochs[number as usize]))
    }

    /// Begins transactions, if the client has few under way.
    pub(crate) fn begin_transactions(&mut self, world: &mut World, at: usize) {
        let now = world.now();
        self.txns.reading.retain(|_, running| running.until > now);
        let of_client = |running: &&Running| running.client == at;
        let under_way = self.txns.reading.values().filter(of_client).count()
            + self.txns.committing.values().filter(of_client).count();
        if under_way >= AT_ONCE || self.phase == Phase::Audit || now < self.txns_from {
            return;
        }
        let site = self.clients[at].present_site();
        if self.session_at(world, at, site).is_none() {
            return;
        }
        let is_last = self.txns.committed >= self.options.transactions;
        if is_last {
            if self.phase != Phase::Healing || under_way > 0 || self.txns.finished.contains(&at) {
                return;
            }
            let plan = self.plan_of_everything(world);
            return self.begin_transaction(world, at, site, plan, true);
        }
        for _ in under_way..AT_ONCE {
            let plan = self.plan_transaction(world);
            self.begin_transaction(world, at, site, plan, false);
            if self.rng.one_in(2) {
                break;
            }
        }
    }

    /// A client at an object's home begins a transaction that reads it there, and perhaps writes it.
    pub(crate) fn begin_for_one(&mut self, world: &mut World, at: usize, key: ObjectKey, writes: bool) {
        if (is_list(&key) || key.name.starts_with('r')) && self.session_at(world, at, at).is_some() {
            let updates = if writes { vec![0] } else { Vec::new() };
            let plan = Plan { gets: vec![key], updates, fresh: true, ..Plan::default() };
            self.begin_transaction(world, at, at, plan, false);
        }
    }

    /// Whether clients have done all that they have to do with objects.
    pub(crate) fn transactions_are_done(&self) -> bool {
        self.txns.committed >= self.options.transactions
            && self.txns.reading.is_empty()
            && self.txns.committing.is_empty()
            && self.txns.finished.len() >= self.members.len().min(self.clients.len())
    }

    /// What clients still wait for, in words.
    pub(crate) fn transactions_wait_for(&self) -> Vec<String> {
        let Txns { committed, finished, reading, committing, .. } = &self.txns;
        let done = format!("{committed} transactions committed, {} clients have read everything", finished.len());
        let under_way = reading.values().chain(committing.values()).take(3).map(|running| format!("{running:?}"));
        [done].into_iter().chain(under_way).collect()
    }

    fn plan_transaction(&mut self, world: &World) -> Plan {
        let mut plan = Plan { fresh: self.rng.one_in(4), ..Plan::default() };
        let draw = self.rng.below(100);
        let add = |plan: &mut Plan, key: ObjectKey| {
            if !plan.gets.contains(&key) {
                plan.gets.push(key);
            }
            plan.gets.iter().position(|other| other == plan.gets.last().expect("just added"))
        };
        match draw {
            // Reads only.
            0..=44 => {
                for _ in 0..=self.rng.below(3) {
                    let key = self.list(world, false);
                    add(&mut plan, key);
                }
                if self.rng.one_in(5) {
                    let number = self.rng.below(REGISTERS);
                    let key = self.object(world, 'r', number);
                    add(&mut plan, key);
                }
            }
            // Appends to lists that it reads, and perhaps reads others.
            45..=72 => {
                for _ in 0..=self.rng.below(2) {
                    let key = self.list(world, true);
                    if !plan.gets.contains(&key) {
                        plan.updates.push(plan.gets.len());
                        plan.gets.push(key);
                    }
                }
                for _ in 0..self.rng.below(3) {
                    let key = self.list(world, false);
                    add(&mut plan, key);
                }
            }
            // Registers, read and written, or blindly.
            73..=80 => {
                let number = self.rng.below(REGISTERS);
                let key = self.object(world, 'r', number);
                plan.updates.push(0);
                plan.gets.push(key);
                let number = self.rng.below(REGISTERS);
                let key = self.object(world, 'r', number);
                add(&mut plan, key);
            }
            81..=85 => {
                let number = self.rng.below(REGISTERS);
                let key = self.object(world, 'r', number);
                let value = self.value();
                plan.blind.push((key, Blind::Write(value)));
            }
            // Counters.
            86..=90 => {
                let delta = 1 + self.rng.below(9) as i64;
                let (one, other) = (self.rng.below(COUNTERS), self.rng.below(COUNTERS));
                plan.blind.push((self.object(world, 'n', one), Blind::Add(delta)));
                if other != one {
                    plan.blind.push((self.object(world, 'n', other), Blind::Add(delta)));
                }
            }
            91..=92 => {
                for _ in 0..2 {
                    let number = self.rng.below(COUNTERS);
                    let key = self.object(world, 'n', number);
                    add(&mut plan, key);
                }
            }
            // Sets: an insert, a scan, or both.
            _ => {
                let number = self.rng.below(SETS);
                let (home, prefix) = self.set(world, number);
                if draw >= 96 {
                    let span = Span { prefix: prefix.clone(), after: String::new(), limit: SCAN_ROWS as u32 };
                    plan.scans.push((home, span));
                }
                if draw <= 97 {
                    let element = self.value();
                    let key = ObjectKey::new(home, format!("{prefix}{element}"));
                    plan.blind.push((key, Blind::Insert(element)));
                }
            }
        }
        plan
    }

    /// At the end: everything is read in one transaction.
    fn plan_of_everything(&mut self, world: &World) -> Plan {
        let mut plan = Plan { fresh: true, ..Plan::default() };
        for (kind, count) in [('l', LISTS), ('r', REGISTERS), ('n', COUNTERS)] {
            plan.gets.extend((0..count).map(|number| self.object(world, kind, number)));
        }
        for number in 0..SETS {
            let (home, prefix) = self.set(world, number);
            plan.scans.push((home, Span { prefix, after: String::new(), limit: SCAN_ROWS as u32 }));
        }
        plan
    }

    fn value(&mut self) -> u64 {
        self.txns.values += 1;
        self.txns.values
    }

    fn begin_transaction(&mut self, world: &mut World, at: usize, site: usize, plan: Plan, is_last: bool) {
        self.txns.labels += 1;
        let label = self.txns.labels;
        let (now, until) = (world.now(), world.now() + PATIENCE);
        let homes = (0..world.len()).map(|home| self.oracle.incarnation(home)).collect();
        let (gets, scans, fresh) = (plan.gets.clone(), plan.scans.clone(), plan.fresh);
        let reads_nothing = gets.is_empty() && scans.is_empty();
        let (ops, blind) = (Vec::new(), Vec::new());
        let running = Running { label, client: at, site, invoked: now, until, plan, homes, ops, blind, is_last };
        self.txns.reading.insert(label, running);
        if reads_nothing {
            let reading = Reading { token: label, gets: Vec::new(), scans: Vec::new() };
            return self.read(world, label, reading);
        }
        let read = Read { token: label, gets, scans, fresh, timeout: 2 * SECOND };
        self.send_read(world, at, site, label, read);
    }

    /// What a transaction reads is there.
    pub(crate) fn read(&mut self, world: &mut World, label: u64, reading: Reading) {
        let Some(mut running) = self.txns.reading.remove(&label) else { return };
        let failed = reading.gets.iter().filter_map(|got| got.as_ref().err());
        let failed: Vec<Abort> =
            failed.chain(reading.scans.iter().filter_map(|scanned| scanned.as_ref().err())).cloned().collect();
        for abort in &failed {
            self.count_abort(abort.cause);
            if abort.cause == Cause::Lost
                && let Some(key) = &abort.key
            {
                self.accept_loss(world, usize::from(key.home));
            }
        }
        if !failed.is_empty() {
            return;
        }
        let mut transaction = Transaction { homes: Vec::new(), max_wait: self.max_wait() };
        let plan = running.plan.clone();
        let mut incarnations = running.homes.clone();
        for (place, (key, seen)) in plan.gets.iter().zip(reading.gets.into_iter().flatten()).enumerate() {
            let home = home_of(&mut transaction, key.home);
            home.incarnation = seen.version.incarnation;
            incarnations[usize::from(key.home)] = seen.version.incarnation;
            home.part.reads.push((key.name.clone(), seen.version.number));
            let named = name(&key.name, key.home, seen.version.incarnation);
            let named = self.txns.history.key(&named);
            running.ops.push(if is_list(key) {
                Op::List { key: named, elements: elements(&seen) }
            } else if is_counter(key) {
                let value = match seen.value {
                    Some(Value::Counter(count)) => count,
                    _ => 0,
                };
                Op::Sum { key: named, value }
            } else {
                Op::Read { key: named, value: elements(&seen).first().copied() }
            });
            if plan.updates.contains(&place) {
                let value = self.value();
                let mut all = if is_list(key) { elements(&seen) } else { Vec::new() };
                all.push(value);
                let bytes = all.iter().flat_map(|element| element.to_le_bytes()).collect();
                let home = home_of(&mut transaction, key.home);
                home.part.writes.push((key.name.clone(), Change::Put(Value::Bytes(bytes))));
                running.ops.push(if is_list(key) {
                    Op::Append { key: named, element: value }
                } else {
                    Op::Write { key: named, value }
                });
            }
        }
        for ((region, span), found) in plan.scans.iter().zip(reading.scans.into_iter().flatten()) {
            let incarnation =
                found.first().map_or(running.homes[usize::from(*region)], |(_, seen)| seen.version.incarnation);
            let home = home_of(&mut transaction, *region);
            home.incarnation = incarnation;
            home.part.scans.push((span.clone(), found.iter().map(|(_, seen)| seen.version.number).collect()));
            let prefix = self.txns.history.key(&name(&span.prefix, *region, incarnation));
            let elements: Vec<u64> = found.iter().flat_map(|(_, seen)| elements(seen)).collect();
            self.note_members(&span.prefix, elements.len());
            running.ops.push(if self.rng.one_in(3) {
                Op::Count { prefix, count: elements.len() as u64 }
            } else {
                Op::Members { prefix, elements }
            });
        }
        for (key, blind) in plan.blind {
            let home = home_of(&mut transaction, key.home);
            let (change, object) = match blind {
                Blind::Write(value) => (Change::Put(Value::Bytes(value.to_le_bytes().to_vec())), key.name.clone()),
                Blind::Add(delta) => (Change::Add(delta), key.name.clone()),
                Blind::Insert(element) => {
                    let prefix = key.name.rsplit_once('/').map_or("", |(prefix, _)| prefix);
                    (Change::Put(Value::Bytes(element.to_le_bytes().to_vec())), format!("{prefix}/"))
                }
            };
            home.part.writes.push((key.name, change));
            running.blind.push((usize::from(key.home), object, blind));
        }
        running.homes = incarnations;
        let timeouts = [400 * MILLISECOND, SECOND, 3 * SECOND, 8 * SECOND];
        let timeout = timeouts[self.rng.below(4) as usize];
        let (at, site) = (running.client, running.site);
        if self.session_at(world, at, site).is_none() {
            return;
        }
        let operation = Operation::Commit(Box::new(transaction));
        if let Some(op) = self.submit(world, at, site, operation, timeout) {
            self.txns.committing.insert(op, running);
            self.flush(world, at, site);
        }
    }

    fn max_wait(&mut self) -> u64 {
        if self.rng.one_in(12) { self.rng.below(50 * MILLISECOND) } else { 60 * SECOND }
    }

    fn note_members(&mut self, prefix: &str, members: usize) {
        if members < MEMBERS {
            return;
        }
        for number in 0..SETS {
            if prefix.starts_with(&format!("s{number}.{}/", self.txns.epochs[number as usize])) {
                self.txns.epochs[number as usize] += 1;
            }
        }
    }

    /// An operator notes that the objects of a home are gone; not at once, so that clients come across the loss.
    fn accept_loss(&mut self, world: &mut World, home: usize) {
        let now = world.now();
        self.txns.accepting.retain(|(_, until)| *until > now);
        if self.txns.accepting.iter().any(|(other, _)| *other == home) || !self.rng.one_in(6) {
            return;
        }
        let at = self.clients.iter().position(|client| client.home == home).expect("every site has clients");
        if self.session_at(world, at, home).is_none() {
            return;
        }
        if self.submit(world, at, home, Operation::AcceptLoss, SECOND).is_some() {
            self.flush(world, at, home);
            self.txns.accepting.push((home, now + 2 * SECOND));
        }
    }

    /// A transaction has ended, as its client was told.
    pub(crate) fn transaction_ended(&mut self, world: &World, op: u32, outcome: &Outcome) {
        let Some(running) = self.txns.committing.remove(&op) else { return };
        let fate = match outcome {
            Outcome::Committed { phases } => {
                self.txns.committed += 1;
                self.probes.hit(match phases {
                    0 => "transaction: committed in 0 phases",
                    1 => "transaction: committed in 1 phase",
                    _ => "transaction: committed in 2 phases",
                });
                if running.is_last {
                    self.txns.finished.push(running.client);
                }
                Fate::Committed
            }
            Outcome::Aborted(abort) => {
                self.count_abort(abort.cause);
                if abort.cause == Cause::WouldWait {
                    assert!(!abort.holders.is_empty() || abort.until.is_some(), "who holds what, or until when");
                }
                Fate::Aborted
            }
            Outcome::Refused(_) => Fate::Aborted,
            _ => Fate::Unknown,
        };
        self.record(world.now(), running, fate);
    }

    /// Adds a transaction to the history.
    fn record(&mut self, now: u64, running: Running, mut fate: Fate) {
        let Running { label, client, invoked, homes, mut ops, blind, .. } = running;
        let mut apart = Vec::new();
        for (home, object, blind) in blind {
            let present = self.oracle.incarnation(home);
            let op = |history: &mut History, incarnation| {
                let key = history.key(&name(&object, home as u16, incarnation));
                match blind {
                    Blind::Write(value) => Op::Write { key, value },
                    Blind::Add(delta) => Op::Add { key, delta },
                    Blind::Insert(element) => Op::Insert { prefix: key, element },
                }
            };
            if present == homes[home] {
                ops.push(op(&mut self.txns.history, present));
            } else {
                // Nobody knows which incarnation it met.
                for incarnation in homes[home].0..=present.max(homes[home]).0 {
                    apart.push(op(&mut self.txns.history, Incarnation(incarnation)));
                }
            }
        }
        let process = client as u64;
        let completed = (fate != Fate::Unknown).then_some(now);
        if !apart.is_empty() && fate == Fate::Committed && ops.is_empty() {
            fate = Fate::Unknown;
        }
        self.txns.history.push(history::Transaction { label, process, invoked, completed, fate, ops });
        if fate == Fate::Aborted {
            return;
        }
        for op in apart {
            let (fate, completed, ops) = (Fate::Unknown, None, vec![op]);
            self.txns.history.push(history::Transaction { label, process, invoked, completed, fate, ops });
        }
    }

    fn count_abort(&mut self, cause: Cause) {
        self.probes.hit(match cause {
            Cause::Changed => "transaction: aborted, changed",
            Cause::Busy => "transaction: aborted, busy",
            Cause::WouldWait => "transaction: aborted, would wait",
            Cause::DeadlinePassed => "transaction: aborted, deadline passed",
            Cause::Lost => "transaction: aborted, lost",
            Cause::Unreachable => "transaction: aborted, unreachable",
            Cause::Withdrawn => "transaction: aborted, withdrawn",
            Cause::NotReady => "transaction: aborted, not ready",
            // What is wrong with a transaction as such has tests of its own.
            _ => return,
        });
    }

    /// Judges the history, when the run is over.
    pub(crate) fn judge_history(&mut self, world: &World) {
        for (_, running) in std::mem::take(&mut self.txns.committing) {
            self.record(world.now(), running, Fate::Unknown);
        }
        let found = serializable::check(&self.txns.history);
        self.oracle.blame(serializable::NAME, found, "transactions");
    }
}

/// What the history calls an object of one incarnation of its home.
fn name(object: &str, home: u16, incarnation: Incarnation) -> String {
    format!("{home}.{}:{object}", incarnation.0)
}

fn home_of(transaction: &mut Transaction, region: u16) -> &mut Home {
    let at = transaction.homes.iter().position(|home| home.region == region).unwrap_or_else(|| {
        transaction.homes.push(Home { region, ..Home::default() });
        transaction.homes.len() - 1
    });
    &mut transaction.homes[at]
}
