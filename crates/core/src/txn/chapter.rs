//! Objects and transactions as a chapter of the node.

use std::collections::BTreeSet;

use super::reader::Home;
use super::row::{self, CoordinatorRow, ParticipantRow};
use super::{Commit, Txns, participant, table, treaties};
use crate::api::{Operation, Outcome, Request, Response, UnknownReason};
use crate::bounds::READ_ITEMS;
use crate::chapter::{Chapter, Order, Revived};
use crate::clock::Now;
use crate::codec::Malformed;
use crate::config::OpenError;
use crate::id::{Incarnation, OperationId, SessionId};
use crate::machine::{ClientId, KeySet, Reader, View};
use crate::object::message::Message;
use crate::peer::Body;
use crate::right::Start;
use crate::rows::{DEPENDENT, LEAF, NUMBERS, Owner, PARTICIPANT};
use crate::turn::{Here, Peer, Ticket, Turn};

impl Chapter for Txns {
    fn owner(&self) -> Owner {
        Owner::Txn
    }

    fn restore(
        &mut self,
        key: &[u8],
        value: &[u8],
        incarnation: Incarnation,
        reader: &dyn Reader,
    ) -> Result<Option<Revived>, OpenError> {
        let malformed = |Malformed| OpenError::Malformed { key: key.to_vec() };
        match key[0] {
            NUMBERS => self.participant.restore_numbers(value).map_err(malformed)?,
            PARTICIPANT => {
                let id = row::participant_of(key).map_err(malformed)?;
                let row = ParticipantRow::decode(value).map_err(malformed)?;
                self.participant.restore(id, row, (self.me, incarnation), reader)?;
            }
            DEPENDENT => self.calls.restore(key, value).map_err(malformed)?,
            LEAF => self.participant.leaves.restore(key, value).map_err(malformed)?,
            _ => {
                let (session, sequence, row) = CoordinatorRow::decode(key, value).map_err(malformed)?;
                let CoordinatorRow { low, digest, is_committed, .. } = row;
                let id = OperationId { site: self.me, incarnation, session, sequence };
                self.coordinator.restore(self.me, id, row);

                // A mark above it says that nobody waits for it any more. One that is committed has its outcome in a
                // row of its session: neither is brought back as an operation that waits.
                let waits = !is_committed && sequence >= low;
                return Ok(waits.then_some(Revived { ticket: Ticket { session, sequence }, low, digest }));
            }
        }

        Ok(None)
    }

    fn restored(&mut self, incarnation: Incarnation, reader: &dyn Reader) -> Result<(), OpenError> {
        Ok(self.participant.restored((self.me, incarnation), reader)?)
    }

    fn counts_uptime(&self) -> bool {
        self.participant.counts_uptime()
    }

    fn withholds_from(&self, here: &Here, position: usize) -> bool {
        self.participant.leaves.withholds_from(here.peers[position].site.region)
    }

    fn meet_members(&mut self, here: &Here) {
        self.calls.meet_members(here);
    }

    fn resume(&mut self, turn: &mut Turn, start: Start) {
        self.start = start;
        self.participant.resume(&turn.here, start);
        self.coordinator.resume(&turn.here, start);
        self.reader.start = start;
        self.calls.resume(&turn.here, start);
    }

    fn persist(&mut self, turn: &mut Turn) {
        self.participant.persist(&mut turn.out.batch);
    }

    fn request_needs(&self, here: &Here, request: &Request, needed: &mut KeySet) {
        let incarnation = here.site.incarnation;
        match request {
            // A transaction beyond the bounds will be refused without a look at storage. Nothing is read for it, or a
            // client could have a site read without bound.
            Request::Batch(batch) if batch.site == self.me => {
                for submission in &batch.operations {
                    if let Operation::Commit(transaction) = &submission.operation
                        && transaction.keeps_bounds()
                    {
                        let own = transaction.homes.iter().filter(|home| home.region == self.me.region);
                        own.for_each(|home| participant::needs(&home.part, incarnation, needed));
                    }
                }
            }
            Request::Read(read) if read.gets.len() + read.scans.len() <= READ_ITEMS => {
                let gets = read.gets.iter().filter(|key| key.home == self.me.region);
                let scans = read.scans.iter().filter(|(region, _)| *region == self.me.region);
                table::need_reads(gets.map(|key| &*key.name), scans.map(|(_, span)| span), incarnation, needed);
            }
            Request::Treaties { treaty } => treaties::show_needs(here, treaty.as_ref(), needed),
            _ => {}
        }
    }

    fn message_needs(&self, here: &Here, message: &Body, needed: &mut KeySet) {
        let Body::Txn(message) = message else { unreachable!("it is not about objects") };
        let incarnation = here.site.incarnation;

        // The same bounds as where each message is handled: one that breaks them is ignored there, and needs nothing.
        match &**message {
            Message::Fetch(fetch) if fetch.gets.len() + fetch.scans.len() <= READ_ITEMS => {
                table::need_reads(fetch.gets.iter().map(|(name, _)| &**name), fetch.scans.iter(), incarnation, needed);
            }
            Message::Prepare(prepare) if prepare.part.keeps_bounds() => {
                participant::needs(&prepare.part, incarnation, needed);
            }
            Message::Treaty { treaty, says, .. } => treaties::message_needs(here, treaty, says, needed),
            Message::ProbeCalls { names, .. } if names.len() <= READ_ITEMS => {
                names.iter().for_each(|name| table::need_head(incarnation, name, needed));
            }
            _ => {}
        }
    }

    fn tick_needs(&self, here: &Here, needed: &mut KeySet) {
        self.participant.timers_need(here.now.mono, here.site.incarnation, needed);
        self.calls.timers_need(here, needed);
    }

    fn execute(&mut self, turn: &mut Turn, view: &View, order: Order) -> Option<Outcome> {
        let Order { ticket, operation, timeout, low, digest } = order;
        match operation {
            Operation::Commit(transaction) => {
                let table = self.table(&turn.here, view);
                let id = ticket.operation(&turn.here);
                let commit = Commit { id, transaction: std::mem::take(transaction), timeout, marks: (low, digest) };
                let outcome = self.commit(turn, &table, ticket, commit);

                // The participant here is asked in this same call, before any other site.
                self.settle(turn, &table);
                outcome
            }
            Operation::AcceptLoss => {
                self.participant.accept_loss();
                Some(Outcome::LossAccepted)
            }
            _ => unreachable!("it is not about objects"),
        }
    }

    fn request(&mut self, turn: &mut Turn, view: &View, client: ClientId, request: Request) {
        match request {
            Request::Read(read) => {
                let table = self.table(&turn.here, view);
                let Self { participant, calls, reader, .. } = self;
                let mut home = Home { participant, calls, table: &table };
                reader.read(turn, &mut home, client, *read);
                self.settle(turn, &table);
            }
            // Traces are of this life's memory: one that is not there may have been forgotten, which says nothing of
            // the transaction.
            Request::Explain { operation } => {
                let trace = match self.explain(operation) {
                    Some(trace) => Ok(Box::new(trace.clone())),
                    None if operation.incarnation != turn.here.site.incarnation => Err(UnknownReason::IncarnationLost),
                    None => Err(UnknownReason::Forgotten),
                };
                turn.out.responses.push((client, Response::Explained { operation, trace }));
            }
            Request::Treaties { treaty } => {
                let table = self.table(&turn.here, view);
                let here = self.participant.show_treaties(&turn.here, &table, treaty.as_ref());
                turn.out.responses.push((client, Response::Treaties(Box::new(here))));
            }
            _ => unreachable!("it is not about objects"),
        }
    }

    fn message(&mut self, turn: &mut Turn, view: &View, from: usize, _: u64, message: Body) {
        let Body::Txn(message) = message else { unreachable!("it is not about objects") };
        let from = turn.here.peers[from].site;
        self.participant.note_clocks(&turn.here);
        let table = self.table(&turn.here, view);
        self.hear(turn, &table, from, *message);
        self.settle(turn, &table);
    }

    fn deadline(&self) -> Option<u64> {
        let rooms =
            [self.participant.deadline(), self.coordinator.deadline(), self.reader.deadline(), self.calls.deadline()];
        rooms.iter().flatten().copied().min()
    }

    fn tick(&mut self, turn: &mut Turn, view: &View) {
        // The clocks of others come first: what is due is judged by them.
        self.participant.note_clocks(&turn.here);
        let table = self.table(&turn.here, view);
        self.participant.tick(turn, &table, &mut self.calls);
        self.coordinator.tick(turn);
        self.reader.tick(turn);

        for call in self.calls.tick(turn, &table) {
            self.participant.delete_idle(turn, &table, &mut self.calls, call);
        }

        self.settle(turn, &table);
    }

    fn meet(&mut self, _: Now, _: usize, peer: &Peer, _: bool) {
        self.reader.cache.forget_home(peer.site.region, peer.incarnation);
    }

    fn waiting(&self) -> usize {
        self.coordinator.coordination.len()
    }

    fn withdraw(&mut self, turn: &mut Turn, session: SessionId, sequences: &BTreeSet<u64>) -> BTreeSet<u64> {
        let mut withdrawn = BTreeSet::new();
        for sequence in sequences {
            let id = Ticket { session, sequence: *sequence }.operation(&turn.here);
            if self.coordinator.take_back(turn, id) {
                withdrawn.insert(*sequence);
            }
        }
        self.settle_without_storage(turn);
        withdrawn
    }

    fn inquire(&mut self, turn: &mut Turn, operation: OperationId) {
        self.coordinator.ask_participants(turn, operation);
        self.settle_without_storage(turn);
    }

    fn abandon(&mut self, turn: &mut Turn, operation: OperationId) {
        self.coordinator.leave_alone(turn, operation);
    }

    fn end_session(&mut self, turn: &mut Turn, session: SessionId) {
        self.coordinator.leave_session(turn, session);
    }
}
