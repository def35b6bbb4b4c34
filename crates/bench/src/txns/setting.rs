//! How a workload is run: what a report is told, and the sites and clients of each of its runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slackline::{SiteId, Topology};
use slackline_core::config::Warranties;
use slackline_core::stats::Rng;
use slackline_session::txn::Memos;
use slackline_sim::Costs;

use crate::live::LiveError;
use crate::named::named;

/// The cost of an object that is read, told, validated or written, in nanoseconds of a site's processor: measured of a real
/// site (`docs/src/benchmarks.md`).
pub(crate) const OBJECT_NS: u64 = 1_000;
/// The time that a transaction may take in all.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// The protocol that transactions stand on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Config {
    /// Optimistic concurrency control alone.
    Occ,
    /// With warranties over the values of objects.
    State,
    /// And with kept results of memoized functions.
    Computation,
}

impl Config {
    /// Those of a workload that calls no memoized function.
    pub const PLAIN: [Self; 2] = [Self::Occ, Self::State];
    /// All that there are.
    pub const ALL: [Self; 3] = [Self::Occ, Self::State, Self::Computation];

    /// The warranties that sites issue.
    pub(super) fn warranties(self) -> Warranties {
        match self {
            // Rights off, and nothing else: copies and batched reads are as in the other configurations.
            Self::Occ => Warranties::Off,
            Self::State | Self::Computation => Warranties::State,
        }
    }
}

named!(Config is a "configuration": Occ "occ", State "state", Computation "computation");

/// Why a workload of transactions found nothing out.
#[derive(Debug, thiserror::Error)]
pub enum TxnsError {
    /// An option makes no sense.
    #[error("{0}")]
    Option(String),
    /// Real sites cannot be run here.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The data are wrong after a run: a bug of Slackline.
    #[error("the data are wrong after the run {config}: {what}; this is a bug, report it with the options")]
    Wrong {
        /// The configuration.
        config: String,
        /// The sums that disagree.
        what: String,
    },
}

/// The terms on which any workload is run.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The configurations, one run each.
    pub configs: Vec<Config>,
    /// The number of clients of each store.
    pub clients_per_store: usize,
    /// The round trip between stores.
    pub rtt: Duration,
    /// The time for which transactions are counted.
    pub measure: Duration,
    /// The seed of every random choice.
    pub seed: u64,
    /// Real sites, with their data below this directory.
    pub live: Option<PathBuf>,
}

impl Terms {
    /// In virtual time, with the first seed.
    pub(super) fn new(configs: &[Config], clients_per_store: usize, rtt_ms: u64, measure_ms: u64) -> Self {
        let (rtt, measure) = (Duration::from_millis(rtt_ms), Duration::from_millis(measure_ms));
        Self { configs: configs.to_vec(), clients_per_store, rtt, measure, seed: 1, live: None }
    }

    /// One run, of which nothing is counted at first.
    pub(super) fn setting(&self, config: Config, stores: usize, warm: Duration) -> Setting {
        let Self { clients_per_store, rtt, measure, seed, ref live, .. } = *self;
        Setting { config, stores, clients_per_store, rtt, warm, measure, seed, live: live.clone() }
    }

    /// That a workload has no memoized function.
    pub(super) fn refuse_computation(&self) -> Result<(), TxnsError> {
        let why = "this workload calls no memoized function: use --config occ or --config state";
        if self.configs.contains(&Config::Computation) { Err(TxnsError::Option(why.into())) } else { Ok(()) }
    }
}

/// The sites and clients of a run, and how long it is.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// The protocol that its transactions stand on.
    pub(super) config: Config,
    /// The number of sites; each is the home of its store's objects.
    pub(super) stores: usize,
    /// The number of clients of each store's site.
    pub(super) clients_per_store: usize,
    /// The round trip between stores.
    pub(super) rtt: Duration,
    /// The time from when all clients begin until transactions are counted.
    pub(super) warm: Duration,
    /// The time for which they are counted.
    pub(super) measure: Duration,
    /// The seed of every random choice.
    pub(super) seed: u64,
    /// Real sites, with their data below this directory.
    pub(super) live: Option<PathBuf>,
}

impl Setting {
    /// True if clients use kept results of memoized functions.
    fn memoizes(&self) -> bool {
        self.config == Config::Computation
    }

    /// The random choices of a client: the same in every configuration of a report.
    pub(super) fn rng(&self, client: usize) -> Rng {
        Rng::new(self.seed ^ (client as u64 + 1) << 20)
    }

    /// The site of each client. The first clients sit at one site each.
    pub(super) fn clients(&self) -> Vec<usize> {
        (0..self.stores * self.clients_per_store).map(|client| client % self.stores).collect()
    }

    /// The cost model, if time is virtual.
    pub(super) fn costs(&self) -> Option<Costs> {
        self.live.is_none().then(|| Costs { object_ns: OBJECT_NS, ..Costs::default() })
    }

    /// The map of the stores, in virtual time.
    pub(super) fn topology(&self) -> Topology {
        let regions = (0..self.stores).map(region).collect();
        let sites = (0..self.stores as u16).map(|at| (SiteId::new(at, 0), String::new())).collect();
        Topology::new("bench".into(), regions, 1, sites).expect("a site for each of the regions")
    }

    /// The memoized functions of a new client, which uses kept results where the configuration has them.
    pub(super) fn memos(&self) -> Arc<Memos> {
        // A client without kept results computes every call itself.
        let memos = Memos::default();
        if !self.memoizes() {
            memos.turn_off();
        }
        Arc::new(memos)
    }

    /// The error that the data are wrong after this run.
    pub(super) fn wrong(&self, what: String) -> TxnsError {
        TxnsError::Wrong { config: self.config.to_string(), what }
    }
}

/// The name of the region of a store.
pub(super) fn region(store: usize) -> String {
    format!("store-{}", store + 1)
}
