//! What every command that talks to a cluster has in common: where it is, and how long to wait for it.

use std::time::Duration;

use clap::Args;
use slackline::{Client, ConnectError, Options};

use crate::duration;
use crate::end::{End, Finish};

/// The addresses of `slackline dev`.
const DEV: &str = "127.0.0.1:7400,127.0.0.1:7401,127.0.0.1:7402";

/// Where the cluster is.
#[derive(Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Connection {
    /// Addresses of some of the cluster's sites; one is enough, the others are learned from it
    #[arg(
        long,
        value_name = "HOST:PORT,…",
        env = "SLACKLINE_CONNECT",
        value_delimiter = ',',
        default_value = DEV,
        hide_default_value = true,
        hide_env_values = true,
        long_help = "\
Addresses of some of the cluster's sites. One is enough, the others are learned from it; several make it likelier that \
one answers. Without, the ones of `slackline dev` on this machine: 127.0.0.1:7400 to 7402"
    )]
    connect: Vec<String>,

    /// How long to wait at most, for tokens of other sites too
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse_positive)]
    pub(crate) deadline: Duration,
}

impl Connection {
    /// Connects, does something, closes. `site` is the region to use by default.
    pub(crate) fn run<F: Future<Output = Result<End, Finish>>>(
        &self,
        work: impl FnOnce(Client) -> F,
    ) -> Result<End, Finish> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Finish::Failed(format!("cannot start: {error}")))?;
        runtime.block_on(async {
            let options = Options { deadline: self.deadline, connect: self.deadline, ..Options::default() };
            let client = Client::connect_with(&self.connect, options).await.map_err(explain)?;
            let end = work(client.clone()).await;
            client.close().await;
            end
        })
    }
}

fn explain(error: ConnectError) -> Finish {
    match error {
        ConnectError::Unreachable { addresses, why } => Finish::Failed(format!(
            "no site answers at {addresses} ({why}); start a cluster with `slackline dev`, or name one with --connect"
        )),
        error => Finish::WrongUse(format!("--connect: {error}")),
    }
}
