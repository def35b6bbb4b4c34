//! What is to be sent to one site, now or later.

use std::collections::VecDeque;

use slackline_core::api::Request;
use slackline_core::id::{OperationId, SessionId};

use super::calls::{Audience, Call, Calls};
use crate::command::CallKey;
use crate::time::Time;

/// Something that is put off.
#[derive(Debug)]
pub(super) enum Parked {
    /// To be sent again, under a new id.
    Call(CallKey),
    /// To be sent again, under its id.
    Repeat(SessionId, u64),
    /// To be asked about again.
    Ask(OperationId),
    /// A session is to be opened, if one is still wanted.
    Open,
}

/// What is to be sent to one site.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Opens, questions and closes; they go before batches. Empty without a stream: what the next one needs is put here when it begins.
    pub(super) outbox: VecDeque<Request>,
    /// What left on an earlier stream or was handed over, and leaves next under its id. Empty without a stream. It may have ended by then.
    pub(super) resend: VecDeque<(SessionId, u64)>,
    /// Calls without an id, first come first. Each is marked as `queued`, and in no other queue. Its caller may have gone or been told
    /// meanwhile: then it does not leave.
    pub(super) fresh: VecDeque<CallKey>,
    /// What is put off, each until a time. Without a stream, only calls.
    parked: Vec<(Time, Parked)>,
}

impl Queue {
    /// Puts something off.
    pub(super) fn park(&mut self, until: Time, parked: Parked) {
        self.parked.push((until, parked));
    }

    /// When the first of what is put off is to be taken up again.
    pub(super) fn next_parked(&self) -> Option<Time> {
        self.parked.iter().map(|(at, _)| *at).min()
    }

    /// True if something is put off.
    pub(super) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Takes out what was put off until now.
    pub(super) fn take_due(&mut self, now: Time) -> Vec<Parked> {
        let mut due = Vec::new();
        for index in (0..self.parked.len()).rev() {
            if self.parked[index].0 <= now {
                due.push(self.parked.swap_remove(index).1);
            }
        }
        due
    }

    /// The stream is over. What it was to carry of calls that have an id is not lost: the next one begins with all of these.
    pub(super) fn end_stream(&mut self) {
        self.outbox.clear();
        self.resend.clear();
        self.parked.retain(|(_, parked)| matches!(parked, Parked::Call(_)));
    }

    /// Nothing leaves any more that has no id. What nobody waits for, and has to be carried out, keeps its slot, to be reported as left.
    pub(super) fn end(&mut self, calls: &mut Calls) {
        let parked = std::mem::take(&mut self.parked).into_iter().filter_map(|(_, parked)| match parked {
            Parked::Call(key) => Some(key),
            Parked::Repeat(..) | Parked::Ask(_) | Parked::Open => None,
        });
        for key in std::mem::take(&mut self.fresh).into_iter().chain(parked) {
            calls[key].queued = false;
            if matches!(calls[key].audience, Audience::Gone) {
                calls.remove(key);
            }
        }
    }

    /// Asserts what always holds of the queues, and between them and the calls.
    pub(super) fn check(&self, calls: &Calls, has_stream: bool) {
        assert!(has_stream || self.outbox.is_empty() && self.resend.is_empty(), "without a stream nothing leaves");
        let parked = self.parked.iter().filter_map(|(_, parked)| match parked {
            Parked::Call(key) => Some(*key),
            Parked::Repeat(..) | Parked::Ask(_) | Parked::Open => None,
        });
        let mut queued: Vec<CallKey> = self.fresh.iter().copied().chain(parked).collect();
        queued.sort_unstable();
        let marked = calls.iter().filter(|(_, call): &(CallKey, &Call)| call.queued).map(|(key, _)| key);
        assert!(marked.eq(queued), "a call is marked as queued if one queue holds its key");
    }
}
