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
//! | `05` session, slot | an operation's outcome, see [`crate::session`] | resident |
//! | `80`, `81` | tracked grants, see [`crate::quota`] | paged |
//!
//! # How a site starts
//!
//! It never acts on its past without asking (see [`lives`](self)): storage without an incarnation *joins*, storage with
//! one is *confirmed*, and only then does the site vote, offer, grant or answer for the outcomes of operations.

mod counting;
mod lives;
mod relay;

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

pub use crate::config::{Config, OpenError};
pub use crate::metrics::Metrics;

use crate::api::{
    Answer, BATCH_OPERATIONS, Batch, Doubt, Listed, Operation, Outcome, PeerStatus, Readiness, Refusal, Request,
    Response, SESSION_WINDOW, Status,
};
use crate::avantan::Membership;
use crate::clock::{MILLISECOND, Now, SECOND};
use crate::id::{Incarnation, Life, OperationId, SessionId, SiteId};
use crate::machine::{self, ClientId, Effect, Input, KeySet, Machine, Reader, Seq, View};
use crate::peer::{Body, Digest, PeerMessage};
use crate::quota::{DUE, QuotaRow, Quotas, due_ranges, grant_key, is_quota_row};
use crate::session::{self, Known, Opened, Sessions, Verdict};
use crate::stats::Rng;
use crate::turn::{Peer, Ticket, Turn};
use counting::Counts;
use lives::Lineage;
use relay::Relays;

/// How often peers are pinged.
const PING: u64 = SECOND;
/// How often sessions are looked through for those whose retention is over.
const SWEEP: u64 = 10 * SECOND;
/// The most sessions that end in one sweep.
const SWEPT: usize = 64;
/// Holds that end within this span end in one turn.
const EXPIRY_QUANTUM: u64 = 5 * MILLISECOND;
/// How long a drain waits for requests that wait.
const DRAIN: u64 = 5 * SECOND;
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
    counts: Counts,
    relays: Relays,
    rng: Rng,
    metrics: Metrics,
    /// The number of the last batch handed out.
    last: Seq,
    /// The uptime at which the next hold may end.
    next_due: Option<u64>,
    ping_at: u64,
    sweep_at: u64,
    /// Totals of gifts that are still to be told after a start: member, where to go on, whether to tell all quotas.
    announcing: Vec<(usize, usize, bool)>,
    announce_at: u64,
    drain: Option<Drain>,
    /// Buffers that turns use again, so that the hot path allocates little.
    spare: Spare,
}

#[derive(Debug, Default)]
struct Spare {
    digests: Vec<Vec<Digest>>,
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Drain {
    client: ClientId,
    give_from: Option<usize>,
    /// When to look again.
    look_at: u64,
    deadline: u64,
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
            counts: Counts::starting(rng.draw() >> 16),
            relays: Relays::starting(rng.draw() >> 16),
            metrics: Metrics::default(),
            last,
            next_due: None,
            ping_at: now.mono,
            sweep_at: now.mono + SWEEP,
            announcing: Vec::new(),
            announce_at: 0,
            drain: None,
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

    /// What it has counted since it was opened.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Whether it serves.
    pub fn readiness(&self) -> Readiness {
        self.lineage.readiness
    }

    /// Its incarnation; zero while it has none.
    pub fn incarnation(&self) -> Incarnation {
        self.lineage.incarnation
    }

    /// Its quotas, for those who check its books.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// What it knows of the members, by position.
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// The largest part of any peer's offset that ε and the round trip cannot explain, in microseconds, and whether a
    /// majority agrees with the wall clock. What was measured against a peer that is down by now does not count.
    pub fn clock(&self, now: Now) -> (u64, bool) {
        let excesses = self.peers.iter().filter(|peer| peer.site != self.config.me && peer.is_up(now));
        let excesses = excesses.map(|peer| peer.offset.map_or(0, |offset| offset.excess(self.config.epsilon)));
        let (mut most, mut disagreeing) = (0, 0);
        for excess in excesses {
            most = most.max(excess);
            disagreeing += usize::from(excess > 0);
        }
        (most, disagreeing == 0 || disagreeing < self.peers.len() / 2 + 1)
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
            epsilon: self.config.epsilon,
            clock_error,
            clock_trusted,
            peers: others()
                .map(|peer| PeerStatus {
                    site: peer.site,
                    up: peer.is_up(now),
                    rtt: peer.offset.map(|offset| offset.rtt),
                    offset: peer.offset.map(|offset| offset.offset),
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
        self.sessions = Sessions::restore(owner.marks.0, owner.marks.1);
        let mut from = vec![lives::META + 1];
        loop {
            let page = reader.scan(&from, &[OUTCOME + 1], PAGE)?;
            for (key, value) in &page {
                match key[0] {
                    lives::PEER => lives::restore_peer(&mut self.peers, key, value).map_err(|_| malformed(key))?,
                    OUTCOME => self.recover_outcome(key, value, now).map_err(|_| malformed(key))?,
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
        self.next_due = match first_due.first() {
            Some((key, _)) => Some(crate::quota::due_uptime(key).map_err(|_| malformed(key))?),
            None => None,
        };
        // Gifts that were under way when the site stopped may never have arrived.
        self.announcing = (0..self.peers.len()).filter(|&peer| peer != self.position).map(|p| (p, 0, false)).collect();
        Ok(())
    }

    fn recover_outcome(&mut self, key: &[u8], value: &[u8], now: Now) -> Result<(), crate::codec::Malformed> {
        let mut cursor = crate::codec::Cursor(&key[1..]);
        let session = SessionId(cursor.be_u64()?);
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
            self.lineage.touch_peer(from);
            if replaced {
                self.announcing.push((from, 0, true));
                self.announce_at = self.announce_at.min(now.mono);
            }
        }
        if message.incarnation == peer.incarnation && message.incarnation.0 > 0 {
            peer.position = peer.position.max(message.position);
        }
        match message.body {
            // It has just started, or has lost its disk: nothing is to be given to it, nor asked of it.
            Body::Hello { .. } => peer.heard = None,
            // These a site answers, and tells, before it serves.
            Body::Welcome { .. } | Body::Pong { .. } => {}
            _ => peer.heard = Some(now.mono),
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
                if self.is_serving() && self.next_due.is_some_and(|due| due <= self.lineage.uptime(now)) {
                    needed.ranges.extend(due_ranges(self.lineage.uptime(now)));
                }
                return needed;
            }
            Input::Request { request, .. } => request,
            Input::Message { message: PeerMessage { body: Body::Relay { request, .. }, .. }, .. } => request,
            Input::Message { .. } => return needed,
        };
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
        let input = match input {
            Input::Message { from, message } => {
                let known = self.peers.iter().position(|peer| peer.site == from);
                let Some(from) = known.filter(|&from| from != self.position) else {
                    self.metrics.ignored += 1;
                    return;
                };
                let body = self.note_sender(now, from, message);
                let body = body.and_then(|body| self.greet(now, from, body, &mut early));
                if body.is_none() && early.is_empty() && !self.lineage.is_dirty() {
                    return;
                }
                Todo::Body(from, body)
            }
            Input::Request { client, request } => Todo::Request(client, request),
            Input::Tick => {
                self.tick_lineage(now, &mut early);
                Todo::Tick
            }
        };
        if self.lineage.is_stale() {
            self.begin_anew(now, out);
            return;
        }
        let serving = self.is_serving();
        let Spare { mut digests, mut scratch } = std::mem::take(&mut self.spare);
        digests.resize(self.peers.len(), Vec::new());
        let Self { config, position, lineage, peers, sessions, quotas, counts, relays, rng, metrics, .. } = self;
        let mut turn = Turn {
            now,
            uptime: lineage.uptime(now),
            site: Membership { me: config.me, incarnation: lineage.incarnation, members: &config.members },
            config,
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
        match input {
            Todo::Body(_, None) => {}
            Todo::Body(from, Some(body)) if serving => match body {
                Body::Avantan { quota, message } => quotas.message(&mut turn, peers[from].site, &quota, *message),
                Body::Digests(digests) => digests.into_iter().for_each(|digest| quotas.digest(&mut turn, from, digest)),
                Body::Lookup { token, quota } => quotas.look_up(&mut turn, from, quota, token),
                Body::NotKnown { token, quota } => quotas.not_known(&mut turn, from, &quota, token),
                Body::NoVote { quota, answer } => quotas.no_vote(&mut turn, from, &quota, *answer),
                Body::Count { token, quota } => {
                    let tally = quotas.tally(&turn, &quota);
                    turn.sends.push((peers[from].site, Body::Counted { token, tally: tally.map(Box::new) }));
                }
                Body::Counted { token, tally } => {
                    counts.counted(&mut turn, quotas, from, token, tally.map(|tally| *tally))
                }
                Body::Relay { token, request } => {
                    // What a relayed request may ask is about this site's sessions; anything else would go round.
                    let is_ours = is_about(&request, config.me);
                    let client = is_ours.then(|| relays.serve(now, peers[from].site, token, &request)).flatten();
                    if let Some(client) = client {
                        request_of(
                            &mut turn,
                            lineage,
                            sessions,
                            quotas,
                            counts,
                            relays,
                            view,
                            client,
                            *request,
                            &mut scratch,
                        );
                    }
                }
                Body::Relayed { token, response } => {
                    if let Some(client) = relays.finish(token, &response) {
                        turn.responses.push((client, *response));
                    }
                }
                Body::Hello { .. } | Body::Welcome { .. } | Body::Ping { .. } | Body::Pong { .. } => {}
            },
            Todo::Body(..) => turn.metrics.ignored += 1,
            // Nobody has vouched for what is here: it is not given away, and nothing waits.
            Todo::Request(client, Request::Drain) if !serving => turn.responses.push((client, Response::Drained)),
            Todo::Request(client, Request::Drain) => {
                lineage.readiness = Readiness::Draining;
                self.drain = Some(Drain { client, give_from: Some(0), look_at: now.mono, deadline: now.mono + DRAIN });
            }
            Todo::Request(client, Request::Status) => {
                // Answered below, when the turn no longer borrows the node.
                self.relays.status.push(client);
            }
            Todo::Request(client, request) => {
                request_of(&mut turn, lineage, sessions, quotas, counts, relays, view, client, request, &mut scratch);
            }
            Todo::Tick if serving => {
                if lineage.is_first_turn() {
                    quotas.resume(&mut turn);
                }
                quotas.tick(&mut turn);
                if view.covers(&[DUE]) {
                    self.next_due = quotas.expire(&mut turn, view).expect("a row that storage vouches for");
                }
                counts.tick(&mut turn, quotas);
                turn.responses.extend(relays.tick(now));
                if now.mono >= self.announce_at && !self.announcing.is_empty() {
                    self.announce_at = now.mono + 100 * MILLISECOND;
                    let (peer, from, everything) = self.announcing[0];
                    if turn.peers[peer].is_up(now) {
                        match quotas.announce(&mut turn, peer, from, everything) {
                            Some(next) => self.announcing[0].1 = next,
                            None => drop(self.announcing.remove(0)),
                        }
                    } else {
                        self.announcing.rotate_left(1);
                    }
                }
                if now.mono >= self.sweep_at {
                    self.sweep_at = now.mono + SWEEP;
                    for _ in 0..SWEPT {
                        let Some(overdue) = sessions.overdue(now.mono) else { break };
                        close(&mut turn, lineage, sessions, quotas, overdue);
                        // There may be more of them.
                        self.sweep_at = now.mono + 10 * MILLISECOND;
                    }
                }
                if let Some(drain) = &mut self.drain {
                    drain.look_at = now.mono + 10 * MILLISECOND;
                    if let Some(from) = drain.give_from {
                        drain.give_from = quotas.give_away(&mut turn, from);
                    }
                    let idle = quotas.waiting() == 0 && !quotas.has_admin() && drain.give_from.is_none();
                    if idle || now.mono >= drain.deadline {
                        turn.responses.push((drain.client, Response::Drained));
                        self.drain = None;
                    }
                }
            }
            Todo::Tick => {}
        }
        finish(&mut turn, sessions, &mut scratch);
        quotas.persist(&mut turn);
        lineage.persist(&mut turn, sessions.marks());
        if let Some(due) = turn.next_due {
            self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
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
            earliest = earliest.min(self.ping_at);
            let due = self.next_due.map(|due| {
                let at = self.lineage.mono_at(due);
                at.div_ceil(EXPIRY_QUANTUM) * EXPIRY_QUANTUM
            });
            let announcing = (!self.announcing.is_empty()).then_some(self.announce_at);
            let drain = self.drain.as_ref().map(|drain| drain.look_at);
            for at in [due, announcing, drain, self.quotas.deadline(), self.counts.deadline(), self.relays.deadline()]
                .into_iter()
                .flatten()
            {
                earliest = earliest.min(at);
            }
            earliest = earliest.min(self.sweep_at);
        }
        Some(earliest)
    }

    fn is_paged(key: &[u8]) -> bool {
        key.first().is_some_and(|tag| *tag >= 0x80)
    }
}

/// What is left to do once the sender of an input was taken note of.
enum Todo {
    Body(usize, Option<Body>),
    Request(ClientId, Request),
    Tick,
}

impl Node {
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
            assert!(
                self.lineage.readiness != Readiness::Confirming,
                "storage is not written to before it is confirmed"
            );
            self.last += 1;
            out.push(Effect::Persist(batch));
        }
        let (incarnation, position) = (self.lineage.incarnation, self.last);
        let stamp = |body| PeerMessage { incarnation, position, body };
        self.metrics.messages_sent += sends.len() as u64;
        out.extend(sends.into_iter().map(|(to, body)| Effect::Send { to, message: stamp(body) }));
        for (client, response) in responses {
            match self.relays.origin(client, &response) {
                Some((to, token)) => {
                    let body = Body::Relayed { token, response: Box::new(response) };
                    self.metrics.messages_sent += 1;
                    out.push(Effect::Send { to, message: stamp(body) });
                }
                None if relay::is_relayed(client) => {}
                None => out.push(Effect::Respond { client, response }),
            }
        }
        for client in std::mem::take(&mut self.relays.status) {
            out.push(Effect::Respond { client, response: Response::Status(self.status(now)) });
        }
    }
}

/// Whether the request is about sessions of `site`.
fn is_about(request: &Request, site: SiteId) -> bool {
    match request {
        Request::Batch(batch) => batch.site == site,
        Request::Ask { operation } => operation.site == site,
        Request::Close { site: about, .. } => *about == site,
        _ => false,
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of a node, borrowed apart from each other")]
fn request_of(
    turn: &mut Turn,
    lineage: &mut Lineage,
    sessions: &mut Sessions,
    quotas: &mut Quotas,
    counts: &mut Counts,
    relays: &mut Relays,
    view: &View,
    client: ClientId,
    request: Request,
    scratch: &mut Vec<u8>,
) {
    let me = turn.site.me;
    let ready = lineage.readiness == Readiness::Ready;
    let serving = ready || lineage.readiness == Readiness::Draining;
    match request {
        Request::Open if !ready => turn.responses.push((client, Response::NotOpened(Refusal::NotReady))),
        Request::Open => match sessions.open(turn.now.mono) {
            Opened::Full => turn.responses.push((client, Response::NotOpened(Refusal::Overloaded))),
            Opened::Within(session) | Opened::Reserving(session) => {
                lineage.note_marks(sessions.marks());
                let incarnation = turn.site.incarnation;
                turn.responses.push((client, Response::Opened { site: me, incarnation, session }));
            }
        },
        Request::Batch(batch) if batch.site == me => {
            if batch.incarnation != turn.site.incarnation || !ready {
                let outcome =
                    if ready { Outcome::Unknown(Doubt::IncarnationLost) } else { Outcome::Refused(Refusal::NotReady) };
                return answer_all(turn, client, &batch, &outcome);
            }
            submit(turn, sessions, quotas, view, client, batch, scratch);
        }
        // Another site's operations: it alone may carry them out.
        Request::Batch(batch) => {
            let to = batch.site;
            if let Err(Request::Batch(batch)) = pass_on(turn, relays, serving, client, to, Request::Batch(batch)) {
                answer_all(turn, client, &batch, &Outcome::Unknown(Doubt::SiteUnreachable));
            }
        }
        Request::Ask { operation } if operation.site == me => {
            let outcome = ask(turn, serving, sessions, quotas, operation, scratch);
            turn.responses.push((client, Response::Asked { operation, outcome }));
        }
        Request::Ask { operation } => {
            if pass_on(turn, relays, serving, client, operation.site, Request::Ask { operation }).is_err() {
                let outcome = Outcome::Unknown(Doubt::SiteUnreachable);
                turn.responses.push((client, Response::Asked { operation, outcome }));
            }
        }
        Request::Close { site, incarnation, session } if site == me => {
            if serving && incarnation == turn.site.incarnation {
                close(turn, lineage, sessions, quotas, session);
            }
            turn.responses.push((client, Response::Closed));
        }
        // If it cannot be told, the session ends when it has been silent for long enough.
        Request::Close { site, .. } => {
            if pass_on(turn, relays, serving, client, site, request).is_err() {
                turn.responses.push((client, Response::Closed));
            }
        }
        Request::Show { .. } if !serving => turn.responses.push((client, Response::Shown(Err(Refusal::NotReady)))),
        Request::Show { quota, timeout } => counts.begin(turn, quotas, client, quota, timeout),
        Request::List { after, limit } => {
            turn.responses.push((client, Response::Listed(list(quotas, &after, limit.min(1000) as usize))));
        }
        // Only the driver asks these, and the node answers them itself.
        Request::Status | Request::Drain => {}
    }
}

/// Passes a request on to the site that it is about; hands it back if that cannot be.
fn pass_on(
    turn: &mut Turn,
    relays: &mut Relays,
    serving: bool,
    client: ClientId,
    to: SiteId,
    request: Request,
) -> Result<(), Request> {
    let up = serving && turn.peers.iter().any(|peer| peer.site == to && peer.is_up(turn.now));
    let Some(token) = up.then(|| relays.begin(turn.now, client, &request)).flatten() else { return Err(request) };
    turn.sends.push((to, Body::Relay { token, request: Box::new(request) }));
    Ok(())
}

fn answer_all(turn: &mut Turn, client: ClientId, batch: &Batch, outcome: &Outcome) {
    let answers = batch.operations.iter().map(|s| Answer { sequence: s.sequence, outcome: outcome.clone() }).collect();
    turn.responses.push((client, Response::Batch { session: batch.session, answers }));
}

/// Carries out the operations of a batch that are new, answers those that are known, and lets wait what has to.
fn submit(
    turn: &mut Turn,
    sessions: &mut Sessions,
    quotas: &mut Quotas,
    view: &View,
    client: ClientId,
    batch: Batch,
    scratch: &mut Vec<u8>,
) {
    let Some(session) = sessions.find(batch.session) else {
        return answer_all(turn, client, &batch, &Outcome::Refused(Refusal::SessionEnded));
    };
    session.raise(batch.low, turn.now.mono);
    let mut answers = Vec::with_capacity(batch.operations.len());
    for submission in batch.operations.into_iter().take(BATCH_OPERATIONS) {
        let Submitted { sequence, timeout, operation } = submission.into();
        let digest = session::digest(&operation);
        match session.judge(sequence, digest, client) {
            Verdict::Known(outcome) => {
                turn.metrics.repeated += 1;
                answers.push(Answer { sequence, outcome });
            }
            Verdict::Waiting => {}
            Verdict::Fresh => {
                let unclaimed = session.unclaimed();
                withdraw(turn, quotas, batch.session, unclaimed);
                let ticket = Ticket { session: batch.session, sequence };
                let settled = session.aim_of(sequence).and_then(|aim| quotas.settled(aim));
                match settled.or_else(|| quotas.execute(turn, view, ticket, &operation, timeout)) {
                    Some(outcome) => {
                        let low = session.low();
                        put_outcome(&mut turn.batch, scratch, ticket, low, digest, &outcome);
                        session.record(sequence, digest, outcome.clone());
                        if matches!(outcome, Outcome::Refused(refusal) if !matches!(refusal, Refusal::Exhausted { .. }))
                        {
                            turn.metrics.refused_other += 1;
                        }
                        answers.push(Answer { sequence, outcome });
                    }
                    None => session.suspend(sequence, digest, client),
                }
            }
        }
    }
    turn.responses.push((client, Response::Batch { session: batch.session, answers }));
}

/// A submission, taken apart.
struct Submitted {
    sequence: u64,
    timeout: u64,
    operation: Operation,
}

impl From<crate::api::Submission> for Submitted {
    fn from(submission: crate::api::Submission) -> Self {
        Self { sequence: submission.sequence, timeout: submission.timeout, operation: submission.operation }
    }
}

/// What became of an operation? Asking is a write: one that is not known here is refused for ever.
fn ask(
    turn: &mut Turn,
    serving: bool,
    sessions: &mut Sessions,
    quotas: &mut Quotas,
    operation: OperationId,
    scratch: &mut Vec<u8>,
) -> Outcome {
    if operation.incarnation != turn.site.incarnation {
        return Outcome::Unknown(Doubt::IncarnationLost);
    }
    if !serving {
        return Outcome::Unknown(Doubt::SiteUnreachable);
    }
    let Some(session) = sessions.find(operation.session) else {
        return sessions.verdict_on_ended(operation.session);
    };
    let ticket = Ticket { session: operation.session, sequence: operation.sequence };
    let withdrawn = Outcome::Refused(Refusal::Withdrawn);
    match session.look(operation.sequence) {
        Some(Known::Ended(outcome)) => {
            let settled = session
                .aim_of(operation.sequence)
                .and_then(|aim| quotas.settled(aim).or_else(|| quotas.is_lost(aim).then_some(withdrawn)));
            let Some(settled) = settled else { return outcome };
            let digest = session.digest_of(operation.sequence).unwrap_or(0);
            put_outcome(&mut turn.batch, scratch, ticket, session.low(), digest, &settled);
            session.record(operation.sequence, digest, settled.clone());
            settled
        }
        Some(Known::Waiting(_)) => {
            if !quotas.withdraw(turn, operation.session, &BTreeSet::from([operation.sequence])) {
                return Outcome::Unknown(Doubt::Undecided);
            }
            turn.finished.push((ticket, withdrawn.clone()));
            withdrawn
        }
        None => {
            session.make_room(operation.sequence);
            put_outcome(&mut turn.batch, scratch, ticket, session.low(), 0, &withdrawn);
            session.record(operation.sequence, 0, withdrawn.clone());
            let unclaimed = session.unclaimed();
            withdraw(turn, quotas, operation.session, unclaimed);
            withdrawn
        }
    }
}

/// Ends a session and removes its rows.
fn close(turn: &mut Turn, lineage: &mut Lineage, sessions: &mut Sessions, quotas: &mut Quotas, id: SessionId) {
    let Some((slots, waiting)) = sessions.close(id) else { return };
    lineage.note_marks(sessions.marks());
    for slot in slots {
        turn.batch.delete(&outcome_key(id, slot));
    }
    withdraw(turn, quotas, id, waiting);
}

/// Gives up operations that wait and that nobody can be told of any more: what they would be granted would be lost.
fn withdraw(turn: &mut Turn, quotas: &mut Quotas, session: SessionId, sequences: Vec<u64>) {
    if !sequences.is_empty() {
        quotas.withdraw(turn, session, &sequences.into_iter().collect());
    }
}

/// Records and answers the waiting operations that ended in this turn.
fn finish(turn: &mut Turn, sessions: &mut Sessions, scratch: &mut Vec<u8>) {
    for (ticket, aim) in std::mem::take(&mut turn.undecided) {
        let Some(session) = sessions.find(ticket.session) else { continue };
        // Its place in the window, and so its row, may belong to another operation by now.
        let Some(digest) = session.digest_of(ticket.sequence) else { continue };
        session.note_row(ticket.sequence);
        session.aim(ticket.sequence, aim);
        scratch.clear();
        session::encode_undecided(scratch, ticket.sequence, session.low(), digest, aim);
        turn.batch.put(&outcome_key(ticket.session, ticket.sequence % SESSION_WINDOW), scratch);
    }
    let mut answers: FxHashMap<(ClientId, SessionId), Vec<Answer>> = FxHashMap::default();
    let mut order = Vec::new();
    for (ticket, outcome) in std::mem::take(&mut turn.finished) {
        let Some(session) = sessions.find(ticket.session) else { continue };
        let Some((client, digest)) = session.resume(ticket.sequence, &outcome) else { continue };
        // What is undecided has its row already.
        if outcome != Outcome::Unknown(Doubt::Undecided) {
            put_outcome(&mut turn.batch, scratch, ticket, session.low(), digest, &outcome);
        }
        let key = (client, ticket.session);
        let group = answers.entry(key).or_insert_with(|| {
            order.push(key);
            Vec::new()
        });
        group.push(Answer { sequence: ticket.sequence, outcome });
    }
    for key in order {
        let answers = answers.remove(&key).expect("noted when it was made");
        turn.responses.push((key.0, Response::Batch { session: key.1, answers }));
    }
}

fn outcome_key(session: SessionId, slot: u64) -> [u8; 11] {
    let mut key = [OUTCOME; 11];
    key[1..9].copy_from_slice(&session.0.to_be_bytes());
    key[9..].copy_from_slice(&(slot as u16).to_be_bytes());
    key
}

#[inline]
fn put_outcome(
    batch: &mut machine::Batch,
    scratch: &mut Vec<u8>,
    ticket: Ticket,
    low: u64,
    digest: u64,
    outcome: &Outcome,
) {
    scratch.clear();
    session::encode_row(scratch, ticket.sequence, low, digest, outcome);
    batch.put(&outcome_key(ticket.session, ticket.sequence % SESSION_WINDOW), scratch);
}

/// The first `limit` quotas after a name, in the order of names.
fn list(quotas: &Quotas, after: &str, limit: usize) -> Vec<Listed> {
    let mut first = std::collections::BinaryHeap::new();
    for quota in quotas.iter().filter(|quota| quota.limit().is_some() && &**quota.name() > after) {
        first.push((quota.name().clone(), quota.limit().unwrap_or(0), quota.avantan().share.tokens));
        if first.len() > limit {
            first.pop();
        }
    }
    let sorted = first.into_sorted_vec().into_iter();
    sorted.map(|(name, limit, tokens)| Listed { name: name.to_string(), limit, tokens }).collect()
}

/// A life's number, for what is printed of it.
pub(crate) fn next_life(life: Life) -> Life {
    Life(life.0 + 1)
}
