//! The batches that were written last, so that the absorber need not read them back from the disk.

use std::collections::VecDeque;
use std::sync::Arc;

use slackline_core::machine::{Batch, Seq};

/// The memory of a batch that is kept besides its bytes, about, in bytes: most batches are small.
const KEPT_BYTES: usize = 160;

/// The most memory of all that are kept, in bytes.
const MOST_BYTES: usize = 24 << 20;

/// A batch that is synced, and not absorbed yet.
pub(crate) struct Kept {
    /// Its number.
    pub(crate) seq: Seq,
    /// The batch.
    pub(crate) batch: Arc<Batch>,
    /// The place behind its frame, in bytes from the start of its segment.
    pub(crate) end: u64,
}

/// The last batches, without a gap between them.
pub(crate) struct Recent {
    kept: VecDeque<Kept>,
    /// The memory that the batches take, about, in bytes; at most `most`.
    bytes: usize,
    /// The most memory that they may take, in bytes.
    most: usize,
}

impl Recent {
    /// No batches yet, of a log whose segments have so many bytes. Where the absorber does not follow, the oldest are let go, and are
    /// read back from the disk.
    pub(crate) fn of_log(segment_bytes: u64) -> Self {
        Self { kept: VecDeque::new(), bytes: 0, most: (segment_bytes as usize / 8 * 3).min(MOST_BYTES) }
    }

    /// Keeps batches, which follow those that are kept. The oldest are let go where there are too many.
    pub(crate) fn extend(&mut self, batches: impl IntoIterator<Item = Kept>) {
        for kept in batches {
            let follows = self.kept.back().is_none_or(|last| last.seq + 1 == kept.seq);
            assert!(follows, "a batch would be left out of the table");
            self.bytes += kept.batch.as_bytes().len() + KEPT_BYTES;
            self.kept.push_back(kept);
        }
        while self.bytes > self.most {
            self.pop();
        }
    }

    /// True if the absorber should take batches now, before the oldest are let go.
    pub(crate) fn is_filling(&self) -> bool {
        self.bytes >= self.most / 2
    }

    /// Takes the batch numbered `seq`, if it is kept, and lets those before it go. What is taken must be absorbed in order.
    pub(crate) fn take(&mut self, seq: Seq) -> Option<Kept> {
        while self.kept.front().is_some_and(|kept| kept.seq < seq) {
            self.pop();
        }
        self.kept.front().filter(|kept| kept.seq == seq)?;
        self.pop()
    }

    fn pop(&mut self) -> Option<Kept> {
        let kept = self.kept.pop_front()?;
        self.bytes -= kept.batch.as_bytes().len() + KEPT_BYTES;
        Some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_taken_in_order_and_the_oldest_are_let_go() {
        let batch = |seq: Seq, bytes: usize| {
            let mut batch = Batch::new();
            batch.put(b"key", &vec![7; bytes]);
            Kept { seq, batch: batch.into(), end: seq * 4096 }
        };
        let mut recent = Recent::of_log(64 << 10);
        recent.extend((5..8).map(|seq| batch(seq, 10)));
        assert!(recent.take(4).is_none(), "it was written before");
        assert_eq!(recent.take(5).map(|kept| kept.end), Some(5 * 4096));
        assert_eq!(recent.take(7).map(|kept| kept.seq), Some(7), "the one between was absorbed from the disk");
        assert_eq!((recent.kept.len(), recent.bytes), (0, 0));
        recent.extend((8..11).map(|seq| batch(seq, 12_000)));
        assert!(recent.take(8).is_none() && recent.bytes <= 24 << 10);
        assert_eq!(recent.take(9).map(|kept| kept.seq), Some(9));
    }
}
