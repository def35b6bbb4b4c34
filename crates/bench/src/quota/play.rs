//! A trace played to sites in virtual time.
//!
//! Each event is a request of its own, sent at the very moment at which it happens, because `local` is read off its first response.
//! Sessions are kept here, as few as have room.

use std::collections::VecDeque;
use std::time::Instant;

use slackline_core::api::{Hold, Operation, Outcome, Readiness, Request, Response, Shown};
use slackline_core::clock::SECOND;
use slackline_core::id::{GrantId, SessionId};
use slackline_core::machine::ClientId;
use slackline_core::node::{Metrics, Node};
use slackline_sim::Costs;
use slackline_sim::world::{Host, Options, World};

use super::books::{Books, Drawn, booked, is_at_rest};
use super::prepare::{NAME, Prepared, QuotaError, TIMEOUT, config_name};
use crate::EPSILON;
use crate::report::Run;
use crate::rtt::Matrix;
use crate::sessions::Session;
use crate::trace::{Event, Kind, Trace};

/// The client that creates the quota and asks for totals.
const ADMIN: ClientId = ClientId(1 << 62);
/// The clients of sites, when they open sessions.
const OPENER: ClientId = ClientId(ADMIN.0 + 1);
/// The longest that sites may take to become ready, or to come to rest, in microseconds.
const REST: u64 = 120 * SECOND;

/// Plays events to sites in virtual time, and checks the books.
pub fn play(
    prepared: &Prepared,
    matrix: &Matrix,
    costs: Costs,
    seed: u64,
    redistribute: bool,
) -> Result<Run, QuotaError> {
    play_and_draw(prepared, matrix, costs, seed, redistribute).map(|(run, _)| run)
}

/// The same; and what figures need of the run.
pub(super) fn play_and_draw(
    prepared: &Prepared,
    matrix: &Matrix,
    costs: Costs,
    seed: u64,
    redistribute: bool,
) -> Result<(Run, Drawn), QuotaError> {
    let name = config_name(redistribute);
    let wrong = |what| QuotaError::Books { config: name.into(), what };
    let mut play = Play::prepare(prepared, matrix, costs, seed, redistribute);

    // What sites did before the trace began is not the trace's.
    let sum = |play: &Play, part: fn(&Metrics) -> u64| play.nodes().map(|node| part(node.metrics())).sum::<u64>();
    let counts = |play: &Play| {
        let (reactive, proactive) = (sum(play, |m| m.rounds_reactive), sum(play, |m| m.rounds_proactive));
        [play.world.inputs(), play.world.wan_messages(), play.world.syncs(), reactive, proactive]
    };
    let before = counts(&play);
    let clock = Instant::now();
    play.play().map_err(wrong)?;
    let elapsed = clock.elapsed().as_secs_f64();
    let mut after = counts(&play);
    after.iter_mut().zip(before).for_each(|(after, before)| *after -= before);

    let [inputs, sent, syncs, reactive, proactive] = after;
    let shown = play.verify().map_err(wrong)?;

    let players = play.players;
    let mut run = players.books.run(name, prepared, (players.last_answer - players.began) as f64 / SECOND as f64);
    run.rebalances = shown.work.rebalances;
    run.gifts = shown.work.gifts;
    run.wan_messages = Some(sent);
    let run = run
        .with("rounds_reactive", reactive)
        .with("rounds_proactive", proactive)
        .with("syncs", syncs)
        .with("sim_inputs_per_s", (inputs as f64 / elapsed) as u64);
    Ok((run, players.books.drawn()))
}

/// One configuration at play.
struct Play<'a> {
    /// The sites.
    world: World,
    /// Their clients.
    players: Players<'a>,
    /// The quota's limit.
    limit: i64,
}

/// The clients of all sites, and what they know.
struct Players<'a> {
    /// The events.
    trace: &'a Trace,
    /// Round trip between a client and its site in microseconds, by site.
    near: Vec<u64>,
    /// The client of each site.
    clients: Vec<SiteClient>,
    /// The operation of each event.
    asked: Vec<Asked>,
    /// The jobs of the trace, by number.
    jobs: Vec<Job>,
    /// The virtual time at which the trace began, in microseconds.
    began: u64,
    /// The time of the last answer.
    last_answer: u64,
    /// Operations on their way.
    open: usize,
    /// The time at which the last hold ends.
    held_until: u64,
    /// The outcomes that clients were told.
    books: Books,
    /// The last response to [`ADMIN`].
    told: Option<Response>,
}

/// A site's client. It opens a session when those that it has are stale, or have no room.
#[derive(Debug, Default)]
struct SiteClient {
    /// Those that are in use.
    sessions: Vec<Session>,
    /// True if one was asked for and is not open yet.
    is_opening: bool,
    /// Operations, by their event, that wait for a session.
    queue: VecDeque<(usize, Operation)>,
}

/// The operation of an event, once it was submitted.
#[derive(Clone, Copy, Default)]
struct Asked {
    /// The time of its submission.
    sent: u64,
    /// The session in which it was sent.
    session: SessionId,
    /// True if the first response to its request had no answer.
    waited: bool,
}

/// A job of the trace.
#[derive(Clone, Copy, Default)]
struct Job {
    /// Its stage.
    state: JobState,
    /// The event that ends it, if that came before its grant.
    ended: Option<u32>,
}

/// The stages of a job.
#[derive(Clone, Copy, Default)]
enum JobState {
    /// Its acquire has no answer yet.
    #[default]
    Asked,
    /// It has its tokens.
    Granted(GrantId),
    /// It was refused, or gives its tokens back.
    Over,
}

impl<'a> Play<'a> {
    /// Sites that serve and have the quota.
    fn prepare(prepared: &'a Prepared, matrix: &Matrix, costs: Costs, seed: u64, redistribute: bool) -> Self {
        let sites = matrix.sites();
        let row = |from: usize| (0..sites).map(|to| matrix.micros(from, to)).collect();
        let rtt = (0..sites).map(row).collect();
        let world = World::new(Options { redistribute, costs, epsilon: EPSILON, ..Options::new(rtt, seed) });

        let players = Players {
            trace: &prepared.trace,
            near: (0..sites).map(|site| matrix.micros(site, site)).collect(),
            clients: (0..sites).map(|_| SiteClient::default()).collect(),
            asked: vec![Asked::default(); prepared.trace.events.len()],
            jobs: vec![Job::default(); prepared.trace.jobs as usize],
            began: 0,
            last_answer: 0,
            open: 0,
            held_until: 0,
            books: Books::new(&prepared.trace, sites),
            told: None,
        };

        let mut play = Self { world, players, limit: prepared.limit };
        play.settle();
        play.create();
        play
    }

    /// The machines of all sites.
    fn nodes(&self) -> impl Iterator<Item = &Node> {
        (0..self.world.len()).map(|site| self.world.node(site).expect("no site fails here"))
    }

    fn advance(&mut self, until: u64) {
        self.world.run(&mut self.players, until);
    }

    /// Lets time pass until every site serves.
    fn settle(&mut self) {
        while !self.nodes().all(|node| node.readiness() == Readiness::Ready) {
            assert!(self.world.now() < REST, "the sites must become ready");
            self.advance(self.world.now() + SECOND / 10);
        }
    }

    /// Asks a site as [`ADMIN`], and lets time pass until there is an answer.
    fn ask(&mut self, site: usize, request: Request) -> Response {
        self.world.request(self.world.now(), site, ADMIN, request);
        let patience = self.world.now() + REST;
        loop {
            match self.players.told.take() {
                // The operation waits; its answer comes later.
                Some(Response::Batch { answers, .. }) if answers.is_empty() => {}
                Some(response) => return response,
                None => {}
            }
            assert!(self.world.now() < patience, "a site that is asked must answer");
            self.advance(self.world.now() + SECOND / 1_000);
        }
    }

    /// Creates the quota at the first site, and waits until every site has its share.
    fn create(&mut self) {
        let mut session = match self.ask(0, Request::Open) {
            Response::Opened { site, incarnation, session } => Session::new(site, incarnation, session),
            other => panic!("a ready site opens sessions, and does not say {other:?}"),
        };

        let operation = Operation::create(NAME, self.limit);
        let request = session.submit(operation, 10 * SECOND, self.world.now());
        match self.ask(0, request) {
            Response::Batch { answers, .. } => {
                assert_eq!(answers[0].outcome, Outcome::Created { limit: self.limit }, "the quota must be created");
            }
            other => panic!("a creation is answered, and not by {other:?}"),
        }

        // The trace begins when every site has heard of the quota.
        self.advance(self.world.now() + 2 * SECOND);
        self.players.began = self.world.now();
        self.players.last_answer = self.world.now();
    }

    /// Plays all events, and waits for all answers.
    fn play(&mut self) -> Result<(), String> {
        let (trace, began) = (self.players.trace, self.players.began);
        let ends = self.players.books.ends();
        let mut parts = ends.into_iter().enumerate().peekable();
        for (order, event) in trace.events.iter().enumerate() {
            while let Some((part, end)) = parts.next_if(|(_, end)| *end <= event.at) {
                self.advance(began + end);
                self.players.books.timeline[part].in_use = self.never_above_the_limit()?;
            }

            self.advance(began + event.at);
            self.players.happen(&mut self.world, order, event.site.expect("every event has its place"), event.kind);
            // Looking at all sites takes longer than an event.
            if order % 64 == 0 {
                self.never_above_the_limit()?;
            }
        }

        for (part, end) in parts {
            self.advance(began + end);
            self.players.books.timeline[part].in_use = self.never_above_the_limit()?;
        }

        // Every operation has a deadline at its site, so by then each has an answer.
        let patience = self.world.now() + TIMEOUT + 60 * SECOND;
        while self.players.open > 0 && self.world.now() < patience {
            self.advance(self.world.now() + SECOND / 10);
        }
        match self.players.open {
            0 => Ok(()),
            open => Err(format!("{open} operations were never answered")),
        }
    }

    /// Tokens in use by the books of all sites, which must not be more than there are.
    fn never_above_the_limit(&self) -> Result<i128, String> {
        let in_use = booked(self.nodes());
        if in_use > i128::from(self.limit) {
            return Err(format!("{in_use} tokens are in use of a limit of {}", self.limit));
        }
        Ok(in_use)
    }

    /// Lets all holds end and all gifts arrive; then the books must agree: each site's with what its clients know, and all
    /// together with the limit.
    fn verify(&mut self) -> Result<Shown, String> {
        self.never_above_the_limit()?;
        self.advance(self.world.now().max(self.players.held_until) + 2 * SECOND);

        // Totals are exact only when nothing is under way between sites.
        let patience = self.world.now() + REST;
        while !is_at_rest(&self.nodes().collect::<Vec<_>>()) {
            if self.world.now() > patience {
                return Err("tokens are still under way minutes after the last request".into());
            }
            self.advance(self.world.now() + SECOND);
        }

        let nodes: Vec<&Node> = self.nodes().collect();
        self.players.books.audit(&nodes, self.limit)?;

        // What users see agrees with it too.
        let shown = match self.ask(0, Request::Show { quota: NAME.into(), timeout: 5_000_000, local: false }) {
            Response::Shown(shown) => shown.map_err(|refusal| format!("`show` is refused: {refusal}"))?,
            other => return Err(format!("`show` is answered by {other:?}")),
        };
        let in_use = self.players.books.in_use();
        if (i128::from(shown.in_use_min), i128::from(shown.in_use_max)) != (in_use, in_use) {
            return Err(format!("`show` says {} to {} in use, not {in_use}", shown.in_use_min, shown.in_use_max));
        }
        Ok(*shown)
    }
}

impl Host for Players<'_> {
    fn wake(&mut self, _: &mut World, _: u64) {}

    fn respond(&mut self, world: &mut World, site: usize, client: ClientId, response: Response) {
        match (client, response) {
            (ADMIN, response) => self.told = Some(response),
            (OPENER, Response::Opened { site: id, incarnation, session }) => {
                let client = &mut self.clients[site];
                client.is_opening = false;
                client.sessions.push(Session::new(id, incarnation, session));
                self.send(world, site);
            }
            (client, Response::Batch { session, answers }) => {
                let order = client.0 as usize;
                // A site responds in the turn in which it takes a batch; without an answer, the operation waits.
                let Some(answer) = answers.into_iter().next() else {
                    self.asked[order].waited = true;
                    return;
                };
                assert_eq!(session, self.asked[order].session);
                let client = &mut self.clients[site];
                if let Some(session) = client.sessions.iter_mut().find(|open| open.id == session) {
                    session.answer(answer.sequence);
                }
                self.answered(world, order, site, answer.outcome);

                // There may be room again for what waits.
                if !self.clients[site].queue.is_empty() {
                    self.send(world, site);
                }
            }
            (_, other) => panic!("not asked for: {other:?}"),
        }
    }
}

impl Players<'_> {
    /// An event happens: its operation is sent, if there is one.
    fn happen(&mut self, world: &mut World, order: usize, site: usize, kind: Kind) {
        let quota = || NAME.to_owned();
        let operation = match kind {
            Kind::Acquire { amount } => {
                Operation::Acquire { quota: quota(), amount, hold: Hold::Counted, waits: false }
            }
            Kind::Hold { amount, micros } => {
                Operation::Acquire { quota: quota(), amount, hold: Hold::For(micros), waits: false }
            }
            Kind::Begin { amount, .. } => Operation::Acquire { quota: quota(), amount, hold: Hold::Open, waits: false },
            Kind::Release { amount } => {
                // Clients who were refused have nothing to give back, whatever the trace says.
                if !self.books.give_back(self.trace.events[order].at, amount) {
                    return;
                }
                Operation::Release { quota: quota(), amount }
            }
            Kind::End { job } => {
                let job = &mut self.jobs[job as usize];
                match job.state {
                    JobState::Granted(grant) => {
                        job.state = JobState::Over;
                        Operation::ReleaseGrant { grant, used: 0 }
                    }
                    // A job that waits gives back when it is granted; one that was refused has nothing to give back.
                    JobState::Asked => {
                        job.ended = Some(order as u32);
                        return;
                    }
                    JobState::Over => return,
                }
            }
        };
        self.submit(world, order, site, operation);
    }

    /// Has the operation of an event sent.
    fn submit(&mut self, world: &mut World, order: usize, site: usize, operation: Operation) {
        self.asked[order] = Asked { sent: world.now(), ..Asked::default() };
        self.open += 1;
        self.clients[site].queue.push_back((order, operation));
        self.send(world, site);
    }

    /// Sends what waits, as far as there are sessions with room; otherwise opens one.
    fn send(&mut self, world: &mut World, site: usize) {
        let now = world.now();
        let client = &mut self.clients[site];
        while let Some((order, operation)) = client.queue.pop_front() {
            let Some(session) = client.sessions.iter_mut().find(|session| session.is_usable(now)) else {
                client.queue.push_front((order, operation));
                client.sessions.retain(Session::is_awaited);
                if !client.is_opening {
                    client.is_opening = true;
                    world.request(now, site, OPENER, Request::Open);
                }
                return;
            };

            self.asked[order].session = session.id;
            world.request(now, site, ClientId(order as u64), session.submit(operation, TIMEOUT, now));
        }
    }

    /// The operation of an event has ended.
    fn answered(&mut self, world: &mut World, order: usize, site: usize, outcome: Outcome) {
        let Event { kind, at, .. } = self.trace.events[order];
        let Asked { sent, waited, .. } = self.asked[order];
        let now = world.now();
        let is_acquire = kind.wanted().is_some();
        self.open -= 1;
        self.last_answer = now;

        // Requests arrive at once in this world: the way of the client there and back is added here.
        self.books.latencies.note((now - sent + self.near[site]) * 1_000);
        self.books.local += u64::from(is_acquire && !waited);

        match outcome {
            Outcome::Granted { grant, .. } => {
                self.books.note_granted(site, kind);
                match kind {
                    Kind::Hold { micros, .. } => self.held_until = self.held_until.max(now + micros),
                    Kind::Begin { job, .. } => {
                        let job = &mut self.jobs[job as usize];
                        job.state = JobState::Granted(grant);
                        if let Some(end) = job.ended {
                            job.state = JobState::Over;
                            self.submit(world, end as usize, site, Operation::ReleaseGrant { grant, used: 0 });
                        }
                    }
                    _ => {}
                }
            }
            Outcome::Released { amount } => self.books.note_released(site, amount),
            Outcome::Refused(_) => {
                self.books.note_refused(at, is_acquire);
                if let Kind::Release { amount } = kind {
                    self.books.keep(amount);
                }
                if let Kind::Begin { job, .. } = kind {
                    self.jobs[job as usize].state = JobState::Over;
                }
            }
            // Nothing else is asked for, or can be known of what is.
            _ => self.books.unknown += 1,
        }
    }
}
