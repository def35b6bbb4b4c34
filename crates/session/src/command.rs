//! A call as its caller and a site's link see it: what is to be done, on which terms, and what the caller is told. Rules are those of
//! [`crate::sessions`].

use std::sync::Arc;
use std::time::Duration;

use slackline_core::api::{Hold, Operation, Outcome, Refusal, SeatChange};
use slackline_core::avantan::Charter;
use slackline_core::id::{GrantId, Incarnation, OperationId, SiteId};
use slackline_core::object::Transaction;

use crate::time::Time;

/// The deadline of a call or a transaction, unless it or the client says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

/// Something to be done at a site.
#[derive(Clone, Debug)]
pub enum Command {
    /// Takes tokens of a quota.
    Acquire {
        /// The quota's name.
        quota: Arc<str>,
        /// The number of tokens.
        amount: i64,
        /// The way in which they are held.
        hold: Hold,
        /// True if it stays in line until its time is up, where it would be refused because the tokens are not to be had at once.
        waits: bool,
    },
    /// Gives tokens of a quota back, whichever grant they came with.
    Release {
        /// The quota's name.
        quota: Arc<str>,
        /// The number of tokens.
        amount: i64,
    },
    /// Gives a tracked grant back, but for what is used of it.
    ReleaseGrant {
        /// The grant.
        grant: GrantId,
        /// The number of its tokens that are used, and stay granted; 0 for none.
        used: i64,
    },
    /// Puts the end of a hold off.
    ExtendGrant {
        /// The grant.
        grant: GrantId,
        /// How long it lasts from now on, in microseconds.
        micros: u64,
    },
    /// Creates a quota.
    Create {
        /// Its name.
        quota: Arc<str>,
        /// The number of its tokens.
        limit: i64,
        /// What else it is.
        charter: Charter,
    },
    /// Gives a quota another limit.
    SetLimit {
        /// Its name.
        quota: Arc<str>,
        /// The number of its tokens from now on.
        limit: i64,
    },
    /// Brings back what lost incarnations had of a quota.
    Reclaim {
        /// Its name.
        quota: Arc<str>,
        /// The newest lost incarnation of each site of which something may be left.
        lost: Vec<(SiteId, Incarnation)>,
        /// The number of tokens that they had granted and not taken back.
        in_use: i64,
    },
    /// Deletes a quota.
    Delete {
        /// Its name.
        quota: Arc<str>,
    },
    /// Changes what place a site has among the members of its lane.
    Seat {
        /// The site.
        site: SiteId,
        /// What becomes of its place.
        change: SeatChange,
        /// The name of its region, a space and its address, if it joins.
        label: Arc<str>,
    },
    /// Commits a transaction.
    Commit {
        /// The transaction.
        transaction: Arc<Transaction>,
        /// Its size in a batch, about, in bytes.
        bytes: usize,
    },
    /// Says that the objects of a site's lost storage are gone for good.
    AcceptLoss,
}

impl Command {
    /// Creates a quota of this limit that is nothing special.
    pub fn create(quota: impl Into<Arc<str>>, limit: i64) -> Self {
        Self::Create { quota: quota.into(), limit, charter: Charter::default() }
    }

    /// Commits a transaction.
    pub fn commit(transaction: Transaction) -> Self {
        let bytes = transaction.bytes();
        Command::Commit { transaction: Arc::new(transaction), bytes }
    }

    /// Returns its size in a batch, about, in bytes; all but transactions are small, and count for nothing.
    pub(crate) fn bytes(&self) -> usize {
        if let Command::Commit { bytes, .. } = self { *bytes } else { 0 }
    }

    /// The operation that sites are asked for.
    pub fn operation(&self) -> Operation {
        match self {
            Command::Acquire { quota, amount, hold, waits } => {
                let quota = String::from(&**quota);
                Operation::Acquire { quota, amount: *amount, hold: *hold, waits: *waits }
            }
            Command::Release { quota, amount } => Operation::Release { quota: String::from(&**quota), amount: *amount },
            Command::ReleaseGrant { grant, used } => Operation::ReleaseGrant { grant: *grant, used: *used },
            Command::ExtendGrant { grant, micros } => Operation::ExtendGrant { grant: *grant, micros: *micros },
            Command::Create { quota, limit, charter } => {
                Operation::Create { quota: String::from(&**quota), limit: *limit, charter: *charter }
            }
            Command::SetLimit { quota, limit } => Operation::SetLimit { quota: String::from(&**quota), limit: *limit },
            Command::Reclaim { quota, lost, in_use } => {
                let quota = String::from(&**quota);
                Operation::Reclaim { quota, lost: lost.clone(), in_use: *in_use }
            }
            Command::Delete { quota } => Operation::Delete { quota: String::from(&**quota) },
            Command::Commit { transaction, .. } => Operation::Commit(Box::new(Transaction::clone(transaction))),
            Command::Seat { site, change, label } => {
                Operation::Seat { site: *site, change: *change, label: String::from(&**label) }
            }
            Command::AcceptLoss => Operation::AcceptLoss,
        }
    }

    /// The quota that a refusal is about, if it is one above the quota that this asks for.
    pub(crate) fn level(&self, outcome: &Outcome) -> Option<String> {
        let (Command::Acquire { quota, .. }, Outcome::Refused(refusal)) = (self, outcome) else { return None };
        let (Refusal::Exhausted { level, .. } | Refusal::AboveLimit { level, .. }) = refusal else { return None };
        quota.get(..usize::from(*level)).filter(|above| !above.is_empty()).map(str::to_owned)
    }

    /// The release of what it was granted; none if it was granted nothing.
    pub(crate) fn undo(&self, outcome: &Outcome) -> Option<Command> {
        let (Command::Acquire { quota, amount, hold, .. }, Outcome::Granted { grant, .. }) = (self, outcome) else {
            return None;
        };
        Some(match hold {
            Hold::Counted => Command::Release { quota: quota.clone(), amount: *amount },
            Hold::Open | Hold::For(_) => Command::ReleaseGrant { grant: *grant, used: 0 },
        })
    }

    pub(crate) fn is_acquire(&self) -> bool {
        matches!(self, Command::Acquire { .. })
    }

    /// True if it may stay in line at its site for as long as its caller likes.
    pub(crate) fn stays(&self) -> bool {
        matches!(self, Command::Acquire { waits: true, .. })
    }

    pub(crate) fn is_release(&self) -> bool {
        matches!(self, Command::Release { .. } | Command::ReleaseGrant { .. })
    }
}

/// The treatment that a call asks for.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The time at which the caller wants to know.
    pub deadline: Time,
    /// True if only this site will do.
    pub pinned: bool,
    /// An acquire or a release that has left stays this long with a site that says nothing (rule 6); none: until its deadline.
    pub patience: Option<Duration>,
}

/// The end that a link gives a call for its caller.
#[derive(Debug)]
pub enum Reply {
    /// The site's answer.
    Answered(Outcome),
    /// It never left, or the site surely did not and will not carry it out: it may be issued elsewhere.
    NotTaken(NotTaken),
    /// Its deadline passed, and it may have been carried out.
    InDoubt,
    /// It is in doubt, and was left behind; issue it elsewhere.
    LeftBehind,
    /// It is a release that this client sees to, under this id.
    HandedOver(OperationId),
}

/// Why a call was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// The site cannot be reached.
    Unreachable,
    /// Too many calls wait here.
    Overloaded,
    /// The deadline passed before it could leave.
    DeadlinePassed,
    /// The client was closed.
    Closed,
    /// The site refused it, without a trace or permanently.
    Refused(Refusal),
}

/// A finished call.
#[derive(Debug)]
pub struct Finished {
    /// What its caller is told.
    pub reply: Reply,
    /// What was to be done.
    pub command: Command,
    /// The id that it had; none if it never left.
    pub id: Option<OperationId>,
    /// When it first left.
    pub sent_at: Option<Time>,
}

/// Names a call until its caller has taken the reply or gone away.
pub type CallKey = usize;

/// What is left when a client is closed.
#[derive(Clone, Debug)]
pub struct Unsettled {
    /// What was to be done.
    pub command: Command,
    /// None if it never left.
    pub id: Option<OperationId>,
    /// The outcome, if it is known: refused, or unknown for good.
    pub outcome: Option<Outcome>,
}
