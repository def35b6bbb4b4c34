//! An acknowledged grant survives, as long as its incarnation lives: what a site says was done is durable there when it
//! says so, and stays.

use slackline_core::api::{Outcome, Refusal};
use slackline_core::session::is_kept;

use super::once::is_done;

/// The invariant's name.
pub const NAME: &str = "an acknowledged grant survives";

/// Judges an answer that leaves a site, or reaches a client, against what is durable at the site that it is of.
pub fn check_answer(durable: Option<&Outcome>, answer: &Outcome) -> Result<(), String> {
    if is_done(answer) && is_kept(answer) && durable != Some(answer) {
        return Err(format!("{answer:?} is acknowledged, and {durable:?} is durable"));
    }

    // What is durable must not be denied, but for a request that names other content.
    match (durable, answer) {
        (Some(durable), Outcome::Refused(refusal)) if is_done(durable) && *refusal != Refusal::OtherContent => {
            Err(format!("{durable:?} is durable, and {answer:?} is answered"))
        }
        _ => Ok(()),
    }
}

/// Judges the release of a tracked grant without an end, which lives by all that is known.
pub fn check_release(answer: &Outcome) -> Result<(), String> {
    match answer {
        Outcome::Refused(Refusal::UnknownGrant) => Err("a grant that was never released is unknown".to_owned()),
        _ => Ok(()),
    }
}

/// Judges the end of a session in which something is recorded that the client still cares about.
pub fn check_session(recorded: bool, answer: &Outcome) -> Result<(), String> {
    match answer {
        Outcome::Refused(Refusal::SessionEnded) if recorded => {
            Err("a session is said to have ended, and holds outcomes of a client that cares".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgement_of_what_is_not_durable_is_noticed() {
        let released = Outcome::Released { amount: 3 };
        assert_eq!(check_answer(Some(&released), &released), Ok(()));
        assert!(check_answer(None, &released).is_err());
        assert!(check_answer(Some(&released), &Outcome::Refused(Refusal::Withdrawn)).is_err());
        assert!(check_answer(Some(&released), &Outcome::Refused(Refusal::StorageFull)).is_err());
        assert!(check_answer(Some(&released), &Outcome::Refused(Refusal::SessionEnded)).is_err());
        assert!(check_release(&Outcome::Refused(Refusal::UnknownGrant)).is_err());
        assert!(check_session(true, &Outcome::Refused(Refusal::SessionEnded)).is_err());
        assert_eq!(check_session(false, &Outcome::Refused(Refusal::SessionEnded)), Ok(()));
    }
}
