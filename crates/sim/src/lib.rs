//! Deterministic simulation of Slackline: the very machine that serves, in virtual time, with everything going wrong that
//! it must survive. The same seed gives the same run, byte for byte.
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`world`] | sites, clocks, disks and a network in virtual time, for whoever has a workload |
//! | [`desk`] | the product's client in virtual time |
//! | [`invariants`] | what must hold in every run, one property a file |
//! | [`history`] | judges histories of transactions from outside: strict serializability |
//! | `state` | all that a run remembers, in parts; what follows acts on them |
//! | `oracle` | what is durable, what clients were told, where every token is |
//! | `callers` | programs over the product's client |
//! | `clients`, `txns`, `quotas`, `calls` | clients that speak to sites themselves, some of it as no sound client would do it |
//! | `strikes` | which fault strikes when, and what would not be fair |
//! | `faults`, `losses`, `clock_faults` | what faults do: to processes and links, to storage, to clocks |
//! | `forecasts` | models that are wrong |
//! | `ambush` | a fault that needs exact timing: a vote forgotten right after it counted |
//! | `brink` | faults that need exact timing: transactions held back until the rights they rest on end |
//! | `lease` | one more: rights over what rests on storage that was lost |
//! | `audit` | the cluster at rest after the healing |
//! | `vigil` | who can hear whom while a clock is far off, and whether it is noticed |
//! | `refusals` | who is up and connected, and whether they serve |
//! | `work` | how much work sites make for each other |
//! | `sightings` | what is seen of sites as they start, handle inputs and answer |
//! | `probes` | what a sweep must have come across |
//! | `run`, `sweep` | one seed, many seeds |
//!
//! The parts in `state` know nothing of what acts on them, so what two files need of each other is there, below both.
//!
//! # Words of the simulator
//!
//! Those of the product are in the book's glossary, `docs/src/glossary.md`.
//!
//! - **host**: whoever uses a world: the hunt for bugs here, a benchmark elsewhere.
//! - **book**: all that the oracle knows of one quota. **Account**: what one incarnation of one site has of it.
//! - **told**: the definitive answer that a client was given. **Durable**: what its site has on disk.
//! - **hazard**: a fault that waits for an input of a certain kind.

mod ambush;
mod audit;
mod brink;
mod callers;
mod calls;
mod clients;
mod clock;
mod clock_faults;
mod costs;
mod departures;
pub mod desk;
mod disk;
mod faults;
mod forecasts;
pub mod history;
pub mod invariants;
mod joins;
mod kinds;
mod lease;
mod losses;
mod network;
mod oracle;
mod probes;
mod queue;
mod quotas;
mod refusals;
mod run;
mod sightings;
mod state;
mod strikes;
mod sweep;
mod treaties;
mod txns;
mod vigil;
mod work;
pub mod world;

pub use costs::Costs;
pub use invariants::Violation;
pub use network::Fate;
pub use probes::{Probes, Table};
pub use run::{Report, run};
pub use state::RunOptions;
pub use sweep::{SweepReport, sweep};

/// Where panics end the process, nobody can catch those of a run: prints the seed and ends the process with status 1.
pub fn exit_on_panic() {
    run::exit_on_panic();
}
