//! Histories of a serial store pass; most of those that were tampered with do not.

use std::time::Instant;

use super::store::{Chance, Fault, Workload, generate};
use super::*;

const WORKLOAD: Workload =
    Workload { transactions: 150, keys: 4, ops: 5, only: None, spread: 60, aborted: 8, unknown: 8 };

/// Tries a way to spoil a history under many seeds: how many are caught of a hundred. A history that it did not change
/// is left out.
fn caught_of_100(seeds: u64, spoil: impl Fn(u64, &mut Chance) -> Option<History>) -> u64 {
    let (mut spoiled, mut caught) = (0, 0);
    for seed in 0..seeds {
        let Some(history) = spoil(seed, &mut Chance::new(seed)) else { continue };
        spoiled += 1;
        caught += u64::from(check(&history).is_err());
    }
    assert!(spoiled * 2 > seeds, "only {spoiled} of {seeds} histories were spoiled");
    caught * 100 / spoiled
}

#[test]
fn histories_of_a_serial_store_pass() {
    for seed in 0..200 {
        for workload in [
            WORKLOAD,
            Workload { spread: 0, ..WORKLOAD },
            Workload { spread: 900, unknown: 30, ..WORKLOAD },
            Workload { keys: 1, ops: 2, unknown: 40, ..WORKLOAD },
        ] {
            let (history, _) = generate(&mut Chance::new(seed), workload, Fault::None);
            let verdict = check(&history);
            assert!(verdict.is_ok(), "seed {seed}: {}", verdict.expect_err("it is not"));
        }
    }
}

#[test]
fn same_history_in_another_order_has_the_same_verdict() {
    for seed in 0..50 {
        let (history, _) = generate(&mut Chance::new(seed), WORKLOAD, Fault::Drop(40));
        let mut turned = history.clone();
        turned.transactions.reverse();
        let kind = |history| check(history).err().map(|found| (found.kind, found.realtime));
        assert_eq!(kind(&history), kind(&turned), "seed {seed}");
    }
}

/// The places of all reads, by what they read.
fn reads(history: &History) -> Vec<(usize, usize)> {
    let committed = history.transactions.iter().enumerate().filter(|(_, txn)| txn.fate == Fate::Committed);
    let ops = committed.flat_map(|(at, txn)| txn.ops.iter().enumerate().map(move |(op_at, op)| (at, op_at, op)));
    let is_read = |op: &Op| {
        matches!(
            op,
            Op::List { .. }
                | Op::Read { .. }
                | Op::Members { .. }
                | Op::Page { .. }
                | Op::Count { .. }
                | Op::Sum { .. }
                | Op::Since { .. }
        )
    };
    ops.filter(|(_, _, op)| is_read(op)).map(|(at, op_at, _)| (at, op_at)).collect()
}

#[test]
fn results_of_two_reads_exchanged_are_mostly_caught() {
    let caught = caught_of_100(300, |_, chance| {
        let (mut history, _) = generate(chance, WORKLOAD, Fault::None);
        let reads = reads(&history);
        for _ in 0..1_000 {
            let (one, other) = (*chance.pick(&reads), *chance.pick(&reads));
            let op = |(at, op): (usize, usize)| history.transactions[at].ops[op].clone();
            let (first, second) = (op(one), op(other));
            if one.0 != other.0 && first.object() == second.object() && first != second {
                if std::mem::discriminant(&first) != std::mem::discriminant(&second) {
                    continue;
                }
                history.transactions[one.0].ops[one.1] = second;
                history.transactions[other.0].ops[other.1] = first;
                return Some(history);
            }
        }
        None
    });
    println!("exchanged reads: {caught} % caught");
    assert!(caught >= 80, "{caught} %");
}

#[test]
fn effects_that_were_lost_are_mostly_caught() {
    let caught = caught_of_100(300, |seed, chance| {
        let number = 20 + seed % 100;
        let (history, _) = generate(chance, WORKLOAD, Fault::Drop(number));
        let txn = &history.transactions[number as usize];
        let writes = |op: &Op| {
            let is_new = matches!(op, Op::Append { .. } | Op::Write { .. } | Op::Insert { .. } | Op::Add { .. });
            is_new || matches!(op, Op::Delete { .. } | Op::Remove { .. })
        };
        (txn.fate == Fate::Committed && txn.ops.iter().any(writes)).then_some(history)
    });
    println!("lost effects: {caught} % caught");
    assert!(caught >= 70, "{caught} %");
}

#[test]
fn effects_outside_the_time_of_their_transaction_are_mostly_caught() {
    let caught = caught_of_100(300, |seed, chance| {
        let (mut history, moments) = generate(chance, Workload { spread: 15, ..WORKLOAD }, Fault::None);
        let at = 20 + (seed % 100) as usize;
        // Answered long before it took effect, or asked long after.
        let txn = &mut history.transactions[at];
        (txn.invoked, txn.completed) = if chance.percent(50) {
            (moments[at] - 160, Some(moments[at] - 150))
        } else {
            (moments[at] + 150, Some(moments[at] + 160))
        };
        (txn.fate == Fate::Committed).then_some(history)
    });
    println!("shifted transactions: {caught} % caught");
    assert!(caught >= 60, "{caught} %");
}

#[test]
fn reads_of_an_old_snapshot_are_mostly_caught() {
    let caught = caught_of_100(300, |seed, chance| {
        let number = 20 + seed % 100;
        let (history, _) = generate(chance, Workload { spread: 15, ..WORKLOAD }, Fault::Old(number, 12));
        let txn = &history.transactions[number as usize];
        let read = reads(&history).iter().any(|read| read.0 == number as usize);
        (txn.fate == Fate::Committed && read).then_some(history)
    });
    println!("old snapshots: {caught} % caught");
    // Many an op reads a name or a page in which nothing has changed since.
    assert!(caught >= 50, "{caught} %");
}

#[test]
fn tampered_histories_do_not_panic() {
    for seed in 0..300 {
        let chance = &mut Chance::new(seed);
        let (mut history, _) = generate(chance, WORKLOAD, Fault::None);
        for _ in 0..10 {
            let (at, op) = *chance.pick(&reads(&history));
            match &mut history.transactions[at].ops[op] {
                Op::List { elements, .. } | Op::Members { elements, .. } | Op::Page { elements, .. } => {
                    match chance.below(4) {
                        0 => elements.push(chance.below(400)),
                        1 => _ = elements.pop(),
                        2 => elements.reverse(),
                        _ => elements.extend_from_within(..elements.len() / 2),
                    }
                }
                Op::Read { value, .. } => *value = Some(chance.below(400)).filter(|value| value % 2 == 0),
                Op::Count { count, .. } => *count = chance.below(20),
                Op::Sum { value, .. } | Op::Since { sum: value, .. } => *value = i64::MIN + chance.below(3) as i64,
                _ => {}
            }
            let at = chance.below(WORKLOAD.transactions) as usize;
            history.transactions[at].fate = *chance.pick(&[Fate::Committed, Fate::Aborted, Fate::Unknown]);
        }
        if let Err(found) = check(&history) {
            assert!(!found.to_string().is_empty() && !found.labels.is_empty());
        }
    }
}

/// The work of two clients of a hundred at a time, on keys that come and go.
fn large(transactions: u64) -> History {
    let workload =
        Workload { transactions, keys: transactions / 50, ops: 5, only: None, spread: 500, aborted: 5, unknown: 2 };
    generate(&mut Chance::new(7), workload, Fault::None).0
}

#[test]
fn ten_times_as_many_transactions_take_about_ten_times_as_long() {
    let time = |history: &History| {
        let start = Instant::now();
        let verdict = check(history);
        assert!(verdict.is_ok(), "{}", verdict.expect_err("it is not"));
        start.elapsed()
    };
    let (small, all) = (large(10_000), large(100_000));
    let (small, all) = (time(&small).min(time(&small)), time(&all));
    println!("10,000 transactions: {small:?}, 100,000: {all:?}");
    assert!(all < small * 40, "{small:?} for 10,000 transactions, {all:?} for 100,000");
}
