//! `slackline status`: the state of every site.

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use slackline::{Client, Readiness, SiteStatus};

use crate::end::{End, Finish};
use crate::output::{self, Table};
use crate::session::Connection;

/// Shows the state of every site
///
/// Asks every site: is it up, does it serve, how far is its clock off, and how long are its
/// round trips to the others? The exit status is 0 also when a site is down.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline status
  slackline status --json

With --json:
  {\"membership\",
   \"sites\": [{\"site\", \"address\", \"up\", \"ready\", \"because\", \"waiting_for\",
              \"unrecorded\", \"clock_error_us\", \"rtt_ms\": {site: ms}}]}
  and more: member is false for a site that is gone, drained is true for one
  that grants nothing by an operator's word. For a site that is not up
  clock_error_us is null, and rtt_ms empty.
  unrecorded is the number of quotas of which the site has no tokens yet,
  because its storage is new, or that have not recorded the last change of
  the members; null as long as too few sites answer.
  membership is the number of that change; 0 if the members never changed.")]
pub(crate) struct Status {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Status {
    pub(crate) fn run(self) -> Result<End, Finish> {
        let patience = self.connection.patience();
        self.connection.read(self.json, async move |client: Client| {
            let sites = client.status(patience).await;
            let rows: Vec<Value> = sites.iter().map(|site| site_json(site, &sites, &client)).collect();
            let membership = sites.iter().filter_map(|site| site.state.as_ref()).map(|state| state.membership).max();
            let json = json!({ "cluster": client.topology().cluster, "membership": membership, "sites": rows });
            Ok(End::new(json, text(&sites, &client)))
        })
    }
}

fn site_json(site: &SiteStatus, all: &[SiteStatus], client: &Client) -> Value {
    let state = site.state.as_ref();
    let round_trips = site.peers().iter().filter_map(|peer| {
        let micros = peer.rtt?;
        Some((client.topology().name(peer.site), json!(micros as f64 / 1000.0)))
    });

    json!({
        "site": site.site,
        "address": site.address,
        "up": site.is_up(),
        "ready": site.is_ready(),
        "readiness": readiness(site),
        "because": (!site.is_ready()).then(|| readiness(site)),
        "waiting_for": waiting_for(site, client),
        "incarnation": state.map(|state| state.incarnation.0),
        "lost_incarnations": state.map(lost_incarnations),
        "epsilon_us": state.map(|state| state.clock.epsilon),
        "clock_error_us": state.map(|state| state.clock.error),
        "clock_trusted": state.map(|state| state.clock.is_trusted),
        "quotas": state.map(|state| state.quotas),
        "unrecorded": site.unrecorded(all),
        "membership": state.map(|state| state.membership),
        "drained": state.map(|state| state.drained),
        "member": !site.is_gone,
        "sessions": state.map(|state| state.sessions),
        "rtt_ms": round_trips.collect::<Map<String, Value>>(),
    })
}

fn readiness(site: &SiteStatus) -> &'static str {
    site.state.as_ref().map_or("down", |state| state.readiness.name())
}

/// The names of the sites that a site waits for.
fn waiting_for(site: &SiteStatus, client: &Client) -> Vec<String> {
    let sites = site.state.iter().flat_map(|state| &state.waiting_for);
    sites.map(|site| client.topology().name(*site)).collect()
}

/// The number of a site's storages that were lost or replaced.
fn lost_incarnations(state: &slackline::Status) -> u32 {
    state.incarnation.0.saturating_sub(1)
}

/// Sentences on what a person has to know, or to do, about a site.
fn notes(site: &SiteStatus, all: &[SiteStatus], client: &Client) -> Vec<String> {
    let mut notes = Vec::new();
    let name = &site.site;
    match site.state.as_ref().map(|state| state.readiness) {
        Some(Readiness::AwaitingNewStorage) => notes.push(format!(
            "{name}: its data directory is new, and other sites know an earlier one. Is its volume mounted, and is `data` the \
             right directory? Only if the earlier data are permanently lost, start it once with --new-storage."
        )),
        Some(Readiness::StorageFull) => {
            notes.push(format!("{name}: its disk is full, or a disk quota is used up: free some space."));
        }
        _ => {}
    }

    if site.state.as_ref().is_some_and(|state| state.drained) && !site.is_gone {
        notes.push(format!(
            "{name}: it was drained: it takes releases, and grants nothing; `slackline site drain {name} --undo` ends that."
        ));
    }

    if site.is_gone {
        notes.push(format!("{name}: it is a member no longer, and never will be."));
    }

    let waiting_for = waiting_for(site, client);
    if !waiting_for.is_empty() {
        notes.push(format!("{name}: waits for {}.", waiting_for.join(", ")));
    }

    if let Some(lost @ 1..) = site.state.as_ref().map(lost_incarnations) {
        let incarnations = if lost == 1 {
            "1 earlier incarnation was".to_owned()
        } else {
            format!("{lost} earlier incarnations were")
        };
        notes.push(format!("{name}: {incarnations} lost; its tokens count as in use until `quota reclaim`."));
    }

    if let Some(unrecorded @ 1..) = site.unrecorded(all) {
        notes.push(format!(
            "{name}: {} not recorded {} yet; `slackline site wait {name}` waits for that.",
            super::site::has(unrecorded),
            if site.state.as_ref().map_or(0, lost_incarnations) > 0 {
                "its new storage"
            } else {
                "the last change of the members"
            },
        ));
    }

    notes
}

fn text(sites: &[SiteStatus], client: &Client) -> String {
    let mut table = Table::new(&["SITE", "ADDRESS", "STATE", "#QUOTAS", "#SESSIONS", "#CLOCK ERROR"]);
    for site in sites {
        let number = |of: fn(&slackline::Status) -> u64| site.state.as_ref().map_or("-".into(), |s| of(s).to_string());
        table.row([
            site.site.clone(),
            site.address.clone(),
            readiness(site).to_owned(),
            number(|state| state.quotas),
            number(|state| state.sessions),
            site.state.as_ref().map_or("-".into(), clock),
        ]);
    }

    let notes: Vec<String> = sites.iter().flat_map(|site| notes(site, sites, client)).collect();
    let notes = if notes.is_empty() { String::new() } else { format!("\n\n{}", notes.join("\n")) };
    format!("{}{notes}{}", table.render(), round_trips(sites, client))
}

fn clock(state: &slackline::Status) -> String {
    let distrusted = if state.clock.is_trusted { "" } else { " (!)" };
    format!("{} µs{distrusted}", state.clock.error)
}

/// The measured round trips, as a matrix if that fits the line; else a pointer to them.
fn round_trips(sites: &[SiteStatus], client: &Client) -> String {
    let names: Vec<&str> = sites.iter().map(|site| site.site.as_str()).collect();
    if names.len() < 2 {
        return String::new();
    }

    let matrix = output::round_trips(&names, |from, to| {
        let from = sites.iter().find(|site| site.site == from)?;
        let peer = from.peers().iter().find(|peer| client.topology().name(peer.site) == to)?;
        peer.rtt.map(Duration::from_micros)
    });
    format!("\n\n{}", matrix.unwrap_or_else(|| "(round trips: see --json)".to_owned()))
}
