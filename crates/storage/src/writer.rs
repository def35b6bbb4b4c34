//! The log thread's side of the embedded engine.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use slackline_core::machine::{Batch, Seq};

use crate::error::WriteError;
use crate::frame::{Aligned, BLOCK, frame_bytes, write_frame};
use crate::recent::Kept;
use crate::segment::Segment;
use crate::store::LogWriter;
use crate::threads::Shared;

/// A group is closed when it reaches this many bytes, so that the buffer is bounded; one large batch may exceed it.
const GROUP_BYTES: usize = 1 << 20;

/// Writes groups of batches, each with one sync.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    /// The segment in use.
    active: Segment,
    /// The bytes of the group that is written, kept for its memory.
    group: Aligned,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, active: Segment) -> Self {
        Self { shared, active, group: Aligned::with_capacity(GROUP_BYTES / 4) }
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.active.is_direct()
    }

    /// Checks, before anything is written, that every batch can be. So a full disk is met between two calls of
    /// [`LogWriter::append`] and never inside one.
    fn check(&self, first: Seq, batches: &[Arc<Batch>]) -> Result<(), WriteError> {
        if let Some(why) = self.shared.stopped() {
            return Err(WriteError::Stopped { why });
        }

        let last = self.shared.last.load(Ordering::Acquire);
        assert_eq!(first, last + 1, "batches must be appended in order");
        let most = self.shared.usable();
        if let Some((seq, batch)) = (first..).zip(batches).find(|(_, batch)| needs(batch) as u64 > most) {
            return Err(WriteError::TooLarge { seq, bytes: needs(batch) as u64, most });
        }

        // Only this thread takes ready segments, so there will be at least as many when they are needed.
        let switches = Plan::new(batches, self.active.left(), most).filter(|group| group.in_next).count();
        if switches > 0 && switches > self.shared.ready() {
            let needed = batches.iter().map(|batch| needs(batch) as u64).sum();
            return Err(WriteError::NoRoom { needed, room: self.shared.room() });
        }
        Ok(())
    }

    /// Goes on in the next segment; the rest of this one is given up, and counts as room no longer.
    fn switch(&mut self) {
        self.shared.room.fetch_sub(self.active.left(), Ordering::AcqRel);
        self.active = self.shared.exchange();
    }
}

impl LogWriter for Writer {
    fn append(&mut self, first: Seq, batches: &[Arc<Batch>]) -> Result<(), WriteError> {
        self.check(first, batches)?;
        for group in Plan::new(batches, self.active.left(), self.shared.usable()) {
            // A group never crosses the end of a segment: recovery takes a whole group as evidence for all before it, and reads one
            // file at a time.
            if group.in_next {
                self.switch();
            }

            self.group.clear();
            let mut written = Vec::with_capacity(group.batches.len());
            for index in group.batches.clone() {
                let (seq, batch) = (first + index as u64, Arc::clone(&batches[index]));
                write_frame(&mut self.group, self.active.mark(), seq, batch.as_bytes());
                let end = self.active.end() + self.group.as_slice().len() as u64;
                written.push(Kept { seq, batch, end });
            }
            self.group.pad(BLOCK);

            // After a failed sync nobody knows what is on the disk: the kernel may have dropped the pages and report success the
            // next time. So storage stops instead of trying again.
            if let Err(source) = self.active.append(self.group.as_slice()) {
                let error = WriteError::Failed { path: self.active.path().to_path_buf(), source };
                self.shared.stop(error.to_string());
                return Err(error);
            }

            // Only after the sync: what is said because of `last` must survive a power cut.
            self.shared.room.fetch_sub(self.group.as_slice().len() as u64, Ordering::AcqRel);
            let last = first + group.batches.end as u64 - 1;
            self.shared.last.store(last, Ordering::Release);
            let is_filling = self.shared.keep(written);
            self.shared.note_written(self.active.end(), last, is_filling);
        }
        Ok(())
    }
}

/// The space that a batch takes up if it is alone in its group, in bytes.
fn needs(batch: &Batch) -> usize {
    frame_bytes(batch.as_bytes().len()).next_multiple_of(BLOCK)
}

/// Batches that are written with one sync.
struct Group {
    /// The positions of the batches among those that are appended; never empty.
    batches: Range<usize>,
    /// True if it goes into the next segment, because it does not fit in the one of the group before.
    in_next: bool,
}

/// Divides batches into groups: as few as possible, none beyond the end of its segment.
struct Plan<'a> {
    batches: &'a [Arc<Batch>],
    /// The position of the first batch that is in no group yet.
    at: usize,
    /// Bytes that are left in the segment of the last group.
    left: u64,
    /// Bytes that an empty segment can take.
    usable: u64,
}

impl<'a> Plan<'a> {
    /// `left` bytes are left in the segment in use, `usable` in each after that.
    fn new(batches: &'a [Arc<Batch>], left: u64, usable: u64) -> Self {
        Self { batches, at: 0, left, usable }
    }
}

impl Iterator for Plan<'_> {
    type Item = Group;

    fn next(&mut self) -> Option<Group> {
        let start = self.at;
        let in_next = needs(self.batches.get(start)?) as u64 > self.left;
        if in_next {
            self.left = self.usable;
        }

        // The first batch is always taken, even where it is larger than a group should be: it fits in the segment, and otherwise it
        // could never be written.
        let most = (GROUP_BYTES as u64).min(self.left) as usize;
        let mut filled = 0;
        while let Some(batch) = self.batches.get(self.at) {
            let more = frame_bytes(batch.as_bytes().len());
            if self.at > start && filled + more > most {
                break;
            }
            filled += more;
            self.at += 1;
        }
        self.left -= filled.next_multiple_of(BLOCK) as u64;
        Some(Group { batches: start..self.at, in_next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_fill_segments_and_never_cross_their_ends() {
        let batches: Vec<Arc<Batch>> = (0..40usize)
            .map(|index| {
                let mut batch = Batch::new();
                batch.put(b"key", &vec![7; index * 61 % 900]);
                batch.into()
            })
            .collect();
        let usable = 2 * BLOCK as u64;
        let mut left = BLOCK as u64;
        let mut next = 0;
        for group in Plan::new(&batches, left, usable) {
            assert_eq!(group.batches.start, next);
            assert!(!group.batches.is_empty());
            next = group.batches.end;
            let bytes: usize = batches[group.batches].iter().map(|batch| frame_bytes(batch.as_bytes().len())).sum();
            left = if group.in_next { usable } else { left };
            left = left.checked_sub(bytes.next_multiple_of(BLOCK) as u64).expect("within its segment");
        }
        assert_eq!(next, batches.len());
        // One large group where there is space for it: one sync.
        assert_eq!(Plan::new(&batches, 1 << 20, 1 << 20).count(), 1);
    }
}
