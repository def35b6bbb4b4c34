//! What sessions keep, and for how long.

use super::*;

/// A session keeps a thousand of them.
#[test]
fn names_of_calls_are_not_kept_with_outcomes() {
    use crate::object::{Cause, ObjectKey};
    let abort = Abort { calls: vec![ObjectKey::new(0, "f()")], ..Abort::of(Cause::Depended) };
    let named = Outcome::Aborted(Box::new(abort));
    let mut session = Session::new(0);
    for sequence in [1, 2] {
        assert_eq!(session.judge(sequence, 5, ClientId(1)), Verdict::Fresh);
    }
    session.record(1, 5, named.clone());
    session.suspend(2, 5, ClientId(1));
    assert!(session.resume(2, &named, 0).is_some());
    for sequence in [1, 2] {
        let Verdict::Known(kept) = session.judge(sequence, 5, ClientId(1)) else { panic!("it has ended") };
        assert_eq!(kept, as_kept(named.clone()), "names are kept by the thousand");
        assert_ne!(kept, named, "names are kept by the thousand");
    }
    let mut row = Vec::new();
    encode_row(&mut row, 1, 1, 5, &named);
    assert_eq!(decode_row(&row, SiteId::new(0, 0), Incarnation(1)).expect("sound").outcome, as_kept(named));
}

#[test]
fn sessions_that_a_crash_ended_are_told_from_those_whose_rows_are_gone() {
    let mut sessions = Sessions::default();
    let open = |sessions: &mut Sessions| match sessions.open(0) {
        Opened::Within(id) | Opened::Reserving(id) => id,
        Opened::Full => panic!("far from it"),
    };
    let (first, crashed, last) = (open(&mut sessions), open(&mut sessions), open(&mut sessions));
    for id in [first, last] {
        sessions.find(id).expect("open").record(1, 0, Outcome::Deleted);
        sessions.close(id);
    }
    // A crash: what was open and left no row is no more.
    let mut sessions = Sessions::restore(sessions.marks());
    for id in [first, last] {
        assert_eq!(sessions.verdict_on_ended(id, true), Outcome::Unknown(UnknownReason::Forgotten));
    }
    assert_eq!(sessions.verdict_on_ended(crashed, true), Outcome::Refused(Refusal::Withdrawn));
    // One that ended while something waited may have done it.
    let id = open(&mut sessions);
    sessions.find(id).expect("open").suspend(1, 0, NOBODY);
    sessions.close(id);
    assert_eq!(sessions.verdict_on_ended(id, true), Outcome::Unknown(UnknownReason::Forgotten));
}

#[test]
fn ended_numbers_are_those_that_were_added_until_there_are_too_many_runs() {
    let mut ended = Ended::default();
    let mut all = std::collections::BTreeSet::new();
    let mut number = 7u64;
    for _ in 0..40 {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        all.insert(1 + (number >> 33) % 100);
        ended.insert(1 + (number >> 33) % 100);
        for number in 1..=101 {
            assert_eq!(ended.contains(number), all.contains(&number), "{number} in {ended:?}");
        }
        let marks = Marks { reserved: 500, ended: ended.clone() };
        let mut bytes = Vec::new();
        marks.encode(&mut bytes);
        assert_eq!(Marks::decode(&mut Cursor(&bytes), true), Ok(marks));
    }

    // A hundred commands that close their session, in turns with as many that leave it.
    (1..=100).for_each(|number| ended.insert(1000 + 2 * number));
    assert!(!ended.contains(1001), "it has not ended");
    (1..=RUNS as u64).for_each(|number| ended.insert(2000 + 2 * number));
    assert_eq!(ended.runs.len(), RUNS);
    assert!(ended.contains(1001), "the floor has risen over it");
}
