//! The face of a chapter: everything that the node asks of quotas, of transactions, and of later chapters.
//!
//! A chapter holds its own state, in memory, and answers for its own rows. It sees the rest of the site as [`Here`] and
//! hands out the effects of a call in [`crate::turn::Out`]; it never calls another chapter, and never the node. The
//! node keeps the chapters in one list, and calls each for what is its own, in one order:
//!
//! | when | the node calls |
//! | --- | --- |
//! | the site starts | `restore` for each of the chapter's rows, `restored` when there are no more |
//! | the site begins to serve | `resume` |
//! | an input came | `request_needs`, `message_needs` or `tick_needs`; then the method that handles it, with the rows from storage |
//! | a client asks for something | `execute` for an operation, `request` for what is none |
//! | a peer says something | `hear`, then `message` if it is about the chapter |
//! | the earliest `deadline` has come | `tick` |
//! | a client gives up | `withdraw`, `inquire`, `abandon`, `end_session` |
//! | a call is over | `persist`, `measure` |
//! | the site drains | `leave`, until it is done |
//!
//! What a chapter says to itself ([`Out::send`](crate::turn::Out::send) to this site) it takes up before its call ends, so the
//! queue of these is empty whenever another chapter is called.

use std::collections::BTreeSet;

use crate::api::{Operation, Outcome, Request, Status};
use crate::clock::Now;
use crate::config::OpenError;
use crate::id::{Incarnation, OperationId, SessionId};
use crate::machine::{ClientId, KeySet, Reader, View};
use crate::metrics::Metrics;
use crate::peer::Body;
use crate::right::Start;
use crate::rows::Owner;
use crate::session::Aim;
use crate::turn::{Here, Peer, Ticket, Turn};

/// An operation that a session has taken in, and that is to be carried out.
#[derive(Debug)]
pub struct Order<'a> {
    /// Its session and sequence.
    pub ticket: Ticket,
    /// The operation itself; its chapter takes out of it what it keeps.
    pub operation: &'a mut Operation,
    /// The longest time that it may wait, in microseconds.
    pub timeout: u64,
    /// The session's mark: operations below have been answered.
    pub low: u64,
    /// The digest of its content.
    pub digest: u64,
}

/// An operation that waited when the site stopped: a row of a chapter brings it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revived {
    /// Its session and sequence.
    pub ticket: Ticket,
    /// The session's mark.
    pub low: u64,
    /// The digest of its content.
    pub digest: u64,
}

/// The fate of an operation that was undecided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is undecided still.
    Open,
    /// It ended with this outcome.
    Settled(Outcome),
    /// It did not take effect, and never will.
    Lost,
}

/// The progress of a chapter that gives everything away because the site is to stop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Leaving {
    /// Nothing is left that another site could use, and nothing waits.
    Done,
    /// Something waits, or may come in.
    Waits,
    /// There is more to give away at once.
    GoesOn,
}

/// One chapter at one site. It is called only with rows, messages, operations and requests of its own [`Owner`].
pub trait Chapter {
    /// The owner that it is.
    fn owner(&self) -> Owner;

    // Storage.

    /// Restores one of its resident rows, in the order of keys. The storage is of `incarnation`; a row that needs
    /// others reads them. Returns the operation that the row brings back, if it waits.
    fn restore(
        &mut self,
        key: &[u8],
        value: &[u8],
        incarnation: Incarnation,
        reader: &dyn Reader,
    ) -> Result<Option<Revived>, OpenError>;

    /// Notes that all its rows are restored, of the storage of `incarnation`.
    fn restored(&mut self, _incarnation: Incarnation, _reader: &dyn Reader) -> Result<(), OpenError> {
        Ok(())
    }

    /// Begins to serve, in this start: takes up what an earlier life left undone.
    fn resume(&mut self, turn: &mut Turn, start: Start);

    /// Ends a call: writes the rows that it changed, and forgets everything that was only of this call.
    fn persist(&mut self, turn: &mut Turn);

    /// True if this site must not vouch for its storage to the member at a position: that may still let somebody rely on something which is no
    /// longer kept here; or leave, while something that was given to it has not arrived.
    fn withholds_from(&self, _: &Here, _position: usize) -> bool {
        false
    }

    /// True if something durable ends by the site's uptime, so that the uptime must be durable too.
    fn counts_uptime(&self) -> bool {
        false
    }

    // The rows that an input needs from storage.

    /// Adds the rows that a request needs, if it is of this chapter.
    fn request_needs(&self, here: &Here, request: &Request, needed: &mut KeySet);

    /// Adds the rows that a message needs.
    fn message_needs(&self, _here: &Here, _message: &Body, _needed: &mut KeySet) {}

    /// Adds the rows that a tick at this time needs.
    fn tick_needs(&self, here: &Here, needed: &mut KeySet);

    // Inputs.

    /// Carries out an operation. None if it waits: its outcome then comes by [`crate::turn::Out::finished`].
    fn execute(&mut self, turn: &mut Turn, view: &View, order: Order) -> Option<Outcome>;

    /// Answers a request that is no operation, now or later.
    fn request(&mut self, turn: &mut Turn, view: &View, client: ClientId, request: Request);

    /// Notes that the member at a position sent a message, of any chapter, in this epoch of names.
    fn hear(&mut self, _turn: &mut Turn, _from: usize, _epoch: u64) {}

    /// Handles a message of the member at a position, sent in this epoch of names.
    fn message(&mut self, turn: &mut Turn, view: &View, from: usize, epoch: u64, message: Body);

    /// The earliest time at which something is due, in monotonic microseconds.
    fn deadline(&self) -> Option<u64>;

    /// Does what is due.
    fn tick(&mut self, turn: &mut Turn, view: &View);

    /// Notes that the member at a position has a new incarnation; it `replaces` an earlier one if it is not the first.
    fn meet(&mut self, now: Now, position: usize, peer: &Peer, replaces: bool);

    /// Notes that the members have changed; positions stay what they were.
    fn meet_members(&mut self, _here: &Here) {}

    // Operations that wait.

    /// The number of operations that wait.
    fn waiting(&self) -> usize;

    /// Gives up operations of a session that wait here. Returns those that will never take effect; the others go on.
    fn withdraw(&mut self, turn: &mut Turn, session: SessionId, sequences: &BTreeSet<u64>) -> BTreeSet<u64>;

    /// Finds out as soon as possible what becomes of an operation that goes on: a client asks.
    fn inquire(&mut self, _turn: &mut Turn, _operation: OperationId) {}

    /// Notes that no client waits any more for an operation that goes on: no row is to bring it back.
    fn abandon(&mut self, _turn: &mut Turn, _operation: OperationId) {}

    /// Notes that a session has ended: no row is to bring back any of its operations.
    fn end_session(&mut self, _turn: &mut Turn, _session: SessionId) {}

    /// The fate of an operation whose row says that it was undecided.
    fn fate(&self, _aim: Aim) -> Fate {
        Fate::Open
    }

    // The site.

    /// Gives away everything that other sites can use, because this one is to stop. Called until it is done, or takes
    /// too long.
    fn leave(&mut self, _turn: &mut Turn) -> Leaving {
        Leaving::Done
    }

    /// Gives nothing away any more: the site is not to stop.
    fn stay(&mut self) {}

    /// Sets its fields of the site's status.
    fn describe(&self, _status: &mut Status) {}

    /// Sets its fields of the site's metrics.
    fn measure(&self, _metrics: &mut Metrics) {}
}
