//! Why a round is led for a quota, and what its outcome means for the requests that wait. When it is led, and how long it is
//! waited for, is [`Leader`](crate::avantan::Leader)'s.
//!
//! | the site is | it |
//! | --- | --- |
//! | short, and peers are known to have enough | tells them, and leads a round if gifts have not ended the shortage in one round trip |
//! | short otherwise | leads a round at once |
//! | about to be short, and no gift comes though peers have enough | leads a round |
//! | asked to create or delete the quota, to change its limit, or to reclaim what is lost | leads a round |
//! | in possession of tokens while more is out than the limit | leads a round, which takes them |
//! | told of a new incarnation that no round has recorded | leads a round in which nothing moves |

use std::collections::VecDeque;

use super::book::{Place, Quotas, RELAXED_TICK, SECOND_LOOK, TICK};
use super::line::ROUNDS;
use super::one::{Admin, Dirty, PeerShare, Quota};
use super::serve::created;
use crate::api::{Outcome, Refusal, UnknownReason};
use crate::avantan::{Due, Intent, Lifecycle, Message, Moment, Offer, Phase, Progress, Report, Role, Scope, Step};
use crate::clock::{MILLISECOND, SECOND};
use crate::gift::Totals;
use crate::id::{SiteId, SiteSet};
use crate::peer::quota::QuotaMessage;
use crate::session::Aim;
use crate::turn::{Here, Peer, Ticket, Turn};

/// The time ahead for which a site asks for tokens in a round, in microseconds.
const EPOCH: u64 = 5 * SECOND;
/// The least time between the last news of tokens and a round that takes what is over the limit: what comes back in between goes with
/// it.
const PAYMENTS: u64 = SECOND;
/// Requests are left to what comes back at their site for this part of the longest round trip, if this many times what they lack is
/// expected by then.
const HOPE: u64 = 2;
/// The most operations that may wait for the creation or deletion of one quota: each look at them is a walk over all.
const ADMIN: usize = 256;
/// Between two rounds ahead of need that each leave this site short, one second is doubled so often at most: a minute.
const AHEAD_IN_VAIN: u32 = 6;
/// A request for more than this part of the limit waits for gifts that are on their way elsewhere.
const LARGE: i64 = 64;

/// Why a round is led, for the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Something waits for it.
    Reactive,
    /// Something would have to wait soon.
    Proactive,
    /// What another leader began is to be brought to an end, a new incarnation recorded, or tokens taken that are over the limit.
    Recovery,
}

/// The time, for the leader of a round.
pub(super) fn moment(here: &Here) -> Moment {
    Moment { now: here.now.mono, round_trip: here.longest_round_trip() }
}

impl Quotas {
    /// Handles a message of a quota's agreement.
    pub(super) fn agreement(&mut self, turn: &mut Turn, from: SiteId, quota: &str, message: Message) {
        // A message that asks nothing of this site and tells it nothing durable must not make it remember a name.
        let creates = matches!(message, Message::Election { .. } | Message::Accept { .. } | Message::Decided { .. });
        let at = if creates { self.position_or_new(&turn.here, quota) } else { self.position(quota) };
        let at = at.filter(|_| !self.is_frozen(quota) && !self.refuses_seat(&turn.here, quota, &message));
        let Some(at) = at else {
            turn.out.metrics.ignored += 1;
            return;
        };

        // No round records this site where nothing exists, nor where a leader gave up because too few may vote.
        let exists = self.list[at].limit().is_some();
        if match message {
            Message::Election { .. } | Message::Accept { .. } => !exists,
            Message::Withdraw { .. } => exists,
            _ => false,
        } {
            self.ask_whether_it_may_vote(turn, at);
        }

        // Some site wants it: it is not forgotten right now.
        if creates && !exists {
            self.note_absent(&turn.here, at);
        }

        self.refill(&turn.here, at);
        let mut offer = self.offer(&turn.here, at);

        // The leader may not know of a quota below this one.
        offer.stays = matches!(message, Message::Election { scope: Scope::Closing, .. }) && self.has_children(at);
        let may_be_in_vain =
            matches!(message, Message::Election { scope: Scope::Closing, .. } | Message::Withdraw { .. });
        let is_in_vain = may_be_in_vain && self.list[at].avantan.has_offered_open();
        let before = self.standing(&turn.here, at);
        let mut step = Step::default();
        self.list[at].avantan.handle(turn.here.site, from, message, |_| offer, &mut step);

        // A report that is repeated says nothing new: the leader counts the first.
        let reported = step.sends.iter().any(|(_, message)| matches!(message, Message::Report { .. }));
        if reported
            && step.changed
            && let Some(activity) = &mut self.list[at].activity
        {
            activity.waiting.note_offer();
        }

        // What waits has enough: every further report would only set more aside.
        if self.is_covered(&turn.here, at) {
            self.list[at].avantan.build(turn.here.site, &mut step);
        }
        self.conclude_step(turn, at, before, step);

        // Any message of a leader in whose round this site is may be its last. But a deletion comes to nothing as long as the round goes on to
        // which this site has offered before: it is asked for again and again, and would put off for ever what ends that one.
        if self.list[at].avantan.follows() {
            let leader = &mut self.activity(&turn.here, at).leader;
            if !is_in_vain || !leader.waits() {
                leader.follow(moment(&turn.here), turn.out.rng);
            }
        }

        self.schedule(at);
    }

    /// Sets things going for the requests that wait.
    pub(super) fn seek(&mut self, turn: &mut Turn, at: usize) {
        let now = turn.here.now.mono;
        let quota = &self.list[at];
        let free = quota.avantan.share.free(turn.here.site).max(0);
        let Some(activity) = &quota.activity else { return };
        let is_settled = activity.waiting.is_empty() || turn.here.is_alone() || quota.avantan.share.part().is_some();
        if is_settled || !quota.avantan.is_idle() || activity.shortage.asked_for_gifts {
            return;
        }
        if !activity.leader.may_start(now) {
            return self.activity(&turn.here, at).leader.look_at_retry();
        }

        // Tokens that come back here are nearer than those of others. Where so many come back, others are asked for what is still lacking
        // when they would have answered halfway: else each site would have moved what the next request there needs.
        let short = activity.needed().saturating_sub(free);
        let horizon = turn.here.longest_round_trip() / HOPE;
        let has_time = activity.deadline_at >= now.saturating_add(horizon + 2 * turn.here.longest_round_trip());
        match activity.shortage.hopes_until {
            Some(until) if now < until => return self.activity(&turn.here, at).leader.look_at(until),
            None if has_time && activity.returns.forecast(horizon) >= short.saturating_mul(HOPE as i64) => {
                let activity = self.activity(&turn.here, at);
                activity.shortage.hopes_until = Some(now + horizon);
                return activity.leader.wait(now, horizon);
            }
            _ => {}
        }

        if activity.known_free(&turn.here) >= short.saturating_add(short / 4) {
            // Probably a gift from those who have it ends this sooner, and stops nobody.
            let patience = turn.here.longest_round_trip() * SECOND_LOOK / 100 + 5 * MILLISECOND;
            let activity = self.activity(&turn.here, at);
            activity.shortage.asked_for_gifts = true;
            activity.leader.wait(now, patience);
            let me = turn.here.position;
            for peer in (0..turn.here.peers.len()).filter(|&peer| peer != me) {
                self.tell(turn, at, peer);
            }
            return;
        }

        self.lead(turn, at, Intent::Move, Cause::Reactive);
    }

    /// Leads a round before requests have to wait, if the forecast says that they would and no gift comes.
    pub(super) fn foresee(&mut self, turn: &mut Turn, at: usize) {
        let now = turn.here.now.mono;
        let quota = &self.list[at];
        let Some(activity) = &quota.activity else { return };
        let rate = activity.demand.rate();
        let calm = activity.waiting.is_empty()
            && !quota.avantan.in_round()
            && quota.avantan.share.part().is_none()
            && activity.leader.may_start(now)
            && self.gifts.leaving.is_none()
            && !quota.avantan.share.table.is_new(turn.here.site);
        let foresees = turn.here.config.redistribute && turn.here.config.ahead;
        if rate == 0 {
            // Nothing is expected any more: what comes next is looked at anew.
            self.activity(&turn.here, at).shortage.ahead.1 = 0;
            return;
        }
        if !calm || !foresees || quota.limit().is_none() {
            return;
        }
        let lacking = activity.demand.forecast(SECOND).max(quota.asked.size.large());
        let elsewhere = activity.known_free(&turn.here);
        let (fed_at, (led_at, in_vain)) = (activity.shortage.fed_at, activity.shortage.ahead);
        if quota.avantan.share.free(turn.here.site) >= lacking {
            self.activity(&turn.here, at).shortage.ahead.1 = 0;
            return;
        }

        // Where others expect far more, each round brings little here, and the next would bring no more: ever more slowly.
        let has_patience = now >= fed_at + SECOND && now >= led_at + (SECOND << in_vain.min(AHEAD_IN_VAIN));
        if has_patience && elsewhere >= lacking.saturating_mul(2 * turn.here.peers.len() as i64) {
            self.lead(turn, at, Intent::Move, Cause::Proactive);
            if !self.list[at].avantan.is_idle() || self.list[at].is_any() {
                self.activity(&turn.here, at).shortage.ahead = (now, in_vain.saturating_add(1));
            }
        }
    }

    /// Leads a round for the tokens that are here while more is out than the limit. Any round takes what all sites have, so one of
    /// them begins, and the others' tokens go with it.
    pub(super) fn pay_excess(&mut self, turn: &mut Turn, at: usize) {
        let now = turn.here.now.mono;
        let quota = &self.list[at];
        let Some(activity) = &quota.activity else { return };
        let table = &quota.avantan.share.table;
        let calm =
            quota.avantan.is_idle() && activity.leader.may_start(now) && now >= activity.shortage.fed_at + PAYMENTS;
        if quota.owes() && calm && table.has_majority(turn.here.site, turn.here.sight()) {
            self.lead(turn, at, Intent::Gather, Cause::Recovery);
        }
    }

    /// Creates or deletes a quota, changes its limit, or reclaims what is lost of it, by a round.
    pub(super) fn administer(&mut self, turn: &mut Turn, at: usize, mut admin: Admin) {
        // An earlier try of the same operation may have got a value accepted: then it cannot be taken back either.
        let share = &self.list[at].avantan.share;
        let generation = share.table.generation;
        let accepted = share.round.as_ref().and_then(|round| Some((round.instance, round.accepted.as_ref()?)));
        let out = accepted.map(|(instance, (_, value))| (instance, value.lifecycle));
        let number = self.list[at].number;
        admin.aim = out.filter(|(_, lifecycle)| *lifecycle != Lifecycle::Keep).and_then(|(instance, lifecycle)| {
            let change = self.aimed(&turn.here, at, &admin, lifecycle)?;
            Some(Aim { quota: number, generation, instance, change })
        });

        let now = turn.here.now.mono;
        let activity = self.activity(&turn.here, at);

        // A creation may come to nothing: the name is looked at again, and forgotten what was noted of it.
        activity.tick_at = activity.tick_at.min(now + RELAXED_TICK);
        if activity.admin.len() >= ADMIN || !turn.out.admit() {
            turn.out.finished.push((admin.ticket, Outcome::Refused(Refusal::Overloaded)));
            return self.schedule(at);
        }

        let ticket = admin.ticket;
        activity.deadline_at = activity.deadline_at.min(admin.deadline);
        activity.admin.push_back(admin);
        self.waits.places.insert(ticket, Place::Admin { at: at as u32 });
        self.waits.administering += 1;
        if self.waits_to_be_recorded(&turn.here, at) {
            self.activity(&turn.here, at).leader.record_by(now);
        }
        self.lead_admin(turn, at);
        self.schedule(at);
    }

    /// Leads the round that the first waiting creation or deletion needs, if none is under way.
    pub(super) fn lead_admin(&mut self, turn: &mut Turn, at: usize) {
        // What is there already needs no round.
        self.finish_admin(turn, at);
        let here = turn.here;
        if self.refuse_admin(turn, at, |quotas, admin| quotas.is_ready(&here, at, admin).err()) {
            // What is refused must not take effect by the election that is under way for it.
            self.withdraw_admin_round(turn, at);
        }

        // One that waits for an incarnation to be recorded does not hold up those behind it.
        let quota = &self.list[at];
        let waiting = || quota.activity.iter().flat_map(|activity| &activity.admin);
        let Some(first) = waiting().find(|admin| self.is_ready(&turn.here, at, admin) == Ok(true)) else {
            // What it is to be below may be about to be deleted. Nobody tells what comes of that.
            if waiting().any(|admin| matches!(admin.change, Lifecycle::Create { .. })) {
                self.activity(&here, at).leader.look_at(here.now.mono + RELAXED_TICK);
            }
            return;
        };
        let intent = match first.change {
            Lifecycle::Create { limit, charter } => Intent::Create { limit, charter },
            Lifecycle::Resize { limit } => Intent::Resize { limit },
            Lifecycle::Delete => Intent::Delete,
            Lifecycle::Reclaim { in_use, .. } => Intent::Reclaim { in_use },
            Lifecycle::Seat { site, gone } => Intent::Seat { site, gone },
            Lifecycle::Keep => unreachable!("nobody waits for nothing"),
        };
        let label = first.label.clone();
        let now = turn.here.now.mono;

        // A round among a subset ends soon, and a share that is in it has nothing to offer, and does not close.
        if !quota.avantan.is_idle() || quota.avantan.share.part().is_some() {
            return;
        }
        if quota.activity.as_ref().is_some_and(|activity| !activity.leader.may_change(now)) {
            return self.activity(&turn.here, at).leader.look_at_change();
        }
        self.list[at].avantan.label = label;
        self.lead(turn, at, intent, Cause::Reactive);
    }

    fn lead(&mut self, turn: &mut Turn, at: usize, intent: Intent, cause: Cause) {
        // Nothing is begun with a name that may be forgotten already.
        let is_frozen = self.is_frozen(&self.list[at].name);

        // What a round among a subset brings could not be granted by a site that is new to the quota.
        let is_among_subset = self.list[at].is_any() && intent == Intent::Move && cause != Cause::Recovery;
        if is_among_subset && !is_frozen && !self.list[at].avantan.share.table.is_new(turn.here.site) {
            return self.lead_subset(turn, at, cause);
        }
        if is_frozen || !self.list[at].avantan.may_vote(turn.here.site) {
            if !is_frozen {
                // Not recorded yet: this site's digests make the others do it.
                self.ask_whether_it_may_vote(turn, at);
            }
            let activity = self.activity(&turn.here, at);
            activity.tick_at = activity.tick_at.min(activity.leader.put_off(moment(&turn.here)));
            return;
        }

        match cause {
            Cause::Reactive => turn.out.metrics.rounds_reactive += 1,
            Cause::Proactive => turn.out.metrics.rounds_proactive += 1,
            Cause::Recovery => turn.out.metrics.rounds_recovery += 1,
        }

        // After a round in vain, what the sites kept back then is what the requests that wait may need.
        self.refill(&turn.here, at);
        let mut offer = self.offer(&turn.here, at);
        offer.stays = intent == Intent::Delete && self.has_children(at);
        let before = self.standing(&turn.here, at);
        let again = self.list[at].activity.as_ref().is_some_and(|activity| activity.gathers());
        let intent = if intent == Intent::Move && again { Intent::Gather } else { intent };
        let mut step = Step::default();
        let (avantan, activity) = self.parts(&turn.here, at);
        activity.leader.lead(moment(&turn.here), avantan, turn.here.site, (intent, offer), &mut step);
        activity.waiting.note_offer();
        activity.shortage.asked_for_gifts = false;
        self.conclude_step(turn, at, before, step);
    }

    /// What this site is ready to say to a round.
    pub(super) fn offer(&self, here: &Here, at: usize) -> Offer {
        let quota = &self.list[at];
        let away = quota.totals.away(|position| here.peers[position].incarnation);
        let used = quota.used_if_agreed(here);
        let Some(activity) = &quota.activity else { return Offer { away, used, ..Offer::default() } };
        let needed = activity.waiting.needed_first();
        if self.gifts.leaving.is_some() {
            return Offer { away, used, needed, wanted: needed, ..Offer::default() };
        }

        // Goes on serving from some while the round lasts; where requests wait, the round should have it all.
        // Never more than half of it, and nothing without demand, or there would be tokens that nobody can reach.
        let soon = activity.demand.forecast(SECOND).max(quota.asked.size.large());
        let free = quota.avantan.share.tokens;
        let keeps = needed == 0 && activity.demand.rate() > 0;
        let kept = if keeps { soon.saturating_mul(2).min(free / 2) } else { 0 };

        // What is saved for one that stays in line is not for those who wait elsewhere, unless all is gathered.
        let kept = if activity.waiting.has_staying() { free } else { kept };
        let kept = kept.max(activity.spared(here.now.mono).min(free));
        Offer {
            kept,
            away,
            used,
            needed,
            stays: false,
            wanted: needed.saturating_add(activity.demand.forecast(EPOCH)).saturating_add(soon),
        }
    }

    /// Does what is due for one quota.
    pub(super) fn wake(&mut self, turn: &mut Turn, at: usize) {
        let now = turn.here.now.mono;
        let Some(activity) = &self.list[at].activity else { return };
        let (tick, phase) = (activity.tick_at <= now, activity.leader.is_phase_over(now));
        if activity.deadline_at <= now {
            self.expire_waiting(turn, at);
        }
        if phase {
            self.phase(turn, at);
        }
        if self.list[at].activity.as_ref().is_some_and(|activity| activity.pace.deadline() <= now) {
            self.subset_due(turn, at);
        }
        if self.list[at].activity.as_ref().is_some_and(|activity| activity.leader.is_recording_due(now)) {
            self.record(turn, at);
        }

        if tick {
            self.look_after(turn, at);
        }
    }

    /// A member is new, and no round has recorded it.
    pub(super) fn record_soon(&mut self, turn: &mut Turn, at: usize) {
        let activity = self.activity(&turn.here, at);
        activity.leader.record_soon(moment(&turn.here), turn.out.rng);
        self.schedule(at);
    }

    /// Leads a round that records new incarnations, if it can come to anything; else looks again later.
    fn record(&mut self, turn: &mut Turn, at: usize) {
        let (site, sight) = (turn.here.site, turn.here.sight());
        let quota = &self.list[at];
        let (may_vote, table) = (quota.avantan.may_vote(site), &quota.avantan.share.table);
        let is_unrecorded = may_vote && table.is_unrecorded(site);
        let is_wanted = table.has_unrecorded(site, sight) || is_unrecorded || table.is_before(site);
        let is_new = table.is_new(site);
        let activity = self.activity(&turn.here, at);
        activity.leader.record_again(turn.here.now.mono, turn.out.rng, is_wanted);
        if is_new && activity.admin.iter().any(|admin| matches!(admin.change, Lifecycle::Create { .. })) {
            // A client waits for it, and no longer than it says.
            activity.leader.record_by(turn.here.now.mono + SECOND);
        }
        if !is_wanted {
            return;
        }

        let avantan = &self.list[at].avantan;
        if may_vote && avantan.is_idle() && avantan.share.table.has_majority(site, sight) {
            self.lead(turn, at, Intent::Record, Cause::Recovery);
        }

        self.schedule(at);
    }

    /// Ends what has waited for as long as its client has patience.
    fn expire_waiting(&mut self, turn: &mut Turn, at: usize) {
        let now = turn.here.now.mono;
        let failed = self.unreachable(&turn.here, at);
        while let Some(activity) = &mut self.list[at].activity {
            let Some(request) = activity.waiting.take_overdue(now) else { break };
            turn.out.metrics.refused_waited += 1;

            // Rounds that were decided may all have been in vain for one that stays.
            let has_failed = match request.stays {
                Some(_) => activity.leader.lacks_answers(),
                None => activity.leader.failures() > 0,
            };
            let refusal = if has_failed && !failed.is_empty() {
                Refusal::Unreachable { missing: failed }
            } else {
                Refusal::DeadlinePassed
            };
            self.finish(turn, request.ticket, Outcome::Refused(refusal));
        }

        // One that stayed in line may have held up those behind it.
        self.serve(turn, at);

        let Some(activity) = &mut self.list[at].activity else { return };
        let (over, left) = std::mem::take(&mut activity.admin).into_iter().partition(|admin| admin.deadline <= now);
        activity.admin = left;
        activity.note_deadlines();
        let over: VecDeque<Admin> = over;
        if over.is_empty() {
            return;
        }
        for admin in over {
            // A value that carries it out may be accepted somewhere, or not: nobody can say yet.
            let outcome = match admin.aim {
                // Its row tells what became of it, once that is known.
                Some(aim) => {
                    turn.out.undecided.push((admin.ticket, aim));
                    Outcome::Unknown(UnknownReason::Undecided)
                }
                // All are up: there was not enough time.
                None if failed.is_empty() => Outcome::Refused(Refusal::DeadlinePassed),
                None => Outcome::Refused(Refusal::Unreachable { missing: failed }),
            };
            self.finish(turn, admin.ticket, outcome);
        }

        self.withdraw_admin_round(turn, at);
    }

    /// Takes back a creation or deletion that waits; false if a value that carries it out may be accepted somewhere.
    pub(super) fn withdraw_admin(&mut self, turn: &mut Turn, at: usize, ticket: Ticket) -> bool {
        let activity = self.list[at].activity.as_mut().expect("a quota where somebody waits is active");
        let found = activity.admin.iter().position(|admin| admin.ticket == ticket && admin.aim.is_none());
        let Some(found) = found else { return false };

        // No value that carries it out has left this site: now none will.
        activity.admin.remove(found);
        activity.note_deadlines();
        self.waits.administering -= 1;
        self.withdraw_admin_round(turn, at);
        self.schedule(at);
        true
    }

    /// The members that a round of this quota cannot reach.
    fn unreachable(&self, here: &Here, at: usize) -> SiteSet {
        let quota = &self.list[at];
        let leader = quota.activity.as_ref().map(|activity| &activity.leader);
        leader.map_or(SiteSet::default(), |leader| leader.unreachable(&quota.avantan, here.site, here.sight()))
    }

    /// Gives up an election for a creation or deletion that nobody waits for any more.
    pub(super) fn withdraw_admin_round(&mut self, turn: &mut Turn, at: usize) {
        let Role::Electing { intent, .. } = self.list[at].avantan.role() else { return };

        // One that was withdrawn must not take effect because another one waits.
        let change = match *intent {
            Intent::Create { limit, charter } => Lifecycle::Create { limit, charter },
            Intent::Delete => Lifecycle::Delete,
            Intent::Resize { limit } => Lifecycle::Resize { limit },
            Intent::Reclaim { in_use } => Lifecycle::Reclaim { brought: 0, in_use },
            Intent::Seat { site, gone } => Lifecycle::Seat { site, gone },
            Intent::Move | Intent::Gather | Intent::Record => return,
        };

        // Nor because another says the same of other incarnations.
        let is_led = |admin: &Admin| admin.change == change && self.is_ready(&turn.here, at, admin) == Ok(true);
        let activity = self.list[at].activity.as_ref();
        if !activity.is_some_and(|activity| activity.admin.iter().any(is_led)) {
            let before = self.standing(&turn.here, at);
            let mut step = Step::default();
            self.list[at].avantan.withdraw(turn.here.site, &mut step);
            self.conclude_step(turn, at, before, step);
        }
    }

    /// The time of the present phase is over.
    fn phase(&mut self, turn: &mut Turn, at: usize) {
        let before = self.standing(&turn.here, at);
        let (here, mut step) = (&turn.here, Step::default());
        let (avantan, activity) = self.parts(here, at);
        let due = activity.leader.tick(moment(here), turn.out.rng, avantan, here.site, here.sight(), &mut step);
        match due {
            Due::Stepped => self.conclude_step(turn, at, before, step),
            Due::Finish => self.lead(turn, at, Intent::Move, Cause::Recovery),
            Due::Idle => {
                self.lead_admin(turn, at);

                // What is led now answers the requests that wait, too.
                if self.list[at].avantan.is_idle() {
                    let asked = self.list[at].activity.as_mut().is_some_and(|activity| {
                        std::mem::take(&mut activity.shortage.asked_for_gifts) && !activity.waiting.is_empty()
                    });
                    if asked {
                        self.lead(turn, at, Intent::Move, Cause::Reactive);
                    } else {
                        self.seek(turn, at);
                    }
                }
            }
        }

        self.schedule(at);
    }

    /// Returns true if our election has promises from a majority whose offers cover what everybody needs: no use in waiting for
    /// the rest.
    fn is_covered(&self, here: &Here, at: usize) -> bool {
        let Role::Electing { reports, intent: Intent::Move | Intent::Gather, .. } = self.list[at].avantan.role() else {
            return false;
        };
        let is_promise = |report: &&Report| report.promises && here.site.is_present(report.line.site);
        let promises = reports.iter().filter(is_promise).count();
        let held: i128 = reports.iter().map(|report| i128::from(report.line.held)).sum();
        let wanted: i128 = reports.iter().map(|report| i128::from(report.line.wanted)).sum();

        // A new incarnation can be recorded only by a round that has its report; and what is to be created, only the report
        // of a site that has voted for it may tell.
        let table = &self.list[at].avantan.share.table;
        let exists = table.limit.is_some();
        exists && promises >= here.site.majority() && held >= wanted && !table.has_unrecorded(here.site, here.sight())
    }

    /// What a later [`Quotas::conclude_step`] compares with.
    fn standing(&self, here: &Here, at: usize) -> Standing {
        let share = &self.list[at].avantan.share;
        Standing {
            generation: share.table.generation,
            exists: share.table.limit.is_some(),
            limit: share.table.limit,
            is_below: share.table.charter.parent.is_some(),
            is_closing: self.list[at].is_closing(),
            free: share.free(here.site),
            phase: Phase::of(&self.list[at].avantan),
        }
    }

    /// Carries out what a step of the agreement came to.
    fn conclude_step(&mut self, turn: &mut Turn, at: usize, before: Standing, step: Step) {
        turn.out.metrics.ignored += u64::from(step.ignored);
        let progress = before.phase.progress(&self.list[at].avantan, &step);
        if step.changed {
            self.touch(at, Dirty::All);
            self.note_seats(&turn.here, at);

            // Where one site is all, the next operation of the batch meets it.
            self.note_parent(at);
        }

        // They leave when the rows of this turn are durable: promises, votes, and what is set aside.
        let quota = &mut self.list[at];
        for (to, message) in step.sends {
            turn.out.send(to, QuotaMessage::agreement(&*quota.name, message));
        }

        if progress == Progress::Proposed {
            // A value is out: from here on a creation or deletion can no longer be taken back.
            let accepted = quota.avantan.share.round.as_ref().and_then(|round| round.accepted.as_ref());
            let lifecycle = accepted.map(|(_, value)| value.lifecycle);
            let generation = quota.avantan.share.table.generation;
            let (instance, number) = (quota.avantan.share.applied + 1, quota.number);
            self.activity(&turn.here, at).leader.collect(moment(&turn.here));
            if let Some(lifecycle) = lifecycle.filter(|lifecycle| *lifecycle != Lifecycle::Keep) {
                let waiting = self.list[at].activity.iter().flat_map(|activity| &activity.admin);
                let changes: Vec<_> = waiting.map(|admin| self.aimed(&turn.here, at, admin, lifecycle)).collect();
                let activity = self.activity(&turn.here, at);
                for (admin, change) in activity.admin.iter_mut().zip(changes) {
                    let Some(change) = change else { continue };
                    let aim = Aim { quota: number, generation, instance, change };
                    if admin.aim.replace(aim) != Some(aim) {
                        turn.out.undecided.push((admin.ticket, aim));
                    }
                }
            }
        }

        if progress == Progress::Decided {
            return self.adopted(turn, at, before);
        }
        if self.list[at].avantan.share.free(turn.here.site) > before.free {
            // What was set aside for a ballot that came to nothing.
            self.serve(turn, at);
        }
        if before.is_closing && !self.list[at].is_closing() {
            // It stays: what is to be created below it waited for that.
            self.answer_lookup(turn, at);
        }
        if let Some(unfit) = step.unfit {
            self.refuse_unfit(turn, at, unfit);
        }

        if let Progress::Failed { records } = progress {
            self.failed(turn, at, records);
        }
    }

    /// An election came to nothing.
    fn failed(&mut self, turn: &mut Turn, at: usize, was_recording: bool) {
        // It says nothing of what requests may hope for.
        if was_recording {
            self.activity(&turn.here, at).leader.fail_to_record();
            self.seek(turn, at);
            return self.lead_admin(turn, at);
        }
        let in_round = self.list[at].avantan.in_round();
        let activity = self.activity(&turn.here, at);
        let wanted = !activity.waiting.is_empty() || !activity.admin.is_empty() || in_round;
        activity.leader.fail(moment(&turn.here), turn.out.rng, wanted);
    }

    /// An instance was decided and applied.
    fn adopted(&mut self, turn: &mut Turn, at: usize, before: Standing) {
        let now = turn.here.now.mono;
        let table = &self.list[at].avantan.share.table;
        if table.generation != before.generation || !(before.exists && table.limit.is_some()) {
            self.begin_generation(turn, at, before.exists);
        } else {
            self.list[at].counters.work.rebalances += 1;
            turn.out.metrics.rebalances += 1;
        }
        let table = &self.list[at].avantan.share.table;
        let is_less = table.limit < before.limit || table.generation != before.generation;
        let is_less_elsewhere = is_less && (before.is_below || self.has_children(at));
        let quota = &mut self.list[at];

        // A site that may not vote, or may not grant because it is new, sees to it that it may. While more is out than the limit, each
        // sees to it that what it has goes, and that the others know.
        let is_over = quota.avantan.share.table.is_over();
        let is_new = quota.avantan.share.table.is_new(turn.here.site);
        if quota.activity.is_some() || !quota.avantan.may_vote(turn.here.site) || is_new || is_over {
            self.activity(&turn.here, at);
        }
        match self.list[at].limit() {
            Some(_) => self.note_present(at),
            None => self.note_absent(&turn.here, at),
        }
        if self.list[at].activity.is_none() && !is_less_elsewhere {
            return self.answer_lookup(turn, at);
        }

        let activity = self.activity(&turn.here, at);
        activity.leader.decided();
        activity.shortage.fed_at = now;
        activity.shortage.asked_for_gifts = false;
        activity.tick_at = activity.tick_at.min(now + TICK);
        let (asked, away) = self.note_settled(&turn.here, at);

        // What wants more than a limit that was lowered can never be granted.
        let limit = self.list[at].avantan.share.table.limit.unwrap_or(i64::MAX);
        while let Some(activity) = &mut self.list[at].activity
            && let Some(request) = activity.waiting.take_above(limit)
        {
            turn.out.metrics.refused_waited += 1;
            let level = self.level_name(at, request.quota);
            self.finish(turn, request.ticket, Outcome::Refused(Refusal::AboveLimit { limit, level }));
        }

        // Requests that the round was told of are judged by it, once what it brought is granted.
        self.serve(turn, at);
        if let Some(activity) = &mut self.list[at].activity
            && activity.waiting.has_staying()
        {
            // The others take what was short here for met: that it is not is news to them.
            activity.peers.iter_mut().for_each(|share| share.told.first = 0);
        }
        if asked.contains(turn.here.position) {
            self.judge_waiting(turn, at, asked, away);
        }
        self.aim_at_decided(&turn.here, at);
        self.finish_admin(turn, at);

        // Only now: what waited for the name was not known to the round that is over. Nor was what comes here from the lines of other levels,
        // where those that want more than there is now are refused: it may lead the next round.
        self.answer_lookup(turn, at);
        if is_less_elsewhere {
            self.refuse_elsewhere(turn, at, before.generation);
        }
        self.seek(turn, at);
        self.lead_admin(turn, at);

        let (site, table) = (turn.here.site, &self.list[at].avantan.share.table);
        let is_left =
            table.has_unrecorded(site, turn.here.sight()) || table.is_unrecorded(site) || table.is_before(site);
        let activity = self.activity(&turn.here, at);
        activity.leader.note_recorded(now, turn.out.rng, is_left);
        self.schedule(at);
    }

    /// Begins the books of a new generation of a quota, or of none; `was_there` if there was one before.
    fn begin_generation(&mut self, turn: &mut Turn, at: usize, was_there: bool) {
        // Gifts of a generation that is gone went with its tokens: their totals must not be taken by the next one.
        let quota = &mut self.list[at];
        (quota.counters.acquired, quota.counters.released) = (0, 0);
        quota.totals = Totals::default();
        quota.refill = None;
        for share in quota.activity.iter_mut().flat_map(|activity| &mut activity.peers) {
            // What a member said it had received is no sign of what it has of this generation: what is under way would be taken for arrived.
            *share = PeerShare { heard_at: share.heard_at, ..PeerShare::default() };
        }
        if !was_there {
            return;
        }

        // Who is in line for tokens of the one that is gone gets none of the next one.
        self.grants.walk.note(turn.here.now.mono, quota.number);
        let Some(activity) = &mut quota.activity else { return };
        activity.shortage.ahead = (0, 0);
        let in_line = activity.waiting.take_all();
        activity.note_deadlines();
        for request in in_line {
            let refusal = self.refusal_of_deleted(at, &request);
            self.finish(turn, request.ticket, Outcome::Refused(refusal));
        }
    }

    /// Notes what the rows of the round that was applied last tell of everybody, what they kept out of it included. Who is named in it, and
    /// how many tokens are away, which is known only if everybody is.
    fn note_settled(&mut self, here: &Here, at: usize) -> (SiteSet, i64) {
        let Quota { avantan, activity: Some(activity), .. } = &mut self.list[at] else { return Default::default() };
        let mut named = SiteSet::default();
        let mut away = 0i64;
        for (position, peer) in here.peers.iter().enumerate() {
            let settled = avantan.share.table.settled(peer.site);
            let Some(settled) = settled.filter(|settled| settled.instance == avantan.share.applied) else { continue };
            named.insert(position);
            let share = &mut activity.peers[position];
            share.free = settled.row.after.saturating_add(settled.row.kept);
            (share.short, share.first) = (0, 0);
            if settled.row.incarnation == peer.incarnation {
                if share.said_by != peer.incarnation {
                    (share.said_by, share.received) = (peer.incarnation, 0);
                }
                share.heard_at = here.now.mono;
            }
            away = away.wrapping_add(settled.row.away);
        }

        (named, if named.positions().count() == here.site.count() { away.max(0) } else { 0 })
    }

    /// Requests whose need the round knew and did not meet are refused, unless others are known to have enough now, or would
    /// have with what was `away`, under way between sites, at the time; or unless a site that is up did not report in time.
    pub(super) fn judge_waiting(&mut self, turn: &mut Turn, at: usize, asked: SiteSet, away: i64) {
        let quota = &mut self.list[at];
        let free = quota.avantan.share.free(turn.here.site).max(0);

        // A round among a subset takes in whom it finds in no other one, and may leave out who has what is missing.
        let rounds = if quota.is_any() { 2 * ROUNDS } else { ROUNDS };
        let Some(activity) = &mut quota.activity else { return };
        let reachable = activity.known_free(&turn.here).saturating_add(free);

        // A site that is up and did not report in time may have what is missing, unless it has nothing free anyhow.
        let table = &quota.avantan.share.table;
        let large = table.limit.unwrap_or(0) / LARGE;
        let missed = |(position, peer): (usize, &Peer)| {
            let may_have = peer.is_up(turn.here.now) && !table.is_new_at(peer.site, peer.incarnation, peer.since);
            position != turn.here.position && !asked.contains(position) && may_have
        };
        let hoped_for_by_large = match turn.here.peers.iter().enumerate().any(missed) {
            true => i64::MAX,
            false => reachable.saturating_add(away),
        };

        // A small one would have to be lucky; those behind it in the line should not wait for that.
        let (refused, waits) = activity.waiting.judge(large, reachable, hoped_for_by_large, rounds);
        if !refused.is_empty() || activity.waiting.has_staying() {
            // For those that stay in line it is tried again, ever more seldom; what comes back meanwhile comes by gifts. The same round
            // was in vain elsewhere, too: not all begin again at once.
            let spread =
                if activity.waiting.has_staying() { turn.out.rng.below(2 * turn.here.longest_round_trip()) } else { 0 };
            activity.leader.end_in_vain(turn.here.now.mono + spread);
        } else if activity.waiting.is_empty() {
            activity.leader.end_well();
        }
        activity.note_deadlines();

        // What is under way to this site arrives within a round trip, or the next round finds it where it is.
        if waits && !activity.shortage.asked_for_gifts {
            activity.shortage.asked_for_gifts = true;
            let patience = turn.here.longest_round_trip() * SECOND_LOOK / 100 + 5 * MILLISECOND;
            activity.leader.wait(turn.here.now.mono, patience);
        }

        for request in refused {
            turn.out.metrics.refused_waited += 1;
            let refusal = self.exhausted(&turn.here, at, asked, &request);
            self.finish(turn, request.ticket, Outcome::Refused(refusal));
        }
    }

    /// An instance was decided that changed the limit, or brought tokens back. That is what becomes of changes that wait for the same: where
    /// one site is all, its value is decided in the step that builds it.
    fn aim_at_decided(&mut self, here: &Here, at: usize) {
        let quota = &mut self.list[at];
        let (number, share) = (quota.number, &quota.avantan.share);
        let (generation, instance) = (share.table.generation, share.applied);
        let aim = |change| Aim { quota: number, generation, instance, change };
        let mut waiting = quota.activity.iter_mut().flat_map(|activity| &mut activity.admin);
        if let Some(limit) = share.table.limit.filter(|_| share.table.limited == instance) {
            let change = Lifecycle::Resize { limit };
            for admin in waiting.filter(|admin| admin.change == change) {
                admin.aim.get_or_insert(aim(change));
            }
        } else if let Some(last) =
            share.table.reclaimed.as_ref().filter(|last| last.instance == instance && here.site.count() == 1)
        {
            // Of several words that say the same the first one was led: for the others nothing is left. A word of another site may be about
            // other storage.
            let change = Lifecycle::Reclaim { brought: last.brought, in_use: last.in_use };
            let said = Lifecycle::Reclaim { brought: 0, in_use: last.in_use };
            if let Some(first) = waiting.find(|admin| admin.aim.is_none() && admin.change == said) {
                first.aim = Some(aim(change));
            }
        }
    }

    /// Answers creations, deletions and other changes that the decided instance settled.
    fn finish_admin(&mut self, turn: &mut Turn, at: usize) {
        let Some(activity) = &mut self.list[at].activity else { return };
        let admin = std::mem::take(&mut activity.admin);
        let mut left = VecDeque::with_capacity(admin.len());
        for mut admin in admin {
            let quota = &self.list[at];
            let is_gone = quota.limit().is_none();
            let outcome = admin.aim.and_then(|aim| self.settled(aim)).or_else(|| match admin.change {
                Lifecycle::Create { .. } if quota.may_be_gone(&turn.here) => None,
                Lifecycle::Create { limit, charter } => created(quota, limit, charter),
                Lifecycle::Delete => is_gone.then_some(Outcome::Deleted),
                Lifecycle::Resize { .. } | Lifecycle::Reclaim { .. } => {
                    is_gone.then_some(Outcome::Refused(Refusal::QuotaDeleted))
                }
                Lifecycle::Seat { site, gone } => self.seated(site, gone),
                Lifecycle::Keep => None,
            });
            match outcome {
                Some(outcome) => self.finish(turn, admin.ticket, outcome),
                None => {
                    // What was out for it came to nothing, and it goes on.
                    admin.aim = admin.aim.filter(|aim| !self.is_lost(*aim));
                    left.push_back(admin);
                }
            }
        }

        if let Some(activity) = &mut self.list[at].activity {
            activity.admin = left;
            activity.note_deadlines();
        }
    }

    /// What became of an undecided creation or deletion, if it took effect or nobody will ever know.
    pub fn settled(&self, aim: Aim) -> Option<Outcome> {
        let Some(quota) = self.numbered(aim.quota) else {
            // Its name was forgotten: it was deleted, and what was created in between is gone, too.
            return Some(match aim.change {
                Lifecycle::Delete => Outcome::Deleted,
                _ => Outcome::Unknown(UnknownReason::Forgotten),
            });
        };
        let table = &quota.avantan.share.table;
        let is_gone = table.generation > aim.generation || table.limit.is_none();
        match aim.change {
            Lifecycle::Delete => is_gone.then_some(Outcome::Deleted),
            // Its instance may have been the one that deleted the quota.
            Lifecycle::Resize { .. } if is_gone || table.limited > aim.instance => {
                Some(Outcome::Unknown(UnknownReason::Forgotten))
            }
            // A value that sets the same limit in this instance is this one, or as good.
            Lifecycle::Resize { limit } => {
                let is_set = table.limited == aim.instance && table.limit == Some(limit);
                is_set.then_some(Outcome::LimitSet { limit, excess: table.excess })
            }
            // The same of what was reclaimed.
            Lifecycle::Reclaim { brought, in_use } => {
                let last = table.reclaimed.as_ref().filter(|last| last.instance >= aim.instance);
                match last {
                    _ if is_gone => Some(Outcome::Unknown(UnknownReason::Forgotten)),
                    Some(last) if last.instance > aim.instance => Some(Outcome::Unknown(UnknownReason::Forgotten)),
                    Some(last) if (last.brought, last.in_use) == (brought, in_use) => {
                        Some(Outcome::Reclaimed { brought, in_use })
                    }
                    _ => None,
                }
            }
            Lifecycle::Create { .. } if table.generation == aim.generation => None,
            // The generation that was created in its place is gone, and with it what its limit was.
            Lifecycle::Create { .. } if table.generation > aim.generation + 1 || table.limit.is_none() => {
                Some(Outcome::Unknown(UnknownReason::Forgotten))
            }
            // So is the limit that it was created with, if it has another one by now.
            Lifecycle::Create { .. } if table.limited != table.created => {
                Some(Outcome::Unknown(UnknownReason::Forgotten))
            }
            Lifecycle::Create { limit, charter } => created(quota, limit, charter),
            Lifecycle::Seat { site, gone } => self.seated(site, gone),
            Lifecycle::Keep => None,
        }
    }

    /// Returns true if an undecided creation or deletion never took effect, nor ever will: its instance decided something else.
    pub fn is_lost(&self, aim: Aim) -> bool {
        let quota = self.numbered(aim.quota);
        quota.is_some_and(|quota| quota.avantan.share.applied >= aim.instance) && self.settled(aim).is_none()
    }

    /// Goes on with the rounds that this site was in when it stopped.
    pub(super) fn resume_rounds(&mut self, turn: &mut Turn) {
        self.look_for_dead_grants(turn.here.now.mono);
        self.resume_names(&turn.here);

        // What was set aside for them stays so until their outcome is known.
        for at in 0..self.list.len() {
            self.resume_subset(turn, at);
            if self.list[at].avantan.in_round() {
                let activity = self.activity(&turn.here, at);
                activity.leader.resume(moment(&turn.here), turn.out.rng);
                self.schedule(at);
            }

            // What is to be refilled is for whoever wants it, or handed over. What is to be taken, and who may not know of it, was not noted.
            let quota = &self.list[at];
            if (quota.refills() && quota.backlog() > 0) || quota.avantan.share.table.is_over() {
                self.activity(&turn.here, at);
            }
            if self.list[at].avantan.share.table.is_unrecorded(turn.here.site) {
                // Nobody else may know.
                self.record_soon(turn, at);
            }
        }
    }
}

/// Where a quota stood before a step of its agreement.
#[derive(Clone, Copy, Debug)]
struct Standing {
    /// Its generation.
    generation: u32,
    /// True if it existed.
    exists: bool,
    /// Its limit, if it existed.
    limit: Option<i64>,
    /// True if it was below another.
    is_below: bool,
    /// True if a round was about to delete it.
    is_closing: bool,
    /// Tokens free.
    free: i64,
    /// What this site led.
    phase: Phase,
}
