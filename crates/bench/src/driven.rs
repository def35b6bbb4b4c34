//! One site's machine, driven in this process: a driver without sockets or threads, whose disk takes no time.
//!
//! It does for the machine all that a real driver must: the working set and the [`View`], the [`Overlay`], the [`Gate`], and rows
//! that storage takes in when they are durable.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use slackline_core::clock::Now;
use slackline_core::machine::{Batch, Effect, Gate, Input, Machine, Overlay, Seq, View};
use slackline_core::node::{Config, Node};

/// Both clocks at a time of the monotonic one, in microseconds; the wall clock has no error.
pub(crate) fn clock(mono: u64) -> Now {
    Now { wall: 1_700_000_000_000_000 + mono as i64, mono }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Driven {
    /// The machine.
    pub(crate) node: Node,
    /// Holds back what must not leave before it is durable.
    gate: Gate<Node>,
    /// Rows of batches that storage has not taken in.
    overlay: Overlay,
    /// Paged rows that storage has taken in. Resident ones are in the machine's memory, and nothing reads them here.
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Batches handed out and not synced.
    log: VecDeque<(Seq, Arc<Batch>)>,
    /// Bytes of all batches handed out.
    logged: u64,
    /// Of one input; kept for its room.
    effects: Vec<Effect<Node>>,
}

impl Driven {
    /// A machine on new storage.
    ///
    /// # Panics
    ///
    /// If the configuration makes no sense.
    pub(crate) fn open(config: Config, seed: u64, mono: u64) -> Self {
        let rows = BTreeMap::new();
        let node = Node::open(config, seed, 0, &rows, clock(mono)).expect("new storage and a sound configuration");
        Self {
            node,
            gate: Gate::new(0),
            overlay: Overlay::default(),
            rows,
            log: VecDeque::new(),
            logged: 0,
            effects: Vec::new(),
        }
    }

    /// Bytes of all batches handed out so far.
    pub(crate) fn logged(&self) -> u64 {
        self.logged
    }

    /// Effects that wait for a sync.
    pub(crate) fn held_back(&self) -> usize {
        self.gate.waiting()
    }

    /// True if the machine wants a tick by this time.
    pub(crate) fn is_due(&self, mono: u64) -> bool {
        self.node.deadline().is_some_and(|deadline| deadline <= mono)
    }

    /// Hands the machine an input. What may leave at once goes to `release`; the rest waits for [`Driven::sync`].
    pub(crate) fn input(&mut self, mono: u64, input: Input<Node>, release: impl FnMut(Effect<Node>)) {
        let now = clock(mono);
        let needed = self.node.working_set(now, &input);
        // The machine names the rows that an input needs, and sees no others.
        let view = View::prepare(needed, &self.overlay, &self.rows).expect("rows in memory can be read");
        self.node.handle(now, input, &view, &mut self.effects);

        // A batch can be read by the next input, though it is not durable yet.
        let Self { gate, overlay, log, logged, effects, .. } = self;
        let persist = |seq, batch: Batch| {
            let batch = Arc::new(batch);
            overlay.apply::<Node>(seq, &batch);
            *logged += batch.as_bytes().len() as u64;
            log.push_back((seq, batch));
        };
        gate.admit(effects, persist, release);
    }

    /// Everything handed out is durable now, and storage has taken it in. What waited for that goes to `release`.
    pub(crate) fn sync(&mut self, release: impl FnMut(Effect<Node>)) {
        let durable = self.gate.issued();
        while let Some((_, batch)) = self.log.pop_front() {
            for (key, value) in batch.iter().filter(|(key, _)| Node::is_paged(key)) {
                match value {
                    Some(value) => self.rows.insert(key.to_vec(), value.to_vec()),
                    None => self.rows.remove(key),
                };
            }
        }

        // In this order: a row is in the overlay until it can be read from storage.
        self.overlay.retire(durable);
        self.gate.durable(durable, release);
    }
}
