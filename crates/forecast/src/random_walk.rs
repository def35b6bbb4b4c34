//! The random walk: what all others are measured by.

use serde::{Deserialize, Serialize};

use crate::model::{Frame, Model};

/// Each of the next steps is like the last one. The sum of a horizon is the last step times their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RandomWalk {}

impl Model for RandomWalk {
    fn window(&self, _: Frame) -> usize {
        1
    }

    fn forecast(&self, frame: Frame, window: &[f64], _: i64) -> f64 {
        window[window.len() - 1] * frame.horizon as f64
    }

    fn check(&self, _: Frame) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_steps_are_like_the_last() {
        let frame = Frame { step_s: 3600, horizon: 6 };
        assert_eq!(RandomWalk {}.forecast(frame, &[7.0], 0), 42.0);
    }
}
