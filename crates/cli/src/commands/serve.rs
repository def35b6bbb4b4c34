//! `slackline serve`: one site of a production cluster.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use slackline_server::{ConfigError, NewStorage, ServeConfig, Signals, Site, StartError};

use crate::end::{End, Finish};

/// Runs one site of a cluster
///
/// The configuration file names the site. Sites with matching files form a cluster. SIGTERM or Ctrl-C drains the site: it
/// takes no further requests, finishes those that run, gives tokens to other sites that need them, syncs, and exits with
/// status 0.
///
/// RUST_LOG sets the level of the logs on standard error: error, warn, info (the default), debug.
#[derive(Args)]
#[command(after_help = "\
Example:
  slackline serve --config site.toml

A configuration, site.toml:
  cluster = \"production\"
  regions = [\"us\", \"eu\", \"ap\"]       # the same list at all sites
  region = \"us\"                      # which of them this is
  data = \"/var/lib/slackline/us\"
  listen = \"0.0.0.0:7400\"
  http = \"0.0.0.0:7500\"              # /healthz and /metrics

  [[sites]]
  region = \"us\"
  address = \"us.example.net:7400\"

  [[sites]]                          # and so on, for every site
  region = \"eu\"
  address = \"eu.example.net:7400\"")]
pub(crate) struct Serve {
    /// The configuration file, in TOML
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Confirm that the site's earlier data are permanently lost, and let it join with a new data directory. Give this once,
    /// when `status` shows awaiting_new_storage, and only after you have checked that the volume is mounted and that `data`
    /// names the right directory: the tokens that the site had count as in use until `quota reclaim`
    #[arg(long)]
    new_storage: bool,
    /// Print one JSON object when the site runs
    #[arg(long)]
    pub(crate) json: bool,
}

impl Serve {
    pub(crate) fn run(self) -> Result<End, Finish> {
        slackline_server::init_logs();
        let config = ServeConfig::read(&self.config).map_err(|error| explain_config(&error))?;
        let mut signals =
            Signals::listen().map_err(|error| Finish::Failed(format!("cannot wait for signals: {error}")))?;
        let mut site = config.site();
        if self.new_storage {
            site.new_storage = NewStorage::Permitted;
        }

        let site = signals.during(|| Site::start(site)).map_err(|error| match error {
            StartError::Config(error) => explain_config(&error),
            error if error.is_of_the_configuration() => Finish::WrongUse(error.to_string()),
            error => Finish::Failed(error.to_string()),
        })?;

        let http = site.http_address().map(|address| address.to_string());
        let json = json!({ "site": site.name(), "address": site.address().to_string(), "http": http });
        End::new(json, format!("site {} listens on {}", site.name(), site.address())).announce(self.json);
        let ended = slackline_server::run_until_signal(signals, vec![site], config.drain());
        ended.map(|()| End::silent()).map_err(|error| Finish::Failed(error.to_string()))
    }
}

fn explain_config(error: &ConfigError) -> Finish {
    Finish::WrongUse(error.to_string())
}
