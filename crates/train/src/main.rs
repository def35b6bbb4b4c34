//! `slackline-train`: fits demand models to a series, and measures how well they forecast it.
//!
//! A package that the default build leaves out: a site runs models and fits none.
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`points`] | where in a series a forecast can be compared with what came |
//! | [`fit`] | a model from the first steps of a series |
//! | [`eval`] | every model fitted to the first part of a series, and its forecasts of the rest |
//! | [`plot`] | figures of that |

mod eval;
mod fit;
mod plot;
mod points;
mod rng;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use slackline_forecast::{Frame, Kind, Series, time};

use crate::eval::Report;
use crate::fit::Task;
use crate::points::Points;

/// Fits demand models to a series, and measures how well they forecast it.
#[derive(Parser)]
#[command(name = "slackline-train", version, arg_required_else_help = true, term_width = 80)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fit a model to a series, and write it to a file that a site loads.
    Fit(Fit),
    /// Fit every model to the first part of a series, and compare their forecasts of the rest.
    Eval(Eval),
}

/// The demand that is forecast.
#[derive(Args)]
struct Demand {
    /// The demand per minute: a file of `period,count` lines, like the output of `slackline quota demand`.
    #[arg(long, value_name = "FILE")]
    series: PathBuf,
    /// The length of a step: 1m, 5m, 1h.
    #[arg(long, default_value = "1m", value_parser = step, value_name = "TIME")]
    step: u64,
    /// The number of steps of which the sum is forecast.
    #[arg(long, default_value_t = 1, value_name = "STEPS")]
    horizon: usize,
    /// Leave out what is before this time, like 1998-05-20 or "1998-05-20 12:00:00".
    #[arg(long, value_parser = moment, value_name = "TIME")]
    from: Option<i64>,
    /// Leave out what is after this time.
    #[arg(long, value_parser = moment, value_name = "TIME")]
    until: Option<i64>,
    /// The seed of the net's first weights and of the order of its samples.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct Fit {
    #[command(flatten)]
    demand: Demand,
    /// The kind of model.
    #[arg(long)]
    model: ModelName,
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Args)]
struct Eval {
    #[command(flatten)]
    demand: Demand,
    /// The share of the series that models are fitted to before the first forecast.
    #[arg(long, default_value_t = 0.8, value_parser = share, value_name = "SHARE")]
    train: f64,
    /// Fit once, and not again at the end of each day.
    #[arg(long)]
    fit_once: bool,
    /// Compare only this model with the random walk; may be given several times.
    #[arg(long)]
    model: Vec<ModelName>,
    /// Draw figures into this directory.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModelName {
    RandomWalk,
    Seasonal,
    Ewma,
    Arima,
    Lstm,
}

impl From<ModelName> for Kind {
    fn from(name: ModelName) -> Kind {
        match name {
            ModelName::RandomWalk => Kind::RandomWalk,
            ModelName::Seasonal => Kind::Seasonal,
            ModelName::Ewma => Kind::Ewma,
            ModelName::Arima => Kind::Arima,
            ModelName::Lstm => Kind::Lstm,
        }
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Fit(fit) => fit.run(),
        Command::Eval(eval) => eval.run(),
    };
    match done {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("slackline-train: {problem}");
            ExitCode::FAILURE
        }
    }
}

impl Demand {
    fn frame(&self) -> Result<Frame, String> {
        let frame = Frame { step_s: self.step, horizon: self.horizon };
        frame.check().map(|()| frame)
    }

    /// The part of the series that is wanted, in steps.
    fn load(&self) -> Result<Series, String> {
        let minutes = Series::read(&self.series).map_err(|error| error.to_string())?;
        let steps = minutes.between(self.from, self.until).in_steps(self.step);
        if steps.values().iter().all(Option::is_none) {
            let path = self.series.display();
            return Err(format!("{path} has no whole step of {} s between those times", self.step));
        }
        Ok(steps)
    }
}

impl Fit {
    fn run(self) -> Result<String, String> {
        let frame = self.demand.frame()?;
        let series = self.demand.load()?;
        let points = Points::new(&series, frame);
        let kind = Kind::from(self.model);
        let task = Task { points: &points, until: points.len(), seed: self.demand.seed };
        let path = self.demand.series.display();
        let model =
            fit::fit(kind, task, None).map_err(|problem| format!("{kind} cannot be fitted to {path}: {problem}"))?;

        if !fit::is_kept(&model) {
            return Err(format!("{kind} would read {} steps: more than two weeks, which sites keep", model.window()));
        }
        let json = model.to_json().map_err(|error| error.to_string())?;
        write(&self.out, &json)?;
        let (first, last) = (time::format(series.time(0)), time::format(series.time(points.len())));
        let steps = model.window();
        Ok(format!(
            "{kind} fitted to {first} to {last}; it reads {steps} steps of {} s; written to {}",
            frame.step_s,
            self.out.display()
        ))
    }
}

impl Eval {
    fn run(self) -> Result<String, String> {
        let frame = self.demand.frame()?;
        let series = self.demand.load()?;
        let points = Points::new(&series, frame);
        let plan = eval::Plan { share: self.train, seed: self.demand.seed, fit_once: self.fit_once };
        let wanted: Vec<Kind> = self.model.into_iter().map(Kind::from).collect();
        let is_wanted = |kind: &Kind| wanted.is_empty() || *kind == Kind::RandomWalk || wanted.contains(kind);
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(is_wanted).collect();
        let report = eval::run(&points, plan, &kinds)?;
        if let Some(directory) = &self.plot {
            let figures = plot::figures(&report, &points);
            slackline_figure::draw_all(&figures, directory)
                .map_err(|error| format!("cannot draw into {}: {error}", directory.display()))?;
        }
        let name = self.demand.series.display().to_string();
        Ok(if self.json { report.to_json(&name, frame) } else { to_text(&report, &name, frame) })
    }
}

/// The report for people.
fn to_text(report: &Report, series: &str, frame: Frame) -> String {
    let (from, until) = (time::format(report.from), time::format(report.until));
    let mut text = format!(
        "{series}: {} forecasts of {} x {} s, from {from} to {until}\n\n{:<12} {:>14} {:>15} {:>9}",
        report.points.len(),
        frame.horizon,
        frame.step_s,
        "model",
        "mae",
        "of random walk",
        "fit"
    );
    for scored in &report.models {
        let (mae, of, fit_s) = (scored.mae, scored.of_random_walk, scored.fit_s);
        text += &format!("\n{:<12} {mae:>14.2} {of:>15.3} {fit_s:>7.1} s", scored.kind);
    }
    for (kind, why) in &report.left_out {
        text += &format!("\n{kind} is left out: {why}");
    }
    text
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, format!("{text}\n")).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Reads the length of a step, in seconds.
fn step(text: &str) -> Result<u64, String> {
    let problem = || format!("\"{text}\" is no step: write a number of minutes or hours, like 1m, 15m or 1h");
    let split = text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let (number, unit) = text.split_at(split);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(problem()),
    };
    let step = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(problem)?;
    Frame { step_s: step, horizon: 1 }.check().map(|()| step)
}

/// Reads a time; a date alone is its midnight.
fn moment(text: &str) -> Result<i64, String> {
    time::parse(text)
        .or_else(|| time::parse(&format!("{text} 00:00:00")))
        .ok_or_else(|| format!("\"{text}\" is no time: write 1998-05-20 or \"1998-05-20 12:00:00\""))
}

/// Reads a share that leaves something on either side.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.05..=0.99).contains(share));
    share.ok_or_else(|| format!("\"{text}\" is no share from 0.05 to 0.99"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_times_are_read_as_people_write_them() {
        assert_eq!((step("1m"), step("90m"), step("1h"), step("1d")), (Ok(60), Ok(5_400), Ok(3_600), Ok(86_400)));
        for text in ["", "m", "1", "1w", "-1m", "0m", "30s", "2d", "99999999999999999999m"] {
            assert!(step(text).is_err(), "{text}");
        }
        assert_eq!(moment("1970-01-02"), Ok(86_400));
        assert_eq!(moment("1970-01-02 00:01:00"), Ok(86_460));
        assert!(moment("yesterday").is_err());
        assert!(share("0.8").is_ok() && share("1").is_err() && share("NaN").is_err());
    }
}
