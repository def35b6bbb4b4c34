//! The clocks of one life, and the bound on the wall clock's error.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slackline_core::clock::{MILLISECOND, Now, SECOND};

/// The bound on the error of a wall clock for which nothing vouches, in microseconds.
pub const DEFAULT_EPSILON: u64 = 10 * MILLISECOND;

/// The clocks of one life. The monotonic one starts with the life, and goes on while the machine is suspended. `Instant` does not:
/// by it, a right that ended during the suspension would seem to last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The start of the life, by the clock that stands still during a suspension.
    start: Instant,
    /// The start of the life, by the clock that counts suspended time.
    boot: Duration,
}

/// A difference of the two clocks below this one may come from reading them one after the other.
const APART: Duration = Duration::from_millis(1);

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), boot: since_boot() }
    }

    pub(crate) fn now(&self) -> Now {
        let wall = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_micros() as i64,
            Err(before) => -(before.duration().as_micros() as i64),
        };
        Now { wall, mono: self.mono() }
    }

    pub(crate) fn mono(&self) -> u64 {
        since_boot().saturating_sub(self.boot).as_micros() as u64
    }

    /// The instant at which the monotonic clock will show `mono`, if the machine is not suspended until then.
    pub(crate) fn instant(&self, mono: u64) -> Instant {
        let suspended = since_boot().saturating_sub(self.boot).saturating_sub(self.start.elapsed());
        let suspended = if suspended < APART { Duration::ZERO } else { suspended };

        // Far deadlines need no exact instant, and `Instant` must not overflow.
        let mono = Duration::from_micros(mono.min(1_000_000 * 3600 * 24 * 365 * 100));
        self.start + mono.saturating_sub(suspended)
    }
}

/// The time since the machine was started, suspended time included.
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The bound on the wall clock's error in microseconds: as configured, else the operating system's own estimate if
/// something disciplines its clock, else [`DEFAULT_EPSILON`]. The estimate is of this moment: it falls whenever the clock is set right, and grows
/// in between. So nothing below the default is believed for as long as the site runs.
pub(crate) fn epsilon(configured: Option<u64>) -> u64 {
    configured.unwrap_or_else(|| system_estimate().unwrap_or(0).max(DEFAULT_EPSILON))
}

/// The kernel's bound on its clock's error, if the clock is synchronised.
fn system_estimate() -> Option<u64> {
    // SAFETY: `timex` is plain integers, for which zero is valid, and with `modes` zero the call only reads.
    let (state, timex) = unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&mut timex), timex)
    };

    // Where nothing disciplines the clock the kernel's bound says nothing, and the default is taken. A bound of a second or more
    // means the same.
    let synchronised = state >= 0 && state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0;
    let bound = u64::try_from(timex.maxerror).ok()?;
    (synchronised && bound < SECOND).then_some(bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_clock_is_the_one_that_goes_on_while_the_machine_is_suspended() {
        // Six hours before this life began the machine was started, and it was suspended for five of them since.
        let hours = |hours: u64| Duration::from_secs(3_600 * hours);
        let slept = Clock { start: Instant::now(), boot: since_boot().saturating_sub(hours(5)) };
        let expected = since_boot().min(hours(5)).as_micros() as u64;
        assert!(slept.mono() >= expected);
        let next = slept.instant(slept.mono() + 1_000_000);
        assert!(next > Instant::now() && next < Instant::now() + Duration::from_secs(2), "a second from now");
    }
}
