//! Operation ids: no operation takes effect twice, and its outcome can be asked for.
//!
//! A client numbers its operations within a **session** that the site opened. The site keeps the outcomes of a window
//! of at most [`SESSION_WINDOW`] operations above the mark that the client sends (the lowest sequence it still cares
//! about), durably: each outcome is a row that is written together with what the operation did. A repeated operation is
//! answered from the record. To ask about an operation that is not known refuses it permanently, and durably, so the
//! answer stays true.
//!
//! A client that moves on further than the window reaches raises its mark by that: operations that wait below the new
//! mark are withdrawn, and the outcomes below it are forgotten. No client is told so before the mark is durable, or an
//! operation that was refused could be carried out after a crash. Every outcome's row tells the mark at its time. Where
//! no row tells the present mark, the session gets a **mark row** of its own, in the place after the last of the window
//! ([`MARK_SLOT`]).
//!
//! One outcome has no row: that of a transaction that only read and was judged by its site alone. It is remembered
//! until the site stops, so that no client waits for a sync because of a read. After that, a copy of the operation is
//! judged again, a question refuses it, and other content under its id is not noticed; it has no effect in any case.
//! While a site's disk has no room, a new operation is refused in memory alone; the refusal gets a row when it is asked
//! for and there is room again.
//!
//! Memory is sessions times window, not rate times time. Sessions are numbered upwards from a durable mark, so after a
//! restart or after the retention a number that is not known is a session that *ended*, never a new one. A session that
//! left no row did nothing. The site also keeps which of the ended sessions may have had rows that are gone by now
//! ([`Ended`]): a client whose session a crash ended before it did anything must still hear that nothing was done. A
//! transaction may be undecided when its session ends: its coordinator's row then says so, and does not open the
//! session again at a restart.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::api::{NoSeat, Operation, Outcome, Refusal, SESSION_WINDOW, UnknownReason};
use crate::avantan::{Agreement, Charter, Lifecycle, put_gone, read_gone};
use crate::clock::SECOND;
use crate::codec::{Cursor, Malformed, put_i64, put_u64};
use crate::id::{GrantId, Incarnation, SessionId, SiteId, SiteSet};
use crate::machine::ClientId;
use crate::object::Abort;

/// The most sessions that a site keeps; opening one more is refused.
pub const SESSIONS: usize = 100_000;
/// The time for which the outcomes of a silent session are kept, in microseconds of the site's monotonic clock.
pub const RETENTION: u64 = 600 * SECOND;
/// A session number that is farther than this beyond the newest was never given to a client.
const FAR: u64 = 1 << 20;
/// Session numbers are reserved durably in blocks of this many.
pub const BLOCK: u64 = 1024;
/// The slot of a session's mark row; those of outcomes are below.
pub const MARK_SLOT: u64 = SESSION_WINDOW;

/// The client of an answer that no client waits for.
pub const NOBODY: ClientId = ClientId(u64::MAX >> 1);

/// The sequence of an operation that waits, and the client that waits for its answer.
pub type Unanswered = (u64, ClientId);

/// The state of one operation in the window.
#[derive(Clone, Debug)]
enum State {
    /// It waits for tokens or for an agreement; the answer goes to this client.
    Waiting(ClientId),
    /// It ended.
    Ended(Outcome),
    /// It was refused because storage had no room, and there was no room for a row of that either.
    RefusedForRoom,
}

/// A place in the window that is taken.
#[derive(Clone, Debug)]
struct Slot {
    /// The operation's sequence; modulo the window's length it is this place.
    sequence: u64,
    /// The digest of the operation's content; zero for one that was asked about before it came.
    digest: u64,
    /// How far the operation has come; it only moves from waiting to one of the others.
    state: State,
}

/// The verdict on a submitted operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is new: carry it out, then record or suspend it.
    Fresh,
    /// The agreement on it was under way at its deadline, or when the site stopped: carry it on like a new one.
    Undecided,
    /// It ended before, with this outcome.
    Known(Outcome),
    /// It waits; the answer now goes to the client that repeated it, and not to this one any more, if it is another.
    Waiting(Option<ClientId>),
    /// It was refused because storage had no room, and that has no row yet.
    RefusedForRoom,
}

/// One session's window.
#[derive(Debug)]
pub struct Session {
    /// The session's mark: operations below are forgotten. It only rises.
    low: u64,
    /// The window: an operation's place is its sequence modulo the length. Empty, or a power of two and at most
    /// [`SESSION_WINDOW`] places.
    slots: Vec<Option<Slot>>,
    /// The last time at which it was heard of, or an operation that had waited ended, in monotonic microseconds.
    touched: u64,
    /// The highest sequence that a row was written for; zero for none. Rows of forgotten operations stay on storage
    /// until others take their slots, or the session ends.
    highest: u64,
    /// The mark that a restart would find in the rows of this session: at most `low`.
    marked: u64,
    /// True if there is a mark row.
    has_mark_row: bool,
    /// True if any operation was answered, or waited, in this life or with a row.
    is_used: bool,
    /// Operations that waited, or were undecided, when their place in the window was given to others, with their
    /// clients ([`NOBODY`] for a client that was told that its operation is undecided). Taken by
    /// [`Session::unclaimed`].
    dropped: Vec<Unanswered>,
    /// The aims of undecided operations, by sequence. There are few at a time, and each for a short time.
    aims: Vec<(u64, Aim)>,
}

/// The aim of an undecided creation, deletion or change of a limit: compared with what the quota is later, it tells what became of
/// the operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aim {
    /// The quota's number at the site.
    pub quota: u64,
    /// The quota's generation when the operation was carried out.
    pub generation: u32,
    /// The instance in which a value that carries it out may be accepted somewhere.
    pub instance: u64,
    /// What it does to the quota; never [`Lifecycle::Keep`].
    pub change: Lifecycle,
}

impl Session {
    /// A session in which no operation was submitted.
    fn new(now: u64) -> Self {
        Self {
            low: 1,
            slots: Vec::new(),
            touched: now,
            highest: 0,
            marked: 1,
            has_mark_row: false,
            is_used: false,
            dropped: Vec::new(),
            aims: Vec::new(),
        }
    }

    /// The lowest sequence whose outcome is kept.
    pub fn low(&self) -> u64 {
        self.low
    }

    /// Raises the mark: the client no longer cares about operations below `low`.
    pub fn raise(&mut self, low: u64, now: u64) {
        self.low = self.low.max(low);
        self.hear(now);
    }

    /// Judges a submitted operation. One that is new gets its place in the window.
    #[inline]
    pub fn judge(&mut self, sequence: u64, digest: u64, client: ClientId) -> Verdict {
        // Once only: a sequence below the mark, or one that is in the window, is never new again. The mark only rises,
        // and a place is given away only to a sequence that is a whole window above, which raises the mark over this
        // one.
        if sequence >= self.low {
            self.make_room(sequence);
        }
        if let Some(verdict) = self.recall(sequence, digest, client) {
            return verdict;
        }

        // An operation that still waits in this place is below the mark now. It is withdrawn before this one is carried
        // out, and must not get tokens that this one frees.
        let mask = self.slots.len() as u64 - 1;
        let before = self.slots[(sequence & mask) as usize].take();
        self.drop_waiting(before);
        Verdict::Fresh
    }

    /// Judges a submitted operation where nothing can be written. One that is new is refused, and that is remembered.
    pub fn judge_without_room(&mut self, sequence: u64, digest: u64, client: ClientId) -> Verdict {
        let no_room = Verdict::Known(Outcome::Unknown(UnknownReason::StorageFull));
        match self.recall(sequence, digest, client) {
            // Where the mark is not durable, the answer that it is forgotten could be untrue after a crash.
            Some(Verdict::Known(Outcome::Unknown(UnknownReason::Forgotten))) if self.is_unmarked() => return no_room,
            Some(Verdict::Undecided) => return Verdict::Known(Outcome::Unknown(UnknownReason::Undecided)),
            Some(verdict) => return verdict,
            None => {}
        }

        // That the window moves on, or that a waiting operation gives its place up, would have to be durable too.
        let is_held = self.waiting().any(|(waiting, _)| waiting < self.low);
        if is_held || sequence - self.low >= SESSION_WINDOW {
            return no_room;
        }
        self.place(Slot { sequence, digest, state: State::RefusedForRoom });
        Verdict::RefusedForRoom
    }

    /// The verdict on an operation that is known; none for a new one. Changes nothing but the client that waits for it.
    #[inline]
    fn recall(&mut self, sequence: u64, digest: u64, client: ClientId) -> Option<Verdict> {
        if sequence < self.low {
            return Some(Verdict::Known(Outcome::Unknown(UnknownReason::Forgotten)));
        }
        let mask = (self.slots.len() as u64).checked_sub(1)?;
        let slot = self.slots[(sequence & mask) as usize].as_mut().filter(|slot| slot.sequence == sequence)?;

        Some(match &mut slot.state {
            // It was asked about before it came, and the answer was durable: it stays refused, whatever its content.
            State::Ended(outcome @ Outcome::Refused(Refusal::Withdrawn)) => Verdict::Known(outcome.clone()),
            _ if slot.digest != digest => Verdict::Known(Outcome::Refused(Refusal::OtherContent)),
            // If the quota is still what it was (see [`Aim`]), the operation goes on.
            State::Ended(Outcome::Unknown(UnknownReason::Undecided)) => Verdict::Undecided,
            State::Ended(outcome) => Verdict::Known(outcome.clone()),
            State::RefusedForRoom => Verdict::RefusedForRoom,
            State::Waiting(waiting) => {
                let before = std::mem::replace(waiting, client);
                Verdict::Waiting((before != client).then_some(before))
            }
        })
    }

    /// True if no client ever gave an operation this sequence: it stays within a window of what this site has answered, and the mark
    /// is at most a window behind that.
    pub fn is_far(&self, sequence: u64) -> bool {
        sequence.saturating_sub(self.low) > 2 * SESSION_WINDOW
    }

    /// Makes room for an operation in the window. If it is beyond the window, the mark rises until it is not.
    #[inline]
    pub fn make_room(&mut self, sequence: u64) {
        if sequence.saturating_sub(self.low) >= SESSION_WINDOW {
            self.low = sequence - SESSION_WINDOW + 1;
        }
        self.reach(sequence);
    }

    /// The state of an operation; none if it never arrived.
    pub fn look(&self, sequence: u64) -> Option<Known> {
        if sequence < self.low {
            return Some(Known::Ended(Outcome::Unknown(UnknownReason::Forgotten)));
        }
        let mask = (self.slots.len() as u64).checked_sub(1)?;
        let slot = self.slots[(sequence & mask) as usize].as_ref().filter(|slot| slot.sequence == sequence)?;
        Some(match &slot.state {
            State::Waiting(client) => Known::Waiting(*client),
            State::Ended(outcome) => Known::Ended(outcome.clone()),
            State::RefusedForRoom => Known::RefusedForRoom,
        })
    }

    /// Notes the outcome of an operation.
    #[inline]
    pub fn record(&mut self, sequence: u64, digest: u64, outcome: Outcome) {
        self.place(Slot { sequence, digest, state: State::Ended(as_kept(outcome)) });
    }

    /// Notes that an operation waits.
    pub fn suspend(&mut self, sequence: u64, digest: u64, client: ClientId) {
        self.place(Slot { sequence, digest, state: State::Waiting(client) });
    }

    /// Ends a waiting operation; returns the client to answer and the digest to record. None if it has ended before, or
    /// has lost its place.
    pub fn resume(&mut self, sequence: u64, outcome: &Outcome, now: u64) -> Option<(ClientId, u64)> {
        let mask = (self.slots.len() as u64).checked_sub(1)?;
        let slot = self.slots[(sequence & mask) as usize].as_mut().filter(|slot| slot.sequence == sequence)?;
        let client = match &slot.state {
            State::Waiting(client) => *client,
            // Its client was told that it is undecided, and may ask: the outcome is recorded, and nobody is answered.
            State::Ended(Outcome::Unknown(UnknownReason::Undecided)) => NOBODY,
            State::Ended(_) | State::RefusedForRoom => return None,
        };
        slot.state = State::Ended(as_kept(outcome.clone()));

        // Its client may miss the answer, and has as long to ask as if the operation had ended at once.
        self.touched = now;
        Some((client, slot.digest))
    }

    /// Notes that its client has asked about it.
    pub fn hear(&mut self, now: u64) {
        self.touched = now;
    }

    /// Notes the aim of an undecided operation.
    pub fn aim(&mut self, sequence: u64, aim: Aim) {
        self.aims.retain(|(other, _)| *other != sequence && *other >= self.low);
        self.aims.push((sequence, aim));
    }

    /// The aim of an operation, if it is undecided.
    pub fn aim_of(&self, sequence: u64) -> Option<Aim> {
        let known = self.look(sequence);
        let undecided = known == Some(Known::Ended(Outcome::Unknown(UnknownReason::Undecided)));
        let aim = self.aims.iter().find(|(other, _)| *other == sequence).map(|(_, aim)| *aim);
        aim.filter(|_| undecided)
    }

    /// The digest of a waiting or ended operation's content.
    pub fn digest_of(&self, sequence: u64) -> Option<u64> {
        let mask = (self.slots.len() as u64).checked_sub(1)?;
        let slot = self.slots[(sequence & mask) as usize].as_ref();
        slot.filter(|slot| slot.sequence == sequence).map(|slot| slot.digest)
    }

    /// Notes that a row was written for an operation: it tells the mark, as far as it can.
    #[inline]
    pub fn note_row(&mut self, sequence: u64) {
        self.highest = self.highest.max(sequence);
        self.marked = self.marked.max(told_by(sequence, self.low));
        debug_assert!(self.marked <= self.low, "a row tells the mark {}, and it is {}", self.marked, self.low);
    }

    /// True if no row tells the mark.
    pub fn is_unmarked(&self) -> bool {
        self.low > self.marked
    }

    /// Returns the mark if no row tells it yet. The caller writes the mark row.
    pub fn mark(&mut self) -> Option<u64> {
        if !self.is_unmarked() {
            return None;
        }
        self.marked = self.low;
        self.has_mark_row = true;
        Some(self.low)
    }

    /// Takes the operations that waited, or were undecided, when the window moved on, with their clients.
    pub fn unclaimed(&mut self) -> Vec<Unanswered> {
        std::mem::take(&mut self.dropped)
    }

    /// The operations that wait, with their clients.
    fn waiting(&self) -> impl Iterator<Item = (u64, ClientId)> {
        self.slots.iter().flatten().filter_map(|slot| match slot.state {
            State::Waiting(client) => Some((slot.sequence, client)),
            State::Ended(_) | State::RefusedForRoom => None,
        })
    }

    /// The slots that may have a row.
    fn written(&self) -> impl Iterator<Item = u64> + use<> {
        let all = self.highest >= SESSION_WINDOW;
        let outcomes = u64::from(!all)..if all { SESSION_WINDOW } else { self.highest + 1 };
        outcomes.chain(self.has_mark_row.then_some(MARK_SLOT))
    }

    /// Puts an operation into its place in the window.
    fn place(&mut self, slot: Slot) {
        assert!(slot.sequence >= self.low, "operation {} is recorded below the mark {}", slot.sequence, self.low);
        debug_assert!(slot.sequence - self.low < SESSION_WINDOW, "operation {} is beyond the window", slot.sequence);
        self.is_used = true;
        self.reach(slot.sequence);
        let mask = self.slots.len() as u64 - 1;
        let sequence = slot.sequence;
        let before = self.slots[(sequence & mask) as usize].replace(slot);
        self.drop_waiting(before.filter(|before| before.sequence != sequence));
    }

    /// Makes the window long enough that every sequence from the mark to this one has a place of its own.
    #[inline]
    fn reach(&mut self, sequence: u64) {
        let needed = (sequence.saturating_sub(self.low) + 1).min(SESSION_WINDOW);
        if needed <= self.slots.len() as u64 {
            return;
        }

        // A place holds one operation only: of two sequences with the same place in the longer window, one is below the
        // mark.
        let length = needed.next_power_of_two().max(8);
        let old = std::mem::replace(&mut self.slots, vec![None; length as usize]);
        for slot in old.into_iter().flatten() {
            if slot.sequence >= self.low {
                let at = (slot.sequence & (length - 1)) as usize;
                self.slots[at] = Some(slot);
            } else {
                self.drop_waiting(Some(slot));
            }
        }
    }

    /// Notes an operation that lost its place while it waited, or while it was undecided.
    #[inline]
    fn drop_waiting(&mut self, slot: Option<Slot>) {
        let Some(Slot { sequence, state, .. }) = slot else { return };
        match state {
            State::Waiting(client) => self.dropped.push((sequence, client)),
            // Its client was told that it is undecided and waits no more, but the transaction may still be under way.
            State::Ended(Outcome::Unknown(UnknownReason::Undecided)) => self.dropped.push((sequence, NOBODY)),
            State::Ended(_) | State::RefusedForRoom => {}
        }
    }
}

/// The state of an operation, for a client that asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Known {
    /// It waits.
    Waiting(ClientId),
    /// It ended.
    Ended(Outcome),
    /// It was refused because storage had no room, and that has no row yet.
    RefusedForRoom,
}

/// All sessions of a site.
#[derive(Debug)]
pub struct Sessions {
    /// The sessions that are open; at most [`SESSIONS`] by clients' requests.
    open: FxHashMap<SessionId, Session>,
    /// The number of the next session; at most `reserved`.
    next: u64,
    /// The first number that is not reserved: a start begins here, so that no number is given twice.
    reserved: u64,
    /// The numbers of sessions that ended, and may have had rows that are gone.
    ended: Ended,
    /// The monotonic times at which sessions may be due for retirement, in ascending order. Some of them are closed
    /// already.
    order: VecDeque<(u64, SessionId)>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self::restore(Marks::default())
    }
}

/// The rows and operations that an ended session leaves behind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Closed {
    /// The slots whose rows are to be removed.
    pub slots: Vec<u64>,
    /// The operations that waited.
    pub waiting: Vec<Unanswered>,
}

/// The result of [`Sessions::open`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opened {
    /// Opened; the marks are unchanged.
    Within(SessionId),
    /// Opened; the marks must be persisted.
    Reserving(SessionId),
    /// The bound is reached.
    Full,
}

impl Sessions {
    /// The sessions of a site whose durable marks are these.
    pub fn restore(marks: Marks) -> Self {
        let Marks { reserved, ended } = marks;
        Self { open: FxHashMap::default(), next: reserved, reserved, ended, order: VecDeque::new() }
    }

    /// True if these are the marks.
    pub fn are_marks(&self, marks: &Marks) -> bool {
        self.reserved == marks.reserved && self.ended == marks.ended
    }

    /// The durable marks.
    pub fn marks(&self) -> Marks {
        Marks { reserved: self.reserved, ended: self.ended.clone() }
    }

    /// The number of open sessions.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// True if none is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Opens a session.
    pub fn open(&mut self, now: u64) -> Opened {
        if self.open.len() >= SESSIONS {
            return Opened::Full;
        }

        let id = SessionId(self.next);
        self.next += 1;
        self.insert(id, Session::new(now));
        if self.next <= self.reserved {
            return Opened::Within(id);
        }

        // The block is durable before the client hears of the number. After a crash, numbers of the block that were not
        // given are passed over.
        self.reserved = self.next - 1 + BLOCK;
        assert!(id.0 < self.reserved, "session {} is given and not reserved", id.0);
        Opened::Reserving(id)
    }

    /// The session, if it is open.
    #[inline]
    pub fn find(&mut self, id: SessionId) -> Option<&mut Session> {
        self.open.get_mut(&id)
    }

    /// The verdict on operations of a session that is not open: all are refused permanently, unless the session may
    /// have had rows that are gone.
    pub fn verdict_on_ended(&mut self, id: SessionId, has_room: bool) -> Outcome {
        // A number that is far off was never given to a client. It is not passed over, or a client could use all
        // numbers up.
        if id.0 >= self.next.saturating_add(FAR) {
            return Outcome::Unknown(UnknownReason::Forgotten);
        }
        if !has_room && id.0 >= self.reserved {
            return Outcome::Unknown(UnknownReason::StorageFull);
        }

        // A session that was not opened yet never will be: its number is passed over, durably, as the marks change.
        // Else its operations would be refused now and carried out later.
        self.next = self.next.max(id.0 + 1);
        if self.next > self.reserved {
            self.reserved = self.next - 1 + BLOCK;
        }
        if self.ended.contains(id.0) {
            Outcome::Unknown(UnknownReason::Forgotten)
        } else {
            Outcome::Refused(Refusal::Withdrawn)
        }
    }

    /// Restores the row of an outcome into its session, when the site starts.
    pub fn restore_row(&mut self, id: SessionId, row: SessionRow, now: u64) {
        if !self.open.contains_key(&id) {
            self.insert(id, Session::new(now));
        }

        // The mark is the highest that any row tells. Rows below it may be left over from operations whose places
        // others have taken.
        let session = self.open.get_mut(&id).expect("inserted above");
        session.low = session.low.max(told_by(row.sequence, row.low));
        session.note_row(row.sequence);
        session.is_used = true;
        if row.sequence >= session.low {
            session.record(row.sequence, row.digest, row.outcome);
            if let Some(aim) = row.aim {
                session.aim(row.sequence, aim);
            }
        }
    }

    /// Restores a mark row into its session, when the site starts.
    pub fn restore_mark(&mut self, id: SessionId, low: u64, now: u64) {
        if !self.open.contains_key(&id) {
            self.insert(id, Session::new(now));
        }
        let session = self.open.get_mut(&id).expect("inserted above");
        session.low = session.low.max(low);
        session.marked = session.marked.max(low);
        (session.has_mark_row, session.is_used) = (true, true);
    }

    /// Restores an operation into its session, when the site starts, that waited for its transaction to be decided.
    pub fn restore_waiting(&mut self, id: SessionId, sequence: u64, low: u64, digest: u64, now: u64) {
        if !self.open.contains_key(&id) {
            self.insert(id, Session::new(now));
        }
        let session = self.open.get_mut(&id).expect("inserted above");
        session.low = session.low.max(low.max(sequence.saturating_add(1).saturating_sub(SESSION_WINDOW)));
        if sequence >= session.low {
            session.suspend(sequence, digest, NOBODY);
        }
    }

    /// Ends a session, if it is open.
    pub fn close(&mut self, id: SessionId) -> Option<Closed> {
        let session = self.open.remove(&id)?;

        // It was used: its number is kept, so that nobody is told that nothing was done in it. Operations were
        // answered, and one that waits may still be carried out, if other sites were asked to.
        if session.is_used {
            self.ended.insert(id.0);
        }
        let slots = session.written().collect();
        Some(Closed { slots, waiting: session.waiting().collect() })
    }

    /// The rows that there may be, by session and slot.
    pub fn rows(&self) -> Vec<(SessionId, u64)> {
        let mut rows: Vec<_> =
            self.open.iter().flat_map(|(id, session)| session.written().map(|slot| (*id, slot))).collect();
        rows.sort_unstable();
        rows
    }

    /// A session whose retention is over, if there is one.
    pub fn overdue(&mut self, now: u64) -> Option<SessionId> {
        while let Some(&(at, id)) = self.order.front() {
            if at > now {
                return None;
            }
            self.order.pop_front();
            let Some(session) = self.open.get(&id) else { continue };
            let is_silent = session.touched + RETENTION <= now;
            if is_silent && session.waiting().next().is_none() {
                return Some(id);
            }

            // A client that waits for an answer is silent too, and its session stays open.
            let again = if is_silent { now } else { session.touched };
            self.order.push_back((again + RETENTION, id));
        }

        None
    }

    /// Adds an open session.
    fn insert(&mut self, id: SessionId, session: Session) {
        // Most entries are of closed sessions then. Without this, a client that opens and closes sessions would fill
        // the memory.
        if self.order.len() > 2 * self.open.len() + 1024 {
            self.order.retain(|(_, id)| self.open.contains_key(id));
        }
        self.order.push_back((session.touched + RETENTION, id));
        self.open.insert(id, session);
    }
}

/// The durable marks of a site's sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Marks {
    /// The first session number that is not used up.
    pub reserved: u64,
    /// The sessions that ended and may have had rows that are gone.
    pub ended: Ended,
}

impl Default for Marks {
    fn default() -> Self {
        Self { reserved: 1, ended: Ended::default() }
    }
}

impl Marks {
    /// Appends them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.reserved);
        put_u64(out, self.ended.floor);
        put_u64(out, self.ended.runs.len() as u64);
        let mut before = self.ended.floor;
        for (first, last) in &self.ended.runs {
            put_u64(out, first - before);
            put_u64(out, last - first);
            before = *last;
        }
    }

    /// Reads what [`Marks::encode`] wrote; the first layout of rows had no runs.
    pub fn decode(cursor: &mut Cursor, has_runs: bool) -> Result<Self, Malformed> {
        let reserved = cursor.u64()?;
        let mut ended = Ended { floor: cursor.u64()?, runs: Vec::new() };
        let mut before = ended.floor;
        for _ in 0..if has_runs { cursor.u64()? } else { 0 } {
            let first = before.checked_add(cursor.u64()?).ok_or(Malformed)?;
            let last = first.checked_add(cursor.u64()?).ok_or(Malformed)?;
            ended.runs.push((first, last));
            before = last;
        }
        Ok(Self { reserved, ended })
    }
}

/// The most runs of numbers that are kept apart. A command line that closes some sessions and leaves others makes one
/// run each time, so with a lower bound an operation of a moment ago would be answered as forgotten after a crash. A
/// run takes two bytes, in a row that is written when a session ends.
const RUNS: usize = 1_024;

/// Numbers of sessions that ended and may have had rows that are gone: all up to a floor, and a few runs above it.
/// Between runs are sessions that are open, and those that a crash ended before they did anything. The floor rises over
/// the oldest run when there are too many.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ended {
    /// All numbers up to this one are among them.
    floor: u64,
    /// The first and last numbers of the runs above the floor, ascending, not touching each other or the floor; at most
    /// [`RUNS`].
    runs: Vec<(u64, u64)>,
}

impl Ended {
    /// True if the number is among them.
    pub fn contains(&self, number: u64) -> bool {
        let at = self.runs.partition_point(|(_, last)| *last < number);
        number <= self.floor || self.runs.get(at).is_some_and(|(first, _)| *first <= number)
    }

    /// Adds a number.
    pub fn insert(&mut self, number: u64) {
        if self.contains(number) {
            return;
        }
        let at = self.runs.partition_point(|(_, last)| *last < number);
        let joins_before = at > 0 && self.runs[at - 1].1 + 1 == number;
        let joins_after = self.runs.get(at).is_some_and(|(first, _)| number + 1 == *first);
        match (joins_before, joins_after) {
            (true, true) => {
                let (_, last) = self.runs.remove(at);
                self.runs[at - 1].1 = last;
            }
            (true, false) => self.runs[at - 1].1 = number,
            (false, true) => self.runs[at].0 = number,
            (false, false) => self.runs.insert(at, (number, number)),
        }

        // At the bound the floor rises over the oldest run. Numbers between that count as ended from then on: such an
        // operation is said to be forgotten, never to be refused, so nothing untrue is said.
        while self.runs.first().is_some_and(|(first, _)| *first == self.floor + 1) || self.runs.len() > RUNS {
            self.floor = self.runs.remove(0).1;
        }

        assert!(self.contains(number), "session {number} has ended, and would be said to have done nothing");
    }
}

/// A digest of an operation's content: FNV-1a over eight bytes at a time. An id that comes again with another digest is refused, so the
/// digest of an operation must be the same in every version: rows hold it.
#[inline]
pub fn digest(operation: &Operation) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    let text = |text: &str, mix: &mut dyn FnMut(u64)| {
        let mut chunks = text.as_bytes().chunks_exact(8);
        for chunk in &mut chunks {
            mix(u64::from_le_bytes(chunk.try_into().expect("eight bytes")));
        }
        let mut last = [0u8; 8];
        last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        mix(u64::from_le_bytes(last));

        // The length, or a name would have the digest of the same name with zeros after it.
        mix(text.len() as u64);
    };

    let of_grant = |grant: &GrantId, mix: &mut dyn FnMut(u64)| {
        mix(u64::from(grant.site.region) << 16 | u64::from(grant.site.lane));
        mix(u64::from(grant.incarnation.0));
        mix(grant.number);
    };

    // First a number for the kind: two kinds with the same fields must differ.
    match operation {
        Operation::Acquire { quota, amount, hold, .. } => {
            mix(1);
            text(quota, &mut mix);
            mix(*amount as u64);
            match hold {
                crate::api::Hold::Counted => mix(0),
                crate::api::Hold::Open => mix(1),
                crate::api::Hold::For(micros) => {
                    mix(2);
                    mix(*micros);
                }
            }
        }
        Operation::Release { quota, amount } => {
            mix(2);
            text(quota, &mut mix);
            mix(*amount as u64);
        }
        Operation::ReleaseGrant { grant, used } => {
            mix(3);
            of_grant(grant, &mut mix);

            // A release of all of it has the digest that it always had.
            if *used != 0 {
                mix(*used as u64);
            }
        }
        Operation::ExtendGrant { grant, micros } => {
            mix(9);
            of_grant(grant, &mut mix);
            mix(*micros);
        }
        Operation::Create { quota, limit, charter } => {
            mix(4);
            text(quota, &mut mix);
            mix(*limit as u64);

            // One of nothing special has the digest that it always had.
            if *charter != Charter::default() {
                mix(u64::from(charter.agreement == Agreement::Any));
                mix(charter.refill);
                charter.parent.into_iter().for_each(|parent| mix(u64::from(parent.length)));
            }
        }
        Operation::Delete { quota } => {
            mix(5);
            text(quota, &mut mix);
        }
        Operation::Commit(transaction) => {
            mix(6);
            let mut bytes = Vec::new();
            transaction.encode(&mut bytes);
            let mut chunks = bytes.chunks_exact(8);
            for chunk in &mut chunks {
                mix(u64::from_le_bytes(chunk.try_into().expect("eight bytes")));
            }
            chunks.remainder().iter().for_each(|byte| mix(u64::from(*byte)));
        }
        Operation::Seat { site, change, label } => {
            mix(11);
            mix(u64::from(site.region) << 16 | u64::from(site.lane));
            mix(*change as u64);
            text(label, &mut mix);
        }
        Operation::AcceptLoss => mix(7),
        Operation::SetLimit { quota, limit } => {
            mix(8);
            text(quota, &mut mix);
            mix(*limit as u64);
        }
        Operation::Reclaim { quota, lost, in_use } => {
            mix(10);
            text(quota, &mut mix);
            mix(*in_use as u64);
            for (site, incarnation) in lost {
                mix((u64::from(site.region) << 48) | (u64::from(site.lane) << 32) | u64::from(incarnation.0));
            }
        }
    }

    hash
}

/// The mark that an operation's row tells, if it was written when the mark was `low`.
#[inline]
fn told_by(sequence: u64, low: u64) -> u64 {
    low.min(sequence).max(sequence.saturating_add(1).saturating_sub(SESSION_WINDOW))
}

/// Appends a mark row.
pub fn encode_mark(out: &mut Vec<u8>, low: u64) {
    put_u64(out, low);
}

/// Reads what [`encode_mark`] wrote.
pub fn decode_mark(bytes: &[u8]) -> Result<u64, Malformed> {
    let mut cursor = Cursor(bytes);
    let low = cursor.u64()?;
    cursor.end()?;
    Ok(low)
}

/// True if an outcome is kept durably: all but that of a transaction that only read, and that its site judged alone.
pub fn is_kept(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Committed { phases: 0 })
}

/// An outcome as it is kept, and told once more: without the names of calls, of which a session could hold 16 MiB.
pub fn as_kept(mut outcome: Outcome) -> Outcome {
    if let Outcome::Aborted(abort) = &mut outcome {
        abort.calls = Vec::new();
    }
    outcome
}

/// The row of an outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionRow {
    /// The operation's sequence.
    pub sequence: u64,
    /// The session's mark when the row was written.
    pub low: u64,
    /// The digest of the operation's content.
    pub digest: u64,
    /// Its outcome.
    pub outcome: Outcome,
    /// Its aim, if it is undecided.
    pub aim: Option<Aim>,
}

/// Appends the row of an operation that is undecided.
pub fn encode_undecided(out: &mut Vec<u8>, sequence: u64, low: u64, digest: u64, aim: Aim) {
    encode_row(out, sequence, low, digest, &Outcome::Unknown(UnknownReason::Undecided));
    put_u64(out, aim.quota);
    put_u64(out, u64::from(aim.generation));
    put_u64(out, aim.instance);
    // A limit is at least 1, and the least number is none with its sign changed.
    put_i64(
        out,
        match aim.change {
            Lifecycle::Create { limit, .. } => limit,
            Lifecycle::Delete | Lifecycle::Keep => 0,
            Lifecycle::Resize { limit } => -limit,
            Lifecycle::Reclaim { .. } | Lifecycle::Seat { .. } => i64::MIN,
        },
    );
    if let Lifecycle::Reclaim { brought, in_use } = aim.change {
        put_i64(out, brought);
        put_i64(out, in_use);
    }
    if let Lifecycle::Seat { site, gone } = aim.change {
        // Nothing is brought back by less than nothing.
        put_i64(out, -1);
        [u64::from(site.region), u64::from(site.lane)].into_iter().for_each(|part| put_u64(out, part));
        put_gone(out, gone);
    }
    if let Lifecycle::Create { charter, .. } = aim.change
        && charter != Charter::default()
    {
        charter.encode(out);
    }
}

/// Appends the row of an outcome.
#[inline]
pub fn encode_row(out: &mut Vec<u8>, sequence: u64, low: u64, digest: u64, outcome: &Outcome) {
    // The mark as its distance from the sequence: at most a window, so it takes a byte or two.
    put_u64(out, sequence);
    put_u64(out, sequence.saturating_sub(low));
    out.extend_from_slice(&digest.to_le_bytes());

    // Numbers are never used for something else: rows of earlier versions have them.
    match outcome {
        Outcome::Granted { grant, lasts } => {
            out.push(0);
            put_u64(out, grant.number);
            put_u64(out, lasts.unwrap_or(0));
        }
        Outcome::Released { amount } => {
            out.push(1);
            put_i64(out, *amount);
        }
        Outcome::Created { limit } => {
            out.push(2);
            put_i64(out, *limit);
        }
        Outcome::Deleted => out.push(3),
        Outcome::Refused(refusal) => {
            out.push(4);
            let (kind, detail) = match refusal {
                Refusal::UnknownQuota => (0, 0),
                Refusal::Exhausted { asked, retry_after: None, level: 0 } => (1, asked.0),
                Refusal::Exhausted { asked, level: 0, .. } => (24, asked.0),
                Refusal::Exhausted { asked, .. } => (28, asked.0),
                Refusal::InvalidParent => (29, 0),
                Refusal::NoParent => (30, 0),
                Refusal::ParentDiffers => (31, 0),
                Refusal::MixedRefill => (32, 0),
                Refusal::TooDeep => (33, 0),
                Refusal::HasChildren => (34, 0),
                Refusal::InUse { amount } => (35, *amount as u64),
                Refusal::RefillDiffers { refill } => (25, *refill),
                Refusal::Refills => (26, 0),
                Refusal::InvalidAmount => (2, 0),
                Refusal::InvalidName => (3, 0),
                Refusal::LimitDiffers { limit } => (4, *limit as u64),
                Refusal::AboveOut { at_most } => (5, *at_most as u64),
                Refusal::UnknownGrant => (6, 0),
                Refusal::QuotaDeleted => (7, 0),
                Refusal::Overloaded => (8, 0),
                Refusal::DeadlinePassed => (9, 0),
                Refusal::Unreachable { missing } => (10, missing.0),
                Refusal::Withdrawn => (11, 0),
                Refusal::OtherContent => (12, 0),
                Refusal::AboveLimit { limit, level: 0 } => (13, *limit as u64),
                Refusal::AboveLimit { limit, .. } => (36, *limit as u64),
                Refusal::NotReady => (14, 0),
                Refusal::StorageFull => (15, 0),
                Refusal::AboveGrant { amount } => (16, *amount as u64),
                Refusal::Settled => (17, 0),
                Refusal::NoEnd => (18, 0),
                Refusal::IncarnationLives => (19, 0),
                Refusal::NothingLost => (20, 0),
                Refusal::AlsoLost { sites } => (21, sites.0),
                Refusal::AboveLost { at_most } => (22, *at_most as u64),
                Refusal::BelowReleased { at_least } => (23, *at_least as u64),
                Refusal::NoSeat { why, count } => (37 + *why as u8, *count),
                Refusal::AgreementDiffers { agreement } => (27, u64::from(*agreement == Agreement::Any)),
                Refusal::SessionEnded => unreachable!("a session that has ended has no rows"),
            };
            out.push(kind);
            put_u64(out, detail);
            match refusal {
                Refusal::Exhausted { retry_after: Some(after), level: 0, .. } => put_u64(out, u64::from(*after)),
                Refusal::Exhausted { retry_after, level: level @ 1.., .. } => {
                    put_u64(out, u64::from(*level));
                    put_u64(out, retry_after.map_or(0, u64::from));
                }
                Refusal::AboveLimit { level: level @ 1.., .. } => put_u64(out, u64::from(*level)),
                _ => {}
            }
        }
        Outcome::Committed { phases } => {
            out.push(7);
            out.push(*phases);
        }
        Outcome::Aborted(abort) => {
            out.push(8);
            abort.encode(out);
        }
        Outcome::LossAccepted => out.push(9),
        Outcome::Seated { number } => {
            out.push(14);
            put_u64(out, *number);
        }
        Outcome::Extended { lasts } => {
            out.push(12);
            put_u64(out, *lasts);
        }
        Outcome::LimitSet { limit, excess } => {
            out.push(11);
            put_i64(out, *limit);
            put_i64(out, *excess);
        }
        Outcome::Reclaimed { brought, in_use } => {
            out.push(13);
            put_i64(out, *brought);
            put_i64(out, *in_use);
        }
        Outcome::Unknown(UnknownReason::Undecided) => out.push(5),
        Outcome::Unknown(UnknownReason::HomeLost) => out.push(10),
        Outcome::Unknown(_) => out.push(6),
    }
}

/// Reads which quota above another one a refusal is about.
fn read_level(cursor: &mut Cursor) -> Result<u16, Malformed> {
    u16::try_from(cursor.u64()?).ok().filter(|level| *level > 0).ok_or(Malformed)
}

/// Reads what [`encode_row`] wrote; grants are those of `site` in `incarnation`.
pub fn decode_row(bytes: &[u8], site: SiteId, incarnation: Incarnation) -> Result<SessionRow, Malformed> {
    let mut cursor = Cursor(bytes);
    let sequence = cursor.u64()?;
    let low = sequence.checked_sub(cursor.u64()?).ok_or(Malformed)?;
    let digest = cursor.be_u64()?.swap_bytes();
    let outcome = match cursor.u8()? {
        0 => {
            let grant = GrantId { site, incarnation, number: cursor.u64()? };
            let lasts = cursor.u64()?;
            Outcome::Granted { grant, lasts: (lasts > 0).then_some(lasts) }
        }
        1 => Outcome::Released { amount: cursor.i64()? },
        2 => Outcome::Created { limit: cursor.i64()? },
        3 => Outcome::Deleted,
        4 => {
            let (kind, detail) = (cursor.u8()?, cursor.u64()?);
            Outcome::Refused(match kind {
                0 => Refusal::UnknownQuota,
                1 => Refusal::Exhausted { asked: SiteSet(detail), retry_after: None, level: 0 },
                2 => Refusal::InvalidAmount,
                3 => Refusal::InvalidName,
                4 => Refusal::LimitDiffers { limit: detail as i64 },
                5 => Refusal::AboveOut { at_most: detail as i64 },
                6 => Refusal::UnknownGrant,
                7 => Refusal::QuotaDeleted,
                8 => Refusal::Overloaded,
                9 => Refusal::DeadlinePassed,
                10 => Refusal::Unreachable { missing: SiteSet(detail) },
                11 => Refusal::Withdrawn,
                12 => Refusal::OtherContent,
                13 => Refusal::AboveLimit { limit: detail as i64, level: 0 },
                14 => Refusal::NotReady,
                15 => Refusal::StorageFull,
                16 => Refusal::AboveGrant { amount: detail as i64 },
                17 => Refusal::Settled,
                18 => Refusal::NoEnd,
                19 => Refusal::IncarnationLives,
                20 => Refusal::NothingLost,
                21 => Refusal::AlsoLost { sites: SiteSet(detail) },
                22 => Refusal::AboveLost { at_most: detail as i64 },
                23 => Refusal::BelowReleased { at_least: detail as i64 },
                24 => Refusal::Exhausted { asked: SiteSet(detail), retry_after: Some(cursor.u32()?), level: 0 },
                25 => Refusal::RefillDiffers { refill: detail },
                26 => Refusal::Refills,
                27 if detail == 0 => Refusal::AgreementDiffers { agreement: Agreement::Majority },
                27 if detail == 1 => Refusal::AgreementDiffers { agreement: Agreement::Any },
                28 => {
                    let (level, after) = (read_level(&mut cursor)?, cursor.u32()?);
                    Refusal::Exhausted { asked: SiteSet(detail), retry_after: (after > 0).then_some(after), level }
                }
                29 => Refusal::InvalidParent,
                30 => Refusal::NoParent,
                31 => Refusal::ParentDiffers,
                32 => Refusal::MixedRefill,
                33 => Refusal::TooDeep,
                34 => Refusal::HasChildren,
                35 => Refusal::InUse { amount: detail as i64 },
                37.. => {
                    let why = NoSeat::ALL.get(usize::from(kind - 37)).ok_or(Malformed)?;
                    Refusal::NoSeat { why: *why, count: detail }
                }
                36 => Refusal::AboveLimit { limit: detail as i64, level: read_level(&mut cursor)? },
                27 => return Err(Malformed),
            })
        }
        5 => Outcome::Unknown(UnknownReason::Undecided),
        6 => Outcome::Unknown(UnknownReason::Forgotten),
        7 => Outcome::Committed { phases: cursor.u8()? },
        8 => Outcome::Aborted(Box::new(Abort::decode(&mut cursor)?)),
        9 => Outcome::LossAccepted,
        10 => Outcome::Unknown(UnknownReason::HomeLost),
        12 => Outcome::Extended { lasts: cursor.u64()? },
        14 => Outcome::Seated { number: cursor.u64()? },
        13 => Outcome::Reclaimed { brought: cursor.i64()?, in_use: cursor.i64()? },
        11 => Outcome::LimitSet { limit: cursor.i64()?, excess: cursor.i64()? },
        _ => return Err(Malformed),
    };

    // Only what is undecided is followed by its aim, by which it is settled once its round is known.
    let aim = if outcome == Outcome::Unknown(UnknownReason::Undecided) {
        let (quota, generation, instance) = (cursor.u64()?, cursor.u32()?, cursor.u64()?);
        let change = match cursor.i64()? {
            0 => Lifecycle::Delete,
            limit if limit > 0 => {
                let charter = if cursor.0.is_empty() { Charter::default() } else { Charter::decode(&mut cursor)? };
                Lifecycle::Create { limit, charter }
            }
            i64::MIN => match cursor.i64()? {
                -1 => {
                    let mut part = || u16::try_from(cursor.u64()?).map_err(|_| Malformed);
                    let site = SiteId { region: part()?, lane: part()? };
                    Lifecycle::Seat { site, gone: read_gone(&mut cursor)? }
                }
                brought => Lifecycle::Reclaim { brought, in_use: cursor.i64()? },
            },
            limit => Lifecycle::Resize { limit: limit.checked_neg().ok_or(Malformed)? },
        };
        Some(Aim { quota, generation, instance, change })
    } else {
        None
    };
    cursor.end()?;
    Ok(SessionRow { sequence, low, digest, outcome, aim })
}

#[cfg(test)]
mod tests;
