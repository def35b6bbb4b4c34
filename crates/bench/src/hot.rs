//! `bench hot`: one quota that never runs out, one site, one client with many callers, each with one call in flight.
//!
//! Every call has a fresh operation id, and every grant is durable before it is told. Live, the server is a process of its
//! own on a real disk; each process has one thread for its network and its machine. The client sends a batch while
//! none is under way. Beside it is a floor (the module `floor`), a process of its own too, which is asked the same.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slackline::{Client, Outcome as Answered, Quota};
use slackline_core::api::{
    BATCH_OPERATIONS, Batch, Hold, Operation, Outcome, Readiness, Request, Response, Submission,
};
use slackline_core::id::{Incarnation, SessionId, SiteId};
use slackline_core::machine::ClientId;
use slackline_sim::Costs;
use slackline_sim::world::{Host, Options, World};

use crate::floor::{self, Asked, SLICES};
use crate::histogram::Histogram;
use crate::live::{LiveError, Scratch, Server};
use crate::median;
use crate::report::{Latency, Mode, Report, Run, latency_figure};

/// What `bench hot` is told.
#[derive(Clone, Debug)]
pub struct HotOptions {
    /// How many callers there are; one run for each number.
    pub callers: Vec<usize>,
    /// How long each round lasts.
    pub round: Duration,
    /// How many rounds there are; the one with the median throughput is reported.
    pub rounds: usize,
    /// What every random choice comes from.
    pub seed: u64,
    /// Where to measure for real; none for virtual time.
    pub live: Option<Live>,
}

/// Where to measure for real.
#[derive(Clone, Debug)]
pub struct Live {
    /// The binary that has `serve`. Without one the server is on threads of this process, which is only good for tests.
    pub binary: Option<PathBuf>,
    /// The data lie in a directory that is made below this one and removed.
    pub directory: PathBuf,
}

impl Default for HotOptions {
    fn default() -> Self {
        Self { callers: vec![64], round: Duration::from_secs(2), rounds: 5, seed: 1, live: None }
    }
}

/// The quota's name.
const NAME: &str = "hot";
/// More than all the rounds take.
const LIMIT: i64 = 1 << 50;
/// Time before the first round that is not counted.
const WARM: Duration = Duration::from_secs(1);
/// A round trip over loopback, for virtual time, in microseconds.
const LOOPBACK: u64 = 20;
/// The bound on the clock's error that a simulated site is told, in microseconds.
const EPSILON: u64 = 10_000;

/// Runs `bench hot`.
///
/// # Panics
///
/// If simulated books are wrong afterwards.
pub fn hot(options: &HotOptions) -> Result<Report, LiveError> {
    let mut facts = vec![
        ("rounds".to_owned(), format!("the median of {} of {} s each", options.rounds, options.round.as_secs_f64())),
        ("round trips".to_owned(), "one site; its client is on the same machine".to_owned()),
        ("paper".to_owned(), "Samya gives no figure for one site alone".to_owned()),
    ];
    let (mut runs, mut epsilon) = (Vec::new(), EPSILON);
    for &callers in &options.callers {
        match &options.live {
            Some(live) => {
                let (both, site) = measure(options, live, callers)?;
                epsilon = site.epsilon;
                facts.retain(|(name, _)| name != "disk" && name != "floor");
                facts.push(("disk".to_owned(), format!("{}, {}", site.file_system, live.directory.display())));
                facts.push(floor::fact());
                runs.extend(both);
            }
            None => runs.push(simulate(options, callers)),
        }
    }
    let live = options.live.is_some();
    Ok(Report {
        workload: "hot".into(),
        mode: if live { Mode::Live } else { Mode::Sim },
        seed: options.seed,
        data: "generated".into(),
        epsilon_us: epsilon,
        cost_model: (!live).then(Costs::default),
        figures: vec![latency_figure(
            "hot-latency",
            runs.iter().map(|(run, latencies)| (run.config.as_str(), latencies)),
        )],
        runs: runs.into_iter().map(|(run, _)| run).collect(),
        verified: true,
        facts,
    })
}

/// One round's grants.
#[derive(Default)]
struct Round {
    seconds: f64,
    granted: u64,
    latencies: Histogram,
    syncs: u64,
}

impl Round {
    /// Grants in a second.
    fn speed(&self) -> f64 {
        self.granted as f64 / self.seconds
    }
}

/// A run, and the latencies to draw.
type Figures = (Run, Histogram);

/// The round with the median throughput, as a run.
fn report(config: String, callers: usize, rounds: Vec<Round>) -> Figures {
    let speeds: Vec<u64> = rounds.iter().map(|round| round.speed() as u64).collect();
    let Round { seconds, granted, latencies, syncs } = median(rounds, Round::speed);
    let mut run = Run::new(config);
    run.committed = granted;
    run.latency_ms = Latency::from(&latencies);
    (run.took(seconds).with("callers", callers).with("syncs", syncs).with("rounds_per_s", speeds), latencies)
}

/// What a real site says of itself.
struct About {
    file_system: String,
    epsilon: u64,
}

/// Measures a site and its floor.
fn measure(options: &HotOptions, live: &Live, callers: usize) -> Result<([Figures; 2], About), LiveError> {
    let scratch = Scratch::below(&live.directory)?;
    if live.binary.is_some() {
        scratch.refuse_memory()?;
    }
    let load = floor::load(Asked::Acquires, callers)?;
    let (binary, directory) = (live.binary.as_deref(), scratch.path());
    let site = Server::start(binary, &directory.join("site"))?;
    let beside = Server::start_floor(binary, &directory.join("floor"), &["here"], load)?;
    site.wait_ready()?;
    beside.wait_ready()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|source| LiveError::System { action: "start the client's runtime".into(), source })?;
    let [ours, floors] = runtime.block_on(drive(options, [&site, &beside], callers))?;

    let speeds = |rounds: &[Round]| rounds.iter().map(Round::speed).collect::<Vec<_>>();
    let (speeds_of_site, speeds_of_floor) = (speeds(&ours), speeds(&floors));
    let (run, latencies) = report(format!("callers-{callers}"), callers, ours);
    let run = floor::compare(run, &speeds_of_site, &speeds_of_floor)?;
    let (beside, latencies_beside) = report(format!("floor-{callers}"), callers, floors);
    let both = [(run, latencies), (floor::mark(beside, load), latencies_beside)];
    Ok((both, About { file_system: scratch.file_system.clone(), epsilon: site.epsilon()? }))
}

/// Runs the rounds, of the site and of the floor in turn.
async fn drive(options: &HotOptions, servers: [&Server; 2], callers: usize) -> Result<[Vec<Round>; 2], LiveError> {
    let [site, floor] = servers;
    let mut both = [Line::open(site).await?, Line::open(floor).await?];
    for line in &mut both {
        line.total += round(&line.quota, callers, WARM.min(options.round)).await?.0;
    }
    for _ in 0..options.rounds {
        both.iter_mut().for_each(|line| line.rounds.push(Round::default()));
        for _ in 0..SLICES {
            for line in &mut both {
                line.slice(callers, options.round / SLICES).await?;
            }
        }
    }
    let [site, floor] = both;
    Ok([site.close().await?, floor.close().await?])
}

/// The callers' way to a server, and what was done on it.
struct Line<'a> {
    server: &'a Server,
    client: Client,
    quota: Quota,
    /// All grants, of the rounds and of the time before.
    total: u64,
    rounds: Vec<Round>,
}

impl<'a> Line<'a> {
    async fn open(server: &'a Server) -> Result<Self, LiveError> {
        let client = Client::connect([server.address.to_string()]).await.map_err(failed)?;
        let quota = client.quota(NAME);
        quota.create(LIMIT).await.done().map_err(failed)?;
        Ok(Self { server, client, quota, total: 0, rounds: Vec::new() })
    }

    /// Adds a slice to the last round.
    async fn slice(&mut self, callers: usize, length: Duration) -> Result<(), LiveError> {
        let before = self.server.metric("slackline_sync_seconds_count")?;
        let began = Instant::now();
        let (granted, latencies) = round(&self.quota, callers, length).await?;
        let seconds = began.elapsed().as_secs_f64();
        let syncs = self.server.metric("slackline_sync_seconds_count")? - before;
        self.total += granted;
        if let Some(round) = self.rounds.last_mut() {
            round.seconds += seconds;
            round.granted += granted;
            round.latencies.add(&latencies);
            round.syncs += syncs as u64;
        }
        Ok(())
    }

    /// Checks that the server has just the grants that were told, and returns the rounds.
    async fn close(self) -> Result<Vec<Round>, LiveError> {
        let (shown, total) = (self.quota.show().await.map_err(failed)?, self.total);
        if shown.in_use.exact() != Some(total as i64) {
            let in_use = shown.in_use;
            return Err(LiveError::Failed(format!(
                "{total} grants were told, but the books have {in_use:?}; this is a bug"
            )));
        }
        self.client.close().await;
        Ok(self.rounds)
    }
}

/// All callers call for this long. Returns the grants, all of them, and their latencies.
async fn round(quota: &Quota, callers: usize, length: Duration) -> Result<(u64, Histogram), LiveError> {
    let latencies = Arc::new(Mutex::new(Histogram::default()));
    let end = Instant::now() + length;
    let call = |_| tokio::spawn(caller(quota.clone(), Arc::clone(&latencies), end));
    let calls: Vec<_> = (0..callers).map(call).collect();
    for call in calls {
        call.await.map_err(failed)??;
    }
    let latencies = Arc::into_inner(latencies).expect("every caller has ended").into_inner().expect("none panicked");
    Ok((latencies.count(), latencies))
}

/// One caller: acquires one token after the other.
async fn caller(quota: Quota, latencies: Arc<Mutex<Histogram>>, end: Instant) -> Result<(), LiveError> {
    let mut began = Instant::now();
    while began < end {
        match quota.acquire(1).await {
            Answered::Done(_) => {}
            other => return Err(LiveError::Failed(format!("an acquire was not granted: {other:?}"))),
        }
        let ended = Instant::now();
        latencies.lock().expect("none panicked").note((ended - began).as_nanos() as u64);
        began = ended;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> LiveError {
    LiveError::Failed(error.to_string())
}

/// The client of a simulated site: a batch is sent while none is under way.
struct Callers {
    count: usize,
    session: Option<(SiteId, Incarnation, SessionId)>,
    next: u64,
    sent: u64,
    created: bool,
    granted: u64,
    latencies: Histogram,
}

const CLIENT: ClientId = ClientId(1);

impl Callers {
    fn submit(&mut self, world: &mut World, operations: Vec<Operation>) {
        let (site, incarnation, session) = self.session.expect("opened first");
        let low = self.next;
        let submission =
            |(order, operation)| Submission { sequence: low + order as u64, timeout: 1_000_000, operation };
        let operations: Vec<_> = operations.into_iter().enumerate().map(submission).collect();
        self.next += operations.len() as u64;
        let batch = Batch { site, incarnation, session, low, operations };
        world.request(world.now() + LOOPBACK / 2, 0, CLIENT, Request::Batch(batch));
    }
}

impl Host for Callers {
    /// Every caller calls.
    fn wake(&mut self, world: &mut World, _: u64) {
        self.sent = world.now();
        let acquire = || Operation::Acquire { quota: NAME.into(), amount: 1, hold: Hold::Counted };
        self.submit(world, (0..self.count).map(|_| acquire()).collect());
    }

    fn respond(&mut self, world: &mut World, _: usize, _: ClientId, response: Response) {
        match response {
            Response::Opened { site, incarnation, session } => self.session = Some((site, incarnation, session)),
            Response::Batch { answers, .. } => {
                let is_grant = |outcome: &Outcome| matches!(outcome, Outcome::Granted { .. });
                let granted = answers.iter().filter(|answer| is_grant(&answer.outcome)).count() as u64;
                self.created |= answers.iter().any(|answer| matches!(answer.outcome, Outcome::Created { .. }));
                self.granted += granted;
                if granted > 0 {
                    let back = world.now() + LOOPBACK / 2;
                    self.latencies.note_many((back - self.sent) * 1_000, granted);
                    world.wake_at(back, 0);
                }
            }
            _ => {}
        }
    }
}

fn simulate(options: &HotOptions, callers: usize) -> Figures {
    let mut world = World::new(Options { epsilon: EPSILON, ..Options::uniform(1, 0, options.seed) });
    let mut host = Callers {
        count: callers.min(BATCH_OPERATIONS),
        session: None,
        next: 1,
        sent: 0,
        created: false,
        granted: 0,
        latencies: Histogram::default(),
    };
    let pass = |world: &mut World, host: &mut Callers, micros: u64| world.run(host, world.now() + micros);
    while world.node(0).is_none_or(|node| node.readiness() != Readiness::Ready) {
        pass(&mut world, &mut host, 10_000);
    }
    world.request(world.now(), 0, CLIENT, Request::Open);
    pass(&mut world, &mut host, 10_000);
    host.submit(&mut world, vec![Operation::Create { quota: NAME.into(), limit: LIMIT }]);
    pass(&mut world, &mut host, 100_000);
    assert!(host.created, "the quota must be created");
    world.wake_at(world.now(), 0);
    let mut rounds = Vec::with_capacity(options.rounds);
    let (inputs, clock) = (world.inputs(), Instant::now());
    for _ in 0..options.rounds {
        let (granted, syncs) = (host.granted, world.syncs());
        pass(&mut world, &mut host, options.round.as_micros() as u64);
        let latencies = std::mem::take(&mut host.latencies);
        let (granted, syncs) = (host.granted - granted, world.syncs() - syncs);
        rounds.push(Round { seconds: options.round.as_secs_f64(), granted, latencies, syncs });
    }
    let speed = (world.inputs() - inputs) as f64 / clock.elapsed().as_secs_f64();
    // What is under way is answered; the last answers make callers call again, and those calls are under way for ever.
    let booked = world.node(0).and_then(|node| node.chapters().quotas.find(NAME)).map_or(0, |quota| quota.used().0);
    let (least, most) = (u128::from(host.granted), u128::from(host.granted) + host.count as u128);
    assert!((least..=most).contains(&booked), "{booked} tokens are booked, {} grants were told", host.granted);
    let (run, latencies) = report(format!("callers-{callers}"), callers, rounds);
    (run.with("sim_inputs_per_s", speed as u64), latencies)
}
