//! One quota at one site.

use std::collections::VecDeque;
use std::sync::Arc;

use smol_str::SmolStr;

use super::bucket::{PeerBacklog, Refill};
use super::line::Line;
use crate::api::Work;
use crate::avantan::subset::Pace;
use crate::avantan::{Avantan, Leader, Lifecycle};
use crate::gift::{Total, Totals};
use crate::id::{Incarnation, SiteId};
use crate::session::Aim;
use crate::stats::{Demand, RequestSize};
use crate::turn::{Here, Ticket};

/// No timer.
pub(super) const NEVER: u64 = u64::MAX;

/// One quota at this site.
///
/// There are more than fit into a processor's caches, so its fields stand in memory in this order: most of what an acquire looks at comes
/// first, here and in what is within it.
#[derive(Debug)]
#[repr(C)]
pub struct Quota {
    /// The number that names it in rows. No other quota has it, nor will, not even one of the same name after this is forgotten.
    pub(super) number: u64,
    /// Its name; empty at a vacant position. A short one stands here, where it is compared with the one that is asked for, and not elsewhere in
    /// memory.
    pub(super) name: SmolStr,
    /// The time of the one entry in [`Quotas::timers`](super::Quotas) that counts; [`NEVER`] if none does.
    pub(super) wake: u64,
    /// What was asked for here.
    pub(super) asked: Asked,
    /// What only matters while something goes on; none for a quota at rest, so that many fit into memory.
    pub(super) activity: Option<Box<Activity>>,
    /// What a quota that refills has besides; none for one that does not.
    pub(super) refill: Option<Box<Refill>>,
    /// The rows that have changed in this turn.
    pub(super) dirty: Dirty,
    /// False if nobody stands in its line; true if somebody may. Set with the first, and cleared when the share is looked after.
    pub(super) queued: bool,
    /// What is counted here.
    pub(super) counters: Counters,
    /// The agreement about its tokens, with this site's share.
    pub(super) avantan: Avantan,
    /// The quota below which it is counted ([`Quotas::note_parent`](super::Quotas)).
    pub(super) above: Above,
    /// The totals of gifts between this site and each other, in this generation.
    pub(super) totals: Totals,
}

/// What was asked for at this site; in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// The tokens that were asked for since the site was opened, granted or not.
    pub(super) tokens: u64,
    /// The size of the requests for them since something has been going on.
    pub(super) size: RequestSize,
}

/// The quota below which another one is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Above {
    /// The number of bytes of its name; zero if there is none.
    pub(super) length: u16,
    /// Its number, if it was known when this was noted. One of the same name that is made anew has another.
    pub(super) number: Option<u64>,
}

/// What a quota counts at this site; durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counters {
    /// Tokens ever granted here in this generation and incarnation.
    pub(super) acquired: u128,
    /// Tokens ever taken back here in this generation and incarnation.
    pub(super) released: u128,
    /// The number of the last grant; zero if there was none. It stays when the quota is deleted and created again.
    pub(super) last_grant: u64,
    /// What this site has done for the quota.
    pub(super) work: Work,
}

/// The rows of a quota that are to be written at the end of the turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Dirty {
    /// None.
    #[default]
    Clean,
    /// The hot row: tokens and counters.
    Hot,
    /// Both rows.
    All,
}

/// The volatile side of a quota that is in use. Its fields stand in memory in this order, as those of [`Quota`].
#[derive(Debug)]
#[repr(C)]
pub(super) struct Activity {
    /// The demand for tokens here, as it was lately.
    pub(super) demand: Demand,
    /// What [`Asked::tokens`] was when demand was counted last.
    pub(super) counted: u64,
    /// When to look after the share.
    pub(super) tick_at: u64,
    /// The requests that wait for tokens.
    pub(super) waiting: Line,
    /// The last time at which demand, gifts or rounds were seen. What lies idle for long is put to rest.
    pub(super) active_at: u64,
    /// The earliest deadline of what waits, in `waiting` or `admin`; [`NEVER`] if nothing does.
    pub(super) deadline_at: u64,
    /// What is done about a shortage.
    pub(super) shortage: Shortage,
    /// The tokens that come back here, as it was lately.
    pub(super) returns: Demand,
    /// What each member last said of its share, by position.
    pub(super) peers: Vec<PeerShare>,
    /// When it does something about a round among a subset.
    pub(super) pace: Pace,
    /// When this site leads a round, or does something about one that is under way.
    pub(super) leader: Leader,
    /// The creations, deletions and changes of the limit that wait for a round, in the order of arrival.
    pub(super) admin: VecDeque<Admin>,
}

/// What a site does about tokens that it is short of.
#[derive(Debug)]
pub(super) struct Shortage {
    /// Free tokens that are not given away until a time: so many a request needs that waits at another level of a tree, and holds nothing.
    pub(super) spared: (i64, u64),
    /// True if peers were told of the present shortage and have had no time to answer it yet.
    pub(super) asked_for_gifts: bool,
    /// Until when what waits is left to the tokens that come back here, before others are asked; none if they do not suffice, or nothing
    /// waits.
    pub(super) hopes_until: Option<u64>,
    /// The last time at which tokens came from elsewhere, or a round was decided.
    pub(super) fed_at: u64,
    /// The time of the last round that this site led ahead of need, and how many it has led since it last had what it expects to be
    /// asked for.
    pub(super) ahead: (u64, u32),
}

/// A creation, a deletion or another change that waits for its round.
#[derive(Debug)]
pub(super) struct Admin {
    /// The operation.
    pub(super) ticket: Ticket,
    /// What it does to the quota; never [`Lifecycle::Keep`]. What is brought back by [`Lifecycle::Reclaim`] is not known yet, and zero.
    pub(super) change: Lifecycle,
    /// The incarnations that it says are lost, if it reclaims what they had.
    pub(super) lost: Vec<(SiteId, Incarnation)>,
    /// What drivers have to know to reach the site that it lets join; empty if it lets none.
    pub(super) label: Arc<str>,
    /// The monotonic time at which its client is answered, whatever came of it.
    pub(super) deadline: u64,
    /// The instance in which a value that carries it out may be accepted somewhere; its row says "undecided" then, and it
    /// cannot be withdrawn. None if no value is out.
    pub(super) aim: Option<Aim>,
}

impl Admin {
    /// A change that waits until `deadline`, of which no value is out.
    pub(super) fn new(ticket: Ticket, change: Lifecycle, deadline: u64) -> Self {
        Self { ticket, change, lost: Vec::new(), label: Arc::default(), deadline, aim: None }
    }
}

/// What a member last said of its share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerShare {
    /// Tokens free there.
    pub(super) free: i64,
    /// Tokens that requests wait for there, beyond what is free.
    pub(super) short: i64,
    /// Those of them that the first lacks who stays in line; zero if none does.
    pub(super) first: i64,
    /// The demand that it reckons with, in tokens a second.
    pub(super) rate: u64,
    /// The last instance that it had applied.
    pub(super) applied: u64,
    /// The highest total that it has said to have received from this site, in the incarnation `said_by`.
    pub(super) received: u128,
    /// The monotonic time at which it last said something.
    pub(super) heard_at: u64,
    /// The incarnation of it that did.
    pub(super) said_by: Incarnation,
    /// True if something was given to it since the quota was at rest, or is told again since a start. Else all had arrived.
    pub(super) is_owed: bool,
    /// What this site last told it.
    pub(super) told: Told,
    /// What it last said of its backlog, in a quota that refills.
    pub(super) backlog: PeerBacklog,
}

/// What this site last told a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// Tokens free here.
    pub(super) free: i64,
    /// Tokens that requests wait for here, beyond what is free.
    pub(super) short: i64,
    /// Those of them that the first lacks who stays in line.
    pub(super) first: i64,
    /// The demand here, in tokens a second.
    pub(super) rate: u64,
    /// What is to be refilled here.
    pub(super) backlog: i64,
    /// The monotonic time at which it was told; zero for never, or to have it told soon.
    pub(super) at: u64,
    /// The number of times that the same was told again without a sign of its arrival.
    pub(super) repeats: u32,
}

impl Activity {
    /// What goes on in a quota in which nothing goes on yet, and which is to be looked after at `tick_at`.
    pub(super) fn new(now: u64, tick_at: u64, members: usize) -> Self {
        Self {
            demand: Demand::new(now),
            counted: 0,
            returns: Demand::new(now),
            waiting: Line::default(),
            admin: VecDeque::new(),
            peers: vec![PeerShare::default(); members],
            tick_at,
            shortage: Shortage {
                spared: (0, 0),
                asked_for_gifts: false,
                hopes_until: None,
                fed_at: now,
                ahead: (0, 0),
            },
            deadline_at: NEVER,
            active_at: now,
            leader: Leader::new(now),
            pace: Pace::default(),
        }
    }

    /// The time of the first thing that it waits for; [`NEVER`] for nothing.
    #[inline]
    pub(super) fn due(&self) -> u64 {
        self.tick_at.min(self.deadline_at).min(self.leader.deadline()).min(self.pace.deadline())
    }

    /// Free tokens that are not given away now.
    pub(super) fn spared(&self, now: u64) -> i64 {
        let (amount, until) = self.shortage.spared;
        if now < until { amount } else { 0 }
    }

    /// True if a round is to gather all that the sites have: the last was in vain. For those that stay in line that is ever more seldom
    /// worth it, as whoever offers all grants nothing meanwhile.
    pub(super) fn gathers(&self) -> bool {
        let Self { waiting, leader, .. } = self;
        waiting.has_been_in_vain() && (!waiting.has_staying() || leader.failures().is_power_of_two())
    }
}

impl Quota {
    /// A quota of which nothing is known but its name.
    pub(super) fn new(name: SmolStr, number: u64) -> Self {
        Self {
            name,
            number,
            avantan: Avantan::default(),
            counters: Counters::default(),
            asked: Asked::default(),
            queued: false,
            totals: Totals::default(),
            refill: None,
            activity: None,
            wake: NEVER,
            dirty: Dirty::Clean,
            above: Above::default(),
        }
    }

    /// What stands at a position that no quota has. No name is empty.
    pub(super) fn vacant() -> Self {
        Self::new("".into(), u64::MAX)
    }

    /// True if no quota has this position.
    pub(super) fn is_vacant(&self) -> bool {
        self.name.is_empty()
    }

    /// Its name.
    pub fn name(&self) -> &str {
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

    /// Tokens and what is in use, all sites together: the limit, and what is in excess of it.
    pub(super) fn all(&self) -> Option<i64> {
        Some(self.limit()?.saturating_add(self.avantan.share.table.excess))
    }

    /// True if tokens are here while more is out than the limit: a round is to take them.
    pub(super) fn owes(&self) -> bool {
        self.avantan.share.table.is_over() && self.avantan.share.tokens > 0
    }

    /// Tokens that requests wait for here.
    pub fn needed(&self) -> i64 {
        self.activity.as_ref().map_or(0, |activity| activity.needed())
    }

    /// True if it is in a round that is to delete it: nothing is granted until the outcome.
    pub(super) fn is_closing(&self) -> bool {
        self.avantan.share.round.as_ref().is_some_and(|round| round.closing)
    }

    /// True unless something goes on in it and no timer is set, or one that is later than what is to be done. In a round of the majority
    /// one is set for that.
    pub fn is_looked_after(&self) -> bool {
        self.activity.as_ref().is_none_or(|activity| {
            let is_awaited = !self.avantan.in_round() || activity.leader.deadline() < NEVER;
            is_awaited && self.wake <= activity.due() && self.wake < NEVER
        })
    }

    /// True if it may be gone though it is there by what this site knows: it is being deleted, or a round deleted it that did not ask this
    /// site. Nobody is told then that it exists.
    pub(super) fn may_be_gone(&self, here: &Here) -> bool {
        self.is_closing() || self.avantan.share.table.is_new(here.site)
    }

    /// Returns the number of operations that wait for its tokens, its creation or its deletion.
    pub fn waiting(&self) -> usize {
        self.activity.as_ref().map_or(0, |activity| activity.waiting.len() + activity.admin.len())
    }

    /// Tokens ever granted and ever taken back here.
    pub fn used(&self) -> (u128, u128) {
        (self.counters.acquired, self.counters.released)
    }

    /// The running total given to the member at `position`, and the member's incarnation that it is for.
    pub fn given(&self, position: usize) -> (Incarnation, u128) {
        let Total { incarnation, amount } = self.totals.given(position);
        (incarnation, amount)
    }

    /// The running total received from the member at `position`, and the incarnation that gave it.
    pub fn received(&self, position: usize) -> (Incarnation, u128) {
        let Total { incarnation, amount } = self.totals.received(position);
        (incarnation, amount)
    }

    /// It was at rest, and is to be looked after at `tick_at`.
    pub(super) fn begin(&mut self, here: &Here, tick_at: u64) {
        let mut activity = Box::new(Activity::new(here.now.mono, tick_at, here.peers.len()));

        // Until the others say otherwise, they have what the last round left them with.
        for (share, peer) in activity.peers.iter_mut().zip(here.peers) {
            let settled = self.avantan.share.table.settled(peer.site);
            share.free = settled.map_or(0, |settled| settled.row.after.saturating_add(settled.row.kept));
        }
        activity.counted = self.asked.tokens;
        self.asked.size = RequestSize::default();
        self.activity = Some(activity);
    }
}
