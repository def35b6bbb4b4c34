//! Names that this site does not know: it asks the others before it says that there is no such quota, because it may
//! have missed the creation. A creation was accepted by a majority, so a majority that neither knows the name nor has
//! accepted its creation settles it, if its votes are still what they were: a site that lost its disk may have lost one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Dirty, NEVER, Place, Quota, Quotas};
use crate::api::{Operation, Outcome, Refusal, SiteSet, is_name};
use crate::avantan::{Heard, Message, NoVote, Share};
use crate::clock::{MILLISECOND, SECOND};
use crate::id::Incarnation;
use crate::machine::View;
use crate::peer::Body;
use crate::turn::{Ticket, Turn};

/// The most names that are looked up at a time: each of them costs questions to the others, again and again.
const LOOKUPS: usize = 1024;
/// The most names that one tick looks after; the rest are still due afterwards.
const AT_ONCE: usize = 8;

/// The names that are being looked up.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    names: FxHashMap<Arc<str>, Lookup>,
    /// When to look at each of them again.
    due: BTreeSet<(u64, Arc<str>)>,
}

/// A name that is being looked up.
#[derive(Debug)]
struct Lookup {
    /// What waits, numbered in the order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    by_deadline: BTreeSet<(u64, u64)>,
    next_arrival: u64,
    /// Names the question that is out.
    token: u64,
    /// Operations that arrived before this one arrived before that question was asked. Its answers say nothing of a creation
    /// that the sender of a later operation may know of.
    asked_for: u64,
    /// Who has answered it, and does not know the name.
    not_known: SiteSet,
    retry_at: u64,
    /// The entry in [`Lookups::due`].
    due: u64,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    operation: Operation,
    deadline: u64,
}

impl Lookup {
    fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            by_deadline: BTreeSet::new(),
            next_arrival: 0,
            token: 0,
            asked_for: 0,
            not_known: SiteSet::default(),
            retry_at: 0,
            due: NEVER,
        }
    }

    /// Asks all others, on behalf of all that wait.
    fn ask(&mut self, turn: &mut Turn, name: &str) {
        self.token = turn.rng.draw();
        self.not_known = SiteSet::default();
        self.asked_for = self.next_arrival;
        self.repeat(turn, name);
    }

    /// Asks those who have not answered yet.
    fn repeat(&mut self, turn: &mut Turn, name: &str) {
        self.retry_at = turn.now.mono + 2 * turn.longest_round_trip() + 20 * MILLISECOND;
        ask(turn, name, self.token, self.not_known);
    }

    fn remove(&mut self, arrival: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&arrival)?;
        self.by_deadline.remove(&(waiting.deadline, arrival));
        Some(waiting)
    }
}

impl Lookups {
    /// When something is next to be done.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes out one that waits for a name.
    pub(super) fn withdraw(&mut self, name: &Arc<str>, arrival: u64) -> bool {
        let found = self.names.get_mut(name).and_then(|lookup| lookup.remove(arrival));
        self.settle(name);
        found.is_some()
    }

    /// Notes when to look at a name again; one that nothing waits for is forgotten.
    fn settle(&mut self, name: &Arc<str>) {
        let Some(lookup) = self.names.get_mut(name) else { return };
        let first = lookup.by_deadline.first().map(|(deadline, _)| *deadline);
        let due = first.map(|deadline| deadline.min(lookup.retry_at));
        if due != Some(lookup.due) {
            self.due.remove(&(lookup.due, name.clone()));
        }
        match due {
            None => drop(self.names.remove(name)),
            Some(due) if due != lookup.due => {
                lookup.due = due;
                self.due.insert((due, name.clone()));
            }
            Some(_) => {}
        }
    }
}

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
        if turn.peers.len() == 1 {
            return refuse(Refusal::UnknownQuota);
        }
        let is_full = self.lookups.names.len() >= LOOKUPS && !self.lookups.names.contains_key(name);
        if is_full || !turn.admit() {
            return refuse(Refusal::Overloaded);
        }
        let name: Arc<str> = name.into();
        let deadline = turn.now.mono.saturating_add(timeout);
        let lookup = self.lookups.names.entry(name.clone()).or_insert_with(Lookup::new);
        let arrival = lookup.next_arrival;
        lookup.next_arrival += 1;
        lookup.waiting.insert(arrival, Waiting { ticket, operation: operation.clone(), deadline });
        lookup.by_deadline.insert((deadline, arrival));
        if lookup.waiting.len() == 1 {
            lookup.ask(turn, &name);
        }
        self.lookups.settle(&name);
        self.places.insert(ticket, Place::Name { name, arrival });
        None
    }

    /// Another site does not know the name either.
    pub fn not_known(&mut self, turn: &mut Turn, from: usize, name: &str, token: u64) {
        if self.may_be_created(name) {
            return;
        }
        let name: Arc<str> = name.into();
        let Some(lookup) = self.lookups.names.get_mut(&name).filter(|lookup| lookup.token == token) else { return };
        lookup.not_known.insert(from);
        if !is_settled(turn, lookup.not_known) {
            return;
        }
        let answered: Vec<u64> = lookup.waiting.range(..lookup.asked_for).map(|(arrival, _)| *arrival).collect();
        let answered: Vec<Waiting> = answered.into_iter().filter_map(|arrival| lookup.remove(arrival)).collect();
        if !lookup.waiting.is_empty() {
            lookup.ask(turn, &name);
        }
        self.lookups.settle(&name);
        for waiting in answered {
            self.finish(turn, waiting.ticket, Outcome::Refused(Refusal::UnknownQuota));
        }
    }

    /// Whether this site has accepted a value for a quota that it does not know to exist.
    fn may_be_created(&self, name: &str) -> bool {
        let quota = self.find(name).filter(|quota| quota.limit().is_none());
        let round = quota.and_then(|quota| quota.avantan.share.round.as_ref());
        round.is_some_and(|round| round.accepted.is_some())
    }

    /// Answers another site's question about a name.
    pub fn look_up(&self, turn: &mut Turn, from: usize, name: String, token: u64) {
        let to = turn.peers[from].site;
        if let Some(answer) = self.no_vote_of(turn, &name, from, token) {
            turn.sends.push((to, Body::NoVote { quota: name.clone(), answer: Box::new(answer) }));
        }
        let body = match self.find(&name).filter(|quota| quota.limit().is_some()) {
            Some(quota) => {
                let share = &quota.avantan.share;
                let message = Message::Decided { instance: share.applied, table: share.table.clone() };
                Body::Avantan { quota: name, message: Box::new(message) }
            }
            // Its creation may be decided already: whoever decided it will tell.
            None if self.may_be_created(&name) => return,
            None => Body::NotKnown { token, quota: name },
        };
        turn.sends.push((to, body));
    }

    /// Asks the others whether a vote or promise of a predecessor may count in the next instance. If none may, this
    /// incarnation may vote in it. Where a round can record it, that needs fewer to answer.
    pub(super) fn ask_whether_it_may_vote(&mut self, turn: &mut Turn, at: usize) {
        let quota = &mut self.list[at];
        if quota.avantan.may_vote(turn.site) {
            return;
        }
        let (name, token) = (quota.name.clone(), turn.rng.draw());
        quota.activity(turn);
        let Quota { avantan, activity, .. } = quota;
        let clearance = &mut activity.as_mut().expect("made above").clearance;
        let (token, answered) = clearance.question(avantan, token);
        // Whoever told of a value may know by now what became of it.
        let answered = if avantan.in_round() { SiteSet::default() } else { answered };
        ask(turn, &name, token, answered);
    }

    /// Another site counts no vote of a predecessor, see [`crate::avantan::Clearance`].
    pub fn no_vote(&mut self, turn: &mut Turn, from: usize, name: &str, answer: NoVote) {
        let Some(at) = self.position(name).filter(|_| !self.is_frozen(name)) else { return };
        let Quota { avantan, activity: Some(activity), .. } = &mut self.list[at] else { return };
        match activity.clearance.hear(avantan, turn.site, from, answer) {
            Heard::Nothing => return,
            Heard::Behind => {
                let message = Box::new(Message::Behind { applied: avantan.share.applied });
                return turn.sends.push((turn.peers[from].site, Body::Avantan { quota: name.to_owned(), message }));
            }
            Heard::Ahead => {
                // It may have lost its disk too, and have missed that it was told of an entity that is gone.
                let Share { applied, table, .. } = &avantan.share;
                let message = Box::new(Message::Decided { instance: *applied, table: table.clone() });
                return turn.sends.push((turn.peers[from].site, Body::Avantan { quota: name.to_owned(), message }));
            }
            Heard::Counted | Heard::Cleared if avantan.in_round() => {
                // Whoever proposed it may be gone: if nothing comes of it, it is brought to an end from here. Or it is decided,
                // and that was lost on the way here: one that may not vote asks again, and is told.
                let delay = 8 * turn.longest_round_trip() + turn.jitter(SECOND);
                activity.phase_at = activity.phase_at.min(turn.now.mono + delay);
            }
            Heard::Counted | Heard::Cleared => {}
        }
        self.touch(at, Dirty::All);
        if self.list[at].avantan.may_vote(turn.site) && self.list[at].limit().is_some() {
            // The others cannot tell that this site may vote now.
            self.record_soon(turn, at);
        }
        self.schedule(at);
    }

    /// The answer to a member that has had predecessors, if no vote of theirs counts here.
    fn no_vote_of(&self, turn: &Turn, name: &str, member: usize, token: u64) -> Option<NoVote> {
        let peer = &turn.peers[member];
        let present = peer.incarnation.max(peer.noted.0);
        match self.find(name) {
            _ if present <= Incarnation(1) => None,
            // It may be forgotten already, and the vote of a site that has agreed to that must not count any more.
            _ if self.is_frozen(name) => None,
            Some(quota) => quota.avantan.no_vote(peer.site, present, token),
            None => Some(NoVote { token, ..NoVote::default() }),
        }
    }

    /// The quota exists now: carries out what waited for its name.
    pub(super) fn answer_lookup(&mut self, turn: &mut Turn, at: usize) {
        if self.list[at].limit().is_none() {
            return;
        }
        let name = self.list[at].name.clone();
        let Some(lookup) = self.lookups.names.remove(&name) else { return };
        self.lookups.due.remove(&(lookup.due, name));
        for Waiting { ticket, operation, deadline } in lookup.waiting.into_values() {
            let timeout = deadline.saturating_sub(turn.now.mono);
            // It gives up its place in this turn, and may need another.
            self.places.remove(&ticket);
            turn.waiting -= 1;
            if let Some(outcome) = self.execute(turn, &View::empty(), ticket, &operation, timeout) {
                turn.finished.push((ticket, outcome));
            }
        }
    }

    /// Ends the lookups whose time is over, and repeats the questions of others.
    pub(super) fn expire_lookups(&mut self, turn: &mut Turn) {
        let now = turn.now.mono;
        let due = self.lookups.due.iter().take_while(|(at, _)| *at <= now);
        let due: Vec<Arc<str>> = due.take(AT_ONCE).map(|(_, name)| name.clone()).collect();
        for name in due {
            let lookup = self.lookups.names.get_mut(&name).expect("what is due is looked up");
            let mut missing = SiteSet::default();
            let answered = lookup.not_known;
            (0..turn.peers.len())
                .filter(|&peer| peer != turn.position && !answered.contains(peer))
                .for_each(|peer| missing.insert(peer));
            let over: Vec<u64> = lookup.by_deadline.range(..=(now, u64::MAX)).map(|(_, arrival)| *arrival).collect();
            let over: Vec<Waiting> = over.into_iter().filter_map(|arrival| lookup.remove(arrival)).collect();
            if !lookup.waiting.is_empty() && lookup.retry_at <= now {
                lookup.repeat(turn, &name);
            }
            self.lookups.settle(&name);
            for waiting in over {
                self.finish(turn, waiting.ticket, Outcome::Refused(Refusal::Unreachable { missing }));
            }
        }
    }
}

/// Whether no quota can exist of which neither this site nor these know: a majority that never lost a vote, or all.
fn is_settled(turn: &Turn, not_known: SiteSet) -> bool {
    let answered = not_known.positions().count();
    let never_lost = not_known.positions().filter(|&peer| turn.peers[peer].incarnation == Incarnation(1)).count();
    let here = usize::from(turn.site.incarnation == Incarnation(1));
    never_lost + here >= turn.site.majority() || answered + 1 == turn.peers.len()
}

fn ask(turn: &mut Turn, name: &str, token: u64, answered: SiteSet) {
    for peer in (0..turn.peers.len()).filter(|&peer| peer != turn.position && !answered.contains(peer)) {
        turn.sends.push((turn.peers[peer].site, Body::Lookup { token, quota: name.to_owned() }));
    }
}
