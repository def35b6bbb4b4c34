//! `slackline`: runs sites, uses quotas, and has the tools around them. Each command is a module of [`commands`].

mod commands;
mod described;
mod duration;
mod end;
mod json;
mod output;
mod session;
mod values;
mod waited;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use mimalloc::MiMalloc;

use crate::end::{End, Finish};

/// The allocator of everything here; see the decision of 2026-11-26.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Quotas and objects that several regions share.
///
/// A quota is a number of tokens of a shared resource: seats, GPUs, model tokens per minute. It is spread over sites in
/// several regions; each site grants and takes back tokens on its own, at local latency, and the sites move tokens among each
/// other. The limit is never exceeded. An object is a value with a home region; transactions read and change objects of all
/// regions, and take effect strictly one after the other.
#[derive(Parser)]
#[command(
    name = "slackline",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    infer_subcommands = false,
    // The width of the narrowest terminal that people use: a line that is broken by the terminal is hard to read.
    term_width = 80,
    after_help = "\
A first tour, in two terminals:
  slackline dev                               # three regions on this machine
  slackline quota create gpus --limit 5000
  slackline quota acquire gpus 3 --site eu
  slackline quota show gpus
  slackline put eu:motd '\"hello\"'
  slackline get eu:motd

Exit status: 0 done; 1 refused or failed; 2 wrong use;
3 unknown: it may have been done or not."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Dev(commands::dev::Dev),
    Serve(commands::serve::Serve),
    Quota(commands::quota::Quota),
    Get(commands::object::Get),
    Put(commands::object::Put),
    Delete(commands::object::Delete),
    Add(commands::object::Add),
    Scan(commands::object::Scan),
    Txn(commands::txn::Transaction),
    Treaty(commands::treaty::Treaty),
    AcceptLoss(commands::object::AcceptLoss),
    Status(commands::status::Status),
    Site(commands::site::Site),
    Outcome(commands::outcome::Outcome),
    Sim(commands::sim::Sim),
    Bench(commands::bench::Bench),
}

impl Command {
    fn run(self) -> Result<End, Finish> {
        match self {
            Command::Dev(command) => command.run(),
            Command::Serve(command) => command.run(),
            Command::Quota(command) => command.run(),
            Command::Get(command) => command.run(),
            Command::Put(command) => command.run(),
            Command::Delete(command) => command.run(),
            Command::Add(command) => command.run(),
            Command::Scan(command) => command.run(),
            Command::Txn(command) => command.run(),
            Command::Treaty(command) => command.run(),
            Command::AcceptLoss(command) => command.run(),
            Command::Status(command) => command.run(),
            Command::Site(command) => command.run(),
            Command::Outcome(command) => command.run(),
            Command::Sim(command) => command.run(),
            Command::Bench(command) => command.run(),
        }
    }

    fn is_json(&self) -> bool {
        match self {
            Command::Dev(command) => command.json,
            Command::Serve(command) => command.json,
            Command::Quota(command) => command.is_json(),
            Command::Get(command) => command.json,
            Command::Put(command) => command.json,
            Command::Delete(command) => command.json,
            Command::Add(command) => command.json,
            Command::Scan(command) => command.json,
            Command::Txn(command) => command.is_json(),
            Command::Treaty(command) => command.is_json(),
            Command::AcceptLoss(command) => command.json,
            Command::Status(command) => command.json,
            Command::Site(command) => command.is_json(),
            Command::Outcome(command) => command.json,
            Command::Sim(command) => command.json,
            Command::Bench(command) => command.is_json(),
        }
    }
}

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return wrong_use(&error),
    };

    let json = command.is_json();
    match command.run() {
        Ok(end) => {
            end.print(json);
            ExitCode::SUCCESS
        }
        Err(finish) => {
            finish.print(json);
            ExitCode::from(finish.status())
        }
    }
}

/// Help goes to standard output, a mistake to standard error: in one line, or as the help of a command without a subcommand.
fn wrong_use(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            end::say(error.to_string().trim_end());
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            end::complain(error.to_string().trim_end());
            ExitCode::from(2)
        }
        // Scripts and logs keep one line for each failure, so the paragraphs that the parser writes are put together.
        _ => {
            let text = error.to_string();
            let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
            let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
            let problem = words.join(" ");
            let problem = problem.split(" For more information").next().unwrap_or_default();
            let problem = problem.trim_start_matches("error: ").replace(" tip: ", "; tip: ");
            // The parser advises to pass an unknown option as a value: nobody who writes one means that.
            let problem = problem.split("; tip: to pass '").next().unwrap_or_default();
            let problem = plain(problem);
            end::complain(format_args!("slackline: {}; see `{} --help`", output::safe(&problem), command_words()));
            ExitCode::from(2)
        }
    }
}

/// The sentence of the parser about a number, in the words of the other errors.
fn plain(problem: &str) -> String {
    let problem = problem
        .replace("invalid digit found in string", "it is not a whole number")
        .replace("cannot parse integer from empty string", "it is not a whole number")
        .replace("number too large to fit in target type", "it is too large")
        .replace("number too small to fit in target type", "it is too small");

    // "0 is not in 1..=64": the range is said as a person says it.
    let Some((before, range)) = problem.split_once(" is not in ") else { return problem };
    let ends = range.split_once("..=");
    match (before.rsplit_once(": "), ends) {
        (Some((what, _)), Some((first, last))) => format!("{what}: a number from {first} to {last} is wanted"),
        _ => problem,
    }
}

/// The words of the command line that name the command.
fn command_words() -> String {
    let mut command = Cli::command();
    let mut words = vec!["slackline".to_owned()];
    for word in std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()) {
        let Some(next) = command.find_subcommand(&word) else { break };
        command = next.clone();
        words.push(word);
    }
    words.join(" ")
}
