//! Random histories against a plain map, with reopening and torn ends.

use std::sync::Arc;

use slackline_core::machine::Batch;
use slackline_storage::{Options, Store};

use crate::common::*;

/// A batch of up to five writes, now and then a large one.
pub(crate) fn random_batch(random: &mut Random) -> Arc<Batch> {
    let mut batch = Batch::new();
    for _ in 0..1 + random.below(5) {
        let key = format!("k{:03}", random.below(150));
        match random.below(5) {
            0 => batch.delete(key.as_bytes()),
            1 if random.below(20) == 0 => batch.put(key.as_bytes(), &vec![7; random.below(20_000) as usize]),
            _ => batch.put(key.as_bytes(), &random.below(u64::MAX >> 33).to_be_bytes()),
        }
    }
    batch.into()
}

#[test]
fn any_history_reads_as_the_map_does() {
    for seed in 0..12 {
        let random = &mut Random(seed);
        let scratch = Scratch::new("model");
        let options = Options { direct: seed % 2 == 0, ..small() };
        // The rows after each batch that may still turn out to be the last: those of the latest group.
        let mut rows = Rows::new();
        let mut last = 0;
        let mut openings_with_cut = 0;
        for _ in 0..8 {
            let mut store = open(&scratch.site(), &options).unwrap();
            assert_eq!(store.last(), last, "seed {seed}");
            assert_eq!(all(store.reader()), rows, "seed {seed}");
            let mut writer = store.writer().unwrap();
            let mut states = vec![(last, rows.clone())];
            for _ in 0..random.below(60) {
                let batches: Vec<Arc<Batch>> = (0..1 + random.below(30)).map(|_| random_batch(random)).collect();
                append(&mut *writer, last + 1, &batches);
                states = vec![(last, rows.clone())];
                for batch in &batches {
                    last += 1;
                    apply(&mut rows, batch);
                    states.push((last, rows.clone()));
                }
                let key = format!("k{:03}", random.below(150));
                if store.absorbed() == last {
                    assert_eq!(store.reader().read(key.as_bytes()).unwrap().as_ref(), rows.get(key.as_bytes()));
                }
            }
            drop((writer, store));
            // Tear the last group, if it is still in the log, as a power cut during its write would have.
            if states.len() > 1 && random.below(2) == 0 && tear_end(&scratch, random) {
                let found = open(&scratch.site(), &options).unwrap();
                (last, rows) = states.into_iter().find(|(state, _)| *state == found.last()).unwrap();
                openings_with_cut += 1;
            }
        }
        assert!(openings_with_cut > 0 || seed > 0, "no end was torn");
    }
}

/// Zeroes some bytes from a random place in the last block that is not zero of the newest written segment on. Nothing,
/// if that segment may hold old frames.
fn tear_end(scratch: &Scratch, random: &mut Random) -> bool {
    for path in segments(&scratch.site()).iter().rev() {
        let mut bytes = std::fs::read(path).unwrap();
        let blocks: Vec<usize> =
            (1..bytes.len() / 4096).filter(|block| opens(&bytes[block * 4096..], mark(&bytes))).collect();
        let Some(block) = blocks.last() else { continue };
        let from = block * 4096 + random.below(4096) as usize;
        bytes[from..].fill(0);
        std::fs::write(path, bytes).unwrap();
        return true;
    }
    false
}

/// The mark of a segment, which its header holds.
fn mark(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[32..40].try_into().unwrap())
}

/// Whether a group of the segment with this mark starts here.
fn opens(bytes: &[u8], mark: u64) -> bool {
    let length = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    let Some(batch) = bytes.get(16..16 + (length & !(1 << 31)) as usize) else { return false };
    let mut covered = mark.to_le_bytes().to_vec();
    covered.extend_from_slice(&bytes[..4]);
    covered.extend_from_slice(&bytes[8..16]);
    covered.extend_from_slice(batch);
    length >> 31 == 1 && crc32fast::hash(&covered).to_le_bytes() == bytes[4..8]
}

/// Frames that a segment holds from an earlier use are never taken for new ones, even where they have the numbers that
/// come next: the old life ended in the middle of a group, and its numbers were given out again.
#[test]
fn old_frames_in_a_used_segment_are_never_read_as_new() {
    let scratch = Scratch::new("stale");
    let options = Options { segments_ahead: 1, segments_most: 3, ..small() };
    let mut store = open(&scratch.site(), &options).unwrap();
    let mut writer = store.writer().unwrap();
    // One-block groups 1 to 5, torn at 3: their files hold frames numbered 4 and 5 further on.
    fill(&mut *writer, 1..=5, 1, 10);
    drop((writer, store));
    let path = segments(&scratch.site())[0].clone();
    let mut bytes = std::fs::read(&path).unwrap();
    let (four, five) = (bytes[4 * 4096..5 * 4096].to_vec(), bytes[5 * 4096..6 * 4096].to_vec());
    bytes[3 * 4096..].fill(0);
    std::fs::write(&path, bytes).unwrap();
    let mut store = open(&scratch.site(), &options).unwrap();
    assert_eq!(store.last(), 2);
    let mut writer = store.writer().unwrap();
    let mut other = Batch::new();
    other.put(b"k0003", b"of another history");
    writer.append(3, &[other.into()]).unwrap();
    drop((writer, store));
    // The old groups 4 and 5 just after the new 3, as recycling could have left them there.
    let path = segments(&scratch.site()).into_iter().rfind(|path| {
        let bytes = std::fs::read(path).unwrap();
        opens(&bytes[4096..], mark(&bytes))
    });
    let path = path.unwrap();
    assert_ne!(number(&path), 1);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2 * 4096..3 * 4096].copy_from_slice(&four);
    bytes[3 * 4096..4 * 4096].copy_from_slice(&five);
    std::fs::write(&path, bytes).unwrap();
    let store = open(&scratch.site(), &options).unwrap();
    assert_eq!(store.last(), 3);
    assert_eq!(store.reader().read(b"k0003").unwrap().unwrap(), b"of another history");
    assert_eq!(store.reader().read(b"k0004").unwrap(), None);
}
