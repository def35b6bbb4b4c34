//! The client: which sites there are, which is nearest, and what calls stand on.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::id::SiteId;
use slackline_session::call::Place;
use slackline_session::link::Link;
use slackline_session::outcome::{ConnectError, ReadError, Reason};
use slackline_session::port::{Pending, Port};
use slackline_session::time::Time;
use slackline_session::topology::{Site, Topology};
use slackline_session::txn::Memos;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::connection::{self, Clock, Connection};
use crate::discovery::{by_nearness, explain, learn_topology, measure};
use crate::options::{Options, Patience};

/// The least error of a site's clock that is reckoned with, whatever the sites say.
const EPSILON: Duration = Duration::from_millis(10);
/// A client leaves no session where a site has more than so many: a tenth of what it keeps.
const CROWDED: u64 = slackline_core::session::SESSIONS as u64 / 10;

/// A connection to a cluster. Cheap to clone; clones share the connections.
///
/// A client belongs to the tokio runtime in which it was connected.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use slackline::Client;
///
/// let client = Client::connect(["127.0.0.1:7400", "127.0.0.1:7401"]).await?;
/// let gpus = client.quota("gpus");
/// gpus.create(5000).await.done()?;
/// let grant = gpus.acquire(3).await.done()?;
/// grant.release().await.done()?;
/// client.close().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

/// What all clones of a client have in common. Nothing of it changes after it is connected, but what the connections keep.
pub(crate) struct Shared {
    /// The map as a site told it when the client was connected.
    pub(crate) topology: Topology,
    /// For each lane the links to its sites, nearest first: what calls know of them.
    lanes: Vec<Vec<Arc<Link>>>,
    /// For each lane what keeps the streams, in the same order.
    pub(crate) connections: Vec<Vec<Arc<Connection>>>,
    pub(crate) clock: Clock,
    /// The longest time that a call may take that does not say otherwise.
    deadline: Duration,
    /// When all that the client does ends; none if it goes on.
    until: Option<Time>,
    pub(crate) patience: Patience,
    /// The bound on the error of the sites' clocks: the largest that a site told when the client was connected, and at least
    /// [`EPSILON`].
    pub(crate) epsilon: Duration,
    /// True if some site had too many sessions for any to be left there; see [`Client::leave`].
    pub(crate) is_crowded: bool,
    /// The memoized functions that it knows.
    pub(crate) memos: Arc<Memos>,
}

impl Client {
    /// Connects to the cluster that has sites at these addresses (`host:port`). One would do, several make it likelier
    /// that one answers; the others are learned from it. Calls go to the nearest site by measured round trip.
    ///
    /// # Errors
    ///
    /// No site answers within 5 s, or an address cannot be read.
    pub async fn connect<A: AsRef<str>>(addresses: impl IntoIterator<Item = A>) -> Result<Self, ConnectError> {
        Self::connect_with(addresses, Options::default()).await
    }

    /// As [`Client::connect`], with options.
    pub async fn connect_with<A: AsRef<str>>(
        addresses: impl IntoIterator<Item = A>,
        options: Options,
    ) -> Result<Self, ConnectError> {
        let addresses: Vec<String> = addresses.into_iter().map(|address| address.as_ref().trim().to_owned()).collect();
        let (now, clock) = (Instant::now(), Clock::start());
        let in_all = options.until.map(|until| until.saturating_duration_since(now));
        let (until, connect) =
            (in_all.map(|left| clock.now() + left), in_all.unwrap_or(Duration::MAX).min(options.connect));
        let topology = learn_topology(&addresses, connect).await?;
        let preferred = match &options.region {
            None => None,
            Some(region) => Some(topology.region(region).ok_or_else(|| ConnectError::UnknownRegion {
                region: region.clone(),
                known: topology.regions.clone(),
            })?),
        };

        let mut channels = Vec::with_capacity(topology.sites.len());
        for site in &topology.sites {
            let channel = connection::channel(&site.address);
            channels.push((site, channel.ok_or_else(|| ConnectError::InvalidAddress(site.address.clone()))?));
        }

        // One site of each region tells how near the region is; those of other lanes are beside it.
        let probes = channels.iter().filter(|(site, _)| site.id.lane == channels[0].0.id.lane && !site.is_gone);
        let probes = probes.map(|(site, channel)| (site.id.region, channel.clone())).collect();
        let measured = measure(probes, connect.saturating_sub(now.elapsed())).await;
        let epsilon = measured.iter().map(|probe| probe.epsilon).max().unwrap_or_default().max(EPSILON);
        let is_crowded = measured.iter().any(|probe| probe.sessions > CROWDED);

        // The preferred region comes first, the others as they are near: calls fail over to these.
        let mut regions = by_nearness(&measured, &topology, &addresses);
        if let Some(preferred) = preferred {
            regions.retain(|region| *region != preferred);
            regions.insert(0, preferred);
        }

        let connections: Vec<Vec<Arc<Connection>>> =
            (0..topology.lanes).map(|lane| connections_of(lane, &channels, &regions, clock)).collect();
        let links = |lane: &Vec<Arc<Connection>>| lane.iter().map(|to| Arc::clone(&to.link)).collect();
        let lanes = connections.iter().map(links).collect();
        let Options { deadline, patience, .. } = options;
        let memos = Arc::default();
        let shared =
            Shared { topology, lanes, connections, clock, deadline, until, patience, epsilon, is_crowded, memos };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The cluster's map.
    pub fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    /// The region that calls go to while it can be reached.
    pub fn nearest(&self) -> &str {
        let nearest = self.shared.lanes.iter().flatten().next();
        nearest.map_or("", |link| &self.shared.topology.regions[usize::from(link.site.region)])
    }

    /// The place that a region's name stands for.
    pub(crate) fn place(&self, region: &str) -> Place {
        Place::of_region(region, &self.shared.topology)
    }

    /// Why nothing can be done at a place that the cluster does not have.
    pub(crate) fn no_such_place(&self, place: &Place) -> Option<Reason> {
        let topology = &self.shared.topology;
        let region = match place {
            Place::Nowhere(region) => region.clone(),
            Place::Site(site) if self.connection(*site).is_none() => topology.name(*site),
            _ => return None,
        };
        Some(Reason::UnknownRegion { region, known: topology.regions.clone() })
    }

    pub(crate) fn connection(&self, site: SiteId) -> Option<&Arc<Connection>> {
        self.connections(site.lane).iter().find(|to| to.link.site == site)
    }

    /// The connections to the sites of a lane, nearest first.
    pub(crate) fn connections(&self, lane: u16) -> &[Arc<Connection>] {
        self.shared.connections.get(usize::from(lane)).map(Vec::as_slice).unwrap_or_default()
    }

    /// What calls and transactions of this client stand on.
    #[doc(hidden)]
    pub fn port(&self) -> Arc<dyn Port> {
        self.shared.clone()
    }

    /// Asks the sites of a lane, nearest first, until one gives an answer that will do (`does`). Returns that answer and the site's
    /// name; where none will do, the last that came.
    pub(crate) async fn read<T, F: Future<Output = Result<tonic::Response<T>, tonic::Status>>>(
        &self,
        lane: u16,
        place: &Place,
        deadline: Duration,
        ask: impl Fn(Channel) -> F,
        does: impl Fn(&T) -> bool,
    ) -> Result<(T, String), ReadError> {
        let ask = |channel, _| ask(channel);
        let (answer, asked) = self.seek(lane, place, deadline, ask, does).await;
        answer.ok_or(ReadError::Unreachable { asked })
    }

    /// The same; `ask` is told the time that the site has. Also tells the sites that gave no answer, and why.
    pub(crate) async fn seek<T, F: Future<Output = Result<tonic::Response<T>, tonic::Status>>>(
        &self,
        lane: u16,
        place: &Place,
        deadline: Duration,
        ask: impl Fn(Channel, Duration) -> F,
        does: impl Fn(&T) -> bool,
    ) -> (Option<(T, String)>, Vec<(String, String)>) {
        // A site that is known to be down may be back: it is asked, but last.
        let until = self.shared.now() + deadline;
        let mut links: Vec<_> = self.connections(lane).iter().filter(|to| place.admits(to.link.site)).collect();
        links.sort_by_key(|to| !to.link.is_usable());
        let (mut asked, mut answer) = (Vec::new(), None);
        for (index, Connection { link, channel, .. }) in links.iter().map(|to| &***to).enumerate() {
            let left = until.saturating_duration_since(self.shared.now());

            // Half of the time for this one, as long as there are others.
            let turn = if index + 1 < links.len() { left / 2 } else { left };
            let why = match timeout(turn, ask(channel.clone(), turn)).await {
                Ok(Ok(reply)) => {
                    let reply = reply.into_inner();
                    if does(&reply) {
                        return (Some((reply, link.name.clone())), asked);
                    }
                    answer = Some((reply, link.name.clone()));
                    continue;
                }
                Ok(Err(status)) => explain(&status),
                Err(_) => format!("nothing came within {turn:.1?}"),
            };
            asked.push((link.name.clone(), why));
        }
        (answer, asked)
    }
}

impl Shared {
    /// The longest time that a call may take that begins now and does not say otherwise.
    pub(crate) fn deadline(&self) -> Duration {
        self.until.map_or(self.deadline, |until| self.deadline.min(until.saturating_duration_since(self.now())))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("cluster", &self.shared.topology.cluster).finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.connections.iter().flatten().for_each(|to| to.shut());
    }
}

impl Port for Shared {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn links(&self, lane: u16) -> &[Arc<Link>] {
        self.lanes.get(usize::from(lane)).map(Vec::as_slice).unwrap_or_default()
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn sleep_until(&self, at: Time) -> Pending<()> {
        Box::pin(tokio::time::sleep_until(self.clock.instant(at).into()))
    }

    fn random(&self) -> u64 {
        connection::random()
    }

    fn spawn(&self, work: Pending<()>) {
        drop(tokio::spawn(work));
    }
}

pub(crate) fn senseless(site: &str, error: slackline_wire::Invalid) -> ReadError {
    ReadError::Unreachable { asked: vec![(site.to_owned(), error.to_string())] }
}

fn connections_of(lane: u16, channels: &[(&Site, Channel)], regions: &[u16], clock: Clock) -> Vec<Arc<Connection>> {
    let members = || channels.iter().filter(|(site, _)| site.id.lane == lane);
    let mut connections: Vec<_> = members()
        .map(|(site, channel)| {
            let others = members().filter(|(other, _)| other.id != site.id);
            let relays = others.map(|(_, channel)| channel.clone()).collect();
            Connection::new(site.id, site.name.clone(), channel.clone(), relays, clock)
        })
        .collect();
    connections.sort_by_key(|to| regions.iter().position(|region| *region == to.link.site.region));
    connections
}
