//! Names that this site does not know: it asks the others before it says that there is no such quota, because it may
//! have missed the creation. A creation was accepted by a majority, so a majority that neither knows the name nor has
//! accepted its creation settles it, if its votes are still what they were: a site that lost its disk may have lost one.

use smol_str::SmolStr;

use super::book::{Place, Quotas};
use super::lookup::{AT_ONCE, LOOKUPS, Lookup, Waiting, ask};
use super::one::{Dirty, Quota};
use crate::api::{Operation, Outcome, Refusal, is_name};
use crate::avantan::{Heard, Message, NoVote, Share};
use crate::id::{Incarnation, SiteSet};
use crate::machine::View;
use crate::peer::quota::QuotaMessage;
use crate::turn::{Here, Ticket, Turn};

impl Quotas {
    /// Lets an operation on an unknown name wait for what the others know.
    pub(super) fn unknown_name(
        &mut self,
        turn: &mut Turn,
        name: &str,
        ticket: Ticket,
        operation: &Operation,
        timeout: u64,
    ) -> Option<Outcome> {
        let refuse = |refusal| Some(Outcome::Refused(refusal));
        if !is_name(name) {
            return refuse(Refusal::InvalidName);
        }
        if let Operation::Acquire { amount, .. } | Operation::Release { amount, .. } = operation
            && *amount < 1
        {
            return refuse(Refusal::InvalidAmount);
        }
        if turn.here.site.count() == 1 && self.living(name).is_none() {
            return refuse(refusal_of(operation, name));
        }

        // Each name costs questions to all others, and strangers can make names up.
        let is_full = self.lookups.names.len() >= LOOKUPS && !self.lookups.names.contains_key(name);
        if is_full || !turn.out.admit() {
            return refuse(Refusal::Overloaded);
        }

        // A question that is out already says nothing of a creation that this operation's sender may know of: it is asked again
        // for those that came later.
        let name: SmolStr = name.into();
        let deadline = turn.here.now.mono.saturating_add(timeout);
        let is_known = self.living(&name).is_some();
        let lookup = self.lookups.names.entry(name.clone()).or_insert_with(Lookup::new);
        let arrival = lookup.next_arrival;
        lookup.next_arrival += 1;
        lookup.waiting.insert(arrival, Waiting { ticket, operation: operation.clone(), deadline });
        lookup.by_deadline.insert((deadline, arrival));
        if lookup.waiting.len() == 1 {
            lookup.ask(turn, &name, is_known);
        }
        self.lookups.settle(&name);
        self.waits.places.insert(ticket, Place::Name { name, arrival });
        None
    }

    /// Another site does not know the name either.
    pub(super) fn not_known(&mut self, turn: &mut Turn, from: usize, name: &str, token: u64) {
        if self.may_be_created(name) {
            return;
        }
        let Some(lookup) = self.lookups.names.get_mut(name).filter(|lookup| lookup.token == token) else { return };
        lookup.not_known.insert(from);
        if let Some(at) = self.living(name) {
            // Here it may be gone. Whoever has heard of its end tells that, at rest as well.
            let applied = self.list[at].avantan.share.applied;
            turn.out.send(turn.here.peers[from].site, QuotaMessage::agreement(name, Message::Behind { applied }));
        }

        self.refuse_unknown(turn, name);
    }

    /// Refuses what waits for a name once it is settled that there was no such quota when this was asked. Returns false if it is not yet.
    fn refuse_unknown(&mut self, turn: &mut Turn, name: &str) -> bool {
        let name: SmolStr = name.into();
        let is_known = self.living(&name).is_some();
        let Some(lookup) = self.lookups.names.get_mut(&name) else { return true };

        // A creation was accepted by a majority, one of which would be among these.
        if !is_settled(&turn.here, lookup.not_known, is_known) {
            return false;
        }

        // The others came after the question.
        let answered: Vec<u64> = lookup.waiting.range(..lookup.asked_for).map(|(arrival, _)| *arrival).collect();
        let answered: Vec<Waiting> = answered.into_iter().filter_map(|arrival| lookup.remove(arrival)).collect();
        if !lookup.waiting.is_empty() {
            lookup.ask(turn, &name, is_known);
        }
        self.lookups.settle(&name);
        for waiting in answered {
            let refusal = refusal_of(&waiting.operation, &name);
            self.finish(turn, waiting.ticket, Outcome::Refused(refusal));
        }

        true
    }

    /// Returns true if this site has accepted a value for a quota that it does not know to exist.
    fn may_be_created(&self, name: &str) -> bool {
        let quota = self.find(name).filter(|quota| quota.limit().is_none());
        let round = quota.and_then(|quota| quota.avantan.share.round.as_ref());
        round.is_some_and(|round| round.accepted.is_some())
    }

    /// Answers another site's question about a name.
    pub(super) fn look_up(&self, turn: &mut Turn, from: usize, name: String, token: u64) {
        // A new incarnation that asks may vote once all others have answered so.
        let to = turn.here.peers[from].site;
        if let Some(answer) = self.no_vote_of(&turn.here, &name, from, token) {
            turn.out.send(to, QuotaMessage::NoVote { quota: name.clone(), answer: Box::new(answer) });
        }

        let message = match self.find(&name).filter(|quota| quota.limit().is_some()) {
            Some(quota) => {
                let share = &quota.avantan.share;
                let message = Message::Decided { instance: share.applied, table: share.table.clone() };
                QuotaMessage::agreement(name, message)
            }
            // Its creation may be decided already: whoever decided it will tell.
            None if self.may_be_created(&name) => return,
            None => QuotaMessage::NotKnown { token, quota: name },
        };
        turn.out.send(to, message);
    }

    /// Asks the others whether a vote or promise of a predecessor may count in the next instance. If none may, this
    /// incarnation may vote in it. Where a round can record it, that needs fewer to answer.
    pub(super) fn ask_whether_it_may_vote(&mut self, turn: &mut Turn, at: usize) {
        let quota = &self.list[at];
        if quota.avantan.may_vote(turn.here.site) {
            return;
        }

        // Where nobody else is left, nobody has a vote of a predecessor that could count: who left had recorded this incarnation, or never knew
        // of what is asked about.
        if turn.here.site.count() == 1 {
            self.list[at].avantan.share.fresh = turn.here.site.incarnation;
            return self.touch(at, Dirty::All);
        }

        let (name, token) = (quota.name.clone(), turn.out.rng.draw());
        let (avantan, activity) = self.parts(&turn.here, at);
        let (token, answered) = activity.leader.clearance.question(avantan, turn.here.reborn(), token);

        // Whoever told of a value may know by now what became of it.
        let answered = if avantan.in_round() { SiteSet::default() } else { answered };
        ask(turn, &name, token, answered);
    }

    /// Another site counts no vote of a predecessor, see [`crate::avantan::Clearance`].
    pub(super) fn no_vote(&mut self, turn: &mut Turn, from: usize, name: &str, answer: NoVote) {
        let Some(at) = self.position(name).filter(|_| !self.is_frozen(name)) else { return };
        let Quota { avantan, activity: Some(activity), .. } = &mut self.list[at] else { return };
        match activity.leader.clearance.hear(avantan, turn.here.site, from, answer, &turn.here.reborn()) {
            Heard::Nothing => return,
            Heard::Outdated => return self.ask_whether_it_may_vote(turn, at),
            Heard::Behind => {
                let message = Message::Behind { applied: avantan.share.applied };
                return turn.out.send(turn.here.peers[from].site, QuotaMessage::agreement(name, message));
            }
            Heard::Ahead => {
                // It may have lost its disk too, and have missed that it was told of an entity that is gone.
                let Share { applied, table, .. } = &avantan.share;
                let message = Message::Decided { instance: *applied, table: table.clone() };
                return turn.out.send(turn.here.peers[from].site, QuotaMessage::agreement(name, message));
            }
            Heard::Counted | Heard::Cleared if avantan.in_round() => {
                activity.leader.take_over(super::rounds::moment(&turn.here), turn.out.rng);
            }
            Heard::Counted | Heard::Cleared => {}
        }

        // What was taken over, and that this incarnation may vote, is durable before anything is sent that rests on it.
        self.touch(at, Dirty::All);
        self.note_seats(&turn.here, at);
        if self.list[at].avantan.may_vote(turn.here.site) && self.list[at].limit().is_some() {
            // The others cannot tell that this site may vote now.
            self.record_soon(turn, at);
        }

        self.schedule(at);
    }

    /// The answer to a member that has had predecessors, if no vote of theirs counts here.
    fn no_vote_of(&self, here: &Here, name: &str, member: usize, token: u64) -> Option<NoVote> {
        // The newest that this site knows of, even if that has not joined yet: the predecessors are gone in any case.
        let peer = &here.peers[member];
        let present = peer.incarnation.max(peer.noted.0);
        match self.find(name) {
            _ if present <= Incarnation(1) => None,
            // It may be forgotten already, and the vote of a site that has agreed to that must not count any more.
            _ if self.is_frozen(name) => None,
            Some(quota) => quota.avantan.no_vote(peer.site, present, token, here.reborn()),
            None => Some(NoVote { token, reborn: here.reborn(), ..NoVote::default() }),
        }
    }

    /// The quota exists now: carries out what waited for its name.
    pub(super) fn answer_lookup(&mut self, turn: &mut Turn, at: usize) {
        let name = self.list[at].name.clone();
        if self.list[at].limit().is_none() {
            // It was known here, and may have been gone. Now this site does not know it either, nor do those any more who still knew it when they
            // were asked.
            let is_settled = self.may_be_created(&name) || self.refuse_unknown(turn, &name);
            if let Some(lookup) = self.lookups.names.get_mut(&name).filter(|_| !is_settled) {
                lookup.repeat(turn, &name, false);
                self.lookups.settle(&name);
            }
            return;
        }

        // As if they came now, in the order in which they did.
        let Some(lookup) = self.lookups.names.remove(&name) else { return };
        self.lookups.due.remove(&(lookup.due, name));
        for Waiting { ticket, operation, deadline } in lookup.waiting.into_values() {
            let timeout = deadline.saturating_sub(turn.here.now.mono);

            // It gives up its place in this turn, and may need another.
            self.waits.places.remove(&ticket);
            turn.out.waiting -= 1;
            if let Some(outcome) = self.carry_out(turn, &View::empty(), ticket, &operation, timeout) {
                turn.out.finished.push((ticket, outcome));
            }
        }
    }

    /// Ends the lookups whose time is over, and repeats the questions of others.
    pub(super) fn expire_lookups(&mut self, turn: &mut Turn) {
        let now = turn.here.now.mono;
        let due = self.lookups.due.iter().take_while(|(at, _)| *at <= now);
        let due: Vec<SmolStr> = due.take(AT_ONCE).map(|(_, name)| name.clone()).collect();
        for name in due {
            let is_known = self.living(&name).is_some();
            let lookup = self.lookups.names.get_mut(&name).expect("what is due is looked up");

            // The refusal names those that did not answer: they may know the quota.
            let mut missing = SiteSet::default();
            let answered = lookup.not_known;
            (0..turn.here.peers.len())
                .filter(|&peer| peer != turn.here.position && !turn.here.peers[peer].gone && !answered.contains(peer))
                .for_each(|peer| missing.insert(peer));

            let over: Vec<u64> = lookup.by_deadline.range(..=(now, u64::MAX)).map(|(_, arrival)| *arrival).collect();
            let over: Vec<Waiting> = over.into_iter().filter_map(|arrival| lookup.remove(arrival)).collect();
            if !lookup.waiting.is_empty() && lookup.retry_at <= now {
                lookup.repeat(turn, &name, is_known);
            }
            self.lookups.settle(&name);
            for waiting in over {
                self.finish(turn, waiting.ticket, Outcome::Refused(Refusal::Unreachable { missing }));
            }
        }
    }
}

/// The refusal of an operation that needs a quota of this name, its own or one above it, which does not exist.
fn refusal_of(operation: &Operation, name: &str) -> Refusal {
    match operation {
        Operation::Acquire { quota, .. } | Operation::Release { quota, .. } | Operation::Create { quota, .. }
            if quota != name =>
        {
            Refusal::NoParent
        }
        _ => Refusal::UnknownQuota,
    }
}

/// Returns true if no quota can exist of which these do not know: a majority that never lost a vote, or all. This site is one of them unless the
/// quota `is_known` here, and may be gone.
fn is_settled(here: &Here, not_known: SiteSet, is_known: bool) -> bool {
    let present = || not_known.positions().filter(|&peer| !here.peers[peer].gone);
    let answered = present().count() + usize::from(!is_known);
    let never_lost = present().filter(|&peer| here.peers[peer].incarnation == Incarnation(1)).count();
    let own = usize::from(here.site.incarnation == Incarnation(1) && !is_known);
    never_lost + own >= here.site.majority() || answered >= here.site.count()
}
