//! The model check of what changes of the members do to an entity: [`slackline_core::avantan`] itself, in every order of events.
//!
//! A state is the agreements of four sites on one entity, the changes that each knows of, the votes for the next one, and the messages
//! under way. The fourth site joins by the first change, and a site is declared lost by the second. From each state every message may be
//! delivered next, or never; each site may lead a round, build, grant a token, or learn of a change that is decided. One that leads a
//! round then may ask again in some setups: by the members that it knows now.
//!
//! Four sites are too few to see that a vote of a member that is gone must not count: of the three that are left, who hears another vote
//! has two. A unit test of the agreement shows that, with six.
//!
//! That a change itself is decided once is the same agreement's, and checked with it ([`crate::avantan`]): here one is decided as soon as
//! a majority of the members that the last one left may vote for it. What a vote asks of a site is the product's rule, written once more
//! here because a change is one step: everything that it knows has recorded the last change. That the product's agreement asks for it, scenarios
//! and a planted bug show. The site that joined may vote at once, since it may have done so when it knew nothing yet.
//!
//! Properties:
//!
//! - **agreement**: all sites that applied an instance have the same table for it;
//! - **never over the limit**: the tokens at all sites, those of one that is gone included, and the tokens acquired are not more than
//!   the limit; and no less before one is gone;
//! - **own invariants**: no assertion of the product fails.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use slackline_core::avantan::{
    Avantan, Intent, Membership, Message, Offer, Role, Row, Settled, Share, Step, Table, counts_alike,
};
use slackline_core::id::{Incarnation, SiteId};
use stateright::{Model, Property};

use crate::avantan::{aim, brief_message};

/// The first members; one more joins.
const FIRST: usize = 3;

/// The bounds of an exploration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The name in the printed line.
    pub name: &'static str,
    /// The share of each site at the start; the last joins later, and has none.
    pub tokens: [i64; FIRST + 1],
    /// The site that is declared lost by the second change.
    pub lost: usize,
    /// The changes that the entity has recorded at the start: 0, or 1.
    pub begins: u64,
    /// The changes that each site knows of at the start. One that knows fewer than are recorded was away: it has not heard of the entity.
    pub knows: [u64; FIRST + 1],
    /// The number of changes in the end: up to 2.
    pub changes: u64,
    /// The highest ballot number in any instance.
    pub ballots: u64,
    /// The number of rounds.
    pub rounds: u64,
    /// Why rounds are led.
    pub intents: Vec<Intent>,
    /// The sites that may lead.
    pub leaders: Vec<usize>,
    /// The number of grants to clients, of a token each.
    pub acquires: u8,
    /// True if a leader asks again for what is missing once it has learned of a change. Without, the states are few enough for all of them.
    pub repeats: bool,
    /// True if only messages that carry an election or a vote arrive. With the others lost, the same number of states goes deeper.
    pub votes_only: bool,
}

/// One site.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    avantan: Avantan,
    /// The number of changes that it knows of.
    number: u64,
    /// The number that it knew of when it last asked for reports or votes.
    asked: u64,
}

/// A message under way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Envelope {
    from: usize,
    /// The number of changes that the sender knew of.
    number: u64,
    to: usize,
    message: Message,
}

/// One state of all sites and the network.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    sites: Vec<Site>,
    /// The messages under way. One that never arrives stays here.
    network: BTreeSet<Envelope>,
    /// The number of changes that are decided.
    changes: u64,
    acquired: i64,
    /// The grants that may still happen.
    left: u8,
    /// The first table that a site applied for each instance, by rising instance.
    decided: Vec<(u64, Table)>,
    disagreed: bool,
    broken: bool,
}

/// An event that may happen next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A message arrives.
    Deliver(Envelope),
    /// A site leads a round, or a higher ballot of the one that it is in.
    Start(usize, Intent),
    /// A leader stops waiting for reports.
    Build(usize),
    /// A leader asks again for what is missing, after it has learned of a change.
    Repeat(usize),
    /// A client is granted a token.
    Acquire(usize),
    /// The next change is decided.
    Change,
    /// A site learns of a change that is decided.
    Learn(usize),
}

/// What a site does with its agreement in one step.
type Act<'a> = &'a dyn Fn(&mut Avantan, Membership, &mut Step);

impl Setup {
    /// Does something with the membership of a site, by the changes that it knows of.
    fn with_membership<T>(&self, at: usize, number: u64, act: impl FnOnce(Membership) -> T) -> T {
        let count = if number == 0 { FIRST } else { FIRST + 1 };
        let members: Vec<SiteId> = (0..count).map(site_id).collect();
        let gone = [site_id(self.lost)];
        let gone = if number < 2 { &[][..] } else { &gone[..] };
        act(Membership { number, gone, ..Membership::first(site_id(at), Incarnation(1), &members) })
    }

    /// True if a site takes part, as far as it knows itself.
    fn is_member(&self, at: usize, number: u64) -> bool {
        if at == FIRST { number > 0 } else { at != self.lost || number < 2 }
    }

    fn last(&self) -> u64 {
        self.rounds + 1
    }

    fn limit(&self) -> i64 {
        self.tokens.iter().sum()
    }

    fn offer(share: &Share) -> Offer {
        let needed = i64::from(share.tokens == 0);
        Offer { needed, wanted: needed, ..Offer::default() }
    }

    /// True if a site may vote for the next change: what it knows has recorded the last.
    fn may_vote(&self, at: usize, site: &Site) -> bool {
        at == FIRST || site.avantan.share.table.membership >= site.number
    }

    fn step(&self, state: &mut State, at: usize, act: Act) {
        let Site { avantan, number, .. } = &mut state.sites[at];
        let number = *number;
        let mut step = Step::default();
        let sound = catch_unwind(AssertUnwindSafe(|| {
            self.with_membership(at, number, |membership| act(avantan, membership, &mut step));
        }));
        state.broken |= sound.is_err();

        let asks =
            |(_, message): &(SiteId, Message)| matches!(message, Message::Election { .. } | Message::Accept { .. });
        if step.sends.iter().any(asks) {
            state.sites[at].asked = number;
        }
        for (to, message) in step.sends {
            let is_vote = matches!(
                message,
                Message::Election { .. } | Message::Report { .. } | Message::Accept { .. } | Message::Accepted { .. }
            );
            if self.votes_only && !is_vote {
                continue;
            }
            let to = usize::from(to.region);
            state.network.insert(Envelope { from: at, number, to, message });
        }
        if step.adopted {
            let share = &state.sites[at].avantan.share;
            match state.decided.iter().find(|(known, _)| *known == share.applied) {
                Some((_, table)) => state.disagreed |= *table != share.table,
                None => {
                    state.decided.push((share.applied, share.table.clone()));
                    state.decided.sort_by_key(|(instance, _)| *instance);
                }
            }
        }
    }

    /// True if a majority of the members that the last change left may vote for the next.
    fn may_change(&self, state: &State) -> bool {
        let votes = |(at, site): &(usize, &Site)| {
            site.number == state.changes && self.is_member(*at, state.changes) && self.may_vote(*at, site)
        };
        let votes = state.sites.iter().enumerate().filter(votes).count();
        state.changes < self.changes
            && self.with_membership(0, state.changes, |membership| votes >= membership.majority())
    }
}

fn site_id(at: usize) -> SiteId {
    SiteId::new(at as u16, 0)
}

/// One line for each step of a counterexample.
pub(crate) fn trace(setup: &Setup, actions: Vec<Action>) -> Vec<String> {
    let mut state = setup.init_states().remove(0);
    let mut lines = Vec::new();
    for action in actions {
        let text = match &action {
            Action::Deliver(envelope) => {
                format!("S{} → S{}  {}", envelope.from + 1, envelope.to + 1, brief_message(&envelope.message))
            }
            Action::Start(at, intent) => format!("S{} starts an election: {}", at + 1, aim(intent)),
            Action::Build(at) => format!("S{} stops waiting for reports", at + 1),
            Action::Repeat(at) => format!("S{} asks again", at + 1),
            Action::Acquire(at) => format!("S{} grants a token", at + 1),
            Action::Change => format!("change {} is decided", state.changes + 1),
            Action::Learn(at) => format!("S{} learns of change {}", at + 1, state.sites[*at].number + 1),
        };
        let Some(next) = setup.next_state(&state, action) else { break };
        state = next;
        let tokens: Vec<String> = state.sites.iter().map(|site| site.avantan.share.tokens.to_string()).collect();
        let line =
            format!("{text:<78} tokens {} acquired {} changes {}", tokens.join(" "), state.acquired, state.changes);
        lines.push(line);
    }
    lines
}

impl Model for Setup {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let row = |at: usize| Settled {
            instance: 1,
            row: Row {
                site: site_id(at),
                incarnation: Incarnation(1),
                share: 0,
                before: 0,
                after: self.tokens[at],
                kept: 0,
                away: 0,
            },
        };
        let first = FIRST + self.begins as usize;
        let mut table = Table::from_parts(1, 1, Some(self.limit()), (0..first).map(row).collect());
        table.membership = self.begins;
        let site = |at: usize| {
            let was_there = at < first && self.knows[at] >= self.begins;
            let share = match was_there {
                true => {
                    Share { tokens: self.tokens[at], number: 1, applied: 1, table: table.clone(), ..Share::default() }
                }
                false => Share::default(),
            };
            Site { avantan: Avantan::restore(share), number: self.knows[at], asked: self.knows[at] }
        };
        vec![State {
            sites: (0..=FIRST).map(site).collect(),
            network: BTreeSet::new(),
            changes: self.knows.into_iter().max().unwrap_or(0),
            acquired: 0,
            left: self.acquires,
            decided: Vec::new(),
            disagreed: false,
            broken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken || state.disagreed {
            return;
        }

        // What was sent by one that knows fewer changes is dropped where more are known, and what is of later ones waits until these are
        // known: neither changes anything.
        let arrives = |envelope: &&Envelope| counts_alike(state.sites[envelope.to].number, envelope.number);
        let is_heard = |envelope: &&Envelope| self.is_member(envelope.from, state.sites[envelope.to].number);
        actions.extend(state.network.iter().filter(arrives).filter(is_heard).cloned().map(Action::Deliver));
        if self.may_change(state) {
            actions.push(Action::Change);
        }
        for (at, site) in state.sites.iter().enumerate() {
            if site.number < state.changes {
                actions.push(Action::Learn(at));
            }
            if !self.is_member(at, site.number) {
                continue;
            }
            let share = &site.avantan.share;
            let promised = share.round.as_ref().map_or(0, |round| round.promised.number);
            if self.leaders.contains(&at)
                && share.applied < self.last()
                && promised < self.ballots
                && share.table.limit.is_some()
            {
                actions.extend(self.intents.iter().map(|intent| Action::Start(at, *intent)));
            }
            if let Role::Electing { .. } = site.avantan.role() {
                actions.push(Action::Build(at));
            }
            if self.repeats && *site.avantan.role() != Role::Idle && site.asked < site.number {
                actions.push(Action::Repeat(at));
            }
            let free = self.with_membership(at, site.number, |site| share.free(site));
            if state.left > 0 && free > 0 {
                actions.push(Action::Acquire(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(envelope) => {
                state.network.remove(&envelope);
                let Envelope { from, to, message, .. } = envelope;
                self.step(&mut state, to, &|avantan, site, step| {
                    avantan.handle(site, site_id(from), message.clone(), Self::offer, step);
                });
            }
            Action::Start(at, intent) => self.step(&mut state, at, &|avantan, site, step| {
                let offer = Self::offer(&avantan.share);
                avantan.start(site, intent, offer, step);
            }),
            Action::Build(at) => self.step(&mut state, at, &|avantan, site, step| {
                avantan.build(site, step);
            }),
            Action::Repeat(at) => self.step(&mut state, at, &|avantan, site, step| avantan.repeat(site, step)),
            Action::Acquire(at) => {
                state.sites[at].avantan.share.tokens -= 1;
                state.acquired += 1;
                state.left -= 1;
            }
            Action::Change => state.changes += 1,
            Action::Learn(at) => state.sites[at].number += 1,
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("agreement", |_, state: &State| !state.disagreed),
            Property::always("never over the limit", |setup: &Setup, state: &State| {
                // A site's tokens are counted as if it had applied its row of the newest table, as in the model of the agreement.
                let newest = state.decided.last().map(|(_, table)| table);
                let held: i64 = (state.sites.iter().enumerate())
                    .map(|(at, site)| {
                        let share = &site.avantan.share;
                        let last = newest.and_then(|table| table.settled(site_id(at)));
                        let is_next =
                            |last: &&Settled| last.row.incarnation == Incarnation(1) && last.row.share == share.number;
                        share.tokens + last.filter(is_next).map_or(0, |last| last.row.after - last.row.before)
                    })
                    .sum();
                let all = held + state.acquired;
                let is_gone = state.changes > 1;
                all == setup.limit() || (is_gone && all < setup.limit())
            }),
            Property::always("own invariants", |_, state: &State| !state.broken),
            Property::sometimes("a round is decided", |_, state: &State| !state.decided.is_empty()),
            Property::sometimes("the last change is decided", |setup: &Setup, state: &State| {
                state.changes == setup.changes
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.sites.iter().all(|site| {
            let share = &site.avantan.share;
            share.applied <= self.last()
                && share.round.as_ref().is_none_or(|round| round.promised.number <= self.ballots)
        })
    }
}

/// The setups that the project checks.
pub fn setups() -> Vec<Setup> {
    let base = Setup {
        name: "member: 3 to 4 sites and back, a round under way; only votes arrive",
        tokens: [0, 2, 0, 0],
        lost: 1,
        begins: 0,
        knows: [0; FIRST + 1],
        changes: 2,
        ballots: 1,
        rounds: 1,
        intents: vec![Intent::Record],
        leaders: vec![0, 2],
        acquires: 0,
        repeats: false,
        votes_only: true,
    };
    vec![
        Setup {
            name: "member: a site joins while a round is under way, a grant",
            changes: 1,
            ballots: 2,
            intents: vec![Intent::Move],
            leaders: vec![0, 3],
            acquires: 1,
            votes_only: false,
            ..base.clone()
        },
        // From the beginning, with three sites, a million states end before the second change is decided.
        Setup {
            name: "member: one of four is lost, rounds that move",
            begins: 1,
            knows: [1; FIRST + 1],
            ballots: 2,
            rounds: 2,
            intents: vec![Intent::Move],
            leaders: vec![0, 2, 3],
            repeats: true,
            votes_only: false,
            ..base.clone()
        },
        Setup {
            name: "member: one of four is lost while a round is under way; only votes arrive",
            repeats: true,
            begins: 1,
            knows: [1; FIRST + 1],
            ..base.clone()
        },
        Setup {
            name: "member: one of four is lost, and does not know it; one knows of no change; only votes arrive",
            begins: 1,
            knows: [2, 1, 0, 2],
            ballots: 2,
            ..base.clone()
        },
        base,
    ]
}
