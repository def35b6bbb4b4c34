//! The checker against a search through all orders, on histories of a few transactions.

use super::store::{Chance, Fault, Store, Workload, generate};
use super::*;

/// Whether there is a valid order: all committed transactions, some unknown ones, true to real time.
fn has_order(history: &History) -> bool {
    let all: Vec<&Transaction> = history.transactions.iter().filter(|txn| txn.fate != Fate::Aborted).collect();
    extend(&all, 0, &Store::default())
}

/// Whether the transactions that are not in `done` can follow on this state.
fn extend(all: &[&Transaction], done: u32, store: &Store) -> bool {
    let left = |at: usize| done & 1 << at == 0;
    let must = |at: usize| all[at].fate == Fate::Committed && left(at);
    if !(0..all.len()).any(must) {
        return true;
    }
    // Nobody who must still come may have completed before this one is invoked.
    let may = |at: usize| {
        let early = |other: usize| all[other].completed.is_some_and(|completed| completed < all[at].invoked);
        left(at) && !(0..all.len()).any(|other| must(other) && early(other))
    };
    (0..all.len()).filter(|at| may(*at)).any(|at| {
        let mut store = store.clone();
        store.agrees(&all[at].ops) && extend(all, done | 1 << at, &store)
    })
}

/// Changes one thing that a client was told, or a time.
fn tamper(history: &mut History, chance: &mut Chance) {
    let at = chance.below(history.transactions.len() as u64) as usize;
    let txn = &mut history.transactions[at];
    if chance.percent(25) {
        txn.invoked = 900 + chance.below(200);
        txn.completed = txn.completed.map(|_| txn.invoked + chance.below(60));
        return;
    }
    let op = chance.below(txn.ops.len() as u64) as usize;
    match &mut txn.ops[op] {
        Op::List { elements, .. } | Op::Members { elements, .. } | Op::Page { elements, .. } => match chance.below(3) {
            0 if elements.len() > 1 => elements.swap(0, 1),
            1 => elements.push(1 + chance.below(8)),
            _ => _ = elements.pop(),
        },
        Op::Read { value, .. } => *value = Some(1 + chance.below(8)).filter(|value| value % 3 > 0),
        Op::Count { count, .. } => *count = chance.below(4),
        Op::Sum { value, .. } | Op::Since { sum: value, .. } => *value += chance.below(5) as i64 - 2,
        Op::Incarnation { number, .. } => *number = 1 + chance.below(4),
        _ => {}
    }
}

/// What workloads are about, and how many in a hundred of their bad histories may be missed. Sums tell the least.
const WORKLOADS: [(Option<Shape>, u64); 6] = [
    (None, 5),
    (Some(Shape::List), 1),
    (Some(Shape::Register), 1),
    (Some(Shape::Set), 6),
    (Some(Shape::Counter), 20),
    (Some(Shape::Home), 0),
];

#[test]
fn every_anomaly_is_one_by_a_search_through_all_orders() {
    for (only, tolerated) in WORKLOADS {
        let (mut good, mut caught, mut missed) = (0, 0, 0);
        for seed in 0..8_000 {
            let chance = &mut Chance::new(seed);
            let workload = Workload {
                transactions: 2 + chance.below(5),
                keys: 1 + chance.below(2),
                ops: 1 + chance.below(4),
                only,
                spread: *chance.pick(&[5, 20, 60]),
                aborted: 5,
                unknown: 15,
            };
            let fault = match chance.below(4) {
                0 => Fault::Drop(chance.below(workload.transactions)),
                1 => Fault::Old(chance.below(workload.transactions), 1 + chance.below(3) as usize),
                _ => Fault::None,
            };
            let (mut history, _) = generate(chance, workload, fault);
            for _ in 0..chance.below(3) {
                tamper(&mut history, chance);
            }
            match (check(&history), has_order(&history)) {
                (Ok(_), true) => good += 1,
                (Ok(_), false) => missed += 1,
                (Err(_), false) => caught += 1,
                (Err(found), true) => panic!("seed {seed}: a false alarm: {found}\n{history:#?}"),
            }
        }
        println!("{only:?}: {good} good histories pass, {caught} bad ones are caught, {missed} missed");
        assert!(good > 1_000 && caught > 1_000, "{good} good, {caught} bad: too few to tell anything");
        assert!(missed * 100 <= caught * tolerated, "{only:?}: {missed} missed, {caught} caught");
    }
}
