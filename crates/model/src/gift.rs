//! The model check of gifts: [`slackline_core::gift`] itself, in every order of events, without a quota.
//!
//! A state is what three sites have, their totals, and every total that was ever told. A total that was told may arrive next, again,
//! or never, so links lose, repeat and reorder. From each state a site may give one unit to another, hear of another's new incarnation,
//! or lose its storage and come back with a new incarnation and nothing.
//!
//! Beside the product's totals the model keeps a ledger of its own: what each incarnation of a site gave to each incarnation of
//! another, and what that took of it. Properties:
//!
//! - **taken once**: no incarnation takes more than it was given;
//! - **conservation**: between present incarnations, what the totals say is under way is what was given and not taken; the sums that
//!   sites report of it ([`Totals::away`]) add up to the same;
//! - **told again, it arrives**: of a total that has arrived, all was taken;
//! - **own invariants**: no assertion of the product fails.
//!
//! The rules around the totals are those of their contract: nothing of an incarnation is heard once a later one is known, and a
//! total for an incarnation that is gone says nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use slackline_core::gift::Totals;
use slackline_core::id::Incarnation;
use stateright::{Model, Property};

/// The bounds of an exploration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The name in the printed line.
    pub name: &'static str,
    /// What each site has at the start, in units.
    pub has: Vec<u64>,
    /// The gifts that may be given, of a unit each.
    pub gifts: u8,
    /// The storages that may be lost.
    pub losses: u8,
}

/// An incarnation of a site.
type End = (usize, Incarnation);

/// One site.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    incarnation: Incarnation,
    has: u64,
    totals: Totals,
    /// The highest incarnation of each site that it has heard of.
    known: Vec<Incarnation>,
}

/// A total as it is told: from whom, to whom, and how much.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Told {
    from: End,
    to: End,
    given: u128,
}

/// One state of all sites and the network.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    sites: Vec<Site>,
    /// Every total that was told. It may arrive at any time, again, or never.
    told: BTreeSet<Told>,
    /// The ledger: what was given by one end to the other, and what that took.
    ledger: BTreeMap<(End, End), (u64, u64)>,
    /// The gifts and the losses that may still happen.
    left: (u8, u8),
    /// True once a total has arrived, and not all of it was taken.
    missed: bool,
    /// True once an assertion of the product has failed.
    broken: bool,
}

/// An event that may happen next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A site gives a unit to another, and tells it the total.
    Give(usize, usize),
    /// A total arrives.
    Deliver(Told),
    /// A site hears of the present incarnation of another.
    Hear(usize, usize),
    /// A site loses its storage, and comes back with a new incarnation.
    Lose(usize),
}

impl State {
    /// The present incarnation of a site.
    fn end(&self, at: usize) -> End {
        (at, self.sites[at].incarnation)
    }

    /// All ordered pairs of different sites.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let sites = self.sites.len();
        (0..sites).flat_map(move |from| (0..sites).map(move |to| (from, to))).filter(|(from, to)| from != to)
    }

    fn give(&mut self, from: usize, to: usize) {
        // The receiver may be gone: the donor gives to the incarnation that it knows.
        let receiver = self.sites[from].known[to];
        let donor = self.end(from);
        let site = &mut self.sites[from];
        site.has -= 1;
        site.totals.give(to, receiver, 1);
        let given = site.totals.given(to).amount;

        self.told.insert(Told { from: donor, to: (to, receiver), given });
        self.ledger.entry((donor, (to, receiver))).or_default().0 += 1;
        self.left.0 -= 1;
    }

    fn deliver(&mut self, Told { from, to, given }: Told) {
        let site = &mut self.sites[to.0];
        if from.1 < site.known[from.0] {
            return;
        }
        site.known[from.0] = from.1;
        if to.1 != site.incarnation {
            return;
        }

        let missing = site.totals.missing(from.0, from.1, given);
        if missing > 0 {
            site.totals.receive(from.0, from.1, given);
            let missing = u64::try_from(missing).unwrap_or(u64::MAX);
            site.has = site.has.saturating_add(missing);
            let taken = &mut self.ledger.entry((from, to)).or_default().1;
            *taken = taken.saturating_add(missing);
        }
        let taken = self.ledger.get(&(from, to)).map_or(0, |(_, taken)| *taken);
        self.missed |= u128::from(taken) < given;
    }

    fn lose(&mut self, at: usize) {
        // A site joins after the others have answered it: it knows them as they are now.
        let incarnation = Incarnation(self.sites[at].incarnation.0 + 1);
        let mut known: Vec<Incarnation> = self.sites.iter().map(|site| site.incarnation).collect();
        known[at] = incarnation;
        self.sites[at] = Site { incarnation, has: 0, totals: Totals::default(), known };
        self.left.1 -= 1;
    }

    /// What the ledger says is under way between the present incarnations of two sites.
    fn owed(&self, from: usize, to: usize) -> u64 {
        let (given, taken) = self.ledger.get(&(self.end(from), self.end(to))).copied().unwrap_or_default();
        given.saturating_sub(taken)
    }

    /// True if the product's totals say what the ledger says.
    fn is_conserved(&self) -> bool {
        let agree = |(from, to): (usize, usize)| {
            let (donor, receiver) = (&self.sites[from], &self.sites[to]);
            let received = receiver.totals.received(from);
            let taken = if received.incarnation == donor.incarnation { received.amount } else { 0 };
            donor.totals.under_way(to, receiver.incarnation, taken) == u128::from(self.owed(from, to))
        };
        let away = |site: &Site| site.totals.away(|position| self.sites[position].incarnation);
        let reported = self.sites.iter().map(away).fold(0, i64::wrapping_add);
        let owed: u64 = self.pairs().map(|(from, to)| self.owed(from, to)).sum();
        self.pairs().all(agree) && reported == owed as i64
    }
}

impl Model for Setup {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let first = Incarnation(1);
        let known = vec![first; self.has.len()];
        let site = |&has: &u64| Site { incarnation: first, has, totals: Totals::default(), known: known.clone() };
        vec![State {
            sites: self.has.iter().map(site).collect(),
            told: BTreeSet::new(),
            ledger: BTreeMap::new(),
            left: (self.gifts, self.losses),
            missed: false,
            broken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A counterexample is found: nothing more has to be seen behind it.
        if state.broken || state.missed {
            return;
        }

        actions.extend(state.told.iter().copied().map(Action::Deliver));
        for (from, to) in state.pairs() {
            if state.left.0 > 0 && state.sites[from].has > 0 {
                actions.push(Action::Give(from, to));
            }
            if state.sites[from].known[to] < state.sites[to].incarnation {
                actions.push(Action::Hear(from, to));
            }
        }
        if state.left.1 > 0 {
            actions.extend((0..state.sites.len()).map(Action::Lose));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();

        // A failed assertion is a finding like a broken property, and the trace to it is wanted.
        let sound = catch_unwind(AssertUnwindSafe(|| match action {
            Action::Give(from, to) => state.give(from, to),
            Action::Deliver(told) => state.deliver(told),
            Action::Hear(at, of) => state.sites[at].known[of] = state.sites[of].incarnation,
            Action::Lose(at) => state.lose(at),
        }));
        state.broken |= sound.is_err();

        // An event that changes nothing leads nowhere new.
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("taken once", |_, state: &State| {
                state.ledger.values().all(|(given, taken)| taken <= given)
            }),
            Property::always("conservation", |_, state: &State| state.is_conserved()),
            Property::always("told again, it arrives", |_, state: &State| !state.missed),
            Property::always("own invariants", |_, state: &State| !state.broken),
            Property::sometimes("a gift is taken", |_, state: &State| {
                state.ledger.values().any(|(_, taken)| *taken > 0)
            }),
        ]
    }
}

/// One line for each step of a counterexample.
pub(crate) fn trace(setup: &Setup, actions: Vec<Action>) -> Vec<String> {
    let mut state = setup.init_states().remove(0);
    let mut lines = Vec::new();
    for action in actions {
        let text = match &action {
            Action::Give(from, to) => format!("S{} gives a unit to S{}", from + 1, to + 1),
            Action::Deliver(Told { from, to, given }) => {
                format!("S{} ({}) → S{} ({})  given {given}", from.0 + 1, from.1.0, to.0 + 1, to.1.0)
            }
            Action::Hear(at, of) => format!("S{} hears of the incarnation of S{}", at + 1, of + 1),
            Action::Lose(at) => format!("S{} loses its disk and comes back new", at + 1),
        };
        let Some(next) = setup.next_state(&state, action) else { break };
        state = next;
        let has: Vec<String> = state.sites.iter().map(|site| site.has.to_string()).collect();
        lines.push(format!("{text:<78} has {}", has.join(" ")));
    }

    lines
}

/// The setups that the project checks.
pub fn setups() -> Vec<Setup> {
    vec![
        Setup { name: "gifts: six of one unit, no disk lost", has: vec![2, 1, 0], gifts: 6, losses: 0 },
        Setup { name: "gifts: four of one unit, two disks lost", has: vec![2, 1, 0], gifts: 4, losses: 2 },
    ]
}
