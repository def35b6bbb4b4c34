//! Watches how much work sites make for each other, see [`crate::invariants::bounded_work`].

use std::collections::BTreeMap;

use slackline_core::avantan::Message;
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::peer::Body;

use crate::invariants::bounded_work::{self, Work};
use crate::run::Simulation;
use crate::world::World;

/// What each site has done for each quota since it was started.
pub(crate) type Works = Vec<BTreeMap<String, Work>>;

impl Simulation {
    /// Looks at what leaves a site in one turn.
    pub(crate) fn look_at_work(&mut self, world: &World, site: usize, effects: &[Effect<Node>]) {
        let (now, others) = (world.now(), world.len() - 1);
        let node = world.node(site).expect("it has just handled an input");
        let sends = effects.iter().filter_map(|effect| match effect {
            Effect::Send { message, .. } => Some(&message.body),
            _ => None,
        });
        let mut said: BTreeMap<&str, u64> = BTreeMap::new();
        let mut messages = 0;
        for body in sends {
            messages += 1;
            match body {
                Body::Digests(digests) => {
                    digests.iter().for_each(|digest| *said.entry(&digest.quota).or_default() += 1)
                }
                Body::Lookup { quota, .. } => *said.entry(quota).or_default() += 1,
                Body::Avantan { quota, message } => {
                    *said.entry(quota).or_default() += 1;
                    if let Message::Election { instance, ballot, .. } = &**message {
                        let waits = node.quotas().find(quota).is_some_and(|quota| quota.waiting() > 0);
                        let work = self.works[site].entry(quota.clone()).or_default();
                        let found = work.lead(now, (*instance, ballot.number), waits);
                        self.oracle.blame(bounded_work::NAME, found, &format!("site {site}, quota {quota}"));
                    }
                }
                _ => {}
            }
        }
        for (quota, messages) in said {
            let work = self.works[site].entry(quota.to_owned()).or_default();
            let found = work.say(now, messages, others as u64);
            self.oracle.blame(bounded_work::NAME, found, &format!("site {site}, quota {quota}"));
        }
        let found = bounded_work::check_turn(messages, others, node.quotas().waiting());
        self.oracle.blame(bounded_work::NAME, found, &format!("site {site}"));
    }
}
