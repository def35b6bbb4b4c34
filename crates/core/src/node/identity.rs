//! A site's identity through incarnations and lives: its knowledge of its own past, and the rows about it. `lives` has
//! the protocol by which a site makes sure of it.

use crate::api::Readiness;
use crate::avantan::Roster;
use crate::clock::{Now, SECOND, Slower};
use crate::codec::{Cursor, Malformed, put_i64, put_u64};
use crate::id::{Incarnation, Life, SiteId, SiteSet};
use crate::machine::Batch;
use crate::peer::quota::Forgotten;
use crate::rows::{META, PEER};
use crate::session::{Marks, Sessions};
use crate::stats::Rng;
use crate::turn::{Peer, Turn};

/// The layout of rows that this version writes. The first knew no runs of ended sessions, nor objects; the second no
/// calls; the third no marks of sessions; the fourth no names that were forgotten; the fifth no number of the next grant
/// beside these; the seventh no changes of the members.
pub(super) const VERSION: u64 = CHANGED;
/// The layout of storage that knows a change of the members. Without one, that before is written.
const CHANGED: u64 = 8;
/// The longest time between two notes of peers' positions, in microseconds, if these have moved by more than noting
/// moves them.
pub(super) const NOTE: u64 = 30 * SECOND;
/// The time between two notes of the uptime while holds are out, in microseconds.
pub(super) const UPTIME: u64 = SECOND;

/// A site's identity through incarnations and lives.
#[derive(Debug)]
pub(super) struct Identity {
    /// The progress of the start, and of the end. Always `Stale` once `stale` is set.
    pub(super) readiness: Readiness,
    /// The incarnation of this storage; zero until it has joined.
    pub(super) incarnation: Incarnation,
    /// The life of this start: one above that of the last start that wrote the row about the site.
    pub(super) life: Life,
    /// The name of this storage while it joins: drawn at random, and durable before it is told.
    pub(super) nonce: u64,
    /// How long it has been up.
    pub(super) age: Age,
    /// The question at the start, with its answers.
    pub(super) asking: Asking,
    /// The rows about the site and its peers.
    pub(super) rows: RowState,
    /// The evidence that the storage is an old copy; none if there is none.
    pub(super) stale: Option<Stale>,
    /// True until the first turn of this life in which the site serves.
    pub(super) first_turn: bool,
    /// The session marks as they stand in the row about the site.
    pub(super) marks: Marks,
    /// The number of the last change of the members for which others have attested that everything that they know has recorded it, and
    /// this incarnation. Means something only of an incarnation after the first.
    pub(super) whole: u64,
    /// Since when it gives its tokens away and grants nothing, by an operator's word, in this life's monotonic microseconds; none if it does
    /// not.
    pub(super) drained: Option<u64>,
}

/// How long a site has been up.
#[derive(Debug)]
pub(super) struct Age {
    /// The time at which this life began.
    pub(super) opened: Now,
    /// The uptime of all lives before this one, in microseconds.
    pub(super) before: u64,
    /// The time since the site was opened, by the slower of its two clocks.
    pub(super) steady: Slower,
}

/// The question of a site that starts to all others: what they know of it.
#[derive(Debug)]
pub(super) struct Asking {
    /// The name of this start, for as long as it lasts. An answer to another start does not count.
    pub(super) start: u64,
    /// The monotonic time at which the question is repeated.
    pub(super) hello_at: u64,
    /// The answers, by position of the peer, one of each at most; empty once the site serves.
    pub(super) welcomes: Vec<(usize, Welcome)>,
}

/// The rows about the site and its peers: what they tell, and which of them are to be written.
#[derive(Debug)]
pub(super) struct RowState {
    /// True if the row about the site has changed and is not written.
    pub(super) is_meta_dirty: bool,
    /// The peers, by position, whose rows have changed and are not written.
    pub(super) dirty_peers: SiteSet,
    /// The peers' log positions that their rows tell, or that were last marked to be written.
    pub(super) positions: Vec<u64>,
    /// The uptime that the row about the site tells, in microseconds.
    pub(super) uptime: u64,
    /// The monotonic time at which positions are noted although they have moved little.
    pub(super) note_at: u64,
}

/// The content of the row about the site, as far as it is checked against the configuration.
pub(super) struct Owner {
    /// The site whose storage it is.
    pub(super) site: SiteId,
    /// The seats of the lane, by position: shares, votes and totals are by member.
    pub(super) roster: Roster,
    /// The session marks.
    pub(super) marks: Marks,
}

/// The evidence that a storage is an old copy: something that another site knows of it, and that it does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stale {
    /// A later incarnation than the storage's own.
    Replaced {
        /// The later one.
        by: Incarnation,
    },
    /// More batches of the same incarnation than the storage holds.
    Behind {
        /// The last batch that the other site has heard of.
        position: u64,
    },
    /// Names that were forgotten later than the storage can have missed.
    Forgetful {
        /// The number of times that the other site has forgotten names.
        epoch: u64,
    },
    /// The site is a member no longer.
    Removed,
}

/// The answer of another site to the question at the start.
#[derive(Clone, Debug)]
pub(super) struct Welcome {
    /// True if the other site has an incarnation itself.
    pub(super) established: bool,
    /// The highest incarnation of this site that the other one knows, those noted for other storages included.
    pub(super) known: Incarnation,
    /// The incarnation that the other site has durably noted for this storage; zero if it has noted none.
    pub(super) noted: Incarnation,
    /// The highest log position of this site that the other one has heard of.
    pub(super) position: u64,
    /// The names that were forgotten; only the epoch where known storage asks.
    pub(super) forgotten: Forgotten,
}

impl Identity {
    /// The identity of new storage.
    pub(super) fn fresh(rng: &mut Rng, now: Now) -> Self {
        Self {
            readiness: Readiness::Joining,
            incarnation: Incarnation(0),
            life: Life(1),
            nonce: rng.draw(),
            age: Age { opened: now, before: 0, steady: Slower::new(now) },
            asking: Asking { start: rng.draw(), hello_at: now.mono, welcomes: Vec::new() },
            rows: RowState {
                is_meta_dirty: true,
                dirty_peers: SiteSet::default(),
                positions: Vec::new(),
                uptime: 0,
                note_at: now.mono + NOTE,
            },
            stale: None,
            first_turn: true,
            marks: Marks::default(),
            whole: 0,
            drained: None,
        }
    }

    /// Reads the row about the site.
    pub(super) fn restore(&mut self, row: &[u8], now: Now) -> Result<Owner, Malformed> {
        let mut cursor = Cursor(row);
        let version = cursor.u64()?;
        if version == 0 || version > VERSION {
            return Err(Malformed);
        }
        let mut part = || u16::try_from(cursor.u64()?).map_err(|_| Malformed);
        let site = SiteId { region: part()?, lane: part()? };

        // The nonce is that of the storage and stays: other sites may have noted an incarnation for it. The life is a
        // new one, so that nothing which is addressed to an earlier life counts in this one.
        self.nonce = cursor.u64()?;
        self.incarnation = Incarnation(cursor.u32()?);
        self.life = next_life(Life(cursor.u64()?));
        self.age.before = cursor.u64()?;
        self.rows.uptime = self.age.before;
        self.marks = Marks::decode(&mut cursor, version > 1)?;
        let members = (0..cursor.u64()?).map(|_| {
            let mut part = || u16::try_from(cursor.u64()?).map_err(|_| Malformed);
            Ok(SiteId { region: part()?, lane: part()? })
        });
        let members = members.collect::<Result<Vec<_>, Malformed>>()?;
        let mut roster = Roster::of(&members);
        if version >= CHANGED {
            self.whole = cursor.u64()?;
            self.drained = (cursor.u8()? == 1).then_some(now.mono);
            roster = Roster::decode(&mut cursor)?;
        }
        cursor.end()?;

        // Storage that joined in an earlier life is not believed before others have confirmed it: it may be an old
        // copy.
        self.age.opened = now;
        if self.incarnation > Incarnation(0) {
            self.readiness = Readiness::Confirming;
        }

        Ok(Owner { site, roster, marks: self.marks.clone() })
    }

    /// The time that the site has been up, over all lives of this storage, in microseconds.
    pub(super) fn uptime(&self, now: Now) -> u64 {
        self.age.before + now.mono.saturating_sub(self.age.opened.mono)
    }

    /// The monotonic time at which the question at the start is repeated; never, if there is nothing to ask.
    pub(super) fn deadline(&self) -> u64 {
        match self.readiness {
            Readiness::Ready | Readiness::Draining | Readiness::Stale => u64::MAX,
            _ => self.asking.hello_at,
        }
    }

    /// Marks the row about a peer to be written.
    pub(super) fn touch_peer(&mut self, position: usize) {
        self.rows.dirty_peers.insert(position);
    }

    /// Notes that a peer has a new incarnation, which counts its batches from one again.
    pub(super) fn meet_incarnation(&mut self, position: usize) {
        self.touch_peer(position);
        if let Some(noted) = self.rows.positions.get_mut(position) {
            *noted = 0;
        }
    }

    /// True if a row is to be written.
    pub(super) fn is_dirty(&self) -> bool {
        self.rows.is_meta_dirty || !self.rows.dirty_peers.is_empty()
    }

    /// The evidence that the storage is an old copy, if it is one.
    pub(super) fn stale(&self) -> Option<Stale> {
        self.stale
    }

    /// Notes that the storage is an old copy: the site does nothing more.
    pub(super) fn betray(&mut self, by: Stale) {
        self.stale = Some(by);
        self.readiness = Readiness::Stale;
    }

    /// True if nobody has vouched for the storage, so that nothing may be written to it.
    pub(super) fn is_unconfirmed(&self) -> bool {
        matches!(self.readiness, Readiness::Confirming | Readiness::Stale)
    }

    /// The highest incarnation that those know which have noted nothing for this new storage: it may take the place of that and earlier
    /// ones if a person says so. None if there are none of those.
    pub(super) fn predecessor(&self) -> Option<Incarnation> {
        let refusing = self.asking.welcomes.iter().filter(|(_, welcome)| welcome.noted == Incarnation(0));
        refusing.map(|(_, welcome)| welcome.known).max()
    }

    /// The highest incarnation that this new storage comes after by what was answered: that of who has noted nothing for it, and the one below
    /// the highest that was noted for it. None before there was an answer.
    pub(super) fn comes_after(&self) -> Option<Incarnation> {
        let noted = self.asking.welcomes.iter().filter_map(|(_, welcome)| welcome.noted.0.checked_sub(1));
        self.predecessor().max(noted.max().map(Incarnation))
    }

    /// The incarnation that this new storage may take, one of so many members: that which a majority of all has noted, without this site and
    /// without those that are joining. Any two of those share a site, which has noted different incarnations for different storages. Or
    /// else that which every other site has noted, as in a new cluster; the first, if there is none.
    pub(super) fn agreed(&self, members: usize) -> Option<Incarnation> {
        if members == 1 {
            return Some(Incarnation(1));
        }
        let welcomes = || self.asking.welcomes.iter().map(|(_, welcome)| welcome);
        let is_agreed = |number: &Incarnation| {
            let alike = || welcomes().filter(|welcome| welcome.noted == *number);
            let established = alike().filter(|welcome| welcome.established).count();
            established > members / 2 || alike().count() == members - 1
        };
        welcomes().map(|welcome| welcome.noted).find(is_agreed)
    }

    /// True if others have noted different incarnations for this new storage.
    pub(super) fn is_split(&self) -> bool {
        let mut noted = self.asking.welcomes.iter().map(|(_, welcome)| welcome.noted);
        noted.next().is_some_and(|first| noted.any(|other| other != first))
    }

    /// True if another site has answered this start's question.
    pub(super) fn has_answered(&self, peer: usize) -> bool {
        self.asking.welcomes.iter().any(|(position, _)| *position == peer)
    }

    /// The evidence that this storage is an old copy, if another site knows this incarnation and position of this site,
    /// and the storage's last batch is `last`.
    pub(super) fn betrayed_by(&self, last: u64, known: Incarnation, position: u64) -> Option<Stale> {
        match known {
            Incarnation::GONE => return Some(Stale::Removed),
            by if by > self.incarnation => return Some(Stale::Replaced { by }),
            _ => {}
        }

        // Whatever a site tells others is durable there before (the release rule): the true storage never has less.
        let is_behind = known == self.incarnation && position > last;
        is_behind.then_some(Stale::Behind { position })
    }

    /// The evidence that new storage takes the place of this one, if another site that knows this incarnation has `noted` a later one
    /// over it for other storage. What it noted over an earlier incarnation says nothing: this storage may have come after it.
    pub(super) fn replaced_by(&self, known: Incarnation, (noted, nonce): (Incarnation, u64)) -> Option<Stale> {
        let is_replaced = known == self.incarnation && noted > known && nonce != self.nonce;
        is_replaced.then_some(Stale::Replaced { by: noted })
    }

    /// Returns true at the first turn of this life in which the site serves, and only there.
    pub(super) fn take_first_turn(&mut self) -> bool {
        std::mem::take(&mut self.first_turn)
    }

    /// Takes the session marks over, if they have changed.
    pub(super) fn note_marks(&mut self, sessions: &Sessions) {
        if !sessions.are_marks(&self.marks) {
            self.rows.is_meta_dirty = true;
            self.marks = sessions.marks();
        }
    }

    /// Writes the rows that have changed.
    pub(super) fn persist(
        &mut self,
        turn: &mut Turn,
        sessions: &Sessions,
        counts_uptime: bool,
        roster: &Roster,
        is_new: bool,
    ) {
        // Not while it is being confirmed: an old copy that is written to would catch up, batch by batch and start by
        // start, with the position that betrays it.
        self.note_marks(sessions);
        if self.is_unconfirmed() {
            return;
        }

        // While something ends by it, the uptime goes along with what is written anyway: after a crash less of it is
        // missing, and holds are extended by less.
        if counts_uptime && !turn.out.batch.is_empty() && turn.here.uptime >= self.rows.uptime + UPTIME {
            self.rows.is_meta_dirty = true;
        }
        if std::mem::take(&mut self.rows.is_meta_dirty) || is_new {
            self.rows.uptime = turn.here.uptime;
            self.put_meta(&mut turn.out.batch, turn.here.site.me, roster, turn.here.uptime);
        }

        let dirty = std::mem::take(&mut self.rows.dirty_peers);
        for (position, peer) in turn.here.peers.iter().enumerate().filter(|(position, _)| dirty.contains(*position)) {
            put_peer(&mut turn.out.batch, position, peer);
        }
    }

    /// Writes the row about the site.
    fn put_meta(&self, batch: &mut Batch, me: SiteId, roster: &Roster, uptime: u64) {
        let mut row = Vec::with_capacity(48);

        // An earlier version opens the storage of a cluster whose members never changed.
        let is_changed = roster.number > 0 || self.drained.is_some();
        put_u64(&mut row, if is_changed { CHANGED } else { CHANGED - 1 });
        put_u64(&mut row, u64::from(me.region));
        put_u64(&mut row, u64::from(me.lane));
        put_u64(&mut row, self.nonce);
        put_u64(&mut row, u64::from(self.incarnation.0));
        put_u64(&mut row, self.life.0);
        put_u64(&mut row, uptime);
        self.marks.encode(&mut row);
        put_u64(&mut row, roster.seats.len() as u64);
        for site in roster.members() {
            put_u64(&mut row, u64::from(site.region));
            put_u64(&mut row, u64::from(site.lane));
        }
        if is_changed {
            put_u64(&mut row, self.whole);
            row.push(u8::from(self.drained.is_some()));
            roster.encode(&mut row);
        }

        batch.put(&[META], &row);
    }
}

/// Writes the row about a peer.
fn put_peer(batch: &mut Batch, position: usize, peer: &Peer) {
    let mut row = Vec::with_capacity(32);
    put_i64(&mut row, i64::from(peer.site.region));
    put_i64(&mut row, i64::from(peer.site.lane));
    put_u64(&mut row, u64::from(peer.incarnation.0));
    put_u64(&mut row, peer.position);
    put_u64(&mut row, u64::from(peer.noted.0.0));
    put_u64(&mut row, peer.noted.1);
    batch.put(&[PEER, position as u8], &row);
}

/// The layout version that the row about the site tells.
pub(super) fn layout_of(row: &[u8]) -> Result<u64, Malformed> {
    Cursor(row).u64()
}

/// Restores a row about a peer; one about a site that is no member is passed over.
pub(super) fn restore_peer(peers: &mut [Peer], key: &[u8], value: &[u8]) -> Result<(), Malformed> {
    if key.len() != 2 {
        return Err(Malformed);
    }
    let mut cursor = Cursor(value);
    let mut part = || u16::try_from(cursor.i64()?).map_err(|_| Malformed);
    let site = SiteId { region: part()?, lane: part()? };
    let (incarnation, position) = (Incarnation(cursor.u32()?), cursor.u64()?);
    let noted = (Incarnation(cursor.u32()?), cursor.u64()?);
    cursor.end()?;

    if let Some(peer) = peers.iter_mut().find(|peer| peer.site == site) {
        (peer.incarnation, peer.position, peer.noted) = (incarnation, position, noted);
    }

    Ok(())
}

/// The number of a site's next life: one more at each start.
pub(crate) fn next_life(life: Life) -> Life {
    Life(life.0 + 1)
}
