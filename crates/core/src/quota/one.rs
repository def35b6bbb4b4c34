//! One quota at one site.

use std::collections::VecDeque;
use std::sync::Arc;

use super::line::Line;
use crate::avantan::{Avantan, Leader};
use crate::gift::{Total, Totals};
use crate::id::Incarnation;
use crate::session::Aim;
use crate::stats::Demand;
use crate::turn::{Here, Ticket};

/// No timer.
pub(super) const NEVER: u64 = u64::MAX;

/// One quota at this site.
#[derive(Debug)]
pub struct Quota {
    pub(super) name: Arc<str>,
    /// Names it on storage.
    pub(super) number: u64,
    pub(super) avantan: Avantan,
    pub(super) counters: Counters,
    /// The totals of gifts between this site and each other, in this generation.
    pub(super) totals: Totals,
    /// What only matters while something goes on; none for a quota at rest, so that many fit into memory.
    pub(super) activity: Option<Box<Activity>>,
    /// The entry in the timers that counts.
    pub(super) wake: u64,
    pub(super) dirty: Dirty,
}

/// What a quota counts at this site; durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counters {
    /// Tokens ever granted here in this generation and incarnation, and ever taken back.
    pub(super) acquired: u128,
    pub(super) released: u128,
    /// Operations answered without waiting for another site.
    pub(super) local: u64,
    /// The number of the last grant.
    pub(super) last_grant: u64,
    /// Rounds applied here that moved tokens.
    pub(super) rebalances: u64,
    /// Gifts sent.
    pub(super) gifts: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Dirty {
    #[default]
    Clean,
    /// The hot row: tokens and counters.
    Hot,
    /// Both rows.
    All,
}

/// The volatile side of a quota that is in use.
#[derive(Debug)]
pub(super) struct Activity {
    pub(super) demand: Demand,
    pub(super) waiting: Line,
    pub(super) admin: VecDeque<Admin>,
    /// What each member last said of its share.
    pub(super) peers: Vec<PeerShare>,
    /// When to look after the share.
    pub(super) tick_at: u64,
    /// Whether peers were told of the present shortage and have had no time to answer it yet.
    pub(super) asked_for_gifts: bool,
    /// The earliest deadline of a request that waits.
    pub(super) deadline_at: u64,
    /// When tokens last came from elsewhere.
    pub(super) fed_at: u64,
    /// When demand, gifts or rounds were last seen.
    pub(super) active_at: u64,
    /// When this site leads a round, or does something about one that is under way.
    pub(super) leader: Leader,
}

/// A creation or deletion that waits for its round.
#[derive(Debug)]
pub(super) struct Admin {
    pub(super) ticket: Ticket,
    /// The limit to create with; none deletes.
    pub(super) limit: Option<i64>,
    pub(super) deadline: u64,
    /// Where a value that carries it out may be accepted: its row says "undecided".
    pub(super) aim: Option<Aim>,
}

/// What a member last said of its share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerShare {
    pub(super) free: i64,
    pub(super) short: i64,
    pub(super) rate: u64,
    /// What it has received from us.
    pub(super) received: u128,
    /// When it said so, and which of its incarnations did.
    pub(super) heard_at: u64,
    pub(super) said_by: Incarnation,
    pub(super) told: Told,
}

/// What we last told a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) free: i64,
    pub(super) short: i64,
    pub(super) rate: u64,
    pub(super) at: u64,
    /// How often a gift was repeated without a sign of its arrival.
    pub(super) repeats: u32,
}

impl Activity {
    pub(super) fn new(now: u64, members: usize) -> Self {
        Self {
            demand: Demand::new(now),
            waiting: Line::default(),
            admin: VecDeque::new(),
            peers: vec![PeerShare::default(); members],
            tick_at: NEVER,
            asked_for_gifts: false,
            deadline_at: NEVER,
            fed_at: now,
            active_at: now,
            leader: Leader::new(now),
        }
    }
}

impl Quota {
    pub(super) fn new(name: Arc<str>, number: u64) -> Self {
        Self {
            name,
            number,
            avantan: Avantan::default(),
            counters: Counters::default(),
            totals: Totals::default(),
            activity: None,
            wake: NEVER,
            dirty: Dirty::Clean,
        }
    }

    /// What stands at a position that no quota has. No name is empty.
    pub(super) fn vacant() -> Self {
        Self::new("".into(), u64::MAX)
    }

    pub(super) fn is_vacant(&self) -> bool {
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
    pub(super) fn is_closing(&self) -> bool {
        self.avantan.share.round.as_ref().is_some_and(|round| round.closing)
    }

    /// How many operations wait for its tokens, its creation or its deletion.
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

    /// The agreement, and what goes on beside it.
    pub(super) fn parts(&mut self, here: &Here) -> (&mut Avantan, &mut Activity) {
        self.activity(here);
        (&mut self.avantan, self.activity.as_mut().expect("made above"))
    }

    /// What goes on in the quota, begun if it was at rest.
    #[inline]
    pub(super) fn activity(&mut self, here: &Here) -> &mut Activity {
        if self.activity.is_none() {
            let mut activity = Box::new(Activity::new(here.now.mono, here.peers.len()));
            // Until the others say otherwise, they have what the last round left them with.
            for (share, peer) in activity.peers.iter_mut().zip(here.peers) {
                let settled = self.avantan.share.table.settled(peer.site);
                share.free = settled.map_or(0, |settled| settled.row.after.saturating_add(settled.row.kept));
            }
            self.activity = Some(activity);
        }
        self.activity.as_mut().expect("made above")
    }
}
