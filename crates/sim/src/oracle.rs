//! What sites have made durable, what clients were told, and where every token is: the simulator's own truth, against
//! which the invariants are judged.
//!
//! | file | what it is about |
//! | --- | --- |
//! | `batches` | what sites have made durable |
//! | `accounts` | where every token is |
//! | `beliefs` | what clients hold, and what they count |

mod accounts;
mod batches;
mod beliefs;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt::Display;

use slackline_core::api::{Operation, Outcome, UnknownReason};
use slackline_core::avantan::Row;
use slackline_core::avantan::subset::Key;
use slackline_core::id::{GrantId, Incarnation, OperationId, SessionId, SiteId};
use slackline_core::machine::{ClientId, Seq};

use crate::invariants::agreement::Decisions;
use crate::invariants::answers::Answered;
use crate::invariants::conservation::Account;
use crate::invariants::holds::Tracked;
use crate::invariants::{Violation, forgetting};
use crate::quotas::parent_of;

/// One operation of a client.
#[derive(Debug)]
pub(crate) struct Op {
    /// Its id.
    pub(crate) id: OperationId,
    /// The position of the site that the id names.
    pub(crate) site: usize,
    /// What is to be done.
    pub(crate) operation: Operation,
    /// The longest time that it may wait at its site, in microseconds.
    pub(crate) timeout: u64,
    /// The quota, if the oracle keeps books of it.
    pub(crate) book: Option<usize>,
    /// When and how it was sent.
    pub(crate) sent: Sent,
    /// Whose it is.
    pub(crate) origin: Origin,
    /// What has left its site.
    pub(crate) answered: Answered,
    /// The definitive answer that its client was given.
    pub(crate) told: Option<Outcome>,
    /// The outcome that its site has durably.
    pub(crate) durable: Option<Outcome>,
    /// The generation that it was granted of.
    pub(crate) generation: u32,
    /// The hold that it was granted, if that is tracked.
    pub(crate) tracked: Option<Tracked>,
}

/// When and how an operation was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// When it was first sent.
    pub(crate) first: u64,
    /// The number of times that it was sent, relayed or not.
    pub(crate) times: u32,
    /// True if it was ever sent through another site.
    pub(crate) relayed: bool,
}

/// Whose an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// Of a client that speaks to sites itself.
    Client,
    /// Of such a client, too: it jumped, and passed the operation's number over.
    PassedOver,
    /// Of a caller of the product's client.
    Caller,
}

impl Sent {
    /// It is sent once more.
    pub(crate) fn again(&mut self, relayed: bool) {
        self.times += 1;
        self.relayed |= relayed;
    }
}

impl Op {
    /// Returns true if its client does not care how it ends, or knows.
    pub(crate) fn is_over(&self) -> bool {
        self.told.is_some() || self.origin == Origin::PassedOver
    }
}

/// Tokens that a client believes to hold.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// The operation that they come from.
    op: u32,
    /// The quota's book.
    book: usize,
    /// The generation of the quota.
    generation: u32,
    /// The number that is left.
    amount: i64,
    /// True if the client uses them still.
    active: bool,
}

/// What clients believe to hold.
#[derive(Debug, Default)]
struct Believed {
    /// Everything that was ever held; names of holds are positions here.
    holds: Vec<Held>,
    /// When holds end by themselves; the next one first.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
}

/// What a counting client may be told: the least and the most that was in use since it asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counting {
    /// The request by which it asked.
    request: ClientId,
    /// The generation of the quota at that time.
    generation: u32,
    /// The least that was durably in use since.
    pub(crate) least: i128,
    /// The most.
    pub(crate) most: i128,
}

/// All that is known of one quota.
#[derive(Debug)]
pub(crate) struct Book {
    /// The quota's name.
    pub(crate) name: String,
    /// The number of times that the name was forgotten before: each life has a book of its own.
    pub(crate) life: u32,
    /// When each site last wrote a row of it.
    pub(crate) changed: Vec<u64>,
    /// What was decided of it.
    pub(crate) decisions: Decisions,
    /// The values of its rounds among subsets that somebody accepted.
    pub(crate) values: BTreeMap<Key, Vec<Row>>,
    /// The account of each site's present incarnation.
    pub(crate) live: Vec<Option<Account>>,
    /// The accounts of incarnations that are lost.
    pub(crate) lost: Vec<Account>,
    /// What recorded outcomes granted and took back, by site, incarnation and generation.
    used: BTreeMap<(usize, Incarnation, u32), (u128, u128)>,
    /// What is durably in use, by generation.
    pub(crate) in_use: BTreeMap<u32, i128>,
    /// What clients believe to hold, by generation.
    pub(crate) held: BTreeMap<u32, i128>,
    /// Counts that are under way.
    pub(crate) countings: Vec<Counting>,
    /// When its creation was first acknowledged, if nobody ever asked for its deletion.
    pub(crate) created: Option<u64>,
    /// True if clients delete it now and then.
    pub(crate) deletable: bool,
    /// True if it refills: what it grants is held by nobody, and sites take it back by themselves.
    pub(crate) refills: bool,
    /// What a quota that refills has granted: when the site did, and how many tokens.
    pub(crate) granted: Vec<(u64, i64)>,
}

/// What a batch changes, once it is durable.
#[derive(Debug)]
enum Change {
    /// An operation has this outcome, under this generation of a quota.
    Outcome { op: u32, outcome: Outcome, book: Option<usize>, generation: u32 },
    /// A tracked grant is over.
    Ended { number: u64, released: bool },
    /// A site has granted and taken back so much of a quota in all.
    Counters { book: usize, generation: u32, granted: u128, taken_back: u128 },
}

/// A batch that was handed out and is not durable yet.
#[derive(Debug)]
struct Handed {
    /// Its number.
    seq: Seq,
    /// When it was handed out.
    at: u64,
    /// The incarnation of the site.
    incarnation: Incarnation,
    /// The epoch that the site enters.
    epoch: Option<u64>,
    /// What it changes.
    changes: Vec<Change>,
}

impl Handed {
    /// The books, and their generations, of which the batch has counters.
    fn counted(&self) -> Vec<(usize, u32)> {
        let counters = self.changes.iter().filter_map(|change| match change {
            Change::Counters { book, generation, .. } => Some((*book, *generation)),
            _ => None,
        });
        counters.collect()
    }
}

/// What is known of one site.
#[derive(Debug, Default)]
struct OfSite {
    /// Batches that it has handed out; the oldest first.
    handed: VecDeque<Handed>,
    /// The incarnation whose account is the live one; 0 if there is none.
    present: Incarnation,
    /// The number of times that it has crashed.
    lives: u32,
}

/// What was counted, for a report and for probes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// The number of times that conservation was checked.
    pub(crate) conserved: u64,
    /// Shares that granted while some of their tokens were set aside.
    pub(crate) granted_aside: u64,
    /// Shares that took tokens back while some were set aside.
    pub(crate) released_aside: u64,
    /// Rounds that were applied at a site, and do not name all sites.
    pub(crate) among_subset: u64,
    /// Values that were accepted while a site elsewhere had accepted one that names none of the same sites.
    pub(crate) disjoint: u64,
    /// Rounds that ended at a site when their leaders were lost.
    pub(crate) dead_leaders: u64,
    /// Rounds that ended at a site when a cohort was lost that has not applied them.
    pub(crate) dead_cohorts: u64,
    /// Gifts that were under way to an incarnation when it was lost.
    pub(crate) lost_gifts: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Oracle {
    /// The sites, by position.
    members: Vec<SiteId>,
    /// Operations; their names are positions here.
    pub(crate) ops: Vec<Op>,
    /// Operations by session; sequence 1 first.
    pub(crate) sessions: BTreeMap<(usize, Incarnation, SessionId), Vec<u32>>,
    /// The operation that was granted each tracked grant.
    grants: BTreeMap<(usize, Incarnation, u64), u32>,
    /// Quotas.
    pub(crate) books: Vec<Book>,
    /// The book of each name and life.
    names: BTreeMap<(String, u32), usize>,
    /// What names were forgotten when.
    forgotten: forgetting::Steps,
    /// What is known of each site.
    sites: Vec<OfSite>,
    /// Incarnations whose storage is lost.
    pub(crate) lost: BTreeSet<(usize, Incarnation)>,
    /// What clients believe to hold.
    believed: Believed,
    /// What was counted.
    pub(crate) counts: Counts,
    /// The first invariant that did not hold.
    pub(crate) violation: Option<Violation>,
}

impl Oracle {
    /// Nothing has happened yet.
    pub(crate) fn new(members: &[SiteId]) -> Self {
        Self {
            members: members.to_vec(),
            ops: Vec::new(),
            sessions: BTreeMap::new(),
            grants: BTreeMap::new(),
            books: Vec::new(),
            names: BTreeMap::new(),
            forgotten: forgetting::Steps::default(),
            sites: members.iter().map(|_| OfSite::default()).collect(),
            lost: BTreeSet::new(),
            believed: Believed::default(),
            counts: Counts::default(),
            violation: None,
        }
    }

    /// Takes an operation in that a client numbers now, or passes over; its name.
    pub(crate) fn register(
        &mut self,
        now: u64,
        id: OperationId,
        operation: Operation,
        timeout: u64,
        origin: Origin,
    ) -> u32 {
        let book = quota_of(&operation).map(str::to_owned).map(|name| self.book(&name));
        let site = self.members.binary_search(&id.site).expect("clients know the sites");

        let op = self.ops.len() as u32;
        self.ops.push(Op {
            id,
            site,
            operation,
            timeout,
            book,
            sent: Sent { first: now, times: 0, relayed: false },
            origin,
            answered: Answered::default(),
            told: None,
            durable: None,
            generation: 0,
            tracked: None,
        });

        let ops = self.sessions.entry((site, id.incarnation, id.session)).or_default();
        assert_eq!(ops.len() as u64 + 1, id.sequence, "operations are numbered without a gap");
        ops.push(op);
        op
    }

    /// Keeps the first invariant that does not hold, and of what.
    pub(crate) fn blame(&mut self, invariant: &'static str, found: Result<(), String>, about: impl Display) {
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

    /// Returns the number of times that a name was forgotten up to an epoch.
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

        // A name that was deleted and created is so in its next life, too. And one that refills does: it may have been forgotten before it was
        // created for the first time.
        let before = life.checked_sub(1).and_then(|life| self.names.get(&(name.to_owned(), life)));
        let before = before.map(|&before| &self.books[before]);
        let deletable = before.is_some_and(|before| before.deletable);
        let refills = before.is_some_and(|before| before.refills);

        let at = self.books.len();
        self.names.insert(key, at);
        self.books.push(Book {
            name: name.to_owned(),
            life,
            changed: vec![0; self.members.len()],
            decisions: Decisions::default(),
            values: BTreeMap::new(),
            live: vec![None; self.members.len()],
            lost: Vec::new(),
            used: BTreeMap::new(),
            in_use: BTreeMap::new(),
            held: BTreeMap::new(),
            countings: Vec::new(),
            created: None,
            deletable,
            refills,
            granted: Vec::new(),
        });

        for site in 0..self.members.len() {
            if self.sites[site].present.0 > 0 {
                self.fill(site);
            }
        }
        at
    }

    /// The book of the quota above another one.
    pub(crate) fn above(&self, book: usize) -> Option<usize> {
        let above = parent_of(&self.books[book].name)?;
        // The last life of that name: one that was forgotten before was never created.
        let lives = self.names.range((above.to_owned(), 0)..=(above.to_owned(), u32::MAX));
        lives.map(|(_, book)| *book).next_back()
    }

    /// A book and those of the quotas above it, each with a generation: its own, and that of the one above, which is never deleted.
    pub(crate) fn levels(&self, book: usize, generation: u32) -> Vec<(usize, u32)> {
        let mut levels = vec![(book, generation)];
        while let Some(above) = self.above(levels[levels.len() - 1].0) {
            levels.push((above, 1));
        }
        levels
    }

    /// The book that an operation moves tokens of.
    pub(crate) fn book_of(&self, op: u32) -> Option<usize> {
        let op = &self.ops[op as usize];
        match &op.operation {
            Operation::ReleaseGrant { grant, .. } | Operation::ExtendGrant { grant, .. } => {
                self.grant(*grant).and_then(|granted| self.ops[granted as usize].book)
            }
            _ => op.book,
        }
    }

    /// The operation that was granted this.
    pub(crate) fn grant(&self, grant: GrantId) -> Option<u32> {
        let site = self.members.binary_search(&grant.site).ok()?;
        self.grants.get(&(site, grant.incarnation, grant.number)).copied()
    }

    /// Returns the number of times that a site has crashed.
    pub(crate) fn life(&self, site: usize) -> u32 {
        self.sites[site].lives
    }

    /// The incarnation of a site, as far as it has shown itself.
    pub(crate) fn incarnation(&self, site: usize) -> Incarnation {
        self.sites[site].present
    }

    /// Returns the newest incarnation that the site has had, which may be lost.
    pub(crate) fn newest_incarnation(&self, site: usize) -> Incarnation {
        let lost = self.lost.range((site, Incarnation(0))..=(site, Incarnation(u32::MAX))).next_back();
        lost.map_or(self.sites[site].present, |(_, lost)| self.sites[site].present.max(*lost))
    }

    /// Returns true if the session has an outcome durably that its client still cares about.
    pub(crate) fn recorded(&self, site: usize, incarnation: Incarnation, session: SessionId, low: u64) -> bool {
        let ops = self.sessions.get(&(site, incarnation, session));

        let cared = ops.into_iter().flatten().skip(low.saturating_sub(1) as usize);
        cared.into_iter().any(|&op| {
            self.ops[op as usize].durable.as_ref().is_some_and(|o| *o != Outcome::Unknown(UnknownReason::Undecided))
        })
    }
}

/// The quota that an operation names.
pub(crate) fn quota_of(operation: &Operation) -> Option<&str> {
    match operation {
        Operation::Acquire { quota, .. }
        | Operation::Release { quota, .. }
        | Operation::Create { quota, .. }
        | Operation::SetLimit { quota, .. }
        | Operation::Reclaim { quota, .. }
        | Operation::Delete { quota } => Some(quota),
        Operation::ReleaseGrant { .. }
        | Operation::ExtendGrant { .. }
        | Operation::Commit(_)
        | Operation::Seat { .. }
        | Operation::AcceptLoss => None,
    }
}
