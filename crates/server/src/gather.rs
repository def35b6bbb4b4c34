//! Group commit: while the log syncs one group of batches, the next one gathers.

use std::sync::Arc;
use std::time::Duration;

use slackline_core::machine::{Batch, Seq};
use slackline_storage::{LogWriter, WriteError};

use crate::log::{Log, Synced};
use crate::mailbox::Mailbox;
use crate::metrics::SyncTimes;

/// This many operations are worth a sync of their own: it starts while the rest of the turn is handled. Without it, two batches of
/// one client that arrive together would be synced together and answered together, and from then on client and site would take
/// turns instead of working at the same time.
pub(crate) const SYNC_OPERATIONS: usize = 128;
/// A group of no more bytes is appended by the machine's own thread, where a sync usually takes no longer than this.
const HERE_BYTES: usize = 8 << 10;
const HERE_SYNC: Duration = Duration::from_micros(300);

/// The batches of a site on their way to its log.
pub(crate) struct Gather {
    log: Log,
    mailbox: Arc<Mailbox>,
    sync_times: Arc<SyncTimes>,
    /// Batches that wait for the log, and the number of the first.
    batches: Vec<Arc<Batch>>,
    /// The number of the first of `batches`, or of the next one if there is none.
    first: Seq,
    /// The bytes of `batches`: always the sum of theirs.
    bytes: usize,
    /// Bytes of the group that is being synced.
    syncing_bytes: usize,
    /// A mean of what syncs took lately.
    usual_sync: Duration,
}

impl Gather {
    /// Starts the log's thread, on a log whose last batch is `last`.
    pub(crate) fn start(
        writer: Box<dyn LogWriter>,
        last: Seq,
        name: &str,
        mailbox: Arc<Mailbox>,
        sync_times: Arc<SyncTimes>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            log: Log::start(writer, name, Arc::clone(&mailbox))?,
            mailbox,
            sync_times,
            batches: Vec::new(),
            first: last + 1,
            bytes: 0,
            syncing_bytes: 0,
            usual_sync: HERE_SYNC * 2,
        })
    }

    /// Adds the batch that follows the last one. Returns its number.
    pub(crate) fn push(&mut self, batch: Arc<Batch>) -> Seq {
        self.bytes += batch.as_bytes().len();
        self.batches.push(batch);
        self.first + self.batches.len() as Seq - 1
    }

    /// The number of batches that wait for the log.
    pub(crate) fn len(&self) -> usize {
        self.batches.len()
    }

    /// Their bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the group that is being synced.
    pub(crate) fn syncing_bytes(&self) -> usize {
        self.syncing_bytes
    }

    /// Returns true if everything that was added is durable, as far as [`Gather::poll`] has told.
    pub(crate) fn is_done(&self) -> bool {
        self.batches.is_empty() && !self.log.is_busy()
    }

    /// The last batch that is durable, if a group has become so.
    pub(crate) fn poll(&mut self) -> Result<Option<Seq>, WriteError> {
        let Some(result) = self.log.poll() else { return Ok(None) };
        self.syncing_bytes = 0;
        result.map(|synced| Some(self.note(synced)))
    }

    /// Starts a sync of what has gathered, if none is under way; or does it here, if it is small and the disk is quick. Then it
    /// returns the last batch, which is durable.
    pub(crate) fn submit(&mut self) -> Result<Option<Seq>, WriteError> {
        // One group at a time. Those that gather meanwhile share the next sync.
        if self.batches.is_empty() || self.log.is_busy() {
            return Ok(None);
        }

        let first = self.first;
        self.first += self.batches.len() as Seq;

        // With requests waiting, this thread has better things to do than to wait for the disk.
        let here = self.bytes <= HERE_BYTES && self.usual_sync <= HERE_SYNC && self.mailbox.is_empty();
        let synced = if here { self.log.append_here(first, &mut self.batches) } else { None };
        match synced {
            Some(synced) => {
                self.bytes = 0;
                synced.map(|synced| Some(self.note(synced)))
            }
            None => {
                self.log.submit(first, &mut self.batches);
                self.syncing_bytes = std::mem::take(&mut self.bytes);
                Ok(None)
            }
        }
    }

    fn note(&mut self, synced: Synced) -> Seq {
        self.sync_times.observe(synced.took);
        self.usual_sync = (self.usual_sync * 7 + synced.took) / 8;
        synced.last
    }
}
