//! Rounds of a site and of its floor by turns, which `hot`, `reads` and `writes` have in common.
//!
//! Both servers run all the time, and have the same callers. A round is made of slices, and after each slice of the site comes one
//! of its floor, so that both have the machine at its best and at its worst (the module `floor` says what a floor is).

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slackline::Committed;
use slackline_server::floor::Load;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::floor::{self, Asked, SLICES};
use crate::histogram::Histogram;
use crate::live::{LiveError, Scratch, Server, runtime};
use crate::median;
use crate::report::{Latency, Measured, Run};

/// The server to measure for real, and the place of its data.
#[derive(Clone, Debug)]
pub struct Live {
    /// The binary that has `serve`. Without one the server is on threads of this process, which is only good for tests.
    pub binary: Option<PathBuf>,
    /// The data lie in a directory that is made below this one and removed.
    pub directory: PathBuf,
}

impl Live {
    /// A new directory for data, on a disk if a process of its own is to be measured on it.
    pub(crate) fn scratch(&self) -> Result<Scratch, LiveError> {
        let scratch = Scratch::below(&self.directory)?;
        if self.binary.is_some() {
            scratch.refuse_memory()?;
        }
        Ok(scratch)
    }

    /// For a report: the file system that the data are on, and where.
    pub(crate) fn disk(&self, scratch: &Scratch) -> String {
        format!("{}, {}", scratch.file_system, self.directory.display())
    }
}

/// The length of a measurement.
#[derive(Clone, Copy)]
pub(crate) struct Length {
    /// The time before the first round, in which nothing is counted.
    pub(crate) warm: Duration,
    /// The time of a round, of each of the two servers.
    pub(crate) round: Duration,
    /// The number of rounds.
    pub(crate) rounds: usize,
}

/// A site, the other sites of its cluster, and its floor: a process each.
pub(crate) struct Pair {
    /// The site that is asked, then the others.
    sites: Vec<Server>,
    /// The floor, in the place of the first site.
    floor: Server,
    /// The bytes that the floor appends.
    load: Load,
    /// The folder of all their data, until they have ended.
    scratch: Scratch,
    /// The clients' thread.
    runtime: Runtime,
}

impl Pair {
    /// Starts a site for each region, and a floor of what the callers ask of the first; waits until they serve.
    pub(crate) fn start(live: &Live, regions: &[&str], asked: Asked, callers: usize) -> Result<Self, LiveError> {
        let scratch = live.scratch()?;
        let load = floor::load(asked, callers)?;
        let (binary, directory) = (live.binary.as_deref(), scratch.path());
        let sites = Server::start_cluster(binary, directory, regions)?;
        let floor = Server::start_floor(binary, &directory.join("floor"), regions, load)?;
        sites.iter().chain([&floor]).try_for_each(|server| server.wait_ready().map(drop))?;
        Ok(Self { sites, floor, load, scratch, runtime: runtime()? })
    }

    /// Has callers open their lines to both, runs the rounds, and has both lines checked. Returns the rounds of the site, and of the
    /// floor.
    pub(crate) fn measure<L: Line>(
        &self,
        length: Length,
        open: impl AsyncFn(&Server) -> Result<L, LiveError>,
    ) -> Result<[Vec<Round>; 2], LiveError> {
        self.runtime.block_on(async {
            let lines = [open(&self.sites[0]).await?, open(&self.floor).await?];
            let [site, floor] = by_turns(length, [&self.sites[0], &self.floor], lines).await?;
            Ok([site.close(Role::Site).await?, floor.close(Role::Floor).await?])
        })
    }

    /// The site's run, which says how it compares with the floor, and the floor's.
    ///
    /// # Errors
    ///
    /// Nothing was done in a round.
    pub(crate) fn compare(&self, [site, floor]: [Sum; 2]) -> Result<[Measured; 2], LiveError> {
        let compared = floor::compare(site.run, &site.speeds, &floor.speeds)?;
        Ok([(compared, site.latencies), (floor::mark(floor.run, self.load), floor.latencies)])
    }

    /// The bound on its clock's error that the site assumes, in microseconds.
    pub(crate) fn epsilon(&self) -> Result<u64, LiveError> {
        self.sites[0].epsilon()
    }

    /// For a report: the file system that the data are on, and where.
    pub(crate) fn disk(&self, live: &Live) -> String {
        live.disk(&self.scratch)
    }
}

/// Which of a pair a server is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The site.
    Site,
    /// Its floor.
    Floor,
}

/// The way of all callers to one server.
pub(crate) trait Line {
    /// All callers call for this long.
    async fn call(&mut self, length: Duration) -> Result<Counted, LiveError>;

    /// Checks that the server has done what was told, over all rounds and the time before, and closes the line.
    ///
    /// # Errors
    ///
    /// The server has done more or less.
    async fn close(self, server: Role, told: u64) -> Result<(), LiveError>;
}

/// Calls, as callers counted them.
#[derive(Default)]
pub(crate) struct Counted {
    /// Of each call that was done.
    pub(crate) latencies: Histogram,
    /// Transactions committed in 0, 1, and 2 or more phases; zeros where calls are none.
    pub(crate) phases: [u64; 3],
    /// Runs of transactions' programs, those in vain included; 0 where calls are none.
    pub(crate) runs: u64,
}

impl Counted {
    /// Counts a transaction that was committed, which took so long.
    pub(crate) fn note<T>(&mut self, committed: &Committed<T>, took: Duration) {
        self.phases[usize::from(committed.phases.min(2))] += 1;
        self.runs += u64::from(committed.runs);
        self.latencies.note(took.as_nanos() as u64);
    }

    fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies);
        self.phases.iter_mut().zip(other.phases).for_each(|(all, some)| *all += some);
        self.runs += other.runs;
    }
}

/// Lets callers call, each as a task, and returns what they counted together when all have ended.
pub(crate) async fn together(
    callers: impl Iterator<Item = usize>,
    call: impl Fn(usize, Arc<Mutex<Counted>>) -> JoinHandle<Result<(), LiveError>>,
) -> Result<Counted, LiveError> {
    let counted = Arc::new(Mutex::new(Counted::default()));

    // All begin before the first is waited for.
    let calls: Vec<_> = callers.map(|caller| call(caller, Arc::clone(&counted))).collect();
    for call in calls {
        call.await.map_err(LiveError::failed)??;
    }
    Ok(Arc::into_inner(counted).expect("every caller has ended").into_inner().expect("no caller panicked"))
}

/// One round at one server.
#[derive(Default)]
pub(crate) struct Round {
    /// The time that its slices took.
    pub(crate) seconds: f64,
    /// The calls of that time.
    pub(crate) counted: Counted,
    /// Syncs of the server's log.
    pub(crate) syncs: u64,
}

impl Round {
    /// Calls done in a second.
    fn speed(&self) -> f64 {
        self.counted.latencies.count() as f64 / self.seconds
    }
}

/// Rounds as a run: that with the median throughput.
pub(crate) struct Sum {
    /// The run.
    pub(crate) run: Run,
    /// The latencies of its round.
    pub(crate) latencies: Histogram,
    /// Transactions of its round, by phases.
    pub(crate) phases: [u64; 3],
    /// Runs of its round's programs.
    pub(crate) runs: u64,
    /// Calls done in a second, of each round.
    speeds: Vec<f64>,
}

impl Sum {
    /// Sums rounds up, of which there is at least one.
    pub(crate) fn of(config: String, callers: usize, rounds: Vec<Round>) -> Self {
        let speeds: Vec<f64> = rounds.iter().map(Round::speed).collect();

        // The round of the median, whole: its latencies belong to its throughput.
        let Round { seconds, counted, syncs } = median(rounds, Round::speed);
        let Counted { latencies, phases, runs } = counted;
        let mut run = Run::new(config);
        run.committed = latencies.count();
        run.latency_ms = Latency::from(&latencies);
        let whole: Vec<u64> = speeds.iter().map(|speed| *speed as u64).collect();
        let run = run.took(seconds).with("callers", callers).with("syncs", syncs).with("rounds_per_s", whole);
        Self { run, latencies, phases, runs, speeds }
    }

    /// The median ratio to what was done in a second on another line, over rounds side by side.
    ///
    /// # Errors
    ///
    /// Nothing was done in a round.
    pub(crate) fn ratio_to(&self, other: &Self) -> Result<f64, LiveError> {
        floor::ratio(&self.speeds, &other.speeds)
    }

    /// The run where there is no floor.
    pub(crate) fn alone(self) -> Measured {
        (self.run, self.latencies)
    }
}

/// A line, and what was done on it.
pub(crate) struct Turns<'a, L> {
    /// The server to which it leads.
    server: &'a Server,
    /// The callers' way there.
    line: L,
    /// All calls that were done, of the rounds and of the time before.
    told: u64,
    /// The rounds so far.
    rounds: Vec<Round>,
}

/// Runs the rounds on several lines, by turns.
pub(crate) async fn by_turns<'a, L: Line, const N: usize>(
    length: Length,
    servers: [&'a Server; N],
    lines: [L; N],
) -> Result<[Turns<'a, L>; N], LiveError> {
    let mut servers = servers.into_iter();
    let turns = |line| Turns { server: servers.next().expect("as many"), line, told: 0, rounds: Vec::new() };
    let mut all = lines.map(turns);
    for turns in &mut all {
        turns.told += turns.line.call(length.warm).await?.latencies.count();
    }

    // What warms caches and warranties was told, but is of no round.
    for _ in 0..length.rounds {
        all.iter_mut().for_each(|turns| turns.rounds.push(Round::default()));
        for _ in 0..SLICES {
            for turns in &mut all {
                turns.slice(length.round / SLICES).await?;
            }
        }
    }
    Ok(all)
}

impl<L: Line> Turns<'_, L> {
    /// Adds a slice to the last round.
    async fn slice(&mut self, length: Duration) -> Result<(), LiveError> {
        // The other server of the pair is asked nothing meanwhile, so the machine is this one's.
        let before = self.server.metric(SYNCS)?;
        let began = Instant::now();
        let counted = self.line.call(length).await?;
        let seconds = began.elapsed().as_secs_f64();
        let syncs = self.server.metric(SYNCS)? - before;

        self.told += counted.latencies.count();
        if let Some(round) = self.rounds.last_mut() {
            round.seconds += seconds;
            round.counted.add(&counted);
            round.syncs += syncs as u64;
        }
        Ok(())
    }

    /// Checks what the server has done, and returns the rounds.
    pub(crate) async fn close(self, server: Role) -> Result<Vec<Round>, LiveError> {
        self.line.close(server, self.told).await?;
        Ok(self.rounds)
    }
}

/// The metric that counts syncs of a log.
const SYNCS: &str = "slackline_sync_seconds_count";
