//! `slackline get`, `put`, `delete`, `add`, `scan` and `accept-loss`: single objects, each command one transaction.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use slackline::{Client, Committed, Key, ParseKeyError, Transaction, Txn, TxnError};

use crate::described::{Described, row, text};
use crate::duration;
use crate::end::{End, Finish};
use crate::json::{self, Unfit};
use crate::output::safe_line;
use crate::session::Connection;
use crate::waited::{Answered, Waited};

/// The most rows that one scan prints.
const ROWS: i64 = 1_024;

/// The terms of a transaction.
#[derive(Args)]
pub(crate) struct Terms {
    /// The region whose site runs it; by default the nearest one
    #[arg(long, value_name = "REGION")]
    pub(crate) site: Option<String>,
    /// The longest time that a write may wait for the end of other sites' rights to rely on the old value. At most the
    /// deadline, which is also the default
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) max_wait: Option<Duration>,
}

impl Terms {
    /// Checks that the wait is not longer than the transaction may take.
    pub(crate) fn check(&self, connection: &Connection) -> Result<(), Finish> {
        let deadline = connection.deadline;
        match self.max_wait.filter(|wait| *wait > deadline) {
            None => Ok(()),
            Some(wait) => Err(Finish::WrongUse(format!(
                "--max-wait {wait:?} is longer than the deadline of {deadline:?}: give a longer --deadline too"
            ))),
        }
    }

    pub(crate) fn transaction(&self, client: &Client) -> Transaction {
        let mut transaction = client.transaction();
        if let Some(site) = &self.site {
            transaction = transaction.at(site);
        }
        if let Some(wait) = self.max_wait {
            transaction = transaction.max_wait(wait);
        }
        transaction
    }

    /// The sites that a read of objects of this region came from: what its site has no copy of it asks their home for.
    fn read_of(&self, home: &str) -> Answered {
        let is_home = self.site.as_deref() == Some(home);
        Answered { by: self.site.clone(), waited: if is_home { Waited::Any } else { Waited::Home(home.to_owned()) } }
    }

    /// Runs a program whose errors are those of its transaction.
    async fn run<T, R: Future<Output = Result<T, TxnError>>>(
        &self,
        client: &Client,
        program: impl FnMut(Txn) -> R,
    ) -> Result<Committed<T>, Finish> {
        let outcome = self.transaction(client).run_and_tell(program).await;
        outcome?.done().map_err(|not_done| Finish::of_transaction(not_done, client))
    }
}

/// Reads an object
///
/// Prints its value: JSON, or a counter's number. With --raw it prints the bytes of any value.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline get eu:users/alice
  slackline get eu:logo.png --raw > logo.png")]
pub(crate) struct Get {
    /// The object: its home region and its name, with a colon between them
    #[arg(value_parser = key)]
    key: Key,
    /// Print the bytes as they are
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// The region whose site reads it; by default the nearest one
    #[arg(long, value_name = "REGION")]
    site: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl Get {
    pub(crate) fn run(self) -> Result<End, Finish> {
        let Self { key, raw, json, site, connection } = self;
        let terms = Terms { site, max_wait: None };
        connection.read(json, async move |client: Client| {
            let (terms, key) = (&terms, &key);
            let read = terms.run(&client, |txn| async move { txn.value(key).await }).await?;
            if raw {
                return match read.value {
                    Some(
                        slackline::Value::Bytes(bytes) | slackline::Value::Derived(slackline::Derived { bytes, .. }),
                    ) => {
                        let mut out = io::stdout().lock();
                        match out.write_all(&bytes).and_then(|()| out.flush()) {
                            // A reader that has gone away, as `head` does, is no failure.
                            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                                Err(Finish::Failed(format!("standard output: {error}")))
                            }
                            _ => Ok(End::silent()),
                        }
                    }
                    Some(slackline::Value::Counter(count)) => Ok(End::of_text(count.to_string())),
                    None => Err(Finish::Failed(format!("nothing is at {key}"))),
                };
            }
            let text = text(read.value.as_ref());
            let end = End::new(Got { object: Described::new(key, read.value.as_ref()), outcome: "done" }, text);
            Ok(end.answered(terms.read_of(key.region())))
        })
    }
}

/// Writes an object
///
/// The value is JSON, which programs in any language can read. With --raw it is bytes as they are. With --counter it is a number,
/// to which transactions add without excluding each other. The value replaces whatever was there, even a counter.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline put eu:users/alice '{\"seats\": [\"12A\"]}'
  slackline put eu:motd --raw 'good morning'
  slackline put eu:logo.png --raw - < logo.png
  slackline put us:visits --counter 0")]
pub(crate) struct Put {
    /// The object: its home region and its name, with a colon between them
    #[arg(value_parser = key)]
    key: Key,
    /// The value, in JSON; - for the standard input
    #[arg(allow_hyphen_values = true, required_unless_present = "counter")]
    value: Option<String>,
    /// Take the value as it is, and not as JSON
    #[arg(long)]
    raw: bool,
    /// Make it a counter with this number
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = integer, conflicts_with_all = ["value", "raw"])]
    counter: Option<i64>,
    #[command(flatten)]
    terms: Terms,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Put {
    pub(crate) fn run(self) -> Result<End, Finish> {
        let Self { key, value, raw, counter, terms, json, connection } = self;
        terms.check(&connection)?;
        let value = match value.as_deref() {
            Some("-") => {
                Some(json::bytes_of("-").map_err(|error| Finish::WrongUse(format!("standard input {error}")))?)
            }
            _ => value.map(String::into_bytes),
        };
        if let Some(text) = value.as_ref().filter(|_| !raw) {
            let text = std::str::from_utf8(text);
            let text =
                text.map_err(|_| Finish::WrongUse("the value is no JSON: it is not UTF-8; use --raw".to_owned()))?;
            json::check(text).map_err(|unfit| {
                Finish::WrongUse(match unfit {
                    Unfit::NoJson(_) => {
                        format!("the value is {unfit}; write text in double quotes, like '\"hello\"', or use --raw")
                    }
                    Unfit::Ambiguous(_) => format!("the value: {unfit}; --raw writes it as it is"),
                })
            })?;
        }

        connection.run_and_leave(json, async move |client: Client| {
            let (key, value) = (&key, &value);
            let write = |txn: Txn| async move {
                match (counter, value) {
                    (Some(count), _) => txn.put_count(key, count),
                    (None, value) => txn.put_bytes(key, value.as_deref().unwrap_or_default()),
                }
            };
            let done = terms.run(&client, write).await?;
            Ok(written(&client, key, &done, format!("{key} is written")))
        })
    }
}

/// Deletes an object
#[derive(Args)]
#[command(after_help = "Example:\n  slackline delete eu:users/alice")]
pub(crate) struct Delete {
    /// The object: its home region and its name, with a colon between them
    #[arg(value_parser = key)]
    key: Key,
    #[command(flatten)]
    terms: Terms,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Delete {
    pub(crate) fn run(self) -> Result<End, Finish> {
        let Self { key, terms, json, connection } = self;
        terms.check(&connection)?;
        connection.run_and_leave(json, async move |client: Client| {
            let key = &key;
            let done = terms.run(&client, |txn| async move { txn.delete(key) }).await?;
            Ok(written(&client, key, &done, format!("{key} is deleted")))
        })
    }
}

/// Adds to a counter
///
/// A counter that does not exist begins at 0. Adds do not wait for each other.
#[derive(Args)]
#[command(after_help = "Example:\n  slackline add us:visits 3")]
pub(crate) struct Add {
    /// The counter: its home region and its name, with a colon between them
    #[arg(value_parser = key)]
    key: Key,
    /// The number to add; may be below 0
    #[arg(allow_negative_numbers = true, value_parser = integer)]
    delta: i64,
    #[command(flatten)]
    terms: Terms,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Add {
    pub(crate) fn run(self) -> Result<End, Finish> {
        let Self { key, delta, terms, json, connection } = self;
        terms.check(&connection)?;
        connection.run_and_leave(json, async move |client: Client| {
            let key = &key;
            let done = terms.run(&client, |txn| async move { txn.add(key, delta) }).await?;
            Ok(written(&client, key, &done, format!("added {delta} to {key}")))
        })
    }
}

/// Lists the objects of a region
///
/// In the order of their names, all of one moment.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline scan eu:users/
  slackline scan eu --limit 10 --after users/alice")]
pub(crate) struct Scan {
    /// The region, or the region, a colon and the beginning of the names
    region: String,
    /// The beginning of the names
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// Only names after this one; or a whole key, as it is printed
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    after: String,
    /// How many objects to list at most
    #[arg(long, value_name = "ROWS", default_value_t = 100, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(1..=ROWS))]
    limit: i64,
    /// The region whose site reads them; by default the nearest one
    #[arg(long, value_name = "REGION")]
    site: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Scan {
    pub(crate) fn run(self) -> Result<End, Finish> {
        let Self { region, prefix, after, limit, site, json, connection } = self;
        let terms = Terms { site, max_wait: None };
        let prefix = match region.split_once(':') {
            Some((region, start)) if prefix.is_empty() => Key::new(region, start),
            _ => Key::new(region, prefix),
        };
        let after = after_name(&after, &prefix).map_err(Finish::WrongUse)?;

        let limit = usize::try_from(limit).unwrap_or(1);
        connection.read(json, async move |client: Client| {
            let (prefix, after) = (&prefix, &after);
            let page = terms.run(&client, |txn| async move { txn.scan_page(prefix, after, limit).await }).await?.value;
            let mut lines = String::new();
            for (key, value) in &page.rows {
                let _ = writeln!(lines, "{}", row(key, Some(value)));
            }
            if page.rows.is_empty() {
                lines.push_str("nothing is there");
            }
            if let Some(next) = &page.next {
                let _ = write!(lines, "there may be more, with --after '{}'", safe_line(&next.replace('\'', "'\\''")));
            }
            let rows = page.rows.iter().map(|(key, value)| Described::new(key, Some(value))).collect();
            let end = End::new(Scanned { next: page.next, outcome: "done", rows }, lines.trim_end());
            Ok(end.answered(terms.read_of(prefix.region())))
        })
    }
}

/// The name after which a scan goes on: as it was given, or out of the key that a row begins with.
fn after_name<'a>(after: &'a str, prefix: &Key) -> Result<&'a str, String> {
    let of_key = after.strip_prefix(prefix.region()).and_then(|rest| rest.strip_prefix(':'));
    match of_key.filter(|name| name.starts_with(prefix.name())) {
        Some(name) => Ok(name),
        None if after.is_empty() || after.starts_with(prefix.name()) => Ok(after),
        None => Err(format!(
            "--after {after}: all names begin with {}, and so does the one after which they go on",
            prefix.name()
        )),
    }
}

/// Accepts that a site has lost its objects
///
/// After a site has lost its storage, each object that it does not find is refused as lost, because it may have existed. This
/// command accepts that those objects are permanently gone: they count as absent from then on, but at the earliest 21 s after the
/// start of the site, because other sites may show their copies until then.
#[derive(Args)]
#[command(after_help = "Example:\n  slackline accept-loss --site eu")]
pub(crate) struct AcceptLoss {
    /// The region whose site has lost its storage
    #[arg(long, value_name = "REGION")]
    site: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl AcceptLoss {
    pub(crate) fn run(self) -> Result<End, Finish> {
        let site = self.site;
        self.connection.run(self.json, async move |client: Client| {
            client.accept_loss(&site).await.done()?;
            let text = format!("the objects that {site} has lost count as absent, from 21 s after its start on");
            Ok(End::new(json!({ "outcome": "done", "site": site }), text))
        })
    }
}

/// Reads a number to count with.
fn integer(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("{text} is no whole number of 64 bits"))
}

/// Reads the name of an object.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    text.parse().map_err(|error: ParseKeyError| error.to_string())
}

/// The operation by which a transaction was committed, for programs.
pub(crate) fn operation<T>(client: &Client, done: &Committed<T>) -> Value {
    done.operation.map_or(Value::Null, |id| json!(client.topology().operation_text(id)))
}

fn written<T>(client: &Client, key: &Key, done: &Committed<T>, text: String) -> End {
    let key = key.to_string();
    let json = json!({ "outcome": "done", "key": key, "phases": done.phases, "operation": operation(client, done) });
    End::new(json, text).answered(committed(client, done))
}

/// The sites that a transaction was committed by.
pub(crate) fn committed<T>(client: &Client, done: &Committed<T>) -> Answered {
    match done.operation {
        Some(operation) => {
            let by = Some(client.topology().name(operation.site));
            Answered { by, waited: Waited::Transaction(operation) }
        }
        None => Answered::by(None),
    }
}

/// The output of `get` for programs.
#[derive(Serialize)]
struct Got {
    #[serde(flatten)]
    object: Described,
    outcome: &'static str,
}

/// The output of `scan` for programs.
#[derive(Serialize)]
struct Scanned {
    next: Option<String>,
    outcome: &'static str,
    rows: Vec<Described>,
}
