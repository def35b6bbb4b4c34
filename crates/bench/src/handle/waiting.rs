//! `bench core --waiting`: what one release, one question and one tick cost while very many operations wait.
//!
//! The first of three sites has granted all tokens that it has, and the others do not answer. So the acquires of one quota wait
//! in its line, and twice as many operations wait for what the others know of names that this site does not know. Each
//! release brings one token back, which the first that wants no more than one gets. Each question asks what became of an acquire
//! that waits, and so withdraws it. Each tick does what is due next. Timed is what the driver does for one input, as in the other
//! runs.

use std::time::Duration;

use slackline_core::api::{BATCH_OPERATIONS, Batch, Hold, Operation, Request, Submission};
use slackline_core::chapter::Chapter as _;
use slackline_core::clock::SECOND;
use slackline_core::id::OperationId;
use slackline_core::machine::{ClientId, Input, Machine};
use slackline_core::node::Node;

use super::{Bench, CoreOptions, SYNCED_TOGETHER, Session, config};
use crate::histogram::Histogram;
use crate::report::{Latency, Mode, Report, Run, latency_figure};

/// What `bench core --waiting` is told.
#[derive(Clone, Debug)]
pub struct WaitingOptions {
    /// How many acquires are to wait; twice as many operations are offered on unknown names.
    pub waiting: usize,
    /// How many releases, questions and ticks are timed.
    pub operations: usize,
    /// What every random choice comes from.
    pub seed: u64,
}

impl Default for WaitingOptions {
    fn default() -> Self {
        Self { waiting: 100_000, operations: 10_000, seed: 1 }
    }
}

/// The names that nobody knows.
const NAMES: usize = 1_000;
/// The acquires want from one token to so many.
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
    let runs =
        vec![line.releases(options.operations), line.outcomes(options.operations), line.ticks(options.operations)];
    let latencies = runs.iter().map(|(run, latencies)| (run.config.as_str(), latencies));
    let figures = vec![latency_figure("core-waiting", latencies)];
    let waits =
        format!("{} acquires of one quota, {} operations on {NAMES} unknown names", line.acquires, line.unknown);
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
            ("waiting".into(), waits),
            (
                "timed".into(),
                "one core, one thread: one `handle` and what its driver does for it, without a sync".into(),
            ),
        ],
        figures,
    }
}

/// A site where many operations wait.
struct Line {
    bench: Bench,
    /// The sessions whose acquires wait, with the last sequence of each.
    sessions: Vec<Session>,
    /// How many acquires wait in the beginning, and how many operations on unknown names.
    acquires: usize,
    unknown: usize,
    /// Virtual time that has passed.
    passed: Duration,
}

impl Line {
    fn prepare(options: &WaitingOptions) -> Self {
        let core = CoreOptions { quotas: 1, seed: options.seed, ..CoreOptions::default() };
        let bench = Bench::prepare(&core, 1);
        let mut line = Self { bench, sessions: Vec::new(), acquires: 0, unknown: 0, passed: Duration::ZERO };
        let quota = line.bench.generator.names[0].clone();
        let here = line.bench.node.chapters().quotas.find(&quota).expect("it was created").avantan().share.tokens;
        let acquire = |quota: String, amount| Operation::Acquire { quota, amount, hold: Hold::Counted };
        line.offer(1, |_| acquire(quota.clone(), here));
        line.sessions.clear();

        line.offer(options.waiting, |at| acquire(quota.clone(), 1 + (at % LARGEST) as i64));
        line.acquires = line.bench.node.chapters().quotas.waiting();
        let sessions = std::mem::take(&mut line.sessions);
        line.offer(2 * options.waiting, |at| acquire(format!("unknown-{}", at % NAMES), 1));
        line.unknown = line.bench.node.chapters().quotas.waiting() - line.acquires;
        line.sessions = sessions;
        line
    }

    /// Submits operations, in sessions of their own. Nobody else hears of it.
    fn offer(&mut self, count: usize, operation: impl Fn(usize) -> Operation) {
        for first in (0..count).step_by(BATCH_OPERATIONS) {
            let (site, incarnation, session, _) = self.open();
            let operations: Vec<Submission> = (first..count.min(first + BATCH_OPERATIONS))
                .zip(1..)
                .map(|(at, sequence)| Submission { sequence, timeout: TIMEOUT, operation: operation(at) })
                .collect();
            self.sessions.push((site, incarnation, session, operations.len() as u64));
            let batch = Batch { site, incarnation, session, low: 1, operations };
            self.input(Input::Request { client: ClientId(1), request: Request::Batch(batch) });
            self.sync();
        }
    }

    fn open(&mut self) -> Session {
        self.input(Input::Request { client: ClientId(1), request: Request::Open });
        self.sync();
        self.bench.opened.take().expect("a ready site opens sessions")
    }

    fn releases(&mut self, count: usize) -> (Run, Histogram) {
        let quota = self.bench.generator.names[0].clone();
        let (site, incarnation, session, _) = self.open();
        let (granted, before) = (self.bench.granted, self.bench.node.chapters().quotas.waiting());
        let run = self.timed("release", count, |line, at| {
            let operation = Operation::Release { quota: quota.clone(), amount: 1 };
            let submission = Submission { sequence: 1 + at as u64, timeout: TIMEOUT, operation };
            let low = (at as u64).saturating_sub(SYNCED_TOGETHER as u64).max(1);
            let batch = Batch { site, incarnation, session, low, operations: vec![submission] };
            line.input(Input::Request { client: ClientId(1), request: Request::Batch(batch) });
        });
        let served = (self.bench.granted - granted) as usize;
        assert_eq!(
            served,
            count.min(self.acquires.div_ceil(LARGEST)),
            "each release serves the first that wants one token"
        );
        assert_eq!(self.bench.node.chapters().quotas.waiting(), before - served, "the others wait on");
        run
    }

    fn outcomes(&mut self, count: usize) -> (Run, Histogram) {
        // Those that want more than one token: they wait on, wherever they stand in the line.
        let larger = (0..self.acquires).filter(|at| at % LARGEST != 0);
        let stride = (self.acquires / count.max(1) / 2).max(1);
        let asked: Vec<OperationId> = larger
            .step_by(stride)
            .take(count)
            .map(|at| {
                let (site, incarnation, session, _) = self.sessions[at / BATCH_OPERATIONS];
                OperationId { site, incarnation, session, sequence: 1 + (at % BATCH_OPERATIONS) as u64 }
            })
            .collect();
        let before = self.bench.node.chapters().quotas.waiting();
        let run = self.timed("outcome", asked.len(), |line, at| {
            line.input(Input::Request { client: ClientId(1), request: Request::Ask { operation: asked[at] } });
        });
        assert_eq!(
            self.bench.node.chapters().quotas.waiting(),
            before - asked.len(),
            "each question withdraws what it asks about"
        );
        run
    }

    fn ticks(&mut self, count: usize) -> (Run, Histogram) {
        let before = self.bench.node.chapters().quotas.waiting();
        let run = self.timed("tick", count, |line, _| {
            let due = line.bench.node.deadline().unwrap_or(0).saturating_sub(line.bench.began);
            line.passed = line.passed.max(Duration::from_micros(due));
            line.input(Input::Tick);
        });
        assert_eq!(self.bench.node.chapters().quotas.waiting(), before, "nobody's time is over");
        run
    }

    /// Times each of `count` steps; what becomes durable in between is not timed.
    fn timed(&mut self, name: &str, count: usize, mut step: impl FnMut(&mut Self, usize)) -> (Run, Histogram) {
        let (mut latencies, mut total) = (Histogram::default(), Duration::ZERO);
        let waiting = self.bench.node.chapters().quotas.waiting();
        for at in 0..count {
            let began = std::time::Instant::now();
            step(self, at);
            let took = began.elapsed();
            latencies.note(took.as_nanos() as u64);
            total += took;
            self.passed += took;
            if at % SYNCED_TOGETHER == 0 {
                self.sync();
            }
        }
        self.sync();
        let mut run = Run::new(name);
        run.committed = count as u64;
        run.latency_ms = Latency::from(&latencies);
        run.wan_messages = Some(self.bench.to_others.len() as u64);
        self.bench.to_others.clear();
        let ns = total.as_nanos() as f64 / count.max(1) as f64;
        let run = run.took(total.as_secs_f64());
        (run.with("ns_per_operation", ns.round()).with("waiting", waiting), latencies)
    }

    fn input(&mut self, input: Input<Node>) {
        self.bench.input(self.passed, input);
    }

    /// Nobody else hears of what was sent.
    fn sync(&mut self) {
        self.bench.sync();
    }
}
