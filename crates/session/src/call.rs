//! One call on its way: it is offered to the sites of its lane, nearest first, until one takes it; then its outcome is waited for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use slackline_core::api;
use slackline_core::id::{OperationId, SiteId};

use crate::command::{CallKey, Command, Finished, NotTaken, Reply, Terms};
use crate::link::Link;
use crate::outcome::{Outcome, Reason, Refused, Unknown, UnknownReason};
use crate::port::{Pending, Port};
use crate::time::Time;
use crate::topology::Topology;

/// The pause before a call that no site would take is offered to them again.
const PAUSE: Duration = Duration::from_millis(20);

/// Where a call may be carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
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
    /// The place that a region's name stands for.
    pub fn of_region(name: &str, topology: &Topology) -> Self {
        topology.region(name).map_or_else(|| Place::Nowhere(name.to_owned()), Place::Region)
    }

    /// True if a site is of this place.
    pub fn admits(&self, site: SiteId) -> bool {
        match self {
            Place::Nearest => true,
            Place::Region(region) => site.region == *region,
            Place::Site(only) => site == *only,
            Place::Nowhere(_) => false,
        }
    }
}

/// One call on its way: offered to sites until one takes it, then waited for.
///
/// Dropped before it is ready, an acquire that has left is settled by its link, and given back if it is granted; a release goes on.
pub struct CallFuture {
    port: Arc<dyn Port>,
    lane: u16,
    /// The sites that would do.
    place: Place,
    /// When it must be over, and which sites would do.
    terms: Terms,
    /// The sites of the lane that would not take it in this round of offers: one bit each, by position.
    tried: u64,
    /// Why it was not taken last. What a site says stays, as it tells more than that another cannot be reached.
    last: NotTaken,
    /// The position of the site where it was left behind last, and its id there; none once that is taken back.
    left_behind: Option<(usize, OperationId)>,
    /// Where it is on its way.
    stage: Stage,
}

enum Stage {
    /// To be offered to a site.
    Offer(Command),
    /// A site's link has it: its position in the lane, and the key.
    Taken(usize, CallKey),
    /// No site would take it just now.
    Pause(Command, Pending<()>),
    /// It has ended.
    Over,
}

/// The end of a call.
#[derive(Debug)]
pub enum Verdict {
    /// A site took it; this is what its link says.
    Finished(Finished),
    /// No site took it.
    Stranded(NotTaken),
}

impl CallFuture {
    /// A call of a lane. Nothing is sent before it is polled.
    pub fn new(port: Arc<dyn Port>, lane: u16, command: Command, place: Place, terms: Terms) -> Self {
        let stage = Stage::Offer(command);
        Self { port, lane, place, terms, tried: 0, last: NotTaken::Unreachable, left_behind: None, stage }
    }

    /// The time at which its caller wants to know.
    pub fn deadline(&self) -> Time {
        self.terms.deadline
    }

    /// The lane that it goes to.
    pub fn lane(&self) -> u16 {
        self.lane
    }

    /// The cluster's map.
    pub fn topology(&self) -> &Topology {
        self.port.topology()
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.port.now()
    }

    /// The names of the sites that would do.
    pub fn candidates(&self) -> Vec<String> {
        self.links().iter().filter(|link| self.place.admits(link.site)).map(|link| link.name.clone()).collect()
    }

    /// The outcome that its caller is told. `done` reads the outcome of what was carried out; `None` if it is not one of such a
    /// call.
    pub fn told<T>(&self, verdict: Verdict, done: impl FnOnce(Done) -> Option<T>) -> Outcome<T> {
        let topology = self.topology();
        let not_taken = |why| {
            let reason = Reason::not_taken(why, self.lane(), self.candidates(), topology);
            Outcome::Refused(Refused { reason, operation: None })
        };
        let Finished { reply, command, id, sent_at } = match verdict {
            Verdict::Finished(finished) => finished,
            Verdict::Stranded(why) => return not_taken(why),
        };

        // All but what was not taken has left, or is about to under an id that its caller learns.
        let id = || id.expect("what was sent has an id");
        let unknown = |operation, why| Outcome::Unknown(Unknown::new(topology, operation, why));
        match reply {
            Reply::NotTaken(why) => not_taken(why),
            Reply::HandedOver(operation) => unknown(operation, UnknownReason::HandedOver),
            Reply::InDoubt | Reply::LeftBehind if self.now() < self.deadline() => unknown(id(), UnknownReason::Closed),
            Reply::InDoubt | Reply::LeftBehind => unknown(id(), UnknownReason::DeadlinePassed),
            Reply::Answered(outcome) => {
                let above = command.level(&outcome);
                match Outcome::of_site(outcome, id(), topology) {
                    Outcome::Done(outcome) => match done(Done { command, operation: id(), sent_at, outcome }) {
                        Some(value) => Outcome::Done(value),
                        None => unknown(id(), UnknownReason::Senseless),
                    },
                    Outcome::Refused(mut refused) => {
                        refused.reason.note_level(above);
                        Outcome::Refused(refused)
                    }
                    Outcome::Unknown(unknown) => Outcome::Unknown(unknown),
                }
            }
        }
    }

    fn links(&self) -> &[Arc<Link>] {
        self.port.links(self.lane)
    }

    /// The nearest site that would do and has not been tried; one that says nothing comes after those that do.
    fn choose(&self) -> Option<usize> {
        // Where only one site will do, the call waits at its link until that can be reached.
        let pinned = self.terms.pinned;
        let links = self.links().iter().enumerate().filter(|(position, link)| {
            self.tried >> position & 1 == 0 && self.place.admits(link.site) && (pinned || link.is_usable())
        });
        let nearest = links.min_by_key(|(position, link)| (!pinned && link.is_silent(), *position));
        nearest.map(|(position, _)| position)
    }

    /// True if another site than the one at `position` would take it, as far as its link knows.
    fn has_elsewhere(&self, position: usize) -> bool {
        let mut others = self.links().iter().enumerate().filter(|(other, _)| *other != position);
        others.any(|(_, link)| self.place.admits(link.site) && link.is_usable() && !link.is_silent())
    }

    /// Returns the end of the call. If no site took it at last, and it was left behind somewhere, its caller is told that id:
    /// refused would say that it never left.
    fn end(&mut self, verdict: Verdict) -> Verdict {
        let not_taken = match &verdict {
            Verdict::Stranded(_) => true,
            Verdict::Finished(finished) => matches!(finished.reply, Reply::NotTaken(_)),
        };
        let left_behind = if not_taken { self.left_behind.take() } else { None };

        // If that is settled by now, it is given back, and the caller has nothing to ask about.
        let now = self.port.now();
        let reclaimed = left_behind.and_then(|(position, id)| self.links()[position].reclaim(id, now));
        reclaimed.map_or(verdict, Verdict::Finished)
    }

    /// A call came back from a site's link. Returns how it ended; none if it goes on to another site.
    fn returned(&mut self, position: usize, finished: Finished) -> Option<Verdict> {
        match finished.reply {
            // Its link settles the first copy and gives back what that is granted, so a second one may leave, under another id.
            Reply::LeftBehind => {
                self.left_behind = finished.id.map(|id| (position, id));
                self.tried = 1 << position;
            }
            // It is settled that the first copy has no effect, so a new one may go anywhere, even there.
            Reply::NotTaken(NotTaken::Refused(api::Refusal::Withdrawn)) => {}
            Reply::NotTaken(NotTaken::Refused(api::Refusal::StorageFull)) if self.terms.pinned => {
                return Some(Verdict::Finished(finished));
            }
            Reply::NotTaken(why @ (NotTaken::Unreachable | NotTaken::Refused(_))) => {
                self.tried |= 1 << position;
                // A site that says why it does not take the call tells more than one that cannot be reached.
                if why != NotTaken::Unreachable || !matches!(self.last, NotTaken::Refused(_)) {
                    self.last = why;
                }
            }
            // Whoever is told one of these has the outcome, or an id that another copy would not have: it is never issued again.
            Reply::NotTaken(_) | Reply::Answered(_) | Reply::InDoubt | Reply::HandedOver(_) => {
                return Some(Verdict::Finished(finished));
            }
        }
        self.stage = Stage::Offer(finished.command);
        None
    }

    /// No site would take it in this round of offers: pause, unless it is over.
    fn pause(&mut self, command: Command) -> Option<Verdict> {
        // A full disk does not empty itself in a moment; to wait would only delay the news.
        let now = self.port.now();
        let full = self.last == NotTaken::Refused(api::Refusal::StorageFull);
        if now >= self.terms.deadline || full || self.links().is_empty() {
            return Some(Verdict::Stranded(self.last));
        }

        // The next round asks all of them again.
        self.tried = 0;
        let until = (now + PAUSE).min(self.terms.deadline);
        self.stage = Stage::Pause(command, self.port.sleep_until(until));
        None
    }
}

impl std::fmt::Debug for CallFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallFuture").field("lane", &self.lane).field("place", &self.place).finish_non_exhaustive()
    }
}

impl Future for CallFuture {
    type Output = Verdict;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Verdict> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Offer(command) => {
                    let Some(position) = self.choose() else {
                        match self.pause(command) {
                            Some(verdict) => return Poll::Ready(self.end(verdict)),
                            None => continue,
                        }
                    };
                    match self.links()[position].submit(command, self.terms, self.port.now()) {
                        Ok(key) => self.stage = Stage::Taken(position, key),
                        Err((why, _)) => return Poll::Ready(self.end(Verdict::Stranded(why))),
                    }
                }
                // A call that is with a site stays there until its link gives it back.
                Stage::Taken(position, key) => {
                    let may_leave = || self.has_elsewhere(position);
                    let Poll::Ready(finished) = self.links()[position].poll(key, context, may_leave) else {
                        self.stage = Stage::Taken(position, key);
                        return Poll::Pending;
                    };
                    if let Some(verdict) = self.returned(position, finished) {
                        return Poll::Ready(self.end(verdict));
                    }
                }
                Stage::Pause(command, mut sleep) => {
                    if sleep.as_mut().poll(context).is_pending() {
                        self.stage = Stage::Pause(command, sleep);
                        return Poll::Pending;
                    }
                    self.stage = Stage::Offer(command);
                }
                Stage::Over => panic!("polled after it had ended"),
            }
        }
    }
}

impl Drop for CallFuture {
    fn drop(&mut self) {
        // What it was granted would be nobody's: its link sees to that.
        if let Stage::Taken(position, key) = self.stage {
            self.links()[position].abandon(key, self.port.now());
        }
    }
}

/// A call that its site has carried out.
#[derive(Debug)]
pub struct Done {
    /// What was done.
    pub command: Command,
    /// The id under which it was done.
    pub operation: OperationId,
    /// When it first left.
    pub sent_at: Option<Time>,
    /// What came of it.
    pub outcome: api::Outcome,
}
