//! `bench voting`: how long stations of an election can go on alone (*Predictive Treaties*, EuroSys 2019, figures 2, 8 and 9).
//!
//! Stations count votes for A and B. After half a minute a treaty says who leads, and queries rely on it. Measured is the time
//! until the first vote or query that has to wait for another station. Sites are the product's machines, in virtual time; a vote and
//! a query are transactions at a station's own site.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use slackline_core::api::{Batch, Operation, Outcome, Read, Request, Response, Submission};
use slackline_core::clock::{MILLISECOND, Now, SECOND};
use slackline_core::config::Slack;
use slackline_core::id::{Incarnation, SessionId, SiteId};
use slackline_core::machine::{ClientId, Effect, Input, Machine, Overlay, View};
use slackline_core::node::{Config, Node};
use slackline_core::object::treaty::{Clause, Metric, Statement, Treaty, Tree, equally, treaty_key};
use slackline_core::object::{Change, Home, ObjectKey, Part, Transaction, Version};
use slackline_core::peer::PeerMessage;
use slackline_core::stats::Rng;
use slackline_core::stats::split::{Outlook, fixed};
use slackline_core::stats::trend::Motion;
use slackline_core::txn::counter_of_row;
use slackline_session::txn::treaties::making;

use crate::EPSILON;
use crate::figure::{Axis, Figure, Scale, Series};
use crate::report::{Mode, Report, Run};

/// Votes of a station a second.
const VOTES: f64 = 100.0;
/// The time between two queries of a station, in microseconds.
const QUERY: u64 = SECOND;
/// The time of voting before the treaty, in microseconds.
const BEFORE: u64 = 30 * SECOND;
/// The time from the treaty to the end of a trial, in microseconds.
const AFTER: u64 = 400 * SECOND;
/// The round trip between two stations, in microseconds.
const RTT: u64 = 100 * MILLISECOND;
/// The time that sites get to join, and to learn of each other, in microseconds.
const JOIN: u64 = 3 * SECOND;
/// The wall clock at the beginning, in microseconds since 1970.
const EPOCH: i64 = 1 << 50;
/// The only client of each site.
const CLIENT: ClientId = ClientId(1);

/// How slack is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strategy {
    /// Equally; bounds do not move.
    Equal,
    /// So that the first failure is expected as late as possible, by the true biases; bounds do not move.
    Optimal,
    /// As the paper: divided again when the treaty is new, and moved at a rate from then on.
    Predictive,
    /// The product: moved ahead of need, too.
    Slackline,
}

impl Strategy {
    /// All of them, in the order in which they are run.
    pub const ALL: [Self; 4] = [Self::Equal, Self::Optimal, Self::Predictive, Self::Slackline];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Optimal => "optimal",
            Self::Predictive => "predictive",
            Self::Slackline => "slackline",
        }
    }

    /// When sites move slack.
    pub(crate) fn slack(self) -> Slack {
        match self {
            Self::Equal | Self::Optimal => Slack::Fixed,
            Self::Predictive => Slack::Planned,
            Self::Slackline => Slack::Ahead,
        }
    }
}

impl std::str::FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.name() == text);
        found.ok_or_else(|| "there are equal, optimal, predictive and slackline".to_owned())
    }
}

/// Options of `bench voting`.
#[derive(Clone, Debug)]
pub struct VotingOptions {
    /// The numbers of stations; one run for each, and for each strategy.
    pub stations: Vec<usize>,
    /// The votes for A, of 100, at stations with an odd number and at those with an even one.
    pub bias: (u32, u32),
    /// The number of trials of each run.
    pub trials: u32,
    /// The strategies.
    pub strategies: Vec<Strategy>,
    /// The seed of the votes.
    pub seed: u64,
}

/// A vote: its time, in microseconds from the beginning of voting; its station; and if it is for A.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Vote {
    at: u64,
    station: usize,
    is_for_a: bool,
}

/// The votes of a trial, in the order of time.
fn votes(options: &VotingOptions, stations: usize, trial: u32) -> Vec<Vote> {
    let mut all = Vec::new();
    for station in 0..stations {
        let bias = if station % 2 == 0 { options.bias.0 } else { options.bias.1 };
        let mut rng = Rng::new(options.seed << 40 ^ u64::from(trial) << 8 ^ station as u64);
        let mut at = 0.0;
        loop {
            // Voters come independently of each other.
            at -= ((rng.draw() >> 11) as f64 / (1u64 << 53) as f64).max(1e-12).ln() / VOTES * SECOND as f64;
            if at >= (BEFORE + AFTER) as f64 {
                break;
            }
            all.push(Vote { at: at as u64, station, is_for_a: rng.below(100) < u64::from(bias) });
        }
    }
    all.sort_by_key(|vote| (vote.at, vote.station));
    all
}

/// One station: its site, and the session of its voters.
struct Station {
    node: Node,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    session: Option<(Incarnation, SessionId)>,
    sequence: u64,
    /// The votes for A less those for B that were counted here.
    margin: i64,
}

/// The stations of a trial, and the messages between them.
struct World {
    stations: Vec<Station>,
    now: u64,
    network: BTreeMap<(u64, u64), (usize, SiteId, PeerMessage)>,
    sent: u64,
    /// What was answered at the last input, or since.
    answers: Vec<(usize, Response)>,
}

/// What came of a trial.
#[derive(Clone, Debug)]
struct Trial {
    /// From the treaty to the first synchronization, in seconds; none if there was none.
    first_sync: Option<f64>,
    /// The true lead then.
    lead: Option<i64>,
    wrong: u64,
    votes: u64,
    queries: u64,
    messages: u64,
    gifts: u64,
    rebalances: u64,
}

fn site(at: usize) -> SiteId {
    SiteId::new(at as u16, 0)
}

fn counter(station: usize, candidate: &str) -> ObjectKey {
    ObjectKey::new(station as u16, format!("votes/{candidate}"))
}

impl World {
    fn new(count: usize, slack: Slack, seed: u64) -> Self {
        let members: Vec<SiteId> = (0..count).map(site).collect();
        let station = |at: usize| {
            let mut config = Config::new(site(at), members.clone());
            (config.epsilon, config.slack, config.new_storage) = (EPSILON, slack, true);
            let rows = BTreeMap::new();
            let node = Node::open(config, seed + at as u64, 0, &rows, Now { wall: EPOCH, mono: 0 });
            Station { node: node.expect("no storage"), rows, session: None, sequence: 0, margin: 0 }
        };
        let stations = (0..count).map(station).collect();
        let mut world = Self { stations, now: 0, network: BTreeMap::new(), sent: 0, answers: Vec::new() };
        world.run(JOIN);
        for at in 0..count {
            world.feed(at, Input::Request { client: CLIENT, request: Request::Open });
            match world.answers.pop() {
                Some((_, Response::Opened { incarnation, session, .. })) => {
                    world.stations[at].session = Some((incarnation, session));
                }
                other => panic!("a site has joined, and opens no session: {other:?}"),
            }
        }
        world
    }

    fn feed(&mut self, at: usize, input: Input<Node>) {
        let now = Now { wall: EPOCH + self.now as i64, mono: self.now };
        let Station { node, rows, .. } = &mut self.stations[at];
        let needed = node.working_set(now, &input);
        let view = View::prepare(needed, &Overlay::default(), &*rows).expect("in memory");
        let mut out = Vec::new();
        node.handle(now, input, &view, &mut out);
        for effect in out {
            match effect {
                Effect::Persist(batch) => {
                    for (key, value) in batch.iter() {
                        match value {
                            Some(value) => rows.insert(key.to_vec(), value.to_vec()),
                            None => rows.remove(key),
                        };
                    }
                }
                Effect::Send { to, message } => {
                    self.sent += 1;
                    let to = usize::from(to.region);
                    self.network.insert((self.now + RTT / 2, self.sent), (to, site(at), message));
                }
                Effect::Respond { response, .. } => self.answers.push((at, response)),
            }
        }
    }

    /// Lets time pass until `until`.
    fn run(&mut self, until: u64) {
        loop {
            let due = |at: usize| Some((self.stations[at].node.deadline()?, at));
            let tick = (0..self.stations.len()).filter_map(due).min();
            let message = self.network.first_key_value().map(|((at, _), _)| *at);
            let next = tick.map(|(at, _)| at).into_iter().chain(message).min().unwrap_or(u64::MAX);
            if next > until {
                break;
            }
            self.now = self.now.max(next);
            match tick {
                Some((at, station)) if message.is_none_or(|message| at < message) => self.feed(station, Input::Tick),
                _ => {
                    let (_, (to, from, message)) = self.network.pop_first().expect("looked at above");
                    self.feed(to, Input::Message { from, message });
                }
            }
        }
        self.now = self.now.max(until);
    }

    /// Commits a transaction at a station; its outcome, if that is there at once.
    fn commit(&mut self, at: usize, transaction: Transaction) -> Option<Outcome> {
        let station = &mut self.stations[at];
        let (incarnation, session) = station.session.expect("opened at first");
        station.sequence += 1;
        let sequence = station.sequence;
        let operation = Operation::Commit(Box::new(transaction));
        let operations = vec![Submission { sequence, timeout: 10 * SECOND, operation }];
        let batch = Batch { site: site(at), incarnation, session, low: sequence, operations };
        self.answers.clear();
        self.feed(at, Input::Request { client: CLIENT, request: Request::Batch(batch) });
        self.answers.drain(..).find_map(|(_, response)| match response {
            Response::Batch { answers, .. } => {
                // What is told of an earlier operation, for which nobody waits any more, is not this one's.
                answers.into_iter().find(|answer| answer.sequence == sequence).map(|answer| answer.outcome)
            }
            _ => None,
        })
    }

    /// Counts a vote; false if the station waits.
    fn vote(&mut self, vote: Vote) -> bool {
        let ObjectKey { home, name } = counter(vote.station, if vote.is_for_a { "a" } else { "b" });
        let part = Part { writes: vec![(name, Change::Add(1))], ..Part::default() };
        let home = Home { region: home, incarnation: Incarnation(0), part };
        let transaction = Transaction { homes: vec![home], max_wait: 10 * SECOND, ..Transaction::default() };
        match self.commit(vote.station, transaction) {
            Some(Outcome::Committed { .. }) => {
                self.stations[vote.station].margin += if vote.is_for_a { 1 } else { -1 };
                true
            }
            None => false,
            other => panic!("a vote is not counted: {other:?}"),
        }
    }

    /// The lead of A over all stations.
    fn lead(&self) -> i64 {
        self.stations.iter().map(|station| station.margin).sum()
    }

    /// Asks who leads, by the treaty; none if the station waits.
    fn query(&mut self, at: usize, key: &ObjectKey) -> Option<bool> {
        let gets = vec![key.clone()];
        let read = Read { token: 1, gets, scans: Vec::new(), fresh: true, upkeep: false, timeout: SECOND, claim: None };
        self.answers.clear();
        self.feed(at, Input::Request { client: CLIENT, request: Request::Read(Box::new(read)) });
        let found = self.answers.drain(..).find_map(|(_, response)| match response {
            Response::Read(mut reading) => reading.gets.pop(),
            _ => None,
        });
        let seen = found?.ok()?;
        let treaty = seen.value.as_ref().and_then(|value| Treaty::of_value(value).ok());
        let part = Part { reads: vec![(key.name.clone(), seen.version.number)], ..Part::default() };
        let home = Home { region: key.home, incarnation: seen.version.incarnation, part };
        match self.commit(at, Transaction { homes: vec![home], ..Transaction::default() }) {
            Some(Outcome::Committed { .. }) => Some(treaty.is_some_and(|treaty| treaty.is_valid)),
            _ => None,
        }
    }

    /// Has the treaty made that says who leads: true if A does, and by how much at least.
    fn make(&mut self, key: &ObjectKey, strategy: Strategy, bias: (u32, u32)) -> (bool, i64) {
        let count = self.stations.len();
        let a_leads = self.lead() >= 0;
        let least = 1.min(self.lead().abs());
        let margin = |station: usize| {
            let times = |candidate: &str, sign: i64| {
                Metric::Times(
                    if a_leads { sign } else { -sign },
                    Box::new(Metric::Counter(counter(station, candidate))),
                )
            };
            [times("a", 1), times("b", -1)]
        };
        let sum = Metric::Sum((0..count).flat_map(margin).collect());
        let statement = Statement::AtLeast(sum, least);
        let treaty = Treaty { nonce: 1, is_valid: true, retracts: 0, statement, tree: Tree::Flat };

        // The counters are read from the sites' storage: reading them takes a round trip, in which more votes come.
        let counts: BTreeMap<ObjectKey, i64> = (0..count)
            .flat_map(|station| [counter(station, "a"), counter(station, "b")])
            .map(|key| (key.clone(), self.count(&key)))
            .collect();
        let homes = (0..count as u16).map(|home| (home, Incarnation(1))).collect();
        let outlook = |station: usize, slack: i64| {
            let bias = f64::from(if station.is_multiple_of(2) { bias.0 } else { bias.1 }) / 100.0;
            let sign = if a_leads { 1.0 } else { -1.0 };
            let velocity = sign * (2.0 * bias - 1.0) * VOTES;
            let noise = 2.0 * (bias * (1.0 - bias) * VOTES).sqrt();
            let motion = Motion { velocity: (velocity * 1e6) as i64, noise: (noise * 1e6) as i64 };
            Outlook { slack, motion }
        };
        let by_bias = |clause: &Clause, slack: i128| {
            let first = |station: usize| if station == 0 { slack as i64 } else { 0 };
            let parts: Vec<Outlook> =
                clause.homes.keys().map(|home| usize::from(*home)).map(|at| outlook(at, first(at))).collect();
            fixed(&parts).into_iter().map(i128::from).collect()
        };
        let notes = match strategy {
            Strategy::Optimal => treaty.notes(key, &homes, &|key| counts[key], &by_bias),
            _ => treaty.notes(key, &homes, &|key| counts[key], &equally),
        };
        let notes = notes.expect("the one who leads leads");
        let nothing = Version { incarnation: Incarnation(1), number: 0 };
        let transaction = making(key, &treaty, notes, nothing, &homes);
        let at_once = self.commit(usize::from(key.home), transaction);
        assert!(at_once.is_none(), "several stations take part");
        (a_leads, least)
    }

    /// The number that a counter has come to.
    fn count(&self, key: &ObjectKey) -> i64 {
        let rows = self.stations[usize::from(key.home)].rows.iter();
        let mut counters = rows.filter_map(|(row, value)| counter_of_row(row, Some(value)));
        counters.find(|(_, name, _)| *name == key.name).map_or(0, |(_, _, count)| count)
    }
}

/// Runs one trial.
fn trial(options: &VotingOptions, stations: usize, strategy: Strategy, number: u32) -> Trial {
    let votes = votes(options, stations, number);
    let mut world = World::new(stations, strategy.slack(), options.seed ^ u64::from(number) << 20);
    let began = world.now;
    let mut outcome =
        Trial { first_sync: None, lead: None, wrong: 0, votes: 0, queries: 0, messages: 0, gifts: 0, rebalances: 0 };

    // Voting alone, then the treaty; and every station reads it once, so that it knows of it. That is not counted.
    let key = treaty_key(0, "leader");
    let mut next = votes.into_iter().peekable();
    let mut vote_until = |world: &mut World, until: u64| {
        while let Some(vote) = next.next_if(|vote| began + vote.at < until) {
            world.run(began + vote.at);
            if !world.vote(vote) {
                return Some(began + vote.at);
            }
            outcome.votes += 1;
        }
        world.run(until);
        None
    };
    assert!(vote_until(&mut world, began + BEFORE).is_none(), "there is no treaty yet");
    let (a_leads, least) = world.make(&key, strategy, options.bias);
    let mut sync = vote_until(&mut world, began + BEFORE + 3 * RTT);
    for at in 0..stations {
        if sync.is_none() {
            world.query(at, &key);
        }
    }
    sync = sync.or_else(|| vote_until(&mut world, began + BEFORE + 5 * RTT));
    let made = began + BEFORE + 5 * RTT;

    // From here on each vote and each query that waits ends the trial.
    let mut round = 0;
    while sync.is_none() && made + round * QUERY < began + BEFORE + AFTER {
        for at in 0..stations {
            let when = made + round * QUERY + at as u64 * QUERY / stations as u64;
            sync = vote_until(&mut world, when);
            if sync.is_some() {
                break;
            }
            match world.query(at, &key) {
                Some(holds) => {
                    outcome.queries += 1;
                    let lead = if a_leads { world.lead() } else { -world.lead() };
                    outcome.wrong += u64::from(holds && lead < least);
                }
                None => sync = Some(when),
            }
            if sync.is_some() {
                break;
            }
        }
        round += 1;
    }
    outcome.first_sync = sync.map(|at| at.saturating_sub(made) as f64 / SECOND as f64);
    outcome.lead = sync.map(|_| world.lead());
    outcome.messages = world.sent;
    for station in &world.stations {
        let now = Now { wall: EPOCH + world.now as i64, mono: world.now };
        for leaf in station.node.chapters().txns.leaves(now) {
            outcome.gifts += leaf.gifts + leaf.extensions;
            outcome.rebalances += leaf.rebalances;
        }
    }
    outcome
}

/// Runs `bench voting`, on two threads.
pub fn voting(options: &VotingOptions) -> Report {
    let mut runs = Vec::new();
    let mut series = Vec::new();
    for &stations in &options.stations {
        for &strategy in &options.strategies {
            let half = options.trials / 2;
            let several =
                |from: u32, to: u32| (from..to).map(|number| trial(options, stations, strategy, number)).collect();
            let trials: Vec<Trial> = std::thread::scope(|scope| {
                let other = scope.spawn(|| -> Vec<Trial> { several(half, options.trials) });
                let mut first: Vec<Trial> = several(0, half);
                first.extend(other.join().expect("a trial panicked"));
                first
            });
            series.push(Series::new(&format!("{} at {stations}", strategy.name()), distribution(&trials)));
            runs.push(run(strategy, stations, &trials));
        }
    }

    let verified = runs.iter().all(|run| run.figure("wrong_answers") == Some(0.0));
    let (odd, even) = options.bias;
    let paper = "figure 2: with predictive treaties under 1 % of trials synchronize; optimal nearly doubles the median of equal";
    Report {
        workload: "voting".into(),
        mode: Mode::Sim,
        seed: options.seed,
        data: "generated".into(),
        epsilon_us: EPSILON,
        cost_model: None,
        runs,
        verified,
        facts: vec![
            (
                "votes".into(),
                format!("100 a second at each station, {odd} and {even} of 100 for A; {} trials", options.trials),
            ),
            ("round trips".into(), "100 ms between any two stations".into()),
            ("paper".into(), paper.into()),
        ],
        figures: vec![Figure {
            name: "voting".into(),
            title: "Trials that have synchronized".into(),
            x: Axis::new("seconds from the treaty", Scale::Linear),
            y: Axis::new("share of trials", Scale::Linear),
            series,
        }],
    }
}

/// The share of trials that have synchronized by a time.
fn distribution(trials: &[Trial]) -> Vec<(f64, f64)> {
    let mut times: Vec<f64> = trials.iter().filter_map(|trial| trial.first_sync).collect();
    times.sort_by(f64::total_cmp);
    let share = |count: usize| count as f64 / trials.len().max(1) as f64;
    let last = (AFTER as f64 / SECOND as f64, share(times.len()));
    let steps = times.iter().enumerate().map(|(at, time)| (*time, share(at + 1)));
    [(0.0, 0.0)].into_iter().chain(steps).chain([last]).collect()
}

fn run(strategy: Strategy, stations: usize, trials: &[Trial]) -> Run {
    let longest = AFTER as f64 / SECOND as f64;
    let mut times: Vec<f64> = trials.iter().map(|trial| trial.first_sync.unwrap_or(longest)).collect();
    times.sort_by(f64::total_cmp);
    let median = times.get((times.len().max(1) - 1) / 2).copied().unwrap_or(longest);
    let sum = |of: fn(&Trial) -> u64| trials.iter().map(of).sum::<u64>();
    let first: Vec<Option<f64>> = trials.iter().map(|trial| trial.first_sync).collect();
    let leads: Vec<Option<i64>> = trials.iter().map(|trial| trial.lead).collect();
    let synchronized = trials.iter().filter(|trial| trial.first_sync.is_some()).count();

    let mut run = Run::new(strategy.name()).with("stations", stations as u64);
    run.label = Some(format!("{} {stations}", strategy.name()));
    (run.committed, run.local_ratio) = (sum(|trial| trial.votes + trial.queries), None);
    (run.gifts, run.rebalances) = (sum(|trial| trial.gifts), sum(|trial| trial.rebalances));
    run.wan_messages = Some(sum(|trial| trial.messages));
    run.with("trials", trials.len() as u64)
        .with("synchronized", synchronized as u64)
        .with("median_s", median)
        .with("first_sync_s", first)
        .with("lead_at_sync", leads)
        .with("wrong_answers", sum(|trial| trial.wrong))
}

/// Writes the votes that arrived at the first number of stations: `trial,time_us,station,candidate`.
pub fn write_events(options: &VotingOptions, path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    writeln!(out, "trial,time_us,station,candidate")?;
    let stations = options.stations.first().copied().unwrap_or(2);
    for number in 0..options.trials {
        for Vote { at, station, is_for_a } in votes(options, stations, number) {
            writeln!(out, "{},{at},{},{}", number + 1, station + 1, if is_for_a { "A" } else { "B" })?;
        }
    }
    out.flush()
}
