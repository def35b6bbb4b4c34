//! Syncs: the log that a site writes, driven as the site's log thread drives it.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use slackline_core::machine::{Batch, Seq};
use slackline_storage::{Embedded, Identity, LogWriter, Options, Store, WriteError};

use crate::live::LiveError;

/// Bytes of what a small and a large sync make durable.
const SIZES: [usize; 2] = [100, 64 << 10];
/// The pause while the log has no room: it is being taken into the table.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(1);
/// The number of keys, which are written over and over, so that the table stays small.
const KEYS: u64 = 64;

/// A log of its own.
pub(super) struct Disk {
    /// Writes the log. Before the store: it is closed first.
    writer: Box<dyn LogWriter>,
    /// Only kept: it takes the log into its table meanwhile.
    _store: Embedded,
    /// The number of the last batch that was written.
    last: Seq,
}

impl Disk {
    /// Opens a log in a directory, which is made.
    pub(super) fn open(directory: &Path) -> Result<Self, LiveError> {
        let identity = Identity { cluster: "bench".into(), site: "disk".into(), lanes: 1 };
        let mut store = Embedded::open(directory, &identity, Options::default()).map_err(LiveError::failed)?;
        let last = store.last();
        let writer = store.writer().ok_or_else(|| LiveError::failed("the log of a new directory has no writer"))?;
        Ok(Self { writer, _store: store, last })
    }

    /// Small and large syncs by turns for this long: of each size, the bytes, and the nanoseconds in which the quickest tenth is
    /// done. The median would say more, but where others want the processors it is the time until the thread gets one again.
    pub(super) fn run(&mut self, length: Duration) -> Result<[(f64, f64); 2], LiveError> {
        let (mut times, end) = ([Vec::new(), Vec::new()], Instant::now() + length);
        let mut bytes = [0; 2];
        while times[1].is_empty() || Instant::now() < end {
            for (at, size) in SIZES.into_iter().enumerate() {
                // By turns, so that both sizes meet the same hour of the disk.
                let mut batch = Batch::new();
                batch.put(&(self.last % KEYS).to_be_bytes(), &vec![b'x'; size]);
                bytes[at] = batch.as_bytes().len();
                times[at].push(self.sync(batch)?.as_nanos() as f64);
            }
        }

        let [small, large] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 10]
        });
        Ok([(bytes[0] as f64, small), (bytes[1] as f64, large)])
    }

    /// Makes one batch durable.
    fn sync(&mut self, batch: Batch) -> Result<Duration, LiveError> {
        let group = [batch.into()];
        loop {
            // After a pause the time begins again: waiting for room is no part of a sync.
            let began = Instant::now();
            match self.writer.append(self.last + 1, &group) {
                Ok(()) => {
                    self.last += 1;
                    return Ok(began.elapsed());
                }
                Err(WriteError::NoRoom { .. }) => thread::sleep(NO_ROOM_PAUSE),
                Err(error) => return Err(LiveError::failed(error)),
            }
        }
    }
}
