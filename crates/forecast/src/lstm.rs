//! A small recurrent net: one layer of long short-term memory over the last changes of demand.
//!
//! # What it reads and gives
//!
//! With `v` for the logarithm of demand and `w` for its change from one step to the next, the net reads a row for each of the last `length`
//! steps: `w`, and if [`Features::days`] is not empty, what followed that step one day (and so on) before, and the time of day as a sine and a
//! cosine. A linear output sees the last hidden state and, beside it, what a regression would see: the last three changes, and by how much the
//! next steps, together, exceeded the last step on each of those days before. It gives the same for the steps to come: the logarithm of the
//! mean of the next `horizon` steps, less that of the last step.
//!
//! All of these are divided by the *scale*, the mean size of the last `length` changes. So the net sees neither how much demand there is nor
//! how much noise is in it, only the shape of its changes: one that was fitted at a few requests a minute serves at a hundred thousand,
//! where the noise is far smaller.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

use crate::logs::log;
use crate::model::{Frame, LONGEST_WINDOW, Model};
use crate::time::DAY;

/// The most hidden units.
const MOST_HIDDEN: usize = 64;
/// The most steps that the net runs over.
const LONGEST: usize = 256;
/// The days before that may be looked at.
const MOST_DAYS: usize = 14;
/// The most that the net's output is believed, as a change of the logarithm: a factor of e³, about 20.
const STEEPEST: f64 = 3.0;
/// The changes that the output sees by themselves.
const CHANGES: usize = 3;
/// The smallest scale: demand may stand still.
const LEAST_SCALE: f64 = 1e-3;

/// One layer of long short-term memory with a linear output.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lstm {
    /// What it reads.
    #[serde(flatten)]
    pub features: Features,
    /// The number of hidden units.
    pub hidden: usize,
    /// The weights of the gates: for each input of a cell (the row, the hidden state before, and a constant 1) four times `hidden`
    /// numbers, of the input gates, the forget gates, the candidates and the output gates.
    pub gates: Vec<f64>,
    /// The weights of the output: of the hidden state, of what the output sees beside it, and of a constant 1.
    pub output: Vec<f64>,
}

/// What a net reads of a window.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Features {
    /// The number of steps that it runs over.
    pub length: usize,
    /// The days before that it looks at, ascending: none, or for example 1 and 7.
    pub days: Vec<usize>,
}

/// What a net sees of one window.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// A row for each step, one after the other.
    pub rows: Vec<f64>,
    /// What the output sees beside the hidden state.
    pub beside: Vec<f64>,
    /// What all of these were divided by, and what the output is to be multiplied by.
    pub scale: f64,
}

impl Features {
    /// The number of steps that are read: the days before, the steps that the net runs over, and one before these.
    pub fn window(&self, frame: Frame) -> usize {
        self.reach(frame) + self.length + 1
    }

    /// The steps of the longest of the days before.
    fn reach(&self, frame: Frame) -> usize {
        self.days.last().map_or(0, |days| days * frame.day().unwrap_or(0))
    }

    /// The numbers of a row.
    pub fn width(&self) -> usize {
        if self.days.is_empty() { 1 } else { 3 + self.days.len() }
    }

    /// The numbers that the output sees beside the hidden state.
    pub fn beside(&self) -> usize {
        CHANGES + self.days.len()
    }

    /// What a net sees of a window, the last step of which ended at `end`.
    pub fn see(&self, frame: Frame, window: &[f64], end: i64) -> Seen {
        let last = window.len() - 1;
        let first = last + 1 - self.length;
        let changes = (first..=last).map(|at| (log(window[at]) - log(window[at - 1])).abs());
        let scale = (changes.sum::<f64>() / self.length as f64).max(LEAST_SCALE);

        // Most of a window that reaches a day back is not looked at.
        let level = |at: usize| log(window[at]) / scale;
        let change = |at: usize| level(at) - level(at - 1);
        let day = frame.day().unwrap_or(0);

        let mut rows = Vec::with_capacity(self.length * self.width());
        for at in first..=last {
            rows.push(change(at));
            if !self.days.is_empty() {
                rows.extend(self.days.iter().map(|days| change(at + 1 - days * day)));
                let time = end - (last - at) as i64 * frame.step_s as i64;
                let (sine, cosine) = (TAU * time.rem_euclid(DAY) as f64 / DAY as f64).sin_cos();
                rows.extend([sine, cosine]);
            }
        }

        // The horizon may be longer than a day: then the part of it that is over is what counts.
        let rise = |days: &usize| {
            let at = last - days * day;
            let next = &window[at + 1..(at + 1 + frame.horizon).min(window.len())];
            log(next.iter().sum::<f64>() / next.len() as f64) / scale - level(at)
        };
        let changes = (0..CHANGES).map(|back| change(last - back));
        Seen { rows, beside: changes.chain(self.days.iter().map(rise)).collect(), scale }
    }

    /// Says what is wrong with them.
    fn check(&self, frame: Frame) -> Result<(), String> {
        if !(CHANGES..=LONGEST).contains(&self.length) {
            return Err(format!("a length of {} steps is not {CHANGES} to {LONGEST}", self.length));
        }
        let is_ascending = self.days.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || self.days.iter().any(|days| !(1..=MOST_DAYS).contains(days)) {
            return Err(format!("its days are not ascending numbers from 1 to {MOST_DAYS}"));
        }
        if !self.days.is_empty() && frame.day().is_none() {
            return Err(format!("it looks at days before, and steps of {} s do not divide a day", frame.step_s));
        }
        if self.window(frame) > LONGEST_WINDOW {
            return Err(format!("its window of {} steps is longer than {LONGEST_WINDOW}", self.window(frame)));
        }
        Ok(())
    }
}

/// What a cell has after a step.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    /// The hidden state, which the cell shows.
    pub shown: Vec<f64>,
    /// The memory, which it keeps.
    pub kept: Vec<f64>,
    /// The gates of the step, after their functions: input, forget, candidate, output.
    pub gates: Vec<f64>,
}

impl State {
    /// The state before the first step.
    pub fn new(hidden: usize) -> Self {
        Self { shown: vec![0.0; hidden], kept: vec![0.0; hidden], gates: vec![0.0; 4 * hidden] }
    }
}

impl Lstm {
    /// The number of weights of the gates.
    pub fn gate_weights(features: &Features, hidden: usize) -> usize {
        4 * hidden * (features.width() + hidden + 1)
    }

    /// The number of weights of the output.
    pub fn output_weights(features: &Features, hidden: usize) -> usize {
        hidden + features.beside() + 1
    }

    /// Takes one step: `next` becomes the state after `before` and this row.
    pub fn step(&self, row: &[f64], before: &State, next: &mut State) {
        let hidden = self.hidden;
        let (weights, constant) = self.gates.split_at(self.gates.len() - 4 * hidden);
        next.gates.copy_from_slice(constant);
        for (input, weights) in row.iter().chain(&before.shown).zip(weights.chunks_exact(4 * hidden)) {
            for (gate, weight) in next.gates.iter_mut().zip(weights) {
                *gate += input * weight;
            }
        }

        for unit in 0..hidden {
            let admit = sigmoid(next.gates[unit]);
            let keep = sigmoid(next.gates[hidden + unit]);
            let candidate = tanh(next.gates[2 * hidden + unit]);
            let show = sigmoid(next.gates[3 * hidden + unit]);
            next.kept[unit] = keep * before.kept[unit] + admit * candidate;
            next.shown[unit] = show * tanh(next.kept[unit]);
            next.gates[unit] = admit;
            next.gates[hidden + unit] = keep;
            next.gates[2 * hidden + unit] = candidate;
            next.gates[3 * hidden + unit] = show;
        }
    }

    /// The output: the change of the logarithm, divided by the scale.
    pub fn read_out(&self, shown: &[f64], beside: &[f64]) -> f64 {
        shown.iter().chain(beside).chain([&1.0]).zip(&self.output).map(|(input, weight)| input * weight).sum()
    }
}

/// The logistic function.
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The hyperbolic tangent: with one exponential it takes half the time of the standard library's, and most of a step's time goes into these.
pub fn tanh(x: f64) -> f64 {
    2.0 * sigmoid(2.0 * x) - 1.0
}

impl Model for Lstm {
    fn window(&self, frame: Frame) -> usize {
        self.features.window(frame)
    }

    fn forecast(&self, frame: Frame, window: &[f64], end: i64) -> f64 {
        let seen = self.features.see(frame, window, end);
        let (mut state, mut next) = (State::new(self.hidden), State::new(self.hidden));
        for row in seen.rows.chunks_exact(self.features.width()) {
            self.step(row, &state, &mut next);
            std::mem::swap(&mut state, &mut next);
        }
        let change = seen.scale * self.read_out(&state.shown, &seen.beside);
        let level = log(window[window.len() - 1]) + change.clamp(-STEEPEST, STEEPEST);
        level.exp_m1() * frame.horizon as f64
    }

    fn check(&self, frame: Frame) -> Result<(), String> {
        self.features.check(frame)?;
        if !(1..=MOST_HIDDEN).contains(&self.hidden) {
            return Err(format!("{} hidden units are not 1 to {MOST_HIDDEN}", self.hidden));
        }
        let wanted = Self::gate_weights(&self.features, self.hidden);
        if self.gates.len() != wanted {
            return Err(format!("its gates have {} weights, not {wanted}", self.gates.len()));
        }
        let wanted = Self::output_weights(&self.features, self.hidden);
        if self.output.len() != wanted {
            return Err(format!("its output has {} weights, not {wanted}", self.output.len()));
        }
        if self.gates.iter().chain(&self.output).any(|weight| !weight.is_finite() || weight.abs() > 1e3) {
            return Err("a weight makes no sense".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A net of two hidden units that sees changes alone.
    fn small() -> Lstm {
        let features = Features { length: 3, days: Vec::new() };
        // For each input: two input gates, two forget gates, two candidates, two output gates.
        let gates = vec![
            0.5, -0.3, 0.1, 0.2, 0.7, -0.6, 0.3, 0.4, // of the change
            0.2, 0.1, -0.1, 0.3, 0.4, -0.2, 0.1, 0.0, // of the first hidden unit
            -0.4, 0.2, 0.2, -0.5, 0.1, 0.3, -0.2, 0.6, // of the second
            0.0, 0.1, 1.0, 1.0, 0.0, 0.05, 0.2, -0.1, // constant
        ];
        Lstm { features, hidden: 2, gates, output: vec![0.8, -0.5, 0.3, 0.1, 0.05, 0.02] }
    }

    #[test]
    fn steps_give_numbers_that_were_computed_by_other_means() {
        // By a program of another language, from the textbook's formulas.
        let net = small();
        let (first, mut second, mut third) = (State::new(2), State::new(2), State::new(2));
        net.step(&[1.2], &first, &mut second);
        net.step(&[-0.4], &second, &mut third);
        assert_near(&second.shown, &[0.264738888173, -0.148059652793]);
        assert_near(&third.kept, &[0.225911382465, -0.084380794802]);
        assert_near(&third.shown, &[0.118618580861, -0.034822753648]);
        assert_near(&[net.read_out(&third.shown, &[-0.4, 1.2, 2.0])], &[0.232306241512]);
    }

    #[test]
    fn forecast_is_the_last_step_raised_by_the_output() {
        let net = small();
        let frame = Frame { step_s: 60, horizon: 1 };
        assert_eq!(net.check(frame), Ok(()));
        assert_eq!(net.window(frame), 4);
        // Changes of 0.6, -0.2 and 1.0, in the mean 0.6: the rows are 1, -1/3 and 5/3. The output is by the program of the test above.
        let window: Vec<f64> = [2.0f64, 2.6, 2.4, 3.4].map(f64::exp_m1).into();
        assert_near(&[net.forecast(frame, &window, 0)], &[(3.4 + 0.6 * 0.983820172537f64).exp_m1()]);
        let two = Frame { horizon: 2, ..frame };
        assert_near(&[net.forecast(two, &window, 0)], &[2.0 * (3.4 + 0.6 * 0.983820172537f64).exp_m1()]);
    }

    #[test]
    fn demand_that_stands_still_is_forecast_to_go_on() {
        let mut net = small();
        net.output.fill(0.0);
        assert_near(&[net.forecast(Frame { step_s: 60, horizon: 3 }, &[7.0; 4], 0)], &[21.0]);
        assert_near(&[net.forecast(Frame { step_s: 60, horizon: 3 }, &[0.0; 4], 0)], &[0.0]);
    }

    #[test]
    fn rows_have_what_followed_a_day_before_and_the_time_of_day() {
        // Four steps a day; the last three of eight are run over.
        let features = Features { length: 3, days: vec![1] };
        let frame = Frame { step_s: 21_600, horizon: 2 };
        assert_eq!((features.window(frame), features.width(), features.beside()), (8, 4, 4));
        let logs = [0.1f64, 0.2, 0.4, 0.7, 1.1, 1.6, 1.2, 1.8];
        let window: Vec<f64> = logs.map(f64::exp_m1).into();
        // The last step ended at six in the morning, the one before at midnight.
        let seen = features.see(frame, &window, 86_400 + 21_600);
        // Changes of 0.5, -0.4 and 0.6, in the mean 0.5. What followed a day before: 0.2, 0.3 and 0.4.
        assert_near(&[seen.scale], &[0.5]);
        assert_near(&seen.rows, &[1.0, 0.4, -1.0, 0.0, -0.8, 0.6, 0.0, 1.0, 1.2, 0.8, 1.0, 0.0]);
        // A day before, 0.7 was followed by 1.1 and 1.6.
        let rise = (f64::midpoint(1.1f64.exp_m1(), 1.6f64.exp_m1()).ln_1p() - 0.7) / 0.5;
        assert_near(&seen.beside, &[1.2, -0.8, 1.0, rise]);
    }

    #[test]
    fn nets_of_wrong_sizes_and_weights_that_are_none_are_refused() {
        let frame = Frame { step_s: 60, horizon: 1 };
        let broken = |change: &dyn Fn(&mut Lstm)| {
            let mut net = small();
            change(&mut net);
            net.check(frame).expect_err("it is refused")
        };
        assert_eq!(broken(&|net| net.gates.truncate(31)), "its gates have 31 weights, not 32");
        assert_eq!(broken(&|net| net.output.push(0.0)), "its output has 7 weights, not 6");
        assert_eq!(broken(&|net| net.gates[3] = f64::NAN), "a weight makes no sense");
        assert_eq!(broken(&|net| net.features.length = 100_000), "a length of 100000 steps is not 3 to 256");
        assert_eq!(broken(&|net| net.hidden = usize::MAX), format!("{} hidden units are not 1 to 64", usize::MAX));
        assert_eq!(broken(&|net| net.features.days = vec![7, 1]), "its days are not ascending numbers from 1 to 14");
        // Fourteen days of minutes, and a few.
        assert!(broken(&|net| net.features.days = vec![14]).contains("is longer than 20160"));
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
        }
    }
}
