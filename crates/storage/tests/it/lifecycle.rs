//! Opening, closing, whose data it is, what grows and what does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slackline_core::machine::Batch;
use slackline_storage::{Embedded, Identity, LogWriter, OpenError, Options, Store, WriteError};

use crate::common::*;

#[test]
fn store_keeps_rows_over_reopening_and_knows_that_it_was_new() {
    let scratch = Scratch::new("reopen");
    let options = Options { segment_bytes: 1 << 20, ..small() };
    let mut store = open(&scratch.site(), &options).unwrap();
    assert!(store.is_new());
    assert_eq!((store.last(), store.absorbed()), (0, 0));
    let mut writer = store.writer().unwrap();
    assert!(store.writer().is_none(), "only once");
    fill(&mut *writer, 1..=100, 7, 30);
    assert_eq!(store.last(), 100);
    let mut delete = Batch::new();
    delete.delete(b"k0003");
    writer.append(101, &[delete.into()]).unwrap();
    writer.append(102, &[]).unwrap();
    drop((writer, store));

    let store = open(&scratch.site(), &options).unwrap();
    assert!(!store.is_new());
    assert_eq!((store.last(), store.absorbed()), (101, 101));
    let mut rows = expected(100, 30);
    assert!(rows.remove(&b"k0003"[..]).is_some());
    assert_eq!(all(store.reader()), rows);
    assert_eq!(store.reader().read(b"k0003").unwrap(), None);
    assert_eq!(store.reader().scan(b"k0002", b"k0009", 2).unwrap().len(), 2);
    assert_eq!(store.reader().scan(b"k0009", b"k0002", 2).unwrap().len(), 0);
}

#[test]
fn segment_in_use_is_absorbed_when_asked_and_when_nothing_more_is_written() {
    let scratch = Scratch::new("in-use");
    let options = Options { segment_bytes: 1 << 20, ..small() };
    let mut store = open(&scratch.site(), &options).unwrap();
    let mut writer = store.writer().unwrap();
    fill(&mut *writer, 1..=100, 7, 30);
    assert_eq!(store.absorbed(), 0);
    store.absorb_soon();
    wait("absorption", || store.absorbed() == 100);
    assert_eq!(all(store.reader()), expected(100, 30));

    // Nobody asks for the rest, and the segment is far from full.
    fill(&mut *writer, 101..=130, 7, 30);
    wait("absorption of an idle log", || store.absorbed() == 130);
    assert_eq!(all(store.reader()), expected(130, 30));

    // It goes on in the same segment, through its end. When the next one is full too, the file is used again.
    let first = segments(&scratch.site())[0].clone();
    for upto in [20_000, 20_500, 40_000] {
        fill(&mut *writer, store.last() + 1..=upto, 50, 30);
        store.absorb_soon();
        wait("absorption", || store.absorbed() == upto);
    }
    wait("the first segment to be used again", || !segments(&scratch.site()).contains(&first));
    drop((writer, store));
    let store = open(&scratch.site(), &options).unwrap();
    assert_eq!((store.last(), all(store.reader())), (40_000, expected(40_000, 30)));
}

#[test]
fn heads_of_rows_are_their_first_bytes() {
    let scratch = Scratch::new("heads");
    let mut store = open(&scratch.site(), &Options { segment_bytes: 4 << 20, ..small() }).unwrap();
    let mut writer = store.writer().unwrap();
    let mut batch = Batch::new();
    batch.put(b"large", &(0..300_000u32).map(|at| at as u8).collect::<Vec<u8>>());
    batch.put(b"small", b"abc");
    writer.append(1, &[batch.into()]).unwrap();
    store.absorb_soon();
    wait("absorption", || store.absorbed() == 1);
    let reader = store.reader();
    assert_eq!(reader.read_head(b"large", 3).unwrap(), Some(vec![0, 1, 2]));
    assert_eq!(reader.read_head(b"small", 9).unwrap(), Some(b"abc".to_vec()));
    assert_eq!(reader.read_head(b"none", 9).unwrap(), None);
    let heads = reader.scan_heads(b"a", b"z", 9, 1).unwrap();
    assert_eq!(heads, [(b"large".to_vec(), vec![0]), (b"small".to_vec(), b"a".to_vec())]);
    assert_eq!(reader.read(b"large").unwrap().map(|value| value.len()), Some(300_000));
}

#[test]
fn buffered_writes_do_the_same_as_direct_ones() {
    let scratch = Scratch::new("buffered");
    let options = Options { direct: false, ..small() };
    let mut store = open(&scratch.site(), &options).unwrap();
    assert!(!store.is_direct());
    let mut writer = store.writer().unwrap();
    fill(&mut *writer, 1..=3000, 50, 40);
    drop((writer, store));
    // What was written one way is read, and gone on with, the other.
    let mut store = open(&scratch.site(), &small()).unwrap();
    assert_eq!(all(store.reader()), expected(3000, 40));
    let mut writer = store.writer().unwrap();
    fill(&mut *writer, 3001..=3010, 50, 40);
    drop((writer, store));
    let store = open(&scratch.site(), &options).unwrap();
    assert_eq!(all(store.reader()), expected(3010, 40));
}

#[test]
fn second_handle_is_refused_until_store_and_writer_are_gone() {
    let scratch = Scratch::new("lock");
    let mut store = open(&scratch.site(), &small()).unwrap();
    let refused = open(&scratch.site(), &small()).err().unwrap();
    assert!(matches!(refused, OpenError::InUse { .. }));
    assert!(refused.to_string().contains("is in use by another process: stop that one first"), "{refused}");
    std::fs::remove_file(scratch.site().join("LOCK")).unwrap();
    assert!(matches!(open(&scratch.site(), &small()), Err(OpenError::InUse { .. })), "the directory is locked as well");
    let mut writer = store.writer().unwrap();
    store.close();
    assert!(matches!(open(&scratch.site(), &small()), Err(OpenError::InUse { .. })), "the writer could still write");
    assert!(matches!(writer.append(1, &[numbered(1, 1)]), Err(WriteError::Stopped { .. })));
    drop(writer);
    assert_eq!(open(&scratch.site(), &small()).unwrap().last(), 0);
}

/// Appends from `next` on until the store stops because its directory was moved away; returns the first that it has not.
fn append_until_it_stops(writer: &mut dyn LogWriter, mut next: u64) -> u64 {
    loop {
        assert!(next < 10_000, "it must have needed another segment");
        match writer.append(next, &[numbered(next, 50)]) {
            Ok(()) => next += 1,
            Err(WriteError::NoRoom { .. }) => std::thread::sleep(Duration::from_millis(1)),
            Err(WriteError::Stopped { why }) => {
                assert!(why.contains("moved or replaced while the site ran"), "{why}");
                return next;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// At its old path is nothing, and not another site's directory.
#[test]
fn directory_that_was_moved_away_is_named_as_the_reason() {
    let scratch = Scratch::new("gone-away");
    let mut store = open(&scratch.site(), &small()).unwrap();
    let mut writer = store.writer().unwrap();
    fill(&mut *writer, 1..=10, 50, 50);
    std::fs::rename(scratch.site(), scratch.0.join("away")).unwrap();

    let next = append_until_it_stops(&mut *writer, 11);
    assert!(!scratch.site().exists(), "nothing is made at the old path");
    drop((writer, store));
    assert_eq!(all(open(&scratch.0.join("away"), &small()).unwrap().reader()), expected(next - 1, 50));
}

/// A lock moves with its directory, so a second site may open a new directory at the path of a running one.
#[test]
fn directory_that_was_moved_away_harms_nothing_that_has_its_path_now() {
    let scratch = Scratch::new("moved");
    let mut first = open(&scratch.site(), &small()).unwrap();
    let mut moved = first.writer().unwrap();
    fill(&mut *moved, 1..=10, 50, 50);
    std::fs::rename(scratch.site(), scratch.0.join("away")).unwrap();

    let mut second = open(&scratch.site(), &small()).unwrap();
    let mut writer = second.writer().unwrap();
    fill(&mut *writer, 1..=10, 50, 50);

    // The first one goes on in the segments that it has open, and stops when it needs a file by its name: none at its old path
    // is its own.
    let next = append_until_it_stops(&mut *moved, 11);

    // Both keep all that they were given.
    fill(&mut *writer, 11..=3000, 50, 50);
    drop((writer, second));
    assert_eq!(all(open(&scratch.site(), &small()).unwrap().reader()), expected(3000, 50));
    drop((moved, first));
    assert_eq!(all(open(&scratch.0.join("away"), &small()).unwrap().reader()), expected(next - 1, 50));
}

/// Two batches do not fit a segment together: the rest of each is given up, and is no room any more.
#[test]
fn rest_of_a_segment_that_is_given_up_is_no_room() {
    const SEGMENT: u64 = 60 << 10;
    let scratch = Scratch::new("given-up");
    let mut store = open(&scratch.site(), &small()).unwrap();
    let mut writer = store.writer().unwrap();
    wait("segments to be ready", || store.room() == 3 * SEGMENT);
    for number in 1..=2 {
        let mut batch = Batch::new();
        batch.put(b"k", &[number as u8; 40_000]);
        append(&mut *writer, number, &[batch.into()]);
    }

    // The first one's segment is made ready again once it is absorbed.
    wait("room but for the ten blocks of the second batch", || store.room() == 3 * SEGMENT - 10 * 4096);
}

#[test]
fn other_sites_other_clusters_and_newer_data_is_refused_by_name() {
    let scratch = Scratch::new("identity");
    drop(open(&scratch.site(), &small()).unwrap());
    let open_as = |cluster: &str, site: &str| {
        Embedded::open(&scratch.site(), &Identity { cluster: cluster.into(), site: site.into(), lanes: 1 }, small())
    };
    let error = open_as("test", "us-1").err().unwrap();
    assert!(matches!(&error, OpenError::OtherSite { found, wanted, .. } if found == "eu-1" && wanted == "us-1"));
    let error = open_as("live", "eu-1").err().unwrap();
    assert!(matches!(&error, OpenError::OtherCluster { found, wanted, .. } if found == "test" && wanted == "live"));
    assert!(matches!(open_as("a\nb", "eu-1"), Err(OpenError::Unusable(_))));
    assert!(open_as("test", "eu-1").is_ok());

    let identity = scratch.site().join("IDENTITY");
    let text = std::fs::read_to_string(&identity).unwrap();
    std::fs::write(&identity, text.replace("slackline-storage 1", "slackline-storage 2")).unwrap();
    let error = open_as("test", "eu-1").err().unwrap();
    assert!(matches!(&error, OpenError::NewerFormat { found: 2, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("use the newer program"));

    // The number of lanes is noted in a directory of before, and is the same from then on.
    let with_lanes = |lanes| Embedded::open(&scratch.site(), &Identity { lanes, ..crate::common::identity() }, small());
    std::fs::write(&identity, text.replace("lanes 1\n", "")).unwrap();
    drop(with_lanes(2).unwrap());
    let error = with_lanes(1).err().unwrap();
    assert!(matches!(&error, OpenError::OtherLanes { found: 2, wanted: 1, .. }), "{error}");
    drop(with_lanes(2).unwrap());
    std::fs::write(&identity, text.replace("lanes 1", "lanes many")).unwrap();
    assert!(matches!(with_lanes(1), Err(OpenError::Damaged { .. })));
    std::fs::write(&identity, "slackline-storage 1\n").unwrap();
    assert!(matches!(open_as("test", "eu-1"), Err(OpenError::Damaged { .. })));
}

#[test]
fn lost_files_are_missed_not_replaced_by_empty_ones() {
    let scratch = Scratch::new("missing");
    let mut store = open(&scratch.site(), &small()).unwrap();
    let mut writer = store.writer().unwrap();
    wait("segments to be ready", || segments(&scratch.site()).len() == 3);
    fill(&mut *writer, 1..=10, 5, 10);
    drop((writer, store));
    let saved = scratch.0.join("saved");
    copy(&scratch.site(), &saved);
    let mut lost: Vec<_> = vec!["table.redb".into(), "IDENTITY".into()];
    lost.push(format!("log/{}", segments(&saved)[0].file_name().unwrap().to_str().unwrap()));
    for name in lost {
        copy(&saved, &scratch.site());
        std::fs::remove_file(scratch.site().join(&name)).unwrap();
        let error = open(&scratch.site(), &small()).err().unwrap_or_else(|| panic!("opened without {name}"));
        assert!(matches!(&error, OpenError::Missing { path } if path.ends_with(&name)), "{error}");
    }
    copy(&saved, &scratch.site());
    std::fs::write(scratch.site().join("table.redb"), "").unwrap();
    assert!(
        matches!(open(&scratch.site(), &small()), Err(OpenError::Damaged { path, .. }) if path.ends_with("table.redb"))
    );
    assert_eq!(std::fs::read(scratch.site().join("table.redb")).unwrap(), b"", "it was not made again");
    copy(&saved, &scratch.site());
    std::fs::remove_dir_all(scratch.site().join("log")).unwrap();
    assert!(matches!(open(&scratch.site(), &small()), Err(OpenError::Missing { .. })));
    copy(&saved, &scratch.site());
    assert_eq!(open(&scratch.site(), &small()).unwrap().last(), 10);
}

#[test]
fn making_a_store_can_be_cut_short_anywhere() {
    let scratch = Scratch::new("half-made");
    drop(open(&scratch.site(), &small()).unwrap());
    std::fs::remove_file(scratch.site().join("IDENTITY")).unwrap();
    assert!(open(&scratch.site(), &small()).unwrap().is_new());
    std::fs::remove_file(scratch.site().join("IDENTITY")).unwrap();
    std::fs::remove_file(scratch.site().join("table.redb")).unwrap();
    segments(&scratch.site()).into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
    std::fs::write(scratch.site().join("table.tmp"), [7; 100]).unwrap();
    std::fs::write(scratch.site().join("log/new.tmp"), [0; 100]).unwrap();
    assert!(open(&scratch.site(), &small()).unwrap().is_new());
    assert!(!scratch.site().join("log/new.tmp").exists());
}

#[test]
fn batch_larger_than_a_segment_is_refused_and_nothing_written() {
    let scratch = Scratch::new("large");
    let mut store = open(&scratch.site(), &small()).unwrap();
    let mut writer = store.writer().unwrap();
    let of = |bytes: usize| {
        let mut batch = Batch::new();
        batch.put(b"k", &vec![1; bytes]);
        batch.into()
    };
    let error = writer.append(1, &[of(10), of(60 << 10)]).unwrap_err();
    assert!(matches!(error, WriteError::TooLarge { seq: 2, most: 61_440, .. }), "{error}");
    assert_eq!(store.last(), 0);
    // The largest that fits, and a group larger than a segment, in one call.
    let largest = of((60 << 10) - 24);
    append(&mut *writer, 1, &[of(10), largest, of(11)]);
    assert_eq!(store.last(), 3);
    drop((writer, store));
    let store = open(&scratch.site(), &small()).unwrap();
    assert_eq!(store.reader().read(b"k").unwrap().unwrap().len(), 11);
}

#[test]
fn segments_are_used_again_and_the_log_stays_small() {
    let scratch = Scratch::new("recycle");
    let mut store = open(&scratch.site(), &small()).unwrap();
    let mut writer = store.writer().unwrap();
    fill(&mut *writer, 1..=40_000, 100, 50);
    // About 2.5 MB went through segments of 64 KiB.
    wait("absorption", || store.absorbed() > 38_000);
    assert!(segments(&scratch.site()).len() <= small().segments_most);
    assert!(number(segments(&scratch.site()).last().unwrap()) > 30);
    let newest = store.reader().read(b"k0000").unwrap().unwrap();
    assert!(newest > b"value of batch 00037000".to_vec());
    drop((writer, store));
    let before: Vec<_> = segments(&scratch.site());
    let store = open(&scratch.site(), &small()).unwrap();
    assert_eq!((store.last(), store.absorbed()), (40_000, 40_000));
    assert_eq!(all(store.reader()), expected(40_000, 50));
    drop(store);
    // Opening takes all that was left into the table: the next opening has nothing to do but that.
    assert_ne!(before, segments(&scratch.site()));
    assert!(segments(&scratch.site()).len() <= before.len().max(3));
}

/// A file that is made anew holds zeros; one that is used again holds what was written there before.
#[test]
fn no_segment_is_made_anew_where_the_table_keeps_up() {
    let scratch = Scratch::new("spare");
    let mut store = open(&scratch.site(), &small()).unwrap();
    let mut writer = store.writer().unwrap();
    for first in (1..=16_000).step_by(1_000) {
        fill(&mut *writer, first..=first + 999, 100, 50);
        store.absorb_soon();
        wait("absorption", || store.absorbed() == store.last());
        // The one in use, two that are ready, and a spare one.
        wait("a spare segment", || first < 3_000 || segments(&scratch.site()).len() == 4);
    }
    for path in segments(&scratch.site()) {
        let content = std::fs::read(&path).unwrap();
        assert!(content[4096..].iter().any(|byte| *byte != 0), "{} was made anew", path.display());
    }
}

#[test]
fn segments_of_another_size_are_read_then_replaced() {
    let scratch = Scratch::new("resize");
    make(&scratch, 500, 50);
    let larger = Options { segment_bytes: 128 << 10, ..small() };
    let store = open(&scratch.site(), &larger).unwrap();
    assert_eq!(all(store.reader()), expected(500, 50));
    wait("segments to be ready", || segments(&scratch.site()).len() == 3);
    for path in segments(&scratch.site()) {
        assert_eq!(path.metadata().unwrap().len(), larger.segment_bytes);
    }
}

#[test]
fn impossible_options_are_refused() {
    let scratch = Scratch::new("options");
    for options in [
        Options { segment_bytes: 10_000, ..small() },
        Options { segment_bytes: 4096, ..small() },
        Options { segments_ahead: 0, ..small() },
        Options { segments_most: 3, ..small() },
    ] {
        assert!(matches!(open(&scratch.site(), &options), Err(OpenError::Unusable(_))));
    }
}

/// While segments are absorbed, a reader sees each key at or after the batch that `absorbed` promised, and each batch of
/// two rows whole.
#[test]
fn reads_during_absorption_are_never_behind_what_was_promised() {
    let scratch = Scratch::new("concurrent");
    let mut store = open(&scratch.site(), &small()).unwrap();
    let mut writer = store.writer().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    let writing = std::thread::spawn(move || {
        for group in 0..300u64 {
            let batches: Vec<Arc<Batch>> = (1..=100)
                .map(|offset| {
                    let value = (group * 100 + offset).to_be_bytes();
                    let mut batch = Batch::new();
                    batch.put(b"left", &value);
                    batch.put(b"right", &value);
                    batch.into()
                })
                .collect();
            append(&mut *writer, group * 100 + 1, &batches);
        }
        is_done.store(true, Ordering::Release);
    });
    let (mut seen, mut rises) = (0, 0);
    while !done.load(Ordering::Acquire) || store.absorbed() < 29_000 {
        let promised = store.absorbed();
        let rows = store.reader().scan(b"", b"z", 10).unwrap();
        let value = |at: usize| u64::from_be_bytes(rows[at].1[..].try_into().unwrap());
        if promised > 0 {
            assert!(value(0) >= promised && value(0) >= seen && value(0) <= store.last());
            assert_eq!(value(0), value(1), "half a batch");
            rises += u32::from(value(0) > seen);
            seen = value(0);
        }
    }
    writing.join().unwrap();
    assert!(rises > 5, "hardly anything was absorbed while reading: {rises}");
}
