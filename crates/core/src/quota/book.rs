//! The quotas of a site: how they are found, and what they have in common.

use std::collections::{BTreeSet, BinaryHeap};
use std::hash::BuildHasher as _;

use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smol_str::SmolStr;

use super::announce::Announcements;
use super::counting::Counts;
use super::lookup::Lookups;
use super::names::Names;
use super::one::{Activity, Dirty, NEVER, Quota};
use super::row::{self, Grant, QuotaRow};
use super::timers::Timers;
use super::walk::Walk;
use crate::api::{Listed, Outcome, Refusal};
use crate::avantan::Avantan;
use crate::clock::MILLISECOND;
use crate::codec::Malformed;
use crate::id::SiteSet;
use crate::machine::Batch;
use crate::peer::quota::Digest;
use crate::turn::{Here, Ticket, Turn};

/// The most quotas that a site knows, those included that are deleted and not forgotten yet; creating one more is refused.
pub const QUOTAS: usize = 4_000_000;
/// The time between two looks of an active quota at its share when tokens are scarce, in microseconds.
pub const TICK: u64 = 50 * MILLISECOND;
/// The time between two looks when they are not, in microseconds.
pub const RELAXED_TICK: u64 = 200 * MILLISECOND;
/// The time for which gifts are waited for before a round is led, in hundredths of the longest round trip.
pub(super) const SECOND_LOOK: u64 = 110;
/// The quotas of a site.
#[derive(Debug, Default)]
pub struct Quotas {
    /// The quotas, at positions that they keep while the site runs. A position whose quota was forgotten is vacant until another
    /// takes it.
    pub(super) list: Vec<Quota>,
    /// Where in the list a name or a number is found.
    pub(super) index: Index,
    /// Names that were forgotten, and those that might be next.
    pub(super) forgetting: Names,
    /// When each quota is to be looked after, by position.
    pub(super) timers: Timers,
    /// The positions of those that changed in this turn; empty at its end.
    pub(super) dirty: Vec<u32>,
    /// Names that are not known here, and are asked about.
    pub(super) lookups: Lookups,
    /// Operations that wait, of all quotas.
    pub(super) waits: Waits,
    /// Grants, of all quotas.
    pub(super) grants: Grants,
    /// What is told of gifts, of all quotas.
    pub(super) gifts: Gifts,
    /// What is left to do about the last change of the members.
    pub(super) seats: Seats,
    /// Counts for `quota show` that are under way.
    pub(super) counts: Counts,
    /// A buffer for rows, kept from turn to turn.
    scratch: Vec<u8>,
}

/// Where quotas are found.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Positions that no quota has.
    pub(super) vacant: Vec<u32>,
    /// The positions of all quotas, by the names that they have there. With the names in it the table would be six times as large, and less of
    /// it in a processor's caches.
    pub(super) names: HashTable<u32>,
    /// The positions of quotas whose number is another.
    pub(super) moved: FxHashMap<u64, u32>,
    /// The number of quotas right below each name, of those that have any.
    pub(super) children: FxHashMap<SmolStr, u32>,
    /// The position of the entity by which members agree on who they are; none before their first change.
    pub(super) members: Option<u32>,
    /// The number of the next quota. Numbers are never used twice.
    pub(super) next_number: u64,
}

/// Operations that wait.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The place where each operation waits. All that wait are here, so that one is found without a walk over the others.
    pub(super) places: FxHashMap<Ticket, Place>,
    /// The number of creations and deletions among them.
    pub(super) administering: usize,
}

/// Grants of all quotas.
#[derive(Debug, Default)]
pub(super) struct Grants {
    /// The number of the next grant: above that of every grant that was ever given out in this incarnation.
    pub(super) next: u64,
    /// The uptime at which the next hold may end; none if no hold is out.
    pub(super) next_due: Option<u64>,
    /// The monotonic clock of this life less the uptime, in microseconds.
    pub(super) mono_less_uptime: u64,
    /// Tracked grants that were changed in this turn, none for those that are no more: its view still shows them as they were.
    pub(super) touched: FxHashMap<u64, Option<Grant>>,
    /// The search for those of quotas that are deleted.
    pub(super) walk: Walk,
}

/// What is told of gifts.
#[derive(Debug, Default)]
pub(super) struct Gifts {
    /// Digests that this turn sends, by position of the member; empty at its end.
    pub(super) digests: Vec<Vec<Digest>>,
    /// The walk by which the site gives its tokens away, if it drains. Then it wants no more than what waits needs.
    pub(super) leaving: Option<Passage>,
    /// Totals that are told again.
    pub(super) announcements: Announcements,
}

/// A walk through all quotas, to give their tokens away before the site stops.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passage {
    /// The position of the next quota.
    pub(super) from: usize,
    /// True if something was given away since the first.
    pub(super) gave: bool,
}

/// Where an operation waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the line of the quota at this position, for tokens; named by its arrival there.
    Line { at: u32, arrival: u64 },
    /// For the creation or deletion of the quota at this position.
    Admin { at: u32 },
    /// For what others know of a name; named by its arrival among those that wait for it.
    Name { name: SmolStr, arrival: u64 },
}

/// What is left to do about the last change of the members.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// The numbers of quotas, deleted ones included, that have not recorded it.
    pub(super) behind: BTreeSet<u64>,
    /// The quota that was looked at last.
    pub(super) last: u64,
    /// When to look at the next ones; none while all have recorded it.
    pub(super) look_at: Option<u64>,
    /// The members that have said that all that they know has recorded it, and this site's incarnation.
    pub(super) attested: SiteSet,
}

/// Why a site cannot tell all quotas above another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Break {
    /// It has not heard of one: the number of bytes of its name.
    Unheard(usize),
    /// What needs them is refused.
    Refused(Refusal),
}

impl Quotas {
    /// No quotas; grants are numbered from 1, and counts, which are named again in each life, after `token`.
    pub fn new(token: u64) -> Self {
        let grants = Grants { next: 1, ..Grants::default() };
        Self { grants, counts: Counts::starting(token), ..Self::default() }
    }

    /// Takes in a row when the site starts: all that change with rounds first, in order, then those that change with
    /// grants.
    pub(super) fn restore_row(&mut self, row: QuotaRow) -> Result<(), Malformed> {
        match row {
            QuotaRow::Cold(quota) => {
                // Two quotas of one name or number would each have a share of the same tokens.
                let (at, number) = (self.list.len(), quota.number);
                if quota.is_vacant() || self.position(&quota.name).is_some() || self.position_of(number).is_some() {
                    return Err(Malformed);
                }
                if number != at as u64 {
                    self.index.moved.insert(number, at as u32);
                }
                self.index.next_number = self.index.next_number.max(number + 1);
                if quota.is_of_members() {
                    self.index.members = Some(at as u32);
                }
                self.list.push(*quota);
                self.note_name(at);
                self.note_parent(at);
            }
            QuotaRow::Hot { number, tokens, acquired, released, local, last_grant } => {
                let at = self.position_of(number).ok_or(Malformed)?;
                let quota = &mut self.list[at];
                quota.avantan.share.tokens = tokens;
                (quota.counters.acquired, quota.counters.released) = (acquired, released);
                (quota.counters.work.local, quota.counters.last_grant) = (local, last_grant);

                // A grant's number is never given out again in this incarnation: a release names nothing else. Those of quotas
                // that are forgotten are below the number in the row about that, see `restore_names`.
                self.grants.next = self.grants.next.max(last_grant + 1);
            }
        }

        Ok(())
    }

    /// Returns the number that is known, those included that are deleted and not forgotten yet.
    pub fn len(&self) -> usize {
        self.index.names.len()
    }

    /// Returns true if none is known.
    pub fn is_empty(&self) -> bool {
        self.index.names.is_empty()
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
        self.position(name).map(|at| &self.list[at])
    }

    /// When the next quota is to be looked after, in monotonic microseconds.
    pub(super) fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|(time, _)| time)
    }

    /// Where the quota of this name stands.
    #[inline]
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.index.names.find(hash_of(name), |&at| *self.list[at as usize].name == *name).map(|&at| at as usize)
    }

    /// The quota at a position is found by its name from now on; no other has that name.
    pub(super) fn note_name(&mut self, at: usize) {
        let Self { list, index, .. } = self;
        index.names.insert_unique(hash_of(&list[at].name), at as u32, |&at| hash_of(&list[at as usize].name));
    }

    /// The quota at a position is not found by its name any more.
    pub(super) fn drop_name_of(&mut self, at: usize) {
        let found = self.index.names.find_entry(hash_of(&self.list[at].name), |&other| other == at as u32);
        found.expect("each quota is found by its name").remove();
    }

    /// Most quotas stand at the position that is their number.
    pub(super) fn position_of(&self, number: u64) -> Option<usize> {
        let at =
            usize::try_from(number).ok().filter(|&at| self.list.get(at).is_some_and(|quota| quota.number == number));
        at.or_else(|| self.index.moved.get(&number).map(|&at| at as usize))
    }

    /// The quota of this name, if it exists and is not deleted.
    #[inline]
    pub(super) fn living(&self, name: &str) -> Option<usize> {
        self.position(name).filter(|&at| self.list[at].limit().is_some())
    }

    /// The quota of this name, made if it is new; none past the bound.
    pub(super) fn position_or_new(&mut self, here: &Here, name: &str) -> Option<usize> {
        if let Some(at) = self.position(name) {
            return Some(at);
        }

        // A name takes memory for as long as it is known, and strangers can make one up.
        if self.index.names.len() >= QUOTAS || name.is_empty() || name.len() > crate::api::NAME_BYTES {
            return None;
        }

        let at = self.index.vacant.pop().map_or(self.list.len(), |at| at as usize);
        if at == self.list.len() {
            self.list.push(Quota::vacant());
        }
        self.occupy(here, at, name.into());
        Some(at)
    }

    /// Ends an operation that waits.
    pub(super) fn finish(&mut self, turn: &mut Turn, ticket: Ticket, outcome: Outcome) {
        // Its place goes in the same turn, so that nothing can withdraw what has an outcome.
        if let Some(Place::Admin { .. }) = self.waits.places.remove(&ticket) {
            self.waits.administering -= 1;
        }
        turn.out.finished.push((ticket, outcome));
    }

    #[inline]
    pub(super) fn touch(&mut self, at: usize, how: Dirty) {
        // In the list once, however often it changes: each row is written once in a turn.
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

    /// What goes on in a quota, begun if it was at rest. Whatever begins is looked after: only that puts it to rest. Until then gifts of long
    /// ago count as under way, and no site with such leaves.
    #[inline]
    pub(super) fn activity(&mut self, here: &Here, at: usize) -> &mut Activity {
        if self.list[at].activity.is_none() {
            self.list[at].begin(here, here.now.mono + RELAXED_TICK);
            self.schedule(at);
        }
        self.list[at].activity.as_mut().expect("made above")
    }

    /// The agreement of a quota, and what goes on beside it.
    pub(super) fn parts(&mut self, here: &Here, at: usize) -> (&mut Avantan, &mut Activity) {
        // Begun first, so that both can be borrowed at once.
        self.activity(here, at);
        let Quota { avantan, activity, .. } = &mut self.list[at];
        (avantan, activity.as_mut().expect("made above"))
    }

    /// Sets the quota's timer to the earliest thing that it waits for.
    #[inline]
    pub(super) fn schedule(&mut self, at: usize) {
        let quota = &mut self.list[at];
        let Some(activity) = &quota.activity else { return };
        let wake = activity.due();

        // A later time needs no entry: when the earlier one comes, the quota is looked at and scheduled again.
        if wake < quota.wake {
            quota.wake = wake;
            self.timers.push((wake, at as u32));
        }
    }

    /// Looks after the quotas that are due. At most [`WAKES`] a turn; the rest are still due afterwards.
    pub(super) fn wake_due(&mut self, turn: &mut Turn) {
        for _ in 0..WAKES {
            let Some((time, at)) = self.timers.pop_due(turn.here.now.mono) else { break };

            // An entry that was overtaken by an earlier one no longer counts.
            let at = at as usize;
            if self.list[at].wake != time {
                continue;
            }
            self.list[at].wake = NEVER;
            self.wake(turn, at);
            self.schedule(at);
        }
    }

    /// Writes the rows of every quota that changed in this turn.
    pub(super) fn put_rows(&mut self, batch: &mut Batch) {
        let (mut scratch, mut changed) = (std::mem::take(&mut self.scratch), Vec::new());
        for at in self.dirty.drain(..) {
            let quota = &mut self.list[at as usize];

            // It is forgotten, or written already in the place of one that was.
            if quota.dirty == Dirty::Clean {
                continue;
            }
            row::put_hot(batch, &mut scratch, quota);
            let is_all = quota.dirty == Dirty::All;
            if is_all {
                row::put_cold(batch, &mut scratch, quota);
            }

            // Tokens are moved between these rows and those of grants in one batch, so no crash makes or loses any.
            let share = &quota.avantan.share;
            assert!(share.held() >= 0 && share.held() <= share.tokens, "more is set aside than there is");
            quota.dirty = Dirty::Clean;
            if is_all {
                changed.push(at as usize);
            }
        }
        changed.into_iter().for_each(|at| self.note_parent(at));
        self.scratch = scratch;
        self.persist_names(batch);
    }

    /// A hold may end at this uptime.
    pub(super) fn note_due(&mut self, uptime: u64) {
        self.grants.next_due = Some(self.grants.next_due.map_or(uptime, |due| due.min(uptime)));
    }

    /// The first `limit` quotas that exist, after a name, in the order of names.
    pub fn list(&self, after: &str, limit: usize) -> Vec<Listed> {
        // The largest of those kept is thrown out for a smaller one: memory is bounded by the page, not by the quotas.
        let mut first = BinaryHeap::new();
        let all = self.list.iter().enumerate().filter(|(_, quota)| !quota.is_vacant());
        for (at, quota) in all.filter(|(_, quota)| quota.limit().is_some() && quota.name() > after) {
            // Most are behind the page, and nothing more is looked up of them.
            let is_behind = |(largest, ..): &(SmolStr, i64, i64, u16)| quota.name() > &**largest;
            if first.len() >= limit && first.peek().is_some_and(is_behind) {
                continue;
            }

            // One whose parent was deleted counts in none.
            let is_bound = !matches!(self.climb(at).1, Some(Break::Refused(_)));
            let parent = quota.parent().filter(|_| is_bound).map_or(0, |parent| parent.length);
            first.push((quota.name.clone(), quota.limit().unwrap_or(0), quota.avantan.share.tokens, parent));
            if first.len() > limit {
                first.pop();
            }
        }
        let sorted = first.into_sorted_vec().into_iter();
        sorted.map(|(name, limit, tokens, parent)| Listed { name: name.to_string(), limit, tokens, parent }).collect()
    }
}

/// The most quotas that one tick looks after.
pub const WAKES: usize = 64;

/// The hash by which a name is found.
#[inline]
fn hash_of(name: &str) -> u64 {
    FxBuildHasher.hash_one(name)
}
