//! The tests of the protocols: scenarios and oracles; the model check is a crate of its own.

mod bounds;
mod calls;
mod clocks;
mod cluster;
mod contention;
mod limits;
mod line;
mod lives;
mod members;
mod names;
mod quotas;
mod reallocation;
mod reclaim;
mod refill;
mod script;
mod sessions;
mod treaties;
mod tree;
mod txns;
mod words;
