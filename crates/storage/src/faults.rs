//! A file layer for tests: it keeps writes in memory until the sync, and fails when told to.
//!
//! A process that is killed leaves to the operating system what it has written, so `kill -9` alone never loses an
//! unsynced write. With this layer it does: blocks reach the file only at the sync. Names (creating, renaming and
//! removing files) and lengths are not held back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::frame::BLOCK;
use crate::role::Role;

/// Lets the files of one store fail. Clones steer the same files.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    plan: Arc<Mutex<Plan>>,
}

/// The failures that are due. Each field is set by the method of [`Faults`] with its name.
#[derive(Debug, Default)]
struct Plan {
    /// Bytes that can still be allocated; `None` for no limit.
    space: Option<u64>,
    /// True if a disk quota runs out, not the disk.
    is_quota: bool,
    /// The file whose next sync fails.
    failing_sync: Option<Role>,
    /// The file whose syncs take longer, and by how much.
    slow_sync: Option<(Role, Duration)>,
    /// The number of blocks that the next sync of a segment writes.
    short_write: Option<usize>,
    /// The power cut that is to come with a later sync.
    crash: Option<Crash>,
    /// True once the power is cut. Never false again.
    crashed: bool,
}

/// A power cut in the middle of a sync.
#[derive(Debug)]
struct Crash {
    /// The number of syncs that still succeed before it.
    syncs_before: u64,
    /// Decides which blocks reach the disk.
    seed: u64,
}

impl Faults {
    /// Faults that lose unsynced writes, and do nothing else until told to.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the disk be full once this number of bytes was allocated from now on; `None` for no limit.
    pub fn set_space(&self, bytes: Option<u64>) {
        self.plan().space = bytes;
    }

    /// Lets a full disk be reported as a disk quota that is used up.
    pub fn limit_by_quota(&self) {
        self.plan().is_quota = true;
    }

    /// Lets the next sync of a file of this role fail. The writes that it should have made durable are lost.
    pub fn fail_sync(&self, role: Role) {
        self.plan().failing_sync = Some(role);
    }

    /// Makes each sync of a file of this role take longer by the duration, from now on; `None` for no longer.
    pub fn slow_sync(&self, slow: Option<(Role, Duration)>) {
        self.plan().slow_sync = slow;
    }

    /// Lets the next sync of a segment write only the first `blocks` blocks of those that are due, then fail.
    pub fn short_write(&self, blocks: usize) {
        self.plan().short_write = Some(blocks);
    }

    /// Cuts the power: unsynced writes are lost, and every later read, write and sync fails.
    pub fn crash(&self) {
        self.plan().crashed = true;
    }

    /// Cuts the power in the middle of a sync, after `syncs` more have succeeded: of its blocks only some reach the disk, chosen
    /// by `seed`.
    pub fn crash_in_sync(&self, syncs: u64, seed: u64) {
        self.plan().crash = Some(Crash { syncs_before: syncs, seed });
    }

    /// True if the power is cut.
    pub fn is_crashed(&self) -> bool {
        self.plan().crashed
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One file behind the faults.
#[derive(Debug)]
pub(crate) struct Layer {
    faults: Faults,
    role: Role,
    held: Mutex<Held>,
}

/// The writes to a file that are not synced yet.
#[derive(Debug)]
struct Held {
    /// Blocks as they were written, by number; the file still has the old ones.
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
    /// The length of the file with these writes, in bytes.
    length: u64,
}

impl Layer {
    pub(crate) fn new(faults: Faults, role: Role, length: u64) -> Self {
        Self { faults, role, held: Mutex::new(Held { blocks: BTreeMap::new(), length }) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.held().length
    }

    pub(crate) fn set_len(&self, length: u64) {
        let mut held = self.held();
        held.length = length;
        held.blocks.split_off(&length.div_ceil(BLOCK as u64));
    }

    pub(crate) fn allocate(&self, bytes: u64) -> io::Result<()> {
        let mut plan = self.faults.plan();
        let full = if plan.is_quota { io::ErrorKind::QuotaExceeded } else { io::ErrorKind::StorageFull };
        if let Some(space) = &mut plan.space {
            *space = space.checked_sub(bytes).ok_or(full)?;
        }
        Ok(())
    }

    pub(crate) fn read(&self, file: &File, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.check_power()?;
        file.read_exact_at(into, at)?;

        // A process reads its own unsynced writes, as it does from the page cache.
        let held = self.held();
        let end = at + into.len() as u64;
        for (number, block) in held.blocks.range(at / BLOCK as u64..end.div_ceil(BLOCK as u64)) {
            let (from, to) = overlap(*number, at, end);
            let start = number * BLOCK as u64;
            into[(from - at) as usize..(to - at) as usize]
                .copy_from_slice(&block[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    pub(crate) fn write(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_power()?;
        let mut held = self.held();
        let end = at + bytes.len() as u64;
        for number in at / BLOCK as u64..end.div_ceil(BLOCK as u64) {
            let start = number * BLOCK as u64;
            let block = match held.blocks.entry(number) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(read_block(file, start)?),
            };
            let (from, to) = overlap(number, at, end);
            block[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
        }

        held.length = held.length.max(end);
        Ok(())
    }

    pub(crate) fn sync(&self, file: &File) -> io::Result<()> {
        self.check_power()?;

        // No lock is held: other threads read and write during a slow sync, as they do on a disk.
        let slow = self.faults.plan().slow_sync.filter(|(role, _)| *role == self.role);
        if let Some((_, lasts)) = slow {
            std::thread::sleep(lasts);
        }

        // The blocks leave memory before anything can fail: a failed sync has lost them, and a second one must not bring them back.
        let mut held = self.held();
        let blocks = std::mem::take(&mut held.blocks);
        let mut plan = self.faults.plan();
        if plan.failing_sync == Some(self.role) {
            plan.failing_sync = None;
            return Err(io::Error::other("injected: the sync failed"));
        }
        if self.role == Role::Log
            && let Some(count) = plan.short_write.take()
        {
            write_blocks(file, held.length, blocks.iter().take(count))?;
            return Err(io::Error::other("injected: the write was short"));
        }

        match &mut plan.crash {
            Some(crash) if crash.syncs_before > 0 => crash.syncs_before -= 1,
            Some(crash) => {
                let mut state = crash.seed | 1;
                plan.crashed = true;
                write_blocks(file, held.length, blocks.iter().filter(|_| coin(&mut state)))?;
                return Err(io::Error::other("injected: the power was cut during a sync"));
            }
            None => {}
        }
        write_blocks(file, held.length, blocks.iter())
    }

    fn check_power(&self) -> io::Result<()> {
        match self.faults.is_crashed() {
            true => Err(io::Error::other("injected: the power is cut")),
            false => Ok(()),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of block `number` that lie between two offsets.
fn overlap(number: u64, at: u64, end: u64) -> (u64, u64) {
    let start = number * BLOCK as u64;
    (start.max(at), (start + BLOCK as u64).min(end))
}

fn read_block(file: &File, at: u64) -> io::Result<Box<[u8; BLOCK]>> {
    let mut block = Box::new([0; BLOCK]);
    let mut filled = 0;
    while filled < BLOCK {
        match file.read_at(&mut block[filled..], at + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(block)
}

/// Writes blocks to the file, which does not grow past `length`.
fn write_blocks<'a>(
    file: &File,
    length: u64,
    blocks: impl Iterator<Item = (&'a u64, &'a Box<[u8; BLOCK]>)>,
) -> io::Result<()> {
    for (number, block) in blocks {
        let start = number * BLOCK as u64;
        let end = (start + BLOCK as u64).min(length);
        file.write_all_at(&block[..end.saturating_sub(start) as usize], start)?;
    }
    Ok(())
}

/// Heads or tails, from a small generator of its own so that the same seed tears the same way.
fn coin(state: &mut u64) -> bool {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 63 == 1
}
