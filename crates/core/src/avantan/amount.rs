//! What an entity's shares are counted in: what a site may offer of its share, whether a value conserves, and how a share changes
//! by it. The agreement asks nothing else of an amount, so that more than tokens can be agreed upon.

use std::fmt::Debug;
use std::hash::Hash;

use super::value::Line;
use crate::codec::{Cursor, Malformed};

/// What the lines of all sites come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accounts<A> {
    /// What is not accounted for by what is there ([`Line::held`], [`Line::kept`]), under way ([`Line::away`]) and spent
    /// ([`Line::used`]): lost incarnations had it, or it was spent there.
    pub lost: A,
    /// What is spent less what came back, at the sites that are there.
    pub spent: A,
}

/// An amount that sites share. Its default is nothing: the share of a site that was given none.
///
/// Tokens (`i64`) are the amount of quotas. The model check has another one, of two parts of which one may be negative.
pub trait Amount: Copy + Ord + Hash + Debug + Default {
    /// A sum of amounts that cannot overflow.
    type Total: PartialEq;

    /// The sum of amounts that sites report. They may be senseless, and still must not add up by chance.
    fn total(amounts: impl Iterator<Item = Self>) -> Self::Total;

    /// True if a site may hold it.
    fn is_sound(self) -> bool;

    /// Adds what comes to a share.
    fn plus(self, other: Self) -> Self;

    /// Takes away what is a part of it.
    fn minus(self, part: Self) -> Self;

    /// Adds to a running total, which goes on from its least value when it is past its largest: only differences of such totals count.
    fn wrapping_plus(self, other: Self) -> Self {
        self.plus(other)
    }

    /// The difference of two running totals.
    fn wrapping_minus(self, earlier: Self) -> Self {
        self.minus(earlier)
    }

    /// What a row that puts `after` in the place of `before` takes away, at least nothing. With both exchanged: what it adds.
    fn given(before: Self, after: Self) -> Self;

    /// The part of a share that a round may have if the site wants to keep `kept` of it.
    fn spare(self, kept: Self) -> Self;

    /// The amount that each line's site shall hold in place of what it set aside: in the order of the lines, each sound, with
    /// this total.
    fn reallocate(lines: &[Line<Self>], total: Self::Total) -> Vec<Self>;

    /// What becomes of the amount `before` that a round has taken from the shares, where `limit` and `excess` are to become the
    /// limit `to`: what the round gives back to the shares, and what is in excess then. None if that cannot be. An amount
    /// whose limit never changes has no excess.
    fn resize(before: Self::Total, limit: Self, excess: Self, to: Self) -> Option<(Self::Total, Self)> {
        (limit == to && excess == Self::default()).then_some((before, excess))
    }

    /// What `lines`, one of every site, say of an amount of which shares and what is spent come to `all`. None if they do not tell,
    /// or that cannot be said of such an amount.
    fn account(_all: Self::Total, _lines: &[Line<Self>]) -> Option<Accounts<Self>> {
        None
    }

    /// Appends it to a row on storage.
    fn encode(self, out: &mut Vec<u8>);

    /// Reads what [`Amount::encode`] wrote.
    fn decode(cursor: &mut Cursor) -> Result<Self, Malformed>;
}
