//! What can go wrong, in one sentence each, with what to do about it.

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
    /// What was once durable cannot be read. Nothing has been changed.
    #[error(
        "{path} is damaged at byte {at} ({what}): start the site with an empty data directory, as one that has lost \
         its disk, and keep this one aside; nothing was changed"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// A file that must be there is not.
    #[error(
        "{path} is missing from a data directory that has been used: put it back, or start the site with an empty \
         one, as having lost its disk"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// There is no room on the disk for what opening needs to write.
    #[error(
        "the disk that holds {path} is full, or a quota on it is used up: free {bytes} bytes there, which is enough; nothing \
         is lost"
    )]
    Full {
        /// The file that could not grow.
        path: PathBuf,
        /// How much is certainly enough.
        bytes: u64,
    },
    /// An option or a name that cannot be.
    #[error("the storage option is not possible: {0}")]
    Unusable(String),
    /// The operating system refused.
    #[error("could not {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
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
        /// Why not.
        source: Box<redb::Error>,
    },
}

/// What opening writes besides the log is less than the log: as much as eight segments of the default size.
pub(crate) const ENOUGH: u64 = 8 * (64 << 20);

impl OpenError {
    /// The operating system refused to `action` the file; if for want of room, that is what is said.
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
        /// What the batches take up at most, in bytes.
        needed: u64,
        /// [`crate::Store::room`] at the time, in bytes.
        room: u64,
    },
    /// A batch that no segment can hold; **nothing was written**. The site must stop.
    #[error("batch {seq} takes {bytes} bytes and a segment of the log holds {most}: raise `segment_bytes`")]
    TooLarge {
        /// The batch.
        seq: u64,
        /// What it takes up, in bytes.
        bytes: u64,
        /// What would be possible, in bytes.
        most: u64,
    },
    /// A write or a sync failed. Some of the batches may be durable, as a prefix; the site must stop.
    #[error("writing {path} failed ({source}): the site stops; check the disk, then start it again")]
    Failed {
        /// The segment.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Storage failed before, or was closed; nothing was written. The site must stop.
    #[error("storage has stopped: {why}")]
    Stopped {
        /// What happened.
        why: String,
    },
}
