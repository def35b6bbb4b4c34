//! `slackline txn`: a small transaction from a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use slackline::{Client, Key, Txn, TxnError};

use super::explain::Explain;
use super::object::{Terms, committed, key, operation};
use crate::described::{Described, one_line, row};
use crate::end::{End, Finish};
use crate::json;
use crate::session::Connection;

/// The words by which operations begin.
const WORDS: &str = "get, put, add, delete, scan, expect, holds, require";

/// Runs a transaction from a file
///
/// The file has one JSON object with a list of operations, which take effect in their order, all or none:
///
///   {"get": KEY}                     prints its value
///   {"put": KEY, "value": JSON}      or "counter": NUMBER
///   {"add": KEY, "delta": NUMBER}
///   {"delete": KEY}
///   {"scan": KEY}                    prints all keys that begin like this
///   {"expect": KEY, "value": JSON}   or "counter": NUMBER, or "absent": true
///   {"holds": NAME}                  prints whether a treaty's statement is true
///   {"require": NAME}                a treaty's statement must be true after
///                                    what stands before
///
/// If an object does not have the expected value, or a required statement is not
/// true, nothing is written.
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    override_usage = "slackline txn [OPTIONS] <FILE>\n       slackline txn explain [OPTIONS] <ID>",
    // What explain takes too may stand before it.
    mut_arg("json", |arg| arg.global(true)),
    mut_arg("connect", |arg| arg.global(true)),
    mut_arg("deadline", |arg| arg.global(true)),
    after_help = "\
Examples:
  slackline txn move.json
  echo '{\"operations\": [{\"get\": \"eu:x\"}, {\"add\": \"us:n\", \"delta\": 1}]}' \\
    | slackline txn -"
)]
pub(crate) struct Transaction {
    #[command(subcommand)]
    about: Option<About>,
    /// The file; - for standard input
    #[arg(required = true)]
    file: Option<String>,
    #[command(flatten)]
    terms: Terms,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Other commands about transactions.
#[derive(Subcommand)]
enum About {
    Explain(Explain),
}

impl Transaction {
    pub(crate) fn is_json(&self) -> bool {
        match &self.about {
            Some(About::Explain(explain)) => explain.json,
            None => self.json,
        }
    }

    pub(crate) fn run(self) -> Result<End, Finish> {
        let Self { about, file, terms, json, connection } = self;
        if let Some(About::Explain(explain)) = about {
            if file.is_some() || terms.site.is_some() || terms.max_wait.is_some() {
                return Err(Finish::WrongUse(
                    "explain takes the id of a transaction, and no file, --site or --max-wait; see `slackline txn explain --help`"
                        .to_owned(),
                ));
            }
            return explain.run();
        }

        terms.check(&connection)?;
        let file = file.unwrap_or_default();
        let operations = json::text_of(&file).map_err(Problem).and_then(|text| parse(&text));
        let operations =
            operations.map_err(|problem| Finish::WrongUse(format!("{}: {problem}", json::name_of(&file))))?;
        connection.run_and_leave(json, async move |client: Client| {
            let operations = &operations[..];
            let mut treaties = BTreeMap::new();
            for operation in operations {
                if let Operation::Holds(name) | Operation::Require(name) = operation {
                    treaties.insert(name.clone(), super::treaty::find(&client, name).await?);
                }
            }
            let treaties = &treaties;
            let outcome = terms.transaction(&client).run_and_tell(|txn| carry_out(txn, operations, treaties)).await;
            let done = match outcome {
                Ok(outcome) => outcome.done().map_err(|not_done| Finish::of_transaction(not_done, &client))?,
                Err(Stop::Txn(error)) => return Err(error.into()),
                Err(Stop::Unmet { key, found }) => return Err(unmet(&key, found.as_ref())),
            };
            let mut text = String::new();
            for found in &done.value {
                for (key, value) in found.objects() {
                    let _ = writeln!(text, "{}", row(key, value));
                }
                if let Found::Holds(name, value) = found {
                    let _ = writeln!(text, "{name} {}", if *value { "holds" } else { "does not hold" });
                }
            }
            let _ = write!(text, "committed");
            let json = Done {
                operation: operation(&client, &done),
                outcome: "done",
                phases: done.phases,
                results: done.value.iter().map(Found::json).collect(),
                runs: done.runs,
            };
            Ok(End::new(json, text).answered(committed(&client, &done)))
        })
    }
}

/// One operation of a file.
#[derive(Clone, PartialEq, Debug)]
enum Operation {
    Get(Key),
    Put(Key, Content),
    Add(Key, i64),
    Delete(Key),
    Scan(Key),
    Expect(Key, Option<Content>),
    /// The name of a treaty.
    Holds(String),
    Require(String),
}

/// A value in a file.
#[derive(Clone, PartialEq, Debug)]
enum Content {
    /// As it was written, but without blanks.
    Json(String),
    Counter(i64),
}

/// The result of an operation.
enum Found {
    /// None: it writes.
    Nothing,
    Object(Key, Option<slackline::Value>),
    /// The objects whose keys begin like this.
    Rows(Key, Vec<(Key, slackline::Value)>),
    /// If a treaty's statement is true.
    Holds(String, bool),
}

/// The output for programs.
#[derive(Serialize)]
struct Done {
    operation: Value,
    outcome: &'static str,
    phases: u8,
    results: Vec<FoundJson>,
    runs: u32,
}

/// The result of an operation, for programs.
#[derive(Serialize)]
#[serde(untagged)]
enum FoundJson {
    Nothing,
    Object(Described),
    Rows { rows: Vec<Described>, scan: String },
    Holds { holds: String, value: bool },
}

impl Found {
    fn json(&self) -> FoundJson {
        match self {
            Found::Nothing => FoundJson::Nothing,
            Found::Object(key, value) => FoundJson::Object(Described::new(key, value.as_ref())),
            Found::Rows(prefix, rows) => {
                let rows = rows.iter().map(|(key, value)| Described::new(key, Some(value))).collect();
                FoundJson::Rows { rows, scan: prefix.to_string() }
            }
            Found::Holds(name, value) => FoundJson::Holds { holds: name.clone(), value: *value },
        }
    }

    fn objects(&self) -> Vec<(&Key, Option<&slackline::Value>)> {
        match self {
            Found::Nothing | Found::Holds(..) => Vec::new(),
            Found::Object(key, value) => vec![(key, value.as_ref())],
            Found::Rows(_, rows) => rows.iter().map(|(key, value)| (key, Some(value))).collect(),
        }
    }
}

/// The reason why a transaction is given up.
enum Stop {
    Txn(TxnError),
    /// An object does not have the expected value.
    Unmet {
        key: Key,
        found: Option<slackline::Value>,
    },
}

impl From<TxnError> for Stop {
    fn from(error: TxnError) -> Self {
        Stop::Txn(error)
    }
}

fn unmet(key: &Key, found: Option<&slackline::Value>) -> Finish {
    // A counter of 5 is not what holds the value 5.
    let holds = match found {
        Some(slackline::Value::Counter(_)) => "it holds the counter ",
        Some(_) => "it holds ",
        None => "",
    };
    Finish::NotAsExpected {
        key: key.to_string(),
        found: Described::new(key, found),
        words: format!("{holds}{}", one_line(found)),
    }
}

/// Carries operations out, and returns the result of each.
async fn carry_out(
    txn: Txn,
    operations: &[Operation],
    treaties: &BTreeMap<String, slackline::Treaty>,
) -> Result<Vec<Found>, Stop> {
    // One question for all objects that are read as they were before; the reads below then find their values here.
    txn.values(&read_first(operations)).await?;

    let mut results = Vec::with_capacity(operations.len());
    for operation in operations {
        let mut found = Found::Nothing;
        match operation {
            Operation::Get(key) => found = Found::Object(key.clone(), txn.value(key).await?),
            Operation::Put(key, Content::Json(value)) => txn.put_bytes(key, value.as_str())?,
            Operation::Put(key, Content::Counter(count)) => txn.put_count(key, *count)?,
            Operation::Add(key, delta) => txn.add(key, *delta)?,
            Operation::Delete(key) => txn.delete(key)?,
            Operation::Holds(name) => found = Found::Holds(name.clone(), txn.holds(&treaties[name]).await?),
            Operation::Require(name) => txn.require(&treaties[name]).await?,
            Operation::Scan(prefix) => found = Found::Rows(prefix.clone(), txn.scan(prefix).await?),
            Operation::Expect(key, expected) => {
                let found = txn.value(key).await?;
                // An error ends the program without a write. The read that failed it is validated first, as all reads are.
                if !is_met(expected.as_ref(), found.as_ref()) {
                    return Err(Stop::Unmet { key: key.clone(), found });
                }
            }
        }
        results.push(found);
    }
    Ok(results)
}

/// The objects that are read as they were before the transaction. To ask for all of them together takes one round trip.
fn read_first(operations: &[Operation]) -> Vec<Key> {
    let (mut keys, mut written) = (Vec::new(), BTreeSet::new());
    for operation in operations {
        match operation {
            Operation::Get(key) | Operation::Expect(key, _) if !written.contains(key) => keys.push(key.clone()),
            Operation::Put(key, _) | Operation::Delete(key) => drop(written.insert(key)),
            _ => {}
        }
    }
    keys
}

/// True if an object has the expected value.
fn is_met(expected: Option<&Content>, found: Option<&slackline::Value>) -> bool {
    match (expected, found) {
        (None, None) => true,
        (Some(Content::Counter(expected)), Some(slackline::Value::Counter(count))) => expected == count,
        (
            Some(Content::Json(expected)),
            Some(slackline::Value::Bytes(bytes) | slackline::Value::Derived(slackline::Derived { bytes, .. })),
        ) => json::read(bytes).is_some_and(|found| json::same(expected, found)),
        _ => false,
    }
}

/// The problem with a file, and its place.
#[derive(Debug)]
struct Problem(String);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads the operations of a file.
fn parse(text: &str) -> Result<Vec<Operation>, Problem> {
    // Before anything is taken out of it: of two equal keys only one would be seen, and an operation would be left out in silence.
    json::check(text).map_err(|unfit| Problem(unfit.to_string()))?;

    let wrong = || Problem("not an object with one key, \"operations\", that has a list".to_owned());
    let mut document = json::fields(text).map_err(|_| wrong())?;
    let operations = document.remove("operations").ok_or_else(wrong)?;
    let operations = json::items(operations.get()).map_err(|_| wrong())?;
    if let Some(other) = document.keys().next() {
        return Err(Problem(format!("unknown key {other:?}; there is one, \"operations\"")));
    }

    let at = |(index, operation): (usize, &RawValue)| {
        parse_operation(operation).map_err(|problem| Problem(format!("operations[{index}]: {problem}")))
    };
    operations.into_iter().enumerate().map(at).collect()
}

/// The fields of an operation.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Reads one operation.
fn parse_operation(operation: &RawValue) -> Result<Operation, Problem> {
    let problem = |text: String| Err(Problem(text));
    let Ok(mut fields) = json::fields(operation.get()) else {
        return problem(format!("not an object that begins with one of {WORDS}"));
    };
    let word = WORDS.split(", ").find(|word| fields.contains_key(*word));
    let Some(word) = word else { return problem(format!("none of {WORDS}")) };
    let is_of_treaty = matches!(word, "holds" | "require");
    let Some(Ok(text)) = fields.remove(word).map(|text| json::string(text.get())) else {
        return problem(match is_of_treaty {
            true => format!("{word}: the name of a treaty in quotes is expected"),
            false => format!("{word}: a key in quotes is expected, like \"eu:users/alice\""),
        });
    };
    if is_of_treaty {
        let operation = if word == "holds" { Operation::Holds(text) } else { Operation::Require(text) };
        return match fields.keys().next() {
            Some(other) => problem(format!("{other:?} does not belong to {word}")),
            None => Ok(operation),
        };
    }
    let at = key(&text).map_err(|error| Problem(format!("{word}: {error}")))?;

    let operation = match word {
        "get" => Operation::Get(at),
        "scan" => Operation::Scan(at),
        "delete" => Operation::Delete(at),
        "add" => Operation::Add(at, number(&mut fields, "delta")?.ok_or_else(|| missing("\"delta\""))?),
        "put" => Operation::Put(at, content(&mut fields)?.ok_or_else(|| missing("\"value\" or \"counter\""))?),
        _ => {
            let absent = match fields.remove("absent") {
                None => false,
                Some(value) if value.get() == "true" => true,
                Some(other) => return problem(format!("absent: {} is not true", other.get())),
            };
            let expected = content(&mut fields)?;
            if absent == expected.is_some() {
                return Err(missing("one of \"value\", \"counter\" and \"absent\""));
            }
            Operation::Expect(at, expected)
        }
    };

    // Each field was taken out as it was read. One that is left is a mistake of the author, perhaps a misspelt condition.
    match fields.keys().next() {
        Some(other) => problem(format!("{other:?} does not belong to {word}")),
        None => Ok(operation),
    }
}

fn missing(what: &str) -> Problem {
    Problem(format!("{what} is expected"))
}

fn number(fields: &mut Fields, name: &str) -> Result<Option<i64>, Problem> {
    let Some(value) = fields.remove(name) else { return Ok(None) };
    let number = serde_json::from_str(value.get());
    number.map(Some).map_err(|_| Problem(format!("{name}: {} is no integer of 64 bits", value.get())))
}

/// The value or the counter among the fields, if there is one.
fn content(fields: &mut Fields) -> Result<Option<Content>, Problem> {
    match (fields.remove("value"), number(fields, "counter")?) {
        (Some(_), Some(_)) => Err(Problem("\"value\" and \"counter\" exclude each other".to_owned())),
        (Some(value), None) => Ok(Some(Content::Json(json::compact(value.get())))),
        (None, count) => Ok(count.map(Content::Counter)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_or_its_mistake_is_named_with_its_place() {
        let operations = parse(
            r#"{"operations": [
                {"get": "eu:x"}, {"put": "eu:x", "value": null}, {"put": "eu:n", "counter": -1},
                {"add": "us:n", "delta": 3}, {"delete": "eu:y"}, {"scan": "eu:"},
                {"expect": "eu:x", "value": {"a": 1}}, {"expect": "eu:z", "absent": true}
            ]}"#,
        );
        let operations = operations.expect("it is right");
        assert_eq!(operations.len(), 8);
        assert_eq!(operations[1], Operation::Put(Key::new("eu", "x"), Content::Json("null".to_owned())));
        assert_eq!(operations[5], Operation::Scan(Key::new("eu", "")));
        assert_eq!(operations[7], Operation::Expect(Key::new("eu", "z"), None));
        for (text, says) in [
            ("{\n \"operations\": [}", "line 2 column 17"),
            ("[]", "\"operations\""),
            (r#"{"operations": [], "more": 1}"#, "unknown key \"more\""),
            (r#"{"operations": [], "operations": [{"get": "eu:x"}]}"#, "the key \"operations\" stands twice"),
            (
                r#"{"operations": [{"get": "eu:x", "get": "eu:y"}]}"#,
                "the key \"get\" stands twice in one object at line 1",
            ),
            (r#"{"operations": [{"put": "eu:x", "value": [{"a": 1, "a": 2}]}]}"#, "the key \"a\" stands twice"),
            (r#"{"operations": [{"get": "eu:x"}, 3]}"#, "operations[1]: not an object"),
            (r#"{"operations": [{"git": "eu:x"}]}"#, "operations[0]: none of get, put"),
            (r#"{"operations": [{"get": 3}]}"#, "operations[0]: get: a key in quotes"),
            (r#"{"operations": [{"get": "x"}]}"#, "operations[0]: get: \"x\" names no object"),
            (r#"{"operations": [{"put": "eu:x"}]}"#, "\"value\" or \"counter\" is expected"),
            (r#"{"operations": [{"add": "eu:x", "delta": 1.5}]}"#, "delta: 1.5 is no integer"),
            (r#"{"operations": [{"add": "eu:x"}]}"#, "\"delta\" is expected"),
            (r#"{"operations": [{"get": "eu:x", "value": 1}]}"#, "\"value\" does not belong to get"),
            (r#"{"operations": [{"expect": "eu:x"}]}"#, "one of \"value\", \"counter\" and \"absent\""),
            (r#"{"operations": [{"expect": "eu:x", "absent": false}]}"#, "absent: false is not true"),
        ] {
            let problem = parse(text).expect_err(text).to_string();
            assert!(problem.contains(says), "{text}: {problem}");
        }
    }
}
