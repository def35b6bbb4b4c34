//! Operation ids: nothing takes effect twice, and outcomes can be asked for.
//!
//! A client numbers its operations within a **session** that the site opened. The site keeps the outcomes of a window of
//! at most [`SESSION_WINDOW`] operations above the mark that the client sends (the lowest sequence it still cares about),
//! durably: each outcome is a row that is written together with what the operation did. A repeated operation is answered
//! from the record. Asking about an operation that is not known refuses it for ever, durably, so the answer stays true.
//!
//! A client that moves on further than the window reaches, without raising its mark, raises it by that: what waits below is
//! withdrawn, and what is below is forgotten. Nobody is told so before the mark is durable, or an operation that was
//! refused could be carried out after a crash. Every outcome's row tells the mark at its time. Where no row does, the session
//! gets a **mark row** of its own, in the place after the last of the window ([`MARK_SLOT`]).
//!
//! One outcome has no row: that of a transaction that only read and was judged by its site alone. It is remembered until the
//! site stops, so that nobody waits for a sync because of a read. A copy of it that comes after that is judged anew, and a
//! question refuses it, and other content under its id is not noticed; it has no effect either way. While a site's disk has no
//! room, a new operation is refused in memory alone; the refusal gets a row when it is asked for and there is room again.
//!
//! Memory is sessions times window, not rate times time. Sessions are numbered upwards from a durable mark, so after a
//! restart or after the retention a number that is not known is a session that *ended*, never a new one. A session that
//! left no row did nothing; which of those that ended may have left rows that are gone by now is kept too ([`Ended`]), because
//! a client whose session a crash took with it must still hear that nothing was done. A transaction may be undecided when its
//! session ends: its coordinator's row then says so, and does not open the session again at a restart.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::api::{Doubt, Operation, Outcome, Refusal, SESSION_WINDOW, SiteSet};
use crate::clock::SECOND;
use crate::codec::{Cursor, Malformed, put_i64, put_u64};
use crate::id::{GrantId, Incarnation, SessionId, SiteId};
use crate::machine::ClientId;
use crate::object::Abort;

/// The most sessions that a site keeps; opening one more is refused.
pub const SESSIONS: usize = 100_000;
/// How long the outcomes of a session that is silent are kept, in microseconds of the site's monotonic clock.
pub const RETENTION: u64 = 600 * SECOND;
/// A session so far beyond the newest was never opened by anybody.
const FAR: u64 = 1 << 20;
/// Session numbers are reserved durably in blocks of this many.
pub const BLOCK: u64 = 1024;
/// The slot of a session's mark row; those of outcomes are below.
pub const MARK_SLOT: u64 = SESSION_WINDOW;

/// No client has this name.
pub const NOBODY: ClientId = ClientId(u64::MAX >> 1);

/// An operation that waits, and who waits for its answer.
pub type Unanswered = (u64, ClientId);

/// What is known of one operation.
#[derive(Clone, Debug)]
enum State {
    /// It waits for tokens or for an agreement; the answer goes to this client.
    Waiting(ClientId),
    /// It ended.
    Ended(Outcome),
    /// It was refused because storage had no room, nor for a row of that.
    RefusedForRoom,
}

#[derive(Clone, Debug)]
struct Slot {
    sequence: u64,
    digest: u64,
    state: State,
}

/// What to do with a submitted operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is new: carry it out, then record or suspend it.
    Fresh,
    /// The agreement on it was under way at its deadline, or when the site stopped: carry it on like a new one.
    Undecided,
    /// It ended before, like this.
    Known(Outcome),
    /// It waits; the answer now goes to the client that repeated it, and not to this one any more, if it is another.
    Waiting(Option<ClientId>),
    /// It was refused because storage had no room, and that has no row yet.
    RefusedForRoom,
}

/// One session's window.
#[derive(Debug)]
pub struct Session {
    /// Operations below are forgotten.
    low: u64,
    /// Sequence modulo its length names the slot; the length is a power of two and at most the window.
    slots: Vec<Option<Slot>>,
    /// When it was last heard of, in monotonic microseconds.
    touched: u64,
    /// The highest sequence that a row was written for; zero for none. Rows of forgotten operations stay on storage until
    /// others take their slots, or the session ends.
    highest: u64,
    /// What `low` would be after a restart, as far as rows of this session tell: at most `low`.
    marked: u64,
    /// Whether there is a mark row.
    has_mark_row: bool,
    /// Whether anything was answered, or waited, in this life or with a row.
    is_used: bool,
    /// Operations that waited, or were undecided, when their place in the window was given to others, and who waits for their
    /// answers ([`NOBODY`] for those whose clients were told that they are undecided).
    dropped: Vec<Unanswered>,
    /// What undecided operations aim at, by sequence; few, and few for long.
    aims: Vec<(u64, Aim)>,
}

/// What an undecided creation or deletion aims at: by this, what the quota is later tells what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aim {
    /// The quota's number at the site.
    pub quota: u64,
    /// The quota's generation when the operation was carried out.
    pub generation: u32,
    /// The instance in which a value that carries it out may be accepted somewhere.
    pub instance: u64,
    /// The limit to create it with; none to delete it.
    pub limit: Option<i64>,
}

impl Session {
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

    /// The client no longer cares about operations below `low`.
    pub fn raise(&mut self, low: u64, now: u64) {
        self.low = self.low.max(low);
        self.touched = now;
    }

    /// Judges a submitted operation. One that is new gets its place in the window.
    #[inline]
    pub fn judge(&mut self, sequence: u64, digest: u64, client: ClientId) -> Verdict {
        if sequence >= self.low {
            self.make_room(sequence);
        }
        if let Some(verdict) = self.recall(sequence, digest, client) {
            return verdict;
        }

        // The place is given to this operation; what waited there must not get what it frees.
        let mask = self.slots.len() as u64 - 1;
        let before = self.slots[(sequence & mask) as usize].take();
        self.drop_waiting(before);
        Verdict::Fresh
    }

    /// Judges a submitted operation where nothing can be written. One that is new is refused, and that is remembered.
    pub fn judge_without_room(&mut self, sequence: u64, digest: u64, client: ClientId) -> Verdict {
        let no_room = Verdict::Known(Outcome::Unknown(Doubt::StorageFull));
        match self.recall(sequence, digest, client) {
            // That it is forgotten would have to be durable.
            Some(Verdict::Known(Outcome::Unknown(Doubt::Forgotten))) if self.is_unmarked() => return no_room,
            Some(Verdict::Undecided) => return Verdict::Known(Outcome::Unknown(Doubt::Undecided)),
            Some(verdict) => return verdict,
            None => {}
        }

        // So would be that the window moves on, or that what waits gives its place up.
        let is_held = self.waiting().any(|(waiting, _)| waiting < self.low);
        if is_held || sequence - self.low >= SESSION_WINDOW {
            return no_room;
        }
        self.place(Slot { sequence, digest, state: State::RefusedForRoom });
        Verdict::RefusedForRoom
    }

    /// What is known of a submitted operation, if it is known; nothing is changed but who waits for it.
    #[inline]
    fn recall(&mut self, sequence: u64, digest: u64, client: ClientId) -> Option<Verdict> {
        if sequence < self.low {
            return Some(Verdict::Known(Outcome::Unknown(Doubt::Forgotten)));
        }
        let mask = (self.slots.len() as u64).checked_sub(1)?;
        let slot = self.slots[(sequence & mask) as usize].as_mut().filter(|slot| slot.sequence == sequence)?;
        Some(match &mut slot.state {
            // Whoever asked before it was carried out refused it, whatever its content.
            State::Ended(outcome @ Outcome::Refused(Refusal::Withdrawn)) => Verdict::Known(outcome.clone()),
            _ if slot.digest != digest => Verdict::Known(Outcome::Refused(Refusal::OtherContent)),
            // If the quota is still what it was (see [`Aim`]), the operation goes on.
            State::Ended(Outcome::Unknown(Doubt::Undecided)) => Verdict::Undecided,
            State::Ended(outcome) => Verdict::Known(outcome.clone()),
            State::RefusedForRoom => Verdict::RefusedForRoom,
            State::Waiting(waiting) => {
                let before = std::mem::replace(waiting, client);
                Verdict::Waiting((before != client).then_some(before))
            }
        })
    }

    /// Makes room for an operation in the window. A client that moves on without raising the mark raises it by what the window
    /// cannot hold.
    #[inline]
    pub fn make_room(&mut self, sequence: u64) {
        if sequence.saturating_sub(self.low) >= SESSION_WINDOW {
            self.low = sequence - SESSION_WINDOW + 1;
        }
        self.reach(sequence);
    }

    /// What is known of an operation; nothing if it never arrived.
    pub fn look(&self, sequence: u64) -> Option<Known> {
        if sequence < self.low {
            return Some(Known::Ended(Outcome::Unknown(Doubt::Forgotten)));
        }
        let mask = (self.slots.len() as u64).checked_sub(1)?;
        let slot = self.slots[(sequence & mask) as usize].as_ref().filter(|slot| slot.sequence == sequence)?;
        Some(match &slot.state {
            State::Waiting(client) => Known::Waiting(*client),
            State::Ended(outcome) => Known::Ended(outcome.clone()),
            State::RefusedForRoom => Known::RefusedForRoom,
        })
    }

    /// Notes how an operation ended.
    #[inline]
    pub fn record(&mut self, sequence: u64, digest: u64, outcome: Outcome) {
        self.place(Slot { sequence, digest, state: State::Ended(outcome) });
    }

    /// Notes that an operation waits.
    pub fn suspend(&mut self, sequence: u64, digest: u64, client: ClientId) {
        self.place(Slot { sequence, digest, state: State::Waiting(client) });
    }

    /// Ends a waiting operation; returns whom to answer and the digest to record, if it is still of interest.
    pub fn resume(&mut self, sequence: u64, outcome: &Outcome) -> Option<(ClientId, u64)> {
        let mask = (self.slots.len() as u64).checked_sub(1)?;
        let slot = self.slots[(sequence & mask) as usize].as_mut().filter(|slot| slot.sequence == sequence)?;
        let client = match &slot.state {
            State::Waiting(client) => *client,
            // Its client was told so, and may ask.
            State::Ended(Outcome::Unknown(Doubt::Undecided)) => NOBODY,
            State::Ended(_) | State::RefusedForRoom => return None,
        };
        slot.state = State::Ended(outcome.clone());
        Some((client, slot.digest))
    }

    /// Notes what an undecided operation aims at.
    pub fn aim(&mut self, sequence: u64, aim: Aim) {
        self.aims.retain(|(other, _)| *other != sequence && *other >= self.low);
        self.aims.push((sequence, aim));
    }

    /// What an operation aims at, if it is undecided.
    pub fn aim_of(&self, sequence: u64) -> Option<Aim> {
        let known = self.look(sequence);
        let undecided = known == Some(Known::Ended(Outcome::Unknown(Doubt::Undecided)));
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
    }

    /// Whether no row tells the mark.
    pub fn is_unmarked(&self) -> bool {
        self.low > self.marked
    }

    /// The mark, if no row tells it yet; from here on one does.
    pub fn mark(&mut self) -> Option<u64> {
        if !self.is_unmarked() {
            return None;
        }
        self.marked = self.low;
        self.has_mark_row = true;
        Some(self.low)
    }

    /// Operations that waited, or were undecided, when the window moved on, and who waits for their answers; each is named once.
    pub fn unclaimed(&mut self) -> Vec<Unanswered> {
        std::mem::take(&mut self.dropped)
    }

    /// The operations that wait, and who waits for their answers.
    fn waiting(&self) -> impl Iterator<Item = (u64, ClientId)> {
        self.slots.iter().flatten().filter_map(|slot| match slot.state {
            State::Waiting(client) => Some((slot.sequence, client)),
            State::Ended(_) | State::RefusedForRoom => None,
        })
    }

    /// The slots that may have a row, for its removal.
    fn written(&self) -> impl Iterator<Item = u64> + use<> {
        let all = self.highest >= SESSION_WINDOW;
        let outcomes = u64::from(!all)..if all { SESSION_WINDOW } else { self.highest + 1 };
        outcomes.chain(self.has_mark_row.then_some(MARK_SLOT))
    }

    fn place(&mut self, slot: Slot) {
        self.is_used = true;
        self.reach(slot.sequence);
        let mask = self.slots.len() as u64 - 1;
        let sequence = slot.sequence;
        let before = self.slots[(sequence & mask) as usize].replace(slot);
        self.drop_waiting(before.filter(|before| before.sequence != sequence));
    }

    /// Makes room so that every sequence from the mark to this one has a slot of its own.
    #[inline]
    fn reach(&mut self, sequence: u64) {
        let needed = (sequence.saturating_sub(self.low) + 1).min(SESSION_WINDOW);
        if needed <= self.slots.len() as u64 {
            return;
        }
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

    #[inline]
    fn drop_waiting(&mut self, slot: Option<Slot>) {
        let Some(Slot { sequence, state, .. }) = slot else { return };
        match state {
            State::Waiting(client) => self.dropped.push((sequence, client)),
            // Its client was told so and waits no more, but the transaction may be under way still.
            State::Ended(Outcome::Unknown(Doubt::Undecided)) => self.dropped.push((sequence, NOBODY)),
            State::Ended(_) | State::RefusedForRoom => {}
        }
    }
}

/// What a question about an operation finds.
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
    open: FxHashMap<SessionId, Session>,
    /// The number of the next session.
    next: u64,
    /// Numbers below are reserved durably.
    reserved: u64,
    /// Sessions that ended, and may have left rows that are gone.
    ended: Ended,
    /// Sessions in the order in which they may be due for retirement.
    order: VecDeque<(u64, SessionId)>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self::restore(Marks::default())
    }
}

/// What a session leaves when it ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Closed {
    /// The slots whose rows are to be removed.
    pub slots: Vec<u64>,
    /// The operations that waited.
    pub waiting: Vec<Unanswered>,
}

/// What [`Sessions::open`] came to.
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

    /// Whether these are the marks.
    pub fn are_marks(&self, marks: &Marks) -> bool {
        self.reserved == marks.reserved && self.ended == marks.ended
    }

    /// The durable marks.
    pub fn marks(&self) -> Marks {
        Marks { reserved: self.reserved, ended: self.ended.clone() }
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
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
        self.reserved = self.next - 1 + BLOCK;
        Opened::Reserving(id)
    }

    /// The session, if it is open.
    #[inline]
    pub fn find(&mut self, id: SessionId) -> Option<&mut Session> {
        self.open.get_mut(&id)
    }

    /// What is certain about operations of a session that is not open: it refused them all for ever, unless it may have
    /// left rows that are forgotten.
    ///
    /// One that was never opened will not be: its number is passed over, durably (the marks change). Not one that is far off,
    /// which nobody can have, or somebody could use the numbers up.
    pub fn verdict_on_ended(&mut self, id: SessionId, has_room: bool) -> Outcome {
        if id.0 >= self.next.saturating_add(FAR) {
            return Outcome::Unknown(Doubt::Forgotten);
        }
        if !has_room && id.0 >= self.reserved {
            return Outcome::Unknown(Doubt::StorageFull);
        }
        self.next = self.next.max(id.0 + 1);
        if self.next > self.reserved {
            self.reserved = self.next - 1 + BLOCK;
        }
        if self.ended.contains(id.0) {
            Outcome::Unknown(Doubt::Forgotten)
        } else {
            Outcome::Refused(Refusal::Withdrawn)
        }
    }

    /// Takes a row into the session that it belongs to, when the site starts.
    pub fn restore_row(&mut self, id: SessionId, row: SessionRow, now: u64) {
        if !self.open.contains_key(&id) {
            self.insert(id, Session::new(now));
        }
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

    /// Takes a mark row into the session that it belongs to, when the site starts.
    pub fn restore_mark(&mut self, id: SessionId, low: u64, now: u64) {
        if !self.open.contains_key(&id) {
            self.insert(id, Session::new(now));
        }
        let session = self.open.get_mut(&id).expect("inserted above");
        session.low = session.low.max(low);
        session.marked = session.marked.max(low);
        (session.has_mark_row, session.is_used) = (true, true);
    }

    /// Takes an operation into its session, when the site starts, that waited for its transaction to be decided.
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
        // What was answered must not be answered otherwise, and what waits may still be carried out, if others have been asked to.
        if session.is_used {
            self.ended.insert(id.0);
        }
        let slots = session.written().collect();
        Some(Closed { slots, waiting: session.waiting().collect() })
    }

    /// The rows that there may be: session and slot.
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
            // Who waits is silent too, until there is an answer.
            let again = if is_silent { now } else { session.touched };
            self.order.push_back((again + RETENTION, id));
        }
        None
    }

    fn insert(&mut self, id: SessionId, session: Session) {
        if self.order.len() > 2 * self.open.len() + 1024 {
            // Most of them were closed.
            self.order.retain(|(_, id)| self.open.contains_key(id));
        }
        self.order.push_back((session.touched + RETENTION, id));
        self.open.insert(id, session);
    }
}

/// The durable marks of a site's sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Marks {
    /// Numbers below are used up.
    pub reserved: u64,
    /// Which sessions ended and may have left rows that are gone.
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

/// The most runs of numbers that are kept apart. A command line that closes some sessions and leaves others makes one run each
/// time, so with few of them an operation of a moment ago is answered as forgotten after a crash. They take two bytes each, in
/// a row that is written when a session ends.
const RUNS: usize = 1_024;

/// Numbers of sessions that ended and may have left rows that are gone: all up to a floor, and a few runs above it. Between
/// runs are sessions that are open, and those that a crash ended before they did anything. The floor rises over the oldest
/// run when there are too many.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ended {
    floor: u64,
    /// First and last numbers, ascending, not touching each other.
    runs: Vec<(u64, u64)>,
}

impl Ended {
    /// Whether the number is among them.
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
        while self.runs.first().is_some_and(|(first, _)| *first == self.floor + 1) || self.runs.len() > RUNS {
            self.floor = self.runs.remove(0).1;
        }
    }
}

/// A digest of an operation's content, stable across restarts: FNV-1a over eight bytes at a time.
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
        mix(text.len() as u64);
    };
    match operation {
        Operation::Acquire { quota, amount, hold } => {
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
        Operation::ReleaseGrant { grant } => {
            mix(3);
            mix(u64::from(grant.site.region) << 16 | u64::from(grant.site.lane));
            mix(u64::from(grant.incarnation.0));
            mix(grant.number);
        }
        Operation::Create { quota, limit } => {
            mix(4);
            text(quota, &mut mix);
            mix(*limit as u64);
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
        Operation::AcceptLoss => mix(7),
    }
    hash
}

/// The mark that a row tells which was written for this operation when the mark was `low`.
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

/// Whether an outcome is kept durably: all but that of a transaction that only read, and that its site judged alone.
pub fn is_kept(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Committed { phases: 0 })
}

/// One recorded outcome, as its row has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionRow {
    /// The operation's sequence.
    pub sequence: u64,
    /// The session's mark at the time.
    pub low: u64,
    /// The digest of the operation's content.
    pub digest: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What it aims at, if that is undecided.
    pub aim: Option<Aim>,
}

/// Appends the row of an operation that is undecided.
pub fn encode_undecided(out: &mut Vec<u8>, sequence: u64, low: u64, digest: u64, aim: Aim) {
    encode_row(out, sequence, low, digest, &Outcome::Unknown(Doubt::Undecided));
    put_u64(out, aim.quota);
    put_u64(out, u64::from(aim.generation));
    put_u64(out, aim.instance);
    put_i64(out, aim.limit.unwrap_or(0));
}

/// Appends the row of an outcome.
#[inline]
pub fn encode_row(out: &mut Vec<u8>, sequence: u64, low: u64, digest: u64, outcome: &Outcome) {
    put_u64(out, sequence);
    put_u64(out, sequence.saturating_sub(low));
    out.extend_from_slice(&digest.to_le_bytes());
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
                Refusal::Exhausted { asked } => (1, asked.0),
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
                Refusal::AboveLimit { limit } => (13, *limit as u64),
                Refusal::NotReady => (14, 0),
                Refusal::StorageFull => (15, 0),
                Refusal::SessionEnded => unreachable!("a session that has ended has no rows"),
            };
            out.push(kind);
            put_u64(out, detail);
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
        Outcome::Unknown(Doubt::Undecided) => out.push(5),
        Outcome::Unknown(Doubt::HomeLost) => out.push(10),
        Outcome::Unknown(_) => out.push(6),
    }
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
                1 => Refusal::Exhausted { asked: SiteSet(detail) },
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
                13 => Refusal::AboveLimit { limit: detail as i64 },
                14 => Refusal::NotReady,
                15 => Refusal::StorageFull,
                _ => return Err(Malformed),
            })
        }
        5 => Outcome::Unknown(Doubt::Undecided),
        6 => Outcome::Unknown(Doubt::Forgotten),
        7 => Outcome::Committed { phases: cursor.u8()? },
        8 => Outcome::Aborted(Box::new(Abort::decode(&mut cursor)?)),
        9 => Outcome::LossAccepted,
        10 => Outcome::Unknown(Doubt::HomeLost),
        _ => return Err(Malformed),
    };
    let aim = if outcome == Outcome::Unknown(Doubt::Undecided) {
        let (quota, generation, instance, limit) = (cursor.u64()?, cursor.u32()?, cursor.u64()?, cursor.i64()?);
        Some(Aim { quota, generation, instance, limit: (limit > 0).then_some(limit) })
    } else {
        None
    };
    cursor.end()?;
    Ok(SessionRow { sequence, low, digest, outcome, aim })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_a_crash_ended_are_told_from_those_whose_rows_are_gone() {
        let mut sessions = Sessions::default();
        let open = |sessions: &mut Sessions| match sessions.open(0) {
            Opened::Within(id) | Opened::Reserving(id) => id,
            Opened::Full => panic!("far from it"),
        };
        let (first, crashed, last) = (open(&mut sessions), open(&mut sessions), open(&mut sessions));
        for id in [first, last] {
            sessions.find(id).expect("open").record(1, 0, Outcome::Deleted);
            sessions.close(id);
        }
        // A crash: what was open and left no row is no more.
        let mut sessions = Sessions::restore(sessions.marks());
        for id in [first, last] {
            assert_eq!(sessions.verdict_on_ended(id, true), Outcome::Unknown(Doubt::Forgotten));
        }
        assert_eq!(sessions.verdict_on_ended(crashed, true), Outcome::Refused(Refusal::Withdrawn));
        // One that ended while something waited may have done it.
        let id = open(&mut sessions);
        sessions.find(id).expect("open").suspend(1, 0, NOBODY);
        sessions.close(id);
        assert_eq!(sessions.verdict_on_ended(id, true), Outcome::Unknown(Doubt::Forgotten));
    }

    #[test]
    fn ended_numbers_are_those_that_were_added_until_there_are_too_many_runs() {
        let mut ended = Ended::default();
        let mut all = std::collections::BTreeSet::new();
        let mut number = 7u64;
        for _ in 0..40 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            all.insert(1 + (number >> 33) % 100);
            ended.insert(1 + (number >> 33) % 100);
            for number in 1..=101 {
                assert_eq!(ended.contains(number), all.contains(&number), "{number} in {ended:?}");
            }
            let marks = Marks { reserved: 500, ended: ended.clone() };
            let mut bytes = Vec::new();
            marks.encode(&mut bytes);
            assert_eq!(Marks::decode(&mut Cursor(&bytes), true), Ok(marks));
        }

        // A hundred commands that close their session, in turns with as many that leave it.
        (1..=100).for_each(|number| ended.insert(1000 + 2 * number));
        assert!(!ended.contains(1001), "it has not ended");
        (1..=RUNS as u64).for_each(|number| ended.insert(2000 + 2 * number));
        assert_eq!(ended.runs.len(), RUNS);
        assert!(ended.contains(1001), "the floor has risen over it");
    }
}
