//! How a number that keeps changing moves: its velocity, and how much it strays from it.
//!
//! The model is that of *Predictive Treaties* (EuroSys 2019, section 4.4): a metric moves at a constant velocity, plus a scaled
//! Brownian motion, `m₀ + v·t + σ·B(t)`. What is observed are changes, each at one time. Then the sum of the changes over a
//! time, divided by it, estimates `v`, and the sum of their squares `σ²`: changes are independent of each other in that
//! model. Both are exponentially weighted, so that an old trend is forgotten.

use crate::clock::SECOND;

/// The time in which changes are forgotten, in seconds: the time constant of the exponentially weighted means.
const MEMORY: f64 = 60.0;
/// So many changes are not forgotten, however long ago they were: what moves seldom would else have no estimate.
const FEW: f64 = 20.0;
/// A velocity that was seen in so many changes is taken for half of it.
const DOUBT: f64 = 2.0;
/// Changes are added up, and folded into the means when this much time has passed, in microseconds.
const FOLD: u64 = SECOND / 4;

/// How a number moves, estimated from its changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trend {
    /// The monotonic time up to which changes are in the means, in microseconds.
    folded: u64,
    /// The changes since then.
    moved: f64,
    /// The number of changes since then.
    count: f64,
    /// The squares of the changes since then.
    squares: f64,
    /// The weighted time over which changes were observed, in seconds.
    weight: f64,
    /// The weighted number of changes.
    changes: f64,
    /// The weighted sum of changes.
    sum: f64,
    /// The weighted sum of their squares.
    sum_of_squares: f64,
}

/// The estimates of a [`Trend`], as integers: these travel between sites, and stand in answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Motion {
    /// The velocity, in millionths a second.
    pub velocity: i64,
    /// The standard deviation after one second, in millionths; after `t` seconds it is `√t` times as much. Never negative.
    pub noise: i64,
}

/// The largest velocity or noise that is reported, in millionths: 2⁵⁰, which an `f64` holds exactly.
const MOST: f64 = (1u64 << 50) as f64;

impl Trend {
    /// Starts observing at `now` (monotonic microseconds).
    pub fn new(now: u64) -> Self {
        Self { folded: now, ..Self::default() }
    }

    /// Notes a change.
    pub fn note(&mut self, now: u64, change: i64) {
        if now.saturating_sub(self.folded) >= FOLD {
            self.fold(now);
        }
        let change = change as f64;
        self.moved += change;
        self.count += 1.0;
        self.squares += change * change;
    }

    /// Folds what was noted since the last call into the means.
    fn fold(&mut self, now: u64) {
        let seconds = now.saturating_sub(self.folded) as f64 / SECOND as f64;
        let kept = (-seconds / MEMORY).exp().max((FEW / self.changes).min(1.0));
        self.changes = self.changes * kept + self.count;
        self.weight = self.weight * kept + seconds;
        self.sum = self.sum * kept + self.moved;
        self.sum_of_squares = self.sum_of_squares * kept + self.squares;
        (self.folded, self.moved, self.count, self.squares) = (now, 0.0, 0.0, 0.0);
    }

    /// The estimates as of now. Before anything was observed, the number is taken to stand still.
    ///
    /// Few changes say little. So they are taken for noise more than for a velocity; and one more than was seen counts as noise, because
    /// it may come any time. Else whoever has not changed yet would be expected never to, and be left without slack.
    pub fn motion(&self, now: u64) -> Motion {
        let mut folded = *self;
        folded.fold(now);
        if folded.weight <= 0.0 {
            return Motion::default();
        }
        let velocity = folded.sum / folded.weight * folded.changes / (folded.changes + DOUBT);
        let usual = if folded.changes > 0.0 { folded.sum_of_squares / folded.changes } else { 1.0 };
        let noise = folded.sum_of_squares / folded.weight + usual / (folded.weight + MEMORY);
        let noise = noise.max(0.0).sqrt();
        let millionths = |number: f64| (number * 1e6).clamp(-MOST, MOST) as i64;
        Motion { velocity: millionths(velocity), noise: millionths(noise) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Rng;

    /// The station of the paper's figure 2: 100 votes a second, of which 60 in 100 raise the margin.
    #[test]
    fn votes_of_a_station_have_the_velocity_and_the_noise_of_their_bias() {
        for (bias, velocity, noise) in [(60, 20.0, 9.8), (48, -4.0, 9.99)] {
            let (mut rng, mut trend) = (Rng::new(7), Trend::new(0));
            for vote in 0..30_000u64 {
                trend.note(vote * SECOND / 100, if rng.below(100) < bias { 1 } else { -1 });
            }
            let motion = trend.motion(300 * SECOND);
            let (v, s) = (motion.velocity as f64 / 1e6, motion.noise as f64 / 1e6);
            assert!((v - velocity).abs() < 2.5, "{v} for {velocity}");
            assert!((s - noise).abs() < 0.3, "{s} for {noise}");
        }
    }

    #[test]
    fn trend_that_turned_is_forgotten() {
        let mut trend = Trend::new(0);
        (0..600u64).for_each(|second| trend.note(second * SECOND, 5));
        (600..1_200u64).for_each(|second| trend.note(second * SECOND, -5));
        assert!(trend.motion(1_200 * SECOND).velocity < -4_800_000);
        assert_eq!(Trend::new(5).motion(5), Motion::default());
        assert!(trend.motion(9_000 * SECOND).velocity.abs() < 20_000, "nothing happened for long");
    }
}
