//! Every workload, tiny: that it runs, and that its result is checked and makes sense.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use slackline_bench::calibrate::{CalibrateOptions, calibrate};
use slackline_bench::footprint::{FootprintOptions, footprint};
use slackline_bench::handle::waiting::{WaitingOptions, waiting};
use slackline_bench::handle::{CoreOptions, core};
use slackline_bench::hot::{HotOptions, Live, hot};
use slackline_bench::postgres::Installation;
use slackline_bench::quota::{Limit, QuotaOptions, choose_limit, play, quota};
use slackline_bench::report::{Mode, Report, Run};
use slackline_bench::rtt::{Matrix, Rtt};
use slackline_bench::samya::{self, Experiment, SamyaOptions, samya};
use slackline_bench::trace::Format;
use slackline_bench::txns::single::{SingleOptions, reads, writes};
use slackline_bench::txns::topk::{TopkOptions, topk, write_hits};
use slackline_bench::txns::tpcc::{Balance, Skew, TpccOptions, tpcc};
use slackline_bench::txns::{
    BankOptions, Baseline, Config, CoursesOptions, Oo7Options, Terms, TwitterOptions, TxnsError, bank, courses, oo7,
    twitter,
};
use slackline_bench::voting::{Strategy, VotingOptions, voting, write_events};
use slackline_bench::{central, demand};
use slackline_sim::Costs;

/// A directory for data on the disk that the tests are built on.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned()
}

/// A file in it.
fn file(name: &str, text: &str) -> PathBuf {
    let path = directory().join(format!("{}-{name}", std::process::id()));
    std::fs::write(&path, text).expect("the directory can be written");
    path
}

fn run<'a>(report: &'a Report, config: &str) -> &'a Run {
    report.run(config).unwrap_or_else(|| panic!("no run {config}"))
}

fn figure(run: &Run, name: &str) -> f64 {
    run.figure(name).unwrap_or_else(|| panic!("no figure {name} in {}", run.config))
}

/// What every report must be: one object with the keys of its definition in their order, and a narrow table.
fn is_well_formed(report: &Report) {
    let json = report.to_json();
    let object: Value = serde_json::from_str(&json).expect("one JSON object");
    let keys = ["workload", "mode", "seed", "data", "epsilon_us", "cost_model", "runs", "verified"];
    let places: Vec<_> = keys.map(|key| json.find(&format!("\"{key}\":"))).to_vec();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{json}");
    assert_eq!(object.as_object().map(|object| object.len()), Some(keys.len()));
    assert_eq!(object["verified"], Value::Bool(true));
    for run in object["runs"].as_array().expect("a list") {
        for key in ["config", "committed", "refused", "unknown", "duration_s", "throughput_per_s"] {
            assert!(!run[key].is_null(), "{key} is missing in {run}");
        }
        for key in ["rebalances", "gifts", "retracts"] {
            assert!(run[key].is_u64(), "{key} is missing in {run}");
        }
        // A baseline without sites has none of these.
        let config = run["config"].as_str().expect("a name");
        let has_sites = !config.starts_with("postgres");
        assert_eq!((run["local_ratio"].is_f64(), run["wan_messages"].is_u64()), (has_sites, has_sites), "{run}");
        for key in ["p50", "p90", "p95", "p99", "p999", "max"] {
            assert!(run["latency_ms"][key].is_f64(), "{key} is missing in {run}");
        }
    }
    let table = report.to_table();
    let widest = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(widest <= 80, "{widest} columns:\n{table}");
    assert!(table.contains("seed") && table.contains("verified"), "{table}");
}

#[test]
fn core_grants_every_acquire_it_is_asked_for() {
    let report = core(&CoreOptions { quotas: 300, acquires: 5_000, rounds: 3, ..CoreOptions::default() });
    is_well_formed(&report);
    for config in ["batch-1", "batch-64"] {
        let run = run(&report, config);
        assert_eq!((run.committed, run.refused, run.unknown), (5_000, 0, 0));
        assert!(figure(run, "logged_bytes_per_acquire") > 20.0);
    }
    for config in ["add", "add-treaty"] {
        assert_eq!((run(&report, config).committed, run(&report, config).unknown), (5_000, 0));
    }
    assert!(figure(run(&report, "add-treaty"), "ns_over_add").is_finite());
}

#[test]
fn waiting_operations_are_all_there_and_each_is_ended_once() {
    let report = waiting(&WaitingOptions { waiting: 3_000, operations: 200, seed: 1 });
    is_well_formed(&report);
    assert_eq!(figure(run(&report, "release"), "waiting"), 9_000.0);
    assert_eq!(figure(run(&report, "outcome"), "waiting"), 8_800.0);
    assert_eq!(figure(run(&report, "tick"), "waiting"), 8_600.0);
    for config in ["release", "outcome", "tick"] {
        assert!(figure(run(&report, config), "ns_per_operation") > 0.0);
    }
}

#[test]
fn quota_on_generated_demand_beats_the_run_without_redistribution() {
    let options = QuotaOptions { events: Some(40_000), limit: Limit::Auto(1.05), ..QuotaOptions::default() };
    let report = quota(&options).expect("it runs");
    is_well_formed(&report);
    let (ours, without, central) =
        (run(&report, "slackline"), run(&report, "no-redistribution"), run(&report, "central"));
    assert!(ours.local_ratio > Some(0.9) && ours.local_ratio < Some(1.0), "{:?}", ours.local_ratio);
    assert!(figure(without, "refused_acquires") > 5.0 * figure(ours, "refused_acquires").max(1.0));
    assert_eq!((without.local_ratio, without.gifts, without.rebalances), (Some(1.0), 0, 0));
    assert!(ours.gifts > 0 && figure(ours, "sim_inputs_per_s") > 0.0);
    assert_eq!(figure(central, "limit"), (figure(central, "tight_limit") * 1.05).round());
    // An ideal counter takes no time: the table has nothing to say of it.
    let table = report.to_table();
    let latencies = table.lines().rfind(|line| line.starts_with("central ")).expect("a row of latencies");
    assert!(latencies.split_whitespace().skip(1).all(|cell| cell == "-"), "{table}");
    // The same seed gives the same run, but for how long it really took.
    let timeless = |run: &Run| Run { more: serde_json::Map::new(), ..run.clone() };
    let again = quota(&options).expect("it runs");
    assert_eq!(format!("{:?}", timeless(ours)), format!("{:?}", timeless(run(&again, "slackline"))));
}

#[test]
fn quota_draws_its_figures() {
    let report = quota(&QuotaOptions { events: Some(4_000), sites: 3, ..QuotaOptions::default() }).expect("it runs");
    let files = report.plot(&directory().join("figures")).expect("the directory can be written");
    assert_eq!(files.len(), 3);
    for file in files {
        let svg = std::fs::read_to_string(&file).expect("it was drawn");
        assert!(svg.starts_with("<svg") && svg.contains("slackline") && !svg.contains("NaN"), "{}", file.display());
    }
}

#[test]
fn quota_replays_every_format() {
    let llm: String = (0..600)
        .map(|n| format!("2023-11-16 18:{:02}:{:02}.5,{},{}\n", 15 + n / 60, n % 60, 300 + n * 37 % 900, n % 50))
        .collect();
    let pods: String = (0..300).map(|n| format!("p{n},{},{},{}\n", n % 4, n * 3, n * 3 + 40 + n * 17 % 200)).collect();
    let events: String = (0..300).map(|n| format!("{n},{},acquire,3\n{n}.5,,release,2\n", n % 3)).collect();
    let cases = [
        (Format::AzureLlm, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{llm}")),
        (Format::Openb, format!("name,num_gpu,creation_time,deletion_time\n{pods}")),
        (Format::Events, format!("time_s,site,op,amount\n{events}")),
    ];
    for (format, text) in cases {
        let path = file(&format!("{format}.csv"), &text);
        let trace = Some((path.clone(), format));
        let options =
            QuotaOptions { trace, sites: 3, rtt: Rtt::Aws, limit: Limit::Auto(1.0), ..QuotaOptions::default() };
        let report = quota(&options).unwrap_or_else(|error| panic!("{format}: {error}"));
        std::fs::remove_file(path).expect("it was written");
        is_well_formed(&report);
        assert!(report.data.starts_with("real: ") && report.data.ends_with(&format!(", {format}")), "{}", report.data);
        let ours = run(&report, "slackline");
        assert!(ours.committed > 200 && ours.unknown == 0, "{format}: {ours:?}");
    }
}

/// A program that was refused tokens has none to give back, whatever the trace says.
#[test]
fn trace_that_releases_what_was_refused_leaves_the_books_right() {
    let text = "0,0,acquire,8\n1,1,acquire,8\n10,1,release,8\n11,0,release,8\n12,2,acquire,10\n13,2,release,3\n";
    let path = file("refused.csv", text);
    let trace = Some((path.clone(), Format::Events));
    let options = QuotaOptions { trace, sites: 3, limit: Limit::Tokens(10), ..QuotaOptions::default() };
    let report = quota(&options).unwrap_or_else(|error| panic!("{error}"));
    std::fs::remove_file(path).expect("it was written");
    let (ours, central) = (run(&report, "slackline"), run(&report, "central"));
    assert_eq!((ours.committed, ours.refused, ours.unknown), (central.committed, central.refused, 0));
    assert_eq!((central.committed, central.refused), (4, 2), "one acquire, and the release of what it asked for");
}

#[test]
fn quota_refuses_what_makes_no_sense_in_one_sentence() {
    let error = |options: QuotaOptions| quota(&options).expect_err("refused").to_string();
    let options = QuotaOptions::default;
    assert!(error(QuotaOptions { sites: 0, ..options() }).contains("--sites"));
    assert!(error(QuotaOptions { speed: 0.0, ..options() }).contains("--speed"));
    assert!(error(QuotaOptions { events: Some(0), ..options() }).contains("--events"));
    assert!(
        error(QuotaOptions { trace: Some(("nowhere.csv".into(), Format::Events)), ..options() })
            .contains("nowhere.csv")
    );
    assert!(error(QuotaOptions { rtt: Rtt::File("nowhere.csv".into()), ..options() }).contains("nowhere.csv"));
    for wrong in ["", "auto:", "auto:0", "auto:x", "0", "-3", "1.5"] {
        assert!(wrong.parse::<Limit>().expect_err(wrong).contains("is not a limit"));
    }
    assert_eq!(("auto:1.05".parse(), "5000".parse()), (Ok(Limit::Auto(1.05)), Ok(Limit::Tokens(5000))));
}

/// Every experiment of the paper, for a few seconds: each says what it compared, and draws it.
#[test]
fn samya_runs_every_experiment() {
    for experiment in Experiment::ALL {
        let has_quotas = matches!(experiment, Experiment::Storm | Experiment::Idle);
        let options = SamyaOptions {
            seconds: (experiment != Experiment::Storm).then_some(if has_quotas { 10.0 } else { 0.5 }),
            quotas: if has_quotas { vec![1, 40] } else { Vec::new() },
            ..SamyaOptions::new(experiment)
        };
        let report = samya(&options).unwrap_or_else(|error| panic!("{experiment}: {error}"));
        is_well_formed(&report);
        let idle = experiment == Experiment::Idle;
        for run in &report.runs {
            assert_eq!(run.committed > 0, !idle, "{experiment}: {run:?}");
            assert_eq!(
                run.figure("x").is_some(),
                report.runs.iter().filter(|other| other.config == run.config).count() > 1
            );
        }
        assert!(!report.figures.is_empty() && report.facts.iter().any(|(name, _)| name == "the paper"));
        let drawn = report.plot(&directory().join("samya")).expect("the directory can be written");
        for file in drawn {
            let svg = std::fs::read_to_string(&file).expect("it was drawn");
            assert!(svg.starts_with("<svg") && !svg.contains("NaN"), "{}", file.display());
        }
    }
}

/// What the paper found, and what the acceptance asks, as far as ten minutes show it.
#[test]
fn samya_has_the_order_of_the_paper() {
    let short = |experiment| SamyaOptions { seconds: Some(600.0), ..SamyaOptions::new(experiment) };
    let latency = samya(&short(Experiment::Latency)).expect("it runs");
    let of = |config| run(&latency, config);
    let (ours, theirs, paxos) = (of("slackline"), of("samya-majority"), of("multi-paxos"));
    assert_eq!((ours.refused, theirs.refused), (0, 0));
    assert!(ours.latency_ms.p99 <= 2.0 * ours.latency_ms.p50, "{ours:?}");
    assert!(theirs.latency_ms.p99 > 20.0 * ours.latency_ms.p99, "rounds queue all clients: {theirs:?}");
    assert!(of("demarcation").latency_ms.p99 > theirs.latency_ms.p99);
    assert!(2 * ours.rebalances <= theirs.rebalances, "{ours:?} {theirs:?}");
    let times = theirs.throughput_per_s / paxos.throughput_per_s;
    assert!((8.0..=36.0).contains(&times), "the paper has 16 to 18: {times}");
    assert!(of("quorum").throughput_per_s > 10.0 * paxos.throughput_per_s);

    let again = samya(&short(Experiment::Latency)).expect("it runs");
    assert_eq!(format!("{:?}", latency.runs), format!("{:?}", again.runs), "the same seed gives the same runs");

    let bounds =
        samya(&SamyaOptions { seconds: Some(1_500.0), ..SamyaOptions::new(Experiment::Bounds) }).expect("it runs");
    let (most, least) = (run(&bounds, "no-constraint"), run(&bounds, "no-redistribution"));
    let lost = 1.0 - least.committed as f64 / most.committed as f64;
    assert!((0.07..=0.28).contains(&lost), "the paper has 14 %: {lost}");
}

#[test]
fn samya_refuses_what_makes_no_sense_in_one_sentence() {
    let error = |options: SamyaOptions| samya(&options).expect_err("refused").to_string();
    let latency = || SamyaOptions::new(Experiment::Latency);
    let cases = [
        (SamyaOptions { speed: 0.0, ..latency() }, "--speed"),
        (SamyaOptions { seconds: Some(1e-5), ..latency() }, "--seconds"),
        (SamyaOptions { callers: Some(0), ..latency() }, "--callers"),
        (SamyaOptions { quotas: vec![3], ..latency() }, "--quotas"),
        (SamyaOptions { configs: vec![samya::Config::SlacklineLocal], ..latency() }, "slackline-local"),
        (SamyaOptions { limit: Some(Limit::Tokens(3)), ..SamyaOptions::new(Experiment::Limit) }, "--limit"),
        (SamyaOptions { rtt: Rtt::File("nowhere.csv".into()), ..latency() }, "nowhere.csv"),
    ];
    for (options, says) in cases {
        let told = error(options);
        assert!(told.contains(says), "{says}: {told}");
    }
}

/// What the acceptance asks of real traces, of a look-alike of the burstier one.
#[test]
fn bursty_demand_is_served_locally_and_hardly_refused_more_than_centrally() {
    let matrix = Matrix::new(&Rtt::Gcp, 5).expect("built in");
    for (factor, least) in [(1.05, 0.95), (1.0, 0.92)] {
        let mut trace = demand::bursty(3_000, 1);
        trace.place(5, 1);
        let prepared = choose_limit(trace, Limit::Auto(factor));
        assert_eq!(prepared.central, central::replay(&prepared.trace, prepared.limit));
        let play = |redistribute| play(&prepared, &matrix, Costs::default(), 1, redistribute).expect("the books hold");
        let (ours, without) = (play(true), play(false));
        assert!(ours.local_ratio >= Some(least), "{factor}: {:?}", ours.local_ratio);
        assert!(figure(&ours, "refused_of_central") <= 1.15, "{factor}: {:?}", ours.more);
        assert!(figure(&without, "refused_of_central") > 1.15, "{factor}: {:?}", without.more);
    }
}

#[test]
fn hot_simulated_is_faster_with_more_callers() {
    let options = HotOptions { callers: vec![1, 64, 512], round: Duration::from_millis(50), ..HotOptions::default() };
    let report = hot(&options).expect("it runs");
    is_well_formed(&report);
    let [one, many, crowd] = ["callers-1", "callers-64", "callers-512"].map(|config| run(&report, config));
    assert!(many.throughput_per_s > 20.0 * one.throughput_per_s, "{one:?} {many:?}");
    assert!(crowd.throughput_per_s > many.throughput_per_s, "{many:?} {crowd:?}");
    assert!(one.latency_ms.p50 > 0.12 && figure(one, "syncs") > 100.0, "{one:?}");
}

#[test]
fn hot_live_has_every_grant_in_the_books() {
    let live = Some(Live { binary: None, directory: directory() });
    let options =
        HotOptions { callers: vec![16], round: Duration::from_millis(200), rounds: 3, live, ..HotOptions::default() };
    let report = hot(&options).expect("it runs");
    is_well_formed(&report);
    for config in ["callers-16", "floor-16"] {
        let run = run(&report, config);
        assert!(run.committed > 100 && figure(run, "syncs") > 1.0, "{run:?}");
    }
    assert!(figure(run(&report, "callers-16"), "floor_ratio") > 0.0, "{report:?}");
    assert!(figure(run(&report, "floor-16"), "operation_bytes") > 10.0, "{report:?}");
    assert!(report.facts.iter().any(|(name, _)| name == "disk"));
}

#[test]
fn footprint_finds_every_quota_again() {
    let options = FootprintOptions {
        quotas: 200,
        grants: 3_000,
        ..FootprintOptions::new(Live { binary: None, directory: directory() })
    };
    let report = footprint(&options).expect("it runs");
    is_well_formed(&report);
    let run = run(&report, "slackline");
    assert_eq!((figure(run, "quotas"), figure(run, "grants"), run.committed), (200.0, 3_000.0, 3_400));
    assert!(figure(run, "rss_mb") > 1.0 && figure(run, "ready_s") < 30.0, "{run:?}");
}

#[test]
fn calibrate_finds_every_term() {
    let options = CalibrateOptions {
        callers: 2,
        length: Duration::from_millis(20),
        rounds: 3,
        ..CalibrateOptions::new(Live { binary: None, directory: directory() })
    };
    let found = calibrate(&options).expect("it runs");
    is_well_formed(&found.report);
    let names = ["input_ns", "operation_ns", "object_ns", "send_ns", "byte_ns", "sync_us", "sync_byte_ns"];
    assert_eq!(found.terms.iter().map(|term| term.name).collect::<Vec<_>>(), names);
    for term in &found.terms {
        assert!(term.measured.is_finite() && term.least >= 0.0 && term.simulated > 0.0, "{term:?}");
        assert!(term.least <= term.measured && term.measured <= term.most, "{term:?}");
        assert_eq!(found.report.runs[0].more[term.name]["simulated"], term.simulated);
    }
    // Something takes time, at each of the two sites.
    assert!(found.terms.iter().any(|term| term.measured > 0.0));
    for run in &found.report.runs[1..] {
        assert!(run.committed > 0 && figure(run, "inputs") >= 1.0 && figure(run, "cpu_ns") >= 0.0, "{run:?}");
    }
    assert!(run(&found.report, "remote-1-home").committed > 0);
    let table = found.to_table();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.contains("processors") && table.contains("disk "), "{table}");
}

#[test]
fn quota_live_has_the_same_books_on_every_disk() {
    let mut text = String::from("num_gpu,creation_time,deletion_time\n");
    (0..120).for_each(|n| text += &format!("{},{},{}\n", 1 + n % 3, n, n + 20));
    let path = file("live.csv", &text);
    let options = QuotaOptions {
        trace: Some((path.clone(), Format::Openb)),
        sites: 3,
        rtt: Rtt::Aws,
        speed: 100.0,
        live: Some(directory()),
        ..QuotaOptions::default()
    };
    let report = quota(&options).expect("it runs");
    std::fs::remove_file(path).expect("it was written");
    is_well_formed(&report);
    let ours = run(&report, "slackline");
    assert!(ours.committed > 150 && ours.unknown == 0 && figure(ours, "syncs") > 1.0, "{ours:?}");
}

/// Runs a workload of transactions twice: it is well formed, the same both times but for how fast it was simulated, and every
/// run committed something. Returns the report.
fn twice(run: impl Fn() -> Result<Report, TxnsError>) -> Report {
    let timeless = |report: &Report| {
        let runs = report.runs.iter().cloned();
        let timeless = runs.map(|mut run| {
            run.more.remove("sim_inputs_per_s");
            format!("{run:?}")
        });
        timeless.collect::<Vec<_>>()
    };
    let report = run().expect("it runs");
    is_well_formed(&report);
    assert_eq!(timeless(&report), timeless(&run().expect("it runs")));
    for run in &report.runs {
        assert!(run.committed > 20, "{run:?}");
        assert_eq!(run.unknown, 0, "{run:?}");
        let phases: f64 = run.more["phases"].as_array().expect("a list").iter().filter_map(Value::as_f64).sum();
        assert!((phases - 1.0).abs() < 1e-3, "{run:?}");
        assert!((0.0..1.0).contains(&figure(run, "abort_rate")) && figure(run, "store_cpu_share") <= 1.01, "{run:?}");
    }
    report
}

/// Fewer clients for a shorter time, both times in milliseconds.
fn smaller(terms: Terms, clients_per_store: usize, rtt: u64, measure: u64) -> Terms {
    let (rtt, measure) = (Duration::from_millis(rtt), Duration::from_millis(measure));
    Terms { clients_per_store, rtt, measure, ..terms }
}

fn share(run: &Run, phases: usize) -> f64 {
    run.more["phases"][phases].as_f64().expect("a share")
}

#[test]
fn twitter_with_warranties_needs_fewer_phases() {
    let report = twice(|| {
        let terms = smaller(TwitterOptions::default().terms, 2, 10, 4_000);
        twitter(&TwitterOptions { users: 60, terms })
    });
    let (occ, state) = (run(&report, "occ"), run(&report, "state"));
    assert_eq!(share(occ, 0), 0.0);
    assert!(share(state, 0) > 0.3, "{state:?}");
    assert!(state.throughput_per_s > 1.5 * occ.throughput_per_s, "{occ:?} {state:?}");
    assert_eq!(occ.more["write_delay_ms"]["max"], 0.0);
}

#[test]
fn oo7_with_warranties_grows_with_its_stores() {
    let report = twice(|| {
        let terms = smaller(Oo7Options::default().terms, 8, 1, 100);
        oo7(&Oo7Options { stores: vec![1, 2], composites: 20, terms, ..Oo7Options::default() })
    });
    let at = |config: &str, stores: f64| {
        let found = report.runs.iter().find(|run| run.config == config && figure(run, "stores") == stores);
        found.expect("it was run")
    };
    let growth = |config| at(config, 2.0).throughput_per_s / at(config, 1.0).throughput_per_s;
    assert!(growth("state") > growth("occ"), "{} {}", growth("state"), growth("occ"));
    assert!(share(at("state", 2.0), 0) > share(at("occ", 2.0), 0) + 0.2, "{report:?}");
    assert_eq!(report.figures.len(), 1);
    let error = oo7(&Oo7Options { stores: vec![9], ..Oo7Options::default() }).expect_err("too many").to_string();
    assert!(error.contains("--stores"), "{error}");
}

#[test]
fn bank_is_strictly_serializable_in_every_configuration() {
    let report = twice(|| {
        let terms = smaller(BankOptions::default().terms, 3, 10, 3_000);
        bank(&BankOptions { accounts: 8, terms, ..BankOptions::default() })
    });
    for run in &report.runs {
        assert!(figure(run, "judged") > run.committed as f64 && run.more["strictly_serializable"] == true, "{run:?}");
        assert!(figure(run, "abort_rate") > 0.0, "transfers between few accounts must meet: {run:?}");
    }
}

#[test]
fn courses_reads_much_more_than_it_writes() {
    let report = twice(|| {
        let terms = smaller(CoursesOptions::default().terms, 2, 20, 1_500);
        courses(&CoursesOptions { students: 24, terms, ..CoursesOptions::default() })
    });
    for run in &report.runs {
        assert!((0.001..0.3).contains(&figure(run, "write_share")), "{run:?}");
    }
    assert!(run(&report, "state").throughput_per_s > run(&report, "occ").throughput_per_s, "{report:?}");
}

#[test]
fn courses_beside_postgres_has_its_runs_on_the_same_seed() {
    let mut options = CoursesOptions {
        stores: 2,
        students: 24,
        terms: smaller(CoursesOptions::default().terms, 2, 4, 800),
        baseline: Some(Baseline::Postgres),
    };
    let error = courses(&options).expect_err("a simulation has no real server").to_string();
    assert!(error.contains("must be live"), "{error}");
    if Installation::find_or_install().is_none() {
        return;
    }
    options.terms.live = Some(directory());
    let report = courses(&options).expect("it runs");
    is_well_formed(&report);
    let configs: Vec<&str> = report.runs.iter().map(|run| &*run.config).collect();
    assert_eq!((report.mode, &*configs), (Mode::Live, &["occ", "state", "postgres", "postgres-validated"][..]));
    assert_eq!(report.figures[0].series.len(), 4);
    for (config, trips) in [("postgres", 1.7..2.5), ("postgres-validated", 2.6..3.5)] {
        let run = run(&report, config);
        assert!(run.committed > 50 && figure(run, "write_share") > 0.001, "{run:?}");
        assert!(trips.contains(&figure(run, "round_trips_per_txn")), "{run:?}");
        assert!(!run.more.contains_key("phases") && !run.more.contains_key("messages_per_txn"), "{run:?}");
        // Those who are far from the server wait for it.
        let medians: Vec<f64> =
            run.more["of_stores"]["p50_ms"].as_array().expect("a list").iter().filter_map(Value::as_f64).collect();
        assert!(medians.len() == 2 && medians[1] > 8.0, "{run:?}");
    }
}

#[test]
fn bank_live_has_its_total_and_a_serial_order() {
    let terms = smaller(BankOptions::default().terms, 2, 2, 600);
    let terms = Terms { configs: vec![Config::State], live: Some(directory()), ..terms };
    let report = bank(&BankOptions { terms, ..BankOptions::default() }).expect("it runs");
    is_well_formed(&report);
    let run = run(&report, "state");
    assert!(run.committed > 5 && run.more["strictly_serializable"] == true, "{run:?}");
}

#[test]
fn reads_and_writes_take_the_phases_that_they_should() {
    let live = || Live { binary: None, directory: directory() };
    let options = |callers| SingleOptions {
        callers: vec![callers],
        round: Duration::from_millis(300),
        rounds: 3,
        ..SingleOptions::new(live())
    };
    let report = reads(&options(8)).expect("it runs");
    is_well_formed(&report);
    // Other tests take the processor's time, in which a warranty may end.
    assert!(share(run(&report, "callers-8"), 0) > 0.5, "{report:?}");
    assert!(figure(run(&report, "callers-8"), "floor_ratio") > 0.0, "{report:?}");
    assert_eq!(figure(run(&report, "floor-8"), "syncs"), 0.0, "a floor logs nothing of reads: {report:?}");

    let report = writes(&SingleOptions { value_bytes: 64, ..options(8) }).expect("it runs");
    is_well_formed(&report);
    assert_eq!(share(run(&report, "callers-8"), 1), 1.0, "{report:?}");
    assert!(figure(run(&report, "callers-8"), "floor_ratio") > 0.0, "{report:?}");
    for config in ["callers-8", "floor-8"] {
        assert!(figure(run(&report, config), "syncs") > 0.0, "{report:?}");
    }
    assert!(figure(run(&report, "floor-8"), "operation_bytes") > 64.0, "{report:?}");
}

#[test]
fn configurations_are_refused_where_they_do_nothing() {
    assert_eq!(("occ".parse(), "state".parse()), (Ok(Config::Occ), Ok(Config::State)));
    assert_eq!("computation".parse(), Ok(Config::Computation));
    let terms = Terms { configs: vec![Config::Computation], ..TwitterOptions::default().terms };
    let refused = [
        oo7(&Oo7Options { terms: terms.clone(), ..Oo7Options::default() }).map(drop),
        bank(&BankOptions { terms: terms.clone(), ..BankOptions::default() }).map(drop),
        courses(&CoursesOptions { terms, ..CoursesOptions::default() }).map(drop),
    ];
    for refused in refused {
        let why = refused.expect_err("it calls no memoized function").to_string();
        assert!(why.contains("calls no memoized function"), "{why}");
    }
    assert!("x".parse::<Config>().expect_err("unknown").contains("is no configuration"));
}

#[test]
fn orders_under_treaties_synchronize_less_than_what_is_balanced_by_hand() {
    let options = TpccOptions {
        replicas: vec![2],
        skews: vec![Skew::Local90],
        balances: vec![Balance::Lazy, Balance::Slackline],
        orders: 4_000,
        items: 20,
        ..TpccOptions::default()
    };
    let report = tpcc(&options).expect("there are two regions");
    is_well_formed(&report);
    assert_eq!(report.to_json(), tpcc(&options).expect("likewise").to_json(), "the same seed gives the same run");
    for run in &report.runs {
        assert_eq!((run.committed, run.refused, run.unknown), (4_000, 0, 0), "{}", run.config);
        assert_eq!(figure(run, "wrong_answers"), 0.0, "{}", run.config);
        assert!(figure(run, "replenished") > 60.0 && figure(run, "delivered") > 100.0, "{}", run.config);
    }
    let share = |config: &str| figure(run(&report, config), "sync_per_order");
    // By arithmetic, with a stock of 100 pieces and orders of 3: 0.137 by hand. Small stocks of few items move faster than messages do.
    assert!((0.11..0.18).contains(&share("lazy")), "{}", share("lazy"));
    assert!(share("slackline") < 0.85 * share("lazy"), "{} of {}", share("slackline"), share("lazy"));
}

#[test]
fn top_is_known_by_a_treaty_and_by_the_algorithm_for_it() {
    // So few pages have slack for every server soon.
    let options = TopkOptions { pages: 100, minutes: 3, ..TopkOptions::default() };
    let report = topk(&options).expect("no file is read");
    let figure = |run: usize, name: &str| report.runs[run].figure(name).expect("it is there");
    assert!(report.verified && figure(0, "treaties_made") > 3.0, "{report:?}");
    assert_eq!(report.runs[0].committed, 84_398 * 3 / 60 + 180, "{report:?}");
    assert!(figure(0, "synchronizations") * 2.0 < figure(1, "synchronizations"), "{report:?}");
    assert_eq!(report.to_json(), topk(&options).expect("likewise").to_json(), "the same seed gives the same run");

    let path = std::env::temp_dir().join(format!("slackline-topk-{}.csv", std::process::id()));
    write_hits(&options, &path).expect("it can be written");
    let hits = std::fs::read_to_string(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it was there");
    assert_eq!(hits.lines().count() as u64, report.runs[0].committed - 180 + 1);
    let missing = TopkOptions { requests: Some("nowhere.csv".into()), ..options };
    assert!(topk(&missing).is_err_and(|error| error.to_string().contains("nowhere.csv: cannot be read")));
}

fn voting_options(trials: u32, stations: usize, bias: (u32, u32)) -> VotingOptions {
    VotingOptions { stations: vec![stations], bias, trials, strategies: Strategy::ALL.to_vec(), seed: 1 }
}

#[test]
fn stations_with_a_treaty_go_on_alone_and_static_division_runs_out() {
    let report = voting(&voting_options(4, 2, (60, 48)));
    assert!(report.verified, "no answer is wrong");
    let figure = |config: &str, name: &str| report.run(config).and_then(|run| run.figure(name)).expect(name);
    assert_eq!((figure("predictive", "synchronized"), figure("slackline", "synchronized")), (0.0, 0.0));
    assert_eq!((figure("equal", "synchronized"), figure("optimal", "synchronized")), (4.0, 4.0));
    let (equal, optimal) = (figure("equal", "median_s"), figure("optimal", "median_s"));
    assert!(optimal > 1.3 * equal, "{optimal} and {equal}");
}

/// With equal division, a station fails when it has lost half of the lead that there was. That is arithmetic on its votes.
#[test]
fn equal_division_fails_when_the_votes_say_so() {
    let options = VotingOptions { strategies: vec![Strategy::Equal], ..voting_options(6, 2, (60, 48)) };
    let path = std::env::temp_dir().join(format!("slackline-voting-{}.csv", std::process::id()));
    write_events(&options, &path).expect("writable");
    let text = std::fs::read_to_string(&path).expect("written");
    std::fs::remove_file(&path).expect("it is there");
    let mut expected = Vec::new();
    for trial in 1..=6u32 {
        let lines = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
        let of_trial: Vec<(f64, usize, i64)> = lines
            .filter(|fields| fields[0] == trial.to_string())
            .map(|fields| {
                let at = fields[1].parse::<f64>().expect("a time") / 1e6;
                (at, fields[2].parse::<usize>().expect("a station") - 1, if fields[3] == "A" { 1 } else { -1 })
            })
            .collect();
        let made = 30.0;
        let mut margins = [0i64; 2];
        of_trial.iter().filter(|(at, ..)| *at < made).for_each(|(_, station, vote)| margins[*station] += vote);
        let slack = margins.iter().sum::<i64>() - 1;
        let bounds = [margins[0] - slack / 2 - slack % 2, margins[1] - slack / 2];
        let first = of_trial.iter().filter(|(at, ..)| *at >= made).find(|(_, station, vote)| {
            margins[*station] += vote;
            margins[*station] < bounds[*station]
        });
        expected.push(first.map_or(400.0, |(at, ..)| at - made));
    }
    expected.sort_by(f64::total_cmp);
    let report = voting(&options);
    let median = report.runs[0].figure("median_s").expect("it has one");
    assert!((median / expected[2] - 1.0).abs() < 0.1, "{median} for {}", expected[2]);
}
