//! The clocks of one life, and how far the wall clock may be off.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slackline_core::clock::{MILLISECOND, Now, SECOND};

/// What is assumed of a wall clock that nobody vouches for, in microseconds.
pub const DEFAULT_EPSILON: u64 = 10 * MILLISECOND;

/// The clocks of one life. The monotonic one starts with the life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now(&self) -> Now {
        let wall = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_micros() as i64,
            Err(before) => -(before.duration().as_micros() as i64),
        };
        Now { wall, mono: self.mono() }
    }

    pub(crate) fn mono(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// The instant at which the monotonic clock shows `mono`.
    pub(crate) fn instant(&self, mono: u64) -> Instant {
        // Far deadlines need no exact instant, and `Instant` must not overflow.
        self.start + Duration::from_micros(mono.min(1_000_000 * 3600 * 24 * 365 * 100))
    }
}

/// The bound on the wall clock's error in microseconds: as configured, else the operating system's own estimate if
/// something disciplines its clock, else [`DEFAULT_EPSILON`].
pub(crate) fn epsilon(configured: Option<u64>) -> u64 {
    configured.or_else(system_estimate).unwrap_or(DEFAULT_EPSILON)
}

/// The kernel's bound on its clock's error, if the clock is synchronised. It is not taken for less than a millisecond.
fn system_estimate() -> Option<u64> {
    // SAFETY: `timex` is plain integers, for which zero is valid, and with `modes` zero the call only reads.
    let (state, timex) = unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&mut timex), timex)
    };
    let synchronised = state >= 0 && state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0;
    let bound = u64::try_from(timex.maxerror).ok()?;
    (synchronised && bound < SECOND).then_some(bound.max(MILLISECOND))
}
