//! `slackline site`: what is done about one site.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::json;
use slackline::{Client, NoSeat, NotDone, Readiness, Reason, Refused, SeatChange, SiteId, SiteStatus};

use crate::duration;
use crate::end::{End, Finish};
use crate::output::counted;
use crate::session::Connection;

/// The time between the first two looks; each pause is longer than the one before. A look is work for every site.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest.
const LONGEST: Duration = Duration::from_secs(5);

/// Adds a site, empties one, takes one out, waits for one
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  slackline site add sa --address sa.example.net:7400
  slackline site drain eu && slackline site remove eu
  slackline site lost ap                       # it will never come back
  slackline site wait us                       # before the next change"
)]
pub(crate) struct Site {
    #[command(subcommand)]
    command: SiteCommand,
}

#[derive(Subcommand)]
enum SiteCommand {
    Add(Add),
    Drain(Drain),
    Remove(Remove),
    Lost(Lost),
    Wait(Wait),
}

impl Site {
    pub(crate) fn run(self) -> Result<End, Finish> {
        match self.command {
            SiteCommand::Add(command) => command.run(),
            SiteCommand::Drain(command) => command.run(),
            SiteCommand::Remove(command) => command.run(),
            SiteCommand::Lost(command) => command.run(),
            SiteCommand::Wait(command) => command.run(),
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        match &self.command {
            SiteCommand::Add(command) => command.json,
            SiteCommand::Drain(command) => command.json,
            SiteCommand::Remove(command) => command.json,
            SiteCommand::Lost(command) => command.json,
            SiteCommand::Wait(command) => command.json,
        }
    }
}

/// Makes a site a member of the cluster
///
/// Start the site first, with a configuration that names the regions of the cluster in the same order, its own after them, and every
/// site. It waits until it is added. Then a majority of the members agrees, the new site joins, and each quota records the change. The
/// next change is refused until all have.
///
/// A quota or an object of before keeps its place; the new site gets tokens by demand.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline site add sa --address sa.example.net:7400
  slackline site wait sa

With --json:
  {\"outcome\", \"site\", \"membership\", \"message\"}")]
struct Add {
    /// The site: its region, or us:1 for that of lane 1
    #[arg(value_name = "SITE")]
    name: String,
    /// Where others reach it
    #[arg(long, value_name = "HOST:PORT")]
    address: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Add {
    fn run(self) -> Result<End, Finish> {
        let Self { name, address, json, connection } = self;
        let patience = connection.patience();
        connection.run(json, async move |client: Client| {
            // It is asked who it is before anybody agrees on anything: a wrong address would stay in the map.
            let topology = client.topology();
            let introduced = slackline::introduce(&address, patience).await;
            let introduced = introduced.map_err(|why| {
                Finish::Failed(format!(
                    "{address} does not say who it is ({why}): start the site there first; it waits until it is added"
                ))
            })?;
            let slackline::Introduced { site, topology: its, readiness } = introduced;
            let known = topology.regions.len();
            let objection = match () {
                () if address.contains('/') => {
                    Some("an address is a host and a port, like sa.example.net:7400".to_owned())
                }
                () if its.cluster != topology.cluster => {
                    Some(format!("it belongs to cluster {:?}, and this is {:?}", its.cluster, topology.cluster))
                }
                () if its.name(site) != name && its.regions.get(usize::from(site.region)) != Some(&name) => {
                    Some(format!("it is site {}", its.name(site)))
                }
                () if its.lanes != topology.lanes => {
                    Some(format!("it knows {} lanes, and the cluster has {}", its.lanes, topology.lanes))
                }
                () if its.regions.len() < known || its.regions[..known] != topology.regions[..] => Some(format!(
                    "it has the regions {:?}; the cluster's come first, in their order: {:?}",
                    its.regions, topology.regions
                )),
                () if its.regions.len() > known.max(usize::from(site.region) + 1) => Some(format!(
                    "it has the regions {:?}, of which the last have not joined yet: leave these out",
                    its.regions
                )),
                () if usize::from(site.region) > known => {
                    Some(format!("region {:?} joins before it", its.regions[known]))
                }
                // Of a site whose seat is new nobody believes that it has a past, so it would never serve.
                () if usize::from(site.region) == known && readiness != Readiness::Joining => Some(format!(
                    "it is {}, so it has storage already: that of another cluster, then start it on an empty directory; or it was \
                     added just now, as `slackline status` shows",
                    readiness.name()
                )),
                () => None,
            };
            if let Some(why) = objection {
                return Err(Finish::Failed(format!("the site at {address} cannot join as {name}: {why}")));
            }
            // Which lane it is of, its number says.
            let label = format!("{} {address}", its.regions[usize::from(site.region)]);
            let number = client.change_members(site, SeatChange::Joins, &label).await.done()?;
            Ok(changed(&name, number, format!("{name} is a member: change {number}")))
        })
    }
}

/// Empties a site
///
/// It gives its tokens to the others, takes back what is released, and grants nothing, also after a restart: acquires go to other
/// sites. Its objects stay where they are. `--undo` lets it grant again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline site drain eu
  slackline site drain eu --undo

With --json:
  {\"outcome\", \"site\", \"membership\", \"message\"}")]
struct Drain {
    /// The site: its region, or us:1 for that of lane 1
    #[arg(value_name = "SITE")]
    name: String,
    /// Let it grant again
    #[arg(long)]
    undo: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Drain {
    fn run(self) -> Result<End, Finish> {
        let Self { name, undo, json, connection } = self;
        connection.run(json, async move |client: Client| {
            let site = site_of(&client, &name)?;
            let full = full_name(&client, site);
            let (change, text) = match undo {
                false => (SeatChange::Drains, format!("{full} gives its tokens away, and grants nothing")),
                true => (SeatChange::Serves, format!("{full} grants again")),
            };
            let number = client.change_members(site, change, "").await.done()?;
            Ok(changed(&name, number, text))
        })
    }
}

/// Takes a site out of the cluster
///
/// Drain it first. It is refused, with their number, while it has tokens, grants of it are out that it alone can take back, objects are
/// at home there, or transactions are under way. Then a majority of the members agrees, itself among them, and it does nothing
/// more: stop it. Treaties and memoized results that are at home there end.
#[derive(Args)]
#[command(after_help = "\
Example:
  slackline site remove eu                     # after slackline site drain eu

With --json:
  {\"outcome\", \"site\", \"membership\", \"message\"}")]
struct Remove {
    /// The site: its region, or us:1 for that of lane 1
    #[arg(value_name = "SITE")]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Remove {
    fn run(self) -> Result<End, Finish> {
        let Self { name, json, connection } = self;
        let deadline = connection.deadline;
        connection.run(json, async move |client: Client| {
            let site = site_of(&client, &name)?;
            let until = Instant::now() + SETTLING.min(deadline / 2);
            loop {
                // It was drained just now: its tokens are on their way.
                let number = match client.change_members(site, SeatChange::Leaves, "").await.done() {
                    Err(NotDone::Refused(refused)) if is_settling(&refused.reason) && Instant::now() < until => {
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                    number => number?,
                };
                let full = full_name(&client, site);
                return Ok(changed(&name, number, format!("{full} is a member no longer: change {number}")));
            }
        })
    }
}

/// The time that a site has to give its tokens away before its removal is refused because of them.
const SETTLING: Duration = Duration::from_secs(5);

/// True if what stands against a removal goes by itself.
fn is_settling(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::NoSeat {
            why: NoSeat::HasTokens
                | NoSeat::HasTransactions
                | NoSeat::Forgetting
                | NoSeat::Unheard
                | NoSeat::Unrecorded,
            ..
        }
    )
}

/// The site of this name.
fn site_of(client: &Client, name: &str) -> Result<SiteId, Finish> {
    client.topology().parse_site(name).map_err(|_| {
        let reason = Reason::UnknownRegion { region: name.to_owned(), known: client.topology().regions.clone() };
        Finish::Refused(Refused { reason, operation: None })
    })
}

/// The name of a site for a person. A region's name alone is that of its first lane, which is not all of it.
fn full_name(client: &Client, site: SiteId) -> String {
    let topology = client.topology();
    let name = topology.name(site);
    if topology.lanes > 1 && site.lane == 0 { format!("{name} (lane 0)") } else { name }
}

/// Says that a site is lost for good
///
/// It is a member no longer: a majority of the others agrees, and counts without it from then on. What it had of each quota counts as
/// in use until `slackline quota reclaim` brings it back. Objects at home there are lost.
///
/// A site that answers is not lost. One that was declared lost and returns does nothing more.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline site lost ap
  slackline quota reclaim --all --of ap-1 --still-in-use 0

With --json:
  {\"outcome\", \"site\", \"membership\", \"message\"}")]
struct Lost {
    /// The site: its region, or us:1 for that of lane 1
    #[arg(value_name = "SITE")]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Lost {
    fn run(self) -> Result<End, Finish> {
        let Self { name, json, connection } = self;
        let patience = connection.patience();
        connection.run(json, async move |client: Client| {
            let site = site_of(&client, &name)?;
            // The one that is asked to lead the change may be the only one that does not hear it. One that has been declared lost says so
            // itself, and the answer is the same as before.
            let all = client.status(patience).await;
            let answers = |status: &SiteStatus| {
                let readiness = status.state.as_ref().map(|state| state.readiness);
                status.id == site && readiness.is_some_and(|readiness| readiness != Readiness::Stale)
            };
            if all.iter().any(answers) {
                let reason = Reason::NoSeat { why: NoSeat::Lives, count: 0 };
                return Err(Finish::Refused(Refused { reason, operation: None }));
            }
            let number = client.change_members(site, SeatChange::Lost, "").await.done()?;
            let full = full_name(&client, site);
            Ok(changed(&name, number, format!("{full} is a member no longer: change {number}")))
        })
    }
}

fn changed(site: &str, number: u64, text: String) -> End {
    End::new(json!({ "outcome": "done", "site": site, "membership": number, "message": &text }), text)
}

/// Waits until every quota has recorded a site
///
/// A site that starts with new storage has no tokens of a quota, and no vote on it, before a round has recorded its new life.
/// Quotas are recorded one after the other. While some are not, the loss of another site may leave these without a majority. So
/// wait for one site before the storage of the next is replaced. The same holds of a change of the members, which every quota records.
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
    /// The region, for all its sites; or one of them, such as us:1
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
        let patience = connection.patience().min(timeout);
        connection.read(json, async move |client: Client| {
            // A region's name is that of all its sites; another is of one.
            let region = client.topology().region(&name);
            let one = if region.is_none() { Some(site_of(&client, &name)?) } else { None };
            let is_meant = |id: SiteId| region == Some(id.region) || one == Some(id);

            let (asked_at, mut pause) = (Instant::now(), PAUSE);
            loop {
                let left = timeout.saturating_sub(asked_at.elapsed());
                let all = client.status(patience.min(left.max(PAUSE))).await;
                let sites: Vec<&SiteStatus> = all.iter().filter(|site| is_meant(site.id)).collect();
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
