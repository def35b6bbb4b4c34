//! `slackline quota`: create, set, acquire, settle, extend, release, show, demand, list, delete; `reclaim` is in [`super::reclaim`].

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use slackline::{
    Agreement, Client, Demand as Asked, DemandMinute, Grant, GrantId, Known, KnownSite, Limit, Listed, ParseNameError,
    ReadError, Reason, Shown, Total, per_second, refill_millionths,
};
use slackline_forecast::time;

use super::reclaim::Reclaim;
use crate::duration;
use crate::end::{End, Finish, agreement_word, unix_ms};
use crate::output::{Table, counted, list};
use crate::session::{Connection, each};
use crate::values::{amount, name, used};
use crate::waited::{Answered, Waited};

/// For so long a grant is not printed while its site is asked how it is given back.
const KNOWN: Duration = Duration::from_millis(100);

/// Creates and uses quotas
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  slackline quota create gpus --limit 5000
  slackline quota acquire gpus 3 --site eu     # prints an id such as eu-1-17
  slackline quota settle --grant eu-1-17 --used 2
  slackline quota release --grant eu-1-17
  slackline quota show gpus"
)]
pub(crate) struct Quota {
    #[command(subcommand)]
    command: QuotaCommand,
}

#[derive(Subcommand)]
enum QuotaCommand {
    Create(Create),
    Set(Set),
    Acquire(Acquire),
    Settle(Settle),
    Extend(Extend),
    Release(Release),
    Show(Show),
    Demand(Demand),
    List(List),
    Tree(Tree),
    Reclaim(Reclaim),
    Delete(Delete),
}

impl Quota {
    pub(crate) fn run(self) -> Result<End, Finish> {
        match self.command {
            QuotaCommand::Create(command) => command.run(),
            QuotaCommand::Set(command) => command.run(),
            QuotaCommand::Acquire(command) => command.run(),
            QuotaCommand::Settle(command) => command.run(),
            QuotaCommand::Extend(command) => command.run(),
            QuotaCommand::Release(command) => command.run(),
            QuotaCommand::Show(command) => command.run(),
            QuotaCommand::Demand(command) => command.run(),
            QuotaCommand::List(command) => command.run(),
            QuotaCommand::Tree(command) => command.run(),
            QuotaCommand::Reclaim(command) => command.run(),
            QuotaCommand::Delete(command) => command.run(),
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        match &self.command {
            QuotaCommand::Create(command) => command.json,
            QuotaCommand::Set(command) => command.json,
            QuotaCommand::Acquire(command) => command.json,
            QuotaCommand::Settle(command) => command.json,
            QuotaCommand::Extend(command) => command.json,
            QuotaCommand::Release(command) => command.json,
            QuotaCommand::Show(command) => command.json,
            QuotaCommand::Demand(command) => command.json,
            QuotaCommand::List(command) => command.json,
            QuotaCommand::Tree(command) => command.json,
            QuotaCommand::Reclaim(command) => command.json,
            QuotaCommand::Delete(command) => command.json,
        }
    }
}

/// Creates a quota
///
/// Its tokens are spread over the sites: equally, or by recent demand if a quota of this name existed shortly before. Creating
/// it again with the same limit and refill does nothing; with others it is refused (`slackline quota set` changes a limit).
///
/// With --refill it is a token bucket: what was granted comes back by itself, and nobody releases it. In any T seconds, over all
/// sites, at most the limit and what is refilled in T is granted. Each site refills by the slower of its two clocks, at an equal part of
/// the rate, and nothing while it is down.
///
/// With --parent it is a part of another quota: what is granted of it counts in that one, too, and in all above. A tree has at most
/// eight levels. A quota that has others below it cannot be deleted, nor one below another while tokens of it are in use.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline quota create gpus --limit 5000
  slackline quota create gpus --limit 5000 --agreement any
  slackline quota create api --limit 3000 --refill 1500/1s
  slackline quota create mails --limit 100 --refill 1000/1h
  slackline quota create acme/web --limit 3000 --parent acme

With --json:
  {\"outcome\", \"quota\", \"limit\", \"agreement\", \"refill_per_second\", \"parent\"}")]
struct Create {
    /// The quota's name: 1 to 256 bytes, no control characters
    #[arg(value_parser = name)]
    name: String,
    /// The number of tokens, over all sites
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = amount)]
    limit: i64,
    /// The tokens that come back by themselves, and in which time, over all sites
    #[arg(long, value_name = "TOKENS/TIME", allow_hyphen_values = true, value_parser = refill)]
    refill: Option<Refill>,
    /// How tokens move between sites: by rounds of the majority, or among any sites that answer, also where they are cut off from the
    /// majority
    #[arg(long, value_name = "majority|any", default_value = "majority", value_parser = agreement)]
    agreement: Agreement,
    /// The quota above it, in which it counts as well. Its name is the parent's, / and more
    #[arg(long, value_name = "QUOTA", value_parser = name)]
    parent: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Tokens that come back in each period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Refill {
    tokens: u64,
    period: Duration,
}

/// Reads a refill, such as `1500/1s`.
fn refill(text: &str) -> Result<Refill, String> {
    let (tokens, period) = text.split_once('/').ok_or("say how many tokens in which time, such as 1500/1s")?;
    let tokens: u64 = tokens.parse().map_err(|_| format!("\"{tokens}\" is not a number of tokens"))?;
    let period = duration::parse(period)?;
    if period.is_zero() {
        return Err("tokens are refilled in a time that is more than nothing, such as 1500/1s".to_owned());
    }
    if tokens == 0 {
        return Err("a rate of 0 refills nothing: leave --refill out".to_owned());
    }
    if refill_millionths(tokens, period).is_none() {
        let end = if tokens as f64 / period.as_secs_f64() < 1.0 {
            "the slowest is one token in 1000000s"
        } else {
            "no quota is refilled as fast"
        };
        return Err(format!("the rate is out of range: {end}"));
    }
    Ok(Refill { tokens, period })
}

impl Create {
    fn run(self) -> Result<End, Finish> {
        let Self { name, limit, refill, agreement, parent, json, connection } = self;
        connection.run(json, async move |client: Client| {
            let mut call = client.quota(&name).create(limit).agreement(agreement);
            if let Some(Refill { tokens, period }) = refill {
                call = call.refill(tokens, period);
            }
            if let Some(parent) = &parent {
                call = call.below(parent);
            }
            let done = call.await.done();
            let limit = done.map_err(|not_done| Finish::of_creation(not_done, &name, parent.as_deref()))?;
            let rate = refill.and_then(|Refill { tokens, period }| refill_millionths(tokens, period)).unwrap_or(0);
            let refills = refill_text(rate);
            let json = json!({
                "outcome": "done",
                "quota": name,
                "limit": limit,
                "agreement": agreement_word(agreement),
                "refill_per_second": refill_json(rate),
                "parent": parent,
            });
            let below = parent.map(|parent| format!(", and counts in {parent}")).unwrap_or_default();
            let text = format!("quota {name} has {}{refills}{below}", counted(limit.unsigned_abs(), "token"));
            Ok(End::new(json, text).answered(Answered::by(None)))
        })
    }
}

/// Reads an agreement.
fn agreement(word: &str) -> Result<Agreement, String> {
    match word {
        "majority" => Ok(Agreement::Majority),
        "any" => Ok(Agreement::Any),
        _ => Err(format!("an agreement is `majority` or `any`, not `{word}`")),
    }
}

/// Sets a quota's limit, while it is in use
///
/// A higher limit adds free tokens. A lower one takes free tokens away at once; if more is in use than the new limit, the rest is
/// the excess: nothing is granted until it has been given back. A majority of the sites must be reachable. A site that cannot be
/// reached does not know of the limit yet, and what it has counts as excess until it does.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline quota set gpus --limit 3000
  slackline quota set gpus --limit 3000 --json

With --json:
  {\"outcome\", \"quota\", \"limit\", \"excess\"}")]
struct Set {
    /// The quota's name
    #[arg(value_parser = name)]
    name: String,
    /// The number of tokens from now on, over all sites
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = amount)]
    limit: i64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Set {
    fn run(self) -> Result<End, Finish> {
        let Self { name, limit, json, connection } = self;
        connection.run(json, async move |client: Client| {
            let Limit { limit, excess } = client.quota(&name).set_limit(limit).await.done()?;
            let json = json!({ "outcome": "done", "quota": name, "limit": limit, "excess": excess });
            let mut text = format!("quota {name} has {}", counted(limit.unsigned_abs(), "token"));
            if excess > 0 {
                let _ = write!(text, "; {}", excess_text(excess));
            }
            Ok(End::new(json, text).answered(Answered::by(None)))
        })
    }
}

/// What an excess means.
fn excess_text(excess: i64) -> String {
    let (are, they) = if excess == 1 { ("is", "it is") } else { ("are", "they are") };
    format!("{excess} more {are} in use, or on the way between sites: nothing is granted until {they} back")
}

/// Takes tokens
///
/// They are yours until you release them by the grant's id, which is printed. With --for, the site that granted them takes
/// them back by itself when the time is up, also after a crash.
///
/// If the site does not answer, the command waits for it until the deadline. With --for it tries another site after 1s, and with
/// --patience after that time. The first site may then have granted tokens too: the command prints the id of that operation. Ask
/// for its outcome, and release the grant, unless --for ends it. Nothing is released of a quota that refills.
///
/// Each grant has a fence, which is printed, and which rises with every grant of the site. A resource that remembers the highest
/// fence it has seen from a site can refuse the holder of an older grant.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline quota acquire gpus 3               # at the nearest site
  slackline quota acquire gpus 3 --site eu
  slackline quota acquire gpus 3 --patience 2s # then elsewhere
  slackline quota acquire gpus 3 --wait --deadline 1m
  slackline quota acquire tokens 1200 --for 60s")]
struct Acquire {
    /// The quota's name
    #[arg(value_parser = name)]
    name: String,
    /// The number of tokens
    #[arg(allow_negative_numbers = true, value_parser = amount)]
    amount: i64,
    /// The only region to take them in; by default the nearest one
    #[arg(long, value_name = "REGION")]
    site: Option<String>,
    /// Let the site take them back after this time, such as 60s or 2h (at most 400d)
    #[arg(long = "for", alias = "hold", value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse_hold)]
    hold: Option<Duration>,
    /// Stay in line until the deadline if the tokens are not to be had; without it, that is refused as exhausted
    #[arg(long)]
    wait: bool,
    /// Try another site if the first does not answer for this time; by default 1s with --for, and never without it
    #[arg(long, value_name = "DURATION", conflicts_with = "site", allow_hyphen_values = true, value_parser = duration::parse_positive)]
    patience: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Acquire {
    fn run(self) -> Result<End, Finish> {
        let Self { name, amount, site, hold, wait, patience, json, connection } = self;
        connection.acquire(json, async move |client: Client| {
            let mut call = client.quota(&name).acquire(amount).tracked();
            if wait {
                call = call.wait();
            }
            if let Some(duration) = hold {
                call = call.hold_for(duration);
            }
            if let Some(patience) = patience {
                call = call.patience(patience);
            }
            if let Some(site) = &site {
                call = call.at(site);
            }
            let grant = call.await.done()?;
            let end = granted(&grant);
            if json || grant.expires_at().is_some() {
                return Ok(end);
            }

            // Only people are told how it is given back. The site that granted it knows whether it is, and asks nobody.
            let (client, fills) = (client.clone(), granted_text(&grant, NOTHING_BACK));
            let site = usize::from(grant.id().site.region);
            Ok(end.or_better(async move {
                let region = client.topology().regions.get(site)?;
                let known = tokio::time::timeout(KNOWN, client.quota(&name).at(region).known()).await;
                known.ok()?.ok().filter(|known| known.refill > 0).map(|_| fills)
            }))
        })
    }
}

/// How people are told that nothing is to be given back.
const NOTHING_BACK: &str = "nothing is to be given back: the quota refills by itself";

/// The output of `quota acquire`.
fn granted(grant: &Grant) -> End {
    let (amount, quota, site, id) = (grant.amount(), grant.quota(), grant.site(), grant.name());
    let fence = grant.fence();
    let left = grant.expires_at().map(|at| at.saturating_duration_since(Instant::now()));
    let json = json!({
        "outcome": "done",
        "quota": quota,
        "amount": amount,
        "site": site,
        "grant": id,
        "fence": { "incarnation": fence.incarnation.0, "number": fence.number },
        "expires_in_ms": left.map(|left| left.as_millis() as u64),
    });

    let release = format!("with `slackline quota release --grant {id}`");
    let end = match left {
        Some(left) => format!("given back by itself in {}, or earlier {release}", duration::words(left)),
        None => format!("given back {release}"),
    };

    // Nobody else knows its id.
    End::new(json, granted_text(grant, &end)).needed().answered(Answered::by(Some(site)))
}

/// What people are told of a grant, and of its end.
fn granted_text(grant: &Grant, end: &str) -> String {
    let (amount, quota, site, id, fence) = (grant.amount(), grant.quota(), grant.site(), grant.name(), grant.fence());
    format!("granted {amount} of {quota} at {site}: {id} (fence {}.{})\n{end}", fence.incarnation.0, fence.number)
}

/// Gives back what is not used of a grant
///
/// Take the most that you may need, and settle when you know what you used: the rest goes back, once. What is used stays granted,
/// until --for of the acquire is over or the grant is released.
#[derive(Args)]
#[command(after_help = "\
Example:
  slackline quota settle --grant eu-1-17 --used 740

With --json:
  {\"outcome\", \"grant\", \"used\", \"amount\"}: amount is what went back")]
struct Settle {
    /// The grant, as `quota acquire` printed it
    #[arg(long, value_name = "ID")]
    grant: String,
    /// The number of its tokens that are used; 0 gives all of it back
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = used)]
    used: i64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Settle {
    fn run(self) -> Result<End, Finish> {
        let Self { grant: text, used, json, connection } = self;
        connection.run(json, async move |client: Client| {
            let grant = grant_named(&client, &text)?;
            let amount = client.settle_grant(grant, used).await.done()?;
            let json = json!({ "outcome": "done", "grant": text, "used": used, "amount": amount });
            let site = client.topology().name(grant.site);
            let end = format!("settled {text}: {used} used, {} back", counted(amount.unsigned_abs(), "token"));
            Ok(End::new(json, end).answered(Answered::by(Some(site))))
        })
    }
}

/// Puts the end of a hold off
///
/// The grant was acquired with --for. It lasts for the given time from now on, or to its earlier end if that is later.
#[derive(Args)]
#[command(after_help = "\
Example:
  slackline quota extend --grant eu-1-18 --for 60s

With --json:
  {\"outcome\", \"grant\", \"expires_in_ms\"}")]
struct Extend {
    /// The grant, as `quota acquire` printed it
    #[arg(long, value_name = "ID")]
    grant: String,
    /// How long it lasts from now on, such as 60s or 2h (at most 400d)
    #[arg(long = "for", value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse_hold)]
    hold: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Extend {
    fn run(self) -> Result<End, Finish> {
        let Self { grant: text, hold, json, connection } = self;
        connection.run(json, async move |client: Client| {
            let grant = grant_named(&client, &text)?;
            let until = client.extend_grant(grant, hold).await.done()?;
            let left = until.saturating_duration_since(Instant::now());
            let json = json!({ "outcome": "done", "grant": text, "expires_in_ms": left.as_millis() as u64 });
            let site = client.topology().name(grant.site);
            let end = format!("extended {text}: given back by itself in {}", duration::words(left));
            Ok(End::new(json, end).answered(Answered::by(Some(site))))
        })
    }
}

/// Gives tokens back
///
/// Either a grant by its id, once, at the site that granted it; or an amount, at any site. Release a grant that has an id by its
/// id, and not by amount too: that would count twice.
///
/// A release that was sent is not sent to another site, because it could count twice. If its site does not answer until the
/// deadline, the outcome is unknown: ask for it with `slackline outcome`. A grant whose site is down cannot be released until
/// that site is back.
#[derive(Args)]
#[command(
    override_usage = "slackline quota release <NAME> <AMOUNT> [OPTIONS]\n       slackline quota release --grant <ID> [OPTIONS]",
    after_help = "\
Examples:
  slackline quota release --grant eu-1-17
  slackline quota release gpus 3 --site ap"
)]
struct Release {
    /// The quota's name
    #[arg(value_parser = name)]
    name: Option<String>,
    /// The number of tokens
    #[arg(allow_negative_numbers = true, value_parser = amount)]
    amount: Option<i64>,
    /// The region to give them back in; by default the nearest one
    #[arg(long, value_name = "REGION", conflicts_with = "grant")]
    site: Option<String>,
    /// The grant to give back, as `quota acquire` printed it
    #[arg(long, value_name = "ID", conflicts_with_all = ["name", "amount"])]
    grant: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Release {
    fn run(self) -> Result<End, Finish> {
        let Self { name, amount, site, grant, json, connection } = self;
        if let Some(grant) = grant {
            return connection.run(json, async move |client: Client| release_grant(&client, &grant).await);
        }

        let (Some(name), Some(amount)) = (name, amount) else {
            return Err(Finish::WrongUse(
                "say what to give back: --grant ID, as `quota acquire` printed it, or a quota's name and an amount; see \
                 `slackline quota release --help`"
                    .to_owned(),
            ));
        };

        connection.run(json, async move |client: Client| {
            let mut call = client.quota(&name).release(amount);
            if let Some(site) = &site {
                call = call.at(site);
            }
            let amount = call.await.done()?;
            let json = json!({ "outcome": "done", "quota": name, "amount": amount });
            Ok(End::new(json, format!("released {amount} of {name}")).answered(Answered::by(site)))
        })
    }
}

async fn release_grant(client: &Client, text: &str) -> Result<End, Finish> {
    let grant = grant_named(client, text)?;
    let amount = client.release_grant(grant).await.done()?;
    let json = json!({ "outcome": "done", "grant": text, "amount": amount });
    let site = client.topology().name(grant.site);
    Ok(End::new(json, format!("released {text}: {}", counted(amount.unsigned_abs(), "token")))
        .answered(Answered::by(Some(site))))
}

/// The grant that `quota acquire` has printed this id of.
fn grant_named(client: &Client, text: &str) -> Result<GrantId, Finish> {
    client.topology().parse_grant(text).map_err(|error| explain(text, &error))
}

fn explain(text: &str, error: &ParseNameError) -> Finish {
    Finish::WrongUse(match error {
        ParseNameError::Malformed => {
            format!(
                "--grant {text} is not a grant's id: expected a region and two numbers joined by '-', such as eu-1-17"
            )
        }
        error => format!("--grant {text}: {error}"),
    })
}

/// Counts a quota over all sites
///
/// The number in use is exact if every site answers, and grants and gives back nothing while it is asked; otherwise an interval.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline quota show gpus
  slackline quota show gpus --json
  slackline quota show gpus --local            # nobody is asked

With --json:
  {\"name\", \"limit\", \"agreement\", \"excess\", \"refill_per_second\", \"in_use\",
   \"sites\": [{\"site\", \"tokens\", \"set_aside\", \"incarnation\"}],
   \"missing\": [site, …], \"local\", \"rebalances\", \"gifts\", \"released_above\"}
  in_use is a number, or {\"min\", \"max\"} if sites grant meanwhile, or one is down.

With --local --json:
  {\"name\", \"limit\", \"excess\", \"refill_per_second\", \"at_most\", \"estimate\",
   \"sites\": [{\"site\", \"tokens\", \"age_ms\"}]}
  No more than at_most is in use; age_ms is null if a site has said nothing lately.")]
struct Show {
    /// The quota's name
    #[arg(value_parser = name)]
    name: String,
    /// The region to ask; by default the nearest one
    #[arg(long, value_name = "REGION")]
    site: Option<String>,
    /// Tell what this one site knows; it asks no other
    #[arg(long)]
    local: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Show {
    fn run(self) -> Result<End, Finish> {
        let Self { name, site, local, json, connection } = self;
        connection.read(json, async move |client: Client| {
            let mut quota = client.quota(&name);
            if let Some(site) = &site {
                quota = quota.at(site);
            }
            if local {
                let known = quota.known().await?;
                let answered = Answered { by: Some(known.told_by.clone()), waited: Waited::Nobody };
                return Ok(End::new(known_json(&known), known_text(&known)).answered(answered));
            }
            let shown = quota.show().await?;
            let answered = Answered { by: site, waited: Waited::Every };
            Ok(End::new(shown_json(&shown), shown_text(&shown)).answered(answered))
        })
    }
}

fn known_json(known: &Known) -> Value {
    let age = |site: &KnownSite| site.age.map(|age| age.as_millis() as u64);
    let sites = known.sites.iter().map(|site| json!({ "site": site.site, "tokens": site.tokens, "age_ms": age(site) }));
    json!({
        "name": known.name,
        "limit": known.limit,
        "excess": known.excess,
        "at_most": known.at_most,
        "estimate": known.estimate,
        "refill_per_second": refill_json(known.refill),
        "sites": sites.collect::<Vec<_>>(),
    })
}

/// What stands above the table of a quota's sites.
fn headed(name: &str, about: &str, excess: i64) -> String {
    let excess = if excess > 0 { format!("{}\n", excess_text(excess)) } else { String::new() };
    format!("{name}: {about}\n{excess}\n")
}

/// The tokens that come back by themselves each second, for programs; null if none do.
fn refill_json(millionths: u64) -> Value {
    if millionths == 0 { Value::Null } else { json!(millionths as f64 / 1e6) }
}

/// The same for people, as the end of a sentence.
fn refill_text(millionths: u64) -> String {
    if millionths == 0 { String::new() } else { format!(", refills {} a second", per_second(millionths)) }
}

fn known_text(known: &Known) -> String {
    let Known { name, limit, at_most, estimate, told_by, refill, .. } = known;
    let refills = refill_text(*refill);
    let about = format!("about {estimate} of {limit} in use, at most {at_most}, as far as {told_by} knows{refills}");
    let mut text = headed(name, &about, known.excess);
    let mut table = Table::new(&["SITE", "#TOKENS", "#AGE"]);
    for site in &known.sites {
        let age = site.age.map_or("-".to_owned(), duration::words);
        table.row([site.site.clone(), site.tokens.to_string(), age]);
    }
    text.push_str(&table.render());
    text
}

fn shown_json(shown: &Shown) -> Value {
    let sites = shown.sites.iter().map(|site| {
        json!({
            "site": site.site,
            "tokens": site.tokens,
            "set_aside": site.set_aside,
            "incarnation": site.incarnation.0,
        })
    });

    json!({
        "name": shown.name,
        "limit": shown.limit,
        "agreement": agreement_word(shown.agreement),
        "excess": shown.excess,
        "in_use": total_json(shown.in_use),
        "sites": sites.collect::<Vec<_>>(),
        "missing": shown.missing,
        "local": shown.local,
        "rebalances": shown.rebalances,
        "gifts": shown.gifts,
        "released_above": shown.released_above,
        "refill_per_second": refill_json(shown.refill),
    })
}

fn total_json(total: Total) -> Value {
    match total.exact() {
        Some(exact) => json!(exact),
        None => json!({ "min": total.min, "max": total.max }),
    }
}

fn shown_text(shown: &Shown) -> String {
    let in_use = match shown.in_use.exact() {
        Some(exact) => exact.to_string(),
        None => format!("{} to {}", shown.in_use.min, shown.in_use.max),
    };

    let by = if shown.agreement == Agreement::Any { ", agreement any" } else { "" };
    let about = format!("{in_use} of {} in use{by}{}", shown.limit, refill_text(shown.refill));
    let mut text = headed(&shown.name, &about, shown.excess);
    let mut table = Table::new(&["SITE", "#TOKENS", "#SET ASIDE", "#INCARNATION"]);
    for site in &shown.sites {
        let cells = [site.tokens.to_string(), site.set_aside.to_string(), site.incarnation.0.to_string()];
        table.row(std::iter::once(site.site.clone()).chain(cells));
    }

    text.push_str(&table.render());
    let _ = write!(
        text,
        "\n\n{} answered locally, {}, {}",
        counted(shown.local, "operation"),
        counted(shown.rebalances, "rebalance"),
        counted(shown.gifts, "gift")
    );

    if !shown.missing.is_empty() {
        let _ = write!(text, "\nno answer from: {}", list(&shown.missing));
    }

    if shown.released_above > 0 {
        let _ = write!(
            text,
            "\n{} more released than were acquired: some client releases tokens that it never had",
            shown.released_above
        );
    }

    text
}

/// Prints how many tokens were asked for, minute by minute
///
/// A site keeps what was asked of it in the last two weeks, in memory, of the quotas that its configuration names under `[[demand]]`. A
/// minute in which it was not there from the beginning to the end is missing. The output is a series for `slackline-train`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline quota demand gpus --site eu > gpus.csv
  slackline quota demand gpus --json

With --json:
  {\"name\", \"site\", \"demand\": [{\"period\", \"count\"}]}
  period is the minute's beginning, in UTC.")]
struct Demand {
    /// The quota's name
    #[arg(value_parser = name)]
    name: String,
    /// The region whose demand it is; by default the nearest one that keeps it
    #[arg(long, value_name = "REGION")]
    site: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Demand {
    fn run(self) -> Result<End, Finish> {
        let Self { name, site, json, connection } = self;
        connection.read(json, async move |client: Client| {
            let mut quota = client.quota(&name);
            if let Some(site) = &site {
                quota = quota.at(site);
            }
            let Some(asked) = quota.demand().await? else {
                let who = site.map_or("no site keeps".to_owned(), |site| format!("{site} does not keep"));
                return Err(Finish::Failed(format!(
                    "{who} the demand for {name}: name it under [[demand]] in the configuration of the site"
                )));
            };
            let answered = Answered { by: Some(asked.site.clone()), waited: Waited::Nobody };
            Ok(End::new(demand_json(&asked), demand_text(&asked)).answered(answered))
        })
    }
}

/// The beginning of a minute, as a series has it.
fn period(minute: &DemandMinute) -> String {
    time::format((unix_ms(minute.began) / 1_000) as i64)
}

fn demand_json(asked: &Asked) -> Value {
    let minutes = asked.minutes.iter().map(|minute| json!({ "period": period(minute), "count": minute.count }));
    json!({ "name": asked.name, "site": asked.site, "demand": minutes.collect::<Vec<_>>() })
}

fn demand_text(asked: &Asked) -> String {
    let mut text = "period,count".to_owned();
    for minute in &asked.minutes {
        let _ = write!(text, "\n{},{}", period(minute), minute.count);
    }
    text
}

/// Lists all quotas
#[derive(Args)]
#[command(after_help = "Example:\n  slackline quota list")]
struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl List {
    fn run(self) -> Result<End, Finish> {
        self.connection.read(self.json, async |client: Client| {
            let quotas = client.list().await?;
            let rows = quotas.iter().map(|quota| {
                json!({
                    "name": quota.name,
                    "limit": quota.limit,
                    "tokens": quota.tokens,
                    "site": quota.site,
                    "parent": quota.parent,
                })
            });
            let json = json!({ "quotas": rows.collect::<Vec<_>>() });
            if quotas.is_empty() {
                return Ok(End::new(json, "no quotas; create one with `slackline quota create gpus --limit 5000`"));
            }
            let by = quotas.first().map(|quota| quota.site.clone());
            let mut table = Table::new(&["NAME", "#LIMIT", "#TOKENS", "AT SITE"]);
            for quota in quotas {
                table.row([quota.name, quota.limit.to_string(), quota.tokens.to_string(), quota.site]);
            }
            Ok(End::new(json, table.render()).answered(Answered::by(by)))
        })
    }
}

/// Shows a quota and all that are below it, with what is in use of each
///
/// Each is counted over all sites, by itself: while tokens are taken and given back, what is in use below a quota may be more than what
/// was counted of it. Of a quota no more is free than of those above it that are shown.
#[derive(Args)]
#[command(after_help = "\
Example:
  slackline quota tree acme

With --json:
  {\"quotas\": [{\"name\", \"parent\", \"limit\", \"in_use\": {\"min\", \"max\"}}],
   \"missing\": [site, …]}, a parent before those below it")]
struct Tree {
    /// The name of the first quota
    #[arg(value_parser = name)]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Tree {
    fn run(self) -> Result<End, Finish> {
        let Self { name, json, connection } = self;
        let until = Instant::now() + connection.deadline;
        connection.read(json, async move |client: Client| {
            let listed = client.list().await?;
            let mut levels = Vec::new();
            add_levels(&listed, &name, 0, &mut levels);
            let quotas = levels.iter().map(|(_, level)| client.quota(&level.name)).collect();
            let shown = each(quotas, until, |quota, left| async move { quota.show_within(left).await }).await;

            let (mut rows, mut missing) = (Vec::new(), BTreeSet::new());
            let mut table = Table::new(&["QUOTA", "#LIMIT", "#IN USE", "#FREE"]);
            // What is free of the last quota of each level: an acquire takes from all of them.
            let mut free_at: Vec<i64> = Vec::new();
            for ((depth, level), shown) in levels.into_iter().zip(shown) {
                let Some(shown) = shown else {
                    return Err(Finish::Failed(format!(
                        "not every quota below {name} was counted in time: {} was not; give more with --deadline",
                        level.name
                    )));
                };
                // One that is deleted meanwhile is left out, but not the one that was asked for.
                let shown = match shown {
                    Err(ReadError::Refused(Reason::UnknownQuota)) if depth > 0 => continue,
                    // Nobody who answered knows it any more, and who did not may.
                    Err(ReadError::Refused(Reason::Unreachable { missing: sites })) if depth > 0 => {
                        missing.extend(sites);
                        continue;
                    }
                    shown => shown?,
                };
                missing.extend(shown.missing);
                let Total { min, max, .. } = shown.in_use;
                rows.push(json!({
                    "name": level.name,
                    "parent": level.parent,
                    "limit": shown.limit,
                    "in_use": { "min": min, "max": max },
                }));
                let in_use = if min == max { max.to_string() } else { format!("{min} to {max}") };
                free_at.truncate(depth);
                let free = (shown.limit - max).max(0).min(free_at.last().copied().unwrap_or(i64::MAX));
                free_at.push(free);
                let name = format!("{}{}", "  ".repeat(depth), level.name);
                table.row([name, shown.limit.to_string(), in_use, free.to_string()]);
            }
            let (mut text, missing) = (table.render(), Vec::from_iter(missing));
            if !missing.is_empty() {
                let _ = write!(text, "\nno answer from: {}", list(&missing));
            }
            Ok(End::new(json!({ "quotas": rows, "missing": missing }), text).answered(Answered::by(None)))
        })
    }
}

/// Adds a quota, and all that are below it, each with the number of those above it.
fn add_levels(listed: &[Listed], name: &str, depth: usize, levels: &mut Vec<(usize, Listed)>) {
    let quota = listed.iter().find(|quota| quota.name == name).cloned();
    // The nearest site may not have heard of one that is new.
    let unlisted = || Listed { name: name.to_owned(), limit: 0, tokens: 0, site: String::new(), parent: None };
    levels.push((depth, quota.unwrap_or_else(unlisted)));
    // Names grow from level to level, so this ends.
    let is_child = |quota: &&Listed| quota.parent.as_deref() == Some(name) && quota.name.len() > name.len();
    for child in listed.iter().filter(is_child) {
        add_levels(listed, &child.name, depth + 1, levels);
    }
}

/// Deletes a quota, with all grants of it
///
/// Every site must be reachable. One that has others below it is not deleted, nor one below another while tokens of it are in use.
#[derive(Args)]
#[command(after_help = "Example:\n  slackline quota delete gpus")]
struct Delete {
    /// The quota's name
    #[arg(value_parser = name)]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Delete {
    fn run(self) -> Result<End, Finish> {
        let Self { name, json, connection } = self;
        connection.run(json, async move |client: Client| {
            client.quota(&name).delete().await.done()?;
            let json = json!({ "outcome": "done", "quota": name });
            Ok(End::new(json, format!("quota {name} is deleted")).answered(Answered::by(None)))
        })
    }
}
