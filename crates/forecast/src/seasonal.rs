//! The course of a day.

use serde::{Deserialize, Serialize};

use crate::logs::log;
use crate::model::{Frame, LONGEST_WINDOW, Model};

/// The next steps follow the usual course of a day, at the level of the last steps.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Seasonal {
    /// The number of last steps from which the level is taken.
    pub level_steps: usize,
    /// The usual logarithm of the demand of each step of a day, less the day's mean. Demand is taken with 1 added, so that it may be 0.
    pub course: Vec<f64>,
}

impl Model for Seasonal {
    fn window(&self, _: Frame) -> usize {
        self.level_steps
    }

    fn forecast(&self, frame: Frame, window: &[f64], end: i64) -> f64 {
        // The level is what the last steps have above the course, on average.
        let step = frame.step_s as i64;
        let usual = |steps_from_end: i64| self.course[frame.place(end + steps_from_end * step)];
        let before = -(window.len() as i64);
        let above = |(at, value): (usize, &f64)| log(*value) - usual(before + at as i64);
        let level = window.iter().enumerate().map(above).sum::<f64>() / window.len() as f64;

        (0..frame.horizon as i64).map(|at| (level + usual(at)).exp_m1()).sum()
    }

    fn check(&self, frame: Frame) -> Result<(), String> {
        let day = frame.day().ok_or_else(|| format!("steps of {} s do not divide a day", frame.step_s))?;
        if self.course.len() != day {
            return Err(format!("the course of a day has {} steps, not {day}", self.course.len()));
        }
        if self.course.iter().any(|value| !value.is_finite() || value.abs() > 50.0) {
            return Err("the course of a day has a number that makes no sense".into());
        }
        if !(1..=LONGEST_WINDOW).contains(&self.level_steps) {
            return Err(format!("a level of {} steps makes no sense", self.level_steps));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_steps_follow_the_day_at_the_present_level() {
        // Four steps a day, of which the third has twice the demand of the others; logarithms are of one more.
        let frame = Frame { step_s: 21_600, horizon: 2 };
        let seasonal = Seasonal { level_steps: 2, course: vec![0.0, 0.0, 2f64.ln(), 0.0] };
        assert_eq!(seasonal.check(frame), Ok(()));
        // Two steps of 9 ended at noon: the level is 10, so 2 x 10 - 1 follow, then 10 - 1.
        let sum = seasonal.forecast(frame, &[9.0, 9.0], 43_200);
        assert!((sum - 28.0).abs() < 1e-9, "{sum}");
        // The same two steps at the end of the course: its peak is taken out of the level.
        let sum = seasonal.forecast(frame, &[19.0, 9.0], 86_400);
        assert!((sum - 18.0).abs() < 1e-9, "{sum}");
    }

    #[test]
    fn course_of_another_step_is_refused() {
        let seasonal = Seasonal { level_steps: 1, course: vec![0.0; 24] };
        assert_eq!(seasonal.check(Frame { step_s: 3600, horizon: 1 }), Ok(()));
        let problem = seasonal.check(Frame { step_s: 60, horizon: 1 }).expect_err("a day has more minutes");
        assert_eq!(problem, "the course of a day has 24 steps, not 1440");
        assert!(seasonal.check(Frame { step_s: 420, horizon: 1 }).is_err(), "seven minutes do not divide a day");
    }
}
