//! One call: what is wanted, on which terms, and how its outcome is read.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use slackline_core::api::{self, Hold, is_name};
use slackline_core::id::{OperationId, SiteId};

use crate::book::{Act, Finished, NotTaken, Reply, Terms};
use crate::client::{Client, DEFAULT_PATIENCE, Journey, Verdict, after};
use crate::grant::Grant;
use crate::outcome::{Outcome, Reason, Refused, WhyUnknown};

/// Where a call may be carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// At the nearest site that can be reached.
    Nearest,
    /// At the site of this region.
    Region(u16),
    /// At this site.
    Site(SiteId),
    /// Nowhere: there is no region of this name.
    Nowhere(String),
}

impl Place {
    pub(crate) fn admits(&self, site: SiteId) -> bool {
        match self {
            Place::Nearest => true,
            Place::Region(region) => site.region == *region,
            Place::Site(only) => site == *only,
            Place::Nowhere(_) => false,
        }
    }
}

/// A call that takes tokens; its value is a [`Grant`].
#[derive(Debug)]
pub struct Acquire;
/// A call that gives tokens back; its value is how many.
#[derive(Debug)]
pub struct Release;
/// A call that gives a tracked grant back; its value is how many tokens that is.
#[derive(Debug)]
pub struct ReleaseGrant;
/// A call that creates a quota; its value is the limit.
#[derive(Debug)]
pub struct Create;
/// A call that deletes a quota.
#[derive(Debug)]
pub struct Delete;

/// A call that accepts that a site's earlier objects are lost.
#[derive(Debug)]
pub struct AcceptLoss;
/// A call that commits a transaction; its value is the number of phases, and the operation.
#[derive(Debug)]
pub(crate) struct Commit;

/// What a call does: [`Acquire`], [`Release`], [`ReleaseGrant`], [`Create`], [`Delete`] or [`AcceptLoss`].
pub trait Kind: sealed::Sealed + Sized {
    /// What it gives when it is done.
    type Value;

    /// Reads the outcome of what was done; `None` if it is not an outcome of such a call.
    #[doc(hidden)]
    fn read(done: sealed::Done<'_>) -> Option<Self::Value>;
}

pub(crate) mod sealed {
    use super::{Client, Finished, api};

    /// No kinds but those of this crate.
    pub trait Sealed {}

    /// A call that the site has carried out.
    #[derive(Debug)]
    pub struct Done<'a> {
        pub(crate) client: &'a Client,
        pub(crate) finished: &'a Finished,
        pub(crate) outcome: api::Outcome,
    }
}

impl sealed::Sealed for Acquire {}
impl sealed::Sealed for Release {}
impl sealed::Sealed for ReleaseGrant {}
impl sealed::Sealed for Create {}
impl sealed::Sealed for Delete {}
impl sealed::Sealed for AcceptLoss {}
impl sealed::Sealed for Commit {}

impl Kind for Acquire {
    type Value = Grant;

    fn read(done: sealed::Done<'_>) -> Option<Grant> {
        let api::Outcome::Granted { grant, lasts } = done.outcome else { return None };
        let Act::Acquire { quota, amount, hold } = &done.finished.act else { return None };
        let tracked = *hold != Hold::Counted;
        // The hold's time runs from when the request was sent, whichever copy of it was carried out, and the site may
        // take the tokens back ε early by our clock.
        let lasts = lasts.map(|lasts| Duration::from_micros(lasts).saturating_sub(done.client.shared.epsilon));
        let expires_at = match (lasts, done.finished.sent_at) {
            (Some(lasts), Some(sent_at)) => sent_at.checked_add(lasts),
            _ => None,
        };
        Some(Grant::new(done.client.clone(), grant, quota.clone(), *amount, tracked, expires_at))
    }
}

impl Kind for Release {
    type Value = i64;

    fn read(done: sealed::Done<'_>) -> Option<i64> {
        released(&done.outcome)
    }
}

impl Kind for ReleaseGrant {
    type Value = i64;

    fn read(done: sealed::Done<'_>) -> Option<i64> {
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

    fn read(done: sealed::Done<'_>) -> Option<i64> {
        match done.outcome {
            api::Outcome::Created { limit } => Some(limit),
            _ => None,
        }
    }
}

impl Kind for Delete {
    type Value = ();

    fn read(done: sealed::Done<'_>) -> Option<()> {
        (done.outcome == api::Outcome::Deleted).then_some(())
    }
}

impl Kind for AcceptLoss {
    type Value = ();

    fn read(done: sealed::Done<'_>) -> Option<()> {
        (done.outcome == api::Outcome::LossAccepted).then_some(())
    }
}

impl Kind for Commit {
    type Value = (u8, OperationId);

    fn read(done: sealed::Done<'_>) -> Option<(u8, OperationId)> {
        match done.outcome {
            api::Outcome::Committed { phases } => Some((phases, done.finished.id?)),
            _ => None,
        }
    }
}

/// A call that has not been made yet: set its terms, then `.await` it for its [`Outcome`].
///
/// Dropping the future before it is ready is safe. An acquire that was already sent goes on in the background, and what
/// it is granted is given back, as long as the client lives; a release goes on until its deadline; what had not been sent is forgotten.
#[must_use = "a call does nothing until it is awaited"]
#[derive(Debug)]
pub struct Call<K> {
    client: Client,
    lane: u16,
    act: Act,
    place: Place,
    deadline: Duration,
    patience: Patience,
    /// Whether it acquires or releases a hold with an end.
    of_hold: bool,
    kind: PhantomData<fn() -> K>,
}

/// How long an acquire or a release that was sent stays with a site that says nothing: one that is dead, frozen, or cut off. Time during
/// which the site is known to have the call, and lets it wait for tokens, does not count.
///
/// When the time is up,
///
/// - an **acquire** goes elsewhere: it is issued at another site, under a new id, if another can be reached. The client *settles* the
///   first one when its site is back: it asks, which ends what still waits, and gives back what was granted. Until then both may be in
///   use. An acquire [at a region](Call::at) stays there;
/// - a **release** is *handed over*: it ends as [unknown](Outcome::Unknown), [`WhyUnknown::HandedOver`], and the client sends it under
///   that id until its site has an answer. So nothing is released twice. A release that never left, and may go to any site, goes to
///   another one instead.
///
/// The client sees to these as long as it lives; [`Client::close`] says what is left. At most 4,096 at a time for each site; a call
/// beyond these waits. Less time than a round trip takes makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Patience {
    /// [`DEFAULT_PATIENCE`](crate::DEFAULT_PATIENCE) (1 s) for an acquire that is [held for a time](Call::hold_for), and for the
    /// [release of its grant](Grant::release): should this program end before it has settled them, the site takes the tokens back by
    /// itself. Everything else waits.
    #[default]
    ByKind,
    /// Until the deadline.
    Wait,
    /// For this long.
    For(Duration),
}

impl From<Duration> for Patience {
    fn from(duration: Duration) -> Self {
        Patience::For(duration)
    }
}

impl<K: Kind> Call<K> {
    pub(crate) fn new(client: Client, lane: u16, act: Act, place: Place) -> Self {
        let (deadline, patience) = (client.shared.deadline, client.shared.patience);
        Self { client, lane, act, place, deadline, patience, of_hold: false, kind: PhantomData }
    }

    /// The same call, of a hold with an end or not.
    pub(crate) fn of_hold(self, of_hold: bool) -> Self {
        Self { of_hold, ..self }
    }

    /// How long the call may take in all: the way there, waiting for tokens of other sites, and the way back.
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
        if let Act::Acquire { hold: hold @ Hold::Counted, .. } = &mut self.act {
            *hold = Hold::Open;
        }
        self
    }

    /// How long the call stays with a site that says nothing; then it goes elsewhere. See [`Patience`].
    pub fn patience(mut self, patience: impl Into<Patience>) -> Self {
        self.patience = patience.into();
        self
    }

    fn set_hold(&mut self, new: Hold) {
        if let Act::Acquire { hold, .. } = &mut self.act {
            *hold = new;
        }
    }
}

impl Call<Release> {
    /// How long the call stays with a site that says nothing; then it is handed over to the client. See [`Patience`].
    pub fn patience(mut self, patience: impl Into<Patience>) -> Self {
        self.patience = patience.into();
        self
    }
}

impl Call<ReleaseGrant> {
    /// How long the call stays with a site that says nothing; then it is handed over to the client. See [`Patience`].
    pub fn patience(mut self, patience: impl Into<Patience>) -> Self {
        self.patience = patience.into();
        self
    }
}

impl<K: Kind> IntoFuture for Call<K> {
    type Output = Outcome<K::Value>;
    type IntoFuture = Calling<K>;

    fn into_future(self) -> Calling<K> {
        let deadline = after(Instant::now(), self.deadline);
        let pinned = self.place != Place::Nearest;
        let patience = match self.patience {
            Patience::ByKind => self.of_hold.then_some(DEFAULT_PATIENCE),
            Patience::Wait => None,
            Patience::For(duration) => Some(duration),
        };
        let terms = Terms { deadline, pinned, patience };
        let refusal = objection(&self.act).or_else(|| self.client.no_such_place(&self.place));
        let stage = match refusal {
            Some(reason) => Progress::Refused(reason),
            None => Progress::Journey(Journey::new(self.client, self.lane, self.act, self.place, terms)),
        };
        Calling { stage, kind: PhantomData }
    }
}

/// What is wrong with a call whatever the site may know: such a call is not sent.
fn objection(act: &Act) -> Option<Reason> {
    let (quota, amount) = match act {
        Act::Acquire { quota, amount, .. } | Act::Release { quota, amount } => (quota, *amount),
        Act::Create { quota, limit } => (quota, *limit),
        Act::Delete { quota } => (quota, 1),
        Act::ReleaseGrant { .. } | Act::Commit { .. } | Act::AcceptLoss => return None,
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
    Journey(Journey),
}

impl<K> std::fmt::Debug for Calling<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calling").finish_non_exhaustive()
    }
}

impl<K: Kind> Future for Calling<K> {
    type Output = Outcome<K::Value>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let journey = match &mut self.stage {
            Progress::Refused(reason) => {
                return Poll::Ready(Outcome::Refused(Refused { reason: reason.clone(), operation: None }));
            }
            Progress::Journey(journey) => journey,
        };
        let verdict = ready!(Pin::new(&mut *journey).poll(context));
        Poll::Ready(read::<K>(journey, verdict))
    }
}

fn read<K: Kind>(journey: &Journey, verdict: Verdict) -> Outcome<K::Value> {
    let client = journey.client();
    let not_taken = |why: NotTaken| {
        let topology = client.topology();
        let reason = Reason::not_taken(why, journey.lane(), journey.candidates(), topology);
        Outcome::Refused(Refused { reason, operation: None })
    };
    let mut finished = match verdict {
        Verdict::Finished(finished) => finished,
        Verdict::Stranded(why) => return not_taken(why),
    };
    let outcome = match std::mem::replace(&mut finished.reply, Reply::InDoubt) {
        Reply::NotTaken(why) => return not_taken(why),
        Reply::HandedOver(id) => return Outcome::Unknown(client.shared.unknown(id, WhyUnknown::HandedOver)),
        Reply::Answered(outcome) => Some(outcome),
        Reply::InDoubt | Reply::LeftBehind => None,
    };
    let id = finished.id.expect("what was answered or is in doubt was sent, so it has an id");
    let shared = &client.shared;
    let why = match outcome {
        Some(api::Outcome::Refused(refusal)) => {
            let reason = Reason::of(refusal, journey.lane(), &shared.topology);
            return Outcome::Refused(Refused { reason, operation: Some(id) });
        }
        Some(api::Outcome::Aborted(abort)) => {
            let reason = Reason::of_abort(*abort, &shared.topology);
            return Outcome::Refused(Refused { reason, operation: Some(id) });
        }
        Some(api::Outcome::Unknown(doubt)) => doubt.into(),
        Some(outcome) => match K::read(sealed::Done { client, finished: &finished, outcome }) {
            Some(value) => return Outcome::Done(value),
            None => WhyUnknown::Senseless,
        },
        None if Instant::now() < journey.deadline() => WhyUnknown::Closed,
        None => WhyUnknown::DeadlinePassed,
    };
    Outcome::Unknown(shared.unknown(id, why))
}
