//! One test binary for the crate: a live cluster over loopback, and what a site says to the outside.

mod cluster;
mod config;
mod disk;
mod http;
#[path = "../../client/tests/load.rs"]
mod load;
mod logs;
mod memo;
mod mounts;
mod power;
mod support;
mod txns;
