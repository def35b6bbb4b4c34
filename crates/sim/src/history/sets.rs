//! Sets under a prefix. A read comes after the inserters of all that it saw, and before those who took these out. Of what it did
//! not see, though it lies within what it read, it came before the inserter, or after who took it out: where nobody may have
//! taken it out, or only later, the former; where the inserter had completed before the reader was invoked, the latter.
//! Where time does not tell, nothing is concluded.

use std::collections::{BTreeMap, HashMap};

use super::anomaly::{Anomaly, Kind, Worst};
use super::facts::{Base, Facts, Touch};
use super::graph::{Class, Graph, Row};

/// Adds the edges of the scans of one set.
pub(super) fn infer(facts: &Facts<'_>, touches: &[Touch<'_>], graph: &mut Graph, worst: &mut Worst) {
    let object = touches[0].object;
    let mut row: Vec<(u64, u32, u64)> = Vec::new();
    for touch in touches {
        row.extend(touch.wrote.iter().map(|element| (facts.invoked(touch.txn), touch.txn, *element)));
    }
    // What a scan did not see is mostly what was inserted late: one stretch, and a few holes near its beginning.
    row.sort_unstable();
    let elements: Vec<u64> = row.iter().map(|(_, _, element)| *element).collect();
    let places: HashMap<u64, usize> = elements.iter().enumerate().map(|(at, element)| (*element, at)).collect();
    let txns: Vec<u32> = row.iter().map(|(_, txn, _)| *txn).collect();
    let row = Row::new(graph, txns.clone());

    // By place: who may have taken it out. Of those who did there is one.
    let mut removers: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for removal in facts.removals(object) {
        let Some(&place) = places.get(&removal.element) else { continue };
        let of_this = removers.entry(place).or_default();
        let other = of_this.iter().copied().find(|other| facts.is_node(*other));
        if let Some(other) = other.filter(|_| facts.is_node(removal.txn)) {
            let what = format!("both took {} out", removal.element);
            return worst.note(Anomaly::at(facts.history, Kind::LostUpdate, object, &[other, removal.txn], what));
        }
        of_this.push(removal.txn);
    }
    for touch in touches {
        for element in &touch.removed {
            graph.edge(txns[places[element]], touch.txn, Class::Wr, object);
        }
        let Some(Base::Members { from, to, elements: base }) = &touch.base else { continue };
        let mut seen: Vec<usize> = base.iter().chain(&touch.wrote).map(|element| places[element]).collect();
        seen.sort_unstable();
        let mut before = None;
        for txn in seen.iter().map(|at| txns[*at]) {
            if before.replace(txn) != Some(txn) {
                graph.edge(txn, touch.txn, Class::Wr, object);
            }
        }

        // All that it does not come before for not having seen it.
        let is_within = |place: usize| (*from..=*to).contains(&elements[place]);
        let mut apart = seen.clone();
        apart.extend((0..elements.len()).filter(|place| !is_within(*place)));
        for (&place, removers) in removers.iter().filter(|(place, _)| is_within(**place)) {
            if seen.binary_search(&place).is_ok() {
                let remover = removers.iter().copied().find(|remover| facts.is_node(*remover));
                remover.into_iter().for_each(|remover| graph.edge(touch.txn, remover, Class::RwPrefix, object));
                continue;
            }
            if removers.iter().all(|remover| facts.invoked(*remover) > facts.completed(touch.txn)) {
                // It had not been taken out, so it had not been inserted either.
                continue;
            }
            apart.push(place);
            if facts.completed(txns[place]) < facts.invoked(touch.txn)
                && let [remover] = removers[..]
                && facts.is_node(remover)
            {
                graph.edge(remover, touch.txn, Class::Wr, object);
            }
        }
        apart.sort_unstable();
        apart.dedup();
        row.before_all_but(graph, touch.txn, &apart, Class::RwPrefix, object);
    }
}
