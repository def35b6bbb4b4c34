//! What the tests share: directories that go away, batches, and a generator.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use slackline_core::machine::{Batch, Reader};
use slackline_storage::{Embedded, Identity, LogWriter, OpenError, Options, Store};

pub(crate) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A directory under the build directory, removed in the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn site(&self) -> PathBuf {
        self.0.join("site")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn identity() -> Identity {
    Identity { cluster: "test".into(), site: "eu-1".into(), lanes: 1 }
}

/// Small segments, so that little data goes through all of them.
pub(crate) fn small() -> Options {
    Options { segment_bytes: 64 << 10, cache_bytes: 1 << 20, ..Options::default() }
}

pub(crate) fn open(path: &Path, options: &Options) -> Result<Embedded, OpenError> {
    Embedded::open(path, &identity(), options.clone())
}

/// A batch that sets `k{number % keys}` to a value that names it.
pub(crate) fn numbered(number: u64, keys: u64) -> Arc<Batch> {
    let mut batch = Batch::new();
    batch.put(format!("k{:04}", number % keys).as_bytes(), format!("value of batch {number:08}").as_bytes());
    batch.into()
}

pub(crate) fn apply(rows: &mut Rows, batch: &Batch) {
    for (key, value) in batch.iter() {
        match value {
            Some(value) => rows.insert(key.to_vec(), value.to_vec()),
            None => rows.remove(key),
        };
    }
}

pub(crate) fn all(reader: &dyn Reader) -> Rows {
    reader.scan(b"", b"\xff", usize::MAX).unwrap().into_iter().collect()
}

/// Appends one group, waiting for room.
pub(crate) fn append(writer: &mut dyn LogWriter, first: u64, batches: &[Arc<Batch>]) {
    wait("room", || match writer.append(first, batches) {
        Ok(()) => true,
        Err(slackline_storage::WriteError::NoRoom { .. }) => false,
        Err(error) => panic!("{error}"),
    });
}

/// Appends the batches numbered in `range`, `group` at a time.
pub(crate) fn fill(writer: &mut dyn LogWriter, range: std::ops::RangeInclusive<u64>, group: usize, keys: u64) {
    let numbers: Vec<u64> = range.collect();
    for numbers in numbers.chunks(group) {
        let batches: Vec<Arc<Batch>> = numbers.iter().map(|number| numbered(*number, keys)).collect();
        append(writer, numbers[0], &batches);
    }
}

/// Makes a directory with the batches 1 to `last` of [`numbered`], ten at a time, and closes it.
pub(crate) fn make(scratch: &Scratch, last: u64, keys: u64) {
    let mut store = open(&scratch.site(), &small()).unwrap();
    let mut writer = store.writer().unwrap();
    fill(&mut *writer, 1..=last, 10, keys);
}

/// The rows after the batches 1 to `last` of [`numbered`].
pub(crate) fn expected(last: u64, keys: u64) -> Rows {
    let mut rows = Rows::new();
    (1..=last).for_each(|number| apply(&mut rows, &numbered(number, keys)));
    rows
}

pub(crate) fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let start = Instant::now();
    while !until() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The segments' files, oldest first.
pub(crate) fn segments(site: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(site.join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    paths.sort();
    paths
}

/// The number of a segment.
pub(crate) fn number(path: &Path) -> u64 {
    path.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

/// A small generator, so that a failing seed can be run again.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}
