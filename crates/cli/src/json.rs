//! JSON as it was written. `serde_json::Value` would lose digits of long numbers, and let the last of two equal keys count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Read;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The most bytes of a file with operations or a statement: far more than a site would take.
const LARGEST: u64 = 16 << 20;

/// The text of a file, or of the standard input if its name is `-`.
pub(crate) fn text_of(file: &str) -> Result<String, String> {
    String::from_utf8(bytes_of(file)?).map_err(|_| "cannot be read: it is not UTF-8".to_owned())
}

/// The same as bytes.
pub(crate) fn bytes_of(file: &str) -> Result<Vec<u8>, String> {
    let read = |source: &mut dyn Read| {
        let mut bytes = Vec::new();
        source.take(LARGEST + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    let bytes = match file {
        "-" => read(&mut std::io::stdin()),
        file => File::open(file).and_then(|mut file| read(&mut file)),
    };
    let bytes = bytes.map_err(|error| format!("cannot be read: {error}"))?;

    // Before the text is looked at: what was cut off may end within a character.
    if bytes.len() as u64 > LARGEST {
        return Err(format!("is longer than {LARGEST} bytes"));
    }
    Ok(bytes)
}

/// The name of a file for a person.
pub(crate) fn name_of(file: &str) -> &str {
    if file == "-" { "standard input" } else { file }
}

/// The bytes as JSON text, if they are JSON.
pub(crate) fn read(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    serde_json::from_str::<IgnoredAny>(text).is_ok().then(|| text.trim())
}

/// JSON without the blanks and line ends between its parts.
pub(crate) fn compact(json: &str) -> String {
    let (mut is_string, mut is_escaped) = (false, false);
    let is_kept = |c: &char| {
        let is_kept = is_string || !c.is_ascii_whitespace();
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_string = !is_string,
            _ => {}
        }
        is_kept
    };
    json.chars().filter(is_kept).collect()
}

/// True if two texts are the same JSON; blanks and the order of keys do not matter. Integers are compared digit by digit, other
/// numbers as floating-point numbers.
pub(crate) fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.trim(), other.trim());
    match (one.as_bytes().first(), other.as_bytes().first()) {
        (Some(b'{'), Some(b'{')) => match (fields(one), fields(other)) {
            (Ok(one), Ok(other)) => {
                one.len() == other.len()
                    && one.iter().zip(&other).all(|(one, other)| one.0 == other.0 && same(one.1.get(), other.1.get()))
            }
            _ => false,
        },
        (Some(b'['), Some(b'[')) => match (items(one), items(other)) {
            (Ok(one), Ok(other)) => {
                one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| same(one.get(), other.get()))
            }
            _ => false,
        },
        (Some(b'"'), Some(b'"')) => match (string(one), string(other)) {
            (Ok(one), Ok(other)) => one == other,
            _ => one == other,
        },
        _ => one == other || matches!((fraction(one), fraction(other)), (Some(one), Some(other)) if one == other),
    }
}

/// The fields of an object.
pub(crate) fn fields(json: &str) -> serde_json::Result<BTreeMap<String, &RawValue>> {
    serde_json::from_str(json)
}

/// The items of a list.
pub(crate) fn items(json: &str) -> serde_json::Result<Vec<&RawValue>> {
    serde_json::from_str(json)
}

/// A string, without its quotes.
pub(crate) fn string(json: &str) -> serde_json::Result<String> {
    serde_json::from_str(json)
}

/// A number that is no integer.
fn fraction(json: &str) -> Option<f64> {
    let number = json.parse::<f64>().ok().filter(|number| number.is_finite());
    number.filter(|_| json.contains(['.', 'e', 'E']))
}

/// The reason why a text is not taken as JSON. The error has the place.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// It is no JSON.
    NoJson(serde_json::Error),
    /// It is JSON that programs read in different ways: a key stands twice in an object, or a number is larger than any that
    /// programs compute with.
    Ambiguous(serde_json::Error),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The parser's word for it is about the parser.
            Self::NoJson(error) if error.to_string().starts_with("recursion limit") => {
                write!(f, "it nests too deeply, at line {} column {}", error.line(), error.column())
            }
            Self::NoJson(error) => write!(f, "no JSON: {error}"),
            Self::Ambiguous(error) => error.fmt(f),
        }
    }
}

/// Checks that every program reads the same in this text.
pub(crate) fn check(text: &str) -> Result<(), Unfit> {
    let Err(error) = serde_json::from_str::<KeysOnce>(text) else { return Ok(()) };
    let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok();
    Err(if is_json { Unfit::Ambiguous(error) } else { Unfit::NoJson(error) })
}

/// Any JSON in which every object has each of its keys once.
struct KeysOnce;

impl<'de> Deserialize<'de> for KeysOnce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for KeysOnce {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some(key) = fields.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format!("the key {key:?} stands twice in one object")));
            }
            fields.next_value::<Self>()?;
            keys.insert(key);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_compared_by_what_it_says_and_no_digit_is_lost() {
        for (one, other, is_same) in [
            ("{\"a\": 1, \"b\": [1.50, null]}", " {\"b\":[1.5,null],\"a\":1}\n", true),
            ("12345678901234567890123", "12345678901234567890124", false),
            ("18446744073709551616", "18446744073709551616", true),
            ("\"\\u0041\"", "\"A\"", true),
            ("1", "1.0", false),
            ("[1]", "[1, 2]", false),
            ("{\"a\": 1}", "{\"b\": 1}", false),
            ("1e400", "1e500", false),
            ("true", "\"true\"", false),
        ] {
            assert_eq!(same(one, other), is_same, "{one} {other}");
        }
    }

    #[test]
    fn compact_json_is_the_same_and_has_no_blanks_but_in_strings() {
        let written = "{\n \"a b\\\" c\": [ 1.50,\r\n\t{} ], \"\\\\\": \" \" }";
        assert_eq!(compact(written), "{\"a b\\\" c\":[1.50,{}],\"\\\\\":\" \"}");
        assert!(same(written, &compact(written)));
    }

    #[test]
    fn json_that_others_would_read_otherwise_is_told_from_what_is_none() {
        let unfit = |text: &str| check(text).expect_err("not taken").to_string();
        let twice = unfit("{\"a\": {\"b\": 1,\n \"c\": [], \"b\": 2}}");
        assert!(twice.starts_with("the key \"b\" stands twice in one object at line 2"), "{twice}");
        assert!(unfit("[1e400]").starts_with("number out of range"));
        assert!(unfit("{").starts_with("no JSON: EOF"));
        assert!(check("{\"a\": {\"a\": [true, null, \"x\", -1, 1.5, 2]}}").is_ok());
    }
}
