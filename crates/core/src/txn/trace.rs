//! The traces of a coordinator's transactions, for a client that asks why one took long or was refused.
//!
//! It is kept in memory only, and changes nothing else: no protocol step looks at it. The oldest traces go first when
//! there are more than [`TRACES`], or when they take more than [`TRACE_BYTES`] together.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::clock::Now;
use crate::id::{Incarnation, OperationId, SiteId};
use crate::object::trace::{End, Event, Proof, Share, Step, Trace};
use crate::object::{Abort, Part};

/// The most traces that a site keeps.
pub const TRACES: usize = 4_096;
/// The most bytes that they take together, about.
pub const TRACE_BYTES: usize = 8 << 20;
/// The most rights that one trace names.
pub const RIGHTS: usize = 8;
/// The most events of one trace. A site has one of each kind, and one for each object whose rights it waits for.
pub const EVENTS: usize = 256;

/// The traces of the last transactions.
#[derive(Clone, Debug, Default)]
pub(super) struct Traces {
    /// The traces in the order in which their transactions began; at most [`TRACES`].
    kept: VecDeque<Kept>,
    /// The number of the first of them. Transactions are numbered in the order in which they began.
    first: u64,
    /// The numbers of the transactions whose phases are under way, if their traces are still kept.
    under_way: FxHashMap<OperationId, u64>,
    /// The bytes that all of them take, about.
    bytes: usize,
}

/// The trace of one transaction.
#[derive(Clone, Debug)]
struct Kept {
    /// The transaction.
    id: OperationId,
    /// The monotonic time at which it began.
    began: u64,
    /// Its steps so far.
    trace: Trace,
}

impl Kept {
    /// The bytes that it takes, about.
    fn bytes(&self) -> usize {
        let Trace { rights, parts, events, end, .. } = &self.trace;
        let rights = rights.iter().map(proof_bytes).sum::<usize>();
        let events = events.iter().map(event_bytes).sum::<usize>();
        let end = if let Some((_, End::Aborted(abort))) = end { abort_bytes(abort) } else { 0 };
        size_of::<Self>() + size_of_val(&parts[..]) + rights + events + end
    }
}

impl Traces {
    /// Begins the trace of a transaction.
    pub(super) fn begin(&mut self, now: Now, id: OperationId) {
        // The memory of the trace that it displaces is used again: most have one part.
        let oldest = if self.kept.len() < TRACES { None } else { self.forget_oldest() };
        let mut parts =
            oldest.map(|oldest| oldest.trace.parts).filter(|parts| parts.capacity() <= 4).unwrap_or_default();
        parts.clear();

        let kept = Kept { id, began: now.mono, trace: Trace { began: now.wall, parts, ..Trace::default() } };
        self.bytes += kept.bytes();
        self.kept.push_back(kept);
        self.shrink();
    }

    /// Removes the oldest trace.
    fn forget_oldest(&mut self) -> Option<Kept> {
        let oldest = self.kept.pop_front()?;
        self.bytes -= oldest.bytes();
        self.first += 1;
        if !self.under_way.is_empty() {
            self.under_way.remove(&oldest.id);
        }
        Some(oldest)
    }

    /// Removes the oldest traces while all of them take too much.
    fn shrink(&mut self) {
        while self.bytes > TRACE_BYTES && self.kept.len() > 1 {
            self.forget_oldest();
        }
    }

    /// Notes the rights that prove reads of the transaction that began last, and the parts that are left.
    pub(super) fn sort(&mut self, proofs: &mut Vec<Proof>, parts: &[(SiteId, Incarnation, Part)]) {
        let Some(Kept { trace, .. }) = self.kept.back_mut() else { return };
        trace.proved = count(proofs.len());
        trace.parts.extend(parts.iter().map(|(site, _, part)| share(*site, part)));

        // Where nothing is left, the caller needs the proofs no more, and they are taken instead of copied.
        if parts.is_empty() {
            proofs.truncate(RIGHTS);
            trace.rights = std::mem::take(proofs);
        } else {
            trace.rights = proofs.iter().take(RIGHTS).cloned().collect();
        }
        self.bytes += size_of_val(&trace.parts[..]) + trace.rights.iter().map(proof_bytes).sum::<usize>();
        self.shrink();
    }

    /// Notes that the transaction that began last goes into phases: events of it follow.
    pub(super) fn follow(&mut self) {
        if let Some(last) = self.kept.back() {
            self.under_way.insert(last.id, self.first + self.kept.len() as u64 - 1);
        }
    }

    /// Notes an event of a transaction.
    pub(super) fn note(&mut self, now: Now, id: OperationId, site: SiteId, step: Step) {
        let Some(kept) = self.find_mut(id) else { return };
        let events = &mut kept.trace.events;

        // A repeated event is counted, so that a transaction that waits for long takes no more memory. Its first answer
        // names all holders that had to give a right up, and stays.
        let before = events.iter_mut().find(|event| event.site == site && event.step.is_repeated_by(&step));
        if let Some(event) = before {
            event.times = event.times.saturating_add(1);
            if let (Step::Waits { until, .. }, Step::Waits { until: now, .. }) = (&mut event.step, &step) {
                *until = *now;
            }
            return;
        }

        if events.len() >= EVENTS {
            kept.trace.left_out = kept.trace.left_out.saturating_add(1);
            return;
        }
        let event = Event { at: now.mono.saturating_sub(kept.began), times: 1, site, step };
        let bytes = event_bytes(&event);
        events.push(event);
        self.bytes += bytes;
        self.shrink();
    }

    /// Notes the end of a transaction.
    pub(super) fn end(&mut self, now: Now, id: OperationId, end: End) {
        let Some(kept) = self.find_mut(id) else { return };
        if kept.trace.end.is_none() {
            let at = now.mono.saturating_sub(kept.began);
            let bytes = if let End::Aborted(abort) = &end { abort_bytes(abort) } else { 0 };
            kept.trace.end = Some((at, end));
            self.bytes += bytes;
            self.shrink();
        }
    }

    /// Notes that no events of a transaction follow.
    pub(super) fn close(&mut self, id: OperationId) {
        self.under_way.remove(&id);
    }

    /// The trace of a transaction, while it is kept.
    pub(super) fn find(&self, id: OperationId) -> Option<&Trace> {
        self.kept.iter().rev().find(|kept| kept.id == id).map(|kept| &kept.trace)
    }

    /// The trace of the transaction that began last, or of one whose phases are under way.
    fn find_mut(&mut self, id: OperationId) -> Option<&mut Kept> {
        // A transaction that is judged at once is the last, and is found without a look into the map.
        let last = self.kept.len().checked_sub(1)?;
        if self.kept[last].id == id {
            return self.kept.get_mut(last);
        }

        let at = self.under_way.get(&id)?.checked_sub(self.first)?;
        self.kept.get_mut(usize::try_from(at).ok()?)
    }
}

fn proof_bytes(proof: &Proof) -> usize {
    size_of::<Proof>() + proof.key.name.len()
}

fn abort_bytes(abort: &Abort) -> usize {
    size_of::<Abort>() + 64 * abort.calls.len() + 4 * abort.holders.len()
}

fn event_bytes(event: &Event) -> usize {
    let more = match &event.step {
        Step::Waits { name, holders, .. } => name.len() + 4 * holders.len(),
        Step::Refused(abort) => abort_bytes(abort),
        _ => 0,
    };
    size_of::<Event>() + more
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
