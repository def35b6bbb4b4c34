//! A coordinator: the site that a client asked to commit.
//!
//! It sorts a transaction by home, leaves out the reads that live warranties prove, and counts what is left:
//!
//! | left | phases | what happens |
//! | --- | --- | --- |
//! | nothing, or reads at this site | 0 | judged here, now |
//! | one site | 1 | that site checks and carries out at once |
//! | several | 2 | each prepares; it is committed when all have |
//!
//! Its own part is prepared first, and the others are told so when they are asked. So nobody depends on the
//! coordinator's storage: were it asked for its own part last, it could tell its client and lose its disk before
//! anybody else has heard that all were prepared.
//!
//! It decides nothing that the participants have not: a transaction is committed exactly when every participant has
//! durably prepared it in time. Its own record, made durable before the first message leaves, says only whom to ask.
//! When the deadline has passed it asks, which makes each participant that has not prepared refuse permanently.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use rustc_hash::FxHashMap;

use super::row::{self, CoordinatorRow};
use super::trace::Traces;
use crate::api::{Outcome, UnknownReason};
use crate::clock::{MILLISECOND, SECOND};
use crate::id::{Incarnation, OperationId, SessionId, SiteId, SiteSet};
use crate::object::message::{Known, Message, Prepare, Vote};
use crate::object::trace::{End, Step};
use crate::object::{Abort, Cause, Home, ObjectKey, Part, Rank};
use crate::right::{Start, WarrantyNumber};
use crate::turn::{Here, Ticket, Trust, Turn};

/// The most transactions that a site coordinates at a time.
const COORDINATED: usize = 65_536;
/// The most bytes of parts that participants are to prepare, of all transactions that are undecided here. One that is slow to answer
/// must not have this site keep more.
const ASKED_BYTES: usize = 256 << 20;
/// The time beyond its own timeout after which a transaction's client is told that it is undecided, in microseconds.
const PATIENCE: u64 = 2 * SECOND;
/// The shortest time between two questions about one transaction, in microseconds.
const AGAIN: u64 = 50 * MILLISECOND;
/// The most transactions that one call looks at.
const LOOKED_AT: usize = 128;
/// Once it has told so many bytes of parts again, a call looks at no more of them.
const TOLD_BYTES: usize = 16 << 20;
/// The number of times that an abort is told to a participant that does not confirm it. After that, one in doubt asks.
const TELLS: u32 = 4;
/// The longest time between two tellings of a decision, in microseconds.
const TELL: u64 = 10 * SECOND;

/// A transaction that this site coordinates. Sets of participants are bits, by their position in `participants`.
#[derive(Clone, Debug)]
pub(super) struct Coordination {
    /// The participants, each in the incarnation that is asked.
    pub(super) participants: Vec<(SiteId, Incarnation)>,
    /// The end of the time in which participants may prepare it, in microseconds since 1970.
    deadline: i64,
    /// True if it writes nothing: its parts are only checked, nobody keeps anything of it, and nobody needs to be told.
    is_check: bool,
    /// True if no part of it writes anything.
    only_reads: bool,
    /// The parts that the participants are asked to prepare; none after a restart, when its outcome can only be found
    /// out.
    asks: Option<Asks>,
    /// The answers of the participants until now.
    votes: Votes,
    /// The rights that it rests on, pinned until it is decided; empty from then on.
    rests: Vec<ObjectKey>,
    /// Its row.
    record: Record,
    /// The timer that counts, in monotonic microseconds.
    look_at: u64,
    /// The number of times that a timer was set since it began, or since it was decided.
    tries: u32,
    /// The monotonic time at which its client is told that it is undecided; none once it was told.
    patience: Option<u64>,
    /// The decision (true: committed), and the participants that know it; none while it is undecided.
    decided: Option<(bool, SiteSet)>,
}

/// The parts that the participants are asked to prepare, by position.
#[derive(Clone, Debug)]
struct Asks {
    /// One part for each participant.
    parts: Vec<Part>,
    /// For each part, the highest number of the rights over what it writes that this site has given up.
    released: Vec<WarrantyNumber>,
    /// The longest time that its writes may wait for rights of other sites, in microseconds.
    max_wait: u64,
    /// The program's place in the order of those that want the same objects.
    rank: Rank,
    /// About the size of the parts.
    bytes: usize,
}

/// The answers of the participants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Votes {
    /// The participants that have prepared.
    prepared: SiteSet,
    /// The participants that have lost what they knew.
    lost: SiteSet,
    /// The participants that know of a loss.
    know_of_loss: SiteSet,
    /// The participants that have carried it out before it was decided here.
    informed: SiteSet,
}

/// The row of a transaction.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// True while there is a row: from when the first participant is asked that keeps something of it.
    is_durable: bool,
    /// The session's mark when the operation came; above its sequence once nobody waits for it any more.
    low: u64,
    /// The digest of the operation's content.
    digest: u64,
}

impl Coordination {
    /// The position of a site among the participants.
    fn position(&self, site: SiteId) -> Option<usize> {
        self.participants.iter().position(|(other, _)| *other == site)
    }

    /// All participants.
    fn all(&self) -> SiteSet {
        SiteSet::first(self.participants.len())
    }

    /// See [`super::Txns::fingerprint`].
    pub(super) fn fingerprint(&self, state: &mut impl Hasher) {
        let Self { participants, asks, votes, deadline, record, decided, .. } = self;
        (participants, asks.is_some(), votes, deadline, record.is_durable, decided).hash(state);

        // Tries change what is done only while an abort is told, which is told a few times and no more.
        let tries = if matches!(decided, Some((false, _))) { self.tries.min(TELLS + 1) } else { 0 };
        (self.patience.is_some(), tries).hash(state);
    }

    /// True if every participant is known to have prepared.
    fn are_all_prepared(&self) -> bool {
        self.votes.prepared == self.all()
    }

    /// Its row.
    fn row(&self) -> CoordinatorRow {
        CoordinatorRow {
            low: self.record.low,
            digest: self.record.digest,
            deadline: self.deadline,
            participants: self.participants.clone(),
            is_committed: matches!(self.decided, Some((true, _))),
            only_reads: self.only_reads,
        }
    }
}

/// A transaction that ended, for the other rooms of this site.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    /// The transaction.
    pub(super) id: OperationId,
    /// The rights that it rested on: no longer pinned.
    pub(super) rests: Vec<ObjectKey>,
    /// The reason of its abort, if it was aborted.
    pub(super) abort: Option<Abort>,
    /// True if no other site was asked, so that nothing of this site's part needs to be kept.
    pub(super) is_retracted: bool,
}

/// A transaction whose phases are to begin.
pub(super) struct Begun {
    /// The transaction.
    pub(super) id: OperationId,
    /// The part of each participant, in ascending order of sites.
    pub(super) parts: Vec<(SiteId, Incarnation, Part)>,
    /// For each part, the highest number of the rights over what it writes that this site has given up.
    pub(super) released: Vec<WarrantyNumber>,
    /// The rights that it rests on.
    pub(super) rests: Vec<ObjectKey>,
    /// The end of the time in which it may be prepared, in microseconds since 1970.
    pub(super) deadline: i64,
    /// The longest time that its writes may wait for rights, in microseconds.
    pub(super) max_wait: u64,
    /// The time after which its client is to hear something, in microseconds.
    pub(super) timeout: u64,
    /// The program's place in the order of those that want the same objects.
    pub(super) rank: Rank,
    /// The session's mark and the digest of its operation.
    pub(super) marks: (u64, u64),
}

/// The transactions that this site coordinates.
#[derive(Clone, Debug, Default)]
pub(super) struct Coordinator {
    /// The site's start: rights that it gives up were issued to that start.
    start: Start,
    /// The transactions under way, and the decided ones of which some participant is not known to know.
    pub(super) coordination: FxHashMap<OperationId, Coordination>,
    /// The sum of what the participants of those that are undecided are asked to prepare, in bytes; about [`ASKED_BYTES`] at most.
    asked_bytes: usize,
    /// What each participant said and when, for those who ask why a transaction took long or was aborted.
    pub(super) traces: Traces,
    /// When each transaction is looked at, in monotonic microseconds. `Coordination::look_at` names the entry that
    /// counts.
    timers: BTreeSet<(u64, OperationId)>,
    /// The transactions that ended in this call, until the other rooms have been told.
    pub(super) ended: Vec<Ended>,
}

impl Coordinator {
    /// The site serves, in this start: what an earlier life left undecided is asked about.
    pub(super) fn resume(&mut self, here: &Here, start: Start) {
        self.start = start;
        let mut ids: Vec<OperationId> = self.coordination.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.look_soon(here, id);
        }
    }

    /// The keys of its rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = Vec<u8>> {
        self.coordination.keys().map(|id| row::coordinator_key(id.session, id.sequence).to_vec())
    }

    /// The earliest time at which something comes due, in monotonic microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due, at most [`LOOKED_AT`] things a call, and few that are large: what is asked of participants is told again.
    pub(super) fn tick(&mut self, turn: &mut Turn) {
        let due = self.timers.iter().copied().take_while(|(at, _)| *at <= turn.here.now.mono);
        let due: Vec<(u64, OperationId)> = due.take(LOOKED_AT).collect();
        let mut told = 0;
        for (at, id) in due {
            let asks = self.coordination.get(&id).and_then(|coordination| coordination.asks.as_ref());
            told += asks.map_or(0, |asks| asks.bytes);
            self.timers.remove(&(at, id));
            self.look_at(turn, at, id);
            if told > TOLD_BYTES {
                break;
            }
        }
    }

    /// Restores the row of a transaction of an earlier life.
    pub(super) fn restore(&mut self, me: SiteId, id: OperationId, row: CoordinatorRow) {
        let CoordinatorRow { deadline, participants, is_committed, low, digest, only_reads } = row;

        // The row is only a hint: it says whom to ask. The votes that the earlier life had heard are gone with it, and
        // each participant is asked again, because the decision is with them. A row that says committed is true
        // permanently.
        let own = participants.iter().position(|(site, _)| *site == me).map_or(SiteSet::default(), SiteSet::of);
        let coordination = Coordination {
            participants,
            deadline,
            is_check: false,
            only_reads,
            asks: None,
            votes: Votes::default(),
            rests: Vec::new(),
            record: Record { is_durable: true, low, digest },
            look_at: 0,
            tries: 0,
            patience: None,
            decided: is_committed.then_some((true, own)),
        };
        self.coordination.insert(id, coordination);
    }

    /// Nobody waits for a transaction any more: its session ended, or moved on. An undecided one goes on, and so does
    /// its row, which says so by a mark above its sequence.
    pub(super) fn leave_alone(&mut self, turn: &mut Turn, id: OperationId) {
        // A committed one has said so in its row already. An aborted one keeps its row until the others have been told.
        let is_committed = |coordination: &Coordination| matches!(coordination.decided, Some((true, _)));
        let Some(left) = self.coordination.get_mut(&id).filter(|coordination| !is_committed(coordination)) else {
            return;
        };

        // Without this mark, a start would take it for an operation that waits, and open its session again. The other
        // outcomes of that session are gone: an operation that is repeated in it would be carried out a second time.
        (left.record.low, left.record.digest) = (id.sequence.saturating_add(1), 0);
        if left.record.is_durable {
            turn.out.batch.put(&row::coordinator_key(id.session, id.sequence), &left.row().encode());
        }
    }

    /// A session has ended: none of its transactions opens it again at a start.
    pub(super) fn leave_session(&mut self, turn: &mut Turn, session: SessionId) {
        let mut left: Vec<OperationId> = self.coordination.keys().filter(|id| id.session == session).copied().collect();
        left.sort_unstable();
        for id in left {
            self.leave_alone(turn, id);
        }
    }

    /// True if a transaction is under way here, undecided.
    fn is_undecided(&self, id: OperationId) -> bool {
        self.coordination.get(&id).is_some_and(|coordination| coordination.decided.is_none())
    }

    /// True if nothing rests on the deadline of a transaction under way: one site alone takes part, and it rests on no
    /// site's rights.
    fn is_untimed(&self, id: OperationId) -> bool {
        let coordination = self.coordination.get(&id);
        coordination.is_some_and(|coordination| coordination.participants.len() == 1 && coordination.rests.is_empty())
    }

    /// The rights on which a transaction under way rests, and its deadline.
    pub(super) fn rests_of(&self, id: OperationId) -> Option<(&[ObjectKey], i64)> {
        self.coordination.get(&id).map(|coordination| (&coordination.rests[..], coordination.deadline))
    }

    /// Admits phases over these parts, by reach, clocks and room; then they count among what waits at this site.
    pub(super) fn admit(&self, turn: &mut Turn, parts: &[(SiteId, Incarnation, Part)]) -> Result<(), Abort> {
        // A participant that is not heard of would leave the parts of the others locked until the deadline, for
        // nothing.
        let here = &turn.here;
        let is_there = |site: SiteId| here.is_reachable(site) && here.offset_of(site).is_some();
        if let Some((site, ..)) = parts.iter().find(|(site, ..)| !is_there(*site)) {
            return Err(Abort { site: Some(*site), ..Abort::of(Cause::Unreachable) });
        }

        // A deadline means nothing to a site whose clock shows another time: it would be over for it already, or lie so
        // far ahead that the part stays locked, and known, for as long.
        let mut others = parts.iter().map(|(site, ..)| *site).filter(|site| *site != here.site.me);
        if let Some(site) = others.find(|site| here.trust() != Trust::Trusted || !here.agrees_with(*site)) {
            return Err(Abort { site: Some(site), ..Abort::of(Cause::ClocksDisagree) });
        }

        // Last, because it takes a place: what is refused for another reason must not keep others out.
        if self.coordination.len() >= COORDINATED || self.asked_bytes >= ASKED_BYTES || !turn.out.admit() {
            return Err(Abort::of(Cause::Overloaded));
        }

        Ok(())
    }

    /// Begins the phases of a transaction: asks this site itself to prepare, if it takes part, or else the others.
    pub(super) fn start_phases(&mut self, turn: &mut Turn, begun: Begun) {
        let Begun { id, parts, released, rests, deadline, max_wait, timeout, rank, marks: (low, digest) } = begun;
        assert!(
            parts.len() == released.len(),
            "{id} has {} parts, and {} numbers of rights",
            parts.len(),
            released.len()
        );
        let me = turn.here.site.me;
        let participants = parts.iter().map(|(site, incarnation, _)| (*site, *incarnation)).collect();

        // What only reads is checked by each home at an instant of its own, which proves that nothing has changed meanwhile: a value that is
        // written again has another version. What is absent, or not in a scan, may have come and gone. So several homes judge that under
        // locks, all at one instant.
        let finds_nothing = |part: &Part| !part.scans.is_empty() || part.reads.iter().any(|(_, number)| *number == 0);
        let is_check = parts.iter().all(|(_, _, part)| !part.changes())
            && (parts.len() == 1 || !parts.iter().any(|(_, _, part)| finds_nothing(part)));
        let parts: Vec<Part> = parts.into_iter().map(|(_, _, part)| part).collect();
        let bytes = parts.iter().map(Part::bytes).sum();
        self.asked_bytes += bytes;
        let coordination = Coordination {
            participants,
            deadline,
            is_check,
            only_reads: parts.iter().all(|part| !part.changes()),
            asks: Some(Asks { parts, released, max_wait, rank, bytes }),
            votes: Votes::default(),
            rests,
            record: Record { is_durable: false, low, digest },
            look_at: 0,
            tries: 0,
            patience: Some(turn.here.now.mono.saturating_add(timeout).saturating_add(PATIENCE)),
            decided: None,
        };
        let own = coordination.position(me);
        let known_before = self.coordination.insert(id, coordination);
        assert!(known_before.is_none(), "{id} is coordinated here already, and would be carried out twice");
        self.traces.follow();

        // Its own part first: the others are then told that it is prepared. Asked last, it could complete the
        // transaction, tell the client, and lose its disk before another site knows that all were prepared.
        match own {
            Some(own) => {
                let prepare = self.prepare_for(id, own, SiteSet::default()).expect("it was asked for just now");
                self.traces.note(turn.here.now, id, me, Step::Asked);
                turn.out.send(me, Message::Prepare(Box::new(prepare)));
            }
            None => self.ask_to_prepare(turn, id),
        }

        self.look_soon(&turn.here, id);
    }

    fn coordinated_mut(&mut self, id: OperationId) -> &mut Coordination {
        self.coordination.get_mut(&id).expect("looked up by the caller")
    }

    /// The question to a participant; `prepared` are those that are known to have prepared. None after a restart.
    fn prepare_for(&self, id: OperationId, position: usize, prepared: SiteSet) -> Option<Prepare> {
        let Coordination { participants, deadline, is_check, asks, .. } = &self.coordination[&id];
        let Asks { parts, released, max_wait, rank, .. } = asks.as_ref()?;

        // A part that is only checked names itself alone: it keeps nothing, so nobody will ask the others about it.
        Some(Prepare {
            id,
            deadline: *deadline,
            participants: if *is_check { vec![participants[position]] } else { participants.clone() },
            prepared,
            part: parts[position].clone(),
            max_wait: *max_wait,
            released: (self.start, released[position]),
            rank: *rank,
            is_check: *is_check,
            is_untimed: participants[position].0 == id.site && self.is_untimed(id),
        })
    }

    /// Asks the participants that have not answered to prepare, once this site's own part is prepared.
    fn ask_to_prepare(&mut self, turn: &mut Turn, id: OperationId) {
        let coordination = self.coordinated_mut(id);
        let own = coordination.position(turn.here.site.me);
        if own.is_some_and(|own| !coordination.votes.prepared.contains(own)) || coordination.asks.is_none() {
            return;
        }

        // The row is durable before the first question leaves: after a crash somebody must know whom to ask, or the
        // client would never hear what became of it. Where nobody else takes part, there is nothing to find out: what
        // was not carried out never will be. Nor where nothing is written: it is judged again if it is asked for again.
        let is_alone = own.is_some() && coordination.participants.len() == 1;
        if !is_alone && !coordination.is_check && !std::mem::replace(&mut coordination.record.is_durable, true) {
            turn.out.batch.put(&row::coordinator_key(id.session, id.sequence), &coordination.row().encode());
        }

        // The others are told that this site's own part is prepared: nobody then depends on its storage.
        let prepared = own.map_or(SiteSet::default(), SiteSet::of);
        let Coordination { votes, participants, .. } = &self.coordination[&id];
        let is_asked = |position: &usize| !(votes.prepared | votes.lost | prepared).contains(*position);
        let asked: Vec<usize> = (0..participants.len()).filter(is_asked).collect();
        for position in asked {
            let (to, _) = self.coordination[&id].participants[position];
            if let Some(prepare) = self.prepare_for(id, position, prepared) {
                self.traces.note(turn.here.now, id, to, Step::Asked);
                turn.out.send(to, Message::Prepare(Box::new(prepare)));
            }
        }
    }

    /// Sets a transaction's timer: soon at first, then with a growing wait.
    pub(super) fn look_soon(&mut self, here: &Here, id: OperationId) {
        let Some(coordination) = self.coordination.get_mut(&id) else { return };
        let farthest = coordination.participants.iter().map(|(site, _)| here.round_trip(*site)).max().unwrap_or(0);
        let wait = (2 * farthest + AGAIN) << coordination.tries.min(10);
        coordination.tries += 1;
        let most = if coordination.decided.is_some() { TELL } else { SECOND };
        let mut at = here.now.mono + wait.min(most.max(2 * farthest));

        // Its client hears something when its patience ends, whatever the participants do.
        if coordination.decided.is_none() {
            at = coordination.patience.map_or(at, |patience| at.min(patience.max(here.now.mono)));
        }
        let before = std::mem::replace(&mut coordination.look_at, at);
        self.timers.remove(&(before, id));
        self.timers.insert((at, id));
    }

    /// Takes the vote of a participant; this site itself is one too.
    pub(super) fn voted(&mut self, turn: &mut Turn, from: SiteId, id: OperationId, vote: Vote) {
        let Some(coordination) = self.coordination.get_mut(&id) else {
            // It was decided long ago, or never asked for in this incarnation: the participant finds out by asking.
            return;
        };
        let Some(position) = coordination.position(from) else {
            turn.out.metrics.ignored += 1;
            return;
        };

        // A late vote changes nothing: a decision is made once. Its sender is told the decision, so that its locks go;
        // one that refused knows it already.
        if let Some((commit, _)) = coordination.decided {
            if from != turn.here.site.me && !matches!(vote, Vote::Refused(_)) {
                turn.out.send(from, Message::Decide { id, commit });
            }
            return;
        }

        self.trace_vote(&turn.here, from, id, &vote);
        let coordination = self.coordinated_mut(id);
        match vote {
            // It found out that all have prepared, from the others or because it is the only one.
            Vote::Committed if !coordination.is_check => {
                coordination.votes.informed.insert(position);
                self.decide(turn, id, Ok(()));
            }
            // One refusal is enough: that participant never prepares it, so all never will have.
            Vote::Refused(abort) => self.decide(turn, id, Err(*abort)),
            Vote::Waiting { .. } => {}
            // Committed exactly when every participant has durably prepared: the vote left its site only when it was
            // durable.
            Vote::Prepared | Vote::Committed => {
                coordination.votes.prepared.insert(position);
                if coordination.are_all_prepared() {
                    self.decide(turn, id, Ok(()));
                } else if from == turn.here.site.me {
                    self.ask_to_prepare(turn, id);
                }
            }
        }
    }

    /// Notes a vote in the transaction's trace.
    fn trace_vote(&mut self, here: &Here, from: SiteId, id: OperationId, vote: &Vote) {
        let step = match vote {
            Vote::Prepared => Step::Prepared,
            Vote::Committed => Step::Committed,
            Vote::Refused(abort) => Step::Refused(abort.clone()),
            Vote::Waiting { name, holders, until } => {
                Step::Waits { name: name.clone(), holders: holders.clone(), until: *until }
            }
        };
        self.traces.note(here.now, id, from, step);
    }

    /// Notes the decision of a transaction, and tells its client and the participants.
    fn decide(&mut self, turn: &mut Turn, id: OperationId, result: Result<(), Abort>) {
        let me = turn.here.site.me;
        let coordination = self.coordinated_mut(id);
        if coordination.decided.is_some() {
            return;
        }

        let commit = result.is_ok();
        assert!(commit || !coordination.are_all_prepared(), "{id} is aborted, and every participant has prepared it");
        let phases = if coordination.participants.len() > 1 && !coordination.is_check { 2 } else { 1 };
        let outcome = match &result {
            Ok(()) => {
                turn.out.metrics.committed[phases] += 1;
                Outcome::Committed { phases: phases as u8 }
            }
            Err(abort) => {
                turn.out.metrics.aborted += 1;
                Outcome::Aborted(Box::new(abort.clone()))
            }
        };

        // Nobody keeps anything of a check, so all of its participants count as told. This site's own part is told in
        // this very call, in the same batch, and counts as told too.
        let own = coordination.position(me).map_or(SiteSet::default(), SiteSet::of);
        if coordination.is_check {
            coordination.votes.informed = coordination.all();
        }

        // Nobody is asked to prepare it any more. It may be kept for long, until a participant that is away knows what became of it.
        let asked = coordination.asks.take();
        let is_own_open = !own.is_empty() && !coordination.votes.informed.has_all(own);
        coordination.decided = Some((commit, own | coordination.votes.informed));
        let all_know = (own | coordination.votes.informed) == coordination.all();

        // A committed one keeps its row until every participant knows: one in doubt that asks here must not hear that
        // nothing is known. An aborted one needs no row: a site that asks about what is not known here hears that it
        // did not take effect.
        let was_durable = coordination.record.is_durable;
        let key = row::coordinator_key(id.session, id.sequence);
        if commit && was_durable && !all_know {
            (coordination.record.low, coordination.record.digest) = (0, 0);
            turn.out.batch.put(&key, &coordination.row().encode());
        } else if std::mem::take(&mut coordination.record.is_durable) {
            turn.out.batch.delete(&key);
        }

        // The client may be told now: the outcome can no longer change. If it is committed, every participant has
        // prepared durably, and one that misses `Decide` learns it from the others (implicit commit). If not, one of
        // them never will.
        turn.out.finished.push((Ticket { session: id.session, sequence: id.sequence }, outcome));
        coordination.tries = 0;

        // The rights that it rested on were pinned until here. Their homes may be waiting for this site to give them
        // up.
        let rests = std::mem::take(&mut coordination.rests);
        let others = coordination.participants.iter().map(|(site, _)| *site).filter(|site| *site != me);
        let others: Vec<SiteId> = others.filter(|_| was_durable).collect();
        let end = match &result {
            Ok(()) => End::Committed { phases: phases as u8 },
            Err(abort) => End::Aborted(Box::new(abort.clone())),
        };
        self.traces.end(turn.here.now, id, end);
        self.asked_bytes -= asked.map_or(0, |asks| asks.bytes);

        // This site's own part is retracted if no other site was asked: nothing of it needs to be kept. Else it is
        // told, as the others are. Those that were never asked hold nothing.
        let is_retracted = is_own_open && !commit && !was_durable;
        self.ended.push(Ended { id, rests, abort: result.err(), is_retracted });
        if is_own_open && !is_retracted {
            turn.out.send(me, Message::Decide { id, commit });
        }
        for site in others {
            turn.out.send(site, Message::Decide { id, commit });
        }

        // It is kept while some participant may not know. `Decide` may be lost, so it is told again.
        if all_know || !was_durable {
            self.drop_coordinated(turn, id);
        } else {
            self.look_soon(&turn.here, id);
        }
    }

    /// Forgets a transaction, and its row if it is decided.
    fn drop_coordinated(&mut self, turn: &mut Turn, id: OperationId) {
        let Some(coordination) = self.coordination.remove(&id) else { return };
        self.timers.remove(&(coordination.look_at, id));
        self.traces.close(id);

        // One that is taken back was not decided.
        self.asked_bytes -= coordination.asks.map_or(0, |asks| asks.bytes);
        assert!(
            !self.coordination.is_empty() || self.asked_bytes == 0,
            "nothing is coordinated, and {} bytes count as asked for",
            self.asked_bytes
        );
        if coordination.record.is_durable && coordination.decided.is_some() {
            turn.out.batch.delete(&row::coordinator_key(id.session, id.sequence));
        }

        // Rights that are still pinned by it are no longer: a holder that kept them would hold up their homes' writers.
        if !coordination.rests.is_empty() {
            let (rests, abort) = (coordination.rests, None);
            self.ended.push(Ended { id, rests, abort, is_retracted: false });
        }
    }

    /// A participant has durably noted the decision.
    pub(super) fn noted(&mut self, turn: &mut Turn, from: SiteId, id: OperationId) {
        let Some(coordination) = self.coordination.get_mut(&id) else { return };
        let Some(position) = coordination.position(from) else { return };
        let Some((commit, known)) = &mut coordination.decided else { return };
        self.traces.note(turn.here.now, id, from, Step::Noted);
        known.insert(position);

        // Only when each participant has said so itself may it be forgotten here, and there: as long as one may be in
        // doubt, somebody must be able to tell it that the transaction took effect.
        if known.has_all(SiteSet::first(coordination.participants.len())) {
            if *commit && coordination.participants.len() > 1 {
                for (site, _) in coordination.participants.iter().filter(|(site, _)| *site != id.site) {
                    turn.out.send(*site, Message::Forget { id });
                }
            }
            self.drop_coordinated(turn, id);
        }
    }

    /// True if a transaction has a timer that counts.
    pub(super) fn is_looked_at(&self, id: &OperationId, coordination: &Coordination) -> bool {
        self.timers.contains(&(coordination.look_at, *id))
    }

    /// Does what is due for a transaction: tells a decision again, asks again, or tells its client that it is
    /// undecided.
    fn look_at(&mut self, turn: &mut Turn, at: u64, id: OperationId) {
        let Some(coordination) = self.coordination.get_mut(&id).filter(|coordination| coordination.look_at == at)
        else {
            return;
        };

        // Decided: it is told until each has confirmed it. An abort is told a few times and then forgotten: a
        // participant in doubt asks, and hears that nothing is known of it here, which says the same.
        if let Some((commit, known)) = coordination.decided {
            if coordination.tries > TELLS && !commit {
                return self.drop_coordinated(turn, id);
            }
            for (position, (site, _)) in coordination.participants.iter().enumerate() {
                if !known.contains(position) {
                    turn.out.send(*site, Message::Decide { id, commit });
                }
            }
            return self.look_soon(&turn.here, id);
        }

        // Every request ends as done, refused or unknown. The transaction goes on: its outcome is recorded when it is
        // known.
        if coordination.patience.is_some_and(|patience| patience <= turn.here.now.mono) {
            coordination.patience = None;
            let ticket = Ticket { session: id.session, sequence: id.sequence };
            self.traces.note(turn.here.now, id, turn.here.site.me, Step::Undecided);
            turn.out.finished.push((ticket, Outcome::Unknown(UnknownReason::Undecided)));
        }

        // What writes nothing needs no participant's word to be aborted when it is late: whatever they find out, they carry nothing out. One
        // that is down would keep the locks of the others until it is back.
        if coordination.only_reads && coordination.deadline < turn.here.now.wall {
            return self.decide(turn, id, Err(Abort::of(Cause::DeadlinePassed)));
        }

        // Past the deadline nobody prepares it any more, so the participants are asked what they know, which makes each
        // one that has not prepared refuse. A client that was told that it is undecided has waited for longer than the
        // deadline was to be ahead: if the wall clock shows it as still ahead, that clock has been set back since.
        let may_have_lost_data = !coordination.votes.lost.is_empty();
        let is_late = coordination.deadline < turn.here.now.wall || coordination.patience.is_none();
        if coordination.asks.is_none() || may_have_lost_data || is_late {
            self.ask_participants(turn, id);
        } else {
            self.ask_to_prepare(turn, id);
        }

        self.look_soon(&turn.here, id);
    }

    /// Asks every participant what it knows of a transaction. One that has not prepared it refuses it.
    pub(super) fn ask_participants(&mut self, turn: &mut Turn, id: OperationId) {
        let Some(coordination) = self.coordination.get(&id).filter(|coordination| coordination.decided.is_none())
        else {
            return;
        };

        // A check leaves nothing to ask about. To withdraw it is safe: it has no effect.
        if coordination.is_check {
            return self.decide(turn, id, Err(Abort::of(Cause::Withdrawn)));
        }

        let (deadline, participants) = (coordination.deadline, coordination.participants.clone());
        let prepared = coordination.votes.prepared;
        for (site, _) in &participants {
            self.traces.note(turn.here.now, id, *site, Step::Inquired);
            let participants = participants.clone();
            turn.out.send(*site, Message::Inquire { id, deadline, participants, prepared });
        }
    }

    /// Another site knows that these participants have prepared.
    pub(super) fn note_answers(&mut self, turn: &mut Turn, id: OperationId, prepared: SiteSet) {
        let undecided = self.coordination.get_mut(&id).filter(|coordination| coordination.decided.is_none());
        let Some(coordination) = undecided.filter(|_| id.site == turn.here.site.me) else { return };

        // A site's word for another counts like that one's own: whoever says it has durably noted it. The bits may name
        // nobody.
        coordination.votes.prepared |= prepared & coordination.all();
        if coordination.are_all_prepared() {
            self.resolve(turn, id, Ok(()));
        }
    }

    /// Takes an answer to [`Coordinator::ask_participants`].
    pub(super) fn inquired(&mut self, turn: &mut Turn, from: SiteId, id: OperationId, known: Known) {
        let Some(coordination) = self.coordination.get_mut(&id).filter(|coordination| coordination.decided.is_none())
        else {
            return;
        };
        let Some(position) = coordination.position(from) else { return };
        let other = SiteSet::of(position);
        match known {
            Known::Committed => return self.resolve(turn, id, Ok(())),
            Known::Refused => return self.resolve(turn, id, Err(Abort::of(Cause::Withdrawn))),
            Known::Prepared => coordination.votes.prepared |= other,
            Known::KnowsOfLoss => {
                coordination.votes.prepared |= other;
                coordination.votes.know_of_loss |= other;
            }
            // What it said before it lost its storage still counts.
            Known::Lost => coordination.votes.lost |= other,
            Known::Nothing => {}
        }

        // A vote counts although its site has lost it since: it was given, and the transaction is committed by all
        // votes.
        if coordination.are_all_prepared() {
            return self.resolve(turn, id, Ok(()));
        }
        if coordination.votes.lost.is_empty() {
            return;
        }

        // The only participant has lost what it knew: nobody else can tell whether it was carried out.
        if coordination.participants.len() == 1 {
            return self.give_up(turn, id);
        }

        // Every participant that is left has told, after it heard of the loss, whom it knows to have prepared: not all.
        // So nobody can have shown anything of it, and it may be aborted (decision: commit without a coordinator).
        // Without asking each of them after the loss, one that knows of all votes could have shown it.
        let own = coordination.position(turn.here.site.me).map_or(SiteSet::default(), SiteSet::of);
        if (coordination.votes.lost | coordination.votes.know_of_loss | own).has_all(coordination.all()) {
            self.resolve(turn, id, Err(Abort::of(Cause::Lost)));
        }
    }

    /// Ends a transaction whose outcome no site can find out any more.
    fn give_up(&mut self, turn: &mut Turn, id: OperationId) {
        let ticket = Ticket { session: id.session, sequence: id.sequence };
        self.traces.end(turn.here.now, id, End::Lost);
        turn.out.finished.push((ticket, Outcome::Unknown(UnknownReason::HomeLost)));
        turn.out.batch.delete(&row::coordinator_key(id.session, id.sequence));
        self.drop_coordinated(turn, id);
    }

    /// Decides a transaction by what the participants answered when they were asked.
    fn resolve(&mut self, turn: &mut Turn, id: OperationId, result: Result<(), Abort>) {
        turn.out.metrics.doubts_resolved += 1;
        self.decide(turn, id, result);
    }

    /// The knowledge of this site, as coordinator, of a transaction in which it takes no part.
    pub(super) fn known(&self, id: OperationId) -> Known {
        // A committed transaction is known here until every participant has noted it. So one that is not known did not
        // take effect.
        let Some(coordination) = self.coordination.get(&id) else { return Known::Refused };
        match coordination.decided {
            Some((true, _)) => Known::Committed,
            Some((false, _)) => Known::Refused,
            // Of those that are lost it may have the votes. Then it can still hear that all the others have prepared, too, and commit.
            None if !coordination.votes.prepared.has_all(coordination.votes.lost) => Known::KnowsOfLoss,
            None => Known::Nothing,
        }
    }

    /// Withdraws a transaction, if no other site was asked yet; returns true if it was withdrawn.
    pub(super) fn take_back(&mut self, turn: &mut Turn, id: OperationId) -> bool {
        // Once another site was asked, that one may have prepared it: only the participants can say what becomes of it.
        if !self.is_undecided(id) || self.coordination[&id].record.is_durable {
            return false;
        }

        self.traces.end(turn.here.now, id, End::Aborted(Box::new(Abort::of(Cause::Withdrawn))));
        let rests = std::mem::take(&mut self.coordinated_mut(id).rests);
        self.ended.push(Ended { id, rests, abort: None, is_retracted: true });
        self.drop_coordinated(turn, id);
        true
    }
}

/// The site of a region, in the incarnation whose objects were read; an abort if there is none.
pub(super) fn site_of(here: &Here, home: &Home) -> Result<SiteId, Abort> {
    let site = SiteId::new(home.region, here.site.me.lane);
    if !here.site.is_present(site) {
        return Err(Abort::of(Cause::UnknownRegion));
    }

    // Version numbers of another incarnation count other writes: they would match by chance.
    let known = here.incarnation_of(site);
    if home.incarnation > Incarnation(0) && home.incarnation != known {
        return Err(Abort { site: Some(site), ..Abort::of(Cause::Changed) });
    }

    Ok(site)
}
