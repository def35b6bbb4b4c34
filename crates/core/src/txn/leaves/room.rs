//! What the leaves of a home take of its memory and of its log: as much as they may, and no more.

use crate::bounds::ENTRY_BYTES;
use crate::object::ObjectKey;
use crate::object::treaty::Term;

/// The most clauses of all leaves at a home. Each takes some 400 bytes of memory, and they are back before a site that starts serves.
const CLAUSES: usize = 1 << 18;
/// The most bytes of the names of all their rows, each under the name of its treaty. All of them may go in one call, and what that writes has
/// to fit a segment of the log.
const NAMES: usize = 32 << 20;
/// The most bytes of memory of all their terms, about: each with the name of its counter, which may be long.
const TERMS: usize = 256 << 20;

/// What leaves take: of each of these there is so much at a home at the most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Room {
    /// Clauses, at most [`CLAUSES`].
    clauses: usize,
    /// Bytes of the names of rows, at most [`NAMES`].
    names: usize,
    /// Bytes of memory of terms, about; at most [`TERMS`].
    terms: usize,
}

impl Room {
    /// What a leaf of a treaty takes that has these clauses.
    pub(super) fn of<'a>(treaty: &ObjectKey, clauses: impl ExactSizeIterator<Item = &'a [Term]>) -> Self {
        let count = clauses.len();
        // A term stands in its clause and names its clause to its counter, which is found by the name once more.
        let term = |term: &Term| 2 * (size_of::<Term>() + term.name.len() + ENTRY_BYTES);
        Self {
            clauses: count,
            names: (count + 1) * (treaty.name.len() + ENTRY_BYTES),
            terms: clauses.flatten().map(term).sum(),
        }
    }

    /// This and more.
    pub(super) fn and(self, more: Self) -> Self {
        Self { clauses: self.clauses + more.clauses, names: self.names + more.names, terms: self.terms + more.terms }
    }

    /// This without what was a part of it.
    pub(super) fn without(self, less: Self) -> Self {
        Self { clauses: self.clauses - less.clauses, names: self.names - less.names, terms: self.terms - less.terms }
    }

    /// True if it is more than there may be.
    pub(super) fn is_too_much(self) -> bool {
        self.clauses > CLAUSES || self.names > NAMES || self.terms > TERMS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few clauses may have many terms, and long names.
    #[test]
    fn room_of_leaves_counts_what_terms_take() {
        let treaty = ObjectKey::new(0, "\u{1}treaty/t");
        let terms = |length: usize| vec![Term { name: "n".repeat(length), weight: 1, is_log: false }; 4096];
        let of = |length: usize| Room::of(&treaty, [&terms(length)[..]].into_iter());
        let several = |count: usize, length: usize| (0..count).fold(Room::default(), |sum, _| sum.and(of(length)));
        assert!(!several(60, 400).is_too_much() && several(70, 512).is_too_much());
        assert!(several(70, 512).terms - several(69, 512).terms == of(512).terms);
        assert_eq!(of(9).and(of(30)).without(of(30)), of(9));
    }
}
