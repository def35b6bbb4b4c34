//! What sites say to each other about objects.
//!
//! Every message may be lost, repeated or late. What asks carries what it needs to be answered alone; what answers names
//! what it answers.

use super::{Abort, Part, Rank, Seen, Span};
use crate::id::{Incarnation, OperationId, SiteId};
use crate::right::{Start, WarrantyNumber};

/// A message about objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Asks a home for values.
    Fetch(Box<Fetch>),
    /// Answers `Fetch`.
    Fetched(Box<Fetched>),
    /// A home asks a holder to give up rights before they end.
    Revoke {
        /// The holder's start that the rights were issued to.
        holder: Start,
        /// Names, each with the highest number of a right over it that was issued to that holder.
        rights: Vec<(String, WarrantyNumber)>,
    },
    /// Answers `Revoke`: no transaction rests on these rights any more, nor will.
    Revoked {
        /// As asked.
        holder: Start,
        /// Those that are given up.
        rights: Vec<(String, WarrantyNumber)>,
    },
    /// Asks a participant to prepare its part of a transaction.
    Prepare(Box<Prepare>),
    /// Answers `Prepare`.
    Vote {
        /// The transaction.
        id: OperationId,
        /// What came of it.
        vote: Vote,
    },
    /// The transaction is decided, says one who has durably noted it.
    Decide {
        /// The transaction.
        id: OperationId,
        /// Whether it takes effect.
        commit: bool,
    },
    /// Answers `Decide`: noted here durably.
    Decided {
        /// The transaction.
        id: OperationId,
    },
    /// Every participant has noted that the transaction took effect: nobody will ask about it.
    Forget {
        /// The transaction.
        id: OperationId,
    },
    /// Asks the home of these calls which are gone: somebody here wonders whether what is noted of them is still of use.
    Wonder {
        /// The asking site's start.
        start: Start,
        /// What the asking site has registered when it asked, as a count.
        stamp: u64,
        /// The calls' names.
        names: Vec<String>,
    },
    /// Answers `Wonder`.
    Gone {
        /// As asked.
        start: Start,
        /// As asked.
        stamp: u64,
        /// Those that are not there, and are not about to be put.
        names: Vec<String>,
    },
    /// Asks what is known of a transaction, by one who is in doubt. Who takes part in it and has not prepared yet refuses it
    /// for ever.
    Inquire {
        /// The transaction.
        id: OperationId,
        /// Its deadline, in microseconds since 1970.
        deadline: i64,
        /// Who takes part, and in which incarnation.
        participants: Vec<(SiteId, Incarnation)>,
        /// Those of them that the asking site knows to have prepared, by position.
        prepared: u64,
    },
    /// Answers `Inquire`.
    Inquired {
        /// The transaction.
        id: OperationId,
        /// What is known.
        known: Known,
        /// Participants that the answering site knows to have prepared, by position.
        prepared: u64,
    },
}

/// Asks a home for values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// Repeated in the answer.
    pub token: u64,
    /// The asking site's start: rights are issued to it.
    pub start: Start,
    /// Names, each with how often it was read here since it was last asked for.
    pub gets: Vec<(String, u32)>,
    /// Spans.
    pub scans: Vec<Span>,
    /// Whether rights are wanted too.
    pub rights: bool,
    /// How long the answer may wait for what is prepared and changes what is read, and for its turn, in microseconds. Zero: not
    /// at all.
    pub patience: u64,
    /// The program for which it is read, if that wants its turn.
    pub claim: Option<Claim>,
}

/// At one home: see [`crate::api::Claim`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// The program's place in the order.
    pub rank: Rank,
    /// What it wants to write there.
    pub writes: Vec<String>,
    /// Whether others are barred.
    pub bars: bool,
    /// Whether it ends when it is answered, if nothing that changes it is prepared then: nothing is read elsewhere, nor written.
    pub ends: bool,
}

/// Answers [`Fetch`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetched {
    /// As asked.
    pub token: u64,
    /// As asked.
    pub start: Start,
    /// What the names hold, in the order in which they were asked for.
    pub gets: Vec<Result<Given, Abort>>,
    /// What the spans hold.
    pub scans: Vec<Result<Vec<(String, Seen)>, Abort>>,
    /// Whether nothing was prepared that changes it.
    pub is_whole: bool,
}

/// A value, perhaps with a right over it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    /// The value and its version.
    pub seen: Seen,
    /// The right.
    pub right: Option<Offer>,
}

/// A right over a value, as its home issues it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// Its number.
    pub number: WarrantyNumber,
    /// When it ends, in microseconds since 1970.
    pub expiry: i64,
    /// How long it lasts from when it was issued, in microseconds.
    pub duration: u64,
}

/// Asks a participant to prepare.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepare {
    /// The transaction: the operation by which a client asked its coordinator for it.
    pub id: OperationId,
    /// The participant refuses it at or after this, in microseconds since 1970.
    pub deadline: i64,
    /// Who takes part, and in which incarnation, in ascending order.
    pub participants: Vec<(SiteId, Incarnation)>,
    /// Those of them who have prepared already, by position.
    pub prepared: u64,
    /// The participant's part.
    pub part: Part,
    /// How long its writes may wait for rights to end, in microseconds.
    pub max_wait: u64,
    /// The coordinator's start, and the highest number of the rights over what is written that it has given up.
    pub released: (Start, WarrantyNumber),
    /// The program's place in the order of those that want the same objects.
    pub rank: Rank,
    /// Whether the transaction writes nothing anywhere, so that nothing is to be locked or kept: the part is only checked.
    pub is_check: bool,
}

/// A participant's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vote {
    /// Its part is durable and will be carried out if every other participant prepares.
    Prepared,
    /// It is carried out: no other site takes part, or it found out that all have prepared.
    Committed,
    /// It never will be prepared here.
    Refused(Box<Abort>),
    /// Its writes wait for rights of others to end.
    Waiting {
        /// The object whose rights last longest.
        name: String,
        /// Who holds them.
        holders: Vec<SiteId>,
        /// Until when at most, in microseconds since 1970.
        until: i64,
    },
}

/// What a site knows of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// It is prepared here and in doubt.
    Prepared,
    /// It is in doubt here, and it is known here that a participant has lost what it knew.
    Bereaved,
    /// It took effect.
    Committed,
    /// It did not and never will.
    Refused,
    /// The participant that is asked is of another incarnation: what that one knew is lost.
    Lost,
    /// Nothing is known here; says only who takes no part in it.
    Nothing,
}
