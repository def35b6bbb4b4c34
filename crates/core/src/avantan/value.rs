//! What sites offer to a round and what it agrees on, and the ballots by which it does.

use std::sync::Arc;

use crate::api::Charter;
use crate::id::{Incarnation, SiteId};

/// Orders the attempts within one instance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ballot {
    /// Rises with each attempt.
    pub number: u64,
    /// Whose attempt it is; ties go to the higher site.
    pub site: SiteId,
}

/// A site's part of a round: what it offers, and what it wants.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Line<A = i64> {
    /// The site.
    pub site: SiteId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its share number: a row applies to no other state of the share.
    pub share: u64,
    /// The amount that is set aside for the round.
    pub held: A,
    /// The amount that it has besides and goes on serving from, at the time of the report.
    pub kept: A,
    /// What it has given to other sites less what it has received; over all sites it adds up to what is under way. Of
    /// tokens: modulo 2⁶⁴.
    pub away: A,
    /// What was spent of it in this incarnation less what came back, if `away` is by the incarnations that rounds know, and the site
    /// knows of no other. Of tokens: modulo 2⁶⁴.
    pub used: Option<A>,
    /// True if it grants nothing until the outcome.
    pub closing: bool,
    /// The amount without which requests that wait there cannot be served.
    pub needed: A,
    /// The level that it wants to hold afterwards, `needed` included.
    pub wanted: A,
}

/// One site's part of a value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Row<A = i64> {
    /// The site whose share it changes.
    pub site: SiteId,
    /// The incarnation of it that reported.
    pub incarnation: Incarnation,
    /// The share number to which it applies.
    pub share: u64,
    /// The amount that was set aside.
    pub before: A,
    /// The amount that is put in its place.
    pub after: A,
    /// The amount that was kept out of the round, as reported; it tells the others, and changes nothing.
    pub kept: A,
    /// What was given less what was received, as reported ([`Line::away`]); it tells the others, and changes nothing.
    pub away: A,
}

/// What a round does to the entity itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lifecycle<A = i64> {
    /// Nothing: shares move.
    Keep,
    /// It comes into being with this limit, as a new generation.
    Create {
        /// The amount of all shares together.
        limit: A,
        /// What else is agreed on about it.
        charter: Charter,
    },
    /// It ceases to be, and its shares with it.
    Delete,
    /// It has another limit from now on, the same generation. A raised one adds to the shares; a lowered one takes from them, and
    /// what it finds too little of is in excess ([`Table::excess`](super::Table::excess)).
    Resize {
        /// The amount of all shares together, those that are spent included.
        limit: A,
    },
    /// What lost incarnations had is shared out again, on an operator's word; the limit and the generation stay.
    Reclaim {
        /// The amount that comes back to the shares.
        brought: A,
        /// The amount that lost incarnations had besides and that is spent for good, or still in use.
        in_use: A,
    },
    /// A site becomes a member, or is one no longer; of the one entity by which members agree on that. No share moves.
    Seat {
        /// The site.
        site: SiteId,
        /// True if it is a member no longer; false if it joins.
        gone: bool,
    },
}

/// What an instance decides.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Value<A = i64> {
    /// What happens to the entity.
    pub lifecycle: Lifecycle<A>,
    /// The last change of the members that its leader knew of when it built the value: a number, from zero.
    pub membership: u64,
    /// What drivers have to know to reach a site that joins; empty in every other value.
    pub label: Arc<str>,
    /// What happens to the shares, in ascending order of sites.
    pub rows: Vec<Row<A>>,
}
