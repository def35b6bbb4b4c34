//! A participant: the home of objects that a transaction reads or writes.
//!
//! ```text
//!   Prepare ──▶ rights over what it writes? ──no──▶ check ──▶ prepared ──▶ committed, refused
//!                    │ yes                            ▲ │
//!                    ▼                                │ └──fails──▶ refused
//!                defending: ask back or wait for ends ┘
//! ```
//!
//! While it defends, a part holds nothing but the bar on new rights; it is checked when no right is left. What is refused
//! once is refused for ever, by a row that stays until a transaction with its deadline would be refused anyway. A row of
//! one that took effect stays until all others know.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use super::coordinate::Coordinated;
use super::table::{Table, judged, need_head, need_heads_of, put_row};
use super::{Timer, Txns};
use crate::clock::{MILLISECOND, Now, SECOND};
use crate::id::{Incarnation, OperationId, SiteId};
use crate::machine::{KeySet, Reader, View};
use crate::object::message::{Fetch, Known, Message, Prepare, Vote};
use crate::object::{Abort, Cause, ObjectKey, Part, Rank};
use crate::right::{Start, WarrantyNumber};
use crate::turn::{Trust, Turn};
use crate::txn::row::{self, ParticipantRow};
use crate::warranty::{FARTHEST, Issued};

/// The most transactions in which a site takes part at a time, those that it has refused and not forgotten included.
const PARTS: usize = 262_144;
/// How often one who is in doubt asks.
const ASK: u64 = 250 * MILLISECOND;
/// How often one that took effect tells those who may not know.
const TELL: u64 = 2 * SECOND;
/// In [`Entry::known`]: the coordinator, where it does not take part itself.
pub(super) const COORDINATOR: u64 = 1 << 63;

/// A transaction in which this site takes part.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) deadline: i64,
    pub(super) participants: Vec<(SiteId, Incarnation)>,
    /// Prepared: which participants are known to be prepared. Committed: who is known to know.
    known: u64,
    /// Of whom it is durable at others that they have prepared; that this site has is known to those too.
    confirmed: u64,
    /// Which participants are known to have lost what they knew, and which know that one has.
    lost: u64,
    bereaved: u64,
    pub(super) stage: Stage,
    part: Part,
    /// Why it was refused, for one who asks again soon.
    abort: Option<Abort>,
    look_at: u64,
    asked: u32,
    /// Past this, on the monotonic clock, it waits for rights no longer. What waits is not durable, so nor is this.
    patience: u64,
    /// When its deadline is past on the monotonic clock, reckoned when this site was asked to prepare it, or started anew.
    late_at: u64,
    released: (Start, WarrantyNumber),
    /// Its program's place in the order of those that want the same objects. In memory only, as claims are.
    rank: Rank,
}

/// How far a participant is with its part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// It waits for rights of others to end.
    Defending,
    /// It is durable, and in doubt.
    Prepared,
    /// It is carried out.
    Committed,
    /// It never will be.
    Refused,
}

impl Stage {
    /// By the number that stands in its row. A part that is defended has none.
    pub(super) const DURABLE: [Stage; 3] = [Stage::Prepared, Stage::Committed, Stage::Refused];
}

impl Entry {
    /// Every bit that a participant may have.
    fn all(&self) -> u64 {
        (1 << self.participants.len()) - 1
    }

    /// Whether it is carried out, and everybody knows.
    pub(super) fn is_known_by_all(&self, id: OperationId) -> bool {
        let all = self.all() | self.bit(id, id.site);
        self.stage == Stage::Committed && self.known & all == all
    }

    fn position(&self, site: SiteId) -> Option<usize> {
        self.participants.iter().position(|(other, _)| *other == site)
    }

    fn bit(&self, id: OperationId, site: SiteId) -> u64 {
        match self.position(site) {
            Some(position) => 1 << position,
            None if site == id.site => COORDINATOR,
            None => 0,
        }
    }

    /// See [`Txns::fingerprint`].
    pub(super) fn fingerprint(&self, state: &mut impl Hasher) {
        let Self { deadline, participants, known, confirmed, lost, bereaved, stage, part, abort, look_at, .. } = self;
        (deadline, participants, known, confirmed, lost, bereaved, stage).hash(state);
        // What is in a part is given by its transaction.
        (part.writes.len(), part.reads.len(), abort.as_ref().map(|abort| abort.cause), *look_at > 0).hash(state);
    }

    fn row(&self) -> Vec<u8> {
        let stage = match self.stage {
            Stage::Defending => unreachable!("a part that is defended is not durable"),
            Stage::Prepared => 0,
            Stage::Committed => 1,
            Stage::Refused => 2,
        };
        let part = if self.stage == Stage::Prepared { self.part.clone() } else { Part::default() };
        let (deadline, participants) = (self.deadline, self.participants.clone());
        ParticipantRow { stage, deadline, participants, known: self.known, part }.encode()
    }
}

/// What storage a part needs to be checked and carried out: versions, and the numbers of counters, but no values. So a part
/// costs little to judge, however large what it read is.
pub(super) fn needs(part: &Part, incarnation: Incarnation, set: &mut KeySet) {
    part.reads.iter().for_each(|(name, _)| need_head(incarnation, name, set));
    part.scans.iter().for_each(|(span, numbers)| need_heads_of(incarnation, &judged(span, numbers.len()), set));
    let adds = part.writes.iter().filter(|(_, change)| change.is_add());
    adds.for_each(|(name, _)| need_head(incarnation, name, set));
}

/// Whether the view has all that.
fn is_in_view(view: &View, part: &Part, incarnation: Incarnation) -> bool {
    let mut set = KeySet::default();
    needs(part, incarnation, &mut set);
    set.heads.iter().all(|(key, _)| view.knows_head(key))
        && set.head_ranges.iter().all(|(range, _)| view.has_heads_of(range))
}

impl Txns {
    /// Takes a row of an earlier life in.
    pub(super) fn restore_participant(
        &mut self,
        id: OperationId,
        row: ParticipantRow,
        incarnation: Incarnation,
        reader: &dyn Reader,
    ) -> Result<(), crate::machine::ReadError> {
        let ParticipantRow { stage, deadline, participants, known, part } = row;
        let stage = Stage::DURABLE[usize::from(stage)];
        if stage == Stage::Prepared {
            let mut set = KeySet::default();
            needs(&Part { writes: part.writes.clone(), ..Part::default() }, incarnation, &mut set);
            let view = View::prepare(set, &crate::machine::Overlay::default(), reader)?;
            let table = Table {
                view: &view,
                site: self.me,
                incarnation,
                is_bereft: false,
                is_bound: false,
                vouchers: (&[], Now::default()),
            };
            self.locks.take(id, &part, &table);
            part.writes.iter().for_each(|(name, _)| self.backer.bar(name));
        }
        let entry = Entry { stage, known, part, ..Entry::new(deadline, participants) };
        self.entries.insert(id, entry);
        Ok(())
    }

    /// Prepares a part, if that can be; says what came of it.
    pub(super) fn prepare(&mut self, turn: &mut Turn, table: &Table, prepare: Prepare) -> Option<Vote> {
        if prepare.is_check {
            return Some(self.check_part(turn, table, &prepare));
        }
        let Prepare { id, deadline, participants, prepared, part, max_wait, released, rank, is_check: _ } = prepare;
        let refuse = |cause| Some(Vote::Refused(Box::new(Abort { site: Some(turn.site.me), ..Abort::of(cause) })));
        if let Some(entry) = self.entries.get_mut(&id) {
            return Some(match entry.stage {
                Stage::Defending => {
                    entry.known |= prepared;
                    self.waiting(turn, id)
                }
                Stage::Prepared => Vote::Prepared,
                Stage::Committed => Vote::Committed,
                Stage::Refused => Vote::Refused(Box::new(self.why_refused(id))),
            });
        }
        let me = (turn.site.me, turn.site.incarnation);
        if !participants.contains(&me) || participants.len() > 63 {
            // Another incarnation was asked, perhaps once before: what it answered is lost.
            turn.send_object(id.site, Message::Inquired { id, known: Known::Lost, prepared: 0 });
            return None;
        }
        if deadline <= self.numbers.deadline {
            return refuse(Cause::DeadlinePassed);
        }
        // To refuse a part would have to be durable, and to take it would rest on a clock that is known to be wrong, here or
        // there, or that was not compared yet. The coordinator asks again.
        let is_untimed = self.is_untimed(turn, id);
        if self.entries.len() >= PARTS || !is_untimed && (turn.trust == Trust::Unknown || !turn.agrees_with(id.site)) {
            turn.metrics.ignored += 1;
            return None;
        }

        let is_late = deadline <= turn.now.wall;
        let is_past = turn.agreed().is_some_and(|agreed| deadline <= agreed);
        if is_late && is_past {
            // It stays refused, even if the clock is set back.
            self.raise_deadline(deadline);
            return refuse(Cause::DeadlinePassed);
        }
        let mut entry = Entry::new(deadline, participants);
        // Nor is the mark raised to what a majority does not take as past: all others would be refused up to there. A row of its
        // own refuses this one, until that time has come.
        let is_far = deadline > turn.now.wall.saturating_add_unsigned(FARTHEST + 2 * turn.config.epsilon);
        // That the coordinator's clock agrees says nothing where this one is doubted: the two may be wrong by as much.
        let is_doubted = !is_untimed && turn.trust == Trust::Doubted;
        if is_late || is_far || is_doubted {
            self.entries.insert(id, entry);
            let cause = if is_far || is_doubted { Cause::ClocksDisagree } else { Cause::DeadlinePassed };
            return Some(self.refuse_part(turn, id, Abort { site: Some(turn.site.me), ..Abort::of(cause) }));
        }
        (entry.known, entry.part, entry.released, entry.rank) = (prepared, part, released, rank);
        entry.known |= entry.bit(id, turn.site.me);
        entry.patience = turn.now.mono.saturating_add(max_wait);
        entry.late_at = turn.now.mono.saturating_add(deadline.abs_diff(turn.now.wall));
        part_read(&mut self.backer, turn, &entry.part);
        self.give_up_released(id, &entry);
        self.entries.insert(id, entry);
        let waits = self.longest_wait(turn, id);
        match waits {
            None => Some(self.vote(turn, table, id)),
            Some((wait, abort)) if wait > max_wait => {
                // Its client will come again. Were rights not asked back for it, readers would renew them for ever.
                self.ask_back(turn, id);
                for (name, _) in &self.entries[&id].part.writes {
                    self.backer.give_respite(turn.now, name);
                }
                Some(self.refuse_part(turn, id, abort))
            }
            Some(_) => {
                turn.metrics.defended += 1;
                let entry = self.entries.get(&id).expect("inserted above");
                entry.part.writes.iter().for_each(|(name, _)| self.backer.bar(name));
                self.defending.insert(id);
                self.ask_back(turn, id);
                self.look_when_over(turn, id);
                Some(self.waiting(turn, id))
            }
        }
    }

    /// A coordinator that writes has given up its own rights over that; the message says so.
    fn give_up_released(&mut self, id: OperationId, entry: &Entry) {
        let (start, number) = entry.released;
        for (name, _) in &entry.part.writes {
            self.backer.give_up(name, id.site, start, number);
        }
    }

    /// How long rights are expected to make a part wait, and how that would be refused; none if there are none.
    fn longest_wait(&mut self, turn: &Turn, id: OperationId) -> Option<(u64, Abort)> {
        let mut longest: Option<(u64, Abort)> = None;
        let entry = self.entries.get(&id).expect("looked up by the caller");
        for (name, _) in &entry.part.writes {
            let Some(over_at) = self.backer.over_at(turn.now, name) else { continue };
            let left = over_at.saturating_sub(turn.now.mono);
            let past = self.backer.past_over_at(turn.now).map_or(0, |over| over.saturating_sub(turn.now.mono));
            let rights = self.backer.binding(turn.now, name);
            let holders: Vec<SiteId> = rights.iter().map(|right| right.holder).collect();
            // Who is not up does not give it up.
            let waits = rights.iter().map(|right| {
                let left = right.over_at(turn.now).saturating_sub(turn.now.mono);
                if turn.is_reachable(right.holder) { turn.round_trip(right.holder).min(left) } else { left }
            });
            let wait = waits.max().unwrap_or(0).max(past);
            if longest.as_ref().is_none_or(|(most, _)| wait > *most) {
                let until = Some(turn.now.wall.saturating_add_unsigned(left));
                let about = Abort::about(Cause::WouldWait, turn.site.me, name);
                longest = Some((wait, Abort { holders, until, ..about }));
            }
        }
        longest
    }

    /// Asks the holders of rights over what a part writes to give them up, where that is sooner than their ends.
    fn ask_back(&mut self, turn: &mut Turn, id: OperationId) {
        let entry = self.entries.get(&id).expect("looked up by the caller");
        let mut asked: BTreeMap<(SiteId, Start), Vec<(String, WarrantyNumber)>> = BTreeMap::new();
        for (name, _) in &entry.part.writes {
            let lasts_longer = |right: &Issued| {
                let left = right.over_at(turn.now).saturating_sub(turn.now.mono);
                left >= turn.round_trip(right.holder)
            };
            for right in self.backer.ask_back(turn.now, name, lasts_longer) {
                let rights = asked.entry((right.holder, right.start)).or_default();
                rights.push((name.clone(), right.number));
            }
        }
        for ((to, holder), rights) in asked {
            turn.metrics.revocations += rights.len() as u64;
            turn.send_object(to, Message::Revoke { holder, rights });
        }
    }

    /// Holders gave rights up: parts that waited for them may be checked.
    pub(super) fn given_up(&mut self, turn: &Turn, from: SiteId, holder: Start, rights: Vec<(String, WarrantyNumber)>) {
        for (name, number) in &rights {
            self.backer.give_up(name, from, holder, *number);
        }
        let is_concerned = |id: &&OperationId| {
            let writes = &self.entries[*id].part.writes;
            writes.iter().any(|(name, _)| rights.iter().any(|(given_up, _)| given_up == name))
        };
        let concerned: Vec<OperationId> = self.defending.iter().filter(is_concerned).copied().collect();
        for id in concerned {
            self.look_at(id, turn.now.mono);
        }
    }

    /// The site serves anew: its monotonic clock is another one.
    pub(super) fn resume_part(&mut self, turn: &Turn, id: OperationId) {
        let entry = self.entries.get_mut(&id).expect("looked up by the caller");
        entry.late_at = turn.now.mono.saturating_add(FARTHEST);
        self.look_at(id, turn.now.mono);
    }

    pub(super) fn look_at(&mut self, id: OperationId, at: u64) {
        let entry = self.entries.get_mut(&id).expect("looked up by the caller");
        entry.look_at = at;
        self.timers.insert((at, Timer::Part(id)));
    }

    /// Looks again when the rights over what a part writes are over, or asks for them once more.
    fn look_when_over(&mut self, turn: &Turn, id: OperationId) {
        let over = self.rights_over_at(turn, id);
        let entry = self.entries.get(&id).expect("looked up by the caller");
        let deadline = u64::try_from(entry.deadline.saturating_sub(turn.now.wall)).unwrap_or(0);
        let again = turn.now.mono + (2 * turn.longest_round_trip()).max(ASK);
        let late = (turn.now.mono + deadline + 1).min(entry.patience.saturating_add(1));
        let over = over.unwrap_or(turn.now.mono).min(again).min(late);
        self.look_at(id, over);
    }

    /// When the last right over what a part writes will be over, on the monotonic clock.
    fn rights_over_at(&mut self, turn: &Turn, id: OperationId) -> Option<u64> {
        let writes = self.entries[&id].part.writes.iter();
        writes.filter_map(|(name, _)| self.backer.over_at(turn.now, name)).max()
    }

    fn waiting(&mut self, turn: &Turn, id: OperationId) -> Vote {
        let left = self.rights_over_at(turn, id).map_or(0, |over| over.saturating_sub(turn.now.mono));
        let until = turn.now.wall.saturating_add_unsigned(left);
        let longest = self.longest_wait(turn, id).map(|(_, abort)| (abort.key, abort.holders));
        let (key, holders) = longest.unwrap_or_default();
        Vote::Waiting { name: key.map(|key| key.name).unwrap_or_default(), holders, until }
    }

    /// That the deadline of a part that is defended has passed, and for whose rights it waited.
    fn late(&mut self, turn: &Turn, id: OperationId) -> Abort {
        let about = self.longest_wait(turn, id).map(|(_, abort)| abort);
        let about = about.unwrap_or_else(|| Abort { site: Some(turn.site.me), ..Abort::of(Cause::DeadlinePassed) });
        Abort { cause: Cause::DeadlinePassed, ..about }
    }

    /// Why a part was refused here, as far as that is still known.
    pub(super) fn why_refused(&self, id: OperationId) -> Abort {
        self.entries.get(&id).and_then(|entry| entry.abort.clone()).unwrap_or_else(|| Abort::of(Cause::Withdrawn))
    }

    /// Judges a part of a transaction that writes nothing anywhere. All its reads were answered before any of its parts is
    /// checked. So at the time between, everything that it read was as it was read: what is still there now has not changed
    /// since, and no write of it is prepared that may have taken effect elsewhere. Nothing needs to be locked or kept.
    fn check_part(&mut self, turn: &mut Turn, table: &Table, prepare: &Prepare) -> Vote {
        let Prepare { deadline, participants, part, rank, .. } = prepare;
        self.end_claim(turn.now.mono, rank.nonce);
        let refuse = |cause| Vote::Refused(Box::new(Abort { site: Some(table.site), ..Abort::of(cause) }));
        if !participants.contains(&(turn.site.me, turn.site.incarnation)) || part.changes() {
            return refuse(Cause::Changed);
        }
        // Rights that it rests on may be over.
        if *deadline <= turn.now.wall {
            return refuse(Cause::DeadlinePassed);
        }
        part_read(&mut self.backer, turn, part);
        match self.locks.check(table, &self.dependents, part) {
            Ok(()) => Vote::Prepared,
            Err(abort) => Vote::Refused(Box::new(abort)),
        }
    }

    /// Judges a part as it would be carried out now: it must be the turn of its program, and what it read as it was.
    pub(super) fn judge(&mut self, turn: &Turn, table: &Table, rank: Rank, part: &Part) -> Result<(), Abort> {
        let barred = self.claims.in_the_way(rank, part);
        let barred = barred.map(|name| Abort::about(Cause::Busy, table.site, name));
        let judged = barred.map_or_else(|| self.locks.check(table, &self.dependents, part), Err);
        // It had its turn: what is prepared is locked, and what is refused is read again.
        self.end_claim(turn.now.mono, rank.nonce);
        judged
    }

    /// Checks a part over whose writes nobody holds a right.
    fn vote(&mut self, turn: &mut Turn, table: &Table, id: OperationId) -> Vote {
        let entry = &self.entries[&id];
        let (rank, part) = (entry.rank, entry.part.clone());
        if let Err(abort) = self.judge(turn, table, rank, &part) {
            return self.refuse_part(turn, id, abort);
        }
        let entry = self.entries.get_mut(&id).expect("looked up by the caller");
        if entry.participants.len() == 1 {
            self.commit_part(turn, Some(table), id);
            return Vote::Committed;
        }
        // One that had to wait is barred since.
        if entry.look_at == 0 {
            entry.part.writes.iter().for_each(|(name, _)| self.backer.bar(name));
        }
        entry.stage = Stage::Prepared;
        self.defending.remove(&id);
        self.locks.take(id, &entry.part, table);
        turn.batch.put(&row::participant_key(id), &entry.row());
        let deadline = u64::try_from(entry.deadline.saturating_sub(turn.now.wall)).unwrap_or(0);
        self.look_at(id, turn.now.mono + deadline.min(ASK) + 1);
        Vote::Prepared
    }

    /// A part whose rights were asked back is looked at again.
    fn look_at_defending(&mut self, turn: &mut Turn, table: &Table, id: OperationId) {
        let entry = self.entries.get(&id).expect("looked up by the caller");
        let (is_late, patience) = (entry.deadline <= turn.now.wall, entry.patience);
        let vote = match self.longest_wait(turn, id) {
            _ if is_late => {
                let abort = self.late(turn, id);
                self.refuse_part(turn, id, abort)
            }
            Some((_, abort)) if turn.now.mono > patience => self.refuse_part(turn, id, abort),
            // The wall clock may have been set back since it was asked: what the transaction rests on may be over, though the
            // deadline does not seem past. If this site doubts its clock, that will not be known soon.
            None if turn.trust == Trust::Doubted && !self.is_untimed(turn, id) => {
                let abort = Abort { site: Some(turn.site.me), ..Abort::of(Cause::ClocksDisagree) };
                self.refuse_part(turn, id, abort)
            }
            None if !turn.agrees_with(id.site) => return self.look_at(id, turn.now.mono + ASK),
            Some(_) => {
                self.ask_back(turn, id);
                return self.look_when_over(turn, id);
            }
            None if is_in_view(table.view, &self.entries[&id].part, turn.site.incarnation) => {
                self.vote(turn, table, id)
            }
            None => return self.look_at(id, turn.now.mono),
        };
        self.tell_vote(turn, id, vote);
    }

    /// Whether nothing rests on a transaction's deadline: it is this site's own ([`Coordinated::is_untimed`]).
    fn is_untimed(&self, turn: &Turn, id: OperationId) -> bool {
        id.site == turn.site.me && self.coordinated.get(&id).is_some_and(Coordinated::is_untimed)
    }

    fn tell_vote(&mut self, turn: &mut Turn, id: OperationId, vote: Vote) {
        if id.site == turn.site.me {
            self.voted(turn, turn.site.me, id, vote);
        } else {
            turn.send_object(id.site, Message::Vote { id, vote });
        }
    }

    /// Which parts and calls a tick at this time will look at, for its working set.
    pub fn tick_needs(&self, now: u64, incarnation: Incarnation, set: &mut KeySet) {
        for (_, timer) in self.timers.iter().take_while(|(at, _)| *at <= now).take(super::AT_ONCE) {
            match timer {
                Timer::Part(id) => {
                    let defending = self.entries.get(id).filter(|entry| entry.stage == Stage::Defending);
                    defending.into_iter().for_each(|entry| needs(&entry.part, incarnation, set));
                }
                Timer::Parked(token) => {
                    if let Some(Fetch { gets, scans, .. }) = self.claims.parked(*token) {
                        super::read::needs(gets.iter().map(|(name, _)| &**name), scans.iter(), incarnation, set);
                    }
                }
                Timer::Calls => self.calls_need(incarnation, set),
                Timer::Notes => self.notes_need(incarnation, set),
                _ => {}
            }
        }
    }

    /// Carries out a part: every participant has prepared.
    pub(super) fn commit_part(&mut self, turn: &mut Turn, table: Option<&Table>, id: OperationId) {
        let mut entry = self.entries.remove(&id).expect("looked up by the caller");
        match entry.stage {
            Stage::Prepared | Stage::Defending => {
                self.apply(turn, table, &entry.part);
                self.let_go(turn.now.mono, id, &entry);
            }
            Stage::Committed => {}
            Stage::Refused => panic!("{id} was refused here, and is said to be committed"),
        }
        entry.part = Part::default();
        entry.stage = Stage::Committed;
        // Those who take part and the coordinator must come to know.
        entry.known = entry.bit(id, turn.site.me);
        if entry.known | entry.bit(id, id.site) == entry.all() && id.site == turn.site.me {
            // Nobody else has to do with it, and the outcome is in the same batch.
            return;
        }
        turn.batch.put(&row::participant_key(id), &entry.row());
        self.entries.insert(id, entry);
        self.look_at(id, turn.now.mono + TELL);
    }

    /// A part is refused for ever.
    pub(super) fn refuse_part(&mut self, turn: &mut Turn, id: OperationId, abort: Abort) -> Vote {
        let mut entry = self.entries.remove(&id).expect("looked up by the caller");
        assert!(entry.stage != Stage::Committed, "{id} is committed here, and is said to be refused");
        self.let_go(turn.now.mono, id, &entry);
        let was_prepared = entry.stage == Stage::Prepared;
        entry.part = Part::default();
        entry.stage = Stage::Refused;
        entry.abort = Some(abort.clone());
        let is_own = entry.participants.len() == 1 && id.site == turn.site.me;
        if !is_own || was_prepared {
            turn.batch.put(&row::participant_key(id), &entry.row());
            self.entries.insert(id, entry);
            self.look_when_past(turn, id);
        }
        Vote::Refused(Box::new(abort))
    }

    /// Gives back what a part holds.
    fn let_go(&mut self, now: u64, id: OperationId, entry: &Entry) {
        self.defending.remove(&id);
        if entry.stage == Stage::Prepared {
            self.locks.free(id, &entry.part);
            self.wake_readers(now, &entry.part);
        }
        let is_barred = match entry.stage {
            Stage::Prepared => true,
            // Barred only if it had to wait; it has a timer then.
            Stage::Defending => entry.look_at > 0,
            _ => false,
        };
        if is_barred {
            entry.part.writes.iter().for_each(|(name, _)| self.backer.unbar(name));
        }
    }

    /// Changes what a part changes.
    pub(super) fn apply(&mut self, turn: &mut Turn, table: Option<&Table>, part: &Part) {
        for (name, change) in &part.writes {
            let number = self.next_version();
            let value = self.locks.change(turn.site.incarnation, table, name, change, number);
            put_row(&mut turn.batch, turn.site.incarnation, name, number, value.as_ref());
            self.backer.note_write(turn.now, name);
        }
        for call in &part.forgets {
            self.dependents.forget(&mut turn.batch, call);
        }
        for (subject, call) in &part.depends {
            self.dependents.register(call, subject);
        }
        let calls: BTreeSet<&ObjectKey> = part.depends.iter().map(|(_, call)| call).collect();
        calls.into_iter().for_each(|call| self.dependents.write(&mut turn.batch, call));
    }

    /// A coordinator, or another participant, knows that the transaction is decided.
    pub(super) fn decide_part(&mut self, turn: &mut Turn, from: SiteId, id: OperationId, commit: bool) {
        let Some(entry) = self.entries.get_mut(&id) else {
            // A refusal may overtake what asks to prepare. It needs no row here: without us it does not take effect.
            return turn.send_object(from, Message::Decided { id });
        };
        // A coordinator that hears it from here does not wait for this answer.
        let knew = entry.stage == Stage::Committed && from == id.site;
        match (entry.stage, commit) {
            (Stage::Prepared, true) => self.commit_part(turn, None, id),
            (Stage::Prepared | Stage::Defending, false) => {
                self.refuse_part(turn, id, Abort::of(Cause::Withdrawn));
            }
            (Stage::Defending, true) => panic!("{id} is said to be committed, and is not prepared here"),
            (Stage::Committed | Stage::Refused, _) => {}
        }
        if commit {
            self.knows(turn, from, id);
        }
        if !knew {
            turn.send_object(from, Message::Decided { id });
        }
    }

    /// Another knows that a transaction took effect.
    pub(super) fn knows(&mut self, turn: &mut Turn, from: SiteId, id: OperationId) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.stage == Stage::Committed) else { return };
        entry.known |= entry.bit(id, from);
        self.drop_if_settled(turn, id);
    }

    /// Everybody knows.
    pub(super) fn forget_part(&mut self, turn: &mut Turn, id: OperationId) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.stage == Stage::Committed) else { return };
        entry.known = u64::MAX;
        self.drop_if_settled(turn, id);
    }

    /// Looks again when the deadline is past; the wall clock may be set right meanwhile.
    fn look_when_past(&mut self, turn: &Turn, id: OperationId) {
        let shown = turn.agreed().unwrap_or(turn.now.wall).min(turn.now.wall);
        let left = u64::try_from(self.entries[&id].deadline.saturating_sub(shown)).unwrap_or(0);
        self.look_at(id, turn.now.mono + left.clamp(ASK, FARTHEST) + 1);
    }

    /// Removes what is known by all, once what asks to prepare it again would be refused by its deadline: by the wall clock, and
    /// by the time that a majority agrees has come. A mark that a clock set which was ahead would refuse everything for as long
    /// as that was, and could never be lowered: nobody would know what it stands for.
    fn drop_if_settled(&mut self, turn: &mut Turn, id: OperationId) {
        let Some(entry) = self.entries.get(&id) else { return };
        if entry.stage != Stage::Refused && !entry.is_known_by_all(id) {
            return;
        }
        let deadline = entry.deadline;
        if deadline < turn.now.wall && turn.agreed().is_some_and(|agreed| deadline <= agreed) {
            self.raise_deadline(deadline);
            turn.batch.delete(&row::participant_key(id));
            self.entries.remove(&id);
        } else {
            self.look_when_past(turn, id);
        }
    }

    /// The time has come to do something about a transaction.
    pub(super) fn look_at_part(&mut self, turn: &mut Turn, table: &Table, at: u64, id: OperationId) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.look_at == at) else { return };
        match entry.stage {
            Stage::Defending => self.look_at_defending(turn, table, id),
            Stage::Prepared => self.ask_about(turn, id),
            Stage::Refused => self.drop_if_settled(turn, id),
            Stage::Committed => {
                if !entry.is_known_by_all(id) {
                    for site in self.others(turn, id) {
                        let entry = &self.entries[&id];
                        if entry.known & entry.bit(id, site) == 0 {
                            turn.send_object(site, Message::Decide { id, commit: true });
                        }
                    }
                    self.look_at(id, turn.now.mono + TELL);
                } else {
                    self.drop_if_settled(turn, id);
                }
            }
        }
    }

    /// The other participants and the coordinator; nobody if nothing is kept of the transaction.
    fn others(&self, turn: &Turn, id: OperationId) -> Vec<SiteId> {
        let Some(entry) = self.entries.get(&id) else { return Vec::new() };
        let sites = entry.participants.iter().map(|(site, _)| *site).filter(|site| *site != id.site);
        sites.chain([id.site]).filter(|site| *site != turn.site.me).collect()
    }

    /// Asks the others about a transaction that is in doubt: its deadline has passed, or nothing is heard of its coordinator.
    fn ask_about(&mut self, turn: &mut Turn, id: OperationId) {
        let entry = self.entries.get_mut(&id).expect("looked up by the caller");
        let coordinator = turn.peers.iter().find(|peer| peer.site == id.site);
        let is_orphan = coordinator.is_none_or(|peer| !peer.is_up(turn.now) || peer.incarnation != id.incarnation);
        // Its own transactions the site asks about as their coordinator.
        // A wall clock that was set back shows a deadline as ahead that is past.
        let is_late = entry.deadline < turn.now.wall || entry.late_at < turn.now.mono;
        if id.site != turn.site.me && (is_late || is_orphan) {
            entry.asked += 1;
            let (deadline, prepared, participants) = (entry.deadline, entry.known, entry.participants.clone());
            for site in self.others(turn, id) {
                let participants = participants.clone();
                turn.send_object(site, Message::Inquire { id, deadline, participants, prepared });
            }
        }
        let asked = self.entries[&id].asked;
        let wait = (ASK << asked.min(3)).max(turn.longest_round_trip());
        self.look_at(id, turn.now.mono + wait);
    }

    /// Takes note of those who are known to have prepared. It is durable before anybody is told of it: whoever asks may find
    /// out from the answer that the transaction took effect, show that, and lose its storage before anybody else has heard.
    /// For the same reason this site does not carry its part out on that knowledge: nobody else may have it.
    pub(super) fn note_prepared(&mut self, turn: &mut Turn, id: OperationId, prepared: u64) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.stage == Stage::Prepared) else { return };
        let before = entry.known;
        entry.known |= prepared & entry.all();
        if entry.known != before {
            turn.batch.put(&row::participant_key(id), &entry.row());
        }
    }

    /// Which participants are known here to have prepared.
    pub(super) fn prepared_known(&self, id: OperationId) -> u64 {
        self.entries.get(&id).filter(|entry| entry.stage == Stage::Prepared).map_or(0, |entry| entry.known)
    }

    /// What this site knows of a transaction. One that it has not prepared it refuses.
    pub(super) fn known_here(
        &mut self,
        turn: &mut Turn,
        id: OperationId,
        deadline: i64,
        participants: &[(SiteId, Incarnation)],
    ) -> Known {
        let Some((_, incarnation)) = participants.iter().find(|(site, _)| *site == turn.site.me) else {
            return Known::Nothing;
        };
        if *incarnation != turn.site.incarnation {
            return Known::Lost;
        }
        match self.entries.get(&id).map(|entry| (entry.stage, entry.lost)) {
            Some((Stage::Prepared, 0)) => Known::Prepared,
            Some((Stage::Prepared, _)) => Known::Bereaved,
            Some((Stage::Committed, _)) => Known::Committed,
            Some((Stage::Refused, _)) => Known::Refused,
            Some((Stage::Defending, _)) => {
                let is_late = deadline < turn.now.wall;
                let abort = if is_late { self.late(turn, id) } else { Abort::of(Cause::Withdrawn) };
                let vote = self.refuse_part(turn, id, abort);
                if id.site != turn.site.me {
                    turn.send_object(id.site, Message::Vote { id, vote });
                }
                Known::Refused
            }
            None if deadline <= self.numbers.deadline => Known::Refused,
            None => {
                let entry = Entry { stage: Stage::Defending, ..Entry::new(deadline, participants.to_vec()) };
                self.entries.insert(id, entry);
                self.refuse_part(turn, id, Abort::of(Cause::Withdrawn));
                Known::Refused
            }
        }
    }

    /// An answer to what was asked in doubt.
    pub(super) fn inquired(&mut self, turn: &mut Turn, from: SiteId, id: OperationId, known: Known, prepared: u64) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.stage == Stage::Prepared) else { return };
        let bit = entry.bit(id, from);
        match known {
            Known::Committed => return self.recover_part(turn, id, true),
            Known::Refused => return self.recover_part(turn, id, false),
            Known::Prepared | Known::Bereaved if bit & entry.all() != 0 => {
                entry.confirmed |= bit | prepared;
                if known == Known::Bereaved {
                    entry.bereaved |= bit;
                }
            }
            Known::Bereaved => entry.bereaved |= bit,
            Known::Lost => entry.lost |= bit,
            Known::Prepared | Known::Nothing => {}
        }
        entry.known |= entry.confirmed & entry.all();
        let mine = entry.bit(id, turn.site.me);
        if (entry.confirmed | mine) & entry.all() == entry.all() {
            return self.recover_part(turn, id, true);
        }
        if entry.lost == 0 {
            return;
        }
        // What a participant knew is lost. It may have known that all were prepared, and have shown it, if this site knows.
        let everybody = entry.all() | entry.bit(id, id.site);
        if entry.known == entry.all() {
            self.recover_part(turn, id, true);
        } else if (entry.lost | entry.bereaved | mine) & everybody == everybody {
            // Everybody who is left is in doubt, knows of the loss, and has told what it knows.
            self.recover_part(turn, id, false);
        }
    }

    /// The doubt is over.
    fn recover_part(&mut self, turn: &mut Turn, id: OperationId, commit: bool) {
        turn.metrics.doubts_resolved += 1;
        if commit {
            self.commit_part(turn, None, id);
        } else {
            self.refuse_part(turn, id, Abort::of(Cause::Withdrawn));
        }
        for site in self.others(turn, id) {
            turn.send_object(site, Message::Decide { id, commit });
        }
    }
}

impl Entry {
    fn new(deadline: i64, participants: Vec<(SiteId, Incarnation)>) -> Self {
        Self {
            deadline,
            participants,
            known: 0,
            confirmed: 0,
            lost: 0,
            bereaved: 0,
            stage: Stage::Defending,
            part: Part::default(),
            abort: None,
            look_at: 0,
            asked: 0,
            patience: 0,
            late_at: u64::MAX,
            released: Default::default(),
            rank: Rank::LAST,
        }
    }
}

/// What is validated at home is read there.
fn part_read(backer: &mut crate::warranty::Backer, turn: &Turn, part: &Part) {
    part.reads.iter().for_each(|(name, _)| backer.note_reads(turn.now, name, 1));
}
