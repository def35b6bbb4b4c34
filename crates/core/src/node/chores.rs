//! What a site that serves does by itself from time to time: it ends holds, tells of gifts, ends silent sessions, and drains.

use super::requests::Desk;
use crate::api::Response;
use crate::clock::{MILLISECOND, Now, SECOND};
use crate::machine::ClientId;
use crate::quota::DUE;
use crate::turn::Turn;

/// How often sessions are looked through for those whose retention is over.
const SWEEP: u64 = 10 * SECOND;
/// The most sessions that end in one sweep.
const SWEPT: usize = 64;
/// How soon the next sweep comes if there may be more of them.
const SWEEP_ON: u64 = 10 * MILLISECOND;
/// How often quotas are announced, a page at a time.
const ANNOUNCE: u64 = 100 * MILLISECOND;
/// Holds that end within this span end in one turn.
const EXPIRY_QUANTUM: u64 = 5 * MILLISECOND;
/// How long a drain waits for requests that wait.
const DRAIN: u64 = 5 * SECOND;
/// How often a drain looks whether it is over.
const DRAIN_LOOK: u64 = 10 * MILLISECOND;

/// When what is to be done next.
#[derive(Debug)]
pub(super) struct Chores {
    /// The uptime at which the next hold may end.
    pub(super) next_due: Option<u64>,
    sweep_at: u64,
    announcing: Vec<Announcement>,
    announce_at: u64,
    drain: Option<Drain>,
}

/// Totals of gifts that are still to be told to a member.
#[derive(Clone, Copy, Debug)]
struct Announcement {
    peer: usize,
    /// The quota to go on with.
    from: usize,
    /// Whether all quotas are told, or only those of which something was given to it.
    everything: bool,
}

#[derive(Debug)]
struct Drain {
    client: ClientId,
    /// The quota whose tokens are given away next.
    give_from: usize,
    /// Whether something was given away since the first quota was looked at.
    gave: bool,
    /// Before this, others may not know yet that it drains, and what they gave may be on its way.
    told_at: u64,
    look_at: u64,
    deadline: u64,
}

impl Chores {
    pub(super) fn new(now: Now) -> Self {
        Self { next_due: None, sweep_at: now.mono + SWEEP, announcing: Vec::new(), announce_at: 0, drain: None }
    }

    /// Gifts that were under way when the site stopped may never have arrived: their totals are told again.
    pub(super) fn announce_gifts(&mut self, peers: impl Iterator<Item = usize>) {
        self.announcing = peers.map(|peer| Announcement { peer, from: 0, everything: false }).collect();
    }

    /// A member is new: it is told of all quotas.
    pub(super) fn announce_all(&mut self, now: Now, peer: usize) {
        self.announcing.push(Announcement { peer, from: 0, everything: true });
        self.announce_at = self.announce_at.min(now.mono);
    }

    /// Begins to drain: `client` is told when it is over.
    pub(super) fn begin_drain(&mut self, now: Now, client: ClientId) {
        let deadline = now.mono + DRAIN;
        self.drain = Some(Drain { client, give_from: 0, gave: false, told_at: 0, look_at: now.mono, deadline });
    }

    /// When something is to be done next, in monotonic microseconds; `mono_at` tells when an uptime will be.
    pub(super) fn deadline(&self, mono_at: impl Fn(u64) -> u64) -> u64 {
        let due = self.next_due.map(|due| mono_at(due).div_ceil(EXPIRY_QUANTUM) * EXPIRY_QUANTUM);
        let announcing = (!self.announcing.is_empty()).then_some(self.announce_at);
        let drain = self.drain.as_ref().map(|drain| drain.look_at);
        [due, announcing, drain].into_iter().flatten().fold(self.sweep_at, u64::min)
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, turn: &mut Turn, desk: &mut Desk) {
        if desk.lineage.take_first_turn() {
            desk.quotas.resume(turn);
        }
        desk.quotas.tick(turn);
        desk.txns.tick(turn, desk.view);
        if desk.view.covers(&[DUE]) {
            self.next_due = desk.quotas.expire(turn, desk.view).expect("a row that storage vouches for");
        }
        desk.quotas.remove_dead_grants(turn, desk.view).expect("a row that storage vouches for");
        desk.counts.tick(turn, desk.quotas);
        turn.responses.extend(desk.relays.tick(turn.now));
        self.announce(turn, desk);
        self.sweep(turn, desk);
        self.drain(turn, desk);
    }

    fn announce(&mut self, turn: &mut Turn, desk: &mut Desk) {
        if turn.now.mono < self.announce_at || self.announcing.is_empty() {
            return;
        }
        self.announce_at = turn.now.mono + ANNOUNCE;
        let Announcement { peer, from, everything } = self.announcing[0];
        if !turn.peers[peer].is_up(turn.now) {
            return self.announcing.rotate_left(1);
        }
        match desk.quotas.announce(turn, peer, from, everything) {
            Some(next) => self.announcing[0].from = next,
            None => drop(self.announcing.remove(0)),
        }
    }

    fn sweep(&mut self, turn: &mut Turn, desk: &mut Desk) {
        if turn.now.mono < self.sweep_at {
            return;
        }
        self.sweep_at = turn.now.mono + SWEEP;
        for _ in 0..SWEPT {
            let Some(overdue) = desk.sessions.overdue(turn.now.mono) else { break };
            desk.close(turn, overdue);
            self.sweep_at = turn.now.mono + SWEEP_ON;
        }
    }

    /// Gives away what is free, and what comes in meanwhile, until nothing waits.
    fn drain(&mut self, turn: &mut Turn, desk: &mut Desk) {
        let Some(drain) = &mut self.drain else { return };
        if drain.told_at == 0 {
            let others = turn.peers.iter().any(|peer| peer.is_up(turn.now));
            drain.told_at = turn.now.mono + if others { turn.longest_round_trip() } else { 0 };
        }
        let before = turn.metrics.gifts_leaving;
        let next = desk.quotas.give_away(turn, drain.give_from);
        drain.gave |= turn.metrics.gifts_leaving > before;
        drain.give_from = next.unwrap_or(0);
        drain.look_at = turn.now.mono + if next.is_some() { MILLISECOND } else { DRAIN_LOOK };
        let mut idle = desk.quotas.waiting() == 0 && !desk.quotas.has_admin() && turn.now.mono >= drain.told_at;
        idle &= next.is_none() && !drain.gave;
        drain.gave &= next.is_some();
        if idle || turn.now.mono >= drain.deadline {
            turn.responses.push((drain.client, Response::Drained));
            self.drain = None;
        }
    }
}
