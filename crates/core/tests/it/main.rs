//! The tests of the protocols: golden scripts, oracles, and the model check.

mod cluster;
mod quotas;
