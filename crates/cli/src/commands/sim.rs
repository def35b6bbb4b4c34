//! `slackline sim`: hunts bugs in virtual time.

use std::ops::Range;

use clap::{ArgGroup, Args};
use serde_json::{Value, json};
use slackline_sim::{Report, RunOptions, run, sweep};

use crate::end::{End, Finish, say};

/// Hunts bugs: runs clusters in virtual time under faults
///
/// Each seed is a cluster of three or five sites, 20,000 client operations and at least 20 faults: crashes, lost disks, old
/// copies, partitions, lost and repeated messages, stopped and stepped clocks. The invariants are checked after each step, and
/// at the end the cluster must serve again. The same seed gives the same run, byte for byte.
///
/// If an invariant does not hold, the exit status is 1 and the seed is printed. A sweep of 200 seeds or more also fails if it
/// has hardly met a situation that it must have met.
#[derive(Args)]
#[command(group(ArgGroup::new("which").required(true).args(["seed", "seeds"])), after_help = "\
Examples:
  slackline sim --seeds 1..200         # many seeds, and what they have met
  slackline sim --seed 17              # one seed
  slackline sim --seed 17 --trace      # and every event, a line each")]
pub(crate) struct Sim {
    /// One seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Many seeds, the last one included
    #[arg(long, value_name = "A..B", value_parser = range)]
    seeds: Option<Range<u64>>,
    /// Print every event of the seed
    #[arg(long, requires = "seed")]
    trace: bool,
    /// The number of threads of a sweep; by default one for each core
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Go on after a seed in which an invariant did not hold
    #[arg(long, requires = "seeds")]
    keep_going: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "trace")]
    pub(crate) json: bool,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let parsed = text.split_once("..").and_then(|(first, last)| {
        let first: u64 = first.parse().ok()?;
        let last: u64 = last.trim_start_matches('=').parse().ok()?;
        (first <= last && last < u64::MAX).then(|| first..last + 1)
    });
    parsed.ok_or_else(|| "name the first and the last seed, as in 1..200".to_owned())
}

impl Sim {
    pub(crate) fn run(self) -> Result<End, Finish> {
        let options = RunOptions { trace: self.trace, ..RunOptions::default() };
        // A run catches the assertions that fail in it, and reports them as findings.
        std::panic::set_hook(Box::new(|_| {}));
        if let Some(seed) = self.seed {
            let report = run(seed, options);
            let found = finding(&report);
            let json = one(&report);
            return conclude(found.into_iter().collect(), json, report.to_string(), self.json);
        }

        let seeds = self.seeds.unwrap_or(1..2);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads = if self.threads == 0 { cores } else { self.threads };
        let keep_going = self.keep_going;
        let report = sweep(seeds, threads, options, |report: &Report| report.violation.is_none() || keep_going);
        let mut found: Vec<String> = report.failures.iter().filter_map(finding).collect();
        if found.is_empty() && !report.is_clean() {
            found.push("the sweep has hardly met some situations that it must have met; see the table".to_owned());
        }

        let json = json!({
            "seeds": [report.seeds.start, report.seeds.end - 1],
            "inputs": report.inputs,
            "operations": report.operations,
            "faults": report.faults,
            "findings": report.failures.iter().map(one).collect::<Vec<Value>>(),
            "clean": found.is_empty(),
        });

        conclude(found, json, report.to_string(), self.json)
    }
}

fn finding(report: &Report) -> Option<String> {
    report.violation.as_ref().map(|violation| format!("seed {}: {violation}", report.seed))
}

fn one(report: &Report) -> Value {
    json!({
        "seed": report.seed,
        "sites": report.sites,
        "inputs": report.inputs,
        "operations": report.operations,
        "faults": report.faults,
        "violation": report.violation.as_ref().map(ToString::to_string),
    })
}

fn conclude(found: Vec<String>, json: Value, text: String, as_json: bool) -> Result<End, Finish> {
    let text = text.trim_end().to_owned();
    match found.first() {
        None => Ok(End::new(json, text)),
        Some(first) => {
            match as_json {
                true => say(json),
                false => say(text),
            }
            Err(Finish::Said(first.clone()))
        }
    }
}
