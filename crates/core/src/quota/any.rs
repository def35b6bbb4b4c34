//! Rounds among a subset of the sites, of quotas that are created with the agreement `any`: why one is led, and what its outcome means
//! for the requests that wait. The rounds themselves are [`crate::avantan::subset`]'s.
//!
//! Whatever changes the quota itself (its creation, its deletion, its limit, what is reclaimed, the record of new incarnations) takes a
//! round of the majority, as for every quota: see `rounds.rs`.

use super::book::{Quotas, TICK};
use super::one::{Dirty, Quota};
use super::rounds::{Cause, moment};
use crate::avantan::subset::{Known, Message, Role, Step, Subset};
use crate::avantan::{Agreement, Avantan, Membership, Row};
use crate::id::{SiteId, SiteSet};
use crate::peer::quota::QuotaMessage;
use crate::turn::{Here, Turn};

/// Where a quota stood before a step.
struct Standing {
    /// Tokens free.
    free: i64,
    /// True if it asked for reports.
    elects: bool,
    /// True if it asked for votes.
    collects: bool,
}

impl Quotas {
    /// Handles a message of a quota's rounds among subsets.
    pub(super) fn subset(&mut self, turn: &mut Turn, from: SiteId, quota: &str, message: Message) {
        let Some(at) = self.position(quota).filter(|_| !self.is_frozen(quota)) else {
            return answer_of_unknown(turn, from, quota, message);
        };

        // What a round brings to a site that is new to the quota could not be granted, and the quota may be gone before it ends.
        if matches!(message, Message::Election { .. }) && self.list[at].avantan.share.table.is_new(turn.here.site) {
            let message = Box::new(Message::Busy { key: message.key() });
            return turn.out.send(from, QuotaMessage::Subset { quota: quota.to_owned(), message });
        }
        self.refill(&turn.here, at);
        let offer = self.offer(&turn.here, at);
        self.step_subset(turn, at, |subset| {
            subset.handle(from, message, |_| offer);

            // What everybody needs is there: each further report would only set more aside.
            if let Role::Electing { reports, .. } = subset.avantan.role_in_subset() {
                let held: i128 = reports.iter().map(|line| i128::from(line.held)).sum();
                let wanted: i128 = reports.iter().map(|line| i128::from(line.wanted)).sum();
                if held >= wanted {
                    subset.build();
                }
            }
        });
        self.schedule(at);
    }

    /// Leads a round, if the share is in none.
    pub(super) fn lead_subset(&mut self, turn: &mut Turn, at: usize, cause: Cause) {
        self.refill(&turn.here, at);
        let offer = self.offer(&turn.here, at);
        let quota = &mut self.list[at];
        if quota.avantan.share.part().is_some() || quota.avantan.share.is_offered() {
            return;
        }
        match cause {
            Cause::Reactive => turn.out.metrics.rounds_reactive += 1,
            Cause::Proactive => turn.out.metrics.rounds_proactive += 1,
            Cause::Recovery => turn.out.metrics.rounds_recovery += 1,
        }
        let activity = self.activity(&turn.here, at);
        let gathers = activity.gathers();
        activity.waiting.note_offer();
        activity.shortage.asked_for_gifts = false;
        activity.pace.elect(moment(&turn.here));
        self.step_subset(turn, at, |subset| subset.start(offer, gathers));
    }

    /// The time of the present phase is over.
    pub(super) fn subset_due(&mut self, turn: &mut Turn, at: usize) {
        let moment = moment(&turn.here);
        let round = |quotas: &Self| quotas.list[at].avantan.share.part().map(|part| part.key);
        let before = round(self);
        let mut pace = self.activity(&turn.here, at).pace;
        self.step_subset(turn, at, |subset| pace.tick(moment, subset));

        // If it ended here, the next one may have begun, which has times of its own.
        if before.is_some() && round(self) == before {
            self.activity(&turn.here, at).pace = pace;
        }

        self.schedule(at);
    }

    /// Takes a step, and carries out what it came to.
    fn step_subset(&mut self, turn: &mut Turn, at: usize, act: impl FnOnce(&mut Subset)) {
        let before = standing(&self.list[at].avantan, turn.here.site);
        let (mut known, mut step) = (known(&turn.here), Step::default());
        let avantan = &mut self.list[at].avantan;
        act(&mut Subset { avantan, site: turn.here.site, known: &mut known, step: &mut step });
        turn.out.metrics.ignored += u64::from(step.ignored);
        if step.changed {
            self.touch(at, Dirty::All);
        }

        // They leave when the rows of this turn are durable: joins, votes and outcomes, and which incarnations are known.
        let quota = &mut self.list[at];
        for (to, message) in step.sends {
            turn.out.send(to, QuotaMessage::Subset { quota: quota.name.to_string(), message: Box::new(message) });
        }
        let after = standing(&quota.avantan, turn.here.site);
        let is_member = quota.avantan.share.part().is_some();
        if quota.activity.is_some() || is_member || step.decided.is_some() {
            let activity = self.activity(&turn.here, at);
            match () {
                () if !is_member => activity.pace.rest(),
                () if after.collects && !before.collects => activity.pace.collect(moment(&turn.here)),
                // What this site has joined or accepted now may be the last that it hears of its leader.
                () if step.changed && !after.collects && !after.elects => {
                    activity.waiting.note_offer();
                    activity.pace.follow(moment(&turn.here), turn.out.rng);
                }
                () => {}
            }
        }

        match step.decided {
            Some(rows) => self.moved(turn, at, &rows),
            None if step.left => self.left_subset(turn, at, &before),
            // What a row does not take is free from the vote on.
            None if after.free > before.free => self.serve(turn, at),
            None => {}
        }
    }

    /// The round came to nothing here: what was set aside is free again.
    fn left_subset(&mut self, turn: &mut Turn, at: usize, before: &Standing) {
        // In a round of the majority the timer is that of its leader, or of who waits for the leader: none other would end that.
        if (before.elects || before.collects) && !self.list[at].avantan.in_round() {
            let activity = self.activity(&turn.here, at);
            let wanted = !activity.waiting.is_empty() || !activity.admin.is_empty();
            activity.leader.fail(moment(&turn.here), turn.out.rng, wanted);
        }
        self.serve(turn, at);

        // Whoever waits here may have waited for this one.
        self.seek(turn, at);
        self.lead_admin(turn, at);
        self.schedule(at);
    }

    /// A round was decided and applied.
    fn moved(&mut self, turn: &mut Turn, at: usize, rows: &[Row]) {
        let now = turn.here.now.mono;
        turn.out.metrics.rebalances += 1;
        let quota = &mut self.list[at];
        quota.counters.work.rebalances += 1;
        let is_in_round = quota.avantan.in_round();
        let activity = self.activity(&turn.here, at);
        if !is_in_round {
            activity.leader.decided();
        }
        activity.shortage.fed_at = now;
        activity.shortage.asked_for_gifts = false;
        activity.tick_at = activity.tick_at.min(now + TICK);

        // The rows tell what the members have now, what they kept out of the round included.
        let (mut asked, mut away) = (SiteSet::default(), 0i64);
        for row in rows {
            let Some(position) = turn.here.site.members.iter().position(|site| *site == row.site) else { continue };
            asked.insert(position);
            away = away.wrapping_add(row.away);
            let share = &mut activity.peers[position];
            share.free = row.after.saturating_add(row.kept);
            (share.short, share.first) = (0, 0);
        }
        self.serve(turn, at);
        if let Some(activity) = &mut self.list[at].activity
            && activity.waiting.has_staying()
        {
            // The others take what was short here for met: that it is not is news to them.
            activity.peers.iter_mut().for_each(|share| share.told.first = 0);
        }

        // What is under way says something only as a whole.
        let away = if rows.len() == turn.here.site.count() { away.max(0) } else { 0 };
        self.judge_waiting(turn, at, asked, away);
        self.seek(turn, at);
        self.lead_admin(turn, at);
        self.schedule(at);
    }

    /// Goes on with the round that this site was in when it stopped.
    pub(super) fn resume_subset(&mut self, turn: &mut Turn, at: usize) {
        if self.list[at].avantan.share.part().is_some() {
            let activity = self.activity(&turn.here, at);
            activity.pace.resume(moment(&turn.here), turn.out.rng);
            self.schedule(at);
        }
    }
}

impl Quota {
    /// True if its tokens move by rounds among subsets.
    pub(super) fn is_any(&self) -> bool {
        self.avantan.share.table.charter.agreement == Agreement::Any
    }

    /// A digest of the last round among a subset that was applied here with the member at `position`, in its present incarnation; zero
    /// for none. Where both members have applied the same rounds they have the same.
    pub(super) fn last_round_with(&self, here: &Here, position: usize) -> u64 {
        let Some(record) = &self.avantan.share.subset else { return 0 };
        let member = here.site.members[position];
        let with = record.settled.iter().find(|settled| settled.site == member);
        let with = with.filter(|settled| settled.incarnation == here.incarnation_of(member));
        with.map_or(0, |settled| settled.key.digest())
    }
}

/// The incarnations that this site knows.
fn known(here: &Here) -> Known {
    Known::new(here.peers.iter().map(|peer| (peer.site, peer.incarnation)).collect())
}

fn standing(avantan: &Avantan, site: Membership) -> Standing {
    let role = avantan.role_in_subset();
    Standing {
        free: avantan.share.free(site),
        elects: matches!(role, Role::Electing { .. }),
        collects: matches!(role, Role::Collecting { .. }),
    }
}

/// Answers for a quota that this site does not know (any more): what it says is what a share without a past says. A site that lost its
/// disk must say so even before it hears of the quota: the others wait for that.
fn answer_of_unknown(turn: &mut Turn, from: SiteId, quota: &str, message: Message) {
    let (mut avantan, mut known, mut step) = (Avantan::default(), known(&turn.here), Step::default());
    let mut subset = Subset { avantan: &mut avantan, site: turn.here.site, known: &mut known, step: &mut step };
    subset.handle(from, message, |_| Default::default());
    turn.out.metrics.ignored += u64::from(step.ignored);
    for (to, message) in step.sends {
        turn.out.send(to, QuotaMessage::Subset { quota: quota.to_owned(), message: Box::new(message) });
    }
}
