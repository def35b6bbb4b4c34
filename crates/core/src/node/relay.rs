//! Requests about another site's sessions: passed on to that site, and its responses passed back. The site that a client
//! happens to reach never carries out what another site's id names.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{Answer, Doubt, Outcome, Request, Response};
use crate::clock::{Now, SECOND};
use crate::id::{OperationId, SessionId, SiteId};
use crate::machine::ClientId;

/// The most requests under way in each direction.
const RELAYS: usize = 65_536;
/// How long responses are waited for beyond the time that the request itself has.
const PATIENCE: u64 = 10 * SECOND;
/// How often those are looked for that wait too long.
const LOOK: u64 = SECOND;
/// Marks the client ids of requests that another site passed on to us.
const RELAYED: u64 = 1 << 63;

/// Requests that pass through.
#[derive(Debug, Default)]
pub(super) struct Relays {
    next: u64,
    look_at: u64,
    sent: BTreeMap<u64, Sent>,
    served: BTreeMap<u64, Served>,
    /// Clients that asked for the site's status in this turn.
    pub(super) status: Vec<ClientId>,
}

/// A request that was passed on.
#[derive(Debug)]
struct Sent {
    client: ClientId,
    awaited: Awaited,
    until: u64,
}

/// A request that is served for another site.
#[derive(Debug)]
struct Served {
    site: SiteId,
    /// That site's name for it.
    token: u64,
    /// Answers that are still to come.
    answers: usize,
    until: u64,
}

/// What is still to be answered of a request.
#[derive(Debug)]
enum Awaited {
    Asked(OperationId),
    Explained(OperationId),
    Batch(SessionId, BTreeSet<u64>),
    /// Only that it is done.
    Closed,
}

/// Whether the client is another site's.
pub(super) fn is_relayed(client: ClientId) -> bool {
    client.0 & RELAYED != 0
}

/// How long answers to a request may take, in microseconds.
fn patience(request: &Request) -> u64 {
    let longest = match request {
        Request::Batch(batch) => batch.operations.iter().map(|submission| submission.timeout).max(),
        _ => None,
    };
    longest.unwrap_or(0).saturating_add(PATIENCE)
}

/// How many answers a request gets.
fn answers(request: &Request) -> usize {
    match request {
        Request::Batch(batch) => batch.operations.len(),
        _ => 1,
    }
}

impl Relays {
    /// Names requests from here on: another number in each life, or a late response of an earlier life would go to whoever
    /// has its name now.
    pub(super) fn starting(from: u64) -> Self {
        Self { next: from, ..Self::default() }
    }

    /// A request is passed on; the token for it, unless too many are.
    pub(super) fn begin(&mut self, now: Now, client: ClientId, request: &Request) -> Option<u64> {
        if self.sent.len() >= RELAYS || is_relayed(client) {
            return None;
        }
        let awaited = match request {
            Request::Batch(batch) => {
                let sequences = batch.operations.iter().map(|submission| submission.sequence);
                Awaited::Batch(batch.session, sequences.collect())
            }
            Request::Ask { operation } => Awaited::Asked(*operation),
            Request::Explain { operation } => Awaited::Explained(*operation),
            _ => Awaited::Closed,
        };
        self.next += 1;
        let until = now.mono.saturating_add(patience(request));
        self.sent.insert(self.next, Sent { client, awaited, until });
        Some(self.next)
    }

    /// Whom a passed-back response is for. A batch may have several.
    pub(super) fn finish(&mut self, token: u64, response: &Response) -> Option<ClientId> {
        let sent = self.sent.get_mut(&token)?;
        let client = sent.client;
        let is_done = match (response, &mut sent.awaited) {
            (Response::Batch { answers, .. }, Awaited::Batch(_, missing)) => {
                missing.retain(|sequence| answers.iter().all(|answer| answer.sequence != *sequence));
                missing.is_empty()
            }
            _ => true,
        };
        if is_done {
            self.sent.remove(&token);
        }
        Some(client)
    }

    /// Another site passes a request on; the client to name in its responses.
    pub(super) fn serve(&mut self, now: Now, site: SiteId, token: u64, request: &Request) -> Option<ClientId> {
        if self.served.len() >= RELAYS {
            return None;
        }
        self.next += 1;
        let until = now.mono.saturating_add(patience(request));
        self.served.insert(self.next, Served { site, token, answers: answers(request), until });
        Some(ClientId(RELAYED | self.next))
    }

    /// The site and token that a response goes back to, if the client is another site's.
    pub(super) fn origin(&mut self, client: ClientId, response: &Response) -> Option<(SiteId, u64)> {
        if !is_relayed(client) {
            return None;
        }
        let at = client.0 & !RELAYED;
        let served = self.served.get_mut(&at)?;
        let to = (served.site, served.token);
        let given = match response {
            Response::Batch { answers, .. } => answers.len(),
            _ => 1,
        };
        served.answers = served.answers.saturating_sub(given);
        if served.answers == 0 {
            self.served.remove(&at);
        }
        Some(to)
    }

    /// When to look again, if anything is under way.
    pub(super) fn deadline(&self) -> Option<u64> {
        (!self.sent.is_empty() || !self.served.is_empty()).then_some(self.look_at)
    }

    /// Answers those who have waited too long that nobody knows, and forgets what nobody waits for any more.
    pub(super) fn tick(&mut self, now: Now) -> Vec<(ClientId, Response)> {
        if now.mono < self.look_at {
            return Vec::new();
        }
        self.look_at = now.mono + LOOK;
        self.served.retain(|_, served| served.until > now.mono);
        let over = self.sent.iter().filter(|(_, sent)| sent.until <= now.mono).map(|(token, _)| *token);
        let over: Vec<u64> = over.collect();
        let over = over.into_iter().filter_map(|token| self.sent.remove(&token));
        over.map(|sent| (sent.client, sent.awaited.given_up())).collect()
    }
}

impl Awaited {
    /// The response where none came.
    fn given_up(self) -> Response {
        let outcome = Outcome::Unknown(Doubt::SiteUnreachable);
        match self {
            Awaited::Asked(operation) => Response::Asked { operation, outcome },
            Awaited::Explained(operation) => Response::Explained { operation, trace: Err(Doubt::SiteUnreachable) },
            Awaited::Batch(session, missing) => {
                let answer = |sequence| Answer { sequence, outcome: outcome.clone() };
                Response::Batch { session, answers: missing.into_iter().map(answer).collect() }
            }
            Awaited::Closed => Response::Closed,
        }
    }
}
