//! Turns: over what a program has claimed nobody is given a right. A write that has its turn would have to ask it back at once.

use slackline_core::object::message::Fetched;
use slackline_core::right::WarrantyNumber;

/// The invariant's name.
pub const NAME: &str = "no right over what is claimed";

/// What a home answers; whether the right of this number is over what is claimed there.
pub fn check(fetched: &Fetched, is_over_claimed: impl Fn(WarrantyNumber) -> bool) -> Result<(), String> {
    let mut rights = fetched.gets.iter().flatten().filter_map(|given| given.right);
    match rights.find(|right| is_over_claimed(right.number)) {
        Some(right) => Err(format!("the right {:?} is issued over what is claimed", right.number)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use slackline_core::object::Seen;
    use slackline_core::object::message::{Given, Offer};
    use slackline_core::right::Start;

    use super::*;

    #[test]
    fn right_over_what_is_claimed_is_noticed() {
        let given = |right| Ok(Given { seen: Seen::default(), right });
        let gets = vec![given(None), given(Some(Offer::default()))];
        let fetched = Fetched { token: 1, start: Start::default(), gets, scans: Vec::new(), is_whole: true };
        assert_eq!(check(&fetched, |_| false), Ok(()));
        assert!(check(&fetched, |_| true).is_err());
    }
}
