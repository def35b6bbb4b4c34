//! Runs Slackline sites: the tokio driver of [`slackline_core::node::Node`].
//!
//! | module | what it is |
//! | --- | --- |
//! | [`config`] | the configuration of a site, and the file of `slackline serve` |
//! | [`site`] | one site: its threads, from start to stop |
//! | [`dev`] | a whole cluster in one process |
//! | [`ports`] | ports for sites that are started and started again |
//! | [`signal`] | running until Ctrl-C or SIGTERM; logs |
//! | `engine` | drives the machine: inputs, the release rule, shared syncs |
//! | `gather` | group commit: what gathers while the log syncs |
//! | `log` | the thread that syncs |
//! | `mailbox` | the queues between the network and the machine, and their bounds |
//! | `service` | the public gRPC service |
//! | `unsent` | answers that have not left yet, in pieces |
//! | `link` | links between sites |
//! | `demand` | the demand per minute of quotas that the configuration names, and what models expect of it |
//! | `health` | the state of the site, published by its engine |
//! | `http`, `metrics` | `/healthz` and `/metrics` |
//! | `topology`, `clock` | the cluster's map; the clocks of a life |
//! | [`floor`] | what benchmarks compare a site with: it only logs and answers |
//! | `crash` | points at which a test ends the process (feature `crash-points`) |
//!
//! # Threads
//!
//! A site has two threads. One runs the sockets, the protocols and the machine, on a single-threaded runtime: a hand-over
//! between threads costs more than most inputs. The other one syncs the log. A request's way: the connection's
//! task decodes a batch and puts it into the mailbox; the machine handles it; the log thread syncs; the stream's task
//! encodes the responses. On that way, only decoding, handling and encoding are done once for each operation. A site whose
//! configuration names quotas to forecast has a third thread, which runs the models.
//!
//! # Bounds
//!
//! Each queue's bound stands where the queue is declared. A stream is read on only while there is room for its requests;
//! a unary call that finds none is answered RESOURCE_EXHAUSTED; messages between sites are dropped, the oldest first, and
//! counted.

mod clock;
pub mod config;
mod crash;
mod demand;
pub mod dev;
mod engine;
pub mod floor;
mod gather;
mod health;
mod http;
mod incoming;
mod link;
mod links;
mod log;
mod mailbox;
mod metrics;
pub mod ports;
mod service;
pub mod signal;
pub mod site;
mod topology;
mod unsent;

pub use clock::DEFAULT_EPSILON;
pub use config::{ConfigError, Listen, NewStorage, ServeConfig, SiteAddress, SiteConfig, Storage};
pub use demand::Watched;
pub use dev::{Dev, DevConfig, DevError, Ports};
pub use signal::{Signals, drain_or_end, ignores_hangup, init_logs, run_until_signal};
pub use site::{RunError, Site, SiteHandle, StartError};
pub use slackline_storage::Options as StorageOptions;
pub use slackline_wire::rtt::{RttError, RttTable};
