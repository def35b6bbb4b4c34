//! The table: all rows of the batches absorbed so far, in a `redb` file.
//!
//! One write transaction takes in a part of the log, together with its marks: the last batch that the table holds, and the place
//! where the next one is looked for. A value is kept with a checksum of its key and itself. Reads go through a snapshot that is
//! renewed after each transaction, so a read never waits for a transaction, even for one that waits for disk space.

use std::fs;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crc32fast::Hasher;
use redb::{
    Builder, Database, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    WriteTransaction,
};
use slackline_core::machine::{ReadError, Reader, Row, Seq};

use crate::error::{ENOUGH, OpenError, message_of};
use crate::frame::BLOCK;
use crate::medium::{Disk, Medium, is_full, remove_if_there, sync_directory};
use crate::patience::{Patience, Pause};
use crate::role::Role;
use crate::space::Space;

const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");
/// One row, under the empty key: the marks, with a checksum like any value.
const MARKS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("marks");

/// The bytes of a value's checksum, which stand after it.
const CHECKSUM: usize = 4;

/// The place in the log up to which the table holds all. Each number only rises, `at` within a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Marks {
    /// The last batch that is in the table. All batches before it are there too.
    pub(crate) absorbed: Seq,
    /// The segment in which the next batch is looked for. Those before it may be used again.
    pub(crate) segment: u64,
    /// The place in it, in bytes.
    pub(crate) at: u64,
}

/// The open table.
pub(crate) struct Table {
    path: PathBuf,
    /// The rows after the last transaction that ended. Reads hold the lock; a transaction takes it only to put the next one here.
    snapshot: RwLock<Snapshot>,
    database: Database,
    /// Shared with the file below `database`, which waits by it.
    patience: Arc<Patience>,
}

type Snapshot = ReadOnlyTable<&'static [u8], &'static [u8]>;

impl Table {
    /// Opens the table, which is made if there is none. Until [`Patience::set_patient`], a full disk is an error.
    pub(crate) fn open(path: &Path, medium: &Medium, cache_bytes: usize) -> Result<(Self, Marks), OpenError> {
        let io = |source| OpenError::io("open", path, source);
        let wrong = |error: redb::Error| table_error(path, error);

        // A process may end in the middle of making the file. It gets its name only when it is a table with its marks, so the
        // next opening never takes a half-made one for a damaged table.
        let half_made = path.with_extension("tmp");
        let is_new = !path.exists();
        if is_new {
            remove_if_there(&half_made).map_err(io)?;
        }
        let disk = Disk::open(if is_new { &half_made } else { path }, medium, Role::Table, false).map_err(io)?;
        let patience = Arc::new(Patience::default());
        let space = Mutex::new(Space::of(&disk).map_err(io)?);
        let backend = Backend { disk, space, path: path.to_path_buf(), patience: Arc::clone(&patience) };
        let opened = sound(|| {
            let database = Builder::new().set_cache_size(cache_bytes).create_with_backend(backend)?;
            let marks = read_marks(&database)?;
            Ok((database, marks))
        });
        let (database, marks) = opened.map_err(wrong)?;
        if is_new {
            fs::rename(&half_made, path).map_err(io)?;
            sync_directory(path.parent().unwrap_or(Path::new("."))).map_err(io)?;
        }

        let snapshot = RwLock::new(sound(|| snapshot(&database)).map_err(wrong)?);
        Ok((Self { path: path.to_path_buf(), snapshot, database, patience }, marks))
    }

    /// The table's patience with a full disk.
    pub(crate) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Checks that its file still has its name: what is written to one that has none is lost when the process ends.
    pub(crate) fn check_there(&self) -> Result<(), OpenError> {
        match self.path.try_exists() {
            Ok(true) => Ok(()),
            Ok(false) => Err(OpenError::Missing { path: self.path.clone() }),
            Err(source) => Err(OpenError::io("open", &self.path, source)),
        }
    }

    /// Takes in rows, which are sorted and name each key once (`None` removes it), and sets the marks. When it returns,
    /// both are durable, and every later read sees the rows.
    pub(crate) fn absorb(&self, rows: &[(&[u8], Option<&[u8]>)], marks: Marks) -> Result<(), OpenError> {
        sound(|| self.write(rows, marks)).map_err(|error| table_error(&self.path, error))
    }

    fn write(&self, rows: &[(&[u8], Option<&[u8]>)], marks: Marks) -> Result<(), redb::Error> {
        debug_assert!(
            rows.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "a key would be written twice, in either order"
        );
        let mut transaction = self.database.begin_write()?;
        // With it, opening the file after a crash does not have to walk through all of it.
        transaction.set_quick_repair(true);

        {
            let mut table = transaction.open_table(ROWS)?;
            for (key, value) in rows {
                match value {
                    // It is written in its place: a large value is copied once.
                    Some(value) => {
                        let mut place = table.insert_reserve(*key, value.len() + CHECKSUM)?;
                        seal(place.as_mut(), key, value);
                    }
                    None => {
                        table.remove(*key)?;
                    }
                }
            }
        }

        // In the same transaction: marks ahead of the rows would lose batches at the next start, and marks behind them would let
        // old batches be written over newer rows.
        write_marks(&transaction, marks)?;
        transaction.commit()?;

        // Batches count as absorbed when this returns, and their rows leave the caller's memory. So the snapshot must show them
        // before.
        let fresh = snapshot(&self.database)?;
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The first `bytes` bytes of a stored value. The checksum is of the whole value, so all of it is read and checked.
    fn value(&self, key: &[u8], stored: &[u8], bytes: usize) -> Result<Vec<u8>, ReadError> {
        let value = unseal(key, stored).map(|value| value[..value.len().min(bytes)].to_vec());
        value.ok_or_else(|| {
            ReadError(format!(
                "the row under \"{}\" in table \"rows\" of {} has a wrong checksum: start the site with an empty data \
             directory, as one that has lost its disk, and keep this one aside",
                key.escape_ascii(),
                self.path.display(),
            ))
        })
    }

    fn unreadable(&self, error: impl Into<redb::Error>) -> ReadError {
        ReadError(format!(
            "table \"rows\" of {} cannot be read: {}; if it is damaged, start the site with an empty data directory, as one \
             that has lost its disk, and keep this one aside",
            self.path.display(),
            error.into()
        ))
    }

    /// Reads from the snapshot; a table so damaged that `redb` panics cannot be read.
    fn reading<T>(&self, read: impl FnOnce(&Snapshot) -> Result<T, ReadError>) -> Result<T, ReadError> {
        let snapshot = self.snapshot.read().unwrap_or_else(PoisonError::into_inner);
        let result = catch_unwind(AssertUnwindSafe(|| read(&snapshot)));
        result.unwrap_or_else(|panic| Err(self.unreadable(redb::Error::Corrupted(message_of(&*panic).to_owned()))))
    }
}

impl Reader for Table {
    fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.read_head(key, usize::MAX)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Row>, ReadError> {
        self.scan_heads(from, to, limit, usize::MAX)
    }

    fn read_head(&self, key: &[u8], bytes: usize) -> Result<Option<Vec<u8>>, ReadError> {
        self.reading(|snapshot| {
            let stored = ReadableTable::get(snapshot, key).map_err(|error| self.unreadable(error))?;
            stored.map(|stored| self.value(key, stored.value(), bytes)).transpose()
        })
    }

    fn scan_heads(&self, from: &[u8], to: &[u8], limit: usize, bytes: usize) -> Result<Vec<Row>, ReadError> {
        if from >= to {
            return Ok(Vec::new());
        }

        self.reading(|snapshot| {
            let bounds = (Bound::Included(from), Bound::Excluded(to));
            let rows = ReadableTable::range::<&[u8]>(snapshot, bounds).map_err(|error| self.unreadable(error))?;
            let row = |row: Result<_, redb::StorageError>| {
                let (key, stored): (redb::AccessGuard<&[u8]>, redb::AccessGuard<&[u8]>) =
                    row.map_err(|error| self.unreadable(error))?;
                let value = self.value(key.value(), stored.value(), bytes)?;
                Ok((key.value().to_vec(), value))
            };
            rows.take(limit).map(row).collect()
        })
    }
}

/// Writes a value as it is stored, [`CHECKSUM`] bytes longer: the value, then a checksum of key and value. The key's length is part of the checksum,
/// so that no byte can move between the two.
fn seal(stored: &mut [u8], key: &[u8], value: &[u8]) {
    let (place, sum) = stored.split_at_mut(value.len());
    place.copy_from_slice(value);
    sum.copy_from_slice(&checksum(key, value).to_le_bytes());
}

/// The value in the bytes that were stored, if its checksum is right.
fn unseal<'a>(key: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    let (value, sum) = stored.split_last_chunk::<CHECKSUM>()?;
    (checksum(key, value).to_le_bytes() == *sum).then_some(value)
}

fn checksum(key: &[u8], value: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    hasher.finalize()
}

/// Acts on the table, and turns a panic of `redb` into an error: some damage makes it panic.
fn sound<T>(act: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(act))
        .unwrap_or_else(|panic| Err(redb::Error::Corrupted(message_of(&*panic).to_owned())))
}

fn snapshot(database: &Database) -> Result<Snapshot, redb::Error> {
    Ok(database.begin_read()?.open_table(ROWS)?)
}

/// Reads the marks; makes both tables if there are none.
fn read_marks(database: &Database) -> Result<Marks, redb::Error> {
    let damaged = || redb::Error::Corrupted("the marks of what was absorbed have a wrong checksum".into());
    match database.begin_read()?.open_table(MARKS) {
        Ok(table) => {
            let stored = ReadableTable::get(&table, &[][..])?.ok_or_else(damaged)?;
            let marks = unseal(&[], stored.value()).ok_or_else(damaged)?;
            let number = |at| u64::from_le_bytes(marks[at..at + 8].try_into().expect("eight bytes"));
            // Marks of earlier versions have no third number: they were written only at the end of a segment.
            let at = if marks.len() < 24 { BLOCK as u64 } else { number(16) };
            Ok(Marks { absorbed: number(0), segment: number(8), at })
        }
        // A new file. Both tables are made in one transaction, so that one that has marks has rows too.
        Err(redb::TableError::TableDoesNotExist(_)) => {
            let marks = Marks { absorbed: 0, segment: 1, at: BLOCK as u64 };
            let transaction = database.begin_write()?;
            transaction.open_table(ROWS)?;
            write_marks(&transaction, marks)?;
            transaction.commit()?;
            Ok(marks)
        }
        Err(error) => Err(error.into()),
    }
}

fn write_marks(transaction: &WriteTransaction, marks: Marks) -> Result<(), redb::Error> {
    let numbers = [marks.absorbed, marks.segment, marks.at].map(u64::to_le_bytes).concat();
    let mut stored = vec![0; numbers.len() + CHECKSUM];
    seal(&mut stored, &[], &numbers);
    transaction.open_table(MARKS)?.insert(&[][..], &stored[..])?;
    Ok(())
}

fn table_error(path: &Path, error: redb::Error) -> OpenError {
    match error {
        redb::Error::Io(error) if is_full(&error) => OpenError::Full { path: path.to_path_buf(), bytes: ENOUGH },
        error => OpenError::Table { path: path.to_path_buf(), source: Box::new(error) },
    }
}

/// The table's file, as `redb` sees it. A write to where nothing was written before can find the disk full, and on some file systems any
/// write can; it waits for space, because `redb` gives up permanently after an error.
#[derive(Debug)]
struct Backend {
    disk: Disk,
    /// Which of its bytes have space. Whoever waits for space holds it: no other write would find any.
    space: Mutex<Space>,
    /// The name that the file has once it is complete.
    path: PathBuf,
    patience: Arc<Patience>,
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        self.disk.resize(length)?;
        space.resize(length);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        let lacking: Vec<_> = space.lacking(offset, data.len() as u64).collect();
        for range in lacking {
            self.once_there_is_space(|| self.disk.allocate(range.0, range.1))?;
            space.take(range);
        }
        drop(space);

        // Where blocks are not written over in place, even what has space may need more.
        self.once_there_is_space(|| self.disk.write(offset, data))
    }
}

impl Backend {
    /// Does what may find the disk full, and once the store is open, does it again until there is space.
    fn once_there_is_space(&self, attempt: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut pause = Pause::default();
        let mut has_waited = false;
        loop {
            match attempt() {
                // A refused attempt has lost nothing, so it can be repeated. The site can stop while this waits.
                Err(error) if is_full(&error) && self.patience.is_patient() => {
                    let why = format!("{} cannot grow: {error}", self.path.display());
                    self.patience.note(Role::Table, Some(why));
                    has_waited = true;
                    if self.patience.wait(pause.next()) {
                        return Err(error);
                    }
                }
                result => {
                    if has_waited {
                        self.patience.note(Role::Table, None);
                    }
                    return result;
                }
            }
        }
    }
}
