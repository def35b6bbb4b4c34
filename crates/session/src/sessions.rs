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
//!    settles it permanently.
//! 4. **One batch in flight**: calls that come while a batch is under way travel together in the next one, as soon as the
//!    site has given its first answer. Calls that wait for tokens at the site hold nothing up. In a crowd there are three
//!    batches under way, so that client, site and disk work at the same time (two cores, a durable site, 512 callers:
//!    840,000 grants a second, with two batches 810,000, with one 650,000; 64 callers gain nothing, so they stay with one).
//! 5. A session holds at most 1,024 sequences from the lowest that somebody cares about. Calls that wait long use that
//!    window up; then another session is opened. Acquires that stay in line have sessions of their own, at most half of all: one of
//!    them would keep a whole window from moving on, and with it, perhaps, the release that it waits for.
//! 6. **Patience.** A call is *quiet* from when it was taken in, or sent, until the site has answered its batch in any way, and
//!    again from when the connection is lost. So a call that waits for tokens at a site that is alive is not quiet. A call that has
//!    been quiet for its patience does not hold its caller up:
//!    - one that never left goes to another site, which costs nothing (rule 1);
//!    - an acquire that left is *left behind*, if another site would take it. Its caller issues it there, under a new id. The
//!      sessions watch the first one: it is never sent again; its site is asked about it, which refuses it permanently if it has not been
//!      carried out; and what it was granted is given back, once;
//!    - a release that left, or that only this site can carry out, is *handed over*: its caller is told the id, and the sessions send
//!      the release under that id until the site has an answer.
//! 7. **No release is issued twice.** Once a release has left, or its caller knows its id, it is sent under that id alone. If its caller
//!    knows the id, it is not asked about: a question could withdraw what a later copy would do, and the caller, who may ask as well,
//!    would release again.
//!    It gets another id only where the first can never take effect (the only copy that left met an ended session or a lost
//!    incarnation), or where it gives back one grant by its id, which takes effect once whatever the number of ids.
//! 8. What is left behind, handed over or to be given back has no deadline. It ends when its site has told what became of it, or
//!    that nobody can know; [`Sessions::left`] says what is left when the client is closed. At most [`WATCHED`] calls are left behind or
//!    handed over at a time; a call beyond them stays with its caller.
//!
//! # Where things are
//!
//! | module | what it keeps, or does |
//! | --- | --- |
//! | `calls` | the calls under way, each in a slot, and who waits for it |
//! | `windows` | sessions: the calls that have an id, the mark below which nobody cares, what was reported as unknown |
//! | `stream` | where the stream leads, the batches under way on it, whether the site says anything |
//! | `queue` | what is to be sent, now or later |
//! | `sending` | the next message: rules 1, 2, 4 and 5 |
//! | `answers` | what the site says of calls: rules 2 and 3 |
//! | `patience` | calls whose site says nothing, and what nobody waits for: rules 6 to 8 |
//!
//! Each part asserts what always holds between its fields, and [`Sessions::check`] what holds between the parts.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use slackline_core::api::{Reading, Refusal, Request};
use slackline_core::id::{Incarnation, OperationId, SessionId, SiteId};

use crate::command::{CallKey, Command, Finished, NotTaken, Reply, Terms, Unsettled};
use crate::reads::{self, Reads, Wanted};
use crate::time::Time;

use calls::{Audience, Call, Calls};
use queue::{Parked, Queue};
use stream::{Leads, Stream};
use windows::Windows;

mod answers;
mod calls;
mod patience;
mod queue;
mod sending;
mod stream;
mod windows;

pub use calls::{PATIENCE, WATCHED};
pub use stream::STALLED;
pub use windows::WATCH;

/// The most calls that wait to be sent to one site; more are refused as overloaded.
pub const FRESH: usize = 65_536;
/// The pause before a site that is not ready is tried again.
const NOT_READY_PAUSE: Duration = Duration::from_millis(50);
/// The same, for what no caller waits for.
const UNHURRIED_PAUSE: Duration = Duration::from_secs(1);
/// A call whose patience has passed looks this often for another site that would take it.
const LOOK_AROUND: Duration = Duration::from_millis(500);

/// What a client has under way at one site; see the module.
#[derive(Debug)]
pub struct Sessions {
    /// Each call from when it is taken in until its caller has fetched the reply, or until it has ended if nobody waits for it.
    calls: Calls,
    /// The ids that calls have, and those that somebody may still ask about. A call that has an id and has not been told is there under
    /// it, and nothing else is.
    windows: Windows,
    stream: Stream,
    queue: Queue,
    reads: Reads,
    /// The last settled calls of which nobody can tell how they ended, and releases that were refused; the newest first.
    lost: VecDeque<Unsettled>,
    /// Nothing falls due before this.
    sweep_at: Option<Time>,
    /// True from when the client ends: it takes no more calls, and no caller waits for one.
    closed: bool,
    /// Wakes the one who sends; taken when there is something to send.
    pub sender: Option<Waker>,
}

impl Sessions {
    /// Nothing under way, no connection.
    pub fn new(site: SiteId) -> Self {
        Self {
            calls: Calls::default(),
            windows: Windows::new(site),
            stream: Stream::new(),
            queue: Queue::default(),
            reads: Reads::default(),
            lost: VecDeque::new(),
            sweep_at: None,
            closed: false,
            sender: None,
        }
    }

    // What callers do.

    /// Takes a call in. Its caller polls it with the key until it has the reply, or drops it.
    pub fn submit(&mut self, command: Command, terms: Terms, now: Time) -> Result<CallKey, (NotTaken, Command)> {
        if self.closed {
            return Err((NotTaken::Closed, command));
        }
        if self.queue.fresh.len() >= FRESH {
            return Err((NotTaken::Overloaded, command));
        }

        let key = self.enqueue(command, terms, Audience::Waiting(None), now);
        let patience_ends = self.calls[key].patience_ends();
        self.note_due(patience_ends.map_or(terms.deadline, |at| at.min(terms.deadline)));
        Ok(key)
    }

    /// Fetches the reply of a call, or leaves a waker for it. A call whose patience has passed leaves if `may_leave`, that is, if
    /// another site would take it.
    pub fn poll(&mut self, key: CallKey, waker: &Waker, may_leave: impl FnOnce() -> bool) -> Option<Finished> {
        let call = &self.calls[key];
        let has_room = call.id.is_none() || self.calls.may_watch();
        if call.restless && call.is_waited_for() && has_room && may_leave() {
            return Some(self.leave_behind(key));
        }

        match &mut self.calls[key].audience {
            Audience::Waiting(Some(known)) if known.will_wake(waker) => None,
            Audience::Waiting(slot) => {
                *slot = Some(waker.clone());
                None
            }
            Audience::Told(_) => Some(self.calls.take(key)),
            Audience::Gone | Audience::Detached => unreachable!("its caller went away"),
        }
    }

    /// The caller goes away without the reply. An acquire that has left is watched, and given back if it is granted; a
    /// release goes on; anything else that has not left is forgotten.
    pub fn abandon(&mut self, key: CallKey, now: Time) {
        // It ended while its caller went away: nobody else knows of the grant, so it is released here.
        let call = &mut self.calls[key];
        if let Audience::Told(reply) = &call.audience {
            // It was told that it is in doubt, and went away before it heard so: nobody has the id, and could ask.
            let is_in_doubt = matches!(reply, Reply::InDoubt) && call.command.is_acquire();
            if let Some(id) = call.id.filter(|_| is_in_doubt)
                && self.windows.take_up(id, key)
            {
                call.audience = Audience::Gone;
                call.terms.deadline = now + WATCH;
                return self.watch(key);
            }
            let Finished { reply, command, .. } = self.calls.take(key);
            if let Reply::Answered(outcome) = reply {
                self.give_back(&command, &outcome, now);
            }
            return;
        }

        // To stop a release half-way would leave tokens out that nobody has.
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

    // What happens to the stream.

    /// True if a session is open that can be used.
    pub fn has_session(&self) -> bool {
        self.windows.has_open()
    }

    /// A stream is about to be opened; names it.
    pub fn next_stream(&mut self) -> u64 {
        self.stream.number += 1;
        self.stream.number
    }

    /// True if `stream` is the newest.
    pub fn is_current(&self, stream: u64) -> bool {
        self.stream.number == stream
    }

    /// The stream to the site is open, or to another site that relays.
    pub fn connected(&mut self, relayed: bool) {
        self.stream.turn(if relayed { Leads::ToRelay } else { Leads::ToSite });
        self.stream.heard();
        self.open_if_without_session();

        // Rule 2: what left, and has no answer, leaves again as it was. The site may have carried it out, and under any other id would do
        // so twice.
        for (position, sequence, key) in self.windows.calls().collect::<Vec<_>>() {
            let call = &self.calls[key];
            match call.audience {
                // Nobody waits for it. Asking refuses it permanently if the site has not seen it, and tells what it was granted if it has.
                Audience::Gone if call.command.is_acquire() => self.ask(position, sequence),
                Audience::Gone => {
                    self.windows[position].settle(sequence);
                    self.calls.remove(key);
                }
                _ => self.queue.resend.push_back((self.windows[position].id, sequence)),
            }
        }
    }

    /// The site cannot be reached, or the stream broke: calls that have not left may go elsewhere (rule 1).
    pub fn disconnected(&mut self, now: Time, wakers: &mut Vec<Waker>) {
        self.reads.end(NotTaken::Unreachable, wakers);
        self.stream.turn(Leads::Nowhere);
        self.queue.end_stream();

        // Rule 1: what has no id has not left, so it takes effect once wherever it goes.
        self.turn_away(NotTaken::Unreachable, wakers);

        // A call that has left stays with its site. Rule 6: from here on nothing is heard even of what the site was known to have.
        for (_, _, key) in self.windows.calls().collect::<Vec<_>>() {
            let call = &mut self.calls[key];
            call.quiet_since.get_or_insert(now);
            let patience_ends = call.patience_ends();
            patience_ends.into_iter().for_each(|at| self.note_due(at));
        }
    }

    /// Calls that have not left, and need not leave from here, may go elsewhere.
    pub fn turn_away(&mut self, why: NotTaken, wakers: &mut Vec<Waker>) {
        let lines = [false, true].map(|stays| std::mem::take(self.queue.fresh.line(stays)));
        for key in lines.into_iter().flatten() {
            let call = &mut self.calls[key];
            match call.audience {
                Audience::Waiting(_) if !call.terms.pinned => {
                    call.queued = false;
                    self.tell(key, Reply::NotTaken(why), wakers);
                }
                Audience::Waiting(_) | Audience::Detached => self.queue_up(key),
                Audience::Told(_) => call.queued = false,
                Audience::Gone => drop(self.calls.remove(key)),
            }
        }
    }

    /// The site opened a session.
    pub fn opened(&mut self, incarnation: Incarnation, id: SessionId) {
        self.stream.opening = false;
        self.stream.closed_door = None;
        self.windows.end_before(incarnation);

        // A site that has lost its storage numbers its sessions from the start again, and answers name a session by its number alone. As
        // long as one of an earlier incarnation is in use, its namesake must not be: its callers would be told of others' calls.
        if self.windows.position(id).is_some() {
            self.stream.opening = true;
            self.queue.outbox.push_back(Request::Close { site: self.windows.site, incarnation, session: id });
            self.queue.outbox.push_back(Request::Open);
            return;
        }
        self.windows.open(incarnation, id);
    }

    /// The site would not open a session.
    pub fn not_opened(&mut self, refusal: Refusal, now: Time, wakers: &mut Vec<Waker>) {
        self.stream.closed_door = Some(refusal);

        // `opening` stays, so that it is not asked again before the pause is over.
        self.park(now + NOT_READY_PAUSE, Parked::Open);
        if !self.windows.has_open() {
            self.turn_away(NotTaken::Refused(refusal), wakers);
        }
    }

    /// The site has said something.
    pub fn heard(&mut self, now: Time) {
        self.stream.heard();
        self.reads.heard(now);
    }

    /// The site answered a read.
    pub fn found(&mut self, reading: Box<Reading>, wakers: &mut Vec<Waker>) {
        self.reads.answered(reading, wakers);
    }

    // What falls due.

    /// Tells callers whose deadline has passed, and takes up again what was put off. Returns when to come again.
    pub fn sweep(&mut self, now: Time, wakers: &mut Vec<Waker>) -> Option<Time> {
        self.unpark(now);

        let mut next: Option<Time> = None;
        for key in self.calls.keys() {
            let Some(call) = self.calls.get(key) else { continue };
            if matches!(call.audience, Audience::Told(_)) || call.is_watched() {
                continue;
            }

            // At its deadline a caller is told in any case: that it was not sent, or that it is in doubt. The client then goes on alone
            // with what was sent.
            let deadline = call.terms.deadline;
            if deadline <= now {
                self.overdue(key, now, wakers);
                continue;
            }

            // Before its deadline, one whose site has said nothing for its patience may go elsewhere, or be handed over.
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

        let reads = self.reads.sweep(now, wakers);
        if reads.is_unheard {
            self.stream.unheard(now);
        }
        let forgiven = self.stream.forgive(reads.is_out, now);
        self.windows.let_go(now);
        let others = [reads.next, forgiven, self.queue.next_parked(), self.stream.stalls_at()];
        self.sweep_at = others.into_iter().chain([next]).flatten().min();
        self.sweep_at
    }

    /// When [`Sessions::sweep`] wants to be called next.
    pub fn sweep_at(&self) -> Option<Time> {
        self.sweep_at
    }

    /// True if the oldest batch under way has been without an answer for [`STALLED`].
    pub fn is_stalled(&self, now: Time) -> bool {
        self.stream.stalls_at().is_some_and(|at| now >= at)
    }

    /// True if the site says nothing, as far as reads and calls of some patience can tell: others had better try another site first.
    pub fn is_silent(&self) -> bool {
        self.stream.silent
    }

    /// True if anything needs a connection.
    pub fn has_work(&self) -> bool {
        !self.queue.fresh.is_empty() || self.has_outstanding() || self.queue.has_parked() || !self.reads.is_empty()
    }

    /// True if something has left and has no answer yet, or has to be done here and nowhere else.
    pub fn has_outstanding(&self) -> bool {
        self.windows.has_calls()
    }

    /// True if a site that relays could help: there is a session, and something for it that only this site can do.
    pub fn could_be_relayed(&self) -> bool {
        self.has_session()
            && (self.has_outstanding() || self.queue.fresh.iter().any(|key| self.calls[key].may_be_relayed()))
    }

    // The end.

    /// Takes no more calls and tells the waiting ones. Sessions whose outcomes nobody can still want are to be closed;
    /// returns how many these are.
    pub fn close(&mut self, now: Time, wakers: &mut Vec<Waker>) -> usize {
        self.leave(now, wakers);
        if !self.stream.is_open() {
            return 0;
        }

        // One with an operation in doubt stays: to close it would make its site forget the outcome.
        let before = self.queue.outbox.len();
        self.queue.outbox.extend(self.windows.closes());
        self.queue.outbox.len() - before
    }

    /// Takes no more calls and tells the waiting ones. The site keeps the sessions until they have been silent for long enough.
    pub fn leave(&mut self, now: Time, wakers: &mut Vec<Waker>) {
        self.closed = true;
        self.reads.end(NotTaken::Closed, wakers);
        for key in self.calls.keys() {
            let Some(call) = self.calls.get(key).filter(|call| call.is_waited_for()) else { continue };
            match call.id {
                None => self.tell(key, Reply::NotTaken(NotTaken::Closed), wakers),
                Some(id) => self.tell_in_doubt(key, id, now, wakers),
            }
        }

        // What the client was to see to, and has not left, keeps its slot: `Sessions::left` tells of it.
        self.queue.end(&mut self.calls);
    }

    /// Asserts what always holds: in each part, and between the parts.
    pub fn check(&self) {
        self.calls.check();
        self.windows.check();
        self.stream.check();
        self.queue.check(&self.calls, self.stream.is_open());
        self.reads.check();

        // A call has an id as long as a window has the call, and each other's: an answer finds its caller, and no other.
        for (position, sequence, key) in self.windows.calls() {
            let id = self.windows.operation(position, sequence);
            assert_eq!(self.calls[key].id, Some(id), "a window names the call that has this id");
        }
        for (key, call) in self.calls.iter() {
            assert!(!self.closed || !call.is_waited_for(), "all callers were told on closing: {call:?}");
            match call.id {
                // No answer finds a call that was told. Its id may go on with another call: that of a release that was handed over.
                Some(id) => {
                    let has_ended = matches!(call.audience, Audience::Told(_));
                    assert_ne!(self.windows.call(id) == Some(key), has_ended, "{call:?}");
                }
                None => {
                    let will_leave = call.queued || self.closed || matches!(call.audience, Audience::Told(_));
                    assert!(will_leave, "a call without an id waits in a queue: {call:?}");
                }
            }
        }
    }

    // Private from here: what happens to single calls.

    fn enqueue(&mut self, command: Command, terms: Terms, audience: Audience, now: Time) -> CallKey {
        let key = self.calls.insert(Call::fresh(command, terms, audience, now));
        self.queue_up(key);
        key
    }

    /// Puts a call without an id into the line of its kind.
    fn queue_up(&mut self, key: CallKey) {
        let stays = self.calls[key].command.stays();
        self.queue.fresh.line(stays).push_back(key);
    }

    fn note_due(&mut self, at: Time) {
        if self.sweep_at.is_none_or(|known| at < known) {
            self.sweep_at = Some(at);
        }
    }

    fn park(&mut self, until: Time, parked: Parked) {
        self.note_due(until);
        self.queue.park(until, parked);
    }

    fn unpark(&mut self, now: Time) {
        for parked in self.queue.take_due(now) {
            match parked {
                Parked::Call(key) => self.queue_up(key),
                Parked::Ask(operation) => self.queue.outbox.push_back(Request::Ask { operation }),
                Parked::Repeat(session, sequence) => self.queue.resend.push_back((session, sequence)),
                Parked::Open => {
                    self.stream.opening = false;
                    self.open_if_without_session();
                }
            }
        }
    }

    /// Calls are not offered to a site without a session, so none of them would have us ask for one.
    fn open_if_without_session(&mut self) {
        if self.stream.leads == Leads::ToSite && !self.windows.has_open() {
            self.stream.opening = true;
            self.queue.outbox.push_back(Request::Open);
        }
    }

    /// The deadline of a call has passed.
    fn overdue(&mut self, key: CallKey, now: Time, wakers: &mut Vec<Waker>) {
        let call = &mut self.calls[key];
        let is_waited_for = call.is_waited_for();
        match call.id {
            None if is_waited_for => {
                let why = self.stream.closed_door.or(call.refused);
                let why = why.map_or(NotTaken::DeadlinePassed, NotTaken::Refused);
                self.tell(key, Reply::NotTaken(why), wakers);
            }
            // The queue that holds its key empties the slot.
            None => call.audience = Audience::Gone,
            // It is never issued again behind its caller's back.
            Some(id) if is_waited_for => self.tell_in_doubt(key, id, now, wakers),
            Some(id) => {
                self.windows.settle(id);
                self.calls.remove(key);
            }
        }
    }

    fn tell(&mut self, key: CallKey, reply: Reply, wakers: &mut Vec<Waker>) {
        match std::mem::replace(&mut self.calls[key].audience, Audience::Told(reply)) {
            Audience::Waiting(waker) => wakers.extend(waker),
            Audience::Told(_) | Audience::Gone | Audience::Detached => {
                unreachable!("only a caller who waits is told, and once")
            }
        }
    }

    /// The caller of a call that has left learns its id, and that it is in doubt. The call is over here: what its site says of it from
    /// now on is the caller's to ask.
    fn tell_in_doubt(&mut self, key: CallKey, id: OperationId, now: Time, wakers: &mut Vec<Waker>) {
        self.tell(key, Reply::InDoubt, wakers);
        self.windows.doubt(id, now);
    }

    /// Asks the site what became of an operation, which settles it permanently.
    fn ask(&mut self, position: usize, sequence: u64) {
        let operation = self.windows.operation(position, sequence);
        self.queue.outbox.push_back(Request::Ask { operation });
    }
}

#[cfg(test)]
mod tests;
