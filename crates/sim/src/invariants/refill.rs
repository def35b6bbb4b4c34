//! A quota that refills is a token bucket: in any T seconds at most its limit and what the rate brings in T is granted, over all sites.

/// The invariant's name.
pub const NAME: &str = "a quota that refills keeps to its rate";

/// What is known of such a quota.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// The limit.
    pub limit: i64,
    /// The rate, in millionths of a token a second.
    pub rate: u64,
    /// Sites may have granted what they granted so long before it was seen, in microseconds: one may be held up between its look at its
    /// clock and what follows.
    pub late: u64,
}

/// Judges all that was ever granted: when it was seen, and how many tokens.
pub fn check(bucket: Bucket, granted: &mut [(u64, i64)]) -> Result<(), String> {
    granted.sort_unstable();
    let in_millionths = |tokens: i64| u128::from(tokens.unsigned_abs()) * 1_000_000;
    let brings = |micros: u64| u128::from(micros) * u128::from(bucket.rate) / 1_000_000;

    // What is out of the bucket: it flows back at the rate, and is never more than the bucket holds.
    let most = in_millionths(bucket.limit) + brings(bucket.late);
    let (mut out, mut at) = (0u128, 0);
    for &(when, tokens) in granted.iter() {
        out = out.saturating_sub(brings(when - at)) + in_millionths(tokens);
        at = when;
        if out > most {
            return Err(format!(
                "{tokens} tokens were granted at {when} while {} millionths of {} were out",
                out - in_millionths(tokens),
                bucket.limit
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_limit_and_what_the_rate_brings_is_noticed() {
        let bucket = Bucket { limit: 10, rate: 2_000_000, late: 0 };
        let second = 1_000_000;
        assert_eq!(check(bucket, &mut [(0, 10), (2 * second, 4), (second / 2, 1)][..2]), Ok(()));
        assert!(check(bucket, &mut [(0, 10), (2 * second, 5)]).is_err());
        // What is not used is not saved up beyond the limit.
        assert_eq!(check(bucket, &mut [(90 * second, 10), (90 * second + second / 2, 1)]), Ok(()));
        assert!(check(bucket, &mut [(90 * second, 10), (90 * second + second / 2, 2)]).is_err());
        // Seen in another order than it happened.
        assert!(check(bucket, &mut [(second, 5), (0, 10)]).is_err());
        assert_eq!(check(Bucket { late: 2 * second, ..bucket }, &mut [(second, 5), (0, 10)]), Ok(()));
    }
}
