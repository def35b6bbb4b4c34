//! When each quota is to be looked after.
//!
//! Quotas in use look at their shares at one of two intervals, so most times are set in the order in which they come: these are
//! appended to a run, and taken from its front, both at no cost. A heap has the others.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Times in monotonic microseconds, each with the position of a quota. Of several entries of one quota the one counts that
/// [`Quota::wake`](super::one::Quota) names.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Entries in ascending order.
    run: VecDeque<(u64, u32)>,
    /// Those that do not fit at its end.
    others: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Timers {
    /// Adds an entry.
    #[inline]
    pub(super) fn push(&mut self, entry: (u64, u32)) {
        // One that is later than those that follow it would keep them all out of the run: it makes room.
        if self.run.back().is_some_and(|last| *last > entry) {
            self.others.extend(self.run.pop_back().map(Reverse));
        }
        if self.run.back().is_none_or(|last| *last <= entry) {
            self.run.push_back(entry);
        } else {
            self.others.push(Reverse(entry));
        }
    }

    /// The first entry.
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, u32)> {
        let other = self.others.peek().map(|Reverse(entry)| *entry);
        match (self.run.front().copied(), other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Takes the first entry out, if it is due.
    pub(super) fn pop_due(&mut self, now: u64) -> Option<(u64, u32)> {
        let first = self.first().filter(|(time, _)| *time <= now)?;
        if self.run.front() == Some(&first) {
            self.run.pop_front();
        } else {
            self.others.pop();
        }
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_in_any_order_come_out_in_ascending_order() {
        // A short cycle of steps has times in order, times back, one far away, and equal ones.
        let (mut timers, mut plain) = (Timers::default(), BinaryHeap::new());
        let mut taken = 0;
        for step in 0..10_000u64 {
            let time = match step % 7 {
                0 => step + 5_000,
                1 => step.saturating_sub(30),
                2 => step + 40,
                _ => step + 50,
            };
            let entry = (time, (step * 7 % 5) as u32);
            timers.push(entry);
            plain.push(Reverse(entry));
            assert_eq!(timers.first(), plain.peek().map(|Reverse(first)| *first));
            while let Some(first) = timers.pop_due(step) {
                taken += 1;
                assert_eq!(Some(Reverse(first)), plain.pop());
            }
            assert!(plain.peek().is_none_or(|Reverse((time, _))| *time > step), "one that is due was not taken");
        }
        assert!(taken > 5_000 && timers.run.len() > timers.others.len() / 100);
        while let Some(first) = timers.pop_due(u64::MAX) {
            assert_eq!(Some(Reverse(first)), plain.pop());
        }
        assert_eq!(plain.pop(), None);
    }

    #[test]
    fn times_at_one_interval_stay_in_the_run_though_one_was_far() {
        let mut timers = Timers::default();
        timers.push((1_000_000, 0));
        timers.push((2_000_000, 0));
        for step in 0..100 {
            timers.push((step + 50, 1));
        }
        assert_eq!((timers.others.len(), timers.run.len()), (3, 99), "the two that are far, and one beside them");
    }
}
