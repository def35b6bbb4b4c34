//! What the runner of transactions stands on: somebody who reads, commits, and has the time. That is a client, with its
//! links and the clock of tokio; or a simulator, in virtual time. The runner and the programs are the same for both.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use slackline_core::api::{self, Reading};
use slackline_core::id::{OperationId, SiteId};
use slackline_core::object::Transaction;

use super::{LANE, jitter};
use crate::book::Act;
pub use crate::book::NotTaken;
use crate::call::{Call, Commit, Place};
use crate::client::{Client, Shared};
use crate::outcome::{Outcome, Reason, Refused, WhyUnknown};
pub use crate::reads::Wanted;
use crate::topology::Topology;
pub use crate::txn::memo::Memos;

/// Something under way.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// See the module. Regions are positions in the topology.
pub trait Port: Send + Sync + 'static {
    /// The cluster's map.
    fn topology(&self) -> &Topology;

    /// The time.
    fn now(&self) -> Instant;

    /// Ready at `at`.
    fn sleep_until(&self, at: Instant) -> Pending<()>;

    /// A number that nobody can foresee; in a simulation, one from its seed.
    fn random(&self) -> u64;

    /// The memoized functions that are known.
    fn memos(&self) -> &Memos;

    /// Has something done that nobody waits for.
    fn spawn(&self, work: Pending<()>);

    /// The site for a run: the nearest of those that can be reached, of this region if one is given. Those to avoid have just
    /// failed; if there is no other, they are forgotten.
    fn choose(&self, region: Option<u16>, avoid: &mut Vec<SiteId>) -> SiteId;

    /// Reads objects at a site that was chosen.
    fn read(
        self: Arc<Self>,
        site: SiteId,
        wanted: Wanted,
        deadline: Instant,
    ) -> Pending<Result<Box<Reading>, NotTaken>>;

    /// Has a transaction committed, at the site of this region if one is given: in how many phases, as which operation.
    fn commit(
        self: Arc<Self>,
        region: Option<u16>,
        transaction: Transaction,
        deadline: Instant,
    ) -> Pending<Outcome<(u8, OperationId)>>;
}

/// Reads the outcome of a commit as a site tells it.
pub fn committed(outcome: api::Outcome, operation: OperationId, topology: &Topology) -> Outcome<(u8, OperationId)> {
    let reason = match outcome {
        api::Outcome::Committed { phases } => return Outcome::Done((phases, operation)),
        api::Outcome::Aborted(abort) => Reason::of_abort(*abort, topology),
        api::Outcome::Refused(refusal) => Reason::of(refusal, operation.site.lane, topology),
        api::Outcome::Unknown(doubt) => return Outcome::Unknown(topology.unknown(operation, doubt.into())),
        _ => return Outcome::Unknown(topology.unknown(operation, WhyUnknown::Senseless)),
    };
    Outcome::Refused(Refused { reason, operation: Some(operation) })
}

impl Port for Shared {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep_until(&self, at: Instant) -> Pending<()> {
        Box::pin(tokio::time::sleep_until(at.into()))
    }

    fn random(&self) -> u64 {
        jitter()
    }

    fn memos(&self) -> &Memos {
        &self.memos
    }

    fn spawn(&self, work: Pending<()>) {
        drop(tokio::spawn(work));
    }

    fn choose(&self, region: Option<u16>, avoid: &mut Vec<SiteId>) -> SiteId {
        let is_there = |site: SiteId| region.is_none_or(|region| region == site.region);
        let links = || self.lanes[usize::from(LANE)].iter().filter(|link| is_there(link.site));
        let found = links().find(|link| link.is_usable() && !avoid.contains(&link.site));
        if found.is_none() {
            avoid.clear();
        }
        let found = found.or_else(|| links().find(|link| link.is_usable())).or_else(|| links().next());
        found.expect("a lane has a site in each region").site
    }

    fn read(
        self: Arc<Self>,
        site: SiteId,
        wanted: Wanted,
        deadline: Instant,
    ) -> Pending<Result<Box<Reading>, NotTaken>> {
        Box::pin(async move {
            let link = self.lanes[usize::from(LANE)].iter().find(|link| link.site == site);
            link.expect("a site that was chosen").read(wanted, deadline).await
        })
    }

    fn commit(
        self: Arc<Self>,
        region: Option<u16>,
        transaction: Transaction,
        deadline: Instant,
    ) -> Pending<Outcome<(u8, OperationId)>> {
        let place = region.map_or(Place::Nearest, Place::Region);
        let left = deadline.saturating_duration_since(Instant::now());
        let call: Call<Commit> = Call::new(Client { shared: self }, LANE, Act::commit(transaction), place);
        Box::pin(std::future::IntoFuture::into_future(call.deadline(left)))
    }
}
