//! The links of a site to the others of its lane: one for each, and more as members join.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackline_core::id::SiteId;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::link::{LinkState, Outbox, keep};
use crate::topology::Topology;

/// The links of a site.
#[derive(Debug)]
pub(crate) struct Links {
    /// What waits to be sent to each peer.
    outboxes: Mutex<BTreeMap<SiteId, Arc<Outbox>>>,
    /// The time put in between sending and leaving, to stand for the distance.
    delays: BTreeMap<SiteId, Duration>,
    /// Wakes who keeps the links, when there is another.
    added: Notify,
}

impl Links {
    /// Links to these peers.
    pub(crate) fn new(peers: impl Iterator<Item = SiteId>, delays: BTreeMap<SiteId, Duration>) -> Self {
        let links = Self { outboxes: Mutex::default(), delays, added: Notify::new() };
        peers.for_each(|peer| links.add(peer));
        links
    }

    /// One more peer; nothing if it is known.
    pub(crate) fn add(&self, peer: SiteId) {
        let delay = self.delays.get(&peer).copied().unwrap_or_default();
        self.outboxes().entry(peer).or_insert_with(|| Arc::new(Outbox::new(peer, delay)));
        self.added.notify_one();
    }

    /// What waits to be sent to a peer, if it is one.
    pub(crate) fn outbox(&self, peer: SiteId) -> Option<Arc<Outbox>> {
        self.outboxes().get(&peer).cloned()
    }

    /// The state of each link.
    pub(crate) fn states(&self) -> Vec<LinkState> {
        self.outboxes().values().map(|outbox| outbox.state_of_link()).collect()
    }

    /// True if no message waits that could still be sent.
    pub(crate) fn are_flushed(&self) -> bool {
        self.outboxes().values().all(|outbox| outbox.is_flushed())
    }

    /// Keeps a link to each peer, until it is dropped.
    pub(crate) async fn keep(&self, topology: Arc<Topology>) {
        let (mut kept, mut tasks) = (BTreeSet::new(), JoinSet::new());
        loop {
            let all = self.outboxes().clone();
            for (peer, outbox) in all {
                if kept.insert(peer) {
                    tasks.spawn(keep(Arc::clone(&topology), outbox));
                }
            }
            self.added.notified().await;
        }
    }

    fn outboxes(&self) -> MutexGuard<'_, BTreeMap<SiteId, Arc<Outbox>>> {
        self.outboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
