//! `slackline bench floor`: the process that live benchmarks start beside a site, and compare it with.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use slackline_server::floor::Load;
use slackline_server::{ServeConfig, Signals, Site};

use crate::end::{End, Finish};

/// Serves as the floor of a benchmark, which starts it by itself: it logs and answers, and promises nothing
#[derive(Args)]
#[command(after_help = "Example:\n  slackline bench floor --config floor.toml --load 20,30,64")]
pub(super) struct FloorSite {
    /// The configuration file, as of `slackline serve`, with a data directory of its own
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Bytes to log of each request that has operations, and of each of those, and how many rows these write
    #[arg(long, value_name = "REQUEST,OPERATION,ROWS", value_delimiter = ',')]
    load: Vec<u32>,
    /// Print one JSON object when it runs
    #[arg(long)]
    pub(super) json: bool,
}

impl FloorSite {
    pub(super) fn run(self) -> Result<End, Finish> {
        slackline_server::init_logs();
        let failed = |error: &dyn std::fmt::Display| Finish::Failed(error.to_string());
        let config = ServeConfig::read(&self.config).map_err(|error| Finish::WrongUse(error.to_string()))?;
        let signals = Signals::listen().map_err(|error| failed(&error))?;
        let [request_bytes, operation_bytes, rows] = self.load[..] else {
            return Err(Finish::WrongUse("--load has three numbers, like 20,30,64".into()));
        };
        let rows = u16::try_from(rows).map_err(|_| Finish::WrongUse("--load has at most 65535 rows".into()))?;
        let load = Load { request_bytes: request_bytes as usize, operation_bytes: operation_bytes as usize, rows };
        let site = Site::start_floor(config.site(), load).map_err(|error| failed(&error))?;
        let json = json!({ "site": site.name(), "address": site.address().to_string() });
        End::new(json, format!("the floor of {} listens on {}", site.name(), site.address())).print(self.json);
        let ended = slackline_server::run_until_signal(signals, vec![site], config.drain());
        ended.map(|()| End::silent()).map_err(|error| failed(&error))
    }
}
