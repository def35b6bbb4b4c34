//! The site that leaves for good at the end of a run, and how far that is.

use slackline_core::stats::Rng;

/// How a site leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Its disk is lost, and it is declared lost.
    Lost,
    /// It gives everything away, and is taken out.
    Drained,
}

/// What the operator is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Drains the site.
    Drains,
    /// Takes it out of the members.
    Changes,
    /// Waits until every quota has recorded that.
    Waits,
    /// Brings back what it had, one quota after the other.
    Reclaims,
    /// Lets it serve again: objects are at home there.
    Serves,
}

/// The departure of a run.
#[derive(Debug)]
pub(crate) struct Departure {
    /// The site.
    pub(crate) site: usize,
    /// How it leaves.
    pub(crate) way: Way,
    /// What the operator does next.
    pub(crate) step: Step,
    /// Feeds its choices, so that what happens before is what happens without it.
    pub(crate) rng: Rng,
    /// When faults end.
    pub(crate) calm_at: u64,
    /// True if they have.
    pub(crate) is_calm: bool,
    /// True while a request of the operator is under way.
    pub(crate) asks: bool,
    /// When the next request is due.
    pub(crate) next_at: u64,
    /// True if the site does nothing more.
    pub(crate) is_gone: bool,
    /// Quotas of which what it had is not reclaimed yet.
    pub(crate) books: Vec<usize>,
}
