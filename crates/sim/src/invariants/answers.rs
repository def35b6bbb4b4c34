//! A response never contradicts an earlier definitive one, and never says less than its asker has a right to know.

use slackline_core::api::{Outcome, Refusal, UnknownReason};
use slackline_core::session::is_kept;

/// The invariant's name.
pub const NAME: &str = "answers agree";

/// Returns true if nothing that comes later can differ.
pub fn is_definitive(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Unknown(_) => false,
        // Says something of this request, not of the operation.
        Outcome::Refused(Refusal::OtherContent) => false,
        Outcome::Refused(refusal) => refusal.is_recorded(),
        _ => true,
    }
}

/// Returns true if a site says of the copy that it answers that it did nothing, and of other copies nothing.
pub fn is_of_one_copy(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Refused(Refusal::StorageFull) | Outcome::Unknown(UnknownReason::NotReady | UnknownReason::StorageFull)
    )
}

/// What the checker knows when an answer reaches a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// True if the operation's incarnation is lost.
    pub lost: bool,
    /// True if the client said that it no longer cares, or closed the session, or was silent for too long.
    pub forgotten: bool,
    /// True if a home of the transaction has lost its storage, or has left.
    pub home_lost: bool,
}

/// Judges an answer against the definitive one that the client was given before.
pub fn check(told: Option<&Outcome>, answer: &Outcome, standing: Standing) -> Result<(), String> {
    match answer {
        Outcome::Unknown(UnknownReason::IncarnationLost) if !standing.lost => {
            Err("the incarnation is said to be lost, and lives".to_owned())
        }
        Outcome::Unknown(UnknownReason::HomeLost) if !standing.home_lost => {
            Err("a home is said to be lost, and none is".to_owned())
        }
        Outcome::Unknown(UnknownReason::Forgotten) if !standing.forgotten && !standing.lost => {
            Err("was forgotten while its client cared".to_owned())
        }
        answer if is_definitive(answer) => match told {
            // What only read and is not kept may be judged again after a restart; see [`Answered`], since answers may be overtaken
            // on their way.
            Some(told) if is_definitive(told) && is_kept(told) && is_kept(answer) && !agree(told, answer) => {
                Err(format!("was answered {told:?}, and then {answer:?}"))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Returns true if two definitive answers say the same: of a session in which nothing was done, who repeats is told that it has
/// ended, and who asks that the operation is withdrawn.
fn agree(told: &Outcome, answer: &Outcome) -> bool {
    let is_of_none =
        |outcome: &Outcome| matches!(outcome, Outcome::Refused(Refusal::Withdrawn | Refusal::SessionEnded));
    told == answer || is_of_none(told) && is_of_none(answer)
}

/// The definitive answers about an operation that have left its site. One that is not kept is given up to a restart, and another
/// one is kept from then on: in no life are both given, nor the first after the second.
#[derive(Clone, Copy, Default, Debug)]
pub struct Answered {
    /// The last life of the site in which an outcome was told that is not kept.
    unkept: Option<u32>,
    /// True if an outcome was told that is kept.
    kept: bool,
}

impl Answered {
    /// Judges an answer that leaves the site in this life.
    pub fn check(&mut self, life: u32, answer: &Outcome) -> Result<(), String> {
        if !is_definitive(answer) {
            return Ok(());
        }
        if is_kept(answer) {
            self.kept = true;
            return match self.unkept == Some(life) {
                true => Err(format!("{answer:?} is told by a site that has told another outcome since it started")),
                false => Ok(()),
            };
        }

        self.unkept = Some(life);
        if self.kept { Err(format!("{answer:?} is told after another outcome")) } else { Ok(()) }
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
    fn outcome_that_is_not_kept_differs_from_another_only_across_a_restart() {
        let (unkept, kept) = (Outcome::Committed { phases: 0 }, Outcome::Refused(Refusal::Withdrawn));
        let mut answered = Answered::default();
        assert_eq!(answered.check(1, &unkept), Ok(()));
        assert_eq!(answered.check(1, &unkept), Ok(()));
        assert!(Answered { ..answered }.check(1, &kept).is_err());
        assert_eq!(answered.check(2, &unkept), Ok(()));
        assert_eq!(answered.check(3, &kept), Ok(()));
        assert_eq!(answered.check(3, &kept), Ok(()));
        assert!(answered.check(4, &unkept).is_err(), "what was kept is lost");
    }

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
        assert_eq!(check(Some(&withdrawn), &Outcome::Committed { phases: 0 }, cares), Ok(()), "it was overtaken");
        assert!(check(Some(&Outcome::Committed { phases: 1 }), &withdrawn, cares).is_err());
        assert!(check(None, &Outcome::Unknown(UnknownReason::IncarnationLost), cares).is_err());
        assert!(check(None, &Outcome::Unknown(UnknownReason::Forgotten), cares).is_err());
        let home_lost = Outcome::Unknown(UnknownReason::HomeLost);
        assert!(check(None, &home_lost, cares).is_err());
        assert_eq!(check(None, &home_lost, Standing { home_lost: true, ..cares }), Ok(()));
        let forgotten = Standing { forgotten: true, ..cares };
        assert_eq!(check(Some(&released), &Outcome::Unknown(UnknownReason::Forgotten), forgotten), Ok(()));
        assert!(check_known(Some(5), 6, &Outcome::Refused(Refusal::UnknownQuota)).is_err());
        assert_eq!(check_known(Some(5), 4, &Outcome::Refused(Refusal::UnknownQuota)), Ok(()));
    }
}
