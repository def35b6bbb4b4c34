//! `bench quota`: a trace of demand against one quota that several regions share.
//!
//! The same events are played to three configurations: the product, the product with redistribution off (each site has its
//! part of the limit and nothing more), and an ideal central counter, which is the reference for refusals. The sites are
//! the real machines, in virtual time.
//!
//! **Local** is an acquire that its site answers in the very turn in which it arrives, granted or refused. One that has to
//! wait counts as not local, even if tokens that come back at its own site end the wait.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use slackline_core::api::{
    Batch, Hold, Operation, Outcome, Readiness, Request, Response, SESSION_WINDOW, Shown, Submission,
};
use slackline_core::clock::SECOND;
use slackline_core::id::{GrantId, Incarnation, SessionId, SiteId};
use slackline_core::machine::ClientId;
use slackline_core::node::{Metrics, Node};
use slackline_core::quota::Quota;
use slackline_sim::Costs;
use slackline_sim::world::{Host, Options, World};

use crate::central::{self, Tally};
use crate::demand;
use crate::figure::{Axis, Figure, Scale, Series};
use crate::histogram::Histogram;
use crate::report::{Latency, Mode, Report, Run};
use crate::rtt::{Matrix, MatrixError, Rtt};
use crate::trace::{Format, Kind, Trace, TraceError};

/// What `bench quota` is told.
#[derive(Clone, Debug)]
pub struct QuotaOptions {
    /// The trace to replay; none for generated demand.
    pub trace: Option<(PathBuf, Format)>,
    /// The quota's limit.
    pub limit: Limit,
    /// How many sites there are.
    pub sites: usize,
    /// How far they are from each other.
    pub rtt: Rtt,
    /// How much faster than it happened the trace is replayed, holds included.
    pub speed: f64,
    /// Only so many events.
    pub events: Option<usize>,
    /// What every random choice comes from.
    pub seed: u64,
}

impl Default for QuotaOptions {
    fn default() -> Self {
        Self {
            trace: None,
            limit: Limit::Auto(1.05),
            sites: 5,
            rtt: Rtt::Gcp,
            speed: 1.0,
            events: None,
            seed: 1,
        }
    }
}

/// How the limit is chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    /// So many tokens.
    Tokens(i64),
    /// This many times the tight limit (see [`central::tight_limit`]).
    Auto(f64),
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a limit: use a number of tokens, or auto:F with a factor like auto:1.05");
        match text.strip_prefix("auto:") {
            Some(factor) => {
                let factor = factor.parse().ok().filter(|factor| (0.01..=100.0).contains(factor));
                factor.map(Self::Auto).ok_or_else(wrong)
            }
            None => text.parse().ok().filter(|tokens| *tokens > 0).map(Self::Tokens).ok_or_else(wrong),
        }
    }
}

/// Why `bench quota` found nothing out.
#[derive(Debug)]
pub enum QuotaError {
    /// The trace cannot be used.
    Trace(TraceError),
    /// The round trips cannot be used.
    Rtt(MatrixError),
    /// An option makes no sense.
    Option(String),
    /// The books are wrong after a run: a bug of Slackline.
    Books {
        /// The configuration.
        config: String,
        /// What does not add up.
        what: String,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(error) => error.fmt(f),
            Self::Rtt(error) => error.fmt(f),
            Self::Option(what) => f.write_str(what),
            Self::Books { config, what } => {
                write!(f, "the books are wrong after the run {config}: {what}; this is a bug, report it with the options")
            }
        }
    }
}

impl std::error::Error for QuotaError {}

/// The events to play, placed at sites, with the limit that was chosen for them.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The events.
    pub trace: Trace,
    /// The limit.
    pub limit: i64,
    /// The tight limit, if the limit came from it.
    pub tight: Option<i64>,
    /// What an ideal central counter does at that limit.
    pub central: Tally,
}

/// Runs `bench quota` in virtual time.
pub fn quota(options: &QuotaOptions) -> Result<Report, QuotaError> {
    let matrix = Matrix::new(&options.rtt, options.sites).map_err(QuotaError::Rtt)?;
    let prepared = prepare(options)?;
    let costs = Costs::default();
    let (ours, ours_drawn) = play_and_draw(&prepared, &matrix, costs, options.seed, true)?;
    let (without, without_drawn) = play_and_draw(&prepared, &matrix, costs, options.seed, false)?;
    let runs = vec![ours, without, central_run(&prepared)];
    let facts = facts(&prepared, &matrix, &runs);
    let figures = figures(&prepared, &[("slackline", &ours_drawn), ("no redistribution", &without_drawn)]);
    Ok(Report {
        workload: "quota".into(),
        mode: Mode::Sim,
        seed: options.seed,
        data: prepared.trace.data.clone(),
        epsilon_us: EPSILON,
        cost_model: Some(costs),
        runs,
        verified: true,
        facts,
        figures,
    })
}

/// Reads or generates the events, and chooses the limit.
pub fn prepare(options: &QuotaOptions) -> Result<Prepared, QuotaError> {
    let wrong = |what: &str| Err(QuotaError::Option(what.into()));
    if !(1..=64).contains(&options.sites) {
        return wrong("the number of sites must be 1 to 64: use --sites 5");
    }
    if !(options.speed > 0.0 && options.speed <= 1e9) {
        return wrong("the speed must be above 0 and at most 10^9: use --speed 20");
    }
    if options.events == Some(0) {
        return wrong("there must be events: use --events 10000, or leave it out for all");
    }
    let mut trace = match &options.trace {
        Some((path, format)) => Trace::read(path, *format).map_err(QuotaError::Trace)?,
        None => demand::periodic(options.events.unwrap_or(GENERATED), options.sites, options.seed),
    };
    if let Some(events) = options.events {
        trace.truncate(events);
    }
    trace.speed_up(options.speed);
    trace.place(options.sites, options.seed);
    Ok(choose_limit(trace, options.limit))
}

/// Chooses the limit for events that have their sites.
pub fn choose_limit(trace: Trace, limit: Limit) -> Prepared {
    let (limit, tight) = match limit {
        Limit::Tokens(tokens) => (tokens, None),
        Limit::Auto(factor) => {
            let tight = central::tight_limit(&trace);
            (((tight as f64 * factor).round() as i64).max(1), Some(tight))
        }
    };
    Prepared { central: central::replay(&trace, limit), trace, limit, tight }
}

/// Events that are generated unless told otherwise: as many as the paper's main experiment has.
const GENERATED: usize = 820_000;
/// How long an acquire may wait for tokens, in microseconds.
const TIMEOUT: u64 = 2_000_000;
/// Sessions of each site's client; one has room for [`SESSION_WINDOW`] operations on their way.
const SESSIONS: usize = 32;
/// Into how many parts figures divide a trace's time.
const PARTS: usize = 240;
/// The quota's name.
const NAME: &str = "tokens";
/// The client that opens sessions, creates the quota and asks for totals.
const ADMIN: ClientId = ClientId(1 << 62);
/// The longest that sites may take to become ready, or to come to rest, in microseconds.
const REST: u64 = 120 * SECOND;
/// The bound on each clock's error that the sites are told, in microseconds.
const EPSILON: u64 = 10_000;

/// Plays events to sites in virtual time, and checks the books.
pub fn play(
    prepared: &Prepared,
    matrix: &Matrix,
    costs: Costs,
    seed: u64,
    redistribute: bool,
) -> Result<Run, QuotaError> {
    play_and_draw(prepared, matrix, costs, seed, redistribute).map(|(run, _)| run)
}

/// What figures need of a run.
struct Drawn {
    latencies: Histogram,
    timeline: Vec<Moment>,
}

fn play_and_draw(
    prepared: &Prepared,
    matrix: &Matrix,
    costs: Costs,
    seed: u64,
    redistribute: bool,
) -> Result<(Run, Drawn), QuotaError> {
    let name = if redistribute { "slackline" } else { "no-redistribution" };
    let wrong = |what| QuotaError::Books { config: name.into(), what };
    let mut play = Play::prepare(prepared, matrix, costs, seed, redistribute);
    let (inputs, sent, syncs) = (play.world.inputs(), play.world.wan_messages(), play.world.syncs());
    let began = Instant::now();
    play.play().map_err(wrong)?;
    let elapsed = began.elapsed().as_secs_f64();
    let inputs = play.world.inputs() - inputs;
    let (sent, syncs) = (play.world.wan_messages() - sent, play.world.syncs() - syncs);
    let sum = |part: fn(&Metrics) -> u64| -> u64 { play.nodes().map(|node| part(node.metrics())).sum() };
    let (reactive, proactive) = (sum(|metrics| metrics.rounds_reactive), sum(|metrics| metrics.rounds_proactive));
    let shown = play.verify().map_err(wrong)?;
    let Play { players: play, .. } = play;

    let mut run = Run::new(name);
    run.committed = play.granted + play.released;
    run.refused = play.refused + play.refused_releases;
    run.unknown = play.unknown;
    run.latency_ms = Latency::from(&play.latencies);
    run.local_ratio = play.local as f64 / prepared.trace.acquires().max(1) as f64;
    run.rebalances = shown.rebalances;
    run.gifts = shown.gifts;
    run.wan_messages = sent;
    let ratio = play.refused as f64 / prepared.central.refused.max(1) as f64;
    let run = run
        .took((play.last_answer - play.began) as f64 / SECOND as f64)
        .with("limit", prepared.limit)
        .with("refused_acquires", play.refused)
        .with("refused_of_central", (ratio * 1e4).round() / 1e4)
        .with("rounds_reactive", reactive)
        .with("rounds_proactive", proactive)
        .with("syncs", syncs)
        .with("sim_inputs_per_s", (inputs as f64 / elapsed).round());
    Ok((run, Drawn { latencies: play.latencies, timeline: play.timeline }))
}

fn central_run(prepared: &Prepared) -> Run {
    let Tally { granted, refused, released, refused_releases, peak } = prepared.central;
    let mut run = Run::new("central");
    run.committed = granted + released;
    run.refused = refused + refused_releases;
    let run = run.took(prepared.trace.length() as f64 / 1e6);
    let run = run.with("limit", prepared.limit).with("refused_acquires", refused).with("peak", peak);
    match prepared.tight {
        Some(tight) => run.with("tight_limit", tight),
        None => run,
    }
}

fn facts(prepared: &Prepared, matrix: &Matrix, runs: &[Run]) -> Vec<(String, String)> {
    let acquires = prepared.trace.acquires();
    let mut limit = format!("{} tokens; at it an ideal central counter refuses {} of {acquires} acquires", prepared.limit, prepared.central.refused);
    if let Some(tight) = prepared.tight {
        limit += &format!("; the tight limit, where it refuses under 1 %, is {tight}");
    }
    let [ours, without, ..] = runs else { unreachable!("three runs") };
    let fewer = 100.0 * (1.0 - without.committed as f64 / ours.committed.max(1) as f64);
    let at = &ours.latency_ms;
    let mut facts = vec![
        ("round trips".to_owned(), matrix.describe()),
        ("limit".to_owned(), limit),
        (
            "latency".to_owned(),
            format!(
                "ours p90 {:.2} ms, p95 {:.2} ms, p99 {:.2} ms; Samya with the majority version 1.40, 10.2 and 65.1 ms on \
                 the same regions of GCP with a demand that is not to be had (table 2b)",
                at.p90, at.p95, at.p99
            ),
        ),
        (
            "commits".to_owned(),
            format!("without redistribution {fewer:.1} % fewer; in the paper about 14 % fewer (figure 3e)"),
        ),
    ];
    if prepared.trace.skipped > 0 {
        facts.push(("left out".to_owned(), format!("{} lines that ask for no tokens", prepared.trace.skipped)));
    }
    facts
}

fn figures(prepared: &Prepared, runs: &[(&str, &Drawn)]) -> Vec<Figure> {
    let minutes = |part: usize| (part + 1) as f64 * prepared.trace.length() as f64 / PARTS as f64 / 60e6;
    let over_time = |value: &dyn Fn(&Moment) -> f64, drawn: &Drawn| -> Vec<(f64, f64)> {
        drawn.timeline.iter().enumerate().map(|(part, moment)| (minutes(part), value(moment))).collect()
    };
    let time = || Axis::new("time in minutes", Scale::Linear);
    let limit = prepared.limit as f64;
    let mut in_use: Vec<Series> =
        runs.iter().map(|(name, drawn)| Series::new(name, over_time(&|moment| moment.in_use as f64, drawn))).collect();
    in_use.push(Series::reference("limit", vec![(0.0, limit), (minutes(PARTS - 1), limit)]));
    let refused = |drawn: &Drawn| {
        let sum = std::cell::Cell::new(0.0);
        over_time(&|moment| sum.replace(sum.get() + moment.refused as f64) + moment.refused as f64, drawn)
    };
    let mut refusals: Vec<Series> = runs.iter().map(|(name, drawn)| Series::new(name, refused(drawn))).collect();
    let central = prepared.central.refused as f64;
    let end = vec![(0.0, central), (minutes(PARTS - 1), central)];
    refusals.push(Series::reference("an ideal central counter, in the end", end));
    vec![
        latency_figure("quota-latency", runs.iter().map(|(name, drawn)| (*name, &drawn.latencies))),
        Figure {
            name: "quota-in-use".into(),
            title: "Tokens in use over all regions".into(),
            x: time(),
            y: Axis::new("tokens", Scale::Linear),
            series: in_use,
        },
        Figure {
            name: "quota-refused".into(),
            title: "Acquires refused so far".into(),
            x: time(),
            y: Axis::new("acquires", Scale::Linear),
            series: refusals,
        },
    ]
}

/// The share of operations that a latency covers.
pub(crate) fn latency_figure<'a>(name: &str, runs: impl Iterator<Item = (&'a str, &'a Histogram)>) -> Figure {
    let line = |histogram: &Histogram| histogram.shares().into_iter().map(|(nanos, share)| (nanos as f64 / 1e6, share));
    Figure {
        name: name.into(),
        title: "Operations answered within a time".into(),
        x: Axis::new("latency in milliseconds", Scale::Log),
        y: Axis::new("share of operations", Scale::Nines),
        series: runs.map(|(name, histogram)| Series::new(name, line(histogram).collect())).collect(),
    }
}

/// One configuration at play.
struct Play<'a> {
    world: World,
    players: Players<'a>,
    limit: i64,
}

/// The clients of all sites, and what they know.
struct Players<'a> {
    trace: &'a Trace,
    /// Round trip between a client and its site in microseconds, by site.
    near: Vec<u64>,
    clients: Vec<SiteClient>,
    /// By event.
    asked: Vec<Asked>,
    /// By job.
    jobs: Vec<Job>,
    began: u64,
    last_answer: u64,
    /// Operations on their way.
    open: usize,
    granted: u64,
    refused: u64,
    released: u64,
    refused_releases: u64,
    unknown: u64,
    local: u64,
    latencies: Histogram,
    /// What was granted and given back, by site.
    ledger: Vec<Ledger>,
    /// Tokens granted and tokens in use, by part of the trace's time.
    timeline: Vec<Moment>,
    /// The last response to [`ADMIN`].
    told: Option<Response>,
}

/// A site's client.
#[derive(Debug, Default)]
struct SiteClient {
    sessions: Vec<Session>,
    current: usize,
}

#[derive(Debug)]
struct Session {
    site: SiteId,
    incarnation: Incarnation,
    id: SessionId,
    /// The lowest sequence whose outcome is awaited.
    low: u64,
    /// From `low` on: whether it is answered.
    answered: VecDeque<bool>,
}

#[derive(Clone, Copy, Default)]
struct Asked {
    sent: u64,
    session: u16,
    waited: bool,
}

#[derive(Clone, Copy, Default)]
struct Job {
    state: JobState,
    /// The event that ends it, if that came before its grant.
    ended: Option<u32>,
}

#[derive(Clone, Copy, Default)]
enum JobState {
    #[default]
    Asked,
    Granted(GrantId),
    Over,
}

/// What happened in one part of a trace's time.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    /// Acquires refused.
    refused: u64,
    /// Tokens in use at its end.
    in_use: i128,
}

#[derive(Clone, Copy, Default)]
struct Ledger {
    granted: u128,
    released: u128,
    /// Granted for a time.
    held: u128,
    /// When the last hold ends.
    held_until: u64,
}

impl<'a> Play<'a> {
    fn prepare(prepared: &'a Prepared, matrix: &Matrix, costs: Costs, seed: u64, redistribute: bool) -> Self {
        let sites = matrix.sites();
        let row = |from: usize| (0..sites).map(|to| matrix.micros(from, to)).collect();
        let rtt = (0..sites).map(row).collect();
        let world = World::new(Options { rtt, costs, epsilon: EPSILON, redistribute, seed, restarts: false });
        let players = Players {
            trace: &prepared.trace,
            near: (0..sites).map(|site| matrix.micros(site, site)).collect(),
            clients: (0..sites).map(|_| SiteClient::default()).collect(),
            asked: vec![Asked::default(); prepared.trace.events.len()],
            jobs: vec![Job::default(); prepared.trace.jobs as usize],
            began: 0,
            last_answer: 0,
            open: 0,
            granted: 0,
            refused: 0,
            released: 0,
            refused_releases: 0,
            unknown: 0,
            local: 0,
            latencies: Histogram::default(),
            ledger: vec![Ledger::default(); sites],
            timeline: vec![Moment::default(); PARTS],
            told: None,
        };
        let mut play = Self { world, players, limit: prepared.limit };
        play.settle();
        (0..sites).for_each(|site| play.open_sessions(site));
        play.create();
        play
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        (0..self.world.len()).map(|site| self.world.node(site).expect("no site fails here"))
    }

    fn advance(&mut self, until: u64) {
        self.world.run(&mut self.players, until);
    }

    /// Lets time pass until every site serves.
    fn settle(&mut self) {
        while !self.nodes().all(|node| node.readiness() == Readiness::Ready) {
            assert!(self.world.now() < REST, "the sites must become ready");
            self.advance(self.world.now() + SECOND / 10);
        }
    }

    /// Asks a site as [`ADMIN`], and lets time pass until there is an answer.
    fn ask(&mut self, site: usize, request: Request) -> Response {
        self.world.request(self.world.now(), site, ADMIN, request);
        let patience = self.world.now() + REST;
        loop {
            match self.players.told.take() {
                Some(Response::Batch { answers, .. }) if answers.is_empty() => {}
                Some(response) => return response,
                None => {}
            }
            assert!(self.world.now() < patience, "a site that is asked must answer");
            self.advance(self.world.now() + SECOND / 1_000);
        }
    }

    fn open_sessions(&mut self, site: usize) {
        for _ in 0..SESSIONS {
            match self.ask(site, Request::Open) {
                Response::Opened { site: id, incarnation, session } => {
                    let session = Session { site: id, incarnation, id: session, low: 1, answered: VecDeque::new() };
                    self.players.clients[site].sessions.push(session);
                }
                other => panic!("a ready site opens sessions, and does not say {other:?}"),
            }
        }
    }

    /// Creates the quota at the first site, and waits until every site has its share.
    fn create(&mut self) {
        let operation = Operation::Create { quota: NAME.into(), limit: self.limit };
        let request = self.players.clients[0].sessions[0].submit(operation, 10_000_000);
        match self.ask(0, request) {
            Response::Batch { answers, .. } => {
                assert_eq!(answers[0].outcome, Outcome::Created { limit: self.limit }, "the quota must be created");
                self.players.clients[0].sessions[0].answer(answers[0].sequence);
            }
            other => panic!("a creation is answered, and not by {other:?}"),
        }
        self.advance(self.world.now() + 2 * SECOND);
        self.players.began = self.world.now();
        self.players.last_answer = self.world.now();
    }

    /// Plays all events, and waits for all answers.
    fn play(&mut self) -> Result<(), String> {
        let (trace, began) = (self.players.trace, self.players.began);
        for (order, event) in trace.events.iter().enumerate() {
            self.advance(began + event.at);
            self.players.happen(&mut self.world, order, event.site.expect("every event has its place"), event.kind);
            if order % 1024 == 0 {
                self.never_above_the_limit()?;
            }
            let part = self.players.part(event.at);
            self.players.timeline[part].in_use = self.in_use();
        }
        let patience = self.world.now() + TIMEOUT + 60 * SECOND;
        while self.players.open > 0 && self.world.now() < patience {
            self.advance(self.world.now() + SECOND / 10);
        }
        match self.players.open {
            0 => Ok(()),
            open => Err(format!("{open} operations were never answered")),
        }
    }

    fn in_use(&self) -> i128 {
        let used = |node: &Node| node.quotas().find(NAME).map_or((0, 0), |quota| quota.used());
        self.nodes().map(used).map(|(acquired, released)| acquired as i128 - released as i128).sum()
    }

    fn never_above_the_limit(&self) -> Result<(), String> {
        let in_use = self.in_use();
        if in_use > i128::from(self.limit) {
            return Err(format!("{in_use} tokens are in use of a limit of {}", self.limit));
        }
        Ok(())
    }

    /// Lets all holds end and all gifts arrive; then the books must agree: each site's with what its clients know, and all
    /// together with the limit.
    fn verify(&mut self) -> Result<Shown, String> {
        self.never_above_the_limit()?;
        let held_until = self.players.ledger.iter().map(|ledger| ledger.held_until).max().unwrap_or(0);
        self.advance(self.world.now().max(held_until) + 2 * SECOND);
        let patience = self.world.now() + REST;
        while !self.is_at_rest() {
            if self.world.now() > patience {
                return Err("tokens are still under way minutes after the last request".into());
            }
            self.advance(self.world.now() + SECOND);
        }
        let mut tokens = 0i128;
        for (site, (node, ledger)) in self.nodes().zip(&self.players.ledger).enumerate() {
            let quota = node.quotas().find(NAME).ok_or("a site does not know the quota")?;
            let (granted, back) = quota.used();
            if (granted, back) != (ledger.granted, ledger.released + ledger.held) {
                return Err(format!(
                    "site {site} has granted {granted} tokens and taken back {back}, but its clients know of {} and {}",
                    ledger.granted,
                    ledger.released + ledger.held
                ));
            }
            tokens += i128::from(quota.avantan().share.tokens);
        }
        let in_use = self.in_use();
        if tokens + in_use != i128::from(self.limit) {
            return Err(format!("{tokens} tokens at the sites and {in_use} in use are not {}", self.limit));
        }
        let shown = match self.ask(0, Request::Show { quota: NAME.into(), timeout: 5_000_000 }) {
            Response::Shown(shown) => shown.map_err(|refusal| format!("`show` is refused: {refusal}"))?,
            other => return Err(format!("`show` is answered by {other:?}")),
        };
        if (i128::from(shown.in_use_min), i128::from(shown.in_use_max)) != (in_use, in_use) {
            return Err(format!("`show` says {} to {} in use, not {in_use}", shown.in_use_min, shown.in_use_max));
        }
        Ok(shown)
    }

    /// Whether no gift and no round is under way.
    fn is_at_rest(&self) -> bool {
        let quotas: Option<Vec<&Quota>> = self.nodes().map(|node| node.quotas().find(NAME)).collect();
        let Some(quotas) = quotas else { return false };
        let newest = quotas.iter().map(|quota| quota.avantan().share.applied).max();
        quotas.iter().enumerate().all(|(from, here)| {
            let share = &here.avantan().share;
            let arrived = quotas.iter().enumerate().all(|(to, there)| there.received(from).1 == here.given(to).1);
            share.round.is_none() && Some(share.applied) == newest && arrived
        })
    }
}

impl Host for Players<'_> {
    fn wake(&mut self, _: &mut World, _: u64) {}

    fn respond(&mut self, world: &mut World, site: usize, client: ClientId, response: Response) {
        if client == ADMIN {
            self.told = Some(response);
            return;
        }
        let Response::Batch { answers, .. } = response else { return };
        let order = client.0 as usize;
        match answers.into_iter().next() {
            None => self.asked[order].waited = true,
            Some(answer) => {
                let session = usize::from(self.asked[order].session);
                self.clients[site].sessions[session].answer(answer.sequence);
                self.answered(world, order, site, answer.outcome);
            }
        }
    }
}

impl Players<'_> {
    /// The part of the trace's time that a moment belongs to.
    fn part(&self, at: u64) -> usize {
        (at as u128 * PARTS as u128 / (u128::from(self.trace.length()) + 1)) as usize
    }

    fn happen(&mut self, world: &mut World, order: usize, site: usize, kind: Kind) {
        let quota = || NAME.to_owned();
        let operation = match kind {
            Kind::Acquire { amount } => Operation::Acquire { quota: quota(), amount, hold: Hold::Counted },
            Kind::Hold { amount, micros } => Operation::Acquire { quota: quota(), amount, hold: Hold::For(micros) },
            Kind::Begin { amount, .. } => Operation::Acquire { quota: quota(), amount, hold: Hold::Open },
            Kind::Release { amount } => Operation::Release { quota: quota(), amount },
            Kind::End { job } => {
                let job = &mut self.jobs[job as usize];
                match job.state {
                    JobState::Granted(grant) => {
                        job.state = JobState::Over;
                        Operation::ReleaseGrant { grant }
                    }
                    // A job that waits gives back when it is granted; one that was refused has nothing to give back.
                    JobState::Asked => {
                        job.ended = Some(order as u32);
                        return;
                    }
                    JobState::Over => return,
                }
            }
        };
        self.submit(world, order, site, operation);
    }

    fn submit(&mut self, world: &mut World, order: usize, site: usize, operation: Operation) {
        let client = &mut self.clients[site];
        let mut turns = (0..SESSIONS).map(|turn| (client.current + turn) % SESSIONS);
        let free = turns.find(|&session| (client.sessions[session].answered.len() as u64) < SESSION_WINDOW);
        let Some(session) = free else {
            // The client is overloaded: nothing is sent.
            match operation {
                Operation::Acquire { .. } => self.refused += 1,
                _ => self.refused_releases += 1,
            }
            return;
        };
        client.current = session;
        let request = client.sessions[session].submit(operation, TIMEOUT);
        self.asked[order] = Asked { sent: world.now(), session: session as u16, waited: false };
        self.open += 1;
        world.request(world.now(), site, ClientId(order as u64), request);
    }

    fn answered(&mut self, world: &mut World, order: usize, site: usize, outcome: Outcome) {
        let kind = self.trace.events[order].kind;
        let Asked { sent, waited, .. } = self.asked[order];
        let now = world.now();
        self.open -= 1;
        self.last_answer = now;
        self.latencies.note((now - sent + self.near[site]) * 1_000);
        self.local += u64::from(kind.wanted().is_some() && !waited);
        let ledger = &mut self.ledger[site];
        match outcome {
            Outcome::Granted { grant, .. } => {
                self.granted += 1;
                let amount = kind.wanted().expect("only an acquire is granted") as u128;
                ledger.granted += amount;
                if let Kind::Hold { micros, .. } = kind {
                    ledger.held += amount;
                    ledger.held_until = ledger.held_until.max(now + micros);
                }
                if let Kind::Begin { job, .. } = kind {
                    let job = &mut self.jobs[job as usize];
                    job.state = JobState::Granted(grant);
                    if let Some(end) = job.ended {
                        job.state = JobState::Over;
                        self.submit(world, end as usize, site, Operation::ReleaseGrant { grant });
                    }
                }
            }
            Outcome::Released { amount } => {
                self.released += 1;
                ledger.released += amount as u128;
            }
            Outcome::Refused(_) if kind.wanted().is_some() => {
                self.refused += 1;
                let part = self.part(self.trace.events[order].at);
                self.timeline[part].refused += 1;
                if let Kind::Begin { job, .. } = kind {
                    self.jobs[job as usize].state = JobState::Over;
                }
            }
            Outcome::Refused(_) => self.refused_releases += 1,
            Outcome::Unknown(_) | Outcome::Created { .. } | Outcome::Deleted => self.unknown += 1,
        }
    }
}

impl Session {
    fn submit(&mut self, operation: Operation, timeout: u64) -> Request {
        let sequence = self.low + self.answered.len() as u64;
        self.answered.push_back(false);
        let operations = vec![Submission { sequence, timeout, operation }];
        let Self { site, incarnation, id, low, .. } = *self;
        Request::Batch(Batch { site, incarnation, session: id, low, operations })
    }

    fn answer(&mut self, sequence: u64) {
        self.answered[(sequence - self.low) as usize] = true;
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.low += 1;
        }
    }
}
