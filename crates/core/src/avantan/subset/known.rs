//! Which incarnations of the other sites are gone.

use crate::id::{Incarnation, SiteId};

/// The newest incarnation of each other site that this site has heard of. It only rises, and it is durable before anything is said
/// that rests on it: a site that forgot it in a crash might count a vote of the dead again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Known {
    /// By site, in the order in which they were first heard of; one of which nothing was heard is left out.
    newest: Vec<(SiteId, Incarnation)>,
}

impl Known {
    /// What was heard of each site.
    pub fn new(newest: Vec<(SiteId, Incarnation)>) -> Self {
        Self { newest }
    }

    /// The newest incarnation heard of; zero for none.
    pub fn newest(&self, site: SiteId) -> Incarnation {
        let known = self.newest.iter().find(|known| known.0 == site);
        known.map_or(Incarnation(0), |known| known.1)
    }

    /// True if a later incarnation of the site was heard of: this one is dead, and no incarnation comes back.
    pub fn is_dead(&self, site: SiteId, incarnation: Incarnation) -> bool {
        self.newest(site) > incarnation
    }

    /// Hears of an incarnation. Returns true if it is news.
    pub fn note(&mut self, site: SiteId, incarnation: Incarnation) -> bool {
        if incarnation <= self.newest(site) {
            return false;
        }
        match self.newest.iter_mut().find(|known| known.0 == site) {
            Some(known) => known.1 = incarnation,
            None => self.newest.push((site, incarnation)),
        }
        true
    }

    /// Every site heard of, with its newest incarnation.
    pub fn iter(&self) -> impl Iterator<Item = (SiteId, Incarnation)> {
        self.newest.iter().copied()
    }
}
