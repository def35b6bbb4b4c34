//! The configuration of a site, and the file that holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use serde::Deserialize;
use slackline_core::api::is_name;
use slackline_core::config::Warranties;
use slackline_core::id::SiteId;
use slackline_forecast::Frame;
use slackline_storage::Options;
use slackline_wire::lane_of;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::demand::{WATCHED, Watched};

/// The most regions of a cluster: a lane has at most 64 members.
const REGIONS: usize = 64;
/// The longest name of a cluster or a region, in bytes.
const NAME_BYTES: usize = 64;
/// The largest ε that makes sense, in microseconds.
const EPSILON: u64 = 10_000_000;

/// The configuration file of `slackline serve`: one site of a cluster. `site.example.toml` in this crate's folder explains
/// each key.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeConfig {
    /// The cluster's name; the same at all its sites.
    pub cluster: String,
    /// The names of the regions, the same list in the same order at all sites.
    pub regions: Vec<String>,
    /// This site's region.
    pub region: String,
    /// This site's lane.
    #[serde(default)]
    pub lane: u16,
    /// The directory of the site's data.
    pub data: PathBuf,
    /// The `host:port` to listen on for clients and other sites.
    pub listen: String,
    /// The `host:port` at which `/healthz` and `/metrics` are served. Without it, they are not served.
    pub http: Option<String>,
    /// Every site of the cluster, this one included.
    pub sites: Vec<SiteAddress>,
    /// The bound on this machine's clock error, in microseconds.
    pub epsilon_us: Option<u64>,
    /// The time that a stopping site may take to finish what runs, in seconds.
    #[serde(default = "ServeConfig::default_drain")]
    pub drain_seconds: u64,
    /// The quotas whose demand per minute the site keeps, and their models.
    #[serde(default)]
    pub demand: Vec<Watched>,
}

/// The address of one site.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteAddress {
    /// The name of its region.
    pub region: String,
    /// Its lane.
    #[serde(default)]
    pub lane: u16,
    /// The `host:port` at which others reach it.
    pub address: String,
}

/// A configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}; give the path of a TOML file", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file is no configuration, or a value in it makes no sense.
    #[error("{}{}: {problem}", .path.display(), .line.map_or(String::new(), |line| format!(" line {line}")))]
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1; none if something is missing.
        line: Option<usize>,
        /// The problem, in words; names the key.
        problem: String,
    },
    /// A value makes no sense, in a configuration that comes from no file.
    #[error("the configuration's `{key}` cannot be used: {problem}")]
    Value {
        /// The key, such as `lane` or `sites[2].address`.
        key: String,
        /// The problem with its value, in words.
        problem: String,
    },
}

impl ServeConfig {
    /// Reads a configuration file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads a configuration from text; `path` is for the errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let places = places(text);
        let wrong = |at: Option<usize>, problem| {
            let line = at.map(|at| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1);
            ConfigError::File { path: path.to_owned(), line, problem }
        };

        let config: Self = toml::from_str(text).map_err(|error| {
            let message = error.message().trim().replace('\n', "; ");
            let Some(Range { start, .. }) = error.span() else { return wrong(None, message) };
            match places.iter().rev().find(|(_, place)| place.contains(&start)) {
                Some((key, _)) => wrong(Some(start), format!("`{key}`: {message}")),
                None if message.starts_with("missing field") => wrong(None, message),
                None => wrong(Some(start), message),
            }
        })?;

        config.check().map_err(|error| match error {
            ConfigError::Value { key, problem } => {
                let place = places.iter().find(|(place, _)| *place == key);
                wrong(place.map(|(_, place)| place.start), format!("`{key}` cannot be used: {problem}"))
            }
            error => error,
        })?;

        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.site().map()?;
        check_address("listen", &self.listen)?;
        if let Some(http) = &self.http {
            check_address("http", http)?;
            if *http == self.listen && !http.ends_with(":0") {
                return Err(value(
                    "http",
                    format!("{http:?} is what the site listens on for gRPC: give HTTP another port"),
                ));
            }
        }

        if self.drain_seconds > LONGEST_DRAIN {
            return Err(value("drain_seconds", format!("it must be at most {LONGEST_DRAIN}")));
        }

        if self.data.as_os_str().is_empty() {
            return Err(value("data", "it is empty; name a directory for this site's data".to_owned()));
        }

        Ok(())
    }

    /// The site that the file describes.
    pub fn site(&self) -> SiteConfig {
        SiteConfig {
            cluster: self.cluster.clone(),
            regions: self.regions.clone(),
            region: self.region.clone(),
            lane: self.lane,
            sites: self.sites.clone(),
            storage: Storage::Directory(self.data.clone()),
            storage_options: Options::default(),
            new_storage: NewStorage::Waits,
            listen: Listen::On(self.listen.clone()),
            http: self.http.clone().map(Listen::On),
            epsilon: self.epsilon_us,
            redistribute: true,
            warranties: Warranties::default(),
            demand: self.demand.clone(),
            delays: BTreeMap::new(),
        }
    }

    /// The time that a stopping site may take to finish what runs.
    pub fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }

    fn default_drain() -> u64 {
        10
    }
}

/// The longest that a stopping site may be given, in seconds.
const LONGEST_DRAIN: u64 = 3600;

/// The configuration of one site.
#[derive(Debug)]
pub struct SiteConfig {
    /// The cluster's name; the same at all its sites.
    pub cluster: String,
    /// The names of the regions, the same list in the same order at all sites.
    pub regions: Vec<String>,
    /// This site's region.
    pub region: String,
    /// This site's lane.
    pub lane: u16,
    /// Every site of the cluster, this one included.
    pub sites: Vec<SiteAddress>,
    /// The place of its data.
    pub storage: Storage,
    /// The embedded engine's use of disk and memory.
    pub storage_options: Options,
    /// The rule for storage that is new although other sites know an earlier incarnation of this one.
    pub new_storage: NewStorage,
    /// The address to listen on for clients and other sites.
    pub listen: Listen,
    /// The address to serve `/healthz` and `/metrics` at, if they are to be served.
    pub http: Option<Listen>,
    /// The bound on its clock's error, in microseconds; without it, the operating system's estimate, else 10 ms.
    pub epsilon: Option<u64>,
    /// True if tokens move between sites. False only as a benchmark's baseline.
    pub redistribute: bool,
    /// The warranties that are issued and relied upon. Other than the default only as a benchmark's baseline.
    pub warranties: Warranties,
    /// The quotas whose demand per minute it keeps, and their models; at most 1,000.
    pub demand: Vec<Watched>,
    /// One-way delays put in before messages to other sites leave, to stand for the distance.
    pub delays: BTreeMap<SiteId, Duration>,
}

/// The place of a site's data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Storage {
    /// In a directory of its own.
    Directory(PathBuf),
    /// In memory, until it stops.
    Memory,
}

/// The rule for storage that is new although other sites know an earlier incarnation of this one: the earlier storage may be lost,
/// or its volume may not be mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NewStorage {
    /// It joins nothing until a person permits it.
    #[default]
    Waits,
    /// A person says that the earlier storage is lost: it joins as a new incarnation. Storage that is not new is refused, so that
    /// the permission is given once and does not stay in a script.
    Permitted,
    /// It always joins as a new incarnation. Only for clusters whose data are of no value.
    Joins,
}

/// A place to listen.
#[derive(Debug)]
pub enum Listen {
    /// At this `host:port`; port 0 is any free one.
    On(String),
    /// At a socket that is bound already.
    Bound(TcpListener),
}

impl SiteConfig {
    /// The map of the cluster, checked: this site, the number of lanes, and the address of each site.
    pub(crate) fn map(&self) -> Result<(SiteId, u16, BTreeMap<SiteId, String>), ConfigError> {
        check_name("cluster", &self.cluster)?;
        check_regions(&self.regions)?;
        if self.epsilon.is_some_and(|epsilon| !(1..=EPSILON).contains(&epsilon)) {
            return Err(value("epsilon_us", format!("it must be 1 to {EPSILON} microseconds")));
        }

        let mut sites = BTreeMap::new();
        for (position, site) in self.sites.iter().enumerate() {
            let key = |key: &str| format!("sites[{position}].{key}");
            let id = self.id(&key("region"), &site.region, site.lane)?;
            check_address(&key("address"), &site.address)?;
            if site.address.ends_with(":0") {
                let problem = format!("{:?} has port 0, at which no site can be reached", site.address);
                return Err(value(&key("address"), problem));
            }
            if sites.values().any(|address| *address == site.address) {
                return Err(value(&key("address"), format!("two sites have the address {}", site.address)));
            }
            if sites.insert(id, site.address.clone()).is_some() {
                return Err(value(&key("region"), format!("region {:?} has lane {} twice", site.region, site.lane)));
            }
        }

        // A quota's lane is a hash of its name over the number of lanes, at every site of the cluster. A lane without a site in some
        // region would leave quotas that this region cannot use.
        let lanes: BTreeSet<u16> = sites.keys().map(|site| site.lane).collect();
        let lanes = u16::try_from(lanes.len().max(1)).unwrap_or(u16::MAX);
        for region in &self.regions {
            for lane in 0..lanes {
                if !sites.contains_key(&self.id("sites", region, lane)?) {
                    let site = site_name(region, lane);
                    return Err(value("sites", format!("site {site} is missing: each region needs each lane from 0")));
                }
            }
        }

        self.check_demand(lanes)?;
        let me = self.id("region", &self.region, self.lane)?;
        if !sites.contains_key(&me) {
            return Err(value("lane", format!("no site in `sites` has lane {}", self.lane)));
        }
        Ok((me, lanes, sites))
    }

    fn check_demand(&self, lanes: u16) -> Result<(), ConfigError> {
        if self.demand.len() > WATCHED {
            return Err(value(
                "demand",
                format!("it names {} quotas, and at most {WATCHED} are kept", self.demand.len()),
            ));
        }
        let mut names = BTreeSet::new();
        for (position, Watched { quota, step_seconds, .. }) in self.demand.iter().enumerate() {
            let key = |key: &str| format!("demand[{position}].{key}");
            if !is_name(quota) {
                return Err(value(&key("quota"), format!("{quota:?} is no name of a quota")));
            }
            if !names.insert(quota) {
                return Err(value(&key("quota"), format!("{quota:?} stands there twice")));
            }
            // A site of another lane never hears of it, and would show that nothing was asked for.
            let lane = lane_of(quota, lanes);
            if lane != self.lane {
                return Err(value(
                    &key("quota"),
                    format!("{quota:?} is of lane {lane}, and this is a site of lane {}", self.lane),
                ));
            }
            Frame { step_s: *step_seconds, horizon: 1 }
                .check()
                .map_err(|problem| value(&key("step_seconds"), problem))?;
        }
        Ok(())
    }

    fn id(&self, key: &str, region: &str, lane: u16) -> Result<SiteId, ConfigError> {
        let position = self.regions.iter().position(|known| known == region);
        let position = position.ok_or_else(|| {
            value(key, format!("region {region:?} is not in `regions`, which are {}", self.regions.join(", ")))
        })?;
        Ok(SiteId::new(position as u16, lane))
    }
}

fn check_regions(regions: &[String]) -> Result<(), ConfigError> {
    if regions.is_empty() || regions.len() > REGIONS {
        return Err(value("regions", format!("there must be 1 to {REGIONS} of them")));
    }
    for (position, region) in regions.iter().enumerate() {
        check_name("regions", region)?;
        if regions[..position].contains(region) {
            return Err(value("regions", format!("{region:?} stands there twice")));
        }
    }
    Ok(())
}

fn check_name(key: &str, name: &str) -> Result<(), ConfigError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    if name.is_empty() || name.len() > NAME_BYTES || !name.chars().all(fits) {
        return Err(value(key, format!("{name:?} is not 1 to {NAME_BYTES} letters, digits, '-', '_' or '.'")));
    }
    Ok(())
}

/// The name of a site, for people.
pub(crate) fn site_name(region: &str, lane: u16) -> String {
    if lane == 0 { region.to_owned() } else { format!("{region}:{lane}") }
}

/// Checks the name of a region and the address of a site in it.
pub(crate) fn check_place(region: &str, address: &str) -> Result<(), ConfigError> {
    check_name("region", region)?;
    check_address("address", address)
}

fn check_address(key: &str, address: &str) -> Result<(), ConfigError> {
    // What connects to it takes it for a part of a URI. An address of IPv6 stands in brackets there.
    let is_host = |host: &str| !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/');
    let port = address.rsplit_once(':').filter(|(host, _)| is_host(host));
    let port = port.filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let is_port = port.is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if is_port && tonic::transport::Endpoint::from_shared(format!("http://{address}")).is_ok() {
        return Ok(());
    }
    Err(value(key, format!("{address:?} is not an address like \"eu.example.net:7400\" or \"[2001:db8::1]:7400\"")))
}

fn value(key: &str, problem: String) -> ConfigError {
    ConfigError::Value { key: key.to_owned(), problem }
}

/// The place of each value of a TOML file, by its key, such as `sites[2].address`; the outer ones first. Empty if the file cannot
/// be read.
fn places(text: &str) -> Vec<(String, Range<usize>)> {
    let mut places = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        gather_places("", table.get_ref(), &mut places);
    }
    places
}

fn gather_places(outer: &str, table: &DeTable, places: &mut Vec<(String, Range<usize>)>) {
    for (key, value) in table {
        gather_place(format!("{outer}{}", key.get_ref()), value, places);
    }
}

fn gather_place(key: String, value: &Spanned<DeValue>, places: &mut Vec<(String, Range<usize>)>) {
    places.push((key.clone(), value.span()));
    match value.get_ref() {
        DeValue::Table(table) => gather_places(&format!("{key}."), table, places),
        DeValue::Array(values) => {
            for (position, value) in values.iter().enumerate() {
                gather_place(format!("{key}[{position}]"), value, places);
            }
        }
        _ => {}
    }
}
