//! Quotas as a chapter of the node.

use std::collections::BTreeSet;

use super::announce::Announcements;
use super::book::{Passage, Quotas};
use super::row::{QuotaRow, due_ranges, due_uptime, grant_key};
use super::seats::{MEMBERS, missed};
use crate::api::{Operation, Outcome, PeerStatus, Request, Response, SeatChange, Status, Submission};
use crate::avantan::Message;
use crate::chapter::{Chapter, Fate, Leaving, Order, Revived};
use crate::clock::{MILLISECOND, Now};
use crate::codec::Malformed;
use crate::config::OpenError;
use crate::id::{Incarnation, SessionId};
use crate::machine::{ClientId, KeySet, Reader, View};
use crate::metrics::Metrics;
use crate::peer::Body;
use crate::peer::quota::{DIGESTS, QuotaMessage};
use crate::right::Start;
use crate::rows::{DUE, FORGOTTEN, Owner};
use crate::session::Aim;
use crate::turn::{Here, Peer, Turn};

/// Holds that end within this span end in one turn, in microseconds.
const EXPIRY_QUANTUM: u64 = 5 * MILLISECOND;

impl Chapter for Quotas {
    fn owner(&self) -> Owner {
        Owner::Quota
    }

    fn restore(
        &mut self,
        key: &[u8],
        value: &[u8],
        _: Incarnation,
        _: &dyn Reader,
    ) -> Result<Option<Revived>, OpenError> {
        // Rows come in the order of keys, so the cold rows of all quotas before the hot ones, which need them.
        let restored = match key[0] {
            FORGOTTEN => self.restore_names(value),
            _ => QuotaRow::decode(key, value).and_then(|row| self.restore_row(row)),
        };
        restored.map(|()| None).map_err(|Malformed| OpenError::Malformed { key: key.to_vec() })
    }

    fn restored(&mut self, _: Incarnation, reader: &dyn Reader) -> Result<(), OpenError> {
        // The first hold that may end; the rest stays on storage until its time.
        if let Some((key, _)) = reader.scan(&[DUE], &[DUE + 1], 1)?.first() {
            self.grants.next_due =
                Some(due_uptime(key).map_err(|Malformed| OpenError::Malformed { key: key.clone() })?);
        }
        Ok(())
    }

    fn resume(&mut self, turn: &mut Turn, _: Start) {
        // What an earlier life left under way goes on: gifts that may not have arrived are told again, and rounds are finished.
        self.grants.mono_less_uptime = turn.here.now.mono.wrapping_sub(turn.here.uptime);
        self.gifts.announcements = Announcements::of_gifts(turn.here.peers.len(), turn.here.position);

        // So does telling new storage of quotas that have not recorded it. It may not have heard of those that are at rest, and nobody else
        // may be left who began to tell it.
        for (peer, _) in turn.here.peers.iter().enumerate().filter(|(_, peer)| peer.incarnation.0 > 1) {
            self.gifts.announcements.add_unrecorded(turn.here.now, peer);
        }
        self.gifts.announcements.open.retain(|told| !turn.here.peers[told.peer].gone);
        self.resume_rounds(turn);
    }

    fn persist(&mut self, turn: &mut Turn) {
        self.put_rows(&mut turn.out.batch);

        // Totals of gifts leave with the batch that has them, so when that is durable.
        for (digests, to) in self.gifts.digests.iter_mut().zip(turn.here.peers) {
            while !digests.is_empty() {
                let rest = digests.split_off(digests.len().min(DIGESTS));
                turn.out.send(to.site, QuotaMessage::Digests(std::mem::replace(digests, rest)));
            }
        }
        self.grants.touched.clear();
    }

    fn withholds_from(&self, here: &Here, position: usize) -> bool {
        here.peers[position].leaving && self.owes(here, position)
    }

    fn counts_uptime(&self) -> bool {
        self.grants.next_due.is_some()
    }

    fn request_needs(&self, _: &Here, request: &Request, needed: &mut KeySet) {
        let Request::Batch(batch) = request else { return };
        let released = batch.operations.iter().filter_map(|submission| match &submission.operation {
            Operation::ReleaseGrant { grant, .. } | Operation::ExtendGrant { grant, .. } => {
                Some(grant_key(grant.incarnation, grant.number).to_vec())
            }
            _ => None,
        });
        needed.keys.extend(released);

        // What would be missed if the site left, up to a bound: the keys alone.
        let leaves = |submission: &Submission| {
            matches!(submission.operation, Operation::Seat { change: SeatChange::Leaves, .. })
        };
        if batch.operations.iter().any(leaves) {
            needed.head_ranges.extend(missed().map(|range| (range, 0)));
        }
    }

    fn tick_needs(&self, here: &Here, needed: &mut KeySet) {
        // The rows of grants are paged: there may be more than fit into memory.
        if self.grants.next_due.is_some_and(|due| due <= here.uptime) {
            needed.ranges.extend(due_ranges(here.uptime));
        }
        self.dead_grants_need(here.now.mono, needed);
    }

    fn execute(&mut self, turn: &mut Turn, view: &View, order: Order) -> Option<Outcome> {
        self.carry_out(turn, view, order.ticket, order.operation, order.timeout)
    }

    fn request(&mut self, turn: &mut Turn, _: &View, client: ClientId, request: Request) {
        match request {
            Request::Show { quota, local: true, .. } => self.show_what_is_known(turn, client, &quota),
            Request::Show { quota, timeout, .. } => self.show(turn, client, quota, timeout),
            Request::List { after, limit } => {
                let listed = self.list(&after, limit.min(LISTED) as usize);
                turn.out.responses.push((client, Response::Listed(listed)));
            }
            Request::Expect(forecasts) => self.expect(turn, forecasts),
            _ => unreachable!("it is not about quotas"),
        }
    }

    fn hear(&mut self, turn: &mut Turn, from: usize, epoch: u64) {
        self.meet_epoch(turn, from, epoch);
    }

    fn message(&mut self, turn: &mut Turn, _: &View, from: usize, epoch: u64, message: Body) {
        let Body::Quota(message) = message else { unreachable!("it is not about quotas") };

        // What is said of a name that was forgotten in between is about another quota. It counts as lost. Who the members are is never
        // forgotten: a site that has missed both must hear of them first, as those that are left do not hear it before.
        let tells_members = matches!(&message, QuotaMessage::Avantan { quota, message }
            if **quota == *MEMBERS && matches!(**message, Message::Decided { .. }));
        if !tells_members && message.name().is_some_and(|name| !self.is_of_this_life(epoch, name)) {
            turn.out.metrics.ignored += 1;
            return;
        }

        let peer = turn.here.peers[from].site;
        match message {
            QuotaMessage::Avantan { quota, message } => self.agreement(turn, peer, &quota, *message),
            QuotaMessage::Subset { quota, message } => self.subset(turn, peer, &quota, *message),
            QuotaMessage::Digests(digests) => {
                for digest in digests {
                    if self.is_of_this_life(epoch, &digest.quota) {
                        self.digest(turn, from, digest);
                    }
                }
            }
            QuotaMessage::Lookup { token, quota } => self.look_up(turn, from, quota, token),
            QuotaMessage::NotKnown { token, quota } => self.not_known(turn, from, &quota, token),
            QuotaMessage::NoVote { quota, answer } => self.no_vote(turn, from, &quota, *answer),
            QuotaMessage::Forget(message) => self.forget(turn, from, epoch, *message),
            QuotaMessage::Count { token, quota } => {
                self.refill_named(&turn.here, &quota);
                let tally = self.tally(&turn.here, &quota).map(Box::new);
                turn.out.send(peer, QuotaMessage::Counted { token, tally });
            }
            QuotaMessage::Counted { token, tally } => {
                self.counted(turn, from, epoch, token, tally.map(|tally| *tally));
            }
        }
    }

    fn deadline(&self) -> Option<u64> {
        // Holds end by the uptime, in steps: many that end at about the same time cost one turn.
        // The uptime counts on over restarts, and the clock may not: one that ended in an earlier life is due at once.
        let due = self.grants.next_due.map(|due| 0.max(self.grants.mono_less_uptime.wrapping_add(due) as i64) as u64);
        let parts = [
            self.next_timer(),
            due.map(|due| due.div_ceil(EXPIRY_QUANTUM) * EXPIRY_QUANTUM),
            self.lookups.deadline(),
            self.grants.walk.deadline(),
            self.forgetting.deadline(),
            self.counts.deadline(),
            self.gifts.announcements.deadline(),
            self.seats_due(),
        ];
        parts.iter().flatten().copied().min()
    }

    fn tick(&mut self, turn: &mut Turn, view: &View) {
        // Tokens that come back first: what waits may be served by them.
        self.expire(turn, view).expect("a row that storage vouches for");
        self.remove_dead_grants(turn, view).expect("a row that storage vouches for");
        self.wake_due(turn);
        self.expire_lookups(turn);
        self.tend_names(turn);
        self.tend_seats(turn);
        self.complete_overdue(turn);
        self.announce(turn);
    }

    fn meet(&mut self, now: Now, position: usize, peer: &Peer, replaces: bool) {
        if replaces && peer.incarnation < Incarnation::GONE {
            self.gifts.announcements.add_all(now, position);
            self.meet_storage(now.mono);
        }
    }

    fn meet_members(&mut self, here: &Here) {
        self.meet_members(here);
    }

    fn waiting(&self) -> usize {
        self.waits.places.len()
    }

    fn withdraw(&mut self, turn: &mut Turn, session: SessionId, sequences: &BTreeSet<u64>) -> BTreeSet<u64> {
        self.withdraw_waiting(turn, session, sequences)
    }

    fn fate(&self, aim: Aim) -> Fate {
        // What became of a creation or deletion is told by what the quota is now.
        match self.settled(aim) {
            Some(outcome) => Fate::Settled(outcome),
            None if self.is_lost(aim) => Fate::Lost,
            None => Fate::Open,
        }
    }

    fn stay(&mut self) {
        self.gifts.leaving = None;
    }

    fn leave(&mut self, turn: &mut Turn) -> Leaving {
        let Passage { from, mut gave } = self.gifts.leaving.take().unwrap_or_default();
        let before = turn.out.metrics.gifts_leaving;
        let next = self.give_away(turn, from);
        gave |= turn.out.metrics.gifts_leaving > before;

        // A pass in which nothing was given shows that nothing is left; what comes in meanwhile is given in the next.
        self.gifts.leaving = Some(Passage { from: next.unwrap_or(0), gave: gave && next.is_some() });
        match next {
            Some(_) => Leaving::GoesOn,
            None if gave || self.waiting() > 0 || self.waits.administering > 0 => Leaving::Waits,
            None => Leaving::Done,
        }
    }

    fn describe(&self, status: &mut Status) {
        // The first incarnation needs no record.
        let is_any_behind = self.behind() > 0;
        let is_later = |peer: &&mut PeerStatus| is_any_behind || peer.incarnation > Incarnation(1);
        let mut others: Vec<_> = status.peers.iter_mut().filter(is_later).collect();
        for quota in self.iter() {
            let table = &quota.avantan.share.table;
            status.quotas += u64::from(quota.limit().is_some());

            // Of a name that is deleted, too, a change of the members is recorded, and the next one waits for it.
            let is_behind = self.is_behind_number(quota.number);
            let is_new = table.lacks(status.site, status.incarnation);
            status.unrecorded += u64::from(is_new || is_behind);
            for peer in &mut others {
                let is_new = table.lacks(peer.site, peer.incarnation);
                peer.unrecorded += u64::from(is_new || is_behind);
            }
        }
    }

    fn measure(&self, metrics: &mut Metrics) {
        metrics.waiting = self.waiting() as u64;
        metrics.quotas = self.len() as u64;
    }
}

/// The most quotas that one answer lists.
const LISTED: u32 = 1_000;
