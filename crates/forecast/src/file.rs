//! A fitted model, and the file that it is kept in.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arima::Arima;
use crate::ewma::Ewma;
use crate::logs::log;
use crate::lstm::Lstm;
use crate::model::{Frame, Kind, LONGEST_WINDOW, Model};
use crate::random_walk::RandomWalk;
use crate::seasonal::Seasonal;

/// The most bytes of a file: the largest net and the finest course of a day are far smaller.
const LARGEST: u64 = 4 << 20;
/// The most tokens that a forecast may say: what is above is no demand.
const MOST: f64 = 1e15;

/// The most forecasts that a model is calibrated by.
const MOST_CALIBRATED: usize = 1_440;
/// The weight of what was fitted, against what the last forecasts say.
const PRIOR: f64 = 0.5;
/// The bounds of what a departure from the random walk may be multiplied by.
const GAINS: (f64, f64) = (0.0, 1.5);

/// A model with its parameters, for a step and a horizon.
///
/// # Calibration
///
/// What was fitted in quiet days may be wrong in a crowd: where demand goes back and forth by chance, the best forecast lies nearer to the mean
/// than the last step; where it climbs for an hour, that forecast is late at every step. So a model may be calibrated by its own last
/// forecasts, which are made again from the window. They say how much of its departures from the random walk came true; the next departure is
/// multiplied by that. (The least-squares slope of what came on what was said, both in logarithms, drawn towards 1.)
#[derive(Clone, PartialEq, Debug)]
pub struct Fitted {
    frame: Frame,
    parameters: Parameters,
    /// The number of last forecasts that it is calibrated by; 0 for none.
    calibrated_by: usize,
}

/// A kind of model, with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub enum Parameters {
    /// The last step again.
    RandomWalk(RandomWalk),
    /// The course of a day.
    Seasonal(Seasonal),
    /// An exponentially weighted mean.
    Ewma(Ewma),
    /// An autoregression.
    Arima(Arima),
    /// A recurrent net.
    Lstm(Lstm),
}

/// A file has no model that can be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the model {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What it has makes no sense.
    #[error("the model {} makes no sense: {problem}", .path.display())]
    Senseless {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// It is for another step.
    #[error("the model {} is for steps of {found} s, and steps of {wanted} s are wanted", .path.display())]
    Step {
        /// The file.
        path: PathBuf,
        /// The step of the model, in seconds.
        found: u64,
        /// The step that is wanted, in seconds.
        wanted: u64,
    },
}

/// The layout of a file.
#[derive(Serialize, Deserialize)]
struct Layout {
    kind: String,
    step_s: u64,
    horizon: usize,
    #[serde(default)]
    calibrated_by: usize,
    parameters: Value,
}

impl Parameters {
    /// The kind.
    pub fn kind(&self) -> Kind {
        match self {
            Parameters::RandomWalk(_) => Kind::RandomWalk,
            Parameters::Seasonal(_) => Kind::Seasonal,
            Parameters::Ewma(_) => Kind::Ewma,
            Parameters::Arima(_) => Kind::Arima,
            Parameters::Lstm(_) => Kind::Lstm,
        }
    }

    fn model(&self) -> &dyn Model {
        match self {
            Parameters::RandomWalk(model) => model,
            Parameters::Seasonal(model) => model,
            Parameters::Ewma(model) => model,
            Parameters::Arima(model) => model,
            Parameters::Lstm(model) => model,
        }
    }

    fn to_json(&self) -> serde_json::Result<Value> {
        match self {
            Parameters::RandomWalk(model) => serde_json::to_value(model),
            Parameters::Seasonal(model) => serde_json::to_value(model),
            Parameters::Ewma(model) => serde_json::to_value(model),
            Parameters::Arima(model) => serde_json::to_value(model),
            Parameters::Lstm(model) => serde_json::to_value(model),
        }
    }

    fn from_json(kind: Kind, json: Value) -> serde_json::Result<Self> {
        Ok(match kind {
            Kind::RandomWalk => Parameters::RandomWalk(serde_json::from_value(json)?),
            Kind::Seasonal => Parameters::Seasonal(serde_json::from_value(json)?),
            Kind::Ewma => Parameters::Ewma(serde_json::from_value(json)?),
            Kind::Arima => Parameters::Arima(serde_json::from_value(json)?),
            Kind::Lstm => Parameters::Lstm(serde_json::from_value(json)?),
        })
    }
}

impl Fitted {
    /// A model for a step and a horizon. Says what is wrong with it if it makes no sense.
    pub fn new(frame: Frame, parameters: Parameters) -> Result<Self, String> {
        frame.check()?;
        parameters.model().check(frame)?;
        Ok(Self { frame, parameters, calibrated_by: 0 })
    }

    /// The same model, calibrated by so many of its last forecasts; 0 for none.
    pub fn calibrated(self, by: usize) -> Result<Self, String> {
        let calibrated = Self { calibrated_by: by, ..self };
        if by > MOST_CALIBRATED || calibrated.window() > LONGEST_WINDOW {
            return Err(format!(
                "it cannot be calibrated by {by} forecasts, as at most {MOST_CALIBRATED} are made again"
            ));
        }
        Ok(calibrated)
    }

    /// Loads the model that a file has, which must be for steps of this length.
    pub fn load(path: &Path, step_s: u64) -> Result<Self, LoadError> {
        let read = |source| LoadError::Read { path: path.to_owned(), source };
        let senseless = |problem| LoadError::Senseless { path: path.to_owned(), problem };

        // A pipe would keep whoever reads it, and a device may never end.
        if !std::fs::metadata(path).map_err(read)?.is_file() {
            return Err(senseless("it is no file".into()));
        }
        let (mut text, file) = (String::new(), std::fs::File::open(path).map_err(read)?);
        file.take(LARGEST + 1).read_to_string(&mut text).map_err(read)?;
        if text.len() as u64 > LARGEST {
            return Err(senseless(format!("it has more than {LARGEST} bytes")));
        }

        let model = Self::parse(&text).map_err(senseless)?;
        let found = model.frame.step_s;
        if found != step_s {
            return Err(LoadError::Step { path: path.to_owned(), found, wanted: step_s });
        }
        Ok(model)
    }

    /// Reads a model from JSON. Says what is wrong with it if it makes no sense.
    pub fn parse(json: &str) -> Result<Self, String> {
        let layout: Layout = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == layout.kind).ok_or_else(|| {
            let names = Kind::ALL.map(Kind::name).join(", ");
            format!("its kind is {:?}, and not one of {names}", layout.kind)
        })?;
        let parameters = Parameters::from_json(kind, layout.parameters).map_err(|error| error.to_string())?;
        Self::new(Frame { step_s: layout.step_s, horizon: layout.horizon }, parameters)?
            .calibrated(layout.calibrated_by)
    }

    /// The model as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let Frame { step_s, horizon } = self.frame;
        let parameters = self.parameters.to_json()?;
        let (kind, calibrated_by) = (self.kind().name().into(), self.calibrated_by);
        serde_json::to_string(&Layout { kind, step_s, horizon, calibrated_by, parameters })
    }

    /// The kind of model.
    pub fn kind(&self) -> Kind {
        self.parameters.kind()
    }

    /// The step and the horizon.
    pub fn frame(&self) -> Frame {
        self.frame
    }

    /// The parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The number of last forecasts that it is calibrated by; 0 for none.
    pub fn calibrated_by(&self) -> usize {
        self.calibrated_by
    }

    /// The number of steps that a forecast reads.
    pub fn window(&self) -> usize {
        let window = self.parameters.model().window(self.frame);
        // The horizons of the forecasts that are made again are over.
        if self.calibrated_by == 0 { window } else { window + self.frame.horizon + self.calibrated_by - 1 }
    }

    /// The sum of the next steps, as expected, after these; the last of them ended at `end` (seconds since 1970). Only the last
    /// [`Self::window`] are looked at. None where one has a gap that the model reads, or where the model says what is no demand.
    pub fn forecast(&self, steps: &[Option<f64>], end: i64) -> Option<f64> {
        let first = steps.len().checked_sub(self.window())?;

        // A gap is no number, and what is computed from it is none. A model may read a few steps of a long window.
        let window: Vec<f64> = steps[first..].iter().map(|step| step.unwrap_or(f64::NAN)).collect();
        let sum = match self.calibrated_by {
            0 => self.parameters.model().forecast(self.frame, &window, end),
            by => self.calibrate(&window, end, by),
        };
        // Parameters may be fitted badly, or written by hand.
        (sum.is_finite() && sum <= MOST).then_some(sum.max(0.0))
    }

    /// The forecast after a window, corrected by what came of so many before it.
    fn calibrate(&self, window: &[f64], end: i64, by: usize) -> f64 {
        let Frame { step_s, horizon } = self.frame;
        let model = self.parameters.model();
        let reads = model.window(self.frame);
        // What the model says after `at` steps of the window, and what a random walk would.
        let said = |at: usize| {
            let end = end - (window.len() - at) as i64 * step_s as i64;
            (log(model.forecast(self.frame, &window[at - reads..at], end)), log(window[at - 1] * horizon as f64))
        };

        let last = window.len() - horizon;
        let (mut agreed, mut departed) = (0.0, 0.0);
        for at in last + 1 - by..=last {
            let (model, walk) = said(at);
            let came = log(window[at..at + horizon].iter().sum());
            let (departs, differs) = (model - walk, came - walk);

            // Of what was not observed nobody knows whether it came true.
            if departs.is_nan() || differs.is_nan() {
                continue;
            }
            agreed += departs * differs;
            departed += departs * departs;
        }
        let (model, walk) = said(window.len());
        let gain = (agreed + PRIOR * departed) / ((1.0 + PRIOR) * departed);
        // A model that never departs has nothing to be corrected.
        let corrected = if gain.is_finite() { walk + gain.clamp(GAINS.0, GAINS.1) * (model - walk) } else { model };
        corrected.exp_m1()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Features;

    const EWMA: &str = r#"{"kind":"ewma","step_s":60,"horizon":2,"parameters":{"weight":0.5}}"#;

    #[test]
    fn every_kind_is_read_as_it_was_written() {
        let features = Features { length: 3, days: vec![1, 7] };
        let gates = vec![0.1; Lstm::gate_weights(&features, 3)];
        let output = vec![-0.2; Lstm::output_weights(&features, 3)];
        let all = [
            Parameters::RandomWalk(RandomWalk {}),
            Parameters::Seasonal(Seasonal { level_steps: 3, course: vec![0.1; 24] }),
            Parameters::Ewma(Ewma { weight: 0.3 }),
            Parameters::Arima(Arima { lags: vec![1, 24], coefficients: vec![0.3, 1.0 / 3.0] }),
            Parameters::Lstm(Lstm { features, hidden: 3, gates, output }),
        ];
        for parameters in all {
            let model =
                Fitted::new(Frame { step_s: 3600, horizon: 6 }, parameters).and_then(|model| model.calibrated(9));
            let model = model.expect("it makes sense");
            let json = model.to_json().expect("it is written");
            assert_eq!(Fitted::parse(&json), Ok(model), "{json}");
        }
    }

    #[test]
    fn gap_in_the_window_leaves_nothing_to_forecast() {
        let model = Fitted::parse(EWMA).expect("it parses");
        let mut steps = vec![Some(5.0); model.window() + 1];
        assert_eq!(model.forecast(&steps, 0), Some(10.0));
        steps[0] = None;
        assert_eq!(model.forecast(&steps, 0), Some(10.0), "a gap before the window does not matter");
        steps[1] = None;
        assert_eq!(model.forecast(&steps, 0), None);
        assert_eq!(model.forecast(&[Some(5.0)], 0), None, "too few steps");
    }

    #[test]
    fn gap_where_a_model_does_not_read_changes_nothing() {
        let arima = Arima { lags: vec![1, 24], coefficients: vec![0.3, 0.3] };
        let frame = Frame { step_s: 3600, horizon: 2 };
        let model = Fitted::new(frame, Parameters::Arima(arima)).expect("it makes sense");
        let whole: Vec<Option<f64>> = (0..60).map(|at| Some(100.0 + 10.0 * f64::from(at % 24))).collect();
        let with_gap = |back: usize| {
            let mut steps = whole.clone();
            steps[60 - back] = None;
            steps
        };
        assert_eq!(model.forecast(&with_gap(12), 0), model.forecast(&whole, 0), "twelve hours ago");
        for back in [1, 2, 24] {
            assert_eq!(model.forecast(&with_gap(back), 0), None, "{back} hours ago");
        }

        // It is calibrated by what is known.
        let calibrated = model.calibrated(20).expect("20 are not too many");
        assert!(calibrated.forecast(&whole, 0).is_some() && calibrated.forecast(&with_gap(12), 0).is_some());
        assert_eq!(calibrated.forecast(&with_gap(1), 0), None);
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        let refused = Fitted::load(Path::new("/dev/zero"), 60).expect_err("it never ends").to_string();
        assert!(refused.contains("it is no file"), "{refused}");
    }

    #[test]
    fn calibrated_model_departs_as_far_as_was_right_lately() {
        // It says that half of every change is taken back.
        let arima = Arima { lags: vec![1], coefficients: vec![-0.5] };
        let model = Fitted::new(Frame { step_s: 60, horizon: 1 }, Parameters::Arima(arima)).expect("it makes sense");
        let calibrated = model.clone().calibrated(20).expect("20 are not too many");
        assert_eq!((model.window(), calibrated.window()), (2, 22));

        // Where all of each change is taken back, it departs by more, up to a half; where demand climbs, not at all.
        let waves: Vec<Option<f64>> = (0..30).map(|at| Some(if at % 2 == 0 { 1_000.0 } else { 1_100.0 })).collect();
        let climb: Vec<Option<f64>> = (0..30).map(|at| Some(1_000.0 * 1.05f64.powi(at))).collect();
        let (said, better) = (model.forecast(&waves, 0), calibrated.forecast(&waves, 0));
        assert!(said < Some(1_060.0) && better < Some(1_030.0) && better > Some(1_000.0), "{said:?} {better:?}");
        let (said, better) = (model.forecast(&climb, 0), calibrated.forecast(&climb, 0));
        assert!(
            said < climb[29] && (better.unwrap_or(0.0) - climb[29].unwrap_or(0.0)).abs() < 1e-6,
            "{said:?} {better:?}"
        );

        // Where nothing ever changes, there is nothing to go by.
        assert!((calibrated.forecast(&[Some(7.0); 22], 0).unwrap_or(0.0) - 7.0).abs() < 1e-9);
        assert!(model.calibrated(100_000).is_err());
    }

    #[test]
    fn forecast_that_is_no_demand_is_none() {
        let json = r#"{"kind":"arima","step_s":60,"horizon":1440,"parameters":{"lags":[1],"coefficients":[9]}}"#;
        assert_eq!(Fitted::parse(json).expect("it parses").forecast(&[Some(5.0), Some(9.0)], 0), None);
    }

    #[test]
    fn senseless_files_are_refused_in_one_sentence() {
        for (json, problem) in [
            ("", "EOF while parsing"),
            ("{}", "missing field `kind`"),
            (&EWMA.replace("ewma", "oracle"), "its kind is \"oracle\", and not one of random-walk, seasonal, ewma"),
            (&EWMA.replace("0.5", "null"), "invalid type: null"),
            (&EWMA.replace("0.5", "NaN"), "expected"),
            (&EWMA.replace("0.5", "1e999"), "number out of range"),
            (&EWMA.replace("0.5", "2"), "a weight of 2 is not above 0"),
            (&EWMA.replace(":60", ":90"), "a step of 90 s makes no sense"),
            (&EWMA.replace(":2,", ":0,"), "a horizon of 0 makes no sense"),
            (&EWMA.replace(":2,", ":100000,"), "a horizon of 100000 makes no sense"),
        ] {
            let error = Fitted::parse(json).expect_err(json);
            assert!(error.contains(problem), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn files_that_are_missing_or_for_another_step_are_refused() {
        let error = Fitted::load(Path::new("no-such.json"), 60).expect_err("it is missing").to_string();
        assert!(error.starts_with("cannot read the model no-such.json: "), "{error}");

        let path = std::env::temp_dir().join(format!("slackline-forecast-{}.json", std::process::id()));
        std::fs::write(&path, EWMA).expect("the file is written");
        let (right, wrong) = (Fitted::load(&path, 60), Fitted::load(&path, 3600));
        std::fs::remove_file(&path).expect("the file is removed");
        assert_eq!(right.expect("it loads").kind(), Kind::Ewma);
        let error = wrong.expect_err("the step is another").to_string();
        assert!(error.ends_with("is for steps of 60 s, and steps of 3600 s are wanted"), "{error}");
    }
}
