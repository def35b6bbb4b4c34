//! One test binary for the crate: a live cluster over loopback, and what a site says to the outside.

mod cluster;
mod config;
mod disk;
mod http;
mod support;
