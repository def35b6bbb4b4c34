//! A clause as a home holds it: its part of the sum, its bound, and what it has given and received.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::clock::Now;
use crate::codec::clamped;
use crate::gift::Totals;
use crate::object::ObjectKey;
use crate::object::treaty::Term;
use crate::stats::split::Outlook;
use crate::stats::trend::Trend;
use crate::txn::locks::Locks;

/// One making of a treaty: its object, and the nonce of the making.
pub(super) type Making = (ObjectKey, u64);

/// The number of a leaf: its place. When the leaf is gone, another one may have it.
pub(super) type Number = usize;

/// A counter on which clauses rest.
#[derive(Clone, Debug, Default)]
pub(super) struct Noted {
    /// The number that it has come to.
    pub(super) count: i64,
    /// The clauses, by the number of their leaf and their position, each once.
    pub(super) clauses: Vec<(Number, u32)>,
}

/// A clause at this home.
///
/// What judging a write needs comes first and lies together: with thousands of treaties it has to come from memory.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Held {
    /// The bound now: as noted, plus all that was given, less all that was received.
    pub(super) bound: i128,
    /// The weight of its only term, if it has no other one and that is no logarithm.
    pub(super) sole: Option<i64>,
    /// What one write is expected to take at the most: the largest fall of late.
    pub(super) largest: i64,
    /// The monotonic time of the next look at how long it is expected to last.
    pub(super) look_at: u64,
    /// True if its slack has more than doubled by one write, and was not divided again since.
    pub(super) has_jumped: bool,
    /// How its part moves.
    pub(super) trend: Trend,
    /// Its terms here.
    pub(super) terms: Vec<Term>,
    /// The bound as it was noted when the treaty was made.
    pub(super) noted: i64,
    /// The gifts of slack, by home.
    pub(super) totals: Totals,
    /// The standing orders to give, by receiver.
    pub(super) orders: BTreeMap<u16, Order>,
    /// What others have said that they go on giving, by donor.
    pub(super) incoming: BTreeMap<u16, Incoming>,
    /// The standing orders that this home has planned, by donor and receiver. Those that a later plan leaves out end.
    pub(super) planned: BTreeSet<(u16, u16)>,
}

/// A standing order to give slack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Order {
    /// The rate, in millionths a second.
    pub(super) rate: u64,
    /// The monotonic time up to which it has been carried out.
    pub(super) done: u64,
}

/// A standing order of another home to give slack to this one, as that has told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Incoming {
    /// The rate, in millionths a second.
    pub(super) rate: u64,
    /// The monotonic time at which the donor said so last.
    pub(super) noted: u64,
}

/// What a part takes that leaves no counter, and the most that any part is said to take: more than all homes together can have, so the
/// treaty is retracted. All parts that may wait at a site, taking so much, add up to less than an `i128` holds.
pub(super) const NEVER_ENOUGH: i128 = 1 << 100;

/// A clause of which a part lacks slack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Lack {
    /// The making of the treaty whose bound is in the way.
    pub(super) making: Making,
    /// The clause of it, by number.
    pub(super) clause: u32,
    /// The slack that the part takes, at least 1. Not what is missing: what is there now counts once, however many parts wait.
    pub(super) takes: i128,
    /// True if the part gives a counter a value, whatever it has come to. Several that do so take no more than one of them.
    pub(super) is_put: bool,
}

impl Held {
    /// A clause with these terms, this bound as it was noted, and these gifts since.
    pub(super) fn new(terms: Vec<Term>, noted: i64, totals: Totals, trend: Trend) -> Self {
        let sole = match &terms[..] {
            [Term { is_log: false, weight, .. }] => Some(*weight),
            _ => None,
        };
        Self {
            bound: i128::from(noted) + given_away(&totals),
            sole,
            largest: 0,
            look_at: 0,
            has_jumped: false,
            trend,
            terms,
            noted,
            totals,
            orders: BTreeMap::new(),
            incoming: BTreeMap::new(),
            planned: BTreeSet::new(),
        }
    }

    /// What its terms have come to, at the least: undecided changes count as far as they lower it.
    pub(super) fn least(&self, noted: &FxHashMap<String, Noted>, locks: &Locks) -> i128 {
        let count = |term: &Term| noted.get(&term.name).map_or(0, |noted| noted.count);
        self.terms.iter().map(|term| term.least(locks.range(&term.name, count(term)))).sum()
    }

    /// The slack that may be given away or used.
    pub(super) fn slack(&self, noted: &FxHashMap<String, Noted>, locks: &Locks) -> i128 {
        self.least(noted, locks) - self.bound
    }

    /// What a part lacks of it, if it does: its terms come to so much at the least before the part, and after it; none if that leaves no
    /// counter there.
    pub(super) fn lack(
        &self,
        (making, clause): (&Making, u32),
        before: i128,
        after: Option<i128>,
        is_put: bool,
    ) -> Option<Lack> {
        // A part that does not lower a sum may pass below the bound. A logarithm has no such excuse: by how much a change moves it depends
        // on where the counter is, and that is not known as long as something is undecided.
        let may_stay_below = || !self.terms.iter().any(|term| term.is_log);
        let is_enough = after.is_some_and(|after| after >= self.bound || (after >= before && may_stay_below()));
        let takes = after.map_or(NEVER_ENOUGH, |after| (before - after).clamp(1, NEVER_ENOUGH));
        (!is_enough).then(|| Lack { making: making.clone(), clause, takes, is_put })
    }

    /// The rate at which the bound rises by standing orders, in millionths a second.
    pub(super) fn rate(&self) -> i64 {
        let sum =
            |rates: &mut dyn Iterator<Item = u64>| rates.fold(0i64, |sum, rate| sum.saturating_add_unsigned(rate));
        sum(&mut self.orders.values().map(|order| order.rate))
            - sum(&mut self.incoming.values().map(|order| order.rate))
    }

    /// The rate at which a home is given more by a standing order, in millionths a second.
    pub(super) fn rate_to(&self, home: u16) -> u64 {
        self.orders.get(&home).map_or(0, |order| order.rate)
    }

    /// Its outlook.
    pub(super) fn outlook(&self, now: Now, noted: &FxHashMap<String, Noted>, locks: &Locks) -> Outlook {
        Outlook { slack: clamped(self.slack(noted, locks)), motion: self.trend.motion(now.mono) }
    }

    /// Asserts what holds between any two calls.
    pub(super) fn check(&self) {
        assert!(self.bound == i128::from(self.noted) + given_away(&self.totals), "a bound moves by gifts alone");
    }
}

/// All that was given, less all that was received.
fn given_away(totals: &Totals) -> i128 {
    let sum = |amount: &dyn Fn(usize) -> u128| (0..64).map(amount).sum::<u128>() as i128;
    sum(&|home| totals.given(home).amount) - sum(&|home| totals.received(home).amount)
}

/// The least that a counter of this weight adds to a sum while it may be anywhere between two numbers.
pub(super) fn least_of(weight: i64, (low, high): (i64, i64)) -> i128 {
    i128::from(weight) * i128::from(if weight > 0 { low } else { high })
}
