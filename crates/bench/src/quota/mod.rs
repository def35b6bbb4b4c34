//! `bench quota`: a trace of demand against one quota that several regions share.
//!
//! The same events are played to three configurations: the product, the product with redistribution off (each site has its
//! part of the limit and nothing more), and an ideal central counter, which is the reference for refusals. The sites are
//! the real machines, in virtual time.
//!
//! **Local** is an acquire that its site answers in the very turn in which it arrives, granted or refused. One that has to
//! wait counts as not local, even if tokens that come back at its own site end the wait.

mod books;
mod play;
mod real;

use std::path::PathBuf;
use std::str::FromStr;

use slackline_sim::Costs;

pub use self::play::play;
use crate::central::{self, Tally};
use crate::demand;
use crate::figure::{Axis, Figure, Scale, Series};
use crate::live::LiveError;
use crate::report::{Mode, Report, Run, latency_figure};
use crate::rtt::{Matrix, MatrixError, Rtt};
use crate::trace::{Format, Trace, TraceError};
use books::{Drawn, Moment, PARTS};

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
    /// Runs real sites in real time, with their data in a directory that is made below this one and removed; none for
    /// virtual time.
    pub live: Option<PathBuf>,
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
            live: None,
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
        let wrong =
            || format!("{text:?} is not a limit: use a number of tokens, or auto:F with a factor like auto:1.05");
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
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// The trace cannot be used.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The round trips cannot be used.
    #[error(transparent)]
    Rtt(#[from] MatrixError),
    /// Real sites cannot be run here.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// An option makes no sense.
    #[error("{0}")]
    Option(String),
    /// The books are wrong after a run: a bug of Slackline.
    #[error("the books are wrong after the run {config}: {what}; this is a bug, report it with the options")]
    Books {
        /// The configuration.
        config: String,
        /// What does not add up.
        what: String,
    },
}

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

/// Runs `bench quota`.
pub fn quota(options: &QuotaOptions) -> Result<Report, QuotaError> {
    let matrix = Matrix::new(&options.rtt, options.sites)?;
    let prepared = prepare(options)?;
    let costs = options.live.is_none().then(Costs::default);
    let run = |redistribute| match (&options.live, costs) {
        (Some(directory), _) => real::play(&prepared, &matrix, directory, redistribute),
        (None, costs) => play::play_and_draw(&prepared, &matrix, costs.unwrap_or_default(), options.seed, redistribute),
    };
    let (ours, ours_drawn) = run(true)?;
    let (without, without_drawn) = run(false)?;
    let runs = vec![ours, without, central_run(&prepared)];
    let facts = facts(&prepared, &matrix, &runs);
    let figures = figures(&prepared, &[("slackline", &ours_drawn), ("no redistribution", &without_drawn)]);
    Ok(Report {
        workload: "quota".into(),
        mode: if options.live.is_some() { Mode::Live } else { Mode::Sim },
        seed: options.seed,
        data: prepared.trace.data.clone(),
        epsilon_us: EPSILON,
        cost_model: costs,
        runs,
        verified: true,
        facts,
        figures,
    })
}

/// The name of a configuration.
fn config_name(redistribute: bool) -> &'static str {
    if redistribute { "slackline" } else { "no-redistribution" }
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
        Some((path, format)) => Trace::read(path, *format)?,
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
/// The quota's name.
const NAME: &str = "tokens";
/// The bound on each clock's error that the sites are told, in microseconds.
const EPSILON: u64 = 10_000;

fn central_run(prepared: &Prepared) -> Run {
    let Tally { granted, refused, released, refused_releases, peak } = prepared.central;
    let mut run = Run::new("central");
    run.is_ideal = true;
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
    let mut limit = format!(
        "{} tokens; at it an ideal central counter refuses {} of {acquires} acquires",
        prepared.limit, prepared.central.refused
    );
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
                "ours p90 {:.2} ms, p95 {:.2} ms, p99 {:.2} ms; Samya with the majority version 1.40, 10.2 and 65.1 ms over \
                 five regions of GCP, with demand for virtual machines that is not to be had (table 2b)",
                at.p90, at.p95, at.p99
            ),
        ),
        (
            "commits".to_owned(),
            format!("no-redistribution {fewer:.1} % fewer; in the paper about 14 % fewer (figure 3e)"),
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
    let figure = |name: &str, title: &str, counted: &str, series| Figure {
        name: name.into(),
        title: title.into(),
        x: Axis::new("time in minutes", Scale::Linear),
        y: Axis::new(counted, Scale::Linear),
        series,
    };
    let mut figures = vec![
        latency_figure("quota-latency", runs.iter().map(|(name, drawn)| (*name, &drawn.latencies))),
        figure("quota-refused", "Acquires refused so far", "acquires", refusals),
    ];
    // Real sites are not asked all the time.
    if runs.iter().any(|(_, drawn)| drawn.timeline.iter().any(|moment| moment.in_use > 0)) {
        figures.push(figure("quota-in-use", "Tokens in use over all regions", "tokens", in_use));
    }
    figures
}
