//! Running a program, committing what it did, and running it again.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::api;
use slackline_core::draft::Draft;
use slackline_core::draft::buffer::ROOT;
use slackline_core::id::OperationId;
use slackline_core::object::{self, Cause, ObjectKey};

use super::again::{Ahead, Begun, Course};
use super::failure::{Failure, is_transient};
use super::handle::{Memos, State, Txn};
use crate::call::{CallFuture, Place};
use crate::command::{Command, DEFAULT_DEADLINE, Terms};
use crate::key::Key;
use crate::outcome::{Aborted, Outcome, Reason, Refused};
use crate::port::{Port, until};
use crate::time::Time;
use crate::topology::{OBJECTS_LANE, Topology};

/// Reads end this much earlier than the transaction.
const MARGIN: Duration = Duration::from_millis(20);
/// The number of times that a transaction may be refused because of calls that depend on what it writes, before its program is run
/// again.
const ROUNDS: u32 = 64;
/// The longest time that a proposal may take.
const PROPOSAL: Duration = Duration::from_secs(5);

/// A transaction that has not been run yet: set its terms, then [run](Transaction::run) it.
#[must_use = "a transaction does nothing until it is run"]
#[derive(Clone)]
pub struct Transaction {
    port: Arc<dyn Port>,
    memos: Arc<Memos>,
    /// Where its runs may be.
    place: Place,
    /// The longest time that it may take in all, from when it is run.
    deadline: Duration,
    /// The longest time that its writes may wait at a home; none: until its deadline.
    max_wait: Option<Duration>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port: _, memos: _, place, deadline, max_wait } = self;
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
    /// The number of times that the program was run.
    pub runs: u32,
    /// The operation that committed it; none if it neither read nor wrote.
    pub operation: Option<OperationId>,
}

impl Transaction {
    /// A transaction over links to sites, with the memoized functions that are known.
    pub fn over(port: Arc<dyn Port>, memos: Arc<Memos>) -> Self {
        Self { port, memos, place: Place::Nearest, deadline: DEFAULT_DEADLINE, max_wait: None }
    }

    /// Sets the longest time that it may take in all, every run included.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Has it run against the site of this region, and no other. Without, each run takes the nearest that can be reached.
    pub fn at(mut self, region: &str) -> Self {
        self.place = Place::of_region(region, self.port.topology());
        self
    }

    /// Sets the longest time that its writes may wait for others' rights to read the old values. A site that reads an object
    /// often holds such a right for up to 10 s, and gives it up when asked; one that cannot be reached is waited for. If it is
    /// known to take longer, the transaction is refused at once, as [`Cause::WouldWait`]; if it turns out to, when a home has
    /// waited for so long. Without, the deadline is the only bound.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    /// Runs a program as a transaction, again and again until it is committed, is refused, or its deadline has passed.
    ///
    /// - It may be run **several times**: it must do nothing but read and write through its [`Txn`], or nothing that may not
    ///   happen several times.
    /// - As long as it runs, what it has read **may not belong together**: two reads may be of different times. Then it is
    ///   not committed, but it must not loop without end or panic over such a thing.
    /// - Errors of [`Txn`] are passed on with `?`. It depends on what was read whether the program is run again.
    ///
    /// Ends in one of these ways:
    ///
    /// - `Ok(Outcome::Done(value))`: it took effect, with this value.
    /// - `Ok(Outcome::Refused(…))`: it did not, and never will. [`Reason::Aborted`] tells why, about which object, and who
    ///   stands in the way.
    /// - `Ok(Outcome::Unknown(…))`: it may have taken effect or not. `Client::outcome_of` settles it.
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
        let deadline = self.port.now() + self.deadline;
        let region = match self.region() {
            Ok(region) => region,
            Err(reason) => return Ok(Outcome::Refused(Refused { reason, operation: None })),
        };
        let mut course = Course::new(&*self.port);
        let mut measured = BTreeSet::new();
        loop {
            let run = course.begin(&*self.port, region);

            // Reads end a little before the program would be ended, and say why they did not come to anything.
            let margin = (deadline.saturating_duration_since(run.at) / 16).min(MARGIN);
            let (port, memos, is_again) = (Arc::clone(&self.port), Arc::clone(&self.memos), course.runs > 1);
            let site = (run.site, region.is_some());
            let txn = Txn::new(port, memos, site, is_again, deadline - margin, course.program).measuring(&measured);
            if let Some(footprint) = &run.before {
                let (origin, bars) = (course.program.origin(run.at), footprint.bars(course.contended));
                until(&*self.port, deadline, txn.read_ahead(footprint, origin, bars)).await;
            }

            let ended = until(&*self.port, deadline, program(txn.clone())).await;

            // From here on handles that the program has kept are of no use: what is judged is what it did up to its end.
            let State { mut draft, failure, may_propose, is_whole, ahead, .. } = txn.clone().end();
            let mut is_sound = matches!(ended, Some(Ok(_)));
            if is_sound && !draft.computed().is_empty() {
                let checking = txn.resume(draft, Ahead::default(), false);
                is_sound = matches!(until(&*self.port, deadline, checking.check_computed()).await, Some(Ok(true)));
                draft = checking.end().draft;
            }

            // The answer about a treaty may have been wrong: the next run reads the counters. Nothing was sent that could take effect.
            if let Some(treaty) = draft.misjudged(matches!(ended, Some(Ok(_)))).filter(|_| ended.is_some()) {
                measured.insert(treaty.clone());
                continue;
            }

            // What was so at one time, and is not changed by it, has taken effect then.
            let is_whole = is_whole && draft.buffer.is_empty(ROOT);
            let (failure, draft) = match (ended, failure) {
                // It was still reading, or doing something else: nothing was sent that could take effect.
                (None, failure) => {
                    let failure = failure.unwrap_or_else(|| Failure::of(Cause::DeadlinePassed, None));
                    return Ok(course.interrupted(&run, failure, self.port.now()).refused());
                }
                // What it requires is not true. That counts only if what led to it was so at one time.
                (Some(Err(_)), Some(failure)) if failure.is_not_met() => {
                    match self.commit(region, &txn, draft.to_validate(), deadline).await {
                        Attempt::Committed { .. } => return Ok(failure.refused()),
                        Attempt::Again(failure) | Attempt::Depended { failure, .. } => (failure, draft),
                        Attempt::Over(outcome) => return Ok(outcome.map(|never| match never {})),
                    }
                }
                (Some(Err(_)), Some(failure)) => (failure, draft),
                (Some(Ok(value)), _) if is_whole => {
                    return Ok(Outcome::Done(Committed { value, phases: 0, runs: course.runs, operation: None }));
                }
                (Some(Err(error)), None) if is_whole => return Err(error),
                (Some(Ok(value)), _) => {
                    match self.commit_with_calls(region, &txn, draft, (&run, ahead), deadline).await {
                        (Attempt::Committed { phases, operation }, draft) => {
                            if is_sound && may_propose {
                                self.propose(region, &draft);
                            }
                            return Ok(Outcome::Done(Committed { value, phases, runs: course.runs, operation }));
                        }
                        (Attempt::Again(failure) | Attempt::Depended { failure, .. }, draft) => (failure, draft),
                        (Attempt::Over(outcome), _) => return Ok(outcome.map(|never| match never {})),
                    }
                }
                // The program's own error counts only if what led to it was so at one time.
                (Some(Err(error)), None) => match self.commit(region, &txn, draft.to_validate(), deadline).await {
                    Attempt::Committed { .. } => return Err(error),
                    Attempt::Again(failure) | Attempt::Depended { failure, .. } => (failure, draft),
                    Attempt::Over(outcome) => return Ok(outcome.map(|never| match never {})),
                },
            };

            // What it wrote would break a treaty on which it relies, or that treaty is about to end. The next run reads the
            // counters, and finds out whether what it asks for, or requires, is true.
            if let Some(treaty) = failure.broken(self.port.topology()).filter(|treaty| !measured.contains(treaty)) {
                measured.insert(treaty);
                continue;
            }
            match course.rest(&*self.port, &run, failure, &draft, deadline) {
                Ok(until) => self.port.sleep_until(until).await,
                Err(failure) => return Ok(failure.refused()),
            }
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

    /// Has the homes of what a run read and wrote judge it, once.
    async fn commit(
        &self,
        region: Option<u16>,
        txn: &Txn,
        mut transaction: object::Transaction,
        deadline: Time,
    ) -> Attempt {
        transaction.origin = txn.run.program.origin(self.port.now());
        let is_read_only = !transaction.homes.iter().any(|home| home.part.changes());
        if let Err(abort) = transaction.normalize() {
            return Attempt::Again(Failure::of_abort(abort, self.port.topology()));
        }
        if transaction.homes.is_empty() {
            return Attempt::Committed { phases: 0, operation: None };
        }

        match commit(Arc::clone(&self.port), region, transaction, deadline).await {
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
            // It may have taken effect, so that another run could have it take effect twice. It is never run again.
            Outcome::Unknown(unknown) => Attempt::Over(Outcome::Unknown(unknown)),
        }
    }

    /// Commits what a program did; computes calls again that depend on what it writes. `run` is the run, with what was read
    /// ahead of it and not asked for.
    async fn commit_with_calls(
        &self,
        region: Option<u16>,
        txn: &Txn,
        mut draft: Draft,
        (run, mut ahead): (&Begun, Ahead),
        deadline: Time,
    ) -> (Attempt, Draft) {
        let mut rounds = 0;
        let mut failure = Failure::of(Cause::DeadlinePassed, None);

        // What depended on its writes in the run before does so still, as a rule: nobody need be asked first. Homes name what this
        // leaves out.
        let told = run.before.as_ref().map(|before| before.foretold(&draft)).unwrap_or_default();
        told.iter().for_each(|(home, calls)| draft.demand(*home, calls));
        loop {
            // The functions run on what the program is about to write, in the same transaction: so a result is never stale.
            if draft.next_pending().is_some() {
                let treating = txn.resume(draft, std::mem::take(&mut ahead), true);
                let treated = until(&*self.port, deadline, treating.treat_all()).await;
                let State { draft: after, failure: why, .. } = treating.end();
                draft = after;
                if !matches!(treated, Some(Ok(()))) {
                    return (Attempt::Again(why.unwrap_or(failure)), draft);
                }
            }

            let attempt = self.commit(region, txn, draft.to_commit(self.longest_wait()), deadline).await;
            let Attempt::Depended { failure: why, home, calls } = attempt else { return (attempt, draft) };
            failure = why;
            rounds += 1;
            if rounds > ROUNDS {
                return (Attempt::Again(failure), draft);
            }
            draft.demand(home, &calls);
        }
    }

    /// Has what was computed in a run that is committed registered, in the background: nobody waits for it.
    fn propose(&self, region: Option<u16>, draft: &Draft) {
        let Some((call, mut proposal)) = draft.proposal(self.port.random()) else { return };
        let (port, now) = (Arc::clone(&self.port), self.port.now());
        if proposal.normalize().is_err() {
            return;
        }
        let Some(place) = self.memos.reserve_proposal(&call, now) else { return };

        let work = async move {
            let mut was_registered = false;
            for _ in 0..ROUNDS {
                // The homes validate what the functions have read: a result that is not right any more is refused.
                let outcome = commit(Arc::clone(&port), region, proposal.clone(), now + PROPOSAL).await;
                was_registered = matches!(outcome, Outcome::Done(_));
                let Outcome::Refused(Refused { reason, .. }) = outcome else { break };

                // Other calls depend on what this one replaces: their results are deleted with it.
                let Some((_, calls)) = depended(port.topology(), &reason) else { break };
                Draft::revoke_in(&mut proposal, &calls);
            }
            place.proposed(port.now(), port.random(), was_registered);
        };
        self.port.spawn(Box::pin(work));
    }

    /// Returns the longest time that its writes may wait, in microseconds.
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

/// The homes' judgement of a run.
enum Attempt {
    /// It took effect.
    Committed { phases: u8, operation: Option<OperationId> },
    /// It had no effect and will have none. Another run may be more lucky, if the failure says so.
    Again(Failure),
    /// It had no effect: calls depend on what it writes at a home, and it does not say what these give on that.
    Depended { failure: Failure, home: u16, calls: Vec<ObjectKey> },
    /// The transaction ends so, and is not run again.
    Over(Outcome<std::convert::Infallible>),
}

/// Has a transaction committed, at the site of this region if one is given: in how many phases, as which operation.
pub(super) async fn commit(
    port: Arc<dyn Port>,
    region: Option<u16>,
    transaction: object::Transaction,
    deadline: Time,
) -> Outcome<(u8, OperationId)> {
    let place = region.map_or(Place::Nearest, Place::Region);
    let terms = Terms { deadline, pinned: region.is_some(), patience: None };
    let mut call = CallFuture::new(Arc::clone(&port), OBJECTS_LANE, Command::commit(transaction), place, terms);
    let verdict = (&mut call).await;
    call.told(verdict, |finished| match finished.outcome {
        api::Outcome::Committed { phases } => Some((phases, finished.operation)),
        _ => None,
    })
}
