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
//! The log thread only writes. The *absorber* takes the oldest full segment into the table. The *preparer* gives spare
//! segments new numbers, makes more when there are too few, and is the only one who hands out numbers.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use slackline_core::machine::{Batch, Reader, Seq};

use crate::directory::{Directory, Identity};
use crate::error::OpenError;
use crate::frame::BLOCK;
use crate::medium::{Medium, is_full, remove_if_there};
use crate::segment::{Listing, Place, Segment, file_name, read_segment};
use crate::table::{Marks, Pause, Table};
use crate::writer::Writer;
use crate::{LogWriter, Store, Torn};

/// How the engine uses disk and memory.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size of a segment of the log, in bytes: a multiple of 4096, from 8192 to 1 GiB. A batch must fit in one.
    pub segment_bytes: u64,
    /// How many segments are kept ready beside the one in use.
    pub segments_ahead: usize,
    /// How many segments there are at most. It bounds the disk space of the log and the time to open; when the table does
    /// not catch up, [`Store::room`] falls. At least two more than `segments_ahead`.
    pub segments_most: usize,
    /// The memory for pages of the table, in bytes.
    pub cache_bytes: usize,
    /// Write the log past the page cache where the file system can do that. Without, each group costs a write and a sync.
    pub direct: bool,
    /// What the files lie on.
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
    writer: Option<Writer>,
    threads: Vec<JoinHandle<()>>,
    is_new: bool,
    torn: Option<Torn>,
}

/// What the threads share.
pub(crate) struct Shared {
    /// Numbers of batches, bytes.
    pub(crate) last: AtomicU64,
    absorbed: AtomicU64,
    pub(crate) room: AtomicU64,
    /// Set with `State::stopped`, to be seen without the lock.
    has_stopped: AtomicBool,
    state: Mutex<State>,
    wake: Condvar,
    table: Table,
    place: Place,
    /// Dropped last: nobody else may have the directory while a thread can still write.
    _directory: Directory,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Segment>,
    full: VecDeque<Full>,
    spare: VecDeque<PathBuf>,
    /// All segments, in whatever state.
    total: usize,
    next_number: u64,
    stopped: Option<String>,
}

/// A segment that is written and waits to be absorbed.
pub(crate) struct Full {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) end: u64,
    pub(crate) last: Seq,
}

impl Embedded {
    /// Opens the data directory at `path`, which is made if it does not exist, takes what is left in the log into the
    /// table, and starts the threads.
    pub fn open(path: &Path, identity: &Identity, options: Options) -> Result<Self, OpenError> {
        check(&options)?;
        let directory = Directory::lock(path)?;
        let has_identity = directory.check_identity(identity)?;
        let place = Place {
            directory: directory.log(),
            segment_bytes: options.segment_bytes,
            direct: options.direct,
            medium: options.medium.clone(),
        };
        let io = |action| move |source| OpenError::io(action, path, source);
        let listing = Listing::read(&place.directory).map_err(io("list the log in"))?;
        if has_identity {
            check_complete(&directory, &place, &listing)?;
        }
        let (table, marks) = Table::open(&directory.table(), &options.medium, options.cache_bytes)?;
        let last = replay(&directory, &place, &table, &listing, marks)?;
        if !has_identity && last > 0 {
            return Err(OpenError::Missing { path: path.join("IDENTITY") });
        }

        // Everything is in the table: the log starts again, in a segment with a number that was never used.
        let number = listing.segments.keys().last().map_or(marks.segment, |last| marks.segment.max(last + 1));
        if number > marks.segment {
            table.absorb(&[], Marks { absorbed: last, segment: number })?;
        }
        let (active, spare) = first_segment(&place, listing, number)?;
        if !has_identity {
            directory.write_identity(identity)?;
        }
        let torn = directory.torn(last);
        table.patience().set_patient();
        let state = State { total: 1 + spare.len(), spare, next_number: number + 1, ..State::default() };
        let shared = Arc::new(Shared {
            last: AtomicU64::new(last),
            absorbed: AtomicU64::new(last),
            room: AtomicU64::new(active.left()),
            has_stopped: AtomicBool::new(false),
            state: Mutex::new(state),
            wake: Condvar::new(),
            table,
            place,
            _directory: directory,
        });
        let threads = vec![
            spawn("slackline-absorb", &shared, |shared| shared.absorb()).map_err(io("start a thread for"))?,
            spawn("slackline-prepare", &shared, move |shared| shared.prepare(&options))
                .map_err(io("start a thread for"))?,
        ];
        let writer = Some(Writer::new(Arc::clone(&shared), active));
        Ok(Self { shared, writer, threads, is_new: last == 0, torn })
    }

    /// Ends the threads and, once the [`LogWriter`] is dropped too, frees the directory. Waits for the transaction under
    /// way. What is durable stays so: nothing needs to be written.
    pub fn close(self) {
        drop(self);
    }

    /// Whether groups of batches are written past the page cache.
    pub fn is_direct(&self) -> bool {
        self.writer.as_ref().is_some_and(Writer::is_direct)
    }
}

impl Store for Embedded {
    fn last(&self) -> Seq {
        self.shared.last.load(Ordering::Acquire)
    }

    fn absorbed(&self) -> Seq {
        self.shared.absorbed.load(Ordering::Acquire)
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

impl Shared {
    /// Why storage has stopped, if it has.
    pub(crate) fn stopped(&self) -> Option<String> {
        if !self.has_stopped.load(Ordering::Acquire) {
            return None;
        }
        self.state().stopped.clone()
    }

    /// Stops everything for good; the first reason counts.
    pub(crate) fn stop(&self, why: String) {
        self.state().stopped.get_or_insert(why);
        self.has_stopped.store(true, Ordering::Release);
        self.table.patience().end();
        self.wake.notify_all();
    }

    /// Bytes that the log is certain to have; none once storage has stopped.
    pub(crate) fn room(&self) -> u64 {
        match self.has_stopped.load(Ordering::Acquire) {
            true => 0,
            false => self.room.load(Ordering::Acquire),
        }
    }

    /// What an empty segment can take, in bytes.
    pub(crate) fn usable(&self) -> u64 {
        self.place.segment_bytes - BLOCK as u64
    }

    /// How many segments are ready.
    pub(crate) fn ready(&self) -> usize {
        self.state().ready.len()
    }

    /// Takes the next ready segment and hands over the full one.
    pub(crate) fn exchange(&self, full: Full) -> Segment {
        let mut state = self.state();
        let next = state.ready.pop_front().expect("the writer counted the ready segments, and only it takes them");
        state.full.push_back(full);
        drop(state);
        self.wake.notify_all();
        next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The absorber: takes full segments into the table, oldest first.
    fn absorb(&self) {
        let mut pause = Pause::default();
        loop {
            let (number, path, end, last) = {
                let waiting =
                    self.wake.wait_while(self.state(), |state| state.stopped.is_none() && state.full.is_empty());
                let state = waiting.unwrap_or_else(PoisonError::into_inner);
                match (&state.stopped, state.full.front()) {
                    (None, Some(full)) => (full.number, full.path.clone(), full.end, full.last),
                    _ => return,
                }
            };
            match self.absorb_one(number, &path, end, last) {
                Ok(()) => pause = Pause::default(),
                Err(OpenError::Io { source, .. }) if passes(&source) => {
                    let state = self.state();
                    if state.stopped.is_none() {
                        drop(self.wake.wait_timeout(state, pause.next()));
                    }
                    continue;
                }
                Err(error) => return self.stop(error.to_string()),
            }
            self.absorbed.store(last, Ordering::Release);
            let mut state = self.state();
            state.full.pop_front();
            state.spare.push_back(path);
            drop(state);
            self.wake.notify_all();
        }
    }

    fn absorb_one(&self, number: u64, path: &Path, end: u64, last: Seq) -> Result<(), OpenError> {
        let absorbed = self.absorbed.load(Ordering::Acquire);
        let contents = read_segment(&self.place, path, number, absorbed, Some(end))?;
        if contents.last != last {
            let what = "a batch that was written there cannot be read back";
            return Err(OpenError::Damaged { path: path.to_path_buf(), at: contents.stop, what });
        }
        self.table.absorb(&fold(&contents.writes), Marks { absorbed: last, segment: number + 1 })
    }

    /// The preparer: keeps segments ready.
    fn prepare(&self, options: &Options) {
        let mut pause = Pause::default();
        loop {
            let mut state = self.state();
            if state.stopped.is_some() {
                return;
            }
            let is_short = state.ready.len() < options.segments_ahead;
            let (spare, number) = (state.spare.pop_front(), state.next_number);
            let made = match (spare, is_short) {
                (Some(old), true) => {
                    drop(state);
                    let made = Segment::recycle(&self.place, &old, number);
                    if made.is_err() {
                        self.state().spare.push_front(self.place.surviving_name(old));
                    }
                    made
                }
                (Some(surplus), false) => {
                    state.total -= 1;
                    drop(state);
                    if let Err(error) = remove_if_there(&surplus) {
                        return self.stop(format!("could not remove {}: {error}", surplus.display()));
                    }
                    continue;
                }
                (None, true) if state.total < options.segments_most => {
                    drop(state);
                    let made = Segment::create(&self.place, number);
                    self.state().total += usize::from(made.is_ok());
                    made
                }
                (None, _) => {
                    drop(self.wake.wait(state).unwrap_or_else(PoisonError::into_inner));
                    continue;
                }
            };
            match made {
                Ok(segment) => {
                    let room = segment.left();
                    let mut state = self.state();
                    state.ready.push_back(segment);
                    state.next_number += 1;
                    // Counted only once it can be taken.
                    self.room.fetch_add(room, Ordering::AcqRel);
                    pause = Pause::default();
                }
                // The disk is full, or too much is open: try again after a while, or at once when a segment becomes spare.
                Err(error) if passes(&error) => {
                    let state = self.state();
                    if state.spare.is_empty() && state.stopped.is_none() {
                        drop(self.wake.wait_timeout(state, pause.next()));
                    }
                }
                Err(error) => return self.stop(format!("could not make segment {number} of the log: {error}")),
            }
        }
    }
}

/// Whether the operating system may give later what it refuses now: room on the disk, or an open file.
fn passes(error: &io::Error) -> bool {
    let too_many_open = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].map(|errno| errno.raw_os_error());
    is_full(error) || error.raw_os_error().is_some_and(|code| too_many_open.contains(&code))
}

/// Starts a thread; if it panics, storage stops.
fn spawn(name: &str, shared: &Arc<Shared>, run: impl FnOnce(&Shared) + Send + 'static) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = name.to_owned();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&shared))) {
            shared.stop(format!("its thread {thread} failed ({})", message_of(&*panic)));
        }
    })
}

/// What a panic says.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
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

/// A directory that has been in use holds a table and at least one file of the log: if not, something was lost.
fn check_complete(directory: &Directory, place: &Place, listing: &Listing) -> Result<(), OpenError> {
    if !directory.table().exists() {
        return Err(OpenError::Missing { path: directory.table() });
    }
    if listing.segments.is_empty() && listing.changing.is_none() {
        return Err(OpenError::Missing { path: place.directory.join("*.log") });
    }
    Ok(())
}

/// Takes what the log holds beyond `marks` into the table, and returns the last batch.
///
/// Batches are read in order, to the first that is not there. If a whole group is found after that, the missing one had
/// been durable, and the log is damaged; if not, it was being written when the process ended, and was never acknowledged.
///
/// Which of the two it was, a last group alone cannot tell. Its place is noted, for those who learn that it had been durable.
fn replay(
    directory: &Directory,
    place: &Place,
    table: &Table,
    listing: &Listing,
    marks: Marks,
) -> Result<Seq, OpenError> {
    let mut last = marks.absorbed;
    let mut run_end: Option<(&Path, u64)> = None;
    for (expected, (&number, path)) in (marks.segment..).zip(listing.segments.range(marks.segment..)) {
        if number != expected {
            return Err(OpenError::Missing { path: place.directory.join(file_name(expected)) });
        }
        let contents = read_segment(place, path, number, last, None)?;
        if let Some(later) = contents.later {
            // If this segment is whole from its start, what is missing is where the run ended before it.
            let (path, at) = run_end.filter(|_| later == BLOCK as u64).unwrap_or((path, contents.stop));
            let what = "a batch there cannot be read, and later ones can";
            return Err(OpenError::Damaged { path: path.to_path_buf(), at, what });
        }
        if contents.is_torn {
            directory.note_torn(&Torn { path: path.clone(), at: contents.stop, last: contents.last })?;
        }
        if contents.last > last {
            last = contents.last;
            table.absorb(&fold(&contents.writes), Marks { absorbed: last, segment: number + 1 })?;
        }
        run_end = Some((path, contents.stop));
    }
    Ok(last)
}

/// The segment to write next, made of an absorbed one if there is one of the right size, and the others.
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
    // From the back, where the file is whose change of number was cut short: its name must be free for the next change.
    let active = match spare.pop_back() {
        Some(old) => Segment::recycle(place, &old, number),
        None => Segment::create(place, number),
    };
    let active = active.map_err(io)?;
    // Only now: the directory is never without a segment.
    for path in misfits {
        remove_if_there(&path).map_err(io)?;
    }
    Ok((active, spare))
}

/// The last write of each key, sorted by key. A segment has many more writes than keys where it is written fast, so each
/// key is looked up before the few that are left are sorted.
pub(crate) fn fold(writes: &Batch) -> Vec<(&[u8], Option<&[u8]>)> {
    let mut last = HashMap::new();
    for (key, value) in writes.iter() {
        last.insert(key, value);
    }
    let mut rows: Vec<_> = last.into_iter().collect();
    rows.sort_unstable_by_key(|(key, _)| *key);
    rows
}
