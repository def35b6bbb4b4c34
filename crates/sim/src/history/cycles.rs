//! Looks for the worst cycle that is short enough to be understood.
//!
//! Real time is no edge of the graph. It is an interval order: if A completed before B was invoked, and C before D,
//! then A did before D, or C before B. So a cycle with several real-time edges always has a shorter one with one of
//! them. Hence there is a real-time cycle exactly if some transaction leads, by other edges, to one that completed
//! before it was invoked. The earliest completion that each leads to is found in one pass over the strongly connected
//! components (Tarjan 1972), which come out in reverse topological order.
//!
//! A clean history costs that one pass. Only if something is wrong is it asked which kinds of cycles there are.

use super::anomaly::Kind;
use super::components::{Adjacency, Components};
use super::facts::Facts;
use super::graph::{Class, Edge, Graph};
use super::object::Object;

/// Cycles of at most so many transactions are easy to follow; a long fork has four. The worst kind that has one is
/// reported. If none has, the shortest of any kind is: a stale read can close cycles of hundreds, and is better told by
/// two.
const READABLE: usize = 4;

/// The number of edges that each search for one kind of cycle may follow before it takes the best that it has.
const PATIENCE: usize = 10_000_000;

/// The number of transactions that cycles may have in the first search for a kind, in the second and so on: short ones are found
/// before patience is lost.
const DEPTHS: [usize; 4] = [2, READABLE, 2 * READABLE, usize::MAX];

/// A cycle through transactions.
#[derive(Debug)]
pub(super) struct Cycle {
    /// What such a cycle is called.
    pub(super) kind: Kind,
    /// True if an edge of it is that the one had completed before the other was invoked.
    pub(super) realtime: bool,
    /// Its edges, in order.
    pub(super) steps: Vec<Edge>,
}

const WRITE: u8 = Class::Ww as u8 | Class::Link as u8;
const READ: u8 = WRITE | Class::Wr as u8;
const ANTI: u8 = Class::Rw as u8;
const PREFIX: u8 = READ | ANTI | Class::RwPrefix as u8;
const IN_TIME: u8 = Class::WwInTime as u8;
const ANTI_IN_TIME: u8 = ANTI | Class::RwInTime as u8;

/// Kinds of cycles, the worst first: whether they may need real time, which edges the first may be, and which the
/// others. Real-time cycles that need the inferred order of two blind writes are harder to follow, so the others come
/// first.
const KINDS: [(Kind, bool, u8, u8); 13] = [
    (Kind::G0, false, WRITE, WRITE),
    (Kind::G1c, false, READ, READ),
    (Kind::GSingle, false, ANTI, READ),
    (Kind::G2, false, READ | ANTI, READ | ANTI),
    (Kind::Phantom, false, PREFIX, PREFIX),
    (Kind::G0, true, WRITE, WRITE),
    (Kind::G1c, true, READ, READ),
    (Kind::GSingle, true, ANTI_IN_TIME, READ),
    (Kind::G0, true, WRITE | IN_TIME, WRITE | IN_TIME),
    (Kind::G1c, true, READ | IN_TIME, READ | IN_TIME),
    (Kind::GSingle, true, ANTI_IN_TIME, READ | IN_TIME),
    (Kind::G2, true, READ | IN_TIME | ANTI_IN_TIME, READ | IN_TIME | ANTI_IN_TIME),
    (Kind::Phantom, true, u8::MAX, u8::MAX),
];

/// The worst cycle of a graph, if it has any.
pub(super) fn worst(facts: &Facts<'_>, graph: Graph) -> Option<Cycle> {
    let search = Search { facts, transactions: graph.transactions, edges: Adjacency::new(graph) };
    if search.starts(true, u8::MAX, u8::MAX).1.is_empty() {
        return None;
    }
    let mut best: Option<Cycle> = None;
    for (kind, realtime, first, rest) in KINDS {
        let Some(steps) = search.short_cycle(realtime, first, rest) else { continue };
        if steps.len() <= READABLE {
            return Some(Cycle { kind, realtime, steps });
        }
        if best.as_ref().is_none_or(|best| steps.len() < best.steps.len()) {
            best = Some(Cycle { kind, realtime, steps });
        }
    }
    best
}

/// A search for cycles.
struct Search<'a> {
    /// When transactions began and were over.
    facts: &'a Facts<'a>,
    /// Nodes below this are transactions, the others joints.
    transactions: u32,
    /// What leads where.
    edges: Adjacency,
}

impl Search<'_> {
    /// A cycle of few transactions whose first edge is of the first classes, and the rest of the others.
    fn short_cycle(&self, realtime: bool, first: u8, rest: u8) -> Option<Vec<Edge>> {
        let (components, starts) = self.starts(realtime, first, rest);
        DEPTHS.iter().find_map(|&depth| {
            let mut walk = Walk::new(self.edges.nodes());
            let mut best: Option<Vec<Edge>> = None;
            for &start in &starts {
                let home = |node: u32| realtime || components.of[node as usize] == components.of[start as usize];
                let allowed = |edge: &Edge| {
                    let classes = if edge.from == start { first } else { rest };
                    edge.class as u8 & classes != 0 && home(edge.to)
                };
                let found = self.back_to(start, realtime, depth, allowed, &mut walk);
                if found.as_ref().is_some_and(|found| best.as_ref().is_none_or(|best| found.len() < best.len())) {
                    best = found;
                }
                // No cycle is shorter than two.
                if best.as_ref().is_some_and(|best| best.len() == 2) || walk.followed > PATIENCE {
                    break;
                }
            }
            best
        })
    }

    /// The components of the graph of these classes, and the transactions that a cycle may lead back to. One does to
    /// each, if the first edge may be of all classes.
    fn starts(&self, realtime: bool, first: u8, rest: u8) -> (Components, Vec<u32>) {
        let components = Components::new(&self.edges, first | rest);

        let back = match realtime {
            true if first | rest == rest => self.back_in_time(&components, first, rest),
            true => self.back_in_time(&Components::new(&self.edges, rest), first, rest),
            false => vec![false; self.transactions as usize],
        };

        let is_start = |txn: &u32| components.is_cyclic(*txn) || back[*txn as usize];
        let starts = (0..self.transactions).filter(is_start).collect();
        (components, starts)
    }

    /// For each transaction whether it leads to one that completed before it was invoked.
    fn back_in_time(&self, components: &Components, first: u8, rest: u8) -> Vec<bool> {
        let mut earliest = vec![u64::MAX; self.edges.nodes()];
        for component in components.by_number() {
            let mut least = u64::MAX;
            for &node in component {
                if node < self.transactions {
                    least = least.min(self.facts.completed(node));
                }
                // Those outside the component are done, those inside say nothing yet.
                let onwards = self.edges.of(node).iter().filter(|edge| edge.class as u8 & rest != 0);
                least = onwards.map(|edge| earliest[edge.to as usize]).fold(least, u64::min);
            }
            component.iter().for_each(|node| earliest[*node as usize] = least);
        }

        let leads_back = |txn: u32| {
            let mut onwards = self.edges.of(txn).iter().filter(|edge| edge.class as u8 & first != 0);
            onwards.any(|edge| earliest[edge.to as usize] < self.facts.invoked(txn))
        };
        (0..self.transactions).map(leads_back).collect()
    }

    /// The shortest cycle through a transaction of at most so many transactions.
    fn back_to(
        &self,
        start: u32,
        realtime: bool,
        depth: usize,
        allowed: impl Fn(&Edge) -> bool,
        walk: &mut Walk,
    ) -> Option<Vec<Edge>> {
        let invoked = self.facts.invoked(start);
        let mut layer = vec![start];
        for length in 1..=depth {
            // Joints cost nothing, so they join the layer that is looked at.
            let mut next = Vec::new();
            while let Some(node) = layer.pop() {
                for edge in self.edges.of(node) {
                    walk.followed += 1;
                    if !allowed(edge) || walk.seen_from[edge.to as usize] == start {
                        continue;
                    }
                    walk.seen_from[edge.to as usize] = start;
                    walk.by[edge.to as usize] = *edge;
                    if edge.to == start {
                        return Some(self.path(start, start, walk));
                    }
                    if edge.to >= self.transactions {
                        layer.push(edge.to);
                    } else if realtime && length < depth && self.facts.completed(edge.to) < invoked {
                        let mut path = self.path(start, edge.to, walk);
                        path.push(Edge { from: edge.to, to: start, class: Class::RealTime, object: Object::NONE });
                        return Some(path);
                    } else {
                        next.push(edge.to);
                    }
                }
            }

            if next.is_empty() {
                return None;
            }
            layer = next;
        }
        None
    }

    /// The way that was walked, without the joints: an edge that leaves a transaction leads to the next one.
    fn path(&self, start: u32, end: u32, walk: &Walk) -> Vec<Edge> {
        let mut path = Vec::new();
        let (mut at, mut to) = (end, end);
        loop {
            let edge = walk.by[at as usize];
            at = edge.from;
            if at < self.transactions {
                path.push(Edge { to, ..edge });
                to = at;
            }
            if at == start {
                path.reverse();
                return path;
            }
        }
    }
}

/// What searches from one start after another keep.
struct Walk {
    /// Edges followed so far.
    followed: usize,
    /// For each node the start from which it was last seen.
    seen_from: Vec<u32>,
    /// And the edge by which.
    by: Vec<Edge>,
}

impl Walk {
    fn new(nodes: usize) -> Self {
        let nowhere = Edge { from: u32::MAX, to: u32::MAX, class: Class::Link, object: Object::NONE };
        Self { followed: 0, seen_from: vec![u32::MAX; nodes], by: vec![nowhere; nodes] }
    }
}
