//! Sessions of clients that send each operation as a request of its own, at the very moment at which it happens.
//!
//! The product's client (`slackline_session::sessions`) would put calls that come while a batch is under way into the next one.

use std::collections::VecDeque;

use slackline_core::api::{Batch, Operation, Request, SESSION_WINDOW, Submission};
use slackline_core::id::{Incarnation, SessionId, SiteId};
use slackline_core::session::RETENTION;

/// A session that was silent for this long is not used again, because its site may have ended it, in microseconds.
const STALE: u64 = RETENTION / 2;

/// A session, and which outcomes are awaited in it.
#[derive(Debug)]
pub(crate) struct Session {
    /// The site that opened it.
    site: SiteId,
    /// That site's incarnation.
    incarnation: Incarnation,
    /// Its id at that site.
    pub(crate) id: SessionId,
    /// The lowest sequence whose outcome is awaited.
    low: u64,
    /// From `low` on: whether it is answered.
    answered: VecDeque<bool>,
    /// The time of its last use; the end of time before its first.
    used: u64,
}

impl Session {
    pub(crate) fn new(site: SiteId, incarnation: Incarnation, id: SessionId) -> Self {
        Self { site, incarnation, id, low: 1, answered: VecDeque::new(), used: u64::MAX }
    }

    /// True if its site takes another operation in it.
    pub(crate) fn is_usable(&self, now: u64) -> bool {
        (self.answered.len() as u64) < SESSION_WINDOW && now < self.used.saturating_add(STALE)
    }

    /// True if an outcome is awaited in it.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.answered.is_empty()
    }

    /// A request of one operation, with the next sequence.
    pub(crate) fn submit(&mut self, operation: Operation, timeout: u64, now: u64) -> Request {
        let sequence = self.low + self.answered.len() as u64;
        self.answered.push_back(false);
        self.used = now;
        let operations = vec![Submission { sequence, timeout, operation }];
        let Self { site, incarnation, id, low, .. } = *self;
        Request::Batch(Batch { site, incarnation, session: id, low, operations })
    }

    /// Notes that an operation has its answer. The site may forget those before the lowest that is awaited.
    pub(crate) fn answer(&mut self, sequence: u64) {
        self.answered[(sequence - self.low) as usize] = true;
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.low += 1;
        }
    }
}
