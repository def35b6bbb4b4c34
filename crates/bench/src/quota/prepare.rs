//! What all configurations of a run are given alike: the options, and the events with their limit.

use std::path::PathBuf;
use std::str::FromStr;

use crate::central::{self, Tally};
use crate::demand;
use crate::live::LiveError;
use crate::rtt::{Matrix, MatrixError, Rtt};
use crate::series;
use crate::trace::{Format, Trace, TraceError};

/// Events that are generated unless told otherwise: as many as the paper's main experiment has.
const GENERATED: usize = 820_000;
/// The time that an acquire may wait for tokens, in microseconds.
pub(super) const TIMEOUT: u64 = 2_000_000;
/// The quota's name.
pub(crate) const NAME: &str = "tokens";

/// Options of `bench quota`.
#[derive(Clone, Debug)]
pub struct QuotaOptions {
    /// The trace to replay; none for generated demand.
    pub trace: Option<(PathBuf, Format)>,
    /// The quota's limit.
    pub limit: Limit,
    /// The number of sites.
    pub sites: usize,
    /// The round trips between them.
    pub rtt: Rtt,
    /// The factor by which the trace is replayed faster than it happened, holds included.
    pub speed: f64,
    /// The number of events to take from the beginning; none for all.
    pub events: Option<usize>,
    /// The seed of every random choice.
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

/// The choice of the limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    /// A number of tokens.
    Tokens(i64),
    /// This many times the tight limit (see [`central::tight_limit`]).
    Auto(f64),
}

/// The limits that may be given: experiments multiply them by numbers of sites.
const LIMITS: std::ops::RangeInclusive<i64> = 1..=1_000_000_000_000;

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not a limit: use a number of tokens up to 10^12, or auto:F with a factor like auto:1.05"
            )
        };
        match text.strip_prefix("auto:") {
            Some(factor) => {
                let factor = factor.parse().ok().filter(|factor| (0.01..=100.0).contains(factor));
                factor.map(Self::Auto).ok_or_else(wrong)
            }
            None => text.parse().ok().filter(|tokens| LIMITS.contains(tokens)).map(Self::Tokens).ok_or_else(wrong),
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
        /// The sums that disagree.
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
    /// The outcomes at an ideal central counter with that limit.
    pub central: Tally,
}

/// The name of a configuration.
pub(super) fn config_name(redistribute: bool) -> &'static str {
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
        // Which region has which demand depends on where they are.
        Some((path, Format::Series)) => {
            series::read(path, &Matrix::new(&options.rtt, options.sites)?.regions, options.seed)?
        }
        Some((path, format)) => Trace::read(path, *format)?,
        None => demand::periodic(options.events.unwrap_or(GENERATED), options.sites, options.seed),
    };

    // Cut before it is sped up and placed, so that the same events happen at the same sites at any speed.
    if let Some(events) = options.events {
        trace.truncate(events);
    }
    trace.speed_up(options.speed);
    trace.place(options.sites, options.seed);
    Ok(choose_limit(trace, options.limit))
}

/// Chooses the limit for events that have their sites.
pub fn choose_limit(trace: Trace, limit: Limit) -> Prepared {
    // By the trace itself: a limit that fits one trace is far too large or too small for another.
    let (limit, tight) = match limit {
        Limit::Tokens(tokens) => (tokens, None),
        Limit::Auto(factor) => {
            let tight = central::tight_limit(&trace);
            (((tight as f64 * factor).round() as i64).max(1), Some(tight))
        }
    };
    Prepared { central: central::replay(&trace, limit), trace, limit, tight }
}
