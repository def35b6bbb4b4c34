//! What clients ask of a site and what they are told; the vocabulary of the public interface.
//!
//! Every request that changes something is an [`Operation`] with an id; it ends as **done**, **refused** (why) or
//! **unknown**. Refusals of operations are recorded like successes: an operation that was refused once never takes
//! effect later, under whatever circumstances it is sent again. The id is looked up before anything is refused; where that is
//! not possible, the answer is unknown. One refusal may not be recorded yet: that of a new operation by a site whose disk has
//! no room ([`Refusal::is_recorded`]).

use crate::bounds::ENTRY_BYTES;
pub use crate::bounds::NAME_BYTES;
use crate::id::{GrantId, Incarnation, Life, OperationId, SessionId, SiteId, SiteSet};
use crate::object::trace::Trace;
use crate::object::{Abort, ObjectKey, Origin, Seen, Span, Transaction, Value};

/// Returns true if this can be a quota's name: 1 to 256 bytes, no control characters.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES && !name.chars().any(char::is_control)
}

/// The longest hold, in microseconds: 400 days.
pub const HOLD_MICROS: u64 = 400 * 24 * 3600 * 1_000_000;
/// The most operations in one batch.
pub const BATCH_OPERATIONS: usize = 1024;
/// The most operations of a session that may be without a forgotten outcome at a time.
pub const SESSION_WINDOW: u64 = 1024;

/// The way in which tokens are held: counted in all, or tracked singly, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Hold {
    /// Only counted: no row is kept for the grant; it is released by amount, at any site.
    #[default]
    Counted,
    /// Tracked without an end: released by its id, once, at the site that granted it.
    Open,
    /// Tracked for this long, in microseconds: the granting site takes the tokens back by itself when the time is up.
    For(u64),
}

/// How the tokens of a quota move when a site runs short.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Agreement {
    /// By rounds of the majority.
    #[default]
    Majority,
    /// By rounds among any sites that answer, without a majority. What changes the quota itself takes the majority all the same.
    Any,
}

/// What a quota is besides its limit: agreed on when it is created, and the same for as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Charter {
    /// How its tokens move.
    pub agreement: Agreement,
    /// The speed at which what is spent comes back by itself, in millionths of a token a second, over all sites; zero if it is given
    /// back by those who have it.
    pub refill: u64,
    /// The quota above it, in which it counts as well; none for the first of a tree, and for one that is in none.
    pub parent: Option<Parent>,
}

/// The quota above another one. The name of the one below is its name, `/` and more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Parent {
    /// The number of bytes of its name.
    pub length: u16,
    /// Its generation: of one that is created again later, the quota below it is no part. Zero in a request, as only sites know it.
    pub generation: u32,
}

/// Grants and objects at a site that is to leave are counted up to here.
pub const COUNTED: u64 = 1_000;

/// The most bytes of what drivers have to know of a site that joins.
pub const LABEL_BYTES: usize = 512;

/// The most levels of a tree.
pub const LEVELS: usize = 8;

/// What may be done to quotas and objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Takes tokens.
    Acquire {
        /// The quota's name.
        quota: String,
        /// The number of tokens, at least 1.
        amount: i64,
        /// The way in which they are held.
        hold: Hold,
        /// True if it stays in line until its time is up, where it would be refused because the tokens are not to be had at once.
        waits: bool,
    },
    /// Gives tokens back, at any site.
    Release {
        /// The quota's name.
        quota: String,
        /// The number of tokens, at least 1.
        amount: i64,
    },
    /// Gives one tracked grant back, at the site that granted it: all of it, after which it is no more; or, once, what is not used of
    /// it, after which the grant is as large as that.
    ReleaseGrant {
        /// The grant.
        grant: GrantId,
        /// The number of its tokens that are used, and stay granted; 0 for none.
        used: i64,
    },
    /// Puts the end of a hold off, at the site that granted it: it lasts for a time from now on, unless it lasts for longer anyway.
    ExtendGrant {
        /// The grant.
        grant: GrantId,
        /// The time, in microseconds; 1 ms to 400 days.
        micros: u64,
    },
    /// Creates a quota. Creating it again with the same limit and refill is done, with others refused.
    Create {
        /// The quota's name: 1 to 256 bytes, no control characters.
        quota: String,
        /// The number of its tokens, at least 1.
        limit: i64,
        /// What else it is; stays as it is while the quota exists.
        charter: Charter,
    },
    /// Gives a quota another limit, at once, while it is in use. What is in use beyond a lower one is in excess, and nothing is
    /// granted until it is back.
    SetLimit {
        /// The quota's name.
        quota: String,
        /// The number of its tokens from now on, at least 1.
        limit: i64,
    },
    /// Brings back what lost incarnations of sites had of a quota, but for what is still in use; on an operator's word, and once. Needs
    /// every site.
    Reclaim {
        /// The quota's name.
        quota: String,
        /// The newest lost incarnation of each site that has one of which nothing was reclaimed. It stands for those before it.
        lost: Vec<(SiteId, Incarnation)>,
        /// The number of tokens that they had granted and had not taken back when they were lost, whether these are in use or were released
        /// elsewhere since.
        in_use: i64,
    },
    /// Deletes a quota, with all that is granted of it. Needs every site.
    Delete {
        /// The quota's name.
        quota: String,
    },
    /// Makes a site a member of this lane, empties one, or takes one out.
    Seat {
        /// The site.
        site: SiteId,
        /// What becomes of its seat.
        change: SeatChange,
        /// What drivers have to know to reach it, if it joins; at most [`LABEL_BYTES`]. It means nothing to a site's machine.
        label: String,
    },
    /// Commits a transaction.
    Commit(Box<Transaction>),
    /// Says that the objects of earlier incarnations of the site are gone for good, so that what is not there is known to be
    /// absent.
    AcceptLoss,
}

impl Operation {
    /// Creates a quota of this limit that is nothing special.
    pub fn create(quota: impl Into<String>, limit: i64) -> Self {
        Self::Create { quota: quota.into(), limit, charter: Charter::default() }
    }
}

/// What becomes of a site's place among the members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SeatChange {
    /// It becomes a member.
    Joins,
    /// It is lost for good, and a member no longer. What it had counts as in use until it is reclaimed.
    Lost,
    /// It stays one, gives its tokens away, takes back what is released, and grants nothing. Only the site itself can be asked.
    Drains,
    /// It grants again. Only the site itself can be asked.
    Serves,
    /// It is a member no longer, as nothing is left there that anybody could miss. Only the site itself can be asked.
    Leaves,
}

/// Why the members do not change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoSeat {
    /// The site was a member before, and none is twice: it comes back under another name.
    WasMember,
    /// There are as many seats as there can be.
    Full,
    /// Its region does not come after those of all members.
    NotNext,
    /// It is no member.
    NoMember,
    /// It was heard from lately, so it is not lost.
    Lives,
    /// So many quotas have not recorded the last change, or a member's new storage, as far as this site knows.
    Unrecorded,
    /// Names of deleted quotas are being forgotten, for which all members are needed. That is over soon.
    Forgetting,
    /// Another site was asked for what only the site itself can do.
    OtherSite,
    /// It has not been drained.
    NotDrained,
    /// So many quotas have tokens there, or gifts under way that it gave.
    HasTokens,
    /// So many grants of it are out that only it can take back.
    HasGrants,
    /// So many objects are at home there.
    HasObjects,
    /// So many transactions are under way there.
    HasTransactions,
    /// It is the only member.
    Last,
    /// So many sites may not have heard yet that it drains, and may have given it tokens that are on their way.
    Unheard,
}

impl NoSeat {
    /// All of them, in an order that rows rest on: new ones come last.
    pub const ALL: [Self; 15] = [
        Self::WasMember,
        Self::Full,
        Self::NotNext,
        Self::NoMember,
        Self::Lives,
        Self::Unrecorded,
        Self::Forgetting,
        Self::OtherSite,
        Self::NotDrained,
        Self::HasTokens,
        Self::HasGrants,
        Self::HasObjects,
        Self::HasTransactions,
        Self::Last,
        Self::Unheard,
    ];
}

/// The outcome of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The tokens are the caller's.
    Granted {
        /// The grant's id; its number is a fence among the grants of that site.
        grant: GrantId,
        /// For a hold with an end: how long it lasts, in microseconds from when the request was *sent*.
        lasts: Option<u64>,
    },
    /// The tokens are back.
    Released {
        /// The number of tokens.
        amount: i64,
    },
    /// The hold lasts for longer.
    Extended {
        /// How long it lasts, in microseconds from when the request was *sent*.
        lasts: u64,
    },
    /// The quota exists, with this limit.
    Created {
        /// The number of its tokens.
        limit: i64,
    },
    /// The quota has this limit.
    LimitSet {
        /// The number of its tokens.
        limit: i64,
        /// The number of tokens that are out beyond it: in use, or at sites that have not heard of the limit yet. Nothing is
        /// granted until it is zero.
        excess: i64,
    },
    /// What was lost is shared out again.
    Reclaimed {
        /// The number of tokens that came back.
        brought: i64,
        /// The number of tokens that lost incarnations had and that are still in use.
        in_use: i64,
    },
    /// The quota is gone.
    Deleted,
    /// The members are as was asked for.
    Seated {
        /// The number of the last change of them.
        number: u64,
    },
    /// The transaction took effect.
    Committed {
        /// In how many phases: 0 if the site judged it alone and it wrote nothing, 1 if one site did, 2 if several.
        phases: u8,
    },
    /// The transaction had no effect and will have none.
    Aborted(Box<Abort>),
    /// The loss is noted.
    LossAccepted,
    /// Nothing was done and nothing will be.
    Refused(Refusal),
    /// It may have been done or not; ask with the operation's id.
    Unknown(UnknownReason),
}

/// Why nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// No quota has this name.
    UnknownQuota,
    /// The tokens are not to be had; these sites were asked.
    Exhausted {
        /// The members that the decision rests on.
        asked: SiteSet,
        /// The time in which there will be enough if nobody else takes any, in milliseconds; none if the quota does not refill.
        retry_after: Option<u32>,
        /// The quota that is short: the number of bytes of its name, if it is one above the quota that was asked for; else zero.
        level: u16,
    },
    /// More is asked for than the quota has tokens in all: that can never be granted.
    AboveLimit {
        /// The quota's limit.
        limit: i64,
        /// The quota whose limit that is: the number of bytes of its name, if it is one above the quota that was asked for; else zero.
        level: u16,
    },
    /// The amount, the limit or the duration is out of range.
    InvalidAmount,
    /// The name is empty, too long, or has control characters.
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
    /// The quota refills by itself: nothing of it is held or given back.
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
    /// One of both refills and the other does not.
    MixedRefill,
    /// The tree would have more than [`LEVELS`] levels.
    TooDeep,
    /// It has quotas below it, which go first.
    HasChildren,
    /// So many of its tokens are in use, which count in the quota above it, too: it can be deleted when they are back.
    InUse {
        /// The number of tokens.
        amount: i64,
    },
    /// More tokens were to be released than can be granted.
    AboveOut {
        /// The most tokens that can be granted now, as far as this site can tell.
        at_most: i64,
    },
    /// No such grant is out: it was released, its time is up, or it never was.
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
    /// Other incarnations are lost, too, and what they had cannot be told from what these had.
    AlsoLost {
        /// The members whose incarnations before the present one are not named.
        sites: SiteSet,
    },
    /// More is said to be in use than lost incarnations had.
    AboveLost {
        /// The most tokens that can be in use.
        at_most: i64,
    },
    /// Less is said to be in use than other sites took back since, of what lost incarnations had granted.
    BelowReleased {
        /// The least tokens that lost incarnations had granted and not taken back.
        at_least: i64,
    },
    /// The members do not change.
    NoSeat {
        /// Why.
        why: NoSeat,
        /// The number of quotas, grants, objects or transactions that it is about, up to a thousand of all but the first; zero where it is
        /// about none.
        count: u64,
    },
    /// The quota was deleted while the request waited.
    QuotaDeleted,
    /// A queue is at its bound.
    Overloaded,
    /// The request's time was up before tokens could be had.
    DeadlinePassed,
    /// Sites that it needs did not answer.
    Unreachable {
        /// The members that did not answer.
        missing: SiteSet,
    },
    /// The caller asked what became of it before it was carried out, which refuses it permanently.
    Withdrawn,
    /// The id was used for an operation with other content.
    OtherContent,
    /// The site knows the session no more, and nothing was ever done in it; open another.
    SessionEnded,
    /// The site is stopping, and the operation is new. As an answer to something else than an operation: it is starting,
    /// rejoining or stopping.
    NotReady,
    /// The site's disk has no room, and the operation is new. Recorded only when it is sent again or asked for and there is
    /// room: if the site is restarted before that, it does not know of the refusal.
    StorageFull,
}

impl Refusal {
    /// Returns true if the refusal of an operation is durable. One that is not is final only for an operation of which no other
    /// copy is under way.
    pub fn is_recorded(self) -> bool {
        self != Refusal::StorageFull
    }
}

/// Why it is not known how an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnknownReason {
    /// The id names another site, which cannot be reached from here.
    SiteUnreachable,
    /// The id names an earlier incarnation of its site, whose storage is lost.
    IncarnationLost,
    /// The outcome is no longer kept: the caller declared that it does not need it, or its session's time is over.
    Forgotten,
    /// The sites are still agreeing on it; ask again.
    Undecided,
    /// The only home that took part in the transaction has lost its storage, before it told what became of it.
    HomeLost,
    /// The site is starting or rejoining, and cannot look the operation up yet. This copy of it was not carried out.
    NotReady,
    /// The site's disk has no room to note the answer. This copy of the operation was not carried out.
    StorageFull,
}

/// One operation of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submission {
    /// Its number in the session, from 1.
    pub sequence: u64,
    /// The longest time that it may wait for tokens, in microseconds from its arrival.
    pub timeout: u64,
    /// What is to be done.
    pub operation: Operation,
}

/// Operations of one session that travel together. They are independent of each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// The only site that may carry them out.
    pub site: SiteId,
    /// Its incarnation when the session was opened.
    pub incarnation: Incarnation,
    /// The session.
    pub session: SessionId,
    /// The lowest sequence whose outcome the client still cares about; those below may be forgotten.
    pub low: u64,
    /// The operations, at most [`BATCH_OPERATIONS`].
    pub operations: Vec<Submission>,
}

/// Reads of objects that travel together, at one time or not: a transaction's are validated when it is committed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Read {
    /// Repeated in the answer.
    pub token: u64,
    /// Objects.
    pub gets: Vec<ObjectKey>,
    /// Spans, with their home regions.
    pub scans: Vec<(u16, Span)>,
    /// True if copies are good enough only under live warranties.
    pub fresh: bool,
    /// True if nobody wants the values for their own sake: they are read to compute calls again. So what is read is not
    /// counted as used.
    pub upkeep: bool,
    /// The time to wait for other sites, in microseconds.
    pub timeout: u64,
    /// The program for which it is read, if that wants its turn; see [`Claim`].
    pub claim: Option<Claim>,
}

/// A program that was aborted, and is run again, asks the homes of what it reads and is to write for its turn there. They answer
/// when no older program has its turn and nothing is prepared that changes what is read, or after a bounded time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// The program.
    pub origin: Origin,
    /// What it wants to write, as far as it is known from the run before.
    pub writes: Vec<ObjectKey>,
    /// True if others were in its way in the run before. If not, it waits only where objects were often changed of late.
    pub again: bool,
    /// True if it has its turn from now on: what younger programs want to prepare over the same objects is refused until this one
    /// was judged, for a bounded time. It is a courtesy: nothing rests on it, and a home that starts again has forgotten it.
    pub bars: bool,
}

/// What reads found, in the order in which it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// As asked.
    pub token: u64,
    /// What the objects hold.
    pub gets: Vec<Result<Seen, Abort>>,
    /// What the spans hold: names and values.
    pub scans: Vec<Result<Vec<(String, Seen)>, Abort>>,
    /// True if all of it was so at one time, and nothing that changes it was about to take effect: a transaction that reads
    /// nothing else, and writes nothing, needs no judgement.
    pub is_whole: bool,
}

/// What a client asks of a site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Opens a session at this site.
    Open,
    /// Carries out operations.
    Batch(Batch),
    /// What became of an operation? If it is not known here, it never will be carried out.
    Ask {
        /// The operation.
        operation: OperationId,
    },
    /// Which course did a transaction take? Changes nothing.
    Explain {
        /// The operation that committed it. Its site coordinated it.
        operation: OperationId,
    },
    /// Ends a session whose outcomes nobody needs any more.
    Close {
        /// The session's site.
        site: SiteId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The session.
        session: SessionId,
    },
    /// Reads objects.
    Read(Box<Read>),
    /// Counts a quota over all sites.
    Show {
        /// The quota's name.
        quota: String,
        /// The time to wait for the other sites, in microseconds.
        timeout: u64,
        /// True if no other site is asked: what this one knows is told at once.
        local: bool,
    },
    /// The quotas that this site knows, in the order of their names.
    List {
        /// Names after this one.
        after: String,
        /// No more than this many, at most 1,000.
        limit: u32,
    },
    /// The treaties that are at home here, and the leaves of treaties that are kept here, in the order of their names.
    Treaties {
        /// Of this treaty alone; of any, if there is none.
        treaty: Option<ObjectKey>,
    },
    /// This site's state.
    Status,
    /// Stop taking requests, finish what waits, give the tokens away where that helps. Only the driver asks this.
    Drain {
        /// The longest time that this takes, in microseconds: what waits then is left to the client to ask about.
        within: u64,
    },
    /// Reckon with what models expect of some quotas. Only the driver asks this; nothing answers it.
    Expect(Vec<Forecast>),
}

/// What a model expects of the demand for a quota at this site. It decides when tokens move, and never what is granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forecast {
    /// The quota's name.
    pub quota: String,
    /// The tokens that are likely to be asked for, from when this is taken in until it ends.
    pub tokens: i64,
    /// The time after which it ends, in microseconds. Then the site reckons with what was asked for lately, as without a model.
    pub micros: u64,
}

/// An operation's sequence and its outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The operation's number in the session.
    pub sequence: u64,
    /// The outcome.
    pub outcome: Outcome,
}

impl Answer {
    /// The bytes of the names of calls in it, about.
    pub fn named_bytes(&self) -> usize {
        if let Outcome::Aborted(abort) = &self.outcome { abort.named_bytes() } else { 0 }
    }

    /// Leaves names of calls in answers as long as they fit into `room` bytes; an answer whose names do not fit loses all of its own. No message
    /// would hold a thousand refusals with all that each may name.
    pub fn limit_names(answers: &mut [Self], mut room: usize) {
        for Self { outcome, .. } in answers {
            let Outcome::Aborted(abort) = outcome else { continue };
            match room.checked_sub(abort.named_bytes()) {
                Some(left) => room = left,
                None => abort.calls = Vec::new(),
            }
        }
    }
}

/// What a client is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// A session is open.
    Opened {
        /// The site.
        site: SiteId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The session's number.
        session: SessionId,
    },
    /// The site opens no session, or does not serve and so lists no quotas.
    NotOpened(Refusal),
    /// Outcomes of a session's operations. Each batch is answered at once by one such response with what could be
    /// answered at once (perhaps nothing); operations that have to wait follow in later ones.
    Batch {
        /// The session.
        session: SessionId,
        /// Outcomes, in any order.
        answers: Vec<Answer>,
    },
    /// What became of an operation.
    Asked {
        /// The operation.
        operation: OperationId,
        /// The outcome.
        outcome: Outcome,
    },
    /// The course of a transaction.
    Explained {
        /// The operation that committed it.
        operation: OperationId,
        /// What its site remembers; or why nothing is known.
        trace: Result<Box<Trace>, UnknownReason>,
    },
    /// What reads found.
    Read(Box<Reading>),
    /// The session is closed.
    Closed,
    /// A quota's count.
    Shown(Result<Box<Shown>, Refusal>),
    /// Quotas.
    Listed(Vec<Listed>),
    /// Treaties.
    Treaties(Box<TreatiesHere>),
    /// The site's state.
    Status(Box<Status>),
    /// Nothing waits any more; the driver may stop the site.
    Drained,
}

/// The treaties of which a site knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreatiesHere {
    /// Those that are at home there: the names of their objects, and what these hold.
    pub homes: Vec<TreatyHere>,
    /// The leaves that are kept there.
    pub leaves: Vec<LeafHere>,
    /// What waited there lately for slack of the treaty that was asked about, the oldest first; nothing if all were.
    pub synchronizations: Vec<Synchronization>,
    /// True if more are at home there than one answer has room for.
    pub has_more: bool,
}

impl TreatiesHere {
    /// Its bytes, about.
    pub fn bytes(&self) -> usize {
        let leaf = |leaf: &LeafHere| leaf.treaty.name.len() + (1 + leaf.clauses.len()) * ENTRY_BYTES;
        let waited = |waited: &Synchronization| waited.sites.len() * size_of::<SiteId>() + ENTRY_BYTES;
        self.homes.iter().map(TreatyHere::bytes).sum::<usize>()
            + self.leaves.iter().map(leaf).sum::<usize>()
            + self.synchronizations.iter().map(waited).sum::<usize>()
    }
}

/// A part that waited at a home for slack of a treaty, and so for another site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Synchronization {
    /// When it waited no more, in microseconds since 1970 by the site's wall clock.
    pub at: i64,
    /// How it ended.
    pub cause: SynchronizationCause,
    /// The position of the clause.
    pub clause: u32,
    /// The sites that were asked.
    pub sites: Vec<SiteId>,
    /// For how long it waited, in microseconds.
    pub waited: u64,
}

/// How the wait of a part for slack ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SynchronizationCause {
    /// Others gave slack.
    Slack,
    /// The treaty was retracted, or its home could not be reached until the lease was over.
    Retraction,
    /// It was refused: it relied on the treaty, or its time was over.
    Refused,
}

/// A treaty at its home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreatyHere {
    /// The name of its object.
    pub name: String,
    /// What its object holds, whatever became of the homes that it rests on.
    pub value: Value,
    /// The sites that hold a right over it.
    pub holders: Vec<SiteId>,
}

impl TreatyHere {
    /// Its bytes, about.
    pub fn bytes(&self) -> usize {
        self.name.len() + self.value.size() + self.holders.len() * size_of::<SiteId>() + ENTRY_BYTES
    }
}

/// The leaf of a treaty at a site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafHere {
    /// The treaty's object.
    pub treaty: ObjectKey,
    /// The name of its making.
    pub nonce: u64,
    /// Its clauses, by position.
    pub clauses: Vec<ClauseHere>,
    /// The times that slack was divided again because somebody waited for it, since the site started.
    pub rebalances: u64,
    /// The gifts of slack that it gave, but for those by a standing order.
    pub gifts: u64,
    /// The gifts of slack that it gave by a standing order.
    pub extensions: u64,
}

/// A clause of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClauseHere {
    /// Its position in the treaty.
    pub clause: u32,
    /// What its terms have come to there, as if every undecided decrement had happened and no undecided increment.
    pub value: i64,
    /// The least that they may come to.
    pub bound: i64,
    /// Their velocity, in millionths a second.
    pub velocity: i64,
    /// Their standard deviation after one second, in millionths.
    pub noise: i64,
    /// The rate at which the bound rises by standing orders, in millionths a second.
    pub rate: i64,
}

/// A quota, counted over all sites.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Its name.
    pub name: String,
    /// The number of its tokens.
    pub limit: i64,
    /// How they move between sites.
    pub agreement: Agreement,
    /// The number that is out beyond the limit, since that was lowered.
    pub excess: i64,
    /// The number in use at least.
    pub in_use_min: i64,
    /// The number in use at most; the same as the least when nothing moves.
    pub in_use_max: i64,
    /// The number in use by what the one site knows that was asked; none if all were.
    pub estimate: Option<i64>,
    /// What each site that answered has; or what is known of each, if one alone was asked.
    pub sites: Vec<ShownSite>,
    /// Sites that did not answer in time.
    pub missing: SiteSet,
    /// What the sites that answered have done for it.
    pub work: Work,
    /// Releases beyond what was acquired, as far as the sites can tell: some client released what it never had.
    pub released_above: i64,
    /// The rate at which it refills, in millionths of a token a second; zero if it does not.
    pub refill: u64,
}

/// What a site, or all that answered, have done for a quota, for people to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Operations answered without waiting for another site.
    pub local: u64,
    /// Rounds applied in which the quota stayed.
    pub rebalances: u64,
    /// Gifts sent.
    pub gifts: u64,
}

/// One site's share of a quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShownSite {
    /// The site.
    pub site: SiteId,
    /// Tokens there, those set aside included.
    pub tokens: i64,
    /// Tokens set aside for a round.
    pub set_aside: i64,
    /// The site's incarnation.
    pub incarnation: Incarnation,
    /// How long ago the site had so many, in microseconds; none if it has said nothing lately, and this is what the last round left it.
    pub age: Option<u64>,
}

/// A quota as one site knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// The number of its tokens.
    pub limit: i64,
    /// The number of them at this site.
    pub tokens: i64,
    /// The number of bytes of the name of the quota above it; zero for none.
    pub parent: u16,
}

/// The step of a site on its way to serving.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Readiness {
    /// New storage: waits to learn from the others whether it had a predecessor.
    #[default]
    Joining,
    /// Known storage: waits for a majority to confirm that it is the newest copy.
    Confirming,
    /// Serves.
    Ready,
    /// The storage is older than what others have heard from this site: does not serve, and writes nothing more.
    Stale,
    /// Stopping: takes no more requests.
    Draining,
    /// New storage, and others know an earlier incarnation of this site: waits until a person says that the storage of that
    /// one is lost.
    AwaitingNewStorage,
    /// Serves what writes nothing: the disk has no room. Said by the driver, which knows the disk; a machine never says it.
    StorageFull,
}

impl Readiness {
    /// The word for it in JSON and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Readiness::Joining => "joining",
            Readiness::Confirming => "confirming",
            Readiness::Ready => "ready",
            Readiness::Stale => "stale",
            Readiness::Draining => "draining",
            Readiness::AwaitingNewStorage => "awaiting_new_storage",
            Readiness::StorageFull => "storage_full",
        }
    }
}

/// What a site knows of another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerStatus {
    /// The site.
    pub site: SiteId,
    /// True if it was heard from within the last few seconds.
    pub up: bool,
    /// The last measured round trip, in microseconds.
    pub rtt: Option<u64>,
    /// The last measured offset of its wall clock from ours, in microseconds.
    pub offset: Option<i64>,
    /// The last incarnation of it that was heard of; 0 if none was.
    pub incarnation: Incarnation,
    /// The number of quotas of which no round has recorded that incarnation, or the last change of the members, as far as is known here. The entity
    /// of the members counts as one.
    pub unrecorded: u64,
}

/// How right a site's clock is, as far as it knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockStatus {
    /// The bound that the site assumes on the clock's error, in microseconds.
    pub epsilon: u64,
    /// The largest part of any peer's offset that ε and the round trip cannot explain, in microseconds.
    pub error: u64,
    /// True if nobody disagrees with the clock, or enough others agree ([`crate::turn::Trust`]).
    pub is_trusted: bool,
}

/// The state of a site.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The site.
    pub site: SiteId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its life.
    pub life: Life,
    /// True if it serves.
    pub readiness: Readiness,
    /// The sites that have not answered yet, while it waits for others to say what they know of it.
    pub waiting_for: Vec<SiteId>,
    /// Its clock.
    pub clock: ClockStatus,
    /// The other sites of its lane.
    pub peers: Vec<PeerStatus>,
    /// The number of quotas that it knows.
    pub quotas: u64,
    /// The number of those of which no round has recorded its own incarnation, so that it has no tokens of them yet, or the last change of
    /// the members, whose own entity counts as one.
    pub unrecorded: u64,
    /// The number of sessions that are open.
    pub sessions: u64,
    /// The number of the last change of the members that it knows of; zero if they never changed.
    pub membership: u64,
    /// True if an operator has drained it: it gives its tokens away, takes releases, and grants nothing.
    pub drained: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::NAMED_BYTES;
    use crate::object::Cause;

    #[test]
    fn names_of_calls_are_told_as_far_as_a_response_has_room_for_them() {
        let call = ObjectKey::new(0, "x".repeat(984));
        let abort = Abort { calls: vec![call; NAMED_BYTES / 1024], ..Abort::of(Cause::Depended) };
        let named = Outcome::Aborted(Box::new(abort));
        let outcomes = [named.clone(), Outcome::Deleted, named.clone(), named];
        let mut answers: Vec<Answer> =
            (1..).zip(outcomes).map(|(sequence, outcome)| Answer { sequence, outcome }).collect();
        Answer::limit_names(&mut answers, 2 * NAMED_BYTES);
        let bytes: Vec<usize> = answers.iter().map(Answer::named_bytes).collect();
        assert_eq!(bytes, [NAMED_BYTES, 0, NAMED_BYTES, 0], "more than a message holds");
        assert!(matches!(&answers[3].outcome, Outcome::Aborted(abort) if abort.cause == Cause::Depended));
    }
}
