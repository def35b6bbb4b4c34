//! Many seeds, on several threads.

use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::probes::Table;
use crate::run::{Report, run};
use crate::state::RunOptions;

/// A probe must be hit in this many of each [`SEEDS_EACH`] seeds.
const SEEDS_HIT: u64 = 5;
const SEEDS_EACH: u64 = 200;

/// What came of a sweep.
#[derive(Clone, Debug)]
pub struct SweepReport {
    /// The seeds.
    pub seeds: Range<u64>,
    /// Runs in which an invariant did not hold, by seed.
    pub failures: Vec<Report>,
    /// The number of times that each probe was hit.
    pub table: Table,
    /// Inputs handled, over all runs.
    pub inputs: u64,
    /// Operations sent, over all runs.
    pub operations: u64,
    /// Faults that struck, over all runs.
    pub faults: u64,
    /// Virtual time, in microseconds.
    pub virtual_time: u64,
    /// Real time.
    pub elapsed: Duration,
}

impl SweepReport {
    /// The probes that were hit in too few seeds. Fewer than 200 seeds are judged for what they are, and fewer than 40 not
    /// at all.
    pub fn missed(&self) -> Vec<&str> {
        self.table.missed(self.table.runs * SEEDS_HIT / SEEDS_EACH).collect()
    }

    /// Returns true if nothing was found and every probe was hit often enough.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty() && self.missed().is_empty()
    }
}

/// The most threads of a sweep.
const THREADS: usize = 256;

/// Runs every seed of a range on so many threads. `progress` is told of each run that ends, in any order; when it answers
/// false, no more runs are begun.
pub fn sweep(
    seeds: Range<u64>,
    threads: usize,
    options: RunOptions,
    progress: impl Fn(&Report) -> bool + Sync,
) -> SweepReport {
    let began = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let reports = Mutex::new(Vec::new());
    let work = || {
        loop {
            let is_left = |seed| (seed < seeds.end).then(|| seed + 1);
            let Ok(seed) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_left) else { return };
            let report = run(seed, options);
            if !progress(&report) {
                next.store(seeds.end, Ordering::Relaxed);
            }
            reports.lock().expect("no run ends while it holds the lock").push(report);
        }
    };
    std::thread::scope(|scope| {
        // One that has no seed would only cost memory.
        let count = usize::try_from(seeds.end.saturating_sub(seeds.start)).unwrap_or(usize::MAX);
        for _ in 0..threads.clamp(1, count.clamp(1, THREADS)) {
            scope.spawn(work);
        }
    });
    let mut reports = reports.into_inner().expect("no run ends while it holds the lock");
    reports.sort_by_key(|report| report.seed);
    let mut table = Table::default();
    reports.iter().for_each(|report| table.add(&report.probes));
    SweepReport {
        seeds,
        inputs: reports.iter().map(|report| report.inputs).sum(),
        operations: reports.iter().map(|report| report.operations).sum(),
        faults: reports.iter().map(|report| report.faults).sum(),
        virtual_time: reports.iter().map(|report| report.duration).sum(),
        failures: reports.into_iter().filter(|report| report.violation.is_some()).collect(),
        table,
        elapsed: began.elapsed(),
    }
}

impl fmt::Display for SweepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table)?;
        writeln!(
            f,
            "{} runs: {} inputs, {} operations, {} faults",
            self.table.runs, self.inputs, self.operations, self.faults
        )?;
        let virtual_seconds = self.virtual_time / 1_000_000;
        writeln!(f, "{virtual_seconds} s of virtual time in {:.1} s", self.elapsed.as_secs_f64())?;
        for report in &self.failures {
            let what = report.violation.as_ref().map(ToString::to_string).unwrap_or_default();
            writeln!(f, "seed {}: {what}", report.seed)?;
        }
        for name in self.missed() {
            writeln!(f, "hardly tested: {name}")?;
        }
        Ok(())
    }
}
