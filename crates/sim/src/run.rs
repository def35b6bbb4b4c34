//! One run: sites, clients, faults and checks, all from one seed.
//!
//! A run has three phases. In the first, clients work and faults strike. Then every fault ends (*healing*), and clients
//! go on until they have sent all their operations, settle what is in doubt and give back what they hold. Last, the
//! cluster at rest is *audited*: it must serve at every site and its books must be exact. Then a site leaves for good, and
//! what is left is audited.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use slackline_core::api::Response;
use slackline_core::clock::{Now, SECOND};
use slackline_core::config::{NAMES_KEPT, Warranties};
use slackline_core::id::SiteId;
use slackline_core::machine::{Batch, ClientId, Effect, Input, Seq};
use slackline_core::node::Node;
use slackline_core::peer::quota::QuotaMessage;
use slackline_core::peer::{Body, PeerMessage, RelayMessage};
use slackline_core::session::RETENTION;
use slackline_core::stats::Rng;

use crate::costs::Costs;
use crate::invariants::{Violation, lives, looked_after, release, turns};
use crate::kinds;
use crate::network::Fate;
use crate::oracle::Oracle;
use crate::probes::Probes;
use crate::quotas::is_fleeting;
use crate::sightings::fetched_of;
use crate::state::audit::Audit;
use crate::state::callers::Callers;
use crate::state::clients::Clients;
use crate::state::faults::Faults;
use crate::state::post::{Post, Purpose};
use crate::state::timer::Timer;
use crate::state::treaties::Treaties;
use crate::state::txns::Txns;
use crate::state::watch::Watch;
use crate::state::{Phase, RunOptions, Settings, Simulation};
use crate::world::{After, Host, Keep, Options, World};

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
    /// The number of times that conservation was checked.
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
    let is_sound = simulation.oracle.violation.as_ref().is_none_or(|violation| violation.invariant != "assertion");
    let report = Report {
        seed,
        violation: simulation.oracle.violation.take(),
        probes: std::mem::take(&mut simulation.probes),
        sites: world.len(),
        inputs: world.inputs(),
        operations: simulation.clients.submitted,
        faults: simulation.faults.struck,
        checks: simulation.oracle.counts.conserved,
        duration: world.now(),
        digest: simulation.watch.digest,
    };

    // What was broken when an assertion failed may fail another one as it is dropped, and end the sweep with it. So it is not dropped.
    if !is_sound {
        std::mem::forget((world, simulation));
    }
    report
}

/// What a panic says.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Clients at each site that speak to sites themselves.
const CLIENTS: usize = 4;
/// One turn in so many is followed by a look at all quotas of its site.
const SAMPLED: u64 = 16;
/// In one of so many runs, by the numbers drawn, there are as many quotas besides the usual ones as would fill more than one
/// step of an announcement, of a drain, and of a tick.
const CROWDED: u64 = 16;
/// The number of these.
const CROWD: u64 = 640;

/// One message in so many comes a second time, late: after at least so long, and up to so much later, in microseconds.
const LATE_ONE_IN: u64 = 500;
const LATE: (u64, u64) = (2 * SECOND, 38 * SECOND);
/// The time for which names of deleted quotas are kept in some runs.
const FLEETING_NAMES: u64 = 5 * SECOND;

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

        // A slow disk makes batches wait for each other, a fast one lets answers out between two of them.
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

        // In some runs models say what makes no sense.
        let forecasts = (seed >> 18 & 1 == 0).then_some(seed ^ 0x6672_6373);

        // In some runs one or two of five sites join later, mostly two.
        let first = if sites == 5 && seed >> 20 & 1 == 0 { 3 + (seed >> 21 & seed >> 22 & 1) as usize } else { sites };

        // In half of these nothing is put there, so that one can leave again.
        let homes = if seed >> 23 & 1 == 0 { first } else { sites };

        let world_options = Options {
            first,
            idle_calls,
            names_kept,
            warranties,
            costs,
            restarts: true,
            messages_first: true,
            ..Options::new(rtt, seed)
        };
        let world = World::new(world_options);
        let members: Vec<SiteId> = (0..sites).map(|site| world.id(site)).collect();
        let crowd = if seed.is_multiple_of(CROWDED) { CROWD } else { 0 };

        let simulation = Self {
            oracle: Oracle::new(&members),
            callers: Callers::new(&members, homes, seed),
            settings: Settings {
                options,
                members,
                first,
                homes,
                has_warranties,
                names_kept,
                txns_from,
                silence,
                forecasts,
            },
            rng,
            phase: Phase::Faults,
            probes: Probes::default(),
            post: Post::new(),
            clients: Clients::new(sites, CLIENTS, crowd),
            txns: Txns::default(),
            treaties: Treaties::default(),
            faults: Faults { joining: (first < sites).then_some(2 * SECOND), ..Faults::new(sites, seed) },
            watch: Watch::new(sites),
            audit: Audit::default(),
            departure: None,
        };
        (world, simulation)
    }

    fn go(&mut self, world: &mut World) {
        self.plan_faults(world);
        self.open_books();

        // Clients begin at different times, or all would ask for a session at once.
        for client in 0..self.clients.all.len() {
            let at = 300_000 + self.rng.below(500_000);
            world.wake_at(at, Timer::Client(client).token());
        }

        world.wake_at(SECOND, Timer::Phase.token());
        world.wake_at(SECOND, Timer::Refusals.token());
        self.begin_forecasts(world);

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

        let counts = self.oracle.counts;
        self.probes.add("round: grants while tokens are set aside", counts.granted_aside);
        self.probes.add("any: a round decided among a subset", counts.among_subset);
        self.probes.add("any: two disjoint rounds at once", counts.disjoint);
        self.probes.add("any: a dead leader", counts.dead_leaders);
        self.probes.add("any: a dead cohort settled by the sign", counts.dead_cohorts);
        self.probes.add("round: release while tokens are set aside", counts.released_aside);
        self.probes.add("gift: to an incarnation that is lost", counts.lost_gifts);
    }

    /// Looks whether the present phase is over.
    fn look_at_phase(&mut self, world: &mut World) {
        self.begin_callers(world);
        self.let_join(world);

        match self.phase {
            Phase::Faults if self.faults_are_over() => {
                self.heal(world);
                self.phase = Phase::Healing;
            }
            Phase::Healing if self.clients_are_done() => {
                self.phase = Phase::Audit;
                self.begin_audit(world);
            }
            Phase::Healing => self.check_settling(world),
            Phase::Audit => self.go_on_with_audit(world),
            Phase::Departure => self.go_on_with_departure(world),
            Phase::Over => return world.stop(),
            _ => {}
        }
        world.wake_at(world.now() + SECOND / 4, Timer::Phase.token());
    }
}

impl Host for Simulation {
    const WATCHES: bool = true;

    fn wake(&mut self, world: &mut World, token: u64) {
        match Timer::of_token(token) {
            Timer::Client(client) => self.client_acts(world, client),
            Timer::Mail(slot) => {
                let (client, response) = self.post.take(slot);
                self.watch.mix(world.now() ^ client.0);
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
            Timer::Forecast => self.tell_forecasts(world),
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
        // The kind of input, the site and the times go into the digest, so that two runs of a seed can be compared.
        let kind = kinds::input(input);
        self.watch.seen[site].kind = kind;
        self.watch.mix(world.now() << 16 ^ (site as u64) << 8 ^ kind as u64);
        self.watch.mix(now.wall as u64);

        if let Some(node) = world.node(site) {
            self.probe_input(node, input);
        }

        if let Input::Message { from, message } = input
            && let Ok(peer) = self.settings.members.binary_search(from)
        {
            self.hears(world.node(site), (site, now), message, peer);
        }

        if self.settings.options.trace {
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

        // It has joined: whatever it had is gone, and what it says counts from now on.
        if self.oracle.seen(site, node.incarnation()) {
            self.faults.rejoined(site);
        }

        self.watch.mix(effects.len() as u64);
        if std::mem::take(&mut self.watch.meets_quota)
            && effects.iter().any(|effect| matches!(effect, Effect::Respond { response: Response::Batch { .. }, .. }))
        {
            self.probes.hit("operation: waits for a name that then exists");
        }

        // What is handed out is read now, while the machine that knows what it means is at hand.
        let mut persists = false;
        for effect in effects {
            match effect {
                Effect::Persist(batch) => {
                    persists = true;
                    self.watch.mix_bytes(batch.as_bytes());
                    let seq = world.log(site).1 + 1;
                    self.oracle.handed_out(world.now(), site, seq, node, batch);
                }
                _ => self.probe_effect(site, effect),
            }

            if let Some(fetched) = fetched_of(effect)
                && node.chapters().txns.turns() > 0
            {
                let found = turns::check(fetched, |number| node.chapters().txns.is_over_claimed(number));
                self.oracle.blame(turns::NAME, found, format_args!("site {site}"));
            }
            if self.settings.options.trace {
                self.trace(world, format_args!("  site {site} → {effect:?}"));
            }
        }

        // All quotas of a site are many: one turn of several shows what none of them looks after.
        self.watch.turns += 1;
        if self.watch.turns.is_multiple_of(SAMPLED) {
            let found = looked_after::check(node.chapters().quotas.iter());
            self.oracle.blame(looked_after::NAME, found, format_args!("site {site}"));
        }

        // Each of those that watch sites looks at this turn. A fault that needs exact timing may strike because of it.
        let is_stale = self.note_readiness(world, site);
        self.look_at_work(world, site, effects);
        self.look_at_ambush(world, site, effects);
        self.look_at_brink(world, site, effects);
        self.look_at_asking(world, site, effects);
        self.look_at_treaties(world, site, effects);
        self.want_what_is_proposed(world, site, effects);

        if self.oracle.violation.is_some() {
            world.stop();
        }

        // Its driver keeps an old copy as it is: the site stops before anything of it leaves.
        if is_stale {
            self.oracle.blame(lives::NAME, lives::check_kept(persists), format_args!("site {site}"));
            return After::Crash(Keep::Nothing);
        }
        self.hazard(world, site, self.watch.seen[site].kind, persists)
    }

    fn durable(&mut self, _now: u64, site: usize, seq: Seq, _batch: &Batch) {
        self.oracle.durable(site, seq);
    }

    fn release(&mut self, site: usize, durable: Seq, effect: &Effect<Node>) {
        match effect {
            Effect::Send { message, .. } => {
                let found = release::check(message.position, durable);
                self.oracle.blame(release::NAME, found, format_args!("site {site}"));
                if let Body::Relay(RelayMessage::Answer { response, .. }) = &message.body {
                    self.leaves(site, message.incarnation, response);
                }
            }
            Effect::Respond { client, response: response @ Response::Batch { session, .. } } => {
                let session = match self.post.purpose(*client) {
                    Purpose::Batch { site: about, incarnation, .. } => Some((about, incarnation)),
                    Purpose::Caller { wire, .. } => self.callers.session(wire, *session),
                    _ => None,
                };

                // What is relayed left the site that it is about before.
                if let Some((_, incarnation)) = session.filter(|(about, _)| *about == site) {
                    self.leaves(site, incarnation, response);
                }
            }
            Effect::Respond { response: response @ Response::Asked { operation, .. }, .. }
                if self.settings.members[site] == operation.site =>
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

        if self.phase != Phase::Faults {
            return 0;
        }

        // A copy may have been on its way for so long that its sender has started again since, has lost its storage, or knows better.
        if self.settings.options.faults > 0 && self.rng.one_in(LATE_ONE_IN) {
            self.probes.hit(match message.body {
                Body::Site(_) => "fault: late copy of a message about a site",
                Body::Quota(_) => "fault: late copy of a message about a quota",
                Body::Txn(_) => "fault: late copy of a message about a transaction",
                Body::Relay(_) => "fault: late copy of a relayed message",
            });
            return now + LATE.0 + self.rng.below(LATE.1);
        }

        let may_come = self.settings.names_kept < NAMES_KEPT;
        if !may_come || !about.is_some_and(|quota| is_fleeting(quota)) || !self.rng.one_in(8) {
            return 0;
        }
        // The name may be forgotten by then, and be another quota's.
        self.probes.hit("fault: message of a former life of a quota's name");
        now + self.settings.names_kept + self.rng.below(16 * SECOND)
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
        self.reread_counters(world, site, rest.incarnation());

        let after = pause.max(self.faults.sites[site].down_for);
        self.trace(world, format_args!("site {site} is down for {after} us"));
        world.wake_at(world.now() + after, Timer::Restart(site).token());
    }
}
