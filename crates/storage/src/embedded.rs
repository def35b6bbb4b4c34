//! The embedded engine: opening, and the threads behind it.
//!
//! ```text
//!                 append                full                 absorbed
//!   ready ──────▶ active ───────────▶ segments ───────────▶   spare
//!  segments    (log thread)               (absorber)        segments
//!     ▲                                                        │
//!     └────────────────────────── preparer ◀───────────────────┘
//! ```
//!
//! The log thread only writes. The *absorber* takes full segments into the table, oldest first. It reads the batches of the active
//! segment soon after they are written, and takes them into the table when it is asked to and when nothing was written for a while:
//! rows leave memory, and the next start has less to read, before the segment is full. It takes a bounded number of rows at a time.
//! The *preparer* gives
//! spare segments new numbers, makes more when there are too few, and is the only thread that hands out numbers.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use slackline_core::machine::{Reader, Seq};

use crate::absorber::Absorber;
use crate::directory::{Directory, Identity, Named};
use crate::error::OpenError;
use crate::fold::Fold;
use crate::frame::BLOCK;
use crate::medium::{Medium, is_full, remove_if_there};
use crate::segment::{Listing, Place, Run, Segment, file_name};
use crate::store::{LogWriter, Store, Torn};
use crate::table::{Marks, Table};
use crate::threads::{Shared, spawn};
use crate::writer::Writer;

/// The engine's use of disk and memory.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size of a segment of the log, in bytes: a multiple of 4096, from 8192 to 1 GiB. A batch must fit in one.
    pub segment_bytes: u64,
    /// The number of segments that are kept ready beside the one in use.
    pub segments_ahead: usize,
    /// The largest number of segments. It bounds the disk space of the log and the time to open; when the table does
    /// not catch up, [`Store::room`] falls. At least two more than `segments_ahead`.
    pub segments_most: usize,
    /// The memory for pages of the table, in bytes.
    pub cache_bytes: usize,
    /// True to write the log past the page cache where the file system can do that. Otherwise each group costs a write and a
    /// sync.
    pub direct: bool,
    /// The medium that the files lie on.
    pub medium: Medium,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            segments_ahead: 2,
            segments_most: 8,
            cache_bytes: 32 << 20,
            direct: true,
            medium: Medium::Real,
        }
    }
}

/// A site's storage in a directory of its own.
///
/// Dropping it is closing it: the threads end, and the directory is free as soon as the [`LogWriter`] is dropped too.
pub struct Embedded {
    shared: Arc<Shared>,
    /// The log's writing end, until it is handed out.
    writer: Option<Writer>,
    /// The absorber and the preparer.
    threads: Vec<JoinHandle<()>>,
    /// True if no batch was found at opening.
    is_new: bool,
    /// The group at the end of the log that could not be read at opening, if there was one.
    torn: Option<Torn>,
}

impl Embedded {
    /// Opens the data directory at `path`, which is made if it does not exist, takes the rest of the log into the table, and
    /// starts the threads.
    pub fn open(path: &Path, identity: &Identity, options: Options) -> Result<Self, OpenError> {
        check(&options)?;

        // Before anything is read: another process may still be writing here, and two writers would spoil each other's log.
        let directory = Directory::lock(path)?;
        let named = directory.check_identity(identity)?;
        let has_identity = named != Named::Not;

        let io = |action| move |source| OpenError::io(action, path, source);
        let Options { segment_bytes, direct, ref medium, .. } = options;
        let place =
            Place::open(directory.log(), segment_bytes, direct, medium.clone()).map_err(io("open the log in"))?;
        let listing = Listing::read(&place.directory).map_err(io("list the log in"))?;

        // The name is written last, so a directory that bears one was complete. Where its table or its log is missing now, making
        // new ones would pass for a site that has never promised anything.
        if has_identity {
            check_complete(&directory, &place, &listing)?;
        }

        let (table, marks) = Table::open(&directory.table(), &options.medium, options.cache_bytes)?;
        let marks = replay(&directory, &place, &table, &listing, marks)?;
        let last = marks.absorbed;
        if !has_identity && last > 0 {
            return Err(OpenError::Missing { path: path.join("IDENTITY") });
        }

        // Every batch is in the table, so the log starts again, in a segment with a number that was never used: frames left over
        // in the file do not pass for frames of that number. The marks move first. If the process ends before the segment is
        // there, the next opening finds a log that ends before them, and all batches in the table.
        let number = listing.segments.keys().last().map_or(marks.segment, |last| marks.segment.max(last + 1));
        let begin = Marks { absorbed: last, segment: number, at: BLOCK as u64 };
        if begin != marks {
            table.absorb(&[], begin)?;
        }
        let (active, spare) = first_segment(&place, listing, number)?;
        if named != Named::Whole {
            let written = directory.write_identity(identity);

            // One that only lacks the number of lanes is complete as it is: that is noted at a start that finds room.
            let may_wait = named == Named::WithoutLanes && matches!(written, Err(OpenError::Full { .. }));
            if !may_wait {
                written?;
            }
        }
        let torn = directory.torn(last);

        // Until here a full disk was an error, which the caller can act on. From here on the absorber waits for space: `redb`
        // gives up permanently after an error, and the log goes on in the segments that it has.
        table.patience().set_patient();
        let shared = Arc::new(Shared::new(directory, table, place, &active, spare, last));
        let writer = Some(Writer::new(Arc::clone(&shared), active));
        let mut opened = Self { shared, writer, threads: Vec::new(), is_new: last == 0, torn };

        // If the second cannot be started, the first ends as it does on closing, and the directory is free again.
        let absorb = spawn("slackline-absorb", &opened.shared, move |shared| Absorber::new(shared, begin).run());
        opened.threads.push(absorb.map_err(io("start a thread for"))?);
        let prepare = spawn("slackline-prepare", &opened.shared, move |shared| {
            shared.prepare(options.segments_ahead, options.segments_most)
        });
        opened.threads.push(prepare.map_err(io("start a thread for"))?);
        Ok(opened)
    }

    /// Ends the threads and, once the [`LogWriter`] is dropped too, frees the directory. Waits until the table's transaction that
    /// is running has ended. Nothing needs to be written: every batch that was appended is durable already.
    pub fn close(self) {
        drop(self);
    }

    /// True if groups of batches are written past the page cache; always false once the [`LogWriter`] was handed out.
    pub fn is_direct(&self) -> bool {
        self.writer.as_ref().is_some_and(Writer::is_direct)
    }
}

impl Store for Embedded {
    fn last(&self) -> Seq {
        self.shared.last.load(Ordering::Acquire)
    }

    fn absorbed(&self) -> Seq {
        self.shared.absorbed()
    }

    fn absorb_soon(&self) {
        self.shared.ask();
    }

    fn reader(&self) -> &dyn Reader {
        &self.shared.table
    }

    fn writer(&mut self) -> Option<Box<dyn LogWriter>> {
        self.writer.take().map(|writer| Box::new(writer) as Box<dyn LogWriter>)
    }

    fn room(&self) -> u64 {
        self.shared.room()
    }

    fn failure(&self) -> Option<String> {
        self.shared.stopped()
    }

    fn waits_for(&self) -> Option<String> {
        self.shared.table.patience().waits_for()
    }

    fn is_new(&self) -> bool {
        self.is_new
    }

    fn torn(&self) -> Option<&Torn> {
        self.torn.as_ref()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shared.stop("it was closed".to_owned());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so; there is nothing left to do for it.
            let _ = thread.join();
        }
    }
}

fn check(options: &Options) -> Result<(), OpenError> {
    let unusable = |why: &str| Err(OpenError::Unusable(why.to_owned()));
    let bytes = options.segment_bytes;
    if !bytes.is_multiple_of(BLOCK as u64) || !(2 * BLOCK as u64..=1 << 30).contains(&bytes) {
        return unusable("segment_bytes must be a multiple of 4096, from 8192 to 1 GiB");
    }
    if options.segments_ahead == 0 || options.segments_most < options.segments_ahead + 2 {
        return unusable("segments_ahead must be at least 1, and segments_most at least 2 more");
    }
    Ok(())
}

/// Checks that a directory that has been in use holds a table and at least one file of the log. Where one is not there, it was
/// lost.
fn check_complete(directory: &Directory, place: &Place, listing: &Listing) -> Result<(), OpenError> {
    if !directory.table().exists() {
        return Err(OpenError::Missing { path: directory.table() });
    }
    // It gets its name only when it is a table. One of no bytes would be taken for a new one.
    let table = directory.table();
    let length = table.metadata().map_err(|source| OpenError::io("open", &table, source))?.len();
    if length == 0 {
        return Err(OpenError::Damaged { path: table, at: 0, what: "the file is empty" });
    }
    if listing.segments.is_empty() && listing.changing.is_none() {
        return Err(OpenError::Missing { path: place.directory.join("*.log") });
    }
    Ok(())
}

/// Takes the batches of the log that are beyond `marks` into the table, and returns the marks from then on.
///
/// Batches are read in order, up to the first that is not there. If a whole group follows, the missing batch had been durable,
/// and the log is damaged. If none follows, the missing batch was being written when the process ended, and was never
/// acknowledged; or it was the last one, and the disk has lost it. This site alone cannot distinguish these two: the place is
/// noted, for the case that a peer knows of the batch.
fn replay(
    directory: &Directory,
    place: &Place,
    table: &Table,
    listing: &Listing,
    mut marks: Marks,
) -> Result<Marks, OpenError> {
    let (first, mut at, mut last) = (marks.segment, marks.at, marks.absorbed);
    let mut fold = Fold::default();
    let mut run_end: Option<(&Path, u64)> = None;
    for (expected, (&number, path)) in (first..).zip(listing.segments.range(first..)) {
        // Segments are numbered without gaps, so a number left out was a file full of durable batches.
        if number != expected {
            return Err(OpenError::Missing { path: place.directory.join(file_name(expected)) });
        }

        // Large logs are taken in by parts, so that memory is bounded. The marks of each part make it final: a crash in the
        // middle of opening costs only what was not absorbed yet.
        let mut run = Run::open(place, path, number, at, last, None)?;
        while let Some(batch) = run.next()? {
            fold.take(&batch.into());
            if fold.is_large() {
                marks = Marks { absorbed: run.last(), segment: number, at: run.at() };
                table.absorb(&std::mem::take(&mut fold).rows(), marks)?;
            }
        }

        // A whole group behind the run was written after the sync of all before it. Cutting the log here would drop batches of
        // which the world may have heard.
        let rest = run.rest()?;
        if let Some(later) = rest.later {
            // A segment that has its first group, but not the batches before that: they are missing at the end of the segment
            // before this one.
            let (path, at) = run_end.filter(|_| later == BLOCK as u64).unwrap_or((path, run.at()));
            let what = "a batch there cannot be read, and later ones can";
            return Err(OpenError::Damaged { path: path.to_path_buf(), at, what });
        }
        if rest.is_torn {
            directory.note_torn(&Torn { path: path.clone(), at: run.at(), last: run.last() })?;
        }
        (at, last) = (BLOCK as u64, run.last());
        run_end = Some((path, run.at()));
    }

    if last > marks.absorbed {
        // The marks name the segment that is written next, so a second opening does not read these batches again.
        let segment = listing.segments.keys().last().map_or(first, |last| last + 1);
        marks = Marks { absorbed: last, segment, at: BLOCK as u64 };
        table.absorb(&fold.rows(), marks)?;
    }
    Ok(marks)
}

/// Makes the segment to write next, of an absorbed one if there is one of the right size, and returns it with the other absorbed
/// ones.
fn first_segment(place: &Place, listing: Listing, number: u64) -> Result<(Segment, VecDeque<PathBuf>), OpenError> {
    let io = |source: io::Error| match is_full(&source) {
        // The one to write, and two kept ready.
        true => OpenError::Full { path: place.directory.clone(), bytes: 3 * place.segment_bytes },
        false => OpenError::Io { action: "make a segment in", path: place.directory.clone(), source },
    };
    let mut spare = VecDeque::new();
    let mut misfits = Vec::new();
    for path in listing.segments.into_values().chain(listing.changing) {
        let fits = path.metadata().map_err(io)?.len() == place.segment_bytes;
        if fits { spare.push_back(path) } else { misfits.push(path) }
    }

    // From the back: a file whose change of number was cut short stands there, and its name must be free for the next change.
    let active = match spare.pop_back() {
        Some(old) => Segment::recycle(place, &old, number),
        None => Segment::create(place, number),
    };
    let active = active.map_err(io)?;

    // Only now: a directory that has a name and no segment is taken for one that has lost its log.
    for path in misfits {
        remove_if_there(&path).map_err(io)?;
    }
    Ok((active, spare))
}
