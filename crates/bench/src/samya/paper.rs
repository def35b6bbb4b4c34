//! The paper's figures, beside what is measured here.

use super::experiment::Experiment;
use crate::report::Run;

/// Facts of an experiment: the paper's figure, and ours in the same terms.
pub(super) fn beside(experiment: Experiment, runs: &[Run]) -> Vec<(String, String)> {
    let fact = |name: &str, told: String| (name.to_owned(), told);
    let paper = |told: &str| fact("the paper", told.to_owned());
    let ours = |told: Option<String>| told.map(|told| fact("here", told));
    let found = |name: &str| runs.iter().find(|run| run.config == name);

    let (theirs, here) = match experiment {
        Experiment::Latency => (
            paper(
                "table 2b: p90 1.40, p95 10.2, p99 65.1 ms with the majority version; demarcation 3.5, 59.6, 213.9; multi-Paxos 126.8, \
                 172.7, 276.3; 208 rounds with the majority version",
            ),
            ours(found("samya-majority").zip(found("multi-paxos")).map(|(samya, paxos)| {
                let of = |run: &Run| {
                    let at = &run.latency_ms;
                    format!("{:.2}, {:.1}, {:.1}", at.p90, at.p95, at.p99)
                };
                format!("samya-majority {} ms, multi-paxos {}; {} rounds", of(samya), of(paxos), samya.rebalances)
            })),
        ),
        Experiment::Throughput => (
            paper("figure 3b: 16 to 18 times multi-Paxos, 1.3 times demarcation"),
            ours(times(runs, "samya-majority", &["multi-paxos", "quorum", "demarcation", "escrow"])),
        ),
        Experiment::Bounds => (
            paper(
                "figure 3e: 3.5 to 4 % below no constraint; no redistribution loses about 14 % (Samya has 14 % more)",
            ),
            ours(found("no-constraint").map(|most| {
                let below = |run: &Run| {
                    format!("{} {:.1} %", run.config, 100.0 * (1.0 - run.throughput_per_s / most.throughput_per_s))
                };
                let all: Vec<String> = runs.iter().filter(|run| run.config != most.config).map(below).collect();
                format!("below no-constraint: {}", all.join(", "))
            })),
        ),
        Experiment::Prediction => (
            paper("figure 3f: 1.4 times as much with predictions"),
            ours(both(
                times(runs, "slackline", &["slackline-reactive"]),
                times(runs, "samya-majority", &["samya-majority-reactive"]),
            )),
        ),
        Experiment::Crash => (
            paper(
                "figure 3c: a site and its clients are lost every ten minutes; with the third loss multi-Paxos ends, and Samya serves \
                 what it can locally",
            ),
            None,
        ),
        Experiment::Partition => {
            (paper("figure 3d: three to two for thirty minutes; multi-Paxos serves the three alone"), None)
        }
        Experiment::Sites => (
            paper("figure 3g: throughput grows with the sites from 5 to 20, and latency stays"),
            ours(both(growth(runs, "slackline"), growth(runs, "samya-majority"))),
        ),
        Experiment::Reads => (
            paper("figure 3h: multi-Paxos overtakes Samya at about 65 % reads; there a read of Samya asks all sites"),
            ours(both(crossing(runs, "samya-majority", "multi-paxos"), crossing(runs, "slackline", "quorum"))),
        ),
        Experiment::Limit => (
            paper(
                "section 5.9: five times the throughput when the limit goes from the mean to the maximum of the demand",
            ),
            ours(both(growth(runs, "slackline"), growth(runs, "samya-majority"))),
        ),
        Experiment::Rate => (
            paper("section 5.9: at the original rate (300 s) still 43 % more than multi-Paxos"),
            ours(slowest(runs, "samya-majority", "multi-paxos")),
        ),
        Experiment::Hot | Experiment::Small | Experiment::Storm | Experiment::Idle => {
            (paper("has no such experiment"), None)
        }
    };
    [theirs].into_iter().chain(here).collect()
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

/// From the first of a configuration's runs to the last.
fn growth(runs: &[Run], name: &str) -> Option<String> {
    let of = of(runs, name);
    let (first, last) = (of.first()?, of.last()?);
    let x = |run: &Run| run.figure("x").unwrap_or(0.0);
    Some(format!(
        "{name}: from {} to {}, throughput {:.2} times, p99 {:.2} times",
        x(first),
        x(last),
        last.throughput_per_s / first.throughput_per_s,
        last.latency_ms.p99 / first.latency_ms.p99
    ))
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
    let more = 100.0 * (ours.throughput_per_s / theirs.throughput_per_s - 1.0);
    Some(format!("at {} {name} commits {more:.0} % more than {other}", ours.figure("x").unwrap_or(0.0)))
}
