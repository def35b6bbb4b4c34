//! The trace of a transaction, as its coordinator tells it: the rights that proved its reads, the parts of the other
//! sites, their answers, and the times of all that.

use super::{Abort, ObjectKey};
use crate::id::SiteId;

/// The course of a transaction, as its coordinator saw it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// The time at which the site was asked to commit it, in microseconds since 1970 by its wall clock.
    pub began: i64,
    /// The number of its reads that rights proved, so that no site was asked.
    pub proved: u32,
    /// The first of these rights; at most [`crate::txn::RIGHTS`].
    pub rights: Vec<Proof>,
    /// The participants, and the size of the part of each.
    pub parts: Vec<Share>,
    /// The events, in the order of the first time of each; at most [`crate::txn::EVENTS`].
    pub events: Vec<Event>,
    /// The number of events for which there was no room.
    pub left_out: u32,
    /// The end, with its time in microseconds since the beginning; none while it is under way.
    pub end: Option<(u64, End)>,
}

/// A right that proved a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proof {
    /// The object that was read.
    pub key: ObjectKey,
    /// The time until which the site relied on the right, in microseconds since 1970.
    pub until: i64,
}

/// The size of a participant's part.
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

/// One event in the course of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its time, in microseconds since the beginning by the coordinator's monotonic clock; the first time, if it was
    /// repeated.
    pub at: u64,
    /// The number of times that it happened.
    pub times: u32,
    /// The site that was asked or that answered.
    pub site: SiteId,
    /// The step itself.
    pub step: Step,
}

/// A question or an answer in the course of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// The site is asked to prepare its part.
    Asked,
    /// The site's writes wait for rights of other sites to end, or for slack of a treaty.
    Waits {
        /// The object whose rights last longest, or the treaty's object.
        name: String,
        /// The holders of these rights, or the sites that may have slack. None where an earlier life of the site may have issued them.
        holders: Vec<SiteId>,
        /// The latest end of these rights, in microseconds since 1970.
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

/// The end of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// It took effect.
    Committed {
        /// The number of phases: 0, 1 or 2.
        phases: u8,
    },
    /// It had no effect.
    Aborted(Box<Abort>),
    /// The only site that took part has lost what it knew.
    Lost,
}

impl Step {
    /// True if another step at the same site is a repetition of this one.
    pub fn is_repeated_by(&self, other: &Step) -> bool {
        match (self, other) {
            (Step::Waits { name, .. }, Step::Waits { name: again, .. }) => name == again,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}
