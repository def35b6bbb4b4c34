//! The paper's figures, beside what is measured here.

use serde_json::Value;

use super::experiment::Experiment;
use crate::report::Run;

/// Facts of an experiment: the paper's figure, and ours in the same terms.
pub(super) fn beside(experiment: Experiment, runs: &[Run]) -> Vec<(String, String)> {
    let theirs = ("the paper".to_owned(), theirs(experiment).to_owned());
    let ours = ours(experiment, runs).map(|told| ("here".to_owned(), told));
    [theirs].into_iter().chain(ours).collect()
}

/// The paper's figure.
fn theirs(experiment: Experiment) -> &'static str {
    match experiment {
        Experiment::Latency => {
            "table 2b: p90 1.40, p95 10.2, p99 65.1 ms with the majority version; demarcation 3.5, 59.6, 213.9; multi-Paxos 126.8, \
             172.7, 276.3; 208 rounds with the majority version"
        }
        Experiment::Throughput => "figure 3b: 16 to 18 times multi-Paxos, 1.3 times demarcation",
        Experiment::Bounds => {
            "figure 3e: 3.5 to 4 % below no constraint; no redistribution loses about 14 % (Samya has 14 % more)"
        }
        Experiment::Prediction => "figure 3f: 1.4 times as much with predictions",
        Experiment::Crash => {
            "figure 3c: a site and its clients are lost every ten minutes; with the third loss multi-Paxos ends, and Samya serves what it \
             can locally"
        }
        Experiment::Partition => "figure 3d: three to two for thirty minutes; multi-Paxos serves the three alone",
        Experiment::Sites => "figure 3g: throughput grows with the sites from 5 to 20, and latency stays",
        Experiment::Reads => {
            "figure 3h: multi-Paxos overtakes Samya at about 65 % reads; there a read of Samya asks all sites"
        }
        Experiment::Limit => {
            "section 5.9: five times the throughput when the limit goes from the mean to the maximum of the demand"
        }
        Experiment::Rate => "section 5.9: at the original rate (300 s) still 43 % more than multi-Paxos",
        Experiment::Hot | Experiment::Small | Experiment::Storm | Experiment::Idle => "has no such experiment",
    }
}

/// Ours, as far as the configurations ran that it is about.
fn ours(experiment: Experiment, runs: &[Run]) -> Option<String> {
    let found = |name: &str| runs.iter().find(|run| run.config == name);
    let growth = |name: &str| {
        both(
            ends(runs, name, "throughput", |run| run.throughput_per_s),
            ends(runs, name, "p99", |run| run.latency_ms.p99),
        )
    };
    match experiment {
        Experiment::Latency => found("samya-majority").zip(found("multi-paxos")).map(|(samya, paxos)| {
            let of = |run: &Run| {
                let at = &run.latency_ms;
                format!("{:.2}, {:.1}, {:.1}", at.p90, at.p95, at.p99)
            };
            format!("samya-majority {} ms, multi-paxos {}; {} rounds", of(samya), of(paxos), samya.rebalances)
        }),
        Experiment::Throughput => times(runs, "samya-majority", &["multi-paxos", "quorum", "demarcation", "escrow"]),
        Experiment::Bounds => found("no-constraint").map(|most| {
            let below = |run: &Run| {
                format!("{} {:.1} %", run.config, 100.0 * (1.0 - run.throughput_per_s / most.throughput_per_s))
            };
            let all: Vec<String> = runs.iter().filter(|run| run.config != most.config).map(below).collect();
            format!("below no-constraint: {}", all.join(", "))
        }),
        Experiment::Prediction => both(
            times(runs, "slackline", &["slackline-reactive"]),
            times(runs, "samya-majority", &["samya-majority-reactive"]),
        ),
        Experiment::Crash => in_phase(runs, "after the third loss", |_, order| order >= 3),
        Experiment::Partition => in_phase(runs, "in the smaller part", |phase, _| phase["part"] == "two"),
        Experiment::Sites | Experiment::Limit => both(growth("slackline"), growth("samya-majority")),
        Experiment::Reads => {
            both(crossing(runs, "samya-majority", "multi-paxos"), crossing(runs, "slackline", "quorum"))
        }
        Experiment::Rate => slowest(runs, "samya-majority", "multi-paxos"),
        Experiment::Hot => times(runs, "slackline", &["quorum", "multi-paxos", "central-waiting"]),
        Experiment::Small => both(times(runs, "slackline", &["no-constraint"]), found("slackline").map(moves_of_each)),
        Experiment::Storm => ends(runs, "slackline", "the longest wait", |run| run.latency_ms.max),
        Experiment::Idle => ends(runs, "slackline", "messages", |run| run.wan_messages.unwrap_or(0) as f64),
    }
}

fn both(one: Option<String>, other: Option<String>) -> Option<String> {
    let all: Vec<String> = one.into_iter().chain(other).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The throughput of a configuration in terms of that of others.
fn times(runs: &[Run], name: &str, others: &[&str]) -> Option<String> {
    let throughput = |name: &str| runs.iter().find(|run| run.config == name).map(|run| run.throughput_per_s);
    let ours = throughput(name)?;
    let of = |other: &&str| Some(format!("{:.2} times {other}", ours / throughput(other).filter(|rate| *rate > 0.0)?));
    let all: Vec<String> = others.iter().filter_map(of).collect();
    (!all.is_empty()).then(|| format!("{name} commits {}", all.join(", ")))
}

/// The runs of a configuration.
fn of<'a>(runs: &'a [Run], name: &str) -> Vec<&'a Run> {
    runs.iter().filter(|run| run.config == name).collect()
}

/// By how much a figure of a configuration grows from its first run to its last.
fn ends(runs: &[Run], name: &str, what: &str, figure: impl Fn(&Run) -> f64) -> Option<String> {
    let of = of(runs, name);
    let (first, last) = (of.first()?, of.last()?);
    let x = |run: &Run| run.figure("x").unwrap_or(0.0);
    let times = Some(figure(last) / figure(first)).filter(|times| times.is_finite())?;
    Some(format!("{name}: from {} to {}, {what} {times:.2} times", x(first), x(last)))
}

/// Moves of tokens for each operation.
fn moves_of_each(run: &Run) -> String {
    let moves = (run.gifts + run.rebalances) as f64 / run.committed.max(1) as f64;
    format!("{} moves tokens {moves:.3} times for each operation", run.config)
}

/// What each configuration commits in some of its phases.
fn in_phase(runs: &[Run], when: &str, is_meant: impl Fn(&Value, usize) -> bool) -> Option<String> {
    let committed = |run: &Run| {
        let phases = run.more.get("phases")?.as_array()?;
        let meant = phases.iter().enumerate().filter(|(order, phase)| is_meant(phase, *order));
        let sum: u64 = meant.filter_map(|(_, phase)| phase["committed"].as_u64()).sum();
        Some(format!("{} commits {sum}", run.config))
    };
    let all: Vec<String> = runs.iter().filter_map(committed).collect();
    (!all.is_empty()).then(|| format!("{when} {}", all.join(", ")))
}

/// Where the second configuration does more than the first, on the line between the two points around.
fn crossing(runs: &[Run], name: &str, other: &str) -> Option<String> {
    let (ours, theirs) = (of(runs, name), of(runs, other));
    let ahead: Vec<(f64, f64)> = ours
        .iter()
        .zip(&theirs)
        .map(|(ours, theirs)| (ours.figure("x").unwrap_or(0.0), ours.throughput_per_s - theirs.throughput_per_s))
        .collect();
    let pair = ahead.windows(2).find(|pair| pair[0].1 > 0.0 && pair[1].1 <= 0.0);
    Some(match (ahead.first()?, pair) {
        (_, Some(&[(from, before), (to, after)])) => {
            format!("{other} overtakes {name} at {:.0} %", from + (to - from) * before / (before - after))
        }
        ((_, lead), _) if *lead > 0.0 => format!("{other} never overtakes {name}"),
        _ => format!("{other} does more than {name} from the start"),
    })
}

/// The throughput at the last point.
fn slowest(runs: &[Run], name: &str, other: &str) -> Option<String> {
    let (ours, theirs) = (of(runs, name), of(runs, other));
    let (ours, theirs) = (ours.last()?, theirs.last()?);
    let more = 100.0 * (ours.throughput_per_s / Some(theirs.throughput_per_s).filter(|rate| *rate > 0.0)? - 1.0);
    Some(format!("at {} {name} commits {more:.0} % more than {other}", ours.figure("x").unwrap_or(0.0)))
}
