//! What a coordinator remembers of its transactions, for those who ask why one took long or was refused.
//!
//! It is kept in memory only, and changes nothing else: no protocol step looks at it. The oldest traces go first when there
//! are more than [`TRACES`], or when they take more than [`TRACE_BYTES`] together.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::clock::Now;
use crate::id::{Incarnation, OperationId, SiteId};
use crate::object::trace::{End, Event, Proof, Share, Step, Trace};
use crate::object::{Abort, Part};

/// The most transactions of which a site remembers the course.
pub const TRACES: usize = 4_096;
/// The most bytes that this takes, about.
pub const TRACE_BYTES: usize = 8 << 20;
/// The most rights that one trace names.
pub const RIGHTS: usize = 8;
/// The most events of one trace. A site has one of each kind, and one for each object whose rights it waits for.
pub const EVENTS: usize = 256;

/// The courses of the last transactions.
#[derive(Clone, Debug, Default)]
pub(super) struct Traces {
    kept: VecDeque<Kept>,
    /// The number of the first of them; they are numbered in the order in which they began.
    first: u64,
    /// The numbers of those whose phases are under way, if they are still kept.
    under_way: FxHashMap<OperationId, u64>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Kept {
    id: OperationId,
    /// When it began, on the monotonic clock.
    began: u64,
    trace: Trace,
}

impl Kept {
    /// How many bytes it takes, about.
    fn bytes(&self) -> usize {
        let abort = |abort: &Abort| size_of::<Abort>() + 64 * abort.calls.len() + 4 * abort.holders.len();
        let step = |event: &Event| match &event.step {
            Step::Waits { name, holders, .. } => name.len() + 4 * holders.len(),
            Step::Refused(refused) => abort(refused),
            _ => 0,
        };
        let Trace { rights, parts, events, end, .. } = &self.trace;
        let rights = rights.iter().map(|proof| size_of::<Proof>() + proof.key.name.len());
        let events = events.iter().map(|event| size_of::<Event>() + step(event));
        let end = if let Some((_, End::Aborted(aborted))) = end { abort(aborted) } else { 0 };
        size_of::<Self>() + size_of_val(&parts[..]) + rights.sum::<usize>() + events.sum::<usize>() + end
    }
}

impl Traces {
    /// A transaction begins.
    pub(super) fn begin(&mut self, now: Now, id: OperationId) {
        let kept = Kept { id, began: now.mono, trace: Trace { began: now.wall, ..Trace::default() } };
        self.bytes += kept.bytes();
        self.kept.push_back(kept);
        self.shrink();
    }

    /// Forgets the oldest ones that are beyond the bounds.
    fn shrink(&mut self) {
        while self.kept.len() > TRACES || (self.bytes > TRACE_BYTES && self.kept.len() > 1) {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.first += 1;
            self.under_way.remove(&oldest.id);
        }
    }

    /// Notes which rights prove reads of the one that began last, and what is left for whom.
    pub(super) fn sort(&mut self, proofs: &mut Vec<Proof>, parts: &[(SiteId, Incarnation, Part)]) {
        let Some(last) = self.kept.back_mut() else { return };
        self.bytes -= last.bytes();
        last.trace.proved = count(proofs.len());
        last.trace.parts = parts.iter().map(|(site, _, part)| share(*site, part)).collect();
        if parts.is_empty() {
            // Nobody else needs them.
            proofs.truncate(RIGHTS);
            last.trace.rights = std::mem::take(proofs);
        } else {
            last.trace.rights = proofs.iter().take(RIGHTS).cloned().collect();
        }
        self.bytes += last.bytes();
        self.shrink();
    }

    /// The one that began last goes into phases: more is to come of it.
    pub(super) fn follow(&mut self) {
        if let Some(last) = self.kept.back() {
            self.under_way.insert(last.id, self.first + self.kept.len() as u64 - 1);
        }
    }

    /// Something happens to a transaction.
    pub(super) fn note(&mut self, now: Now, id: OperationId, site: SiteId, step: Step) {
        self.change(id, |kept| {
            let events = &mut kept.trace.events;
            let before = events.iter().position(|event| event.site == site && event.step.is_repeated_by(&step));
            match before {
                Some(before) => {
                    let event = &mut events[before];
                    event.times = event.times.saturating_add(1);
                    // The first answer names everybody who had to give a right up.
                    if let (Step::Waits { until, .. }, Step::Waits { until: now, .. }) = (&mut event.step, &step) {
                        *until = *now;
                    }
                }
                None if events.len() >= EVENTS => kept.trace.left_out = kept.trace.left_out.saturating_add(1),
                None => events.push(Event { at: now.mono.saturating_sub(kept.began), times: 1, site, step }),
            }
        });
    }

    /// A transaction is decided.
    pub(super) fn end(&mut self, now: Now, id: OperationId, end: End) {
        self.change(id, |kept| {
            let at = now.mono.saturating_sub(kept.began);
            kept.trace.end.get_or_insert((at, end));
        });
    }

    /// No more is to come of it.
    pub(super) fn close(&mut self, id: OperationId) {
        self.under_way.remove(&id);
    }

    /// What is known of a transaction.
    pub(super) fn find(&self, id: OperationId) -> Option<&Trace> {
        self.kept.iter().rev().find(|kept| kept.id == id).map(|kept| &kept.trace)
    }

    fn change(&mut self, id: OperationId, change: impl FnOnce(&mut Kept)) {
        // One that is judged at once is the last.
        let is_last = self.kept.back().is_some_and(|last| last.id == id);
        let last = self.kept.len().checked_sub(1).filter(|_| is_last);
        let at = last.or_else(|| usize::try_from(self.under_way.get(&id)?.checked_sub(self.first)?).ok());
        let Some(kept) = at.and_then(|at| self.kept.get_mut(at)) else { return };
        self.bytes -= kept.bytes();
        change(kept);
        self.bytes += kept.bytes();
        self.shrink();
    }
}

fn share(site: SiteId, part: &Part) -> Share {
    Share { site, reads: count(part.reads.len()), scans: count(part.scans.len()), writes: count(part.writes.len()) }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::SessionId;
    use crate::object::{Cause, ObjectKey};

    fn id(sequence: u64) -> OperationId {
        OperationId { site: SiteId::new(0, 0), incarnation: Incarnation(1), session: SessionId(1), sequence }
    }

    fn at(mono: u64) -> Now {
        Now { wall: 1 << 40, mono }
    }

    #[test]
    fn oldest_traces_go_first_and_one_that_went_is_not_mixed_up_with_another() {
        let mut traces = Traces::default();
        for sequence in 0..TRACES as u64 + 2 {
            traces.begin(at(sequence), id(sequence));
            traces.follow();
        }
        assert!(traces.find(id(1)).is_none() && traces.find(id(2)).is_some());
        let (count, bytes) = (traces.kept.len(), traces.bytes);
        traces.note(at(9_000), id(1), SiteId::new(1, 0), Step::Prepared);
        assert_eq!((count, bytes, traces.under_way.len()), (TRACES, traces.bytes, TRACES), "it is gone");
        traces.note(at(9_000), id(2), SiteId::new(1, 0), Step::Prepared);
        traces.note(at(9_500), id(2), SiteId::new(1, 0), Step::Prepared);
        let events = &traces.find(id(2)).expect("kept").events;
        assert_eq!(events[..], [Event { at: 8_998, times: 2, site: SiteId::new(1, 0), step: Step::Prepared }]);
    }

    #[test]
    fn traces_take_no_more_bytes_than_their_bound() {
        let mut traces = Traces::default();
        for sequence in 0..TRACES as u64 {
            traces.begin(at(sequence), id(sequence));
            let proof = |read: u64| Proof { key: ObjectKey::new(1, format!("{read:0>500}")), until: 0 };
            traces.sort(&mut (0..20).map(proof).collect(), &[]);
            traces.end(at(sequence), id(sequence), End::Aborted(Box::new(Abort::of(Cause::Changed))));
        }
        let last = traces.find(id(TRACES as u64 - 1)).expect("the last one is kept");
        assert_eq!((last.proved, last.rights.len()), (20, RIGHTS));
        assert!(traces.kept.len() < TRACES && traces.bytes <= TRACE_BYTES, "{} bytes", traces.bytes);
        assert_eq!(traces.bytes, traces.kept.iter().map(Kept::bytes).sum::<usize>());
    }
}
