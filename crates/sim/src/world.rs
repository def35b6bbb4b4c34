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
use slackline_core::config::{IDLE_CALLS, NAMES_KEPT, Slack, Warranties};
use slackline_core::id::SiteId;
use slackline_core::machine::{Batch, ClientId, Effect, Gate, Input, KeySet, Machine, Overlay, STALL_BOUND, Seq, View};
use slackline_core::node::{Config, Node};
use slackline_core::peer::PeerMessage;
use slackline_core::stats::Rng;

use crate::clock::Clock;
use crate::costs::Costs;
use crate::disk::{Copy, Disk};
use crate::network::{Fate, Link, Network, Weather};
use crate::queue::Queue;

/// Nanoseconds in a microsecond.
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
    /// True if sites move tokens; off only as a baseline.
    pub redistribute: bool,
    /// True if they move some ahead of need; off only as a baseline.
    pub ahead: bool,
    /// Which warranties sites issue and rely upon.
    pub warranties: Warranties,
    /// The longest time that calls of memoized functions may be unused, in microseconds.
    pub idle_calls: u64,
    /// The time for which names of deleted quotas are kept at least, in microseconds.
    pub names_kept: u64,
    /// When sites move slack of treaties.
    pub slack: Slack,
    /// Feeds every random choice.
    pub seed: u64,
    /// The number of sites that are members from the beginning. The configuration of each that is to join names those before it, too.
    pub first: usize,
    /// True if sites can be restarted. Without it their disks forget what only a restart would read.
    pub restarts: bool,
    /// True if a site handles messages that wait before a tick that is due, as a server does: what they make due, and what was, comes in one
    /// call then.
    pub messages_first: bool,
}

impl Options {
    /// Sites with these round trips, and everything else as usual.
    pub fn new(rtt: Vec<Vec<u64>>, seed: u64) -> Self {
        let (costs, warranties) = (Costs::default(), Warranties::default());
        let (idle_calls, names_kept) = (IDLE_CALLS, NAMES_KEPT);
        Self {
            first: rtt.len(),
            rtt,
            costs,
            epsilon: 10_000,
            redistribute: true,
            ahead: true,
            warranties,
            idle_calls,
            names_kept,
            slack: Slack::default(),
            seed,
            restarts: false,
            messages_first: false,
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
    /// True if the watching functions are called.
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

    /// Returns the time that storage takes to fetch what an input needs that is about to be handled. The site goes on with others.
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

/// Something that happens.
#[derive(Debug)]
enum Event {
    /// A message arrives.
    Message { to: u32, from: u32, message: PeerMessage },
    /// A client's request arrives.
    Request { to: u32, client: ClientId, request: Request },
    /// A machine's deadline has come.
    Tick { site: u32, life: u32 },
    /// A processor turns to what waits.
    Run { site: u32, life: u32 },
    /// A sync ends that had everything up to this batch.
    Synced { site: u32, life: u32, seq: Seq },
    /// Storage has fetched what an input needs.
    Fetched { site: u32, life: u32, fetching: Box<Fetching> },
    /// A timer of the host fires.
    Host { token: u64 },
}

/// An input for which storage fetches what it needs.
#[derive(Debug)]
struct Fetching {
    /// The input.
    input: Input<Node>,
    /// What was named when the fetch began. None if the site names it again when the fetch is over, because it handles
    /// other inputs meanwhile.
    named: Option<KeySet>,
}

/// One site.
#[derive(Debug)]
struct Site {
    /// Its name.
    id: SiteId,
    /// The machine, unless the site is down.
    node: Option<Node>,
    /// Holds back what leaves it until that may be seen.
    gate: Gate<Node>,
    /// Its disk, and how that is.
    storage: Storage,
    /// A person says, at the next start, that the storage of every earlier incarnation is lost.
    new_storage: bool,
    /// Its clocks.
    clock: Clock,
    /// Counts starts and crashes, so that events of an earlier life are known as such.
    life: u32,
    /// What it is busy with, and until when.
    processor: Processor,
    /// What waits for the processor.
    inbox: Inbox,
    /// When the next tick is to come.
    tick_at: u64,
}

/// A site's disk, and how that is.
#[derive(Debug)]
struct Storage {
    /// What was handed out, and how much of it is durable.
    disk: Disk,
    /// What was handed out and is not folded into the disk's rows.
    overlay: Overlay,
    /// True if a sync is going on.
    syncing: bool,
    /// What a sync takes besides its cost, in microseconds.
    slow_sync: u64,
    /// True if there is room for what clients want written.
    has_room: bool,
    /// The last true time at which there was none.
    was_full_at: Option<u64>,
}

/// A site's processor, which does one thing at a time.
#[derive(Debug)]
struct Processor {
    /// It is busy until then, in nanoseconds.
    busy: u64,
    /// The time for which it has worked in all, in nanoseconds.
    worked: u64,
    /// When it will turn to what waits, if something does.
    run_at: u64,
    /// It stands still until then: no sync ends before, either.
    frozen_until: u64,
}

/// What waits for a site's processor.
#[derive(Debug, Default)]
struct Inbox {
    /// Messages, and the sites that sent them.
    messages: VecDeque<(u32, PeerMessage)>,
    /// Requests of clients.
    requests: VecDeque<(ClientId, Request)>,
    /// True if the time of the next tick has come.
    tick_due: bool,
}

impl Site {
    /// A site that was never started, on an empty disk.
    fn new(id: SiteId, restarts: bool) -> Self {
        let disk = Disk::new(restarts);
        Self {
            id,
            node: None,
            gate: Gate::new(0),
            storage: Storage {
                disk,
                overlay: Overlay::default(),
                syncing: false,
                slow_sync: 0,
                has_room: true,
                was_full_at: None,
            },
            new_storage: false,
            clock: Clock::new(),
            life: 0,
            processor: Processor { busy: 0, worked: 0, run_at: NEVER, frozen_until: 0 },
            inbox: Inbox::default(),
            tick_at: NEVER,
        }
    }

    #[inline]
    fn is_busy(&self, now: u64) -> bool {
        self.processor.busy > now * NANOS || self.processor.run_at != NEVER
    }
}

/// A time that does not come.
const NEVER: u64 = u64::MAX;

/// Sites in virtual time.
#[derive(Debug)]
pub struct World {
    /// What it is made of.
    options: Options,
    /// The sites' names, by position.
    members: Vec<SiteId>,
    /// The true time.
    now: u64,
    /// The present call of [`World::run`] lets nothing happen after this.
    until: u64,
    /// True if that call returns before the next event.
    stopped: bool,
    /// What is to happen.
    queue: Queue<Event>,
    /// The sites.
    sites: Vec<Site>,
    /// What is between them.
    network: Network,
    /// Feeds what sites draw when they start.
    rng: Rng,
    /// What has happened so far.
    counts: Counts,
    /// Used again in every turn, so that none allocates: what a machine hands out.
    effects: Vec<Effect<Node>>,
    /// The same: what its gate lets out.
    released: Vec<Effect<Node>>,
}

/// What has happened in a world so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Inputs handled, at all sites.
    inputs: u64,
    /// Messages sent between sites, lost ones included.
    sent: u64,
    /// Syncs finished.
    syncs: u64,
}

impl World {
    /// Sites with empty disks, started at time zero.
    pub fn new(options: Options) -> Self {
        let members: Vec<SiteId> = (0..options.rtt.len()).map(|region| SiteId::new(region as u16, 0)).collect();
        let mut world = Self {
            sites: members.iter().map(|id| Site::new(*id, options.restarts)).collect(),
            network: Network::new(&options.rtt, options.seed ^ 0x6e65_7477),
            rng: Rng::new(options.seed ^ 0x776f_726c),
            members,
            options,
            now: 0,
            until: 0,
            stopped: false,
            queue: Queue::new(),
            counts: Counts::default(),
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

    /// Returns the number of sites.
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// Returns true if there is no site.
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
        self.counts.inputs
    }

    /// Messages sent between sites so far, lost ones included.
    pub fn wan_messages(&self) -> u64 {
        self.counts.sent
    }

    /// Syncs finished so far.
    pub fn syncs(&self) -> u64 {
        self.counts.syncs
    }

    /// Returns the time for which a site's processor has worked so far, in microseconds.
    pub fn worked(&self, site: usize) -> u64 {
        self.sites[site].processor.worked / NANOS
    }

    /// When a site's processor is free, as far as is known now.
    pub fn free_at(&self, site: usize) -> u64 {
        self.now.max(self.sites[site].processor.busy.div_ceil(NANOS))
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
                // What arrives at a site that is down is lost. What arrives at one that is busy waits.
                Event::Message { to, from, message } => {
                    let site = &mut self.sites[to as usize];
                    if site.node.is_none() {
                        if H::WATCHES {
                            host.fate(at, from as usize, to as usize, &message, Fate::Lost);
                        }
                        continue;
                    }
                    if site.is_busy(at) {
                        site.inbox.messages.push_back((from, message));
                        self.run_later(to as usize);
                    } else {
                        let from = self.members[from as usize];
                        self.handle(host, to as usize, Input::Message { from, message });
                    }
                }
                // The same for a request; nobody is told that it is lost, because clients must not know.
                Event::Request { to, client, request } => {
                    let site = &mut self.sites[to as usize];
                    if site.node.is_none() {
                        continue;
                    }
                    if site.is_busy(at) {
                        site.inbox.requests.push_back((client, request));
                        self.run_later(to as usize);
                    } else {
                        self.handle(host, to as usize, Input::Request { client, request });
                    }
                }
                // A tick of an earlier life, or one that was put off since, means nothing.
                Event::Tick { site, life } => {
                    let index = site as usize;
                    let site = &mut self.sites[index];
                    if site.life != life || site.tick_at != at {
                        continue;
                    }
                    site.tick_at = NEVER;
                    if site.is_busy(at) {
                        site.inbox.tick_due = true;
                        self.run_later(index);
                    } else {
                        self.tick(host, index);
                    }
                }
                // The processor is free for what waits.
                Event::Run { site, life } => {
                    if self.sites[site as usize].life == life {
                        self.sites[site as usize].processor.run_at = NEVER;
                        self.run_waiting(host, site as usize);
                    }
                }
                // What the disk or storage of an earlier life had still to do is not done.
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

    /// The sites that the configuration of one names.
    fn named(&self, site: usize) -> Vec<SiteId> {
        self.members[..self.options.first.max(site + 1)].to_vec()
    }

    /// Starts a site that is down on what its disk has.
    pub fn start(&mut self, site: usize) {
        let (seed, mono) = (self.rng.draw(), self.rng.below(1_000_000));
        let named = self.named(site);
        let at = &mut self.sites[site];
        assert!(at.node.is_none(), "a site that runs is not started");
        at.life += 1;
        at.clock.restart(self.now, mono);
        let last = at.storage.disk.durable();
        let mut config = Config::new(at.id, named);
        config.epsilon = self.options.epsilon;
        config.redistribute = self.options.redistribute;
        config.ahead = self.options.ahead;
        config.warranties = self.options.warranties;
        config.idle_calls = self.options.idle_calls;
        config.names_kept = self.options.names_kept;
        config.slack = self.options.slack;
        config.new_storage = std::mem::take(&mut at.new_storage);
        let node = Node::open(config, seed, last, at.storage.disk.rows(), at.clock.read(self.now));
        let mut node = node.expect("a durable prefix of what was handed out can be opened");
        node.set_room(at.storage.has_room);
        at.node = Some(node);
        at.gate = Gate::new(last);
        at.storage.overlay = Overlay::default();
        at.processor.busy = self.now * NANOS;
        self.schedule_tick(site);
    }

    /// The site's process ends at once. What it had handed out and not synced is lost but for a prefix.
    pub fn crash<H: Host>(&mut self, host: &mut H, site: usize, keep: Keep) {
        let at = &mut self.sites[site];
        let unsynced = at.storage.disk.issued() - at.storage.disk.durable();
        let kept = match keep {
            Keep::Nothing => 0,
            Keep::Everything => unsynced,
            Keep::Some(number) => number % (unsynced + 1),
        };
        let (from, to) = (at.storage.disk.durable(), at.storage.disk.durable() + kept);
        if H::WATCHES {
            at.storage.disk.batches(from, to).for_each(|(seq, batch)| host.durable(self.now, site, seq, batch));
        }
        at.storage.disk.crash(to);
        at.life += 1;
        at.node = None;
        at.inbox.messages.clear();
        at.inbox.requests.clear();
        (at.processor.run_at, at.tick_at, at.inbox.tick_due) = (NEVER, NEVER, false);
        (at.storage.syncing, at.processor.frozen_until) = (false, 0);
    }

    /// The site, which is down, has an empty disk now.
    pub(crate) fn lose_disk(&mut self, site: usize) {
        self.sites[site].storage.disk = Disk::new(self.options.restarts);
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
        self.sites[site].storage.disk = Disk::from_copy(copy, self.options.restarts);
    }

    /// A copy of what is durable at a site.
    pub(crate) fn copy(&mut self, site: usize) -> Copy {
        let Storage { disk, overlay, .. } = &mut self.sites[site].storage;
        disk.copy(overlay)
    }

    /// What a site would know if it were started from its disk now. Only for a site that is down.
    pub(crate) fn at_rest(&mut self, site: usize) -> Node {
        let at = &self.sites[site];
        assert!(at.node.is_none());
        let config = Config::new(at.id, self.named(site));
        let node = Node::open(config, 0, at.storage.disk.durable(), at.storage.disk.rows(), at.clock.read(self.now));
        node.expect("a durable prefix of what was handed out can be opened")
    }

    /// The site stands still until `until`: it handles nothing and sees no sync end.
    pub(crate) fn freeze(&mut self, site: usize, until: u64) {
        let at = &mut self.sites[site];
        at.processor.busy = at.processor.busy.max(until * NANOS);
        at.processor.frozen_until = at.processor.frozen_until.max(until);
    }

    /// Returns true if the site stands still, or its disk is slower than usual.
    pub(crate) fn is_held_up(&self, site: usize) -> bool {
        let at = &self.sites[site];
        at.processor.frozen_until > self.now || at.storage.slow_sync > 0
    }

    /// From here on a sync takes so many microseconds more.
    pub(crate) fn slow_disk(&mut self, site: usize, more: u64) {
        self.sites[site].storage.slow_sync = more;
    }

    /// True if the disk had no room for what clients want written, at some time since then.
    pub(crate) fn was_full_since(&self, site: usize, since: u64) -> bool {
        let storage = &self.sites[site].storage;
        !storage.has_room || storage.was_full_at.is_some_and(|at| at >= since)
    }

    /// From here on the disk has room, or none, for what clients want written.
    pub(crate) fn set_room(&mut self, site: usize, has_room: bool) {
        let at = &mut self.sites[site];
        at.storage.has_room = has_room;
        at.storage.was_full_at = Some(self.now);
        at.node.iter_mut().for_each(|node| node.set_room(has_room));
    }

    pub(crate) fn weather(&mut self) -> &mut Weather {
        &mut self.network.weather
    }

    pub(crate) fn link(&mut self, from: usize, to: usize) -> &mut Link {
        self.network.link(from, to)
    }

    /// Messages from one site to another are lost from here on, or no longer.
    pub fn cut(&mut self, from: usize, to: usize, is_cut: bool) {
        let link = self.network.link(from, to);
        link.cut = if is_cut { link.cut + 1 } else { link.cut - 1 };
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
        (self.sites[site].storage.disk.durable(), self.sites[site].storage.disk.issued())
    }

    /// Has the processor turn to what waits as soon as it is free.
    fn run_later(&mut self, site: usize) {
        let at = &mut self.sites[site];

        // One event stands for all that waits.
        if at.processor.run_at == NEVER {
            at.processor.run_at = at.processor.busy.div_ceil(NANOS).max(self.now);
            let event = Event::Run { site: site as u32, life: at.life };
            self.queue.push(at.processor.run_at, event);
        }
    }

    /// Handles what waits at a site, as long as nothing else happens in between.
    fn run_waiting<H: Host>(&mut self, host: &mut H, site: usize) {
        loop {
            let at = &mut self.sites[site];
            if at.node.is_none() {
                return;
            }
            let free_at = at.processor.busy.div_ceil(NANOS);
            let idle = at.inbox.messages.is_empty() && !at.inbox.tick_due && at.inbox.requests.is_empty();
            if idle {
                return;
            }

            // Most sites find nothing else to happen before they are free: then no event is needed to come back to this.
            if free_at > self.now {
                let nothing_between = self.queue.next_at().is_none_or(|next| next > free_at) && free_at <= self.until;
                if !nothing_between || self.stopped {
                    return self.run_later(site);
                }
                self.now = free_at;
            }
            // Protocol messages go before requests, or overload becomes a wide-area stall.
            let at = &mut self.sites[site];
            let is_tick = at.inbox.tick_due && (!self.options.messages_first || at.inbox.messages.is_empty());
            if is_tick {
                at.inbox.tick_due = false;
                self.tick(host, site);
            } else if let Some((from, message)) = at.inbox.messages.pop_front() {
                let from = self.members[from as usize];
                self.handle(host, site, Input::Message { from, message });
            } else if let Some((client, request)) = at.inbox.requests.pop_front() {
                self.handle(host, site, Input::Request { client, request });
            }
        }
    }

    /// Handles a tick, if it is still due.
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

    /// Plans a tick for the machine's deadline, if none comes earlier.
    fn schedule_tick(&mut self, site: usize) {
        let at = &mut self.sites[site];
        let Some(deadline) = at.node.as_ref().and_then(Node::deadline) else { return };

        let when = at.clock.when(self.now, deadline);
        if when < at.tick_at && !at.inbox.tick_due {
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
            let (then, life) = (at.processor.busy.div_ceil(NANOS).max(self.now + 1), at.life);
            return self.queue.push(then, Event::Fetched { site: site as u32, life, fetching });
        }
        // The clock is read now, when nothing is left to be waited for.
        let now = self.time_at(site);
        let Fetching { input, named } = *fetching;
        self.act(host, site, now, input, named);
    }

    /// Handles an input at that time by the site's clocks. `named` is what it needs from storage, if that was named before.
    #[inline]
    fn act<H: Host>(&mut self, host: &mut H, site: usize, now: Now, input: Input<Node>, named: Option<KeySet>) {
        let costs = self.options.costs;
        let at = &mut self.sites[site];
        let mut cost = costs.of_input(&input);

        let node = at.node.as_mut().expect("inputs go to sites that run");
        let needed = named.unwrap_or_else(|| node.working_set(now, &input));
        let view = if needed.is_empty() {
            View::empty()
        } else {
            View::prepare(needed, &at.storage.overlay, at.storage.disk.rows()).expect("memory can be read")
        };

        if H::WATCHES {
            host.before(self, site, now, &input);
        }

        let mut effects = std::mem::take(&mut self.effects);
        let at = &mut self.sites[site];
        let node = at.node.as_mut().expect("inputs go to sites that run");
        node.handle(now, input, &view, &mut effects);
        self.counts.inputs += 1;
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

        // The gate takes the batches in their order and lets out what waits for none of them.
        let mut released = std::mem::take(&mut self.released);
        let mut bytes = 0;
        let Site { gate, storage: Storage { overlay, disk, .. }, .. } = at;
        let sends = effects.len() as u64;
        let persist = |_, batch: Batch| {
            bytes += batch.as_bytes().len() as u64;
            disk.append(batch, overlay);
        };
        gate.admit(&mut effects, persist, |effect| released.push(effect));
        self.effects = effects;

        // A crash after the effects are known and before any leaves: what was handed out to the disk may survive, what was to be sent is
        // gone.
        if let After::Crash(keep) = after {
            released.clear();
            self.released = released;
            self.crash(host, site, keep);
            return host.crashed(self, site, 0);
        }

        cost += costs.send_ns * sends + costs.byte_ns * bytes;
        at.processor.busy = at.processor.busy.max(self.now * NANOS) + cost;
        at.processor.worked += cost;
        if let After::Stall(pause) = after {
            at.processor.busy += pause * NANOS;
            at.processor.frozen_until = at.processor.frozen_until.max(at.processor.busy.div_ceil(NANOS));
        }

        let done = at.processor.busy.div_ceil(NANOS);
        if bytes > 0 {
            self.begin_sync(site, done);
        }
        self.dispatch(host, site, done, &mut released);
        self.released = released;
        self.schedule_tick(site);
    }

    /// Begins a sync from that time on, unless one goes on or nothing waits for one.
    fn begin_sync(&mut self, site: usize, at_time: u64) {
        let costs = self.options.costs;

        let at = &mut self.sites[site];
        if at.storage.syncing || at.storage.disk.issued() == at.storage.disk.durable() {
            return;
        }
        at.storage.syncing = true;

        // What is handed out from now on goes into the next sync.
        let (seq, bytes) = at.storage.disk.begin_sync();
        let takes = costs.sync_us + at.storage.slow_sync + costs.sync_byte_ns * bytes / NANOS;
        self.queue.push(at_time + takes, Event::Synced { site: site as u32, life: at.life, seq });
    }

    /// A sync has ended.
    fn synced<H: Host>(&mut self, host: &mut H, site: usize, seq: Seq) {
        // A site that stands still sees no sync end.
        let at = &mut self.sites[site];
        if at.processor.frozen_until > self.now {
            let event = Event::Synced { site: site as u32, life: at.life, seq };
            return self.queue.push(at.processor.frozen_until, event);
        }

        self.counts.syncs += 1;
        if H::WATCHES && self.options.restarts {
            at.storage
                .disk
                .batches(at.storage.disk.durable(), seq)
                .for_each(|(seq, batch)| host.durable(self.now, site, seq, batch));
        }

        let mut released = std::mem::take(&mut self.released);
        at.storage.disk.finish_sync(seq, &mut at.storage.overlay);
        at.gate.durable(seq, |effect| released.push(effect));
        at.storage.syncing = false;

        self.begin_sync(site, self.now);
        self.dispatch(host, site, self.now, &mut released);
        self.released = released;
    }

    /// Sends what the gate has let out.
    fn dispatch<H: Host>(&mut self, host: &mut H, site: usize, at_time: u64, released: &mut Vec<Effect<Node>>) {
        for effect in released.drain(..) {
            if H::WATCHES {
                host.release(site, self.sites[site].storage.disk.durable(), &effect);
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

    /// Sends a message: the network, and a host that watches, say when it arrives and how often.
    fn send<H: Host>(&mut self, host: &mut H, at_time: u64, from: usize, to: usize, message: PeerMessage) {
        self.counts.sent += 1;
        let (first, second, overtakes) = self.network.carry(at_time, from, to);

        // The network decides first, and a host may only delay what it lets through: what it draws does not depend on faults of the host.
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
