//! What sites say to each other of quotas.

use crate::api::Work;
use crate::avantan::{self, Agreement, NoVote, subset};
use crate::id::{Incarnation, SiteId};

/// A message of one site's quotas to another's.
///
/// | message | from → to | meaning |
/// | --- | --- | --- |
/// | `Avantan` | see [`avantan::Message`] | one quota's agreement |
/// | `Subset` | see [`subset::Message`] | one quota's rounds among subsets |
/// | `Digests` | all → all | what a site has and wants of quotas; running totals of gifts |
/// | `Lookup`, `NotKnown` | site ↔ all | does this quota exist? (A positive answer is `Avantan(Decided)`.) |
/// | `NoVote` | site → new incarnation | no vote of your predecessor counts here, except perhaps for this value |
/// | `Forget` | see [`Forget`] | names of deleted quotas go |
/// | `Count`, `Counted` | site ↔ all | a quota's tally, for `quota show` |
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QuotaMessage {
    /// A quota's agreement.
    Avantan {
        /// The quota's name.
        quota: String,
        /// The message.
        message: Box<avantan::Message>,
    },
    /// A quota's rounds among subsets.
    Subset {
        /// The quota's name.
        quota: String,
        /// The message.
        message: Box<subset::Message>,
    },
    /// What the sender has and wants of quotas, and the gifts between the two; at most [`DIGESTS`] of them.
    Digests(Vec<Digest>),
    /// Does this quota exist?
    Lookup {
        /// Repeated in the answers.
        token: u64,
        /// The quota's name.
        quota: String,
    },
    /// No instance of this quota is decided here.
    NotKnown {
        /// As asked.
        token: u64,
        /// The quota's name.
        quota: String,
    },
    /// No vote of the receiver's predecessors counts here in the next instance of this quota, now or later.
    NoVote {
        /// The quota's name.
        quota: String,
        /// The answer.
        answer: Box<NoVote>,
    },
    /// Names of deleted quotas go.
    Forget(Box<Forget>),
    /// Asks for a tally.
    Count {
        /// Repeated in the answer.
        token: u64,
        /// The quota's name.
        quota: String,
    },
    /// Answers `Count`.
    Counted {
        /// As asked.
        token: u64,
        /// The tally, if the quota exists here.
        tally: Option<Box<Tally>>,
    },
}

impl QuotaMessage {
    /// A message of this quota's agreement.
    pub fn agreement(quota: impl Into<String>, message: avantan::Message) -> Self {
        Self::Avantan { quota: quota.into(), message: Box::new(message) }
    }

    /// The name of the quota that it is about, where it is about one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Avantan { quota, .. }
            | Self::Subset { quota, .. }
            | Self::Lookup { quota, .. }
            | Self::NotKnown { quota, .. }
            | Self::NoVote { quota, .. }
            | Self::Count { quota, .. } => Some(quota),
            Self::Digests(_) | Self::Forget(_) | Self::Counted { .. } => None,
        }
    }
}

impl From<Forget> for QuotaMessage {
    fn from(message: Forget) -> Self {
        Self::Forget(Box::new(message))
    }
}

/// What the sender of a digest has yet to refill of a quota, and the totals of what the two have handed over to each other of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backlog {
    /// What was granted at the sender, or handed over to it, and is not refilled yet.
    pub here: i64,
    /// Everything that the sender has handed over to the receiver so far.
    pub given: u128,
    /// The receiver's incarnation that `given` is for.
    pub given_to: Incarnation,
    /// Everything that the receiver has handed over to the sender so far.
    pub received: u128,
    /// The receiver's incarnation that `received` is from.
    pub received_from: Incarnation,
}

/// The most names of one proposal: so many are forgotten in one step.
pub const NAMES: usize = 256;

/// The messages by which all sites forget names of deleted quotas together, see `docs/src/protocols/avantan.md`.
///
/// | message | from → to | meaning |
/// | --- | --- | --- |
/// | `Propose` | leader → all | freeze those of these names that nothing needs |
/// | `Agree` | site → leader | these are frozen here |
/// | `Cancel` | leader → all | the proposal came to nothing: thaw |
/// | `Forgotten` | anyone who knows → anyone | the outcome: drop these, and enter this epoch |
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Forget {
    /// Asks a site to freeze names.
    Propose {
        /// The number of the proposal; the leader's next has a higher one, also after a restart.
        number: u64,
        /// The incarnations of all members that the leader knows of, by position. Only a site that knows of the same agrees.
        view: Vec<Incarnation>,
        /// The names, in ascending order; at most [`NAMES`].
        names: Vec<String>,
    },
    /// Answers a proposal.
    Agree {
        /// As asked.
        number: u64,
        /// The incarnation of the leader that asked.
        incarnation: Incarnation,
        /// Those of the names that are frozen.
        names: Vec<String>,
    },
    /// The proposal is given up.
    Cancel {
        /// The number of the proposal.
        number: u64,
    },
    /// What was decided.
    Forgotten(Forgotten),
}

/// What all sites forgot last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forgotten {
    /// The number of times that names have been forgotten; zero for never.
    pub epoch: u64,
    /// The names, in ascending order.
    pub names: Vec<String>,
}

/// The most digests in one message.
pub const DIGESTS: usize = 512;

/// What a site has and wants of one quota, as it tells another, and the running totals of gifts between the two, which
/// [`crate::gift`] is about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Digest {
    /// The quota's name.
    pub quota: String,
    /// Its generation.
    pub generation: u32,
    /// The newest instance that the sender has applied.
    pub applied: u64,
    /// Tokens free at the sender.
    pub free: i64,
    /// Tokens that requests wait for at the sender, beyond what is free.
    pub short: i64,
    /// Those of them that the first lacks who stays in line until its time is up; zero if none does.
    pub first: i64,
    /// The demand that the sender reckons with, in tokens a second.
    pub rate: u64,
    /// Everything that the sender has given to the receiver so far.
    pub given: u128,
    /// The receiver's incarnation that `given` is for.
    pub given_to: Incarnation,
    /// Everything that the sender has received from the receiver so far.
    pub received: u128,
    /// The receiver's incarnation that `received` is from.
    pub received_from: Incarnation,
    /// What is to be refilled at the sender; none if the quota does not refill.
    pub backlog: Option<Backlog>,
}

/// One site's count of one quota.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// The site.
    pub site: SiteId,
    /// The quota's generation.
    pub generation: u32,
    /// The limit, zero if the quota is deleted; and the number of tokens that are out beyond it.
    pub limit: (i64, i64),
    /// How the quota's tokens move.
    pub agreement: Agreement,
    /// The rounds that the site knows of.
    pub rounds: Rounds,
    /// Tokens at the site, those set aside included.
    pub tokens: i64,
    /// Tokens set aside for a round; at most `tokens`.
    pub held: i64,
    /// All tokens ever granted at the site, in this generation and incarnation.
    pub acquired: u128,
    /// All tokens ever taken back at the site, in this generation and incarnation.
    pub released: u128,
    /// The running total given to each member, by position, with the member's incarnation that it belongs to.
    pub given: Vec<(Incarnation, u128)>,
    /// The running total received from each member, by position, with the member's incarnation that it belongs to.
    pub received: Vec<(Incarnation, u128)>,
    /// What the site has done for the quota; it says nothing of where tokens are.
    pub work: Work,
}

/// The rounds about a quota that a site knows of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rounds {
    /// The newest instance that the site has applied.
    pub applied: u64,
    /// True if the site has a part in a round that is not decided.
    pub is_open: bool,
    /// The digest of the last round among a subset that was applied with each member in its present incarnation, by position; zero for
    /// none.
    pub subset: Vec<u64>,
}
