//! Fits a model to a series.
//!
//! What cannot be computed is chosen from a few candidates: each is fitted to the first four fifths of what it may see, and the one with the
//! least error on the rest is fitted again to all. So is it decided whether a model is calibrated. Nothing here sees a step at `until` or later.

mod arima;
mod lad;
mod lstm;
mod naive;
mod net;

use slackline_forecast::{Fitted, Kind, LONGEST_WINDOW, Parameters, RandomWalk};

use crate::points::Points;

/// The forecasts that a model is calibrated by, if it is: an hour of minutes.
const CALIBRATED: usize = 60;
/// The share of the steps to which candidates are fitted; they are compared on the rest.
const FITTED: f64 = 0.8;
/// The most steps on which they are compared: the last ones, two days of minutes.
const JUDGED: usize = 2_880;
/// The most samples that a model is fitted to, the last ones: ten days of minutes. What was usual before may be so no longer.
const LATEST: usize = 14_400;
/// A candidate with this much of the least error is as good: then the simplest is taken, which comes first.
const AS_GOOD: f64 = 1.002;
/// A model is calibrated if that makes its error no more than this much greater: the last two days may have had no crowd, and in one it
/// saves several times as much.
const PREMIUM: f64 = 1.02;

/// What a fit is about.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    /// The series.
    pub(crate) points: &'a Points<'a>,
    /// The number of its first steps that may be looked at.
    pub(crate) until: usize,
    /// The seed of what is random.
    pub(crate) seed: u64,
}

impl Task<'_> {
    /// The same for the part to which candidates are fitted.
    fn first_part(self) -> Self {
        let rest = self.until - (self.until as f64 * FITTED) as usize;
        Self { until: self.until - rest.min(JUDGED), ..self }
    }

    /// The error of a candidate that was fitted to the first part, on the rest: over the points with a window of this length, which is the
    /// same for all candidates.
    fn judge(self, candidate: &Fitted, window: usize) -> Option<f64> {
        self.points.error(candidate, self.first_part().until..self.until, window)
    }

    /// The model of these parameters. What a fit has computed makes sense, but from a series that makes none.
    fn model(self, parameters: Parameters) -> Result<Fitted, String> {
        Fitted::new(self.points.frame, parameters)
    }

    /// The first candidate with about the least error, fitted to the first part. Each is a way to fit, the simplest first; those that the series
    /// is too short for do not count.
    fn choose<C: Clone>(
        self,
        candidates: &[C],
        fit: impl Fn(Task<'_>, &C) -> Result<Fitted, String>,
    ) -> Result<(C, Fitted), String> {
        let mut problem = String::from("there is nothing to choose from");
        let mut fitted = Vec::new();
        for candidate in candidates {
            match fit(self.first_part(), candidate) {
                Ok(model) if !is_kept(&model) => problem = "it would read more than two weeks, which sites keep".into(),
                Ok(model) => fitted.push((candidate, model)),
                Err(error) => problem = error,
            }
        }

        // All are judged on the same points: those that have the longest window of them before them. Where there are gaps, a long window
        // leaves few points, and a model that reads it would seldom say anything.
        let points = |model: &Fitted| self.points.within(self.first_part().until..self.until, model.window()).count();
        let most = fitted.iter().map(|(_, model)| points(model)).max().unwrap_or(0);
        fitted.retain(|(_, model)| 2 * points(model) > most);
        let window = fitted.iter().map(|(_, model)| model.window()).max().unwrap_or(0);
        let errors: Vec<Option<f64>> = fitted.iter().map(|(_, model)| self.judge(model, window)).collect();
        let least = errors.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let good =
            fitted.into_iter().zip(errors).find(|(_, error)| error.is_some_and(|error| error <= AS_GOOD * least));
        good.map(|((candidate, model), _)| (candidate.clone(), model)).ok_or(problem)
    }

    /// The number of forecasts to calibrate a model by, which was fitted to the first part: none if that makes it worse.
    fn calibration(self, model: &Fitted) -> usize {
        let Ok(calibrated) = model.clone().calibrated(CALIBRATED) else { return 0 };
        let window = calibrated.window();
        if !is_kept(&calibrated) {
            return 0;
        }
        let errors = self.judge(&calibrated, window).zip(self.judge(model, window));
        if errors.is_some_and(|(calibrated, plain)| calibrated <= PREMIUM * plain) { CALIBRATED } else { 0 }
    }
}

/// True if sites keep as much demand as a model reads: so many minutes.
pub(crate) fn is_kept(model: &Fitted) -> bool {
    model.window() as u64 * model.frame().step_s <= LONGEST_WINDOW as u64 * 60
}

/// Fits a model to the first steps of a series. `before` is the same kind of model, fitted to fewer steps, if there is one: what is chosen for a
/// net takes some time, and is kept.
pub(crate) fn fit(kind: Kind, task: Task<'_>, before: Option<&Fitted>) -> Result<Fitted, String> {
    task.points.frame.check()?;
    match kind {
        Kind::RandomWalk => task.model(Parameters::RandomWalk(RandomWalk {})),
        Kind::Seasonal => naive::seasonal(task),
        Kind::Ewma => naive::ewma(task),
        Kind::Arima => arima::fit(task),
        Kind::Lstm => lstm::fit(task, before),
    }
}
