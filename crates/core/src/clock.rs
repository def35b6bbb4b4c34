//! What a site knows of the time.
//!
//! Two clocks, both in integer microseconds: the **wall** clock, which people agree on and which may step, and the
//! **monotonic** clock, which never goes back but starts anew with every life. It goes on while the machine is suspended,
//! as far as the machine can tell; what is promised does not rest on that alone. **ε** bounds each wall clock's distance
//! from true time. Nothing that concerns who owns a token depends on either: clocks end holds (see [`crate::right`]),
//! time retries and feed forecasts.
//!
//! Peers measure each other's wall clock by exchange, as NTP does: an offset that 2ε and half the round trip cannot
//! explain is an error of one of the two clocks ([`Offset::excess`]). A site with which somebody disagrees so, and
//! not enough others agree, doubts its own. Between two exchanges its monotonic clock tells it that its wall clock was stepped ([`Offset::at`]).

/// The time of one input, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Now {
    /// Microseconds since 1970 by the wall clock.
    pub wall: i64,
    /// Microseconds on the monotonic clock; comparable within one life only.
    pub mono: u64,
}

/// One microsecond-clock second.
pub const SECOND: u64 = 1_000_000;

/// One millisecond.
pub const MILLISECOND: u64 = 1_000;

/// A wall clock that has moved against the monotonic one by more than this since the last exchange was stepped, in
/// microseconds. Between two exchanges clocks that merely drift come nowhere near it.
const STEP: u64 = SECOND / 2;

/// What one exchange told about a peer's wall clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offset {
    /// Peer's clock minus ours, in microseconds.
    pub offset: i64,
    /// The round trip of the exchange, in microseconds; the offset is known to within half of it.
    pub rtt: u64,
    /// By how much our wall clock was ahead of our monotonic one when the exchange began, in microseconds.
    pub lead: i64,
    /// When the exchange began, on our monotonic clock.
    pub sent: u64,
}

impl Offset {
    /// From the four stamps of an exchange: `sent` and `received` by our clocks, `there` by the peer's wall clock.
    /// The peer answers at once, so one stamp serves as its arrival and its departure.
    pub fn measure(sent: Now, there: i64, received: Now) -> Self {
        let rtt = received.mono.saturating_sub(sent.mono);
        let middle = sent.wall.saturating_add((rtt / 2) as i64);
        Self { offset: there.saturating_sub(middle), rtt, lead: lead(sent), sent: sent.mono }
    }

    /// What is known after one more exchange. One that took longer tells less, since it was held up on the way: if it may be that
    /// nothing has changed, what is known more exactly stands, unless our wall clock was stepped since: then one that took a
    /// second or more, and longer than usual, stands back only while it cannot contradict. The answer to an earlier question, or the
    /// same once more, tells nothing; nor does one to a question of before the step.
    pub fn and(self, newer: Self, now: Now) -> Self {
        if newer.sent <= self.sent || !newer.is_of(now) {
            return self;
        }
        let may_be_same = self.at(now).offset.abs_diff(newer.offset) <= newer.rtt / 2;
        match self.is_of(now) {
            true if newer.rtt > self.rtt && may_be_same => Self { sent: newer.sent, ..self },
            // What was held up for so long would make up for any step.
            false if newer.rtt > SECOND.max(2 * self.rtt) && may_be_same => self,
            _ => newer,
        }
    }

    /// Whether our wall clock was not stepped since the exchange began.
    pub fn is_of(self, now: Now) -> bool {
        self.at(now) == self
    }

    /// What the exchange tells now. If our wall clock was stepped since, the peer's is as much farther from it: so a site
    /// need not wait for the next exchange to distrust a clock that was set wrong.
    pub fn at(self, now: Now) -> Self {
        let step = lead(now).saturating_sub(self.lead);
        if step.unsigned_abs() <= STEP {
            return self;
        }
        Self { offset: self.offset.saturating_sub(step), lead: lead(now), ..self }
    }

    /// How wrong one of the two clocks may be now, beyond what `epsilon` and the round trip can show. That a step of our own has
    /// made up for what was wrong, only the next exchange can tell: the peer's clock may have been set right by itself meanwhile.
    pub fn excess_now(self, now: Now, epsilon: u64) -> u64 {
        self.excess(epsilon).max(self.at(now).excess(epsilon))
    }

    /// By how much the offset exceeds what two clocks within `epsilon` of true time and this round trip can show.
    /// Zero if nothing is wrong.
    pub fn excess(&self, epsilon: u64) -> u64 {
        self.offset.unsigned_abs().saturating_sub(2 * epsilon + self.rtt / 2)
    }
}

/// By how much the wall clock is ahead of the monotonic one.
fn lead(now: Now) -> i64 {
    now.wall.saturating_sub_unsigned(now.mono)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(after.and(usual, at(30 * SECOND + 80_000)), usual);
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
