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
//! Its own part is prepared first, and the others are told so when they are asked. So nobody depends on the coordinator's
//! storage: were it asked for its own part last, it could tell its client and lose its disk before anybody else
//! has heard that all were prepared.
//!
//! It decides nothing that the participants have not: a transaction is committed exactly when every participant has durably
//! prepared it in time. Its own record, made durable before the first message leaves, says only whom to ask. When the
//! deadline has passed it asks, which makes everybody who has not prepared refuse for ever.

use std::hash::{Hash, Hasher};

use super::home::Stage;
use super::table::Table;
use super::{Timer, Txns};
use crate::api::{Doubt, Outcome};
use crate::clock::{MILLISECOND, Now, SECOND};
use crate::id::{Incarnation, OperationId, SessionId, SiteId};
use crate::object::message::{Known, Message, Prepare, Vote};
use crate::object::trace::{End, Proof, Step};
use crate::object::{Abort, Cause, Home, ObjectKey, Part, Rank, Subject, Transaction, Version};
use crate::right::WarrantyNumber;
use crate::turn::{Ticket, Trust, Turn};
use crate::txn::row::{self, CoordinatorRow};
use crate::warranty::LONGEST;

/// The most transactions that a site coordinates at a time.
const COORDINATED: usize = 65_536;
/// What a message takes besides the way, at most, in microseconds: a right that ends sooner is not worth resting on.
const SLACK: u64 = 20 * MILLISECOND;
/// A transaction of which its client hears nothing for this long beyond its time is said to be undecided.
const PATIENCE: u64 = 2 * SECOND;
/// Questions are repeated no faster than this.
const AGAIN: u64 = 50 * MILLISECOND;
/// A refusal is repeated so often; then those who are in doubt ask.
const TELLS: u32 = 4;
/// Decisions are repeated no more slowly than this.
const TELL: u64 = 10 * SECOND;

/// A transaction that this site coordinates.
#[derive(Clone, Debug)]
pub(super) struct Coordinated {
    pub(super) participants: Vec<(SiteId, Incarnation)>,
    /// What each is asked to prepare; empty after a restart.
    parts: Vec<Part>,
    /// Who is known to have prepared, to have lost what it knew, and to know that one has; by position.
    prepared: u64,
    lost: u64,
    bereaved: u64,
    released: Vec<WarrantyNumber>,
    deadline: i64,
    max_wait: u64,
    /// Its program's place in the order of those that want the same objects.
    rank: Rank,
    /// Whether it writes nothing: its parts are only checked, nobody keeps anything of it, and nobody needs to be told.
    is_check: bool,
    /// Rights that it rests on.
    rests: Vec<ObjectKey>,
    /// Whether there is a row of it.
    is_durable: bool,
    look_at: u64,
    tries: u32,
    /// When its client is told that it is undecided.
    patience: Option<u64>,
    /// Who has carried it out before it was decided here.
    informed: u64,
    /// How it was decided, and who knows.
    decided: Option<(bool, u64)>,
}

impl Coordinated {
    /// Whether nothing rests on its deadline: one site alone takes part, and it rests on nobody's rights.
    pub(super) fn is_untimed(&self) -> bool {
        self.participants.len() == 1 && self.rests.is_empty()
    }

    fn position(&self, site: SiteId) -> Option<usize> {
        self.participants.iter().position(|(other, _)| *other == site)
    }

    /// A bit for each participant.
    fn all(&self) -> u64 {
        (1 << self.participants.len()) - 1
    }

    /// See [`Txns::fingerprint`].
    pub(super) fn fingerprint(&self, state: &mut impl Hasher) {
        let Self { participants, parts, prepared, lost, bereaved, deadline, is_durable, informed, decided, .. } = self;
        (participants, parts.len(), prepared, lost, bereaved, deadline, is_durable, informed, decided).hash(state);
        // A refusal is told so often and no more.
        let tries = if matches!(decided, Some((false, _))) { self.tries.min(TELLS + 1) } else { 0 };
        (self.patience.is_some(), tries).hash(state);
    }

    fn are_all_prepared(&self) -> bool {
        self.prepared == self.all()
    }
}

impl Txns {
    /// Takes a row of an earlier life in.
    pub(super) fn restore_coordinated(&mut self, id: OperationId, row: CoordinatorRow) {
        let CoordinatorRow { deadline, participants, is_committed, .. } = row;
        let own = participants.iter().position(|(site, _)| *site == self.me).map_or(0, |own| 1 << own);
        let coordinated = Coordinated {
            prepared: 0,
            lost: 0,
            bereaved: 0,
            parts: Vec::new(),
            released: Vec::new(),
            participants,
            deadline,
            max_wait: 0,
            rank: Rank::LAST,
            is_check: false,
            rests: Vec::new(),
            is_durable: true,
            look_at: 0,
            tries: 0,
            patience: None,
            informed: 0,
            decided: is_committed.then_some((true, own)),
        };
        self.coordinated.insert(id, coordinated);
    }

    /// Nobody waits for a transaction any more: its session ended, or moved on. An undecided one goes on, and its row with it,
    /// which tells so by a mark above it. Else a start would take it for an operation that waits, and open the session, whose
    /// other outcomes are gone.
    pub fn leave_alone(&self, turn: &mut Turn, id: OperationId) {
        let coordinated = self.coordinated.get(&id);
        // One that is aborted keeps its row until the others have been told.
        let is_committed = |coordinated: &Coordinated| matches!(coordinated.decided, Some((true, _)));
        let left = coordinated.filter(|coordinated| coordinated.is_durable && !is_committed(coordinated));
        let Some(Coordinated { deadline, participants, .. }) = left else { return };
        let row = CoordinatorRow {
            low: id.sequence.saturating_add(1),
            digest: 0,
            deadline: *deadline,
            participants: participants.clone(),
            is_committed: false,
        };
        turn.batch.put(&row::coordinator_key(id.session, id.sequence), &row.encode());
    }

    /// A session has ended: none of its transactions opens it again at a start.
    pub fn leave_session(&self, turn: &mut Turn, session: SessionId) {
        let mut left: Vec<OperationId> = self.coordinated.keys().filter(|id| id.session == session).copied().collect();
        left.sort_unstable();
        for id in left {
            self.leave_alone(turn, id);
        }
    }

    /// Whether a transaction is under way here, undecided.
    pub fn is_undecided(&self, id: OperationId) -> bool {
        self.coordinated.get(&id).is_some_and(|coordinated| coordinated.decided.is_none())
    }

    /// A right on which a transaction under way rests, and whether its time ends with that right; for those who check.
    pub fn rests_on(&self, id: OperationId, epsilon: u64) -> Option<(&ObjectKey, bool)> {
        let coordinated = self.coordinated.get(&id)?;
        let ends_it = |key: &&ObjectKey| {
            self.cache.held(key).is_some_and(|held| held.relied_until(epsilon) == coordinated.deadline)
        };
        let first = coordinated.rests.iter().find(ends_it);
        first.map(|key| (key, true)).or_else(|| Some((coordinated.rests.first()?, false)))
    }

    /// Commits a transaction; none if its outcome follows. `low` and `digest` are of its operation.
    pub fn commit(
        &mut self,
        turn: &mut Turn,
        table: &Table,
        ticket: Ticket,
        mut transaction: Transaction,
        timeout: u64,
        (low, digest): (u64, u64),
    ) -> Option<Outcome> {
        let id = ticket.operation(turn);
        if self.coordinated.contains_key(&id) {
            // Its client was told that it is undecided, and asks for it again.
            return None;
        }
        self.backer.note_agreed(turn.now, turn.agreed(), turn.agreed_at_most(), turn.config.epsilon);
        self.traces.begin(turn.now, id);
        let begun = transaction.normalize().and_then(|()| self.begin(turn, table, id, transaction, timeout));
        match begun {
            Err(abort) => {
                self.note_stale(&abort);
                turn.metrics.aborted += 1;
                self.traces.end(turn.now, id, End::Aborted(Box::new(abort.clone())));
                Some(Outcome::Aborted(Box::new(abort)))
            }
            Ok(Some(phases)) => {
                turn.metrics.committed[usize::from(phases)] += 1;
                self.traces.end(turn.now, id, End::Committed { phases });
                Some(Outcome::Committed { phases })
            }
            Ok(None) => {
                if let Some(coordinated) = self.coordinated.get_mut(&id).filter(|coordinated| coordinated.is_durable) {
                    let (deadline, participants) = (coordinated.deadline, coordinated.participants.clone());
                    let row = CoordinatorRow { low, digest, deadline, participants, is_committed: false };
                    turn.batch.put(&row::coordinator_key(id.session, id.sequence), &row.encode());
                }
                None
            }
        }
    }

    /// Sorts a transaction and starts it; the number of phases if it is done by that.
    fn begin(
        &mut self,
        turn: &mut Turn,
        table: &Table,
        id: OperationId,
        transaction: Transaction,
        timeout: u64,
    ) -> Result<Option<u8>, Abort> {
        let mut sites = Vec::with_capacity(transaction.homes.len());
        for home in &transaction.homes {
            sites.push(self.site_of(turn, home)?);
        }
        let rank = Rank::of(transaction.origin, turn.now.wall);
        let mut homes = transaction.homes;
        let farthest = homes.iter().zip(&sites).filter(|(home, _)| !home.part.writes.is_empty());
        let way = farthest.map(|(_, site)| turn.round_trip(*site)).max().unwrap_or(0);
        let mut rests = Vec::new();
        let mut until = i64::MAX;
        // A home that is asked anyway validates what was read there too. Two writers that each rest on a right over what the
        // other one writes would wait for each other until those end.
        let elsewhere = |(home, site): &(&mut Home, &SiteId)| **site != turn.site.me && !home.part.changes();
        for (home, _) in homes.iter_mut().zip(&sites).filter(elsewhere) {
            self.rest_on_rights(turn, home, way, &mut rests, &mut until);
        }
        let mut parts: Vec<(SiteId, Incarnation, Part)> = Vec::with_capacity(homes.len());
        for (home, site) in homes.into_iter().zip(sites).filter(|(home, _)| !home.part.is_empty()) {
            let incarnation = turn.incarnation_of(site);
            parts.push((site, incarnation, home.part));
        }
        self.traces.sort(&mut rests, &parts);
        let me = turn.site.me;
        if let [(site, _, part)] = &parts[..]
            && *site == me
        {
            let is_waiting = part.writes.iter().any(|(name, _)| self.backer.over_at(turn.now, name).is_some());
            if !is_waiting {
                self.judge(turn, table, rank, part)?;
                self.apply(turn, Some(table), part);
                return Ok(Some(u8::from(part.changes())));
            }
        }
        if parts.is_empty() {
            return Ok(Some(0));
        }
        if self.coordinated.len() >= COORDINATED || !turn.admit() {
            return Err(Abort::of(Cause::Overloaded));
        }
        let is_there = |site: SiteId| turn.is_reachable(site) && turn.offset_of(site).is_some();
        if let Some((site, ..)) = parts.iter().find(|(site, ..)| !is_there(*site)) {
            return Err(Abort { site: Some(*site), ..Abort::of(Cause::Unreachable) });
        }
        // A deadline means nothing to a site whose clock shows another time: it would be over for it already, or lie so far
        // ahead that the part stays locked, and known, for as long.
        let others = || parts.iter().map(|(site, ..)| *site).filter(|site| *site != me);
        if let Some(site) = others().find(|site| turn.trust != Trust::Trusted || !turn.agrees_with(*site)) {
            return Err(Abort { site: Some(site), ..Abort::of(Cause::ClocksDisagree) });
        }

        let deadline = turn.now.wall.saturating_add_unsigned(timeout.min(LONGEST)).min(until);
        let rests = rests.into_iter().map(|proof| proof.key).collect();
        self.start_phases(turn, table, id, parts, (deadline, transaction.max_wait, timeout), (rank, rests))
    }

    /// Starts the phases of a transaction over these parts.
    fn start_phases(
        &mut self,
        turn: &mut Turn,
        table: &Table,
        id: OperationId,
        parts: Vec<(SiteId, Incarnation, Part)>,
        (deadline, max_wait, timeout): (i64, u64, u64),
        (rank, rests): (Rank, Vec<ObjectKey>),
    ) -> Result<Option<u8>, Abort> {
        let me = turn.site.me;
        let participants: Vec<(SiteId, Incarnation)> =
            parts.iter().map(|(site, incarnation, _)| (*site, *incarnation)).collect();
        let released = parts.iter().map(|(site, _, part)| {
            let names = part.writes.iter().map(|(name, _)| name);
            if *site == me { WarrantyNumber::default() } else { self.cache.release(turn.now, site.region, names) }
        });
        let left = u64::try_from(deadline.saturating_sub(turn.now.wall)).unwrap_or(0) + 2 * turn.config.epsilon;
        let pinned_until =
            Now { wall: turn.now.wall.saturating_add_unsigned(left), mono: turn.now.mono.saturating_add(left) };
        let is_check = parts.iter().all(|(_, _, part)| !part.changes());
        let coordinated = Coordinated {
            released: released.collect(),
            prepared: 0,
            lost: 0,
            bereaved: 0,
            parts: parts.into_iter().map(|(_, _, part)| part).collect(),
            participants,
            deadline,
            max_wait,
            rank,
            is_check,
            is_durable: true,
            look_at: 0,
            tries: 0,
            patience: Some(turn.now.mono.saturating_add(timeout).saturating_add(PATIENCE)),
            informed: 0,
            decided: None,
            rests,
        };
        coordinated.rests.iter().for_each(|key| self.cache.pin(key, id, pinned_until));
        let own = coordinated.position(me);
        let is_alone = own.is_some() && coordinated.participants.len() == 1;
        self.coordinated.insert(id, coordinated);
        self.traces.follow();
        if let Some(own) = own {
            self.traces.note(turn.now, id, me, Step::Asked);
            let prepare = self.prepare_for(id, own, 0);
            let vote = self.prepare(turn, table, prepare);
            vote.iter().for_each(|vote| self.trace_vote(turn, me, id, vote));
            match vote {
                Some(Vote::Refused(abort)) => {
                    // Nobody else was asked, so nobody needs to know.
                    if self.entries.remove(&id).is_some() {
                        turn.batch.delete(&row::participant_key(id));
                    }
                    self.drop_coordinated(turn, id);
                    return Err(*abort);
                }
                Some(Vote::Committed) => unreachable!("nobody else was asked"),
                Some(Vote::Prepared) => self.coordinated_mut(id).prepared |= 1 << own,
                Some(Vote::Waiting { .. }) => {}
                None => {
                    self.drop_coordinated(turn, id);
                    return Err(Abort::of(Cause::Overloaded));
                }
            }
        }
        let coordinated = self.coordinated_mut(id);
        // Where nobody else takes part, there is nothing to find out after a crash: what was not carried out never will be.
        // Nor where nothing is written: it is judged anew if it is asked for again.
        coordinated.is_durable = !is_alone && !is_check;
        self.ask_to_prepare(turn, id);
        self.look_soon(turn, id);
        Ok(None)
    }

    fn coordinated_mut(&mut self, id: OperationId) -> &mut Coordinated {
        self.coordinated.get_mut(&id).expect("looked up by the caller")
    }

    /// The site of a region, if there is one whose past is the one that was read.
    fn site_of(&self, turn: &Turn, home: &Home) -> Result<SiteId, Abort> {
        let site = SiteId::new(home.region, turn.site.me.lane);
        if !turn.site.members.contains(&site) {
            return Err(Abort::of(Cause::UnknownRegion));
        }
        let known = turn.incarnation_of(site);
        if home.incarnation > Incarnation(0) && home.incarnation != known {
            return Err(Abort { site: Some(site), ..Abort::of(Cause::Changed) });
        }
        Ok(site)
    }

    /// Takes out of a part the reads that live warranties prove. What it writes there is validated there.
    fn rest_on_rights(&self, turn: &Turn, home: &mut Home, way: u64, rests: &mut Vec<Proof>, until: &mut i64) {
        let backer = SiteId::new(home.region, turn.site.me.lane);
        if !self.uses_rights(turn) || !turn.agrees_with(backer) {
            return;
        }
        let Home { region, incarnation, part } = home;
        let mut kept = Vec::new();
        for (name, number) in std::mem::take(&mut part.reads) {
            let key = ObjectKey { home: *region, name };
            let is_written = part.writes.binary_search_by(|(other, _)| other.cmp(&key.name)).is_ok()
                || part.depends.iter().any(|(subject, _)| *subject == Subject::Name(key.name.clone()));
            let version = Version { incarnation: *incarnation, number };
            let right = self.cache.right(turn.now, turn.config.epsilon, &key, version);
            let needed = if way == 0 { 0 } else { way + SLACK };
            match right.filter(|right| !is_written && right.left(turn.now, turn.config.epsilon) > needed) {
                Some(right) => {
                    let relied_until = right.relied_until(turn.config.epsilon);
                    *until = (*until).min(relied_until);
                    rests.push(Proof { key, until: relied_until });
                }
                None => kept.push((key.name, number)),
            }
        }
        part.reads = kept;
    }

    fn prepare_for(&mut self, id: OperationId, position: usize, prepared: u64) -> Prepare {
        let start = self.start;
        let coordinated = self.coordinated_mut(id);
        Prepare {
            id,
            deadline: coordinated.deadline,
            participants: match coordinated.is_check {
                true => vec![coordinated.participants[position]],
                false => coordinated.participants.clone(),
            },
            prepared,
            part: coordinated.parts[position].clone(),
            max_wait: coordinated.max_wait,
            released: (start, coordinated.released[position]),
            rank: coordinated.rank,
            is_check: coordinated.is_check,
        }
    }

    /// Asks those to prepare who have not answered, once this site's own part is prepared.
    fn ask_to_prepare(&mut self, turn: &mut Turn, id: OperationId) {
        let coordinated = &self.coordinated[&id];
        let own = coordinated.position(turn.site.me);
        // After a restart it only asks what became of it.
        if own.is_some_and(|own| coordinated.prepared >> own & 1 == 0) || coordinated.parts.is_empty() {
            return;
        }
        let prepared = own.map_or(0, |own| 1 << own);
        for position in 0..self.coordinated[&id].participants.len() {
            let coordinated = &self.coordinated[&id];
            let (to, _) = coordinated.participants[position];
            if to != turn.site.me && (coordinated.prepared | coordinated.lost) >> position & 1 == 0 {
                let prepare = self.prepare_for(id, position, prepared);
                self.traces.note(turn.now, id, to, Step::Asked);
                turn.send_object(to, Message::Prepare(Box::new(prepare)));
            }
        }
    }

    pub(super) fn look_soon(&mut self, turn: &Turn, id: OperationId) {
        let Some(coordinated) = self.coordinated.get_mut(&id) else { return };
        let farthest = coordinated.participants.iter().map(|(site, _)| turn.round_trip(*site)).max().unwrap_or(0);
        let wait = (2 * farthest + AGAIN) << coordinated.tries.min(10);
        coordinated.tries += 1;
        let most = if coordinated.decided.is_some() { TELL } else { SECOND };
        let mut at = turn.now.mono + wait.min(most.max(2 * farthest));
        if coordinated.decided.is_none() {
            at = coordinated.patience.map_or(at, |patience| at.min(patience.max(turn.now.mono)));
        }
        coordinated.look_at = at;
        self.timers.insert((at, Timer::Coordinated(id)));
    }

    /// A participant answers.
    pub(super) fn voted(&mut self, turn: &mut Turn, from: SiteId, id: OperationId, vote: Vote) {
        let Some(coordinated) = self.coordinated.get_mut(&id) else {
            // It was decided long ago, or never asked for in this incarnation: whoever took part must find out.
            return;
        };
        let Some(position) = coordinated.position(from) else {
            turn.metrics.ignored += 1;
            return;
        };
        if let Some((commit, _)) = coordinated.decided {
            if from != turn.site.me && !matches!(vote, Vote::Refused(_)) {
                turn.send_object(from, Message::Decide { id, commit });
            }
            return;
        }
        self.trace_vote(turn, from, id, &vote);
        let coordinated = self.coordinated_mut(id);
        match vote {
            Vote::Committed if !coordinated.is_check => {
                coordinated.informed |= 1 << position;
                self.decide(turn, id, Ok(()));
            }
            Vote::Refused(abort) => self.decide(turn, id, Err(*abort)),
            Vote::Waiting { .. } => {}
            Vote::Prepared | Vote::Committed => {
                coordinated.prepared |= 1 << position;
                if coordinated.are_all_prepared() {
                    self.decide(turn, id, Ok(()));
                } else if from == turn.site.me {
                    self.ask_to_prepare(turn, id);
                }
            }
        }
    }

    /// Remembers an answer, for those who ask why.
    fn trace_vote(&mut self, turn: &Turn, from: SiteId, id: OperationId, vote: &Vote) {
        let step = match vote {
            Vote::Prepared => Step::Prepared,
            Vote::Committed => Step::Committed,
            Vote::Refused(abort) => Step::Refused(abort.clone()),
            Vote::Waiting { name, holders, until } => {
                Step::Waits { name: name.clone(), holders: holders.clone(), until: *until }
            }
        };
        self.traces.note(turn.now, id, from, step);
    }

    /// Notes how a transaction ended, and tells its client and the participants.
    fn decide(&mut self, turn: &mut Turn, id: OperationId, result: Result<(), Abort>) {
        let me = turn.site.me;
        let coordinated = self.coordinated_mut(id);
        if coordinated.decided.is_some() {
            return;
        }
        let commit = result.is_ok();
        let phases = if coordinated.participants.len() > 1 && !coordinated.is_check { 2 } else { 1 };
        let outcome = match &result {
            Ok(()) => {
                turn.metrics.committed[phases] += 1;
                Outcome::Committed { phases: phases as u8 }
            }
            Err(abort) => {
                turn.metrics.aborted += 1;
                Outcome::Aborted(Box::new(abort.clone()))
            }
        };
        let is_check = coordinated.is_check;
        if is_check {
            coordinated.informed = coordinated.all();
        }
        let own = coordinated.position(me).map_or(0, |own| 1 << own);
        coordinated.decided = Some((commit, own | coordinated.informed));
        let all_know = (own | coordinated.informed).count_ones() as usize == coordinated.participants.len();
        let key = row::coordinator_key(id.session, id.sequence);
        if commit && coordinated.is_durable && !all_know {
            let (deadline, participants) = (coordinated.deadline, coordinated.participants.clone());
            let row = CoordinatorRow { low: 0, digest: 0, deadline, participants, is_committed: true };
            turn.batch.put(&key, &row.encode());
        } else if std::mem::take(&mut coordinated.is_durable) {
            turn.batch.delete(&key);
        }
        turn.finished.push((Ticket { session: id.session, sequence: id.sequence }, outcome));
        let rests = std::mem::take(&mut coordinated.rests);
        let others: Vec<SiteId> =
            coordinated.participants.iter().map(|(site, _)| *site).filter(|site| *site != me).collect();
        coordinated.tries = 0;
        let end = match &result {
            Ok(()) => End::Committed { phases: phases as u8 },
            Err(abort) => End::Aborted(Box::new(abort.clone())),
        };
        self.traces.end(turn.now, id, end);
        for key in rests {
            if let Some(number) = self.cache.unpin(turn.now, &key, id) {
                self.acknowledge(turn, key, number);
            }
        }
        if let Err(abort) = &result {
            self.note_stale(abort);
        }
        if own != 0 {
            self.decide_own_part(turn, id, commit);
        }
        self.knows(turn, me, id);
        for site in others.iter().filter(|_| !is_check) {
            turn.send_object(*site, Message::Decide { id, commit });
        }
        if all_know {
            self.drop_coordinated(turn, id);
        } else {
            self.look_soon(turn, id);
        }
    }

    fn decide_own_part(&mut self, turn: &mut Turn, id: OperationId, commit: bool) {
        match (self.entries.get(&id).map(|entry| entry.stage), commit) {
            (Some(Stage::Prepared), true) => self.commit_part(turn, None, id),
            (Some(Stage::Prepared | Stage::Defending), false) => {
                self.refuse_part(turn, id, Abort::of(Cause::Withdrawn));
            }
            _ => {}
        }
    }

    /// The copy of what a transaction found stale is not used again, and the next ones are distrusted if that goes on.
    fn note_stale(&mut self, abort: &Abort) {
        if let Some(key) = abort.key.as_ref().filter(|_| matches!(abort.cause, Cause::Changed | Cause::Busy)) {
            self.cache.doubt(key);
            if abort.cause == Cause::Changed {
                self.cache.drop_copy(key);
            }
        }
    }

    fn drop_coordinated(&mut self, turn: &mut Turn, id: OperationId) {
        let Some(coordinated) = self.coordinated.remove(&id) else { return };
        self.traces.close(id);
        if coordinated.is_durable && coordinated.decided.is_some() {
            turn.batch.delete(&row::coordinator_key(id.session, id.sequence));
        }
        for key in coordinated.rests {
            if let Some(number) = self.cache.unpin(turn.now, &key, id) {
                self.acknowledge(turn, key, number);
            }
        }
    }

    /// A participant has noted the decision.
    pub(super) fn noted(&mut self, turn: &mut Turn, from: SiteId, id: OperationId) {
        self.knows(turn, from, id);
        let Some(coordinated) = self.coordinated.get_mut(&id) else { return };
        let Some(position) = coordinated.position(from) else { return };
        let Some((commit, known)) = &mut coordinated.decided else { return };
        self.traces.note(turn.now, id, from, Step::Noted);
        *known |= 1 << position;
        if known.count_ones() as usize == coordinated.participants.len() {
            if *commit && coordinated.participants.len() > 1 {
                for (site, _) in coordinated.participants.iter().filter(|(site, _)| *site != id.site) {
                    turn.send_object(*site, Message::Forget { id });
                }
            }
            self.drop_coordinated(turn, id);
        }
    }

    /// The time has come to look after a transaction.
    pub(super) fn look_at_coordinated(&mut self, turn: &mut Turn, at: u64, id: OperationId) {
        let Some(coordinated) = self.coordinated.get_mut(&id).filter(|coordinated| coordinated.look_at == at) else {
            return;
        };
        if let Some((commit, known)) = coordinated.decided {
            if coordinated.tries > TELLS && !commit {
                // Those who are in doubt ask, and hear that nothing is known of it here.
                return self.drop_coordinated(turn, id);
            }
            for (position, (site, _)) in coordinated.participants.iter().enumerate() {
                if known >> position & 1 == 0 {
                    turn.send_object(*site, Message::Decide { id, commit });
                }
            }
            return self.look_soon(turn, id);
        }
        if coordinated.patience.is_some_and(|patience| patience <= turn.now.mono) {
            coordinated.patience = None;
            let ticket = Ticket { session: id.session, sequence: id.sequence };
            self.traces.note(turn.now, id, turn.site.me, Step::Undecided);
            turn.finished.push((ticket, Outcome::Unknown(Doubt::Undecided)));
        }
        if coordinated.is_check && coordinated.deadline < turn.now.wall {
            // It needs nobody's word to come to nothing.
            return self.decide(turn, id, Err(Abort::of(Cause::DeadlinePassed)));
        }
        let is_bereft = coordinated.lost != 0;
        // A client that was told that nothing is known yet has waited for longer than the deadline was to be ahead: so the wall
        // clock that shows it as still ahead has been set back since.
        let is_late = coordinated.deadline < turn.now.wall || coordinated.patience.is_none();
        if coordinated.parts.is_empty() || is_bereft || is_late {
            self.ask_participants(turn, id);
        } else {
            self.ask_to_prepare(turn, id);
        }
        self.look_soon(turn, id);
    }

    /// Asks what became of it; who has not prepared refuses it.
    pub fn ask_participants(&mut self, turn: &mut Turn, id: OperationId) {
        let Some(coordinated) = self.coordinated.get(&id).filter(|coordinated| coordinated.decided.is_none()) else {
            return;
        };
        if coordinated.is_check {
            return self.decide(turn, id, Err(Abort::of(Cause::Withdrawn)));
        }
        let (deadline, participants) = (coordinated.deadline, coordinated.participants.clone());
        let prepared = coordinated.prepared;
        for (site, _) in &participants {
            self.traces.note(turn.now, id, *site, Step::Inquired);
            if *site == turn.site.me {
                let known = self.known_here(turn, id, deadline, &participants);
                self.note_answers(turn, id, self.prepared_known(id));
                self.inquired_coordinator(turn, *site, id, known);
            } else {
                turn.send_object(
                    *site,
                    Message::Inquire { id, deadline, participants: participants.clone(), prepared },
                );
            }
        }
    }

    /// Another site knows that these have prepared.
    pub(super) fn note_answers(&mut self, turn: &mut Turn, id: OperationId, prepared: u64) {
        let undecided = self.coordinated.get_mut(&id).filter(|coordinated| coordinated.decided.is_none());
        let Some(coordinated) = undecided.filter(|_| id.site == turn.site.me) else { return };
        coordinated.prepared |= prepared & coordinated.all();
        if coordinated.are_all_prepared() {
            self.resolve(turn, id, Ok(()));
        }
    }

    /// An answer to that.
    pub(super) fn inquired_coordinator(&mut self, turn: &mut Turn, from: SiteId, id: OperationId, known: Known) {
        let Some(coordinated) = self.coordinated.get_mut(&id).filter(|coordinated| coordinated.decided.is_none())
        else {
            return;
        };
        let Some(position) = coordinated.position(from) else { return };
        let bit = 1 << position;
        match known {
            Known::Committed => return self.resolve(turn, id, Ok(())),
            Known::Refused => {
                let is_own = from == turn.site.me;
                let abort = if is_own { self.why_refused(id) } else { Abort::of(Cause::Withdrawn) };
                return self.resolve(turn, id, Err(abort));
            }
            Known::Prepared => coordinated.prepared |= bit,
            Known::Bereaved => {
                coordinated.prepared |= bit;
                coordinated.bereaved |= bit;
            }
            // What it said before it lost its storage still counts.
            Known::Lost => coordinated.lost |= bit,
            Known::Nothing => {}
        }
        if coordinated.are_all_prepared() {
            return self.resolve(turn, id, Ok(()));
        }
        if coordinated.lost == 0 {
            return;
        }
        if coordinated.participants.len() == 1 {
            // It alone knew what became of it.
            return self.give_up(turn, id);
        }
        let own = coordinated.position(turn.site.me).map_or(0, |own| 1 << own);
        if (coordinated.lost | coordinated.bereaved | own) & coordinated.all() == coordinated.all() {
            // Those who are left have told, since they know of the loss, whom they know to have prepared: not all. So nobody
            // can have shown anything.
            self.resolve(turn, id, Err(Abort::of(Cause::Lost)));
        }
    }

    /// Nobody can find out any more what became of it.
    fn give_up(&mut self, turn: &mut Turn, id: OperationId) {
        let ticket = Ticket { session: id.session, sequence: id.sequence };
        self.traces.end(turn.now, id, End::Lost);
        turn.finished.push((ticket, Outcome::Unknown(Doubt::HomeLost)));
        turn.batch.delete(&row::coordinator_key(id.session, id.sequence));
        self.drop_coordinated(turn, id);
    }

    fn resolve(&mut self, turn: &mut Turn, id: OperationId, result: Result<(), Abort>) {
        turn.metrics.doubts_resolved += 1;
        self.decide(turn, id, result);
    }

    /// What this site knows, as coordinator, of a transaction in which it takes no part. What took effect is known here until
    /// every participant has noted it, so one that asks about what is not known asks about what did not.
    pub(super) fn known_as_coordinator(&self, id: OperationId) -> Known {
        let Some(coordinated) = self.coordinated.get(&id) else { return Known::Refused };
        match coordinated.decided {
            Some((true, _)) => Known::Committed,
            Some((false, _)) => Known::Refused,
            None if coordinated.lost != 0 => Known::Bereaved,
            None => Known::Nothing,
        }
    }

    /// Whether a transaction can still be taken back: nobody else was asked, and it waits here. Takes it back if so.
    pub fn take_back(&mut self, turn: &mut Turn, id: OperationId) -> bool {
        let Some(coordinated) = self.coordinated.get(&id) else { return false };
        if coordinated.is_durable || coordinated.decided.is_some() {
            return false;
        }
        if self.entries.contains_key(&id) {
            self.refuse_part(turn, id, Abort::of(Cause::Withdrawn));
        }
        self.traces.end(turn.now, id, End::Aborted(Box::new(Abort::of(Cause::Withdrawn))));
        self.drop_coordinated(turn, id);
        true
    }
}
