//! The end of a command: its output, and its exit status.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Value, json};
use slackline::{
    Aborted, Agreement, Cause, Client, Left, LeftWhat, NoSeat, NotDone, ReadError, Reason, Refused, TreatyRefusal,
    TxnError, Unknown, UnknownReason,
};

use crate::described::Described;
use crate::duration;
use crate::output::{safe, safe_line};
use crate::waited::Answered;

/// Prints text or JSON that is safe on a terminal: in JSON, escaped characters stand in strings, and mean the same there. A reader
/// that has gone away, as `head` does, is no failure of the command.
pub(crate) fn say(line: impl Display) {
    write_or_end(line, |error| error.kind() == io::ErrorKind::BrokenPipe);
}

/// Prints what a command has done, unless the error that stands in its way changes nothing.
fn write_or_end(line: impl Display, is_harmless: impl Fn(&io::Error) -> bool) {
    if let Err((error, line)) = write_out(line)
        && !is_harmless(&error)
    {
        // The command has done its work, and its output may be needed to undo it: a grant's id.
        complain(format_args!(
            "slackline: done, but standard output cannot be written ({error}); the output is: {line}"
        ));
        std::process::exit(1);
    }
}

/// Prints what a program that goes on has to say of itself, or what one that has failed says besides its status. It goes on, or keeps that
/// status, whether anybody can read this or not.
fn announce(line: impl Display) {
    if let Err((error, line)) = write_out(line) {
        complain(format_args!("slackline: standard output cannot be written ({error}); it would be: {line}"));
    }
}

/// Prints a line on standard output. An error comes with the line that it has cost.
fn write_out(line: impl Display) -> Result<(), (io::Error, String)> {
    let line = safe(&line.to_string()).into_owned();
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| (error, line))
}

/// Prints a line on standard error. Nobody may be reading there, which changes nothing of what the command has done: the exit status
/// and the output tell that.
pub(crate) fn complain(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints text over what a terminal has shown before; anything else gets one text after the other. False if nobody reads it any more.
pub(crate) fn redraw(text: &str) -> bool {
    let text = safe(text);
    let mut out = io::stdout().lock();
    let clear = if out.is_terminal() { "\x1b[2J\x1b[H" } else { "" };
    let end = if out.is_terminal() { "" } else { "\n" };
    writeln!(out, "{clear}{text}{end}").and_then(|()| out.flush()).is_ok()
}

/// The output of a command that is done.
pub(crate) struct End {
    /// For `--json`; empty if there is none.
    json: String,
    /// For people; empty if there is none.
    text: String,
    /// For people: the sites that the answer came from; none where its time says nothing.
    answered: Option<Answered>,
    /// For people: the time that the answer took, in a line on standard error, so that standard output is the answer alone.
    time: Option<String>,
    /// For people: a question to a site whose answer, if there is one, takes the place of `text`. It is asked once the work is done and its
    /// time is taken: an interruption of the work must not lose what it has done.
    better: Option<Pin<Box<dyn Future<Output = Option<String>>>>>,
    /// True if it is needed to undo what was done: a reader that has gone away must not take it along.
    is_needed: bool,
}

impl End {
    /// `text` is for people, without a line end.
    pub(crate) fn new(json: impl Serialize, text: impl Into<String>) -> Self {
        Self { json: to_json(json), ..Self::of_text(text) }
    }

    /// The output is text alone.
    pub(crate) fn of_text(text: impl Into<String>) -> Self {
        Self { json: String::new(), text: text.into(), answered: None, time: None, better: None, is_needed: false }
    }

    /// The same output, which is needed to undo what was done.
    pub(crate) fn needed(self) -> Self {
        Self { is_needed: true, ..self }
    }

    /// The same output, with the sites that the answer came from.
    pub(crate) fn answered(self, answered: Answered) -> Self {
        Self { answered: Some(answered), ..self }
    }

    /// The same output, whose text is what this finds, if it finds something.
    pub(crate) fn or_better(self, better: impl Future<Output = Option<String>> + 'static) -> Self {
        Self { better: Some(Box::pin(better)), ..self }
    }

    /// The same output as people are told it, with the line on the time that the answer took.
    pub(crate) async fn told(mut self, client: &Client, took: Duration) -> Self {
        if let Some(better) = self.better.take()
            && let Some(text) = better.await
        {
            self.text = text;
        }
        if let Some(answered) = self.answered.take() {
            self.time = Some(answered.line(client, took).await);
        }
        self
    }

    /// The output is printed already.
    pub(crate) fn silent() -> Self {
        Self::of_text("")
    }

    /// The same output, with the operations that the command leaves unsettled.
    pub(crate) fn leaving(self, left: &[Left]) -> Self {
        let mut json: Value = serde_json::from_str(&self.json).unwrap_or_default();
        json["left"] = left.iter().map(left_json).collect();
        let text = left.iter().fold(self.text, |text, left| text + "\n" + &left_words(left));
        Self { json: to_json(json), text, ..self }
    }

    /// Prints the output of a program that goes on.
    pub(crate) fn announce(&self, json: bool) {
        announce(if json { &self.json } else { &self.text });
    }

    pub(crate) fn print(&self, json: bool) {
        let line = if json { &self.json } else { &self.text };
        match () {
            () if line.is_empty() => {}
            () if self.is_needed => write_or_end(line, |_| false),
            () => say(line),
        }
        if let Some(time) = self.time.as_ref().filter(|_| !json) {
            complain(safe_line(time));
        }
    }
}

/// A command is not done.
pub(crate) enum Finish {
    /// The cluster refused. Printed with advice, if there is some.
    Refused(Refused),
    /// The cluster refused, and the command can say it in better words: a sentence with the names that it was given.
    RefusedAs(Refused, String),
    /// The cluster aborted a transaction; `txn explain` takes this id.
    Aborted(Refused, String),
    /// It may have been done or not.
    Unknown(Unknown),
    /// The operation with this id, which the command asks about, was refused, at that time.
    WasRefused(Refused, String),
    /// The user interrupted it, and its outcome has not come. What has left and may have been done is named beside it.
    Interrupted,
    /// The user interrupted what acquires tokens, which are given back.
    Withdrawn,
    /// It could not be tried, or did not get an answer.
    Failed(String),
    /// It ran and has found a failure. Its report is printed already.
    Said(String),
    /// It was not done, and leaves these operations unsettled.
    Leaving(Box<Finish>, Vec<Left>),
    /// The command line makes no sense.
    WrongUse(String),
    /// An object does not have the value that a transaction expected.
    NotAsExpected {
        /// The object.
        key: String,
        /// Its kind and its value.
        found: Described,
        /// The same in words.
        words: String,
    },
}

/// For programs: an object does not have the value that a transaction expected.
#[derive(Serialize)]
struct NotAsExpected<'a> {
    found: &'a Described,
    key: &'a str,
    message: String,
    outcome: &'static str,
    reason: &'static str,
}

impl Finish {
    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Finish::Refused(refused) | Finish::RefusedAs(refused, _) | Finish::Aborted(refused, _)
                if is_wrong_use(&refused.reason) =>
            {
                2
            }
            Finish::Refused(_) | Finish::RefusedAs(..) | Finish::Aborted(..) | Finish::WasRefused(..) => 1,
            Finish::Failed(_) | Finish::Said(_) | Finish::NotAsExpected { .. } => 1,
            Finish::Leaving(finish, _) => finish.status(),
            Finish::WrongUse(_) => 2,
            Finish::Unknown(_) | Finish::Interrupted | Finish::Withdrawn => 3,
        }
    }

    /// One line on standard error, and with `--json` one object on standard output.
    pub(crate) fn print(&self, json: bool) {
        complain(format_args!("slackline: {}", safe_line(&self.sentence())));
        match self {
            _ if !json => {}
            Finish::Said(_) => {}
            // The object's value is printed as it was written: `Value` would lose digits of it.
            Finish::NotAsExpected { key, found, .. } => {
                let message = self.sentence();
                announce(to_json(NotAsExpected { found, key, message, outcome: "refused", reason: "not_as_expected" }));
            }
            _ => announce(self.json()),
        }
    }

    /// The end in one sentence, with advice.
    fn sentence(&self) -> String {
        match self {
            Finish::Refused(Refused { reason, .. }) | Finish::Aborted(Refused { reason, .. }, _)
                if is_wrong_use(reason) =>
            {
                reason.to_string()
            }
            Finish::Refused(refused) => format!("{refused}{}", advice(&refused.reason)),
            Finish::RefusedAs(_, sentence) => sentence.clone(),
            Finish::Aborted(refused, operation) => {
                format!("{refused}{}; `slackline txn explain {operation}` tells more", advice(&refused.reason))
            }
            // It was mistyped, or did not arrive before somebody asked about it. The site cannot tell these apart.
            Finish::WasRefused(Refused { reason: Reason::Withdrawn, .. }, name) => format!(
                "its site has carried out no operation {name}, and never will: it did not know this id, or had not begun to carry \
                 it out, when it was first asked; is the id right?"
            ),
            Finish::WasRefused(refused, _) => format!("the operation was refused: {}", refused.reason),
            Finish::Interrupted => "interrupted: it may have been done or not".to_owned(),
            Finish::Withdrawn => "interrupted: it is taken back, and so are the tokens if it was granted".to_owned(),
            // Asking again helps only where a site will know the outcome.
            Finish::Unknown(unknown) => match unknown.why {
                UnknownReason::IncarnationLost | UnknownReason::Forgotten | UnknownReason::HomeLost => {
                    format!("{unknown}; no site knows its outcome any more")
                }
                _ => format!("{unknown}; ask for its outcome later with `slackline outcome {}`", unknown.name),
            },
            Finish::Leaving(finish, left) => {
                let left: Vec<_> = left.iter().map(left_words).collect();
                format!("{}; {}", finish.sentence(), left.join("; "))
            }
            Finish::NotAsExpected { key, words, .. } => {
                format!("refused: {key} is not as expected: {words}")
            }
            Finish::Failed(problem) | Finish::Said(problem) | Finish::WrongUse(problem) => one_line(problem),
        }
    }

    /// The end for programs.
    fn json(&self) -> Value {
        let (outcome, mut json) = match self {
            Finish::Leaving(finish, left) => {
                let mut json = finish.json();
                json["left"] = left.iter().map(left_json).collect();
                json["message"] = json!(self.sentence());
                return json;
            }
            Finish::Refused(Refused { reason, .. }) | Finish::RefusedAs(Refused { reason, .. }, _)
                if is_wrong_use(reason) =>
            {
                ("wrong_use", reason_json(reason))
            }
            Finish::Aborted(Refused { reason, .. }, operation) => {
                let mut json = reason_json(reason);
                json["operation"] = json!(operation);
                (if is_wrong_use(reason) { "wrong_use" } else { "refused" }, json)
            }
            Finish::Refused(Refused { reason, .. })
            | Finish::RefusedAs(Refused { reason, .. }, _)
            | Finish::WasRefused(Refused { reason, .. }, _) => ("refused", reason_json(reason)),
            Finish::Interrupted | Finish::Withdrawn => ("unknown", json!({ "why": "interrupted" })),
            Finish::Unknown(unknown) => ("unknown", json!({ "operation": unknown.name, "why": unknown.why.code() })),
            Finish::Failed(_) | Finish::Said(_) => ("failed", json!({})),
            Finish::NotAsExpected { key, .. } => ("refused", json!({ "reason": "not_as_expected", "key": key })),
            Finish::WrongUse(_) => ("wrong_use", json!({})),
        };

        json["outcome"] = json!(outcome);
        json["message"] = json!(self.sentence());
        json
    }
}

impl Finish {
    /// A quota was not created; its parent is the one that the command gave.
    pub(crate) fn of_creation(not_done: NotDone, quota: &str, parent: Option<&str>) -> Self {
        let (refused, parent) = match (not_done, parent) {
            (NotDone::Refused(refused), Some(parent)) => (refused, parent),
            (not_done, _) => return not_done.into(),
        };
        let sentence = match refused.reason {
            Reason::InvalidParent => {
                format!("{quota} cannot count in {parent}: its name is to be {parent}/ and more")
            }
            Reason::NoParent => format!(
                "refused: {quota} cannot count in {parent}: that, or a quota above it, does not exist; create it with `slackline quota \
                 create`, or see `slackline quota list`"
            ),
            Reason::ParentDiffers => format!(
                "refused: {quota} exists, and does not count in {parent}; `slackline quota tree` shows in which it does, and to \
                 change that it is deleted first"
            ),
            Reason::MixedRefill => format!(
                "refused: one of {quota} and {parent} refills, and the other does not; give --refill to both, or to neither"
            ),
            Reason::TooDeep => {
                format!("refused: {parent} is on the eighth level of its tree, and {quota} would be on the ninth")
            }
            _ => return Finish::Refused(refused),
        };
        Finish::RefusedAs(refused, sentence)
    }

    /// A transaction was not done.
    pub(crate) fn of_transaction(not_done: NotDone, client: &Client) -> Self {
        match not_done {
            NotDone::Refused(refused @ Refused { reason: Reason::Aborted(_), operation: Some(operation) }) => {
                Finish::Aborted(refused, client.topology().operation_text(operation))
            }
            not_done => not_done.into(),
        }
    }
}

/// A transaction that its own program gave up. Where a site would have refused it for the same reason, the end is that refusal.
impl From<TxnError> for Finish {
    fn from(error: TxnError) -> Self {
        let aborted = |cause, key| {
            let aborted = Aborted { cause, key, site: None, holders: Vec::new(), until: None, calls: Vec::new() };
            Reason::Aborted(Box::new(aborted))
        };
        let reason = match error {
            TxnError::NotRead(reason) => reason,
            // Commands read values of any kind; only an add needs one, a counter.
            TxnError::Unexpected { key, .. } => aborted(Cause::NotACounter, Some(key)),
            TxnError::OutOfRange(key) => aborted(Cause::OutOfRange, Some(key)),
            TxnError::NotMet(_) => aborted(Cause::NotMet, None),
            error => return Finish::Failed(error.to_string()),
        };
        Finish::Refused(Refused { reason, operation: None })
    }
}

impl From<NotDone> for Finish {
    fn from(not_done: NotDone) -> Self {
        match not_done {
            NotDone::Refused(refused) => Finish::Refused(refused),
            NotDone::Unknown(unknown) => Finish::Unknown(unknown),
        }
    }
}

impl From<ReadError> for Finish {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Refused(reason) => NotDone::Refused(Refused { reason, operation: None }).into(),
            error => Finish::Failed(format!("{error}; `slackline status` shows which sites are up")),
        }
    }
}

/// Advice on a refusal, as the end of its sentence. Empty where the refusal says itself what to do.
fn advice(reason: &Reason) -> String {
    let advice = match reason {
        Reason::Aborted(aborted) => return advice_on(aborted),
        Reason::Treaty(TreatyRefusal::Unknown) => {
            "; make it with `slackline treaty create`, or see `slackline treaty list`"
        }
        Reason::Treaty(TreatyRefusal::NameTaken) => {
            "; `slackline treaty drop` ends that one, and --replace puts this one in its place"
        }
        Reason::UnknownQuota => "; create it with `slackline quota create`, or see `slackline quota list`",
        Reason::Exhausted { retry_after: Some(after), .. } => {
            return format!("; they are refilled: try again in {}", duration::words(*after));
        }
        Reason::Exhausted { .. } => "; try again when some are released, stay in line with --wait, or ask for fewer",
        Reason::RefillDiffers { .. } => "; use that refill, or delete the quota first",
        Reason::LimitDiffers { .. } => "; use that limit, or change it with `slackline quota set`",
        Reason::AgreementDiffers { .. } => "; use that agreement, or delete the quota first",
        Reason::NoParent => "; create it with `slackline quota create`, or see `slackline quota list`",
        Reason::ParentDiffers => "; name that one, or delete the quota first",
        Reason::HasChildren => "; `slackline quota tree` shows them",
        Reason::Refills => "; what was granted of it comes back by itself: see its rate with `slackline quota show`",
        Reason::AboveOut { .. } => "; release what was acquired",
        Reason::AboveLimit { .. } => "; ask for fewer",
        Reason::AboveGrant { .. } => "; say what was used of this grant",
        Reason::NoSeat { why: NoSeat::Lives, .. } => "; one that is well is drained and removed",
        Reason::NoSeat { why: NoSeat::Unrecorded, .. } => {
            "; `slackline status` shows of which site, and `slackline site wait SITE` waits for that"
        }
        Reason::NoSeat { why: NoSeat::NotDrained, .. } => "; `slackline site drain` does that",
        Reason::NoSeat { why: NoSeat::WasMember, .. } => "; it can join under another name",
        Reason::NoSeat { why: NoSeat::HasObjects, .. } => "; write them elsewhere, and delete them",
        Reason::NoSeat { why: NoSeat::HasGrants, .. } => "; release them, or wait until they end",
        Reason::IncarnationLives => "; `slackline status` shows each site's incarnation",
        Reason::AlsoLost { .. } => "; give --of once for each",
        Reason::DeadlinePassed => "; give it more time with --deadline",
        Reason::Unreachable { .. } | Reason::NotSent { .. } => "; `slackline status` shows which sites are up",
        _ => "",
    };
    advice.to_owned()
}

/// The same, of a transaction.
fn advice_on(aborted: &Aborted) -> String {
    match aborted.cause {
        Cause::Changed | Cause::Busy | Cause::DeadlinePassed => "; give it more time with --deadline".to_owned(),
        Cause::WouldWait => {
            let left = aborted.until.and_then(|until| until.duration_since(SystemTime::now()).ok());
            let seconds = left.unwrap_or_default().as_secs() + 1;
            // How long that takes is not known: mostly a round trip, and at most until the treaty's home is given up.
            if aborted.key.as_ref().is_some_and(|key| key.treaty().is_some()) {
                return "; to wait for that, give --max-wait 1s: mostly a round trip is enough, and if a region is down \
                        --max-wait 60s and --deadline 60s"
                    .to_owned();
            }
            format!(
                "; they end within {seconds}s: to wait for that, give --max-wait {seconds}s and --deadline {seconds}s"
            )
        }
        Cause::Unreachable => "; `slackline status` shows which sites are up".to_owned(),
        Cause::NotReady => "; try again in a moment, or see `slackline status`".to_owned(),
        Cause::ClocksDisagree => {
            "; `slackline status` shows which clock is off: set it, or raise that site's `epsilon_us`".to_owned()
        }
        Cause::TooManyTreaties => {
            "; `slackline treaty list` shows them, `slackline treaty drop NAME` ends one".to_owned()
        }
        Cause::NotACounter => "; `slackline put KEY --counter NUMBER` makes it one".to_owned(),
        Cause::TooMuch => "; divide it, or scan in parts with `slackline scan --limit ROWS --after NAME`".to_owned(),
        Cause::Lost => {
            let region = aborted.key.as_ref().map(|key| key.region()).or(aborted.site.as_deref()).unwrap_or("REGION");
            format!(
                "; `slackline accept-loss --site {region}` accepts that it is permanently gone: from 21 s after the start of {region} \
                 on, it counts as absent"
            )
        }
        _ => String::new(),
    }
}

/// True if the command named something that the cluster does not have, or an impossible number.
fn is_wrong_use(reason: &Reason) -> bool {
    match reason {
        Reason::UnknownRegion { .. } | Reason::InvalidAmount | Reason::InvalidName | Reason::InvalidParent => true,
        Reason::Treaty(refusal) => {
            !matches!(refusal, TreatyRefusal::NotTrue(_) | TreatyRefusal::NameTaken | TreatyRefusal::Unknown)
        }
        Reason::Aborted(aborted) => matches!(aborted.cause, Cause::InvalidKey | Cause::UnknownRegion),
        _ => false,
    }
}

/// An agreement, as `quota create` takes it.
pub(crate) fn agreement_word(agreement: Agreement) -> &'static str {
    match agreement {
        Agreement::Majority => "majority",
        Agreement::Any => "any",
    }
}

/// A reason for programs: its word, and its details.
fn reason_json(reason: &Reason) -> Value {
    let mut json = match reason {
        Reason::Exhausted { asked, retry_after, quota } => {
            let mut json = json!({ "asked": asked });
            retry_after.iter().for_each(|after| json["retry_after_ms"] = json!(after.as_millis() as u64));
            quota.iter().for_each(|quota| json["quota"] = json!(quota));
            json
        }
        Reason::AboveLimit { limit, quota: Some(quota) } => json!({ "limit": limit, "quota": quota }),
        Reason::InUse { amount } => json!({ "amount": amount }),
        Reason::RefillDiffers { refill } => json!({ "refill_per_second": *refill as f64 / 1e6 }),
        Reason::LimitDiffers { limit } | Reason::AboveLimit { limit, .. } => json!({ "limit": limit }),
        Reason::AgreementDiffers { agreement } => json!({ "agreement": agreement_word(*agreement) }),
        Reason::AboveOut { at_most } => json!({ "at_most": at_most }),
        Reason::AboveGrant { amount } => json!({ "amount": amount }),
        Reason::AlsoLost { sites } => json!({ "sites": sites }),
        Reason::AboveLost { at_most } => json!({ "at_most": at_most }),
        Reason::BelowReleased { at_least } => json!({ "at_least": at_least }),
        Reason::Unreachable { missing } => json!({ "missing": missing }),
        Reason::NotSent { sites } => json!({ "sites": sites }),
        Reason::UnknownRegion { region, known } => json!({ "region": region, "known": known }),
        Reason::Treaty(TreatyRefusal::NotTrue(value)) => json!({ "value": value }),
        Reason::Aborted(aborted) => return aborted_json(aborted),
        _ => json!({}),
    };
    json["reason"] = json!(reason.code());
    json
}

/// The reason why a transaction was aborted, for programs.
pub(crate) fn aborted_json(aborted: &Aborted) -> Value {
    json!({
        "reason": aborted.cause.code(),
        "key": aborted.key.as_ref().map(ToString::to_string),
        "treaty": aborted.key.as_ref().and_then(|key| key.treaty()),
        "site": aborted.site,
        "holders": aborted.holders,
        "until_unix_ms": aborted.until.map(unix_ms),
    })
}

/// A time in milliseconds since 1970.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// An operation that a command leaves unsettled, for programs.
fn left_json(left: &Left) -> Value {
    let mut json = match &left.what {
        LeftWhat::Acquire { quota, amount } => json!({ "what": "acquire", "quota": quota, "amount": amount }),
        LeftWhat::Release { quota, amount } => json!({ "what": "release", "quota": quota, "amount": amount }),
        LeftWhat::ReleaseGrant { name, .. } => json!({ "what": "release_grant", "grant": name }),
        _ => json!({ "what": "other" }),
    };
    let operation = match &left.why {
        NotDone::Unknown(unknown) => Some(&unknown.name),
        NotDone::Refused(_) => None,
    };
    json["operation"] = json!(operation);
    json
}

/// The same for people, with advice.
fn left_words(left: &Left) -> String {
    let what = &left.what;
    match (what, &left.why) {
        (LeftWhat::Acquire { .. }, NotDone::Unknown(unknown)) => format!(
            "left behind: {what}, which may have been granted too: ask with `slackline outcome {}`, and release what it names",
            unknown.name
        ),
        (_, NotDone::Unknown(unknown)) => {
            format!("not settled: {what}: ask for its outcome with `slackline outcome {}`", unknown.name)
        }
        (_, NotDone::Refused(_)) => format!("not done: {what}"),
    }
}

fn to_json(object: impl Serialize) -> String {
    serde_json::to_string(&object).expect("its keys are strings, and memory has no errors")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refusal_carries_is_told_in_fields() {
        let json = |reason| Finish::Refused(Refused { reason, operation: None }).json();
        let sites = || vec!["us".to_owned(), "eu".to_owned()];
        for (reason, code, field, value) in [
            (
                Reason::Exhausted { asked: sites(), retry_after: None, quota: None },
                "exhausted",
                "asked",
                json!(["us", "eu"]),
            ),
            (Reason::LimitDiffers { limit: 7 }, "limit_differs", "limit", json!(7)),
            (Reason::AgreementDiffers { agreement: Agreement::Any }, "agreement_differs", "agreement", json!("any")),
            (Reason::AboveOut { at_most: 5 }, "above_out", "at_most", json!(5)),
            (Reason::AboveLimit { limit: 7, quota: None }, "above_limit", "limit", json!(7)),
            (Reason::AboveGrant { amount: 3 }, "above_grant", "amount", json!(3)),
            (Reason::AlsoLost { sites: sites() }, "also_lost", "sites", json!(["us", "eu"])),
            (Reason::AboveLost { at_most: 3 }, "above_lost", "at_most", json!(3)),
            (Reason::BelowReleased { at_least: 3 }, "below_released", "at_least", json!(3)),
            (Reason::Unreachable { missing: sites() }, "unreachable", "missing", json!(["us", "eu"])),
            (Reason::NotSent { sites: sites() }, "not_sent", "sites", json!(["us", "eu"])),
        ] {
            let json = json(reason);
            assert_eq!((&json["outcome"], &json["reason"], &json[field]), (&json!("refused"), &json!(code), &value));
            assert_eq!(json.as_object().map(|object| object.len()), Some(4), "{json}");
        }
        let mars = json(Reason::UnknownRegion { region: "mars".to_owned(), known: sites() });
        let known = (&json!("wrong_use"), &json!("mars"), &json!(["us", "eu"]));
        assert_eq!((&mars["outcome"], &mars["region"], &mars["known"]), known);
    }
}
