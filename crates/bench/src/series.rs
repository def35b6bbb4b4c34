//! A series of demand as a trace: `period,count` for each minute.
//!
//! Its last 60 hours are played 60 times as fast, in an hour. Each region has the demand of its own time of day: where the day
//! begins three hours earlier, the region is three hours ahead in the series. Of the requests, as many are drawn as make 820,000
//! acquires and releases in all; each takes a token, and keeps it for 35 s on average.

use std::path::Path;

use slackline_core::stats::Rng;

use crate::demand::{LIFE, exponential, finish, unit};
use crate::trace::{Event, Kind, Trace, TraceError, timestamp};

/// The minutes of the series that are played.
const PLAYED: usize = 60 * 60;
/// A minute of the series lasts so long in the trace, in microseconds.
const MINUTE: f64 = 1e6;
/// Acquires and releases in all.
pub(crate) const OPERATIONS: usize = 820_000;
/// A line of a series.
const EXPECTED: &str = "`1998-04-30 21:30:00,52`: a minute, and the number of requests in it";
/// Hours east of Greenwich, by how the name of a region begins; without summer time. The built-in table of AWS has short names.
const ZONES: [(&str, i64); 23] = [
    ("us-west", -8),
    ("us-central", -6),
    ("us-east", -5),
    ("us-south", -6),
    ("northamerica-northeast", -5),
    ("southamerica-east", -3),
    ("europe-north", 2),
    ("europe-west2", 0),
    ("europe-west", 1),
    ("asia-east", 8),
    ("asia-northeast", 9),
    ("asia-southeast", 8),
    ("asia-south", 5),
    ("australia-southeast", 10),
    ("eu-", 1),
    ("ap-northeast", 9),
    ("ap-southeast-2", 10),
    ("ap-", 8),
    ("us", -5),
    ("eu", 0),
    ("ap", 9),
    ("sa", -3),
    ("oc", 10),
];

/// Reads a series, as the demand of these regions.
pub(crate) fn read(path: &Path, regions: &[String], seed: u64) -> Result<Trace, TraceError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
    let counts = parse(&text, path)?;

    // The region that is furthest east has the end of the series.
    let ahead = ahead(regions);
    let furthest = ahead.iter().copied().max().unwrap_or(0);
    let needed = PLAYED + furthest * 60;
    if counts.len() < needed {
        return Err(TraceError::Short { path: path.to_owned(), have: counts.len(), needed });
    }
    let end = |ahead: &usize| counts.len() - (furthest - ahead) * 60;
    let played: Vec<&[f64]> = ahead.iter().map(|ahead| &counts[end(ahead) - PLAYED..end(ahead)]).collect();
    if played.iter().all(|counts| counts.iter().all(|count| *count <= 0.0)) {
        return Err(TraceError::Empty(path.to_owned()));
    }

    let mut trace = draw(&played, OPERATIONS / 2, seed);
    trace.data = format!("real: {name}, series");
    Ok(trace)
}

/// The hours by which each region is ahead of the westernmost. Where the time of one is not known, they are evenly around the globe.
fn ahead(regions: &[String]) -> Vec<usize> {
    let zone = |region: &String| ZONES.iter().find(|(begins, _)| region.starts_with(begins)).map(|(_, hours)| *hours);
    match regions.iter().map(zone).collect::<Option<Vec<i64>>>() {
        Some(zones) => {
            let west = zones.iter().copied().min().unwrap_or(0);
            zones.iter().map(|hours| (hours - west) as usize).collect()
        }
        None => (0..regions.len()).map(|region| region * 24 / regions.len()).collect(),
    }
}

/// The counts of all minutes from the first to the last. A minute that is missing is not a zero: it lies on the line between its
/// neighbours.
pub(crate) fn parse(text: &str, path: &Path) -> Result<Vec<f64>, TraceError> {
    let mut counts: Vec<f64> = Vec::new();
    let mut last = 0;
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || (counts.is_empty() && line == "period,count") {
            continue;
        }
        let wrong = |problem| TraceError::Line { path: path.to_owned(), line: index + 1, problem, expected: EXPECTED };
        let (minute, count) = minute(line).map_err(wrong)?;
        if counts.is_empty() {
            last = minute - 1;
        }
        if minute <= last {
            return Err(wrong("the time is not after that of the line before".into()));
        }
        if minute - last > LONGEST_GAP {
            return Err(wrong(format!("{} minutes are missing before it", minute - last - 1)));
        }

        let (before, gap) = (counts.last().copied().unwrap_or(count), minute - last);
        counts.extend((1..=gap).map(|step| before + (count - before) * step as f64 / gap as f64));
        last = minute;
    }
    match counts.is_empty() {
        true => Err(TraceError::Empty(path.to_owned())),
        false => Ok(counts),
    }
}

/// A series with a longer gap than this, in minutes, has not been recorded in between.
const LONGEST_GAP: i64 = 24 * 60;

/// The minute of a line, counted from 1970, and its count.
pub(crate) fn minute(line: &str) -> Result<(i64, f64), String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [period, count] = fields[..] else {
        return Err(format!("there are {} fields, not 2", fields.len()));
    };
    let at = timestamp(period).ok_or_else(|| format!("{period:?} is not a time"))?;
    if at % 60_000_000 != 0 {
        return Err(format!("{period} is not a whole minute"));
    }
    let count: u64 = count.parse().map_err(|_| format!("{count:?} is not a number of requests"))?;
    Ok((at / 60_000_000, count as f64))
}

/// Draws so many acquires, each where and when the counts make it likely.
fn draw(played: &[&[f64]], acquires: usize, seed: u64) -> Trace {
    let mut rng = Rng::new(seed ^ 0x7365_7269);
    let mut sum = 0.0;
    let mut ends = Vec::with_capacity(PLAYED * played.len());
    for minute in 0..PLAYED {
        for counts in played {
            sum += counts[minute];
            ends.push(sum);
        }
    }

    let mut out = Vec::with_capacity(2 * acquires);
    for job in 0..acquires as u32 {
        let place = unit(&mut rng) * sum;
        let cell = ends.partition_point(|end| *end <= place).min(ends.len() - 1);
        let (minute, site) = (cell / played.len(), cell % played.len());
        let at = (minute as f64 + unit(&mut rng)) * MINUTE;
        let life = exponential(&mut rng, LIFE);
        let event = |at: f64, kind| Event { at: at as u64, site: Some(site), key: u64::from(job), kind };
        out.push(event(at, Kind::Begin { amount: 1, job }));
        out.push(event(at + life * 1e6, Kind::End { job }));
    }
    finish(out, acquires as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Result<Vec<f64>, String> {
        parse(text, Path::new("a/series.csv")).map_err(|error| error.to_string())
    }

    #[test]
    fn missing_minute_is_not_a_zero() {
        let text = "period,count\n1998-04-30 23:58:00,10\n1998-04-30 23:59:00,20\n1998-05-01 00:02:00,50\n";
        assert_eq!(counts(text), Ok(vec![10.0, 20.0, 30.0, 40.0, 50.0]));
    }

    #[test]
    fn bad_line_is_refused_by_its_number() {
        let cases = [
            ("1998-04-30 21:30:00,1\n1998-04-30 21:29:00,1", "line 2: the time is not after that of the line before"),
            ("1998-04-30 21:30:00,1\n1998-04-30 21:30:00,1", "line 2: the time is not after that of the line before"),
            ("1998-04-30 21:30:00,1\n1998-05-02 21:30:00,1", "line 2: 2879 minutes are missing before it"),
            ("1998-04-30 21:30:30,1", "line 1: 1998-04-30 21:30:30 is not a whole minute"),
            ("1998-04-30 21:30:00,-1", "line 1: \"-1\" is not a number of requests"),
            ("yesterday,1", "line 1: \"yesterday\" is not a time"),
            ("1998-04-30 21:30:00", "line 1: there are 1 fields, not 2"),
        ];
        for (text, expected) in cases {
            let error = counts(text).expect_err(text);
            assert!(error.contains(expected) && error.contains(EXPECTED), "{error}");
        }
        assert!(counts("period,count\n").expect_err("nothing is there").contains("asks for no tokens"));
    }

    #[test]
    fn region_further_east_has_the_same_demand_earlier() {
        let regions: Vec<String> = ["us-west1", "europe-west2"].map(str::to_owned).to_vec();
        assert_eq!(ahead(&regions), [0, 8]);
        assert_eq!(ahead(&["mars".to_owned(), "moon".to_owned()]), [0, 12]);

        // One minute of demand, 30 hours before the end of the series: 1,800 s before the end in the east, and, where it is eight hours
        // earlier, 480 s later.
        let mut played = vec![vec![0.0; PLAYED]; 2];
        played[0][PLAYED - 1_800 + 480] = 1.0;
        played[1][PLAYED - 1_800] = 1.0;
        let lines: Vec<String> = (0..PLAYED + 480)
            .map(|minute| {
                format!(
                    "1998-05-{:02} {:02}:{:02}:00,{}",
                    1 + minute / 1440,
                    minute / 60 % 24,
                    minute % 60,
                    u64::from(minute == 480 + PLAYED - 1_800) * 7
                )
            })
            .collect();
        let path = std::env::temp_dir().join(format!("slackline-series-{}.csv", std::process::id()));
        std::fs::write(&path, lines.join("\n")).expect("temporary file");
        let trace = read(&path, &regions, 3).expect("it is long enough");
        std::fs::write(&path, lines[1..].join("\n")).expect("temporary file");
        let short = read(&path, &regions, 3).expect_err("a minute is missing").to_string();
        std::fs::remove_file(&path).expect("temporary file");
        assert!(short.contains("has 4079 minutes, and 4080 are needed"), "{short}");

        let rows: Vec<&[f64]> = played.iter().map(Vec::as_slice).collect();
        let expected = draw(&rows, OPERATIONS / 2, 3);
        assert_eq!((trace.events.len(), &trace.events), (OPERATIONS, &expected.events));
        let begins = trace.events.iter().filter(|event| event.kind.wanted().is_some());
        let seconds =
            |site| begins.clone().filter(move |event| event.site == Some(site)).map(|event| event.at / 1_000_000);
        assert_eq!(seconds(0).max().zip(seconds(1).max()), Some((PLAYED as u64 - 1_320, PLAYED as u64 - 1_800)));
    }
}
