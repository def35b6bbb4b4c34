//! All that a run remembers, in parts. No file in this folder knows the files beside it that act on these parts: faults, clients,
//! transactions, the audit and the watch over sites are `impl Simulation` in files above, and `run` has the loop.
//!
//! | part | what it remembers |
//! | --- | --- |
//! | [`Settings`] | what was drawn before the run began |
//! | `post` | requests, and responses on their way |
//! | `clients`, `txns`, `callers`, `treaties` | the workload |
//! | `faults`, `brink` | what is wrong |
//! | `watch` | what was seen of sites |
//! | `audit` | how far the audit is |
//! | `timer` | what timers are for |

pub(crate) mod audit;
pub(crate) mod brink;
pub(crate) mod callers;
pub(crate) mod clients;
pub(crate) mod departures;
pub(crate) mod faults;
pub(crate) mod post;
pub(crate) mod timer;
pub(crate) mod treaties;
pub(crate) mod txns;
pub(crate) mod watch;

use std::fmt::Arguments;
use std::io::Write;

use slackline_core::api::Request;
use slackline_core::id::SiteId;
use slackline_core::machine::ClientId;
use slackline_core::stats::Rng;

use crate::oracle::Oracle;
use crate::probes::Probes;
use crate::world::World;
use audit::Audit;
use callers::Callers;
use clients::Clients;
use faults::Faults;
use post::{Post, Purpose};
use treaties::Treaties;
use txns::Txns;
use watch::Watch;

/// The work of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// Operations that clients send, at least.
    pub operations: u64,
    /// Transactions that are committed, at least.
    pub transactions: u64,
    /// Transactions over treaties that are committed, at least.
    pub treaties: u64,
    /// Faults that strike, at least.
    pub faults: u64,
    /// True if every event is printed to standard output as one line.
    pub trace: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { operations: 20_000, transactions: 5_000, treaties: 2_000, faults: 20, trace: false }
    }
}

/// Where a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Faults strike.
    Faults,
    /// All faults are over; clients finish.
    Healing,
    /// The cluster at rest is looked at.
    Audit,
    /// A site leaves for good; then what is left is looked at once more.
    Departure,
    /// The end.
    Over,
}

impl Phase {
    /// True once clients are done: nobody acts but the audit, and the operator who has a site leave.
    pub(crate) fn is_audit(self) -> bool {
        !matches!(self, Phase::Faults | Phase::Healing)
    }
}

/// What was drawn before the run began, and stays.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The work of the run.
    pub(crate) options: RunOptions,
    /// The sites, by position.
    pub(crate) members: Vec<SiteId>,
    /// The number of those that are members from the beginning; the others join, one after the other.
    pub(crate) first: usize,
    /// The number of sites at which objects are at home: of one that joined and has none, and then leaves, nothing is left.
    pub(crate) homes: usize,
    /// True if sites issue and rely upon warranties.
    pub(crate) has_warranties: bool,
    /// The time for which sites keep names of deleted quotas.
    pub(crate) names_kept: u64,
    /// No transaction begins before this.
    pub(crate) txns_from: u64,
    /// In some runs no client says anything between these, for longer than sites keep outcomes.
    pub(crate) silence: Option<(u64, u64)>,
    /// In some runs: the seed of what models say to sites.
    pub(crate) forecasts: Option<u64>,
}

/// One run.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// What was drawn before it began.
    pub(crate) settings: Settings,
    /// Feeds the choices of faults and clients.
    pub(crate) rng: Rng,
    /// Where it is.
    pub(crate) phase: Phase,
    /// What is durable, and what clients were told.
    pub(crate) oracle: Oracle,
    /// What it came across.
    pub(crate) probes: Probes,
    /// Requests, and responses on their way.
    pub(crate) post: Post,
    /// Clients that speak to sites themselves.
    pub(crate) clients: Clients,
    /// Their transactions.
    pub(crate) txns: Txns,
    /// Callers of the product's client.
    pub(crate) callers: Callers,
    /// Their treaties.
    pub(crate) treaties: Treaties,
    /// What is wrong.
    pub(crate) faults: Faults,
    /// What was seen of sites.
    pub(crate) watch: Watch,
    /// The step that the audit has reached.
    pub(crate) audit: Audit,
    /// The site that leaves at the end.
    pub(crate) departure: Option<departures::Departure>,
}

impl Settings {
    /// When something planned for then happens, as nothing does while all is silent.
    pub(crate) fn after_silence(&self, at: u64) -> u64 {
        match self.silence {
            Some((from, until)) if (from..until).contains(&at) => at - from + until,
            _ => at,
        }
    }

    /// Returns true if no client says anything now.
    pub(crate) fn is_silent(&self, now: u64) -> bool {
        self.silence.is_some_and(|(from, until)| (from..until).contains(&now))
    }
}

impl Simulation {
    /// Prints a line, if the run is to be seen.
    pub(crate) fn trace(&self, world: &World, line: Arguments) {
        if self.settings.options.trace {
            // Whoever reads may have seen enough.
            let _ = writeln!(std::io::stdout(), "{:>13} {line}", world.now());
        }
    }

    /// Asks a site something; `at` is when the request gets there.
    pub(crate) fn ask_site(
        &mut self,
        world: &mut World,
        at: u64,
        site: usize,
        purpose: Purpose,
        request: Request,
    ) -> ClientId {
        let id = self.post.number(purpose);
        world.request(at, site, id, request);
        id
    }

    /// These sites, in an order that is drawn.
    pub(crate) fn shuffled(&mut self, sites: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut sites: Vec<usize> = sites.collect();
        for at in (1..sites.len()).rev() {
            sites.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        sites
    }

    /// Returns true if every operation is sent that clients are to send, transactions left out.
    pub(crate) fn is_finishing(&self) -> bool {
        self.clients.quota_operations() >= self.settings.options.operations
    }
}
