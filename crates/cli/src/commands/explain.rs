//! `slackline txn explain`: the course of a transaction, and the times of its steps.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::{Value, json};
use slackline::{Aborted, Client, Explanation, Key, OperationId, PartAsked, Step, What};

use super::operation;
use crate::end::{End, Finish, aborted_json, unix_ms};
use crate::output::{Table, counted, shortened};
use crate::session::Connection;

/// The most columns that a line takes.
const COLUMNS: usize = 80;

/// Shows the course of a transaction
///
/// It shows the rights that proved its reads, the sites that were asked, and the answer of each with its time; so also the reason
/// of a refusal, and the holders of rights that it waited for. The site that coordinated it remembers its last 4,096
/// transactions, in memory.
#[derive(Args)]
#[command(after_help = "Example:\n  slackline txn explain us-1-9-12")]
pub(crate) struct Explain {
    /// The id of its operation: `operation` in the output of --json, or the id in a refusal
    #[arg(value_name = "ID")]
    operation: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Explain {
    pub(crate) fn run(self) -> Result<End, Finish> {
        let name = self.operation;
        self.connection.read(self.json, async move |client: Client| {
            let operation = client.topology().parse_operation(&name);
            let operation = operation.map_err(|error| operation::malformed(&client, &name, &error))?;
            match client.explain(operation).await? {
                Some(explanation) => Ok(End::new(json(&explanation), text(&explanation, SystemTime::now()))),
                None => {
                    Err(Finish::Failed(format!("nothing is known of {name}: {}", unknown(&client, operation).await)))
                }
            }
        })
    }
}

/// The reason why a site that answers knows nothing of a transaction.
async fn unknown(client: &Client, operation: OperationId) -> String {
    let site = client.topology().name(operation.site);
    match operation::newest(client, operation.site).await {
        Some(newest) if operation::is_beyond(operation, newest) => {
            format!("there never was such an operation at {site}")
        }
        Some(newest) if operation.incarnation < newest.incarnation => {
            format!("{site} has lost the storage that it had then")
        }
        _ => format!(
            "it is no transaction, or {site} does not remember it any more: a site remembers its last 4,096 transactions, in \
             memory, until it stops"
        ),
    }
}

// For programs.

fn json(explanation: &Explanation) -> Value {
    let Explanation { operation, site, began, proved, rights, parts, steps, left_out, end } = explanation;
    let right = |right: &slackline::RightUsed| {
        let (key, treaty) = (right.key.to_string(), right.key.treaty());
        json!({ "key": key, "treaty": treaty, "until_unix_ms": unix_ms(right.until) })
    };
    let part = |part: &PartAsked| {
        let PartAsked { site, reads, scans, writes } = part;
        json!({ "site": site, "reads": reads, "scans": scans, "writes": writes })
    };

    json!({
        "outcome": "done",
        "operation": operation,
        "site": site,
        "began_unix_ms": unix_ms(*began),
        "proved": proved,
        "rights": rights.iter().map(right).collect::<Vec<_>>(),
        "parts": parts.iter().map(part).collect::<Vec<_>>(),
        "steps": steps.iter().map(step_json).collect::<Vec<_>>(),
        "left_out": left_out,
        "end": end.as_ref().map(|(after, end)| end_json(*after, end)),
    })
}

fn step_json(step: &Step) -> Value {
    let (word, mut json) = match &step.what {
        What::Asked => ("asked", json!({})),
        What::Waits { key, holders, until } => {
            let (key, treaty) = (key.to_string(), key.treaty());
            ("waits", json!({ "key": key, "treaty": treaty, "holders": holders, "until_unix_ms": unix_ms(*until) }))
        }
        What::Prepared => ("prepared", json!({})),
        What::Committed => ("committed", json!({})),
        What::Refused(aborted) => ("refused", json!({ "refused": aborted_json(aborted) })),
        What::Inquired => ("inquired", json!({})),
        What::Undecided => ("undecided", json!({})),
        What::Noted => ("noted", json!({})),
        _ => ("other", json!({})),
    };

    json["step"] = json!(word);
    json["site"] = json!(step.site);
    json["after_us"] = json!(micros(step.after));
    json["times"] = json!(step.times);
    json
}

fn end_json(after: Duration, end: &slackline::End) -> Value {
    let (phases, aborted) = match end {
        slackline::End::Committed { phases } => (Some(phases), None),
        slackline::End::Aborted(aborted) => (None, Some(aborted_json(aborted))),
        _ => (None, None),
    };
    json!({ "after_us": micros(after), "phases": phases, "aborted": aborted })
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

// For people.

fn text(explanation: &Explanation, now: SystemTime) -> String {
    let Explanation { operation, site, began, .. } = explanation;
    let ago = now.duration_since(*began).unwrap_or_default();
    let site = &shortened(site, SITE);
    let mut text = format!("{operation} began at {site}, {} ago\n", span(ago));
    rights(&mut text, explanation);
    let mut table = Table::new(&["#AFTER", "SITE", "#TOOK", "WHAT"]);
    let lines = explanation.steps.iter().map(|step| (step.after, line(explanation, step)));
    let mut lines: Vec<(Duration, [String; 3])> = lines.collect();
    if let Some((after, end)) = &explanation.end {
        // By time: a site may note the decision later than it was taken.
        let at = lines.iter().position(|(other, _)| other > after).unwrap_or(lines.len());
        lines.insert(at, (*after, [site.clone(), String::new(), end_text(explanation, end)]));
    }

    let width = |cell: fn(&[String; 3]) -> &str| lines.iter().map(|(_, line)| cell(line).chars().count()).max();
    let sites = width(|line| &line[0]).unwrap_or(0).max(4);
    // Two columns of spans, and two spaces after each.
    let room = COLUMNS.saturating_sub(sites + 2 * (SPAN + 2) + 2).max(20);
    for (after, [site, took, what]) in lines {
        let mut what = wrap(&what, room).into_iter();
        table.row([span(after), site, took, what.next().unwrap_or_default()]);
        what.for_each(|more| table.row([String::new(), String::new(), String::new(), format!("  {more}")]));
    }

    text.push_str(&table.render());
    if explanation.left_out > 0 {
        let _ = write!(text, "\n{} more steps are not remembered", explanation.left_out);
    }

    if explanation.end.is_none() {
        text.push_str("\nit is not decided yet");
    }

    text
}

/// Writes the rights that proved its reads.
fn rights(text: &mut String, explanation: &Explanation) {
    let Explanation { began, proved, rights, .. } = explanation;
    if *proved == 0 {
        return;
    }

    let reads = counted(u64::from(*proved), "read");
    let _ = writeln!(text, "{reads} proved by rights of its own, so that nobody was asked:");
    for right in rights {
        let until = format!("until {} after the beginning", later(*began, right.until));
        let key = right.key.treaty().map_or_else(|| right.key.to_string(), |treaty| format!("treaty {treaty}"));
        let key = shortened(&key, COLUMNS.saturating_sub(until.chars().count() + 3));
        let _ = writeln!(text, "  {key} {until}");
    }

    let more = usize::try_from(*proved).unwrap_or(0).saturating_sub(rights.len());
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
}

/// A step as a line: the site, the time since it was asked, and the step in words.
fn line(explanation: &Explanation, step: &Step) -> [String; 3] {
    let began = explanation.began;
    let what = match &step.what {
        What::Asked => format!("asked to prepare {}", asked(explanation, &step.site)),
        What::Waits { key, holders, until } if key.treaty().is_some() => {
            let (treaty, until) = (shortened(key.treaty().unwrap_or_default(), 40), later(began, *until));
            format!("waits for slack of treaty {treaty}, which {} may have, at most until {until}", holders.join(", "))
        }
        What::Waits { key, holders, until } => {
            let whose = if holders.is_empty() {
                "that it may have issued before it was started again".to_owned()
            } else {
                format!("held by {}", holders.join(", "))
            };
            format!("waits for rights over {} {whose}, at most until {}", short(key), later(began, *until))
        }
        What::Prepared => "prepared".to_owned(),
        What::Committed => "carried out".to_owned(),
        What::Refused(aborted) => format!("refused: {}", why(began, aborted)),
        What::Inquired => "asked what became of it".to_owned(),
        What::Undecided => "the client is told that it is undecided".to_owned(),
        What::Noted => "has noted the decision".to_owned(),
        _ => "something that this version does not know".to_owned(),
    };

    let times = if step.times > 1 { format!(" (the first of {} times)", step.times) } else { String::new() };
    [shortened(&step.site, SITE), took(explanation, step), format!("{what}{times}")]
}

/// The time that a site took to answer, from when it was asked; for one that waited for rights, from when it said so.
fn took(explanation: &Explanation, step: &Step) -> String {
    let of_site = |is: fn(&What) -> bool| {
        let found = explanation.steps.iter().find(|other| other.site == step.site && is(&other.what));
        found.map(|found| found.after)
    };

    let since = match step.what {
        What::Waits { .. } => of_site(|what| matches!(what, What::Asked)),
        What::Prepared | What::Committed | What::Refused(_) => {
            let waits = of_site(|what| matches!(what, What::Waits { .. }));
            waits.or_else(|| of_site(|what| matches!(what, What::Asked)))
        }
        What::Noted => explanation.end.as_ref().map(|(after, _)| *after),
        _ => None,
    };

    since.map(|since| span(step.after.saturating_sub(since))).unwrap_or_default()
}

/// The size of the part that a site was asked for, in words.
fn asked(explanation: &Explanation, site: &str) -> String {
    let Some(part) = explanation.parts.iter().find(|part| part.site == site) else { return "its part".to_owned() };
    let counts = [(part.reads, "read"), (part.scans, "scan"), (part.writes, "write")];
    let counts: Vec<String> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, noun)| counted(u64::from(*count), noun)).collect();
    counts.join(", ")
}

fn end_text(explanation: &Explanation, end: &slackline::End) -> String {
    let Explanation { site, steps, .. } = explanation;
    let is_told = |aborted: &Aborted| steps.iter().any(|step| step.what == What::Refused(aborted.clone()));
    match end {
        slackline::End::Committed { phases: 0 } => "judged alone: what was read is still so".to_owned(),
        slackline::End::Committed { .. } if steps.is_empty() => {
            format!("judged and committed alone: {}", asked(explanation, site))
        }
        slackline::End::Committed { phases: 1 } => "committed in 1 phase".to_owned(),
        slackline::End::Committed { phases } => format!("committed in {phases} phases"),
        slackline::End::Aborted(aborted) if is_told(aborted) => "aborted: it was refused".to_owned(),
        slackline::End::Aborted(aborted) => format!("aborted: {}", why(explanation.began, aborted)),
        _ => "unknown: the site that took part has lost its storage".to_owned(),
    }
}

/// A refusal with all its details.
fn why(began: SystemTime, aborted: &Aborted) -> String {
    let aborted = Aborted { key: aborted.key.as_ref().map(short), ..aborted.clone() };
    match aborted.until {
        Some(until) => format!("{aborted} until {}", later(began, until)),
        None => aborted.to_string(),
    }
}

/// A time, as a span after the beginning.
fn later(began: SystemTime, until: SystemTime) -> String {
    until.duration_since(began).map_or_else(|_| "the beginning".to_owned(), span)
}

/// The most characters of a site's name, and of an object's.
const SITE: usize = 20;
const KEY: usize = 40;

/// A key that fits a line.
fn short(key: &Key) -> Key {
    let name = KEY.saturating_sub(key.region().chars().count() + 1).max(KEY - SITE);
    Key::new(shortened(key.region(), SITE), shortened(key.name(), name))
}

/// The most characters of a span.
const SPAN: usize = 7;

fn span(span: Duration) -> String {
    let micros = micros(span);
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..100_000 => format!("{:.1} ms", micros as f64 / 1e3),
        100_000..1_000_000 => format!("{} ms", micros / 1_000),
        1_000_000..100_000_000 => format!("{:.1} s", micros as f64 / 1e6),
        100_000_000..10_000_000_000 => format!("{} min", micros / 60_000_000),
        _ => format!("{} h", micros / 3_600_000_000),
    }
}

/// Breaks a sentence into lines of at most `room` characters, the later ones two fewer.
fn wrap(sentence: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split(' ') {
        let room = if lines.len() > 1 { room - 2 } else { room };
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(shortened(word, room - 2)),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline::{Cause, RightUsed};

    #[test]
    fn names_are_shortened_in_their_middle() {
        assert_eq!((shortened("abcdefgh", 8).as_str(), shortened("abcdefgh", 6).as_str()), ("abcdefgh", "abc…gh"));
        assert_eq!(shortened("größer\n", 20), "größer\\n");
        let key = short(&Key::new("eu", "x".repeat(200)));
        assert_eq!((key.region(), key.to_string().chars().count()), ("eu", KEY));
        let key = short(&Key::new("e".repeat(100), "x".repeat(200)));
        assert_eq!(key.to_string().chars().count(), KEY + 1);
        let lines = wrap(&format!("a {} b", "x".repeat(100)), 40);
        assert!(lines.len() == 3 && lines.iter().all(|line| line.chars().count() <= 40), "{lines:?}");
    }

    #[test]
    fn explanation_fits_eighty_columns_and_says_who_held_what_for_how_long() {
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let step = |millis, site: &str, what| Step {
            after: Duration::from_millis(millis),
            times: 1,
            site: site.to_owned(),
            what,
        };
        let holders = vec!["us".to_owned(), "ap".to_owned()];
        let until = began + Duration::from_millis(4_800);
        let key = Key::new("eu", "rooms/101");
        let explanation = Explanation {
            operation: "us-1-9-12".to_owned(),
            site: "us".to_owned(),
            began,
            proved: 9,
            rights: vec![
                RightUsed { key: Key::new("ap", "motd"), until },
                RightUsed { key: Key::new("ap", "m".repeat(200)), until },
            ],
            parts: vec![PartAsked { site: "eu".to_owned(), reads: 1, scans: 0, writes: 2 }],
            steps: vec![
                step(0, "eu", What::Asked),
                step(80, "eu", What::Waits { key, holders, until }),
                step(240, "eu", What::Prepared),
                step(330, "eu", What::Noted),
                step(
                    340,
                    "eu",
                    What::Refused(Aborted {
                        cause: Cause::WouldWait,
                        key: Some(Key::new("eu", "k".repeat(300))),
                        site: None,
                        holders: vec!["region-with-a-rather-long-name-as-some-have-it-in-their-clouds".to_owned()],
                        until: None,
                        calls: Vec::new(),
                    }),
                ),
            ],
            left_out: 0,
            end: Some((Duration::from_millis(240), slackline::End::Committed { phases: 2 })),
        };
        let text = text(&explanation, began + Duration::from_secs(12));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert_eq!(lines[0], "us-1-9-12 began at us, 12.0 s ago");
        assert!(lines[3].starts_with("  ap:mmm") && lines[3].contains('…'), "{text}");
        assert_eq!(
            [lines[1], lines[2], lines[4]],
            [
                "9 reads proved by rights of its own, so that nobody was asked:",
                "  ap:motd until 4.8 s after the beginning",
                "  and 7 more",
            ]
        );
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for says in [
            "0 µs eu asked to prepare 1 read, 2 writes",
            "80.0 ms eu 80.0 ms waits for rights over eu:rooms/101 held by us, ap, at most until 4.8 s",
            "240 ms eu 160 ms prepared 240 ms us committed in 2 phases 330 ms eu 90.0 ms has noted the decision",
        ] {
            assert!(words.contains(says), "{says}: {text}");
        }
    }
}
