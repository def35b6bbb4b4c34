//! A series of demand, and the file that it is read from.

use std::io;
use std::path::{Path, PathBuf};

use crate::time::{self, MINUTE};

/// The first line of a file.
const HEAD: &str = "period,count";
/// The most minutes from the first to the last of a file: about 19 years. What is longer has a wrong year in it.
const LONGEST: i64 = 10_000_000;

/// The demand of each step, from a beginning on without a break; a step that was not observed is a gap.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// The beginning of the first step, in seconds since 1970; a whole multiple of `step_s`.
    start: i64,
    /// The length of a step, in seconds; a whole number of minutes.
    step_s: u64,
    /// The demand of each step; `None` is a gap.
    values: Vec<Option<f64>>,
}

/// A series cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// The file cannot be read.
    #[error("cannot read the series {}: {source}; give the path of a readable file", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line makes no sense.
    #[error("{} line {line}: {problem}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// There is not a minute in it.
    #[error("the series {} is empty: it needs a line for each minute, like 1998-04-30 21:30:00,2", .0.display())]
    Empty(PathBuf),
}

impl Series {
    /// A series of these values.
    pub fn new(start: i64, step_s: u64, values: Vec<Option<f64>>) -> Self {
        Self { start, step_s, values }
    }

    /// Reads a file of `period,count` for each minute. Minutes that it lacks are gaps.
    pub fn read(path: &Path) -> Result<Self, SeriesError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| SeriesError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads what such a file has; `path` is named in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SeriesError> {
        let fail = |line: usize, problem| SeriesError::Line { path: path.to_owned(), line: line + 1, problem };
        let mut lines = text.lines().map(str::trim).enumerate();
        match lines.next() {
            None => return Err(SeriesError::Empty(path.to_owned())),
            Some((_, HEAD)) => {}
            Some((line, _)) => return Err(fail(line, format!("the first line must be {HEAD}"))),
        }

        let mut start = None;
        let mut values: Vec<Option<f64>> = Vec::new();
        for (line, text) in lines.filter(|(_, text)| !text.is_empty()) {
            let (period, count) = minute(text).map_err(|problem| fail(line, problem))?;
            let start = *start.get_or_insert(period);
            let expected = start + values.len() as i64 * MINUTE;

            // Sorting would hide that two series were put into one file, or that a clock was set back while it was written.
            if period < expected {
                let before = time::format(expected - MINUTE);
                let problem = format!("the time goes back: {} comes after {before}", time::format(period));
                return Err(fail(line, problem));
            }
            if period - start > LONGEST * MINUTE {
                return Err(fail(line, format!("{} is too long after the first line", time::format(period))));
            }
            values.extend((expected..period).step_by(MINUTE as usize).map(|_| None));
            values.push(Some(count));
        }
        match start {
            Some(start) => Ok(Self { start, step_s: MINUTE as u64, values }),
            None => Err(SeriesError::Empty(path.to_owned())),
        }
    }

    /// The sums of longer steps, which begin at whole multiples of their length. One that lacks any of its parts is a gap.
    /// `step_s` must be a multiple of this series' step.
    pub fn in_steps(&self, step_s: u64) -> Self {
        let (ours, step) = (self.step_s as i64, step_s as i64);
        assert!(step > 0 && step % ours == 0, "a step of {step} s is no whole number of steps of {ours} s");
        let parts = (step / ours) as usize;

        // The first step begins where this series does, or before; then its parts are not all there.
        let start = self.start.div_euclid(step) * step;
        let before = ((self.start - start) / ours) as usize;
        let padded: Vec<Option<f64>> = std::iter::repeat_n(None, before).chain(self.values.iter().copied()).collect();
        let sum = |parts: &[Option<f64>]| parts.iter().copied().sum::<Option<f64>>();
        let values = padded.chunks_exact(parts).map(sum).collect();
        Self { start, step_s, values }
    }

    /// The steps that begin at `from` or later and end at `until` or before.
    pub fn between(&self, from: Option<i64>, until: Option<i64>) -> Self {
        let step = self.step_s as i64;
        let place = |time: i64| (time - self.start).div_euclid(step).clamp(0, self.values.len() as i64) as usize;
        let first = from.map_or(0, |from| place(from + step - 1));
        let last = until.map_or(self.values.len(), place).max(first);
        Self { start: self.time(first), step_s: self.step_s, values: self.values[first..last].to_vec() }
    }

    /// The first steps, as many as this.
    pub fn first(&self, count: usize) -> Self {
        Self { values: self.values[..count.min(self.values.len())].to_vec(), ..*self }
    }

    /// The beginning of step `at`, in seconds since 1970; for the number of steps, the end of the last.
    pub fn time(&self, at: usize) -> i64 {
        self.start + at as i64 * self.step_s as i64
    }

    /// The length of a step, in seconds.
    pub fn step_s(&self) -> u64 {
        self.step_s
    }

    /// The demand of each step; `None` is a gap.
    pub fn values(&self) -> &[Option<f64>] {
        &self.values
    }

    /// The sum of `horizon` steps from `at` on, if all are there.
    pub fn sum(&self, at: usize, horizon: usize) -> Option<f64> {
        self.values.get(at..at + horizon)?.iter().copied().sum()
    }
}

/// The minute and the demand of a line.
fn minute(text: &str) -> Result<(i64, f64), String> {
    let problem = || format!("\"{text}\" is no period and count, like 1998-04-30 21:30:00,2");
    let (period, count) = text.split_once(',').ok_or_else(problem)?;
    let period = time::parse(period.trim()).ok_or_else(problem)?;
    let count: f64 = count.trim().parse().map_err(|_| problem())?;
    if !(count.is_finite() && count >= 0.0) {
        return Err(format!("a count of {count} makes no sense: write a number of 0 or more"));
    }
    if period % MINUTE != 0 {
        return Err(format!("{} is no whole minute", time::format(period)));
    }
    Ok((period, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &str) -> Result<Series, String> {
        Series::parse(&format!("period,count\n{lines}"), Path::new("demand.csv")).map_err(|error| error.to_string())
    }

    #[test]
    fn missing_minute_is_a_gap_and_not_a_zero() {
        let series = parse("1998-04-30 21:30:00,2\n1998-04-30 21:31:00,0\n1998-04-30 21:34:00,7\n").expect("it parses");
        assert_eq!(series.values(), [Some(2.0), Some(0.0), None, None, Some(7.0)]);
        assert_eq!(time::format(series.time(4)), "1998-04-30 21:34:00");
        assert_eq!(series.sum(0, 2), Some(2.0));
        assert_eq!(series.sum(0, 3), None);
        assert_eq!(series.sum(4, 2), None, "beyond the end nothing is known");
    }

    #[test]
    fn longer_step_that_lacks_a_minute_is_a_gap() {
        let minute = |at: i64| format!("{},1\n", time::format(at * MINUTE));
        // Four minutes of the first five; then five; then five with a gap; then two of five.
        let lines: String = (1..17).filter(|at| *at != 12).map(minute).collect();
        let series = parse(&lines).expect("it parses").in_steps(300);
        assert_eq!(series.values(), [None, Some(5.0), None]);
        assert_eq!((series.time(0), series.step_s()), (0, 300));
    }

    #[test]
    fn part_of_a_series_has_the_steps_that_lie_in_it() {
        let series = Series::new(600, 60, (0..10).map(|value| Some(f64::from(value))).collect());
        let part = series.between(Some(661), Some(900));
        assert_eq!(part.values(), [Some(2.0), Some(3.0), Some(4.0)]);
        assert_eq!(part.time(0), 720);
        assert_eq!(series.between(None, None), series);
        assert_eq!(series.between(Some(100_000), None).values(), []);
        assert_eq!(series.between(Some(900), Some(700)).values(), []);
        assert_eq!(series.first(2).values(), [Some(0.0), Some(1.0)]);
    }

    #[test]
    fn senseless_lines_are_refused_in_one_sentence() {
        for (lines, problem) in [
            ("1998-04-30 21:31:00,2\n1998-04-30 21:30:00,1\n", "line 3: the time goes back: 1998-04-30 21:30:00 comes"),
            ("1998-04-30 21:31:00,2\n1998-04-30 21:31:00,2\n", "line 3: the time goes back"),
            ("1998-04-30 21:31:00,-2\n", "line 2: a count of -2 makes no sense"),
            ("1998-04-30 21:31:00,NaN\n", "line 2: a count of NaN makes no sense"),
            ("1998-04-30 21:31:30,2\n", "line 2: 1998-04-30 21:31:30 is no whole minute"),
            ("1998-04-30,2\n", "line 2: \"1998-04-30,2\" is no period and count"),
            ("1998-04-30 21:31:00,2\n2998-04-30 21:31:00,2\n", "line 3: 2998-04-30 21:31:00 is too long after"),
            ("", "the series demand.csv is empty"),
        ] {
            let error = parse(lines).expect_err(lines);
            assert!(error.contains(problem), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let error = Series::parse("time,count\n", Path::new("a.csv")).expect_err("the head is wrong");
        assert_eq!(error.to_string(), "a.csv line 1: the first line must be period,count");
        let error = Series::read(Path::new("no-such.csv")).expect_err("it is missing");
        assert!(error.to_string().starts_with("cannot read the series no-such.csv: "), "{error}");
    }
}
