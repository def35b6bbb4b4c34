//! How well the policy of gifts and rounds does, in seconds: local ratio and refusals against the central counter's, over
//! traces, limits and seeds. `cargo run --release -p slackline-bench --example policy -- [SEEDS] [TRACE.csv azure-llm]...`

use std::path::PathBuf;

use slackline_bench::demand;
use slackline_bench::quota::{Limit, Prepared, choose_limit, play};
use slackline_bench::rtt::{Matrix, Rtt};
use slackline_bench::trace::{Format, Trace};
use slackline_sim::Costs;

const SITES: usize = 5;

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    let seeds = arguments.peek().and_then(|text| text.parse::<u64>().ok());
    if seeds.is_some() {
        arguments.next();
    }
    let seeds = seeds.unwrap_or(3);
    let mut traces: Vec<(PathBuf, Format)> = Vec::new();
    while let (Some(path), Some(format)) = (arguments.next(), arguments.next()) {
        traces.push((path.into(), format.parse().unwrap_or_else(|error| panic!("{error}"))));
    }
    let matrix = Matrix::new(&Rtt::Gcp, SITES).unwrap_or_else(|error| panic!("{error}"));
    println!(
        "{:24} {:>6} seed  local   none  refused central  ratio  none  gifts rounds messages  p99 ms Minputs/s",
        "trace", "limit"
    );
    for factor in [1.05, 1.0] {
        for (path, format) in &traces {
            let trace = Trace::read(path, *format).unwrap_or_else(|error| panic!("{error}"));
            let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
            (1..=seeds).for_each(|seed| one(&name, trace.clone(), factor, seed, &matrix));
        }
        (1..=seeds).for_each(|seed| one("bursty", demand::bursty(8_800, seed), factor, seed, &matrix));
        one("periodic", demand::periodic(100_000, SITES, 1), factor, 1, &matrix);
    }
}

fn one(name: &str, mut trace: Trace, factor: f64, seed: u64, matrix: &Matrix) {
    trace.place(SITES, seed);
    let prepared: Prepared = choose_limit(trace, Limit::Auto(factor));
    let run = |redistribute| {
        play(&prepared, matrix, Costs::default(), seed, redistribute).unwrap_or_else(|error| panic!("{error}"))
    };
    let (ours, none) = (run(true), run(false));
    let figure = |run: &slackline_bench::report::Run, name| run.figure(name).unwrap_or(0.0);
    let local = |run: &slackline_bench::report::Run| run.local_ratio.unwrap_or(0.0);
    println!(
        "{name:24} {factor:>6} {seed:>4} {:>6.4} {:>6.4} {:>8} {:>7} {:>6.3} {:>5.1} {:>6} {:>6} {:>8} {:>7.1} {:>5.2} {}",
        local(&ours),
        local(&none),
        figure(&ours, "refused_acquires"),
        prepared.central.refused,
        figure(&ours, "refused_of_central"),
        figure(&none, "refused_of_central"),
        ours.gifts,
        ours.rebalances,
        ours.wan_messages.unwrap_or(0),
        ours.latency_ms.p99,
        figure(&ours, "sim_inputs_per_s") / 1e6,
        if figure(&ours, "refused_of_central") <= 1.15 && local(&ours) >= if factor > 1.0 { 0.95 } else { 0.92 } {
            "ok"
        } else {
            "MISS"
        },
    );
}
