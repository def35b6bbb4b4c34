//! The cluster's map: regions, lanes, sites, and how ids are written with the names of regions.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use slackline_core::id::{GrantId, Incarnation, OperationId, ParseIdError, SessionId, SiteId, SiteSet};
use slackline_core::object::ObjectKey;

use crate::key::Key;

/// The lane in which objects live.
pub const OBJECTS_LANE: u16 = 0;

/// The cluster's map, as a site told it when the client connected.
///
/// Ids are written with the region's name, so that people can read them: a grant as `eu-1-17` (site, incarnation,
/// number), an operation as `eu-1-9-12` (site, incarnation, session, sequence). A site of a lane other than the first
/// is written `eu:2`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// The cluster's name.
    pub cluster: String,
    /// The regions' names.
    pub regions: Vec<String>,
    /// The number of lanes.
    pub lanes: u16,
    /// All sites, in ascending order.
    pub sites: Vec<Site>,
}

/// One region's process for one lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// Its id.
    pub id: SiteId,
    /// Its name: the region's, with the lane after a colon if that is not the first.
    pub name: String,
    /// Where clients reach it: `host:port`.
    pub address: String,
    /// True if it is a member no longer. It keeps its name and its number, and serves nobody.
    pub is_gone: bool,
}

impl Topology {
    /// A map; `None` if a site is of no region or lane of it, or there are no sites. Each site is given with its address.
    pub fn new(cluster: String, regions: Vec<String>, lanes: u16, sites: Vec<(SiteId, String)>) -> Option<Self> {
        let named = |(id, address): (SiteId, String)| {
            let region = regions.get(usize::from(id.region)).filter(|_| id.lane < lanes)?;
            Some(Site { id, name: site_name(region, id.lane), address, is_gone: false })
        };

        // Sets of sites count positions in this order, at the sites as here.
        let mut sites = sites.into_iter().map(named).collect::<Option<Vec<Site>>>()?;
        sites.sort_by_key(|site| site.id);
        (!sites.is_empty()).then_some(Self { cluster, regions, lanes, sites })
    }

    /// The same map, where these sites are members no longer.
    pub fn without(mut self, gone: &BTreeSet<SiteId>) -> Self {
        self.sites.iter_mut().for_each(|site| site.is_gone = gone.contains(&site.id));
        self
    }

    /// The regions in which objects are at home: all but those that are gone.
    pub fn homes(&self) -> Vec<u16> {
        (0..self.regions.len() as u16).filter(|region| self.is_home(*region)).collect()
    }

    /// True if objects are at home in this region: it is not gone.
    pub(crate) fn is_home(&self, region: u16) -> bool {
        let id = SiteId::new(region, OBJECTS_LANE);
        !self.sites.iter().any(|site| site.id == id && site.is_gone)
    }

    /// The region of this name.
    pub fn region(&self, name: &str) -> Option<u16> {
        u16::try_from(self.regions.iter().position(|region| region == name)?).ok()
    }

    /// The name of a site: `eu`, or `eu:2` in a lane other than the first.
    pub fn name(&self, site: SiteId) -> String {
        match self.regions.get(usize::from(site.region)) {
            Some(region) => site_name(region, site.lane),
            None => site.to_string(),
        }
    }

    /// An object's name, with the name of its region.
    pub fn key(&self, key: &ObjectKey) -> Key {
        let region = self.regions.get(usize::from(key.home)).cloned();
        Key::new(region.unwrap_or_else(|| key.home.to_string()), key.name.clone())
    }

    /// The sites of a lane, ascending: the positions of a [`SiteSet`] count these.
    pub fn members(&self, lane: u16) -> impl Iterator<Item = &Site> {
        self.sites.iter().filter(move |site| site.id.lane == lane)
    }

    /// The names of some sites of a lane.
    pub fn names(&self, set: SiteSet, lane: u16) -> Vec<String> {
        let members = self.members(lane).enumerate();
        members.filter(|(position, _)| set.contains(*position)).map(|(_, site)| site.name.clone()).collect()
    }

    /// A grant's id with the name of its site, such as `eu-1-17`.
    pub fn grant_text(&self, grant: GrantId) -> String {
        format!("{}-{}-{}", self.name(grant.site), grant.incarnation.0, grant.number)
    }

    /// An operation's id with the name of its site, such as `eu-1-9-12`.
    pub fn operation_text(&self, id: OperationId) -> String {
        format!("{}-{}-{}-{}", self.name(id.site), id.incarnation.0, id.session.0, id.sequence)
    }

    /// Reads what [`Topology::grant_text`] wrote.
    pub fn parse_grant(&self, text: &str) -> Result<GrantId, ParseNameError> {
        let [number, incarnation, site] = split_from_the_right(text)?;
        Ok(GrantId {
            site: self.parse_site(site)?,
            incarnation: Incarnation(number_in(incarnation)?),
            number: number_in(number)?,
        })
    }

    /// Reads what [`Topology::operation_text`] wrote.
    pub fn parse_operation(&self, text: &str) -> Result<OperationId, ParseNameError> {
        let [sequence, session, incarnation, site] = split_from_the_right(text)?;
        Ok(OperationId {
            site: self.parse_site(site)?,
            incarnation: Incarnation(number_in(incarnation)?),
            session: SessionId(number_in(session)?),
            sequence: number_in(sequence)?,
        })
    }

    /// Reads an incarnation of a site, such as `eu-1`.
    pub fn parse_incarnation(&self, text: &str) -> Result<(SiteId, Incarnation), ParseNameError> {
        let [incarnation, site] = split_from_the_right(text)?;
        Ok((self.parse_site(site)?, Incarnation(number_in(incarnation)?)))
    }

    /// Reads the name of a site, such as `eu` or `eu:2`.
    pub fn parse_site(&self, text: &str) -> Result<SiteId, ParseNameError> {
        // Logs write a site by its numbers, which is understood as well.
        let known = self.sites.iter().find(|site| site.name == text).map(|site| site.id);
        let written = |id: &SiteId| id.to_string() == text && self.sites.iter().any(|site| site.id == *id);
        let numbered = || SiteId::from_str(text).ok().filter(written);
        known.or_else(numbered).ok_or_else(|| ParseNameError::UnknownSite {
            site: text.to_owned(),
            known: self.sites.iter().map(|site| site.name.clone()).collect(),
        })
    }
}

fn site_name(region: &str, lane: u16) -> String {
    if lane == 0 { region.to_owned() } else { format!("{region}:{lane}") }
}

/// Regions may have a `-` in their names, numbers have not.
fn split_from_the_right<const N: usize>(text: &str) -> Result<[&str; N], ParseNameError> {
    let parts: Vec<&str> = text.rsplitn(N, '-').collect();
    parts.try_into().map_err(|_| ParseNameError::Malformed)
}

/// A number as it is written here: no sign, no zeros in front. Each id has one text only.
fn number_in<T: FromStr + ToString>(text: &str) -> Result<T, ParseNameError> {
    text.parse().ok().filter(|number: &T| number.to_string() == text).ok_or(ParseNameError::Malformed)
}

/// The text names no grant or operation of this cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ParseNameError {
    /// It does not have the form of such an id.
    Malformed,
    /// It names a site that the cluster does not have.
    UnknownSite {
        /// The site.
        site: String,
        /// The sites that there are.
        known: Vec<String>,
    },
}

impl fmt::Display for ParseNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseNameError::Malformed => ParseIdError.fmt(f),
            ParseNameError::UnknownSite { site, known } => {
                write!(f, "no site is named \"{site}\"; there are {}", known.join(", "))
            }
        }
    }
}

impl std::error::Error for ParseNameError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(lanes: u16) -> Topology {
        let regions = ["us", "ap-east"].map(String::from).to_vec();
        let mut sites = Vec::new();
        for (region, name) in (0..).zip(&regions) {
            for lane in 0..lanes {
                let id = SiteId::new(region, lane);
                sites.push(Site { id, name: site_name(name, lane), address: String::new(), is_gone: false });
            }
        }
        Topology { cluster: "test".into(), regions, lanes, sites }
    }

    #[test]
    fn ids_survive_the_way_through_text_with_names() {
        let topology = topology(2);
        let grant = GrantId { site: SiteId::new(1, 1), incarnation: Incarnation(3), number: 77 };
        assert_eq!(topology.grant_text(grant), "ap-east:1-3-77");
        assert_eq!(topology.parse_grant("ap-east:1-3-77"), Ok(grant));
        assert_eq!(topology.parse_grant("1:1-3-77"), Ok(grant));
        let operation =
            OperationId { site: SiteId::new(0, 0), incarnation: Incarnation(1), session: SessionId(9), sequence: 12 };
        assert_eq!(topology.operation_text(operation), "us-1-9-12");
        assert_eq!(topology.parse_operation("us-1-9-12"), Ok(operation));
        assert_eq!(topology.parse_incarnation("ap-east:1-3"), Ok((SiteId::new(1, 1), Incarnation(3))));
        assert_eq!(topology.parse_incarnation("us"), Err(ParseNameError::Malformed));
    }

    #[test]
    fn texts_that_name_nothing_are_refused() {
        let topology = topology(1);
        for bad in ["", "us", "us-1", "us-1-x", "us-x-1", "us--1", "us-1-99999999999999999999", "us-+1-1", "us-1-01"] {
            assert_eq!(topology.parse_grant(bad), Err(ParseNameError::Malformed), "{bad}");
            assert_eq!(topology.parse_operation(&format!("{bad}-1")), Err(ParseNameError::Malformed), "{bad}");
        }
        assert!(matches!(topology.parse_grant("+1-1-1"), Err(ParseNameError::UnknownSite { .. })));
        let unknown = topology.parse_grant("mars-1-1").expect_err("no such site");
        assert_eq!(unknown.to_string(), "no site is named \"mars\"; there are us, ap-east");
    }

    #[test]
    fn sets_of_sites_count_the_members_of_their_lane() {
        let topology = topology(2);
        assert_eq!(topology.names(SiteSet(0b10), 1), ["ap-east:1"]);
        assert_eq!(topology.names(SiteSet(0b11), 0), ["us", "ap-east"]);
    }
}
