//! What a part waits for before it is judged: a list of things, each of which ends by itself at a time, or sooner.
//!
//! There are two: rights of other sites over what the part writes, and slack of a treaty that its writes use up (see
//! [`super::leaves`]). The part only asks when each thing ends, and whom that depends on.

use super::leaves::Leaves;
use super::locks::Locks;
use crate::id::SiteId;
use crate::object::{Abort, Cause, ObjectKey, Part};
use crate::turn::Here;
use crate::warranty::Issuer;

/// Something that a part waits for.
pub(super) struct Wait {
    /// The object that the part writes, and that this is about; for slack, the treaty's.
    about: ObjectKey,
    /// The sites that can end it sooner. None are known of what an earlier life of this site has issued.
    holders: Vec<SiteId>,
    /// The monotonic time at which it ends by itself, by what is known now.
    pub(super) over_at: u64,
    /// The time for which it is expected to last, in microseconds, if its holders are asked to end it.
    pub(super) expected: u64,
}

impl Wait {
    /// Slack of a treaty, which others have.
    pub(super) fn for_slack(treaty: ObjectKey, holders: Vec<SiteId>, over_at: u64, expected: u64) -> Self {
        Self { about: treaty, holders, over_at, expected }
    }

    /// The refusal of a part that does not wait for this.
    pub(super) fn refusal(self, here: &Here) -> Abort {
        let left = self.over_at.saturating_sub(here.now.mono);
        let until = Some(here.now.wall.saturating_add_unsigned(left));
        let (key, site) = (Some(self.about), Some(here.site.me));
        Abort { key, site, holders: self.holders, until, ..Abort::of(Cause::WouldWait) }
    }
}

/// What a part waits for: rights in the order of its writes, then slack. Nothing, if it may be judged now.
pub(super) fn waits(issuer: &mut Issuer, (leaves, locks): (&Leaves, &Locks), here: &Here, part: &Part) -> Vec<Wait> {
    let mut waits = Vec::new();
    for (name, _) in &part.writes {
        let Some(over_at) = issuer.over_at(here.now, name) else { continue };
        let past = issuer.past_over_at(here.now).map_or(0, |over| over.saturating_sub(here.now.mono));
        let rights = issuer.binding(here.now, name);

        // A holder that is up is asked, and answers within a round trip. One that is not up gives nothing up: its right runs to its
        // end. So does what an earlier life has issued: nobody can be asked for that.
        let lasts = rights.iter().map(|right| {
            let left = right.over_at(here.now).saturating_sub(here.now.mono);
            if here.is_reachable(right.holder) { here.round_trip(right.holder).min(left) } else { left }
        });
        let expected = lasts.max().unwrap_or(0).max(past);
        let holders = rights.iter().map(|right| right.holder).collect();
        let about = ObjectKey::new(here.site.me.region, name);
        waits.push(Wait { about, holders, over_at, expected });
    }
    leaves.waits(here, locks, part, &mut waits);
    waits
}

/// Of these, the one that is expected to last longest; the first of several.
pub(super) fn longest(waits: Vec<Wait>) -> Option<Wait> {
    waits.into_iter().rev().max_by_key(|wait| wait.expected)
}
