//! The quotas that clients share: their limits, how much is asked of each, and how it is held.

use slackline_core::api::{Agreement, Operation, Parent};
use slackline_core::avantan::Charter;
use slackline_core::clock::SECOND;

/// A quota of the workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Its name.
    pub(crate) name: &'static str,
    /// The number of its tokens.
    pub(crate) limit: i64,
    /// The largest ordinary request.
    pub(crate) most: i64,
    /// Of a hundred acquires are of this quota.
    pub(crate) weight: u64,
    /// Of a hundred grants are tracked and have no end.
    pub(crate) open: u64,
    /// Of a hundred grants are tracked and end by themselves.
    pub(crate) timed: u64,
    /// The time for which tokens are held in the mean, in milliseconds.
    pub(crate) held: u64,
}

/// A quota that never runs short; what a client does for another reason than tokens, it does with this one.
pub(crate) const PLENTY: Kind =
    Kind { name: "plenty", limit: 1_000_000, most: 20, weight: 22, open: 10, timed: 20, held: 4_000 };

/// All of them.
pub(crate) const KINDS: [Kind; 8] = [
    PLENTY,
    Kind { name: "tight", limit: 420, most: 9, weight: 14, open: 10, timed: 10, held: 3_000 },
    Kind { name: "scarce", limit: 7, most: 3, weight: 8, open: 30, timed: 30, held: 1_500 },
    Kind { name: "skewed", limit: 600, most: 30, weight: 22, open: 5, timed: 5, held: 2_000 },
    Kind { name: "timed", limit: 500, most: 12, weight: 16, open: 0, timed: 100, held: 3_000 },
    Kind { name: "fleeting", limit: 90, most: 5, weight: 4, open: 50, timed: 50, held: 2_000 },
    Kind { name: "huge", limit: i64::MAX, most: i64::MAX / 5, weight: 2, open: 20, timed: 10, held: 3_000 },
    Kind { name: "ready", limit: 120, most: 9, weight: 12, open: 10, timed: 10, held: 2_000 },
];

/// Quotas that refill, beside them, one with either way in which tokens move: nobody holds what they grant. Clients ask for more than
/// their rate.
pub(crate) const METERS: [Kind; 2] = [
    Kind { name: "meter", limit: 24, most: 5, weight: 0, open: 0, timed: 0, held: 0 },
    Kind { name: "gauge", limit: 15, most: 4, weight: 0, open: 0, timed: 0, held: 0 },
];

/// The rate at which they refill, in millionths of a token a second. No number of sites divides it.
pub(crate) const METER_REFILL: u64 = 3_000_001;

/// A tree beside them: a parent comes before those below it. Each level is short at times, and what is asked of one counts in all above.
/// The limit of each changes now and then.
pub(crate) const TREE: [Kind; 5] = [
    Kind { name: "acme", limit: 70, most: 4, weight: 0, open: 20, timed: 30, held: 2_000 },
    Kind { name: "acme/web", limit: 40, most: 4, weight: 0, open: 20, timed: 30, held: 2_000 },
    Kind { name: "acme/batch", limit: 70, most: 9, weight: 0, open: 20, timed: 30, held: 2_000 },
    Kind { name: "acme/web/a", limit: 30, most: 6, weight: 0, open: 20, timed: 30, held: 2_000 },
    Kind { name: PRUNED, limit: 20, most: 5, weight: 0, open: 20, timed: 30, held: 1_000 },
];

/// The leaf of it that is deleted and created again. It is deleted only when nothing of it is in use, so a release by amount is never
/// one of an earlier generation.
pub(crate) const PRUNED: &str = "acme/web/b";

/// The name of the quota above another one.
pub(crate) fn parent_of(name: &str) -> Option<&str> {
    TREE.iter().any(|kind| kind.name == name).then(|| name.rsplit_once('/').map(|(above, _)| above)).flatten()
}

/// The position of the quota that only the clients of one region want at a time.
pub(crate) const SKEWED: usize = 3;

/// The position of the quota that is deleted and created again. Its grants are all tracked, because a release by amount
/// could not tell its generations apart.
pub(crate) const FLEETING: usize = 5;

/// The time for which a quota whose name is forgotten soon is used in each turn.
pub(crate) const PASSING: u64 = 3 * SECOND;

/// The number of such quotas that take turns, the usual one included.
pub(crate) const PASSERS: u64 = 4;

/// How the tokens of a quota move: by rounds among subsets where one is always short, and in some of those that are deleted or whose
/// limit changes.
pub(crate) fn charter_of(name: &str) -> Charter {
    let is_odd = name.bytes().last().is_some_and(|last| last % 2 == 1);
    let is_any = ["ready", PRUNED, METERS[1].name].contains(&name)
        || (is_odd && (name.starts_with("late") || name.starts_with("passing")));
    let agreement = if is_any { Agreement::Any } else { Agreement::Majority };
    let parent = parent_of(name).map(|above| Parent { length: above.len() as u16, generation: 0 });
    let refill = if METERS.iter().any(|meter| meter.name == name) { METER_REFILL } else { 0 };
    Charter { agreement, parent, refill }
}

/// The creation of a quota of the workload.
pub(crate) fn creation(name: &str, limit: i64) -> Operation {
    Operation::Create { quota: name.to_owned(), limit, charter: charter_of(name) }
}

/// Returns true if a quota is one of those whose limit changes, and of which tokens are released by amount.
pub(crate) fn is_elastic(name: &str) -> bool {
    name.starts_with("late") || TREE.iter().any(|kind| kind.name == name)
}

/// Returns true if a quota is one of those that are deleted and created again.
pub(crate) fn is_fleeting(name: &str) -> bool {
    name == KINDS[FLEETING].name || name.starts_with("passing")
}

/// True if a quota is one of those that clients make on the way, or of very many: a few stand for all of them.
pub(crate) fn is_one_of_many(name: &str) -> bool {
    name.starts_with("late") || name.starts_with("crowd")
}
