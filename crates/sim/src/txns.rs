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
//! Every element and value is written once in a run, so that whoever reads it names its writer. A client reads through its site, makes
//! up what to write, and submits the transaction like any other operation: with repetition, questions and fail-over. What it was told,
//! and when, goes into a history; when the run is over the checker says whether it is strictly serializable.
//!
//! A home that loses its storage loses its objects. Those of its next incarnation are other objects to the history. A client
//! that is told of a loss accepts it for the operator after a while; until then what is not there cannot be read.

mod plans;
mod programs;
mod records;

use slackline_core::api::{Operation, Outcome, Read, Reading};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::draft::Draft;
use slackline_core::draft::again::Footprint;
use slackline_core::id::Incarnation;
use slackline_core::object::{Abort, Cause, Home, ObjectKey, is_call};

use crate::calls::{Functions, Missing, Treated, note};
use crate::history::Fate;
use crate::state::txns::{Blind, Last, Plan, Program, Reads, Record, Running, Txns, member};
use crate::state::{Phase, Simulation};
use crate::world::World;
use programs::is_list;

/// Transactions that a client has under way at most.
const AT_ONCE: usize = 5;
/// A transaction that is refused so often because of calls is given up.
const REFUSALS: u32 = 8;
/// A program is given up when others were in its way so often.
const CONTENDED: u32 = 9;
/// Of two programs one counts each time as so many, so that what is asked for after many times is asked for often.
const HASTE: u32 = 3;
/// The time for which a client waits for what it reads, in microseconds.
const PATIENCE: u64 = 3 * SECOND;

impl Simulation {
    /// Begins transactions, if the client has few under way.
    pub(crate) fn begin_transactions(&mut self, world: &mut World, at: usize) {
        let now = world.now();
        self.txns.reading.retain(|_, running| running.reads.until > now);
        let of_client = |running: &&Running| running.client == at;
        let under_way = self.txns.reading.values().filter(of_client).count()
            + self.txns.committing.values().filter(of_client).count();
        if under_way >= AT_ONCE || self.phase.is_audit() || now < self.settings.txns_from {
            return;
        }
        let site = self.clients.all[at].current;
        if !self.ensure_session(world, at, site) {
            return;
        }

        if self.txns.committed >= self.settings.options.transactions {
            if self.phase == Phase::Healing && under_way == 0 {
                self.begin_last(world, at, site);
            }
            return;
        }

        for _ in under_way..AT_ONCE {
            let plan = self.plan_transaction();
            self.begin_transaction(world, at, site, plan, None);
            if self.rng.one_in(2) {
                break;
            }
        }
    }

    /// At the end each client writes every object at its home, which nothing may be in the way of for good, and then reads
    /// everything: what is there must be what the history says.
    fn begin_last(&mut self, world: &mut World, at: usize, site: usize) {
        let home = self.clients.all[at].home;
        if !self.txns.rewritten.contains(&at) && home < self.settings.homes {
            let plan = self.plan_of_writes(home);
            self.begin_transaction(world, at, site, plan, Some(Last::Writes));
        } else if !self.txns.finished.contains(&at) {
            let plan = self.plan_of_everything();
            self.begin_transaction(world, at, site, plan, Some(Last::Reads));
        }
    }

    /// A client's transaction was committed; perhaps it is one of its last.
    fn note_last(&mut self, running: &Running) {
        match running.last {
            Some(Last::Writes) => self.txns.rewritten.push(running.client),
            Some(Last::Reads) => self.txns.finished.push(running.client),
            None => {}
        }
    }

    /// A client at an object's home begins a transaction that reads it there, and perhaps writes it.
    pub(crate) fn begin_for_one(&mut self, world: &mut World, at: usize, key: ObjectKey, writes: bool) {
        if (is_list(&key) || key.name.starts_with('r')) && self.ensure_session(world, at, at) {
            let updates = if writes { vec![0] } else { Vec::new() };
            let plan = Plan { gets: vec![key], updates, fresh: true, ..Plan::default() };
            self.begin_transaction(world, at, at, plan, None);
        }
    }

    /// A client begins a transaction that calls a function.
    pub(crate) fn begin_call(&mut self, world: &mut World, at: usize, call: ObjectKey, fresh: bool) {
        if self.ensure_session(world, at, at) {
            let plan = Plan { calls: vec![call], fresh, ..Plan::default() };
            self.begin_transaction(world, at, at, plan, None);
        }
    }

    /// Returns true if clients have done all that they have to do with objects.
    pub(crate) fn transactions_are_done(&self) -> bool {
        self.txns.committed >= self.settings.options.transactions
            && self.txns.reading.is_empty()
            && self.txns.committing.is_empty()
            && self.txns.finished.len() >= self.settings.members.len().min(self.clients.all.len())
            && self.homes_are_rewritten()
    }

    /// True if all objects of each home were written at the end, by one of its clients.
    fn homes_are_rewritten(&self) -> bool {
        let written = |home: usize| self.txns.rewritten.iter().any(|at| self.clients.all[*at].home == home);
        (0..self.settings.homes).all(written)
    }

    /// What clients still wait for, in words.
    pub(crate) fn transactions_wait_for(&self) -> Vec<String> {
        let Txns { committed, rewritten, finished, reading, committing, .. } = &self.txns;
        let (written, read) = (rewritten.len(), finished.len());
        let done = format!(
            "{committed} transactions committed, {written} clients have written everything, {read} have read it"
        );
        // What they have read is long; who they are says where to look in the trace.
        let told = |running: &Running| {
            let Running { client, site, last, program, reads, .. } = running;
            let last = match last {
                Some(Last::Writes) => ", writing everything",
                Some(Last::Reads) => ", reading everything",
                None => "",
            };
            let (since, answered) = (program.since, reads.answered);
            format!("client {client} through site {site} since {since}{last}, {answered} reads answered")
        };
        let under_way = reading.values().chain(committing.values()).take(3).map(told);
        [done].into_iter().chain(under_way).collect()
    }

    /// Runs a program again that others were in the way of: it asks for its turn.
    fn run_again(&mut self, world: &mut World, running: &Running) {
        let (at, mut plan, mut program) = (running.client, running.plan.clone(), running.program.clone());
        let site = self.clients.all[at].current;
        if running.last.is_some() || !self.ensure_session(world, at, site) {
            return;
        }

        program.contended += program.haste;
        if program.contended >= CONTENDED {
            return;
        }

        // Like the product's client: what the run before has read says where to ask for a turn, and for how long it has waited.
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
        self.begin_run(world, at, site, plan, program, None);
    }

    /// Begins the first run of a program.
    fn begin_transaction(&mut self, world: &mut World, at: usize, site: usize, plan: Plan, last: Option<Last>) {
        let haste = if self.rng.one_in(2) { HASTE } else { 1 };
        let program = Program { nonce: self.rng.draw() | 1, since: world.now(), contended: 0, haste, before: None };
        self.begin_run(world, at, site, plan, program, last);
    }

    /// Begins a run of a program.
    fn begin_run(
        &mut self,
        world: &mut World,
        at: usize,
        site: usize,
        plan: Plan,
        program: Program,
        last: Option<Last>,
    ) {
        self.txns.labels += 1;
        let label = self.txns.labels;
        let (now, until) = (world.now(), world.now() + PATIENCE);
        let homes = (0..world.len()).map(|home| self.oracle.incarnation(home)).collect();

        // What is read first does not depend on what is found, so it is asked for at once.
        let (mut gets, mut scans) = (plan.gets.clone(), Vec::new());
        for look in &plan.looks {
            match look.first() {
                Missing::Get(key) => gets.push(key),
                Missing::Scan(region, span) => scans.push((region, span)),
                Missing::Call(_) | Missing::Void => {}
            }
        }

        let has_something_to_read = !gets.is_empty() || !scans.is_empty();
        let running = Running {
            program,
            client: at,
            site,
            plan,
            draft: Draft::new(),
            reads: Reads { answered: 0, is_whole: false, until, gets, scans },
            record: Record { label, invoked: now, homes, ops: Vec::new(), blind: Vec::new() },
            last,
            has_written: false,
            treated: Treated::default(),
            refusals: 0,
        };
        if has_something_to_read { self.ask_for(world, running) } else { self.advance(world, running) }
    }

    /// Reads what the transaction asks for.
    fn ask_for(&mut self, world: &mut World, mut running: Running) {
        self.txns.labels += 1;
        let token = self.txns.labels;

        running.reads.until = world.now() + PATIENCE;
        let (gets, scans) = (running.reads.gets.clone(), running.reads.scans.clone());
        let (at, site, fresh) = (running.client, running.site, running.plan.fresh);

        // Only a program's first read asks for its turn, and upkeep of calls does not wait for one.
        let upkeep = running.draft.is_treating();
        let claim = (running.reads.answered == 0 && !upkeep).then(|| running.program.claim(world));
        self.txns.reading.insert(token, running);
        let read = Read { token, gets, scans, fresh, upkeep, timeout: 2 * SECOND, claim };
        self.send_read(world, at, site, token, read);
    }

    /// What a transaction reads is there.
    pub(crate) fn read(&mut self, world: &mut World, token: u64, reading: Reading) {
        let Some(mut running) = self.txns.reading.remove(&token) else { return };

        let reads = &mut running.reads;
        let (gets, scans) = (std::mem::take(&mut reads.gets), std::mem::take(&mut reads.scans));
        reads.answered += 1;
        reads.is_whole = reading.is_whole && reads.answered == 1;

        // What contradicts what was read before can never be committed: the client gives it up.
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
                    return self.not_read(world, &running, usize::from(key.home), &abort);
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
                    return self.not_read(world, &running, usize::from(*region), &abort);
                }
            }
        }

        self.advance(world, running);
    }

    /// An object was not read: the transaction is given up.
    fn not_read(&mut self, world: &mut World, running: &Running, home: usize, abort: &Abort) {
        self.judge_not_read(world, running.site, home, running.reads.until - PATIENCE, abort);
        self.count_abort(abort.cause);
        if abort.cause == Cause::Lost
            && let Some(key) = &abort.key
        {
            self.accept_loss(world, usize::from(key.home));
        }
    }

    /// Goes on with a transaction as far as what it has read allows.
    fn advance(&mut self, world: &mut World, mut running: Running) {
        let functions = Functions { sites: self.settings.homes as u64 };
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
                running.reads.gets.push(key);
                self.ask_for(world, running);
            }
            Err(Missing::Scan(region, span)) => {
                running.reads.scans.push((region, span));
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
            let lacks_code = call.name.len() as u64 % 7 == running.record.label % 23;
            let Treated { kept, changed, revoked, absent } = functions.treat(&mut running.draft, &call, lacks_code)?;
            running.treated.kept += kept;
            running.treated.changed += changed;
            running.treated.revoked += revoked;
            running.treated.absent += absent;
        }
        Ok(())
    }

    /// Hands a transaction over to be committed, and what it computed to be registered.
    fn commit(&mut self, world: &mut World, running: Running) {
        let (at, site) = (running.client, running.site);
        if !self.ensure_session(world, at, site) {
            return;
        }

        let max_wait = self.max_wait();
        let draft = &running.draft;
        let mut transaction = if running.plan.fails { draft.to_validate() } else { draft.to_commit(max_wait) };
        let scanned = |home: &&mut Home| home.incarnation == Incarnation(0) && !home.part.scans.is_empty();
        let is_of_known = !transaction.homes.iter_mut().any(|home| scanned(&home));

        if running.reads.is_whole && is_of_known && !transaction.homes.iter().any(|home| home.part.changes()) {
            // It has read everything at one time: there is nothing to be judged.
            self.probes.hit("transaction: needs no judgement");
            self.txns.committed += 1;
            self.note_last(&running);
            return self.record(world.now(), running.client, running.record, Fate::Committed);
        }

        for home in transaction.homes.iter_mut().filter(scanned) {
            // Nothing was found in it, which tells of no incarnation; the history has it of this one.
            home.incarnation = running.record.homes[usize::from(home.region)];
        }

        // The same origin goes with all runs, so that the homes know whose turn it is. What was computed is proposed beside: it may be
        // registered although this is aborted, or not although it is committed.
        transaction.origin = running.program.origin(world);
        let proposal = draft.proposal(running.record.label).map(|(_, proposal)| proposal);
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

    /// Returns the longest time that a transaction may wait for rights.
    fn max_wait(&mut self) -> u64 {
        if self.rng.one_in(12) { self.rng.below(50 * MILLISECOND) } else { 60 * SECOND }
    }

    /// An operator notes that the objects of a home are gone; not at once, so that clients come across the loss.
    fn accept_loss(&mut self, world: &mut World, home: usize) {
        let now = world.now();
        self.txns.accepting.retain(|(_, until)| *until > now);
        if self.txns.accepting.iter().any(|(other, _)| *other == home) || !self.rng.one_in(6) {
            return;
        }

        let at = self.clients.all.iter().position(|client| client.home == home).expect("every site has clients");
        if !self.ensure_session(world, at, home) {
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

        // A home has told which calls depend on what it writes. They are computed again on what is about to be written, and the same run
        // is handed over once more.
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
                self.note_last(&running);
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

        self.record(world.now(), running.client, running.record, fate);
    }
}
