//! The space of a file that grows by more than it needs now: it becomes longer at once, and takes the space when something is first
//! written there.
//!
//! `redb` doubles its file, and beyond 4 GiB adds 4 GiB and more at a time. To allocate that at once would ask for as much free space
//! as there are rows, long before it is used.

use std::io;

use crate::medium::Disk;

/// So many bytes are taken at a time. A disk that has less free counts as full.
pub(crate) const STEP: u64 = 16 << 20;

/// Which of a file's bytes have space on the disk.
#[derive(Debug)]
pub(crate) struct Space {
    /// The length of the file.
    length: u64,
    /// For each [`STEP`] of it, the last one perhaps shorter, the number of bytes at its beginning that have space.
    taken: Vec<u64>,
}

impl Space {
    /// The space of a file as it is: what has data has space. What was allocated and never written may not count; to allocate it again
    /// changes nothing.
    pub(crate) fn of(disk: &Disk) -> io::Result<Self> {
        let length = disk.len()?;
        let mut taken = Vec::with_capacity(length.div_ceil(STEP) as usize);
        while (taken.len() as u64) < length.div_ceil(STEP) {
            let start = taken.len() as u64 * STEP;
            let hole = disk.next_hole(start)?.min(length);
            // At least one, or a step that begins with a hole would be looked at for ever.
            let mut at = start;
            while at == start || at + STEP <= hole {
                taken.push(hole.saturating_sub(at).min(STEP));
                at += STEP;
            }
        }
        Ok(Self { length, taken })
    }

    /// Notes that the file has another length. What it is longer by is a hole.
    pub(crate) fn resize(&mut self, length: u64) {
        self.taken.resize(length.div_ceil(STEP) as usize, 0);
        if let Some(last) = self.taken.last_mut() {
            *last = (*last).min(length - (length - 1) / STEP * STEP);
        }
        self.length = length;
    }

    /// The ranges, from and to, that are to be allocated before `bytes` bytes are written at an offset.
    pub(crate) fn lacking(&self, offset: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = offset + bytes;
        (offset / STEP..end.div_ceil(STEP)).filter_map(move |step| {
            let start = step * STEP;
            let has = start + self.taken.get(step as usize).copied().unwrap_or(0);
            // All of the step, so that the next writes find their space.
            (has < end.min(start + STEP)).then(|| (has, (start + STEP).min(self.length.max(end))))
        })
    }

    /// Notes that a range that was lacking has space now.
    pub(crate) fn take(&mut self, (from, to): (u64, u64)) {
        let step = from / STEP;
        if let Some(taken) = self.taken.get_mut(step as usize) {
            *taken = to - step * STEP;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{STEP, Space};

    fn lacking(space: &Space, offset: u64, bytes: u64) -> Vec<(u64, u64)> {
        space.lacking(offset, bytes).collect()
    }

    #[test]
    fn what_is_written_first_takes_its_step_and_no_more() {
        let mut space = Space { length: 0, taken: Vec::new() };
        space.resize(5 * STEP + 100);
        assert_eq!(lacking(&space, 3 * STEP + 5, 10), [(3 * STEP, 4 * STEP)]);
        space.take((3 * STEP, 4 * STEP));
        assert_eq!(lacking(&space, 3 * STEP, STEP), []);
        assert_eq!(lacking(&space, 4 * STEP - 1, 2), [(4 * STEP, 5 * STEP)]);
        assert_eq!(lacking(&space, 5 * STEP, 1), [(5 * STEP, 5 * STEP + 100)]);
        assert_eq!(lacking(&space, 3 * STEP, 0), []);
    }

    #[test]
    fn step_at_the_end_lacks_what_the_file_has_grown_by() {
        let mut space = Space { length: 0, taken: Vec::new() };
        space.resize(100);
        assert_eq!(lacking(&space, 0, 100), [(0, 100)]);
        space.take((0, 100));
        space.resize(STEP / 2);
        assert_eq!(lacking(&space, 0, 100), []);
        assert_eq!(lacking(&space, 90, 20), [(100, STEP / 2)]);
        space.take((100, STEP / 2));

        // What is cut off and comes back has lost its space.
        space.resize(50);
        space.resize(2 * STEP);
        assert_eq!(lacking(&space, 0, 60), [(50, STEP)]);
        space.resize(0);
        assert_eq!((space.length, space.taken.len()), (0, 0));
    }
}
