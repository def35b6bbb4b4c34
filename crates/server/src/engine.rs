//! Drives one site's machine: takes inputs in, keeps the release rule, shares syncs.
//!
//! ```text
//!   links ──messages──▶ ┌─────────┐          ┌────────┐ group ┌────────────┐
//!   streams ─requests─▶ │ mailbox │─▶ turn ─▶│ gather │──────▶│ log thread │
//!   timer ──────ticks─▶ └─────────┘   │      └────────┘       └─────┬──────┘
//!                                      ▼                             │ synced
//!                              gate: held until durable ◀────────────┘
//!                                      │
//!                                      ▼ responses, messages
//! ```
//!
//! A *turn* takes the inputs that have arrived, messages of other sites first, handles each, and hands the resulting batches
//! to the log thread if that is idle. While it syncs one group, the next one gathers: so batches share syncs, and the
//! busier the site, the more share one.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackline_core::api::{Readiness, Request, Response, Status};
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::machine::{ClientId, Effect, Gate, Input, Machine, Overlay, ReadError, STALL_BOUND, Seq, View};
use slackline_core::node::{self, Node, Stale};
use slackline_core::object::message::Message;
use slackline_core::peer::{Body, PeerMessage};
use slackline_storage::{Store, Torn, WriteError};
use slackline_wire::{MESSAGE_BYTES, limit_message, message_bytes, request_bytes};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::crash::CrashPoints;
use crate::demand::DemandDesk;
use crate::gather::{Gather, SYNC_OPERATIONS};
use crate::health::{FigureDesk, Figures, Health};
use crate::links::Links;
use crate::mailbox::{DRIVER, Mailbox, held_bytes};
use crate::metrics::{Gauges, SyncTimes};
use crate::topology::Topology;

/// The most operations that one turn handles before it looks at the log and at messages again.
pub(crate) const TURN_OPERATIONS: usize = 2_048;
/// The most messages of other sites that one turn handles.
const TURN_MESSAGES: usize = 1_024;
/// The most bytes of batches that may gather while a group is synced; no request is handled beyond it.
pub(crate) const GATHER_BYTES: usize = 8 << 20;
/// The most bytes in answers to reads and questions that have not been handed out, because the turn goes on or they wait for a sync; no request
/// is handled beyond it. The same again in answers to what other sites read.
const ANSWER_BYTES: usize = 16 << 20;
/// Bounds on the memory of rows that storage has not absorbed, in bytes. From the first on storage is asked to absorb, from the
/// second on requests wait, and from the third on nothing is taken that would write.
const HELD_ASK: usize = 12 << 20;
const HELD_MOST: usize = 48 << 20;
const HELD_LIMIT: usize = 96 << 20;
/// So many deletions that storage has not absorbed ask for that, too: each scan over their keys reads what they hide.
const DELETED_ASK: usize = 16_384;
/// Requests wait while storage absorbs, and for this time after it has last absorbed a batch.
const BEHIND: Duration = Duration::from_secs(2);
/// The pause between two looks at storage that requests wait for.
const BEHIND_PAUSE: Duration = Duration::from_millis(2);
/// Room on the disk that is kept for the agreement with other sites: below it, new operations are refused; below half
/// of it, messages are dropped and ticks postponed too. In bytes.
pub(crate) const STORAGE_RESERVE: u64 = 8 << 20;
/// The size that most requests do not exceed, in bytes. Where there is no room for one of these, the site says that its disk is
/// full.
const SMALL: u64 = 64 << 10;
/// The most quotas whose tokens are shown as metrics; the first ones by name.
const SHOWN_QUOTAS: usize = 1_000;
/// The most bytes of a request. A transaction is written up to twice: when it is prepared, and when it is carried out.
const LARGEST: u64 = MESSAGE_BYTES as u64;
/// The time by which a tick that found no room is postponed.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(100);

/// A site that could serve is ready once it knows which of the others serve, and has compared clocks with these: until then it
/// takes no transaction over their objects. A site that has not answered after this time counts as away.
const MEETING: Duration = Duration::from_secs(1);

/// The time that the last sync may take when the time to drain is over.
const FINAL_SYNC: Duration = Duration::from_secs(2);

/// The reason why a site's machine had to stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The process was held up between the clock and the first effect.
    #[error("the process was held up for {millis} ms")]
    Stalled {
        /// The time between the two, in milliseconds.
        millis: u64,
    },
    /// Batches could not be made durable.
    #[error(transparent)]
    Sync(#[from] WriteError),
    /// Storage could not be read.
    #[error("storage could not be read: {0}")]
    Read(#[from] ReadError),
    /// Others know of more than the storage has.
    #[error("the storage is an old copy")]
    Stale(Stale),
}

/// The parts of a site around its engine. They outlive it: an engine that starts again from storage gets the same ones.
pub(crate) struct Parts {
    pub(crate) config: node::Config,
    /// What clients and peers have sent, and the way back to clients.
    pub(crate) mailbox: Arc<Mailbox>,
    /// One for each other site of the lane.
    pub(crate) links: Arc<Links>,
    /// The map of the cluster.
    pub(crate) topology: Arc<Topology>,
    /// What the metrics show of the machine; written anew in each turn.
    pub(crate) gauges: Arc<Mutex<Gauges>>,
    /// How long syncs of the log took.
    pub(crate) sync_times: Arc<SyncTimes>,
    /// Where a test lets the site crash.
    pub(crate) crash_points: Arc<CrashPoints>,
    /// Whether the site is ready, for those who watch it.
    pub(crate) health: watch::Sender<Health>,
    /// Where status is asked for, and where the engine puts it.
    pub(crate) figures: Arc<FigureDesk>,
    /// Where the forecaster asks for demand.
    pub(crate) demand: Arc<DemandDesk>,
    /// True while a person's word that earlier storage is lost, if there was one, is not used up.
    pub(crate) permission: AtomicBool,
}

/// One site's machine with its storage, for one life.
pub(crate) struct Engine {
    node: Node,
    /// Holds effects back until the batches before them are durable: the release rule.
    gate: Gate<Node>,
    /// The rows of all batches that the store has not absorbed.
    overlay: Overlay,
    // Before the store: the log's writer is closed first.
    gather: Gather,
    /// Where batches go in the end; reads wait for it where the overlay does not have a row.
    store: Box<dyn Store>,
    clock: Clock,
    /// Since when the machine serves; none while it does not.
    serves_since: Option<Instant>,
    parts: Arc<Parts>,
    /// The effects that are on their way out.
    leaving: Leaving,
    /// The view of inputs that read nothing from storage.
    nothing: View,
    /// Until when the engine waits for something.
    waits: Waits,
    /// What was logged last, so that only changes are.
    noted: Noted,
}

/// The effects on their way out. Between two turns only those are left that the gate holds.
struct Leaving {
    /// The effects of the input that is being handled.
    effects: Vec<Effect<Node>>,
    /// Effects that the gate has let out, in order.
    released: Vec<Effect<Node>>,
    /// Those of them that are answers to clients.
    responses: Vec<(ClientId, Response)>,
    /// Bytes of answers to reads and questions, from when the machine gives one until it is handed to the mailbox.
    answer_bytes: usize,
    /// The same of answers to what other sites read, until each is handed to the outbox of its link.
    told_bytes: usize,
}

/// The times until which something waits.
#[derive(Default)]
struct Waits {
    /// After a tick that found no room: the time before which there is no other.
    tick_not_before: Option<Instant>,
    /// While requests wait for storage to absorb: the last batch that it had absorbed, and since when that is so.
    behind: Option<(Seq, Instant)>,
    /// From when the machine serves until it has met the other sites: the time at which those not met count as away.
    meeting: Option<Instant>,
}

/// The machine's state as it was last logged, and as it was asked to stop.
struct Noted {
    /// True if the wall clock was trusted.
    clock_trusted: bool,
    /// Whether it was ready, and if not, why.
    readiness: Readiness,
    /// How far it was with draining.
    drain: Drain,
    /// What storage waits for, in words.
    storage: Option<String>,
    /// The number of the last change of the members that it has linked to.
    members: u64,
    /// True once clients were sent away, as the site is a member no longer.
    sent_away: bool,
}

/// The progress of the machine's draining.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drain {
    /// It was not asked to.
    No,
    /// It was asked to, and finishes what waits.
    Asked,
    /// It has finished.
    Done,
}

/// The step after a turn.
enum After {
    /// Another turn: more has arrived.
    GoOn,
    /// Wait for something to arrive.
    Wait,
}

impl Engine {
    /// Opens the machine on its storage.
    pub(crate) fn open(
        parts: Arc<Parts>,
        config: node::Config,
        mut store: Box<dyn Store>,
        name: &str,
    ) -> Result<Self, OpenFailure> {
        let clock = Clock::start();
        let last = store.last();
        let seed = RandomState::new().hash_one(name);
        let node = Node::open(config, seed, last, store.reader(), clock.now())?;
        let writer = store.writer().ok_or(OpenFailure::NoWriter)?;
        let (mailbox, sync_times) = (Arc::clone(&parts.mailbox), Arc::clone(&parts.sync_times));
        let gather = Gather::start(writer, last, name, mailbox, sync_times)?;
        let leaving = Leaving {
            effects: Vec::new(),
            released: Vec::new(),
            responses: Vec::new(),
            answer_bytes: 0,
            told_bytes: 0,
        };
        let engine = Self {
            noted: Noted {
                clock_trusted: true,
                readiness: node.readiness(),
                drain: Drain::No,
                storage: None,
                members: 0,
                sent_away: false,
            },
            node,
            gate: Gate::new(last),
            overlay: Overlay::default(),
            gather,
            store,
            clock,
            serves_since: None,
            parts,
            leaving,
            nothing: View::empty(),
            waits: Waits::default(),
        };

        let mut engine = engine;
        if engine.node.stale() == Some(Stale::Removed) {
            tell_that_it_is_removed();
        }
        engine.note_members();
        engine.parts.figures.put(engine.figures());
        engine.publish();
        Ok(engine)
    }

    /// The machine's incarnation; zero while it has none.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.node.incarnation()
    }

    /// The group at the end of the log that could not be read when the log was opened, if there was one.
    pub(crate) fn torn(&self) -> Option<Torn> {
        self.store.torn().cloned()
    }

    /// Runs until `stop` gives a time. Then the machine is drained, for at most that time, and every batch that it handed out is
    /// synced.
    pub(crate) async fn run(&mut self, stop: impl Future<Output = Duration>) -> Result<(), Failure> {
        let parts = Arc::clone(&self.parts);
        let mut stop = pin!(stop);
        let mut give_up: Option<Instant> = None;
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            let after = self.turn()?;
            self.note_members();
            self.meet();
            // Before it publishes anything of the step at which it crashes: a test that sees the step as over would go on.
            if parts.crash_points.is_ending() {
                parts.crash_points.end(&parts.links).await;
            }
            self.publish();
            self.send_clients_away();

            // It ends only with an empty log: the answers to what was handed out leave after the sync, and with the machine gone
            // nobody would let them out. A disk that does not answer ends the wait; its clients then do not know their outcomes.
            let over = give_up.is_some_and(|at| Instant::now() >= at);
            if (self.noted.drain == Drain::Done || over) && self.gather.is_done() {
                return Ok(());
            }
            if give_up.is_some_and(|at| Instant::now() >= at + FINAL_SYNC) {
                warn!("the last sync does not end; the answers that wait for it are given to nobody");
                return Ok(());
            }

            // The services run on this thread too, and have to take requests in between two turns. A site that always has more to do is
            // stopped all the same.
            if matches!(after, After::GoOn) {
                tokio::select! {
                    biased;
                    most = &mut stop, if give_up.is_none() => {
                        give_up = Some(Instant::now() + most);
                        self.start_drain(most)?;
                    }
                    () = tokio::task::yield_now() => {}
                }
                continue;
            }

            let wake_at =
                self.deadline().into_iter().chain(give_up.map(|at| if over { at + FINAL_SYNC } else { at })).min();
            if let Some(wake_at) = wake_at
                && timer.deadline() != wake_at.into()
            {
                timer.as_mut().reset(wake_at.into());
            }
            tokio::select! {
                biased;
                () = parts.mailbox.wake.notified() => {}
                () = &mut timer, if wake_at.is_some() => {}
                most = &mut stop, if give_up.is_none() => {
                    give_up = Some(Instant::now() + most);
                    self.start_drain(most)?;
                }
            }
        }
    }

    /// Closes the machine and gives its storage back.
    pub(crate) fn close(self) -> Box<dyn Store> {
        drop(self.gather);
        self.store
    }

    /// Handles the inputs that have arrived, up to a bound.
    fn turn(&mut self) -> Result<After, Failure> {
        let has_more = self.retire();
        self.take_synced()?;

        // The absorber may stop storage while nothing is written that could fail. A site that goes on then would answer reads from
        // storage of which it knows nothing.
        if self.store.room() == 0
            && let Some(why) = self.store.failure()
        {
            return Err(Failure::Sync(WriteError::Stopped { why }));
        }
        self.note_waiting();
        let parts = Arc::clone(&self.parts);
        let mailbox = &parts.mailbox;

        // Other sites first: behind a queue of requests, an agreement would stand still everywhere. Half of the reserve is theirs
        // alone, so a full disk stops new operations before it stops agreements. A message without room is dropped, as if lost.
        for _ in 0..TURN_MESSAGES {
            let Some((from, message)) = mailbox.next_message() else { break };

            // To ask for rows costs another site nothing, and the answers may be large. Those that wait for no sync leave first; beyond the
            // bound a read is dropped, as if lost.
            if self.leaving.told_bytes >= ANSWER_BYTES && is_fetch(&message) {
                self.release();
                if self.leaving.told_bytes >= ANSWER_BYTES {
                    continue;
                }
            }
            let bytes = message_bytes(&message) as u64;
            if self.room() >= STORAGE_RESERVE / 2 + bytes {
                // The message may hold a client's request that another site passes on.
                self.node.set_room(self.room() >= STORAGE_RESERVE + 2 * bytes);
                self.handle(Input::Message { from, message })?;
            }
        }
        self.tick_if_due()?;

        // Each bound keeps a client from filling the memory: of batches that wait for the disk, of answers that wait for a sync, and
        // of rows that wait for the table. Requests beyond stay in the mailbox, whose own bound pushes back on the clients.
        let (mut operations, mut gathered) = (0, 0);
        let is_behind = self.note_progress();
        let may_go_on =
            |engine: &Self| engine.gather.bytes() < GATHER_BYTES && engine.leaving.answer_bytes < ANSWER_BYTES;
        while operations < TURN_OPERATIONS && may_go_on(self) && !is_behind {
            let Some((client, request, weight)) = mailbox.next_request() else { break };
            operations += weight;
            gathered += weight;

            // The request goes to the machine even without room: it looks the id up before it refuses, so that an operation that was
            // done is not reported as refused.
            let has_room = self.room() >= STORAGE_RESERVE + 2 * LARGEST
                || self.room() >= STORAGE_RESERVE + 2 * request_bytes(&request) as u64;
            self.node.set_room(has_room);
            self.handle(Input::Request { client, request })?;
            if gathered >= SYNC_OPERATIONS {
                self.submit()?;
                gathered = 0;
            }
        }

        // The disk first: it works while the answers are encoded.
        self.submit()?;
        self.release();
        let blocked = !may_go_on(self) || is_behind;
        Ok(if !has_more && (blocked || mailbox.is_empty()) { After::Wait } else { After::GoOn })
    }

    /// Hands one input to the machine, and its effects to the gate.
    fn handle(&mut self, input: Input<Node>) -> Result<(), Failure> {
        if self.parts.crash_points.is_ending() {
            return Ok(());
        }
        self.parts.crash_points.arrived(&input);

        // Reading storage may take long. The machine's time is read after it, so that no right seems to last that ended meanwhile.
        let mut now = self.clock.now();
        let needed = self.node.working_set(now, &input);
        let prepared;
        let view = if needed.is_empty() {
            &self.nothing
        } else {
            prepared = View::prepare(needed, &self.overlay, self.store.reader())?;
            now = self.clock.now();
            &prepared
        };
        let effects = &mut self.leaving.effects;
        self.node.handle(now, input, view, effects);
        self.parts.crash_points.gathered(effects);
        self.watch_readiness()?;
        if self.leaving.effects.is_empty() {
            return Ok(());
        }

        // A machine that was held up has decided by a clock that is long past: rights that it relied on may be over, and promises
        // that it made may be broken already. None of it may leave, or be written; the machine starts again from storage.
        let held_up = self.clock.mono() - now.mono;
        if held_up > STALL_BOUND {
            return Err(Failure::Stalled { millis: held_up / 1_000 });
        }

        let Self { gate, overlay, gather, leaving, .. } = self;
        for effect in &mut leaving.effects {
            match effect {
                Effect::Respond { response, .. } => leaving.answer_bytes += held_bytes(response),
                Effect::Send { message, .. } => {
                    limit_message(message);
                    leaving.told_bytes += fetched_bytes(message);
                }
                _ => {}
            }
        }

        // The release rule: the gate keeps each message and response that comes after a batch until that batch is durable. The next
        // input may read what is not durable yet (the overlay has it), because its own effects wait for the same sync.
        gate.admit(
            &mut leaving.effects,
            |seq, batch| {
                let batch = Arc::new(batch);
                overlay.apply::<Node>(seq, &batch);
                assert_eq!(gather.push(batch), seq, "the log would have a gap");
            },
            |effect| leaving.released.push(effect),
        );
        Ok(())
    }

    /// Takes the result of a sync that has ended, and lets out the effects that waited for it.
    fn take_synced(&mut self) -> Result<(), Failure> {
        // A sync that failed ends the site, and the effects that waited for it go with it: nobody has heard of them.
        let Some(last) = self.gather.poll()? else { return Ok(()) };
        self.note_durable(last);

        // The next sync starts before the answers are handed out, so that the disk does not wait for their encoding.
        self.submit()?;
        self.release();
        Ok(())
    }

    /// Lets out the effects that waited for the batches up to `last`, which are durable now.
    fn note_durable(&mut self, last: Seq) {
        let released = &mut self.leaving.released;
        self.gate.durable(last, |effect| released.push(effect));
        self.retire();
    }

    /// Drops from memory the rows that storage has absorbed, and asks storage to absorb more before too much is held. Returns true
    /// if there is more to drop: each call does a bounded part.
    fn retire(&mut self) -> bool {
        if self.overlay.is_empty() {
            return false;
        }
        let has_more = self.overlay.retire(self.store.absorbed());
        if self.overlay.bytes() >= HELD_ASK || self.overlay.deletions() >= DELETED_ASK {
            self.store.absorb_soon();
        }
        has_more
    }

    /// Notes storage's progress. Returns true if requests wait until it has absorbed some of the rows in memory. If it makes no
    /// progress they are taken, to be refused for want of room: a client should not wait for a disk that is stuck.
    fn note_progress(&mut self) -> bool {
        if self.overlay.bytes() < HELD_MOST {
            self.waits.behind = None;
            return false;
        }
        let absorbed = self.store.absorbed();
        let (_, since) = *self.waits.behind.insert(match self.waits.behind {
            Some((before, since)) if before == absorbed => (before, since),
            _ => (absorbed, Instant::now()),
        });
        since.elapsed() < BEHIND
    }

    /// Logs what storage waits for, when that begins and when it is over.
    fn note_waiting(&mut self) {
        let waits_for = self.store.waits_for();
        if waits_for == self.noted.storage {
            return;
        }
        match &waits_for {
            Some(why) => warn!("storage waits, and goes on by itself: {why}"),
            None => info!("storage waits no longer"),
        }
        self.noted.storage = waits_for;
    }

    /// Starts a sync of the batches that have gathered; see [`Gather::submit`].
    fn submit(&mut self) -> Result<(), Failure> {
        if let Some(last) = self.gather.submit()? {
            self.note_durable(last);
        }
        Ok(())
    }

    /// Sends the messages and gives the answers that may leave.
    fn release(&mut self) {
        self.parts.crash_points.leaving(&mut self.leaving.released);
        let (readiness, waiting_for) = (self.readiness(), self.waiting_for());
        let Leaving { released, responses, answer_bytes, told_bytes, .. } = &mut self.leaving;
        for effect in released.drain(..) {
            match effect {
                Effect::Send { to, message } => {
                    *told_bytes -= fetched_bytes(&message);
                    if let Some(outbox) = self.parts.links.outbox(to) {
                        outbox.send(message);
                    }
                }
                Effect::Respond { client: DRIVER, response } => {
                    if response == Response::Drained {
                        self.noted.drain = Drain::Done;
                    }
                }
                // The machine does not know of the disk's room, or that this site has still to meet the others.
                Effect::Respond { client, response: Response::Status(status) } => {
                    let waiting_for = waiting_for.clone();
                    let status = Status { readiness, waiting_for, ..*status };
                    responses.push((client, Response::Status(Box::new(status))));
                }
                Effect::Respond { client, mut response } => {
                    // The answer was cut when it was given, so this counts exactly the bytes that were added then.
                    *answer_bytes -= held_bytes(&mut response);
                    responses.push((client, response));
                }
                Effect::Persist(_) => unreachable!("the gate hands batches to `persist`"),
            }
        }

        self.parts.mailbox.deliver(responses);
    }

    /// Asks the machine to drain, in this time at most, and takes no further request.
    fn start_drain(&mut self, most: Duration) -> Result<(), Failure> {
        self.parts.mailbox.drain();
        if self.noted.drain == Drain::No {
            self.noted.drain = Drain::Asked;
            let within = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
            self.handle(Input::Request { client: DRIVER, request: Request::Drain { within } })?;
            self.release();
        }
        Ok(())
    }

    /// Gives the machine a tick if its deadline has come and there is room for what the tick may write.
    fn tick_if_due(&mut self) -> Result<(), Failure> {
        let due = self.node.deadline().is_some_and(|deadline| deadline <= self.clock.mono());
        if !due || self.waits.tick_not_before.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }

        // A tick only retries and ends things: late is safe, and half written is not. The pause keeps a full disk from burning a core.
        self.waits.tick_not_before = None;
        if self.room() < STORAGE_RESERVE / 2 {
            self.waits.tick_not_before = Some(Instant::now() + NO_ROOM_PAUSE);
            return Ok(());
        }
        self.handle(Input::Tick)?;
        self.watch_clock();
        Ok(())
    }

    /// Acts on a change of the machine's readiness: an old copy of storage ends the machine, a lost past is logged, and a machine
    /// that begins to serve meets the other sites.
    #[inline]
    fn watch_readiness(&mut self) -> Result<(), Failure> {
        let (readiness, incarnation) = (self.node.readiness(), self.node.incarnation());
        if readiness == self.noted.readiness {
            return Ok(());
        }

        // Before the effects of this input reach the gate: a machine on an old copy must not write to it, or say anything.
        match self.node.stale() {
            // It stays as it is, and only says so: a person has decided that its data count no more.
            Some(Stale::Removed) => tell_that_it_is_removed(),
            Some(stale) => return Err(Failure::Stale(stale)),
            None => {}
        }
        if let Some(predecessor) = self.node.predecessor() {
            error!(
                "the data directory is new, and other sites have heard of incarnation {} of this site, or noted that number for new \
                 storage of it, so the site joins nothing. Is its volume mounted, and is `data` the right directory? Only if the \
                 earlier data are lost permanently, start the site once with --new-storage; the tokens that it had count as in use \
                 until `quota reclaim`",
                predecessor.0
            );
        }
        let was_confirming = self.noted.readiness == Readiness::Confirming;
        if readiness == Readiness::Ready && !was_confirming && incarnation > Incarnation(1) {
            warn!(
                incarnation = incarnation.0,
                "the site has lost its disk before; the tokens that it had count as in use until `quota reclaim`"
            );
        }
        if readiness == Readiness::Ready {
            self.waits.meeting = Some(Instant::now() + MEETING);
        }
        self.noted.readiness = readiness;
        Ok(())
    }

    /// Ends the calls that wait at a site that is a member no longer, once all is answered that was decided here: nothing more will be.
    /// Their clients ask elsewhere.
    fn send_clients_away(&mut self) {
        let is_removed = self.node.stale() == Some(Stale::Removed);
        if is_removed && self.gather.is_done() && !std::mem::replace(&mut self.noted.sent_away, true) {
            // One that drains goes on to take nothing.
            self.parts.mailbox.hang_up(self.parts.mailbox.phase());
        }
    }

    /// Links to the sites that have joined.
    fn note_members(&mut self) {
        let roster = self.node.roster();
        if roster.number == self.noted.members {
            return;
        }
        self.noted.members = roster.number;
        for seat in roster.seats.iter().filter(|seat| seat.gone) {
            self.parts.topology.leave(seat.site);
        }
        for seat in roster.seats.iter().filter(|seat| seat.since > 0) {
            self.parts.topology.join(seat.site, &seat.label);
            // One that is gone may come back, and is to hear that it is.
            if seat.site != self.parts.topology.me {
                self.parts.links.add(seat.site);
            }
        }
        info!(change = roster.number, "the members have changed");
    }

    /// Ends the wait for the other sites, when all are met or those that are not count as away.
    fn meet(&mut self) {
        let is_over = |at: Instant| Instant::now() >= at || self.node.unmet(self.clock.now()).is_empty();
        if self.waits.meeting.is_some_and(is_over) {
            self.waits.meeting = None;
        }
    }

    /// Logs when another site disagrees with this site's wall clock and too few agree with it, and when that is over.
    fn watch_clock(&mut self) {
        let (error, trusted) = self.node.clock(self.clock.now());
        if trusted == self.noted.clock_trusted {
            return;
        }
        self.noted.clock_trusted = trusted;
        match trusted {
            true => info!("the other sites agree with the wall clock again"),
            false => {
                const WHY: &str = "another site's wall clock differs, and too few agree with this one's";
                warn!(error_us = error, "{WHY}: check its synchronization")
            }
        }
    }

    /// The time of the next turn if nothing arrives before; `None` if there is none.
    fn deadline(&self) -> Option<Instant> {
        let Waits { tick_not_before, behind, meeting } = &self.waits;
        let deadline = self.clock.instant(self.node.deadline()?);
        let deadline = tick_not_before.map_or(deadline, |at| deadline.max(at));
        let deadline = meeting.map_or(deadline, |at| deadline.min(at));
        // Storage absorbs in the background and wakes nobody, so requests that wait for it look again and again.
        Some(if behind.is_some() { deadline.min(Instant::now() + BEHIND_PAUSE) } else { deadline })
    }

    /// The bytes that can still be handed out: those of log that are left when all batches so far are written, or those of memory
    /// for rows that are not absorbed yet, whichever is less.
    fn room(&self) -> u64 {
        // Batches on their way to the log take memory too, the values in them that were written over included.
        let leaving = self.gather.bytes() + self.gather.syncing_bytes();
        let memory = HELD_LIMIT.saturating_sub(self.overlay.bytes() + leaving) as u64;
        // Each batch has a few bytes beside it, and a group is rounded up to whole blocks.
        let overhead = 32 * self.gather.len() + 2 * 4096;
        let log = self.store.room().saturating_sub((leaving + overhead) as u64);
        log.min(memory)
    }

    /// The site's progress towards serving. The machine does not know that the disk has no room, and a machine that could serve
    /// is not ready before it has met the other sites.
    fn readiness(&self) -> Readiness {
        match self.node.readiness() {
            leaving @ (Readiness::Draining | Readiness::Stale) => leaving,
            _ if self.room() < STORAGE_RESERVE + 2 * SMALL => Readiness::StorageFull,
            Readiness::Ready if self.waits.meeting.is_some() => Readiness::Confirming,
            readiness => readiness,
        }
    }

    /// The sites that it waits for before it is ready.
    fn waiting_for(&self) -> Vec<SiteId> {
        if self.waits.meeting.is_some() { self.node.unmet(self.clock.now()) } else { self.node.waiting_for() }
    }

    /// The figures of now.
    fn figures(&self) -> Figures {
        let (readiness, waiting_for) = (self.readiness(), self.waiting_for());
        let status = Status { readiness, waiting_for, ..self.node.status(self.clock.now()) };
        Figures { status, quotas: self.node.chapters().quotas.list("", SHOWN_QUOTAS) }
    }

    /// Publishes the machine's state: for probes, for the metrics, and for those who wait until it is ready.
    fn publish(&mut self) {
        // Only a change wakes those who wait for one: this runs after every turn.
        let health = Health { readiness: Some(self.readiness()), waiting_for: self.waiting_for() };
        let is_ready = health.is_ready();
        self.parts.health.send_if_modified(|published| {
            let is_new = *published != health;
            *published = health;
            is_new
        });
        if self.parts.figures.take_question() {
            self.parts.figures.put(self.figures());
        }
        // Nothing is known of the demand while it serves nobody: that is no zero.
        self.serves_since = if is_ready { self.serves_since.or_else(|| Some(Instant::now())) } else { None };
        let asked = |quota: &str| self.serves_since.and_then(|_| self.node.chapters().quotas.asked(quota));
        self.parts.demand.answer(self.serves_since.unwrap_or_else(Instant::now), asked);

        let mut gauges = self.parts.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        gauges.node = *self.node.metrics();
        let txns = &self.node.chapters().txns;
        (gauges.coordinated, gauges.prepared) = txns.under_way();
        (gauges.warranties, gauges.copies) = (txns.warranties(), txns.copies());
        gauges.waiting_for_sync = self.gate.waiting();
        gauges.room = self.store.room();
        gauges.overlay_rows = self.overlay.len();
    }
}

/// Says in the log what a site is that the others have removed.
fn tell_that_it_is_removed() {
    error!(
        "the cluster has decided that this site is lost for good, and a member no longer: it does nothing more; stop it, and keep or \
         delete its data directory"
    );
}

/// True if another site wants to read.
fn is_fetch(message: &PeerMessage) -> bool {
    matches!(&message.body, Body::Txn(message) if matches!(**message, Message::Fetch(_)))
}

/// About the bytes of objects in an answer to what another site reads; zero for any other message.
fn fetched_bytes(message: &PeerMessage) -> usize {
    let is_answer = matches!(&message.body, Body::Txn(message) if matches!(**message, Message::Fetched(_)));
    if is_answer { message_bytes(message) } else { 0 }
}

/// The reason why a machine could not be opened on its storage.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenFailure {
    #[error(transparent)]
    Node(#[from] node::OpenError),
    #[error("the log's thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("the storage gives no writer for its log")]
    NoWriter,
}
