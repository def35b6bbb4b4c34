//! How a new incarnation may vote where no round can record it: in an entity that does not exist (yet, or any more), and in
//! one of which most sites are new.
//!
//! ```text
//!   new incarnation C2            each other site               C2 has applied k
//!     │─ does a vote of mine count? ─▶│
//!     │◀── I have applied k; no election of mine counts on a report of C1;
//!     │    in k+1 I have accepted (b, V),  │                    takes (b, V) over, and promises p,
//!     │    and have promised p;            │                    durably
//!     │    I know of these new incarnations│
//!     │   all have answered for k, knowing all that C2 knows: C2 may vote
//! ```
//!
//! Why that is safe: whoever builds a value accepts it itself before it asks for votes. So if a value of k+1 was decided, or
//! still can be, with a vote of C1, one of the others has accepted it, and says so; by Paxos nothing else was accepted at a
//! higher ballot. Whoever answers knows of C2, and drops what of C1 is still under way. A report to C1 that had left by then was to a
//! ballot that the answer says is promised, and C2's ballots are higher. Nor does a vote of C1 count in k+2
//! or later: to lead there a site must have applied k+1, and then its answer does not name k. In between, any other site may
//! have gone on: then it has accepted something since, which C2 learns as any site does that was away.
//!
//! Whoever built the value may have lost its disk too, or be gone, after others had answered. Then its word is lost, but what it sent may still be
//! on its way, and they might vote for it. So an answer counts only if its site knows every new incarnation that C2 knows, and who is gone: from
//! then on it takes nothing of those. Else C2 asks again. Of each new incarnation C2 knows by that one's own answer.

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
    /// The other sites that are not in their first incarnation, each with the newest that was known here when it was asked.
    reborn: Vec<(SiteId, Incarnation)>,
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
    /// The other sites that are not in their first incarnation, each with the newest that the site knows: it takes nothing any more of those
    /// before. Of one that is gone it takes nothing at all ([`Incarnation::GONE`]).
    pub reborn: Vec<(SiteId, Incarnation)>,
}

/// What an answer came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// It was not to this question, not of this instance, or of a site that does not know yet who else lost its disk.
    Nothing,
    /// Another site is known by now to have lost its disk, or to be gone: all are to be asked again.
    Outdated,
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
    /// The question to ask, and who has answered it already; a new one, named `token`, if none was asked, the instance is another, or
    /// another member is known to have lost its disk.
    pub fn question<A: Amount>(
        &mut self,
        avantan: &Avantan<A>,
        reborn: Vec<(SiteId, Incarnation)>,
        token: u64,
    ) -> (u64, SiteSet) {
        let applied = avantan.share.applied;
        if self.token == 0 || self.applied != applied || self.reborn != reborn {
            *self = Self { token, applied, reborn, answered: SiteSet::default() };
        }
        (self.token, self.answered)
    }

    /// Takes in what the member at position `from` says. What is known here of new incarnations includes its own, and what it tells.
    pub fn hear<A: Amount>(
        &mut self,
        avantan: &mut Avantan<A>,
        site: Membership,
        from: usize,
        answer: NoVote<A>,
        reborn: &[(SiteId, Incarnation)],
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

        // Another site has lost its disk since this was asked, and with it a value that it led, perhaps: whoever answered before may have
        // accepted that since, so that none of the answers counts.
        if self.reborn != reborn {
            return Heard::Outdated;
        }

        // Nor does that of a site that has not heard of all that were lost: a value of theirs may still be on its way to it. Of itself it
        // has nothing to hear.
        let speaker = site.members.get(from);
        let knows = |(member, newest): &(SiteId, Incarnation)| {
            let told = answer.reborn.iter().find(|told| told.0 == *member);
            speaker == Some(member) || told.is_some_and(|told| told.1 >= *newest)
        };
        if !reborn.iter().all(knows) {
            return Heard::Nothing;
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
    /// predecessor may count here. `reborn` is what [`NoVote`] has of it.
    pub fn no_vote(
        &self,
        member: SiteId,
        present: Incarnation,
        token: u64,
        reborn: Vec<(SiteId, Incarnation)>,
    ) -> Option<NoVote<A>> {
        // An election here that has the predecessor's report might still build a value on it. A new incarnation that promises its ballot,
        // below, is safe from that; one of an earlier version does not.
        if self.has_report_before(member, present) {
            return None;
        }

        let round = self.share.round.as_ref();
        let (accepted, promised) = (round.and_then(|round| round.accepted.clone()), round.map(|round| round.promised));
        Some(NoVote { token, applied: self.share.applied, accepted, promised, reborn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::avantan::{Charter, Intent, Message, Offer, Step};

    /// Five sites, of which one after the other loses its disk: first the one whose vote, with that of a third, decides a value, then the one that
    /// built it. That third gave its answer before it voted.
    #[test]
    fn answer_of_a_site_that_may_still_vote_for_the_value_of_a_lost_leader_does_not_count() {
        let members: Vec<SiteId> = (0..5).map(|region| SiteId::new(region, 0)).collect();
        let [leader, late, lost] = [0, 3, 2];
        let site = |at: usize, incarnation: u32| Membership::first(members[at], Incarnation(incarnation), &members);
        let mut sites: Vec<Avantan> = members.iter().map(|_| Avantan::default()).collect();
        let sent_to = |step: &Step, to: usize| {
            let mut sends = step.sends.iter().filter(|(site, _)| *site == members[to]);
            sends.next().expect("something was sent to it").1.clone()
        };
        let tell = |sites: &mut [Avantan], from: usize, to: usize, message: Message| {
            let mut step = Step::default();
            sites[to].handle(site(to, 1), members[from], message, |_| Offer::default(), &mut step);
            step
        };

        // The leader creates, and only the one that is lost next has voted when that happens.
        let mut step = Step::default();
        let intent = Intent::Create { limit: 10, charter: Charter::default() };
        sites[leader].start(site(leader, 1), intent, Offer::default(), &mut step);
        for at in [lost, late] {
            let report = sent_to(&tell(&mut sites, leader, at, sent_to(&step, at)), leader);
            tell(&mut sites, at, leader, report);
        }
        let mut step = Step::default();
        assert!(sites[leader].build(site(leader, 1), &mut step));
        let accept = sent_to(&step, late);
        let accepted = sent_to(&tell(&mut sites, leader, lost, accept.clone()), leader);
        assert!(!tell(&mut sites, lost, leader, accepted).adopted);

        // Its new incarnation asks, and all but the leader answer that nothing is accepted there.
        sites[lost] = Avantan::default();
        let mut clearance = Clearance::default();
        let (token, _) = clearance.question(&sites[lost], Vec::new(), 7);
        let answer = |sites: &[Avantan], at: usize, token: u64, reborn: &[(SiteId, Incarnation)]| {
            let answer = sites[at].no_vote(members[lost], Incarnation(2), token, reborn.to_vec());
            answer.expect("no election is led there")
        };
        for at in [1, late, 4] {
            let answer = answer(&sites, at, token, &[]);
            assert_eq!(answer.accepted, None);
            assert_eq!(clearance.hear(&mut sites[lost], site(lost, 2), at, answer, &[]), Heard::Counted);
        }

        // One of them votes now, which decides the value, and then the leader loses its disk: it knows nothing any more.
        let accepted = sent_to(&tell(&mut sites, leader, late, accept), leader);
        assert!(tell(&mut sites, late, leader, accepted).adopted);
        sites[leader] = Avantan::default();
        let reborn = [(members[leader], Incarnation(2))];
        let of_leader = answer(&sites, leader, token, &[]);
        let heard = clearance.hear(&mut sites[lost], site(lost, 2), leader, of_leader, &reborn);
        assert_eq!(heard, Heard::Outdated, "two values of one creation could be decided");

        // It asks again, and those do not count that have not heard of the leader's new incarnation.
        let (token, answered) = clearance.question(&sites[lost], reborn.to_vec(), 8);
        assert_eq!((token, answered), (8, SiteSet::default()));
        for at in [1, 4] {
            let unaware = answer(&sites, at, token, &[]);
            let heard = clearance.hear(&mut sites[lost], site(lost, 2), at, unaware, &reborn);
            assert_eq!(heard, Heard::Nothing, "it may still vote");
        }
        let mut heard = |at: usize, told: &[(SiteId, Incarnation)]| {
            let answer = answer(&sites, at, token, told);
            clearance.hear(&mut sites[lost], site(lost, 2), at, answer, &reborn)
        };
        assert_eq!([1, 4].map(|at| heard(at, &reborn)), [Heard::Counted; 2]);
        assert_eq!(heard(leader, &[]), Heard::Counted, "it knows itself");
        assert_eq!(heard(late, &reborn), Heard::Cleared);
        let round = sites[lost].share.round.as_ref().expect("it has taken over a value");
        assert!(round.accepted.is_some(), "it votes for what was decided");
    }
}
