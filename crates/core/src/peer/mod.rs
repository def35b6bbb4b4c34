//! What sites say to each other.

pub mod quota;

use crate::api::{Request, Response};
use crate::avantan::Roster;
use crate::id::{Incarnation, SiteId};
use crate::object::message::Message as TxnMessage;
use quota::{Forget, Forgotten, QuotaMessage};

/// A message between sites, with what every message tells of its sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerMessage {
    /// The sender's incarnation; zero while it has none.
    pub incarnation: Incarnation,
    /// The end of the sender's log: the number of its last batch. Receivers remember the highest; a site that comes
    /// back with less has lost a part of its past.
    pub position: u64,
    /// The number of times that the sender has forgotten names of quotas. What it says of a name that has been forgotten in
    /// between, there or here, is about another quota.
    pub epoch: u64,
    /// The number of the last change of the members that the sender knows of.
    pub members: u64,
    /// What it says.
    pub body: Body,
}

/// What a message says, by the chapter that it concerns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// Who a site is, whether it is there, and what its clocks show.
    Site(SiteMessage),
    /// Quotas.
    Quota(QuotaMessage),
    /// Objects and transactions.
    Txn(Box<TxnMessage>),
    /// Requests about another site's sessions, and the responses.
    Relay(RelayMessage),
}

impl Body {
    /// The incarnations of other sites than the sender that it tells of.
    pub fn tells_of(&self) -> &[(SiteId, Incarnation)] {
        match self {
            Body::Quota(QuotaMessage::Subset { message, .. }) => message.tells_of(),
            Body::Quota(QuotaMessage::NoVote { answer, .. }) => &answer.reborn,
            _ => &[],
        }
    }
}

/// What sites say to each other of themselves, whether or not they serve.
///
/// | message | from → to | meaning |
/// | --- | --- | --- |
/// | `Hello`, `Welcome` | starting site ↔ all | is my storage the newest you heard of, and which incarnation do you know? |
/// | `Ping`, `Pong` | all ↔ all | liveness, round trip, clock offset, log position |
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SiteMessage {
    /// A site starts.
    Hello {
        /// Names this storage; the answer repeats it.
        nonce: u64,
        /// Names this start; the answer repeats it. An answer to an earlier start would vouch for what has been lost since.
        start: u64,
        /// True if the storage has no incarnation yet.
        is_new: bool,
        /// The highest incarnation in whose place the storage may come: a person has said that the storage of all up to this one is lost,
        /// and it is the highest of which the asking site has been told, or the one below the highest that was noted for it: then all note
        /// that one. At a site that knows a later one the question changes nothing; so a question that comes late takes the place of
        /// nothing that came after it was asked. None without that word.
        replaces: Option<Incarnation>,
    },
    /// Answers `Hello`.
    Welcome {
        /// As asked.
        nonce: u64,
        /// As asked.
        start: u64,
        /// True if the answering site has an incarnation itself.
        established: bool,
        /// The highest incarnation that it knows of the asking site; zero for none.
        known: Incarnation,
        /// The incarnation that it has noted for the asking site's new storage, higher than any it knew; zero if it has noted
        /// none for it, because it knows an earlier one.
        noted: Incarnation,
        /// The highest log position that it heard from the known incarnation.
        position: u64,
        /// What it has forgotten last; new storage takes that over. To any other the names are not told, only the epoch.
        forgotten: Box<Forgotten>,
        /// The seats, if the members ever changed; new storage takes them over.
        roster: Option<Box<Roster>>,
    },
    /// Asks for a `Pong`.
    Ping {
        /// When it was asked, by the sender's monotonic clock, plus the name of the sender's start: the answer repeats it, and means nothing
        /// to another start of the sender. The sum wraps.
        mono: u64,
        /// The sender's wall clock, repeated too.
        wall: i64,
        /// True if the sender is draining: it takes no more tokens.
        leaving: bool,
        /// The highest incarnation that the sender knows of the asked site, and the highest log position that it heard from that.
        known: Incarnation,
        /// The highest log position that the sender heard from the known incarnation.
        position: u64,
        /// The incarnation that the sender has noted for new storage of the asked site, and that storage's nonce; zeros for none
        /// above `known`. A site whose storage has another nonce was replaced, and stops.
        noted: (Incarnation, u64),
        /// True if the sender has forgotten what a predecessor of it voted for, and is to be told whether that matters any more.
        asks: bool,
    },
    /// Answers a `Ping`.
    Pong {
        /// As asked.
        mono: u64,
        /// As asked.
        wall: i64,
        /// The answering site's wall clock.
        there: i64,
        /// True if it does not vouch for its storage: what rests on objects there is not to be relied upon any longer.
        withholds: bool,
        /// The number of the last change of the members, if the asked site knows of nothing that has not recorded it and the asking
        /// site's incarnation; zero else, or if it was not asked.
        attests: u64,
    },
}

/// A client's request about another site's sessions, on its way to that site and back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RelayMessage {
    /// A client's request that another site must answer.
    Ask {
        /// Repeated in the answers.
        token: u64,
        /// The request.
        request: Box<Request>,
    },
    /// A response to a relayed request; there may be several.
    Answer {
        /// As asked.
        token: u64,
        /// The response.
        response: Box<Response>,
    },
}

impl From<SiteMessage> for Body {
    fn from(message: SiteMessage) -> Self {
        Self::Site(message)
    }
}

impl From<QuotaMessage> for Body {
    fn from(message: QuotaMessage) -> Self {
        Self::Quota(message)
    }
}

impl From<Forget> for Body {
    fn from(message: Forget) -> Self {
        Self::Quota(message.into())
    }
}

impl From<TxnMessage> for Body {
    fn from(message: TxnMessage) -> Self {
        Self::Txn(Box::new(message))
    }
}

impl From<RelayMessage> for Body {
    fn from(message: RelayMessage) -> Self {
        Self::Relay(message)
    }
}
