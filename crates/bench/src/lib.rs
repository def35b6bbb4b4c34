//! Slackline's workloads: prepare, run, verify, report, plot.
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`handle`] | `bench core`: the machine alone, as fast as it goes on one core |
//! | [`quota`] | `bench quota`: a trace of demand against one quota that regions share |
//! | [`trace`], [`demand`] | what is replayed: files, generators |
//! | [`central`] | what is compared with: one ideal counter |
//! | [`rtt`] | round trips between sites |
//! | [`report`] | what every benchmark prints |
//! | [`histogram`] | latencies |
//! | [`zipf`] | popularity |

pub mod central;
pub mod demand;
pub mod figure;
pub mod handle;
pub mod histogram;
pub mod quota;
pub mod report;
pub mod rtt;
pub mod trace;
pub mod zipf;
