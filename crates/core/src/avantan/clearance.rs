//! How a new incarnation may vote where no round can record it: in an entity that does not exist (yet, or any more), and in
//! one of which most sites are new.
//!
//! ```text
//!   new incarnation C2            each other site               C2 has applied k
//!     │─ does a vote of mine count? ─▶│
//!     │◀── I have applied k; no election of mine counts on a report of C1;
//!     │    in k+1 I have accepted (b, V),  │                    takes (b, V) over, and promises p,
//!     │    and have promised p ────────────│                    durably
//!     │   all have answered for k: C2 may vote
//! ```
//!
//! Why that is safe: whoever builds a value accepts it itself before it asks for votes. So if a value of k+1 was decided, or
//! still can be, with a vote of C1, one of the others has accepted it, and says so; by Paxos nothing else was accepted at a
//! higher ballot. Whoever answers knows of C2, and drops what of C1 is still under way. A report to C1 that had left by then was to a
//! ballot that the answer says is promised, and C2's ballots are higher. Nor does a vote of C1 count in k+2
//! or later: to lead there a site must have applied k+1, and then its answer does not name k. In between, any other site may
//! have gone on: then it has accepted something since, which C2 learns as any site does that was away.

use super::agreement::Avantan;
use super::amount::Amount;
use super::member::Membership;
use super::value::{Ballot, Value};
use crate::id::{Incarnation, SiteId, SiteSet};

/// What the others have said so far. Volatile: a restart asks again.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Clearance {
    /// The name of the question; 0 if none was asked.
    token: u64,
    /// The newest instance that was applied here when it was asked.
    applied: u64,
    /// The members that have answered it, by position.
    answered: SiteSet,
}

/// One site's answer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NoVote<A = i64> {
    /// The name of the question.
    pub token: u64,
    /// The newest instance applied at the site that answers.
    pub applied: u64,
    /// The value accepted there in the next instance, with its ballot.
    pub accepted: Option<(Ballot, Value<A>)>,
    /// The ballot promised there in the next instance; none if none was. Its leader may be a predecessor of the site that asks, and the
    /// report to it still on its way.
    pub promised: Option<Ballot>,
}

/// What an answer came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// It was not to this question, or not of this instance.
    Nothing,
    /// Instances are missing here.
    Behind,
    /// Instances are missing there: it cannot answer before it has them.
    Ahead,
    /// It counts, and others are missing. The share may have changed, and is to be persisted.
    Counted,
    /// All have answered: this incarnation may vote. The share has changed.
    Cleared,
}

impl Clearance {
    /// The question to ask, and who has answered it already; a new one, named `token`, if none was asked or the instance is
    /// another.
    pub fn question<A: Amount>(&mut self, avantan: &Avantan<A>, token: u64) -> (u64, SiteSet) {
        let applied = avantan.share.applied;
        if self.token == 0 || self.applied != applied {
            *self = Self { token, applied, answered: SiteSet::default() };
        }
        (self.token, self.answered)
    }

    /// Takes in what the member at position `from` says.
    pub fn hear<A: Amount>(
        &mut self,
        avantan: &mut Avantan<A>,
        site: Membership,
        from: usize,
        answer: NoVote<A>,
    ) -> Heard {
        // What was told to an earlier incarnation says nothing of that one's own votes, nor does an answer that was given for
        // another instance.
        let applied = avantan.share.applied;
        if avantan.may_vote(site) || answer.token != self.token || self.applied != applied {
            return Heard::Nothing;
        }
        if answer.applied != applied {
            return if answer.applied > applied { Heard::Behind } else { Heard::Ahead };
        }

        // At once, and durably: the site that told it may be the next to lose a disk.
        if let Some((ballot, value)) = answer.accepted {
            avantan.take_over(site, ballot, value);
        }

        // Nor is a ballot of a predecessor ever this incarnation's: what was reported to that one, and taken back since, would count here.
        if let Some(ballot) = answer.promised {
            avantan.promise(ballot);
        }

        // All others, not a majority: the one that is missing may be the only one left that accepted a value with a vote of the
        // predecessor.
        self.answered.insert(from);
        let is_present = |at: &usize| site.members.get(*at).is_some_and(|member| site.is_present(*member));
        if self.answered.positions().filter(is_present).count() + 1 < site.count() {
            return Heard::Counted;
        }
        avantan.share.fresh = site.incarnation;
        Heard::Cleared
    }
}

impl<A: Amount> Avantan<A> {
    /// The answer to the question of `member`, whose present incarnation is this one: nothing while a vote or a promise of a
    /// predecessor may count here.
    pub fn no_vote(&self, member: SiteId, present: Incarnation, token: u64) -> Option<NoVote<A>> {
        // An election here that has the predecessor's report might still build a value on it. A new incarnation that promises its ballot,
        // below, is safe from that; one of an earlier version does not.
        if self.has_report_before(member, present) {
            return None;
        }

        let round = self.share.round.as_ref();
        let (accepted, promised) = (round.and_then(|round| round.accepted.clone()), round.map(|round| round.promised));
        Some(NoVote { token, applied: self.share.applied, accepted, promised })
    }
}
