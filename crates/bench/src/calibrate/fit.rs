//! Terms from measurements: least squares, none below zero.

/// The number of terms of a site's processor time: input, operation, object, send, byte.
pub(super) const TERMS: usize = 5;

/// The number of times that something of each term is done.
pub(super) type Counts = [f64; TERMS];

/// One measurement: what a request made a site do, and the processor time that it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The number of times that the site did something of each term.
    pub(super) counts: Counts,
    /// The processor time, in nanoseconds.
    pub(super) nanos: f64,
}

/// The time of a request with these counts, by these terms.
pub(super) fn predict(counts: &Counts, terms: &Counts) -> f64 {
    counts.iter().zip(terms).map(|(count, term)| count * term).sum()
}

/// The terms, none below zero, by which the sum of the squares of all relative errors is least.
///
/// Of non-negative solutions the best has some terms at zero, and is the plain least-squares solution in the others. There are
/// only 31 choices of those, so all are tried.
pub(super) fn fit(rows: &[Row]) -> Counts {
    // Divided by what was measured, so that the error of each row is relative to it, and small requests count as much as large ones.
    let rows: Vec<Counts> =
        rows.iter().filter(|row| row.nanos > 0.0).map(|row| row.counts.map(|count| count / row.nanos)).collect();

    let error = |terms: &Counts| rows.iter().map(|row| (predict(row, terms) - 1.0).powi(2)).sum::<f64>();
    let choices = (1..1usize << TERMS).filter_map(|chosen| least_squares(&rows, chosen));
    let feasible = choices.filter(|terms| terms.iter().all(|term| term.is_finite() && *term >= 0.0));
    feasible.min_by(|one, other| error(one).total_cmp(&error(other))).unwrap_or_default()
}

/// The least-squares solution of `rows · terms = 1` in the chosen terms (a set of bits), the others zero; none if it is not
/// unique. Columns are scaled to the same length first, because bytes are many and inputs are few.
fn least_squares(rows: &[Counts], chosen: usize) -> Option<Counts> {
    let columns: Vec<usize> = (0..TERMS).filter(|term| chosen >> term & 1 == 1).collect();
    let length = |term: usize| rows.iter().map(|row| row[term] * row[term]).sum::<f64>().sqrt();
    let scales: Vec<f64> = columns.iter().map(|&term| length(term)).collect();
    // No row says anything of a term that is never counted.
    if scales.contains(&0.0) {
        return None;
    }

    // The normal equations: the derivative of the sum of squares in each chosen term is zero.
    let scaled = |row: &Counts, at: usize| row[columns[at]] / scales[at];
    let equation = |at: usize| {
        let mut equation: Vec<f64> =
            (0..columns.len()).map(|other| rows.iter().map(|row| scaled(row, at) * scaled(row, other)).sum()).collect();
        equation.push(rows.iter().map(|row| scaled(row, at)).sum());
        equation
    };
    let solution = solve((0..columns.len()).map(equation).collect())?;

    let mut terms = [0.0; TERMS];
    for ((&term, value), scale) in columns.iter().zip(solution).zip(scales) {
        terms[term] = value / scale;
    }
    Some(terms)
}

/// Solves linear equations, each with its right side last; none if there is not exactly one solution.
fn solve(mut equations: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let size = equations.len();
    for column in 0..size {
        // The largest pivot, so that rounding errors do not grow.
        let best = (column..size).max_by(|&a, &b| equations[a][column].abs().total_cmp(&equations[b][column].abs()))?;
        equations.swap(column, best);
        let pivot = equations[column].clone();
        if pivot[column].abs() < 1e-9 {
            return None;
        }

        // The column leaves all other equations, so no substitution is left to be done (Gauss and Jordan).
        for (_, equation) in equations.iter_mut().enumerate().filter(|(order, _)| *order != column) {
            let factor = equation[column] / pivot[column];
            equation.iter_mut().zip(&pivot).for_each(|(value, of_pivot)| *value -= factor * of_pivot);
        }
    }
    Some(equations.iter().enumerate().map(|(at, equation)| equation[size] / equation[at]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::stats::Rng;

    /// Loads that differ in one thing at a time.
    const LOADS: [Counts; 8] = [
        [1.0, 1.0, 0.0, 2.0, 120.0],
        [1.0, 128.0, 0.0, 2.0, 4_000.0],
        [1.0, 0.0, 1.0, 1.0, 0.0],
        [1.0, 0.0, 128.0, 1.0, 0.0],
        [1.0, 1.0, 128.0, 1.0, 30.0],
        [1.0, 1.0, 32.0, 2.0, 4_000.0],
        [1.0, 1.0, 1.0, 2.0, 16_500.0],
        [2.0, 1.0, 1.0, 4.0, 300.0],
    ];

    fn rows(terms: &Counts, error: impl FnMut() -> f64) -> Vec<Row> {
        let mut error = error;
        let row = |counts| Row { counts, nanos: predict(&counts, terms) * (1.0 + error()) };
        LOADS.into_iter().map(row).collect()
    }

    #[test]
    fn known_terms_are_found_again() {
        for known in [[2_000.0, 500.0, 1_000.0, 1_000.0, 1.0], [9_000.0, 40.0, 0.0, 0.0, 3.5]] {
            let found = fit(&rows(&known, || 0.0));
            for (found, known) in found.iter().zip(&known) {
                assert!((found - known).abs() <= 1e-6 * known.max(1.0), "{found} is not {known}");
            }
        }
    }

    #[test]
    fn errors_of_a_hundredth_move_no_term_by_a_quarter() {
        let (known, mut rng) = ([2_000.0, 500.0, 1_000.0, 1_500.0, 1.0], Rng::new(1));
        for _ in 0..200 {
            let found = fit(&rows(&known, || (rng.below(2_001) as f64 - 1_000.0) / 1e5));
            for (found, known) in found.iter().zip(&known) {
                assert!((found / known - 1.0).abs() < 0.25, "{found} for {known}");
            }
        }
    }

    #[test]
    fn no_term_is_below_zero() {
        let found = fit(&rows(&[5_000.0, 300.0, 200.0, -1_500.0, 1.0], || 0.0));
        assert_eq!(found[3], 0.0);
        assert!(found.iter().all(|term| term.is_finite() && *term >= 0.0) && found[0] > 0.0, "{found:?}");
        assert_eq!(fit(&[]), [0.0; TERMS]);
    }
}
