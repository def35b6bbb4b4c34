//! What a client stands on: somebody who keeps links to the sites, and has the time. That is tokio, with sockets; or a simulator, in
//! virtual time. Calls, transactions and programs are the same for both.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use crate::link::Link;
use crate::time::Time;
use crate::topology::Topology;

/// Something under way.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What calls, transactions and programs ask of their driver.
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

    /// Carries out something that nobody waits for.
    fn spawn(&self, work: Pending<()>);
}

/// Runs `work` until the deadline. `None` if it is not ready by then; it is dropped, and what it had under way with it.
pub async fn until<F: Future>(port: &dyn Port, deadline: Time, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut alarm = None;
    poll_fn(|context| {
        if let Poll::Ready(output) = work.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }

        // Most work is ready at once, so the alarm is set only for what is not.
        let alarm = alarm.get_or_insert_with(|| port.sleep_until(deadline));
        alarm.as_mut().poll(context).map(|()| None)
    })
    .await
}
