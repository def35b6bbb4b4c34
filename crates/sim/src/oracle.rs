//! What sites have made durable, what clients were told, and where every token is: the simulator's own truth, against
//! which the invariants are judged.
//!
//! Batches are read when they are handed out, and count when they are durable; those that a crash loses never count.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use slackline_core::api::{Hold, Operation, Outcome, UnknownReason};
use slackline_core::id::{GrantId, Incarnation, OperationId, SessionId, SiteId};
use slackline_core::machine::{Batch, Seq};
use slackline_core::node::Node;
use slackline_core::quota::{Quota, quota_number};
use slackline_core::rows::{FORGOTTEN, GRANT, OUTCOME, QUOTA_COLD, QUOTA_HOT};
use slackline_core::session::{MARK_SLOT, decode_row, digest};

use crate::faults::EPSILON;
use crate::invariants::agreement::{self, Decisions};
use crate::invariants::answers::{Answered, is_of_one_copy};
use crate::invariants::conservation::{self, Account, Sums};
use crate::invariants::holds::{self, Tracked};
use crate::invariants::once::is_done;
use crate::invariants::{Violation, forgetting, limit, lives, once};

/// One operation of a client.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) id: OperationId,
    pub(crate) site: usize,
    pub(crate) operation: Operation,
    pub(crate) timeout: u64,
    /// The quota, if the oracle keeps books of it.
    pub(crate) book: Option<usize>,
    /// When it was first sent.
    pub(crate) first_sent: u64,
    /// How often it was sent, relayed or not.
    pub(crate) sent: u32,
    pub(crate) relayed: bool,
    /// True if it is of a caller of the product's client.
    pub(crate) is_callers: bool,
    /// Whether its number was passed over by a client that jumped.
    pub(crate) skipped: bool,
    /// What has left its site.
    pub(crate) answered: Answered,
    /// The definitive answer that its client was given.
    pub(crate) told: Option<Outcome>,
    /// The outcome that its site has durably.
    pub(crate) durable: Option<Outcome>,
    /// The generation that it was granted of.
    pub(crate) generation: u32,
    pub(crate) tracked: Option<Tracked>,
}

/// Tokens that a client believes to hold.
#[derive(Clone, Copy, Debug)]
struct Held {
    op: u32,
    book: usize,
    generation: u32,
    amount: i64,
    active: bool,
}

/// What a counting client may be told: the least and the most that was in use since it asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub(crate) request: u64,
    generation: u32,
    pub(crate) least: i128,
    pub(crate) most: i128,
}

/// All that is known of one quota.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) name: String,
    /// How often the name was forgotten before: each life has a book of its own.
    pub(crate) life: u32,
    /// When each site last wrote a row of it.
    pub(crate) changed: Vec<u64>,
    pub(crate) decisions: Decisions,
    /// The account of each site's present incarnation.
    pub(crate) live: Vec<Option<Account>>,
    pub(crate) lost: Vec<Account>,
    /// What recorded outcomes granted and took back, by site, incarnation and generation.
    used: BTreeMap<(usize, Incarnation, u32), (u128, u128)>,
    /// What is durably in use, by generation.
    pub(crate) in_use: BTreeMap<u32, i128>,
    /// What clients believe to hold, by generation.
    pub(crate) held: BTreeMap<u32, i128>,
    pub(crate) watches: Vec<Watch>,
    /// When its creation was first acknowledged, if nobody ever asked for its deletion.
    pub(crate) created: Option<u64>,
    pub(crate) deletable: bool,
}

#[derive(Debug)]
enum Change {
    Outcome { op: u32, outcome: Outcome, book: Option<usize>, generation: u32 },
    Ended { number: u64, released: bool },
    Counters { book: usize, generation: u32, granted: u128, taken_back: u128 },
}

#[derive(Debug)]
struct Handed {
    seq: Seq,
    at: u64,
    incarnation: Incarnation,
    /// The epoch that the site enters.
    epoch: Option<u64>,
    changes: Vec<Change>,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    members: Vec<SiteId>,
    pub(crate) ops: Vec<Op>,
    /// Operations by session; sequence 1 first.
    pub(crate) sessions: BTreeMap<(usize, Incarnation, SessionId), Vec<u32>>,
    grants: BTreeMap<(usize, Incarnation, u64), u32>,
    pub(crate) books: Vec<Book>,
    names: BTreeMap<(String, u32), usize>,
    /// What names were forgotten when.
    forgotten: forgetting::Steps,
    handed: Vec<VecDeque<Handed>>,
    pub(crate) lost: BTreeSet<(usize, Incarnation)>,
    /// The incarnation of each site whose account is the live one.
    present: Vec<Incarnation>,
    lives: Vec<u32>,
    holds: Vec<Held>,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    touched: Vec<u64>,
    pub(crate) conserved: u64,
    /// Shares that granted, and that took back, while some of their tokens were set aside.
    pub(crate) moved_aside: (u64, u64),
    /// Gifts that were under way to an incarnation when it was lost.
    pub(crate) lost_gifts: u64,
    pub(crate) violation: Option<Violation>,
}

impl Oracle {
    pub(crate) fn new(members: &[SiteId]) -> Self {
        Self {
            members: members.to_vec(),
            ops: Vec::new(),
            sessions: BTreeMap::new(),
            grants: BTreeMap::new(),
            books: Vec::new(),
            names: BTreeMap::new(),
            forgotten: forgetting::Steps::default(),
            handed: members.iter().map(|_| VecDeque::new()).collect(),
            lost: BTreeSet::new(),
            present: vec![Incarnation(0); members.len()],
            lives: vec![0; members.len()],
            holds: Vec::new(),
            ends: BinaryHeap::new(),
            touched: Vec::new(),
            conserved: 0,
            moved_aside: (0, 0),
            lost_gifts: 0,
            violation: None,
        }
    }

    pub(crate) fn blame(&mut self, invariant: &'static str, found: Result<(), String>, about: &str) {
        if let Err(what) = found
            && self.violation.is_none()
        {
            self.violation = Some(Violation { invariant, what: format!("{about}: {what}") });
        }
    }

    /// The book of a quota, as whoever knows of all that was forgotten understands its name; opened if it is new.
    pub(crate) fn book(&mut self, name: &str) -> usize {
        self.book_in(name, u64::MAX)
    }

    /// How often a name was forgotten up to an epoch.
    pub(crate) fn life_in(&self, name: &str, epoch: u64) -> u32 {
        self.forgotten.life(name, epoch)
    }

    /// The book of a quota, as a site in this epoch understands its name.
    fn book_in(&mut self, name: &str, epoch: u64) -> usize {
        let life = self.life_in(name, epoch);
        let key = (name.to_owned(), life);
        if let Some(&at) = self.names.get(&key) {
            return at;
        }
        let before = life.checked_sub(1).and_then(|life| self.names.get(&(name.to_owned(), life)));
        let deletable = before.is_some_and(|&before| self.books[before].deletable);
        let at = self.books.len();
        self.names.insert(key, at);
        self.books.push(Book {
            name: name.to_owned(),
            life,
            changed: vec![0; self.members.len()],
            decisions: Decisions::default(),
            live: vec![None; self.members.len()],
            lost: Vec::new(),
            used: BTreeMap::new(),
            in_use: BTreeMap::new(),
            held: BTreeMap::new(),
            watches: Vec::new(),
            created: None,
            deletable,
        });
        (0..self.members.len())
            .filter(|site| self.present[*site].0 > 0)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|site| self.fill(site));
        at
    }

    /// A site has handled an input and hands out this batch.
    pub(crate) fn handed_out(&mut self, now: u64, site: usize, seq: Seq, node: &Node, batch: &Batch) {
        let incarnation = node.incarnation();
        if self.lost.contains(&(site, incarnation)) {
            // An old copy may say hello, and nothing else.
            let acts =
                batch.iter().any(|(key, value)| matches!(key[0], QUOTA_COLD | QUOTA_HOT | OUTCOME) && value.is_some());
            self.blame(lives::NAME, lives::check(incarnation, acts), &format!("site {site}"));
            return self.handed[site].push_back(Handed { seq, at: now, incarnation, epoch: None, changes: Vec::new() });
        }
        let here = node.chapters().quotas.epoch();
        let mut entered = None;
        let mut changes = Vec::new();
        let mut ended: Vec<u64> = Vec::new();
        let mut released: Vec<u64> = Vec::new();
        self.touched.clear();
        for (key, value) in batch.iter() {
            match key[0] {
                FORGOTTEN => entered = self.enter(site, node),
                QUOTA_COLD | QUOTA_HOT if value.is_some() => {
                    let at = quota_number(key).expect("a key that was just written");
                    if !self.touched.contains(&at) {
                        self.touched.push(at);
                    }
                }
                OUTCOME => {
                    let slot = u16::from_be_bytes([key[9], key[10]]);
                    let Some(value) = value.filter(|_| u64::from(slot) != MARK_SLOT) else { continue };
                    let session = SessionId(u64::from_be_bytes(key[1..9].try_into().expect("a key of this length")));
                    let row = decode_row(value, self.members[site], incarnation).expect("a row that was just written");
                    let of_session = self.sessions.get(&(site, incarnation, session));
                    let op = of_session.and_then(|ops| ops.get(row.sequence as usize - 1)).copied();
                    let Some(op) = op else {
                        let about = format!("site {site}, session {}, operation {}", session.0, row.sequence);
                        let what = format!("nobody submitted it there, and it ended as {:?}", row.outcome);
                        self.blame(once::NAME, Err(what), &about);
                        continue;
                    };
                    let known = &self.ops[op as usize];
                    if is_done(&row.outcome) && row.digest != digest(&known.operation) {
                        let about = known.id.to_string();
                        self.blame(once::NAME, Err("other content was carried out under its id".to_owned()), &about);
                        continue;
                    }
                    if let Operation::ReleaseGrant { grant } = known.operation {
                        released.push(grant.number);
                    }
                    changes.push(Change::Outcome { op, outcome: row.outcome, book: None, generation: 0 });
                }
                GRANT if value.is_none() => {
                    let of = u32::from_be_bytes([key[1], key[2], key[3], key[4]]);
                    let number = u64::from_be_bytes(key[5..13].try_into().expect("a key of this length"));
                    if Incarnation(of) == incarnation {
                        ended.push(number);
                    }
                }
                _ => {}
            }
        }
        let touched = std::mem::take(&mut self.touched);
        for &at in &touched {
            let quota = node.chapters().quotas.numbered(at).expect("a quota that was just written");
            let book = self.refresh(site, incarnation, here, quota);
            self.books[book].changed[site] = now;
            let generation = quota.avantan().share.table.generation;
            let (granted, taken_back) = quota.used();
            // A quota that is deleted counts nothing any more.
            if quota.limit().is_some() {
                changes.push(Change::Counters { book, generation, granted, taken_back });
            }
            self.conserve(book);
        }
        self.touched = touched;
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
        self.handed[site].push_back(Handed { seq, at: now, incarnation, epoch: entered, changes });
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
                    self.blame(forgetting::NAME, found, &format!("{about}, quota {name}"));
                }
            }
            Ok(false) => {}
            Err(what) => self.blame(forgetting::NAME, Err(what), &about),
        }
        Some(decided.epoch)
    }

    /// The book that an operation moves tokens of.
    pub(crate) fn book_of(&self, op: u32) -> Option<usize> {
        let op = &self.ops[op as usize];
        match &op.operation {
            Operation::ReleaseGrant { grant } => self.grant(*grant).and_then(|granted| self.ops[granted as usize].book),
            _ => op.book,
        }
    }

    /// The operation that was granted this.
    pub(crate) fn grant(&self, grant: GrantId) -> Option<u32> {
        let site = self.members.binary_search(&grant.site).ok()?;
        self.grants.get(&(site, grant.incarnation, grant.number)).copied()
    }

    /// A batch is durable.
    pub(crate) fn durable(&mut self, site: usize, seq: Seq) {
        let Some(handed) = self.handed[site].pop_front() else { return };
        assert_eq!(handed.seq, seq, "batches become durable in order");
        let incarnation = handed.incarnation;
        if let Some(epoch) = handed.epoch {
            self.forgotten.became_durable(epoch);
        }
        let mut moved: Vec<(usize, u32)> = Vec::new();
        let counters = handed.changes.iter().filter_map(|change| match change {
            Change::Counters { book, generation, .. } => Some((*book, *generation)),
            _ => None,
        });
        let counted: Vec<(usize, u32)> = counters.collect();
        for change in &handed.changes {
            match change {
                Change::Outcome { op, outcome, book, generation } => {
                    let of = &mut self.ops[*op as usize].book;
                    *of = book.or(*of);
                    self.outcome(site, incarnation, *op, outcome, *generation, &mut moved);
                }
                Change::Ended { number, released } => {
                    self.ended(site, incarnation, *number, *released, handed.at, &counted, &mut moved);
                }
                Change::Counters { .. } => {}
            }
        }
        for change in &handed.changes {
            let Change::Counters { book, generation, granted, taken_back } = change else { continue };
            let outcomes = self.books[*book].used.get(&(site, incarnation, *generation)).copied().unwrap_or_default();
            let found = once::check_counters((*granted, *taken_back), outcomes);
            let about = format!("quota {} at site {site}", self.books[*book].name);
            // Taking back what nothing accounts for is what a hold does that ends twice.
            let invariant = if *granted == outcomes.0 { holds::NAME } else { once::NAME };
            self.blame(invariant, found, &about);
        }
        for (book, generation) in moved {
            let book = &mut self.books[book];
            let in_use = book.in_use.get(&generation).copied().unwrap_or(0);
            for watch in book.watches.iter_mut().filter(|watch| watch.generation == generation) {
                watch.least = watch.least.min(in_use);
                watch.most = watch.most.max(in_use);
            }
            let Some((_, table)) = book.decisions.newest() else { continue };
            let Some(of) = table.limit.filter(|_| table.generation == generation) else { continue };
            let found = limit::check(in_use, of, "the sites'");
            let about = format!("quota {}", book.name);
            self.blame(limit::NAME, found, &about);
        }
    }

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
        let skipped = if op.skipped { once::check_skipped(op.told.as_ref(), outcome) } else { Ok(()) };
        let found = once::check(op.durable.as_ref(), op.told.as_ref(), outcome).and(skipped);
        let about = op.id.to_string();
        op.durable = Some(outcome.clone());
        op.generation = generation;
        let mut used = (0, 0);
        match (&op.operation, outcome) {
            (Operation::Acquire { amount, hold, .. }, Outcome::Granted { grant, lasts }) => {
                used.0 = *amount as u128;
                if *hold != Hold::Counted {
                    // Holders count from when they sent the request, and stop early by what clocks may err.
                    let until = lasts.map(|lasts| op.first_sent + lasts.saturating_sub(EPSILON as u64));
                    op.tracked = Some(Tracked { until, ended: false });
                    self.grants.insert((site, incarnation, grant.number), at);
                }
            }
            (_, Outcome::Released { amount }) => used.1 = *amount as u128,
            _ => {}
        }
        self.blame(once::NAME, found, &about);
        if let Some(book) = book.filter(|_| used != (0, 0)) {
            self.count(site, incarnation, book, generation, used);
            moved.push((book, generation));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what is known of one end")]
    fn ended(
        &mut self,
        site: usize,
        incarnation: Incarnation,
        number: u64,
        released: bool,
        at: u64,
        counted: &[(usize, u32)],
        moved: &mut Vec<(usize, u32)>,
    ) {
        let Some(&granted) = self.grants.get(&(site, incarnation, number)) else {
            let about = format!("site {site}, grant {number}");
            return self.blame(holds::NAME, Err("a grant ended that nobody was given".to_owned()), &about);
        };
        let op = &mut self.ops[granted as usize];
        // The grants of a quota that is deleted go, without a trace in any book.
        let newest = op.book.and_then(|book| self.books[book].decisions.newest());
        let is_dead = newest.is_some_and(|(_, table)| table.limit.is_none() || table.generation != op.generation);
        let tracked = op.tracked.as_mut().expect("a tracked grant");
        let found = holds::check_end(tracked, at, released || (is_dead && tracked.until.is_none()));
        tracked.ended = true;
        let about = op.id.to_string();
        let (book, generation) = (op.book, op.generation);
        let amount = match op.operation {
            Operation::Acquire { amount, .. } => amount as u128,
            _ => 0,
        };
        self.blame(holds::NAME, found, &about);
        // A quota that is deleted, or created anew since, takes nothing back; one that does, hands out its counters.
        let Some(book) = book.filter(|book| !released && counted.contains(&(*book, generation))) else { return };
        self.count(site, incarnation, book, generation, (0, amount));
        moved.push((book, generation));
    }

    fn count(&mut self, site: usize, incarnation: Incarnation, book: usize, generation: u32, used: (u128, u128)) {
        let book = &mut self.books[book];
        let sums = book.used.entry((site, incarnation, generation)).or_default();
        sums.0 += used.0;
        sums.1 += used.1;
        *book.in_use.entry(generation).or_default() += used.0 as i128 - used.1 as i128;
    }

    /// Looks at a site's share of a quota anew.
    fn refresh(&mut self, site: usize, incarnation: Incarnation, epoch: u64, quota: &Quota) -> usize {
        let at = self.book_in(quota.name(), epoch);
        let members = self.members.len();
        let book = &mut self.books[at];
        let share = &quota.avantan().share;
        let generation = share.table.generation;
        let before = book.live[site].take().filter(|a| a.incarnation == incarnation && a.generation == generation);
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
            given: totals(&|peer| quota.given(peer), before.as_ref().map(|account| &account.given)),
            received: totals(&|peer| quota.received(peer), before.as_ref().map(|account| &account.received)),
        };
        if let Some(before) = before.filter(|before| before.held > 0 && account.held > 0) {
            self.moved_aside.0 += u64::from(account.granted > before.granted);
            self.moved_aside.1 += u64::from(account.taken_back > before.taken_back);
        }
        let found = book.decisions.note(share.applied, &share.table);
        book.live[site] = Some(account);
        let about = format!("quota {} at site {site}", quota.name());
        self.blame(agreement::NAME, found, &about);
        at
    }

    /// Where a quota's tokens are.
    pub(crate) fn sums(&self, book: usize) -> Result<Option<(i64, Sums)>, String> {
        let book = &self.books[book];
        let accounts: Vec<&Account> = book.live.iter().flatten().chain(&book.lost).collect();
        let is_live = |account: &Account| {
            let site = self.members.binary_search(&account.site).unwrap_or(usize::MAX);
            !self.lost.contains(&(site, account.incarnation))
        };
        conservation::sum(&book.decisions, &accounts, &self.members, is_live)
    }

    fn conserve(&mut self, book: usize) {
        self.conserved += 1;
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

    /// Everything that is known of a quota, for whoever has to find out what went wrong with it.
    pub(crate) fn accounts(&self, book: usize) -> String {
        let book = &self.books[book];
        let accounts = book.live.iter().flatten().chain(&book.lost).map(|account| format!("\n  {account:?}"));
        accounts.collect::<String>() + &format!("\n  {:?}", book.decisions.newest())
    }

    /// Checks every quota.
    pub(crate) fn conserve_all(&mut self) {
        (0..self.books.len()).for_each(|book| self.conserve(book));
    }

    /// How often a site has crashed.
    pub(crate) fn life(&self, site: usize) -> u32 {
        self.lives[site]
    }

    /// A site crashed: only what its disk has counts, which `rest` is opened on.
    pub(crate) fn crashed(&mut self, site: usize, rest: &Node) {
        self.lives[site] += 1;
        self.handed[site].clear();
        self.forgotten.crashed(site);
        if rest.incarnation() != self.present[site] {
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
        let incarnation = self.present[site];
        self.lost.insert((site, incarnation));
        for book in &self.books {
            let arrived = |donor: usize| {
                let account = book.live[site].as_ref();
                let mut totals = account.into_iter().flat_map(|account| &account.received);
                totals.find(|total| total.0 == donor).map_or(0, |total| total.2)
            };
            let donors = book.live.iter().enumerate().filter_map(|(donor, account)| Some((donor, account.as_ref()?)));
            for (donor, account) in donors {
                let given = account.given.iter().find(|total| total.0 == site && total.1 == incarnation);
                self.lost_gifts += u64::from(given.is_some_and(|total| total.2 > arrived(donor)));
            }
        }
        for book in &mut self.books {
            book.lost.extend(book.live[site].take());
        }
        self.present[site] = Incarnation(0);
    }

    /// The incarnation of a site, as far as it has shown itself.
    pub(crate) fn incarnation(&self, site: usize) -> Incarnation {
        self.present[site]
    }

    /// Takes note of the incarnation in which a site handles inputs.
    pub(crate) fn seen(&mut self, site: usize, incarnation: Incarnation) -> bool {
        if incarnation == self.present[site] || incarnation.0 == 0 || self.lost.contains(&(site, incarnation)) {
            return false;
        }
        let found = lives::check_joins(self.present[site]);
        self.blame(lives::NAME, found, &format!("site {site}, incarnation {}", incarnation.0));
        self.present[site] = incarnation;
        self.fill(site);
        true
    }

    /// A site calls the storage that it was started on an old copy.
    pub(crate) fn called_old(&mut self, site: usize, incarnation: Incarnation) {
        let found = lives::check_old(self.lost.contains(&(site, incarnation)));
        self.blame(lives::NAME, found, &format!("site {site}, incarnation {}", incarnation.0));
    }

    /// A site that has not met a quota has nothing of it.
    fn fill(&mut self, site: usize) {
        let (id, incarnation) = (self.members[site], self.present[site]);
        for book in self.books.iter_mut().filter(|book| book.live[site].is_none()) {
            book.live[site] = Some(Account { site: id, incarnation, ..Account::default() });
        }
    }

    pub(crate) fn present(&self, site: usize) -> Incarnation {
        self.present[site]
    }

    /// A client believes to hold tokens from now on, until it says otherwise or until a true time.
    pub(crate) fn hold(&mut self, now: u64, op: u32, amount: i64, until: Option<u64>) -> usize {
        self.end_holds(now);
        let at = self.holds.len();
        let generation = self.ops[op as usize].generation;
        let book = self.ops[op as usize].book.expect("a grant is of a quota");
        let active = until.is_none_or(|until| until > now);
        self.holds.push(Held { op, book, generation, amount, active });
        if !active {
            return at;
        }
        let of_book = &mut self.books[book];
        let held = of_book.held.entry(generation).or_default();
        *held += i128::from(amount);
        let held = *held;
        if let Some(until) = until {
            self.ends.push(Reverse((until, at)));
        }
        let table = of_book.decisions.newest().map(|(_, table)| table);
        if let Some(of) = table.filter(|table| table.generation == generation).and_then(|table| table.limit) {
            let about = format!("quota {}, at {}", of_book.name, self.ops[op as usize].id);
            let found = limit::check(held, of, "the clients'").map_err(|what| what + &self.holders(book));
            self.blame(limit::NAME, found, &about);
        }
        at
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
            Operation::ReleaseGrant { grant } => {
                let granted = self.grant(*grant).map(|granted| &self.ops[granted as usize].operation);
                let Some(Operation::Acquire { amount, .. }) = granted else { return 0 };
                i128::from(*amount)
            }
            _ => 0,
        };
        doubted.map(|(_, op)| amount(op)).sum()
    }

    /// Who believes to hold tokens of a quota.
    fn holders(&self, book: usize) -> String {
        let active = self.holds.iter().filter(|held| held.active && held.book == book);
        active.map(|held| format!("\n  {held:?} by {}", self.ops[held.op as usize].id)).collect()
    }

    /// The client no longer uses a part of what it held.
    pub(crate) fn let_go(&mut self, now: u64, hold: usize, amount: i64) {
        self.end_holds(now);
        let held = &mut self.holds[hold];
        if !held.active {
            return;
        }
        held.amount -= amount;
        held.active = held.amount > 0;
        *self.books[held.book].held.entry(held.generation).or_default() -= i128::from(amount);
    }

    fn end_holds(&mut self, now: u64) {
        while let Some(&Reverse((until, at))) = self.ends.peek() {
            if until > now {
                return;
            }
            self.ends.pop();
            let held = &mut self.holds[at];
            if std::mem::take(&mut held.active) {
                *self.books[held.book].held.entry(held.generation).or_default() -= i128::from(held.amount);
            }
        }
    }

    /// A client asks for a count.
    pub(crate) fn watch(&mut self, book: usize, request: u64) {
        let book = &mut self.books[book];
        let generation = book.decisions.newest().map_or(0, |(_, table)| table.generation);
        let in_use = book.in_use.get(&generation).copied().unwrap_or(0);
        book.watches.push(Watch { request, generation, least: in_use, most: in_use });
    }

    /// What may be told to a client that asked for a count; none if the quota was created anew in between.
    pub(crate) fn unwatch(&mut self, book: usize, request: u64) -> Option<Watch> {
        let book = &mut self.books[book];
        let at = book.watches.iter().position(|watch| watch.request == request)?;
        let watch = book.watches.swap_remove(at);
        let (_, table) = book.decisions.newest()?;
        (table.generation == watch.generation && table.limit.is_some()).then_some(watch)
    }

    /// Whether the session has an outcome durably that its client still cares about.
    pub(crate) fn recorded(&self, site: usize, incarnation: Incarnation, session: SessionId, low: u64) -> bool {
        let ops = self.sessions.get(&(site, incarnation, session));
        let cared = ops.into_iter().flatten().skip(low.saturating_sub(1) as usize);
        cared.into_iter().any(|&op| {
            self.ops[op as usize].durable.as_ref().is_some_and(|o| *o != Outcome::Unknown(UnknownReason::Undecided))
        })
    }

    /// Tracked grants that should be over.
    pub(crate) fn check_holds(&mut self, now: u64, patience: u64) {
        let mut late = Vec::new();
        for (&(site, incarnation, _), &op) in &self.grants {
            let op = &self.ops[op as usize];
            let deleted = op.book.is_some_and(|book| self.books[book].deletable);
            if self.lost.contains(&(site, incarnation)) || deleted {
                continue;
            }
            if let Some(tracked) = &op.tracked {
                late.push((op.id.to_string(), holds::check_rest(tracked, now, patience)));
            }
        }
        late.into_iter().for_each(|(about, found)| self.blame(holds::NAME, found, &about));
    }
}

/// The quota that an operation names.
pub(crate) fn quota_of(operation: &Operation) -> Option<&str> {
    match operation {
        Operation::Acquire { quota, .. }
        | Operation::Release { quota, .. }
        | Operation::Create { quota, .. }
        | Operation::Delete { quota } => Some(quota),
        Operation::ReleaseGrant { .. } | Operation::Commit(_) | Operation::AcceptLoss => None,
    }
}
