//! The queue of what is going to happen: earliest first, and in the order of insertion among equals, so that the same
//! seed gives the same run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bits of a key that name the slot of its event.
const SLOT_BITS: u32 = 24;

/// Events by the time at which they happen. The heap holds keys of 16 bytes; the events themselves do not move.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    /// Keys: the time, the number of the event, and its slot.
    heap: BinaryHeap<Reverse<u128>>,
    /// The events.
    slots: Vec<Option<E>>,
    /// Slots that are empty.
    free: Vec<u32>,
    /// The number of events that were ever pushed.
    pushed: u64,
}

impl<E> Queue<E> {
    /// Nothing is going to happen.
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), pushed: 0 }
    }

    /// Adds an event that happens at `at`.
    #[inline]
    pub(crate) fn push(&mut self, at: u64, event: E) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(event);
                slot
            }
            None => {
                self.slots.push(Some(event));
                assert!(self.slots.len() < 1 << SLOT_BITS, "more events are under way than a run can have");
                self.slots.len() as u32 - 1
            }
        };

        // Among events of one time the order in which they were pushed decides, so that a seed has one run.
        self.pushed += 1;
        self.heap.push(Reverse(u128::from(at) << 64 | u128::from(self.pushed << SLOT_BITS | u64::from(slot))));
    }

    /// When the next event happens.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(key)| (key >> 64) as u64)
    }

    /// The next event, if it happens no later than `until`.
    #[inline]
    pub(crate) fn pop(&mut self, until: u64) -> Option<(u64, E)> {
        let at = self.next_at().filter(|at| *at <= until)?;
        let Reverse(key) = self.heap.pop()?;
        let slot = key as u32 & ((1 << SLOT_BITS) - 1);
        self.free.push(slot);
        let event = self.slots[slot as usize].take().expect("a key names a full slot");
        Some((at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_time_then_of_insertion() {
        let mut queue = Queue::new();
        for (at, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            queue.push(at, name);
        }
        let early: Vec<_> = std::iter::from_fn(|| queue.pop(4)).collect();
        assert_eq!(early, [(1, 'a'), (2, 'b')]);
        queue.push(5, 'e');
        let late: Vec<_> = std::iter::from_fn(|| queue.pop(u64::MAX)).map(|(_, name)| name).collect();
        assert_eq!(late, ['c', 'd', 'e']);
    }
}
