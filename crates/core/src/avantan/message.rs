//! What sites say to each other in a round.

use super::state::Table;
use super::value::{Ballot, Line, Value};

/// The amount that a site sets aside for a round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scope {
    /// Nothing: the round only records new incarnations.
    Nothing,
    /// What it need not keep to go on serving.
    Spare,
    /// Everything.
    All,
    /// Everything, and nothing is granted until the outcome: the entity is to be deleted.
    Closing,
}

/// The messages of one entity's agreement.
///
/// | message | from → to | meaning |
/// | --- | --- | --- |
/// | `Election` | leader → all | report, and promise this ballot |
/// | `Report` | site → leader | the promise; what is set aside and wanted; what was accepted |
/// | `Accept` | leader → all | vote for the value |
/// | `Accepted` | site → leader | the vote |
/// | `Refuse` | site → sender | a higher ballot was promised: a hint |
/// | `Decided` | anyone who knows → anyone | the outcome; also the catch-up |
/// | `Withdraw` | leader → all | nothing was or will be built at this ballot |
/// | `Behind` | voter → leader | instances are missing here: send `Decided` |
///
/// Each may be lost, repeated and reordered; every handler is idempotent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message<A = i64> {
    /// Asks for a promise and a line.
    Election {
        /// The instance.
        instance: u64,
        /// The leader's ballot.
        ballot: Ballot,
        /// The amount to set aside.
        scope: Scope,
        /// Proves every instance before this one.
        table: Table<A>,
    },
    /// Answers an election.
    Report {
        /// The instance.
        instance: u64,
        /// The ballot that asked.
        ballot: Ballot,
        /// The answer.
        report: Report<A>,
    },
    /// Asks for a vote.
    Accept {
        /// The instance.
        instance: u64,
        /// The leader's ballot.
        ballot: Ballot,
        /// The value.
        value: Value<A>,
    },
    /// Votes.
    Accepted {
        /// The instance.
        instance: u64,
        /// The ballot voted for.
        ballot: Ballot,
    },
    /// A higher ballot was promised.
    Refuse {
        /// The instance.
        instance: u64,
        /// The ballot promised.
        promised: Ballot,
    },
    /// Every instance up to this one is decided.
    Decided {
        /// The newest of them.
        instance: u64,
        /// What they came to.
        table: Table<A>,
    },
    /// No value was or will be built at this ballot.
    Withdraw {
        /// The instance.
        instance: u64,
        /// The ballot.
        ballot: Ballot,
    },
    /// The sender has applied instances only up to this one.
    Behind {
        /// The newest that it has.
        applied: u64,
    },
}

/// One site's answer to an election.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Report<A = i64> {
    /// What it offers and wants.
    pub line: Line<A>,
    /// The value that it has accepted in this instance, with its ballot.
    pub accepted: Option<(Ballot, Value<A>)>,
    /// True if the report is a promise to take part in no lower ballot. A new incarnation that is not yet recorded reports
    /// without one.
    pub promises: bool,
}
