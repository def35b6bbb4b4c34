//! The files of the engine: they are read, written, synced and given their space here.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[cfg(feature = "faults")]
use crate::faults::{Faults, Layer};
use crate::role::Role;

/// The medium that the engine's files lie on.
#[derive(Clone, Debug, Default)]
pub enum Medium {
    /// The file system.
    #[default]
    Real,
    /// The file system behind a layer that keeps every write in the process's memory until the sync, so that a killed
    /// process loses what it had not synced, as a power cut would; and that can be told to fail.
    #[cfg(feature = "faults")]
    Lossy(Faults),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Disk {
    file: File,
    /// The same file opened past the page cache, each write durable when it returns; `None` if the file system cannot do that,
    /// or was not asked to.
    direct: Option<File>,
    /// The file's present name.
    path: PathBuf,
    /// The layer that keeps writes back and fails, on a [`Medium::Lossy`]. Then `direct` is `None`.
    #[cfg(feature = "faults")]
    layer: Option<Layer>,
}

impl Disk {
    /// Opens the file, which is made if it does not exist. `direct` asks for writes past the page cache, where the file system
    /// can do that.
    pub(crate) fn open(path: &Path, medium: &Medium, role: Role, direct: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Self::of(file, path, medium, role, direct)
    }

    /// The same, of a file that must be there: one that is gone is not made again.
    pub(crate) fn open_there(path: &Path, medium: &Medium, role: Role, direct: bool) -> io::Result<Self> {
        Self::of(OpenOptions::new().read(true).write(true).open(path)?, path, medium, role, direct)
    }

    fn of(file: File, path: &Path, medium: &Medium, role: Role, direct: bool) -> io::Result<Self> {
        let path = path.to_path_buf();
        match medium {
            Medium::Real => Ok(Self {
                direct: if direct && role == Role::Log { open_direct(&path)? } else { None },
                file,
                path,
                #[cfg(feature = "faults")]
                layer: None,
            }),
            #[cfg(feature = "faults")]
            Medium::Lossy(faults) => {
                let layer = Layer::new(faults.clone(), role, file.metadata()?.len());
                Ok(Self { direct: None, file, path, layer: Some(layer) })
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that the file has been renamed.
    pub(crate) fn moved_to(&mut self, path: PathBuf) {
        self.path = path;
    }

    /// True if writes go past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Lets every later write go through the page cache.
    pub(crate) fn give_up_direct(&mut self) {
        self.direct = None;
    }

    pub(crate) fn len(&self) -> io::Result<u64> {
        #[cfg(feature = "faults")]
        if let Some(layer) = &self.layer {
            return Ok(layer.len());
        }
        Ok(self.file.metadata()?.len())
    }

    /// Makes the file `length` bytes long. The bytes that it grows by are allocated, so that a later write there does not find
    /// the disk full; if the disk is full now, nothing has changed.
    pub(crate) fn set_len(&self, length: u64) -> io::Result<()> {
        let before = self.len()?;
        if length > before
            && let Err(error) = self.allocate(before, length)
        {
            // It may have taken a part of the space, and made the file longer: both are given back.
            self.file.set_len(before)?;
            return Err(error);
        }
        self.resize(length)
    }

    /// Takes the space of the bytes between two offsets, so that a later write there does not find the disk full. What has space keeps
    /// it, with its content.
    pub(crate) fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        #[cfg(feature = "faults")]
        if let Some(layer) = &self.layer {
            layer.allocate(to - from)?;
        }
        match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), from, to - from) {
            // A file system without the call: the space is taken when it is written.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Makes the file `length` bytes long. The bytes that it grows by are a hole, which takes no space.
    pub(crate) fn resize(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        #[cfg(feature = "faults")]
        if let Some(layer) = &self.layer {
            layer.set_len(length);
        }
        Ok(())
    }

    /// Where the first bytes without data at or behind an offset are; the end of the file if there are none, and the offset where the
    /// file system cannot tell.
    #[cfg(target_os = "linux")]
    pub(crate) fn next_hole(&self, from: u64) -> io::Result<u64> {
        use rustix::io::Errno;
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(from)) {
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(from),
            result => Ok(result?),
        }
    }

    /// The same, where it cannot be asked: it is taken for the offset itself.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn next_hole(&self, from: u64) -> io::Result<u64> {
        Ok(from)
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        #[cfg(feature = "faults")]
        if let Some(layer) = &self.layer {
            return layer.read(&self.file, at, into);
        }
        self.file.read_exact_at(into, at)
    }

    /// Turns off reading ahead into the page cache. The bytes behind those that are read may be written past the cache, which
    /// would then hold them as they were before.
    pub(crate) fn read_no_further(&self) -> io::Result<()> {
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::Random)?;
        Ok(())
    }

    /// Writes; durable only after [`Disk::sync`].
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(feature = "faults")]
        if let Some(layer) = &self.layer {
            return layer.write(&self.file, at, bytes);
        }
        self.file.write_all_at(bytes, at)
    }

    /// Makes every write before durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        #[cfg(feature = "faults")]
        if let Some(layer) = &self.layer {
            return layer.sync(&self.file);
        }
        self.file.sync_data()
    }

    /// Writes and syncs in one step. `bytes` and `at` are aligned to [`crate::frame::BLOCK`].
    pub(crate) fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        match &self.direct {
            Some(direct) => direct.write_all_at(bytes, at),
            None => {
                self.write(at, bytes)?;
                self.sync()
            }
        }
    }
}

/// True if the disk has no room, or none for us: a disk quota that is used up is mended the same way, by freeing space.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes the names of the files in a directory durable.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes a file; that there is none is no error.
pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> io::Result<Option<File>> {
    use rustix::fs::OFlags;
    let flags = (OFlags::DIRECT | OFlags::DSYNC).bits() as i32;
    match OpenOptions::new().write(true).custom_flags(flags).open(path) {
        Ok(file) => Ok(Some(file)),
        // The kernel's word for a file system that cannot do it: writes go through the page cache there, each with a sync.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> io::Result<Option<File>> {
    Ok(None)
}
