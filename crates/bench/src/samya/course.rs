//! The runs of an experiment: what is asked in each, when what fails, and by what they differ.

use std::path::PathBuf;

use slackline_core::stats::Rng;

use super::ask::Fault;
use super::clients::Work;
use super::config::Config;
use super::experiment::Experiment;
use super::geography::{Globe, REGIONS};
use super::ledger::Phase;
use super::script::Script;
use crate::central::{self, Tally};
use crate::demand;
use crate::quota::{Limit, QuotaError, choose_limit};
use crate::rtt::Rtt;
use crate::series;
use crate::trace::{Event, Format, Kind, Trace};

/// The paper's limit.
const LIMIT: i64 = 5_000;
/// The limit of `small`.
const SMALL: i64 = 200;
/// A request of a region comes at its further sites up to so much earlier or later, in microseconds.
const MOVED: u64 = 30_000_000;
/// Operations of generated demand in a second, over five regions.
const PER_SECOND: f64 = 228.0;

/// Options of `bench samya`.
#[derive(Clone, Debug)]
pub struct SamyaOptions {
    /// The experiment.
    pub experiment: Experiment,
    /// The configurations; none for those of the experiment.
    pub configs: Vec<Config>,
    /// The trace to replay; none for generated demand.
    pub trace: Option<(PathBuf, Format)>,
    /// The limit; none for the experiment's own.
    pub limit: Option<Limit>,
    /// The round trips.
    pub rtt: Rtt,
    /// The factor by which the trace is replayed faster than it happened.
    pub speed: f64,
    /// The callers of each region that wait for answers; none if nobody does.
    pub callers: Option<usize>,
    /// The numbers of quotas; none for those of the experiment.
    pub quotas: Vec<u64>,
    /// The seconds that are played; none for as many as the experiment has.
    pub seconds: Option<f64>,
    /// The seed of every random choice.
    pub seed: u64,
}

impl SamyaOptions {
    /// An experiment as it is run unless told otherwise.
    pub fn new(experiment: Experiment) -> Self {
        Self {
            experiment,
            configs: Vec::new(),
            trace: None,
            limit: None,
            rtt: Rtt::Gcp,
            speed: 1.0,
            callers: None,
            quotas: Vec::new(),
            seconds: None,
            seed: 1,
        }
    }

    /// The configurations to run.
    pub(super) fn chosen(&self) -> Vec<Config> {
        if self.configs.is_empty() { self.experiment.usual().to_vec() } else { self.configs.clone() }
    }

    /// The seconds that are played.
    pub(super) fn played(&self) -> f64 {
        self.seconds.unwrap_or(self.experiment.seconds())
    }

    /// Refuses what makes no sense together.
    pub(super) fn check(&self) -> Result<(), QuotaError> {
        let wrong = |what: String| Err(QuotaError::Option(what));
        let experiment = self.experiment;
        for config in &self.configs {
            if let Some(why) = experiment.excludes(*config) {
                return wrong(format!("{experiment} does not run {config}: {why}"));
            }
        }
        if !experiment.has_trace() && (self.trace.is_some() || self.speed != 1.0) {
            return wrong(format!("{experiment} has demand of its own: leave --trace and --speed out"));
        }
        if experiment.has_quotas() && self.callers.is_some() {
            return wrong(format!("{experiment} has no callers: leave --callers out"));
        }
        if self.limit.is_some() && (experiment.has_quotas() || experiment == Experiment::Limit) {
            return wrong(format!("{experiment} has limits of its own: leave --limit out"));
        }
        if matches!(self.limit, Some(Limit::Auto(_))) && !experiment.has_trace() && experiment != Experiment::Sites {
            return wrong(format!("{experiment} has no trace that tells a limit: give --limit as a number of tokens"));
        }
        if !self.quotas.is_empty() && !experiment.has_quotas() {
            return wrong(format!("{experiment} has one quota: leave --quotas out"));
        }
        if self.quotas.iter().any(|quotas| !(1..=1_000_000).contains(quotas)) {
            return wrong("--quotas is from 1 to 1000000".into());
        }
        if self.seconds.is_some() && experiment == Experiment::Storm {
            return wrong("storm ends when all have what they asked for: leave --seconds out".into());
        }
        if self.callers.is_some_and(|callers| !(1..=1_000).contains(&callers)) {
            return wrong("--callers is from 1 to 1000".into());
        }
        if self.speed == 1.0 || experiment != Experiment::Rate {
            return Ok(());
        }
        wrong("rate varies the speed itself: leave --speed out".into())
    }
}

/// What is asked in runs that may be compared.
#[derive(Clone, Debug)]
pub(super) struct Course {
    /// By what it differs from the others of its experiment.
    pub(super) x: Option<u64>,
    /// The trace; none if callers follow a script.
    pub(super) trace: Option<Trace>,
    script: Option<(Script, u64)>,
    callers: Option<usize>,
    pub(super) sites: usize,
    pub(super) limit: i64,
    /// The tight limit, if the limit came from it.
    pub(super) tight: Option<i64>,
    /// The outcomes at an ideal counter that takes no time, and how many acquires find it with less than a hundredth of its tokens.
    pub(super) ideal: Option<(Tally, u64)>,
    pub(super) faults: Vec<(u64, Fault)>,
    pub(super) phases: Vec<Phase>,
}

impl Course {
    /// What clients do.
    pub(super) fn work(&self) -> Work<'_> {
        match (&self.trace, self.script) {
            (Some(trace), _) => Work::Trace(trace, self.callers),
            (None, Some((script, length))) => Work::Script(script, self.callers, length),
            (None, None) => unreachable!("there is a trace or a script"),
        }
    }

    /// The time of the run, in microseconds.
    pub(super) fn length(&self) -> u64 {
        match self.work() {
            // In whole seconds: the last event comes a little before the end.
            Work::Trace(trace, _) => trace.length().div_ceil(1_000_000) * 1_000_000,
            Work::Script(_, _, length) => length,
        }
    }

    /// A trace, and the limit for it.
    fn traced(options: &SamyaOptions, trace: Trace, limit: Limit) -> Self {
        let (limit, tight) = match limit {
            // Looked for in the trace as it is: a limit that fits one trace is far too large or too small for another.
            Limit::Auto(_) => {
                let prepared = choose_limit(trace.clone(), limit);
                (prepared.limit, prepared.tight)
            }
            Limit::Tokens(tokens) => (tokens, None),
        };
        let mut scarce = 0;
        let ideal = central::replay_and_look(&trace, limit, |free| scarce += u64::from(100 * free < limit));
        Self {
            x: None,
            trace: Some(trace),
            script: None,
            callers: options.callers,
            sites: REGIONS,
            limit,
            tight,
            ideal: Some((ideal, scarce)),
            faults: Vec::new(),
            phases: Vec::new(),
        }
    }

    /// Callers that follow a script.
    fn scripted(options: &SamyaOptions, script: Script, limit: i64) -> Self {
        let limit = match options.limit {
            Some(Limit::Tokens(tokens)) => tokens,
            _ => limit,
        };
        Self {
            x: None,
            trace: None,
            script: Some((script, (options.played() * 1e6) as u64)),
            callers: options.callers,
            sites: REGIONS,
            limit,
            tight: None,
            ideal: None,
            faults: Vec::new(),
            phases: Vec::new(),
        }
    }

    fn at(self, x: u64) -> Self {
        Self { x: Some(x), ..self }
    }
}

/// The runs of an experiment about one quota.
pub(super) fn courses(options: &SamyaOptions, globe: &Globe) -> Result<Vec<Course>, QuotaError> {
    let experiment = options.experiment;
    let limit = options.limit.unwrap_or(Limit::Tokens(LIMIT));
    let points = experiment.points().iter().copied();
    let traced = |trace: Trace| Course::traced(options, trace, limit);
    Ok(match experiment {
        Experiment::Latency | Experiment::Throughput | Experiment::Bounds | Experiment::Prediction => {
            vec![traced(demand(options, globe)?)]
        }
        Experiment::Crash => vec![crashing(traced(demand(options, globe)?))],
        Experiment::Partition => vec![parting(traced(demand(options, globe)?))],
        Experiment::Limit => {
            let trace = demand(options, globe)?;
            let of = |tokens: u64| Course::traced(options, trace.clone(), Limit::Tokens(tokens as i64)).at(tokens);
            points.map(of).collect()
        }
        Experiment::Rate => {
            let trace = demand(options, globe)?;
            let slower = |interval: u64| {
                let mut trace = trace.clone();
                trace.speed_up(experiment.points()[0] as f64 / interval as f64);
                traced(trace).at(interval)
            };
            points.map(slower).collect()
        }
        Experiment::Sites => points.map(|sites| grown(options, limit, sites)).collect(),
        Experiment::Reads => {
            points.map(|share| Course::scripted(options, Script::Reads(share), LIMIT).at(share)).collect()
        }
        Experiment::Hot => vec![Course::scripted(options, Script::Hot, LIMIT)],
        Experiment::Small => vec![Course::scripted(options, Script::Small, SMALL)],
        Experiment::Storm | Experiment::Idle => unreachable!("they are about many quotas"),
    })
}

/// The trace that was asked for, or generated demand; as much of it as is played.
fn demand(options: &SamyaOptions, globe: &Globe) -> Result<Trace, QuotaError> {
    let seed = options.seed;
    let mut trace = match &options.trace {
        Some((path, Format::Series)) => series::read(path, &globe.regions, seed)?,
        Some((path, format)) => Trace::read(path, *format)?,
        None => demand::periodic(events(options.played()), REGIONS, seed),
    };
    if !(options.speed > 0.0 && options.speed <= 1e9) {
        return Err(QuotaError::Option("the speed must be above 0 and at most 10^9: use --speed 20".into()));
    }
    trace.speed_up(options.speed);
    trace.place(REGIONS, seed);

    // What begins later is left out, and so is the end of what did not begin; a whole trace is played unless its time is given.
    let is_cut = options.trace.is_none() || options.seconds.is_some() || options.played() < 3_600.0;
    if is_cut {
        let end = (options.played() * 1e6) as u64;
        let count = trace.events.partition_point(|event| event.at <= end);
        trace.truncate(count);
    }
    match trace.acquires() {
        0 => Err(QuotaError::Option("nothing is asked for in the seconds that are played: use more --seconds".into())),
        _ => Ok(trace),
    }
}

/// The acquires and releases that are generated for so many seconds: more than happen in them, and never more than the paper's.
fn events(seconds: f64) -> usize {
    series::OPERATIONS.min((seconds * PER_SECOND * 1.5) as usize + 20_000)
}

/// A region is lost again and again, until one is left: the first, where the leader of a replicated database is.
fn crashing(course: Course) -> Course {
    let apart = course.length() / REGIONS as u64;
    let time = |number: usize| number as u64 * apart;
    let faults = (1..REGIONS).map(|number| (time(number), Fault::Lose(REGIONS - number))).collect();
    let phases = (0..REGIONS).map(|number| Phase { from: time(number), is_parted: false }).collect();
    // An ideal counter that nothing befalls is no measure of it.
    Course { faults, phases, ideal: None, ..course }
}

/// The network is in two parts for three quarters of the time, and whole before and after.
fn parting(course: Course) -> Course {
    let (parts, heals) = (course.length() / 8, course.length() / 8 * 7);
    let faults = vec![(parts, Fault::Part(true)), (heals, Fault::Part(false))];
    let phase = |from, is_parted| Phase { from, is_parted };
    let phases = vec![phase(0, false), phase(parts, true), phase(heals, false)];
    Course { faults, phases, ideal: None, ..course }
}

/// More sites: each of five more has the demand of the first in its region, and its part of the limit. Every request of the first
/// comes at the others too, up to half a minute earlier or later.
fn grown(options: &SamyaOptions, limit: Limit, sites: u64) -> Course {
    let times = sites as usize / REGIONS;
    let mut trace = demand::periodic(events(options.played()), REGIONS, options.seed);
    let first = trace.jobs as usize;
    let mut rng = Rng::new(options.seed ^ 0x7369_7465);
    let mut events = trace.events.clone();
    for five in 1..times {
        let moves: Vec<u64> = (0..first).map(|_| rng.below(2 * MOVED)).collect();
        let moved = |event: &Event| {
            let (job, kind) = match event.kind {
                Kind::Begin { amount, job } => (job, Kind::Begin { amount, job: job + (five * first) as u32 }),
                Kind::End { job } => (job, Kind::End { job: job + (five * first) as u32 }),
                kind => unreachable!("generated demand has no {kind:?}"),
            };
            let at = (event.at + moves[job as usize]).saturating_sub(MOVED);
            Event { at, site: event.site.map(|site| site + five * REGIONS), kind, ..*event }
        };
        events.extend(trace.events.iter().map(moved));
    }
    let end = (options.played() * 1e6) as u64;
    events.retain(|event| event.at <= end);
    events.sort_by_key(|event| (event.at, event.kind.wanted().is_some()));
    trace.events = events;
    trace.jobs *= times as u32;

    let limit = match limit {
        Limit::Tokens(tokens) => Limit::Tokens(tokens * times as i64),
        auto => auto,
    };
    Course { sites: sites as usize, ..Course::traced(options, trace, limit) }.at(sites)
}
