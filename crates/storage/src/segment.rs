//! One file of the log: how it is made ahead of its use, filled, read back, and used again.
//!
//! A segment is written full of zeros before it is needed, so that a group written into it changes no metadata: the
//! disk cannot be full for it, and its sync is one write to the device. When all of it is in the table, the file is
//! given a new number and used again; its old frames do not pass for new ones, since their checksum covers the number.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use slackline_core::machine::{Batch, Seq};

use crate::error::OpenError;
use crate::frame::{Aligned, BLOCK, is_spoilt_frame, read_frame, skip_padding, u32_at};
use crate::medium::{Disk, Medium, Role, remove_if_there, sync_directory};

const MAGIC: &[u8; 8] = b"SLKSEGM\n";

/// The format of segments that this version writes.
const FORMAT: u32 = 1;
/// Bytes of the header: magic (8), format (4), number (8), length of the file (8), checksum (4).
const HEADER: usize = 32;

/// A file that is being made; worth nothing until it has its name.
const HALF_MADE: &str = "new.tmp";

/// A file that is being given a new number.
const CHANGING: &str = "recycle.tmp";

/// Zeros are written in pieces of this many bytes, so that a group never waits long behind them.
const PIECE: usize = 1 << 20;

/// Where segments lie and what they lie on.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
    pub(crate) segment_bytes: u64,
    pub(crate) direct: bool,
    pub(crate) medium: Medium,
}

impl Place {
    /// The name that a segment has after an attempt to recycle `old` failed.
    pub(crate) fn surviving_name(&self, old: PathBuf) -> PathBuf {
        if old.exists() { old } else { self.directory.join(CHANGING) }
    }
}

/// The name of a segment's file.
pub(crate) fn file_name(number: u64) -> String {
    format!("{number:08}.log")
}

/// A segment that is ready to be written, or being written.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    disk: Disk,
    end: u64,
    length: u64,
}

impl Segment {
    /// Makes a new segment, all of its space taken and written.
    pub(crate) fn create(place: &Place, number: u64) -> io::Result<Self> {
        let path = place.directory.join(HALF_MADE);
        let made = Self::fill(place, &path).and_then(|disk| Self::name(place, disk, number));
        if made.is_err() {
            // What a full disk gave must be given back: others need it more.
            remove_if_there(&path)?;
        }
        made
    }

    /// Makes a new segment of a file whose batches are all in the table.
    pub(crate) fn recycle(place: &Place, old: &Path, number: u64) -> io::Result<Self> {
        let path = place.directory.join(CHANGING);
        if old != path {
            fs::rename(old, &path)?;
        }
        let disk = Disk::open(&path, &place.medium, Role::Log, place.direct)?;
        Self::name(place, disk, number)
    }

    /// Bytes that can still be written.
    pub(crate) fn left(&self) -> u64 {
        self.length - self.end
    }

    /// Where the next group goes.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn path(&self) -> &Path {
        self.disk.path()
    }

    /// Whether groups are written past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.disk.is_direct()
    }

    /// Writes a group, padded to whole blocks; it is durable when this returns.
    pub(crate) fn append(&mut self, group: &[u8]) -> io::Result<()> {
        assert!(group.len().is_multiple_of(BLOCK) && group.len() as u64 <= self.left(), "a group was not planned");
        self.disk.write_durably(self.end, group)?;
        self.end += group.len() as u64;
        Ok(())
    }

    fn fill(place: &Place, path: &Path) -> io::Result<Disk> {
        remove_if_there(path)?;
        let mut disk = Disk::open(path, &place.medium, Role::Log, place.direct)?;
        disk.set_len(place.segment_bytes)?;
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
        let mut header = Aligned::with_capacity(BLOCK);
        let length = disk.len()?;
        header.extend(&header_bytes(number, length));
        header.pad(BLOCK);
        if let Err(error) = disk.write_durably(0, header.as_slice()) {
            if error.kind() != io::ErrorKind::InvalidInput || !disk.is_direct() {
                return Err(error);
            }
            disk.give_up_direct();
            disk.write_durably(0, header.as_slice())?;
        }
        let path = place.directory.join(file_name(number));
        fs::rename(disk.path(), &path)?;
        sync_directory(&place.directory)?;
        disk.moved_to(path);
        Ok(Self { number, disk, end: BLOCK as u64, length })
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
    /// Looks, and removes what was being made when the process ended.
    pub(crate) fn read(directory: &Path) -> io::Result<Self> {
        let mut listing = Self::default();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
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

/// What a segment was found to hold.
#[derive(Debug)]
pub(crate) struct Contents {
    /// The last batch of the unbroken run, or the one before its first.
    pub(crate) last: Seq,
    /// The writes of the run, as one batch.
    pub(crate) writes: Batch,
    /// Where the run ends, in bytes.
    pub(crate) stop: u64,
    /// Where a later group begins that is whole: evidence that what lies between was once durable.
    pub(crate) later: Option<u64>,
    /// Whether there is a batch at `stop` that cannot be read.
    pub(crate) is_torn: bool,
}

/// Reads the run of batches after `last` in the first `length` bytes of a segment (all of it if `None`).
pub(crate) fn read_segment(
    place: &Place,
    path: &Path,
    number: u64,
    last: Seq,
    length: Option<u64>,
) -> Result<Contents, OpenError> {
    let io = |source| OpenError::Io { action: "read", path: path.to_path_buf(), source };
    let disk = Disk::open(path, &place.medium, Role::Log, false).map_err(io)?;
    let mut bytes = vec![0; length.unwrap_or(disk.len().map_err(io)?) as usize];
    disk.read(0, &mut bytes).map_err(io)?;
    check_header(&bytes, number, disk.len().map_err(io)?, path)?;

    // The batches are moved together at the front of the buffer as they are found: a batch is a run of writes, so
    // batches side by side are one.
    let (mut at, mut filled, mut last) = (BLOCK, 0, last);
    loop {
        at = skip_padding(&bytes, at);
        let Some(frame) = read_frame(&bytes, at, number, last + 1) else { break };
        // A gap in the numbers, or a group in the middle of a block: not what was written here.
        if frame.seq != last + 1 || (frame.opens && !at.is_multiple_of(BLOCK)) {
            break;
        }
        let batch = frame.batch;
        (last, at) = (frame.seq, frame.next);
        bytes.copy_within(batch.clone(), filled);
        filled += batch.len();
    }
    let later = later_group(&bytes, at, number, last + 1);
    let is_torn = is_spoilt_frame(&bytes, at, number, last + 1);
    bytes.truncate(filled);
    let writes = Batch::from_bytes(bytes).map_err(|_| OpenError::Damaged {
        path: path.to_path_buf(),
        at: at as u64,
        what: "a batch before this place has a right checksum but is not made of writes",
    })?;
    Ok(Contents { last, writes, stop: at as u64, later, is_torn })
}

/// The first block border from `at` on where a group of this segment begins that is not older than `oldest`.
fn later_group(bytes: &[u8], at: usize, number: u64, oldest: Seq) -> Option<u64> {
    (at.next_multiple_of(BLOCK)..bytes.len())
        .step_by(BLOCK)
        .find(|border| read_frame(bytes, *border, number, oldest).is_some_and(|frame| frame.opens))
        .map(|border| border as u64)
}

fn header_bytes(number: u64, length: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..20].copy_from_slice(&number.to_le_bytes());
    header[20..28].copy_from_slice(&length.to_le_bytes());
    let checksum = crc32fast::hash(&header[..28]);
    header[28..].copy_from_slice(&checksum.to_le_bytes());
    header
}

fn check_header(bytes: &[u8], number: u64, length: u64, path: &Path) -> Result<(), OpenError> {
    let damaged = |what| OpenError::Damaged { path: path.to_path_buf(), at: 0, what };
    let header = bytes.get(..HEADER).ok_or(damaged("the file is shorter than a header"))?;
    if header[..8] != *MAGIC || u32_at(header, 28) != crc32fast::hash(&header[..28]) {
        return Err(damaged("the header is not one of a segment"));
    }
    let format = u32_at(header, 8);
    if format > FORMAT {
        return Err(OpenError::NewerFormat { path: path.to_path_buf(), found: format, known: FORMAT });
    }
    if header[..20] != header_bytes(number, length)[..20] {
        return Err(damaged("the header has another number than the file's name"));
    }
    // A file that was cut off would pass for one that was not written so far.
    if header != header_bytes(number, length) {
        return Err(damaged("the file has another length than it was made with"));
    }
    Ok(())
}
