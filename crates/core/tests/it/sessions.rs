//! Scenarios of sessions: what a client was told of an id stays true, across crashes, full disks and the end of the session.

use slackline_core::api::{
    Answer, Batch, Hold, Operation, Outcome, Refusal, Request, Response, SESSION_WINDOW, Submission, UnknownReason,
};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{Incarnation, OperationId, SessionId, SiteId};
use slackline_core::machine::ClientId;
use slackline_core::object::{Change, Home, Part, Transaction, Value};
use slackline_core::session::RETENTION;

use crate::cluster::{Cluster, DELAY};
use crate::quotas::{acquire, create, granted, release};
use crate::txns::{bytes, key, value};

type Session = (SiteId, Incarnation, SessionId);

fn forgotten() -> Outcome {
    Outcome::Unknown(UnknownReason::Forgotten)
}

fn withdrawn() -> Outcome {
    Outcome::Refused(Refusal::Withdrawn)
}

/// Sends an operation under this number, whatever the client has sent before.
fn send(cluster: &mut Cluster, at: usize, (site, incarnation, session): Session, sequence: u64, operation: Operation) {
    let operations = vec![Submission { sequence, timeout: 60 * SECOND, operation }];
    cluster.request(at, 5, Request::Batch(Batch { site, incarnation, session, low: 1, operations }));
}

/// The newest answer about an operation that was sent so.
fn answer(cluster: &Cluster, sequence: u64) -> Option<Outcome> {
    let answers = cluster.responses.iter().rev().filter_map(|(_, client, response)| match response {
        Response::Batch { answers, .. } if *client == ClientId(5) => Some(answers),
        _ => None,
    });
    let mut found = answers.flatten().filter(|answer: &&Answer| answer.sequence == sequence);
    found.next().map(|answer| answer.outcome.clone())
}

/// Sends an operation again; what the site says at once.
fn again(cluster: &mut Cluster, at: usize, of: Session, sequence: u64, operation: Operation) -> Option<Outcome> {
    cluster.responses.clear();
    send(cluster, at, of, sequence, operation);
    answer(cluster, sequence)
}

fn ask(cluster: &mut Cluster, at: usize, (site, incarnation, session): Session, sequence: u64) -> Outcome {
    let operation = OperationId { site, incarnation, session, sequence };
    cluster.request(at, 6, Request::Ask { operation });
    match cluster.responses.pop() {
        Some((_, ClientId(6), Response::Asked { outcome, .. })) => outcome,
        other => panic!("{other:?}"),
    }
}

fn restart(cluster: &mut Cluster, at: usize) {
    cluster.kill(at);
    cluster.start(at);
    cluster.run(SECOND);
}

fn writes(names: &[(u16, &str)], change: Change) -> Operation {
    let home = |(region, name): &(u16, &str)| {
        let part = Part { writes: vec![((*name).to_owned(), change.clone())], ..Part::default() };
        Home { region: *region, part, ..Home::default() }
    };
    Operation::Commit(Box::new(Transaction {
        homes: names.iter().map(home).collect(),
        max_wait: SECOND,
        ..Transaction::default()
    }))
}

/// A session whose operation 1 added 5 to `n` at its site, and whose operation 2 is in doubt: both of its homes are cut off.
fn one_done_and_one_in_doubt() -> (Cluster, Session, Operation) {
    let mut cluster = Cluster::new(3);
    let add = writes(&[(0, "n")], Change::Add(5));
    let of = cluster.session(0);
    send(&mut cluster, 0, of, 1, add.clone());
    cluster.run(SECOND);
    assert_eq!(answer(&cluster, 1), Some(Outcome::Committed { phases: 1 }));
    cluster.cut = vec![(1, 0), (2, 0)];
    send(&mut cluster, 0, of, 2, writes(&[(1, "x"), (2, "y")], Change::Put(bytes("1"))));
    cluster.run(MILLISECOND);
    (cluster, of, add)
}

#[test]
fn session_that_ended_with_a_commit_in_doubt_stays_ended_after_a_restart() {
    for by_retention in [false, true] {
        let (mut cluster, of, add) = one_done_and_one_in_doubt();
        let (site, incarnation, session) = of;
        match by_retention {
            true => cluster.run(RETENTION + 90 * SECOND),
            false => cluster.request(0, 5, Request::Close { site, incarnation, session }),
        }
        assert_eq!(ask(&mut cluster, 0, of, 1), forgotten(), "before the restart");
        cluster.kill(0);
        cluster.start(0);
        cluster.cut.clear();
        cluster.run(20 * SECOND);
        assert_eq!(ask(&mut cluster, 0, of, 1), forgotten(), "by retention: {by_retention}");
        assert_eq!(again(&mut cluster, 0, of, 1, add), Some(forgotten()));
        cluster.run(SECOND);
        assert_eq!(value(&mut cluster, 0, &key(0, "n")), Some(Value::Counter(5)), "done once");
        let values = [value(&mut cluster, 1, &key(1, "x")), value(&mut cluster, 2, &key(2, "y"))];
        assert_eq!(values[0], values[1], "what was in doubt is settled: all or nothing");
    }
}

#[test]
fn session_that_lives_still_waits_for_its_commit_in_doubt_after_a_restart() {
    let (mut cluster, of, add) = one_done_and_one_in_doubt();
    cluster.kill(0);
    cluster.start(0);
    cluster.cut.clear();
    cluster.run(20 * SECOND);
    assert!(matches!(ask(&mut cluster, 0, of, 2), Outcome::Committed { .. } | Outcome::Aborted(_)));
    assert_eq!(again(&mut cluster, 0, of, 1, add), Some(Outcome::Committed { phases: 1 }));
}

#[test]
fn question_about_a_sequence_that_was_never_given_takes_no_room_from_those_that_were() {
    let (mut cluster, of, add) = one_done_and_one_in_doubt();
    cluster.cut.clear();
    for far in [1 << 20, u64::MAX] {
        assert_eq!(ask(&mut cluster, 0, of, far), forgotten());
    }
    assert_eq!(again(&mut cluster, 0, of, 1, add.clone()), Some(Outcome::Committed { phases: 1 }), "it is still known");
    assert_eq!(
        again(&mut cluster, 0, of, 3, add),
        Some(Outcome::Committed { phases: 1 }),
        "the next one is carried out"
    );
    restart(&mut cluster, 0);
    assert!(matches!(ask(&mut cluster, 0, of, 3), Outcome::Committed { .. }));

    // One that its client may have given, and that has not come, is refused permanently as before.
    assert_eq!(ask(&mut cluster, 0, of, SESSION_WINDOW), withdrawn());
}

/// Clients are promised ten minutes.
#[test]
fn outcome_is_known_for_ten_minutes_of_silence() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let of = cluster.session(1);
    send(&mut cluster, 1, of, 1, acquire(1));
    cluster.run(SECOND);
    let outcome = answer(&cluster, 1).expect("it ended");
    cluster.run(590 * SECOND);
    assert_eq!(ask(&mut cluster, 1, of, 1), outcome, "ten seconds before they are over");
}

/// All tokens are out, and operation 3 of a session at site 1 waits for some.
fn third_that_waits() -> (Cluster, Session) {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(0, acquire(90))));
    cluster.run(SECOND);
    let of = cluster.session(1);
    // A row that opens the session again after a crash.
    send(&mut cluster, 1, of, 1, acquire(0));
    send(&mut cluster, 1, of, 3, acquire(5));
    assert_eq!(answer(&cluster, 3), None, "it waits");
    (cluster, of)
}

#[test]
fn operation_withdrawn_because_the_window_moved_on_is_not_carried_out_after_a_crash() {
    let (mut cluster, of) = third_that_waits();
    send(&mut cluster, 1, of, 3 + SESSION_WINDOW, acquire(5));
    assert_eq!(answer(&cluster, 3 + SESSION_WINDOW), None, "it waits");
    assert_eq!(answer(&cluster, 3), Some(withdrawn()));
    restart(&mut cluster, 1);
    cluster.done(0, Operation::Release { quota: "gpus".into(), amount: 90 });
    assert_eq!(again(&mut cluster, 1, of, 3, acquire(5)), Some(forgotten()));
    cluster.run(5 * SECOND);
    assert_eq!(cluster.show(0, "gpus").in_use_max, 0);
}

#[test]
fn acquire_withdrawn_with_the_deletion_that_it_waited_for_takes_no_tokens() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    let of = cluster.session(1);

    // The deletion's round sets the tokens aside and hears from nobody, and the acquire waits for its end.
    cluster.cut = vec![(0, 1), (2, 1)];
    send(&mut cluster, 1, of, 1, Operation::Delete { quota: "gpus".to_owned() });
    send(&mut cluster, 1, of, 2, acquire(5));
    cluster.run(MILLISECOND);
    assert_eq!((answer(&cluster, 1), answer(&cluster, 2)), (None, None), "both wait");

    // The window leaves both behind at once.
    send(&mut cluster, 1, of, 2 + SESSION_WINDOW, acquire(1));
    assert_eq!((answer(&cluster, 1), answer(&cluster, 2)), (Some(withdrawn()), Some(withdrawn())));
    cluster.cut.clear();
    cluster.run(10 * SECOND);
    assert!(granted(&cluster.done(0, acquire(89))), "nothing but the last acquire has taken tokens");
}

#[test]
fn operation_told_to_be_forgotten_is_not_carried_out_after_a_crash() {
    for asks in [false, true] {
        let (mut cluster, of) = third_that_waits();
        send(&mut cluster, 1, of, 5 + SESSION_WINDOW, acquire(5));
        let told =
            if asks { ask(&mut cluster, 1, of, 4) } else { again(&mut cluster, 1, of, 4, acquire(1)).expect("told") };
        assert_eq!(told, forgotten());
        restart(&mut cluster, 1);
        cluster.done(0, Operation::Release { quota: "gpus".into(), amount: 90 });
        assert_eq!(again(&mut cluster, 1, of, 4, acquire(1)), Some(forgotten()), "asks: {asks}");
        cluster.run(5 * SECOND);
        assert_eq!(cluster.show(0, "gpus").in_use_max, 0);
    }
}

#[test]
fn commit_in_doubt_that_left_the_window_is_settled_and_stays_forgotten_after_a_crash() {
    let (mut cluster, of, add) = one_done_and_one_in_doubt();
    send(&mut cluster, 0, of, 2 + SESSION_WINDOW, writes(&[(1, "z")], Change::Put(bytes("2"))));
    // Its client asks, and hears then that nobody knows: told so at once it could take its only copy for one that was not carried out.
    assert_eq!(answer(&cluster, 2), Some(Outcome::Unknown(UnknownReason::Undecided)));
    assert_eq!(ask(&mut cluster, 0, of, 2), forgotten());
    let (site, incarnation, session) = of;
    for closes in [false, true] {
        if closes {
            cluster.request(0, 5, Request::Close { site, incarnation, session });
        }
        cluster.kill(0);
        cluster.start(0);
        cluster.cut.clear();
        cluster.run(20 * SECOND);
        let operation = writes(&[(1, "x"), (2, "y")], Change::Put(bytes("1")));
        assert_eq!(again(&mut cluster, 0, of, 2, operation), Some(forgotten()));
        assert_eq!(again(&mut cluster, 0, of, 1, add.clone()), Some(forgotten()));
        assert_eq!(value(&mut cluster, 0, &key(0, "n")), Some(Value::Counter(5)), "done once");
    }
}

#[test]
fn commit_told_to_be_undecided_that_left_the_window_opens_no_session_that_ended() {
    let (mut cluster, of, add) = one_done_and_one_in_doubt();
    cluster.run(90 * SECOND);
    assert_eq!(answer(&cluster, 2), Some(Outcome::Unknown(UnknownReason::Undecided)), "its client waits no more");
    send(&mut cluster, 0, of, 2 + SESSION_WINDOW, writes(&[(0, "z")], Change::Put(bytes("2"))));
    let (site, incarnation, session) = of;
    cluster.request(0, 5, Request::Close { site, incarnation, session });
    cluster.kill(0);
    cluster.start(0);
    cluster.cut.clear();
    cluster.run(20 * SECOND);
    assert_eq!(again(&mut cluster, 0, of, 1, add), Some(forgotten()));
    assert_eq!(value(&mut cluster, 0, &key(0, "n")), Some(Value::Counter(5)), "done once");
}

#[test]
fn window_keeps_exactly_its_length() {
    let mut cluster = Cluster::new(3);
    cluster.done(1, create(90));
    cluster.run(SECOND);
    let of = cluster.session(0);
    let first = again(&mut cluster, 0, of, 1, acquire(1)).expect("at once");
    send(&mut cluster, 0, of, SESSION_WINDOW, acquire(1));
    assert_eq!(again(&mut cluster, 0, of, 1, acquire(1)), Some(first));
    send(&mut cluster, 0, of, SESSION_WINDOW + 1, acquire(1));
    assert_eq!(again(&mut cluster, 0, of, 1, acquire(1)), Some(forgotten()));
    assert_eq!(cluster.show(0, "gpus").in_use_max, 3);
}

#[test]
fn operation_repeated_at_a_site_without_room_is_answered_from_its_record() {
    let mut cluster = Cluster::new(3);
    cluster.done(1, create(90));
    cluster.run(SECOND);
    let of = cluster.session(0);
    let first = again(&mut cluster, 0, of, 1, acquire(5)).expect("at once");
    cluster.hosts[0].node.as_mut().expect("runs").set_room(false);
    let batches = cluster.hosts[0].copy().1;
    let full = Outcome::Refused(Refusal::StorageFull);
    assert_eq!(again(&mut cluster, 0, of, 1, acquire(5)), Some(first.clone()));
    assert_eq!(ask(&mut cluster, 0, of, 1), first);
    assert_eq!(again(&mut cluster, 0, of, 2, acquire(5)), Some(full.clone()));
    assert_eq!(again(&mut cluster, 0, of, 2, acquire(5)), Some(full.clone()));
    // Whoever asks wants to know permanently, and that cannot be written down.
    assert_eq!(ask(&mut cluster, 0, of, 2), Outcome::Unknown(UnknownReason::StorageFull));
    assert_eq!(ask(&mut cluster, 0, of, 3), Outcome::Unknown(UnknownReason::StorageFull));
    assert_eq!(
        again(&mut cluster, 0, of, 2 + SESSION_WINDOW, acquire(5)),
        Some(Outcome::Unknown(UnknownReason::StorageFull))
    );
    assert_eq!(cluster.hosts[0].copy().1, batches, "nothing is written");

    // A refusal stays one when there is room again, and after a crash once it was told again.
    cluster.hosts[0].node.as_mut().expect("runs").set_room(true);
    assert_eq!(again(&mut cluster, 0, of, 2, acquire(5)), Some(full.clone()));
    restart(&mut cluster, 0);
    assert_eq!(again(&mut cluster, 0, of, 2, acquire(5)), Some(full.clone()));
    assert_eq!(ask(&mut cluster, 0, of, 2), full);
    assert_eq!(cluster.show(0, "gpus").in_use_max, 5);
}

#[test]
fn operation_that_waits_is_not_refused_when_it_is_repeated_at_a_site_without_room() {
    let (mut cluster, of) = third_that_waits();
    cluster.hosts[1].node.as_mut().expect("runs").set_room(false);
    assert_eq!(again(&mut cluster, 1, of, 3, acquire(5)), None);
    assert_eq!(ask(&mut cluster, 1, of, 3), Outcome::Unknown(UnknownReason::Undecided));
    assert_eq!(again(&mut cluster, 1, of, 4, acquire(5)), Some(Outcome::Refused(Refusal::StorageFull)));
    cluster.done(0, Operation::Release { quota: "gpus".into(), amount: 90 });
    cluster.run(5 * SECOND);
    assert!(granted(&answer(&cluster, 3).expect("told to whom repeated it")));
}

#[test]
fn site_that_is_not_ready_does_not_say_of_an_operation_that_it_was_refused() {
    let mut cluster = Cluster::new(3);
    cluster.done(1, create(90));
    cluster.run(SECOND);
    let of = cluster.session(0);
    assert!(granted(&again(&mut cluster, 0, of, 1, acquire(5)).expect("at once")));
    cluster.kill(0);
    cluster.start(0);
    let not_ready = Outcome::Unknown(UnknownReason::NotReady);
    assert_eq!(again(&mut cluster, 0, of, 1, acquire(5)), Some(not_ready.clone()));
    assert_eq!(ask(&mut cluster, 0, of, 1), not_ready);
    cluster.run(SECOND);
    assert!(granted(&again(&mut cluster, 0, of, 1, acquire(5)).expect("at once")));
    // New storage knows of no incarnation, and does not say that one is lost.
    cluster.kill(0);
    cluster.hosts[0].rows.clear();
    cluster.hosts[0].put_back(Default::default());
    cluster.start(0);
    assert_eq!(ask(&mut cluster, 0, of, 1), not_ready);
}

#[test]
fn site_that_drains_answers_what_it_knows_and_refuses_what_is_new_for_ever() {
    let mut cluster = Cluster::new(3);
    cluster.done(1, create(90));
    cluster.run(SECOND);
    let of = cluster.session(0);
    let first = again(&mut cluster, 0, of, 1, acquire(5)).expect("at once");
    cluster.request(0, 9, Request::Drain { within: 5 * SECOND });
    assert_eq!(again(&mut cluster, 0, of, 1, acquire(5)), Some(first));
    let refused = Outcome::Refused(Refusal::NotReady);
    assert_eq!(again(&mut cluster, 0, of, 2, acquire(5)), Some(refused.clone()));
    restart(&mut cluster, 0);
    assert_eq!(again(&mut cluster, 0, of, 2, acquire(5)), Some(refused));
    assert_eq!(cluster.show(0, "gpus").in_use_max, 5);
}

#[test]
fn operation_repeated_after_its_session_ended_is_refused_only_if_nothing_was_done_in_it() {
    let mut cluster = Cluster::new(3);
    cluster.done(1, create(90));
    cluster.run(SECOND);
    let of = cluster.session(0);
    let unused = (of.0, of.1, SessionId(of.2.0 + 1));
    assert!(granted(&again(&mut cluster, 0, of, 1, acquire(5)).expect("at once")));
    let (site, incarnation, session) = of;
    cluster.request(0, 5, Request::Close { site, incarnation, session });
    assert_eq!(again(&mut cluster, 0, of, 1, acquire(5)), Some(forgotten()));
    let ended = Outcome::Refused(Refusal::SessionEnded);
    assert_eq!(again(&mut cluster, 0, unused, 1, acquire(5)), Some(ended.clone()));
    restart(&mut cluster, 0);
    assert_eq!(again(&mut cluster, 0, of, 1, acquire(5)), Some(forgotten()));
    assert_eq!(again(&mut cluster, 0, unused, 1, acquire(5)), Some(ended));
    assert_ne!(cluster.session(0), unused, "its number is passed over");
}

/// The value that sets the limit is out when its site is cut off, and so many others wait by the time when it is sent again that a new one
/// would be refused.
#[test]
fn operation_whose_value_is_out_is_not_refused_when_it_is_sent_again() {
    let set = |limit| Operation::SetLimit { quota: "gpus".into(), limit };
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let sequence = cluster.submit(1, set(45));
    // Both others have reported; the value leaves, and no vote comes back.
    cluster.run(2 * DELAY + 1);
    cluster.cut = vec![(0, 1), (2, 1)];
    cluster.run(4 * SECOND);
    let undecided = Outcome::Unknown(UnknownReason::Undecided);
    assert_eq!(cluster.outcome(1, sequence), Some(undecided.clone()));

    let waiting: Vec<u64> = (0..256).map(|_| cluster.submit(1, set(45))).collect();
    let (site, incarnation, session) = cluster.hosts[1].session.expect("opened");
    let operations = vec![Submission { sequence, timeout: 2_000_000, operation: set(45) }];
    cluster.responses.clear();
    cluster.request(1, 9, Request::Batch(Batch { site, incarnation, session, low: 1, operations }));
    let answers = vec![Answer { sequence, outcome: undecided }];
    let told = (1, ClientId(9), Response::Batch { session, answers });
    assert!(cluster.responses.contains(&told), "{:?}", cluster.responses);
    assert!(waiting.iter().all(|other| cluster.outcome(1, *other).is_none()), "they wait");

    cluster.cut.clear();
    cluster.run(6 * SECOND);
    let outcome = ask(&mut cluster, 1, (site, incarnation, session), sequence);
    assert!(matches!(outcome, Outcome::LimitSet { limit: 45, .. }), "{outcome:?}");
}

/// An acquire stays in line for nearly as long as a session is kept, and its client loses the connection just before it is granted.
#[test]
fn outcome_of_an_operation_that_waited_is_kept_as_long_as_any_other() {
    let mut cluster = Cluster::new(1);
    cluster.done(0, create(5));
    assert!(granted(&cluster.done(0, acquire(5))));
    // What is released comes from another session.
    cluster.request(0, 5, Request::Open);
    let Some((_, _, Response::Opened { site, incarnation, session })) = cluster.responses.pop() else { panic!() };
    let of = (site, incarnation, session);
    let stays = Operation::Acquire { quota: "gpus".into(), amount: 5, hold: Hold::Counted, waits: true };
    let operations = vec![Submission { sequence: 100, timeout: 2 * RETENTION, operation: stays.clone() }];
    cluster.request(0, 5, Request::Batch(Batch { site, incarnation, session, low: 1, operations }));
    cluster.run(RETENTION - SECOND);
    assert_eq!(answer(&cluster, 100), None, "it stays in line");

    cluster.done(0, release(5));
    cluster.run(RETENTION - SECOND);
    let outcome = again(&mut cluster, 0, of, 100, stays).expect("it is answered from the record");
    assert!(granted(&outcome), "{outcome:?}");

    // What is asked about is in use, too.
    cluster.run(RETENTION - SECOND);
    assert!(granted(&ask(&mut cluster, 0, of, 100)));
    cluster.run(RETENTION - SECOND);
    assert!(granted(&ask(&mut cluster, 0, of, 100)));
    cluster.run(RETENTION + 90 * SECOND);
    assert_eq!(ask(&mut cluster, 0, of, 100), forgotten());
}

/// All directories are emptied, and the sites start again with sessions from this number on.
fn form_anew(cluster: &mut Cluster, first_session: u64) {
    cluster.first_session = first_session;
    for at in 0..3 {
        cluster.kill(at);
        cluster.hosts[at].put_back(Default::default());
        cluster.hosts[at].session = None;
    }
    cluster.run(SECOND);
    (0..3).for_each(|at| cluster.start(at));
    cluster.run(SECOND);
}

/// Sites and incarnations are those of before; the former client's session has a lower number than the new ones, or a far higher one.
#[test]
fn client_of_a_cluster_that_was_formed_anew_is_told_nothing_of_strangers() {
    let mut cluster = Cluster::new(3);
    for (first_session, is_told) in
        [(10_000_000, Outcome::Refused(Refusal::SessionEnded)), (5, Outcome::Unknown(UnknownReason::Forgotten))]
    {
        let former = cluster.session(0);
        assert_eq!(cluster.done(0, create(100)), Outcome::Created { limit: 100 });
        assert!(granted(&cluster.done(0, acquire(7))));
        form_anew(&mut cluster, first_session);

        // A stranger does the same, under the same sequences.
        let stranger = cluster.session(0);
        assert_eq!((stranger.0, stranger.1), (former.0, former.1));
        assert_eq!(stranger.2, SessionId(first_session));
        assert_eq!(cluster.done(0, create(100)), Outcome::Created { limit: 100 });
        assert!(granted(&cluster.done(0, acquire(7))));
        assert_eq!(again(&mut cluster, 0, former, 2, acquire(7)), Some(is_told), "it is not the stranger's");
        let asked = ask(&mut cluster, 0, former, 2);
        assert!(asked == withdrawn() || asked == forgotten(), "it is not the stranger's: {asked:?}");

        // No number is given twice after a restart, either.
        restart(&mut cluster, 0);
        assert!(cluster.session(0).2 > stranger.2);
        let shown = cluster.show(1, "gpus");
        assert_eq!((shown.in_use_min, shown.in_use_max), (7, 7));
    }
}

/// The session is closed while its acquire waits: nothing waits any more, so nothing holds up the end of the site.
#[test]
fn operation_withdrawn_with_its_session_does_not_hold_up_a_drain() {
    let (mut cluster, (site, incarnation, session)) = third_that_waits();
    cluster.request(1, 5, Request::Close { site, incarnation, session });
    cluster.run(SECOND);
    cluster.request(1, 9, Request::Drain { within: 60 * SECOND });
    cluster.run(3 * SECOND);
    let is_told = |(at, client, response): &(usize, ClientId, Response)| {
        (*at, *client) == (1, ClientId(9)) && *response == Response::Drained
    };
    assert!(cluster.responses.iter().any(is_told), "the site waits for what was withdrawn");
}
