//! Who gives tokens, when, and how much. Why gifts are safe is in [`crate::gift`]; nothing here is needed for that.
//!
//! The totals of gifts travel in **digests**, with what a site has free, what it is short of and how fast it is asked, so
//! that every site can tell which others are poor.
//!
//! All free tokens that are known of, T, are thought of as divided by weight: a site's demand rate and a floor, so that an
//! idle site keeps some. A site with more than its part has a surplus, one with less a deficit. A donor covers of each
//! deficit the part that its surplus is of all surpluses, so several donors together do not give too much. What it has
//! given and the receiver has not reported yet counts as there already, which keeps gifts from chasing each other.
//! A site that requests wait at says how much it is short; each other site then gives its part of that at once.

use super::announce::{AGAIN, Announcement, PAUSE};
use super::book::{Quotas, RELAXED_TICK, TICK};
use super::one::{Activity, Dirty, PeerShare, Quota, Told};
use crate::api::{Outcome, Refusal};
use crate::avantan::Membership;
use crate::clock::{MILLISECOND, SECOND};
use crate::id::{Incarnation, SiteId};
use crate::peer::quota::{Digest, QuotaMessage};
use crate::turn::{Here, Peer, Turn};

/// A gift that has shown no sign of arrival is told again after twice the round trip, then ever more slowly up to this.
const REPEAT: u64 = 5 * SECOND;
/// A member that has been told nothing for this long is answered when it tells of a gift. Longer than any round trip, or
/// two members would answer each other permanently.
const ACKNOWLEDGED: u64 = 4 * SECOND;
/// A gift is not worth its messages below this part of what its receiver should have.
const SMALL: i64 = 16;
/// For so long a member counts as short after it has said so; that it no longer is may be lost on the way.
const SHORT: u64 = 2 * SECOND;
/// A quota that nothing happened to for this long is put to rest.
const REST: u64 = 60 * SECOND;
/// The number of times that the pause between two greetings of a site that is not recorded is doubled.
const GREETINGS: u32 = 4;
/// The most quotas that one step of an announcement covers.
const ANNOUNCED: usize = 256;

impl Quotas {
    /// Takes in what a member says of its share.
    pub(super) fn digest(&mut self, turn: &mut Turn, from: usize, digest: Digest) {
        let sender = &turn.here.peers[from];
        let (site, incarnation) = (sender.site, sender.incarnation);
        if self.is_frozen(&digest.quota) {
            turn.out.metrics.ignored += 1;
            return;
        }
        let Some(at) = self.position(&digest.quota) else {
            // A quota whose creation this site missed: ask for its table.
            if digest.applied > 0 {
                let message = crate::avantan::Message::Behind { applied: 0 };
                turn.out.send(site, QuotaMessage::agreement(digest.quota, message));
            }
            return;
        };

        // Totals of another generation went with its tokens: taken now, they would make tokens of this one. Those of one that is deleted did,
        // too; who was not asked about the deletion, and missed it, may lead no round by which it would hear of it.
        let quota = &mut self.list[at];
        let (applied, table) = (quota.avantan.share.applied, &quota.avantan.share.table);
        if digest.generation != table.generation || table.limit.is_none() {
            if digest.applied > applied {
                let message = crate::avantan::Message::Behind { applied };
                turn.out.send(site, QuotaMessage::agreement(digest.quota, message));
            } else if digest.applied < applied {
                let message = crate::avantan::Message::Decided { instance: applied, table: table.clone() };
                turn.out.send(site, QuotaMessage::agreement(digest.quota, message));
            }
            return;
        }

        // What was given to a predecessor of this incarnation is lost with it, and what a predecessor of the donor gave counts as lost
        // for whoever reclaims.
        let is_donor_recorded = incarnation >= quota.avantan.share.table.recorded(site);
        if is_donor_recorded && digest.given_to == turn.here.site.incarnation && digest.given > 0 {
            self.receive(turn, at, from, incarnation, digest.given);
        }
        if let Some(backlog) = digest.backlog {
            self.take_backlog(turn, at, from, backlog);
        }

        self.hear(turn, at, from, digest);
    }

    /// Takes note of what a member says it has and wants, and does what follows from it.
    fn hear(&mut self, turn: &mut Turn, at: usize, from: usize, digest: Digest) {
        let sender = &turn.here.peers[from];
        let (site, incarnation, me) = (sender.site, sender.incarnation, turn.here.site.incarnation);

        // Digests are reordered too: the highest total that the same incarnation has reported counts, or a gift that arrived
        // would be told again.
        let quota = &mut self.list[at];
        let applied = quota.avantan.share.applied;
        let recorded = quota.avantan.share.table.recorded(site);
        let in_round = quota.avantan.in_round();
        let free = quota.avantan.share.free(turn.here.site).max(0);
        let activity = self.activity(&turn.here, at);
        let known = &mut activity.peers[from];
        let fresher = digest.free > known.free;
        *known = PeerShare {
            free: digest.free,
            short: digest.short,
            first: digest.first,
            rate: digest.rate,
            received: match known.said_by == incarnation {
                _ if digest.received_from != me => 0,
                true => known.received.max(digest.received),
                false => digest.received,
            },
            applied: digest.applied,
            heard_at: turn.here.now.mono,
            said_by: incarnation,
            is_owed: known.is_owed,
            told: known.told,
            backlog: known.backlog,
        };

        // News: what waits may be served after all.
        let is_in_wait = fresher && !activity.waiting.is_empty() && !activity.leader.may_start(turn.here.now.mono);
        if is_in_wait && activity.known_free(&turn.here).saturating_add(free) >= activity.waiting.least() {
            activity.leader.retry_now(turn.here.now.mono);
        }

        // A donor that goes on telling of a gift does not know that it arrived.
        let silent = turn.here.now.mono.saturating_sub(activity.peers[from].told.at);
        let backlog = digest.backlog.map_or((me, 0), |backlog| (backlog.given_to, backlog.given));
        let told_of = [(digest.given_to, digest.given), backlog];
        let doubts = told_of.iter().any(|(to, given)| *to == me && *given > 0) && silent >= ACKNOWLEDGED;

        // Nor does one that missed a decision without being in its round know that there was one.
        let behind = digest.applied < applied && silent >= SECOND;

        // In a round its outcome comes by itself, or is asked for.
        if digest.applied > applied && !in_round {
            let message = crate::avantan::Message::Behind { applied };
            turn.out.send(site, QuotaMessage::agreement(digest.quota, message));
        }
        if incarnation > recorded {
            self.record_soon(turn, at);
        }
        if doubts || behind {
            self.tell(turn, at, from);
        }

        // The receiver may be poor by what it says.
        self.balance(turn, at);
        self.schedule(at);
    }

    /// Takes the tokens that the donor's running total shows beyond what was received before.
    fn receive(&mut self, turn: &mut Turn, at: usize, from: usize, donor: Incarnation, total: u128) {
        let quota = &mut self.list[at];
        let missing = quota.totals.missing(from, donor, total);
        if missing == 0 {
            return;
        }

        // Beyond `i64` only if clients released what they never had: then it stays with the donor's total.
        let gift = i64::try_from(missing).ok();
        let Some(tokens) = gift.and_then(|gift| quota.avantan.share.tokens.checked_add(gift)) else { return };

        // The tokens and the total are in the same row, so that no crash takes a gift a second time.
        quota.totals.receive(from, donor, total);
        quota.avantan.share.tokens = tokens;
        turn.out.metrics.gifts_received += 1;
        self.touch(at, Dirty::All);
        let activity = self.activity(&turn.here, at);
        activity.shortage.fed_at = turn.here.now.mono;
        activity.active_at = turn.here.now.mono;

        // Tell the donor soon that it arrived: it counts what is under way as there already, and gives no more meanwhile.
        activity.peers[from].told.at = 0;
        activity.tick_at = activity.tick_at.min(turn.here.now.mono + TICK);
        self.schedule(at);
        self.serve(turn, at);
    }

    /// Gives what this site should give, if anything.
    pub(super) fn balance(&mut self, turn: &mut Turn, at: usize) {
        self.refill(&turn.here, at);
        let quota = &self.list[at];
        let Some(activity) = &quota.activity else { return };
        let free = quota.avantan.share.free(turn.here.site).saturating_sub(activity.spared(turn.here.now.mono));
        let idle = quota.limit().is_none() || !turn.here.config.redistribute || !activity.waiting.is_empty();
        if idle || free <= 0 {
            return;
        }

        let me = turn.here.position;
        let eligible = |peer: usize| peer != me && quota.gives_to(&turn.here, peer);
        let asked = quota.asked_for(&turn.here, free);
        let asked_of = |peer: usize| asked.get(peer).copied().unwrap_or(0);
        let mut rest = free - asked.iter().sum::<i64>();

        // What is left is thought of as divided by demand. The floor lets a site without any keep some for its first requests.
        let rate = |peer: usize| if peer == me { activity.demand.rate() } else { activity.peers[peer].rate };
        let counted = (0..turn.here.peers.len()).filter(|&peer| peer == me || eligible(peer));
        let others = counted.clone().filter(|&peer| peer != me);
        let (number, rates) =
            counted.clone().fold((0u128, 0u128), |(number, rates), peer| (number + 1, rates + u128::from(rate(peer))));
        let floor = (rates / (4 * number)).max(1);
        let weights: u128 = rates + floor * number;
        let free_here = rest;
        let held = |peer: usize| match peer == me {
            true => free_here,
            false => quota.held(&turn.here, peer).saturating_add(asked_of(peer)),
        };
        let total: u128 = counted.clone().map(|peer| held(peer).max(0) as u128).sum();
        let part = |peer: usize| {
            let weight = u128::from(rate(peer)) + floor;

            // Both factors are below 2⁶⁸; shift so that the product fits.
            ((total >> 4) * weight / weights.max(1) * 16).min(i64::MAX as u128) as i64
        };

        // While requests wait somewhere, what is here may be what they need: it had better be found here than under way.
        let surplus = rest - part(me);
        let mut ahead = Vec::new();
        let is_short = |peer: usize| {
            let share = &activity.peers[peer];
            share.short > 0 && turn.here.now.mono < share.heard_at + SHORT && eligible(peer)
        };
        let calm = !(0..turn.here.peers.len()).any(is_short);
        if surplus > 0 && calm && turn.here.config.ahead {
            // A site that lacks little is left alone: what it lacks changes faster than gifts arrive.
            let deficit = |peer: usize| {
                let (part, held) = (part(peer), held(peer));
                let missing = part.saturating_sub(held);
                if missing > (part / 4).max(0) { missing } else { 0 }
            };
            let poor = others.map(|peer| (peer, deficit(peer))).filter(|&(_, missing)| missing > 0);
            let poor: Vec<(usize, i64)> = poor.collect();

            // Each donor gives the part of a deficit that its surplus is of all: together they give no more than is missing.
            let deficits: i128 = poor.iter().map(|&(_, missing)| i128::from(missing)).sum();
            let surpluses: i128 = match deficits {
                0 => 0,
                _ => counted.map(|peer| i128::from((held(peer) - part(peer)).max(0))).sum(),
            };
            for (peer, missing) in poor {
                let share = i128::from(missing) * i128::from(surplus) / surpluses.max(deficits).max(1);
                let share = (share as i64).min(rest);
                if share >= part(peer) / SMALL {
                    ahead.push((peer, share));
                    rest -= share;
                }
            }
        }

        assert!(rest >= 0, "more is given away than is free");
        let ahead_of = |peer: usize| ahead.iter().find(|(to, _)| *to == peer).map_or(0, |(_, share)| *share);
        for peer in 0..turn.here.peers.len() {
            let (asked, ahead) = (asked_of(peer), ahead_of(peer));
            if asked + ahead > 0 {
                turn.out.metrics.gifts_asked += u64::from(asked > 0);
                turn.out.metrics.gifts_ahead += u64::from(asked <= 0);
                self.give(turn, at, peer, asked + ahead);
            }
        }
    }

    /// Lowers the tokens and raises the total, in one write; the total is told after it is durable.
    fn give(&mut self, turn: &mut Turn, at: usize, peer: usize, gift: i64) {
        let quota = &mut self.list[at];
        assert!(gift > 0 && gift <= quota.avantan.share.free(turn.here.site), "only free tokens are given away");

        // What an incarnation of the receiver that is gone did not take counts as in use.
        quota.totals.give(peer, turn.here.peers[peer].incarnation, gift as u64);
        quota.avantan.share.tokens -= gift;
        quota.counters.work.gifts += 1;
        self.touch(at, Dirty::All);

        // It is told with the digest of this turn, which leaves when the rows are durable, and again until the receiver says
        // that it has it.
        let now = turn.here.now.mono;
        let activity = self.activity(&turn.here, at);
        activity.peers[peer].is_owed = true;
        activity.active_at = now;
        activity.tick_at = activity.tick_at.min(now + RELAXED_TICK);
        activity.peers[peer].told.repeats = 0;
        self.schedule(at);
        self.tell(turn, at, peer);
    }

    /// Sends a digest.
    pub(super) fn tell(&mut self, turn: &mut Turn, at: usize, peer: usize) {
        let quota = &mut self.list[at];
        let share = &quota.avantan.share;
        let free = share.free(turn.here.site);
        let (given_to, given) = quota.given(peer);
        let (received_from, received) = quota.received(peer);
        let mut digest = Digest {
            quota: quota.name.to_string(),
            generation: share.table.generation,
            applied: share.applied,
            free,
            short: 0,
            first: 0,
            rate: 0,
            given,
            given_to,
            received,
            received_from,
            backlog: quota.backlog_for(peer),
        };
        let backlog = quota.backlog();
        if let Some(activity) = &mut quota.activity {
            digest.short = activity.short(free, turn.here.now.mono);
            digest.first = activity.first_short(free);
            digest.rate = if self.gifts.leaving.is_some() { 0 } else { activity.demand.rate() };
            let repeats = activity.peers[peer].told.repeats;
            activity.peers[peer].told = Told {
                free,
                short: digest.short,
                first: digest.first,
                rate: digest.rate,
                backlog,
                at: turn.here.now.mono,
                repeats,
            };
        }

        // The newest of this turn replaces one just before it; one further back does no harm.
        if self.gifts.digests.len() <= peer {
            self.gifts.digests.resize(turn.here.peers.len(), Vec::new());
        }
        let digests = &mut self.gifts.digests[peer];
        match digests.iter_mut().rev().take(4).find(|earlier| earlier.quota == digest.quota) {
            Some(earlier) => *earlier = digest,
            None => digests.push(digest),
        }
    }

    /// Looks after the share: forecasts, gives, tells, and decides when to look again.
    pub(super) fn look_after(&mut self, turn: &mut Turn, at: usize) {
        let now = turn.here.now.mono;
        let Quota { activity, asked, queued, .. } = &mut self.list[at];
        if let Some(activity) = activity {
            let newly = asked.tokens - std::mem::replace(&mut activity.counted, asked.tokens);
            activity.demand.note(newly.min(i64::MAX as u64) as i64);
            activity.demand.fold(now);
            activity.returns.fold(now);
            *queued = !activity.waiting.is_empty();
        }
        if self.list[at].refills() {
            // What was refilled is for those who wait here, before it is for others.
            self.serve(turn, at);
            self.hand_over(turn, at);
        } else if self.list[at].has_enough_for_one(turn.here.site) {
            // It was held up by one that went from here to the line of another level, and has left that one since.
            self.serve(turn, at);
        }
        self.balance(turn, at);

        let quota = &self.list[at];
        let Some(activity) = &quota.activity else { return };
        let free = quota.avantan.share.free(turn.here.site);
        let rate = activity.demand.rate();
        let total = activity.known_free(&turn.here).saturating_add(free);
        let unrecorded = quota.limit().is_some() && quota.avantan.share.table.is_unrecorded(turn.here.site);
        let (tell, is_awaited) = quota.to_tell(&turn.here, activity, total);
        for (peer, repeat) in tell {
            self.tell(turn, at, peer);
            let activity = self.list[at].activity.as_mut().expect("looked at above");
            activity.peers[peer].told.repeats += u32::from(repeat);
        }
        self.foresee(turn, at);
        self.pay_excess(turn, at);
        if self.has_word(at) {
            self.lead_admin(turn, at);
        }

        // A quota at rest costs no time and little memory, but one about which another site has yet to be told is not at rest.
        let quota = &mut self.list[at];
        let in_round = quota.avantan.in_round() || quota.avantan.share.part().is_some();
        let owes = quota.owes();
        let refills_in = quota.refill_pause(&turn.here);
        let Some(activity) = &mut quota.activity else { return };
        let busy = owes || rate > 0 || !activity.waiting.is_empty() || !activity.admin.is_empty() || in_round;
        if busy || unrecorded {
            activity.active_at = now;
        }
        let scarce = total < activity.demand.forecast(4 * SECOND).max(quota.asked.size.large().saturating_mul(4));
        activity.tick_at = now
            + match () {
                () if busy && scarce => TICK,
                () if busy || (now < activity.active_at + SECOND && !unrecorded) => RELAXED_TICK,
                () if is_awaited || unrecorded => SECOND,
                () if let Some(pause) = refills_in => pause,
                () if now < activity.active_at + REST || activity.leader.records() => REST,
                () => {
                    quota.activity = None;
                    return;
                }
            };
    }

    /// Tells the next page, if it is due.
    pub(super) fn announce(&mut self, turn: &mut Turn) {
        let Some(next) = self.gifts.announcements.open.first().copied() else { return };
        let Announcement { peer, not_before, .. } = next;
        if turn.here.now.mono < self.gifts.announcements.at {
            return;
        }

        // One that is away is told when it is back; the others need not wait for that.
        self.gifts.announcements.at = turn.here.now.mono + PAUSE;
        if !turn.here.peers[peer].is_up(turn.here.now) || turn.here.now.mono < not_before {
            if self.gifts.announcements.open.len() == 1 {
                self.gifts.announcements.at = not_before.max(self.gifts.announcements.at);
            }
            return self.gifts.announcements.open.rotate_left(1);
        }

        let (is_unrecorded, after) = self.announce_page(turn, next);
        let is_unrecorded = is_unrecorded || next.is_unrecorded;
        match after {
            Some(from) => self.gifts.announcements.open[0] = Announcement { from, is_unrecorded, ..next },
            // What it was told may be lost on the way, or with what a crash there takes along.
            None if next.everything && is_unrecorded => {
                let not_before = turn.here.now.mono + AGAIN;
                self.gifts.announcements.open[0] = Announcement { from: 0, is_unrecorded: false, not_before, ..next };
            }
            None => drop(self.gifts.announcements.open.remove(0)),
        }
    }

    /// Tells a member the totals of gifts to it, and of backlog handed over, of the quotas from `from` on; of all quotas if `everything`.
    /// Returns whether one has not recorded it, and where to go on.
    pub(super) fn announce_page(&mut self, turn: &mut Turn, next: Announcement) -> (bool, Option<usize>) {
        let Announcement { peer, from, everything, not_before, .. } = next;
        let is_first = not_before == 0;
        let (mut told, mut is_any_unrecorded) = (0, false);
        let Peer { site, incarnation, .. } = turn.here.peers[peer];
        for at in from..self.list.len() {
            let quota = &self.list[at];
            let handed = quota.backlog_for(peer).map_or(0, |backlog| backlog.given);
            let given = quota.given(peer).1 > 0 || handed > 0;
            let is_unrecorded = quota.limit().is_some() && quota.avantan.share.table.recorded(site) < incarnation;
            is_any_unrecorded |= is_unrecorded;
            let is_told = if is_first { everything || given } else { is_unrecorded };
            if quota.avantan.share.applied > 0 && is_told {
                if given {
                    // It is told again until its receiver says that it has it.
                    let activity = self.activity(&turn.here, at);
                    activity.tick_at = activity.tick_at.min(turn.here.now.mono + SECOND);
                    activity.peers[peer].is_owed = true;
                    self.schedule(at);
                }
                self.tell(turn, at, peer);
                told += 1;
            }
            if told == ANNOUNCED {
                return (is_any_unrecorded, Some(at + 1));
            }
        }

        (is_any_unrecorded, None)
    }

    /// Gives every free token of the quotas from `from` on to the members that are up and not new to them, before the site stops. Returns
    /// where to go on.
    pub(super) fn give_away(&mut self, turn: &mut Turn, from: usize) -> Option<usize> {
        let me = turn.here.position;
        let others = (0..turn.here.peers.len()).filter(|&peer| peer != me);
        let is_any_up = turn.here.config.redistribute && others.clone().any(|peer| turn.here.takes_gifts(peer));
        if !is_any_up && turn.here.drained.is_none() {
            return None;
        }

        // Only what is free: what is set aside for a round is moved by its outcome.
        let end = (from + ANNOUNCED).min(self.list.len());
        for at in from..end {
            if self.list[at].limit().is_none() {
                continue;
            }

            // Nobody stays in line where nothing is granted any more.
            if turn.here.drained.is_some() {
                self.end_line(turn, at);
            }
            let quota = &self.list[at];
            let takers: Vec<usize> =
                others.clone().filter(|&peer| is_any_up && quota.gives_to(&turn.here, peer)).collect();
            if takers.is_empty() {
                continue;
            }
            self.refill(&turn.here, at);
            let free = self.list[at].avantan.share.free(turn.here.site);
            let (each, extra) = (free / takers.len() as i64, free % takers.len() as i64);
            for (order, &peer) in takers.iter().enumerate() {
                let gift = each + i64::from((order as i64) < extra);
                if gift > 0 {
                    turn.out.metrics.gifts_leaving += 1;
                    self.give(turn, at, peer, gift);
                }
            }
            self.leave_backlog(turn, at, &takers);
        }

        (end < self.list.len()).then_some(end)
    }

    /// Sends all who are in line for tokens of a quota to another site.
    fn end_line(&mut self, turn: &mut Turn, at: usize) {
        let Some(activity) = &mut self.list[at].activity else { return };
        let waiting: Vec<_> = activity.waiting.take_all().collect();
        activity.note_deadlines();
        for request in waiting {
            self.finish(turn, request.ticket, Outcome::Refused(Refusal::NotReady));
        }
    }
}

impl Quota {
    /// Tokens given to the member's present incarnation that it has not reported yet.
    pub(super) fn under_way(&self, here: &Here, peer: usize, share: &PeerShare) -> i64 {
        // What an earlier incarnation of it had received is no sign of what the present one has.
        let present = here.peers[peer].incarnation;
        let received = if share.said_by == present { share.received } else { 0 };
        self.totals.under_way(peer, present, received).min(i64::MAX as u128) as i64
    }

    /// True if something that was given to a member, or backlog that was handed over, may not have arrived there. Of one at rest this site has
    /// been told that all has; how much that was it has not heard again, when one has just begun.
    pub(super) fn is_away(&self, here: &Here, peer: usize) -> bool {
        let share = self.activity.as_ref().map(|activity| &activity.peers[peer]);
        let share = share.filter(|share| share.is_owed);
        share.is_some_and(|share| self.under_way(here, peer, share) > 0 || self.backlog_under_way(here, peer) > 0)
    }

    /// True if what is given to the member at this position would be of use there: one that is new to the quota grants nothing.
    pub(super) fn gives_to(&self, here: &Here, position: usize) -> bool {
        let (peer, table) = (&here.peers[position], &self.avantan.share.table);
        here.takes_gifts(position) && !table.is_new_at(peer.site, peer.incarnation, peer.since)
    }

    /// True if there is what one of those wants who wait here.
    fn has_enough_for_one(&self, site: Membership) -> bool {
        let least = self.activity.as_ref().map_or(0, |activity| activity.waiting.least());
        least > 0 && self.avantan.share.free(site) >= least
    }

    /// Tokens free at a member, by what it said last. A gift counts as there from when it is given, or several digests that cross it would
    /// each be answered by another.
    fn held(&self, here: &Here, peer: usize) -> i64 {
        let Some(activity) = &self.activity else { return 0 };
        let share = &activity.peers[peer];
        share.free.max(0).saturating_add(self.under_way(here, peer, share))
    }

    /// What this site gives each member where requests wait, of `free` tokens; empty if they wait nowhere.
    ///
    /// Every site that has tokens gives its part of what is missing, if all of it can be had. If not, they would be refused all the same,
    /// except for those that stay in line: these get what there is, if it suffices for the first of them.
    fn asked_for(&self, here: &Here, free: i64) -> Vec<i64> {
        let Some(activity) = &self.activity else { return Vec::new() };
        let eligible = |peer: usize| peer != here.position && self.gives_to(here, peer);
        let members = 0..here.peers.len();
        let mut short = members.clone().filter(|&peer| eligible(peer) && activity.peers[peer].short > 0).peekable();
        if short.peek().is_none() {
            return Vec::new();
        }
        let mut gifts = vec![0i64; here.peers.len()];
        let mut rest = free;
        for poor in short {
            let share = &activity.peers[poor];
            let coming = self.under_way(here, poor, share);
            let (missing, first) = (share.short - coming, share.first.saturating_sub(coming));

            // One where somebody stays in line gives nothing.
            let gives = |peer: usize| eligible(peer) && activity.peers[peer].first <= 0;
            let others = members.clone().filter(|&peer| gives(peer) && peer != poor);
            let elsewhere: i128 = others.map(|peer| i128::from(self.held(here, peer))).sum::<i128>() + i128::from(free);
            let is_for_all = i128::from(missing) <= elsewhere;
            let given = i128::from(if is_for_all { missing } else { first });
            if given > 0 && given <= elsewhere {
                let part = (given * i128::from(free) + elsewhere - 1) / elsewhere;
                gifts[poor] = (part as i64).min(rest);
                rest -= gifts[poor];
            }
        }

        gifts
    }

    /// The members to tell of this site's share, each with whether that is the same again, of which it is told ever more slowly; and whether
    /// this site waits for a member to have heard of something. `total` is what is free at all sites, by what this one knows.
    fn to_tell(&self, here: &Here, activity: &Activity, total: i64) -> (Vec<(usize, bool)>, bool) {
        let now = here.now.mono;
        let free = self.avantan.share.free(here.site);
        let rate = activity.demand.rate();
        let (short, first) = (activity.short(free, now), activity.first_short(free));

        // Worth telling: an eighth of a site's part of all that is free.
        let noticeable = (total / (8 * here.peers.len() as i64)).max(1);
        let patience = 2 * here.longest_round_trip() + 100 * MILLISECOND;
        let unrecorded = self.limit().is_some() && self.avantan.share.table.is_unrecorded(here.site);

        // A member that was in no round since the limit was changed, and has not said that it knows, may not know of it. It is told for a while;
        // and, as it may have what is to be taken, until nothing is in excess.
        let table = &self.avantan.share.table;
        let (is_over, is_changed) = (table.is_over(), table.limited != table.created);
        let is_unreached =
            |site: SiteId| is_changed && table.settled(site).is_none_or(|settled| settled.instance < table.limited);

        let mut is_awaited = false;
        let mut tell = Vec::new();
        for (peer, share) in activity.peers.iter().enumerate() {
            let has_said = share.said_by == here.peers[peer].incarnation && share.applied >= table.limited;
            let may_not_know = is_unreached(here.peers[peer].site) && !has_said;
            let is_told = here.config.redistribute || may_not_know || unrecorded;
            // One that is gone never says that it knows, and has nothing that could be taken.
            if peer == here.position || here.peers[peer].gone || !is_told || self.limit().is_none() {
                continue;
            }
            let told = &share.told;
            let pending = self.under_way(here, peer, share) > 0 || self.backlog_under_way(here, peer) > 0;
            is_awaited |= pending || (may_not_know && is_over);
            let news = (free - told.free).abs() >= noticeable
                || (short > 0) != (told.short > 0)
                || first != told.first
                || self.is_backlog_news(here, told.backlog)
                || rate.abs_diff(told.rate) > (told.rate / 4).max(noticeable as u64 / 8).max(1);
            let repeat = pending && now >= told.at + (patience << told.repeats.min(6)).min(REPEAT);

            // The others may have missed that this site is new, and it has nothing else to tell: ever more slowly.
            let insists = unrecorded || may_not_know || first > 0;
            let greet = match insists {
                true => now >= told.at + (SECOND << told.repeats.min(GREETINGS)),
                false => rate > 0 && told.at == 0 && now >= SECOND,
            };
            if here.peers[peer].is_up(here.now) && (news || repeat || greet) {
                tell.push((peer, repeat || (greet && insists)));
            }
        }

        (tell, is_awaited)
    }
}
