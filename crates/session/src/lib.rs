//! What a client of Slackline does, without sockets, clocks or tasks: sessions and operation ids, fail-over, what becomes of calls whose
//! site says nothing, reads, the runner of transactions, calls of memoized functions.
//!
//! A driver brings the rest: it keeps a stream open to each site ([`Link`](link::Link)), has the time, and polls the futures
//! ([`Port`](port::Port)). The client that people use drives this over tokio and gRPC; the simulator and the benchmarks drive it in virtual
//! time, so the code that users run meets crashes, lost messages and wrong clocks.
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`time`] | times of the driver's clock; pauses |
//! | [`command`] | one call, as its caller and a link see it: what is to be done, on which terms, what the caller is told |
//! | [`key`], [`topology`], [`outcome`] | names of objects; the cluster's map; how calls end |
//! | [`metric`] | numbers computed from counters, and what can be said of them |
//! | [`reads`] | the reads under way at one site |
//! | [`sessions`] | the calls under way at one site, and the rules by which they are sent, repeated, asked about, given back |
//! | [`link`] | what callers and a driver share of one site: its sessions, and whether it can be reached |
//! | [`port`] | what calls and transactions ask of their driver: links, the time, chance |
//! | [`call`] | one call on its way from site to site |
//! | [`txn`] | the runner of transactions; memoized functions |
//!
//! A module uses only those above it. Read [`sessions`] first: its rules are the promises of a client. Three are never broken, whatever
//! sites, streams and callers do:
//!
//! - An operation id is used for one call, once. A call that has left is sent again under its id alone, to the same site, until it is
//!   settled what became of it.
//! - What a site grants to a caller that is gone is given back, once.
//! - A program whose transaction may have taken effect is not run again.

pub mod call;
pub mod command;
pub mod key;
pub mod link;
pub mod metric;
pub mod outcome;
pub mod port;
pub mod reads;
pub mod sessions;
pub mod time;
pub mod topology;
pub mod txn;
