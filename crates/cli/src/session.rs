//! What every command that talks to a cluster has in common: where it is, and how long to wait for it.

use std::time::Duration;

use clap::Args;
use slackline::{Client, ConnectError, Left, Options};

use crate::duration;
use crate::end::{End, Finish};

/// The addresses of `slackline dev`.
const DEV: &str = "127.0.0.1:7400,127.0.0.1:7401,127.0.0.1:7402";

/// How long an interrupted command stays to give back what it was acquiring.
const GIVING_BACK: Duration = Duration::from_millis(1500);

/// The environment variable that names a cluster.
const CONNECT: &str = "SLACKLINE_CONNECT";

/// Where the cluster is.
#[derive(Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Connection {
    /// Addresses of some of the cluster's sites; one is enough, the others are learned from it
    #[arg(
        long,
        value_name = "HOST:PORT,…",
        value_delimiter = ',',
        long_help = "\
Addresses of some of the cluster's sites. One is enough, the others are learned from it; several make it likelier that \
one answers. Without, those in the environment variable SLACKLINE_CONNECT, or else the ones of `slackline dev` on this \
machine: 127.0.0.1:7400 to 7402"
    )]
    connect: Vec<String>,

    /// How long the command may take, with all that it has to wait for
    #[arg(long, value_name = "DURATION", default_value = "10s", allow_hyphen_values = true, value_parser = duration::parse_positive)]
    pub(crate) deadline: Duration,
}

impl Connection {
    /// Connects, does something, closes.
    pub(crate) fn run<F: Future<Output = Result<End, Finish>>>(
        &self,
        work: impl FnOnce(Client) -> F,
    ) -> Result<End, Finish> {
        self.run_and_end(work, Client::close)
    }

    /// Connects, does something that has an operation's id, and leaves the session: it can be asked for some time what became
    /// of the operation.
    pub(crate) fn run_and_leave<F: Future<Output = Result<End, Finish>>>(
        &self,
        work: impl FnOnce(Client) -> F,
    ) -> Result<End, Finish> {
        self.run_and_end(work, Client::leave)
    }

    fn run_and_end<F: Future<Output = Result<End, Finish>>, E: Future<Output = Vec<Left>>>(
        &self,
        work: impl FnOnce(Client) -> F,
        end_client: impl FnOnce(Client) -> E,
    ) -> Result<End, Finish> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Finish::Failed(format!("cannot start: {error}")))?;
        runtime.block_on(async {
            let options = Options { deadline: self.deadline, connect: self.deadline, ..Options::default() };
            let (source, addresses) = self.addresses();
            let client = Client::connect_with(addresses, options).await.map_err(|error| explain(source, error))?;
            let end = tokio::select! {
                end = work(client.clone()) => end,
                _ = tokio::signal::ctrl_c() => Err(Finish::Interrupted),
            };
            if matches!(end, Err(Finish::Interrupted)) {
                // An acquire that is dropped unanswered is asked about, and given back if it was granted.
                tokio::time::sleep(GIVING_BACK.min(self.deadline)).await;
            }
            // The client would see to what is left, but it ends here: whoever gave the command is told instead.
            let left = end_client(client).await;
            match end {
                end if left.is_empty() => end,
                Ok(end) => Ok(end.leaving(&left)),
                Err(finish) => Err(Finish::Leaving(Box::new(finish), left)),
            }
        })
    }

    /// Where the cluster's addresses are from, and the addresses.
    fn addresses(&self) -> (&'static str, Vec<String>) {
        if !self.connect.is_empty() {
            return ("--connect", self.connect.clone());
        }
        let split = |text: &str| text.split(',').map(str::to_owned).collect();
        // A variable that is empty is as good as none.
        match std::env::var_os(CONNECT).filter(|value| !value.is_empty()) {
            Some(value) => (CONNECT, split(&value.to_string_lossy())),
            None => ("the default", split(DEV)),
        }
    }
}

fn explain(source: &str, error: ConnectError) -> Finish {
    match error {
        ConnectError::Unreachable { addresses, why } => Finish::Failed(format!(
            "no site answers at {addresses} ({why}); start a cluster with `slackline dev`, or name one with --connect"
        )),
        error => Finish::WrongUse(format!("{source}: {error}")),
    }
}
