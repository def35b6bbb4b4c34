//! The history of transactions: what their clients did, saw and were told.

use slackline_core::id::Incarnation;
use slackline_core::object::Cause;

use crate::calls::Treated;
use crate::history::{self, Fate, History, Op};
use crate::invariants::serializable;
use crate::state::Simulation;
use crate::state::txns::{Blind, Record};
use crate::world::World;

impl Simulation {
    /// Adds a transaction to the history.
    pub(super) fn record(&mut self, now: u64, client: usize, record: Record, mut fate: Fate) {
        let Record { label, invoked, homes, mut ops, blind } = record;
        let mut apart = Vec::new();
        for (home, object, blind) in blind {
            let first = homes[home];
            let present = self.oracle.newest_incarnation(home).max(first);
            let op = |history: &mut History, incarnation| {
                let key = history.key(&name(&object, home as u16, incarnation));
                match blind {
                    Blind::Write(value) | Blind::Put(value) => Op::Write { key, value },
                    Blind::Delete => Op::Delete { key },
                    Blind::Add(delta) => Op::Add { key, delta },
                    Blind::Insert(element) => Op::Insert { prefix: key, element },
                }
            };
            if present == first {
                ops.push(op(&mut self.txns.history, present));
            } else {
                // Nobody knows which incarnation it met. A home that had lost its disk in the beginning had none.
                for incarnation in first.0..=present.0 {
                    apart.push(op(&mut self.txns.history, Incarnation(incarnation)));
                }
            }
        }

        let process = client as u64;
        let completed = (fate != Fate::Unknown).then_some(now);
        if !apart.is_empty() && fate == Fate::Committed && ops.is_empty() {
            fate = Fate::Unknown;
        }

        self.txns.history.push(history::Transaction { label, process, invoked, completed, fate, ops });
        if fate == Fate::Aborted {
            return;
        }

        // Each of these may have taken effect, or none: they stand apart, with no end that a reader could go by.
        for op in apart {
            let (fate, completed, ops) = (Fate::Unknown, None, vec![op]);
            self.txns.history.push(history::Transaction { label, process, invoked, completed, fate, ops });
        }
    }

    /// Counts why a transaction was aborted, or an object not read.
    pub(super) fn count_abort(&mut self, cause: Cause) {
        // What is wrong with a transaction as such, and a bound that no run reaches, have tests of their own.
        use Cause::{InvalidKey, Malformed, Overloaded, TooLarge, TooMuch, UnknownRegion};
        if !matches!(cause, InvalidKey | Malformed | Overloaded | TooLarge | TooMuch | UnknownRegion) {
            self.probes.hit(&format!("transaction: aborted, {}", cause.code()));
        }
    }

    /// Counts what became of calls that depended on what was written.
    pub(super) fn count_treated(&mut self, treated: Treated) {
        let Treated { kept, changed, revoked, absent } = treated;
        let counts = [
            ("call: recomputed, the same", kept),
            ("call: recomputed, another", changed),
            ("call: revoked", revoked),
            ("call: noted as dependent, not there", absent),
        ];
        for (probe, count) in counts {
            (0..count).for_each(|_| self.probes.hit(probe));
        }
    }

    /// Judges the history, when the run is over.
    pub(crate) fn judge_history(&mut self, world: &World) {
        for (_, running) in std::mem::take(&mut self.txns.committing) {
            self.record(world.now(), running.client, running.record, Fate::Unknown);
        }

        let found = serializable::check(&self.txns.history);
        self.oracle.blame(serializable::NAME, found, "transactions");
    }
}

/// What the history calls an object of one incarnation of its home.
pub(super) fn name(object: &str, home: u16, incarnation: Incarnation) -> String {
    format!("{home}.{}:{object}", incarnation.0)
}
