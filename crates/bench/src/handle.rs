//! `bench core`: the machine alone, on one core, with nothing left out that a driver must do for it.
//!
//! One site of a three-site cluster carries out acquires on 10,000 quotas, chosen by Zipf's law. Every acquire has a fresh
//! operation id that is checked and recorded. Timed is all that lies between a decoded request and a response that may
//! leave: the clock, the working set, the view, `handle` with the encoding of its records, the overlay, the gate
//! (the module `driven`), ticks when the machine asks for them, and messages of the other sites. Not timed: making the requests,
//! and the other two sites, which are real machines too and are looked after between chunks of requests.
//!
//! The quotas are created by the product's client. The acquires are not: their requests are made ahead, a chunk at a time, which that
//! client cannot do (the module `ahead` says why).

mod trio;
pub mod waiting;

use std::time::{Duration, Instant};

use slackline_core::api::{Hold, Operation, Outcome, Request, Response};
use slackline_core::clock::SECOND;
use slackline_core::id::SiteId;
use slackline_core::machine::{ClientId, Effect, Input};
use slackline_core::node::Node;
use slackline_core::peer::PeerMessage;
use slackline_core::stats::Rng;

use crate::ahead::Ahead;
use crate::driven::{Driven, clock};
use crate::histogram::Histogram;
use crate::median;
use crate::report::{Latency, Measured, Mode, Report, Run, runs_and_figure};
use crate::zipf::Zipf;
use trio::{Mail, Trio, config, deliver};

/// Options of `bench core`.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// The number of quotas.
    pub quotas: usize,
    /// The number of acquires of a round.
    pub acquires: u64,
    /// The number of rounds of a run; the one with the median throughput is reported.
    pub rounds: usize,
    /// Sizes of batches, one run for each.
    pub batches: Vec<usize>,
    /// The seed of every random choice.
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
/// The number of acquires on their way at a time, over all sessions; at least a batch.
const IN_FLIGHT: usize = 64;
/// Acquires that share a sync.
const SYNCED_TOGETHER: usize = 64;
/// Acquires whose requests are made at a time.
const CHUNK: usize = 1 << 16;
/// The time that an acquire may take, in microseconds.
const TIMEOUT: u64 = SECOND;

/// Runs `bench core`.
///
/// # Panics
///
/// If the books are wrong afterwards.
pub fn core(options: &CoreOptions) -> Report {
    let measured = options.batches.iter().map(|&batch| run(options, batch)).collect();
    let per_core = "one core, one thread; the clock is real, the other two sites are looked after between timed chunks";
    let facts = vec![
        ("timed".into(), per_core.into()),
        ("rounds".into(), format!("the median of {} of {} acquires each", options.rounds, options.acquires)),
        ("latency".into(), "of one `handle` and what its driver does for it, without a sync".into()),
        ("paper".into(), "gives no figure for one site's machine alone".into()),
    ];
    report("core-latency", options.seed, measured, facts)
}

/// The report of either benchmark of the machine alone.
fn report(figure: &str, seed: u64, measured: Vec<Measured>, facts: Vec<(String, String)>) -> Report {
    let (runs, figure) = runs_and_figure(figure, measured);
    Report {
        workload: "core".into(),
        mode: Mode::Live,
        seed,
        data: "generated".into(),
        epsilon_us: config(0).epsilon,
        cost_model: None,
        runs,
        verified: true,
        facts,
        figures: vec![figure],
    }
}

/// Acquires in batches of one size.
fn run(options: &CoreOptions, batch: usize) -> Measured {
    let (mut bench, names) = Bench::prepare(options.quotas, options.seed);
    let mut generator = Generator::new(&mut bench, names, options.seed, batch);

    // What warms caches is not counted.
    acquire(&mut bench, &mut generator, options.acquires.min(4 * CHUNK as u64));
    let mut rounds = Vec::with_capacity(options.rounds);
    for _ in 0..options.rounds {
        bench.latencies = Histogram::default();
        let (granted, timed) = (bench.seen.granted, bench.timed);
        acquire(&mut bench, &mut generator, options.acquires);
        let seconds = (bench.timed - timed).as_secs_f64();
        rounds.push((bench.seen.granted - granted, seconds, std::mem::take(&mut bench.latencies)));
    }
    verify(&bench, &generator);

    let metrics = *bench.site.node.metrics();
    let speeds: Vec<u64> = rounds.iter().map(|(granted, seconds, _)| (*granted as f64 / seconds) as u64).collect();
    let (granted, seconds, latencies) = median(rounds, |(granted, seconds, _)| *granted as f64 / seconds);
    let mut run = Run::new(format!("batch-{batch}"));
    run.committed = granted;
    run.latency_ms = Latency::from(&latencies);
    run.gifts = metrics.gifts_sent() + metrics.gifts_received;
    run.rebalances = metrics.rebalances;
    run.wan_messages = Some(metrics.messages_sent);
    let run = run.took(seconds).with("quotas", options.quotas).with("rounds_per_s", speeds);
    let logged = (bench.site.logged() - bench.logged_before) as f64;
    (run.with("logged_bytes_per_acquire", logged / bench.seen.granted as f64), latencies)
}

/// Carries out acquires, a chunk at a time.
fn acquire(bench: &mut Bench, generator: &mut Generator, acquires: u64) {
    let mut left = acquires as usize;
    while left > 0 {
        let some = CHUNK.min(left);
        let requests = generator.requests(some);
        bench.chunk(requests, generator.batch);
        left -= some;
    }
}

/// Every acquire was granted, and the quotas' own totals say so too.
fn verify(bench: &Bench, generator: &Generator) {
    let asked: u64 = generator.sessions.iter().map(Ahead::requested).sum();
    let granted = bench.seen.granted;
    assert_eq!(granted, asked, "every acquire must be granted");

    let booked: u128 = bench.site.node.chapters().quotas.iter().map(|quota| quota.used().0).sum();
    assert_eq!(booked, u128::from(granted), "the quotas' books must show what was granted");
    assert_eq!(bench.site.node.metrics().repeated, 0, "every id must be fresh");
    assert_eq!(bench.site.held_back(), 0, "nothing may be left behind");
}

/// One site under load, and the sites that it belongs with.
struct Bench {
    /// The site.
    site: Driven,
    /// Everything that has left it.
    seen: Seen,
    /// The other sites.
    others: Vec<Node>,
    /// Messages to the site, which arrive with the next chunk, each with its sender.
    to_site: Vec<(SiteId, PeerMessage)>,
    /// Time spent in timed chunks.
    timed: Duration,
    /// The time of the sites' clocks before the first chunk, in microseconds. They show `timed` more now.
    began: u64,
    /// The time of each request since this was emptied.
    latencies: Histogram,
    /// Bytes that the site had logged before the first chunk.
    logged_before: u64,
}

/// Everything that has left a site.
#[derive(Default)]
struct Seen {
    /// Messages to other sites that have not been delivered.
    mail: Mail,
    /// Acquires that were granted.
    granted: u64,
    /// The session that was opened last, until somebody uses it.
    opened: Option<Ahead>,
}

impl Seen {
    fn take(&mut self, effect: Effect<Node>) {
        match effect {
            Effect::Respond { response: Response::Batch { answers, .. }, .. } => {
                let is_granted = |outcome: &Outcome| matches!(outcome, Outcome::Granted { .. });
                self.granted += answers.iter().filter(|answer| is_granted(&answer.outcome)).count() as u64;
            }
            Effect::Respond { response, .. } => self.opened = Ahead::opened(&response),
            Effect::Send { to, message } => self.mail.push((SiteId::new(0, 0), to, message)),
            // The driver has taken it into its log.
            Effect::Persist(_) => {}
        }
    }
}

impl Bench {
    /// Three sites that serve and have quotas; and the quotas' names.
    fn prepare(quotas: usize, seed: u64) -> (Self, Vec<String>) {
        let names: Vec<String> = (0..quotas).map(|quota| format!("quota-{quota}")).collect();
        let mut trio = Trio::ready(seed);
        trio.create_all(&names);
        let Trio { first: site, others, now: began, .. } = trio;
        let logged_before = site.logged();
        let bench = Self {
            site,
            seen: Seen::default(),
            others,
            to_site: Vec::new(),
            timed: Duration::ZERO,
            began,
            latencies: Histogram::default(),
            logged_before,
        };
        (bench, names)
    }

    /// Opens a session.
    fn open(&mut self) -> Ahead {
        self.input(self.timed, Input::Request { client: ClientId(1), request: Request::Open });
        self.sync();
        self.seen.opened.take().expect("a ready site opens sessions")
    }

    /// Carries requests of some acquires each out against the clock, then looks after the other sites.
    fn chunk(&mut self, requests: Vec<Request>, batch: usize) {
        // What others sent since the last chunk comes first, and is timed as well: a driver hands it in.
        let messages = std::mem::take(&mut self.to_site);
        let before = self.timed;
        let began = Instant::now();
        for (from, message) in messages {
            self.input(before + began.elapsed(), Input::Message { from, message });
        }

        let mut unsynced = 0;
        let mut last = before + began.elapsed();
        for request in requests {
            // The end of one request is the beginning of the next: one look at the clock for each.
            let at = before + began.elapsed();
            self.latencies.note((at - last).as_nanos() as u64);
            last = at;
            if self.site.is_due(self.began + at.as_micros() as u64) {
                self.input(at, Input::Tick);
            }
            self.input(at, Input::Request { client: ClientId(1), request });

            unsynced += batch;
            if unsynced >= SYNCED_TOGETHER {
                unsynced = 0;
                self.sync();
            }
        }
        self.sync();
        self.timed = before + began.elapsed();

        // Nothing is timed from here.
        deliver(&mut self.others, clock(self.began + self.timed.as_micros() as u64), &mut self.seen.mail);
        self.to_site.extend(self.seen.mail.drain(..).map(|(from, _, message)| (from, message)));
    }

    /// Hands the site an input, at a time since the first chunk began.
    fn input(&mut self, at: Duration, input: Input<Node>) {
        self.site.input(self.began + at.as_micros() as u64, input, |effect| self.seen.take(effect));
    }

    /// Everything that the site has handed out is durable now.
    fn sync(&mut self) {
        self.site.sync(|effect| self.seen.take(effect));
    }
}

/// Makes requests as clients would.
struct Generator {
    /// The quotas' names, the popular ones first.
    names: Vec<String>,
    /// The quotas' popularity.
    zipf: Zipf,
    /// Draws quotas.
    rng: Rng,
    /// The clients' sessions.
    sessions: Vec<Ahead>,
    /// The position of the session that asks next.
    turn: usize,
    /// The number of acquires of a request.
    batch: usize,
}

impl Generator {
    fn new(bench: &mut Bench, names: Vec<String>, seed: u64, batch: usize) -> Self {
        let sessions = (0..SESSIONS).map(|_| bench.open()).collect();
        Self { zipf: Zipf::new(names.len(), SKEW), names, rng: Rng::new(seed), sessions, turn: 0, batch }
    }

    /// Requests that have this number of acquires together.
    fn requests(&mut self, acquires: usize) -> Vec<Request> {
        let Self { names, zipf, rng, sessions, turn, batch } = self;
        let mut requests = Vec::with_capacity(acquires / *batch + 1);
        let mut left = acquires;

        // Each session has its part of what is under way, and at least the batch that it sends.
        let in_flight = (IN_FLIGHT.max(*batch) / SESSIONS).max(*batch) as u64;
        while left > 0 {
            let size = left.min(*batch);
            left -= size;
            let operations = (0..size).map(|_| {
                let quota = names[zipf.draw(rng)].clone();
                Operation::Acquire { quota, amount: 1, hold: Hold::Counted }
            });

            // Sessions by turns, as requests of different clients come.
            requests.push(sessions[*turn].request(operations, in_flight, TIMEOUT));
            *turn = (*turn + 1) % sessions.len();
        }
        requests
    }
}
