//! The judgement on a state: the property that it breaks, now or when the rest is played to its end from there.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use slackline_core::id::Incarnation;

use super::{Fate, Plan, SITES, Setup, State, Wrong, lock};

/// The number of rounds of timers and messages after which nothing may change any more.
const ROUNDS: usize = 24;
/// The most messages of one round.
const ROUND_MESSAGES: usize = 1_000;

impl Setup {
    /// Plays the rest to its end, with all messages under way lost. Returns the property that is broken now or then, if one is.
    pub(super) fn wrong(&self, state: &State) -> Option<Wrong> {
        let now = self.wrong_now(state);
        if now.is_some() {
            return now;
        }

        // Deadlines are over at the end, at all sites that are up: a doubt that only a deadline could end is none.
        let mut state = state.clone();
        for site in &mut state.sites {
            if site.txns.is_some() && !site.is_late {
                let site = Arc::make_mut(site);
                site.is_late = true;
                site.fingerprint();
            }
        }

        // Many states come to the same rest, so its verdict is kept for all states that were met on the way there.
        let mut met = Vec::new();
        let verdict = loop {
            let key = {
                let mut hasher = DefaultHasher::new();
                (&state.fates, [0, 1, 2].map(|at: usize| state.sites[at].print), state.broken).hash(&mut hasher);
                hasher.finish()
            };
            if let Some(verdict) = lock(&self.shared.rest).get(&key) {
                break verdict.clone();
            }
            if met.last() == Some(&key) {
                break self.wrong_at_rest(&state);
            }
            if met.len() == ROUNDS {
                break Some(("no doubt", "it does not come to rest".to_owned()));
            }
            met.push(key);
            self.round(&mut state);
        };
        lock(&self.shared.rest).extend(met.into_iter().map(|key| (key, verdict.clone())));
        verdict
    }

    /// Every timer fires, and every message that is then sent arrives, in the order of sending.
    fn round(&self, state: &mut State) {
        let mut under_way = VecDeque::new();
        // First all timers, then all messages: a round is the same from equal states, so a state that comes back is at rest.
        for at in 0..SITES {
            if state.sites[at].txns.is_some() && !state.broken {
                under_way.extend(self.look(state, at));
            }
        }
        for _ in 0..ROUND_MESSAGES {
            let Some(place) = under_way.pop_front().filter(|_| !state.broken) else { break };
            under_way.extend(self.deliver(state, place));
        }
    }

    /// The property that this state breaks, if it breaks one.
    pub(super) fn wrong_now(&self, state: &State) -> Option<Wrong> {
        if state.broken {
            return Some(("own invariants", "an assertion of the product fails".to_owned()));
        }

        for (number, (plan, fate)) in self.plans.iter().zip(&state.fates).enumerate() {
            let name = number + 1;
            if fate.took_effect() && fate.did_not() {
                return Some(("atomicity", format!("T{name} is carried out and refused")));
            }
            // Implicit commit: it is committed exactly when every participant has durably prepared in time.
            if fate.took_effect() && fate.prepared != plan.participants() {
                return Some(("commitment", format!("T{name} is carried out, and not prepared by all in time")));
            }
            let mut others = self.plans.iter().zip(&state.fates).take(number);
            let excludes = |(other, fate): (&Plan, &Fate)| fate.took_effect() && other.excludes(plan);
            if fate.took_effect() && others.any(excludes) {
                return Some(("isolation", format!("T{name} takes effect, and so does one that it excludes")));
            }
        }

        None
    }

    /// The property that a state at rest breaks, if it breaks one.
    fn wrong_at_rest(&self, state: &State) -> Option<Wrong> {
        self.wrong_now(state).or_else(|| self.doubt_at_rest(state).map(|doubt| ("no doubt", doubt)))
    }

    /// A doubt, lock or record that is left at rest though it need not be, in words.
    fn doubt_at_rest(&self, state: &State) -> Option<String> {
        let are_all_up = state.sites.iter().all(|site| site.txns.is_some());

        // A participant may stay in doubt only if one that it cannot reach may have prepared, and all that it can reach are in
        // doubt too.
        for (number, (plan, fate)) in self.plans.iter().zip(&state.fates).enumerate() {
            let participants = (0..SITES).filter(|at| plan.participants() >> at & 1 == 1);
            let (up, down): (Vec<usize>, Vec<usize>) = participants.partition(|at| state.sites[*at].txns.is_some());
            let in_doubt: Vec<usize> =
                up.iter().copied().filter(|at| state.sites[*at].doubts(self.id(number))).collect();
            if let Some(at) = in_doubt.first().filter(|_| down.is_empty() || in_doubt.len() < up.len()) {
                return Some(format!("S{} is in doubt of T{}", at + 1, number + 1));
            }
            let is_told = fate.told_committed || fate.told_aborted;
            if are_all_up
                && fate.is_submitted
                && !is_told
                && state.sites[plan.coordinator].incarnation == Incarnation(1)
            {
                return Some(format!("the client of T{} is not told", number + 1));
            }
        }

        // Locks and records that nobody ends would block objects and fill the disk permanently.
        for (at, site) in state.sites.iter().enumerate() {
            let Some(txns) = &site.txns else { continue };
            let doubts = (0..self.plans.len()).any(|number| site.doubts(self.id(number)));
            if !doubts && !txns.is_settled() {
                return Some(format!("S{} keeps locks", at + 1));
            }
            if are_all_up && txns.under_way() != (0, 0) {
                return Some(format!("S{} does not forget", at + 1));
            }
        }
        None
    }
}
