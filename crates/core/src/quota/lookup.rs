//! The names that are being looked up, see `unknown`.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use smol_str::SmolStr;

use super::one::NEVER;
use crate::api::Operation;
use crate::clock::{MILLISECOND, SECOND};
use crate::id::SiteSet;
use crate::peer::quota::QuotaMessage;
use crate::turn::{Ticket, Turn};

/// The most names that are looked up at a time: each of them costs questions to the others, again and again.
pub(super) const LOOKUPS: usize = 1024;
/// The most names that one tick looks after; the rest are still due afterwards.
pub(super) const AT_ONCE: usize = 8;

/// The names that are being looked up.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    /// Each of them; none for which nothing waits.
    pub(super) names: FxHashMap<SmolStr, Lookup>,
    /// When to look at each of them again: one entry for each.
    pub(super) due: BTreeSet<(u64, SmolStr)>,
}

/// A name that is being looked up.
#[derive(Debug)]
pub(super) struct Lookup {
    /// What waits, numbered in the order of arrival.
    pub(super) waiting: BTreeMap<u64, Waiting>,
    /// The same by deadline, with their arrivals.
    pub(super) by_deadline: BTreeSet<(u64, u64)>,
    /// The number of the next operation that comes.
    pub(super) next_arrival: u64,
    /// The name of the question that is out. An answer to an earlier one says nothing.
    pub(super) token: u64,
    /// Operations that arrived before this one arrived before that question was asked. Its answers say nothing of a creation
    /// that the sender of a later operation may know of.
    pub(super) asked_for: u64,
    /// The members that have answered it and do not know the name, by position.
    pub(super) not_known: SiteSet,
    /// When those that have not answered are asked again.
    pub(super) retry_at: u64,
    /// The time of the entry in [`Lookups::due`].
    pub(super) due: u64,
}

/// An operation on a name that is not known.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Its name.
    pub(super) ticket: Ticket,
    /// What is carried out if the quota turns out to exist.
    pub(super) operation: Operation,
    /// The monotonic time at which it is refused, if nothing is known by then.
    pub(super) deadline: u64,
}

impl Lookup {
    pub(super) fn new() -> Self {
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
    pub(super) fn ask(&mut self, turn: &mut Turn, name: &str, is_known: bool) {
        // Another name than any earlier question had, also in an earlier life: answers to those say less than is asked now.
        self.token = turn.out.rng.draw();
        self.not_known = SiteSet::default();
        self.asked_for = self.next_arrival;
        self.repeat(turn, name, is_known);
    }

    /// Asks those who have not answered yet. Where the quota `is_known`, and may be gone, whoever knows it too answers with all that it knows
    /// of it, and says nothing new: they are asked less often.
    pub(super) fn repeat(&mut self, turn: &mut Turn, name: &str, is_known: bool) {
        // Later than an answer can be on its way, if nothing is held up.
        let pause = 2 * turn.here.longest_round_trip() + if is_known { SECOND } else { 20 * MILLISECOND };
        self.retry_at = turn.here.now.mono + pause;
        ask(turn, name, self.token, self.not_known);
    }

    pub(super) fn remove(&mut self, arrival: u64) -> Option<Waiting> {
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
    pub(super) fn withdraw(&mut self, name: &SmolStr, arrival: u64) -> bool {
        // It may be the last that waits for the name: then nothing is asked any more.
        let found = self.names.get_mut(name).and_then(|lookup| lookup.remove(arrival));
        self.settle(name);
        found.is_some()
    }

    /// Notes when to look at a name again; one that nothing waits for is forgotten.
    pub(super) fn settle(&mut self, name: &SmolStr) {
        let Some(lookup) = self.names.get_mut(name) else { return };
        assert_eq!(lookup.waiting.len(), lookup.by_deadline.len(), "what waits for a name has a deadline");

        let first = lookup.by_deadline.first().map(|(deadline, _)| *deadline);
        let due = first.map(|deadline| deadline.min(lookup.retry_at));

        // One entry at most: the older one goes before the newer one comes.
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

/// Asks all members that have not `answered` whether a quota of this name exists.
pub(super) fn ask(turn: &mut Turn, name: &str, token: u64, answered: SiteSet) {
    for peer in (0..turn.here.peers.len()).filter(|&peer| peer != turn.here.position && !answered.contains(peer)) {
        turn.out.send(turn.here.peers[peer].site, QuotaMessage::Lookup { token, quota: name.to_owned() });
    }
}
