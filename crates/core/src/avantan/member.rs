//! A site and the members that it agrees with.

use crate::id::{Incarnation, SiteId};

/// Who takes part: fixed for the life of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Membership<'a> {
    /// The site that this machine is.
    pub me: SiteId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// All sites of the lane, itself included, in ascending order.
    pub members: &'a [SiteId],
}

impl Membership<'_> {
    /// Returns the number of sites that make a majority of all.
    pub fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// All members but this one.
    pub fn others(&self) -> impl Iterator<Item = SiteId> + '_ {
        self.members.iter().copied().filter(|site| *site != self.me)
    }
}
