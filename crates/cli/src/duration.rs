//! Durations as people write them: `90s`, `1m30s`, `500ms`, `2h`, `7d`.

use std::time::Duration;

/// The units, the longer names first.
const UNITS: [(&str, u64); 6] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000)];

/// Reads a duration: whole numbers, each with its unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let problem =
        || format!("\"{text}\" is not a duration: write a number with its unit, like 60s, 1m30s, 500ms, 2h or 7d");
    let mut rest = text.trim();
    let mut micros = 0u64;
    if rest.is_empty() {
        return Err(problem());
    }

    // A number without a unit is no duration: 60 may be meant as seconds or as milliseconds.
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, after) = after.split_at(letters);
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(problem)?;
        if number.is_empty() {
            return Err(problem());
        }
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*size));
        let sum = part.and_then(|part| micros.checked_add(part));
        micros = sum.ok_or_else(|| format!("\"{text}\" is too long: the longest is some 580,000 years"))?;
        rest = after.trim_start();
    }
    Ok(Duration::from_micros(micros))
}

/// Reads a duration that is longer than nothing.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("it must be longer than nothing".to_owned()),
        duration => Ok(duration),
    }
}

/// Reads the duration of a hold: 1 ms to 400 days.
pub(crate) fn parse_hold(text: &str) -> Result<Duration, String> {
    let duration = parse(text)?;
    let range = Duration::from_millis(1)..=Duration::from_secs(400 * 86_400);
    if range.contains(&duration) { Ok(duration) } else { Err("a hold lasts 1ms to 400d".to_owned()) }
}

/// A duration in words, in the largest unit of which it has two or more, with a decimal; below 1 s in milliseconds. What would be
/// rounded up to two of a unit has two.
pub(crate) fn words(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    match seconds {
        ..0.0095 => format!("{:.1} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        ..119.95 => format!("{seconds:.1} s"),
        ..7_197.0 => format!("{:.1} min", seconds / 60.0),
        ..172_620.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        for (text, millis) in [
            ("60s", 60_000),
            ("1m30s", 90_000),
            ("1m 30s", 90_000),
            ("500ms", 500),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("250us"), Ok(Duration::from_micros(250)));
    }

    #[test]
    fn what_is_no_duration_is_named() {
        for text in ["", " ", "60", "s", "-1s", "1.5s", "60 s 3"] {
            assert!(parse(text).expect_err(text).contains("not a duration"), "{text}");
        }
        for text in ["99999999999999999999s", "18446744073709551615d", "213503982d 213503982d"] {
            assert!(parse(text).expect_err(text).contains("too long"), "{text}");
        }
        assert!(parse_positive("0s").is_err());
        assert!(parse_hold("401d").is_err() && parse_hold("999us").is_err() && parse_hold("400d").is_ok());
    }

    #[test]
    fn words_name_the_largest_unit_that_fits() {
        for (millis, says) in [
            (950, "950 ms"),
            (59_990, "60.0 s"),
            (119_990, "2.0 min"),
            (7_190_000, "119.8 min"),
            (7_199_990, "2.0 h"),
            (172_799_990, "2.0 days"),
            (2_591_999_990, "30.0 days"),
        ] {
            assert_eq!(words(Duration::from_millis(millis)), says);
        }
    }
}
