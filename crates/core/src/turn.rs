//! One call of `handle`: the time, the site and its peers as a chapter sees them, and the effects that are gathered.

use std::collections::VecDeque;

use crate::api::{Outcome, Response};
use crate::avantan::{Membership, Sight};
use crate::clock::{MILLISECOND, Now, Offset, SECOND};
use crate::config::Config;
use crate::id::{Incarnation, OperationId, SessionId, SiteId};
use crate::machine::{Batch, ClientId};
use crate::metrics::Metrics;
use crate::peer::Body;
use crate::session::Aim;
use crate::stats::Rng;

/// The most operations that may wait at a site for others: for tokens, for an agreement, for what others know of a
/// name, and transactions that are under way. One more is refused as overloaded. An operation that waits takes about
/// half a kilobyte.
pub const WAITING: usize = 320_000;
/// The longest round trip that is reckoned with, in microseconds. An exchange that took longer was held up, by a peer
/// that stood still or by a queue, and says nothing of the way; a site that waited by it would ask again only after as
/// long.
pub const LONGEST_WAY: u64 = SECOND;
/// The size that the batch of most turns does not exceed, in bytes.
const TURN_BYTES: usize = 256;
/// A peer that was not heard from for this long counts as down, in microseconds.
pub const SILENCE: u64 = 4 * SECOND;

/// A site's knowledge of another member.
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
    /// The incarnation over which this life noted that one: the highest heard of at the time. Zero if it has noted none.
    pub replaced: Incarnation,
    /// The last time at which it sent something that only a site that serves sends, in this life's monotonic
    /// microseconds.
    pub heard: Option<u64>,
    /// The time since which it is known to serve without a break, on the same clock; meaningless while it is down.
    pub up_since: u64,
    /// True if it said that it drains.
    pub leaving: bool,
    /// The number of the change that gave it its seat; zero for the first members.
    pub since: u64,
    /// True if it is a member no longer. Then nothing is heard of it, so that it is never up.
    pub gone: bool,
    /// The last exchange of clocks with that incarnation.
    pub offset: Option<Offset>,
    /// The sending time, by both clocks of this life, of the last ping that it answered in that incarnation: it had its
    /// storage then.
    pub vouched: Option<Now>,
}

impl Peer {
    /// True if it serves, as far as was heard lately.
    pub fn is_up(&self, now: Now) -> bool {
        self.heard.is_some_and(|heard| now.mono.saturating_sub(heard) < SILENCE)
    }

    /// True if an incarnation is noted for the new storage of this name, and none so high was heard of.
    pub fn is_noted_for(&self, nonce: u64) -> bool {
        self.noted.1 == nonce && self.incarnation < self.noted.0
    }
}

/// The name of an operation of this site: its id without the site and the incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    /// Its session.
    pub session: SessionId,
    /// Its sequence.
    pub sequence: u64,
}

impl Ticket {
    /// The operation's id.
    pub fn operation(self, here: &Here) -> OperationId {
        let Ticket { session, sequence } = self;
        OperationId { site: here.site.me, incarnation: here.site.incarnation, session, sequence }
    }
}

/// The verdict of other sites' clocks on a site's wall clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// No site disagrees with it; or enough agree, itself included, that not all of them are wrong if fewer than a
    /// majority are.
    Trusted,
    /// No site disagrees, and some that are up were not compared with it yet.
    Unknown,
    /// A site disagrees, and too few agree. That too few disagree is no reason to trust it: others are down, and of
    /// those that are left two may be wrong by as much.
    Doubted,
}

/// One call of `handle`.
pub struct Turn<'a> {
    /// The site and the others, as they are known now.
    pub here: Here<'a>,
    /// The effects of the call.
    pub out: Out<'a>,
}

/// Everything that a chapter may look at besides its own state: the time, the site, and the other members.
#[derive(Clone, Copy)]
pub struct Here<'a> {
    /// The time.
    pub now: Now,
    /// The site's uptime over all lives, in microseconds.
    pub uptime: u64,
    /// The time since the site was opened by the slower of its two clocks, in microseconds.
    pub steady: u64,
    /// The site and its members.
    pub site: Membership<'a>,
    /// This site's position among the members.
    pub position: usize,
    /// The members by position; this site's own entry is idle.
    pub peers: &'a [Peer],
    /// The configuration.
    pub config: &'a Config,
    /// True if storage has room for what clients want written.
    pub has_room: bool,
    /// Since when the site gives its tokens away and grants nothing, by an operator's word, in this life's monotonic microseconds; none if
    /// it does not.
    pub drained: Option<u64>,
    /// The transactions that this site coordinates, and those that it has a part of.
    pub under_way: usize,
}

/// The effects of a call: rows that become durable, messages and responses that leave once they are, and counts.
pub struct Out<'a> {
    /// The site itself.
    me: SiteId,
    /// Messages of a chapter to itself at this site, taken up in the same call; empty at its end.
    own: VecDeque<Body>,
    /// The rows that become durable, whole or not at all.
    pub batch: Batch,
    /// Messages to other sites.
    pub sends: Vec<(SiteId, Body)>,
    /// Responses to clients, besides those to operations that have ended.
    pub responses: Vec<(ClientId, Response)>,
    /// Set if the site drains from the end of this call on, or no longer.
    pub drains: Option<bool>,
    /// Waiting operations that have ended.
    pub finished: Vec<(Ticket, Outcome)>,
    /// Waiting operations that are undecided when their clients are answered, with their aims.
    pub undecided: Vec<(Ticket, Aim)>,
    /// The number of operations that wait at this site; at most [`WAITING`]. Those that end in this turn still count,
    /// so that the turn cannot admit more than the bound.
    pub waiting: usize,
    /// The source of back-offs.
    pub rng: &'a mut Rng,
    /// Counters.
    pub metrics: &'a mut Metrics,
}

impl<'a> Out<'a> {
    /// No effects yet; `waiting` operations wait.
    pub fn new(me: SiteId, waiting: usize, rng: &'a mut Rng, metrics: &'a mut Metrics) -> Self {
        Self {
            me,
            own: VecDeque::new(),
            batch: Batch::with_capacity(TURN_BYTES),
            sends: Vec::new(),
            responses: Vec::new(),
            drains: None,
            finished: Vec::new(),
            undecided: Vec::new(),
            waiting,
            rng,
            metrics,
        }
    }

    /// Sends a message once the batches handed out before, and this call's, are durable. One to this site itself is
    /// delivered within the same call ([`Out::take_own`]): no other site hears of it, so it may count before it is
    /// durable.
    pub fn send(&mut self, to: SiteId, message: impl Into<Body>) {
        match to == self.me {
            true => self.own.push_back(message.into()),
            false => self.sends.push((to, message.into())),
        }
    }

    /// The next message to this site itself.
    pub fn take_own(&mut self) -> Option<Body> {
        self.own.pop_front()
    }

    /// Admits one more operation that is to wait; false at the bound, where it is to be refused as overloaded.
    #[must_use]
    pub fn admit(&mut self) -> bool {
        let has_room = self.waiting < WAITING;
        self.waiting += usize::from(has_room);
        has_room
    }

    /// A random time below `span` microseconds: keeps rivals apart.
    pub fn jitter(&mut self, span: u64) -> u64 {
        self.rng.below(span.max(1))
    }
}

impl Here<'_> {
    /// True if what is given to the member at this position would be of use there.
    pub fn takes_gifts(&self, position: usize) -> bool {
        let peer = &self.peers[position];
        peer.is_up(self.now) && !peer.leaving && peer.incarnation > Incarnation(0)
    }

    /// True if nothing ever comes from other sites.
    pub fn is_alone(&self) -> bool {
        !self.config.redistribute || self.site.count() == 1
    }

    /// The longest round trip to a peer that is up, in microseconds; a guess before anything was measured.
    pub fn longest_round_trip(&self) -> u64 {
        let measured = self.peers.iter().filter(|peer| peer.is_up(self.now));
        let longest = measured.filter_map(|peer| peer.offset).map(|offset| offset.rtt).max();
        longest.unwrap_or(200 * MILLISECOND).clamp(MILLISECOND, LONGEST_WAY)
    }

    /// Who is up, as far as was heard lately.
    pub fn sight(&self) -> impl Sight + Copy {
        |position: usize| {
            let peer = &self.peers[position];
            peer.is_up(self.now).then_some(peer.incarnation)
        }
    }

    /// The last measured round trip to a site, in microseconds; a guess before anything was measured, zero to itself.
    pub fn round_trip(&self, site: SiteId) -> u64 {
        if site == self.site.me {
            return 0;
        }
        let peer = self.peers.iter().find(|peer| peer.site == site);
        peer.and_then(|peer| peer.offset).map_or(200 * MILLISECOND, |offset| offset.rtt).min(LONGEST_WAY)
    }

    /// True if a site serves, as far as was heard lately; this one does.
    pub fn is_reachable(&self, site: SiteId) -> bool {
        site == self.site.me || self.peers.iter().any(|peer| peer.site == site && peer.is_up(self.now))
    }

    /// True if another member is up, as far as was heard lately, or if this site was opened just now and has not had the time to hear of it.
    pub fn may_be_up(&self, peer: &Peer) -> bool {
        peer.is_up(self.now) || self.steady < SILENCE && peer.heard.is_none() && !peer.gone
    }

    /// The same of a site; this one is.
    pub fn may_be_reachable(&self, site: SiteId) -> bool {
        site == self.site.me || self.peers.iter().any(|peer| peer.site == site && self.may_be_up(peer))
    }

    /// The highest incarnation heard of a site.
    pub fn incarnation_of(&self, site: SiteId) -> Incarnation {
        if site == self.site.me {
            return self.site.incarnation;
        }
        let peer = self.peers.iter().find(|peer| peer.site == site);
        peer.map_or(Incarnation(0), |peer| peer.incarnation)
    }

    /// The other sites that are not in their first incarnation any more, each with the newest that this site knows: nothing is taken of those
    /// before. Of a member that is gone nothing is.
    pub fn reborn(&self) -> Vec<(SiteId, Incarnation)> {
        let others = self.peers.iter().filter(|peer| peer.site != self.site.me);
        let known = others.map(|peer| (peer.site, if peer.gone { Incarnation::GONE } else { peer.incarnation }));
        known.filter(|(_, known)| *known > Incarnation(1)).collect()
    }

    /// The time that a majority agrees has come: the latest that the wall clocks of a majority of all sites show or
    /// have passed, this site's included, as they were measured in this life. None if no other clock was measured, and
    /// there are others.
    ///
    /// What is not safe to do too early is judged by this, what is not safe to do too late by [`Here::agreed_at_most`].
    pub fn agreed(&self) -> Option<i64> {
        // The clocks in ascending order: from this one on there are as many as a majority.
        let (mut latest, majority) = (None, self.site.majority());
        self.at_one_time(|offsets| {
            if offsets.len() >= majority {
                latest = latest.max(Some(offsets[offsets.len() - majority]));
            }
        });
        if let Some(latest) = latest {
            return Some(self.now.wall.saturating_add(latest));
        }

        // Too few are known since this site's clock was stepped. The one that is farthest behind counts: to wait for
        // longer than needed is safe. Measured before the step it counts in both ways, for a peer that was stepped too
        // and one that was not.
        let others = self.peers.iter().filter(|peer| peer.site != self.site.me);
        let known = others.filter_map(|peer| peer.offset).map(|offset| offset.offset.min(offset.at(self.now).offset));

        Some(self.now.wall.saturating_add(known.min()?.min(0)))
    }

    /// The time that a majority agrees has not passed yet: the earliest that the wall clocks of a majority have not
    /// passed. None if fewer are known.
    pub fn agreed_at_most(&self) -> Option<i64> {
        let mut earliest: Option<i64> = None;
        self.at_one_time(|offsets| {
            let offset = offsets.get(self.site.majority() - 1).copied();
            earliest = offset.into_iter().chain(earliest).min();
        });
        Some(self.now.wall.saturating_add(earliest?))
    }

    /// True if the wall clocks of a majority of all sites lie within `span` microseconds of each other.
    pub fn has_majority_within(&self, span: u64) -> bool {
        let (mut is_near, majority) = (false, self.site.majority());
        self.at_one_time(|offsets| {
            is_near |= offsets.windows(majority).any(|near| near[near.len() - 1].abs_diff(near[0]) <= span);
        });
        is_near
    }

    /// Hands over the offsets of the wall clocks that stood where they stand at one time, as they were measured in this life, with zero
    /// for this site's own, in ascending order. Where there is no time at which all of them did, for each time.
    ///
    /// Of clocks at different times a majority says nothing: one may have been set right since it was measured, and the next one wrong
    /// just then, so that two of three seem to be wrong and never more than one was.
    fn at_one_time(&self, mut judge: impl FnMut(&[i64])) {
        // A clock that was measured before this site's own was stepped says nothing: it may have been stepped too
        // since, and fit by chance.
        let measured = || {
            let others = self.peers.iter().filter(|peer| peer.site != self.site.me);
            others.filter_map(|peer| peer.offset.filter(|offset| offset.is_of(self.now)))
        };
        let mut judge_at = |at: Option<u64>| {
            let standing = measured().filter(|offset| at.is_none_or(|at| (offset.since..=offset.sent).contains(&at)));
            let mut offsets: Vec<i64> = standing.map(|offset| offset.offset).chain([0]).collect();
            offsets.sort_unstable();
            judge(&offsets);
        };
        let latest = measured().map(|offset| offset.since).max().unwrap_or(0);
        if measured().all(|offset| latest <= offset.sent) {
            return judge_at(None);
        }

        measured().for_each(|offset| judge_at(Some(offset.since)));
    }

    /// The monotonic time since which a site is known to serve without a break; meaningless while it is down.
    pub fn up_since(&self, site: SiteId) -> u64 {
        self.peers.iter().find(|peer| peer.site == site).map_or(0, |peer| peer.up_since)
    }

    /// The offset of a site's wall clock from this one's; none if they were not compared in this life.
    pub fn offset_of(&self, site: SiteId) -> Option<Offset> {
        if site == self.site.me {
            return Some(Offset::default());
        }
        let peer = self.peers.iter().find(|peer| peer.site == site);
        Some(peer?.offset?.at(self.now))
    }

    /// True if a site's wall clock and this one's were compared in this life, and agree as far as that can tell.
    pub fn agrees_with(&self, site: SiteId) -> bool {
        let offset = self.peers.iter().find(|peer| peer.site == site).and_then(|peer| peer.offset);
        site == self.site.me || offset.is_some_and(|offset| offset.excess_now(self.now, self.config.epsilon) == 0)
    }

    /// The largest part of any peer's offset that ε and the round trip cannot explain, in microseconds, and the verdict
    /// on this site's wall clock.
    pub fn judge_clock(&self) -> (u64, Trust) {
        // A peer that is up counts by its last exchange. One that is down does not, as its clock may have been set
        // right since; but if they agreed then, and this site's own clock was stepped away from it since, the monotonic
        // clock tells that.
        let (mut most, mut agreeing, mut disagreeing, mut unheard) = (0, 1, 0, 0);
        for peer in self.peers.iter().filter(|peer| peer.site != self.site.me) {
            let excess = match peer.offset {
                Some(offset) if peer.is_up(self.now) => offset.excess_now(self.now, self.config.epsilon),
                Some(offset) if offset.excess(self.config.epsilon) == 0 => {
                    match offset.at(self.now).excess(self.config.epsilon) {
                        0 => continue,
                        excess => excess,
                    }
                }
                None if peer.is_up(self.now) => {
                    unheard += 1;
                    continue;
                }
                _ => continue,
            };
            most = most.max(excess);
            *(if excess > 0 { &mut disagreeing } else { &mut agreeing }) += 1;
        }

        // If fewer than a majority of clocks are wrong, then of this many that agree not all are.
        let enough = (self.site.count() - 1) / 2 + 1;
        let are_enough = agreeing >= enough && (disagreeing == 0 || self.agree_at_one_time(enough));
        let trust = match (are_enough, disagreeing, unheard) {
            (true, ..) | (_, 0, 0) => Trust::Trusted,
            (_, 0, _) => Trust::Unknown,
            _ => Trust::Doubted,
        };
        (most, trust)
    }

    /// True if at one time this many clocks agreed, this site's included. Agreement at different times says nothing: one
    /// clock may have been set right since it was compared, and another one wrong before it was, so that at each time fewer are wrong
    /// than are counted.
    fn agree_at_one_time(&self, enough: usize) -> bool {
        let spans = || {
            let others = self.peers.iter().filter(|peer| peer.site != self.site.me && peer.is_up(self.now));
            let agreeing = others.filter_map(|peer| peer.offset);
            let agreeing = agreeing.filter(|offset| offset.excess_now(self.now, self.config.epsilon) == 0);
            agreeing.map(|offset| offset.since..=offset.sent)
        };
        let agreed_at = |at: u64| spans().filter(|span| span.contains(&at)).count() + 1;
        enough == 1 || spans().any(|span| agreed_at(*span.start()) >= enough)
    }

    /// The verdict of other sites' clocks on this site's wall clock.
    pub fn trust(&self) -> Trust {
        self.judge_clock().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{MILLISECOND, SECOND};

    /// The time at the site that looks.
    const NOW: Now = Now { wall: 1_000 * SECOND as i64, mono: 100 * SECOND };

    /// The offset of a clock that is `off`, from an exchange that was sent at a monotonic time; the clock stands so since another.
    fn exchange(off: i64, (since, sent): (u64, u64)) -> Offset {
        let at = |mono: u64| Now { wall: NOW.wall - (NOW.mono - mono) as i64, mono };
        let there = at(sent + 40 * MILLISECOND).wall + off;
        Offset { since, ..Offset::measure(at(sent), there, at(sent + 80 * MILLISECOND)) }
    }

    /// What the first of several members sees. Each other one's clock was compared so, or it is down.
    fn seen<T>(clocks: &[Option<Offset>], look: impl FnOnce(&Here) -> T) -> T {
        let members: Vec<SiteId> = (0..=clocks.len() as u16).map(|region| SiteId::new(region, 0)).collect();
        let peer = |(site, offset): (&SiteId, &Option<Offset>)| {
            let heard = offset.map(|_| NOW.mono - SECOND / 2);
            Peer { site: *site, heard, offset: *offset, ..Peer::default() }
        };
        let peers: Vec<Peer> = members.iter().zip([None].iter().chain(clocks)).map(peer).collect();
        let config = Config::new(members[0], members.clone());
        look(&Here {
            now: NOW,
            uptime: 0,
            steady: 0,
            site: Membership::first(members[0], Incarnation(1), &members),
            position: 0,
            peers: &peers,
            config: &config,
            has_room: true,
            drained: None,
            under_way: 0,
        })
    }

    #[test]
    fn reborn_names_new_incarnations_and_members_that_are_gone() {
        seen(&[None; 4], |here| {
            let mut peers = here.peers.to_vec();
            (0..4).for_each(|at| peers[at].incarnation = Incarnation(1));
            (peers[0].incarnation, peers[2].incarnation) = (Incarnation(3), Incarnation(2));
            peers[3].gone = true;
            let reborn = Here { peers: &peers, ..*here }.reborn();
            let [new, gone] = [2, 3].map(|at| peers[at].site);
            assert!(reborn.contains(&(gone, Incarnation::GONE)), "nothing is taken of it");
            assert_eq!(reborn, [(new, Incarnation(2)), (gone, Incarnation::GONE)], "nor of itself or of the first");
        });
    }

    /// They may have been stepped since, too, and fit by chance.
    #[test]
    fn clocks_that_were_compared_before_the_own_one_was_stepped_agree_on_no_time() {
        let step = 30 * SECOND as i64;
        let long = (10 * SECOND, 99 * SECOND);
        let before = Offset { lead: exchange(0, long).lead - step, ..exchange(0, long) };
        for clocks in [[Some(before); 2], [Some(before), None]] {
            let judged = seen(&clocks, |here| (here.agreed_at_most(), here.has_majority_within(SECOND)));
            assert_eq!(judged, (None, false), "what was known before the step counts");
        }
        let judged = seen(&[Some(before), Some(exchange(0, long))], |here| here.agreed_at_most().is_some());
        assert!(judged, "one that was compared since is enough for a majority of three");
    }

    /// Of three sites one clock was wrong, and then the other one; never both.
    #[test]
    fn wrong_clocks_at_different_times_set_no_time_that_a_majority_agrees_on() {
        let behind = -19 * SECOND as i64;
        let judged = |one: Offset, other: Offset| {
            let since_now = |time: Option<i64>| time.map(|time| time - NOW.wall);
            seen(&[Some(one), Some(other)], |here| {
                (since_now(here.agreed()), since_now(here.agreed_at_most()), here.has_majority_within(SECOND))
            })
        };

        let long = (10 * SECOND, 99 * SECOND);
        assert_eq!(judged(exchange(0, long), exchange(0, long)), (Some(0), Some(0), true));
        assert_eq!(judged(exchange(behind, long), exchange(0, long)), (Some(0), Some(0), true));
        assert_eq!(judged(exchange(behind, long), exchange(behind, long)), (Some(behind), Some(behind), true));

        // The first was set right before the second was set wrong, and this site has not heard of that yet. At each time this site and one
        // of them are a majority, and may be as far apart as they are: what is agreed to have come is early, and what not to have passed late.
        let (before, after) = ((10 * SECOND, 98 * SECOND), (99 * SECOND, 99 * SECOND));
        assert_eq!(judged(exchange(behind, before), exchange(behind, after)), (Some(behind), Some(0), false));
        assert_eq!(judged(exchange(-behind, before), exchange(-behind, after)), (Some(0), Some(-behind), false));
    }

    /// Two of five disagree, which is no majority of the five: but the others are down, and either side may be right.
    #[test]
    fn clock_with_which_no_majority_agrees_is_not_trusted_while_others_are_down() {
        let trust = |clocks: [Option<Offset>; 4]| seen(&clocks, |here| here.trust());
        let since = (10 * SECOND, 99 * SECOND);
        let (right, off) = (Some(exchange(0, since)), Some(exchange(19 * SECOND as i64, since)));
        assert_eq!(trust([right, right, off, off]), Trust::Trusted, "three of five agree");
        assert_eq!(trust([right, right, None, None]), Trust::Trusted, "nobody disagrees");
        assert_eq!(trust([off, off, None, None]), Trust::Doubted, "no three of five are heard to agree");
        assert_eq!(trust([right, off, None, None]), Trust::Doubted, "no three of five are heard to agree");
        assert_eq!(trust([right, off, off, off]), Trust::Doubted, "three of five agree on another time");
    }
}
