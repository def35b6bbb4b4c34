//! The line of requests that wait for tokens of one quota, in the order of their arrival.
//!
//! Most wait for the outcome of a round, and are refused if that does not meet their need. Until then a large one does not hold up the
//! small ones behind it. One that *stays* is refused by its deadline alone, and nobody overtakes it: whoever waited for long for many
//! tokens would else wait for ever, where others come for few.
//!
//! Whatever is asked of a line takes logarithmic time: who is first among those that what is free suffices for, who wants
//! least, whose deadline is next, how much all of them want. What ends a request pays for that request alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::api::Hold;
use crate::clock::Now;
use crate::turn::Ticket;

/// A request that came this many judged rounds ago is not hoped for any longer.
pub(super) const ROUNDS: usize = 4;

/// A request that waits for tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// The operation.
    pub(super) ticket: Ticket,
    /// The tokens that it wants.
    pub(super) amount: i64,
    /// The time for which it wants them.
    pub(super) hold: Hold,
    /// The monotonic time at which it is refused, if it was not granted by then.
    pub(super) deadline: u64,
    /// When it came, if it stays until then, whatever rounds come to.
    pub(super) stays: Option<Now>,
    /// The number of the quota that it wants them of; it may wait for one above that.
    pub(super) quota: u64,
    /// The generation of that quota.
    pub(super) generation: u32,
}

/// The arrival of the first request in a line: others may come in before it, with lower ones.
const FIRST: u64 = 1 << 40;

/// The requests that wait for tokens of one quota, by their arrival. In memory comes first what each acquire asks: whether somebody stays.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Line {
    /// The arrivals of those that stay.
    staying: BTreeSet<u64>,
    /// The requests; the next two hold the same ones.
    requests: BTreeMap<u64, Waiting>,
    /// Their amounts, with their arrivals.
    by_amount: BTreeSet<(i64, u64)>,
    /// Their deadlines, with their arrivals.
    by_deadline: BTreeSet<(u64, u64)>,
    /// The sum of what they want.
    saved: i128,
    /// Finds the first that wants no more than is free.
    order: Order,
    /// The sum of the amounts.
    needed: i128,
    /// The arrival of the next request; never used twice while the quota is in use.
    next_arrival: u64,
    /// The arrival of the next one that comes in before all others; never used twice, either.
    next_front: u64,
    /// Requests that arrived before this one were counted in the line that was last reported to a round.
    offered: u64,
    /// What `offered` was in the last rounds that were judged, as many as a request is given, the newest last: a request has been
    /// in as many rounds as there are numbers above its own.
    judged: VecDeque<u64>,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            staying: BTreeSet::new(),
            requests: BTreeMap::new(),
            by_amount: BTreeSet::new(),
            by_deadline: BTreeSet::new(),
            saved: 0,
            order: Order::default(),
            needed: 0,
            next_arrival: FIRST,
            next_front: FIRST - 1,
            offered: 0,
            judged: VecDeque::new(),
        }
    }
}

impl Line {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// True if somebody stays in it: nobody who comes later is served before.
    pub(super) fn has_staying(&self) -> bool {
        !self.staying.is_empty()
    }

    /// Takes a request in at the end; its arrival names it.
    pub(super) fn push(&mut self, request: Waiting) -> u64 {
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        self.order.push(arrival, request.amount, self.requests.iter().map(|(arrival, other)| (*arrival, other.amount)));
        self.insert(arrival, request)
    }

    /// Takes one in before all others that stays: it was here before them, and comes back from the line of another level. So it counts
    /// among those that rounds were told of.
    pub(super) fn push_front(&mut self, request: Waiting) -> u64 {
        let arrival = self.next_front;
        self.next_front -= 1;
        let others = self.requests.iter().map(|(arrival, other)| (*arrival, other.amount));
        self.order.push_front(arrival, request.amount, others);
        self.insert(arrival, request)
    }

    fn insert(&mut self, arrival: u64, request: Waiting) -> u64 {
        self.by_amount.insert((request.amount, arrival));
        self.by_deadline.insert((request.deadline, arrival));
        self.needed += i128::from(request.amount);
        if request.stays.is_some() {
            self.staying.insert(arrival);
            self.saved += i128::from(request.amount);
        }
        self.requests.insert(arrival, request);
        self.check();
        arrival
    }

    /// Takes out the request of this arrival.
    pub(super) fn remove(&mut self, arrival: u64) -> Option<Waiting> {
        let request = self.requests.remove(&arrival)?;
        self.by_amount.remove(&(request.amount, arrival));
        self.by_deadline.remove(&(request.deadline, arrival));
        if self.staying.remove(&arrival) {
            self.saved -= i128::from(request.amount);
        }
        self.needed -= i128::from(request.amount);
        self.order.remove(arrival);

        // An empty line has no past: the next request has been in no round.
        if self.requests.is_empty() {
            self.order = Order::default();
            self.judged.clear();
        }
        self.check();
        Some(request)
    }

    /// Asserts what holds between any two steps.
    fn check(&self) {
        let requests = self.requests.len();
        assert!(
            self.by_amount.len() == requests && self.by_deadline.len() == requests,
            "a request is in one order only"
        );
        assert!(
            self.needed >= requests as i128 && (self.needed == 0) == (requests == 0),
            "each request wants something"
        );
        let saved = i128::from(self.first_staying())..=self.needed;
        assert!(saved.contains(&self.saved), "what is saved is for those that stay");
    }

    /// Takes out the first request that wants no more than `free`, unless one before it stays.
    pub(super) fn take_first_within(&mut self, free: i64) -> Option<Waiting> {
        let arrival = self.order.first_within(free)?;
        if self.staying.first().is_some_and(|first| *first < arrival) {
            return None;
        }
        self.remove(arrival)
    }

    /// The request of this arrival.
    pub(super) fn get(&self, arrival: u64) -> Option<&Waiting> {
        self.requests.get(&arrival)
    }

    /// Takes out a request that wants more than `limit`.
    pub(super) fn take_above(&mut self, limit: i64) -> Option<Waiting> {
        let &(amount, arrival) = self.by_amount.last()?;
        if amount <= limit {
            return None;
        }
        self.remove(arrival)
    }

    /// The tokens that the first of those that stay wants; zero if none stays.
    pub(super) fn first_staying(&self) -> i64 {
        let first = self.staying.first().and_then(|arrival| self.requests.get(arrival));
        first.map_or(0, |request| request.amount)
    }

    /// Takes out a request whose deadline has passed.
    pub(super) fn take_overdue(&mut self, now: u64) -> Option<Waiting> {
        let &(deadline, arrival) = self.by_deadline.first()?;
        if deadline > now {
            return None;
        }
        self.remove(arrival)
    }

    /// Tokens that all of them want together.
    pub(super) fn needed(&self) -> i64 {
        self.needed.min(i128::from(i64::MAX)) as i64
    }

    /// Tokens that are wanted up to the first that stays, who are served before the others; or by all of them, if none stays.
    pub(super) fn needed_first(&self) -> i64 {
        let Some(first) = self.staying.first() else { return self.needed() };
        let sum = self.requests.range(..=first).map(|(_, request)| i128::from(request.amount)).sum::<i128>();
        sum.min(i128::from(i64::MAX)) as i64
    }

    /// The least that one of them wants; zero if there is none.
    pub(super) fn least(&self) -> i64 {
        self.by_amount.first().map_or(0, |(amount, _)| *amount)
    }

    /// The next deadline.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// A round is told what the requests that wait now want.
    pub(super) fn note_offer(&mut self) {
        self.offered = self.next_arrival;
    }

    /// Returns true if one of them has been in a round that did not bring enough for it.
    pub(super) fn has_been_in_vain(&self) -> bool {
        let newest = self.judged.back().copied().unwrap_or(0);
        self.requests.first_key_value().is_some_and(|(arrival, _)| *arrival < newest)
    }

    /// Judges the round that was told last: takes out, in the order of arrival, those that were counted in it and are hopeless,
    /// because they want more than may be hoped for (`small` hopes for requests of up to `large`, `all` for larger ones), or
    /// because this was the last of the `rounds` that they are given. Also tells whether one is left that wants more than `small`.
    /// Those that stay are not judged.
    pub(super) fn judge(&mut self, large: i64, small: i64, all: i64, rounds: usize) -> (Vec<Waiting>, bool) {
        // What those need that stay is not for the ones behind them.
        let is_behind = self.requests.keys().next() == self.staying.first();
        let less = |hoped: i64| if is_behind { (i128::from(hoped) - self.saved).max(0) as i64 } else { hoped };
        let (small, all) = if all == i64::MAX { (less(small), all) } else { (less(small), less(all)) };
        self.judged.push_back(self.offered);
        let offered = self.judged.iter().copied().max().unwrap_or(0);

        // However much may be under way, a request is not kept waiting for it in round after round.
        let mut hopeless = BTreeSet::new();
        if self.judged.len() >= rounds {
            let last = self.judged.pop_front().expect("there are some");
            hopeless.extend(self.requests.range(..last).map(|(arrival, _)| *arrival));
        }

        // Of those that the round was told of, the ones that want more than they may hope for.
        let counted = |&&(_, arrival): &&(i64, u64)| arrival < offered;
        let between = |above: i64, to: i64| {
            let range = (to > above).then(|| self.by_amount.range((above + 1, 0)..=(to, u64::MAX)));
            range.into_iter().flatten()
        };
        let larger = all.max(large);
        let unmet = between(small, large).chain(between(larger, i64::MAX));
        hopeless.extend(unmet.filter(counted).map(|(_, arrival)| *arrival));

        // Those between the two wait for what is under way.
        let mut hopeful = between(small.max(large), larger).filter(counted);
        let waits = hopeful.any(|(_, arrival)| !hopeless.contains(arrival) && !self.staying.contains(arrival));

        hopeless.retain(|arrival| !self.staying.contains(arrival));
        let refused = hopeless.into_iter().filter_map(|arrival| self.remove(arrival)).collect();
        (refused, waits)
    }

    /// Takes out all of them.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        // Arrivals go on counting, or a later request could be taken for one that has left.
        let Self { next_arrival, next_front, offered, .. } = *self;
        let all = std::mem::replace(self, Self { next_arrival, next_front, offered, ..Self::default() });
        all.requests.into_values()
    }
}

/// Finds the first of a line that wants no more than so much: a tree of minima over the requests in the order of their arrival.
/// Those that have left leave holes, which go when the places are used up: so each place costs a constant in the mean.
#[derive(Debug, Default)]
struct Order {
    /// The arrivals of those that have a place, ascending; one that has left keeps its place as a hole.
    arrivals: Vec<u64>,
    /// The least amount below each node; the root is 1, the children of `n` are `2n` and `2n + 1`, the places are the last half.
    least: Vec<u64>,
}

/// What stands where a request has left.
const HOLE: u64 = u64::MAX;

impl Order {
    fn places(&self) -> usize {
        self.least.len() / 2
    }

    /// Takes one in behind all `others`, which are those that are in already.
    fn push(&mut self, arrival: u64, amount: i64, others: impl ExactSizeIterator<Item = (u64, i64)>) {
        if self.arrivals.len() == self.places() {
            self.rebuild(others, 0..0);
        }
        assert!(self.arrivals.last().is_none_or(|last| *last < arrival), "a request comes in before the last");
        self.arrivals.push(arrival);
        self.set(self.arrivals.len() - 1, amount as u64);
    }

    /// Takes one in before all `others`. Where its place is not free, as many are made before them as there are others: so this costs a
    /// constant in the mean, too.
    fn push_front(&mut self, arrival: u64, amount: i64, others: impl ExactSizeIterator<Item = (u64, i64)>) {
        let place = self.arrivals.binary_search(&arrival).unwrap_or_else(|_| {
            let free = others.len().max(4) as u64;
            self.rebuild(others, arrival + 1 - free..arrival + 1);
            free as usize - 1
        });
        self.set(place, amount as u64);
    }

    fn remove(&mut self, arrival: u64) {
        if let Ok(place) = self.arrivals.binary_search(&arrival) {
            self.set(place, HOLE);
        }
    }

    fn first_within(&self, most: i64) -> Option<u64> {
        let fits = |node: usize| most > 0 && self.least[node] <= most as u64;
        if self.least.is_empty() || !fits(1) {
            return None;
        }

        // Down to the left wherever the least there fits: the places are in the order of arrival.
        let mut node = 1;
        while node < self.places() {
            node = 2 * node + usize::from(!fits(2 * node));
        }

        Some(self.arrivals[node - self.places()])
    }

    fn set(&mut self, place: usize, amount: u64) {
        let mut node = self.places() + place;
        self.least[node] = amount;
        while node > 1 {
            node /= 2;
            self.least[node] = self.least[2 * node].min(self.least[2 * node + 1]);
        }
    }

    /// As many places again as there are requests, without the holes, but for places of these arrivals before them.
    fn rebuild(&mut self, others: impl ExactSizeIterator<Item = (u64, i64)>, before: Range<u64>) {
        self.arrivals.clear();
        self.arrivals.extend(before);
        let before = self.arrivals.len();
        let places = (2 * (before + others.len())).max(8).next_power_of_two();
        self.least = vec![HOLE; 2 * places];
        for (place, (arrival, amount)) in others.enumerate() {
            self.arrivals.push(arrival);
            self.least[places + before + place] = amount as u64;
        }
        for node in (1..places).rev() {
            self.least[node] = self.least[2 * node].min(self.least[2 * node + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::SessionId;
    use crate::stats::Rng;

    /// The obvious line: a list that every question walks over.
    #[derive(Default)]
    struct Plain {
        requests: VecDeque<(u64, Waiting, usize)>,
        offered: u64,
    }

    impl Plain {
        fn take(&mut self, is_meant: impl Fn(&(u64, Waiting, usize)) -> bool) -> Option<u64> {
            let at = self.requests.iter().position(is_meant)?;
            self.requests.remove(at).map(|(arrival, ..)| arrival)
        }

        fn take_first_within(&mut self, free: i64) -> Option<u64> {
            let at = self.requests.iter().position(|(_, request, _)| request.amount <= free)?;
            let is_held_up = self.requests.iter().take(at).any(|(_, request, _)| request.stays.is_some());
            if is_held_up { None } else { self.requests.remove(at).map(|(arrival, ..)| arrival) }
        }

        fn judge(&mut self, large: i64, small: i64, all: i64) -> (Vec<u64>, bool) {
            let (mut refused, mut waits) = (Vec::new(), false);
            let staying = self.requests.iter().filter(|(_, request, _)| request.stays.is_some());
            let is_behind = self.requests.front().is_some_and(|(_, request, _)| request.stays.is_some());
            let saved = if is_behind { staying.map(|(_, request, _)| request.amount).sum() } else { 0i64 };
            let small = (small - saved).max(0);
            let all = if all == i64::MAX { all } else { (all - saved).max(0) };
            for (arrival, _, rounds) in &mut self.requests {
                *rounds += usize::from(*arrival < self.offered);
            }
            self.requests.retain(|(arrival, request, rounds)| {
                if request.stays.is_some() {
                    return true;
                }
                let hoped_for = if request.amount > large { all } else { small };
                let hopeless = *rounds > 0 && (request.amount > hoped_for || *rounds >= ROUNDS);
                waits |= !hopeless && *rounds > 0 && request.amount > small;
                if hopeless {
                    refused.push(*arrival);
                }
                !hopeless
            });
            (refused, waits)
        }
    }

    #[test]
    fn line_answers_as_a_list_that_is_walked_over_does() {
        for seed in 1..=40 {
            let mut rng = Rng::new(seed);
            let (mut line, mut plain) = (Line::default(), Plain::default());
            let name = |request: Option<Waiting>| request.map(|request| request.ticket.sequence);
            for step in 0..2_000u64 {
                match rng.below(14) {
                    0..=5 => {
                        let amount = 1 + rng.below(40) as i64;
                        let ticket = Ticket { session: SessionId(1), sequence: line.next_arrival };
                        let (deadline, stays) =
                            (step + rng.below(300), (rng.below(8) == 0).then_some(Now { wall: 0, mono: step }));
                        let request =
                            Waiting { ticket, amount, hold: Hold::Counted, deadline, stays, quota: 0, generation: 1 };
                        plain.requests.push_back((line.push(request), request, 0));
                    }
                    6 | 7 => {
                        let free = rng.below(30) as i64;
                        assert_eq!(name(line.take_first_within(free)), plain.take_first_within(free));
                    }
                    8 => {
                        let first =
                            plain.requests.iter().map(|(arrival, request, _)| (request.deadline, *arrival)).min();
                        let first = first.filter(|(deadline, _)| *deadline <= step).map(|(_, arrival)| arrival);
                        let taken = first.and_then(|first| plain.take(|(arrival, ..)| *arrival == first));
                        assert_eq!(name(line.take_overdue(step)), taken);
                    }
                    9 => {
                        let arrival = line.next_front + rng.below(line.next_arrival - line.next_front + 1);
                        assert_eq!(name(line.remove(arrival)), plain.take(|(other, ..)| *other == arrival));
                    }
                    10 => {
                        let limit = 20 + rng.below(30) as i64;
                        let most = plain.requests.iter().map(|(arrival, request, _)| (request.amount, *arrival)).max();
                        let most = most.filter(|(amount, _)| *amount > limit);
                        let taken = most.and_then(|(_, most)| plain.take(|(arrival, ..)| *arrival == most));
                        assert_eq!(name(line.take_above(limit)), taken);
                    }
                    11 => {
                        let (amount, deadline) = (1 + rng.below(40) as i64, step + rng.below(300));
                        let ticket = Ticket { session: SessionId(1), sequence: line.next_front };
                        let stays = Some(Now { wall: 0, mono: step });
                        let request =
                            Waiting { ticket, amount, hold: Hold::Counted, deadline, stays, quota: 0, generation: 1 };

                        // It was in line before all others, so it counts as if it had been in the rounds that they were in.
                        let rounds = usize::from(line.judged.back().is_some_and(|offered| *offered > 0));
                        plain.requests.push_front((line.push_front(request), request, rounds));
                    }
                    12 => {
                        line.note_offer();
                        plain.offered = line.next_arrival;
                    }
                    _ => {
                        let (large, small) = (rng.below(40) as i64, rng.below(40) as i64);
                        let all = if rng.below(3) == 0 { i64::MAX } else { small + rng.below(9) as i64 };
                        let (refused, waits) = line.judge(large, small, all, ROUNDS);
                        let refused: Vec<u64> = refused.iter().map(|request| request.ticket.sequence).collect();
                        assert_eq!((refused, waits), plain.judge(large, small, all), "seed {seed}, step {step}");
                    }
                }
                let amounts = plain.requests.iter().map(|(_, request, _)| request.amount);
                let least = amounts.clone().min().unwrap_or(0);
                assert_eq!(
                    (line.needed(), line.least(), line.requests.len()),
                    (amounts.sum(), least, plain.requests.len())
                );
                let first = plain.requests.iter().find(|(_, request, _)| request.stays.is_some());
                let before = plain.requests.iter().scan(true, |goes_on, (_, request, _)| {
                    let is_counted = *goes_on;
                    *goes_on &= request.stays.is_none();
                    is_counted.then_some(request.amount)
                });
                assert_eq!(line.needed_first(), before.sum::<i64>());
                assert_eq!(line.first_staying(), first.map_or(0, |(_, request, _)| request.amount));
                assert_eq!(line.deadline(), plain.requests.iter().map(|(_, request, _)| request.deadline).min());
                assert_eq!(line.has_been_in_vain(), plain.requests.iter().any(|(.., rounds)| *rounds > 0));
            }
        }
    }
}
