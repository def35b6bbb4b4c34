//! The top-k algorithm of Babcock and Olston (*Distributed Top-K Monitoring*, SIGMOD 2003), as a plain program: the baseline of
//! [`super`].
//!
//! Every node counts each object, and has an adjustment for it; those of an object add up to zero over all nodes and the coordinator.
//! While at every node each of the top objects, adjusted, is at least every other one, they are the top of all. A node where that ends asks
//! the coordinator:
//!
//! 1. The node tells which object broke which constraints, with its counts of these and of the top objects, and a border.
//! 2. If the coordinator's own adjustments have enough, it divides what it and the node have between them, and answers.
//! 3. Else it asks all nodes for their counts, finds the new top, divides all adjustments again, and tells each node.
//!
//! Here that takes no time, and nothing happens meanwhile. That favours it.

/// What is less than this apart counts as equal.
const EQUAL: f64 = 1e-9;
/// The coordinator's place behind the nodes.
type Adjustments = Vec<Vec<f64>>;

/// The nodes and their coordinator.
#[derive(Clone, Debug)]
pub(super) struct Babcock {
    /// The share of slack that the coordinator keeps; the nodes have equal parts of the rest.
    share: f64,
    /// The counts of each node.
    counts: Vec<Vec<i64>>,
    /// The adjustments of each node; the last ones are the coordinator's.
    adjustments: Adjustments,
    /// The objects that are the top, in ascending order.
    top: Vec<usize>,
    /// The times that a node waited for the coordinator.
    pub(super) synchronizations: u64,
    /// The messages for that.
    pub(super) messages: u64,
}

impl Babcock {
    /// Nodes that have counted nothing.
    pub(super) fn new(nodes: usize, objects: usize, top: usize, share: f64) -> Self {
        Self {
            share,
            counts: vec![vec![0; objects]; nodes],
            adjustments: vec![vec![0.0; objects]; nodes + 1],
            top: (0..top).collect(),
            synchronizations: 0,
            messages: 0,
        }
    }

    /// The top objects, in ascending order.
    pub(super) fn top(&self) -> &[usize] {
        &self.top
    }

    /// A node counts an object once more.
    pub(super) fn count(&mut self, node: usize, object: usize) {
        self.counts[node][object] += 1;
        let is_broken = |top: &usize| self.adjusted(node, *top) < self.adjusted(node, object) - EQUAL;
        if self.top.binary_search(&object).is_ok() || !self.top.iter().any(is_broken) {
            return;
        }
        self.synchronizations += 1;
        self.messages += 1;

        let coordinator = self.counts.len();
        let with_reserve = |of: usize| self.adjusted(node, of) + self.adjustments[coordinator][of];
        let suffices = |top: &usize| with_reserve(*top) >= with_reserve(object) - EQUAL;
        let mut resolved = self.top.clone();
        resolved.push(object);
        if self.share > 0.0 && self.top.iter().all(suffices) {
            self.messages += 1;
            self.divide(&[node, coordinator], &resolved);
            return;
        }

        // All others are asked, answer, and are told; and so is the node that asked.
        self.messages += 3 * (self.counts.len() as u64 - 1) + 1;
        self.find_top(object);
        let all: Vec<usize> = (0..=coordinator).collect();
        self.divide(&all, &resolved);
    }

    /// What a node, or the coordinator, holds of an object.
    fn adjusted(&self, node: usize, object: usize) -> f64 {
        let count = self.counts.get(node).map_or(0, |counts| counts[object]);
        count as f64 + self.adjustments[node][object]
    }

    /// One object has come to be more than one of the top, perhaps.
    fn find_top(&mut self, object: usize) {
        let sum = |object: usize| self.counts.iter().map(|counts| counts[object]).sum::<i64>();
        let smallest = (0..self.top.len()).min_by_key(|at| sum(self.top[*at])).expect("the top is not empty");
        if sum(object) > sum(self.top[smallest]) {
            self.top[smallest] = object;
            self.top.sort_unstable();
        }
    }

    /// Divides what some participants have of some objects above their borders.
    fn divide(&mut self, among: &[usize], objects: &[usize]) {
        let border = |node: &usize| {
            let others = (0..self.adjustments[0].len()).filter(|other| !objects.contains(other));
            let highest = others.map(|other| self.adjusted(*node, other)).fold(f64::NEG_INFINITY, f64::max);
            self.top.iter().map(|top| self.adjusted(*node, *top)).fold(highest, f64::min)
        };
        let borders: Vec<f64> = among.iter().map(border).collect();
        let nodes = self.counts.len();
        let part = |node: usize| if node == nodes { self.share } else { (1.0 - self.share) / nodes as f64 };
        let (parts, all): (Vec<f64>, f64) =
            (among.iter().map(|node| part(*node)).collect(), among.iter().map(|node| part(*node)).sum());
        for &object in objects {
            let held: f64 = among.iter().map(|node| self.adjusted(*node, object)).sum();
            let leeway = held - borders.iter().sum::<f64>();
            for ((&node, border), part) in among.iter().zip(&borders).zip(&parts) {
                let count = self.counts.get(node).map_or(0, |counts| counts[object]);
                self.adjustments[node][object] = border - count as f64 + part / all * leeway;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use slackline_core::stats::Rng;

    use super::*;

    /// Whatever comes where: the top is right, and no adjustment is made or lost.
    #[test]
    fn top_is_that_of_the_sums() {
        for share in [0.0, 0.2, 0.5] {
            let (mut nodes, mut rng) = (Babcock::new(5, 40, 4, share), Rng::new(3));
            for _ in 0..4_000 {
                let object = (rng.below(40) * rng.below(40) / 40) as usize;
                nodes.count(rng.below(5) as usize, object);

                let sum = |object: usize| nodes.counts.iter().map(|counts| counts[object]).sum::<i64>();
                let least = nodes.top().iter().map(|top| sum(*top)).min();
                let most = (0..40).filter(|other| nodes.top().binary_search(other).is_err()).map(sum).max();
                assert!(least >= most, "{least:?} is less than {most:?}");
            }
            for object in 0..40 {
                let sum: f64 = nodes.adjustments.iter().map(|of| of[object]).sum();
                assert!(sum.abs() < 1e-6, "the adjustments of {object} add up to {sum}");
            }
            assert!(nodes.synchronizations > 20 && nodes.messages > nodes.synchronizations);
        }
    }
}
