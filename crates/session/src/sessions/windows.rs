//! The sessions at one site, each a window of sequences: which of them are under way, and which somebody may still ask about.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::time::Duration;

use slackline_core::api::{Request, SESSION_WINDOW};
use slackline_core::id::{Incarnation, OperationId, SessionId, SiteId};

use crate::command::CallKey;
use crate::time::Time;

/// The time for which an unwatched call, or one whose outcome was reported as unknown, is remembered: half the time that the
/// site keeps it, so that it can be asked about.
pub const WATCH: Duration = Duration::from_secs(300);
/// The most operations reported as unknown that hold their session's mark back; the oldest are let go.
const DOUBTS: usize = 4096;

/// The most sessions at one site, and how many of them calls may have that stay in line: 32,768 of these.
pub(super) const SESSIONS: usize = 64;
const KEPT: usize = SESSIONS / 2;
/// A session with this much room takes the next batch, whatever other sessions there are.
const SPACIOUS: usize = SESSION_WINDOW as usize / 2;

/// What is known of a sequence that was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    /// Nobody wants its outcome any more.
    Settled,
    /// It is this call's, which has not ended.
    Call(CallKey),
    /// It was reported as unknown; somebody may still ask.
    Unknown,
}

/// A session: its sequences are given in order, each once.
#[derive(Debug)]
pub(super) struct Session {
    /// Its name at its site.
    pub(super) id: SessionId,
    /// The incarnation of the site in which it was opened.
    pub(super) incarnation: Incarnation,
    /// The lowest sequence that somebody cares about, that of the first entry. The site may forget all before it. So it only
    /// rises, and stops at the first sequence that is not settled.
    pub(super) low: u64,
    /// One for each sequence from `low` to the last that was given; at most [`SESSION_WINDOW`]. The first is not settled.
    entries: VecDeque<Entry>,
    /// True from when its site is known to have ended it, or to have lost what it rests on: nothing new leaves in it.
    pub(super) ended: bool,
    /// True if it was given to calls that may stay in line at the site when it was idle last.
    stays: bool,
}

impl Session {
    /// The number of sequences that still fit its window.
    pub(super) fn room(&self) -> usize {
        if self.ended { 0 } else { SESSION_WINDOW as usize - self.entries.len() }
    }

    /// True if nobody cares about any of its sequences.
    fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// The call that has this sequence and has not ended.
    pub(super) fn call(&self, sequence: u64) -> Option<CallKey> {
        match self.entries.get(self.offset(sequence)?)? {
            Entry::Call(key) => Some(*key),
            Entry::Settled | Entry::Unknown => None,
        }
    }

    /// The calls that have a sequence and have not ended, by ascending sequence.
    fn calls(&self) -> impl Iterator<Item = (u64, CallKey)> {
        (self.low..).zip(&self.entries).filter_map(|(sequence, entry)| match entry {
            Entry::Call(key) => Some((sequence, *key)),
            Entry::Settled | Entry::Unknown => None,
        })
    }

    /// Gives a call, which stays or does not, the next sequence. There must be room.
    pub(super) fn give(&mut self, key: CallKey, stays: bool) -> u64 {
        assert!(self.room() > 0, "the site refuses what is beyond its window");
        if self.is_idle() {
            self.stays = stays;
        }

        // The entries before it stay until `low` has passed them, so no sequence is given twice.
        let sequence = self.low + self.entries.len() as u64;
        self.entries.push_back(Entry::Call(key));
        sequence
    }

    /// Gives the sequence of a call to another one, which goes on with it.
    pub(super) fn pass_on(&mut self, sequence: u64, from: CallKey, to: CallKey) {
        let entry = self.entry(sequence).expect("a sequence that is in use has an entry");
        assert_eq!(*entry, Entry::Call(from), "a sequence is passed on by the call that has it");
        *entry = Entry::Call(to);
    }

    /// Nobody wants the outcome of this sequence any more.
    pub(super) fn settle(&mut self, sequence: u64) {
        if let Some(entry) = self.entry(sequence) {
            *entry = Entry::Settled;
        }

        // The mark is never raised past an outcome that somebody may still want: the site would forget it.
        while self.entries.front() == Some(&Entry::Settled) {
            self.entries.pop_front();
            self.low += 1;
        }
    }

    fn offset(&self, sequence: u64) -> Option<usize> {
        usize::try_from(sequence.checked_sub(self.low)?).ok()
    }

    fn entry(&mut self, sequence: u64) -> Option<&mut Entry> {
        let offset = self.offset(sequence)?;
        self.entries.get_mut(offset)
    }
}

/// The sessions at one site, and which of their operations were reported as unknown.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) site: SiteId,
    /// Oldest first; each until it has ended and nobody cares about its sequences. No two have the same number, since answers name a
    /// session by its number alone.
    sessions: Vec<Session>,
    /// The operations that were reported as unknown, oldest first, and until when each holds its session's mark back. Each has
    /// an entry [`Entry::Unknown`], and each such entry is named here once.
    doubts: VecDeque<(Time, SessionId, u64)>,
}

impl Windows {
    pub(super) fn new(site: SiteId) -> Self {
        Self { site, sessions: Vec::new(), doubts: VecDeque::new() }
    }

    /// The number of sessions that are kept.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The position of the session of this number.
    pub(super) fn position(&self, id: SessionId) -> Option<usize> {
        self.sessions.iter().position(|session| session.id == id)
    }

    /// The position of the session in which an operation was given its id. One of another incarnation may have its number: what is said of an
    /// operation that nobody here knows any more must not be taken for something about a call in that one.
    fn position_of(&self, id: OperationId) -> Option<usize> {
        self.position(id.session).filter(|position| self.sessions[*position].incarnation == id.incarnation)
    }

    /// The position of the session in which calls that stay, or others, leave next; none if no session has room for them.
    pub(super) fn roomiest(&self, stays: bool) -> Option<usize> {
        // Where a new session is not to be had, or takes a round trip: what does not stay waits for nobody in a session of the other kind, and
        // nobody for it. The first call that stays goes where there is room: it has to go somewhere.
        let any = || self.best(Session::room).filter(|_| !stays || self.kept() == 0);
        self.roomiest_of_its_kind(stays).or_else(any)
    }

    /// The number of calls that stay, or of others, for which sessions of their kind have room: those in use, or one that is idle.
    pub(super) fn room(&self, stays: bool) -> usize {
        let room = |position: Option<usize>| position.map_or(0, |position| self.sessions[position].room());
        room(self.in_use(stays)).max(room(self.idle(stays)))
    }

    /// True if calls that stay, or others, may have one more session.
    pub(super) fn may_have_more(&self, stays: bool) -> bool {
        self.len() < SESSIONS && (!stays || self.kept() < KEPT)
    }

    /// The number of sessions in which calls stay.
    fn kept(&self) -> usize {
        self.sessions.iter().filter(|session| session.stays && !session.is_idle()).count()
    }

    /// Calls of a kind stand together as far as they fit: an idle session may be of any kind next.
    fn roomiest_of_its_kind(&self, stays: bool) -> Option<usize> {
        let spacious = |position: &usize| stays || self.sessions[*position].room() >= SPACIOUS;
        let in_use = self.in_use(stays);
        in_use.filter(spacious).or_else(|| self.idle(stays)).or(in_use)
    }

    /// The roomiest session in which calls of this kind are.
    fn in_use(&self, stays: bool) -> Option<usize> {
        self.best(|session| if session.stays == stays && !session.is_idle() { session.room() } else { 0 })
    }

    /// A session in which no call is, if calls of this kind may take one.
    fn idle(&self, stays: bool) -> Option<usize> {
        let idle = self.best(|session| if session.is_idle() { session.room() } else { 0 });
        idle.filter(|_| !stays || self.kept() < KEPT)
    }

    /// The position of the session with most room by this measure; none if all have none.
    fn best(&self, room: impl Fn(&Session) -> usize) -> Option<usize> {
        let rooms = self.sessions.iter().map(room).enumerate();
        rooms.max_by_key(|(_, room)| *room).filter(|(_, room)| *room > 0).map(|(position, _)| position)
    }

    /// True if a session is open that can be used.
    pub(super) fn has_open(&self) -> bool {
        self.sessions.iter().any(|session| !session.ended)
    }

    /// The id of the operation of this sequence in the session at this position.
    pub(super) fn operation(&self, position: usize, sequence: u64) -> OperationId {
        let Session { id, incarnation, .. } = self.sessions[position];
        OperationId { site: self.site, incarnation, session: id, sequence }
    }

    /// The call that has this id and has not ended.
    pub(super) fn call(&self, id: OperationId) -> Option<CallKey> {
        self.sessions[self.position_of(id)?].call(id.sequence)
    }

    /// True if a call has an id and has not ended.
    pub(super) fn has_calls(&self) -> bool {
        self.sessions.iter().any(|session| session.calls().next().is_some())
    }

    /// The calls that have an id and have not ended: the position of the session, the sequence, the key.
    pub(super) fn calls(&self) -> impl Iterator<Item = (usize, u64, CallKey)> {
        let sessions = self.sessions.iter().enumerate();
        sessions.flat_map(|(position, session)| session.calls().map(move |(sequence, key)| (position, sequence, key)))
    }

    /// A session was opened, whose number no other one here has.
    pub(super) fn open(&mut self, incarnation: Incarnation, id: SessionId) {
        assert!(self.position(id).is_none(), "answers name a session by its number alone");
        self.sessions.push(Session { id, incarnation, low: 1, entries: VecDeque::new(), ended: false, stays: false });
    }

    /// The site has lost what sessions of incarnations before this one rest on: nothing new is to leave in them.
    pub(super) fn end_before(&mut self, incarnation: Incarnation) {
        for session in &mut self.sessions {
            session.ended |= session.incarnation < incarnation;
        }
        self.forget_ended();
    }

    /// Forgets the sessions that have ended, and of which nobody wants to know anything.
    pub(super) fn forget_ended(&mut self) {
        self.sessions.retain(|session| !session.ended || !session.is_idle());
    }

    /// What closes each session whose outcomes nobody can still want.
    pub(super) fn closes(&self) -> impl Iterator<Item = Request> {
        let finished = self.sessions.iter().filter(|session| session.is_idle() && !session.ended);
        finished.map(|session| Request::Close {
            site: self.site,
            incarnation: session.incarnation,
            session: session.id,
        })
    }

    /// Nobody wants the outcome of this operation any more.
    pub(super) fn settle(&mut self, id: OperationId) {
        if let Some(position) = self.position_of(id) {
            self.sessions[position].settle(id.sequence);
        }
    }

    /// The caller is told that this is in doubt, and may ask as long as the site remembers.
    pub(super) fn doubt(&mut self, id: OperationId, now: Time) {
        let position = self.position_of(id);
        if let Some(entry) = position.and_then(|position| self.sessions[position].entry(id.sequence)) {
            *entry = Entry::Unknown;
            self.doubts.push_back((now + WATCH, id.session, id.sequence));
        }
        if self.doubts.len() > DOUBTS {
            self.let_go_of_oldest_doubt();
        }
    }

    /// The call goes on that this was reported of as unknown, to nobody. False if that was let go of since.
    pub(super) fn take_up(&mut self, id: OperationId, key: CallKey) -> bool {
        let is_it =
            |(_, session, sequence): &(Time, SessionId, u64)| (*session, *sequence) == (id.session, id.sequence);
        let Some((at, position)) = self.doubts.iter().position(is_it).zip(self.position_of(id)) else {
            return false;
        };
        let Some(entry) = self.sessions[position].entry(id.sequence) else { return false };
        *entry = Entry::Call(key);
        self.doubts.remove(at);
        true
    }

    /// Lets go of the oldest of what was reported as unknown until a session has room for calls that stay, or for others: what is new goes
    /// before what somebody may still ask about. Nothing is let go of in vain.
    pub(super) fn make_room(&mut self, stays: bool) {
        while self.roomiest(stays).is_none() && self.may_make_room(stays) {
            self.let_go_of_oldest_doubt();
        }
    }

    /// True if there would be room without what was reported as unknown.
    pub(super) fn may_make_room(&self, stays: bool) -> bool {
        let is_free_without = |session: &Session| !session.entries.iter().any(|entry| matches!(entry, Entry::Call(_)));
        let is_held = |session: &Session| session.entries.front() == Some(&Entry::Unknown);
        self.sessions.iter().filter(|session| !session.ended && is_held(session)).any(|session| match stays {
            false => true,
            true => session.stays || is_free_without(session) && self.kept() < KEPT,
        })
    }

    /// Lets go of what was reported as unknown so long ago that nobody will ask.
    pub(super) fn let_go(&mut self, now: Time) {
        while self.doubts.front().is_some_and(|(until, ..)| *until <= now) {
            self.let_go_of_oldest_doubt();
        }
    }

    fn let_go_of_oldest_doubt(&mut self) {
        let Some((_, id, sequence)) = self.doubts.pop_front() else { return };
        if let Some(position) = self.position(id) {
            self.sessions[position].settle(sequence);
        }
    }

    /// Asserts what always holds between the fields.
    pub(super) fn check(&self) {
        for (position, session) in self.sessions.iter().enumerate() {
            assert_eq!(self.position(session.id), Some(position), "two sessions have the number {}", session.id.0);
            assert!(session.entries.len() <= SESSION_WINDOW as usize, "beyond the window: {session:?}");
            assert_ne!(session.entries.front(), Some(&Entry::Settled), "the mark is as high as may be: {session:?}");
        }
        let entries = self.sessions.iter().flat_map(|session| &session.entries);
        let unknown = entries.filter(|entry| **entry == Entry::Unknown).count();
        assert_eq!(unknown, self.doubts.len(), "each operation that was reported as unknown is let go once");
        for (_, id, sequence) in &self.doubts {
            let session = self.position(*id).map(|position| &self.sessions[position]);
            let entry = session.and_then(|session| session.entries.get(session.offset(*sequence)?));
            assert_eq!(entry, Some(&Entry::Unknown), "{}-{sequence} was reported as unknown", id.0);
        }
    }
}

impl Index<usize> for Windows {
    type Output = Session;

    fn index(&self, position: usize) -> &Session {
        &self.sessions[position]
    }
}

impl IndexMut<usize> for Windows {
    fn index_mut(&mut self, position: usize) -> &mut Session {
        &mut self.sessions[position]
    }
}
