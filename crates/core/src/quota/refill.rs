//! Refill: a quota that is a token bucket. What is granted comes back by itself, at a rate, and nobody gives it back.
//!
//! Such a quota has the same tokens, rounds and gifts as any other, and the same sum: tokens, what is under way, and what was granted and
//! is not back make the limit. Only one thing is different: a site itself takes back what was granted there, as time goes by. What a site
//! has granted and not refilled yet is its **backlog**. A site refills from its own backlog only, so all sites together never have more
//! tokens than the limit; and each at its own part of the rate, one of as many equal parts as there were members when the quota was created. Therefore, in any T
//! seconds, all sites together grant at most limit + rate × T.
//!
//! ```text
//!            grant              refill, by the site's part of the rate
//!   tokens ───────▶ backlog ─────────────────────────────────────────▶ tokens
//!     │ gifts         │ handed over                                      │ gifts
//!     ▼               ▼                                                  ▼
//!   other site      other site, whose part of the rate lies idle       other site, where demand is
//! ```
//!
//! A site without demand has no backlog, and its part of the rate would lie idle. So sites with more backlog than they can refill soon, or than
//! their part of the limit, hand some over to those that have too little. It is handed over like a gift, by running totals ([`crate::gift`]): once, however often it is told.
//! The tokens that are refilled there go where they are wanted by gifts, as ever.
//!
//! Time is that of the slower of the site's two clocks ([`Slower`](crate::clock::Slower)), and begins when the site is opened. So a clock that is set, or
//! goes too fast, refills nothing, and nor does the time for which the site was down. Both cost rate, and never exceed it.
//!
//! The state is constant: no row for a grant. What was refilled is written when a site looks at its tokens to do something with them. What was
//! not written when it crashes is refilled again from then on.

use super::book::{Quotas, RELAXED_TICK, TICK};
use super::bucket::{AHEAD, TOKEN, rate_of, wanted};
use super::line::Waiting;
use super::one::{Dirty, Quota};
use crate::api::Refusal;
use crate::clock::SECOND;
use crate::id::{Incarnation, SiteSet};
use crate::peer::quota::Backlog;
use crate::turn::{Here, Turn};

impl Quota {
    /// True if what is granted comes back by itself.
    #[inline]
    pub fn refills(&self) -> bool {
        self.avantan.share.table.charter.refill > 0
    }

    /// The backlog received from other sites less that handed over to them, and what of it is under way to and from present incarnations.
    pub(super) fn carried(&self, here: &Here) -> i64 {
        let Some(refill) = &self.refill else { return 0 };
        refill.carried.wrapping_add(refill.handed.away(|position| here.peers[position].incarnation))
    }

    /// What was granted here and is not refilled yet, with what other sites have handed over.
    pub fn backlog(&self) -> i64 {
        let carried = self.refill.as_ref().map_or(0, |refill| refill.carried);
        (self.counters.acquired.wrapping_sub(self.counters.released) as i64).wrapping_add(carried)
    }

    /// This site's part of the rate, in millionths of a token a second.
    fn rate_here(&self, here: &Here) -> u64 {
        self.rate_at(here, here.position)
    }

    /// The part of the rate of the member at a position: one for each that was a member when the quota was created, and, at the first that
    /// is there, the parts of those that are gone.
    fn rate_at(&self, here: &Here, position: usize) -> u64 {
        let table = &self.avantan.share.table;
        let founders = here.peers.iter().filter(|peer| peer.since <= table.created_in).count();

        // A part moves when a round has recorded who is gone: from there on nobody else refills by it. What was refilled before was counted up
        // to that round, so time that has passed does not count by the new parts.
        let is_gone = |at: usize| table.recorded(here.peers[at].site) == Incarnation::GONE;
        let is_first = (0..position).all(is_gone);
        let parts = (0..founders).filter(|&at| at == position || (is_first && is_gone(at)));
        parts.map(|at| rate_of(table.charter.refill, founders, at)).sum()
    }

    /// The backlog that the member at a position should have.
    fn wanted_at(&self, here: &Here, position: usize) -> i64 {
        let table = &self.avantan.share.table;
        wanted(self.rate_at(here, position), table.charter.refill, table.limit.unwrap_or(0))
    }

    /// The totals of backlog between this site and the member at `peer`, to be told to it; none if the quota does not refill.
    pub(super) fn backlog_for(&self, peer: usize) -> Option<Backlog> {
        let refill = self.refill.as_ref().filter(|_| self.refills())?;
        let (given, received) = (refill.handed.given(peer), refill.handed.received(peer));
        Some(Backlog {
            here: self.backlog(),
            given: given.amount,
            given_to: given.incarnation,
            received: received.amount,
            received_from: received.incarnation,
        })
    }
}

/// True if a site that should have so much backlog and has so much is handed some: not for less than half of it.
fn lacks(wanted: i64, there: i64) -> bool {
    wanted.saturating_sub(there) > wanted / 2
}

impl Quotas {
    /// Refills the quota up to now, if it is one that refills. Whoever looks at its tokens to do something with them does this first.
    #[inline]
    pub(super) fn refill(&mut self, here: &Here, at: usize) {
        if self.list[at].refills() {
            self.refill_up_to_now(here, at);
        }
    }

    /// The same of the quota of this name, if there is one: whoever is told how many tokens are here should not be told of before.
    pub(super) fn refill_named(&mut self, here: &Here, name: &str) {
        if let Some(at) = self.position(name) {
            self.refill(here, at);
        }
    }

    fn refill_up_to_now(&mut self, here: &Here, at: usize) {
        let quota = &mut self.list[at];
        let (rate, backlog) = (quota.rate_here(here), quota.backlog());
        let tokens = quota.refill.get_or_insert_default().advance(here.steady, rate, backlog);
        if tokens == 0 {
            return;
        }

        // It is written with what is done with it, so that nothing that is said of these tokens outlives them.
        quota.avantan.share.tokens = quota.avantan.share.tokens.saturating_add(tokens);
        quota.counters.released += tokens as u128;
        assert!(quota.backlog() >= 0, "more is refilled than was granted");
        if let Some(activity) = &mut quota.activity {
            activity.returns.note(tokens);
        }

        self.touch(at, Dirty::Hot);
    }

    /// Takes in what a member tells of its backlog, and what it has handed over.
    pub(super) fn take_backlog(&mut self, turn: &mut Turn, at: usize, from: usize, told: Backlog) {
        let (donor, me) = (turn.here.peers[from].incarnation, turn.here.site.incarnation);
        if !self.list[at].refills() {
            return;
        }

        // Time that has passed counts for the backlog that was here, not for what comes now.
        self.refill(&turn.here, at);
        let is_donor_recorded = donor >= self.list[at].avantan.share.table.recorded(turn.here.peers[from].site);
        let quota = &mut self.list[at];
        let refill = quota.refill.get_or_insert_default();
        let missing = match is_donor_recorded && told.given_to == me {
            true => refill.handed.missing(from, donor, told.given),
            false => 0,
        };
        let carried = i64::try_from(missing).ok().and_then(|missing| refill.carried.checked_add(missing));
        if let Some(carried) = carried.filter(|_| missing > 0) {
            // The backlog and the total are in the same row, so that no crash takes it a second time.
            refill.handed.receive(from, donor, told.given);
            refill.carried = carried;
            self.touch(at, Dirty::All);
        }

        let activity = self.activity(&turn.here, at);
        let known = &mut activity.peers[from].backlog;
        known.here = told.here;
        known.received = match known.said_by == donor {
            _ if told.received_from != me => 0,
            true => known.received.max(told.received),
            false => told.received,
        };
        known.said_by = donor;
        if missing > 0 {
            // The donor counts it as there, and goes on telling until it hears so.
            let now = turn.here.now.mono;
            activity.active_at = now;
            activity.tick_at = activity.tick_at.min(now + TICK);
            self.tell(turn, at, from);
            self.schedule(at);
        }
    }

    /// Hands backlog over to members that have too little of it for their part of the rate.
    pub(super) fn hand_over(&mut self, turn: &mut Turn, at: usize) {
        let quota = &self.list[at];
        let Some(activity) = &quota.activity else { return };
        if !quota.refills() || quota.limit().is_none() || !turn.here.config.redistribute {
            return;
        }
        let mut surplus = quota.backlog() - quota.wanted_at(&turn.here, turn.here.position);
        let mut handed = Vec::new();
        for peer in (0..turn.here.peers.len()).filter(|&peer| quota.gives_to(&turn.here, peer)) {
            if peer == turn.here.position || surplus <= 0 {
                continue;
            }

            // What is under way counts as there, which keeps it from being handed over again and again.
            let wanted = quota.wanted_at(&turn.here, peer);
            let there = activity.peers[peer].backlog.here.saturating_add(quota.backlog_under_way(&turn.here, peer));
            let missing = wanted.saturating_sub(there);
            if lacks(wanted, there) {
                let part = missing.min(surplus);
                surplus -= part;
                handed.push((peer, part));
            }
        }

        // Where nothing is refilled nothing may stay, however little the others lack: the first that refills some has it.
        if surplus > 0 && quota.rate_here(&turn.here) == 0 && handed.is_empty() {
            let refills = |peer: &usize| quota.gives_to(&turn.here, *peer) && quota.rate_at(&turn.here, *peer) > 0;
            handed.extend((0..turn.here.peers.len()).find(refills).map(|peer| (peer, surplus)));
        }

        for (peer, part) in handed {
            self.hand(turn, at, peer, part);
        }
    }

    /// Hands all backlog over to the members at these positions, before the site stops: what is down refills nothing.
    pub(super) fn leave_backlog(&mut self, turn: &mut Turn, at: usize, up: &[usize]) {
        if !self.list[at].refills() {
            return;
        }
        let mut left = self.list[at].backlog();
        for (order, &peer) in up.iter().enumerate() {
            let part = left / (up.len() - order) as i64;
            left -= part;
            if part > 0 {
                self.hand(turn, at, peer, part);
            }
        }
    }

    /// Lowers the backlog here and raises the total, in one write; the total is told after it is durable.
    fn hand(&mut self, turn: &mut Turn, at: usize, peer: usize, part: i64) {
        let quota = &mut self.list[at];
        let refill = quota.refill.get_or_insert_default();
        refill.handed.give(peer, turn.here.peers[peer].incarnation, part as u64);
        refill.carried -= part;
        assert!(quota.backlog() >= 0, "more backlog is handed over than there is");
        turn.out.metrics.backlog_handed += 1;
        self.touch(at, Dirty::All);
        let activity = self.activity(&turn.here, at);
        activity.tick_at = activity.tick_at.min(turn.here.now.mono + RELAXED_TICK);
        activity.peers[peer].told.repeats = 0;
        activity.peers[peer].is_owed = true;
        self.schedule(at);
        self.tell(turn, at, peer);
    }

    /// The refusal of a request that these members were asked for in vain.
    pub(super) fn exhausted(&self, here: &Here, at: usize, asked: SiteSet, request: &Waiting) -> Refusal {
        let level = self.level_name(at, request.quota);
        Refusal::Exhausted { asked, retry_after: self.retry_after(here, at, request.amount), level }
    }

    /// The time in which so many tokens are there, if nobody else takes any: in milliseconds, at least 1; none if they do not come by
    /// themselves.
    fn retry_after(&self, here: &Here, at: usize, amount: i64) -> Option<u32> {
        let quota = &self.list[at];
        let rate = match here.is_alone() {
            true => quota.rate_here(here),
            false => quota.avantan.share.table.charter.refill,
        };
        if rate == 0 {
            return None;
        }
        let elsewhere = quota.activity.as_ref().map_or(0, |activity| activity.known_free(here));
        let there = quota.avantan.share.free(here.site).max(0).saturating_add(elsewhere);

        // What is out beyond the limit is paid first.
        let before = i128::from(quota.needed()) + i128::from(quota.avantan.share.table.excess);
        let missing = (i128::from(amount) - i128::from(there) + before).max(0) as u128;
        let micros = (missing * TOKEN).div_ceil(u128::from(rate));
        Some(micros.div_ceil(1_000).clamp(1, u128::from(u32::MAX)) as u32)
    }
}

impl Quota {
    /// Backlog handed over to the member's present incarnation that it has not reported yet.
    pub(super) fn backlog_under_way(&self, here: &Here, peer: usize) -> i64 {
        let Some(refill) = &self.refill else { return 0 };
        let present = here.peers[peer].incarnation;
        let known = self.activity.as_ref().map(|activity| activity.peers[peer].backlog);
        let known = known.filter(|known| known.said_by == present).unwrap_or_default();
        refill.handed.under_way(peer, present, known.received).min(i64::MAX as u128) as i64
    }

    /// True if the others should hear how much backlog is here, to whom this much was told last: where it has changed by much, or they would
    /// hand some over by what there is now and not by what they know, or the other way round. Else a site of which they know that it has half of
    /// what it should would have none for long, and its part of the rate lie idle.
    pub(super) fn is_backlog_news(&self, here: &Here, told: i64) -> bool {
        if !self.refills() {
            return false;
        }
        let (backlog, wanted) = (self.backlog(), self.wanted_at(here, here.position));
        backlog.abs_diff(told) > wanted.unsigned_abs() / 2 || lacks(wanted, backlog) != lacks(wanted, told)
    }

    /// When to look after the backlog again, counted from now, in microseconds; none if there is none that time would change.
    pub(super) fn refill_pause(&self, here: &Here) -> Option<u64> {
        if !self.refills() || self.backlog() <= 0 {
            return None;
        }

        // Half of what a site should have, or one token, whichever takes longer.
        let rate = u128::from(self.rate_here(here)).max(1);
        let one = (TOKEN / rate).min(u128::from(u64::MAX)) as u64;
        Some(one.clamp(AHEAD / 2, 60 * SECOND))
    }
}
