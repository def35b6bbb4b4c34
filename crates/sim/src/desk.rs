//! The product's client in virtual time: callers are futures, polled on one thread, and their calls, transactions and reads go through the
//! [`Link`]s of `slackline-session`, which the client that people use drives over sockets.
//!
//! A [`Desk`] has clients, each with a *wire* to every site: a link, and the stream that is open for it. It knows no world. Its host tells it
//! the time, what a site responded on which stream, and which streams are open or broken; the desk says what is to be done
//! ([`Errand`]). Nothing else wakes anybody, so the same seed gives the same run.
//!
//! ```text
//!   tasks ── futures of slackline-session ── links ──▶ Errand::Send ──▶ host ──▶ site
//!     ▲                                        ▲                                 │
//!     └───────────────── woken ────────────────┴────────── receive ◀── host ◀────┘
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use slackline_core::api::{Request, Response};
use slackline_core::stats::Rng;
use slackline_session::link::{Driver, Link, PAUSES, RELAY};
use slackline_session::port::{Pending, Port};
use slackline_session::time::{Time, jittered};
use slackline_session::topology::Topology;

/// A caller: what it does, polled when something that it waits for has come.
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// What a host is to do for a desk.
#[derive(Debug)]
pub enum Errand {
    /// Open a stream for a wire, to its site or through another. [`Desk::connected`] or [`Desk::broken`] answers.
    Connect {
        /// The wire.
        wire: usize,
        /// The site that the stream leads to: the wire's own, or one that relays.
        through: usize,
    },
    /// Send a request on a wire's stream.
    Send {
        /// The wire.
        wire: usize,
        /// The stream; what is responded on it comes back with its number.
        stream: u64,
        /// The site that the stream leads to.
        through: usize,
        /// What is sent.
        request: Request,
    },
    /// Call [`Desk::rings`] with this name at this time, in microseconds.
    WakeAt {
        /// The time.
        at: u64,
        /// The name.
        name: u64,
    },
}

/// See the module.
pub struct Desk {
    hub: Arc<Mutex<Hub>>,
    topology: Arc<Topology>,
    tasks: Vec<(Option<Task>, Waker)>,
    ready: Arc<Mutex<VecDeque<usize>>>,
    /// Tasks that have not ended.
    open: usize,
    wires: Vec<Wire>,
    /// Wires to look at: something is to be sent, or falls due earlier.
    dirty: Arc<Mutex<VecDeque<usize>>>,
    errands: Vec<Errand>,
}

/// What the clients of a desk share.
struct Hub {
    now: u64,
    rng: Rng,
    names: u64,
    timers: BTreeMap<u64, Timer>,
    /// Times for which the host is to be asked.
    asked: Vec<(u64, u64)>,
    /// What is to be done besides, by nobody in particular.
    spawned: Vec<Pending<()>>,
}

/// What a name that rings is for.
enum Timer {
    /// Somebody sleeps. True once it has rung.
    Sleep(bool, Option<Waker>),
    /// A wire's link has something due.
    Due(usize),
    /// A wire's pause is over, or the time of its relay is.
    Rested(usize, u64),
}

/// One client's way to one site.
struct Wire {
    link: Arc<Link>,
    site: usize,
    sites: usize,
    state: State,
    /// Counts the states, so that a timer of an earlier one does nothing.
    turn: u64,
    pause: Duration,
    /// The earliest time for which a timer is set.
    due: Option<u64>,
    waker: Waker,
    /// Something has happened to it since its link was checked.
    is_touched: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody has used the link yet.
    Idle,
    /// The host is opening a stream to this site.
    Connecting(usize),
    /// A stream is open to this site.
    Up(u64, usize),
    /// The last attempt failed, or the stream broke.
    Resting,
}

/// Wakes a task.
struct Bell {
    of: usize,
    ready: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        lock(&self.ready).push_back(self.of);
    }
}

impl Driver for Bell {
    fn look(&self) {
        lock(&self.ready).push_back(self.of);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("open", &self.open).field("wires", &self.wires.len()).finish_non_exhaustive()
    }
}

impl Desk {
    /// A desk without clients.
    pub fn new(topology: Arc<Topology>, seed: u64) -> Self {
        let hub = Hub {
            now: 0,
            rng: Rng::new(seed ^ 0x6875_6273),
            names: 0,
            timers: BTreeMap::new(),
            asked: Vec::new(),
            spawned: Vec::new(),
        };
        Self {
            hub: Arc::new(Mutex::new(hub)),
            topology,
            tasks: Vec::new(),
            ready: Arc::default(),
            open: 0,
            wires: Vec::new(),
            dirty: Arc::default(),
            errands: Vec::new(),
        }
    }

    /// Adds a client with wires to these sites (positions in the topology), nearest first: what its calls stand on, and its
    /// first wire. The others follow in this order.
    pub fn client(&mut self, sites: &[usize]) -> (Arc<VirtualPort>, usize) {
        let first = self.wires.len();
        let mut links = Vec::with_capacity(sites.len());
        for &site in sites {
            let bell = Arc::new(Bell { of: self.wires.len(), ready: Arc::clone(&self.dirty) });
            let of = &self.topology.sites[site];
            let link = Arc::new(Link::new(of.id, of.name.clone(), Arc::clone(&bell) as Arc<dyn Driver>));
            links.push(Arc::clone(&link));
            self.wires.push(Wire {
                link,
                site,
                sites: self.topology.sites.len(),
                state: State::Idle,
                turn: 0,
                pause: PAUSES.0,
                due: None,
                waker: Waker::from(bell),
                is_touched: false,
            });
        }
        let port = VirtualPort { hub: Arc::clone(&self.hub), topology: Arc::clone(&self.topology), links };
        (Arc::new(port), first)
    }

    /// The link of a wire.
    pub fn link(&self, wire: usize) -> &Arc<Link> {
        &self.wires[wire].link
    }

    /// The site of a wire, by its position.
    pub fn site(&self, wire: usize) -> usize {
        self.wires[wire].site
    }

    /// The number of wires, of all clients.
    pub fn wires(&self) -> usize {
        self.wires.len()
    }

    /// The site to which a wire's stream leads, if it is the one of this number.
    pub fn through(&self, wire: usize, stream: u64) -> Option<usize> {
        match self.wires[wire].state {
            State::Up(open, through) if open == stream => Some(through),
            _ => None,
        }
    }

    /// The wires with a stream that leads to a site.
    pub fn wires_to(&self, site: usize) -> Vec<usize> {
        let leads = |wire: &Wire| matches!(wire.state, State::Up(_, through) if through == site);
        (0..self.wires.len()).filter(|wire| leads(&self.wires[*wire])).collect()
    }

    /// Adds a caller.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.add(Box::pin(task));
    }

    /// Returns the number of callers that have not ended.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Forgets the callers that have ended.
    pub fn clear(&mut self) {
        if self.open == 0 {
            self.tasks.clear();
            lock(&self.ready).clear();
        }
    }

    // What happens.

    /// A time has come that was asked for.
    pub fn rings(&mut self, now: u64, name: u64) {
        let mut hub = lock(&self.hub);
        hub.now = now;
        if let Some(Timer::Sleep(has_rung, waker)) = hub.timers.get_mut(&name) {
            *has_rung = true;
            let waker = waker.take();
            drop(hub);
            return waker.into_iter().for_each(Waker::wake);
        }
        let timer = hub.timers.remove(&name);
        drop(hub);
        match timer {
            Some(Timer::Due(wire)) => self.sweep(now, wire),
            Some(Timer::Rested(wire, turn)) if self.wires[wire].turn == turn => match self.wires[wire].state {
                // The site itself may be back.
                State::Up(..) => self.broken(now, wire),
                _ => self.connect(wire, self.wires[wire].site),
            },
            _ => {}
        }
    }

    /// A stream for a wire is open.
    pub fn connected(&mut self, now: u64, wire: usize) {
        let State::Connecting(through) = self.wires[wire].state else { return };
        let at = &mut self.wires[wire];
        let stream = at.link.change(|sessions, _| sessions.next_stream());
        at.state = State::Up(stream, through);
        at.turn += 1;
        let is_relayed = through != at.site;
        at.link.connected(is_relayed);
        if is_relayed {
            self.rest(Time(now) + RELAY, wire);
        }
        self.mark(wire);
    }

    /// A stream for a wire could not be opened, or is over.
    pub fn broken(&mut self, now: u64, wire: usize) {
        let at = &mut self.wires[wire];
        at.is_touched = true;
        let was = at.state;
        if matches!(was, State::Idle | State::Resting) {
            return;
        }
        at.state = State::Resting;
        at.turn += 1;
        at.link.disconnected(Time(now));

        // What only this site can do may get there through another.
        let was_own = matches!(was, State::Connecting(through) | State::Up(_, through) if through == at.site);
        let (site, sites) = (at.site, at.sites);
        if was_own && sites > 1 && at.link.change(|sessions, _| sessions.could_be_relayed()) {
            let other = lock(&self.hub).rng.below(sites as u64 - 1) as usize;
            return self.connect(wire, if other < site { other } else { other + 1 });
        }
        let pause = at.pause;
        at.pause = (pause * 2).min(PAUSES.1);
        let pause = jittered(pause, lock(&self.hub).rng.draw());
        self.rest(Time(now) + pause, wire);
    }

    /// A site responded on a wire's stream.
    pub fn receive(&mut self, now: u64, wire: usize, stream: u64, response: Response) {
        if self.through(wire, stream).is_none() {
            return;
        }
        lock(&self.hub).now = now;
        self.wires[wire].pause = PAUSES.0;
        let is_useful = self.wires[wire].link.receive(response, Time(now));
        if !is_useful {
            self.broken(now, wire);
        }
        self.mark(wire);
    }

    /// Asserts what always holds of the links to which something has happened since they were last checked.
    pub fn check(&mut self) {
        for wire in self.wires.iter_mut().filter(|wire| wire.is_touched) {
            wire.link.check();
            wire.is_touched = false;
        }
    }

    /// Lets everybody act for whom something has come, and returns what is to be done.
    pub fn work(&mut self, now: u64) -> Vec<Errand> {
        lock(&self.hub).now = now;
        loop {
            let spawned = std::mem::take(&mut lock(&self.hub).spawned);
            spawned.into_iter().for_each(|work| self.add(work));
            let ready = lock(&self.ready).pop_front();
            let Some(order) = ready else {
                let dirty = lock(&self.dirty).pop_front();
                match dirty {
                    Some(wire) => self.pump(now, wire),
                    None => break,
                }
                continue;
            };
            let Some((Some(task), waker)) = self.tasks.get_mut(order) else { continue };
            if task.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                self.tasks[order].0 = None;
                self.open -= 1;
            }
        }
        let asked = std::mem::take(&mut lock(&self.hub).asked);
        self.errands.extend(asked.into_iter().map(|(at, name)| Errand::WakeAt { at, name }));
        std::mem::take(&mut self.errands)
    }

    // Private from here.

    fn add(&mut self, task: Task) {
        let of = self.tasks.len();
        let waker = Waker::from(Arc::new(Bell { of, ready: Arc::clone(&self.ready) }));
        self.tasks.push((Some(task), waker));
        self.open += 1;
        lock(&self.ready).push_back(of);
    }

    fn mark(&self, wire: usize) {
        lock(&self.dirty).push_back(wire);
    }

    fn connect(&mut self, wire: usize, through: usize) {
        let at = &mut self.wires[wire];
        at.state = State::Connecting(through);
        at.turn += 1;
        self.errands.push(Errand::Connect { wire, through });
    }

    /// Has the wire looked at again then, unless its state is another one by that time.
    fn rest(&mut self, at: Time, wire: usize) {
        let turn = self.wires[wire].turn;
        lock(&self.hub).ask(at.0, Timer::Rested(wire, turn));
    }

    fn sweep(&mut self, now: u64, wire: usize) {
        let at = &mut self.wires[wire];
        at.due = None;
        if !at.link.sweep(Time(now)) {
            self.broken(now, wire);
        }
        self.mark(wire);
    }

    /// Sends what a wire's link has to send, and sees that it is swept in time.
    fn pump(&mut self, now: u64, wire: usize) {
        if self.wires[wire].state == State::Idle {
            self.connect(wire, self.wires[wire].site);
        }
        let at = &mut self.wires[wire];
        at.is_touched = true;
        if let State::Up(stream, through) = at.state {
            while let Poll::Ready(Some(request)) = at.link.next_request(stream, Time(now), &at.waker) {
                self.errands.push(Errand::Send { wire, stream, through, request });
            }
        }
        if let Some(due) = at.link.sweep_at().map(|due| due.0.max(now + 1))
            && at.due.is_none_or(|known| due < known)
        {
            at.due = Some(due);
            lock(&self.hub).ask(due, Timer::Due(wire));
        }
    }
}

impl Hub {
    fn ask(&mut self, at: u64, timer: Timer) -> u64 {
        self.names += 1;
        self.timers.insert(self.names, timer);
        self.asked.push((at, self.names));
        self.names
    }
}

/// What the calls and transactions of one client stand on, in virtual time.
pub struct VirtualPort {
    hub: Arc<Mutex<Hub>>,
    topology: Arc<Topology>,
    links: Vec<Arc<Link>>,
}

impl std::fmt::Debug for VirtualPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualPort").field("links", &self.links).finish_non_exhaustive()
    }
}

impl Port for VirtualPort {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn links(&self, lane: u16) -> &[Arc<Link>] {
        if lane == 0 { &self.links } else { &[] }
    }

    fn now(&self) -> Time {
        Time(lock(&self.hub).now)
    }

    fn sleep_until(&self, at: Time) -> Pending<()> {
        let mut hub = lock(&self.hub);
        let at = at.0.max(hub.now + 1);
        let name = hub.ask(at, Timer::Sleep(false, None));
        Box::pin(Sleep { hub: Arc::clone(&self.hub), name })
    }

    fn random(&self) -> u64 {
        lock(&self.hub).rng.draw()
    }

    fn spawn(&self, work: Pending<()>) {
        lock(&self.hub).spawned.push(work);
    }
}

/// Somebody sleeps; forgotten when dropped.
struct Sleep {
    hub: Arc<Mutex<Hub>>,
    name: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut hub = lock(&self.hub);
        let timer = hub.timers.get_mut(&self.name);
        let Some(Timer::Sleep(has_rung, waker)) = timer else { unreachable!("it is there until this is dropped") };
        if *has_rung {
            return Poll::Ready(());
        }
        *waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        lock(&self.hub).timers.remove(&self.name);
    }
}
