//! Who the members are: the one entity by which they agree on that, and what a change of it asks of every other.
//!
//! The entity has a name that no quota can have ([`MEMBERS`]) and never has tokens. Each instance of it that decides a
//! [`Lifecycle::Seat`] gives a site a seat, or takes one away; the seats stand in its table. So a change needs a majority of the members
//! that the last one left, a new incarnation votes for it only where its predecessor's votes cannot matter, and a site that was away
//! catches up, all as with a quota.
//!
//! ```text
//!   asked for at any site          every member                     every quota
//!     │─ Seat(sa joins) ──────────────▶│  a majority accepts            │
//!     │   decided: change 7            │                                │
//!     │─ Decided(7) ──────────────────▶│  seats of change 7             │
//!     │                                │─ a round that records 7 ──────▶│  decided by a majority of now
//!     │   the next change waits until all have recorded 7               │
//! ```
//!
//! [`crate::avantan::Membership`] says why votes of before and after a change do not contradict each other. What follows for a site:
//!
//! - Once it knows a change, it sees to it that each quota records it: the first member that is up leads the rounds, and the others
//!   look whether it did.
//! - It votes for the next change when everything that it knows has recorded the last one. A new incarnation has forgotten what its
//!   predecessor knew of; it votes when as many others as are a majority of all members have said that everything that they know has
//!   recorded both the change and this incarnation. Whatever the predecessor had voted for, one of these knows of.
//! - While names are being forgotten it votes for no change, and while a change is under way it freezes no name: all members must agree
//!   that a name goes, and who they are must not change meanwhile.

use super::book::{Quotas, Seats};
use super::one::{Admin, Quota};
use crate::api::{COUNTED, LABEL_BYTES, NoSeat, Outcome, Refusal, SeatChange, UnknownReason};
use crate::avantan::{Lifecycle, Message, Roster, SEATS};
use crate::clock::{MILLISECOND, SECOND};
use crate::id::{Incarnation, SiteId};
use crate::machine::{KeyRange, View};
use crate::peer::quota::QuotaMessage;
use crate::rows::{GRANT, OBJECT};
use crate::turn::{Here, Peer, SILENCE, Ticket, Turn};

/// The name of the entity by which members agree on who they are. It has a character that no quota's name may have.
pub const MEMBERS: &str = "\u{1}members";

/// The most quotas that are looked at in one turn, whether they have recorded the last change.
const LOOKED_AT: usize = 64;
/// The time between two turns that do, while more are left.
const SHORT_PAUSE: u64 = 5 * MILLISECOND;
/// The time for which a site leaves the rounds that record a change to each member before it.
const PRECEDENCE: u64 = 2 * SECOND;

/// What would be missed if the site left: grants, and objects. Of each as many as are counted.
pub(super) fn missed() -> impl Iterator<Item = KeyRange> {
    let of = |tag: u8| KeyRange { from: vec![tag], to: vec![tag + 1], limit: COUNTED as usize };
    [GRANT, OBJECT].into_iter().map(of)
}

impl Quota {
    /// True if this is the entity by which members agree on who they are.
    pub(super) fn is_of_members(&self) -> bool {
        &*self.name == MEMBERS
    }

    /// True if something of it was decided, or may be, and none of that since the last change of the members. What was only promised
    /// binds nothing.
    fn is_behind(&self, here: &Here) -> bool {
        let share = &self.avantan.share;
        let is_something = share.applied > 0 || share.round.as_ref().is_some_and(|round| round.accepted.is_some());
        is_something && share.table.is_before(here.site)
    }
}

impl QuotaMessage {
    /// True if it is of the agreement about who the members are.
    pub fn is_about_members(&self) -> bool {
        self.name() == Some(MEMBERS)
    }

    /// True if what it says counts by the members of now: rounds of the majority, and what all members or a majority of them say. What is
    /// about the members themselves goes by what was decided.
    pub fn counts_members(&self) -> bool {
        let counts = matches!(
            self,
            Self::Avantan { .. } | Self::NoVote { .. } | Self::Lookup { .. } | Self::NotKnown { .. } | Self::Forget(_)
        );
        counts && !self.is_about_members()
    }
}

impl Quotas {
    /// What to say to a site that knows other members: what is decided here, or, to one that knows of more, what is not.
    pub fn members_news(&self, is_known: bool) -> QuotaMessage {
        let share = self.find(MEMBERS).map(|quota| &quota.avantan.share);
        let message = match share {
            Some(share) if is_known => Message::Decided { instance: share.applied, table: share.table.clone() },
            _ => Message::Behind { applied: share.map_or(0, |share| share.applied) },
        };
        QuotaMessage::agreement(MEMBERS, message)
    }

    /// The entity by which members agree on who they are, if they ever did.
    fn of_members(&self) -> Option<&Quota> {
        Some(&self.list[self.index.members? as usize])
    }

    /// The seats, if the members ever changed.
    pub fn roster(&self) -> Option<&Roster> {
        self.of_members()?.avantan.share.table.roster.as_deref()
    }

    /// True if everything that this site knows has recorded the last change, and it may speak for what a predecessor of it knew.
    pub fn is_settled(&self) -> bool {
        self.seats.behind.is_empty()
    }

    /// The number of quotas here that have not recorded the last change.
    pub fn behind(&self) -> u64 {
        self.seats.behind.len() as u64
    }

    /// True if the quota of this number has not recorded the last change.
    pub(super) fn is_behind_number(&self, number: u64) -> bool {
        self.seats.behind.contains(&number)
    }

    /// Notes that the member at a position has attested to this incarnation; see [`Quotas::attests`]. Returns how many have.
    pub fn note_attested(&mut self, position: usize) -> usize {
        self.seats.attested.insert(position);
        self.seats.attested.positions().count()
    }

    /// True if the member at a position has attested to this incarnation.
    pub fn has_attested(&self, position: usize) -> bool {
        self.seats.attested.contains(position)
    }

    /// True if everything that this site knows has recorded the last change, and this incarnation of another site.
    pub fn attests(&self, site: SiteId, incarnation: Incarnation) -> bool {
        let knows = |quota: &Quota| quota.limit().is_none() || quota.avantan.share.table.recorded(site) >= incarnation;
        self.is_settled() && self.iter().all(knows)
    }

    /// The changes that may be decided, as far as this site has a part in them: the one that it has accepted, and those that wait here.
    fn changes(&self) -> impl Iterator<Item = Lifecycle> {
        self.of_members().into_iter().flat_map(|quota| {
            let accepted = quota.avantan.share.round.as_ref().and_then(|round| round.accepted.as_ref());
            let waiting = quota.activity.iter().flat_map(|activity| &activity.admin).map(|admin| admin.change);
            accepted.map(|(_, value)| value.lifecycle).into_iter().chain(waiting)
        })
    }

    /// True if a change that concerns this site may be decided: nothing is noted for new storage of it meanwhile.
    pub fn is_changing(&self, site: SiteId) -> bool {
        self.changes().any(|change| matches!(change, Lifecycle::Seat { site: changed, .. } if changed == site))
    }

    /// True if it may be decided that this site, `me`, leaves: it has asked for that, or has accepted it.
    pub fn is_leaving(&self, me: SiteId) -> bool {
        self.changes().any(|change| matches!(change, Lifecycle::Seat { site, gone: true } if site == me))
    }

    /// True if a change is under way here.
    pub(super) fn is_changing_any(&self) -> bool {
        self.changes().next().is_some()
    }

    /// Gives a site a seat, or takes it away.
    pub(super) fn change_members(
        &mut self,
        turn: &mut Turn,
        view: &View,
        ticket: Ticket,
        (site, change, label): (SiteId, SeatChange, &str),
        deadline: u64,
    ) -> Option<Outcome> {
        let here = turn.here;
        if label.len() > LABEL_BYTES {
            return Some(Outcome::Refused(Refusal::InvalidName));
        }

        // What the site does about itself needs nobody else.
        if let SeatChange::Drains | SeatChange::Serves = change {
            if site != here.site.me {
                return Some(Outcome::Refused(Refusal::NoSeat { why: NoSeat::OtherSite, count: 0 }));
            }
            turn.out.drains = Some(change == SeatChange::Drains);
            return Some(Outcome::Seated { number: here.site.number });
        }
        let gone = change != SeatChange::Joins;
        match self.is_seated(&here, view, site, change) {
            Ok(false) => {}
            Ok(true) => return Some(Outcome::Seated { number: here.site.number }),
            Err(refusal) => return Some(Outcome::Refused(refusal)),
        }
        if let Err(refusal) = self.may_change(&here, site) {
            return Some(Outcome::Refused(refusal));
        }
        let Some(at) = self.position_or_new(&here, MEMBERS) else {
            return Some(Outcome::Refused(Refusal::Overloaded));
        };
        let change = Lifecycle::Seat { site, gone };
        self.administer(turn, at, Admin { label: label.into(), ..Admin::new(ticket, change, deadline) });
        None
    }

    /// True if the seat of a site is already what a change would make of it; a refusal if that may not be.
    fn is_seated(&self, here: &Here, view: &View, site: SiteId, change: SeatChange) -> Result<bool, Refusal> {
        let refuse = |why| Err(Refusal::NoSeat { why, count: 0 });
        let known = here.peers.iter().position(|peer| peer.site == site);
        let peer = known.map(|position| &here.peers[position]);
        let was_member = peer.is_some_and(|peer| peer.gone);
        match change {
            SeatChange::Joins if was_member => refuse(NoSeat::WasMember),
            SeatChange::Joins if peer.is_some() => Ok(true),
            SeatChange::Joins if here.peers.len() >= SEATS => refuse(NoSeat::Full),
            SeatChange::Joins if here.site.members.last().is_some_and(|last| site < *last) => refuse(NoSeat::NotNext),
            SeatChange::Joins => Ok(false),
            SeatChange::Drains | SeatChange::Serves => unreachable!("a site does these by itself"),
            SeatChange::Leaves | SeatChange::Lost if was_member => Ok(true),
            SeatChange::Leaves if site != here.site.me => refuse(NoSeat::OtherSite),
            SeatChange::Leaves => self.may_leave(here, view).map(|()| false),
            SeatChange::Lost => match peer {
                None => refuse(NoSeat::NoMember),
                // One that has just started has not listened for long enough to know.
                Some(peer) if site == here.site.me || peer.is_up(here.now) || here.steady < SILENCE => {
                    refuse(NoSeat::Lives)
                }
                Some(_) => Ok(false),
            },
        }
    }

    /// Whether nothing is left at this site that anybody could miss.
    fn may_leave(&self, here: &Here, view: &View) -> Result<(), Refusal> {
        let refuse = |why, count: usize| Err(Refusal::NoSeat { why, count: count as u64 });
        if here.site.count() == 1 {
            return refuse(NoSeat::Last, 0);
        }
        let Some(since) = here.drained else { return refuse(NoSeat::NotDrained, 0) };

        // A gift that did not arrive, or backlog, would be lost with this site, as nobody else tells of it.
        let has_tokens = |quota: &&Quota| {
            let activity = quota.activity.as_ref();
            let mut peers = (0..here.peers.len()).filter(|&peer| peer != here.position && !here.peers[peer].gone);

            // A round that it is in may leave it some. A creation that it has not accepted does not count: whoever asked for that may be
            // gone for good, and it would wait for ever.
            let share = &quota.avantan.share;
            let is_in_round = share.part().is_some() || (quota.avantan.in_round() && !quota.is_of_members());
            let has_some = share.tokens > 0 || (quota.refills() && quota.backlog() > 0);
            let has_line = activity.is_some_and(|activity| !activity.waiting.is_empty());
            is_in_round
                || has_line
                || (quota.limit().is_some() && (has_some || peers.any(|peer| quota.is_away(here, peer))))
        };
        let quotas = self.iter().filter(has_tokens).count();
        if quotas > 0 {
            return refuse(NoSeat::HasTokens, quotas);
        }

        // Who has answered a ping since, and vouched, gives it nothing any more, and what it gave before has arrived ([`Quotas::owes`]). One that
        // is down may have given something that has not left it yet.
        let has_answered = |peer: &Peer| peer.vouched.is_some_and(|vouched| vouched.mono > since.max(peer.up_since));
        let gives_nothing = |peer: &Peer| peer.gone || (peer.is_up(here.now) && has_answered(peer));

        // Nor may one be without the totals of gifts that this site tells of since it started, whether or not it is up.
        let others = here.peers.iter().enumerate().filter(|(_, peer)| peer.site != here.site.me);
        let is_untold = |at, peer: &Peer| !peer.gone && self.gifts.announcements.is_open_to(at);
        let unheard = others.filter(|(at, peer)| !gives_nothing(peer) || is_untold(*at, peer)).count();
        if unheard > 0 {
            return refuse(NoSeat::Unheard, unheard);
        }

        // New storage of a member votes only once all others have said what they know of its predecessor's votes, or a round has recorded it.
        // With this site one of them would be gone for good, and it may be the last that is not new.
        self.is_recorded_everywhere(here)?;
        for (range, why) in missed().zip([NoSeat::HasGrants, NoSeat::HasObjects]) {
            let count = view.heads_of(&range).count();
            if count > 0 {
                return refuse(why, count);
            }
        }
        if here.under_way > 0 {
            return refuse(NoSeat::HasTransactions, here.under_way);
        }

        Ok(())
    }

    /// Whether every quota has recorded the new storage of each other member that is up.
    fn is_recorded_everywhere(&self, here: &Here) -> Result<(), Refusal> {
        let lacks_some = |quota: &&Quota| quota.avantan.share.table.has_unrecorded(here.site, here.sight());
        match self.iter().filter(lacks_some).count() as u64 {
            0 => Ok(()),
            count => Err(Refusal::NoSeat { why: NoSeat::Unrecorded, count }),
        }
    }

    /// True if something that this site gave to a member, or backlog that it handed over, may not have arrived there. What was told may have
    /// been lost long ago: nobody is told of anything while it is not reachable, and nobody at all for a while after a start.
    pub(super) fn owes(&self, here: &Here, peer: usize) -> bool {
        self.gifts.announcements.is_open_to(peer) || self.iter().any(|quota| quota.is_away(here, peer))
    }

    /// Whether this site would vote for a change of a site's seat now.
    fn may_change(&self, here: &Here, site: SiteId) -> Result<(), Refusal> {
        let unrecorded = |count| Refusal::NoSeat { why: NoSeat::Unrecorded, count };
        if !here.site.settled {
            return Err(unrecorded(self.behind().max(1)));
        }

        // Who froze a name may have decided to forget it, unless it is the one that leaves: what that decided and told nobody is over.
        if self.forgetting.kept.frozen.iter().any(|freeze| freeze.leader != site) {
            return Err(Refusal::NoSeat { why: NoSeat::Forgetting, count: 0 });
        }
        Ok(())
    }

    /// True if a message of this entity asks for a vote that this site does not give.
    pub(super) fn refuses_seat(&self, here: &Here, quota: &str, message: &Message) -> bool {
        let Message::Accept { instance, value, .. } = message else { return false };
        let Lifecycle::Seat { site, .. } = value.lifecycle else { return false };

        // Who asks in an instance that is over is told so.
        let is_over = self.of_members().is_some_and(|quota| *instance <= quota.avantan.share.applied);
        quota != MEMBERS || (!is_over && self.may_change(here, site).is_err())
    }

    /// Whether a change that waits may be led: a refusal if waiting would not help, false if not yet.
    pub(super) fn is_seat_ready(&self, here: &Here, at: usize, site: SiteId) -> Result<bool, Refusal> {
        // The seats that the last instance left are this site's from the next call on.
        let roster = self.list[at].avantan.share.table.roster.as_ref();
        if roster.is_some_and(|roster| roster.number != here.site.number) {
            return Ok(false);
        }

        // While it may be leaving it takes nothing in, so nothing records what has started since it was asked.
        if site == here.site.me {
            self.is_recorded_everywhere(here)?;
        }
        self.may_change(here, site).map(|()| true)
    }

    /// What became of a change of a site's seat, if it took effect.
    pub(super) fn seated(&self, site: SiteId, gone: bool) -> Option<Outcome> {
        let roster = self.roster()?;
        let seat = roster.seats.iter().find(|seat| seat.site == site)?;
        match (gone, seat.gone) {
            (true, false) => None,
            // A site joins once: it did, and has left since.
            (false, true) => Some(Outcome::Unknown(UnknownReason::Forgotten)),
            _ => Some(Outcome::Seated { number: roster.number }),
        }
    }

    /// The members have changed: everything is to record it.
    pub(super) fn meet_members(&mut self, here: &Here) {
        let is_behind = |quota: &&Quota| quota.is_behind(here);
        let behind = self.iter().filter(is_behind).map(Quota::number).collect();
        let before = here.peers[..here.position].iter().filter(|peer| peer.is_up(here.now)).count() as u64;
        self.seats = Seats { behind, look_at: Some(here.now.mono + before * PRECEDENCE), ..Seats::default() };

        // Who is gone is told nothing.
        self.gifts.announcements.open.retain(|told| !here.peers[told.peer].gone);

        // What each member last said is kept by position.
        for quota in &mut self.list {
            if let Some(activity) = &mut quota.activity {
                activity.peers.resize(here.peers.len(), Default::default());
            }
        }
    }

    /// Notes whether a quota has recorded the last change, after a step of it.
    pub(super) fn note_seats(&mut self, here: &Here, at: usize) {
        if here.site.number == 0 {
            return;
        }
        let quota = &self.list[at];
        match quota.is_behind(here) {
            true => {
                let is_news = self.seats.behind.insert(quota.number);
                if is_news && self.seats.look_at.is_none() {
                    self.seats.look_at = Some(here.now.mono + PRECEDENCE);
                }
            }
            false => drop(self.seats.behind.remove(&quota.number)),
        }
    }

    /// A quota is forgotten at all sites.
    pub(super) fn forget_seats(&mut self, number: u64) {
        self.seats.behind.remove(&number);
    }

    /// When quotas are next to be looked at that have not recorded the last change.
    pub(super) fn seats_due(&self) -> Option<u64> {
        self.seats.look_at
    }

    /// A member has new storage. Nothing that goes on in the entity of the members tells of it, as a quota's messages do, and a change of
    /// long after needs the votes of those that are recorded.
    pub(super) fn meet_storage(&mut self, now: u64) {
        if self.index.members.is_some() {
            let soon = now + PRECEDENCE;
            self.seats.look_at = Some(self.seats.look_at.map_or(soon, |at| at.min(soon)));
        }
    }

    /// Has some of the quotas that have not recorded the last change do so, and the entity of the members record new storage.
    pub(super) fn tend_seats(&mut self, turn: &mut Turn) {
        let now = turn.here.now.mono;
        if self.seats.look_at.is_none_or(|at| at > now) {
            return;
        }
        let Seats { behind, last, .. } = &self.seats;
        let next: Vec<u64> = behind.range(last + 1..).take(LOOKED_AT).copied().collect();
        let next = if next.is_empty() { behind.iter().take(LOOKED_AT).copied().collect() } else { next };
        for number in &next {
            if let Some(at) = self.position_of(*number) {
                self.record_soon(turn, at);
            }
        }

        // One that is down is looked for again.
        let members = self.index.members.map(|at| at as usize);
        let recorded = |at: usize, peer: &Peer| self.list[at].avantan.share.table.recorded(peer.site);
        let is_new = |peer: &Peer| !peer.gone && members.is_some_and(|at| peer.incarnation > recorded(at, peer));
        let has_new = turn.here.peers.iter().any(is_new);
        if let Some(at) = members.filter(|_| has_new) {
            self.record_soon(turn, at);
        }

        // At the end of a pass those that have it under way are given their time.
        let Seats { behind, .. } = &self.seats;
        let is_end = next.last().is_none_or(|last| behind.last() == Some(last));
        self.seats.last = if is_end { 0 } else { next.last().copied().unwrap_or(0) };
        let pause = if is_end { PRECEDENCE } else { SHORT_PAUSE };
        self.seats.look_at = (has_new || !self.seats.behind.is_empty()).then_some(now + pause);
    }
}
