//! `slackline bench`: workloads, simulated or against real sites.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use slackline_bench::calibrate::{CalibrateOptions, calibrate};
use slackline_bench::footprint::{FootprintOptions, footprint};
use slackline_bench::handle::waiting::{WaitingOptions, waiting};
use slackline_bench::handle::{CoreOptions, Work, core};
use slackline_bench::hot::{HotOptions, hot};
use slackline_bench::quota::{Limit, QuotaOptions, quota};
use slackline_bench::rtt::Rtt;
use slackline_bench::trace::Format;

use super::bench_floor::FloorSite;
use super::bench_report::{Shown, explain, explain_live, here, show, show_committed};
use super::bench_samya::SamyaBench;
use super::bench_txns::{
    BankBench, CoursesBench, Oo7Bench, ReadsBench, ShiftBench, TopkBench, TpccBench, TreatiesBench, TwitterBench,
    VotingBench, WritesBench, callers,
};
use crate::end::{End, Finish, say};

/// Measures workloads, in virtual time or against real sites
///
/// Every workload is seeded, and the resulting data are verified after every run. Prints a table, or with --json one object.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench quota                        # demand of several regions
  slackline bench samya latency                # against rivals, as in a paper
  slackline bench hot --live --callers 1,64    # durable grants a second
  slackline bench core                         # the machine alone
  slackline bench footprint --quotas 10000     # memory, and a restart
  slackline bench oo7 --stores 1..4            # large transactions")]
pub(crate) struct Bench {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    Quota(QuotaBench),
    Samya(SamyaBench),
    Hot(HotBench),
    Core(CoreBench),
    Footprint(FootprintBench),
    Calibrate(CalibrateBench),
    Twitter(TwitterBench),
    Oo7(Oo7Bench),
    Bank(BankBench),
    Courses(CoursesBench),
    Reads(ReadsBench),
    Writes(WritesBench),
    Treaties(TreatiesBench),
    Voting(VotingBench),
    VotingShift(ShiftBench),
    Topk(TopkBench),
    Tpcc(TpccBench),
    #[command(hide = true)]
    Floor(FloorSite),
}

/// Replays demand against one quota that regions share
///
/// Runs three configurations: slackline; no-redistribution, which is the same with no tokens moved between sites; and
/// central, one ideal counter that all regions ask. Without --live the sites are simulated, in virtual time.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench quota                        # nearly periodic demand
  slackline bench quota --trace azure.csv --format azure-llm --limit auto:1
  slackline bench quota --live --sites 3 --events 2000 --speed 20")]
struct QuotaBench {
    /// Replay this file
    #[arg(long, value_name = "FILE", requires = "format")]
    trace: Option<PathBuf>,
    /// The file's layout: azure-llm, openb, events or series
    #[arg(long, value_name = "FORMAT", requires = "trace")]
    format: Option<Format>,
    /// Tokens, or auto:F for F times the smallest limit at which one central counter refuses under 1 %
    #[arg(long, value_name = "N|auto:F", default_value = "auto:1.05")]
    limit: Limit,
    /// The number of sites
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=64))]
    sites: u8,
    /// Round trips: aws, gcp, or a CSV file with from,to,rtt_ms
    #[arg(long, value_name = "TABLE", default_value = "gcp")]
    rtt: Rtt,
    /// Replay faster by this factor
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    speed: f64,
    /// Replay only this number of events
    #[arg(long, value_name = "N")]
    events: Option<usize>,
    /// Real sites in real time, on this machine
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    shown: Shown,
}

/// Measures the durable grants a second of one quota at one site
///
/// The quota never runs out. Without --live the site is simulated in virtual time, and a model says what work and syncs cost. Only
/// --live measures this machine.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench hot --live                   # a server process, 64 callers
  slackline bench hot --live --callers 1,64
  slackline bench hot                          # simulated")]
struct HotBench {
    /// The number of callers; each has one call in flight at a time
    #[arg(long, value_name = "N", default_value = "64", value_delimiter = ',', allow_negative_numbers = true, value_parser = callers)]
    callers: Vec<usize>,
    /// The number of levels of the quota: an acquire counts in as many quotas
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = levels)]
    levels: usize,
    /// A real server in a process of its own, with its data below the working directory
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    shown: Shown,
}

/// Reads a number of levels.
fn levels(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|levels| (1..=8).contains(levels)).ok_or_else(|| "a tree has 1 to 8 levels".to_owned())
}

/// Measures how fast the state machine alone is
///
/// It does acquires of quotas, and adds to counters, on one core, without a server, a network or a disk.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench core --quotas 1000
  slackline bench core --config add,add-treaty
  slackline bench core --waiting 100000")]
struct CoreBench {
    /// Only these configurations: batch-1, batch-64, add or add-treaty
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    config: Vec<Work>,
    /// The number of acquires, or of adds, of each round
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    acquires: u64,
    /// The number of quotas, or of counters
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    quotas: usize,
    /// The number of levels of each quota: an acquire counts in as many quotas, those above being its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = levels)]
    levels: usize,
    /// Measure another thing: how long a release, a question and a tick take while this number of acquires waits, and twice that
    /// number of operations on unknown names
    #[arg(long, value_name = "N", conflicts_with_all = ["config", "acquires", "quotas", "levels"])]
    waiting: Option<usize>,
    #[command(flatten)]
    shown: Shown,
}

/// Measures the memory and the restart of a site with many quotas
#[derive(Args)]
#[command(after_help = "Example:\n  slackline bench footprint --quotas 10000")]
struct FootprintBench {
    /// The number of quotas; by default 100000, or 1 with --grants
    #[arg(long, value_name = "N")]
    quotas: Option<usize>,
    /// The number of tracked grants of the first quota
    #[arg(long, value_name = "N", default_value_t = 0)]
    grants: usize,
    #[command(flatten)]
    shown: Shown,
}

/// Measures the cost of work at a site, for the simulator's model
///
/// Two sites and a client run on this machine for about a minute. The time of the sites' processors and syncs is divided into
/// the times of an input, an operation, an object, a message, a byte and a sync.
#[derive(Args)]
#[command(after_help = "Example:\n  slackline bench calibrate --json")]
struct CalibrateBench {
    /// The number of runs of each load; the medians are shown
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..=100))]
    rounds: u8,
    /// The length of each run, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u16).range(10..=60_000))]
    length: u16,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(crate) fn is_json(&self) -> bool {
        match &self.workload {
            Workload::Quota(bench) => bench.shown.json,
            Workload::Samya(bench) => bench.shown.json,
            Workload::Hot(bench) => bench.shown.json,
            Workload::Core(bench) => bench.shown.json,
            Workload::Footprint(bench) => bench.shown.json,
            Workload::Calibrate(bench) => bench.json,
            Workload::Voting(bench) => bench.shown.json,
            Workload::VotingShift(bench) => bench.shown.json,
            Workload::Topk(bench) => bench.shown.json,
            Workload::Tpcc(bench) => bench.shown.json,
            Workload::Twitter(bench) => bench.shown.json,
            Workload::Oo7(bench) => bench.shown.json,
            Workload::Bank(bench) => bench.shown.json,
            Workload::Courses(bench) => bench.shown.json,
            Workload::Reads(bench) => bench.single.shown.json,
            Workload::Writes(bench) => bench.single.shown.json,
            Workload::Treaties(bench) => bench.single.shown.json,
            Workload::Floor(site) => site.json,
        }
    }

    pub(crate) fn run(self) -> Result<End, Finish> {
        match self.workload {
            Workload::Quota(bench) => {
                if !(0.001..=1e9).contains(&bench.speed) {
                    return Err(Finish::WrongUse("--speed is a factor from 0.001 to 1000000000".into()));
                }
                let options = QuotaOptions {
                    trace: bench.trace.zip(bench.format),
                    limit: bench.limit,
                    sites: usize::from(bench.sites),
                    rtt: bench.rtt,
                    speed: bench.speed,
                    events: bench.events,
                    seed: bench.shown.seed,
                    live: bench.live.then(|| PathBuf::from(".")),
                };
                show(quota(&options).map_err(explain)?, bench.shown)
            }
            Workload::Samya(bench) => show(bench.run()?, bench.shown),
            Workload::Hot(bench) => {
                let live = if bench.live { Some(here()?) } else { None };
                let options = HotOptions {
                    callers: bench.callers,
                    levels: bench.levels,
                    seed: bench.shown.seed,
                    live,
                    ..HotOptions::default()
                };
                show(hot(&options).map_err(explain_live)?, bench.shown)
            }
            Workload::Core(bench) => {
                if bench.acquires < 1 || bench.quotas < 1 {
                    return Err(Finish::WrongUse("--acquires and --quotas are at least 1".into()));
                }
                if let Some(many) = bench.waiting {
                    if many < 1 {
                        return Err(Finish::WrongUse("--waiting is at least 1".into()));
                    }
                    let options = WaitingOptions { waiting: many, seed: bench.shown.seed, ..WaitingOptions::default() };
                    return show(waiting(&options), bench.shown);
                }
                let usual = CoreOptions::default();
                let options = CoreOptions {
                    levels: bench.levels,
                    quotas: bench.quotas,
                    acquires: bench.acquires,
                    works: if bench.config.is_empty() { usual.works } else { bench.config },
                    seed: bench.shown.seed,
                    ..CoreOptions::default()
                };
                show(core(&options), bench.shown)
            }
            Workload::Footprint(bench) => {
                let default = if bench.grants > 0 { 1 } else { 100_000 };
                let (quotas, grants) = (bench.quotas.unwrap_or(default), bench.grants);
                if quotas < 1 {
                    return Err(Finish::WrongUse("--quotas is at least 1".into()));
                }
                let options =
                    FootprintOptions { quotas, grants, seed: bench.shown.seed, ..FootprintOptions::new(here()?) };
                show(footprint(&options).map_err(explain_live)?, bench.shown)
            }
            Workload::Calibrate(bench) => {
                let options = CalibrateOptions {
                    rounds: usize::from(bench.rounds),
                    length: Duration::from_millis(bench.length.into()),
                    ..CalibrateOptions::new(here()?)
                };
                let found = calibrate(&options).map_err(explain_live)?;
                say(if bench.json { found.report.to_json() } else { found.to_table() }.trim_end());
                Ok(End::silent())
            }
            Workload::Voting(bench) => show_committed(bench.run()?, bench.shown),
            Workload::VotingShift(bench) => show_committed(bench.run()?, bench.shown),
            Workload::Topk(bench) => show_committed(bench.run()?, bench.shown),
            Workload::Tpcc(bench) => show_committed(bench.run()?, bench.shown),
            Workload::Twitter(bench) => show_committed(bench.run()?, bench.shown),
            Workload::Oo7(bench) => show_committed(bench.run()?, bench.shown),
            Workload::Bank(bench) => show_committed(bench.run()?, bench.shown),
            Workload::Courses(bench) => show_committed(bench.run()?, bench.shown),
            Workload::Reads(bench) => show_committed(bench.run()?, bench.single.shown),
            Workload::Writes(bench) => show_committed(bench.run()?, bench.single.shown),
            Workload::Treaties(bench) => show_committed(bench.run()?, bench.single.shown),
            Workload::Floor(site) => site.run(),
        }
    }
}
