//! Requests of clients and messages of other sites: each goes to the chapter that it concerns, and what became of operations is
//! recorded under their ids.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::OUTCOME;
use super::counting::Counts;
use super::lives::Lineage;
use super::relay::Relays;
use crate::api::{
    Answer, BATCH_OPERATIONS, Batch, Doubt, Listed, Operation, Outcome, Readiness, Reading, Refusal, Request, Response,
    SESSION_WINDOW,
};
use crate::id::{OperationId, SessionId, SiteId};
use crate::machine::{self, ClientId, View};
use crate::object::{Abort, Cause};
use crate::peer::Body;
use crate::quota::Quotas;
use crate::session::{self, Closed, Known, NOBODY, Opened, Session, Sessions, Unanswered, Verdict};
use crate::turn::{Ticket, Turn};
use crate::txn::Txns;

/// The parts of a node that a turn works on, borrowed apart from those that it only looks at.
pub(super) struct Desk<'a> {
    pub(super) lineage: &'a mut Lineage,
    pub(super) sessions: &'a mut Sessions,
    pub(super) quotas: &'a mut Quotas,
    pub(super) txns: &'a mut Txns,
    pub(super) counts: &'a mut Counts,
    pub(super) relays: &'a mut Relays,
    pub(super) view: &'a View,
    pub(super) scratch: &'a mut Vec<u8>,
}

impl Desk<'_> {
    /// Handles what another site says.
    pub(super) fn message(&mut self, turn: &mut Turn, from: usize, epoch: u64, body: Option<Body>) {
        let Self { quotas, counts, relays, .. } = self;
        let peer = turn.peers[from].site;
        quotas.meet_epoch(turn, from, epoch);
        let Some(body) = body else { return };
        // What is said of a name that was forgotten in between is about another quota. It counts as lost.
        if name_in(&body).is_some_and(|name| !quotas.is_of_this_life(epoch, name)) {
            turn.metrics.ignored += 1;
            return;
        }
        match body {
            Body::Forget(message) => quotas.forget(turn, from, epoch, *message),
            Body::Avantan { quota, message } => quotas.message(turn, peer, &quota, *message),
            Body::Digests(digests) => {
                for digest in digests {
                    if quotas.is_of_this_life(epoch, &digest.quota) {
                        quotas.digest(turn, from, digest);
                    }
                }
            }
            Body::Lookup { token, quota } => quotas.look_up(turn, from, quota, token),
            Body::NotKnown { token, quota } => quotas.not_known(turn, from, &quota, token),
            Body::NoVote { quota, answer } => quotas.no_vote(turn, from, &quota, *answer),
            Body::Count { token, quota } => {
                let tally = quotas.tally(turn, &quota);
                turn.sends.push((peer, Body::Counted { token, tally: tally.map(Box::new) }));
            }
            Body::Counted { token, tally } => {
                if counts.asked(token).is_some_and(|name| quotas.is_of_this_life(epoch, name)) {
                    counts.counted(turn, quotas, from, token, tally.map(|tally| *tally));
                }
            }
            Body::Object(message) => self.txns.message(turn, self.view, peer, *message),
            Body::Relay { token, request } => {
                // What a relayed request may ask is about this site's sessions; anything else would go round.
                let is_ours = is_about(&request, turn.site.me);
                let client = is_ours.then(|| relays.serve(turn.now, peer, token, &request)).flatten();
                if let Some(client) = client {
                    self.request(turn, client, *request);
                }
            }
            Body::Relayed { token, response } => {
                if let Some(client) = relays.finish(token, &response) {
                    turn.responses.push((client, *response));
                }
            }
            // Handled before the turn, see [`super::lives`].
            Body::Hello { .. } | Body::Welcome { .. } | Body::Ping { .. } | Body::Pong { .. } => {}
        }
    }

    /// Carries out a request, or lets it wait.
    pub(super) fn request(&mut self, turn: &mut Turn, client: ClientId, request: Request) {
        let me = turn.site.me;
        let ready = self.lineage.readiness == Readiness::Ready;
        let serving = ready || self.lineage.readiness == Readiness::Draining;
        match request {
            Request::Open if !turn.has_room => turn.responses.push((client, Response::NotOpened(Refusal::StorageFull))),
            Request::Open if !ready => turn.responses.push((client, Response::NotOpened(Refusal::NotReady))),
            Request::Open => match self.sessions.open(turn.now.mono) {
                Opened::Full => turn.responses.push((client, Response::NotOpened(Refusal::Overloaded))),
                Opened::Within(session) | Opened::Reserving(session) => {
                    self.lineage.note_marks(self.sessions);
                    let incarnation = turn.site.incarnation;
                    turn.responses.push((client, Response::Opened { site: me, incarnation, session }));
                }
            },
            // Nobody has vouched for what is here, so it says nothing of what was done.
            Request::Batch(batch) if batch.site == me && !serving => {
                answer_all(turn, client, &batch, &Outcome::Unknown(Doubt::NotReady));
            }
            Request::Batch(batch) if batch.site == me && batch.incarnation != turn.site.incarnation => {
                answer_all(turn, client, &batch, &Outcome::Unknown(Doubt::IncarnationLost));
            }
            Request::Batch(batch) if batch.site == me => self.submit(turn, ready, client, batch),
            // Another site's operations: it alone may carry them out.
            Request::Batch(batch) => {
                let to = batch.site;
                if let Err(Request::Batch(batch)) = self.pass_on(turn, serving, client, to, Request::Batch(batch)) {
                    answer_all(turn, client, &batch, &Outcome::Unknown(Doubt::SiteUnreachable));
                }
            }
            Request::Ask { operation } if operation.site == me => {
                let outcome = self.ask(turn, serving, operation);
                turn.responses.push((client, Response::Asked { operation, outcome }));
            }
            Request::Ask { operation } => {
                if self.pass_on(turn, serving, client, operation.site, Request::Ask { operation }).is_err() {
                    let outcome = Outcome::Unknown(Doubt::SiteUnreachable);
                    turn.responses.push((client, Response::Asked { operation, outcome }));
                }
            }
            Request::Explain { operation } if operation.site == me => {
                let trace = match self.txns.explain(operation) {
                    Some(trace) => Ok(Box::new(trace.clone())),
                    None if !serving => Err(Doubt::NotReady),
                    None if operation.incarnation != turn.site.incarnation => Err(Doubt::IncarnationLost),
                    None => Err(Doubt::Forgotten),
                };
                turn.responses.push((client, Response::Explained { operation, trace }));
            }
            Request::Explain { operation } => {
                if self.pass_on(turn, serving, client, operation.site, Request::Explain { operation }).is_err() {
                    let trace = Err(Doubt::SiteUnreachable);
                    turn.responses.push((client, Response::Explained { operation, trace }));
                }
            }
            Request::Close { site, incarnation, session } if site == me => {
                // Where that cannot be noted, the session ends when it has been silent for long enough.
                if serving && turn.has_room && incarnation == turn.site.incarnation {
                    self.close(turn, session);
                }
                turn.responses.push((client, Response::Closed));
            }
            // If it cannot be told, the session ends when it has been silent for long enough.
            Request::Close { site, .. } => {
                if self.pass_on(turn, serving, client, site, request).is_err() {
                    turn.responses.push((client, Response::Closed));
                }
            }
            Request::Read(read) if !serving => {
                let refuse = |_| Err(Abort { site: Some(me), ..Abort::of(Cause::NotReady) });
                let gets = read.gets.iter().map(|_| ()).map(refuse).collect();
                let refuse = |_| Err(Abort { site: Some(me), ..Abort::of(Cause::NotReady) });
                let scans = read.scans.iter().map(|_| ()).map(refuse).collect();
                turn.responses.push((
                    client,
                    Response::Read(Box::new(Reading { token: read.token, gets, scans, is_whole: false })),
                ));
            }
            Request::Read(read) => {
                let table = self.txns.table(turn, self.view);
                self.txns.read(turn, &table, client, *read);
            }
            Request::Show { .. } if !serving => turn.responses.push((client, Response::Shown(Err(Refusal::NotReady)))),
            Request::Show { quota, timeout } => self.counts.begin(turn, self.quotas, client, quota, timeout),
            // It knows only what its storage has, which may be nothing yet: that would read as if there were no quotas.
            Request::List { .. } if !serving => turn.responses.push((client, Response::NotOpened(Refusal::NotReady))),
            Request::List { after, limit } => {
                turn.responses.push((client, Response::Listed(list(self.quotas, &after, limit.min(1000) as usize))));
            }
            // Only the driver asks these, and the node answers them itself.
            Request::Status | Request::Drain => {}
        }
    }

    /// Passes a request on to the site that it is about; hands it back if that cannot be.
    fn pass_on(
        &mut self,
        turn: &mut Turn,
        serving: bool,
        client: ClientId,
        to: SiteId,
        request: Request,
    ) -> Result<(), Request> {
        let up = serving && turn.peers.iter().any(|peer| peer.site == to && peer.is_up(turn.now));
        let Some(token) = up.then(|| self.relays.begin(turn.now, client, &request)).flatten() else {
            return Err(request);
        };
        turn.sends.push((to, Body::Relay { token, request: Box::new(request) }));
        Ok(())
    }

    /// Carries out the operations of a batch that are new, answers those that are known, and lets wait what has to. Each is looked
    /// up first: only one that is new is refused by a site that stops, or whose disk is full.
    fn submit(&mut self, turn: &mut Turn, ready: bool, client: ClientId, batch: Batch) {
        let Self { sessions, quotas, txns, view, scratch, .. } = self;
        let Some(session) = sessions.find(batch.session) else {
            let outcome = match sessions.verdict_on_ended(batch.session, turn.has_room) {
                // Nothing was done in it, and nothing will be: its number is passed over.
                Outcome::Refused(_) => Outcome::Refused(Refusal::SessionEnded),
                unknown => unknown,
            };
            return answer_all(turn, client, &batch, &outcome);
        };
        session.raise(batch.low, turn.now.mono);
        let mut answers = Vec::with_capacity(batch.operations.len());
        let mut rests_on_mark = false;
        for submission in batch.operations.into_iter().take(BATCH_OPERATIONS) {
            let Submitted { sequence, timeout, operation } = submission.into();
            let ticket = Ticket { session: batch.session, sequence };
            let digest = session::digest(&operation);
            let verdict = if turn.has_room {
                session.judge(sequence, digest, client)
            } else {
                session.judge_without_room(sequence, digest, client)
            };

            // The window has moved over operations that wait. They are withdrawn before anything else is done, and the mark is
            // made durable with that, or a crash would let them in again.
            let unclaimed = session.unclaimed();
            rests_on_mark |= !unclaimed.is_empty();
            withdraw(turn, quotas, txns, batch.session, unclaimed);
            match verdict {
                Verdict::RefusedForRoom => {
                    let outcome = Outcome::Refused(Refusal::StorageFull);
                    // It is to stay refused, whatever happens: there may be room to note that now.
                    if turn.has_room {
                        put_outcome(&mut turn.batch, scratch, ticket, session, digest, &outcome);
                        session.record(sequence, digest, outcome.clone());
                    }
                    answers.push(Answer { sequence, outcome });
                }
                Verdict::Known(outcome) => {
                    turn.metrics.repeated += 1;
                    rests_on_mark |= outcome == Outcome::Unknown(Doubt::Forgotten);
                    answers.push(Answer { sequence, outcome });
                }
                Verdict::Waiting(None) => {}
                Verdict::Waiting(Some(before)) => {
                    let answers = vec![Answer { sequence, outcome: Outcome::Unknown(Doubt::Undecided) }];
                    turn.responses.push((before, Response::Batch { session: batch.session, answers }));
                }
                // A site that stops begins nothing.
                Verdict::Undecided if !ready => {
                    answers.push(Answer { sequence, outcome: Outcome::Unknown(Doubt::Undecided) });
                }
                Verdict::Fresh | Verdict::Undecided => {
                    let settled = session.aim_of(sequence).and_then(|aim| quotas.settled(aim));
                    let outcome = match operation {
                        _ if !ready => Some(Outcome::Refused(Refusal::NotReady)),
                        Operation::Commit(transaction) => {
                            let table = txns.table(turn, view);
                            let marks = (session.low(), digest);
                            txns.commit(turn, &table, ticket, *transaction, timeout, marks)
                        }
                        Operation::AcceptLoss => {
                            txns.accept_loss();
                            Some(Outcome::LossAccepted)
                        }
                        operation => settled.or_else(|| quotas.execute(turn, view, ticket, &operation, timeout)),
                    };
                    match outcome {
                        Some(outcome) => {
                            if session::is_kept(&outcome) {
                                put_outcome(&mut turn.batch, scratch, ticket, session, digest, &outcome);
                            }
                            session.record(sequence, digest, outcome.clone());
                            if matches!(outcome, Outcome::Refused(refusal) if !matches!(refusal, Refusal::Exhausted { .. }))
                            {
                                turn.metrics.refused_other += 1;
                            }
                            answers.push(Answer { sequence, outcome });
                        }
                        None => session.suspend(sequence, digest, client),
                    }
                }
            }
        }
        if rests_on_mark {
            put_mark(&mut turn.batch, scratch, batch.session, session);
        }
        turn.responses.push((client, Response::Batch { session: batch.session, answers }));
    }

    /// What became of an operation? Asking is a write: one that is not known here is refused for ever.
    fn ask(&mut self, turn: &mut Turn, serving: bool, operation: OperationId) -> Outcome {
        let Self { sessions, quotas, txns, scratch, .. } = self;
        // Nobody has vouched for what is here, so it says nothing of what was done.
        if !serving {
            return Outcome::Unknown(Doubt::NotReady);
        }
        if operation.incarnation != turn.site.incarnation {
            return Outcome::Unknown(Doubt::IncarnationLost);
        }
        let Some(session) = sessions.find(operation.session) else {
            return sessions.verdict_on_ended(operation.session, turn.has_room);
        };
        let ticket = Ticket { session: operation.session, sequence: operation.sequence };
        let withdrawn = Outcome::Refused(Refusal::Withdrawn);
        let no_room = Outcome::Unknown(Doubt::StorageFull);
        match session.look(operation.sequence) {
            Some(Known::Ended(outcome)) => {
                let settled = session
                    .aim_of(operation.sequence)
                    .and_then(|aim| quotas.settled(aim).or_else(|| quotas.is_lost(aim).then_some(withdrawn)));
                let rests_on_mark = outcome == Outcome::Unknown(Doubt::Forgotten);
                if !turn.has_room && (settled.is_some() || rests_on_mark && session.is_unmarked()) {
                    return no_room;
                }
                if rests_on_mark {
                    put_mark(&mut turn.batch, scratch, operation.session, session);
                }
                let Some(settled) = settled else { return outcome };
                let digest = session.digest_of(operation.sequence).unwrap_or(0);
                put_outcome(&mut turn.batch, scratch, ticket, session, digest, &settled);
                session.record(operation.sequence, digest, settled.clone());
                settled
            }
            None | Some(Known::RefusedForRoom) if !turn.has_room => no_room,
            Some(Known::RefusedForRoom) => {
                let digest = session.digest_of(operation.sequence).unwrap_or(0);
                let refused = Outcome::Refused(Refusal::StorageFull);
                put_outcome(&mut turn.batch, scratch, ticket, session, digest, &refused);
                session.record(operation.sequence, digest, refused.clone());
                refused
            }
            Some(Known::Waiting(_)) if !turn.has_room => Outcome::Unknown(Doubt::Undecided),
            Some(Known::Waiting(_)) if txns.is_undecided(operation) => {
                if !txns.take_back(turn, operation) {
                    txns.ask_participants(turn, operation);
                    return Outcome::Unknown(Doubt::Undecided);
                }
                turn.finished.push((ticket, withdrawn.clone()));
                withdrawn
            }
            Some(Known::Waiting(_)) => {
                if !quotas.withdraw(turn, operation.session, &BTreeSet::from([operation.sequence])) {
                    return Outcome::Unknown(Doubt::Undecided);
                }
                turn.finished.push((ticket, withdrawn.clone()));
                withdrawn
            }
            None => {
                session.make_room(operation.sequence);
                put_outcome(&mut turn.batch, scratch, ticket, session, 0, &withdrawn);
                session.record(operation.sequence, 0, withdrawn.clone());
                let unclaimed = session.unclaimed();
                withdraw(turn, quotas, txns, operation.session, unclaimed);
                withdrawn
            }
        }
    }

    /// Ends a session and removes its rows.
    pub(super) fn close(&mut self, turn: &mut Turn, id: SessionId) {
        let Self { lineage, sessions, quotas, txns, .. } = self;
        let Some(Closed { slots, waiting }) = sessions.close(id) else { return };
        lineage.note_marks(sessions);
        for slot in slots {
            turn.batch.delete(&outcome_key(id, slot));
        }
        withdraw(turn, quotas, txns, id, waiting);

        txns.leave_session(turn, id);
    }

    /// Records and answers the waiting operations that ended in this turn.
    pub(super) fn finish(&mut self, turn: &mut Turn) {
        let Self { sessions, scratch, .. } = self;
        for (ticket, aim) in std::mem::take(&mut turn.undecided) {
            let Some(session) = sessions.find(ticket.session) else { continue };
            // Its place in the window, and so its row, may belong to another operation by now.
            let Some(digest) = session.digest_of(ticket.sequence) else { continue };
            session.note_row(ticket.sequence);
            session.aim(ticket.sequence, aim);
            scratch.clear();
            session::encode_undecided(scratch, ticket.sequence, session.low(), digest, aim);
            turn.batch.put(&outcome_key(ticket.session, ticket.sequence % SESSION_WINDOW), scratch);
        }
        let mut answers: FxHashMap<(ClientId, SessionId), Vec<Answer>> = FxHashMap::default();
        let mut order = Vec::new();
        for (ticket, outcome) in std::mem::take(&mut turn.finished) {
            let Some(session) = sessions.find(ticket.session) else { continue };
            let Some((client, digest)) = session.resume(ticket.sequence, &outcome) else { continue };
            // What is undecided has its row already.
            if outcome != Outcome::Unknown(Doubt::Undecided) {
                put_outcome(&mut turn.batch, scratch, ticket, session, digest, &outcome);
            }
            let key = (client, ticket.session);
            let group = answers.entry(key).or_insert_with(|| {
                order.push(key);
                Vec::new()
            });
            group.push(Answer { sequence: ticket.sequence, outcome });
        }
        for key in order {
            let answers = answers.remove(&key).expect("noted when it was made");
            turn.responses.push((key.0, Response::Batch { session: key.1, answers }));
        }
    }
}

/// The name of the quota that a message is about, where it has one.
fn name_in(body: &Body) -> Option<&str> {
    match body {
        Body::Avantan { quota, .. }
        | Body::Lookup { quota, .. }
        | Body::NotKnown { quota, .. }
        | Body::NoVote { quota, .. }
        | Body::Count { quota, .. } => Some(quota),
        _ => None,
    }
}

/// Whether the request is about sessions of `site`.
fn is_about(request: &Request, site: SiteId) -> bool {
    match request {
        Request::Batch(batch) => batch.site == site,
        Request::Ask { operation } | Request::Explain { operation } => operation.site == site,
        Request::Close { site: about, .. } => *about == site,
        _ => false,
    }
}

fn answer_all(turn: &mut Turn, client: ClientId, batch: &Batch, outcome: &Outcome) {
    let answers = batch.operations.iter().map(|s| Answer { sequence: s.sequence, outcome: outcome.clone() }).collect();
    turn.responses.push((client, Response::Batch { session: batch.session, answers }));
}

/// A submission, taken apart.
struct Submitted {
    sequence: u64,
    timeout: u64,
    operation: Operation,
}

impl From<crate::api::Submission> for Submitted {
    fn from(submission: crate::api::Submission) -> Self {
        Self { sequence: submission.sequence, timeout: submission.timeout, operation: submission.operation }
    }
}

/// Gives up operations that wait and whose outcome would be kept nowhere, and says so to those who wait for them.
fn withdraw(turn: &mut Turn, quotas: &mut Quotas, txns: &mut Txns, session: SessionId, waiting: Vec<Unanswered>) {
    if waiting.is_empty() {
        return;
    }
    // A client that was told that its transaction is undecided waits no more. The transaction goes on, and its row must not open
    // the session again at a start: the session's window has moved on, and rows of it may be gone by then.
    let (told, waiting): (Vec<Unanswered>, Vec<Unanswered>) =
        waiting.into_iter().partition(|(_, client)| *client == NOBODY);
    for (sequence, _) in told {
        txns.leave_alone(turn, Ticket { session, sequence }.operation(turn));
    }

    let (undecided, waiting): (Vec<Unanswered>, Vec<Unanswered>) = waiting
        .into_iter()
        .partition(|(sequence, _)| txns.is_undecided(Ticket { session, sequence: *sequence }.operation(turn)));
    for (sequence, client) in undecided {
        let id = Ticket { session, sequence }.operation(turn);
        let outcome = if txns.take_back(turn, id) {
            Outcome::Refused(Refusal::Withdrawn)
        } else {
            txns.leave_alone(turn, id);
            Outcome::Unknown(Doubt::Forgotten)
        };
        turn.responses.push((client, Response::Batch { session, answers: vec![Answer { sequence, outcome }] }));
    }
    let all = quotas.withdraw(turn, session, &waiting.iter().map(|(sequence, _)| *sequence).collect());
    for (sequence, client) in waiting {
        // Nothing was done, nor will be; unless a value that does it may be accepted somewhere.
        let outcome = if all { Outcome::Refused(Refusal::Withdrawn) } else { Outcome::Unknown(Doubt::Forgotten) };
        turn.responses.push((client, Response::Batch { session, answers: vec![Answer { sequence, outcome }] }));
    }
}

pub(super) fn outcome_key(session: SessionId, slot: u64) -> [u8; 11] {
    let mut key = [OUTCOME; 11];
    key[1..9].copy_from_slice(&session.0.to_be_bytes());
    key[9..].copy_from_slice(&(slot as u16).to_be_bytes());
    key
}

#[inline]
fn put_outcome(
    batch: &mut machine::Batch,
    scratch: &mut Vec<u8>,
    ticket: Ticket,
    session: &mut Session,
    digest: u64,
    outcome: &Outcome,
) {
    scratch.clear();
    session::encode_row(scratch, ticket.sequence, session.low(), digest, outcome);
    session.note_row(ticket.sequence);
    batch.put(&outcome_key(ticket.session, ticket.sequence % SESSION_WINDOW), scratch);
}

/// Makes a session's mark durable, unless it is: no row of an outcome tells it.
fn put_mark(batch: &mut machine::Batch, scratch: &mut Vec<u8>, id: SessionId, session: &mut Session) {
    let Some(low) = session.mark() else { return };
    scratch.clear();
    session::encode_mark(scratch, low);
    batch.put(&outcome_key(id, session::MARK_SLOT), scratch);
}

/// The first `limit` quotas after a name, in the order of names.
pub(super) fn list(quotas: &Quotas, after: &str, limit: usize) -> Vec<Listed> {
    let mut first = std::collections::BinaryHeap::new();
    for quota in quotas.iter().filter(|quota| quota.limit().is_some() && &**quota.name() > after) {
        first.push((quota.name().clone(), quota.limit().unwrap_or(0), quota.avantan().share.tokens));
        if first.len() > limit {
            first.pop();
        }
    }
    let sorted = first.into_sorted_vec().into_iter();
    sorted.map(|(name, limit, tokens)| Listed { name: name.to_string(), limit, tokens }).collect()
}
