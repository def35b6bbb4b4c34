//! A site that does nothing but log and answer: the floor that benchmarks compare a real site with.
//!
//! What a site's clients and its disk take is here: the transport, the streams, the mailbox, the log with its group commit, and the
//! release rule. In place of the machine and its engine, `Floor` appends as many bytes as the machine would log, and says that
//! all of it is done. Left out is everything that makes a site:
//!
//! - sessions: an id takes effect each time that it comes, and no outcome is kept;
//! - quotas and objects: every acquire is granted and every transaction committed, and every object holds what was written last,
//!   wherever that was;
//! - views of storage, and rows that storage has not absorbed: nothing is read back;
//! - time: nothing expires, nothing comes due, and nothing has a deadline;
//! - other sites: there are no links;
//! - room: a disk without any makes the log wait, and the answers with it;
//! - draining, a restart on the same data, crash points, and metrics other than those of syncs.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use slackline_core::api::{
    Agreement, Answer, Operation, Outcome, Read, Readiness, Reading, Refusal, Request, Response, Shown, Submission,
    Work,
};
use slackline_core::id::{GrantId, Incarnation, SessionId, SiteId, SiteSet};
use slackline_core::machine::{Batch, ClientId, Seq};
use slackline_core::object::{Change, Seen, Transaction, VALUE_BYTES, Value, Version};
use slackline_storage::{Store, WriteError};

use crate::engine::{GATHER_BYTES, OpenFailure, Parts, TURN_OPERATIONS};
use crate::gather::{Gather, SYNC_OPERATIONS};
use crate::health::{Figures, Health};

/// What a floor appends to its log.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Load {
    /// For each request that has operations, in bytes.
    pub request_bytes: usize,
    /// For each of its operations, in bytes.
    pub operation_bytes: usize,
    /// The rows that operations write, one after the other and again. Storage keeps the last value of each, so the fewer they are,
    /// the less it absorbs.
    pub rows: u16,
}

/// The tag of its rows, which no site writes.
const TAG: u8 = 0x7f;
/// The number of the row that each request writes.
const REQUEST_ROW: u16 = u16::MAX;
/// The site's only incarnation.
const INCARNATION: Incarnation = Incarnation(1);

/// See the module.
pub(crate) struct Floor {
    parts: Arc<Parts>,
    // Before the store: the log's writer is closed first.
    gather: Gather,
    _store: Box<dyn Store>,
    load: Load,
    /// The last batch that was handed to the log, and the last one that is durable.
    issued: Seq,
    /// The last batch that is durable; never above `issued`.
    durable: Seq,
    /// Responses, each with the last batch that was handed out before it.
    held: VecDeque<(Seq, ClientId, Response)>,
    /// Responses whose batches are durable, until they are handed to the mailbox.
    released: Vec<(ClientId, Response)>,
    /// The number of sessions that were opened.
    sessions: u64,
    /// Operations done; quotas that were created do not count.
    done: u64,
    /// What was written last.
    value: Option<Value>,
}

impl Floor {
    /// Starts the log of a floor, on storage that is new.
    pub(crate) fn open(
        parts: Arc<Parts>,
        mut store: Box<dyn Store>,
        name: &str,
        load: Load,
    ) -> Result<Self, OpenFailure> {
        let last = store.last();
        let writer = store.writer().ok_or(OpenFailure::NoWriter)?;
        let gather = Gather::start(writer, last, name, Arc::clone(&parts.mailbox), Arc::clone(&parts.sync_times))?;
        Ok(Self {
            parts,
            gather,
            _store: store,
            load,
            issued: last,
            durable: last,
            held: VecDeque::new(),
            released: Vec::new(),
            sessions: 0,
            done: 0,
            value: None,
        })
    }

    /// Runs until `stop` is over.
    pub(crate) async fn run(mut self, stop: impl Future) -> Result<(), WriteError> {
        let parts = Arc::clone(&self.parts);
        parts.health.send_replace(Health { readiness: Some(Readiness::Ready), waiting_for: Vec::new() });
        let mut stop = pin!(stop);
        loop {
            self.turn()?;
            if parts.figures.take_question() {
                parts.figures.put(Figures::default());
            }
            // As the engine does: what blocks is the log, and that wakes the mailbox when it is done.
            if !parts.mailbox.is_empty() && self.gather.bytes() < GATHER_BYTES {
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                biased;
                () = parts.mailbox.wake.notified() => {}
                _ = &mut stop => return Ok(()),
            }
        }
    }

    /// Answers what has arrived. The log is given its work as often as by the engine, so that as many operations share a sync.
    fn turn(&mut self) -> Result<(), WriteError> {
        if let Some(last) = self.gather.poll()? {
            self.durable = last;
            self.submit()?;
            self.release();
        }
        let parts = Arc::clone(&self.parts);
        let (mut operations, mut gathered) = (0, 0);
        while operations < TURN_OPERATIONS && self.gather.bytes() < GATHER_BYTES {
            let Some((client, request, weight)) = parts.mailbox.next_request() else { break };
            operations += weight;
            gathered += weight;
            let response = self.answer(request);
            self.held.push_back((self.issued, client, response));
            if gathered >= SYNC_OPERATIONS {
                self.submit()?;
                gathered = 0;
            }
        }
        self.submit()?;
        self.release();
        Ok(())
    }

    fn submit(&mut self) -> Result<(), WriteError> {
        if let Some(last) = self.gather.submit()? {
            self.durable = last;
        }
        Ok(())
    }

    /// Lets out what may leave: a response waits until every batch handed out before it is durable.
    fn release(&mut self) {
        while self.held.front().is_some_and(|(needs, ..)| *needs <= self.durable) {
            self.released.extend(self.held.pop_front().map(|(_, client, response)| (client, response)));
        }
        self.parts.mailbox.deliver(&mut self.released);
    }

    fn answer(&mut self, request: Request) -> Response {
        let site = self.parts.config.me;
        match request {
            Request::Open => {
                self.sessions += 1;
                Response::Opened { site, incarnation: INCARNATION, session: SessionId(self.sessions) }
            }
            Request::Batch(batch) => {
                self.append(batch.operations.len());
                let answer = |submission: Submission| Answer {
                    sequence: submission.sequence,
                    outcome: self.carry_out(site, submission.operation),
                };
                Response::Batch { session: batch.session, answers: batch.operations.into_iter().map(answer).collect() }
            }
            Request::Read(read) => Response::Read(Box::new(self.read(&read))),
            Request::Show { quota, .. } => Response::Shown(Ok(Box::new(self.show(quota)))),
            Request::Close { .. } => Response::Closed,
            // No benchmark asks it anything else.
            Request::Ask { operation } => Response::Asked { operation, outcome: Outcome::Refused(Refusal::Withdrawn) },
            Request::Explain { .. }
            | Request::List { .. }
            | Request::Treaties { .. }
            | Request::Status
            | Request::Drain { .. }
            | Request::Expect(_) => Response::NotOpened(Refusal::NotReady),
        }
    }

    /// Appends what the machine would log for so many operations: one batch.
    fn append(&mut self, operations: usize) {
        let Load { request_bytes, operation_bytes, rows } = self.load;
        if operations == 0 || request_bytes + operation_bytes == 0 {
            return;
        }
        let mut batch = Batch::with_capacity(request_bytes + operations * operation_bytes + 16);
        if request_bytes > 0 {
            put(&mut batch, REQUEST_ROW, request_bytes);
        }
        for at in 0..operations as u64 {
            let row = (self.done + at) % u64::from(rows.max(1));
            put(&mut batch, row as u16, operation_bytes);
        }
        self.issued += 1;
        self.gather.push(batch.into());
    }

    fn carry_out(&mut self, site: SiteId, operation: Operation) -> Outcome {
        if let Operation::Create { limit, .. } = operation {
            return Outcome::Created { limit };
        }
        self.done += 1;
        match operation {
            Operation::Commit(transaction) => {
                let Transaction { homes, .. } = *transaction;
                let mut phases = 0;
                for (_, change) in homes.into_iter().flat_map(|home| home.part.writes) {
                    phases = 1;
                    if let Change::Put(value) = change {
                        self.value = Some(value);
                    }
                }
                Outcome::Committed { phases }
            }
            _ => Outcome::Granted { grant: GrantId { site, incarnation: INCARNATION, number: self.done }, lasts: None },
        }
    }

    fn read(&self, read: &Read) -> Reading {
        let version = Version { incarnation: INCARNATION, number: 1 };
        let gets = read.gets.iter().map(|_| Ok(Seen { version, value: self.value.clone() })).collect();
        let scans = read.scans.iter().map(|_| Ok(Vec::new())).collect();
        // As of a site: what it has copies of is to be judged when it is committed, which is another request.
        let region = self.parts.config.me.region;
        let is_whole = read.gets.iter().all(|key| key.home == region);
        Reading { token: read.token, gets, scans, is_whole }
    }

    /// Returns all that was done, as a quota of which that much is in use: so whoever measures can compare it with what was told.
    fn show(&self, name: String) -> Shown {
        let done = self.done as i64;
        Shown {
            name,
            limit: i64::MAX,
            agreement: Agreement::Majority,
            in_use_min: done,
            in_use_max: done,
            estimate: None,
            sites: Vec::new(),
            missing: SiteSet::default(),
            work: Work { local: self.done, ..Work::default() },
            released_above: 0,
            excess: 0,
            refill: 0,
        }
    }
}

/// Puts a row that takes up this many bytes in the batch, with its key and both lengths; a row has at least those.
fn put(batch: &mut Batch, number: u16, bytes: usize) {
    /// The length of the key, which takes one byte, and the key: a tag and a number.
    const KEY: usize = 1 + 3;
    let length_of = |value: usize| {
        if value + 1 < 1 << 7 {
            1
        } else if value + 1 < 1 << 14 {
            2
        } else {
            3
        }
    };
    let room = bytes.saturating_sub(KEY);
    let value = (room.saturating_sub(3)..=room).rev().find(|value| value + length_of(*value) <= room).unwrap_or(0);
    let [low, high] = number.to_le_bytes();
    batch.put(&[TAG, low, high], &ZEROS[..value.min(ZEROS.len())]);
}

/// What rows are made of; none is longer than the largest object and its record.
static ZEROS: [u8; VALUE_BYTES + 4096] = [0; VALUE_BYTES + 4096];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_take_up_what_they_should() {
        for bytes in [5, 6, 40, 100, 130, 131, 132, 133, 134, 135, 136, 200, 16_380, 16_400, 70_000] {
            let mut batch = Batch::new();
            put(&mut batch, 7, bytes);
            // One length more than fits in a byte cannot be met just so.
            assert!((bytes - 1..=bytes).contains(&batch.as_bytes().len()), "{bytes}: {batch:?}");
        }
        let mut batch = Batch::new();
        put(&mut batch, REQUEST_ROW, 0);
        assert_eq!((batch.len(), batch.as_bytes().len()), (1, 5));
    }
}
