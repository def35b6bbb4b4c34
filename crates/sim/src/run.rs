//! One run: sites, clients, faults and checks, all from one seed.
//!
//! A run has three phases. In the first, clients work and faults strike. Then every fault ends (*healing*), and clients
//! go on until they have sent all their operations, settle what is in doubt and give back what they hold. Last, the
//! cluster at rest is *audited*: it must serve at every site and its books must be exact.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use slackline_core::api::{Outcome, Readiness, Request, Response};
use slackline_core::avantan::{self, Role};
use slackline_core::clock::{Now, SECOND};
use slackline_core::config::{NAMES_KEPT, Warranties};
use slackline_core::id::{Incarnation, SessionId, SiteId};
use slackline_core::machine::{Batch, ClientId, Effect, Input, Seq};
use slackline_core::node::{Metrics, Node};
use slackline_core::object::message::{Fetched, Message};
use slackline_core::peer::quota::{Digest, QuotaMessage};
use slackline_core::peer::{Body, PeerMessage, RelayMessage};
use slackline_core::session::RETENTION;
use slackline_core::stats::Rng;

use crate::audit::Audit;
use crate::brink::Brink;
use crate::callers::Callers;
use crate::clients::{Client, Purpose, is_fleeting};
use crate::costs::Costs;
use crate::faults::Faults;
use crate::invariants::quorums::{self, Promises};
use crate::invariants::{Violation, answers, lives, release, survival, turns};
use crate::kinds;
use crate::network::Fate;
use crate::oracle::Oracle;
use crate::probes::Probes;
use crate::refusals::Refusals;
use crate::txns::Txns;
use crate::vigil::Vigil;
use crate::work::Works;
use crate::world::{After, Host, Keep, Options, World};

/// How much a run does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// Operations that clients send, at least.
    pub operations: u64,
    /// Transactions that are committed, at least.
    pub transactions: u64,
    /// Faults that strike, at least.
    pub faults: u64,
    /// Whether every event is printed to standard output as one line.
    pub trace: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { operations: 20_000, transactions: 5_000, faults: 20, trace: false }
    }
}

/// What came of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The first invariant that did not hold.
    pub violation: Option<Violation>,
    /// What the run came across.
    pub probes: Probes,
    /// Sites.
    pub sites: usize,
    /// Inputs handled by all sites.
    pub inputs: u64,
    /// Operations sent by clients, repetitions not counted.
    pub operations: u64,
    /// Faults that struck.
    pub faults: u64,
    /// How often conservation was checked.
    pub checks: u64,
    /// Virtual time, in microseconds.
    pub duration: u64,
    /// Of all that happened: the same seed gives the same.
    pub digest: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.probes.iter().filter(|(_, count)| *count > 0) {
            writeln!(f, "{name:<58} {count:>13}")?;
        }
        writeln!(
            f,
            "seed {}: {} sites, {} inputs, {} operations, {} faults, {} checks of the books, {} ms, digest {:016x}",
            self.seed,
            self.sites,
            self.inputs,
            self.operations,
            self.faults,
            self.checks,
            self.duration / 1000,
            self.digest
        )?;
        match &self.violation {
            Some(violation) => writeln!(f, "seed {}: {violation}", self.seed),
            None => Ok(()),
        }
    }
}

thread_local! {
    /// The seed that this thread runs.
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// A panic prints its seed and ends the process with status 1.
pub(crate) fn exit_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let at = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
        eprintln!("seed {}: assertion{at}: {}", SEED.get(), message_of(info.payload()));
        std::process::exit(1);
    }));
}

/// Runs one seed.
pub fn run(seed: u64, options: RunOptions) -> Report {
    SEED.set(seed);
    let mut simulation = None;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let (world, made) = Simulation::new(seed, options);
        let world = simulation.insert((world, made));
        world.1.go(&mut world.0);
    }));
    let (world, mut simulation) = simulation.expect("a simulation is made before anything can fail");
    if let Err(panic) = ended {
        simulation.oracle.violation = Some(Violation { invariant: "assertion", what: message_of(&*panic) });
    }
    Report {
        seed,
        violation: simulation.oracle.violation,
        probes: simulation.probes,
        sites: world.len(),
        inputs: world.inputs(),
        operations: simulation.submitted,
        faults: simulation.faults.struck,
        checks: simulation.oracle.conserved,
        duration: world.now(),
        digest: simulation.digest,
    }
}

/// What a panic says.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}

/// What a timer of the simulation is for; its token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// A client acts.
    Client(usize),
    /// A response reaches its client.
    Mail(usize),
    /// A fault strikes.
    Strike,
    /// A fault ends.
    Mend(usize),
    /// A site that is down is started.
    Restart(usize),
    /// A step of a swizzle.
    Swizzle(usize),
    /// A copy of a disk is taken.
    Copy(usize),
    /// Phases end.
    Phase,
    /// Somebody meets a transaction at the brink: a writer, or else a reader.
    Brink(bool),
    /// Clocks are looked at.
    Vigil,
    /// A site crashes that was told that a session is over.
    Closed(usize),
    /// A person says that a site's earlier storage is lost.
    Word(usize),
    /// A volume that was not mounted is mounted.
    Mount(usize),
    /// A site that has just lost its disk loses it again.
    Relapse(usize),
    /// Who is up and connected is looked at.
    Refusals,
    /// A call is read whose home has not heard of a loss.
    Unheard,
    /// A time has come that a caller waits for.
    Caller(usize),
}

impl Timer {
    pub(crate) fn token(self) -> u64 {
        let (kind, of) = match self {
            Timer::Client(of) => (0, of),
            Timer::Mail(of) => (1, of),
            Timer::Strike => (2, 0),
            Timer::Mend(of) => (3, of),
            Timer::Restart(of) => (4, of),
            Timer::Swizzle(of) => (5, of),
            Timer::Copy(of) => (6, of),
            Timer::Phase => (7, 0),
            Timer::Brink(writes) => (8, usize::from(writes)),
            Timer::Vigil => (9, 0),
            Timer::Word(of) => (10, of),
            Timer::Mount(of) => (11, of),
            Timer::Relapse(of) => (12, of),
            Timer::Closed(of) => (13, of),
            Timer::Refusals => (14, 0),
            Timer::Unheard => (15, 0),
            Timer::Caller(of) => (16, of),
        };
        kind << 56 | of as u64
    }

    fn of_token(token: u64) -> Self {
        let of = (token & ((1 << 56) - 1)) as usize;
        match token >> 56 {
            0 => Timer::Client(of),
            1 => Timer::Mail(of),
            2 => Timer::Strike,
            3 => Timer::Mend(of),
            4 => Timer::Restart(of),
            5 => Timer::Swizzle(of),
            6 => Timer::Copy(of),
            7 => Timer::Phase,
            8 => Timer::Brink(of == 1),
            10 => Timer::Word(of),
            11 => Timer::Mount(of),
            12 => Timer::Relapse(of),
            13 => Timer::Closed(of),
            14 => Timer::Refusals,
            15 => Timer::Unheard,
            16 => Timer::Caller(of),
            _ => Timer::Vigil,
        }
    }
}

/// In one of so many runs, by the numbers drawn, there are as many quotas besides the usual ones as would fill more than one step of an
/// announcement, of a drain, and of a tick.
const CROWDED: u64 = 16;
/// How many these are.
const CROWD: u64 = 640;

/// How long names of deleted quotas are kept in some runs.
const FLEETING_NAMES: u64 = 5 * SECOND;

/// Where a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Faults strike.
    Faults,
    /// All faults are over; clients finish.
    Healing,
    /// The cluster at rest is looked at.
    Audit,
    /// The end.
    Over,
}

/// What a site was when it was last looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    readiness: Readiness,
    metrics: Metrics,
    kind: usize,
}

#[derive(Debug)]
pub(crate) struct Simulation {
    pub(crate) options: RunOptions,
    pub(crate) rng: Rng,
    pub(crate) members: Vec<SiteId>,
    pub(crate) oracle: Oracle,
    pub(crate) probes: Probes,
    pub(crate) clients: Vec<Client>,
    pub(crate) callers: Callers,
    /// What each request was for; the client ids that sites see are positions here.
    pub(crate) requests: Vec<Purpose>,
    pub(crate) mail: Vec<Option<(ClientId, Response)>>,
    pub(crate) free_mail: Vec<usize>,
    pub(crate) faults: Faults,
    pub(crate) brink: Brink,
    pub(crate) vigil: Vigil,
    pub(crate) works: Vec<Works>,
    /// How many quotas of a crowd are still to be created; none in most runs.
    pub(crate) crowd: u64,
    pub(crate) refusals: Refusals,
    promises: Promises,
    pub(crate) audit: Audit,
    pub(crate) phase: Phase,
    pub(crate) submitted: u64,
    /// Of which transactions.
    pub(crate) transactions: u64,
    /// No transaction begins before this.
    pub(crate) txns_from: u64,
    pub(crate) txns: Txns,
    /// Whether sites issue and rely upon warranties.
    pub(crate) has_warranties: bool,
    /// How long sites keep names of deleted quotas.
    pub(crate) names_kept: u64,
    /// How fast clients work, in thousandths.
    pub(crate) pace: u64,
    /// In some runs no client says anything between these, for longer than sites keep outcomes.
    pub(crate) silence: Option<(u64, u64)>,
    seen: Vec<Seen>,
    /// The input that is being handled tells a site of a quota that it did not know.
    meets_quota: bool,
    digest: u64,
}

impl Simulation {
    fn new(seed: u64, options: RunOptions) -> (World, Self) {
        let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x736c_6163);
        let sites = if rng.one_in(2) { 5 } else { 3 };
        // From neighbours to antipodes, not the same in every run.
        let scale = 1 + rng.below(3);
        let mut rtt = vec![vec![0; sites]; sites];
        for (from, to) in (0..sites).flat_map(|from| (0..from).map(move |to| (from, to))) {
            let one = (5_000 + rng.below(80_000)) * scale;
            rtt[from][to] = one;
            rtt[to][from] = one;
        }
        let costs = Costs { sync_us: [50, 200, 2_000, 8_000][rng.below(4) as usize], ..Costs::default() };
        // Without warranties, transactions rest on no clock, and then wall clocks may be as wrong as they like.
        let has_warranties = !rng.one_in(4);
        let warranties = if has_warranties { Warranties::State } else { Warranties::Off };
        // Or else for some time at first, when no transaction is there yet.
        let txns_from = if has_warranties && rng.one_in(2) { (20 + rng.below(20)) * SECOND } else { 0 };
        // Some calls are used all the time, others now and then.
        let idle_calls = [2, 20, 120][rng.below(3) as usize] * SECOND;
        // All is silent for longer than sites keep outcomes.
        let silence = rng.one_in(6).then(|| (10 + rng.below(20)) * SECOND);
        let silence = silence.map(|from| (from, from + RETENTION + 30 * SECOND));
        let seed = rng.draw();
        // In some runs names of deleted quotas go soon, and often.
        let names_kept = [FLEETING_NAMES, FLEETING_NAMES / 2, NAMES_KEPT, NAMES_KEPT][(seed >> 16 & 3) as usize];
        let world_options =
            Options { idle_calls, names_kept, warranties, costs, restarts: true, ..Options::new(rtt, seed) };
        let world = World::new(world_options);
        let members: Vec<SiteId> = (0..sites).map(|site| world.id(site)).collect();
        let simulation = Self {
            options,
            oracle: Oracle::new(&members),
            probes: Probes::default(),
            callers: Callers::new(sites, &members, seed),
            clients: (0..sites * 4).map(|at| Client::new(at % sites, sites)).collect(),
            requests: vec![Purpose::None],
            mail: Vec::new(),
            free_mail: Vec::new(),
            faults: Faults::new(sites),
            brink: Brink::new(seed),
            vigil: Vigil::new(sites),
            works: vec![Default::default(); sites],
            crowd: if seed.is_multiple_of(CROWDED) { CROWD } else { 0 },
            refusals: Refusals::new(sites),
            promises: Promises::default(),
            audit: Audit::default(),
            phase: Phase::Faults,
            submitted: 0,
            transactions: 0,
            txns_from,
            txns: Txns::default(),
            has_warranties,
            names_kept,
            pace: 1000,
            silence,
            seen: vec![Seen::default(); sites],
            meets_quota: false,
            digest: 0xcbf2_9ce4_8422_2325,
            members,
            rng,
        };
        (world, simulation)
    }

    fn go(&mut self, world: &mut World) {
        self.plan_faults(world);
        self.open_books(world);
        for client in 0..self.clients.len() {
            let at = 300_000 + self.rng.below(500_000);
            world.wake_at(at, Timer::Client(client).token());
        }
        world.wake_at(SECOND, Timer::Phase.token());
        world.wake_at(SECOND, Timer::Refusals.token());
        while self.phase != Phase::Over && self.oracle.violation.is_none() {
            let until = world.now() + 3600 * SECOND;
            world.run(self, until);
        }
        for site in 0..world.len() {
            self.count_metrics(world, site);
        }
        if self.oracle.violation.is_none() {
            self.judge_history(world);
        }
        self.probes.add("round: grants while tokens are set aside", self.oracle.moved_aside.0);
        self.probes.add("round: release while tokens are set aside", self.oracle.moved_aside.1);
        self.probes.add("gift: to an incarnation that is lost", self.oracle.lost_gifts);
    }

    /// Looks whether the present phase is over.
    fn look_at_phase(&mut self, world: &mut World) {
        self.begin_callers(world);
        match self.phase {
            Phase::Faults if self.faults_are_over(world) => {
                self.heal(world);
                self.phase = Phase::Healing;
            }
            Phase::Healing if self.clients_are_done(world) => {
                self.phase = Phase::Audit;
                self.begin_audit(world);
            }
            Phase::Healing => self.check_settling(world),
            Phase::Audit => self.go_on_with_audit(world),
            Phase::Over => return world.stop(),
            _ => {}
        }
        world.wake_at(world.now() + SECOND / 4, Timer::Phase.token());
    }

    /// When something planned for then happens, as nothing does while all is silent.
    pub(crate) fn after_silence(&self, at: u64) -> u64 {
        match self.silence {
            Some((from, until)) if (from..until).contains(&at) => at - from + until,
            _ => at,
        }
    }

    pub(crate) fn mix(&mut self, word: u64) {
        self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    pub(crate) fn trace(&self, world: &World, line: std::fmt::Arguments) {
        if self.options.trace {
            // Whoever reads may have seen enough.
            let _ = writeln!(std::io::stdout(), "{:>13} {line}", world.now());
        }
    }

    /// Adds what a life of a site counted to the probes. To be called before the node goes.
    pub(crate) fn count_metrics(&mut self, world: &World, site: usize) {
        let Some(node) = world.node(site) else { return };
        let metrics = *node.metrics();
        let before = std::mem::replace(&mut self.seen[site].metrics, metrics);
        let mut add = |name, now: u64, before: u64| self.probes.add(name, now.saturating_sub(before));
        add("operation: granted at once", metrics.granted_local, before.granted_local);
        add("operation: granted after waiting", metrics.granted_waited, before.granted_waited);
        add("operation: hold ended by itself", metrics.expired, before.expired);
        add("operation: answered from the record", metrics.repeated, before.repeated);
        add("round: reactive", metrics.rounds_reactive, before.rounds_reactive);
        add("round: proactive", metrics.rounds_proactive, before.rounds_proactive);
        add("round: recovery", metrics.rounds_recovery, before.rounds_recovery);
        add("round: tokens moved", metrics.rebalances, before.rebalances);
        add("transaction: waited for warranties", metrics.defended, before.defended);
        add("transaction: was given its turn", metrics.turns_given, before.turns_given);
        add("transaction: waited for its turn", metrics.turns_awaited, before.turns_awaited);
        add("transaction: doubt resolved", metrics.doubts_resolved, before.doubts_resolved);
        add("call: deleted, nobody used it", metrics.calls_evicted, before.calls_evicted);
        add("warranty: issued", metrics.rights_issued, before.rights_issued);
        add("warranty: asked back", metrics.revocations, before.revocations);
        add("gift: sent", metrics.gifts_sent(), before.gifts_sent());
        add("gift: received", metrics.gifts_received, before.gifts_received);
        add("quota: forgotten", metrics.forgotten, before.forgotten);
    }

    /// Looks at how far a site is on its way to serving. True if its storage was found to be an old copy: then it stops, and
    /// is started on new storage.
    fn note_readiness(&mut self, world: &mut World, site: usize) -> bool {
        let Some(node) = world.node(site) else { return false };
        let (readiness, incarnation) = (node.readiness(), node.incarnation());
        let before = std::mem::replace(&mut self.seen[site].readiness, readiness);
        if before == readiness {
            return false;
        }
        match (before, readiness) {
            (Readiness::Joining | Readiness::AwaitingNewStorage, Readiness::Ready) if incarnation == Incarnation(1) => {
                self.probes.hit("site: joins as the first incarnation");
            }
            (Readiness::Joining | Readiness::AwaitingNewStorage, Readiness::Ready) => {
                self.probes.hit("site: joins as a later incarnation");
                self.leave_unheard(world, site);
                self.await_relapse(world, site);
            }
            (Readiness::Confirming, Readiness::Ready) => {
                self.probes.hit("site: confirmed");
                self.remounted(site);
            }
            (_, Readiness::Stale) => {
                self.probes.hit("site: old copy noticed");
                self.oracle.called_old(site, incarnation);
                self.put_aside(site);
            }
            (_, Readiness::AwaitingNewStorage) => {
                self.probes.hit("site: awaits a person's word");
                self.await_word(world, site);
            }
            _ => {}
        }
        self.trace(world, format_args!("site {site} is {readiness:?} in incarnation {}", incarnation.0));
        readiness == Readiness::Stale
    }

    /// A site was started.
    pub(crate) fn started(&mut self, world: &mut World, site: usize) {
        self.holds_up(world, site, world.now());
        let node = world.node(site).expect("it was just started");
        self.seen[site] = Seen { readiness: node.readiness(), ..Seen::default() };
        self.works[site] = Works::default();
        let in_round = node.chapters().quotas.iter().any(|quota| quota.avantan().in_round());
        let round = |quota: &slackline_core::quota::Quota| quota.avantan().share.round.clone();
        let accepted = node.chapters().quotas.iter().filter_map(round).any(|round| round.accepted.is_some());
        if in_round {
            self.probes.hit("site: restarted in a round");
        }
        if accepted {
            self.probes.hit("site: restarted with an accepted value");
        }
        self.trace(world, format_args!("site {site} starts as {:?}", self.seen[site].readiness));
    }

    /// Probes of the agreement that show before an input is handled.
    fn probe_input(&mut self, node: &Node, input: &Input<Node>) {
        let Input::Message { from, message: PeerMessage { body, .. } } = input else { return };
        if let Body::Quota(QuotaMessage::Digests(digests)) = body {
            let from = self.members.binary_search(from).unwrap_or(usize::MAX);
            let known =
                |digest: &Digest| node.chapters().quotas.find(&digest.quota).map(|quota| quota.received(from).1);
            let again = digests.iter().filter(|digest| digest.given > 0 && known(digest) == Some(digest.given)).count();
            self.probes.add("gift: total told again", again as u64);
        }
        let Body::Quota(QuotaMessage::Avantan { quota, message }) = body else { return };
        let message = &**message;
        let Some(quota) = node.chapters().quotas.find(quota) else {
            self.meets_quota = matches!(message, avantan::Message::Decided { .. });
            return;
        };
        let share = &quota.avantan().share;
        match message {
            avantan::Message::Election { instance, .. } | avantan::Message::Decided { instance, .. }
                if *instance > share.applied + 2 =>
            {
                self.probes.hit("round: caught up over a gap");
            }
            avantan::Message::Election { ballot, .. } => {
                let electing = matches!(quota.avantan().role(), Role::Electing { .. });
                if electing && share.round.as_ref().is_some_and(|round| round.promised < *ballot) {
                    self.probes.hit("round: rivals");
                }
            }
            avantan::Message::Withdraw { instance, ballot } => {
                self.probes.hit("round: withdrawn");
                let frees = share.round.as_ref().is_some_and(|round| {
                    round.instance == *instance
                        && round.promised == *ballot
                        && round.first == Some(*ballot)
                        && round.held > 0
                });
                if frees {
                    self.probes.hit("round: offer freed by a withdrawal");
                }
            }
            avantan::Message::Report { report, .. }
                if report.accepted.is_some() && matches!(quota.avantan().role(), Role::Electing { .. }) =>
            {
                self.probes.hit("round: accepted value taken up");
            }
            _ => {}
        }
    }

    fn probe_effect(&mut self, site: usize, effect: &Effect<Node>) {
        let Effect::Send { message: sent, .. } = effect else { return };
        let Body::Quota(QuotaMessage::Avantan { quota, message }) = &sent.body else { return };
        // Ballots of another life are others.
        let of_life = format!("{quota} {}", self.oracle.life_in(quota, sent.epoch));
        match &**message {
            avantan::Message::Report { instance, ballot, report } => {
                if report.accepted.is_some() {
                    self.probes.hit("round: accepted value reported");
                }
                if report.promises {
                    self.promises.note(&of_life, *instance, *ballot, site);
                } else {
                    self.probes.hit("round: report without a promise");
                }
            }
            avantan::Message::Accept { instance, ballot, .. } => {
                let found = self.promises.check(&of_life, *instance, *ballot, site, self.members.len());
                self.oracle.blame(quorums::NAME, found, &format!("quota {quota}"));
            }
            _ => {}
        }
    }
}

impl Host for Simulation {
    const WATCHES: bool = true;

    fn wake(&mut self, world: &mut World, token: u64) {
        match Timer::of_token(token) {
            Timer::Client(client) => self.client_acts(world, client),
            Timer::Mail(slot) => {
                let (client, response) = self.mail[slot].take().expect("mail is delivered once");
                self.free_mail.push(slot);
                self.mix(world.now() ^ client.0);
                self.delivered(world, client, response);
            }
            Timer::Strike => self.strike(world),
            Timer::Mend(fault) => self.mend(world, fault),
            Timer::Restart(site) => self.restart(world, site),
            Timer::Swizzle(site) => self.swizzle(world, site),
            Timer::Copy(site) => self.take_copy(world, site),
            Timer::Phase => self.look_at_phase(world),
            Timer::Brink(writes) => self.meet_at_brink(world, writes),
            Timer::Vigil => self.keep_vigil(world),
            Timer::Closed(site) => self.crash_after_close(world, site),
            Timer::Word(site) => self.give_word(world, site),
            Timer::Mount(site) => self.mount(world, site),
            Timer::Relapse(site) => self.relapse(world, site),
            Timer::Refusals => self.look_for_refusals(world),
            Timer::Unheard => self.meet_unheard(world),
            Timer::Caller(name) => self.caller_rings(world, name as u64),
        }
        if self.oracle.violation.is_some() {
            world.stop();
        }
    }

    fn respond(&mut self, world: &mut World, site: usize, client: ClientId, response: Response) {
        self.trace(world, format_args!("site {site} responds to request {}: {response:?}", client.0));
        self.mail_out(world, site, client, response);
    }

    fn before(&mut self, world: &World, site: usize, now: Now, input: &Input<Node>) {
        let kind = kinds::input(input);
        self.seen[site].kind = kind;
        self.mix(world.now() << 16 ^ (site as u64) << 8 ^ kind as u64);
        self.mix(now.wall as u64);
        if let Some(node) = world.node(site) {
            self.probe_input(node, input);
        }
        if let Input::Message { from, message } = input
            && let Ok(peer) = self.members.binary_search(from)
        {
            self.hears(site, now, message, peer);
        }
        if self.options.trace {
            match input {
                Input::Tick => self.trace(world, format_args!("site {site} ticks")),
                Input::Message { from, message } => self.trace(world, format_args!("site {site} ◀ {from} {message:?}")),
                Input::Request { client, request } => {
                    self.trace(world, format_args!("site {site} is asked {}: {request:?}", client.0));
                }
            }
        }
    }

    fn after(&mut self, world: &mut World, site: usize, effects: &[Effect<Node>]) -> After {
        let node = world.node(site).expect("it has just handled an input");
        if self.oracle.seen(site, node.incarnation()) {
            self.faults.rejoined(site);
        }
        self.mix(effects.len() as u64);
        if std::mem::take(&mut self.meets_quota)
            && effects.iter().any(|effect| matches!(effect, Effect::Respond { response: Response::Batch { .. }, .. }))
        {
            self.probes.hit("operation: waits for a name that then exists");
        }
        let mut persists = false;
        for effect in effects {
            match effect {
                Effect::Persist(batch) => {
                    persists = true;
                    let bytes = batch.as_bytes();
                    self.mix(bytes.iter().fold(bytes.len() as u64, |sum, &byte| sum.rotate_left(7) ^ u64::from(byte)));
                    let seq = world.log(site).1 + 1;
                    self.oracle.handed_out(world.now(), site, seq, node, batch);
                }
                _ => self.probe_effect(site, effect),
            }
            if let Some(fetched) = fetched_of(effect)
                && node.chapters().txns.turns() > 0
            {
                let found = turns::check(fetched, |number| node.chapters().txns.is_over_claimed(number));
                self.oracle.blame(turns::NAME, found, &format!("site {site}"));
            }
            if self.options.trace {
                self.trace(world, format_args!("  site {site} → {effect:?}"));
            }
        }
        let is_stale = self.note_readiness(world, site);
        self.look_at_work(world, site, effects);
        self.look_at_ambush(world, site, effects);
        self.look_at_brink(world, site, effects);
        self.look_at_asking(world, site, effects);
        self.want_what_is_proposed(world, site, effects);
        if self.oracle.violation.is_some() {
            world.stop();
        }
        if is_stale {
            self.oracle.blame(lives::NAME, lives::check_kept(persists), &format!("site {site}"));
            return After::Crash(Keep::Nothing);
        }
        self.hazard(world, site, self.seen[site].kind, persists)
    }

    fn durable(&mut self, _now: u64, site: usize, seq: Seq, _batch: &Batch) {
        self.oracle.durable(site, seq);
    }

    fn release(&mut self, site: usize, durable: Seq, effect: &Effect<Node>) {
        match effect {
            Effect::Send { message, .. } => {
                let found = release::check(message.position, durable);
                self.oracle.blame(release::NAME, found, &format!("site {site}"));
                if let Body::Relay(RelayMessage::Answer { response, .. }) = &message.body {
                    self.leaves(site, message.incarnation, response);
                }
            }
            Effect::Respond { client, response: response @ Response::Batch { .. } } => {
                if let Purpose::Batch { site: about, incarnation, .. } = self.requests[client.0 as usize]
                    && about == site
                {
                    self.leaves(site, incarnation, response);
                }
                if let (Purpose::Caller { wire, .. }, Response::Batch { session, .. }) =
                    (self.requests[client.0 as usize], response)
                    && let Some((about, incarnation)) = self.caller_session(wire, *session)
                    && about == site
                {
                    self.leaves(site, incarnation, response);
                }
            }
            Effect::Respond { response: response @ Response::Asked { operation, .. }, .. }
                if self.members[site] == operation.site =>
            {
                self.leaves(site, operation.incarnation, response);
            }
            _ => {}
        }
    }

    fn not_before(&mut self, world: &World, to: usize, message: &PeerMessage) -> u64 {
        let until = self.kept_by_network(to, message);
        if until > 0 {
            self.holds_up(world, to, until);
        }
        until
    }

    fn comes_again(&mut self, now: u64, message: &PeerMessage) -> u64 {
        let about = match &message.body {
            Body::Quota(QuotaMessage::Avantan { quota, .. })
            | Body::Quota(QuotaMessage::NoVote { quota, .. })
            | Body::Quota(QuotaMessage::NotKnown { quota, .. }) => Some(quota),
            Body::Quota(QuotaMessage::Digests(digests)) => {
                digests.iter().map(|digest| &digest.quota).find(|quota| is_fleeting(quota))
            }
            _ => None,
        };
        let may_come = self.names_kept < NAMES_KEPT && self.phase == Phase::Faults;
        if !may_come || !about.is_some_and(|quota| is_fleeting(quota)) || !self.rng.one_in(8) {
            return 0;
        }
        // The name may be forgotten by then, and be another quota's.
        self.probes.hit("fault: message of a former life of a quota's name");
        now + self.names_kept + self.rng.below(16 * SECOND)
    }

    fn fetch_takes(&mut self, world: &World, site: usize, input: &Input<Node>) -> u64 {
        let takes = match self.kept_by_storage(world, site, input) {
            0 => self.slow_fetch(world, site, input),
            takes => takes,
        };
        if takes > 0 {
            self.holds_up(world, site, world.now() + takes);
        }
        takes
    }

    fn fate(&mut self, now: u64, from: usize, to: usize, message: &PeerMessage, fate: Fate) {
        let kind = kinds::message(&message.body);
        match fate {
            Fate::Sent => {}
            Fate::Lost => {
                self.misses(from, to, message);
                self.loses(now, from, to, message);
                self.probes.message(kind, 0);
            }
            Fate::Duplicated => self.probes.message(kind, 1),
            Fate::Reordered => self.probes.message(kind, 2),
        }
    }

    fn crashed(&mut self, world: &mut World, site: usize, pause: u64) {
        let rest = world.at_rest(site);
        self.oracle.crashed(site, &rest);
        self.callers_lose(world, site);
        let after = pause.max(self.faults.down_for(site));
        self.trace(world, format_args!("site {site} is down for {after} us"));
        world.wake_at(world.now() + after, Timer::Restart(site).token());
    }
}

impl Simulation {
    /// Answers about a site's own operations leave it.
    fn leaves(&mut self, site: usize, incarnation: Incarnation, response: &Response) {
        match response {
            Response::Batch { session, answers } => {
                for answer in answers {
                    self.answer_leaves(site, incarnation, *session, answer.sequence, &answer.outcome);
                }
            }
            Response::Asked { operation, outcome } => {
                self.answer_leaves(site, operation.incarnation, operation.session, operation.sequence, outcome);
            }
            _ => {}
        }
    }

    fn answer_leaves(
        &mut self,
        site: usize,
        incarnation: Incarnation,
        session: SessionId,
        sequence: u64,
        outcome: &Outcome,
    ) {
        let ops = self.oracle.sessions.get(&(site, incarnation, session));
        let Some(&op) = ops.and_then(|ops| ops.get(sequence as usize - 1)) else { return };
        let life = self.oracle.life(site);
        let known = &mut self.oracle.ops[op as usize];
        let about = known.id.to_string();
        let durable = survival::check_answer(known.durable.as_ref(), outcome);
        let lives = known.answered.check(life, outcome);
        self.oracle.blame(survival::NAME, durable, &about);
        self.oracle.blame(answers::NAME, lives, &about);
    }

    /// Asks a site something; `at` is when the request gets there.
    pub(crate) fn ask_site(
        &mut self,
        world: &mut World,
        at: u64,
        site: usize,
        purpose: Purpose,
        request: Request,
    ) -> u64 {
        let id = self.requests.len() as u64;
        self.requests.push(purpose);
        world.request(at, site, ClientId(id), request);
        id
    }
}

/// An answer with values and rights, if a site sends one.
fn fetched_of(effect: &Effect<Node>) -> Option<&Fetched> {
    match effect {
        Effect::Send { message: PeerMessage { body: Body::Txn(message), .. }, .. } => match &**message {
            Message::Fetched(fetched) => Some(fetched),
            _ => None,
        },
        _ => None,
    }
}
