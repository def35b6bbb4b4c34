//! What sites have made durable. Batches are read when they are handed out, because the machine that knows what they mean is at hand
//! then; they count when they are durable, and those that a crash loses never count.

use slackline_core::api::{Hold, Operation, Outcome, Refusal};
use slackline_core::id::{Incarnation, OperationId};
use slackline_core::machine::{Batch, Seq};
use slackline_core::node::{Node, read_outcome_key};
use slackline_core::quota::{quota_number, read_grant_key};
use slackline_core::rows::{self, FORGOTTEN, GRANT, OUTCOME, Owner, QUOTA_COLD, QUOTA_HOT};
use slackline_core::session::{MARK_SLOT, decode_row, digest};

use super::{Book, Change, Handed, Oracle, Origin, quota_of};
use crate::clock::EPSILON;
use crate::invariants::holds::{self, Tracked};
use crate::invariants::once::is_done;
use crate::invariants::{forgetting, limit, lives, once};

impl Oracle {
    /// A site has handled an input and hands out this batch.
    pub(crate) fn handed_out(&mut self, now: u64, site: usize, seq: Seq, node: &Node, batch: &Batch) {
        let incarnation = node.incarnation();
        if self.lost.contains(&(site, incarnation)) {
            // An old copy may say hello, and nothing else.
            let acts = batch.iter().any(|(key, _)| rows::owner(key) != Some(Owner::Site));
            self.blame(lives::NAME, lives::check(incarnation, acts), format_args!("site {site}"));
            let handed = Handed { seq, at: now, incarnation, epoch: None, changes: Vec::new() };
            return self.sites[site].handed.push_back(handed);
        }

        let here = node.chapters().quotas.epoch();
        let mut entered = None;
        let mut changes = Vec::new();
        let mut ended: Vec<u64> = Vec::new();
        let mut released: Vec<u64> = Vec::new();
        let mut touched = Vec::new();

        for (key, value) in batch.iter() {
            match key[0] {
                FORGOTTEN => entered = self.enter(site, node),
                QUOTA_COLD | QUOTA_HOT if value.is_some() => {
                    let at = quota_number(key).expect("a key that was just written");
                    if !touched.contains(&at) {
                        touched.push(at);
                    }
                }
                OUTCOME => {
                    let Some((op, outcome)) = self.outcome_in(site, incarnation, key, value) else { continue };
                    // What is asked of a grant of a quota that is gone ends it.
                    let is_gone = outcome == Outcome::Refused(Refusal::QuotaDeleted);
                    match self.ops[op as usize].operation {
                        Operation::ReleaseGrant { grant, used: 0 } => released.push(grant.number),
                        Operation::ReleaseGrant { grant, .. } | Operation::ExtendGrant { grant, .. } if is_gone => {
                            released.push(grant.number);
                        }
                        _ => {}
                    }
                    changes.push(Change::Outcome { op, outcome, book: None, generation: 0 });
                }
                GRANT if value.is_none() => {
                    let (of, number) = read_grant_key(key).expect("a key that was just written");
                    if of == incarnation {
                        ended.push(number);
                    }
                }
                _ => {}
            }
        }

        // A share may have been written several times in the batch; it is looked at as the machine has it now.
        for at in touched {
            let quota = node.chapters().quotas.numbered(at).expect("a quota that was just written");
            let (book, is_new) = self.refresh(site, incarnation, here, quota);

            self.books[book].changed[site] = now;
            let generation = quota.avantan().share.table.generation;
            let (granted, taken_back) = quota.used();

            // A quota that is deleted counts nothing any more.
            if quota.limit().is_some() {
                changes.push(Change::Counters { book, generation, granted, taken_back });
            }
            if is_new {
                self.conserve(book);
            }
        }

        for change in &mut changes {
            let Change::Outcome { op, book: of, generation, .. } = change else { continue };
            // Another life of its name may have begun since it was sent.
            let name = quota_of(&self.ops[*op as usize].operation).map(str::to_owned);
            *of = name.map(|name| self.book_in(&name, here));

            let book = of.or_else(|| self.book_of(*op));
            let account = book.and_then(|book| self.books[book].live[site].as_ref());
            *generation = account.map_or(0, |account| account.generation);
        }

        changes.extend(ended.into_iter().map(|number| Change::Ended { number, released: released.contains(&number) }));
        self.sites[site].handed.push_back(Handed { seq, at: now, incarnation, epoch: entered, changes });
    }

    /// The operation that a row is about, and its outcome: somebody must have submitted it there, with this content.
    fn outcome_in(
        &mut self,
        site: usize,
        incarnation: Incarnation,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Option<(u32, Outcome)> {
        let (session, slot) = read_outcome_key(key).expect("a key that was just written");
        let value = value.filter(|_| slot != MARK_SLOT)?;
        let row = decode_row(value, self.members[site], incarnation).expect("a row that was just written");

        let of_session = self.sessions.get(&(site, incarnation, session));
        let Some(&op) = of_session.and_then(|ops| ops.get(row.sequence as usize - 1)) else {
            let about = format!("site {site}, session {}, operation {}", session.0, row.sequence);
            let what = format!("nobody submitted it there, and it ended as {:?}", row.outcome);
            self.blame(once::NAME, Err(what), &about);
            return None;
        };
        let known = &self.ops[op as usize];
        if is_done(&row.outcome) && row.digest != digest(&known.operation) {
            let about = known.id;
            self.blame(once::NAME, Err("other content was carried out under its id".to_owned()), about);
            return None;
        }
        Some((op, row.outcome))
    }

    /// A site writes what it has forgotten, and what is frozen there. Returns the epoch that it is in.
    fn enter(&mut self, site: usize, node: &Node) -> Option<u64> {
        let decided = &node.chapters().quotas.forgetting().decided;
        let about = format!("site {site}, epoch {}", decided.epoch);
        match self.forgotten.enter(site, decided.epoch, &decided.names) {
            Ok(true) => {
                for name in &decided.names {
                    let book = self.book_in(name, decided.epoch - 1);
                    let newest = self.books[book].decisions.newest().map(|(_, table)| table);
                    let found = forgetting::check_forgotten(newest);
                    self.blame(forgetting::NAME, found, format_args!("{about}, quota {name}"));
                }
            }
            Ok(false) => {}
            Err(what) => self.blame(forgetting::NAME, Err(what), &about),
        }
        Some(decided.epoch)
    }

    /// A batch is durable.
    pub(crate) fn durable(&mut self, site: usize, seq: Seq) {
        let Some(handed) = self.sites[site].handed.pop_front() else { return };
        assert_eq!(handed.seq, seq, "batches become durable in order");

        let incarnation = handed.incarnation;
        if let Some(epoch) = handed.epoch {
            self.forgotten.became_durable(epoch);
        }

        let mut moved: Vec<(usize, u32)> = Vec::new();
        let counted = handed.counted();
        for change in &handed.changes {
            match change {
                Change::Outcome { op, outcome, book, generation } => {
                    let of = &mut self.ops[*op as usize].book;
                    *of = book.or(*of);
                    self.outcome(site, incarnation, *op, outcome, *generation, &mut moved);
                    self.note_refilling(*op, outcome, handed.at);
                }
                Change::Ended { number, released } => {
                    let ended = self.ended((site, incarnation, *number), *released, handed.at);
                    // A quota that is deleted, or created again since, takes nothing back; one that does, hands out its counters.
                    if let Some((book, generation, amount)) = ended
                        && !released
                        && counted.contains(&(book, generation))
                    {
                        self.count(site, incarnation, book, generation, (0, amount));
                        moved.extend(self.levels(book, generation));
                    }
                }
                Change::Counters { book, generation, taken_back, .. } if self.books[*book].refills => {
                    // Nobody gave it back: the site has refilled it.
                    let known = self.books[*book].used.get(&(site, incarnation, *generation)).map_or(0, |used| used.1);
                    self.count(site, incarnation, *book, *generation, (0, taken_back.saturating_sub(known)));
                    moved.push((*book, *generation));
                }
                Change::Counters { .. } => {}
            }
        }

        // What a quota's row counts must be what the outcomes beside it add up to: an effect without a record would be lost, or come
        // twice.
        for change in &handed.changes {
            let Change::Counters { book, generation, granted, taken_back } = change else { continue };
            let outcomes = self.books[*book].used.get(&(site, incarnation, *generation)).copied().unwrap_or_default();
            let found = once::check_counters((*granted, *taken_back), outcomes);
            if found.is_err() {
                let about = format!("quota {} at site {site}", self.books[*book].name);
                // Taking back what nothing accounts for is what a hold does that ends twice.
                let invariant = if *granted == outcomes.0 { holds::NAME } else { once::NAME };
                self.blame(invariant, found, about);
            }
        }

        // The most that was in use at any time is what counts against the limit.
        for (book, generation) in moved {
            let book = &mut self.books[book];
            let in_use = book.in_use.get(&generation).copied().unwrap_or(0);
            for counting in book.countings.iter_mut().filter(|counting| counting.generation == generation) {
                counting.least = counting.least.min(in_use);
                counting.most = counting.most.max(in_use);
            }

            let Some((_, table)) = book.decisions.newest() else { continue };
            let Some(of) = table.limit.filter(|_| table.generation == generation) else { continue };
            let found = limit::check(in_use, of.saturating_add(table.excess), "the sites'");
            if found.is_err() {
                let about = format!("quota {}", book.name);
                self.blame(limit::NAME, found, about);
            }
        }
    }

    /// An operation has this outcome durably.
    fn outcome(
        &mut self,
        site: usize,
        incarnation: Incarnation,
        at: u32,
        outcome: &Outcome,
        generation: u32,
        moved: &mut Vec<(usize, u32)>,
    ) {
        let book = self.book_of(at);
        let op = &mut self.ops[at as usize];
        let is_passed_over = op.origin == Origin::PassedOver;
        let skipped = if is_passed_over { once::check_skipped(op.told.as_ref(), outcome) } else { Ok(()) };
        let found = once::check(op.durable.as_ref(), op.told.as_ref(), outcome).and(skipped);
        let about = op.id;

        op.durable = Some(outcome.clone());
        op.generation = generation;

        let mut used = (0, 0);
        let mut term = Ok(());
        match (&op.operation, outcome) {
            (Operation::Acquire { amount, hold, .. }, Outcome::Granted { grant, lasts }) => {
                used.0 = *amount as u128;
                term = holds::check_term(*hold, *lasts);
                if *hold != Hold::Counted {
                    // Holders count from when they sent the request, and stop early by what clocks may err.
                    let until = lasts.map(|lasts| op.sent.first + lasts.saturating_sub(EPSILON as u64));
                    op.tracked = Some(Tracked { until, amount: *amount, settled: false, ended: false });
                    self.grants.insert((site, incarnation, grant.number), at);
                }
            }
            (_, Outcome::Released { amount }) => used.1 = *amount as u128,
            _ => {}
        }
        let first_sent = op.sent.first;
        let is_of_grant = matches!(op.operation, Operation::ReleaseGrant { .. } | Operation::ExtendGrant { .. });
        let operation = is_of_grant.then(|| op.operation.clone());

        self.blame(once::NAME, found, about);
        self.blame(holds::NAME, term, about);
        if let Some(operation) = operation {
            self.changed_grant(operation, outcome, first_sent, about);
        }
        if let Some(book) = book.filter(|_| used != (0, 0)) {
            self.count(site, incarnation, book, generation, used);
            moved.extend(self.levels(book, generation));
        }
    }

    /// A quota that refills has granted something, if it did.
    fn note_refilling(&mut self, op: u32, outcome: &Outcome, at: u64) {
        let op = &self.ops[op as usize];
        let (Operation::Acquire { amount, .. }, Outcome::Granted { .. }) = (&op.operation, outcome) else { return };
        if let Some(book) = op.book.filter(|book| self.books[*book].refills) {
            self.books[book].granted.push((at, *amount));
        }
    }

    /// A tracked grant was settled, or its end was put off.
    fn changed_grant(&mut self, operation: Operation, outcome: &Outcome, first_sent: u64, about: OperationId) {
        let (Operation::ReleaseGrant { grant, .. } | Operation::ExtendGrant { grant, .. }) = &operation else { return };
        let Some(granted) = self.grant(*grant) else { return };
        let Some(tracked) = self.ops[granted as usize].tracked.as_mut() else { return };
        let found = match (operation, outcome) {
            (Operation::ReleaseGrant { used, .. }, Outcome::Released { amount }) if used > 0 => {
                holds::settle(tracked, used, *amount)
            }
            (Operation::ExtendGrant { micros, .. }, Outcome::Extended { lasts }) => {
                holds::check_term(Hold::For(micros), Some(*lasts))
                    .and(holds::extend(tracked, first_sent + lasts.saturating_sub(EPSILON as u64)))
            }
            _ => Ok(()),
        };
        self.blame(holds::NAME, found, about);
    }

    /// A tracked grant is over, durably; the book and the generation that it was of, and its tokens.
    fn ended(&mut self, grant: (usize, Incarnation, u64), released: bool, at: u64) -> Option<(usize, u32, u128)> {
        let Some(&granted) = self.grants.get(&grant) else {
            let about = format!("site {}, grant {}", grant.0, grant.2);
            self.blame(holds::NAME, Err("a grant ended that nobody was given".to_owned()), &about);
            return None;
        };
        let op = &mut self.ops[granted as usize];

        // The grants of a quota that is deleted go, without a trace in any book.
        let newest = op.book.and_then(|book| self.books[book].decisions.newest());
        let is_dead = newest.is_some_and(|(_, table)| table.limit.is_none() || table.generation != op.generation);
        let tracked = op.tracked.as_mut().expect("a tracked grant");
        let found = holds::check_end(tracked, at, released || (is_dead && tracked.until.is_none()));
        tracked.ended = true;

        let about = op.id;
        let (book, generation) = (op.book, op.generation);
        let amount = tracked.amount as u128;
        self.blame(holds::NAME, found, about);
        Some((book?, generation, amount))
    }

    /// Adds what was granted and taken back to a book, and to those above it.
    fn count(&mut self, site: usize, incarnation: Incarnation, book: usize, generation: u32, used: (u128, u128)) {
        for (book, generation) in self.levels(book, generation) {
            let book = &mut self.books[book];
            let sums = book.used.entry((site, incarnation, generation)).or_default();
            sums.0 += used.0;
            sums.1 += used.1;
            *book.in_use.entry(generation).or_default() += used.0 as i128 - used.1 as i128;
        }
    }

    /// Takes note of the incarnation in which a site handles inputs.
    pub(crate) fn seen(&mut self, site: usize, incarnation: Incarnation) -> bool {
        if incarnation == self.sites[site].present || incarnation.0 == 0 || self.lost.contains(&(site, incarnation)) {
            return false;
        }

        let found = lives::check_joins(self.sites[site].present);
        self.blame(lives::NAME, found, format_args!("site {site}, incarnation {}", incarnation.0));
        self.sites[site].present = incarnation;
        self.fill(site);
        true
    }

    /// A site calls the storage that it was started on an old copy.
    pub(crate) fn called_old(&mut self, site: usize, incarnation: Incarnation) {
        let found = lives::check_old(self.lost.contains(&(site, incarnation)));
        self.blame(lives::NAME, found, format_args!("site {site}, incarnation {}", incarnation.0));
    }

    /// A site crashed: only what its disk has counts, which `rest` is opened on.
    pub(crate) fn crashed(&mut self, site: usize, rest: &Node) {
        self.sites[site].lives += 1;
        self.sites[site].handed.clear();
        self.forgotten.crashed(site);

        // The old incarnation's account is with those that are lost.
        if rest.incarnation() != self.sites[site].present {
            return;
        }

        let here = rest.chapters().quotas.epoch();
        for at in 0..self.books.len() {
            let Book { name, life, .. } = &self.books[at];
            let known = rest.chapters().quotas.find(name).is_some() && self.life_in(name, here) == *life;
            // What was forgotten stays as it was when the site last had it.
            if !known && self.life_in(&self.books[at].name, here) <= self.books[at].life {
                self.books[at].live[site] = None;
            }
        }

        for quota in rest.chapters().quotas.iter() {
            self.refresh(site, rest.incarnation(), here, quota);
        }
        self.fill(site);
        self.conserve_all();
    }

    /// The site's present incarnation is lost, with all that its disk had; nothing that the site says counts until it
    /// has a new one.
    pub(crate) fn lose(&mut self, site: usize) {
        let incarnation = self.sites[site].present;

        self.lost.insert((site, incarnation));
        self.forgotten.lost(site);

        // Gifts on their way to it arrive nowhere; what it has received is in its own account.
        for book in &self.books {
            let arrived = |donor: usize| {
                let account = book.live[site].as_ref();
                let mut totals = account.into_iter().flat_map(|account| &account.received);
                totals.find(|total| total.0 == donor).map_or(0, |total| total.2)
            };
            let donors = book.live.iter().enumerate().filter_map(|(donor, account)| Some((donor, account.as_ref()?)));
            for (donor, account) in donors {
                let given = account.given.iter().find(|total| total.0 == site && total.1 == incarnation);
                self.counts.lost_gifts += u64::from(given.is_some_and(|total| total.2 > arrived(donor)));
            }
        }

        for book in &mut self.books {
            book.lost.extend(book.live[site].take());
        }
        self.sites[site].present = Incarnation(0);
    }
}
