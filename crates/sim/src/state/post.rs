//! Requests that were sent to sites, and responses on their way back.

use slackline_core::api::Response;
use slackline_core::id::{Incarnation, SessionId};
use slackline_core::machine::ClientId;

/// What a request was for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Nothing: number 0, which no request has.
    None,
    /// A client opens a session at a site.
    Open {
        /// The client.
        client: usize,
        /// The site.
        site: usize,
    },
    /// A client sends operations of a session.
    Batch {
        /// The client.
        client: usize,
        /// The session's site, which need not be the one that the batch was sent to.
        site: usize,
        /// The incarnation of the site that opened the session.
        incarnation: Incarnation,
        /// The session.
        session: SessionId,
        /// True if the batch names other content under an id that was used before.
        reused: bool,
    },
    /// A client asks what became of an operation.
    Ask {
        /// The operation, as the oracle numbers it.
        op: u32,
    },
    /// A client closes a session.
    Close,
    /// A client counts a quota.
    Show {
        /// The quota's book.
        book: usize,
    },
    /// A client reads objects for a transaction.
    Read {
        /// The client.
        client: usize,
        /// The name of what it reads, among transactions that read.
        label: u64,
    },
    /// The audit counts a quota.
    Audit {
        /// The quota's book.
        book: usize,
        /// The site that counts.
        site: usize,
    },
    /// A client asks for what no invariant looks at.
    Look,
    /// A site is to hand out what it has and stop.
    Drain {
        /// The site.
        site: usize,
    },
    /// A request of the product's client, on a stream of this wire.
    Caller {
        /// The wire.
        wire: usize,
        /// The stream.
        stream: u64,
    },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Post {
    /// What each request was for; the client ids that sites see are positions here.
    purposes: Vec<Purpose>,
    /// Responses that have left their sites, and to which requests, by the number that their timers carry.
    mail: Vec<Option<(ClientId, Response)>>,
    /// Numbers of responses that have arrived, to be used again.
    free: Vec<usize>,
}

impl Post {
    /// No request was sent yet.
    pub(crate) fn new() -> Self {
        Self { purposes: vec![Purpose::None], mail: Vec::new(), free: Vec::new() }
    }

    /// Numbers a request.
    pub(crate) fn number(&mut self, purpose: Purpose) -> ClientId {
        self.purposes.push(purpose);
        ClientId(self.purposes.len() as u64 - 1)
    }

    /// What a request was for.
    pub(crate) fn purpose(&self, request: ClientId) -> Purpose {
        self.purposes[request.0 as usize]
    }

    /// Takes a response in that has left its site; its number.
    pub(crate) fn put(&mut self, request: ClientId, response: Response) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.mail.push(None);
            self.mail.len() - 1
        });
        self.mail[slot] = Some((request, response));
        slot
    }

    /// Hands a response out that arrives.
    pub(crate) fn take(&mut self, slot: usize) -> (ClientId, Response) {
        let mail = self.mail[slot].take().expect("a response arrives once");
        self.free.push(slot);
        mail
    }
}
