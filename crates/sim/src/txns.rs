//! Transactions of clients, and the history by which they are judged.
//!
//! A few dozen objects are shared by all clients:
//!
//! | objects | what is done with them |
//! | --- | --- |
//! | lists | elements are appended |
//! | registers | written, read before or not, deleted, and written again |
//! | counters | amounts are added unseen: to some only positive ones, to others negative ones too, and to some so large ones that not all fit |
//! | mixed objects | bytes or a number is put, amounts are added, which bytes refuse, and they are deleted |
//! | sets of objects under a prefix | members come and go; they are scanned, page after page or a part of them, or looked for by name |
//!
//! Every element and value is written once in a run, so that whoever reads it names its writer. A client reads through its site, makes up what to write, and submits the transaction like any other
//! operation: with repetition, questions and fail-over. What it was told, and when, goes into a [`History`]; when the run is
//! over the checker says whether it is strictly serializable.
//!
//! A home that loses its storage loses its objects. Those of its next incarnation are other objects to the history. A client
//! that is told of a loss accepts it for the operator after a while; until then what is not there cannot be read.

use std::collections::BTreeMap;

use slackline_core::api::{Claim, Operation, Outcome, Read, Reading};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::draft::Draft;
use slackline_core::draft::again::Footprint;
use slackline_core::draft::buffer::ROOT;
use slackline_core::id::Incarnation;
use slackline_core::object::{Abort, Cause, Change, Home, ObjectKey, Origin, SCAN_ROWS, Span, Value, is_call};

use crate::calls::{Fact, Functions, Missing, REGISTERS, Treated, facts, note, register};
use crate::history::{self, Fate, History, Op};
use crate::invariants::serializable;
use crate::run::{Phase, Simulation};
use crate::world::World;

/// Lists; the first are read much and written seldom.
const LISTS: u64 = 22;
/// Those that are read much.
const POPULAR: u64 = 6;
/// Counters; see [`Simulation::delta`].
const COUNTERS: u64 = 6;
/// Mixed objects.
const MIXED: u64 = 4;
/// A number that is put into a mixed object is a value times this; what is added since stays far below.
const UNIT: i64 = 1 << 20;
/// Sets of which one is in use at a time at each home.
const SETS: u64 = 2;
/// A set that has so many elements, or had so many, is left for the next one.
const MEMBERS: usize = 40;
const EVER_MEMBERS: usize = 120;
/// Transactions that a client has under way at most.
const AT_ONCE: usize = 5;
/// A transaction that is refused so often because of calls is given up.
const REFUSALS: u32 = 8;
/// A program is given up when others were in its way so often.
const CONTENDED: u32 = 9;
/// Of two programs one counts each time as so many, so that what is asked for after many times is asked for often.
const HASTE: u32 = 3;
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
    /// Which set is in use, by prefix number, and all that were to be inserted into it.
    epochs: [u64; SETS as usize],
    inserted: [Vec<u64>; SETS as usize],
    /// Clients that have read everything at the end.
    finished: Vec<usize>,
    /// Homes whose loss is being accepted.
    accepting: Vec<(usize, u64)>,
}

/// A program that is run until it is committed, or given up.
#[derive(Clone, Debug)]
struct Program {
    nonce: u64,
    /// Since when it counts as waiting for its turn.
    since: u64,
    /// How often others were in its way, and as how many each time counts.
    contended: u32,
    haste: u32,
    /// What the run before has read and wanted to write.
    before: Option<Footprint>,
}

/// A transaction under way.
#[derive(Debug)]
struct Running {
    program: Program,
    /// How often it has read, and whether all of that was so at one time.
    reads: u32,
    is_whole: bool,
    label: u64,
    client: usize,
    site: usize,
    invoked: u64,
    until: u64,
    plan: Plan,
    draft: Draft,
    /// What was asked for last.
    asked: (Vec<ObjectKey>, Vec<(u16, Span)>),
    /// Incarnations of all homes when it was begun.
    homes: Vec<Incarnation>,
    ops: Vec<Op>,
    /// Blind writes: which home, and what for the history, by the name of the object without its incarnation.
    blind: Vec<(usize, String, Blind)>,
    /// Whether it reads everything at the end.
    is_last: bool,
    /// Whether what it writes is in the draft.
    has_written: bool,
    /// What was done about calls that depend on what it writes.
    treated: Treated,
    /// How often it was refused because of such calls.
    refusals: u32,
}

impl Program {
    fn origin(&self, world: &World) -> Origin {
        Origin { nonce: self.nonce, age: world.now() - self.since }
    }

    /// How the first reads of a run ask for its turn, as the client's do.
    fn claim(&self, world: &World) -> Claim {
        let before = self.before.as_ref().filter(|before| before.told.is_empty());
        Claim {
            origin: self.origin(world),
            writes: before.map(|before| before.writes.clone()).unwrap_or_default(),
            again: before.is_some(),
            bars: before.is_some_and(|before| before.bars(self.contended)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Blind {
    Write(u64),
    /// As a number.
    Put(u64),
    Delete,
    Add(i64),
    Insert(u64),
}

/// A look at a set.
#[derive(Clone, Debug)]
struct Look {
    home: u16,
    prefix: String,
    part: SetPart,
    /// Whether a member that was found is taken out.
    takes_out: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SetPart {
    /// All of it, in pages of so many.
    All { page: u32 },
    /// The first so many after an element.
    After { element: u64, limit: u32 },
    /// One name, there or not.
    One { element: u64 },
}

/// What a look at a set has found.
struct Found {
    home: u16,
    prefix: String,
    from: u64,
    to: u64,
    elements: Vec<u64>,
    takes_out: bool,
}

/// What a client is about to do.
#[derive(Clone, Debug, Default)]
struct Plan {
    gets: Vec<ObjectKey>,
    looks: Vec<Look>,
    /// Positions among the gets to which something is appended, or which are written.
    updates: Vec<usize>,
    /// Positions among the gets that are deleted.
    deletes: Vec<usize>,
    /// Written without being read.
    blind: Vec<(ObjectKey, Blind)>,
    /// Memoized functions that it calls.
    calls: Vec<ObjectKey>,
    /// Whether the program ends with an error of its own: nothing is written, and what it read is validated all the same.
    fails: bool,
    fresh: bool,
}

fn elements(value: Option<&Value>) -> Vec<u64> {
    let Some(Value::Bytes(bytes)) = value else { return Vec::new() };
    bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes"))).collect()
}

fn is_list(key: &ObjectKey) -> bool {
    key.name.starts_with('l')
}

fn is_counter(key: &ObjectKey) -> bool {
    key.name.starts_with('n')
}

fn is_mixed(key: &ObjectKey) -> bool {
    key.name.starts_with('m')
}

/// The name of a member: in the order of the elements.
fn member(prefix: &str, element: u64) -> String {
    format!("{prefix}{element:08}")
}

/// What a mixed object was put to last, and what was added since.
fn mixed(value: Option<&Value>) -> (Option<u64>, i64) {
    match value {
        Some(Value::Counter(count)) => {
            let put = count.saturating_add(UNIT / 2).div_euclid(UNIT);
            (u64::try_from(put).ok().filter(|put| *put > 0), count - put * UNIT)
        }
        value => (elements(value).first().copied(), 0),
    }
}

impl Simulation {
    fn object(&self, world: &World, kind: char, number: u64) -> ObjectKey {
        ObjectKey::new((number % world.len() as u64) as u16, format!("{kind}{number}"))
    }

    /// The lists at a home that are read much.
    pub(crate) fn popular_at(&self, world: &World, site: usize) -> Vec<ObjectKey> {
        let lists = (0..POPULAR).map(|number| self.object(world, 'l', number));
        lists.filter(|key| usize::from(key.home) == site).collect()
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

    /// A client begins a transaction that calls a function.
    pub(crate) fn begin_call(&mut self, world: &mut World, at: usize, call: ObjectKey, fresh: bool) {
        if self.session_at(world, at, at).is_some() {
            let plan = Plan { calls: vec![call], fresh, ..Plan::default() };
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
        };
        match draw {
            // Reads only.
            0..=41 => {
                for _ in 0..=self.rng.below(3) {
                    let key = self.list(world, false);
                    add(&mut plan, key);
                }
                if self.rng.one_in(5) {
                    let key = self.any(world, 'r', REGISTERS);
                    add(&mut plan, key);
                }
            }
            // Appends to lists that it reads, and perhaps reads others.
            42..=66 => {
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
            // Registers, read and written or deleted, or blindly.
            67..=75 => {
                let key = self.any(world, 'r', REGISTERS);
                self.change_first(&mut plan, key);
                let key = self.any(world, 'r', REGISTERS);
                add(&mut plan, key);
            }
            76..=79 => {
                let key = self.any(world, 'r', REGISTERS);
                let blind = if self.rng.one_in(4) { Blind::Delete } else { Blind::Write(self.value()) };
                plan.blind.push((key, blind));
            }
            80..=85 => self.plan_adds(world, &mut plan),
            86..=87 => {
                for _ in 0..2 {
                    let key = self.any(world, 'n', COUNTERS);
                    add(&mut plan, key);
                }
            }
            88..=92 => self.plan_mixed(world, &mut plan),
            _ => self.plan_sets(world, &mut plan),
        }
        self.plan_calls(world, &mut plan);
        plan
    }

    fn any(&mut self, world: &World, kind: char, count: u64) -> ObjectKey {
        let number = self.rng.below(count);
        self.object(world, kind, number)
    }

    /// The first object that is read is written, or now and then deleted.
    fn change_first(&mut self, plan: &mut Plan, key: ObjectKey) {
        plan.gets.push(key);
        if self.rng.one_in(4) { plan.deletes.push(0) } else { plan.updates.push(0) }
    }

    /// What is added to a counter. The first ones only grow. To the last ones so much is added, or taken away, that two of the
    /// same sign never fit: of those that are under way together only one may be prepared.
    fn delta(&mut self, number: u64) -> i64 {
        let amount = 1 + self.rng.below(9) as i64;
        let amount = if number >= 4 { (1 << 62) + amount } else { amount };
        if number >= 2 && self.rng.one_in(2) { -amount } else { amount }
    }

    fn plan_adds(&mut self, world: &World, plan: &mut Plan) {
        let (one, other) = (self.rng.below(COUNTERS), self.rng.below(COUNTERS));
        for number in if one == other { vec![one] } else { vec![one, other] } {
            let delta = self.delta(number);
            plan.blind.push((self.object(world, 'n', number), Blind::Add(delta)));
        }
    }

    /// Something is done with one to three mixed objects, which live at different homes.
    fn plan_mixed(&mut self, world: &World, plan: &mut Plan) {
        let first = self.rng.below(MIXED);
        for number in 0..=self.rng.below(3) {
            let key = self.object(world, 'm', (first + number) % MIXED);
            let blind = match self.rng.below(10) {
                0 => Blind::Write(self.value()),
                1 => Blind::Put(self.value()),
                2 => Blind::Delete,
                3..=5 => Blind::Add(self.rng.below(19) as i64 - 9),
                kind => {
                    match kind {
                        6 => plan.updates.push(plan.gets.len()),
                        7 => plan.deletes.push(plan.gets.len()),
                        _ => {}
                    }
                    plan.gets.push(key);
                    continue;
                }
            };
            plan.blind.push((key, blind));
        }
        if plan.gets.is_empty() && plan.blind.len() == 1 && self.rng.one_in(2) {
            let key = self.any(world, 'r', REGISTERS);
            self.change_first(plan, key);
        }
    }

    /// Sets: an insert, a look, or both; what is found may be taken out.
    fn plan_sets(&mut self, world: &World, plan: &mut Plan) {
        let number = self.rng.below(SETS);
        let (home, prefix) = self.set(world, number);
        let draw = self.rng.below(8);
        if draw >= 2 {
            let inserted = &self.txns.inserted[number as usize];
            let known = match inserted.len() as u64 {
                0 => 0,
                count => inserted[self.rng.below(count) as usize],
            };
            let part = match draw {
                2..=4 => SetPart::All { page: [3, 16, SCAN_ROWS as u32][self.rng.below(3) as usize] },
                5 => SetPart::After { element: known, limit: 1 + self.rng.below(6) as u32 },
                _ => SetPart::One { element: known },
            };
            plan.looks.push(Look { home, prefix: prefix.clone(), part, takes_out: self.rng.one_in(3) });
        }
        if draw <= 2 || draw == 7 {
            let element = self.value();
            self.txns.inserted[number as usize].push(element);
            plan.blind.push((ObjectKey::new(home, member(&prefix, element)), Blind::Insert(element)));
        }
        if self.rng.one_in(4) {
            let key = self.any(world, 'r', REGISTERS);
            self.change_first(plan, key);
        }
    }

    /// Some call memoized functions, and some end with an error of their own.
    fn plan_calls(&mut self, world: &World, plan: &mut Plan) {
        let functions = Functions { sites: world.len() as u64 };
        if self.rng.one_in(5) {
            if plan.updates.is_empty() {
                (plan.gets, plan.looks, plan.blind, plan.deletes) = Default::default();
            }
            for _ in 0..=self.rng.below(2) {
                let number = self.rng.below(REGISTERS);
                let call = match self.rng.below(6) {
                    0..=2 => functions.pick(number),
                    3..=4 => functions.both(number % 4),
                    _ => {
                        let (home, prefix) = self.set(world, number % SETS);
                        functions.count(home, &prefix)
                    }
                };
                plan.calls.push(call);
            }
        }
        plan.fails = self.rng.one_in(25);
    }

    /// At the end: everything is read in one transaction.
    fn plan_of_everything(&mut self, world: &World) -> Plan {
        let mut plan = Plan { fresh: true, ..Plan::default() };
        for (kind, count) in [('l', LISTS), ('r', REGISTERS), ('n', COUNTERS), ('m', MIXED)] {
            plan.gets.extend((0..count).map(|number| self.object(world, kind, number)));
        }
        for number in 0..SETS {
            let (home, prefix) = self.set(world, number);
            plan.looks.push(Look { home, prefix, part: SetPart::All { page: 16 }, takes_out: false });
        }
        let functions = Functions { sites: world.len() as u64 };
        plan.calls.extend((0..4).map(|number| functions.both(number)));
        plan
    }

    fn value(&mut self) -> u64 {
        self.txns.values += 1;
        self.txns.values
    }

    /// Runs a program again that others were in the way of: it asks for its turn.
    fn run_again(&mut self, world: &mut World, running: &Running) {
        let (at, mut plan, mut program) = (running.client, running.plan.clone(), running.program.clone());
        let site = self.clients[at].present_site();
        if running.is_last || self.session_at(world, at, site).is_none() {
            return;
        }
        program.contended += program.haste;
        if program.contended >= CONTENDED {
            return;
        }
        program.before = Some(Footprint::of(&running.draft));
        if !program.before.as_ref().is_some_and(|before| before.keeps_age(program.contended)) {
            program.since = world.now();
        }
        // No value is written twice, not even by a run that came to nothing.
        for (key, blind) in &mut plan.blind {
            match blind {
                Blind::Add(_) | Blind::Delete => {}
                Blind::Write(value) | Blind::Put(value) => *value = self.value(),
                Blind::Insert(element) => {
                    let prefix = key.name.rsplit_once('/').map(|(prefix, _)| format!("{prefix}/"));
                    *element = self.value();
                    key.name = member(&prefix.unwrap_or_default(), *element);
                }
            }
        }
        plan.fresh = true;
        self.probes.hit("transaction: run again");
        self.begin_run(world, at, site, plan, program, false);
    }

    fn begin_transaction(&mut self, world: &mut World, at: usize, site: usize, plan: Plan, is_last: bool) {
        let haste = if self.rng.one_in(2) { HASTE } else { 1 };
        let program = Program { nonce: self.rng.draw() | 1, since: world.now(), contended: 0, haste, before: None };
        self.begin_run(world, at, site, plan, program, is_last);
    }

    /// Begins a run of a program.
    fn begin_run(&mut self, world: &mut World, at: usize, site: usize, plan: Plan, program: Program, is_last: bool) {
        self.txns.labels += 1;
        let label = self.txns.labels;
        let (now, until) = (world.now(), world.now() + PATIENCE);
        let homes = (0..world.len()).map(|home| self.oracle.incarnation(home)).collect();
        let mut asked = (plan.gets.clone(), Vec::new());
        for look in &plan.looks {
            match look.first() {
                Missing::Get(key) => asked.0.push(key),
                Missing::Scan(region, span) => asked.1.push((region, span)),
                Missing::Call(_) | Missing::Void => {}
            }
        }
        let mut running = Running {
            program,
            reads: 0,
            is_whole: false,
            label,
            client: at,
            site,
            invoked: now,
            until,
            plan,
            draft: Draft::new(),
            asked,
            homes,
            ops: Vec::new(),
            blind: Vec::new(),
            is_last,
            has_written: false,
            treated: Treated::default(),
            refusals: 0,
        };
        if running.asked.0.is_empty() && running.asked.1.is_empty() {
            return self.advance(world, running);
        }
        running.label = label;
        self.ask_for(world, running);
    }

    /// Reads what the transaction asks for.
    fn ask_for(&mut self, world: &mut World, mut running: Running) {
        self.txns.labels += 1;
        let token = self.txns.labels;
        running.until = world.now() + PATIENCE;
        let (gets, scans) = running.asked.clone();
        let (at, site, fresh) = (running.client, running.site, running.plan.fresh);
        let upkeep = running.draft.is_treating();
        let claim = (running.reads == 0 && !upkeep).then(|| running.program.claim(world));
        self.txns.reading.insert(token, running);
        let read = Read { token, gets, scans, fresh, upkeep, timeout: 2 * SECOND, claim };
        self.send_read(world, at, site, token, read);
    }

    /// What a transaction reads is there.
    pub(crate) fn read(&mut self, world: &mut World, token: u64, reading: Reading) {
        let Some(mut running) = self.txns.reading.remove(&token) else { return };
        let (gets, scans) = std::mem::take(&mut running.asked);
        running.reads += 1;
        running.is_whole = reading.is_whole && running.reads == 1;
        for (key, got) in gets.iter().zip(reading.gets) {
            match got {
                Ok(seen) => {
                    if note(&mut running.draft, key, seen).is_err() {
                        return;
                    }
                }
                Err(abort) if running.has_written && is_call(&key.name) => {
                    // It cannot be told what it rests on: it is deleted.
                    self.count_abort(abort.cause);
                    running.draft.revoke(key);
                    running.treated.revoked += 1;
                }
                Err(abort) => {
                    self.judge_not_read(world, running.site, usize::from(key.home), running.until - PATIENCE, &abort);
                    return self.not_read(world, &abort);
                }
            }
        }
        for ((region, span), scanned) in scans.iter().zip(reading.scans) {
            match scanned {
                Ok(rows) => {
                    if running.draft.snapshot.note_scan(*region, span.clone(), rows).is_err() {
                        return;
                    }
                }
                Err(abort) => {
                    self.judge_not_read(world, running.site, usize::from(*region), running.until - PATIENCE, &abort);
                    return self.not_read(world, &abort);
                }
            }
        }
        self.advance(world, running);
    }

    fn not_read(&mut self, world: &mut World, abort: &Abort) {
        self.count_abort(abort.cause);
        if abort.cause == Cause::Lost
            && let Some(key) = &abort.key
        {
            self.accept_loss(world, usize::from(key.home));
        }
    }

    /// Goes on with a transaction as far as what it has read allows.
    fn advance(&mut self, world: &mut World, mut running: Running) {
        let functions = Functions { sites: world.len() as u64 };
        let went = if running.has_written {
            self.treat(functions, &mut running)
        } else {
            self.run_program(functions, &mut running).and_then(|()| self.treat_as_before(functions, &mut running))
        };
        match went {
            Ok(()) => self.commit(world, running),
            // It contradicts itself.
            Err(Missing::Void) => {}
            Err(Missing::Get(key) | Missing::Call(key)) => {
                running.asked.0.push(key);
                self.ask_for(world, running);
            }
            Err(Missing::Scan(region, span)) => {
                running.asked.1.push((region, span));
                self.ask_for(world, running);
            }
        }
    }

    /// Recomputes the calls that depended on what the run before wrote, as the client does.
    fn treat_as_before(&mut self, functions: Functions, running: &mut Running) -> Result<(), Missing> {
        let told = running.program.before.as_ref().map(|before| before.foretold(&running.draft)).unwrap_or_default();
        if running.plan.fails || told.is_empty() {
            return Ok(());
        }
        self.probes.hit("call: recomputed before any home asked");
        told.iter().for_each(|(home, calls)| running.draft.demand(*home, calls));
        self.treat(functions, running)
    }

    /// Recomputes the calls that depend on what a transaction writes.
    fn treat(&mut self, functions: Functions, running: &mut Running) -> Result<(), Missing> {
        while let Some(call) = running.draft.next_pending() {
            // Now and then a client does not have the code.
            let lacks_code = call.name.len() as u64 % 7 == running.label % 23;
            let treated = functions.treat(&mut running.draft, &call, lacks_code)?;
            running.treated.kept += treated.kept;
            running.treated.changed += treated.changed;
            running.treated.revoked += treated.revoked;
            running.treated.absent += treated.absent;
        }
        Ok(())
    }

    /// The program itself: what it learns, and what it writes.
    fn run_program(&mut self, functions: Functions, running: &mut Running) -> Result<(), Missing> {
        let plan = running.plan.clone();
        let mut facts_of_calls = Vec::new();
        for call in &plan.calls {
            let result = functions.call(&mut running.draft, None, call)?;
            facts_of_calls.extend(facts(call, &result));
        }
        let found = plan.looks.iter().map(|look| look.find(&running.draft)).collect::<Result<Vec<Found>, Missing>>()?;
        for fact in facts_of_calls {
            running.ops.extend(self.ops_of(functions, fact));
        }
        for (place, key) in plan.gets.iter().enumerate() {
            let incarnation = running.draft.snapshot.incarnation(key.home);
            running.homes[usize::from(key.home)] = incarnation;
            let value = running.draft.snapshot.known(key).flatten();
            let named = self.txns.history.key(&name(&key.name, key.home, incarnation));
            running.ops.push(self.saw(key.home, incarnation));
            if is_mixed(key) {
                let (value, sum) = mixed(value.as_ref());
                running.ops.extend([Op::Read { key: named, value }, Op::Since { key: named, sum }]);
            } else {
                running.ops.push(if is_list(key) {
                    Op::List { key: named, elements: elements(value.as_ref()) }
                } else if is_counter(key) {
                    let value = if let Some(Value::Counter(count)) = value { count } else { 0 };
                    Op::Sum { key: named, value }
                } else {
                    Op::Read { key: named, value: elements(value.as_ref()).first().copied() }
                });
            }
            if plan.deletes.contains(&place) {
                write(&mut running.draft, key.clone(), Change::Delete);
                if !plan.fails {
                    running.ops.push(Op::Delete { key: named });
                }
            }
            if plan.updates.contains(&place) {
                let element = self.value();
                let mut all = if is_list(key) { elements(value.as_ref()) } else { Vec::new() };
                all.push(element);
                let bytes = all.iter().flat_map(|element| element.to_le_bytes()).collect();
                let is_number = is_mixed(key) && self.rng.one_in(2);
                let put = if is_number { Value::Counter(element as i64 * UNIT) } else { Value::Bytes(bytes) };
                write(&mut running.draft, key.clone(), Change::Put(put));
                if !plan.fails {
                    running.ops.push(if is_list(key) {
                        Op::Append { key: named, element }
                    } else {
                        Op::Write { key: named, value: element }
                    });
                }
            }
        }
        for found in found {
            self.learn_of_set(&plan, found, running);
        }
        for (key, blind) in plan.blind.into_iter().filter(|_| !plan.fails) {
            let (change, object) = match blind {
                Blind::Write(value) => {
                    (Change::Put(Value::Bytes(value.to_le_bytes().to_vec().into())), key.name.clone())
                }
                Blind::Put(value) => (Change::Put(Value::Counter(value as i64 * UNIT)), key.name.clone()),
                Blind::Delete => (Change::Delete, key.name.clone()),
                Blind::Add(delta) => (Change::Add(delta), key.name.clone()),
                Blind::Insert(element) => {
                    let prefix = key.name.rsplit_once('/').map_or("", |(prefix, _)| prefix);
                    (Change::Put(Value::Bytes(element.to_le_bytes().to_vec().into())), format!("{prefix}/"))
                }
            };
            running.blind.push((usize::from(key.home), object, blind));
            write(&mut running.draft, key, change);
        }
        running.has_written = true;
        Ok(())
    }

    /// That a home was found in this incarnation: once somebody has seen that its objects are lost, nobody sees them again.
    fn saw(&mut self, home: u16, incarnation: Incarnation) -> Op {
        let home = self.txns.history.key(&format!("{home}"));
        Op::Incarnation { home, number: u64::from(incarnation.0) }
    }

    fn ops_of(&mut self, functions: Functions, fact: Fact) -> [Op; 2] {
        match fact {
            Fact::Holds { register: number, value, incarnation } => {
                let key = register(functions.sites, number);
                let named = name(&key.name, key.home, Incarnation(incarnation));
                let read = Op::Read { key: self.txns.history.key(&named), value };
                [self.saw(key.home, Incarnation(incarnation)), read]
            }
            Fact::Counts { prefix, count, incarnation } => {
                let number: u64 = prefix[1..2].parse().expect("a set's number");
                let home = (number % functions.sites) as u16;
                let prefix = self.txns.history.key(&name(&prefix, home, Incarnation(incarnation)));
                [self.saw(home, Incarnation(incarnation)), Op::Count { prefix, count }]
            }
        }
    }

    fn learn_of_set(&mut self, plan: &Plan, found: Found, running: &mut Running) {
        let Found { home, prefix: of, from, to, elements, takes_out } = found;
        let incarnation = running.draft.snapshot.incarnation(home);
        if incarnation > Incarnation(0) {
            running.homes[usize::from(home)] = incarnation;
        }
        let incarnation = running.homes[usize::from(home)];
        let prefix = self.txns.history.key(&name(&of, home, incarnation));
        running.ops.push(self.saw(home, incarnation));
        let is_all = (from, to) == (0, u64::MAX);
        if is_all {
            self.note_members(&of, elements.len());
        }
        let taken = elements.get(self.rng.below(elements.len().max(1) as u64) as usize).copied();
        running.ops.push(match is_all {
            true if self.rng.one_in(3) => Op::Count { prefix, count: elements.len() as u64 },
            true => Op::Members { prefix, elements },
            false => Op::Page { prefix, from, to, elements },
        });
        if let Some(element) = taken.filter(|_| takes_out) {
            write(&mut running.draft, ObjectKey::new(home, member(&of, element)), Change::Delete);
            if !plan.fails {
                running.ops.push(Op::Remove { prefix, element });
            }
        }
    }

    /// Hands a transaction over to be committed, and what it computed to be registered.
    fn commit(&mut self, world: &mut World, running: Running) {
        let (at, site) = (running.client, running.site);
        if self.session_at(world, at, site).is_none() {
            return;
        }
        let max_wait = self.max_wait();
        let draft = &running.draft;
        let mut transaction = if running.plan.fails { draft.to_validate() } else { draft.to_commit(max_wait) };
        let scanned = |home: &&mut Home| home.incarnation == Incarnation(0) && !home.part.scans.is_empty();
        let is_of_known = !transaction.homes.iter_mut().any(|home| scanned(&home));
        if running.is_whole && is_of_known && !transaction.homes.iter().any(|home| home.part.changes()) {
            // It has read everything at one time: there is nothing to be judged.
            self.probes.hit("transaction: needs no judgement");
            self.txns.committed += 1;
            if running.is_last {
                self.txns.finished.push(running.client);
            }
            return self.record(world.now(), running, Fate::Committed);
        }
        for home in transaction.homes.iter_mut().filter(scanned) {
            // Nothing was found in it, which tells of no incarnation; the history has it of this one.
            home.incarnation = running.homes[usize::from(home.region)];
        }
        transaction.origin = running.program.origin(world);
        let proposal = draft.proposal(running.label).map(|(_, proposal)| proposal);
        let timeouts = [400 * MILLISECOND, SECOND, 3 * SECOND, 8 * SECOND];
        let timeout = timeouts[self.rng.below(4) as usize];
        let operation = Operation::Commit(Box::new(transaction));
        if let Some(op) = self.submit(world, at, site, operation, timeout) {
            self.txns.committing.insert(op, running);
        }
        if let Some(proposal) = proposal {
            self.submit(world, at, site, Operation::Commit(Box::new(proposal)), 2 * SECOND);
        }
        self.flush(world, at, site);
    }

    fn max_wait(&mut self) -> u64 {
        if self.rng.one_in(12) { self.rng.below(50 * MILLISECOND) } else { 60 * SECOND }
    }

    fn note_members(&mut self, prefix: &str, members: usize) {
        for number in 0..SETS as usize {
            let is_full = members >= MEMBERS || self.txns.inserted[number].len() >= EVER_MEMBERS;
            if is_full && prefix.starts_with(&format!("s{number}.{}/", self.txns.epochs[number])) {
                self.txns.epochs[number] += 1;
                self.txns.inserted[number].clear();
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
    pub(crate) fn transaction_ended(&mut self, world: &mut World, op: u32, outcome: &Outcome) {
        let Some(mut running) = self.txns.committing.remove(&op) else {
            return match outcome {
                Outcome::Committed { .. } => self.probes.hit("call: registered"),
                _ => self.probes.hit("call: not registered"),
            };
        };
        if let Outcome::Aborted(abort) = outcome
            && let (Cause::Depended, Some(home)) = (abort.cause, abort.site)
            && running.refusals < REFUSALS
        {
            self.count_abort(abort.cause);
            running.refusals += 1;
            running.draft.demand(home.region, &abort.calls);
            return self.advance(world, running);
        }
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
                self.count_treated(running.treated);
                Fate::Committed
            }
            Outcome::Aborted(abort) => {
                self.count_abort(abort.cause);
                if abort.cause == Cause::WouldWait {
                    assert!(!abort.holders.is_empty() || abort.until.is_some(), "who holds what, or until when");
                }
                if matches!(abort.cause, Cause::Changed | Cause::Busy) {
                    self.run_again(world, &running);
                }
                Fate::Aborted
            }
            Outcome::Refused(_) => Fate::Aborted,
            _ => Fate::Unknown,
        };
        self.record(world.now(), running, fate);
    }

    fn count_treated(&mut self, treated: Treated) {
        let Treated { kept, changed, revoked, absent } = treated;
        let counts = [
            ("call: recomputed, the same", kept),
            ("call: recomputed, another", changed),
            ("call: revoked", revoked),
            ("call: noted as dependent, not there", absent),
        ];
        for (probe, count) in counts {
            (0..count).for_each(|_| self.probes.hit(probe));
        }
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
                    Blind::Write(value) | Blind::Put(value) => Op::Write { key, value },
                    Blind::Delete => Op::Delete { key },
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
        // What is wrong with a transaction as such, and a bound that no run reaches, have tests of their own.
        use Cause::{InvalidKey, Malformed, Overloaded, TooLarge, TooMuch, UnknownRegion};
        if !matches!(cause, InvalidKey | Malformed | Overloaded | TooLarge | TooMuch | UnknownRegion) {
            self.probes.hit(&format!("transaction: aborted, {}", cause.code()));
        }
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

impl Look {
    /// What it reads first.
    fn first(&self) -> Missing {
        let span = |after, limit| Missing::Scan(self.home, Span { prefix: self.prefix.clone(), after, limit });
        match self.part {
            SetPart::All { page } => span(String::new(), page),
            SetPart::After { element, limit } => span(member(&self.prefix, element), limit),
            SetPart::One { element } => Missing::Get(ObjectKey::new(self.home, member(&self.prefix, element))),
        }
    }

    /// What it finds in what was read, or what it reads next.
    fn find(&self, draft: &Draft) -> Result<Found, Missing> {
        let found = |from, to, elements| {
            let Look { home, prefix, takes_out, .. } = self.clone();
            Ok(Found { home, prefix, from, to, elements, takes_out })
        };
        let mut next = self.first();
        let mut all = Vec::new();
        loop {
            let (region, mut span) = match next {
                Missing::Scan(region, span) => (region, span),
                Missing::Get(key) => {
                    let value = draft.snapshot.known(&key).ok_or(Missing::Get(key))?;
                    let SetPart::One { element } = self.part else { unreachable!("scans look for no name") };
                    return found(element, element, elements(value.as_ref()));
                }
                other => return Err(other),
            };
            let missing = || Missing::Scan(region, span.clone());
            let rows = draft.snapshot.scanned(region, &span).ok_or_else(missing)?;
            all.extend(rows.iter().flat_map(|(_, value)| elements(Some(value))));
            let last = rows.last().filter(|_| rows.len() >= span.limit as usize);
            match (self.part, last) {
                (SetPart::All { .. }, Some((last, _))) => {
                    span.after = last.clone();
                    next = Missing::Scan(region, span);
                }
                (SetPart::After { element, .. }, last) => {
                    let to = last.and_then(|_| all.last().copied()).unwrap_or(u64::MAX);
                    return found(element + 1, to, all);
                }
                _ => return found(0, u64::MAX, all),
            }
        }
    }
}

/// What the history calls an object of one incarnation of its home.
fn name(object: &str, home: u16, incarnation: Incarnation) -> String {
    format!("{home}.{}:{object}", incarnation.0)
}

fn write(draft: &mut Draft, key: ObjectKey, change: Change) {
    draft.buffer.write(ROOT, key, change).expect("what it writes fits what it wrote");
}
