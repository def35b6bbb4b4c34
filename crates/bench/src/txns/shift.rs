//! `bench voting-shift`: stations of an election whose winner changes, over wide-area round trips (*Predictive Treaties*, EuroSys 2019,
//! figures 10 and 11).
//!
//! Ten seconds of votes; two minutes with queries in which A gains; thirteen minutes in which B does. Votes and queries come when they
//! come, whatever the ones before have to wait for: an open loop. Each is a transaction of the product's client at its station's
//! own site, in virtual time. A query asks for the treaty of the one who led when its station asked last; where that does not hold, for the
//! other's, which it makes.
//!
//! An answer is wrong if at no time while it was looked for that one led, by what the stations' sites had written.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slackline::{Key, Metric, Order, Outcome, Transaction, TxnError};
use slackline_core::clock::SECOND;
use slackline_core::id::OperationId;
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::object::message::{Message, Says, Wanted};
use slackline_core::peer::Body;
use slackline_core::stats::Rng;
use slackline_core::txn::counter_of_row;
use slackline_session::port::Port;
use slackline_session::time::Time;
use slackline_session::txn::Memos;
use slackline_session::txn::treaties::Treaty;
use slackline_sim::invariants::treaties::check_verdict;
use slackline_sim::world::{After, Keep};

use super::setting::TxnsError;
use super::stage::{Delays, EC2, Nursery, Stage, costs, ec2_region, over_ec2};
use crate::EPSILON;
use crate::figure::{Axis, Figure, Scale, Series};
use crate::histogram::Histogram;
use crate::named::named;
use crate::report::{Latency, Mode, Report, Run};
use crate::voting::Strategy;

/// Votes of a station a second, and queries.
const VOTES: f64 = 100.0;
const QUERIES: u64 = 20;
/// The seconds of votes alone, until the votes shift, and to the end.
const ALONE: u64 = 10;
const SHIFT: u64 = ALONE + 120;
const END: u64 = SHIFT + 780;
/// The votes for A, of 100, at odd and even stations: before the shift and after it.
const BIAS: [(u64, u64); 2] = [(60, 48), (40, 52)];
/// The time for which a site is down that crashes.
const DOWN: u64 = 120 * SECOND;
/// The time that a vote or a query may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Which leaves are asked for slack first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeKind {
    /// All at once.
    Flat,
    /// The near ones.
    Rtt,
}

named!(TreeKind is a "tree": Flat "flat", Rtt "rtt");

/// Options of `bench voting-shift`.
#[derive(Clone, Debug)]
pub struct ShiftOptions {
    /// The numbers of stations.
    pub stations: Vec<usize>,
    /// The trees.
    pub trees: Vec<TreeKind>,
    /// How slack is moved: all but [`Strategy::Optimal`], since the biases change.
    pub strategies: Vec<Strategy>,
    /// True if a site dies once it has reported what slack it has.
    pub crash: bool,
    /// The seconds to the end; the shift comes after as large a part of it as usual.
    pub seconds: u64,
    /// The seed of the votes.
    pub seed: u64,
}

impl Default for ShiftOptions {
    fn default() -> Self {
        Self {
            stations: vec![2, 4],
            trees: vec![TreeKind::Flat, TreeKind::Rtt],
            strategies: vec![Strategy::Equal, Strategy::Predictive, Strategy::Slackline],
            crash: false,
            seconds: END,
            seed: 1,
        }
    }
}

/// Runs `bench voting-shift`.
///
/// # Errors
///
/// The strategy is one that knows the biases, which change here; or there are more stations than regions.
pub fn shift(options: &ShiftOptions) -> Result<Report, TxnsError> {
    if options.strategies.contains(&Strategy::Optimal) {
        let why = "the votes shift, so there is no optimal division: use equal, predictive or slackline";
        return Err(TxnsError::Option(why.into()));
    }
    let mut jobs = Vec::new();
    for &stations in &options.stations {
        for &tree in &options.trees {
            jobs.extend(options.strategies.iter().map(|&strategy| (stations, tree, strategy)));
        }
    }
    let found = super::run::run_each(&jobs, false, |&(stations, tree, strategy)| {
        Trial::new(options, stations, tree, strategy)?.run(strategy)
    })?;

    let verified = found.iter().all(|(run, _)| run.figure("wrong_answers") == Some(0.0));
    let (runs, lines): (Vec<Run>, Vec<Series>) = found.into_iter().unzip();
    Ok(Report {
        workload: "voting-shift".into(),
        mode: Mode::Sim,
        seed: options.seed,
        data: "generated".into(),
        epsilon_us: EPSILON,
        cost_model: Some(costs()),
        runs,
        verified,
        facts: vec![
            (
                "votes".into(),
                "100 a second at each station, 20 queries; 60 and 48 of 100 for A, later 40 and 52".into(),
            ),
            ("round trips".into(), format!("64 to 372 ms ({})", EC2.source())),
            (
                "paper".into(),
                "figure 10: latencies rise around the change of the winner only; figure 11: a tree of near sites helps"
                    .into(),
            ),
        ],
        figures: vec![Figure {
            name: "voting-shift".into(),
            title: "Latency of votes, 99th percentile of each second".into(),
            x: Axis::new("seconds", Scale::Linear),
            y: Axis::new("ms", Scale::Log),
            series: lines,
        }],
    })
}

/// What is known of the counters, by what their sites write.
#[derive(Default)]
struct Truth {
    /// The votes for A and for B at each station.
    counts: BTreeMap<(usize, bool), i64>,
    /// When the lead of A became positive, or ceased to be, and which.
    turns: Vec<(u64, bool)>,
    /// The crash, if there was one: which site, and when.
    crash: Option<(usize, u64)>,
    /// The site that has told another what slack it has, and is to crash at the next thing that it does: what it said is on its way then.
    dying: Option<usize>,
    /// The turns in which others told each other what slack to give while it was down.
    without_it: u64,
}

impl Truth {
    fn lead(&self) -> i64 {
        self.counts.iter().map(|((_, is_for_a), count)| if *is_for_a { *count } else { -*count }).sum()
    }

    fn is_down(&self, now: u64) -> bool {
        self.crash.is_some_and(|(_, at)| now < at + DOWN)
    }
}

/// What was measured of the votes and queries of one second.
#[derive(Default)]
struct Second {
    votes: Histogram,
    queries: Histogram,
    lead: i64,
}

/// What a trial counts.
#[derive(Default)]
struct Counted {
    seconds: Vec<Second>,
    votes: u64,
    queries: u64,
    refused: u64,
    unknown: u64,
    wrong: u64,
    /// The waits of votes for slack: when each began, at which station, and how long it was, in microseconds.
    waits: Vec<(u64, usize, u64)>,
    /// The votes of which the wait is still to be looked up.
    committed: Vec<(u64, usize, OperationId)>,
}

impl Counted {
    /// Counts what was not committed.
    fn note_in_vain<T>(&mut self, ended: &Result<Outcome<T>, TxnError>) {
        match ended {
            Ok(Outcome::Unknown(_)) => self.unknown += 1,
            _ => self.refused += 1,
        }
    }
}

/// One run.
struct Trial {
    stage: Stage,
    truth: Rc<RefCell<Truth>>,
    counted: Rc<RefCell<Counted>>,
    stations: usize,
    tree: TreeKind,
    crash: bool,
    seconds: u64,
    seed: u64,
}

fn counter(station: usize, is_for_a: bool) -> Key {
    Key::new(ec2_region(station), if is_for_a { "votes/a" } else { "votes/b" })
}

/// The treaties that say that A leads, and that A does not.
fn leaders(stations: usize, tree: TreeKind) -> [Treaty; 2] {
    let margin = |station: usize| counter(station, true).metric() - counter(station, false).metric();
    let sum: Metric = (0..stations).map(margin).sum();
    let order = || if tree == TreeKind::Flat { Order::Flat } else { Order::Near };
    [
        Treaty::new("b-leads", sum.clone().at_most(0)).order(order()),
        Treaty::new("a-leads", sum.at_least(1)).order(order()),
    ]
}

impl Trial {
    fn new(options: &ShiftOptions, stations: usize, tree: TreeKind, strategy: Strategy) -> Result<Self, TxnsError> {
        let clients: Vec<usize> = (0..stations).collect();
        let stage = over_ec2(stations, &clients, options.seed, |world| {
            (world.slack, world.restarts) = (strategy.slack(), options.crash);
        })?;
        let (truth, counted) = (Rc::new(RefCell::new(Truth::default())), Rc::default());
        truth.borrow_mut().turns.push((0, false));
        let (crash, seconds, seed) = (options.crash, options.seconds, options.seed);
        Ok(Self { stage, truth, counted, stations, tree, crash, seconds, seed })
    }

    /// Runs it, second by second.
    fn run(mut self, strategy: Strategy) -> Result<(Run, Series), TxnsError> {
        let began = self.stage.world.now();
        let shift = self.seconds * SHIFT / END;
        let (truth, crash) = (Rc::clone(&self.truth), self.crash);
        self.stage
            .watch(DOWN, Box::new(move |now, site, effects| look(&truth, crash.then_some(began), now, site, effects)));

        self.counted.borrow_mut().seconds = (0..self.seconds).map(|_| Second::default()).collect();
        let treaties: Rc<[Treaty; 2]> = Rc::new(leaders(self.stations, self.tree));
        for at in 0..self.stations {
            let station = Station {
                at,
                port: self.stage.port(at),
                memos: Arc::default(),
                treaties: Rc::clone(&treaties),
                a_led: Rc::new(Cell::new(true)),
                began,
                truth: Rc::clone(&self.truth),
                counted: Rc::clone(&self.counted),
                nursery: self.stage.nursery(),
            };
            let rng = Rng::new(self.seed << 20 ^ at as u64);
            self.stage.spawn(station.clone().votes(rng, shift, self.seconds));
            self.stage.spawn(station.queries(ALONE.min(shift), self.seconds));
        }

        let delays = self.stage.delays();
        for second in 0..self.seconds {
            self.stage.pass(SECOND);
            self.counted.borrow_mut().seconds[second as usize].lead = self.truth.borrow().lead();
            look_up(&self.counted, &delays);
        }
        self.stage.finish();
        look_up(&self.counted, &delays);
        if self.crash && self.truth.borrow().crash.is_none() {
            let what = format!("no site told another what slack it has within {} s, so none crashed", self.seconds);
            return Err(TxnsError::Option(format!("--crash: {what}; give it more --seconds, or another --seed")));
        }
        Ok(self.report(strategy, began))
    }

    fn report(self, strategy: Strategy, began: u64) -> (Run, Series) {
        let (truth, counted) = (self.truth.borrow(), self.counted.take());
        // The first time at which A ceased to lead once the votes had shifted: for some seconds after it the lead may change again.
        let shift = began + self.seconds * SHIFT / END * SECOND;
        let changed = truth.turns.iter().find(|(at, leads)| !*leads && *at > shift).map(|(at, _)| *at);
        let changed_s = changed.map(|at| (at - began) as f64 / SECOND as f64);
        let before = changed.unwrap_or(u64::MAX);

        let wait = |of: &dyn Fn(&(u64, usize, u64)) -> bool| {
            let mut waits = Histogram::default();
            counted.waits.iter().filter(|wait| of(wait)).for_each(|(.., wait)| waits.note(wait * 1_000));
            let latency = Latency::from(&waits);
            serde_json::json!({ "count": waits.count(), "p99": latency.p99, "max": latency.max })
        };
        let p99 = |histogram: &Histogram| histogram.quantile(0.99) as f64 / 1e6;
        let series = counted.seconds.iter().enumerate().map(|(s, of)| {
            let (votes, queries) = (p99(&of.votes), p99(&of.queries));
            serde_json::json!({ "s": s, "vote_p99_ms": votes, "query_p99_ms": queries, "lead": of.lead })
        });
        let line = counted.seconds.iter().enumerate().map(|(s, of)| (s as f64, p99(&of.votes).max(0.01))).collect();

        let mut all = Histogram::default();
        counted.seconds.iter().for_each(|of| all.add(&of.votes));
        let name = format!("{} {}, {}", strategy.name(), self.stations, self.tree);
        let mut run = Run::new(strategy.name());
        run.label = Some(name.clone());
        (run.committed, run.refused, run.unknown) = (counted.votes + counted.queries, counted.refused, counted.unknown);
        (run.local_ratio, run.latency_ms) = (None, Latency::from(&all));
        run.wan_messages = Some(self.stage.world.wan_messages());
        let run = run
            .took(self.seconds as f64)
            .with("stations", self.stations as u64)
            .with("tree", self.tree.to_string())
            .with("winner_changed_s", changed_s)
            .with("rebalance_wait_ms", wait(&|(at, ..)| *at < before))
            .with("wrong_answers", counted.wrong)
            .with("series", serde_json::Value::Array(series.collect()));
        let run = match truth.crash {
            Some((site, at)) => {
                // Those included that waited already: some for what the site that died was to give.
                let survives = |(when, station, wait): &(u64, usize, u64)| {
                    *station != site && *when < at + DOWN && when + wait > at
                };
                run.with("survivor_wait_ms", wait(&survives))
                    .with("rebalances_without_it", truth.without_it)
                    .with("crashed", ec2_region(site))
                    .with("crashed_s", (at - began) as f64 / SECOND as f64)
            }
            None => run,
        };
        (run, Series::new(&name, line))
    }
}

/// Notes for how long votes waited at their homes.
fn look_up(counted: &Rc<RefCell<Counted>>, delays: &Delays) {
    let mut counted = counted.borrow_mut();
    for (at, station, id) in std::mem::take(&mut counted.committed) {
        let wait = delays.take(id);
        if wait > 0 {
            counted.waits.push((at, station, wait));
        }
    }
}

/// Looks at what a site does: what it writes to counters; and whether it is to crash now. `crash_from` is when the votes began, if one is
/// to.
fn look(truth: &Rc<RefCell<Truth>>, crash_from: Option<u64>, now: u64, site: usize, effects: &[Effect<Node>]) -> After {
    let mut truth = truth.borrow_mut();
    let (mut is_changed, mut reports, mut divides) = (false, false, false);
    for effect in effects {
        match effect {
            Effect::Persist(batch) => {
                for (key, row) in batch.iter() {
                    let Some((_, name, count)) = counter_of_row(key, row) else { continue };
                    if let Some(candidate) = name.strip_prefix("votes/") {
                        truth.counts.insert((site, candidate == "a"), count);
                        is_changed = true;
                    }
                }
            }
            Effect::Send { to, message } => {
                if let Body::Txn(message) = &message.body
                    && let Message::Treaty { says, .. } = &**message
                {
                    reports |= matches!(says, Says::Report { .. });
                    let is_to_give = |gives: &[Wanted]| gives.iter().any(|give| give.amount > 0 || give.rate > 0);
                    let is_alive = truth.crash.is_none_or(|(down, _)| usize::from(to.region) != down);
                    divides |= matches!(says, Says::Give { gives, .. } if is_alive && is_to_give(gives));
                }
            }
            Effect::Respond { .. } => {}
        }
    }
    truth.without_it += u64::from(divides && truth.is_down(now));
    if is_changed {
        let leads = truth.lead() > 0;
        if truth.turns.last().is_none_or(|(_, before)| *before != leads) {
            truth.turns.push((now, leads));
        }
    }

    if truth.dying == Some(site) && truth.crash.is_none() {
        truth.crash = Some((site, now));
        return After::Crash(Keep::Everything);
    }

    // In the middle of the first part, so that there is somebody to go on without it for long.
    let is_time = crash_from.is_some_and(|began| now > began + 40 * SECOND);
    if is_time && reports && truth.dying.is_none() {
        truth.dying = Some(site);
    }
    After::Go
}

/// One station: its voters, and those who ask who leads.
#[derive(Clone)]
struct Station {
    at: usize,
    port: Arc<dyn Port>,
    memos: Arc<Memos>,
    treaties: Rc<[Treaty; 2]>,
    /// True if A led when it asked last.
    a_led: Rc<Cell<bool>>,
    began: u64,
    truth: Rc<RefCell<Truth>>,
    counted: Rc<RefCell<Counted>>,
    nursery: Nursery,
}

impl Station {
    fn transaction(&self) -> Transaction {
        Transaction::over(Arc::clone(&self.port), Arc::clone(&self.memos)).at(&ec2_region(self.at)).deadline(DEADLINE)
    }

    /// Waits until so many microseconds after the beginning.
    async fn until(&self, at: f64) {
        self.port.sleep_until(Time(self.began + at as u64)).await;
    }

    /// Voters come independently of each other.
    async fn votes(self, mut rng: Rng, shift: u64, seconds: u64) {
        let mut at = 0.0;
        loop {
            at -= ((rng.draw() >> 11) as f64 / (1u64 << 53) as f64).max(1e-12).ln() / VOTES * SECOND as f64;
            if at >= (seconds * SECOND) as f64 {
                return;
            }
            let (odd, even) = BIAS[usize::from(at >= (shift * SECOND) as f64)];
            let is_for_a = rng.below(100) < if self.at.is_multiple_of(2) { odd } else { even };
            self.until(at).await;
            self.stage_vote(is_for_a);
        }
    }

    /// Begins a vote; the next one does not wait for it.
    fn stage_vote(&self, is_for_a: bool) {
        let station = self.clone();
        self.nursery.spawn(async move {
            let began = station.port.now().0;
            let key = counter(station.at, is_for_a);
            let vote = |txn: slackline::Txn| {
                let key = &key;
                async move { txn.add(key, 1) }
            };
            let ended = station.transaction().run_and_tell(vote).await;
            let mut counted = station.counted.borrow_mut();
            match ended {
                Ok(Outcome::Done(committed)) => {
                    counted.votes += 1;
                    let operation = committed.operation.map(|id| (began, station.at, id));
                    counted.committed.extend(operation);
                    let took = station.port.now().0 - began;
                    let second = ((began - station.began) / SECOND) as usize;
                    counted.seconds[second].votes.note(took * 1_000);
                }
                ended => counted.note_in_vain(&ended),
            }
        });
    }

    async fn queries(self, from: u64, seconds: u64) {
        let pause = SECOND / QUERIES;
        let mut at = from * SECOND + self.at as u64 * pause / 8;
        while at < seconds * SECOND {
            self.until(at as f64).await;
            let station = self.clone();
            self.nursery.spawn(async move { station.query().await });
            at += pause;
        }
    }

    /// Asks who leads.
    async fn query(self) {
        let began = self.port.now().0;
        let a_led = self.a_led.get();
        let run_began = Cell::new(began);
        let ask = |txn: slackline::Txn| {
            run_began.set(self.port.now().0);
            let treaties = &self.treaties;
            async move {
                if txn.holds(&treaties[usize::from(a_led)]).await? {
                    return Ok::<_, TxnError>(a_led);
                }
                // By the same reads; the next one who asks finds a treaty.
                Ok(txn.holds(&treaties[usize::from(!a_led)]).await? != a_led)
            }
        };
        let ended = self.transaction().run_and_tell(ask).await;
        let now = self.port.now().0;
        let mut counted = self.counted.borrow_mut();
        match ended {
            Ok(Outcome::Done(committed)) => {
                let a_leads = committed.value;
                counted.queries += 1;
                let found = check_verdict(a_leads, (run_began.get(), now), &self.truth.borrow().turns);
                counted.wrong += u64::from(found.is_err());
                let second = ((began - self.began) / SECOND) as usize;
                counted.seconds[second].queries.note((now - began) * 1_000);
                self.a_led.set(a_leads);
            }
            ended => counted.note_in_vain(&ended),
        }
    }
}
