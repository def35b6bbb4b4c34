//! Keeps watch over clock errors: who can hear whom, whether a site whose clock is far off comes to know, and what it leaves
//! behind.

use slackline_core::api::Readiness;
use slackline_core::clock::{MILLISECOND, Now};
use slackline_core::node::Node;
use slackline_core::peer::{Body, PeerMessage, SiteMessage};

use crate::clock::{EPOCH, EPSILON};
use crate::invariants::clock_errors::{self, Ear};
use crate::invariants::clock_marks;
use crate::state::Simulation;
use crate::state::timer::Timer;
use crate::world::World;

/// The time between two looks, once a clock was off. Whatever keeps sites from hearing each other lasts longer.
const LOOK: u64 = 20 * MILLISECOND;

impl Simulation {
    /// A wall clock was set beyond ε.
    pub(crate) fn begin_vigil(&mut self, world: &mut World) {
        if !std::mem::replace(&mut self.watch.vigil.is_on, true) {
            self.watch.vigil.ears.fill(Ear::new(world.len()));
            self.keep_vigil(world);
        }
    }

    /// Looks at all clocks and links, from the first error on.
    pub(crate) fn keep_vigil(&mut self, world: &mut World) {
        let (now, epsilon, sites) = (world.now(), EPSILON as u64, world.len());
        let errors: Vec<u64> = (0..sites).map(|site| world.clock(site).error(now).unsigned_abs()).collect();
        for site in 0..sites {
            self.watch.vigil.ears[site].note_error(now, errors[site], epsilon);
            self.watch.vigil.ears[site].note_time(now, world.time_at(site));
            for peer in (0..sites).filter(|&peer| peer != site) {
                let can_hear = errors[peer] <= epsilon && can_exchange(world, site, peer);
                let rtt = world.delay(site, peer) + world.delay(peer, site);
                self.watch.vigil.ears[site].note_peer(now, peer, can_hear, rtt);
            }
            let ear = &self.watch.vigil.ears[site];

            // A site that can hear a majority must not keep marks that its own clock's error has put ahead of the time.
            if let Some(node) = world.node(site)
                && ear.hears_majority(now)
            {
                let found = clock_marks::check(node.chapters().txns.marks(), EPOCH + now as i64, epsilon);
                self.oracle.blame(clock_marks::NAME, found, format_args!("site {site}"));
                self.probes.hit("site: marks looked at after a clock error");
            }

            // One whose clock is not off has nothing to notice; a later error is judged again.
            let Some(node) = world.node(site).filter(|_| ear.is_off()) else {
                self.watch.vigil.judged[site] = false;
                continue;
            };
            let (_, is_trusted) = node.clock(world.time_at(site));

            // It must notice within a time that depends on whom it could hear meanwhile.
            match ear.check(now, epsilon, is_trusted) {
                Ok(true) if !std::mem::replace(&mut self.watch.vigil.judged[site], true) => {
                    self.probes.hit("site: clock error noticed in time");
                }
                found => {
                    self.oracle.blame(clock_errors::NAME, found.map(drop), format_args!("site {site}"));
                }
            }
        }
        // What an error leaves behind may show later.
        self.watch.vigil.is_on = !self.phase.is_audit();
        if self.watch.vigil.is_on {
            world.wake_at(now + LOOK, Timer::Vigil.token());
        }
    }

    /// A site is told the time by a peer.
    pub(crate) fn hears(&mut self, node: Option<&Node>, (site, now): (usize, Now), message: &PeerMessage, peer: usize) {
        if let Body::Site(SiteMessage::Pong { mono, .. }) = &message.body
            && self.watch.vigil.is_on
            && let Some(asked) = node.and_then(|node| node.pinged_at(now, *mono))
        {
            self.watch.vigil.ears[site].note_exchange(peer, now.mono - asked);
        }
    }

    /// A message between two sites is lost.
    pub(crate) fn misses(&mut self, from: usize, to: usize, message: &PeerMessage) {
        if self.watch.vigil.is_on
            && matches!(message.body, Body::Site(SiteMessage::Ping { .. }) | Body::Site(SiteMessage::Pong { .. }))
        {
            self.watch.vigil.ears[from].note_peer(0, to, false, 0);
            self.watch.vigil.ears[to].note_peer(0, from, false, 0);
        }
    }
}

/// Returns true if nothing keeps two sites from exchanging their times.
fn can_exchange(world: &mut World, site: usize, peer: usize) -> bool {
    let serves = |world: &World, site: usize| {
        let readiness = world.node(site).map(|node| node.readiness());
        matches!(readiness, Some(Readiness::Ready | Readiness::Draining)) && !world.is_held_up(site)
    };
    let mut is_good = |from: usize, to: usize| {
        let link = world.link(from, to);
        link.cut == 0 && link.slow == 0
    };
    is_good(site, peer) && is_good(peer, site) && serves(world, site) && serves(world, peer)
}
