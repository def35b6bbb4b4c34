//! Acquires that wait at a site of a model, in the order of their arrival.

use std::collections::VecDeque;

use super::net::Call;

/// An acquire that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// The request.
    pub(super) call: Call,
    /// The number of tokens.
    pub(super) amount: i64,
    /// The last time at which it may be granted, in microseconds.
    pub(super) latest: u64,
}

/// See the module. Nobody is served before one that came earlier, as in the product's line.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: VecDeque<Waiting>,
    /// The tokens that all of them want: always the sum over `waiting`.
    needed: i64,
}

impl Line {
    /// True if nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of those that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The tokens that all of them want.
    pub(super) fn needed(&self) -> i64 {
        self.needed
    }

    /// One comes in behind the others.
    pub(super) fn push(&mut self, waiting: Waiting) {
        self.needed += waiting.amount;
        self.waiting.push_back(waiting);
    }

    /// Those leave whose time is over: their clients know it by their own clocks.
    pub(super) fn drop_late(&mut self, now: u64) {
        let needed = &mut self.needed;
        self.waiting.retain(|waiting| {
            let is_late = waiting.latest < now;
            *needed -= if is_late { waiting.amount } else { 0 };
            !is_late
        });
    }

    /// Takes out the first, if it wants no more than `free`.
    pub(super) fn take_within(&mut self, free: i64) -> Option<Waiting> {
        self.waiting.front().filter(|first| first.amount <= free)?;
        self.take_first()
    }

    /// Takes out the first.
    pub(super) fn take_first(&mut self) -> Option<Waiting> {
        let first = self.waiting.pop_front()?;
        self.needed -= first.amount;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask::Ask;
    use super::*;

    fn waiting(number: u32, amount: i64, latest: u64) -> Waiting {
        let ask = Ask::Acquire { amount, deadline: latest };
        Waiting { call: Call { call: number, region: 0, ask }, amount, latest }
    }

    #[test]
    fn first_comer_is_served_first_and_late_ones_leave() {
        let mut line = Line::default();
        [waiting(1, 7, 100), waiting(2, 1, 50), waiting(3, 2, 200)].into_iter().for_each(|one| line.push(one));
        assert_eq!((line.needed(), line.len()), (10, 3));
        assert!(line.take_within(6).is_none(), "the second must not overtake the first");
        line.drop_late(101);
        assert_eq!((line.needed(), line.len()), (2, 1));
        assert_eq!(line.take_within(2).map(|one| one.call.call), Some(3));
        assert!(line.is_empty() && line.needed() == 0 && line.take_first().is_none());
    }
}
