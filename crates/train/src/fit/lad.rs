//! Linear regression with the least absolute error.
//!
//! Forecasts are judged by their absolute error, and demand has sudden crowds: a minute with fifty times the usual demand would rule a
//! regression by least squares. The method is that of iterated weights: what is minimized is the sum of squares, each weighed by
//! one over the size of its last residual.

/// The most rounds; the coefficients of thousands of rows hardly move after about half as many.
const ROUNDS: usize = 30;
/// A residual of less than this share of the mean one counts as this much: no row gets an infinite weight.
const LEAST: f64 = 1e-3;
/// What is added to the diagonal, as a share of it: columns may say the same.
const RIDGE: f64 = 1e-6;

/// Rows of a regression.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    /// The numbers of each row, one row after the other.
    inputs: Vec<f64>,
    /// What each row should give.
    targets: Vec<f64>,
    /// How much each row's error counts; not negative.
    weights: Vec<f64>,
}

impl Rows {
    /// Adds a row.
    pub(crate) fn push(&mut self, inputs: impl IntoIterator<Item = f64>, target: f64, weight: f64) {
        self.inputs.extend(inputs);
        self.targets.push(target);
        self.weights.push(weight);
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.targets.len()
    }

    /// The coefficients with the least weighted sum of absolute errors. None if there are fewer rows than a few for each coefficient,
    /// or if the rows do not say what the coefficients are.
    pub(crate) fn fit(&self) -> Option<Vec<f64>> {
        let width = self.inputs.len().checked_div(self.len())?;
        if self.len() < 4 * width {
            return None;
        }

        let mut scales = self.weights.clone();
        let mut found: Option<Vec<f64>> = None;
        for _ in 0..ROUNDS {
            let next = self.least_squares(width, &scales)?;
            let residuals: Vec<f64> = self.rows(width).map(|(row, target)| (target - dot(row, &next)).abs()).collect();
            let least = LEAST * residuals.iter().sum::<f64>() / residuals.len() as f64;
            let still = found.as_ref().is_some_and(|found| {
                found.iter().zip(&next).all(|(one, other)| (one - other).abs() < 1e-6 * (1.0 + one.abs()))
            });
            found = Some(next);
            if still || least == 0.0 {
                break;
            }
            for ((scale, weight), residual) in scales.iter_mut().zip(&self.weights).zip(&residuals) {
                *scale = weight / residual.max(least);
            }
        }
        found.filter(|found| found.iter().all(|number| number.is_finite()))
    }

    fn rows(&self, width: usize) -> impl Iterator<Item = (&[f64], f64)> {
        self.inputs.chunks_exact(width).zip(self.targets.iter().copied())
    }

    /// The coefficients with the least sum of squares, each weighed by its scale.
    fn least_squares(&self, width: usize, scales: &[f64]) -> Option<Vec<f64>> {
        let mut matrix = vec![0.0; width * width];
        let mut right = vec![0.0; width];
        for ((row, target), scale) in self.rows(width).zip(scales) {
            for (line, one) in row.iter().enumerate() {
                let scaled = scale * one;
                right[line] += scaled * target;
                for (cell, other) in matrix[line * width..=line * width + line].iter_mut().zip(row) {
                    *cell += scaled * other;
                }
            }
        }
        for line in 0..width {
            matrix[line * width + line] *= 1.0 + RIDGE;
        }
        solve(matrix, right)
    }
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Solves a symmetric system, of which the lower half is given, by Cholesky's method. None if it is not positive definite.
fn solve(mut matrix: Vec<f64>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let width = right.len();
    for line in 0..width {
        for column in 0..=line {
            let known =
                dot(&matrix[line * width..line * width + column], &matrix[column * width..column * width + column]);
            let rest = matrix[line * width + column] - known;
            if line > column {
                matrix[line * width + column] = rest / matrix[column * width + column];
            } else if rest > 0.0 {
                matrix[line * width + line] = rest.sqrt();
            } else {
                return None;
            }
        }
    }

    for line in 0..width {
        let known = dot(&matrix[line * width..line * width + line], &right[..line]);
        right[line] = (right[line] - known) / matrix[line * width + line];
    }
    for line in (0..width).rev() {
        let known: f64 = (line + 1..width).map(|below| matrix[below * width + line] * right[below]).sum();
        right[line] = (right[line] - known) / matrix[line * width + line];
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn coefficients_are_found_though_a_tenth_of_the_rows_is_far_off() {
        let mut rng = Rng::new(1);
        let mut rows = Rows::default();
        for row in 0..2000 {
            let inputs = [1.0, rng.symmetric(), rng.symmetric()];
            let crowd = if row % 10 == 0 { 50.0 } else { 0.0 };
            rows.push(inputs, 0.5 - 2.0 * inputs[1] + 3.0 * inputs[2] + 0.01 * rng.symmetric() + crowd, 1.0);
        }
        let found = rows.fit().expect("the rows say it");
        for (found, expected) in found.iter().zip([0.5, -2.0, 3.0]) {
            assert!((found - expected).abs() < 0.01, "{found} is not {expected}");
        }
    }

    #[test]
    fn constant_is_the_weighted_median() {
        let mut rows = Rows::default();
        for (value, weight) in [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (100.0, 1.0), (4.0, 10.0)] {
            rows.push([1.0], value, weight);
        }
        let found = rows.fit().expect("the rows say it");
        assert!((found[0] - 4.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn rows_that_do_not_say_it_give_nothing() {
        let mut rows = Rows::default();
        assert_eq!(rows.fit(), None);
        (0..100).for_each(|_| rows.push([0.0, 1.0], 1.0, 1.0));
        assert_eq!(rows.fit(), None, "a column of zeros has no coefficient");
    }
}
