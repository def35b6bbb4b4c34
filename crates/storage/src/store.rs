//! What a site needs of storage.

use std::path::PathBuf;
use std::sync::Arc;

use slackline_core::machine::{Batch, Reader, Seq};

use crate::error::WriteError;

/// Storage of one site: an ordered log of batches, and reads of what was absorbed from it.
///
/// The driver keeps the store and reads; the [`LogWriter`] goes to the thread that syncs.
pub trait Store: Send {
    /// The last durable batch; 0 if there is none.
    fn last(&self) -> Seq;

    /// The last batch that [`Store::reader`] is certain to see, never above [`Store::last`]. It only rises, also between two
    /// calls; the reader may already see later batches, each whole.
    fn absorbed(&self) -> Seq;

    /// Asks for all durable batches to be absorbed now, not only when a segment is full: until then their rows take up the
    /// caller's memory. Returns at once. Cheap; may be called for each batch.
    fn absorb_soon(&self);

    /// Reads the rows that were absorbed. Each call sees whole batches; two calls may see different states.
    fn reader(&self) -> &dyn Reader;

    /// Hands out the log's writing end: at the first call; `None` at every other.
    fn writer(&mut self) -> Option<Box<dyn LogWriter>>;

    /// Bytes of log that are certain to be there; 0 if storage has stopped. A group takes up its batches, at most 23
    /// bytes beside each, and is rounded up to 4096. Cheap; may be asked for each request.
    fn room(&self) -> u64;

    /// The reason why storage has stopped, if it has: every write fails from then on, and the site must stop.
    fn failure(&self) -> Option<String>;

    /// What storage waits for, in words, if it does: room on the disk, or a file that it may open. It goes on by itself.
    fn waits_for(&self) -> Option<String> {
        None
    }

    /// True if storage held no batch when it was opened: the site has never run on it.
    fn is_new(&self) -> bool;

    /// The group at the end of the log that could not be read when the log was opened, if there was one. Its batches were
    /// never acknowledged, or the disk has lost them. A peer that has heard of a later batch of this site shows that it was a loss.
    fn torn(&self) -> Option<&Torn> {
        None
    }
}

/// A group at the end of the log that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Torn {
    /// The segment's file.
    pub path: PathBuf,
    /// The place in it, in bytes, where the first batch begins that cannot be read.
    pub at: u64,
    /// The batch before that one: the last that can be read.
    pub last: Seq,
}

/// The writing end of a log.
pub trait LogWriter: Send {
    /// Makes the batches durable, in order: when it returns `Ok`, all are synced. `first` is the number of the first and
    /// follows the last one appended.
    ///
    /// They are one group with one sync, unless they take up more than 1 MiB or than is left in a segment; then they
    /// are several, in order. After [`WriteError::NoRoom`] nothing was written and the call may be repeated; every other
    /// error ends the writer. Batches are shared, so that storage can go on with them without a copy.
    fn append(&mut self, first: Seq, batches: &[Arc<Batch>]) -> Result<(), WriteError>;
}
