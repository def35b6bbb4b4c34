//! Latencies in little memory, to within one part in 128.

/// Sub-buckets for each power of two.
const FINE: u32 = 7;
/// Values below 2⁷ have a bucket each; so has each power of two from there on 2⁷ of them.
const BUCKETS: usize = (64 - FINE as usize + 1) << FINE;

/// A histogram of nanoseconds. A percentile is off by less than 1 %; the largest is exact.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// The number of values in each bucket.
    counts: Vec<u64>,
    /// The number of values in all: the sum of `counts`.
    count: u64,
    /// The largest; 0 if there is none.
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], count: 0, max: 0 }
    }
}

impl Histogram {
    /// Notes one latency.
    #[inline]
    pub fn note(&mut self, nanos: u64) {
        self.note_many(nanos, 1);
    }

    /// Notes `times` equal latencies.
    #[inline]
    pub fn note_many(&mut self, nanos: u64, times: u64) {
        self.counts[bucket(nanos)] += times;
        self.count += times;
        self.max = self.max.max(nanos);
    }

    /// Takes in another histogram.
    pub fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The latency in nanoseconds that a share `q` (0 to 1) does not exceed; zero if nothing was noted.
    pub fn quantile(&self, q: f64) -> u64 {
        // The value at this rank, rounded up to the end of its bucket.
        let rank = ((q * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper(at).min(self.max);
            }
        }
        self.max
    }

    /// The largest.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Upper bounds of the buckets that hold something, with the share of all that is at most that; for figures.
    pub fn shares(&self) -> Vec<(u64, f64)> {
        // Only those that hold something: a figure has as many points as there are different latencies.
        let mut seen = 0;
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled
            .map(|(at, count)| {
                seen += count;
                (upper(at).min(self.max), seen as f64 / self.count as f64)
            })
            .collect()
    }
}

/// Below 2⁸ a bucket is one value; above, each power of two has 2⁷ buckets.
#[inline]
fn bucket(nanos: u64) -> usize {
    let shift = (63 - (nanos | 1).leading_zeros()).saturating_sub(FINE);
    ((shift as usize) << FINE) + (nanos >> shift) as usize
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let fine = 1usize << FINE;
    if bucket < 2 * fine {
        return bucket as u64;
    }
    let shift = (bucket >> FINE) - 1;
    let first = (bucket - (shift << FINE)) as u64;
    (first << shift) + ((1u64 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_part_in_128_of_the_sorted_list() {
        let mut histogram = Histogram::default();
        let mut all = Vec::new();
        let mut state = 1u64;
        for _ in 0..5_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let value = (state >> 33) >> (state % 31);
            histogram.note(value);
            all.push(value);
        }
        all.sort_unstable();
        for q in [0.001, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = all[((q * all.len() as f64).ceil() as usize - 1).min(all.len() - 1)];
            let found = histogram.quantile(q);
            assert!(found >= exact && found <= exact + exact / 127 + 1, "{q}: {exact} {found}");
        }
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }

    #[test]
    fn every_value_lies_in_the_bucket_that_ends_at_or_after_it() {
        for value in (0..2_000).chain([u64::MAX, u64::MAX / 2, 1 << 40]) {
            let at = bucket(value);
            assert!(at < BUCKETS && upper(at) >= value && (at == 0 || upper(at - 1) < value), "{value}");
        }
    }
}
