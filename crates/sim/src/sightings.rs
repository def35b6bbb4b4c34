//! What is seen of sites as they start, handle inputs and answer: probes of what a run came across, and what was promised to others.

use slackline_core::api::{Outcome, Readiness, Response};
use slackline_core::avantan::{self, Role, subset};
use slackline_core::id::{Incarnation, SessionId, SiteId};
use slackline_core::machine::{Effect, Input};
use slackline_core::node::Node;
use slackline_core::object::message::{Fetched, Message};
use slackline_core::peer::quota::{Digest, QuotaMessage};
use slackline_core::peer::{Body, PeerMessage};
use slackline_core::quota::Quota;
use slackline_core::session::as_kept;

use crate::invariants::{answers, quorums, survival};
use crate::state::Simulation;
use crate::state::watch::{Seen, Works};
use crate::world::World;

impl Simulation {
    /// Adds what a life of a site counted to the probes. To be called before the node goes.
    pub(crate) fn count_metrics(&mut self, world: &World, site: usize) {
        let Some(node) = world.node(site) else { return };
        let metrics = *node.metrics();
        let before = std::mem::replace(&mut self.watch.seen[site].metrics, metrics);
        let mut add = |name, now: u64, before: u64| self.probes.add(name, now.saturating_sub(before));

        // A life counts from zero: what it had when it was looked at last is taken off.
        add("operation: granted at once", metrics.granted_local, before.granted_local);
        add("operation: granted after waiting", metrics.granted_waited, before.granted_waited);
        add("operation: hold ended by itself", metrics.expired, before.expired);
        add("operation: answered from the record", metrics.repeated, before.repeated);
        add("round: reactive", metrics.rounds_reactive, before.rounds_reactive);
        add("round: proactive", metrics.rounds_proactive, before.rounds_proactive);
        add("round: recovery", metrics.rounds_recovery, before.rounds_recovery);
        add("round: tokens moved", metrics.rebalances, before.rebalances);
        add("transaction: waited for warranties", metrics.defended, before.defended);
        add("transaction: was given its turn", metrics.turns_given, before.turns_given);
        add("transaction: waited for its turn", metrics.turns_awaited, before.turns_awaited);
        add("transaction: doubt resolved", metrics.doubts_resolved, before.doubts_resolved);
        add("call: deleted, nobody used it", metrics.calls_evicted, before.calls_evicted);
        add("warranty: issued", metrics.rights_issued, before.rights_issued);
        add("warranty: asked back", metrics.revocations, before.revocations);
        add("treaty: retracted", metrics.treaties_retracted, before.treaties_retracted);
        add("gift: sent", metrics.gifts_sent(), before.gifts_sent());
        add("gift: received", metrics.gifts_received, before.gifts_received);
        add("refill: backlog handed over", metrics.backlog_handed, before.backlog_handed);
        add("quota: forgotten", metrics.forgotten, before.forgotten);
    }

    /// Looks at how far a site is on its way to serving. True if its storage was found to be an old copy: then it stops, and
    /// is started on new storage.
    pub(crate) fn note_readiness(&mut self, world: &mut World, site: usize) -> bool {
        let Some(node) = world.node(site) else { return false };
        let (readiness, incarnation) = (node.readiness(), node.incarnation());
        let before = std::mem::replace(&mut self.watch.seen[site].readiness, readiness);
        if before == readiness {
            return false;
        }

        // It is a member no longer: its driver lets it say so.
        let has_left = readiness == Readiness::Stale && self.note_left(site);
        match (before, readiness) {
            (Readiness::Joining | Readiness::AwaitingNewStorage, Readiness::Ready) if incarnation == Incarnation(1) => {
                self.probes.hit("site: joins as the first incarnation");
            }
            // Its storage was lost: this is when others may not have heard of it, and when it may be lost again.
            (Readiness::Joining | Readiness::AwaitingNewStorage, Readiness::Ready) => {
                self.probes.hit("site: joins as a later incarnation");
                self.leave_unheard(world, site);
                self.await_relapse(world, site);
            }
            // The others know of nothing newer than what it was started on.
            (Readiness::Confirming, Readiness::Ready) => {
                self.probes.hit("site: confirmed");
                self.remounted(site);
            }
            // They do: its driver puts it aside.
            (_, Readiness::Stale) if !has_left => {
                self.probes.hit("site: old copy noticed");
                self.oracle.called_old(site, incarnation);
                self.put_aside(site);
            }
            // It has none, and others know an earlier incarnation: only a person can tell whether that is lost.
            (_, Readiness::AwaitingNewStorage) => {
                self.probes.hit("site: awaits a person's word");
                self.await_word(world, site);
            }
            _ => {}
        }

        self.trace(world, format_args!("site {site} is {readiness:?} in incarnation {}", incarnation.0));
        readiness == Readiness::Stale && !has_left
    }

    /// A site was started.
    pub(crate) fn started(&mut self, world: &mut World, site: usize) {
        self.holds_up(world, site, world.now());
        let node = world.node(site).expect("it was just started");
        self.watch.seen[site] = Seen { readiness: node.readiness(), ..Seen::default() };
        self.watch.works[site] = Works::default();

        let in_round = node.chapters().quotas.iter().any(|quota| quota.avantan().in_round());
        let round = |quota: &Quota| quota.avantan().share.round.clone();
        let accepted = node.chapters().quotas.iter().filter_map(round).any(|round| round.accepted.is_some());

        for quota in node.chapters().quotas.iter() {
            match quota.avantan().share.part().map(|part| part.accepted.is_some()) {
                Some(true) => self.probes.hit("any: restarted with an accepted value"),
                Some(false) => self.probes.hit("any: restarted before the vote"),
                None => {}
            }
        }
        if in_round {
            self.probes.hit("site: restarted in a round");
        }
        if accepted {
            self.probes.hit("site: restarted with an accepted value");
        }
        self.trace(world, format_args!("site {site} starts as {:?}", self.watch.seen[site].readiness));
    }

    /// Probes of the agreement that show before an input is handled.
    pub(crate) fn probe_input(&mut self, node: &Node, input: &Input<Node>) {
        let Input::Message { from, message: PeerMessage { body, .. } } = input else { return };
        if let Body::Quota(QuotaMessage::Digests(digests)) = body {
            let from = self.settings.members.binary_search(from).unwrap_or(usize::MAX);
            let known =
                |digest: &Digest| node.chapters().quotas.find(&digest.quota).map(|quota| quota.received(from).1);
            let again = digests.iter().filter(|digest| digest.given > 0 && known(digest) == Some(digest.given)).count();
            self.probes.add("gift: total told again", again as u64);
        }

        if let Body::Quota(QuotaMessage::Subset { quota, message }) = body {
            self.probe_subset(node, *from, quota, message);
        }

        let Body::Quota(QuotaMessage::Avantan { quota, message }) = body else { return };
        let message = &**message;
        let Some(quota) = node.chapters().quotas.find(quota) else {
            self.watch.meets_quota = matches!(message, avantan::Message::Decided { .. });
            return;
        };

        let share = &quota.avantan().share;
        match message {
            // It has missed at least two decisions.
            avantan::Message::Election { instance, .. } | avantan::Message::Decided { instance, .. }
                if *instance > share.applied + 2 =>
            {
                self.probes.hit("round: caught up over a gap");
            }
            // Another one leads at a higher ballot while it leads itself.
            avantan::Message::Election { ballot, .. } => {
                let electing = matches!(quota.avantan().role(), Role::Electing { .. });
                if electing && share.round.as_ref().is_some_and(|round| round.promised < *ballot) {
                    self.probes.hit("round: rivals");
                }
            }
            // A leader gives up; what was set aside for it alone is free again.
            avantan::Message::Withdraw { instance, ballot } => {
                self.probes.hit("round: withdrawn");
                let frees = share.round.as_ref().is_some_and(|round| {
                    round.instance == *instance
                        && round.promised == *ballot
                        && round.first == Some(*ballot)
                        && round.held > 0
                });
                if frees {
                    self.probes.hit("round: offer freed by a withdrawal");
                }
            }
            // It must propose what may have been decided before.
            avantan::Message::Report { report, .. }
                if report.accepted.is_some() && matches!(quota.avantan().role(), Role::Electing { .. }) =>
            {
                self.probes.hit("round: accepted value taken up");
            }
            _ => {}
        }
    }

    /// The same of rounds among subsets.
    fn probe_subset(&mut self, node: &Node, from: SiteId, quota: &str, message: &subset::Message) {
        let Some(quota) = node.chapters().quotas.find(quota) else { return };
        match message {
            subset::Message::Election { key, .. } => {
                let elects = matches!(quota.avantan().role_in_subset(), subset::Role::Electing { .. });
                if elects && quota.avantan().share.part().is_some_and(|part| part.key.leader > key.leader) {
                    self.probes.hit("any: rivals");
                }
            }
            subset::Message::Accept { key, .. } if key.leader != from => self.probes.hit("any: recovered by a member"),
            subset::Message::Accepted { dead, .. } if !dead.is_empty() => {
                self.probes.hit("any: told that a member is dead");
            }
            _ => {}
        }
    }

    /// Probes of the agreement that show in what a site sends, and promises that count for a quorum.
    pub(crate) fn probe_effect(&mut self, site: usize, effect: &Effect<Node>) {
        let Effect::Send { message: sent, .. } = effect else { return };
        let Body::Quota(QuotaMessage::Avantan { quota, message }) = &sent.body else { return };

        // Ballots of another life are others.
        let of_life = format!("{quota} {}", self.oracle.life_in(quota, sent.epoch));

        match &**message {
            avantan::Message::Report { instance, ballot, report } => {
                if report.accepted.is_some() {
                    self.probes.hit("round: accepted value reported");
                }
                if report.promises {
                    self.watch.promises.note(&of_life, *instance, *ballot, site);
                } else {
                    self.probes.hit("round: report without a promise");
                }
            }
            avantan::Message::Accept { instance, ballot, value } => {
                // Each change lets one more site join, then one leave, and a value counts the members that its leader knew.
                let joins = self.settings.members.len() - self.settings.first;
                let (changes, joined) = (value.membership as usize, joins.min(value.membership as usize));
                let members = self.settings.first + joined - (changes - joined);
                let found = self.watch.promises.check(&of_life, *instance, *ballot, site, members);
                self.oracle.blame(quorums::NAME, found, format_args!("quota {quota}"));
            }
            _ => {}
        }
    }

    /// Answers about a site's own operations leave it.
    pub(crate) fn leaves(&mut self, site: usize, incarnation: Incarnation, response: &Response) {
        match response {
            Response::Batch { session, answers } => {
                for answer in answers {
                    self.answer_leaves(site, incarnation, *session, answer.sequence, &answer.outcome);
                }
            }
            Response::Asked { operation, outcome } => {
                self.answer_leaves(site, operation.incarnation, operation.session, operation.sequence, outcome);
            }
            _ => {}
        }
    }

    /// An answer about one operation leaves its site: it must be durable there, and agree with what has left before.
    fn answer_leaves(
        &mut self,
        site: usize,
        incarnation: Incarnation,
        session: SessionId,
        sequence: u64,
        outcome: &Outcome,
    ) {
        let ops = self.oracle.sessions.get(&(site, incarnation, session));
        let Some(&op) = ops.and_then(|ops| ops.get(sequence as usize - 1)) else { return };
        let life = self.oracle.life(site);

        let known = &mut self.oracle.ops[op as usize];
        let about = known.id;
        // The names of calls are told once, and not kept.
        let outcome = &as_kept(outcome.clone());
        let durable = survival::check_answer(known.durable.as_ref(), outcome);
        let lives = known.answered.check(life, outcome);

        self.oracle.blame(survival::NAME, durable, about);
        self.oracle.blame(answers::NAME, lives, about);
    }
}

/// An answer with values and rights, if a site sends one.
pub(crate) fn fetched_of(effect: &Effect<Node>) -> Option<&Fetched> {
    match effect {
        Effect::Send { message: PeerMessage { body: Body::Txn(message), .. }, .. } => match &**message {
            Message::Fetched(fetched) => Some(fetched),
            _ => None,
        },
        _ => None,
    }
}
