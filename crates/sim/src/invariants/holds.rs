//! Holds that end by themselves come back exactly once, not before their time, and in the end they do.

/// The invariant's name.
pub const NAME: &str = "holds come back once";

/// A tracked grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tracked {
    /// The true time at which its holder may still be using it; none for a grant without an end.
    pub until: Option<u64>,
    /// True if the tokens came back.
    pub ended: bool,
}

/// A grant ends at true time `now`: because it was released, or by itself.
pub fn check_end(grant: &Tracked, now: u64, released: bool) -> Result<(), String> {
    if grant.ended {
        return Err("ended twice".to_owned());
    }

    // Whoever holds for a time stops by itself, so it may come back then and no earlier.
    match grant.until {
        _ if released => Ok(()),
        None => Err("has no end and ended by itself".to_owned()),
        Some(until) if now < until => Err(format!("ended {} us before its time", until - now)),
        Some(_) => Ok(()),
    }
}

/// At rest, when everything that had an end must be over.
pub fn check_rest(grant: &Tracked, now: u64, patience: u64) -> Result<(), String> {
    match grant.until {
        Some(until) if !grant.ended && until + patience < now => {
            Err(format!("did not come back {} us after its time", now - until))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_second_and_missing_ends_are_noticed() {
        let timed = Tracked { until: Some(100), ended: false };
        assert_eq!(check_end(&timed, 100, false), Ok(()));
        assert_eq!(check_end(&timed, 50, true), Ok(()));
        assert!(check_end(&timed, 99, false).is_err());
        assert!(check_end(&Tracked { until: None, ended: false }, 99, false).is_err());
        assert!(check_end(&Tracked { ended: true, ..timed }, 200, true).is_err());
        assert_eq!(check_rest(&timed, 150, 60), Ok(()));
        assert!(check_rest(&timed, 170, 60).is_err());
        assert_eq!(check_rest(&Tracked { ended: true, ..timed }, 170, 60), Ok(()));
    }
}
