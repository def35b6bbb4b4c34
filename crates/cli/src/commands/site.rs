//! `slackline site`: what is done about one site.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::json;
use slackline::{Client, Readiness, Reason, Refused, SiteStatus};

use super::status::PATIENCE;
use crate::duration;
use crate::end::{End, Finish};
use crate::output::counted;
use crate::session::Connection;

/// The time between the first two looks; each pause is longer than the one before. A look is work for every site.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest.
const LONGEST: Duration = Duration::from_secs(5);

/// Waits for a site
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Example:
  slackline site wait us                       # before the next one is replaced"
)]
pub(crate) struct Site {
    #[command(subcommand)]
    command: SiteCommand,
}

#[derive(Subcommand)]
enum SiteCommand {
    Wait(Wait),
}

impl Site {
    pub(crate) fn run(self) -> Result<End, Finish> {
        match self.command {
            SiteCommand::Wait(command) => command.run(),
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        match &self.command {
            SiteCommand::Wait(command) => command.json,
        }
    }
}

/// Waits until every quota has recorded a site
///
/// A site that starts with new storage has no tokens of a quota, and no vote on it, before a round has recorded its new life.
/// Quotas are recorded one after the other. While some are not, the loss of another site may leave these without a majority. So
/// wait for one site before the storage of the next is replaced.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline site wait us
  slackline site wait us --timeout 10m --json

With --json:
  {\"outcome\", \"site\", \"incarnation\", \"unrecorded\", \"waited_ms\",
   \"message\"}
  unrecorded is 0 if it is done; else the exit status is 1.")]
struct Wait {
    /// The region
    #[arg(value_name = "SITE")]
    name: String,
    /// The time to wait
    #[arg(long, value_name = "DURATION", default_value = "60s", allow_hyphen_values = true, value_parser = duration::parse_positive)]
    timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Wait {
    fn run(self) -> Result<End, Finish> {
        let Self { name, timeout, json, connection } = self;
        let patience = connection.deadline.min(PATIENCE).min(timeout);
        connection.run(json, async move |client: Client| {
            let topology = client.topology();
            let Some(region) = topology.region(&name) else {
                let reason = Reason::UnknownRegion { region: name, known: topology.regions.clone() };
                return Err(Finish::Refused(Refused { reason, operation: None }));
            };

            let (asked_at, mut pause) = (Instant::now(), PAUSE);
            loop {
                let left = timeout.saturating_sub(asked_at.elapsed());
                let all = client.status(patience.min(left.max(PAUSE))).await;
                let sites: Vec<&SiteStatus> = all.iter().filter(|site| site.id.region == region).collect();
                let unrecorded = sites.iter().map(|site| site.unrecorded(&all)).sum::<Option<u64>>();
                let is_ready = sites.iter().all(|site| site.is_ready());
                let waited = asked_at.elapsed();
                let is_done = is_ready && unrecorded == Some(0);
                if !is_done && waited + PAUSE < timeout {
                    tokio::time::sleep(pause.min(timeout - waited)).await;
                    pause = (pause * 3 / 2).min(LONGEST);
                    continue;
                }

                let state = sites.iter().filter_map(|site| site.state.as_ref());
                let unready = state.map(|state| state.readiness).find(|readiness| *readiness != Readiness::Ready);
                let text = match (unready, unrecorded) {
                    (Some(readiness), _) => {
                        format!("{name} is {}: `slackline status` says why", readiness.name())
                    }
                    (None, Some(0)) => format!("every quota has recorded {name}"),
                    (None, Some(left)) => format!("{} not recorded {name} yet", has(left)),
                    (None, None) => format!("{name}, or too many others, do not answer: `slackline status` says which"),
                };
                let value = json!({
                    "outcome": if is_done { "done" } else { "timeout" },
                    "site": name,
                    "incarnation": sites.first().and_then(|site| site.incarnation()).map(|incarnation| incarnation.0),
                    "unrecorded": unrecorded,
                    "waited_ms": waited.as_millis() as u64,
                    "message": &text,
                });
                if is_done {
                    return Ok(End::new(value, text));
                }
                End::new(value, "").print(json);
                return Err(Finish::Said(text));
            }
        })
    }
}

/// "1 quota has", "2 quotas have".
pub(super) fn has(quotas: u64) -> String {
    let verb = if quotas == 1 { "has" } else { "have" };
    format!("{} {verb}", counted(quotas, "quota"))
}
