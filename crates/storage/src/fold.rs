//! The last write of each key of many batches: the rows that the table has to take in.

use std::collections::HashMap;
use std::sync::Arc;

use slackline_core::machine::{Batch, Taken};

/// The memory of a row beside its key and its value, in bytes; an estimate.
const ROW_BYTES: usize = 96;
/// The memory, in bytes, of the rows of one transaction of the table; one batch may exceed it.
const FOLD_BYTES: usize = 16 << 20;

/// The last write of each key; `None` removes the row. A log that is written fast has many more writes than keys.
#[derive(Debug, Default)]
pub(crate) struct Fold {
    rows: HashMap<Vec<u8>, Option<Taken>>,
    /// The memory of `rows`, in bytes: all keys and values, and [`ROW_BYTES`] for each row.
    bytes: usize,
}

impl Fold {
    /// True if the table should take the rows in before there are more.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes >= FOLD_BYTES
    }

    /// Takes in the writes of a batch. Large values stay in the batch's memory.
    pub(crate) fn take(&mut self, batch: &Arc<Batch>) {
        for (key, value) in batch.iter() {
            self.bytes += value.map_or(0, <[u8]>::len);
            match (self.rows.get_mut(key), value) {
                // A small value that is written again and again reuses its memory: a hot row costs no allocation for each write. Not
                // the memory of a much longer one, which would not be counted.
                (Some(Some(Taken::Copied(before))), Some(value))
                    if !Taken::is_shared(batch, value) && before.capacity() <= 2 * value.len() + ROW_BYTES =>
                {
                    self.bytes -= before.len();
                    before.clear();
                    before.extend_from_slice(value);
                }
                (Some(before), value) => {
                    self.bytes -= before.as_ref().map_or(0, |before| before.len());
                    *before = value.map(|value| Taken::of(batch, value));
                }
                (None, value) => {
                    self.bytes += key.len() + ROW_BYTES;
                    self.rows.insert(key.to_vec(), value.map(|value| Taken::of(batch, value)));
                }
            }
        }
    }

    /// The rows, sorted by key.
    pub(crate) fn rows(&self) -> Vec<(&[u8], Option<&[u8]>)> {
        let mut rows: Vec<_> = self.rows.iter().map(|(key, value)| (&key[..], value.as_deref())).collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        rows
    }

    /// The rows, in no order.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)> {
        self.rows.into_iter().map(|(key, value)| (key, value.map(Taken::into_vec)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fold_has_the_last_write_of_each_key_and_counts_what_it_holds() {
        let mut fold = Fold::default();
        let mut batch = Batch::new();
        batch.put(b"b", &[1; 10]);
        batch.put(b"a", &[1; 100]);
        batch.delete(b"b");
        batch.put(b"a", &[2; 5]);
        fold.take(&batch.clone().into());
        assert_eq!(fold.rows(), [(&b"a"[..], Some(&[2; 5][..])), (&b"b"[..], None)]);
        assert_eq!(fold.bytes, 2 * (1 + ROW_BYTES) + 5);
        batch.put(b"b", &[3; 7]);
        fold.take(&batch.into());
        assert_eq!(fold.bytes, 2 * (1 + ROW_BYTES) + 12);
    }
}
