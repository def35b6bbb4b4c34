//! `sweep 1..200` runs many seeds, `sweep 17 --trace` one. Exit status 1, and the seed, where an invariant fails.
//!
//! The development's own shell around the simulator; users have `slackline sim`.

use std::ops::Range;
use std::process::ExitCode;

use mimalloc::MiMalloc;
use slackline_sim::{Report, RunOptions, run, sweep};

/// The allocator of everything here; see the decision of 2026-11-26.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const USAGE: &str = "usage: sweep SEED|FIRST..LAST [--trace] [--threads N] [--operations N] [--transactions N] [--treaties N] [--keep-going] [--no-probes]";

fn main() -> ExitCode {
    let mut seeds = None;
    let mut options = RunOptions::default();
    let mut threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let (mut keep_going, mut probes) = (false, true);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse().ok());
        let understood = match &argument[..] {
            "--trace" => {
                options.trace = true;
                Some(())
            }
            "--keep-going" => {
                keep_going = true;
                Some(())
            }
            "--no-probes" => {
                probes = false;
                Some(())
            }
            "--threads" => number().map(|number: u64| threads = number as usize),
            "--transactions" => number().map(|number| options.transactions = number),
            "--treaties" => number().map(|number| options.treaties = number),
            "--operations" => number().map(|number| options.operations = number),
            text => parse(text).map(|range| seeds = Some(range)),
        };
        if understood.is_none() {
            eprintln!("{argument} is not understood; {USAGE}");
            return ExitCode::from(2);
        }
    }
    let Some(seeds) = seeds else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if !keep_going {
        slackline_sim::exit_on_panic();
    }
    if seeds.end - seeds.start == 1 {
        let report = run(seeds.start, options);
        print!("{report}");
        return if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let report = sweep(seeds, threads, options, |report: &Report| {
        if let Some(violation) = &report.violation {
            eprintln!("seed {}: {violation}", report.seed);
        }
        report.violation.is_none() || keep_going
    });
    print!("{report}");
    if report.failures.is_empty() && (!probes || report.is_clean()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A seed, or the first and the last of several.
fn parse(text: &str) -> Option<Range<u64>> {
    match text.split_once("..") {
        Some((first, last)) => Some(first.parse().ok()?..last.trim_start_matches('=').parse::<u64>().ok()? + 1),
        None => text.parse().ok().map(|seed| seed..seed + 1),
    }
}
