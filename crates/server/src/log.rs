//! The thread that syncs.
//!
//! At most one group of batches is under way; the next one gathers at the machine meanwhile. Handing over is one lock and
//! one wake-up each way, whatever the group's size. Where a sync is about as quick as the two wake-ups, the machine's own
//! thread appends small groups itself ([`Log::append_here`]).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use slackline_core::machine::{Batch, Seq};
use slackline_storage::{LogWriter, WriteError};
use tracing::{Span, warn};

use crate::mailbox::Mailbox;

/// How long to wait before a group that found no room is tried again.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(50);

/// The machine's end of the log thread.
pub(crate) struct Log {
    shared: Arc<Shared>,
    writer: Arc<Mutex<Box<dyn LogWriter>>>,
    thread: Option<JoinHandle<()>>,
    busy: bool,
    spare: Vec<Batch>,
}

/// A group that is durable.
pub(crate) struct Synced {
    /// Its last batch.
    pub(crate) last: Seq,
    /// How long it took.
    pub(crate) took: Duration,
}

#[derive(Debug)]
struct Shared {
    slot: Mutex<Slot>,
    wake: Condvar,
    mailbox: Arc<Mailbox>,
}

#[derive(Debug, Default)]
struct Slot {
    group: Option<(Seq, Vec<Batch>)>,
    done: Option<(Result<Duration, WriteError>, Seq, Vec<Batch>)>,
    stop: bool,
}

impl Log {
    /// Starts the thread. It wakes the mailbox's machine when a group is done.
    pub(crate) fn start(writer: Box<dyn LogWriter>, name: &str, mailbox: Arc<Mailbox>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { slot: Mutex::default(), wake: Condvar::new(), mailbox });
        let writer = Arc::new(Mutex::new(writer));
        let theirs = (Arc::clone(&shared), Arc::clone(&writer));
        // It logs under the site's name too.
        let site = Span::current();
        let thread = thread::Builder::new();
        let thread = thread.name(format!("log-{name}")).spawn(move || site.in_scope(|| run(&theirs.0, &theirs.1)))?;
        Ok(Self { shared, writer, thread: Some(thread), busy: false, spare: Vec::new() })
    }

    /// Whether a group is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Hands a group over and takes an empty vector in its place. The log must not be busy.
    pub(crate) fn submit(&mut self, first: Seq, group: &mut Vec<Batch>) {
        debug_assert!(!self.busy && !group.is_empty());
        let group = std::mem::replace(group, std::mem::take(&mut self.spare));
        self.shared.slot().group = Some((first, group));
        self.shared.wake.notify_one();
        self.busy = true;
    }

    /// Appends a group on this thread, and empties it. `None`, and nothing was done, if there is no room: then it must be
    /// handed over, to be waited for elsewhere. The log must not be busy.
    pub(crate) fn append_here(&mut self, first: Seq, group: &mut Vec<Batch>) -> Option<Result<Synced, WriteError>> {
        debug_assert!(!self.busy && !group.is_empty());
        let start = Instant::now();
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match writer.append(first, group) {
            Err(WriteError::NoRoom { .. }) => None,
            result => {
                let last = first + group.len() as Seq - 1;
                group.clear();
                Some(result.map(|()| Synced { last, took: start.elapsed() }))
            }
        }
    }

    /// The result of the group under way, if it is there.
    pub(crate) fn poll(&mut self) -> Option<Result<Synced, WriteError>> {
        if !self.busy {
            return None;
        }
        let (result, last, mut batches) = self.shared.slot().done.take()?;
        self.busy = false;
        batches.clear();
        self.spare = batches;
        Some(result.map(|took| Synced { last, took }))
    }
}

impl Drop for Log {
    /// Finishes the group under way and closes the writer.
    fn drop(&mut self) {
        self.shared.slot().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its thread already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<(Seq, Vec<Batch>)> {
        let mut slot = self.slot();
        loop {
            if let Some(group) = slot.group.take() {
                return Some(group);
            }
            if slot.stop {
                return None;
            }
            slot = self.wake.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn run(shared: &Shared, writer: &Mutex<Box<dyn LogWriter>>) {
    while let Some((first, batches)) = shared.next() {
        let last = first + batches.len() as Seq - 1;
        let start = Instant::now();
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let result = append(shared, &mut **writer, first, &batches).map(|()| start.elapsed());
        drop(writer);
        let failed = result.is_err();
        shared.slot().done = Some((result, last, batches));
        shared.mailbox.wake.notify_one();
        if failed {
            return;
        }
    }
}

/// Appends a group; while the disk has no room, tries again until it has or the site stops.
fn append(shared: &Shared, writer: &mut dyn LogWriter, first: Seq, batches: &[Batch]) -> Result<(), WriteError> {
    let mut warned = false;
    loop {
        match writer.append(first, batches) {
            Err(error @ WriteError::NoRoom { .. }) => {
                if shared.slot().stop {
                    return Err(error);
                }
                if !warned {
                    warn!(%error, "the log waits for room");
                    warned = true;
                }
                thread::sleep(NO_ROOM_PAUSE);
            }
            result => return result,
        }
    }
}
