//! The cluster's map: regions by position, lanes, and the address of each site.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use slackline_core::id::SiteId;
use slackline_wire::v1::{TopologyReply, TopologySite};

use crate::config::{ConfigError, SiteConfig, check_place, site_name};

/// The cluster's map, as one site has it.
#[derive(Debug)]
pub(crate) struct Topology {
    /// The cluster's name.
    pub(crate) cluster: String,
    /// This site.
    pub(crate) me: SiteId,
    /// The number of lanes, at least 1.
    pub(crate) lanes: u16,
    /// The regions and the addresses, which grow as sites join.
    places: RwLock<Places>,
}

/// The part of the map that grows.
#[derive(Debug)]
struct Places {
    /// The regions' names. A region's position here is its number everywhere, at all sites.
    regions: Vec<String>,
    /// Every site's address: one for each region and lane.
    sites: BTreeMap<SiteId, String>,
    /// Those that have joined; the others have been there from the beginning.
    joined: BTreeSet<SiteId>,
    /// Those that are members no longer.
    gone: BTreeSet<SiteId>,
}

impl Topology {
    /// The map that a site's configuration gives.
    pub(crate) fn of(config: &SiteConfig) -> Result<Self, ConfigError> {
        let (me, lanes, sites) = config.map()?;
        Ok(Self::new(config.cluster.clone(), me, lanes, config.regions.clone(), sites))
    }

    /// A map.
    pub(crate) fn new(
        cluster: String,
        me: SiteId,
        lanes: u16,
        regions: Vec<String>,
        sites: BTreeMap<SiteId, String>,
    ) -> Self {
        let (joined, gone) = (BTreeSet::new(), BTreeSet::new());
        Self { cluster, me, lanes, places: RwLock::new(Places { regions, sites, joined, gone }) }
    }

    fn places(&self) -> RwLockReadGuard<'_, Places> {
        self.places.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The regions' names, by number.
    pub(crate) fn regions(&self) -> Vec<String> {
        self.places().regions.clone()
    }

    /// True if the cluster has this site.
    pub(crate) fn has(&self, site: SiteId) -> bool {
        self.places().sites.contains_key(&site)
    }

    /// The sites of this site's lane, itself included, in ascending order.
    pub(crate) fn members(&self) -> Vec<SiteId> {
        self.places().sites.keys().copied().filter(|site| site.lane == self.me.lane).collect()
    }

    /// The address of a site of the cluster.
    pub(crate) fn address(&self, site: SiteId) -> String {
        self.places().sites.get(&site).cloned().unwrap_or_default()
    }

    /// Takes in a site that has joined. Its region comes after all others, unless it is known.
    pub(crate) fn join(&self, site: SiteId, label: &str) {
        let Some((region, address)) = label.split_once(' ') else { return };
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let Places { regions, sites, joined, .. } = &mut *places;
        joined.insert(site);
        if regions.len() == usize::from(site.region) {
            regions.push(region.to_owned());
        }
        sites.entry(site).or_insert_with(|| address.to_owned());
    }

    /// The first region from this number on that has a site in this lane which has been there from the beginning, as far as is known here.
    pub(crate) fn first_founder(&self, from: usize) -> Option<String> {
        let places = self.places();
        let has_founder = |region: &usize| {
            let site = SiteId::new(*region as u16, self.me.lane);
            site != self.me && places.sites.contains_key(&site) && !places.joined.contains(&site)
        };
        let region = (from..places.regions.len()).find(has_founder)?;
        Some(places.regions[region].clone())
    }

    /// Notes that a site is a member no longer. It keeps its place.
    pub(crate) fn leave(&self, site: SiteId) {
        self.places.write().unwrap_or_else(PoisonError::into_inner).gone.insert(site);
    }

    /// What is wrong with the label of a site that is to join, if something is: the name of its region, a space and its address.
    pub(crate) fn objection(&self, site: SiteId, label: &str) -> Option<String> {
        let Some((region, address)) = label.split_once(' ') else {
            return Some(format!("{label:?} is not the name of a region, a space and an address"));
        };
        let places = self.places();
        let known = places.regions.iter().position(|name| name == region);
        let number = known.unwrap_or(places.regions.len());
        if number != usize::from(site.region) {
            return Some(format!("region {region:?} has the number {number}, not {}", site.region));
        }
        let wrong = check_place(region, address).err();
        wrong.map(|error| error.to_string())
    }

    /// The name of a site, for people: its region, and its lane if there are several.
    pub(crate) fn name(&self, site: SiteId) -> String {
        site_name(&self.region(site), site.lane)
    }

    /// The name of a site's region.
    pub(crate) fn region(&self, site: SiteId) -> String {
        let name = self.places().regions.get(usize::from(site.region)).cloned();
        name.unwrap_or_else(|| site.region.to_string())
    }

    pub(crate) fn reply(&self) -> TopologyReply {
        let (sites, gone) = {
            let places = self.places();
            (places.sites.clone(), places.gone.clone())
        };
        let site = |(site, address): (&SiteId, &String)| TopologySite {
            site: Some((*site).into()),
            region: self.region(*site),
            lane: site.lane.into(),
            address: address.clone(),
            gone: gone.contains(site),
        };
        TopologyReply {
            cluster: self.cluster.clone(),
            site: Some(self.me.into()),
            regions: self.regions(),
            lanes: self.lanes.into(),
            sites: sites.iter().map(site).collect(),
        }
    }
}
