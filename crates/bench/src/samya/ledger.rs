//! What clients count, in the same way for all configurations.
//!
//! **Committed**: acquires that were granted in time, releases, and reads; the latencies are theirs. **Refused**: acquires that were
//! not granted by their deadline. **Local**: acquires that were answered with no message over the wide area awaited.

use serde_json::{Value, json};

use crate::histogram::Histogram;
use crate::report::{Latency, Run};

/// Into how many parts figures divide a run.
pub(super) const PARTS: usize = 120;

/// A part of a run that is counted by itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Phase {
    /// Its beginning, in microseconds since that of the run.
    pub(super) from: u64,
    /// True if the two parts of a parted network are counted apart.
    pub(super) is_parted: bool,
}

/// What is counted of a phase, or of a part of the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Count {
    pub(super) committed: u64,
    pub(super) refused: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The limit that clients may never have more than; none where there is none.
    limit: Option<i64>,
    granted: u64,
    refused: u64,
    released: u64,
    reads: u64,
    /// Releases that clients had no tokens for: the trace is of a world in which their acquires were granted.
    refused_releases: u64,
    /// Grants that came too late, and were given back.
    late: u64,
    /// Calls that were never answered.
    unknown: u64,
    local: u64,
    latencies: Histogram,
    /// Tokens that clients have: granted, and not on their way back.
    held: i64,
    /// The time of the run, in microseconds.
    length: u64,
    timeline: Vec<Count>,
    phases: Vec<Phase>,
    /// Of each phase, by whether the client was in the smaller part.
    counts: Vec<[Count; 2]>,
    /// When something was committed or refused last, since the beginning of the run.
    last: u64,
}

/// What is committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    /// An acquire was granted; true if with no message over the wide area.
    Granted(bool),
    Released,
    Read,
}

impl Ledger {
    /// Nothing has happened yet.
    pub(super) fn new(limit: Option<i64>, length: u64, phases: Vec<Phase>) -> Self {
        Self {
            limit,
            granted: 0,
            refused: 0,
            released: 0,
            reads: 0,
            refused_releases: 0,
            late: 0,
            unknown: 0,
            local: 0,
            latencies: Histogram::default(),
            held: 0,
            length,
            timeline: vec![Count::default(); PARTS],
            counts: vec![Default::default(); phases.len()],
            phases,
            last: 0,
        }
    }

    /// The time of the run, in microseconds.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Tokens that clients have.
    pub(super) fn held(&self) -> i64 {
        self.held
    }

    /// Clients learn that they have so many tokens more, in time or not.
    pub(super) fn take(&mut self, amount: i64) -> Result<(), String> {
        self.held += amount;
        match self.limit.filter(|limit| self.held > *limit) {
            Some(limit) => Err(format!("clients have {} tokens of a limit of {limit}", self.held)),
            None => Ok(()),
        }
    }

    /// Clients send so many tokens back.
    pub(super) fn give_back(&mut self, amount: i64) {
        self.held -= amount;
    }

    /// A grant came too late.
    pub(super) fn note_late(&mut self) {
        self.late += 1;
    }

    /// A release could not be sent.
    pub(super) fn note_refused_release(&mut self) {
        self.refused_releases += 1;
    }

    /// So many calls will never be answered.
    pub(super) fn note_unknown(&mut self, calls: u64) {
        self.unknown += calls;
    }

    /// Something is committed, at a time since the beginning of the run.
    pub(super) fn commit(&mut self, at: u64, took: u64, in_two: bool, done: Done) {
        match done {
            Done::Granted(is_local) => {
                self.granted += 1;
                self.local += u64::from(is_local);
            }
            Done::Released => self.released += 1,
            Done::Read => self.reads += 1,
        }
        self.latencies.note(took * 1_000);
        self.count(at, took, in_two, |count| count.committed += 1);
    }

    /// An acquire is refused, or its deadline has come.
    pub(super) fn refuse(&mut self, at: u64, took: u64, in_two: bool, is_local: bool) {
        self.refused += 1;
        self.local += u64::from(is_local);
        self.count(at, took, in_two, |count| count.refused += 1);
    }

    fn count(&mut self, at: u64, took: u64, in_two: bool, note: impl Fn(&mut Count)) {
        self.last = self.last.max(at);
        let part = u128::from(at) * PARTS as u128 / (u128::from(self.length) + 1);
        if let Some(count) = self.timeline.get_mut(part as usize) {
            note(count);
        }
        if let Some(phase) = self.phase(at, took) {
            note(&mut self.counts[phase][usize::from(in_two)]);
        }
    }

    /// The phase of an operation that was over at a time: the one in which it was asked. What was asked in one part of the network and
    /// could only be done when this was whole again is of the time after.
    fn phase(&self, at: u64, took: u64) -> Option<usize> {
        let of = |time| self.phases.iter().rposition(|phase| phase.from <= time);
        let (asked, over) = (of(at - took)?, of(at)?);
        Some(if self.phases[asked].is_parted { over } else { asked })
    }

    /// The run's figures.
    pub(super) fn run(&self, config: &str) -> Run {
        let mut run = Run::new(config);
        run.committed = self.granted + self.released + self.reads;
        run.refused = self.refused;
        run.unknown = self.unknown;
        run.latency_ms = Latency::from(&self.latencies);
        let acquires = self.granted + self.refused;
        run.local_ratio = Some(if acquires > 0 { self.local as f64 / acquires as f64 } else { 1.0 });

        let run = run.took(self.length.max(self.last) as f64 / 1e6);
        let run = run.with("refused_acquires", self.refused).with("late_grants", self.late);
        let run = if self.reads > 0 { run.with("reads", self.reads) } else { run };
        if self.phases.is_empty() { run } else { run.with("phases", self.phases()) }
    }

    /// What is counted of each phase.
    fn phases(&self) -> Value {
        let told = |phase: &Phase, part: &str, count: Count| {
            let Count { committed, refused } = count;
            json!({ "from_s": phase.from as f64 / 1e6, "part": part, "committed": committed, "refused": refused })
        };
        let of = |(phase, [three, two]): (&Phase, &[Count; 2])| match phase.is_parted {
            true => vec![told(phase, "three", *three), told(phase, "two", *two)],
            false => {
                let both = Count { committed: three.committed + two.committed, refused: three.refused + two.refused };
                vec![told(phase, "all", both)]
            }
        };
        self.phases.iter().zip(&self.counts).flat_map(of).collect()
    }

    /// Latencies, and what was committed and refused over time, for figures.
    pub(super) fn drawn(self) -> (Histogram, Vec<Count>) {
        (self.latencies, self.timeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_never_have_more_than_the_limit() {
        let mut ledger = Ledger::new(Some(10), 1_000, Vec::new());
        assert_eq!(ledger.take(10), Ok(()));
        ledger.give_back(4);
        assert_eq!(ledger.take(4), Ok(()));
        assert_eq!(ledger.take(1), Err("clients have 11 tokens of a limit of 10".into()));
    }

    #[test]
    fn operation_counts_where_it_was_asked_or_where_the_network_was_whole_again() {
        let phase = |from, is_parted| Phase { from, is_parted };
        let phases = vec![phase(0, false), phase(100, true), phase(200, false)];
        let mut ledger = Ledger::new(None, 300, phases);
        // At once, before; over the beginning; in the smaller part; over the end; after.
        for (at, took, in_two) in [(50, 0, false), (110, 20, true), (150, 10, true), (210, 80, true), (250, 0, false)] {
            ledger.commit(at, took, in_two, Done::Released);
        }
        ledger.refuse(160, 5, false, false);
        let counts: Vec<_> = ledger
            .phases()
            .as_array()
            .expect("a list")
            .iter()
            .map(|phase| {
                (
                    phase["part"].as_str().expect("a name").to_owned(),
                    phase["committed"].clone(),
                    phase["refused"].clone(),
                )
            })
            .collect();
        let expected = [("all", 2, 0), ("three", 0, 1), ("two", 1, 0), ("all", 2, 0)];
        assert_eq!(
            counts,
            expected.map(|(part, committed, refused)| (part.to_owned(), json!(committed), json!(refused)))
        );
    }
}
