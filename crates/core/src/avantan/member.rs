//! A site and the members that it agrees with.
//!
//! Who is a member changes one site at a time, by an agreement of the members ([`Lifecycle::Seat`](super::Lifecycle::Seat)); each
//! change has a number. A site that joins gets a **seat** behind all others; a seat that became empty is kept, and never taken again. So
//! a position among the members means the same site for ever, whatever changes.
//!
//! # Why votes of two memberships do not contradict each other
//!
//! Any majority before a change and any majority after it have a site in common, since one seat is all the difference. So a round
//! that was under way when the membership changed is as safe as any other: whoever leads it next hears of what may be decided. Between
//! more than one change that need not be so. Therefore:
//!
//! - Whoever knows a change takes part in nothing that a site does which does not know it (every message tells the number).
//! - A change is voted for only by sites at which every entity has **recorded** the change before: an instance was decided since whose
//!   value was built by a leader that knew it ([`Table::membership`](super::Table::membership)). Then a majority that knows the change
//!   has every earlier instance, so nothing of before it can be decided any more without one of them.
//! - A change is itself decided by exactly the members that the last one left: who they are stands in the table of that agreement.
//!
//! A member that is gone is to an entity what storage is that was lost: rounds record [`Incarnation::GONE`] in its place, which has
//! nothing and never acts, and what those before had counts as in use until it is reclaimed.

use std::sync::Arc;

use crate::codec::{Cursor, Malformed, put_bytes, put_u64};
use crate::id::{Incarnation, SiteId};

use super::bytes::{put_gone, put_site, read_gone, read_site};

/// What a site sees of the members, as far as it has heard lately: the incarnation of the one at a position, if it is up.
pub trait Sight: Fn(usize) -> Option<Incarnation> {}

impl<F: Fn(usize) -> Option<Incarnation>> Sight for F {}

/// Who takes part, by the last change of it that this site knows of.
#[derive(Clone, Copy, Debug)]
pub struct Membership<'a> {
    /// The site that this machine is.
    pub me: SiteId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// All sites of the lane that are members or were, this one included, in ascending order.
    pub members: &'a [SiteId],
    /// The number of changes.
    pub number: u64,
    /// The number of the change by which this site became a member; zero for the first members.
    pub since: u64,
    /// Those that were members.
    pub gone: &'a [SiteId],
    /// True if every entity that this site knows has recorded the last change: only then it votes for the next.
    pub settled: bool,
}

impl<'a> Membership<'a> {
    /// A site of a cluster whose members never changed.
    pub fn first(me: SiteId, incarnation: Incarnation, members: &'a [SiteId]) -> Self {
        Self { me, incarnation, members, number: 0, since: 0, gone: &[], settled: true }
    }

    /// The number of members.
    pub fn count(&self) -> usize {
        self.members.len() - self.gone.len()
    }

    /// Returns the number of sites that make a majority of all members.
    pub fn majority(&self) -> usize {
        self.count() / 2 + 1
    }

    /// True if a site is a member now.
    pub fn is_present(&self, site: SiteId) -> bool {
        self.members.contains(&site) && !self.gone.contains(&site)
    }

    /// All members but this one.
    pub fn others(&self) -> impl Iterator<Item = SiteId> + '_ {
        self.members.iter().copied().filter(|site| *site != self.me && self.is_present(*site))
    }

    /// The other members that are up by `sight`, each with its incarnation.
    pub(super) fn others_up(&self, sight: impl Sight) -> impl Iterator<Item = (SiteId, Incarnation)> {
        let members = self.members.iter().enumerate().filter(|(_, site)| **site != self.me && self.is_present(**site));
        members.filter_map(move |(position, site)| Some((*site, sight(position)?)))
    }
}

/// The seats of a cluster whose members have changed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Roster {
    /// The number of changes; at least one.
    pub number: u64,
    /// Every seat, in the order of positions, which is the ascending order of sites.
    pub seats: Vec<Seat>,
}

/// A place among the members.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seat {
    /// Whose it is, or was.
    pub site: SiteId,
    /// The number of the change that made it; zero for those of the first members.
    pub since: u64,
    /// True if it is empty, and stays so.
    pub gone: bool,
    /// What drivers have to know to reach it, which means nothing here; empty for the first members.
    pub label: Arc<str>,
}

/// The most seats of a lane.
pub const SEATS: usize = 64;

impl Roster {
    /// The seats of the first members, before any change.
    pub fn of(members: &[SiteId]) -> Self {
        let seat = |site: &SiteId| Seat { site: *site, ..Seat::default() };
        Self { number: 0, seats: members.iter().map(seat).collect() }
    }

    /// The seats as a membership has them; when each was made is not told there.
    fn known_to(site: Membership) -> Self {
        let seat = |member: &SiteId| Seat { site: *member, gone: site.gone.contains(member), ..Seat::default() };
        Self { number: site.number, seats: site.members.iter().map(seat).collect() }
    }

    /// The seats after one more change.
    pub fn after(&self, changed: SiteId, gone: bool, label: &Arc<str>) -> Self {
        let mut roster = self.clone();
        roster.number += 1;
        match roster.seats.iter_mut().find(|seat| seat.site == changed) {
            Some(seat) => seat.gone = gone,
            None => {
                let label = label.clone();
                roster.seats.push(Seat { site: changed, since: roster.number, gone, label });
            }
        }
        roster
    }

    /// The same, of a table that knows no change yet.
    pub(super) fn first(site: Membership, changed: SiteId, gone: bool, label: &Arc<str>) -> Self {
        Self::known_to(site).after(changed, gone, label)
    }

    /// All sites that have or had a seat.
    pub fn members(&self) -> impl Iterator<Item = SiteId> {
        self.seats.iter().map(|seat| seat.site)
    }

    /// Those that have one no longer.
    pub fn gone(&self) -> impl Iterator<Item = SiteId> {
        self.seats.iter().filter(|seat| seat.gone).map(|seat| seat.site)
    }

    /// Appends it to a row.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.number);
        put_u64(out, self.seats.len() as u64);
        for seat in &self.seats {
            put_site(out, seat.site);
            put_u64(out, seat.since);
            put_gone(out, seat.gone);
            put_bytes(out, seat.label.as_bytes());
        }
    }

    /// Reads what [`Roster::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let (number, count) = (cursor.u64()?, cursor.u64()?);
        let seats = (0..count).map(|_| {
            let (site, since, gone) = (read_site(cursor)?, cursor.u64()?, read_gone(cursor)?);
            let label = std::str::from_utf8(cursor.bytes()?).map_err(|_| Malformed)?.into();
            Ok(Seat { site, since, gone, label })
        });
        Ok(Self { number, seats: seats.collect::<Result<_, Malformed>>()? })
    }
}

/// True if a site that knows of so many changes takes notice of what another one says of a round, which knows of so many: if both count
/// the same members.
pub fn counts_alike(number: u64, senders: u64) -> bool {
    number == senders
}

/// True if a change may follow a membership: a site that joins is new, and its seat is the last; one that leaves is a member, and not
/// the only one.
pub(super) fn may_follow(site: Membership, changed: SiteId, gone: bool) -> bool {
    match gone {
        false => site.members.len() < SEATS && site.members.last().is_some_and(|last| *last < changed),
        true => site.is_present(changed) && site.count() > 1,
    }
}
