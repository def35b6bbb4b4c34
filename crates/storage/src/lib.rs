//! Where a site keeps its batches: an ordered log of atomic batches, and a table of the rows that they left.
//!
//! A site hands out batches ([`slackline_core::machine`]); nothing it says may leave before they are durable. So the time of
//! one sync is in every answer, and how many batches share a sync decides how many answers a second there are. Two
//! implementations of [`Store`] stand side by side: [`Embedded`], one directory on one disk, and [`Memory`], for the
//! simulator and for measuring the protocols without a disk.
//!
//! # The embedded engine
//!
//! ```text
//!  batches                     one write                a transaction per segment
//! ──────────▶ LogWriter ───────────────────▶ log/*.log ───────────────────────────▶ table.redb ─────▶ Reader
//!             (group commit)  O_DIRECT|O_DSYNC           (in the background)
//! ```
//!
//! The log is ours because its commit path has to be minimal: one aligned write into space that was allocated and zeroed
//! before, so that a sync has no metadata to write. The table is a `redb` file, because a B-tree with snapshots is exactly
//! what is needed and nothing is gained by writing one. The log takes the burden of durability from it, so it commits once
//! per segment, not once per group.
//!
//! Measured on 2 cores of a virtual machine with ext4 on a virtual disk (`cargo bench -p slackline-storage`; a batch is two
//! rows, about 100 bytes; one thread, each sync waited for):
//!
//! | batches in a group | log, `O_DIRECT\|O_DSYNC` | log, write and `fdatasync` | `redb` alone |
//! | ---: | --- | --- | --- |
//! | 1 | 119 us (p99 209), 7,900 /s | 130 us (261), 7,000 /s | 216 us (351), 4,500 /s |
//! | 64 | 126 us (613), 446,000 /s | 139 us (619), 370,000 /s | 318 us (529), 191,000 /s |
//! | 512 | 175 us (884), 1,950,000 /s | 167 us (948), 2,240,000 /s | 865 us (1184), 575,000 /s |
//!
//! The tails of the log are those of the table's own syncs on the same disk, and of its threads on the same cores. Opening
//! a log of 1,000,000 different small rows that were not in the table yet took 1.3 to 1.4 s; opening it again, 0.1 s. Peak
//! memory while a full segment of 64 MiB goes into a table of 300,000 rows: 160 MB.
//!
//! # Files
//!
//! | file | what it is |
//! | --- | --- |
//! | `LOCK` | locked as long as a process can write here |
//! | `IDENTITY` | format, cluster and site; written last when the directory is made, never changed |
//! | `log/NNNNNNNN.log` | segments, numbered without gaps; numbers are never used again |
//! | `log/new.tmp`, `log/recycle.tmp` | a segment that has not got its number yet |
//! | `TORN` | where the log ended in a group that could not be read, the last time that it did |
//! | `table.redb` | table `rows`: key to value and checksum; table `marks`: what of the log it holds |
//!
//! # Glossary
//!
//! - **batch**: writes that become durable together; numbered by a **seq** from 1.
//! - **group**: the batches of one sync. **Frame**: one batch as it lies in a group. **Block**: 4096 bytes.
//! - **segment**: one file of the log: *ready*, *active* (being written), *full*, then *spare*.
//! - **absorbed**: in the table. **Room**: bytes of log that are certain to be there.
//!
//! # Invariants
//!
//! 1. After a crash the batches found are a prefix of those appended, and hold every batch for which `append` returned `Ok`.
//! 2. No block that was synced is written again while its segment has its number.
//! 3. [`Store::absorbed`] is never ahead of what [`Store::reader`] sees, and no segment is used again before that.
//! 4. A group is written only into room that was there before: a full disk is met by [`Store::room`], never in the middle
//!    of a write. The table meets it too, waits, and goes on when there is space.
//! 5. After a failed write or sync nothing more is written: what is on the disk then is not known.
//!
//! # Recovery
//!
//! At opening, the segments that the table does not hold are read in order up to the first batch that is not there. What
//! comes after decides what that means. *No whole group*: the process ended while it wrote; those batches were never
//! acknowledged, and are cut. *A whole group*: it was only written after the missing batch had been synced, so the disk
//! has lost something, and opening is refused with its place. What is found goes into the table before the store is handed
//! out, and the log starts again in a segment with a new number; so the time to open is bounded by
//! [`Options::segments_most`].
//!
//! # What is assumed of the disk
//!
//! What was synced stays, blocks of one unfinished write may be there or not each by itself, and a rename is durable once
//! its directory is synced. Bits that flip are found: in the log at opening and at absorption, in the table when the row
//! is read. A flip in the very last group cannot be told from a torn write here; its place is kept ([`Store::torn`]) for those
//! who know from others that the group had been durable. Not found: a flip in a *key* or an inner page of the table, when that
//! key is read alone (a scan finds it).

mod directory;
mod embedded;
mod error;
#[cfg(feature = "faults")]
mod faults;
mod frame;
mod medium;
mod memory;
mod segment;
mod table;
mod writer;

use std::path::PathBuf;

use slackline_core::machine::{Batch, Reader, Seq};

pub use directory::Identity;
pub use embedded::{Embedded, Options};
pub use error::{OpenError, WriteError};
#[cfg(feature = "faults")]
pub use faults::Faults;
pub use medium::{Medium, Role};
pub use memory::Memory;

/// Storage of one site: an ordered log of batches, and reads of what was absorbed from it.
///
/// The driver keeps the store and reads; the [`LogWriter`] goes to the thread that syncs.
pub trait Store: Send {
    /// The last durable batch; 0 if there is none.
    fn last(&self) -> Seq;

    /// The last batch that [`Store::reader`] is certain to see. It only rises, also in the background; the reader may
    /// already see later batches, each whole.
    fn absorbed(&self) -> Seq;

    /// Reads what was absorbed. Each call sees whole batches; two calls may see different states.
    fn reader(&self) -> &dyn Reader;

    /// The log's writing end, once.
    fn writer(&mut self) -> Option<Box<dyn LogWriter>>;

    /// Bytes of log that are certain to be there; 0 if storage has stopped. A group takes up its batches, at most 23
    /// bytes beside each, and is rounded up to 4096. Cheap; may be asked for each request.
    fn room(&self) -> u64;

    /// Why storage has stopped, if it has: every write fails from then on, and the site must stop.
    fn failure(&self) -> Option<String>;

    /// Whether storage held no batch when it was opened: the site has never run on it.
    fn is_new(&self) -> bool;

    /// Where the log ended, when it was opened, in a group that could not be read, if it did: one that was never acknowledged,
    /// or one that the disk has lost. Whoever knows that the site had got further knows which.
    fn torn(&self) -> Option<&Torn> {
        None
    }
}

/// A group at the end of the log that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Torn {
    /// The segment.
    pub path: PathBuf,
    /// Where in it the first batch that cannot be read begins, in bytes.
    pub at: u64,
    /// The batch before it.
    pub last: Seq,
}

/// The writing end of a log.
pub trait LogWriter: Send {
    /// Makes the batches durable, in order: when it returns `Ok`, all are synced. `first` is the number of the first and
    /// follows the last one appended.
    ///
    /// They are one group with one sync, unless they take up more than 1 MiB or than is left in a segment; then they
    /// are several, in order. After [`WriteError::NoRoom`] nothing was written and the call may be repeated; every other
    /// error ends the writer.
    fn append(&mut self, first: Seq, batches: &[Batch]) -> Result<(), WriteError>;
}
