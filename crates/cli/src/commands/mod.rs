//! One module for each command: its options, its help, and what it does.

pub(crate) mod bench;
mod bench_floor;
mod bench_report;
mod bench_samya;
mod bench_txns;
pub(crate) mod dev;
mod explain;
pub(crate) mod object;
mod operation;
pub(crate) mod outcome;
pub(crate) mod quota;
mod reclaim;
pub(crate) mod serve;
pub(crate) mod sim;
pub(crate) mod site;
pub(crate) mod status;
pub(crate) mod treaty;
pub(crate) mod txn;
