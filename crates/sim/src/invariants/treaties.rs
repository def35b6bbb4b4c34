//! Treaties: a statement is true whenever somebody may rely on it, its slack is neither made nor lost, and what programs are told of it
//! is so at the one time at which they take effect.

/// No right over a treaty is live while its statement is false.
pub const TRUE: &str = "treaties are true";
/// The bounds of a clause add up to what the statement says, or more; and every home keeps its part above its bound.
pub const SLACK: &str = "slack is conserved";
/// What every program requires that could break it, is never broken.
pub const MET: &str = "what is required is met";
/// What a committed program was told of a statement was so at one time while it ran.
pub const ONE_STATE: &str = "a verdict is of one state";

/// Judges a site while a treaty's statement is false: it must hold no live right over it.
pub fn check_relied(relies: bool, counts: impl FnOnce() -> Vec<(u16, i64)>) -> Result<(), String> {
    if relies { Err(format!("it is relied upon, and is false: {:?}", counts())) } else { Ok(()) }
}

/// Judges a home's part of a clause.
pub fn check_part(value: i64, bound: i64) -> Result<(), String> {
    if value >= bound { Ok(()) } else { Err(format!("its part has come to {value}, and its bound is {bound}")) }
}

/// Judges the bounds of a clause at all of its homes.
pub fn check_bounds(bounds: &[(u16, i64)], least: i64) -> Result<(), String> {
    let sum: i128 = bounds.iter().map(|(_, bound)| i128::from(*bound)).sum();
    if sum >= i128::from(least) { Ok(()) } else { Err(format!("bounds {bounds:?} add up to less than {least}")) }
}

/// Judges a statement that has become false: not all programs that could break it may require it.
pub fn check_met(is_required: bool, counts: &[(u16, i64)]) -> Result<(), String> {
    if is_required { Err(format!("everybody requires it, and it is false: {counts:?}")) } else { Ok(()) }
}

/// Judges what a program was told that ran in a span, by when the statement was true: `turns` has the times at which it became true
/// or false, and which, in order.
pub fn check_verdict(verdict: bool, (began, ended): (u64, u64), turns: &[(u64, bool)]) -> Result<(), String> {
    let first = turns.partition_point(|(at, _)| *at <= began).saturating_sub(1);
    let mut during = turns[first..].iter().take_while(|(at, _)| *at <= ended);
    match during.any(|(_, is_true)| *is_true == verdict) {
        true => Ok(()),
        false => Err(format!("a program that ran from {began} to {ended} is told that it is {verdict}; it was not")),
    }
}

/// Judges what a program was told of a statement, where it saw all that was done before it.
pub fn check_exact(told: bool, is_true: bool, counts: [i64; 2]) -> Result<(), String> {
    if told == is_true {
        return Ok(());
    }
    Err(format!("it is told {told}, and by all that was done before it the counters are at {counts:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_over_what_is_false_is_noticed() {
        assert_eq!(check_relied(false, Vec::new), Ok(()));
        assert!(check_relied(true, || vec![(0, 1)]).is_err());
        assert_eq!(check_met(false, &[(0, -1)]), Ok(()));
        assert!(check_met(true, &[(0, -1)]).is_err());
    }

    #[test]
    fn slack_that_was_made_is_noticed() {
        assert_eq!(check_part(5, 5), Ok(()));
        assert!(check_part(4, 5).is_err());
        assert_eq!(check_bounds(&[(0, 5), (1, -3)], 2), Ok(()));
        assert!(check_bounds(&[(0, 5), (1, -4)], 2).is_err());
    }

    #[test]
    fn verdict_of_another_time_is_noticed() {
        let turns = [(0, false), (10, true), (20, false)];
        assert_eq!(check_verdict(true, (5, 12), &turns), Ok(()));
        assert_eq!(check_verdict(true, (12, 15), &turns), Ok(()));
        assert_eq!(check_verdict(false, (10, 20), &turns), Ok(()));
        assert!(check_verdict(false, (12, 15), &turns).is_err());
        assert!(check_verdict(true, (21, 30), &turns).is_err());
        assert!(check_verdict(true, (3, 9), &turns).is_err());
        assert!(check_exact(true, false, [1, 2]).is_err());
    }
}
