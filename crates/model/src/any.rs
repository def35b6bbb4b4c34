//! The model check of rounds among subsets: [`slackline_core::avantan::subset`] itself, not a copy of it, in every order of events.
//!
//! A state is what three or four sites have, the messages under way, and the tokens acquired. From each state every message may be
//! delivered next, in any order, or never; a site may ask again, so a message may also arrive twice. Each site may lead a round, stop
//! waiting for reports, leave a round in which it has not voted, bring a value to the others, grant a token, crash (its volatile state
//! is lost), or lose its disk (all its state is lost, and it comes back with a new incarnation, of which nobody is told). In some setups
//! the majority has rounds beside.
//!
//! Beside the product's state the model keeps a ledger: which incarnations applied which values, which left, and what each dead
//! incarnation had. Properties:
//!
//! - **agreement**: of the living members of a value, none applies it and another one leaves, nor do they apply it differently; all sites
//!   that applied an instance of the majority have the same table for it;
//! - **applied once**: no incarnation applies a value twice;
//! - **never over the limit**: what living sites have, counted by the worse outcome of what is open, and the tokens acquired are at most
//!   the limit;
//! - **conservation**: with what is booked on the dead incarnation they are the limit (while at most one disk was lost). Booked is what it
//!   had, plus its part of the values that were applied by living sites, less that of the values that it had applied itself;
//! - **own invariants**: no assertion of the product fails.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use slackline_core::avantan::subset::{self, Key, Known, Subset};
use slackline_core::avantan::{
    Agreement, Avantan, Charter, Intent, Membership, Message, Offer, Role, Row, Settled, Share, Step, Table,
};
use slackline_core::id::{Incarnation, SiteId};
use stateright::{Model, Property};

/// The bounds of an exploration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The name in the printed line.
    pub name: &'static str,
    /// The share of each site at the start.
    pub tokens: Vec<i64>,
    /// What a site keeps out of a round, if it has so much.
    pub kept: i64,
    /// What a site without tokens needs.
    pub needs: i64,
    /// The number of sites that may lead, from the first on.
    pub leaders: usize,
    /// The number of neighbours that an election reaches: 2 for the pairs of the first and the second, the third and the fourth.
    pub circle: usize,
    /// True if the first site has built a value at the start that names all sites, and nobody else has heard of it. If a site may leave, its
    /// election is still under way to the second site, a second time. In such a setup nobody asks again of his own accord: fewer states
    /// go deeper.
    pub is_out: bool,
    /// The events that may happen a limited number of times.
    pub allowed: Allowed,
    /// Why the majority has a round, led by the last site.
    pub intents: Vec<Intent>,
}

/// The numbers of events: in a setup those that may happen, in a state those that still may.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Allowed {
    /// Rounds among subsets.
    pub rounds: u8,
    /// Rounds of the majority.
    pub instances: u8,
    /// Grants to clients, of a token each.
    pub acquires: u8,
    /// Crashes.
    pub crashes: u8,
    /// Disks that are lost.
    pub losses: u8,
    /// Rounds that are left before the vote.
    pub leaves: u8,
}

/// One site.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    avantan: Avantan,
    incarnation: Incarnation,
    known: Known,
}

/// A message under way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Envelope {
    from: usize,
    /// The sender's incarnation.
    incarnation: Incarnation,
    to: usize,
    note: Note,
}

/// The content of a message.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Note {
    /// Of a round among a subset.
    Subset(subset::Message),
    /// Of a round of the majority.
    Majority(Message),
}

/// What became of a round at the sites that ended it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ends {
    /// The value, once it was applied somewhere.
    rows: Vec<Row>,
    /// The incarnations that applied it, and whether for the worse.
    applied: BTreeMap<(usize, Incarnation), bool>,
    /// The incarnations that left.
    left: BTreeSet<(usize, Incarnation)>,
}

/// One state of all sites and the network.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    sites: Vec<Site>,
    /// The messages under way. One that never arrives stays here.
    network: BTreeSet<Envelope>,
    /// The tokens that clients have acquired so far, at all sites.
    acquired: i64,
    /// The events that may still happen.
    left: Allowed,
    /// What became of each round.
    ends: BTreeMap<Key, Ends>,
    /// What each dead incarnation had.
    dead: BTreeMap<(usize, Incarnation), i64>,
    /// The newest instance of the majority that was decided, and its table.
    decided: (u64, Table),
    /// True once a site has applied another table for one of the instances.
    disagreed: bool,
    /// True once an incarnation has applied a value twice.
    repeated: bool,
    /// True once an assertion of the product has failed.
    broken: bool,
}

/// An event that may happen next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A message arrives.
    Deliver(Envelope),
    /// A site leads a round among a subset.
    Start(usize),
    /// A leader stops waiting for reports.
    Build(usize),
    /// A site leaves a round in which it has not voted.
    Leave(usize),
    /// A member brings the value that it has accepted to the others.
    Recover(usize),
    /// A site asks again.
    Repeat(usize),
    /// A site leads a round of the majority.
    StartMajority(usize, Intent),
    /// Its leader stops waiting for reports.
    BuildMajority(usize),
    /// Its leader gives up.
    WithdrawMajority(usize),
    /// A client is granted a token.
    Acquire(usize),
    /// A site loses its volatile state.
    Crash(usize),
    /// A site loses everything, and comes back with a new incarnation.
    LoseDisk(usize),
}

/// What a site does in one step.
type Act<'a> = &'a dyn Fn(&mut Subset<'_>);

impl Setup {
    fn members(&self) -> Vec<SiteId> {
        (0..self.tokens.len()).map(|at| SiteId::new(at as u16, 0)).collect()
    }

    fn limit(&self) -> i64 {
        self.tokens.iter().sum()
    }

    /// What a site could grant. Here also an incarnation that no round has recorded does: rounds among subsets do not rest on that it does not.
    fn free(&self, at: usize, share: &Share) -> i64 {
        let members = self.members();
        share.free(Membership::first(members[at], Incarnation(1), &members))
    }

    /// A site's offer to a round.
    fn offer(&self, share: &Share) -> Offer {
        let needed = if share.tokens > 0 { 0 } else { self.needs };
        Offer { kept: self.kept, needed, wanted: needed, ..Offer::default() }
    }

    /// The table that the entity was created with.
    fn table(&self) -> Table {
        let row = |(at, &after): (usize, &i64)| Settled {
            instance: 1,
            row: Row { site: SiteId::new(at as u16, 0), incarnation: Incarnation(1), after, ..Row::default() },
        };
        Table::from_parts(1, 1, Some(self.limit()), self.tokens.iter().enumerate().map(row).collect())
    }

    /// One step of a round among a subset: calls the product, puts its messages on the network, and notes what ended.
    fn step(&self, state: &mut State, at: usize, act: Act) {
        let members = self.members();
        let Site { avantan, incarnation, known } = &mut state.sites[at];
        let incarnation = *incarnation;
        let site = Membership::first(members[at], incarnation, &members);
        let before = avantan.share.part().map(|part| part.key);

        // A failed assertion is a finding like a broken property, and the trace to it is wanted.
        let mut step = subset::Step::default();
        let sound = catch_unwind(AssertUnwindSafe(|| {
            act(&mut Subset { avantan, site, known, step: &mut step });
        }));
        state.broken |= sound.is_err();

        for (to, message) in step.sends {
            let to = to.region as usize;
            let reaches = !matches!(message, subset::Message::Election { .. }) || at / self.circle == to / self.circle;
            if reaches {
                state.network.insert(Envelope { from: at, incarnation, to, note: Note::Subset(message) });
            }
        }
        let Some(key) = before else { return };
        match step.decided {
            Some(rows) => {
                let row = rows.iter().find(|row| row.site == members[at]);
                let ends = state.ends.entry(key).or_default();
                ends.rows.clone_from(&rows);
                let outcome = |settled: &&subset::Outcome| settled.key == key && settled.site == members[at];
                let record = state.sites[at].avantan.share.subset.as_ref();
                let worse = record.and_then(|record| record.settled.iter().find(outcome)).is_some_and(|end| end.worse);
                state.repeated |= ends.applied.insert((at, incarnation), worse).is_some() || row.is_none();
            }
            None if step.left => {
                state.ends.entry(key).or_default().left.insert((at, incarnation));
            }
            None => {}
        }
    }

    /// One step of the majority's agreement.
    fn step_majority(&self, state: &mut State, at: usize, act: &dyn Fn(&mut Avantan, Membership, &mut Step)) {
        let members = self.members();
        let Site { avantan, incarnation, .. } = &mut state.sites[at];
        let incarnation = *incarnation;
        let site = Membership::first(members[at], incarnation, &members);
        let before = avantan.share.part().map(|part| part.key);
        let mut step = Step::default();
        let sound = catch_unwind(AssertUnwindSafe(|| act(avantan, site, &mut step)));
        state.broken |= sound.is_err();

        for (to, message) in step.sends {
            let to = to.region as usize;
            state.network.insert(Envelope { from: at, incarnation, to, note: Note::Majority(message) });
        }
        let share = &state.sites[at].avantan.share;
        if let Some(key) = before.filter(|_| share.part().is_none()) {
            state.ends.entry(key).or_default().left.insert((at, incarnation));
        }
        if step.adopted {
            let (newest, table) = &state.decided;
            state.disagreed |= share.applied == *newest && share.table != *table;
            if share.applied > *newest {
                state.decided = (share.applied, share.table.clone());
            }
        }
    }

    /// A message arrives.
    fn deliver(&self, state: &mut State, envelope: Envelope) {
        state.network.remove(&envelope);
        let Envelope { from, incarnation, to, note } = envelope;
        let members = self.members();

        // An incarnation that is gone never acts again: the node drops its messages before the rounds see them.
        let known = &mut state.sites[to].known;
        if known.is_dead(members[from], incarnation) {
            return;
        }
        known.note(members[from], incarnation);
        match note {
            Note::Subset(message) => self.step(state, to, &|site| {
                site.handle(members[from], message.clone(), |share| self.offer(share));
            }),
            Note::Majority(message) => self.step_majority(state, to, &|avantan, site, step| {
                avantan.handle(site, members[from], message.clone(), |share| self.offer(share), step);
            }),
        }
    }

    /// Takes from the network what nobody can react to any more: what a dead incarnation sent to a site that knows it to be dead, and
    /// what is about a round that its receiver is out of for good, unless its sender waits for an answer. So states that differ in
    /// nothing else are one.
    fn sweep(&self, state: &mut State) {
        let members = self.members();
        let State { sites, network, .. } = state;
        let in_round = |at: usize, key: Key| sites[at].avantan.share.part().is_some_and(|part| part.key == key);
        network.retain(|Envelope { from, incarnation, to, note }| {
            let receiver = &sites[*to];
            if receiver.known.is_dead(members[*from], *incarnation) {
                return false;
            }
            let Note::Subset(message) = note else { return true };
            let key = message.key();
            let record = receiver.avantan.share.subset.as_ref();
            let seen = record.map_or((Incarnation(0), 0), |record| record.seen(key.leader));
            let is_out = (key.incarnation, key.sequence) <= seen && !in_round(*to, key);
            let waits = sites[*from].incarnation == *incarnation && in_round(*from, key);
            match message {
                subset::Message::Accept { .. } | subset::Message::Report { .. } => !is_out || waits,
                _ => !is_out,
            }
        });
    }

    /// A site comes back with nothing but the entity's table, which any other site tells it.
    fn lose(&self, state: &mut State, at: usize) {
        let Site { avantan, incarnation, .. } = &state.sites[at];
        let (old, new) = (*incarnation, Incarnation(incarnation.0 + 1));
        state.dead.insert((at, old), avantan.share.tokens);
        let (applied, table) = state.decided.clone();
        let share = Share { applied, table, ..Share::default() };
        state.sites[at] = Site { avantan: Avantan::restore(share), incarnation: new, known: Known::default() };
        state.left.losses -= 1;
    }
}

impl State {
    /// The site at a position in its present incarnation.
    fn living(&self, at: usize) -> (usize, Incarnation) {
        (at, self.sites[at].incarnation)
    }

    /// The outcome of a round at the living sites that applied it.
    fn outcome(&self, ends: &Ends) -> Option<bool> {
        let mut living = ends.applied.iter().filter(|(end, _)| **end == self.living(end.0));
        living.next().map(|(_, worse)| *worse)
    }

    /// True if the living members of each value end alike.
    fn agrees(&self) -> bool {
        self.ends.values().all(|ends| {
            let Some(worse) = self.outcome(ends) else { return true };
            ends.rows.iter().all(|row| {
                let end = (row.site.region as usize, row.incarnation);
                let alike = ends.applied.get(&end).is_none_or(|applied| *applied == worse);
                end != self.living(end.0) || (alike && !ends.left.contains(&end))
            })
        })
    }

    /// What living sites have, with what is decided and not applied yet. What a dead incarnation alone has applied is counted by the
    /// worse of both outcomes if `cautious`, and else not at all.
    fn living_tokens(&self, cautious: bool) -> i64 {
        let tokens: i64 = self.sites.iter().map(|site| site.avantan.share.tokens).sum();

        // Decided by the majority, and not applied yet: exactly where the share's number is the one in the row.
        let mut pending = 0;
        for (at, site) in self.sites.iter().enumerate() {
            let share = &site.avantan.share;
            if let Some(last) = self.decided.1.settled(SiteId::new(at as u16, 0))
                && last.row.incarnation == site.incarnation
                && last.row.share == share.number
                && share.applied < self.decided.0
            {
                pending += last.row.after - last.row.before;
            }
        }

        for ends in self.ends.values() {
            let outcome = self.outcome(ends);
            for row in &ends.rows {
                let end = (row.site.region as usize, row.incarnation);
                let change = row.after - row.before;
                let is_open =
                    end == self.living(end.0) && !ends.applied.contains_key(&end) && !ends.left.contains(&end);
                pending += match outcome {
                    _ if !is_open => 0,
                    Some(false) => change,
                    Some(true) => change.min(0),
                    None if cautious => change.min(0),
                    None => 0,
                };
            }
        }
        tokens + pending
    }

    /// What is booked on dead incarnations.
    fn booked(&self) -> i64 {
        let mut booked: i64 = self.dead.values().sum();
        for ends in self.ends.values() {
            let is_committed = self.outcome(ends) == Some(false);
            for row in &ends.rows {
                let end = (row.site.region as usize, row.incarnation);
                if self.dead.contains_key(&end) {
                    let change = row.after - row.before;
                    booked += change * i64::from(is_committed);
                    booked -= change * i64::from(ends.applied.contains_key(&end));
                }
            }
        }
        booked
    }
}

impl Model for Setup {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let table = self.table();
        let known = Known::new(self.members().into_iter().map(|site| (site, Incarnation(1))).collect());
        let site = |&tokens: &i64| {
            let share = Share { tokens, number: 1, applied: 1, table: table.clone(), ..Share::default() };
            Site { avantan: Avantan::restore(share), incarnation: Incarnation(1), known: known.clone() }
        };
        let mut state = State {
            sites: self.tokens.iter().map(site).collect(),
            network: BTreeSet::new(),
            acquired: 0,
            left: self.allowed,
            ends: BTreeMap::new(),
            dead: BTreeMap::new(),
            decided: (1, table.clone()),
            disagreed: false,
            repeated: false,
            broken: false,
        };
        if self.is_out {
            self.step(&mut state, 0, &|site| site.start(self.offer(&site.avantan.share), false));
            let election = state.network.iter().find(|envelope| envelope.to == 1).cloned();
            while let Some(envelope) = state.network.iter().find(|envelope| !is_accept(&envelope.note)).cloned() {
                self.deliver(&mut state, envelope);
            }
            state.network.extend(election.filter(|_| self.allowed.leaves > 0));
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A counterexample is found: nothing more has to be seen behind it.
        if state.broken || state.disagreed || state.repeated {
            return;
        }

        let left = &state.left;
        actions.extend(state.network.iter().cloned().map(Action::Deliver));
        for (at, site) in state.sites.iter().enumerate() {
            let share = &site.avantan.share;
            let part = share.part();
            let is_idle = *site.avantan.role_in_subset() == subset::Role::Idle;
            if at < self.leaders && left.rounds > 0 && part.is_none() && share.table.limit.is_some() {
                actions.push(Action::Start(at));
            }
            match site.avantan.role_in_subset() {
                subset::Role::Electing { reports, .. } if reports.len() > 1 => actions.push(Action::Build(at)),
                _ => {}
            }
            match part {
                Some(part) if part.accepted.is_none() && left.leaves > 0 => actions.push(Action::Leave(at)),
                Some(part) if part.accepted.is_some() && is_idle => actions.push(Action::Recover(at)),
                _ => {}
            }
            if !is_idle && !self.is_out {
                actions.push(Action::Repeat(at));
            }

            if at == self.tokens.len() - 1 && left.instances > 0 {
                match share.table.limit {
                    Some(_) => actions.extend(self.intents.iter().map(|intent| Action::StartMajority(at, *intent))),
                    None => actions.push(Action::StartMajority(
                        at,
                        Intent::Create {
                            limit: self.limit(),
                            charter: Charter { agreement: Agreement::Any, ..Charter::default() },
                        },
                    )),
                }
            }
            if let Role::Electing { reports, .. } = site.avantan.role() {
                if reports.iter().filter(|report| report.promises).count() > self.tokens.len() / 2 {
                    actions.push(Action::BuildMajority(at));
                }
                if left.leaves > 0 {
                    actions.push(Action::WithdrawMajority(at));
                }
            }

            if left.acquires > 0 && self.free(at, share) > 0 {
                actions.push(Action::Acquire(at));
            }
            // A crash of a site that has nothing volatile changes nothing.
            if left.crashes > 0 && !(is_idle && *site.avantan.role() == Role::Idle) {
                actions.push(Action::Crash(at));
            }
            if left.losses > 0 {
                actions.push(Action::LoseDisk(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(envelope) => self.deliver(&mut state, envelope),
            Action::Start(at) => {
                state.left.rounds -= 1;
                self.step(&mut state, at, &|site| site.start(self.offer(&site.avantan.share), false));
                state.sites[at].avantan.share.part()?;
            }
            Action::Build(at) => self.step(&mut state, at, &|site| {
                site.build();
            }),
            Action::Leave(at) => {
                state.left.leaves -= 1;
                self.step(&mut state, at, &|site| site.withdraw());
            }
            Action::Recover(at) => self.step(&mut state, at, &|site| site.recover()),
            Action::Repeat(at) => self.step(&mut state, at, &|site| site.repeat()),
            Action::StartMajority(at, intent) => {
                state.left.instances -= 1;
                self.step_majority(&mut state, at, &|avantan, site, step| {
                    let offer = self.offer(&avantan.share);
                    avantan.start(site, intent, offer, step);
                });
            }
            Action::BuildMajority(at) => self.step_majority(&mut state, at, &|avantan, site, step| {
                avantan.build(site, step);
            }),
            Action::WithdrawMajority(at) => {
                state.left.leaves -= 1;
                self.step_majority(&mut state, at, &|avantan, site, step| avantan.withdraw(site, step));
            }
            Action::Acquire(at) => {
                state.sites[at].avantan.share.tokens -= 1;
                state.acquired += 1;
                state.left.acquires -= 1;
            }
            // The share, and which incarnations are known, are what the product keeps on disk; the roles are in memory.
            Action::Crash(at) => {
                let share = state.sites[at].avantan.share.clone();
                state.sites[at].avantan = Avantan::restore(share);
                state.left.crashes -= 1;
            }
            Action::LoseDisk(at) => self.lose(&mut state, at),
        }

        self.sweep(&mut state);

        // An event that changes nothing leads nowhere new.
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("agreement", |_, state: &State| !state.disagreed && state.agrees()),
            Property::always("applied once", |_, state: &State| !state.repeated),
            Property::always("never over the limit", |setup: &Setup, state: &State| {
                let limit = state.decided.1.limit.map_or(0, |limit| limit + state.decided.1.excess);
                let free: i64 = (0..).zip(&state.sites).map(|(at, site)| setup.free(at, &site.avantan.share)).sum();
                let is_deleted = state.decided.1.limit.is_none();
                is_deleted || free.max(state.living_tokens(true)) + state.acquired <= limit
            }),
            Property::always("conservation", |_, state: &State| {
                let limit = state.decided.1.limit.map_or(0, |limit| limit + state.decided.1.excess);
                let all = state.living_tokens(false) + state.acquired + state.booked();
                state.decided.1.limit.is_none() || state.dead.len() > 1 || all == limit
            }),
            Property::always("own invariants", |_, state: &State| !state.broken),
            Property::sometimes("a round among a subset is decided", |_, state: &State| {
                state.ends.values().any(|ends| !ends.rows.is_empty())
            }),
            Property::sometimes("a round of the majority is decided", |setup: &Setup, state: &State| {
                setup.allowed.instances == 0 || state.decided.0 > 1
            }),
        ]
    }
}

fn is_accept(note: &Note) -> bool {
    matches!(note, Note::Subset(subset::Message::Accept { .. }))
}

/// One line for each step of a counterexample.
pub(crate) fn trace(setup: &Setup, actions: Vec<Action>) -> Vec<String> {
    let mut state = setup.init_states().remove(0);
    let mut lines = Vec::new();
    for action in actions {
        let text = match &action {
            Action::Deliver(envelope) => {
                let Envelope { from, incarnation, to, note } = envelope;
                let age = "'".repeat(incarnation.0 as usize - 1);
                format!("S{}{age} → S{}  {}", from + 1, to + 1, brief(note))
            }
            Action::Start(at) => format!("S{} starts a round among a subset", at + 1),
            Action::Build(at) | Action::BuildMajority(at) => format!("S{} stops waiting for reports", at + 1),
            Action::Leave(at) => format!("S{} leaves", at + 1),
            Action::Recover(at) => format!("S{} recovers", at + 1),
            Action::Repeat(at) => format!("S{} asks again", at + 1),
            Action::StartMajority(at, intent) => {
                format!("S{} starts an election: {}", at + 1, crate::avantan::aim(intent))
            }
            Action::WithdrawMajority(at) => format!("S{} withdraws", at + 1),
            Action::Acquire(at) => format!("S{} grants a token", at + 1),
            Action::Crash(at) => format!("S{} crashes and restarts", at + 1),
            Action::LoseDisk(at) => format!("S{} loses its disk and comes back new", at + 1),
        };
        let Some(next) = setup.next_state(&state, action) else { break };
        state = next;
        let tokens = |site: &Site| {
            let open = match site.avantan.share.part() {
                Some(part) if part.accepted.is_some() => "!",
                Some(_) => "*",
                None => "",
            };
            format!("{}{open}", site.avantan.share.tokens)
        };
        let tokens: Vec<String> = state.sites.iter().map(tokens).collect();
        lines.push(format!("{text:<78} tokens {} acquired {}", tokens.join(" "), state.acquired));
    }

    lines
}

/// A message in a few words.
fn brief(note: &Note) -> String {
    let message = match note {
        Note::Majority(message) => return crate::avantan::brief_message(message),
        Note::Subset(message) => message,
    };
    let sites = |dead: &[(SiteId, Incarnation)]| {
        dead.iter().map(|(site, _)| format!(" S{} is dead", site.region + 1)).collect::<String>()
    };
    let Key { leader, incarnation, sequence, .. } = message.key();
    let key = format!("S{}{}#{sequence}", leader.region + 1, "'".repeat(incarnation.0 as usize - 1));
    match message {
        subset::Message::Election { .. } => format!("Election({key})"),
        subset::Message::Report { line, .. } => format!("Report({key}, holds {})", line.held),
        subset::Message::Busy { .. } => format!("Busy({key})"),
        subset::Message::Accept { rows, dead, .. } => {
            let rows = rows.iter().map(|row| format!("S{} {:+}", row.site.region + 1, row.after - row.before));
            format!("Accept({key}, [{}]{})", rows.collect::<Vec<_>>().join(", "), sites(dead))
        }
        subset::Message::Accepted { dead, .. } => format!("Accepted({key}{})", sites(dead)),
        subset::Message::Refuse { .. } => format!("Refuse({key})"),
        subset::Message::Lost { .. } => format!("Lost({key})"),
        subset::Message::Decided { worse, .. } => format!("Decided({key}{})", if *worse { ", worse" } else { "" }),
        subset::Message::Withdraw { .. } => format!("Withdraw({key})"),
    }
}

/// The setups that the project checks.
pub fn setups() -> Vec<Setup> {
    let none = Allowed { rounds: 0, instances: 0, acquires: 0, crashes: 0, losses: 0, leaves: 0 };
    let base = Setup {
        name: "any: three rounds and a crash",
        tokens: vec![0, 2, 0],
        kept: 0,
        needs: 1,
        leaders: 3,
        circle: 4,
        is_out: false,
        allowed: Allowed { rounds: 3, crashes: 1, ..none },
        intents: Vec::new(),
    };
    let lossy = Allowed { rounds: 1, acquires: 1, losses: 1, ..none };
    let narrow = Setup { leaders: 2, allowed: lossy, ..base.clone() };
    let out = Setup { is_out: true, allowed: Allowed { losses: 1, ..none }, ..base.clone() };
    vec![
        base.clone(),
        Setup { name: "any: one round and a lost disk, a grant", ..narrow.clone() },
        Setup {
            name: "any: one round and a lost disk, a grant, a site that leaves",
            allowed: Allowed { leaves: 1, ..lossy },
            ..narrow.clone()
        },
        Setup {
            name: "any: one round and a lost disk, a crash, a site that leaves",
            allowed: Allowed { crashes: 1, leaves: 1, acquires: 0, ..lossy },
            ..narrow
        },
        Setup { name: "any: a value is out, a lost disk", ..out.clone() },
        Setup {
            name: "any: a value is out by which its leader gives, a lost disk",
            tokens: vec![2, 0, 0],
            ..out.clone()
        },
        Setup {
            name: "any: a value is out, a lost disk, a crash, a site that leaves",
            allowed: Allowed { crashes: 1, leaves: 1, ..out.allowed },
            ..out
        },
        Setup {
            name: "any: two rounds and a lost disk",
            allowed: Allowed { rounds: 2, losses: 1, ..none },
            ..base.clone()
        },
        Setup {
            name: "any: two rounds and a lost disk, a grant, a part kept out of the offers",
            tokens: vec![0, 2, 1],
            kept: 1,
            allowed: Allowed { rounds: 2, acquires: 1, losses: 1, ..none },
            ..base.clone()
        },
        Setup {
            name: "any: one round and two lost disks, a grant",
            allowed: Allowed { losses: 2, ..lossy },
            ..base.clone()
        },
        Setup {
            name: "any: disjoint rounds of four sites, a crash, a grant",
            tokens: vec![0, 1, 0, 1],
            circle: 2,
            leaders: 4,
            allowed: Allowed { rounds: 3, acquires: 1, crashes: 1, ..none },
            ..base.clone()
        },
        Setup {
            name: "any: one round of any subset of four sites, a lost disk",
            tokens: vec![0, 1, 0, 1],
            leaders: 1,
            allowed: Allowed { rounds: 1, losses: 1, ..none },
            ..base.clone()
        },
        Setup {
            name: "any: beside a majority round that moves, a crash, a grant",
            leaders: 2,
            allowed: Allowed { rounds: 1, instances: 1, acquires: 1, crashes: 1, leaves: 1, ..none },
            intents: vec![Intent::Move],
            ..base.clone()
        },
        Setup {
            name: "any: beside a majority round that lowers the limit or deletes, and one that creates again",
            leaders: 2,
            allowed: Allowed { rounds: 1, instances: 2, leaves: 1, ..none },
            intents: vec![Intent::Delete, Intent::Resize { limit: 1 }],
            ..base
        },
    ]
}
