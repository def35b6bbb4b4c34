//! The cluster's map: regions by position, lanes, and the address of each site.

use std::collections::BTreeMap;

use slackline_core::id::SiteId;
use slackline_wire::v1::{TopologyReply, TopologySite};

/// The cluster's map, as one site has it.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    /// The cluster's name.
    pub(crate) cluster: String,
    /// This site.
    pub(crate) me: SiteId,
    /// The regions' names. A region's position here is its number everywhere, at all sites.
    pub(crate) regions: Vec<String>,
    /// The number of lanes, at least 1.
    pub(crate) lanes: u16,
    /// Every site's address: one for each region and lane.
    pub(crate) sites: BTreeMap<SiteId, String>,
}

impl Topology {
    /// The sites of this site's lane, itself included, in ascending order.
    pub(crate) fn members(&self) -> impl Iterator<Item = SiteId> + '_ {
        self.sites.keys().copied().filter(|site| site.lane == self.me.lane)
    }

    /// The address of a site of the cluster.
    pub(crate) fn address(&self, site: SiteId) -> &str {
        self.sites.get(&site).map_or("", String::as_str)
    }

    /// The name of a site, for people: its region, and its lane if there are several.
    pub(crate) fn name(&self, site: SiteId) -> String {
        site_name(&self.region(site), site.lane)
    }

    /// The name of a site's region.
    pub(crate) fn region(&self, site: SiteId) -> String {
        self.regions.get(usize::from(site.region)).cloned().unwrap_or_else(|| site.region.to_string())
    }

    pub(crate) fn reply(&self) -> TopologyReply {
        let site = |(site, address): (&SiteId, &String)| TopologySite {
            site: Some((*site).into()),
            region: self.region(*site),
            lane: site.lane.into(),
            address: address.clone(),
        };

        TopologyReply {
            cluster: self.cluster.clone(),
            site: Some(self.me.into()),
            regions: self.regions.clone(),
            lanes: self.lanes.into(),
            sites: self.sites.iter().map(site).collect(),
        }
    }
}

/// The name of a site, for people.
pub(crate) fn site_name(region: &str, lane: u16) -> String {
    if lane == 0 { region.to_owned() } else { format!("{region}:{lane}") }
}
