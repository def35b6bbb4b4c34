//! Homes. A loss of storage comes between two incarnations, and no transaction sees what a loss has taken once another has
//! seen that it is gone: who saw an incarnation comes before all who saw a later one.

use super::facts::{Base, Touch};
use super::graph::{Class, Graph};

/// Adds the edges between those who saw one home in different incarnations.
pub(super) fn infer(touches: &[Touch<'_>], graph: &mut Graph) {
    let object = touches[0].object;
    let mut seen: Vec<(u64, u32)> = touches
        .iter()
        .filter_map(|touch| match touch.base {
            Some(Base::Incarnation(number)) => Some((number, touch.txn)),
            _ => None,
        })
        .collect();
    seen.sort_unstable();
    // The joint that all who saw an earlier incarnation enter. Each incarnation has one of its own, so that those who saw the
    // same one are not ordered.
    let mut earlier: Option<u32> = None;
    for same in seen.chunk_by(|one, other| one.0 == other.0) {
        let joint = graph.joint();
        for &(_, txn) in same {
            if let Some(earlier) = earlier {
                graph.link(earlier, txn);
            }
            graph.edge(txn, joint, Class::Rw, object);
        }
        if let Some(earlier) = earlier {
            graph.link(earlier, joint);
        }
        earlier = Some(joint);
    }
}
