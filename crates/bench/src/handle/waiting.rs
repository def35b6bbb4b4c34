//! `bench core --waiting`: what one release, one question and one tick cost while very many operations wait.
//!
//! The first of three sites has granted all tokens that it has, and the others do not answer. So the acquires of one quota wait
//! in its line, and twice as many operations wait for what the others know of names that this site does not know. Each
//! release brings one token back, which the first that wants no more than one gets. Each question asks what became of an acquire
//! that waits, and so withdraws it. Each tick does what is due next. Timed is what the driver does for one input, as in the other
//! runs. Sessions are those of the module `ahead`: the operations that wait are never answered, and a release is answered only with
//! the next sync, while the product's client waits for the answer to one batch before it sends another.

use std::time::{Duration, Instant};

use slackline_core::api::{BATCH_OPERATIONS, Hold, Operation, Request};
use slackline_core::chapter::Chapter as _;
use slackline_core::clock::SECOND;
use slackline_core::id::OperationId;
use slackline_core::machine::{ClientId, Input, Machine};

use super::{Bench, SYNCED_TOGETHER, report};
use crate::ahead::Ahead;
use crate::histogram::Histogram;
use crate::report::{Latency, Measured, Report, Run};

/// Options of `bench core --waiting`.
#[derive(Clone, Debug)]
pub struct WaitingOptions {
    /// The number of acquires that wait; twice as many operations are offered on unknown names.
    pub waiting: usize,
    /// The number of releases, of questions and of ticks that are timed.
    pub operations: usize,
    /// The seed of every random choice.
    pub seed: u64,
}

impl Default for WaitingOptions {
    fn default() -> Self {
        Self { waiting: 100_000, operations: 10_000, seed: 1 }
    }
}

/// The names that nobody knows.
const NAMES: usize = 1_000;
/// The most tokens that an acquire wants; the least is one.
const LARGEST: usize = 7;
/// Longer than any run lasts.
const TIMEOUT: u64 = 3_600 * SECOND;

/// Runs `bench core --waiting`.
///
/// # Panics
///
/// If what waits afterwards is not what should.
pub fn waiting(options: &WaitingOptions) -> Report {
    let mut line = Line::prepare(options);
    let measured =
        vec![line.releases(options.operations), line.outcomes(options.operations), line.ticks(options.operations)];
    let waits =
        format!("{} acquires of one quota, {} operations on {NAMES} unknown names", line.acquires, line.unknown);
    let timed = "one core, one thread: one `handle` and what its driver does for it, without a sync";
    let facts = vec![("waiting".into(), waits), ("timed".into(), timed.into())];
    report("core-waiting", options.seed, measured, facts)
}

/// An acquire of one quota.
fn acquire(quota: &str, amount: i64) -> Operation {
    Operation::Acquire { quota: quota.to_owned(), amount, hold: Hold::Counted, waits: false }
}

/// A site where many operations wait.
struct Line {
    /// The site.
    bench: Bench,
    /// The quota whose tokens are all granted.
    quota: String,
    /// The sessions of the acquires that wait, a batch each.
    sessions: Vec<Ahead>,
    /// The number of acquires that wait in the beginning.
    acquires: usize,
    /// The number of operations on unknown names that wait in the beginning.
    unknown: usize,
    /// Virtual time that has passed.
    passed: Duration,
}

impl Line {
    fn prepare(options: &WaitingOptions) -> Self {
        let (bench, names) =
            Bench::prepare(vec!["quota-0".to_owned()], options.seed, |trio, names| trio.create_all(names));
        let quota = names[0].clone();
        let mut line = Self { bench, quota, sessions: Vec::new(), acquires: 0, unknown: 0, passed: Duration::ZERO };

        // All that the site has is granted, so every acquire after this one waits.
        let quotas = &line.bench.site.node.chapters().quotas;
        let here = quotas.find(&line.quota).expect("it was created").avantan().share.tokens;
        line.offer(1, |quota, _| acquire(quota, here));

        line.sessions = line.offer(options.waiting, |quota, at| acquire(quota, 1 + (at % LARGEST) as i64));
        line.acquires = line.waiting();
        line.offer(2 * options.waiting, |_, at| acquire(&format!("unknown-{}", at % NAMES), 1));
        line.unknown = line.waiting() - line.acquires;
        line
    }

    /// Submits operations, a batch in each of several sessions, which are returned. Nobody else hears of it.
    fn offer(&mut self, count: usize, operation: impl Fn(&str, usize) -> Operation) -> Vec<Ahead> {
        let mut sessions = Vec::new();
        for first in (0..count).step_by(BATCH_OPERATIONS) {
            let mut session = self.bench.open();
            let batch = first..count.min(first + BATCH_OPERATIONS);
            let in_flight = batch.len() as u64;
            let request = session.request(batch.map(|at| operation(&self.quota, at)), in_flight, TIMEOUT);
            self.ask(request);
            self.bench.sync();
            sessions.push(session);
        }
        sessions
    }

    /// The number of operations that wait now.
    fn waiting(&self) -> usize {
        self.bench.site.node.chapters().quotas.waiting()
    }

    /// Times releases, each of which serves one acquire.
    fn releases(&mut self, count: usize) -> Measured {
        let mut session = self.bench.open();
        let (granted, before) = (self.bench.seen.granted, self.waiting());

        // Answers come with the syncs, so the operations between two of them are under way, and the one that is made.
        let in_flight = SYNCED_TOGETHER as u64 + 2;
        let run = self.timed("release", count, |line, _| {
            let release = Operation::Release { quota: line.quota.clone(), amount: 1 };
            line.ask(session.request([release], in_flight, TIMEOUT));
        });

        let served = (self.bench.seen.granted - granted) as usize;
        assert_eq!(
            served,
            count.min(self.acquires.div_ceil(LARGEST)),
            "each release serves the first that wants one token"
        );
        assert_eq!(self.waiting(), before - served, "the others wait on");
        run
    }

    /// Times questions, each of which withdraws one acquire.
    fn outcomes(&mut self, count: usize) -> Measured {
        // Those that want more than one token: no release has served them, wherever they stand in the line.
        let larger = (0..self.acquires).filter(|at| at % LARGEST != 0);
        let stride = (self.acquires / count.max(1) / 2).max(1);
        let id = |at: usize| self.sessions[at / BATCH_OPERATIONS].id(1 + (at % BATCH_OPERATIONS) as u64);
        let asked: Vec<OperationId> = larger.step_by(stride).take(count).map(id).collect();

        let before = self.waiting();
        let run = self.timed("outcome", asked.len(), |line, at| line.ask(Request::Ask { operation: asked[at] }));
        assert_eq!(self.waiting(), before - asked.len(), "each question withdraws what it asks about");
        run
    }

    /// Times ticks, none of which ends an operation.
    fn ticks(&mut self, count: usize) -> Measured {
        let before = self.waiting();
        let run = self.timed("tick", count, |line, _| {
            // To when the next thing is due, so that each tick finds something to do.
            let due = line.bench.site.node.deadline().unwrap_or(0).saturating_sub(line.bench.began);
            line.passed = line.passed.max(Duration::from_micros(due));
            line.bench.input(line.passed, Input::Tick);
        });
        assert_eq!(self.waiting(), before, "nobody's time is over");
        run
    }

    /// Times each of `count` steps; what becomes durable in between is not timed.
    fn timed(&mut self, name: &str, count: usize, mut step: impl FnMut(&mut Self, usize)) -> Measured {
        let (mut latencies, mut total) = (Histogram::default(), Duration::ZERO);
        let waiting = self.waiting();
        for at in 0..count {
            // Virtual time goes on by what a step really took.
            let began = Instant::now();
            step(self, at);
            let took = began.elapsed();
            latencies.note(took.as_nanos() as u64);
            total += took;
            self.passed += took;
            if at % SYNCED_TOGETHER == 0 {
                self.bench.sync();
            }
        }
        self.bench.sync();

        let mut run = Run::new(name);
        run.committed = count as u64;
        run.latency_ms = Latency::from(&latencies);
        run.wan_messages = Some(self.bench.seen.mail.len() as u64);
        self.bench.seen.mail.clear();
        let ns = total.as_nanos() as f64 / count.max(1) as f64;
        let run = run.took(total.as_secs_f64());
        (run.with("ns_per_operation", ns.round()).with("waiting", waiting), latencies)
    }

    fn ask(&mut self, request: Request) {
        self.bench.input(self.passed, Input::Request { client: ClientId(1), request });
    }
}
