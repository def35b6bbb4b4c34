//! `bench hot`: one quota that never runs out, one site, one client with many callers, each with one call in flight.
//!
//! Every call has a fresh operation id, and every grant is durable before it is told. Live, the server is a process of its
//! own on a real disk; each process has one thread for its network and its machine. The client sends a batch while
//! none is under way, or a few at a time for a crowd of callers. Beside it is a floor (the module `floor`), a process of its own too,
//! which is asked the same. In virtual time the same client's sessions are driven, over a site without a floor.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slackline::{Client, Outcome as Answered, Quota};
use slackline_core::api::{Hold, Outcome, Readiness, Response};
use slackline_core::clock::SECOND;
use slackline_core::machine::ClientId;
use slackline_session::command::Command;
use slackline_session::sessions::FRESH;
use slackline_session::time::Time;
use slackline_sim::Costs;
use slackline_sim::world::{Host, Options, World};

use crate::EPSILON;
use crate::client::{Ended, SiteClient};
use crate::floor::{self, Asked};
use crate::histogram::Histogram;
use crate::levels::{creations, leaf};
use crate::live::{LiveError, Server};
use crate::report::{Measured, Mode, Report, runs_and_figure};
pub use crate::turns::Live;
use crate::turns::{Counted, Length, Line, Pair, Role, Round, Sum, together};

/// Options of `bench hot`.
#[derive(Clone, Debug)]
pub struct HotOptions {
    /// The numbers of callers; one run for each.
    pub callers: Vec<usize>,
    /// The number of levels of the quota.
    pub levels: usize,
    /// The length of a round.
    pub round: Duration,
    /// The number of rounds; the one with the median throughput is reported.
    pub rounds: usize,
    /// The seed of every random choice.
    pub seed: u64,
    /// The server to measure for real; none for virtual time.
    pub live: Option<Live>,
}

impl Default for HotOptions {
    fn default() -> Self {
        Self { callers: vec![64], levels: 1, round: Duration::from_secs(2), rounds: 5, seed: 1, live: None }
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
/// The time that a simulated call may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The longest that a simulated site may take to become ready, in microseconds.
const PATIENCE: u64 = 60 * SECOND;
/// The client of a simulated site.
const CLIENT: ClientId = ClientId(1);
/// Wakes of a simulated world with this token let callers call; the others bring responses.
const CALL: u64 = 0;

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
    let (mut measured, mut epsilon, mut disk) = (Vec::new(), EPSILON, None);
    for &callers in &options.callers {
        match &options.live {
            Some(live) => {
                let pair = Pair::start(live, &["here"], Asked::Acquires, callers)?;
                measured.extend(measure(options, &pair, callers)?);
                (epsilon, disk) = (pair.epsilon()?, Some(pair.disk(live)));
            }
            None => measured.push(simulate(options, callers)),
        }
    }
    if let Some(disk) = disk {
        facts.push(("disk".to_owned(), disk));
        facts.push(floor::fact());
    }

    let live = options.live.is_some();
    let (runs, figure) = runs_and_figure("hot-latency", measured);
    Ok(Report {
        workload: "hot".into(),
        mode: if live { Mode::Live } else { Mode::Sim },
        seed: options.seed,
        data: "generated".into(),
        epsilon_us: epsilon,
        cost_model: (!live).then(Costs::default),
        figures: vec![figure],
        runs,
        verified: true,
        facts,
    })
}

/// Measures a site and its floor.
fn measure(options: &HotOptions, pair: &Pair, callers: usize) -> Result<[Measured; 2], LiveError> {
    let length = Length { warm: WARM.min(options.round), round: options.round, rounds: options.rounds };
    let [site, floor] = pair.measure(length, async |server| Callers::open(server, callers, options.levels).await)?;
    let site = Sum::of(format!("callers-{callers}"), callers, site);
    let floor = Sum::of(format!("floor-{callers}"), callers, floor);
    pair.compare([site, floor])
}

/// Callers of one client, who acquire tokens of one quota.
struct Callers {
    /// The client that they share.
    client: Client,
    /// The quota.
    quota: Quota,
    /// The number of callers.
    count: usize,
}

impl Callers {
    /// Connects a client, and creates the quota and those above it.
    async fn open(server: &Server, count: usize, levels: usize) -> Result<Self, LiveError> {
        let client = Client::connect([server.address.to_string()]).await.map_err(LiveError::failed)?;
        let mut parent = String::new();
        for level in 1..=levels {
            let name = leaf(NAME, level);
            client.quota(&name).create(LIMIT).below(&parent).await.done().map_err(LiveError::failed)?;
            parent = name;
        }
        let quota = client.quota(&parent);
        Ok(Self { client, quota, count })
    }
}

impl Line for Callers {
    async fn call(&mut self, length: Duration) -> Result<Counted, LiveError> {
        let end = Instant::now() + length;
        together(0..self.count, |_, counted| tokio::spawn(caller(self.quota.clone(), counted, end))).await
    }

    /// The books of either server have just the grants that were told.
    async fn close(self, _: Role, told: u64) -> Result<(), LiveError> {
        let shown = self.quota.show().await.map_err(LiveError::failed)?;
        if shown.in_use.exact() != i64::try_from(told).ok() {
            let in_use = shown.in_use;
            return Err(LiveError::failed(format!(
                "{told} grants were told, but the books have {in_use:?}; this is a bug"
            )));
        }
        self.client.close().await;
        Ok(())
    }
}

/// One caller: acquires one token after the other.
async fn caller(quota: Quota, counted: Arc<Mutex<Counted>>, end: Instant) -> Result<(), LiveError> {
    let mut began = Instant::now();
    while began < end {
        match quota.acquire(1).await {
            Answered::Done(_) => {}
            other => return Err(LiveError::failed(format!("an acquire was not granted: {other:?}"))),
        }
        let ended = Instant::now();
        counted.lock().expect("no caller panicked").latencies.note((ended - began).as_nanos() as u64);
        began = ended;
    }
    Ok(())
}

/// The callers of a simulated site, and their client. A request reaches the site half a round trip after it was sent, a response the
/// client half a round trip after it left.
struct Crowd {
    /// The number of callers.
    count: usize,
    /// The number of levels of the quota.
    levels: usize,
    /// Their client.
    client: SiteClient,
    /// Responses on their way, in the order in which they arrive.
    arriving: VecDeque<Response>,
    /// Callers whose call has ended, and who call again.
    idle: usize,
    /// True once the quota has been created.
    created: bool,
    /// Grants that were told.
    granted: u64,
    /// Latencies of grants, of the round that is under way.
    latencies: Histogram,
}

impl Crowd {
    /// Sends what the client has to send.
    fn send(&mut self, world: &mut World) {
        let now = Time(world.now());
        while let Some(request) = self.client.next_request(now) {
            world.request(world.now() + LOOPBACK / 2, 0, CLIENT, request);
        }
    }

    /// Has the client carry something out.
    fn submit(&mut self, world: &mut World, command: Command) {
        let taken = self.client.submit(command, Time(world.now()));
        taken.expect("fewer callers than the client takes in");
    }

    /// A response arrives.
    fn receive(&mut self, world: &mut World, response: Response) {
        let ended = self.client.receive(response, Time(world.now())).expect("a site alone does what it is asked");
        for Ended { submitted, outcome } in ended {
            match outcome {
                Outcome::Created { .. } => self.created = true,
                Outcome::Granted { .. } => {
                    self.granted += 1;
                    self.idle += 1;
                    self.latencies.note((Time(world.now()) - submitted).as_nanos() as u64);
                }
                other => panic!("there are more tokens than callers want: {other:?}"),
            }
        }
    }
}

impl Host for Crowd {
    fn wake(&mut self, world: &mut World, token: u64) {
        // Responses arrive in the order in which they left, all after the same time.
        if token != CALL
            && let Some(response) = self.arriving.pop_front()
        {
            self.receive(world, response);
        }

        // Callers whose calls ended together call again together, and travel in one batch.
        let quota: Arc<str> = leaf(NAME, self.levels).into();
        for _ in 0..std::mem::take(&mut self.idle) {
            self.submit(
                world,
                Command::Acquire { quota: Arc::clone(&quota), amount: 1, hold: Hold::Counted, waits: false },
            );
        }
        self.send(world);
    }

    fn respond(&mut self, world: &mut World, _: usize, _: ClientId, response: Response) {
        self.arriving.push_back(response);
        world.wake_at(world.now() + LOOPBACK / 2, CALL + 1);
    }
}

/// Measures a simulated site.
fn simulate(options: &HotOptions, callers: usize) -> Measured {
    let mut world = World::new(Options { epsilon: EPSILON, ..Options::uniform(1, 0, options.seed) });
    let mut crowd = Crowd {
        levels: options.levels,
        count: callers.min(FRESH),
        client: SiteClient::new(world.id(0), TIMEOUT),
        arriving: VecDeque::new(),
        idle: 0,
        created: false,
        granted: 0,
        latencies: Histogram::default(),
    };
    let pass = |world: &mut World, crowd: &mut Crowd, micros: u64| world.run(crowd, world.now() + micros);

    while world.node(0).is_none_or(|node| node.readiness() != Readiness::Ready) {
        assert!(world.now() < PATIENCE, "the site must become ready");
        pass(&mut world, &mut crowd, 10_000);
    }

    // A session first, then the quota.
    crowd.send(&mut world);
    pass(&mut world, &mut crowd, 10_000);
    for create in creations(&leaf(NAME, options.levels), LIMIT) {
        crowd.created = false;
        crowd.submit(&mut world, create);
        crowd.send(&mut world);
        pass(&mut world, &mut crowd, 100_000);
        assert!(crowd.created, "the quota must be created");
    }

    // All callers call at once; from here on each calls when it is answered.
    crowd.idle = crowd.count;
    world.wake_at(world.now(), CALL);
    let mut rounds = Vec::with_capacity(options.rounds);
    let (inputs, clock) = (world.inputs(), Instant::now());
    for _ in 0..options.rounds {
        let syncs = world.syncs();
        pass(&mut world, &mut crowd, options.round.as_micros() as u64);
        let counted = Counted { latencies: std::mem::take(&mut crowd.latencies), ..Counted::default() };
        rounds.push(Round { seconds: options.round.as_secs_f64(), counted, syncs: world.syncs() - syncs });
    }

    let speed = (world.inputs() - inputs) as f64 / clock.elapsed().as_secs_f64();

    // Each caller has a call under way in the end, which the site may have granted.
    let booked = world.node(0).and_then(|node| node.chapters().quotas.find(NAME)).map_or(0, |quota| quota.used().0);
    let (least, most) = (u128::from(crowd.granted), u128::from(crowd.granted) + crowd.count as u128);
    assert!((least..=most).contains(&booked), "{booked} tokens are booked, {} grants were told", crowd.granted);
    let (run, latencies) = Sum::of(format!("callers-{callers}"), callers, rounds).alone();
    (run.with("sim_inputs_per_s", speed as u64), latencies)
}
