//! A site and the members that it agrees with.

use crate::id::{Incarnation, SiteId};

/// What a site sees of the members, as far as it has heard lately: the incarnation of the one at a position, if it is up.
pub trait Sight: Fn(usize) -> Option<Incarnation> {}

impl<F: Fn(usize) -> Option<Incarnation>> Sight for F {}

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

    /// The other members that are up by `sight`, each with its incarnation.
    pub(super) fn others_up(&self, sight: impl Sight) -> impl Iterator<Item = (SiteId, Incarnation)> {
        let members = self.members.iter().enumerate().filter(|(_, site)| **site != self.me);
        members.filter_map(move |(position, site)| Some((*site, sight(position)?)))
    }
}
