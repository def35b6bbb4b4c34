//! Clients that speak to sites themselves: their sessions, what they wait for, and what they hold.

use slackline_core::api::Submission;
use slackline_core::id::{GrantId, Incarnation, OperationId, SessionId};

/// The most operations of a session between its mark and its next one.
const WINDOW: u64 = 1_000;

/// All of them.
#[derive(Debug)]
pub(crate) struct Clients {
    /// The clients. That at a site's position is at home there, and so are those at every multiple of the number of sites
    /// further on.
    pub(crate) all: Vec<Client>,
    /// Operations that they have submitted, repetitions not counted.
    pub(crate) submitted: u64,
    /// The number of these that were transactions, or accepted a loss.
    pub(crate) transactions: u64,
    /// The number of quotas of a crowd that are still to be created; none in most runs.
    pub(crate) crowd: u64,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    /// The site of its region.
    pub(crate) home: usize,
    /// The site that new operations go to.
    pub(crate) current: usize,
    /// What it has at each site.
    pub(crate) sites: Vec<AtSite>,
    /// Operations without a definitive answer.
    pub(crate) open: Vec<Open>,
    /// Tokens that it holds.
    pub(crate) holdings: Vec<Holding>,
    /// True if it has acquired many holds at once since the healing.
    pub(crate) held_many: bool,
    /// Sessions in which nothing new is sent, by site; each is closed when all of it is answered.
    pub(crate) retired: Vec<(usize, Session)>,
    /// Sessions that it closed, by site; only the last few.
    pub(crate) ended: Vec<(usize, Session)>,
    /// Operations that it sends so that its window jumps over others, which it repeats then: victim and leap.
    pub(crate) leaps: Vec<(u32, u32)>,
    /// Operations that it sends whenever it acts between two times.
    pub(crate) pressing: Vec<(u32, u64, u64)>,
    /// It acts ten times as often before this.
    pub(crate) burst_until: u64,
}

/// What a client has at one site.
#[derive(Clone, Debug, Default)]
pub(crate) struct AtSite {
    /// The session in which it submits.
    pub(crate) session: Option<Session>,
    /// It has asked for a session, and asks again after this; zero if it has not asked since the last answer.
    pub(crate) opening_until: u64,
    /// The site did not answer, or refused: before this the client prefers others.
    pub(crate) suspect_until: u64,
    /// What goes into the next batch.
    pub(crate) outbox: Vec<Submission>,
}

/// One session of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    /// The incarnation of the site that opened it.
    pub(crate) incarnation: Incarnation,
    /// Its name there.
    pub(crate) id: SessionId,
    /// The sequence of the next operation.
    pub(crate) next: u64,
    /// The client cares about no operation below this, and says so in its batches.
    pub(crate) low: u64,
    /// Below this nothing is kept, because the client jumped.
    pub(crate) floor: u64,
    /// True if it was silent for longer than outcomes are kept.
    pub(crate) is_stale: bool,
}

/// An operation without a definitive answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    /// The operation, as the oracle numbers it.
    pub(crate) op: u32,
    /// When it is repeated or asked about.
    pub(crate) look_at: u64,
    /// The number of times that it was done.
    pub(crate) tries: u32,
    /// True if it is only asked about, and never repeated.
    pub(crate) asks_only: bool,
}

/// Tokens that a client holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    /// The operation that they come from: an acquire, or a release that was refused.
    pub(crate) op: u32,
    /// The oracle's name for what is held.
    pub(crate) hold: usize,
    /// The number of them.
    pub(crate) amount: i64,
    /// The grant by which they are given back; none if they are given back by amount.
    pub(crate) tracked: Option<GrantId>,
    /// The client does not use them from this time on, if they end by themselves.
    pub(crate) until: Option<u64>,
    /// When they are given back.
    pub(crate) release_at: u64,
}

impl Session {
    /// A session that was just opened.
    pub(crate) fn new(incarnation: Incarnation, id: SessionId) -> Self {
        Self { incarnation, id, next: 1, low: 1, floor: 1, is_stale: false }
    }

    /// Returns true if an operation of the same site is of this session.
    pub(crate) fn has(&self, op: OperationId) -> bool {
        (op.session, op.incarnation) == (self.id, self.incarnation)
    }

    /// Returns true if the client must raise its mark before it submits more.
    pub(crate) fn is_full(&self) -> bool {
        self.next - self.low >= WINDOW
    }
}

impl Client {
    /// A client of a site's region that has done nothing yet.
    pub(crate) fn new(home: usize, sites: usize) -> Self {
        Self {
            home,
            current: home,
            sites: vec![AtSite::default(); sites],
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

impl Clients {
    /// As many clients at each site.
    pub(crate) fn new(sites: usize, of_each: usize, crowd: u64) -> Self {
        let all = (0..sites * of_each).map(|at| Client::new(at % sites, sites)).collect();
        Self { all, submitted: 0, transactions: 0, crowd }
    }

    /// Operations submitted, transactions left out.
    pub(crate) fn quota_operations(&self) -> u64 {
        self.submitted - self.transactions
    }
}
