//! Programs in virtual time: simulated clients are futures, polled on one thread when the world has something for them.
//!
//! A [`Stage`] has a world of sites, and tasks. A task's transactions stand on the port of its [`Seat`](super::Seat), which
//! puts requests into the hub's outbox; they reach the client's site half a [`NEAR`] later. What the site responds, and
//! timers, come back as timers of the world, which wake the task. Nothing else wakes anybody, so the same seed gives the
//! same run.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use slackline::port::{Memos, NotTaken, Pending, Port, Wanted, committed};
use slackline::{Outcome, Topology};
use slackline_core::api::{self, Batch, Operation, Read, Readiness, Reading, Request, Response, Submission};
use slackline_core::clock::SECOND;
use slackline_core::id::{Incarnation, OperationId, SessionId, SiteId};
use slackline_core::machine::{ClientId, Effect};
use slackline_core::node::Node;
use slackline_core::object::Transaction;
use slackline_core::stats::Rng;
use slackline_sim::world::{After, Host, Options, World};

/// From a client to the site of its region, and back, in microseconds.
pub(super) const NEAR: u64 = 300;
/// The longest that sites may take to become ready, or tasks to end, in microseconds.
const PATIENCE: u64 = 600 * SECOND;
/// Names of commits have this bit, and the client from the next one on; other names count up.
const COMMIT: u64 = 1 << 63;
const CLIENT: u32 = 36;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// See the module.
pub(super) struct Stage {
    pub(super) world: World,
    desk: Desk,
}

/// What is between the world and the tasks.
struct Desk {
    hub: Arc<Mutex<Hub>>,
    /// The site of each client.
    sites: Vec<usize>,
    tasks: Vec<(Option<Task>, Waker)>,
    ready: Arc<Mutex<VecDeque<usize>>>,
    /// Tasks that have not ended.
    open: usize,
    /// What is on its way to a client, by the name of what it answers.
    arriving: BTreeMap<u64, Answer>,
    /// By site: since when parts of transactions wait there for warranties to end.
    defending: Vec<BTreeMap<OperationId, u64>>,
}

/// What the clients of a stage share.
pub(super) struct Hub {
    topology: Arc<Topology>,
    /// What virtual time zero is called.
    base: Instant,
    now: u64,
    rng: Rng,
    names: u64,
    /// Whom an answer or a timer is waited for by.
    slots: BTreeMap<u64, Slot>,
    outbox: Vec<(usize, Request)>,
    timers: Vec<(u64, u64)>,
    /// What is to be done besides, by nobody in particular.
    spawned: Vec<Pending<()>>,
    sessions: Vec<Option<Session>>,
    /// How long parts of a transaction waited for warranties to end: the longest of them, in microseconds.
    delays: BTreeMap<OperationId, u64>,
}

#[derive(Clone, Copy)]
struct Session {
    site: SiteId,
    incarnation: Incarnation,
    id: SessionId,
    /// Of the last operation.
    sequence: u64,
}

#[derive(Default)]
struct Slot {
    answer: Option<Answer>,
    waker: Option<Waker>,
}

enum Answer {
    Reading(Box<Reading>),
    Outcome(api::Outcome),
    Rings,
}

struct Bell {
    task: usize,
    ready: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        lock(&self.ready).push_back(self.task);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    /// Sites that serve, and clients with sessions at these sites.
    pub(super) fn new(options: Options, topology: Arc<Topology>, clients: &[usize]) -> Self {
        let hub = Hub {
            topology,
            base: Instant::now(),
            now: 0,
            rng: Rng::new(options.seed ^ 0x6875_6273),
            names: 1,
            slots: BTreeMap::new(),
            outbox: Vec::new(),
            timers: Vec::new(),
            spawned: Vec::new(),
            sessions: vec![None; clients.len()],
            delays: BTreeMap::new(),
        };
        let desk = Desk {
            hub: Arc::new(Mutex::new(hub)),
            sites: clients.to_vec(),
            tasks: Vec::new(),
            ready: Arc::default(),
            open: 0,
            arriving: BTreeMap::new(),
            defending: vec![BTreeMap::new(); options.rtt.len()],
        };
        let mut stage = Self { world: World::new(options), desk };
        stage.wait(|stage| {
            let mut nodes = (0..stage.world.len()).map(|site| stage.world.node(site));
            nodes.all(|node| node.is_some_and(|node| node.readiness() == Readiness::Ready))
        });
        for (client, &site) in clients.iter().enumerate() {
            stage.world.request(stage.world.now(), site, ClientId(client as u64), Request::Open);
        }
        stage.wait(|stage| lock(&stage.desk.hub).sessions.iter().all(Option::is_some));
        stage
    }

    /// What transactions of a client stand on; whether it uses kept results of memoized functions.
    pub(super) fn port(&self, client: usize, memoizes: bool) -> SimPort {
        let hub = lock(&self.desk.hub);
        let (topology, base) = (Arc::clone(&hub.topology), hub.base);
        let memos = Arc::new(Memos::default());
        if !memoizes {
            memos.turn_off();
        }
        SimPort { hub: Arc::clone(&self.desk.hub), topology, base, client, site: self.desk.sites[client], memos }
    }

    /// What the clients share.
    pub(super) fn hub(&self) -> Arc<Mutex<Hub>> {
        Arc::clone(&self.desk.hub)
    }

    /// Adds a task.
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.desk.add(Box::pin(task));
        self.world.wake_at(self.world.now(), 0);
    }

    /// Lets time pass until all tasks have ended.
    pub(super) fn finish(&mut self) {
        self.wait(|stage| stage.desk.open == 0);
        self.desk.tasks.clear();
    }

    /// Lets so much time pass.
    pub(super) fn pass(&mut self, micros: u64) {
        let until = self.world.now() + micros;
        while self.world.now() < until {
            self.world.run(&mut self.desk, until);
        }
    }

    fn wait(&mut self, is_over: impl Fn(&Self) -> bool) {
        let patience = self.world.now() + PATIENCE;
        while !is_over(self) {
            assert!(self.world.now() < patience, "what is simulated must come to an end");
            self.world.run(&mut self.desk, self.world.now() + SECOND / 100);
        }
    }
}

impl Host for Desk {
    const WATCHES: bool = true;

    fn wake(&mut self, world: &mut World, token: u64) {
        let answer = self.arriving.remove(&token).unwrap_or(Answer::Rings);
        if let Some(slot) = lock(&self.hub).slots.get_mut(&token) {
            slot.answer = Some(answer);
            slot.waker.take().into_iter().for_each(Waker::wake);
        }
        self.poll_ready(world);
    }

    fn respond(&mut self, world: &mut World, site: usize, client: ClientId, response: Response) {
        match response {
            Response::Read(reading) => self.arrive(world, site, reading.token, Answer::Reading(reading)),
            Response::Batch { answers, .. } => {
                for answer in answers {
                    let name = commit_name(client.0 as usize, answer.sequence);
                    self.arrive(world, site, name, Answer::Outcome(answer.outcome));
                }
            }
            Response::Opened { site, incarnation, session } => {
                let session = Session { site, incarnation, id: session, sequence: 0 };
                lock(&self.hub).sessions[client.0 as usize] = Some(session);
            }
            other => panic!("not asked for: {other:?}"),
        }
    }

    /// Notes how long parts are defended.
    fn after(&mut self, world: &mut World, site: usize, _: &[Effect<Node>]) -> After {
        let (Some(node), known) = (world.node(site), &mut self.defending[site]) else { return After::Go };
        let mut present = node.txns().defending().peekable();
        if known.is_empty() && present.peek().is_none() {
            return After::Go;
        }
        let present: Vec<OperationId> = present.collect();
        let mut hub = lock(&self.hub);
        known.retain(|id, since| {
            let is_there = present.binary_search(id).is_ok();
            if !is_there {
                let delay = hub.delays.entry(*id).or_default();
                *delay = (*delay).max(world.now() - *since);
            }
            is_there
        });
        for id in present {
            known.entry(id).or_insert(world.now());
        }
        After::Go
    }
}

impl Desk {
    /// A response leaves its site when the processor has made it, and is then on its way to the client.
    fn arrive(&mut self, world: &mut World, site: usize, name: u64, answer: Answer) {
        self.arriving.insert(name, answer);
        world.wake_at(world.free_at(site) + NEAR / 2, name);
    }

    fn add(&mut self, task: Task) {
        let order = self.tasks.len();
        let waker = Waker::from(Arc::new(Bell { task: order, ready: Arc::clone(&self.ready) }));
        self.tasks.push((Some(task), waker));
        self.open += 1;
        lock(&self.ready).push_back(order);
    }

    fn poll_ready(&mut self, world: &mut World) {
        lock(&self.hub).now = world.now();
        loop {
            let spawned = std::mem::take(&mut lock(&self.hub).spawned);
            spawned.into_iter().for_each(|work| self.add(work));
            let Some(order) = lock(&self.ready).pop_front() else { break };
            let (task, waker) = &mut self.tasks[order];
            let Some(future) = task else { continue };
            if future.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                *task = None;
                self.open -= 1;
                if self.open == 0 {
                    world.stop();
                }
            }
        }
        let mut hub = lock(&self.hub);
        for (client, request) in hub.outbox.drain(..) {
            world.request(world.now() + NEAR / 2, self.sites[client], ClientId(client as u64), request);
        }
        hub.timers.drain(..).for_each(|(at, name)| world.wake_at(at, name));
    }
}

fn commit_name(client: usize, sequence: u64) -> u64 {
    COMMIT | (client as u64) << CLIENT | sequence
}

impl Hub {
    /// How long a transaction was delayed because a part of it waited for warranties, in microseconds.
    pub(super) fn take_delay(&mut self, id: OperationId) -> u64 {
        self.delays.remove(&id).unwrap_or(0)
    }

    fn next_name(&mut self) -> u64 {
        self.names += 1;
        self.slots.insert(self.names, Slot::default());
        self.names
    }
}

/// What transactions of one simulated client stand on.
#[derive(Clone)]
pub(super) struct SimPort {
    hub: Arc<Mutex<Hub>>,
    topology: Arc<Topology>,
    base: Instant,
    client: usize,
    site: usize,
    memos: Arc<Memos>,
}

impl SimPort {
    fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.base).as_micros() as u64
    }
}

impl Port for SimPort {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn now(&self) -> Instant {
        self.base + Duration::from_micros(lock(&self.hub).now)
    }

    fn sleep_until(&self, at: Instant) -> Pending<()> {
        let at = self.micros(at);
        let mut hub = lock(&self.hub);
        let name = hub.next_name();
        let at = at.max(hub.now + 1);
        hub.timers.push((at, name));
        drop(hub);
        let asked = Asked { hub: Arc::clone(&self.hub), name };
        Box::pin(async move { drop(asked.await) })
    }

    fn random(&self) -> u64 {
        lock(&self.hub).rng.draw()
    }

    fn memos(&self) -> &Memos {
        &self.memos
    }

    fn spawn(&self, work: Pending<()>) {
        lock(&self.hub).spawned.push(work);
    }

    fn choose(&self, _: Option<u16>, _: &mut Vec<SiteId>) -> SiteId {
        SiteId::new(self.site as u16, 0)
    }

    fn read(self: Arc<Self>, _: SiteId, wanted: Wanted, deadline: Instant) -> Pending<Result<Box<Reading>, NotTaken>> {
        let until = self.micros(deadline);
        let mut hub = lock(&self.hub);
        let token = hub.next_name();
        let Wanted { gets, scans, fresh, upkeep, claim } = wanted;
        let timeout = until.saturating_sub(hub.now);
        let read = Read { token, gets, scans, fresh, upkeep, timeout, claim };
        hub.outbox.push((self.client, Request::Read(Box::new(read))));
        drop(hub);
        let asked = Asked { hub: Arc::clone(&self.hub), name: token };
        Box::pin(async move {
            match asked.await {
                Answer::Reading(reading) => Ok(reading),
                _ => Err(NotTaken::Unreachable),
            }
        })
    }

    fn commit(
        self: Arc<Self>,
        _: Option<u16>,
        transaction: Transaction,
        deadline: Instant,
    ) -> Pending<Outcome<(u8, OperationId)>> {
        let until = self.micros(deadline);
        let mut hub = lock(&self.hub);
        let timeout = until.saturating_sub(hub.now);
        let session = hub.sessions[self.client].as_mut().expect("every client has a session");
        session.sequence += 1;
        let Session { site, incarnation, id, sequence } = *session;
        let operations = vec![Submission { sequence, timeout, operation: Operation::Commit(Box::new(transaction)) }];
        let name = commit_name(self.client, sequence);
        hub.slots.insert(name, Slot::default());
        // It cares for no outcome before the first that it waits for.
        let first = hub.slots.range(commit_name(self.client, 0)..).next().map_or(name, |(first, _)| *first);
        let low = first & ((1 << CLIENT) - 1);
        let batch = Batch { site, incarnation, session: id, low, operations };
        hub.outbox.push((self.client, Request::Batch(batch)));
        drop(hub);
        let asked = Asked { hub: Arc::clone(&self.hub), name };
        Box::pin(async move {
            let operation = OperationId { site, incarnation, session: id, sequence };
            match asked.await {
                Answer::Outcome(outcome) => committed(outcome, operation, &self.topology),
                _ => unreachable!("a commit is answered by its outcome"),
            }
        })
    }
}

/// Something that a client waits for; forgotten when dropped.
struct Asked {
    hub: Arc<Mutex<Hub>>,
    name: u64,
}

impl Future for Asked {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let mut hub = lock(&self.hub);
        let slot = hub.slots.get_mut(&self.name).expect("it is there until this is dropped");
        match slot.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        lock(&self.hub).slots.remove(&self.name);
    }
}
