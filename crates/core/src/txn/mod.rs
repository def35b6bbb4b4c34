//! Objects and strictly serializable transactions over them (Warranties, NSDI 2014; Predictive Treaties, EuroSys 2019,
//! §6).
//!
//! A program runs against its site: it reads (from storage, from a copy, or at the object's home), buffers what it
//! writes, and asks the site to commit. Nothing is locked while it runs. Whether what it read is still so is judged at
//! the end, at the objects' homes, or by the site alone where live [warranties](crate::warranty) prove it.
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
//! coordinator only finds out; its record is a hint for whom to ask. A site in doubt asks the others: one that has not
//! prepared refuses permanently, and the transaction is aborted; if all have, it is committed. So nobody stays in doubt
//! while the other participants can be reached, with the coordinator or without.
//!
//! # Lost storage
//!
//! A participant that loses its storage loses its objects, and what it knew. What the others have must still be all of
//! the transaction, or nothing. So nobody shows its effects on its own knowledge alone: before a participant carries
//! its part out, the others know that all are prepared, or can tell it from what is durable there. That is why the
//! coordinator prepares its own part first, why the last of several participants to prepare waits for the decision, why
//! questions and answers carry the set of those known to have prepared, and why a site in doubt goes by answers only.
//! If one is lost, and what the others know together does not show that it had prepared, nobody has shown anything, and
//! they abort. (If a second storage is lost before the transactions of the first are settled, a transaction may be left
//! aborted at one site whose client was told that it committed.)
//!
//! # Why it is strictly serializable
//!
//! Take the instant at which the last participant prepares. Up to there, each part that was prepared earlier is locked:
//! what it read and will write cannot change. What rests on a right cannot change before the right ends, and the
//! participants refuse after the deadline, which is ε before that. So at that instant nothing that was read has
//! changed, and nobody else can see or change what is written until it is carried out. The transaction takes effect
//! there, between its beginning and its end. Order comes from locks and validation, never from time stamps.
//!
//! # Parts
//!
//! Four rooms share no fields. A room tells another what it would tell that of another site: messages to this site
//! itself are delivered within the same call. What must be of one instant is asked by a call instead, of a room that is
//! lent for it: a read of this site's own objects asks the participant, a part that is judged or carried out asks
//! `calls` what it covers and depends on, and what is this site's alone is judged without a question.
//!
//! | room | what it is about | with it |
//! | --- | --- | --- |
//! | `participant` | the home of this site's objects: prepare, defend, vote, carry out; `doubt`: find out | `locks`: what prepared transactions hold, and the check of a part; `spans`: the spans that a name is in; `leaves`, `treaties`: what it keeps true for treaties; `claims`, `turns`: whose turn it is; `serve`: answering reads; `table`: what storage holds |
//! | `coordinator` | the transactions that this site coordinates: 1 or 2 phases | `trace`: what is remembered of them, for those who ask why |
//! | `reader` | what this site reads for its clients | `cache`: copies of others' objects, and the rights held over them |
//! | `calls` | calls of memoized functions | `dependents`: which depend on what is here |
//!
//! Here is what leads through all of them: a commit, which sorts a transaction and may judge it at once, and the way of
//! a message to its room. `chapter` is the face to the node, `row` the rows, `fingerprint` compares states for the
//! model check.

mod cache;
mod calls;
mod chapter;
mod claims;
mod coordinator;
mod dependents;
mod doubt;
mod fingerprint;
mod leaves;
mod locks;
mod participant;
mod participation;
mod reader;
mod retraction;
mod row;
mod serve;
mod spans;
mod table;
mod trace;
mod treaties;
mod turns;
mod waits;

use crate::api::{LeafHere, Outcome};
pub use crate::bounds::READ_ITEMS;
use crate::clock::Now;
use crate::id::{Incarnation, OperationId, SiteId, SiteSet};
use crate::machine::View;
use crate::object::message::{Known, Message};
use crate::object::trace::{End, Trace};
use crate::object::treaty::Treaty;
use crate::object::{Abort, Change, Home, ObjectKey, Rank, Transaction, Value};
use crate::peer::Body;
use crate::right::{Start, WarrantyNumber};
use crate::rows::OBJECT;
use crate::turn::{Here, Ticket, Turn};
use crate::warranty::LONGEST;
use calls::Calls;
use coordinator::{Begun, Coordinator, Ended, site_of};
use participant::Participant;
pub use participation::Stage;
use reader::Reader;
pub use table::Table;
pub use trace::{EVENTS, RIGHTS, TRACE_BYTES, TRACES};

/// The counter that a row of a batch is of, for those that watch sites: its incarnation, its name and the number that it has come to;
/// zero if the row is removed. None of any other row.
pub fn counter_of_row<'a>(key: &'a [u8], row: Option<&[u8]>) -> Option<(Incarnation, &'a str, i64)> {
    let (tag, rest) = key.split_first()?;
    let (incarnation, name) = rest.split_at_checked(4).filter(|_| *tag == OBJECT)?;
    let head = row.map(|row| table::decode_head(Incarnation(0), row).ok());
    let count = head.map_or(Some(0), |head| head?.holds.count())?;
    let incarnation = Incarnation(u32::from_be_bytes(incarnation.try_into().ok()?));
    Some((incarnation, std::str::from_utf8(name).ok()?, count))
}

/// Objects and transactions at one site.
#[derive(Clone, Debug)]
pub struct Txns {
    /// This site.
    me: SiteId,
    /// The start in which the site serves; the default before it does.
    start: Start,
    /// The room that judges and carries out parts over objects of this home.
    participant: Participant,
    /// The room that sees the transactions of this site's clients through.
    coordinator: Coordinator,
    /// The room that reads for this site's clients, and holds copies and rights.
    reader: Reader,
    /// The room of memoized calls.
    calls: Calls,
}

/// An operation that commits a transaction.
struct Commit {
    /// The operation's id, which is the transaction's too.
    id: OperationId,
    /// What its client read and wants to write.
    transaction: Transaction,
    /// The time after which its client is to hear something, in microseconds.
    timeout: u64,
    /// The session's mark and the digest of its operation.
    marks: (u64, u64),
}

impl Txns {
    /// The objects of a site with new storage: none. `token` is where the tokens of its questions begin.
    pub fn new(me: SiteId, token: u64) -> Self {
        Self {
            me,
            start: Start::default(),
            participant: Participant::new(token),
            coordinator: Coordinator::default(),
            reader: Reader::new(token),
            calls: Calls::default(),
        }
    }

    // For status, metrics and invariants.

    /// The keys of its resident rows.
    pub fn rows(&self) -> Vec<Vec<u8>> {
        let rows = self.participant.rows().chain(self.coordinator.rows()).chain(self.calls.rows());
        let mut rows: Vec<Vec<u8>> = rows.collect();
        rows.sort_unstable();
        rows
    }

    /// The start in which the site serves, as far as it was told.
    pub fn start(&self) -> Start {
        self.start
    }

    /// The leaves of treaties that are kept here.
    pub fn leaves(&self, now: Now) -> Vec<LeafHere> {
        self.participant.leaves.show(now, &self.participant.locks, None, usize::MAX)
    }

    /// True if a leaf of a treaty is prepared here, and it is undecided whether the treaty is made.
    pub fn is_making(&self, treaty: &ObjectKey) -> bool {
        self.participant.leaves.is_making(treaty)
    }

    /// The numbers of transactions under way here, as coordinator and as participant.
    pub fn under_way(&self) -> (usize, usize) {
        (self.coordinator.coordination.len(), self.participant.entries.len())
    }

    /// Transactions whose parts wait here for rights of other sites to end.
    pub fn defending(&self) -> impl Iterator<Item = OperationId> {
        self.participant.defending.iter().copied()
    }

    /// Its durable marks, in microseconds since 1970: unknown transactions with a deadline up to the first are refused;
    /// every right that was ever sent ends below the second.
    pub fn marks(&self) -> (i64, i64) {
        (self.participant.numbers.deadline, self.participant.numbers.rights)
    }

    /// Parts here that wait or are in doubt, with their deadlines and all participants.
    pub fn undecided(&self) -> impl Iterator<Item = (OperationId, Stage, i64, impl Iterator<Item = SiteId>)> {
        let is_undecided =
            |entry: &&participation::Participation| matches!(entry.stage(), Stage::Defending | Stage::Prepared);
        let entries = self.participant.entries.iter().filter(move |(_, entry)| is_undecided(entry));
        entries
            .map(|(id, entry)| (*id, entry.stage(), entry.deadline, entry.participants.iter().map(|(site, _)| *site)))
    }

    /// A right on which a transaction under way rests; true if the deadline of the transaction is the end of that
    /// right.
    pub fn rests_on(&self, id: OperationId) -> Option<(&ObjectKey, bool)> {
        let (rests, deadline) = self.coordinator.rests_of(id)?;
        let held = |key: &&ObjectKey| self.reader.cache.held(key);
        let first = rests.iter().find(|key| held(key).is_some_and(|held| held.expiry == deadline));
        first.map(|key| (key, true)).or_else(|| Some((rests.first()?, false)))
    }

    /// The trace of a transaction that this site coordinated in this life, while it is kept.
    pub fn explain(&self, id: OperationId) -> Option<&Trace> {
        self.coordinator.traces.find(id)
    }

    /// The number of objects over which other sites hold warranties.
    pub fn warranties(&self) -> usize {
        self.participant.issuer.len()
    }

    /// The number of copies of other sites' objects.
    pub fn copies(&self) -> usize {
        self.reader.cache.len()
    }

    /// True if this site would rely on a treaty of another home now, without asking that: it holds a live right over a valid one.
    pub fn relies_on(&self, now: Now, epsilon: u64, treaty: &ObjectKey) -> bool {
        let relied = self.reader.cache.relied(now, epsilon, treaty);
        relied.and_then(|seen| seen.value.as_ref()).is_some_and(Treaty::is_valid_in)
    }

    /// The number of programs that have their turn here, and of reads that wait for theirs.
    pub fn turns(&self) -> usize {
        self.participant.claims.len()
    }

    /// True if a right that was issued here is over an object that a program has claimed.
    pub fn is_over_claimed(&self, number: WarrantyNumber) -> bool {
        let object = self.participant.issuer.object_of(number);
        object.is_some_and(|name| self.participant.claims.is_claimed(name))
    }

    /// True if nothing is prepared here and undecided.
    pub fn is_settled(&self) -> bool {
        self.participant.locks.is_empty()
    }

    /// True if something is unsettled here in which an incarnation of a site before this one took part: until it is
    /// settled, the loss of another storage may split it.
    pub fn depends_on_lost(&self, site: SiteId, incarnation: Incarnation) -> bool {
        let is_lost = |(other, life): &(SiteId, Incarnation)| *other == site && *life < incarnation;
        let in_part = self.participant.entries.iter().any(|(id, entry)| {
            matches!(entry.stage(), Stage::Prepared | Stage::Committed)
                && (is_lost(&(id.site, id.incarnation)) || entry.participants.iter().any(is_lost))
                && !entry.is_known_by_all(*id)
        });
        in_part
            || self.coordinator.coordination.values().any(|coordination| coordination.participants.iter().any(is_lost))
    }

    /// This site's objects, as far as the view has them.
    pub fn table<'a>(&self, here: &Here<'a>, view: &'a View) -> Table<'a> {
        self.participant.table(here, view)
    }

    // A commit.

    /// Commits a transaction; none if its outcome follows.
    fn commit(&mut self, turn: &mut Turn, table: &Table, ticket: Ticket, commit: Commit) -> Option<Outcome> {
        // Once only: its client was told that it is undecided, and repeats it while it is still under way.
        let id = ticket.operation(&turn.here);
        if self.coordinator.coordination.contains_key(&id) {
            return None;
        }

        self.participant.note_clocks(&turn.here);
        self.coordinator.traces.begin(turn.here.now, id);
        let Commit { mut transaction, timeout, marks, .. } = commit;
        let begun = transaction.normalize();
        let begun = begun.and_then(|()| self.begin(turn, table, Commit { id, transaction, timeout, marks }));

        // An outcome that is known now is recorded by the caller in this call's batch, with the effects.
        match begun {
            Err(abort) => {
                self.reader.note_stale(&abort);
                turn.out.metrics.aborted += 1;
                self.coordinator.traces.end(turn.here.now, id, End::Aborted(Box::new(abort.clone())));
                Some(Outcome::Aborted(Box::new(abort)))
            }
            Ok(Some(phases)) => {
                turn.out.metrics.committed[usize::from(phases)] += 1;
                self.coordinator.traces.end(turn.here.now, id, End::Committed { phases });
                Some(Outcome::Committed { phases })
            }
            Ok(None) => None,
        }
    }

    /// Sorts a transaction by home, leaves out the reads that rights prove, and judges what is left at once if it is
    /// this site's alone; begins the phases if not. Returns the number of phases if it is done already.
    fn begin(&mut self, turn: &mut Turn, table: &Table, commit: Commit) -> Result<Option<u8>, Abort> {
        let Commit { id, transaction, timeout, marks } = commit;
        let me = turn.here.site.me;
        let rank = Rank::of(transaction.origin, turn.here.now.wall);
        let mut homes = transaction.homes;
        let mut sites = Vec::with_capacity(homes.len());
        for home in &homes {
            sites.push(site_of(&turn.here, home)?);
        }
        note_what_calls_rest_on(&turn.here, &mut homes);

        // A home that is asked anyway validates what was read there too. Else two writers that each rest on a right
        // over what the other one writes would wait for each other until those end. (Decision: writers validate where
        // they write.)
        let farthest = homes.iter().zip(&sites).filter(|(home, _)| !home.part.writes.is_empty());
        let way = farthest.map(|(_, site)| turn.here.round_trip(*site)).max().unwrap_or(0);
        let (mut rests, mut until) = (Vec::new(), i64::MAX);
        for (home, _) in homes.iter_mut().zip(&sites).filter(|(home, site)| **site != me && !home.part.changes()) {
            self.reader.rest_on_rights(&turn.here, home, way, &mut rests, &mut until);
        }
        let left = homes.into_iter().zip(sites).filter(|(home, _)| !home.part.is_empty());
        let parts = left.map(|(home, site)| (site, turn.here.incarnation_of(site), home.part));
        let parts: Vec<(SiteId, Incarnation, _)> = parts.collect();
        self.coordinator.traces.sort(&mut rests, &parts);

        // Nothing left: every read is proved by a right that is live at this one instant, and the transaction takes
        // effect here, in no phase. Only this site left: its checks and its effects are in one call and one batch,
        // which nothing comes between. A part that must wait for rights of others is prepared like any other.
        let Self { participant, calls, .. } = self;
        match &parts[..] {
            [] => return Ok(Some(0)),
            [(site, _, part)] if *site == me && !participant.must_wait(&turn.here, part) => {
                participant.judge(&turn.here, table, calls, rank, part)?;
                participant.take_notes(&turn.here, table, part);
                participant.apply(turn, Some(table), calls, part);
                participant.look_ahead(turn, part);
                return Ok(Some(u8::from(part.changes())));
            }
            _ => {}
        }
        self.coordinator.admit(turn, &parts)?;

        // The rights over what it writes are given up before anybody is asked: its own home would else have to ask this
        // site for them first. Those that it rests on are pinned until it is decided, or a home could change what was
        // read meanwhile.
        let released = parts.iter().map(|(site, _, part)| match *site == me {
            true => WarrantyNumber::default(),
            false => {
                let names = part.writes.iter().map(|(name, _)| name);
                self.reader.cache.release(turn.here.now, site.region, names)
            }
        });
        let released = released.collect();

        // The deadline is no later than the end of any right that it rests on: participants refuse from when it may be past, so at
        // the instant when the last one prepares, each of those rights still holds.
        let deadline = turn.here.now.wall.saturating_add_unsigned(timeout.min(LONGEST)).min(until);
        let rests: Vec<ObjectKey> = rests.into_iter().map(|proof| proof.key).collect();
        self.reader.pin(&turn.here, id, &rests, deadline);
        let max_wait = transaction.max_wait;
        let begun = Begun { id, parts, released, rests, deadline, max_wait, timeout, rank, marks };
        self.coordinator.start_phases(turn, begun);
        Ok(None)
    }

    // Messages.

    /// Delivers what the rooms say to each other, until nobody has anything to say.
    fn settle(&mut self, turn: &mut Turn, table: &Table) {
        loop {
            // Rights are unpinned as soon as their transaction is decided, within the call: a home may be waiting for
            // them.
            for Ended { id, rests, abort, is_retracted } in std::mem::take(&mut self.coordinator.ended) {
                self.reader.unpin(turn, id, &rests);
                abort.iter().for_each(|abort| self.reader.note_stale(abort));
                if is_retracted {
                    self.participant.retract(turn, id);
                }
            }

            // What this site tells itself is in the same batch as the reason for it, so that it counts before it is
            // durable.
            let Some(message) = turn.out.take_own() else {
                // Nobody is left to answer for a member that is gone. What would be asked of it is answered here.
                let answers = stand_in(turn);
                if answers.is_empty() {
                    return;
                }
                answers.into_iter().for_each(|(from, message)| self.hear(turn, table, from, message));
                continue;
            };
            let Body::Txn(message) = message else { unreachable!("each chapter takes up what it says to itself") };
            self.hear(turn, table, turn.here.site.me, *message);
        }
    }

    /// Does the same where nothing that is said needs storage.
    fn settle_without_storage(&mut self, turn: &mut Turn) {
        let view = View::empty();
        let table = self.table(&turn.here, &view);
        self.settle(turn, &table);
    }

    /// Hands a message to the room that it concerns.
    fn hear(&mut self, turn: &mut Turn, table: &Table, from: SiteId, message: Message) {
        let Self { participant, coordinator, reader, calls, .. } = self;
        let me = turn.here.site.me;
        match message {
            // To the home of objects.
            Message::Fetch(fetch) => participant.fetch(turn, table, calls, from, *fetch),
            Message::Revoked { holder, rights } => participant.given_up(&turn.here, from, holder, rights),
            Message::Prepare(prepare) if !prepare.part.keeps_bounds() => turn.out.metrics.ignored += 1,
            Message::Prepare(prepare) => {
                let id = prepare.id;
                if let Some(vote) = participant.prepare(turn, table, calls, *prepare) {
                    turn.out.send(id.site, Message::Vote { id, vote });
                }
            }
            Message::Forget { id } => participant.forget_part(turn, id),

            // To the coordinator.
            Message::Vote { id, vote } if id.site == me => {
                if id.incarnation == turn.here.site.incarnation {
                    coordinator.voted(turn, from, id, vote);
                }
            }
            Message::Vote { .. } => turn.out.metrics.ignored += 1,

            // To both: a participant tells its decision to the coordinator too, which may be in doubt itself.
            Message::Decide { id, commit } => {
                participant.decide_part(turn, calls, from, id, commit);
                if id.site == me && from != me {
                    let known = if commit { Known::Committed } else { Known::Refused };
                    coordinator.inquired(turn, from, id, known);
                }
            }
            Message::Decided { id } => {
                participant.knows(turn, from, id);
                coordinator.noted(turn, from, id);
            }
            Message::Inquire { id, deadline, participants, prepared } => {
                // What the question tells is noted before it is answered: the answer then says all that either of the
                // two knows.
                participant.note_prepared(turn, id, prepared);
                if id.site == me {
                    coordinator.note_answers(turn, id, prepared);
                }

                // A coordinator of an earlier incarnation is lost like a participant: it may have told its client an
                // outcome.
                let known = if id.site == me && id.incarnation != turn.here.site.incarnation {
                    Known::Lost
                } else if participants.iter().any(|(site, _)| *site == me) {
                    participant.known_here(turn, id, deadline, &participants)
                } else if id.site == me {
                    coordinator.known(id)
                } else {
                    Known::Nothing
                };
                let prepared = participant.prepared_known(id);
                turn.out.send(from, Message::Inquired { id, known, prepared });
            }
            Message::Inquired { id, known, prepared } if id.site == me => {
                coordinator.note_answers(turn, id, prepared);
                coordinator.inquired(turn, from, id, known);
            }
            Message::Inquired { id, known, prepared } => {
                participant.inquired(turn, calls, from, id, (known, prepared));
            }

            // To the leaves of treaties, and to their homes.
            Message::Treaty { treaty, nonce, says } => {
                participant.hear_of_treaty(turn, table, calls, from, (treaty, nonce), says);
            }

            // To the reader.
            Message::Fetched(fetched) => reader.fetched(turn, from, *fetched),
            Message::Revoke { holder, rights } => reader.revoke(turn, from, holder, rights),

            // About calls.
            Message::ProbeCalls { start, stamp, names } => {
                participant.tell_absent(turn, table, from, (start, stamp), names);
            }
            Message::AbsentCalls { start, stamp, names } => calls.gone(turn, from, (start, stamp), names),
        }
    }
}

/// Whoever finds nothing in a span sees no version, and so no incarnation of its home. A call that was computed from that rests on the one by
/// which the span is judged, in this transaction.
fn note_what_calls_rest_on(here: &Here, homes: &mut [Home]) {
    let judged: Vec<u16> = homes.iter().map(|home| home.region).collect();
    for (_, change) in homes.iter_mut().flat_map(|home| &mut home.part.writes) {
        let Change::Put(Value::Derived(derived)) = change else { continue };
        let unseen = derived.homes.iter_mut().filter(|(_, incarnation)| *incarnation == Incarnation(0));
        for (region, incarnation) in unseen.filter(|(region, _)| judged.contains(region)) {
            *incarnation = here.incarnation_of(SiteId::new(*region, here.site.me.lane));
        }
    }
}

/// What members that are gone would answer to what is said to them in this call, if they had come back with new storage: that all they
/// knew is lost, and that they have noted what was decided. It is taken out of what is sent.
fn stand_in(turn: &mut Turn) -> Vec<(SiteId, Message)> {
    let site = turn.here.site;
    if site.gone.is_empty() {
        return Vec::new();
    }
    // One that this site has not heard of yet is a new member, and answers for itself.
    let is_gone = |(to, _): &mut (SiteId, Body)| site.gone.contains(to);
    let said = turn.out.sends.extract_if(.., is_gone).filter_map(|(to, body)| match body {
        Body::Txn(message) => Some((to, *message)),
        _ => None,
    });
    let answer = |(of, message)| match message {
        Message::Inquire { id, .. } => {
            Some((of, Message::Inquired { id, known: Known::Lost, prepared: SiteSet::default() }))
        }
        Message::Prepare(prepare) => {
            Some((of, Message::Inquired { id: prepare.id, known: Known::Lost, prepared: SiteSet::default() }))
        }
        Message::Decide { id, .. } => Some((of, Message::Decided { id })),
        _ => None,
    };
    said.filter_map(answer).collect()
}
