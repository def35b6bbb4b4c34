//! `slackline dev`: a whole cluster on one machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use slackline_server::dev::FIRST_PORT;
use slackline_server::{Dev as Cluster, DevConfig, DevError, Ports, RttTable, Signals, SiteHandle};

use crate::end::{End, Finish, complain};
use crate::output::{Table, round_trips};

/// The time that the sites may take to find each other before the command says that they have not.
const READY: Duration = Duration::from_secs(10);
/// The time that the sites may take to finish what runs.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs a whole cluster on this machine
///
/// All sites are in one process: real gRPC over loopback, real storage, and between the sites the delays of a wide-area
/// network. Ctrl-C drains it; the next start goes on with the same data.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline dev                            # us, eu, ap; data in slackline-data
  slackline dev --sites 5 --data /tmp/slack
  slackline dev --rtt my-network.csv --memory

An RTT table has lines `from,to,rtt_ms`, like `us,eu,70.5`.
Set RUST_LOG=info to see logs.")]
pub(crate) struct Dev {
    /// The number of regions: the first ones of the RTT table. Each has one site, or one for each lane
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    sites: u16,
    /// The number of lanes. A quota is in one of them, by a hash of its name; each region has a site for each lane. The sites
    /// of lane 1 are us:1, eu:1 and so on, and ids of their grants look like eu:1-1-1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    lanes: u16,
    /// Round trips between regions, as CSV; by default those of some regions of AWS
    #[arg(long, value_name = "FILE")]
    rtt: Option<PathBuf>,
    /// The directory of the data
    #[arg(long, value_name = "DIR", default_value = "slackline-data", conflicts_with = "memory")]
    data: PathBuf,
    /// Keep nothing: the data are in memory, and end with the process
    #[arg(long)]
    memory: bool,
    /// The first site's port; the others follow, HTTP a hundred higher. 0 takes free ones. By default 7400, or free ones if
    /// those are taken; other commands then need --connect, which is printed. A data directory keeps its ports: delete
    /// DIR/ports to choose others
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Print one JSON object when the cluster runs
    #[arg(long)]
    pub(crate) json: bool,
}

impl Dev {
    pub(crate) fn run(self) -> Result<End, Finish> {
        if std::env::var_os("RUST_LOG").is_some() {
            slackline_server::init_logs();
        }
        let table = match &self.rtt {
            Some(path) => RttTable::from_csv(path).map_err(|error| Finish::WrongUse(error.to_string()))?,
            None => RttTable::aws(),
        };
        let regions = table.regions();
        let Some(regions) = regions.get(..usize::from(self.sites)) else {
            return Err(Finish::WrongUse(format!(
                "{} sites (--sites): the RTT table ({}) has only {} regions: {}",
                self.sites,
                table.source(),
                regions.len(),
                regions.join(", ")
            )));
        };
        // A cluster's directory holds one for each site. One that is a site's own is somebody else's.
        if !self.memory && self.data.join("IDENTITY").exists() {
            return Err(Finish::WrongUse(format!(
                "--data {}: that is one site's directory, and not a cluster's: use the one above it, or another",
                self.data.display()
            )));
        }
        let names: Vec<&str> = regions.iter().map(String::as_str).collect();
        let distance = |from: &str, to: &str| table.rtt(from, to).filter(|_| from != to);
        let round_trips = (names.len() > 1).then(|| round_trips(&names, distance)).flatten();

        let config = DevConfig {
            regions: regions.to_vec(),
            lanes: self.lanes,
            data: (!self.memory).then(|| self.data.clone()),
            rtt: Some(table),
            ports: match self.port {
                None => Ports::Sought,
                Some(0) => Ports::Free,
                Some(first) => Ports::From(first),
            },
            ..DevConfig::default()
        };

        // Before the sites start: a Ctrl-C that comes while they do must drain them too.
        let signals = Signals::listen_at_a_terminal();
        let mut signals = signals.map_err(|error| Finish::Failed(format!("cannot wait for signals: {error}")))?;
        let cluster = Cluster::start(config).map_err(|error| match error {
            DevError::Distance { .. }
            | DevError::NoSuchPorts { .. }
            | DevError::OtherPorts { .. }
            | DevError::OtherSites { .. } => Finish::WrongUse(error.to_string()),
            error => Finish::Failed(match error.to_string().split_once(" is in use by another process") {
                // The rest of the sentence is advice on running one site.
                Some((path, _)) => format!("{path} is in use by another process: stop that cluster, or use --data DIR"),
                None => error.to_string(),
            }),
        })?;

        // Who does not want to wait until all serve is not told how to use it.
        let sites = cluster.sites();
        let is_told = signals.wait_ready(sites, READY);
        if !is_told {
            let is_ready = sites.iter().all(SiteHandle::is_ready);
            self.announce(sites, is_ready, round_trips.as_deref()).announce(self.json);
        }
        let is_told = is_told || signals.wait(sites);
        if is_told {
            complain("draining…");
        }
        slackline_server::drain_or_end(is_told, || cluster.drain(DRAIN))
            .map(|()| End::silent())
            .map_err(|error| Finish::Failed(error.to_string()))
    }

    /// The output once the cluster runs: its addresses, the delays between its regions, and commands to try.
    fn announce(&self, sites: &[SiteHandle], ready: bool, round_trips: Option<&str>) -> End {
        let data = if self.memory { None } else { Some(self.data.display().to_string()) };
        let mut table = Table::new(&["SITE", "ADDRESS", "HEALTH AND METRICS"]);
        let mut rows = Vec::new();
        for site in sites {
            let http = site.http_address().map(|address| address.to_string());
            rows.push(json!({ "site": site.name(), "address": site.address().to_string(), "http": http }));
            let pages = http.map_or("-".to_owned(), |http| format!("http://{http}/healthz, /metrics"));
            table.row([site.name(), site.address().to_string(), pages]);
        }
        let process = std::process::id();
        let json = json!({ "sites": rows, "data": data, "ready": ready, "pid": process });
        let kept = data.map_or("data in memory".to_owned(), |data| format!("data in {data}"));
        let elsewhere = self.port.is_none() && sites[0].address().port() != FIRST_PORT;
        let kept = match elsewhere {
            true => format!("{kept}, not at port {FIRST_PORT} (taken, or others were chosen before)"),
            false => kept,
        };
        let delays = round_trips.map_or(String::new(), |matrix| {
            format!("Round trips between its regions; each message takes half of one:\n\n{matrix}\n\n")
        });
        let late = if ready { "" } else { "\nNot every site serves yet; `status` shows which." };

        // The commands can be copied: they name this program as it was called, and the cluster unless it is where commands look.
        let (program, connect) = (program(), connect(sites));
        let region = |site: &SiteHandle| site.name().split(':').next().unwrap_or_default().to_owned();
        let (site, other) = (region(&sites[0]), region(&sites[sites.len() / 2]));
        let text = format!(
            "A cluster of {} sites runs as process {process}, {kept}.{late}\n\n{}\n\n{delays}Try in another terminal:\n  \
             {program} quota create gpus --limit 5000{connect}\n  \
             {program} quota acquire gpus 3 --site {other}{connect}\n  \
             {program} quota acquire gpus 2 --site {site} --for 60s{connect}\n  \
             {program} quota show gpus{connect}\n  \
             {program} status{connect}\n\nCtrl-C ends it{}.",
            sites.len(),
            table.render(),
            if self.memory { "" } else { "; the next start goes on with the same data" },
        );
        End::new(json, text)
    }
}

/// The path by which this program was called, for commands that can be copied.
fn program() -> String {
    let called = std::env::args_os().next().unwrap_or_default().to_string_lossy().into_owned();
    let here = std::env::current_dir().ok();
    let shorter =
        here.and_then(|here| PathBuf::from(&called).strip_prefix(here).map(|path| path.display().to_string()).ok());
    match shorter {
        Some(path) => path,
        None if called.is_empty() => "slackline".to_owned(),
        None => called,
    }
}

/// The option by which other commands find the cluster; empty if they look there anyway.
fn connect(sites: &[SiteHandle]) -> String {
    let address = sites[0].address();
    if address.port() == FIRST_PORT { String::new() } else { format!(" --connect {address}") }
}
