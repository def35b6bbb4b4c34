//! What a benchmark prints: one JSON object, or a table of 80 columns that ends with the facts it rests on.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Map, Value};
use slackline_sim::Costs;

use crate::figure::{Axis, Figure, Scale, Series};
use crate::histogram::Histogram;

/// The width of tables.
const COLUMNS: usize = 80;

/// Virtual time, or real.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Virtual time, by a cost model.
    Sim,
    /// Real time.
    Live,
}

/// The result of one benchmark. Serialized, it is the object that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The workload's name.
    pub workload: String,
    /// Virtual time, or real.
    pub mode: Mode,
    /// The seed of every random choice.
    pub seed: u64,
    /// `generated`, or `real: ` and what.
    pub data: String,
    /// The bound on each clock's error, in microseconds.
    pub epsilon_us: u64,
    /// The cost model of virtual time; none in real time.
    #[serde(serialize_with = "costs")]
    pub cost_model: Option<Costs>,
    /// One for each configuration.
    pub runs: Vec<Run>,
    /// True if the data were checked after every run, and right.
    pub verified: bool,
    /// The facts that the figures rest on: round trips, the paper's figures. Only in the table.
    #[serde(skip)]
    pub facts: Vec<(String, String)>,
    /// The figures that `--plot` draws. Not printed.
    #[serde(skip)]
    pub figures: Vec<Figure>,
}

/// One configuration's run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The configuration's name.
    pub config: String,
    /// Operations done.
    pub committed: u64,
    /// Operations refused.
    pub refused: u64,
    /// Operations of which it is not known how they ended.
    pub unknown: u64,
    /// Its length, in virtual time if the report is of a simulation.
    pub duration_s: f64,
    /// Operations done in a second of that time.
    pub throughput_per_s: f64,
    /// From when a client sends to when it knows the outcome.
    pub latency_ms: Latency,
    /// The share of acquires answered with no wide-area message awaited; none where no site could answer so.
    pub local_ratio: Option<f64>,
    /// Rounds that moved tokens.
    pub rebalances: u64,
    /// One-way moves of tokens.
    pub gifts: u64,
    /// Promises taken back; quotas make none.
    pub retracts: u64,
    /// Messages between sites; none where there is one site only.
    pub wan_messages: Option<u64>,
    /// Figures that only some benchmarks have.
    #[serde(flatten)]
    pub more: Map<String, Value>,
    /// Its name in the table, where the configuration alone does not tell it from others.
    #[serde(skip)]
    pub label: Option<String>,
    /// True if it is an ideal that only counts: it takes no time and sends nothing, so its latencies and messages are 0. The
    /// table leaves them out.
    #[serde(skip)]
    pub is_ideal: bool,
}

/// Percentiles in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// Nine of ten are no longer.
    pub p90: f64,
    /// Nineteen of twenty.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1,000.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl From<&Histogram> for Latency {
    fn from(histogram: &Histogram) -> Self {
        let at = |q| histogram.quantile(q) as f64 / 1e6;
        Self { p50: at(0.5), p90: at(0.9), p95: at(0.95), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

/// A run, and the latencies of its operations, for figures.
pub(crate) type Measured = (Run, Histogram);

impl Run {
    /// A run of which nothing is known but its name.
    pub fn new(config: impl Into<String>) -> Self {
        Self {
            config: config.into(),
            committed: 0,
            refused: 0,
            unknown: 0,
            duration_s: 0.0,
            throughput_per_s: 0.0,
            latency_ms: Latency::default(),
            local_ratio: Some(1.0),
            rebalances: 0,
            gifts: 0,
            retracts: 0,
            wan_messages: Some(0),
            more: Map::new(),
            label: None,
            is_ideal: false,
        }
    }

    /// Sets the duration, and with it the throughput.
    pub fn took(mut self, seconds: f64) -> Self {
        // Set together: one is never of another run's time than the other.
        self.duration_s = seconds;
        let per_second = if seconds > 0.0 { self.committed as f64 / seconds } else { 0.0 };
        self.throughput_per_s = (per_second * 100.0).round() / 100.0;
        self
    }

    /// Adds a figure that only some benchmarks tell.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// Its name in the table.
    fn name(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.config)
    }

    /// A figure that was added by [`Run::with`], as a number.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.more.get(name).and_then(Value::as_f64)
    }
}

impl Report {
    /// The run of this configuration.
    pub fn run(&self, config: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.config == config)
    }

    /// The object that `--json` prints.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text, with text for keys")
    }

    /// Draws the figures into a directory as SVG, and returns the files.
    pub fn plot(&self, directory: &std::path::Path) -> std::io::Result<Vec<std::path::PathBuf>> {
        crate::figure::draw_all(&self.figures, directory)
    }

    /// The table, and below it the facts that it rests on.
    pub fn to_table(&self) -> String {
        let mut out = String::new();
        let width = self.runs.iter().map(|run| run.name().len()).max().unwrap_or(0).max(6);
        let known = |run: &Run, figure: String| if run.is_ideal { "-".to_owned() } else { figure };
        let told = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());

        // The first block of rows: how operations ended, and what came with them; transactions have other columns than quotas.
        let are_txns = self.runs.iter().any(|run| run.more.get("phases").is_some_and(|shares| !shares[0].is_object()));
        let last = if are_txns { "aborts 0-ph. 1-ph. 2-ph." } else { "local rebalances  gifts" };
        let _ = writeln!(out, "{:width$} committed refused unknown    per s {last}", "");
        for run in self.runs.iter().filter(|_| are_txns) {
            let _ = writeln!(
                out,
                "{:width$} {:>9} {:>7} {:>7} {:>8} {:>6.3} {}",
                run.name(),
                run.committed,
                run.refused,
                run.unknown,
                run.throughput_per_s as u64,
                run.figure("abort_rate").unwrap_or(0.0),
                phases(run),
            );
        }
        for run in self.runs.iter().filter(|_| !are_txns) {
            let _ = writeln!(
                out,
                "{:width$} {:>9} {:>7} {:>7} {:>8} {:>5} {:>10} {:>6}",
                run.name(),
                run.committed,
                run.refused,
                run.unknown,
                run.throughput_per_s as u64,
                known(run, told(run.local_ratio.map(|ratio| format!("{ratio:.3}")))),
                known(run, run.rebalances.to_string()),
                known(run, run.gifts.to_string()),
            );
        }

        // The second block: latencies.
        let _ = writeln!(out, "\n{:width$}   p50 ms     p90     p95     p99    p999     max messages", "");
        for run in &self.runs {
            let latency = &run.latency_ms;
            // No call was timed where none took any time.
            let time = |ms| if latency.max > 0.0 { known(run, milliseconds(ms)) } else { "-".to_owned() };
            let _ = writeln!(
                out,
                "{:width$} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8}",
                run.name(),
                time(latency.p50),
                time(latency.p90),
                time(latency.p95),
                time(latency.p99),
                time(latency.p999),
                time(latency.max),
                known(run, told(run.wan_messages.map(|messages| messages.to_string()))),
            );
        }

        // Then what only some benchmarks tell, by the names that it has in JSON.
        for run in self.runs.iter().filter(|run| !run.more.is_empty()) {
            let more: Vec<String> = run.more.iter().map(|(name, value)| format!("{name} {}", plain(value))).collect();
            wrap(&mut out, &format!("\n{}: ", run.name()), &more.join(", "));
        }
        out.push('\n');
        out + &self.facts_table()
    }

    /// The facts that the figures rest on, one below the other.
    pub(crate) fn facts_table(&self) -> String {
        let mut out = String::new();
        let mode = match self.mode {
            Mode::Sim => "simulated, virtual time",
            Mode::Live => "live, real time",
        };

        let mut facts = vec![
            ("workload".to_owned(), self.workload.clone()),
            ("mode".to_owned(), mode.to_owned()),
            ("seed".to_owned(), self.seed.to_string()),
            ("data".to_owned(), self.data.clone()),
            ("clock error".to_owned(), format!("at most {} µs (ε)", self.epsilon_us)),
        ];
        facts.extend(self.cost_model.map(|costs| ("cost model".to_owned(), cost_words(&costs))));
        facts.extend(self.facts.iter().cloned());
        let verified = if self.verified { "the books were checked after every run, and are right" } else { "NO" };
        facts.push(("verified".to_owned(), verified.to_owned()));

        for (name, fact) in &facts {
            wrap(&mut out, &format!("{name:12} "), fact);
        }
        out
    }
}

/// Runs without their latencies, and the figure of the latencies.
pub(crate) fn runs_and_figure(name: &str, measured: Vec<Measured>) -> (Vec<Run>, Figure) {
    let figure = latency_figure(name, measured.iter().map(|(run, latencies)| (run.config.as_str(), latencies)));
    (measured.into_iter().map(|(run, _)| run).collect(), figure)
}

/// The share of operations that a latency covers.
pub(crate) fn latency_figure<'a>(name: &str, runs: impl Iterator<Item = (&'a str, &'a Histogram)>) -> Figure {
    let line = |histogram: &Histogram| {
        let mut points: Vec<_> =
            histogram.shares().into_iter().map(|(nanos, share)| (nanos as f64 / 1e6, share)).collect();
        // A line begins at the share of nothing.
        if let Some(&(first, _)) = points.first() {
            points.insert(0, (first, 0.0));
        }
        points
    };
    Figure {
        name: name.into(),
        title: "Operations answered within a time".into(),
        x: Axis::new("latency in milliseconds", Scale::Log),
        y: Axis::new("share of operations", Scale::Nines),
        series: runs.map(|(name, histogram)| Series::new(name, line(histogram))).collect(),
    }
}

/// Appends `text`, in lines that begin below where the first began.
fn wrap(out: &mut String, label: &str, text: &str) {
    let indent = label.trim_start_matches('\n').chars().count();
    out.push_str(label);

    let mut column = indent;
    for (order, word) in text.split(' ').enumerate() {
        let width = word.chars().count();
        if order > 0 && column + 1 + width > COLUMNS {
            let _ = write!(out, "\n{:indent$}", "");
            column = indent;
        } else if order > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out.push('\n');
}

/// The cost model as an object, or null.
fn costs<S: serde::Serializer>(costs: &Option<Costs>, serializer: S) -> Result<S::Ok, S::Error> {
    let object = |costs: &Costs| {
        let Costs { input_ns, operation_ns, object_ns, send_ns, byte_ns, sync_us, sync_byte_ns } = *costs;
        serde_json::json!({
            "input_ns": input_ns, "operation_ns": operation_ns, "object_ns": object_ns, "send_ns": send_ns, "byte_ns": byte_ns,
            "sync_us": sync_us, "sync_byte_ns": sync_byte_ns,
        })
    };
    costs.as_ref().map(object).serialize(serializer)
}

/// The cost model in words.
fn cost_words(costs: &Costs) -> String {
    let Costs { input_ns, operation_ns, object_ns, send_ns, byte_ns, sync_us, sync_byte_ns } = costs;
    format!(
        "{input_ns} ns an input, {operation_ns} ns an operation, {object_ns} ns an object, {send_ns} ns a message sent, {byte_ns} ns a byte logged; a \
         sync {sync_us} µs and {sync_byte_ns} ns a byte"
    )
}

/// Milliseconds with three significant digits.
fn milliseconds(ms: f64) -> String {
    let digits = match ms {
        // A microsecond is still told from two.
        _ if ms < 0.01 => 4,
        _ if ms < 10.0 => 3,
        _ if ms < 100.0 => 1,
        _ => 0,
    };
    format!("{ms:.digits$}")
}

/// The shares of transactions that were committed in 0, 1 and 2 phases.
fn phases(run: &Run) -> String {
    let share = |phases: usize| match run.more.get("phases").and_then(|shares| shares[phases].as_f64()) {
        Some(share) => format!("{share:>5.3}"),
        None => format!("{:>5}", "-"),
    };
    [share(0), share(1), share(2)].join(" ")
}

/// A figure as the table shows it: three decimals, and lists on one line.
fn plain(value: &Value) -> String {
    match value {
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join("/"),
        Value::Object(values) => {
            values.iter().map(|(name, value)| format!("{name} {}", plain(value))).collect::<Vec<_>>().join(" ")
        }
        Value::String(text) => text.clone(),
        // A float that is whole is a count or a total: decimals would only look exact.
        Value::Number(number) => match number.as_f64() {
            Some(value) if value.fract() != 0.0 => format!("{value:.3}"),
            Some(value) if number.is_f64() => format!("{value:.0}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}
