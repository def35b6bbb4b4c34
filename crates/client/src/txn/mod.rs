//! Transactions over objects, strictly serializable: they take effect one after the other, in an order that agrees with the
//! order in which callers see them end.
//!
//! A program runs here, in the client, against one site: it reads through [`Txn`], and what it writes stays in a buffer. At
//! its end the site is told which versions it read and what it wants to write, and finds out whether all of that is still
//! so. If it is, everything is written; if not, nothing is, and the program is run again.
//!
//! | module | what it is about |
//! | --- | --- |
//! | `again` | what a run reads ahead that is not the first, and asking for its turn |
//! | `memo`, `calls` | memoized functions, and calls of them |
//! | `port` | who reads and commits for it, and has the time: a client, or a simulator |
//! | here | reading and writing, running and running again |

mod again;
mod calls;
pub(crate) mod memo;
pub mod port;

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::BuildHasher;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use slackline_core::api::{Claim, Reading};
use slackline_core::draft::again::Footprint;
use slackline_core::draft::buffer::{LayerId, Misfit, ROOT, apply};
use slackline_core::draft::snapshot::{Contradiction, end_of, is_within};
use slackline_core::draft::{Draft, FrameId};
use slackline_core::id::{OperationId, SiteId};
use slackline_core::object::{
    self, Cause, Change, ObjectKey, SCAN_ROWS, Seen, Span, TRANSACTION_OPERATIONS, Value, is_key, is_prefix,
};
use slackline_core::txn::READ_ITEMS;

use crate::book::{Act, NotTaken};
use crate::call::{AcceptLoss, Call, Place};
use crate::client::{Client, DEFAULT_DEADLINE, after};
use crate::object::Key;
use crate::outcome::{Aborted, Outcome, Reason, Refused};
use crate::reads::Wanted;
use crate::topology::Topology;
use again::{Ahead, Program};
use port::Port;

/// The lane in which objects live.
const LANE: u16 = 0;
/// The first pause before a transaction is run again, and the longest; each is twice the one before, less up to half of it by
/// chance.
const PAUSES: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(500));
/// How long a home that does not answer is tried again: links break for moments, and a site that has just started has not
/// heard of the others yet.
const OUTAGE: Duration = Duration::from_secs(1);
/// How much earlier than the transaction reads end.
const MARGIN: Duration = Duration::from_millis(20);
/// How many rows a scan asks for at a time.
const PAGE: u32 = 256;

impl Client {
    /// The object of this name in this region.
    pub fn object(&self, region: impl Into<String>, name: impl Into<String>) -> Key {
        Key::new(region, name)
    }

    /// Runs a transaction on the terms of the client: within its deadline, at the nearest site. [`Client::transaction`] sets
    /// others.
    ///
    /// ```no_run
    /// # async fn example(client: slackline::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use slackline::TxnError;
    ///
    /// let alice = client.object("us", "users/alice/seats");
    /// let total = client.object("eu", "seats");
    /// let seats = client
    ///     .transact(|txn| {
    ///         let (alice, total) = (alice.clone(), total.clone());
    ///         async move {
    ///             let seats: Vec<String> = txn.get(&alice).await?.unwrap_or_default();
    ///             let seats = [seats, vec!["12A".to_owned()]].concat();
    ///             txn.put(&alice, &seats)?;
    ///             txn.add(&total, -1)?;
    ///             Ok::<_, TxnError>(seats)
    ///         }
    ///     })
    ///     .await?
    ///     .done()?;
    /// println!("alice has {seats:?}");
    /// # Ok(()) }
    /// ```
    ///
    /// See [`Transaction::run`] for what the program may do and how it ends.
    pub async fn transact<T, E, F, R>(&self, program: F) -> Result<Outcome<T>, E>
    where
        F: FnMut(Txn) -> R,
        R: Future<Output = Result<T, E>>,
    {
        self.transaction().run(program).await
    }

    /// A transaction whose terms are to be set.
    pub fn transaction(&self) -> Transaction {
        Transaction::over(self.shared.clone()).deadline(self.shared.deadline)
    }

    /// Says that what the site of this region lost with its storage is gone for good: objects of which nothing is there count
    /// as absent from now on, instead of being refused as [lost](Cause::Lost).
    pub fn accept_loss(&self, region: &str) -> Call<AcceptLoss> {
        Call::new(self.clone(), LANE, Act::AcceptLoss, Place::Nearest).at(region)
    }
}

/// A transaction that has not been run yet: set its terms, then [run](Transaction::run) it.
#[must_use = "a transaction does nothing until it is run"]
#[derive(Clone)]
pub struct Transaction {
    port: Arc<dyn Port>,
    place: Place,
    deadline: Duration,
    max_wait: Option<Duration>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port: _, place, deadline, max_wait } = self;
        f.debug_struct("Transaction")
            .field("place", place)
            .field("deadline", deadline)
            .field("max_wait", max_wait)
            .finish_non_exhaustive()
    }
}

/// A transaction that took effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed<T> {
    /// What the program gave.
    pub value: T,
    /// In how many phases: 0 if its site judged it alone and it wrote nothing, 1 if one site did, 2 if several. 0 too if it
    /// neither read nor wrote.
    pub phases: u8,
    /// How often the program was run.
    pub runs: u32,
    /// The operation that committed it; none if it neither read nor wrote.
    pub operation: Option<OperationId>,
}

impl Transaction {
    /// A transaction that somebody else than a client reads and commits for; for simulators and benchmarks.
    #[doc(hidden)]
    pub fn over(port: Arc<dyn Port>) -> Self {
        Self { port, place: Place::Nearest, deadline: DEFAULT_DEADLINE, max_wait: None }
    }

    /// How long it may take in all, every run included.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Has it run against the site of this region, and no other. Without, each run takes the nearest that can be reached.
    pub fn at(mut self, region: &str) -> Self {
        self.place = self.port.topology().place(region);
        self
    }

    /// How long its writes may wait for others' rights to read the old values. A site that reads an object often holds such a
    /// right for up to 10 s, and gives it up when asked; one that cannot be reached is waited for. If it is known to take
    /// longer, the transaction is refused at once, as [`Cause::WouldWait`]; if it turns out to, when a home has waited for so
    /// long. Without, the deadline is the only bound.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    /// Runs a program as a transaction, again and again until it is committed, is refused, or its deadline has passed.
    ///
    /// - It may be run **several times**: it must do nothing but read and write through its [`Txn`], or nothing that may not
    ///   happen several times.
    /// - As long as it runs, what it has read **may not belong together**: two reads may be of different times. Then it is
    ///   not committed, but it must not loop for ever or panic over such a thing.
    /// - Errors of [`Txn`] are passed on with `?`. It depends on what was read whether the program is run again.
    ///
    /// Ends in one of these ways:
    ///
    /// - `Ok(Outcome::Done(value))`: it took effect, with this value.
    /// - `Ok(Outcome::Refused(…))`: it did not, and never will. [`Reason::Aborted`] tells why, about which object, and who
    ///   stands in the way.
    /// - `Ok(Outcome::Unknown(…))`: it may have taken effect or not. [`Client::outcome_of`] settles it.
    /// - `Err(error)`: the program's own error. Nothing was written. What it had read up to there was true at one time: that
    ///   was validated before the error was handed over, and if it was not so, the program was run again.
    ///
    /// # Errors
    ///
    /// The program's own.
    pub async fn run<T, E, F, R>(self, program: F) -> Result<Outcome<T>, E>
    where
        F: FnMut(Txn) -> R,
        R: Future<Output = Result<T, E>>,
    {
        Ok(self.run_and_tell(program).await?.map(|committed| committed.value))
    }

    /// As [`Transaction::run`]; tells in how many phases and after how many runs.
    ///
    /// # Errors
    ///
    /// The program's own.
    pub async fn run_and_tell<T, E, F, R>(self, mut program: F) -> Result<Outcome<Committed<T>>, E>
    where
        F: FnMut(Txn) -> R,
        R: Future<Output = Result<T, E>>,
    {
        let deadline = after(self.port.now(), self.deadline);
        let region = match self.region() {
            Ok(region) => region,
            Err(reason) => return Ok(Outcome::Refused(Refused { reason, operation: None })),
        };
        let mut whose = Program { nonce: self.port.random() | 1, since: self.port.now() };
        let mut pause = PAUSES.0;
        let mut runs = 0;
        let mut before: Option<Footprint> = None;
        let mut contended = 0_u32;
        let mut avoid = Vec::new();
        // Why the run before came to nothing.
        let mut last: Option<Failure> = None;
        let mut outage: Option<Instant> = None;
        loop {
            runs += 1;
            let site = self.port.choose(region, &mut avoid);
            // Reads end a little before the program would be ended, and say why they did not come to anything.
            let began = self.port.now();
            let margin = (deadline.saturating_duration_since(began) / 16).min(MARGIN);
            // Who has read goes before who reads later. Only whom that does not help gets older than the run is.
            if !before.as_ref().is_some_and(|footprint| footprint.keeps_age(contended)) {
                whose.since = began;
            }
            let txn = Txn::new(Arc::clone(&self.port), site, runs > 1, deadline - margin, whose);
            let before_this = before.take();
            if let Some(footprint) = &before_this {
                let bars = footprint.bars(contended);
                self.until(deadline, txn.read_ahead(footprint, whose.origin(began), bars)).await;
            }
            let ended = self.until(deadline, program(txn.clone())).await;
            let is_sound = matches!(ended, Some(Ok(_)))
                && matches!(self.until(deadline, txn.check_computed()).await, Some(Ok(true)));
            let State { draft, failure, may_propose, is_whole, ahead, .. } = txn.clone().end();
            // What was so at one time, and is not changed by it, has taken effect then.
            let is_whole = is_whole && draft.buffer.is_empty(ROOT);
            let (failure, draft) = match (ended, failure) {
                // It was still reading, or doing something else: nothing was sent that could take effect.
                (None, failure) => {
                    let failure = failure.unwrap_or_else(|| Failure::of(Cause::DeadlinePassed, None));
                    return Ok(failure.or_before(last, self.port.now() - began).refused());
                }
                (Some(Err(_)), Some(failure)) => (failure, draft),
                (Some(Ok(value)), _) if is_whole => {
                    return Ok(Outcome::Done(Committed { value, phases: 0, runs, operation: None }));
                }
                (Some(Err(error)), None) if is_whole => return Err(error),
                (Some(Ok(value)), _) => {
                    match self.commit_with_calls(region, &txn, draft, (before_this, ahead), deadline).await {
                        (Attempt::Committed { phases, operation }, draft) => {
                            if is_sound && may_propose {
                                self.propose(region, &draft);
                            }
                            return Ok(Outcome::Done(Committed { value, phases, runs, operation }));
                        }
                        (Attempt::Again(failure) | Attempt::Depended { failure, .. }, draft) => (failure, draft),
                        (Attempt::Over(outcome), _) => return Ok(outcome.map(|never| match never {})),
                    }
                }
                (Some(Err(error)), None) => match self.commit(region, &txn, draft.to_validate(), deadline).await {
                    Attempt::Committed { .. } => return Err(error),
                    Attempt::Again(failure) | Attempt::Depended { failure, .. } => (failure, draft),
                    Attempt::Over(outcome) => return Ok(outcome.map(|never| match never {})),
                },
            };
            if failure.is_of_the_site {
                avoid.push(site);
            }
            before = failure.is_contention().then(|| Footprint::of(&draft)).filter(|footprint| !footprint.is_empty());
            // What computes calls anew is judged several times in a run, and would lose its turn at the first. It waits here.
            if before.is_some() && !draft.is_treating() {
                // It waits for its turn at the homes. To wait here, too, would be to lose it.
                contended += 1;
                pause = PAUSES.0;
            }
            let (now, rest) = (self.port.now(), jittered(pause, self.port.random()));
            let failure = failure.or_before(last.take(), now - began);
            outage = failure.is_outage().then(|| outage.unwrap_or(now));
            let is_brief = outage.is_some_and(|since| now < since + OUTAGE);
            if !(failure.is_transient || is_brief) || now + rest >= deadline {
                return Ok(failure.refused());
            }
            last = Some(failure);
            self.port.sleep_until(now + rest).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// The only region in which it may run, if there is one.
    fn region(&self) -> Result<Option<u16>, Reason> {
        match &self.place {
            Place::Nearest => Ok(None),
            Place::Region(region) => Ok(Some(*region)),
            Place::Site(site) => Ok(Some(site.region)),
            Place::Nowhere(region) => {
                let known = self.port.topology().regions.clone();
                Err(Reason::UnknownRegion { region: region.clone(), known })
            }
        }
    }

    /// Runs `work` until the deadline; `None` if it is not ready by then.
    async fn until<F: Future>(&self, deadline: Instant, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        let mut alarm = None;
        poll_fn(|context| {
            if let Poll::Ready(output) = work.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            let alarm = alarm.get_or_insert_with(|| self.port.sleep_until(deadline));
            alarm.as_mut().poll(context).map(|()| None)
        })
        .await
    }

    async fn commit(
        &self,
        region: Option<u16>,
        txn: &Txn,
        mut transaction: object::Transaction,
        deadline: Instant,
    ) -> Attempt {
        transaction.origin = txn.run.program.origin(self.port.now());
        let is_read_only = !transaction.homes.iter().any(|home| home.part.changes());
        if let Err(abort) = transaction.normalize() {
            return Attempt::Again(Failure::of_abort(abort, self.port.topology()));
        }
        if transaction.homes.is_empty() {
            return Attempt::Committed { phases: 0, operation: None };
        }
        match Arc::clone(&self.port).commit(region, transaction, deadline).await {
            Outcome::Done((phases, operation)) => Attempt::Committed { phases, operation: Some(operation) },
            Outcome::Refused(Refused { reason, operation }) => {
                let depended = depended(self.port.topology(), &reason);
                let is_transient = match &reason {
                    Reason::Aborted(aborted) => is_transient(aborted.cause),
                    reason => *reason == Reason::Withdrawn,
                };
                let failure = Failure { reason, operation, is_transient, is_of_the_site: false };
                match depended {
                    Some((home, calls)) => Attempt::Depended { failure, home, calls },
                    None => Attempt::Again(failure),
                }
            }
            // It wrote nothing, so there is nothing that could have happened.
            Outcome::Unknown(unknown) if is_read_only => {
                let reason = Reason::Aborted(Box::new(Aborted::of(Cause::DeadlinePassed, None)));
                let operation = Some(unknown.operation);
                Attempt::Again(Failure { reason, operation, is_transient: true, is_of_the_site: true })
            }
            Outcome::Unknown(unknown) => Attempt::Over(Outcome::Unknown(unknown)),
        }
    }

    /// How long its writes may wait, in microseconds.
    fn longest_wait(&self) -> u64 {
        u64::try_from(self.max_wait.unwrap_or(self.deadline).as_micros()).unwrap_or(u64::MAX)
    }
}

/// The home that says that calls depend on what is written there, and the calls.
fn depended(topology: &Topology, reason: &Reason) -> Option<(u16, Vec<ObjectKey>)> {
    let Reason::Aborted(aborted) = reason else { return None };
    let place = |key: &Key| Some(ObjectKey::new(topology.region(key.region())?, key.name()));
    let key = aborted.key.as_ref().filter(|_| aborted.cause == Cause::Depended)?;
    Some((topology.region(key.region())?, aborted.calls.iter().filter_map(place).collect()))
}

/// What came of a run.
enum Attempt {
    Committed {
        phases: u8,
        operation: Option<OperationId>,
    },
    Again(Failure),
    /// Calls depend on what it writes at a home.
    Depended {
        failure: Failure,
        home: u16,
        calls: Vec<ObjectKey>,
    },
    Over(Outcome<std::convert::Infallible>),
}

/// Why a run came to nothing.
#[derive(Debug)]
struct Failure {
    reason: Reason,
    operation: Option<OperationId>,
    /// Whether another run may succeed.
    is_transient: bool,
    /// Whether another site may do better.
    is_of_the_site: bool,
}

impl Failure {
    fn of_abort(abort: object::Abort, topology: &Topology) -> Self {
        let is_of_the_site = abort.cause == Cause::NotReady;
        let is_transient = is_transient(abort.cause);
        let reason = Reason::of_abort(abort, topology);
        Self { reason, operation: None, is_transient, is_of_the_site }
    }

    /// Whether other transactions were in the way.
    fn is_contention(&self) -> bool {
        matches!(&self.reason, Reason::Aborted(aborted) if matches!(aborted.cause, Cause::Changed | Cause::Busy))
    }

    /// Whether the home of an object did not answer.
    fn is_outage(&self) -> bool {
        matches!(&self.reason, Reason::Aborted(aborted) if aborted.cause == Cause::Unreachable)
    }

    /// Why the transaction comes to nothing, after a run that took so long: that the time of a short one was up is no news if
    /// one before it failed for a reason of its own.
    fn or_before(self, before: Option<Self>, took: Duration) -> Self {
        let is_late = matches!(&self.reason,
            Reason::Aborted(aborted) if aborted.cause == Cause::DeadlinePassed && aborted.holders.is_empty());
        before.filter(|_| is_late && took < OUTAGE).unwrap_or(self)
    }

    fn refused<T>(self) -> Outcome<T> {
        Outcome::Refused(Refused { reason: self.reason, operation: self.operation })
    }

    fn of(cause: Cause, key: Option<Key>) -> Self {
        let reason = Reason::Aborted(Box::new(Aborted::of(cause, key)));
        Self { reason, operation: None, is_transient: is_transient(cause), is_of_the_site: false }
    }
}

/// Whether a transaction that was aborted for this is run again. Besides what may be so on other data: it was asked about, or
/// given up, before it was prepared; or its site is about to serve, and there are others.
fn is_transient(cause: Cause) -> bool {
    cause.is_transient() || matches!(cause, Cause::Withdrawn | Cause::NotReady | Cause::Depended)
}

/// Something that a program asked of its transaction cannot be had. Pass it on with `?`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// An object could not be read. If the program ends with an error now, this is why the transaction is refused, unless it
    /// is run again.
    #[error("{0}")]
    NotRead(Reason),
    /// The object does not hold what the program takes it for.
    #[error("{key} does not hold what was asked for: {why}")]
    Unexpected {
        /// The object.
        key: Key,
        /// What is wrong with it.
        why: String,
    },
    /// The counter would leave the range of 64-bit integers.
    #[error("{0} would leave the range of 64-bit integers")]
    OutOfRange(Key),
    /// The value cannot be written as JSON.
    #[error("the value for {key} cannot be written as JSON: {why}")]
    NotWritable {
        /// The object.
        key: Key,
        /// Why.
        why: String,
    },
    /// A memoized function cannot be one.
    #[error("{name} cannot be a memoized function: {why}")]
    NotMemoizable {
        /// Its name.
        name: &'static str,
        /// Why.
        why: String,
    },
    /// The transaction, or the block, has ended: its handle is of no use any more.
    #[error("this transaction, or the block in it, has ended")]
    Over,
}

/// A transaction that runs: reads and writes. Cheap to clone; clones are the same transaction.
///
/// Values are JSON, by [serde]: so the command line and programs in other languages can read them. Raw bytes are there too,
/// and **counters**: numbers to which transactions add without reading them, and so without excluding each other.
///
/// It reads its own writes. It sees one version of each object, however often it reads it.
#[derive(Clone)]
pub struct Txn {
    run: Arc<Run>,
    layer: LayerId,
    scope: Scope,
}

/// Which memoized function a handle belongs to.
#[derive(Clone, Copy, Default)]
struct Scope {
    /// Where what it reads is taken down.
    frame: Option<FrameId>,
    /// Its name: it must not write.
    function: Option<&'static str>,
    depth: u32,
}

struct Run {
    port: Arc<dyn Port>,
    site: SiteId,
    /// Whether stale copies will not do: not when an earlier run may have failed because of one.
    fresh: bool,
    deadline: Instant,
    /// Whether the program has ended, and calls that depend on what it wrote are computed anew.
    is_treating: bool,
    program: Program,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    draft: Draft,
    failure: Option<Failure>,
    is_over: bool,
    /// Whether every call that was used could be looked for, so that what was computed rests on calls and not on what they read.
    may_propose: bool,
    ahead: Ahead,
    /// How often was read.
    reads: u32,
    /// Whether all that was read was so at one time.
    is_whole: bool,
}

impl State {
    fn new(draft: Draft) -> Self {
        Self {
            draft,
            failure: None,
            is_over: false,
            may_propose: true,
            ahead: Ahead::default(),
            reads: 0,
            is_whole: false,
        }
    }
}

impl fmt::Debug for Txn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Txn").field("at", &self.run.port.topology().name(self.run.site)).finish_non_exhaustive()
    }
}

impl Txn {
    fn new(port: Arc<dyn Port>, site: SiteId, fresh: bool, deadline: Instant, program: Program) -> Self {
        let state = Mutex::new(State::new(Draft::new()));
        let run = Run { port, site, fresh, deadline, is_treating: false, program, state };
        Self { run: Arc::new(run), layer: ROOT, scope: Scope::default() }
    }

    /// A new handle that goes on with what a run that has ended has done.
    fn resume(&self, draft: Draft, ahead: Ahead) -> Self {
        let state = Mutex::new(State { ahead, ..State::new(draft) });
        let Run { port, site, fresh, deadline, program, .. } = &*self.run;
        let (port, site, fresh, deadline, program) = (Arc::clone(port), *site, *fresh, *deadline, *program);
        let run = Run { port, site, fresh, deadline, is_treating: true, program, state };
        Self { run: Arc::new(run), layer: ROOT, scope: Scope::default() }
    }

    // Reads.

    /// What an object holds; `None` if nothing is there.
    ///
    /// # Errors
    ///
    /// It cannot be read ([`TxnError::NotRead`]), or is no JSON of such a value ([`TxnError::Unexpected`]).
    pub async fn get<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<T>, TxnError> {
        Ok(self.get_many(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// What several objects hold, in their order. Costs about as much time as one.
    ///
    /// # Errors
    ///
    /// As [`Txn::get`].
    pub async fn get_many<T: DeserializeOwned>(&self, keys: &[Key]) -> Result<Vec<Option<T>>, TxnError> {
        let values = self.values(keys).await?.into_iter().zip(keys);
        values.map(|(value, key)| value.map(|value| decode(key, &value)).transpose()).collect()
    }

    /// The bytes that an object holds.
    ///
    /// # Errors
    ///
    /// As [`Txn::get`]; a counter has no bytes.
    pub async fn get_bytes(&self, key: &Key) -> Result<Option<Vec<u8>>, TxnError> {
        match self.value(key).await? {
            Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
            Some(_) => Err(is_counter(key)),
            None => Ok(None),
        }
    }

    /// What a counter has come to; 0 if it is not there.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is no counter.
    pub async fn count(&self, key: &Key) -> Result<i64, TxnError> {
        match self.value(key).await? {
            Some(Value::Counter(count)) => Ok(count),
            Some(_) => Err(self.misfit(Misfit::NotACounter, key)),
            None => Ok(0),
        }
    }

    /// What an object holds, as it is.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub async fn value(&self, key: &Key) -> Result<Option<Value>, TxnError> {
        Ok(self.values(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// What several objects hold, as it is, in their order.
    ///
    /// # Errors
    ///
    /// One of them cannot be read.
    pub async fn values(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, TxnError> {
        let places = keys.iter().map(|key| self.place(key)).collect::<Result<Vec<_>, _>>()?;
        let mut missing: Vec<ObjectKey> = Vec::new();
        {
            let state = self.state()?;
            for (place, key) in places.iter().zip(keys) {
                let change = state.draft.buffer.change(self.layer, place).map_err(|misfit| self.misfit(misfit, key))?;
                // What a memoized function reads is validated even if the transaction writes it.
                let is_ours = matches!(change, Some(Change::Put(_) | Change::Delete)) && self.scope.frame.is_none();
                if !is_ours && state.draft.snapshot.known(place).is_none() {
                    missing.push(place.clone());
                }
            }
        }
        missing.sort_unstable();
        missing.dedup();
        self.fetch(missing).await?;
        let mut state = self.state()?;
        if let Some(frame) = self.scope.frame {
            places.iter().for_each(|place| state.draft.note(frame, place));
        }
        let values = places.iter().zip(keys).map(|(place, key)| {
            let change = state.draft.buffer.change(self.layer, place).map_err(|misfit| self.misfit(misfit, key))?;
            let base = state.draft.snapshot.known(place).flatten();
            match change {
                Some(change) => apply(base, &change).map_err(|misfit| self.misfit(misfit, key)),
                None => Ok(base),
            }
        });
        values.collect()
    }

    /// All objects of a region whose names begin like this key's, in the order of their names, as they are: up to 4,096 of
    /// them. `eu:` alone stands for all.
    ///
    /// # Errors
    ///
    /// They cannot be read; there are too many ([`Cause::TooMuch`]): read them by [pages](Txn::scan_page), perhaps in several
    /// transactions.
    pub async fn scan(&self, prefix: &Key) -> Result<Vec<(Key, Value)>, TxnError> {
        let mut rows = Vec::new();
        let mut after = String::new();
        loop {
            let mut page = self.scan_page(prefix, &after, PAGE as usize).await?;
            rows.append(&mut page.rows);
            match page.next {
                Some(next) => after = next,
                None => return Ok(rows),
            }
        }
    }

    /// As [`Txn::scan`], with values read as JSON.
    ///
    /// # Errors
    ///
    /// As [`Txn::scan`] and [`Txn::get`].
    pub async fn scan_as<T: DeserializeOwned>(&self, prefix: &Key) -> Result<Vec<(Key, T)>, TxnError> {
        let rows = self.scan(prefix).await?.into_iter();
        rows.map(|(key, value)| decode(&key, &value).map(|value| (key, value))).collect()
    }

    /// A page of what [`Txn::scan`] gives: about `limit` objects (1 to 1,024) whose names come after `after`.
    ///
    /// # Errors
    ///
    /// As [`Txn::scan`].
    pub async fn scan_page(&self, prefix: &Key, after: &str, limit: usize) -> Result<Page, TxnError> {
        let home = self.region(prefix)?;
        if !is_prefix(prefix.name()) || !is_prefix(after) {
            return Err(self.fail(Failure::of(Cause::InvalidKey, Some(prefix.clone()))));
        }
        let mut limit = u32::try_from(limit.clamp(1, SCAN_ROWS)).expect("clamped");
        let (span, base) = loop {
            let span = Span { prefix: prefix.name().to_owned(), after: after.to_owned(), limit };
            match self.fetch_span(home, &span).await? {
                Some(rows) => break (span, rows),
                // The values are so large that fewer fit an answer.
                None => limit = (limit / 2).max(1),
            }
        };
        let end = end_of(&span, &base);
        let mut state = self.state()?;
        if let Some(frame) = self.scope.frame {
            state.draft.note_span(frame, home, &span);
        }
        let is_wanted = |name: &str| is_within(&span, end.as_deref(), name);
        let changed = state.draft.buffer.changed(self.layer, home, is_wanted);
        let mut rows: BTreeMap<String, Value> = base.into_iter().collect();
        for (ObjectKey { name, .. }, change) in changed.map_err(|misfit| self.misfit(misfit, prefix))? {
            let key = || Key::new(prefix.region(), name.clone());
            let value = apply(rows.remove(&name), &change).map_err(|misfit| self.misfit(misfit, &key()))?;
            if let Some(value) = value {
                rows.insert(name, value);
            }
        }
        let rows = rows.into_iter().map(|(name, value)| (Key::new(prefix.region(), name), value)).collect();
        Ok(Page { rows, next: end })
    }

    // Writes: they stay here until the end.

    /// Writes a value as JSON.
    ///
    /// # Errors
    ///
    /// It cannot be written as JSON ([`TxnError::NotWritable`]).
    pub fn put<T: Serialize + ?Sized>(&self, key: &Key, value: &T) -> Result<(), TxnError> {
        let json = serde_json::to_vec(value);
        let json = json.map_err(|error| TxnError::NotWritable { key: key.clone(), why: error.to_string() })?;
        self.put_bytes(key, json)
    }

    /// Writes bytes.
    ///
    /// # Errors
    ///
    /// The key names no object of this cluster ([`TxnError::NotRead`]).
    pub fn put_bytes(&self, key: &Key, bytes: impl Into<Vec<u8>>) -> Result<(), TxnError> {
        self.write(key, Change::Put(Value::Bytes(bytes.into())))
    }

    /// Sets a counter, whatever was there. To count, [add](Txn::add).
    ///
    /// # Errors
    ///
    /// As [`Txn::put_bytes`].
    pub fn put_count(&self, key: &Key, count: i64) -> Result<(), TxnError> {
        self.write(key, Change::Put(Value::Counter(count)))
    }

    /// Deletes an object. It does not matter whether it is there.
    ///
    /// # Errors
    ///
    /// As [`Txn::put_bytes`].
    pub fn delete(&self, key: &Key) -> Result<(), TxnError> {
        self.write(key, Change::Delete)
    }

    /// Adds to a counter; one that is not there begins at 0. Transactions that add to the same counter, and do not read it, do
    /// not exclude each other.
    ///
    /// # Errors
    ///
    /// As [`Txn::put_bytes`]; this transaction has written something that is no counter, or the sum of what it adds is out of
    /// range. What others have written there is found when it is committed ([`Cause::NotACounter`], [`Cause::OutOfRange`]).
    pub fn add(&self, key: &Key, delta: i64) -> Result<(), TxnError> {
        self.write(key, Change::Add(delta))
    }

    /// Runs a block that takes effect as a whole or not at all: if it ends with an error, what it wrote is undone, and the
    /// transaction may go on. What it read stays read. Blocks may have blocks in them.
    ///
    /// # Errors
    ///
    /// The block's own.
    pub async fn atomic<T, E, F, R>(&self, block: F) -> Result<T, E>
    where
        F: FnOnce(Txn) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<TxnError>,
    {
        let layer =
            self.state().and_then(|mut state| state.draft.buffer.open(self.layer).map_err(|_| TxnError::Over))?;
        let inner = Nested(Txn { run: Arc::clone(&self.run), layer, scope: self.scope });
        let value = block(inner.0.clone()).await?;
        // Only what another block of the same transaction did at the same time can make this fail.
        self.state()?.draft.buffer.merge(layer).map_err(|misfit| match misfit {
            Misfit::Over => TxnError::Over,
            misfit => TxnError::NotRead(Reason::Aborted(Box::new(Aborted::of(cause_of(misfit), None)))),
        })?;
        Ok(value)
    }

    // Private from here.

    fn state(&self) -> Result<MutexGuard<'_, State>, TxnError> {
        let state = self.run.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_over { Err(TxnError::Over) } else { Ok(state) }
    }

    /// Ends the run: handles of it are of no use any more.
    fn end(self) -> State {
        let mut state = self.run.state.lock().unwrap_or_else(PoisonError::into_inner);
        let over = State { is_over: true, may_propose: false, ..State::new(Draft::new()) };
        std::mem::replace(&mut state, over)
    }

    /// Notes that the run cannot succeed, unless the program does without.
    fn fail(&self, failure: Failure) -> TxnError {
        let reason = failure.reason.clone();
        if let Ok(mut state) = self.state() {
            state.failure.get_or_insert(failure);
        }
        TxnError::NotRead(reason)
    }

    fn misfit(&self, misfit: Misfit, key: &Key) -> TxnError {
        match misfit {
            Misfit::NotACounter => TxnError::Unexpected { key: key.clone(), why: "it is no counter".to_owned() },
            Misfit::OutOfRange => TxnError::OutOfRange(key.clone()),
            Misfit::Over => TxnError::Over,
        }
    }

    fn region(&self, key: &Key) -> Result<u16, TxnError> {
        let topology = self.run.port.topology();
        topology.region(key.region()).ok_or_else(|| {
            let reason = Reason::UnknownRegion { region: key.region().to_owned(), known: topology.regions.clone() };
            self.fail(Failure { reason, operation: None, is_transient: false, is_of_the_site: false })
        })
    }

    fn place(&self, key: &Key) -> Result<ObjectKey, TxnError> {
        let home = self.region(key)?;
        if !is_key(key.name()) {
            return Err(self.fail(Failure::of(Cause::InvalidKey, Some(key.clone()))));
        }
        Ok(ObjectKey::new(home, key.name()))
    }

    fn write(&self, key: &Key, change: Change) -> Result<(), TxnError> {
        if let Some(name) = self.scope.function {
            return Err(TxnError::NotMemoizable { name, why: format!("it writes {key}") });
        }
        let place = self.place(key)?;
        let written = self.state()?.draft.buffer.write(self.layer, place, change);
        written.map_err(|misfit| self.misfit(misfit, key))
    }

    /// Reads objects into the snapshot.
    async fn fetch(&self, mut missing: Vec<ObjectKey>) -> Result<(), TxnError> {
        for (key, seen) in self.take_ahead(&mut missing)? {
            self.check_size(1)?;
            self.note(|snapshot| snapshot.note_get(&key, seen))?;
        }
        while !missing.is_empty() {
            self.check_size(missing.len())?;
            let gets: Vec<ObjectKey> = missing.iter().take(READ_ITEMS).cloned().collect();
            let reading = self.read(Wanted { gets: gets.clone(), ..Wanted::default() }).await?;
            if reading.gets.len() != gets.len() {
                return Err(self.fail(self.senseless()));
            }
            let mut left_out = Vec::new();
            for (at, (key, result)) in gets.into_iter().zip(reading.gets).enumerate() {
                match result {
                    Ok(seen) => self.note(|snapshot| snapshot.note_get(&key, seen))?,
                    // It did not fit the answer; the first always does.
                    Err(abort) if abort.cause == Cause::TooMuch && at > 0 => left_out.push(key),
                    Err(abort) => {
                        let key = abort.key.or(Some(key));
                        let abort = object::Abort { key, ..abort };
                        return Err(self.fail(Failure::of_abort(abort, self.run.port.topology())));
                    }
                }
            }
            missing.drain(..missing.len().min(READ_ITEMS));
            left_out.append(&mut missing);
            missing = left_out;
        }
        Ok(())
    }

    /// What was read ahead of what is missing.
    fn take_ahead(&self, missing: &mut Vec<ObjectKey>) -> Result<Vec<(ObjectKey, Seen)>, TxnError> {
        let mut state = self.state()?;
        let mut found = Vec::new();
        missing.retain(|key| match state.ahead.gets.remove(key) {
            Some(seen) => {
                found.push((key.clone(), seen));
                false
            }
            None => true,
        });
        Ok(found)
    }

    /// What a span holds, of the snapshot or now read into it; `None` if it does not fit an answer.
    async fn fetch_span(&self, home: u16, span: &Span) -> Result<Option<Vec<(String, Value)>>, TxnError> {
        if let Some(rows) = self.state()?.draft.snapshot.scanned(home, span) {
            return Ok(Some(rows));
        }
        self.check_size(1)?;
        let ahead = self.state()?.ahead.scan(home, span);
        let rows = match ahead {
            Some(rows) => rows,
            None => {
                let scans = vec![(home, span.clone())];
                let reading = self.read(Wanted { scans, ..Wanted::default() }).await?;
                match reading.scans.into_iter().next() {
                    Some(Ok(rows)) => rows,
                    Some(Err(abort)) if abort.cause == Cause::TooMuch && span.limit > 1 => return Ok(None),
                    Some(Err(abort)) => return Err(self.fail(Failure::of_abort(abort, self.run.port.topology()))),
                    None => return Err(self.fail(self.senseless())),
                }
            }
        };
        let values = rows.iter().filter_map(|(name, seen)| Some((name.clone(), seen.value.clone()?))).collect();
        self.check_size(1 + rows.len())?;
        self.note(|snapshot| snapshot.note_scan(home, span.clone(), rows))?;
        Ok(Some(values))
    }

    /// Whether so much more can be read, and still be committed.
    fn check_size(&self, more: usize) -> Result<(), TxnError> {
        let operations = self.state()?.draft.snapshot.operations() + more;
        if operations <= TRANSACTION_OPERATIONS {
            return Ok(());
        }
        Err(self.fail(Failure::of(Cause::TooMuch, None)))
    }

    fn note(
        &self,
        note: impl FnOnce(&mut slackline_core::draft::snapshot::Snapshot) -> Result<(), Contradiction>,
    ) -> Result<(), TxnError> {
        let noted = note(&mut self.state()?.draft.snapshot);
        noted.map_err(|contradiction| self.contradiction(contradiction))
    }

    fn contradiction(&self, Contradiction(key): Contradiction) -> TxnError {
        let key = self.run.port.topology().key(&key);
        self.fail(Failure::of(Cause::Changed, Some(key)))
    }

    async fn read(&self, wanted: Wanted) -> Result<Reading, TxnError> {
        let Run { port, site, fresh, deadline, is_treating, .. } = &*self.run;
        drop(self.state()?);
        let first = || Claim { origin: self.run.program.origin(port.now()), ..Claim::default() };
        // What a first run reads later would keep waiting those whom its first reads bar.
        let is_first = self.state()?.reads == 0 && !*is_treating;
        let claim = wanted.claim.or_else(|| is_first.then(first));
        let fresh = *fresh || *is_treating || wanted.fresh;
        let wanted = Wanted { fresh, upkeep: wanted.upkeep || *is_treating, claim, ..wanted };
        let read = Arc::clone(port).read(*site, wanted, *deadline);
        let noted = |reading: Box<Reading>| {
            if let Ok(mut state) = self.state() {
                state.reads += 1;
                state.is_whole = reading.is_whole && state.reads == 1;
            }
            *reading
        };
        read.await.map(noted).map_err(|why| {
            let (site, topology) = (port.topology().name(*site), port.topology());
            let reason = match why {
                NotTaken::DeadlinePassed => {
                    let late = Aborted::of(Cause::DeadlinePassed, None);
                    Reason::Aborted(Box::new(Aborted { site: Some(site), ..late }))
                }
                why => Reason::not_taken(why, LANE, vec![site], topology),
            };
            let is_transient = matches!(why, NotTaken::Unreachable | NotTaken::DeadlinePassed);
            self.fail(Failure { reason, operation: None, is_transient, is_of_the_site: true })
        })
    }

    /// The site answered something else than what it was asked for.
    fn senseless(&self) -> Failure {
        Failure::of(Cause::Malformed, None)
    }
}

/// A block's handle: its layer is gone when the block is, unless it was merged before.
struct Nested(Txn);

impl Drop for Nested {
    fn drop(&mut self) {
        if let Ok(mut state) = self.0.state() {
            state.draft.buffer.discard(self.0.layer);
        }
    }
}

/// A page of a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The objects, in the order of their names.
    pub rows: Vec<(Key, Value)>,
    /// The name after which the next page begins; none if this is the last.
    pub next: Option<String>,
}

fn decode<T: DeserializeOwned>(key: &Key, value: &Value) -> Result<T, TxnError> {
    match value {
        Value::Bytes(bytes) => serde_json::from_slice(bytes)
            .map_err(|error| TxnError::Unexpected { key: key.clone(), why: error.to_string() }),
        Value::Counter(_) | Value::Derived(_) => Err(is_counter(key)),
    }
}

fn is_counter(key: &Key) -> TxnError {
    TxnError::Unexpected { key: key.clone(), why: "it is a counter; read it with `count`".to_owned() }
}

fn cause_of(misfit: Misfit) -> Cause {
    match misfit {
        Misfit::NotACounter => Cause::NotACounter,
        Misfit::OutOfRange => Cause::OutOfRange,
        Misfit::Over => Cause::Withdrawn,
    }
}

/// A number that nobody can foresee.
fn jitter() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// Between half of `pause` and all of it.
fn jittered(pause: Duration, random: u64) -> Duration {
    pause / 2 + pause / 2 * (random as u32 % 1024) / 1024
}
