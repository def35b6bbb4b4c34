//! Work is bounded: how often a site leads elections for a quota, how much it says of one, how much it says at once, and what it
//! keeps waiting. Judged over the whole run, faults included: whatever is away or does not get through, nobody may make others,
//! or the log, work without end.
//!
//! | what | at most at once | and then |
//! | --- | --- | --- |
//! | elections for a quota for which nothing waits at the site | [`UNASKED`] | one in eight seconds |
//! | elections ahead of need: requests come, and the forecast says that what is there will not do | [`FORESEEN`] | one a second |
//! | elections for a quota for which something waits | [`ASKED`] | four a second |
//! | messages of one site about one quota, or one treaty | [`SAID`] for each other site | 60 a second for each |
//! | messages of one site about one transaction | [`ABOUT`] for each other site | six a second for each |
//! | times that rights over one object are asked back | [`ABOUT`] for each other site | six a second for each |
//! | messages of one turn | [`TURN`] for each other site | - |
//! | operations that wait at a site | the bound of the product | none when the cluster is at rest |
//! | rows on storage | - | at rest: those of quotas that are known, of sessions that are open, and of tracked grants; none of a transaction |

use slackline_core::quota::WAITING;

/// The invariant's name.
pub const NAME: &str = "bounded work";

/// Elections at once for a quota for which nothing waits: to finish what silent leaders began, and to record who is new.
pub const UNASKED: u64 = 20;
/// Elections at once ahead of need.
pub const FORESEEN: u64 = 20;
/// Elections at once for a quota for which something waits.
pub const ASKED: u64 = 100;
/// Messages at once about one quota, to each other site.
pub const SAID: u64 = 1_000;
/// Messages at once about one transaction, or to ask back rights over one object, to each other site.
pub const ABOUT: u64 = 100;
/// Messages of one turn, to each other site: an announcement, what 64 quotas that wake say, and what a batch of requests sets off.
pub const TURN: usize = 4_096;

/// What is allowed: so many at once, and so many in a thousand seconds.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    /// The number at once.
    at_once: u64,
    /// The number in a thousand seconds, from then on.
    in_1000_s: u64,
}

/// Counts acts against an allowance: each act owes a million, and each microsecond pays off the rate.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    /// Millionths of acts that are not paid off.
    owed: u64,
    /// When that was so, in microseconds.
    at: u64,
}

impl Meter {
    /// Returns true if so many acts more are within what is allowed.
    fn note(&mut self, now: u64, acts: u64, allowed: Allowance) -> bool {
        let paid = (now - self.at).saturating_mul(allowed.in_1000_s) / 1000;

        self.owed = self.owed.saturating_sub(paid) + acts * 1_000_000;
        self.at = now;
        self.owed <= allowed.at_once * 1_000_000
    }
}

/// Why a site leads an election.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Something waits for the quota there.
    Waits,
    /// Nothing does, and the forecast says that something will.
    Foreseen,
    /// Neither.
    Unasked,
}

/// What one site has done for one quota since it was started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Elections for which something waited.
    asked: Meter,
    /// Elections ahead of need.
    foreseen: Meter,
    /// Elections for which nothing waited.
    unasked: Meter,
    /// Messages about the quota.
    said: Meter,
    /// The instance and the ballot of the last election.
    last: (u64, u64),
}

impl Work {
    /// Elections of one instance and ballot are sent.
    pub fn lead(&mut self, now: u64, election: (u64, u64), why: Why) -> Result<(), String> {
        // To others, or again.
        if std::mem::replace(&mut self.last, election) == election {
            return Ok(());
        }
        let (meter, at_once, in_1000_s, what) = match why {
            Why::Waits => (&mut self.asked, ASKED, 4_000, "something waits"),
            Why::Foreseen => (&mut self.foreseen, FORESEEN, 1_000, "more is expected than is there"),
            Why::Unasked => (&mut self.unasked, UNASKED, 125, "nothing waits"),
        };

        let allowed = Allowance { at_once, in_1000_s };
        match meter.note(now, 1, allowed) {
            true => Ok(()),
            false => Err(format!("too many elections where {what}: {} at once are allowed", allowed.at_once)),
        }
    }

    /// So many messages about the quota leave in one turn, to `others` other sites.
    pub fn say(&mut self, now: u64, messages: u64, others: u64) -> Result<(), String> {
        let allowed = Allowance { at_once: SAID * others, in_1000_s: 60_000 * others };
        match self.said.note(now, messages, allowed) {
            true => Ok(()),
            false => Err(format!("too many messages about one quota: {} at once are allowed", allowed.at_once)),
        }
    }
}

/// What one site has said about one transaction, or of the rights over one object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Talk(Meter);

impl Talk {
    /// So many messages about it leave in one turn, to `others` other sites.
    pub fn say(&mut self, now: u64, messages: u64, others: u64) -> Result<(), String> {
        let allowed = Allowance { at_once: ABOUT * others, in_1000_s: 6_000 * others };
        match self.0.note(now, messages, allowed) {
            true => Ok(()),
            false => Err(format!("too many messages about it: {} at once are allowed", allowed.at_once)),
        }
    }

    /// Returns true if nothing was said lately.
    pub fn is_quiet(&self, now: u64) -> bool {
        now - self.0.at > ABOUT * 1_000_000 / 6
    }
}

/// Judges a turn: how many messages leave, and what waits afterwards.
pub fn check_turn(messages: usize, others: usize, waiting: usize) -> Result<(), String> {
    if messages > TURN * others {
        return Err(format!("{messages} messages leave in one turn"));
    }
    if waiting > WAITING {
        return Err(format!("{waiting} operations wait"));
    }
    Ok(())
}

/// Judges a site at rest, when all clients have been answered.
pub fn check_rest(waiting: usize) -> Result<(), String> {
    if waiting == 0 { Ok(()) } else { Err(format!("{waiting} operations wait, and nobody waits for them")) }
}

/// Rows of one site at rest that nothing accounts for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Leftovers {
    /// Of quotas that it does not know.
    pub quotas: usize,
    /// Of sessions that are not open, or of places in their windows that were not used.
    pub outcomes: usize,
    /// Of transactions: all are over.
    pub transactions: usize,
    /// Of grants that are over, and entries of their ends.
    pub grants: usize,
}

/// Judges what a site at rest has on its storage.
pub fn check_rows(leftovers: Leftovers) -> Result<(), String> {
    if leftovers == Leftovers::default() { Ok(()) } else { Err(format!("rows are left over: {leftovers:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elections_without_a_pause_are_noticed_and_those_with_a_growing_one_are_not() {
        const SECOND: u64 = 1_000_000;
        let mut steady = Work::default();
        let found = (0..200).map(|at| steady.lead(at * SECOND * 3 / 2, (1, at + 1), Why::Unasked)).find(Result::is_err);
        assert!(found.is_some(), "0.7 a second, for as long as it lasts");
        let mut growing = Work::default();
        let mut now = 0;
        for at in 0..200 {
            now += (SECOND << at.min(4)) + SECOND / 2;
            assert_eq!(growing.lead(now, (1, at + 1), Why::Unasked), Ok(()));
            assert_eq!(growing.lead(now + 1, (1, at + 1), Why::Unasked), Ok(()), "the same again");
        }
        let mut foreseen = Work::default();
        assert!((0..200).all(|at| foreseen.lead(at * SECOND * 3 / 2, (1, at + 1), Why::Foreseen).is_ok()));
        assert!((0..200).any(|at| foreseen.lead((300 + at / 2) * SECOND, (2, at + 1), Why::Foreseen).is_err()));
        let mut talk = Work::default();
        assert!((0..100_000).map(|at| talk.say(at * 5_000, 2, 2)).any(|found| found.is_err()), "400 a second");
        let mut about = Talk::default();
        assert!((0..10_000).all(|at| about.say(at * SECOND / 4, 1, 1).is_ok()), "four a second");
        assert!((0..10_000).any(|at| about.say((9_999 + at) * SECOND / 4, 2, 1).is_err()), "eight a second");
        assert!(about.say(10_000 * SECOND, 1, 1).is_ok());
        assert!(!about.is_quiet(10_001 * SECOND) && about.is_quiet(10_100 * SECOND));
        assert!(check_turn(TURN * 2 + 1, 2, 0).is_err() && check_turn(1, 2, WAITING + 1).is_err());
        assert!(check_rows(Leftovers { grants: 1, ..Leftovers::default() }).is_err());
        assert!(check_rows(Leftovers::default()).is_ok());
        assert!(check_turn(1, 2, WAITING).is_ok() && check_rest(1).is_err() && check_rest(0).is_ok());
    }
}
