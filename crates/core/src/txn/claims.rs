//! The turns of programs at a home, where several want the same objects.
//!
//! A program that was aborted reads again with a [`Claim`]. If it bars others, it has its turn from then on: its home
//! refuses what younger programs want to prepare over the same objects. So the oldest program that wants an object gets
//! it next, and nobody starves. Clients bar others only after several aborts; before that, they wait for those who do.
//!
//! ```text
//!   Fetch, claim ──▶ registered, if it bars ──▶ waits: older claims? prepared writes? ──▶ Fetched ──▶ Prepare ends the claim
//!                                                   │
//!                                                   └── PATIENCE ──▶ Fetched all the same
//! ```
//!
//! | wants ↓, an older claim is to → | read | write |
//! | --- | --- | --- |
//! | to read what it is to write, by a claim | waits | waits |
//! | to read, by a claim or where that waits for what is prepared | passes | waits |
//! | to have what it read checked, without locks | passes | passes |
//! | to prepare what it read | passes | fails |
//! | to prepare a write | fails | fails |
//!
//! # Rules
//!
//! - **Nothing rests on a claim.** It is in memory, it ends by time, and what its program hands over is judged like any
//!   other. Losing it costs another run.
//! - **No deadlock.** A claim waits for older claims, and for what is prepared. What is prepared waits for no claim: a
//!   part is refused where a claim stands in its way. So every wait leads to a program that is older, or to the end of
//!   a prepared transaction. [`PATIENCE`] ends the rest: what clocks that disagree, or messages that are lost, may
//!   bring about.
//! - **No right is issued over what is claimed**: a write would have to ask it back at once.
//! - **Everything has a bound**: how many objects are claimed and waited for, how long a claim lasts, and how long
//!   reads wait. Beyond it, there is no claim, and reads are answered at once.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::locks::Locks;
use super::spans::Spans;
use super::table::is_within;
use crate::clock::MILLISECOND;
use crate::id::SiteId;
use crate::object::message::{Claim, Fetch};
use crate::object::{Part, Rank, Span};

/// The most objects that are claimed at a home; beyond it, no claim is registered.
const CLAIMED: usize = 65_536;
/// The most objects and spans of which reads wait at a home; beyond it, they are answered at once.
pub(super) const PARKED: usize = 65_536;
/// The longest time that reads wait for their turn, in longest round trips; less if the asking site says so.
pub(super) const PATIENCE: u64 = 8;
/// The time that a claim lasts after that, in longest round trips: its answer is on its way, and its program's
/// `Prepare` comes.
pub(super) const GRACE: u64 = 2;
/// The least that each of these times is, in microseconds.
pub(super) const SHORTEST: u64 = 100 * MILLISECOND;

/// A reason for which reads are parked.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Blocker {
    /// A write of this object is prepared.
    Write(String),
    /// The program with this nonce has its turn.
    Claim(u64),
}

/// The claims at a home, and the reads that wait there.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    /// The programs that have their turn, by nonce.
    pub(super) claims: FxHashMap<u64, Claimed>,
    /// The sum of `items` of all claims; at most [`CLAIMED`].
    pub(super) claimed_items: usize,
    /// The programs that claim each object; true for one that is to write it. No list is empty.
    pub(super) names: BTreeMap<String, Vec<(u64, bool)>>,
    /// The programs that have scanned a span.
    spans: Spans<u64>,
    /// Reads that wait for their turn, by token.
    pub(super) parked: FxHashMap<u64, Parked>,
    /// The sum of the items of all parked reads; at most [`PARKED`].
    pub(super) parked_items: usize,
    /// The tokens of the reads that each blocker holds up. No set is empty.
    pub(super) blocked: BTreeMap<Blocker, BTreeSet<u64>>,
}

/// A program's claim.
#[derive(Clone, Debug)]
pub(super) struct Claimed {
    /// The program's place in the order.
    pub(super) rank: Rank,
    /// The claimed names; true for one that is to be written. A name that is read and written stands here twice.
    pub(super) names: Vec<(String, bool)>,
    /// The claimed spans.
    pub(super) spans: Vec<Span>,
    /// The number of objects and spans that it counts as.
    pub(super) items: usize,
    /// Its end, in monotonic microseconds.
    pub(super) until: u64,
}

/// Reads that wait for their turn.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    /// The site that asked, and is to be answered.
    pub(super) from: SiteId,
    /// The question as it came.
    pub(super) fetch: Fetch,
    /// The blockers found when they were last looked at, less those that are over since.
    pub(super) blockers: BTreeSet<Blocker>,
    /// The timer that counts, in monotonic microseconds; at most `until`.
    pub(super) look_at: u64,
    /// The time at which they are answered in any case, in monotonic microseconds.
    pub(super) until: u64,
}

/// The number of objects and spans that a question counts as, towards the bounds of parked reads and of claims.
pub(super) fn items_of(fetch: &Fetch) -> usize {
    1 + fetch.gets.len() + fetch.scans.len() + fetch.claim.as_ref().map_or(0, |claim| claim.writes.len())
}

impl Claims {
    /// Registers a program's claim, if there is room; returns true if it was. An earlier claim of the program ends.
    pub(super) fn register(&mut self, fetch: &Fetch, claim: &Claim, until: u64) -> bool {
        self.remove(claim.rank.nonce);
        let Claim { rank, writes, .. } = claim;
        if self.claimed_items + items_of(fetch) > CLAIMED {
            return false;
        }
        self.claimed_items += items_of(fetch);

        // Names that are read are claimed too: a younger program that wrote one would have this one run again.
        let reads = fetch.gets.iter().map(|(name, _)| (name.clone(), false));
        let names: Vec<(String, bool)> = reads.chain(writes.iter().map(|name| (name.clone(), true))).collect();
        for (name, is_write) in &names {
            self.names.entry(name.clone()).or_default().push((rank.nonce, *is_write));
        }
        fetch.scans.iter().for_each(|span| self.spans.insert(span, rank.nonce));
        let (spans, items) = (fetch.scans.clone(), items_of(fetch));
        self.claims.insert(rank.nonce, Claimed { rank: *rank, names, spans, items, until });
        true
    }

    /// Ends a claim; returns true if there was one.
    pub(super) fn remove(&mut self, nonce: u64) -> bool {
        let Some(claimed) = self.claims.remove(&nonce) else { return false };
        self.claimed_items -= claimed.items;

        for (name, _) in claimed.names {
            if let Some(claims) = self.names.get_mut(&name) {
                claims.retain(|(other, _)| *other != nonce);
                if claims.is_empty() {
                    self.names.remove(&name);
                }
            }
        }
        claimed.spans.iter().for_each(|span| self.spans.remove(span, nonce));
        assert!(!self.claims.is_empty() || self.claimed_items == 0, "no claim is left, and its bound is still used up");
        true
    }

    /// The number of claims, and of reads that wait.
    pub(super) fn len(&self) -> usize {
        self.claims.len() + self.parked.len()
    }

    /// True if some program claims an object.
    pub(super) fn is_claimed(&self, name: &str) -> bool {
        self.names.contains_key(name) || self.spans.over(name).next().is_some()
    }

    /// An object of a part over which an older program has its turn.
    pub(super) fn in_the_way<'a>(&self, rank: Rank, part: &'a Part) -> Option<&'a String> {
        if self.claims.is_empty() {
            return None;
        }

        // Reads count too: a prepared part locks what it read, and would make the older program's write fail.
        let of = |name: &'a String, writes| self.older_than(rank, name, writes).next().map(|_| name);
        let written = part.writes.iter().find_map(|(name, _)| of(name, true));
        let read = || part.reads.iter().find_map(|(name, _)| of(name, false));
        let scanned = || {
            let mut spans = part.scans.iter().map(|(span, _)| span);
            spans.find(|span| self.older_in(rank, span).next().is_some()).map(|span| &span.prefix)
        };
        written.or_else(read).or_else(scanned)
    }

    /// The older programs that are to write in a span.
    fn older_in<'a>(&'a self, rank: Rank, span: &'a Span) -> impl Iterator<Item = u64> + 'a {
        let from = self.names.range(span.prefix.clone()..).take_while(|(name, _)| name.starts_with(&span.prefix));
        let names = from.filter(|(name, _)| is_within(span, name));
        names.flat_map(move |(name, _)| self.older_than(rank, name, false))
    }

    /// The older programs that claim an object in the way of one that reads or writes it.
    fn older_than<'a>(&'a self, rank: Rank, name: &'a str, writes: bool) -> impl Iterator<Item = u64> + 'a {
        let claims = self.names.get(name).into_iter().flatten();
        let named = claims.filter(move |(_, is_write)| writes || *is_write).map(|(nonce, _)| *nonce);
        let scanned = writes.then(|| self.spans.over(name)).into_iter().flatten();
        let is_older = move |nonce: &u64| *nonce != rank.nonce && self.claims[nonce].rank < rank;
        named.chain(scanned.copied()).filter(is_older)
    }

    /// The blockers that a read has to wait for now.
    pub(super) fn blockers(&self, locks: &Locks, fetch: &Fetch) -> BTreeSet<Blocker> {
        // A prepared write may be decided soon, and what is read before that would be stale at once.
        let names = fetch.gets.iter().map(|(name, _)| name);
        let changing = names.clone().filter(|name| locks.is_changing(name));
        let changing = changing.chain(fetch.scans.iter().flat_map(|span| locks.changing_in(span)));
        let mut blockers: BTreeSet<Blocker> = changing.map(|name| Blocker::Write(name.clone())).collect();

        // Only older claims: so no two programs wait for each other. A question without a claim is younger than all.
        let rank = fetch.claim.as_ref().map_or(Rank::LAST, |claim| claim.rank);
        let writes = fetch.claim.iter().flat_map(|claim| &claim.writes);
        let claims = names.flat_map(|name| self.older_than(rank, name, false));
        let claims = claims.chain(writes.flat_map(|name| self.older_than(rank, name, true)));
        blockers.extend(claims.map(Blocker::Claim));
        blockers.extend(fetch.scans.iter().flat_map(|span| self.older_in(rank, span)).map(Blocker::Claim));
        blockers
    }

    /// The question of parked reads.
    pub(super) fn parked(&self, token: u64) -> Option<&Fetch> {
        self.parked.get(&token).map(|parked| &parked.fetch)
    }

    /// Notes that blockers hold up parked reads.
    pub(super) fn block(&mut self, token: u64, blockers: &BTreeSet<Blocker>) {
        for blocker in blockers {
            self.blocked.entry(blocker.clone()).or_default().insert(token);
        }
    }

    /// Notes that reads wait for these blockers no longer.
    pub(super) fn unblock(&mut self, token: u64, blockers: &BTreeSet<Blocker>) {
        for blocker in blockers {
            if let Some(tokens) = self.blocked.get_mut(blocker) {
                tokens.remove(&token);
                if tokens.is_empty() {
                    self.blocked.remove(blocker);
                }
            }
        }
    }
}
