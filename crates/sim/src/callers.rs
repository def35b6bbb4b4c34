//! Callers of the product's client: programs as users write them, over `slackline-session`, under every fault.
//!
//! The other clients of a run speak to sites themselves, and do what no sound client does. These do not: sessions, ids, repetition,
//! fail-over, what is given back, reads, and running programs again are the product's. A caller takes tokens of one quota and gives them
//! back, goes away without waiting, and runs transactions over pairs of lists; each list of a pair always holds the same numbers. What a
//! caller is told goes into the ledger, and is judged by [`callers`].
//!
//! A wire is a stream between a client and a site: what is sent on it arrives in order, or not at all once it breaks. It breaks when its site
//! crashes, and for no reason; it also falls silent for seconds, as a path does whose packets are dropped.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::api::{Hold, Operation, Outcome, Refusal, Request, Response, UnknownReason};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{GrantId, OperationId};
use slackline_core::right::held_until;
use slackline_core::session::as_kept;
use slackline_core::stats::Rng;
use slackline_session::call::{CallFuture, Place, Verdict};
use slackline_session::command::{Command, Finished, Reply};
use slackline_session::key::Key;
use slackline_session::memoized;
use slackline_session::outcome::Outcome as Ended;
use slackline_session::port::{Port, until};
use slackline_session::sessions::WATCH;
use slackline_session::time::Time;
use slackline_session::txn::{Committed, Transaction, Txn, TxnError};

use crate::clock::EPSILON;
use crate::desk::Errand;
use crate::invariants::callers::{self, End, Program};
use crate::oracle::Origin;
use crate::state::callers::{Event, Ledger, Seat, Wire};
use crate::state::post::Purpose;
use crate::state::timer::Timer;
use crate::state::{Phase, Simulation};
use crate::world::World;

/// Callers of each client.
const CALLERS: usize = 2;
/// The quota of the callers, and its limit.
const QUOTA: &str = "shared";
const LIMIT: i64 = 400;
/// The number of pairs of lists.
pub(crate) const PAIRS: usize = 3;
/// The longest pause between two things that a caller does, in microseconds.
const THINK: u64 = 3 * SECOND;
/// One in this many requests breaks its wire; and one in this many lets it fall silent.
const BREAKS: u64 = 120;
const SILENCES: u64 = 80;
/// The time for which a caller waits for a transaction.
pub(crate) const TRANSACTION: [u64; 3] = [SECOND, 4 * SECOND, 10 * SECOND];

memoized! {
    /// What both lists of a pair hold: how many, and the last.
    static BOTH: async fn(txn: Txn, left: u32, right: u32, pair: u32) -> Result<(u64, u64, u64), TxnError> {
        let of = |region: u32, side: &str| Key::new(format!("r{region}"), format!("pair/{pair}/{side}"));
        let left: Vec<u64> = txn.get(&of(left, "l")).await?.unwrap_or_default();
        let right: Vec<u64> = txn.get(&of(right, "r")).await?.unwrap_or_default();
        Ok((left.len() as u64, right.len() as u64, left.last().copied().unwrap_or(0)))
    } => |arguments| format!("r{}", arguments.0);
}

impl Simulation {
    /// Lets callers begin, once transactions may.
    pub(crate) fn begin_callers(&mut self, world: &mut World) {
        if self.callers.has_begun || world.now() < self.settings.txns_from.max(2 * SECOND) {
            return;
        }
        self.callers.has_begun = true;
        for seat in self.callers.clients.clone() {
            for _ in 0..CALLERS {
                let rng = Rng::new(self.callers.rng.draw());
                let ledger = Rc::clone(&self.callers.ledger);
                self.callers.desk.spawn(caller(seat.clone(), ledger, rng, self.settings.silence));
            }
        }
        self.begin_treaties(world);
        self.run_callers(world);
    }

    /// True once callers have ended and nothing is under way for them. From the first call with `is_over` they begin nothing new.
    pub(crate) fn callers_are_done(&self, is_over: bool) -> bool {
        if is_over {
            self.callers.ledger.borrow_mut().is_over = true;
        }
        self.callers.are_done()
    }

    /// What callers wait for, in words.
    pub(crate) fn callers_wait_for(&self) -> String {
        let busy = (0..self.callers.desk.wires()).filter_map(|wire| {
            let link = self.callers.desk.link(wire);
            let has_work = link.change(|sessions, _| sessions.has_work());
            has_work.then(|| format!("{} has work: {:?}", link.name, link.left()))
        });
        let treaties = self.callers.ledger.borrow().treaties;
        let open = format!("{} callers, {treaties} transactions over treaties", self.callers.desk.open());
        std::iter::once(open).chain(busy).collect::<Vec<_>>().join("; ")
    }

    /// Lets callers act, and does what their client asks for.
    pub(crate) fn run_callers(&mut self, world: &mut World) {
        loop {
            let errands = self.callers.desk.work(world.now());
            self.note_events(world);
            if errands.is_empty() {
                return self.callers.desk.check();
            }
            for errand in errands {
                match errand {
                    Errand::Connect { wire, through } => self.connect_caller(world, wire, through),
                    Errand::Send { wire, stream, through, request } => {
                        self.send_for_caller(world, wire, stream, through, request);
                    }
                    Errand::WakeAt { at, name } => {
                        // As long after the silence as it was to be after now: a site may crash in it, and its streams be opened again.
                        let at = match self.settings.silence {
                            Some((from, until)) if (from..until).contains(&at) => until + at - world.now().max(from),
                            _ => at,
                        };
                        world.wake_at(at, Timer::Caller(name as usize).token());
                    }
                }
            }
        }
    }

    /// A time has come that a caller waits for.
    pub(crate) fn caller_rings(&mut self, world: &mut World, name: u64) {
        self.callers.desk.rings(world.now(), name);
        self.run_callers(world);
    }

    /// A site crashes: the streams to it break.
    pub(crate) fn callers_lose(&mut self, world: &mut World, site: usize) {
        for wire in self.callers.desk.wires_to(site) {
            self.callers.desk.broken(world.now(), wire);
        }
        // What is to be done comes at the next turn; a crash is in the midst of one.
        world.wake_at(world.now(), Timer::Caller(0).token());
    }

    fn connect_caller(&mut self, world: &World, wire: usize, through: usize) {
        let is_up = world.node(through).is_some();
        let is_lucky = self.phase != Phase::Faults || !self.callers.rng.one_in(10);
        if is_up && is_lucky {
            self.callers.wires[wire] = Wire::default();
            self.callers.desk.connected(world.now(), wire);
        } else {
            self.callers.desk.broken(world.now(), wire);
        }
    }

    fn send_for_caller(&mut self, world: &mut World, wire: usize, stream: u64, through: usize, request: Request) {
        // To its client a batch has left, whatever becomes of it: the operations have ids by now.
        if let Request::Batch(batch) = &request {
            self.note_batch(world, wire, through, batch);
        }
        // A wire that broke in this turn sends nothing more.
        if self.callers.desk.through(wire, stream).is_none() {
            return;
        }
        if self.phase == Phase::Faults {
            let now = world.now();
            let rng = &mut self.callers.rng;
            if rng.one_in(SILENCES) {
                let lasts = SECOND / 2 + rng.below(5 * SECOND);
                self.callers.wires[wire].silent_until = now + lasts;
                self.probes.hit("caller: its site falls silent");
            } else if rng.one_in(BREAKS) {
                self.probes.hit("caller: its stream breaks");
                // What was sent may have arrived.
                if rng.one_in(2) {
                    let arrives = self.arrival(world, wire, through, 0);
                    self.ask_site(world, arrives, through, Purpose::Caller { wire, stream }, request);
                }
                return self.callers.desk.broken(now, wire);
            }
        }
        let arrives = self.arrival(world, wire, through, 0);
        self.ask_site(world, arrives, through, Purpose::Caller { wire, stream }, request);
    }

    /// When something arrives that is sent on a wire now: in order, and not while it is silent.
    fn arrival(&mut self, world: &World, wire: usize, through: usize, way: usize) -> u64 {
        let client = wire / world.len();
        let far = world.delay(client, through);
        let rng = &mut self.callers.rng;
        let at = world.now() + 300 + far + rng.below(1 + far / 10);
        let of = &mut self.callers.wires[wire];
        let at = at.max(of.silent_until).max(of.last[way] + 1);
        of.last[way] = at;
        at
    }

    /// A response leaves its site for a caller: when it arrives.
    pub(crate) fn caller_mail(&mut self, world: &World, wire: usize, site: usize) -> u64 {
        self.arrival(world, wire, site, 1)
    }

    /// A response reaches a caller's client.
    pub(crate) fn caller_receives(&mut self, world: &mut World, wire: usize, stream: u64, response: Response) {
        if let Response::Opened { incarnation, session, .. } = &response
            && self.callers.desk.through(wire, stream) == Some(self.callers.desk.site(wire))
        {
            let site = self.callers.desk.site(wire);
            self.callers.sessions.insert((wire, *session), *incarnation);
            self.oracle.sessions.entry((site, *incarnation, *session)).or_default();
        }
        self.callers.desk.receive(world.now(), wire, stream, response);
        self.run_callers(world);
    }

    /// A batch leaves a client: the oracle learns its operations, and an id that was used is used for the same.
    fn note_batch(&mut self, world: &World, wire: usize, through: usize, batch: &slackline_core::api::Batch) {
        let site = self.callers.desk.site(wire);
        let of = (site, batch.incarnation, batch.session);
        for submission in &batch.operations {
            let known = self.oracle.sessions.get(&of).map_or(0, Vec::len) as u64;
            // Ids of calls that were handed over before they left are given before, and sent after, those of others.
            for sequence in known + 1..=submission.sequence {
                let id = OperationId { site: batch.site, incarnation: of.1, session: of.2, sequence };
                let operation = submission.operation.clone();
                self.oracle.register(world.now(), id, operation, submission.timeout, Origin::Caller);
            }
            let op = self.oracle.sessions[&of][submission.sequence as usize - 1];
            let known = &mut self.oracle.ops[op as usize];
            if known.sent.times == 0 {
                known.operation = submission.operation.clone();
                known.sent.first = world.now();
            }
            known.sent.again(through != site);
            let (about, is_same) = (known.id, known.operation == submission.operation);
            self.oracle.blame(callers::SAME_ID, callers::check_id(is_same), about);
        }
    }

    /// Judges what callers were told since they were last looked at.
    fn note_events(&mut self, world: &mut World) {
        let events = std::mem::take(&mut self.callers.ledger.borrow_mut().events);
        for event in events {
            match event {
                Event::Told { id, command, outcome } => {
                    let Some(op) = self.op_of(id) else { continue };
                    let known = &self.oracle.ops[op as usize];
                    let outcome = as_kept(outcome);
                    let is_own = known.operation == command.operation();
                    let is_lost = self.oracle.lost.contains(&(known.site, id.incarnation)) || self.is_gone(known.site);
                    let found = callers::check_told(is_own, is_lost, known.durable.as_ref(), &outcome);
                    self.oracle.blame(callers::OWN_OUTCOME, found, id);
                    let known = &mut self.oracle.ops[op as usize];
                    known.told = known.told.take().or(Some(outcome));
                }
                Event::Held { holder, id, amount, until } => {
                    let Some(op) = self.op_of(id) else { continue };
                    let hold = self.oracle.hold(world.now(), op, amount, until);
                    self.callers.holds.insert(holder, (hold, amount));
                }
                Event::LetGo { holder } => {
                    if let Some((hold, amount)) = self.callers.holds.remove(&holder) {
                        self.oracle.let_go(world.now(), hold, amount);
                    }
                }
                Event::InDoubt { id, command } => {
                    let Some(op) = self.op_of(id) else { continue };
                    self.probes.hit("caller: its deadline passes in doubt");
                    let is_own = self.oracle.ops[op as usize].operation == command.operation();
                    self.oracle.blame(callers::OWN_OUTCOME, callers::check_own(is_own), id);
                    // It asks what became of it, as long as the client keeps that from being forgotten.
                    // A session that was open while all were silent may have ended in that time.
                    if self.settings.silence.is_none_or(|(from, _)| world.now() < from) {
                        self.callers.wanted.insert(op, world.now() + WATCH.as_micros() as u64);
                    }
                    let look_at = world.now() + self.callers.rng.below(20 * SECOND);
                    self.ask_later(id, op, look_at);
                }
                Event::Verdict { treaty, began, verdict } => self.judge_verdict(world.now(), treaty, began, verdict),
                Event::Ordered { entry, seen, told } => self.judge_ordered(entry, &seen, told),
                Event::Probe(name) => self.probes.hit(name),
            }
        }
    }

    fn op_of(&mut self, id: OperationId) -> Option<u32> {
        let site = self.settings.members.binary_search(&id.site).ok()?;
        let of = self.oracle.sessions.get(&(site, id.incarnation, id.session));
        let op = of.and_then(|ops| ops.get(id.sequence as usize - 1)).copied();
        if op.is_none() {
            self.oracle.blame(callers::OWN_OUTCOME, Err("nobody sent it".to_owned()), id);
        }
        op
    }

    /// What the callers' client could not settle: those tokens are in doubt, or still out.
    pub(crate) fn take_over_from_callers(&mut self, world: &World) {
        for wire in 0..self.callers.desk.wires() {
            for left in self.callers.desk.link(wire).left() {
                let (Some(id), Some(outcome)) = (left.id, left.outcome) else { continue };
                let Some(op) = self.op_of(id) else { continue };
                let known = &mut self.oracle.ops[op as usize];
                known.told = known.told.take().or(Some(outcome.clone()));
                if let (Command::Release { amount, .. }, Outcome::Refused(_)) = (&left.command, &outcome) {
                    let at = self.callers.desk.site(wire);
                    self.hold_again(world.now(), at, op, *amount);
                }
            }
        }
    }

    /// At rest, all pairs are read through the product's client.
    pub(crate) fn read_pairs(&mut self, world: &mut World) {
        if !std::mem::replace(&mut self.callers.is_read, true) {
            let (seat, ledger) = (self.callers.clients[0].clone(), Rc::clone(&self.callers.ledger));
            self.callers.desk.spawn(async move {
                for pair in 0..PAIRS {
                    let found = final_of(&seat, pair).await;
                    ledger.borrow_mut().finals.push(found);
                }
            });
            self.run_callers(world);
        }
    }

    /// Judges what callers were told of their programs by what is there in the end.
    pub(crate) fn judge_callers(&mut self) {
        let ledger = self.callers.ledger.borrow();
        let mut found = Vec::new();
        for pair in 0..PAIRS {
            // What was lost with its storage is gone, and what comes after it begins again.
            let homes = homes_of(pair, self.settings.homes);
            if self.oracle.lost.iter().any(|(site, _)| homes.0 == *site || homes.1 == *site) {
                continue;
            }
            let Some(last) = ledger.finals.get(pair) else {
                found.push((callers::ONCE, Err("it was not read at rest".to_owned()), pair));
                continue;
            };
            let programs = ledger.programs.iter().filter(|(_, program)| program.pair == pair);
            let programs: Vec<(u64, &Program)> = programs.map(|(number, program)| (*number, program)).collect();
            found.push((callers::ONCE, callers::check_once(&programs, last), pair));
            found.push((callers::ONE_STATE, callers::check_states(&programs, last), pair));
        }
        drop(ledger);
        for (name, found, pair) in found {
            self.oracle.blame(name, found, format_args!("pair {pair}"));
        }

        // Grants that nobody can know of any more are told as such when the client is closed.
        let left = (0..self.callers.desk.wires()).flat_map(|wire| self.callers.desk.link(wire).left());
        let mut unsettled: Vec<GrantId> = left.filter_map(|left| released_by(&left.command)).collect();
        // So are their callers, of a release whose session is forgotten; and one whose caller goes away ends with its deadline.
        unsettled.extend(self.oracle.ops.iter().filter_map(|op| match (&op.operation, &op.told) {
            (Operation::ReleaseGrant { grant, .. }, None | Some(Outcome::Unknown(_))) => Some(*grant),
            _ => None,
        }));
        let mut kept = Vec::new();
        for op in self.oracle.ops.iter().filter(|op| op.origin == Origin::Caller) {
            let Some(Outcome::Granted { grant, .. }) = op.durable else { continue };
            let is_out = op.tracked.is_some_and(|tracked| tracked.until.is_none() && !tracked.ended);
            let is_lost = self.oracle.lost.contains(&(op.site, op.id.incarnation));
            let is_unknown = matches!(op.told, Some(Outcome::Unknown(_)));
            if is_out && !is_lost && !is_unknown && !unsettled.contains(&grant) {
                kept.push(op.id.to_string());
            }
        }
        for about in kept {
            self.oracle.blame(callers::GIVEN_BACK, Err("its grant is out, and nobody has it".to_owned()), &about);
        }
    }
}

/// The grant that a command gives back.
fn released_by(command: &Command) -> Option<GrantId> {
    match command {
        Command::ReleaseGrant { grant, .. } => Some(*grant),
        _ => None,
    }
}

/// The sites at which the lists of a pair are at home.
fn homes_of(pair: usize, sites: usize) -> (usize, usize) {
    (pair % sites, (pair + 1) % sites)
}

/// One caller: one thing after another, until the run is about to end.
async fn caller(seat: Seat, ledger: Rc<RefCell<Ledger>>, mut rng: Rng, silence: Option<(u64, u64)>) {
    loop {
        pause(&seat, &mut rng, THINK, silence).await;
        if ledger.borrow().is_over {
            return;
        }
        match rng.below(10) {
            0 => create(&seat).await,
            1..=5 => use_tokens(&seat, &ledger, &mut rng).await,
            _ => run_program(&seat, &ledger, &mut rng).await,
        }
    }
}

/// Waits for so many microseconds at most, and besides while all are silent.
pub(crate) async fn pause(seat: &Seat, rng: &mut Rng, longest: u64, silence: Option<(u64, u64)>) {
    let mut next = seat.port.now().0 + rng.below(longest);
    if let Some((from, until)) = silence
        && (from..until).contains(&next)
    {
        next = until + rng.below(longest);
    }
    seat.port.sleep_until(Time(next)).await;
}

async fn create(seat: &Seat) {
    seat.call(Command::create(QUOTA, LIMIT), Place::Nearest, 5 * SECOND, None).await;
}

/// Takes tokens, holds them, and gives them back.
async fn use_tokens(seat: &Seat, ledger: &Rc<RefCell<Ledger>>, rng: &mut Rng) {
    let amount = 1 + rng.below(6) as i64;
    let hold = match rng.below(3) {
        0 => Hold::Counted,
        1 => Hold::Open,
        _ => Hold::For(SECOND / 2 + rng.below(20 * SECOND)),
    };
    let place = match rng.below(4) {
        0 => Place::Region(rng.below(seat.sites as u64) as u16),
        _ => Place::Nearest,
    };
    let deadline = [300 * MILLISECOND, SECOND, 5 * SECOND, 20 * SECOND][rng.below(4) as usize];
    let patience = match hold {
        Hold::For(_) => Some(SECOND),
        _ => rng.one_in(2).then_some(300 * MILLISECOND),
    };
    let waits = rng.one_in(4);
    let command = Command::Acquire { quota: QUOTA.into(), amount, hold, waits };
    let call = seat.call(command.clone(), place, deadline, patience);

    // Some callers go away without waiting for the answer: what they are granted is given back.
    let leaves = rng.one_in(4).then(|| seat.port.now() + Duration::from_micros(rng.below(2 * deadline)));
    let Some(verdict) = wait_for(seat, leaves, call).await else {
        ledger.borrow_mut().events.push(Event::Probe("caller: goes away"));
        return;
    };
    let Some((finished, outcome)) = told(ledger, command, verdict) else { return };
    let Outcome::Granted { grant, lasts } = outcome else { return };
    let (Some(id), Some(sent_at)) = (finished.id, finished.sent_at) else { return };
    let ends = lasts.map(|lasts| held_until(sent_at.0, lasts, EPSILON as u64));
    let holder = ledger.borrow_mut().hold(id, amount, ends);
    let uses = seat.at_most(rng.below(3 * SECOND));
    seat.port.sleep_until(uses).await;
    if ends.is_some_and(|ends| rng.one_in(2) || ends <= seat.port.now().0) {
        return;
    }
    ledger.borrow_mut().events.push(Event::LetGo { holder });
    give_back(seat, ledger, rng, hold, grant, amount).await;
}

/// Gives tokens back; a caller whose site says nothing leaves that to the client.
async fn give_back(seat: &Seat, ledger: &Rc<RefCell<Ledger>>, rng: &mut Rng, hold: Hold, grant: GrantId, amount: i64) {
    let (command, place) = match hold {
        Hold::Counted => (Command::Release { quota: QUOTA.into(), amount }, Place::Nearest),
        _ => (Command::ReleaseGrant { grant, used: 0 }, Place::Site(grant.site)),
    };
    let patience = rng.one_in(2).then_some(SECOND);
    let leaves = rng.one_in(8).then(|| seat.at_most(SECOND / 2));
    loop {
        let call = seat.call(command.clone(), place.clone(), 30 * SECOND, patience);
        let Some(verdict) = wait_for(seat, leaves, call).await else { return };
        let is_taken =
            !matches!(verdict, Verdict::Stranded(_) | Verdict::Finished(Finished { reply: Reply::NotTaken(_), .. }));
        let outcome = told(ledger, command.clone(), verdict).map(|(_, outcome)| outcome);
        // What is refused is still the caller's, unless there is nothing to give back any more.
        let is_over = match outcome {
            Some(Outcome::Refused(refusal)) => matches!(refusal, Refusal::UnknownGrant | Refusal::QuotaDeleted),
            _ => is_taken,
        };
        if is_over {
            return;
        }
        seat.port.sleep_until(seat.at_most(SECOND)).await;
    }
}

/// Writes down what a caller was told; the outcome if its site gave one.
pub(crate) fn told(ledger: &Rc<RefCell<Ledger>>, command: Command, verdict: Verdict) -> Option<(Finished, Outcome)> {
    let Verdict::Finished(finished) = verdict else { return None };
    let events = &mut ledger.borrow_mut().events;
    match &finished.reply {
        Reply::Answered(outcome) => {
            let outcome = outcome.clone();
            let id = finished.id?;
            if matches!(outcome, Outcome::Unknown(UnknownReason::SiteUnreachable)) {
                events.push(Event::InDoubt { id, command });
                return None;
            }
            events.push(Event::Told { id, command, outcome: outcome.clone() });
            Some((finished, outcome))
        }
        Reply::InDoubt => {
            events.push(Event::InDoubt { id: finished.id?, command });
            None
        }
        Reply::HandedOver(_) => {
            events.push(Event::Probe("caller: a release is handed over"));
            None
        }
        Reply::NotTaken(_) | Reply::LeftBehind => None,
    }
}

/// Runs one program over a pair.
async fn run_program(seat: &Seat, ledger: &Rc<RefCell<Ledger>>, rng: &mut Rng) {
    let pair = rng.below(PAIRS as u64) as usize;
    let number = {
        let mut ledger = ledger.borrow_mut();
        let number = ledger.programs.len() as u64 + 1;
        ledger.programs.insert(number, Program { pair, ..Program::default() });
        number
    };
    let (kind, pause) = (rng.below(6), rng.below(200 * MILLISECOND));
    let deadline = Duration::from_micros(TRANSACTION[rng.below(3) as usize]);
    let transaction = Transaction::over(Arc::clone(&seat.port) as Arc<dyn Port>, Arc::clone(&seat.memos));
    let ended = transaction.deadline(deadline).run_and_tell(|txn| program(seat, txn, pair, number, kind, pause)).await;
    let mut ledger = ledger.borrow_mut();
    let of = ledger.programs.get_mut(&number).expect("it was noted above");
    of.counts = kind == 0;
    match ended {
        Ok(Ended::Done(Committed { value, .. })) => {
            (of.end, of.saw) = (End::Done, value);
            of.writes = kind < 4;
        }
        Ok(Ended::Refused(_)) | Err(_) => of.end = End::NotDone,
        Ok(Ended::Unknown(_)) => {
            of.end = End::Unknown;
            ledger.events.push(Event::Probe("caller: a program ends as unknown"));
        }
    }
}

/// What a program does: it counts without reading; or reads both lists, and appends its number to both, or looks at them twice.
async fn program(
    seat: &Seat,
    txn: Txn,
    pair: usize,
    number: u64,
    kind: u64,
    pause: u64,
) -> Result<Option<callers::Saw>, TxnError> {
    let (left, right) = homes_of(pair, seat.homes);
    let of = |region: usize, side: &str| Key::new(format!("r{region}"), format!("pair/{pair}/{side}"));
    let (lists, counters) = ([of(left, "l"), of(right, "r")], [of(left, "cl"), of(right, "cr")]);
    if kind == 0 {
        counters.iter().try_for_each(|counter| txn.add(counter, 1))?;
        return Ok(None);
    }
    let mut memo = None;
    if kind == 4 {
        memo = Some(txn.call(&BOTH, (left as u32, right as u32, pair as u32)).await?);
    }
    let one: Vec<u64> = txn.get(&lists[0]).await?.unwrap_or_default();
    if kind >= 3 {
        seat.port.sleep_until(seat.at_most(pause)).await;
    }
    let other: Vec<u64> = txn.get(&lists[1]).await?.unwrap_or_default();
    if kind < 4 {
        txn.put(&lists[0], &[one.clone(), vec![number]].concat())?;
        txn.put(&lists[1], &[other.clone(), vec![number]].concat())?;
    }
    Ok(Some(callers::Saw { left: one, right: other, memo }))
}

/// What a pair holds at rest.
async fn final_of(seat: &Seat, pair: usize) -> callers::Final {
    let (left, right) = homes_of(pair, seat.homes);
    let of = |region: usize, side: &str| Key::new(format!("r{region}"), format!("pair/{pair}/{side}"));
    let keys = [of(left, "l"), of(right, "r"), of(left, "cl"), of(right, "cr")];
    let transaction = Transaction::over(Arc::clone(&seat.port) as Arc<dyn Port>, Arc::clone(&seat.memos));
    let read = transaction.deadline(Duration::from_secs(60)).run(|txn| {
        let keys = keys.clone();
        async move {
            let lists = txn.get_many::<Vec<u64>>(&keys[..2]).await?;
            let counters = [txn.count(&keys[2]).await?, txn.count(&keys[3]).await?];
            Ok::<_, TxnError>((lists, counters))
        }
    });
    match read.await {
        Ok(Ended::Done((lists, counters))) => {
            let mut lists = lists.into_iter().map(Option::unwrap_or_default);
            let mut next = || lists.next().unwrap_or_default();
            callers::Final { left: next(), right: next(), counters, why: None }
        }
        other => callers::Final { why: Some(format!("{other:?}")), ..callers::Final::default() },
    }
}

/// Waits for a call; `None` if its caller goes away before it ends.
async fn wait_for(seat: &Seat, leaves: Option<Time>, call: CallFuture) -> Option<Verdict> {
    match leaves {
        Some(leaves) => until(&*seat.port, leaves, call).await,
        None => Some(call.await),
    }
}
