//! The chores of a site that serves, done from time to time without being asked: it pings, ends silent sessions, and
//! drains.

use super::requests::Desk;
use crate::api::Response;
use crate::chapter::Leaving;
use crate::clock::{MILLISECOND, Now, SECOND};
use crate::machine::ClientId;
use crate::turn::Turn;

/// The time between two pings, in microseconds.
pub const PING: u64 = SECOND;
/// The time between two sweeps through the sessions, for those whose retention is over, in microseconds.
const SWEEP: u64 = 10 * SECOND;
/// The most sessions that end in one sweep.
const SWEPT: usize = 64;
/// The time to the next sweep if there may be more of them, in microseconds.
const SWEEP_ON: u64 = 10 * MILLISECOND;
/// The time between two looks whether a drain is over, in microseconds.
const DRAIN_LOOK: u64 = 10 * MILLISECOND;

/// The time between two looks whether a site that was drained by an operator's word has something to give away, in microseconds.
const GIVE_LOOK: u64 = 200 * MILLISECOND;

/// The times at which the chores are due, in monotonic microseconds.
#[derive(Debug)]
pub(super) struct Chores {
    /// The next ping to all peers.
    pub(super) ping_at: u64,
    /// The next sweep through the sessions.
    sweep_at: u64,
    /// The drain that is under way.
    drain: Option<Drain>,
    /// The next look whether a site that was drained by an operator's word has something to give away.
    pub(super) give_at: u64,
}

/// A drain under way; times in monotonic microseconds.
#[derive(Debug)]
struct Drain {
    /// The client that is told when it is over.
    client: ClientId,
    /// The time from which all other sites know that it drains, and nothing that they gave before is on its way; zero
    /// until the first look.
    told_at: u64,
    /// The next look whether it is over.
    look_at: u64,
    /// The time at which it is over in any case.
    deadline: u64,
}

impl Chores {
    /// The chores of a site that starts.
    pub(super) fn new(now: Now) -> Self {
        Self { ping_at: now.mono, sweep_at: now.mono + SWEEP, drain: None, give_at: u64::MAX }
    }

    /// Begins to drain: `client` is told when it is over, within so many microseconds, and the other sites are told at once.
    pub(super) fn begin_drain(&mut self, now: Now, client: ClientId, within: u64) {
        self.ping_at = now.mono;
        let deadline = now.mono.saturating_add(within);
        self.drain = Some(Drain { client, told_at: 0, look_at: now.mono, deadline });
    }

    /// The earliest time at which a chore is due, in monotonic microseconds.
    pub(super) fn deadline(&self) -> u64 {
        let earliest = self.ping_at.min(self.sweep_at).min(self.give_at);
        self.drain.as_ref().map_or(earliest, |drain| earliest.min(drain.look_at))
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, turn: &mut Turn, desk: &mut Desk) {
        self.sweep(turn, desk);
        self.drain(turn, desk);
        self.give_away(turn, desk);
    }

    /// Gives away what has come in at a site that was drained by an operator's word.
    fn give_away(&mut self, turn: &mut Turn, desk: &mut Desk) {
        let now = turn.here.now.mono;
        if turn.here.drained.is_none() {
            self.give_at = u64::MAX;
            return;
        }
        if self.give_at == u64::MAX {
            self.give_at = now;
        }

        if self.drain.is_none() && now >= self.give_at {
            let leaving = desk.chapters.leave(turn);
            self.give_at = now + if leaving == Leaving::GoesOn { MILLISECOND } else { GIVE_LOOK };
        }
    }

    /// Ends sessions whose retention is over. A bounded number at a time: their rows are removed in this call's batch.
    fn sweep(&mut self, turn: &mut Turn, desk: &mut Desk) {
        if turn.here.now.mono < self.sweep_at {
            return;
        }

        self.sweep_at = turn.here.now.mono + SWEEP;
        for _ in 0..SWEPT {
            let Some(overdue) = desk.sessions.overdue(turn.here.now.mono) else { break };
            desk.close(turn, overdue);
            self.sweep_at = turn.here.now.mono + SWEEP_ON;
        }
    }

    /// Gives away free tokens, and those that come in meanwhile, until no request waits.
    fn drain(&mut self, turn: &mut Turn, desk: &mut Desk) {
        let Some(drain) = &mut self.drain else { return };
        let now = turn.here.now;

        // Others that do not know yet that this site drains may send it gifts. It waits for one round trip, so that
        // these are given away again: tokens of a site that has stopped are of use to nobody.
        if drain.told_at == 0 {
            let others = turn.here.peers.iter().any(|peer| peer.is_up(now));
            drain.told_at = now.mono + if others { turn.here.longest_round_trip() } else { 0 };
        }

        let leaving = desk.chapters.leave(turn);
        drain.look_at = now.mono + if leaving == Leaving::GoesOn { MILLISECOND } else { DRAIN_LOOK };
        let is_idle = leaving == Leaving::Done && now.mono >= drain.told_at;
        if is_idle || now.mono >= drain.deadline {
            turn.out.responses.push((drain.client, Response::Drained));
            self.drain = None;
        }
    }
}
