//! The state that the threads of the embedded engine share, and one of them: the preparer.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use slackline_core::machine::Seq;

use crate::directory::Directory;
use crate::error::message_of;
use crate::frame::BLOCK;
use crate::medium::{is_full, remove_if_there};
use crate::patience::Pause;
use crate::recent::{Kept, Recent};
use crate::role::Role;
use crate::segment::{Place, Segment};
use crate::table::Table;

/// The batches of the active segment are absorbed when nothing was written for this time.
const IDLE: Duration = Duration::from_secs(1);
/// So many files of absorbed segments are kept to be used again, beside the segments that are ready.
const SPARES: usize = 1;

/// The state that the threads share.
pub(crate) struct Shared {
    /// The last durable batch. Only the writer raises it, after the sync.
    pub(crate) last: AtomicU64,
    /// The last batch that the table's snapshot shows; never above `last`. Only the absorber raises it.
    absorbed: AtomicU64,
    /// Bytes of log that are certain to be there: the rest of the active segment, and all of the ready ones.
    pub(crate) room: AtomicU64,
    /// True once `State::stopped` is set, to be seen without the lock.
    has_stopped: AtomicBool,
    /// The last batch that was durable when [`Shared::ask`] was called. Above `absorbed`, it is waited for.
    asked: AtomicU64,
    /// The batches that were written last. The writer adds them after their sync, the absorber takes them.
    recent: Mutex<Recent>,
    state: Mutex<State>,
    /// Notified when `state` changes in a way that a thread may be waiting for.
    wake: Condvar,
    pub(crate) table: Table,
    pub(crate) place: Place,
    /// Dropped last: no other process may have the directory while a thread can still write.
    _directory: Directory,
}

/// The segments of the log, each in one of four states, or under work by the preparer.
struct State {
    /// Segments that can be written next, by rising numbers.
    ready: VecDeque<Segment>,
    /// The written part of the segment in use.
    active: Written,
    /// Segments that are written and not yet absorbed, oldest first.
    full: VecDeque<Written>,
    /// The files of segments that are absorbed.
    spare: VecDeque<PathBuf>,
    /// The number of all segments, in every state.
    total: usize,
    /// The number of the segment that is made next; above that of every segment so far.
    next_number: u64,
    /// The reason why storage has stopped, if it has. Never changes once it is set.
    stopped: Option<String>,
}

/// The part of a segment that is written, and synced.
#[derive(Clone)]
pub(crate) struct Written {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    /// The end of the last group, in bytes from the start of the file.
    pub(crate) end: u64,
    /// The last batch before `end`; if the segment has none, the last one of the segment before.
    pub(crate) last: Seq,
}

/// What the absorber is to do.
pub(crate) struct Task {
    /// The part of a segment whose batches it takes.
    pub(crate) written: Written,
    /// The step up to which it goes with them.
    pub(crate) goal: Goal,
}

/// The step up to which the absorber goes with batches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// They are read while they are in memory. Rows that are written again and again are so written to the table once.
    Read,
    /// They are in the table, durably.
    Durable,
    /// The same, and their file can be used again: the segment is full.
    Free,
}

impl Shared {
    /// The state of a log that begins again with the segment `active`: all batches up to `last` are in the table.
    pub(crate) fn new(
        directory: Directory,
        table: Table,
        place: Place,
        active: &Segment,
        spare: VecDeque<PathBuf>,
        last: Seq,
    ) -> Self {
        let state = State {
            ready: VecDeque::new(),
            active: Written { number: active.number, path: active.path().to_path_buf(), end: active.end(), last },
            full: VecDeque::new(),
            total: 1 + spare.len(),
            spare,
            next_number: active.number + 1,
            stopped: None,
        };

        Self {
            last: AtomicU64::new(last),
            absorbed: AtomicU64::new(last),
            room: AtomicU64::new(active.left()),
            has_stopped: AtomicBool::new(false),
            asked: AtomicU64::new(last),
            recent: Mutex::new(Recent::of_log(place.segment_bytes)),
            state: Mutex::new(state),
            wake: Condvar::new(),
            table,
            place,
            _directory: directory,
        }
    }

    /// The last batch that is in the table.
    pub(crate) fn absorbed(&self) -> Seq {
        self.absorbed.load(Ordering::Acquire)
    }

    /// The reason why storage has stopped, if it has.
    pub(crate) fn stopped(&self) -> Option<String> {
        if !self.has_stopped.load(Ordering::Acquire) {
            return None;
        }
        self.state().stopped.clone()
    }

    /// Stops everything, permanently; the first reason is kept.
    pub(crate) fn stop(&self, why: String) {
        // The reason before the flag: whoever sees the flag finds a reason.
        self.state().stopped.get_or_insert(why);
        self.has_stopped.store(true, Ordering::Release);

        // The absorber may be waiting for disk space inside a transaction. Without this, closing would wait with it.
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

    /// The space of an empty segment behind its header, in bytes.
    pub(crate) fn usable(&self) -> u64 {
        self.place.segment_bytes - BLOCK as u64
    }

    /// The number of segments that are ready.
    pub(crate) fn ready(&self) -> usize {
        self.state().ready.len()
    }

    /// Keeps batches that were written, for the absorber. Returns true if it should take them from now on, and need not before: it is
    /// woken once, and not for each group while it is busy.
    pub(crate) fn keep(&self, written: Vec<Kept>) -> bool {
        let mut recent = self.recent();
        let was_filling = recent.is_filling();
        recent.extend(written);
        !was_filling && recent.is_filling()
    }

    /// Notes that the segment in use is written and synced up to `end`, and that `last` is its last batch. The absorber is woken if
    /// it should take the batches that are kept.
    pub(crate) fn note_written(&self, end: u64, last: Seq, is_filling: bool) {
        let mut state = self.state();
        assert!(end > state.active.end && last > state.active.last, "the log must grow with each group");
        let was_absorbed = state.active.last == self.absorbed.load(Ordering::Acquire);
        (state.active.end, state.active.last) = (end, last);
        drop(state);

        // The absorber slept without a limit, because there was nothing to absorb. From now on it wakes to see whether the log is
        // idle. While it does, groups do not pay for waking it.
        if was_absorbed || is_filling {
            self.wake.notify_all();
        }
    }

    /// Asks the absorber to take in all durable batches now, unless it still has to take in those of the last time.
    pub(crate) fn ask(&self) {
        let last = self.last.load(Ordering::Acquire);
        if !self.is_asked() && self.asked.swap(last, Ordering::AcqRel) != last {
            // The absorber holds the lock between its look at the number and its wait. Taking the lock here puts the notification
            // after the wait has begun, so that it is not missed.
            drop(self.state());
            self.wake.notify_all();
        }
    }

    /// True if somebody has asked for batches that are not in the table.
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire) > self.absorbed()
    }

    /// Takes the next ready segment and hands over the full one.
    pub(crate) fn exchange(&self) -> Segment {
        let mut state = self.state();
        let next = state.ready.pop_front().expect("the writer counted the ready segments, and only it takes them");
        assert_eq!(next.number, state.active.number + 1, "segments must be written in the order of their numbers");
        let last = state.active.last;
        let active = Written { number: next.number, path: next.path().to_path_buf(), end: next.end(), last };
        let full = std::mem::replace(&mut state.active, active);
        state.full.push_back(full);
        drop(state);
        self.wake.notify_all();
        next
    }

    /// The batches that were written last.
    pub(crate) fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something that the absorber should do, and returns it; `read` is the last batch that the absorber has read. `None`
    /// once storage has stopped.
    pub(crate) fn wait_to_absorb(&self, read: Seq) -> Option<Task> {
        let mut state = self.state();
        loop {
            if state.stopped.is_some() {
                return None;
            }

            // Oldest first: the table holds a prefix of the log at every moment.
            if let Some(full) = state.full.front() {
                return Some(Task { written: full.clone(), goal: Goal::Free });
            }

            let last = state.active.last;
            if last == self.absorbed() {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if self.is_asked() {
                return Some(Task { written: state.active.clone(), goal: Goal::Durable });
            }
            if last > read && self.recent().is_filling() {
                return Some(Task { written: state.active.clone(), goal: Goal::Read });
            }

            // A log is idle when it is still at the same batch after a whole wait. It is looked at again after each wake-up, whose
            // reason may be another thread's.
            let (after, waited) = self.wake.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() && state.active.last == last && state.stopped.is_none() {
                return Some(Task { written: state.active.clone(), goal: Goal::Durable });
            }
        }
    }

    /// Notes that the table holds every batch up to `absorbed`, durably, and that its snapshot shows them.
    pub(crate) fn note_absorbed(&self, absorbed: Seq) {
        self.absorbed.store(absorbed, Ordering::Release);
    }

    /// Takes back the file of the oldest full segment, whose batches are all in the table.
    pub(crate) fn free_oldest(&self) {
        let mut state = self.state();
        let oldest = state.full.pop_front().expect("only the absorber takes full segments");
        state.spare.push_back(oldest.path);
        drop(state);
        self.wake.notify_all();
    }

    /// Waits for `pause`, or for less if something happens meanwhile; not at all once storage has stopped.
    pub(crate) fn pause(&self, pause: Duration) {
        let state = self.state();
        if state.stopped.is_none() {
            drop(self.wake.wait_timeout(state, pause));
        }
    }

    /// The preparer: keeps `ahead` segments ready and [`SPARES`] spare ones, of `most` in all.
    pub(crate) fn prepare(&self, ahead: usize, most: usize) {
        let mut pause = Pause::default();
        loop {
            let mut state = self.state();
            if state.stopped.is_some() {
                return;
            }

            // A spare file is kept: under load one is needed as often as one comes back, and without it each would be made anew, full of
            // zeros, and be removed again.
            let is_short = state.ready.len() < ahead;
            let is_taken = is_short || state.spare.len() > SPARES;
            let spare = if is_taken { state.spare.pop_front() } else { None };

            // Making a segment writes all of it, so no lock is held meanwhile: the writer would wait for it. This thread alone takes
            // spare files and hands out numbers, so neither changes under it.
            let number = state.next_number;
            let had_spare = spare.is_some();
            let made = match (spare, is_short) {
                (Some(old), true) => {
                    drop(state);
                    let made = Segment::recycle(&self.place, &old, number);
                    if made.is_err() {
                        self.state().spare.push_front(self.place.surviving_name(old, number));
                    }
                    made
                }
                (Some(surplus), false) => {
                    state.total -= 1;
                    drop(state);
                    if let Err(error) = self.place.check_there().and_then(|()| remove_if_there(&surplus)) {
                        return self.stop(format!("could not remove {}: {error}", surplus.display()));
                    }
                    continue;
                }
                (None, true) if state.total < most => {
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
                    self.table.patience().note(Role::Log, None);
                    let room = segment.left();
                    let mut state = self.state();
                    state.ready.push_back(segment);
                    state.next_number += 1;
                    // Room is a promise that a group of this size can be written. It is made only once the segment can be taken.
                    self.room.fetch_add(room, Ordering::AcqRel);
                    pause = Pause::default();
                }
                // The disk is full, or too many files are open. It tries again after a pause, or at once when a segment becomes
                // spare where there was none: that one needs no more space.
                Err(error) if passes(&error) => {
                    let why = format!("segment {number} of the log could not be made: {error}");
                    self.table.patience().note(Role::Log, Some(why));
                    let state = self.state();
                    if (had_spare || state.spare.is_empty()) && state.stopped.is_none() {
                        drop(self.wake.wait_timeout(state, pause.next()));
                    }
                }
                Err(error) => {
                    // Where the directory was moved away meanwhile, a file that is not there is only what follows from that.
                    let error = self.place.check_there().err().unwrap_or(error);
                    return self.stop(format!("could not make segment {number} of the log: {error}"));
                }
            }
        }
    }
}

/// True if the operating system may give later what it refuses now: room on the disk, or an open file.
pub(crate) fn passes(error: &io::Error) -> bool {
    let too_many_open = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].map(|errno| errno.raw_os_error());
    is_full(error) || error.raw_os_error().is_some_and(|code| too_many_open.contains(&code))
}

/// Starts a thread; if it panics, storage stops.
pub(crate) fn spawn(
    name: &str,
    shared: &Arc<Shared>,
    run: impl FnOnce(&Shared) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = name.to_owned();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&shared))) {
            shared.stop(format!("its thread {thread} failed ({})", message_of(&*panic)));
        }
    })
}
