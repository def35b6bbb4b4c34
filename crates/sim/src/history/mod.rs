//! Judges histories of transactions from outside: is there an order of the transactions, true to real time, in which
//! one after another would have seen what they saw? That is strict serializability.
//!
//! The checker knows nothing of the system that it judges. It sees what clients asked, what they were told and when.
//! From values that can be recognised (every element is written once) it infers which transaction must come before
//! which, and looks for a cycle. The method is Elle's (Kingsbury and Alvaro, VLDB 2020), the names of anomalies are
//! Adya's (1999).
//!
//! # Words of the checker
//!
//! It knows nothing of the product, so these are its own.
//!
//! - **object**: what one key names: a list, a register, a set under a prefix, a counter, or a home. A key may name one of
//!   each; they have nothing to do with each other, but for [`Op::Since`]. Lists and sets are empty at first, registers absent,
//!   counters 0.
//! - **home**: where objects live. One that loses its storage begins a new *incarnation*, with no objects.
//! - **node**: a transaction that is known to have committed, because its client was told so, or because a node read
//!   what it wrote. The latter is how unknown transactions become nodes; their effects may come late, so they never
//!   *completed*.
//! - **version**: what an object is between two transactions that change it. **Base**: the version that a transaction
//!   found, told from its reads less its own writes.
//! - **ww, wr, rw**: the second transaction overwrites or extends what the first wrote; reads it; changes what the
//!   first read (an *anti-dependency*).
//! - **real-time edge**: the first transaction completed before the second was invoked.
//!
//! # How it works
//!
//! ```text
//!   History ──▶ facts ──▶ lists, registers, sets, tallies ──▶ graph ──▶ cycles ──▶ anomaly
//!               what each    edges that must hold in any       no cycle:  the worst kind,
//!               node found   valid order                       all is well   shortest, explained
//! ```
//!
//! | file | what it infers |
//! | --- | --- |
//! | `facts` | bases, writers of values, nodes; what is wrong with a single read |
//! | `lists` | the order of versions is that of the longest list read; what nobody read comes after it |
//! | `registers` | who reads a value and overwrites it comes right after its writer; time orders such *blocks* |
//! | `sets` | a scan comes after the inserters that it saw, before the others, and before or after who takes members out |
//! | `tallies` | counts and sums: bounds from real time, and order where a number can only grow |
//! | `homes` | who saw an incarnation comes before all who saw a later one |
//! | `graph` | nodes, edges, and trees that stand for many edges at once |
//! | `cycles`, `components` | whether there is a cycle, real time included; a short one of the worst kind |
//!
//! # What a verdict means
//!
//! **No false alarm.** Every edge holds in every valid order, so a cycle means that there is none. Writes of an unknown
//! transaction that nobody saw give no edge. `tests/brute.rs` compares with a search through all orders, for 48,000
//! histories of two to six transactions in each run, and once for two million: none that has an order is blamed.
//!
//! **Some violations are missed.** Serializability is NP-complete to decide (Papadimitriou 1979). What only lists,
//! scans, and registers that are read before they are written have to say is decided. Missed is what follows only from:
//!
//! - the order of two blind writes of a register, if neither its read-modify-writes nor the times of all who used the
//!   two values settle it (of the bad histories in that comparison, 1 in 2,000 of those of registers);
//! - which of several deletions a read met that found nothing, or whether it came before all writers, if times leave more
//!   than one of these; and whether a scan that lacks a member came before its inserter or after who took it out, in the same way;
//! - the choice of blind inserts and removals that a count includes, beyond its bounds and the other counts (with what a scan
//!   lacks, 1 in 20);
//! - the choice of additions that a sum includes, in the same way (1 in 12). Where a counter both grows and shrinks,
//!   sums are not ordered, and nobody asks whether any choice within the bounds gives just that sum;
//! - the order within one client. A transaction that completes in the microsecond in which another is invoked is
//!   concurrent with it.
//!
//! **The kind** is the worst that has a cycle of at most four transactions; if none has, that of the shortest cycle. A
//! search that takes too long stops with the best it has, so a G-single may be called G2. What is wrong with single
//! reads is reported first, since it spoils what is inferred from them.
//!
//! Cost: linear in the ops and in the elements that reads returned, times a logarithm; 100,000 transactions take less
//! than a second. Only scans that miss elements here and there, not just the latest, cost more: one step for each gap.
//!
//! # Departures from Elle
//!
//! Elle infers one order for each data type, and checks one type at a time; here a transaction may use lists,
//! registers, sets and counters together. Registers use real time, as Elle does for `linearizable-keys?`, but with the
//! whole life of a value (Gibbons and Korach 1997) in place of pairs of operations. Reads of unknown transactions count
//! once somebody saw their writes. Elle's process order, and its anomalies of weaker models, are left out.
//! [`History::to_edn`] hands a history to Elle itself, for a second opinion.

mod anomaly;
mod components;
mod cycles;
mod edn;
mod facts;
mod graph;
mod homes;
mod lists;
mod object;
mod record;
mod registers;
mod sets;
mod tallies;
#[cfg(test)]
mod tests;

pub use anomaly::{Anomaly, Kind};
pub use edn::Model;
pub use facts::Summary;
pub use object::Key;
pub use record::{Fate, History, Op, Transaction};

use anomaly::Worst;
use cycles::Cycle;
use graph::Graph;
use object::Shape;

/// Judges a history: what the verdict rests on, or the worst anomaly found. See the [module](self) for what is missed.
///
/// # Panics
///
/// If two transactions that did not abort write the same value to the same key: then nobody can tell who was read.
pub fn check(history: &History) -> Result<Summary, Anomaly> {
    let facts = facts::gather(history)?;
    let mut graph = Graph::new(history.transactions.len());
    let mut worst = Worst::default();
    for touches in facts.objects() {
        match touches[0].object.shape() {
            Shape::List => lists::infer(&facts, touches, &mut graph, &mut worst),
            Shape::Register => registers::infer(&facts, touches, &mut graph, &mut worst),
            Shape::Set => {
                sets::infer(&facts, touches, &mut graph, &mut worst);
                tallies::infer(&facts, touches, &mut graph, &mut worst);
            }
            Shape::Counter => tallies::infer(&facts, touches, &mut graph, &mut worst),
            Shape::Home => homes::infer(touches, &mut graph),
        }
    }
    let summary = facts.summary(graph.len());
    if let Some(Cycle { kind, realtime, steps }) = cycles::worst(&facts, graph) {
        worst.note(Anomaly::of_cycle(history, kind, realtime, &steps));
    }
    worst.verdict().map(|()| summary)
}
