//! Where every token of a quota is: the accounts of sites, and what they add up to.

use std::collections::BTreeMap;

use slackline_core::api::{Operation, Outcome};
use slackline_core::avantan::subset::Key;
use slackline_core::avantan::{Row, Share};
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::quota::Quota;

use super::{Op, Oracle};
use crate::invariants::agreement;
use crate::invariants::answers::is_of_one_copy;
use crate::invariants::conservation::{self, Account, Sums};
use crate::invariants::limit;
use crate::invariants::once::is_done;

/// The number of values of rounds among subsets from which on those are forgotten that nothing rests on.
const VALUES: usize = 64;

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
        let differs = note_value(&mut book.values, share);

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
        self.count_subsets(at, site, was.as_ref());
        self.blame(agreement::NAME, found, format_args!("quota {} at site {site}", quota.name()));
        self.blame(agreement::NAME, differs, format_args!("quota {} at site {site}", quota.name()));
        self.blame(limit::NAME, granting, format_args!("quota {} at site {site}", quota.name()));
        (at, is_new)
    }

    /// What became of rounds among subsets at a site that was looked at again, for the probes. Forgets values that nothing rests on.
    fn count_subsets(&mut self, book: usize, site: usize, was: Option<&Account>) {
        let Self { books, counts, lost, members, .. } = self;
        let book = &mut books[book];
        let Some(account) = &book.live[site] else { return };
        let open = was.and_then(|was| was.open);
        if open == account.open {
            return;
        }

        // Whose account has what an incarnation did, dead or alive.
        let accounts = || book.live.iter().flatten().chain(&book.lost);
        let of = |row: &Row| accounts().find(|a| a.site == row.site && a.incarnation == row.incarnation);
        if let Some((key, rows)) = open.and_then(|key| Some((key, book.values.get(&key)?))) {
            counts.among_subset += u64::from(account.has_applied(key).is_some() && rows.len() < members.len());
            for row in rows.iter().filter(|row| lost.contains(&(usize::from(row.site.region), row.incarnation))) {
                let has_applied = of(row).is_some_and(|dead| dead.has_applied(key).is_some());
                counts.dead_leaders += u64::from(row.site == key.leader);
                counts.dead_cohorts += u64::from(row.site != key.leader && !has_applied);
            }
        }
        let Some(rows) = account.open.and_then(|key| book.values.get(&key)) else { return };
        let mut others = book.live.iter().flatten().filter_map(|other| book.values.get(&other.open?));
        let is_apart = |other: &Vec<Row>| other.iter().all(|row| rows.iter().all(|own| own.site != row.site));
        counts.disjoint += u64::from(others.any(is_apart));

        // All have applied it, or nobody will.
        if book.values.len() > VALUES {
            let is_over = |key: &Key, rows: &Vec<Row>| {
                let applied = rows.iter().filter(|row| of(row).is_some_and(|a| a.has_applied(*key).is_some())).count();
                let is_open = accounts().any(|account| account.open == Some(*key));
                !is_open && (applied == 0 || applied == rows.len())
            };
            let over: Vec<Key> =
                book.values.iter().filter(|(key, rows)| is_over(key, rows)).map(|(key, _)| *key).collect();
            over.iter().for_each(|key| drop(book.values.remove(key)));
        }
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
            let of = self.book_of(*at as u32);
            let is_of = of.is_some_and(|of| self.levels(of, 0).iter().any(|(level, _)| *level == book));
            op.told.as_ref().is_some_and(is_doubt) && is_of
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

/// A site has accepted a value in a round among a subset. Nobody may have accepted another.
fn note_value(values: &mut BTreeMap<Key, Vec<Row>>, share: &Share) -> Result<(), String> {
    let part = share.part().and_then(|part| Some((part.key, part.accepted.as_ref()?)));
    let Some((key, rows)) = part else { return Ok(()) };
    match values.entry(key).or_insert_with(|| rows.clone()) {
        known if known == rows => Ok(()),
        known => Err(format!("{key:?} was accepted as {rows:?} and as {known:?}")),
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

    // Those of long ago are over everywhere.
    moved.drain(..moved.len().saturating_sub(512));
    moved
}
