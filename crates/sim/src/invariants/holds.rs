//! Holds that end by themselves come back exactly once, not before their time, and in the end they do.

use slackline_core::api::Hold;

/// The invariant's name.
pub const NAME: &str = "holds come back once";

/// A tracked grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tracked {
    /// The true time at which its holder may still be using it; none for a grant without an end.
    pub until: Option<u64>,
    /// Its tokens.
    pub amount: i64,
    /// True if what was not used of it came back.
    pub settled: bool,
    /// True if the tokens came back.
    pub ended: bool,
}

/// A grant ends if that was asked for, and lasts for as long as was asked for, or longer where it was waited for.
pub fn check_term(asked: Hold, lasts: Option<u64>) -> Result<(), String> {
    match (asked, lasts) {
        (Hold::Counted | Hold::Open, None) => Ok(()),
        (Hold::For(micros), Some(lasts)) if lasts >= micros => Ok(()),
        _ => Err(format!("{asked:?} was asked for, and it lasts for {lasts:?} us")),
    }
}

/// What is not used of a grant comes back: `amount`, of which there are `used` left.
pub fn settle(grant: &mut Tracked, used: i64, amount: i64) -> Result<(), String> {
    if grant.ended || grant.settled {
        return Err(format!("is settled although it is no more, or was settled before: {grant:?}"));
    }
    if used + amount != grant.amount {
        return Err(format!("has {}, of which {used} are used and {amount} came back", grant.amount));
    }
    (grant.amount, grant.settled) = (used, true);
    Ok(())
}

/// Its holder may be using it until another time.
pub fn extend(grant: &mut Tracked, until: u64) -> Result<(), String> {
    match &mut grant.until {
        _ if grant.ended => Err("is extended although it is no more".to_owned()),
        None => Err("is extended although it has no end".to_owned()),
        Some(end) => {
            *end = until.max(*end);
            Ok(())
        }
    }
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
        let timed = Tracked { until: Some(100), amount: 5, settled: false, ended: false };
        assert_eq!(check_end(&timed, 100, false), Ok(()));
        assert_eq!(check_end(&timed, 50, true), Ok(()));
        assert!(check_end(&timed, 99, false).is_err());
        assert!(check_end(&Tracked { until: None, ..timed }, 99, false).is_err());
        assert!(check_end(&Tracked { ended: true, ..timed }, 200, true).is_err());
        assert_eq!(check_rest(&timed, 150, 60), Ok(()));
        assert!(check_rest(&timed, 170, 60).is_err());
        assert_eq!(check_rest(&Tracked { ended: true, ..timed }, 170, 60), Ok(()));

        assert_eq!((check_term(Hold::Open, None), check_term(Hold::For(5), Some(5))), (Ok(()), Ok(())));
        assert!(check_term(Hold::For(5), Some(4)).is_err() && check_term(Hold::For(5), None).is_err());
        assert!(check_term(Hold::Counted, Some(5)).is_err(), "it was to stay");

        let mut grant = timed;
        assert!(
            settle(&mut grant.clone(), 3, 3).is_err() && settle(&mut Tracked { ended: true, ..timed }, 3, 2).is_err()
        );
        assert_eq!((settle(&mut grant, 3, 2), grant.amount), (Ok(()), 3));
        assert!(settle(&mut grant, 3, 0).is_err(), "a second time");
        assert_eq!((extend(&mut grant, 50), grant.until), (Ok(()), Some(100)));
        assert_eq!((extend(&mut grant, 150), grant.until), (Ok(()), Some(150)));
        assert!(extend(&mut Tracked { until: None, ..timed }, 50).is_err());
    }
}
