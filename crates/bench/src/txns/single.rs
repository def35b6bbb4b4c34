//! `bench reads` and `bench writes`: transactions of one operation, live, through the public client.
//!
//! Two sites, a process each, on this machine. Many callers share one client, each with one transaction under way.
//!
//! - `reads`: a transaction reads one object that is at home in the other region. The callers' site holds a warranty over it,
//!   so it answers the read from its copy, and judges the transaction alone: 0 phases, no message, no sync.
//! - `writes`: a transaction writes one small object that is at home at the callers' site: 1 phase, synced before it is told.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slackline::{Client, Key, Options, Outcome, TxnError};
use tokio::runtime::Builder;

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
    /// Where to measure.
    pub live: Live,
}

impl SingleOptions {
    /// 64 callers and one.
    pub fn new(live: Live) -> Self {
        Self { callers: vec![64, 1], round: Duration::from_secs(2), rounds: 5, seed: 1, live }
    }
}

/// The regions: the callers' and the other one.
const REGIONS: [&str; 2] = ["here", "there"];
/// Time before the first round that is not counted: warranties grow with the time for which an object was not written.
const WARM: Duration = Duration::from_secs(4);

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
        let scratch = Scratch::below(&options.live.directory)?;
        if options.live.binary.is_some() {
            scratch.refuse_memory()?;
        }
        let sites = Server::start_cluster(options.live.binary.as_deref(), scratch.path(), &REGIONS)?;
        sites.iter().try_for_each(|site| site.wait_ready().map(drop))?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let rounds = runtime.block_on(drive(options, kind, &sites[0], callers))?;
        epsilon = sites[0].epsilon()?;
        disk = format!("{}, {}", scratch.file_system, options.live.directory.display());
        runs.push(report(callers, rounds));
    }
    let (name, what) = match kind {
        Kind::Read => (
            "reads",
            "one get of an object that is at home in another region, under a warm warranty; its site judges it in 0 phases",
        ),
        Kind::Write => ("writes", "one put of a small object at its home, synced before it is told, in 1 phase"),
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
            ("disk".into(), disk),
            ("paper".into(), "the Warranties paper gives no figure for single operations".into()),
        ],
        figures: vec![figure],
    })
}

/// What was done in one round.
struct Round {
    seconds: f64,
    phases: [u64; 3],
    runs: u64,
    latencies: Histogram,
    syncs: u64,
}

fn report(callers: usize, rounds: Vec<Round>) -> (Run, Histogram) {
    let speed = |round: &Round| round.latencies.count() as f64 / round.seconds;
    let speeds: Vec<u64> = rounds.iter().map(|round| speed(round) as u64).collect();
    let Round { seconds, phases, runs, latencies, syncs } = median(rounds, speed);
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

async fn drive(options: &SingleOptions, kind: Kind, site: &Server, callers: usize) -> Result<Vec<Round>, LiveError> {
    let here = Options { region: Some(REGIONS[0].into()), ..Options::default() };
    let client = Client::connect_with([site.address.to_string()], here).await.map_err(failed)?;
    let home = if kind == Kind::Read { REGIONS[1] } else { REGIONS[0] };
    let keys: Vec<Key> = (0..callers).map(|caller| client.object(home, format!("object/{caller:04}"))).collect();
    for key in &keys {
        let put = client.transact(|txn| async move { txn.put(key, &0u64) }).await.map_err(failed)?;
        put.done().map_err(failed)?;
    }
    let mut told = round(&client, kind, &keys, WARM.min(2 * options.round), 0).await?.latencies.count();
    let mut rounds = Vec::with_capacity(options.rounds);
    for order in 0..options.rounds {
        let before = site.metric("slackline_sync_seconds_count")?;
        let began = Instant::now();
        let Counted { phases, runs, latencies } = round(&client, kind, &keys, options.round, order as u64 + 1).await?;
        let seconds = began.elapsed().as_secs_f64();
        let syncs = site.metric("slackline_sync_seconds_count")? - before;
        told += latencies.count();
        rounds.push(Round { seconds, phases, runs, latencies, syncs: syncs as u64 });
    }
    verify(&client, kind, &keys, told).await?;
    client.close().await;
    Ok(rounds)
}

/// What the objects hold in the end is what was told: every write counts its object up.
async fn verify(client: &Client, kind: Kind, keys: &[Key], told: u64) -> Result<(), LiveError> {
    let read = client.transact(|txn| async move { txn.get_many::<u64>(keys).await }).await.map_err(failed)?;
    let total: u64 = read.done().map_err(failed)?.into_iter().flatten().sum();
    let expected = if kind == Kind::Write { told } else { 0 };
    if total == expected {
        return Ok(());
    }
    Err(LiveError::Failed(format!("{expected} writes were told, and the objects have {total}; this is a bug")))
}

/// All callers call for this long.
async fn round(client: &Client, kind: Kind, keys: &[Key], length: Duration, order: u64) -> Result<Counted, LiveError> {
    let counted = Arc::new(Mutex::new(Counted::default()));
    let end = Instant::now() + length;
    let call = |key: &Key| tokio::spawn(caller(client.clone(), kind, key.clone(), Arc::clone(&counted), end));
    let calls: Vec<_> = keys.iter().map(call).collect();
    for call in calls {
        call.await.map_err(failed)??;
    }
    let counted = Arc::into_inner(counted).expect("every caller has ended").into_inner().expect("none panicked");
    if order > 0 && counted.latencies.count() == 0 {
        return Err(LiveError::Failed("nothing was committed in a round".into()));
    }
    Ok(counted)
}

/// One caller: one transaction after the other.
async fn caller(
    client: Client,
    kind: Kind,
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
                transaction.run_and_tell(|txn| async move { txn.put(key, &present) }).await
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

fn failed(error: impl std::fmt::Display) -> LiveError {
    LiveError::Failed(error.to_string())
}
