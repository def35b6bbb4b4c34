//! Tokens of a quota, as the amount that sites agree about.

use super::amount::{Amount, Bound};
use super::reallocate::reallocate;
use super::value::Line;
use crate::codec::{Cursor, Malformed, put_i64};

impl Amount for i64 {
    type Total = i128;

    fn total(amounts: impl Iterator<Item = Self>) -> i128 {
        amounts.map(i128::from).sum()
    }

    fn is_sound(self) -> bool {
        self >= 0
    }

    /// Beyond `i64` only if clients released what they never had; the books then show it.
    fn plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }

    fn minus(self, part: Self) -> Self {
        self - part
    }

    fn spare(self, kept: Self) -> Self {
        self - kept.clamp(0, self)
    }

    fn reallocate(lines: &[Line], bound: Bound) -> Vec<Self> {
        reallocate(lines, bound)
    }

    fn encode(self, out: &mut Vec<u8>) {
        put_i64(out, self);
    }

    fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        cursor.i64()
    }
}
