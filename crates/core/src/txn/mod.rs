//! Objects and strictly serializable transactions over them (Warranties, NSDI 2014; Predictive Treaties, EuroSys 2019, §6).
//!
//! A program runs against its site: it reads (from storage, from a copy, or at the object's home), buffers what it writes,
//! and asks the site to commit. Nothing is locked while it runs. Whether what it read is still so is judged at the end, at
//! the objects' homes, or by the site alone where live [warranties](crate::warranty) prove it.
//!
//! ```text
//!   client ── read ──▶ site ── Fetch ──▶ home          values, versions, rights
//!          ── commit ▶ site ── Prepare ─▶ home, home   each checks its part, and promises
//!                           ◀── Vote ───
//!          ◀─ outcome ─     ── Decide ──▶               each carries its part out
//! ```
//!
//! # Implicit commit
//!
//! A transaction is committed exactly when **every participant has durably prepared** it before its deadline. The
//! coordinator only finds out; its record is a hint for whom to ask. Whoever is in doubt asks the others: one that has not
//! prepared refuses it for ever, and it is aborted; if all have, it is committed. So nobody stays in doubt while the other
//! participants can be reached, with the coordinator or without.
//!
//! # Lost storage
//!
//! A participant that loses its storage loses its objects, and what it knew. What the others have must still be all of the
//! transaction, or nothing. So nobody shows its effects on its own knowledge alone: before a participant carries its part
//! out, that all are prepared is known at, or follows from what is durable at, the others. That is why the coordinator
//! prepares its own part first, why the last of several participants to prepare waits for the decision, why questions
//! and answers carry who is known to have prepared, and why it is the answers that one in doubt goes by. If one is lost, and
//! what the others know together does not show that it had prepared, nobody has shown anything, and they abort. (Where a
//! second storage is lost before what the first took part in is settled, a transaction may be left aborted at one site whose
//! client was told that it committed.)
//!
//! # Why it is strictly serializable
//!
//! Take the instant at which the last participant prepares. Up to there, each part that was prepared earlier is locked: what
//! it read and will write cannot change. What rests on a right cannot change before the right ends, and the
//! participants refuse after the deadline, which is ε before that. So at that instant everything that was read is as it was
//! read, and nobody else can see or change what is written until it is carried out. The transaction takes effect there,
//! between its beginning and its end. Order comes from locks and validation, never from time stamps.
//!
//! # Parts
//!
//! | module | what it is about |
//! | --- | --- |
//! | `table`, `row` | what storage holds |
//! | `locks` | what prepared transactions hold, and the check of a part |
//! | `claims` | whose turn it is, where several programs want the same objects |
//! | `dependents` | which calls of memoized functions depend on what is here |
//! | `home` | a participant: prepare, defend, vote, carry out, find out |
//! | `coordinate` | the coordinator: 0, 1 or 2 phases |
//! | `cache` | copies of others' objects, and the rights held over them |
//! | `read` | reads |
//! | `idle` | calls of memoized functions that nobody uses any more |
//! | `fingerprint` | comparing states, for the model check |
//! | `trace` | what is remembered of transactions, for those who ask why |

mod cache;
mod claims;
mod coordinate;
mod dependents;
mod fingerprint;
mod home;
mod idle;
mod locks;
mod read;
mod row;
mod table;
mod trace;

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::api::{Operation, Request};
use crate::clock::Now;
use crate::codec::Malformed;
use crate::config::Warranties;
use crate::id::{Incarnation, OperationId, SessionId, SiteId};
use crate::machine::{Batch, KeySet, ReadError, Reader, View};
use crate::object::ObjectKey;
use crate::object::message::{Known, Message, Vote};
use crate::object::trace::Trace;
use crate::right::{Start, WarrantyNumber};
use crate::turn::{Trust, Turn};
use crate::warranty::Backer;
use cache::Cache;
use claims::Claims;
use coordinate::Coordinated;
use dependents::Dependents;
use home::Entry;
pub use home::Stage;
use idle::Uses;
use locks::Locks;
pub use read::READ_ITEMS;
use read::{Question, Waiting};
use row::{CoordinatorRow, Loss, NUMBERS, Numbers, PARTICIPANT, ParticipantRow};
pub use table::Table;
use trace::Traces;
pub use trace::{EVENTS, RIGHTS, TRACE_BYTES, TRACES};

/// The most timers that one tick looks after; the next comes at once. What a tick carries out is one batch, and each part
/// that it carries out may write [`crate::object::TRANSACTION_BYTES`].
const AT_ONCE: usize = 16;
/// Version numbers are reserved durably in blocks of this many.
const BLOCK: u64 = 1 << 16;

/// What comes due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Part(OperationId),
    Coordinated(OperationId),
    Read(u64),
    Question(u64),
    Parked(u64),
    Claim(u64),
    Calls,
    Notes,
}

/// Objects and transactions at one site.
#[derive(Clone, Debug)]
pub struct Txns {
    me: SiteId,
    start: Start,
    numbers: Numbers,
    is_dirty: bool,
    /// The last version number that was given.
    version: u64,
    backer: Backer,
    locks: Locks,
    claims: Claims,
    dependents: Dependents,
    uses: Uses,
    /// Transactions in which this site takes part.
    entries: FxHashMap<OperationId, Entry>,
    /// Those of them whose parts wait for rights to end.
    defending: BTreeSet<OperationId>,
    /// Transactions that it coordinates.
    coordinated: FxHashMap<OperationId, Coordinated>,
    traces: Traces,
    cache: Cache,
    waiting: FxHashMap<u64, Waiting>,
    questions: FxHashMap<u64, Question>,
    timers: BTreeSet<(u64, Timer)>,
    tokens: u64,
}

/// What a row tells when a site starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restored {
    /// Nothing that concerns others.
    Own,
    /// An operation that waits for its transaction to be decided.
    Waiting {
        /// Its session.
        session: SessionId,
        /// Its sequence.
        sequence: u64,
        /// The session's mark.
        low: u64,
        /// The digest of its content.
        digest: u64,
    },
}

impl Txns {
    /// Of a site with new storage; `token` begins the series that names its questions.
    pub fn new(me: SiteId, token: u64) -> Self {
        Self {
            me,
            start: Start::default(),
            numbers: Numbers::default(),
            is_dirty: false,
            version: 0,
            backer: Backer::default(),
            locks: Locks::default(),
            claims: Claims::default(),
            dependents: Dependents::default(),
            uses: Uses::default(),
            entries: FxHashMap::default(),
            defending: BTreeSet::new(),
            coordinated: FxHashMap::default(),
            traces: Traces::default(),
            cache: Cache::default(),
            waiting: FxHashMap::default(),
            questions: FxHashMap::default(),
            timers: BTreeSet::new(),
            tokens: token,
        }
    }

    /// Whether a resident row is about transactions.
    pub fn is_row(key: &[u8]) -> bool {
        matches!(key.first(), Some(&(NUMBERS | PARTICIPANT | row::COORDINATOR | row::DEPENDENT)))
    }

    /// The last tag of its resident rows.
    pub const LAST_TAG: u8 = row::DEPENDENT;

    /// Takes a resident row of an earlier life in.
    pub fn restore(
        &mut self,
        key: &[u8],
        value: &[u8],
        incarnation: Incarnation,
        reader: &dyn Reader,
    ) -> Result<Result<Restored, Malformed>, ReadError> {
        let decoded = match key[0] {
            NUMBERS => Numbers::decode(value).map(|numbers| {
                self.numbers = numbers;
                self.version = numbers.versions;
                self.backer = Backer::restore(numbers.rights);
                Restored::Own
            }),
            PARTICIPANT => match row::participant_of(key).and_then(|id| Ok((id, ParticipantRow::decode(value)?))) {
                Ok((id, row)) => {
                    self.restore_participant(id, row, incarnation, reader)?;
                    Ok(Restored::Own)
                }
                Err(malformed) => Err(malformed),
            },
            row::DEPENDENT => self.dependents.restore(key, value).map(|()| Restored::Own),
            _ => CoordinatorRow::decode(key, value).map(|(session, sequence, row)| {
                // A mark above it says that nobody waits for it any more.
                let is_own = row.is_committed || sequence < row.low;
                let waiting = Restored::Waiting { session, sequence, low: row.low, digest: row.digest };
                let id = OperationId { site: self.me, incarnation, session, sequence };
                self.restore_coordinated(id, row);
                if is_own { Restored::Own } else { waiting }
            }),
        };
        Ok(decoded)
    }

    /// The keys of its resident rows.
    pub fn rows(&self) -> Vec<Vec<u8>> {
        let participants = self.entries.keys().map(|id| row::participant_key(*id));
        let coordinated = self.coordinated.keys().map(|id| row::coordinator_key(id.session, id.sequence).to_vec());
        let dependents = self.dependents.rows();
        let mut rows: Vec<Vec<u8>> = participants.chain(coordinated).chain(dependents).chain([vec![NUMBERS]]).collect();
        rows.sort_unstable();
        rows
    }

    /// The start in which the site serves, as far as it was told.
    pub fn start(&self) -> Start {
        self.start
    }

    /// The site serves, in this start: what an earlier life left is taken up.
    pub fn resume(&mut self, turn: &Turn, start: Start) {
        self.start = start;
        let was_lost = start.incarnation > Incarnation(1) && self.numbers == Numbers::default();
        self.backer.resume(turn.now, turn.config.epsilon, start, was_lost);
        let mut ids: Vec<OperationId> = self.entries.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.resume_part(turn, id);
        }
        let mut ids: Vec<OperationId> = self.coordinated.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.look_soon(turn, id);
        }
        self.begin_to_look(turn);
    }

    /// Whether what is not there may have been lost with an earlier incarnation's storage, or may still be shown elsewhere.
    fn is_bereft(&self, now: Now, incarnation: Incarnation) -> bool {
        incarnation > Incarnation(1)
            && match self.numbers.loss {
                Loss::Open => true,
                // Others may still show what was lost, under rights that the lost incarnation issued. Nobody sees that it is
                // gone before nobody can see it any more.
                Loss::Accepted => self.backer.is_bound_by_the_past(now),
                Loss::Settled => false,
            }
    }

    /// This site's objects, as far as the view has them.
    pub fn table<'a>(&self, turn: &Turn<'a>, view: &'a View) -> Table<'a> {
        let incarnation = turn.site.incarnation;
        let vouchers = (turn.peers, turn.now);
        let is_bound = self.backer.is_bound_by_the_past(turn.now);
        Table { view, site: self.me, incarnation, is_bereft: self.is_bereft(turn.now, incarnation), is_bound, vouchers }
    }

    /// An operator says that objects of earlier incarnations are gone for good. What is not there is absent once nothing that
    /// they issued binds any more.
    pub fn accept_loss(&mut self) {
        if self.numbers.loss == Loss::Open {
            (self.numbers.loss, self.is_dirty) = (Loss::Accepted, true);
        }
    }

    /// How many transactions are under way here, as coordinator and as participant.
    pub fn under_way(&self) -> (usize, usize) {
        (self.coordinated.len(), self.entries.len())
    }

    /// Transactions whose parts wait here for rights of others to end.
    pub fn defending(&self) -> impl Iterator<Item = OperationId> {
        self.defending.iter().copied()
    }

    /// Its durable marks: up to when transactions are refused that are not known, and above every end of a right, in microseconds
    /// since 1970. For those who check.
    pub fn marks(&self) -> (i64, i64) {
        (self.numbers.deadline, self.numbers.rights)
    }

    /// Parts here that wait or are in doubt: their deadlines, and who else takes part. For those who check.
    pub fn undecided(&self) -> impl Iterator<Item = (OperationId, Stage, i64, impl Iterator<Item = SiteId>)> {
        let is_undecided = |entry: &&Entry| matches!(entry.stage, Stage::Defending | Stage::Prepared);
        let entries = self.entries.iter().filter(move |(_, entry)| is_undecided(entry));
        entries.map(|(id, entry)| (*id, entry.stage, entry.deadline, entry.participants.iter().map(|(site, _)| *site)))
    }

    /// What is remembered of a transaction that this site coordinated in this life.
    pub fn explain(&self, id: OperationId) -> Option<&Trace> {
        self.traces.find(id)
    }

    /// How many objects have warranties out.
    pub fn warranties(&self) -> usize {
        self.backer.len()
    }

    /// How many copies of others' objects there are.
    pub fn copies(&self) -> usize {
        self.cache.len()
    }

    /// How many programs have their turn here, and how many reads wait for theirs.
    pub fn turns(&self) -> usize {
        self.claims.len()
    }

    /// Whether a right that was issued here is over what a program has claimed. For those who check.
    pub fn is_over_claimed(&self, number: WarrantyNumber) -> bool {
        self.backer.object_of(number).is_some_and(|name| self.claims.is_claimed(name))
    }

    /// Whether nothing is prepared here and undecided.
    pub fn is_settled(&self) -> bool {
        self.locks.is_empty()
    }

    /// Whether something is not settled here in which a life of this site before `incarnation` took part: as long as it is, the
    /// loss of another storage may split it. For those who check.
    pub fn depends_on_lost(&self, site: SiteId, incarnation: Incarnation) -> bool {
        let is_lost = |(other, life): &(SiteId, Incarnation)| *other == site && *life < incarnation;
        let in_part = self.entries.iter().any(|(id, entry)| {
            matches!(entry.stage, Stage::Prepared | Stage::Committed)
                && (is_lost(&(id.site, id.incarnation)) || entry.participants.iter().any(is_lost))
                && !entry.is_known_by_all(*id)
        });
        in_part || self.coordinated.values().any(|coordinated| coordinated.participants.iter().any(is_lost))
    }

    /// Whether rights are issued and relied upon: not while this site's clock is doubted, or was not compared.
    fn uses_rights(&self, turn: &Turn) -> bool {
        turn.config.warranties != Warranties::Off && turn.trust == Trust::Trusted
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        if self.version > self.numbers.versions {
            self.numbers.versions = self.version + BLOCK;
            self.is_dirty = true;
        }
        self.version
    }

    fn next_token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    /// Transactions with a deadline up to this are refused, if they are not known. A majority agrees that it is past.
    fn raise_deadline(&mut self, deadline: i64) {
        if deadline > self.numbers.deadline {
            self.numbers.deadline = deadline;
            self.is_dirty = true;
        }
    }

    /// What a request needs from storage.
    pub fn request_needs(&self, request: &Request, incarnation: Incarnation, set: &mut KeySet) {
        match request {
            Request::Batch(batch) if batch.site == self.me => {
                for submission in &batch.operations {
                    if let Operation::Commit(transaction) = &submission.operation
                        && transaction.keeps_bounds()
                    {
                        let own = transaction.homes.iter().filter(|home| home.region == self.me.region);
                        own.for_each(|home| home::needs(&home.part, incarnation, set));
                    }
                }
            }
            Request::Read(read) if read.gets.len() + read.scans.len() <= READ_ITEMS => {
                let gets = read.gets.iter().filter(|key| key.home == self.me.region);
                let scans = read.scans.iter().filter(|(region, _)| *region == self.me.region);
                read::needs(gets.map(|key| &*key.name), scans.map(|(_, span)| span), incarnation, set);
            }
            _ => {}
        }
    }

    /// What a message needs from storage.
    pub fn message_needs(&self, message: &Message, incarnation: Incarnation, set: &mut KeySet) {
        match message {
            Message::Fetch(fetch) if fetch.gets.len() + fetch.scans.len() <= READ_ITEMS => {
                read::needs(fetch.gets.iter().map(|(name, _)| &**name), fetch.scans.iter(), incarnation, set);
            }
            Message::Prepare(prepare) if prepare.part.keeps_bounds() => home::needs(&prepare.part, incarnation, set),
            Message::Wonder { names, .. } if names.len() <= READ_ITEMS => {
                names.iter().for_each(|name| table::need_head(incarnation, name, set));
            }
            _ => {}
        }
    }

    /// Handles what another site says.
    pub fn message(&mut self, turn: &mut Turn, view: &View, from: SiteId, message: Message) {
        self.backer.note_agreed(turn.now, turn.agreed(), turn.agreed_at_most(), turn.config.epsilon);
        let table = self.table(turn, view);
        match message {
            Message::Fetch(fetch) => self.fetch(turn, &table, from, *fetch),
            Message::Fetched(fetched) => self.fetched(turn, from, *fetched),
            Message::Revoke { holder, rights } => self.revoke(turn, from, holder, rights),
            Message::Revoked { holder, rights } => self.given_up(turn, from, holder, rights),
            Message::Prepare(prepare) if !prepare.part.keeps_bounds() => turn.metrics.ignored += 1,
            Message::Prepare(prepare) => {
                let id = prepare.id;
                if let Some(vote) = self.prepare(turn, &table, *prepare) {
                    turn.send_object(id.site, Message::Vote { id, vote });
                }
            }
            Message::Vote { id, vote } if id.site == self.me => self.vote_of(turn, from, id, vote),
            Message::Vote { .. } => turn.metrics.ignored += 1,
            Message::Decide { id, commit } => {
                self.decide_part(turn, from, id, commit);
                if id.site == self.me {
                    let known = if commit { Known::Committed } else { Known::Refused };
                    self.inquired_coordinator(turn, from, id, known);
                }
            }
            Message::Decided { id } => self.noted(turn, from, id),
            Message::Forget { id } => self.forget_part(turn, id),
            Message::Wonder { start, stamp, names } => self.wondered(turn, &table, from, (start, stamp), names),
            Message::Gone { start, stamp, names } => self.gone(turn, from, (start, stamp), names),
            Message::Inquire { id, deadline, participants, prepared } => {
                self.note_prepared(turn, id, prepared);
                self.note_answers(turn, id, prepared);
                let known = if id.site == self.me && id.incarnation != turn.site.incarnation {
                    Known::Lost
                } else if participants.iter().any(|(site, _)| *site == self.me) {
                    self.known_here(turn, id, deadline, &participants)
                } else if id.site == self.me {
                    self.known_as_coordinator(id)
                } else {
                    Known::Nothing
                };
                let prepared = self.prepared_known(id);
                turn.send_object(from, Message::Inquired { id, known, prepared });
            }
            Message::Inquired { id, known, prepared } => {
                if id.site == self.me {
                    self.note_answers(turn, id, prepared);
                    self.inquired_coordinator(turn, from, id, known);
                } else {
                    self.inquired(turn, from, id, known, prepared);
                }
            }
        }
    }

    fn vote_of(&mut self, turn: &mut Turn, from: SiteId, id: OperationId, vote: Vote) {
        if id.incarnation == turn.site.incarnation {
            self.voted(turn, from, id, vote);
        }
    }

    /// A home asks for rights back.
    fn revoke(&mut self, turn: &mut Turn, from: SiteId, holder: Start, rights: Vec<(String, WarrantyNumber)>) {
        if holder != self.start {
            // What an earlier life sent may still rest on it: it ends by its time.
            return;
        }
        let mut given_up = Vec::with_capacity(rights.len());
        for (name, number) in rights {
            let key = ObjectKey { home: from.region, name };
            if self.cache.give_up(turn.now, &key, number) {
                given_up.push((key.name, number));
            }
        }
        if !given_up.is_empty() {
            turn.send_object(from, Message::Revoked { holder, rights: given_up });
        }
    }

    /// Nothing rests on a right any more that its home has asked back.
    fn acknowledge(&mut self, turn: &mut Turn, key: ObjectKey, number: WarrantyNumber) {
        let home = SiteId::new(key.home, turn.site.me.lane);
        turn.send_object(home, Message::Revoked { holder: self.start, rights: vec![(key.name, number)] });
    }

    /// When something comes due, in monotonic microseconds.
    pub fn deadline(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.backer.deadline()).min()
    }

    /// Does what is due.
    pub fn tick(&mut self, turn: &mut Turn, view: &View) {
        self.backer.note_agreed(turn.now, turn.agreed(), turn.agreed_at_most(), turn.config.epsilon);
        let table = self.table(turn, view);
        self.backer.sweep(turn.now);

        // From here on rights of later lives may be binding, which are none over what was lost.
        if self.numbers.loss == Loss::Accepted && !self.backer.is_bound_by_the_past(turn.now) {
            (self.numbers.loss, self.is_dirty) = (Loss::Settled, true);
        }

        let due = self.timers.iter().copied().take_while(|(at, _)| *at <= turn.now.mono);
        let due: Vec<(u64, Timer)> = due.take(AT_ONCE).collect();
        for (at, timer) in due {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Part(id) => self.look_at_part(turn, &table, at, id),
                Timer::Coordinated(id) => self.look_at_coordinated(turn, at, id),
                Timer::Read(name) => self.answer_read(turn, name),
                Timer::Question(token) => self.give_up_question(token),
                Timer::Parked(token) => {
                    if let Some((from, fetch)) = self.unpark(turn, at, token) {
                        self.answer_fetch(turn, &table, from, fetch);
                    }
                }
                Timer::Claim(nonce) => self.look_at_claim(turn.now.mono, nonce),
                Timer::Calls => self.look_for_idle(turn, &table),
                Timer::Notes => self.look_at_notes(turn, &table),
            }
        }
    }

    /// Ends a turn: writes the numbers, if they have changed.
    pub fn persist(&mut self, batch: &mut Batch) {
        self.locks.end_turn();
        let (rights, has_changed) = self.backer.take_mark();
        self.numbers.rights = rights;
        if std::mem::take(&mut self.is_dirty) | has_changed {
            batch.put(&[NUMBERS], &self.numbers.encode());
        }
    }
}
