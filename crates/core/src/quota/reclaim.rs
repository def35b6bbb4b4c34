//! What lost incarnations had is brought back, on an operator's word: `quota reclaim`.
//!
//! A site that lost its storage has forgotten its tokens and its grants. Both count as in use from then on, since nobody can tell them
//! apart. The books of the sites that are there say how many they are together: what the limit and the excess leave when their tokens,
//! what is under way between them, and what they granted and did not take back, are taken away. The operator says how many of those
//! are still in use; the round brings the rest back.
//!
//! What a site has and what it has granted change by rounds and gifts alone, in sum: a grant or a release moves tokens from one to the
//! other. Gifts are in the totals of both ends, whenever each reports. So the reports of one round, one of each site, are exact, though
//! they are of different moments, if three things hold, and a site reports no books where it cannot say so (`Offer::used`):
//!
//! - all reports are of one instance;
//! - all sites know the same incarnations of each other, those that rounds have recorded;
//! - nothing of a lost incarnation is taken in after the report: a gift of one that a round has recorded as gone is ignored.
//!
//! It is done once: what was said to be in use is noted in the table, and no later word brings it back.

use std::collections::VecDeque;

use super::book::{Break, Quotas};
use super::one::{Admin, Quota};
use crate::api::{Outcome, Refusal};
use crate::avantan::{Lifecycle, Unfit};
use crate::id::{Incarnation, SiteId, SiteSet};
use crate::turn::{Here, Turn};

impl Quotas {
    /// Whether the incarnations that an operator calls `lost` are those of which something may be left in this quota: an error if not,
    /// false if no round has recorded yet that they are gone.
    pub(super) fn may_reclaim(&self, here: &Here, at: usize, lost: &[(SiteId, Incarnation)]) -> Result<bool, Refusal> {
        let table = &self.list[at].avantan.share.table;
        let is_member = |site: &SiteId| here.site.members.contains(site);
        let present = |site| is_member(&site).then(|| here.incarnation_of(site).max(table.recorded(site)));

        // The newest that was lost stands for all before it.
        let mut is_recorded = true;
        for &(site, incarnation) in lost {
            match present(site) {
                Some(present) if present == incarnation => return Err(Refusal::IncarnationLives),
                Some(present) if present > incarnation && incarnation > Incarnation(0) => {
                    is_recorded &= table.recorded(site) > incarnation;
                }
                _ => return Err(Refusal::NothingLost),
            }
        }
        if !is_recorded {
            return Ok(false);
        }

        // The books do not tell what one of them had from what another had: the word is about all of them.
        let mut unnamed = SiteSet::default();
        let mut is_any_left = false;
        for newest in table.lost() {
            let is_named = lost.iter().any(|named| named.0 == newest.0);
            is_any_left |= is_named;

            // No more of a site that is gone will be lost, so whichever is named stands for all.
            let is_gone = table.recorded(newest.0) == Incarnation::GONE;
            if !(lost.contains(&newest) || (is_named && is_gone)) {
                let position = here.site.members.iter().position(|member| *member == newest.0);
                unnamed.insert(position.expect("rounds record members alone"));
            }
        }

        match () {
            () if !is_any_left => Err(Refusal::NothingLost),
            () if !unnamed.is_empty() => Err(Refusal::AlsoLost { sites: unnamed }),
            () => Ok(true),
        }
    }

    /// True if a word waits here. What it may wait for, that sites know of an incarnation, is told by no round.
    pub(super) fn has_word(&self, at: usize) -> bool {
        let mut admin = self.list[at].activity.iter().flat_map(|activity| &activity.admin);
        admin.any(|admin| matches!(admin.change, Lifecycle::Reclaim { .. }))
    }

    /// True if a round that this site may lead records it, and tells whether the quota is gone.
    pub(super) fn waits_to_be_recorded(&self, here: &Here, at: usize) -> bool {
        let avantan = &self.list[at].avantan;
        avantan.share.table.is_new(here.site) && avantan.may_vote(here.site)
    }

    /// Whether the round that a change waits for can be led now. One that never can is refused.
    pub(super) fn is_ready(&self, here: &Here, at: usize, admin: &Admin) -> Result<bool, Refusal> {
        match admin.change {
            Lifecycle::Seat { site, .. } if admin.aim.is_none() => self.is_seat_ready(here, at, site),
            // A round that creates what exists comes to nothing. Here it may be gone: a round that records this site tells.
            Lifecycle::Create { .. } if admin.aim.is_none() && self.waits_to_be_recorded(here, at) => Ok(false),
            // What it is to be below may have been deleted since it came; some time later that name is forgotten, and may be another quota's.
            Lifecycle::Create { charter, .. } if admin.aim.is_none() => {
                match self.charter_below(here, &self.list[at].name, charter) {
                    Ok(_) => Ok(true),
                    Err(Break::Refused(refusal)) => Err(refusal),
                    Err(Break::Unheard(length)) => match self.living(&self.list[at].name[..length]) {
                        Some(_) => Ok(false),
                        None => Err(Refusal::NoParent),
                    },
                }
            }
            Lifecycle::Delete if admin.aim.is_none() && self.has_children(at) => Err(Refusal::HasChildren),
            // A value that carries it out may be accepted already.
            // Where this site itself can tell no books, a round would come to nothing.
            Lifecycle::Reclaim { .. } if admin.aim.is_none() => {
                let may_reclaim = self.may_reclaim(here, at, &admin.lost)?;
                Ok(may_reclaim && self.list[at].used_if_agreed(here).is_some())
            }
            _ => Ok(true),
        }
    }

    /// What a change that waits comes to by a value that is out: of what is reclaimed, only now it is known how much is brought back. None if
    /// it is not this one that the value carries out: it is judged again when the value is decided. A word that says the same of other
    /// incarnations is another one, however little either brings back. That goes by the table alone, which is the same from the election to
    /// the value: an incarnation that shows itself in between changes nothing for who asked.
    pub(super) fn aimed(&self, here: &Here, at: usize, admin: &Admin, out: Lifecycle) -> Option<Lifecycle> {
        match (admin.change, out) {
            (Lifecycle::Reclaim { in_use, .. }, Lifecycle::Reclaim { in_use: said, .. })
                if in_use == said && self.may_reclaim(here, at, &admin.lost) == Ok(true) =>
            {
                Some(out)
            }
            (Lifecycle::Reclaim { .. }, _) | (Lifecycle::Resize { .. }, Lifecycle::Delete) => None,
            (change, _) => Some(change),
        }
    }

    /// The books of all sites say that what operators say is in use cannot be true, or that what they delete is in use.
    pub(super) fn refuse_unfit(&mut self, turn: &mut Turn, at: usize, unfit: Unfit) {
        let refused = |admin: &Admin| match (admin.change, unfit) {
            (Lifecycle::Reclaim { in_use, .. }, Unfit::Above { most }) if admin.aim.is_none() && in_use > most => {
                Some(Refusal::AboveLost { at_most: most })
            }
            (Lifecycle::Reclaim { in_use, .. }, Unfit::Below { least }) if admin.aim.is_none() && in_use < least => {
                Some(Refusal::BelowReleased { at_least: least })
            }
            (Lifecycle::Delete, Unfit::InUse { amount }) if admin.aim.is_none() => Some(Refusal::InUse { amount }),
            _ => None,
        };
        let here = turn.here;
        self.refuse_admin(turn, at, |quotas, admin| {
            refused(admin).filter(|_| quotas.is_ready(&here, at, admin) == Ok(true))
        });
    }

    /// Refuses the changes for which there is a reason.
    pub(super) fn refuse_admin(
        &mut self,
        turn: &mut Turn,
        at: usize,
        reason: impl Fn(&Self, &Admin) -> Option<Refusal>,
    ) -> bool {
        let Some(activity) = self.list[at].activity.as_mut().filter(|activity| !activity.admin.is_empty()) else {
            return false;
        };
        let admin = std::mem::take(&mut activity.admin);
        let count = admin.len();
        let mut left = VecDeque::with_capacity(admin.len());
        for admin in admin {
            match reason(self, &admin) {
                Some(refusal) => self.finish(turn, admin.ticket, Outcome::Refused(refusal)),
                None => left.push_back(admin),
            }
        }
        let activity = self.list[at].activity.as_mut().expect("looked at above");
        activity.admin = left;
        activity.note_deadlines();
        activity.admin.len() < count
    }
}

impl Quota {
    /// What this site spent less what came back, for a round that reclaims. None if it knows of an incarnation, its own included, that
    /// no round has recorded: then its totals of gifts may be of other incarnations than another site's.
    pub(super) fn used_if_agreed(&self, here: &Here) -> Option<i64> {
        let table = &self.avantan.share.table;
        let is_agreed = here.site.members.iter().all(|site| here.incarnation_of(*site) == table.recorded(*site));

        // Books that a line has no room for are told of by none: cut off, they would be others.
        let net =
            i128::try_from(self.counters.acquired).ok()?.checked_sub(i128::try_from(self.counters.released).ok()?)?;
        net.checked_add(i128::from(self.carried(here)))?.try_into().ok().filter(|_| is_agreed)
    }
}
