//! Strongly connected components (Tarjan 1972).

use super::graph::{Edge, Graph};

/// The edges of a graph by where they come from.
pub(super) struct Adjacency {
    /// The edges, those that leave a node together.
    edges: Vec<Edge>,
    /// Where the edges of each node start; one more at the end.
    starts: Vec<u32>,
}

impl Adjacency {
    pub(super) fn new(graph: Graph) -> Self {
        let Graph { nodes, mut edges, .. } = graph;
        edges.sort_by_key(|edge| edge.from);
        let mut starts = vec![0_u32; nodes as usize + 1];
        edges.iter().for_each(|edge| starts[edge.from as usize + 1] += 1);
        (1..starts.len()).for_each(|at| starts[at] += starts[at - 1]);
        Self { edges, starts }
    }

    /// The number of nodes.
    pub(super) fn nodes(&self) -> usize {
        self.starts.len() - 1
    }

    /// The edges that leave a node.
    pub(super) fn of(&self, node: u32) -> &[Edge] {
        &self.edges[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }
}

/// Strongly connected components, numbered so that no edge leads from one to one with a higher number.
pub(super) struct Components {
    /// The number of each node's component.
    pub(super) of: Vec<u32>,
    /// The nodes, those of a component together.
    order: Vec<u32>,
    /// Where each component ends in `order`.
    ends: Vec<u32>,
}

impl Components {
    /// The components of the graph of these classes. Without recursion: a chain of a million transactions must not use
    /// up the stack.
    pub(super) fn new(edges: &Adjacency, classes: u8) -> Self {
        let mut components = Self { of: vec![u32::MAX; edges.nodes()], order: Vec::new(), ends: Vec::new() };
        // When a node was met, from 1; and the earliest met that it can reach among those that are still open.
        let (mut met, mut low) = (vec![0_u32; edges.nodes()], vec![0_u32; edges.nodes()]);
        let mut open: Vec<u32> = Vec::new();
        let mut path: Vec<(u32, usize)> = Vec::new();
        let mut clock = 0;

        for root in 0..edges.nodes() as u32 {
            if met[root as usize] == 0 {
                path.push((root, 0));
            }
            while let Some((node, next)) = path.last_mut() {
                let (node, at) = (*node, *node as usize);
                if met[at] == 0 {
                    clock += 1;
                    (met[at], low[at]) = (clock, clock);
                    open.push(node);
                }

                // Goes on along the first edge to a node that was not met; what is still open and was met is as early as this one can
                // reach.
                let mut inner = None;
                while inner.is_none() && *next < edges.of(node).len() {
                    let Edge { to, class, .. } = edges.of(node)[*next];
                    *next += 1;
                    let is_closed = components.of[to as usize] != u32::MAX;
                    if class as u8 & classes == 0 || is_closed {
                        continue;
                    }
                    match met[to as usize] {
                        0 => inner = Some(to),
                        met => low[at] = low[at].min(met),
                    }
                }

                if let Some(to) = inner {
                    path.push((to, 0));
                    continue;
                }
                path.pop();
                if let Some((parent, _)) = path.last() {
                    low[*parent as usize] = low[*parent as usize].min(low[at]);
                }

                // It reaches nothing earlier: everything above it that is open is its component.
                if low[at] == met[at] {
                    let from = open.iter().rposition(|other| *other == node).expect("a node is open until it closes");
                    components.close(open.drain(from..));
                }
            }
        }
        components
    }

    /// These nodes, which are above one that reaches nothing earlier, are a component.
    fn close(&mut self, nodes: impl Iterator<Item = u32>) {
        for node in nodes {
            self.of[node as usize] = self.ends.len() as u32;
            self.order.push(node);
        }
        self.ends.push(self.order.len() as u32);
    }

    /// Returns true if a node is on a cycle.
    pub(super) fn is_cyclic(&self, node: u32) -> bool {
        let number = self.of[node as usize] as usize;
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.ends[number] - start > 1
    }

    /// The nodes of each component, by its number.
    pub(super) fn by_number(&self) -> impl Iterator<Item = &[u32]> {
        self.order.chunk_by(|one, other| self.of[*one as usize] == self.of[*other as usize])
    }
}
