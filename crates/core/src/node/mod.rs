//! All of it as one machine: routing, recovery, what is persisted where.
//!
//! One call of [`Node::handle`] is a [`Turn`]: the message or request goes to the chapter that it concerns, which changes
//! its state in memory and gathers effects; at the end every row that changed is written in **one** batch, so a turn is
//! durable whole or not at all.
//!
//! # Rows
//!
//! | key | value | kind |
//! | --- | --- | --- |
//! | `01` | the site, its storage's nonce, incarnation, life, uptime, session marks | resident |
//! | `02` position | what is known of a peer: incarnation, log position, what was noted for its new storage | resident |
//! | `03`, `04` quota | see [`crate::quota`] | resident |
//! | `05` session, slot | an operation's outcome, or the session's mark, see [`crate::session`] | resident |
//! | `06` to `09` | numbers of the home, transactions under way, who depends on its objects, see [`crate::txn`] | resident |
//! | `0a` | what names were forgotten last, what is frozen, see [`crate::quota`] | resident |
//! | `80`, `81` | tracked grants, see [`crate::quota`] | paged |
//! | `82`, `83` incarnation, name | an object, a call of a memoized function | paged |
//!
//! # How a site starts
//!
//! It never acts on its past without asking (see [`lives`](self)): storage without an incarnation *joins*, storage with
//! one is *confirmed*, and only then does the site vote, offer, grant or answer for the outcomes of operations.

mod chores;
mod counting;
mod lives;
mod relay;
mod requests;

use rustc_hash::FxHashSet;

pub use crate::config::{Config, OpenError};
pub use crate::metrics::Metrics;
pub use lives::Stale;

use crate::api::{Listed, Operation, PeerStatus, Readiness, Request, Response, Status};
use crate::avantan::Membership;
use crate::clock::{Now, SECOND};
use crate::id::{Incarnation, Life, SessionId, SiteId};
use crate::machine::{self, ClientId, Effect, Input, KeySet, Machine, Reader, Seq, View};
use crate::peer::{Body, Digest, PeerMessage};
use crate::quota::{DUE, FORGOTTEN, QuotaRow, Quotas, due_ranges, grant_key, is_quota_row};
use crate::right::Start;
use crate::session::{self, Sessions};
use crate::stats::Rng;
use crate::turn::{Peer, Trust, Turn};
use crate::txn::{Restored, Txns};
use chores::Chores;
use counting::Counts;
use lives::Lineage;
use relay::Relays;
use requests::Desk;

/// How often peers are pinged.
const PING: u64 = SECOND;
/// What a turn's batch usually needs at most, in bytes.
const TURN_BYTES: usize = 256;
/// Tag of the rows of outcomes.
const OUTCOME: u8 = 0x05;

/// One site's machine.
#[derive(Debug)]
pub struct Node {
    config: Config,
    position: usize,
    lineage: Lineage,
    peers: Vec<Peer>,
    sessions: Sessions,
    quotas: Quotas,
    txns: Txns,
    counts: Counts,
    relays: Relays,
    rng: Rng,
    metrics: Metrics,
    /// The number of the last batch handed out.
    last: Seq,
    /// Whether storage has room for what clients want written, as the driver said.
    has_room: bool,
    ping_at: u64,
    chores: Chores,
    /// Buffers that turns use again, so that the hot path allocates little.
    spare: Spare,
}

#[derive(Debug, Default)]
struct Spare {
    digests: Vec<Vec<Digest>>,
    scratch: Vec<u8>,
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
        let mut rng = Rng::new(seed);
        let peers = config.members.iter().map(|&site| Peer { site, ..Peer::default() }).collect();
        let mut node = Self {
            position,
            lineage: Lineage::fresh(&mut rng, now),
            peers,
            sessions: Sessions::default(),
            quotas: Quotas::new(),
            txns: Txns::new(config.me, rng.draw() >> 16),
            counts: Counts::starting(rng.draw() >> 16),
            relays: Relays::starting(rng.draw() >> 16),
            metrics: Metrics::default(),
            last,
            has_room: true,
            ping_at: now.mono,
            chores: Chores::new(now),
            spare: Spare::default(),
            config,
            rng,
        };
        node.recover(reader, now)?;
        Ok(node)
    }

    /// What it is configured as.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The driver says whether storage has room for what clients want written, before it hands in their requests. What sites need
    /// among themselves is not asked: the driver keeps some room for that.
    pub fn set_room(&mut self, has_room: bool) {
        self.has_room = has_room;
    }

    /// What it has counted since it was opened.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Whether it serves.
    pub fn readiness(&self) -> Readiness {
        self.lineage.readiness
    }

    /// What betrayed its storage as an old copy. Such a machine does nothing more: its driver keeps the storage as it is, and
    /// opens the site on new storage.
    pub fn stale(&self) -> Option<Stale> {
        self.lineage.stale()
    }

    /// The sites that have not answered yet, while it waits for others to say what they know of it.
    pub fn waiting_for(&self) -> Vec<SiteId> {
        if !matches!(self.lineage.readiness, Readiness::Joining | Readiness::Confirming) {
            return Vec::new();
        }
        let waits = |at: usize| at != self.position && !self.lineage.has_answered(at);
        (0..self.peers.len()).filter(|&at| waits(at)).map(|at| self.peers[at].site).collect()
    }

    /// The other sites that it has not met: they and it do not know yet of each other that they serve, and what their clocks show.
    pub fn unmet(&self, now: Now) -> Vec<SiteId> {
        // What another site answers to a ping that left once it was known to serve comes after its own first exchange with this
        // one: messages between two sites keep their order.
        let has_answered = |peer: &Peer| peer.vouched.is_some_and(|asked| asked.mono >= peer.up_since);
        let is_met = |peer: &Peer| peer.site == self.config.me || (peer.is_up(now) && has_answered(peer));
        self.peers.iter().filter(|peer| !is_met(peer)).map(|peer| peer.site).collect()
    }

    /// Its incarnation; zero while it has none.
    pub fn incarnation(&self) -> Incarnation {
        self.lineage.incarnation
    }

    /// The highest incarnation that another site knows of this one, while its new storage waits for a person's word.
    pub fn predecessor(&self) -> Option<Incarnation> {
        self.lineage.predecessor()
    }

    /// The first `limit` quotas, in the order of names.
    pub fn first_quotas(&self, limit: usize) -> Vec<Listed> {
        requests::list(&self.quotas, "", limit)
    }

    /// Its quotas, for those who check its books.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Its sessions, for those who check.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Its objects and transactions, for those who check.
    pub fn txns(&self) -> &Txns {
        &self.txns
    }

    /// What it knows of the members, by position.
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// The largest part of any peer's offset that ε and the round trip cannot explain, in microseconds, and whether the wall clock
    /// is not doubted: see [`Trust::Doubted`].
    pub fn clock(&self, now: Now) -> (u64, bool) {
        let (most, trust) = self.judge_clock(now);
        (most, trust != Trust::Doubted)
    }

    fn judge_clock(&self, now: Now) -> (u64, Trust) {
        let (mut most, mut agreeing, mut disagreeing, mut unheard) = (0, 1, 0, 0);
        for peer in self.peers.iter().filter(|peer| peer.site != self.config.me) {
            let excess = match peer.offset {
                Some(offset) if peer.is_up(now) => offset.excess_now(now, self.config.epsilon),
                // What was measured against a peer that is down by now does not count: its clock may have been set right. But
                // that this one was stepped away from it, the monotonic clock of this site tells.
                Some(offset) if offset.excess(self.config.epsilon) == 0 => {
                    match offset.at(now).excess(self.config.epsilon) {
                        0 => continue,
                        excess => excess,
                    }
                }
                None if peer.is_up(now) => {
                    unheard += 1;
                    continue;
                }
                _ => continue,
            };
            most = most.max(excess);
            *(if excess > 0 { &mut disagreeing } else { &mut agreeing }) += 1;
        }
        // So many that, if fewer than a majority are wrong, not all of them are.
        let are_enough = agreeing > (self.peers.len() - 1) / 2;
        let trust = match (are_enough, disagreeing, unheard) {
            (true, ..) | (_, 0, 0) => Trust::Trusted,
            (_, 0, _) => Trust::Unknown,
            _ => Trust::Doubted,
        };
        (most, trust)
    }

    /// How the site is.
    pub fn status(&self, now: Now) -> Status {
        let others = || self.peers.iter().filter(|peer| peer.site != self.config.me);
        let (clock_error, clock_trusted) = self.clock(now);
        Status {
            site: self.config.me,
            incarnation: self.lineage.incarnation,
            life: self.lineage.life,
            readiness: self.lineage.readiness,
            waiting_for: self.waiting_for(),
            epsilon: self.config.epsilon,
            clock_error,
            clock_trusted,
            peers: others()
                .map(|peer| PeerStatus {
                    site: peer.site,
                    up: peer.is_up(now),
                    rtt: peer.offset.map(|offset| offset.rtt),
                    offset: peer.offset.map(|offset| offset.at(now).offset),
                })
                .collect(),
            quotas: self.quotas.iter().filter(|quota| quota.limit().is_some()).count() as u64,
            sessions: self.sessions.len() as u64,
        }
    }

    /// Rebuilds memory from the resident rows.
    fn recover(&mut self, reader: &dyn Reader, now: Now) -> Result<(), OpenError> {
        const PAGE: usize = 4096;
        let malformed = |key: &[u8]| OpenError::Malformed { key: key.to_vec() };
        let Some(meta) = reader.read(&[lives::META])? else { return Ok(()) };
        if let Ok(version) = lives::layout_of(&meta)
            && version > lives::VERSION
        {
            return Err(OpenError::Newer { version });
        }
        let owner = self.lineage.restore(&meta, now).map_err(|_| malformed(&[lives::META]))?;
        if owner.site != self.config.me {
            return Err(OpenError::OtherSite { owner: owner.site });
        }
        if owner.members != self.config.members {
            return Err(OpenError::OtherMembers { before: owner.members.len(), now: self.config.members.len() });
        }
        self.sessions = Sessions::restore(owner.marks);
        let mut from = vec![lives::META + 1];
        loop {
            let page = reader.scan(&from, &[FORGOTTEN + 1], PAGE)?;
            for (key, value) in &page {
                match key[0] {
                    lives::PEER => lives::restore_peer(&mut self.peers, key, value).map_err(|_| malformed(key))?,
                    OUTCOME => self.recover_outcome(key, value, now).map_err(|_| malformed(key))?,
                    _ if Txns::is_row(key) => {
                        let restored = self.txns.restore(key, value, self.lineage.incarnation, reader)?;
                        match restored.map_err(|_| malformed(key))? {
                            Restored::Own => {}
                            Restored::Waiting { session, sequence, low, digest } => {
                                self.sessions.restore_waiting(session, sequence, low, digest, now.mono);
                            }
                        }
                    }
                    FORGOTTEN => self.quotas.restore_names(value).map_err(|_| malformed(key))?,
                    _ if is_quota_row(key) => {
                        let row = QuotaRow::decode(key, value).map_err(|_| malformed(key))?;
                        self.quotas.restore(row).map_err(|_| malformed(key))?;
                    }
                    _ => return Err(malformed(key)),
                }
            }
            let Some((last, _)) = page.last().filter(|_| page.len() == PAGE) else { break };
            from = last.clone();
            from.push(0);
        }
        let first_due = reader.scan(&[DUE], &[DUE + 1], 1)?;
        self.chores.next_due = match first_due.first() {
            Some((key, _)) => Some(crate::quota::due_uptime(key).map_err(|_| malformed(key))?),
            None => None,
        };
        self.chores.announce_gifts((0..self.peers.len()).filter(|&peer| peer != self.position));
        Ok(())
    }

    fn recover_outcome(&mut self, key: &[u8], value: &[u8], now: Now) -> Result<(), crate::codec::Malformed> {
        let mut cursor = crate::codec::Cursor(&key[1..]);
        let session = SessionId(cursor.be_u64()?);
        if u64::from(cursor.be_u16()?) == session::MARK_SLOT {
            self.sessions.restore_mark(session, session::decode_mark(value)?, now.mono);
            return Ok(());
        }
        let row = session::decode_row(value, self.config.me, self.lineage.incarnation)?;
        self.sessions.restore_row(session, row, now.mono);
        Ok(())
    }

    fn is_serving(&self) -> bool {
        matches!(self.lineage.readiness, Readiness::Ready | Readiness::Draining)
    }

    /// Takes note of what every message tells of its sender, and handles those that need no turn. Returns what is left
    /// to be done in the turn.
    fn note_sender(&mut self, now: Now, from: usize, message: PeerMessage) -> Option<Body> {
        let greeting = matches!(message.body, Body::Hello { .. });
        let peer = &mut self.peers[from];
        if message.incarnation < peer.incarnation && !greeting && message.incarnation.0 > 0 {
            // An incarnation that is gone never acts again.
            self.metrics.ignored += 1;
            return None;
        }
        if message.incarnation > peer.incarnation {
            let replaced = peer.incarnation.0 > 0 || message.incarnation.0 > 1;
            peer.incarnation = message.incarnation;
            peer.position = 0;
            peer.offset = None;
            peer.vouched = None;
            self.lineage.meet_incarnation(from);
            self.txns.forget_home(peer.site, peer.incarnation);
            if replaced {
                self.chores.announce_all(now, from);
            }
        }
        if message.incarnation == peer.incarnation && message.incarnation.0 > 0 {
            peer.position = peer.position.max(message.position);
            if let Body::Pong { mono, wall, .. } = message.body
                && (self.lineage.opened.mono..=now.mono).contains(&mono)
                && peer.vouched.is_none_or(|newest| newest.mono < mono)
            {
                peer.vouched = Some(Now { wall, mono });
            }
        }
        match message.body {
            // It has just started, or has lost its disk: nothing is to be given to it, nor asked of it.
            Body::Hello { .. } => (peer.heard, peer.leaving) = (None, false),
            // These a site answers, and tells, before it serves.
            Body::Welcome { .. } | Body::Pong { .. } => {}
            _ => {
                // It was not known to serve. It may know as little of this site, and if its storage is new, nobody has compared
                // clocks with it: both are made up for at once, since no transaction is started over its objects before.
                if !peer.is_up(now) {
                    peer.up_since = now.mono;
                    self.ping_at = self.ping_at.min(now.mono);
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
        let mut needed = KeySet::default();
        let request = match input {
            Input::Tick => {
                if self.is_serving() && self.chores.next_due.is_some_and(|due| due <= self.lineage.uptime(now)) {
                    needed.ranges.extend(due_ranges(self.lineage.uptime(now)));
                }
                if self.is_serving() {
                    self.quotas.dead_grants_need(now.mono, &mut needed);
                }
                self.txns.tick_needs(now.mono, self.lineage.incarnation, &mut needed);
                return needed;
            }
            Input::Request { request, .. } => request,
            Input::Message { message: PeerMessage { body: Body::Relay { request, .. }, .. }, .. } => request,
            Input::Message { message: PeerMessage { body: Body::Object(message), .. }, .. } => {
                self.txns.message_needs(message, self.lineage.incarnation, &mut needed);
                return needed;
            }
            Input::Message { .. } => return needed,
        };
        self.txns.request_needs(request, self.lineage.incarnation, &mut needed);
        if let Request::Batch(batch) = request {
            for submission in &batch.operations {
                if let Operation::ReleaseGrant { grant } = &submission.operation {
                    needed.keys.push(grant_key(grant.incarnation, grant.number).to_vec());
                }
            }
        }
        needed
    }

    fn handle(&mut self, now: Now, input: Input<Self>, view: &View, out: &mut Vec<Effect<Self>>) {
        let mut early = Vec::new();
        let Some(todo) = self.take_in(now, input, &mut early) else { return };
        let serving = self.is_serving();
        let (_, trust) = self.judge_clock(now);
        let Spare { mut digests, mut scratch } = std::mem::take(&mut self.spare);
        digests.resize(self.peers.len(), Vec::new());
        let Self {
            config,
            position,
            lineage,
            peers,
            sessions,
            quotas,
            txns,
            counts,
            relays,
            rng,
            metrics,
            chores,
            ping_at,
            has_room,
            ..
        } = self;
        let mut turn = Turn {
            now,
            uptime: lineage.uptime(now),
            site: Membership { me: config.me, incarnation: lineage.incarnation, members: &config.members },
            leaving: lineage.readiness == Readiness::Draining,
            has_room: *has_room,
            trust,
            config,
            waiting: quotas.waiting() + txns.under_way().0,
            peers,
            position: *position,
            rng,
            metrics,
            batch: machine::Batch::with_capacity(TURN_BYTES),
            sends: early,
            digests,
            finished: Vec::new(),
            undecided: Vec::new(),
            removed: FxHashSet::default(),
            responses: Vec::new(),
            next_due: None,
        };
        let start = Start { incarnation: lineage.incarnation, life: lineage.life };
        if serving && txns.start() != start {
            txns.resume(&turn, start);
        }
        let mut desk = Desk { lineage, sessions, quotas, txns, counts, relays, view, scratch: &mut scratch };
        match todo {
            Todo::Body { from, epoch, body } if serving => desk.message(&mut turn, from, epoch, body),
            Todo::Body { body, .. } => turn.metrics.ignored += u64::from(body.is_some()),
            // Nobody has vouched for what is here: it is not given away, and nothing waits.
            Todo::Request(client, Request::Drain) if !serving => turn.responses.push((client, Response::Drained)),
            Todo::Request(client, Request::Drain) => {
                desk.lineage.readiness = Readiness::Draining;
                // The others are told at once.
                *ping_at = now.mono;
                chores.begin_drain(now, client);
            }
            // Answered below, when the turn no longer borrows the node.
            Todo::Request(client, Request::Status) => desk.relays.status.push(client),
            Todo::Request(client, request) => desk.request(&mut turn, client, request),
            Todo::Tick if serving => chores.tick(&mut turn, &mut desk),
            Todo::Tick => {}
        }
        desk.finish(&mut turn);
        quotas.persist(&mut turn);
        if serving {
            txns.persist(&mut turn.batch);
        }
        lineage.persist(&mut turn, sessions);
        if let Some(due) = turn.next_due {
            chores.next_due = Some(chores.next_due.map_or(due, |next| next.min(due)));
        }
        turn.metrics.waiting = quotas.waiting() as u64;
        turn.metrics.sessions = sessions.len() as u64;
        turn.metrics.quotas = quotas.len() as u64;
        let Turn { batch, mut sends, mut digests, responses, .. } = turn;
        for (position, digests) in digests.iter_mut().enumerate() {
            while !digests.is_empty() {
                let rest = digests.split_off(digests.len().min(crate::peer::DIGESTS));
                sends.push((self.config.members[position], Body::Digests(std::mem::replace(digests, rest))));
            }
        }
        self.spare = Spare { digests, scratch };
        self.emit(now, batch, sends, responses, out);
    }

    fn deadline(&self) -> Option<u64> {
        let mut earliest = self.lineage.deadline();
        if self.is_serving() {
            earliest = earliest.min(self.ping_at).min(self.chores.deadline(|due| self.lineage.mono_at(due)));
            let parts = [self.quotas.deadline(), self.txns.deadline(), self.counts.deadline(), self.relays.deadline()];
            earliest = parts.into_iter().flatten().fold(earliest, u64::min);
        }
        Some(earliest)
    }

    fn is_paged(key: &[u8]) -> bool {
        key.first().is_some_and(|tag| *tag >= 0x80)
    }
}

/// What is left to do once the sender of an input was taken note of.
enum Todo {
    Body { from: usize, epoch: u64, body: Option<Body> },
    Request(ClientId, Request),
    Tick,
}

impl Node {
    /// Takes note of the sender of a message, and of the time; what is left to be done in the turn, if anything. What is to be
    /// said already goes to `early`.
    fn take_in(&mut self, now: Now, input: Input<Self>, early: &mut Vec<(SiteId, Body)>) -> Option<Todo> {
        Some(match input {
            Input::Message { from, message } => {
                let known = self.peers.iter().position(|peer| peer.site == from);
                let Some(from) = known.filter(|&from| from != self.position) else {
                    self.metrics.ignored += 1;
                    return None;
                };
                let epoch = message.epoch;
                let body = self.note_sender(now, from, message);
                let body = body.and_then(|body| self.greet(now, from, body, early));
                if body.is_none() && early.is_empty() && !self.lineage.is_dirty() {
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
            assert!(!self.lineage.is_unconfirmed(), "storage is not written to before it is confirmed");
            self.last += 1;
            out.push(Effect::Persist(batch));
        }
        let (incarnation, position, epoch) = (self.lineage.incarnation, self.last, self.quotas.epoch());
        let stamp = |body| PeerMessage { incarnation, position, epoch, body };
        self.metrics.messages_sent += sends.len() as u64;
        out.extend(sends.into_iter().map(|(to, body)| Effect::Send { to, message: stamp(body) }));
        for (client, response) in responses {
            match self.relays.origin(client, &response) {
                Some((to, token)) => {
                    let body = Body::Relayed { token, response: Box::new(response) };
                    self.metrics.messages_sent += 1;
                    out.push(Effect::Send { to, message: stamp(body) });
                }
                None if relay::is_relayed(client) || client == session::NOBODY => {}
                None => out.push(Effect::Respond { client, response }),
            }
        }
        for client in std::mem::take(&mut self.relays.status) {
            out.push(Effect::Respond { client, response: Response::Status(self.status(now)) });
        }
    }
}

/// The number of a site's next life: one more at each start.
pub(crate) fn next_life(life: Life) -> Life {
    Life(life.0 + 1)
}
