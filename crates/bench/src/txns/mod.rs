//! Workloads of transactions: each is written once, as programs over the client's [`Txn`](slackline::Txn), and runs in
//! virtual time or against real sites.
//!
//! A workload has objects to begin with, a step that each client repeats, and a check of what is there in the end. A client
//! has one transaction under way, at the site of its region, and begins the next when it knows the outcome (a *closed loop*).
//! The configurations of one report have the same seed and clients:
//!
//! | configuration | what it is |
//! | --- | --- |
//! | `occ` | no warranties: every read is validated at its home. The same copies at sites, and the same batched reads |
//! | `state` | warranties over the values of objects |
//! | `computation` | and kept results of memoized functions: the product. Only where a workload calls one |
//!
//! `courses` can be compared with other systems, its baselines, which have further runs in the same report.
//!
//! | module | what it is about |
//! | --- | --- |
//! | `setting` | what a report is told; the sites and clients of one run |
//! | `workload` | what a workload is, and what its programs have at hand |
//! | `stage` | programs in virtual time |
//! | `tally` | what is counted, and the report's figures |
//! | `tasks` | loading objects, being a client, checking the data |
//! | `run`, `real` | runs, in virtual time and against real sites |
//! | `twitter`, `oo7`, `bank`, `courses` | workloads |
//! | [`shift`] | `voting-shift`: an open loop of votes and queries, by second |
//! | [`single`] | `reads` and `writes`: one operation, live |
//! | [`topk`] | `topk`: the most requested pages of a site with 33 servers |
//! | [`tpcc`] | `tpcc`: orders of a stock that regions share |
//! | [`treaties`] | `treaties`: what a treaty costs beside what it stands for, live |

mod bank;
mod courses;
mod oo7;
mod real;
mod run;
mod setting;
pub mod shift;
pub mod single;
mod stage;
mod tally;
mod tasks;
pub mod topk;
pub mod tpcc;
pub mod treaties;
mod twitter;
mod workload;

pub use bank::{BankOptions, bank};
pub use courses::{Baseline, CoursesOptions, courses};
pub use oo7::{Oo7Options, oo7};
pub(crate) use setting::OBJECT_NS;
pub use setting::{Config, Terms, TxnsError};
pub use twitter::{TwitterOptions, twitter};
