//! Where every token of a quota is: the accounts of sites, and what they add up to.

use slackline_core::api::{Operation, Outcome};
use slackline_core::avantan::Share;
use slackline_core::avantan::subset::Key;
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::quota::Quota;

use super::{Op, Oracle};
use crate::invariants::agreement;
use crate::invariants::answers::is_of_one_copy;
use crate::invariants::conservation::{self, Account, Sums};
use crate::invariants::limit;
use crate::invariants::once::is_done;

impl Oracle {
    /// Looks at a site's share of a quota again. Returns its book, and whether anything is different of what tokens add up from.
    pub(super) fn refresh(
        &mut self,
        site: usize,
        incarnation: Incarnation,
        epoch: u64,
        quota: &Quota,
    ) -> (usize, bool) {
        let at = self.book_in(quota.name(), epoch);
        let members = self.members.len();

        let book = &mut self.books[at];
        let share = &quota.avantan().share;
        let generation = share.table.generation;
        let was = book.live[site].take();
        let before = was.as_ref().filter(|was| was.incarnation == incarnation && was.generation == generation);
        let exists = share.table.limit.is_some();

        // Totals that belong to an incarnation of the peer that is gone are dropped by the node, and kept here.
        let totals = |now: &dyn Fn(usize) -> (Incarnation, u128), kept: Option<&Vec<(usize, Incarnation, u128)>>| {
            let mut all = Vec::new();
            for peer in 0..members {
                let (of, tokens) = now(peer);
                let kept = kept.into_iter().flatten().filter(|total| exists && total.0 == peer && total.1 < of);
                all.extend(kept.copied());
                if tokens > 0 {
                    all.push((peer, of, tokens));
                }
            }
            all
        };

        let (granted, taken_back) = quota.used();
        let account = Account {
            site: self.members[site],
            incarnation,
            applied: share.applied,
            number: share.number,
            generation,
            tokens: share.tokens,
            held: share.held(),
            granted,
            taken_back,
            given: totals(&|peer| quota.given(peer), before.map(|account| &account.given)),
            received: totals(&|peer| quota.received(peer), before.map(|account| &account.received)),
            moved: moved(self.members[site], share, was.as_ref().filter(|was| was.incarnation == incarnation)),
            open: share.part().filter(|part| part.accepted.is_some()).map(|part| part.key),
        };
        let mut differs = Ok(());
        if let Some(part) = share.part()
            && let Some(rows) = &part.accepted
            && book.values.entry(part.key).or_insert_with(|| rows.clone()) != rows
        {
            differs = Err(format!("{:?} has two values", part.key));
        }

        if let Some(before) = before.filter(|before| before.held > 0 && account.held > 0) {
            self.counts.granted_aside += u64::from(account.granted > before.granted);
            self.counts.released_aside += u64::from(account.taken_back > before.taken_back);
        }

        // Under the same table as before, so it knew.
        let has_granted =
            before.is_some_and(|before| before.applied == account.applied && account.granted > before.granted);
        let granting = limit::check_granting(has_granted, share.table.excess);

        let known = book.decisions.newest().map(|(instance, _)| instance);
        let found = book.decisions.note(share.applied, &share.table);
        let is_new = was.as_ref() != Some(&account) || book.decisions.newest().map(|(instance, _)| instance) != known;
        book.live[site] = Some(account);
        self.blame(agreement::NAME, found, format_args!("quota {} at site {site}", quota.name()));
        self.blame(agreement::NAME, differs, format_args!("quota {} at site {site}", quota.name()));
        self.blame(limit::NAME, granting, format_args!("quota {} at site {site}", quota.name()));
        (at, is_new)
    }

    /// A site that has not met a quota has nothing of it.
    pub(super) fn fill(&mut self, site: usize) {
        let (id, incarnation) = (self.members[site], self.sites[site].present);
        for book in self.books.iter_mut().filter(|book| book.live[site].is_none()) {
            book.live[site] = Some(Account { site: id, incarnation, ..Account::default() });
        }
    }

    /// Where a quota's tokens are.
    pub(crate) fn sums(&self, book: usize) -> Result<Option<(i64, Sums)>, String> {
        let book = &self.books[book];
        let accounts: Vec<&Account> = book.live.iter().flatten().chain(&book.lost).collect();

        let is_live = |account: &Account| {
            let site = self.members.binary_search(&account.site).unwrap_or(usize::MAX);
            !self.lost.contains(&(site, account.incarnation))
        };
        conservation::sum(&book.decisions, &book.values, &accounts, &self.members, is_live)
    }

    /// Checks that the tokens of a quota add up to its limit.
    pub(super) fn conserve(&mut self, book: usize) {
        self.counts.conserved += 1;

        let found = self.sums(book).and_then(|sums| match sums {
            Some((limit, sums)) => conservation::check(limit, sums),
            None => Ok(()),
        });
        if found.is_err() {
            let about = format!("quota {}", self.books[book].name);
            let found = found.map_err(|what| what + &self.accounts(book));
            self.blame(conservation::NAME, found, &about);
        }
    }

    /// Checks every quota.
    pub(crate) fn conserve_all(&mut self) {
        (0..self.books.len()).for_each(|book| self.conserve(book));
    }

    /// Everything that is known of a quota, for whoever has to find out what went wrong with it.
    pub(crate) fn accounts(&self, book: usize) -> String {
        let book = &self.books[book];
        let accounts = book.live.iter().flatten().chain(&book.lost).map(|account| format!("\n  {account:?}"));
        accounts.collect::<String>() + &format!("\n  {:?}", book.decisions.newest())
    }

    /// Operations on a quota of which sites and clients do not think the same.
    pub(crate) fn differences(&self, book: usize) -> String {
        let differ = self.ops.iter().enumerate().filter(|(at, op)| {
            self.book_of(*at as u32) == Some(book)
                && op.durable.as_ref().is_some_and(is_done)
                && op.told.as_ref() != op.durable.as_ref()
        });
        differ.map(|(_, op)| format!("\n  {op:?}")).collect()
    }

    /// Tokens of a quota of which clients were told that nobody knows what became of them.
    pub(crate) fn in_doubt(&self, book: usize) -> i128 {
        let doubted = self.ops.iter().enumerate().filter(|(at, op)| {
            // Of some its client knows that they did nothing.
            let is_doubt = |told: &Outcome| matches!(told, Outcome::Unknown(_)) && !is_of_one_copy(told);
            op.told.as_ref().is_some_and(is_doubt) && self.book_of(*at as u32) == Some(book)
        });

        let amount = |op: &Op| match &op.operation {
            Operation::Acquire { amount, .. } | Operation::Release { amount, .. } => i128::from(*amount),
            Operation::ReleaseGrant { grant, .. } => {
                let granted = self.grant(*grant).map(|granted| &self.ops[granted as usize].operation);
                let Some(Operation::Acquire { amount, .. }) = granted else { return 0 };
                i128::from(*amount)
            }
            _ => 0,
        };
        doubted.map(|(_, op)| amount(op)).sum()
    }
}

/// The rounds among subsets that a site has applied: those of before, and the last. A crash may have taken some back.
fn moved(site: SiteId, share: &Share, before: Option<&Account>) -> Vec<(Key, bool)> {
    let mut moved = before.map_or(Vec::new(), |before| before.moved.clone());
    let record = share.subset.as_ref();
    let last = record.and_then(|record| record.settled.iter().find(|settled| settled.site == site));
    let Some(last) = last else { return Vec::new() };
    match moved.iter().position(|(key, _)| *key == last.key) {
        Some(at) => moved.truncate(at + 1),
        None => moved.push((last.key, last.worse)),
    }
    moved
}
