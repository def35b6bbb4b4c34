//! Sites in virtual time: each a [`Node`] with its disk, its clocks and its processor, joined by a network.
//!
//! A world knows nothing of workloads, faults or checks: a [`Host`] has these. It is asked to act when its timers fire and
//! when a site responds; if it watches, it also sees every input, effect, sync and message.
//!
//! ```text
//!              wake, respond, (before, after, durable, fate)
//!   host  ◀──────────────────────────────────────────────────  world ── site ── node, gate, overlay
//!         ──────────────────────────────────────────────────▶                ├─ disk: handed out → synced
//!              request, wake_at, crash, restart, pause, cut                  └─ clocks, processor
//! ```

use std::collections::VecDeque;

use slackline_core::api::{Request, Response};
use slackline_core::clock::Now;
use slackline_core::config::{IDLE_CALLS, NAMES_KEPT, Warranties};
use slackline_core::id::SiteId;
use slackline_core::machine::{Batch, ClientId, Effect, Gate, Input, KeySet, Machine, Overlay, STALL_BOUND, Seq, View};
use slackline_core::node::{Config, Node};
use slackline_core::peer::PeerMessage;
use slackline_core::stats::Rng;

use crate::clock::Clock;
use crate::costs::{Costs, objects_of};
use crate::disk::{Copy, Disk};
use crate::network::{Fate, Link, Network, Weather};
use crate::queue::Queue;

const NANOS: u64 = 1_000;

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// The round trip between each two sites, in microseconds; its size is the number of sites.
    pub rtt: Vec<Vec<u64>>,
    /// What work costs.
    pub costs: Costs,
    /// The bound on wall clocks' errors that the sites are told, in microseconds.
    pub epsilon: u64,
    /// Whether sites move tokens; off only as a baseline.
    pub redistribute: bool,
    /// Which warranties sites issue and rely upon.
    pub warranties: Warranties,
    /// How long calls of memoized functions may be unused, in microseconds.
    pub idle_calls: u64,
    /// How long names of deleted quotas are kept at least, in microseconds.
    pub names_kept: u64,
    /// Feeds every random choice.
    pub seed: u64,
    /// Whether sites can be restarted. Without it their disks forget what only a restart would read.
    pub restarts: bool,
}

impl Options {
    /// Sites with these round trips, and everything else as usual.
    pub fn new(rtt: Vec<Vec<u64>>, seed: u64) -> Self {
        let (costs, warranties) = (Costs::default(), Warranties::default());
        let (idle_calls, names_kept) = (IDLE_CALLS, NAMES_KEPT);
        Self {
            rtt,
            costs,
            epsilon: 10_000,
            redistribute: true,
            warranties,
            idle_calls,
            names_kept,
            seed,
            restarts: false,
        }
    }

    /// Sites with the same round trip between any two of them.
    pub fn uniform(sites: usize, rtt: u64, seed: u64) -> Self {
        let row = |from: usize| (0..sites).map(|to| if to == from { 0 } else { rtt }).collect();
        Self::new((0..sites).map(row).collect(), seed)
    }
}

/// Who uses a world.
pub trait Host: Sized {
    /// Whether the watching functions are called.
    const WATCHES: bool = false;

    /// The timer that was set with this token fires.
    fn wake(&mut self, world: &mut World, token: u64);

    /// A site responds; the response leaves it now.
    fn respond(&mut self, world: &mut World, site: usize, client: ClientId, response: Response);

    /// A site is about to handle an input.
    fn before(&mut self, _world: &World, _site: usize, _now: Now, _input: &Input<Node>) {}

    /// A site has handled an input; nothing of it has left it yet.
    fn after(&mut self, _world: &mut World, _site: usize, _effects: &[Effect<Node>]) -> After {
        After::Go
    }

    /// A batch is durable. Only in a world whose sites can be restarted.
    fn durable(&mut self, _now: u64, _site: usize, _seq: Seq, _batch: &Batch) {}

    /// A message or response leaves a site whose log is durable up to `durable`.
    fn release(&mut self, _site: usize, _durable: Seq, _effect: &Effect<Node>) {}

    /// A site sends a message: the earliest time at which it may arrive, whatever the network does with it.
    fn not_before(&mut self, _world: &World, _to: usize, _message: &PeerMessage) -> u64 {
        0
    }

    /// A site sends a message: when a copy of it arrives besides, long after; zero for never.
    fn comes_again(&mut self, _now: u64, _message: &PeerMessage) -> u64 {
        0
    }

    /// How long storage takes to fetch what an input needs that is about to be handled. The site goes on with others.
    fn fetch_takes(&mut self, _world: &World, _site: usize, _input: &Input<Node>) -> u64 {
        0
    }

    /// A site sent a message, and the network did this with it.
    fn fate(&mut self, _now: u64, _from: usize, _to: usize, _message: &PeerMessage, _fate: Fate) {}

    /// A site crashed as [`After`] said, or was stalled too long; it is to be restarted no earlier than after `pause`.
    fn crashed(&mut self, _world: &mut World, _site: usize, _pause: u64) {}
}

/// What happens to a site after it handled an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// Nothing special.
    Go,
    /// It stands still for so many microseconds before the first effect.
    Stall(u64),
    /// It crashes before the first effect leaves it.
    Crash(Keep),
}

/// What a crash leaves of the batches that were handed out and not synced: always a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// None of them.
    Nothing,
    /// All of them.
    Everything,
    /// A part, chosen by this number.
    Some(u64),
}

#[derive(Debug)]
enum Event {
    Message { to: u32, from: u32, message: PeerMessage },
    Request { to: u32, client: ClientId, request: Request },
    Tick { site: u32, life: u32 },
    Run { site: u32, life: u32 },
    Synced { site: u32, life: u32, seq: Seq },
    Fetched { site: u32, life: u32, fetching: Box<Fetching> },
    Host { token: u64 },
}

/// An input for which storage fetches what it needs.
#[derive(Debug)]
struct Fetching {
    input: Input<Node>,
    /// What was named when the fetch began. None if the site names it anew when the fetch is over, because it handles
    /// other inputs meanwhile.
    named: Option<KeySet>,
}

/// One site.
#[derive(Debug)]
struct Site {
    id: SiteId,
    node: Option<Node>,
    gate: Gate<Node>,
    overlay: Overlay,
    disk: Disk,
    /// A person says, at the next start, that the storage of every earlier incarnation is lost.
    new_storage: bool,
    clock: Clock,
    /// Counts starts and crashes, so that events of an earlier life are known as such.
    life: u32,
    /// The processor is busy until then, in nanoseconds.
    busy: u64,
    /// How long the processor has worked in all, in nanoseconds.
    worked: u64,
    /// When the processor will turn to what waits, if something does.
    run_at: u64,
    /// When the next tick is to come.
    tick_at: u64,
    tick_due: bool,
    messages: VecDeque<(u32, PeerMessage)>,
    requests: VecDeque<(ClientId, Request)>,
    syncing: bool,
    /// What a sync takes besides its cost, in microseconds.
    slow_sync: u64,
    /// Whether the disk has room for what clients want written.
    has_room: bool,
    frozen_until: u64,
}

const NEVER: u64 = u64::MAX;

/// Sites in virtual time.
#[derive(Debug)]
pub struct World {
    options: Options,
    members: Vec<SiteId>,
    now: u64,
    until: u64,
    stopped: bool,
    queue: Queue<Event>,
    sites: Vec<Site>,
    network: Network,
    rng: Rng,
    inputs: u64,
    sent: u64,
    syncs: u64,
    effects: Vec<Effect<Node>>,
    released: Vec<Effect<Node>>,
}

impl World {
    /// Sites with empty disks, started at time zero.
    pub fn new(options: Options) -> Self {
        let members: Vec<SiteId> = (0..options.rtt.len()).map(|region| SiteId::new(region as u16, 0)).collect();
        let site = |&id: &SiteId| Site {
            id,
            node: None,
            gate: Gate::new(0),
            overlay: Overlay::default(),
            disk: Disk::new(options.restarts),
            new_storage: false,
            clock: Clock::new(),
            life: 0,
            busy: 0,
            worked: 0,
            run_at: NEVER,
            tick_at: NEVER,
            tick_due: false,
            messages: VecDeque::new(),
            requests: VecDeque::new(),
            syncing: false,
            slow_sync: 0,
            has_room: true,
            frozen_until: 0,
        };
        let mut world = Self {
            sites: members.iter().map(site).collect(),
            network: Network::new(&options.rtt, options.seed ^ 0x6e65_7477),
            rng: Rng::new(options.seed ^ 0x776f_726c),
            members,
            options,
            now: 0,
            until: 0,
            stopped: false,
            queue: Queue::new(),
            inputs: 0,
            sent: 0,
            syncs: 0,
            effects: Vec::new(),
            released: Vec::new(),
        };
        (0..world.sites.len()).for_each(|site| world.start(site));
        world
    }

    /// The true time, in microseconds since the start of the run.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// How many sites there are.
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// Whether there is no site.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// The site at a position.
    pub fn id(&self, site: usize) -> SiteId {
        self.sites[site].id
    }

    /// The machine at a site, unless it is down.
    pub fn node(&self, site: usize) -> Option<&Node> {
        self.sites[site].node.as_ref()
    }

    /// Inputs handled so far, at all sites.
    pub fn inputs(&self) -> u64 {
        self.inputs
    }

    /// Messages sent between sites so far, lost ones included.
    pub fn wan_messages(&self) -> u64 {
        self.sent
    }

    /// Syncs finished so far.
    pub fn syncs(&self) -> u64 {
        self.syncs
    }

    /// How long a site's processor has worked so far, in microseconds.
    pub fn worked(&self, site: usize) -> u64 {
        self.sites[site].worked / NANOS
    }

    /// When a site's processor is free, as far as is known now.
    pub fn free_at(&self, site: usize) -> u64 {
        self.now.max(self.sites[site].busy.div_ceil(NANOS))
    }

    /// One way between two sites without faults, in microseconds.
    pub fn delay(&self, from: usize, to: usize) -> u64 {
        self.network.delay(from, to)
    }

    /// A client's request reaches a site at `at`. It is lost if the site is down then.
    pub fn request(&mut self, at: u64, site: usize, client: ClientId, request: Request) {
        self.queue.push(at.max(self.now), Event::Request { to: site as u32, client, request });
    }

    /// [`Host::wake`] is called with this token at `at`.
    pub fn wake_at(&mut self, at: u64, token: u64) {
        self.queue.push(at.max(self.now), Event::Host { token });
    }

    /// [`World::run`] returns before the next event.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Lets everything happen that happens up to `until`.
    pub fn run<H: Host>(&mut self, host: &mut H, until: u64) {
        self.until = until;
        self.stopped = false;
        while !self.stopped {
            let Some((at, event)) = self.queue.pop(until) else {
                self.now = self.now.max(until);
                return;
            };
            self.now = at;
            match event {
                Event::Message { to, from, message } => {
                    let site = &mut self.sites[to as usize];
                    if site.node.is_none() {
                        if H::WATCHES {
                            host.fate(at, from as usize, to as usize, &message, Fate::Lost);
                        }
                        continue;
                    }
                    if site.is_busy(at) {
                        site.messages.push_back((from, message));
                        self.run_later(to as usize);
                    } else {
                        let from = self.members[from as usize];
                        self.handle(host, to as usize, Input::Message { from, message });
                    }
                }
                Event::Request { to, client, request } => {
                    let site = &mut self.sites[to as usize];
                    if site.node.is_none() {
                        continue;
                    }
                    if site.is_busy(at) {
                        site.requests.push_back((client, request));
                        self.run_later(to as usize);
                    } else {
                        self.handle(host, to as usize, Input::Request { client, request });
                    }
                }
                Event::Tick { site, life } => {
                    let index = site as usize;
                    let site = &mut self.sites[index];
                    if site.life != life || site.tick_at != at {
                        continue;
                    }
                    site.tick_at = NEVER;
                    if site.is_busy(at) {
                        site.tick_due = true;
                        self.run_later(index);
                    } else {
                        self.tick(host, index);
                    }
                }
                Event::Run { site, life } => {
                    if self.sites[site as usize].life == life {
                        self.sites[site as usize].run_at = NEVER;
                        self.run_waiting(host, site as usize);
                    }
                }
                Event::Synced { site, life, seq } => {
                    if self.sites[site as usize].life == life {
                        self.synced(host, site as usize, seq);
                    }
                }
                Event::Fetched { site, life, fetching } => {
                    if self.sites[site as usize].life == life {
                        self.fetched(host, site as usize, fetching);
                    }
                }
                Event::Host { token } => host.wake(self, token),
            }
        }
    }

    /// Starts a site that is down on what its disk has.
    pub fn start(&mut self, site: usize) {
        let (seed, mono) = (self.rng.draw(), self.rng.below(1_000_000));
        let at = &mut self.sites[site];
        assert!(at.node.is_none(), "a site that runs is not started");
        at.life += 1;
        at.clock.restart(self.now, mono);
        let last = at.disk.durable();
        let mut config = Config::new(at.id, self.members.clone());
        config.epsilon = self.options.epsilon;
        config.redistribute = self.options.redistribute;
        config.warranties = self.options.warranties;
        config.idle_calls = self.options.idle_calls;
        config.names_kept = self.options.names_kept;
        config.new_storage = std::mem::take(&mut at.new_storage);
        let node = Node::open(config, seed, last, at.disk.rows(), at.clock.read(self.now));
        let mut node = node.expect("a durable prefix of what was handed out can be opened");
        node.set_room(at.has_room);
        at.node = Some(node);
        at.gate = Gate::new(last);
        at.overlay = Overlay::default();
        at.busy = self.now * NANOS;
        self.schedule_tick(site);
    }

    /// The site's process ends at once. What it had handed out and not synced is lost but for a prefix.
    pub fn crash<H: Host>(&mut self, host: &mut H, site: usize, keep: Keep) {
        let at = &mut self.sites[site];
        let unsynced = at.disk.issued() - at.disk.durable();
        let kept = match keep {
            Keep::Nothing => 0,
            Keep::Everything => unsynced,
            Keep::Some(number) => number % (unsynced + 1),
        };
        let (from, to) = (at.disk.durable(), at.disk.durable() + kept);
        if H::WATCHES {
            at.disk.batches(from, to).for_each(|(seq, batch)| host.durable(self.now, site, seq, batch));
        }
        at.disk.crash(to);
        at.life += 1;
        at.node = None;
        at.messages.clear();
        at.requests.clear();
        (at.run_at, at.tick_at, at.tick_due) = (NEVER, NEVER, false);
        (at.syncing, at.frozen_until) = (false, 0);
    }

    /// The site, which is down, has an empty disk now.
    pub(crate) fn lose_disk(&mut self, site: usize) {
        self.sites[site].disk = Disk::new(self.options.restarts);
    }

    /// The next start of the site, and only that, has a person's word that the storage of every earlier incarnation is lost.
    pub(crate) fn permit_new_storage(&mut self, site: usize) {
        self.sites[site].new_storage = true;
    }

    /// Counts a site's starts and crashes.
    pub(crate) fn life(&self, site: usize) -> u32 {
        self.sites[site].life
    }

    /// The site, which is down, has this copy of a disk now.
    pub(crate) fn restore(&mut self, site: usize, copy: Copy) {
        self.sites[site].disk = Disk::from_copy(copy, self.options.restarts);
    }

    /// A copy of what is durable at a site.
    pub(crate) fn copy(&mut self, site: usize) -> Copy {
        let Site { disk, overlay, .. } = &mut self.sites[site];
        disk.copy(overlay)
    }

    /// What a site would know if it were started from its disk now. Only for a site that is down.
    pub(crate) fn at_rest(&mut self, site: usize) -> Node {
        let at = &self.sites[site];
        assert!(at.node.is_none());
        let config = Config::new(at.id, self.members.clone());
        let node = Node::open(config, 0, at.disk.durable(), at.disk.rows(), at.clock.read(self.now));
        node.expect("a durable prefix of what was handed out can be opened")
    }

    /// The site stands still until `until`: it handles nothing and sees no sync end.
    pub(crate) fn freeze(&mut self, site: usize, until: u64) {
        let at = &mut self.sites[site];
        at.busy = at.busy.max(until * NANOS);
        at.frozen_until = at.frozen_until.max(until);
    }

    /// Whether the site stands still, or its disk is slower than usual.
    pub(crate) fn is_held_up(&self, site: usize) -> bool {
        let at = &self.sites[site];
        at.frozen_until > self.now || at.slow_sync > 0
    }

    /// From here on a sync takes so many microseconds more.
    pub(crate) fn slow_disk(&mut self, site: usize, more: u64) {
        self.sites[site].slow_sync = more;
    }

    /// From here on the disk has room, or none, for what clients want written.
    pub(crate) fn set_room(&mut self, site: usize, has_room: bool) {
        let at = &mut self.sites[site];
        at.has_room = has_room;
        at.node.iter_mut().for_each(|node| node.set_room(has_room));
    }

    pub(crate) fn weather(&mut self) -> &mut Weather {
        &mut self.network.weather
    }

    pub(crate) fn link(&mut self, from: usize, to: usize) -> &mut Link {
        self.network.link(from, to)
    }

    pub(crate) fn clock(&mut self, site: usize) -> &mut Clock {
        &mut self.sites[site].clock
    }

    /// What the clocks of a site show.
    pub fn time_at(&self, site: usize) -> Now {
        self.sites[site].clock.read(self.now)
    }

    /// The tick may have to come earlier than was thought: clocks changed.
    pub(crate) fn reschedule(&mut self, site: usize) {
        if self.sites[site].node.is_some() {
            self.sites[site].tick_at = NEVER;
            self.schedule_tick(site);
        }
    }

    /// The number of the last durable batch, and of the last one handed out.
    pub(crate) fn log(&self, site: usize) -> (Seq, Seq) {
        (self.sites[site].disk.durable(), self.sites[site].disk.issued())
    }

    fn run_later(&mut self, site: usize) {
        let at = &mut self.sites[site];
        if at.run_at == NEVER {
            at.run_at = at.busy.div_ceil(NANOS).max(self.now);
            let event = Event::Run { site: site as u32, life: at.life };
            self.queue.push(at.run_at, event);
        }
    }

    /// Handles what waits at a site, as long as nothing else happens in between.
    fn run_waiting<H: Host>(&mut self, host: &mut H, site: usize) {
        loop {
            let at = &mut self.sites[site];
            if at.node.is_none() {
                return;
            }
            let free_at = at.busy.div_ceil(NANOS);
            let idle = at.messages.is_empty() && !at.tick_due && at.requests.is_empty();
            if idle {
                return;
            }
            if free_at > self.now {
                let nothing_between = self.queue.next_at().is_none_or(|next| next > free_at) && free_at <= self.until;
                if !nothing_between || self.stopped {
                    return self.run_later(site);
                }
                self.now = free_at;
            }
            // Protocol messages go before requests, or overload becomes a wide-area stall.
            let at = &mut self.sites[site];
            if std::mem::take(&mut at.tick_due) {
                self.tick(host, site);
            } else if let Some((from, message)) = at.messages.pop_front() {
                let from = self.members[from as usize];
                self.handle(host, site, Input::Message { from, message });
            } else if let Some((client, request)) = at.requests.pop_front() {
                self.handle(host, site, Input::Request { client, request });
            }
        }
    }

    fn tick<H: Host>(&mut self, host: &mut H, site: usize) {
        let at = &self.sites[site];
        let Some(node) = &at.node else { return };
        // Clocks may have been set since the tick was planned.
        if node.deadline().is_some_and(|deadline| deadline <= at.clock.read(self.now).mono) {
            self.handle(host, site, Input::Tick);
        } else {
            self.schedule_tick(site);
        }
    }

    fn schedule_tick(&mut self, site: usize) {
        let at = &mut self.sites[site];
        let Some(deadline) = at.node.as_ref().and_then(Node::deadline) else { return };
        let when = at.clock.when(self.now, deadline);
        if when < at.tick_at && !at.tick_due {
            at.tick_at = when;
            let event = Event::Tick { site: site as u32, life: at.life };
            self.queue.push(when, event);
        }
    }

    /// Handles an input, or has what it needs fetched from storage first, if that takes time.
    #[inline]
    fn handle<H: Host>(&mut self, host: &mut H, site: usize, input: Input<Node>) {
        if H::WATCHES {
            let takes = host.fetch_takes(self, site, &input);
            if takes > 0 {
                return self.fetch(site, input, takes);
            }
        }
        let now = self.time_at(site);
        self.act(host, site, now, input, None);
    }

    /// Has what an input needs fetched from storage.
    fn fetch(&mut self, site: usize, input: Input<Node>, takes: u64) {
        // A driver waits for storage between the time at which a tick names its rows and the time at which it is handled:
        // more may be due by then than was named. Other inputs name the same at any time, and let others pass meanwhile.
        let is_tick = matches!(input, Input::Tick);
        let named = self.node(site).filter(|_| is_tick).map(|node| node.working_set(self.time_at(site), &input));
        if is_tick {
            self.freeze(site, self.now + takes);
        }
        let (life, fetching) = (self.sites[site].life, Box::new(Fetching { input, named }));
        self.queue.push(self.now + takes, Event::Fetched { site: site as u32, life, fetching });
    }

    /// What an input needs is there.
    fn fetched<H: Host>(&mut self, host: &mut H, site: usize, fetching: Box<Fetching>) {
        let at = &self.sites[site];
        if fetching.named.is_none() && at.is_busy(self.now) {
            let (then, life) = (at.busy.div_ceil(NANOS).max(self.now + 1), at.life);
            return self.queue.push(then, Event::Fetched { site: site as u32, life, fetching });
        }
        // The clock is read now, when nothing is left to be waited for.
        let now = self.time_at(site);
        let Fetching { input, named } = *fetching;
        self.act(host, site, now, input, named);
    }

    #[inline]
    fn act<H: Host>(&mut self, host: &mut H, site: usize, now: Now, input: Input<Node>, named: Option<KeySet>) {
        let costs = self.options.costs;
        let at = &mut self.sites[site];
        let mut cost = costs.input_ns;
        if let Input::Request { request: Request::Batch(batch), .. } = &input {
            cost += costs.operation_ns * batch.operations.len() as u64;
        }
        if costs.object_ns > 0 {
            cost += costs.object_ns * objects_of(&input);
        }
        let node = at.node.as_mut().expect("inputs go to sites that run");
        let needed = named.unwrap_or_else(|| node.working_set(now, &input));
        let view = if needed.is_empty() {
            View::empty()
        } else {
            View::prepare(needed, &at.overlay, at.disk.rows()).expect("memory can be read")
        };
        if H::WATCHES {
            host.before(self, site, now, &input);
        }
        let mut effects = std::mem::take(&mut self.effects);
        let at = &mut self.sites[site];
        let node = at.node.as_mut().expect("inputs go to sites that run");
        node.handle(now, input, &view, &mut effects);
        self.inputs += 1;
        let after = if H::WATCHES { host.after(self, site, &effects) } else { After::Go };

        let at = &mut self.sites[site];
        if let After::Stall(pause) = after
            && pause > STALL_BOUND
        {
            // The driver looks at the clock again, starts no effect, and restarts the machine.
            effects.clear();
            self.effects = effects;
            self.crash(host, site, Keep::Everything);
            return host.crashed(self, site, pause);
        }
        let mut released = std::mem::take(&mut self.released);
        let mut bytes = 0;
        let Site { gate, overlay, disk, .. } = at;
        let sends = effects.len() as u64;
        let persist = |_, batch: Batch| {
            bytes += batch.as_bytes().len() as u64;
            disk.append(batch, overlay);
        };
        gate.admit(&mut effects, persist, |effect| released.push(effect));
        self.effects = effects;
        if let After::Crash(keep) = after {
            released.clear();
            self.released = released;
            self.crash(host, site, keep);
            return host.crashed(self, site, 0);
        }
        cost += costs.send_ns * sends + costs.byte_ns * bytes;
        at.busy = at.busy.max(self.now * NANOS) + cost;
        at.worked += cost;
        if let After::Stall(pause) = after {
            at.busy += pause * NANOS;
            at.frozen_until = at.frozen_until.max(at.busy.div_ceil(NANOS));
        }
        let done = at.busy.div_ceil(NANOS);
        if bytes > 0 {
            self.begin_sync(site, done);
        }
        self.dispatch(host, site, done, &mut released);
        self.released = released;
        self.schedule_tick(site);
    }

    fn begin_sync(&mut self, site: usize, at_time: u64) {
        let costs = self.options.costs;
        let at = &mut self.sites[site];
        if at.syncing || at.disk.issued() == at.disk.durable() {
            return;
        }
        at.syncing = true;
        let (seq, bytes) = at.disk.begin_sync();
        let takes = costs.sync_us + at.slow_sync + costs.sync_byte_ns * bytes / NANOS;
        self.queue.push(at_time + takes, Event::Synced { site: site as u32, life: at.life, seq });
    }

    fn synced<H: Host>(&mut self, host: &mut H, site: usize, seq: Seq) {
        let at = &mut self.sites[site];
        if at.frozen_until > self.now {
            let event = Event::Synced { site: site as u32, life: at.life, seq };
            return self.queue.push(at.frozen_until, event);
        }
        self.syncs += 1;
        if H::WATCHES && self.options.restarts {
            at.disk.batches(at.disk.durable(), seq).for_each(|(seq, batch)| host.durable(self.now, site, seq, batch));
        }
        let mut released = std::mem::take(&mut self.released);
        at.disk.finish_sync(seq, &mut at.overlay);
        at.gate.durable(seq, |effect| released.push(effect));
        at.syncing = false;
        self.begin_sync(site, self.now);
        self.dispatch(host, site, self.now, &mut released);
        self.released = released;
    }

    fn dispatch<H: Host>(&mut self, host: &mut H, site: usize, at_time: u64, released: &mut Vec<Effect<Node>>) {
        for effect in released.drain(..) {
            if H::WATCHES {
                host.release(site, self.sites[site].disk.durable(), &effect);
            }
            match effect {
                Effect::Send { to, message } => {
                    let Ok(to) = self.members.binary_search(&to) else { continue };
                    self.send(host, at_time, site, to, message);
                }
                Effect::Respond { client, response } => host.respond(self, site, client, response),
                Effect::Persist(_) => unreachable!("the gate hands batches to the disk"),
            }
        }
    }

    fn send<H: Host>(&mut self, host: &mut H, at_time: u64, from: usize, to: usize, message: PeerMessage) {
        self.sent += 1;
        let (first, second, overtakes) = self.network.carry(at_time, from, to);
        let held = if H::WATCHES { host.not_before(self, to, &message) } else { 0 };
        let (first, second) = (first.map(|at| at.max(held)), second.map(|at| at.max(held)));
        let again = if H::WATCHES { host.comes_again(at_time, &message) } else { 0 };
        if again > at_time {
            let message = message.clone();
            self.queue.push(again, Event::Message { to: to as u32, from: from as u32, message });
        }
        if H::WATCHES {
            match first {
                None => host.fate(at_time, from, to, &message, Fate::Lost),
                Some(_) => host.fate(at_time, from, to, &message, Fate::Sent),
            }
            if second.is_some() {
                host.fate(at_time, from, to, &message, Fate::Duplicated);
            }
            if overtakes {
                host.fate(at_time, from, to, &message, Fate::Reordered);
            }
        }
        let (to, from) = (to as u32, from as u32);
        if let Some(at) = second {
            self.queue.push(at, Event::Message { to, from, message: message.clone() });
        }
        if let Some(at) = first {
            self.queue.push(at, Event::Message { to, from, message });
        }
    }
}

impl Site {
    #[inline]
    fn is_busy(&self, now: u64) -> bool {
        self.busy > now * NANOS || self.run_at != NEVER
    }
}
