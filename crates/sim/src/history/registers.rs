//! Registers. A read names the writer, but values say nothing of their order. Two things do:
//!
//! - Who reads a value and overwrites it comes right after its writer. So writers form **blocks**: one that writes
//!   blindly (or on the absent register), then those that each read the value before. No other writer comes in between.
//! - Time. A block was there by the time at which the first of its writers and readers completed, and was still there
//!   when the last of them was invoked. If one block was there before another was last seen alive, it is the earlier
//!   one: the other would otherwise have been overwritten by it. (Zones, after Gibbons and Korach 1997.)
//!
//! The block on the absent register is the first, whatever the times.

use std::collections::HashMap;

use super::anomaly::{Anomaly, Kind, Worst};
use super::facts::{Base, Facts, Touch};
use super::graph::{Class, Graph, Row};
use super::object::Object;

/// Values of a register of which each was overwritten by who had read it, from a blind write on.
#[derive(Default)]
struct Block {
    /// Its first and its last writer; none if the register was absent all along.
    ends: Option<(u32, u32)>,
    /// Who read its last value and wrote nothing.
    readers: Vec<u32>,
    /// By when it was there, in microseconds: somebody who wrote or read a value of it had completed.
    there: u64,
    /// When it was last alive, in microseconds: the last of these was invoked.
    alive: u64,
}

/// Adds the edges of one register.
pub(super) fn infer(facts: &Facts<'_>, touches: &[Touch<'_>], graph: &mut Graph, worst: &mut Worst) {
    let object = touches[0].object;

    // Who overwrote each value that was read: one at most, or an update is lost.
    let mut next: HashMap<Option<u64>, &Touch<'_>> = HashMap::new();
    let mut readers: HashMap<Option<u64>, Vec<u32>> = HashMap::new();
    for touch in touches {
        let Some(Base::Register(value)) = touch.base else { continue };
        if touch.wrote.is_empty() {
            readers.entry(value).or_default().push(touch.txn);
        } else if let Some(other) = next.insert(value, touch) {
            let what = "both read the same value and overwrote it".to_owned();
            let txns = [other.txn, touch.txn];
            return worst.note(Anomaly::at(facts.history, Kind::LostUpdate, object, &txns, what));
        }
    }

    // Who wrote a value comes before all that read it, and these before who overwrote it.
    for touch in touches {
        let Some(Base::Register(value)) = touch.base else { continue };
        let writer = value.map(|value| facts.writer(object, value));
        if let Some(writer) = writer {
            graph.edge(writer, touch.txn, Class::Wr, object);
        }
        match next.get(&value) {
            Some(next) if next.txn != touch.txn => graph.edge(touch.txn, next.txn, Class::Rw, object),
            Some(next) => writer.into_iter().for_each(|writer| graph.edge(writer, next.txn, Class::Ww, object)),
            None => {}
        }
    }

    // A block is what follows a write without a read: each value overwritten by who has read it, up to the last.
    let block = |head: Option<&Touch<'_>>| {
        let mut block = Block { there: u64::MAX, ..Block::default() };
        let mut at = head;
        let mut value = None;
        loop {
            if let Some(touch) = at {
                block.ends = Some((block.ends.map_or(touch.txn, |ends| ends.0), touch.txn));
                value = touch.wrote.last().copied();
            }
            block.readers = readers.get(&value).cloned().unwrap_or_default();
            for txn in block.readers.iter().copied().chain(at.map(|touch| touch.txn)) {
                block.there = block.there.min(facts.completed(txn));
                block.alive = block.alive.max(facts.invoked(txn));
            }
            at = next.get(&value).copied();
            if at.is_none() {
                return block;
            }
        }
    };
    // Blocks begin with a blind write. Writers that read each other's values in a circle are in none; the edges show
    // them.
    let blind = touches.iter().filter(|touch| touch.base.is_none() && !touch.wrote.is_empty());
    let mut blocks: Vec<Block> = blind.map(|touch| block(Some(touch))).collect();
    blocks.sort_by_key(|block| block.alive);

    let heads = blocks.iter().filter_map(|block| block.ends).map(|ends| ends.0);
    let row = Row::new(graph, heads.collect());
    let absent = enter(graph, &block(None), (Class::Ww, Class::Rw), object);
    row.before(graph, absent, 0..blocks.len(), Class::Link, object);

    for (at, this) in blocks.iter().enumerate() {
        let later = blocks.partition_point(|other| other.alive <= this.there);
        // Who overwrote the value that it read is told by its read: that it wrote says less.
        let blind = this.ends.is_some_and(|(head, last)| head == last);
        let write = if blind { Class::WwInTime } else { Class::RwInTime };

        let joint = enter(graph, this, (write, Class::RwInTime), object);
        row.before(graph, joint, later..at.max(later), Class::Link, object);
        row.before(graph, joint, later.max(at + 1)..blocks.len(), Class::Link, object);
    }
}

/// A joint that the end of a block leads to: its last writer, and the readers of its last value.
fn enter(graph: &mut Graph, block: &Block, (write, read): (Class, Class), object: Object) -> u32 {
    let joint = graph.joint();
    if let Some((_, last)) = block.ends {
        graph.edge(last, joint, write, object);
    }
    block.readers.iter().for_each(|reader| graph.edge(*reader, joint, read, object));
    joint
}
