//! Real sites of several regions in this process: real storage, gRPC over loopback, and the distances put in by the links.

use std::path::{Path, PathBuf};
use std::time::Duration;

use slackline::{Client, Options};
use slackline_core::config::Warranties;
use slackline_server::{Dev, DevConfig, Ports, RttTable};

use crate::EPSILON;
use crate::live::{LiveError, Scratch, metric};

/// The time that sites may take to become ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time that they may take to answer what is under way when they are stopped.
const DRAIN: Duration = Duration::from_secs(10);

/// The terms on which sites run.
pub(crate) struct Terms {
    /// The region of each site.
    pub(crate) regions: Vec<String>,
    /// The round trips between them.
    pub(crate) rtt: RttTable,
    /// True if tokens of quotas move between sites.
    pub(crate) redistribute: bool,
    /// Which warranties are issued.
    pub(crate) warranties: Warranties,
}

/// A site for each of several regions. Dropped, the sites stop, and their data are removed.
pub(crate) struct Cluster {
    /// The sites. Before the data: they stop first.
    dev: Dev,
    /// The region of each site.
    regions: Vec<String>,
    /// The folder of the data.
    scratch: Scratch,
}

impl Cluster {
    /// Starts sites on new data below a directory, and waits until they serve.
    pub(crate) fn start(directory: &Path, terms: Terms) -> Result<Self, LiveError> {
        let scratch = Scratch::below(directory)?;
        let config = DevConfig {
            regions: terms.regions.clone(),
            lanes: 1,
            data: Some(Self::data(&scratch)),
            rtt: Some(terms.rtt),
            epsilon: EPSILON,
            ports: Ports::Free,
            redistribute: terms.redistribute,
            warranties: terms.warranties,
        };

        // Clients of a site that is not ready would be refused.
        let dev = Dev::start(config).map_err(LiveError::failed)?;
        if !dev.wait_ready(PATIENCE) {
            return Err(LiveError::failed("the sites did not become ready"));
        }
        Ok(Self { dev, regions: terms.regions, scratch })
    }

    /// The folder that has the sites' data, a folder named by its region for each.
    pub(crate) fn data(scratch: &Scratch) -> PathBuf {
        scratch.path().join("sites")
    }

    /// The region of each site.
    pub(crate) fn regions(&self) -> &[String] {
        &self.regions
    }

    /// The type of the file system that the data are on.
    pub(crate) fn file_system(&self) -> &str {
        &self.scratch.file_system
    }

    /// A client for each site, near it.
    pub(crate) async fn clients(&self) -> Result<Vec<Client>, LiveError> {
        let mut clients = Vec::with_capacity(self.regions.len());
        for (site, region) in self.dev.sites().iter().zip(&self.regions) {
            // Given one address, a client learns of the others, and prefers the region.
            let options = Options { region: Some(region.clone()), ..Options::default() };
            let client = Client::connect_with([site.address().to_string()], options).await;
            clients.push(client.map_err(LiveError::failed)?);
        }
        Ok(clients)
    }

    /// The sum of a metric over all sites and labels.
    pub(crate) fn total(&self, name: &str) -> Result<f64, LiveError> {
        let pages = self.dev.sites().iter().filter_map(|site| site.http_address());
        pages.map(|http| metric(http, name)).sum()
    }

    /// Stops the sites when they have answered what is under way. Their data stay for as long as what is returned.
    pub(crate) fn drain(self) -> Result<Scratch, LiveError> {
        self.dev.drain(DRAIN).map_err(LiveError::failed)?;
        Ok(self.scratch)
    }
}
