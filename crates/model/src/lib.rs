//! The model checks: the product's own protocol code, not a copy of it, in every order of events.
//!
//! - [`avantan`]: the agreement by which sites move tokens, and, by the same code, another amount ([`bound`]);
//! - [`any`]: its rounds among subsets of the sites;
//! - [`member`]: what changes of the members do to it;
//! - [`gift`]: gifts, by which one site gives to another without a round;
//! - [`commit`]: transactions over objects of several sites.
//!
//! Breadth-first, so that a counterexample is a shortest one.

pub mod any;
pub mod avantan;
pub mod bound;
pub mod commit;
pub mod gift;
pub mod member;

use std::fmt::Debug;
use std::hash::Hash;
use std::thread::available_parallelism;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// The result of an exploration.
#[derive(Debug)]
pub struct Explored {
    /// The setup's name.
    pub name: &'static str,
    /// The number of unique states seen.
    pub unique: usize,
    /// True if there are no more.
    pub exhausted: bool,
    /// The shortest path found to a state that breaks a property.
    pub violation: Option<Violation>,
    /// What was to happen in some state, and happened in none: of nothing every property is true.
    pub missed: Vec<&'static str>,
}

/// A counterexample.
#[derive(Debug)]
pub struct Violation {
    /// The property.
    pub property: &'static str,
    /// One line for each step.
    pub trace: Vec<String>,
}

/// A model with the bounds of its exploration.
#[derive(Clone, Debug)]
pub enum Setup {
    /// The agreement about tokens.
    Avantan(avantan::Setup),
    /// The agreement about slack under a bound that moves.
    Bound(avantan::Setup<bound::Slack>),
    /// Rounds among subsets.
    Any(any::Setup),
    /// Changes of the members.
    Member(member::Setup),
    /// Gifts.
    Gift(gift::Setup),
    /// Transactions.
    Commit(commit::Setup),
}

impl Setup {
    /// The name in the printed line.
    pub fn name(&self) -> &'static str {
        match self {
            Setup::Avantan(setup) => setup.name,
            Setup::Bound(setup) => setup.name,
            Setup::Any(setup) => setup.name,
            Setup::Member(setup) => setup.name,
            Setup::Gift(setup) => setup.name,
            Setup::Commit(setup) => setup.name,
        }
    }

    /// Explores until a property fails, or all states are seen, or `most` of them.
    pub fn explore(self, most: usize) -> Explored {
        let name = self.name();
        match self {
            Setup::Avantan(setup) => explore(name, setup.clone(), most, |actions| avantan::trace(&setup, actions)),
            Setup::Bound(setup) => explore(name, setup.clone(), most, |actions| avantan::trace(&setup, actions)),
            Setup::Any(setup) => explore(name, setup.clone(), most, |actions| any::trace(&setup, actions)),
            Setup::Member(setup) => explore(name, setup.clone(), most, |actions| member::trace(&setup, actions)),
            Setup::Gift(setup) => explore(name, setup.clone(), most, |actions| gift::trace(&setup, actions)),
            Setup::Commit(setup) => explore(name, setup.clone(), most, |actions| commit::trace::trace(&setup, actions)),
        }
    }
}

/// The setups that the project checks.
pub fn setups() -> Vec<Setup> {
    let avantan = avantan::setups().into_iter().map(Setup::Avantan);
    let bound = bound::setups().into_iter().map(Setup::Bound);
    let gift = gift::setups().into_iter().map(Setup::Gift);
    let any = any::setups().into_iter().map(Setup::Any);
    let member = member::setups().into_iter().map(Setup::Member);
    avantan
        .chain(bound)
        .chain(any)
        .chain(member)
        .chain(gift)
        .chain(commit::setups().into_iter().map(Setup::Commit))
        .collect()
}

/// Explores a model; `trace` puts a counterexample into words.
fn explore<M>(name: &'static str, model: M, most: usize, trace: impl Fn(Vec<M::Action>) -> Vec<String>) -> Explored
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + PartialEq + Debug + Hash + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Debug + Send + Sync + 'static,
{
    let threads = available_parallelism().map_or(1, usize::from);
    let check = |deepest: usize| {
        let checker = model.clone().checker().threads(threads).target_state_count(most).target_max_depth(deepest);
        checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join()
    };
    let first = check(0);
    let (unique, exhausted) = (first.unique_state_count(), first.state_count() < most);

    // What is found of a property that is always true is a path to where it is not; of one that is true sometimes, to where it is.
    let of = |expected: Expectation| {
        let properties = model.properties().into_iter().filter(move |property| property.expectation == expected);
        properties.map(|property| property.name)
    };
    let mut found = first.discoveries();
    let missed = of(Expectation::Sometimes).filter(|name| !found.contains_key(name)).collect();
    let failures: Vec<&'static str> = of(Expectation::Always).collect();

    // With several threads the checker may keep a counterexample that is not the shortest. So a shorter one is looked for, until
    // there is none. A path with `n` actions has `n + 1` states, so the depth that is given here is one action less.
    let mut shortest: Option<(&'static str, Vec<M::Action>)> = None;
    found.retain(|name, _| failures.contains(name));
    while let Some((property, path)) = found.into_iter().min_by_key(|(_, path)| path.clone().into_actions().len()) {
        let actions = path.into_actions();
        found = check(actions.len() + 1).discoveries();
        found.retain(|name, _| failures.contains(name));
        shortest = Some((property, actions));
    }

    let violation = shortest.map(|(property, actions)| Violation { property, trace: trace(actions) });
    Explored { name, unique, exhausted, violation, missed }
}
