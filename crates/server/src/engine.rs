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
//! A *turn* takes what has arrived, messages of other sites first, handles each input, and hands the batches that came
//! of it to the log thread if that is idle. While it syncs one group, the next one gathers: so syncs are shared, and the
//! busier the site, the more share one.

use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackline_core::api::{Readiness, Request, Response, Status};
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::machine::{
    Batch, ClientId, Effect, Gate, Input, Machine, Overlay, ReadError, STALL_BOUND, Seq, View,
};
use slackline_core::node::{self, Node, Stale};
use slackline_storage::{Store, Torn, WriteError};
use slackline_wire::{MESSAGE_BYTES, limit_reading, message_bytes, request_bytes};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::crash::CrashPoints;
use crate::health::{FigureDesk, Figures, Health};
use crate::link::Outbox;
use crate::log::{Log, Synced};
use crate::mailbox::{DRIVER, Mailbox};
use crate::metrics::{Gauges, SyncTimes};

/// The most operations that one turn handles before it looks at the log and at messages again.
const TURN_OPERATIONS: usize = 2_048;
/// So many operations are worth a sync of their own: it starts while the rest of the turn is handled. Without it, two batches of
/// one client that arrive together would be synced together and answered together, and from then on client and site would take
/// turns instead of working at the same time.
const SYNC_OPERATIONS: usize = 128;
/// A group of no more bytes is appended by the machine's own thread, where a sync usually takes no longer than this.
const HERE_BYTES: usize = 8 << 10;
const HERE_SYNC: Duration = Duration::from_micros(300);
/// The most messages of other sites that one turn handles.
const TURN_MESSAGES: usize = 1_024;
/// The most bytes of batches that may gather while a group is synced; no request is handled beyond it.
const GATHER_BYTES: usize = 8 << 20;
/// The most bytes of objects in answers that have not been handed out, because the turn goes on or they wait for a sync; no request
/// is handled beyond it.
const ANSWER_BYTES: usize = 16 << 20;
/// Storage is asked to absorb when rows that it has not absorbed take up this much memory, in bytes; requests wait when they
/// take up so much; and from the last on nothing more is taken that would write.
const HELD_ASK: usize = 12 << 20;
const HELD_MOST: usize = 48 << 20;
const HELD_LIMIT: usize = 96 << 20;
/// Requests wait for storage to absorb for as long as it gets on, and for this long after that.
const BEHIND: Duration = Duration::from_secs(2);
/// Meanwhile it is looked at this often.
const BEHIND_PAUSE: Duration = Duration::from_millis(2);
/// Room on the disk that is kept for the agreement with other sites: below it, new operations are refused; below half
/// of it, messages are dropped and ticks postponed too. In bytes.
pub(crate) const STORAGE_RESERVE: u64 = 8 << 20;
/// What most requests bring at most, in bytes. Where there is no room for one of these, the site says that its disk is full.
const SMALL: u64 = 64 << 10;
/// The most quotas whose tokens are shown as metrics; the first ones by name.
const SHOWN_QUOTAS: usize = 1_000;
/// The most bytes that a request brings. A transaction is written up to twice: when it is prepared, and when it is carried out.
const LARGEST: u64 = MESSAGE_BYTES as u64;
/// How long a tick that found no room is postponed.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(100);

/// A site that could serve is ready once it knows which of the others serve, and has compared clocks with these: until then it
/// takes no transaction over their objects. Who has not answered after this long is away.
const MEETING: Duration = Duration::from_secs(1);

/// How long the last sync may take when the time to drain is over.
const FINAL_SYNC: Duration = Duration::from_secs(2);

/// Why a site's machine had to stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The process was held up between the clock and the first effect.
    #[error("the process was held up for {millis} ms")]
    Stalled {
        /// How long.
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

/// What an engine drives, and with what.
pub(crate) struct Parts {
    pub(crate) config: node::Config,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) outboxes: BTreeMap<SiteId, Arc<Outbox>>,
    pub(crate) gauges: Arc<Mutex<Gauges>>,
    pub(crate) sync_times: Arc<SyncTimes>,
    pub(crate) crash_points: Arc<CrashPoints>,
    pub(crate) health: watch::Sender<Health>,
    pub(crate) figures: Arc<FigureDesk>,
}

/// One site's machine with its storage, for one life.
pub(crate) struct Engine {
    node: Node,
    gate: Gate<Node>,
    overlay: Overlay,
    // Before the store: the log's writer is closed first.
    log: Log,
    store: Box<dyn Store>,
    clock: Clock,
    parts: Arc<Parts>,
    /// Batches that wait for the log, and the number of the first.
    gathered: Vec<Batch>,
    gathered_first: Seq,
    gathered_bytes: usize,
    /// Bytes of objects in answers that have not been handed out.
    answer_bytes: usize,
    /// Bytes of the group that is being synced.
    syncing_bytes: usize,
    effects: Vec<Effect<Node>>,
    released: Vec<Effect<Node>>,
    responses: Vec<(ClientId, Response)>,
    nothing: View,
    tick_not_before: Option<Instant>,
    /// As long as requests wait for storage to absorb: how far it was, and since when.
    behind: Option<(Seq, Instant)>,
    clock_trusted: bool,
    readiness: Readiness,
    /// From when the machine serves until it has met the others: when they count as away.
    meeting: Option<Instant>,
    /// A mean of what syncs took lately.
    usual_sync: Duration,
    drain: Drain,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Drain {
    No,
    Asked,
    Done,
}

/// What to do after a turn.
enum After {
    /// More has arrived.
    GoOn,
    /// Wait for something to arrive.
    Wait,
}

impl Engine {
    /// Opens the machine on its storage.
    pub(crate) fn open(parts: Arc<Parts>, mut store: Box<dyn Store>, name: &str) -> Result<Self, OpenFailure> {
        let clock = Clock::start();
        let last = store.last();
        let seed = RandomState::new().hash_one(name);
        let node = Node::open(parts.config.clone(), seed, last, store.reader(), clock.now())?;
        let writer = store.writer().ok_or(OpenFailure::NoWriter)?;
        let log = Log::start(writer, name, Arc::clone(&parts.mailbox))?;
        let engine = Self {
            readiness: node.readiness(),
            node,
            gate: Gate::new(last),
            overlay: Overlay::default(),
            log,
            store,
            clock,
            parts,
            gathered: Vec::new(),
            gathered_first: last + 1,
            gathered_bytes: 0,
            answer_bytes: 0,
            syncing_bytes: 0,
            effects: Vec::new(),
            released: Vec::new(),
            responses: Vec::new(),
            nothing: View::empty(),
            tick_not_before: None,
            behind: None,
            clock_trusted: true,
            meeting: None,
            usual_sync: HERE_SYNC * 2,
            drain: Drain::No,
        };
        engine.parts.figures.put(engine.figures());
        engine.publish();
        Ok(engine)
    }

    /// The machine's incarnation; zero while it has none.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.node.incarnation()
    }

    /// Where the log ended, when it was opened, in a group that could not be read.
    pub(crate) fn torn(&self) -> Option<Torn> {
        self.store.torn().cloned()
    }

    /// Runs until `stop` is over; then the machine is drained (for no longer than `stop` said) and everything that was
    /// handed out is synced.
    pub(crate) async fn run(&mut self, stop: impl Future<Output = Duration>) -> Result<(), Failure> {
        let parts = Arc::clone(&self.parts);
        let mut stop = pin!(stop);
        let mut give_up: Option<Instant> = None;
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            let after = self.turn()?;
            self.meet();
            // Before it shows what became of the step that it crashes at: whoever sees that as over would go on with it.
            if parts.crash_points.is_ending() {
                parts.crash_points.end(&parts.outboxes).await;
            }
            self.publish();
            let over = give_up.is_some_and(|at| Instant::now() >= at);
            if (self.drain == Drain::Done || over) && self.gathered.is_empty() && !self.log.is_busy() {
                return Ok(());
            }
            if give_up.is_some_and(|at| Instant::now() >= at + FINAL_SYNC) {
                warn!("the last sync does not end; what it was for has been told to nobody");
                return Ok(());
            }
            if matches!(after, After::GoOn) {
                tokio::task::yield_now().await;
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
                    self.start_drain()?;
                }
            }
        }
    }

    /// Closes the machine and gives its storage back.
    pub(crate) fn close(self) -> Box<dyn Store> {
        drop(self.log);
        self.store
    }

    /// Handles what has arrived, up to a bound.
    fn turn(&mut self) -> Result<After, Failure> {
        let has_more = self.retire();
        self.take_synced()?;
        // Storage may stop behind our back, where nothing is written that could fail.
        if self.store.room() == 0
            && let Some(why) = self.store.failure()
        {
            return Err(Failure::Sync(WriteError::Stopped { why }));
        }
        let parts = Arc::clone(&self.parts);
        let mailbox = &parts.mailbox;

        // Other sites first: behind a queue of requests, an agreement would stand still everywhere.
        for _ in 0..TURN_MESSAGES {
            let Some((from, message)) = mailbox.next_message() else { break };
            let bytes = message_bytes(&message) as u64;
            if self.room() >= STORAGE_RESERVE / 2 + bytes {
                // It may bring a client's request that another site passes on.
                self.node.set_room(self.room() >= STORAGE_RESERVE + 2 * bytes);
                self.handle(Input::Message { from, message })?;
            }
        }
        self.tick_if_due()?;
        let (mut operations, mut gathered) = (0, 0);
        let is_behind = self.note_whether_behind();
        let may_go_on = |engine: &Self| engine.gathered_bytes < GATHER_BYTES && engine.answer_bytes < ANSWER_BYTES;
        while operations < TURN_OPERATIONS && may_go_on(self) && !is_behind {
            let Some((client, request, weight)) = mailbox.next_request() else { break };
            operations += weight;
            gathered += weight;
            // The machine looks up what a request is about before it refuses anything for want of room.
            let has_room = self.room() >= STORAGE_RESERVE + 2 * LARGEST
                || self.room() >= STORAGE_RESERVE + 2 * request_bytes(&request) as u64;
            self.node.set_room(has_room);
            self.handle(Input::Request { client, request })?;
            if gathered >= SYNC_OPERATIONS {
                self.submit()?;
                gathered = 0;
            }
        }
        self.submit()?;
        self.release();
        let blocked = !may_go_on(self) || is_behind;
        Ok(if !has_more && (blocked || mailbox.is_empty()) { After::Wait } else { After::GoOn })
    }

    fn handle(&mut self, input: Input<Node>) -> Result<(), Failure> {
        if self.parts.crash_points.is_ending() {
            return Ok(());
        }
        self.parts.crash_points.arrived(&input);
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
        self.node.handle(now, input, view, &mut self.effects);
        self.parts.crash_points.gathered(&self.effects);
        self.watch_readiness()?;
        if self.effects.is_empty() {
            return Ok(());
        }
        // A machine that was held up acts on a time that is long over: what it decided must not leave.
        let held_up = self.clock.mono() - now.mono;
        if held_up > STALL_BOUND {
            return Err(Failure::Stalled { millis: held_up / 1_000 });
        }
        let Self { gate, effects, overlay, gathered, gathered_bytes, released, .. } = self;
        for effect in &mut *effects {
            if let Effect::Respond { response: Response::Read(reading), .. } = effect {
                self.answer_bytes += limit_reading(reading);
            }
        }
        gate.admit(
            effects,
            |seq, batch| {
                overlay.apply::<Node>(seq, &batch);
                *gathered_bytes += batch.as_bytes().len();
                gathered.push(batch);
            },
            |effect| released.push(effect),
        );
        Ok(())
    }

    /// Lets out what waited for the group that is durable now.
    fn take_synced(&mut self) -> Result<(), Failure> {
        let Some(result) = self.log.poll() else { return Ok(()) };
        self.syncing_bytes = 0;
        self.note_synced(result?);
        // The disk need not wait for what the responses cost.
        self.submit()?;
        self.release();
        Ok(())
    }

    fn note_synced(&mut self, synced: Synced) {
        self.parts.sync_times.observe(synced.took);
        self.usual_sync = (self.usual_sync * 7 + synced.took) / 8;
        let released = &mut self.released;
        self.gate.durable(synced.last, |effect| released.push(effect));
        self.retire();
    }

    /// Forgets what storage has absorbed, and has it absorb more before too much is held in memory. Tells whether there is
    /// more to forget.
    fn retire(&mut self) -> bool {
        if self.overlay.is_empty() {
            return false;
        }
        let has_more = self.overlay.retire(self.store.absorbed());
        if self.overlay.bytes() >= HELD_ASK {
            self.store.absorb_soon();
        }
        has_more
    }

    /// Notes whether storage gets on. True if requests wait until it has absorbed some of what is held in memory. If it does not get
    /// on they are taken, to be refused for want of room.
    fn note_whether_behind(&mut self) -> bool {
        if self.overlay.bytes() < HELD_MOST {
            self.behind = None;
            return false;
        }
        let absorbed = self.store.absorbed();
        let (_, since) = *self.behind.insert(match self.behind {
            Some((before, since)) if before == absorbed => (before, since),
            _ => (absorbed, Instant::now()),
        });
        since.elapsed() < BEHIND
    }

    /// Starts a sync of what has gathered, if none is under way; or does it here, if it is small and the disk is quick.
    fn submit(&mut self) -> Result<(), Failure> {
        if self.gathered.is_empty() || self.log.is_busy() {
            return Ok(());
        }
        let count = self.gathered.len() as Seq;
        let here = self.gathered_bytes <= HERE_BYTES && self.usual_sync <= HERE_SYNC && self.parts.mailbox.is_empty();
        let synced = if here { self.log.append_here(self.gathered_first, &mut self.gathered) } else { None };
        match synced {
            Some(synced) => {
                self.gathered_bytes = 0;
                self.note_synced(synced?);
            }
            None => {
                self.log.submit(self.gathered_first, &mut self.gathered);
                self.syncing_bytes = std::mem::take(&mut self.gathered_bytes);
            }
        }
        self.gathered_first += count;
        Ok(())
    }

    /// Sends and answers what may leave.
    fn release(&mut self) {
        self.parts.crash_points.leaving(&mut self.released);
        let (readiness, waiting_for) = (self.readiness(), self.waiting_for());
        for effect in self.released.drain(..) {
            match effect {
                Effect::Send { to, message } => {
                    if let Some(outbox) = self.parts.outboxes.get(&to) {
                        outbox.send(message);
                    }
                }
                Effect::Respond { client: DRIVER, response } => {
                    if response == Response::Drained {
                        self.drain = Drain::Done;
                    }
                }
                Effect::Respond { client, response: Response::Status(status) } => {
                    let waiting_for = waiting_for.clone();
                    self.responses.push((client, Response::Status(Status { readiness, waiting_for, ..status })));
                }
                Effect::Respond { client, mut response } => {
                    if let Response::Read(reading) = &mut response {
                        self.answer_bytes -= limit_reading(reading);
                    }
                    self.responses.push((client, response));
                }
                Effect::Persist(_) => unreachable!("the gate hands batches to `persist`"),
            }
        }
        self.parts.mailbox.deliver(&mut self.responses);
    }

    fn start_drain(&mut self) -> Result<(), Failure> {
        self.parts.mailbox.drain();
        if self.drain == Drain::No {
            self.drain = Drain::Asked;
            self.handle(Input::Request { client: DRIVER, request: Request::Drain })?;
            self.release();
        }
        Ok(())
    }

    fn tick_if_due(&mut self) -> Result<(), Failure> {
        let due = self.node.deadline().is_some_and(|deadline| deadline <= self.clock.mono());
        if !due || self.tick_not_before.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        self.tick_not_before = None;
        if self.room() < STORAGE_RESERVE / 2 {
            self.tick_not_before = Some(Instant::now() + NO_ROOM_PAUSE);
            return Ok(());
        }
        self.handle(Input::Tick)?;
        self.watch_clock();
        Ok(())
    }

    /// Says so when the site loses its past: its grants and outcomes are gone.
    #[inline]
    fn watch_readiness(&mut self) -> Result<(), Failure> {
        let (readiness, incarnation) = (self.node.readiness(), self.node.incarnation());
        if readiness == self.readiness {
            return Ok(());
        }
        if let Some(stale) = self.node.stale() {
            return Err(Failure::Stale(stale));
        }
        if let Some(predecessor) = self.node.predecessor() {
            error!(
                "the data directory is new, and other sites know incarnation {} of this site: nothing is joined. Is its volume \
                 mounted, and is `data` the right directory? Only if the earlier data are lost for good, start the site \
                 once with --new-storage; what they had then counts as in use for ever",
                predecessor.0
            );
        }
        if readiness == Readiness::Ready && self.readiness != Readiness::Confirming && incarnation > Incarnation(1) {
            warn!(incarnation = incarnation.0, "the site has lost its disk before; what it had counts as in use");
        }
        if readiness == Readiness::Ready {
            self.meeting = Some(Instant::now() + MEETING);
        }
        self.readiness = readiness;
        Ok(())
    }

    /// Ends the wait for the others, when all are met or those that are not count as away.
    fn meet(&mut self) {
        let is_over = |at: Instant| Instant::now() >= at || self.node.unmet(self.clock.now()).is_empty();
        if self.meeting.is_some_and(is_over) {
            self.meeting = None;
        }
    }

    /// Says so when somebody disagrees with this site's wall clock and too few agree with it, and when that is over.
    fn watch_clock(&mut self) {
        let (error, trusted) = self.node.clock(self.clock.now());
        if trusted == self.clock_trusted {
            return;
        }
        self.clock_trusted = trusted;
        match trusted {
            true => info!("the other sites agree with the wall clock again"),
            false => {
                const WHY: &str = "another site's wall clock differs, and too few agree with this one's";
                warn!(error_us = error, "{WHY}: check its synchronization")
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let deadline = self.clock.instant(self.node.deadline()?);
        let deadline = self.tick_not_before.map_or(deadline, |at| deadline.max(at));
        let deadline = self.meeting.map_or(deadline, |at| deadline.min(at));
        // Nobody says when storage has absorbed more.
        Some(if self.behind.is_some() { deadline.min(Instant::now() + BEHIND_PAUSE) } else { deadline })
    }

    /// Bytes of log that are left when everything handed out so far is written, or bytes of memory for what is not absorbed yet.
    fn room(&self) -> u64 {
        let memory = HELD_LIMIT.saturating_sub(self.overlay.bytes()) as u64;
        // Each batch has a few bytes beside it, and a group is rounded up to whole blocks.
        let overhead = 32 * self.gathered.len() + 2 * 4096;
        let log = self.store.room().saturating_sub((self.gathered_bytes + self.syncing_bytes + overhead) as u64);
        log.min(memory)
    }

    /// How far the site is on its way to serving. A disk without room is known here, not by the machine; and who could serve is
    /// not ready before it has met the others.
    fn readiness(&self) -> Readiness {
        match self.node.readiness() {
            leaving @ (Readiness::Draining | Readiness::Stale) => leaving,
            _ if self.room() < STORAGE_RESERVE + 2 * SMALL => Readiness::StorageFull,
            Readiness::Ready if self.meeting.is_some() => Readiness::Confirming,
            readiness => readiness,
        }
    }

    /// The sites that it waits for before it is ready.
    fn waiting_for(&self) -> Vec<SiteId> {
        if self.meeting.is_some() { self.node.unmet(self.clock.now()) } else { self.node.waiting_for() }
    }

    fn figures(&self) -> Figures {
        let (readiness, waiting_for) = (self.readiness(), self.waiting_for());
        let status = Status { readiness, waiting_for, ..self.node.status(self.clock.now()) };
        Figures { status, quotas: self.node.first_quotas(SHOWN_QUOTAS) }
    }

    /// Shows the outside how the machine is.
    fn publish(&self) {
        let health = Health { readiness: Some(self.readiness()), waiting_for: self.waiting_for() };
        self.parts.health.send_if_modified(|published| {
            let is_new = *published != health;
            *published = health;
            is_new
        });
        if self.parts.figures.is_wanted() {
            self.parts.figures.put(self.figures());
        }

        let mut gauges = self.parts.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        gauges.node = *self.node.metrics();
        let txns = self.node.txns();
        (gauges.coordinated, gauges.prepared) = txns.under_way();
        (gauges.warranties, gauges.copies) = (txns.warranties(), txns.copies());
        gauges.waiting_for_sync = self.gate.waiting();
        gauges.room = self.store.room();
        gauges.overlay_rows = self.overlay.len();
    }
}

/// Why a machine could not be opened on its storage.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenFailure {
    #[error(transparent)]
    Node(#[from] node::OpenError),
    #[error("the log's thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("the storage gives no writer for its log")]
    NoWriter,
}
