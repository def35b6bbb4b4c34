//! Messages between sites about objects.
//!
//! Every message may be lost, repeated or late. A question carries everything that its answer needs, so that a site can
//! answer it without any earlier message; an answer names its question.

use super::{Abort, ObjectKey, Part, Rank, Seen, Span};
use crate::id::{Incarnation, OperationId, SiteId, SiteSet};
pub use crate::right::Offer;
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
    /// Answers `Revoke`: no transaction rests on these rights any more, and none will.
    Revoked {
        /// The holder's start, as in the question.
        holder: Start,
        /// The rights that are given up.
        rights: Vec<(String, WarrantyNumber)>,
    },
    /// Asks a participant to prepare its part of a transaction.
    Prepare(Box<Prepare>),
    /// Answers `Prepare`.
    Vote {
        /// The transaction.
        id: OperationId,
        /// The participant's answer.
        vote: Vote,
    },
    /// Tells that the transaction is decided. The sender has noted it durably.
    Decide {
        /// The transaction.
        id: OperationId,
        /// True if it takes effect.
        commit: bool,
    },
    /// Answers `Decide`: noted here durably.
    Decided {
        /// The transaction.
        id: OperationId,
    },
    /// Tells that every participant has noted that the transaction took effect: no site will ask about it.
    Forget {
        /// The transaction.
        id: OperationId,
    },
    /// Asks the home of these calls which are gone, so that the asking site can remove its notes of those.
    ProbeCalls {
        /// The asking site's start.
        start: Start,
        /// The number of registrations at the asking site when it asked.
        stamp: u64,
        /// The calls' names.
        names: Vec<String>,
    },
    /// Answers `ProbeCalls`.
    AbsentCalls {
        /// The asking site's start, as in the question.
        start: Start,
        /// The stamp, as in the question.
        stamp: u64,
        /// The calls that are not there, and are not about to be put.
        names: Vec<String>,
    },
    /// Says something of a treaty, to another of its leaves or to its home.
    Treaty {
        /// The treaty's object.
        treaty: ObjectKey,
        /// The nonce of its making: what is said of one making does not count for another.
        nonce: u64,
        /// What is said.
        says: Says,
    },
    /// Asks what is known of a transaction. The sender is in doubt about it. A participant that has not prepared yet
    /// refuses it permanently.
    Inquire {
        /// The transaction.
        id: OperationId,
        /// Its deadline, in microseconds since 1970.
        deadline: i64,
        /// The participants, each in the incarnation that was asked.
        participants: Vec<(SiteId, Incarnation)>,
        /// The participants that the asking site knows to have prepared, by position.
        prepared: SiteSet,
    },
    /// Answers `Inquire`.
    Inquired {
        /// The transaction.
        id: OperationId,
        /// The state of the transaction at the answering site.
        known: Known,
        /// The participants that the answering site knows to have prepared, by position.
        prepared: SiteSet,
    },
}

/// What is said of a treaty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Says {
    /// A leaf asks another one what slack it has.
    Ask {
        /// Repeated in the answer.
        token: u64,
        /// The clauses.
        clauses: Vec<u32>,
    },
    /// Answers `Ask`.
    Report {
        /// The token, as in the question.
        token: u64,
        /// One for each of the clauses that is kept there.
        lines: Vec<Reported>,
    },
    /// A leaf that has divided the slack of several advises another one to give some away.
    Give {
        /// True if writes wait for some of it.
        awaited: bool,
        /// To whom, and how much.
        gives: Vec<Wanted>,
    },
    /// A leaf has given slack.
    Gifts {
        /// Of each clause.
        gifts: Vec<Gave>,
    },
    /// A leaf asks the treaty's home to retract it; or only whether it was retracted.
    Retract {
        /// True if it only asks.
        is_question: bool,
    },
    /// The treaty's home says that nobody relies on this making any more, nor ever will.
    Retracted,
}

/// The slack of a clause at a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reported {
    /// The clause's position in the treaty.
    pub clause: u32,
    /// The slack, as if every undecided decrement had happened and no undecided increment.
    pub slack: i64,
    /// The velocity of the leaf's part, in millionths a second.
    pub velocity: i64,
    /// Its standard deviation after one second, in millionths.
    pub noise: i64,
}

/// Advice to give slack away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The clause's position in the treaty.
    pub clause: u32,
    /// The home of the leaf that is to get it.
    pub to: u16,
    /// How much is to be given at once.
    pub amount: u64,
    /// The rate at which more is to be given from then on, in millionths a second.
    pub rate: u64,
}

/// A running total of slack that was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gave {
    /// The clause's position in the treaty.
    pub clause: u32,
    /// All that was given so far.
    pub total: u128,
    /// The rate at which the donor goes on giving, in millionths a second. A forecast, and no promise.
    pub rate: u64,
}

/// Asks a home for values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// Repeated in the answer.
    pub token: u64,
    /// The asking site's start: rights are issued to it.
    pub start: Start,
    /// The names, each with the number of times that it was read at the asking site since it was last asked for.
    pub gets: Vec<(String, u32)>,
    /// The spans.
    pub scans: Vec<Span>,
    /// True if rights are wanted too.
    pub rights: bool,
    /// The longest time that the answer may wait for prepared writes of what is read, and for its turn, in
    /// microseconds. Zero: not at all.
    pub patience: u64,
    /// The claim of the program that reads, if it wants its turn.
    pub claim: Option<Claim>,
}

/// The claim of a program at one home: see [`crate::api::Claim`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// The program's place in the order.
    pub rank: Rank,
    /// The names that it wants to write there.
    pub writes: Vec<String>,
    /// True if younger programs are barred.
    pub bars: bool,
    /// True if the program reads nothing elsewhere and writes nothing: the claim ends with the answer, if nothing is
    /// prepared then that changes what is read.
    pub ends: bool,
}

/// Answers [`Fetch`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetched {
    /// The token, as in the question.
    pub token: u64,
    /// The asking site's start, as in the question.
    pub start: Start,
    /// The values of the names, in the order in which they were asked for.
    pub gets: Vec<Result<Given, Abort>>,
    /// The values of the spans, in the same order.
    pub scans: Vec<Result<Vec<(String, Seen)>, Abort>>,
    /// True if nothing was prepared that changes any of it: all of it is of one instant.
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

/// Asks a participant to prepare.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepare {
    /// The transaction: the operation by which a client asked its coordinator for it.
    pub id: OperationId,
    /// The participant refuses it at or after this, in microseconds since 1970.
    pub deadline: i64,
    /// The participants in ascending order, each in the incarnation that is asked.
    pub participants: Vec<(SiteId, Incarnation)>,
    /// The participants that have prepared already, by position.
    pub prepared: SiteSet,
    /// The part of the participant that is asked.
    pub part: Part,
    /// The longest time that its writes may wait for rights to end, in microseconds.
    pub max_wait: u64,
    /// The coordinator's start, and the highest number of the rights over what is written that it has given up.
    pub released: (Start, WarrantyNumber),
    /// The program's place in the order of those that want the same objects.
    pub rank: Rank,
    /// True if the transaction writes nothing anywhere: the part is only checked, and nothing is locked or kept.
    pub is_check: bool,
    /// True if nothing rests on the deadline: the coordinator's own site alone takes part, and the transaction rests on no site's
    /// rights. Never true of one that travels.
    pub is_untimed: bool,
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
    /// Its writes wait for rights of others to end, or for slack of a treaty.
    Waiting {
        /// The object whose rights last longest, or the treaty's object.
        name: String,
        /// The holders of these rights, or the sites that may have slack.
        holders: Vec<SiteId>,
        /// The latest end of these rights, in microseconds since 1970.
        until: i64,
    },
}

/// The state of a transaction, as a site knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// It is prepared here and in doubt.
    Prepared,
    /// It is in doubt here, and it is known here that a participant has lost what it knew.
    KnowsOfLoss,
    /// It took effect.
    Committed,
    /// It did not take effect, and never will.
    Refused,
    /// An earlier incarnation of the site took part, and its knowledge is lost.
    Lost,
    /// Nothing is known here. Only a site that takes no part in it answers this.
    Nothing,
}
