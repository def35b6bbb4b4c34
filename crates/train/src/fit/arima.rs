//! Fits an autoregression: the lags by trial, their coefficients by the least absolute error.

use slackline_forecast::{Arima, Fitted, Parameters, log};

use crate::fit::lad::Rows;
use crate::fit::{LATEST, Task};

/// Fits an autoregression.
pub(super) fn fit(task: Task<'_>) -> Result<Fitted, String> {
    let candidates = candidates(task);
    let (lags, model) = task.choose(&candidates, |task, lags| with_lags(task, lags))?;
    with_lags(task, &lags)?.calibrated(task.calibration(&model))
}

/// The sets of lags that are tried: the last few steps; with those a day before; with those a week before.
fn candidates(task: Task<'_>) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = [1, 2, 3, 5].map(|order| (1..=order).collect()).into();
    if let Some(day) = task.points.frame.day().filter(|day| *day > 6) {
        let (near, daily, weekly) = (1..=3, day - 1..=day + 3, 7 * day - 1..=7 * day + 3);
        all.push(near.clone().chain(daily.clone()).collect());
        all.push(near.chain(daily).chain(weekly).collect());
    }
    all
}

/// The autoregression with these lags.
fn with_lags(task: Task<'_>, lags: &[usize]) -> Result<Fitted, String> {
    let values = &task.points.series.values()[..task.until];
    let changes: Vec<Option<f64>> = values.windows(2).map(|pair| Some(log(pair[1]?) - log(pair[0]?))).collect();
    let longest = lags.last().copied().unwrap_or(0);

    let mut rows = Rows::default();
    for at in longest.max(changes.len().saturating_sub(LATEST))..changes.len() {
        let inputs: Option<Vec<f64>> = lags.iter().map(|lag| changes[at - lag]).collect();
        // An error of the logarithm is one of the demand in proportion to the demand.
        if let (Some(inputs), Some(target), Some(weight)) = (inputs, changes[at], values[at]) {
            rows.push(inputs, target, 1.0 + weight);
        }
    }
    let found = rows
        .fit()
        .ok_or_else(|| format!("the series is too short for lags of up to {longest} steps, or always the same"))?;
    let arima = Arima { lags: lags.to_vec(), coefficients: found };
    task.model(Parameters::Arima(arima))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::points::Points;
    use crate::rng::Rng;
    use slackline_forecast::{Frame, Series};

    /// A series whose changes are 0.5 times the last, less 0.3 times the one before, and noise.
    fn series(steps: usize) -> Series {
        let mut rng = Rng::new(5);
        let (mut level, mut changes) = (8.0, [0.0, 0.0]);
        let mut next = || {
            let change = 0.5 * changes[0] - 0.3 * changes[1] + 0.05 * rng.symmetric();
            changes = [change, changes[0]];
            level += change;
            Some(f64::exp_m1(level))
        };
        Series::new(0, 60, (0..steps).map(|_| next()).collect())
    }

    fn fitted(series: &Series, until: usize) -> Arima {
        let points = Points::new(series, Frame { step_s: 60, horizon: 1 });
        let model = with_lags(Task { points: &points, until, seed: 1 }, &[1, 2]).expect("the series is long enough");
        let Parameters::Arima(arima) = model.parameters() else { panic!("{model:?}") };
        arima.clone()
    }

    #[test]
    fn coefficients_of_a_generated_series_are_found() {
        let arima = fitted(&series(5_000), 5_000);
        for (found, expected) in arima.coefficients.iter().zip([0.5, -0.3]) {
            assert!((found - expected).abs() < 0.03, "{arima:?}");
        }
    }

    #[test]
    fn gaps_are_left_out_and_are_no_zeros() {
        let whole = series(5_000);
        let with_gaps = whole.values().iter().enumerate().map(|(at, value)| value.filter(|_| at % 50 > 4)).collect();
        let arima = fitted(&Series::new(0, 60, with_gaps), 5_000);
        assert!((arima.coefficients[0] - 0.5).abs() < 0.06 && (arima.coefficients[1] + 0.3).abs() < 0.06, "{arima:?}");
    }

    #[test]
    fn what_comes_later_is_not_looked_at() {
        let short = series(1_000);
        let long: Vec<Option<f64>> = short.values().iter().copied().chain([Some(0.0), Some(1e9)].repeat(500)).collect();
        assert_eq!(fitted(&Series::new(0, 60, long), 1_000), fitted(&short, 1_000));
    }
}
