//! `bench samya`: the evaluation of the Samya paper (section 5), with the product, the paper's system, its rivals and bounds.
//!
//! All of them run in virtual time, over the same round trips, on sites that work and sync as fast. The product is its real machines;
//! the others are models of what their sites do. Clients ask all of them alike and count alike, and the books of all are audited.
//!
//! | module | what it is about |
//! | --- | --- |
//! | `experiment`, `config` | what is compared; how each is started |
//! | `course` | the runs of an experiment: what is asked, when what fails, and by what they differ |
//! | `run` | runs on all cores, and the report |
//! | `paper` | the paper's figures beside ours |
//! | `clients`, `script`, `ledger` | who asks, and what is counted |
//! | `play` | one run |
//! | `ask` | the face of a system |
//! | `product`, `many` | the product's machines; many quotas of theirs |
//! | `modelled`, `net`, `geography`, `line` | what all models have: audited books, virtual time, distances, a line of those that wait |
//! | `avantan`, `any` | the paper's system, with either version of its agreement |
//! | `paxos`, `borrow` | its rivals |
//! | `alone`, `counter` | bounds |

mod alone;
mod any;
mod ask;
mod avantan;
mod borrow;
mod clients;
mod config;
mod counter;
mod course;
mod experiment;
mod geography;
mod ledger;
mod line;
mod many;
mod modelled;
mod net;
mod paper;
mod paxos;
mod play;
mod product;
mod run;
mod script;
#[cfg(test)]
mod tests;

pub use self::config::Config;
pub use self::course::SamyaOptions;
pub use self::experiment::Experiment;
pub use self::run::samya;
