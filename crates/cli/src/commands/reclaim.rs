//! `slackline quota reclaim`: brings back what lost storage had.

use std::time::Instant;

use clap::Args;
use serde_json::json;
use slackline::{Client, Incarnation, NotDone, ParseNameError, Reason, Reclaimed, SiteId};

use crate::end::{End, Finish};
use crate::output::{Table, counted};
use crate::session::{Connection, each};
use crate::values::{name, used};
use crate::waited::Answered;

/// Brings back what lost storage had of a quota
///
/// A site that lost its storage has forgotten its tokens and its grants. Both count as in use until you say how many of them are. The
/// rest comes back, once. Every site must be reachable.
///
/// With --still-in-use, count each token that the lost site had granted and had not taken back itself, also one that was released at
/// another site, before or since: those books know of the release, not of the grant. So where tokens are granted at one site and
/// released at another, nothing in use is no reason to say 0. Nobody can check what you say. If you say too little, so much more than
/// the limit may be granted. If you say too much, the difference stays in use until somebody releases it by amount.
///
/// Make sure first that no process runs on the storage that you call lost.
#[derive(Args)]
#[command(
    override_usage = "slackline quota reclaim <NAME> --of <LOST> --still-in-use <TOKENS>\n       \
                      slackline quota reclaim --all --of <LOST> --still-in-use 0",
    after_help = "\
Examples:
  slackline quota reclaim gpus --of ap-1 --still-in-use 40
  slackline quota reclaim gpus --of ap-1 --of eu-2 --still-in-use 0
  slackline quota reclaim --all --of ap-1 --still-in-use 0 --json

With --json:
  {\"outcome\", \"quota\", \"reclaimed\", \"still_in_use\"}
  with --all: {\"outcome\", \"quotas\":[{\"quota\", \"reclaimed\"}],
   \"refused\":[{\"quota\", \"reason\", \"message\"}],
   \"unknown\":[{\"quota\", \"operation\"}], \"untried\":[QUOTA]}; unless
  all were done, the exit status is 1."
)]
pub(crate) struct Reclaim {
    /// The quota's name
    #[arg(value_parser = name, required_unless_present = "all")]
    name: Option<String>,
    /// Every quota; for the word that nothing is in use
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// A lost incarnation, such as ap-1: the newest of its site. Once for each site that has one
    #[arg(long = "of", value_name = "LOST", required = true)]
    of: Vec<String>,
    /// The number of tokens that the lost site had granted and that are still in use
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = used)]
    still_in_use: i64,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Reclaim {
    pub(super) fn run(self) -> Result<End, Finish> {
        let Self { name, of, still_in_use, json, connection, .. } = self;
        let until = Instant::now() + connection.deadline;
        connection.run(json, async move |client: Client| {
            let lost: Vec<(SiteId, Incarnation)> =
                of.iter().map(|text| incarnation_named(&client, text)).collect::<Result<_, Finish>>()?;
            match name {
                Some(name) => one(&client, &name, lost, still_in_use).await,
                None if still_in_use > 0 => Err(Finish::WrongUse(
                    "--all takes --still-in-use 0 alone: tokens in use are tokens of one quota, so name it".into(),
                )),
                None => every(&client, &lost, until, json).await,
            }
        })
    }
}

async fn one(client: &Client, name: &str, lost: Vec<(SiteId, Incarnation)>, in_use: i64) -> Result<End, Finish> {
    let Reclaimed { brought, in_use } = client.quota(name).reclaim(lost, in_use).await.done()?;
    let json = json!({ "outcome": "done", "quota": name, "reclaimed": brought, "still_in_use": in_use });
    let text = format!(
        "reclaimed {} of {name}; {} count as granted by lost storage",
        counted(brought.unsigned_abs(), "token"),
        in_use
    );
    Ok(End::new(json, text).answered(Answered::by(None)))
}

async fn every(client: &Client, lost: &[(SiteId, Incarnation)], until: Instant, is_json: bool) -> Result<End, Finish> {
    let (mut quotas, mut refused) = (Vec::new(), Vec::new());
    let (mut unknown, mut untried) = (Vec::new(), Vec::new());
    let mut table = Table::new(&["NAME", "#RECLAIMED", "REFUSED"]);
    let listed = client.list().await?;
    let calls = listed.iter().map(|quota| client.quota(&quota.name).reclaim(lost.iter().copied(), 0)).collect();
    let ended = each(calls, until, |call, left| async move { call.deadline(left).await.done() }).await;
    for (quota, ended) in listed.into_iter().zip(ended) {
        let Some(ended) = ended else {
            untried.push(quota.name);
            continue;
        };
        match ended {
            Ok(Reclaimed { brought, .. }) => {
                quotas.push(json!({ "quota": quota.name, "reclaimed": brought }));
                table.row([quota.name, brought.to_string(), String::new()]);
            }
            // It was created since, or done before: a second run goes on where the first was ended.
            Err(NotDone::Refused(why)) if matches!(why.reason, Reason::NothingLost | Reason::UnknownQuota) => {}
            Err(NotDone::Refused(why)) => {
                let message = why.reason.to_string();
                table.row([quota.name.clone(), String::new(), message.clone()]);
                refused.push(json!({ "quota": quota.name, "reason": why.reason.code(), "message": message }));
            }
            Err(NotDone::Unknown(why)) => {
                table.row([quota.name.clone(), String::new(), "it may have been done or not".to_owned()]);
                unknown.push(json!({ "quota": quota.name, "operation": why.name }));
            }
        }
    }

    let outcome = match () {
        () if !refused.is_empty() => "refused",
        () if !(unknown.is_empty() && untried.is_empty()) => "failed",
        () => "done",
    };
    let text = match quotas.len() + refused.len() + unknown.len() + untried.len() {
        0 => "nothing to reclaim: no such incarnation is lost, or every quota was done".to_owned(),
        _ => table.render(),
    };
    let json =
        json!({ "outcome": outcome, "quotas": quotas, "refused": refused, "unknown": unknown, "untried": untried });
    if outcome == "done" {
        return Ok(End::new(json, text).answered(Answered::by(None)));
    }
    End::new(json, text).print(is_json);
    let counts = |count: usize, what: &str| (count > 0).then(|| format!("{} {what}", counted(count as u64, "quota")));
    let said = [
        counts(refused.len(), "refused"),
        counts(unknown.len(), "done or not, which is not known"),
        counts(untried.len(), "not tried in the time that was given; the same command goes on there"),
    ];
    Err(Finish::Said(said.into_iter().flatten().collect::<Vec<_>>().join("; ")))
}

/// The incarnation of this name, or an error that says what such a name looks like.
fn incarnation_named(client: &Client, text: &str) -> Result<(SiteId, Incarnation), Finish> {
    client.topology().parse_incarnation(text).map_err(|error| {
        Finish::WrongUse(match error {
            ParseNameError::Malformed => {
                format!("{text} is no incarnation of a site: write the site and the number, such as ap-1")
            }
            unknown => unknown.to_string(),
        })
    })
}
