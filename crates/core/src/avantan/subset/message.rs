//! What sites say to each other in a round among a subset.

use super::super::value::{Line, Row};
use crate::id::{Incarnation, SiteId};

/// The name of a round among a subset. No two rounds of an entity have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Key {
    /// The generation of the entity.
    pub generation: u32,
    /// The site that leads it.
    pub leader: SiteId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Counts the rounds that this incarnation has led of the entity, of all generations.
    pub sequence: u64,
}

impl Key {
    /// A number for the round that no other round of the entity is likely to have; not zero.
    pub fn digest(self) -> u64 {
        let place = u64::from(self.leader.region) << 16 | u64::from(self.leader.lane);
        let parts = [u64::from(self.generation), place, u64::from(self.incarnation.0), self.sequence];
        let mix = |digest: u64, part: u64| (digest ^ part).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        parts.into_iter().fold(0xcbf2_9ce4_8422_2325, mix).max(1)
    }
}

/// The messages of one entity's rounds among subsets. The sender's incarnation travels with each, in the envelope.
///
/// | message | from → to | meaning | durable before it is sent |
/// | --- | --- | --- | --- |
/// | `Election` | leader → all that are up | report, and join | own join |
/// | `Report` | site → leader | joined; what is set aside and wanted | the join |
/// | `Busy` | site → leader | in another round, or may join none now | |
/// | `Accept` | leader, or a member that recovers → members | vote for the value; who of them is known to be dead | own vote |
/// | `Accepted` | member → sender | the vote. With `dead`: no outcome is known here, and nothing of these will ever count here | the vote, and that they are dead |
/// | `Refuse` | site → sender | out of this round, and never voted for it | out |
/// | `Lost` | site → sender | a newer incarnation than the value names | |
/// | `Decided` | a member that knows → members, late reporters | the outcome | the outcome |
/// | `Withdraw` | leader → reporters | no value with what was reported was sent, or will be | the withdrawal |
///
/// Each may be lost, repeated and reordered; every handler is idempotent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message<A = i64> {
    /// Asks for a line.
    Election {
        /// The round.
        key: Key,
        /// True if nothing is to be kept out of the offer: a round where something was has not met what requests wait for.
        gathers: bool,
    },
    /// Answers an election.
    Report {
        /// The round.
        key: Key,
        /// What is set aside and wanted.
        line: Line<A>,
    },
    /// Does not join.
    Busy {
        /// The round.
        key: Key,
    },
    /// Asks for a vote.
    Accept {
        /// The round.
        key: Key,
        /// The value: a row for each member.
        rows: Vec<Row<A>>,
        /// The members whose incarnation in the value is known to be dead, each with the newest that is known.
        dead: Vec<(SiteId, Incarnation)>,
    },
    /// Votes.
    Accepted {
        /// The round.
        key: Key,
        /// The members whose incarnation in the value is known to be dead here, each with the newest that is known.
        dead: Vec<(SiteId, Incarnation)>,
    },
    /// Is out, without a vote or after an abort.
    Refuse {
        /// The round.
        key: Key,
    },
    /// Knows nothing of this round, having lost its disk since.
    Lost {
        /// The round.
        key: Key,
    },
    /// The round is decided.
    Decided {
        /// The round.
        key: Key,
        /// True if each member takes only what is worse for it; see [`super`].
        worse: bool,
    },
    /// The leader builds no value with what the receiver has reported.
    Withdraw {
        /// The round.
        key: Key,
    },
}

impl<A> Message<A> {
    /// The incarnations of other sites than the sender that it tells of.
    pub fn tells_of(&self) -> &[(SiteId, Incarnation)] {
        match self {
            Message::Accept { dead, .. } | Message::Accepted { dead, .. } => dead,
            _ => &[],
        }
    }

    /// The round that it is about.
    pub fn key(&self) -> Key {
        match self {
            Message::Election { key, .. }
            | Message::Report { key, .. }
            | Message::Busy { key }
            | Message::Accept { key, .. }
            | Message::Accepted { key, .. }
            | Message::Refuse { key }
            | Message::Lost { key }
            | Message::Decided { key, .. }
            | Message::Withdraw { key } => *key,
        }
    }
}
