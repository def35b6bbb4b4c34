//! Tokens of a quota, as the amount that sites agree about.

use super::amount::{Accounts, Amount};
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

    fn wrapping_plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn wrapping_minus(self, earlier: Self) -> Self {
        self.wrapping_sub(earlier)
    }

    fn given(before: Self, after: Self) -> Self {
        (before - after).max(0)
    }

    fn spare(self, kept: Self) -> Self {
        self - kept.clamp(0, self)
    }

    fn reallocate(lines: &[Line], total: i128) -> Vec<Self> {
        reallocate(lines, total)
    }

    /// Shares and what is in use add up to the limit and the excess, before and after. So what the two lose, the shares lose, as far
    /// as the round has taken something from them; and the excess is what they could not pay.
    fn resize(before: i128, limit: Self, excess: Self, to: Self) -> Option<(i128, Self)> {
        let over = i128::from(limit) + i128::from(excess) - i128::from(to);
        let paid = over.min(before);
        Some((before - paid, (over - paid).try_into().ok()?))
    }

    /// What is there and under way is counted modulo 2⁶⁴ by each site, and comes to no less than nothing and no more than all. What was spent
    /// has no such bounds, so it is counted out: else a word might be taken that brings back what is in use.
    fn account(all: i128, lines: &[Line]) -> Option<Accounts<Self>> {
        let (mut there, mut spent) = (0i64, 0i128);
        for line in lines {
            spent += i128::from(line.used?);
            there = [line.held, line.kept, line.away].into_iter().fold(there, i64::wrapping_add);
        }
        let lost = all - i128::from(there) - spent;
        Some(Accounts { lost: lost.try_into().ok()?, spent: spent.try_into().ok()? })
    }

    fn encode(self, out: &mut Vec<u8>) {
        put_i64(out, self);
    }

    fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        cursor.i64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_that_come_to_more_than_fits_say_nothing() {
        let line = |held, used| Line { held, used: Some(used), ..Line::default() };
        let all = i128::from(i64::MAX);
        let lines = [line(3, i64::MAX), line(4, 5)];
        assert_eq!(i64::account(all, &lines), None);

        // One more took back what the first had granted.
        let lines = [line(3, i64::MAX), line(4, 5), line(0, -i64::MAX)];
        assert_eq!(i64::account(all, &lines), Some(Accounts { lost: i64::MAX - 12, spent: 5 }));
    }
}
