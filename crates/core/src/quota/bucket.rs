//! What a site keeps of a quota that refills, and the arithmetic of it; see [`refill`](super::refill).

use crate::clock::SECOND;
use crate::codec::{Cursor, Malformed, put_i64};
use crate::gift::Totals;
use crate::id::Incarnation;

/// The rate is in millionths of a token a second, and time in microseconds: so many of their product are one token.
pub(super) const TOKEN: u128 = 1_000_000_000_000;

/// A site should have a backlog for so long, in microseconds, unless a single token takes longer.
pub(super) const AHEAD: u64 = 4 * SECOND;

/// What a site keeps of a quota that refills, besides what every quota has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Refill {
    /// The backlog received from other sites less that handed over to them, in this generation and incarnation; durable.
    pub(super) carried: i64,
    /// The totals of backlog handed over between this site and each other; durable.
    pub(super) handed: Totals,
    /// The time up to which it was refilled, by the slower of the site's clocks since it was opened.
    until: u64,
    /// The part of a token that was refilled besides, of [`TOKEN`].
    part: u128,
}

impl Refill {
    /// True if nothing of it has to be on storage.
    pub(super) fn is_empty(&self) -> bool {
        self.carried == 0 && self.handed == Totals::default()
    }

    /// Appends what is durable of it to a row.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_i64(out, self.carried);
        self.handed.encode(out);
    }

    /// Reads what [`Refill::encode`] wrote.
    pub(super) fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        Ok(Self { carried: cursor.i64()?, handed: Totals::decode(cursor)?, ..Self::default() })
    }

    /// Takes what `rate` brings in the time up to `now` out of `backlog`. Returns the number of tokens.
    pub(super) fn advance(&mut self, now: u64, rate: u64, backlog: i64) -> i64 {
        // What was refilled up to a time is not refilled again, should that time come twice.
        let elapsed = now.saturating_sub(self.until);
        self.until = self.until.max(now);
        let refilled = self.part + u128::from(elapsed) * u128::from(rate);
        let tokens = (refilled / TOKEN).min(backlog.max(0) as u128);

        // A full bucket stays full: what there is no backlog for is not saved up.
        self.part = if tokens == backlog.max(0) as u128 { 0 } else { refilled - tokens * TOKEN };
        tokens as i64
    }
}

/// One of `members` equal parts of a rate; what cannot be divided goes to the first ones.
pub(super) fn rate_of(rate: u64, members: usize, position: usize) -> u64 {
    let members = members as u64;
    rate / members + u64::from((position as u64) < rate % members)
}

/// The backlog that a site with this part of the rate should have, in tokens: what it refills soon, but no larger part of the limit than it has
/// of the rate, or all there is might be with one site whose part alone does not suffice. At least one, if it has a part.
pub(super) fn wanted(part: u64, rate: u64, limit: i64) -> i64 {
    let soon = u128::from(part) * u128::from(AHEAD) / TOKEN;
    let its_part = limit.max(0) as u128 * u128::from(part) / u128::from(rate.max(1));
    soon.min(its_part).clamp(u128::from(part > 0), i64::MAX as u128) as i64
}

/// What a member last said of its backlog.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerBacklog {
    /// What it has yet to refill.
    pub(super) here: i64,
    /// The highest total that it has said to have received from this site, in the incarnation `said_by`.
    pub(super) received: u128,
    /// The incarnation of it that did.
    pub(super) said_by: Incarnation,
}
