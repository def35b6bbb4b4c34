//! How the slack of a treaty is divided among the sites that share it (*Predictive Treaties*, EuroSys 2019, section 4.5).
//!
//! A site's part of a sum fails when its slack is used up. By the model of [`super::trend`], with `s` of slack, a velocity `v`
//! and a bound that rises at the rate `r`, it lasts until the first zero of
//!
//! ```text
//!   s + (v - r)·t - z·σ·√t
//! ```
//!
//! where `z` says how careful the forecast is. This is convex in `t`: it may be positive at the end of a time and negative within
//! it, so the first zero is what counts ([`lasts`]).
//!
//! # The best division
//!
//! The paper maximizes the earliest failure by numerical optimization. There is a closed form. Let `V` be the sum of all
//! velocities and `S` the slack of all. Whatever the division is, the parts need together at any time `t` at least
//! `z·Σσ·√t - V·t`, as rates only move slack between them. If slack *and* what is left of the velocity are both divided in
//! proportion to `σ`, every part needs at every time exactly its share of that, and so all last as long as the whole would at
//! one site. No division lasts longer. So [`moving`] is exact integer arithmetic: there is nothing that could diverge.
//!
//! Where bounds must not move ([`fixed`]), a part with the velocity `v` needs for a time `T` the most that
//! `z·σ·√t - v·t` comes to within it. The longest `T` for which there is enough is found by bisection.

use super::trend::Motion;
use crate::clock::SECOND;
use crate::codec::clamped;

/// How many standard deviations a forecast allows for.
const CAREFUL: f64 = 3.0;
/// The longest time that is forecast, in seconds. What lasts as long as that lasts forever.
const FOREVER: f64 = 1e9;
/// Steps of the bisection: more than a division of [`FOREVER`] into microseconds takes.
const STEPS: u32 = 64;

/// The part of one site: its slack, and how the number moves of which that is the slack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outlook {
    /// Its slack; negative if the part has failed.
    pub slack: i64,
    /// How it moves.
    pub motion: Motion,
}

/// A site's part of a division.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Its slack.
    pub slack: i64,
    /// The rate at which its bound rises, in millionths a second; negative where the bound falls.
    pub rate: i64,
}

/// The time for which a part is expected to last while its bound rises at a rate in millionths a second, in microseconds.
/// None if it is not expected to fail.
pub fn lasts(outlook: &Outlook, rate: i64) -> Option<u64> {
    let drift = outlook.motion.velocity.saturating_sub(rate) as f64 / 1e6;
    let seconds = first_zero(outlook.slack as f64, drift, CAREFUL * outlook.motion.noise as f64 / 1e6);
    (seconds < FOREVER).then_some((seconds * SECOND as f64) as u64)
}

/// The slack that a part needs to last for a time in microseconds, as far as the model goes, while its bound rises at a rate in
/// millionths a second.
pub fn needs(outlook: &Outlook, rate: i64, micros: u64) -> i64 {
    let velocity = outlook.motion.velocity.saturating_sub(rate);
    let part = Outlook { motion: Motion { velocity, ..outlook.motion }, ..*outlook };
    needed(&part, micros as f64 / SECOND as f64).floor() as i64 + 1
}

/// What is left of the slack of a part after a time in microseconds, at the least, whatever its velocity is.
pub fn sure(outlook: &Outlook, micros: u64) -> i64 {
    let strays = CAREFUL * outlook.motion.noise as f64 / 1e6 * (micros as f64 / SECOND as f64).sqrt();
    outlook.slack.saturating_sub(strays as i64).max(0)
}

/// The first `t`, in seconds, at which `slack + drift·t - spread·√t` is not above zero; [`FOREVER`] if there is none.
fn first_zero(slack: f64, drift: f64, spread: f64) -> f64 {
    if slack <= 0.0 {
        return 0.0;
    }

    // With x = √t, this is drift·x² - spread·x + slack = 0. The smaller positive root, in a form that divides by no
    // difference: a drift near zero costs no precision.
    let square = spread * spread - 4.0 * drift * slack;
    if square < 0.0 {
        return FOREVER;
    }
    let divisor = spread + square.sqrt();
    let root = 2.0 * slack / divisor;
    if divisor > 0.0 && root.is_finite() { (root * root).min(FOREVER) } else { FOREVER }
}

/// Divides the slack of several parts so that, as far as the model goes, the first of them fails as late as possible, where
/// bounds may move. The slack is that of all together, all of it is divided, and the rates add up to zero.
///
/// What the parts have lost together is not divided: it stays with the first.
pub fn moving(parts: &[Outlook]) -> Vec<Share> {
    let noises: Vec<i64> = parts.iter().map(|part| part.motion.noise.max(0)).collect();
    let slack = parts.iter().map(|part| i128::from(part.slack)).sum();
    let velocity = parts.iter().map(|part| i128::from(part.motion.velocity)).sum();
    let slacks = in_proportion(slack, &noises);
    let drifts = in_proportion(velocity, &noises);

    let rate = |(part, drift): (&Outlook, &i64)| part.motion.velocity.saturating_sub(*drift);
    let rates = parts.iter().zip(&drifts).map(rate);
    slacks.iter().zip(rates).map(|(slack, rate)| Share { slack: *slack, rate }).collect()
}

/// Divides a number in proportion to weights that are not negative; equally if all are zero. What is left by rounding goes to those that
/// rounding has cost most, a unit each: where there are fewer units than parts, one part would else get all of them. The parts add up
/// to the whole.
fn in_proportion(whole: i128, weights: &[i64]) -> Vec<i64> {
    let sum: i128 = weights.iter().map(|weight| i128::from(*weight)).sum();
    let exact = |weight: &i64| match sum {
        0 => (whole, weights.len() as i128),
        _ => (whole * i128::from(*weight), sum),
    };
    let mut parts: Vec<i128> = weights.iter().map(exact).map(|(part, of)| part.div_euclid(of)).collect();
    let left = whole - parts.iter().sum::<i128>();
    if left > 0 {
        let cost = |at: usize| {
            let (part, of) = exact(&weights[at]);
            part.rem_euclid(of)
        };
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(cost(*at)));
        order.into_iter().take(left as usize).for_each(|at| parts[at] += 1);
    }

    parts.into_iter().map(clamped).collect()
}

/// Divides the slack of several parts likewise, where no bound moves: the best static division. All of it is divided; if the
/// forecast makes no sense, equally.
pub fn fixed(parts: &[Outlook]) -> Vec<i64> {
    let slack: i128 = parts.iter().map(|part| i128::from(part.slack)).sum();
    let equally = || in_proportion(slack, &vec![0; parts.len()]);
    if slack <= 0 {
        return equally();
    }

    // The longest time for which there is enough for all, in whole units: a part that gets a little less than it needs would
    // fail where it is lowest, however long it could last after that.
    let needs = |time: f64| parts.iter().map(move |part| needed(part, time).floor() as i128 + 1);
    let (mut enough, mut too_long) = (0.0, FOREVER);
    for _ in 0..STEPS {
        let middle = (enough + too_long) / 2.0;
        *(if needs(middle).sum::<i128>() <= slack { &mut enough } else { &mut too_long }) = middle;
    }

    // What a solver returns is checked before it is used. What is left is divided by noise, as that is what nobody could foresee.
    let needs: Vec<i128> = needs(enough).collect();
    let left = slack - needs.iter().sum::<i128>();
    if left < 0 || needs.iter().any(|need| *need < 0) {
        return equally();
    }
    let noises: Vec<i64> = parts.iter().map(|part| part.motion.noise.max(0)).collect();
    let whole = |(need, rest): (i128, i64)| i64::try_from(need).unwrap_or(i64::MAX).saturating_add(rest);
    needs.into_iter().zip(in_proportion(left, &noises)).map(whole).collect()
}

/// The slack that a part needs to last for a time, in seconds, if its bound does not move: the most that
/// `spread·√t - v·t` comes to within it.
fn needed(part: &Outlook, time: f64) -> f64 {
    let (velocity, spread) = (part.motion.velocity as f64 / 1e6, CAREFUL * part.motion.noise as f64 / 1e6);
    let top = if velocity > 0.0 { (spread / (2.0 * velocity)).powi(2).min(time) } else { time };
    (spread * top.sqrt() - velocity * top).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Rng;

    fn part(slack: i64, velocity: f64, noise: f64) -> Outlook {
        let motion = Motion { velocity: (velocity * 1e6) as i64, noise: (noise * 1e6) as i64 };
        Outlook { slack, motion }
    }

    /// The first time at which it fails, looked for step by step; 100 s at most.
    fn slow(part: &Outlook, rate: f64) -> f64 {
        let (v, z) = (part.motion.velocity as f64 / 1e6 - rate, CAREFUL * part.motion.noise as f64 / 1e6);
        let fails = |t: f64| part.slack as f64 + v * t - z * t.sqrt() <= 0.0;
        (0..1_000_000).map(|step| f64::from(step) * 1e-4).find(|t| fails(*t)).unwrap_or(100.0)
    }

    #[test]
    fn part_lasts_until_the_first_zero_though_it_would_recover() {
        // It has 10 after a minute, and would have failed within the second.
        let dips = part(5, 10.0, 5.0);
        assert!(lasts(&dips, 0).expect("it fails") < SECOND);
        assert_eq!(lasts(&part(5, 10.0, 1.0), 0), None);
        assert_eq!(lasts(&part(0, 10.0, 0.0), 0), Some(0));
        assert_eq!(lasts(&part(8, 0.0, 0.0), 500_000), Some(16 * SECOND), "the paper's figure 4, without noise");
        let mut rng = Rng::new(3);
        for _ in 0..300 {
            let some = |rng: &mut Rng, span: u64| rng.below(span) as f64 / 10.0 - span as f64 / 20.0;
            let one = part(rng.below(60) as i64, some(&mut rng, 100), rng.below(60) as f64 / 10.0);
            let rate = some(&mut rng, 40);
            let (fast, slow) = (lasts(&one, (rate * 1e6) as i64), slow(&one, rate));
            let fast = fast.map_or(100.0, |micros| micros as f64 / 1e6).min(100.0);
            assert!((fast - slow).abs() <= 2e-4 + slow * 1e-6, "{one:?} {rate}: {fast} for {slow}");

            // With what it needs to last for a time it does, and with one less it does not.
            let (rate, time) = ((rate * 1e6) as i64, rng.below(60) * SECOND / 10);
            let slack = needs(&one, rate, time);
            let fails = |slack: i64| lasts(&Outlook { slack, ..one }, rate).is_some_and(|left| left < time);
            assert!(!fails(slack), "{one:?} {rate}: {slack} for {time}");
            assert!(time == 0 || slack == 1 || fails(slack - 2), "{one:?} {rate}: {slack} for {time}");
        }
    }

    /// The first failure of a division.
    fn first(parts: &[Outlook], shares: &[Share]) -> f64 {
        let each = parts.iter().zip(shares).map(|(one, share)| {
            let one = Outlook { slack: share.slack, ..*one };
            lasts(&one, share.rate).map_or(FOREVER, |micros| micros as f64 / 1e6)
        });
        each.fold(FOREVER, f64::min)
    }

    #[test]
    fn no_other_division_lasts_longer() {
        let mut rng = Rng::new(11);
        for _ in 0..200 {
            let count = 2 + rng.below(3) as usize;
            let one = |rng: &mut Rng| {
                part(rng.below(2_000) as i64, rng.below(200) as f64 / 10.0 - 10.0, 1.0 + rng.below(60) as f64 / 10.0)
            };
            let parts: Vec<Outlook> = (0..count).map(|_| one(&mut rng)).collect();
            let best = moving(&parts);
            assert_eq!(
                best.iter().map(|share| share.slack).sum::<i64>(),
                parts.iter().map(|one| one.slack).sum::<i64>()
            );
            assert_eq!(best.iter().map(|share| share.rate).sum::<i64>(), 0);
            let longest = first(&parts, &best);
            let still: Vec<Share> = fixed(&parts).into_iter().map(|slack| Share { slack, rate: 0 }).collect();
            assert_eq!(
                still.iter().map(|share| share.slack).sum::<i64>(),
                parts.iter().map(|one| one.slack).sum::<i64>()
            );
            let mut rivals = vec![still.clone()];
            for _ in 0..60 {
                let (from, to) = (rng.below(count as u64) as usize, rng.below(count as u64) as usize);
                let (slack, rate) = (rng.below(300) as i64, rng.below(3_000_000) as i64);
                let base = if rng.one_in(2) { &best } else { &still };
                let mut rival = base.clone();
                (rival[from].slack, rival[from].rate) = (rival[from].slack - slack, rival[from].rate + rate);
                (rival[to].slack, rival[to].rate) = (rival[to].slack + slack, rival[to].rate - rate);
                // Among divisions that do not move, the static one is the best.
                let unmoved: Vec<Share> = rival.iter().map(|share| Share { rate: 0, ..*share }).collect();
                assert!(first(&parts, &unmoved) <= first(&parts, &still) * 1.02 + 0.5, "{parts:?}: {unmoved:?}");
                rivals.push(rival);
            }
            // Rounding costs a part of a unit of slack.
            rivals
                .iter()
                .for_each(|rival| assert!(first(&parts, rival) <= longest * 1.02 + 0.5, "{parts:?}: {rival:?}"));
        }
    }

    #[test]
    fn slack_that_nothing_is_known_of_is_divided_equally() {
        let parts = [part(10, 0.0, 0.0), part(0, 0.0, 0.0), part(1, 0.0, 0.0)];
        assert_eq!(fixed(&parts), [4, 4, 3]);
        assert_eq!(moving(&parts).iter().map(|share| share.slack).collect::<Vec<_>>(), [4, 4, 3]);
        let lost = [part(-7, 0.0, 0.0), part(2, 0.0, 0.0)];
        assert_eq!(moving(&lost).iter().map(|share| share.slack).sum::<i64>(), -5);
        assert_eq!(fixed(&lost).iter().sum::<i64>(), -5);
        assert!(moving(&[]).is_empty() && fixed(&[]).is_empty());
    }
}
