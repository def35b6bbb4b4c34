//! Times of a series as text: `1998-04-30 21:30:00`, in UTC. Series know no time zones and no leap seconds.

/// The seconds of a day.
pub const DAY: i64 = 86_400;
/// The seconds of a minute: the shortest step, and what all steps are whole multiples of.
pub const MINUTE: i64 = 60;

/// Reads a time, as seconds since 1970; also with a `T` in the middle and a `Z` at the end.
pub fn parse(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once([' ', 'T'])?;
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let is_date = (1..=9999).contains(&year) && (1..=12).contains(&month) && (1..=length(year, month)).contains(&day);
    let is_time = hour < 24 && minute < 60 && second < 60;
    (is_date && is_time).then(|| days(year, month, day) * DAY + hour * 3600 + minute * MINUTE + second)
}

/// Writes a time.
pub fn format(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / MINUTE % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Three numbers without signs.
fn numbers(text: &str, between: char) -> Option<[i64; 3]> {
    let mut parts = text.split(between);
    let mut next = || {
        let part = parts.next()?;
        let is_number = (1..=4).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { part.parse().ok() } else { None }
    };
    let all = [next()?, next()?, next()?];
    parts.next().is_none().then_some(all)
}

/// The days of a month.
fn length(year: i64, month: i64) -> i64 {
    let next = if month == 12 { days(year + 1, 1, 1) } else { days(year, month + 1, 1) };
    next - days(year, month, 1)
}

/// The days from 1970 to a date. Years begin in March here, so that the leap day is the last of a year; an era is 400 of them.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date so many days after 1970: the inverse of [`days`].
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_are_read_and_written() {
        // From `date -u -d "1998-04-30 21:30:00" +%s` and the like.
        for (text, seconds) in [
            ("1970-01-01 00:00:00", 0),
            ("1998-04-30 21:30:00", 893_971_800),
            ("2000-02-29 23:59:59", 951_868_799),
            ("2024-12-31 00:00:00", 1_735_603_200),
            ("1969-12-31 23:59:00", -60),
        ] {
            assert_eq!(parse(text), Some(seconds), "{text}");
            assert_eq!(format(seconds), text);
        }
        assert_eq!(parse("1998-04-30T21:30:00Z"), Some(893_971_800));
    }

    #[test]
    fn every_day_of_four_centuries_is_its_own_inverse() {
        for day in -150_000..150_000 {
            assert_eq!(parse(&format(day * DAY)), Some(day * DAY));
        }
    }

    #[test]
    fn no_time_is_read_from_what_is_none() {
        for text in ["", "1998-04-30", "1998-02-29 00:00:00", "1998-13-01 00:00:00", "1998-04-30 24:00:00", "a b"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("1998-04-30 21:30:00:00"), None);
        assert_eq!(parse("1998-04-+3 21:30:00"), None);
    }
}
