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

use super::tally::share;
use crate::floor::{self, Asked};
use crate::live::{LiveError, Server};
use crate::report::{Measured, Mode, Report, runs_and_figure};
use crate::turns::{Counted, Length, Line, Live, Pair, Role, Sum, together};

/// Options of `bench reads` and `bench writes`.
#[derive(Clone, Debug)]
pub struct SingleOptions {
    /// The numbers of callers; one run for each.
    pub callers: Vec<usize>,
    /// The length of a round.
    pub round: Duration,
    /// The number of rounds; the one with the median throughput is reported.
    pub rounds: usize,
    /// The seed that is reported; nothing here is random.
    pub seed: u64,
    /// The size of the values that are written, in bytes; numbers as short as they are, if it is less.
    pub value_bytes: usize,
    /// The server to measure, and the place of its data.
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

/// The act of a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Reads an object.
    Read,
    /// Writes one.
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

/// Runs either.
fn run(options: &SingleOptions, kind: Kind) -> Result<Report, LiveError> {
    let load = Load { kind, value_bytes: options.value_bytes };
    // What the floor appends is what a site would log of values of that size.
    let asked = match kind {
        Kind::Read => Asked::Reads,
        Kind::Write => Asked::Writes { bytes: options.value_bytes.max(NUMBER_BYTES) },
    };
    let (mut measured, mut epsilon, mut disk) = (Vec::new(), 0, String::new());
    for &callers in &options.callers {
        let pair = Pair::start(&options.live, &REGIONS, asked, callers)?;
        measured.extend(measure(options, &pair, load, callers)?);
        (epsilon, disk) = (pair.epsilon()?, pair.disk(&options.live));
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
    let (runs, figure) = runs_and_figure(&format!("{name}-latency"), measured);
    Ok(Report {
        workload: name.into(),
        mode: Mode::Live,
        seed: options.seed,
        data: "generated".into(),
        epsilon_us: epsilon,
        cost_model: None,
        runs,
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

/// Measures a site and its floor.
fn measure(options: &SingleOptions, pair: &Pair, load: Load, callers: usize) -> Result<[Measured; 2], LiveError> {
    // Tests have short rounds, and wait for no warm warranty.
    let warm = WARM.min(2 * options.round);
    let length = Length { warm, round: options.round, rounds: options.rounds };
    let [site, floor] = pair.measure(length, async |server| Callers::open(server, load, callers).await)?;
    let mut site = Sum::of(format!("callers-{callers}"), callers, site);
    let floor = Sum::of(format!("floor-{callers}"), callers, floor);

    // A floor knows neither phases nor aborts.
    let committed = site.run.committed;
    site.run.local_ratio = Some(share(site.phases[0], committed));
    let phases = serde_json::json!(site.phases.map(|count| share(count, committed)));
    site.run = site.run.with("phases", phases).with("abort_rate", share(site.runs - committed, site.runs));
    pair.compare([site, floor])
}

/// The transactions of callers.
#[derive(Clone, Copy)]
struct Load {
    /// The act of each.
    kind: Kind,
    /// The size of the values that are written, in bytes.
    value_bytes: usize,
}

/// Callers of one client, each with an object of its own.
struct Callers {
    /// The client that they share.
    client: Client,
    /// The object of each caller.
    keys: Vec<Key>,
    /// Their transactions.
    load: Load,
}

impl Callers {
    /// Connects a client, and writes the objects.
    async fn open(server: &Server, load: Load, callers: usize) -> Result<Self, LiveError> {
        let here = Options { region: Some(REGIONS[0].into()), ..Options::default() };
        let client = Client::connect_with([server.address.to_string()], here).await.map_err(LiveError::failed)?;

        // Reads are of another region, so that a warranty is all that makes them local; writes are of this one.
        let home = if load.kind == Kind::Read { REGIONS[1] } else { REGIONS[0] };
        let keys: Vec<Key> = (0..callers).map(|caller| client.object(home, format!("object/{caller:04}"))).collect();
        for key in &keys {
            let put = client.transact(|txn| async move { txn.put(key, &0u64) }).await.map_err(LiveError::failed)?;
            put.done().map_err(LiveError::failed)?;
        }
        Ok(Self { client, keys, load })
    }

    /// Checks that the objects hold what was told: every write counts its object up.
    async fn verify_site(&self, told: u64) -> Result<(), LiveError> {
        let keys = &self.keys;
        let read = self.client.transact(|txn| async move { txn.get_many::<u64>(keys).await }).await;
        let read = read.map_err(LiveError::failed)?.done().map_err(LiveError::failed)?;
        let total: u64 = read.into_iter().flatten().sum();
        let expected = if self.load.kind == Kind::Write { told } else { 0 };
        if total == expected {
            return Ok(());
        }
        Err(LiveError::failed(format!("{expected} writes were told, and the objects have {total}; this is a bug")))
    }

    /// A floor keeps no objects, but it counts what it has done: each object was made, and each transaction was told.
    async fn verify_floor(&self, told: u64) -> Result<(), LiveError> {
        let shown = self.client.quota("floor").show().await.map_err(LiveError::failed)?;
        let (done, expected) = (shown.in_use, self.keys.len() as u64 + told);
        if done.exact() == i64::try_from(expected).ok() {
            return Ok(());
        }
        let why = format!("{expected} transactions were told, and the floor has done {done:?}; this is a bug");
        Err(LiveError::failed(why))
    }
}

impl Line for Callers {
    async fn call(&mut self, length: Duration) -> Result<Counted, LiveError> {
        let end = Instant::now() + length;
        let call = |at: usize, counted| {
            tokio::spawn(caller(self.client.clone(), self.load, self.keys[at].clone(), counted, end))
        };
        together(0..self.keys.len(), call).await
    }

    async fn close(self, server: Role, told: u64) -> Result<(), LiveError> {
        match server {
            Role::Site => self.verify_site(told).await?,
            Role::Floor => self.verify_floor(told).await?,
        }
        self.client.close().await;
        Ok(())
    }
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
            let read =
                client.transact(|txn| async move { txn.get::<u64>(key).await }).await.map_err(LiveError::failed)?;
            read.done().map_err(LiveError::failed)?.unwrap_or(0)
        }
    };

    let mut began = Instant::now();
    while began < end {
        let transaction = client.transaction();
        let done = match kind {
            Kind::Read => transaction.run_and_tell(|txn| async move { txn.get::<u64>(key).await.map(drop) }).await,
            // Every write counts its object up, so the objects know in the end how many there were.
            Kind::Write => {
                present += 1;
                let value = &number(present, value_bytes);
                transaction.run_and_tell(|txn| async move { txn.put_bytes(key, value.as_slice()) }).await
            }
        };

        let ended = Instant::now();
        match done.map_err(|error: TxnError| LiveError::failed(error))? {
            Outcome::Done(committed) => {
                counted.lock().expect("no caller panicked").note(&committed, ended - began);
            }
            other => return Err(LiveError::failed(format!("a transaction was not committed: {other:?}"))),
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
