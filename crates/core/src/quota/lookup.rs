//! Names that this site does not know: it asks the others before it says that there is no such quota, because it may
//! have missed the creation. A creation was accepted by a majority, so a majority that neither knows the name nor has
//! accepted its creation settles it.

use super::{Dirty, Quotas};
use crate::api::{NAME_BYTES, Operation, Outcome, Refusal, SiteSet};
use crate::clock::MILLISECOND;
use crate::machine::View;
use crate::peer::Body;
use crate::turn::{Ticket, Turn};

/// The most names that are looked up at a time, and the most operations that may wait for one.
const LOOKUPS: usize = 1024;

/// A name that is being looked up.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    waiting: Vec<(Ticket, Operation, u64)>,
    not_known: SiteSet,
    retry_at: u64,
}

impl Lookup {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn deadline(&self) -> u64 {
        self.waiting.iter().map(|(_, _, deadline)| *deadline).min().unwrap_or(0).min(self.retry_at)
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
        if name.is_empty() || name.len() > NAME_BYTES || name.chars().any(char::is_control) {
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
        if !self.lookups.contains_key(name) && self.lookups.len() >= LOOKUPS {
            return refuse(Refusal::Overloaded);
        }
        let again = turn.now.mono + 2 * turn.longest_round_trip() + 20 * MILLISECOND;
        let lookup = self.lookups.entry(name.to_owned()).or_default();
        if lookup.waiting.len() >= LOOKUPS {
            return refuse(Refusal::Overloaded);
        }
        lookup.waiting.push((ticket, operation.clone(), turn.now.mono.saturating_add(timeout)));
        // Answers to questions from before this operation say nothing of what it may know.
        if lookup.retry_at == 0 || lookup.not_known != SiteSet::default() {
            lookup.retry_at = again;
            lookup.not_known = SiteSet::default();
            ask(turn, name, SiteSet::default());
        }
        None
    }

    /// Another site does not know the name either.
    pub fn not_known(&mut self, turn: &mut Turn, from: usize, name: &str) {
        if self.may_be_created(name) {
            return;
        }
        let Some(lookup) = self.lookups.get_mut(name) else { return };
        lookup.not_known.insert(from);
        if lookup.not_known.positions().count() + 1 >= turn.site.majority() {
            let lookup = self.lookups.remove(name).expect("looked at above");
            for (ticket, _, _) in lookup.waiting {
                turn.finished.push((ticket, Outcome::Refused(Refusal::UnknownQuota)));
            }
        }
    }

    /// Whether this site has accepted a value for a quota that it does not know to exist.
    fn may_be_created(&self, name: &str) -> bool {
        let quota = self.find(name).filter(|quota| quota.limit().is_none());
        let round = quota.and_then(|quota| quota.avantan.share.round.as_ref());
        round.is_some_and(|round| round.accepted.is_some())
    }

    /// Answers another site's question about a name.
    pub fn look_up(&self, turn: &mut Turn, from: usize, name: String) {
        let to = turn.peers[from].site;
        if self.is_younger_than(turn, &name, from) {
            turn.sends.push((to, Body::Younger { quota: name.clone() }));
        }
        let body = match self.find(&name).filter(|quota| quota.limit().is_some()) {
            Some(quota) => {
                let share = &quota.avantan.share;
                let message = crate::avantan::Message::Decided { instance: share.applied, table: share.table.clone() };
                Body::Avantan { quota: name, message }
            }
            // Its creation may be decided already: whoever decided it will tell.
            None if self.may_be_created(&name) => return,
            None => Body::NotKnown { quota: name },
        };
        turn.sends.push((to, body));
    }

    /// Asks the others whether they knew anything of the quota when they noted this site's incarnation. If none did, no
    /// vote of a predecessor can have been counted in the quota's first instance, and this incarnation may vote in it.
    pub(super) fn ask_whether_younger(&mut self, turn: &mut Turn, at: usize) {
        let quota = &mut self.list[at];
        if quota.avantan.share.applied > 0 || quota.avantan.may_vote(turn.site) {
            return;
        }
        let name = quota.name.clone();
        let answered = quota.activity(turn).fresh;
        ask(turn, &name, answered);
    }

    /// Another site knew nothing of the quota when it noted this site's incarnation.
    pub fn younger(&mut self, turn: &mut Turn, from: usize, name: &str) {
        let Some(at) = self.position(name) else { return };
        let activity = self.list[at].activity(turn);
        activity.fresh.insert(from);
        let all = activity.fresh.positions().count() + 1 == turn.peers.len();
        let share = &mut self.list[at].avantan.share;
        if all && share.applied == 0 && share.fresh != turn.site.incarnation {
            share.fresh = turn.site.incarnation;
            self.touch(at, Dirty::All);
            self.schedule(at);
        }
    }

    /// Whether all that this site knows of the quota is from after it noted the member's incarnation.
    fn is_younger_than(&self, turn: &Turn, name: &str, member: usize) -> bool {
        let Some(quota) = self.find(name) else { return true };
        let noted = turn.peers[member].incarnation.max(turn.peers[member].noted.0);
        quota.avantan.share.applied == 0 && quota.born.get(member).is_some_and(|born| *born >= noted)
    }

    /// The quota exists now: carries out what waited for its name.
    pub(super) fn answer_lookup(&mut self, turn: &mut Turn, at: usize) {
        if self.lookups.is_empty() || self.list[at].limit().is_none() {
            return;
        }
        let name = self.list[at].name.clone();
        let Some(lookup) = self.lookups.remove(&*name) else { return };
        for (ticket, operation, deadline) in lookup.waiting {
            let timeout = deadline.saturating_sub(turn.now.mono);
            if let Some(outcome) = self.execute(turn, &View::empty(), ticket, &operation, timeout) {
                turn.finished.push((ticket, outcome));
            }
        }
    }

    /// Ends the lookups whose time is over, and repeats the questions of others.
    pub(super) fn expire_lookups(&mut self, turn: &mut Turn) {
        let now = turn.now.mono;
        if self.lookups.values().all(|lookup| lookup.deadline() > now) {
            return;
        }
        // In the order of names, so that the same seed gives the same messages.
        let mut due: Vec<String> =
            self.lookups.iter().filter(|(_, l)| l.deadline() <= now).map(|(n, _)| n.clone()).collect();
        due.sort();
        for name in due {
            let again = now + 2 * turn.longest_round_trip() + 20 * MILLISECOND;
            let lookup = self.lookups.get_mut(&name).expect("listed above");
            let mut missing = SiteSet::default();
            let answered = lookup.not_known;
            (0..turn.peers.len())
                .filter(|&peer| peer != turn.position && !answered.contains(peer))
                .for_each(|peer| missing.insert(peer));
            lookup.waiting.retain(|(ticket, _, deadline)| {
                let over = *deadline <= now;
                if over {
                    turn.finished.push((*ticket, Outcome::Refused(Refusal::Unreachable { missing })));
                }
                !over
            });
            if lookup.waiting.is_empty() {
                self.lookups.remove(&name);
            } else if lookup.retry_at <= now {
                lookup.retry_at = again;
                ask(turn, &name, answered);
            }
        }
    }

    pub(super) fn withdraw_lookup(&mut self, ticket: Ticket) -> bool {
        let mut found = None;
        for (name, lookup) in &mut self.lookups {
            let before = lookup.waiting.len();
            lookup.waiting.retain(|(waiting, _, _)| *waiting != ticket);
            if lookup.waiting.len() < before {
                found = Some((name.clone(), lookup.waiting.is_empty()));
                break;
            }
        }
        if let Some((name, true)) = &found {
            self.lookups.remove(name);
        }
        found.is_some()
    }
}

fn ask(turn: &mut Turn, name: &str, answered: SiteSet) {
    for peer in (0..turn.peers.len()).filter(|&peer| peer != turn.position && !answered.contains(peer)) {
        turn.sends.push((turn.peers[peer].site, Body::Lookup { quota: name.to_owned() }));
    }
}
