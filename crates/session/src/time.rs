//! The time as a client knows it: a monotonic clock, in microseconds from a start that the driver chooses; and pauses.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A time: microseconds of the driver's monotonic clock. Only the difference of two times means something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    /// The time that has passed since `earlier`; none if `earlier` is later.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// The time at which `span` will have passed. A span of centuries ends with the clock.
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        self.after(span)
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, span: Duration) {
        *self = self.after(span);
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Between half of `pause` and all of it, by `random`, so that those who failed together do not come back together.
pub fn jittered(pause: Duration, random: u64) -> Duration {
    let half = pause / 2;
    half + half * (random as u32 % 1024) / 1024
}

/// The time that a site may take for what its caller wants by `deadline`, in microseconds: it gives up a little before the caller
/// does, so that its answer arrives in time. At least 1.
pub fn time_at_the_site(deadline: Time, now: Time, round_trip: Duration) -> u64 {
    let left = deadline.saturating_duration_since(now);
    let margin = round_trip + (left / 8).min(Duration::from_millis(50));
    u64::try_from(left.saturating_sub(margin).as_micros()).unwrap_or(u64::MAX).max(1)
}
