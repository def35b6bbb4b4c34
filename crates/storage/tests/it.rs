//! Tests of the storage crate against its public interface and its files.
#![allow(clippy::unwrap_used)]

#[path = "it/common.rs"]
mod common;
#[path = "it/damage.rs"]
mod damage;
#[cfg(feature = "faults")]
#[path = "it/faults.rs"]
mod faults;
#[path = "it/lifecycle.rs"]
mod lifecycle;
#[path = "it/memory.rs"]
mod memory;
#[path = "it/model.rs"]
mod model;
