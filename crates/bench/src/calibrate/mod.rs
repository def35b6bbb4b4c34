//! `bench calibrate`: what work costs at a real site, beside what the simulator reckons with.
//!
//! Two sites run, a process each. Clients put loads on the first of them that differ in one thing at a time: operations in a
//! batch; objects read, validated, written; their bytes; where they are at home. What a request of each load makes a site
//! do is counted by the simulator itself, whose worlds carry out the same requests (`count`). What it takes is the time that
//! the site's thread had a processor, as the kernel counts it: other work on the machine hardly moves that, though it takes
//! caches away. The terms of [`Costs`] are then those that explain all loads best (`fit`). The terms of a sync are those
//! of the line through the quickest tenth of small and of large ones, of a log beside the sites' (`disk`); a sync takes real
//! time, and does suffer from other work.
//!
//! All loads are run in turn, several times; each time gives all terms, of which the medians are reported. Nothing is changed
//! by this: the simulator's costs are constants, so that the same seed gives the same run on every machine.
//!
//! | module | what it is about |
//! | --- | --- |
//! | `load` | the requests |
//! | `count` | what they make a simulated site do |
//! | `real` | what they take at a real one |
//! | `fit` | terms from both |
//! | `disk` | small and large syncs |

mod count;
mod disk;
mod fit;
mod load;
mod real;

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use serde_json::json;
use slackline_sim::Costs;

use crate::live::{LiveError, Server, Worked, runtime};
use crate::median;
use crate::report::{Mode, Report, Run};
use crate::turns::Live;
use crate::txns::OBJECT_NS;
use count::count;
use disk::Disk;
use fit::{Counts, Row, TERMS, fit, predict};
use load::{LOADS, Load};
use real::{Ready, Taken, idle, verify};

/// Options of `bench calibrate`.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// The number of callers of a load, each with one request under way.
    pub callers: usize,
    /// For how long each load is run in a round.
    pub length: Duration,
    /// The number of rounds; each gives all terms, and the medians are reported.
    pub rounds: usize,
    /// The seed that is reported; nothing here is random.
    pub seed: u64,
    /// The server to measure, and the place of its data.
    pub live: Live,
}

impl CalibrateOptions {
    /// About a minute.
    pub fn new(live: Live) -> Self {
        Self { callers: 16, length: Duration::from_millis(500), rounds: 7, seed: 1, live }
    }
}

/// The regions: the callers' and the other one.
const REGIONS: [&str; 2] = ["here", "there"];
/// Of `Costs`, in their order: those of a site's processor, then those of its disk.
const NAMES: [&str; TERMS + 2] =
    ["input_ns", "operation_ns", "object_ns", "send_ns", "byte_ns", "sync_us", "sync_byte_ns"];

/// The cost of one thing.
#[derive(Clone, PartialEq, Debug)]
pub struct Term {
    /// Its name in [`Costs`], with its unit at the end.
    pub name: &'static str,
    /// The median of the rounds.
    pub measured: f64,
    /// The least of the rounds.
    pub least: f64,
    /// The most of the rounds.
    pub most: f64,
    /// The simulator's constant.
    pub simulated: f64,
}

impl Term {
    /// The ratio of what was measured to the simulator's constant.
    pub fn ratio(&self) -> f64 {
        self.measured / self.simulated
    }
}

/// Everything that `bench calibrate` found.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The terms, in the order of [`Costs`].
    pub terms: Vec<Term>,
    /// The report, for `--json`: the first run has the terms, each other one is a load.
    pub report: Report,
}

/// A load at one site, as `--json` and the table show it.
struct Shown {
    /// The load's name; with `-home` behind it, of the site where what it writes is at home.
    name: String,
    /// The work of a request at the site.
    counts: Counts,
    /// The processor time of a request that was measured, in nanoseconds.
    nanos: f64,
    /// The same, by the terms that were found.
    fitted: f64,
    /// The same, by the simulator's terms.
    simulated: f64,
    /// All that was measured in the round of the median.
    taken: Taken,
}

/// Runs `bench calibrate`.
pub fn calibrate(options: &CalibrateOptions) -> Result<Calibration, LiveError> {
    let counted = |load: &Load| count(load).map_err(|problem| LiveError::failed(format!("{}: {problem}", load.name)));
    let counts = LOADS.iter().map(counted).collect::<Result<Vec<_>, _>>()?;

    let scratch = options.live.scratch()?;
    let sites = Server::start_cluster(options.live.binary.as_deref(), scratch.path(), &REGIONS)?;
    let sites: [Server; 2] = sites.try_into().map_err(|_| LiveError::failed("two sites were asked for"))?;
    sites.iter().try_for_each(|site| site.wait_ready().map(drop))?;
    let runtime = runtime()?;
    let rounds = runtime.block_on(measure(options, &sites, Disk::open(&scratch.path().join("disk"))?))?;

    // Each round gives all terms; the fit of a load is by the medians, which are what is reported.
    let found: Vec<[f64; TERMS + 2]> = rounds.iter().map(|round| round.terms(&counts)).collect();
    let terms = terms(&found);
    let fitted: Counts = std::array::from_fn(|term| terms[term].measured);
    let shown = shown(&rounds, &counts, &fitted);
    let disk = format!("{}, {}", scratch.file_system, options.live.directory.display());
    let report = report(options, &terms, &shown, &rounds, disk, sites[0].epsilon()?);
    Ok(Calibration { terms, report })
}

/// One run of each load.
struct Round {
    /// The work of the sites without load.
    idle: Taken,
    /// The work of each load, in the order of `LOADS`.
    loads: Vec<Taken>,
    /// Bytes and nanoseconds of a small and of a large sync.
    syncs: [(f64, f64); 2],
}

/// Runs all loads, round after round, and checks that what was told was done.
async fn measure(options: &CalibrateOptions, sites: &[Server; 2], mut disk: Disk) -> Result<Vec<Round>, LiveError> {
    let mut loads = Vec::new();
    for (order, load) in LOADS.into_iter().enumerate() {
        loads.push(Ready::new(load, order, options.callers, &sites[0]).await?);
    }

    let mut rounds = Vec::with_capacity(options.rounds);
    // The first round only warms up.
    for round in 0..=options.rounds {
        // Beside the loads of the same round, so that what else the machine does weighs on all alike.
        let idle = idle(options.length, sites).await?;
        let syncs = disk.run(options.length)?;

        let mut taken = Vec::with_capacity(loads.len());
        for load in &mut loads {
            let took = load.run(options.length, sites).await?;
            if took.requests == 0 {
                return Err(LiveError::failed(format!("nothing of {} was done in a round", load.load.name)));
            }
            taken.push(took);
        }
        if round > 0 {
            rounds.push(Round { idle, loads: taken, syncs });
        }
    }
    verify(&loads, &sites[0]).await?;
    Ok(rounds)
}

impl Round {
    /// Nanoseconds of the processor of a site's thread for one request of a load, without what the site does of itself.
    fn nanos(&self, load: usize, site: usize) -> f64 {
        let (taken, idle) = (&self.loads[load], &self.idle);
        // Heartbeats and ticks go on under load.
        let of_itself = idle.worked[site].site * taken.seconds / idle.seconds;
        ((taken.worked[site].site - of_itself) / taken.requests as f64).max(0.0) * 1e9
    }

    /// All terms, by this round alone.
    fn terms(&self, counts: &[[Counts; 2]]) -> [f64; TERMS + 2] {
        let rows = places(counts).map(|(load, site)| Row { counts: counts[load][site], nanos: self.nanos(load, site) });
        let processor = fit(&rows.collect::<Vec<_>>());

        // The disk has terms of its own, from syncs alone.
        let (sync, byte) = line(self.syncs[0], self.syncs[1]);
        let [input, operation, object, send, logged] = processor;
        [input, operation, object, send, logged, sync / 1e3, byte]
    }
}

/// The loads with the sites that each makes do something.
fn places(counts: &[[Counts; 2]]) -> impl Iterator<Item = (usize, usize)> {
    let sites = (0..counts.len()).flat_map(|load| [(load, 0), (load, 1)]);
    sites.filter(|&(load, site)| counts[load][site][0] > 0.0)
}

/// The line through two points, as its height at 0 and its slope; neither below zero.
fn line(one: (f64, f64), other: (f64, f64)) -> (f64, f64) {
    let slope = ((other.1 - one.1) / (other.0 - one.0)).max(0.0);
    ((one.1 - slope * one.0).max(0.0), slope)
}

/// The simulator's constants, in the order of the names. Only simulations of transactions have a cost of objects.
fn simulated() -> [u64; TERMS + 2] {
    let Costs { input_ns, operation_ns, send_ns, byte_ns, sync_us, sync_byte_ns, .. } = Costs::default();
    [input_ns, operation_ns, OBJECT_NS, send_ns, byte_ns, sync_us, sync_byte_ns]
}

/// The terms of all rounds, beside the simulated ones.
fn terms(rounds: &[[f64; TERMS + 2]]) -> Vec<Term> {
    let term = |(at, (name, simulated)): (usize, (&'static str, u64))| {
        let all: Vec<f64> = rounds.iter().map(|round| round[at]).collect();
        let (least, most) =
            (all.iter().copied().fold(f64::INFINITY, f64::min), all.iter().copied().fold(0.0, f64::max));
        Term { name, measured: median(all, |value| *value), least, most, simulated: simulated as f64 }
    };
    NAMES.into_iter().zip(simulated()).enumerate().map(term).collect()
}

/// Each load at each site that it makes do something, with the round in which it took the median.
fn shown(rounds: &[Round], counts: &[[Counts; 2]], fitted: &Counts) -> Vec<Shown> {
    let reckoned: Counts = std::array::from_fn(|term| simulated()[term] as f64);
    let show = |(load, site): (usize, usize)| {
        let all = rounds.iter().map(|round| (round.nanos(load, site), round.loads[load])).collect();
        let (nanos, taken) = median(all, |(nanos, _)| *nanos);

        let name = LOADS[load].name;
        let name = if site == 0 { name.to_owned() } else { format!("{name}-home") };
        let counts = counts[load][site];

        // Differences between these and what was measured are what the terms do not explain.
        let (fitted, simulated) = (predict(&counts, fitted), predict(&counts, &reckoned));
        Shown { name, counts, nanos, fitted, simulated, taken }
    };
    places(counts).map(show).collect()
}

/// The terms and the loads, as a report.
fn report(
    options: &CalibrateOptions,
    terms: &[Term],
    shown: &[Shown],
    rounds: &[Round],
    disk: String,
    epsilon_us: u64,
) -> Report {
    let digits = |value: f64| (value * 1e3).round() / 1e3;

    // The first run has the terms; it lasted as long as all loads together.
    let mut first = Run::new("terms");
    let takens = || rounds.iter().flat_map(|round| &round.loads);
    first.committed = takens().map(|taken| taken.requests).sum();
    first = first.took(takens().map(|taken| taken.seconds).sum());
    for term in terms {
        let all = json!({
            "measured": digits(term.measured), "least": digits(term.least), "most": digits(term.most),
            "simulated": term.simulated, "ratio": digits(term.ratio()),
        });
        first = first.with(term.name, all);
    }

    // The fit is of the sites' own threads: what other threads take is told beside it.
    let all = takens().flat_map(|taken| taken.worked).fold(Worked::default(), Worked::and);
    let (syncs, seconds) = takens().fold((0.0, 0.0), |sum, taken| (sum.0 + taken.syncs, sum.1 + taken.sync_seconds));
    let site_sync = (seconds / f64::max(syncs, 1.0) * 1e6).round();
    first = first.with("site_sync_us", site_sync);
    first = first.with("beside_share", digits(all.beside / (all.site + all.beside).max(f64::MIN_POSITIVE)));

    let run = |shown: &Shown| {
        let mut run = Run::new(shown.name.clone());
        run.committed = shown.taken.requests;
        let mut run = run.took(shown.taken.seconds);
        for (name, count) in ["inputs", "operations", "objects", "sends", "bytes"].into_iter().zip(shown.counts) {
            run = run.with(name, digits(count));
        }

        let times = [("cpu_ns", shown.nanos), ("fitted_ns", shown.fitted), ("simulated_ns", shown.simulated)];
        times.into_iter().fold(run, |run, (name, nanos)| run.with(name, nanos.round()))
    };

    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let rounds = format!(
        "{}, of which the medians and the spread are shown; in each, {} loads of {} ms",
        options.rounds,
        LOADS.len(),
        options.length.as_millis()
    );

    let fact = |name: &str, fact: String| (name.to_owned(), fact);
    Report {
        workload: "calibrate".into(),
        mode: Mode::Live,
        seed: options.seed,
        data: "generated".into(),
        epsilon_us,
        cost_model: None,
        runs: std::iter::once(first).chain(shown.iter().map(run)).collect(),
        verified: true,
        facts: vec![
            fact("machine", format!("this one: {cpus} processors, {}", std::env::consts::ARCH)),
            fact("disk", disk),
            fact("round trips", "two sites and the clients are on the same machine; no delay is put in".into()),
            fact("rounds", rounds),
            fact("load", format!("{} callers, each with a stream and one request under way", options.callers)),
            fact(
                "processor",
                "time that the site's thread had one; other work takes none of it, but takes caches away".into(),
            ),
            fact("syncs", "real time of the quickest tenth, of one writer; other work makes it longer".into()),
        ],
        figures: Vec::new(),
    }
}

impl Calibration {
    /// The terms, the loads that they come from, and the facts that both rest on.
    pub fn to_table(&self) -> String {
        let mut out = format!(
            "{:14} {:>5} {:>10} {:>10} {:>10} {:>10} {:>7}\n",
            "term", "unit", "measured", "least", "most", "simulated", "ratio"
        );
        for term in &self.terms {
            let (name, unit) = term.name.rsplit_once('_').unwrap_or((term.name, ""));
            let unit = if unit == "us" { "µs" } else { unit };
            let [measured, least, most] = [term.measured, term.least, term.most].map(figure);
            let simulated = term.simulated;
            let _ = writeln!(
                out,
                "{name:14} {unit:>5} {measured:>10} {least:>10} {most:>10} {simulated:>10} {:>7.2}",
                term.ratio()
            );
        }

        // Below the terms the loads that they were fitted to; the first run has no load.
        let _ = writeln!(
            out,
            "\n{:14} {:>8} {:>8} {:>9} {:>6} {:>5} {:>5} {:>5} {:>7}",
            "a request of", "cpu µs", "fitted", "simulated", "inputs", "ops", "objs", "sends", "bytes"
        );
        for run in &self.report.runs[1..] {
            let of = |name: &str| run.figure(name).unwrap_or(0.0);
            let _ = writeln!(
                out,
                "{:14} {:>8.1} {:>8.1} {:>9.1} {:>6} {:>5} {:>5} {:>5} {:>7}",
                run.config,
                of("cpu_ns") / 1e3,
                of("fitted_ns") / 1e3,
                of("simulated_ns") / 1e3,
                of("inputs"),
                of("operations"),
                of("objects"),
                of("sends"),
                of("bytes").round(),
            );
        }

        let of = |name: &str| self.report.runs[0].figure(name).unwrap_or(0.0);
        let (sync, beside) = (of("site_sync_us"), of("beside_share") * 100.0);
        let _ = writeln!(out, "\nsyncs of the site under these loads: {sync} µs, the mean");
        let _ = writeln!(out, "processor time of threads beside the sites' own: {beside:.0} %\n");
        out + &self.report.facts_table()
    }
}

/// A number with three digits or more.
fn figure(value: f64) -> String {
    match value {
        _ if value < 9.995 => format!("{value:.2}"),
        _ if value < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_tell_the_terms_apart() {
        let counts: Vec<_> = LOADS.iter().map(|load| count(load).expect("it can be carried out")).collect();
        let known = [2_000.0, 500.0, 1_000.0, 1_500.0, 2.0];
        let row = |(load, site): (usize, usize)| {
            let counts = counts[load][site];
            Row { counts, nanos: predict(&counts, &known) }
        };
        let found = fit(&places(&counts).map(row).collect::<Vec<_>>());
        for (found, known) in found.iter().zip(&known) {
            assert!((found / known - 1.0).abs() < 1e-6, "{found} is not {known}");
        }
    }

    #[test]
    fn a_line_has_no_part_below_zero() {
        assert_eq!(line((100.0, 300.0), (200.0, 500.0)), (100.0, 2.0));
        assert_eq!(line((100.0, 300.0), (200.0, 200.0)), (300.0, 0.0));
        assert_eq!(line((100.0, 100.0), (200.0, 300.0)), (0.0, 2.0));
    }
}
