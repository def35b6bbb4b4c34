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

/// The wait before a group that found no room is tried again.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(50);

/// Batches that are synced together; storage goes on with them afterwards.
type Group = Vec<Arc<Batch>>;

/// The machine's end of the log thread.
pub(crate) struct Log {
    shared: Arc<Shared>,
    /// Used by the thread while the log is busy, and by the machine's own thread while it is not.
    writer: Arc<Mutex<Box<dyn LogWriter>>>,
    thread: Option<JoinHandle<()>>,
    /// True from when a group is handed over until its result is taken.
    busy: bool,
    /// The empty vector of the last group, kept for its memory.
    spare: Group,
}

/// A group that is durable.
pub(crate) struct Synced {
    /// Its last batch. All batches before it are durable too.
    pub(crate) last: Seq,
    /// The duration of its write and sync.
    pub(crate) took: Duration,
}

/// The state that the machine and the log thread share.
#[derive(Debug)]
struct Shared {
    slot: Mutex<Slot>,
    /// Wakes the log thread.
    wake: Condvar,
    /// Woken when a group is done.
    mailbox: Arc<Mailbox>,
}

/// A group on its way: in `group` until the thread takes it, in `done` when it is synced, in neither between.
#[derive(Debug, Default)]
struct Slot {
    /// The number of the first batch, and the batches.
    group: Option<(Seq, Group)>,
    /// The result, the number of the last batch, and the batches, given back for their memory.
    done: Option<(Result<Duration, WriteError>, Seq, Group)>,
    /// True once the thread is to end.
    stop: bool,
}

impl Log {
    /// Starts the thread. It wakes the mailbox's machine when a group is done.
    pub(crate) fn start(writer: Box<dyn LogWriter>, name: &str, mailbox: Arc<Mailbox>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { slot: Mutex::default(), wake: Condvar::new(), mailbox });
        let writer = Arc::new(Mutex::new(writer));
        let theirs = (Arc::clone(&shared), Arc::clone(&writer));
        // What the thread logs bears the site's name too.
        let site = Span::current();
        let thread = thread::Builder::new();
        let thread = thread.name(format!("log-{name}")).spawn(move || site.in_scope(|| run(&theirs.0, &theirs.1)))?;
        Ok(Self { shared, writer, thread: Some(thread), busy: false, spare: Vec::new() })
    }

    /// True while a group is under way: from when it is handed over until its result is taken.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Hands a group over and takes an empty vector in its place. The log must not be busy.
    pub(crate) fn submit(&mut self, first: Seq, group: &mut Group) {
        assert!(!self.busy && !group.is_empty(), "a second group would overtake the one that is being synced");
        let group = std::mem::replace(group, std::mem::take(&mut self.spare));
        self.shared.slot().group = Some((first, group));
        self.shared.wake.notify_one();
        self.busy = true;
    }

    /// Appends a group on this thread, and empties it. Returns `None` if there is no room: nothing was done then, and the group must
    /// be handed over, so that the log thread waits for room and this one does not. The log must not be busy.
    pub(crate) fn append_here(&mut self, first: Seq, group: &mut Group) -> Option<Result<Synced, WriteError>> {
        assert!(!self.busy && !group.is_empty(), "a second group would overtake the one that is being synced");
        let start = Instant::now();

        // Free at once: the log thread holds it only while a group is under way.
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

    /// Takes the result of the group under way, if it is there.
    pub(crate) fn poll(&mut self) -> Option<Result<Synced, WriteError>> {
        if !self.busy {
            return None;
        }

        // Looked at first: the result is there before the thread ends. One that has ended without has met a broken invariant, and the site is to
        // stop: it would wait for ever, and say that all is well.
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let Some((result, last, mut batches)) = self.shared.slot().done.take() else {
            let why = "the thread that writes the log has ended by a panic";
            return has_ended.then(|| Err(WriteError::Stopped { why: why.to_owned() }));
        };
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

    /// Waits for the next group; `None` when the thread is to end.
    fn next(&self) -> Option<(Seq, Group)> {
        let mut slot = self.slot();
        loop {
            // Before `stop`: a group that was handed over is synced, even by a site that stops.
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

/// The thread: syncs groups, one at a time, until it is stopped or a write fails.
fn run(shared: &Shared, writer: &Mutex<Box<dyn LogWriter>>) {
    while let Some((first, batches)) = shared.next() {
        let last = first + batches.len() as Seq - 1;
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let result = append(shared, &mut **writer, first, &batches);
        // Before the result is there: the machine may append a group itself as soon as it has taken that.
        drop(writer);

        let failed = result.is_err();
        shared.slot().done = Some((result, last, batches));
        shared.mailbox.wake.notify_one();

        // What is on the disk is not known now, so nothing more is written after it.
        if failed {
            return;
        }
    }
}

/// Appends a group; while the disk has no room, tries again until it has or the site stops. The time that the sync took, without what was
/// waited for room.
fn append(
    shared: &Shared,
    writer: &mut dyn LogWriter,
    first: Seq,
    batches: &[Arc<Batch>],
) -> Result<Duration, WriteError> {
    let mut warned = false;
    loop {
        let start = Instant::now();
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
            result => return result.map(|()| start.elapsed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log in which an invariant is broken.
    struct Broken;

    impl LogWriter for Broken {
        fn append(&mut self, _: Seq, _: &[Arc<Batch>]) -> Result<(), WriteError> {
            panic!("an invariant is broken");
        }
    }

    #[test]
    fn panic_of_the_log_thread_is_told() {
        let mut log = Log::start(Box::new(Broken), "us", Arc::new(Mailbox::new())).expect("it starts");
        log.submit(1, &mut vec![Arc::new(Batch::default())]);
        let result = (0..500).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            log.poll()
        });
        assert!(matches!(result, Some(Err(WriteError::Stopped { .. }))), "the site would wait for it for ever");
    }
}
