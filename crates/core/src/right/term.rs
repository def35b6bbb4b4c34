//! The ends of holds: rights over tokens that end by themselves, in rows that survive restarts.
//!
//! A client that holds tokens for a time may use them until its clock says that the time is up; the site that granted
//! them, the *issuer*, must not hand them to anybody else before. The two clocks differ, so each errs to its own cost:
//! the holder counts from *before it sent* the request and stops ε early; the issuer waits until **both** of its
//! clocks say that the time is over ([`Term`]).
//!
//! The issuer's second clock is its **uptime**: monotonic time, added up over lives, durable to within a second while
//! holds are out. It stands still while the site is down, so after a crash tokens come back later by the time that the
//! site was down, never earlier. Neither clock decides what exists: a grant's row is removed in the same write that
//! gives the tokens back, whether a release or the clock was first.

use crate::clock::{Now, SECOND};

/// A hold that may not end yet by the wall clock is looked at again after this much uptime at most, in microseconds:
/// that clock may be set right at any time. Nor does one end later by more than this because it was granted on a clock
/// that was ahead.
pub const POSTPONED: u64 = 60 * SECOND;
/// A hold that goes by the uptime alone lasts longer by this part of it, but by no more than the second, in
/// microseconds.
const LONGER: u64 = 4;
const LONGER_AT_MOST: u64 = 3_600 * SECOND;

/// The time at which an issuer may take a hold as over: when both of its clocks have passed it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Term {
    /// The uptime that must have passed, in microseconds.
    pub uptime: u64,
    /// The wall-clock time that must have passed, in microseconds since 1970.
    pub wall: i64,
}

/// The monotonic time until which the client that asked at `sent_at` may use what it holds for `lasts`, all in microseconds. It counts
/// from before the request left, whichever copy of it was carried out, and stops ε early: before the issuer's [`Term`] is over.
pub fn held_until(sent_at: u64, lasts: u64, epsilon: u64) -> u64 {
    sent_at.saturating_add(lasts.saturating_sub(epsilon))
}

impl Term {
    /// The term of a right granted now for `duration` microseconds, where `agreed` is the time that a majority agrees
    /// has not passed yet.
    ///
    /// A wall clock that is ahead of that sets an end that is hardly later. One of the two is wrong then, and before
    /// they were compared nothing is known: so the uptime counts for longer, which alone may go too fast.
    pub fn starting(now: Now, agreed: Option<i64>, uptime: u64, duration: u64, epsilon: u64) -> Self {
        // The holder stops ε early by its clock and counts from before it asked, so both ends here are later than its
        // own.
        let uptime = uptime.saturating_add(duration).saturating_add(2 * epsilon);
        let latest = agreed.map(|agreed| agreed.saturating_add_unsigned(POSTPONED));
        let end = |from: i64| from.saturating_add_unsigned(duration).saturating_add_unsigned(epsilon);
        if latest.is_some_and(|latest| now.wall <= latest) {
            return Self { uptime, wall: end(now.wall) };
        }

        let longer = (duration / LONGER).min(LONGER_AT_MOST);
        Self { uptime: uptime.saturating_add(longer), wall: latest.map_or(i64::MIN, end) }
    }

    /// True if both clocks are past it.
    pub fn is_over(&self, now: Now, uptime: u64) -> bool {
        uptime >= self.uptime && now.wall >= self.wall
    }

    /// The term to look at again when uptime has passed it but the wall clock has not (because it was set back): when
    /// that will have passed it, but within [`POSTPONED`]. By how much it is behind says nothing about when it is set
    /// right.
    pub fn postponed(&self, now: Now, uptime: u64) -> Self {
        let missing = u64::try_from(self.wall.saturating_sub(now.wall)).unwrap_or(0);
        let later = Self { uptime: uptime.saturating_add(missing.clamp(1, POSTPONED)), wall: self.wall };
        assert!(!later.is_over(now, uptime) || uptime == u64::MAX, "a hold that is looked at later is over now");
        later
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_that_was_granted_on_a_clock_ahead_ends_a_minute_late_at_most() {
        let hour = 3_600 * SECOND as i64;
        let ahead = Now { wall: hour, mono: 5 };
        let late = Term { uptime: 595, wall: POSTPONED as i64 + 70 };
        assert_eq!(Term::starting(ahead, Some(0), 500, 60, 10), late);
        assert_eq!(Term::starting(ahead, Some(hour - 1), 500, 60, 10).wall, hour + 70);
        assert_eq!(Term::starting(ahead, Some(hour + 1), 500, 60, 10).wall, hour + 70);
        let alone = Term::starting(ahead, None, 500, 60, 10);
        assert_eq!(alone, Term { uptime: 595, wall: i64::MIN });
        assert!(alone.is_over(Now { wall: -1 << 60, mono: 0 }, 595));
    }

    #[test]
    fn hold_binds_its_backer_until_both_clocks_are_past_it() {
        let now = Now { wall: 1_000_000, mono: 5 };
        let term = Term::starting(now, Some(now.wall), 500, 60, 10);
        assert_eq!(term, Term { uptime: 580, wall: 1_000_070 });
        let at = |wall, uptime| term.is_over(Now { wall, mono: 0 }, uptime);
        assert!(at(1_000_070, 580));
        assert!(!at(1_000_069, 99_999), "the wall clock was set back");
        assert!(!at(9_999_999, 579), "the wall clock was set forward");
        let later = term.postponed(Now { wall: 1_000_050, mono: 0 }, 600);
        assert_eq!(later, Term { uptime: 620, wall: 1_000_070 });
        let far = term.postponed(Now { wall: -1 << 60, mono: 0 }, 600);
        assert_eq!(far, Term { uptime: 600 + POSTPONED, wall: 1_000_070 });
    }
}
