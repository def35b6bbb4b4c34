//! What a client of Slackline does, without sockets, clocks or tasks: sessions and operation ids, fail-over, what becomes of calls whose
//! site says nothing, reads, the runner of transactions, calls of memoized functions.
//!
//! A driver brings the rest: it keeps a stream open to each site ([`Link`](link::Link)), has the time, and polls the futures
//! ([`Port`](port::Port)). The client that people use drives this over tokio and gRPC; the simulator and the benchmarks drive it in virtual
//! time, so the code that users run meets crashes, lost messages and wrong clocks.
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`time`] | core's monotonic clock |
//! | [`topology`], [`key`], [`outcome`] | the cluster's map; names of objects; how calls end |
//! | [`command`] | what a caller wants, on which terms, and what it is told |
//! | [`sessions`] | what is under way at one site, and the rules by which it is sent, repeated, asked about, given back |
//! | [`reads`] | reads under way at one site |
//! | [`link`] | what callers and a driver share of one site |
//! | [`port`] | what a client stands on |
//! | [`call`] | one call on its way from site to site |
//! | [`txn`] | the runner of transactions; memoized functions |

pub mod call;
pub mod command;
pub mod key;
pub mod link;
pub mod outcome;
pub mod port;
pub mod reads;
pub mod sessions;
pub mod time;
pub mod topology;
pub mod txn;
