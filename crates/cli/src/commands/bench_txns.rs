//! `slackline bench twitter`, `oo7`, `bank`, `courses`, `reads`, `writes`, `treaties`, `voting`, `voting-shift`, `topk` and `tpcc`: workloads of transactions.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args};
use slackline_bench::report::Report;
use slackline_bench::txns::shift::{ShiftOptions, TreeKind, shift};
use slackline_bench::txns::single::{SingleOptions, reads, writes};
use slackline_bench::txns::topk::{Method, TopkOptions, topk, write_hits};
use slackline_bench::txns::tpcc::{Balance, Skew, TpccOptions, tpcc};
use slackline_bench::txns::treaties::{TreatiesOptions, treaties};
use slackline_bench::txns::{
    BankOptions, Baseline, Config, CoursesOptions, Oo7Options, Terms, TwitterOptions, TxnsError, bank, courses, oo7,
    twitter,
};
use slackline_bench::voting::{Strategy, VotingOptions, voting, write_events};

use super::bench_report::{Shown, explain_live, here};
use crate::end::Finish;

/// The terms of a workload of transactions
#[derive(Args)]
struct Course {
    /// Only this configuration
    #[arg(long, value_name = "NAME")]
    config: Option<Config>,
    /// The round trip between stores, in milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=10_000))]
    rtt: Option<u64>,
    /// The number of clients of each store
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: Option<u16>,
    /// The time that is counted, in milliseconds (virtual time, unless --live)
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    measure: Option<u64>,
    /// Real sites in real time, on this machine
    #[arg(long)]
    live: bool,
}

/// Completes the options that all workloads have with a workload's own defaults and configurations.
fn own(arg: Arg, terms: &Terms) -> Arg {
    let names: Vec<String> = terms.configs.iter().map(Config::to_string).collect();
    let (last, others) =
        names.split_last().map_or((String::new(), String::new()), |(last, others)| (last.clone(), others.join(", ")));
    match arg.get_id().as_str() {
        "config" => {
            arg.help(format!("Only this configuration: {others} or {last}; by default each of them, on the same seed"))
        }
        "rtt" => arg.default_value(terms.rtt.as_millis().to_string()),
        "clients" => arg.default_value(terms.clients_per_store.to_string()),
        "measure" => arg.default_value(terms.measure.as_millis().to_string()),
        _ => arg,
    }
}

impl Course {
    /// The terms of the command line; those that are not given are the workload's own.
    fn terms(&self, seed: u64, own: Terms) -> Terms {
        let millis = Duration::from_millis;
        Terms {
            configs: self.config.map_or(own.configs, |config| vec![config]),
            clients_per_store: self.clients.map_or(own.clients_per_store, usize::from),
            rtt: self.rtt.map_or(own.rtt, millis),
            measure: self.measure.map_or(own.measure, millis),
            seed,
            live: self.live.then(|| PathBuf::from(".")),
        }
    }
}

/// Measures how long regions keep a statement true alone
///
/// It follows the voting benchmark of the Predictive Treaties paper. Stations count votes; a treaty says who leads. A trial ends with the
/// first vote or query that waits for another station, or 400 s after the treaty. There is one run for each number of stations and
/// configuration: equal and optimal divide the slack once, predictive moves it at a rate as the paper does, slackline ahead of need too.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench voting                       # figures 2, 8 and 9
  slackline bench voting --stations 2 --bias 56,48 --config slackline
  slackline bench voting --stations 2 --trials 5 --events votes.csv")]
pub(crate) struct VotingBench {
    /// The number of trials of each run
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    trials: u32,
    /// The number of stations: 2 to 64, a list of numbers, or a range
    #[arg(long, value_name = "N,N|N..N", default_value = "2,4,8", value_parser = |text: &str| numbers(text, &(2..=64)))]
    stations: Numbers,
    /// The votes for A, of 100, at odd and at even stations
    #[arg(long, value_name = "P,P", default_value = "60,48", value_parser = bias)]
    bias: (u32, u32),
    /// Only this configuration: equal, optimal, predictive or slackline
    #[arg(long, value_name = "NAME")]
    config: Option<Strategy>,
    /// Write the votes of the first number of stations to this file
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    #[command(flatten)]
    pub(super) shown: Shown,
}

/// Two shares of 100.
fn bias(text: &str) -> Result<(u32, u32), String> {
    let share = |text: &str| text.trim().parse::<u32>().ok().filter(|share| *share <= 100);
    let shares = text.split_once(',').and_then(|(odd, even)| Some((share(odd)?, share(even)?)));
    shares.ok_or_else(|| "two numbers from 0 to 100 with a comma between them are wanted".to_owned())
}

impl VotingBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let options = VotingOptions {
            stations: self.stations.0.clone(),
            bias: self.bias,
            trials: self.trials,
            strategies: self.config.map_or(Strategy::ALL.to_vec(), |strategy| vec![strategy]),
            seed: self.shown.seed,
        };
        if let Some(path) = &self.events {
            let written = write_events(&options, path);
            written.map_err(|error| Finish::Failed(format!("{}: cannot be written: {error}", path.display())))?;
        }
        Ok(voting(&options))
    }
}

/// Measures votes and queries while the winner changes
///
/// It follows figures 10 and 11 of the Predictive Treaties paper. Each station has 100 votes and 20 queries a second: for 130 s A gains, and
/// then B does, who takes the lead. There is one run for each number of stations, tree and configuration: equal, predictive and
/// slackline. Shown is each second's 99th percentile of latencies (`series` of --json, or --plot).
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench voting-shift --stations 2 --tree flat --config slackline
  slackline bench voting-shift --stations 4 --config predictive
  slackline bench voting-shift --stations 4 --crash")]
pub(crate) struct ShiftBench {
    /// The number of stations: 2 to 5, a list of numbers, or a range
    #[arg(long, value_name = "N,N|N..N", default_value = "2,4", value_parser = |text: &str| numbers(text, &(2..=5)))]
    stations: Numbers,
    /// Which leaves are asked for slack first: flat (all at once), rtt (the near ones), or both
    #[arg(long, value_name = "NAME,NAME", default_value = "flat,rtt", value_delimiter = ',')]
    tree: Vec<TreeKind>,
    /// Only this configuration: equal, predictive or slackline
    #[arg(long, value_name = "NAME")]
    config: Option<Strategy>,
    /// A site dies for 120 s, once it has told another what slack it has
    #[arg(long)]
    crash: bool,
    /// The seconds to the end of a run; the shift comes after a seventh of it
    #[arg(long, value_name = "S", default_value_t = 910, value_parser = clap::value_parser!(u64).range(20..=10_000))]
    seconds: u64,
    #[command(flatten)]
    pub(super) shown: Shown,
}

impl ShiftBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let own = ShiftOptions::default();
        let options = ShiftOptions {
            stations: self.stations.0.clone(),
            trees: self.tree.clone(),
            strategies: self.config.map_or(own.strategies, |strategy| vec![strategy]),
            crash: self.crash,
            seconds: self.seconds,
            seed: self.shown.seed,
        };
        shift(&options).map_err(explain)
    }
}

/// Measures orders of a stock that regions share
///
/// It follows figures 13 and 14 of the Predictive Treaties paper: the two transactions of TPC-C that may need other regions. An item's
/// stock lies at all regions, and an order takes from its region's part. There is one run for each number of regions, skew and
/// configuration. lazy divides what is left when a part is used up; predictive and slackline require that the sum is not negative, by a
/// treaty for each item; preconditions asks for it beforehand. Shown is the share of orders that waited for another region
/// (`sync_per_order` of --json).
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench tpcc --replicas 2 --skew local70
  slackline bench tpcc --replicas 5 --skew local90 --config slackline
  slackline bench tpcc --replicas 2 --skew hot --orders 20000 --items 100")]
pub(crate) struct TpccBench {
    /// The number of regions: 2 to 5, a list of numbers, or a range
    #[arg(long, value_name = "N,N|N..N", default_value = "2,5", value_parser = |text: &str| numbers(text, &(2..=5)))]
    replicas: Numbers,
    /// Which items are ordered where: hot (half of the orders are of 1 % of the items), local70 or local90 (that part of a region's orders
    /// is of its own items); several with a comma between them
    #[arg(long, value_name = "NAME,NAME", default_value = "hot,local70,local90", value_delimiter = ',')]
    skew: Vec<Skew>,
    /// Only this configuration: lazy, preconditions, predictive or slackline
    #[arg(long, value_name = "NAME")]
    config: Option<Balance>,
    /// The number of orders that are counted; as many come before
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    orders: u64,
    /// The number of items of each of 10 warehouses
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(10..=1_000))]
    items: u16,
    #[command(flatten)]
    pub(super) shown: Shown,
}

impl TpccBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let own = TpccOptions::default();
        let options = TpccOptions {
            replicas: self.replicas.0.clone(),
            skews: self.skew.clone(),
            balances: self.config.map_or(own.balances, |balance| vec![balance]),
            orders: self.orders,
            items: usize::from(self.items),
            seed: self.shown.seed,
        };
        tpcc(&options).map_err(explain)
    }
}

/// Measures how 33 servers know their most requested pages
///
/// It follows figure 12 of the Predictive Treaties paper. Each server counts the requests of its pages, and once a second somebody asks for the
/// 20 most requested ones of all. marker knows them by one treaty; babcock-olston by the algorithm that was made for the purpose, with
/// the best of three shares of the slack for its coordinator. The requests of each minute are those of the web site of the 1998 World Cup,
/// if that file is there; else there are as many each minute. Pages and servers are drawn.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench topk
  slackline bench topk --config marker --minutes 5
  slackline bench topk --events hits.csv       # what arrives, for another program")]
pub(crate) struct TopkBench {
    /// Only this configuration: marker or babcock-olston
    #[arg(long, value_name = "NAME")]
    config: Option<Method>,
    /// The requests of each minute, a CSV file: period,count. By default the 1998 World Cup's, if ../shared/data/worldcup98_per_minute.csv
    /// is there (made from https://ita.ee.lbl.gov/html/contrib/WorldCup.html); else as many as there on average, drawn
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// The number of pages
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u16).range(100..=4_000))]
    pages: u16,
    /// The number of minutes, from 18 May 1998 20:19 on
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..=60))]
    minutes: u16,
    /// Write the requests that arrive to this file
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    #[command(flatten)]
    pub(super) shown: Shown,
}

/// Where the requests of the 1998 World Cup are looked for.
const WORLD_CUP: &str = "../shared/data/worldcup98_per_minute.csv";

impl TopkBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let usual = || Some(PathBuf::from(WORLD_CUP)).filter(|path| path.is_file());
        let options = TopkOptions {
            methods: self.config.map_or(Method::ALL.to_vec(), |method| vec![method]),
            pages: usize::from(self.pages),
            requests: self.requests.clone().or_else(usual),
            minutes: usize::from(self.minutes),
            seed: self.shown.seed,
        };
        if let Some(path) = &self.events {
            write_hits(&options, path).map_err(explain)?;
        }
        topk(&options).map_err(explain)
    }
}

/// Measures a question that all ask while its answer changes
///
/// It follows the Twitter benchmark of the Warranties paper. There are 3 stores and 24 clients. Of the transactions, 98 % compute
/// the five most followed of 1,000 users by divide and conquer, and 2 % follow or unfollow a random user.
#[derive(Args)]
#[command(mut_args(|arg| own(arg, &TwitterOptions::default().terms)), after_help = "\
Examples:
  slackline bench twitter                      # round trips of 80 ms
  slackline bench twitter --rtt 10 --config state
  slackline bench twitter --live --rtt 10 --measure 5000")]
pub(crate) struct TwitterBench {
    /// The number of users
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(5..=4_000))]
    users: u16,
    #[command(flatten)]
    course: Course,
    #[command(flatten)]
    pub(super) shown: Shown,
}

/// Measures large transactions of many users over one library
///
/// It follows the multi-user OO7 benchmark of the Warranties paper. A transaction reads about 460 objects, some of them much more
/// often than others; 2 % of transactions write. Each store has 36 clients. There is one run for each number of stores, share of
/// writes and configuration.
#[derive(Args)]
#[command(mut_args(|arg| own(arg, &Oo7Options::default().terms)), after_help = "\
Examples:
  slackline bench oo7 --stores 1..4            # throughput by stores
  slackline bench oo7 --stores 3 --write-shares 0,2,10,25,50")]
pub(crate) struct Oo7Bench {
    /// The number of stores: 1 to 8, a list of numbers, or a range like 1..8
    #[arg(long, value_name = "N,N|N..N", default_value = "1..4", value_parser = |text: &str| numbers(text, &(1..=8)))]
    stores: Numbers,
    /// The share of transactions that write, of 100: 0 to 100, a list of numbers, or a range
    #[arg(long, value_name = "N,N|N..N", default_value = "2", value_parser = |text: &str| numbers(text, &(0..=100)))]
    write_shares: Numbers,
    #[command(flatten)]
    course: Course,
    #[command(flatten)]
    pub(super) shown: Shown,
}

/// Measures transfers between accounts, and checks their order
///
/// Transfers move money between stores, audits read the total, scans list accounts. The checker of histories then judges whether
/// all of them were strictly serializable.
#[derive(Args)]
#[command(mut_args(|arg| own(arg, &BankOptions::default().terms)), after_help = "\
Examples:
  slackline bench bank
  slackline bench bank --live --rtt 5 --measure 3000")]
pub(crate) struct BankBench {
    /// The number of stores
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=8))]
    stores: u8,
    /// The number of accounts of each store
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..=500))]
    accounts: u16,
    #[command(flatten)]
    course: Course,
    #[command(flatten)]
    pub(super) shown: Shown,
}

/// Measures a course system, which reads much more than it writes
///
/// The data and the load are generated; writes come in bursts before deadlines. With --baseline postgres the same transactions
/// also run on PostgreSQL, with optimistic locking by version columns. PostgreSQL runs in real time, so then all runs do.
#[derive(Args)]
#[command(mut_args(|arg| own(arg, &CoursesOptions::default().terms)), after_help = "\
Examples:
  slackline bench courses
  slackline bench courses --rtt 80 --config state
  slackline bench courses --baseline postgres  # all live")]
pub(crate) struct CoursesBench {
    /// The number of stores
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    stores: u8,
    /// The number of students
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u16).range(8..=3_000))]
    students: u16,
    /// Compare with another system: postgres (optimistic locking, on a PostgreSQL of its own); implies --live
    #[arg(long, value_name = "NAME")]
    baseline: Option<Baseline>,
    #[command(flatten)]
    course: Course,
    #[command(flatten)]
    pub(super) shown: Shown,
}

/// Transactions of one operation
#[derive(Args)]
pub(crate) struct Single {
    /// The number of callers; each has one transaction under way at a time
    #[arg(long, value_name = "N", default_value = "64,1", value_delimiter = ',', allow_negative_numbers = true, value_parser = callers)]
    callers: Vec<usize>,
    /// Has no effect: this workload always runs on real sites
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    pub(super) shown: Shown,
}

/// Measures reads of one object of another region under a warranty
///
/// The object is at home in another region. The callers' site holds a warranty over it, and judges each transaction alone. The
/// sites are real processes.
#[derive(Args)]
#[command(after_help = "Example:\n  slackline bench reads --live --callers 1,64")]
pub(crate) struct ReadsBench {
    #[command(flatten)]
    pub(super) single: Single,
}

/// Measures writes of one object at its home, each one synced
///
/// The sites are real processes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench writes --live --callers 1,64
  slackline bench writes --live --value-bytes 65536")]
pub(crate) struct WritesBench {
    /// The size of the values, in bytes; without it they are numbers
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(..=200_000))]
    value_bytes: u32,
    #[command(flatten)]
    pub(super) single: Single,
}

/// Measures what a treaty costs beside what it stands for
///
/// The sites are real processes. Callers read an object of another region, or ask whether a treaty holds whose home is there; and they
/// add to a counter, with and without a treaty over it. The four have their slices by turns.
#[derive(Args)]
#[command(after_help = "\
Examples:
  slackline bench treaties --live
  slackline bench treaties --live --callers 64")]
pub(crate) struct TreatiesBench {
    #[command(flatten)]
    pub(super) single: Single,
}

impl TreatiesBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let options = TreatiesOptions::new(here()?);
        let (callers, seed) = (self.single.callers.clone(), self.single.shown.seed);
        treaties(&TreatiesOptions { callers, seed, ..options }).map_err(explain_live)
    }
}

impl ReadsBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        reads(&self.single.options()?).map_err(explain_live)
    }
}

impl WritesBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let value_bytes = self.value_bytes as usize;
        writes(&SingleOptions { value_bytes, ..self.single.options()? }).map_err(explain_live)
    }
}

/// Reads a number of callers.
pub(super) fn callers(text: &str) -> Result<usize, String> {
    let callers = text.parse().ok().filter(|callers| (1..=4096).contains(callers));
    callers.ok_or_else(|| "a number of callers is 1 to 4096".to_owned())
}

impl Single {
    fn options(&self) -> Result<SingleOptions, Finish> {
        Ok(SingleOptions { callers: self.callers.clone(), seed: self.shown.seed, ..SingleOptions::new(here()?) })
    }
}

impl TwitterBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let terms = self.course.terms(self.shown.seed, TwitterOptions::default().terms);
        twitter(&TwitterOptions { users: usize::from(self.users), terms }).map_err(explain)
    }
}

impl Oo7Bench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let own = Oo7Options::default();
        let terms = self.course.terms(self.shown.seed, own.terms);
        let share = |share: &usize| u8::try_from(*share).unwrap_or(u8::MAX);
        let write_shares = self.write_shares.0.iter().map(share).collect();
        oo7(&Oo7Options { stores: self.stores.0.clone(), write_shares, terms, ..own }).map_err(explain)
    }
}

impl BankBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let terms = self.course.terms(self.shown.seed, BankOptions::default().terms);
        let (stores, accounts) = (usize::from(self.stores), usize::from(self.accounts));
        bank(&BankOptions { stores, accounts, terms }).map_err(explain)
    }
}

impl CoursesBench {
    pub(super) fn run(&self) -> Result<Report, Finish> {
        let mut terms = self.course.terms(self.shown.seed, CoursesOptions::default().terms);
        let (stores, students, baseline) = (usize::from(self.stores), usize::from(self.students), self.baseline);
        if baseline.is_some() {
            terms.live = Some(PathBuf::from("."));
        }
        courses(&CoursesOptions { stores, students, baseline, terms }).map_err(explain)
    }
}

/// Numbers, as they are written in a list or a range.
#[derive(Clone)]
struct Numbers(Vec<usize>);

/// Reads `1,2,4`, `1..8` (both ends included) or a list of both.
fn numbers(text: &str, range: &RangeInclusive<usize>) -> Result<Numbers, String> {
    let (first, last) = (range.start(), range.end());
    let number = |text: &str| {
        let number = text.trim().parse::<usize>();
        let number = number
            .map_err(|_| format!("{text:?} is no number: write numbers from {first} to {last}, like 1,2,4 or 1..8"))?;
        if range.contains(&number) { Ok(number) } else { Err(format!("{number} is not from {first} to {last}")) }
    };

    let mut numbers = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            Some((from, to)) => {
                let (from, to) = (number(from)?, number(to.trim_start_matches('='))?);
                if from > to {
                    return Err(format!("{part} is a range of nothing: write {to}..{from}"));
                }
                numbers.extend(from..=to);
            }
            None => numbers.push(number(part)?),
        }
    }

    Ok(Numbers(numbers))
}

pub(super) fn explain(error: TxnsError) -> Finish {
    match error {
        TxnsError::Option(what) => Finish::WrongUse(what),
        TxnsError::Live(error) => explain_live(error),
        TxnsError::Wrong { .. } => Finish::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_or_what_is_wrong_with_them_is_named() {
        let stores = |text| numbers(text, &(1..=8)).map(|numbers| numbers.0);
        assert_eq!(stores("1,2..4, 8"), Ok(vec![1, 2, 3, 4, 8]));
        assert_eq!(stores("7..=8"), Ok(vec![7, 8]));
        for (text, says) in [
            ("0", "0 is not from 1 to 8"),
            ("1,9", "9 is not from 1 to 8"),
            ("1..200", "200 is not from 1 to 8"),
            ("4..1", "4..1 is a range of nothing: write 1..4"),
            ("", "\"\" is no number: write numbers from 1 to 8"),
            ("1,x", "\"x\" is no number"),
        ] {
            let problem = stores(text).expect_err(text);
            assert!(problem.contains(says), "{text}: {problem}");
        }
    }
}
