//! Slackline's workloads: prepare, run, verify, report, plot.
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`handle`] | `bench core`: the machine alone, as fast as it goes on one core |
//! | [`hot`] | `bench hot`: one quota that never runs out, one site, many callers |
//! | `turns` | rounds of a site and of its floor by turns |
//! | `driven`, `ahead` | one site's machine driven in this process; sessions whose requests are made ahead |
//! | `client` | the product's client of one site, driven by hand |
//! | `floor` | what live figures are compared with, in the same run |
//! | [`footprint`] | `bench footprint`: what many quotas cost one site |
//! | [`calibrate`] | `bench calibrate`: what work costs at a real site, beside what the simulator reckons with |
//! | [`txns`] | workloads of transactions: `twitter`, `oo7`, `bank`, `courses`, `reads`, `writes` |
//! | [`voting`] | `bench voting`: how long regions keep a treaty alone |
//! | [`quota`] | `bench quota`: a trace of demand against one quota that regions share |
//! | [`samya`] | `bench samya`: the evaluation of the Samya paper, with its rivals as models |
//! | [`trace`], `series`, [`demand`] | what is replayed: files, generators |
//! | `sessions` | sessions of clients that send each operation by itself |
//! | [`central`] | what is compared with: one ideal counter |
//! | [`rtt`] | round trips between sites |
//! | [`live`], `cluster` | real sites to measure: a process each, or many in this process |
//! | [`postgres`] | what is compared with: a PostgreSQL of our own |
//! | [`report`] | what every benchmark prints |
//! | [`figure`], [`histogram`] | what `--plot` draws, which is a crate of its own; latencies |
//! | [`zipf`] | popularity |

mod ahead;
pub mod calibrate;
pub mod central;
mod client;
mod cluster;
pub mod demand;
mod driven;
mod floor;
pub mod footprint;
pub mod handle;
pub mod histogram;
pub mod hot;
mod levels;
pub mod live;
mod named;
pub mod postgres;
pub mod quota;
pub mod report;
pub mod rtt;
pub mod samya;
mod series;
mod sessions;
pub mod trace;
mod turns;
pub mod txns;
pub mod voting;
pub mod zipf;

pub use slackline_figure as figure;

/// The bound on each clock's error that sites are told, in microseconds, where a benchmark chooses it.
const EPSILON: u64 = 10_000;

/// The lower median by `measure`; panics on an empty list.
fn median<T>(mut all: Vec<T>, measure: impl Fn(&T) -> f64) -> T {
    all.sort_by(|one, other| measure(one).total_cmp(&measure(other)));
    let middle = (all.len() - 1) / 2;
    all.swap_remove(middle)
}
