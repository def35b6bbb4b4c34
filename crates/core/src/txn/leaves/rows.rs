//! The rows of leaves: one for the leaf, and one for each of its clauses, which changes with every gift.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::clauses::Clauses;
use super::{Counts, Held, Leaf, Leaves, Making, Noted, PLANS, Stage, Timer, WHOLE, key};
use crate::clock::SECOND;
use crate::codec::{Cursor, Malformed, put_i64, put_u64};
use crate::gift::Totals;
use crate::id::Incarnation;
use crate::machine::Batch;
use crate::object::ObjectKey;
use crate::object::treaty::{Tree, put_terms, read_terms};
use crate::stats::trend::Trend;
use crate::turn::Here;
use crate::warranty::LEASE;

impl Leaves {
    /// Writes all rows of a leaf.
    pub(super) fn write(&self, batch: &mut Batch, making: &Making) {
        self.write_stage(batch, making);
        self.leaves[making].clauses.keys().for_each(|clause| self.write_clause(batch, making, clause));
    }

    /// Writes the row of a leaf that tells its stage. Those of its clauses, of which it may have thousands, stay as they are.
    pub(super) fn write_stage(&self, batch: &mut Batch, making: &Making) {
        let leaf = &self.leaves[making];
        let mut row = vec![match leaf.stage {
            Stage::Prepared | Stage::Kept | Stage::Retracting(_) => 0,
            Stage::Leaving(_) => 1,
            Stage::Free => 2,
        }];
        put_u64(&mut row, leaf.homes.len() as u64);
        for (home, incarnation) in &leaf.homes {
            put_u64(&mut row, u64::from(*home));
            put_u64(&mut row, u64::from(incarnation.0));
        }
        leaf.tree.encode(&mut row);
        batch.put(&key(making, WHOLE), &row);
    }

    /// Writes the row of a clause.
    pub(super) fn write_clause(&self, batch: &mut Batch, making: &Making, clause: u32) {
        let held = &self.leaves[making].clauses[clause];
        let mut row = Vec::new();
        put_terms(&mut row, &held.terms);
        put_i64(&mut row, held.noted);
        held.totals.encode(&mut row);
        batch.put(&key(making, u64::from(clause)), &row);
    }

    /// Restores a row of an earlier life. The rows of clauses come before the one of the leaf.
    pub(in crate::txn) fn restore(&mut self, row_key: &[u8], row: &[u8]) -> Result<(), Malformed> {
        let mut cursor = Cursor(&row_key[1..]);
        let making = (ObjectKey::decode(&mut cursor)?, cursor.be_u64()?);
        let clause = cursor.be_u64()?;
        cursor.end()?;
        let empty = || Leaf {
            stage: Stage::Kept,
            homes: Vec::new(),
            tree: Tree::Flat,
            clauses: Clauses::default(),
            asking: None,
            pressed: BTreeMap::new(),
            plans: PLANS,
            gave_at: 0,
            reported: BTreeMap::new(),
            gave: BTreeMap::new(),
            counts: Counts::default(),
        };
        if !self.leaves.contains(&making) {
            self.leaves.insert(making.clone(), empty());
        }
        let leaf = self.leaves.get_mut(&making).expect("it is there");
        let mut cursor = Cursor(row);
        if clause == WHOLE {
            leaf.stage = match cursor.u8()? {
                0 => Stage::Kept,
                // The lease begins again: how much of it the earlier life had waited is not known.
                1 => Stage::Leaving(u64::MAX),
                2 => Stage::Free,
                _ => return Err(Malformed),
            };
            let home = |cursor: &mut Cursor| {
                Ok((u16::try_from(cursor.u64()?).map_err(|_| Malformed)?, Incarnation(cursor.u32()?)))
            };
            leaf.homes = (0..cursor.u64()?).map(|_| home(&mut cursor)).collect::<Result<_, _>>()?;
            leaf.tree = Tree::decode(&mut cursor)?;
            return cursor.end();
        }

        let (terms, noted, totals) = (read_terms(&mut cursor)?, cursor.i64()?, Totals::decode(&mut cursor)?);
        cursor.end()?;
        let held = Held::new(terms, noted, totals, Trend::default());
        let clause = u32::try_from(clause).map_err(|_| Malformed)?;
        leaf.clauses.insert(clause, held);
        Ok(())
    }

    /// The names of all counters on which restored leaves rest.
    pub(in crate::txn) fn counters(&self) -> BTreeSet<String> {
        let held = self.leaves.iter().flat_map(|(_, leaf)| leaf.clauses.iter().map(|(_, held)| held));
        held.flat_map(|held| held.terms.iter().map(|term| term.name.clone())).collect()
    }

    /// All rows are restored, and this is what the counters have come to.
    pub(in crate::txn) fn restored(&mut self, counts: &FxHashMap<String, i64>) {
        let makings: Vec<Making> = self.leaves.iter().map(|(making, _)| making.clone()).collect();
        for making in makings {
            let (_, leaf) = self.leaves.remove(&making).expect("listed above");
            for term in leaf.clauses.iter().map(|(_, held)| held).flat_map(|held| &held.terms) {
                let count = counts[&term.name];
                self.noted.entry(term.name.clone()).or_insert_with(|| Noted { count, ..Noted::default() });
            }
            self.insert(making, leaf);
        }
    }

    /// The site serves, in this start.
    pub(in crate::txn) fn resume(&mut self, here: &Here) {
        let makings: Vec<Making> = self.leaves.iter().map(|(making, _)| making.clone()).collect();
        for making in makings {
            let leaf = self.leaves.get_mut(&making).expect("listed above");
            for held in leaf.clauses.values_mut() {
                (held.trend, held.look_at) = (Trend::new(here.now.mono), here.now.mono);
            }
            if matches!(leaf.stage, Stage::Leaving(_)) {
                leaf.stage = Stage::Leaving(here.now.mono + LEASE + 2 * here.config.epsilon);
            }
            if matches!(leaf.stage, Stage::Leaving(_) | Stage::Free) {
                self.timers.insert((here.now.mono, Timer::Retract(making.clone())));
            }
            self.timers.insert((here.now.mono + SECOND, Timer::Confirm(making)));
        }
    }

    /// The keys of its rows.
    pub(in crate::txn) fn rows(&self) -> impl Iterator<Item = Vec<u8>> {
        let durable = self.leaves.iter().filter(|(_, leaf)| leaf.stage != Stage::Prepared);
        durable.flat_map(|(making, leaf)| {
            leaf.clauses.keys().map(u64::from).chain([WHOLE]).map(|clause| key(making, clause))
        })
    }

    /// Deletes a leaf's rows, and forgets it.
    pub(super) fn drop_leaf(&mut self, batch: &mut Batch, making: &Making) {
        let clauses: Vec<u32> = self.leaves[making].clauses.keys().collect();
        batch.delete(&key(making, WHOLE));
        clauses.into_iter().for_each(|clause| batch.delete(&key(making, u64::from(clause))));
        self.remove(making);
    }
}
