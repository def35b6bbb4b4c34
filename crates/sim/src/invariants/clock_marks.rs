//! A wall clock that was wrong leaves no mark in the future: a site is not blocked for as long as its clock was ahead.
//!
//! A home has two durable marks: transactions with a deadline up to the one are refused if they are not known, and after a start
//! writes wait until the other is past. By true time,
//!
//! - the first does not stand ahead: a majority agrees that every deadline up to it is past;
//! - the second stands no farther ahead than [`LEASE`], in which whatever rests on a right is over.
//!
//! Each with a margin for how exactly a site can know the time of a majority: ε on either side, and half of a round trip over a
//! slow link. A site that could hear so many others as are a majority, for two exchange periods in which its own clock was not
//! stepped (what it knew before says nothing any more), must have its marks so.

use slackline_core::clock::SECOND;
use slackline_core::warranty::LEASE;

/// The invariant's name.
pub const NAME: &str = "no mark in the future";
/// The margin besides ε, in microseconds.
const MARGIN: u64 = 3 * SECOND;

/// Judges the marks of a site, that of deadlines and that of rights, when it is `now`, in microseconds since 1970.
pub fn check((deadline, rights): (i64, i64), now: i64, epsilon: u64) -> Result<(), String> {
    for (mark, most, name) in [(deadline, 0, "deadlines"), (rights, LEASE, "rights")] {
        let ahead = mark.saturating_sub(now);
        if ahead > (most + MARGIN + 4 * epsilon) as i64 {
            return Err(format!("its mark of {name} is {ahead} us ahead"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_that_a_clock_left_which_was_ahead_is_blamed() {
        let now = 1_700_000_000 * SECOND as i64;
        let ahead = |seconds: i64| now + seconds * SECOND as i64;
        assert_eq!(check((0, 0), now, 10_000), Ok(()));
        assert_eq!(check((ahead(1), ahead(21)), now, 10_000), Ok(()));
        assert!(check((ahead(5), ahead(10)), now, 10_000).is_err());
        assert!(check((0, ahead(3_600)), now, 10_000).is_err());
    }
}
