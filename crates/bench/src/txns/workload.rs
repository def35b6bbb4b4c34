//! What a workload is, and what its programs have at hand.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use slackline::{Committed, Key, Outcome, Transaction, TxnError, Value};
use slackline_core::stats::Rng;
use slackline_session::port::Port;
use slackline_session::time::Time;
use slackline_session::txn::Memos;

use super::setting::{DEADLINE, region};
use crate::report::Run;

/// A client's seat: its number, its site, and the port that its transactions stand on.
#[derive(Clone)]
pub(super) struct Seat {
    /// Its number among all clients.
    pub(super) client: usize,
    /// The position of its site.
    pub(super) site: usize,
    /// The region of that site.
    region: String,
    /// The links, the time and the random numbers that its transactions stand on.
    pub(super) port: Arc<dyn Port>,
    /// The results of memoized functions that it keeps.
    memos: Arc<Memos>,
}

impl Seat {
    /// The seat of a client at a site.
    pub(super) fn new(client: usize, site: usize, port: Arc<dyn Port>, memos: Arc<Memos>) -> Self {
        Self { client, site, region: region(site), port, memos }
    }

    /// The time, virtual or real.
    pub(super) fn now(&self) -> Time {
        self.port.now()
    }

    /// A transaction at the client's site.
    pub(super) fn transaction(&self) -> Transaction {
        Transaction::over(Arc::clone(&self.port), Arc::clone(&self.memos)).at(&self.region).deadline(DEADLINE)
    }
}

/// The end of one step of a client.
pub(super) struct Step {
    /// The outcome of its transaction.
    pub(super) outcome: Outcome<Committed<()>>,
    /// True if the transaction was to write.
    pub(super) writes: bool,
}

/// The objects of a run, the steps of its clients, and the check of what is there in the end.
pub(super) trait Workload: 'static {
    /// The objects of a store before the first step.
    fn objects(&self, store: usize) -> Vec<(Key, Value)>;

    /// One transaction of a client.
    ///
    /// # Errors
    ///
    /// An object does not hold what it should.
    async fn step(&self, seat: &Seat, rng: &mut Rng) -> Result<Step, TxnError>;

    /// Checks the data in the end.
    async fn verify(&self, seat: &Seat) -> Result<(), String>;

    /// Adds what only this workload knows.
    fn tell(&self, run: Run) -> Run {
        run
    }
}

/// Changes of one sort that clients were told, to be held against what is there in the end.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Those that were told to be done.
    pub(super) done: Cell<u64>,
    /// Those of which it is not known how they ended: each was done once, or not at all.
    pub(super) unknown: Cell<u64>,
}

impl Told {
    /// Notes how one ended.
    pub(super) fn note<T>(&self, outcome: &Outcome<T>) {
        match outcome {
            Outcome::Done(_) => self.done.set(self.done.get() + 1),
            Outcome::Refused(_) => {}
            Outcome::Unknown(_) => self.unknown.set(self.unknown.get() + 1),
        }
    }

    /// Checks that as many were found as clients were told.
    ///
    /// # Errors
    ///
    /// There are more or fewer.
    pub(super) fn check(&self, found: u64, what: &str) -> Result<(), String> {
        // What is unknown may have been done or not: any number of them may be there.
        let (told, unknown) = (self.done.get(), self.unknown.get());
        if found < told || found > told + unknown {
            return Err(format!("{found} {what} are there, {told} were told ({unknown} are unknown)"));
        }
        Ok(())
    }
}

/// A commit without the value that its program returned.
pub(super) fn without_value<T>(committed: Committed<T>) -> Committed<()> {
    let Committed { value: _, phases, runs, operation } = committed;
    Committed { value: (), phases, runs, operation }
}

/// Reads all objects under these names in one transaction.
pub(super) async fn read_all(seat: &Seat, keys: &[Key]) -> Result<Vec<Option<Value>>, String> {
    let read = seat.transaction().run(|txn| async move { txn.values(keys).await }).await;
    match read {
        Ok(Outcome::Done(values)) => Ok(values),
        other => Err(format!("the objects cannot be read: {other:?}")),
    }
}

/// Polls two futures at the same time, and returns the outputs of both.
pub(super) async fn both<F: Future>(one: F, other: F) -> (F::Output, F::Output) {
    // Here rather than by a library: this runs in virtual time as well, where no runtime polls.
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(output) = one.as_mut().poll(context)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = other.as_mut().poll(context)
        {
            second = Some(output);
        }

        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}
