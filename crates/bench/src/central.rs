//! The reference for refusals: one central counter, ideal: it needs no time, sees every event in order, and refuses at once what
//! does not fit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::trace::{Kind, Trace};

/// The share of acquires that the tight limit lets the central counter refuse.
pub const TIGHT: f64 = 0.01;

/// The outcomes of a trace at the central counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Acquires granted.
    pub granted: u64,
    /// Acquires refused.
    pub refused: u64,
    /// Releases done, ends of jobs included.
    pub released: u64,
    /// Releases refused, because so much was not out.
    pub refused_releases: u64,
    /// The most that was in use at a time.
    pub peak: i64,
}

impl Tally {
    /// True if less than [`TIGHT`] of the acquires were refused.
    fn is_fair(&self) -> bool {
        (self.refused as f64) < TIGHT * (self.granted + self.refused) as f64
    }
}

/// Replays a trace against a central counter.
pub fn replay(trace: &Trace, limit: i64) -> Tally {
    replay_and_look(trace, limit, |_| ())
}

/// The same; `look` is told how many tokens are free when an acquire comes.
pub(crate) fn replay_and_look(trace: &Trace, limit: i64, mut look: impl FnMut(i64)) -> Tally {
    let mut tally = Tally::default();
    let mut in_use = 0i64;
    let mut holds: BinaryHeap<Reverse<(u64, i64)>> = BinaryHeap::new();
    let mut jobs = vec![0i64; trace.jobs as usize];
    for event in &trace.events {
        // What ends makes room before what begins at the same time.
        while holds.peek().is_some_and(|Reverse((ends, _))| *ends <= event.at) {
            let Reverse((_, amount)) = holds.pop().expect("looked at above");
            in_use -= amount;
        }

        if let Some(amount) = event.kind.wanted() {
            look(limit - in_use);
            if amount > limit - in_use {
                // A job that is refused has nothing to give back at its end.
                tally.refused += 1;
                continue;
            }
            tally.granted += 1;
            in_use += amount;
            tally.peak = tally.peak.max(in_use);
        }

        match event.kind {
            // It is released by amount, if at all.
            Kind::Acquire { .. } => {}
            Kind::Hold { amount, micros } => holds.push(Reverse((event.at + micros, amount))),
            Kind::Begin { amount, job } => jobs[job as usize] = amount,
            Kind::End { job } => {
                let amount = std::mem::take(&mut jobs[job as usize]);
                in_use -= amount;
                tally.released += u64::from(amount > 0);
            }
            // Tokens that nobody has cannot be given back.
            Kind::Release { amount } if amount > in_use => tally.refused_releases += 1,
            Kind::Release { amount } => {
                in_use -= amount;
                tally.released += 1;
            }
        }
    }
    tally
}

/// The tight limit: the smallest at which the central counter refuses less than [`TIGHT`] of the acquires, by bisection.
/// (Where a larger limit can refuse more, because it lets a large request in that keeps small ones out, it is one such limit
/// with a neighbour below that is not.)
pub fn tight_limit(trace: &Trace) -> i64 {
    let wanted = trace.events.iter().filter_map(|event| event.kind.wanted());
    let enough = wanted.fold(1i64, i64::saturating_add);
    // With more than the peak of an unlimited counter nothing is ever refused.
    let (mut low, mut high) = (0, replay(trace, enough).peak.max(1));
    // Always: `high` is fair, and `low` is not or is 0.
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if replay(trace, middle).is_fair() { high = middle } else { low = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use slackline_core::stats::Rng;

    use super::*;
    use crate::trace::Event;

    /// A few dozen events of every kind.
    fn random_trace(rng: &mut Rng, largest: u64) -> Trace {
        let mut events = Vec::new();
        let mut at = 0;
        let mut jobs = 0;
        for key in 0..120 {
            at += rng.below(8);
            let amount = 1 + rng.below(largest) as i64;
            let kind = match rng.below(5) {
                0 => Kind::Acquire { amount },
                1 | 2 => Kind::Hold { amount, micros: 1 + rng.below(60) },
                3 => {
                    jobs += 1;
                    Kind::Begin { amount, job: jobs - 1 }
                }
                _ => Kind::Release { amount },
            };
            events.push(Event { at, site: None, key, kind });
            if let Kind::Begin { job, .. } = kind {
                let ends = at + 1 + rng.below(60);
                events.push(Event { at: ends, site: None, key, kind: Kind::End { job } });
            }
        }
        events.sort_by_key(|event| (event.at, event.kind.wanted().is_some()));
        Trace { data: "generated".into(), events, jobs, skipped: 0 }
    }

    /// Counts what is in use at every event from the beginning, by the list of what was granted.
    fn replay_slowly(trace: &Trace, limit: i64) -> Tally {
        let mut granted: Vec<usize> = Vec::new();
        let mut released = 0;
        let mut tally = Tally::default();
        for (order, event) in trace.events.iter().enumerate() {
            let ended = |at: usize| match trace.events[at].kind {
                Kind::Hold { micros, .. } => trace.events[at].at + micros <= event.at,
                Kind::Begin { job, .. } => trace.events[..=order].iter().any(|e| e.kind == Kind::End { job }),
                _ => false,
            };
            let live = granted.iter().filter(|&&at| !ended(at)).filter_map(|&at| trace.events[at].kind.wanted());
            let in_use = live.sum::<i64>() - released;
            match event.kind {
                Kind::End { job } => {
                    let begun =
                        |&&at: &&usize| matches!(trace.events[at].kind, Kind::Begin { job: of, .. } if of == job);
                    tally.released += granted.iter().filter(begun).count() as u64;
                }
                Kind::Release { amount } if amount <= in_use => {
                    released += amount;
                    tally.released += 1;
                }
                Kind::Release { .. } => tally.refused_releases += 1,
                kind => {
                    let amount = kind.wanted().expect("an acquire");
                    if in_use + amount <= limit {
                        granted.push(order);
                        tally.granted += 1;
                        tally.peak = tally.peak.max(in_use + amount);
                    } else {
                        tally.refused += 1;
                    }
                }
            }
        }
        tally
    }

    #[test]
    fn the_counter_agrees_with_one_that_counts_anew_each_time() {
        let mut rng = Rng::new(3);
        for _ in 0..60 {
            let trace = random_trace(&mut rng, 9);
            let limit = 1 + rng.below(120) as i64;
            assert_eq!(replay(&trace, limit), replay_slowly(&trace, limit));
        }
    }

    #[test]
    fn the_tight_limit_is_fair_and_one_token_less_is_not() {
        let mut rng = Rng::new(4);
        for round in 0..60 {
            // With amounts of one, a larger limit never refuses more: then it is the smallest of all.
            let largest = if round % 2 == 0 { 1 } else { 9 };
            let trace = random_trace(&mut rng, largest);
            let tight = tight_limit(&trace);
            assert!(replay_slowly(&trace, tight).is_fair());
            assert!(tight == 1 || !replay_slowly(&trace, tight - 1).is_fair());
            if largest == 1 {
                let smallest = (1..).find(|limit| replay_slowly(&trace, *limit).is_fair());
                assert_eq!(smallest, Some(tight));
            }
        }
    }
}
