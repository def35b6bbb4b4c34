//! Names of objects, as programs write them.

use std::fmt;
use std::str::FromStr;

use slackline_core::object::treaty::treaty_name;

/// Names an object: its home region, by name, and its name there.
///
/// ```
/// use slackline_session::key::Key;
///
/// let key: Key = "eu:users/alice".parse()?;
/// assert_eq!(key, Key::new("eu", "users/alice"));
/// assert_eq!(key.to_string(), "eu:users/alice");
/// # Ok::<(), slackline_session::key::ParseKeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    region: String,
    name: String,
}

impl Key {
    /// The object of this name in this region. A name is 1 to 512 bytes without control characters; whether it is, and whether
    /// there is such a region, is checked when the key is used.
    pub fn new(region: impl Into<String>, name: impl Into<String>) -> Self {
        Self { region: region.into(), name: name.into() }
    }

    /// The name of its home region.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Its name there.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the treaty whose object this is; none of any other object.
    pub fn treaty(&self) -> Option<&str> {
        treaty_name(&self.name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.region, self.name)
    }
}

/// The text names no object: it is not `region:name`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} names no object: write its home region and its name with a colon between them, like eu:users/alice")]
pub struct ParseKeyError(pub String);

impl FromStr for Key {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        match text.split_once(':') {
            Some((region, name)) if !region.is_empty() => Ok(Key::new(region, name)),
            _ => Err(ParseKeyError(text.to_owned())),
        }
    }
}
