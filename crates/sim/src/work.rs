//! Watches how much work sites make for each other, see [`crate::invariants::bounded_work`].

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::avantan::Message;
use slackline_core::id::{GrantId, SessionId};
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::peer::Body;
use slackline_core::quota::{DUE, GRANT};

use crate::invariants::bounded_work::{self, Leftovers, Work};
use crate::run::Simulation;
use crate::world::World;

/// Tags of rows, see the table in [`slackline_core::node`].
const COLD: u8 = 0x03;
const HOT: u8 = 0x04;
const OUTCOME: u8 = 0x05;
const PARTICIPANT: u8 = 0x07;
const COORDINATOR: u8 = 0x08;

/// What each site has done for each quota since it was started.
pub(crate) type Works = Vec<BTreeMap<String, Work>>;

impl Simulation {
    /// The rows of a site at rest that nothing accounts for.
    pub(crate) fn leftovers(&self, world: &mut World, site: usize) -> Leftovers {
        let rows = world.copy(site).rows;
        let mut left = Leftovers::default();
        let Some(node) = world.node(site) else { return left };
        let (incarnation, quotas) = (self.oracle.present(site), node.quotas().len());
        let outcomes: BTreeSet<(SessionId, u64)> = node.sessions().rows().into_iter().collect();

        // A grant without an end whose quota was deleted is there for a while.
        let is_tracked = |number: u64| {
            let grant = GrantId { site: self.members[site], incarnation, number };
            let op = self.oracle.grant(grant).map(|op| &self.oracle.ops[op as usize]);
            op.and_then(|op| op.tracked).is_some_and(|tracked| !tracked.ended)
        };
        for key in rows.keys() {
            let number = |from: usize| u64::from_be_bytes(key[from..from + 8].try_into().expect("eight bytes"));
            match key[0] {
                COLD | HOT => {
                    let at = u32::from_be_bytes(key[1..5].try_into().expect("four bytes"));
                    left.quotas += usize::from(at as usize >= quotas);
                }
                OUTCOME => {
                    let slot = u64::from(u16::from_be_bytes([key[9], key[10]]));
                    left.outcomes += usize::from(!outcomes.contains(&(SessionId(number(1)), slot)));
                }
                PARTICIPANT | COORDINATOR => left.transactions += 1,
                GRANT => left.grants += usize::from(!is_tracked(number(5))),
                DUE => left.grants += usize::from(!is_tracked(number(13))),
                _ => {}
            }
        }
        left
    }

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
