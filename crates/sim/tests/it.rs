//! A few seeds, in every test run; the sweep of many is a command of its own.

use slackline_core::api::{Agreement, Batch, Hold, Operation, Outcome, Request, Response, Submission};
use slackline_core::machine::ClientId;
use slackline_sim::world::{Host, Options, World};
use slackline_sim::{Costs, Report, RunOptions, run, sweep};

/// Enough for every kind of thing to happen, in a second or so of an unoptimised build.
const SHORT: RunOptions = RunOptions { operations: 4_000, transactions: 600, treaties: 200, faults: 12, trace: false };

#[test]
fn same_seed_gives_the_same_run_and_another_seed_another_one() {
    let first = run(11, SHORT);
    assert_eq!(first, run(11, SHORT));
    assert_ne!(first.digest, run(12, SHORT).digest);
}

#[test]
fn no_invariant_fails_in_a_few_seeds() {
    let progress = |report: &Report| {
        assert_eq!(report.violation, None, "seed {}", report.seed);
        true
    };
    let report = sweep(1..7, 2, SHORT, progress);
    assert_eq!(report.table.runs, 6);
    assert!(report.operations >= 6 * 4_000 && report.faults >= 6 * 12, "{report}");
    // Fewer than forty seeds miss no probe for that alone.
    assert!(report.is_clean());
    let text = report.to_string();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "the table fits a terminal");
}

/// Two sites; a client acquires at one of them more than it has, again and again, and gives it back.
#[derive(Default)]
struct Workload {
    session: Option<Request>,
    next: u64,
    outcomes: Vec<(u64, Outcome)>,
}

impl Workload {
    fn send(&mut self, world: &mut World, operation: Operation) {
        let Some(Request::Batch(batch)) = &self.session else { return };
        self.next += 1;
        let submission = Submission { sequence: self.next, timeout: 5_000_000, operation };
        let batch = Batch { low: self.next, operations: vec![submission], ..batch.clone() };
        world.request(world.now(), 0, ClientId(1), Request::Batch(batch));
    }
}

impl Host for Workload {
    fn wake(&mut self, world: &mut World, token: u64) {
        let quota = "gpus".to_owned();
        match token {
            0 => world.request(world.now(), 0, ClientId(1), Request::Open),
            1 => self.send(world, Operation::Create { quota, limit: 100, agreement: Agreement::Majority }),
            token if token % 2 == 0 => {
                self.send(world, Operation::Acquire { quota, amount: 80, hold: Hold::Counted, waits: false })
            }
            _ => self.send(world, Operation::Release { quota, amount: 80 }),
        }
        if token < 7 {
            world.wake_at(world.now() + 2_000_000, token + 1);
        }
    }

    fn respond(&mut self, world: &mut World, _: usize, _: ClientId, response: Response) {
        match response {
            Response::Opened { site, incarnation, session } => {
                let operations = Vec::new();
                self.session = Some(Request::Batch(Batch { site, incarnation, session, low: 1, operations }));
            }
            Response::Batch { answers, .. } => {
                self.outcomes.extend(answers.into_iter().map(|answer| (world.now(), answer.outcome)));
            }
            other => panic!("not asked for: {other:?}"),
        }
    }
}

#[test]
fn world_serves_a_workload_without_faults() {
    let mut world = World::new(Options { costs: Costs::NONE, ..Options::uniform(2, 80_000, 5) });
    let mut workload = Workload::default();
    world.wake_at(1_000_000, 0);
    world.run(&mut workload, 20_000_000);
    let done = |outcome: &Outcome| !matches!(outcome, Outcome::Refused(_) | Outcome::Unknown(_));
    assert_eq!(workload.outcomes.len(), 7);
    assert!(workload.outcomes.iter().all(|(_, outcome)| done(outcome)), "{:?}", workload.outcomes);
    // The first acquire had to wait for tokens of the other site: a round trip at least.
    assert!(workload.outcomes[1].0 >= 5_000_000 + 80_000, "{:?}", workload.outcomes);
    assert!(world.inputs() > 50 && world.wan_messages() > 20 && world.syncs() > 5);
}
