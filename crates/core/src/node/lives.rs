//! Lives and incarnations: how a site makes sure that it never acts on a past that is not its newest.
//!
//! Tokens, votes and outcomes belong to an **incarnation**: one storage, from when it was new until it is lost. Every
//! message carries its sender's incarnation and log position; receivers remember the highest.
//!
//! - **New storage** *joins*: it draws a nonce, makes it durable, and asks all others what they know (`Hello`). Each
//!   durably notes, for this nonce, an incarnation above all that it ever heard of or noted for this site, before it answers
//!   (`Welcome`). The site takes the highest of the answers, once a majority of *all* has answered, counted without itself and
//!   without those that are joining too; or once every other site has answered, which is how a new cluster starts. So
//!   two storages of one site never get the same incarnation, and only the very first gets 1.
//! - **New storage of a site that others know** waits for a person's word. To note a higher incarnation is to declare the
//!   earlier storage lost, and an empty directory is no evidence of that: the volume may just not be mounted. So a site that
//!   knows an earlier incarnation notes nothing, and says so, unless the question carries the word
//!   ([`crate::config::Config::new_storage`]). One such answer is enough to wait, and who waits vouches for no new storage.
//! - **Known storage** is *confirmed*: enough others (a majority of sites with an incarnation, together with itself; or all
//!   others) say what they have heard. One that
//!   knows a higher incarnation, or a log position beyond the end of this log, proves that this storage is an old copy.
//!   The machine then does nothing more: its driver keeps the storage as it is, aside, and opens the site on new storage.
//!   Until it is confirmed, nothing is written to it: its position would catch up with what betrays it.
//!
//! A copy that is older than what was lost, but not older than anything that others have heard of, cannot be told from the
//! truth; sites tell their position at least once a second.
//!
//! [`crate::avantan`] says why a new incarnation does not vote at once.

use super::{Node, PING, next_life};
use crate::api::Readiness;
use crate::clock::{MILLISECOND, Now, Offset, SECOND};
use crate::codec::{Cursor, Malformed, put_i64, put_u64};
use crate::id::{Incarnation, Life, SiteId};
use crate::machine::Batch;
use crate::peer::{Body, Forgotten};
use crate::session::{Marks, Sessions};
use crate::stats::Rng;
use crate::turn::{Peer, Turn};

/// Tag of the row about the site itself.
pub(super) const META: u8 = 0x01;
/// Tag of the rows about peers.
pub(super) const PEER: u8 = 0x02;
/// The layout of rows that this version writes. The first knew no runs of ended sessions, nor objects; the second no calls; the
/// third no marks of sessions; the fourth no names that were forgotten.
pub(super) const VERSION: u64 = 5;
/// How often a question at the start is repeated.
const HELLO: u64 = 300 * MILLISECOND;
/// A peer's position is noted durably when it has moved on by this many batches, or after [`NOTE`].
const NOTED: u64 = 64;
/// How often peers' positions are noted durably at least, if they have moved by more than noting itself moves them.
const NOTE: u64 = 30 * SECOND;
/// How often the uptime is noted durably while holds are out.
const UPTIME: u64 = SECOND;

/// A site's storage through incarnations and lives.
#[derive(Debug)]
pub(super) struct Lineage {
    pub(super) readiness: Readiness,
    pub(super) incarnation: Incarnation,
    pub(super) life: Life,
    /// Names this storage while it joins.
    nonce: u64,
    /// Names this start, or this attempt to join.
    start: u64,
    pub(super) opened: Now,
    /// Uptime of all lives before this one.
    uptime_before: u64,
    uptime_noted: u64,
    hello_at: u64,
    note_at: u64,
    welcomes: Vec<(usize, Welcome)>,
    /// The row about the site has changed.
    meta_dirty: bool,
    /// The rows about these peers have changed, by position.
    peers_dirty: u64,
    /// Peers' positions as last noted.
    noted: Vec<u64>,
    /// What betrayed the storage as an old copy.
    stale: Option<Stale>,
    first_turn: bool,
    marks: Marks,
}

/// What the row about the site tells of it.
pub(super) struct Owner {
    /// Whose storage it is.
    pub(super) site: SiteId,
    /// The sites of the lane. They are fixed: shares, votes and totals are by member.
    pub(super) members: Vec<SiteId>,
    /// The session marks.
    pub(super) marks: Marks,
}

/// What another site knows that the storage of this one does not.
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
        /// How often the other site has forgotten names.
        epoch: u64,
    },
}

#[derive(Clone, Debug)]
struct Welcome {
    established: bool,
    known: Incarnation,
    noted: Incarnation,
    position: u64,
    forgotten: Forgotten,
}

impl Lineage {
    pub(super) fn fresh(rng: &mut Rng, now: Now) -> Self {
        Self {
            readiness: Readiness::Joining,
            incarnation: Incarnation(0),
            life: Life(1),
            nonce: rng.draw(),
            start: rng.draw(),
            opened: now,
            uptime_before: 0,
            uptime_noted: 0,
            hello_at: now.mono,
            note_at: now.mono + NOTE,
            welcomes: Vec::new(),
            meta_dirty: true,
            peers_dirty: 0,
            noted: Vec::new(),
            stale: None,
            first_turn: true,
            marks: Marks::default(),
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
        self.nonce = cursor.u64()?;
        self.incarnation = Incarnation(cursor.u32()?);
        self.life = next_life(Life(cursor.u64()?));
        self.uptime_before = cursor.u64()?;
        self.uptime_noted = self.uptime_before;
        self.marks = Marks::decode(&mut cursor, version > 1)?;
        let members = (0..cursor.u64()?).map(|_| {
            let mut part = || u16::try_from(cursor.u64()?).map_err(|_| Malformed);
            Ok(SiteId { region: part()?, lane: part()? })
        });
        let members = members.collect::<Result<_, Malformed>>()?;
        cursor.end()?;
        self.opened = now;
        if self.incarnation > Incarnation(0) {
            self.readiness = Readiness::Confirming;
        }
        Ok(Owner { site, members, marks: self.marks.clone() })
    }

    /// Microseconds that the site has been up, over all lives of this storage.
    pub(super) fn uptime(&self, now: Now) -> u64 {
        self.uptime_before + now.mono.saturating_sub(self.opened.mono)
    }

    /// When the uptime will be that.
    pub(super) fn mono_at(&self, uptime: u64) -> u64 {
        self.opened.mono.saturating_add(uptime.saturating_sub(self.uptime_before))
    }

    pub(super) fn deadline(&self) -> u64 {
        match self.readiness {
            Readiness::Ready | Readiness::Draining if !self.first_turn => u64::MAX,
            Readiness::Ready | Readiness::Draining => 0,
            Readiness::Stale => u64::MAX,
            _ => self.hello_at,
        }
    }

    pub(super) fn touch_peer(&mut self, position: usize) {
        self.peers_dirty |= 1 << position;
    }

    /// A peer has a new incarnation, which counts its batches from one again.
    pub(super) fn meet_incarnation(&mut self, position: usize) {
        self.touch_peer(position);
        if let Some(noted) = self.noted.get_mut(position) {
            *noted = 0;
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.meta_dirty || self.peers_dirty != 0
    }

    /// What betrayed the storage as an old copy, if it is one.
    pub(super) fn stale(&self) -> Option<Stale> {
        self.stale
    }

    /// Whether nobody has vouched for the storage: nothing may be written to it.
    pub(super) fn is_unconfirmed(&self) -> bool {
        matches!(self.readiness, Readiness::Confirming | Readiness::Stale)
    }

    /// The highest incarnation that another site knows, while new storage waits for a person's word.
    pub(super) fn predecessor(&self) -> Option<Incarnation> {
        let refusing = self.welcomes.iter().filter(|(_, welcome)| welcome.noted == Incarnation(0));
        let known = refusing.map(|(_, welcome)| welcome.known).max();
        known.filter(|_| self.readiness == Readiness::AwaitingNewStorage)
    }

    /// Whether another site has answered this start's question.
    pub(super) fn has_answered(&self, peer: usize) -> bool {
        self.welcomes.iter().any(|(position, _)| *position == peer)
    }

    /// Why this storage is an old copy, if another site knows this incarnation and position of this site, and the storage's last
    /// batch is `last`. What a site has told others was durable before: its storage never has less.
    fn betrayed_by(&self, last: u64, known: Incarnation, position: u64) -> Option<Stale> {
        if known > self.incarnation {
            return Some(Stale::Replaced { by: known });
        }
        let is_behind = known == self.incarnation && position > last;
        is_behind.then_some(Stale::Behind { position })
    }

    /// True at the first turn of this life, and only there.
    pub(super) fn take_first_turn(&mut self) -> bool {
        std::mem::take(&mut self.first_turn)
    }

    pub(super) fn note_marks(&mut self, sessions: &Sessions) {
        if !sessions.are_marks(&self.marks) {
            self.meta_dirty = true;
            self.marks = sessions.marks();
        }
    }

    /// Writes the rows that have changed. Not while it is being confirmed: an old copy that is written to would catch up, batch by
    /// batch and start by start, with the position that betrays it.
    pub(super) fn persist(&mut self, turn: &mut Turn, sessions: &Sessions) {
        self.note_marks(sessions);
        if self.is_unconfirmed() {
            return;
        }
        if turn.next_due.is_some() && turn.uptime >= self.uptime_noted + UPTIME {
            self.meta_dirty = true;
        }
        if std::mem::take(&mut self.meta_dirty) {
            self.uptime_noted = turn.uptime;
            self.put_meta(&mut turn.batch, turn.site.me, turn.site.members, turn.uptime);
        }
        let dirty = std::mem::take(&mut self.peers_dirty);
        for (position, peer) in turn.peers.iter().enumerate().filter(|(position, _)| dirty >> position & 1 == 1) {
            put_peer(&mut turn.batch, position, peer);
        }
    }

    fn put_meta(&self, batch: &mut Batch, me: SiteId, members: &[SiteId], uptime: u64) {
        let mut row = Vec::with_capacity(48);
        put_u64(&mut row, VERSION);
        put_u64(&mut row, u64::from(me.region));
        put_u64(&mut row, u64::from(me.lane));
        put_u64(&mut row, self.nonce);
        put_u64(&mut row, u64::from(self.incarnation.0));
        put_u64(&mut row, self.life.0);
        put_u64(&mut row, uptime);
        self.marks.encode(&mut row);
        put_u64(&mut row, members.len() as u64);
        for member in members {
            put_u64(&mut row, u64::from(member.region));
            put_u64(&mut row, u64::from(member.lane));
        }
        batch.put(&[META], &row);
    }
}

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

/// The layout of rows that the row about the site tells.
pub(super) fn layout_of(row: &[u8]) -> Result<u64, Malformed> {
    Cursor(row).u64()
}

/// Reads a row about a peer; one about a site that is no member is passed over.
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

impl Node {
    /// Handles what concerns lives, liveness and clocks, whether or not the site serves yet; hands back all else.
    pub(super) fn greet(&mut self, now: Now, from: usize, body: Body, sends: &mut Vec<(SiteId, Body)>) -> Option<Body> {
        let to = self.peers[from].site;
        match body {
            // Another site starts. What it is told must be durable first, so that no other storage is told the same.
            Body::Hello { nonce, start, is_new, permitted } => {
                // An old copy vouches for nobody.
                if self.lineage.readiness == Readiness::Stale {
                    return None;
                }
                let peer = &mut self.peers[from];
                let known = peer.incarnation.max(peer.noted.0);

                // A storage that asks as a new one after it took up what was noted for it is an old copy of itself.
                let mut is_noted = peer.noted.1 == nonce && peer.incarnation < peer.noted.0;

                // Nor does new storage that waits for a person's word: it knows that the cluster is not new, and has forgotten what it
                // knew of the others. It only says of whom it has heard since.
                let awaits = self.lineage.readiness == Readiness::AwaitingNewStorage;
                let is_refused = !is_noted && known > Incarnation(0) && !permitted;
                if awaits && is_new && !is_refused {
                    return None;
                }

                // To note an incarnation is to declare the storage of every earlier one lost. That is a person's to say: what
                // asks may be the empty directory beneath a volume that is not mounted.
                if is_new && !is_noted && (known == Incarnation(0) || permitted) {
                    if self.lineage.readiness == Readiness::Confirming {
                        return None;
                    }
                    peer.noted = (Incarnation(known.0 + 1), nonce);
                    self.lineage.touch_peer(from);
                    is_noted = true;
                }

                // What was noted for this very storage is no other storage's; it may be more than the storage took, if its
                // question came late.
                let known = if peer.noted.1 == nonce { peer.incarnation } else { known };
                let peer = &self.peers[from];

                // New storage takes over what is forgotten: nobody else might be left that knows it.
                let forgotten = &self.quotas.forgetting().decided;
                let epoch = forgotten.epoch;
                let forgotten = match is_new {
                    true => forgotten.clone(),
                    false => Forgotten { epoch, names: Vec::new() },
                };
                sends.push((
                    to,
                    Body::Welcome {
                        nonce,
                        start,
                        established: self.lineage.incarnation > Incarnation(0),
                        known,
                        noted: if is_noted { peer.noted.0 } else { Incarnation(0) },
                        position: peer.position,
                        forgotten: Box::new(forgotten),
                    },
                ));
                None
            }
            Body::Welcome { nonce, start, established, known, noted, position, forgotten } => {
                if (nonce, start) == (self.lineage.nonce, self.lineage.start) {
                    let welcome = Welcome { established, known, noted, position, forgotten: *forgotten };
                    self.lineage.welcomes.retain(|(peer, _)| *peer != from);
                    self.lineage.welcomes.push((from, welcome));
                    self.settle_lineage(now);
                }
                None
            }
            Body::Ping { mono, wall, leaving, known, position } => {
                self.peers[from].leaving = leaving;

                // A majority has confirmed this storage. Had that not heard of what the sender has, because the sender was away, an
                // old copy serves: the sooner it stops, the less it does twice.
                let betrayed = self.lineage.betrayed_by(self.last, known, position).filter(|_| self.is_serving());
                if let Some(stale) = betrayed {
                    self.lineage.stale = Some(stale);
                    self.lineage.readiness = Readiness::Stale;
                    return None;
                }
                sends.push((to, Body::Pong { mono, wall, there: now.wall }));
                None
            }
            Body::Pong { mono, wall, there } => {
                // An answer to an earlier life's ping would show an absurd round trip; and one that was overtaken by the answer
                // to a later ping, what the clocks were.
                let is_newest = self.peers[from].vouched.is_none_or(|newest| newest.mono <= mono);
                if mono >= self.lineage.opened.mono && mono <= now.mono && is_newest {
                    let newer = Offset::measure(Now { wall, mono }, there, now);
                    let offset = &mut self.peers[from].offset;
                    *offset = Some(offset.map_or(newer, |known| known.and(newer, now)));
                }
                None
            }
            other => Some(other),
        }
    }

    /// Repeats questions, pings, and notes positions and uptime.
    pub(super) fn tick_lineage(&mut self, now: Now, sends: &mut Vec<(SiteId, Body)>) {
        self.settle_lineage(now);
        if self.lineage.readiness == Readiness::Stale {
            return;
        }
        let asking = !self.is_serving();
        let others = self.peers.iter().filter(|peer| peer.site != self.config.me);
        if asking && now.mono >= self.lineage.hello_at {
            self.lineage.hello_at = now.mono + HELLO;
            let hello = Body::Hello {
                nonce: self.lineage.nonce,
                start: self.lineage.start,
                is_new: self.lineage.incarnation == Incarnation(0),
                permitted: self.config.new_storage,
            };
            sends.extend(others.clone().map(|peer| (peer.site, hello.clone())));
        }
        // Only a site that serves pings: that is how the others know that it does.
        if !asking && now.mono >= self.ping_at {
            self.ping_at = now.mono + PING;
            let leaving = self.lineage.readiness == Readiness::Draining;
            let ping = |peer: &Peer| {
                let (known, position) = (peer.incarnation, peer.position);
                (peer.site, Body::Ping { mono: now.mono, wall: now.wall, leaving, known, position })
            };
            sends.extend(others.map(ping));
            if self.chores.next_due.is_some() && self.lineage.uptime(now) >= self.lineage.uptime_noted + UPTIME {
                self.lineage.meta_dirty = true;
            }
            self.note_positions(now);
        }
    }

    fn note_positions(&mut self, now: Now) {
        let due = now.mono >= self.lineage.note_at;
        if due {
            self.lineage.note_at = now.mono + NOTE;
        }
        self.lineage.noted.resize(self.peers.len(), 0);
        for (at, peer) in self.peers.iter().enumerate() {
            let moved = peer.position.saturating_sub(self.lineage.noted[at]);
            // Noting is itself a batch, and so moves our own position: one for one of theirs would go on for ever.
            if moved >= NOTED || (due && moved > 4) {
                self.lineage.noted[at] = peer.position;
                self.lineage.peers_dirty |= 1 << at;
            }
        }
    }

    /// Takes up an incarnation, or is confirmed in it, once enough others have answered.
    fn settle_lineage(&mut self, now: Now) {
        let ping_at = &mut self.ping_at;
        let lineage = &mut self.lineage;
        let members = self.config.members.len();
        let majority = members / 2 + 1;
        match lineage.readiness {
            Readiness::Joining | Readiness::AwaitingNewStorage => {
                // Whoever knows an earlier incarnation has noted nothing for this storage. It would be heard in no majority,
                // but its storage may be whole: nothing is taken up over it.
                if lineage.welcomes.iter().any(|(_, welcome)| welcome.noted == Incarnation(0)) {
                    lineage.readiness = Readiness::AwaitingNewStorage;
                    return;
                }
                let established = lineage.welcomes.iter().filter(|(_, welcome)| welcome.established).count();
                let all = lineage.welcomes.len() == members - 1;
                if established < majority && !all {
                    return;
                }
                let highest = lineage.welcomes.iter().map(|(_, welcome)| welcome.noted).max();
                lineage.incarnation = highest.unwrap_or(Incarnation(1));
                lineage.readiness = Readiness::Ready;
                lineage.welcomes.drain(..).for_each(|(_, welcome)| self.quotas.take_over_names(welcome.forgotten));
            }
            Readiness::Confirming => {
                let epoch = self.quotas.epoch();
                let betrays = |welcome: &Welcome| {
                    let betrayed = lineage.betrayed_by(self.last, welcome.known, welcome.position);
                    if betrayed.is_some() {
                        return betrayed;
                    }
                    // Names are forgotten only after all members have forgotten those before.
                    let there = welcome.forgotten.epoch;
                    (there > epoch + 1).then_some(Stale::Forgetful { epoch: there })
                };
                if let Some(stale) = lineage.welcomes.iter().find_map(|(_, welcome)| betrays(welcome)) {
                    lineage.stale = Some(stale);
                    lineage.readiness = Readiness::Stale;
                    return;
                }

                // A site that is joining has heard of nothing yet; it counts only if nobody else is left to ask.
                let established = lineage.welcomes.iter().filter(|(_, welcome)| welcome.established).count();
                if established + 1 < majority && lineage.welcomes.len() + 1 < members {
                    return;
                }
                lineage.readiness = Readiness::Ready;
            }
            Readiness::Ready | Readiness::Draining | Readiness::Stale | Readiness::StorageFull => return,
        }
        lineage.meta_dirty = true;
        lineage.first_turn = true;
        lineage.note_at = now.mono + NOTE;
        lineage.welcomes.clear();
        *ping_at = now.mono;
    }
}
