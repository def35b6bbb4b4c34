//! Full disks, failing syncs, power cuts.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use slackline_core::machine::Batch;
use slackline_storage::{Embedded, Faults, LogWriter, Medium, OpenError, Options, Role, Store, WriteError};

use crate::common::*;
use crate::model::random_batch;

fn lossy(faults: &Faults) -> Options {
    Options { medium: Medium::Lossy(faults.clone()), ..small() }
}

/// Twenty rows under keys of their own, so that the table must grow.
fn large(number: u64) -> Arc<Batch> {
    let mut batch = Batch::new();
    (0..20).for_each(|row| batch.put(format!("{number:06}-{row}").as_bytes(), &[1; 100]));
    batch.into()
}

/// Appends until the log has no room and the table does not move any more: how many batches there are, and the refusal.
fn write_until_full(store: &Embedded, writer: &mut dyn LogWriter) -> (u64, WriteError) {
    let mut number = 0;
    let mut still = (0, 0);
    loop {
        match writer.append(number + 1, &[large(number + 1)]) {
            Ok(()) => number += 1,
            Err(error) => {
                still = (store.absorbed(), if still.0 == store.absorbed() { still.1 + 1 } else { 0 });
                if still.1 == 50 {
                    return (number, error);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert!(number < 100_000, "the disk is never full");
    }
}

#[test]
fn full_disk_takes_the_room_away_and_gives_it_back() {
    full_disk("full", &Faults::new());
}

#[test]
fn quota_that_is_used_up_takes_the_room_away_and_gives_it_back() {
    let faults = Faults::new();
    faults.limit_by_quota();
    full_disk("quota", &faults);
}

fn full_disk(name: &str, faults: &Faults) {
    let scratch = Scratch::new(name);
    let options = Options { segments_most: 40, ..lossy(faults) };
    let mut store = open(&scratch.site(), &options).unwrap();
    let mut writer = store.writer().unwrap();
    wait("segments to be ready", || store.room() == 3 * (60 << 10));
    faults.set_space(Some(0));
    let before = store.room();
    let (number, refused) = write_until_full(&store, &mut *writer);
    assert!(matches!(refused, WriteError::NoRoom { .. }), "{refused}");
    assert_eq!(store.room(), 0);
    assert!(before > 0);
    // Reading goes on, nothing was half written, and the writer is not spoilt.
    let absorbed = store.absorbed();
    assert_eq!(all(store.reader()).len() as u64, absorbed * 20);
    assert!(absorbed < number, "the table grew on a full disk");
    assert!(matches!(writer.append(number + 1, &[large(number + 1)]), Err(WriteError::NoRoom { .. })));
    assert_eq!(store.last(), number);
    faults.set_space(None);
    wait("room", || store.room() >= 2 * (60 << 10));
    writer.append(number + 1, &[large(number + 1)]).unwrap();
    wait("absorption", || store.absorbed() > absorbed);
    assert_eq!(store.failure(), None);
    drop((writer, store));
    let store = open(&scratch.site(), &lossy(&Faults::new())).unwrap();
    assert_eq!(store.last(), number + 1);
    assert_eq!(all(store.reader()).len() as u64, (number + 1) * 20);
}

/// A table that doubles needs the space of what is written, not that of the file.
#[test]
fn table_grows_on_a_disk_with_less_room_than_it_has() {
    let scratch = Scratch::new("growth");
    let faults = Faults::new();
    let options = Options { segment_bytes: 1 << 20, ..lossy(&faults) };
    let mut store = open(&scratch.site(), &options).unwrap();
    let mut writer = store.writer().unwrap();
    let length = || std::fs::metadata(scratch.site().join("table.redb")).unwrap().len();
    let mut number = 0;
    let mut write_while = |goes_on: &dyn Fn(u64) -> bool| {
        while goes_on(number) {
            let mut batch = Batch::new();
            batch.put(format!("{number:06}").as_bytes(), &[7; 60_000]);
            number += 1;
            append(&mut *writer, number, &[batch.into()]);
        }
        number
    };
    write_while(&|_| length() <= 64 << 20);
    let (before, free) = (length(), length() - (2 << 20));
    faults.set_space(Some(free));
    let grown = write_while(&|_| length() == before);
    assert!(length() - before > free, "it has grown by more than the disk has free");

    // Some segments more: what was written before is taken in.
    let last = write_while(&|number| number < grown + 40);
    wait("absorption", || store.absorbed() >= grown);
    assert_eq!(store.waits_for(), None);
    drop((writer, store));
    let store = open(&scratch.site(), &lossy(&Faults::new())).unwrap();
    assert_eq!((store.last(), all(store.reader()).len() as u64), (last, last));
}

/// Segments get another size, and the disk is full at any point of that. A directory without a segment would be taken for one that has lost
/// its log.
#[test]
fn segments_of_another_size_replace_the_old_ones_whatever_the_disk_holds() {
    let scratch = Scratch::new("other-size");
    make(&scratch, 500, 30);
    for step in 0u64.. {
        let faults = Faults::new();
        faults.set_space(Some(step * (32 << 10)));
        let larger = Options { segment_bytes: 128 << 10, ..lossy(&faults) };
        match open(&scratch.site(), &larger) {
            Ok(store) => {
                assert_eq!((store.last(), all(store.reader())), (500, expected(500, 30)));
                assert!(step > 0, "a full disk has no room for a segment");
                break;
            }
            Err(OpenError::Missing { path }) => panic!("nothing is left of {}", path.display()),
            Err(_) => assert!(step < 1_000, "it is opened once there is room"),
        }
    }
}

#[test]
fn closing_does_not_wait_for_a_full_disk() {
    let scratch = Scratch::new("full-close");
    let faults = Faults::new();
    // Enough log that the table cannot take it in without growing.
    let options = Options { segments_ahead: 12, segments_most: 14, ..lossy(&faults) };
    let mut store = open(&scratch.site(), &options).unwrap();
    let mut writer = store.writer().unwrap();
    wait("segments to be ready", || store.room() == 13 * (60 << 10));
    faults.set_space(Some(0));
    let (number, _) = write_until_full(&store, &mut *writer);
    let start = std::time::Instant::now();
    drop((writer, store));
    assert!(start.elapsed() < Duration::from_secs(2));
    // A disk that is full when the store is opened, or a quota: a clear refusal, and nothing lost.
    let full = Faults::new();
    full.set_space(Some(0));
    for _ in 0..2 {
        let error = open(&scratch.site(), &lossy(&full)).err().expect("the table has to grow");
        assert!(matches!(error, OpenError::Full { .. }), "{error}");
        full.limit_by_quota();
    }
    let store = open(&scratch.site(), &lossy(&Faults::new())).unwrap();
    assert_eq!((store.last(), all(store.reader()).len() as u64), (number, number * 20));
}

/// The first start of all, where not even the table can be made.
#[test]
fn quota_that_is_used_up_at_the_first_start_is_a_full_disk() {
    let scratch = Scratch::new("quota-first");
    let full = Faults::new();
    full.set_space(Some(0));
    full.limit_by_quota();
    for _ in 0..2 {
        let error = open(&scratch.site(), &lossy(&full)).err().expect("nothing can be made");
        assert!(matches!(error, OpenError::Full { .. }), "{error}");
        assert!(!error.to_string().contains("empty data directory"), "{error}");
    }
    full.set_space(None);
    assert_eq!(open(&scratch.site(), &lossy(&full)).unwrap().last(), 0);
}

#[test]
fn failed_sync_stops_the_site_and_loses_only_what_was_not_acknowledged() {
    let scratch = Scratch::new("sync");
    let faults = Faults::new();
    let mut store = open(&scratch.site(), &lossy(&faults)).unwrap();
    let mut writer = store.writer().unwrap();
    wait("segments to be ready", || store.room() == 3 * (60 << 10));
    fill(&mut *writer, 1..=30, 10, 9);
    faults.fail_sync(Role::Log);
    let error = writer.append(31, &[numbered(31, 9)]).unwrap_err();
    assert!(matches!(error, WriteError::Failed { .. }) && error.to_string().contains(".log"), "{error}");
    let again = writer.append(31, &[numbered(31, 9)]).unwrap_err();
    assert!(matches!(&again, WriteError::Stopped { why } if why.contains("injected")), "{again}");
    assert_eq!((store.last(), store.room()), (30, 0));
    assert!(store.failure().unwrap().contains("check the disk"));
    drop((writer, store));
    let store = open(&scratch.site(), &lossy(&Faults::new())).unwrap();
    assert_eq!((store.last(), all(store.reader())), (30, expected(30, 9)));
}

#[test]
fn short_write_leaves_a_prefix() {
    for blocks in 0..4 {
        let scratch = Scratch::new("short");
        let faults = Faults::new();
        let mut store = open(&scratch.site(), &lossy(&faults)).unwrap();
        let mut writer = store.writer().unwrap();
        wait("segments to be ready", || store.room() == 3 * (60 << 10));
        fill(&mut *writer, 1..=10, 5, 9);
        faults.short_write(blocks);
        // Three blocks and a bit.
        let batches: Vec<Arc<Batch>> = (11..=300).map(|number| numbered(number, 9)).collect();
        assert!(matches!(writer.append(11, &batches), Err(WriteError::Failed { .. })));
        drop((writer, store));
        let store = open(&scratch.site(), &lossy(&Faults::new())).unwrap();
        let last = store.last();
        assert!(if blocks == 0 { last == 10 } else { (11..300).contains(&last) }, "{blocks} blocks, {last} batches");
        assert_eq!(all(store.reader()), expected(last, 9));
    }
}

#[test]
fn failed_sync_of_the_table_stops_the_site_and_loses_nothing() {
    let scratch = Scratch::new("table-sync");
    let faults = Faults::new();
    let mut store = open(&scratch.site(), &lossy(&faults)).unwrap();
    let mut writer = store.writer().unwrap();
    faults.fail_sync(Role::Table);
    let mut number = 0;
    let error = loop {
        match writer.append(number + 1, &[numbered(number + 1, 9)]) {
            Ok(()) => number += 1,
            Err(WriteError::NoRoom { .. }) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, WriteError::Stopped { why } if why.contains("table.redb")), "{error}");
    drop((writer, store));
    let store = open(&scratch.site(), &lossy(&Faults::new())).unwrap();
    assert_eq!((store.last(), all(store.reader())), (number, expected(number, 9)));
}

/// What the segment in use has so far is absorbed when somebody asks for it. The power is cut in the middle of that, or of what
/// is written meanwhile: what was acknowledged is there, and absorption goes on where it ended.
#[test]
fn power_cut_while_part_of_a_segment_is_absorbed_leaves_all_that_was_acknowledged() {
    let (mut in_part, mut cut) = (0, 0);
    for seed in 0..40 {
        let random = &mut Random(1_000 + seed);
        let scratch = Scratch::new("power-part");
        let mut last = 0;
        for life in 0..4 {
            let faults = Faults::new();
            let mut store = open(&scratch.site(), &lossy(&faults)).unwrap();
            assert!((last..=last + 3).contains(&store.last()), "seed {seed}: {last} were acknowledged");
            last = store.last();
            assert_eq!((store.absorbed(), all(store.reader())), (last, expected(last, 50)), "seed {seed}");
            let mut writer = store.writer().unwrap();
            wait("segments to be ready", || store.room() == 3 * (60 << 10));
            faults.crash_in_sync(1 + random.below(30), seed * 4 + life);
            while !faults.is_crashed() {
                let batches: Vec<Arc<Batch>> = (last + 1..=last + 3).map(|number| numbered(number, 50)).collect();
                match writer.append(last + 1, &batches) {
                    Ok(()) => last += 3,
                    Err(WriteError::NoRoom { .. }) => {}
                    Err(_) => break,
                }
                let before = store.absorbed();
                if random.below(3) == 0 {
                    store.absorb_soon();
                    while store.failure().is_none() && store.absorbed() == before && !faults.is_crashed() {
                        std::thread::yield_now();
                    }
                    in_part += u64::from(store.absorbed() > before);
                }
            }
            cut += 1;
        }
    }
    assert!(in_part > 100 && cut == 160, "{in_part} parts of segments, {cut} lives");
}

/// The power is cut in the middle of some sync, of the log or of the table, which reaches the disk in part: what was
/// acknowledged is there, and what is there is a prefix.
#[test]
fn power_cut_in_any_sync_leaves_a_prefix_with_all_that_was_acknowledged() {
    let mut unacknowledged = 0;
    for seed in 0..60 {
        let random = &mut Random(seed);
        let scratch = Scratch::new("power");
        let mut acknowledged = 0;
        let mut rows = Rows::new();
        for life in 0..3 {
            let faults = Faults::new();
            // 24 syncs or more are those of making a store.
            faults.crash_in_sync(random.below(120), seed * 3 + life);
            let mut states = vec![(acknowledged, rows.clone())];
            if let Ok(mut store) = open(&scratch.site(), &lossy(&faults)) {
                assert_eq!((store.last(), all(store.reader())), (acknowledged, rows.clone()), "seed {seed}");
                let mut writer = store.writer().unwrap();
                while !faults.is_crashed() {
                    let batches: Vec<Arc<Batch>> = (0..1 + random.below(40)).map(|_| random_batch(random)).collect();
                    match writer.append(acknowledged + 1, &batches) {
                        Err(WriteError::NoRoom { .. }) => continue,
                        result => {
                            states = vec![(acknowledged, rows.clone())];
                            let mut number = acknowledged;
                            for batch in &batches {
                                apply(&mut rows, batch);
                                number += 1;
                                states.push((number, rows.clone()));
                            }
                            if result.is_err() {
                                break;
                            }
                            acknowledged = number;
                            states.drain(..states.len() - 1);
                        }
                    }
                }
            }
            assert!(faults.is_crashed());
            let store = match open(&scratch.site(), &lossy(&Faults::new())) {
                Ok(store) => store,
                Err(error) => panic!("seed {seed}, life {life}: {error}"),
            };
            let (found, expected) = states
                .into_iter()
                .find(|(number, _)| *number == store.last())
                .unwrap_or_else(|| panic!("seed {seed}: {} is not a prefix after {acknowledged}", store.last()));
            assert_eq!(all(store.reader()), expected, "seed {seed}");
            unacknowledged += found - acknowledged;
            (acknowledged, rows) = (found, expected);
        }
    }
    assert!(unacknowledged > 0, "no sync was torn in the middle");
}

/// A process killed while it writes: everything it reported is there.
#[test]
fn killed_process_keeps_all_that_it_acknowledged() {
    let scratch = Scratch::new("killed");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::child_that_is_killed", "--nocapture"])
        .env("SLACKLINE_STORAGE_CHILD", scratch.site())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reported = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        if let Some(number) = line.unwrap_or_default().strip_prefix("durable ") {
            reported = number.parse().unwrap();
        }
        if reported > 3_000 {
            child.kill().unwrap();
            break;
        }
    }
    child.wait().unwrap();
    assert!(reported > 3_000, "the child did not write");
    let store = open(&scratch.site(), &lossy(&Faults::new())).unwrap();
    assert!(store.last() >= reported);
    assert_eq!(all(store.reader()), expected(store.last(), 200));
}

/// Does nothing unless run by the test above.
#[test]
fn child_that_is_killed() {
    let Some(site) = std::env::var_os("SLACKLINE_STORAGE_CHILD") else { return };
    let mut store = open(site.as_ref(), &lossy(&Faults::new())).unwrap();
    let mut writer = store.writer().unwrap();
    for group in 0.. {
        fill(&mut *writer, group * 10 + 1..=group * 10 + 10, 10, 200);
        println!("durable {}", store.last());
    }
}
