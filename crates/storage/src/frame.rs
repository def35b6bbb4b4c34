//! The layout of batches in a segment of the log.
//!
//! ```text
//! block 0            block 1              block 2              block 3
//! ┌────────────────┬─────────────────────────────────────────┬──────────────────
//! │ header         │ frame frame frame fra│me frame 0 0 0 0 0│ frame 0 0 0 0 ...
//! └────────────────┴─────────────────────────────────────────┴──────────────────
//!                   └──── a group: one write, one sync ─────┘ └── the next one
//! ```
//!
//! A *frame* is one batch: length (4 bytes, its top bit set in the frame that opens a group), checksum (4), seq (8), the
//! batch's bytes, zeros up to a multiple of 8. All integers are little-endian. The checksum covers the segment's mark, the
//! length, the seq and the bytes. The mark is drawn for each use of a file and stands in its header: a frame left over from an
//! earlier use does not pass for one of this, nor does a value of a client that is made of the bytes of frames. (In files of
//! the first format it is the segment's number.)
//!
//! A *group* starts at a block border and is padded with zeros to one. No block is written twice, so a sync that fails or a
//! power cut can spoil only what was never acknowledged. The blocks of a torn group reach the disk in any order; that is
//! why only a frame that *opens* a group is evidence that all groups before it were synced.

use std::ops::Range;

use crc32fast::Hasher;
use slackline_core::machine::Seq;

/// The unit of writing, in bytes; groups start at multiples of it.
pub(crate) const BLOCK: usize = 4096;

/// Bytes of a frame before the batch.
const HEADER: usize = 16;

/// In the length of a frame: it opens a group.
const OPENS: u32 = 1 << 31;

/// No log holds as many batches as this: bytes that name a batch so far ahead are no frame. Some block borders of a segment that
/// is used again lie in the middle of an old batch; its bytes may claim a length of megabytes, and this bound spares their
/// checksum.
const FAR: u64 = 1 << 36;

/// The bytes that a batch of `length` bytes takes up in a group, without the group's padding.
pub(crate) fn frame_bytes(length: usize) -> usize {
    (HEADER + length).next_multiple_of(8)
}

/// One batch found in a segment.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// True for the first frame of a group.
    pub(crate) opens: bool,
    /// The batch's number.
    pub(crate) seq: Seq,
    /// The place of the batch, in the bytes that were read.
    pub(crate) batch: Range<usize>,
    /// The place in the same bytes where the frame after it starts, if there is one.
    pub(crate) next: usize,
}

/// Appends a frame to a group that is being built; the first frame of a group opens it.
pub(crate) fn write_frame(group: &mut Aligned, mark: u64, seq: Seq, bytes: &[u8]) {
    let mut length = u32::try_from(bytes.len()).expect("a batch fits in a segment, which is below 2 GiB");
    debug_assert!(length & OPENS == 0, "a batch fits in a segment, which leaves the top bit of its length free");

    // Recovery takes a frame that opens a group as evidence that all groups before were synced. No other frame may say so:
    // blocks of one group reach the disk in any order.
    if group.as_slice().is_empty() {
        length |= OPENS;
    }

    group.extend(&length.to_le_bytes());
    group.extend(&checksum(mark, length, seq, bytes).to_le_bytes());
    group.extend(&seq.to_le_bytes());
    group.extend(bytes);
    group.pad(8);
}

/// Reads the frame at `at` of a segment's bytes, if a valid one with this mark, not older than `oldest`, is there.
pub(crate) fn read_frame(bytes: &[u8], at: usize, mark: u64, oldest: Seq) -> Option<Frame> {
    let header = bytes.get(at..at + HEADER)?;
    let length = u32_at(header, 0);
    let seq = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));

    // Frames of an earlier use of the file have lower numbers: the number alone rules most of them out, without a checksum.
    if seq < oldest || seq - oldest > FAR {
        return None;
    }

    // The checksum covers the segment's mark, so an old frame does not pass for one of this segment, whatever its number;
    // and it covers length and batch, so a frame of which a block is missing does not pass either.
    let end = at + HEADER + (length & !OPENS) as usize;
    let batch = bytes.get(at + HEADER..end)?;
    if u32_at(header, 4) != checksum(mark, length, seq, batch) {
        return None;
    }
    Some(Frame { opens: length & OPENS != 0, seq, batch: at + HEADER..end, next: end.next_multiple_of(8) })
}

/// Where the frame numbered `seq` would end whose header is at `at`, if there is such a header; its batch may not be among the bytes.
pub(crate) fn end_of_frame(bytes: &[u8], at: usize, seq: Seq) -> Option<usize> {
    let header = bytes.get(at..at + HEADER)?;
    (header[8..16] == seq.to_le_bytes()).then(|| at + HEADER + (u32_at(header, 0) & !OPENS) as usize)
}

/// True if the frame numbered `seq` was written at `at`, and cannot be read: its write was cut short, or the disk has changed
/// it since. One part of the frame may be wrong: the number, or anything else. To be asked only where [`read_frame`] has found
/// no frame with this number.
pub(crate) fn is_spoilt_frame(bytes: &[u8], at: usize, mark: u64, seq: Seq) -> bool {
    // The number is the one that is due here, and frames of an earlier use of the file have lower ones: the rest is wrong.
    let Some(header) = bytes.get(at..at + HEADER) else { return false };
    if header[8..16] == seq.to_le_bytes() {
        return true;
    }

    // The checksum is right for the number that is due: only the number itself has changed.
    let length = u32_at(header, 0);
    let batch = bytes.get(at + HEADER..at + HEADER + (length & !OPENS) as usize);
    batch.is_some_and(|batch| u32_at(header, 4) == checksum(mark, length, seq, batch))
}

/// The place to look for the next frame when the one before ended at `at`: `at` itself, or, if padding starts there, the next
/// block border.
pub(crate) fn skip_padding(bytes: &[u8], at: usize) -> usize {
    // An empty batch has a length of zero, as padding seems to have. So the whole header is compared with zeros, as much of it as
    // lies before the border: a frame's number is never 0.
    let header = &bytes[at.min(bytes.len())..(at + HEADER).min(bytes.len())];
    let border = at.next_multiple_of(BLOCK);
    let padding = header.len().min(border - at);
    if header[..padding].iter().all(|byte| *byte == 0) { border } else { at }
}

fn checksum(mark: u64, length: u32, seq: Seq, bytes: &[u8]) -> u32 {
    let mut prefix = [0; 20];
    prefix[..8].copy_from_slice(&mark.to_le_bytes());
    prefix[8..12].copy_from_slice(&length.to_le_bytes());
    prefix[12..].copy_from_slice(&seq.to_le_bytes());
    let mut hasher = Hasher::new();
    hasher.update(&prefix);
    hasher.update(bytes);
    hasher.finalize()
}

/// The four bytes at `at`, as an integer.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Bytes that start at a multiple of [`BLOCK`] in memory, as writing past the page cache demands.
pub(crate) struct Aligned {
    /// The memory, up to [`BLOCK`] bytes longer than the content may get: it begins at any address.
    bytes: Vec<u8>,
    /// The place in `bytes` where the content starts: the first one whose address is a multiple of [`BLOCK`].
    start: usize,
    /// The length of the content, in bytes. `start + length` is never beyond the end of `bytes`.
    length: usize,
}

impl Aligned {
    /// An empty buffer with room for `capacity` bytes.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let bytes = vec![0; capacity + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        assert!(start < BLOCK, "an address in bytes can always be aligned");
        Self { bytes, start, length: 0 }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }

    pub(crate) fn extend(&mut self, more: &[u8]) {
        let at = self.reserve(more.len());
        self.bytes[at..at + more.len()].copy_from_slice(more);
    }

    /// Appends zeros up to a multiple of `unit` bytes.
    pub(crate) fn pad(&mut self, unit: usize) {
        let missing = self.length.next_multiple_of(unit) - self.length;
        let at = self.reserve(missing);
        self.bytes[at..at + missing].fill(0);
    }

    /// Makes the content longer by `more` bytes and returns the place in `bytes` where they start.
    fn reserve(&mut self, more: usize) -> usize {
        let end = self.start + self.length;
        if end + more > self.bytes.len() {
            // Not `Vec::reserve`: the new memory begins at another address, and `start` would no longer be aligned.
            let mut larger = Self::with_capacity((self.length + more).next_power_of_two());
            larger.bytes[larger.start..larger.start + self.length].copy_from_slice(self.as_slice());
            larger.length = self.length;
            *self = larger;
        }

        self.length += more;
        assert!(self.start + self.length <= self.bytes.len(), "the buffer was made too small for its content");
        self.start + self.length - more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_read_back_and_only_as_part_of_its_segment() {
        let mut group = Aligned::with_capacity(8);
        write_frame(&mut group, 7, 41, b"first");
        write_frame(&mut group, 7, 42, b"");
        write_frame(&mut group, 7, 43, &[9; 5000]);
        group.pad(BLOCK);
        let bytes = group.as_slice();
        assert_eq!(bytes.as_ptr().align_offset(BLOCK), 0);
        assert_eq!(bytes.len(), 2 * BLOCK);
        let first = read_frame(bytes, 0, 7, 41).expect("whole");
        assert_eq!((first.opens, first.seq, &bytes[first.batch]), (true, 41, &b"first"[..]));
        let second = read_frame(bytes, skip_padding(bytes, first.next), 7, 0).expect("whole");
        assert_eq!((second.opens, second.seq, second.batch.len()), (false, 42, 0));
        let third = read_frame(bytes, skip_padding(bytes, second.next), 7, 0).expect("whole");
        assert_eq!((third.seq, third.batch.len()), (43, 5000));
        assert_eq!(skip_padding(bytes, third.next), 2 * BLOCK);
        assert!(read_frame(bytes, 0, 8, 0).is_none(), "of another segment");
        assert!(read_frame(bytes, 0, 7, 42).is_none(), "too old");
        let mut far = Aligned::with_capacity(BLOCK);
        write_frame(&mut far, 7, 1 << 40, b"first");
        assert!(read_frame(far.as_slice(), 0, 7, 1).is_none(), "too far ahead");
        for byte in (0..first.next - 3).chain(16..21) {
            let mut spoilt = bytes.to_vec();
            spoilt[byte] ^= 4;
            assert!(read_frame(&spoilt, 0, 7, 0).is_none(), "byte {byte}");
        }
    }
}
