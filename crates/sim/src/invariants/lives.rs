//! An incarnation whose storage was lost never acts again. A site that comes back on an old copy of its disk may write that it
//! is there, and asks the others; it grants, votes and records nothing before they have confirmed it, and what it has
//! forgotten makes sure that they do not. The other way round, an incarnation whose storage is whole is not replaced: nothing
//! joins over it without a person's word, and it is never called old.

use slackline_core::id::Incarnation;

/// The invariant's name.
pub const NAME: &str = "a lost incarnation never acts";

/// Judges a batch that a lost incarnation hands out; `acts` if there is a row in it of something else than the site itself.
pub fn check(lost: Incarnation, acts: bool) -> Result<(), String> {
    if acts { Err(format!("incarnation {} is lost, and acts", lost.0)) } else { Ok(()) }
}

/// Judges that a site takes up a new incarnation; `present` is the one before if its storage is whole, else zero.
pub fn check_joins(present: Incarnation) -> Result<(), String> {
    match present {
        Incarnation(0) => Ok(()),
        whole => Err(format!("taken up over incarnation {}, whose storage is whole", whole.0)),
    }
}

/// Judges that a site calls its storage an old copy.
pub fn check_old(is_lost: bool) -> Result<(), String> {
    if is_lost { Ok(()) } else { Err("its storage is called an old copy, and is the newest".to_owned()) }
}

/// Judges the turn in which a site finds its storage to be an old copy; `persists` if it writes to it.
pub fn check_kept(persists: bool) -> Result<(), String> {
    if persists { Err("an old copy is written to".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_storage_that_is_replaced_is_noticed() {
        assert_eq!((check_joins(Incarnation(0)), check_old(true)), (Ok(()), Ok(())));
        assert!(check_joins(Incarnation(1)).is_err() && check_old(false).is_err());
        assert!(check_kept(false).is_ok() && check_kept(true).is_err());
    }

    #[test]
    fn act_of_a_lost_incarnation_is_noticed() {
        assert_eq!(check(Incarnation(1), false), Ok(()));
        assert!(check(Incarnation(1), true).is_err());
    }
}
