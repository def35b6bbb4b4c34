//! Where clients and sites are, and how long a message takes between them.

use std::collections::BTreeSet;

use slackline_wire::rtt::RttTable;

use crate::quota::QuotaError;
use crate::rtt::{Matrix, Rtt};

/// The number of regions that have clients.
pub(super) const REGIONS: usize = 5;
/// The regions in which the paper places the sites of a replicated database: a majority of them near each other. The leader is
/// in the first.
const REPLICAS: [&str; 5] = ["us-west1", "us-central1", "us-east4", "europe-west2", "asia-east2"];
/// The regions, by position, that are in the smaller part when the network is parted. In the built-in table of GCP these are Asia
/// and Europe, so that the replicas are parted three to two like the other systems' sites.
const SMALLER_PART: [usize; 2] = [1, 2];

/// Client regions and the sites of one system.
#[derive(Clone, Debug)]
pub(super) struct Geography {
    /// One way between a client of a region and a site, in microseconds; by region, then by site.
    access: Vec<Vec<u64>>,
    /// One way between two sites, in microseconds.
    between: Vec<Vec<u64>>,
    /// True of regions in the smaller part.
    region_in_two: Vec<bool>,
    /// True of sites in the smaller part.
    site_in_two: Vec<bool>,
    /// True where a message between a client of a region and a site leaves the region.
    is_wide: Vec<Vec<bool>>,
}

impl Geography {
    /// Clients of `regions`, and sites in `sites`; both are names of the table.
    fn new(table: &RttTable, regions: &[String], sites: &[String], smaller: &[String]) -> Option<Self> {
        let one_way = |from: &String, to: &String| Some(table.rtt(from, to)?.as_micros() as u64 / 2);
        let row = |from: &String| sites.iter().map(|to| one_way(from, to)).collect::<Option<Vec<u64>>>();
        Some(Self {
            access: regions.iter().map(row).collect::<Option<_>>()?,
            between: sites.iter().map(row).collect::<Option<_>>()?,
            region_in_two: regions.iter().map(|region| smaller.contains(region)).collect(),
            site_in_two: sites.iter().map(|site| smaller.contains(site)).collect(),
            is_wide: regions.iter().map(|region| sites.iter().map(|site| site != region).collect()).collect(),
        })
    }

    /// The number of client regions.
    pub(super) fn regions(&self) -> usize {
        self.access.len()
    }

    /// The number of sites.
    pub(super) fn sites(&self) -> usize {
        self.between.len()
    }

    /// One way between a client of a region and a site, in microseconds.
    pub(super) fn access(&self, region: usize, site: usize) -> u64 {
        self.access[region][site]
    }

    /// One way between two sites, in microseconds.
    pub(super) fn between(&self, from: usize, to: usize) -> u64 {
        self.between[from][to]
    }

    /// True if a message between them leaves the region.
    pub(super) fn is_wide(&self, region: usize, site: usize) -> bool {
        self.is_wide[region][site]
    }

    /// True if the region is in the smaller part of a parted network.
    pub(super) fn is_region_in_two(&self, region: usize) -> bool {
        self.region_in_two[region]
    }

    /// True if the site is in the smaller part of a parted network.
    pub(super) fn is_site_in_two(&self, site: usize) -> bool {
        self.site_in_two[site]
    }
}

/// The regions of a run, and the table that has the round trips between them.
#[derive(Clone, Debug)]
pub(super) struct Globe {
    /// The table.
    table: RttTable,
    /// The regions that have clients.
    pub(super) regions: Vec<String>,
    /// Where a replicated database has its sites, the leader first.
    replicas: Vec<String>,
}

impl Globe {
    /// The first five regions of a table.
    pub(super) fn new(rtt: &Rtt) -> Result<Self, QuotaError> {
        // The built-in table is that of the regions with clients; a database has sites in two more.
        let matrix = Matrix::new(rtt, REGIONS)?;
        let table = if *rtt == Rtt::Gcp { RttTable::gcp_with_replicas() } else { matrix.table };
        if table.regions().len() < REGIONS {
            let (have, source) = (table.regions().len(), table.source());
            return Err(QuotaError::Option(format!(
                "the experiments are of five regions, and {source} has {have}: use --rtt gcp or a table with five"
            )));
        }

        let named: Vec<String> = REPLICAS.map(str::to_owned).to_vec();
        let has_named = named.iter().all(|name| table.regions().contains(name));
        let replicas = if has_named { named } else { matrix.regions.clone() };

        // A table may name these regions and have no round trip between some of them.
        let all: BTreeSet<&String> = matrix.regions.iter().chain(&replicas).collect();
        let mut pairs =
            all.iter().flat_map(|from| all.iter().map(move |to| (*from, *to))).filter(|(from, to)| from < to);
        if let Some((from, to)) = pairs.find(|(from, to)| table.rtt(from, to).is_none()) {
            let source = table.source();
            return Err(QuotaError::Option(format!("{source} has no round trip between {from} and {to}")));
        }
        Ok(Self { table, regions: matrix.regions, replicas })
    }

    /// So many sites, each in the region of its own clients; with more sites than regions, these are gone through again.
    pub(super) fn shared(&self, sites: usize) -> Geography {
        let names: Vec<String> = self.regions.iter().cycle().take(sites).cloned().collect();
        self.geography(&names, &names)
    }

    /// The sites of a replicated database, for clients of so many regions.
    pub(super) fn replicated(&self, regions: usize) -> Geography {
        let names: Vec<String> = self.regions.iter().cycle().take(regions).cloned().collect();
        self.geography(&names, &self.replicas)
    }

    fn geography(&self, regions: &[String], sites: &[String]) -> Geography {
        let smaller = SMALLER_PART.map(|at| self.regions[at].clone());
        Geography::new(&self.table, regions, sites, &smaller).expect("every pair of regions was looked up")
    }

    /// The round trips, in words.
    pub(super) fn describe(&self) -> String {
        format!(
            "clients and sites in {}; the leader of a replicated database in {}, its others in {} ({})",
            self.regions.join(", "),
            self.replicas[0],
            self.replicas[1..].join(", "),
            self.table.source()
        )
    }
}
