//! What a client stands on: somebody who keeps links to the sites, and has the time. That is tokio, with sockets; or a simulator, in
//! virtual time. Calls, transactions and programs are the same for both.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::link::Link;
use crate::time::Time;
use crate::topology::Topology;

/// Something under way.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// See the module.
pub trait Port: Send + Sync + 'static {
    /// The cluster's map.
    fn topology(&self) -> &Topology;

    /// The links to the sites of a lane, nearest first; none where the cluster has no such lane. Always the same ones, in the same
    /// order.
    fn links(&self, lane: u16) -> &[Arc<Link>];

    /// The time.
    fn now(&self) -> Time;

    /// Ready at `at`.
    fn sleep_until(&self, at: Time) -> Pending<()>;

    /// A number that nobody can foresee; in a simulation, one from its seed.
    fn random(&self) -> u64;

    /// Has something done that nobody waits for.
    fn spawn(&self, work: Pending<()>);
}
