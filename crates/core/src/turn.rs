//! What one call of `handle` works with: the time, the site, its peers, and where effects are gathered.

use rustc_hash::FxHashSet;

use crate::api::{Outcome, Response};
use crate::avantan::Membership;
use crate::clock::{MILLISECOND, Now, Offset, SECOND};
use crate::config::Config;
use crate::id::{Incarnation, OperationId, SessionId, SiteId};
use crate::machine::{Batch, ClientId};
use crate::metrics::Metrics;
use crate::object::message::Message;
use crate::peer::{Body, Digest};
use crate::session::Aim;
use crate::stats::Rng;

/// The most operations that may wait at a site for others: for tokens, for an agreement, for what others know of a name, and
/// transactions that are under way. One more is refused as overloaded. An operation that waits takes about half a kilobyte.
pub const WAITING: usize = 320_000;
/// The longest round trip that is reckoned with, in microseconds. What took longer was held up, by a peer that stood still or by
/// a queue, and says nothing of the way; who waited by it would ask again only after as long.
pub const LONGEST_WAY: u64 = SECOND;
/// A peer that was not heard from for this long counts as down, in microseconds.
pub const SILENCE: u64 = 4 * SECOND;

/// What a site knows of another, by the other's position among the members.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The site.
    pub site: SiteId,
    /// The highest incarnation heard of; zero for none.
    pub incarnation: Incarnation,
    /// The highest log position heard from that incarnation.
    pub position: u64,
    /// The incarnation noted for its newest storage, and that storage's nonce.
    pub noted: (Incarnation, u64),
    /// When it last said something that only a site that serves says, in this life's monotonic microseconds.
    pub heard: Option<u64>,
    /// When it last said so after it was not known to serve, on the same clock.
    pub up_since: u64,
    /// Whether it said that it drains.
    pub leaving: bool,
    /// The last exchange of clocks.
    pub offset: Option<Offset>,
    /// When it was last asked, by both clocks of this life, what it answered to in that incarnation: it had its storage then.
    pub vouched: Option<Now>,
}

impl Peer {
    /// Whether it serves, as far as was heard lately.
    pub fn is_up(&self, now: Now) -> bool {
        self.heard.is_some_and(|heard| now.mono.saturating_sub(heard) < SILENCE)
    }

    /// Whether tokens given to it would be of use there.
    pub fn takes_gifts(&self, now: Now) -> bool {
        self.is_up(now) && !self.leaving && self.incarnation > Incarnation(0)
    }
}

/// Names a waiting operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    /// Its session.
    pub session: SessionId,
    /// Its sequence.
    pub sequence: u64,
}

impl Ticket {
    /// The operation's id.
    pub fn operation(self, turn: &Turn) -> OperationId {
        let Ticket { session, sequence } = self;
        OperationId { site: turn.site.me, incarnation: turn.site.incarnation, session, sequence }
    }
}

/// What others' clocks say of a site's wall clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Nobody disagrees with it, or so many agree, itself included, that not all of them can be wrong, if fewer than a majority are.
    Trusted,
    /// Nobody disagrees, and some who are up were not compared with it yet.
    Unknown,
    /// Somebody disagrees, and too few agree. That too few disagree is no reason to trust it: others are down, and of those that
    /// are left two may be wrong by as much.
    Doubted,
}

/// One call of `handle`.
pub struct Turn<'a> {
    /// The time.
    pub now: Now,
    /// The site's uptime over all lives, in microseconds.
    pub uptime: u64,
    /// The site and its members.
    pub site: Membership<'a>,
    /// Whether the site drains: it wants no more tokens than what waits needs.
    pub leaving: bool,
    /// Whether storage has room for what clients want written.
    pub has_room: bool,
    /// What others' clocks say of the site's wall clock.
    pub trust: Trust,
    /// The configuration.
    pub config: &'a Config,
    /// Operations that wait at this site. Those that end in this turn still count, so that the turn cannot admit more than
    /// the bound.
    pub waiting: usize,
    /// The members by position; this site's own entry is idle.
    pub peers: &'a [Peer],
    /// This site's position among the members.
    pub position: usize,
    /// The source of back-offs.
    pub rng: &'a mut Rng,
    /// Counters.
    pub metrics: &'a mut Metrics,
    /// What is to become durable.
    pub batch: Batch,
    /// What is to be sent.
    pub sends: Vec<(SiteId, Body)>,
    /// Digests to be sent, by member.
    pub digests: Vec<Vec<Digest>>,
    /// Waiting operations that have ended.
    pub finished: Vec<(Ticket, Outcome)>,
    /// Waiting operations of which it is not decided yet whether they take effect.
    pub undecided: Vec<(Ticket, Aim)>,
    /// Tracked grants released in this turn.
    pub removed: FxHashSet<u64>,
    /// What is to be answered besides.
    pub responses: Vec<(ClientId, Response)>,
    /// The earliest uptime at which a hold granted in this turn may end.
    pub next_due: Option<u64>,
}

impl Turn<'_> {
    /// The longest round trip to a peer that is up, in microseconds; a guess before anything was measured.
    pub fn longest_round_trip(&self) -> u64 {
        let measured = self.peers.iter().filter(|peer| peer.is_up(self.now));
        let longest = measured.filter_map(|peer| peer.offset).map(|offset| offset.rtt).max();
        longest.unwrap_or(200 * MILLISECOND).clamp(MILLISECOND, LONGEST_WAY)
    }

    /// The last measured round trip to a site, in microseconds; a guess before anything was measured, zero to itself.
    pub fn round_trip(&self, site: SiteId) -> u64 {
        if site == self.site.me {
            return 0;
        }
        let peer = self.peers.iter().find(|peer| peer.site == site);
        peer.and_then(|peer| peer.offset).map_or(200 * MILLISECOND, |offset| offset.rtt).min(LONGEST_WAY)
    }

    /// Whether a site serves, as far as was heard lately; this one does.
    pub fn is_reachable(&self, site: SiteId) -> bool {
        site == self.site.me || self.peers.iter().any(|peer| peer.site == site && peer.is_up(self.now))
    }

    /// The highest incarnation heard of a site.
    pub fn incarnation_of(&self, site: SiteId) -> Incarnation {
        if site == self.site.me {
            return self.site.incarnation;
        }
        let peer = self.peers.iter().find(|peer| peer.site == site);
        peer.map_or(Incarnation(0), |peer| peer.incarnation)
    }

    /// The time that a majority agrees has come: the latest that so many of all sites' wall clocks show, this site's included,
    /// as they were measured in this life. Where fewer were since this site's own was stepped, the one that is farthest behind
    /// counts, whenever it was measured. None if nothing is known but this site's own clock, and there are others.
    pub fn agreed(&self) -> Option<i64> {
        let (offsets, majority) = (self.offsets(), self.peers.len() / 2 + 1);
        if offsets.len() >= majority {
            return Some(self.now.wall.saturating_add(offsets[offsets.len() - majority]));
        }
        // What was measured before this site's own clock was stepped counts here: whether the other was stepped too or not.
        let others = self.peers.iter().filter(|peer| peer.site != self.site.me);
        let known = others.filter_map(|peer| peer.offset).map(|offset| offset.offset.min(offset.at(self.now).offset));
        Some(self.now.wall.saturating_add(known.min()?.min(0)))
    }

    /// The time that a majority agrees has not passed yet: the earliest that the wall clocks of so many have not passed. None if fewer
    /// are known. What is not safe to do too early is judged by [`Turn::agreed`], what is not safe to do too late by this.
    pub fn agreed_at_most(&self) -> Option<i64> {
        let offset = *self.offsets().get(self.peers.len() / 2)?;
        Some(self.now.wall.saturating_add(offset))
    }

    /// Whether the wall clocks of so many as are a majority of all sites lie within `span` microseconds of each other.
    pub fn has_majority_within(&self, span: u64) -> bool {
        self.offsets().windows(self.peers.len() / 2 + 1).any(|near| near[near.len() - 1].abs_diff(near[0]) <= span)
    }

    /// How far the wall clocks that were measured in this life are from this site's, itself included, in ascending order. One that
    /// was measured before this site's own was stepped says nothing: it may have been stepped too since, and fit by chance.
    fn offsets(&self) -> Vec<i64> {
        let others = self.peers.iter().filter(|peer| peer.site != self.site.me);
        let measured = others.filter_map(|peer| peer.offset.filter(|offset| offset.is_of(self.now)));
        let mut offsets: Vec<i64> = measured.map(|offset| offset.offset).chain([0]).collect();
        offsets.sort_unstable();
        offsets
    }

    /// How far a site's wall clock is from this one's, if they were compared in this life.
    pub fn offset_of(&self, site: SiteId) -> Option<Offset> {
        if site == self.site.me {
            return Some(Offset::default());
        }
        let peer = self.peers.iter().find(|peer| peer.site == site);
        Some(peer?.offset?.at(self.now))
    }

    /// Whether a site's wall clock and this one's were compared in this life, and agree as far as that can tell.
    pub fn agrees_with(&self, site: SiteId) -> bool {
        let offset = self.peers.iter().find(|peer| peer.site == site).and_then(|peer| peer.offset);
        site == self.site.me || offset.is_some_and(|offset| offset.excess_now(self.now, self.config.epsilon) == 0)
    }

    /// Sends a message about objects.
    pub fn send_object(&mut self, to: SiteId, message: Message) {
        self.sends.push((to, Body::Object(Box::new(message))));
    }

    /// Takes one more operation in that is to wait; false at the bound, where it is to be refused as overloaded.
    #[must_use]
    pub fn admit(&mut self) -> bool {
        let has_room = self.waiting < WAITING;
        self.waiting += usize::from(has_room);
        has_room
    }

    /// Up to `span` microseconds, at random: keeps rivals apart.
    pub fn jitter(&mut self, span: u64) -> u64 {
        self.rng.below(span.max(1))
    }
}
