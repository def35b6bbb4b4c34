//! The parts that wait for slack, found by the treaty of which they lack it: when stock runs out there may be thousands.

use std::collections::{BTreeMap, BTreeSet};

use super::held::Making;
use crate::clock::Now;
use crate::id::{OperationId, SiteId};
use crate::object::ObjectKey;

/// A part that waits for slack.
#[derive(Clone, Debug, Default)]
pub(super) struct Want {
    /// Since when it waits.
    pub(super) since: Now,
    /// This site.
    pub(super) me: SiteId,
    /// What it takes of each clause of which there is not enough for it, a positive amount; and whether it puts a value.
    pub(super) takes: BTreeMap<(Making, u32), (i128, bool)>,
    /// The treaties that it relies upon: they are not retracted for it.
    pub(super) relies: Vec<ObjectKey>,
    /// True if it was to be refused, and another one was first.
    pub(super) was_spared: bool,
    /// The treaties that are to be retracted for it, once it was looked at again: what it read may have changed while it waited.
    pub(super) doubted: BTreeSet<Making>,
    /// Of those, the ones that may be retracted: it was looked at since, and still lacks their slack.
    pub(super) confirmed: BTreeSet<Making>,
}

impl Want {
    /// True if it lacks slack of some of these clauses.
    pub(super) fn lacks_some(&self, making: &Making, clauses: &BTreeSet<u32>) -> bool {
        self.takes.keys().any(|(of, clause)| of == making && clauses.contains(clause))
    }

    /// True if it relies on a treaty.
    pub(super) fn relies_on(&self, treaty: &ObjectKey) -> bool {
        self.relies.contains(treaty)
    }
}

/// The parts that wait for slack.
#[derive(Clone, Debug, Default)]
pub(super) struct Wants {
    /// What each waits for.
    parts: BTreeMap<OperationId, Want>,
    /// The same by what they lack. No entry is empty.
    of: BTreeMap<Making, Shortage>,
}

/// What parts lack of one treaty.
#[derive(Clone, Debug, Default)]
struct Shortage {
    /// The parts that lack something of it; never empty.
    parts: BTreeSet<OperationId>,
    /// What those that add take of each clause in sum, with their number; no number is zero.
    sums: BTreeMap<u32, (u32, i128)>,
    /// What those that put a value take of each clause; no entry is empty.
    puts: BTreeMap<u32, BTreeSet<(i128, OperationId)>>,
}

impl Wants {
    /// True if no part waits.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// What a part waits for, if it does.
    pub(super) fn get(&self, id: OperationId) -> Option<&Want> {
        self.parts.get(&id)
    }

    /// A part waits from now on; or for something else than before.
    pub(super) fn insert(&mut self, id: OperationId, want: Want) {
        self.remove(id);
        for ((making, clause), (amount, is_put)) in &want.takes {
            assert!(*amount > 0, "{id} lacks slack, and takes {amount}");
            let shortage = self.of.entry(making.clone()).or_default();
            shortage.parts.insert(id);
            if *is_put {
                shortage.puts.entry(*clause).or_default().insert((*amount, id));
                continue;
            }
            let (number, sum) = shortage.sums.entry(*clause).or_default();
            (*number, *sum) = (*number + 1, *sum + *amount);
        }
        self.parts.insert(id, want);
    }

    /// A part waits no more.
    pub(super) fn remove(&mut self, id: OperationId) -> Option<Want> {
        let want = self.parts.remove(&id)?;
        for ((making, clause), (amount, is_put)) in &want.takes {
            let shortage = self.of.get_mut(making).expect("the part is listed there");
            if *is_put {
                let puts = shortage.puts.get_mut(clause).expect("the part is counted there");
                puts.remove(&(*amount, id));
                if puts.is_empty() {
                    shortage.puts.remove(clause);
                }
            } else {
                let (number, sum) = shortage.sums.get_mut(clause).expect("the part is counted there");
                (*number, *sum) = (*number - 1, *sum - *amount);
                if *number == 0 {
                    shortage.sums.remove(clause);
                }
            }

            // It may lack slack of several clauses.
            shortage.parts.remove(&id);
            if shortage.sums.is_empty() && shortage.puts.is_empty() {
                assert!(shortage.parts.is_empty(), "nothing is lacking, and parts wait: {shortage:?}");
                self.of.remove(making);
            }
        }

        Some(want)
    }

    /// A part was to be refused, and another one was first.
    pub(super) fn spare(&mut self, id: OperationId) {
        self.parts.get_mut(&id).expect("listed by the caller").was_spared = true;
    }

    /// A treaty is to be retracted for a part that waits, once it was looked at again.
    pub(super) fn doubt(&mut self, id: OperationId, making: &Making) {
        self.parts.get_mut(&id).expect("listed by the caller").doubted.insert(making.clone());
    }

    /// What the parts take of each clause of a treaty: those that add in sum, or the most that one takes which puts a value, if that is more.
    pub(super) fn taken(&self, making: &Making) -> BTreeMap<u32, i128> {
        let Some(Shortage { sums, puts, .. }) = self.of.get(making) else { return BTreeMap::new() };
        let mut taken: BTreeMap<u32, i128> = sums.iter().map(|(clause, (_, sum))| (*clause, *sum)).collect();
        for (clause, puts) in puts {
            let most = puts.last().map_or(0, |(amount, _)| *amount);
            let sum = taken.entry(*clause).or_default();
            *sum = most.max(*sum);
        }
        taken
    }

    /// The parts that lack slack of a treaty.
    pub(super) fn of(&self, making: &Making) -> impl Iterator<Item = (OperationId, &Want)> {
        let ids = self.of.get(making).into_iter().flat_map(|shortage| &shortage.parts);
        ids.map(|id| (*id, &self.parts[id]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_by_what_they_lack_as_long_as_they_wait() {
        let making = |nonce| (ObjectKey::new(0, "t"), nonce);
        let id = |sequence| OperationId { sequence, ..OperationId::default() };
        let want = |takes: &[(u64, u32, i128)]| {
            let takes = takes.iter().map(|(nonce, clause, amount)| ((making(*nonce), *clause), (*amount, false)));
            Want { takes: takes.collect(), ..Want::default() }
        };
        let mut wants = Wants::default();
        wants.insert(id(1), want(&[(1, 0, 5), (1, 3, 7)]));
        wants.insert(id(2), want(&[(1, 3, 1), (2, 0, 9)]));
        assert_eq!(wants.taken(&making(1)), BTreeMap::from([(0, 5), (3, 8)]));
        assert_eq!(wants.of(&making(1)).map(|(id, _)| id.sequence).collect::<Vec<_>>(), [1, 2]);

        // It takes less than before, and of one treaty no more.
        wants.insert(id(1), want(&[(1, 3, 2)]));
        assert_eq!(wants.taken(&making(1)), BTreeMap::from([(3, 3)]));
        wants.insert(id(2), want(&[(2, 0, 4)]));
        assert_eq!(wants.taken(&making(1)), BTreeMap::from([(3, 2)]));
        assert_eq!(wants.of(&making(1)).map(|(id, _)| id.sequence).collect::<Vec<_>>(), [1]);

        // Those that put a value take no more than one of them.
        let put = |amount| Want { takes: BTreeMap::from([((making(1), 3), (amount, true))]), ..Want::default() };
        for (sequence, amount) in [(3, 50), (4, 70), (5, 60)] {
            wants.insert(id(sequence), put(amount));
        }
        assert_eq!(wants.taken(&making(1)), BTreeMap::from([(3, 70)]));
        for sequence in [4, 3, 5] {
            wants.remove(id(sequence));
        }
        assert_eq!(wants.taken(&making(1)), BTreeMap::from([(3, 2)]));

        assert!(wants.remove(id(1)).is_some() && wants.remove(id(1)).is_none());
        assert!(wants.taken(&making(1)).is_empty() && !wants.is_empty());
        wants.remove(id(2));
        assert!(wants.is_empty() && wants.of.is_empty());
    }
}
