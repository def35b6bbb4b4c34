//! What sites say to each other in a round, and the value that they agree on.

use super::Report;
use super::state::{Ballot, Table};
use crate::id::{Incarnation, SiteId};

/// How much a site sets aside for a round.
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
pub enum Message {
    /// Asks for a promise and a line.
    Election {
        /// The instance.
        instance: u64,
        /// The leader's ballot.
        ballot: Ballot,
        /// How much to set aside.
        scope: Scope,
        /// Proves every instance before this one.
        table: Table,
    },
    /// Answers an election.
    Report {
        /// The instance.
        instance: u64,
        /// The ballot that asked.
        ballot: Ballot,
        /// The answer.
        report: Report,
    },
    /// Asks for a vote.
    Accept {
        /// The instance.
        instance: u64,
        /// The leader's ballot.
        ballot: Ballot,
        /// The value.
        value: Value,
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
        table: Table,
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

/// What a site reports to a round.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Line {
    /// Whose line it is.
    pub site: SiteId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its share number.
    pub share: u64,
    /// Tokens set aside for the round.
    pub held: i64,
    /// Tokens that it has besides and goes on serving from; what it had at the time of the report.
    pub kept: i64,
    /// What it has given less what it has received, modulo 2⁶⁴: over all sites it adds up to what is under way.
    pub away: i64,
    /// Whether it grants nothing until the outcome.
    pub closing: bool,
    /// Tokens that waiting requests need.
    pub needed: i64,
    /// The level it wants to hold afterwards, `needed` included.
    pub wanted: i64,
}

/// One site's part of a value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Row {
    /// Whose row it is.
    pub site: SiteId,
    /// The incarnation that reported.
    pub incarnation: Incarnation,
    /// The share number to which it applies.
    pub share: u64,
    /// What was set aside.
    pub before: i64,
    /// What is put in its place.
    pub after: i64,
    /// What was kept out of the round, as reported: only for others to know of, like the next.
    pub kept: i64,
    /// What was given less what was received, modulo 2⁶⁴.
    pub away: i64,
}

/// What a round does to the entity itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lifecycle {
    /// Nothing: tokens move.
    Keep,
    /// It comes into being with this limit, as a new generation.
    Create {
        /// How many tokens there are.
        limit: i64,
    },
    /// It ceases to be, and its tokens with it.
    Delete,
}

/// What an instance decides.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Value {
    /// What happens to the entity.
    pub lifecycle: Lifecycle,
    /// What happens to the shares, in ascending order of sites.
    pub rows: Vec<Row>,
}

impl Value {
    /// Whether the value may follow `table`: rows are of members, in order, with the share numbers that the table
    /// implies; no amount is negative; the rows add up.
    pub fn fits(&self, table: &Table, members: &[SiteId]) -> bool {
        let in_order = self.rows.windows(2).all(|pair| pair[0].site < pair[1].site);
        let sound = self.rows.iter().all(|row| {
            let expected = match table.settled(row.site) {
                Some(last) if last.row.incarnation == row.incarnation => row.share == last.row.share + 1,
                // A new incarnation starts with nothing; its predecessor's tokens count as spent.
                Some(last) => row.incarnation > last.row.incarnation && row.share == 0 && row.before == 0,
                // No round has named it yet; gifts it may have.
                None => row.share == 0 && (row.before == 0 || row.incarnation == Incarnation(1)),
            };
            expected && row.before >= 0 && row.after >= 0 && row.kept >= 0 && members.contains(&row.site)
        });
        let before: i128 = self.rows.iter().map(|row| i128::from(row.before)).sum();
        let after: i128 = self.rows.iter().map(|row| i128::from(row.after)).sum();
        let adds_up = match self.lifecycle {
            Lifecycle::Keep => table.limit.is_some() && before == after,
            Lifecycle::Create { limit } => {
                table.limit.is_none() && limit > 0 && before == 0 && after == i128::from(limit)
            }
            Lifecycle::Delete => table.limit.is_some() && after == 0 && self.rows.len() == members.len(),
        };
        in_order && sound && adds_up && !self.rows.is_empty()
    }
}
