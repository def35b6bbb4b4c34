//! What a client has under way at one site: calls, sessions, and what may be sent next. No socket, no clock, no task:
//! [`crate::link`] feeds it and carries out what it asks.
//!
//! # The life of a call
//!
//! ```text
//!             submit                next_request                 answers
//!   caller ───────────▶ fresh ─────────────────────▶ sent ─────────────────────▶ done, refused, unknown
//!                         │   session and sequence     │  ▲
//!      connection lost,   │   are given here           │  │ connection is back: the same id again,
//!      not pinned         ▼                            ▼  │ until the deadline
//!                    not taken                      in doubt ──── deadline ────▶ unknown(id)
//!               (another site, new id)                 │
//!                                                      └── patience ──▶ an acquire: left behind, issued at another site
//!                                                                       a release: handed over
//! ```
//!
//! # Rules
//!
//! 1. An id is given when a call first leaves, so a call that never left may go elsewhere.
//! 2. A call that left is sent again only to the same site, under the same id.
//! 3. What a site says of one copy (it is not ready, its disk is full, it knows the session no more) settles a call that left
//!    once, directly: it was not taken, and may go elsewhere. Of any other call the site is asked what became of it, which
//!    settles it for ever.
//! 4. **One batch in flight**: calls that come while a batch is under way travel together in the next one, as soon as the
//!    site has given its first answer. Calls that wait for tokens at the site hold nothing up. In a crowd there are three
//!    batches under way, so that client, site and disk work at the same time (two cores, a durable site, 512 callers:
//!    840,000 grants a second, with two batches 810,000, with one 650,000; 64 callers gain nothing, so they stay with one).
//! 5. A session holds at most 1,024 sequences from the lowest that somebody cares about. Calls that wait long use that
//!    window up; then another session is opened.
//! 6. **Patience.** A call is *quiet* from when it was taken in, or sent, until the site has answered its batch in any way, and
//!    again from when the connection is lost. So a call that waits for tokens at a site that is alive is not quiet. A call that has
//!    been quiet for its patience does not hold its caller up:
//!    - one that never left goes to another site, which costs nothing (rule 1);
//!    - an acquire that left is *left behind*, if another site would take it. Its caller issues it there, under a new id. The book
//!      watches the first one: it is never sent again; its site is asked about it, which refuses it for ever if it has not been
//!      carried out; and what it was granted is given back, once;
//!    - a release that left, or that only this site can carry out, is *handed over*: its caller is told the id, and the book sends
//!      the release under that id until the site has an answer.
//! 7. **No release is issued twice.** Once a release has left, or its caller knows its id, it is sent under that id alone. If its caller
//!    knows the id, it is not asked about: a question could withdraw what a later copy would do, and the caller, who may ask as well,
//!    would release again.
//!    It gets another id only where the first can never take effect (the only copy that left met an ended session or a lost
//!    incarnation), or where it gives back one grant by its id, which takes effect once whatever the number of ids.
//! 8. What is left behind, handed over or to be given back has no deadline. It ends when its site has told what became of it, or
//!    that nobody can know; [`Sessions::left`] says what is left when the client is closed. At most [`WATCHED`] calls are left behind or
//!    handed over at a time; a call beyond them stays with its caller.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use slackline_core::api::{
    Answer, BATCH_OPERATIONS, Batch, Outcome, Reading, Refusal, Request, SESSION_WINDOW, Submission, UnknownReason,
};
use slackline_core::id::{Incarnation, OperationId, SessionId, SiteId};

use crate::command::{CallKey, Command, Finished, NotTaken, Reply, Terms, Unsettled};
use crate::reads::{self, Reads, Wanted};
use crate::time::{Time, time_at_the_site};

mod patience;

/// The most calls that wait to be sent to one site; more are refused as overloaded.
pub const FRESH: usize = 65_536;
/// A batch is closed when its transactions take up this much, in bytes; the largest one alone still fits a message.
const BATCH_BYTES: usize = 2 << 20;
/// The most sessions at one site, so at most 65,536 calls wait there for tokens.
const SESSIONS: usize = 64;
/// The most batches under way at a time; more than one only in a crowd.
const FLIGHTS: usize = 3;
/// So many calls that wait are a crowd.
const CROWD: usize = 128;
/// How long an unwatched call, or one whose outcome was reported as unknown, is remembered: half the time that the
/// site keeps it, so that it can be asked about.
pub const WATCH: Duration = Duration::from_secs(300);
/// The most operations reported as unknown that hold their session's mark back; the oldest are let go.
const DOUBTS: usize = 4096;
/// When a site that is not ready is tried again.
const NOT_READY_PAUSE: Duration = Duration::from_millis(50);
/// The same, for what no caller waits for.
const UNHURRIED_PAUSE: Duration = Duration::from_secs(1);
/// How long a hold and the release of one stay with a site that says nothing, unless the caller says otherwise; so does any call that
/// has not left, and may go elsewhere.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// A call whose patience has passed looks this often for another site that would take it.
const LOOK_AROUND: Duration = Duration::from_millis(500);
/// The most calls that are left behind at one site, or handed over to it, at a time.
pub const WATCHED: usize = 4096;
/// The most settled calls of which it is remembered that nobody can tell how they ended, or that a release was refused.
const LOST: usize = 1024;
/// A batch that has no answer after this long: the connection is as good as dead.
pub const STALLED: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Call {
    command: Command,
    terms: Terms,
    id: Option<OperationId>,
    /// When it first left.
    sent_at: Option<Time>,
    times_sent: u32,
    /// Since when nothing is heard of it (rule 6). None while the site is known to have it.
    quiet_since: Option<Time>,
    /// Whether its patience has passed since then, so that it leaves when another site would take it.
    restless: bool,
    /// Whether it has no deadline and counts among [`WATCHED`] (rule 8). No caller waits for it then.
    watched: bool,
    /// Whether it is a release whose caller was told its id when it was handed over.
    known: bool,
    /// Whether `fresh` or `parked` holds its key, so that the slot must not be used again yet.
    queued: bool,
    audience: Audience,
}

#[derive(Debug)]
enum Audience {
    /// A caller waits.
    Waiting(Option<Waker>),
    /// The caller has not fetched this yet.
    Told(Reply),
    /// Nobody waits; what it is granted is given back.
    Gone,
    /// Nobody waits, but it is to be carried out: a release.
    Detached,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    incarnation: Incarnation,
    /// The sequence of the first entry; all before are settled.
    low: u64,
    entries: VecDeque<Entry>,
    ended: bool,
}

/// A batch that has no answer yet.
#[derive(Debug)]
struct Flight {
    session: SessionId,
    since: Time,
    operations: usize,
    /// Its lowest and its highest sequence.
    sequences: (u64, u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    Settled,
    Call(CallKey),
    /// Reported as unknown; somebody may still ask.
    Unknown,
}

impl Session {
    fn room(&self) -> usize {
        if self.ended { 0 } else { SESSION_WINDOW as usize - self.entries.len() }
    }

    fn entry(&mut self, sequence: u64) -> Option<&mut Entry> {
        let offset = sequence.checked_sub(self.low)?;
        self.entries.get_mut(usize::try_from(offset).ok()?)
    }

    fn settle(&mut self, sequence: u64) {
        if let Some(entry) = self.entry(sequence) {
            *entry = Entry::Settled;
        }
        while self.entries.front() == Some(&Entry::Settled) {
            self.entries.pop_front();
            self.low += 1;
        }
    }
}

#[derive(Debug)]
enum Parked {
    /// To be sent again, under a new id.
    Call(CallKey),
    /// To be sent again, under its id.
    Repeat(SessionId, u64),
    /// To be asked about again.
    Ask(OperationId),
    /// A session is to be opened, if one is still wanted.
    Open,
}

/// See the module.
#[derive(Debug)]
pub struct Sessions {
    site: SiteId,
    calls: Vec<Option<Call>>,
    free: Vec<CallKey>,
    fresh: VecDeque<CallKey>,
    sessions: Vec<Session>,
    /// Opens, questions and closes; they go before batches.
    outbox: VecDeque<Request>,
    resend: VecDeque<(SessionId, u64)>,
    parked: Vec<(Time, Parked)>,
    doubts: VecDeque<(Time, SessionId, u64)>,
    /// Counts the streams, so that one that is over sends nothing more.
    stream: u64,
    connected: bool,
    /// Whether another site relays, which can carry operations of known sessions only.
    relayed: bool,
    opening: bool,
    /// Why the site opened no session when it was last asked, if it did not.
    closed_door: Option<Refusal>,
    /// The batches that have no answer yet, oldest first.
    in_flight: VecDeque<Flight>,
    round_trip: Duration,
    /// Nothing falls due before this.
    sweep_at: Option<Time>,
    /// Whether a call's patience has passed since anything was heard of the site, and something is still under way there.
    silent: bool,
    /// How many calls are watched.
    watched: usize,
    /// See [`LOST`].
    lost: VecDeque<Unsettled>,
    closed: bool,
    /// Wakes whoever sends; taken when there is something to send.
    pub sender: Option<Waker>,
    reads: Reads,
}

impl Sessions {
    /// Nothing under way, no connection.
    pub fn new(site: SiteId) -> Self {
        Self {
            site,
            calls: Vec::new(),
            free: Vec::new(),
            fresh: VecDeque::new(),
            sessions: Vec::new(),
            outbox: VecDeque::new(),
            resend: VecDeque::new(),
            parked: Vec::new(),
            doubts: VecDeque::new(),
            stream: 0,
            connected: false,
            relayed: false,
            opening: false,
            closed_door: None,
            in_flight: VecDeque::with_capacity(FLIGHTS),
            round_trip: Duration::ZERO,
            sweep_at: None,
            silent: false,
            watched: 0,
            lost: VecDeque::new(),
            closed: false,
            sender: None,
            reads: Reads::default(),
        }
    }

    // What callers do.

    /// Takes a call in. Its caller polls it with the key until it has the reply, or drops it.
    pub fn submit(&mut self, command: Command, terms: Terms, now: Time) -> Result<CallKey, (NotTaken, Command)> {
        if self.closed {
            return Err((NotTaken::Closed, command));
        }
        if self.fresh.len() >= FRESH {
            return Err((NotTaken::Overloaded, command));
        }
        let key = self.enqueue(command, terms, Audience::Waiting(None), now);
        let patience_ends = self.calls[key].as_ref().and_then(Call::patience_ends);
        self.note_due(patience_ends.map_or(terms.deadline, |at| at.min(terms.deadline)));
        Ok(key)
    }

    /// Fetches the reply of a call, or leaves a waker for it. A call whose patience has passed leaves if `may_leave`, that is, if
    /// another site would take it.
    pub fn poll(&mut self, key: CallKey, waker: &Waker, may_leave: impl FnOnce() -> bool) -> Option<Finished> {
        let call = self.calls[key].as_mut().expect("a caller's key names its call until it is taken");
        let is_waiting = matches!(call.audience, Audience::Waiting(_));
        let has_room = call.id.is_none() || self.watched < WATCHED;
        if call.restless && is_waiting && has_room && may_leave() {
            return Some(self.leave_behind(key));
        }
        match &mut call.audience {
            Audience::Waiting(Some(known)) if known.will_wake(waker) => None,
            Audience::Waiting(slot) => {
                *slot = Some(waker.clone());
                None
            }
            Audience::Told(_) => Some(self.take(key)),
            Audience::Gone | Audience::Detached => unreachable!("its caller went away"),
        }
    }

    /// The caller goes away without the reply. An acquire that has left is watched, and given back if it is granted; a
    /// release goes on; anything else that has not left is forgotten.
    pub fn abandon(&mut self, key: CallKey, now: Time) {
        let call = self.calls[key].as_mut().expect("a caller's key names its call until it is taken");
        if let Audience::Told(_) = call.audience {
            let Finished { reply, command, .. } = self.take(key);
            if let Reply::Answered(outcome) = reply {
                self.give_back(&command, &outcome, now);
            }
            return;
        }
        if call.command.is_release() {
            call.audience = Audience::Detached;
            return;
        }
        call.audience = Audience::Gone;
        call.terms.deadline = now + WATCH;
        if call.id.is_some() && call.command.is_acquire() {
            self.watch(key);
        }
    }

    /// Takes a read in. Its caller polls it with the token until it has the result, or drops it.
    pub fn read(&mut self, wanted: Wanted, deadline: Time) -> Result<u64, NotTaken> {
        if self.closed {
            return Err(NotTaken::Closed);
        }
        let token = self.reads.submit(wanted, deadline)?;
        self.note_due(deadline);
        Ok(token)
    }

    /// Fetches what a read found, or leaves a waker for it.
    pub fn poll_read(&mut self, token: u64, waker: &Waker) -> Option<reads::Result> {
        self.reads.poll(token, waker)
    }

    /// The caller of a read goes away.
    pub fn abandon_read(&mut self, token: u64) {
        self.reads.abandon(token);
    }

    // What is to be sent.

    /// Whether [`Sessions::next_request`] would give something.
    pub fn has_something_to_send(&self) -> bool {
        self.connected
            && (!self.outbox.is_empty()
                || !self.relayed && self.reads.has_queued()
                || self.may_take_off()
                    && (!self.resend.is_empty()
                        || self.has_fresh()
                            && (self.wants_session() || self.sessions.iter().any(|session| session.room() > 0))))
    }

    /// The next message to the site.
    pub fn next_request(&mut self, now: Time) -> Option<Request> {
        if !self.connected {
            return None;
        }
        if self.may_take_off() && self.wants_session() {
            self.opening = true;
            self.outbox.push_back(Request::Open);
        }
        if let Some(request) = self.outbox.pop_front() {
            return Some(request);
        }
        // Another site would read for itself, and not for this one.
        if !self.relayed
            && let Some(request) = self.reads.next_request(now, self.round_trip)
        {
            return Some(request);
        }
        if !self.may_take_off() {
            return None;
        }
        let batch = self.repeated_batch(now).or_else(|| self.fresh_batch(now))?;
        let Batch { session, operations, .. } = &batch;
        let sequences = || operations.iter().map(|submission| submission.sequence);
        let sequences = (sequences().min().unwrap_or(0), sequences().max().unwrap_or(0));
        self.in_flight.push_back(Flight { session: *session, since: now, operations: operations.len(), sequences });
        Some(Request::Batch(batch))
    }

    // What happens.

    /// Whether a session is open that can be used.
    pub fn has_session(&self) -> bool {
        self.sessions.iter().any(|session| !session.ended)
    }

    /// A stream is about to be opened; names it.
    pub fn next_stream(&mut self) -> u64 {
        self.stream += 1;
        self.stream
    }

    /// Whether `stream` is the newest.
    pub fn is_current(&self, stream: u64) -> bool {
        self.stream == stream
    }

    /// The stream to the site is open, or to another site that relays.
    pub fn connected(&mut self, relayed: bool) {
        self.connected = true;
        self.relayed = relayed;
        self.silent &= relayed;
        self.opening = false;
        self.in_flight.clear();
        self.open_if_without_session();
        // Rule 2: what left, and has no answer, leaves again as it was. What nobody waits for is asked about instead,
        // which refuses it for ever if the site has not seen it.
        for (index, sequence) in self.outstanding() {
            let session = &mut self.sessions[index];
            let Some(Entry::Call(key)) = session.entry(sequence).copied() else { continue };
            let id = session.id;
            let call = self.calls[key].as_ref().expect("an entry names a live call");
            match call.audience {
                Audience::Gone if call.command.is_acquire() => self.ask(index, sequence),
                Audience::Gone => {
                    session.settle(sequence);
                    self.vacate(key);
                }
                _ => self.resend.push_back((id, sequence)),
            }
        }
    }

    /// The site cannot be reached, or the stream broke: calls that have not left may go elsewhere (rule 1).
    pub fn disconnected(&mut self, now: Time, wakers: &mut Vec<Waker>) {
        self.reads.end(NotTaken::Unreachable, wakers);
        self.connected = false;
        self.opening = false;
        self.in_flight.clear();
        self.outbox.clear();
        self.resend.clear();
        self.turn_away(NotTaken::Unreachable, wakers);

        // Rule 6: from here on nothing is heard even of what the site was known to have.
        for (index, sequence) in self.outstanding() {
            let Some(Entry::Call(key)) = self.sessions[index].entry(sequence).copied() else { continue };
            let call = self.calls[key].as_mut().expect("an entry names a live call");
            call.quiet_since.get_or_insert(now);
            let patience_ends = call.patience_ends();
            patience_ends.into_iter().for_each(|at| self.note_due(at));
        }

        self.parked.retain(|(_, parked)| matches!(parked, Parked::Call(_)));
    }

    /// Calls that have not left, and need not leave from here, may go elsewhere.
    pub fn turn_away(&mut self, why: NotTaken, wakers: &mut Vec<Waker>) {
        for _ in 0..self.fresh.len() {
            let Some(key) = self.fresh.pop_front() else { break };
            let call = self.calls[key].as_mut().expect("a queued key names a live call");
            match call.audience {
                Audience::Waiting(_) if !call.terms.pinned => {
                    call.queued = false;
                    self.tell(key, Reply::NotTaken(why), wakers);
                }
                Audience::Waiting(_) | Audience::Detached => self.fresh.push_back(key),
                Audience::Told(_) => call.queued = false,
                Audience::Gone => self.vacate(key),
            }
        }
    }

    /// The site opened a session.
    pub fn opened(&mut self, incarnation: Incarnation, id: SessionId) {
        self.opening = false;
        self.closed_door = None;
        // The site has lost what earlier ones rest on: nothing new is to leave in them.
        for session in &mut self.sessions {
            session.ended |= session.incarnation < incarnation;
        }
        self.forget_ended_sessions();

        // A site that has lost its storage numbers its sessions from the start again, and answers name a session by its number alone. As
        // long as one of an earlier incarnation is in use, its namesake must not be: its callers would be told of others' calls.
        if self.session(id).is_some() {
            self.opening = true;
            self.outbox.push_back(Request::Close { site: self.site, incarnation, session: id });
            self.outbox.push_back(Request::Open);
            return;
        }
        self.sessions.push(Session { id, incarnation, low: 1, entries: VecDeque::new(), ended: false });
    }

    /// The site would not open a session.
    pub fn not_opened(&mut self, refusal: Refusal, now: Time, wakers: &mut Vec<Waker>) {
        self.closed_door = Some(refusal);
        // `opening` stays, so that it is not asked again at once.
        self.park(now + NOT_READY_PAUSE, Parked::Open);
        if self.sessions.iter().all(|session| session.ended) {
            self.turn_away(NotTaken::Refused(refusal), wakers);
        }
    }

    /// The site answered a batch, or operations of an earlier one. Returns whether a relay lost the site.
    pub fn answers(&mut self, id: SessionId, answers: Vec<Answer>, now: Time, wakers: &mut Vec<Waker>) -> bool {
        // The first answers of a session since a batch of it left are those to the batch, or come with them.
        let answered = self.in_flight.iter().position(|flight| flight.session == id);
        let flight = answered.and_then(|position| self.in_flight.remove(position));
        if let Some(flight) = &flight {
            let sample = now.saturating_duration_since(flight.since);
            self.round_trip = if self.round_trip.is_zero() { sample } else { (self.round_trip * 7 + sample) / 8 };
        }
        let Some(index) = self.session(id) else { return false };
        let mut lost = false;
        for Answer { sequence, outcome } in answers {
            let Some(Entry::Call(key)) = self.sessions[index].entry(sequence).copied() else { continue };
            lost |= outcome == Outcome::Unknown(UnknownReason::SiteUnreachable);
            self.answered(index, sequence, key, outcome, now, wakers);
        }

        // What has no answer yet waits at the site, which is alive. A relay's word says nothing of it.
        if let Some(Flight { sequences: (first, last), .. }) = flight
            && !self.relayed
        {
            self.heard_of(index, first, last);
        }
        self.forget_ended_sessions();
        lost
    }

    /// The site says what became of an operation. Returns whether a relay lost the site.
    pub fn asked(&mut self, operation: OperationId, outcome: Outcome, now: Time, wakers: &mut Vec<Waker>) -> bool {
        let Some(index) = self.session(operation.session) else { return false };
        let sequence = operation.sequence;
        let Some(Entry::Call(key)) = self.sessions[index].entry(sequence).copied() else { return false };
        let reply = match outcome {
            Outcome::Unknown(
                UnknownReason::SiteUnreachable
                | UnknownReason::Undecided
                | UnknownReason::NotReady
                | UnknownReason::StorageFull,
            ) => {
                // Its caller's patience is with the call, not with the site: what cannot be told is as good as silence.
                let call = self.calls[key].as_mut().expect("an entry names a live call");
                call.quiet_since.get_or_insert(now);
                let pause = if call.watched { UNHURRIED_PAUSE } else { NOT_READY_PAUSE };
                self.park(now + pause, Parked::Ask(operation));
                return outcome == Outcome::Unknown(UnknownReason::SiteUnreachable);
            }
            // Who asks is told what is durable, so it will never be carried out.
            Outcome::Refused(refusal @ (Refusal::Withdrawn | Refusal::NotReady | Refusal::StorageFull)) => {
                Reply::NotTaken(NotTaken::Refused(refusal))
            }
            // The session's outcomes are gone, so it cannot be known.
            Outcome::Refused(Refusal::SessionEnded) => Reply::Answered(Outcome::Unknown(UnknownReason::Forgotten)),
            outcome => Reply::Answered(outcome),
        };
        self.sessions[index].settle(sequence);
        self.finish(key, reply, now, wakers);
        self.forget_ended_sessions();
        false
    }

    /// The site has said something.
    pub fn heard(&mut self) {
        self.silent &= self.relayed;
    }

    /// The site answered a read.
    pub fn found(&mut self, reading: Box<Reading>, wakers: &mut Vec<Waker>) {
        self.reads.answered(reading, wakers);
    }

    /// Tells callers whose deadline has passed, and takes up again what was put off. Returns when to come again.
    pub fn sweep(&mut self, now: Time, wakers: &mut Vec<Waker>) -> Option<Time> {
        self.unpark(now);
        let mut next: Option<Time> = None;
        for key in 0..self.calls.len() {
            let Some(call) = &mut self.calls[key] else { continue };
            if matches!(call.audience, Audience::Told(_)) || call.watched {
                continue;
            }
            let deadline = call.terms.deadline;
            if deadline <= now {
                self.overdue(key, now, wakers);
                continue;
            }
            let due = match call.patience_ends() {
                Some(at) if at <= now => {
                    self.impatient(key, wakers);
                    now + LOOK_AROUND
                }
                Some(at) => at,
                None => deadline,
            };
            next = [next, Some(due.min(deadline))].into_iter().flatten().min();
        }
        // It is heard of again only through what is under way.
        self.silent &= !self.connected || self.relayed || self.opening || !self.in_flight.is_empty();
        while self.doubts.front().is_some_and(|(until, ..)| *until <= now) {
            self.let_go_of_oldest_doubt();
        }
        let reads = self.reads.sweep(now, wakers);
        let parked = self.parked.iter().map(|(at, _)| *at).min();
        let stalled = self.in_flight.front().map(|flight| flight.since + STALLED);
        self.sweep_at = [next, reads, parked, stalled].into_iter().flatten().min();
        self.sweep_at
    }

    /// When [`Sessions::sweep`] wants to be called next.
    pub fn sweep_at(&self) -> Option<Time> {
        self.sweep_at
    }

    /// Whether the batch under way has been without an answer for too long.
    pub fn is_stalled(&self, now: Time) -> bool {
        self.in_flight.front().is_some_and(|flight| now >= flight.since + STALLED)
    }

    /// Whether the site says nothing, as far as calls of some patience can tell: others had better try another site first.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// Whether anything needs a connection.
    pub fn has_work(&self) -> bool {
        !self.fresh.is_empty() || self.has_outstanding() || !self.parked.is_empty() || !self.reads.is_empty()
    }

    /// Whether something has left and has no answer yet, or has to be done here and nowhere else.
    pub fn has_outstanding(&self) -> bool {
        self.sessions.iter().any(|session| session.entries.iter().any(|entry| matches!(entry, Entry::Call(_))))
    }

    /// Whether a site that relays could help: there is a session, and something for it that only this site can do.
    pub fn could_be_relayed(&self) -> bool {
        self.has_session() && (self.has_outstanding() || self.fresh.iter().any(|key| self.may_be_relayed(*key)))
    }

    /// How many sessions are open.
    #[cfg(test)]
    fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Takes no more calls and tells the waiting ones. Sessions whose outcomes nobody can still want are to be closed;
    /// returns how many these are.
    pub fn close(&mut self, now: Time, wakers: &mut Vec<Waker>) -> usize {
        self.leave(now, wakers);
        let (site, before) = (self.site, self.outbox.len());
        let finished = self.sessions.iter().filter(|session| session.entries.is_empty() && !session.ended);
        self.outbox.extend(finished.map(|session| Request::Close {
            site,
            incarnation: session.incarnation,
            session: session.id,
        }));
        self.outbox.len() - before
    }

    /// Takes no more calls and tells the waiting ones. The site keeps the sessions until they have been silent for long enough.
    pub fn leave(&mut self, now: Time, wakers: &mut Vec<Waker>) {
        self.closed = true;
        self.reads.end(NotTaken::Closed, wakers);
        for key in 0..self.calls.len() {
            let Some(call) = &self.calls[key] else { continue };
            if let Audience::Waiting(_) = call.audience {
                match call.id {
                    None => self.tell(key, Reply::NotTaken(NotTaken::Closed), wakers),
                    Some(id) => self.tell_in_doubt(key, id, now, wakers),
                }
            }
        }
        self.fresh.clear();
    }

    // Private from here.

    fn enqueue(&mut self, command: Command, terms: Terms, audience: Audience, now: Time) -> CallKey {
        let call = Call {
            command,
            terms,
            id: None,
            sent_at: None,
            times_sent: 0,
            quiet_since: Some(now),
            restless: false,
            watched: false,
            known: false,
            queued: true,
            audience,
        };
        let key = self.occupy(call);
        self.fresh.push_back(key);
        key
    }

    fn note_due(&mut self, at: Time) {
        if self.sweep_at.is_none_or(|known| at < known) {
            self.sweep_at = Some(at);
        }
    }

    fn occupy(&mut self, call: Call) -> CallKey {
        match self.free.pop() {
            Some(key) => {
                self.calls[key] = Some(call);
                key
            }
            None => {
                self.calls.push(Some(call));
                self.calls.len() - 1
            }
        }
    }

    fn vacate(&mut self, key: CallKey) {
        let call = self.calls[key].take();
        self.watched -= usize::from(call.is_some_and(|call| call.watched));
        self.free.push(key);
    }

    fn take(&mut self, key: CallKey) -> Finished {
        let call = self.calls[key].as_mut().expect("a caller's key names its call until it is taken");
        let audience = std::mem::replace(&mut call.audience, Audience::Gone);
        let Audience::Told(reply) = audience else { unreachable!("taken before it was told") };
        if call.queued {
            // Its key still lies in a queue, which vacates the slot when it comes upon it.
            return Finished { reply, command: call.command.clone(), id: call.id, sent_at: call.sent_at };
        }
        let call = self.calls[key].take().expect("looked at above");
        self.free.push(key);
        Finished { reply, command: call.command, id: call.id, sent_at: call.sent_at }
    }

    fn session(&self, id: SessionId) -> Option<usize> {
        self.sessions.iter().position(|session| session.id == id)
    }

    /// Whether a call that has not left is worth sending through another site, which may turn a call that nobody has seen
    /// into one that is in doubt: only what can be done nowhere else.
    fn may_be_relayed(&self, key: CallKey) -> bool {
        let call = self.calls[key].as_ref();
        call.is_some_and(|call| matches!(call.command, Command::ReleaseGrant { .. }))
    }

    /// Whether a call that has not left may leave now.
    fn has_fresh(&self) -> bool {
        match self.relayed {
            false => !self.fresh.is_empty(),
            true => self.fresh.iter().any(|key| self.may_be_relayed(*key)),
        }
    }

    /// Rule 4: whether another batch may leave.
    fn may_take_off(&self) -> bool {
        match self.in_flight.len() {
            0 => true,
            FLIGHTS.. => false,
            _ => self.fresh.len() >= CROWD,
        }
    }

    /// How many calls of a crowd travel in the next batch: no more than their part of all that are under way or wait, so that
    /// while the site works on one part, the client works on another.
    fn seats(&self) -> usize {
        let flying: usize = self.in_flight.iter().map(|flight| flight.operations).sum();
        ((flying + self.fresh.len()) / FLIGHTS).max(CROWD)
    }

    /// Rule 5: whether the sessions' windows are too full for what waits.
    fn wants_session(&self) -> bool {
        let live = self.sessions.iter().filter(|session| !session.ended);
        let best = live.map(Session::room).max().unwrap_or(0);
        !self.relayed
            && !self.opening
            && best < self.fresh.len().min(BATCH_OPERATIONS / 2)
            && self.sessions.len() < SESSIONS
    }

    /// The index of each session with the sequences that have left and have no answer.
    fn outstanding(&self) -> Vec<(usize, u64)> {
        let mut found = Vec::new();
        for (index, session) in self.sessions.iter().enumerate() {
            for (sequence, entry) in (session.low..).zip(&session.entries) {
                if matches!(entry, Entry::Call(_)) {
                    found.push((index, sequence));
                }
            }
        }
        found
    }

    fn repeated_batch(&mut self, now: Time) -> Option<Batch> {
        let mut operations = Vec::new();
        let (mut chosen, mut bytes) = (None, 0);
        while let Some(&(id, sequence)) = self.resend.front() {
            let is_full = operations.len() == BATCH_OPERATIONS || bytes >= BATCH_BYTES;
            if chosen.is_some_and(|chosen| chosen != id) || is_full {
                break;
            }
            self.resend.pop_front();
            let Some(index) = self.session(id) else { continue };
            let Some(Entry::Call(key)) = self.sessions[index].entry(sequence).copied() else { continue };
            chosen = Some(id);
            bytes += self.calls[key].as_ref().map_or(0, |call| call.command.bytes());
            operations.push(self.submission(key, sequence, now));
        }
        let session = &self.sessions[self.session(chosen?)?];
        Some(Batch {
            site: self.site,
            incarnation: session.incarnation,
            session: session.id,
            low: session.low,
            operations,
        })
    }

    fn fresh_batch(&mut self, now: Time) -> Option<Batch> {
        let candidates = self.sessions.iter().enumerate();
        let (index, session) = candidates.max_by_key(|(_, session)| session.room())?;
        let room = session.room().min(BATCH_OPERATIONS).min(self.seats());
        if room == 0 {
            return None;
        }
        let mut operations = Vec::with_capacity(room.min(self.fresh.len()));
        let mut bytes = 0;
        for _ in 0..self.fresh.len() {
            if operations.len() == room || bytes >= BATCH_BYTES {
                break;
            }
            let Some(key) = self.fresh.pop_front() else { break };
            if self.relayed && !self.may_be_relayed(key) {
                self.fresh.push_back(key);
                continue;
            }
            let call = self.calls[key].as_mut().expect("a queued key names a live call");
            call.queued = false;
            match call.audience {
                // It was told that its deadline passed, and will be taken.
                Audience::Told(_) => continue,
                Audience::Gone => {
                    self.vacate(key);
                    continue;
                }
                Audience::Waiting(_) | Audience::Detached => {}
            }
            let session = &mut self.sessions[index];
            let sequence = session.low + session.entries.len() as u64;
            session.entries.push_back(Entry::Call(key));
            let incarnation = session.incarnation;
            bytes += call.command.bytes();
            call.id = Some(OperationId { site: self.site, incarnation, session: session.id, sequence });
            operations.push(self.submission(key, sequence, now));
        }
        if operations.is_empty() {
            return None;
        }
        let Session { id, incarnation, low, .. } = self.sessions[index];
        Some(Batch { site: self.site, incarnation, session: id, low, operations })
    }

    fn submission(&mut self, key: CallKey, sequence: u64, now: Time) -> Submission {
        let round_trip = self.round_trip;
        let call = self.calls[key].as_mut().expect("an entry names a live call");
        call.times_sent += 1;
        if call.sent_at.is_none() {
            call.sent_at = Some(now);
            call.quiet_since = Some(now);
            call.restless = false;
        }
        let deadline = if call.watched { now + WATCH } else { call.terms.deadline };
        let timeout = time_at_the_site(deadline, now, round_trip);
        Submission { sequence, timeout, operation: call.command.operation() }
    }

    fn answered(
        &mut self,
        index: usize,
        sequence: u64,
        key: CallKey,
        outcome: Outcome,
        now: Time,
        wakers: &mut Vec<Waker>,
    ) {
        let call = self.calls[key].as_mut().expect("an entry names a live call");
        if let Some(why) = of_one_copy(&outcome) {
            if why == Refusal::SessionEnded {
                self.sessions[index].ended = true;
            }
            if matches!(call.audience, Audience::Detached) {
                return self.release_not_taken(index, sequence, why, outcome, now);
            }
            // Rule 3: this was the only copy, and the site did not carry it out.
            if call.times_sent == 1 && !self.relayed {
                self.sessions[index].settle(sequence);
                return self.not_taken(key, why, now, wakers);
            }
            // An earlier copy may have been carried out, or one that is still on its way through a relay. That it is forgotten
            // is all that the site will ever say.
            if outcome != Outcome::Unknown(UnknownReason::Forgotten) {
                return self.ask(index, sequence);
            }
        }
        let reply = match outcome {
            // A relay could not reach the site: still in doubt. The link is told to find another way.
            Outcome::Unknown(UnknownReason::SiteUnreachable) => return,
            // The sites are agreeing on it, and will soon know.
            Outcome::Unknown(UnknownReason::Undecided) => {
                if let Some(operation) = call.id {
                    self.park(now + NOT_READY_PAUSE, Parked::Ask(operation));
                }
                return;
            }
            // Somebody asked about it first; it is settled that it has no effect.
            Outcome::Refused(Refusal::Withdrawn) => Reply::NotTaken(NotTaken::Refused(Refusal::Withdrawn)),
            Outcome::Unknown(doubt) => {
                self.sessions[index].ended |= doubt == UnknownReason::IncarnationLost;
                Reply::Answered(outcome)
            }
            outcome => Reply::Answered(outcome),
        };
        self.sessions[index].settle(sequence);
        self.finish(key, reply, now, wakers);
    }

    /// The site surely did not carry out the only copy that was sent.
    fn not_taken(&mut self, key: CallKey, refusal: Refusal, now: Time, wakers: &mut Vec<Waker>) {
        let call = self.calls[key].as_mut().expect("an entry names a live call");
        match refusal {
            _ if matches!(call.audience, Audience::Gone) => self.vacate(key),
            Refusal::SessionEnded => {
                call.start_again();
                self.fresh.push_front(key);
            }
            Refusal::NotReady if call.terms.pinned => {
                call.start_again();
                self.park(now + NOT_READY_PAUSE, Parked::Call(key));
            }
            refusal => self.finish(key, Reply::NotTaken(NotTaken::Refused(refusal)), now, wakers),
        }
    }

    fn finish(&mut self, key: CallKey, reply: Reply, now: Time, wakers: &mut Vec<Waker>) {
        let call = self.calls[key].as_ref().expect("an entry names a live call");
        match call.audience {
            Audience::Waiting(_) => self.tell(key, reply, wakers),
            Audience::Told(_) => unreachable!("told twice"),
            Audience::Detached | Audience::Gone => self.settled(key, reply, now),
        }
    }

    fn tell(&mut self, key: CallKey, reply: Reply, wakers: &mut Vec<Waker>) {
        let call = self.calls[key].as_mut().expect("told once, while it lives");
        if let Audience::Waiting(Some(waker)) = std::mem::replace(&mut call.audience, Audience::Told(reply)) {
            wakers.push(waker);
        }
    }

    /// The caller of a call that has left learns its id, and that it is in doubt. The call is over here: what its site says of it from
    /// now on is the caller's to ask.
    fn tell_in_doubt(&mut self, key: CallKey, id: OperationId, now: Time, wakers: &mut Vec<Waker>) {
        self.tell(key, Reply::InDoubt, wakers);
        self.doubt(id, now);
    }

    fn ask(&mut self, index: usize, sequence: u64) {
        let session = &self.sessions[index];
        let operation =
            OperationId { site: self.site, incarnation: session.incarnation, session: session.id, sequence };
        self.outbox.push_back(Request::Ask { operation });
    }

    /// The caller is told that this is in doubt, and may ask as long as the site remembers.
    fn doubt(&mut self, id: OperationId, now: Time) {
        let index = self.session(id.session);
        if let Some(entry) = index.and_then(|index| self.sessions[index].entry(id.sequence)) {
            *entry = Entry::Unknown;
            self.doubts.push_back((now + WATCH, id.session, id.sequence));
        }
        if self.doubts.len() > DOUBTS {
            self.let_go_of_oldest_doubt();
        }
    }

    fn park(&mut self, until: Time, parked: Parked) {
        self.note_due(until);
        self.parked.push((until, parked));
    }

    fn unpark(&mut self, now: Time) {
        for index in (0..self.parked.len()).rev() {
            if self.parked[index].0 > now {
                continue;
            }
            match self.parked.swap_remove(index).1 {
                Parked::Call(key) => self.fresh.push_back(key),
                Parked::Ask(operation) if self.connected => self.outbox.push_back(Request::Ask { operation }),
                Parked::Repeat(session, sequence) if self.connected => self.resend.push_back((session, sequence)),
                // The next connection asks about everything that is in doubt, and repeats everything that is not.
                Parked::Ask(_) | Parked::Repeat(..) => {}
                Parked::Open => {
                    self.opening = false;
                    self.open_if_without_session();
                }
            }
        }
    }

    /// Calls are not offered to a site without a session, so none of them would have us ask for one.
    fn open_if_without_session(&mut self) {
        if self.connected && !self.relayed && !self.has_session() {
            self.opening = true;
            self.outbox.push_back(Request::Open);
        }
    }

    fn overdue(&mut self, key: CallKey, now: Time, wakers: &mut Vec<Waker>) {
        let call = self.calls[key].as_mut().expect("the sweep looked at it");
        let waits = matches!(call.audience, Audience::Waiting(_));
        match call.id {
            None if waits => {
                let why = self.closed_door.map_or(NotTaken::DeadlinePassed, NotTaken::Refused);
                self.tell(key, Reply::NotTaken(why), wakers);
            }
            // Whoever has its key in a queue vacates it.
            None => call.audience = Audience::Gone,
            Some(id) if waits => self.tell_in_doubt(key, id, now, wakers),
            Some(id) => {
                if let Some(index) = self.session(id.session) {
                    self.sessions[index].settle(id.sequence);
                }
                self.vacate(key);
            }
        }
    }

    fn let_go_of_oldest_doubt(&mut self) {
        let Some((_, id, sequence)) = self.doubts.pop_front() else { return };
        if let Some(index) = self.session(id) {
            self.sessions[index].settle(sequence);
        }
    }

    fn forget_ended_sessions(&mut self) {
        self.sessions.retain(|session| !session.ended || !session.entries.is_empty());
    }
}

/// Why a site did not carry out the copy of an operation that it answers, if it says no more than that.
fn of_one_copy(outcome: &Outcome) -> Option<Refusal> {
    match outcome {
        Outcome::Refused(why @ (Refusal::SessionEnded | Refusal::NotReady | Refusal::StorageFull)) => Some(*why),
        Outcome::Unknown(UnknownReason::NotReady) => Some(Refusal::NotReady),
        Outcome::Unknown(UnknownReason::StorageFull) => Some(Refusal::StorageFull),
        // Nobody asks for what is below the mark, so the session is over.
        Outcome::Unknown(UnknownReason::Forgotten) => Some(Refusal::SessionEnded),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
