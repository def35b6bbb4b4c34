//! The high-water mark of an issuer.

/// A wall-clock time above every end of a right that was ever told, in microseconds since 1970. It must be durable before a
/// right leaves that needs it, because a life that has forgotten what it issued knows nothing else of that.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    /// The time.
    wall: i64,
    /// True if it has changed since [`Mark::take`].
    is_dirty: bool,
}

impl Mark {
    /// The mark as it was left on storage.
    pub fn restore(wall: i64) -> Self {
        Self { wall, is_dirty: false }
    }

    /// The time.
    pub fn wall(self) -> i64 {
        self.wall
    }

    /// Sets it to another time: one that is known to be above every end that can still bind.
    pub fn set(&mut self, wall: i64) {
        (self.wall, self.is_dirty) = (wall, true);
    }

    /// Raises it to `ahead` microseconds above an end, if it is below that end: one write serves many rights.
    pub fn cover(&mut self, end: i64, ahead: u64) {
        if end > self.wall {
            self.set(end.saturating_add_unsigned(ahead));
        }
        assert!(end <= self.wall, "a right outlasts the mark that a next life waits for");
    }

    /// The time, and true if it has changed since the last call.
    pub fn take(&mut self) -> (i64, bool) {
        (self.wall, std::mem::take(&mut self.is_dirty))
    }
}
