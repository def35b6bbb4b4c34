//! Rules 6 to 8 of the [module above](super): what becomes of calls whose site says nothing, and of what nobody waits for.

use std::task::Waker;

use slackline_core::api::{Outcome, Refusal, Request, UnknownReason};
use slackline_core::id::OperationId;

use super::calls::Audience;
use super::queue::Parked;
use super::windows::WATCH;
use super::{Sessions, UNHURRIED_PAUSE};
use crate::command::{CallKey, Command, Finished, NotTaken, Reply, Terms, Unsettled};
use crate::time::Time;

/// The most settled calls of which it is remembered that nobody can tell how they ended, or that a release was refused.
const LOST: usize = 1024;

impl Sessions {
    /// The caller of a call that was left behind found no other site that would take it, and takes it back: it ends as unknown, and
    /// what became of it is the caller's to ask. None if that is settled by now.
    pub fn reclaim(&mut self, id: OperationId, now: Time) -> Option<Finished> {
        let key = self.windows.call(id)?;
        self.windows.doubt(id, now);
        let call = self.calls.remove(key);
        let reply = Reply::Answered(Outcome::Unknown(UnknownReason::SiteUnreachable));
        Some(Finished { reply, command: call.command, id: Some(id), sent_at: call.sent_at })
    }

    /// What nobody waits for and is not settled, or never will be. Once the client is closed, that is all that has left, whatever it is: nobody
    /// else can say how to ask about it.
    pub fn left(&self) -> Vec<Unsettled> {
        let open = self.calls.iter().map(|(_, call)| call).filter(|call| match call.audience {
            Audience::Gone => call.id.is_some() && (call.command.is_acquire() || self.closed),
            Audience::Detached => true,
            Audience::Waiting(_) | Audience::Told(_) => false,
        });
        let open = open.map(|call| Unsettled { command: call.command.clone(), id: call.id, outcome: None });
        self.lost.iter().cloned().chain(open).collect()
    }

    /// Rule 6: nobody waits for an acquire any more that has left. If it waits for tokens, asking about it ends that. If it was granted
    /// by now, the answer says so. If there is no connection, the next one asks.
    pub(super) fn watch(&mut self, key: CallKey) {
        self.calls.watch(key);
        let operation = self.calls[key].id.expect("it has left");
        if self.stream.is_open() {
            self.queue.outbox.push_back(Request::Ask { operation });
        }
    }

    /// Rule 6: the patience of a call has passed.
    pub(super) fn impatient(&mut self, key: CallKey, wakers: &mut Vec<Waker>) {
        self.stream.silent = true;
        let call = &mut self.calls[key];
        if call.command.is_release() && (call.id.is_some() || call.terms.pinned) {
            return self.hand_over(key, wakers);
        }

        // Its caller knows the other sites: it looks for one when it is woken.
        call.restless = true;
        if let Audience::Waiting(waker) = &mut call.audience {
            wakers.extend(waker.take());
        }
    }

    /// Rule 6: takes a call from its caller, who tries another site.
    pub(super) fn leave_behind(&mut self, key: CallKey) -> Finished {
        let call = &mut self.calls[key];
        call.audience = Audience::Gone;
        let (command, id, sent_at) = (call.command.clone(), call.id, call.sent_at);
        let reply = match id {
            // The queue that holds its key empties the slot.
            None => Reply::NotTaken(NotTaken::Unreachable),
            // It may be granted here after all, while its caller is granted as much elsewhere: this one is settled and given back.
            Some(_) => {
                self.watch(key);
                Reply::LeftBehind
            }
        };
        Finished { reply, command, id, sent_at }
    }

    /// Rule 6: sees to a release from here on, in another slot, since the caller has yet to fetch what it is told from this one.
    fn hand_over(&mut self, key: CallKey, wakers: &mut Vec<Waker>) {
        if !self.calls.may_watch() {
            return;
        }

        // One that has not left is given its id now: its caller may want to ask. Without a session it stays with its caller.
        let id = match self.calls[key].id {
            Some(id) => id,
            None => {
                let Some(position) = self.windows.roomiest(false) else { return };
                let sequence = self.windows[position].give(key, false);
                self.windows.operation(position, sequence)
            }
        };

        // Rule 7: it goes on under that id, and under no other as long as that may take effect.
        let handed_over = self.calls[key].handed_over(id);
        let has_left = handed_over.times_sent > 0;
        let seen_to = self.calls.insert(handed_over);
        self.calls.watch(seen_to);
        let position = self.windows.position(id.session).expect("a session lives as long as its calls");
        self.windows[position].pass_on(id.sequence, key, seen_to);
        if !has_left && self.stream.is_open() {
            self.queue.resend.push_back((id.session, id.sequence));
        }
        self.tell(key, Reply::HandedOver(id), wakers);
    }

    /// The site has these sequences of a session, and is alive.
    pub(super) fn heard_of(&mut self, position: usize, first: u64, last: u64) {
        for sequence in first.max(self.windows[position].low)..=last {
            let Some(key) = self.windows[position].call(sequence) else { continue };
            let call = &mut self.calls[key];
            (call.quiet_since, call.restless) = (None, false);
        }
    }

    /// Rule 7: the site did not carry out this copy of a release that nobody waits for.
    pub(super) fn release_not_taken(
        &mut self,
        position: usize,
        sequence: u64,
        why: Refusal,
        outcome: Outcome,
        now: Time,
    ) {
        let session = &mut self.windows[position];
        let Some(key) = session.call(sequence) else { return };
        let has_ended = why == Refusal::SessionEnded;

        // It could not look the id up: the same again.
        if !has_ended && matches!(outcome, Outcome::Unknown(_)) {
            let session = session.id;
            return self.park(now + UNHURRIED_PAUSE, Parked::Repeat(session, sequence));
        }

        // No copy was carried out, or a grant's id sees to it that one is. A caller who knows the id of a release by amount may be
        // told that it is refused, and release again, so that one gets no other id.
        let call = &mut self.calls[key];
        let is_only_copy = call.times_sent == 1 && !self.stream.is_relayed();
        let is_refused = matches!(outcome, Outcome::Refused(_));
        if matches!(call.command, Command::ReleaseGrant { .. }) || is_only_copy && !(call.known && is_refused) {
            call.start_again();
            session.settle(sequence);
            match has_ended {
                true => self.queue_up(key),
                false => self.park(now + UNHURRIED_PAUSE, Parked::Call(key)),
            }
            return;
        }

        // An earlier copy may be on its way. Nobody else knows the id, so the site can be asked, which settles it permanently.
        if !call.known && !has_ended {
            return self.ask(position, sequence);
        }

        let outcome = if has_ended && !is_only_copy { Outcome::Unknown(UnknownReason::Forgotten) } else { outcome };
        session.settle(sequence);
        self.settled(key, Reply::Answered(outcome), now);
    }

    /// What nobody waits for has ended.
    pub(super) fn settled(&mut self, key: CallKey, reply: Reply, now: Time) {
        let call = &mut self.calls[key];
        let Reply::Answered(outcome) = reply else {
            // It is settled that it has no effect. Only this client knew its id, so nobody else has taken it over.
            if call.command.is_release() && call.is_watched() && !call.known {
                call.start_again();
                return self.park(now + UNHURRIED_PAUSE, Parked::Call(key));
            }
            self.calls.remove(key);
            return;
        };

        // Rule 7: the site knows nothing of this id any more. It gives a grant back once, whatever the id; and what left once has
        // not been carried out, since this is the answer to that copy.
        let is_lost = outcome == Outcome::Unknown(UnknownReason::IncarnationLost);
        let may_start_again = match &call.command {
            Command::ReleaseGrant { grant, .. } => {
                !is_lost || call.id.is_some_and(|id| id.incarnation < grant.incarnation)
            }
            command => command.is_release() && is_lost && call.times_sent == 1,
        };
        if call.is_watched() && may_start_again && (is_lost || outcome == Outcome::Unknown(UnknownReason::Forgotten)) {
            call.start_again();
            return self.queue_up(key);
        }

        // Nothing more can be done about these; whoever closes the client is told.
        let is_kept = match (&call.command, &outcome) {
            // The grant is not out any more, or went with its storage: there is nothing to give back.
            (
                Command::ReleaseGrant { .. },
                Outcome::Refused(Refusal::UnknownGrant | Refusal::QuotaDeleted | Refusal::Settled),
            ) => false,
            (Command::ReleaseGrant { .. }, Outcome::Unknown(UnknownReason::IncarnationLost)) => false,
            // It comes back by itself.
            (Command::Release { .. }, Outcome::Refused(Refusal::Refills)) => false,
            (_, Outcome::Refused(_)) => call.command.is_release(),
            (_, Outcome::Unknown(_)) => call.is_watched(),
            _ => false,
        };
        let call = self.calls.remove(key);

        // Its caller is gone, so nobody else would ever release what it was granted.
        self.give_back(&call.command, &outcome, now);
        if is_kept {
            self.lost.truncate(LOST - 1);
            self.lost.push_front(Unsettled { command: call.command, id: call.id, outcome: Some(outcome) });
        }
    }

    /// Gives back what a call was granted, if it was, for nobody in particular.
    pub(super) fn give_back(&mut self, command: &Command, outcome: &Outcome, now: Time) {
        if let Some(undo) = command.undo(outcome) {
            let terms = Terms { deadline: now + WATCH, pinned: true, patience: None };
            let key = self.enqueue(undo, terms, Audience::Detached, now);
            self.calls.watch(key);
        }
    }
}
