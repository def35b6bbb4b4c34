//! What happens to storage: disks that are lost, old copies that take their place, volumes that are not mounted, and what the person
//! says who is asked.
//!
//! All of it is fair, see `faults`: at any time a majority of sites has everything that it ever made durable, and what is lost
//! is made up for before something else is.

use slackline_core::api::Readiness;
use slackline_core::avantan::Table;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::Incarnation;
use slackline_core::node::Node;
use slackline_core::warranty::VOUCHED;

use crate::disk::Copy;
use crate::state::Simulation;
use crate::state::faults::{Fault, Kept, Relapse};
use crate::state::timer::Timer;
use crate::world::{Keep, World};

/// A site notes a peer's position durably at its next ping when the peer has moved on by this many batches.
const NOTED: u64 = 64;
/// The time that a site that is not held up takes at most to ping, and to make durable what it noted then.
const NOTING: u64 = 8 * SECOND;

impl Simulation {
    /// A copy of a site's disk is taken, which may be put in its place later.
    pub(crate) fn take_copy(&mut self, world: &mut World, site: usize) {
        if self.faults.healed {
            return;
        }
        if let Some(node) = world.node(site)
            && node.readiness() == Readiness::Ready
            && self.rng.one_in(2)
        {
            let incarnation = node.incarnation();
            let copy = world.copy(site);
            let sites = world.len();

            let copies = &mut self.faults.sites[site].copies;
            // The oldest stays: that it is old is noted first.
            if copies.len() == 3 {
                copies.remove(1);
            }
            copies.push(Kept { incarnation, copy, heard: vec![None; sites], noted: vec![false; sites] });
        }

        world.wake_at(world.now() + 5 * SECOND + self.rng.below(15 * SECOND), Timer::Copy(site).token());
    }

    /// The site, which is up, loses its disk and is started again after a while.
    pub(crate) fn lose_disk(&mut self, world: &mut World, site: usize, down_for: u64) {
        self.faults.sites[site].down_for = down_for;
        self.crash(world, site, Keep::Everything);

        // The oracle is told first: what the site says from now on counts only once it has a new incarnation.
        self.oracle.lose(site);
        self.lose_counters(site);
        world.lose_disk(site);

        self.faults.losses.reborn = Some(site);
        self.faults.sites[site].copies.clear();
        // What it had noted of others is gone too.
        for kept in self.faults.sites.iter_mut().flat_map(|ills| &mut ills.copies) {
            kept.noted[site] = false;
        }

        self.probes.hit("fault: disk lost");
        // It may come back on a machine whose clock nobody has set yet.
        let may_step = self.faults.may_step(site) && (self.faults.errs_walls || !self.settings.has_warranties);
        if may_step && !self.faults.sites[site].errs_mono && self.rng.one_in(2) {
            let lasts = down_for + 3 * SECOND + self.rng.below(20 * SECOND);
            self.set_wall_wrong(world, site, lasts);
            self.probes.hit("fault: new storage on a wrong wall clock");
        }

        self.trace(world, format_args!("site {site} has lost its disk"));
    }

    /// Sees to it that another site does not hear for a while that a site has lost its storage; perhaps it is suspended
    /// meanwhile, and goes on with what it knew. What it tells of that storage must not outlast the time for which the new one
    /// changes nothing.
    pub(crate) fn leave_unheard(&mut self, world: &mut World, site: usize) {
        if self.faults.healed || self.rng.one_in(3) {
            return;
        }

        let sites = world.len();
        // Suspended for longer than it may go by what it was told, while its monotonic clock stands; and then it hears nothing yet.
        // By that clock it must have been told lately.
        let was_told = |other: usize| {
            let peers = world.node(other).map(Node::peers).unwrap_or_default();
            let told = peers.iter().find(|peer| peer.site == self.settings.members[site]).and_then(|peer| peer.vouched);
            told.is_some_and(|told| world.time_at(other).mono < told.mono + VOUCHED / 2)
        };
        let may_stand = |other: &usize| {
            self.faults.sites[*other].errs_mono
                && !self.faults.errs(*other)
                && !world.is_held_up(*other)
                && was_told(*other)
        };

        let sleepers: Vec<usize> = (0..sites).filter(|other| *other != site).filter(may_stand).collect();
        let stands = !sleepers.is_empty() && self.rng.one_in(2);
        let other = match stands {
            true => sleepers[self.rng.below(sleepers.len() as u64) as usize],
            false => (site + 1 + self.rng.below(sites as u64 - 1) as usize) % sites,
        };
        // About as long as the new storage changes nothing: what wakes with old knowledge meets what was written since.
        let (asleep, awake) = match stands {
            true => (14 * SECOND + self.rng.below(10 * SECOND), 4 * SECOND + self.rng.below(8 * SECOND)),
            false => (0, 8 * SECOND + self.rng.below(16 * SECOND)),
        };

        // Longer than it sleeps: when it wakes, it goes on for a while with what it knew.
        self.begin(world, Fault::Cut { from: site, to: other }, asleep + awake);
        self.probes.hit("fault: new incarnation not heard of");
        self.read_what_was_lost(world, site, other);
        if stands {
            self.suspend(world, other, asleep, true);
        }
    }

    /// Returns true if the loss of this disk, or of what is new on it, would be fair.
    pub(crate) fn may_lose_disk(&self, world: &World, site: usize) -> bool {
        self.faults.losses.impostor.is_none()
            && self.faults.losses.reborn.is_none()
            && self.is_calm_for_loss(world, site)
    }

    /// Returns true if all the others are there and may vote in every quota, so that a loss of this disk leaves more than enough.
    fn is_calm_for_loss(&self, world: &World, site: usize) -> bool {
        // A site that may not vote counts as absent: with it and the lost one a majority could be missing.
        let others = (0..world.len()).filter(|other| *other != site);
        others.into_iter().all(|other| {
            let incarnation = self.oracle.incarnation(other);
            let serves = world.node(other).is_some_and(|node| node.readiness() == Readiness::Ready);
            let votes = |table: &Table| {
                incarnation == Incarnation(1)
                    || table
                        .settled(self.settings.members[other])
                        .is_some_and(|last| last.row.incarnation == incarnation)
            };
            let tables = self.oracle.books.iter().filter_map(|book| book.decisions.newest());
            // For a name that does not exist the others tell a new incarnation whether it may vote.
            serves && tables.into_iter().all(|(_, table)| table.limit.is_none() || votes(table))
        })
    }

    /// Forgets that a site was reborn, once every quota has recorded its incarnation, and nothing that the lost one took part in
    /// is in doubt anywhere.
    pub(crate) fn settle_reborn(&mut self, world: &World) {
        let Some(site) = self.faults.losses.reborn else { return };

        let incarnation = self.oracle.incarnation(site);
        let serves = world.node(site).is_some_and(|node| node.readiness() == Readiness::Ready);
        let recorded = self.oracle.books.iter().all(|book| {
            let Some((instance, table)) = book.decisions.newest() else { return true };
            let row =
                table.settled(self.settings.members[site]).is_some_and(|last| last.row.incarnation == incarnation);
            // And everybody knows.
            let known = (0..world.len()).all(|other| {
                let quota = world.node(other).and_then(|node| node.chapters().quotas.find(&book.name));
                quota.is_some_and(|quota| quota.avantan().share.applied == instance)
            });
            (row || table.limit.is_none()) && known
        });

        let in_doubt = |other: usize| {
            world
                .node(other)
                .is_none_or(|node| node.chapters().txns.depends_on_lost(self.settings.members[site], incarnation))
        };

        // Only now another disk may be lost: until then a decision could rest on a vote that is gone, or a transaction on a part of it.
        if serves && recorded && incarnation.0 > 0 && !(0..world.len()).any(in_doubt) {
            self.faults.losses.reborn = None;
            self.probes.hit("round: new incarnation recorded");
        }
    }

    /// Looks which copies others have noted durably to be old.
    pub(crate) fn settle_copies(&mut self, world: &World) {
        let now = world.now();
        for site in 0..world.len() {
            for kept in &mut self.faults.sites[site].copies {
                for other in (0..world.len()).filter(|other| *other != site) {
                    let serves = |node: &&Node| node.readiness() == Readiness::Ready && !world.is_held_up(other);
                    let peer = world.node(other).filter(serves).and_then(|node| node.peers().get(site));
                    let has_heard = peer.is_some_and(|peer| {
                        peer.incarnation == kept.incarnation && peer.position >= kept.copy.last + NOTED
                    });

                    // What it has heard it notes at its next ping; a crash before that makes it forget.
                    let life = world.life(other);
                    kept.heard[other] = match kept.heard[other] {
                        _ if !has_heard => None,
                        Some((since, of)) if of == life => {
                            kept.noted[other] |= now >= since + NOTING;
                            Some((since, of))
                        }
                        _ => Some((now, life)),
                    };
                }
            }
        }
    }

    /// A copy that every other site knows to be old, and whether all have noted durably that it is.
    fn fair_copy(&mut self, world: &World, site: usize) -> Option<(Copy, bool)> {
        let incarnation = world.node(site)?.incarnation();
        let heard = (0..world.len()).filter(|other| *other != site).map(|other| {
            let peer = world.node(other).and_then(|node| node.peers().get(site));
            peer.filter(|peer| peer.incarnation == incarnation).map_or(0, |peer| peer.position)
        });
        let heard = heard.min().unwrap_or(0);

        // A copy that is not old enough yet goes with the others: the next ones are taken soon.
        let copies = std::mem::take(&mut self.faults.sites[site].copies);
        let kept = copies.into_iter().find(|kept| kept.incarnation == incarnation && kept.copy.last < heard)?;
        let is_noted = (0..world.len()).all(|other| other == site || kept.noted[other]);
        Some((kept.copy, is_noted))
    }

    /// An old copy takes the place of the site's disk; perhaps the others crash at that moment. False if no copy would be noticed.
    pub(crate) fn restore_old_copy(&mut self, world: &mut World, site: usize) -> bool {
        let Some((copy, is_noted)) = self.fair_copy(world, site) else { return false };
        self.faults.sites[site].down_for = 300 * MILLISECOND + self.rng.below(2 * SECOND);

        // No other crash is under way that would take from the others what betrays the copy.
        self.faults.sites.iter_mut().for_each(|ills| ills.hazard = None);
        self.crash(world, site, Keep::Everything);

        self.oracle.lose(site);
        self.lose_counters(site);
        self.trace(world, format_args!("site {site} has a copy of its disk that ends at batch {}", copy.last));
        world.restore(site, copy);

        let losses = &mut self.faults.losses;
        losses.reborn = Some(site);
        losses.impostor = Some(site);
        losses.impostor_is_noted = is_noted;
        self.faults.sites[site].copies.clear();
        self.probes.hit("fault: old copy restored");
        if is_noted && self.rng.one_in(2) {
            self.crash_others(world, site);
        }
        true
    }

    /// The others crash at the moment when an old copy of a site's disk is put in place.
    fn crash_others(&mut self, world: &mut World, site: usize) {
        self.probes.hit("fault: old copy restored, others crash");
        for other in (0..world.len()).filter(|other| *other != site) {
            if world.node(other).is_some() {
                let (keep, down_for) = (self.keep(), 50 * MILLISECOND + self.rng.below(4 * SECOND));
                self.crash_for(world, other, keep, down_for);
            }
        }
    }

    /// Returns true if a majority of sites would still run on their own storage.
    pub(crate) fn may_unmount(&self, world: &World, site: usize) -> bool {
        // A site that has joined nowhere yet has no storage of its own, either.
        let is_without = |other: &usize| {
            *other == site || self.faults.sites[*other].unmounted.is_some() || self.oracle.incarnation(*other).0 == 0
        };
        (0..world.len()).filter(is_without).count() <= (world.len() - 1) / 2
    }

    /// The site stops, and is started where its volume is not mounted.
    pub(crate) fn unmount(&mut self, world: &mut World, site: usize) {
        let keep = self.keep();
        let down_for = 50 * MILLISECOND + self.rng.below(SECOND);
        self.crash_for(world, site, keep, down_for);
        self.faults.sites[site].unmounted = Some(world.copy(site));
        world.lose_disk(site);

        let until = world.now() + SECOND + self.rng.below(8 * SECOND);
        world.wake_at(until, Timer::Mount(site).token());
        self.probes.hit("fault: empty mount");
        self.trace(world, format_args!("site {site}: its volume is not mounted until {until}"));
    }

    /// The site's volume is mounted, and the site started on it.
    pub(crate) fn mount(&mut self, world: &mut World, site: usize) {
        let Some(volume) = self.faults.sites[site].unmounted.take() else { return };
        if world.node(site).is_some() {
            let down_for = 50 * MILLISECOND + self.rng.below(SECOND);
            self.crash_for(world, site, Keep::Everything, down_for);
        }

        world.restore(site, volume);
        self.faults.sites[site].remounted = true;
        self.trace(world, format_args!("site {site}: its volume is mounted"));
    }

    /// A site's storage is confirmed.
    pub(crate) fn remounted(&mut self, site: usize) {
        if std::mem::take(&mut self.faults.sites[site].remounted) {
            self.probes.hit("fault: empty mount ends");
        }
    }

    /// A site's storage was found to be an old copy.
    pub(crate) fn put_aside(&mut self, site: usize) {
        self.faults.sites[site].put_aside = true;
        self.faults.sites[site].down_for = 50 * MILLISECOND;
        self.faults.rejoined(site);
    }

    /// A site waits for a person's word, which comes when the person has looked; never while only the volume is not mounted.
    pub(crate) fn await_word(&mut self, world: &mut World, site: usize) {
        if self.faults.sites[site].unmounted.is_some() {
            return;
        }

        // One that is to lose its disk again joins soon, while the cuts that make that interesting go on.
        let is_expected = self.faults.losses.relapse.as_ref().is_some_and(|relapse| relapse.site == site);
        let most = if is_expected { SECOND / 2 } else { [SECOND, 10 * SECOND][self.rng.below(2) as usize] };
        let at = world.now() + self.rng.below(most);
        world.wake_at(at, Timer::Word(site).token());
    }

    /// The person starts the site with the word, if it still waits for it.
    pub(crate) fn give_word(&mut self, world: &mut World, site: usize) {
        let waits = world.node(site).is_some_and(|node| node.readiness() == Readiness::AwaitingNewStorage);
        if !waits || self.faults.sites[site].unmounted.is_some() {
            return;
        }

        self.trace(world, format_args!("site {site} is to be started with the word that its earlier storage is lost"));
        self.crash_for(world, site, Keep::Everything, 50 * MILLISECOND);
        world.permit_new_storage(site);
    }

    /// The site loses its disk, joins while it can reach only a part of the others, and loses it again as soon as it has
    /// joined; the second time it can reach the other part first. Joining storage has to hear from so many that some of them
    /// hear of both.
    pub(crate) fn lose_disk_twice(&mut self, world: &mut World, site: usize) {
        let mut others = self.shuffled((0..world.len()).filter(|other| *other != site));

        others.truncate(others.len() / 2);
        let lasts = 6 * SECOND + self.rng.below(4 * SECOND);
        self.isolate(world, site, &others, lasts);

        self.faults.losses.relapse = Some(Relapse { site, unheard: others });
        let down_for = 100 * MILLISECOND + self.rng.below(300 * MILLISECOND);
        self.lose_disk(world, site, down_for);
    }

    /// Cuts a site off from some others, for a while.
    fn isolate(&mut self, world: &mut World, site: usize, others: &[usize], lasts: u64) {
        for &other in others {
            self.begin(world, Fault::Cut { from: other, to: site }, lasts);
            self.begin(world, Fault::Cut { from: site, to: other }, lasts);
        }
    }

    /// The site has joined.
    pub(crate) fn await_relapse(&mut self, world: &mut World, site: usize) {
        if self.faults.losses.relapse.as_ref().is_some_and(|relapse| relapse.site == site) {
            let at = world.now() + self.rng.below(SECOND);
            world.wake_at(at, Timer::Relapse(site).token());
        }
    }

    /// The site loses its disk again, if that is fair.
    pub(crate) fn relapse(&mut self, world: &mut World, site: usize) {
        let Some(Relapse { site: expected, unheard }) = self.faults.losses.relapse.take() else { return };
        let ready = world.node(site).is_some_and(|node| node.readiness() == Readiness::Ready);
        let is_fair = expected == site && ready && !self.faults.healed && self.is_calm_for_loss(world, site);
        if !is_fair || self.faults.losses.impostor.is_some() {
            return;
        }

        // The first cut ends, another one begins.
        for at in 0..self.faults.active.len() {
            let Some(Fault::Cut { from, to }) = self.faults.active[at] else { continue };
            let is_ours = |one: usize, other: usize| one == site && unheard.contains(&other);
            if is_ours(from, to) || is_ours(to, from) {
                self.mend(world, at);
            }
        }
        let heard: Vec<usize> = (0..world.len()).filter(|other| *other != site && !unheard.contains(other)).collect();
        let lasts = 2 * SECOND + self.rng.below(4 * SECOND);
        self.isolate(world, site, &heard, lasts);

        let down_for = 100 * MILLISECOND + self.rng.below(300 * MILLISECOND);
        self.lose_disk(world, site, down_for);
        self.probes.hit("fault: disk lost again");
    }
}
