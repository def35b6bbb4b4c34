//! What a site does in a round among a subset.

use super::super::value::Line;
use crate::id::SiteId;

/// What the site does in the round that it is in. Volatile: a restart is idle, though it may still be in the round.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Role<A = i64> {
    /// Nothing of its own under way.
    #[default]
    Idle,
    /// Asking for reports; it leads the round.
    Electing {
        /// The lines that came in, its own first, one for each site.
        reports: Vec<Line<A>>,
        /// The sites that do not join.
        busy: Vec<SiteId>,
        /// True if nobody keeps anything out of the offer.
        gathers: bool,
    },
    /// Asking the members of the value that it has accepted for their votes; it leads the round, or recovers it.
    Collecting {
        /// The answers that came in, one for each member.
        votes: Vec<Vote>,
    },
}

/// A member's answer to `Message::Accept`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Vote {
    /// The member.
    pub site: SiteId,
    /// The members that it has said to know to be dead.
    pub dead: Vec<SiteId>,
}
