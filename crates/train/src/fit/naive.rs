//! The models with one parameter to choose.

use slackline_forecast::{Ewma, Fitted, Parameters, Seasonal, log};

use crate::fit::Task;

/// The weights of an exponentially weighted mean.
const WEIGHTS: [f64; 12] = [1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.03];

/// Fits an exponentially weighted mean: there is nothing but the weight to choose.
pub(super) fn ewma(task: Task<'_>) -> Result<Fitted, String> {
    let fit = |task: Task<'_>, weight: &f64| task.model(Parameters::Ewma(Ewma { weight: *weight }));
    let (weight, _) =
        task.choose(&WEIGHTS, fit).map_err(|_| "the series is too short for an exponentially weighted mean")?;
    fit(task, &weight)
}

/// Fits the course of a day, and chooses the number of steps that the level is taken from.
pub(super) fn seasonal(task: Task<'_>) -> Result<Fitted, String> {
    let step_s = task.points.frame.step_s;
    let day = task.points.frame.day().ok_or_else(|| format!("steps of {step_s} s do not divide a day"))?;
    // The level of one step is the latest, that of a day has no noise.
    let mut candidates: Vec<usize> = vec![1, 2, 4, day / 24, day / 8, day];
    candidates.retain(|steps| *steps > 0);
    candidates.sort_unstable();
    candidates.dedup();

    let fit = |task: Task<'_>, level_steps: &usize| {
        let course = course(task, day)?;
        task.model(Parameters::Seasonal(Seasonal { level_steps: *level_steps, course }))
    };
    let (level_steps, _) = task.choose(&candidates, fit)?;
    fit(task, &level_steps)
}

/// The usual logarithm of each step of a day, less the mean of its day: the median over the whole days.
fn course(task: Task<'_>, day: usize) -> Result<Vec<f64>, String> {
    let series = task.points.series;
    let first = (0..day).find(|at| task.points.frame.place(series.time(*at)) == 0).unwrap_or(0);
    let seen = &series.values()[..task.until];
    let whole = seen.get(first..).unwrap_or_default().chunks_exact(day);
    let days: Vec<Vec<f64>> =
        whole.filter_map(|day| day.iter().copied().map(|value| value.map(log)).collect()).collect();
    if days.len() < 2 {
        return Err("the series is too short: the course of a day needs two whole days without a gap".into());
    }

    let means: Vec<f64> = days.iter().map(|logs| logs.iter().sum::<f64>() / day as f64).collect();
    let usual = |place: usize| {
        let mut above: Vec<f64> = days.iter().zip(&means).map(|(logs, mean)| logs[place] - mean).collect();
        above.sort_by(f64::total_cmp);
        f64::midpoint(above[(above.len() - 1) / 2], above[above.len() / 2])
    };
    Ok((0..day).map(usual).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::points::Points;
    use crate::rng::Rng;
    use slackline_forecast::{Frame, Series};

    fn fit(values: Vec<f64>, step_s: u64, of: impl Fn(Task<'_>) -> Result<Fitted, String>) -> Result<Fitted, String> {
        let series = Series::new(0, step_s, values.into_iter().map(Some).collect());
        let points = Points::new(&series, Frame { step_s, horizon: 1 });
        of(Task { points: &points, until: points.len(), seed: 1 })
    }

    #[test]
    fn mean_of_noise_forgets_slowly_and_that_of_a_walk_at_once() {
        let mut rng = Rng::new(2);
        let noise = (0..2_000).map(|_| 100.0 + 50.0 * rng.symmetric()).collect();
        let weight = |values| match fit(values, 60, ewma).expect("it is long enough").parameters() {
            Parameters::Ewma(ewma) => ewma.weight,
            other => panic!("{other:?}"),
        };
        assert!(weight(noise) <= 0.1);

        let (mut rng, mut level) = (Rng::new(2), 100_000.0);
        let walk = (0..2_000).map(|_| {
            level += 50.0 * rng.symmetric();
            level
        });
        assert!(weight(walk.collect()) >= 0.8);
    }

    #[test]
    fn course_of_a_day_is_found_though_every_day_has_another_level() {
        // Eight steps a day; the third has twice, the last half of the others.
        let shape = [1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.5];
        let days = (0..12).flat_map(|day| shape.map(|part| 1e6 * 1.3f64.powi(day) * part));
        let model = fit(days.collect(), 10_800, seasonal).expect("it is long enough");
        let Parameters::Seasonal(Seasonal { course, .. }) = model.parameters() else { panic!("{model:?}") };
        assert!((course[2] - course[1] - 2f64.ln()).abs() < 1e-3, "{course:?}");
        assert!((course[7] - course[1] - 0.5f64.ln()).abs() < 1e-3, "{course:?}");
    }

    #[test]
    fn series_without_two_whole_days_has_no_course() {
        let problem = fit(vec![1.0; 15], 10_800, seasonal).expect_err("two days have sixteen steps");
        assert!(problem.contains("needs two whole days"), "{problem}");
        let problem = fit(vec![1.0; 5_000], 420, seasonal).expect_err("seven minutes do not divide a day");
        assert_eq!(problem, "steps of 420 s do not divide a day");
    }
}
