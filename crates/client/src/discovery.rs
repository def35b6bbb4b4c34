//! Finding the cluster: its map, and how far away each region is.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use slackline_core::api::{self, Readiness};
use slackline_core::id::SiteId;
use slackline_session::outcome::ConnectError;
use slackline_session::topology::Topology;
use slackline_wire::v1;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::connection;

/// Sites whose round trips differ from the nearest one's by no more than this count as equally near.
const NEARLY: Duration = Duration::from_millis(1);
/// The least time that is given to the other sites to answer once the first has.
const STRAGGLERS: Duration = Duration::from_millis(50);
/// A patience that a clock cannot tell the end of ends then.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// A gRPC status in a few words.
pub(crate) fn explain(status: &tonic::Status) -> String {
    let mut deepest: &dyn std::error::Error = status;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    if std::ptr::eq(deepest, std::ptr::from_ref(status) as *const dyn std::error::Error) {
        status.message().to_owned()
    } else {
        deepest.to_string()
    }
}

/// What a site says of itself that may not be a member of any cluster yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Introduced {
    /// The site, by the map of its own configuration.
    pub site: SiteId,
    /// That map.
    pub topology: Topology,
    /// Whether it serves, and why not.
    pub readiness: Readiness,
}

/// Asks the site at an address (`host:port`) who it is.
///
/// # Errors
///
/// Why it does not say, in words.
pub async fn introduce(address: &str, patience: Duration) -> Result<Introduced, String> {
    let channel = connection::channel(address).ok_or_else(|| format!("{address:?} is no address like host:port"))?;
    let asked = async {
        let mut stub = connection::stub(channel);
        let map = stub.topology(v1::TopologyRequest {}).await?.into_inner();
        Ok((map, stub.status(v1::StatusRequest {}).await?.into_inner()))
    };
    let replies = timeout(patience, asked).await.map_err(|_| format!("no answer within {patience:.1?}"))?;
    let (map, state) = replies.map_err(|status: tonic::Status| explain(&status))?;
    let site = map.site.and_then(|site| SiteId::try_from(site).ok());
    let readiness = api::Status::try_from(state).ok().map(|state| state.readiness);
    let introduced = site.zip(readiness).and_then(|(site, readiness)| {
        let topology = read(map)?;
        Some(Introduced { site, topology, readiness })
    });
    introduced.ok_or_else(|| "what it says of the cluster and of itself makes no sense".to_owned())
}

/// The first map that any of the addresses gives.
pub(crate) async fn learn_topology(addresses: &[String], patience: Duration) -> Result<Topology, ConnectError> {
    if addresses.iter().all(String::is_empty) {
        return Err(ConnectError::NoAddress);
    }
    let mut asked = JoinSet::new();
    for address in addresses {
        let invalid = || ConnectError::InvalidAddress(address.clone());
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() {
            return Err(invalid());
        }
        let channel = connection::channel(address).ok_or_else(invalid)?;
        asked.spawn(async move {
            let reply = connection::stub(channel).topology(v1::TopologyRequest {}).await;
            let reply = reply.map_err(|status| explain(&status))?.into_inner();
            read(reply).ok_or_else(|| "its map of the cluster makes no sense".to_owned())
        });
    }

    // All sites of a cluster have the same map, so the first answer will do.
    let mut why = format!("no answer within {patience:.1?}");
    let first = timeout(patience, async {
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(topology)) => return Some(topology),
                Ok(Err(error)) => why = error,
                Err(_) => {}
            }
        }
        None
    });
    match first.await {
        Ok(Some(topology)) => Ok(topology),
        _ => Err(ConnectError::Unreachable { addresses: addresses.join(", "), why }),
    }
}

/// What was learned of a region by asking one of its sites.
pub(crate) struct Probe {
    /// The region, by its number.
    pub(crate) region: u16,
    /// The shortest time of an answer.
    pub(crate) round_trip: Duration,
    /// The bound on clocks that the site goes by.
    pub(crate) epsilon: Duration,
    /// The number of sessions that are open there.
    pub(crate) sessions: u64,
}

/// The round trip to each region that answers; those that take much longer than the first to answer are left out.
pub(crate) async fn measure(probes: Vec<(u16, Channel)>, patience: Duration) -> Vec<Probe> {
    let mut asked = JoinSet::new();
    for (region, channel) in probes {
        asked.spawn(async move {
            let mut stub = connection::stub(channel);
            // The first call connects, the others are measured.
            let state = stub.status(v1::StatusRequest {}).await.ok()?;
            let epsilon = Duration::from_micros(state.get_ref().epsilon_us);
            let sessions = state.get_ref().sessions;
            let mut round_trip = Duration::MAX;
            for _ in 0..2 {
                let since = Instant::now();
                stub.topology(v1::TopologyRequest {}).await.ok()?;
                round_trip = round_trip.min(since.elapsed());
            }
            Some(Probe { region, round_trip, epsilon, sessions })
        });
    }

    // Once the nearest has answered, the others get as long again: one that is down does not hold the client up.
    let since = Instant::now();
    let mut until = since.checked_add(patience).unwrap_or(since + FOREVER);
    let mut measured = Vec::new();
    while let Ok(Some(answer)) = tokio::time::timeout_at(until.into(), asked.join_next()).await {
        let Ok(Some(answer)) = answer else { continue };
        if measured.is_empty() {
            until = until.min(Instant::now() + since.elapsed().max(STRAGGLERS));
        }
        measured.push(answer);
    }
    measured
}

/// Regions from near to far. Those about as near as the nearest come in the order in which their addresses were given.
pub(crate) fn by_nearness(measured: &[Probe], topology: &Topology, addresses: &[String]) -> Vec<u16> {
    let nearest = measured.iter().map(|probe| probe.round_trip).min().unwrap_or_default();
    let given = |region: u16| {
        let mut sites = topology.sites.iter().filter(|site| site.id.region == region);
        let position = sites.find_map(|site| addresses.iter().position(|address| *address == site.address));
        position.unwrap_or(usize::MAX)
    };

    // Differences that small are noise, and would have clients of one place choose different sites.
    let distance = |region: u16| {
        let probe = measured.iter().find(|probe| probe.region == region);
        let round_trip = probe.map_or(Duration::MAX, |probe| probe.round_trip);
        if round_trip <= nearest + NEARLY { Duration::ZERO } else { round_trip }
    };
    let mut regions: Vec<u16> = (0..topology.regions.len()).filter_map(|region| u16::try_from(region).ok()).collect();
    regions.sort_by_key(|region| (distance(*region), given(*region), *region));
    regions
}

/// The map as it came over the wire; `None` if it makes no sense.
fn read(reply: v1::TopologyReply) -> Option<Topology> {
    let lanes = u16::try_from(reply.lanes).ok().filter(|lanes| *lanes > 0)?;
    let mut gone = BTreeSet::new();
    let site = |site: v1::TopologySite| {
        let id = SiteId::try_from(site.site?).ok()?;
        gone.extend(site.gone.then_some(id));
        Some((id, site.address))
    };
    let sites = reply.sites.into_iter().map(site).collect::<Option<Vec<_>>>()?;
    Some(Topology::new(reply.cluster, reply.regions, lanes, sites)?.without(&gone))
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_session::topology::Site;

    #[test]
    fn nearly_equal_regions_keep_the_order_of_their_addresses() {
        let regions = ["us", "eu", "ap", "sa"].map(String::from).to_vec();
        let sites = (0..4u16)
            .map(|region| Site {
                id: SiteId::new(region, 0),
                name: regions[usize::from(region)].clone(),
                address: format!("host:{region}"),
                is_gone: false,
            })
            .collect();
        let topology = Topology { cluster: String::new(), regions, lanes: 1, sites };
        let addresses = ["host:2".to_owned(), "host:1".to_owned()];
        let probe = |(region, micros)| Probe {
            region,
            round_trip: Duration::from_micros(micros),
            epsilon: Duration::ZERO,
            sessions: 0,
        };
        let measured: Vec<Probe> = [(0, 90_000), (1, 300), (2, 900)].map(probe).into_iter().collect();
        // 2 and 1 are equally near, 3 did not answer.
        assert_eq!(by_nearness(&measured, &topology, &addresses), [2, 1, 0, 3]);
    }
}
