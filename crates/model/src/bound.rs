//! Another amount than tokens, agreed upon by the same code: slack under a bound that moves with time, as a base and a rate.
//!
//! Of a metric that is kept above a bound, each site has a part of the slack: what it may use up now, and how much more or less
//! that becomes in each second. Bases and rates each add up to those of the whole. A base is never negative, or the site's part
//! would be below its bound already; a rate may be, so that another site's can rise.

use std::fmt::{self, Display, Formatter};

use slackline_core::avantan::{Amount, Intent, Line, reallocate};
use slackline_core::codec::{Cursor, Malformed, put_i64};

use crate::avantan::{Allowed, Setup, Spent};

/// Slack under a bound that moves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Slack {
    /// What may be used up now.
    pub base: i64,
    /// What comes to it in a second; less than zero if it shrinks.
    pub rate: i64,
}

impl Amount for Slack {
    type Total = (i128, i128);

    fn total(amounts: impl Iterator<Item = Self>) -> (i128, i128) {
        amounts.fold((0, 0), |(base, rate), slack| (base + i128::from(slack.base), rate + i128::from(slack.rate)))
    }

    fn is_sound(self) -> bool {
        self.base >= 0
    }

    fn plus(self, other: Self) -> Self {
        Self { base: self.base.saturating_add(other.base), rate: self.rate.saturating_add(other.rate) }
    }

    fn minus(self, part: Self) -> Self {
        Self { base: self.base - part.base, rate: self.rate - part.rate }
    }

    fn given(before: Self, after: Self) -> Self {
        Self { base: (before.base - after.base).max(0), rate: (before.rate - after.rate).max(0) }
    }

    /// A site keeps of the base what it goes on using. The rate is all set aside: until the outcome the slack stands still.
    fn spare(self, kept: Self) -> Self {
        Self { base: self.base - kept.base.clamp(0, self.base), rate: self.rate }
    }

    /// Bases as tokens are divided; rates equally, the remainder to the first sites.
    fn reallocate(lines: &[Line<Self>], (base_total, rate_total): (i128, i128)) -> Vec<Self> {
        let base = |line: &Line<Self>| Line {
            site: line.site,
            incarnation: line.incarnation,
            share: line.share,
            held: line.held.base,
            kept: line.kept.base,
            away: line.away.base,
            used: None,
            closing: line.closing,
            needed: line.needed.base,
            wanted: line.wanted.base,
        };
        let bases: Vec<Line> = lines.iter().map(base).collect();
        let bases = reallocate(&bases, base_total);
        let rate = i64::try_from(rate_total).expect("rates of the model are small");

        let sites = lines.len() as i64;
        let (each, rest) = (rate.div_euclid(sites), rate.rem_euclid(sites));
        let parts = bases.into_iter().zip(0..);
        parts.map(|(base, at)| Slack { base, rate: each + i64::from(at < rest) }).collect()
    }

    fn encode(self, out: &mut Vec<u8>) {
        put_i64(out, self.base);
        put_i64(out, self.rate);
    }

    fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        Ok(Self { base: cursor.i64()?, rate: cursor.i64()? })
    }
}

impl Spent for Slack {
    const UNIT: Self = Slack { base: 1, rate: 0 };

    fn can_be_spent(self) -> bool {
        self.base > 0
    }

    /// A lost share takes its base with it. Its rate may have been of either sign.
    fn is_left_of(self, limit: Self) -> bool {
        self.base <= limit.base
    }
}

impl Display for Slack {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{}{:+}/s", self.base, self.rate)
    }
}

/// The setups that the project checks.
pub fn setups() -> Vec<Setup<Slack>> {
    let slack = |base, rate| Slack { base, rate };
    let base = Setup {
        name: "slack that moves: two leaders, one withdrawal, one grant, no crash",
        tokens: vec![slack(0, 2), slack(3, -3), slack(0, 0)],
        kept: Slack::default(),
        ballots: 2,
        rounds: 2,
        allowed: Allowed { acquires: 1, crashes: 0, losses: 0, withdrawals: 1 },
        losers: 0..3,
        leaders: 2,
        intents: vec![Intent::Move],
        creates: false,
        votes_only: false,
    };
    vec![
        Setup {
            name: "slack that moves: a part kept out of the offers, one crash, one disk lost",
            tokens: vec![slack(0, 2), slack(2, -3), slack(2, 0)],
            kept: slack(1, 0),
            allowed: Allowed { crashes: 1, losses: 1, ..base.allowed },
            ..base.clone()
        },
        base,
    ]
}

#[cfg(test)]
mod tests {
    use slackline_core::avantan::{Lifecycle, Membership, Row, Settled, Share, Table, Value};
    use slackline_core::id::{Incarnation, SiteId};

    use super::*;

    #[test]
    fn share_of_slack_survives_the_way_through_bytes() {
        let after = Slack { base: 5, rate: -7 };
        let nothing = Slack::default();
        let (site, incarnation) = (SiteId::new(1, 0), Incarnation(1));
        let row = Row { site, incarnation, share: 0, before: nothing, after, kept: nothing, away: nothing };
        let table = Table::from_parts(1, 1, Some(after), vec![Settled { instance: 1, row }]);
        let share = Share { tokens: after, number: 1, applied: 1, table, ..Share::default() };
        let mut bytes = Vec::new();
        share.encode(&mut bytes);
        let mut cursor = Cursor(&bytes);
        assert_eq!(Share::decode(&mut cursor, after), Ok(share));
        assert_eq!(cursor.end(), Ok(()));
    }

    #[test]
    fn value_that_makes_slack_of_either_part_is_not_acceptable() {
        let (site, incarnation, nothing) = (SiteId::new(0, 0), Incarnation(1), Slack::default());
        let created = Table::from_parts(1, 1, Some(Slack { base: 4, rate: 2 }), Vec::new());
        let fits = |before: Slack, after: Slack| {
            let row = Row { site, incarnation, share: 0, before, after, kept: nothing, away: nothing };
            Value { lifecycle: Lifecycle::Keep, membership: 0, label: Default::default(), rows: vec![row] }
                .fits(&created, Membership::first(site, Incarnation(1), &[site]))
        };
        let held = Slack { base: 4, rate: -2 };
        assert!(fits(held, held));
        assert!(!fits(held, Slack { base: 5, ..held }) && !fits(held, Slack { rate: -1, ..held }));
        let negative = Slack { base: -1, rate: 0 };
        assert!(!fits(negative, negative));
    }
}
