//! The state of a site, published by its engine after each turn.
//!
//! A probe reads the state that was published last. It asks nobody: a question would wait behind the requests of clients, and a
//! busy site, or one with a slow disk, would look like one that does not serve.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slackline_core::api::{Listed, Readiness, Status};
use slackline_core::id::SiteId;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::mailbox::Mailbox;

/// The time that the engine may take to publish figures. It does so at its next turn; a turn waits for no sync.
const PATIENCE: Duration = Duration::from_secs(1);

/// The state of a site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Health {
    /// Its progress towards serving; none once its engine has stopped.
    pub(crate) readiness: Option<Readiness>,
    /// The sites that it waits for.
    pub(crate) waiting_for: Vec<SiteId>,
}

impl Health {
    /// A site whose engine does not run.
    pub(crate) fn stopped() -> Self {
        Self { readiness: None, waiting_for: Vec::new() }
    }

    /// True if it serves reads and writes.
    pub(crate) fn is_ready(&self) -> bool {
        self.readiness == Some(Readiness::Ready)
    }

    /// The word for its state.
    pub(crate) fn name(&self) -> &'static str {
        self.readiness.map_or("stopped", Readiness::name)
    }
}

/// The machine's figures, for the metrics.
#[derive(Clone, Default, Debug)]
pub(crate) struct Figures {
    pub(crate) status: Status,
    /// The first quotas by name.
    pub(crate) quotas: Vec<Listed>,
}

/// The place where figures are asked for, past the queue of the clients, and where the engine puts them.
#[derive(Debug)]
pub(crate) struct FigureDesk {
    /// True from a question until the engine has seen it.
    is_wanted: AtomicBool,
    /// The figures that the engine put here last.
    taken: watch::Sender<Arc<Figures>>,
}

impl FigureDesk {
    pub(crate) fn new() -> Self {
        Self { is_wanted: AtomicBool::new(false), taken: watch::Sender::default() }
    }

    /// The engine's side: takes the question, if one was asked since the last call. Returns true if so.
    pub(crate) fn take_question(&self) -> bool {
        self.is_wanted.swap(false, Ordering::Relaxed)
    }

    /// The engine's side: puts the figures of now.
    pub(crate) fn put(&self, figures: Figures) {
        self.taken.send_replace(Arc::new(figures));
    }

    /// The figures of now; the last ones if the engine has stopped.
    pub(crate) async fn ask(&self, mailbox: &Mailbox) -> Arc<Figures> {
        // Subscribed before it asks, so that an answer that comes at once counts as a change.
        let mut taken = self.taken.subscribe();
        self.is_wanted.store(true, Ordering::Relaxed);
        mailbox.wake.notify_one();

        // Late figures are better than none: a series that comes and goes sets off alarms.
        let _ = timeout(PATIENCE, taken.changed()).await;
        let figures = taken.borrow();
        Arc::clone(&figures)
    }
}
