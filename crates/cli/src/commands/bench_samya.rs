//! `slackline bench samya`: the evaluation of the Samya paper.

use std::path::PathBuf;

use clap::Args;
use slackline_bench::quota::Limit;
use slackline_bench::report::Report;
use slackline_bench::rtt::Rtt;
use slackline_bench::samya::{Config, Experiment, SamyaOptions, samya};
use slackline_bench::trace::Format;

use super::bench_report::{Shown, explain};
use crate::end::Finish;

/// Runs the evaluation of the Samya paper, with its rivals
///
/// The product's machines, the paper's system and its rivals share one limit over five regions, in virtual time. Each acquire waits
/// until a deadline of 2 s by its client's clock, and a late grant is given back. latency, throughput, crash, partition, bounds,
/// prediction, sites, reads, limit and rate are the paper's figures; in hot a token is taken and given back as fast as it goes, in
/// small many want a few tokens, in storm many quotas are short at once, in idle they are at rest.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench samya latency
  slackline bench samya throughput --callers 1 # callers wait, as in the paper
  slackline bench samya latency --limit auto:1.05 --config slackline,central
  slackline bench samya latency --trace series.csv --format series
  slackline bench samya idle --quotas 100,100000")]
pub(super) struct SamyaBench {
    /// What to compare: latency, throughput, crash, partition, bounds, prediction, sites, reads, limit, rate, hot, small, storm or idle
    #[arg(value_name = "EXPERIMENT")]
    experiment: Experiment,
    /// Only these configurations: slackline, slackline-any, slackline-reactive, slackline-local, samya-majority,
    /// samya-majority-reactive, samya-any, samya-any-reactive, multi-paxos, quorum, demarcation, escrow, no-constraint, no-redistribution, central or central-waiting
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    config: Vec<Config>,
    /// Replay this file
    #[arg(long, value_name = "FILE", requires = "format")]
    trace: Option<PathBuf>,
    /// The file's layout: azure-llm, openb, events or series
    #[arg(long, value_name = "FORMAT", requires = "trace")]
    format: Option<Format>,
    /// Tokens, or auto:F for F times the smallest limit at which one central counter refuses under 1 %. By default 5000, in small 200
    #[arg(long, value_name = "N|auto:F")]
    limit: Option<Limit>,
    /// Round trips: aws, gcp, or a CSV file with from,to,rtt_ms
    #[arg(long, value_name = "TABLE", default_value = "gcp")]
    rtt: Rtt,
    /// Replay faster by this factor
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    speed: f64,
    /// Each region has this number of callers, who wait for answers; by default nobody waits, but in hot and reads 64 do, in small 8
    #[arg(long, value_name = "N")]
    callers: Option<usize>,
    /// The numbers of quotas of storm and idle
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    quotas: Vec<u64>,
    /// Play this number of seconds; by default as many as the paper
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=360_000))]
    seconds: Option<u32>,
    #[command(flatten)]
    pub(super) shown: Shown,
}

impl SamyaBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let options = SamyaOptions {
            experiment: self.experiment,
            configs: self.config.clone(),
            trace: self.trace.clone().zip(self.format),
            limit: self.limit,
            rtt: self.rtt.clone(),
            speed: self.speed,
            callers: self.callers,
            quotas: self.quotas.clone(),
            seconds: self.seconds.map(f64::from),
            seed: self.shown.seed,
        };
        samya(&options).map_err(explain)
    }
}
