//! The model checks: the product's own protocol code, not a copy of it, in every order of events.
//!
//! - [`avantan`]: the agreement by which sites move tokens;
//! - [`commit`]: transactions over objects of several sites.
//!
//! Breadth-first, so that a counterexample is a shortest one.

pub mod avantan;
pub mod commit;

use stateright::{Checker, Model};

/// What an exploration came to.
#[derive(Debug)]
pub struct Explored {
    /// The setup's name.
    pub name: &'static str,
    /// Unique states seen.
    pub unique: usize,
    /// Whether there are no more.
    pub exhausted: bool,
    /// The shortest way found into a state that breaks a property.
    pub violation: Option<Violation>,
}

/// A counterexample.
#[derive(Debug)]
pub struct Violation {
    /// The property.
    pub property: &'static str,
    /// One line for each step.
    pub trace: Vec<String>,
}

/// What to explore.
#[derive(Clone, Debug)]
pub enum Setup {
    /// The agreement.
    Avantan(avantan::Setup),
    /// Transactions.
    Commit(commit::Setup),
}

impl Setup {
    /// For the printed line.
    pub fn name(&self) -> &'static str {
        match self {
            Setup::Avantan(setup) => setup.name,
            Setup::Commit(setup) => setup.name,
        }
    }

    /// Explores until a property fails, everything is seen, or `most` states are.
    pub fn explore(self, most: usize) -> Explored {
        let name = self.name();
        match self {
            Setup::Avantan(setup) => explore(name, setup.clone(), most, |_, actions| avantan::trace(&setup, actions)),
            Setup::Commit(setup) => {
                explore(name, setup.clone(), most, |property, actions| commit::trace(&setup, property, actions))
            }
        }
    }
}

/// The setups that the project checks.
pub fn setups() -> Vec<Setup> {
    let avantan = avantan::setups().into_iter().map(Setup::Avantan);
    avantan.chain(commit::setups().into_iter().map(Setup::Commit)).collect()
}

fn explore<M>(
    name: &'static str,
    model: M,
    most: usize,
    trace: impl Fn(&str, Vec<M::Action>) -> Vec<String>,
) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + PartialEq + std::fmt::Debug + std::hash::Hash + Send + Sync + 'static,
    M::Action: Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static,
{
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = model.checker().threads(threads).target_state_count(most).spawn_bfs().join();
    let exhausted = checker.state_count() < most;
    let violation = checker
        .discoveries()
        .into_iter()
        .map(|(property, path)| Violation { property, trace: trace(property, path.into_actions()) })
        .min_by_key(|violation| violation.trace.len());
    Explored { name, unique: checker.unique_state_count(), exhausted, violation }
}
