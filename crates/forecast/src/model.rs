//! What every demand model has in common.

use std::fmt;

use crate::time::DAY;

/// The most steps that a model may read: two weeks of minutes. A site keeps as many for each quota that has a model.
pub const LONGEST_WINDOW: usize = 20_160;
/// The most steps of which a model forecasts the sum.
const LONGEST_HORIZON: usize = 1_440;
/// The longest step, in seconds.
const LONGEST_STEP: u64 = 86_400;

/// A demand model.
///
/// It holds no state: the same window gives the same forecast, so a site that starts again forecasts as before once it has the demand
/// of a window.
pub trait Model {
    /// The number of steps that a forecast reads; 1 or more.
    fn window(&self, frame: Frame) -> usize;

    /// The sum of the next `frame.horizon` steps, as expected. `window` has the demand of as many steps as [`Self::window`] says, the
    /// last of which ended at `end` (seconds since 1970).
    fn forecast(&self, frame: Frame, window: &[f64], end: i64) -> f64;

    /// Says what is wrong with the parameters, if they make no sense for this frame.
    fn check(&self, frame: Frame) -> Result<(), String>;
}

/// The step and the horizon that a model is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The length of a step, in seconds; a whole number of minutes.
    pub step_s: u64,
    /// The number of steps of which the sum is forecast.
    pub horizon: usize,
}

impl Frame {
    /// Says what is wrong with it.
    pub fn check(self) -> Result<(), String> {
        if self.step_s == 0 || !self.step_s.is_multiple_of(60) || self.step_s > LONGEST_STEP {
            return Err(format!(
                "a step of {} s makes no sense: it is a whole number of minutes, up to a day",
                self.step_s
            ));
        }
        if self.horizon == 0 || self.horizon > LONGEST_HORIZON {
            return Err(format!("a horizon of {} makes no sense: it is 1 to {LONGEST_HORIZON} steps", self.horizon));
        }
        Ok(())
    }

    /// The number of steps of a day, if that is a whole number of 2 or more.
    pub fn day(self) -> Option<usize> {
        let day = DAY as u64;
        (self.step_s > 0 && day.is_multiple_of(self.step_s) && day > self.step_s).then(|| (day / self.step_s) as usize)
    }

    /// The place in its day of the step that begins at `time`, from 0.
    pub fn place(self, time: i64) -> usize {
        (time.rem_euclid(DAY) as u64 / self.step_s) as usize
    }
}

/// The kinds of models.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// [`RandomWalk`](crate::RandomWalk).
    RandomWalk,
    /// [`Seasonal`](crate::Seasonal).
    Seasonal,
    /// [`Ewma`](crate::Ewma).
    Ewma,
    /// [`Arima`](crate::Arima).
    Arima,
    /// [`Lstm`](crate::Lstm).
    Lstm,
}

impl Kind {
    /// All of them, the simplest first.
    pub const ALL: [Kind; 5] = [Kind::RandomWalk, Kind::Seasonal, Kind::Ewma, Kind::Arima, Kind::Lstm];

    /// The name in files and commands.
    pub fn name(self) -> &'static str {
        match self {
            Kind::RandomWalk => "random-walk",
            Kind::Seasonal => "seasonal",
            Kind::Ewma => "ewma",
            Kind::Arima => "arima",
            Kind::Lstm => "lstm",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
