//! The files of the engine: how they are read, written, synced and given their space.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[cfg(feature = "faults")]
use crate::faults::{Faults, Layer};

/// What the engine's files lie on.
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

/// What a file is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A segment of the log.
    Log,
    /// The table.
    Table,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Disk {
    file: File,
    /// The same file opened past the page cache, each write durable when it returns.
    direct: Option<File>,
    path: PathBuf,
    #[cfg(feature = "faults")]
    layer: Option<Layer>,
}

impl Disk {
    /// Opens the file, which is made if it does not exist. `direct` asks for writes past the page cache, which not
    /// every file system has.
    pub(crate) fn open(path: &Path, medium: &Medium, role: Role, direct: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
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

    /// Whether writes go past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// From now on writes go through the page cache.
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

    /// Makes the file `length` bytes long. What it grows by is allocated, so that a later write there does not find the
    /// disk full; if the disk is full now, nothing has changed.
    pub(crate) fn set_len(&self, length: u64) -> io::Result<()> {
        let before = self.len()?;
        if length > before {
            #[cfg(feature = "faults")]
            if let Some(layer) = &self.layer {
                layer.allocate(length - before)?;
            }
            if let Err(error) = allocate(&self.file, before, length) {
                self.file.set_len(before)?;
                return Err(error);
            }
        } else {
            self.file.set_len(length)?;
        }
        #[cfg(feature = "faults")]
        if let Some(layer) = &self.layer {
            layer.set_len(length);
        }
        Ok(())
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        #[cfg(feature = "faults")]
        if let Some(layer) = &self.layer {
            return layer.read(&self.file, at, into);
        }
        self.file.read_exact_at(into, at)
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

/// Whether the disk has no room, or none for us: a quota that is used up ends the same way, and is mended the same way.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes the names in a directory durable.
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
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> io::Result<Option<File>> {
    Ok(None)
}

fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), from, to - from) {
        Ok(()) => Ok(()),
        // A file system without the call: the space is taken when it is written.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(to),
        Err(error) => Err(error.into()),
    }
}
