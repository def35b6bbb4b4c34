//! Lives and incarnations: how a site makes sure that it never acts on a past that is not its newest.
//!
//! Tokens, votes and outcomes belong to an **incarnation**: one storage, from when it was new until it is lost. Every
//! message carries its sender's incarnation and log position; receivers remember the highest.
//!
//! - **New storage** *joins*: it draws a nonce, makes it durable, and asks all others what they know (`Hello`). Each
//!   durably notes, for this nonce, an incarnation above all that it ever heard of or noted for this site, before it
//!   answers (`Welcome`). The site takes a number once a majority of *all* has noted just that one, counted without itself
//!   and without those that are joining too; or once every other site has, which is how a new cluster starts. Where they
//!   have noted different ones, it asks for the highest. Any two majorities share a site, and no site notes one number for
//!   two storages: so two storages of one site never get the same incarnation, and only the very first gets 1.
//! - **New storage of a site that others know** waits for a person's word. To note a higher incarnation is to declare
//!   the earlier storage lost, and an empty directory is no evidence of that: the volume may just not be mounted. So a
//!   site that knows an earlier incarnation notes nothing, and says so, unless the question carries the word
//!   ([`crate::config::Config::new_storage`]). One such answer is enough to wait, and a site that waits vouches for no
//!   new storage.
//! - **Known storage** is *confirmed*: enough others (a majority of sites with an incarnation, together with itself; or
//!   all others) say what they have heard. One that knows a higher incarnation, or a log position beyond the end of
//!   this log, proves that this storage is an old copy. The machine then does nothing more: its driver keeps the
//!   storage as it is, aside, and opens the site on new storage. Until it is confirmed, nothing is written to it: its
//!   position would catch up with what betrays it.
//!
//! A copy that lacks nothing that other sites have heard of cannot be told from the newest storage, although later
//! batches were lost with that. Sites tell their position at least once a second, so only batches of the last second
//! can be missing unnoticed.
//!
//! [`crate::avantan`] says why a new incarnation does not vote at once.

use super::Node;
use super::chores::PING;
use super::identity::{NOTE, Stale, UPTIME, Welcome};
use crate::api::Readiness;
use crate::avantan::Roster;
use crate::clock::{MILLISECOND, Now, Offset};
use crate::id::{Incarnation, SiteId};
use crate::peer::quota::Forgotten;
use crate::peer::{Body, SiteMessage};
use crate::turn::Peer;

/// The time between two questions at the start, in microseconds.
const HELLO: u64 = 300 * MILLISECOND;
/// A peer's position is noted durably when it has moved on by this number of batches, or after [`NOTE`].
const NOTED: u64 = 64;

impl Node {
    /// Handles messages about lives, liveness and clocks, whether or not the site serves yet; returns every other one.
    /// The sender knows the change of the members with this number.
    pub(super) fn greet(
        &mut self,
        now: Now,
        (from, members): (usize, u64),
        body: Body,
        sends: &mut Vec<(SiteId, Body)>,
    ) -> Option<Body> {
        let to = self.peers[from].site;
        match body {
            Body::Site(SiteMessage::Hello { nonce, start, is_new, replaces }) => {
                let welcome = self.welcome(from, (nonce, start), is_new, replaces);
                sends.extend(welcome.map(|welcome| (to, welcome)));

                // What it takes the place of is gone: it is given nothing, and asked nothing, until it serves.
                let peer = &mut self.peers[from];
                if peer.is_noted_for(nonce) {
                    (peer.heard, peer.leaving) = (None, false);
                }
                None
            }
            Body::Site(SiteMessage::Welcome {
                nonce,
                start,
                established,
                known,
                noted,
                position,
                forgotten,
                roster,
            }) => {
                // Of each site the last answer counts, and only to this very question: an earlier start may have heard
                // less.
                if (nonce, start) == (self.identity.nonce, self.identity.asking.start) {
                    // A majority has let it serve already. Whoever is farther away may know better, as when it sends a ping.
                    let betrayed = self.identity.betrayed_by(self.log.last, known, position);
                    if self.stops_serving(betrayed) {
                        return None;
                    }
                    let before = self.identity.comes_after();
                    let welcome = Welcome { established, known, noted, position, forgotten: *forgotten };
                    self.identity.asking.welcomes.retain(|(peer, _)| *peer != from);
                    self.identity.asking.welcomes.push((from, welcome));

                    // Where a person's word is at hand, it asks again at once, about what it is to take the place of.
                    if self.config.new_storage && self.identity.comes_after() > before {
                        self.identity.asking.hello_at = now.mono;
                    }
                    self.take_over_seats(now, roster.map(|roster| *roster));
                    self.settle_lineage(now);
                }
                None
            }
            Body::Site(SiteMessage::Ping { mono, wall, leaving, known, position, noted, asks }) => {
                self.peers[from].leaving = leaving;

                // A majority has confirmed this storage. If that had not heard of what the sender has heard, because
                // the sender was away, an old copy serves here: the sooner it stops, the less it does twice.
                // So it does if new storage has taken its place that has not shown itself yet: what is answered from here
                // from now on would be lost with this storage.
                let betrayed = self.identity.replaced_by(known, noted);
                let betrayed = betrayed.or_else(|| self.identity.betrayed_by(self.log.last, known, position));
                if self.stops_serving(betrayed) {
                    return None;
                }

                // Who does not know yet which members are gone may still believe what these say of their storage. What rests on it here
                // is forgotten a lease after this site has heard that they are. And a site that does not serve may be an old copy, to be
                // told so by the next message: treaties and calls that are long over stand on it as if nothing had come since.
                let is_behind = members < self.members.roster.number;
                let keeps_back = self.chapters.withholds_from(&self.here(now), from);
                let withholds = is_behind || !self.is_serving() || keeps_back;
                let Peer { site, incarnation, .. } = self.peers[from];
                let is_attested = asks && self.is_serving() && self.chapters.attests(site, incarnation);
                let attests = if is_attested { self.members.roster.number } else { 0 };
                sends.push((to, Body::Site(SiteMessage::Pong { mono, wall, there: now.wall, withholds, attests })));
                None
            }
            Body::Site(SiteMessage::Pong { mono, wall, there, attests, .. }) => {
                // An answer to an earlier life's ping would show an absurd round trip, and attest another incarnation.
                let mono = self.pinged_at(now, mono)?;
                self.note_attested(from, attests);

                // One that was overtaken by the answer to a later ping would show the clocks as they were.
                let is_newest = self.peers[from].vouched.is_none_or(|newest| newest.mono <= mono);
                if is_newest {
                    let newer = Offset::measure(Now { wall, mono }, there, now);
                    let offset = &mut self.peers[from].offset;
                    *offset = Some(offset.map_or(newer, |known| known.and(newer, now)));
                }
                None
            }
            other => Some(other),
        }
    }

    /// Stops a site that serves, if there is evidence that its storage is an old copy; returns true if it does.
    fn stops_serving(&mut self, betrayed: Option<Stale>) -> bool {
        let Some(stale) = betrayed.filter(|_| self.is_serving()) else { return false };
        self.identity.betray(stale);
        true
    }

    /// Notes an incarnation for another site that starts, if its storage is new and that may be; returns this site's
    /// answer. The answer leaves when the note is durable: else a crash could forget it, and another storage of that
    /// site be told the same.
    fn welcome(
        &mut self,
        from: usize,
        (nonce, start): (u64, u64),
        is_new: bool,
        replaces: Option<Incarnation>,
    ) -> Option<Body> {
        // An old copy vouches for nobody.
        if self.identity.readiness == Readiness::Stale {
            return None;
        }
        let peer = &mut self.peers[from];
        let known = peer.incarnation.max(peer.noted.0);
        let permitted = replaces.is_some_and(|highest| known <= highest);

        // Sites of an earlier version carry the word and do not say over what.
        let asked = replaces.filter(|highest| *highest < Incarnation::GONE).unwrap_or_default();

        // A storage that asks as a new one after it took up what was noted for it is an old copy of itself.
        let mut is_noted = peer.is_noted_for(nonce);

        // Nor does new storage that waits for a person's word vouch for anybody: it knows that the cluster is not new,
        // and has forgotten what it knew of the others. It only says of which it has heard since.
        let awaits = self.identity.readiness == Readiness::AwaitingNewStorage;
        let is_refused = !is_noted && known > Incarnation(0) && !permitted;
        if awaits && is_new && !is_refused {
            return None;
        }

        // While a majority may be deciding that it is lost for good, or has and this site was told of it by a round only, no storage is let
        // in in its place.
        if is_new && (self.chapters.is_changing(peer.site) || (known == Incarnation::GONE && !peer.gone)) {
            return None;
        }

        // To note an incarnation is to declare the storage of every earlier one lost. That is a person's to say: what
        // asks may be the empty directory beneath a volume that is not mounted. One that is noted already is raised where
        // others have noted a higher one, and the storage asks for that: a majority is to note the same.
        let is_due = if is_noted { asked >= known } else { known == Incarnation(0) || permitted };
        if is_new && !peer.gone && is_due {
            if self.identity.readiness == Readiness::Confirming {
                return None;
            }

            // What is raised was noted over the incarnation that was known then: another one may have come since.
            if !is_noted {
                peer.replaced = peer.incarnation;
            }
            peer.noted = (Incarnation(known.max(asked).0 + 1), nonce);
            assert!(peer.noted.0 > peer.incarnation, "an incarnation is noted for new storage that another one has");
            self.identity.touch_peer(from);
            is_noted = true;
        }

        // An incarnation that was noted for this very storage is no other storage's. It may be above the one that the
        // storage took, if this site's answer came too late to be heard.
        let known = if peer.noted.1 == nonce { peer.incarnation } else { known };
        let peer = &self.peers[from];

        // New storage takes over the names that were forgotten: perhaps no other site is left that knows them.
        let forgotten = self.chapters.forgotten();
        let epoch = forgotten.epoch;
        let forgotten = match is_new {
            true => forgotten.clone(),
            false => Forgotten { epoch, names: Vec::new() },
        };
        Some(Body::Site(SiteMessage::Welcome {
            nonce,
            start,
            established: self.identity.incarnation > Incarnation(0),
            known,
            noted: if is_noted { peer.noted.0 } else { Incarnation(0) },
            position: peer.position,
            forgotten: Box::new(forgotten),
            roster: (self.members.roster.number > 0).then(|| Box::new(self.members.roster.clone())),
        }))
    }

    /// A site with new storage learns who the members are from those that let it in. Its configuration may name others.
    fn take_over_seats(&mut self, now: Now, roster: Option<Roster>) {
        let known = self.members.roster.number;
        let Some(roster) = roster.filter(|roster| roster.number > known) else { return };

        // It was declared lost for good: whatever it has, and whoever says that it may start anew, it does nothing more.
        let own = roster.seats.iter().find(|seat| seat.site == self.config.me);
        if own.is_some_and(|seat| seat.gone) && !self.is_serving() {
            return self.identity.betray(Stale::Removed);
        }
        let is_new = matches!(self.identity.readiness, Readiness::Joining | Readiness::AwaitingNewStorage);
        if !is_new || !roster.members().any(|site| site == self.config.me) {
            return;
        }

        // Positions may be others from here on, and so the answers are another's.
        self.seat(roster);
        self.identity.asking.welcomes.clear();
        self.identity.asking.hello_at = now.mono;
        self.identity.rows.is_meta_dirty = true;
    }

    /// Another member says that everything that it knows has recorded the change of this number, and this incarnation.
    fn note_attested(&mut self, from: usize, number: u64) {
        if number == 0 || number != self.members.roster.number || self.identity.whole == number {
            return;
        }

        // What a predecessor of this site voted for and was decided, one of so many others knows of.
        let attested = self.chapters.note_attested(from);
        let count = self.members.sites.len() - self.members.gone.len();
        let enough = (count / 2 + 1).min(count - 1);
        if attested >= enough {
            self.identity.whole = number;
            self.identity.rows.is_meta_dirty = true;
        }
    }

    /// The name of a ping that is sent at a monotonic time. Another life of the site names it otherwise.
    pub fn ping_name(&self, mono: u64) -> u64 {
        mono.wrapping_add(self.identity.asking.start)
    }

    /// The monotonic time of the ping that an answer names; none if no ping of this life is named so.
    pub fn pinged_at(&self, now: Now, named: u64) -> Option<u64> {
        let mono = named.wrapping_sub(self.identity.asking.start);
        (self.identity.age.opened.mono..=now.mono).contains(&mono).then_some(mono)
    }

    /// What a site tells another one of itself from time to time.
    pub(super) fn ping(&self, now: Now, peer: &Peer) -> Body {
        let (known, position) = (peer.incarnation, peer.position);

        // What was noted before it was heard of may be for storage that is gone: then this one came after it.
        let is_replaced = known > Incarnation(0) && known == peer.replaced;
        let noted = if is_replaced { peer.noted } else { (Incarnation(0), 0) };
        let (mono, wall) = (self.ping_name(now.mono), now.wall);
        let leaving = self.identity.readiness == Readiness::Draining || self.identity.drained.is_some();

        // Who has attested is not asked again: to answer it looks through all that it knows.
        let has_attested = || {
            self.peers.iter().position(|other| other.site == peer.site).is_some_and(|at| self.chapters.has_attested(at))
        };
        let asks = !self.members.is_whole(&self.identity) && !has_attested();
        Body::Site(SiteMessage::Ping { mono, wall, leaving, known, position, noted, asks })
    }

    /// Repeats the question at the start; once the site serves, pings the others, and notes positions and uptime.
    pub(super) fn tick_lineage(&mut self, now: Now, sends: &mut Vec<(SiteId, Body)>) {
        self.settle_lineage(now);
        if self.identity.readiness == Readiness::Stale {
            return;
        }

        let asking = !self.is_serving();
        let others = self.peers.iter().filter(|peer| peer.site != self.config.me && !peer.gone);
        if asking && now.mono >= self.identity.asking.hello_at {
            self.identity.asking.hello_at = now.mono + HELLO;
            let hello = Body::Site(SiteMessage::Hello {
                nonce: self.identity.nonce,
                start: self.identity.asking.start,
                is_new: self.identity.incarnation == Incarnation(0),
                replaces: self.config.new_storage.then(|| self.identity.comes_after().unwrap_or_default()),
            });
            sends.extend(others.clone().map(|peer| (peer.site, hello.clone())));
        }

        // Only a site that serves pings: that is how the others know that it does. A ping tells each what is known of
        // it, so that an old copy which serves is found out.
        if !asking && now.mono >= self.chores.ping_at {
            self.chores.ping_at = now.mono + PING;
            sends.extend(others.map(|peer| (peer.site, self.ping(now, peer))));
            if self.chapters.counts_uptime() && self.identity.uptime(now) >= self.identity.rows.uptime + UPTIME {
                self.identity.rows.is_meta_dirty = true;
            }
            self.note_positions(now);
        }
    }

    /// Marks the rows of peers to be written whose positions have moved on.
    fn note_positions(&mut self, now: Now) {
        let due = now.mono >= self.identity.rows.note_at;
        if due {
            self.identity.rows.note_at = now.mono + NOTE;
        }

        // Noting is itself a batch, and moves this site's own position on, which the others note in turn. One note for
        // one batch of theirs would never come to an end.
        self.identity.rows.positions.resize(self.peers.len(), 0);
        for (at, peer) in self.peers.iter().enumerate() {
            let moved = peer.position.saturating_sub(self.identity.rows.positions[at]);
            if moved >= NOTED || (due && moved > 4) {
                self.identity.rows.positions[at] = peer.position;
                self.identity.rows.dirty_peers.insert(at);
            }
        }
    }

    /// Takes up an incarnation, or is confirmed in it, once enough others have answered.
    fn settle_lineage(&mut self, now: Now) {
        let identity = &mut self.identity;
        let members = self.members.sites.len() - self.members.gone.len();
        let majority = members / 2 + 1;
        match identity.readiness {
            Readiness::Joining | Readiness::AwaitingNewStorage => {
                // A site that knows an earlier incarnation has noted nothing for this storage. Perhaps that earlier
                // storage is not lost at all: nothing is taken up over it before a person says so, whatever a majority
                // has noted.
                if identity.predecessor().is_some() {
                    if !self.config.new_storage {
                        identity.readiness = Readiness::AwaitingNewStorage;
                    }
                    return;
                }

                let Some(agreed) = identity.agreed(members) else {
                    // Of different numbers the highest is asked for. These come of a word that was given at an earlier
                    // start, and to another storage too.
                    if identity.is_split() && !self.config.new_storage {
                        identity.readiness = Readiness::AwaitingNewStorage;
                    }
                    return;
                };
                identity.incarnation = agreed;
                identity.readiness = Readiness::Ready;
                identity.asking.welcomes.drain(..).for_each(|(_, welcome)| self.chapters.take_over(welcome.forgotten));
            }
            Readiness::Confirming => {
                // One site that knows more of this storage than it has itself is proof, whatever the others say.
                let epoch = self.chapters.forgotten().epoch;
                let betrays = |welcome: &Welcome| {
                    let betrayed = identity.betrayed_by(self.log.last, welcome.known, welcome.position);
                    if betrayed.is_some() {
                        return betrayed;
                    }

                    // Names are forgotten only after all members have forgotten those before: a whole storage lacks one
                    // epoch at most.
                    let there = welcome.forgotten.epoch;
                    (there > epoch + 1).then_some(Stale::Forgetful { epoch: there })
                };
                if let Some(stale) = identity.asking.welcomes.iter().find_map(|(_, welcome)| betrays(welcome)) {
                    identity.betray(stale);
                    return;
                }

                // A majority, this site included, would have heard of a later incarnation, as one is taken up by a
                // majority. A site that is joining has heard of nothing yet; it counts only if nobody else is left to
                // ask.
                let established = identity.asking.welcomes.iter().filter(|(_, welcome)| welcome.established).count();
                if established + 1 < majority && identity.asking.welcomes.len() + 1 < members {
                    return;
                }
                identity.readiness = Readiness::Ready;
            }
            Readiness::Ready | Readiness::Draining | Readiness::Stale | Readiness::StorageFull => return,
        }

        // The site serves from this turn on. Its incarnation and life are in the turn's batch, so that nothing leaves
        // in a life which a later start could use again.
        assert!(identity.incarnation > Incarnation(0), "a site serves without an incarnation");
        identity.rows.is_meta_dirty = true;
        identity.first_turn = true;
        identity.rows.note_at = now.mono + NOTE;
        identity.asking.welcomes.clear();
        self.chores.ping_at = now.mono;
    }
}
