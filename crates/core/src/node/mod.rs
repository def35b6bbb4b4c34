//! The chapters, sessions and lives of a site as one machine: routing, recovery, and the batch of each turn.
//!
//! One call of [`Node::handle`] is a [`Turn`]: the message or request goes to the chapter that it concerns, which
//! changes its state in memory and gathers effects; at the end every row that changed is written in **one** batch, so a
//! turn is durable whole or not at all.
//!
//! # How a site starts
//!
//! It never acts on its past without asking (see [`lives`](self)): storage without an incarnation *joins*, storage with
//! one is *confirmed*, and only then does the site vote, offer, grant or answer for the outcomes of operations.

mod chapters;
mod chores;
mod identity;
mod lives;
mod operations;
mod relay;
mod requests;

pub use crate::config::{Config, OpenError};
pub use crate::metrics::Metrics;
pub use chores::PING;
pub use identity::Stale;
pub use operations::read_outcome_key;

use crate::api::{Answer, ClockStatus, PeerStatus, Readiness, Request, Response, Status};
use crate::avantan::{Membership, Roster, counts_alike};
use crate::bounds::RESPONSE_NAMED_BYTES;
use crate::chapter::Revived;
use crate::clock::Now;
use crate::id::{Incarnation, SiteId};
use crate::machine::{self, ClientId, Effect, Input, KeySet, Machine, Reader, Seq, View};
use crate::peer::{Body, PeerMessage, RelayMessage, SiteMessage};
use crate::right::Start;
use crate::rows::{self, META, Owner, PAGED};
use crate::session::{self, Marks, Sessions};
use crate::stats::Rng;
use crate::turn::{Here, Out, Peer, Trust, Turn};
pub use chapters::Chapters;
use chapters::{counts_members, is_about_members, owner_of_message};
use chores::Chores;
use identity::Identity;
use relay::Relays;
use requests::Desk;

/// One site's machine.
#[derive(Debug)]
pub struct Node {
    /// The configuration; its members are in ascending order and include this site.
    config: Config,
    /// Who the members are.
    members: Members,
    /// The site's past, and how far its start is.
    identity: Identity,
    /// The members by position, this site itself included.
    peers: Vec<Peer>,
    /// The sessions of clients, with the outcomes of their operations.
    sessions: Sessions,
    /// The chapters.
    chapters: Chapters,
    /// Requests that are passed on to other sites, or served for them.
    relays: Relays,
    /// The generator of nonces, tokens and random back-offs.
    rng: Rng,
    /// The counts since it was opened.
    metrics: Metrics,
    /// The log that the driver keeps.
    log: Log,
    /// The chores that come due.
    chores: Chores,
    /// A buffer that turns use again, so that the hot path allocates little.
    scratch: Vec<u8>,
}

/// A site's log, as far as the machine knows of it.
#[derive(Debug)]
struct Log {
    /// The number of the last batch handed out, synced or not.
    last: Seq,
    /// True if storage has room for what clients want written, as the driver last said.
    has_room: bool,
}

impl Node {
    /// Opens the machine on storage whose last durable batch is `last`. `seed` feeds its nonces and random back-offs.
    pub fn open(mut config: Config, seed: u64, last: Seq, reader: &dyn Reader, now: Now) -> Result<Self, OpenError> {
        config.members.sort();
        config.members.dedup();
        let position = config.members.binary_search(&config.me);
        let position = position.map_err(|_| OpenError::Config("the site is not one of the cluster's sites"))?;
        if config.members.len() > 64 {
            return Err(OpenError::Config("a lane has at most 64 sites"));
        }

        // Tokens begin at random numbers in each life: an answer to a question of an earlier life then names none of
        // this one's.
        let mut rng = Rng::new(seed);
        let members = Members::of(Roster::of(&config.members), position);
        let peers = config.members.iter().map(|&site| Peer { site, ..Peer::default() }).collect();
        let identity = Identity::fresh(&mut rng, now);
        let chapters = Chapters::new(config.me, &mut rng);
        let mut node = Self {
            members,
            identity,
            peers,
            sessions: Sessions::restore(Marks { reserved: config.first_session.max(1), ..Marks::default() }),
            chapters,
            relays: Relays::starting(rng.draw() >> 16),
            metrics: Metrics::default(),
            log: Log { last, has_room: true },
            chores: Chores::new(now),
            scratch: Vec::new(),
            config,
            rng,
        };
        node.recover(reader, now)?;
        Ok(node)
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Notes whether storage has room for what clients want written. The driver says so before it hands in their
    /// requests. Rows that sites need among themselves are written in any case: the driver keeps some room for them.
    pub fn set_room(&mut self, has_room: bool) {
        self.log.has_room = has_room;
    }

    /// Its counts since it was opened.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The progress of its start, and of its end.
    pub fn readiness(&self) -> Readiness {
        self.identity.readiness
    }

    /// The evidence that its storage is an old copy; none if there is none. With it the machine does nothing more: its
    /// driver keeps the storage as it is, and opens the site on new storage.
    pub fn stale(&self) -> Option<Stale> {
        self.identity.stale()
    }

    /// The sites that have not answered yet, while it waits for others to say what they know of it.
    pub fn waiting_for(&self) -> Vec<SiteId> {
        if !matches!(self.identity.readiness, Readiness::Joining | Readiness::Confirming) {
            return Vec::new();
        }
        let waits = |at: usize| at != self.members.position && !self.peers[at].gone && !self.identity.has_answered(at);
        (0..self.peers.len()).filter(|&at| waits(at)).map(|at| self.peers[at].site).collect()
    }

    /// The other sites that it has not met. Two sites have met when each knows that the other serves, and what its
    /// clock shows.
    pub fn unmet(&self, now: Now) -> Vec<SiteId> {
        // An answer to a ping that left after the other site was known to serve comes after that site's own first
        // exchange with this one: messages between two sites keep their order.
        let has_answered = |peer: &Peer| peer.vouched.is_some_and(|asked| asked.mono >= peer.up_since);
        let is_met = |peer: &Peer| peer.site == self.config.me || peer.gone || (peer.is_up(now) && has_answered(peer));
        self.peers.iter().filter(|peer| !is_met(peer)).map(|peer| peer.site).collect()
    }

    /// The members as it sees them.
    pub fn membership(&self) -> Membership<'_> {
        self.members.seen_by(self.config.me, &self.identity, &self.chapters)
    }

    /// Its incarnation; zero while it has none.
    pub fn incarnation(&self) -> Incarnation {
        self.identity.incarnation
    }

    /// The highest incarnation that this new storage would come after, while it waits for a person's word.
    pub fn predecessor(&self) -> Option<Incarnation> {
        self.identity.comes_after().filter(|_| self.readiness() == Readiness::AwaitingNewStorage)
    }

    /// The members, and those that were.
    pub fn roster(&self) -> &Roster {
        &self.members.roster
    }

    /// Its chapters, for status and invariants.
    pub fn chapters(&self) -> &Chapters {
        &self.chapters
    }

    /// Its sessions, for invariants.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Its knowledge of the members, by position.
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// The largest part of any peer's offset that ε and the round trip cannot explain, in microseconds; true unless the
    /// wall clock is doubted: see [`Trust::Doubted`].
    pub fn clock(&self, now: Now) -> (u64, bool) {
        let (most, trust) = self.here(now).judge_clock();
        (most, trust != Trust::Doubted)
    }

    /// The site as a chapter sees it now.
    fn here(&self, now: Now) -> Here<'_> {
        let Self { config, members, identity, peers, chapters, log, .. } = self;
        let site = members.seen_by(config.me, identity, chapters);
        let (uptime, steady) = (identity.uptime(now), identity.age.steady.clone().advance(now));
        let (has_room, drained, under_way) = (log.has_room, identity.drained, chapters.under_way());
        Here { now, uptime, steady, site, position: members.position, peers, config, has_room, drained, under_way }
    }

    /// The site's status, for operators.
    pub fn status(&self, now: Now) -> Status {
        let others = || self.peers.iter().filter(|peer| peer.site != self.config.me && !peer.gone);
        let (error, is_trusted) = self.clock(now);
        let mut status = Status {
            site: self.config.me,
            incarnation: self.identity.incarnation,
            life: self.identity.life,
            readiness: self.identity.readiness,
            waiting_for: self.waiting_for(),
            clock: ClockStatus { epsilon: self.config.epsilon, error, is_trusted },
            peers: others()
                .map(|peer| PeerStatus {
                    site: peer.site,
                    up: peer.is_up(now),
                    rtt: peer.offset.map(|offset| offset.rtt),
                    offset: peer.offset.map(|offset| offset.at(now).offset),
                    incarnation: peer.incarnation,
                    unrecorded: 0,
                })
                .collect(),
            quotas: 0,
            unrecorded: 0,
            sessions: self.sessions.len() as u64,
            membership: self.members.roster.number,
            drained: self.identity.drained.is_some(),
        };
        self.chapters.all().into_iter().for_each(|chapter| chapter.describe(&mut status));
        status
    }

    /// Rebuilds memory from the resident rows.
    fn recover(&mut self, reader: &dyn Reader, now: Now) -> Result<(), OpenError> {
        const PAGE: usize = 4096;
        let malformed = |key: &[u8]| OpenError::Malformed { key: key.to_vec() };
        let Some(meta) = reader.read(&[META])? else { return Ok(()) };

        // Storage of a later version, of another site, or of another set of members is refused before anything is read
        // from it: rows about shares and votes are by member, and would be taken for those of another.
        if let Ok(version) = identity::layout_of(&meta)
            && version > identity::VERSION
        {
            return Err(OpenError::Newer { version });
        }
        let owner = self.identity.restore(&meta, now).map_err(|_| malformed(&[META]))?;
        if owner.site != self.config.me {
            return Err(OpenError::OtherSite { owner: owner.site });
        }

        // Once the members have changed, the row says who they are: the configuration may still name those of before.
        let first = owner.roster.seats.iter().filter(|seat| seat.since == 0).map(|seat| seat.site);
        let is_known = |site: &SiteId| owner.roster.members().any(|member| member == *site);
        let is_same = match owner.roster.number {
            0 => first.eq(self.config.members.iter().copied()),
            _ => self.config.members.iter().all(is_known),
        };
        if !is_same {
            let before = owner.roster.seats.len();
            return Err(OpenError::OtherMembers { before, now: self.config.members.len() });
        }
        self.seat(owner.roster);

        self.sessions = Sessions::restore(owner.marks);
        let incarnation = self.identity.incarnation;

        // In the order of keys, page by page: there may be more rows than fit into memory at once.
        let mut from = vec![META + 1];
        loop {
            let page = reader.scan(&from, &[PAGED], PAGE)?;
            for (key, value) in &page {
                match rows::owner(key) {
                    Some(Owner::Site) => {
                        identity::restore_peer(&mut self.peers, key, value).map_err(|_| malformed(key))?;
                    }
                    Some(Owner::Sessions) => {
                        self.recover_outcome(key, value, now).map_err(|_| malformed(key))?;
                    }
                    owner => {
                        let chapter = self.chapters.of_mut(owner).ok_or_else(|| malformed(key))?;
                        if let Some(Revived { ticket, low, digest }) =
                            chapter.restore(key, value, incarnation, reader)?
                        {
                            self.sessions.restore_waiting(ticket.session, ticket.sequence, low, digest, now.mono);
                        }
                    }
                }
            }
            let Some((last, _)) = page.last().filter(|_| page.len() == PAGE) else { break };
            from = last.clone();
            from.push(0);
        }
        self.chapters.all_mut().into_iter().try_for_each(|chapter| chapter.restored(incarnation, reader))?;

        // Rows about peers may be of before who they are was decided.
        self.seat(self.members.roster.clone());
        if self.peers[self.members.position].gone {
            self.identity.betray(Stale::Removed);
        }
        self.meet_members(now);
        Ok(())
    }

    /// Takes up who the members are: those that are new get a place behind all others, and nothing more is heard of those that are
    /// gone.
    fn seat(&mut self, roster: Roster) {
        self.peers.resize_with(roster.seats.len(), Peer::default);
        for (peer, seat) in self.peers.iter_mut().zip(&roster.seats) {
            (peer.site, peer.since) = (seat.site, seat.since);
            if seat.gone {
                // As if new storage had taken its place that never says a word.
                (peer.incarnation, peer.position, peer.gone) = (Incarnation::GONE, 0, true);
                (peer.heard, peer.leaving, peer.offset, peer.vouched) = (None, false, None, None);
            }
        }
        let position = roster.members().position(|site| site == self.config.me);
        self.members = Members::of(roster, position.expect("a site is told of no seats without its own"));
    }

    /// Has the chapters take note of who the members are.
    fn meet_members(&mut self, now: Now) {
        if self.members.roster.number == 0 {
            return;
        }
        let Self { config, members, identity, peers, chapters, log, .. } = self;
        let site = members.seen_by(config.me, identity, chapters);
        let (uptime, steady) = (identity.uptime(now), identity.age.steady.clone().advance(now));
        let (has_room, drained, under_way) = (log.has_room, identity.drained, chapters.under_way());
        let here =
            Here { now, uptime, steady, site, position: members.position, peers, config, has_room, drained, under_way };
        chapters.all_mut().into_iter().for_each(|chapter| chapter.meet_members(&here));
    }

    /// Takes up a change of the members that this call has learnt of. From the next call on it is in force.
    fn change_members(&mut self, now: Now) {
        let known = self.members.roster.number;
        let Some(roster) = self.chapters.roster().filter(|roster| roster.number > known).cloned() else { return };
        let before: Vec<_> = self.peers.iter().map(|peer| peer.gone).collect();
        self.seat(roster);
        for at in (0..before.len()).filter(|&at| self.peers[at].gone && !before[at] && at != self.members.position) {
            self.identity.meet_incarnation(at);
            let chapters = self.chapters.all_mut().into_iter();
            chapters.for_each(|chapter| chapter.meet(now, at, &self.peers[at], true));
        }
        if self.peers[self.members.position].gone {
            self.identity.betray(Stale::Removed);
        }
        self.meet_members(now);
        self.chores.ping_at = self.chores.ping_at.min(now.mono);
    }

    /// Restores a row of a session: the outcome of an operation, or the session's mark.
    fn recover_outcome(&mut self, key: &[u8], value: &[u8], now: Now) -> Result<(), crate::codec::Malformed> {
        let (session, slot) = read_outcome_key(key)?;
        if slot == session::MARK_SLOT {
            self.sessions.restore_mark(session, session::decode_mark(value)?, now.mono);
            return Ok(());
        }
        let row = session::decode_row(value, self.config.me, self.identity.incarnation)?;
        self.sessions.restore_row(session, row, now.mono);
        Ok(())
    }

    /// True if the site serves.
    fn is_serving(&self) -> bool {
        matches!(self.identity.readiness, Readiness::Ready | Readiness::Draining)
    }

    /// Notes an incarnation of a site, if it is later than all that were heard of: from now on every earlier one is dead.
    fn meet(&mut self, now: Now, at: usize, incarnation: Incarnation) {
        let peer = &mut self.peers[at];
        if incarnation <= peer.incarnation {
            return;
        }

        // A new incarnation counts batches from one again, and what was measured or vouched for was the earlier one's.
        let replaced = peer.incarnation.0 > 0 || incarnation.0 > 1;
        peer.incarnation = incarnation;
        peer.position = 0;
        peer.offset = None;
        peer.vouched = None;
        if incarnation == Incarnation::GONE {
            // A round told of it before the change that is behind it came here: it is given nothing from now on, as nobody takes it.
            peer.heard = None;
        }
        self.identity.meet_incarnation(at);
        let chapters = self.chapters.all_mut().into_iter();
        chapters.for_each(|chapter| chapter.meet(now, at, peer, replaced));
    }

    /// Notes what a message tells of its sender: its incarnation, position, and that it serves. Returns the message's
    /// body; none if it is to be ignored.
    fn note_sender(&mut self, now: Now, from: usize, message: PeerMessage) -> Option<Body> {
        // An incarnation that is gone never acts again: its messages may have been on their way for long, and its votes
        // and shares count as lost. A question at the start is answered all the same: the answer tells an old copy that
        // it is one.
        let greeting = matches!(message.body, Body::Site(SiteMessage::Hello { .. }));
        let peer = &mut self.peers[from];
        if message.incarnation < peer.incarnation && !greeting && message.incarnation.0 > 0 {
            self.metrics.ignored += 1;
            return None;
        }

        // Who is gone has a last word with nobody.
        if peer.gone && !greeting {
            self.metrics.ignored += 1;
            return None;
        }

        // Whose seat is new, and of which nobody here has heard, has no past: what it has is another cluster's, though of the same name. One
        // that joined while this site was away is heard of by others, who answer it; here it is once it serves, and says so by a ping.
        let is_unheard_of = peer.since > 0 && peer.incarnation.max(peer.noted.0) == Incarnation(0);
        let serves = matches!(message.body, Body::Site(SiteMessage::Ping { .. }));
        if is_unheard_of && message.incarnation > Incarnation(0) && !serves {
            self.metrics.ignored += 1;
            return None;
        }
        self.meet(now, from, message.incarnation);

        // In the same batch as what comes of the message: what this site says of the dead it never forgets.
        for (site, incarnation) in message.body.tells_of() {
            let at = self.peers.iter().position(|peer| peer.site == *site);
            if let Some(at) = at.filter(|at| *at != self.members.position && *at != from) {
                self.meet(now, at, *incarnation);
            }
        }

        // A site vouches for its storage as of when it was asked, not of when its answer came.
        let vouches = match message.body {
            Body::Site(SiteMessage::Pong { mono, wall, withholds: false, .. }) => {
                self.pinged_at(now, mono).map(|mono| Now { wall, mono })
            }
            _ => None,
        };

        // The highest position counts, in whatever order messages come: it is the evidence against an old copy.
        let peer = &mut self.peers[from];
        let is_of_known = message.incarnation == peer.incarnation && message.incarnation.0 > 0;
        let is_later = is_of_known && message.position >= peer.position;
        if is_of_known {
            peer.position = peer.position.max(message.position);
            if let Some(asked) = vouches.filter(|asked| peer.vouched.is_none_or(|newest| newest.mono < asked.mono)) {
                peer.vouched = Some(asked);
            }
        }

        match message.body {
            // It has just started: it is to be given nothing, and asked nothing. But what runs in its place by mistake, or asked long ago,
            // does not make it look down; of new storage that is let in, see `greet`.
            Body::Site(SiteMessage::Hello { .. }) if is_later => (peer.heard, peer.leaving) = (None, false),
            Body::Site(SiteMessage::Hello { .. }) => {}
            // These a site sends before it serves; and what members say of each other, while it has no incarnation. It would take a part in a
            // transaction for one of storage that is lost.
            Body::Site(SiteMessage::Welcome { .. }) | Body::Site(SiteMessage::Pong { .. }) => {}
            _ if !is_of_known => {}
            _ => {
                // It was not known to serve. It may know as little of this site, and if its storage is new, nobody has
                // compared clocks with it: both are made up for at once, since no transaction is started over its
                // objects before.
                if !peer.is_up(now) {
                    peer.up_since = now.mono;
                    self.chores.ping_at = self.chores.ping_at.min(now.mono);
                }
                peer.heard = Some(now.mono);
            }
        }

        Some(message.body)
    }
}

impl Machine for Node {
    type Message = PeerMessage;
    type Request = Request;
    type Response = Response;

    fn working_set(&self, now: Now, input: &Input<Self>) -> KeySet {
        let (here, mut needed) = (self.here(now), KeySet::default());
        let chapters = || self.chapters.all().into_iter();

        // A request that another site passes on needs the same as one that a client hands in here.
        match input {
            Input::Tick if self.is_serving() => chapters().for_each(|chapter| chapter.tick_needs(&here, &mut needed)),
            Input::Tick => {}
            Input::Request { request, .. } => {
                chapters().for_each(|chapter| chapter.request_needs(&here, request, &mut needed));
            }
            Input::Message { message: PeerMessage { body: Body::Relay(relayed), .. }, .. } => {
                if let RelayMessage::Ask { request, .. } = relayed {
                    chapters().for_each(|chapter| chapter.request_needs(&here, request, &mut needed));
                }
            }
            Input::Message { message: PeerMessage { body, .. }, .. } => {
                if let Some(chapter) = self.chapters.of(Some(owner_of_message(body))) {
                    chapter.message_needs(&here, body, &mut needed);
                }
            }
        }

        needed
    }

    fn handle(&mut self, now: Now, input: Input<Self>, view: &View, out: &mut Vec<Effect<Self>>) {
        let mut early = Vec::new();
        let Some(todo) = self.take_in(now, input, &mut early) else { return };
        let serving = self.is_serving();
        let mut scratch = std::mem::take(&mut self.scratch);
        let Self { config, members, identity, peers, sessions, chapters, relays, .. } = self;
        let Self { rng, metrics, log, chores, .. } = self;
        let site = members.seen_by(config.me, identity, chapters);
        let has_room = log.has_room;
        let (uptime, steady) = (identity.uptime(now), identity.age.steady.advance(now));
        let (drained, under_way) = (identity.drained, chapters.under_way());
        let here =
            Here { now, uptime, steady, site, position: members.position, peers, config, has_room, drained, under_way };
        let waiting = chapters.waiting();
        let mut turn = Turn { here, out: Out::new(config.me, waiting, rng, metrics) };
        turn.out.sends = early;

        // What an earlier life left is taken up before the first input is handled: its locks and votes bind from here
        // on.
        if serving && identity.take_first_turn() {
            let start = Start { incarnation: identity.incarnation, life: identity.life };
            chapters.all_mut().into_iter().for_each(|chapter| chapter.resume(&mut turn, start));
        }

        let mut desk = Desk { identity, sessions, chapters, relays, view, scratch: &mut scratch };
        match todo {
            Todo::Body { from, epoch, body } if serving => desk.message(&mut turn, from, epoch, body),
            Todo::Body { body, .. } => turn.out.metrics.ignored += u64::from(body.is_some()),
            // Nobody has vouched for this storage: nothing of it is given away, and no request waits.
            Todo::Request(client, Request::Drain { .. }) if !serving => {
                turn.out.responses.push((client, Response::Drained));
            }
            Todo::Request(client, Request::Drain { within }) => {
                desk.identity.readiness = Readiness::Draining;
                chores.begin_drain(now, client, within);
            }
            // Answered below, when the turn no longer borrows the node.
            Todo::Request(client, Request::Status) => desk.relays.status.push(client),
            Todo::Request(client, request) => desk.request(&mut turn, client, request),
            Todo::Tick if serving => {
                desk.chapters.all_mut().into_iter().for_each(|chapter| chapter.tick(&mut turn, view));
                let given_up = desk.relays.tick(now);
                turn.out.responses.extend(given_up);
                chores.tick(&mut turn, &mut desk);
            }
            Todo::Tick => {}
        }

        // One turn, one batch: the outcomes of operations, the rows of the chapters, and those about the site are
        // durable together or not at all. So no crash leaves an outcome without its effects, or effects that could be
        // had a second time.
        desk.finish(&mut turn);
        if let Some(drains) = turn.out.drains.take().filter(|drains| *drains != desk.identity.drained.is_some()) {
            // The others are told at once: they give it nothing from here on.
            (desk.identity.drained, desk.identity.rows.is_meta_dirty) = (drains.then_some(now.mono), true);
            (chores.ping_at, chores.give_at) = (now.mono, if drains { now.mono } else { u64::MAX });
            if !drains {
                desk.chapters.all_mut().into_iter().for_each(|chapter| chapter.stay());
            }
        }
        if serving {
            chapters.all_mut().into_iter().for_each(|chapter| chapter.persist(&mut turn));
        }

        // A change of the members becomes durable with the row that says so of the site, so that positions mean the same after a crash.
        let roster = chapters.roster().filter(|roster| roster.number > members.roster.number);
        identity.persist(
            &mut turn,
            sessions,
            chapters.counts_uptime(),
            roster.unwrap_or(&members.roster),
            roster.is_some(),
        );
        assert!(turn.out.finished.is_empty(), "an operation ended after the outcomes of the turn were recorded");
        assert!(turn.out.take_own().is_none(), "a chapter has told itself something, and has not taken it up");

        chapters.all().into_iter().for_each(|chapter| chapter.measure(turn.out.metrics));
        turn.out.metrics.sessions = sessions.len() as u64;
        let Out { batch, sends, responses, .. } = turn.out;
        self.scratch = scratch;
        self.emit(now, batch, sends, responses, out);
    }

    fn deadline(&self) -> Option<u64> {
        let mut earliest = self.identity.deadline();
        if self.is_serving() {
            earliest = earliest.min(self.chores.deadline());
            let parts = [self.chapters.deadline(), self.relays.deadline()];
            earliest = parts.iter().flatten().copied().fold(earliest, u64::min);
        }
        Some(earliest)
    }

    fn is_paged(key: &[u8]) -> bool {
        rows::is_paged(key)
    }
}

/// Who the members are, as this site knows.
#[derive(Debug)]
struct Members {
    /// The seats.
    roster: Roster,
    /// Whose they are or were, by position.
    sites: Vec<SiteId>,
    /// Those that are members no longer.
    gone: Vec<SiteId>,
    /// The position of this site among them.
    position: usize,
}

impl Members {
    fn of(roster: Roster, position: usize) -> Self {
        Self { sites: roster.members().collect(), gone: roster.gone().collect(), roster, position }
    }

    /// True if this site may speak for what it has to know of the last change. A new incarnation has forgotten that, until others say that they
    /// know all of it.
    fn is_whole(&self, identity: &Identity) -> bool {
        let is_alone = self.gone.len() + 1 == self.sites.len();
        identity.incarnation <= Incarnation(1) || identity.whole == self.roster.number || is_alone
    }

    /// The membership as a turn sees it.
    fn seen_by(&self, me: SiteId, identity: &Identity, chapters: &Chapters) -> Membership<'_> {
        let Self { roster, sites, gone, .. } = self;
        let (number, incarnation) = (roster.number, identity.incarnation);

        // Between no change and the first there is nothing to be recorded.
        let settled = number == 0 || (self.is_whole(identity) && chapters.are_settled());
        let since = roster.seats[self.position].since;
        Membership { me, incarnation, members: sites, number, since, gone, settled }
    }
}

/// The rest of an input, once its sender is noted.
enum Todo {
    Body { from: usize, epoch: u64, body: Option<Body> },
    Request(ClientId, Request),
    Tick,
}

impl Node {
    /// Notes the sender of a message, and the time. Returns the rest that is to be done in the turn, if anything;
    /// messages that are to be sent already go to `early`.
    fn take_in(&mut self, now: Now, input: Input<Self>, early: &mut Vec<(SiteId, Body)>) -> Option<Todo> {
        Some(match input {
            Input::Message { from, message } => {
                // A site that is no member, or this one itself, has nothing to say here.
                let message_from = from;
                let known = self.peers.iter().position(|peer| peer.site == from);
                let Some(from) = known.filter(|&from| from != self.members.position) else {
                    self.metrics.ignored += 1;
                    return None;
                };

                // The message is noted and answered as far as it is about the site itself, also while the site does not
                // serve. Most pings end here, without a turn.
                // It may not know that it is a member no longer.
                if self.peers[from].gone && matches!(message.body, Body::Site(SiteMessage::Ping { .. })) {
                    early.push((message_from, self.chapters.members_news(true)));
                }
                let (epoch, members) = (message.epoch, message.members);
                let body = self.note_sender(now, from, message);

                // A site that missed a change hears of it by the next ping at the latest.
                if members != self.members.roster.number && matches!(body, Some(Body::Site(SiteMessage::Ping { .. }))) {
                    early.push((message_from, self.chapters.members_news(members < self.members.roster.number)));
                }
                let body = body.and_then(|body| self.greet(now, (from, members), body, early));
                let body = body.and_then(|body| self.among_members(from, members, body, early));

                // Nothing more comes in while this site may be deciding that nothing is left here: it would be lost with it.
                let leaves = self.chapters.leaves(self.config.me);
                let body = body.filter(|body| !leaves || is_about_members(body));
                if body.is_none() && early.is_empty() && !self.identity.is_dirty() {
                    return None;
                }
                Todo::Body { from, epoch, body }
            }
            Input::Request { client, request } => Todo::Request(client, request),
            Input::Tick => {
                self.tick_lineage(now, early);
                Todo::Tick
            }
        })
    }

    /// Passes a message on, unless it counts members and its sender knows others. Whoever knows of a later change takes part in no round of
    /// those that do not, and tells them; the agreement about members itself goes by what it has decided.
    fn among_members(
        &mut self,
        from: usize,
        members: u64,
        body: Body,
        early: &mut Vec<(SiteId, Body)>,
    ) -> Option<Body> {
        let known = self.members.roster.number;
        if counts_alike(known, members) || !counts_members(&body) {
            return Some(body);
        }
        early.push((self.peers[from].site, self.chapters.members_news(members < known)));
        self.metrics.ignored += 1;
        None
    }

    /// Hands out a turn's effects: the batch first, then what may leave when it is durable.
    fn emit(
        &mut self,
        now: Now,
        batch: machine::Batch,
        sends: Vec<(SiteId, Body)>,
        responses: Vec<(ClientId, Response)>,
        out: &mut Vec<Effect<Self>>,
    ) {
        if !batch.is_empty() {
            assert!(!self.identity.is_unconfirmed(), "storage is written to before it is confirmed");
            self.log.last += 1;
            out.push(Effect::Persist(batch));
        }

        // Each message tells the position of the batch just handed out. It leaves only when that is durable, so what
        // another site has heard of is never beyond the end of this log.
        let (incarnation, position, epoch) =
            (self.identity.incarnation, self.log.last, self.chapters.forgotten().epoch);
        // Nothing is said to who is gone, but that it is.
        let mut sends = sends;
        if !self.members.gone.is_empty() {
            let is_gone = |to: SiteId| self.members.gone.contains(&to);
            sends.retain(|(to, body)| matches!(body, Body::Site(_)) || is_about_members(body) || !is_gone(*to));
        }
        let members = self.members.roster.number;
        let stamp = |body| PeerMessage { incarnation, position, epoch, members, body };
        self.metrics.messages_sent += sends.len() as u64;
        out.extend(sends.into_iter().map(|(to, body)| Effect::Send { to, message: stamp(body) }));

        for (client, mut response) in responses {
            if let Response::Batch { answers, .. } = &mut response {
                Answer::limit_names(answers, RESPONSE_NAMED_BYTES);
            }
            match self.relays.origin(client, &response) {
                Some((to, token)) => {
                    let body = Body::Relay(RelayMessage::Answer { token, response: Box::new(response) });
                    self.metrics.messages_sent += 1;
                    out.push(Effect::Send { to, message: stamp(body) });
                }
                None if relay::is_relayed(client) || client == session::NOBODY => {}
                None => out.push(Effect::Respond { client, response }),
            }
        }

        for client in std::mem::take(&mut self.relays.status) {
            out.push(Effect::Respond { client, response: Response::Status(Box::new(self.status(now))) });
        }

        self.change_members(now);
    }
}
