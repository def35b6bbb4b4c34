//! What callers of the product's client may rely upon, whatever happens between it and the sites.

use slackline_core::api::{Outcome, UnknownReason};

use super::answers::is_definitive;

/// An id that a client has sent stands for one operation.
pub const SAME_ID: &str = "an id stands for one operation";
/// A caller is told what became of its own call.
pub const OWN_OUTCOME: &str = "a caller is told the outcome of its own call";
/// Every grant that no caller holds is given back.
pub const GIVEN_BACK: &str = "what no caller holds is given back";
/// A program takes effect once if its caller is told that it did, and never if it is told that it did not.
pub const ONCE: &str = "a program takes effect once";
/// What a committed program has seen was so at one time.
pub const ONE_STATE: &str = "a program sees one state";

/// The end of a program, as its caller was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum End {
    /// Its caller was not told.
    #[default]
    Open,
    /// It took effect.
    Done,
    /// It did not, and never will.
    NotDone,
    /// It may have.
    Unknown,
}

/// A program over one pair of lists.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The pair.
    pub pair: usize,
    /// The outcome.
    pub end: End,
    /// True if it only counts.
    pub counts: bool,
    /// True if it was done and appended its number.
    pub writes: bool,
    /// What it saw, if it was done and read.
    pub saw: Option<Saw>,
}

/// What a program saw of its pair.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Saw {
    /// The one list.
    pub left: Vec<u64>,
    /// The other.
    pub right: Vec<u64>,
    /// What a memoized function gave for both: their lengths, and the last number.
    pub memo: Option<(u64, u64, u64)>,
}

/// What a pair holds at rest.
#[derive(Clone, Debug, Default)]
pub struct Final {
    /// The one list.
    pub left: Vec<u64>,
    /// The other.
    pub right: Vec<u64>,
    /// The counters of both homes.
    pub counters: [i64; 2],
    /// Why it could not be read, if so.
    pub why: Option<String>,
}

/// The operation that is sent under an id is the one that was sent under it before.
pub fn check_id(is_same: bool) -> Result<(), String> {
    if is_same { Ok(()) } else { Err("another operation was sent under this id before".to_owned()) }
}

/// The id that a caller is given is that of an operation that it asked for.
pub fn check_own(is_own: bool) -> Result<(), String> {
    if is_own { Ok(()) } else { Err("it is not what the caller asked for".to_owned()) }
}

/// A caller is told the outcome that its site has, of what it asked for. `is_lost` is true of an operation whose outcome nobody knows, as its
/// site's storage is lost, or its site has left.
pub fn check_told(is_own: bool, is_lost: bool, durable: Option<&Outcome>, told: &Outcome) -> Result<(), String> {
    check_own(is_own)?;
    match durable {
        // The client asks on: what its site knows soon is not said to be unknown.
        _ if matches!(
            told,
            Outcome::Unknown(UnknownReason::Undecided | UnknownReason::NotReady | UnknownReason::StorageFull)
        ) =>
        {
            Err(format!("its caller is told {told:?}, although its site will know"))
        }
        _ if *told == Outcome::Unknown(UnknownReason::IncarnationLost) && !is_lost => {
            Err("its caller is told that the incarnation is lost, and it lives".to_owned())
        }
        Some(durable) if is_definitive(durable) && is_definitive(told) && durable != told => {
            Err(format!("it ended as {durable:?}, and its caller is told {told:?}"))
        }
        _ => Ok(()),
    }
}

/// Each number is in both lists as often as its program took effect; and so is each count.
pub fn check_once(programs: &[(u64, &Program)], last: &Final) -> Result<(), String> {
    if let Some(why) = &last.why {
        return Err(format!("it cannot be read at rest: {why}"));
    }

    if last.left != last.right {
        return Err(format!("its lists differ: {:?} and {:?}", last.left, last.right));
    }

    // A caller that was told nothing, or that nobody knows, allows for once and for not at all; never for twice.
    for (number, program) in programs.iter().filter(|(_, program)| !program.counts) {
        let times = last.left.iter().filter(|found| *found == number).count();
        let is_right = match program.end {
            End::Done => times == usize::from(program.writes),
            End::NotDone => times == 0,
            End::Unknown | End::Open => times <= 1,
        };
        if !is_right {
            return Err(format!("program {number} ended as {:?}, and its number is there {times} times", program.end));
        }
    }

    let counting = |end: End| programs.iter().filter(|(_, of)| of.counts && of.end == end).count() as i64;
    let (least, most) = (counting(End::Done), counting(End::Done) + counting(End::Unknown) + counting(End::Open));
    let [one, other] = last.counters;
    if one != other || one < least || one > most {
        return Err(format!("between {least} and {most} programs counted, and the counters are {:?}", last.counters));
    }
    Ok(())
}

/// Both lists were the same when a program saw them, what it saw is how they began, and its own number follows at once; and memoized
/// functions gave what they give for that.
pub fn check_states(programs: &[(u64, &Program)], last: &Final) -> Result<(), String> {
    for (number, program) in programs {
        let Some(saw) = program.saw.as_ref().filter(|_| program.end == End::Done) else { continue };
        if saw.left != saw.right {
            return Err(format!("program {number} saw {:?} and {:?} at once", saw.left, saw.right));
        }

        if !last.left.starts_with(&saw.left) {
            return Err(format!("program {number} saw {:?}, which never was: {:?}", saw.left, last.left));
        }
        if program.writes && last.left.get(saw.left.len()) != Some(number) {
            return Err(format!("program {number} wrote after {:?}, and is not next in {:?}", saw.left, last.left));
        }

        // A memoized result may come from a copy, and must be what its function gives for the lists of the same time.
        let length = saw.left.len() as u64;
        let right = (length, length, saw.left.last().copied().unwrap_or(0));
        if saw.memo.is_some_and(|memo| memo != right) {
            return Err(format!("program {number} saw {:?}, and was given {:?} for it", saw.left, saw.memo));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(pair: usize, saw: &[u64]) -> Program {
        let saw = Saw { left: saw.to_vec(), right: saw.to_vec(), memo: None };
        Program { pair, end: End::Done, counts: false, writes: true, saw: Some(saw) }
    }

    #[test]
    fn program_that_took_effect_twice_or_not_at_all_is_noticed() {
        let last = |list: &[u64]| Final { left: list.to_vec(), right: list.to_vec(), ..Final::default() };
        let one = done(0, &[]);
        assert_eq!(check_once(&[(7, &one)], &last(&[7])), Ok(()));
        assert!(check_once(&[(7, &one)], &last(&[7, 7])).is_err());
        assert!(check_once(&[(7, &one)], &last(&[])).is_err());
        let refused = Program { end: End::NotDone, ..Program::default() };
        assert!(check_once(&[(7, &refused)], &last(&[7])).is_err());
        let counted = Program { end: End::Done, counts: true, ..Program::default() };
        assert!(check_once(&[(7, &counted)], &last(&[])).is_err());
        let right = Final { counters: [1, 1], ..Final::default() };
        assert_eq!(check_once(&[(7, &counted)], &right), Ok(()));
        assert!(check_once(&[(7, &counted)], &Final { counters: [2, 2], ..Final::default() }).is_err());
    }

    #[test]
    fn state_that_never_was_is_noticed() {
        let last = Final { left: vec![1, 2], right: vec![1, 2], ..Final::default() };
        assert_eq!(check_states(&[(2, &done(0, &[1]))], &last), Ok(()));
        assert!(check_states(&[(2, &done(0, &[3]))], &last).is_err());
        assert!(check_states(&[(1, &done(0, &[1]))], &last).is_err());
        let mut torn = done(0, &[1]);
        torn.saw = Some(Saw { left: vec![1], right: vec![], memo: None });
        assert!(check_states(&[(2, &torn)], &last).is_err());
        let mut stale = done(0, &[1]);
        stale.saw = Some(Saw { left: vec![1], right: vec![1], memo: Some((0, 0, 0)) });
        assert!(check_states(&[(2, &stale)], &last).is_err());
    }

    #[test]
    fn outcome_of_another_call_is_noticed() {
        let (granted, refused) = (Outcome::Released { amount: 1 }, Outcome::Deleted);
        assert_eq!(check_told(true, false, Some(&granted), &granted), Ok(()));
        assert!(check_told(false, false, Some(&granted), &granted).is_err());
        assert!(check_told(true, false, Some(&granted), &refused).is_err());
        let lost = Outcome::Unknown(UnknownReason::IncarnationLost);
        assert_eq!(check_told(true, true, None, &lost), Ok(()));
        assert!(check_told(true, false, None, &lost).is_err());
        assert!(check_told(true, false, None, &Outcome::Unknown(UnknownReason::Undecided)).is_err());
        assert!(check_id(false).is_err() && check_own(false).is_err());
    }
}
