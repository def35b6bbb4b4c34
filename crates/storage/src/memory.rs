//! A store in memory: for the simulator, for measuring the protocols alone, and for tests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline_core::machine::{Batch, ReadError, Reader, Row, Seq};

use crate::error::WriteError;
use crate::fold::Fold;
use crate::store::{LogWriter, Store};

/// Synced batches are folded into rows when they take up this many bytes, or when somebody reads.
const FOLD_BYTES: usize = 64 << 20;

/// Storage that lives as long as the value.
///
/// As a [`Store`] it counts a batch as durable when it is appended. The simulator drives it by hand instead: batches are
/// appended unsynced, synced up to a number, and lost in a crash. A clone is a copy with its own state, to be put back
/// later as a restored backup; amnesia is a new value.
///
/// Appending copies the batch's bytes and does nothing else: no row is looked at until somebody reads.
pub struct Memory {
    disk: Arc<Mutex<Disk>>,
    /// True until the log's writing end is handed out.
    has_writer: bool,
}

#[derive(Clone)]
struct Disk {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The writes of synced batches that are not in `rows` yet, in order.
    log: Vec<u8>,
    /// The last synced batch. `rows` and `log` together hold exactly the batches up to it.
    last: Seq,
    /// The batches after `last`, in order; a crash drops them.
    unsynced: VecDeque<Arc<Batch>>,
    /// The answer of [`Store::room`], in bytes.
    room: u64,
}

impl Memory {
    /// Empty storage.
    pub fn new() -> Self {
        let disk = Disk { rows: BTreeMap::new(), log: Vec::new(), last: 0, unsynced: VecDeque::new(), room: u64::MAX };
        Self { disk: Arc::new(Mutex::new(disk)), has_writer: true }
    }

    /// Appends the batch numbered `seq`, which must follow the last one; it is lost by [`Memory::crash`] until synced.
    pub fn append_unsynced(&mut self, seq: Seq, batch: Arc<Batch>) {
        let mut disk = self.disk();
        assert_eq!(seq, disk.issued() + 1, "batches must be appended in order");
        disk.unsynced.push_back(batch);
    }

    /// Makes every batch up to `upto` durable (all, if it is beyond the last).
    pub fn sync(&mut self, upto: Seq) {
        let mut disk = self.disk();
        while disk.last < upto
            && let Some(batch) = disk.unsynced.pop_front()
        {
            disk.append(&batch);
        }
    }

    /// Drops what is not synced, as a power cut does.
    pub fn crash(&mut self) {
        self.disk().unsynced.clear();
    }

    /// The last batch appended, synced or not.
    pub fn issued(&self) -> Seq {
        self.disk().issued()
    }

    /// Sets the answer of [`Store::room`], in bytes, until it is set again.
    pub fn set_room(&mut self, bytes: u64) {
        self.disk().room = bytes;
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        Self { disk: Arc::new(Mutex::new(self.disk().clone())), has_writer: true }
    }
}

impl Disk {
    fn issued(&self) -> Seq {
        self.last + self.unsynced.len() as u64
    }

    fn append(&mut self, batch: &Batch) {
        self.log.extend_from_slice(batch.as_bytes());
        self.last += 1;
        if self.log.len() >= FOLD_BYTES {
            self.fold();
        }
    }

    fn fold(&mut self) {
        if self.log.is_empty() {
            return;
        }

        // Only the last write of each key reaches the tree: folding a log of a hot row costs one insertion.
        let writes = Batch::from_bytes(std::mem::take(&mut self.log)).expect("made of whole batches");
        let mut fold = Fold::default();
        fold.take(&writes.into());
        for (key, value) in fold.into_rows() {
            match value {
                Some(value) => self.rows.insert(key, value),
                None => self.rows.remove(&key),
            };
        }
    }
}

impl Reader for Memory {
    fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        let mut disk = self.disk();
        disk.fold();
        disk.rows.read(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Row>, ReadError> {
        let mut disk = self.disk();
        disk.fold();
        disk.rows.scan(from, to, limit)
    }
}

impl Store for Memory {
    fn last(&self) -> Seq {
        self.disk().last
    }

    fn absorbed(&self) -> Seq {
        // A read folds first, so the reader sees every synced batch.
        self.disk().last
    }

    fn absorb_soon(&self) {}

    fn reader(&self) -> &dyn Reader {
        self
    }

    fn writer(&mut self) -> Option<Box<dyn LogWriter>> {
        std::mem::take(&mut self.has_writer)
            .then(|| Box::new(MemoryWriter { disk: Arc::clone(&self.disk) }) as Box<dyn LogWriter>)
    }

    fn room(&self) -> u64 {
        self.disk().room
    }

    fn failure(&self) -> Option<String> {
        None
    }

    fn is_new(&self) -> bool {
        self.disk().last == 0
    }
}

struct MemoryWriter {
    disk: Arc<Mutex<Disk>>,
}

impl LogWriter for MemoryWriter {
    fn append(&mut self, first: Seq, batches: &[Arc<Batch>]) -> Result<(), WriteError> {
        let mut disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(first, disk.issued() + 1, "batches must be appended in order");
        assert!(disk.unsynced.is_empty(), "a memory is driven by hand or by its writer, not both");
        for batch in batches {
            disk.append(batch);
        }
        Ok(())
    }
}
