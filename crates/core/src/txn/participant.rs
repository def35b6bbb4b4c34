//! A participant: the home of objects that a transaction reads or writes.
//!
//! ```text
//!   Prepare ──▶ rights over what it writes? ──no──▶ check ──▶ prepared ──▶ committed, refused
//!                    │ yes                            ▲ │
//!                    ▼                                │ └──fails──▶ refused
//!                defending: ask back or wait for ends ┘
//! ```
//!
//! While it defends, a part holds nothing but the block on new rights; it is checked when no right is left. A part that
//! was refused stays refused: its row remains until every transaction with its deadline would be refused anyway. The
//! row of a part that took effect remains until all other participants and the coordinator know.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use rustc_hash::FxHashMap;

use super::calls::Calls;
use super::claims::Claims;
use super::leaves::Leaves;
use super::locks::Locks;
use super::participation::{Defence, InDoubt, Participation, Stage, State, have_bits};
use super::retraction::{Retraction, deleted_treaties, note_needs, tell_deleted};
use super::row::{self, Loss, Numbers, ParticipantRow};
use super::table::{Table, judged, need_head, need_heads_of, need_reads, put_row};
use super::waits::{Wait, longest};
use crate::bounds::AT_ONCE;
use crate::clock::{MILLISECOND, Now, SECOND};
use crate::codec::Malformed;
use crate::id::{Incarnation, OperationId, SiteId, SiteSet};
use crate::machine::{Batch, KeySet, Reader, View};
use crate::object::message::{Fetch, Known, Message, Prepare, Vote};
use crate::object::{Abort, Cause, Change, ObjectKey, Part, Rank, TRANSACTION_BYTES};
use crate::right::{Start, WarrantyNumber};
use crate::rows::NUMBERS;
use crate::turn::{Here, Trust, Turn};
use crate::warranty::{FARTHEST, Issued, Issuer, LEASE};

/// The most transactions in which a site takes part at a time, those that it has refused and not forgotten included.
const PARTS: usize = 262_144;
/// The most timers that one call looks at, those included whose entry needs nothing of it.
const LOOKED_AT: usize = 512;
/// Once its batch has so many bytes, a tick carries nothing more out.
const TICK_BYTES: usize = TRANSACTION_BYTES;
/// The shortest time between two inquiries of a participant in doubt, in microseconds.
pub(super) const ASK: u64 = 250 * MILLISECOND;
/// The time between two reminders of a committed transaction to the sites that have not confirmed it, in microseconds.
const TELL: u64 = 2 * SECOND;
/// Version numbers are reserved durably in blocks of this many.
const BLOCK: u64 = 1 << 16;

/// Adds the rows that a part needs to be checked and carried out: versions, the numbers of counters, and where the leaves are of treaties
/// that it deletes, but no values. So the values that it read are not copied to judge a part.
pub(super) fn needs(part: &Part, incarnation: Incarnation, set: &mut KeySet) {
    part.reads.iter().for_each(|(name, _)| need_head(incarnation, name, set));
    part.scans.iter().for_each(|(span, numbers)| need_heads_of(incarnation, &judged(span, numbers.len()), set));
    let adds = part.writes.iter().filter(|(_, change)| change.is_add());
    adds.for_each(|(name, _)| need_head(incarnation, name, set));
    note_needs(part, incarnation, set);
    deleted_treaties(part).for_each(|name| need_head(incarnation, name, set));
}

/// True if the view has every row that a part [needs].
fn is_in_view(view: &View, part: &Part, incarnation: Incarnation) -> bool {
    let mut set = KeySet::default();
    needs(part, incarnation, &mut set);
    set.heads.iter().all(|(key, _)| view.knows_head(key))
        && set.head_ranges.iter().all(|(range, _)| view.has_heads_of(range))
}

/// A timer of a participant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// A part that waits, is in doubt, or is to be forgotten.
    Part(OperationId),
    /// Reads that wait for their turn, by token.
    Parked(u64),
    /// A program whose turn may be over, by nonce.
    Claim(u64),
    /// A treaty that is being retracted, by token.
    Retraction(u64),
}

/// The home of this site's objects: what is prepared and carried out over them, who holds rights over them, and whose
/// turn it is.
#[derive(Clone, Debug)]
pub(super) struct Participant {
    /// The durable numbers, in one row.
    pub(super) numbers: Numbers,
    /// True from a change of `numbers` until the end of the call, which writes their row.
    is_dirty: bool,
    /// The last version number that was given; at most `numbers.versions`, so that no later life gives it again.
    pub(super) version: u64,
    /// The rights of other sites over this site's objects.
    pub(super) issuer: Issuer,
    /// The locks of prepared parts; none of a part in another stage.
    pub(super) locks: Locks,
    /// The programs that have their turn, and the reads that wait for theirs.
    pub(super) claims: Claims,
    /// The leaves of treaties over this home's objects.
    pub(super) leaves: Leaves,
    /// The treaties of this home that leaves ask to retract, or ask about, by token.
    pub(super) retractions: BTreeMap<u64, Retraction>,
    /// Transactions in which this site takes part, from their first `Prepare` or inquiry until they are forgotten.
    pub(super) entries: FxHashMap<OperationId, Participation>,
    /// The entries in stage `Defending` whose writes are blocked for new rights.
    pub(super) defending: BTreeSet<OperationId>,
    /// When each thing comes due, in monotonic microseconds. A timer may be here whose entry is gone, or has another one;
    /// `Participation::look_at` names the one that counts.
    pub(super) timers: BTreeSet<(u64, Timer)>,
    /// The last token that was given to reads that wait.
    tokens: u64,
}

impl Participant {
    /// The participant of a site with new storage; `token` is where the tokens of reads that wait begin.
    pub(super) fn new(token: u64) -> Self {
        Self {
            numbers: Numbers::default(),
            is_dirty: false,
            version: 0,
            issuer: Issuer::default(),
            locks: Locks::default(),
            claims: Claims::default(),
            leaves: Leaves::new(token),
            retractions: BTreeMap::new(),
            entries: FxHashMap::default(),
            defending: BTreeSet::new(),
            timers: BTreeSet::new(),
            tokens: token,
        }
    }

    /// Takes in the row of the home's numbers.
    pub(super) fn restore_numbers(&mut self, row: &[u8]) -> Result<(), Malformed> {
        self.numbers = Numbers::decode(row)?;
        self.version = self.numbers.versions;
        self.issuer = Issuer::restore(self.numbers.rights);
        Ok(())
    }

    /// The site serves, in this start.
    pub(super) fn resume(&mut self, here: &Here, start: Start) {
        // A predecessor may have issued rights of which this storage has no mark: writes wait for the longest that such
        // rights can last, or a holder would rely on a value that is changed under it. A later start waits for the rest of that.
        let epsilon = here.config.epsilon;
        if start.incarnation > Incarnation(1) && self.numbers == Numbers::default() {
            (self.numbers.lost_until, self.is_dirty) = (here.uptime + LEASE + 2 * epsilon, true);
        }
        let left = self.numbers.lost_until.saturating_sub(here.uptime);
        self.issuer.resume(here.now, epsilon, start, left);

        // Answers to an earlier life's inquiries are not to be expected, so each doubt is taken up at once. The order
        // is that of the ids: the same storage gives the same effects.
        self.leaves.resume(here);
        self.resume_retractions(here);
        let mut ids: Vec<OperationId> = self.entries.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            // The monotonic clock of this life has no relation to that of the last. No deadline lies farther ahead than
            // this.
            let entry = self.entries.get_mut(&id).expect("listed above");
            entry.late_at = here.now.mono.saturating_add(FARTHEST);
            self.look_at(id, here.now.mono);
        }
    }

    /// Ends a call: writes the numbers, if they have changed.
    pub(super) fn persist(&mut self, batch: &mut Batch) {
        let is_defending = |id| self.entries.get(id).is_some_and(|entry| entry.stage() == Stage::Defending);
        debug_assert!(self.defending.iter().all(is_defending), "a part is listed as waiting for rights, and is not");
        self.locks.end_turn();

        // Rights and versions that were given in this call are in the same batch as their marks: nobody hears of a
        // number that a later life could give again, or of a right that a later life would not wait for.
        let (rights, has_changed) = self.issuer.take_mark();
        self.numbers.rights = rights;
        if std::mem::take(&mut self.is_dirty) | has_changed {
            batch.put(&[NUMBERS], &self.numbers.encode());
        }
    }

    /// True while a start would have to wait for what may rest on a lost predecessor: how long, the uptime says.
    pub(super) fn counts_uptime(&self) -> bool {
        self.numbers.lost_until > 0
    }

    /// The keys of its rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = Vec<u8>> {
        self.entries.keys().map(|id| row::participant_key(*id)).chain([vec![NUMBERS]]).chain(self.leaves.rows())
    }

    /// The earliest time at which something comes due, in monotonic microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        let own = self.timers.first().map(|(at, _)| *at);
        own.into_iter().chain(self.issuer.deadline()).chain(self.leaves.deadline()).min()
    }

    /// Notes what the wall clocks of the other sites show.
    pub(super) fn note_clocks(&mut self, here: &Here) {
        self.issuer.note_agreed(here.now, here.agreed(), here.agreed_at_most(), here.config.epsilon);
    }

    /// What is due: the timers of one call. As many of those that need rows as storage is read for in one, and many more of the others: a part
    /// that is to be forgotten, or asked about, must not keep one waiting that holds up a client.
    fn due(&self, now: u64) -> impl Iterator<Item = (u64, Timer)> {
        let mut reading = 0;
        let is_room = move |(_, timer): &(u64, Timer)| {
            let needs_rows = match timer {
                Timer::Part(id) => self.entries.get(id).is_some_and(|entry| entry.stage() == Stage::Defending),
                Timer::Parked(_) | Timer::Retraction(_) => true,
                Timer::Claim(_) => false,
            };
            reading += usize::from(needs_rows);
            reading <= AT_ONCE
        };
        let due = self.timers.iter().copied().take_while(move |(at, _)| *at <= now);
        due.take_while(is_room).take(LOOKED_AT)
    }

    /// Does what is due, and nothing more once the batch has [`TICK_BYTES`]: what it carries out is one batch, and each part may write
    /// [`crate::object::TRANSACTION_BYTES`].
    pub(super) fn tick(&mut self, turn: &mut Turn, table: &Table, calls: &mut Calls) {
        self.issuer.sweep(turn.here.now);

        if self.numbers.lost_until > 0 && self.numbers.lost_until <= turn.here.uptime {
            (self.numbers.lost_until, self.is_dirty) = (0, true);
        }

        // This is noted durably the first time that it is true. Rights that later lives issue may bind again, but none
        // of them is over what was lost.
        if self.numbers.loss == Loss::Accepted && !self.issuer.is_bound_by_the_past(turn.here.now) {
            (self.numbers.loss, self.is_dirty) = (Loss::Settled, true);
        }

        // The list is made first: what is done below sets timers, and one that is due at once belongs to the next call,
        // whose view has the rows that it needs.
        let due: Vec<(u64, Timer)> = self.due(turn.here.now.mono).collect();
        let mut is_first = true;
        for (at, timer) in due {
            // What is left comes with the next call: each batch must fit the room that was looked for before this one.
            if turn.out.batch.as_bytes().len() > TICK_BYTES {
                break;
            }
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Part(id) => self.look_at_part(turn, table, calls, at, id),
                Timer::Parked(token) => {
                    let is_first = std::mem::take(&mut is_first);
                    if let Some((from, fetch)) = self.unpark(&turn.here, table.view, is_first, (at, token)) {
                        self.answer_fetch(turn, table, calls, from, fetch);
                    }
                }
                Timer::Claim(nonce) => self.look_at_claim(turn.here.now.mono, nonce),
                Timer::Retraction(token) => self.go_on_retracting(turn, table, calls, token),
            }
        }

        self.tick_leaves(turn);
    }

    /// True if an object that is not here may have been lost with an earlier incarnation's storage, or may still be
    /// shown elsewhere.
    fn may_have_lost_data(&self, now: Now, incarnation: Incarnation) -> bool {
        incarnation > Incarnation(1)
            && match self.numbers.loss {
                Loss::Open => true,
                // Other sites may still show what was lost, under rights that the lost incarnation issued. It reads as
                // gone only after the last of these has ended: earlier, two sites would show different values at one
                // time.
                Loss::Accepted => self.issuer.is_bound_by_the_past(now),
                Loss::Settled => false,
            }
    }

    /// This site's objects, as far as the view has them.
    pub(super) fn table<'a>(&self, here: &Here<'a>, view: &'a View) -> Table<'a> {
        let incarnation = here.site.incarnation;
        let vouchers = (here.peers, here.now);
        let is_bound = self.issuer.is_bound_by_the_past(here.now);
        Table {
            view,
            site: here.site.me,
            incarnation,
            may_have_lost_data: self.may_have_lost_data(here.now, incarnation),
            is_bound,
            vouchers,
        }
    }

    /// An operator declares the objects of earlier incarnations gone. They read as absent once no right over them
    /// binds.
    pub(super) fn accept_loss(&mut self) {
        if self.numbers.loss == Loss::Open {
            (self.numbers.loss, self.is_dirty) = (Loss::Accepted, true);
        }
    }

    /// Gives the next version number. A version names one write of one object permanently, so the numbers are reserved
    /// durably before they are given, and a start begins above the reserved block.
    fn next_version(&mut self) -> u64 {
        self.version += 1;
        if self.version > self.numbers.versions {
            self.numbers.versions = self.version + BLOCK;
            self.is_dirty = true;
        }
        assert!(self.version <= self.numbers.versions, "version {} is given and not reserved", self.version);
        self.version
    }

    /// From here on, unknown transactions with a deadline up to this one are refused. A majority agrees that it is
    /// past.
    fn raise_deadline(&mut self, deadline: i64) {
        if deadline > self.numbers.deadline {
            self.numbers.deadline = deadline;
            self.is_dirty = true;
        }
    }

    /// Gives the next token for reads that wait.
    pub(super) fn next_token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    /// True if there is something that this part would wait for, so that it cannot be carried out at once.
    pub(super) fn must_wait(&mut self, here: &Here, part: &Part) -> bool {
        !waits(&mut self.issuer, (&self.leaves, &self.locks), here, part).is_empty()
    }

    /// Deletes a call that nobody uses. This is a write of one object like any other: prepared parts, rights of other
    /// sites, and other calls that depend on it keep it.
    pub(super) fn delete_idle(&mut self, turn: &mut Turn, table: &Table, calls: &mut Calls, call: ObjectKey) {
        // It is not worth asking a holder for: while somebody holds a right over it, or is about to write it, it is in
        // use.
        if self.issuer.over_at(turn.here.now, &call.name).is_some() || self.issuer.is_blocked(&call.name) {
            return;
        }

        // Another call that depends on it is not covered here, so the check fails then: else that call's result would
        // rest on a result that nobody keeps up to date.
        let part = Part { writes: vec![(call.name.clone(), Change::Delete)], forgets: vec![call], ..Part::default() };
        if self.locks.check(table, calls, &part).is_ok() {
            self.apply(turn, Some(table), calls, &part);
            turn.out.metrics.calls_evicted += 1;
        }
    }

    /// This site's coordinator gives up before it has asked anybody else. Nothing is kept of the part, not even a
    /// refusal: no other site knows the transaction, so no message can ask to prepare it again.
    pub(super) fn retract(&mut self, turn: &mut Turn, id: OperationId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        assert!(entry.stage() != Stage::Committed, "{id} is committed here, and its coordinator gives it up");
        self.let_go(turn.here.now.mono, id, &entry);
        self.timers.remove(&(entry.look_at, Timer::Part(id)));
        turn.out.batch.delete(&row::participant_key(id));
    }

    /// Restores the row of a transaction of an earlier life.
    pub(super) fn restore(
        &mut self,
        id: OperationId,
        row: ParticipantRow,
        (site, incarnation): (SiteId, Incarnation),
        reader: &dyn Reader,
    ) -> Result<(), crate::machine::ReadError> {
        let ParticipantRow { stage, deadline, participants, known, part } = row;
        let state = match Stage::DURABLE[usize::from(stage)] {
            Stage::Committed => State::Committed { known },
            Stage::Refused => State::Refused { abort: None },
            Stage::Prepared | Stage::Defending => State::Prepared(InDoubt { part, known, ..InDoubt::default() }),
        };

        // The promise outlives the crash, and so do its locks and its block on new rights. They are back before the
        // site serves: in between, another transaction could read or write what this one may still change.
        if let State::Prepared(InDoubt { part, .. }) = &state {
            let mut set = KeySet::default();
            needs(&Part { writes: part.writes.clone(), ..Part::default() }, incarnation, &mut set);
            let view = View::prepare(set, &crate::machine::Overlay::default(), reader)?;
            let table = Table::of_an_earlier_life(&view, site, incarnation);
            self.locks.take(id, part, &table);
            part.writes.iter().for_each(|(name, _)| self.issuer.block(name));
        }
        self.entries.insert(id, Participation::new(deadline, participants, state));
        Ok(())
    }

    /// Prepares a part, if it may be taken now, and returns this site's vote. None if the coordinator is to ask again,
    /// or has been told something else.
    pub(super) fn prepare(
        &mut self,
        turn: &mut Turn,
        table: &Table,
        calls: &mut Calls,
        prepare: Prepare,
    ) -> Option<Vote> {
        if prepare.is_check {
            return self.check_part(turn, table, calls, &prepare);
        }

        // Once only: a part that was answered before gets the same answer. A repeated or late `Prepare` could otherwise
        // take a part again that was refused, after others were told that the transaction is aborted.
        if let Some(vote) = self.voted_before(&turn.here, &prepare) {
            return Some(vote);
        }
        if let ControlFlow::Break(vote) = self.admit(turn, &prepare) {
            return vote;
        }
        let (id, max_wait) = (prepare.id, prepare.max_wait);
        self.take_in(turn, prepare);

        // Defend first, prepare second: the vote is taken only when no right over what the part writes can still be
        // live. While it waits it holds no lock, only the block on new rights, so a slow holder delays no other
        // transaction.
        match longest(self.waits(&turn.here, id)) {
            None => Some(self.vote(turn, table, calls, id)),
            Some(_) if let Some(abort) = self.never_holds(turn, table, calls, id) => {
                Some(self.refuse_part(turn, id, abort))
            }
            Some(wait) if wait.expected > max_wait => {
                // Its client will come again. Were rights not asked back for it, readers would renew them without end.
                self.ask_back(turn, id);
                if let Some(part) = self.entries[&id].part() {
                    part.writes.iter().for_each(|(name, _)| self.issuer.give_respite(turn.here.now, name));
                }
                self.press_for_slack(turn, id);
                let abort = wait.refusal(&turn.here);
                Some(self.refuse_part(turn, id, abort))
            }
            Some(_) => {
                turn.out.metrics.defended += 1;
                self.block(id);
                self.defending.insert(id);
                self.ask_back(turn, id);
                self.look_when_over(&turn.here, id);
                self.ask_for_slack(turn, id);
                Some(self.waiting(&turn.here, id))
            }
        }
    }

    /// The refusal of a part that waits for rights or slack and will be refused whatever comes: what it read has changed. Neither is asked
    /// of anybody for its sake; for slack, a treaty could be retracted for a write that never is.
    fn never_holds(&mut self, turn: &Turn, table: &Table, calls: &Calls, id: OperationId) -> Option<Abort> {
        let Defence { part, rank, .. } = self.entries[&id].defence()?;
        let abort = self.locks.check(table, calls, part).err()?;
        if !matches!(abort.cause, Cause::Changed | Cause::NotACounter) {
            return None;
        }
        let nonce = rank.nonce;
        self.end_claim(turn.here.now.mono, nonce);
        Some(abort)
    }

    /// The vote on a part that this site knows already.
    fn voted_before(&mut self, here: &Here, prepare: &Prepare) -> Option<Vote> {
        match &mut self.entries.get_mut(&prepare.id)?.state {
            // The copy may tell of more that have prepared than the first did.
            State::Defending(defence) => {
                defence.prepared |= prepare.prepared;
                Some(self.waiting(here, prepare.id))
            }
            State::Prepared(_) => Some(Vote::Prepared),
            State::Committed { .. } => Some(Vote::Committed),
            State::Refused { abort } => {
                let abort = abort.clone().unwrap_or_else(|| Abort::of(Cause::Withdrawn));
                Some(Vote::Refused(Box::new(abort)))
            }
        }
    }

    /// Judges whether a new part may be taken: by who is asked, by room, and by the deadline. Breaks with this site's
    /// answer if not.
    fn admit(&mut self, turn: &mut Turn, prepare: &Prepare) -> ControlFlow<Option<Vote>> {
        let Prepare { id, deadline, participants, .. } = prepare;
        let (id, deadline) = (*id, *deadline);
        let me = turn.here.site.me;
        let refuse =
            |cause| ControlFlow::Break(Some(Vote::Refused(Box::new(Abort { site: Some(me), ..Abort::of(cause) }))));

        // Another incarnation of this site was asked, perhaps once before. Its answer may have been `Prepared`, and is
        // lost: this one must not answer in its place, and says that.
        if !participants.contains(&(me, turn.here.site.incarnation)) || !have_bits(participants, id.site) {
            turn.out.send(id.site, Message::Inquired { id, known: Known::Lost, prepared: SiteSet::default() });
            return ControlFlow::Break(None);
        }

        // Every row with a deadline up to the mark may be gone, and this part's refusal among them. The mark refuses it
        // in place of the row.
        if deadline <= self.numbers.deadline {
            return refuse(Cause::DeadlinePassed);
        }
        if self.entries.len() >= PARTS && id.site == me {
            return refuse(Cause::Overloaded);
        }

        // To refuse a part would have to be durable, and to take it would rest on a clock that is known to be wrong,
        // here or there, or that was not compared yet. The coordinator asks again.
        if self.entries.len() >= PARTS || is_unclear(&turn.here, prepare) {
            turn.out.metrics.ignored += 1;
            return ControlFlow::Break(None);
        }

        // What room there is left on a full disk is for what is under way. Other sites' transactions would use it up, by rows of their parts
        // and of what these write, until this site hears of nothing any more. That one is refused is a short row; were it not answered, its
        // other parts would be locked until its deadline.
        if !turn.here.has_room && id.site != me {
            let abort = Abort { site: Some(me), ..Abort::of(Cause::NotReady) };
            return ControlFlow::Break(Some(self.refuse_unseen(turn, id, (deadline, participants.clone()), abort)));
        }

        // A part past its deadline (`is_late`) is refused, here or below: rights that the transaction rests on may be over, so what was
        // read may have changed. It stays refused, even if the clock is set back. Where a majority's clocks take the deadline as past
        // too (`is_past`), the mark rises to it, and no row is needed.
        let is_late = is_late(&turn.here, deadline, prepare.is_untimed);
        let is_past = turn.here.agreed().is_some_and(|agreed| deadline <= agreed);
        if is_late && is_past {
            self.raise_deadline(deadline);
            return refuse(Cause::DeadlinePassed);
        }

        // Nor is the mark raised to what a majority does not take as past: all others would be refused up to there. A
        // row of its own refuses this one, until that time has come.
        let is_far = deadline > turn.here.now.wall.saturating_add_unsigned(FARTHEST + 2 * turn.here.config.epsilon);
        let is_doubted = is_doubted(&turn.here, prepare);
        if is_late || is_far || is_doubted {
            let cause = if is_far || is_doubted { Cause::ClocksDisagree } else { Cause::DeadlinePassed };
            let abort = Abort { site: Some(me), ..Abort::of(cause) };
            return ControlFlow::Break(Some(self.refuse_unseen(turn, id, (deadline, participants.clone()), abort)));
        }

        ControlFlow::Continue(())
    }

    /// Takes a new part in, in memory only, in stage `Defending`.
    fn take_in(&mut self, turn: &mut Turn, prepare: Prepare) {
        let Prepare { id, deadline, participants, prepared, part, max_wait, released, rank, is_untimed, is_check: _ } =
            prepare;
        part_read(&mut self.issuer, &turn.here, &part);

        // A coordinator that writes has given up its own rights over that before it sent this message, which tells up
        // to which number. Else each writer would wait for a right that it holds itself.
        for (name, _) in &part.writes {
            self.issuer.give_up(name, id.site, released.0, released.1);
        }

        let patience = turn.here.now.mono.saturating_add(max_wait);
        let defence = Defence { part, prepared, rank, patience, is_untimed, is_blocked: false };
        let mut entry = Participation::new(deadline, participants, State::Defending(defence));
        entry.late_at = turn.here.now.mono.saturating_add(deadline.abs_diff(turn.here.now.wall));
        let known_before = self.entries.insert(id, entry);
        assert!(known_before.is_none(), "{id} is known here, and would be judged a second time");
    }

    /// What a part waits for.
    fn waits(&mut self, here: &Here, id: OperationId) -> Vec<Wait> {
        let kept = (&self.leaves, &self.locks);
        self.entries[&id].part().map(|part| waits(&mut self.issuer, kept, here, part)).unwrap_or_default()
    }

    /// Asks the holders of rights over what a part writes to give them up, where that is sooner than their ends.
    fn ask_back(&mut self, turn: &mut Turn, id: OperationId) {
        let writes = self.entries[&id].part().into_iter().flat_map(|part| &part.writes);
        let names: Vec<String> = writes.map(|(name, _)| name.clone()).collect();
        self.ask_back_names(turn, &names);
    }

    /// Asks the holders of rights over these objects likewise.
    pub(super) fn ask_back_names(&mut self, turn: &mut Turn, names: &[String]) {
        let mut asked: BTreeMap<(SiteId, Start), Vec<(String, WarrantyNumber)>> = BTreeMap::new();
        for name in names {
            // A right that ends within a round trip is waited for: the question would arrive too late to save anything.
            let lasts_longer = |right: &Issued| {
                let left = right.over_at(turn.here.now).saturating_sub(turn.here.now.mono);
                left >= turn.here.round_trip(right.holder)
            };
            for right in self.issuer.ask_back(turn.here.now, name, lasts_longer) {
                let rights = asked.entry((right.holder, right.start)).or_default();
                rights.push((name.clone(), right.number));
            }
        }

        // One message to each start of a holder, whatever the number of objects.
        for ((to, holder), rights) in asked {
            turn.out.metrics.revocations += rights.len() as u64;
            turn.out.send(to, Message::Revoke { holder, rights });
        }
    }

    /// Holders gave rights up: parts that waited for them may be checked.
    pub(super) fn given_up(&mut self, here: &Here, from: SiteId, holder: Start, rights: Vec<(String, WarrantyNumber)>) {
        for (name, number) in &rights {
            self.issuer.give_up(name, from, holder, *number);
        }

        // The parts are checked in the next call: the view of this one does not have the rows that they read.
        let is_concerned = |id: &&OperationId| {
            let mut writes = self.entries[*id].part().into_iter().flat_map(|part| &part.writes);
            writes.any(|(name, _)| rights.iter().any(|(given_up, _)| given_up == name))
        };
        let concerned: Vec<OperationId> = self.defending.iter().filter(is_concerned).copied().collect();
        for id in concerned {
            self.look_at(id, here.now.mono);
        }

        self.wake_retractions(here.now.mono, &rights);
    }

    /// Sets the timer of an entry, in monotonic microseconds. An earlier timer of it no longer counts.
    pub(super) fn look_at(&mut self, id: OperationId, at: u64) {
        let entry = self.entries.get_mut(&id).expect("looked up by the caller");
        let before = std::mem::replace(&mut entry.look_at, at);
        self.timers.remove(&(before, Timer::Part(id)));
        self.timers.insert((at, Timer::Part(id)));
    }

    /// Sets the timer of a part that waits for rights: to when these are over, or are to be asked back again.
    fn look_when_over(&mut self, here: &Here, id: OperationId) {
        let over = self.waits(here, id).iter().map(|wait| wait.over_at).max();
        let entry = &self.entries[&id];

        // No later than the deadline, nor than the patience of its client: the part is refused then, and its block
        // ends.
        let patience = entry.defence().map_or(u64::MAX, |defence| defence.patience);
        let margin = margin(here, entry.defence().is_some_and(|defence| defence.is_untimed));
        let deadline = entry.deadline.saturating_sub(here.now.wall).saturating_sub_unsigned(margin);
        let deadline = u64::try_from(deadline).unwrap_or(0);
        let again = here.now.mono + (2 * here.longest_round_trip()).max(ASK);
        let late = (here.now.mono + deadline + 1).min(patience.saturating_add(1));
        let over = over.unwrap_or(here.now.mono).min(again).min(late);
        self.look_at(id, over);
    }

    /// The vote on a part that waits: for which object and which holders, and until when.
    fn waiting(&mut self, here: &Here, id: OperationId) -> Vote {
        let waits = self.waits(here, id);
        let over = waits.iter().map(|wait| wait.over_at).max();
        let left = over.map_or(0, |over| over.saturating_sub(here.now.mono));
        let until = here.now.wall.saturating_add_unsigned(left);
        let longest = longest(waits).map(|wait| wait.refusal(here)).map(|abort| (abort.key, abort.holders));
        let (key, holders) = longest.unwrap_or_default();
        Vote::Waiting { name: key.map(|key| key.name).unwrap_or_default(), holders, until }
    }

    /// The refusal of a defended part whose deadline has passed; names the holders of the rights that it waited for.
    pub(super) fn late(&mut self, here: &Here, id: OperationId) -> Abort {
        let about = longest(self.waits(here, id)).map(|wait| wait.refusal(here));
        let about = about.unwrap_or_else(|| Abort { site: Some(here.site.me), ..Abort::of(Cause::DeadlinePassed) });
        Abort { cause: Cause::DeadlinePassed, ..about }
    }

    /// Judges a part of a transaction that writes nothing anywhere. All its reads were answered before any of its parts
    /// is checked. So at the time between, everything that it read was as it was read: what is still there now has not
    /// changed since (if several homes check, none of the reads found nothing: that has no version), and no write of it is
    /// prepared that may have taken effect elsewhere. Nothing needs to be locked
    /// or kept.
    fn check_part(&mut self, turn: &mut Turn, table: &Table, calls: &Calls, prepare: &Prepare) -> Option<Vote> {
        let Prepare { deadline, participants, part, rank, .. } = prepare;
        let refuse = |cause| Some(Vote::Refused(Box::new(Abort { site: Some(table.site), ..Abort::of(cause) })));

        // The deadline counts although nothing is locked: other reads of the transaction may rest on rights that end
        // there. So it is judged by no clock by which no part would be taken.
        if is_unclear(&turn.here, prepare) {
            turn.out.metrics.ignored += 1;
            return None;
        }
        self.end_claim(turn.here.now.mono, rank.nonce);

        // Versions of another incarnation mean nothing here. And a part that writes would be promised without a lock.
        if !participants.contains(&(turn.here.site.me, turn.here.site.incarnation)) || part.changes() {
            return refuse(Cause::Changed);
        }

        if is_doubted(&turn.here, prepare) {
            return refuse(Cause::ClocksDisagree);
        }
        if is_late(&turn.here, *deadline, prepare.is_untimed) {
            return refuse(Cause::DeadlinePassed);
        }

        // Locks of prepared parts count too: a prepared write may have taken effect elsewhere, and others may have seen
        // it.
        part_read(&mut self.issuer, &turn.here, part);
        Some(match self.locks.check(table, calls, part) {
            Ok(()) => Vote::Prepared,
            Err(abort) => Vote::Refused(Box::new(abort)),
        })
    }

    /// Judges a part as it would be carried out now: it must be the turn of its program, and everything that it read
    /// must be unchanged.
    pub(super) fn judge(
        &mut self,
        here: &Here,
        table: &Table,
        calls: &Calls,
        rank: Rank,
        part: &Part,
    ) -> Result<(), Abort> {
        let barred = self.claims.in_the_way(rank, part);
        let barred = barred.map(|name| Abort::about(Cause::Busy, table.site, name));
        let judged = barred.map_or_else(|| self.locks.check(table, calls, part), Err);
        let judged = judged.and_then(|()| self.check_notes(table, part));

        // It had its turn, however it was judged: a prepared part has its locks, and the program of a refused one reads
        // again with a new claim. A claim that stayed would bar others for nothing.
        self.end_claim(here.now.mono, rank.nonce);
        judged
    }

    /// Votes on a part over whose writes nobody holds a right.
    fn vote(&mut self, turn: &mut Turn, table: &Table, calls: &mut Calls, id: OperationId) -> Vote {
        let entry = self.entries.get_mut(&id).expect("looked up by the caller");
        let State::Defending(defence) = &mut entry.state else { unreachable!("{id} was voted on before") };
        let (rank, part) = (defence.rank, std::mem::take(&mut defence.part));
        let judged = self.judge(&turn.here, table, calls, rank, &part);

        // The part goes back before anything is decided: to refuse it gives back what it holds, by the names of its
        // writes.
        let entry = self.entries.get_mut(&id).expect("looked up above");
        let State::Defending(defence) = &mut entry.state else { unreachable!("nothing but its part was taken") };
        defence.part = part;
        if let Err(abort) = judged {
            return self.refuse_part(turn, id, abort);
        }

        // The bounds that it brings are kept from here on, so that they are true when the others are told.
        let notes = Part { notes: defence.part.notes.clone(), ..Part::default() };
        self.take_notes(&turn.here, table, &notes);
        self.leaves.waits_no_more(turn.here.now.mono, id);
        let entry = self.entries.get_mut(&id).expect("looked up above");
        let State::Defending(defence) = &mut entry.state else {
            unreachable!("its notes were taken, and nothing else")
        };

        // One phase: where nobody else takes part, this site's vote is the decision. Knowing that all others have
        // prepared would not be enough: that knowledge may be here alone, and be lost after the effects were shown.
        if entry.participants.len() == 1 {
            self.commit_part(turn, Some(table), calls, id);
            return Vote::Committed;
        }

        // Locked and blocked before it is promised: what was just judged stays true until the decision. The promise is
        // durable before anybody hears of it, or a crash could undo a vote on which the transaction was committed.
        if !defence.is_blocked {
            self.block(id);
        }
        self.defending.remove(&id);
        let entry = self.entries.get_mut(&id).expect("looked up above");
        let mine = entry.only(id, turn.here.site.me);
        let State::Defending(defence) = &mut entry.state else { unreachable!("only its block was set") };
        let (part, known) = (std::mem::take(&mut defence.part), defence.prepared | mine);
        self.locks.take(id, &part, table);
        entry.state = State::Prepared(InDoubt { part, known, ..InDoubt::default() });
        assert!(entry.all().has_all(mine), "this site votes on {id}, in which it takes no part");
        turn.out.batch.put(&row::participant_key(id), &entry.row());

        // From here on it may be in doubt; it asks when the deadline has passed, or soon, should the coordinator fall
        // silent.
        let deadline = u64::try_from(entry.deadline.saturating_sub(turn.here.now.wall)).unwrap_or(0);
        self.look_at(id, turn.here.now.mono + deadline.min(ASK) + 1);
        Vote::Prepared
    }

    /// Blocks new rights over what a part is to write until it is decided. A right that was issued meanwhile would
    /// promise a value that the part changes.
    fn block(&mut self, id: OperationId) {
        let entry = self.entries.get_mut(&id).expect("looked up by the caller");
        let State::Defending(defence) = &mut entry.state else { unreachable!("{id} is blocked before it is prepared") };
        assert!(!defence.is_blocked, "{id} would be blocked twice, and unblocked once");
        defence.is_blocked = true;
        defence.part.writes.iter().for_each(|(name, _)| self.issuer.block(name));
    }

    /// Looks again at a part that waits for rights: it is voted on, refused, or waits on.
    fn look_at_defending(&mut self, turn: &mut Turn, table: &Table, calls: &mut Calls, id: OperationId) {
        let entry = &self.entries[&id];
        let Some(Defence { patience, is_untimed, .. }) = entry.defence() else { return };
        let (patience, is_untimed) = (*patience, *is_untimed);
        let is_late = is_late(&turn.here, entry.deadline, is_untimed);
        let is_in_view = entry.part().is_some_and(|part| is_in_view(table.view, part, turn.here.site.incarnation));

        let denied = self.denied(&turn.here, id);
        let vote = match longest(self.waits(&turn.here, id)) {
            // What it read may have changed while it waited. Then that is what its client is told, and what it runs again for.
            Some(_) if is_in_view && let Some(abort) = self.never_holds(turn, table, calls, id) => {
                self.refuse_part(turn, id, abort)
            }
            // A treaty that it relies upon has not enough slack for it, and is not retracted for it.
            Some(_) if denied.is_some() => {
                let abort = denied.expect("looked at just now");
                self.refuse_part(turn, id, abort)
            }
            // The deadline is judged again when the part is voted on, not only when it came: it has waited since, and
            // what the transaction read elsewhere under rights may have changed.
            _ if is_late => {
                self.press_for_slack(turn, id);
                let abort = self.late(&turn.here, id);
                self.refuse_part(turn, id, abort)
            }
            // Its client will come again, and should not find the same right: what was asked for may have been lost.
            Some(wait) if turn.here.now.mono > patience => {
                self.ask_back(turn, id);
                self.press_for_slack(turn, id);
                let abort = wait.refusal(&turn.here);
                self.refuse_part(turn, id, abort)
            }
            // The wall clock may have been set back since it was asked: what the transaction rests on may be over,
            // though the deadline does not seem past. If this site doubts its clock, that will not be known soon.
            None if turn.here.trust() == Trust::Doubted && !is_untimed => {
                let abort = Abort { site: Some(turn.here.site.me), ..Abort::of(Cause::ClocksDisagree) };
                self.refuse_part(turn, id, abort)
            }
            None if !turn.here.agrees_with(id.site) => return self.look_at(id, turn.here.now.mono + ASK),
            // A treaty is to be retracted for it, if it may still be committed: that is seen in the next call, which has its rows.
            Some(_) if !is_in_view && self.leaves.is_doubted(id) => return self.look_at(id, turn.here.now.mono),
            Some(_) => {
                self.ask_back(turn, id);
                self.look_when_over(&turn.here, id);
                return self.ask_for_slack(turn, id);
            }
            None if is_in_view => self.vote(turn, table, calls, id),
            // It became due after the working set was named. The next call has its rows.
            None => return self.look_at(id, turn.here.now.mono),
        };
        self.tell_vote(turn, id, vote);
    }

    /// Tells a transaction's coordinator this site's vote.
    pub(super) fn tell_vote(&self, turn: &mut Turn, id: OperationId, vote: Vote) {
        turn.out.send(id.site, Message::Vote { id, vote });
    }

    /// Adds the rows of the parts and reads that a tick at this time will look at.
    pub(super) fn timers_need(&self, now: u64, incarnation: Incarnation, set: &mut KeySet) {
        for (_, timer) in self.due(now) {
            match timer {
                Timer::Part(id) => {
                    let defending = self.entries.get(&id).and_then(Participation::defence);
                    defending.into_iter().for_each(|defence| needs(&defence.part, incarnation, set));
                }
                Timer::Parked(token) => {
                    if let Some(Fetch { gets, scans, .. }) = self.claims.parked(token) {
                        need_reads(gets.iter().map(|(name, _)| &**name), scans.iter(), incarnation, set);
                    }
                }
                Timer::Claim(_) => {}
                Timer::Retraction(token) => self.retraction_needs(token, incarnation, set),
            }
        }
    }

    /// Carries out a part: every participant has prepared.
    pub(super) fn commit_part(&mut self, turn: &mut Turn, table: Option<&Table>, calls: &mut Calls, id: OperationId) {
        let mut entry = self.entries.remove(&id).expect("looked up by the caller");
        assert!(entry.stage() != Stage::Refused, "{id} was refused here, and is said to be committed");

        // The part is carried out before its locks go, and its stage changes in the same batch: no crash leaves its
        // effects without its row, or has it carried out twice.
        if let Some(part) = entry.part() {
            self.apply(turn, table, calls, part);
            self.let_go(turn.here.now.mono, id, &entry);
            self.look_ahead(turn, part);
        }

        // Nobody else has to do with it, and the outcome is in the same batch: nothing is kept.
        let known = entry.only(id, turn.here.site.me);
        entry.state = State::Committed { known };
        if known | entry.only(id, id.site) == entry.all() && id.site == turn.here.site.me {
            return;
        }

        // The row stays until every participant and the coordinator know. One in doubt would else ask here, be told
        // that the transaction was refused, and undo half of it.
        turn.out.batch.put(&row::participant_key(id), &entry.row());
        self.entries.insert(id, entry);
        self.look_at(id, turn.here.now.mono + TELL);
    }

    /// Refuses a part permanently.
    pub(super) fn refuse_part(&mut self, turn: &mut Turn, id: OperationId, abort: Abort) -> Vote {
        let mut entry = self.entries.remove(&id).expect("looked up by the caller");
        assert!(entry.stage() != Stage::Committed, "{id} is committed here, and is said to be refused");
        self.let_go(turn.here.now.mono, id, &entry);
        let was_prepared = entry.stage() == Stage::Prepared;
        entry.state = State::Refused { abort: Some(abort.clone()) };

        // The refusal is durable before it is told: another copy of `Prepare` must not be taken after a crash, when
        // others know that the transaction is aborted. Of this site's own transaction, in which nobody else takes part
        // and which was not prepared, nothing is kept: no message can ask for it again.
        let is_own = entry.participants.len() == 1 && id.site == turn.here.site.me;
        if !is_own || was_prepared {
            self.keep_refusal(turn, id, entry);
        } else {
            self.timers.remove(&(entry.look_at, Timer::Part(id)));
        }

        Vote::Refused(Box::new(abort))
    }

    /// Refuses a part permanently of which this site knows nothing.
    pub(super) fn refuse_unseen(
        &mut self,
        turn: &mut Turn,
        id: OperationId,
        (deadline, participants): (i64, Vec<(SiteId, Incarnation)>),
        abort: Abort,
    ) -> Vote {
        let is_own = participants.len() == 1 && id.site == turn.here.site.me;
        if !is_own {
            let state = State::Refused { abort: Some(abort.clone()) };
            self.keep_refusal(turn, id, Participation::new(deadline, participants, state));
        }

        Vote::Refused(Box::new(abort))
    }

    /// Keeps the refusal of a part until its deadline would refuse it.
    fn keep_refusal(&mut self, turn: &mut Turn, id: OperationId, entry: Participation) {
        assert!(entry.stage() == Stage::Refused, "{id} is kept as refused in stage {:?}", entry.stage());
        turn.out.batch.put(&row::participant_key(id), &entry.row());
        self.entries.insert(id, entry);
        self.look_when_past(&turn.here, id);
    }

    /// Gives back what a part holds: its locks, and its block on new rights.
    fn let_go(&mut self, now: u64, id: OperationId, entry: &Participation) {
        self.defending.remove(&id);

        // Each block is lifted exactly once: a part that waits may not have one yet, and one that is prepared always
        // has.
        let is_blocked = match &entry.state {
            State::Defending(defence) => defence.is_blocked,
            State::Prepared(doubt) => {
                self.locks.free(id, &doubt.part);
                self.wake_readers(now, &doubt.part);
                true
            }
            State::Committed { .. } | State::Refused { .. } => false,
        };
        if let Some(part) = entry.part() {
            self.leaves.let_go(&self.locks, now, id, part, matches!(entry.state, State::Prepared(_)));
            self.wake_for_slack(now);
        }

        if is_blocked {
            let writes = entry.part().into_iter().flat_map(|part| &part.writes);
            writes.for_each(|(name, _)| self.issuer.unblock(name));
        }
    }

    /// Carries out what a part writes, and registers what its calls depend on, in this call's batch.
    pub(super) fn apply(&mut self, turn: &mut Turn, table: Option<&Table>, calls: &mut Calls, part: &Part) {
        deleted_treaties(part).for_each(|name| tell_deleted(turn, table, name));
        for (name, change) in &part.writes {
            let number = self.next_version();
            let value = self.locks.change(turn.here.site.incarnation, table, name, change, number);
            put_row(&mut turn.out.batch, turn.here.site.incarnation, name, number, value.as_ref());
            self.issuer.note_write(turn.here.now, name);
            self.leaves.note_write(turn.here.now, &self.locks, name, value.as_ref());
        }
        self.leaves.keep(turn.here.now, turn.here.site.me.region, &mut turn.out.batch, part);
        self.wake_for_slack(turn.here.now.mono);

        // In the same batch as the writes: a write that came between them would not know that it has to cover the call.
        calls.note_part(&mut turn.out.batch, part);
    }

    /// Looks how long the slack lasts of what a part has written. Once it has let go: its own writes would else count twice.
    pub(super) fn look_ahead(&mut self, turn: &mut Turn, part: &Part) {
        part.writes.iter().for_each(|(name, _)| self.leaves.look_ahead(turn, &self.locks, name));
    }

    /// The coordinator, or another participant, tells the decision of a transaction.
    pub(super) fn decide_part(
        &mut self,
        turn: &mut Turn,
        calls: &mut Calls,
        from: SiteId,
        id: OperationId,
        commit: bool,
    ) {
        // This site's own coordinator does not wait for an answer: the decision is in the same batch.
        let is_own = from == turn.here.site.me;
        let Some(entry) = self.entries.get_mut(&id) else {
            // A refusal may overtake what asks to prepare. It needs no row here: without us it does not take effect.
            if !is_own {
                turn.out.send(from, Message::Decided { id });
            }
            return;
        };

        // A coordinator that hears it from here does not wait for this answer.
        let stage = entry.stage();
        let knew = is_own || stage == Stage::Committed && from == id.site;

        // A part only moves forward. To commit one that is not prepared would carry out what nobody locked or judged: a
        // decision like that can only come of a broken promise, here or at the sender, and this site stops instead.
        match (stage, commit) {
            (Stage::Prepared, true) => self.commit_part(turn, None, calls, id),
            (Stage::Prepared | Stage::Defending, false) => {
                self.refuse_part(turn, id, Abort::of(Cause::Withdrawn));
            }
            (Stage::Defending, true) => panic!("{id} is said to be committed, and is not prepared here"),
            (Stage::Committed | Stage::Refused, _) => {}
        }

        // The answer leaves when this call's batch is durable. The sender forgets the transaction on such answers, so
        // an earlier one could leave this site in doubt with nobody to ask.
        if commit {
            self.knows(turn, from, id);
        }

        if !knew {
            turn.out.send(from, Message::Decided { id });
        }
    }

    /// Another site knows that a transaction took effect.
    pub(super) fn knows(&mut self, turn: &mut Turn, from: SiteId, id: OperationId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let other = entry.only(id, from);
        if let State::Committed { known } = &mut entry.state {
            *known |= other;
            self.drop_if_settled(turn, id);
        }
    }

    /// Every participant knows that a transaction took effect, says its coordinator.
    pub(super) fn forget_part(&mut self, turn: &mut Turn, id: OperationId) {
        if let Some(State::Committed { known }) = self.entries.get_mut(&id).map(|entry| &mut entry.state) {
            *known = SiteSet(u64::MAX);
            self.drop_if_settled(turn, id);
        }
    }

    /// Sets the timer of an entry to when its deadline is past. At most `FARTHEST` ahead: a wall clock that is wrong
    /// may be set right meanwhile.
    fn look_when_past(&mut self, here: &Here, id: OperationId) {
        let shown = here.agreed().unwrap_or(here.now.wall).min(here.now.wall);
        let left = u64::try_from(self.entries[&id].deadline.saturating_sub(shown)).unwrap_or(0);
        self.look_at(id, here.now.mono + left.clamp(ASK, FARTHEST) + 1);
    }

    /// Forgets a part that was refused, or that everybody knows to be committed, once its deadline is past by this
    /// site's wall clock and by the time that a majority agrees has come.
    fn drop_if_settled(&mut self, turn: &mut Turn, id: OperationId) {
        let Some(entry) = self.entries.get(&id) else { return };
        if entry.stage() != Stage::Refused && !entry.is_known_by_all(id) {
            return;
        }

        // The row goes only when the mark refuses a late `Prepare` in its place, in the same batch. One clock alone
        // does not raise the mark: set by a clock that was ahead, it would refuse everything for as long, and could
        // never be lowered again, because nobody would know which refusals it stands for.
        let deadline = entry.deadline;
        if deadline < turn.here.now.wall && turn.here.agreed().is_some_and(|agreed| deadline <= agreed) {
            self.raise_deadline(deadline);
            assert!(self.numbers.deadline >= deadline, "{id} is forgotten, and a late message could prepare it again");
            turn.out.batch.delete(&row::participant_key(id));
            self.entries.remove(&id);
        } else {
            self.look_when_past(&turn.here, id);
        }
    }

    /// Does what is due for a transaction, by its stage.
    fn look_at_part(&mut self, turn: &mut Turn, table: &Table, calls: &mut Calls, at: u64, id: OperationId) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.look_at == at) else { return };

        match entry.state {
            State::Defending(_) => self.look_at_defending(turn, table, calls, id),
            State::Prepared(_) => self.ask_about(turn, id),
            State::Refused { .. } => self.drop_if_settled(turn, id),
            State::Committed { .. } if entry.is_known_by_all(id) => self.drop_if_settled(turn, id),
            // The coordinator may be gone for good, so every participant that committed tells the others, not the
            // coordinator alone.
            State::Committed { known } => {
                for site in self.others(&turn.here, id) {
                    if !known.has_all(self.entries[&id].only(id, site)) {
                        turn.out.send(site, Message::Decide { id, commit: true });
                    }
                }
                self.look_at(id, turn.here.now.mono + TELL);
            }
        }
    }

    /// The other participants and the coordinator; empty if nothing is kept of the transaction.
    pub(super) fn others(&self, here: &Here, id: OperationId) -> Vec<SiteId> {
        let Some(entry) = self.entries.get(&id) else { return Vec::new() };
        let sites = entry.participants.iter().map(|(site, _)| *site).filter(|site| *site != id.site);
        sites.chain([id.site]).filter(|site| *site != here.site.me).collect()
    }
}

/// Notes that what is validated at home was read: an object that many transactions read is worth a right.
fn part_read(issuer: &mut crate::warranty::Issuer, here: &Here, part: &Part) {
    part.reads.iter().for_each(|(name, _)| issuer.note_reads(here.now, name, 1));
}

/// True if a deadline may be past: it is no later than the first end of the rights on which the transaction rests. By how much this site's
/// clock may be slow no other one knows: each has an ε of its own. Where nothing rests on the time, the clock is taken as it is.
fn is_late(here: &Here, deadline: i64, is_untimed: bool) -> bool {
    deadline <= here.now.wall.saturating_add_unsigned(margin(here, is_untimed))
}

/// By how much earlier than its deadline a part is late.
fn margin(here: &Here, is_untimed: bool) -> u64 {
    if is_untimed { 0 } else { here.config.epsilon }
}

/// True if a part rests on a time that this site cannot judge: no clock was compared with its own yet, or the coordinator's shows another time.
fn is_unclear(here: &Here, prepare: &Prepare) -> bool {
    !prepare.is_untimed && (here.trust() == Trust::Unknown || !here.agrees_with(prepare.id.site))
}

/// True if a part rests on the time, and the others' clocks say that this site's is wrong. That the coordinator's agrees says nothing then:
/// the two may be wrong by as much.
fn is_doubted(here: &Here, prepare: &Prepare) -> bool {
    !prepare.is_untimed && here.trust() == Trust::Doubted
}

/// What a part waits for: rights in the order of its writes, then slack. Nothing, if it may be judged now.
fn waits(issuer: &mut Issuer, (leaves, locks): (&Leaves, &Locks), here: &Here, part: &Part) -> Vec<Wait> {
    let mut waits = Vec::new();
    for (name, _) in &part.writes {
        let Some(over_at) = issuer.over_at(here.now, name) else { continue };
        let past = issuer.past_over_at(here.now).map_or(0, |over| over.saturating_sub(here.now.mono));
        let rights = issuer.binding(here.now, name);

        // A holder that is up is asked, and answers within a round trip. One that is not up gives nothing up: its right runs to its
        // end. So does what an earlier life has issued: nobody can be asked for that.
        let lasts = rights.iter().map(|right| {
            let left = right.over_at(here.now).saturating_sub(here.now.mono);
            if here.is_reachable(right.holder) { here.round_trip(right.holder).min(left) } else { left }
        });
        let expected = lasts.max().unwrap_or(0).max(past);
        let holders = rights.iter().map(|right| right.holder).collect();
        let about = ObjectKey::new(here.site.me.region, name);
        waits.push(Wait { about, holders, over_at, expected });
    }
    leaves.waits(here, locks, part, &mut waits);
    waits
}
