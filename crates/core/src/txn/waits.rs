//! What a part waits for before it is judged: a list of things, each of which ends by itself at a time, or sooner.
//!
//! There are two: rights of other sites over what the part writes, and slack of a treaty that its writes use up (see
//! [`super::leaves`]). The part only asks when each thing ends, and whom that depends on.

use crate::id::SiteId;
use crate::object::{Abort, Cause, ObjectKey};
use crate::turn::Here;

/// Something that a part waits for.
pub(super) struct Wait {
    /// The object that the part writes, and that this is about; for slack, the treaty's.
    pub(super) about: ObjectKey,
    /// The sites that can end it sooner. None are known of what an earlier life of this site has issued.
    pub(super) holders: Vec<SiteId>,
    /// The monotonic time at which it ends by itself, by what is known now.
    pub(super) over_at: u64,
    /// The time for which it is expected to last, in microseconds, if its holders are asked to end it.
    pub(super) expected: u64,
}

impl Wait {
    /// The refusal of a part that does not wait for this.
    pub(super) fn refusal(self, here: &Here) -> Abort {
        let left = self.over_at.saturating_sub(here.now.mono);
        let until = Some(here.now.wall.saturating_add_unsigned(left));
        let (key, site) = (Some(self.about), Some(here.site.me));
        Abort { key, site, holders: self.holders, until, ..Abort::of(Cause::WouldWait) }
    }
}

/// Of these, the one that is expected to last longest; the first of several.
pub(super) fn longest(waits: Vec<Wait>) -> Option<Wait> {
    waits.into_iter().rev().max_by_key(|wait| wait.expected)
}
