//! One file of the log: it is made ahead of its use, filled, read back, and used again.
//!
//! A segment is written full of zeros before it is needed, so that a group written into it changes no metadata: the
//! disk cannot be full for it, and its sync is one write to the device. When all of it is in the table, the file is
//! given a new number and used again; its old frames do not pass for new ones, since their checksum covers a mark that is drawn anew.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use slackline_core::machine::{Batch, Seq};

use crate::error::OpenError;
use crate::frame::{Aligned, BLOCK, end_of_frame, is_spoilt_frame, read_frame, skip_padding, u32_at};
use crate::medium::{Disk, Medium, remove_if_there};
use crate::role::Role;

const MAGIC: &[u8; 8] = b"SLKSEGM\n";

/// The format of segments that this version writes.
const FORMAT: u32 = 2;
/// Bytes of the header: magic (8), format (4), number (8), length of the file (8), checksum of these (4), mark (8), checksum of the mark (4).
/// In any format the first checksum is at its place, so that an earlier version finds a newer format, and no damage.
const HEADER: usize = 44;
/// Bytes of the header of the first format, which had no mark.
const FIRST_HEADER: usize = 32;

/// The name of a file that is being made. It holds no batch, and is removed at the next opening.
const HALF_MADE: &str = "new.tmp";

/// The name of a file that is being given a new number.
const CHANGING: &str = "recycle.tmp";

/// Zeros are written in pieces of this many bytes, so that a group never waits long behind them.
const PIECE: usize = 1 << 20;

/// The place of the segments.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The log's directory.
    pub(crate) directory: PathBuf,
    /// The directory that the path named when it was opened: device and inode.
    named: (u64, u64),
    /// The length of each segment, in bytes: a multiple of [`BLOCK`].
    pub(crate) segment_bytes: u64,
    /// True if groups are to be written past the page cache where the file system can do that.
    pub(crate) direct: bool,
    /// The medium that the files lie on.
    pub(crate) medium: Medium,
}

impl Place {
    /// The segments of a directory, which is there.
    pub(crate) fn open(directory: PathBuf, segment_bytes: u64, direct: bool, medium: Medium) -> io::Result<Self> {
        let named = name_of(&directory)?;
        Ok(Self { directory, named, segment_bytes, direct, medium })
    }

    /// Checks that the path still names the directory that was opened. The lock moves with a directory that is moved away, and
    /// another site may have its own at the path by now: its files must not be read, renamed or removed.
    pub(crate) fn check_there(&self) -> io::Result<()> {
        match name_of(&self.directory) {
            Ok(found) if found == self.named => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let what = format!(
            "{} no longer is the directory that this site opened: it was moved or replaced while the site ran",
            self.directory.display()
        );
        Err(io::Error::other(what))
    }

    /// The name that a segment has after an attempt to recycle `old` as `number` failed.
    pub(crate) fn surviving_name(&self, old: PathBuf, number: u64) -> PathBuf {
        let names = [self.directory.join(CHANGING), self.directory.join(file_name(number))];
        if old.exists() { old } else { names.into_iter().find(|name| name.exists()).unwrap_or(old) }
    }
}

/// The device and the inode of what a path names.
#[cfg(unix)]
fn name_of(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The operating system keeps a directory with an open file in it at its path.
#[cfg(not(unix))]
fn name_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|_| (0, 0))
}

/// The name of a segment's file.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:08}.log")
}

/// A segment that is ready to be written, or being written.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Its number, which its file's name and its header hold. No two segments ever have the same.
    pub(crate) number: u64,
    /// Its mark, which its header and the checksum of each frame hold. Nobody can know it who does not read the file.
    mark: u64,
    disk: Disk,
    /// The end of the last group, in bytes from the start of the file: a block border, never beyond `length`.
    end: u64,
    /// The length of the file, in bytes.
    length: u64,
}

impl Segment {
    /// Makes a new segment, all of its space taken and written.
    pub(crate) fn create(place: &Place, number: u64) -> io::Result<Self> {
        place.check_there()?;
        let path = place.directory.join(HALF_MADE);
        let made = Self::fill(place, &path).and_then(|disk| Self::name(place, disk, number));
        if made.is_err() {
            // The directory may have been moved away meanwhile: a file of this name may be another site's.
            place.check_there()?;

            // On a full disk the space that this attempt got is given back: the table may need it to absorb a segment, which can
            // then be used again.
            remove_if_there(&path)?;
        }
        made
    }

    /// Makes a new segment of a file whose batches are all in the table.
    pub(crate) fn recycle(place: &Place, old: &Path, number: u64) -> io::Result<Self> {
        place.check_there()?;

        // The file loses its name before its header changes: after a crash, a file named by a number always has the header of
        // that number, and anything else would be found as damage.
        let path = place.directory.join(CHANGING);
        if old != path {
            fs::rename(old, &path)?;
        }
        let disk = Disk::open_there(&path, &place.medium, Role::Log, place.direct)?;

        // The header will say that the file is whole.
        let length = disk.len()?;
        if length != place.segment_bytes {
            let what = format!("{} has {length} bytes and not {}", path.display(), place.segment_bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Self::name(place, disk, number)
    }

    /// The mark that the checksums of its frames cover.
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    /// Bytes that can still be written.
    pub(crate) fn left(&self) -> u64 {
        self.length - self.end
    }

    /// The place of the next group, in bytes from the start of the file.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn path(&self) -> &Path {
        self.disk.path()
    }

    /// True if groups are written past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.disk.is_direct()
    }

    /// Writes a group, padded to whole blocks; it is durable when this returns.
    pub(crate) fn append(&mut self, group: &[u8]) -> io::Result<()> {
        assert!(group.len().is_multiple_of(BLOCK) && group.len() as u64 <= self.left(), "a group was not planned");
        debug_assert!(self.end.is_multiple_of(BLOCK as u64), "the group before did not end at a block border");

        // `end` moves on only after a sync that succeeded, and then never back: no block that was synced is written again.
        self.disk.write_durably(self.end, group)?;
        self.end += group.len() as u64;
        Ok(())
    }

    /// Takes the segment's space and writes it full of zeros.
    fn fill(place: &Place, path: &Path) -> io::Result<Disk> {
        remove_if_there(path)?;
        let mut disk = Disk::open(path, &place.medium, Role::Log, place.direct)?;
        disk.set_len(place.segment_bytes)?;

        // Space that is only allocated is marked as unwritten, and the first write into it changes that mark: metadata that a
        // group's sync would have to write too.
        let mut zeros = Aligned::with_capacity(PIECE);
        zeros.extend(&vec![0; PIECE.min(place.segment_bytes as usize)]);
        let mut at = 0;
        while at < place.segment_bytes {
            let piece = &zeros.as_slice()[..(place.segment_bytes - at).min(PIECE as u64) as usize];
            match disk.write_durably(at, piece) {
                // Some file systems let a file be opened past the page cache, then refuse to write it so.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput && disk.is_direct() => disk.give_up_direct(),
                result => {
                    result?;
                    at += piece.len() as u64;
                }
            }
        }
        Ok(disk)
    }

    /// Writes the header, then gives the file its name; both are durable before anything is written into it.
    fn name(place: &Place, mut disk: Disk, number: u64) -> io::Result<Self> {
        // The header first: a file with a segment's name and another header is taken for a damaged one.
        let mut header = Aligned::with_capacity(BLOCK);
        let length = disk.len()?;
        let mark = RandomState::new().hash_one(number);
        header.extend(&header_bytes(number, length, mark));
        header.pad(BLOCK);
        if let Err(error) = disk.write_durably(0, header.as_slice()) {
            if error.kind() != io::ErrorKind::InvalidInput || !disk.is_direct() {
                return Err(error);
            }
            disk.give_up_direct();
            disk.write_durably(0, header.as_slice())?;
        }

        // The directory is opened first: where no more files can be opened, the file still has its name of before.
        let directory = fs::File::open(&place.directory)?;
        place.check_there()?;
        let path = place.directory.join(file_name(number));
        fs::rename(disk.path(), &path)?;

        // Without this sync a power cut could take the name back, and with it every batch that was synced into the file since.
        directory.sync_all()?;
        disk.moved_to(path);
        assert!(length > BLOCK as u64, "a segment has room for batches behind its header");
        Ok(Self { number, mark, disk, end: BLOCK as u64, length })
    }
}

/// The files in the log's directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Segments by number.
    pub(crate) segments: BTreeMap<u64, PathBuf>,
    /// A file that was being given a new number.
    pub(crate) changing: Option<PathBuf>,
}

impl Listing {
    /// Lists the files, and removes the one that was being made when the process ended.
    pub(crate) fn read(directory: &Path) -> io::Result<Self> {
        let mut listing = Self::default();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();

            // A file with neither name is not ours, and stays.
            if let Some(number) = name.strip_suffix(".log").and_then(|number| number.parse().ok()) {
                listing.segments.insert(number, path);
            } else if name == CHANGING {
                listing.changing = Some(path);
            } else if name == HALF_MADE {
                fs::remove_file(&path)?;
            }
        }
        Ok(listing)
    }
}

/// A segment is read in pieces of about this many bytes, so that memory does not depend on its size.
const READ: u64 = 1 << 20;

/// The content of a segment behind its unbroken run of batches.
pub(crate) struct Rest {
    /// The place of a later group that is whole, in bytes: evidence that the batches between were once durable.
    pub(crate) later: Option<u64>,
    /// True if a batch that cannot be read begins right at the end of the run.
    pub(crate) is_torn: bool,
}

/// The unbroken run of a segment's batches, from a place on, as it is read.
pub(crate) struct Run {
    disk: Disk,
    path: PathBuf,
    /// The mark of the segment.
    mark: u64,
    /// The place where the batch after `last` is looked for, in bytes from the start of the file; never before the first block's
    /// end, which is the header's.
    at: u64,
    /// The last batch that was read; at first, the last one before the run.
    last: Seq,
    /// The end of what is read, in bytes: the file's, or that of what is known to be written.
    end: u64,
}

impl Run {
    /// A run of the batches after `last`, which begin at `at`, in the first `end` bytes of a segment (all of it if `None`).
    pub(crate) fn open(
        place: &Place,
        path: &Path,
        number: u64,
        at: u64,
        last: Seq,
        end: Option<u64>,
    ) -> Result<Self, OpenError> {
        place.check_there().map_err(io(path))?;
        let disk = Disk::open_there(path, &place.medium, Role::Log, false).map_err(io(path))?;
        let length = disk.len().map_err(io(path))?;

        // Behind `end` the writer may be writing past the page cache right now. Blocks that were read ahead into the cache would
        // stay there as they were before, and the next run would find those instead of the new groups.
        let end = match end {
            Some(end) => {
                disk.read_no_further().map_err(io(path))?;
                end.min(length)
            }
            None => length,
        };
        let mut header = vec![0; length.min(HEADER as u64) as usize];
        disk.read(0, &mut header).map_err(io(path))?;
        let mark = check_header(&header, number, length, path)?;
        Ok(Self { disk, path: path.to_path_buf(), mark, at: at.max(BLOCK as u64), last, end })
    }

    /// The last batch that was read, or the one before the run.
    pub(crate) fn last(&self) -> Seq {
        self.last
    }

    /// The place where the batch after it is looked for, in bytes.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The writes of the next batches, as one batch; none at the end of the run.
    pub(crate) fn next(&mut self) -> Result<Option<Batch>, OpenError> {
        let mut length = READ;
        loop {
            // A batch that ends behind the piece looks like one that is not there. So the piece is doubled until a batch is found
            // in it or it reaches the end; only then is the run over.
            let (start, mut bytes) = self.read(length)?;
            let first = self.last;
            let filled = self.gather(start, &mut bytes);
            if self.last > first {
                bytes.truncate(filled);
                return Batch::from_bytes(bytes).map(Some).map_err(|_| OpenError::Damaged {
                    path: self.path.clone(),
                    at: self.at,
                    what: "a batch before this place has a right checksum but is not made of writes",
                });
            }

            if start + bytes.len() as u64 >= self.end {
                self.at = start + skip_padding(&bytes, (self.at - start) as usize) as u64;
                return Ok(None);
            }

            // The header of the next batch tells how long it is, if it is one.
            let at = skip_padding(&bytes, (self.at - start) as usize);
            let end = end_of_frame(&bytes, at, self.last + 1).map_or(0, |end| end as u64);
            length = if end > length { end.next_multiple_of(BLOCK as u64) } else { length * 2 };
        }
    }

    /// Looks behind the end of the run.
    pub(crate) fn rest(&self) -> Result<Rest, OpenError> {
        let (start, bytes) = self.read(self.end)?;
        let (at, next) = ((self.at - start) as usize, self.last + 1);
        let later = later_group(&bytes, at, self.mark, next).map(|later| start + later);
        Ok(Rest { later, is_torn: is_spoilt_frame(&bytes, at, self.mark, next) })
    }

    /// Reads about `length` bytes from the block on in which the next batch is looked for. Returns the place of that block too.
    fn read(&self, length: u64) -> Result<(u64, Vec<u8>), OpenError> {
        let start = (self.at - self.at % BLOCK as u64).min(self.end);
        let mut bytes = vec![0; length.min(self.end - start) as usize];
        self.disk.read(start, &mut bytes).map_err(io(&self.path))?;
        Ok((start, bytes))
    }

    /// Moves the batches that are found to the front of `bytes`, one behind the other, and returns the bytes that they take up. A
    /// batch is a run of writes, so batches that are put side by side are one batch.
    fn gather(&mut self, start: u64, bytes: &mut [u8]) -> usize {
        let mut filled = 0;
        loop {
            let at = skip_padding(bytes, (self.at - start) as usize);
            let Some(frame) = read_frame(bytes, at, self.mark, self.last + 1) else { return filled };

            // A gap in the numbers, or a group in the middle of a block, was never written here. To skip either would hand out
            // batches that are not a prefix of those appended.
            if frame.seq != self.last + 1 || (frame.opens && !at.is_multiple_of(BLOCK)) {
                return filled;
            }

            (self.last, self.at) = (frame.seq, start + frame.next as u64);
            filled += frame.batch.len();
            debug_assert!(
                filled <= frame.batch.end,
                "batches are moved to the front only, never over one not read yet"
            );
            bytes.copy_within(frame.batch.clone(), filled - frame.batch.len());
        }
    }
}

fn io(path: &Path) -> impl Fn(io::Error) -> OpenError + '_ {
    move |source| OpenError::Io { action: "read", path: path.to_path_buf(), source }
}

/// The first block border from `at` on where a group of this segment begins that is not older than `oldest`.
fn later_group(bytes: &[u8], at: usize, mark: u64, oldest: Seq) -> Option<u64> {
    (at.next_multiple_of(BLOCK)..bytes.len())
        .step_by(BLOCK)
        .find(|border| read_frame(bytes, *border, mark, oldest).is_some_and(|frame| frame.opens))
        .map(|border| border as u64)
}

fn header_bytes(number: u64, length: u64, mark: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..20].copy_from_slice(&number.to_le_bytes());
    header[20..28].copy_from_slice(&length.to_le_bytes());
    let checksum = crc32fast::hash(&header[..28]);
    header[28..32].copy_from_slice(&checksum.to_le_bytes());
    header[32..40].copy_from_slice(&mark.to_le_bytes());
    let checksum = crc32fast::hash(&mark.to_le_bytes());
    header[40..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// The mark in a header, if it is that of the segment of this number and length.
fn check_header(bytes: &[u8], number: u64, length: u64, path: &Path) -> Result<u64, OpenError> {
    let damaged = |what| OpenError::Damaged { path: path.to_path_buf(), at: 0, what };
    let first = bytes.get(..FIRST_HEADER).ok_or(damaged("the file is shorter than a header"))?;
    if first[..8] != *MAGIC || u32_at(first, 28) != crc32fast::hash(&first[..28]) {
        return Err(damaged("the header is not one of a segment"));
    }

    // Before anything else is compared: a later format may lay out the rest in another way.
    let format = u32_at(first, 8);
    if format > FORMAT {
        return Err(OpenError::NewerFormat { path: path.to_path_buf(), found: format, known: FORMAT });
    }

    if first[12..20] != number.to_le_bytes() {
        return Err(damaged("the header has another number than the file's name"));
    }
    // Batches that were cut off with the end of the file would pass for ones that were never written.
    if first[20..28] != length.to_le_bytes() {
        return Err(damaged("the file has another length than it was made with"));
    }
    if format == 1 {
        return Ok(number);
    }
    let rest = bytes.get(FIRST_HEADER..HEADER).filter(|rest| u32_at(rest, 8) == crc32fast::hash(&rest[..8]));
    let rest = rest.ok_or(damaged("the mark in the header has a wrong checksum"))?;
    Ok(u64::from_le_bytes(rest[..8].try_into().expect("eight bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first format was just this: its program finds a newer format in the header of this one, and no damage.
    #[test]
    fn program_of_the_first_format_knows_a_header_of_this_one_for_a_newer_format() {
        let header = header_bytes(7, 1 << 16, 0x0123_4567_89ab_cdef);
        assert_eq!(u32_at(&header, 28), crc32fast::hash(&header[..28]));
        assert!(header[..8] == *MAGIC && u32_at(&header, 8) > 1);
        assert_eq!(check_header(&header, 7, 1 << 16, Path::new("x")).ok(), Some(0x0123_4567_89ab_cdef));
        let mut newer = header;
        newer[8] = 3;
        let checksum = crc32fast::hash(&newer[..28]);
        newer[28..32].copy_from_slice(&checksum.to_le_bytes());
        let error = check_header(&newer, 7, 1 << 16, Path::new("x")).expect_err("newer");
        assert!(matches!(error, OpenError::NewerFormat { found: 3, known: 2, .. }));
        for byte in 0..HEADER {
            let mut spoilt = header;
            spoilt[byte] ^= 1;
            let error = check_header(&spoilt, 7, 1 << 16, Path::new("x")).expect_err("spoilt");
            assert!(matches!(error, OpenError::Damaged { at: 0, .. }), "byte {byte}");
        }
    }

    #[test]
    fn segment_is_recycled_after_any_failure_and_never_made_of_nothing() -> io::Result<()> {
        let directory = std::env::temp_dir().join(format!("slackline-segment-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        let place = Place::open(directory, 1 << 16, false, Medium::default())?;
        let first = Segment::create(&place, 1)?.path().to_path_buf();

        // A file that is gone is not made again: it would pass for a segment without any room.
        let gone = place.directory.join(file_name(7));
        assert!(Segment::recycle(&place, &gone, 2).is_err() && !place.directory.join(file_name(2)).exists());
        fs::write(&gone, [1; 100])?;
        let error = Segment::recycle(&place, &gone, 2).expect_err("it is too short");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        fs::remove_file(place.directory.join(CHANGING))?;

        // Each attempt may end before or after either change of the name.
        let changing = place.directory.join(CHANGING);
        let names = [first.clone(), changing, place.directory.join(file_name(2))];
        let mut at = first.clone();
        for name in names {
            fs::rename(&at, &name)?;
            let old = place.surviving_name(first.clone(), 2);
            assert_eq!(old, name);
            let segment = Segment::recycle(&place, &old, 2)?;
            assert_eq!(segment.left(), (1 << 16) - BLOCK as u64);
            at = segment.path().to_path_buf();
        }
        fs::remove_dir_all(&place.directory)
    }
}
