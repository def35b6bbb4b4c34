//! Fits a recurrent net.
//!
//! The output begins as a linear regression with the least absolute error, on what it sees beside the hidden state; the recurrent part begins
//! with no say in it. So a net is no worse than that regression on what it is taught, and what it learns beyond is what lines cannot say.

use slackline_forecast::{Features, Fitted, Lstm, Parameters, log};

use crate::fit::lad::Rows;
use crate::fit::net::{Course, Sample, blank, train};
use crate::fit::{LATEST, Task};
use crate::rng::Rng;

/// The hidden units: with them a net has 328 to 488 weights.
const HIDDEN: usize = 8;
/// The steps that a net runs over.
const LENGTH: usize = 12;
/// The fewest.
const FEWEST: usize = 100;
/// The times that samples are used in one fit, all together.
const USES: usize = 30_000;
/// The most times that each sample is used.
const EPOCHS: usize = 30;
/// The step size at the beginning.
const RATE: f64 = 0.004;
/// The most that one sample counts, where the mean is 1: a crowd of an hour is not to rule all.
const HEAVIEST: f64 = 8.0;

/// Fits a net that looks at the same days as the one before, and is calibrated as that; if there is none, at those days with which the error is
/// least.
pub(super) fn fit(task: Task<'_>, before: Option<&Fitted>) -> Result<Fitted, String> {
    if let Some(before) = before
        && let Parameters::Lstm(net) = before.parameters()
    {
        return with_days(task, &net.features.days)?.calibrated(before.calibrated_by());
    }
    let mut candidates: Vec<Vec<usize>> = vec![Vec::new()];
    if task.points.frame.day().is_some() {
        candidates.extend([vec![1], vec![1, 7]]);
    }
    let (days, model) = task.choose(&candidates, |task, days| with_days(task, days))?;
    with_days(task, &days)?.calibrated(task.calibration(&model))
}

/// A net that looks at these days before.
fn with_days(task: Task<'_>, days: &[usize]) -> Result<Fitted, String> {
    let features = Features { length: LENGTH, days: days.to_vec() };
    let samples = samples(task, &features);
    if samples.len() < FEWEST {
        let found = samples.len();
        return Err(format!("the series is too short: it has {found} windows for a net, and {FEWEST} are needed"));
    }

    let gates = vec![0.0; Lstm::gate_weights(&features, HIDDEN)];
    let output = vec![0.0; Lstm::output_weights(&features, HIDDEN)];
    let mut net = Lstm { features, hidden: HIDDEN, gates, output };
    let mut rng = Rng::new(task.seed);
    blank(&mut net, &mut rng);

    let mut rows = Rows::default();
    for Sample { seen, target, weight } in &samples {
        rows.push(seen.beside.iter().copied().chain([1.0]), *target, *weight);
    }
    // Where demand always stands still, there is nothing to be said.
    if let Some(found) = rows.fit() {
        net.output[HIDDEN..].copy_from_slice(&found);
    }

    let epochs = (USES / samples.len()).clamp(1, EPOCHS);
    train(&mut net, &samples, Course { epochs, rate: RATE }, &mut rng);
    task.model(Parameters::Lstm(net))
}

/// The last windows, with what came after each.
fn samples(task: Task<'_>, features: &Features) -> Vec<Sample> {
    let frame = task.points.frame;
    let window = features.window(frame);
    let all: Vec<usize> = task.points.within(0..task.until, window).collect();
    let last = &all[all.len().saturating_sub(LATEST)..];
    let sample = |at: &usize| {
        let demand = task.points.demand(at - window..*at);
        let level = demand[window - 1];
        let change = log(task.points.target(*at) / frame.horizon as f64) - log(level);
        let seen = features.see(frame, &demand, task.points.series.time(*at));
        // What counts is the error of the demand: that of what the net says, times the scale and the level.
        let weight = seen.scale * (1.0 + level);
        Sample { target: change / seen.scale, seen, weight }
    };
    let mut samples: Vec<Sample> = last.iter().map(sample).collect();

    let mean = samples.iter().map(|sample| sample.weight).sum::<f64>() / samples.len().max(1) as f64;
    samples.iter_mut().for_each(|sample| sample.weight = (sample.weight / mean).min(HEAVIEST));
    samples
}
