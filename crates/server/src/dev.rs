//! A whole cluster in one process: real gRPC over loopback, real storage, each site on threads of its own, and the
//! distances between regions put in by the links.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use slackline_core::clock::MILLISECOND;
use slackline_core::config::Warranties;
use slackline_core::id::SiteId;
use slackline_storage::Options;
use slackline_wire::rtt::RttTable;
use tracing::info;

use crate::config::site_name;
use crate::config::{Listen, NewStorage, SiteAddress, SiteConfig, Storage};
use crate::site::{RunError, Site, SiteHandle, StartError};

/// ε of a cluster in one process, where all sites read the same clock, in microseconds.
pub const DEV_EPSILON: u64 = MILLISECOND;
/// The first port that is tried.
pub const FIRST_PORT: u16 = 7400;
/// The distance of a site's port for HTTP from its port for gRPC, unless there are more sites.
const HTTP_ABOVE: u16 = 100;
/// The file in the data directory that remembers the ports.
const PORTS_FILE: &str = "ports";

/// The configuration of a cluster in one process.
#[derive(Clone, Debug)]
pub struct DevConfig {
    /// The names of its regions; each must be in the table.
    pub regions: Vec<String>,
    /// The number of lanes of each region.
    pub lanes: u16,
    /// The directory of the data, with one directory for each site below it; `None` for data in memory.
    pub data: Option<PathBuf>,
    /// The round trips between regions; `None` to put no delay in.
    pub rtt: Option<RttTable>,
    /// The bound on clock errors, in microseconds.
    pub epsilon: u64,
    /// The ports that the sites listen at.
    pub ports: Ports,
    /// True if tokens move between sites. False only as a benchmark's baseline.
    pub redistribute: bool,
    /// The warranties that are issued and relied upon. Other than the default only as a benchmark's baseline.
    pub warranties: Warranties,
}

/// The ports of a cluster in one process, on loopback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ports {
    /// Those that the data directory remembers, else from [`FIRST_PORT`] on; free ones in place of those that are taken.
    Sought,
    /// Those that the data directory remembers, else free ones.
    Free,
    /// From this one on, and no others; HTTP a hundred higher.
    From(u16),
}

impl Default for DevConfig {
    /// Three AWS regions, one lane, data under `./slackline-data`.
    fn default() -> Self {
        let rtt = RttTable::aws();
        Self {
            regions: rtt.regions()[..3].to_vec(),
            lanes: 1,
            data: Some(PathBuf::from("slackline-data")),
            rtt: Some(rtt),
            epsilon: DEV_EPSILON,
            ports: Ports::Sought,
            redistribute: true,
            warranties: Warranties::default(),
        }
    }
}

/// A cluster could not be started. Nothing runs.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// A site could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A round trip is not known.
    #[error("the RTT table ({source}) has no time from {from:?} to {to:?}; add a line, or choose among its regions: {known}", source = .table)]
    Distance {
        /// The origin of the table.
        table: String,
        /// One region.
        from: String,
        /// The other one.
        to: String,
        /// The regions that the table has.
        known: String,
    },
    /// No port is free.
    #[error("cannot listen on any port of 127.0.0.1: {0}")]
    Port(io::Error),
    /// The ports would go beyond the highest one.
    #[error(
        "--port {first}: {sites} sites need the ports up to {last}, and there are none above 65535; take a lower one"
    )]
    NoSuchPorts {
        /// The first port.
        first: u16,
        /// The number of sites.
        sites: usize,
        /// The last port that would be needed.
        last: usize,
    },
    /// A port that was asked for is taken.
    #[error("cannot listen on 127.0.0.1:{port}: {source}; end what uses it, or take other ports with --port")]
    Taken {
        /// The port.
        port: u16,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The cluster in the data directory listens elsewhere.
    #[error(
        "--port {wanted}: the cluster in {} listens from port {remembered} on; leave --port out, or delete {} to choose others",
        .data.display(), .data.join(PORTS_FILE).display()
    )]
    OtherPorts {
        /// The data directory.
        data: PathBuf,
        /// The first port that it remembers.
        remembered: u16,
        /// The port that was asked for.
        wanted: u16,
    },
    /// The data directory holds a cluster of other sites.
    #[error(
        "{} holds a cluster of the sites {found}, not {wanted}: start it with those, or use another data directory",
        .data.display()
    )]
    OtherSites {
        /// The data directory.
        data: PathBuf,
        /// The sites that it holds.
        found: String,
        /// The sites that were asked for.
        wanted: String,
    },
    /// The data directory cannot be written.
    #[error("cannot write {}: {source}; choose another data directory", .path.display())]
    Data {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// A running cluster. Dropping it drains it.
#[derive(Debug)]
pub struct Dev {
    sites: Vec<SiteHandle>,
}

impl Dev {
    /// Starts every site. Returns when all can be reached.
    pub fn start(config: DevConfig) -> Result<Self, DevError> {
        let delays = delays(&config)?;
        if let Some(data) = &config.data {
            fs::create_dir_all(data).map_err(|source| DevError::Data { path: data.clone(), source })?;
        }

        // All sockets before the first site: each site's configuration names the addresses of all.
        let names: Vec<String> = ids(&config).map(|(_, region, lane)| site_name(region, lane)).collect();
        let (sockets, ports) = open_sockets(&config, &names)?;
        let mut addresses = Vec::new();
        for ((_, region, lane), (grpc, _)) in ids(&config).zip(&sockets) {
            let address = grpc.local_addr().map_err(DevError::Port)?.to_string();
            addresses.push(SiteAddress { region: region.to_owned(), lane, address });
        }

        let mut sites = Vec::new();
        for (((id, region, lane), name), (grpc, http)) in ids(&config).zip(&names).zip(sockets) {
            let from_here = delays.iter().filter(|((from, _), _)| *from == id);
            let site = SiteConfig {
                cluster: "dev".to_owned(),
                regions: config.regions.clone(),
                region: region.to_owned(),
                lane,
                sites: addresses.clone(),
                storage: match &config.data {
                    Some(data) => Storage::Directory(data.join(name.replace(':', "-"))),
                    None => Storage::Memory,
                },
                storage_options: Options::default(),
                // The cluster is on one machine, to try things out: a site's directory that is gone was deleted on purpose.
                new_storage: NewStorage::Joins,
                listen: Listen::Bound(grpc),
                http: Some(Listen::Bound(http)),
                epsilon: Some(config.epsilon),
                redistribute: config.redistribute,
                warranties: config.warranties,
                demand: Vec::new(),
                delays: from_here.map(|((_, to), delay)| (*to, *delay)).collect(),
            };
            sites.push(Site::start(site)?);
        }

        // Each site holds its directory's lock by now. A second cluster on the same data fails before, and must not change the
        // ports that the first one has written.
        if let Some(path) = config.data.map(|data| data.join(PORTS_FILE)) {
            fs::write(&path, ports).map_err(|source| DevError::Data { path, source })?;
        }
        info!(sites = sites.len(), "the cluster runs");
        Ok(Self { sites })
    }

    /// The sites, in ascending order of (region, lane).
    pub fn sites(&self) -> &[SiteHandle] {
        &self.sites
    }

    /// Waits until every site serves, for at most `timeout`. Returns true if all do.
    pub fn wait_ready(&self, timeout: Duration) -> bool {
        let give_up = Instant::now() + timeout;
        self.sites.iter().all(|site| site.wait_ready(give_up.saturating_duration_since(Instant::now())))
    }

    /// Takes one site out of the cluster, to stop it alone.
    pub fn take(&mut self, position: usize) -> SiteHandle {
        self.sites.remove(position)
    }

    /// Drains every site, for at most `timeout`.
    pub fn drain(self, timeout: Duration) -> Result<(), RunError> {
        // All together, so that each has the whole time.
        for site in &self.sites {
            site.start_drain(timeout);
        }
        thread::scope(|scope| {
            let joins: Vec<_> = self.sites.into_iter().map(|site| scope.spawn(move || site.drain(timeout))).collect();
            joins.into_iter().flat_map(|join| join.join()).collect()
        })
    }
}

/// Every site, in ascending order, with its region's name and its lane.
fn ids(config: &DevConfig) -> impl Iterator<Item = (SiteId, &str, u16)> {
    config.regions.iter().enumerate().flat_map(|(position, region)| {
        (0..config.lanes.max(1)).map(move |lane| (SiteId::new(position as u16, lane), region.as_str(), lane))
    })
}

/// One-way delays from each site to each other.
fn delays(config: &DevConfig) -> Result<BTreeMap<(SiteId, SiteId), Duration>, DevError> {
    let mut delays = BTreeMap::new();
    let Some(table) = &config.rtt else { return Ok(delays) };
    for (from, from_region, _) in ids(config) {
        for (to, to_region, _) in ids(config).filter(|(to, ..)| *to != from) {
            let rtt = table.rtt(from_region, to_region).ok_or_else(|| DevError::Distance {
                table: table.source().to_owned(),
                from: from_region.to_owned(),
                to: to_region.to_owned(),
                known: table.regions().join(", "),
            })?;
            delays.insert((from, to), rtt / 2);
        }
    }

    Ok(delays)
}

/// A site's sockets, for gRPC and for HTTP.
type Sockets = (TcpListener, TcpListener);

/// The sockets of each site, for gRPC and HTTP: at the ports that the data directory remembers, else from the first port
/// on, else at any. With them comes the text of the file by which the data directory remembers them.
fn open_sockets(config: &DevConfig, names: &[String]) -> Result<(Vec<Sockets>, String), DevError> {
    let remembered = config.data.as_ref().map(|data| read_ports(&data.join(PORTS_FILE))).unwrap_or_default();
    if !remembered.is_empty() && !remembered.iter().map(|(name, _)| name).eq(names) {
        // Members change by agreement alone: with fewer of them tokens would be missing, and with others majorities would be counted
        // among the wrong sites.
        let found = remembered.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
        let data = config.data.clone().unwrap_or_default();
        return Err(DevError::OtherSites { data, found, wanted: names.join(", ") });
    }

    let mut sockets = Vec::new();
    let mut text = String::from("# The ports of each site: name, gRPC, HTTP. Delete this file to choose others.\n");
    // The ports of one kind lie beside each other.
    let http_above = HTTP_ABOVE.max(names.len() as u16);
    let first = match config.ports {
        Ports::Sought => FIRST_PORT,
        Ports::Free => 0,
        Ports::From(first) => {
            let last = usize::from(first) + usize::from(http_above) + names.len() - 1;
            if last > usize::from(u16::MAX) {
                return Err(DevError::NoSuchPorts { first, sites: names.len(), last });
            }
            if let Some((_, (remembered, _))) = remembered.first().filter(|(_, ports)| ports.0 != first) {
                let data = config.data.clone().unwrap_or_default();
                return Err(DevError::OtherPorts { data, remembered: *remembered, wanted: first });
            }
            first
        }
    };

    for (position, name) in names.iter().enumerate() {
        let port = |above: u16| if first == 0 { 0 } else { first + above + position as u16 };
        let (grpc, http) = remembered.get(position).map_or((port(0), port(http_above)), |(_, ports)| *ports);
        let pair = (open_socket(grpc, config.ports)?, open_socket(http, config.ports)?);
        let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port()).map_err(DevError::Port);
        let _ = writeln!(text, "{name} {} {}", port(&pair.0)?, port(&pair.1)?);
        sockets.push(pair);
    }
    Ok((sockets, text))
}

fn open_socket(port: u16, ports: Ports) -> Result<TcpListener, DevError> {
    match (TcpListener::bind(("127.0.0.1", port)), ports) {
        (Ok(listener), _) => Ok(listener),
        (Err(source), Ports::From(_)) => Err(DevError::Taken { port, source }),
        (Err(_), _) => TcpListener::bind(("127.0.0.1", 0)).map_err(DevError::Port),
    }
}

/// The ports in the file, by site. Lines that make no sense are skipped.
fn read_ports(path: &Path) -> Vec<(String, (u16, u16))> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        Some((name, (words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(entry).collect()
}
