//! Why a run of a program comes to nothing, and whether another run may do better.

use std::time::Duration;

use slackline_core::id::OperationId;
use slackline_core::object::treaty::treaty_name;
use slackline_core::object::{self, Cause, ObjectKey};

use crate::key::Key;
use crate::outcome::{Aborted, Outcome, Reason, Refused};
use crate::topology::Topology;

/// A home that does not answer is tried again for this long: links break for moments, and a site that has just started has not
/// heard of the others yet.
pub(super) const OUTAGE: Duration = Duration::from_secs(1);

/// Why a run came to nothing.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: Reason,
    /// The operation that was to commit it; none if the run did not come to that.
    pub(super) operation: Option<OperationId>,
    /// True if another run may succeed.
    pub(super) is_transient: bool,
    /// True if another site may do better.
    pub(super) is_of_the_site: bool,
}

impl Failure {
    pub(super) fn of_abort(abort: object::Abort, topology: &Topology) -> Self {
        let is_of_the_site = abort.cause == Cause::NotReady;
        let is_transient = is_transient(abort.cause);
        let reason = Reason::of_abort(abort, topology);
        Self { reason, operation: None, is_transient, is_of_the_site }
    }

    /// True if other transactions were in the way.
    pub(super) fn is_contention(&self) -> bool {
        matches!(&self.reason, Reason::Aborted(aborted) if matches!(aborted.cause, Cause::Changed | Cause::Busy))
    }

    /// True if something that the program requires is not true.
    pub(super) fn is_not_met(&self) -> bool {
        matches!(&self.reason, Reason::Aborted(aborted) if aborted.cause == Cause::NotMet)
    }

    /// The treaty that what the run wrote would break, although the run relies on it; or that is about to be retracted,
    /// replaced or dropped, which may wait for rights of a site that is down.
    pub(super) fn broken(&self, topology: &Topology) -> Option<ObjectKey> {
        let Reason::Aborted(aborted) = &self.reason else { return None };
        let is_changing = |key: &&Key| aborted.cause == Cause::Busy && treaty_name(key.name()).is_some();
        let key = aborted.key.as_ref().filter(|key| aborted.cause == Cause::NotMet || is_changing(key))?;
        Some(ObjectKey::new(topology.region(key.region())?, key.name()))
    }

    /// True if the home of an object did not answer.
    pub(super) fn is_outage(&self) -> bool {
        matches!(&self.reason, Reason::Aborted(aborted) if aborted.cause == Cause::Unreachable)
    }

    /// Why the transaction comes to nothing, after a run that took this long: that the time of a short one was up is no news if
    /// one before it failed for a reason of its own.
    pub(super) fn or_before(self, before: Option<Self>, took: Duration) -> Self {
        let is_late = matches!(&self.reason,
            Reason::Aborted(aborted) if aborted.cause == Cause::DeadlinePassed && aborted.holders.is_empty());
        before.filter(|_| is_late && took < OUTAGE).unwrap_or(self)
    }

    pub(super) fn refused<T>(self) -> Outcome<T> {
        Outcome::Refused(Refused { reason: self.reason, operation: self.operation })
    }

    pub(super) fn of(cause: Cause, key: Option<Key>) -> Self {
        let reason = Reason::Aborted(Box::new(Aborted::of(cause, key)));
        Self { reason, operation: None, is_transient: is_transient(cause), is_of_the_site: false }
    }
}

/// True if a transaction that was aborted for this is run again. Besides what may be so on other data: it was asked about, or
/// given up, before it was prepared; or its site is about to serve, and there are others.
pub(super) fn is_transient(cause: Cause) -> bool {
    cause.is_transient() || matches!(cause, Cause::Withdrawn | Cause::NotReady | Cause::Depended)
}

/// Something that a program asked of its transaction cannot be had. Pass it on with `?`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// An object could not be read. If the program ends with an error now, this is why the transaction is refused, unless it
    /// is run again.
    #[error("{0}")]
    NotRead(Reason),
    /// The object does not hold what the program takes it for.
    #[error("{key} does not hold what was asked for: {why}")]
    Unexpected {
        /// The object.
        key: Key,
        /// What is wrong with it.
        why: String,
    },
    /// The counter would leave the range of 64-bit integers.
    #[error("{0} would leave the range of 64-bit integers")]
    OutOfRange(Key),
    /// The value cannot be written as JSON.
    #[error("the value for {key} cannot be written as JSON: {why}")]
    NotWritable {
        /// The object.
        key: Key,
        /// Why.
        why: String,
    },
    /// A memoized function cannot be one.
    #[error("{name} cannot be a memoized function: {why}")]
    NotMemoizable {
        /// Its name.
        name: &'static str,
        /// Why.
        why: String,
    },
    /// A statement that the block, or the transaction, [requires](super::Txn::require) is not true after it.
    #[error("not met: {0}")]
    NotMet(String),
    /// The transaction, or the block, has ended: its handle is of no use any more.
    #[error("this transaction, or the block in it, has ended")]
    Over,
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::id::SiteId;
    use slackline_core::object::treaty::treaty_key;

    #[test]
    fn treaty_that_is_about_to_end_is_not_asked_again() {
        let site = SiteId::new(0, 0);
        let topology = Topology::new("test".into(), vec!["us".into()], 1, vec![(site, "us:1".into())]).expect("sound");
        let busy = |key: &ObjectKey| {
            let abort = object::Abort::about(Cause::Busy, site, &key.name);
            Failure::of_abort(abort, &topology).broken(&topology)
        };
        let treaty = treaty_key(0, "a-leads");
        assert_eq!(busy(&treaty), Some(treaty));
        assert_eq!(busy(&ObjectKey::new(0, "votes/a")), None, "that is contention");
    }
}
