//! Gifts: running totals by which one site gives to another, one way, with no round and no clock in their safety.
//!
//! A donor lowers what it has and raises the total that it has ever given to the receiver, in one durable write; then it tells
//! the receiver the total. A total only grows while it lasts. It is never acknowledged, and may be lost, repeated and
//! reordered: the receiver takes the highest that it has seen, durably, before it spends. So a gift is taken once, however
//! often it is told, and what is lost on the way is made up for by any later telling.
//!
//! ```text
//!   donor                                   receiver                durable before it is sent, or spent
//!     │ has − 3, given = 3                                          has, given
//!     │─given 3──────────────╳
//!     │ has − 4, given = 7
//!     │─given 7───────────────────────────▶│  received = 7, has + 7  received, has
//!     │─given 3 (late)────────────────────▶│  nothing: 3 ≤ 7
//! ```
//!
//! # Incarnations
//!
//! A total belongs to one incarnation of each end. A receiver with new storage has forgotten what it took, so a total of before
//! would be taken a second time: the donor begins another for it at zero, and what the lost one had not taken is lost with
//! it. The receiver does the same for a donor with new storage. Neither end goes back to an incarnation that is gone: the
//! present total would then begin again, below what the other end has taken of it, and be ignored.
//!
//! Conservation: over all sites, what they have and Σ (given − received) do not change by a gift.
//!
//! When to give, and how much, is the owner's to say: for quotas see [`crate::quota`].

use crate::codec::{Cursor, Malformed, put_u64, put_u128};
use crate::id::Incarnation;

/// A running total of gifts, and the incarnation of the other end that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Total {
    /// The incarnation of the member that was given to or received from; zero if that never happened.
    pub incarnation: Incarnation,
    /// The sum of all gifts. Never falls while the incarnation is the same.
    pub amount: u128,
}

/// The totals between a site and each other member, for one entity.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Totals {
    /// The totals given, by position of the receiver; empty until the first gift.
    given: Vec<Total>,
    /// The totals received, by position of the donor; empty until the first gift.
    received: Vec<Total>,
}

impl Totals {
    /// Gives `amount` to the member at position `to`, whose present incarnation is `receiver`. The caller takes it from what
    /// the site has, in the same write.
    pub fn give(&mut self, to: usize, receiver: Incarnation, amount: u64) {
        let total = at_mut(&mut self.given, to);

        // A total that began again for an incarnation that is gone would begin again for the present one, below what that has
        // taken. But nothing of an incarnation is heard once a later one is known, and who is known is durable before
        // anything is given to it.
        assert!(total.incarnation <= receiver, "a gift to an incarnation that is gone");

        // What an earlier incarnation did not take is lost with it, and counts as in use.
        if total.incarnation != receiver {
            *total = Total { incarnation: receiver, amount: 0 };
        }

        total.amount += u128::from(amount);
    }

    /// The part of the total `given` by the member at position `from`, in its incarnation `donor`, that was not received yet;
    /// zero if there is none.
    pub fn missing(&self, from: usize, donor: Incarnation, given: u128) -> u128 {
        let received = self.received(from);
        if received.incarnation > donor {
            return 0;
        }

        // The highest total counts, not the sum of what is told: gifts are told again, and late.
        given.saturating_sub(if received.incarnation == donor { received.amount } else { 0 })
    }

    /// Receives what is missing of that total. The caller adds [`Totals::missing`] to what the site has, in the same write.
    pub fn receive(&mut self, from: usize, donor: Incarnation, given: u128) {
        assert!(self.missing(from, donor, given) > 0, "a gift is received that was received before");
        *at_mut(&mut self.received, from) = Total { incarnation: donor, amount: given };
    }

    /// The total given to the member at `position`.
    pub fn given(&self, position: usize) -> Total {
        self.given.get(position).copied().unwrap_or_default()
    }

    /// The total received from the member at `position`.
    pub fn received(&self, position: usize) -> Total {
        self.received.get(position).copied().unwrap_or_default()
    }

    /// The part of what was given to the member at position `to`, in its incarnation `present`, that is not in the total
    /// `received` that it has reported: it may still be under way, or the report.
    pub fn under_way(&self, to: usize, present: Incarnation, received: u128) -> u128 {
        let given = self.given(to);
        if given.incarnation == present { given.amount.saturating_sub(received) } else { 0 }
    }

    /// All that was given to members in the incarnations `present`, by position, less all that was received from them, modulo
    /// 2⁶⁴: over all sites it adds up to what is under way.
    pub fn away(&self, present: impl Fn(usize) -> Incarnation) -> i64 {
        let sum = |totals: &[Total]| {
            let totals = totals.iter().enumerate().filter(|(position, total)| total.incarnation == present(*position));
            totals.fold(0u64, |sum, (_, total)| sum.wrapping_add(total.amount as u64))
        };
        sum(&self.given).wrapping_sub(sum(&self.received)) as i64
    }

    /// Appends the totals to a row.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for totals in [&self.given, &self.received] {
            put_u64(out, totals.len() as u64);
            for total in totals {
                put_u64(out, u64::from(total.incarnation.0));
                put_u128(out, total.amount);
            }
        }
    }

    /// Reads what [`Totals::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let mut totals = || -> Result<Vec<Total>, Malformed> {
            let total =
                |cursor: &mut Cursor| Ok(Total { incarnation: Incarnation(cursor.u32()?), amount: cursor.u128()? });
            (0..cursor.u64()?).map(|_| total(cursor)).collect()
        };
        Ok(Self { given: totals()?, received: totals()? })
    }
}

/// The total at a position, which is made if it is not there yet.
fn at_mut(totals: &mut Vec<Total>, position: usize) -> &mut Total {
    if totals.len() <= position {
        totals.resize(position + 1, Total::default());
    }
    &mut totals[position]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Rng;

    /// One end: what it has, and its totals.
    struct Site {
        incarnation: Incarnation,
        has: u64,
        totals: Totals,
    }

    /// A total as it is told: from whom, to whom, and how much.
    #[derive(Clone, Copy)]
    struct Told {
        from: (usize, Incarnation),
        to: (usize, Incarnation),
        given: u128,
    }

    struct World {
        sites: Vec<Site>,
        /// What is under way. It may be delivered at any time, never, or again.
        network: Vec<Told>,
        /// The highest incarnation of each site that each has heard of.
        known: Vec<Vec<Incarnation>>,
        /// What was lost with storage: what sites had, and what they were given and had not taken, or had given and was not taken.
        lost: i128,
    }

    impl World {
        fn new(sites: usize, each: u64) -> Self {
            let site = |_| Site { incarnation: Incarnation(1), has: each, totals: Totals::default() };
            let known = vec![vec![Incarnation(1); sites]; sites];
            Self { sites: (0..sites).map(site).collect(), network: Vec::new(), known, lost: 0 }
        }

        fn give(&mut self, from: usize, to: usize, amount: u64) {
            let receiver = self.known[from][to];
            // A gift to an incarnation that the donor does not know to be gone is lost at once.
            if receiver < self.sites[to].incarnation {
                self.lost += i128::from(amount);
            }
            self.sites[from].has -= amount;
            self.sites[from].totals.give(to, receiver, amount);
            self.tell(from, to);
        }

        fn tell(&mut self, from: usize, to: usize) {
            let total = self.sites[from].totals.given(to);
            let told =
                Told { from: (from, self.sites[from].incarnation), to: (to, total.incarnation), given: total.amount };
            self.network.push(told);
        }

        /// Delivers one of the messages under way, which may be delivered again.
        fn deliver(&mut self, which: usize) {
            let Told { from: (from, donor), to: (to, receiver), given } = self.network[which];
            // Nothing of an incarnation is heard once a later one is known.
            if donor < self.known[to][from] {
                return;
            }
            self.known[to][from] = donor;
            let site = &mut self.sites[to];
            if receiver != site.incarnation {
                return;
            }
            let missing = site.totals.missing(from, donor, given);
            if missing > 0 {
                site.totals.receive(from, donor, given);
                site.has += missing as u64;
                // It comes from storage that was lost meanwhile, and counted with that.
                if donor != self.sites[from].incarnation {
                    self.lost -= missing as i128;
                }
            }
            assert_eq!(self.sites[to].totals.missing(from, donor, given), 0, "a gift that was taken is missing again");
        }

        /// What was given by the present incarnation of one to the present one of the other, and was not taken yet.
        fn under_way(&self, from: usize, to: usize) -> i128 {
            let (donor, receiver) = (&self.sites[from], &self.sites[to]);
            let received = receiver.totals.received(from);
            let taken = if received.incarnation == donor.incarnation { received.amount } else { 0 };
            donor.totals.under_way(to, receiver.incarnation, taken) as i128
        }

        /// The storage of a site is lost, and new storage has taken its place.
        fn lose(&mut self, at: usize) {
            self.lost += i128::from(self.sites[at].has);
            for other in (0..self.sites.len()).filter(|other| *other != at) {
                self.lost += self.under_way(at, other) + self.under_way(other, at);
            }
            let incarnation = Incarnation(self.sites[at].incarnation.0 + 1);
            self.sites[at] = Site { incarnation, has: 0, totals: Totals::default() };
            self.known[at] = self.sites.iter().map(|site| site.incarnation).collect();
        }

        fn sum(&self) -> i128 {
            let pairs = (0..self.sites.len()).flat_map(|from| (0..self.sites.len()).map(move |to| (from, to)));
            let under_way: i128 =
                pairs.filter(|(from, to)| from != to).map(|(from, to)| self.under_way(from, to)).sum();
            self.sites.iter().map(|site| i128::from(site.has)).sum::<i128>() + under_way + self.lost
        }
    }

    #[test]
    fn gifts_that_are_lost_repeated_and_reordered_are_conserved_through_lost_storage() {
        for seed in 1..=60 {
            let (mut rng, mut world) = (Rng::new(seed), World::new(3, 1_000));
            for step in 0..2_000 {
                let (from, to) = (rng.below(3) as usize, rng.below(3) as usize);
                match rng.below(40) {
                    0..=9 if from != to && world.sites[from].has > 0 => {
                        let amount = 1 + rng.below(world.sites[from].has.min(20));
                        world.give(from, to, amount);
                    }
                    10..=14 if from != to && world.sites[from].totals.given(to).amount > 0 => world.tell(from, to),
                    15..=34 if !world.network.is_empty() => {
                        let which = rng.below(world.network.len() as u64) as usize;
                        world.deliver(which);
                    }
                    35..=38 if !world.network.is_empty() => {
                        let which = rng.below(world.network.len() as u64) as usize;
                        world.network.swap_remove(which);
                    }
                    39 if rng.below(10) == 0 => world.lose(from),
                    _ => {}
                }
                assert_eq!(world.sum(), 3_000, "seed {seed}, step {step}");
            }

            // Told once more, to incarnations that are known, everything arrives.
            world.known = vec![world.sites.iter().map(|site| site.incarnation).collect(); 3];
            for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
                world.tell(from, to);
                world.deliver(world.network.len() - 1);
                assert_eq!(world.under_way(from, to), 0, "seed {seed}");
            }
        }
    }

    #[test]
    fn total_of_a_lost_incarnation_says_nothing_of_the_next() {
        let mut donor = Totals::default();
        donor.give(1, Incarnation(1), 7);
        donor.give(1, Incarnation(2), 3);
        assert_eq!(donor.given(1), Total { incarnation: Incarnation(2), amount: 3 });
        assert_eq!(donor.under_way(1, Incarnation(2), 1), 2);
        assert_eq!(donor.under_way(1, Incarnation(3), 0), 0);
        assert_eq!((donor.away(|_| Incarnation(2)), donor.away(|_| Incarnation(3))), (3, 0));

        let mut receiver = Totals::default();
        receiver.receive(0, Incarnation(2), 5);
        assert_eq!(receiver.missing(0, Incarnation(1), 9), 0, "the donor's earlier storage is gone");
        assert_eq!(receiver.missing(0, Incarnation(2), 9), 4);
        assert_eq!(receiver.missing(0, Incarnation(3), 9), 9);
    }

    #[test]
    #[should_panic(expected = "an incarnation that is gone")]
    fn gift_to_a_lost_incarnation_is_a_mistake() {
        let mut donor = Totals::default();
        donor.give(1, Incarnation(2), 3);
        donor.give(1, Incarnation(1), 7);
    }

    #[test]
    fn totals_survive_the_way_through_bytes() {
        let mut totals = Totals::default();
        totals.give(2, Incarnation(3), u64::MAX);
        totals.receive(0, Incarnation(1), 1 << 90);
        let mut bytes = Vec::new();
        totals.encode(&mut bytes);
        let mut cursor = Cursor(&bytes);
        assert_eq!(Totals::decode(&mut cursor), Ok(totals));
        assert_eq!(cursor.end(), Ok(()));
    }
}
