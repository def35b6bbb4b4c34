//! Both ends of a right that lives in the memory of its issuer and of its holder.

use super::number::WarrantyNumber;
use crate::clock::Now;

/// A right as its issuer grants it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// Its number.
    pub number: WarrantyNumber,
    /// Its end, in microseconds since 1970.
    pub expiry: i64,
    /// The time from when it was issued to its end, in microseconds.
    pub duration: u64,
}

/// The issuer's end: it is bound until both of its clocks are past this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// The wall-clock time, in microseconds since 1970; ε later than the holder was told.
    pub wall: i64,
    /// The monotonic time, in microseconds.
    pub mono: u64,
}

impl End {
    /// The end of a right that is issued now. The holder stops ε before the expiry and counts the duration from when it asked:
    /// it always stops first.
    pub fn new(now: Now, offer: Offer, epsilon: u64) -> Self {
        let wall = offer.expiry.saturating_add_unsigned(epsilon);
        Self { wall, mono: now.mono + offer.duration + 2 * epsilon }
    }

    /// The end of a right that extends one with another end: the holder may still rely on the older one.
    pub fn extending(self, older: Self) -> Self {
        Self { wall: self.wall.max(older.wall), mono: self.mono.max(older.mono) }
    }

    /// True if it binds no more. Both clocks must say so, because either may be wrong.
    pub fn is_over(self, now: Now) -> bool {
        now.wall > self.wall && now.mono > self.mono
    }

    /// The monotonic time at which it will be over, if the wall clock advances as fast.
    pub fn over_at(self, now: Now) -> u64 {
        let wall = u64::try_from(self.wall.saturating_sub(now.wall)).unwrap_or(0);
        self.mono.max(now.mono.saturating_add(wall)) + 1
    }
}

/// A right at its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldRight {
    /// Its number.
    pub number: WarrantyNumber,
    /// Its end by the wall clock, in microseconds since 1970. The holder stops ε before.
    pub expiry: i64,
    /// The holder also stops at this monotonic time.
    pub mono: u64,
    /// The time from when it was issued to its end, in microseconds.
    pub duration: u64,
}

impl HeldRight {
    /// The right in an answer to a question that was sent at `asked`, on the monotonic clock. It counts from there,
    /// because the issuer counts from a later time: when it issued the right.
    pub fn new(offer: Offer, asked: u64) -> Self {
        let Offer { number, expiry, duration } = offer;
        Self { number, expiry, mono: asked.saturating_add(duration), duration }
    }

    /// The wall-clock time until which the holder relies on it where nobody else judges that. Each participant of a transaction that rests on
    /// it judges its end by the error of its own clock.
    pub fn relied_until(&self, epsilon: u64) -> i64 {
        self.expiry.saturating_sub_unsigned(epsilon)
    }

    /// True if the holder may rely on it. Both clocks must say so, because either may be wrong.
    pub fn is_live(&self, now: Now, epsilon: u64) -> bool {
        now.wall < self.relied_until(epsilon) && now.mono < self.mono
    }

    /// For how long the holder may still rely on it, in microseconds.
    pub fn left(&self, now: Now, epsilon: u64) -> u64 {
        let wall = u64::try_from(self.relied_until(epsilon).saturating_sub(now.wall)).unwrap_or(0);
        wall.min(self.mono.saturating_sub(now.mono))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuer_is_bound_beyond_the_end_by_what_its_clocks_may_be_fast() {
        let at = |wall, mono| Now { wall, mono };
        let end = End::new(at(100, 50), Offer { number: WarrantyNumber::default(), expiry: 1_000, duration: 900 }, 10);
        assert!(!end.is_over(at(1_010, 10_000)), "over while a holder may rely on it");
        assert!(!end.is_over(at(10_000, 970)), "over while a holder may rely on it");
        assert!(end.is_over(at(1_011, 971)));
        assert_eq!(end.over_at(at(1_000, 900)), 971, "its monotonic clock has longer to go");
    }

    #[test]
    fn holder_stops_before_the_end_by_what_its_clock_may_be_slow() {
        let right = HeldRight { number: WarrantyNumber::default(), expiry: 1_000, mono: 1_000, duration: 900 };
        let at = |wall, mono| Now { wall, mono };
        assert!(right.is_live(at(989, 999), 10) && right.left(at(989, 0), 10) == 1);
        assert!(!right.is_live(at(990, 0), 10), "relied upon while it may be over");
        assert_eq!(right.left(at(990, 0), 10), 0, "relied upon while it may be over");
        assert!(!right.is_live(at(0, 1_000), 10), "one of two clocks says that it is over");
    }
}
