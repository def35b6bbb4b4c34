//! The product's machines as a system: each operation is a request of its own, sent at the moment at which a client asks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use slackline_core::api::{Agreement, Hold, Operation, Outcome, Readiness, Request, Response, Shown};
use slackline_core::avantan::Charter;
use slackline_core::clock::SECOND;
use slackline_core::id::SessionId;
use slackline_core::machine::ClientId;
use slackline_core::node::Node;
use slackline_sim::Costs;
use slackline_sim::world::{Host, Keep, Options, World};

use super::ask::{Ask, Counts, Fault, Heard, System, Told};
use super::geography::Geography;
use crate::EPSILON;
use crate::quota::{NAME, booked, conserve, is_at_rest};
use crate::sessions::Session;

/// The client that creates quotas and asks for totals.
const ADMIN: ClientId = ClientId(1 << 62);
/// The clients of sites, when they open sessions.
const OPENER: ClientId = ClientId(ADMIN.0 + 1);
/// The longest that sites may take to become ready, or to come to rest, in microseconds.
const REST: u64 = 120 * SECOND;
/// An answer at the last moment would be late by a sync: a client asks its site to wait for so much less, in microseconds.
const MARGIN: u64 = 1_000;
/// Looking at the books of all sites takes longer than an event: it is done once in so many.
const AUDITED: u64 = 64;

/// How the product is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ways {
    /// True if sites move tokens ahead of need.
    pub(super) is_ahead: bool,
    /// True if a read is what one site knows.
    pub(super) reads_locally: bool,
    /// How tokens move between sites.
    pub(super) agreement: Agreement,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Product {
    pub(super) world: World,
    desk: Desk,
    limit: i64,
    /// Where everybody is.
    geography: Geography,
    /// What sites had in use by their books when they were lost.
    lost: i128,
    /// True if a site was lost.
    has_lost: bool,
    /// What was counted before the first request.
    before: Counts,
    /// What the sites tell of the quota in the end.
    shown: (u64, u64),
    /// Audits that were asked for.
    audits: u64,
}

/// The clients of all sites.
#[derive(Debug)]
struct Desk {
    /// One way between a client and its site, in microseconds; by site.
    near: Vec<u64>,
    clients: Vec<SiteClient>,
    /// By call.
    asked: Vec<Asked>,
    /// Answers on their way to clients, with the time at which they are heard.
    answers: BinaryHeap<Reverse<(u64, u32, u8, bool)>>,
    /// The last response to [`ADMIN`].
    told: VecDeque<Response>,
    reads_locally: bool,
}

/// A site's client. It opens a session when those that it has are stale, or have no room.
#[derive(Debug, Default)]
struct SiteClient {
    sessions: Vec<Session>,
    is_opening: bool,
    /// Operations that wait for a session: the call, the operation and the client's deadline.
    queue: VecDeque<(u32, Operation, u64)>,
}

/// A call that was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    session: SessionId,
    /// True if the first response to its request had no answer.
    has_waited: bool,
}

/// [`Told`] as it is kept in a heap.
const TOLD: [Told; 3] = [Told::Granted, Told::Refused, Told::Done];

impl Product {
    /// Sites that serve, and have the quota.
    pub(super) fn new(geography: &Geography, costs: Costs, seed: u64, limit: i64, ways: Ways) -> Self {
        let mut product = Self::without_quota(geography, costs, seed, ways);
        product.limit = limit;
        product.create(NAME, limit, ways.agreement);
        product.settle_down();
        product
    }

    /// Sites that serve, and have no quota.
    pub(super) fn without_quota(geography: &Geography, costs: Costs, seed: u64, ways: Ways) -> Self {
        let sites = geography.sites();
        let row = |from: usize| (0..sites).map(|to| 2 * geography.between(from, to)).collect();
        let rtt = (0..sites).map(row).collect();
        let world = World::new(Options { ahead: ways.is_ahead, costs, epsilon: EPSILON, ..Options::new(rtt, seed) });
        let desk = Desk {
            near: (0..sites).map(|site| geography.access(site, site)).collect(),
            clients: (0..sites).map(|_| SiteClient::default()).collect(),
            asked: Vec::new(),
            answers: BinaryHeap::new(),
            told: VecDeque::new(),
            reads_locally: ways.reads_locally,
        };
        let mut product = Self {
            world,
            desk,
            limit: 0,
            geography: geography.clone(),
            lost: 0,
            has_lost: false,
            before: Counts::default(),
            shown: (0, 0),
            audits: 0,
        };
        while !product.nodes().iter().all(|node| node.readiness() == Readiness::Ready) {
            assert!(product.world.now() < REST, "the sites must become ready");
            product.run(SECOND / 10);
        }
        product
    }

    /// What happened so far is not the workload's; it begins when every site has heard of the quotas.
    pub(super) fn settle_down(&mut self) {
        self.run(2 * SECOND);
        self.before = self.counted();
    }

    /// The machines of all sites that run.
    fn nodes(&self) -> Vec<&Node> {
        (0..self.world.len()).filter_map(|site| self.world.node(site)).collect()
    }

    /// Lets time pass. What clients hear meanwhile is kept for them.
    pub(super) fn run(&mut self, micros: u64) {
        let until = self.world.now() + micros;
        while self.world.now() < until {
            self.world.run(&mut self.desk, until);
        }
    }

    /// Asks a site as [`ADMIN`], and lets time pass until there is an answer.
    fn ask_site(&mut self, site: usize, request: Request) -> Response {
        self.world.request(self.world.now(), site, ADMIN, request);
        let patience = self.world.now() + REST;
        loop {
            match self.desk.told.pop_front() {
                // The operation waits; its answer comes later.
                Some(Response::Batch { answers, .. }) if answers.is_empty() => continue,
                Some(response) => return response,
                None => {}
            }
            assert!(self.world.now() < patience, "a site that is asked must answer");
            self.run(SECOND / 1_000);
        }
    }

    /// A session of [`ADMIN`] at a site.
    pub(super) fn open(&mut self, site: usize) -> Session {
        match self.ask_site(site, Request::Open) {
            Response::Opened { site, incarnation, session } => Session::new(site, incarnation, session),
            other => panic!("a ready site opens sessions, and does not say {other:?}"),
        }
    }

    /// Creates a quota at the first site.
    fn create(&mut self, name: &str, limit: i64, agreement: Agreement) {
        let mut session = self.open(0);
        let charter = Charter { agreement, ..Charter::default() };
        let operation = Operation::Create { quota: name.into(), limit, charter };
        let request = session.submit(operation, 10 * SECOND, self.world.now());
        match self.ask_site(0, request) {
            Response::Batch { answers, .. } => {
                assert_eq!(answers[0].outcome, Outcome::Created { limit }, "the quota must be created");
            }
            other => panic!("a creation is answered, and not by {other:?}"),
        }
    }

    /// What the sites tell of a quota.
    pub(super) fn show(&mut self, name: &str) -> Result<Shown, String> {
        match self.ask_site(0, Request::Show { quota: name.into(), timeout: 5 * SECOND, local: false }) {
            Response::Shown(shown) => {
                shown.map(|shown| *shown).map_err(|refusal| format!("`show` is refused: {refusal}"))
            }
            other => Err(format!("`show` is answered by {other:?}")),
        }
    }

    /// Sends requests as [`ADMIN`]; returns the responses that have come since the last call.
    pub(super) fn exchange(&mut self, at: u64, requests: impl Iterator<Item = (usize, Request)>) -> Vec<Response> {
        requests.for_each(|(site, request)| self.world.request(at, site, ADMIN, request));
        std::mem::take(&mut self.desk.told).into()
    }

    /// A client of a region sends a request about a quota now.
    pub(super) fn ask_of(&mut self, quota: String, region: usize, call: u32, ask: Ask) {
        let operation = match ask {
            Ask::Acquire { amount, .. } => Operation::Acquire { quota, amount, hold: Hold::Counted, waits: true },
            Ask::Release { amount } => Operation::Release { quota, amount },
            Ask::Read => {
                let local = self.desk.reads_locally;
                let request = Request::Show { quota, timeout: 2 * SECOND, local };
                let arrives = self.world.now() + self.desk.near[region];
                return self.world.request(arrives, region, ClientId(u64::from(call)), request);
            }
        };
        let deadline = match ask {
            Ask::Acquire { deadline, .. } => deadline,
            _ => self.world.now() + 60 * SECOND,
        };
        self.desk.clients[region].queue.push_back((call, operation, deadline));
        self.desk.send(&mut self.world, region);
    }

    fn counted(&self) -> Counts {
        Counts { rebalances: 0, gifts: 0, wan_messages: self.world.wan_messages(), syncs: self.world.syncs() }
    }

    /// Tokens in use by the books of all sites, those of lost ones included.
    fn in_use(&self) -> i128 {
        booked(self.nodes().into_iter()) + self.lost
    }

    fn never_above_the_limit(&self) -> Result<(), String> {
        match self.in_use() {
            in_use if in_use > i128::from(self.limit) => {
                Err(format!("{in_use} tokens are in use of a limit of {}", self.limit))
            }
            _ => Ok(()),
        }
    }
}

impl System for Product {
    fn now(&self) -> u64 {
        self.world.now()
    }

    fn advance(&mut self, until: u64, heard: &mut Vec<Heard>) {
        loop {
            let next = self.desk.answers.peek().map_or(until, |Reverse((at, ..))| until.min(*at));
            // It returns early when a site responds: that may be heard before `next`.
            self.world.run(&mut self.desk, next);
            if self.world.now() < next {
                continue;
            }
            while self.desk.answers.peek().is_some_and(|Reverse((at, ..))| *at <= next) {
                let Reverse((_, call, told, is_local)) = self.desk.answers.pop().expect("looked at above");
                heard.push(Heard { call, told: TOLD[usize::from(told)], is_local });
            }
            if !heard.is_empty() || next == until {
                return;
            }
        }
    }

    fn ask(&mut self, region: usize, call: u32, ask: Ask) {
        self.ask_of(NAME.to_owned(), region, call, ask);
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Lose(site) => {
                self.lost += booked(self.world.node(site).into_iter());
                self.has_lost = true;
                self.world.crash(&mut self.desk, site, Keep::Everything);
            }
            Fault::Part(is_parted) => {
                let in_two = |site| self.geography.is_site_in_two(site);
                for from in 0..self.world.len() {
                    for to in (0..self.world.len()).filter(|&to| in_two(from) != in_two(to)) {
                        self.world.cut(from, to, is_parted);
                    }
                }
            }
        }
    }

    fn audit(&mut self) -> Result<(), String> {
        self.audits += 1;
        if self.audits.is_multiple_of(AUDITED) { self.never_above_the_limit() } else { Ok(()) }
    }

    fn close(&mut self, held: Option<i64>) -> Result<(), String> {
        self.never_above_the_limit()?;
        self.run(2 * SECOND);

        // Totals are exact only when nothing is under way between sites, and known only where all of them run.
        let patience = self.world.now() + REST;
        while !self.has_lost && !is_at_rest(&self.nodes()) {
            if self.world.now() > patience {
                return Err("tokens are still under way minutes after the last request".into());
            }
            self.run(SECOND);
        }
        let in_use = self.in_use();
        if !self.has_lost {
            conserve(&self.nodes(), in_use, self.limit)?;
        }
        if let Some(held) = held.filter(|held| i128::from(*held) != in_use) {
            return Err(format!("{in_use} tokens are in use, and clients have {held}"));
        }

        let shown = self.show(NAME)?;
        self.shown = (shown.work.rebalances, shown.work.gifts);
        Ok(())
    }

    fn counts(&self) -> Counts {
        let now = self.counted();
        let (rebalances, gifts) = self.shown;
        Counts {
            rebalances,
            gifts,
            wan_messages: now.wan_messages - self.before.wan_messages,
            syncs: now.syncs - self.before.syncs,
        }
    }
}

impl Host for Desk {
    fn wake(&mut self, _: &mut World, _: u64) {}

    fn respond(&mut self, world: &mut World, site: usize, client: ClientId, response: Response) {
        match (client, response) {
            (ADMIN, response) => self.told.push_back(response),
            (OPENER, Response::Opened { site: id, incarnation, session }) => {
                let client = &mut self.clients[site];
                client.is_opening = false;
                client.sessions.push(Session::new(id, incarnation, session));
                self.send(world, site);
            }
            (client, Response::Shown(shown)) => {
                assert!(shown.is_ok(), "a quota that is there is shown");
                self.hear(world, site, client.0 as u32, 2, false);
            }
            (client, Response::Batch { session, answers }) => {
                let call = client.0 as u32;
                // A site responds in the turn in which it takes a batch; without an answer, the operation waits.
                let Some(answer) = answers.into_iter().next() else {
                    self.asked[call as usize].has_waited = true;
                    return;
                };
                let Asked { session: of, has_waited } = self.asked[call as usize];
                assert_eq!(session, of);
                if let Some(session) = self.clients[site].sessions.iter_mut().find(|open| open.id == session) {
                    session.answer(answer.sequence);
                }
                let told = match answer.outcome {
                    Outcome::Granted { .. } => 0,
                    Outcome::Refused(_) => 1,
                    Outcome::Released { .. } => 2,
                    other => panic!("nothing that was asked ends like this: {other:?}"),
                };
                self.hear(world, site, call, told, !has_waited);
                if !self.clients[site].queue.is_empty() {
                    self.send(world, site);
                }
            }
            (_, other) => panic!("not asked for: {other:?}"),
        }
    }
}

impl Desk {
    /// An answer leaves a site for its client.
    fn hear(&mut self, world: &mut World, site: usize, call: u32, told: u8, is_local: bool) {
        self.answers.push(Reverse((world.now() + self.near[site], call, told, is_local)));
        world.stop();
    }

    /// Sends what waits, as far as there are sessions with room; otherwise opens one.
    fn send(&mut self, world: &mut World, site: usize) {
        let now = world.now();
        let arrives = now + self.near[site];
        let client = &mut self.clients[site];
        while let Some((call, operation, deadline)) = client.queue.pop_front() {
            let Some(session) = client.sessions.iter_mut().find(|session| session.is_usable(now)) else {
                client.queue.push_front((call, operation, deadline));
                client.sessions.retain(Session::is_awaited);
                if !client.is_opening {
                    client.is_opening = true;
                    world.request(arrives, site, OPENER, Request::Open);
                }
                return;
            };

            let timeout = deadline.saturating_sub(arrives + self.near[site] + MARGIN);
            if self.asked.len() <= call as usize {
                self.asked.resize(call as usize + 1, Asked::default());
            }
            self.asked[call as usize] = Asked { session: session.id, has_waited: false };
            world.request(arrives, site, ClientId(call.into()), session.submit(operation, timeout, now));
        }
    }
}
