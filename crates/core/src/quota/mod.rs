//! Quotas: tokens of a shared resource, spread over sites.
//!
//! Each site holds a share. An acquire that fits the free part of the share is granted at once, durably, at local
//! latency; a release puts tokens back where it is made. Three things move tokens between sites:
//!
//! - **gifts** (`share.rs`): a site whose free tokens exceed its part of all free tokens, by demand, gives some away, one
//!   way. Most shortages are prevented, or ended, so.
//! - **reactive rounds** (`rounds.rs`): requests wait, and what peers said they have does not suffice or did not come.
//! - **proactive rounds**: the forecast exceeds what is here while others have enough, and no gift comes.
//!
//! The books: over all sites, Σ tokens + Σ (given − received) + in use = limit, at every moment. `tokens` includes what is
//! set aside for a round. Tokens of a lost incarnation count as in use.

mod dead;
mod forget;
mod line;
mod lookup;
mod rounds;
mod row;
mod serve;
mod share;
mod tally;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;

pub use dead::KEPT;
pub use forget::{FORGOTTEN, Forgetting, Freeze};
pub use row::{DUE, GRANT, QuotaRow, due_ranges, due_uptime, grant_key, is_quota_row, quota_number};
pub use tally::count;

use crate::api::{Outcome, SiteSet};
use crate::avantan::{Avantan, Clearance};
use crate::clock::MILLISECOND;
use crate::codec::Malformed;
use crate::id::Incarnation;
use crate::session::Aim;
use crate::stats::Demand;
pub use crate::turn::WAITING;
use crate::turn::{Ticket, Turn};
use dead::Walk;
use forget::Names;
use line::Line;
use lookup::Lookups;

/// The most quotas that a site knows, those included that are deleted and not forgotten yet; creating one more is refused.
pub const QUOTAS: usize = 4_000_000;
/// How often an active quota looks after its share when tokens are scarce, in microseconds.
pub const TICK: u64 = 50 * MILLISECOND;
/// How often it does when they are not.
pub const RELAXED_TICK: u64 = 200 * MILLISECOND;
/// How long gifts are waited for before a round is led, in hundredths of the longest round trip.
const SECOND_LOOK: u64 = 110;
/// No timer.
pub(crate) const NEVER: u64 = u64::MAX;

/// The quotas of a site.
#[derive(Debug, Default)]
pub struct Quotas {
    /// The quotas, at positions that they keep while the site runs. A position whose quota was forgotten is vacant until another
    /// takes it.
    list: Vec<Quota>,
    vacant: Vec<u32>,
    names: FxHashMap<Arc<str>, u32>,
    /// The positions of quotas whose number is another.
    moved: FxHashMap<u64, u32>,
    /// The number of the next quota. Numbers are never used twice.
    next_number: u64,
    /// How names go.
    forgetting: Names,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    dirty: Vec<u32>,
    lookups: Lookups,
    /// The search for grants of quotas that are deleted.
    walk: Walk,
    /// Where each operation waits. All that wait are here, so that one is found without a walk over the others.
    places: FxHashMap<Ticket, Place>,
    /// How many creations and deletions wait.
    administering: usize,
    /// The number of the next grant.
    next_grant: u64,
    scratch: Vec<u8>,
}

/// One quota at this site.
#[derive(Debug)]
pub struct Quota {
    name: Arc<str>,
    /// Names it on storage.
    number: u64,
    avantan: Avantan,
    /// Tokens ever granted here in this generation and incarnation, and ever taken back.
    acquired: u128,
    released: u128,
    /// Operations answered without waiting for another site.
    local: u64,
    /// The number of the last grant.
    last_grant: u64,
    rebalances: u64,
    gifts: u64,
    /// Running totals by member; empty until the first gift.
    given: Vec<Total>,
    received: Vec<Total>,
    /// What only matters while something goes on; none for a quota at rest, so that many fit into memory.
    activity: Option<Box<Activity>>,
    /// The entry in the timers that counts.
    wake: u64,
    dirty: Dirty,
}

/// A running total of gifts, and the incarnation of the peer that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Total {
    pub(crate) incarnation: Incarnation,
    pub(crate) tokens: u128,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Dirty {
    #[default]
    Clean,
    /// The hot row: tokens and counters.
    Hot,
    /// Both rows.
    All,
}

/// The volatile side of a quota that is in use.
#[derive(Debug)]
struct Activity {
    demand: Demand,
    waiting: Line,
    admin: VecDeque<Admin>,
    /// What each member last said of its share.
    peers: Vec<PeerShare>,
    /// When to look after the share.
    tick_at: u64,
    /// When to do something about the round, or about the shortage.
    phase_at: u64,
    /// When the round's present phase began.
    phase_since: u64,
    /// Whether peers were told of the present shortage and have had no time to answer it yet.
    asked_for_gifts: bool,
    /// No round is started before.
    retry_at: u64,
    /// How often rounds failed or ended in vain in a row.
    failures: u32,
    /// Who did not answer the last election that came to nothing.
    unanswered: SiteSet,
    /// The earliest deadline of a request that waits.
    deadline_at: u64,
    /// When tokens last came from elsewhere.
    fed_at: u64,
    /// When demand, gifts or rounds were last seen.
    active_at: u64,
    /// When to record new incarnations of members; [`NEVER`] if all that are known are recorded.
    record_at: u64,
    /// How often that was tried, or put off, since all were recorded.
    recordings: u32,
    /// What the others say of votes of this site's predecessors.
    clearance: Clearance,
}

/// Where an operation waits.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    /// In a quota's line, for tokens.
    Line { at: u32, arrival: u64 },
    /// For a quota's creation or deletion.
    Admin { at: u32 },
    /// For what others know of a name; numbered in the order of arrival.
    Name { name: Arc<str>, arrival: u64 },
}

/// A creation or deletion that waits for its round.
#[derive(Debug)]
struct Admin {
    ticket: Ticket,
    /// The limit to create with; none deletes.
    limit: Option<i64>,
    deadline: u64,
    /// Where a value that carries it out may be accepted: its row says "undecided".
    aim: Option<Aim>,
}

/// What a member last said of its share.
#[derive(Clone, Copy, Debug, Default)]
struct PeerShare {
    free: i64,
    short: i64,
    rate: u64,
    /// What it has received from us.
    received: u128,
    /// When it said so, and which of its incarnations did.
    heard_at: u64,
    said_by: Incarnation,
    told: Told,
}

/// What we last told a member.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    free: i64,
    short: i64,
    rate: u64,
    at: u64,
    /// How often a gift was repeated without a sign of its arrival.
    repeats: u32,
}

impl Activity {
    fn new(now: u64, members: usize) -> Self {
        Self {
            demand: Demand::new(now),
            waiting: Line::default(),
            admin: VecDeque::new(),
            peers: vec![PeerShare::default(); members],
            tick_at: NEVER,
            phase_at: NEVER,
            phase_since: now,
            asked_for_gifts: false,
            retry_at: 0,
            failures: 0,
            unanswered: SiteSet::default(),
            deadline_at: NEVER,
            fed_at: now,
            active_at: now,
            record_at: NEVER,
            recordings: 0,
            clearance: Clearance::default(),
        }
    }
}

impl Quota {
    fn new(name: Arc<str>, number: u64) -> Self {
        Self {
            name,
            number,
            avantan: Avantan::default(),
            acquired: 0,
            released: 0,
            local: 0,
            last_grant: 0,
            rebalances: 0,
            gifts: 0,
            given: Vec::new(),
            received: Vec::new(),
            activity: None,
            wake: NEVER,
            dirty: Dirty::Clean,
        }
    }

    /// What stands at a position that no quota has. No name is empty.
    fn vacant() -> Self {
        Self::new("".into(), u64::MAX)
    }

    fn is_vacant(&self) -> bool {
        self.name.is_empty()
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its number on storage: another for each life of a name.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its agreement.
    pub fn avantan(&self) -> &Avantan {
        &self.avantan
    }

    /// The limit, if it exists.
    pub fn limit(&self) -> Option<i64> {
        self.avantan.share.table.limit
    }

    /// Tokens that requests wait for here.
    pub fn needed(&self) -> i64 {
        self.activity.as_ref().map_or(0, |activity| activity.needed())
    }

    /// Whether it is in a round that is to delete it.
    fn is_closing(&self) -> bool {
        self.avantan.share.round.as_ref().is_some_and(|round| round.closing)
    }

    /// How many operations wait for its tokens, its creation or its deletion.
    pub fn waiting(&self) -> usize {
        self.activity.as_ref().map_or(0, |activity| activity.waiting.len() + activity.admin.len())
    }

    /// Tokens ever granted and ever taken back here.
    pub fn used(&self) -> (u128, u128) {
        (self.acquired, self.released)
    }

    /// The running total given to the member at `position`, and the member's incarnation that it is for.
    pub fn given(&self, position: usize) -> (Incarnation, u128) {
        self.given.get(position).map_or((Incarnation(0), 0), |total| (total.incarnation, total.tokens))
    }

    /// The running total received from the member at `position`, and the incarnation that gave it.
    pub fn received(&self, position: usize) -> (Incarnation, u128) {
        self.received.get(position).map_or((Incarnation(0), 0), |total| (total.incarnation, total.tokens))
    }

    #[inline]
    fn activity(&mut self, turn: &Turn) -> &mut Activity {
        if self.activity.is_none() {
            let mut activity = Box::new(Activity::new(turn.now.mono, turn.peers.len()));
            // Until the others say otherwise, they have what the last round left them with.
            for (share, peer) in activity.peers.iter_mut().zip(turn.peers) {
                let settled = self.avantan.share.table.settled(peer.site);
                share.free = settled.map_or(0, |settled| settled.row.after.saturating_add(settled.row.kept));
            }
            self.activity = Some(activity);
        }
        self.activity.as_mut().expect("made above")
    }
}

impl Quotas {
    /// No quotas; grants are numbered from 1.
    pub fn new() -> Self {
        Self { next_grant: 1, ..Self::default() }
    }

    /// Takes in a row when the site starts: all that change with rounds first, in order, then those that change with
    /// grants.
    pub fn restore(&mut self, row: QuotaRow) -> Result<(), Malformed> {
        match row {
            QuotaRow::Cold(quota) => {
                let (at, number) = (self.list.len(), quota.number);
                if quota.is_vacant() || self.names.contains_key(&quota.name) || self.position_of(number).is_some() {
                    return Err(Malformed);
                }
                self.names.insert(quota.name.clone(), at as u32);
                if number != at as u64 {
                    self.moved.insert(number, at as u32);
                }
                self.next_number = self.next_number.max(number + 1);
                self.list.push(*quota);
            }
            QuotaRow::Hot { number, tokens, acquired, released, local, last_grant } => {
                let at = self.position_of(number).ok_or(Malformed)?;
                let quota = &mut self.list[at];
                quota.avantan.share.tokens = tokens;
                (quota.acquired, quota.released) = (acquired, released);
                (quota.local, quota.last_grant) = (local, last_grant);
                self.next_grant = self.next_grant.max(last_grant + 1);
            }
        }
        Ok(())
    }

    /// How many are known, those included that are deleted and not forgotten yet.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// All quotas that are known, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &Quota> {
        self.list.iter().filter(|quota| !quota.is_vacant())
    }

    /// The quota that has this number on storage.
    pub fn numbered(&self, number: u64) -> Option<&Quota> {
        self.position_of(number).map(|at| &self.list[at])
    }

    /// The quota of this name.
    pub fn find(&self, name: &str) -> Option<&Quota> {
        self.names.get(name).map(|&at| &self.list[at as usize])
    }

    /// How many operations wait.
    pub fn waiting(&self) -> usize {
        self.places.len()
    }

    /// Whether operations wait for an agreement.
    pub fn has_admin(&self) -> bool {
        self.administering > 0
    }

    /// When something is next to be done, in monotonic microseconds.
    pub fn deadline(&self) -> Option<u64> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let others = [self.lookups.deadline(), self.walk.deadline(), self.forgetting.deadline()];
        timer.into_iter().chain(others.into_iter().flatten()).min()
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.names.get(name).map(|&at| at as usize)
    }

    /// Most quotas stand at the position that is their number.
    fn position_of(&self, number: u64) -> Option<usize> {
        let at =
            usize::try_from(number).ok().filter(|&at| self.list.get(at).is_some_and(|quota| quota.number == number));
        at.or_else(|| self.moved.get(&number).map(|&at| at as usize))
    }

    /// The quota of this name, if it exists and is not deleted.
    #[inline]
    fn living(&self, name: &str) -> Option<usize> {
        let at = *self.names.get(name)? as usize;
        self.list[at].limit().map(|_| at)
    }

    /// The quota of this name, made if it is new; none past the bound.
    fn position_or_new(&mut self, turn: &Turn, name: &str) -> Option<usize> {
        if let Some(at) = self.position(name) {
            return Some(at);
        }
        if self.names.len() >= QUOTAS || name.is_empty() || name.len() > crate::api::NAME_BYTES {
            return None;
        }
        let at = self.vacant.pop().map_or(self.list.len(), |at| at as usize);
        if at == self.list.len() {
            self.list.push(Quota::vacant());
        }
        self.occupy(turn, at, name.into());
        Some(at)
    }

    /// Ends an operation that waits.
    fn finish(&mut self, turn: &mut Turn, ticket: Ticket, outcome: Outcome) {
        if let Some(Place::Admin { .. }) = self.places.remove(&ticket) {
            self.administering -= 1;
        }
        turn.finished.push((ticket, outcome));
    }

    #[inline]
    fn touch(&mut self, at: usize, how: Dirty) {
        let quota = &mut self.list[at];
        match (quota.dirty, how) {
            (Dirty::Clean, _) => {
                quota.dirty = how;
                self.dirty.push(at as u32);
            }
            (Dirty::Hot, Dirty::All) => quota.dirty = Dirty::All,
            _ => {}
        }
    }

    /// Sets the quota's timer to the earliest thing that it waits for.
    #[inline]
    fn schedule(&mut self, at: usize) {
        let quota = &mut self.list[at];
        let Some(activity) = &quota.activity else { return };
        let wake = activity.tick_at.min(activity.phase_at).min(activity.deadline_at).min(activity.record_at);
        if wake < quota.wake {
            quota.wake = wake;
            self.timers.push(Reverse((wake, at as u32)));
        }
    }

    /// Does what is due. At most [`WAKES`] quotas a turn; the rest are still due afterwards.
    pub fn tick(&mut self, turn: &mut Turn) {
        for _ in 0..WAKES {
            let Some(&Reverse((at_time, at))) = self.timers.peek() else { break };
            if at_time > turn.now.mono {
                break;
            }
            self.timers.pop();
            let at = at as usize;
            // An entry that was overtaken by an earlier one no longer counts.
            if self.list[at].wake != at_time {
                continue;
            }
            self.list[at].wake = NEVER;
            self.wake(turn, at);
            self.schedule(at);
        }
        self.expire_lookups(turn);
        self.tend_names(turn);
    }

    /// Writes the rows of every quota that changed in this turn.
    pub fn persist(&mut self, turn: &mut Turn) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for at in self.dirty.drain(..) {
            let quota = &mut self.list[at as usize];
            // It is forgotten, or written already in the place of one that was.
            if quota.dirty == Dirty::Clean {
                continue;
            }
            row::put_hot(&mut turn.batch, &mut scratch, quota);
            if quota.dirty == Dirty::All {
                row::put_cold(&mut turn.batch, &mut scratch, quota);
            }
            quota.dirty = Dirty::Clean;
        }
        self.scratch = scratch;
        self.persist_names(&mut turn.batch);
    }
}

/// The most quotas that one tick looks after.
pub const WAKES: usize = 64;
