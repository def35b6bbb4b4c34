//! The clocks of one site, as functions of true time: a wall clock with an offset and a drift that may step, and a
//! monotonic one that may drift, or stand still for a while, and starts again with every life.

use slackline_core::clock::Now;

/// What the wall clocks show at the start of a run: microseconds since 1970.
pub(crate) const EPOCH: i64 = 1_700_000_000_000_000;
/// The bound on wall clocks' errors that sites are told, in microseconds.
pub(crate) const EPSILON: i64 = 10_000;
/// Parts in which drift is counted.
const MILLION: i128 = 1_000_000;

/// One site's clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The true time from which drift is counted.
    since: u64,
    /// What the wall clock showed then, in microseconds since 1970.
    wall: i64,
    /// What the monotonic clock showed then, in microseconds.
    mono: u64,
    /// By how many millionths the wall clock goes too fast.
    wall_drift: i64,
    /// The same of the monotonic clock.
    mono_drift: i64,
    /// The monotonic clock stands still up to this true time.
    stands_until: u64,
}

impl Clock {
    /// Clocks without error.
    pub(crate) fn new() -> Self {
        Self { since: 0, wall: EPOCH, mono: 0, wall_drift: 0, mono_drift: 0, stands_until: 0 }
    }

    /// What they show at `now`.
    #[inline]
    pub(crate) fn read(&self, now: u64) -> Now {
        let passed = now - self.since;
        let went = now.saturating_sub(self.since.max(self.stands_until));
        if self.wall_drift == 0 && self.mono_drift == 0 {
            return Now { wall: self.wall + passed as i64, mono: self.mono + went };
        }

        let drifted = |passed: u64, drift: i64| i128::from(passed) + i128::from(passed) * i128::from(drift) / MILLION;
        Now {
            wall: self.wall + drifted(passed, self.wall_drift) as i64,
            mono: self.mono + drifted(went, self.mono_drift).max(0) as u64,
        }
    }

    /// The first true time, not before `now`, at which the monotonic clock shows at least `mono`.
    #[inline]
    pub(crate) fn when(&self, now: u64, mono: u64) -> u64 {
        let missing = mono.saturating_sub(self.read(now).mono);
        let now = if missing > 0 { now.max(self.stands_until) } else { now };

        // Rounded up: a deadline that is planned must be met when its time comes.
        if self.mono_drift == 0 || missing == 0 {
            return now.saturating_add(missing);
        }
        let ahead = i128::from(missing) * MILLION / (MILLION + i128::from(self.mono_drift)) + 1;
        now.saturating_add(ahead.min(i128::from(u64::MAX / 2)) as u64)
    }

    /// The wall clock's error at `now`.
    pub(crate) fn error(&self, now: u64) -> i64 {
        self.read(now).wall - EPOCH - now as i64
    }

    /// A new life: the monotonic clock starts again. It does not stand: a machine on which a process is started runs.
    pub(crate) fn restart(&mut self, now: u64, mono: u64) {
        self.rebase(now);
        self.stands_until = now;
        self.mono = mono;
    }

    /// The wall clock is set to be this far from true time, and to drift by so many millionths.
    pub(crate) fn set_wall(&mut self, now: u64, error: i64, drift: i64) {
        self.rebase(now);
        self.wall = EPOCH + now as i64 + error;
        self.wall_drift = drift;
    }

    /// The monotonic clock drifts by so many millionths from here on.
    pub(crate) fn set_mono_drift(&mut self, now: u64, drift: i64) {
        self.rebase(now);
        self.mono_drift = drift;
    }

    /// The monotonic clock stands still from now until then, as one does that does not count the time for which its machine is
    /// suspended. The wall clock goes on.
    pub(crate) fn stand(&mut self, now: u64, until: u64) {
        self.rebase(now);
        self.stands_until = self.stands_until.max(until);
    }

    /// Counts drift from now on.
    fn rebase(&mut self, now: u64) {
        let shown = self.read(now);
        (self.since, self.wall, self.mono) = (now, shown.wall, shown.mono);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_is_met_by_the_clock_that_drifts() {
        for drift in [-300, -1, 0, 1, 250, 100_000] {
            let mut clock = Clock::new();
            clock.set_mono_drift(1_000, drift);
            let at = clock.when(2_000, 10_000_000);
            assert!(clock.read(at).mono >= 10_000_000, "{drift}");
            assert!(clock.read(at - 3).mono < 10_000_000, "{drift}");
        }
    }

    #[test]
    fn monotonic_clock_that_stands_goes_on_from_there_and_deadlines_wait_for_it() {
        for drift in [0, 100_000] {
            let mut clock = Clock::new();
            clock.set_mono_drift(0, drift);
            clock.stand(1_000_000, 5_000_000);
            let stood = clock.read(1_000_000).mono;
            assert_eq!(clock.read(4_000_000).mono, stood);
            assert_eq!(clock.error(4_000_000), 0);
            let at = clock.when(3_000_000, stood + 500_000);
            assert!((5_400_000..=5_500_001).contains(&at), "{drift}: {at}");
            assert_eq!(clock.when(3_000_000, stood), 3_000_000);
            let mut restarted = clock;
            restarted.restart(3_000_000, 7);
            assert!(restarted.read(4_000_000).mono.abs_diff(1_000_007) <= 100_000, "{drift}");
            clock.set_wall(4_500_000, 0, 0);
            assert!(clock.read(6_000_000).mono.abs_diff(stood + 1_000_000) <= 100_000, "{drift}");
        }
    }

    #[test]
    fn wall_clock_steps_and_drifts_without_moving_the_monotonic_one() {
        let mut clock = Clock::new();
        clock.set_wall(5_000_000, -2_000, 100);
        assert_eq!(clock.error(5_000_000), -2_000);
        assert_eq!(clock.error(15_000_000), -1_000);
        assert_eq!(clock.read(15_000_000).mono, 15_000_000);
    }
}
