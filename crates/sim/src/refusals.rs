//! Keeps watch over who is up and connected, and judges refusals by that.

use slackline_core::api::{Operation, Outcome, Readiness};
use slackline_core::clock::MILLISECOND;
use slackline_core::id::SiteId;
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::object::message::{Message, Says, Vote};
use slackline_core::object::treaty::treaty_name;
use slackline_core::object::{Abort, Cause, Transaction};
use slackline_core::peer::{Body, PeerMessage};
use slackline_core::warranty::LEASE;

use crate::clock::{EPOCH, EPSILON};
use crate::invariants::refusal::{self, SETTLED, TIME, TOKENS};
use crate::quotas::{KINDS, Kind};
use crate::state::Simulation;
use crate::state::timer::Timer;
use crate::world::World;

/// The time between two looks. Whatever keeps sites from hearing each other lasts longer.
const LOOK: u64 = 50 * MILLISECOND;
/// Every so many looks it looks at parts that are in doubt.
const PARTS: u64 = 5;

impl Simulation {
    /// Notes how all sites and links are now.
    fn note_standing(&mut self, world: &mut World) {
        let (now, sites) = (world.now(), world.len());
        for site in 0..sites {
            let serves = world.node(site).is_some_and(|node| node.readiness() == Readiness::Ready);
            let served = &mut self.watch.refusals.serving[site];
            if served.0 != world.life(site) {
                *served = (world.life(site), None);
            }

            served.1 = served.1.or(serves.then_some(now));
            let is_well = serves && !world.is_held_up(site) && self.watch.refusals.held_up[site] <= now;

            let error = world.clock(site).error(now);
            let are_right = error.abs() <= EPSILON && !self.faults.errs(site);
            self.watch.refusals.standing.note_site(now, site, is_well);
            self.watch.refusals.standing.note_clocks(now, site, are_right);

            for other in 0..site {
                let mut is_good = |from: usize, to: usize| {
                    let link = world.link(from, to);
                    link.cut == 0 && link.slow == 0
                };
                let is_good = is_good(site, other) && is_good(other, site) && !self.faults.is_stormy();
                self.watch.refusals.standing.note_link(now, site, other, is_good);
            }
        }
    }

    /// Looks at all sites and links, and at what is within their reach.
    pub(crate) fn look_for_refusals(&mut self, world: &mut World) {
        self.note_standing(world);
        let (now, sites) = (world.now(), world.len());
        let everybody: Vec<usize> = (0..sites).collect();
        let all = self.watch.refusals.standing.sound_since(&everybody);
        for site in 0..sites {
            for (at, kind) in KINDS.iter().enumerate() {
                let is_new = is_new(world, site, kind);
                let new = &mut self.watch.refusals.new[site][at];
                *new = is_new.then(|| new.unwrap_or(now));
                let found = refusal::check_new(now, *new, all);
                self.oracle.blame(refusal::NAME, found, format_args!("site {site}, quota {}", kind.name));

                let has_plenty = !is_new && self.has_plenty(world, site, kind);
                let plenty = &mut self.watch.refusals.plenty[site][at];
                *plenty = has_plenty.then(|| plenty.unwrap_or(now));
            }
        }

        self.watch.refusals.looks += 1;
        if self.watch.refusals.looks.is_multiple_of(PARTS) {
            self.look_at_parts(world);
        }

        world.wake_at(now + LOOK, Timer::Refusals.token());
    }

    /// Something at a site is held up by a fault until then.
    pub(crate) fn holds_up(&mut self, world: &World, site: usize, until: u64) {
        self.watch.refusals.held_up[site] = self.watch.refusals.held_up[site].max(until);
        self.watch.refusals.standing.note_site(world.now(), site, false);
    }

    /// A message between two sites is lost, as they stand.
    pub(crate) fn loses(&mut self, now: u64, from: usize, to: usize, message: &PeerMessage) {
        if matches!(message.body, Body::Txn(_)) {
            self.watch.refusals.standing.note_loss(now, from, to);
        }
    }

    /// Returns true if a site, and those that are sound with it, have more free tokens than all sites wait for, by what a
    /// client may ask for.
    fn has_plenty(&self, world: &World, site: usize, kind: &Kind) -> bool {
        if self.watch.refusals.standing.sound_since(&[site]).is_none() {
            return false;
        }

        let (mut free, mut needed) = (0i128, 0i128);
        for other in 0..world.len() {
            let Some(node) = world.node(other) else { continue };
            let Some(quota) = node.chapters().quotas.find(kind.name) else { continue };

            // What any site waits for counts as needed, wherever it is; what is free counts only where this site can get it.
            needed += i128::from(quota.needed());
            let is_known = quota.limit().is_some() && quota.avantan().share.round.is_none();
            if is_known && self.watch.refusals.standing.sound_since(&[site, other]).is_some() {
                free += i128::from(quota.avantan().share.free(node.membership()));
            }
        }

        free >= needed + 2 * i128::from(kind.most)
    }

    fn look_at_parts(&mut self, world: &World) {
        let now = world.now();
        for site in 0..world.len() {
            let Some(node) = world.node(site) else { continue };
            for (id, stage, deadline, participants) in node.chapters().txns.undecided() {
                let mut group: Vec<usize> = participants
                    .chain([id.site])
                    .filter_map(|other| self.settings.members.binary_search(&other).ok())
                    .collect();
                group.push(site);
                group.sort_unstable();
                group.dedup();

                // One that waits for rights waits for its own home alone.
                if stage == slackline_core::txn::Stage::Defending {
                    group = vec![site];
                    self.watch.refusals.waited.insert(id);
                }

                let deadline = u64::try_from(deadline - EPOCH).unwrap_or(0);
                let sound = self.watch.refusals.standing.sound_since(&group);
                let found = refusal::check_part(now, stage, deadline, sound);
                self.oracle.blame(refusal::NAME, found, format_args!("site {site}, {id}"));
            }
        }
    }

    /// Judges that a home which refuses a write because it may not wait asks those who are in its way to give their rights up.
    pub(crate) fn look_at_asking(&mut self, world: &World, site: usize, effects: &[Effect<Node>]) {
        let now = world.now();
        let messages = effects.iter().filter_map(|effect| match effect {
            Effect::Send { to, message } => match &message.body {
                Body::Txn(message) => Some((*to, &**message)),
                _ => None,
            },
            _ => None,
        });

        for (to, message) in messages.clone() {
            if let Message::Revoke { rights, .. } = message {
                let asked_back = rights.iter().map(|(name, _)| ((site, to, name.clone()), now));
                self.watch.refusals.asked_back.extend(asked_back);
            }
            // For slack of a treaty, whoever has some is asked, or the treaty's home to retract it.
            if let Message::Treaty { treaty, says: Says::Ask { .. } | Says::Retract { .. }, .. } = message {
                let others = self.settings.members.iter().map(|other| ((site, *other, treaty.name.clone()), now));
                self.watch.refusals.asked_back.extend(others);
            }
        }
        for (_, message) in messages {
            let Message::Vote { id, vote: Vote::Refused(abort) } = message else { continue };
            // What it said once it may repeat.
            if abort.cause == Cause::WouldWait && self.watch.refusals.would_wait.insert((site, *id)) {
                let (Some(key), Some(until)) = (&abort.key, abort.until) else { continue };
                let asked = abort.holders.iter().filter_map(|holder| {
                    self.watch.refusals.asked_back.get(&(site, *holder, key.name.clone())).copied()
                });
                let left = until - world.time_at(site).wall;

                // Rights of before its start, or by clocks that are wrong, may bind for longer than those that it knows.
                let is_judged = !self.is_new(site, now) && self.watch.refusals.standing.is_settled(&[site], now);
                // What waited while the home was held up is refused afterwards, and was asked back before.
                let since = self.watch.refusals.standing.sound_since(&[site]);
                let was_well = since.is_some_and(|since| since + refusal::ASKED_BACK <= now);

                // Of a treaty that is being made no leaf has slack to give yet.
                let is_making = world.node(site).is_some_and(|node| node.chapters().txns.is_making(key));

                // Of those that are out of reach none is asked for slack.
                let is_near = |holder: &SiteId| {
                    let other = self.settings.members.iter().position(|member| member == holder);
                    let since = other.and_then(|other| self.watch.refusals.standing.sound_since(&[site, other]));
                    since.is_some_and(|since| since + refusal::ASKED_BACK <= now)
                };
                let is_for_slack = treaty_name(&key.name).is_some();
                let can_ask = !is_for_slack || !is_making && abort.holders.iter().any(is_near);

                if is_judged && was_well && can_ask && !abort.holders.is_empty() {
                    let found = refusal::check_asked_back(now, left, asked.max());
                    self.oracle.blame(refusal::NAME, found, format_args!("site {site}, {id}"));
                }
            }
        }
    }

    /// Returns true if a home has started so lately that it does not know what it, or the storage before, has issued.
    fn is_new(&self, home: usize, when: u64) -> bool {
        let (life, since) = self.watch.refusals.serving[home];
        life > 0 && since.is_none_or(|since| since + LEASE > when)
    }

    /// The sites of a transaction's homes and its coordinator.
    fn group_of(&self, coordinator: usize, transaction: &Transaction) -> Vec<usize> {
        let homes = transaction.homes.iter().map(|home| usize::from(home.region));
        let mut group: Vec<usize> =
            homes.chain([coordinator]).filter(|site| *site < self.settings.members.len()).collect();

        group.sort_unstable();
        group.dedup();
        group
    }

    /// Judges what a client is told of an operation that it sent once, and directly.
    pub(crate) fn judge_refusal(&mut self, world: &mut World, op: u32, outcome: &Outcome) {
        // A fault may have begun since the last look.
        self.note_standing(world);

        let known = &self.oracle.ops[op as usize];
        let (site, sent, timeout) = (known.site, known.sent.first, known.timeout);
        let standing = &self.watch.refusals.standing;
        let found = match &known.operation {
            Operation::Commit(transaction) if timeout >= TIME => {
                let group = self.group_of(site, transaction);
                // One that rests on rights must be over before they are.
                let elsewhere = |region: u16| usize::from(region) != site;
                let rests = transaction.homes.iter().any(|home| elsewhere(home.region) && !home.part.changes());
                // One that waits for rights waits until they end, if a holder cannot be asked to give them up, or if the home has
                // started since and does not know what it, or the storage before, has issued.
                let all: Vec<usize> = (0..self.settings.members.len()).collect();
                let is_new = group.iter().any(|home| self.is_new(*home, sent));
                let may_wait =
                    self.watch.refusals.waited.contains(&known.id) && (is_new || !standing.must_serve(&all, sent));

                let is_judged =
                    standing.must_serve(&group, sent) && !(rests && self.settings.has_warranties) && !may_wait;
                // A home whose disk is full takes no other site's transaction.
                let is_for_room = group.iter().any(|home| world.was_full_since(*home, sent))
                    && matches!(outcome, Outcome::Aborted(abort) if abort.cause == Cause::NotReady);
                if is_judged && !is_for_room { refusal::check_transaction(outcome) } else { Ok(()) }
            }
            Operation::Acquire { quota, amount, .. } => {
                // Others may have asked as well since the tokens were seen, so they must have been there for some time.
                let at = KINDS.iter().position(|kind| kind.name == quota && *amount <= kind.most);
                let since = at.and_then(|at| self.watch.refusals.plenty[site][at]);
                // Since the last look it may have heard of a lower limit: nobody is granted anything while more than that is out.
                let here = world.node(site).and_then(|node| node.chapters().quotas.find(quota));
                let is_over = here.is_some_and(|quota| quota.avantan().share.table.is_over());
                let is_judged = !is_over
                    && since.is_some_and(|since| since + TOKENS <= sent)
                    && standing.sound_since(&[site]).is_some_and(|since| since + SETTLED <= sent);
                if is_judged { refusal::check_operation(outcome, timeout) } else { Ok(()) }
            }
            Operation::Create { .. }
            | Operation::SetLimit { .. }
            | Operation::Reclaim { .. }
            | Operation::Delete { .. } => {
                // To create, to change or to delete is decided by a majority; it is judged only while all are there, so that it need not be known which.
                let all: Vec<usize> = (0..self.settings.members.len()).collect();
                let is_judged = standing.sound_since(&all).is_some_and(|since| since + SETTLED <= sent);
                if is_judged { refusal::check_operation(outcome, timeout) } else { Ok(()) }
            }
            _ => Ok(()),
        };

        let about = known.id;
        self.oracle.blame(refusal::NAME, found, format_args!("{about}, sent at {sent}"));
    }

    /// Judges that an object was not read.
    pub(crate) fn judge_not_read(&mut self, world: &mut World, site: usize, home: usize, sent: u64, abort: &Abort) {
        self.note_standing(world);

        let mut group = vec![site];
        group.extend(Some(home).filter(|home| *home != site && *home < self.settings.members.len()));

        if self.watch.refusals.standing.must_serve(&group, sent) {
            self.oracle.blame(
                refusal::NAME,
                refusal::check_read(abort),
                format_args!("site {site}, read of {home} at {sent}"),
            );
        }
    }
}

/// True if a site is new to a quota: then it grants nothing before a round has recorded it.
fn is_new(world: &World, site: usize, kind: &Kind) -> bool {
    let Some(node) = world.node(site) else { return false };
    let quota = node.chapters().quotas.find(kind.name);
    quota.is_some_and(|quota| quota.avantan().share.table.is_new(node.membership()))
}
