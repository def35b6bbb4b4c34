//! Never over the limit, at any instant: neither by what sites have durably granted and not durably taken back, nor by
//! what well-behaved clients believe to hold. Where the limit was lowered, what is in excess of it counts as part of it, and nothing is
//! granted by a site that knows of that.

/// The invariant's name.
pub const NAME: &str = "never over the limit";

/// Returns true if `in_use` tokens may be in use of `limit`, what is in excess of it included; `whose` says by whose count.
pub fn check(in_use: i128, limit: i64, whose: &str) -> Result<(), String> {
    if in_use > i128::from(limit) {
        return Err(format!("{in_use} tokens of {limit} are in use by {whose} count"));
    }
    if in_use < 0 {
        return Err(format!("{} tokens more came back than went out, by {whose} count", -in_use));
    }
    Ok(())
}

/// A site that knows of an excess grants nothing until it is paid.
pub fn check_granting(has_granted: bool, excess: i64) -> Result<(), String> {
    if has_granted && excess > 0 {
        return Err(format!("it has granted tokens, and knows that {excess} more are out than the limit"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_while_more_is_out_than_the_limit_is_noticed() {
        assert!(check_granting(true, 1).is_err());
        assert_eq!((check_granting(true, 0), check_granting(false, 9)), (Ok(()), Ok(())));
    }

    #[test]
    fn more_in_use_than_there_is_and_more_returned_than_taken_are_noticed() {
        assert_eq!(check(10, 10, "the clients'"), Ok(()));
        assert!(check(11, 10, "the clients'").is_err());
        assert!(check(-1, 10, "the sites'").is_err());
    }
}
