//! Operations of sessions: the new ones are carried out, the known ones answered from the record, and each outcome is
//! recorded under its id, in the batch that has the effects.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::chapters::Chapters;
use super::requests::Desk;
use crate::api::{
    Answer, BATCH_OPERATIONS, Batch, NoSeat, Operation, Outcome, Refusal, Response, SESSION_WINDOW, SeatChange,
    Submission, UnknownReason,
};
use crate::chapter::{Fate, Order};
use crate::codec::{Cursor, Malformed};
use crate::id::{OperationId, SessionId};
use crate::machine::{self, ClientId, View};
use crate::rows::OUTCOME;
use crate::session::{self, Closed, Known, NOBODY, Session, Unanswered, Verdict};
use crate::turn::{Ticket, Turn};

impl Desk<'_> {
    /// Carries out the operations of a batch that are new, and answers those that are known. Those that cannot end now
    /// wait.
    pub(super) fn submit(&mut self, turn: &mut Turn, ready: bool, client: ClientId, mut batch: Batch) {
        let Self { sessions, chapters, view, scratch, .. } = self;

        // A session that is not open is never opened again under its number: its operations may have taken effect, and
        // their outcomes are gone. Only where nothing can have been done in it, the operations are said to be refused.
        let Some(session) = sessions.find(batch.session) else {
            let outcome = sessions.verdict_on_ended(batch.session, turn.here.has_room);
            let is_refused = matches!(outcome, Outcome::Refused(_));
            let outcome = if is_refused { Outcome::Refused(Refusal::SessionEnded) } else { outcome };
            return answer_all(turn, client, &batch, &outcome);
        };

        session.raise(batch.low, turn.here.now.mono);
        let mut answers = Vec::with_capacity(batch.operations.len());
        let mut rests_on_mark = false;
        let is_alone = batch.operations.len() == 1;
        for Submission { sequence, timeout, operation } in batch.operations.iter_mut().take(BATCH_OPERATIONS) {
            let (sequence, timeout) = (*sequence, *timeout);

            // What takes the site out of the members sees nothing of what others in this call begin, nor do these of it.
            let leaves = matches!(operation, Operation::Seat { change: SeatChange::Leaves, .. });

            // Once only: a sequence that is known gets its recorded outcome, and only a new one goes on to its chapter.
            // It is looked up before all else: a site that stops, or whose disk is full, refuses new operations only.
            let ticket = Ticket { session: batch.session, sequence };
            let digest = session::digest(operation);
            let verdict = match turn.here.has_room {
                true => session.judge(sequence, digest, client),
                false => session.judge_without_room(sequence, digest, client),
            };

            // The window has moved over operations that wait. They are withdrawn before anything else is done, and the
            // mark is made durable with that, or a crash would let them in again.
            let unclaimed = session.unclaimed();
            rests_on_mark |= !unclaimed.is_empty();
            withdraw(turn, chapters, batch.session, unclaimed);

            match verdict {
                Verdict::RefusedForRoom => {
                    let outcome = refuse_for_room(turn, scratch, ticket, session, digest);
                    answers.push(Answer { sequence, outcome });
                }
                Verdict::Known(outcome) => {
                    turn.out.metrics.repeated += 1;
                    rests_on_mark |= outcome == Outcome::Unknown(UnknownReason::Forgotten);
                    answers.push(Answer { sequence, outcome });
                }
                Verdict::Waiting(None) => {}
                Verdict::Waiting(Some(before)) => {
                    let answers = vec![Answer { sequence, outcome: Outcome::Unknown(UnknownReason::Undecided) }];
                    turn.out.responses.push((before, Response::Batch { session: batch.session, answers }));
                }
                // A site that stops begins nothing. And while a value that carries it out may be accepted somewhere, nothing else is said of
                // it: it may not be refused, whatever holds here by now.
                Verdict::Undecided if !ready || is_out(chapters, session, sequence) => {
                    answers.push(Answer { sequence, outcome: Outcome::Unknown(UnknownReason::Undecided) });
                }
                // The line that makes an id take effect once: no other verdict leads to a chapter. Of one that is undecided the chapter
                // knows: it has a row about it, or says what became of what it aimed at.
                Verdict::Fresh | Verdict::Undecided => {
                    let order = Order { ticket, operation, timeout, low: session.low(), digest };
                    let outcome = match leaves && !is_alone {
                        true => Some(Outcome::Refused(Refusal::NoSeat { why: NoSeat::HasTransactions, count: 1 })),
                        false => carry_out(turn, chapters, view, session, ready, order),
                    };
                    let Some(outcome) = outcome else {
                        session.suspend(sequence, digest, client);
                        continue;
                    };

                    // The outcome's row is in the same batch as the effects: after a crash either both are there, or
                    // neither, and the operation is new again.
                    record(turn, scratch, ticket, session, digest, &outcome);
                    let is_short = matches!(outcome, Outcome::Refused(Refusal::Exhausted { .. }));
                    turn.out.metrics.refused_other += u64::from(matches!(outcome, Outcome::Refused(_)) && !is_short);
                    answers.push(Answer { sequence, outcome });
                }
            }
        }

        // An answer that an operation is forgotten rests on the mark being above it: the mark is durable before the
        // answer leaves.
        if rests_on_mark {
            put_mark(&mut turn.out.batch, scratch, batch.session, session);
        }

        turn.out.responses.push((client, Response::Batch { session: batch.session, answers }));
    }

    /// Answers what became of an operation. Asking is a write: one that is not known here is refused permanently.
    pub(super) fn ask(&mut self, turn: &mut Turn, operation: OperationId) -> Outcome {
        let Self { sessions, chapters, scratch, .. } = self;

        // Outcomes belong to the storage that recorded them. This one cannot say what a lost one did.
        if operation.incarnation != turn.here.site.incarnation {
            return Outcome::Unknown(UnknownReason::IncarnationLost);
        }
        let Some(session) = sessions.find(operation.session) else {
            return sessions.verdict_on_ended(operation.session, turn.here.has_room);
        };
        session.hear(turn.here.now.mono);
        let ticket = Ticket { session: operation.session, sequence: operation.sequence };
        let withdrawn = Outcome::Refused(Refusal::Withdrawn);
        let no_room = Outcome::Unknown(UnknownReason::StorageFull);

        match session.look(operation.sequence) {
            // An undecided outcome may have been settled since: by what the operation aimed at. Where storage has no
            // room, an answer that would have to be durable is not given.
            Some(Known::Ended(outcome)) => {
                let settled = match session.aim_of(operation.sequence).map(|aim| chapters.fate(aim)) {
                    Some(Fate::Settled(outcome)) => Some(outcome),
                    Some(Fate::Lost) => Some(withdrawn),
                    Some(Fate::Open) | None => None,
                };
                let rests_on_mark = outcome == Outcome::Unknown(UnknownReason::Forgotten);
                if !turn.here.has_room && (settled.is_some() || rests_on_mark && session.is_unmarked()) {
                    return no_room;
                }
                if rests_on_mark {
                    put_mark(&mut turn.out.batch, scratch, operation.session, session);
                }
                let Some(settled) = settled else { return outcome };
                let digest = session.digest_of(operation.sequence).unwrap_or(0);
                record(turn, scratch, ticket, session, digest, &settled);
                settled
            }
            None | Some(Known::RefusedForRoom) if !turn.here.has_room => no_room,
            Some(Known::RefusedForRoom) => {
                let digest = session.digest_of(operation.sequence).unwrap_or(0);
                refuse_for_room(turn, scratch, ticket, session, digest)
            }
            Some(Known::Waiting(_)) if !turn.here.has_room => Outcome::Unknown(UnknownReason::Undecided),
            // One that waits is withdrawn if it can be. If others may have taken part in it already, it goes on, and
            // its chapter finds out what becomes of it as soon as it can.
            Some(Known::Waiting(_)) => {
                let asked = BTreeSet::from([operation.sequence]);
                if chapters.withdraw(turn, operation.session, &asked).is_empty() {
                    chapters.all_mut().into_iter().for_each(|chapter| chapter.inquire(turn, operation));
                    return Outcome::Unknown(UnknownReason::Undecided);
                }
                turn.out.finished.push((ticket, withdrawn.clone()));
                withdrawn
            }
            // A mistyped id: to make room for it would take away the room of those that its session's client has given.
            None if session.is_far(operation.sequence) => Outcome::Unknown(UnknownReason::Forgotten),
            // It never arrived, and may still be on its way. The refusal is durable before the answer leaves, so that
            // the answer stays true when it arrives.
            None => {
                session.make_room(operation.sequence);
                record(turn, scratch, ticket, session, 0, &withdrawn);
                let unclaimed = session.unclaimed();
                withdraw(turn, chapters, operation.session, unclaimed);
                withdrawn
            }
        }
    }

    /// Ends a session and removes its rows.
    pub(super) fn close(&mut self, turn: &mut Turn, id: SessionId) {
        let Self { identity, sessions, chapters, .. } = self;
        let Some(Closed { slots, waiting }) = sessions.close(id) else { return };

        // The mark that its rows are gone is in the same batch as their removal: else a late copy of an operation could
        // be taken for one that was never done.
        identity.note_marks(sessions);
        for slot in slots {
            turn.out.batch.delete(&outcome_key(id, slot));
        }
        withdraw(turn, chapters, id, waiting);
        chapters.all_mut().into_iter().for_each(|chapter| chapter.end_session(turn, id));
    }

    /// Records and answers the waiting operations that ended in this turn.
    pub(super) fn finish(&mut self, turn: &mut Turn) {
        let Self { sessions, scratch, .. } = self;

        // What is undecided gets a row that tells what it aims at: after a crash, that tells what became of it. Its
        // place in the window, and so its row, may belong to another operation by now.
        for (ticket, aim) in std::mem::take(&mut turn.out.undecided) {
            let Some(session) = sessions.find(ticket.session) else { continue };
            let Some(digest) = session.digest_of(ticket.sequence) else { continue };
            session.note_row(ticket.sequence);
            session.aim(ticket.sequence, aim);
            scratch.clear();
            session::encode_undecided(scratch, ticket.sequence, session.low(), digest, aim);
            turn.out.batch.put(&outcome_key(ticket.session, ticket.sequence % SESSION_WINDOW), scratch);
        }

        // Each outcome is recorded once: `resume` gives no client for one that ended before. Answers are grouped by
        // client and session, in the order in which the first of each group ended, which is the same in every run.
        let finished = std::mem::take(&mut turn.out.finished);
        if finished.is_empty() {
            return;
        }
        let mut answers: FxHashMap<(ClientId, SessionId), Vec<Answer>> = FxHashMap::default();
        let mut order = Vec::new();
        for (ticket, outcome) in finished {
            let Some(session) = sessions.find(ticket.session) else { continue };
            let now = turn.here.now.mono;
            let Some((client, digest)) = session.resume(ticket.sequence, &outcome, now) else { continue };

            // An undecided one has its row already: from above, or from its chapter.
            if outcome != Outcome::Unknown(UnknownReason::Undecided) {
                put_outcome(&mut turn.out.batch, scratch, ticket, session, digest, &outcome);
            }
            let key = (client, ticket.session);
            let group = answers.entry(key).or_insert_with(|| {
                order.push(key);
                Vec::new()
            });
            group.push(Answer { sequence: ticket.sequence, outcome });
        }

        // Operations that ended in the call in which they came go with the answer to their batch.
        let before = turn.out.responses.len();
        for (client, session) in order {
            let mut answers = answers.remove(&(client, session)).expect("noted when it was made");
            let is_its = |(to, response): &&mut (ClientId, Response)| {
                *to == client && matches!(response, Response::Batch { session: of, .. } if *of == session)
            };
            match turn.out.responses[..before].iter_mut().find(is_its) {
                Some((_, Response::Batch { answers: earlier, .. })) => earlier.append(&mut answers),
                _ => turn.out.responses.push((client, Response::Batch { session, answers })),
            }
        }
    }
}

/// Refuses an operation for want of room.
fn refuse_for_room(
    turn: &mut Turn,
    scratch: &mut Vec<u8>,
    ticket: Ticket,
    session: &mut Session,
    digest: u64,
) -> Outcome {
    let outcome = Outcome::Refused(Refusal::StorageFull);

    // Its client may have been told so before: it stays refused after a crash too, as soon as there is room to note that.
    if turn.here.has_room {
        record(turn, scratch, ticket, session, digest, &outcome);
    }
    outcome
}

/// True if a value that carries an operation out may be accepted somewhere: what becomes of that ends it.
fn is_out(chapters: &Chapters, session: &Session, sequence: u64) -> bool {
    session.aim_of(sequence).is_some_and(|aim| chapters.fate(aim) == Fate::Open)
}

/// Carries out an operation that is new or undecided, unless the site stops. None if it waits.
fn carry_out(
    turn: &mut Turn,
    chapters: &mut Chapters,
    view: &View,
    session: &Session,
    ready: bool,
    order: Order,
) -> Option<Outcome> {
    // An undecided operation is not carried out a second time if what it aims at tells that it took effect.
    let fate = session.aim_of(order.ticket.sequence).map_or(Fate::Open, |aim| chapters.fate(aim));
    match fate {
        _ if !ready => Some(Outcome::Refused(Refusal::NotReady)),
        Fate::Settled(outcome) => Some(outcome),
        Fate::Open | Fate::Lost => chapters.execute(turn, view, order),
    }
}

/// Answers all operations of a batch with one outcome.
fn answer_all(turn: &mut Turn, client: ClientId, batch: &Batch, outcome: &Outcome) {
    let answers = batch.operations.iter().map(|s| Answer { sequence: s.sequence, outcome: outcome.clone() }).collect();
    turn.out.responses.push((client, Response::Batch { session: batch.session, answers }));
}

/// Gives up operations that wait and whose outcomes would be kept nowhere, and tells their clients.
fn withdraw(turn: &mut Turn, chapters: &mut Chapters, session: SessionId, waiting: Vec<Unanswered>) {
    if waiting.is_empty() {
        return;
    }

    // A client that was told that its operation is undecided waits no more. The operation goes on, and its row must not
    // open the session again at a start: the session's window has moved on, and rows of it may be gone by then.
    let is_told = |(_, client): &Unanswered| *client == NOBODY;
    let given_up = waiting.iter().filter(|one| !is_told(one)).map(|(sequence, _)| *sequence).collect();
    let withdrawn = chapters.withdraw(turn, session, &given_up);

    // Only a withdrawn one is said to be refused: it has done nothing, and never will. Another may still take effect, and its outcome has
    // no place any more. Its client is not told that it is forgotten: that would say of a copy which was sent once that it was not carried
    // out. It asks, and hears then that nobody knows.
    for (sequence, client) in waiting {
        if withdrawn.contains(&sequence) {
            answer(turn, client, session, sequence, Outcome::Refused(Refusal::Withdrawn));
            continue;
        }
        let operation = Ticket { session, sequence }.operation(&turn.here);
        chapters.all_mut().into_iter().for_each(|chapter| chapter.abandon(turn, operation));
        if client != NOBODY {
            answer(turn, client, session, sequence, Outcome::Unknown(UnknownReason::Undecided));
        }
    }
}

/// Answers one operation.
fn answer(turn: &mut Turn, client: ClientId, session: SessionId, sequence: u64, outcome: Outcome) {
    turn.out.responses.push((client, Response::Batch { session, answers: vec![Answer { sequence, outcome }] }));
}

/// The key of a row of a session: the outcome in a slot of its window, or its mark.
pub(super) fn outcome_key(session: SessionId, slot: u64) -> [u8; 11] {
    let mut key = [OUTCOME; 11];
    key[1..9].copy_from_slice(&session.0.to_be_bytes());
    key[9..].copy_from_slice(&(slot as u16).to_be_bytes());
    key
}

/// Reads back the key of a row of a session: the session and the slot, which is [`MARK_SLOT`](crate::session::MARK_SLOT) for its mark.
pub fn read_outcome_key(key: &[u8]) -> Result<(SessionId, u64), Malformed> {
    let mut cursor = Cursor(key.get(1..).ok_or(Malformed)?);
    let session = SessionId(cursor.be_u64()?);
    let slot = u64::from(cursor.be_u16()?);
    cursor.end()?;
    Ok((session, slot))
}

/// Records an operation's outcome in its session, and writes its row if it is to be kept.
#[inline]
fn record(
    turn: &mut Turn,
    scratch: &mut Vec<u8>,
    ticket: Ticket,
    session: &mut Session,
    digest: u64,
    outcome: &Outcome,
) {
    if session::is_kept(outcome) {
        put_outcome(&mut turn.out.batch, scratch, ticket, session, digest, outcome);
    }

    session.record(ticket.sequence, digest, outcome.clone());
}

/// Writes an operation's outcome, with the session's mark.
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

/// Writes a session's mark, unless some row tells it already.
fn put_mark(batch: &mut machine::Batch, scratch: &mut Vec<u8>, id: SessionId, session: &mut Session) {
    let Some(low) = session.mark() else { return };
    scratch.clear();
    session::encode_mark(scratch, low);
    batch.put(&outcome_key(id, session::MARK_SLOT), scratch);
}
