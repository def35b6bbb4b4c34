//! What a site tells of a transaction that it coordinated: which rights proved what it read, who was asked for what, what each
//! answered, and when.

use super::{Abort, ObjectKey};
use crate::id::SiteId;

/// The course of a transaction, as its coordinator saw it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// When the site was asked to commit it, in microseconds since 1970 by its wall clock.
    pub began: i64,
    /// How many of its reads rights proved, so that nobody was asked.
    pub proved: u32,
    /// The first of those; see [`crate::txn::RIGHTS`].
    pub rights: Vec<Proof>,
    /// Who takes part, and with how much.
    pub parts: Vec<Share>,
    /// What happened, in the order of its first time; see [`crate::txn::EVENTS`].
    pub events: Vec<Event>,
    /// Events that found no room.
    pub left_out: u32,
    /// How it was decided, and when; none while it is under way.
    pub end: Option<(u64, End)>,
}

/// A right that proved a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proof {
    /// The object that was read.
    pub key: ObjectKey,
    /// Until when the site relied on the right, in microseconds since 1970.
    pub until: i64,
}

/// How much of a transaction a site is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The site.
    pub site: SiteId,
    /// Objects whose versions it checks.
    pub reads: u32,
    /// Spans whose contents it checks.
    pub scans: u32,
    /// Objects that it changes.
    pub writes: u32,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// When, in microseconds since the beginning by the coordinator's monotonic clock; the first time, if it was repeated.
    pub at: u64,
    /// How often.
    pub times: u32,
    /// The site that was asked or that answered.
    pub site: SiteId,
    /// What it was.
    pub step: Step,
}

/// What a coordinator asks and is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// The site is asked to prepare its part.
    Asked,
    /// The site's writes wait for rights of others to end.
    Waits {
        /// The object whose rights last longest.
        name: String,
        /// Who holds them. Nobody is named where an earlier life of the site may have issued them.
        holders: Vec<SiteId>,
        /// Until when at most, in microseconds since 1970.
        until: i64,
    },
    /// The site's part is durable.
    Prepared,
    /// The site has carried its part out.
    Committed,
    /// The site has refused it.
    Refused(Box<Abort>),
    /// The site is asked what became of it: its answer did not come in time.
    Inquired,
    /// The client is told that it is undecided.
    Undecided,
    /// The site has noted the decision.
    Noted,
}

/// How a transaction was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// It took effect, in so many phases.
    Committed {
        /// 0, 1 or 2.
        phases: u8,
    },
    /// It had no effect.
    Aborted(Box<Abort>),
    /// The only site that took part has lost what it knew.
    Lost,
}

impl Step {
    /// Whether another event at the same site is but a repetition of this one.
    pub fn is_repeated_by(&self, other: &Step) -> bool {
        match (self, other) {
            (Step::Waits { name, .. }, Step::Waits { name: again, .. }) => name == again,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}
