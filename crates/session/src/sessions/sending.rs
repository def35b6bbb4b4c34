//! Rules 1, 2, 4 and 5 of the [module above](super): what leaves next, and under which id.

use slackline_core::api::{BATCH_OPERATIONS, Batch, Request, Submission};

use super::Sessions;
use super::calls::Audience;
use super::stream::{FLIGHTS, STALLED};
use super::windows::{SESSIONS, WATCH};
use crate::command::CallKey;
use crate::time::{Time, time_at_the_site};

/// A batch is closed when its transactions take up this much, in bytes; the largest one alone still fits a message.
const BATCH_BYTES: usize = 2 << 20;
/// The number of waiting calls from which on they are a crowd.
const CROWD: usize = 128;

impl Sessions {
    /// True if [`Sessions::next_request`] would give something.
    pub fn has_something_to_send(&self) -> bool {
        let may_read = || !self.stream.is_relayed() && self.reads.has_queued();
        let may_make_room = |stays| self.windows.len() >= SESSIONS && self.windows.may_make_room(stays);
        let has_room = |stays| self.windows.roomiest(stays).is_some() || may_make_room(stays);
        let may_go = |stays| self.has_fresh(stays) && has_room(stays);
        let may_leave = || !self.queue.resend.is_empty() || self.wants_session() || may_go(false) || may_go(true);
        self.stream.is_open() && (!self.queue.outbox.is_empty() || may_read() || self.may_take_off() && may_leave())
    }

    /// The next message to the site.
    pub fn next_request(&mut self, now: Time) -> Option<Request> {
        if !self.stream.is_open() {
            return None;
        }

        // Asked for before the windows are full, so that calls need not wait for the answer.
        if self.may_take_off() && self.wants_session() {
            self.stream.opening = true;
            self.queue.outbox.push_back(Request::Open);
        }
        if let Some(request) = self.queue.outbox.pop_front() {
            return Some(request);
        }

        // Another site would read for itself, and not for this one.
        if !self.stream.is_relayed()
            && let Some(request) = self.reads.next_request(now, self.stream.round_trip)
        {
            return Some(request);
        }

        if !self.may_take_off() {
            return None;
        }

        // A call that stays and one that does not leave in turn, so neither waits for all of the others.
        let first = !self.queue.stayed;
        for stays in [first, !first] {
            if self.windows.len() >= SESSIONS && self.has_fresh(stays) {
                self.windows.make_room(stays);
            }
        }

        // What is in doubt goes first: its callers have waited longest.
        let batch = self.repeated_batch(now);
        let batch = batch.or_else(|| self.fresh_batch(first, now)).or_else(|| self.fresh_batch(!first, now))?;
        self.stream.take_off(&batch, now);

        // A dead stream is noticed by the silence over this batch, however long its calls may wait.
        self.note_due(now + STALLED);
        Some(Request::Batch(batch))
    }

    /// Rule 5: true if the sessions' windows are too full for what waits.
    pub(super) fn wants_session(&self) -> bool {
        let is_short = |stays| self.windows.room(stays) < self.queue.fresh.count(stays).min(BATCH_OPERATIONS / 2);
        let lacks = |stays| self.windows.may_have_more(stays) && is_short(stays);
        !self.stream.is_relayed() && !self.stream.opening && (lacks(false) || lacks(true))
    }

    /// Rule 4: true if another batch may leave.
    fn may_take_off(&self) -> bool {
        match self.stream.flights() {
            0 => true,
            FLIGHTS.. => false,
            _ => self.queue.fresh.len() >= CROWD,
        }
    }

    /// The number of calls of a crowd that travel in the next batch: no more than their part of all that are under way or wait, so that
    /// while the site works on one part, the client works on another.
    fn seats(&self) -> usize {
        ((self.stream.flying() + self.queue.fresh.len()) / FLIGHTS).max(CROWD)
    }

    /// True if a call that stays, or another one, has not left and may leave now.
    fn has_fresh(&self, stays: bool) -> bool {
        match self.stream.is_relayed() {
            false => self.queue.fresh.count(stays) > 0,
            true => !stays && self.queue.fresh.iter().any(|key| self.calls[key].may_be_relayed()),
        }
    }

    /// Rule 2: a batch of what leaves again under its id. A batch is of one session.
    fn repeated_batch(&mut self, now: Time) -> Option<Batch> {
        let mut operations = Vec::new();
        let (mut chosen, mut bytes) = (None, 0);
        while let Some(&(id, sequence)) = self.queue.resend.front() {
            let is_full = operations.len() == BATCH_OPERATIONS || bytes >= BATCH_BYTES;
            if chosen.is_some_and(|chosen| chosen != id) || is_full {
                break;
            }
            self.queue.resend.pop_front();

            // It may have ended since it was put into the queue.
            let session = self.windows.position(id).map(|position| &self.windows[position]);
            let Some(key) = session.and_then(|session| session.call(sequence)) else { continue };
            chosen = Some(id);
            bytes += self.calls[key].command.bytes();
            operations.push(self.submission(key, sequence, now));
        }
        Some(self.batch(self.windows.position(chosen?)?, operations))
    }

    /// Rule 1: a batch of calls that leave for the first time, each of which is given its id here. All of them may stay in line, or none.
    fn fresh_batch(&mut self, stays: bool, now: Time) -> Option<Batch> {
        let position = self.windows.roomiest(stays).filter(|_| self.has_fresh(stays))?;
        let room = self.windows[position].room().min(BATCH_OPERATIONS).min(self.seats());
        let count = self.queue.fresh.count(stays);
        let mut operations = Vec::with_capacity(room.min(count));
        let mut bytes = 0;
        for _ in 0..count {
            if operations.len() == room || bytes >= BATCH_BYTES {
                break;
            }
            let line = self.queue.fresh.line(stays);
            let Some(key) = line.pop_front() else { break };
            let call = &mut self.calls[key];
            if self.stream.is_relayed() && !call.may_be_relayed() {
                line.push_back(key);
                continue;
            }

            call.queued = false;
            match call.audience {
                Audience::Waiting(_) | Audience::Detached => {}
                // It was told that its deadline passed, and fetches that.
                Audience::Told(_) => continue,
                Audience::Gone => {
                    self.calls.remove(key);
                    continue;
                }
            }

            // From here on the call is its site's: it goes nowhere else unless it is settled that this id has no effect.
            let sequence = self.windows[position].give(key, stays);
            bytes += call.command.bytes();
            call.id = Some(self.windows.operation(position, sequence));
            operations.push(self.submission(key, sequence, now));
        }
        if operations.is_empty() {
            return None;
        }
        self.queue.stayed = stays;
        Some(self.batch(position, operations))
    }

    fn batch(&self, position: usize, operations: Vec<Submission>) -> Batch {
        let session = &self.windows[position];
        let (incarnation, session, low) = (session.incarnation, session.id, session.low);
        Batch { site: self.windows.site, incarnation, session, low, operations }
    }

    /// A call as it leaves, now, under its id.
    fn submission(&mut self, key: CallKey, sequence: u64, now: Time) -> Submission {
        let call = &mut self.calls[key];
        assert_eq!(call.id.map(|id| id.sequence), Some(sequence), "a call leaves under its own id");
        call.times_sent += 1;
        if call.sent_at.is_none() {
            call.sent_at = Some(now);
            call.quiet_since = Some(now);
            call.restless = false;

            // It may leave for the first time long after its caller made it, or again under another id.
            let patience_ends = call.patience_ends();
            patience_ends.into_iter().for_each(|at| self.note_due(at));
        }

        // What is watched has no deadline; the site is given the time that it is sure to remember the outcome for.
        let call = &self.calls[key];
        let deadline = if call.is_watched() { now + WATCH } else { call.terms.deadline };
        let timeout = time_at_the_site(deadline, now, self.stream.round_trip);
        Submission { sequence, timeout, operation: call.command.operation() }
    }
}
