//! Workloads of transactions: each is written once, as programs over the client's [`Txn`](slackline::Txn), and runs in
//! virtual time or against real sites.
//!
//! A workload has objects to begin with, a step that each client repeats, and a check of what is there in the end. A client
//! has one transaction under way, at the site of its region, and begins the next when it knows the outcome (a *closed loop*).
//! The configurations of one report have the same seed and clients:
//!
//! | configuration | what it is |
//! | --- | --- |
//! | `occ` | no warranties: every read is validated at its home. The same copies at sites, and the same batched reads |
//! | `state` | warranties over the values of objects |
//! | `computation` | and kept results of memoized functions: the product. Only where a workload has such |
//!
//! `courses` can be compared with other systems, its baselines, which have further runs in the same report.
//!
//! | module | what it is about |
//! | --- | --- |
//! | `stage` | programs in virtual time |
//! | `real` | programs against real sites |
//! | `tally` | what is counted, and the report's figures |
//! | `twitter`, `oo7`, `bank`, `courses` | workloads |
//! | [`single`] | `reads` and `writes`: one operation, live |

mod bank;
mod courses;
mod oo7;
mod real;
pub mod single;
mod stage;
mod tally;
mod twitter;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use slackline::{Committed, Key, Outcome, SiteId, Topology, Transaction, TxnError, Value};
use slackline_core::config::Warranties;
use slackline_core::stats::Rng;
use slackline_session::port::Port;
use slackline_session::time::Time;
use slackline_session::txn::Memos;
use slackline_sim::Costs;
use slackline_sim::world::Options;

use crate::histogram::Histogram;
use crate::live::LiveError;
use crate::report::Run;
pub use bank::{BankOptions, bank};
pub use courses::{Baseline, CoursesOptions, courses};
pub use oo7::{Oo7Options, oo7};
use stage::Stage;
use tally::{Tally, Window};
pub use twitter::{TwitterOptions, twitter};

/// What an object costs that is read, told, validated or written, in nanoseconds of a site's processor: measured of a real
/// site (`docs/src/benchmarks.md`).
pub(crate) const OBJECT_NS: u64 = 1_000;
/// The bound on each clock's error that the sites are told, in microseconds.
const EPSILON: u64 = 10_000;
/// How long a transaction may take in all.
const DEADLINE: Duration = Duration::from_secs(30);
/// How many objects a transaction writes that loads them.
const LOAD: usize = 500;

/// What transactions stand on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Config {
    /// Optimistic concurrency control alone.
    Occ,
    /// With warranties over the values of objects.
    State,
    /// And with kept results of memoized functions.
    Computation,
}

impl Config {
    /// Those of a workload that calls no memoized function.
    pub const PLAIN: [Self; 2] = [Self::Occ, Self::State];
    /// All that there are.
    pub const ALL: [Self; 3] = [Self::Occ, Self::State, Self::Computation];

    fn warranties(self) -> Warranties {
        match self {
            Self::Occ => Warranties::Off,
            Self::State | Self::Computation => Warranties::State,
        }
    }
}

/// How the values of an enumeration are written and read.
macro_rules! named {
    ($type:ident is a $what:literal: $one:ident $name:literal $(, $other:ident $others:literal)*) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    Self::$one => $name,
                    $(Self::$other => $others,)*
                })
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $name => Ok(Self::$one),
                    $($others => Ok(Self::$other),)*
                    _ => {
                        let names = [$name $(, $others)*].join(" or ");
                        Err(format!("{text:?} is no {}: use {names}", $what))
                    }
                }
            }
        }
    };
}
use named;

named!(Config is a "configuration": Occ "occ", State "state", Computation "computation");

/// Why a workload of transactions found nothing out.
#[derive(Debug, thiserror::Error)]
pub enum TxnsError {
    /// An option makes no sense.
    #[error("{0}")]
    Option(String),
    /// Real sites cannot be run here.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The data are wrong after a run: a bug of Slackline.
    #[error("the data are wrong after the run {config}: {what}; this is a bug, report it with the options")]
    Wrong {
        /// The configuration.
        config: String,
        /// What does not add up.
        what: String,
    },
}

/// How a workload is run: what all of them are told.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The configurations, one run each.
    pub configs: Vec<Config>,
    /// How many clients each store has.
    pub clients_per_store: usize,
    /// The round trip between stores.
    pub rtt: Duration,
    /// How long is counted.
    pub measure: Duration,
    /// What every random choice comes from.
    pub seed: u64,
    /// Real sites, with their data below this directory.
    pub live: Option<PathBuf>,
}

impl Terms {
    /// In virtual time, with the first seed.
    fn new(configs: &[Config], clients_per_store: usize, rtt_ms: u64, measure_ms: u64) -> Self {
        let (rtt, measure) = (Duration::from_millis(rtt_ms), Duration::from_millis(measure_ms));
        Self { configs: configs.to_vec(), clients_per_store, rtt, measure, seed: 1, live: None }
    }

    /// One run, of which nothing is counted at first.
    fn setting(&self, config: Config, stores: usize, warm: Duration) -> Setting {
        let Self { clients_per_store, rtt, measure, seed, ref live, .. } = *self;
        Setting { config, stores, clients_per_store, rtt, warm, measure, seed, live: live.clone() }
    }

    /// That a workload has no memoized function.
    fn refuse_computation(&self) -> Result<(), TxnsError> {
        let why = "this workload calls no memoized function: use --config occ or --config state";
        if self.configs.contains(&Config::Computation) { Err(TxnsError::Option(why.into())) } else { Ok(()) }
    }
}

/// The sites and clients of a run, and how long it is.
#[derive(Clone, Debug)]
struct Setting {
    config: Config,
    stores: usize,
    clients_per_store: usize,
    rtt: Duration,
    /// Time before anything is counted, and for which it is.
    warm: Duration,
    measure: Duration,
    seed: u64,
    /// Real sites, with their data below this directory.
    live: Option<PathBuf>,
}

impl Setting {
    /// Whether clients use kept results of memoized functions.
    fn memoizes(&self) -> bool {
        self.config == Config::Computation
    }

    /// The site of each client.
    fn clients(&self) -> Vec<usize> {
        (0..self.stores * self.clients_per_store).map(|client| client % self.stores).collect()
    }

    fn costs(&self) -> Option<Costs> {
        self.live.is_none().then(|| Costs { object_ns: OBJECT_NS, ..Costs::default() })
    }

    fn topology(&self) -> Topology {
        let regions: Vec<String> = (0..self.stores).map(region).collect();
        let site = |(at, name): (usize, &String)| slackline::Site {
            id: SiteId::new(at as u16, 0),
            name: name.clone(),
            address: String::new(),
        };
        let sites = regions.iter().enumerate().map(site).collect();
        Topology { cluster: "bench".into(), regions, lanes: 1, sites }
    }

    /// Runs a workload, and checks its data.
    fn run<W: Workload>(&self, workload: W) -> Result<(Run, Histogram), TxnsError> {
        match &self.live {
            Some(directory) => real::run(self, workload, directory),
            None => self.simulate(workload),
        }
    }

    /// The memoized functions of a new client; whether it uses kept results.
    fn memos(&self) -> Arc<Memos> {
        let memos = Memos::default();
        if !self.memoizes() {
            memos.turn_off();
        }
        Arc::new(memos)
    }

    fn wrong(&self, what: String) -> TxnsError {
        TxnsError::Wrong { config: self.config.to_string(), what }
    }

    fn simulate<W: Workload>(&self, workload: W) -> Result<(Run, Histogram), TxnsError> {
        let rtt = self.rtt.as_micros() as u64;
        let options = Options {
            costs: self.costs().unwrap_or_default(),
            epsilon: EPSILON,
            warranties: self.config.warranties(),
            ..Options::uniform(self.stores, rtt, self.seed)
        };
        let mut stage = Stage::new(options, Arc::new(self.topology()), &self.clients());
        let workload = Rc::new(workload);
        let tally = Rc::new(RefCell::new(Tally::new(Some(stage.delays()))));
        let seats: Vec<Seat> = self
            .clients()
            .iter()
            .enumerate()
            .map(|(at, &site)| Seat::new(at, site, stage.port(at), self.memos()))
            .collect();
        for (site, seat) in seats.iter().take(self.stores).enumerate() {
            stage.spawn(load(Rc::clone(&workload), seat.clone(), site, Rc::clone(&tally)));
        }
        stage.finish();
        let window = Window::after(seats[0].now(), self.warm, self.measure);
        for seat in &seats {
            let rng = Rng::new(self.seed ^ (seat.client as u64 + 1) << 20);
            stage.spawn(client(Rc::clone(&workload), seat.clone(), rng, window, Rc::clone(&tally)));
        }
        let worked = |stage: &Stage| -> Vec<u64> { (0..self.stores).map(|site| stage.world.worked(site)).collect() };
        stage.pass(self.warm.as_micros() as u64);
        let before = (stage.world.wan_messages(), worked(&stage), stage.world.inputs(), Instant::now());
        stage.pass(self.measure.as_micros() as u64);
        let sent = stage.world.wan_messages() - before.0;
        let busiest = worked(&stage).iter().zip(&before.1).map(|(after, before)| after - before).max().unwrap_or(0);
        let speed = (stage.world.inputs() - before.2) as f64 / before.3.elapsed().as_secs_f64();
        stage.finish();
        stage.spawn(verify(Rc::clone(&workload), seats[0].clone(), Rc::clone(&tally)));
        stage.finish();

        let tally = tally.take();
        tally.failure.clone().map_or(Ok(()), |what| Err(self.wrong(what)))?;
        let (run, latencies) = tally.report(self, Some(sent));
        let share = busiest as f64 / self.measure.as_micros() as f64;
        let run = run.with("store_cpu_share", tally::rounded(share)).with("sim_inputs_per_s", speed as u64);
        Ok((workload.tell(run), latencies))
    }
}

/// Runs each of several settings, in virtual time as many at once as there are processors; in their order.
fn run_each<T: Sync, R: Send>(jobs: &[T], is_live: bool, run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let at_once = if is_live { 1 } else { thread::available_parallelism().map_or(1, usize::from) };
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..at_once.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Relaxed);
                    let Some(job) = jobs.get(at) else { return };
                    let found = run(job);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, found));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, found)| found).collect()
}

/// The name of the region of a store.
fn region(store: usize) -> String {
    format!("store-{}", store + 1)
}

/// Where a client sits: its number, its site, and what its transactions stand on.
#[derive(Clone)]
struct Seat {
    client: usize,
    site: usize,
    region: String,
    port: Arc<dyn Port>,
    memos: Arc<Memos>,
}

impl Seat {
    fn new(client: usize, site: usize, port: Arc<dyn Port>, memos: Arc<Memos>) -> Self {
        Self { client, site, region: region(site), port, memos }
    }

    fn now(&self) -> Time {
        self.port.now()
    }

    /// A transaction at the client's site.
    fn transaction(&self) -> Transaction {
        Transaction::over(Arc::clone(&self.port), Arc::clone(&self.memos)).at(&self.region).deadline(DEADLINE)
    }
}

/// How one step of a client ended.
struct Step {
    outcome: Outcome<Committed<()>>,
    writes: bool,
}

/// See the module.
trait Workload: 'static {
    /// The objects of a store before the first step.
    fn objects(&self, store: usize) -> Vec<(Key, Value)>;

    /// One transaction of a client.
    ///
    /// # Errors
    ///
    /// An object does not hold what it should.
    async fn step(&self, seat: &Seat, rng: &mut Rng) -> Result<Step, TxnError>;

    /// Whether the data are right in the end.
    async fn verify(&self, seat: &Seat) -> Result<(), String>;

    /// Adds what only this workload knows.
    fn tell(&self, run: Run) -> Run {
        run
    }
}

/// Writes the objects of a store.
async fn load<W: Workload>(workload: Rc<W>, seat: Seat, store: usize, tally: Rc<RefCell<Tally>>) {
    let objects = workload.objects(store);
    for chunk in objects.chunks(LOAD) {
        let written = seat.transaction().run(|txn| async move {
            for (key, value) in chunk {
                match value {
                    Value::Bytes(bytes) => txn.put_bytes(key, bytes.clone())?,
                    Value::Counter(count) => txn.put_count(key, *count)?,
                    Value::Derived(_) => unreachable!("no workload begins with one"),
                }
            }
            Ok::<_, TxnError>(())
        });
        match written.await {
            Ok(Outcome::Done(())) => {}
            other => return tally.borrow_mut().fail(format!("the objects cannot be written: {other:?}")),
        }
    }
}

/// One client: step after step, until the window is over.
async fn client<W: Workload>(workload: Rc<W>, seat: Seat, mut rng: Rng, window: Window, tally: Rc<RefCell<Tally>>) {
    loop {
        let began = seat.now();
        if began >= window.end {
            return;
        }
        let step = workload.step(&seat, &mut rng).await;
        tally.borrow_mut().note(window, seat.site, (began, seat.now()), step);
    }
}

async fn verify<W: Workload>(workload: Rc<W>, seat: Seat, tally: Rc<RefCell<Tally>>) {
    if let Err(what) = workload.verify(&seat).await {
        tally.borrow_mut().fail(what);
    }
}

/// Reads all objects under these names in one transaction.
async fn read_all(seat: &Seat, keys: &[Key]) -> Result<Vec<Option<Value>>, String> {
    let read = seat.transaction().run(|txn| async move { txn.values(keys).await }).await;
    match read {
        Ok(Outcome::Done(values)) => Ok(values),
        other => Err(format!("the objects cannot be read: {other:?}")),
    }
}

/// Both of two, at the same time.
async fn both<F: Future>(one: F, other: F) -> (F::Output, F::Output) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(output) = one.as_mut().poll(context)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = other.as_mut().poll(context)
        {
            second = Some(output);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}
