//! Popularity by Zipf's law.

use slackline_core::stats::Rng;

/// Draws positions below a bound; the one at position `k` with a probability in proportion to `1 / (k + 1)^s`.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Sums of probabilities up to each position, in parts of 2⁶⁴.
    sums: Vec<u64>,
}

impl Zipf {
    /// A law over `count` positions with exponent `s`. `count` is at least 1.
    pub fn new(count: usize, s: f64) -> Self {
        Self::weighted(&(1..=count).map(|rank| (rank as f64).powf(-s)).collect::<Vec<f64>>())
    }

    /// A law by which each position has its own weight. There is one at least, and one that is not zero.
    pub fn weighted(weights: &[f64]) -> Self {
        let total: f64 = weights.iter().sum();

        // Sums of whole numbers, so that a draw is a search and no arithmetic.
        let mut sum = 0.0;
        let sums = weights.iter().map(|weight| {
            sum += weight;
            (sum / total * u64::MAX as f64) as u64
        });
        Self { sums: sums.collect() }
    }

    /// A position.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let mark = rng.draw();
        // The last sum may be rounded to less than the highest mark.
        self.sums.partition_point(|sum| *sum < mark).min(self.sums.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_comes_twice_as_often_as_the_second_and_all_come() {
        let (zipf, mut rng) = (Zipf::new(100, 1.0), Rng::new(1));
        let mut counts = [0u32; 100];
        (0..200_000).for_each(|_| counts[zipf.draw(&mut rng)] += 1);
        assert!(counts.iter().all(|count| *count > 0));
        let ratio = f64::from(counts[0]) / f64::from(counts[1]);
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
    }
}
