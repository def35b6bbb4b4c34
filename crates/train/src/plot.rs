//! Figures of an evaluation.

use slackline_figure::{Axis, Figure, Scale, Series};
use slackline_forecast::time::{self, DAY};

use crate::eval::Report;
use crate::points::Points;

/// The error of each model day by day, and the forecasts of the last day beside what came.
pub(crate) fn figures(report: &Report, points: &Points<'_>) -> Vec<Figure> {
    vec![errors(report, points), last_day(report, points)]
}

fn errors(report: &Report, points: &Points<'_>) -> Figure {
    let day = |at: usize| (points.series.time(at) - report.from).div_euclid(DAY);
    let days = report.points.last().map_or(0, |at| day(*at));
    let line = |scored: &crate::eval::Scored| {
        let mut sums = vec![(0.0, 0usize); days as usize + 1];
        for (at, said) in report.points.iter().zip(&scored.said) {
            let (sum, count) = &mut sums[day(*at) as usize];
            *sum += (said - points.target(*at)).abs();
            *count += 1;
        }
        let means = sums.iter().enumerate().filter(|(_, (_, count))| *count > 0);
        Series::new(scored.kind.name(), means.map(|(day, (sum, count))| (day as f64, sum / *count as f64)).collect())
    };
    Figure {
        name: "forecast-errors".into(),
        title: format!("Mean absolute error of {}", what(points)),
        x: Axis::new(&format!("days since {}", time::format(report.from)), Scale::Linear),
        y: Axis::new("mean absolute error of a day's forecasts", Scale::Log),
        series: report.models.iter().map(line).collect(),
    }
}

fn last_day(report: &Report, points: &Points<'_>) -> Figure {
    let last = report.points.last().map_or(0, |at| points.series.time(*at));
    let begin = last - DAY + points.series.step_s() as i64;
    let hours = |at: usize| (points.series.time(at) - begin) as f64 / 3600.0;
    let shown: Vec<(usize, usize)> =
        report.points.iter().copied().enumerate().filter(|(_, at)| hours(*at) >= 0.0).collect();
    let came = shown.iter().map(|(_, at)| (hours(*at), points.target(*at))).collect();
    let line = |scored: &crate::eval::Scored| {
        Series::new(scored.kind.name(), shown.iter().map(|(order, at)| (hours(*at), scored.said[*order])).collect())
    };
    Figure {
        name: "forecast-last-day".into(),
        title: format!("Forecasts of {}, and what came", what(points)),
        x: Axis::new(&format!("hours since {}", time::format(begin)), Scale::Linear),
        y: Axis::new("demand", Scale::Linear),
        series: report.models.iter().map(line).chain([Series::reference("demand", came)]).collect(),
    }
}

/// What is forecast.
fn what(points: &Points<'_>) -> String {
    let minutes = points.frame.step_s / 60;
    match (points.frame.horizon, minutes) {
        (1, 1) => "the next minute".into(),
        (1, minutes) => format!("the next {minutes} minutes"),
        (steps, minutes) => format!("the next {steps} steps of {minutes} minutes"),
    }
}
