//! Numbers to which transactions add without seeing them: the size of a set, the value of a counter. Which of the
//! changes a reader saw cannot be told from the number. Still:
//!
//! - **Bounds.** Changes that committed before the reader was invoked are in. Those that were invoked after it
//!   completed are not. Of the others (concurrent, or of unknown fate) any may be.
//! - **Order.** If no transaction takes anything away, who read less comes before who read more. Who read a number and
//!   added to it comes after all others that read the same.

use super::anomaly::{Anomaly, Kind, Worst};
use super::facts::{Base, Change, Facts, Touch};
use super::graph::{Class, Graph};
use super::object::{Object, Shape};

/// A transaction that read the number.
struct Reader {
    /// The transaction.
    txn: u32,
    /// What it found.
    base: i128,
    /// What it added.
    net: i128,
}

/// Adds the edges of one set's counts and scans or of one counter's sums, and holds counts and sums against their
/// bounds.
pub(super) fn infer(facts: &Facts<'_>, touches: &[Touch<'_>], graph: &mut Graph, worst: &mut Worst) {
    let object = touches[0].object;
    let mut readers = Vec::new();
    let mut bounds = None;
    for touch in touches {
        let base = match &touch.base {
            // Scans have edges of their own to each inserter, which say more than bounds.
            Some(all @ Base::Members { .. }) => match all.size() {
                Some(size) => size,
                None => continue,
            },
            Some(Base::Since(sum)) => {
                if let Some(what) = breach_since(facts, touch, *sum) {
                    let found = Anomaly::at(facts.history, Kind::Bounds, object, &[touch.txn], what);
                    worst.note(Anomaly { realtime: true, ..found });
                }
                continue;
            }
            Some(Base::Size(base) | Base::Sum(base)) => {
                let bounds = bounds.get_or_insert_with(|| Bounds::new(facts, facts.changes(object)));
                if let Some((realtime, what)) = bounds.breach(facts, touch, *base) {
                    let found = Anomaly::at(facts.history, Kind::Bounds, object, &[touch.txn], what);
                    worst.note(Anomaly { realtime, ..found });
                }
                *base
            }
            _ => continue,
        };
        readers.push(Reader { txn: touch.txn, base, net: touch.net });
    }

    // Only of a number that goes one way do two values tell which was there first.
    let grows = facts.changes(object).iter().all(|change| change.net > 0);
    let shrinks = facts.changes(object).iter().all(|change| change.net < 0);
    if shrinks {
        readers.iter_mut().for_each(|reader| (reader.base, reader.net) = (-reader.base, -reader.net));
    }
    if grows || shrinks {
        order(facts, object, readers, graph, worst);
    }
}

/// Orders the readers of a number that only grows.
///
/// Each number that was read has two joints. All who read it follow on the first, and lead to the second; who also
/// added to it follows on the second. From there it goes on to the next number.
fn order(facts: &Facts<'_>, object: Object, mut readers: Vec<Reader>, graph: &mut Graph, worst: &mut Worst) {
    let unseen = if object.shape() == Shape::Set { Class::RwPrefix } else { Class::Rw };

    readers.sort_by_key(|reader| (reader.base, reader.txn));
    let mut before: Option<u32> = None;
    let mut adder: Option<&Reader> = None;
    for equal in readers.chunk_by(|one, other| one.base == other.base) {
        let (first, second) = (graph.joint(), graph.joint());

        graph.link(first, second);
        match (adder, before) {
            (Some(adder), _) => {
                graph.edge(adder.txn, first, Class::Wr, object);
                // Who read less than the adder left behind came before it; and after it, since it read more than that
                // found.
                if adder.base + adder.net > equal[0].base {
                    graph.edge(equal[0].txn, adder.txn, unseen, object);
                }
            }
            (None, Some(before)) => graph.link(before, first),
            (None, None) => {}
        }

        let (adders, others): (Vec<&Reader>, Vec<&Reader>) = equal.iter().partition(|reader| reader.net > 0);
        for reader in others {
            graph.link(first, reader.txn);
            graph.edge(reader.txn, second, unseen, object);
        }

        adder = adders.first().copied();
        before = Some(second);
        adder.into_iter().for_each(|adder| graph.link(second, adder.txn));

        // Nobody can have read the same and added to it twice: each of the two would have come before the other.
        if let [one, other, ..] = adders[..] {
            graph.edge(one.txn, other.txn, unseen, object);
            graph.edge(other.txn, one.txn, unseen, object);
            if object.shape() == Shape::Counter {
                let what = "both read the same value and added to it".to_owned();
                let txns = [one.txn, other.txn];
                worst.note(Anomaly::at(facts.history, Kind::LostUpdate, object, &txns, what));
            }
        }
    }
}

/// Returns the words for a sum that is out of bounds, and that begins again whenever the register with its name is written.
///
/// In are the additions that were invoked after the write that the reader saw had completed, and completed before the reader was
/// invoked. Not in are those that completed before that write was invoked, or were invoked after the reader completed. What the
/// writer itself added may have come before its write.
fn breach_since(facts: &Facts<'_>, touch: &Touch<'_>, sum: i128) -> Option<String> {
    let register = Object::new(touch.object.key(), Shape::Register);
    let (since, there) = match facts.touch(register, touch.txn).map(|read| &read.base) {
        Some(Some(Base::Register(Some(value)))) => {
            let writer = facts.writer(register, *value);
            (facts.invoked(writer), facts.completed(writer))
        }
        _ if !facts.is_written(register) => (0, 0),
        // Nobody has written it yet.
        Some(Some(Base::Register(None))) => (0, 0),
        _ => (0, u64::MAX),
    };

    let (start, end) = (facts.invoked(touch.txn), facts.completed(touch.txn));
    let (mut least, mut most) = (0, 0);
    for change in facts.changes(touch.object).iter().filter(|change| change.txn != touch.txn) {
        let (invoked, completed) = (facts.invoked(change.txn), facts.completed(change.txn));
        let is_certain = completed < start && (invoked > there || there == 0);
        if is_certain && facts.touch(register, change.txn).is_none_or(|touch| touch.wrote.is_empty()) {
            (least, most) = (least + change.net, most + change.net);
        } else if invoked <= end && completed >= since {
            (least, most) = (least + change.less, most + change.more);
        }
    }

    let is_out = !(least..=most).contains(&sum);
    is_out.then(|| {
        format!("before it there were at least {least} and at most {most} since it was written, and it found {sum}")
    })
}

/// Running totals of the changes of one object, by time.
struct Bounds {
    /// By when each was invoked: all that takes away up to here, and all that adds.
    invoked: Vec<(u64, i128, i128)>,
    /// By when each completed.
    completed: Vec<(u64, i128, i128)>,
}

impl Bounds {
    fn new(facts: &Facts<'_>, changes: &[Change]) -> Self {
        let totals = |time: &dyn Fn(u32) -> u64| {
            let mut changes: Vec<(u64, i128)> = changes.iter().map(|change| (time(change.txn), change.net)).collect();
            changes.sort_unstable();
            let (mut less, mut more) = (0, 0);
            let total = |(time, net): (u64, i128)| {
                less += net.min(0);
                more += net.max(0);
                (time, less, more)
            };
            changes.into_iter().map(total).collect()
        };
        Self { invoked: totals(&|txn| facts.invoked(txn)), completed: totals(&|txn| facts.completed(txn)) }
    }

    /// Returns the words for a base that is out of bounds, and true if it is so only because of real time.
    fn breach(&self, facts: &Facts<'_>, touch: &Touch<'_>, base: i128) -> Option<(bool, String)> {
        let upto = |totals: &[(u64, i128, i128)], end: usize| match end {
            0 => (0, 0),
            end => (totals[end - 1].1, totals[end - 1].2),
        };
        let (start, end) = (facts.invoked(touch.txn), facts.completed(touch.txn));
        let certain = upto(&self.completed, self.completed.partition_point(|change| change.0 < start));
        let possible = upto(&self.invoked, self.invoked.partition_point(|change| change.0 <= end));
        let all = upto(&self.invoked, self.invoked.len());
        // Of what is certain both parts count. The reader's own change is possible by the times, and is no part of the
        // base.
        let (less, more) = (touch.net.min(0), touch.net.max(0));
        let least = certain.1 + possible.0 - less;
        let most = certain.0 + possible.1 - more;
        if (least..=most).contains(&base) {
            return None;
        }
        let realtime = (all.0 - less..=all.1 - more).contains(&base);
        Some((realtime, format!("before it there were at least {least} and at most {most}, and it found {base}")))
    }
}
