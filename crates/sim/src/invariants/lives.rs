//! An incarnation whose storage was lost never acts again. A site that comes back on an old copy of its disk may write that it
//! is there, and asks the others; it grants, votes and records nothing before they have confirmed it, and what it has
//! forgotten makes sure that they do not.

use slackline_core::id::Incarnation;

/// The invariant's name.
pub const NAME: &str = "a lost incarnation never acts";

/// Judges a batch that a lost incarnation hands out; `acts` if it changes a share or records an outcome.
pub fn check(lost: Incarnation, acts: bool) -> Result<(), String> {
    if acts { Err(format!("incarnation {} is lost, and changes shares or outcomes", lost.0)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn act_of_a_lost_incarnation_is_noticed() {
        assert_eq!(check(Incarnation(1), false), Ok(()));
        assert!(check(Incarnation(1), true).is_err());
    }
}
