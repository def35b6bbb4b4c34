//! Conservation: tokens are moved, never made and never lost. For each generation of a quota, over all incarnations of all
//! sites, live and lost:
//!
//! Σ tokens + Σ (granted − taken back) + Σ changes decided and not applied + Σ (given − received) = limit + excess
//!
//! A round among a subset is no instance: its value is known from the sites that accepted it, and the sites that applied it say so. Once
//! a living member has applied it, its row counts for each of the others. A row of a member that was lost before it applied it counts as
//! lost; and if nobody alive applied the round, so does what a lost member had gained or given by it.
//!
//! Tokens that are set aside are among a site's tokens, so they count once. A site that is down counts with what its
//! disk has. The tokens of a lost incarnation, and gifts from it and to it that never arrived, stay in the sum until they are reclaimed;
//! never more is reclaimed than is lost, if operators tell the truth.

use super::agreement::Decisions;
use std::collections::BTreeMap;

use slackline_core::avantan::Row;
use slackline_core::avantan::subset::Key;
use slackline_core::id::{Incarnation, SiteId};

/// The invariant's name.
pub const NAME: &str = "conservation";

/// What one incarnation of a site has of one quota.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// The site.
    pub site: SiteId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Every instance up to this one is applied.
    pub applied: u64,
    /// Rows applied in this incarnation.
    pub number: u64,
    /// The generation that the rest is of.
    pub generation: u32,
    /// Tokens, those set aside included.
    pub tokens: i64,
    /// Tokens set aside.
    pub held: i64,
    /// Tokens ever granted.
    pub granted: u128,
    /// Tokens ever taken back.
    pub taken_back: u128,
    /// Totals given, by the receiver's position and incarnation.
    pub given: Vec<(usize, Incarnation, u128)>,
    /// Totals received, by the donor's position and incarnation.
    pub received: Vec<(usize, Incarnation, u128)>,
    /// The rounds among subsets that were applied, in turn, and whether for the worse.
    pub moved: Vec<(Key, bool)>,
    /// The round among a subset whose value it has accepted, and not applied.
    pub open: Option<Key>,
}

impl Account {
    /// How a round among a subset was applied here, if it was: true for the worse.
    pub fn has_applied(&self, key: Key) -> Option<bool> {
        self.moved.iter().find(|(moved, _)| *moved == key).map(|(_, worse)| *worse)
    }
}

/// Where a quota's tokens are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// At live incarnations, and decided to be.
    pub tokens: i128,
    /// Under way to live incarnations.
    pub under_way: i128,
    /// Granted and not taken back, at all incarnations.
    pub in_use: i128,
    /// At lost incarnations, or under way from or to them, and not reclaimed.
    pub lost: i128,
}

/// Where the tokens of a quota are, if it exists: `accounts` are those of all incarnations, `is_live` tells which live,
/// and `members` are the sites by position.
pub fn sum(
    decisions: &Decisions,
    values: &BTreeMap<Key, Vec<Row>>,
    accounts: &[&Account],
    members: &[SiteId],
    is_live: impl Fn(&Account) -> bool,
) -> Result<Option<(i64, Sums)>, String> {
    let Some((_, newest)) = decisions.newest() else { return Ok(None) };
    let Some(limit) = newest.limit else { return Ok(None) };
    let all = limit.saturating_add(newest.excess);

    let brought = newest.reclaimed.as_ref().map_or(0, |reclaimed| reclaimed.all_brought);
    let mut sums = Sums::default();
    for account in accounts {
        let live = is_live(account);
        let mut tokens = 0;

        // A share of another generation, or of before the quota was created, has nothing of it.
        if account.generation == newest.generation && account.applied >= newest.created {
            if account.tokens < 0 || account.held < 0 || account.held > account.tokens {
                return Err(format!("a share makes no sense: {account:?}"));
            }
            tokens += i128::from(account.tokens);

            sums.in_use += account.granted as i128 - account.taken_back as i128;

            // A gift is under way from when the donor has lowered its share until the receiver has taken the higher total in.
            for &(peer, incarnation, given) in &account.given {
                let receiver = accounts.iter().find(|a| a.site == members[peer] && a.incarnation == incarnation);
                let current = receiver.filter(|receiver| receiver.generation == newest.generation);
                let from = members.binary_search(&account.site).unwrap_or(usize::MAX);
                let received = current.map_or(0, |receiver| {
                    let totals = receiver.received.iter();
                    totals.filter(|total| total.0 == from && total.1 == account.incarnation).map(|total| total.2).sum()
                });

                if received > given {
                    return Err(format!(
                        "site {} received {received} from site {} which gave {given}",
                        members[peer], account.site
                    ));
                }

                let under_way = (given - received) as i128;
                // A donor that is lost tells nobody of its gifts any more, and one that is lost gets none.
                if live && receiver.is_some_and(|receiver| is_live(receiver)) {
                    sums.under_way += under_way;
                } else {
                    sums.lost += under_way;
                }
            }
        }
        // What was decided for it and not applied yet; at most one row, since it reports in the next instance only.
        let mut number = account.number;
        for (instance, row) in decisions.rows_after(account.applied) {
            if row.site == account.site && row.incarnation == account.incarnation && row.share == number {
                number += 1;
                if instance >= newest.created {
                    tokens += i128::from(row.after) - i128::from(row.before);
                }
            }
        }

        if live {
            sums.tokens += tokens;
        } else {
            sums.lost += tokens;
        }
    }
    let of_generation = values.iter().filter(|(key, _)| key.generation == newest.generation);
    for (key, rows) in of_generation {
        let (tokens, lost) = moved(*key, rows, accounts, &is_live)?;
        sums.tokens += tokens;
        sums.lost += lost;
    }

    // What was brought back is a running total, modulo 2⁶⁴; what is left is less than that.
    sums.lost = i128::from((sums.lost as i64).wrapping_sub(brought));
    Ok(Some((all, sums)))
}

/// What a round among a subset adds to what its members' accounts show: what is decided for living ones and not applied yet, and what is
/// booked on the lost.
fn moved(
    key: Key,
    rows: &[Row],
    accounts: &[&Account],
    is_live: &impl Fn(&Account) -> bool,
) -> Result<(i128, i128), String> {
    let member = |row: &Row| accounts.iter().find(|a| a.site == row.site && a.incarnation == row.incarnation);
    let members: Vec<(&Row, Option<&&Account>)> = rows.iter().map(|row| (row, member(row))).collect();
    let alive = |account: &Option<&&Account>| account.is_some_and(|account| is_live(account));
    let change = |row: &Row, worse: bool| {
        let change = i128::from(row.after) - i128::from(row.before);
        if worse { change.min(0) } else { change }
    };

    let mut ends = members.iter().filter(|(_, a)| alive(a)).filter_map(|(_, a)| a.as_ref()?.has_applied(key));
    let outcome = ends.next();
    if ends.any(|worse| Some(worse) != outcome) {
        return Err(format!("living members have applied {key:?} differently"));
    }
    let is_applied = members.iter().any(|(_, a)| a.is_some_and(|account| account.has_applied(key).is_some()));
    let (mut pending, mut booked, mut applied) = (0, 0, 0);
    for (row, account) in &members {
        let own = account.as_ref().and_then(|account| account.has_applied(key));
        applied += own.map_or(0, |worse| change(row, worse));
        match (outcome, own) {
            (Some(worse), None) if alive(account) => {
                let is_open = account.is_some_and(|account| account.open == Some(key));
                pending += if is_open { change(row, worse) } else { 0 };
            }
            (Some(_), None) => booked += change(row, false),
            // Only who is dead has applied it, so all members had accepted it. Whatever the living will hear of it, what they were to give
            // is gone: it was granted there, or is lost.
            (None, None) if alive(account) && is_applied => {
                let is_open = account.is_some_and(|account| account.open == Some(key));
                pending += if is_open { change(row, true) } else { 0 };
            }
            _ => {}
        }
    }

    // For the worse: only where two members are lost, and what nobody gained is lost with them.
    if outcome == Some(true) || (outcome.is_none() && is_applied) {
        booked = -applied - pending;
    }
    Ok((pending, booked))
}

/// Returns true if the tokens add up to the limit, what is in excess of it included.
pub fn check(limit: i64, sums: Sums) -> Result<(), String> {
    if sums.lost < 0 {
        return Err(format!("{} tokens more were reclaimed than were lost: {sums:?}", -sums.lost));
    }
    let total = sums.tokens + sums.under_way + sums.in_use + sums.lost;
    if total == i128::from(limit) {
        return Ok(());
    }

    let what = if total > i128::from(limit) { "made" } else { "lost" };
    Err(format!(
        "{} tokens were {what}: the limit is {limit}, and there are {sums:?}",
        (total - i128::from(limit)).abs()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_core::avantan::{Settled, Table};

    fn site(region: u16) -> SiteId {
        SiteId::new(region, 0)
    }

    fn decisions() -> Decisions {
        let row = |region, after| Settled {
            instance: 1,
            row: Row { site: site(region), incarnation: Incarnation(1), share: 0, before: 0, after, kept: 0, away: 0 },
        };
        let mut decisions = Decisions::default();
        decisions.note(1, &Table::from_parts(1, 1, Some(10), vec![row(0, 6), row(1, 4)])).expect("the first");
        decisions
    }

    fn account(region: u16, tokens: i64, granted: u128) -> Account {
        Account {
            site: site(region),
            incarnation: Incarnation(1),
            applied: 1,
            number: 1,
            generation: 1,
            tokens,
            granted,
            ..Account::default()
        }
    }

    fn judge(accounts: &[&Account]) -> Result<(), String> {
        let (limit, sums) =
            sum(&decisions(), &BTreeMap::new(), accounts, &[site(0), site(1)], |_| true)?.expect("it exists");
        check(limit, sums)
    }

    #[test]
    fn made_and_lost_tokens_are_noticed() {
        assert_eq!(judge(&[&account(0, 5, 1), &account(1, 4, 0)]), Ok(()));
        assert!(judge(&[&account(0, 6, 1), &account(1, 4, 0)]).is_err_and(|what| what.contains("1 tokens were made")));
        assert!(judge(&[&account(0, 5, 0), &account(1, 4, 0)]).is_err_and(|what| what.contains("1 tokens were lost")));
        // A decided row that is not applied yet counts.
        let behind = Account { site: site(1), incarnation: Incarnation(1), ..Account::default() };
        assert_eq!(judge(&[&account(0, 6, 0), &behind]), Ok(()));
    }

    #[test]
    fn more_reclaimed_than_was_lost_is_noticed() {
        let reclaimed = Sums { tokens: 8, in_use: 2, lost: 0, ..Sums::default() };
        assert_eq!(check(10, reclaimed), Ok(()));
        assert!(check(10, Sums { tokens: 9, lost: -1, ..reclaimed }).is_err_and(|what| what.contains("reclaimed")));
    }

    /// The third, which is down, had applied it; the second has accepted it, and gives two. Nobody who lives has the first one's two.
    #[test]
    fn round_that_only_the_dead_have_applied_is_no_loss_of_what_the_living_give() {
        let key = Key { generation: 1, leader: site(1), incarnation: Incarnation(1), sequence: 1 };
        let row = |at: u16, before, after| Row {
            site: site(at),
            incarnation: Incarnation(1),
            share: 0,
            before,
            after,
            kept: 0,
            away: 0,
        };
        let values = BTreeMap::from([(key, vec![row(0, 6, 8), row(1, 4, 2)])]);
        let dead = Account { moved: vec![(key, false)], ..account(0, 8, 0) };
        let living = Account { open: Some(key), ..account(1, 4, 0) };
        let judge = |living: &Account| {
            let is_live = |account: &Account| account.site == site(1);
            let (limit, sums) =
                sum(&decisions(), &values, &[&dead, living], &[site(0), site(1)], is_live)?.expect("it exists");
            check(limit, sums)?;
            Ok::<_, String>((sums.tokens, sums.lost))
        };
        assert_eq!(judge(&living), Ok((2, 8)));
        assert!(judge(&Account { tokens: 5, ..living }).is_err_and(|what| what.contains("1 tokens were made")));
    }

    #[test]
    fn gift_counts_until_it_is_received_once() {
        let mut donor = account(0, 4, 0);
        donor.given = vec![(1, Incarnation(1), 2)];
        let mut receiver = account(1, 4, 0);
        assert_eq!(judge(&[&donor, &receiver]), Ok(()));
        (receiver.tokens, receiver.received) = (6, vec![(0, Incarnation(1), 2)]);
        assert_eq!(judge(&[&donor, &receiver]), Ok(()));
        receiver.tokens = 8;
        assert!(judge(&[&donor, &receiver]).is_err());
        (receiver.tokens, receiver.received) = (8, vec![(0, Incarnation(1), 4)]);
        assert!(judge(&[&donor, &receiver]).is_err_and(|what| what.contains("received 4")));
    }
}
