//! Never over the limit, at any instant: neither by what sites have durably granted and not durably taken back, nor by
//! what well-behaved clients believe to hold.

/// The invariant's name.
pub const NAME: &str = "never over the limit";

/// Returns true if `in_use` tokens of `limit` may be in use; `whose` says by whose count.
pub fn check(in_use: i128, limit: i64, whose: &str) -> Result<(), String> {
    if in_use > i128::from(limit) {
        return Err(format!("{in_use} tokens of {limit} are in use by {whose} count"));
    }
    if in_use < 0 {
        return Err(format!("{} tokens more came back than went out, by {whose} count", -in_use));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_in_use_than_there_is_and_more_returned_than_taken_are_noticed() {
        assert_eq!(check(10, 10, "the clients'"), Ok(()));
        assert!(check(11, 10, "the clients'").is_err());
        assert!(check(-1, 10, "the sites'").is_err());
    }
}
