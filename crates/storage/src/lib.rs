//! The storage of a site: an ordered log of atomic batches, and a table of the rows that they left.
//!
//! A site hands out batches ([`slackline_core::machine`]); nothing it says may leave before they are durable. So the time of
//! one sync is in every answer, and the number of batches that share a sync decides the number of answers per second. There are
//! two implementations of [`Store`]: [`Embedded`], one directory on one disk, and [`Memory`], for the simulator and for
//! measuring the protocols without a disk.
//!
//! # The embedded engine
//!
//! ```text
//!  batches                     one write                in the background
//! ──────────▶ LogWriter ───────────────────▶ log/*.log ───────────────────────────▶ table.redb ─────▶ Reader
//!             (group commit)  O_DIRECT|O_DSYNC       (by segments, by bytes, when idle)
//! ```
//!
//! The log is ours because its commit path has to be minimal: one aligned write into space that was allocated and zeroed
//! before, so that a sync has no metadata to write. The table is a `redb` file: it needs a B-tree with snapshots, and
//! `redb` is one. Batches are durable in the log before the table has them, so the table commits once per segment, or when the
//! rows that it lacks take up much memory, not once per group.
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
//! | `LOCK` | locked as long as a process can write here, and the directory with it |
//! | `IDENTITY` | format, cluster and site; written last when the directory is made, never changed |
//! | `log/NNNNNNNN.log` | segments, numbered without gaps; numbers are never used again |
//! | `log/new.tmp`, `log/recycle.tmp` | a segment that has not got its number yet |
//! | `TORN` | the place of the last group at an end of the log that could not be read |
//! | `table.redb` | table `rows`: key to value and checksum; table `marks`: the place in the log, to the byte, up to which it holds all |
//!
//! # Words of storage
//!
//! Batch, group, frame and segment are in the book's glossary, `docs/src/glossary.md`. Batches have numbers from 1, a **seq** each. A
//! frame begins anywhere in its group, and a group begins a **block** of 4096 bytes. A segment is *ready*, *active* (being written),
//! *full*, then *spare*. What is in the table is **absorbed**. **Room** is bytes of log that are certain to be there.
//!
//! # Invariants
//!
//! 1. After a crash the batches found are a prefix of those appended, and hold every batch for which `append` returned `Ok`.
//! 2. No block that was synced is written again while its segment has its number.
//! 3. [`Store::absorbed`] is never ahead of what [`Store::reader`] sees, and no segment is used again before that.
//! 4. A group is written only into room that was there before: a full disk is met by [`Store::room`], never in the middle
//!    of a write. The table meets it too, waits, and goes on when there is space.
//! 5. After a failed write or sync nothing more is written: the contents of the disk are not known then.
//!
//! # Recovery
//!
//! At opening, the segments that the table does not hold are read in order up to the first batch that is not there. The bytes
//! after that place decide what has happened. *No whole group follows*: the process ended while it wrote; those batches were
//! never acknowledged, and are cut. *A whole group follows*: it was written after the missing batch had been synced, so the
//! disk has lost something, and opening is refused with its place. The batches that are found go into the table before the
//! store is handed out, and the log starts again in a segment with a new number; so the time to open is bounded by
//! [`Options::segments_most`].
//!
//! # What is assumed of the disk
//!
//! Synced bytes stay. Each block of an unfinished write may be there or not, independently of the others. A rename is durable
//! once its directory is synced. Bits that flip are found: in the log where it is read (at opening, and by an absorber that has
//! fallen behind), in the table when the row is read. A flip in the very last group looks like a torn write here; its place is kept ([`Store::torn`]), and a site that
//! learns from its peers that the group had been durable knows that it was a flip. Not found: a flip in a *key* or an inner page
//! of the table, when that key is read alone (a scan finds it).

mod absorber;
mod directory;
mod embedded;
mod error;
#[cfg(feature = "faults")]
mod faults;
mod fold;
mod frame;
mod medium;
mod memory;
mod patience;
mod recent;
mod role;
mod segment;
mod space;
mod store;
mod table;
mod threads;
mod writer;

pub use directory::Identity;
pub use embedded::{Embedded, Options};
pub use error::{OpenError, WriteError};
#[cfg(feature = "faults")]
pub use faults::Faults;
pub use medium::Medium;
pub use memory::Memory;
pub use role::Role;
pub use store::{LogWriter, Store, Torn};
