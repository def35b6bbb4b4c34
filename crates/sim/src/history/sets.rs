//! Sets under a prefix. Elements are never deleted, so a scan comes after the inserters of all that it saw, and before
//! all other inserters.

use std::collections::HashMap;

use super::facts::{Base, Facts, Touch};
use super::graph::{Class, Graph, Row};

/// Adds the edges of the scans of one set.
pub(super) fn infer(facts: &Facts<'_>, touches: &[Touch<'_>], graph: &mut Graph) {
    let object = touches[0].object;
    let mut row: Vec<(u64, u32, u64)> = Vec::new();
    for touch in touches {
        row.extend(touch.wrote.iter().map(|element| (facts.invoked(touch.txn), touch.txn, *element)));
    }
    // What a scan did not see is mostly what was inserted late: one stretch, and a few holes near its beginning.
    row.sort_unstable();
    let places: HashMap<u64, usize> = row.iter().enumerate().map(|(at, (_, _, element))| (*element, at)).collect();
    let txns: Vec<u32> = row.iter().map(|(_, txn, _)| *txn).collect();
    let row = Row::new(graph, txns.clone());
    for touch in touches {
        let Some(Base::Members(base)) = &touch.base else { continue };
        let mut seen: Vec<usize> = base.iter().chain(&touch.wrote).map(|element| places[element]).collect();
        seen.sort_unstable();
        let mut before = None;
        for txn in seen.iter().map(|at| txns[*at]) {
            if before.replace(txn) != Some(txn) {
                graph.edge(txn, touch.txn, Class::Wr, object);
            }
        }
        row.before_all_but(graph, touch.txn, &seen, Class::RwPrefix, object);
    }
}
