//! The output of benchmarks, and the common part of those that start real sites.

use std::path::PathBuf;

use clap::Args;
use slackline_bench::hot::Live;
use slackline_bench::live::LiveError;
use slackline_bench::quota::QuotaError;
use slackline_bench::report::Report;

use crate::end::{End, Finish, say};

/// The form of the result
#[derive(Args)]
pub(super) struct Shown {
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
    /// Draw the figures as SVG into this directory
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// The seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
}

/// The end of a command whose real sites failed.
pub(super) fn explain_live(error: LiveError) -> Finish {
    match error {
        LiveError::InMemory { .. } => Finish::WrongUse(error.to_string()),
        LiveError::System { .. } | LiveError::Failed(_) => Finish::Failed(error.to_string()),
    }
}

/// The end of a command whose run did not come about, or has books that are not exact.
pub(super) fn explain(error: QuotaError) -> Finish {
    match error {
        QuotaError::Trace(_) | QuotaError::Rtt(_) | QuotaError::Option(_) => Finish::WrongUse(error.to_string()),
        QuotaError::Live(error) => explain_live(error),
        QuotaError::Books { .. } => Finish::Failed(error.to_string()),
    }
}

/// Real sites of this binary, with their data below the working directory.
pub(super) fn here() -> Result<Live, Finish> {
    let binary = std::env::current_exe().map_err(|error| Finish::Failed(format!("this binary: {error}")))?;
    Ok(Live { binary: Some(binary), directory: PathBuf::from(".") })
}

/// As [`show`]; but a run in which no transaction was committed has measured nothing.
pub(super) fn show_committed(report: Report, shown: Shown) -> Result<End, Finish> {
    let empty = report.runs.iter().filter(|run| run.committed == 0);
    let empty: Vec<String> = empty.map(|run| run.label.as_ref().unwrap_or(&run.config).clone()).collect();
    let end = show(report, shown)?;
    if empty.is_empty() {
        return Ok(end);
    }
    let runs = empty.join(", ");
    Err(Finish::Said(format!(
        "nothing was committed while it was counted, in {runs}, so nothing is measured; give it more time"
    )))
}

/// Prints a report, and draws it if that is asked for.
pub(super) fn show(report: Report, shown: Shown) -> Result<End, Finish> {
    // The figures first: they took long to measure, and are wanted even if they cannot be drawn.
    match shown.json {
        true => say(report.to_json()),
        false => say(report.to_table().trim_end()),
    }

    if let Some(directory) = &shown.plot {
        let drawn = report.plot(directory);
        let drawn =
            drawn.map_err(|error| Finish::Said(format!("cannot draw into {}: {error}", directory.display())))?;
        if !shown.json {
            drawn.iter().for_each(|path| say(format!("drawn: {}", path.display())));
        }
    }

    match report.verified {
        true => Ok(End::silent()),
        false => Err(Finish::Said("the books are wrong; see the report".into())),
    }
}
