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
    /// Calls without an id. Each is marked as `queued`, and in no other queue. Its caller may have gone or been told meanwhile: then it
    /// does not leave.
    pub(super) fresh: Fresh,
    /// True if the last batch of calls that left for the first time was of calls that stay.
    pub(super) stayed: bool,
    /// What is put off, each until a time. Without a stream, only calls.
    parked: Vec<(Time, Parked)>,
}

/// Calls that are to leave for the first time, first come first, in two lines: one that stays at its site shares no session with one that
/// does not (rule 5).
#[derive(Debug, Default)]
pub(super) struct Fresh {
    /// Calls that a site answers as soon as it can.
    brief: VecDeque<CallKey>,
    /// Calls that may stay in line at the site.
    staying: VecDeque<CallKey>,
}

impl Fresh {
    /// The line of calls that stay, or that of the others.
    pub(super) fn line(&mut self, stays: bool) -> &mut VecDeque<CallKey> {
        if stays { &mut self.staying } else { &mut self.brief }
    }

    fn of(&self, stays: bool) -> &VecDeque<CallKey> {
        if stays { &self.staying } else { &self.brief }
    }

    /// The number of calls that stay, or of the others.
    pub(super) fn count(&self, stays: bool) -> usize {
        self.of(stays).len()
    }

    /// The number of all calls.
    pub(super) fn len(&self) -> usize {
        self.brief.len() + self.staying.len()
    }

    /// True if no call is to leave.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All calls.
    pub(super) fn iter(&self) -> impl Iterator<Item = CallKey> {
        self.brief.iter().chain(&self.staying).copied()
    }
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
        let Fresh { brief, staying } = std::mem::take(&mut self.fresh);
        for key in brief.into_iter().chain(staying).chain(parked) {
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
        for stays in [false, true] {
            let is_its = |key: &CallKey| calls[*key].command.stays() == stays;
            assert!(self.fresh.of(stays).iter().all(is_its), "a call is in the wrong line");
        }
        let mut queued: Vec<CallKey> = self.fresh.iter().chain(parked).collect();
        queued.sort_unstable();
        let marked = calls.iter().filter(|(_, call): &(CallKey, &Call)| call.queued).map(|(key, _)| key);
        assert!(marked.eq(queued), "a call is marked as queued if one queue holds its key");
    }
}
