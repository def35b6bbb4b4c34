//! The clauses of a leaf, by position.
//!
//! Most leaves have one, and a home has thousands of leaves. So they lie side by side, and take no more room than they need: what a write
//! has to fetch from memory is what judging it costs.

use std::ops::Index;

use super::held::Held;
use crate::object::treaty::Term;

/// Clauses in the ascending order of their positions.
#[derive(Clone, Debug, Default)]
pub(super) struct Clauses(Vec<(u32, Held)>);

impl Clauses {
    fn find(&self, clause: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&clause, |(clause, _)| *clause)
    }

    /// Adds a clause, in place of the one with its position.
    pub(super) fn insert(&mut self, clause: u32, held: Held) {
        match self.find(clause) {
            Ok(at) => self.0[at].1 = held,
            Err(at) => {
                // Most leaves have no second one.
                if self.0.is_empty() {
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (clause, held));
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, clause: u32) -> Option<&Held> {
        self.find(clause).ok().map(|at| &self.0[at].1)
    }

    pub(super) fn get_mut(&mut self, clause: u32) -> Option<&mut Held> {
        self.find(clause).ok().map(|at| &mut self.0[at].1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Held)> {
        self.0.iter().map(|(clause, held)| (*clause, held))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(clause, _)| *clause)
    }

    /// The terms of each.
    pub(super) fn terms(&self) -> impl ExactSizeIterator<Item = &[Term]> {
        self.0.iter().map(|(_, held)| &held.terms[..])
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.0.iter_mut().map(|(_, held)| held)
    }
}

impl FromIterator<(u32, Held)> for Clauses {
    fn from_iter<I: IntoIterator<Item = (u32, Held)>>(clauses: I) -> Self {
        let mut all: Vec<(u32, Held)> = clauses.into_iter().collect();
        all.sort_by_key(|(clause, _)| *clause);
        all.dedup_by_key(|(clause, _)| *clause);
        all.shrink_to_fit();
        Self(all)
    }
}

impl Index<u32> for Clauses {
    type Output = Held;

    fn index(&self, clause: u32) -> &Held {
        self.get(clause).expect("a clause that is there")
    }
}
