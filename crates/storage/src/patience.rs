//! Waiting for what the operating system refuses now and may give later: room on the disk, or an open file.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::role::Role;

/// What the threads wait for, and until when: while storage is opened nobody waits, then everybody does until storage stops.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// True once the store is open: a full disk is waited for. Before, it is an error.
    patient: AtomicBool,
    /// True once storage has stopped. Never false again.
    over: Mutex<bool>,
    wake: Condvar,
    /// What the table and the log wait for, in words, while they do.
    waits: Mutex<BTreeMap<Role, String>>,
}

impl Patience {
    /// Lets the table wait from now on when the disk is full.
    pub(crate) fn set_patient(&self) {
        self.patient.store(true, Ordering::Release);
    }

    /// Ends the waits that go on, and every later one at its start.
    pub(crate) fn end(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_all();
    }

    /// Notes what one of them waits for, or that it waits no longer.
    pub(crate) fn note(&self, who: Role, why: Option<String>) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => waits.insert(who, why),
            None => waits.remove(&who),
        };
    }

    /// What they wait for, in words.
    pub(crate) fn waits_for(&self) -> Option<String> {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        (!waits.is_empty()).then(|| waits.values().map(String::as_str).collect::<Vec<_>>().join("; "))
    }

    pub(crate) fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Acquire)
    }

    /// Waits for `pause`, or until [`Patience::end`]; returns true after that.
    pub(crate) fn wait(&self, pause: Duration) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.wake.wait_timeout_while(over, pause, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Growing pauses between attempts to get what a thread waits for. Holds the next one.
#[derive(Debug)]
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(Duration::from_millis(25))
    }
}

impl Pause {
    /// The longest pause.
    const MOST: Duration = Duration::from_secs(2);

    /// The pause to make now; the next one is twice as long.
    pub(crate) fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(Self::MOST);
        now
    }
}
