//! One call: what is wanted, on which terms, and how its outcome is read.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use slackline_core::api::{self, Agreement, HOLD_MICROS, Hold, Parent, is_name};
use slackline_session::call::{CallFuture, Done, Place};
use slackline_session::command::{Command, Terms};
use slackline_session::outcome::{Outcome, Reason, Refused};
use slackline_session::port::Port as _;

use crate::client::Client;
use crate::options::{DEFAULT_PATIENCE, Patience};

/// A call that takes tokens; its value is a [`Grant`](crate::Grant).
#[derive(Debug)]
pub struct Acquire;
/// A call that gives tokens back; its value is how many.
#[derive(Debug)]
pub struct Release;
/// A call that gives a tracked grant back; its value is how many tokens that is.
#[derive(Debug)]
pub struct ReleaseGrant;
/// A call that puts the end of a hold off; its value is the instant from which the tokens are no longer the caller's.
#[derive(Debug)]
pub struct Extend;
/// A call that creates a quota; its value is the limit.
#[derive(Debug)]
pub struct Create;
/// A call that gives a quota another limit; its value is a [`Limit`].
#[derive(Debug)]
pub struct SetLimit;
/// A call that brings back what lost incarnations had of a quota; its value is a [`Reclaimed`].
#[derive(Debug)]
pub struct Reclaim;
/// A call that deletes a quota.
#[derive(Debug)]
pub struct Delete;

/// A call that accepts that a site's earlier objects are lost.
#[derive(Debug)]
pub struct AcceptLoss;

/// A call that changes what place a site has among the members of its lane; its value is the number of the last change of them.
#[derive(Debug)]
pub struct Seat;

/// What a call does: [`Acquire`], [`Release`], [`ReleaseGrant`], [`Extend`], [`Create`], [`SetLimit`], [`Reclaim`], [`Delete`] or [`AcceptLoss`].
pub trait Kind: sealed::Sealed + Sized {
    /// What it gives when it is done.
    type Value;

    /// Reads the outcome of what was done; `None` if it is not an outcome of such a call.
    #[doc(hidden)]
    fn read(client: &Client, done: Done) -> Option<Self::Value>;
}

mod sealed {
    /// No kinds but those of this crate.
    pub trait Sealed {}
}

impl sealed::Sealed for Acquire {}
impl sealed::Sealed for Release {}
impl sealed::Sealed for ReleaseGrant {}
impl sealed::Sealed for Extend {}
impl sealed::Sealed for Create {}
impl sealed::Sealed for SetLimit {}
impl sealed::Sealed for Reclaim {}
impl sealed::Sealed for Delete {}
impl sealed::Sealed for Seat {}
impl sealed::Sealed for AcceptLoss {}

impl Kind for Release {
    type Value = i64;

    fn read(_: &Client, done: Done) -> Option<i64> {
        released(&done.outcome)
    }
}

impl Kind for ReleaseGrant {
    type Value = i64;

    fn read(_: &Client, done: Done) -> Option<i64> {
        released(&done.outcome)
    }
}

fn released(outcome: &api::Outcome) -> Option<i64> {
    match outcome {
        api::Outcome::Released { amount } => Some(*amount),
        _ => None,
    }
}

impl Kind for Create {
    type Value = i64;

    fn read(_: &Client, done: Done) -> Option<i64> {
        match done.outcome {
            api::Outcome::Created { limit } => Some(limit),
            _ => None,
        }
    }
}

/// The limit of a quota, as [`Quota::set_limit`](crate::Quota::set_limit) has set it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limit {
    /// The number of its tokens.
    pub limit: i64,
    /// The number of tokens that are out beyond it: in use, or at sites that have not heard of the limit yet. Nothing is granted
    /// until it is zero.
    pub excess: i64,
}

impl Kind for SetLimit {
    type Value = Limit;

    fn read(_: &Client, done: Done) -> Option<Limit> {
        match done.outcome {
            api::Outcome::LimitSet { limit, excess } => Some(Limit { limit, excess }),
            _ => None,
        }
    }
}

/// What [`Quota::reclaim`](crate::Quota::reclaim) has brought back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reclaimed {
    /// The number of tokens that are shared out again.
    pub brought: i64,
    /// The number of tokens that the lost incarnations had granted, and that stay in use until they are released.
    pub in_use: i64,
}

impl Kind for Reclaim {
    type Value = Reclaimed;

    fn read(_: &Client, done: Done) -> Option<Reclaimed> {
        match done.outcome {
            api::Outcome::Reclaimed { brought, in_use } => Some(Reclaimed { brought, in_use }),
            _ => None,
        }
    }
}

impl Kind for Delete {
    type Value = ();

    fn read(_: &Client, done: Done) -> Option<()> {
        (done.outcome == api::Outcome::Deleted).then_some(())
    }
}

impl Kind for Seat {
    type Value = u64;

    fn read(_: &Client, done: Done) -> Option<u64> {
        match done.outcome {
            api::Outcome::Seated { number } => Some(number),
            _ => None,
        }
    }
}

impl Kind for AcceptLoss {
    type Value = ();

    fn read(_: &Client, done: Done) -> Option<()> {
        (done.outcome == api::Outcome::LossAccepted).then_some(())
    }
}

/// A call that has not been made yet: set its terms, then `.await` it for its [`Outcome`].
///
/// Dropping the future before it is ready is safe. An acquire that was already sent goes on in the background, and what it is
/// granted is given back, as long as the client lives; a release goes on until its deadline; what had not been sent is
/// forgotten.
#[must_use = "a call does nothing until it is awaited"]
#[derive(Debug)]
pub struct Call<K> {
    client: Client,
    lane: u16,
    /// What is to be done.
    command: Command,
    /// The sites that would do.
    place: Place,
    /// The longest time that it may take, from when it is awaited.
    deadline: Duration,
    /// How long a site may be silent before another is tried.
    patience: Patience,
    /// True if it acquires or releases a hold with an end.
    of_hold: bool,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Call<K> {
    pub(crate) fn new(client: Client, lane: u16, command: Command, place: Place) -> Self {
        let (deadline, patience) = (client.shared.deadline(), client.shared.patience);
        Self { client, lane, command, place, deadline, patience, of_hold: false, kind: PhantomData }
    }

    /// The same call, of a hold with an end or not.
    pub(crate) fn of_hold(self, of_hold: bool) -> Self {
        Self { of_hold, ..self }
    }

    /// Sets the longest time that the call may take in all: the way there, waiting for tokens of other sites, and the way back.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Has the call carried out in this region and nowhere else; if it cannot be reached, the call waits for it until
    /// the deadline.
    pub fn at(mut self, region: &str) -> Self {
        self.place = self.client.place(region);
        self
    }
}

impl Call<Acquire> {
    /// Holds the tokens for this long (1 ms to 400 days): then the granting site takes them back by itself, durably,
    /// also across its own crash. The grant can be released earlier.
    pub fn hold_for(mut self, duration: Duration) -> Self {
        self.of_hold = true;
        self.set_hold(Hold::For(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)));
        self
    }

    /// Has the grant tracked singly: it is released by its id, once, at the site that granted it.
    pub fn tracked(mut self) -> Self {
        if let Command::Acquire { hold: hold @ Hold::Counted, .. } = &mut self.command {
            *hold = Hold::Open;
        }
        self
    }

    /// Has the call stay in line at its site until the [deadline](Call::deadline), where it would be refused as
    /// [`Exhausted`](Reason::Exhausted). Tokens that come back serve the line first, in the order of arrival: nobody who asks the same
    /// site later overtakes it.
    pub fn wait(mut self) -> Self {
        if let Command::Acquire { waits, .. } = &mut self.command {
            *waits = true;
        }
        self
    }

    /// Sets the longest time for which the call stays with a site that says nothing; then it goes elsewhere. See [`Patience`].
    pub fn patience(mut self, patience: impl Into<Patience>) -> Self {
        self.patience = patience.into();
        self
    }

    fn set_hold(&mut self, new: Hold) {
        if let Command::Acquire { hold, .. } = &mut self.command {
            *hold = new;
        }
    }
}

/// A refill in millionths of a token a second; none if it is out of range: below one of them, or above 2⁶⁴.
pub fn refill_millionths(tokens: u64, period: Duration) -> Option<u64> {
    let rate = (u128::from(tokens) * 1_000_000_000_000).checked_div(period.as_micros())?;
    u64::try_from(rate).ok().filter(|rate| *rate > 0)
}

impl Call<Create> {
    /// Has the quota refill by itself: what was granted comes back, `tokens` in each `period`, over all sites, and nobody gives it back. So in
    /// any time T at most its limit and what is refilled in T is granted. A rate of less than one token in 1,000,000 s counts as
    /// zero, which is [refused](Reason::InvalidAmount).
    pub fn refill(mut self, tokens: u64, period: Duration) -> Self {
        match (refill_millionths(tokens, period), &mut self.command) {
            (Some(rate), Command::Create { charter, .. }) => charter.refill = rate,
            // A limit that is never granted: the call is refused before it is sent.
            (_, Command::Create { limit, .. }) => *limit = 0,
            _ => {}
        }
        self
    }

    /// Puts the quota below another one, the parent: what is granted of it counts in that, too, and in all above. Its name is that of the
    /// parent, `/` and more; a quota of another name is [refused](Reason::InvalidParent).
    pub fn below(mut self, parent: &str) -> Self {
        if let Command::Create { quota, charter, .. } = &mut self.command {
            // A length that no name has: the site refuses it, and remembers nothing.
            let length =
                if quota.starts_with(parent) { u16::try_from(parent.len()).unwrap_or(u16::MAX) } else { u16::MAX };
            charter.parent = (!parent.is_empty()).then_some(Parent { length, generation: 0 });
        }
        self
    }

    /// Sets how the quota's tokens move between sites, in place of [`Agreement::Majority`].
    pub fn agreement(mut self, by: Agreement) -> Self {
        if let Command::Create { charter, .. } = &mut self.command {
            charter.agreement = by;
        }
        self
    }
}

impl Call<Release> {
    /// Sets the longest time for which the call stays with a site that says nothing; then it is handed over to the client. See
    /// [`Patience`].
    pub fn patience(mut self, patience: impl Into<Patience>) -> Self {
        self.patience = patience.into();
        self
    }
}

impl Call<ReleaseGrant> {
    /// Sets the longest time for which the call stays with a site that says nothing; then it is handed over to the client. See
    /// [`Patience`].
    pub fn patience(mut self, patience: impl Into<Patience>) -> Self {
        self.patience = patience.into();
        self
    }
}

impl<K: Kind> IntoFuture for Call<K> {
    type Output = Outcome<K::Value>;
    type IntoFuture = Calling<K>;

    fn into_future(self) -> Calling<K> {
        let deadline = self.client.shared.now() + self.deadline;
        let pinned = self.place != Place::Nearest;

        // Should this program end before it has settled a hold, the site takes the tokens back by itself; nothing does so for others.
        let patience = match self.patience {
            Patience::ByKind => self.of_hold.then_some(DEFAULT_PATIENCE),
            Patience::Wait => None,
            Patience::For(duration) => Some(duration),
        };
        let terms = Terms { deadline, pinned, patience };

        // A call that can only be refused needs no id, and is refused here.
        let refusal = objection(&self.command).or_else(|| self.client.no_such_place(&self.place));
        let stage = match refusal {
            Some(reason) => Progress::Refused(reason),
            None => {
                let call = CallFuture::new(self.client.port(), self.lane, self.command, self.place, terms);
                Progress::UnderWay(self.client, call)
            }
        };
        Calling { stage, kind: PhantomData }
    }
}

/// What is wrong with a call whatever the site may know: such a call is not sent.
fn objection(command: &Command) -> Option<Reason> {
    let (quota, amount) = match command {
        Command::Acquire { quota, amount, .. } | Command::Release { quota, amount } => (quota, *amount),
        Command::Create { quota, limit, .. } | Command::SetLimit { quota, limit } => (quota, *limit),
        Command::Reclaim { lost, .. } if lost.is_empty() => return Some(Reason::NothingLost),
        Command::Reclaim { quota, in_use, .. } => (quota, in_use.saturating_add(1)),
        Command::Delete { quota } => (quota, 1),
        Command::ReleaseGrant { used, .. } => return (*used < 0).then_some(Reason::InvalidAmount),
        Command::ExtendGrant { micros, .. } => {
            return (!(1_000..=HOLD_MICROS).contains(micros)).then_some(Reason::InvalidAmount);
        }
        Command::Commit { .. } | Command::AcceptLoss | Command::Seat { .. } => return None,
    };
    if !is_name(quota) {
        return Some(Reason::InvalidName);
    }
    (amount < 1).then_some(Reason::InvalidAmount)
}

/// A call under way; see [`Call`].
#[must_use = "futures do nothing unless polled"]
pub struct Calling<K> {
    stage: Progress,
    kind: PhantomData<fn() -> K>,
}

enum Progress {
    Refused(Reason),
    UnderWay(Client, CallFuture),
}

impl<K> std::fmt::Debug for Calling<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calling").finish_non_exhaustive()
    }
}

impl<K: Kind> Future for Calling<K> {
    type Output = Outcome<K::Value>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.stage {
            Progress::Refused(reason) => {
                Poll::Ready(Outcome::Refused(Refused { reason: reason.clone(), operation: None }))
            }
            Progress::UnderWay(client, call) => {
                let verdict = ready!(Pin::new(&mut *call).poll(context));
                Poll::Ready(call.told(verdict, |done| K::read(client, done)))
            }
        }
    }
}
