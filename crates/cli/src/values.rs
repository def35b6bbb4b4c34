//! The values of arguments that more than one command has: names of quotas, and numbers of tokens.

/// Reads a quota's name.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let valid = !text.is_empty() && text.len() <= 256 && !text.chars().any(char::is_control);
    if valid {
        Ok(text.to_owned())
    } else {
        Err("a quota's name has 1 to 256 bytes, without control characters".into())
    }
}

/// Reads a number of tokens that are used.
pub(crate) fn used(text: &str) -> Result<i64, String> {
    let used = text.parse::<i64>().ok().filter(|used| *used >= 0);
    used.ok_or_else(|| format!("a number of used tokens is 0 to {}", i64::MAX))
}

/// Reads a number of tokens.
pub(crate) fn amount(text: &str) -> Result<i64, String> {
    let amount = text.parse::<i64>().ok().filter(|amount| *amount >= 1);
    amount.ok_or_else(|| format!("a number of tokens is a whole number from 1 to {}, in digits alone", i64::MAX))
}
