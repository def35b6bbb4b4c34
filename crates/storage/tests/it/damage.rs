//! Torn tails are cut; damage is named.

use std::path::{Path, PathBuf};

use slackline_core::machine::Batch;
use slackline_storage::{OpenError, Options, Store, Torn};

use crate::common::*;

const BLOCK: usize = 4096;

/// One segment that was not absorbed: groups of 1, 40, 100 and 300 batches.
fn written(scratch: &Scratch) -> (Options, u64) {
    let options = Options { segment_bytes: 256 << 10, ..small() };
    let mut store = open(&scratch.site(), &options).unwrap();
    let mut writer = store.writer().unwrap();
    wait("segments to be ready", || segments(&scratch.site()).len() == 3);
    fill(&mut *writer, 1..=1, 1, 25);
    fill(&mut *writer, 2..=41, 40, 25);
    fill(&mut *writer, 42..=141, 100, 25);
    fill(&mut *writer, 142..=441, 300, 25);
    drop((writer, store));
    (options, 441)
}

/// A directory of that, and a copy of it.
fn saved(name: &str) -> (Scratch, PathBuf, Options, u64) {
    let scratch = Scratch::new(name);
    let (options, last) = written(&scratch);
    let saved = scratch.0.join("saved");
    copy(&scratch.site(), &saved);
    (scratch, saved, options, last)
}

/// Where each frame of a segment starts and ends.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut frames = Vec::new();
    let mut at = BLOCK;
    while at + 16 <= bytes.len() {
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) & !(1 << 31);
        if length == 0 {
            if at.is_multiple_of(BLOCK) {
                break;
            }
            at = at.next_multiple_of(BLOCK);
            continue;
        }
        frames.push((at, at + 16 + length as usize));
        at = (at + 16 + length as usize).next_multiple_of(8);
    }
    frames
}

fn open_with(
    scratch: &Scratch,
    saved: &Path,
    options: &Options,
    spoil: impl FnOnce(&mut Vec<u8>),
) -> Result<u64, OpenError> {
    copy(saved, &scratch.site());
    let segment = segments(&scratch.site())[0].clone();
    let mut bytes = std::fs::read(&segment).unwrap();
    spoil(&mut bytes);
    std::fs::write(&segment, bytes).unwrap();
    let store = open(&scratch.site(), options)?;
    assert_eq!(all(store.reader()), expected(store.last(), 25), "not a prefix");
    Ok(store.last())
}

/// The checksum of the frame whose header and batch are these bytes, in a segment with this mark.
fn checksum(mark: u64, frame: &[u8]) -> [u8; 4] {
    let covered = [&mark.to_le_bytes(), &frame[..4], &frame[8..]].concat();
    crc32fast::hash(&covered).to_le_bytes()
}

/// Makes a segment of the first format of one that was written: there was no mark, and the number took its place.
fn as_first_format(bytes: &mut [u8], number: u64) {
    for (start, end) in frames(bytes) {
        let sum = checksum(number, &bytes[start..end]);
        bytes[start + 4..start + 8].copy_from_slice(&sum);
    }
    bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
    let sum = crc32fast::hash(&bytes[..28]).to_le_bytes();
    bytes[28..32].copy_from_slice(&sum);
    bytes[32..44].fill(0);
}

#[test]
fn segment_of_the_first_format_is_read() {
    let (scratch, saved, options, last) = saved("first-format");
    assert_eq!(open_with(&scratch, &saved, &options, |bytes| as_first_format(bytes, 1)).unwrap(), last);
    let other = open_with(&scratch, &saved, &options, |bytes| as_first_format(bytes, 2));
    assert_eq!(other.unwrap(), 0, "frames of another segment");
}

/// A client wrote a value that is made of the bytes of a group, with all that it can know of the log; the write of it was torn. The log has lost
/// nothing that was acknowledged.
#[test]
fn value_that_imitates_a_group_is_no_evidence_that_those_before_it_were_synced() {
    let (scratch, saved, options, _) = saved("imitated");
    let last = open_with(&scratch, &saved, &options, |bytes| {
        let start = frames(bytes)[141].0;
        let mut imitation = [0; 24];
        imitation[..4].copy_from_slice(&(8u32 | 1 << 31).to_le_bytes());
        imitation[8..16].copy_from_slice(&150u64.to_le_bytes());
        let sum = checksum(1, &imitation);
        imitation[4..8].copy_from_slice(&sum);
        bytes[start..start + BLOCK].fill(0);
        bytes[start + BLOCK..start + BLOCK + 24].copy_from_slice(&imitation);
    });
    assert_eq!(last.unwrap(), 141);
}

#[test]
fn torn_last_group_is_cut_at_every_point() {
    let (scratch, saved, options, last) = saved("torn");
    let bytes = std::fs::read(&segments(&saved)[0]).unwrap();
    let frames = frames(&bytes);
    assert_eq!(frames.len() as u64, last);
    let (start, end) = (frames[141].0, frames[440].1);
    assert!(start.is_multiple_of(BLOCK) && end - start > 2 * BLOCK, "the last group spans blocks");
    let mut lengths = std::collections::BTreeSet::new();
    // A prime step, to meet every part of a frame without thousands of openings.
    for cut in (start..end).step_by(211).chain([start + 1, end - 1, end]) {
        let whole = frames.iter().filter(|(_, end)| *end <= cut).count() as u64;
        let found = open_with(&scratch, &saved, &options, |bytes| bytes[cut..].fill(0)).unwrap();
        assert_eq!(found, whole, "cut at {cut}");
        lengths.insert(found);
    }
    assert!(lengths.len() > 30 && lengths.contains(&last) && lengths.contains(&141));
    // Blocks of one write may reach the disk in any order: the first one lost, later ones there.
    let found = open_with(&scratch, &saved, &options, |bytes| bytes[start..start + BLOCK].fill(0)).unwrap();
    assert_eq!(found, 141);
}

#[test]
fn flipped_bit_before_the_last_group_is_refused_with_its_place() {
    let scratch = Scratch::new("flip");
    let (options, _) = written(&scratch);
    let saved = scratch.0.join("saved");
    copy(&scratch.site(), &saved);
    let name = segments(&saved)[0].file_name().unwrap().to_owned();
    let frames = frames(&std::fs::read(&segments(&saved)[0]).unwrap());
    for step in 0..48 {
        let (start, end) = frames[(step * 37) % 141];
        let byte = start + (step * 29) % (end - start);
        let error = open_with(&scratch, &saved, &options, |bytes| bytes[byte] ^= 1 << (step % 8))
            .err()
            .unwrap_or_else(|| panic!("the flip at byte {byte} was not noticed"));
        let OpenError::Damaged { path, at, .. } = &error else { panic!("{error}") };
        assert_eq!((path.file_name().unwrap(), *at), (&*name, start as u64), "{error}");
        assert!(error.to_string().contains("start the site with an empty data directory"), "{error}");
    }
    // The header.
    for byte in [0, 9, 14, 21, 29] {
        let error = open_with(&scratch, &saved, &options, |bytes| bytes[byte] ^= 16).err().unwrap();
        assert!(matches!(&error, OpenError::Damaged { at: 0, .. } | OpenError::NewerFormat { .. }), "{error}");
    }
    assert_eq!(open_with(&scratch, &saved, &options, |_| ()).unwrap(), 441);
}

/// Here it cannot be told from a write that was cut short; whoever knows better is told where it is, also at later starts.
#[test]
fn flipped_bit_in_the_last_group_is_kept_with_its_place_until_more_is_written() {
    let scratch = Scratch::new("flip-last");
    let (options, _) = written(&scratch);
    let saved = scratch.0.join("saved");
    copy(&scratch.site(), &saved);
    let segment = segments(&scratch.site())[0].clone();
    let frames = frames(&std::fs::read(&segment).unwrap());
    for step in 0..64 {
        let number = 141 + (step * 37) % 300;
        let (start, end) = frames[number];
        // Every part of a frame: length, checksum, number, contents.
        let byte = if step % 2 == 0 { start + step / 4 } else { start + (step * 29) % (end - start) };
        let found = open_with(&scratch, &saved, &options, |bytes| bytes[byte] ^= 1 << (step % 8)).unwrap();
        assert_eq!(found, number as u64, "byte {byte}");
        let torn = Torn { path: segment.clone(), at: start as u64, last: number as u64 };
        for _ in 0..2 {
            let store = open(&scratch.site(), &options).unwrap();
            assert_eq!(store.torn(), Some(&torn), "byte {byte}");
        }
    }
    let mut store = open(&scratch.site(), &options).unwrap();
    let mut writer = store.writer().unwrap();
    let last = store.last();
    wait("room", || store.room() > 0);
    fill(&mut *writer, last + 1..=last + 1, 1, 25);
    drop((writer, store));
    assert_eq!(open(&scratch.site(), &options).unwrap().torn(), None);
    assert_eq!(open_with(&scratch, &saved, &options, |_| ()).unwrap(), 441);
    assert_eq!(open(&scratch.site(), &options).unwrap().torn(), None, "nothing is wrong with a log that simply ends");
}

#[test]
fn log_that_was_cut_off_is_refused() {
    let scratch = Scratch::new("shortened");
    let (options, _) = written(&scratch);
    let saved = scratch.0.join("saved");
    copy(&scratch.site(), &saved);
    for length in [9 * BLOCK, BLOCK, 0] {
        let error = open_with(&scratch, &saved, &options, |bytes| bytes.truncate(length)).expect_err("noticed");
        assert!(matches!(&error, OpenError::Damaged { at: 0, .. }), "{error}");
    }
}

/// A log of three segments none of which was absorbed: the table as it was before, links to the segments' files, and the
/// headers that recycling may have changed since.
fn three_segments(scratch: &Scratch) -> std::path::PathBuf {
    let (site, kept) = (scratch.site(), scratch.0.join("kept"));
    let mut store = open(&site, &small()).unwrap();
    let mut writer = store.writer().unwrap();
    wait("segments to be ready", || segments(&site).len() == 3);
    copy(&site, &kept);
    let links: Vec<_> = segments(&site)
        .into_iter()
        .map(|path| {
            let link = scratch.0.join(path.file_name().unwrap());
            std::fs::hard_link(&path, &link).unwrap();
            link
        })
        .collect();
    // Five of these fill a segment: 1 to 5, 6 to 10, 11.
    for number in 1..=11u8 {
        let mut batch = Batch::new();
        batch.put(b"key", &vec![number; 12_000]);
        append(&mut *writer, number.into(), &[batch.into()]);
    }
    drop((writer, store));
    for (path, link) in segments(&kept).iter().zip(links) {
        let header = std::fs::read(path).unwrap()[..BLOCK].to_vec();
        let mut bytes = std::fs::read(link).unwrap();
        bytes[..BLOCK].copy_from_slice(&header);
        std::fs::write(path, bytes).unwrap();
    }
    kept
}

#[test]
fn damage_is_found_across_segments() {
    let scratch = Scratch::new("across");
    let kept = three_segments(&scratch);
    copy(&kept, &scratch.site());
    assert_eq!(open(&scratch.site(), &small()).unwrap().last(), 11);
    let paths: Vec<_> =
        segments(&kept).iter().map(|path| scratch.site().join("log").join(path.file_name().unwrap())).collect();
    let options = small();
    for (segment, block) in [(0, 1), (0, 4), (0, 13), (1, 1), (1, 7), (1, 13)] {
        copy(&kept, &scratch.site());
        let mut bytes = std::fs::read(&paths[segment]).unwrap();
        bytes[block * BLOCK + 20] ^= 1;
        std::fs::write(&paths[segment], bytes).unwrap();
        let error = open(&scratch.site(), &options).err().unwrap();
        let OpenError::Damaged { path, at, .. } = &error else { panic!("{error}") };
        let group = 1 + (block - 1) / 3 * 3;
        assert_eq!((path, *at), (&paths[segment], (group * BLOCK) as u64), "block {block}: {error}");
    }
    // In the last one it cannot be told from a torn write.
    copy(&kept, &scratch.site());
    let mut bytes = std::fs::read(&paths[2]).unwrap();
    bytes[BLOCK + 20] ^= 1;
    std::fs::write(&paths[2], bytes).unwrap();
    assert_eq!(open(&scratch.site(), &options).unwrap().last(), 10);
    // A segment in the middle that is not there.
    copy(&kept, &scratch.site());
    std::fs::remove_file(&paths[1]).unwrap();
    assert!(matches!(open(&scratch.site(), &options), Err(OpenError::Missing { path }) if path == paths[1]));
}

/// A site whose table has all that was written: the batches 1 to 2000 over 300 keys.
fn absorbed(scratch: &Scratch) {
    let mut store = open(&scratch.site(), &small()).unwrap();
    let mut writer = store.writer().unwrap();
    fill(&mut *writer, 1..=2000, 50, 300);
    drop((writer, store));
    drop(open(&scratch.site(), &small()).unwrap());
}

#[test]
fn flipped_bit_in_the_table_is_named_by_key() {
    let scratch = Scratch::new("table");
    absorbed(&scratch);
    let table = scratch.site().join("table.redb");
    let mut bytes = std::fs::read(&table).unwrap();
    let wanted = b"value of batch 00001925";
    let places: Vec<usize> = (0..bytes.len() - wanted.len()).filter(|at| bytes[*at..].starts_with(wanted)).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at + 10] ^= 2;
    }
    std::fs::write(&table, bytes).unwrap();
    let store = open(&scratch.site(), &small()).unwrap();
    let error = store.reader().read(b"k0125").unwrap_err();
    assert!(error.0.contains("k0125") && error.0.contains("\"rows\"") && error.0.contains("table.redb"), "{error}");
    assert!(store.reader().scan(b"k0120", b"k0130", 100).is_err(), "a scan skips nothing");
    assert!(store.reader().read(b"k0126").unwrap().is_some());
}

/// A table of which a page is gone opens with an error that names it, or reads like an honest one, or fails when it is read;
/// what the library below it makes of damage, a panic included, never gets out.
#[test]
fn page_of_the_table_that_is_gone_is_an_error_and_never_a_panic() {
    let scratch = Scratch::new("page");
    absorbed(&scratch);
    let whole = std::fs::read(scratch.site().join("table.redb")).unwrap();
    let honest = expected(2000, 300);
    let damaged = scratch.site().with_extension("damaged");
    let mut found = 0;
    for page in 0..(whole.len() / 4096).min(48) {
        let mut bytes = whole.clone();
        bytes[page * 4096..(page + 1) * 4096].fill(0);
        copy(&scratch.site(), &damaged);
        std::fs::write(damaged.join("table.redb"), &bytes).unwrap();
        let error = match open(&damaged, &small()) {
            Err(error) => Some(error.to_string()),
            Ok(store) => match store.reader().scan(b"", b"\xff", usize::MAX) {
                Err(error) => Some(error.to_string()),
                Ok(rows) => {
                    assert_eq!(rows.into_iter().collect::<Rows>(), honest, "page {page}: wrong rows are no answer");
                    None
                }
            },
        };
        if let Some(error) = error {
            assert!(error.contains("table.redb") && error.contains("empty data directory"), "page {page}: {error}");
            found += 1;
        }
    }
    assert!(found > 0, "some page mattered");
}

/// Storage that finds a file gone when it takes batches into the table says so, also where nothing more is written.
#[test]
fn file_that_is_gone_when_batches_are_to_be_absorbed_stops_the_store() {
    for name in [".log", "table.redb"] {
        let scratch = Scratch::new("gone");
        let mut store = open(&scratch.site(), &small()).unwrap();
        let mut writer = store.writer().unwrap();
        assert_eq!(store.failure(), None);
        let in_use = segments(&scratch.site()).first().expect("the one in use").clone();
        let gone = if name == ".log" { in_use } else { scratch.site().join(name) };
        std::fs::remove_file(&gone).unwrap();
        let mut number = 0;
        wait("the failure", || {
            if store.failure().is_none() && writer.append(number + 1, &[numbered(number + 1, 9)]).is_ok() {
                number += 1;
            }
            store.failure().is_some()
        });
        let why = store.failure().unwrap();
        assert!(why.contains(name) && store.room() == 0, "{why}");
        assert!(!gone.exists(), "{name} was made again");
    }
}
