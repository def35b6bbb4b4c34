//! A site's knowledge of the time.
//!
//! Two clocks, both in integer microseconds: the **wall** clock, which people agree on and which may step, and the
//! **monotonic** clock, which never goes back and begins again in every life. It goes on while the machine is
//! suspended, as far as the machine can tell; no promise rests on that alone. **ε** bounds each wall clock's distance
//! from true time. The ownership of tokens depends on neither clock: clocks end holds (see [`crate::right`]), time
//! retries and feed forecasts.
//!
//! Peers measure each other's wall clock by exchange, as NTP does: an offset that 2ε and half the round trip cannot
//! explain is an error of one of the two clocks ([`Offset::excess`]). A site doubts its own clock if a peer disagrees
//! with it and not enough others agree. Between two exchanges, the monotonic clock tells a site that its wall clock was
//! stepped ([`Offset::at`]).

/// The time of one input, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Now {
    /// Microseconds since 1970 by the wall clock.
    pub wall: i64,
    /// Microseconds on the monotonic clock; comparable within one life only.
    pub mono: u64,
}

/// One second, in microseconds.
pub const SECOND: u64 = 1_000_000;

/// One millisecond, in microseconds.
pub const MILLISECOND: u64 = 1_000;

/// A wall clock that has moved against the monotonic one by more than this since the last exchange was stepped, in
/// microseconds. Between two exchanges clocks that merely drift come nowhere near it.
const STEP: u64 = SECOND / 2;

/// Time that has passed by the slower of the two clocks, step by step: a clock that is set forward or runs too fast adds nothing to
/// it, and one that is set back takes nothing away.
#[derive(Clone, Copy, Debug)]
pub struct Slower {
    /// The time of the last step.
    at: Now,
    /// The time that has passed up to then, in microseconds.
    micros: u64,
}

impl Slower {
    /// The least time between two steps, in microseconds. Each may lose what the clocks' readings are apart by chance, about one.
    const STEP: u64 = 5 * MILLISECOND;

    /// No time has passed at `now`.
    pub fn new(now: Now) -> Self {
        Self { at: now, micros: 0 }
    }

    /// The time that has passed up to `now`. Between two steps a wall clock that is set back may take some of it away again.
    #[inline]
    pub fn advance(&mut self, now: Now) -> u64 {
        let by_mono = now.mono.saturating_sub(self.at.mono);
        let by_wall = u64::try_from(now.wall.saturating_sub(self.at.wall)).unwrap_or(0);
        let micros = self.micros + by_mono.min(by_wall);
        if by_mono >= Self::STEP {
            (self.micros, self.at) = (micros, now);
        }
        micros
    }
}

/// The result of one exchange with a peer: how far its wall clock is from this site's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offset {
    /// The peer's wall clock minus this site's, in microseconds.
    pub offset: i64,
    /// The round trip of the exchange, in microseconds; the offset is known to within half of it.
    pub rtt: u64,
    /// This site's wall clock minus its monotonic one when the exchange began, in microseconds.
    pub lead: i64,
    /// The time at which the exchange began, on this site's monotonic clock.
    pub sent: u64,
    /// The time at which the first exchange began since which neither of the two clocks was stepped, as far as exchanges tell.
    pub since: u64,
}

impl Offset {
    /// The result of an exchange: `sent` and `received` by this site's clocks, `there` by the peer's wall clock. The
    /// peer answers at once, so one stamp serves as the arrival there and the departure from there.
    pub fn measure(sent: Now, there: i64, received: Now) -> Self {
        // Whichever clock shows more: where the machine was suspended meanwhile and its monotonic clock stood, that clock alone would
        // call the exchange short, so exact, and what it shows of the peer's clock would be wrong by half of that time and stay. By more than
        // [`STEP`] the wall clock was stepped, as far as anybody can tell, and says nothing of how long it took.
        let by_mono = received.mono.saturating_sub(sent.mono);
        let by_wall = u64::try_from(received.wall.saturating_sub(sent.wall)).unwrap_or(0);
        let rtt = if by_wall.saturating_sub(by_mono) <= STEP { by_mono.max(by_wall) } else { by_mono };
        let middle = sent.wall.saturating_add((rtt / 2) as i64);
        Self { offset: there.saturating_sub(middle), rtt, lead: lead(sent), sent: sent.mono, since: sent.mono }
    }

    /// The better of two results: this one, and that of a newer exchange.
    pub fn and(self, newer: Self, now: Now) -> Self {
        // The answer to an earlier question, or the same answer once more, tells nothing. Nor does an answer to a
        // question from before this site's wall clock was stepped.
        if newer.sent <= self.sent || !newer.is_of(now) {
            return self;
        }

        // A longer exchange was held up on its way and is less exact: if both may show the same offset, the more exact
        // result stands. After a step of this site's clock it does not, or the step would go unnoticed. Only an
        // exchange that took a second or more, and much longer than usual, does not count then either: it could make up
        // for any step.
        let is_stepped = !self.is_of(now) || self.offset.abs_diff(newer.offset) > STEP;
        let newer = Self { since: if is_stepped { newer.sent } else { self.since }, ..newer };
        let may_be_same = self.at(now).offset.abs_diff(newer.offset) <= newer.rtt / 2;
        match self.is_of(now) {
            true if newer.rtt > self.rtt && may_be_same => Self { sent: newer.sent, ..self },
            false if newer.rtt > SECOND.max(2 * self.rtt) && may_be_same => self,
            _ => newer,
        }
    }

    /// True if this site's wall clock was not stepped since the exchange began.
    pub fn is_of(self, now: Now) -> bool {
        self.at(now) == self
    }

    /// The result as it counts now. If this site's wall clock was stepped since, the peer's is farther from it by as
    /// much: so a site need not wait for the next exchange to distrust a clock that was set wrong.
    pub fn at(self, now: Now) -> Self {
        let step = lead(now).saturating_sub(self.lead);
        if step.unsigned_abs() <= STEP {
            return self;
        }
        Self { offset: self.offset.saturating_sub(step), lead: lead(now), ..self }
    }

    /// The error of one of the two clocks now, beyond what `epsilon` and the round trip explain, in microseconds.
    pub fn excess_now(self, now: Now, epsilon: u64) -> u64 {
        // A step of this site's own clock that would make up for an error is not believed before the next exchange: the
        // peer's clock may have been set right by itself meanwhile, and the step have made things worse.
        self.excess(epsilon).max(self.at(now).excess(epsilon))
    }

    /// The part of the offset that two clocks within `epsilon` of true time and this round trip do not explain, in
    /// microseconds. Zero if nothing is wrong.
    pub fn excess(&self, epsilon: u64) -> u64 {
        self.offset.unsigned_abs().saturating_sub(2 * epsilon + self.rtt / 2)
    }
}

/// The wall clock minus the monotonic one: it changes only when the wall clock is stepped, or drifts.
fn lead(now: Now) -> i64 {
    now.wall.saturating_sub_unsigned(now.mono)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_clock_counts_and_a_clock_that_is_set_counts_for_nothing() {
        let start = Now { wall: 5_000_000, mono: 100 };
        let mut slower = Slower::new(start);
        let later = |wall: i64, mono: u64| Now { wall: start.wall + wall, mono: start.mono + mono };
        assert_eq!(slower.advance(later(4_000, 4_000)), 4_000, "what passes between two steps counts");
        assert_eq!(slower.advance(later(1_000, 4_500)), 1_000, "and is counted once");
        assert_eq!(slower.advance(later(9_000, 10_000)), 9_000, "the slower clock counts");
        assert_eq!(slower.advance(later(3_600_000_000, 20_000)), 19_000, "the wall clock was set an hour forward");
        assert_eq!(slower.advance(later(40_000, 30_000)), 19_000, "and back");
        assert_eq!(slower.advance(later(50_000, 90_000)), 29_000);
    }

    #[test]
    fn step_of_our_own_clock_shows_at_once_and_drift_does_not() {
        let (sent, received) = (Now { wall: 1_000_000, mono: 50 }, Now { wall: 1_080_000, mono: 80_050 });
        let fair = Offset::measure(sent, 1_040_000, received);
        let later = |step: i64| Now { wall: received.wall + 900_000 + step, mono: received.mono + 900_000 };
        let hour = 3_600 * SECOND as i64;
        for (step, offset) in [(0, 0), (400_000, 0), (-400_000, 0), (hour, -hour), (-hour, hour)] {
            assert_eq!(fair.at(later(step)).offset, offset, "stepped by {step}");
        }
        let wrong = Offset::measure(sent, 1_040_000 + hour, received);
        assert_eq!(wrong.at(later(hour)).excess(1_000), 0, "set right");
        assert!(wrong.excess_now(later(hour), 1_000) > 0, "or both were stepped");
        assert!(fair.excess_now(later(hour), 1_000) > 0 && fair.excess_now(later(0), 1_000) == 0);
        let meanwhile = Now { wall: received.wall + hour, ..received };
        assert_eq!(Offset::measure(sent, 1_040_000, meanwhile).at(later(hour)).offset, -hour);
    }

    #[test]
    fn exchange_during_which_the_machine_was_suspended_is_not_taken_for_a_short_one() {
        let sent = Now { wall: 1_000_000, mono: 50 };
        // It took 164 ms, and the answer was looked at 300 ms later; the monotonic clock stood for 430 of these 464 ms.
        let received = Now { wall: 1_464_000, mono: 34_050 };
        let there = 1_082_000;
        let held_up = Offset::measure(sent, there, received);
        assert_eq!(held_up.excess(10_000), 0, "the clocks agree, as far as this exchange can tell");
        let again = Now { wall: 2_464_000, mono: 1_034_050 };
        let next =
            Offset::measure(again, again.wall + 82_000, Now { wall: again.wall + 164_000, mono: again.mono + 164_000 });
        assert_eq!(held_up.and(next, again), Offset { since: 50, ..next }, "the next one is more exact");
    }

    #[test]
    fn exchange_that_took_long_changes_only_what_it_contradicts() {
        let at = |mono: u64| Now { wall: 1_000_000 + mono as i64, mono };
        let first = Offset::measure(at(0), at(40_000).wall, at(80_000));
        let slow = Offset::measure(at(SECOND), at(SECOND + 40_000).wall, at(9 * SECOND));
        let after = first.and(slow, at(9 * SECOND));
        assert_eq!((after.offset, after.rtt), (0, 80_000), "it may have been held up on the way back");
        // The same answer once more.
        let again = Offset::measure(at(SECOND), at(SECOND + 40_000).wall, at(20 * SECOND));
        assert_eq!(after.and(again, at(20 * SECOND)), after);
        // The peer's clock was set an hour back.
        let stepped = Offset::measure(at(2 * SECOND), at(2 * SECOND).wall - 3_600 * SECOND as i64, at(9 * SECOND));
        assert_eq!(after.and(stepped, at(9 * SECOND)), stepped);
        assert_eq!(first.and(again, at(20 * SECOND)).since, 0, "the same clock still");
        assert_eq!(first.and(stepped, at(9 * SECOND)).since, 2 * SECOND, "another one from then on");
        // Ours was set right by an hour, and a slow exchange says so; one that began before does not.
        let wrong = Offset { offset: 3_600 * SECOND as i64, ..first };
        let begun = at(SECOND);
        let at = |mono: u64| Now { wall: 3_600 * SECOND as i64 + at(mono).wall, mono };
        let astride = Offset::measure(begun, at(SECOND + 40_000).wall, at(SECOND + 90_000));
        assert_eq!(wrong.and(astride, at(SECOND + 90_000)), wrong);
        let slow = Offset::measure(at(SECOND), at(SECOND + 40_000).wall, at(SECOND + 90_000));
        let after = wrong.and(slow, at(SECOND + 90_000));
        assert_eq!((after, after.excess_now(at(2 * SECOND), 1_000)), (slow, 0));
        // One that was held up for seven seconds does not make up for a step of three.
        let behind = |mono: u64| Now { wall: at(mono).wall - 3 * SECOND as i64, mono };
        let held_up = Offset::measure(behind(2 * SECOND), at(2 * SECOND).wall, behind(9 * SECOND));
        assert_eq!(held_up.excess(1_000), 0);
        assert!(slow.and(held_up, behind(9 * SECOND)).excess_now(behind(9 * SECOND), 1_000) > 0);
        let usual = Offset::measure(at(30 * SECOND), at(30 * SECOND + 41_000).wall, at(30 * SECOND + 80_000));
        assert_eq!(after.and(usual, at(30 * SECOND + 80_000)), Offset { since: after.since, ..usual });
    }

    #[test]
    fn offset_is_blamed_on_a_clock_only_beyond_two_epsilon_and_half_the_round_trip() {
        let sent = Now { wall: 1_000_000, mono: 50 };
        let received = Now { wall: 1_080_000, mono: 80_050 };
        let fair = Offset::measure(sent, 1_040_000, received);
        assert_eq!((fair.offset, fair.rtt), (0, 80_000));
        // A lopsided path looks like an offset of up to half the round trip.
        assert_eq!(Offset::measure(sent, 1_080_000, received).excess(1_000), 0);
        assert_eq!(Offset::measure(sent, 1_082_000, received).excess(1_000), 0);
        assert_eq!(Offset::measure(sent, 1_082_001, received).excess(1_000), 1);
        // A step of our own wall clock between the stamps does not spoil the round trip.
        let stepped = Now { wall: 0, mono: 80_050 };
        assert_eq!(Offset::measure(sent, 1_040_000, stepped).rtt, 80_000);
    }
}
