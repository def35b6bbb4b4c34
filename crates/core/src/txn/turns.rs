//! Reads that wait for their turn at this home, and the ends of their wait. See [`super::claims`].

use super::claims::{Blocker, GRACE, PARKED, PATIENCE, Parked, SHORTEST, items_of};
use super::participant::{Participant, Timer};
use super::serve::is_in_view;
use crate::id::SiteId;
use crate::machine::View;
use crate::object::Part;
use crate::object::message::Fetch;
use crate::turn::{Here, Turn};

impl Participant {
    /// Parks reads until their turn; returns them if it has come already, or if there is no room to wait.
    pub(super) fn park(&mut self, turn: &mut Turn, from: SiteId, fetch: Fetch) -> Option<Fetch> {
        let patience = (PATIENCE * turn.here.longest_round_trip()).max(SHORTEST).min(fetch.patience);
        let until = turn.here.now.mono + patience;

        // The claim holds from now on, although its reads may wait: younger programs stand back, and the queue moves.
        // It ends by time, so that a program that is gone bars nobody for longer.
        if let Some(claim) = fetch.claim.as_ref().filter(|claim| claim.bars && claim.rank.nonce != 0) {
            let until = until + (GRACE * turn.here.longest_round_trip()).max(SHORTEST);
            turn.out.metrics.turns_given += u64::from(self.claims.register(&fetch, claim, until));
            self.timers.insert((until, Timer::Claim(claim.rank.nonce)));
        }

        // A turn is fairness and never evidence: where there is no room to wait, the reads are answered as they are,
        // and judged like any other.
        let blockers = self.claims.blockers(&self.locks, &fetch);
        let items = items_of(&fetch);
        if blockers.is_empty() || self.claims.parked_items + items > PARKED {
            return Some(fetch);
        }

        turn.out.metrics.turns_awaited += 1;
        let token = self.next_token();
        self.claims.block(token, &blockers);
        self.claims.parked_items += items;
        self.claims.parked.insert(token, Parked { from, fetch, blockers, look_at: until, until });
        self.timers.insert((until, Timer::Parked(token)));
        None
    }

    /// Looks at parked reads whose timer has come; returns them if they wait no longer. The rows of those that are
    /// `first` in a tick were named before those of any other.
    pub(super) fn unpark(
        &mut self,
        here: &Here,
        view: &View,
        is_first: bool,
        (at, token): (u64, u64),
    ) -> Option<(SiteId, Fetch)> {
        let parked = self.claims.parked.get(&token).filter(|parked| parked.look_at == at)?;

        // Other blockers may have come in the way since. The end of the wait stays where it was: no read waits without
        // bound.
        let blockers = self.claims.blockers(&self.locks, &parked.fetch);
        if !blockers.is_empty() && here.now.mono < parked.until {
            self.claims.block(token, &blockers);
            let parked = self.claims.parked.get_mut(&token).expect("looked up above");
            (parked.look_at, parked.blockers) = (parked.until, blockers);
            self.timers.insert((parked.until, Timer::Parked(token)));
            return None;
        }

        // They came due after the working set was named, while storage was read; or the rows of those before them took
        // all the room; or this call has written some of it, which the view does not show: a right over what was there before would
        // outlive the write. The next call has their rows.
        let has_what_fits = is_first && view.is_cut();
        let is_shown = has_what_fits || is_in_view(view, &parked.fetch, here.site.incarnation);
        if !is_shown || self.locks.has_written_of(&parked.fetch) {
            let parked = self.claims.parked.get_mut(&token).expect("looked up above");
            parked.look_at = here.now.mono;
            self.timers.insert((here.now.mono, Timer::Parked(token)));
            return None;
        }

        let parked = self.claims.parked.remove(&token).expect("looked up above");
        self.claims.unblock(token, &parked.blockers);
        self.claims.parked_items -= items_of(&parked.fetch);
        assert!(
            !self.claims.parked.is_empty() || self.claims.parked_items == 0,
            "no read waits, and their bound is used up"
        );
        Some((parked.from, parked.fetch))
    }

    /// A blocker is over: reads that waited for nothing else are looked at now.
    fn wake(&mut self, now: u64, blocker: &Blocker) {
        for token in self.claims.blocked.remove(blocker).into_iter().flatten() {
            let parked = self.claims.parked.get_mut(&token).expect("whoever is blocked is parked");
            parked.blockers.remove(blocker);

            // They are answered by the next tick, whose working set names what they read: this call's view may lack it.
            if parked.blockers.is_empty() {
                self.timers.remove(&(parked.look_at, Timer::Parked(token)));
                parked.look_at = now;
                self.timers.insert((now, Timer::Parked(token)));
            }
        }
    }

    /// A part is decided: reads of what it writes need not wait for it.
    pub(super) fn wake_readers(&mut self, now: u64, part: &Part) {
        if !self.claims.blocked.is_empty() {
            for (name, _) in &part.writes {
                self.wake(now, &Blocker::Write(name.clone()));
            }
        }
    }

    /// Ends the turn of a program, whose part was judged or whose time is over.
    pub(super) fn end_claim(&mut self, now: u64, nonce: u64) {
        if self.claims.remove(nonce) {
            self.wake(now, &Blocker::Claim(nonce));
        }
    }

    /// Ends a claim if its time is over.
    pub(super) fn look_at_claim(&mut self, now: u64, nonce: u64) {
        if self.claims.claims.get(&nonce).is_some_and(|claimed| claimed.until <= now) {
            self.end_claim(now, nonce);
        }
    }
}
