//! The exponentially weighted mean: what a site uses where it has no other model.

use serde::{Deserialize, Serialize};

use crate::model::{Frame, LONGEST_WINDOW, Model};

/// The share of all weights that may lie before the window.
const REST: f64 = 1e-3;

/// Each of the next steps is the exponentially weighted mean of the last ones.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ewma {
    /// The weight of the last step, above 0 and up to 1. The step before has `1 - weight` times as much, and so on.
    pub weight: f64,
}

impl Model for Ewma {
    fn window(&self, _: Frame) -> usize {
        if self.weight >= 1.0 {
            return 1;
        }
        // The weights of all steps before the window add up to (1 - weight)^window.
        let steps = (REST.ln() / (1.0 - self.weight).ln()).ceil();
        (steps as usize).clamp(1, LONGEST_WINDOW)
    }

    fn forecast(&self, frame: Frame, window: &[f64], _: i64) -> f64 {
        // What lies before the window is taken to be like its first step.
        let mean = window.iter().copied().reduce(|mean, value| mean + (value - mean) * self.weight);
        mean.unwrap_or(0.0) * frame.horizon as f64
    }

    fn check(&self, _: Frame) -> Result<(), String> {
        let is_weight = self.weight > 0.0 && self.weight <= 1.0;
        is_weight.then_some(()).ok_or_else(|| format!("a weight of {} is not above 0 and up to 1", self.weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_leans_to_the_last_step() {
        let frame = Frame { step_s: 60, horizon: 2 };
        let ewma = Ewma { weight: 0.5 };
        // 8; then 8 + (0 - 8) / 2 = 4; then 4 + (6 - 4) / 2 = 5; twice.
        assert_eq!(ewma.forecast(frame, &[8.0, 0.0, 6.0], 0), 10.0);
        assert_eq!(ewma.window(frame), 10, "0.5^10 is below a thousandth");
        assert_eq!(Ewma { weight: 1.0 }.window(frame), 1);
        assert_eq!(Ewma { weight: 1e-12 }.window(frame), LONGEST_WINDOW);
    }

    #[test]
    fn weight_that_is_none_is_refused() {
        let frame = Frame { step_s: 60, horizon: 1 };
        for weight in [0.0, -0.5, 1.5, f64::NAN] {
            assert!(Ewma { weight }.check(frame).is_err(), "{weight}");
        }
    }
}
