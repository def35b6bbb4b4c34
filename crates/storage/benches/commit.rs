//! How long a group commit takes, and how long opening takes: our log, direct and through the page cache, and `redb` alone.
//!
//! ```text
//! cargo bench -p slackline-storage                  # under the build directory
//! cargo bench -p slackline-storage -- --dir PATH    # on another disk
//! cargo bench -p slackline-storage -- --test        # tiny, as the tests run it
//! ```
//!
//! Not to be run on a file system in memory: there a sync costs nothing.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redb::{Database, ReadableDatabase, ReadableTableMetadata, TableDefinition};
use slackline_core::machine::Batch;
use slackline_storage::{Embedded, Identity, Options, Store, WriteError};

/// Keys of the workload: as many quotas, each changed again and again.
const KEYS: u64 = 10_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let is_tiny = arguments.iter().any(|argument| argument == "--test") || !arguments.contains(&"--bench".to_owned());
    let given = arguments.iter().position(|argument| argument == "--dir").map(|at| PathBuf::from(&arguments[at + 1]));
    let directory = given.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")));
    let directory = directory.join(format!("commit-bench-{}", std::process::id()));
    let time = if is_tiny { Duration::from_millis(30) } else { Duration::from_secs(5) };

    println!("one batch is two rows, about 100 bytes; a group is one sync\n");
    println!("engine          batches/group   syncs    p50 us    p99 us   batches/s   check");
    for group in [1, 64, 512] {
        log(&directory, "log, direct", true, group, time);
        log(&directory, "log, buffered", false, group, time);
        redb_alone(&directory, group, time);
    }
    println!();
    opening(&directory, if is_tiny { 1_000 } else { 1_000_000 });
    std::fs::remove_dir_all(&directory).unwrap();
}

fn batch(number: u64) -> Arc<Batch> {
    let mut batch = Batch::new();
    batch.put(format!("quota/{:08}", number % KEYS).as_bytes(), &[number as u8; 24]);
    batch.put(format!("session/{:08}", number % 64).as_bytes(), &number.to_be_bytes().repeat(4));
    batch.into()
}

fn identity() -> Identity {
    Identity { cluster: "bench".into(), site: "bench".into(), lanes: 1 }
}

fn log(directory: &Path, name: &str, direct: bool, group: u64, time: Duration) {
    let path = directory.join("log");
    let options = Options { direct, ..Options::default() };
    let mut store = Embedded::open(&path, &identity(), options.clone()).unwrap();
    let name = if direct && !store.is_direct() { "log, no direct" } else { name };
    let mut writer = store.writer().unwrap();
    let (mut last, mut waits) = (0, 0);
    let times = measure(time, || {
        let batches: Vec<Arc<Batch>> = (last + 1..=last + group).map(batch).collect();
        let start = Instant::now();
        while let Err(error) = writer.append(last + 1, &batches) {
            assert!(matches!(error, WriteError::NoRoom { .. }), "{error}");
            waits += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        last += group;
        start.elapsed()
    });
    drop((writer, store));
    // Twice: with what is left in the log, and with segments full of old frames.
    let mut opened = [0, 0];
    let mut store = None;
    for millis in &mut opened {
        drop(store.take());
        let start = Instant::now();
        store = Some(Embedded::open(&path, &identity(), options.clone()).unwrap());
        *millis = start.elapsed().as_millis();
    }
    let store = store.unwrap();
    let row = store.reader().read(format!("session/{:08}", last % 64).as_bytes()).unwrap().unwrap();
    assert_eq!((store.last(), &row[..8]), (last, &last.to_be_bytes()[..]), "the log lost something");
    let check = format!("{last} read back; opened in {} ms, then {}; no room {waits} times", opened[0], opened[1]);
    report(name, group, times, &check);
    drop(store);
    std::fs::remove_dir_all(path).unwrap();
}

fn redb_alone(directory: &Path, group: u64, time: Duration) {
    const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");
    let path = directory.join("alone.redb");
    let database = Database::create(&path).unwrap();
    let mut last = 0;
    let times = measure(time, || {
        let batches: Vec<Arc<Batch>> = (last + 1..=last + group).map(batch).collect();
        let start = Instant::now();
        let transaction = database.begin_write().unwrap();
        {
            let mut table = transaction.open_table(ROWS).unwrap();
            for (key, value) in batches.iter().flat_map(|batch| batch.iter()) {
                table.insert(key, value.unwrap()).unwrap();
            }
        }
        transaction.commit().unwrap();
        last += group;
        start.elapsed()
    });
    let rows = database.begin_read().unwrap().open_table(ROWS).unwrap().len().unwrap();
    assert_eq!(rows, last.min(KEYS - 1) + u64::from(last >= KEYS) + last.min(64), "redb lost something");
    report("redb alone", group, times, &format!("{rows} rows read back"));
    drop(database);
    std::fs::remove_file(path).unwrap();
}

fn measure(time: Duration, mut one: impl FnMut() -> Duration) -> Vec<Duration> {
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < time {
        times.push(one());
    }
    times
}

fn report(name: &str, group: u64, mut times: Vec<Duration>, check: &str) {
    times.sort();
    let micros = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    let total: f64 = times.iter().map(Duration::as_secs_f64).sum();
    let rate = (group * times.len() as u64) as f64 / total;
    println!(
        "{name:<16}{group:>13}{:>8}{:>10.0}{:>10.0}{rate:>12.0}   {check}",
        times.len(),
        micros(0.5),
        micros(0.99),
    );
}

/// Different small rows into the log, then open: what is not in the table yet is taken there first.
fn opening(directory: &Path, rows: u64) {
    let path = directory.join("opening");
    let mut store = Embedded::open(&path, &identity(), Options::default()).unwrap();
    let mut writer = store.writer().unwrap();
    let mut last = 0;
    while last < rows {
        let numbers = last + 1..=(last + 500).min(rows);
        let batches: Vec<Arc<Batch>> = numbers
            .map(|number| {
                let mut batch = Batch::new();
                // Out of order, as keys of a real site are.
                let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                batch.put(&key.to_be_bytes(), &number.to_be_bytes());
                batch.into()
            })
            .collect();
        match writer.append(last + 1, &batches) {
            Ok(()) => last += batches.len() as u64,
            Err(WriteError::NoRoom { .. }) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    }
    let left = last - store.absorbed();
    drop((writer, store));
    for (name, left) in [("after writing", left), ("again", 0)] {
        let start = Instant::now();
        let store = Embedded::open(&path, &identity(), Options::default()).unwrap();
        let opened = start.elapsed();
        let found = store.reader().scan(&[], &[0xff; 9], usize::MAX).unwrap().len();
        assert_eq!((found as u64, store.last()), (rows, rows), "rows were lost");
        println!(
            "opening {name}: {} ms ({rows} rows, at least {left} batches still in the log; all rows read back in {} ms; {})",
            opened.as_millis(),
            (start.elapsed() - opened).as_millis(),
            memory(),
        );
    }
}

/// The process's memory now and at most, where the system tells.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim().to_owned();
    format!("resident {}, at most {}", line("VmRSS:"), line("VmHWM:"))
}
