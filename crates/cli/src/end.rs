//! How a command ends: what it prints, and its exit status.

use std::fmt::Display;
use std::io::{self, Write};

use serde_json::{Value, json};
use slackline::{NotDone, ReadError, Reason, Refused, Unknown, WhyUnknown};

/// Prints a line. Whoever reads may have gone away, as `head` does; that is no failure of the command.
pub(crate) fn say(line: impl Display) {
    let mut out = io::stdout().lock();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        // What was to be told is lost, and may matter: a grant's id.
        eprintln!("slackline: standard output: {error}");
        std::process::exit(1);
    }
}

/// A command is done; this is what it has to say.
pub(crate) struct End {
    json: Value,
    text: String,
}

impl End {
    /// `text` is for people, without a line end.
    pub(crate) fn new(json: Value, text: impl Into<String>) -> Self {
        Self { json, text: text.into() }
    }

    /// It has said everything already.
    pub(crate) fn silent() -> Self {
        Self { json: Value::Null, text: String::new() }
    }

    pub(crate) fn print(&self, json: bool) {
        match json {
            true if self.json.is_null() => {}
            true => say(&self.json),
            false if self.text.is_empty() => {}
            false => say(&self.text),
        }
    }
}

/// A command is not done.
pub(crate) enum Finish {
    /// The cluster refused. With a hint on what to do, if there is one.
    Refused(Refused),
    /// It may have been done or not.
    Unknown(Unknown),
    /// It could not be tried, or did not get an answer.
    Failed(String),
    /// It was tried, found wanting, and has printed its report already.
    Said(String),
    /// The command line makes no sense.
    WrongUse(String),
}

impl Finish {
    pub(crate) fn status(&self) -> u8 {
        match self {
            Finish::Refused(_) | Finish::Failed(_) | Finish::Said(_) => 1,
            Finish::WrongUse(_) => 2,
            Finish::Unknown(_) => 3,
        }
    }

    /// One line on standard error, and with `--json` one object on standard output.
    pub(crate) fn print(&self, json: bool) {
        eprintln!("slackline: {}", self.sentence());
        if json && !matches!(self, Finish::Said(_)) {
            say(self.json());
        }
    }

    fn sentence(&self) -> String {
        match self {
            Finish::Refused(refused) => format!("{refused}{}", advice(&refused.reason)),
            // Who has asked already, or what nobody will ever know, is not to be asked again at once.
            Finish::Unknown(unknown) => match unknown.why {
                WhyUnknown::IncarnationLost | WhyUnknown::Forgotten => format!("{unknown}; nobody can tell any more"),
                _ => format!("{unknown}; `slackline outcome {}` settles it once it can", unknown.name),
            },
            Finish::Failed(problem) | Finish::Said(problem) | Finish::WrongUse(problem) => one_line(problem),
        }
    }

    fn json(&self) -> Value {
        match self {
            Finish::Refused(refused) => {
                json!({ "outcome": "refused", "reason": code(&refused.reason), "message": self.sentence() })
            }
            Finish::Unknown(unknown) => {
                json!({ "outcome": "unknown", "operation": unknown.name, "message": self.sentence() })
            }
            Finish::Failed(_) | Finish::Said(_) => json!({ "outcome": "failed", "message": self.sentence() }),
            Finish::WrongUse(_) => json!({ "outcome": "wrong_use", "message": self.sentence() }),
        }
    }
}

impl From<NotDone> for Finish {
    fn from(not_done: NotDone) -> Self {
        match not_done {
            // The command named something that the cluster does not have, or a number that cannot be.
            NotDone::Refused(Refused {
                reason: reason @ (Reason::UnknownRegion { .. } | Reason::InvalidAmount | Reason::InvalidName),
                ..
            }) => Finish::WrongUse(reason.to_string()),
            NotDone::Refused(refused) => Finish::Refused(refused),
            NotDone::Unknown(unknown) => Finish::Unknown(unknown),
        }
    }
}

impl From<ReadError> for Finish {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Refused(reason) => NotDone::Refused(Refused { reason, operation: None }).into(),
            error => Finish::Failed(format!("{error}; `slackline status` tells which sites are up")),
        }
    }
}

/// What to do about a refusal, where the refusal does not say so itself.
fn advice(reason: &Reason) -> &'static str {
    match reason {
        Reason::UnknownQuota => "; create it with `slackline quota create`, or see `slackline quota list`",
        Reason::Exhausted { .. } => "; try again when some are released, or ask for fewer",
        Reason::LimitDiffers { .. } => "; use that limit, or delete the quota first",
        Reason::AboveOut { .. } => "; release what was acquired",
        Reason::DeadlinePassed => "; give it more time with --deadline",
        Reason::Unreachable { .. } | Reason::NotSent { .. } => "; `slackline status` tells which sites are up",
        _ => "",
    }
}

/// A reason as a word for programs.
pub(crate) fn code(reason: &Reason) -> &'static str {
    match reason {
        Reason::UnknownQuota => "unknown_quota",
        Reason::Exhausted { .. } => "exhausted",
        Reason::InvalidAmount => "invalid_amount",
        Reason::InvalidName => "invalid_name",
        Reason::LimitDiffers { .. } => "limit_differs",
        Reason::AboveOut { .. } => "above_out",
        Reason::UnknownGrant => "unknown_grant",
        Reason::QuotaDeleted => "quota_deleted",
        Reason::Overloaded => "overloaded",
        Reason::DeadlinePassed => "deadline_passed",
        Reason::Unreachable { .. } => "unreachable",
        Reason::Withdrawn => "withdrawn",
        Reason::OtherContent => "other_content",
        Reason::NotReady => "not_ready",
        Reason::StorageFull => "storage_full",
        Reason::NotSent { .. } => "not_sent",
        Reason::UnknownRegion { .. } => "unknown_region",
        Reason::Closed => "closed",
        _ => "other",
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
