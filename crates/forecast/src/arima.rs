//! An autoregression on differences of logarithms: ARIMA with chosen lags, one difference, and no moving average.

use serde::{Deserialize, Serialize};

use crate::logs::log;
use crate::model::{Frame, LONGEST_WINDOW, Model};

/// The most lags.
const MOST_LAGS: usize = 64;
/// The most that the logarithm is believed to change in one step: a factor of e³, about 20.
const STEEPEST: f64 = 3.0;

/// With `w` for the change of the logarithm of demand from one step to the next: `w(t) = Σ coefficient × w(t - lag)`.
///
/// It forecasts one step after the other; each forecast is taken for true in the next. Lags around a day make it seasonal. What it
/// gives for each step is the median, for the exponential of a median is one, so that is what has the least absolute error.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Arima {
    /// The lags, in steps; ascending, 1 or more.
    pub lags: Vec<usize>,
    /// The coefficient of each lag.
    pub coefficients: Vec<f64>,
}

impl Model for Arima {
    fn window(&self, _: Frame) -> usize {
        // One more than the longest lag: a change is between two steps.
        self.lags.last().map_or(1, |longest| longest + 1)
    }

    fn forecast(&self, frame: Frame, window: &[f64], _: i64) -> f64 {
        let last = window.len() - 1;
        let mut level = log(window[last]);
        let mut ahead: Vec<f64> = Vec::with_capacity(frame.horizon);
        let mut sum = 0.0;
        for _ in 0..frame.horizon {
            // The change that long before the next one: one that was forecast, or one of the window.
            let change = self.next(|lag| match ahead.len().checked_sub(lag) {
                Some(at) => ahead[at],
                None => {
                    let at = last + 1 + ahead.len() - lag;
                    log(window[at]) - log(window[at - 1])
                }
            });
            ahead.push(change);
            level += change;
            sum += level.exp_m1();
        }
        sum
    }

    fn check(&self, _: Frame) -> Result<(), String> {
        if self.lags.len() > MOST_LAGS || self.lags.len() != self.coefficients.len() {
            let (lags, coefficients) = (self.lags.len(), self.coefficients.len());
            return Err(format!(
                "it has {lags} lags and {coefficients} coefficients: there is one for each, of up to {MOST_LAGS}"
            ));
        }
        let is_ascending = self.lags.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || self.lags.iter().any(|lag| !(1..LONGEST_WINDOW).contains(lag)) {
            return Err(format!("its lags are not ascending numbers from 1 to {}", LONGEST_WINDOW - 1));
        }
        if self.coefficients.iter().any(|number| !number.is_finite() || number.abs() > 10.0) {
            return Err("a coefficient makes no sense".into());
        }
        Ok(())
    }
}

impl Arima {
    /// The next change, of those before it by their lags.
    fn next(&self, change: impl Fn(usize) -> f64) -> f64 {
        let terms = self.lags.iter().zip(&self.coefficients).map(|(lag, coefficient)| coefficient * change(*lag));
        // Coefficients may be explosive, and a horizon long.
        terms.sum::<f64>().clamp(-STEEPEST, STEEPEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_follow_from_those_before() {
        let arima = Arima { lags: vec![1, 3], coefficients: vec![0.5, -0.25] };
        let frame = Frame { step_s: 60, horizon: 2 };
        assert_eq!(arima.check(frame), Ok(()));
        assert_eq!(arima.window(frame), 4);
        // Levels 0, 0.4, 0.6, 1.0: changes 0.4, 0.2, 0.4. Then 0.5 x 0.4 - 0.25 x 0.4 = 0.1, and 0.05 - 0.05 = 0.
        let window: Vec<f64> = [0.0f64, 0.4, 0.6, 1.0].map(f64::exp_m1).into();
        let sum = arima.forecast(frame, &window, 0);
        assert!((sum - 2.0 * 1.1f64.exp_m1()).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn without_lags_it_is_a_random_walk() {
        let arima = Arima { lags: Vec::new(), coefficients: Vec::new() };
        let frame = Frame { step_s: 60, horizon: 3 };
        assert_eq!(arima.check(frame), Ok(()));
        assert!((arima.forecast(frame, &[5.0], 0) - 15.0).abs() < 1e-9);
    }

    #[test]
    fn explosive_coefficients_give_a_number() {
        let arima = Arima { lags: vec![1], coefficients: vec![9.0] };
        let sum = arima.forecast(Frame { step_s: 60, horizon: 100 }, &[1.0, 1000.0], 0);
        assert!(sum.is_finite(), "{sum}");
    }

    #[test]
    fn parameters_that_make_no_sense_are_refused() {
        let frame = Frame { step_s: 60, horizon: 1 };
        let check = |lags: &[usize], coefficients: &[f64]| {
            Arima { lags: lags.into(), coefficients: coefficients.into() }.check(frame)
        };
        assert!(check(&[1, 2], &[0.5]).expect_err("one lacks").contains("2 lags and 1 coefficients"));
        assert!(
            check(&[2, 1], &[0.5, 0.5]).is_err() && check(&[0], &[0.5]).is_err() && check(&[99_999], &[0.5]).is_err()
        );
        assert!(check(&[1], &[f64::NAN]).is_err() && check(&[1], &[1e6]).is_err());
    }
}
