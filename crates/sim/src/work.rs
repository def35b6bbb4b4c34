//! Watches how much work sites make for each other, see [`crate::invariants::bounded_work`].

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::avantan::Message;
use slackline_core::chapter::Chapter as _;
use slackline_core::id::{GrantId, OperationId, SessionId};
use slackline_core::machine::Effect;
use slackline_core::node::{Node, read_outcome_key};
use slackline_core::object;
use slackline_core::peer::Body;
use slackline_core::peer::quota::QuotaMessage;
use slackline_core::quota::{quota_number, read_due_key, read_grant_key};
use slackline_core::rows::{COORDINATOR, DUE, GRANT, OUTCOME, PARTICIPANT, QUOTA_COLD, QUOTA_HOT};

use crate::invariants::bounded_work::{self, Leftovers, Why};
use crate::state::Simulation;
use crate::world::World;

/// So many transactions are remembered; beyond it, those are forgotten of which nothing was said lately.
const REMEMBERED: usize = 4_096;

impl Simulation {
    /// The rows of a site at rest that nothing accounts for.
    pub(crate) fn leftovers(&self, world: &mut World, site: usize) -> Leftovers {
        let rows = world.copy(site).rows;

        let mut left = Leftovers::default();
        let Some(node) = world.node(site) else { return left };
        let incarnation = self.oracle.incarnation(site);
        let outcomes: BTreeSet<(SessionId, u64)> = node.sessions().rows().into_iter().collect();

        // A grant without an end whose quota was deleted is there for a while.
        let is_tracked = |number: u64| {
            let grant = GrantId { site: self.settings.members[site], incarnation, number };
            let op = self.oracle.grant(grant).map(|op| &self.oracle.ops[op as usize]);
            op.and_then(|op| op.tracked).is_some_and(|tracked| !tracked.ended)
        };

        // Each kind of row must be accounted for by what the machine has in memory, or by the oracle.
        for key in rows.keys() {
            match key[0] {
                QUOTA_COLD | QUOTA_HOT => {
                    let number = quota_number(key).expect("a key that the node wrote");
                    left.quotas += usize::from(node.chapters().quotas.numbered(number).is_none());
                }
                OUTCOME => {
                    let row = read_outcome_key(key).expect("a key that the node wrote");
                    left.outcomes += usize::from(!outcomes.contains(&row));
                }
                PARTICIPANT | COORDINATOR => left.transactions += 1,
                GRANT => {
                    let (_, number) = read_grant_key(key).expect("a key that the node wrote");
                    left.grants += usize::from(!is_tracked(number));
                }
                DUE => {
                    let (_, _, number) = read_due_key(key).expect("a key that the node wrote");
                    left.grants += usize::from(!is_tracked(number));
                }
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
        let mut about: BTreeMap<OperationId, u64> = BTreeMap::new();
        let mut asked_back: BTreeMap<&str, u64> = BTreeMap::new();
        let mut messages = 0;

        let foreseen = node.metrics().rounds_proactive;
        let is_foreseen = std::mem::replace(&mut self.watch.works[site].foreseen, foreseen) != foreseen;
        for body in sends {
            messages += 1;
            match body {
                // What is told of a quota, each in its own message or many in one.
                Body::Quota(QuotaMessage::Digests(digests)) => {
                    digests.iter().for_each(|digest| *said.entry(&digest.quota).or_default() += 1)
                }
                Body::Quota(QuotaMessage::Lookup { quota, .. } | QuotaMessage::Subset { quota, .. }) => {
                    *said.entry(quota).or_default() += 1;
                }
                Body::Quota(QuotaMessage::Avantan { quota, message }) => {
                    *said.entry(quota).or_default() += 1;
                    // Elections are counted besides, by why they are led.
                    if let Message::Election { instance, ballot, .. } = &**message {
                        let waits = node.chapters().quotas.find(quota).is_some_and(|quota| quota.waiting() > 0);
                        let why = match waits {
                            true => Why::Waits,
                            false if is_foreseen => Why::Foreseen,
                            false => Why::Unasked,
                        };
                        let work = self.watch.works[site].quotas.entry(quota.clone()).or_default();
                        let found = work.lead(now, (*instance, ballot.number), why);
                        self.oracle.blame(bounded_work::NAME, found, format_args!("site {site}, quota {quota}"));
                    }
                }
                // What is told of a transaction, and what asks for rights back.
                Body::Txn(message) => {
                    if let Some(id) = transaction_of(message) {
                        *about.entry(id).or_default() += 1;
                    }
                    match &**message {
                        object::message::Message::Revoke { rights, .. } => {
                            rights.iter().for_each(|(name, _)| *asked_back.entry(name).or_default() += 1);
                        }
                        // As of a quota: no quota has the name of a treaty.
                        object::message::Message::Treaty { treaty, .. } => *said.entry(&treaty.name).or_default() += 1,
                        _ => {}
                    }
                }
                _ => {}
            }
        }

        let works = &mut self.watch.works[site];
        if works.transactions.len() > REMEMBERED {
            works.transactions.retain(|_, talk| !talk.is_quiet(now));
        }

        for (id, messages) in about {
            let found = works.transactions.entry(id).or_default().say(now, messages, others as u64);
            self.oracle.blame(bounded_work::NAME, found, format_args!("site {site}, transaction {id}"));
        }
        for (name, messages) in asked_back {
            let found = works.rights.entry(name.to_owned()).or_default().say(now, messages, others as u64);
            self.oracle.blame(bounded_work::NAME, found, format_args!("site {site}, rights over {name}"));
        }
        for (quota, messages) in said {
            let work = self.watch.works[site].quotas.entry(quota.to_owned()).or_default();
            let found = work.say(now, messages, others as u64);
            self.oracle.blame(bounded_work::NAME, found, format_args!("site {site}, quota {quota}"));
        }

        let found = bounded_work::check_turn(messages, others, node.chapters().quotas.waiting());
        self.oracle.blame(bounded_work::NAME, found, format_args!("site {site}"));
    }
}

/// The transaction that a message is about, if it is about one.
fn transaction_of(message: &object::message::Message) -> Option<OperationId> {
    use object::message::Message;
    match message {
        Message::Prepare(prepare) => Some(prepare.id),
        Message::Vote { id, .. }
        | Message::Decide { id, .. }
        | Message::Decided { id }
        | Message::Forget { id }
        | Message::Inquire { id, .. }
        | Message::Inquired { id, .. } => Some(*id),
        _ => None,
    }
}
