//! `bench core`: the machine alone, on one core, with nothing left out that a driver must do for it.
//!
//! One site of a three-site cluster carries out acquires on 10,000 quotas, chosen by Zipf's law. Every acquire has a fresh
//! operation id that is checked and recorded. Timed is all that lies between a decoded request and a response that may
//! leave: the clock, the working set, the [`View`], `handle` with the encoding of its records, the [`Overlay`], the
//! [`Gate`], ticks when the machine asks for them, and messages of the other sites. Not timed: making the requests,
//! and the other two sites, which are real machines too and are looked after between chunks of requests.

pub mod waiting;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::api::{Batch, Hold, Operation, Outcome, Readiness, Request, Response, SESSION_WINDOW, Submission};
use slackline_core::clock::{MILLISECOND, Now, SECOND};
use slackline_core::id::{Incarnation, SessionId, SiteId};
use slackline_core::machine::{ClientId, Effect, Gate, Input, Machine, Overlay, Seq, View};
use slackline_core::node::{Config, Node};
use slackline_core::peer::PeerMessage;
use slackline_core::stats::Rng;

use crate::histogram::Histogram;
use crate::median;
use crate::report::{Latency, Mode, Report, Run, latency_figure};
use crate::zipf::Zipf;

/// What `bench core` is told.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// How many quotas there are.
    pub quotas: usize,
    /// How many acquires each round carries out.
    pub acquires: u64,
    /// How many rounds a run has; the one with the median throughput is reported.
    pub rounds: usize,
    /// Sizes of batches, one run for each.
    pub batches: Vec<usize>,
    /// What every random choice comes from.
    pub seed: u64,
}

impl Default for CoreOptions {
    fn default() -> Self {
        Self { quotas: 10_000, acquires: 2_000_000, rounds: 5, batches: vec![1, 64], seed: 1 }
    }
}

/// The exponent of Zipf's law.
const SKEW: f64 = 1.0;
/// Clients, each with a session of its own.
const SESSIONS: usize = 8;
/// How many acquires are on their way at a time, over all sessions; no fewer than a batch.
const IN_FLIGHT: usize = 64;
/// Acquires that share a sync.
const SYNCED_TOGETHER: usize = 64;
/// Acquires whose requests are made at a time.
const CHUNK: usize = 1 << 16;
/// Tokens of each quota: more than all the acquires together.
const LIMIT: i64 = 1 << 40;
/// Member positions.
const SITES: usize = 3;

/// Runs `bench core`.
///
/// # Panics
///
/// If the books are wrong afterwards.
pub fn core(options: &CoreOptions) -> Report {
    let runs: Vec<_> = options.batches.iter().map(|&batch| run(options, batch)).collect();
    let latencies = runs.iter().map(|(run, latencies)| (run.config.as_str(), latencies));
    let figures = vec![latency_figure("core-latency", latencies)];
    let per_core = "one core, one thread; the clock is real, the other two sites are looked after between timed chunks";
    Report {
        workload: "core".into(),
        mode: Mode::Live,
        seed: options.seed,
        data: "generated".into(),
        epsilon_us: config(0).epsilon,
        cost_model: None,
        runs: runs.into_iter().map(|(run, _)| run).collect(),
        verified: true,
        facts: vec![
            ("timed".into(), per_core.into()),
            ("rounds".into(), format!("the median of {} of {} acquires each", options.rounds, options.acquires)),
            ("latency".into(), "of one `handle` and what its driver does for it, without a sync".into()),
            ("paper".into(), "gives no figure for one site's machine alone".into()),
        ],
        figures,
    }
}

fn run(options: &CoreOptions, batch: usize) -> (Run, Histogram) {
    let mut bench = Bench::prepare(options, batch);
    // What warms caches is not counted.
    bench.acquire(options.acquires.min(4 * CHUNK as u64));
    let mut rounds = Vec::with_capacity(options.rounds);
    for _ in 0..options.rounds {
        bench.latencies = Histogram::default();
        let (granted, timed) = (bench.granted, bench.timed);
        bench.acquire(options.acquires);
        let seconds = (bench.timed - timed).as_secs_f64();
        rounds.push((bench.granted - granted, seconds, std::mem::take(&mut bench.latencies)));
    }
    bench.verify();
    let metrics = *bench.node.metrics();
    let speeds: Vec<u64> = rounds.iter().map(|(granted, seconds, _)| (*granted as f64 / seconds) as u64).collect();
    let (granted, seconds, latencies) = median(rounds, |(granted, seconds, _)| *granted as f64 / seconds);
    let mut run = Run::new(format!("batch-{batch}"));
    run.committed = granted;
    run.latency_ms = Latency::from(&latencies);
    run.gifts = metrics.gifts_sent() + metrics.gifts_received;
    run.rebalances = metrics.rebalances;
    run.wan_messages = Some(metrics.messages_sent);
    let run = run.took(seconds).with("quotas", options.quotas).with("rounds_per_s", speeds);
    (run.with("logged_bytes_per_acquire", bench.logged as f64 / bench.granted as f64), latencies)
}

/// One site under load, its driver, and the sites that it belongs with.
struct Bench {
    node: Node,
    gate: Gate<Node>,
    overlay: Overlay,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Batches handed out and not synced.
    log: VecDeque<(Seq, Arc<slackline_core::machine::Batch>)>,
    effects: Vec<Effect<Node>>,
    others: Vec<Node>,
    to_others: Vec<(SiteId, SiteId, PeerMessage)>,
    to_node: Vec<(SiteId, PeerMessage)>,
    generator: Generator,
    /// Time spent in timed chunks; the sites' clocks show it.
    timed: Duration,
    began: u64,
    latencies: Histogram,
    granted: u64,
    /// The session that was opened last.
    opened: Option<Session>,
    logged: u64,
}

/// Makes requests as clients would.
struct Generator {
    names: Vec<String>,
    zipf: Zipf,
    rng: Rng,
    sessions: Vec<Session>,
    turn: usize,
    batch: usize,
}

impl Bench {
    fn prepare(options: &CoreOptions, batch: usize) -> Self {
        let mut trio = Trio::ready(options.seed);
        let names: Vec<String> = (0..options.quotas).map(|quota| format!("quota-{quota}")).collect();
        let mut sessions: Vec<_> = (0..SESSIONS).map(|_| trio.open()).collect();
        trio.create_all(&mut sessions[0], &names);
        let Trio { nodes: mut others, batches, now: began, .. } = trio;
        let node = others.remove(0);
        let generator = Generator {
            zipf: Zipf::new(names.len(), SKEW),
            names,
            rng: Rng::new(options.seed),
            sessions,
            turn: 0,
            batch,
        };
        Self {
            node,
            gate: Gate::new(batches),
            overlay: Overlay::default(),
            rows: BTreeMap::new(),
            log: VecDeque::new(),
            effects: Vec::new(),
            others,
            to_others: Vec::new(),
            to_node: Vec::new(),
            generator,
            timed: Duration::ZERO,
            began,
            latencies: Histogram::default(),
            granted: 0,
            opened: None,
            logged: 0,
        }
    }

    /// Carries out so many acquires.
    fn acquire(&mut self, acquires: u64) {
        let mut left = acquires as usize;
        while left > 0 {
            let some = CHUNK.min(left);
            self.chunk(some);
            left -= some;
        }
    }

    /// Makes some requests, then carries them out against the clock, then looks after the other sites.
    fn chunk(&mut self, acquires: usize) {
        let requests = self.generator.requests(acquires);
        let messages = std::mem::take(&mut self.to_node);
        let before = self.timed;
        let began = Instant::now();
        for (from, message) in messages {
            self.input(before + began.elapsed(), Input::Message { from, message });
        }
        let mut unsynced = 0;
        let mut last = before + began.elapsed();
        for request in requests {
            let at = before + began.elapsed();
            self.latencies.note((at - last).as_nanos() as u64);
            last = at;
            if self.node.deadline().is_some_and(|deadline| deadline <= self.began + at.as_micros() as u64) {
                self.input(at, Input::Tick);
            }
            self.input(at, Input::Request { client: ClientId(1), request });
            unsynced += self.generator.batch;
            if unsynced >= SYNCED_TOGETHER {
                unsynced = 0;
                self.sync();
            }
        }
        self.sync();
        self.timed = before + began.elapsed();
        self.look_after_others();
    }

    /// What a driver does with one input.
    fn input(&mut self, at: Duration, input: Input<Node>) {
        let now = clock(self.began + at.as_micros() as u64);
        let needed = self.node.working_set(now, &input);
        let view = View::prepare(needed, &self.overlay, &self.rows).expect("rows in memory");
        self.node.handle(now, input, &view, &mut self.effects);
        let Self { gate, overlay, log, to_others, granted, opened, logged, effects, .. } = self;
        gate.admit(
            effects,
            |seq, batch| {
                let batch = Arc::new(batch);
                overlay.apply::<Node>(seq, &batch);
                *logged += batch.as_bytes().len() as u64;
                log.push_back((seq, batch));
            },
            |effect| release(effect, to_others, granted, opened),
        );
    }

    /// Everything handed out is durable now, and storage has absorbed it.
    fn sync(&mut self) {
        let durable = self.gate.issued();
        let Self { gate, overlay, rows, log, to_others, granted, opened, .. } = self;
        while let Some((_, batch)) = log.pop_front() {
            for (key, value) in batch.iter().filter(|(key, _)| Node::is_paged(key)) {
                match value {
                    Some(value) => rows.insert(key.to_vec(), value.to_vec()),
                    None => rows.remove(key),
                };
            }
        }
        overlay.retire(durable);
        gate.durable(durable, |effect| release(effect, to_others, granted, opened));
    }

    fn look_after_others(&mut self) {
        let now = clock(self.began + self.timed.as_micros() as u64);
        deliver(&mut self.others, now, &mut self.to_others);
        self.to_node.extend(self.to_others.drain(..).map(|(from, _, message)| (from, message)));
    }

    /// Every acquire was granted, and the quotas' own totals say so too.
    fn verify(&self) {
        let asked: u64 = self.generator.sessions.iter().map(|session| session.3).sum::<u64>() - self.created();
        assert_eq!(self.granted, asked, "every acquire must be granted");
        let booked: u128 = self.node.chapters().quotas.iter().map(|quota| quota.used().0).sum();
        assert_eq!(booked, u128::from(self.granted), "the quotas' books must show what was granted");
        assert_eq!(self.node.metrics().repeated, 0, "every id must be fresh");
        assert_eq!(self.gate.waiting(), 0, "nothing may be left behind");
    }

    /// Sequences that the creation of quotas used up.
    fn created(&self) -> u64 {
        self.generator.names.len() as u64
    }
}

impl Generator {
    fn requests(&mut self, acquires: usize) -> Vec<Request> {
        let mut requests = Vec::with_capacity(acquires / self.batch + 1);
        let mut left = acquires;
        let in_flight = (IN_FLIGHT.max(self.batch) / SESSIONS).max(self.batch) as u64;
        while left > 0 {
            let size = self.batch.min(left);
            left -= size;
            let (site, incarnation, session, last) = self.sessions[self.turn];
            let operations: Vec<Submission> = (1..=size as u64)
                .map(|next| {
                    let quota = self.names[self.zipf.draw(&mut self.rng)].clone();
                    let operation = Operation::Acquire { quota, amount: 1, hold: Hold::Counted };
                    Submission { sequence: last + next, timeout: 1_000_000, operation }
                })
                .collect();
            self.sessions[self.turn].3 += size as u64;
            // All but those that may still be on their way have been answered.
            let low = (last + size as u64 + 1).saturating_sub(in_flight).max(1);
            requests.push(Request::Batch(Batch { site, incarnation, session, low, operations }));
            self.turn = (self.turn + 1) % self.sessions.len();
        }
        requests
    }
}

fn config(position: usize) -> Config {
    let members: Vec<SiteId> = (0..SITES as u16).map(|region| SiteId::new(region, 0)).collect();
    Config::new(members[position], members)
}

/// Looks at what leaves the site.
fn release(
    effect: Effect<Node>,
    to_others: &mut Vec<(SiteId, SiteId, PeerMessage)>,
    granted: &mut u64,
    opened: &mut Option<Session>,
) {
    match effect {
        Effect::Respond { response: Response::Opened { site, incarnation, session }, .. } => {
            *opened = Some((site, incarnation, session, 0));
        }
        Effect::Respond { response: Response::Batch { answers, .. }, .. } => {
            *granted +=
                answers.iter().filter(|answer| matches!(answer.outcome, Outcome::Granted { .. })).count() as u64;
        }
        Effect::Send { to, message } => to_others.push((SiteId::new(0, 0), to, message)),
        Effect::Respond { .. } | Effect::Persist(_) => {}
    }
}

/// Wakes sites that want it and delivers mail, until only mail for others is left.
fn deliver(nodes: &mut [Node], now: Now, mail: &mut Vec<(SiteId, SiteId, PeerMessage)>) {
    let mut effects = Vec::new();
    for node in nodes.iter_mut().filter(|node| node.deadline().is_some_and(|deadline| deadline <= now.mono)) {
        node.handle(now, Input::Tick, &View::empty(), &mut effects);
        post(node.config().me, &mut effects, mail);
    }
    let mut left = Vec::new();
    while !mail.is_empty() {
        for (from, to, message) in std::mem::take(mail) {
            match nodes.iter_mut().find(|node| node.config().me == to) {
                Some(node) => {
                    node.handle(now, Input::Message { from, message }, &View::empty(), &mut effects);
                    post(to, &mut effects, mail);
                }
                None => left.push((from, to, message)),
            }
        }
    }
    *mail = left;
}

/// Takes the messages out of effects; what is persisted and answered is of no interest here.
fn post(from: SiteId, effects: &mut Vec<Effect<Node>>, mail: &mut Vec<(SiteId, SiteId, PeerMessage)>) {
    for effect in effects.drain(..) {
        if let Effect::Send { to, message } = effect {
            mail.push((from, to, message));
        }
    }
}

fn clock(mono: u64) -> Now {
    Now { wall: 1_700_000_000_000_000 + mono as i64, mono }
}

/// A client's session at the first site: its names, and the last sequence used.
type Session = (SiteId, Incarnation, SessionId, u64);

/// Three sites that are being set up: they hear each other at once, and their disks need no time.
struct Trio {
    nodes: Vec<Node>,
    now: u64,
    mail: Vec<(SiteId, SiteId, PeerMessage)>,
    responses: Vec<Response>,
    /// Batches that the first site has handed out.
    batches: Seq,
}

impl Trio {
    fn ready(seed: u64) -> Self {
        let now = SECOND;
        let nothing = BTreeMap::new();
        let open = |position| {
            let seed = seed.wrapping_mul(SITES as u64).wrapping_add(position as u64);
            Node::open(config(position), seed, 0, &nothing, clock(now)).expect("new storage and a sound configuration")
        };
        let nodes = (0..SITES).map(open).collect();
        let mut trio = Self { nodes, now, mail: Vec::new(), responses: Vec::new(), batches: 0 };
        while !trio.nodes.iter().all(|node| node.readiness() == Readiness::Ready) {
            assert!(trio.now < 60 * SECOND, "the sites must become ready");
            trio.pass(10 * MILLISECOND);
        }
        // Everybody is heard of, and clocks are compared.
        (0..300).for_each(|_| trio.pass(10 * MILLISECOND));
        trio
    }

    fn pass(&mut self, span: u64) {
        self.now += span;
        let now = clock(self.now);
        // The first site's batches are counted, because its log goes on from there.
        loop {
            let due = self.nodes[0].deadline().is_some_and(|deadline| deadline <= now.mono);
            let to_first = self.mail.iter().position(|(_, to, _)| *to == self.nodes[0].config().me);
            match to_first {
                Some(at) => {
                    let (from, _, message) = self.mail.remove(at);
                    self.feed(Input::Message { from, message });
                }
                None if due => self.feed(Input::Tick),
                None => deliver(&mut self.nodes[1..], now, &mut self.mail),
            }
            if self.mail.is_empty() && !due {
                break;
            }
        }
    }

    /// Hands an input to the first site.
    fn feed(&mut self, input: Input<Node>) {
        let mut effects = Vec::new();
        let node = &mut self.nodes[0];
        node.handle(clock(self.now), input, &View::empty(), &mut effects);
        for effect in effects {
            match effect {
                Effect::Persist(_) => self.batches += 1,
                Effect::Send { to, message } => self.mail.push((node.config().me, to, message)),
                Effect::Respond { response, .. } => self.responses.push(response),
            }
        }
    }

    fn open(&mut self) -> Session {
        self.feed(Input::Request { client: ClientId(1), request: Request::Open });
        match self.responses.pop() {
            Some(Response::Opened { site, incarnation, session }) => (site, incarnation, session, 0),
            other => panic!("a ready site opens sessions: {other:?}"),
        }
    }

    /// Creates the quotas, by rounds among the three sites.
    fn create_all(&mut self, session: &mut Session, names: &[String]) {
        for some in names.chunks(SESSION_WINDOW as usize / 2) {
            let (site, incarnation, id, last) = *session;
            let submit = |(order, quota): (usize, &String)| {
                let operation = Operation::Create { quota: quota.clone(), limit: LIMIT };
                Submission { sequence: last + 1 + order as u64, timeout: 10 * SECOND, operation }
            };
            let operations = some.iter().enumerate().map(submit).collect();
            session.3 += some.len() as u64;
            let batch = Batch { site, incarnation, session: id, low: last + 1, operations };
            self.feed(Input::Request { client: ClientId(1), request: Request::Batch(batch) });
            let mut created = 0;
            let patience = self.now + 10 * SECOND;
            while created < some.len() {
                assert!(self.now < patience, "every quota must be created");
                self.pass(10 * MILLISECOND);
                for response in self.responses.drain(..) {
                    let Response::Batch { answers, .. } = response else { continue };
                    created += answers.iter().filter(|a| matches!(a.outcome, Outcome::Created { .. })).count();
                }
            }
        }
    }
}
