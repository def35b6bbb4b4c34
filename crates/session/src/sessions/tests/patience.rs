//! Scripts of rules 6 to 8, and of ids, outcomes and marks through them.

use super::*;

fn tracked(amount: i64) -> Command {
    Command::Acquire { quota: "gpus".into(), amount, hold: Hold::Open, waits: false }
}

fn grant(number: u64) -> GrantId {
    GrantId { site: SITE, incarnation: INCARNATION, number }
}

/// The one operation of the next batch.
fn only(batch: Option<Batch>) -> Operation {
    let mut operations = batch.expect("a batch").operations;
    assert_eq!(operations.len(), 1);
    operations.remove(0).operation
}

#[test]
fn connection_lost_acquire_goes_elsewhere_after_its_patience_and_the_first_is_given_back() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let key = script.submit_on(acquire(4), terms);
    script.batch().expect("nothing is under way");
    script.disconnect();
    assert!(script.poll(key).is_none(), "it has patience");
    script.sweep(SECOND);
    let finished = script.poll(key).expect("it goes elsewhere");
    assert!(matches!(finished.reply, Reply::LeftBehind));
    assert_eq!(finished.id, Some(id(1, 1)));
    assert_eq!(script.left(), [(Some(id(1, 1)), None)]);

    // An hour later: it is asked about, and not sent again.
    script.sweep(3600 * SECOND);
    script.connect();
    assert_eq!(script.request(), Some(Request::Ask { operation: id(1, 1) }));
    script.asked(id(1, 1), granted(1));
    assert_eq!(only(script.batch()), Operation::Release { quota: "gpus".into(), amount: 4 });
    script.answer(1, &[(2, Outcome::Released { amount: 4 })]);
    assert!(script.left().is_empty() && !script.book.has_work() && script.book.calls.watched() == 0);
}

#[test]
fn frozen_site_acquire_goes_elsewhere_and_its_late_grant_is_given_back_once() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let key = script.submit_on(tracked(4), terms);
    script.batch().expect("nothing is under way");
    assert!(script.sweep(SECOND / 2).is_some_and(|at| at <= script.now + SECOND / 2), "it wants to be woken");
    assert!(script.poll(key).is_none());
    script.sweep(SECOND / 2);
    assert!(script.book.is_silent(), "new calls had better try another site first");
    assert!(matches!(script.poll(key).expect("it goes elsewhere").reply, Reply::LeftBehind));
    assert_eq!(script.request(), Some(Request::Ask { operation: id(1, 1) }));

    // It goes on: the batch is answered, then the question.
    script.book.heard(script.now);
    assert!(!script.book.is_silent());
    script.answer(1, &[(1, granted(33))]);
    script.asked(id(1, 1), granted(33));
    assert_eq!(only(script.batch()), Operation::ReleaseGrant { grant: grant(33), used: 0 });
    assert_eq!(script.request(), None, "given back once");
    // The connection breaks before the answer: the same id again.
    script.disconnect();
    script.connect();
    let batch = script.batch().expect("in doubt");
    assert_eq!(sequences(&batch), [2]);
    script.answer(1, &[(2, Outcome::Released { amount: 4 })]);
    assert!(script.left().is_empty() && !script.book.has_work());
}

/// What was read elsewhere is committed elsewhere, though nothing is under way here any more.
#[test]
fn site_that_does_not_answer_a_read_comes_after_others_for_a_while() {
    let read = |script: &mut Script| {
        script.book.read(wanted("a"), script.now + 4 * SECOND).expect("there is room");
        while script.request().is_some_and(|request| !matches!(request, Request::Read(_))) {}
    };
    let mut script = Script::connected();
    read(&mut script);
    script.sweep(SECOND);
    script.book.heard(script.now);
    let next = script.sweep(3 * SECOND);
    assert!(script.book.is_silent(), "nothing came for most of its time");
    assert_eq!(next, Some(script.now + STALLED), "it is looked at again");
    script.sweep(STALLED - MILLISECOND);
    assert!(script.book.is_silent());
    script.sweep(MILLISECOND);
    assert!(!script.book.is_silent(), "somebody is to try it");

    // It is slow with this read, and not with others.
    read(&mut script);
    script.sweep(3 * SECOND);
    script.book.heard(script.now);
    script.sweep(SECOND);
    assert!(!script.book.is_silent(), "it was heard a second ago");

    // Any word ends it.
    read(&mut script);
    script.sweep(4 * SECOND);
    assert!(script.book.is_silent());
    script.book.heard(script.now);
    assert!(!script.book.is_silent());
}

/// Nobody else could say how to ask about it.
#[test]
fn change_whose_caller_went_away_is_left_when_the_client_is_closed() {
    let mut script = Script::connected();
    let key = script.submit(Command::Create { quota: "gpus".into(), limit: 9, charter: Default::default() });
    script.batch().expect("nothing is under way");
    script.book.abandon(key, script.now);
    assert!(script.left().is_empty(), "nobody sees to it, and its site carries it out or not");
    script.book.leave(script.now, &mut script.wakers);
    assert_eq!(script.left(), [(Some(id(1, 1)), None)]);
}

#[test]
fn acquire_that_waits_for_tokens_is_not_impatient_until_the_connection_is_lost() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let key = script.submit_on(acquire(4), terms);
    script.batch().expect("nothing is under way");
    script.answer(1, &[]);
    script.sweep(5 * SECOND);
    assert!(script.poll(key).is_none() && !script.book.is_silent(), "the site has it, and is alive");
    script.disconnect();
    script.sweep(SECOND / 2);
    assert!(script.poll(key).is_none());
    script.sweep(SECOND / 2);
    assert!(script.poll(key).is_some());
}

#[test]
fn no_other_site_an_acquire_stays_until_its_deadline() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let key = script.submit_on(acquire(4), terms);
    script.batch().expect("nothing is under way");
    script.elsewhere = false;
    script.disconnect();
    for _ in 0..50 {
        script.sweep(SECOND / 10);
        assert!(script.poll(key).is_none());
    }
    // As soon as there is one, it leaves.
    script.elsewhere = true;
    let woken = script.wakers.len();
    script.sweep(LOOK_AROUND);
    assert_eq!(script.wakers.len(), woken + 1, "its caller looks again");
    assert!(matches!(script.poll(key).expect("it goes elsewhere").reply, Reply::LeftBehind));
    // Nobody took it after all: the caller takes the first one back.
    let finished = script.book.reclaim(id(1, 1), script.now).expect("it is not settled");
    assert!(matches!(finished.reply, Reply::Answered(Outcome::Unknown(UnknownReason::SiteUnreachable))));
    script.connect();
    assert_eq!(script.request(), None, "what became of it is the caller's to ask");
    assert!(script.left().is_empty());
}

#[test]
fn first_that_is_settled_is_not_taken_back() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let key = script.submit_on(acquire(4), terms);
    script.batch().expect("nothing is under way");
    script.sweep(SECOND);
    script.poll(key).expect("it goes elsewhere");
    script.answer(1, &[(1, granted(1))]);
    assert!(script.book.reclaim(id(1, 1), script.now).is_none(), "it is being given back");
}

#[test]
fn first_that_is_refused_or_lost_is_settled() {
    let refused = Outcome::Refused(Refusal::Exhausted { asked: Default::default(), retry_after: None, level: 0 });
    let lost = Outcome::Unknown(UnknownReason::IncarnationLost);
    let ended = Outcome::Refused(Refusal::SessionEnded);
    let withdrawn = Outcome::Refused(Refusal::Withdrawn);
    let forgotten = Outcome::Unknown(UnknownReason::Forgotten);
    let left = |outcome: &Outcome| vec![(Some(id(1, 1)), Some(outcome.clone()))];
    for (outcome, remains) in [
        (refused, vec![]),
        (withdrawn, vec![]),
        (lost.clone(), left(&lost)),
        (ended, left(&forgotten)),
        (forgotten.clone(), left(&forgotten)),
    ] {
        let mut script = Script::connected();
        let terms = script.impatient();
        let key = script.submit_on(acquire(4), terms);
        script.batch().expect("nothing is under way");
        script.disconnect();
        script.sweep(SECOND);
        script.poll(key).expect("it goes elsewhere");
        script.connect();
        assert_eq!(script.request(), Some(Request::Ask { operation: id(1, 1) }));
        script.asked(id(1, 1), outcome.clone());
        assert_eq!(script.left(), remains, "{outcome:?}");
        assert!(!script.book.has_outstanding() && script.book.calls.watched() == 0);
    }
}

#[test]
fn unsent_call_goes_elsewhere_from_a_silent_site_whatever_its_patience() {
    let mut script = Script::connected();
    script.submit(acquire(1));
    script.batch().expect("nothing is under way");
    let fresh = [script.submit(acquire(2)), script.submit(release(2)), script.submit(commit(10))];
    script.elsewhere = true;
    script.sweep(PATIENCE);
    for key in fresh {
        let finished = script.poll(key).expect("it goes elsewhere");
        assert!(matches!(finished.reply, Reply::NotTaken(NotTaken::Unreachable)) && finished.id.is_none());
    }
    script.answer(1, &[(1, granted(1))]);
    assert_eq!(script.batch(), None, "it does not leave from here any more");
    assert!(script.left().is_empty());
}

#[test]
fn acquire_at_one_region_does_not_go_elsewhere() {
    let mut script = Script::connected();
    let terms = Terms { pinned: true, ..script.impatient() };
    let key = script.submit_on(acquire(1), terms);
    script.batch().expect("nothing is under way");
    script.disconnect();
    script.sweep(5 * SECOND);
    assert!(script.poll(key).is_none());
    script.sweep(5 * SECOND);
    assert!(matches!(script.poll(key).expect("told").reply, Reply::InDoubt));
}

#[test]
fn release_that_left_is_handed_over_and_sent_under_its_id_until_it_is_answered() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let key = script.submit_on(release(4), terms);
    script.batch().expect("nothing is under way");
    script.disconnect();
    script.sweep(SECOND);
    let finished = script.poll(key).expect("told");
    assert!(matches!(finished.reply, Reply::HandedOver(given) if given == id(1, 1)));
    assert_eq!(script.left(), [(Some(id(1, 1)), None)]);

    // The site is back an hour later, cannot look at first, then has no room: never asked about, never under another id.
    script.sweep(3600 * SECOND);
    script.connect();
    for doubt in [UnknownReason::NotReady, UnknownReason::StorageFull] {
        let batch = script.batch().expect("the same again");
        assert_eq!((sequences(&batch), batch.low), (vec![1], 1));
        script.answer(1, &[(1, Outcome::Unknown(doubt))]);
        assert_eq!(script.request(), None, "not at once");
        script.sweep(UNHURRIED_PAUSE);
    }
    assert_eq!(sequences(&script.batch().expect("the same again")), [1]);
    script.answer(1, &[(1, Outcome::Released { amount: 4 })]);
    assert!(script.left().is_empty() && !script.book.has_work() && script.book.calls.watched() == 0);
}

/// A release by amount and one by grant were handed over while their site was away, and it is back.
fn both_handed_over() -> Script {
    let mut script = Script::connected();
    let terms = script.impatient();
    let keys = [
        script.submit_on(release(4), terms),
        script.submit_on(Command::ReleaseGrant { grant: grant(7), used: 0 }, terms),
    ];
    script.batch().expect("nothing is under way");
    script.disconnect();
    script.sweep(SECOND);
    assert!(keys.into_iter().all(|key| script.poll(key).is_some()), "handed over");
    script.connect();
    script
}

#[test]
fn handed_over_release_that_is_refused_for_good_is_repeated_only_by_grant() {
    let mut script = both_handed_over();
    assert_eq!(sequences(&script.batch().expect("both")), [1, 2]);
    let full = Outcome::Refused(Refusal::StorageFull);
    script.answer(1, &[(1, full.clone()), (2, full.clone())]);
    // Its caller may have asked, and released again.
    assert!(script.left().contains(&(Some(id(1, 1)), Some(full))));
    assert_eq!(script.request(), None, "not at once");
    script.sweep(UNHURRIED_PAUSE);
    assert_eq!(only(script.batch()), Operation::ReleaseGrant { grant: grant(7), used: 0 });
}

#[test]
fn what_is_given_back_by_amount_and_refused_is_asked_about_before_it_gets_another_id() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let key = script.submit_on(acquire(4), terms);
    script.batch().expect("nothing is under way");
    script.sweep(SECOND);
    script.poll(key).expect("it goes elsewhere");
    script.request().expect("the question");
    script.answer(1, &[(1, granted(1))]);
    assert_eq!(sequences(&script.batch().expect("the undoing")), [2]);
    script.disconnect();
    script.connect();
    assert_eq!(sequences(&script.batch().expect("in doubt")), [2]);
    let full = Outcome::Refused(Refusal::StorageFull);
    script.answer(1, &[(2, full.clone())]);
    assert_eq!(script.request(), Some(Request::Ask { operation: id(1, 2) }), "an earlier copy may be on its way");
    script.asked(id(1, 2), full);
    script.sweep(UNHURRIED_PAUSE);
    let batch = script.batch().expect("under another id");
    assert_eq!(sequences(&batch), [3]);
    script.answer(1, &[(3, Outcome::Released { amount: 4 })]);
    assert!(script.left().is_empty() && script.book.calls.watched() == 0);
}

#[test]
fn unsent_release_of_a_grant_is_handed_over_with_an_id_that_it_keeps() {
    let mut script = Script::connected();
    script.disconnect();
    let terms = Terms { pinned: true, ..script.impatient() };
    let keys: Vec<_> = (1..=2)
        .map(|number| script.submit_on(Command::ReleaseGrant { grant: grant(number), used: 0 }, terms))
        .collect();
    script.sweep(SECOND);
    for (key, sequence) in keys.into_iter().zip(1..) {
        let finished = script.poll(key).expect("told");
        assert!(matches!(finished.reply, Reply::HandedOver(given) if given == id(1, sequence)));
    }
    script.connect();
    let batch = script.batch().expect("both");
    assert_eq!(sequences(&batch), [1, 2]);
    script.answer(1, &[(1, Outcome::Released { amount: 1 }), (2, Outcome::Refused(Refusal::UnknownGrant))]);
    assert!(script.left().is_empty(), "the second was not out any more");
    let later = script.submit(acquire(1));
    assert_eq!(sequences(&script.batch().expect("a new id")), [3]);
    script.answer(1, &[(3, granted(9))]);
    assert!(script.poll(later).is_some());
}

#[test]
fn without_a_session_a_release_stays_with_its_caller() {
    let mut script = Script::new();
    let terms = Terms { pinned: true, ..script.impatient() };
    let key = script.submit_on(Command::ReleaseGrant { grant: grant(1), used: 0 }, terms);
    script.sweep(5 * SECOND);
    assert!(script.poll(key).is_none(), "it has no id that could be told");
    script.sweep(5 * SECOND);
    assert!(matches!(script.poll(key).expect("told").reply, Reply::NotTaken(NotTaken::DeadlinePassed)));
}

#[test]
fn handed_over_release_whose_site_lost_its_incarnation_is_not_repeated() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let keys = [
        script.submit_on(release(4), terms),
        script.submit_on(Command::ReleaseGrant { grant: grant(7), used: 0 }, terms),
    ];
    script.batch().expect("nothing is under way");
    script.disconnect();
    script.sweep(SECOND);
    assert!(keys.into_iter().all(|key| script.poll(key).is_some()), "handed over");
    script.book.connected(false);
    assert_eq!(sequences(&script.batch().expect("both")), [1, 2]);
    let lost = Outcome::Unknown(UnknownReason::IncarnationLost);
    script.answer(1, &[(1, lost.clone()), (2, lost.clone())]);
    // The grant went with its storage. Nobody knows of the release by amount: it may have been carried out.
    assert_eq!(script.left(), [(Some(id(1, 1)), Some(lost))]);
    assert!(!script.book.has_outstanding());
    assert_eq!(script.request(), None, "never released twice");
}

#[test]
fn handed_over_release_that_left_once_to_a_new_incarnation_is_repeated_under_a_new_id() {
    let mut script = Script::connected();
    script.disconnect();
    let terms = Terms { pinned: true, ..script.impatient() };
    let newer = GrantId { incarnation: Incarnation(2), ..grant(1) };
    let acts = [
        release(4),
        Command::ReleaseGrant { grant: newer, used: 0 },
        Command::ReleaseGrant { grant: grant(7), used: 0 },
    ];
    let keys = acts.map(|act| script.submit_on(act, terms));
    script.sweep(SECOND);
    assert!(keys.into_iter().all(|key| script.poll(key).is_some()), "handed over");
    script.book.connected(false);
    assert_eq!(sequences(&script.batch().expect("all three")), [1, 2, 3]);
    let lost = Outcome::Unknown(UnknownReason::IncarnationLost);
    script.answer(1, &[1, 2, 3].map(|sequence| (sequence, lost.clone())));
    assert_eq!(script.request(), Some(Request::Open));
    script.book.opened(Incarnation(2), SessionId(2));
    let batch = script.batch().expect("what its site has not seen");
    let operations: Vec<_> = batch.operations.into_iter().map(|submission| submission.operation).collect();
    let by_amount = Operation::Release { quota: "gpus".into(), amount: 4 };
    assert_eq!(operations, [by_amount, Operation::ReleaseGrant { grant: newer, used: 0 }]);
    script.answer(2, &[1, 2].map(|sequence| (sequence, Outcome::Released { amount: 1 })));
    assert!(script.left().is_empty() && script.book.calls.watched() == 0);
}

#[test]
fn handed_over_release_whose_session_ended_is_repeated_only_by_grant() {
    let mut script = both_handed_over();
    script.batch().expect("both");
    let ended = Outcome::Refused(Refusal::SessionEnded);
    script.answer(1, &[(1, ended.clone()), (2, ended.clone())]);
    let mut repeated = Vec::new();
    while let Some(request) = script.request() {
        match request {
            Request::Ask { operation } => script.asked(operation, ended.clone()),
            Request::Open => script.book.opened(INCARNATION, SessionId(2)),
            Request::Batch(batch) => repeated.extend(batch.operations),
            other => panic!("nobody asked for it: {other:?}"),
        }
    }
    let operations: Vec<_> = repeated.into_iter().map(|submission| submission.operation).collect();
    assert_eq!(operations, [Operation::ReleaseGrant { grant: grant(7), used: 0 }]);
    assert!(script.left().contains(&(Some(id(1, 1)), Some(Outcome::Unknown(UnknownReason::Forgotten)))));
}

#[test]
fn handed_over_release_that_its_caller_withdrew_is_over() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let key = script.submit_on(release(4), terms);
    script.batch().expect("nothing is under way");
    script.disconnect();
    script.sweep(SECOND);
    script.poll(key).expect("handed over");
    script.connect();
    script.batch().expect("the same again");
    // The caller has asked, was told that it never takes effect, and may release again: we must not.
    script.answer(1, &[(1, Outcome::Refused(Refusal::Withdrawn))]);
    assert_eq!(script.request(), None);
    assert!(script.left().is_empty() && !script.book.has_work());
}

#[test]
fn call_dropped_while_its_first_is_watched_both_are_given_back() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let first = script.submit_on(acquire(4), terms);
    script.batch().expect("nothing is under way");
    script.sweep(SECOND);
    script.poll(first).expect("it goes elsewhere");
    assert_eq!(script.request(), Some(Request::Ask { operation: id(1, 1) }));
    // The same site again: it was the only one that came back in time. The caller goes away as well.
    script.disconnect();
    script.connect();
    assert_eq!(script.request(), Some(Request::Ask { operation: id(1, 1) }));
    let second = script.submit_on(acquire(5), terms);
    script.batch().expect("it leaves");
    script.book.abandon(second, script.now);
    assert_eq!(script.request(), Some(Request::Ask { operation: id(1, 2) }));
    script.answer(1, &[(2, granted(2))]);
    script.asked(id(1, 1), granted(1));
    script.asked(id(1, 2), granted(2));
    let mut back = 0;
    while let Some(batch) = script.batch() {
        for submission in batch.operations {
            let Operation::Release { amount, .. } = submission.operation else { panic!("{submission:?}") };
            back += amount;
            script.answer(1, &[(submission.sequence, Outcome::Released { amount })]);
        }
    }
    assert_eq!(back, 4 + 5);
    assert!(script.left().is_empty() && script.book.calls.watched() == 0);
}

#[test]
fn closing_says_what_is_left_and_keeps_its_session() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let keys = [script.submit_on(acquire(4), terms), script.submit_on(release(2), terms)];
    script.batch().expect("nothing is under way");
    script.disconnect();
    script.sweep(SECOND);
    assert!(keys.into_iter().all(|key| script.poll(key).is_some()), "they do not wait");
    script.connect();
    assert_eq!(script.book.close(script.now, &mut script.wakers), 0, "its session can be asked");
    let left = script.left();
    assert!(
        [1, 2].iter().all(|sequence| left.contains(&(Some(id(1, *sequence)), None))) && left.len() == 2,
        "{left:?}"
    );
}

#[test]
fn watched_calls_are_bounded_and_the_next_ones_wait() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let keys: Vec<_> = (0..WATCHED + 10).map(|_| script.submit_on(acquire(1), terms)).collect();
    while let Some(request) = script.request() {
        match request {
            Request::Open => {
                script.sessions += 1;
                script.book.opened(INCARNATION, SessionId(script.sessions));
            }
            Request::Batch(batch) => script.answer(batch.session.0, &[]),
            other => panic!("nobody asked for it: {other:?}"),
        }
    }
    script.disconnect();
    script.sweep(SECOND);
    let gone = keys.iter().filter(|key| script.poll(**key).is_some()).count();
    assert_eq!((gone, script.book.calls.watched()), (WATCHED, WATCHED));
    script.sweep(10 * SECOND);
    let told = keys[WATCHED..].iter().filter_map(|key| script.poll(*key));
    assert_eq!(told.filter(|finished| matches!(finished.reply, Reply::InDoubt)).count(), 10);
}

#[test]
fn site_that_is_not_ready_is_as_good_as_silent_for_what_is_in_doubt() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let key = script.submit_on(acquire(1), terms);
    script.batch().expect("nothing is under way");
    script.answer(1, &[]);
    // It is drained: the stream ends, and the next one is told that it is not ready.
    script.disconnect();
    script.connect();
    script.batch().expect("in doubt");
    script.answer(1, &[(1, Outcome::Unknown(UnknownReason::NotReady))]);
    assert_eq!(script.request(), Some(Request::Ask { operation: id(1, 1) }));
    script.asked(id(1, 1), Outcome::Unknown(UnknownReason::NotReady));
    script.sweep(SECOND);
    assert!(matches!(script.poll(key).expect("it goes elsewhere").reply, Reply::LeftBehind));
}

#[test]
fn sent_call_without_patience_goes_nowhere_else_and_keeps_its_id() {
    let mut script = Script::connected();
    script.elsewhere = true;
    let keys = [script.submit(acquire(1)), script.submit(release(2)), script.submit(commit(10))];
    let first = script.batch().expect("nothing is under way");
    for _ in 0..3 {
        script.disconnect();
        script.sweep(2 * SECOND);
        script.connect();
        let batch = script.batch().expect("the same again");
        assert_eq!((batch.session, &batch.operations.len()), (first.session, &3));
        for (again, before) in batch.operations.iter().zip(&first.operations) {
            assert_eq!((again.sequence, &again.operation), (before.sequence, &before.operation));
        }
        assert!(keys.iter().all(|key| script.poll(*key).is_none()), "it was sent, so it stays");
    }
    script.answer(1, &[(1, granted(1)), (2, Outcome::Released { amount: 2 }), (3, Outcome::Committed { phases: 1 })]);
    let ids = keys.map(|key| script.poll(key).expect("answered").id);
    assert_eq!(ids, [1, 2, 3].map(|sequence| Some(id(1, sequence))));
}

#[test]
fn outcome_goes_to_the_caller_of_its_id_and_to_nobody_else() {
    let mut script = Script::connected();
    // Two sessions, so that sequences repeat.
    script.book.opened(INCARNATION, SessionId(2));
    let one = script.submit(stay(1));
    let batch = script.batch().expect("nothing is under way");
    let session = batch.session.0;
    script.answer(session, &[]);
    let other = script.submit(acquire(2));
    let batch = script.batch().expect("the site has answered");
    assert_eq!((batch.session.0, sequences(&batch)), (3 - session, vec![1]), "a session of the other kind");
    script.answer(3 - session, &[(1, granted(22))]);
    assert!(script.poll(one).is_none());
    let finished = script.poll(other).expect("answered");
    assert!(matches!(finished.reply, Reply::Answered(Outcome::Granted { grant, .. }) if grant.number == 22));

    // A late copy of that answer finds nobody, though the slot of its caller is used again.
    let later = script.submit(acquire(3));
    script.batch().expect("it leaves");
    script.answer(3 - session, &[(1, granted(22))]);
    script.asked(id(3 - session, 1), granted(22));
    assert!(script.poll(later).is_none() && script.poll(one).is_none());
    script.answer(session, &[(1, granted(11))]);
    let finished = script.poll(one).expect("answered");
    assert!(matches!(finished.reply, Reply::Answered(Outcome::Granted { grant, .. }) if grant.number == 11));
}

#[test]
fn low_mark_stays_at_what_is_left_behind_handed_over_or_in_doubt_until_it_is_settled() {
    let mut script = Script::connected();
    let terms = script.impatient();
    let keys = [script.submit_on(acquire(1), terms), script.submit_on(release(2), terms), script.submit(acquire(3))];
    assert_eq!(script.batch().expect("nothing is under way").operations.len(), 3);
    script.sweep(SECOND);
    assert!(script.poll(keys[0]).is_some() && script.poll(keys[1]).is_some() && script.poll(keys[2]).is_none());
    assert_eq!(script.request(), Some(Request::Ask { operation: id(1, 1) }));
    script.answer(1, &[]);
    let low = |script: &mut Script| {
        script.submit(acquire(9));
        let batch = script.batch().expect("it leaves");
        let sequence = batch.operations[0].sequence;
        script.answer(1, &[(sequence, granted(sequence))]);
        batch.low
    };
    assert_eq!(low(&mut script), 1, "the first may have been granted");
    script.answer(1, &[(1, Outcome::Refused(Refusal::Withdrawn))]);
    assert_eq!(low(&mut script), 2, "the release has no answer");
    script.answer(1, &[(2, Outcome::Released { amount: 2 })]);
    assert_eq!(low(&mut script), 3, "a caller waits");
    script.sweep(9 * SECOND);
    assert!(matches!(script.poll(keys[2]).expect("told").reply, Reply::InDoubt));
    assert_eq!(low(&mut script), 3, "its caller may ask");
    script.sweep(WATCH);
    assert!(low(&mut script) > 3);
}
