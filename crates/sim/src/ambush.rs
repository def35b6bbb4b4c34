//! A fault that needs exact timing: a site loses its disk right after a value was decided with its vote, at a moment when
//! only those who decided it know, and they are cut off from the rest.
//!
//! ```text
//!   leader ──Accept──▶ voter            the others get no Accept: their links are cut
//!   leader ◀─Accepted─ voter
//!   leader: decided, and tells nobody   the voter's disk is lost; cut off from the others, slow to the voter
//!   the others + the new incarnation    are a majority again
//! ```
//!
//! If the new incarnation voted before a decided instance recorded it, the others could decide something else with it. By
//! chance alone this takes thousands of runs.

use slackline_core::api::Readiness;
use slackline_core::avantan::{Message, Role};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::peer::Body;
use slackline_core::peer::quota::QuotaMessage;

use crate::state::Simulation;
use crate::state::faults::{Ambush, Fault};
use crate::world::World;

impl Simulation {
    /// Looks whether the time has come, after `site` handled an input.
    pub(crate) fn look_at_ambush(&mut self, world: &mut World, site: usize, effects: &[Effect<Node>]) {
        match self.faults.ambush.take() {
            None => {}
            Some(Ambush::Lies) => {
                self.faults.ambush = Some(self.set_ambush(world, site, effects).unwrap_or(Ambush::Lies))
            }
            Some(set @ Ambush::Set { leader, .. }) if leader != site => self.faults.ambush = Some(set),

            Some(Ambush::Set { leader, victim, quorum, quota, instance }) => {
                let at_leader = world
                    .node(leader)
                    .and_then(|node| node.chapters().quotas.find(&quota))
                    .map(|quota| quota.avantan());

                let Some(avantan) = at_leader else { return };

                // Decided: the moment has come. A leader that has given up, or lost to another, ends the ambush.
                if avantan.share.applied == instance {
                    self.spring_ambush(world, victim, quorum, &quota, instance);
                } else if matches!(avantan.role(), Role::Collecting { .. }) && avantan.share.applied < instance {
                    self.faults.ambush = Some(Ambush::Set { leader, victim, quorum, quota, instance });
                }
            }
        }
    }

    /// If the site asks for votes, sees to it that only a bare majority hears of it.
    fn set_ambush(&mut self, world: &mut World, leader: usize, effects: &[Effect<Node>]) -> Option<Ambush> {
        let asks = effects.iter().find_map(|effect| {
            let Effect::Send { message, .. } = effect else { return None };
            let Body::Quota(QuotaMessage::Avantan { quota, message }) = &message.body else { return None };
            let Message::Accept { instance, .. } = **message else { return None };
            Some((quota.clone(), instance))
        });

        let (quota, instance) = asks?;

        // With the leader, half of the others are a bare majority: one vote less, and nothing would have been decided.
        let sites = world.len();
        let others = self.shuffled((0..sites).filter(|other| *other != leader));
        let (voters, outside) = others.split_at(sites / 2);
        let victim = voters[0];

        if world.node(victim).is_none_or(|node| node.readiness() != Readiness::Ready) {
            return None;
        }

        let lasts = SECOND + self.rng.below(2 * SECOND);
        outside.iter().for_each(|&to| self.begin(world, Fault::Cut { from: leader, to }, lasts));
        let quorum = voters.iter().fold(1 << leader, |quorum, voter| quorum | 1 << voter);
        Some(Ambush::Set { leader, victim, quorum, quota, instance })
    }

    /// The leader has decided: the victim loses its disk, if it has voted and those outside have not.
    fn spring_ambush(&mut self, world: &mut World, victim: usize, quorum: u64, quota: &str, instance: u64) {
        let has_voted = |site: usize| {
            let share = world
                .node(site)
                .and_then(|node| node.chapters().quotas.find(quota))
                .map(|quota| &quota.avantan().share);
            let round = share.and_then(|share| share.round.as_ref());
            let knows = share.is_some_and(|share| share.applied >= instance);
            (knows, round.is_some_and(|round| round.instance == instance && round.accepted.is_some()))
        };

        let is_in = |site: usize| quorum >> site & 1 == 1;
        let (inside, outside): (Vec<usize>, Vec<usize>) = (0..world.len()).partition(|&site| is_in(site));

        let ready = world.node(victim).is_some_and(|node| node.readiness() == Readiness::Ready);
        let forgets = has_voted(victim) == (false, true);
        let unaware = outside.iter().all(|&site| has_voted(site) == (false, false));

        // The victim's vote is in nobody's memory but the leader's and those voters', and the others can still decide without them.
        if !(ready && forgets && unaware && self.may_lose_disk(world, victim)) {
            return;
        }

        self.probes.hit("fault: disk lost after a vote");
        let down_for = 50 * MILLISECOND + self.rng.below(300 * MILLISECOND);
        self.lose_disk(world, victim, down_for);

        // For as long, the others and the new incarnation cannot hear of the decision from those who know it.
        let lasts = 4 * SECOND + self.rng.below(4 * SECOND);
        let by = SECOND + self.rng.below(2 * SECOND);
        for &from in inside.iter().filter(|&&site| site != victim) {
            for &to in &outside {
                self.begin(world, Fault::Cut { from, to }, lasts);
                self.begin(world, Fault::Cut { from: to, to: from }, lasts);
            }
            self.begin(world, Fault::Slow { from, to: victim, by }, lasts);
        }
    }
}
