//! What is replayed: acquires and releases in the order of time, from a file or from a generator.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The time for which a request of an LLM trace holds its tokens, in microseconds: limits there are tokens a minute.
const LLM_HOLD: u64 = 60_000_000;
/// The shortest hold that a quota takes, in microseconds.
const SHORTEST_HOLD: u64 = 1_000;

/// The layout of a trace file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// `TIMESTAMP,ContextTokens,GeneratedTokens`: each request acquires both sorts of tokens for 60 s.
    AzureLlm,
    /// Pods with `num_gpu`, `creation_time` and `deletion_time`: each acquires its GPUs from the one to the other.
    Openb,
    /// `time_s,site,op,amount`: as it says.
    Events,
    /// `period,count` for each minute: see the module `series`.
    Series,
}

/// One thing that happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The time, in microseconds since the beginning of the trace.
    pub at: u64,
    /// The site where, if the trace says so; otherwise it is chosen by a hash of `key`.
    pub site: Option<usize>,
    /// Events of the same key go to the same site.
    pub key: u64,
    /// The operation.
    pub kind: Kind,
}

/// The operation of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Tokens are wanted, and released by the amount some other time, or never.
    Acquire {
        /// The number of tokens.
        amount: i64,
    },
    /// Tokens are wanted for a time.
    Hold {
        /// The number of tokens.
        amount: i64,
        /// For how long, in microseconds.
        micros: u64,
    },
    /// Tokens are wanted until the job of this number ends.
    Begin {
        /// The number of tokens.
        amount: i64,
        /// The job, counted from 0 in the order of the trace.
        job: u32,
    },
    /// A job ends, and gives back what it was granted.
    End {
        /// The job.
        job: u32,
    },
    /// Tokens are given back by amount.
    Release {
        /// The number of tokens.
        amount: i64,
    },
}

impl Kind {
    /// The tokens that an acquire wants; none for any other operation.
    pub fn wanted(&self) -> Option<i64> {
        match self {
            Kind::Acquire { amount } | Kind::Hold { amount, .. } | Kind::Begin { amount, .. } => Some(*amount),
            Kind::End { .. } | Kind::Release { .. } => None,
        }
    }
}

/// Events in the order of time.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// `generated`, or `real: ` and the file.
    pub data: String,
    /// The events.
    pub events: Vec<Event>,
    /// The number of jobs.
    pub jobs: u32,
    /// Lines of the file that ask for nothing and were left out.
    pub skipped: u64,
}

/// A trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace {}: {source}; give the path of a readable file", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not what its format wants.
    #[error("{} line {line}: {problem}; a line must read {expected}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
        /// The expected form.
        expected: &'static str,
    },
    /// The series does not go back far enough.
    #[error("the series {} has {have} minutes, and {needed} are needed: 60 hours, and those between the time zones", .path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Minutes from its first to its last.
        have: usize,
        /// Minutes that are played somewhere.
        needed: usize,
    },
    /// The file asks for nothing.
    #[error("the trace {} asks for no tokens; give one that does", .0.display())]
    Empty(PathBuf),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "azure-llm" => Ok(Self::AzureLlm),
            "openb" => Ok(Self::Openb),
            "events" => Ok(Self::Events),
            "series" => Ok(Self::Series),
            _ => Err(format!("{text:?} is not a trace format: use azure-llm, openb, events or series")),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AzureLlm => "azure-llm",
            Self::Openb => "openb",
            Self::Events => "events",
            Self::Series => "series",
        })
    }
}

impl Trace {
    /// Reads a file.
    ///
    /// # Panics
    ///
    /// If it is a series: what comes of one depends on regions and a seed, so it has a reader of its own.
    pub fn read(path: &Path, format: Format) -> Result<Self, TraceError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
        let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
        Self::parse(&text, path, &name, format)
    }

    fn parse(text: &str, path: &Path, name: &str, format: Format) -> Result<Self, TraceError> {
        let (expected, parse): (_, ParseLine) = match format {
            Format::AzureLlm => {
                ("`2023-11-16 18:15:46.6805900,374,44`: time, context tokens, generated tokens", azure_llm)
            }
            Format::Openb => ("as its header line says, with num_gpu, creation_time and deletion_time", openb),
            Format::Events => ("`12.5,0,acquire,3`: seconds, site or nothing, acquire or release, tokens", events),
            Format::Series => unreachable!("a series has a reader of its own"),
        };

        let mut gathered = Gathered::default();
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            parse(&mut gathered, line).map_err(|problem| TraceError::Line {
                path: path.to_owned(),
                line: index + 1,
                problem,
                expected,
            })?;
        }

        // A trace that only gives back would let every configuration look alike.
        let Gathered { mut events, jobs, skipped, .. } = gathered;
        if events.iter().all(|(_, event)| event.kind.wanted().is_none()) {
            return Err(TraceError::Empty(path.to_owned()));
        }

        // What ends makes room before what begins at the same time.
        events.sort_by_key(|(at, event)| (*at, event.kind.wanted().is_some()));
        let first = events[0].0;
        let events = events.into_iter().map(|(at, event)| Event { at: (at - first) as u64, ..event }).collect();
        Ok(Self { data: format!("real: {name}, {format}"), events, jobs, skipped })
    }

    /// Only the first `count` events, and the ends of jobs among them.
    pub fn truncate(&mut self, count: usize) {
        self.events.truncate(count);
    }

    /// Makes everything `speed` times as fast, holds included.
    pub fn speed_up(&mut self, speed: f64) {
        for event in &mut self.events {
            event.at = (event.at as f64 / speed) as u64;
            if let Kind::Hold { micros, .. } = &mut event.kind {
                // A hold that were shorter would be refused.
                *micros = ((*micros as f64 / speed) as u64).max(SHORTEST_HOLD);
            }
        }
    }

    /// Chooses a site for every event: the one that the trace names, or one by a seeded hash.
    pub fn place(&mut self, sites: usize, seed: u64) {
        for event in &mut self.events {
            let by_hash = || (mix(event.key ^ seed.rotate_left(32)) % sites as u64) as usize;
            event.site = Some(event.site.map_or_else(by_hash, |site| site % sites));
        }
    }

    /// The number of acquires.
    pub fn acquires(&self) -> u64 {
        self.events.iter().filter(|event| event.kind.wanted().is_some()).count() as u64
    }

    /// The time of the last event, in microseconds.
    pub fn length(&self) -> u64 {
        self.events.last().map_or(0, |event| event.at)
    }
}

/// Mixes the bits of a number (SplitMix64's finisher).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Takes in one line.
type ParseLine = fn(&mut Gathered, &str) -> Result<(), String>;

/// The lines that were read so far. Times are absolute, in microseconds, and may be in any order.
#[derive(Default)]
struct Gathered {
    /// The events, each with its absolute time.
    events: Vec<(i64, Event)>,
    /// Jobs so far.
    jobs: u32,
    /// Lines that ask for nothing.
    skipped: u64,
    /// Positions of the columns of interest, once the header was read.
    columns: Option<[usize; 3]>,
}

impl Gathered {
    /// Adds an event, at an absolute time.
    fn push(&mut self, at: i64, site: Option<usize>, key: u64, kind: Kind) {
        self.events.push((at, Event { at: 0, site, key, kind }));
    }
}

/// A line of [`Format::AzureLlm`].
fn azure_llm(gathered: &mut Gathered, line: &str) -> Result<(), String> {
    if gathered.events.is_empty()
        && gathered.skipped == 0
        && line.eq_ignore_ascii_case("TIMESTAMP,ContextTokens,GeneratedTokens")
    {
        return Ok(());
    }
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [time, context, generated] = fields[..] else {
        return Err(format!("there are {} fields, not 3", fields.len()));
    };

    // Both sorts of tokens count against one limit.
    let at = timestamp(time).ok_or_else(|| format!("{time:?} is not a time"))?;
    let amount = count(context)?.checked_add(count(generated)?).ok_or("the sum of the tokens is beyond 64 bits")?;
    if amount == 0 {
        gathered.skipped += 1;
        return Ok(());
    }

    // Requests have nothing in common, so each is placed by itself.
    let key = gathered.events.len() as u64;
    gathered.push(at, None, key, Kind::Hold { amount, micros: LLM_HOLD });
    Ok(())
}

/// A line of [`Format::Openb`].
fn openb(gathered: &mut Gathered, line: &str) -> Result<(), String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    // The first line names the columns.
    let Some(columns) = gathered.columns else {
        let position = |name: &str| {
            fields.iter().position(|field| *field == name).ok_or_else(|| format!("the header has no column {name}"))
        };
        gathered.columns = Some([position("num_gpu")?, position("creation_time")?, position("deletion_time")?]);
        return Ok(());
    };

    let field = |at: usize| fields.get(at).copied().ok_or_else(|| format!("there are only {} fields", fields.len()));
    let [gpus, created, deleted] = columns;
    let (amount, created, deleted) = (count(field(gpus)?)?, seconds(field(created)?)?, seconds(field(deleted)?)?);
    if deleted < created {
        return Err("the pod is deleted before it is created".into());
    }
    if amount == 0 {
        gathered.skipped += 1;
        return Ok(());
    }

    let job = gathered.jobs;
    gathered.jobs += 1;
    gathered.push(created, None, job.into(), Kind::Begin { amount, job });
    // A pod that lives for no time still holds its GPUs for an instant.
    gathered.push(deleted.max(created + 1), None, job.into(), Kind::End { job });
    Ok(())
}

/// A line of [`Format::Events`].
fn events(gathered: &mut Gathered, line: &str) -> Result<(), String> {
    if gathered.events.is_empty() && line == "time_s,site,op,amount" {
        return Ok(());
    }
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [time, site, op, amount] = fields[..] else {
        return Err(format!("there are {} fields, not 4", fields.len()));
    };

    let at = seconds(time)?;
    let site = match site {
        "" => None,
        site => Some(site.parse().map_err(|_| format!("{site:?} is not a site: use its number, from 0"))?),
    };
    let tokens = count(amount)?;
    if tokens == 0 {
        return Err("the amount is zero".into());
    }

    let kind = match op {
        "acquire" => Kind::Acquire { amount: tokens },
        "release" => Kind::Release { amount: tokens },
        _ => return Err(format!("{op:?} is neither acquire nor release")),
    };
    let key = gathered.events.len() as u64;
    gathered.push(at, site, key, kind);
    Ok(())
}

/// A number of tokens.
fn count(text: &str) -> Result<i64, String> {
    text.parse().ok().filter(|count| *count >= 0).ok_or_else(|| format!("{text:?} is not a number of tokens"))
}

/// Seconds with any number of decimals, in microseconds.
fn seconds(text: &str) -> Result<i64, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is not a time in seconds"))?;
    if !(0.0..=1e12).contains(&value) {
        return Err(format!("{text} s is not a time between 0 and 10^12 seconds"));
    }
    Ok((value * 1e6).round() as i64)
}

/// `2023-11-16 18:15:46.6805900`, with or without a fraction and an offset from UTC, in microseconds since 1970.
pub(crate) fn timestamp(text: &str) -> Option<i64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let (time, offset) = match time.find(['+', '-', 'Z']) {
        Some(at) => (&time[..at], offset(&time[at..])?),
        None => (time, 0),
    };

    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut time = time.splitn(3, ':');
    let (hour, minute): (i64, i64) = (time.next()?.parse().ok()?, time.next()?.parse().ok()?);
    let second: f64 = time.next()?.parse().ok()?;

    // A leap second is a time like another; days beyond a month's end run over into the next.
    let valid = (1..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..61.0).contains(&second);

    // Days since 1970 in the Gregorian calendar, years counted from March.
    let shifted = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * shifted + shifted / 4 - shifted / 100 + shifted / 400 + day_of_year - 719_468;
    let whole = (days * 24 + hour) * 3600 + minute * 60 - offset;
    valid.then(|| whole * 1_000_000 + (second * 1e6).round() as i64)
}

/// Seconds east of UTC.
fn offset(text: &str) -> Option<i64> {
    if text == "Z" {
        return Some(0);
    }
    let (hours, minutes) = text[1..].split_once(':')?;
    let seconds = hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60;
    Some(if text.starts_with('-') { -seconds } else { seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, format: Format) -> Result<Trace, TraceError> {
        Trace::parse(text, Path::new("a/trace.csv"), "trace.csv", format)
    }

    #[test]
    fn azure_llm_holds_the_sum_of_tokens_for_a_minute() {
        let text = "\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.6805900,374,44\r\n\
                    2023-11-17 00:00:01.1805900,10,0\r\n2023-11-17 00:00:02,0,0\r\n2024-02-29T01:00:00.5+01:00,1,1\r\n";
        let trace = parse(text, Format::AzureLlm).expect("well formed");
        let holds: Vec<_> = trace.events.iter().map(|event| (event.at, event.kind)).collect();
        let leap = (104 * 86_400) * 1_000_000 + 819_410;
        assert_eq!(
            holds,
            [
                (0, Kind::Hold { amount: 418, micros: 60_000_000 }),
                (1_500_000, Kind::Hold { amount: 10, micros: 60_000_000 }),
                (leap, Kind::Hold { amount: 2, micros: 60_000_000 }),
            ]
        );
        assert_eq!((trace.skipped, trace.data.as_str()), (1, "real: trace.csv, azure-llm"));
    }

    #[test]
    fn openb_pods_hold_their_gpus_from_creation_to_deletion() {
        let text = "name,num_gpu,creation_time,deletion_time\np0,2,10,20\np1,0,11,12\np2,1,5,10\n";
        let trace = parse(text, Format::Openb).expect("well formed");
        let kinds: Vec<_> = trace.events.iter().map(|event| (event.at / 1_000_000, event.kind)).collect();
        assert_eq!(
            kinds,
            [
                (0, Kind::Begin { amount: 1, job: 1 }),
                (5, Kind::End { job: 1 }),
                (5, Kind::Begin { amount: 2, job: 0 }),
                (15, Kind::End { job: 0 }),
            ]
        );
        assert_eq!((trace.skipped, trace.jobs, trace.acquires()), (1, 2, 2));
    }

    #[test]
    fn events_go_where_they_say_or_by_hash_and_jobs_stay_together() {
        let text = "time_s,site,op,amount\n0.5,1,acquire,3\n0.25,,acquire,2\n# end\n1,7,release,3\n";
        let mut trace = parse(text, Format::Events).expect("well formed");
        trace.place(3, 9);
        let sites: Vec<_> = trace.events.iter().map(|event| event.site.expect("placed")).collect();
        assert_eq!((trace.events[0].kind, sites[1], sites[2]), (Kind::Acquire { amount: 2 }, 1, 1));
        let pods = "num_gpu,creation_time,deletion_time\n1,0,9\n1,0,9\n1,0,9\n1,0,9\n1,0,9\n1,0,9\n";
        let mut pods = parse(pods, Format::Openb).expect("well formed");
        pods.place(3, 9);
        let of = |kind: Kind| pods.events.iter().find(|event| event.kind == kind).and_then(|event| event.site);
        for job in 0..6 {
            assert_eq!(of(Kind::Begin { amount: 1, job }), of(Kind::End { job }));
        }
    }

    #[test]
    fn speed_makes_holds_shorter_too() {
        let mut trace =
            parse("2023-11-16 18:15:46,1,1\n2023-11-16 18:16:46,1,1", Format::AzureLlm).expect("well formed");
        trace.speed_up(20.0);
        assert_eq!(trace.events[1].at, 3_000_000);
        assert_eq!(trace.events[1].kind, Kind::Hold { amount: 2, micros: 3_000_000 });
    }

    #[test]
    fn malformed_lines_are_named_with_their_file_and_number() {
        let cases = [
            (
                Format::AzureLlm,
                "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3",
                "line 2: there are 2 fields, not 3",
            ),
            (Format::AzureLlm, "2023-11-16 18:15,3,4", "line 1: \"2023-11-16 18:15\" is not a time"),
            (Format::AzureLlm, "2023-13-16 18:15:46,3,4", "line 1: \"2023-13-16 18:15:46\" is not a time"),
            (Format::AzureLlm, "2023-11-16 18:15:46,-3,4", "line 1: \"-3\" is not a number of tokens"),
            (Format::AzureLlm, "2023-11-16 18:15:46,9223372036854775807,4", "line 1: the sum of the tokens is beyond"),
            (Format::Openb, "name,gpus\n", "line 1: the header has no column num_gpu"),
            (Format::Openb, "num_gpu,creation_time,deletion_time\n1,5\n", "line 2: there are only 2 fields"),
            (Format::Openb, "num_gpu,creation_time,deletion_time\n1,5,4\n", "line 2: the pod is deleted before"),
            (Format::Openb, "num_gpu,creation_time,deletion_time\n1,5,\n", "line 2: \"\" is not a time in seconds"),
            (Format::Events, "1,0,acquire,0", "line 1: the amount is zero"),
            (Format::Events, "1,0,take,1", "line 1: \"take\" is neither acquire nor release"),
            (Format::Events, "1,x,acquire,1", "line 1: \"x\" is not a site"),
            (Format::Events, "-1,0,acquire,1", "line 1: -1 s is not a time"),
            (Format::Events, "1,0,acquire", "line 1: there are 3 fields, not 4"),
        ];
        for (format, text, problem) in cases {
            let error = parse(text, format).expect_err(text).to_string();
            assert!(error.starts_with("a/trace.csv ") && error.contains(problem), "{error}");
            assert!(error.contains("a line must read") && !error.contains('\n'), "{error}");
        }
        assert!(parse("", Format::Events).expect_err("empty").to_string().contains("asks for no tokens"));
        assert!(parse("1,0,release,1", Format::Events).is_err());
        let missing = Trace::read(Path::new("no/such/file"), Format::Events).expect_err("missing").to_string();
        assert!(missing.starts_with("cannot read the trace no/such/file"), "{missing}");
    }
}
