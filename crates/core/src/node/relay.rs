//! Requests about another site's sessions: passed on to that site, and its responses passed back. The site that a
//! client reaches never carries out an operation whose id names another site: two sites could then carry it out, once
//! each.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{Answer, Outcome, Request, Response, UnknownReason};
use crate::clock::{Now, SECOND};
use crate::id::{OperationId, SessionId, SiteId};
use crate::machine::ClientId;

/// The most requests under way in each direction.
const RELAYS: usize = 65_536;
/// The time for which responses are waited for beyond the timeout of the request, in microseconds.
const PATIENCE: u64 = 10 * SECOND;
/// The time between two looks for requests that wait too long, in microseconds.
const LOOK: u64 = SECOND;
/// The longest that any request is waited for, in microseconds: a day. A client may name more, and its request would take its place for ever
/// where the answer is lost.
const LONGEST: u64 = 24 * 3600 * SECOND;
/// The bit in the client ids of requests that another site passed on to this one.
const RELAYED: u64 = 1 << 63;

/// Requests that pass through this site.
#[derive(Debug, Default)]
pub(super) struct Relays {
    /// The last token that was given, in either direction.
    next: u64,
    /// The monotonic time of the next look for requests that wait too long.
    look_at: u64,
    /// Requests that were passed on, by token; at most [`RELAYS`].
    sent: BTreeMap<u64, Sent>,
    /// Requests that are served for other sites, by token; at most [`RELAYS`].
    served: BTreeMap<u64, Served>,
    /// The clients that asked for the site's status in this turn.
    pub(super) status: Vec<ClientId>,
}

/// A request that was passed on.
#[derive(Debug)]
struct Sent {
    /// The client of this site that asked, and is to be answered.
    client: ClientId,
    /// The part of it that is not answered yet.
    awaited: Awaited,
    /// The monotonic time at which it is given up.
    until: u64,
}

/// A request that is served for another site.
#[derive(Debug)]
struct Served {
    /// The site that passed it on, and is to be answered.
    site: SiteId,
    /// That site's token for it.
    token: u64,
    /// The part of it that is not answered yet.
    awaited: Awaited,
    /// The monotonic time after which its answers go nowhere.
    until: u64,
}

/// The part of a request that is not answered yet.
#[derive(Debug)]
enum Awaited {
    Asked(OperationId),
    Explained(OperationId),
    /// The session, and the sequences without an answer.
    Batch(SessionId, BTreeSet<u64>),
    /// A response that says only that it is done.
    Closed,
}

/// True if the client is one of another site, which passed its request on.
pub(super) fn is_relayed(client: ClientId) -> bool {
    client.0 & RELAYED != 0
}

/// The longest time that answers to a request may take, in microseconds.
fn patience(request: &Request) -> u64 {
    let longest = match request {
        Request::Batch(batch) => batch.operations.iter().map(|submission| submission.timeout).max(),
        _ => None,
    };
    longest.unwrap_or(0).min(LONGEST) + PATIENCE
}

impl Relays {
    /// No requests yet; `from` is where the tokens begin. It must differ from life to life, or a late response to an
    /// earlier life's request would go to the client that has the token now.
    pub(super) fn starting(from: u64) -> Self {
        Self { next: from, ..Self::default() }
    }

    /// Notes that a request is passed on, and returns the token for it; none at the bound.
    pub(super) fn begin(&mut self, now: Now, client: ClientId, request: &Request) -> Option<u64> {
        // A request is passed on once: one that goes from site to site would never end where two disagree about whose
        // it is.
        if self.sent.len() >= RELAYS || is_relayed(client) {
            return None;
        }
        self.next += 1;
        let until = now.mono + patience(request);
        let before = self.sent.insert(self.next, Sent { client, awaited: Awaited::of(request), until });
        assert!(before.is_none(), "request {} is passed on twice, and one client would get both answers", self.next);
        Some(self.next)
    }

    /// The client for which a passed-back response is. A batch may have several responses.
    pub(super) fn finish(&mut self, token: u64, response: &Response) -> Option<ClientId> {
        let sent = self.sent.get_mut(&token)?;
        let client = sent.client;

        // Operations that are not answered yet stay awaited: when the time is up, each of them is said to be unknown.
        if sent.awaited.is_over_with(response) {
            self.sent.remove(&token);
        }

        Some(client)
    }

    /// Notes that a request is served for another site, and returns the client to name in its responses; none at the
    /// bound.
    pub(super) fn serve(&mut self, now: Now, site: SiteId, token: u64, request: &Request) -> Option<ClientId> {
        if self.served.len() >= RELAYS {
            return None;
        }
        self.next += 1;
        let until = now.mono + patience(request);
        let before = self.served.insert(self.next, Served { site, token, awaited: Awaited::of(request), until });
        assert!(before.is_none(), "request {} is served twice, and one site would get both answers", self.next);
        Some(ClientId(RELAYED | self.next))
    }

    /// The site to which a response goes back, and that site's token, if the request was passed on by another site.
    pub(super) fn origin(&mut self, client: ClientId, response: &Response) -> Option<(SiteId, u64)> {
        if !is_relayed(client) {
            return None;
        }
        let at = client.0 & !RELAYED;
        let served = self.served.get_mut(&at)?;
        let to = (served.site, served.token);

        // A batch may be answered in several responses. It is forgotten with the last answer, so that its place is free
        // again.
        if served.awaited.is_over_with(response) {
            self.served.remove(&at);
        }

        Some(to)
    }

    /// The monotonic time of the next look, if anything is under way.
    pub(super) fn deadline(&self) -> Option<u64> {
        (!self.sent.is_empty() || !self.served.is_empty()).then_some(self.look_at)
    }

    /// Gives up requests that have waited too long; returns the responses to their clients.
    pub(super) fn tick(&mut self, now: Now) -> Vec<(ClientId, Response)> {
        if now.mono < self.look_at {
            return Vec::new();
        }
        self.look_at = now.mono + LOOK;
        self.served.retain(|_, served| served.until > now.mono);

        // The other site may have carried the request out, and its response be lost: the outcome is unknown, not
        // refused.
        let over = self.sent.iter().filter(|(_, sent)| sent.until <= now.mono).map(|(token, _)| *token);
        let over: Vec<u64> = over.collect();
        let over = over.into_iter().filter_map(|token| self.sent.remove(&token));
        over.map(|sent| (sent.client, sent.awaited.given_up())).collect()
    }
}

impl Awaited {
    /// What a request is answered with. An operation that it has twice is answered once.
    fn of(request: &Request) -> Self {
        match request {
            Request::Batch(batch) => {
                let sequences = batch.operations.iter().map(|submission| submission.sequence);
                Awaited::Batch(batch.session, sequences.collect())
            }
            Request::Ask { operation } => Awaited::Asked(*operation),
            Request::Explain { operation } => Awaited::Explained(*operation),
            _ => Awaited::Closed,
        }
    }

    /// Notes a response; true if nothing is awaited after it. A batch may have several.
    fn is_over_with(&mut self, response: &Response) -> bool {
        let (Response::Batch { answers, .. }, Awaited::Batch(_, missing)) = (response, self) else { return true };
        for answer in answers {
            missing.remove(&answer.sequence);
        }
        missing.is_empty()
    }

    /// The response to the client where none came from the other site.
    fn given_up(self) -> Response {
        let outcome = Outcome::Unknown(UnknownReason::SiteUnreachable);
        match self {
            Awaited::Asked(operation) => Response::Asked { operation, outcome },
            Awaited::Explained(operation) => {
                Response::Explained { operation, trace: Err(UnknownReason::SiteUnreachable) }
            }
            Awaited::Batch(session, missing) => {
                let answer = |sequence| Answer { sequence, outcome: outcome.clone() };
                Response::Batch { session, answers: missing.into_iter().map(answer).collect() }
            }
            Awaited::Closed => Response::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Batch, Operation, Submission};
    use crate::id::Incarnation;

    fn answer(sequence: u64) -> Response {
        let answers = vec![Answer { sequence, outcome: Outcome::Deleted }];
        Response::Batch { session: SessionId(1), answers }
    }

    /// Its client names the longest time that there is, and an operation twice: that is answered once.
    #[test]
    fn request_that_was_passed_on_is_forgotten_with_its_last_answer_and_at_the_latest_after_a_day() {
        let now = Now { wall: 0, mono: SECOND };
        let operation = |sequence| {
            let operation = Operation::Delete { quota: "gpus".into() };
            Submission { sequence, timeout: u64::MAX, operation }
        };
        let (site, incarnation, session) = (SiteId::new(1, 0), Incarnation(1), SessionId(1));
        let operations = [7, 7, 8].map(operation).to_vec();
        let request = Request::Batch(Batch { site, incarnation, session, low: 1, operations });
        let mut relays = Relays::starting(0);
        let token = relays.begin(now, ClientId(5), &request).expect("there is room");
        let client = relays.serve(now, site, 9, &request).expect("there is room");
        for sequence in [7, 8] {
            assert_eq!(relays.origin(client, &answer(sequence)), Some((site, 9)));
            assert_eq!(relays.finish(token, &answer(sequence)), Some(ClientId(5)));
        }
        assert_eq!(relays.deadline(), None, "kept although all is answered");

        relays.begin(now, ClientId(5), &request).expect("there is room");
        relays.serve(now, site, 9, &request).expect("there is room");
        let later = Now { wall: 0, mono: now.mono + LONGEST + PATIENCE };
        assert_eq!(relays.tick(later).len(), 1, "its client is answered");
        assert_eq!(relays.deadline(), None, "kept for ever");
    }
}
