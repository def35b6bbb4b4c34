//! `bench core`: the machine alone, on one core, with nothing left out that a driver must do for it.
//!
//! One site of a three-site cluster carries out acquires on 10,000 quotas, chosen by Zipf's law. Every acquire has a fresh
//! operation id that is checked and recorded. Timed is all that lies between a decoded request and a response that may
//! leave: the clock, the working set, the view, `handle` with the encoding of its records, the overlay, the gate
//! (the module `driven`), ticks when the machine asks for them, and messages of the other sites. Not timed: making the requests,
//! and the other two sites, which are real machines too and are looked after between chunks of requests.
//!
//! Then the same site commits transactions that add one to one of 10,000 counters, or take one away: to counters of which nobody says
//! anything (`add`), and to counters that are each in a treaty of all three sites, so that each add is judged by a bound and feeds an
//! estimate (`add-treaty`).
//!
//! The quotas are created by the product's client, and so are the treaties. The acquires and adds are not: their requests are made
//! ahead, a chunk at a time, which that
//! client cannot do (the module `ahead` says why).

mod trio;
pub mod waiting;

use std::time::{Duration, Instant};

use slackline_core::api::{Hold, Operation, Outcome, Request, Response};
use slackline_core::clock::SECOND;
use slackline_core::id::SiteId;
use slackline_core::machine::{ClientId, Effect, Input};
use slackline_core::node::Node;
use slackline_core::object::{Change, Home, Part, Transaction};
use slackline_core::peer::PeerMessage;
use slackline_core::stats::Rng;

use crate::ahead::Ahead;
use crate::driven::{Driven, clock};
use crate::histogram::Histogram;
use crate::levels::leaf;
use crate::median;
use crate::named::named;
use crate::report::{Latency, Measured, Mode, Report, Run, runs_and_figure};
use crate::zipf::Zipf;
use trio::{Mail, Trio, config, deliver};

/// Options of `bench core`.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// The number of quotas.
    pub quotas: usize,
    /// The number of levels of each: those above are its own.
    pub levels: usize,
    /// The number of acquires of a round.
    pub acquires: u64,
    /// The number of rounds of a run; the one with the median throughput is reported.
    pub rounds: usize,
    /// What is measured, one run for each.
    pub works: Vec<Work>,
    /// The seed of every random choice.
    pub seed: u64,
}

impl Default for CoreOptions {
    fn default() -> Self {
        Self { quotas: 10_000, levels: 1, acquires: 2_000_000, rounds: 5, works: Work::ALL.to_vec(), seed: 1 }
    }
}

/// What each counter holds at first: more than all that is taken away.
const PLENTY: i64 = 1 << 40;
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
    let mut courses: Vec<Course> = options.works.iter().map(|work| Course::prepare(options, *work)).collect();

    // By turns: how fast the machine is changes from minute to minute, and they are compared with each other.
    for _ in 0..options.rounds {
        courses.iter_mut().for_each(|course| course.round(options));
    }
    let times = |work: Work| courses.iter().find(|course| course.generator.work == work).map(Course::times);
    let over_add = times(Work::Add).zip(times(Work::AddTreaty)).map(|(add, treaty)| {
        let differences = treaty.iter().zip(add).map(|(treaty, add)| treaty - add).collect();
        median(differences, |difference| *difference).round()
    });
    let end = |course: Course| {
        let is_over = course.generator.work == Work::AddTreaty;
        let (run, latencies) = course.end(options);
        match over_add.filter(|_| is_over) {
            Some(ns) => (run.with("ns_over_add", ns), latencies),
            None => (run, latencies),
        }
    };
    let measured = courses.into_iter().map(end).collect();
    let per_core = "one core, one thread; the clock is real, the other two sites are looked after between timed chunks";
    let facts = vec![
        ("timed".into(), per_core.into()),
        (
            "rounds".into(),
            format!("the median of {} of {} operations each, by turns", options.rounds, options.acquires),
        ),
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

/// What is measured: one run each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Acquires of quotas, one in a request.
    Batch1,
    /// Acquires of quotas, 64 in a request.
    Batch64,
    /// Transactions that each change a counter by one.
    Add,
    /// Those, to counters that are each in a treaty.
    AddTreaty,
}

named!(Work is a "configuration": Batch1 "batch-1", Batch64 "batch-64", Add "add", AddTreaty "add-treaty");

impl Work {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Batch1, Self::Batch64, Self::Add, Self::AddTreaty];

    /// The number of operations of a request.
    fn batch(self) -> usize {
        if self == Self::Batch64 { 64 } else { 1 }
    }

    /// What it needs.
    fn prepare(self, trio: &mut Trio, names: &[String]) {
        match self {
            Self::Batch1 | Self::Batch64 => return trio.create_all(names),
            Self::Add | Self::AddTreaty => trio.add_to_all(names, PLENTY),
        }
        if self == Self::AddTreaty {
            trio.make_treaties(names, PLENTY);
        }
    }

    /// One operation.
    fn operation(self, name: String, rng: &mut Rng) -> Operation {
        match self {
            Self::Batch1 | Self::Batch64 => {
                Operation::Acquire { quota: name, amount: 1, hold: Hold::Counted, waits: false }
            }
            Self::Add | Self::AddTreaty => {
                let change = Change::Add(if rng.one_in(2) { 1 } else { -1 });
                let part = Part { writes: vec![(name, change)], ..Part::default() };
                let homes = vec![Home { region: 0, part, ..Home::default() }];
                Operation::Commit(Box::new(Transaction { homes, ..Transaction::default() }))
            }
        }
    }
}

/// A run under way.
struct Course {
    /// The site that is measured.
    bench: Bench,
    /// What it is asked for.
    generator: Generator,
    /// The rounds so far: operations done, seconds, and the time of each request.
    rounds: Vec<(u64, f64, Histogram)>,
}

impl Course {
    fn prepare(options: &CoreOptions, work: Work) -> Self {
        // Counters have no levels.
        let levels = if matches!(work, Work::Batch1 | Work::Batch64) { options.levels } else { 1 };
        let names = (0..options.quotas).map(|number| leaf(&format!("quota-{number}"), levels)).collect();
        let (mut bench, names) = Bench::prepare(names, options.seed, |trio, names| work.prepare(trio, names));
        let mut generator = Generator::new(&mut bench, names, options.seed, work);

        // What warms caches is not counted.
        acquire(&mut bench, &mut generator, options.acquires.min(4 * CHUNK as u64));
        Self { bench, generator, rounds: Vec::new() }
    }

    fn round(&mut self, options: &CoreOptions) {
        let Self { bench, generator, rounds } = self;
        bench.latencies = Histogram::default();
        let (granted, timed) = (bench.seen.granted, bench.timed);
        acquire(bench, generator, options.acquires);
        let seconds = (bench.timed - timed).as_secs_f64();
        rounds.push((bench.seen.granted - granted, seconds, std::mem::take(&mut bench.latencies)));
    }

    /// The time of an operation in each round, in nanoseconds.
    fn times(&self) -> Vec<f64> {
        self.rounds.iter().map(|(granted, seconds, _)| seconds * 1e9 / (*granted).max(1) as f64).collect()
    }

    fn end(self, options: &CoreOptions) -> Measured {
        let Self { bench, generator, rounds } = self;
        let work = generator.work;
        verify(&bench, &generator, options.levels);

        let metrics = *bench.site.node.metrics();
        let speeds: Vec<u64> = rounds.iter().map(|(granted, seconds, _)| (*granted as f64 / seconds) as u64).collect();
        let (granted, seconds, latencies) = median(rounds, |(granted, seconds, _)| *granted as f64 / seconds);
        let mut run = Run::new(work.to_string());
        run.committed = granted;
        run.latency_ms = Latency::from(&latencies);
        run.gifts = metrics.gifts_sent() + metrics.gifts_received;
        run.rebalances = metrics.rebalances;
        run.wan_messages = Some(metrics.messages_sent);
        let ns = seconds * 1e9 / granted.max(1) as f64;
        let run = run.took(seconds).with("rounds_per_s", speeds).with("ns_per_operation", ns.round());
        let logged = (bench.site.logged() - bench.logged_before) as f64 / bench.seen.granted as f64;
        let run = match work {
            Work::Batch1 | Work::Batch64 => run
                .with("quotas", options.quotas)
                .with("levels", options.levels)
                .with("logged_bytes_per_acquire", logged),
            Work::Add | Work::AddTreaty => {
                let leaves = bench.site.node.chapters().txns.leaves(clock(bench.began)).len();
                let expected = if work == Work::AddTreaty { options.quotas } else { 0 };
                assert_eq!(leaves, expected, "each counter keeps its treaty, if it has one");
                run.with("counters", options.quotas).with("treaties", leaves).with("logged_bytes_per_add", logged)
            }
        };
        (run, latencies)
    }
}

/// Carries out acquires, a chunk at a time.
fn acquire(bench: &mut Bench, generator: &mut Generator, acquires: u64) {
    let mut left = acquires as usize;
    while left > 0 {
        let some = CHUNK.min(left);
        let requests = generator.requests(some);
        bench.chunk(requests, generator.work.batch());
        left -= some;
    }
}

/// Every operation was done, and the quotas' own totals say so too.
fn verify(bench: &Bench, generator: &Generator, levels: usize) {
    let asked: u64 = generator.sessions.iter().map(Ahead::requested).sum();
    let granted = bench.seen.granted;
    assert_eq!(granted, asked, "every operation must be done");

    if matches!(generator.work, Work::Batch1 | Work::Batch64) {
        let booked: u128 = bench.site.node.chapters().quotas.iter().map(|quota| quota.used().0).sum();
        let expected = u128::from(granted) * levels as u128;
        assert_eq!(booked, expected, "the quotas' books must show what was granted, at each level");
    }
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
    others: Vec<Driven>,
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
    /// Acquires that were granted, and transactions that were committed.
    granted: u64,
    /// The session that was opened last, until somebody uses it.
    opened: Option<Ahead>,
}

impl Seen {
    fn take(&mut self, effect: Effect<Node>) {
        match effect {
            Effect::Respond { response: Response::Batch { answers, .. }, .. } => {
                let is_granted =
                    |outcome: &Outcome| matches!(outcome, Outcome::Granted { .. } | Outcome::Committed { .. });
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
    /// Three sites that serve and have what `prepare` makes under these names; and the names.
    fn prepare(names: Vec<String>, seed: u64, prepare: impl FnOnce(&mut Trio, &[String])) -> (Self, Vec<String>) {
        let mut trio = Trio::ready(seed);
        prepare(&mut trio, &names);
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
        deliver(&mut self.others, self.began + self.timed.as_micros() as u64, &mut self.seen.mail);
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
    /// The names of quotas or counters, the popular ones first.
    names: Vec<String>,
    /// Their popularity.
    zipf: Zipf,
    /// Draws names.
    rng: Rng,
    /// The clients' sessions.
    sessions: Vec<Ahead>,
    /// The position of the session that asks next.
    turn: usize,
    /// What is asked for.
    work: Work,
}

impl Generator {
    fn new(bench: &mut Bench, names: Vec<String>, seed: u64, work: Work) -> Self {
        let sessions = (0..SESSIONS).map(|_| bench.open()).collect();
        Self { zipf: Zipf::new(names.len(), SKEW), names, rng: Rng::new(seed), sessions, turn: 0, work }
    }

    /// Requests that have this number of operations together.
    fn requests(&mut self, operations: usize) -> Vec<Request> {
        let Self { names, zipf, rng, sessions, turn, work } = self;
        let batch = work.batch();
        let mut requests = Vec::with_capacity(operations / batch + 1);
        let mut left = operations;

        // Each session has its part of what is under way, and at least the batch that it sends.
        let in_flight = (IN_FLIGHT.max(batch) / SESSIONS).max(batch) as u64;
        while left > 0 {
            let size = left.min(batch);
            left -= size;
            let operations = (0..size).map(|_| {
                let name = names[zipf.draw(rng)].clone();
                work.operation(name, rng)
            });

            // Sessions by turns, as requests of different clients come.
            requests.push(sessions[*turn].request(operations, in_flight, TIMEOUT));
            *turn = (*turn + 1) % sessions.len();
        }
        requests
    }
}
