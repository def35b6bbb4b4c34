//! Who shall hold how much after a round: what replaces the paper's Algorithm 2.
//!
//! As printed (section 4.4), `RejectSomeRequests` adds a rejected site's tokens to a sum that already holds them (which
//! creates tokens), the last division drops its remainder (which loses them), and a site that asked for more can end
//! with less. Here the total is divided, never summed twice; wishes are met largest first as long as they fit; and the
//! remainder goes to somebody.

use super::value::Line;

/// What each line's site shall hold in place of what it set aside; same order as `lines`, adds up to `total`.
///
/// 1. Waiting requests come first: the largest need that still fits, so that never less is met than by rejecting the
///    smallest first. What a site kept out of the round is counted in.
/// 2. Then forecasts: in proportion to what each site still lacks of the level it wants.
/// 3. What is left is divided in proportion to the levels wanted, or equally if nobody wants anything; the remainder
///    of each division goes, token by token, to the lowest sites.
pub fn reallocate(lines: &[Line], total: i128) -> Vec<i64> {
    // One sum, of which everything below is taken: nothing is counted twice, as Algorithm 2 does.
    let Ok(mut rest) = i64::try_from(total) else {
        // Only a client that released what it never had gets here; everybody keeps what they have.
        return lines.iter().map(|line| line.held).collect();
    };
    let mut after = vec![0i64; lines.len()];

    // Needs are met whole or not at all: a part of what a request waits for is of no use to it.
    let lacks = |line: &Line, level: i64, has: i64| level.saturating_sub(line.kept.max(0)).saturating_sub(has).max(0);
    let mut by_need: Vec<usize> = (0..lines.len()).collect();
    by_need.sort_by_key(|&at| (std::cmp::Reverse(lacks(&lines[at], lines[at].needed, 0)), lines[at].site));
    for at in by_need {
        let need = lacks(&lines[at], lines[at].needed, 0);
        if need <= rest {
            after[at] += need;
            rest -= need;
        }
    }

    // Then what each still lacks of the level that it wants, what it kept counted in: a site that asks for more does not end with
    // less.
    let weights: Vec<i64> = lines.iter().zip(&after).map(|(line, has)| lacks(line, line.wanted, *has)).collect();
    let lacking: i128 = weights.iter().map(|&weight| i128::from(weight)).sum();
    if lacking > 0 {
        let part = rest.min(lacking.min(i128::from(i64::MAX)) as i64);
        divide(part, &weights, &mut after);
        rest -= part;
    }

    // The rest goes to somebody, too.
    let levels: Vec<i64> = lines.iter().map(|line| line.wanted.max(0)).collect();
    if levels.iter().any(|&level| level > 0) {
        divide(rest, &levels, &mut after);
    } else {
        divide(rest, &vec![1; lines.len()], &mut after);
    }

    let sum: i128 = after.iter().map(|&tokens| i128::from(tokens)).sum();
    assert!(sum == total && after.iter().all(|&tokens| tokens >= 0), "tokens are moved, never made");
    after
}

/// Adds `amount` to `shares` in proportion to `weights` (at least one of which is positive), the remainder one by one
/// to the first that have a weight.
fn divide(amount: i64, weights: &[i64], shares: &mut [i64]) {
    let sum: i128 = weights.iter().map(|&weight| i128::from(weight)).sum();
    let mut rest = amount;
    for (share, &weight) in shares.iter_mut().zip(weights) {
        let part = (i128::from(amount) * i128::from(weight) / sum) as i64;
        *share += part;
        rest -= part;
    }
    let remainder = rest as usize;
    for (share, _) in shares.iter_mut().zip(weights).filter(|(_, weight)| **weight > 0).take(remainder) {
        *share += 1;
        rest -= 1;
    }

    assert_eq!(rest, 0, "the remainder is smaller than the number of weights");
}
