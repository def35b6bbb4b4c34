//! Clients by the public rules: sessions per site, batches of operations with ids, time-outs, repetition under the same
//! id at the same site (also through another), questions after doubt, fail-over with new ids for what was not sent.
//!
//! They are well-behaved: they release only what they hold, and use a hold for a time only until ε before that time is
//! over, counted from when they sent the request. They are careless too: they move on further than a session's window
//! reaches, close sessions with operations under way, repeat what they were told of long ago, and in some runs are all silent
//! for longer than outcomes are kept.

mod careless;

use slackline_core::api::{
    self, Answer, Hold, Operation, Outcome, Refusal, Request, Response, Submission, UnknownReason,
};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::config::NAMES_KEPT;
use slackline_core::id::{GrantId, Incarnation, OperationId, SessionId};
use slackline_core::machine::ClientId;
use slackline_core::session::is_kept;

use crate::faults::EPSILON;
use crate::invariants::answers::{self, Answered, Standing, is_definitive, is_of_one_copy};
use crate::invariants::{limit, once, survival};
use crate::oracle::{Op, quota_of};
use crate::run::{Phase, Simulation, Timer};
use crate::world::World;

/// From a client to the site of its region, and back, in microseconds.
const NEAR: u64 = 400;
/// Requests and responses that are lost between a client and a site while faults strike, in millionths.
const CLIENT_LOSS: u64 = 8_000;
/// The most operations of a session between its mark and its next one.
const WINDOW: u64 = 1_000;
/// How many answered operations a client goes on caring about, at most.
const KEPT: u64 = 60;
/// The most ended sessions that a client remembers.
const ENDED: usize = 4;
/// From so many of the newest operations clients choose what they repeat.
const RECENT: u64 = 3_000;

/// What a request was for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    None,
    Open {
        client: usize,
        site: usize,
    },
    Batch {
        client: usize,
        site: usize,
        incarnation: Incarnation,
        session: SessionId,
        reused: bool,
    },
    Ask {
        op: u32,
    },
    Close,
    Show {
        book: usize,
    },
    Read {
        client: usize,
        label: u64,
    },
    Audit {
        book: usize,
        site: usize,
    },
    Look,
    Drain {
        site: usize,
    },
    /// A request of the product's client, on a stream of this wire.
    Caller {
        wire: usize,
        stream: u64,
    },
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) home: usize,
    /// Where new operations go.
    current: usize,
    sites: Vec<Site>,
    /// Operations without a definitive answer, and when to do something about each.
    open: Vec<Open>,
    holdings: Vec<Holding>,
    /// Whether it has acquired many holds at once since the healing.
    held_many: bool,
    /// Sessions in which nothing new is sent, by site.
    retired: Vec<(usize, Session)>,
    /// Sessions that it closed, by site.
    ended: Vec<(usize, Session)>,
    /// Operations that it sends so that its window jumps over others, which it repeats then: victim and leap.
    leaps: Vec<(u32, u32)>,
    /// Operations that it sends whenever it acts between two times.
    pressing: Vec<(u32, u64, u64)>,
    burst_until: u64,
}

/// What a client has at one site.
#[derive(Clone, Debug, Default)]
struct Site {
    session: Option<Session>,
    opening_until: u64,
    suspect_until: u64,
    outbox: Vec<Submission>,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    incarnation: Incarnation,
    id: SessionId,
    next: u64,
    low: u64,
    /// Below this nothing is kept, because the client jumped.
    floor: u64,
    /// Whether it was silent for longer than outcomes are kept.
    is_stale: bool,
}

impl Session {
    fn new(incarnation: Incarnation, id: SessionId) -> Self {
        Self { incarnation, id, next: 1, low: 1, floor: 1, is_stale: false }
    }
}

#[derive(Clone, Copy, Debug)]
struct Open {
    op: u32,
    look_at: u64,
    tries: u32,
    /// True if it is only asked about, and never repeated.
    asks_only: bool,
}

/// Tokens that a client holds.
#[derive(Clone, Copy, Debug)]
struct Holding {
    op: u32,
    /// The oracle's name for it.
    hold: usize,
    amount: i64,
    grant: GrantId,
    tracked: bool,
    until: Option<u64>,
    release_at: u64,
}

/// A quota of the workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    limit: i64,
    /// The largest ordinary request.
    pub(crate) most: i64,
    /// Of a hundred acquires.
    weight: u64,
    /// Of a hundred grants: tracked without an end, and for a time.
    open: u64,
    timed: u64,
    /// How long tokens are held, in milliseconds.
    held: u64,
}

const PLENTY: Kind = Kind { name: "plenty", limit: 1_000_000, most: 20, weight: 22, open: 10, timed: 20, held: 4_000 };
pub(crate) const KINDS: [Kind; 7] = [
    PLENTY,
    Kind { name: "tight", limit: 420, most: 9, weight: 26, open: 10, timed: 10, held: 3_000 },
    Kind { name: "scarce", limit: 7, most: 3, weight: 8, open: 30, timed: 30, held: 1_500 },
    Kind { name: "skewed", limit: 600, most: 30, weight: 22, open: 5, timed: 5, held: 2_000 },
    Kind { name: "timed", limit: 500, most: 12, weight: 16, open: 0, timed: 100, held: 3_000 },
    Kind { name: "fleeting", limit: 90, most: 5, weight: 4, open: 50, timed: 50, held: 2_000 },
    Kind { name: "huge", limit: i64::MAX, most: i64::MAX / 5, weight: 2, open: 20, timed: 10, held: 3_000 },
];
/// Holds that fall due at once, now and then: more than a site ends in one turn.
const MANY: u64 = 600;
/// The position of the quota that is deleted and created again. Its grants are all tracked, because a release by amount
/// could not tell its generations apart.
const FLEETING: usize = 5;
const SKEWED: usize = 3;
/// For so long a quota whose name is forgotten soon is used in each turn, and how many of them take turns, the usual one included.
const PASSING: u64 = 3 * SECOND;
const PASSERS: u64 = 4;

/// Whether a quota is one of those that are deleted and created again.
pub(crate) fn is_fleeting(name: &str) -> bool {
    name == KINDS[FLEETING].name || name.starts_with("passing")
}

impl Client {
    /// Where it goes now.
    pub(crate) fn present_site(&self) -> usize {
        self.current
    }

    pub(crate) fn new(home: usize, sites: usize) -> Self {
        Self {
            home,
            current: home,
            sites: vec![Site::default(); sites],
            open: Vec::new(),
            holdings: Vec::new(),
            held_many: false,
            retired: Vec::new(),
            ended: Vec::new(),
            leaps: Vec::new(),
            pressing: Vec::new(),
            burst_until: 0,
        }
    }
}

impl Simulation {
    pub(crate) fn open_books(&mut self, _world: &World) {
        for kind in KINDS {
            let book = self.oracle.book(kind.name);
            self.oracle.books[book].deletable = kind.name == KINDS[FLEETING].name;
        }
    }

    /// Whether every operation is sent, nothing is in doubt and nothing is held.
    pub(crate) fn clients_are_done(&self, _world: &World) -> bool {
        let is_over = self.quota_operations() >= self.options.operations && self.transactions_are_done();
        self.callers_are_done(is_over)
            && is_over
            && self.clients.iter().all(|client| client.open.is_empty() && client.holdings.is_empty())
    }

    /// What clients still wait for, in words.
    pub(crate) fn clients_wait_for(&self) -> String {
        let open = self.clients.iter().flat_map(|client| &client.open).map(|open| {
            let op = &self.oracle.ops[open.op as usize];
            format!("{} {:?} (durable: {:?})", op.id, op.operation, op.durable)
        });
        let held = self.clients.iter().flat_map(|client| &client.holdings).map(|holding| format!("{holding:?}"));
        let others = open.chain(held).chain(self.transactions_wait_for()).take(5);
        others.chain([self.callers_wait_for()]).collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn client_acts(&mut self, world: &mut World, at: usize) {
        let now = world.now();
        if let Some((from, until)) = self.silence
            && (from..until).contains(&now)
        {
            return self.fall_silent(world, at, until);
        }
        self.press(world, at);
        self.see_to_open(world, at);
        self.close_retired(world, at);
        let finishing = self.quota_operations() >= self.options.operations;
        if self.phase != Phase::Audit {
            self.release_due(world, at, finishing);
        }
        if !finishing {
            self.work(world, at);
        }
        self.begin_transactions(world, at);
        for site in 0..world.len() {
            self.flush(world, at, site);
        }
        let client = &mut self.clients[at];
        if client.burst_until < now && self.rng.one_in(400) {
            client.burst_until = now + SECOND / 2 + self.rng.below(2 * SECOND);
        }
        let think = if client.burst_until > now { 100_000 } else { 1_000_000 };
        let think = think * self.pace / 1000;
        let next = now + 1_000 + self.rng.below(think);
        world.wake_at(next, Timer::Client(at).token());
    }

    /// Operations submitted, transactions left out.
    pub(crate) fn quota_operations(&self) -> u64 {
        self.submitted - self.transactions
    }

    /// Whether the client has a session at a site; one is opened if not.
    pub(crate) fn session_at(&mut self, world: &mut World, at: usize, site: usize) -> Option<()> {
        self.session(world, at, site).map(drop)
    }

    /// Sends what a transaction reads.
    pub(crate) fn send_read(&mut self, world: &mut World, at: usize, site: usize, label: u64, read: api::Read) {
        let arrives = world.now() + self.latency(world, at, site);
        if !self.client_loses() {
            let purpose = Purpose::Read { client: at, label };
            self.ask_site(world, arrives, site, purpose, Request::Read(Box::new(read)));
        }
    }

    /// A caller of the product's client does not know how its operation ended: somebody asks, then.
    pub(crate) fn ask_later(&mut self, id: OperationId, op: u32, look_at: u64) {
        let at = usize::from(id.site.region);
        self.clients[at].open.push(Open { op, look_at, tries: 1, asks_only: true });
    }

    /// New operations, and what else a client comes up with.
    fn work(&mut self, world: &mut World, at: usize) {
        let now = world.now();
        let site = self.choose_site(world, at);
        if self.session(world, at, site).is_none() {
            return;
        }
        if self.submitted < 12 {
            // First of all there must be quotas.
            for kind in KINDS {
                let operation = Operation::Create { quota: kind.name.to_owned(), limit: kind.limit };
                self.submit(world, at, site, operation, 20 * SECOND);
            }
            return;
        }
        // Once after the last start of a site: a start looks at all that is due.
        let is_healed =
            self.phase == Phase::Healing && at == 0 && !std::mem::replace(&mut self.clients[at].held_many, true);
        if is_healed || self.rng.one_in(1_500) {
            self.hold_many(world, at, site);
        }
        // A few at a time, wherever this client is: not all of them are created.
        for _ in 0..self.crowd.min(32) {
            let operation = Operation::Create { quota: format!("crowd-{}", self.crowd), limit: 60 };
            self.submit(world, at, site, operation, 5 * SECOND);
            self.crowd -= 1;
            self.probes.hit("quota: one of very many");
        }
        let burst = self.clients[at].burst_until > now;
        let count = if burst { 1 + self.rng.below(24) } else { 1 + self.rng.below(4) };
        for _ in 0..count {
            let (operation, timeout) = self.invent(world, at);
            self.submit(world, at, site, operation, timeout);
        }
        if self.rng.one_in(8) {
            self.repeat_told(world, at);
        }
        match self.rng.below(300) {
            12..=16 => self.jump(world, at, site),
            0 => self.ask_before_sending(world, at, site),
            1..=3 => self.ask_again(world, at, site),
            4 => self.reuse_id(world, at, site),
            5 | 11 => self.retire_session(world, at, site),
            6..=8 => self.show(world, at, site),
            9 => {
                let after = KINDS[self.rng.below(7) as usize].name.to_owned();
                self.ask_site(world, now + NEAR, site, Purpose::Look, Request::List { after, limit: 3 });
            }
            10 => drop(self.ask_site(world, now + NEAR, site, Purpose::Look, Request::Status)),
            _ => {}
        }
    }

    /// Holds that are granted in one turn fall due at once: more than a site ends in one.
    fn hold_many(&mut self, world: &World, at: usize, site: usize) {
        let hold = Hold::For(SECOND + self.rng.below(4 * SECOND));
        let operation = Operation::Acquire { quota: PLENTY.name.to_owned(), amount: 1, hold };
        let submitted = (0..MANY).filter_map(|_| self.submit(world, at, site, operation.clone(), SECOND)).count();
        if submitted as u64 == MANY {
            self.probes.hit("fault: holds beyond a page fall due at once");
        }
    }

    /// Nearly always the current one; another one when that does not answer, and now and then for no reason.
    fn choose_site(&mut self, world: &World, at: usize) -> usize {
        let now = world.now();
        let sites = world.len() as u64;
        if self.rng.one_in(20) {
            return self.rng.below(sites) as usize;
        }
        let client = &mut self.clients[at];
        if client.sites[client.current].suspect_until > now {
            client.current = (client.current + 1) % sites as usize;
            self.probes.hit("client: fails over");
        } else if client.current != client.home && client.sites[client.home].suspect_until <= now && self.rng.one_in(8)
        {
            client.current = client.home;
        }
        self.clients[at].current
    }

    /// An operation, and how long it may wait.
    fn invent(&mut self, world: &World, at: usize) -> (Operation, u64) {
        let timeouts = [30 * MILLISECOND, 300 * MILLISECOND, SECOND, 2 * SECOND, 5 * SECOND];
        let timeout = timeouts[self.rng.below(5) as usize];
        let name = |kind: &Kind| kind.name.to_owned();
        let any = KINDS[self.rng.below(7) as usize];
        let fleeting = KINDS[FLEETING];
        let operation = match self.rng.below(1000) {
            0..=1 => Operation::Release { quota: name(&PLENTY), amount: PLENTY.limit + 1 },
            2..=3 => {
                let number = 1 + self.rng.below(1_000_000_000);
                let site = self.members[self.rng.below(world.len() as u64) as usize];
                Operation::ReleaseGrant { grant: GrantId { site, incarnation: Incarnation(1), number: number << 20 } }
            }
            4..=5 => Operation::Create { quota: name(&PLENTY), limit: PLENTY.limit },
            6..=7 => Operation::Create { quota: name(&PLENTY), limit: 5 },
            8 => Operation::Create { quota: "a\nb".to_owned(), limit: 5 },
            9 => Operation::Create { quota: name(&fleeting), limit: -(self.rng.below(3) as i64) },
            10..=11 => {
                let quota = ["nobody", "", "ghost"][self.rng.below(3) as usize].to_owned();
                Operation::Acquire { quota, amount: 1, hold: Hold::Counted }
            }
            12..=13 => {
                Operation::Acquire { quota: name(&any), amount: -(self.rng.below(2) as i64), hold: Hold::Counted }
            }
            14 => Operation::Acquire { quota: name(&PLENTY), amount: 1, hold: Hold::For(3) },
            15..=16 => Operation::Acquire { quota: "tight".to_owned(), amount: 421, hold: Hold::Counted },
            17..=19 => return (Operation::Delete { quota: self.fleeting(world.now()) }, 5 * SECOND),
            20..=29 => {
                // Two limits: whoever is first wins, and the others are told.
                let limit = fleeting.limit + i64::from(self.rng.one_in(8));
                let quota = self.fleeting(world.now());
                // What is soon left alone is left deleted.
                if quota != fleeting.name && world.now() % PASSING > PASSING / 2 {
                    return (Operation::Delete { quota }, 5 * SECOND);
                }
                return (Operation::Create { quota, limit }, 5 * SECOND);
            }
            30..=34 => {
                let quota = self.late(world.now());
                let limit = 40 + i64::from(self.rng.one_in(3));
                return (Operation::Create { quota, limit }, 5 * SECOND);
            }
            35..=54 => {
                let quota = self.late(world.now());
                let hold = if self.rng.one_in(2) { Hold::Counted } else { Hold::For(SECOND) };
                Operation::Acquire { quota, amount: 1 + self.rng.below(4) as i64, hold }
            }
            _ => {
                let kind = self.kind_for(world, at);
                let hold = match self.rng.below(100) {
                    part if part < kind.open => Hold::Open,
                    part if part < kind.open + kind.timed => {
                        Hold::For(50 * MILLISECOND + self.rng.below(3 * kind.held * MILLISECOND))
                    }
                    _ => Hold::Counted,
                };
                let amount = 1 + self.rng.below(kind.most as u64) as i64;
                let quota = if kind.name == fleeting.name { self.fleeting(world.now()) } else { name(&kind) };
                Operation::Acquire { quota, amount, hold }
            }
        };
        (operation, timeout)
    }

    /// The quota that is deleted and created again. Where names are forgotten soon, there are several, in turn, and each is left alone
    /// for so long in between that its name may be forgotten.
    fn fleeting(&mut self, now: u64) -> String {
        let turn = now / PASSING % PASSERS;
        if self.names_kept >= NAMES_KEPT || turn == 0 {
            return KINDS[FLEETING].name.to_owned();
        }
        let name = format!("passing-{turn}");
        let book = self.oracle.book(&name);
        self.oracle.books[book].deletable = true;
        name
    }

    /// The quota of this part of the run: it does not exist until some client creates it.
    fn late(&mut self, now: u64) -> String {
        let name = format!("late-{}", now / (15 * SECOND));
        self.oracle.book(&name);
        name
    }

    fn kind_for(&mut self, world: &World, at: usize) -> Kind {
        let mut draw = self.rng.below(100);
        for (position, kind) in KINDS.iter().enumerate() {
            if draw < kind.weight {
                // Everybody wants it, then only the clients of one region do.
                let turn = (world.now() / (8 * SECOND)) as usize % (world.len() + 1);
                if position == SKEWED && turn < world.len() && self.clients[at].home != turn {
                    return PLENTY;
                }
                return *kind;
            }
            draw -= kind.weight;
        }
        PLENTY
    }

    /// Gives an operation an id and puts it into the next batch.
    pub(crate) fn submit(
        &mut self,
        world: &World,
        at: usize,
        site: usize,
        operation: Operation,
        timeout: u64,
    ) -> Option<u32> {
        let session = self.clients[at].sites[site].session?;
        if session.next - session.low >= WINDOW {
            self.raise_low(at, site);
        }
        let client = &mut self.clients[at].sites[site];
        let session = client.session?;
        if session.next - session.low >= WINDOW || client.outbox.len() >= api::BATCH_OPERATIONS {
            return None;
        }
        self.enqueue(world, at, site, operation, timeout)
    }

    /// The same, however far the session's window reaches.
    fn enqueue(&mut self, world: &World, at: usize, site: usize, operation: Operation, timeout: u64) -> Option<u32> {
        let client = &mut self.clients[at].sites[site];
        let session = client.session.as_mut()?;
        let sequence = session.next;
        session.next += 1;
        client.outbox.push(Submission { sequence, timeout, operation: operation.clone() });
        let (incarnation, id) = (session.incarnation, session.id);
        let op = self.register(world, site, incarnation, id, sequence, operation.clone(), timeout);
        self.oracle.ops[op as usize].sent = 1;
        self.submitted += 1;
        self.transactions += u64::from(matches!(operation, Operation::Commit(_) | Operation::AcceptLoss));
        let look_at = world.now() + timeout + self.patience(world, at, site);
        self.clients[at].open.push(Open { op, look_at, tries: 0, asks_only: false });
        Some(op)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of an operation")]
    pub(crate) fn register(
        &mut self,
        world: &World,
        site: usize,
        incarnation: Incarnation,
        session: SessionId,
        sequence: u64,
        operation: Operation,
        timeout: u64,
    ) -> u32 {
        let name = quota_of(&operation).map(str::to_owned);
        let book = name.map(|name| self.oracle.book(&name));
        let id = OperationId { site: self.members[site], incarnation, session, sequence };
        let op = self.oracle.ops.len() as u32;
        self.oracle.ops.push(Op {
            id,
            site,
            operation,
            timeout,
            book,
            first_sent: world.now(),
            sent: 0,
            relayed: false,
            is_callers: false,
            skipped: false,
            answered: Answered::default(),
            told: None,
            durable: None,
            generation: 0,
            tracked: None,
        });
        let ops = self.oracle.sessions.entry((site, incarnation, session)).or_default();
        assert_eq!(ops.len() as u64 + 1, sequence, "operations are numbered without a gap");
        ops.push(op);
        op
    }

    /// How long an answer may take besides the time that the operation may wait.
    fn patience(&mut self, world: &World, at: usize, site: usize) -> u64 {
        let home = self.clients[at].home;
        300 * MILLISECOND + 3 * world.delay(home, site) + self.rng.below(700 * MILLISECOND)
    }

    fn latency(&mut self, world: &World, at: usize, site: usize) -> u64 {
        let far = world.delay(self.clients[at].home, site);
        NEAR + far + self.rng.below(1 + far / 10 + NEAR)
    }

    /// Whether a request or response between a client and a site is lost.
    fn client_loses(&mut self) -> bool {
        self.phase == Phase::Faults && self.rng.below(1_000_000) < CLIENT_LOSS
    }

    fn session(&mut self, world: &mut World, at: usize, site: usize) -> Option<Session> {
        let now = world.now();
        let of_site = &mut self.clients[at].sites[site];
        if of_site.session.is_some() {
            return of_site.session;
        }
        if of_site.opening_until <= now {
            if of_site.opening_until > 0 {
                // The last try was not answered.
                of_site.suspect_until = now + SECOND;
            }
            of_site.opening_until = now + SECOND;
            let arrives = now + self.latency(world, at, site);
            if !self.client_loses() {
                self.ask_site(world, arrives, site, Purpose::Open { client: at, site }, Request::Open);
            }
        }
        None
    }

    /// Sends what waits in the outbox for a site.
    pub(crate) fn flush(&mut self, world: &mut World, at: usize, site: usize) {
        let of_site = &mut self.clients[at].sites[site];
        if of_site.outbox.is_empty() {
            return;
        }
        let operations = std::mem::take(&mut of_site.outbox);
        let session = of_site.session.expect("an outbox belongs to a session");
        self.raise_low(at, site);
        let low = self.clients[at].sites[site].session.map_or(1, |session| session.low);
        self.send_batch(world, at, site, site, session.incarnation, session.id, low, operations, false);
    }

    /// The client no longer cares about operations that were answered long enough ago.
    fn raise_low(&mut self, at: usize, site: usize) {
        let Some(session) = self.clients[at].sites[site].session else { return };
        let ops = &self.oracle.sessions[&(site, session.incarnation, session.id)];
        let mut low = session.low;
        let is_over = |op: &Op| op.told.is_some() || op.skipped;
        while low + KEPT < session.next && is_over(&self.oracle.ops[ops[low as usize - 1] as usize]) {
            low += 1;
        }
        // Not always as soon as it could.
        if (self.rng.one_in(3) || session.next - session.low >= WINDOW)
            && let Some(session) = &mut self.clients[at].sites[site].session
        {
            session.low = low;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a batch")]
    fn send_batch(
        &mut self,
        world: &mut World,
        at: usize,
        site: usize,
        through: usize,
        incarnation: Incarnation,
        session: SessionId,
        low: u64,
        operations: Vec<Submission>,
        reused: bool,
    ) {
        let request = Request::Batch(api::Batch { site: self.members[site], incarnation, session, low, operations });
        let purpose = Purpose::Batch { client: at, site, incarnation, session, reused };
        let arrives = world.now() + self.latency(world, at, through);
        if !self.client_loses() {
            self.ask_site(world, arrives, through, purpose, request);
        }
    }

    /// Repeats, or asks about, operations that were not answered in time.
    fn see_to_open(&mut self, world: &mut World, at: usize) {
        let now = world.now();
        let mut position = 0;
        while position < self.clients[at].open.len() {
            let open = self.clients[at].open[position];
            let op = &self.oracle.ops[open.op as usize];
            if op.told.is_some() {
                self.clients[at].open.swap_remove(position);
                continue;
            }
            position += 1;
            if open.look_at > now {
                continue;
            }
            let (site, id, timeout) = (op.site, op.id, op.timeout);
            let unsent = op.sent == 0;
            if open.tries == 0 {
                self.clients[at].sites[site].suspect_until = now + SECOND;
            }
            let mut through = site;
            if self.rng.one_in(3) {
                through = self.rng.below(world.len() as u64) as usize;
            }
            let relayed = through != site;
            let ask = open.asks_only || self.rng.one_in(3) && !unsent;
            if ask {
                self.probes.hit(if relayed { "client: asks through another site" } else { "client: asks" });
                let arrives = now + self.latency(world, at, through);
                if !self.client_loses() {
                    self.ask_site(
                        world,
                        arrives,
                        through,
                        Purpose::Ask { op: open.op },
                        Request::Ask { operation: id },
                    );
                }
            } else {
                self.probes.hit(if relayed { "client: repeats through another site" } else { "client: repeats" });
                let op = &mut self.oracle.ops[open.op as usize];
                op.sent += 1;
                op.relayed |= relayed;
                let submission = Submission { sequence: id.sequence, timeout, operation: op.operation.clone() };
                let current = self.clients[at].sites[site].session;
                let current = current.filter(|s| s.id == id.session && s.incarnation == id.incarnation);
                let low = current.map_or(1, |session| session.low);
                self.send_batch(world, at, site, through, id.incarnation, id.session, low, vec![submission], false);
            }
            let patience = self.patience(world, at, through) + timeout.min(SECOND);
            let open = &mut self.clients[at].open[position - 1];
            open.tries += 1;
            open.look_at = now + (patience << open.tries.min(3)).min(8 * SECOND);
        }
    }

    fn release_due(&mut self, world: &mut World, at: usize, all: bool) {
        let now = world.now();
        let mut position = 0;
        while position < self.clients[at].holdings.len() {
            let holding = self.clients[at].holdings[position];
            if holding.until.is_some_and(|until| until <= now) {
                self.clients[at].holdings.swap_remove(position);
                continue;
            }
            position += 1;
            if holding.release_at > now && !all {
                continue;
            }
            let site_of_grant = self.oracle.ops[holding.op as usize].site;
            let site = if holding.tracked { site_of_grant } else { self.rng.below(world.len() as u64) as usize };
            let suspect = self.clients[at].sites[site].suspect_until > now;
            if suspect || self.session(world, at, site).is_none() {
                continue;
            }
            let op = &self.oracle.ops[holding.op as usize];
            let mut amount = holding.amount;
            let operation = if holding.tracked {
                Operation::ReleaseGrant { grant: holding.grant }
            } else {
                if amount > 1 && self.rng.one_in(4) {
                    amount = 1 + self.rng.below(amount as u64) as i64;
                }
                let (Operation::Acquire { quota, .. } | Operation::Release { quota, .. }) = &op.operation else {
                    continue;
                };
                Operation::Release { quota: quota.clone(), amount }
            };
            if self.submit(world, at, site, operation.clone(), SECOND).is_none() {
                continue;
            }
            self.oracle.let_go(now, holding.hold, amount);
            let held = &mut self.clients[at].holdings[position - 1];
            held.amount -= amount;
            if held.amount == 0 {
                self.clients[at].holdings.swap_remove(position - 1);
                position -= 1;
            }
            if holding.tracked && self.rng.one_in(10) {
                self.probes.hit("client: releases twice");
                self.submit(world, at, site, operation, SECOND);
            }
        }
    }

    /// Asks about an operation that it then sends: it must not be carried out.
    fn ask_before_sending(&mut self, world: &mut World, at: usize, site: usize) {
        self.flush(world, at, site);
        let Some(session) = self.clients[at].sites[site].session else { return };
        if session.next - session.low >= WINDOW {
            return;
        }
        self.probes.hit("client: asks before sending");
        let operation = Operation::Acquire { quota: PLENTY.name.to_owned(), amount: 1, hold: Hold::Counted };
        let op = self.register(world, site, session.incarnation, session.id, session.next, operation, SECOND);
        self.clients[at].sites[site].session = Some(Session { next: session.next + 1, ..session });
        let id = self.oracle.ops[op as usize].id;
        let arrives = world.now() + self.latency(world, at, site);
        if !self.client_loses() {
            self.ask_site(world, arrives, site, Purpose::Ask { op }, Request::Ask { operation: id });
        }
        self.submitted += 1;
        let look_at = world.now() + self.rng.below(SECOND);
        self.clients[at].open.push(Open { op, look_at, tries: 0, asks_only: false });
    }

    /// An operation of this session that was answered, and that the client still cares about.
    fn answered(&mut self, at: usize, site: usize) -> Option<(u32, Session)> {
        let session = self.clients[at].sites[site].session?;
        let span = session.next - session.low;
        if span == 0 {
            return None;
        }
        let sequence = session.low + self.rng.below(span);
        let op = self.oracle.sessions[&(site, session.incarnation, session.id)][sequence as usize - 1];
        self.oracle.ops[op as usize].told.is_some().then_some((op, session))
    }

    fn ask_again(&mut self, world: &mut World, at: usize, site: usize) {
        let Some((op, session)) = self.answered(at, site) else { return };
        self.probes.hit("client: asks about what was answered");
        let known = &mut self.oracle.ops[op as usize];
        let id = known.id;
        if self.rng.one_in(2) {
            let arrives = world.now() + self.latency(world, at, site);
            self.ask_site(world, arrives, site, Purpose::Ask { op }, Request::Ask { operation: id });
        } else if known.sent > 0 && known.told.as_ref().is_some_and(is_definitive) {
            let operation = known.operation.clone();
            let submission = Submission { sequence: id.sequence, timeout: known.timeout, operation };
            let low = session.low;
            self.send_batch(world, at, site, site, id.incarnation, id.session, low, vec![submission], false);
        }
    }

    /// Uses an id again for other content, after it was done.
    fn reuse_id(&mut self, world: &mut World, at: usize, site: usize) {
        let Some((op, session)) = self.answered(at, site) else { return };
        let known = &self.oracle.ops[op as usize];
        // An id whose outcome is not kept would be taken for a new one after a restart.
        if !known.told.as_ref().is_some_and(|told| once::is_done(told) && is_kept(told)) {
            return;
        }
        self.probes.hit("client: reuses an id");
        let id = known.id;
        let operation = Operation::Acquire { quota: PLENTY.name.to_owned(), amount: 77_777, hold: Hold::Counted };
        let submission = Submission { sequence: id.sequence, timeout: SECOND, operation };
        let low = session.low;
        self.send_batch(world, at, site, site, id.incarnation, id.session, low, vec![submission], true);
    }

    /// Closes a retired session of which nothing is in doubt any more, and asks about an operation of it afterwards.
    fn close_retired(&mut self, world: &mut World, at: usize) {
        let answered = |&(site, session): &(usize, Session)| {
            let ops = &self.oracle.sessions[&(site, session.incarnation, session.id)];
            let is_over = |op: &Op| op.told.is_some() || op.skipped;
            ops.iter().all(|&op| is_over(&self.oracle.ops[op as usize]))
        };
        let Some(position) = self.clients[at].retired.iter().position(answered) else { return };
        let (site, session) = self.clients[at].retired.swap_remove(position);
        let last = self.oracle.sessions[&(site, session.incarnation, session.id)].last().copied();
        self.probes.hit("client: closes a session");
        let arrives = self.close(world, at, site, session);
        if let Some(op) = last {
            let operation = self.oracle.ops[op as usize].id;
            self.ask_site(world, arrives + 1, site, Purpose::Ask { op }, Request::Ask { operation });
        }
    }

    fn show(&mut self, world: &mut World, at: usize, site: usize) {
        let kind = KINDS[self.rng.below(7) as usize];
        let book = self.oracle.book(kind.name);
        let request = Request::Show { quota: kind.name.to_owned(), timeout: SECOND + self.rng.below(2 * SECOND) };
        let arrives = world.now() + self.latency(world, at, site);
        let id = self.ask_site(world, arrives, site, Purpose::Show { book }, request);
        self.oracle.watch(book, id);
    }

    /// A response leaves a site for its client.
    pub(crate) fn mail_out(&mut self, world: &mut World, site: usize, client: ClientId, response: Response) {
        let at = match self.requests[client.0 as usize] {
            Purpose::Open { client, .. } | Purpose::Batch { client, .. } | Purpose::Read { client, .. } => client,
            _ => site,
        };
        if let Purpose::Caller { wire, .. } = self.requests[client.0 as usize] {
            let arrives = self.caller_mail(world, wire, site);
            return self.deliver_at(world, arrives, client, response);
        }
        let delay = self.latency(world, at, site);
        let of_driver = matches!(self.requests[client.0 as usize], Purpose::Drain { .. });
        if self.client_loses() && !of_driver {
            return;
        }
        self.deliver_at(world, world.now() + delay, client, response);
    }

    fn deliver_at(&mut self, world: &mut World, at: u64, client: ClientId, response: Response) {
        let slot = self.free_mail.pop().unwrap_or_else(|| {
            self.mail.push(None);
            self.mail.len() - 1
        });
        self.mail[slot] = Some((client, response));
        world.wake_at(at, Timer::Mail(slot).token());
    }

    /// A response reaches its client.
    pub(crate) fn delivered(&mut self, world: &mut World, client: ClientId, response: Response) {
        let purpose = self.requests[client.0 as usize];
        match (purpose, response) {
            (Purpose::Open { client, site }, Response::Opened { incarnation, session, .. }) => {
                // What is opened while all are silent may be forgotten before it is used.
                let is_stale = self.is_silent(world.now());
                let of_site = &mut self.clients[client].sites[site];
                if of_site.session.is_none() {
                    of_site.session = Some(Session { is_stale, ..Session::new(incarnation, session) });
                    of_site.opening_until = 0;
                    self.oracle.sessions.entry((site, incarnation, session)).or_default();
                }
            }
            (Purpose::Open { client, site }, Response::NotOpened(refusal)) => {
                self.count_refusal(refusal);
                let of_site = &mut self.clients[client].sites[site];
                of_site.opening_until = 0;
                of_site.suspect_until = world.now() + SECOND / 2;
            }
            (Purpose::Batch { client, site, incarnation, session, reused }, Response::Batch { answers, .. }) => {
                for Answer { sequence, outcome } in answers {
                    let ops = &self.oracle.sessions[&(site, incarnation, session)];
                    let Some(&op) = ops.get(sequence as usize - 1) else { continue };
                    if reused {
                        self.answered_reuse(op, &outcome);
                    } else {
                        self.answered_with(world, client, op, outcome, false);
                    }
                }
            }
            (Purpose::Ask { op }, Response::Asked { outcome, .. }) => {
                let client = (0..self.clients.len()).find(|&at| self.clients[at].open.iter().any(|o| o.op == op));
                self.answered_with(world, client.unwrap_or(0), op, outcome, true);
            }
            (Purpose::Read { label, .. }, Response::Read(reading)) => self.read(world, label, *reading),
            (Purpose::Show { book }, Response::Shown(shown)) => self.shown(client.0, book, shown),
            (Purpose::Audit { book, site }, Response::Shown(shown)) => self.audited_show(world, book, site, shown),
            (Purpose::Drain { site }, Response::Drained) => self.drained(world, site),
            (Purpose::Caller { wire, stream }, response) => self.caller_receives(world, wire, stream, response),
            (Purpose::Look, Response::Status(status)) if !status.clock_trusted => {
                self.probes.hit("site: clock distrusted");
            }
            _ => {}
        }
    }

    fn shown(&mut self, request: u64, book: usize, shown: Result<api::Shown, Refusal>) {
        let watch = self.oracle.unwatch(book, request);
        let Ok(shown) = shown else { return };
        let exact = shown.in_use_min == shown.in_use_max;
        self.probes.hit(if exact { "show: exact" } else { "show: an interval" });
        if !shown.missing.is_empty() {
            self.probes.hit("show: sites missing");
        }
        let Some(watch) = watch else { return };
        // Tokens of lost incarnations count as in use; when they were lost is not looked at.
        let lost = self.oracle.sums(book).ok().flatten().map_or(0, |(_, sums)| sums.lost);
        let (least, most) = (i128::from(shown.in_use_min), i128::from(shown.in_use_max));
        let in_lost = !self.oracle.lost.is_empty();
        let sound = least <= watch.most + lost && most >= watch.least && least <= most;
        if !sound && !in_lost {
            let name = self.oracle.books[book].name.clone();
            let what = format!("{watch:?} were in use while show counted {shown:?}");
            self.oracle.blame("show tells the truth", Err(what), &name);
        }
    }

    fn answered_reuse(&mut self, op: u32, outcome: &Outcome) {
        if let Outcome::Refused(refusal) = outcome {
            self.count_refusal(*refusal);
        }
        if once::is_done(outcome) {
            let about = self.oracle.ops[op as usize].id.to_string();
            let what = format!("its id was used again for other content, and answered {outcome:?}");
            self.oracle.blame(once::NAME, Err(what), &about);
        }
    }

    /// An answer about an operation reaches its client.
    fn answered_with(&mut self, world: &mut World, at: usize, op: u32, outcome: Outcome, asked: bool) {
        let now = world.now();
        let known = &self.oracle.ops[op as usize];
        let (id, site) = (known.id, known.site);
        let about = id.to_string();
        let mine = |s: &Session| s.id == id.session && s.incarnation == id.incarnation;
        let current = self.clients.iter().find_map(|client| client.sites[site].session.filter(mine));
        let low = current.filter(|session| !session.is_stale).map(|session| session.low.max(session.floor));
        // Of a caller in doubt the product's client promises to keep the outcome from being forgotten.
        let is_wanted = self.callers.wanted.get(&op).is_some_and(|until| now < *until);
        let standing = Standing {
            lost: self.oracle.lost.contains(&(site, id.incarnation)),
            // A session that left no record may be taken for one whose records are forgotten.
            // And a creation that was undecided cannot be told of once what was created is deleted.
            forgotten: !is_wanted && low.is_none_or(|low| id.sequence < low)
                || known.durable == Some(Outcome::Unknown(UnknownReason::Forgotten))
                || !self.oracle.recorded(site, id.incarnation, id.session, 1),
        };
        let found = answers::check(known.told.as_ref(), &outcome, standing);
        let survived = survival::check_answer(known.durable.as_ref(), &outcome);
        let created = known.book.map(|book| &self.oracle.books[book]).filter(|book| !book.deletable);
        let created = created.and_then(|book| book.created);
        let exists = answers::check_known(created, known.first_sent, &outcome);
        self.oracle.blame(answers::NAME, found, &about);
        self.oracle.blame(answers::NAME, exists, &about);
        // Only what is recorded is looked for: a session that ended has no records any more.
        if !standing.lost && !standing.forgotten {
            self.oracle.blame(survival::NAME, survived, &about);
        }
        if let Some(low) = low
            && !standing.lost
        {
            let recorded = self.oracle.recorded(site, id.incarnation, id.session, low);
            self.oracle.blame(survival::NAME, survival::check_session(recorded, &outcome), &about);
        }

        let known = &self.oracle.ops[op as usize];
        let first = known.told.is_none();
        let once_and_direct = known.sent == 1 && !known.relayed && !asked;
        // Of the only copy that was sent, the site says that it did nothing.
        let outcome = match outcome {
            Outcome::Unknown(UnknownReason::Forgotten)
                if once_and_direct && current.is_some_and(|s| id.sequence >= s.floor) =>
            {
                Outcome::Refused(Refusal::SessionEnded)
            }
            outcome => outcome,
        };
        let did_nothing = once_and_direct && is_of_one_copy(&outcome);
        if once_and_direct {
            self.judge_refusal(world, op, &outcome);
        }
        match &outcome {
            Outcome::Refused(refusal) => {
                self.count_refusal(*refusal);
                if matches!(refusal, Refusal::SessionEnded | Refusal::NotReady | Refusal::StorageFull) {
                    let of_site = &mut self.clients[at].sites[site];
                    of_site.suspect_until = of_site.suspect_until.max(now + SECOND / 2);
                }
                if *refusal == Refusal::SessionEnded {
                    self.drop_session(at, site, id);
                }
            }
            Outcome::Unknown(doubt) => {
                self.probes.hit(&format!("unknown: {}", doubt.code()));
                if *doubt == UnknownReason::IncarnationLost {
                    self.drop_session(at, site, id);
                }
            }
            _ => {}
        }
        let is_final = match &outcome {
            Outcome::Unknown(UnknownReason::IncarnationLost | UnknownReason::Forgotten | UnknownReason::HomeLost) => {
                true
            }
            // Who asks is told what is durable.
            Outcome::Refused(Refusal::StorageFull) if asked => true,
            outcome => is_definitive(outcome) || did_nothing,
        };
        if !first || !is_final {
            if !is_final && let Some(open) = self.clients[at].open.iter_mut().find(|open| open.op == op) {
                open.look_at = open.look_at.min(now + 500 * MILLISECOND);
            }
            return;
        }
        if asked {
            self.probes.hit("unknown: resolved by asking");
        }
        self.oracle.ops[op as usize].told = Some(outcome.clone());
        self.clients[at].open.retain(|open| open.op != op);
        let outcome = match outcome {
            Outcome::Unknown(_) if did_nothing => Outcome::Refused(Refusal::NotReady),
            outcome => outcome,
        };
        self.conclude(world, at, op, &outcome);
    }

    fn drop_session(&mut self, at: usize, site: usize, id: OperationId) {
        let of_site = &mut self.clients[at].sites[site];
        if of_site.session.is_some_and(|s| s.id == id.session && s.incarnation == id.incarnation) {
            of_site.session = None;
            // They were never sent; their ids are not used again.
            let unsent: Vec<u64> = of_site.outbox.drain(..).map(|submission| submission.sequence).collect();
            let ops = self.oracle.sessions[&(site, id.incarnation, id.session)].clone();
            for sequence in unsent {
                let op = ops[sequence as usize - 1];
                self.clients[at].open.retain(|open| open.op != op);
                let refused = Outcome::Refused(Refusal::SessionEnded);
                self.oracle.ops[op as usize].told = Some(refused);
            }
        }
    }

    /// What a client makes of the definitive answer to an operation.
    fn conclude(&mut self, world: &mut World, at: usize, op: u32, outcome: &Outcome) {
        let now = world.now();
        let known = &self.oracle.ops[op as usize];
        let (operation, first_sent, book) = (known.operation.clone(), known.first_sent, known.book);
        let id = known.id;
        match (&operation, outcome) {
            (Operation::Commit(_), outcome) => self.transaction_ended(world, op, outcome),
            (Operation::AcceptLoss, Outcome::LossAccepted) => self.probes.hit("object: loss accepted"),
            (Operation::Acquire { amount, hold, .. }, Outcome::Granted { grant, lasts }) => {
                let until = lasts.map(|lasts| first_sent + lasts.saturating_sub(EPSILON as u64));
                let held = self.oracle.hold(now, op, *amount, until);
                if book == Some(self.audit.book) && self.phase == Phase::Audit {
                    return self.audit_granted(world, op, held, *amount);
                }
                let mean = KINDS.iter().find(|kind| Some(self.oracle.book(kind.name)) == book);
                let mean = mean.map_or(2_000, |kind| kind.held) * MILLISECOND;
                // A few timed holds are given back early, the others end by themselves.
                let early = until.is_none() || self.rng.one_in(3);
                let release_at = if early { now + self.rng.below(2 * mean) } else { u64::MAX };
                let tracked = *hold != Hold::Counted;
                let (hold, amount, grant) = (held, *amount, *grant);
                self.clients[at].holdings.push(Holding { op, hold, amount, grant, tracked, until, release_at });
            }
            (Operation::Release { amount, quota }, outcome) => match outcome {
                Outcome::Released { .. } => self.probes.hit("operation: released by amount"),
                Outcome::Refused(Refusal::AboveOut { .. }) if *amount <= PLENTY.limit || quota == "huge" => {
                    let what = "a client released what it held, and was told that it is above what is out";
                    self.oracle.blame(limit::NAME, Err(what.to_owned()), &id.to_string());
                }
                Outcome::Refused(Refusal::AboveOut { .. }) => {}
                // Not done, so the tokens are still this client's.
                Outcome::Refused(_) => self.hold_again(now, at, op, *amount),
                _ => {}
            },
            (Operation::ReleaseGrant { grant }, outcome) => match outcome {
                Outcome::Released { .. } => self.probes.hit("operation: released by grant"),
                Outcome::Refused(Refusal::UnknownGrant | Refusal::QuotaDeleted) => {
                    self.judge_unknown(op, *grant, outcome)
                }
                Outcome::Refused(_) => self.release_grant_again(world, at, *grant),
                _ => {}
            },
            (Operation::Create { .. }, Outcome::Created { .. }) => {
                self.probes.hit("operation: created");
                let generation = book.and_then(|book| {
                    let book = &mut self.oracle.books[book];
                    book.created.get_or_insert(now);
                    book.decisions.newest().map(|(_, table)| table.generation)
                });
                if generation > Some(1) {
                    self.probes.hit("operation: deleted and created again");
                }
                if book.is_some_and(|book| self.oracle.books[book].life > 0) {
                    self.probes.hit("quota: forgotten and created again");
                }
            }
            (Operation::Delete { .. }, Outcome::Deleted) => self.probes.hit("operation: deleted"),
            _ => {}
        }
    }

    /// A release was refused for good: the client holds the tokens again.
    pub(crate) fn hold_again(&mut self, now: u64, at: usize, release: u32, amount: i64) {
        let known = &self.oracle.ops[release as usize];
        let book = known.book.expect("a release names a quota");
        if amount > KINDS.iter().find(|kind| kind.name == self.oracle.books[book].name).map_or(40, |kind| kind.limit) {
            return;
        }
        // Any grant of the quota tells which generation it is; this quota is never deleted.
        let table = self.oracle.books[book].decisions.newest().map_or(0, |(_, table)| table.generation);
        self.oracle.ops[release as usize].generation = table;
        let hold = self.oracle.hold(now, release, amount, None);
        let grant = GrantId::default();
        let mut holding = Holding { op: release, hold, amount, grant, tracked: false, until: None, release_at: now };
        holding.release_at += self.rng.below(SECOND);
        self.clients[at].holdings.push(holding);
    }

    fn release_grant_again(&mut self, world: &mut World, at: usize, grant: GrantId) {
        let now = world.now();
        let Some(op) = self.oracle.grant(grant) else { return };
        let known = &self.oracle.ops[op as usize];
        let Some(tracked) = known.tracked else { return };
        let Operation::Acquire { amount, .. } = known.operation else { return };
        if tracked.ended || tracked.until.is_some_and(|until| until <= now) {
            return;
        }
        // Another release of the same grant may still be carried out.
        let releases = |open: &Open| self.oracle.ops[open.op as usize].operation == Operation::ReleaseGrant { grant };
        let client = &self.clients[at];
        if client.holdings.iter().any(|holding| holding.grant == grant) || client.open.iter().any(releases) {
            return;
        }
        let hold = self.oracle.hold(now, op, amount, tracked.until);
        let release_at = now + self.rng.below(SECOND);
        let until = tracked.until;
        self.clients[at].holdings.push(Holding { op, hold, amount, grant, tracked: true, until, release_at });
    }

    /// A grant is said not to be out: is that so?
    fn judge_unknown(&mut self, release: u32, grant: GrantId, outcome: &Outcome) {
        let Some(op) = self.oracle.grant(grant) else { return };
        let known = &self.oracle.ops[op as usize];
        let lost = self.oracle.lost.contains(&(known.site, known.id.incarnation));
        let deletable = known.book.is_some_and(|book| self.oracle.books[book].deletable);
        let ended = known.tracked.is_none_or(|tracked| tracked.ended);
        if lost || deletable || ended {
            return;
        }
        let about = self.oracle.ops[release as usize].id.to_string();
        self.oracle.blame(survival::NAME, survival::check_release(outcome), &about);
    }

    fn count_refusal(&mut self, refusal: Refusal) {
        // Its bounds are higher than what a run reaches; they have tests of their own.
        if refusal != Refusal::Overloaded {
            self.probes.hit(&format!("refused: {}", refusal.code()));
        }
    }

    /// An acquire of the audit, at a site whose client there has a session.
    pub(crate) fn submit_for_audit(&mut self, world: &mut World, at: usize, operation: Operation) -> Option<u32> {
        let site = self.clients[at].home;
        self.session(world, at, site)?;
        let op = self.submit(world, at, site, operation, 20 * SECOND);
        self.flush(world, at, site);
        op
    }
}
