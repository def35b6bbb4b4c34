//! What a round agrees on, and the ballots by which it does.

use crate::id::{Incarnation, SiteId};

/// Orders the attempts within one instance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ballot {
    /// Rises with each attempt.
    pub number: u64,
    /// Whose attempt it is; ties go to the higher site.
    pub site: SiteId,
}

/// One site's part of a value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Row {
    /// Whose row it is.
    pub site: SiteId,
    /// The incarnation that reported.
    pub incarnation: Incarnation,
    /// The share number to which it applies.
    pub share: u64,
    /// What was set aside.
    pub before: i64,
    /// What is put in its place.
    pub after: i64,
    /// What was kept out of the round, as reported: only for others to know of, like the next.
    pub kept: i64,
    /// What was given less what was received, modulo 2⁶⁴.
    pub away: i64,
}

/// What a round does to the entity itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lifecycle {
    /// Nothing: tokens move.
    Keep,
    /// It comes into being with this limit, as a new generation.
    Create {
        /// How many tokens there are.
        limit: i64,
    },
    /// It ceases to be, and its tokens with it.
    Delete,
}

/// What an instance decides.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Value {
    /// What happens to the entity.
    pub lifecycle: Lifecycle,
    /// What happens to the shares, in ascending order of sites.
    pub rows: Vec<Row>,
}
