//! What is counted of a run of transactions, and the figures that a report has of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use slackline::{Outcome, TxnError};
use slackline_session::time::Time;
use slackline_sim::Costs;

use super::setting::Setting;
use super::stage::{Delays, NEAR};
use super::workload::Step;
use crate::EPSILON;
use crate::figure::Figure;
use crate::histogram::Histogram;
use crate::report::{Latency, Measured, Mode, Report, Run};

/// The time for which transactions are counted.
#[derive(Clone, Copy)]
pub(super) struct Window {
    /// Its first moment.
    pub(super) from: Time,
    /// The first moment after it.
    pub(super) end: Time,
}

impl Window {
    /// The window that begins when `warm` has passed, and is open for `measure`.
    pub(super) fn after(now: Time, warm: Duration, measure: Duration) -> Self {
        Self { from: now + warm, end: now + warm + measure }
    }

    /// True if a transaction that ends then is counted.
    pub(super) fn counts(self, ended: Time) -> bool {
        (self.from..self.end).contains(&ended)
    }
}

/// The outcomes of transactions that ended in the window.
#[derive(Default)]
pub(super) struct Tally {
    /// Transactions committed in 0, 1, and 2 or more phases.
    committed: [u64; 3],
    /// Committed transactions that wrote.
    wrote: u64,
    /// Transactions refused.
    refused: u64,
    /// Transactions of which it is not known how they ended.
    unknown: u64,
    /// Runs of programs, those in vain included; a refused transaction counts as one.
    runs: u64,
    /// Latencies of committed transactions, by the store of their client.
    latencies: Vec<Histogram>,
    /// The delay by warranties of each committed transaction that wrote.
    delays: Histogram,
    /// The first thing that went wrong, in the window or not.
    pub(super) failure: Option<String>,
    /// The delays that the stage notes; none against real sites, which do not tell.
    defended: Option<Arc<Delays>>,
}

impl Tally {
    /// Nothing counted yet; with the delays that the stage notes, in virtual time.
    pub(super) fn new(defended: Option<Arc<Delays>>) -> Self {
        Self { defended, ..Self::default() }
    }

    /// Notes that something went wrong. The first note stays.
    pub(super) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// Notes how a step of a client at a store ended, and from when to when it took.
    pub(super) fn note(&mut self, window: Window, store: usize, took: (Time, Time), step: Result<Step, TxnError>) {
        let (began, ended) = took;
        let Step { outcome, writes } = match step {
            Ok(step) => step,
            Err(error) => return self.fail(error.to_string()),
        };

        // Taken in any case, or the delays of transactions outside of the window would pile up.
        let delay = match &outcome {
            Outcome::Done(committed) => committed.operation.and_then(|id| Some(self.defended.as_ref()?.take(id))),
            _ => None,
        };
        if !window.counts(ended) {
            return;
        }

        match outcome {
            Outcome::Done(committed) => {
                self.committed[usize::from(committed.phases.min(2))] += 1;
                self.runs += u64::from(committed.runs);
                self.wrote += u64::from(writes);
                if self.latencies.len() <= store {
                    self.latencies.resize_with(store + 1, Histogram::default);
                }
                // By store, because clients far from popular objects wait longer, which a median of all hides.
                self.latencies[store].note((ended - began).as_nanos() as u64);
                if writes && let Some(delay) = delay {
                    self.delays.note(delay * 1_000);
                }
            }
            // How often its program was run is not told; it was at least once.
            Outcome::Refused(_) => {
                self.refused += 1;
                self.runs += 1;
            }
            Outcome::Unknown(_) => self.unknown += 1,
        }
    }

    /// The figures that do not depend on what the transactions stood on.
    pub(super) fn figures(&self, config: String, setting: &Setting) -> Run {
        let mut run = Run::new(config);
        run.committed = self.committed.iter().sum();
        (run.refused, run.unknown) = (self.refused, self.unknown);
        run.latency_ms = Latency::from(&self.latencies());
        let committed = run.committed;

        let of_stores = json!({
            "committed": self.latencies.iter().map(Histogram::count).collect::<Vec<_>>(),
            "p50_ms": self.latencies.iter().map(|store| rounded(store.quantile(0.5) as f64 / 1e6)).collect::<Vec<_>>(),
        });

        run.took(setting.measure.as_secs_f64())
            .with("stores", setting.stores)
            .with("clients", setting.stores * setting.clients_per_store)
            .with("rtt_ms", setting.rtt.as_secs_f64() * 1e3)
            .with("abort_rate", share(self.runs.saturating_sub(committed), self.runs))
            .with("write_share", share(self.wrote, committed))
            .with("of_stores", of_stores)
    }

    /// The latencies of what was committed.
    pub(super) fn latencies(&self) -> Histogram {
        let mut all = Histogram::default();
        self.latencies.iter().for_each(|store| all.add(store));
        all
    }

    /// The figures of transactions over sites; `sent` are messages between them in the window, if they were counted.
    pub(super) fn report(&self, setting: &Setting, sent: Option<u64>) -> Measured {
        let mut run = self.figures(setting.config.to_string(), setting);
        let committed = run.committed;
        run.local_ratio = Some(share(self.committed[0], committed));
        run.wan_messages = sent;
        let mut run = run.with("phases", json!(self.committed.map(|count| share(count, committed))));

        if let Some(sent) = sent {
            run = run.with("messages_per_txn", share(sent, committed));
        }

        // Real sites do not tell how long they defended what.
        if self.defended.is_some() {
            let at = |q| rounded(self.delays.quantile(q) as f64 / 1e6);
            run = run.with("write_delay_ms", json!({ "p50": at(0.5), "p95": at(0.95), "max": at(1.0) }));
        }
        (run, self.latencies())
    }
}

/// The share that `count` is of `of`, with five decimals; 0 of nothing.
pub(super) fn share(count: u64, of: u64) -> f64 {
    rounded(count as f64 / of.max(1) as f64)
}

/// With five decimals.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1e5).round() / 1e5
}

/// The report of a workload whose data were right after every run.
pub(super) fn report(
    workload: &str,
    setting: &Setting,
    costs: Option<Costs>,
    runs: Vec<Run>,
    facts: Vec<(&str, String)>,
    figures: Vec<Figure>,
) -> Report {
    let shape = format!(
        "{} stores with {} clients each, one transaction under way per client; {} s are counted after {} s",
        stores_of(&runs),
        setting.clients_per_store,
        setting.measure.as_secs_f64(),
        setting.warm.as_secs_f64(),
    );
    // In virtual time clients have a way to their store; live they have loopback.
    let distance = match setting.live {
        Some(_) => {
            format!("{} ms between stores, put in by the links; clients are on the same machine", ms(setting.rtt))
        }
        None => format!("{} ms between stores, {} ms from a client to its store", ms(setting.rtt), NEAR as f64 / 1e3),
    };

    let mut all = vec![("clients".to_owned(), shape), ("round trips".to_owned(), distance)];
    all.extend(facts.into_iter().map(|(name, fact)| (name.to_owned(), fact)));
    Report {
        workload: workload.into(),
        mode: if setting.live.is_some() { Mode::Live } else { Mode::Sim },
        seed: setting.seed,
        data: "generated".into(),
        epsilon_us: EPSILON,
        cost_model: costs,
        runs,
        verified: true,
        facts: all,
        figures,
    }
}

fn stores_of(runs: &[Run]) -> String {
    let mut stores: Vec<u64> = runs.iter().filter_map(|run| run.more.get("stores").and_then(Value::as_u64)).collect();
    stores.sort_unstable();
    stores.dedup();
    stores.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
