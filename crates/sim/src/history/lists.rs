//! Lists. Nothing is ever taken out of one, so of two versions the shorter is a prefix of the longer: the longest that
//! was read has the order of all writers of its elements. Elements that nobody read come after it, in some order.

use std::collections::HashMap;

use super::anomaly::{Anomaly, Kind, Worst};
use super::facts::{Base, Facts, Touch};
use super::graph::{Class, Graph};

/// Adds the edges of one list.
pub(super) fn infer(facts: &Facts<'_>, touches: &[Touch<'_>], graph: &mut Graph, worst: &mut Worst) {
    let object = touches[0].object;
    let base = |touch: &Touch<'_>| match touch.base {
        Some(Base::List(base)) => Some(base.len()),
        _ => None,
    };
    let Some(order) = order(facts, touches, worst) else { return };

    for pair in order.windows(2) {
        graph.edge(pair[0], pair[1], Class::Ww, object);
    }

    // Who appended and was not seen by the longest read comes after all of it, in no order among themselves.
    let mut shown: HashMap<u32, usize> = HashMap::new();
    order.iter().for_each(|txn| *shown.entry(*txn).or_default() += 1);
    let unread = touches.iter().filter(|touch| shown.get(&touch.txn).copied().unwrap_or(0) < touch.wrote.len());
    let unread: Vec<u32> = unread.map(|touch| touch.txn).collect();
    let past = graph.joint();
    unread.iter().for_each(|txn| graph.link(past, *txn));
    if let Some(last) = order.last() {
        unread.iter().for_each(|txn| graph.edge(*last, *txn, Class::Ww, object));
    }

    for touch in touches {
        let Some(len) = base(touch) else { continue };
        if len > 0 {
            graph.edge(order[len - 1], touch.txn, Class::Wr, object);
        }
        // Who read all of the order and appended is part of it, so `past` does not lead back to a reader.
        graph.edge(touch.txn, order.get(len).copied().unwrap_or(past), Class::Rw, object);
    }
}

/// The writers of the elements of the longest version that is known, in order. None if there is no such order.
fn order(facts: &Facts<'_>, touches: &[Touch<'_>], worst: &mut Worst) -> Option<Vec<u32>> {
    let (history, object) = (facts.history, touches[0].object);
    let mut readers: Vec<(&[u64], &Touch<'_>)> = Vec::new();
    for touch in touches {
        if let Some(Base::List(base)) = touch.base {
            readers.push((base, touch));
        }
    }

    readers.sort_by_key(|(base, _)| base.len());
    let Some(&(longest, reader)) = readers.last() else { return Some(Vec::new()) };
    if let Some((_, other)) = readers.iter().find(|(base, _)| !longest.starts_with(base)) {
        let what = "neither list is a prefix of the other".to_owned();
        worst.note(Anomaly::at(history, Kind::IncompatibleOrder, object, &[other.txn, reader.txn], what));
        return None;
    }

    // Two that read the same and appended cannot both be right after it.
    readers.retain(|(_, touch)| !touch.wrote.is_empty());
    if let Some(pair) = readers.windows(2).find(|pair| pair[0].0.len() == pair[1].0.len()) {
        let what = "both read the same list and appended to it".to_owned();
        worst.note(Anomaly::at(history, Kind::LostUpdate, object, &[pair[0].1.txn, pair[1].1.txn], what));
        return None;
    }

    // One writer's elements are there in its own order.
    let mut order: Vec<u32> = longest.iter().map(|element| facts.writer(object, *element)).collect();
    let mut shown: HashMap<u32, usize> = HashMap::new();
    for (element, txn) in longest.iter().zip(&order) {
        let writer = facts.touch(object, *txn).expect("a writer touched what it wrote");
        let next = shown.entry(*txn).or_default();
        if writer.wrote[*next] != *element {
            let what = format!("{element} is there before what its writer appended before it");
            worst.note(Anomaly::at(history, Kind::IncompatibleOrder, object, &[reader.txn, *txn], what));
            return None;
        }
        *next += 1;
    }
    // Who read all of it and appended comes next.
    if let Some((_, touch)) = readers.last().filter(|(base, _)| base.len() == longest.len()) {
        order.extend(touch.wrote.iter().map(|_| touch.txn));
    }
    Some(order)
}
