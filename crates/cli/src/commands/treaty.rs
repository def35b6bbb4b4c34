//! `slackline treaty`: create, list, show, explain, drop.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use slackline::{
    Client, Key, Metric, Order, ReadError, Reason, Refused, Statement, SynchronizationCause, TreatyFound,
    TreatyRefusal, TreatyShown, TreatySynchronization,
};

use super::object::key;
use crate::duration;
use crate::end::{self, End, Finish};
use crate::json;
use crate::output::{Table, counted, list, shortened};
use crate::session::Connection;
use crate::waited::{Answered, Waited};

/// The deepest that metrics may nest in a file.
const DEPTH: usize = 64;

/// Keeps statements about counters of several regions true
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  echo '{\"metric\": {\"sum\": [\"us:seats\", \"eu:seats\"]}, \"at_least\": 0}' \\
    | slackline treaty create seats -
  slackline treaty show seats
  slackline treaty drop seats"
)]
pub(crate) struct Treaty {
    #[command(subcommand)]
    command: TreatyCommand,
}

#[derive(Subcommand)]
enum TreatyCommand {
    Create(Create),
    List(List),
    Show(Show),
    Explain(Explain),
    Drop(Drop),
}

impl Treaty {
    pub(crate) fn run(self) -> Result<End, Finish> {
        match self.command {
            TreatyCommand::Create(command) => command.run(),
            TreatyCommand::List(command) => command.run(),
            TreatyCommand::Show(command) => command.run(),
            TreatyCommand::Explain(command) => command.run(),
            TreatyCommand::Drop(command) => command.run(),
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        match &self.command {
            TreatyCommand::Create(command) => command.json,
            TreatyCommand::List(command) => command.json,
            TreatyCommand::Show(command) => command.json,
            TreatyCommand::Explain(command) => command.json,
            TreatyCommand::Drop(command) => command.json,
        }
    }
}

/// Makes a treaty
///
/// The file has one JSON object: a metric, and what is said of it.
///
///   {"metric": METRIC, "at_least": NUMBER}     or "at_most", "equals"
///   {"all": [STATEMENT, …]}                    all of these
///
/// A metric is the key of a counter, or one of
///
///   {"sum": [METRIC, …]}    {"minus": [METRIC, METRIC]}
///   {"min": [METRIC, …]}    {"times": [NUMBER, METRIC]}
///   {"log2": KEY}           rounded down; -1 of a counter below one
///   "*:NAME"                the sum of the counters of this name in all regions
///
/// Beside it may stand "tree", which says what regions are asked for slack first:
/// "rtt", the near ones; "given", as sums nest; "flat", all at once. And "home",
/// the region that says whether the treaty is valid; by default the first one of
/// which a counter is in the statement.
///
/// The statement must be true. From then on each region keeps its part true alone;
/// a write that would make it false retracts the treaty first, and waits until
/// nobody relies on it.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  slackline treaty create a-leads leads.json
  echo '{\"metric\": {\"minus\": [\"us:a\", \"eu:b\"]}, \"at_least\": 1}' \\
    | slackline treaty create a-leads -"
)]
struct Create {
    /// The treaty's name: 1 to 1000 bytes, no control characters, no = at its beginning
    name: String,
    /// The file; - for standard input
    file: String,
    /// In place of the treaty of this name and home, whatever that says
    #[arg(long)]
    replace: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Create {
    fn run(self) -> Result<End, Finish> {
        let Self { name, file, replace, json, connection } = self;
        let parsed = json::text_of(&file).and_then(|text| parse(&text));
        let Parsed { statement, order, home } =
            parsed.map_err(|problem| Finish::WrongUse(format!("{}: {problem}", json::name_of(&file))))?;
        connection.run(json, async move |client: Client| {
            let text = statement.to_string();
            let mut treaty = client.treaty(&name, statement).order(order);
            if let Some(home) = &home {
                treaty = treaty.home(home);
            }
            let made = if replace { treaty.replace().await } else { treaty.create().await };
            made.done()?;
            let json = json!({ "outcome": "done", "name": name, "statement": text });
            Ok(End::new(json, format!("treaty {name} is valid: {text}"))
                .answered(Answered { by: None, waited: Waited::Each { has_silent: false } }))
        })
    }
}

/// Shows the treaties of the cluster
#[derive(Args)]
#[command(after_help = "Example:\n  slackline treaty list")]
struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl List {
    fn run(self) -> Result<End, Finish> {
        let Self { json, connection } = self;
        connection.read(json, async move |client: Client| {
            let found = client.treaties().await?;
            let mut table = Table::new(&["TREATY", "HOME", "STATE", "STATEMENT"]);
            let mut rows = Vec::new();
            for TreatyFound { treaty, home, is_retracted, .. } in &found.found {
                let statement = treaty.statement().to_string();
                let state = if *is_retracted { "retracted" } else { "in force" };
                let name = shortened(treaty.name(), NAME);
                table.row([name, home.clone(), state.to_owned(), shortened(&statement, STATEMENT)]);
                let name = treaty.name();
                rows.push(json!({ "name": name, "home": home, "statement": statement, "retracted": is_retracted }));
            }
            let mut text = if rows.is_empty() { "no treaties".to_owned() } else { table.render() };
            if found.found.iter().any(|found| found.treaty.is_unnamed()) {
                text.push_str("\nA name that begins with = is of a treaty that a client made for itself.");
            }
            if !found.missing.is_empty() {
                let _ = write!(text, "\nnot those of {}: no answer from there", found.missing.join(", "));
            }
            for region in &found.incomplete {
                let _ = write!(text, "\nthere are more at {region}, for which its answer has no room");
            }
            let json = json!({ "treaties": rows, "missing": found.missing, "incomplete": found.incomplete });
            let waited = Waited::Each { has_silent: !found.missing.is_empty() };
            Ok(End::new(json, text).answered(Answered { by: None, waited }))
        })
    }
}

/// The most characters of a treaty's name and of its statement in the list, so that a line fits a terminal of 80 columns.
const NAME: usize = 20;
const STATEMENT: usize = 36;

/// The most characters of a statement above the table of a treaty, and where that is drawn again and again: one may be about thousands of
/// counters.
const WHOLE: usize = 2_000;
const TWO_LINES: usize = 160;

/// Shows a treaty, and the slack of each region
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline treaty show a-leads
  slackline treaty show a-leads --watch

With --json:
  {\"name\", \"home\", \"statement\", \"valid\", \"retracted\", \"until_unix_ms\",
   \"holders\": [site, …], \"down\": [site, …],
   \"rebalances\", \"gifts\", \"extensions\", \"retracts\",
   \"nodes\": [{\"node\", \"parent\", \"site\", \"value\", \"bound\", \"rate_per_s\",
              \"slack\", \"velocity_per_s\", \"noise\", \"fails_in_s\",
              \"until_unix_ms\", \"up\"}]}
  until_unix_ms is null: no promise of a treaty ends by time alone.")]
struct Show {
    /// The treaty's name
    name: String,
    /// Draw it again whenever it changes, until interrupted
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Show {
    fn run(self) -> Result<End, Finish> {
        let Self { name, watch, json, connection } = self;
        if !watch {
            return connection.read(json, async move |client: Client| {
                let shown = find(&client, &name).await?.show().await.map_err(refused)?;
                Ok(End::new(shown_json(&shown), shown_text(&shown, WHOLE)).answered(asked(&shown)))
            });
        }
        connection.watch(async move |client: Client| {
            let treaty = find(&client, &name).await?;
            let mut watched = treaty.watch().map_err(refused)?;
            let mut drawn = None;
            loop {
                let next = tokio::select! {
                    next = watched.next() => next,
                    _ = tokio::signal::ctrl_c() => return Ok(End::silent()),
                };
                let text = match next {
                    Ok(shown) => shown_text(&shown, TWO_LINES),
                    // It is seen again when its home is back.
                    Err(reason @ Reason::Unreachable { .. }) => reason.to_string(),
                    Err(reason) => return Err(refused(reason)),
                };
                // From the top of the screen, which is empty then. A forecast that is as it was is not drawn again.
                if drawn.as_ref() != Some(&text) {
                    if !end::redraw(&text) {
                        return Ok(End::silent());
                    }
                    drawn = Some(text);
                }
            }
        })
    }
}

/// Shows what waited for slack of a treaty, and why
///
/// It shows the treaty as show does, and the last 64 transactions that waited at one of its regions for another: because slack had to come
/// from there (slack), or the treaty had to be retracted first (retraction), or in vain (refused). Each site remembers its own, in
/// memory.
#[derive(Args)]
#[command(after_help = "\
Example:
  slackline treaty explain a-leads

With --json, what show has, and
  {\"synchronizations\": [{\"at_unix_ms\", \"cause\", \"node\",
                        \"sites\": [site, …], \"waited_ms\"}]}")]
struct Explain {
    /// The treaty's name
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Explain {
    fn run(self) -> Result<End, Finish> {
        let Self { name, json, connection } = self;
        connection.read(json, async move |client: Client| {
            let treaty = find(&client, &name).await?;
            let (shown, waited) = treaty.explain().await.map_err(refused)?;
            let mut json = shown_json(&shown);
            json["synchronizations"] = waited.iter().map(waited_json).collect();
            let text = format!("{}\n\n{}", shown_text(&shown, WHOLE), waited_text(&waited, SystemTime::now()));
            Ok(End::new(json, text).answered(asked(&shown)))
        })
    }
}

fn cause(of: &TreatySynchronization) -> &'static str {
    match of.cause {
        SynchronizationCause::Slack => "slack",
        SynchronizationCause::Retraction => "retraction",
        SynchronizationCause::Refused => "refused",
    }
}

fn waited_json(of: &TreatySynchronization) -> Value {
    json!({
        "at_unix_ms": end::unix_ms(of.at),
        "cause": cause(of),
        "node": of.node,
        "sites": of.sites,
        "waited_ms": of.waited.as_micros() as f64 / 1e3,
    })
}

fn waited_text(waited: &[TreatySynchronization], now: SystemTime) -> String {
    if waited.is_empty() {
        return "nothing has waited for it since its sites were started".to_owned();
    }
    let mut table = Table::new(&["#AGO", "AT", "#WAITED", "FOR", "ASKED"]);
    for of in waited {
        let ago = now.duration_since(of.at).unwrap_or_default();
        let waited = format!("{:.1} ms", of.waited.as_micros() as f64 / 1e3);
        table.row([duration::words(ago), of.node.clone(), waited, cause(of).to_owned(), list(&of.sites)]);
    }
    table.render()
}

/// Ends a treaty
///
/// It is waited for until no region relies on it any more.
#[derive(Args)]
#[command(after_help = "Example:\n  slackline treaty drop a-leads")]
struct Drop {
    /// The treaty's name
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Drop {
    fn run(self) -> Result<End, Finish> {
        let Self { name, json, connection } = self;
        connection.run(json, async move |client: Client| {
            let treaty = find(&client, &name).await?;
            treaty.drop().await.done()?;
            let json = json!({ "outcome": "done", "name": name });
            Ok(End::new(json, format!("treaty {name} is gone")).answered(Answered::by(None)))
        })
    }
}

fn refused(reason: Reason) -> Finish {
    Finish::Refused(Refused { reason, operation: None })
}

/// The treaty of this name.
pub(crate) async fn find(client: &Client, name: &str) -> Result<slackline::Treaty, Finish> {
    match client.find_treaty(name).await {
        Ok(found) => found.ok_or_else(|| refused(Reason::Treaty(TreatyRefusal::Unknown))),
        Err(error @ ReadError::Unreachable { .. }) => Err(Finish::Failed(format!(
            "no site that answers is the home of a treaty {name}, and one that does not may be ({error}); `slackline status` shows \
             which sites are up"
        ))),
        Err(error) => Err(error.into()),
    }
}

fn shown_json(shown: &TreatyShown) -> Value {
    let nodes = shown.nodes.iter().map(|node| {
        // What a region that does not answer has is not known, and nor is then what the whole comes to.
        let known = node.up.then_some(node);
        json!({
            "node": node.node,
            "parent": node.parent,
            "site": node.site,
            "value": known.map(|node| node.value),
            "bound": known.map(|node| node.bound),
            "rate_per_s": known.map(|node| node.rate_per_s),
            "slack": known.map(|node| node.slack),
            "velocity_per_s": known.map(|node| node.velocity_per_s),
            "noise": known.map(|node| node.noise),
            "fails_in_s": node.fails_in.map(|left| left.as_secs_f64()),
            "until_unix_ms": null_time(),
            "up": node.up,
        })
    });
    json!({
        "name": shown.name,
        "home": shown.home,
        "statement": shown.statement.to_string(),
        "valid": shown.valid,
        "retracted": shown.is_retracted,
        "until_unix_ms": null_time(),
        "down": shown.down,
        "holders": shown.holders,
        "rebalances": shown.rebalances,
        "gifts": shown.gifts,
        "extensions": shown.extensions,
        "retracts": shown.retracts,
        "nodes": nodes.collect::<Vec<_>>(),
    })
}

/// No promise of a treaty ends by time alone.
fn null_time() -> Option<u64> {
    None
}

/// Who was asked for what a treaty shows: each of its regions, of which some may be down.
fn asked(shown: &TreatyShown) -> Answered {
    Answered { by: None, waited: Waited::Each { has_silent: !shown.down.is_empty() } }
}

/// The treaty for a person, with so many characters of its statement.
fn shown_text(shown: &TreatyShown, statement: usize) -> String {
    let (state, why) = match shown.valid {
        true => ("valid", String::new()),
        false if shown.is_retracted => {
            ("not valid", ": a write retracted it. Who asks if it holds makes it again, once it is true".to_owned())
        }
        // It may be relied on all the same, for as long as rights over it last; this command cannot know.
        false => ("not known to hold", format!(": no answer from {}", list(&shown.down))),
    };
    let relied = match shown.holders.len() {
        0 => String::new(),
        _ if shown.valid => format!(", relied upon by {}", list(&shown.holders)),
        // Whoever has one may rely on the statement until it ends: it is true for as long.
        _ => format!("; rights over it are left at {}", list(&shown.holders)),
    };
    let mut table = Table::new(&["PART", "#VALUE", "#BOUND", "#SLACK", "#MOVES/S", "#BOUND/S", "#LASTS"]);
    for node in &shown.nodes {
        let name = if node.parent.is_some() { format!("  {}", node.node) } else { node.node.clone() };
        if !node.up {
            // What the others have comes to something, but not to what the whole does.
            let state = if node.parent.is_some() { "down" } else { "unknown" };
            table.row([
                name,
                state.to_owned(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ]);
            continue;
        }
        let lasts = node.fails_in.map_or_else(|| "long".to_owned(), duration::words);
        table.row([
            name,
            node.value.to_string(),
            node.bound.to_string(),
            node.slack.to_string(),
            format!("{:+.1}", node.velocity_per_s),
            format!("{:+.1}", node.rate_per_s),
            lasts,
        ]);
    }
    let counts = [
        counted(shown.rebalances, "rebalance"),
        counted(shown.gifts, "gift"),
        counted(shown.extensions, "extension"),
        counted(shown.retracts, "retraction"),
    ];
    let counts = counts.join(", ");
    let statement = shortened(&shown.statement.to_string(), statement);
    let head = format!("{}: {statement}\n{state} at {}{why}{relied}", shown.name, shown.home);
    if shown.nodes.is_empty() {
        format!("{head}\n\n{counts}")
    } else {
        format!("{head}\n\n{}\n\n{counts}", table.render())
    }
}

/// A statement from a file, and what stands beside it.
struct Parsed {
    statement: Statement,
    order: Order,
    home: Option<String>,
}

/// Reads a statement.
fn parse(text: &str) -> Result<Parsed, String> {
    json::check(text).map_err(|unfit| unfit.to_string())?;
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(mut fields) = value else {
        return Err("not an object with a metric and what is said of it".to_owned());
    };
    let tree = fields.remove("tree");
    let home = match fields.remove("home") {
        None => None,
        Some(Value::String(home)) => Some(home),
        Some(other) => return Err(format!("home: {other} is no region's name")),
    };
    let mut groups = Vec::new();
    let statement = statement(&Value::Object(fields), &mut groups, 0)?;
    let order = match tree.as_ref().map(|tree| tree.as_str()) {
        None | Some(Some("rtt")) => Order::Near,
        Some(Some("flat")) => Order::Flat,
        Some(Some("given")) => Order::Given(groups.into_iter().map(|group| group.into_iter().collect()).collect()),
        Some(_) => {
            return Err(format!("tree: {} is none of \"rtt\", \"given\" and \"flat\"", tree.unwrap_or_default()));
        }
    };
    Ok(Parsed { statement, order, home })
}

fn statement(value: &Value, groups: &mut Vec<BTreeSet<String>>, depth: usize) -> Result<Statement, String> {
    let Value::Object(fields) = value else { return Err(format!("{value} is no statement")) };
    if depth > DEPTH {
        return Err("it nests too deeply".to_owned());
    }
    if let Some(all) = fields.get("all") {
        let Value::Array(all) = all else { return Err("all: a list is expected".to_owned()) };
        only(fields, &["all"])?;
        let each = all
            .iter()
            .enumerate()
            .map(|(at, one)| statement(one, groups, depth + 1).map_err(|problem| format!("all[{at}]: {problem}")));
        return Ok(Statement::all(each.collect::<Result<Vec<_>, _>>()?));
    }

    const SAYS: [&str; 3] = ["at_least", "at_most", "equals"];
    let said: Vec<&str> = SAYS.into_iter().filter(|word| fields.contains_key(*word)).collect();
    let [word] = said[..] else { return Err("one of \"at_least\", \"at_most\" and \"equals\" is expected".to_owned()) };
    only(fields, &["metric", word])?;
    let number = fields[word].as_i64().ok_or_else(|| format!("{word}: {} is no integer of 64 bits", fields[word]))?;
    let of = fields.get("metric").ok_or("\"metric\" is expected")?;
    let (metric, _) = metric(of, groups, 0).map_err(|problem| format!("metric: {problem}"))?;
    Ok(match word {
        "at_least" => metric.at_least(number),
        "at_most" => metric.at_most(number),
        _ => metric.equals(number),
    })
}

/// A metric, and the regions of its counters. Each sum is a group of regions.
fn metric(
    value: &Value,
    groups: &mut Vec<BTreeSet<String>>,
    depth: usize,
) -> Result<(Metric, BTreeSet<String>), String> {
    const WORDS: &str = "sum, minus, min, times, log2";
    let counter = |text: &str| -> Result<Key, String> { key(text).map_err(|error| error.to_string()) };
    let of = |key: &Key| BTreeSet::from([key.region().to_owned()]);
    if depth > DEPTH {
        return Err("it nests too deeply".to_owned());
    }
    let fields = match value {
        Value::String(text) if text.starts_with("*:") => {
            return Ok((Metric::everywhere(&text[2..]), BTreeSet::new()));
        }
        Value::String(text) => {
            let key = counter(text)?;
            return Ok((key.metric(), of(&key)));
        }
        Value::Object(fields) if fields.len() == 1 => fields,
        _ => return Err(format!("{value} is no key of a counter, and no object with one of {WORDS}")),
    };
    let (word, inner) = fields.iter().next().expect("it has one");
    let mut all = |values: &[Value]| -> Result<Vec<(Metric, BTreeSet<String>)>, String> {
        let each = values
            .iter()
            .enumerate()
            .map(|(at, value)| metric(value, groups, depth + 1).map_err(|problem| format!("{word}[{at}]: {problem}")));
        each.collect()
    };
    let regions =
        |parts: &[(Metric, BTreeSet<String>)]| parts.iter().flat_map(|(_, regions)| regions.clone()).collect();
    let list = || inner.as_array().ok_or_else(|| format!("{word}: a list is expected"));
    match word.as_str() {
        "sum" => {
            let parts = all(list()?)?;
            let here: BTreeSet<String> = regions(&parts);
            if !here.is_empty() && !groups.contains(&here) {
                groups.push(here.clone());
            }
            Ok((Metric::sum(parts.into_iter().map(|(metric, _)| metric)), here))
        }
        "minus" => match <[_; 2]>::try_from(all(list()?)?) {
            Ok([(one, mut here), (other, more)]) => {
                here.extend(more);
                Ok((one - other, here))
            }
            Err(_) => Err("minus: two metrics are expected".to_owned()),
        },
        "min" => {
            let parts = all(list()?)?;
            let here = regions(&parts);
            let smallest = parts.into_iter().map(|(metric, _)| metric).reduce(Metric::min);
            Ok((smallest.ok_or("min: at least one metric is expected")?, here))
        }
        "times" => match &list()?[..] {
            [factor, of] => {
                let factor = factor.as_i64().ok_or_else(|| format!("times: {factor} is no integer of 64 bits"))?;
                let (metric, here) = metric(of, groups, depth + 1)?;
                Ok((metric * factor, here))
            }
            _ => Err("times: a number and a metric are expected".to_owned()),
        },
        "log2" => {
            let key = counter(inner.as_str().ok_or("log2: the key of a counter is expected")?)?;
            Ok((key.log2(), of(&key)))
        }
        other => Err(format!("{other:?} is none of {WORDS}")),
    }
}

/// Fails if there is any other field.
fn only(fields: &serde_json::Map<String, Value>, known: &[&str]) -> Result<(), String> {
    let fields: BTreeMap<&String, &Value> = fields.iter().collect();
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(other) => Err(format!("{other:?} does not belong there")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_or_its_mistake_is_named() {
        let text = r#"{"metric": {"sum": [{"minus": ["us:a", "us:b"]}, {"sum": ["eu:a", "ap:a"]}]}, "at_least": 1, "tree": "given"}"#;
        let parsed = parse(text).expect("it is right");
        assert_eq!(parsed.statement.to_string(), "us:a - us:b + eu:a + ap:a >= 1");
        let Order::Given(groups) = parsed.order else { panic!("as sums nest") };
        assert_eq!(groups, [vec!["ap", "eu"], vec!["ap", "eu", "us"]]);
        let all = r#"{"all": [{"metric": {"min": ["us:a", {"log2": "eu:b"}]}, "equals": 5}, {"metric": {"times": [-2, "us:a"]}, "at_most": 3}]}"#;
        assert_eq!(
            parse(all).expect("it is right").statement.to_string(),
            "min(us:a, log2(eu:b)) = 5 and -2 * us:a <= 3"
        );
        let everywhere = parse(r#"{"metric": {"minus": ["*:a", "*:b"]}, "at_least": 1}"#).expect("it is right");
        assert_eq!(everywhere.statement.to_string(), "*:a - *:b >= 1");
        for (text, says) in [
            ("[]", "not an object"),
            ("{", "line 1"),
            (r#"{"metric": "us:a"}"#, "one of \"at_least\""),
            (r#"{"metric": "us:a", "at_least": 1, "at_most": 2}"#, "one of \"at_least\""),
            (r#"{"at_least": 1}"#, "\"metric\" is expected"),
            (r#"{"metric": "a", "at_least": 1}"#, "names no object"),
            (r#"{"metric": "us:a", "at_least": 1.5}"#, "no integer"),
            (r#"{"metric": {"product": []}, "at_least": 1}"#, "none of sum, minus"),
            (r#"{"metric": {"minus": ["us:a"]}, "at_least": 1}"#, "two metrics"),
            (r#"{"metric": {"sum": ["us:a", 3]}, "at_least": 1}"#, "metric: sum[1]: 3 is no key"),
            (r#"{"metric": "us:a", "at_least": 1, "three": 3}"#, "\"three\" does not belong"),
            (r#"{"metric": "us:a", "at_least": 1, "tree": "oak"}"#, "none of \"rtt\""),
            (r#"{"metric": "us:a", "at_least": 1, "at_least": 2}"#, "stands twice"),
        ] {
            let problem = parse(text).err().unwrap_or_else(|| panic!("{text} is read"));
            assert!(problem.contains(says), "{text}: {problem}");
        }
    }
}
