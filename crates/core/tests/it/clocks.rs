//! Clocks that are wrong for a while: what they spoil, and that it is over soon after they are set right.

use slackline_core::api::{Hold, Operation, Outcome, Readiness, Shown};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{Incarnation, OperationId};
use slackline_core::object::message::{Message, Prepare, Vote};
use slackline_core::object::{Abort, Cause, Change, ObjectKey, Part, Seen};
use slackline_core::peer::{Body, PeerMessage};
use slackline_core::right::POSTPONED;
use slackline_core::warranty::LEASE;

use crate::cluster::{Cluster, DELAY};
use crate::quotas::{create, granted};
use crate::txns::{Txn, asked_by, bytes, cause, commit, committed, get, key, prepare, tell, value, warm};

const HOUR: i64 = 3_600 * SECOND as i64;

fn put(keys: &[&ObjectKey], value: &str) -> Txn {
    keys.iter().fold(Txn::new(), |txn, key| txn.put(key, value))
}

fn restart(cluster: &mut Cluster, at: usize) {
    cluster.kill(at);
    cluster.start(at);
    cluster.run(2 * SECOND);
}

/// Commits of one and of two phases succeed that a site takes part in, at whichever site they are asked for.
fn assert_serves(cluster: &mut Cluster, at: usize, when: &str) {
    let here = key(at as u16, "served");
    let there = key((at as u16 + 1) % 3, "served");
    for asked in 0..3 {
        cluster.run(SECOND);
        assert_eq!(commit(cluster, asked, put(&[&here], when)), committed(1), "asked at {asked}, {when}");
        assert_eq!(commit(cluster, asked, put(&[&here, &there], when)), committed(2), "asked at {asked}, {when}");
    }
}

#[test]
fn site_whose_clock_was_an_hour_ahead_serves_within_seconds_when_it_is_set_right() {
    for ahead in [HOUR, 12 * SECOND as i64, -HOUR] {
        let mut cluster = Cluster::new(3);
        cluster.run(2 * SECOND);
        cluster.hosts[0].wall += ahead;
        // It may be refused, or not: not yet noticed.
        commit(&mut cluster, 0, put(&[&key(0, "x"), &key(1, "x")], "1"));
        cluster.run(20 * SECOND);
        cluster.hosts[0].wall -= ahead;
        cluster.run(2 * SECOND);
        assert_serves(&mut cluster, 0, "set right");
        restart(&mut cluster, 0);
        assert_serves(&mut cluster, 0, "started again");
    }
}

/// Nothing tells a site that has just started what the others' clocks show.
#[test]
fn site_that_started_on_a_clock_ahead_serves_when_it_is_set_right() {
    let mut cluster = Cluster::new(3);
    cluster.run(2 * SECOND);
    for at in 0..2 {
        cluster.kill(at);
    }
    cluster.hosts[0].wall += HOUR;
    for at in 0..2 {
        cluster.start(at);
    }
    // As soon as both serve: the others' clocks are not known yet.
    let txn = || put(&[&key(0, "x"), &key(1, "x")], "1").operation();
    let is_ready =
        |cluster: &Cluster| cluster.hosts[0].node.as_ref().is_some_and(|node| node.readiness() == Readiness::Ready);
    for _ in 0..100 {
        cluster.run(10 * MILLISECOND);
        if is_ready(&cluster) {
            cluster.submit(0, txn());
        }
    }
    assert!(is_ready(&cluster));
    cluster.run(20 * SECOND);
    cluster.hosts[0].wall -= HOUR;
    cluster.run(2 * SECOND);
    assert_serves(&mut cluster, 0, "set right");
    restart(&mut cluster, 0);
    assert_serves(&mut cluster, 0, "started again");
}

#[test]
fn new_storage_that_joined_on_a_clock_ahead_takes_writes_when_it_is_set_right() {
    for is_restarted in [false, true] {
        let mut cluster = Cluster::new(3);
        cluster.run(2 * SECOND);
        cluster.kill(0);
        cluster.hosts[0].put_back(Default::default());
        cluster.hosts[0].wall += HOUR;
        cluster.start(0);
        cluster.run(20 * SECOND);
        cluster.hosts[0].wall -= HOUR;
        if is_restarted {
            restart(&mut cluster, 0);
        }
        cluster.run(LEASE + SECOND);
        assert_serves(&mut cluster, 0, "the time is over in which something may rest on what was lost");
        restart(&mut cluster, 0);
        assert_serves(&mut cluster, 0, "started again");
    }
}

/// Its wall clock is behind when it begins, and set right before it has heard from the others what they show: the rest of the time is
/// waited for by what the site has been up.
#[test]
fn new_storage_that_starts_again_at_once_takes_no_writes_before_what_was_lost_is_over() {
    let mut cluster = Cluster::new(3);
    cluster.run(2 * SECOND);
    cluster.kill(0);
    cluster.hosts[0].put_back(Default::default());
    cluster.hosts[0].wall -= HOUR;
    let since = cluster.now;
    cluster.start(0);
    let is_ready =
        |cluster: &Cluster| cluster.hosts[0].node.as_ref().is_some_and(|node| node.readiness() == Readiness::Ready);
    while !is_ready(&cluster) {
        cluster.run(MILLISECOND);
    }
    cluster.kill(0);
    cluster.hosts[0].wall += HOUR;
    cluster.start(0);
    cluster.responses.clear();
    cluster.run(2 * SECOND);
    loop {
        let outcome = commit(&mut cluster, 0, put(&[&key(0, "x")], "1"));
        if outcome == committed(1) {
            break;
        }
        assert_eq!(cause(&outcome), Some(Cause::DeadlinePassed));
    }
    let waited = cluster.now - since;
    assert!(waited >= LEASE, "a write waits for what was lost for {waited} µs");

    // It is over: another start waits for nothing.
    restart(&mut cluster, 0);
    assert_eq!(commit(&mut cluster, 0, put(&[&key(0, "x")], "2")), committed(1));
}

/// Its holder is gone, so nobody can give the right up.
#[test]
fn write_does_not_wait_for_longer_than_a_right_lasts_when_the_clock_was_ahead() {
    let mut cluster = Cluster::new(3);
    let x = key(0, "x");
    commit(&mut cluster, 0, put(&[&x], "1"));
    cluster.run(20 * SECOND);
    warm(&mut cluster, 1, &x);
    cluster.hosts[0].wall += HOUR;
    warm(&mut cluster, 1, &x);
    cluster.kill(1);
    cluster.run(SECOND);
    cluster.hosts[0].wall -= HOUR;
    cluster.run(LEASE + 2 * SECOND);
    assert_eq!(commit(&mut cluster, 0, put(&[&x], "2")), committed(1));
    restart(&mut cluster, 0);
    assert_eq!(commit(&mut cluster, 0, put(&[&x], "3")), committed(1));
}

#[test]
fn site_that_distrusts_its_clock_sets_no_deadline_for_others() {
    for off in [HOUR, -HOUR] {
        let mut cluster = Cluster::new(3);
        cluster.run(2 * SECOND);
        cluster.hosts[0].wall += off;
        let two = commit(&mut cluster, 0, put(&[&key(0, "x"), &key(1, "x")], "1"));
        assert_eq!(cause(&two), Some(Cause::ClocksDisagree), "by {off}");
        let one = commit(&mut cluster, 0, put(&[&key(1, "x")], "1"));
        assert_eq!(cause(&one), Some(Cause::ClocksDisagree), "by {off}");
        assert_eq!(commit(&mut cluster, 0, put(&[&key(0, "x")], "2")), committed(1), "needs nobody's deadline");
        // Nor does anybody set one for it.
        cluster.run(2 * SECOND);
        let asked = commit(&mut cluster, 1, put(&[&key(0, "x")], "1"));
        assert_eq!(cause(&asked), Some(Cause::ClocksDisagree), "by {off}");
        assert_eq!(commit(&mut cluster, 1, put(&[&key(1, "x"), &key(2, "x")], "2")), committed(2));
        assert_eq!(value(&mut cluster, 1, &key(0, "x")), Some(bytes("2")), "it may still be read");
    }
}

/// A message of a transaction that was begun on a clock an hour ahead, which was set right since.
#[test]
fn participant_takes_no_deadline_that_is_too_far_ahead_now_or_later() {
    let mut cluster = Cluster::new(3);
    cluster.run(2 * SECOND);
    let id = asked_by(0);
    let part = Part { writes: vec![("x".to_owned(), Change::Put(bytes("1")))], ..Part::default() };
    let participants = vec![(Cluster::site(1), Incarnation(1)), (Cluster::site(2), Incarnation(1))];
    let deadline = cluster.time(1).wall + 60 * SECOND as i64;
    let prepare = |cluster: &mut Cluster| {
        let asks = Message::Prepare(Box::new(prepare(id, deadline, &participants, part.clone())));
        tell(cluster, 0, 1, asks)
    };
    prepare(&mut cluster);
    let is_free = |cluster: &mut Cluster, value: &str| {
        assert_eq!(commit(cluster, 1, put(&[&key(1, "x")], value)), committed(1), "{value}: nothing is prepared");
    };
    is_free(&mut cluster, "at once");
    cluster.run(55 * SECOND);
    // It was refused permanently, although its deadline is near by now.
    prepare(&mut cluster);
    is_free(&mut cluster, "later");
    restart(&mut cluster, 1);
    prepare(&mut cluster);
    is_free(&mut cluster, "started again");
    cluster.run(60 * SECOND);
    prepare(&mut cluster);
    is_free(&mut cluster, "past it");
    let (_, parts) = cluster.hosts[1].node.as_ref().expect("runs").chapters().txns.under_way();
    assert_eq!(parts, 0, "nothing is kept of it any more");
}

/// Its reads may rest on rights elsewhere that are over by now. Nothing is locked, but the answer counts as much.
#[test]
fn check_of_reads_is_judged_by_no_clock_that_was_set_back() {
    let mut cluster = Cluster::new(5);
    cluster.run(2 * SECOND);
    let id = asked_by(0);
    let part = Part { reads: vec![("x".to_owned(), 0)], ..Part::default() };
    let asked = prepare(id, cluster.time(1).wall + SECOND as i64, &[(Cluster::site(1), Incarnation(1))], part);
    let check = Message::Prepare(Box::new(Prepare { is_check: true, ..asked }));
    let votes = |cluster: &mut Cluster| {
        cluster.log = Some(Vec::new());
        tell(cluster, 0, 1, check.clone());
        let said = cluster.log.take().expect("it was made above").into_iter();
        let vote = |(_, _, message): (usize, _, PeerMessage)| match message.body {
            Body::Txn(message) => {
                if let Message::Vote { vote, .. } = *message {
                    Some(vote)
                } else {
                    None
                }
            }
            _ => None,
        };
        said.filter_map(vote).collect::<Vec<_>>()
    };
    assert_eq!(votes(&mut cluster), [Vote::Prepared], "in time");
    cluster.run(2 * SECOND);
    cluster.hosts[1].wall -= 10 * SECOND as i64;
    assert_eq!(votes(&mut cluster), [], "it is too late, and this site cannot tell");

    // The coordinator's clock is wrong by as much. Those of the others are not.
    cluster.hosts[0].wall -= 10 * SECOND as i64;
    cluster.run(2 * SECOND);
    let disagrees = Abort { site: Some(Cluster::site(1)), ..Abort::of(Cause::ClocksDisagree) };
    assert_eq!(votes(&mut cluster), [Vote::Refused(Box::new(disagrees))], "a majority says that it is too late");
}

/// A cluster whose first site has a right over an object of the second; the object, and what was seen of it.
fn with_a_right() -> (Cluster, ObjectKey, Seen) {
    let mut cluster = Cluster::new(3);
    let x = key(1, "x");
    commit(&mut cluster, 1, put(&[&x], "1"));
    cluster.run(20 * SECOND);
    let seen = warm(&mut cluster, 0, &x);
    assert_eq!(commit(&mut cluster, 0, Txn::new().read(&x, &seen)), committed(0));
    (cluster, x, seen)
}

/// A clock that is wrong for a moment ends rights, and what is read meanwhile cannot have new ones.
#[test]
fn right_is_renewed_once_the_clock_is_set_right() {
    let (mut cluster, x, seen) = with_a_right();
    cluster.hosts[0].wall += 30 * SECOND as i64;
    get(&mut cluster, 0, &x).expect("there is a copy");
    cluster.hosts[0].wall -= 30 * SECOND as i64;
    for _ in 0..150 {
        cluster.run(100 * MILLISECOND);
        get(&mut cluster, 0, &x).expect("there is a copy");
    }
    assert_eq!(
        commit(&mut cluster, 0, Txn::new().read(&x, &seen)),
        committed(0),
        "a right is renewed while it is in use"
    );
}

/// Rights hold if either pair of clocks is right: here the monotonic one of the holder stood still.
#[test]
fn right_is_not_relied_upon_after_a_suspension_longer_than_it() {
    let (mut cluster, x, seen) = with_a_right();
    cluster.suspend(0, 15 * SECOND, false);
    assert_eq!(commit(&mut cluster, 1, put(&[&x], "2")), committed(1));
    let read = cluster.submit(0, Txn::new().read(&x, &seen).operation());
    assert_ne!(cluster.outcome(0, read), Some(committed(0)), "it is over, and the object was written");
    cluster.run(2 * SECOND);
    assert_eq!(cause(&commit(&mut cluster, 0, Txn::new().read(&x, &seen))), Some(Cause::Changed));
}

fn hold(amount: i64, micros: u64) -> Operation {
    Operation::Acquire { quota: "gpus".into(), amount, hold: Hold::For(micros), waits: false }
}

fn in_use(cluster: &mut Cluster) -> (i64, i64) {
    let Shown { in_use_min, in_use_max, .. } = cluster.show(0, "gpus");
    (in_use_min, in_use_max)
}

#[test]
fn hold_that_fell_due_on_a_wall_clock_decades_behind_comes_back_a_minute_after_it_is_set_right() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(9));
    assert!(granted(&cluster.done(0, hold(3, 10 * SECOND))));
    cluster.run(9 * SECOND);
    let decades = 20 * 365 * 24 * HOUR;
    cluster.hosts[0].wall -= decades;
    cluster.run(5 * SECOND);
    assert_eq!(in_use(&mut cluster), (3, 3), "both clocks must say that it is over");
    cluster.hosts[0].wall += decades;
    cluster.run(61 * SECOND);
    assert_eq!(in_use(&mut cluster), (0, 0));
}

#[test]
fn hold_granted_on_a_wall_clock_decades_ahead_comes_back_two_minutes_late_at_most() {
    // Also where a third clock, which would tell which of two is wrong, is not known.
    for (is_restarted, is_third_gone) in [(false, false), (true, false), (true, true)] {
        let mut cluster = Cluster::new(3);
        cluster.done(0, create(9));
        cluster.run(2 * SECOND);
        let decades = 20 * 365 * 24 * HOUR;
        cluster.hosts[0].wall += decades;
        if is_restarted {
            // As soon as it serves: the others' clocks are not known yet.
            cluster.kill(0);
            if is_third_gone {
                cluster.kill(2);
            }
            cluster.start(0);
            let is_ready = |cluster: &Cluster| {
                cluster.hosts[0].node.as_ref().is_some_and(|node| node.readiness() == Readiness::Ready)
            };
            while !is_ready(&cluster) {
                cluster.run(MILLISECOND);
            }
            cluster.responses.clear();
            if is_third_gone {
                cluster.run(2 * SECOND);
                cluster.responses.clear();
            }
        }
        assert!(granted(&cluster.done(0, hold(3, 10 * SECOND))));
        if is_third_gone {
            cluster.start(2);
        }
        cluster.run(9 * SECOND);
        assert_eq!(in_use(&mut cluster), (3, 3), "not early");
        cluster.hosts[0].wall -= decades;
        cluster.run(SECOND + 2 * POSTPONED);
        assert_eq!(in_use(&mut cluster), (0, 0));
    }
}

/// Of three clocks no two agree: none of them says anything.
#[test]
fn hold_granted_while_no_clocks_agree_comes_back_in_time() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(9));
    cluster.hosts[1].wall += HOUR / 6;
    cluster.run(2 * SECOND);
    cluster.hosts[0].wall += HOUR;
    assert!(granted(&cluster.done(0, hold(3, 10 * SECOND))));
    cluster.run(9 * SECOND);
    assert_eq!(in_use(&mut cluster), (3, 3), "not early");
    (0..2).for_each(|site| cluster.hosts[site].wall = cluster.hosts[2].wall);
    cluster.run(SECOND + 2 * POSTPONED);
    assert_eq!(in_use(&mut cluster), (0, 0));
}

/// One clock is set right, and another is set wrong by as much, before the two were compared again.
#[test]
fn hold_granted_on_a_clock_that_was_set_to_another_comes_back_in_time() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(9));
    cluster.hosts[1].wall += HOUR;
    cluster.run(2 * SECOND);
    cluster.hosts[1].wall -= HOUR;
    cluster.hosts[0].wall += HOUR;
    assert!(granted(&cluster.done(0, hold(3, 10 * SECOND))));
    cluster.hosts[0].wall -= HOUR;
    cluster.run(9 * SECOND);
    assert_eq!(in_use(&mut cluster), (3, 3), "not early");
    cluster.run(2 * SECOND + 2 * POSTPONED);
    assert_eq!(in_use(&mut cluster), (0, 0));
}

#[test]
fn holds_that_fall_due_at_once_all_come_back_however_many() {
    for is_behind in [false, true] {
        let mut cluster = Cluster::new(3);
        cluster.done(0, create(9_000));
        for _ in 0..700 {
            let sequence = cluster.submit(0, hold(1, 10 * SECOND));
            assert!(granted(&cluster.outcome(0, sequence).expect("granted at once")));
        }
        assert_eq!(in_use(&mut cluster), (700, 700));
        if is_behind {
            cluster.hosts[0].wall -= HOUR;
        }
        cluster.run(11 * SECOND);
        assert_eq!(in_use(&mut cluster).0, if is_behind { 700 } else { 0 });
        cluster.hosts[0].wall = 1 << 50;
        cluster.run(62 * SECOND);
        assert_eq!(in_use(&mut cluster), (0, 0));
    }
}

#[test]
fn clock_that_is_set_wrong_when_another_is_set_right_is_not_believed() {
    let mut cluster = Cluster::new(3);
    let wrong = -6 * SECOND as i64;
    cluster.run(2 * SECOND);
    cluster.hosts[2].wall += wrong;
    cluster.run(3 * SECOND);
    // Between two exchanges: what each of them knows of the other seems to fit again.
    cluster.hosts[2].wall -= wrong;
    cluster.hosts[1].wall += wrong;
    let outcome = commit(&mut cluster, 2, put(&[&key(1, "x")], "1"));
    assert_eq!(cause(&outcome), Some(Cause::ClocksDisagree));
    cluster.hosts[1].wall -= wrong;
    cluster.run(2 * SECOND);
    assert_serves(&mut cluster, 1, "set right");
}

/// Sets the wall clocks of two sites off by as much.
fn step(cluster: &mut Cluster, sites: [usize; 2], by: i64) {
    sites.into_iter().for_each(|at| cluster.hosts[at].wall += by);
}

#[test]
fn two_clocks_that_are_wrong_by_as_much_prepare_nothing_after_its_deadline() {
    let mut cluster = Cluster::new(5);
    cluster.run(2 * SECOND);
    cluster.cut = vec![(4, 1)];
    let first = cluster.submit(4, put(&[&key(1, "x")], "1").operation());
    // The participant's clock is set back, then the coordinator's, which goes on asking. For all others the deadline, 2 s after it was
    // asked, is past when the two can speak again.
    let wrong = -6 * SECOND as i64;
    cluster.hosts[1].wall += wrong;
    cluster.run(SECOND);
    cluster.hosts[4].wall += wrong;
    cluster.run(SECOND + 2 * DELAY);
    cluster.cut.clear();
    cluster.run(10 * SECOND);
    let outcome = cluster.outcome(4, first);
    assert!(!matches!(outcome, Some(Outcome::Committed { .. })), "{outcome:?}");
    assert_eq!(get(&mut cluster, 1, &key(1, "x")).map(|seen| seen.value).ok().flatten(), None);

    step(&mut cluster, [1, 4], -wrong);
    cluster.run(2 * SECOND);
    assert_serves(&mut cluster, 1, "set right");
}

#[test]
fn two_clocks_that_are_wrong_by_as_much_are_not_trusted_while_another_site_is_down() {
    let mut cluster = Cluster::new(5);
    cluster.run(2 * SECOND);
    let wrong = -6 * SECOND as i64;
    step(&mut cluster, [1, 4], wrong);
    cluster.kill(3);
    cluster.run(5 * SECOND);
    let trusts =
        |cluster: &Cluster, at: usize| cluster.hosts[at].node.as_ref().expect("it is up").clock(cluster.time(at)).1;
    assert!(!trusts(&cluster, 1) && !trusts(&cluster, 4), "of five, two agree, and two do not");
    let outcome = commit(&mut cluster, 4, put(&[&key(1, "x")], "1"));
    assert_eq!(cause(&outcome), Some(Cause::ClocksDisagree));
    // They do where nobody disagrees, however few are up.
    step(&mut cluster, [1, 4], -wrong);
    cluster.kill(2);
    cluster.run(2 * SECOND);
    let outcome = commit(&mut cluster, 4, put(&[&key(1, "x")], "1"));
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
}

#[test]
fn two_clocks_that_are_wrong_by_as_much_are_not_trusted_where_only_they_reach_each_other() {
    for wrong in [HOUR, -6 * SECOND as i64] {
        let mut cluster = Cluster::new(5);
        cluster.run(2 * SECOND);
        step(&mut cluster, [1, 4], wrong);
        let cut = [0, 2, 3].into_iter().flat_map(|other| [1, 4].map(|at| [(at, other), (other, at)])).flatten();
        cluster.cut = cut.collect();
        cluster.run(8 * SECOND);
        let outcome = commit(&mut cluster, 4, put(&[&key(1, "x")], "1"));
        assert_eq!(cause(&outcome), Some(Cause::ClocksDisagree), "others were left behind {wrong}");
        // The others have not moved, and go on, though it is they who are three of five.
        assert_eq!(commit(&mut cluster, 0, put(&[&key(2, "x")], "1")), committed(1));
        cluster.cut.clear();
        step(&mut cluster, [1, 4], -wrong);
        cluster.run(5 * SECOND);
        assert_serves(&mut cluster, 1, "set right");
    }
}

#[test]
fn part_is_refused_at_once_where_the_clock_is_doubted() {
    let mut cluster = Cluster::new(5);
    cluster.run(2 * SECOND);
    // One is wrong, and the participant reaches only that one and the coordinator: it cannot tell which of the two is right.
    cluster.hosts[4].wall += HOUR;
    cluster.cut = [2, 3].into_iter().flat_map(|other| [(1, other), (other, 1)]).collect();
    cluster.run(6 * SECOND);
    let began = cluster.now;
    let outcome = commit(&mut cluster, 0, put(&[&key(1, "x"), &key(2, "y")], "1"));
    assert_eq!(cause(&outcome), Some(Cause::ClocksDisagree));
    assert!(cluster.now - began < SECOND, "it took {} us", cluster.now - began);
    // Nothing is left locked.
    assert_eq!(commit(&mut cluster, 0, put(&[&key(2, "y")], "2")), committed(1));
}

#[test]
fn clock_that_is_set_back_while_a_part_is_prepared_does_not_keep_it_locked() {
    let mut cluster = Cluster::new(3);
    cluster.run(2 * SECOND);
    let (x, y) = (key(1, "x"), key(2, "y"));
    let first = cluster.submit(0, put(&[&x, &y], "1").operation());
    cluster.run(DELAY + MILLISECOND);
    // The coordinator hears of one vote and not of the other, and then of nothing.
    cluster.cut = vec![(0, 1), (0, 2), (1, 0), (2, 0)];
    for at in 1..3 {
        cluster.hosts[at].wall -= HOUR;
    }
    cluster.run(20 * SECOND);
    for at in 1..3 {
        cluster.hosts[at].wall += HOUR;
    }
    cluster.cut.clear();
    cluster.run(10 * SECOND);
    assert!(matches!(cluster.outcome(0, first), Some(Outcome::Committed { .. } | Outcome::Unknown(_))));
    assert!(get(&mut cluster, 1, &x).is_ok_and(|seen| seen.value == Some(bytes("1"))));
    assert_serves(&mut cluster, 1, "set right");
}

/// A part that was refused is looked at when its site starts again, on a clock that was set ahead.
#[test]
fn part_is_not_forgotten_while_its_deadline_is_past_by_one_clock_alone() {
    let mut cluster = Cluster::new(3);
    cluster.run(2 * SECOND);
    let deadline = cluster.time(1).wall + 9 * SECOND as i64;
    let participants = [0, 1].map(|at| (Cluster::site(at), Incarnation(1)));
    let ask = |cluster: &mut Cluster, sequence: u64, deadline: i64, part: Part| {
        let id = OperationId { sequence, ..asked_by(1) };
        tell(cluster, 1, 0, Message::Prepare(Box::new(prepare(id, deadline, &participants, part))));
    };
    let parts = |cluster: &Cluster| cluster.hosts[0].node.as_ref().expect("runs").chapters().txns.under_way().1;
    ask(&mut cluster, 1, deadline, Part { reads: vec![("x".into(), 7)], ..Part::default() });
    assert_eq!(parts(&cluster), 1, "it was refused");
    cluster.hosts[0].wall += HOUR;
    restart(&mut cluster, 0);
    cluster.hosts[0].wall -= HOUR;
    cluster.run(2 * SECOND);
    assert_eq!(parts(&cluster), 1, "it is kept until its deadline");

    // What is to be prepared before that deadline still may be.
    let part = Part { writes: vec![("y".into(), Change::Put(bytes("1")))], ..Part::default() };
    ask(&mut cluster, 2, deadline - SECOND as i64, part);
    assert!(!cluster.hosts[0].node.as_ref().expect("runs").chapters().txns.is_settled(), "it is prepared");
}

/// Three clocks are wrong by the same amount, one after another, and never more than two at a time.
#[test]
fn clocks_that_agreed_at_different_times_are_no_majority() {
    let wrong = -6 * SECOND as i64;
    let mut cluster = Cluster::new(5);
    cluster.run(3 * SECOND);
    cluster.hosts[3].wall += wrong;
    cluster.hosts[4].wall += wrong;
    cluster.run(4 * SECOND);
    let is_trusted = |cluster: &Cluster| {
        let node = cluster.hosts[4].node.as_ref().expect("it is up");
        node.clock(cluster.time(4)).1
    };
    assert!(!is_trusted(&cluster), "two of five");

    // What site 3 shows now does not reach site 4 before it seems to agree with site 2.
    cluster.cut = vec![(3, 4)];
    cluster.hosts[3].wall -= wrong;
    cluster.hosts[2].wall += wrong;
    for _ in 0..35 {
        cluster.run(SECOND / 10);
        assert!(!is_trusted(&cluster), "two of five at any time");
    }
}
