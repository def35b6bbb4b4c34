//! Conservation: tokens are moved, never made and never lost. For each generation of a quota, over all incarnations of all
//! sites, live and lost:
//!
//! Σ tokens + Σ (granted − taken back) + Σ changes decided and not applied + Σ (given − received) = limit + excess
//!
//! Tokens that are set aside are among a site's tokens, so they count once. A site that is down counts with what its
//! disk has. The tokens of a lost incarnation, and gifts from it and to it that never arrived, stay in the sum until they are reclaimed;
//! never more is reclaimed than is lost, if operators tell the truth.

use super::agreement::Decisions;
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
    // What was brought back is a running total, modulo 2⁶⁴; what is left is less than that.
    sums.lost = i128::from((sums.lost as i64).wrapping_sub(brought));
    Ok(Some((all, sums)))
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
    use slackline_core::avantan::{Row, Settled, Table};

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
        let (limit, sums) = sum(&decisions(), accounts, &[site(0), site(1)], |_| true)?.expect("it exists");
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
