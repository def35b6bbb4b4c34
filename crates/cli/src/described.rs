//! Objects as commands print them, for people and for programs.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::value::RawValue;
use slackline::Key;

use crate::json;
use crate::output::safe_line;

/// An object for programs: its key, the kind of its value, and the value.
#[derive(Clone, Serialize)]
pub(crate) struct Described {
    key: String,
    kind: &'static str,
    value: Content,
}

#[derive(Clone, Serialize)]
#[serde(untagged)]
enum Content {
    Absent,
    Counter(i64),
    /// As it was written.
    Json(Box<RawValue>),
    /// In hexadecimal digits.
    Bytes(String),
}

impl Described {
    pub(crate) fn new(key: &Key, value: Option<&slackline::Value>) -> Self {
        let (kind, value) = match value {
            None => ("absent", Content::Absent),
            Some(slackline::Value::Counter(count)) => ("counter", Content::Counter(*count)),
            Some(slackline::Value::Bytes(bytes) | slackline::Value::Derived(slackline::Derived { bytes, .. })) => {
                let json = json::read(bytes).and_then(|json| RawValue::from_string(json::compact(json)).ok());
                json.map_or_else(|| ("bytes", Content::Bytes(hex(bytes))), |json| ("json", Content::Json(json)))
            }
        };
        Self { key: key.to_string(), kind, value }
    }
}

/// An object for people, in one line.
pub(crate) fn row(key: &Key, value: Option<&slackline::Value>) -> String {
    format!("{}  {}", safe_line(&key.to_string()), one_line(value))
}

/// An object's value for people, in one line.
pub(crate) fn one_line(value: Option<&slackline::Value>) -> String {
    let text = text(value);
    // Only JSON has line ends here, and only between its parts.
    if text.contains(['\n', '\t']) { json::compact(&text) } else { text }
}

/// An object's value for people.
pub(crate) fn text(value: Option<&slackline::Value>) -> String {
    match value {
        None => "nothing is there".to_owned(),
        Some(slackline::Value::Counter(count)) => count.to_string(),
        Some(slackline::Value::Bytes(bytes) | slackline::Value::Derived(slackline::Derived { bytes, .. })) => {
            match json::read(bytes) {
                // As it was written, but for line ends that would hide what is before them.
                Some(json) => json.replace("\r\n", "\n").replace('\r', "\n"),
                None => format!("{} bytes that are no JSON: `get --raw` prints them", bytes.len()),
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_keeps_its_digits_and_lines_for_people_and_programs() {
        let key = Key::new("eu", "x");
        let bytes = |text: &str| Some(slackline::Value::Bytes(text.as_bytes().to_vec().into()));
        for (value, people, line, programs) in [
            (bytes("123456789012345678901234567890"), "123456789012345678901234567890", None, None),
            (bytes("-170141183460469231731687303715884105728"), "-170141183460469231731687303715884105728", None, None),
            (
                bytes("{\r\n \"b\": 1.50,\r \"a\": 1e400}"),
                "{\n \"b\": 1.50,\n \"a\": 1e400}",
                Some("{\"b\":1.50,\"a\":1e400}"),
                None,
            ),
            (bytes("hi\u{1b}"), "3 bytes that are no JSON: `get --raw` prints them", None, Some("\"68691b\"")),
            (Some(slackline::Value::Counter(i64::MIN)), "-9223372036854775808", None, None),
            (None, "nothing is there", None, Some("null")),
        ] {
            assert_eq!(text(value.as_ref()), people);
            let line = line.unwrap_or(people);
            assert_eq!(one_line(value.as_ref()), line);
            let object = serde_json::to_string(&Described::new(&key, value.as_ref()));
            let object = object.expect("JSON");
            assert!(object.contains(&format!("\"value\":{}}}", programs.unwrap_or(line))), "{object}");
        }
    }
}
