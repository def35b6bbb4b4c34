//! Sessions whose requests are made before earlier ones are answered.
//!
//! The product's client ([`Sessions`](slackline_session::sessions::Sessions)) cannot be used here: it makes a request out of what the
//! answers so far allow, so it would have to run between two timed inputs of a machine, and leave it a colder cache; and it numbers
//! operations from 1, where a sample of a long run needs numbers as long as that run has.

use slackline_core::api::{Batch, Operation, Request, Response, Submission};
use slackline_core::id::{Incarnation, OperationId, SessionId, SiteId};

/// A session, and how far it has been used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// The site that opened it.
    site: SiteId,
    /// That site's incarnation.
    incarnation: Incarnation,
    /// The session.
    session: SessionId,
    /// The last sequence that was used; 0 if none was.
    last: u64,
}

impl Ahead {
    /// The session that a response opens, if it opens one.
    pub(crate) fn opened(response: &Response) -> Option<Self> {
        let Response::Opened { site, incarnation, session } = *response else { return None };
        Some(Self { site, incarnation, session, last: 0 })
    }

    /// The same session, as if sequences up to `last` had been used.
    pub(crate) fn after(self, last: u64) -> Self {
        Self { last, ..self }
    }

    /// The operations that were requested.
    pub(crate) fn requested(&self) -> u64 {
        self.last
    }

    /// The id of an operation that was requested.
    pub(crate) fn id(&self, sequence: u64) -> OperationId {
        OperationId { site: self.site, incarnation: self.incarnation, session: self.session, sequence }
    }

    /// A request of new operations, each of which may take `timeout` microseconds. When it arrives, at most `in_flight` operations
    /// have no answer yet, these included.
    pub(crate) fn request(
        &mut self,
        operations: impl IntoIterator<Item = Operation>,
        in_flight: u64,
        timeout: u64,
    ) -> Request {
        let submission = |(operation, sequence)| Submission { sequence, timeout, operation };
        let operations: Vec<_> = operations.into_iter().zip(self.last + 1..).map(submission).collect();
        self.last += operations.len() as u64;

        // Nobody asks again for what has been answered, so the site may forget it.
        let low = (self.last + 1).saturating_sub(in_flight).max(1);
        let Self { site, incarnation, session, .. } = *self;
        Request::Batch(Batch { site, incarnation, session, low, operations })
    }
}

#[cfg(test)]
mod tests {
    use slackline_core::api::Hold;

    use super::*;

    #[test]
    fn request_lets_go_of_what_was_answered_before_it() {
        let opened = Response::Opened {
            site: SiteId::new(0, 0),
            incarnation: Incarnation::default(),
            session: SessionId::default(),
        };
        let mut session = Ahead::opened(&opened).expect("it opens one");
        let mut marks = |operations: usize, in_flight| {
            let acquire = Operation::Acquire { quota: "q".into(), amount: 1, hold: Hold::Counted, waits: false };
            match session.request(vec![acquire; operations], in_flight, 1) {
                Request::Batch(batch) => (batch.low, batch.operations[0].sequence, batch.operations.len()),
                other => panic!("not a batch: {other:?}"),
            }
        };
        assert_eq!(marks(2, 2), (1, 1, 2));
        assert_eq!(marks(1, 2), (2, 3, 1), "the second operation is still under way");
        assert_eq!(marks(2, 2), (4, 4, 2));
        assert_eq!(marks(1, 100), (1, 6, 1), "no sequence is below the first");
        assert_eq!(session.requested(), 6);
        assert_eq!(Ahead::opened(&opened).expect("it opens one").after(9).id(10).sequence, 10);
    }
}
