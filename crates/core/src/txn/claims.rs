//! Who has their turn at a home, where several programs want the same objects.
//!
//! A program that was aborted reads again with a [`Claim`]. If it bars others, it has its turn from then on: its home refuses what
//! younger programs want to prepare over the same objects. So the oldest program that wants an object gets it next, and nobody
//! starves. Clients bar others only after several aborts; before that, they wait for those who do.
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
//! - **Nothing rests on a claim.** It is in memory, it ends by time, and what its program hands over is judged like any other.
//!   Losing it costs another run.
//! - **No deadlock.** A claim waits for older claims, and for what is prepared. What is prepared waits for no claim: a part is
//!   refused where a claim stands in its way. So every wait leads to a program that is older, or to the end of a prepared
//!   transaction. [`PATIENCE`] ends the rest: what clocks that disagree, or messages that are lost, may bring about.
//! - **No right is issued over what is claimed**: a write would have to ask it back at once.
//! - **Everything has a bound**: how many objects are claimed and waited for, how long a claim lasts, and how long reads wait. Beyond
//!   it, there is no claim, and reads are answered at once.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::locks::Locks;
use super::table::is_within;
use super::{Timer, Txns};
use crate::clock::MILLISECOND;
use crate::id::SiteId;
use crate::object::message::{Claim, Fetch};
use crate::object::{Part, Rank, Span};
use crate::turn::Turn;

/// The most objects that are claimed at a home; beyond it, no claim is registered.
const CLAIMED: usize = 65_536;
/// The most objects and spans of which reads wait at a home; beyond it, they are answered at once.
const PARKED: usize = 65_536;
/// How long reads wait for their turn, in longest round trips; less if whoever asks says so.
const PATIENCE: u64 = 8;
/// How long a claim lasts after that, in longest round trips: its answer is on its way, and what is prepared comes back.
const GRACE: u64 = 2;
/// What these take at least, in microseconds.
const SHORTEST: u64 = 100 * MILLISECOND;

/// What reads that are parked wait for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Blocker {
    /// A write of this object is prepared.
    Write(String),
    /// The program with this nonce has its turn.
    Claim(u64),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    /// By the nonces of their programs.
    claims: FxHashMap<u64, Claimed>,
    /// How many objects and spans these are over.
    claimed_items: usize,
    /// The programs that claim an object, and whether they are to write it.
    names: BTreeMap<String, Vec<(u64, bool)>>,
    /// The programs that have scanned a span.
    spans: Vec<(u64, Span)>,
    parked: FxHashMap<u64, Parked>,
    /// How many objects and spans these read.
    parked_items: usize,
    blocked: BTreeMap<Blocker, BTreeSet<u64>>,
}

#[derive(Clone, Debug)]
struct Claimed {
    rank: Rank,
    /// Names with whether they are to be written. Those that are read and written stand here twice.
    names: Vec<(String, bool)>,
    /// How many objects and spans these are.
    items: usize,
    until: u64,
}

/// Reads that wait for their turn.
#[derive(Clone, Debug)]
struct Parked {
    from: SiteId,
    fetch: Fetch,
    blockers: BTreeSet<Blocker>,
    look_at: u64,
    until: u64,
}

/// What reads that wait, and claims, are counted by.
fn items_of(fetch: &Fetch) -> usize {
    1 + fetch.gets.len() + fetch.scans.len() + fetch.claim.as_ref().map_or(0, |claim| claim.writes.len())
}

impl Claims {
    /// Registers what a program claims, if there is room. An earlier claim of it is over.
    fn register(&mut self, fetch: &Fetch, claim: &Claim, until: u64) -> bool {
        self.remove(claim.rank.nonce);
        let Claim { rank, writes, .. } = claim;
        if self.claimed_items + items_of(fetch) > CLAIMED {
            return false;
        }
        self.claimed_items += items_of(fetch);
        let reads = fetch.gets.iter().map(|(name, _)| (name.clone(), false));
        let names: Vec<(String, bool)> = reads.chain(writes.iter().map(|name| (name.clone(), true))).collect();
        for (name, is_write) in &names {
            self.names.entry(name.clone()).or_default().push((rank.nonce, *is_write));
        }
        self.spans.extend(fetch.scans.iter().map(|span| (rank.nonce, span.clone())));
        self.claims.insert(rank.nonce, Claimed { rank: *rank, names, items: items_of(fetch), until });
        true
    }

    /// Ends a claim; says whether there was one.
    fn remove(&mut self, nonce: u64) -> bool {
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
        self.spans.retain(|(other, _)| *other != nonce);
        true
    }

    /// How many claims there are, and reads that wait.
    pub(super) fn len(&self) -> usize {
        self.claims.len() + self.parked.len()
    }

    /// Whether somebody claims an object.
    pub(super) fn is_claimed(&self, name: &str) -> bool {
        self.names.contains_key(name) || self.spans.iter().any(|(_, span)| is_within(span, name))
    }

    /// An object of a part over which an older program has its turn. What is read is locked too, when it is prepared.
    pub(super) fn in_the_way<'a>(&self, rank: Rank, part: &'a Part) -> Option<&'a String> {
        if self.claims.is_empty() {
            return None;
        }
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
    fn older_than(&self, rank: Rank, name: &str, writes: bool) -> impl Iterator<Item = u64> {
        let claims = self.names.get(name).into_iter().flatten();
        let named = claims.filter(move |(_, is_write)| writes || *is_write).map(|(nonce, _)| *nonce);
        let scanned = self.spans.iter().filter(move |(_, span)| writes && is_within(span, name));
        let is_older = move |nonce: &u64| *nonce != rank.nonce && self.claims[nonce].rank < rank;
        named.chain(scanned.map(|(nonce, _)| *nonce)).filter(is_older)
    }

    /// What a read has to wait for now.
    fn blockers(&self, locks: &Locks, fetch: &Fetch) -> BTreeSet<Blocker> {
        let names = fetch.gets.iter().map(|(name, _)| name);
        let changing = names.clone().filter(|name| locks.is_changing(name));
        let changing = changing.chain(fetch.scans.iter().flat_map(|span| locks.changing_in(span)));
        let mut blockers: BTreeSet<Blocker> = changing.map(|name| Blocker::Write(name.clone())).collect();
        let rank = fetch.claim.as_ref().map_or(Rank::LAST, |claim| claim.rank);
        let writes = fetch.claim.iter().flat_map(|claim| &claim.writes);
        let claims = names.flat_map(|name| self.older_than(rank, name, false));
        let claims = claims.chain(writes.flat_map(|name| self.older_than(rank, name, true)));
        blockers.extend(claims.map(Blocker::Claim));
        blockers.extend(fetch.scans.iter().flat_map(|span| self.older_in(rank, span)).map(Blocker::Claim));
        blockers
    }

    /// The reads that will be answered by a tick, for its working set.
    pub(super) fn parked(&self, token: u64) -> Option<&Fetch> {
        self.parked.get(&token).map(|parked| &parked.fetch)
    }

    fn block(&mut self, token: u64, blockers: &BTreeSet<Blocker>) {
        for blocker in blockers {
            self.blocked.entry(blocker.clone()).or_default().insert(token);
        }
    }

    /// Nobody waits for these any more.
    fn unblock(&mut self, token: u64, blockers: &BTreeSet<Blocker>) {
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

impl Txns {
    /// Lets reads wait for their turn; gives them back if it has come.
    pub(super) fn park(&mut self, turn: &mut Turn, from: SiteId, fetch: Fetch) -> Option<Fetch> {
        let patience = (PATIENCE * turn.longest_round_trip()).max(SHORTEST).min(fetch.patience);
        let until = turn.now.mono + patience;
        if let Some(claim) = fetch.claim.as_ref().filter(|claim| claim.bars && claim.rank.nonce != 0) {
            let until = until + (GRACE * turn.longest_round_trip()).max(SHORTEST);
            turn.metrics.turns_given += u64::from(self.claims.register(&fetch, claim, until));
            self.timers.insert((until, Timer::Claim(claim.rank.nonce)));
        }
        let blockers = self.claims.blockers(&self.locks, &fetch);
        let items = items_of(&fetch);
        if blockers.is_empty() || self.claims.parked_items + items > PARKED {
            return Some(fetch);
        }
        turn.metrics.turns_awaited += 1;
        let token = self.next_token();
        self.claims.block(token, &blockers);
        self.claims.parked_items += items;
        self.claims.parked.insert(token, Parked { from, fetch, blockers, look_at: until, until });
        self.timers.insert((until, Timer::Parked(token)));
        None
    }

    /// The time has come to look at reads that wait; gives them back if they wait no longer.
    pub(super) fn unpark(&mut self, turn: &Turn, at: u64, token: u64) -> Option<(SiteId, Fetch)> {
        let parked = self.claims.parked.get(&token).filter(|parked| parked.look_at == at)?;
        // Others may have come in the way meanwhile.
        let blockers = self.claims.blockers(&self.locks, &parked.fetch);
        if !blockers.is_empty() && turn.now.mono < parked.until {
            self.claims.block(token, &blockers);
            let parked = self.claims.parked.get_mut(&token).expect("looked up above");
            (parked.look_at, parked.blockers) = (parked.until, blockers);
            self.timers.insert((parked.until, Timer::Parked(token)));
            return None;
        }
        let parked = self.claims.parked.remove(&token).expect("looked up above");
        self.claims.unblock(token, &parked.blockers);
        self.claims.parked_items -= items_of(&parked.fetch);
        Some((parked.from, parked.fetch))
    }

    /// Something is over for which reads may have waited.
    fn wake(&mut self, now: u64, blocker: &Blocker) {
        for token in self.claims.blocked.remove(blocker).into_iter().flatten() {
            let parked = self.claims.parked.get_mut(&token).expect("whoever is blocked is parked");
            parked.blockers.remove(blocker);
            if parked.blockers.is_empty() {
                self.timers.remove(&(parked.look_at, Timer::Parked(token)));
                parked.look_at = now;
                self.timers.insert((now, Timer::Parked(token)));
            }
        }
    }

    /// What a part wrote is decided.
    pub(super) fn wake_readers(&mut self, now: u64, part: &Part) {
        if !self.claims.blocked.is_empty() {
            for (name, _) in &part.writes {
                self.wake(now, &Blocker::Write(name.clone()));
            }
        }
    }

    /// The turn of a program is over: what it wants was judged.
    pub(super) fn end_claim(&mut self, now: u64, nonce: u64) {
        if self.claims.remove(nonce) {
            self.wake(now, &Blocker::Claim(nonce));
        }
    }

    /// The time of a claim may be over.
    pub(super) fn look_at_claim(&mut self, now: u64, nonce: u64) {
        if self.claims.claims.get(&nonce).is_some_and(|claimed| claimed.until <= now) {
            self.end_claim(now, nonce);
        }
    }
}
