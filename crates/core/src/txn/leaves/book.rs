//! The leaves at a home, in the order of their makings; each has a number as well.
//!
//! A write to a counter looks its leaves up, and it does so by number: a treaty's name is long, and like those of its neighbours
//! for most of its length. To find it among ten thousand took nearly half of the time in which a write was judged.

use std::collections::BTreeMap;
use std::ops::Index;

use super::held::{Making, Number};
use super::leaf::Leaf;
use crate::object::ObjectKey;

/// The leaves.
#[derive(Clone, Debug, Default)]
pub(super) struct Book {
    /// The leaves, each with its making, and the places of those that are gone.
    leaves: Vec<Option<(Making, Leaf)>>,
    /// The numbers of those that are there.
    numbers: BTreeMap<Making, Number>,
    /// The places that are free.
    free: Vec<Number>,
}

impl Book {
    /// Adds a leaf of a making that is not there; returns its number.
    pub(super) fn insert(&mut self, making: Making, leaf: Leaf) -> Number {
        let number = self.free.pop().unwrap_or_else(|| {
            self.leaves.push(None);
            self.leaves.len() - 1
        });
        let before = self.numbers.insert(making.clone(), number);
        assert!(before.is_none(), "a making is noted once");
        self.leaves[number] = Some((making, leaf));
        number
    }

    /// Removes a leaf; none if it is not there.
    pub(super) fn remove(&mut self, making: &Making) -> Option<(Number, Leaf)> {
        let number = self.numbers.remove(making)?;
        let (_, leaf) = self.leaves[number].take().expect("a number names a leaf that is there");
        self.free.push(number);
        Some((number, leaf))
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn contains(&self, making: &Making) -> bool {
        self.numbers.contains_key(making)
    }

    pub(super) fn get(&self, making: &Making) -> Option<&Leaf> {
        self.numbers.get(making).map(|number| self.of(*number).1)
    }

    pub(super) fn get_mut(&mut self, making: &Making) -> Option<&mut Leaf> {
        let number = *self.numbers.get(making)?;
        Some(self.of_mut(number))
    }

    /// The leaf of this number, which is there, and its making.
    pub(super) fn of(&self, number: Number) -> (&Making, &Leaf) {
        let (making, leaf) = self.leaves[number].as_ref().expect("a number names a leaf that is there");
        (making, leaf)
    }

    /// The leaf of this number, which is there.
    pub(super) fn of_mut(&mut self, number: Number) -> &mut Leaf {
        &mut self.leaves[number].as_mut().expect("a number names a leaf that is there").1
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Making, &Leaf)> {
        self.numbers.values().map(|number| self.of(*number))
    }

    /// The makings of a treaty.
    pub(super) fn makings_of(&self, treaty: &ObjectKey) -> impl Iterator<Item = &Making> {
        let range = (treaty.clone(), 0)..=(treaty.clone(), u64::MAX);
        self.numbers.range(range).map(|(making, _)| making)
    }
}

impl Index<&Making> for Book {
    type Output = Leaf;

    fn index(&self, making: &Making) -> &Leaf {
        self.get(making).expect("a making that is there")
    }
}
