//! `slackline outcome`: the outcome of an operation that was unknown.

use clap::Args;
use serde_json::json;
use slackline::{Client, Effect, NotDone, UnknownReason};

use super::operation;
use crate::end::{End, Finish};
use crate::output::counted;
use crate::session::Connection;

/// Asks for the outcome of an operation that was unknown
///
/// If the operation's site has not seen it, asking makes the site refuse it permanently. An operation that is still running there
/// stays unknown until it has ended: ask again. For ten minutes, sites remember the operations of put, add, delete and txn,
/// and all whose outcome was printed as unknown.
#[derive(Args)]
#[command(after_help = "Example:\n  slackline outcome eu-1-9-12")]
pub(crate) struct Outcome {
    /// The operation's id, which its command printed
    operation: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Outcome {
    pub(crate) fn run(self) -> Result<End, Finish> {
        let name = self.operation;
        self.connection.run(self.json, async move |client: Client| {
            let operation = client
                .topology()
                .parse_operation(&name)
                .map_err(|error| operation::malformed(&client, &name, &error))?;
            let effect = match client.outcome_of(operation).await.done() {
                Ok(effect) => effect,
                Err(NotDone::Refused(refused)) => return Err(Finish::WasRefused(refused, name)),
                Err(NotDone::Unknown(unknown)) => {
                    // A site with these answers can be reached, so it can be asked if there ever was an operation with this id.
                    let is_forgotten = matches!(unknown.why, UnknownReason::IncarnationLost | UnknownReason::Forgotten);
                    let never_was = match is_forgotten {
                        true => operation::never_was(&client, operation).await,
                        false => None,
                    };
                    return Err(never_was.map_or(Finish::Unknown(unknown), Finish::Failed));
                }
            };
            let (effect, text) = match effect {
                Effect::Granted { grant, .. } => {
                    let grant = client.topology().grant_text(grant);
                    (json!({ "granted": grant }), format!("granted: {grant}"))
                }
                Effect::Released { amount } => (json!({ "released": amount }), format!("released {amount}")),
                Effect::Created { limit } => {
                    (json!({ "created": limit }), format!("created with {}", counted(limit.unsigned_abs(), "token")))
                }
                Effect::Extended { lasts } => (
                    json!({ "extended_ms": lasts.as_millis() as u64 }),
                    format!("extended by {}", crate::duration::words(lasts)),
                ),
                Effect::LimitSet { limit, excess } => (
                    json!({ "limit_set": limit, "excess": excess }),
                    format!("limit set to {}", counted(limit.unsigned_abs(), "token")),
                ),
                Effect::Reclaimed { brought, in_use } => (
                    json!({ "reclaimed": brought, "still_in_use": in_use }),
                    format!("reclaimed {}", counted(brought.unsigned_abs(), "token")),
                ),
                Effect::Deleted => (json!("deleted"), "deleted".to_owned()),
                Effect::Committed { phases } => (json!({ "committed": phases }), "committed".to_owned()),
                Effect::LossAccepted => (json!("loss_accepted"), "the loss is accepted".to_owned()),
                _ => (json!("other"), "carried out".to_owned()),
            };
            Ok(End::new(json!({ "outcome": "done", "operation": name, "effect": effect }), text))
        })
    }
}
