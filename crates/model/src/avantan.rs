//! The model check of Avantan: [`slackline_core::avantan`] itself, not a copy of it, in every order of events.
//!
//! A state is three sites' agreements on one entity, the messages under way, and the tokens acquired. From each state every
//! message may be delivered next, in any order, or never (so links lose and reorder); each site may start an election,
//! build or withdraw, grant a token, crash (its volatile state is lost), or lose its disk (all its state is lost, and it comes
//! back with a new incarnation, which may ask the others if it may vote).
//!
//! Properties:
//!
//! - **agreement**: all sites that applied an instance have the same table for it;
//! - **conservation**: the tokens at all sites, decided moves that are not applied yet included, and the tokens acquired add up
//!   to the limit (to at most the limit once a disk was lost: the tokens on it count as spent);
//! - **own invariants**: no assertion of the product fails.
//!
//! The times of the [`Leader`](slackline_core::avantan::Leader) (grace, retry) are not part of it: here a leader may build, withdraw
//! or lead again whenever its agreement lets it, so whatever its clock does is among the orders that are explored.
//!
//! The amount is that of tokens, or another one ([`crate::bound`]): the agreement is the same for both.
//!
//! Steps are atomic with their write, because the driver's release rule lets no message leave before it: a crash
//! between the two is a message that is never delivered.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use slackline_core::avantan::{
    Amount, Avantan, Clearance, Heard, Intent, Membership, Message, NoVote, Offer, Role, Row, Settled, Share, Step,
    Table,
};
use slackline_core::id::{Incarnation, SiteId};
use stateright::{Model, Property};

/// An amount that clients use up.
pub trait Spent: Amount + Display + Send + Sync + 'static {
    /// What one client acquires.
    const UNIT: Self;

    /// True if a client can acquire of it.
    fn can_be_spent(self) -> bool;

    /// True if so much may be left of `limit` when shares were lost.
    fn is_left_of(self, limit: Self) -> bool;
}

impl Spent for i64 {
    const UNIT: Self = 1;

    fn can_be_spent(self) -> bool {
        self > 0
    }

    fn is_left_of(self, limit: Self) -> bool {
        self <= limit
    }
}

/// The bounds of an exploration.
#[derive(Clone, Debug)]
pub struct Setup<A = i64> {
    /// The name in the printed line.
    pub name: &'static str,
    /// The share of each site at the start.
    pub tokens: Vec<A>,
    /// What a site keeps out of a round, if it has so much.
    pub kept: A,
    /// The highest ballot number in any instance.
    pub ballots: u64,
    /// The number of rounds.
    pub rounds: u64,
    /// The events that may happen a limited number of times.
    pub allowed: Allowed,
    /// The sites that may lose their disks.
    pub losers: Range<usize>,
    /// The number of sites that may lead, from the first on.
    pub leaders: usize,
    /// Why rounds are led while the entity exists. Where it does not, they create it.
    pub intents: Vec<Intent<A>>,
    /// True if the entity is still to be created.
    pub creates: bool,
    /// True if only messages that carry an election, a vote or a question arrive. With the others lost, the same number of states
    /// goes deeper.
    pub votes_only: bool,
}

/// The numbers of events: in a setup those that may happen, in a state those that still may.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Allowed {
    /// Grants to clients, of a unit each.
    pub acquires: u8,
    /// Crashes.
    pub crashes: u8,
    /// Disks that are lost.
    pub losses: u8,
    /// Elections that are given up.
    pub withdrawals: u8,
}

/// One site.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Site<A = i64> {
    avantan: Avantan<A>,
    incarnation: Incarnation,
    clearance: Clearance,
    /// The highest incarnation of each site that it has heard of.
    known: Vec<Incarnation>,
}

/// A message under way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Envelope<A = i64> {
    from: usize,
    /// The sender's incarnation.
    incarnation: Incarnation,
    to: usize,
    note: Note<A>,
}

/// The content of a message.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Note<A = i64> {
    /// A message of the agreement.
    Agreement(Message<A>),
    /// A new incarnation asks if a vote of its predecessors counts.
    Question {
        /// Repeated in the answer.
        token: u64,
    },
    /// The answer: no vote of theirs counts.
    NoVote(NoVote<A>),
}

/// One state of all sites and the network.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State<A = i64> {
    sites: Vec<Site<A>>,
    /// The messages under way. One that never arrives stays here.
    network: BTreeSet<Envelope<A>>,
    /// What clients have acquired so far, at all sites.
    acquired: A,
    /// The events that may still happen.
    left: Allowed,
    /// The first table that a site applied for each instance, by rising instance.
    decided: Vec<(u64, Table<A>)>,
    /// True once a site has applied another table for one of these instances.
    disagreed: bool,
    /// True once an assertion of the product has failed.
    broken: bool,
}

/// An event that may happen next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action<A = i64> {
    /// A message arrives.
    Deliver(Envelope<A>),
    /// A site leads a round, or a higher ballot of the one that it is in.
    Start(usize, Intent<A>),
    /// A leader stops waiting for reports.
    Build(usize),
    /// A leader gives up.
    Withdraw(usize),
    /// A new incarnation asks the others if it may vote.
    Ask(usize),
    /// A client is granted a unit.
    Acquire(usize),
    /// A site loses its volatile state.
    Crash(usize),
    /// A site loses everything, and comes back with a new incarnation.
    LoseDisk(usize),
}

/// What a site does with its agreement in one step.
type Act<'a, A> = &'a dyn Fn(&mut Avantan<A>, Membership, &mut Step<A>);

impl<A: Spent> Setup<A> {
    fn members(&self) -> Vec<SiteId> {
        (0..self.tokens.len()).map(|at| SiteId::new(at as u16, 0)).collect()
    }

    fn membership<'a>(&self, at: usize, incarnation: Incarnation, members: &'a [SiteId]) -> Membership<'a> {
        Membership::first(members[at], incarnation, members)
    }

    /// The last instance that is explored. Where the entity exists, instance 1 is over at the start.
    fn last(&self) -> u64 {
        self.rounds + u64::from(!self.creates)
    }

    fn limit(&self) -> A {
        sum(self.tokens.iter().copied())
    }

    /// A site's offer to a round.
    fn offer(&self, share: &Share<A>) -> Offer<A> {
        let needed = if share.tokens.can_be_spent() { A::default() } else { A::UNIT };
        Offer { kept: self.kept, away: A::default(), used: None, needed, wanted: needed, stays: false }
    }

    /// One step of a site's agreement: calls it, puts its messages on the network, and compares what it has decided.
    fn step(&self, state: &mut State<A>, at: usize, act: Act<A>) {
        let members = self.members();
        let site = &mut state.sites[at];
        let incarnation = site.incarnation;
        let membership = self.membership(at, incarnation, &members);

        // A failed assertion is a finding like a broken property, and the trace to it is wanted.
        let mut step = Step::default();
        let sound = catch_unwind(AssertUnwindSafe(|| act(&mut site.avantan, membership, &mut step))).is_ok();
        state.broken |= !sound;

        for (to, message) in step.sends {
            let is_vote = matches!(
                message,
                Message::Election { .. } | Message::Report { .. } | Message::Accept { .. } | Message::Accepted { .. }
            );
            if is_vote || !self.votes_only {
                let note = Note::Agreement(message);
                state.network.insert(Envelope { from: at, incarnation, to: to.region as usize, note });
            }
        }

        // Agreement: the first site that applies an instance settles what its table is; every other one must have the same.
        if step.adopted {
            let share = &state.sites[at].avantan.share;
            let instance = share.applied;
            match state.decided.iter().find(|(known, _)| *known == instance) {
                Some((_, table)) => state.disagreed |= *table != share.table,
                None => {
                    state.decided.push((instance, share.table.clone()));
                    state.decided.sort_by_key(|(instance, _)| *instance);
                }
            }
        }
    }

    /// A message arrives.
    fn deliver(&self, state: &mut State<A>, envelope: Envelope<A>) {
        state.network.remove(&envelope);
        let Envelope { from, incarnation, to, note } = envelope;
        let members = self.members();

        // An incarnation that is gone never acts again: the node drops its messages before the agreement sees them.
        let known = &mut state.sites[to].known[from];
        if incarnation < *known {
            return;
        }
        *known = incarnation;

        match note {
            Note::Agreement(message) => self.step(state, to, &|avantan, site, step| {
                avantan.handle(site, members[from], message.clone(), |share| self.offer(share), step);
            }),
            Note::Question { token } => {
                let site = &state.sites[to];
                let answer = site.avantan.no_vote(members[from], site.known[from], token, self.reborn(to, &site.known));
                if let Some(answer) = answer {
                    let note = Note::NoVote(answer);
                    state.network.insert(Envelope { from: to, incarnation: site.incarnation, to: from, note });
                }
            }
            Note::NoVote(answer) => {
                let Site { avantan, incarnation, clearance, known } = &mut state.sites[to];
                for &(site, newest) in &answer.reborn {
                    let at = usize::from(site.region);
                    known[at] = known[at].max(newest);
                }
                let (site, reborn) = (self.membership(to, *incarnation, &members), self.reborn(to, known));
                let heard = catch_unwind(AssertUnwindSafe(|| clearance.hear(avantan, site, from, answer, &reborn)));
                state.broken |= heard.is_err();
                if heard.is_ok_and(|heard| heard == Heard::Behind) && !self.votes_only {
                    let note = Note::Agreement(Message::Behind { applied: avantan.share.applied });
                    state.network.insert(Envelope { from: to, incarnation: *incarnation, to: from, note });
                }
            }
        }
    }

    /// The others that a site knows not to be in their first incarnation.
    fn reborn(&self, at: usize, known: &[Incarnation]) -> Vec<(SiteId, Incarnation)> {
        let others =
            self.members().into_iter().zip(known.iter().copied()).enumerate().filter(|(other, _)| *other != at);
        others.map(|(_, known)| known).filter(|(_, known)| *known > Incarnation(1)).collect()
    }

    /// A new incarnation asks every other site if it may vote. Returns false if that is no new question.
    fn ask(&self, state: &mut State<A>, at: usize) -> bool {
        let reborn = self.reborn(at, &state.sites[at].known);
        let Site { avantan, incarnation, clearance, .. } = &mut state.sites[at];
        let before = clearance.clone();

        // A token for each incarnation and instance: an answer to an earlier question must not count for this one.
        let token = u64::from(incarnation.0) << 8 | avantan.share.applied;
        if clearance.question(avantan, reborn, token).0 != token || *clearance == before {
            return false;
        }
        for to in (0..self.tokens.len()).filter(|to| *to != at) {
            let note = Note::Question { token };
            state.network.insert(Envelope { from: at, incarnation: *incarnation, to, note });
        }
        true
    }
}

/// One line for each step of a counterexample.
pub(crate) fn trace<A: Spent>(setup: &Setup<A>, actions: Vec<Action<A>>) -> Vec<String> {
    let mut state = setup.init_states().remove(0);
    let mut lines = Vec::new();
    for action in actions {
        let text = match &action {
            Action::Deliver(envelope) => {
                format!("S{} → S{}  {}", envelope.from + 1, envelope.to + 1, brief(&envelope.note))
            }
            Action::Start(at, intent) => format!("S{} starts an election: {}", at + 1, aim(intent)),
            Action::Build(at) => format!("S{} stops waiting for reports", at + 1),
            Action::Withdraw(at) => format!("S{} withdraws", at + 1),
            Action::Ask(at) => format!("S{} asks if it may vote", at + 1),
            Action::Acquire(at) => format!("S{} grants a unit", at + 1),
            Action::Crash(at) => format!("S{} crashes and restarts", at + 1),
            Action::LoseDisk(at) => format!("S{} loses its disk and comes back new", at + 1),
        };
        let Some(next) = setup.next_state(&state, action) else { break };
        state = next;
        let tokens: Vec<String> = state
            .sites
            .iter()
            .map(|site| format!("{}{}", site.avantan.share.tokens, if site.avantan.in_round() { "*" } else { "" }))
            .collect();
        lines.push(format!("{text:<78} tokens {} acquired {}", tokens.join(" "), state.acquired));
    }

    lines
}

/// Why a round is led, in a word.
pub(crate) fn aim<A>(intent: &Intent<A>) -> &'static str {
    match intent {
        Intent::Move => "move",
        Intent::Gather => "gather",
        Intent::Record => "record",
        Intent::Create { .. } => "create",
        Intent::Delete => "delete",
        Intent::Resize { .. } => "resize",
        Intent::Reclaim { .. } => "reclaim",
        Intent::Seat { .. } => "seat",
    }
}

/// A message in a few words.
fn brief<A: Spent>(note: &Note<A>) -> String {
    let message = match note {
        Note::Agreement(message) => message,
        Note::Question { .. } => return "does a vote of mine count?".to_owned(),
        Note::NoVote(answer) => {
            let accepted = if answer.accepted.is_some() { ", has accepted" } else { "" };
            return format!("no vote of yours counts after {}{accepted}", answer.applied);
        }
    };

    brief_message(message)
}

/// A message of the agreement in a few words.
pub(crate) fn brief_message<A: Spent>(message: &Message<A>) -> String {
    match message {
        Message::Election { instance, ballot, .. } => {
            format!("Election({instance}, {}@{})", ballot.number, ballot.site)
        }
        Message::Report { instance, report, .. } => {
            let accepted = if report.accepted.is_some() { ", has accepted" } else { "" };
            let promise = if report.promises { "" } else { ", no promise" };
            format!("Report({instance}, holds {}{accepted}{promise})", report.line.held)
        }
        Message::Accept { instance, value, .. } => {
            let rows: Vec<String> =
                value.rows.iter().map(|row| format!("S{}:{}→{}", row.site.region + 1, row.before, row.after)).collect();
            format!("Accept({instance}, {})", rows.join(" "))
        }
        Message::Accepted { instance, .. } => format!("Accepted({instance})"),
        Message::Refuse { instance, .. } => format!("Refuse({instance})"),
        Message::Decided { instance, .. } => format!("Decided({instance})"),
        Message::Withdraw { instance, .. } => format!("Withdraw({instance})"),
        Message::Behind { applied } => format!("Behind({applied})"),
    }
}

impl<A: Spent> Model for Setup<A> {
    type State = State<A>;
    type Action = Action<A>;

    fn init_states(&self) -> Vec<State<A>> {
        // The entity exists, and instance 1 created it with these tokens; or nobody has heard of it.
        // The table and the shares agree: each site has applied its row of it.
        let nothing = A::default();
        let row = |(at, &after): (usize, &A)| Settled {
            instance: 1,
            row: Row {
                site: SiteId::new(at as u16, 0),
                incarnation: Incarnation(1),
                share: 0,
                before: nothing,
                after,
                kept: nothing,
                away: nothing,
            },
        };

        let rows: Vec<Settled<A>> = self.tokens.iter().enumerate().map(row).collect();
        let table = Table::from_parts(1, 1, Some(self.limit()), rows);
        let site = |&tokens: &A| {
            let share = match self.creates {
                true => Share::default(),
                false => Share { tokens, number: 1, applied: 1, table: table.clone(), ..Share::default() },
            };
            let known = vec![Incarnation(1); self.tokens.len()];
            let clearance = Clearance::default();
            Site { avantan: Avantan::restore(share), incarnation: Incarnation(1), clearance, known }
        };

        vec![State {
            sites: self.tokens.iter().map(site).collect(),
            network: BTreeSet::new(),
            acquired: nothing,
            left: self.allowed,
            decided: Vec::new(),
            disagreed: false,
            broken: false,
        }]
    }

    fn actions(&self, state: &State<A>, actions: &mut Vec<Action<A>>) {
        // A counterexample is found: nothing more has to be seen behind it.
        if state.broken || state.disagreed {
            return;
        }

        let members = self.members();
        actions.extend(state.network.iter().cloned().map(Action::Deliver));
        for (at, site) in state.sites.iter().enumerate() {
            let share = &site.avantan.share;
            let promised = share.round.as_ref().map_or(0, |round| round.promised.number);
            if at < self.leaders && share.applied < self.last() && promised < self.ballots {
                match share.table.limit.is_some() {
                    true => actions.extend(self.intents.iter().map(|intent| Action::Start(at, *intent))),
                    // One by which members agree on who they are never exists.
                    false if self.intents.iter().any(|intent| matches!(intent, Intent::Seat { .. })) => {
                        actions.extend(self.intents.iter().map(|intent| Action::Start(at, *intent)));
                    }
                    false => actions
                        .push(Action::Start(at, Intent::Create { limit: self.limit(), charter: Default::default() })),
                }
            }

            if site.incarnation > Incarnation(1)
                && !site.avantan.may_vote(self.membership(at, site.incarnation, &members))
            {
                actions.push(Action::Ask(at));
            }

            // A leader waits, by its grace, as long as it likes: it may build as soon as a majority has promised.
            if let Role::Electing { reports, .. } = site.avantan.role() {
                let promises = reports.iter().filter(|report| report.promises).count();
                if promises > self.tokens.len() / 2 {
                    actions.push(Action::Build(at));
                }
                if state.left.withdrawals > 0 {
                    actions.push(Action::Withdraw(at));
                }
            }

            if state.left.acquires > 0 && share.free(self.membership(at, site.incarnation, &members)).can_be_spent() {
                actions.push(Action::Acquire(at));
            }
            // A crash of a site that has nothing volatile changes nothing. What others have answered it is volatile, too.
            let has_asked = site.clearance != Clearance::default();
            if state.left.crashes > 0 && (has_asked || *site.avantan.role() != Role::Idle) {
                actions.push(Action::Crash(at));
            }
            if state.left.losses > 0 && self.losers.contains(&at) {
                actions.push(Action::LoseDisk(at));
            }
        }
    }

    fn next_state(&self, last: &State<A>, action: Action<A>) -> Option<State<A>> {
        let mut state = last.clone();
        match action {
            Action::Deliver(envelope) => self.deliver(&mut state, envelope),
            Action::Start(at, intent) => self.step(&mut state, at, &|avantan, site, step| {
                let offer = self.offer(&avantan.share);
                avantan.start(site, intent, offer, step);
            }),
            Action::Ask(at) => {
                if !self.ask(&mut state, at) {
                    return None;
                }
            }
            Action::Build(at) => self.step(&mut state, at, &|avantan, site, step| {
                avantan.build(site, step);
            }),
            Action::Withdraw(at) => {
                state.left.withdrawals -= 1;
                self.step(&mut state, at, &|avantan, site, step| avantan.withdraw(site, step));
            }
            Action::Acquire(at) => {
                let tokens = &mut state.sites[at].avantan.share.tokens;
                *tokens = tokens.minus(A::UNIT);
                state.acquired = state.acquired.plus(A::UNIT);
                state.left.acquires -= 1;
            }
            // The share is what the product keeps on disk; the role and the answers to questions are in memory.
            Action::Crash(at) => {
                let share = state.sites[at].avantan.share.clone();
                state.sites[at].avantan = Avantan::restore(share);
                state.sites[at].clearance = Clearance::default();
                state.left.crashes -= 1;
            }
            // It comes back as a site that knows nothing, and that must not vote before the others have cleared it.
            Action::LoseDisk(at) => {
                let incarnation = Incarnation(state.sites[at].incarnation.0 + 1);
                let (avantan, clearance) = (Avantan::default(), Clearance::default());
                let known = vec![Incarnation(0); self.tokens.len()];
                state.sites[at] = Site { avantan, incarnation, clearance, known };
                state.left.losses -= 1;
            }
        }

        // An event that changes nothing leads nowhere new.
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("agreement", |_, state: &State<A>| !state.disagreed),
            Property::always("conservation", |setup: &Setup<A>, state: &State<A>| {
                // A decided table holds, even if the only site that knew it has lost its disk. So a site's tokens are counted as if
                // it had applied its row of the newest one: it does so exactly if its share number is the one in the row.
                let newest = state.decided.last().map(|(_, table)| table);
                let mut held = A::default();
                for (at, site) in state.sites.iter().enumerate() {
                    let share = &site.avantan.share;
                    held = held.plus(share.tokens);
                    if let Some(last) = newest.and_then(|table| table.settled(SiteId::new(at as u16, 0)))
                        && last.row.incarnation == site.incarnation
                        && last.row.share == share.number
                    {
                        held = held.plus(last.row.after).minus(last.row.before);
                    }
                }

                let all = held.plus(state.acquired);
                let limit = match newest {
                    Some(table) => table.limit.map_or(A::default(), |limit| limit.plus(table.excess)),
                    None if setup.creates => A::default(),
                    None => setup.limit(),
                };
                if state.left.losses == setup.allowed.losses { all == limit } else { all.is_left_of(limit) }
            }),
            Property::always("an excess only falls", |_, state: &State<A>| {
                state.decided.windows(2).all(|pair| {
                    let (one, next) = (&pair[0].1, &pair[1].1);
                    one.limited != next.limited || next.excess <= one.excess
                })
            }),
            Property::always("own invariants", |_, state: &State<A>| !state.broken),
            Property::sometimes("a round is decided", |_, state: &State<A>| !state.decided.is_empty()),
            Property::sometimes("a new incarnation may vote", |setup: &Setup<A>, state: &State<A>| {
                let members = setup.members();
                let may_vote = |(at, site): (usize, &Site<A>)| {
                    let is_new = site.incarnation > Incarnation(1);
                    is_new && site.avantan.may_vote(setup.membership(at, site.incarnation, &members))
                };
                setup.allowed.losses == 0 || state.sites.iter().enumerate().any(may_vote)
            }),
        ]
    }

    fn within_boundary(&self, state: &State<A>) -> bool {
        state.sites.iter().all(|site| {
            let share = &site.avantan.share;
            share.applied <= self.last()
                && share.round.as_ref().is_none_or(|round| round.promised.number <= self.ballots)
        })
    }
}

fn sum<A: Amount>(amounts: impl Iterator<Item = A>) -> A {
    amounts.fold(A::default(), A::plus)
}

/// The setups that the project checks.
pub fn setups() -> Vec<Setup> {
    let base = Setup {
        name: "two rounds, three ballots, one crash, two grants",
        tokens: vec![0, 3, 0],
        kept: 0,
        ballots: 3,
        rounds: 2,
        allowed: Allowed { acquires: 2, crashes: 1, losses: 0, withdrawals: 2 },
        losers: 0..3,
        leaders: 3,
        intents: vec![Intent::Move],
        creates: false,
        votes_only: false,
    };

    let few = Allowed { acquires: 1, withdrawals: 1, ..base.allowed };
    let narrow = Setup { leaders: 2, allowed: few, ballots: 2, ..base.clone() };
    let votes = Setup {
        allowed: Allowed { acquires: 0, crashes: 0, losses: 1, withdrawals: 0 },
        rounds: 1,
        ballots: 1,
        votes_only: true,
        ..narrow.clone()
    };

    vec![
        Setup {
            name: "two leaders, one withdrawal, one grant, no crash",
            allowed: Allowed { crashes: 0, ..few },
            ..narrow.clone()
        },
        Setup { name: "two leaders with a ballot each, one round, one disk lost", votes_only: false, ..votes.clone() },
        Setup {
            name: "two creators with a ballot each, any disk lost; only votes arrive",
            creates: true,
            ..votes.clone()
        },
        Setup {
            name: "two leaders with a ballot each, the third site's disk lost; only votes arrive",
            losers: 2..3,
            ..votes
        },
        Setup {
            name: "one leader that withdraws, its disk lost, one grant",
            leaders: 1,
            rounds: 1,
            ballots: 1,
            losers: 0..1,
            allowed: Allowed { acquires: 1, crashes: 0, losses: 1, withdrawals: 1 },
            ..narrow.clone()
        },
        Setup {
            name: "two leaders that move, gather or record, one withdrawal, the third site's disk lost",
            tokens: vec![0, 2, 1],
            kept: 1,
            intents: vec![Intent::Move, Intent::Gather, Intent::Record],
            allowed: Allowed { acquires: 0, crashes: 0, losses: 1, withdrawals: 1 },
            losers: 2..3,
            ..narrow.clone()
        },
        Setup {
            name: "two leaders that move, delete or create again, one withdrawal, one crash",
            intents: vec![Intent::Move, Intent::Delete],
            allowed: Allowed { acquires: 0, crashes: 1, losses: 0, withdrawals: 1 },
            ..narrow.clone()
        },
        Setup {
            name: "two leaders that move, or lower or raise the limit, one withdrawal, one crash, two grants",
            intents: vec![Intent::Move, Intent::Resize { limit: 1 }, Intent::Resize { limit: 4 }],
            allowed: Allowed { acquires: 2, crashes: 1, losses: 0, withdrawals: 1 },
            ..narrow.clone()
        },
        Setup {
            name: "member: two changes at once, any disk lost; only votes arrive",
            tokens: vec![0, 0, 0],
            creates: true,
            intents: vec![
                Intent::Seat { site: SiteId::new(3, 0), gone: false },
                Intent::Seat { site: SiteId::new(2, 0), gone: true },
            ],
            allowed: Allowed { acquires: 0, crashes: 0, losses: 1, withdrawals: 0 },
            rounds: 1,
            ballots: 1,
            votes_only: true,
            ..narrow.clone()
        },
        base.clone(),
        Setup { name: "the same, a part kept out of the offers", tokens: vec![0, 2, 2], kept: 1, ..base.clone() },
        // With three leaders, or any disk lost, a million states end before the new incarnation may vote.
        Setup {
            name: "two rounds, three ballots, one crash, the third site's disk lost",
            allowed: Allowed { acquires: 1, losses: 1, withdrawals: 1, ..base.allowed },
            losers: 2..3,
            leaders: 2,
            ..base
        },
    ]
}
