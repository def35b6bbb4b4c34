//! An operation id takes effect at most once, and not at all if it was refused or withdrawn.

use slackline_core::api::{Outcome, UnknownReason};

use super::answers::is_of_one_copy;

/// The invariant's name.
pub const NAME: &str = "an operation takes effect once";

/// Returns true if the outcome is that something was done.
pub fn is_done(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Refused(_) | Outcome::Unknown(_))
}

/// Judges an outcome that became durable of an operation that was below its session's window when it was first sent.
pub fn check_skipped(told: Option<&Outcome>, new: &Outcome) -> Result<(), String> {
    match told {
        Some(Outcome::Unknown(UnknownReason::Forgotten)) => {
            Err(format!("was told to be forgotten before anything was known of it, and ended as {new:?}"))
        }
        _ => Ok(()),
    }
}

/// Judges an outcome that became durable, against the one that was durable before and the one that the client was told.
pub fn check(durable: Option<&Outcome>, told: Option<&Outcome>, new: &Outcome) -> Result<(), String> {
    if let Some(told) = told
        && (matches!(told, Outcome::Refused(_)) || is_of_one_copy(told))
        && is_done(new)
    {
        return Err(format!("was refused to its client as {told:?}, and carried out as {new:?}"));
    }

    // What was undecided may still be found out, once.
    match durable {
        None | Some(Outcome::Unknown(UnknownReason::Undecided)) => Ok(()),
        Some(before) => Err(format!("ended as {before:?}, and again as {new:?}")),
    }
}

/// Judges a site's counters against the sum of what its recorded outcomes did.
pub fn check_counters(counters: (u128, u128), outcomes: (u128, u128)) -> Result<(), String> {
    if counters == outcomes {
        return Ok(());
    }
    Err(format!(
        "the site counts {} tokens granted and {} taken back, its recorded outcomes come to {} and {}",
        counters.0, counters.1, outcomes.0, outcomes.1
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::api::Refusal;

    #[test]
    fn second_effect_and_effect_of_a_refused_operation_are_noticed() {
        let released = Outcome::Released { amount: 3 };
        let withdrawn = Outcome::Refused(Refusal::Withdrawn);
        assert_eq!(check(None, None, &released), Ok(()));
        assert_eq!(check(Some(&Outcome::Unknown(UnknownReason::Undecided)), None, &released), Ok(()));
        assert!(check(Some(&released), None, &released).is_err());
        assert!(check(Some(&withdrawn), None, &released).is_err());
        assert!(check(None, Some(&withdrawn), &released).is_err());
    }

    #[test]
    fn outcome_of_what_was_forgotten_before_it_came_is_noticed() {
        let refused = Outcome::Refused(Refusal::InvalidAmount);
        assert_eq!(check_skipped(None, &refused), Ok(()));
        assert!(check_skipped(Some(&Outcome::Unknown(UnknownReason::Forgotten)), &refused).is_err());
    }

    #[test]
    fn effect_without_a_record_is_noticed() {
        assert_eq!(check_counters((5, 3), (5, 3)), Ok(()));
        assert!(check_counters((6, 3), (5, 3)).is_err());
    }
}
