//! Totals of gifts that are told again: after a start, to all that were given something, and to a member that is new, of all quotas.

use crate::clock::{MILLISECOND, Now, SECOND};

/// The time between two announcements of quotas, a page each, in microseconds.
pub(super) const PAUSE: u64 = 100 * MILLISECOND;
/// The time after which a member that is new is told again of what has not recorded it, in microseconds.
pub(super) const AGAIN: u64 = 10 * SECOND;

/// What is still to be told to members.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    /// One entry for each member and reason, until its last page is told.
    pub(super) open: Vec<Announcement>,
    /// When the next page is told.
    pub(super) at: u64,
}

impl Announcements {
    /// True if something is still to be told to the member at a position.
    pub(super) fn is_open_to(&self, peer: usize) -> bool {
        self.open.iter().any(|announcement| announcement.peer == peer && announcement.not_before == 0)
    }
}

/// Totals of gifts that are still to be told to a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Announcement {
    /// The member's position.
    pub(super) peer: usize,
    /// The quota to go on with.
    pub(super) from: usize,
    /// True if all quotas are told, and not only those of which something was given to it.
    pub(super) everything: bool,
    /// True if one was told since the first quota that has not recorded its incarnation. A member that is new may lose what it is told, so
    /// it is told of these again until there are none.
    pub(super) is_unrecorded: bool,
    /// The next page is not told before; zero the first time.
    pub(super) not_before: u64,
}

impl Announcements {
    /// Gifts that were under way when the site stopped may never have arrived: their totals are told again to all others.
    pub(super) fn of_gifts(members: usize, me: usize) -> Self {
        let others = (0..members).filter(|&peer| peer != me);
        Self { open: others.map(|peer| Announcement { peer, ..Announcement::default() }).collect(), at: 0 }
    }

    /// A member is new: it is told of all quotas.
    pub(super) fn add_all(&mut self, now: Now, peer: usize) {
        self.open.retain(|told| told.peer != peer || !told.everything);
        self.open.push(Announcement { peer, everything: true, ..Announcement::default() });
        self.at = self.at.min(now.mono);
    }

    /// A member has new storage, and may have been told of everything: it is told of what has not recorded it.
    pub(super) fn add_unrecorded(&mut self, now: Now, peer: usize) {
        let not_before = now.mono.max(1);
        self.open.push(Announcement { peer, everything: true, not_before, ..Announcement::default() });
    }

    /// When the next page is told, if there is one.
    pub(super) fn deadline(&self) -> Option<u64> {
        (!self.open.is_empty()).then_some(self.at)
    }
}
