//! Errors of storage. Each is one sentence that says what to do.

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};

use crate::medium::is_full;

/// Storage could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another handle of this one, has it.
    #[error("{path} is in use by another process: stop that one first, or give this site a directory of its own")]
    InUse {
        /// The data directory.
        path: PathBuf,
    },
    /// The data is another cluster's.
    #[error("{path} belongs to cluster {found:?}, not {wanted:?}: correct the configuration, or use another directory")]
    OtherCluster {
        /// The data directory.
        path: PathBuf,
        /// The cluster that it was made for.
        found: String,
        /// The cluster that was asked for.
        wanted: String,
    },
    /// The data is another site's.
    #[error("{path} belongs to site {found:?}, not {wanted:?}: correct the configuration, or use another directory")]
    OtherSite {
        /// The data directory.
        path: PathBuf,
        /// The site that it was made for.
        found: String,
        /// The site that was asked for.
        wanted: String,
    },
    /// The cluster had another number of lanes.
    #[error(
        "{path} belongs to a cluster of {found} lanes, and not of {wanted}: that number never changes, so correct `sites`, or use another \
         directory"
    )]
    OtherLanes {
        /// The data directory.
        path: PathBuf,
        /// The number of lanes of the cluster that it was made for.
        found: u16,
        /// The number of lanes of the cluster that was asked for.
        wanted: u16,
    },
    /// A later version of the program wrote it.
    #[error("{path} has storage format {found}, and this program knows formats up to {known}: use the newer program")]
    NewerFormat {
        /// The file that says so.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The last format that this version reads.
        known: u32,
    },
    /// Bytes that were once durable cannot be read. Nothing has been changed.
    #[error(
        "{path} is damaged at byte {at} ({what}): start the site with an empty data directory, as one that has lost \
         its disk, and keep this one aside; nothing was changed"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The place in it, in bytes.
        at: u64,
        /// The damage, in words.
        what: &'static str,
    },
    /// A file that must be there is not.
    #[error(
        "{path} is missing from a data directory that has been used: put it back, or start the site with an empty \
         directory, as one that has lost its disk"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The disk has no room for the files that opening writes.
    #[error(
        "the disk that holds {path} is full, or a disk quota is used up: free {bytes} bytes there; nothing \
         is lost"
    )]
    Full {
        /// The file that could not grow.
        path: PathBuf,
        /// An amount that is enough for the log, in bytes.
        bytes: u64,
    },
    /// An option or a name that cannot be used.
    #[error("the storage option is not possible: {0}")]
    Unusable(String),
    /// The operating system refused.
    #[error("could not {action} {path}: {source}")]
    Io {
        /// The act that failed, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The table could not be opened or written.
    #[error(
        "the table {path} cannot be used: {source}; if it is damaged, start the site with an empty data directory, as \
         one that has lost its disk, and keep this one aside"
    )]
    Table {
        /// Its file.
        path: PathBuf,
        /// The table's own error.
        source: Box<redb::Error>,
    },
}

/// An amount of free disk space that is certainly enough to open, in bytes: eight segments of the default size. The files that
/// opening writes besides the log are smaller than the log.
pub(crate) const ENOUGH: u64 = 8 * (64 << 20);

impl OpenError {
    /// The error for a file to which the operating system refused `action`: [`OpenError::Full`] if it had no room.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        match is_full(&source) {
            true => OpenError::Full { path: path.to_path_buf(), bytes: ENOUGH },
            false => OpenError::Io { action, path: path.to_path_buf(), source },
        }
    }
}

/// Batches were not made durable.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The log has no room; **nothing was written**, and the same call may be made again later.
    #[error("the log has room for {room} bytes and needs {needed}: free disk space, or wait for the table to catch up")]
    NoRoom {
        /// The most that the batches take up, in bytes.
        needed: u64,
        /// [`crate::Store::room`] at the time, in bytes.
        room: u64,
    },
    /// A batch that no segment can hold; **nothing was written**. The site must stop.
    #[error("batch {seq} takes {bytes} bytes and a segment of the log holds {most}: raise `segment_bytes`")]
    TooLarge {
        /// The batch.
        seq: u64,
        /// The space that it takes up, in bytes.
        bytes: u64,
        /// The space of an empty segment, in bytes.
        most: u64,
    },
    /// A write or a sync failed. Some of the batches may be durable, as a prefix; the site must stop.
    #[error("writing {path} failed ({source}): the site stops; check the disk, then start it again")]
    Failed {
        /// The segment's file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Storage failed before, or was closed; nothing was written. The site must stop.
    #[error("storage has stopped: {why}")]
    Stopped {
        /// The first failure.
        why: String,
    },
}

/// The message of a panic.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}
