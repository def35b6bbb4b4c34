//! Runs of an experiment on all cores, and the report of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use slackline_sim::Costs;

use super::clients::Clients;
use super::config::Config;
use super::course::{Course, SamyaOptions, courses};
use super::experiment::Experiment;
use super::geography::Globe;
use super::ledger::{Count, Ledger, PARTS};
use super::{many, paper, play};
use crate::EPSILON;
use crate::figure::{Axis, Figure, Scale, Series};
use crate::histogram::Histogram;
use crate::quota::QuotaError;
use crate::report::{Mode, Report, Run, latency_figure};

/// A run, and what figures need of it.
struct Played {
    run: Run,
    latencies: Histogram,
    timeline: Vec<Count>,
    /// The time of the run, in microseconds.
    length: u64,
}

/// Runs `bench samya`.
pub fn samya(options: &SamyaOptions) -> Result<Report, QuotaError> {
    options.check()?;
    let globe = Globe::new(&options.rtt)?;
    let configs = options.chosen();

    let (played, data, mut facts) = if options.experiment.has_quotas() {
        (with_many(options, &globe, &configs)?, "generated".to_owned(), Vec::new())
    } else {
        let courses = courses(options, &globe)?;
        let data = courses[0].trace.as_ref().map_or("generated".to_owned(), |trace| trace.data.clone());
        let facts = limit_facts(&courses);
        (with_one(options, &globe, &configs, &courses)?, data, facts)
    };

    facts.insert(0, ("round trips".to_owned(), globe.describe()));
    let figures = figures(options, &played);
    let named = |played: Played| played.run.with("experiment", options.experiment.name());
    let runs: Vec<Run> = played.into_iter().map(named).collect();
    facts.extend(paper::beside(options.experiment, &runs));
    Ok(Report {
        workload: "samya".into(),
        mode: Mode::Sim,
        seed: options.seed,
        data,
        epsilon_us: EPSILON,
        cost_model: Some(Costs::default()),
        runs,
        verified: true,
        facts,
        figures,
    })
}

/// The runs of an experiment about one quota.
fn with_one(
    options: &SamyaOptions,
    globe: &Globe,
    configs: &[Config],
    courses: &[Course],
) -> Result<Vec<Played>, QuotaError> {
    let runs: Vec<(Config, &Course)> =
        courses.iter().flat_map(|course| configs.iter().map(move |config| (*config, course))).collect();
    on_all_cores(&runs, |(config, course)| one(*config, course, globe, options.seed))
}

/// One run.
fn one(config: Config, course: &Course, globe: &Globe, seed: u64) -> Result<Played, QuotaError> {
    let mut system = config.start(globe, course.sites, course.limit, Costs::default(), seed);
    let place = globe.shared(course.sites);
    let in_two = (0..course.sites).map(|region| place.is_region_in_two(region)).collect();

    let limit = config.is_limited().then_some(course.limit);
    let ledger = Ledger::new(limit, course.length(), course.phases.clone());
    let mut clients = Clients::new(course.work(), in_two, system.now(), ledger, seed);
    play::play(&mut *system, &mut clients, &course.faults).map_err(|what| wrong(config, what))?;

    let counts = system.counts();
    let mut run = clients.ledger.run(config.name());
    run.rebalances = counts.rebalances;
    run.gifts = counts.gifts;
    run.wan_messages = Some(counts.wan_messages);
    let run = run.with("limit", course.limit).with("syncs", counts.syncs);
    let run = match course.tight {
        Some(tight) => run.with("tight_limit", tight),
        None => run,
    };
    let (latencies, timeline) = clients.ledger.drawn();
    Ok(Played { run: at(run, config, course.x), latencies, timeline, length: course.length() })
}

/// The runs of an experiment about many quotas.
fn with_many(options: &SamyaOptions, globe: &Globe, configs: &[Config]) -> Result<Vec<Played>, QuotaError> {
    let experiment = options.experiment;
    let numbers = if options.quotas.is_empty() { experiment.points().to_vec() } else { options.quotas.clone() };
    let runs: Vec<(Config, u64)> =
        numbers.iter().flat_map(|number| configs.iter().map(move |config| (*config, *number))).collect();
    on_all_cores(&runs, |&(config, number)| {
        let (quotas, costs, seed) = (number as usize, Costs::default(), options.seed);
        let found = match experiment {
            Experiment::Storm => many::storm(config, globe, quotas, costs, seed),
            _ => {
                many::idle(config, globe, quotas, options.played(), costs, seed).map(|run| (run, Histogram::default()))
            }
        };
        let (run, latencies) = found.map_err(|what| wrong(config, what))?;
        Ok(Played { run: at(run, config, Some(number)), latencies, timeline: Vec::new(), length: 0 })
    })
}

fn wrong(config: Config, what: String) -> QuotaError {
    QuotaError::Books { config: config.to_string(), what }
}

/// The longest name of a run that a table has room for.
const NAME: usize = 20;

/// A run that differs from others of its configuration by this.
fn at(mut run: Run, config: Config, x: Option<u64>) -> Run {
    let told = |name: &str| x.map_or(name.to_owned(), |x| format!("{name} {x}"));
    let full = told(config.name());
    run.label = Some(if full.len() <= NAME { full } else { told(config.short()) });
    match x {
        Some(x) => run.with("x", x),
        None => run,
    }
}

/// Does something with all items, on as many threads as there are cores; the results are in the order of the items.
fn on_all_cores<T: Sync, R: Send>(
    items: &[T],
    act: impl Fn(&T) -> Result<R, QuotaError> + Sync,
) -> Result<Vec<R>, QuotaError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<R, QuotaError>)>> = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores.min(items.len()) {
            scope.spawn(|| {
                while let Some((order, item)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|order| items.get(order).map(|item| (order, item)))
                {
                    let result = act(item);
                    results.lock().expect("no thread panics while it holds this").push((order, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("all threads have ended");
    results.sort_by_key(|(order, _)| *order);
    results.into_iter().map(|(_, result)| result).collect()
}

/// What an ideal counter that takes no time would refuse, of each course.
fn limit_facts(courses: &[Course]) -> Vec<(String, String)> {
    let of = |course: &Course| {
        let ((ideal, scarce), trace) = (course.ideal?, course.trace.as_ref()?);
        let x = course.x.map_or(String::new(), |x| format!("at {x}: "));
        let tight = course.tight.map_or(String::new(), |tight| format!("; the tight limit is {tight}"));
        Some(format!(
            "{x}{} tokens; an ideal counter that takes no time refuses {} of {} acquires, and {scarce} of them find it with less than a \
             hundredth of its tokens{tight}",
            course.limit,
            ideal.refused,
            trace.acquires()
        ))
    };
    let told: Vec<String> = courses.iter().filter_map(of).collect();
    if told.is_empty() { Vec::new() } else { vec![("limit".to_owned(), told.join("; "))] }
}

/// What `--plot` draws: latencies and throughput over time, or throughput and latency by what the runs differ in.
fn figures(options: &SamyaOptions, played: &[Played]) -> Vec<Figure> {
    let experiment = options.experiment;
    let name = |what: &str| format!("samya-{experiment}-{what}");
    let Some(axis) = experiment.axis() else {
        let latencies = played.iter().map(|played| (played.run.config.as_str(), &played.latencies));
        return vec![latency_figure(&name("latency"), latencies), over_time(&name("throughput"), played)];
    };

    let by_x = |what: &str, title: &str, counted: &str, figure: &dyn Fn(&Run) -> f64| {
        let mut series: Vec<Series> = Vec::new();
        for Played { run, .. } in played {
            let point = (run.figure("x").unwrap_or(0.0), figure(run));
            match series.iter_mut().find(|series| series.name == run.config) {
                Some(series) => series.points.push(point),
                None => series.push(Series::new(&run.config, vec![point])),
            }
        }
        Figure {
            name: name(what),
            title: title.into(),
            x: Axis::new(axis, Scale::Linear),
            // What one site does alone is far from what all must agree on.
            y: Axis::new(counted, if experiment == Experiment::Reads { Scale::Log } else { Scale::Linear }),
            series,
        }
    };
    match experiment {
        Experiment::Idle => {
            let messages = |run: &Run| run.wan_messages.unwrap_or(0) as f64;
            vec![by_x("messages", "Messages between sites", "messages", &messages)]
        }
        _ => vec![
            by_x("throughput", "Operations done in a second", "operations a second", &|run| run.throughput_per_s),
            by_x("latency", "The 99th percentile of latencies", "milliseconds", &|run| run.latency_ms.p99),
        ],
    }
}

/// Operations done in a second, over the time of a run.
fn over_time(name: &str, played: &[Played]) -> Figure {
    let line = |played: &Played| {
        let seconds = played.length as f64 / 1e6 / PARTS as f64;
        let point = |(part, count): (usize, &Count)| {
            ((part + 1) as f64 * seconds / 60.0, count.committed as f64 / seconds.max(1e-6))
        };
        Series::new(&played.run.config, played.timeline.iter().enumerate().map(point).collect())
    };
    Figure {
        name: name.into(),
        title: "Operations done in a second".into(),
        x: Axis::new("time in minutes", Scale::Linear),
        y: Axis::new("operations a second", Scale::Linear),
        series: played.iter().map(line).collect(),
    }
}
