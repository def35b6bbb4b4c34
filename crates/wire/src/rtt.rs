//! Round-trip times between regions: built-in tables, and tables read from a file.
//!
//! The built-in figures are rounded means measured between the regions of two cloud providers by the fantoch project
//! (github.com/vitorenesduarte/fantoch). They delay messages where a whole cluster runs on one machine.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// A round trip longer than this is taken for a mistake in the table, in milliseconds.
const LONGEST_MS: f64 = 60_000.0;
/// The round trip inside a region for which the table has none.
const INSIDE: Duration = Duration::from_micros(300);

/// Round-trip times between regions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RttTable {
    /// The origin of the figures, for reports.
    source: String,
    regions: Vec<String>,
    /// The round trips by the positions of both regions, row by row: the square of the number of regions.
    times: Vec<Option<Duration>>,
}

/// A table of round-trip times cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RttError {
    /// The file cannot be read.
    #[error("cannot read the RTT table {}: {source}; give the path of a CSV file with lines `from,to,rtt_ms`", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A line is not three fields, or one of them makes no sense.
    #[error("{} line {line}: {problem}; each line must read `from,to,rtt_ms`, like `us,eu,70.5`", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem with it, in words.
        problem: String,
    },
    /// Two lines give different times from one region to another.
    #[error(
        "{} line {second}: from {from} to {to} it is {ms} ms on line {first} and another time here; keep one of them",
        .path.display()
    )]
    Differs {
        /// The file.
        path: PathBuf,
        /// The line that was read first, from 1.
        first: usize,
        /// The other one.
        second: usize,
        /// The region from which the way leads.
        from: String,
        /// The region to which it leads.
        to: String,
        /// The time in the first line, in milliseconds.
        ms: f64,
    },
    /// The file has no line.
    #[error("{} has no round-trip time; write lines `from,to,rtt_ms`", .0.display())]
    Empty(PathBuf),
}

impl RttTable {
    /// Five AWS regions: `us` (us-east-1), `eu` (eu-west-1), `ap` (ap-northeast-1), `sa` (sa-east-1) and `oc`
    /// (ap-southeast-2).
    pub fn aws() -> Self {
        Self::built_in(
            "AWS us-east-1, eu-west-1, ap-northeast-1, sa-east-1, ap-southeast-2; rounded means measured by the fantoch project",
            ["us", "eu", "ap", "sa", "oc"],
            [
                [0, 70, 152, 113, 198],
                [70, 0, 204, 184, 254],
                [152, 204, 0, 268, 104],
                [113, 184, 268, 0, 309],
                [198, 254, 104, 309, 0],
            ],
        )
    }

    /// Five GCP regions: us-west1, asia-east2, europe-west2, australia-southeast1 and southamerica-east1.
    pub fn gcp() -> Self {
        Self::built_in(
            "GCP us-west1, asia-east2, europe-west2, australia-southeast1, southamerica-east1; rounded means measured by \
             the fantoch project",
            ["us-west1", "asia-east2", "europe-west2", "australia-southeast1", "southamerica-east1"],
            [
                [0, 131, 126, 161, 172],
                [131, 0, 260, 128, 302],
                [126, 260, 0, 266, 203],
                [161, 128, 266, 0, 303],
                [172, 302, 203, 303, 0],
            ],
        )
    }

    /// The regions of [`RttTable::gcp`], and us-central1 and us-east4: where a replicated database has its sites that has most of
    /// them near each other.
    pub fn gcp_with_replicas() -> Self {
        Self::built_in(
            "GCP; rounded means measured by the fantoch project",
            [
                "us-west1",
                "asia-east2",
                "europe-west2",
                "australia-southeast1",
                "southamerica-east1",
                "us-central1",
                "us-east4",
            ],
            [
                [0, 131, 126, 161, 172, 35, 62],
                [131, 0, 260, 128, 302, 164, 190],
                [126, 260, 0, 266, 203, 94, 76],
                [161, 128, 266, 0, 303, 172, 196],
                [172, 302, 203, 303, 0, 141, 129],
                [35, 164, 94, 172, 141, 0, 25],
                [62, 190, 76, 196, 129, 25, 0],
            ],
        )
    }

    /// Five EC2 regions: us-east, us-west, ireland, singapore and sao-paulo. Those of the Predictive Treaties paper.
    pub fn ec2() -> Self {
        Self::built_in(
            "EC2 us-east, us-west, ireland, singapore, sao-paulo; Predictive Treaties (EuroSys 2019)",
            ["us-east", "us-west", "ireland", "singapore", "sao-paulo"],
            [
                [0, 64, 80, 243, 164],
                [64, 0, 170, 210, 227],
                [80, 170, 0, 285, 235],
                [243, 210, 285, 0, 372],
                [164, 227, 235, 372, 0],
            ],
        )
    }

    /// Reads lines `from,to,rtt_ms`; a first line `from,to,rtt_ms`, empty lines and lines that begin with `#` are
    /// skipped. A direction that is not given takes as long as the other one; one that is given twice must have the same time.
    pub fn from_csv(path: impl AsRef<Path>) -> Result<Self, RttError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(|source| RttError::Read { path: path.to_owned(), source })?;
        let mut regions: Vec<String> = Vec::new();
        let mut entries: Vec<((usize, usize), usize, Duration)> = Vec::new();
        // Spreadsheets put a mark before the first line.
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let line_number = index + 1;
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || (line_number == 1 && line == "from,to,rtt_ms") {
                continue;
            }
            let (from, to, rtt) = parse_line(line).map_err(|problem| RttError::Line {
                path: path.to_owned(),
                line: line_number,
                problem,
            })?;
            let mut position = |name: &str| {
                regions.iter().position(|region| region == name).unwrap_or_else(|| {
                    regions.push(name.to_owned());
                    regions.len() - 1
                })
            };
            let (start, end) = (position(from), position(to));

            // Taking either of two times would run a benchmark on distances that its author may not have meant.
            let earlier = entries.iter().find(|(other, ..)| *other == (start, end));
            if let Some(&(_, first, time)) = earlier.filter(|(_, _, time)| *time != rtt) {
                return Err(RttError::Differs {
                    path: path.to_owned(),
                    first,
                    second: line_number,
                    from: from.to_owned(),
                    to: to.to_owned(),
                    ms: Duration::as_secs_f64(&time) * 1e3,
                });
            }
            entries.push(((start, end), line_number, rtt));
        }
        if entries.is_empty() {
            return Err(RttError::Empty(path.to_owned()));
        }

        // Backwards first, then as written: a time that is given for its own direction replaces the mirrored one.
        let mut table = Self { source: path.display().to_string(), times: vec![None; regions.len().pow(2)], regions };
        let width = table.regions.len();
        for &((from, to), _, rtt) in &entries {
            table.times[to * width + from] = Some(rtt);
        }
        for &((from, to), _, rtt) in &entries {
            table.times[from * width + to] = Some(rtt);
        }
        Ok(table)
    }

    fn built_in<const N: usize>(source: &str, regions: [&str; N], times: [[u64; N]; N]) -> Self {
        let times = times.iter().flatten().map(|&ms| (ms > 0).then(|| Duration::from_millis(ms))).collect();
        Self { source: source.to_owned(), regions: regions.map(str::to_owned).to_vec(), times }
    }

    /// The origin of the figures, for reports.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The names of the regions, in the table's order.
    pub fn regions(&self) -> &[String] {
        &self.regions
    }

    /// The round trip between two regions, if the table knows both.
    pub fn rtt(&self, from: &str, to: &str) -> Option<Duration> {
        let position = |name: &str| self.regions.iter().position(|region| region == name);
        let (from, to) = (position(from)?, position(to)?);
        let given = self.times[from * self.regions.len() + to];
        if from == to { Some(given.unwrap_or(INSIDE)) } else { given }
    }
}

fn parse_line(line: &str) -> Result<(&str, &str, Duration), String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [from, to, rtt] = fields[..] else {
        return Err(format!("there are {} fields, not 3", fields.len()));
    };
    if from.is_empty() || to.is_empty() {
        return Err("the name of a region is empty".to_owned());
    }
    let ms: f64 = rtt.parse().map_err(|_| format!("{rtt:?} is not a number"))?;
    if !(0.0..=LONGEST_MS).contains(&ms) {
        return Err(format!("{rtt} ms is not between 0 and {LONGEST_MS}"));
    }
    Ok((from, to, Duration::from_micros((ms * 1_000.0).round() as u64)))
}
