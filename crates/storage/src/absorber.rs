//! The absorber: the thread that takes the written batches into the table, oldest first.
//!
//! It reads batches soon after they are written, while they are in memory, and keeps the last write of each key. So a row that is
//! written again and again costs one write of the table for each segment of the log, and nothing is read back from the disk unless
//! the absorber has fallen behind. It takes these rows into the table, in one transaction, when its segment is full, when somebody
//! asks, when nothing more is written, or when they are many.

use slackline_core::machine::Seq;

use crate::error::OpenError;
use crate::fold::Fold;
use crate::frame::BLOCK;
use crate::patience::Pause;
use crate::recent::Kept;
use crate::role::Role;
use crate::segment::Run;
use crate::table::Marks;
use crate::threads::{Goal, Shared, Task, Written, passes};

/// See the module.
pub(crate) struct Absorber<'a> {
    shared: &'a Shared,
    /// The table's marks.
    marks: Marks,
    /// The marks that the table will have with the rows of `fold`; the same as `marks` if there are none.
    read: Marks,
    /// The rows of the batches between the two.
    fold: Fold,
}

impl<'a> Absorber<'a> {
    /// An absorber of a table with these marks.
    pub(crate) fn new(shared: &'a Shared, marks: Marks) -> Self {
        Self { shared, marks, read: marks, fold: Fold::default() }
    }

    /// Runs until storage stops.
    pub(crate) fn run(mut self) {
        let mut pause = Pause::default();
        while let Some(task) = self.shared.wait_to_absorb(self.read.absorbed) {
            match self.carry_out(&task) {
                Ok(()) => {
                    self.shared.table.patience().note(Role::Table, None);
                    pause = Pause::default();
                }
                // Nothing is lost while it waits: batches stay in the log, and at its bound room falls.
                Err(OpenError::Io { action, path, source }) if passes(&source) => {
                    let why = format!("could not {action} {}: {source}", path.display());
                    self.shared.table.patience().note(Role::Table, Some(why));
                    self.shared.pause(pause.next());
                }
                Err(error) => return self.shared.stop(error.to_string()),
            }
        }
    }

    fn carry_out(&mut self, Task { written, goal }: &Task) -> Result<(), OpenError> {
        if !self.read(written)? {
            return Ok(());
        }

        match goal {
            Goal::Read => Ok(()),
            Goal::Durable => self.commit(written),
            Goal::Free => {
                // The marks of a full segment name the one after it: that is what allows its file to be used again.
                self.read = Marks { segment: written.number + 1, at: BLOCK as u64, ..self.read };
                self.commit(written)?;

                // Only now: the table durably says that no batch is looked for in it.
                self.shared.free_oldest();
                Ok(())
            }
        }
    }

    /// Reads the batches of a segment that were not read, up to the end of its written part. Returns false if storage has stopped
    /// before that.
    fn read(&mut self, written: &Written) -> Result<bool, OpenError> {
        let mut run = None;
        while self.read.absorbed < written.last {
            assert_eq!(self.read.segment, written.number, "segments are absorbed in the order of their numbers");

            // Before more is taken: where the table refuses rows, they are no more with each attempt.
            if self.fold.is_large() {
                self.commit(written)?;
            }

            // Whoever closes the store does not wait for a segment.
            if self.shared.stopped().is_some() {
                return Ok(false);
            }

            // From memory, if it is kept there. What was let go, or is of an earlier start, is read back from the disk, and must
            // be there: with a batch left out, the table would hold no prefix of the log.
            let kept = self.shared.recent().take(self.read.absorbed + 1);
            let (last, at) = match kept {
                Some(Kept { seq, batch, end }) => {
                    self.fold.take(&batch);
                    run = None;
                    (seq, end)
                }
                None => self.read_back(&mut run, written)?,
            };
            self.read = Marks { absorbed: last, at, ..self.read };
        }
        Ok(true)
    }

    /// Reads the next batches back from the disk, and returns the last one and the place behind it.
    fn read_back(&mut self, run: &mut Option<Run>, written: &Written) -> Result<(Seq, u64), OpenError> {
        let run = match run {
            Some(run) => run,
            none => none.insert(self.open(written)?),
        };
        let Some(batches) = run.next()? else {
            let what = "a batch that was written there cannot be read back";
            return Err(OpenError::Damaged { path: written.path.clone(), at: run.at(), what });
        };
        self.fold.take(&batches.into());
        Ok((run.last(), run.at()))
    }

    fn open(&self, Written { number, path, end, .. }: &Written) -> Result<Run, OpenError> {
        Run::open(&self.shared.place, path, *number, self.read.at, self.read.absorbed, Some(*end))
    }

    /// Takes the rows that were read into the table. Each transaction ends between two batches and takes the marks along, so after a
    /// crash absorption goes on where the last one ended.
    fn commit(&mut self, written: &Written) -> Result<(), OpenError> {
        if self.read == self.marks {
            return Ok(());
        }

        // Even if all of it was in memory: a file that is gone or damaged is found now, and not after the crash in which it is
        // needed.
        drop(self.open(written)?);
        self.shared.table.check_there()?;

        let place = |marks: &Marks| (marks.segment, marks.at, marks.absorbed);
        let goes_forward = place(&self.marks) <= place(&self.read) && self.marks.absorbed <= self.read.absorbed;
        assert!(goes_forward, "the table's marks must not go back: old batches would be written over newer rows");
        self.shared.table.absorb(&self.fold.rows(), self.read)?;

        // After the table has them durably, and its snapshot shows them: callers now let go of these rows.
        self.marks = self.read;
        self.fold = Fold::default();
        self.shared.note_absorbed(self.marks.absorbed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::error::Error;
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::sync::Arc;

    use slackline_core::machine::{Batch, Reader};

    use super::*;
    use crate::directory::Directory;
    use crate::medium::Medium;
    use crate::segment::{Place, Segment};
    use crate::store::LogWriter;
    use crate::table::Table;
    use crate::writer::Writer;

    /// A directory that is removed.
    struct Scratch(PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn batches_are_read_in_memory_before_they_are_let_go_and_hot_rows_are_written_once() -> Result<(), Box<dyn Error>> {
        let scratch = Scratch(std::env::temp_dir().join(format!("slackline-absorber-{}", std::process::id())));
        let _ = std::fs::remove_dir_all(&scratch.0);
        let directory = Directory::lock(&scratch.0)?;
        let place = Place::open(directory.log(), 1 << 20, false, Medium::default())?;
        let (table, marks) = Table::open(&directory.table(), &place.medium, 1 << 20)?;
        let active = Segment::create(&place, marks.segment)?;
        let path = active.path().to_path_buf();
        let shared = Arc::new(Shared::new(directory, table, place, &active, VecDeque::new(), 0));
        let mut writer = Writer::new(Arc::clone(&shared), active);
        let mut absorber = Absorber::new(&shared, marks);

        // One row, again and again: the absorber is called once there are some of them, and has them before any is let go.
        let mut last = 0;
        let mut write = |value: u8| {
            last += 1;
            let mut batch = Batch::new();
            batch.put(b"hot", &[value; 4000]);
            writer.append(last, &[Arc::new(batch)]).map(|()| last)
        };
        for value in 0..60 {
            write(value)?;
        }
        let task = shared.wait_to_absorb(0).ok_or("storage has stopped")?;
        assert!(task.goal == Goal::Read, "nobody has asked");
        absorber.carry_out(&task)?;
        assert_eq!((absorber.read.absorbed, shared.absorbed()), (60, 0));
        assert!(!shared.recent().is_filling());

        // From here on nothing could be read back. A retry after a failure finds all that was read.
        let zeros = vec![0; (1 << 20) - BLOCK];
        let file = OpenOptions::new().write(true).open(&path)?;
        file.write_all_at(&zeros, BLOCK as u64)?;
        let last = write(200)?;
        shared.ask();
        let away = path.with_extension("away");
        std::fs::rename(&path, &away)?;
        let task = shared.wait_to_absorb(60).ok_or("storage has stopped")?;
        assert!(task.goal == Goal::Durable, "it was asked for");
        assert!(absorber.carry_out(&task).is_err(), "its file is gone");
        assert!(!path.exists(), "a file that is gone is not made again");
        assert_eq!(shared.absorbed(), 0);

        std::fs::rename(&away, &path)?;
        let task = shared.wait_to_absorb(last).ok_or("storage has stopped")?;
        assert!(task.goal == Goal::Durable, "what was asked for is not there yet");
        absorber.carry_out(&task)?;
        assert_eq!(shared.absorbed(), last);
        assert_eq!(shared.table.read(b"hot")?, Some(vec![200; 4000]));
        Ok(())
    }
}
