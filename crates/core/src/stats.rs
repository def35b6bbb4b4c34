//! Estimators: how fast a site's tokens are asked for, how often an object is read, how a metric moves ([`trend`]) and how its
//! slack is best divided ([`split`]); and a small seeded generator for back-offs.
//!
//! Forecasts decide when to move tokens and slack, never who owns them, so this is the one place of `core` that uses `f64`.

pub mod split;
pub mod trend;

use crate::clock::SECOND;

/// The time in which demand is forgotten, in seconds: the time constant of the exponentially weighted mean.
pub const MEMORY_SECONDS: f64 = 10.0;

/// Demand for one quota at one site: an exponentially weighted mean of the tokens asked for per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    /// The tokens that were asked for since `since`.
    asked: i64,
    /// The monotonic time of the last fold, in microseconds.
    since: u64,
    /// The mean of tokens asked for a second, as of `since`.
    rate: f64,
    /// The tokens a second that a model expects, until `expected_until`; 0 without a forecast.
    expected: f64,
    /// The monotonic time at which the forecast ends, in microseconds.
    expected_until: u64,
}

impl Demand {
    /// Starts observing at `now` (monotonic microseconds).
    pub fn new(now: u64) -> Self {
        Self { since: now, ..Self::default() }
    }

    /// Notes that `amount` tokens were asked for.
    #[inline]
    pub fn note(&mut self, amount: i64) {
        self.asked = self.asked.saturating_add(amount);
    }

    /// Takes over what a model expects: so many tokens in the next `micros`. It takes the place of the forecast before.
    ///
    /// While it lasts, the greater of it and of the mean counts. A forecast says what comes in minutes, and brings tokens here ahead of it;
    /// the mean follows what came in the last seconds, a crowd that no model has foreseen included. So a forecast that is too low
    /// changes nothing, and one that is too high makes other sites give more than is needed, until it ends.
    pub fn expect(&mut self, now: u64, tokens: i64, micros: u64) {
        let seconds = micros.max(1) as f64 / SECOND as f64;
        self.expected = tokens.max(0) as f64 / seconds;
        self.expected_until = now.saturating_add(micros);
    }

    /// Folds what was noted since the last call into the mean, and drops a forecast that has ended.
    pub fn fold(&mut self, now: u64) {
        if now >= self.expected_until {
            self.expected = 0.0;
        }
        let seconds = now.saturating_sub(self.since) as f64 / SECOND as f64;
        if seconds <= 0.0 {
            return;
        }
        let weight = 1.0 - (-seconds / MEMORY_SECONDS).exp();
        self.rate += (self.asked as f64 / seconds - self.rate) * weight;
        self.asked = 0;
        self.since = now;
    }

    /// Tokens a second, rounded: by the mean, or by a forecast if that says more.
    pub fn rate(&self) -> u64 {
        self.likely() as u64
    }

    fn likely(&self) -> f64 {
        self.rate.max(self.expected)
    }

    /// What is likely to be asked for within `micros`, rounded up.
    pub fn forecast(&self, micros: u64) -> i64 {
        (self.likely() * micros as f64 / SECOND as f64).ceil() as i64
    }
}

/// The size of one request, in tokens: a mean that leans towards large ones, because those are the ones that do not fit.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestSize(f64);

impl RequestSize {
    /// Notes a request. On the hot path.
    #[inline]
    pub fn note(&mut self, amount: i64) {
        let amount = amount as f64;
        self.0 += (amount - self.0) * if amount > self.0 { 0.3 } else { 0.02 };
    }

    /// The size of a large but ordinary request.
    pub fn large(&self) -> i64 {
        self.0.ceil() as i64
    }
}

/// The reads and writes of an object, as its home sees them; from this follows how long a warranty on it should last.
///
/// # The model
///
/// Let reads come every `R` microseconds and writes every `W`, both at random. A warranty of duration `D` saves each read
/// in it a round trip or a part in a commit; it makes a write wait if one comes before it ends, which happens to the
/// fraction `1 - exp(-D/W)`, about `D/W`, of warranties. With `D = W/2` fewer than four in ten warranties are ever met by
/// a write. A read pays for issuing the warranty, so it must be expected to be used again: `R` has to be well below `D`.
/// `W < 2R`, writes more than half as frequent as reads, means that it is not. What was read fewer than three times is not
/// known well enough.
#[derive(Clone, Copy, Debug, Default)]
pub struct Popularity {
    /// The reads so far.
    reads: u32,
    /// The writes so far.
    writes: u32,
    /// The monotonic time of the last read, in microseconds; that of the start before there was one.
    last_read: u64,
    /// The monotonic time of the last write, in microseconds; that of the start before there was one.
    last_write: u64,
    /// The mean time between two reads, in microseconds; 0 before the first.
    read_gap: f64,
    /// The mean time between two writes, in microseconds; 0 before the first.
    write_gap: f64,
}

/// The weight of the past in the averages of [`Popularity`].
const PAST: f64 = 0.9;
/// Reads before a warranty is worth it.
const READS: u32 = 3;

impl Popularity {
    /// Starts observing at `now` (monotonic microseconds).
    pub fn new(now: u64) -> Self {
        Self { last_read: now, last_write: now, ..Self::default() }
    }

    /// Notes reads since the last call.
    pub fn note_reads(&mut self, now: u64, reads: u32) {
        let gap = now.saturating_sub(self.last_read) as f64 / f64::from(reads.max(1));
        self.read_gap = if self.reads == 0 { gap } else { PAST * self.read_gap + (1.0 - PAST) * gap };
        self.reads = self.reads.saturating_add(reads);
        self.last_read = now;
    }

    /// Notes a write.
    pub fn note_write(&mut self, now: u64) {
        let gap = now.saturating_sub(self.last_write) as f64;
        self.write_gap = if self.writes == 0 { gap } else { PAST * self.write_gap + (1.0 - PAST) * gap };
        self.writes = self.writes.saturating_add(1);
        self.last_write = now;
    }

    /// When it was last read or written.
    pub fn last(&self) -> u64 {
        self.last_read.max(self.last_write)
    }

    /// Returns the time for which a warranty issued now should last, in microseconds; zero for none.
    pub fn duration(&self, now: u64, longest: u64) -> u64 {
        if self.reads < READS {
            return 0;
        }

        // Quiet for longer than usual: the interval is at least that long.
        let quiet = now.saturating_sub(self.last_write) as f64;
        let writes = self.write_gap.max(quiet);
        if writes < 2.0 * self.read_gap {
            return 0;
        }

        ((writes / 2.0) as u64).min(longest)
    }
}

/// A seeded generator (SplitMix64) for back-offs and nonces: same seed, same numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero. (The bias is below 2⁻³² for bounds below 2³².)
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `n` on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_approaches_a_constant_rate_and_forgets_it() {
        let mut demand = Demand::new(0);
        for tick in 1..=600u64 {
            demand.note(100);
            demand.fold(tick * SECOND / 10);
        }
        assert!((990..=1000).contains(&demand.rate()), "{}", demand.rate());
        assert!((490..=500).contains(&demand.forecast(SECOND / 2)));
        for tick in 601..=1200u64 {
            demand.fold(tick * SECOND / 10);
        }
        assert!(demand.rate() <= 3, "{}", demand.rate());
    }

    #[test]
    fn size_of_requests_leans_towards_large_ones() {
        let mut size = RequestSize::default();
        (0..100).for_each(|_| size.note(100));
        assert_eq!(size.large(), 100);
        (0..10).for_each(|_| size.note(1));
        assert!(size.large() > 80, "{}", size.large());
        size.note(1000);
        assert!(size.large() > 300, "{}", size.large());
    }

    #[test]
    fn forecast_counts_while_it_lasts_and_says_more_than_the_mean() {
        let mut demand = Demand::new(0);
        demand.expect(0, 6_000, 60 * SECOND);
        assert_eq!((demand.rate(), demand.forecast(SECOND / 2)), (100, 50));
        for tick in 1..=599u64 {
            demand.note(50);
            demand.fold(tick * SECOND / 10);
        }
        assert!((490..=500).contains(&demand.rate()), "more comes than was expected: {}", demand.rate());
        for tick in 600..=1200u64 {
            demand.fold(tick * SECOND / 10);
        }
        assert!(demand.rate() <= 2, "the forecast has ended: {}", demand.rate());
        assert!(demand.rate() < 100);
    }

    #[test]
    fn senseless_forecasts_leave_a_number() {
        let mut demand = Demand::new(0);
        for (tokens, micros) in [(i64::MAX, 0), (i64::MIN, 0), (i64::MAX, u64::MAX), (-5, SECOND), (0, 0)] {
            demand.expect(SECOND, tokens, micros);
            assert!(demand.forecast(4 * SECOND) >= 0);
            demand.fold(2 * SECOND);
        }
        demand.expect(0, i64::MAX, 1);
        assert_eq!(demand.forecast(SECOND), i64::MAX);
    }
}
