//! One site's disk: a log of atomic batches. A batch is handed out, then being synced, then durable; what is handed out
//! during a sync goes into the next one. The table of rows is folded from the log only when somebody needs it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use slackline_core::machine::{Batch, Machine, Overlay, Seq};
use slackline_core::node::Node;

/// Rows by key.
pub(crate) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The log is folded into the table when it has this many durable batches. Few, because rows that are deleted and not yet
/// folded are read and passed over by every scan.
const FOLD: u64 = 32;

/// A copy of a disk: the rows, and the number of the last batch in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copy {
    /// The rows.
    pub(crate) rows: Rows,
    /// The last batch in them.
    pub(crate) last: Seq,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The rows of all batches up to `folded`.
    rows: Rows,
    /// The last batch that was folded into the rows.
    folded: Seq,
    /// The batches after `folded`, durable or not.
    log: VecDeque<Arc<Batch>>,
    /// The last batch that is durable; never before `folded`.
    durable: Seq,
    /// Bytes handed out since the last sync began.
    waiting_bytes: u64,
    /// True if rows that only a restart reads are kept.
    keeps_resident: bool,
}

impl Disk {
    /// An empty disk.
    pub(crate) fn new(keeps_resident: bool) -> Self {
        Self::from_copy(Copy::default(), keeps_resident)
    }

    /// A disk that has what a copy has.
    pub(crate) fn from_copy(copy: Copy, keeps_resident: bool) -> Self {
        Self {
            rows: copy.rows,
            folded: copy.last,
            log: VecDeque::new(),
            durable: copy.last,
            waiting_bytes: 0,
            keeps_resident,
        }
    }

    /// The rows that were folded; newer ones are in the overlay.
    pub(crate) fn rows(&self) -> &Rows {
        &self.rows
    }

    /// The last batch that is durable.
    pub(crate) fn durable(&self) -> Seq {
        self.durable
    }

    /// The last batch that was handed out.
    pub(crate) fn issued(&self) -> Seq {
        self.folded + self.log.len() as u64
    }

    /// Takes a batch. One that no restart will read is absorbed at once, and needs no overlay.
    #[inline]
    pub(crate) fn append(&mut self, batch: Batch, overlay: &mut Overlay) {
        let batch = Arc::new(batch);
        self.waiting_bytes += batch.as_bytes().len() as u64;

        if self.keeps_resident {
            overlay.apply::<Node>(self.issued() + 1, &batch);
            self.log.push_back(batch);
        } else {
            absorb(&mut self.rows, &batch, Node::is_paged);
            self.folded += 1;
        }
    }

    /// Everything handed out so far goes into one sync: its last batch and its bytes.
    pub(crate) fn begin_sync(&mut self) -> (Seq, u64) {
        (self.issued(), std::mem::take(&mut self.waiting_bytes))
    }

    /// Batches up to `seq` are durable.
    pub(crate) fn finish_sync(&mut self, seq: Seq, overlay: &mut Overlay) {
        self.durable = seq;
        if self.durable.saturating_sub(self.folded) >= FOLD {
            self.fold(self.durable);
            overlay.retire(self.folded);
        }
    }

    /// The batches after `from`, with their numbers; those before may be folded.
    pub(crate) fn batches(&self, from: Seq, to: Seq) -> impl Iterator<Item = (Seq, &Batch)> {
        assert!(from >= self.folded);
        (from + 1..=to).map(|seq| (seq, &*self.log[(seq - self.folded) as usize - 1]))
    }

    /// The site crashed: batches after `last` are lost, those up to it are durable.
    pub(crate) fn crash(&mut self, last: Seq) {
        assert!(last >= self.durable, "a crash loses nothing that was synced");

        // A prefix stays, as a log that is written in order leaves it.
        self.log.truncate((last - self.folded) as usize);
        self.durable = last;
        self.waiting_bytes = 0;
        self.fold(last);
    }

    /// A copy of what is durable now.
    pub(crate) fn copy(&mut self, overlay: &mut Overlay) -> Copy {
        self.fold(self.durable);
        overlay.retire(self.folded);
        Copy { rows: self.rows.clone(), last: self.durable }
    }

    /// Folds batches into the rows.
    fn fold(&mut self, to: Seq) {
        for batch in self.log.drain(..(to - self.folded) as usize) {
            absorb(&mut self.rows, &batch, |_| true);
        }
        self.folded = to;
    }
}

/// Applies the writes of a batch to the rows, of those keys that are wanted.
fn absorb(rows: &mut Rows, batch: &Batch, wanted: impl Fn(&[u8]) -> bool) {
    for (key, value) in batch.iter().filter(|(key, _)| wanted(key)) {
        match value {
            Some(value) => match rows.get_mut(key) {
                Some(row) => {
                    row.clear();
                    row.extend_from_slice(value);
                }
                None => drop(rows.insert(key.to_vec(), value.to_vec())),
            },
            None => drop(rows.remove(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(key: u8, value: u8) -> Batch {
        let mut batch = Batch::new();
        batch.put(&[key], &[value]);
        batch
    }

    #[test]
    fn crash_keeps_a_prefix_that_has_everything_synced() {
        let mut disk = Disk::new(true);
        let mut overlay = Overlay::default();
        for number in 1..=5 {
            disk.append(batch(number, number), &mut overlay);
        }
        assert_eq!(disk.begin_sync(), (5, 20));
        disk.append(batch(6, 6), &mut overlay);
        disk.append(batch(7, 7), &mut overlay);
        disk.finish_sync(5, &mut overlay);
        assert_eq!((disk.durable(), disk.issued()), (5, 7));
        disk.crash(6);
        assert_eq!((disk.durable(), disk.issued(), disk.rows().len()), (6, 6, 6));
    }
}
