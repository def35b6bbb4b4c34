//! `bench treaties`: what a treaty costs beside what it stands for, live, through the public client.
//!
//! Three sites, a process each, on this machine. Many callers share one client of the first region, each with one transaction under way,
//! and have their slices by turns, on the same sites:
//!
//! - `read`: a transaction reads one object that is at home in another region, under a warm warranty.
//! - `holds`: a transaction asks whether a treaty holds whose home is that region, and whose counters are in all three: the same right
//!   over one object, and the statement decoded from it.
//! - `add`: a transaction adds one to a counter of the callers' region, of which nobody says anything.
//! - `add-treaty`: the same to a counter of such a treaty: the bound is judged, and the estimate fed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slackline::{Client, Key, Metric, Options, Outcome, Treaty, TxnError};

use super::tally::share;
use crate::live::{LiveError, Server, runtime};
use crate::report::{Measured, Mode, Report, runs_and_figure};
use crate::turns::{Counted, Length, Line, Live, Role, Sum, by_turns, together};

/// Options of `bench treaties`.
#[derive(Clone, Debug)]
pub struct TreatiesOptions {
    /// The numbers of callers; four runs for each.
    pub callers: Vec<usize>,
    /// The length of a round, of each of the four.
    pub round: Duration,
    /// The number of rounds; the one with the median throughput is reported.
    pub rounds: usize,
    /// The seed that is reported; nothing here is random.
    pub seed: u64,
    /// The server to measure, and the place of its data.
    pub live: Live,
}

impl TreatiesOptions {
    /// 64 callers and one.
    pub fn new(live: Live) -> Self {
        Self { callers: vec![64, 1], round: Duration::from_secs(2), rounds: 5, seed: 1, live }
    }
}

/// The regions: the callers' first.
const REGIONS: [&str; 3] = ["here", "there", "far"];
/// Time before the first round that is not counted: warranties grow with the time for which an object was not written.
const WARM: Duration = Duration::from_secs(4);
/// What each counter of a treaty holds at first: more than all that could be taken away.
const PLENTY: i64 = 1 << 30;

/// The act of a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Holds,
    Add,
    AddTreaty,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Read, Self::Holds, Self::Add, Self::AddTreaty];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Holds => "holds",
            Self::Add => "add",
            Self::AddTreaty => "add-treaty",
        }
    }
}

/// Runs `bench treaties`.
///
/// # Errors
///
/// A site cannot be run, or does not do what it should.
pub fn treaties(options: &TreatiesOptions) -> Result<Report, LiveError> {
    let (mut measured, mut epsilon, mut disk) = (Vec::new(), 0, String::new());
    for &callers in &options.callers {
        let scratch = options.live.scratch()?;
        let sites = Server::start_cluster(options.live.binary.as_deref(), scratch.path(), &REGIONS)?;
        sites.iter().try_for_each(|server| server.wait_ready().map(drop))?;
        measured.extend(measure(options, &sites[0], callers)?);
        (epsilon, disk) = (sites[0].epsilon()?, options.live.disk(&scratch));
    }

    let (runs, figure) = runs_and_figure("treaties-latency", measured);
    Ok(Report {
        workload: "treaties".into(),
        mode: Mode::Live,
        seed: options.seed,
        data: "generated".into(),
        epsilon_us: epsilon,
        cost_model: None,
        runs,
        verified: true,
        facts: vec![
            ("workload".into(), "read an object or ask a treaty of another region, both under a warm right; add one to a counter, with and without a treaty".into()),
            ("ratio".into(), "holds to read and add-treaty to add: the median of the rounds' ratios".into()),
            ("rounds".into(), format!("the median of {} of {} s each, the four by turns", options.rounds, options.round.as_secs_f64())),
            ("round trips".into(), "three sites and the client are on the same machine; no delay is put in".into()),
            ("disk".into(), disk),
            ("paper".into(), "gives no figure for single operations".into()),
        ],
        figures: vec![figure],
    })
}

/// Measures the four, by turns.
fn measure(options: &TreatiesOptions, server: &Server, callers: usize) -> Result<Vec<Measured>, LiveError> {
    // Tests have short rounds, and wait for no warm warranty.
    let warm = WARM.min(2 * options.round);
    let length = Length { warm, round: options.round, rounds: options.rounds };
    let sums = runtime()?.block_on(async {
        let setting = Setting::prepare(server, callers).await?;
        let lines = Kind::ALL.map(|kind| Callers { setting: setting.clone(), kind });
        let mut sums = Vec::new();
        for turns in by_turns(length, [server; 4], lines).await? {
            sums.push(turns.close(Role::Site).await?);
        }
        setting.client.close().await;
        Ok::<_, LiveError>(sums)
    })?;

    let sums = Kind::ALL.iter().zip(sums);
    let sums: Vec<Sum> = sums.map(|(kind, rounds)| Sum::of(kind.name().to_owned(), callers, rounds)).collect();
    let ratios = [None, Some(sums[1].ratio_to(&sums[0])?), None, Some(sums[3].ratio_to(&sums[2])?)];
    let run = |(sum, ratio): (Sum, Option<f64>)| {
        let phases = serde_json::json!(sum.phases.map(|count| share(count, sum.run.committed)));
        let (mut run, latencies) = sum.alone();
        run.label = Some(format!("{}, {callers}", run.config));
        run.local_ratio = None;
        run.wan_messages = None;
        let run = run.with("phases", phases);
        (if let Some(ratio) = ratio { run.with("ratio", ratio) } else { run }, latencies)
    };
    Ok(sums.into_iter().zip(ratios).map(run).collect())
}

/// What the transactions of a number of callers are about.
#[derive(Clone)]
struct Setting {
    client: Client,
    /// What each caller reads, adds to, relies upon, and adds to under a treaty.
    of: Arc<Vec<Own>>,
}

/// One caller's objects and treaty.
struct Own {
    read: Key,
    plain: Key,
    treaty: Treaty,
    kept: Key,
}

impl Setting {
    /// Connects a client, writes the objects and makes the treaties.
    async fn prepare(server: &Server, callers: usize) -> Result<Self, LiveError> {
        let here = Options { region: Some(REGIONS[0].into()), ..Options::default() };
        let client = Client::connect_with([server.address.to_string()], here).await.map_err(LiveError::failed)?;
        let own = |caller: usize| {
            let counter = |region: &str| client.object(region, format!("kept/{caller:04}"));
            let sum: Metric = REGIONS.iter().map(|region| counter(region).metric()).sum();
            Own {
                read: client.object(REGIONS[1], format!("read/{caller:04}")),
                plain: client.object(REGIONS[0], format!("plain/{caller:04}")),
                treaty: client.treaty(&format!("kept-{caller:04}"), sum.at_least(1)).home(REGIONS[1]),
                kept: counter(REGIONS[0]),
            }
        };
        let of: Vec<Own> = (0..callers).map(own).collect();
        for (caller, own) in of.iter().enumerate() {
            let counters = REGIONS.map(|region| client.object(region, format!("kept/{caller:04}")));
            let counters = &counters;
            let put = client.transact(|txn| async move {
                txn.put(&own.read, &0u64)?;
                counters.iter().try_for_each(|counter| txn.add(counter, PLENTY))
            });
            put.await.map_err(|error: TxnError| LiveError::failed(error))?.done().map_err(LiveError::failed)?;
            own.treaty.create().await.done().map_err(LiveError::failed)?;
        }
        Ok(Self { client, of: Arc::new(of) })
    }
}

/// Callers of one kind.
struct Callers {
    setting: Setting,
    kind: Kind,
}

impl Line for Callers {
    async fn call(&mut self, length: Duration) -> Result<Counted, LiveError> {
        let end = Instant::now() + length;
        let call = |at: usize, counted| tokio::spawn(caller(self.setting.clone(), self.kind, at, counted, end));
        together(0..self.setting.of.len(), call).await
    }

    /// Checks that the counters hold what was told, and that the treaties stand.
    async fn close(self, _: Role, told: u64) -> Result<(), LiveError> {
        let Setting { client, of } = &self.setting;
        let keys: Vec<Key> = match self.kind {
            Kind::Add => of.iter().map(|own| own.plain.clone()).collect(),
            Kind::AddTreaty => of.iter().map(|own| own.kept.clone()).collect(),
            Kind::Read | Kind::Holds => Vec::new(),
        };
        let mut total = 0;
        for key in &keys {
            let counted = client.transact(|txn| async move { txn.count(key).await }).await;
            total += counted.map_err(|error: TxnError| LiveError::failed(error))?.done().map_err(LiveError::failed)?;
        }
        let (adds, base) = match self.kind {
            Kind::Add => (told as i64, 0),
            Kind::AddTreaty => (told as i64, PLENTY * of.len() as i64),
            Kind::Read | Kind::Holds => (0, 0),
        };
        if total != adds + base {
            return Err(LiveError::failed(format!(
                "{adds} adds were told, and the counters have {total}; this is a bug"
            )));
        }
        for own in of.iter() {
            if !own.treaty.valid().await.map_err(LiveError::failed)? {
                return Err(LiveError::failed(format!(
                    "treaty {} is not valid any more; this is a bug",
                    own.treaty.name()
                )));
            }
        }
        Ok(())
    }
}

/// One caller: one transaction after the other.
async fn caller(
    setting: Setting,
    kind: Kind,
    at: usize,
    counted: Arc<Mutex<Counted>>,
    end: Instant,
) -> Result<(), LiveError> {
    let own = &setting.of[at];
    let mut began = Instant::now();
    while began < end {
        let transaction = setting.client.transaction();
        let done = transaction.run_and_tell(|txn| async move {
            match kind {
                Kind::Read => txn.get::<u64>(&own.read).await.map(|read| read.is_some()),
                Kind::Holds => txn.holds(&own.treaty).await,
                Kind::Add => txn.add(&own.plain, 1).map(|()| true),
                Kind::AddTreaty => txn.add(&own.kept, 1).map(|()| true),
            }
        });

        let done = done.await.map_err(|error: TxnError| LiveError::failed(error))?;
        let ended = Instant::now();
        match done {
            Outcome::Done(committed) if committed.value => {
                counted.lock().expect("no caller panicked").note(&committed, ended - began);
            }
            other => return Err(LiveError::failed(format!("a transaction did not end as it must: {other:?}"))),
        }
        began = ended;
    }
    Ok(())
}
