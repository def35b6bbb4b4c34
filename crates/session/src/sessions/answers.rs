//! Rules 2 and 3 of the [module above](super): what a site says of calls, and what follows from it.

use std::task::Waker;

use slackline_core::api::{Answer, Outcome, Refusal, UnknownReason};
use slackline_core::id::{OperationId, SessionId};

use super::calls::Audience;
use super::queue::Parked;
use super::{NOT_READY_PAUSE, Sessions, UNHURRIED_PAUSE};
use crate::command::{CallKey, NotTaken, Reply};
use crate::time::Time;

impl Sessions {
    /// The site answered a batch, or operations of an earlier one. Returns true if a relay lost the site.
    pub fn answers(&mut self, id: SessionId, answers: Vec<Answer>, now: Time, wakers: &mut Vec<Waker>) -> bool {
        let flight = self.stream.land(id, now);
        let Some(position) = self.windows.position(id) else { return false };
        let mut lost = false;
        for Answer { sequence, outcome } in answers {
            // Of what has ended, nobody wants to hear again: the answer is to an earlier copy, or comes too late.
            let Some(key) = self.windows[position].call(sequence) else { continue };
            lost |= outcome == Outcome::Unknown(UnknownReason::SiteUnreachable);
            self.answered(position, sequence, key, outcome, now, wakers);
        }

        // What has no answer yet waits at the site, which is alive. A relay's word says nothing of it.
        if let Some(flight) = flight
            && !self.stream.is_relayed()
        {
            let (first, last) = flight.sequences;
            self.heard_of(position, first, last);
        }
        self.windows.forget_ended();
        lost
    }

    /// The site says what became of an operation. Returns true if a relay lost the site.
    pub fn asked(&mut self, operation: OperationId, outcome: Outcome, now: Time, wakers: &mut Vec<Waker>) -> bool {
        let Some(key) = self.windows.call(operation) else { return false };
        let reply = match outcome {
            Outcome::Unknown(
                UnknownReason::SiteUnreachable
                | UnknownReason::Undecided
                | UnknownReason::NotReady
                | UnknownReason::StorageFull,
            ) => {
                // Its caller's patience is with the call, not with the site: what cannot be told is as good as silence.
                let call = &mut self.calls[key];
                call.quiet_since.get_or_insert(now);
                let pause = if call.is_watched() { UNHURRIED_PAUSE } else { NOT_READY_PAUSE };
                self.park(now + pause, Parked::Ask(operation));
                return outcome == Outcome::Unknown(UnknownReason::SiteUnreachable);
            }
            // The answer to a question is durable, so it will never be carried out.
            Outcome::Refused(refusal @ (Refusal::Withdrawn | Refusal::NotReady | Refusal::StorageFull)) => {
                Reply::NotTaken(NotTaken::Refused(refusal))
            }
            // The session's outcomes are gone, so it cannot be known.
            Outcome::Refused(Refusal::SessionEnded) => Reply::Answered(Outcome::Unknown(UnknownReason::Forgotten)),
            outcome => Reply::Answered(outcome),
        };

        // The outcome is known, so nobody will ask for it again: the mark may pass it.
        self.windows.settle(operation);
        self.finish(key, reply, now, wakers);
        self.windows.forget_ended();
        false
    }

    /// The site answered a copy of a call.
    fn answered(
        &mut self,
        position: usize,
        sequence: u64,
        key: CallKey,
        outcome: Outcome,
        now: Time,
        wakers: &mut Vec<Waker>,
    ) {
        let call = &mut self.calls[key];
        let is_only_copy = call.times_sent == 1 && !self.stream.is_relayed();
        if let Some(why) = of_one_copy(&outcome) {
            if why == Refusal::SessionEnded {
                self.windows[position].ended = true;
            }
            if matches!(call.audience, Audience::Detached) {
                return self.release_not_taken(position, sequence, why, outcome, now);
            }

            // Rule 3: this was the only copy, and the site did not carry it out.
            if is_only_copy {
                self.windows[position].settle(sequence);
                return self.not_taken(key, why, now, wakers);
            }

            // An earlier copy may have been carried out, or one that is still on its way through a relay. That it is forgotten
            // is all that the site will ever say.
            if outcome != Outcome::Unknown(UnknownReason::Forgotten) {
                return self.ask(position, sequence);
            }
        }

        // Rule 3 too: the session rests on storage that the site has lost. Only a later incarnation says so of a copy, and the one
        // that took this copy has not carried it out. Had an earlier one taken another copy, nobody could tell.
        if outcome == Outcome::Unknown(UnknownReason::IncarnationLost)
            && is_only_copy
            && !matches!(call.audience, Audience::Detached)
        {
            self.windows[position].ended = true;
            self.windows[position].settle(sequence);
            return self.not_taken(key, Refusal::SessionEnded, now, wakers);
        }

        let reply = match outcome {
            // A relay could not reach the site: still in doubt. The link is told to find another way.
            Outcome::Unknown(UnknownReason::SiteUnreachable) => return,
            // The sites are agreeing on it, and will soon know.
            Outcome::Unknown(UnknownReason::Undecided) => {
                if let Some(operation) = call.id {
                    self.park(now + NOT_READY_PAUSE, Parked::Ask(operation));
                }
                return;
            }
            // Somebody asked about it first; it is settled that it has no effect.
            Outcome::Refused(Refusal::Withdrawn) => Reply::NotTaken(NotTaken::Refused(Refusal::Withdrawn)),
            // Sessions rest on what the site has lost: nothing new may leave in this one.
            Outcome::Unknown(UnknownReason::IncarnationLost) => {
                self.windows[position].ended = true;
                Reply::Answered(outcome)
            }
            outcome => Reply::Answered(outcome),
        };

        self.windows[position].settle(sequence);
        self.finish(key, reply, now, wakers);
    }

    /// The site surely did not carry out the only copy that was sent.
    fn not_taken(&mut self, key: CallKey, refusal: Refusal, now: Time, wakers: &mut Vec<Waker>) {
        let call = &mut self.calls[key];
        match refusal {
            _ if matches!(call.audience, Audience::Gone) => drop(self.calls.remove(key)),
            Refusal::SessionEnded => {
                call.start_again();
                let stays = call.command.stays();
                self.queue.fresh.line(stays).push_front(key);
            }
            Refusal::NotReady if call.terms.pinned => {
                call.start_again();
                call.refused = Some(refusal);
                self.park(now + NOT_READY_PAUSE, Parked::Call(key));
            }
            refusal => self.finish(key, Reply::NotTaken(NotTaken::Refused(refusal)), now, wakers),
        }
    }

    /// A call has ended; its sequence is settled.
    fn finish(&mut self, key: CallKey, reply: Reply, now: Time, wakers: &mut Vec<Waker>) {
        match self.calls[key].audience {
            Audience::Waiting(_) => self.tell(key, reply, wakers),
            Audience::Told(_) => unreachable!("a call that was told is in no window, so no answer finds it"),
            Audience::Detached | Audience::Gone => self.settled(key, reply, now),
        }
    }
}

/// Why a site did not carry out the copy of an operation that it answers, if it says no more than that.
fn of_one_copy(outcome: &Outcome) -> Option<Refusal> {
    match outcome {
        Outcome::Refused(why @ (Refusal::SessionEnded | Refusal::NotReady | Refusal::StorageFull)) => Some(*why),
        Outcome::Unknown(UnknownReason::NotReady) => Some(Refusal::NotReady),
        Outcome::Unknown(UnknownReason::StorageFull) => Some(Refusal::StorageFull),
        // Nobody asks for what is below the mark, so the session is over.
        Outcome::Unknown(UnknownReason::Forgotten) => Some(Refusal::SessionEnded),
        _ => None,
    }
}
