//! How calls end: done, refused or unknown.

use std::fmt;
use std::time::{Duration, SystemTime};

use slackline_core::api::{self, Agreement, NoSeat, Refusal};
use slackline_core::id::{OperationId, SiteSet};
use slackline_core::object::{self, Cause, treaty};

use crate::command::NotTaken;
use crate::key::Key;
use crate::topology::Topology;

/// The end of a call. There are three ways, and a program has to deal with each:
///
/// - **done**: it took effect, durably;
/// - **refused**: it did not take effect, and never will;
/// - **unknown**: it may have taken effect or not. `Client::outcome_of` asks the one site
///   that knows, as soon as that can be reached.
///
/// [`Outcome::done`] makes a `Result` of it, for `?`.
#[must_use = "a call may have been refused, or its outcome may be unknown"]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    /// It took effect.
    Done(T),
    /// It did not, and never will.
    Refused(Refused),
    /// It may have taken effect or not.
    Unknown(Unknown),
}

impl<T> Outcome<T> {
    /// What was done, or why that is not to be had.
    pub fn done(self) -> Result<T, NotDone> {
        match self {
            Outcome::Done(value) => Ok(value),
            Outcome::Refused(refused) => Err(NotDone::Refused(refused)),
            Outcome::Unknown(unknown) => Err(NotDone::Unknown(unknown)),
        }
    }

    /// Returns true if it took effect.
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done(_))
    }

    /// Returns true if it was refused.
    pub fn is_refused(&self) -> bool {
        matches!(self, Outcome::Refused(_))
    }

    /// Returns true if it is not known how it ended.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Outcome::Unknown(_))
    }

    /// Why it was refused, if it was.
    pub fn refusal(&self) -> Option<&Reason> {
        match self {
            Outcome::Refused(refused) => Some(&refused.reason),
            _ => None,
        }
    }

    /// Returns true if it is a release that was [handed over](UnknownReason::HandedOver) to the client.
    pub fn is_handed_over(&self) -> bool {
        matches!(self, Outcome::Unknown(Unknown { why: UnknownReason::HandedOver, .. }))
    }

    /// The same outcome with another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Outcome::Done(value) => Outcome::Done(change(value)),
            Outcome::Refused(refused) => Outcome::Refused(refused),
            Outcome::Unknown(unknown) => Outcome::Unknown(unknown),
        }
    }
}

impl Outcome<api::Outcome> {
    /// What a site said of an operation, with the names of sites and regions. Done are all outcomes of operations that took effect.
    pub fn of_site(outcome: api::Outcome, operation: OperationId, topology: &Topology) -> Self {
        let refused = |reason| Outcome::Refused(Refused { reason, operation: Some(operation) });
        match outcome {
            api::Outcome::Refused(refusal) => refused(Reason::of(refusal, operation.site.lane, topology)),
            api::Outcome::Aborted(abort) => refused(Reason::of_abort(*abort, topology)),
            api::Outcome::Unknown(reason) => Outcome::Unknown(Unknown::new(topology, operation, reason.into())),
            done => Outcome::Done(done),
        }
    }
}

/// A call was not done, as far as is known.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotDone {
    /// It did not take effect, and never will.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It may have taken effect or not.
    #[error(transparent)]
    Unknown(#[from] Unknown),
}

/// A call did not take effect, and never will.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("refused: {reason}")]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// The operation's id; none if it never left this client.
    pub operation: Option<OperationId>,
}

/// It is not known whether a call took effect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown: operation {name} may or may not have been carried out: {why}")]
pub struct Unknown {
    /// The operation's id, to be asked about.
    pub operation: OperationId,
    /// The id as it is written for people, such as `eu-1-9-12`.
    pub name: String,
    /// Why it is not known.
    pub why: UnknownReason,
}

impl Unknown {
    /// An operation of which it is not known whether it took effect.
    pub fn new(topology: &Topology, operation: OperationId, why: UnknownReason) -> Self {
        Self { operation, name: topology.operation_text(operation), why }
    }
}

/// Why it is not known whether a call took effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum UnknownReason {
    /// The site did not answer before the deadline. Ask later.
    DeadlinePassed,
    /// The one site that knows cannot be reached. Ask later.
    SiteUnreachable,
    /// The storage that knew is lost. Nobody will ever know.
    IncarnationLost,
    /// The outcome is no longer kept: it is older than the site remembers.
    Forgotten,
    /// The sites are still agreeing on it. Ask later.
    Undecided,
    /// The only home that took part in the transaction has lost its storage, and its objects. Nobody will ever know.
    HomeLost,
    /// The one site that knows is starting or rejoining, and cannot tell yet. Ask later.
    NotReady,
    /// The disk of the one site that knows has no room to note the answer. Ask later.
    StorageFull,
    /// The site's answer made no sense to this client.
    Senseless,
    /// The client was closed while the call was under way.
    Closed,
    /// It is a release whose site says nothing. The client sees to it: it sends it under this id until the site has an answer,
    /// as long as the client lives. Do not release again. There is no need to ask; and asking may withdraw it, which ends it as
    /// refused.
    HandedOver,
}

impl UnknownReason {
    /// Its name in JSON; stable.
    pub fn code(self) -> &'static str {
        self.words().0
    }

    /// What a site says is in the words of the sites; the rest only a client can say.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            UnknownReason::SiteUnreachable => api::UnknownReason::SiteUnreachable.words(),
            UnknownReason::IncarnationLost => api::UnknownReason::IncarnationLost.words(),
            UnknownReason::Forgotten => api::UnknownReason::Forgotten.words(),
            UnknownReason::Undecided => api::UnknownReason::Undecided.words(),
            UnknownReason::HomeLost => api::UnknownReason::HomeLost.words(),
            UnknownReason::NotReady => api::UnknownReason::NotReady.words(),
            UnknownReason::StorageFull => api::UnknownReason::StorageFull.words(),
            UnknownReason::DeadlinePassed => ("deadline_passed", "its site did not answer before the deadline"),
            UnknownReason::Senseless => {
                ("senseless", "the site's answer made no sense; is its version newer than this client's?")
            }
            UnknownReason::Closed => ("closed", "the client was closed while it was under way"),
            UnknownReason::HandedOver => ("handed_over", "its site says nothing; the client sees to it"),
        }
    }
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)
    }
}

impl From<api::UnknownReason> for UnknownReason {
    fn from(reason: api::UnknownReason) -> Self {
        match reason {
            api::UnknownReason::SiteUnreachable => UnknownReason::SiteUnreachable,
            api::UnknownReason::IncarnationLost => UnknownReason::IncarnationLost,
            api::UnknownReason::Forgotten => UnknownReason::Forgotten,
            api::UnknownReason::Undecided => UnknownReason::Undecided,
            api::UnknownReason::HomeLost => UnknownReason::HomeLost,
            api::UnknownReason::NotReady => UnknownReason::NotReady,
            api::UnknownReason::StorageFull => UnknownReason::StorageFull,
        }
    }
}

/// Why a call did not take effect.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// No quota has this name.
    UnknownQuota,
    /// The tokens are not to be had.
    Exhausted {
        /// The sites that were asked.
        asked: Vec<String>,
        /// The time in which there will be enough if nobody else takes any; none if the quota does not refill.
        retry_after: Option<Duration>,
        /// The quota that is short, if it is one above the quota that was asked for.
        quota: Option<String>,
    },
    /// More is asked for than the quota has tokens in all: that can never be granted.
    AboveLimit {
        /// The quota's limit.
        limit: i64,
        /// The quota whose limit that is, if it is one above the quota that was asked for.
        quota: Option<String>,
    },
    /// The amount, the limit or the duration is out of range: amounts and limits are at least 1, holds 1 ms to 400 days.
    InvalidAmount,
    /// The name is empty, longer than 256 bytes, or has control characters.
    InvalidName,
    /// The quota exists with another limit.
    LimitDiffers {
        /// The limit that it has.
        limit: i64,
    },
    /// The quota exists with another refill.
    RefillDiffers {
        /// The rate that it has, in millionths of a token a second; zero if it does not refill.
        refill: u64,
    },
    /// The quota refills by itself: nothing of it is held for a time, settled or released.
    Refills,
    /// The quota exists with this limit, and its tokens move in another way.
    AgreementDiffers {
        /// How they do.
        agreement: Agreement,
    },
    /// The name of the quota is not that of the one above it, `/` and more.
    InvalidParent,
    /// The quota above it does not exist, or was deleted.
    NoParent,
    /// The quota exists below another one, or below none.
    ParentDiffers,
    /// Of the quota and the one above it, one refills and the other does not.
    MixedRefill,
    /// The tree would have more than eight levels.
    TooDeep,
    /// The quota has others below it, which go first.
    HasChildren,
    /// So many of the quota's tokens are in use, which count in the one above it, too: it can be deleted when they are back.
    InUse {
        /// The number of tokens.
        amount: i64,
    },
    /// More tokens were to be released than can be granted.
    AboveOut {
        /// The most tokens that can be granted now, as far as the site can tell.
        at_most: i64,
    },
    /// No such grant is out: it was released, its time is up, its site lost its disk, or it never was.
    UnknownGrant,
    /// More of a grant is said to be used than it has.
    AboveGrant {
        /// The tokens that it has.
        amount: i64,
    },
    /// What was not used of the grant came back already.
    Settled,
    /// The grant has no end that could be put off.
    NoEnd,
    /// What is called lost is the incarnation that the site is in.
    IncarnationLives,
    /// No such incarnation is lost, or what it had was reclaimed before.
    NothingLost,
    /// Earlier incarnations of other sites are lost, too, and what they had cannot be told from what these had.
    AlsoLost {
        /// Those sites.
        sites: Vec<String>,
    },
    /// More is said to be in use than lost incarnations had.
    AboveLost {
        /// The most tokens that can be in use.
        at_most: i64,
    },
    /// Less is said to be in use than other sites took back since of what lost incarnations had granted.
    BelowReleased {
        /// The least tokens that the lost incarnations had granted and not taken back.
        at_least: i64,
    },
    /// The members do not change.
    NoSeat {
        /// Why.
        why: NoSeat,
        /// The number of quotas that it is about; zero where it is about none.
        count: u64,
    },
    /// The quota was deleted while the request waited.
    QuotaDeleted,
    /// A queue is at its bound, at the site or in this client.
    Overloaded,
    /// The time was up before tokens could be had.
    DeadlinePassed,
    /// Sites that it needs did not answer.
    Unreachable {
        /// The sites that did not answer.
        missing: Vec<String>,
    },
    /// Somebody asked what became of it before it was carried out, which refuses it permanently.
    Withdrawn,
    /// Its id was used for something else.
    OtherContent,
    /// The site, or each of the sites that can be reached, is starting, rejoining or stopping, and went on doing so until the
    /// deadline.
    NotReady,
    /// The site's disk has no room.
    StorageFull,
    /// It never left this client: no site that would do could be reached before the deadline.
    NotSent {
        /// The sites that would have done.
        sites: Vec<String>,
    },
    /// The cluster has no region of this name.
    UnknownRegion {
        /// The name.
        region: String,
        /// The regions that there are.
        known: Vec<String>,
    },
    /// The client was closed before it could be sent.
    Closed,
    /// The transaction was aborted.
    Aborted(Box<Aborted>),
    /// A treaty cannot be made, or is not there.
    Treaty(TreatyRefusal),
}

/// Why a treaty cannot be made, or is not there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TreatyRefusal {
    /// Its statement is false: the value of the first metric that says so.
    NotTrue(i64),
    /// It is about no counter.
    NoCounter,
    /// A value may leave the range of 64-bit integers.
    OutOfRange,
    /// It has more than 4,096 clauses, or more than 4,096 terms at a home.
    TooManyParts,
    /// It is about counters of more than 64 homes.
    TooManyHomes,
    /// It nests too deeply.
    TooDeep,
    /// Its name is empty, too long, or has control characters.
    InvalidName,
    /// There is a treaty of this name.
    NameTaken,
    /// There is no treaty of this name.
    Unknown,
}

impl TreatyRefusal {
    /// Its name in JSON; stable.
    pub fn code(self) -> &'static str {
        match self {
            TreatyRefusal::NotTrue(_) => "not_true",
            TreatyRefusal::NoCounter => "no_counter",
            TreatyRefusal::OutOfRange => "out_of_range",
            TreatyRefusal::TooManyParts => "too_many_parts",
            TreatyRefusal::TooManyHomes => "too_many_homes",
            TreatyRefusal::TooDeep => "too_deep",
            TreatyRefusal::InvalidName => "invalid_treaty_name",
            TreatyRefusal::NameTaken => "treaty_exists",
            TreatyRefusal::Unknown => "unknown_treaty",
        }
    }
}

impl fmt::Display for TreatyRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreatyRefusal::NotTrue(i64::MIN | i64::MAX) => {
                f.write_str("the statement is not true: the metric is at or beyond the end of 64-bit integers")
            }
            TreatyRefusal::NotTrue(value) => write!(f, "the statement is not true: the metric is {value}"),
            TreatyRefusal::NoCounter => f.write_str("the statement is about no counter"),
            TreatyRefusal::OutOfRange => f.write_str("a value of the statement may leave the range of 64-bit integers"),
            TreatyRefusal::TooManyParts => {
                f.write_str("the statement is too large: at most 4096 clauses, and 4096 counters of a region in them")
            }
            TreatyRefusal::TooManyHomes => f.write_str("the statement is about counters of more than 64 regions"),
            TreatyRefusal::TooDeep => f.write_str("the statement nests more than 64 deep"),
            TreatyRefusal::InvalidName => f.write_str(
                "the name is not valid: use 1 to 1000 bytes without control characters, and no = at its beginning",
            ),
            TreatyRefusal::NameTaken => f.write_str("there is a treaty of this name already"),
            TreatyRefusal::Unknown => f.write_str("there is no treaty of this name"),
        }
    }
}

impl From<treaty::Unfit> for TreatyRefusal {
    fn from(unfit: treaty::Unfit) -> Self {
        match unfit {
            treaty::Unfit::NoCounter => TreatyRefusal::NoCounter,
            treaty::Unfit::NotTrue(value) => TreatyRefusal::NotTrue(value),
            treaty::Unfit::OutOfRange => TreatyRefusal::OutOfRange,
            treaty::Unfit::TooManyParts => TreatyRefusal::TooManyParts,
            treaty::Unfit::TooManyHomes => TreatyRefusal::TooManyHomes,
            treaty::Unfit::TooDeep => TreatyRefusal::TooDeep,
        }
    }
}

/// Why a transaction was aborted, or an object could not be read.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub struct Aborted {
    /// The reason.
    pub cause: Cause,
    /// The object that it is about.
    pub key: Option<Key>,
    /// The site that says so.
    pub site: Option<String>,
    /// The sites whose rights to read stand in the way of a write.
    pub holders: Vec<String>,
    /// When the last of these ends.
    pub until: Option<SystemTime>,
    /// Calls of memoized functions that depend on what is written; see [`crate::txn::Memo`].
    pub calls: Vec<Key>,
}

impl Aborted {
    /// Aborted for this cause; nothing else is known.
    pub fn of(cause: Cause, key: Option<Key>) -> Self {
        Self { cause, key, site: None, holders: Vec::new(), until: None, calls: Vec::new() }
    }

    /// What a site said, with the names of regions and sites.
    pub fn new(abort: object::Abort, topology: &Topology) -> Self {
        Self {
            cause: abort.cause,
            key: abort.key.map(|key| topology.key(&key)),
            site: abort.site.map(|site| topology.name(site)),
            holders: abort.holders.into_iter().map(|site| topology.name(site)).collect(),
            until: abort
                .until
                .and_then(|until| u64::try_from(until).ok())
                .map(|until| SystemTime::UNIX_EPOCH + Duration::from_micros(until)),
            calls: abort.calls.iter().map(|call| topology.key(call)).collect(),
        }
    }
}

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (holders, treaty) = (self.holders.join(", "), self.key.as_ref().and_then(Key::treaty));
        if let (Some(treaty), Cause::WouldWait) = (treaty, self.cause) {
            return write!(
                f,
                "it uses up the slack of treaty {treaty} here, for more of which it may not wait; {holders} may have some"
            );
        }
        write!(f, "{}", self.cause)?;
        match (treaty, &self.key, &self.site) {
            (Some(treaty), ..) => write!(f, " (treaty {treaty})")?,
            (None, Some(key), _) => write!(f, " ({key})")?,
            (None, None, Some(site)) => write!(f, " ({site})")?,
            (None, None, None) => {}
        }
        match self.cause {
            Cause::WouldWait if holders.is_empty() => f.write_str("; an earlier life of the site may have given them"),
            Cause::WouldWait => write!(f, "; they are held by {holders}"),
            _ if holders.is_empty() => Ok(()),
            _ if treaty.is_some() => write!(f, "; a write waited for slack of it, of which {holders} may have some"),
            _ => write!(f, "; a write waited for rights held by {holders}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Exhausted { asked, quota, .. } if !asked.is_empty() || quota.is_some() => {
                match quota {
                    Some(quota) => write!(f, "exhausted: {quota} has not enough tokens")?,
                    None => Refusal::Exhausted { asked: SiteSet::default(), retry_after: None, level: 0 }.fmt(f)?,
                }
                if asked.is_empty() { Ok(()) } else { write!(f, " (sites asked: {})", asked.join(", ")) }
            }
            Reason::AboveLimit { limit, quota: Some(quota) } => {
                write!(f, "more tokens than {quota} has: its limit is {limit}")
            }
            Reason::Unreachable { missing } if !missing.is_empty() => {
                write!(f, "{}: {}", Refusal::Unreachable { missing: SiteSet::default() }, missing.join(", "))
            }
            Reason::AlsoLost { sites } => {
                write!(f, "{}: {}", Refusal::AlsoLost { sites: SiteSet::default() }, sites.join(", "))
            }
            Reason::NotReady => f.write_str("none of the sites that may do it is ready; `slackline status` tells more"),
            Reason::NotSent { sites } => {
                write!(f, "not sent: no connection to {} before the deadline", sites.join(", "))
            }
            Reason::UnknownRegion { region, known } => {
                write!(f, "no region is named \"{region}\"; there are {}", known.join(", "))
            }
            Reason::Closed => f.write_str("the client was closed"),
            Reason::Aborted(aborted) => aborted.fmt(f),
            Reason::Treaty(refusal) => refusal.fmt(f),
            // A site's refusal is said in the words that all have for it.
            reason => reason.refusal().map_or(Ok(()), |refusal| refusal.fmt(f)),
        }
    }
}

impl Reason {
    /// Its name in JSON; stable.
    pub fn code(&self) -> &'static str {
        match self {
            Reason::NotSent { .. } => "not_sent",
            Reason::UnknownRegion { .. } => "unknown_region",
            Reason::Closed => "closed",
            Reason::Aborted(aborted) => aborted.cause.code(),
            Reason::Treaty(refusal) => refusal.code(),
            reason => reason.refusal().map_or("other", Refusal::code),
        }
    }

    /// The refusal of a site that it is, without the sites in it; none if it is the client's own, or an abort.
    fn refusal(&self) -> Option<Refusal> {
        Some(match *self {
            Reason::UnknownQuota => Refusal::UnknownQuota,
            Reason::Exhausted { .. } => Refusal::Exhausted { asked: SiteSet::default(), retry_after: None, level: 0 },
            Reason::InvalidParent => Refusal::InvalidParent,
            Reason::NoParent => Refusal::NoParent,
            Reason::ParentDiffers => Refusal::ParentDiffers,
            Reason::MixedRefill => Refusal::MixedRefill,
            Reason::TooDeep => Refusal::TooDeep,
            Reason::HasChildren => Refusal::HasChildren,
            Reason::InUse { amount } => Refusal::InUse { amount },
            Reason::RefillDiffers { refill } => Refusal::RefillDiffers { refill },
            Reason::Refills => Refusal::Refills,
            Reason::InvalidAmount => Refusal::InvalidAmount,
            Reason::InvalidName => Refusal::InvalidName,
            Reason::LimitDiffers { limit } => Refusal::LimitDiffers { limit },
            Reason::AgreementDiffers { agreement } => Refusal::AgreementDiffers { agreement },
            Reason::AboveOut { at_most } => Refusal::AboveOut { at_most },
            Reason::AboveLimit { limit, .. } => Refusal::AboveLimit { limit, level: 0 },
            Reason::UnknownGrant => Refusal::UnknownGrant,
            Reason::AboveGrant { amount } => Refusal::AboveGrant { amount },
            Reason::Settled => Refusal::Settled,
            Reason::NoEnd => Refusal::NoEnd,
            Reason::IncarnationLives => Refusal::IncarnationLives,
            Reason::NothingLost => Refusal::NothingLost,
            Reason::AlsoLost { .. } => Refusal::AlsoLost { sites: SiteSet::default() },
            Reason::AboveLost { at_most } => Refusal::AboveLost { at_most },
            Reason::BelowReleased { at_least } => Refusal::BelowReleased { at_least },
            Reason::NoSeat { why, count } => Refusal::NoSeat { why, count },
            Reason::QuotaDeleted => Refusal::QuotaDeleted,
            Reason::Overloaded => Refusal::Overloaded,
            Reason::DeadlinePassed => Refusal::DeadlinePassed,
            Reason::Unreachable { .. } => Refusal::Unreachable { missing: SiteSet::default() },
            Reason::Withdrawn => Refusal::Withdrawn,
            Reason::OtherContent => Refusal::OtherContent,
            Reason::NotReady => Refusal::NotReady,
            Reason::StorageFull => Refusal::StorageFull,
            Reason::NotSent { .. }
            | Reason::UnknownRegion { .. }
            | Reason::Closed
            | Reason::Aborted(_)
            | Reason::Treaty(_) => {
                return None;
            }
        })
    }

    /// Notes which quota it is about, if that is one above the quota that was asked for.
    pub(crate) fn note_level(&mut self, above: Option<String>) {
        if let Reason::Exhausted { quota, .. } | Reason::AboveLimit { quota, .. } = self {
            *quota = above;
        }
    }

    /// The reason that an abort is.
    pub fn of_abort(abort: object::Abort, topology: &Topology) -> Self {
        Reason::Aborted(Box::new(Aborted::new(abort, topology)))
    }

    /// The reason that a site's refusal is.
    pub fn of(refusal: Refusal, lane: u16, topology: &Topology) -> Self {
        match refusal {
            Refusal::UnknownQuota => Reason::UnknownQuota,
            Refusal::InvalidParent => Reason::InvalidParent,
            Refusal::NoParent => Reason::NoParent,
            Refusal::ParentDiffers => Reason::ParentDiffers,
            Refusal::MixedRefill => Reason::MixedRefill,
            Refusal::TooDeep => Reason::TooDeep,
            Refusal::HasChildren => Reason::HasChildren,
            Refusal::InUse { amount } => Reason::InUse { amount },
            Refusal::Exhausted { asked, retry_after, .. } => Reason::Exhausted {
                quota: None,
                asked: topology.names(asked, lane),
                retry_after: retry_after.map(|millis| Duration::from_millis(millis.into())),
            },
            Refusal::RefillDiffers { refill } => Reason::RefillDiffers { refill },
            Refusal::Refills => Reason::Refills,
            Refusal::InvalidAmount => Reason::InvalidAmount,
            Refusal::InvalidName => Reason::InvalidName,
            Refusal::LimitDiffers { limit } => Reason::LimitDiffers { limit },
            Refusal::AgreementDiffers { agreement } => Reason::AgreementDiffers { agreement },
            Refusal::AboveOut { at_most } => Reason::AboveOut { at_most },
            Refusal::AboveLimit { limit, .. } => Reason::AboveLimit { limit, quota: None },
            Refusal::UnknownGrant => Reason::UnknownGrant,
            Refusal::AboveGrant { amount } => Reason::AboveGrant { amount },
            Refusal::Settled => Reason::Settled,
            Refusal::NoEnd => Reason::NoEnd,
            Refusal::IncarnationLives => Reason::IncarnationLives,
            Refusal::NothingLost => Reason::NothingLost,
            Refusal::AlsoLost { sites } => Reason::AlsoLost { sites: topology.names(sites, lane) },
            Refusal::AboveLost { at_most } => Reason::AboveLost { at_most },
            Refusal::BelowReleased { at_least } => Reason::BelowReleased { at_least },
            Refusal::NoSeat { why, count } => Reason::NoSeat { why, count },
            Refusal::QuotaDeleted => Reason::QuotaDeleted,
            Refusal::Overloaded => Reason::Overloaded,
            Refusal::DeadlinePassed => Reason::DeadlinePassed,
            Refusal::Unreachable { missing } => Reason::Unreachable { missing: topology.names(missing, lane) },
            Refusal::Withdrawn => Reason::Withdrawn,
            Refusal::OtherContent => Reason::OtherContent,
            // A session that ends is replaced, so this is a site that ended every one until the deadline.
            Refusal::SessionEnded | Refusal::NotReady => Reason::NotReady,
            Refusal::StorageFull => Reason::StorageFull,
        }
    }

    /// Why no site took a call; `sites` are the names of those that would have done.
    pub fn not_taken(why: NotTaken, lane: u16, sites: Vec<String>, topology: &Topology) -> Self {
        match why {
            NotTaken::Unreachable | NotTaken::DeadlinePassed => Reason::NotSent { sites },
            NotTaken::Overloaded => Reason::Overloaded,
            NotTaken::Closed => Reason::Closed,
            NotTaken::Refused(refusal) => Reason::of(refusal, lane, topology),
        }
    }
}

/// Something could not be read: a count, a list, a state.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The site refuses to say.
    #[error("refused: {0}")]
    Refused(Reason),
    /// No site that could tell has done so.
    #[error("no answer: {}", each_why(asked))]
    Unreachable {
        /// The sites that were asked, each with what came of it.
        asked: Vec<(String, String)>,
    },
}

/// What came of each site, those together of which the same came: `us, eu: connection refused; ap: the site is not ready`.
fn each_why(asked: &[(String, String)]) -> String {
    let mut whys: Vec<(&str, Vec<&str>)> = Vec::new();
    for (site, why) in asked {
        match whys.iter_mut().find(|(known, _)| known == why) {
            Some((_, sites)) => sites.push(site),
            None => whys.push((why, vec![site])),
        }
    }
    let each: Vec<String> = whys.iter().map(|(why, sites)| format!("{}: {why}", sites.join(", "))).collect();
    each.join("; ")
}

/// The client could not be set up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No address was given.
    #[error("no address was given; name at least one site as host:port")]
    NoAddress,
    /// An address cannot be read.
    #[error("\"{0}\" is not an address; write host:port, with a port of 1 to 65535")]
    InvalidAddress(String),
    /// None of the sites answered.
    #[error("no site answers at {addresses}: {why}")]
    Unreachable {
        /// The addresses that were tried.
        addresses: String,
        /// What went wrong at the last of them.
        why: String,
    },
    /// The preferred region does not exist.
    #[error("no region is named \"{region}\"; there are {}", known.join(", "))]
    UnknownRegion {
        /// The name.
        region: String,
        /// The regions that there are.
        known: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_that_did_not_answer_are_named_if_any_are_known() {
        let said = |missing: &[&str]| {
            Reason::Unreachable { missing: missing.iter().map(|&site| site.to_owned()).collect() }.to_string()
        };
        assert_eq!(said(&["us", "ap"]), "sites that this needs did not answer: us, ap");
        assert_eq!(said(&[]), "sites that this needs did not answer");
    }

    #[test]
    fn sites_of_which_the_same_came_are_named_together() {
        let asked = [("us", "refused"), ("ap", "not ready"), ("eu", "refused")];
        let asked = asked.map(|(site, why)| (site.to_owned(), why.to_owned())).to_vec();
        assert_eq!(ReadError::Unreachable { asked }.to_string(), "no answer: us, eu: refused; ap: not ready");
    }
}
