//! Transactions, and what must come before what.
//!
//! Some facts are about many transactions at once: a scan comes before every inserter that it did not see. Written out,
//! they would be as many edges as there are pairs. So there are *joints* between the transactions: a path from one
//! transaction through joints to the next one is one edge. Its first part says which class of edge it is; the rest is
//! `Link`.

use super::object::Object;

/// What an edge follows from. Each is a bit, so that a search can name those that it allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Class {
    Ww = 1,
    Wr = 2,
    Rw = 4,
    /// Of a scan or a count under a prefix.
    RwPrefix = 8,
    /// Not in the graph: a search adds it.
    RealTime = 16,
    /// A ww or rw edge that needs real time, since only that orders the two versions.
    WwInTime = 32,
    RwInTime = 64,
    /// From a joint: of the class by which the joint was entered.
    Link = 128,
}

/// An edge between transactions or joints.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    /// Who comes before.
    pub(super) from: u32,
    /// Who comes after.
    pub(super) to: u32,
    /// Why.
    pub(super) class: Class,
    /// The object that shows it.
    pub(super) object: Object,
}

/// Transactions are numbered as in the history; joints follow.
#[derive(Debug)]
pub(super) struct Graph {
    /// The number of transactions.
    pub(super) transactions: u32,
    /// The number of nodes: transactions and joints.
    pub(super) nodes: u32,
    /// The edges, in the order in which they were found.
    pub(super) edges: Vec<Edge>,
}

impl Graph {
    /// A graph without edges.
    pub(super) fn new(transactions: usize) -> Self {
        let transactions = transactions as u32;
        Self { transactions, nodes: transactions, edges: Vec::new() }
    }

    /// The number of edges.
    pub(super) fn len(&self) -> usize {
        self.edges.len()
    }

    /// A new joint.
    pub(super) fn joint(&mut self) -> u32 {
        self.nodes += 1;
        self.nodes - 1
    }

    /// One transaction comes before another; nothing if it is the same.
    pub(super) fn edge(&mut self, from: u32, to: u32, class: Class, object: Object) {
        if from != to {
            self.edges.push(Edge { from, to, class, object });
        }
    }

    /// Whoever enters this joint comes before `to`.
    pub(super) fn link(&mut self, joint: u32, to: u32) {
        self.edge(joint, to, Class::Link, Object::NONE);
    }
}

/// A tree of joints over a row of transactions, by which any stretch of the row is reached by few edges.
#[derive(Debug)]
pub(super) struct Row {
    /// Joint `n` of the tree is node `first + n`; its children are `2n` and `2n + 1`. Those from `txns.len()` are the
    /// row.
    first: u32,
    /// The row.
    txns: Vec<u32>,
}

impl Row {
    /// Adds the tree of a row to a graph.
    pub(super) fn new(graph: &mut Graph, txns: Vec<u32>) -> Self {
        let row = Self { first: graph.nodes, txns };
        graph.nodes += row.txns.len() as u32;
        for joint in 1..row.txns.len() {
            graph.link(row.first + joint as u32, row.node(2 * joint));
            graph.link(row.first + joint as u32, row.node(2 * joint + 1));
        }
        row
    }

    fn node(&self, at: usize) -> u32 {
        if at < self.txns.len() { self.first + at as u32 } else { self.txns[at - self.txns.len()] }
    }

    /// `from` comes before all of the row but those at `except`, which is in order.
    pub(super) fn before_all_but(&self, graph: &mut Graph, from: u32, except: &[usize], class: Class, object: Object) {
        let mut start = 0;
        for &hole in except {
            self.before(graph, from, start..hole, class, object);
            start = hole + 1;
        }
        self.before(graph, from, start..self.txns.len(), class, object);
    }

    /// `from` comes before a stretch of the row.
    pub(super) fn before(
        &self,
        graph: &mut Graph,
        from: u32,
        stretch: std::ops::Range<usize>,
        class: Class,
        object: Object,
    ) {
        let (mut start, mut end) = (stretch.start + self.txns.len(), stretch.end + self.txns.len());
        while start < end {
            if start & 1 == 1 {
                graph.edge(from, self.node(start), class, object);
                start += 1;
            }
            if end & 1 == 1 {
                end -= 1;
                graph.edge(from, self.node(end), class, object);
            }
            start /= 2;
            end /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_leads_to_all_of_a_stretch_and_to_nothing_else() {
        for size in 0..20 {
            for (start, end) in (0..=size).flat_map(|end| (0..=end).map(move |start| (start, end))) {
                let mut graph = Graph::new(size + 1);
                let row = Row::new(&mut graph, (0..size as u32).collect());
                let from = size as u32;
                row.before(&mut graph, from, start..end, Class::Rw, Object::NONE);
                let mut reached = vec![from];
                for at in 0.. {
                    let Some(&node) = reached.get(at) else { break };
                    reached.extend(graph.edges.iter().filter(|edge| edge.from == node).map(|edge| edge.to));
                }
                let mut txns: Vec<u32> = reached.into_iter().filter(|node| *node < from).collect();
                txns.sort_unstable();
                assert_eq!(txns, (start as u32..end as u32).collect::<Vec<_>>(), "{start}..{end} of {size}");
            }
        }
    }
}
