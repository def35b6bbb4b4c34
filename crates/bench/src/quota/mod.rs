//! `bench quota`: a trace of demand against one quota that several regions share.
//!
//! The same events are played to three configurations: the product, the product with redistribution off (each site has its
//! part of the limit and nothing more), and an ideal central counter, which is the reference for refusals. The sites are
//! the real machines, in virtual time.
//!
//! **Local** is an acquire that its site answers in the very turn in which it arrives, granted or refused. One that has to
//! wait counts as not local, even if tokens that come back at its own site end the wait.
//!
//! | module | what it is about |
//! | --- | --- |
//! | `prepare` | the options, the events, the limit |
//! | `books` | what clients know, held against the sites' books |
//! | `play` | events played to sites in virtual time |
//! | `real` | events played to real sites |

mod books;
mod play;
mod prepare;
mod real;

use slackline_sim::Costs;

pub(crate) use self::books::{booked, conserve, is_at_rest};
pub use self::play::play;
pub(crate) use self::prepare::NAME;
pub use self::prepare::{Limit, Prepared, QuotaError, QuotaOptions, choose_limit, prepare};
use crate::EPSILON;
use crate::central::Tally;
use crate::figure::{Axis, Figure, Scale, Series};
use crate::report::{Mode, Report, Run, latency_figure};
use crate::rtt::Matrix;
use books::{Drawn, Moment, PARTS};

/// Runs `bench quota`.
pub fn quota(options: &QuotaOptions) -> Result<Report, QuotaError> {
    let matrix = Matrix::new(&options.rtt, options.sites)?;
    let prepared = prepare(options)?;

    let costs = options.live.is_none().then(Costs::default);
    let run = |redistribute| match (&options.live, costs) {
        (Some(directory), _) => real::play(&prepared, &matrix, directory, redistribute),
        (None, costs) => play::play_and_draw(&prepared, &matrix, costs.unwrap_or_default(), options.seed, redistribute),
    };

    // The same events, at the same sites, with the same limit.
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

/// The ideal counter's outcomes, as a run.
fn central_run(prepared: &Prepared) -> Run {
    let Tally { granted, refused, released, refused_releases, peak } = prepared.central;
    let mut run = Run::new("central");
    run.is_ideal = true;
    run.committed = granted + released;
    run.refused = refused + refused_releases;

    // It answers at once, so it takes as long as the trace.
    let run = run.took(prepared.trace.length() as f64 / 1e6);
    let run = run.with("limit", prepared.limit).with("refused_acquires", refused).with("peak", peak);
    match prepared.tight {
        Some(tight) => run.with("tight_limit", tight),
        None => run,
    }
}

/// The facts that the figures rest on.
fn facts(prepared: &Prepared, matrix: &Matrix, runs: &[Run]) -> Vec<(String, String)> {
    let acquires = prepared.trace.acquires();
    let mut limit = format!(
        "{} tokens; at it an ideal central counter refuses {} of {acquires} acquires",
        prepared.limit, prepared.central.refused
    );
    if let Some(tight) = prepared.tight {
        limit += &format!("; the tight limit, where it refuses under 1 %, is {tight}");
    }

    // In the paper's terms: how much is lost if no tokens move.
    let [ours, without, ..] = runs else { unreachable!("three runs") };
    let commits = match ours.committed {
        0 => "nothing was committed".to_owned(),
        all => {
            let fewer = 100.0 * (1.0 - without.committed as f64 / all as f64);
            format!("no-redistribution {fewer:.1} % fewer; in the paper about 14 % fewer (figure 3e)")
        }
    };
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
        ("commits".to_owned(), commits),
    ];

    if prepared.trace.skipped > 0 {
        facts.push(("left out".to_owned(), format!("{} lines that ask for no tokens", prepared.trace.skipped)));
    }
    facts
}

/// Latencies, refusals and tokens in use over time.
fn figures(prepared: &Prepared, runs: &[(&str, &Drawn)]) -> Vec<Figure> {
    let minutes = |part: usize| (part + 1) as f64 * prepared.trace.length() as f64 / PARTS as f64 / 60e6;
    let over_time = |value: &dyn Fn(&Moment) -> f64, drawn: &Drawn| -> Vec<(f64, f64)> {
        drawn.timeline.iter().enumerate().map(|(part, moment)| (minutes(part), value(moment))).collect()
    };

    let limit = prepared.limit as f64;
    let mut in_use: Vec<Series> =
        runs.iter().map(|(name, drawn)| Series::new(name, over_time(&|moment| moment.in_use as f64, drawn))).collect();
    in_use.push(Series::reference("limit", vec![(0.0, limit), (minutes(PARTS - 1), limit)]));

    // Refusals so far: how steep the line is says when there were many.
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
