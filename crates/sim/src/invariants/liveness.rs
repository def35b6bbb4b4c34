//! Liveness after healing: within a bounded time all sites serve, no round is stuck, gifts have arrived, every site gets
//! tokens that are free anywhere, and `show` is exact.

use slackline_core::api::{Outcome, Readiness, Shown};

use super::conservation::Sums;

/// The invariant's name.
pub const NAME: &str = "liveness after healing";

/// A site serves.
pub fn check_ready(readiness: Readiness) -> Result<(), String> {
    if readiness == Readiness::Ready { Ok(()) } else { Err(format!("it is {readiness:?}")) }
}

/// Nothing moves: no round is under way, no gift on its way.
pub fn check_rest(in_round: bool, sums: Sums) -> Result<(), String> {
    if in_round {
        return Err("a round is stuck".to_owned());
    }
    if sums.under_way != 0 {
        return Err(format!("gifts of {} tokens never arrived", sums.under_way));
    }
    Ok(())
}

/// Nobody has a turn, or waits for one: the claims of programs that went away have ended.
pub fn check_turns(turns: usize) -> Result<(), String> {
    if turns == 0 { Ok(()) } else { Err(format!("{turns} claims and reads that wait are left")) }
}

/// No transaction is under way or in doubt: at rest nothing is left of any, at its coordinator or at those who took part, nor is
/// anything locked for one.
pub fn check_transactions(under_way: (usize, usize), is_settled: bool) -> Result<(), String> {
    match under_way {
        (0, 0) if is_settled => Ok(()),
        (0, 0) => Err("no transaction is under way, and something is still locked".to_owned()),
        (coordinated, parts) => Err(format!("{coordinated} transactions and parts of {parts} are still under way")),
    }
}

/// An acquire that fits the free tokens of all sites is granted at any site.
pub fn check_granted(amount: i64, answer: Option<&Outcome>) -> Result<(), String> {
    match answer {
        Some(Outcome::Granted { .. }) => Ok(()),
        Some(other) => Err(format!("{amount} tokens are free, and asking for them ends as {other:?}")),
        None => Err(format!("{amount} tokens are free, and asking for them is not answered")),
    }
}

/// `show` tells exactly what is in use; what lost incarnations had counts as in use.
pub fn check_shown(shown: Option<&Shown>, sums: Sums) -> Result<(), String> {
    let Some(shown) = shown else { return Err("show is not answered".to_owned()) };
    let in_use = sums.in_use + sums.lost;
    if (i128::from(shown.in_use_min), i128::from(shown.in_use_max)) != (in_use, in_use) {
        return Err(format!("{in_use} tokens are in use, and show says {shown:?}"));
    }
    Ok(())
}

/// What is over the limit is taken from whoever has something: nobody grants until then.
pub fn check_paid(excess: i64, sums: Sums) -> Result<(), String> {
    if excess > 0 && sums.tokens > 0 {
        return Err(format!("{} tokens are here, and {excess} more are out than the limit", sums.tokens));
    }
    Ok(())
}

/// Clients have given everything back; nothing is in use but what they cannot know of.
pub fn check_returned(in_use: i128, in_doubt: i128) -> Result<(), String> {
    if !(0..=in_doubt).contains(&in_use) {
        return Err(format!("{in_use} tokens are in use, and clients doubt what became of {in_doubt}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::api::Refusal;

    #[test]
    fn what_is_stuck_is_noticed() {
        assert!(check_ready(Readiness::Confirming).is_err());
        assert!(check_rest(true, Sums::default()).is_err());
        assert!(check_rest(false, Sums { under_way: 1, ..Sums::default() }).is_err());
        assert!(check_transactions((0, 1), true).is_err());
        assert!(check_transactions((0, 0), false).is_err());
        assert!(check_turns(1).is_err());
        assert!(check_granted(3, None).is_err());
        assert!(check_granted(3, Some(&Outcome::Refused(Refusal::DeadlinePassed))).is_err());
        assert!(check_shown(None, Sums::default()).is_err());
        assert!(check_returned(4, 0).is_err());
    }
}
