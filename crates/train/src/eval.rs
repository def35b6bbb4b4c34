//! Fits every model to the first part of a series, and compares their forecasts of the rest.
//!
//! A forecast at a step sees the steps before it alone. At the end of each day of the series, every model is fitted again to all that has
//! come by then. Models are compared on the same points: those at which each of them has a whole window, and the demand after it is known.

use std::time::Instant;

use serde_json::json;
use slackline_forecast::{Fitted, Frame, Kind, time::DAY};

use crate::fit::{Task, fit};
use crate::points::Points;

/// The fewest forecasts of which a mean error says something.
const FEWEST: usize = 10;

/// How models are fitted.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// The share of the steps that come before the first forecast.
    pub(crate) share: f64,
    /// The seed of what is random.
    pub(crate) seed: u64,
    /// True if models are not fitted again at the end of each day.
    pub(crate) fit_once: bool,
}

/// What came of it.
pub(crate) struct Report {
    /// The steps at which all models said something, and what came is known.
    pub(crate) points: Vec<usize>,
    /// The beginning of the first step that was forecast, and the end of the last, in seconds since 1970.
    pub(crate) from: i64,
    pub(crate) until: i64,
    /// The models, in the order of [`Kind::ALL`].
    pub(crate) models: Vec<Scored>,
    /// The models that this series or this step is nothing for, and why.
    pub(crate) left_out: Vec<(Kind, String)>,
}

/// A model's forecasts.
pub(crate) struct Scored {
    pub(crate) kind: Kind,
    /// What it said at each of the report's points.
    pub(crate) said: Vec<f64>,
    /// The mean absolute error, in the unit of the series.
    pub(crate) mae: f64,
    /// That error, divided by the random walk's.
    pub(crate) of_random_walk: f64,
    /// The time that all of its fits took, in seconds.
    pub(crate) fit_s: f64,
}

/// What a model said at each step of the last part of a series, in their order.
struct Forecasts {
    kind: Kind,
    said: Vec<Option<f64>>,
    fit_s: f64,
}

/// Fits and compares models, the random walk among them. `Err` says why there is nothing to compare.
pub(crate) fn run(points: &Points<'_>, plan: Plan, kinds: &[Kind]) -> Result<Report, String> {
    let first = (points.len() as f64 * plan.share) as usize;
    let (mut forecasts, mut left_out) = (Vec::new(), Vec::new());
    for &kind in kinds {
        match forecast(kind, points, first, plan) {
            Ok(one) => forecasts.push(one),
            Err(why) => left_out.push((kind, why)),
        }
    }

    // A point counts for all models or for none.
    let all_said = |at: &usize| forecasts.iter().all(|one| one.said[at - first].is_some());
    let at: Vec<usize> = points.within(first..points.len(), 0).filter(all_said).collect();
    let (Some(from), Some(last)) = (at.first(), at.last().filter(|_| at.len() >= FEWEST)) else {
        let found = at.len();
        return Err(format!(
            "the series is too short: {found} steps can be forecast after what models are fitted to, not {FEWEST}"
        ));
    };

    let targets: Vec<f64> = at.iter().map(|at| points.target(*at)).collect();
    let scored = |one: Forecasts| {
        let said: Vec<f64> = at.iter().filter_map(|at| one.said[at - first]).collect();
        let sum: f64 = said.iter().zip(&targets).map(|(said, target)| (said - target).abs()).sum();
        Scored { kind: one.kind, mae: sum / said.len() as f64, said, of_random_walk: 1.0, fit_s: one.fit_s }
    };
    let mut models: Vec<Scored> = forecasts.into_iter().map(scored).collect();
    let of = models.iter().find(|scored| scored.kind == Kind::RandomWalk).map_or(f64::NAN, |scored| scored.mae);
    // Of demand that stands still, any model that says so is as good as the random walk.
    models.iter_mut().filter(|scored| scored.mae != of).for_each(|scored| scored.of_random_walk = scored.mae / of);

    let (from, until) = (points.series.time(*from), points.series.time(last + points.frame.horizon));
    Ok(Report { points: at, from, until, models, left_out })
}

/// What a kind of model says at each step from `first` on.
fn forecast(kind: Kind, points: &Points<'_>, first: usize, plan: Plan) -> Result<Forecasts, String> {
    let mut fit_s = 0.0;
    let mut timed = |until: usize, before: Option<&Fitted>| {
        let began = Instant::now();
        let model = fit(kind, Task { points, until, seed: plan.seed }, before);
        fit_s += began.elapsed().as_secs_f64();
        model
    };

    let mut model = timed(first, None)?;
    let day = |at: usize| points.series.time(at).div_euclid(DAY);
    let mut said = Vec::with_capacity(points.len() - first);
    for at in first..points.len() {
        if at > first && !plan.fit_once && day(at) > day(at - 1) {
            model = timed(at, Some(&model))?;
        }
        said.push(points.forecast(&model, at));
    }
    Ok(Forecasts { kind, said, fit_s })
}

impl Report {
    /// The report as one line of JSON.
    pub(crate) fn to_json(&self, series: &str, frame: Frame) -> String {
        let round = |value: f64, digits: f64| (value * digits).round() / digits;
        let model = |scored: &Scored| {
            json!({
                "model": scored.kind.name(),
                "mae": round(scored.mae, 1e3),
                "of_random_walk": round(scored.of_random_walk, 1e4),
                "fit_s": round(scored.fit_s, 1e3),
            })
        };
        let time = slackline_forecast::time::format;
        let mut report = json!({
            "series": series,
            "step_s": frame.step_s,
            "horizon": frame.horizon,
            "from": time(self.from),
            "until": time(self.until),
            "points": self.points.len(),
            "models": self.models.iter().map(model).collect::<Vec<_>>(),
        });
        if !self.left_out.is_empty() {
            let left_out = self.left_out.iter().map(|(kind, why)| json!({ "model": kind.name(), "why": why }));
            report["left_out"] = left_out.collect();
        }
        report.to_string()
    }
}
