//! All of it as one machine: routing, recovery, what is persisted where.

mod config;
mod metrics;

pub use config::{Config, OpenError};
pub use metrics::Metrics;

use crate::api::{Request, Response};
use crate::clock::Now;
use crate::machine::{Effect, Input, KeySet, Machine, Reader, Seq, View};
use crate::peer::PeerMessage;

/// One site's machine.
#[derive(Debug)]
pub struct Node {
    config: Config,
    metrics: Metrics,
}

impl Node {
    /// Opens the machine on storage whose last durable batch is `last`. `seed` feeds its random back-offs and nonces.
    pub fn open(config: Config, _seed: u64, _last: Seq, _reader: &dyn Reader, _now: Now) -> Result<Self, OpenError> {
        Ok(Self { config, metrics: Metrics::default() })
    }

    /// What it is configured as.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it has counted since it was opened.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

impl Machine for Node {
    type Message = PeerMessage;
    type Request = Request;
    type Response = Response;

    fn working_set(&self, _now: Now, _input: &Input<Self>) -> KeySet {
        KeySet::default()
    }

    fn handle(&mut self, _now: Now, _input: Input<Self>, _view: &View, _out: &mut Vec<Effect<Self>>) {}

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn is_paged(key: &[u8]) -> bool {
        key.first().is_some_and(|tag| *tag >= 0x80)
    }
}
