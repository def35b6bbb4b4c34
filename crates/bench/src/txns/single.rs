//! `bench reads` and `bench writes`: transactions of one operation, live, through the public client.
//!
//! Two sites, a process each, on this machine. Many callers share one client, each with one transaction under way.
//!
//! - `reads`: a transaction reads one object that is at home in the other region. The callers' site holds a warranty over it,
//!   so it answers the read from its copy, and judges the transaction alone: 0 phases, no message, no sync.
//! - `writes`: a transaction writes one object that is at home at the callers' site: 1 phase, synced before it is told.
//!
//! Beside the callers' site is its floor (the module `floor`), a process too, which is asked the same.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slackline::{Client, Key, Options, Outcome, TxnError};
use tokio::runtime::Builder;

use crate::floor::{self, Asked, SLICES};
use crate::histogram::Histogram;
use crate::hot::Live;
use crate::live::{LiveError, Scratch, Server};
use crate::median;
use crate::report::{Latency, Mode, Report, Run, latency_figure};

/// What `bench reads` and `bench writes` are told.
#[derive(Clone, Debug)]
pub struct SingleOptions {
    /// How many callers there are; one run for each number.
    pub callers: Vec<usize>,
    /// How long each round lasts.
    pub round: Duration,
    /// How many rounds there are; the one with the median throughput is reported.
    pub rounds: usize,
    /// The seed that is reported; nothing here is random.
    pub seed: u64,
    /// The size of the values that are written, in bytes; numbers as short as they are, if it is less.
    pub value_bytes: usize,
    /// Where to measure.
    pub live: Live,
}

impl SingleOptions {
    /// 64 callers and one, small values.
    pub fn new(live: Live) -> Self {
        Self { callers: vec![64, 1], round: Duration::from_secs(2), rounds: 5, seed: 1, value_bytes: 0, live }
    }
}

/// The regions: the callers' and the other one.
const REGIONS: [&str; 2] = ["here", "there"];
/// Time before the first round that is not counted: warranties grow with the time for which an object was not written.
const WARM: Duration = Duration::from_secs(4);

/// The size of a number that is written, about, in bytes.
const NUMBER_BYTES: usize = 4;

/// What a transaction does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

/// Runs `bench reads`.
pub fn reads(options: &SingleOptions) -> Result<Report, LiveError> {
    run(options, Kind::Read)
}

/// Runs `bench writes`.
pub fn writes(options: &SingleOptions) -> Result<Report, LiveError> {
    run(options, Kind::Write)
}

fn run(options: &SingleOptions, kind: Kind) -> Result<Report, LiveError> {
    let mut runs = Vec::new();
    let (mut epsilon, mut disk) = (0, String::new());
    for &callers in &options.callers {
        let (both, about) = measure(options, kind, callers)?;
        runs.extend(both);
        (epsilon, disk) = (about.epsilon, format!("{}, {}", about.file_system, options.live.directory.display()));
    }
    let (name, what) = match kind {
        Kind::Read => (
            "reads",
            "one get of an object that is at home in another region, under a warm warranty; its site judges it in 0 phases",
        ),
        Kind::Write => ("writes", "one put of an object at its home, synced before it is told, in 1 phase"),
    };
    let values = match options.value_bytes {
        0 => "numbers, of a few bytes each".to_owned(),
        bytes => format!("{bytes} bytes each"),
    };
    let figure = latency_figure(
        &format!("{name}-latency"),
        runs.iter().map(|(run, latencies): &(Run, Histogram)| (run.config.as_str(), latencies)),
    );
    Ok(Report {
        workload: name.into(),
        mode: Mode::Live,
        seed: options.seed,
        data: "generated".into(),
        epsilon_us: epsilon,
        cost_model: None,
        runs: runs.into_iter().map(|(run, _)| run).collect(),
        verified: true,
        facts: vec![
            ("workload".into(), what.into()),
            ("rounds".into(), format!("the median of {} of {} s each", options.rounds, options.round.as_secs_f64())),
            ("round trips".into(), "two sites and the client are on the same machine; no delay is put in".into()),
            ("values".into(), values),
            ("disk".into(), disk),
            floor::fact(),
            ("paper".into(), "the Warranties paper gives no figure for single operations".into()),
        ],
        figures: vec![figure],
    })
}

/// What was done in one round.
#[derive(Default)]
struct Round {
    seconds: f64,
    phases: [u64; 3],
    runs: u64,
    latencies: Histogram,
    syncs: u64,
}

impl Round {
    /// Transactions in a second.
    fn speed(&self) -> f64 {
        self.latencies.count() as f64 / self.seconds
    }
}

/// What a real site says of itself.
struct About {
    file_system: String,
    epsilon: u64,
}

/// Measures a site and its floor.
fn measure(options: &SingleOptions, kind: Kind, callers: usize) -> Result<([(Run, Histogram); 2], About), LiveError> {
    let scratch = Scratch::below(&options.live.directory)?;
    if options.live.binary.is_some() {
        scratch.refuse_memory()?;
    }
    let asked = match kind {
        Kind::Read => Asked::Reads,
        Kind::Write => Asked::Writes { bytes: options.value_bytes.max(NUMBER_BYTES) },
    };
    let load = floor::load(asked, callers)?;
    let (binary, directory) = (options.live.binary.as_deref(), scratch.path());
    let sites = Server::start_cluster(binary, directory, &REGIONS)?;
    let beside = Server::start_floor(binary, &directory.join("floor"), &REGIONS, load)?;
    sites.iter().chain([&beside]).try_for_each(|site| site.wait_ready().map(drop))?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let [ours, floors] = runtime.block_on(drive(options, kind, [&sites[0], &beside], callers))?;

    let speeds = |rounds: &[Round]| rounds.iter().map(Round::speed).collect::<Vec<_>>();
    let (speeds_of_site, speeds_of_floor) = (speeds(&ours), speeds(&floors));
    let (run, latencies) = report(callers, ours);
    let run = floor::compare(run, &speeds_of_site, &speeds_of_floor)?;
    let (mut beside, latencies_beside) = report(callers, floors);
    beside.config = format!("floor-{callers}");
    // A floor knows neither phases nor aborts.
    beside.more.retain(|name, _| !["phases", "abort_rate"].contains(&name.as_str()));
    let both = [(run, latencies), (floor::mark(beside, load), latencies_beside)];
    Ok((both, About { file_system: scratch.file_system.clone(), epsilon: sites[0].epsilon()? }))
}

fn report(callers: usize, rounds: Vec<Round>) -> (Run, Histogram) {
    let speeds: Vec<u64> = rounds.iter().map(|round| round.speed() as u64).collect();
    let Round { seconds, phases, runs, latencies, syncs } = median(rounds, Round::speed);
    let mut run = Run::new(format!("callers-{callers}"));
    run.committed = latencies.count();
    run.latency_ms = Latency::from(&latencies);
    let share = |count: u64, of: u64| super::tally::rounded(count as f64 / of.max(1) as f64);
    let committed = run.committed;
    run.local_ratio = Some(share(phases[0], committed));
    let run = run
        .took(seconds)
        .with("callers", callers)
        .with("phases", serde_json::json!(phases.map(|count| share(count, committed))))
        .with("abort_rate", share(runs - committed, runs))
        .with("syncs", syncs)
        .with("rounds_per_s", speeds);
    (run, latencies)
}

/// Where the callers of a client meet.
#[derive(Default)]
struct Counted {
    phases: [u64; 3],
    runs: u64,
    latencies: Histogram,
}

/// Runs the rounds, of the site and of the floor in turn.
async fn drive(
    options: &SingleOptions,
    kind: Kind,
    servers: [&Server; 2],
    callers: usize,
) -> Result<[Vec<Round>; 2], LiveError> {
    let [site, floor] = servers;
    let load = Load { kind, value_bytes: options.value_bytes };
    let mut both = [Line::open(site, load, callers).await?, Line::open(floor, load, callers).await?];
    for line in &mut both {
        line.told += line.counted(WARM.min(2 * options.round)).await?.latencies.count();
    }
    for _ in 0..options.rounds {
        both.iter_mut().for_each(|line| line.rounds.push(Round::default()));
        for _ in 0..SLICES {
            for line in &mut both {
                line.slice(options.round / SLICES).await?;
            }
        }
    }
    let [site, floor] = both;
    verify_site(&site).await?;
    verify_floor(&floor).await?;
    site.client.close().await;
    floor.client.close().await;
    Ok([site.rounds, floor.rounds])
}

/// What callers ask.
#[derive(Clone, Copy)]
struct Load {
    kind: Kind,
    value_bytes: usize,
}

/// The callers' way to a server, and what was done on it.
struct Line<'a> {
    server: &'a Server,
    client: Client,
    keys: Vec<Key>,
    load: Load,
    /// All transactions that were committed, of the rounds and of the time before.
    told: u64,
    rounds: Vec<Round>,
}

impl<'a> Line<'a> {
    async fn open(server: &'a Server, load: Load, callers: usize) -> Result<Self, LiveError> {
        let here = Options { region: Some(REGIONS[0].into()), ..Options::default() };
        let client = Client::connect_with([server.address.to_string()], here).await.map_err(failed)?;
        let home = if load.kind == Kind::Read { REGIONS[1] } else { REGIONS[0] };
        let keys: Vec<Key> = (0..callers).map(|caller| client.object(home, format!("object/{caller:04}"))).collect();
        for key in &keys {
            let put = client.transact(|txn| async move { txn.put(key, &0u64) }).await.map_err(failed)?;
            put.done().map_err(failed)?;
        }
        Ok(Self { server, client, keys, load, told: 0, rounds: Vec::new() })
    }

    /// Adds a slice to the last round.
    async fn slice(&mut self, length: Duration) -> Result<(), LiveError> {
        let before = self.server.metric("slackline_sync_seconds_count")?;
        let began = Instant::now();
        let Counted { phases, runs, latencies } = self.counted(length).await?;
        let seconds = began.elapsed().as_secs_f64();
        let syncs = self.server.metric("slackline_sync_seconds_count")? - before;
        self.told += latencies.count();
        if let Some(round) = self.rounds.last_mut() {
            round.seconds += seconds;
            round.phases.iter_mut().zip(phases).for_each(|(all, some)| *all += some);
            round.runs += runs;
            round.latencies.add(&latencies);
            round.syncs += syncs as u64;
        }
        Ok(())
    }

    /// All callers call for this long.
    async fn counted(&mut self, length: Duration) -> Result<Counted, LiveError> {
        let counted = Arc::new(Mutex::new(Counted::default()));
        let (client, load, end) = (&self.client, self.load, Instant::now() + length);
        let call = |key: &Key| tokio::spawn(caller(client.clone(), load, key.clone(), Arc::clone(&counted), end));
        let calls: Vec<_> = self.keys.iter().map(call).collect();
        for call in calls {
            call.await.map_err(failed)??;
        }
        Ok(Arc::into_inner(counted).expect("every caller has ended").into_inner().expect("none panicked"))
    }
}

/// What the objects hold in the end is what was told: every write counts its object up.
async fn verify_site(line: &Line<'_>) -> Result<(), LiveError> {
    let keys = &line.keys;
    let read = line.client.transact(|txn| async move { txn.get_many::<u64>(keys).await }).await.map_err(failed)?;
    let total: u64 = read.done().map_err(failed)?.into_iter().flatten().sum();
    let expected = if line.load.kind == Kind::Write { line.told } else { 0 };
    if total == expected {
        return Ok(());
    }
    Err(LiveError::Failed(format!("{expected} writes were told, and the objects have {total}; this is a bug")))
}

/// A floor keeps no objects, but it counts what it has done: each object was made, and each transaction was told.
async fn verify_floor(line: &Line<'_>) -> Result<(), LiveError> {
    let shown = line.client.quota("floor").show().await.map_err(failed)?;
    let (done, expected) = (shown.in_use, line.keys.len() as u64 + line.told);
    if done.exact() == i64::try_from(expected).ok() {
        return Ok(());
    }
    Err(LiveError::Failed(format!("{expected} transactions were told, and the floor has done {done:?}; this is a bug")))
}

/// One caller: one transaction after the other.
async fn caller(
    client: Client,
    Load { kind, value_bytes }: Load,
    key: Key,
    counted: Arc<Mutex<Counted>>,
    end: Instant,
) -> Result<(), LiveError> {
    let key = &key;
    // Nobody else writes the object, so its writer knows what it holds.
    let mut present = match kind {
        Kind::Read => 0,
        Kind::Write => {
            let read = client.transact(|txn| async move { txn.get::<u64>(key).await }).await.map_err(failed)?;
            read.done().map_err(failed)?.unwrap_or(0)
        }
    };
    let mut began = Instant::now();
    while began < end {
        let transaction = client.transaction();
        let done = match kind {
            Kind::Read => transaction.run_and_tell(|txn| async move { txn.get::<u64>(key).await.map(drop) }).await,
            Kind::Write => {
                present += 1;
                let value = &number(present, value_bytes);
                transaction.run_and_tell(|txn| async move { txn.put_bytes(key, value.as_slice()) }).await
            }
        };
        let ended = Instant::now();
        match done.map_err(|error: TxnError| failed(error))? {
            Outcome::Done(committed) => {
                let mut counted = counted.lock().expect("none panicked");
                counted.phases[usize::from(committed.phases.min(2))] += 1;
                counted.runs += u64::from(committed.runs);
                counted.latencies.note((ended - began).as_nanos() as u64);
            }
            other => return Err(LiveError::Failed(format!("a transaction was not committed: {other:?}"))),
        }
        began = ended;
    }
    Ok(())
}

/// A number as an object's value, with blanks before it that make it as long as it should be, and mean nothing.
fn number(number: u64, bytes: usize) -> Vec<u8> {
    let digits = number.to_string();
    let mut value = vec![b' '; bytes.saturating_sub(digits.len())];
    value.extend_from_slice(digits.as_bytes());
    value
}

fn failed(error: impl std::fmt::Display) -> LiveError {
    LiveError::Failed(error.to_string())
}
