//! A response never contradicts an earlier definitive one, and never says less than its asker has a right to know.

use slackline_core::api::{Doubt, Outcome, Refusal};
use slackline_core::session::is_kept;

/// The invariant's name.
pub const NAME: &str = "answers agree";

/// Whether nothing that comes later can differ.
pub fn is_definitive(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Unknown(_) => false,
        // Says something of this request, not of the operation.
        Outcome::Refused(Refusal::OtherContent) => false,
        Outcome::Refused(refusal) => refusal.is_recorded(),
        _ => true,
    }
}

/// What the checker knows when an answer reaches a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// Whether the operation's incarnation is lost.
    pub lost: bool,
    /// Whether the client said that it no longer cares, or closed the session, or was silent for too long.
    pub forgotten: bool,
}

/// Judges an answer against the definitive one that the client was given before.
pub fn check(told: Option<&Outcome>, answer: &Outcome, standing: Standing) -> Result<(), String> {
    match answer {
        Outcome::Unknown(Doubt::IncarnationLost) if !standing.lost => {
            Err("the incarnation is said to be lost, and lives".to_owned())
        }
        Outcome::Unknown(Doubt::Forgotten) if !standing.forgotten && !standing.lost => {
            Err("was forgotten while its client cared".to_owned())
        }
        answer if is_definitive(answer) => match told {
            // What only read and is not kept may be judged anew after a restart.
            Some(told) if is_definitive(told) && is_kept(told) && told != answer => {
                Err(format!("was answered {told:?}, and then {answer:?}"))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// An acknowledged creation is known: `created` and `sent` are the true times of the acknowledgement and of the request.
pub fn check_known(created: Option<u64>, sent: u64, answer: &Outcome) -> Result<(), String> {
    match (answer, created) {
        (Outcome::Refused(Refusal::UnknownQuota), Some(created)) if created < sent => {
            Err(format!("a quota was created at {created} us, and a request of {sent} us was told that it is unknown"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_noticed() {
        let released = Outcome::Released { amount: 3 };
        let refused = Outcome::Refused(Refusal::UnknownGrant);
        let cares = Standing::default();
        assert_eq!(check(None, &released, cares), Ok(()));
        assert_eq!(check(Some(&released), &released, cares), Ok(()));
        assert!(check(Some(&released), &refused, cares).is_err());
        let withdrawn = Outcome::Refused(Refusal::Withdrawn);
        assert_eq!(check(Some(&Outcome::Committed { phases: 0 }), &withdrawn, cares), Ok(()));
        assert!(check(Some(&Outcome::Committed { phases: 1 }), &withdrawn, cares).is_err());
        assert!(check(None, &Outcome::Unknown(Doubt::IncarnationLost), cares).is_err());
        assert!(check(None, &Outcome::Unknown(Doubt::Forgotten), cares).is_err());
        let forgotten = Standing { forgotten: true, ..cares };
        assert_eq!(check(Some(&released), &Outcome::Unknown(Doubt::Forgotten), forgotten), Ok(()));
        assert!(check_known(Some(5), 6, &Outcome::Refused(Refusal::UnknownQuota)).is_err());
        assert_eq!(check_known(Some(5), 4, &Outcome::Refused(Refusal::UnknownQuota)), Ok(()));
    }
}
