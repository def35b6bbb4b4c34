//! Rules 6 to 8 of the [book](super): what becomes of calls whose site says nothing, and of what nobody waits for.

use crate::time::Time;
use std::task::Waker;

use slackline_core::api::{Outcome, Refusal, Request, UnknownReason};
use slackline_core::id::OperationId;

use super::{Audience, Call, Entry, LOST, PATIENCE, Parked, Sessions, UNHURRIED_PAUSE, WATCH, WATCHED};
use crate::command::{CallKey, Command, Finished, NotTaken, Reply, Terms, Unsettled};

impl Call {
    /// When it is to be taken from a site that says nothing; none if it stays there.
    pub(super) fn patience_ends(&self) -> Option<Time> {
        if !matches!(self.audience, Audience::Waiting(_)) {
            return None;
        }
        let patience = match self.id {
            None if !self.terms.pinned => PATIENCE.min(self.terms.patience.unwrap_or(PATIENCE)),
            _ if self.command.is_release() => self.terms.patience?,
            Some(_) if self.command.is_acquire() && !self.terms.pinned => self.terms.patience?,
            _ => return None,
        };
        Some(self.quiet_since? + patience)
    }

    /// It has never been carried out and never will be under its id: it is as if it had never left.
    pub(super) fn start_again(&mut self) {
        (self.id, self.times_sent, self.sent_at, self.queued) = (None, 0, None, true);
    }
}

impl Sessions {
    /// The caller of a call that was left behind found no other site that would take it, and takes it back: it ends as unknown, and
    /// what became of it is the caller's to ask. None if that is settled by now.
    pub fn reclaim(&mut self, id: OperationId, now: Time) -> Option<Finished> {
        let index = self.session(id.session)?;
        let Some(Entry::Call(key)) = self.sessions[index].entry(id.sequence).copied() else { return None };
        let call = self.calls[key].as_ref().expect("an entry names a live call");
        let (command, sent_at) = (call.command.clone(), call.sent_at);
        self.doubt(id, now);
        self.vacate(key);
        let reply = Reply::Answered(Outcome::Unknown(UnknownReason::SiteUnreachable));
        Some(Finished { reply, command, id: Some(id), sent_at })
    }

    /// What nobody waits for and is not settled, or never will be.
    pub fn left(&self) -> Vec<Unsettled> {
        let open = self.calls.iter().flatten().filter(|call| match call.audience {
            Audience::Gone => call.id.is_some() && call.command.is_acquire(),
            Audience::Detached => true,
            Audience::Waiting(_) | Audience::Told(_) => false,
        });
        let open = open.map(|call| Unsettled { command: call.command.clone(), id: call.id, outcome: None });
        self.lost.iter().cloned().chain(open).collect()
    }

    /// Rule 8: from here on the call has no deadline.
    pub(super) fn mark_watched(&mut self, key: CallKey) {
        let call = self.calls[key].as_mut().expect("it is under way");
        self.watched += usize::from(!std::mem::replace(&mut call.watched, true));
    }

    /// Rule 6: nobody waits for an acquire any more that has left. If it waits for tokens, asking about it ends that. If it was granted
    /// by now, the answer says so. If there is no connection, the next one asks.
    pub(super) fn watch(&mut self, key: CallKey) {
        self.mark_watched(key);
        let operation = self.calls[key].as_ref().and_then(|call| call.id).expect("it has left");
        if self.connected {
            self.outbox.push_back(Request::Ask { operation });
        }
    }

    /// Rule 6: the patience of a call has passed.
    pub(super) fn impatient(&mut self, key: CallKey, wakers: &mut Vec<Waker>) {
        self.silent = true;
        let call = self.calls[key].as_mut().expect("the sweep looked at it");
        if call.command.is_release() && (call.id.is_some() || call.terms.pinned) {
            return self.hand_over(key, wakers);
        }
        call.restless = true;
        if let Audience::Waiting(waker) = &mut call.audience {
            wakers.extend(waker.take());
        }
    }

    /// Rule 6: takes a call from its caller, who tries another site.
    pub(super) fn leave_behind(&mut self, key: CallKey) -> Finished {
        let call = self.calls[key].as_mut().expect("it is polled");
        call.audience = Audience::Gone;
        let (command, id, sent_at) = (call.command.clone(), call.id, call.sent_at);
        let reply = match id {
            // Its key still lies in a queue, which vacates the slot when it comes upon it.
            None => Reply::NotTaken(NotTaken::Unreachable),
            Some(_) => {
                self.watch(key);
                Reply::LeftBehind
            }
        };
        Finished { reply, command, id, sent_at }
    }

    /// Rule 6: sees to a release from here on, in another slot, since the caller has yet to fetch what it is told from this one.
    pub(super) fn hand_over(&mut self, key: CallKey, wakers: &mut Vec<Waker>) {
        if self.watched >= WATCHED {
            return;
        }
        let call = self.calls[key].as_ref().expect("the sweep looked at it");
        let (command, terms, id, sent_at, times_sent) =
            (call.command.clone(), call.terms, call.id, call.sent_at, call.times_sent);
        // One that has not left is given its id now: its caller may want to ask. Without a session it stays with its caller.
        let Some(id) = id.or_else(|| self.next_id()) else { return };
        let index = self.session(id.session).expect("its session lives as long as the call");
        let seen_to = self.occupy(Call {
            command,
            terms,
            id: Some(id),
            sent_at,
            times_sent,
            quiet_since: None,
            restless: false,
            watched: false,
            known: true,
            queued: false,
            audience: Audience::Detached,
        });
        self.mark_watched(seen_to);
        let entry = self.sessions[index].entry(id.sequence).expect("an id that is in use has an entry");
        *entry = Entry::Call(seen_to);
        if times_sent == 0 && self.connected {
            self.resend.push_back((id.session, id.sequence));
        }
        self.tell(key, Reply::HandedOver(id), wakers);
    }

    /// The next id of the session with most room, with an entry that is to be filled; none if no session has room.
    pub(super) fn next_id(&mut self) -> Option<OperationId> {
        let session = self.sessions.iter_mut().max_by_key(|session| session.room())?;
        if session.room() == 0 {
            return None;
        }
        let sequence = session.low + session.entries.len() as u64;
        session.entries.push_back(Entry::Settled);
        Some(OperationId { site: self.site, incarnation: session.incarnation, session: session.id, sequence })
    }

    /// The site has these sequences of a session, and is alive.
    pub(super) fn heard_of(&mut self, index: usize, first: u64, last: u64) {
        for sequence in first.max(self.sessions[index].low)..=last {
            let Some(Entry::Call(key)) = self.sessions[index].entry(sequence).copied() else { continue };
            let call = self.calls[key].as_mut().expect("an entry names a live call");
            (call.quiet_since, call.restless) = (None, false);
        }
    }

    /// Rule 7: the site did not carry out this copy of a release that nobody waits for.
    pub(super) fn release_not_taken(&mut self, index: usize, sequence: u64, why: Refusal, outcome: Outcome, now: Time) {
        let session = &mut self.sessions[index];
        let Some(Entry::Call(key)) = session.entry(sequence).copied() else { return };
        let has_ended = why == Refusal::SessionEnded;

        // It could not look the id up: the same again.
        if !has_ended && matches!(outcome, Outcome::Unknown(_)) {
            let session = session.id;
            return self.park(now + UNHURRIED_PAUSE, Parked::Repeat(session, sequence));
        }

        // No copy was carried out, or a grant's id sees to it that one is. A caller who knows the id of a release by amount may be
        // told that it is refused, and release again, so that one gets no other id.
        let call = self.calls[key].as_mut().expect("an entry names a live call");
        let is_only_copy = call.times_sent == 1 && !self.relayed;
        let is_refused = matches!(outcome, Outcome::Refused(_));
        if matches!(call.command, Command::ReleaseGrant { .. }) || is_only_copy && !(call.known && is_refused) {
            call.start_again();
            session.settle(sequence);
            match has_ended {
                true => self.fresh.push_back(key),
                false => self.park(now + UNHURRIED_PAUSE, Parked::Call(key)),
            }
            return;
        }

        // An earlier copy may be on its way. Nobody else knows the id, so the site can be asked, which settles it for ever.
        if !call.known && !has_ended {
            return self.ask(index, sequence);
        }

        let outcome = if has_ended && !is_only_copy { Outcome::Unknown(UnknownReason::Forgotten) } else { outcome };
        session.settle(sequence);
        self.settled(key, Reply::Answered(outcome), now);
    }

    /// What nobody waits for has ended.
    pub(super) fn settled(&mut self, key: CallKey, reply: Reply, now: Time) {
        let call = self.calls[key].as_mut().expect("an entry names a live call");
        let Reply::Answered(outcome) = reply else {
            // It is settled that it has no effect. Only this client knew its id, so nobody else has taken it over.
            if call.command.is_release() && call.watched && !call.known {
                call.start_again();
                return self.park(now + UNHURRIED_PAUSE, Parked::Call(key));
            }
            return self.vacate(key);
        };

        // Rule 7: the site knows nothing of this id any more. It gives a grant back once, whatever the id; and what left once has
        // not been carried out, since this is the answer to that copy.
        let is_lost = outcome == Outcome::Unknown(UnknownReason::IncarnationLost);
        let may_start_again = match &call.command {
            Command::ReleaseGrant { grant } => !is_lost || call.id.is_some_and(|id| id.incarnation < grant.incarnation),
            command => command.is_release() && is_lost && call.times_sent == 1,
        };
        if call.watched && may_start_again && (is_lost || outcome == Outcome::Unknown(UnknownReason::Forgotten)) {
            call.start_again();
            return self.fresh.push_back(key);
        }

        let keeps = match (&call.command, &outcome) {
            // The grant is not out any more, or went with its storage: there is nothing to give back.
            (Command::ReleaseGrant { .. }, Outcome::Refused(Refusal::UnknownGrant | Refusal::QuotaDeleted)) => false,
            (Command::ReleaseGrant { .. }, Outcome::Unknown(UnknownReason::IncarnationLost)) => false,
            (_, Outcome::Refused(_)) => call.command.is_release(),
            (_, Outcome::Unknown(_)) => call.watched,
            _ => false,
        };
        let (command, id) = (call.command.clone(), call.id);
        self.vacate(key);
        self.give_back(&command, &outcome, now);
        if keeps {
            self.lost.truncate(LOST - 1);
            self.lost.push_front(Unsettled { command, id, outcome: Some(outcome) });
        }
    }

    pub(super) fn give_back(&mut self, command: &Command, outcome: &Outcome, now: Time) {
        if let Some(undo) = command.undo(outcome) {
            let terms = Terms { deadline: now + WATCH, pinned: true, patience: None };
            let key = self.enqueue(undo, terms, Audience::Detached, now);
            self.mark_watched(key);
        }
    }
}
