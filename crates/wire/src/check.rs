//! Checked conversions of a message's fields, and the error that names a field that is not valid.

/// The most members of a lane.
pub(crate) const MEMBERS: usize = 64;

/// A message's field is missing or makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field} {problem}")]
pub struct Invalid {
    /// The path to the field, as in the proto file.
    pub field: String,
    /// The problem with it, in words that follow the field's name.
    pub problem: &'static str,
}

impl Invalid {
    pub(crate) fn new(field: &str, problem: &'static str) -> Self {
        Self { field: field.to_owned(), problem }
    }

    /// The same, seen from the message around it.
    pub(crate) fn within(mut self, outer: &str) -> Self {
        self.field.insert(0, '.');
        self.field.insert_str(0, outer);
        self
    }
}

/// The content of a field that must be there.
pub(crate) fn required<T>(value: Option<T>, field: &str) -> Result<T, Invalid> {
    value.ok_or_else(|| Invalid::new(field, "is missing"))
}

/// The converted content of a field.
pub(crate) fn inner<T, U: TryFrom<T, Error = Invalid>>(value: T, field: &str) -> Result<U, Invalid> {
    value.try_into().map_err(|invalid: Invalid| invalid.within(field))
}

/// The converted content of a field that must be there.
pub(crate) fn convert<T, U: TryFrom<T, Error = Invalid>>(value: Option<T>, field: &str) -> Result<U, Invalid> {
    inner(required(value, field)?, field)
}

/// The converted content of a field that may be there.
pub(crate) fn optional<T, U: TryFrom<T, Error = Invalid>>(value: Option<T>, field: &str) -> Result<Option<U>, Invalid> {
    value.map(|value| inner(value, field)).transpose()
}

/// The converted content of a repeated field, which has at most `at_most` entries.
pub(crate) fn convert_all<T, U: TryFrom<T, Error = Invalid>>(
    values: Vec<T>,
    at_most: usize,
    field: &str,
) -> Result<Vec<U>, Invalid> {
    // The protocols keep lists of this length in memory and in rows: the sender does not decide how long they are.
    if values.len() > at_most {
        return Err(Invalid::new(field, "has too many entries"));
    }

    let mut converted = Vec::with_capacity(values.len());
    for (position, value) in values.into_iter().enumerate() {
        converted.push(value.try_into().map_err(|invalid: Invalid| invalid.within(&format!("{field}[{position}]")))?);
    }
    Ok(converted)
}
