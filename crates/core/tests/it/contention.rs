//! Several programs want the same objects: whose turn it is, and what is checked without locks. One rule a scenario.

use slackline_core::api::{Claim, Read, Reading, Request};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::object::{Cause, Change, ObjectKey, Origin, Seen};

use crate::cluster::{Cluster, DELAY};
use crate::txns::{Txn, begin, bytes, cause, commit, committed, end_read, fresh, key, value, warm};

/// A program whose first run began so long ago.
fn program(nonce: u64, age: u64) -> Origin {
    Origin { nonce, age }
}

/// Reads for a program that was aborted before, and bars younger ones from what it reads and perhaps is to write.
fn claim(cluster: &mut Cluster, at: usize, origin: Origin, key: &ObjectKey, writes: bool) {
    let writes = writes.then(|| key.clone()).into_iter().collect();
    let claim = Claim { origin, writes, again: true, bars: true };
    let read = Read {
        token: 7,
        gets: vec![key.clone()],
        fresh: true,
        timeout: 5 * SECOND,
        claim: Some(claim),
        ..Read::default()
    };
    cluster.request(at, 70, Request::Read(Box::new(read)));
}

fn seen(reading: Reading) -> Seen {
    reading.gets.into_iter().next().expect("asked for one").expect("read")
}

fn with_x(homes: usize) -> (Cluster, ObjectKey, Seen) {
    let mut cluster = Cluster::new(homes);
    let x = key(1, "x");
    assert_eq!(commit(&mut cluster, 1, Txn::new().put(&x, "1")), committed(1));
    let seen = fresh(&mut cluster, 2, &x).expect("read");
    (cluster, x, seen)
}

#[test]
fn program_that_was_aborted_goes_before_a_younger_one() {
    let (mut cluster, x, before) = with_x(3);
    claim(&mut cluster, 0, program(5, SECOND), &x, true);
    let old = seen(end_read(&mut cluster, 0));
    let young = Txn::new().of(program(6, 0)).read(&x, &before).put(&x, "young");
    assert_eq!(cause(&commit(&mut cluster, 2, young.clone())), Some(Cause::Busy), "it is the older one's turn");
    // Nor does one have a turn of which nothing is known.
    assert_eq!(cause(&commit(&mut cluster, 2, Txn::new().put(&x, "nobody"))), Some(Cause::Busy));
    let old = Txn::new().of(program(5, SECOND)).read(&x, &old).put(&x, "old");
    assert_eq!(commit(&mut cluster, 0, old), committed(1));
    let after = fresh(&mut cluster, 2, &x).expect("read");
    assert_eq!(commit(&mut cluster, 2, Txn::new().read(&x, &after).put(&x, "young")), committed(1), "its turn is over");
}

#[test]
fn older_program_is_not_barred_by_a_younger_one() {
    let (mut cluster, x, before) = with_x(3);
    claim(&mut cluster, 0, program(5, 0), &x, true);
    end_read(&mut cluster, 0);
    let old = Txn::new().of(program(6, SECOND)).read(&x, &before).put(&x, "old");
    assert_eq!(commit(&mut cluster, 2, old), committed(1));
}

#[test]
fn turn_of_a_client_that_is_gone_ends_by_itself() {
    let (mut cluster, x, _) = with_x(3);
    claim(&mut cluster, 0, program(5, SECOND), &x, false);
    end_read(&mut cluster, 0);
    cluster.kill(0);
    // Longer than ten round trips.
    cluster.run(25 * DELAY);
    assert_eq!(commit(&mut cluster, 2, Txn::new().put(&x, "2")), committed(1));
}

#[test]
fn younger_program_reads_when_the_older_one_has_had_its_turn() {
    let (mut cluster, x, _) = with_x(3);
    claim(&mut cluster, 0, program(5, SECOND), &x, true);
    let old = seen(end_read(&mut cluster, 0));
    claim(&mut cluster, 2, program(6, 0), &x, true);
    cluster.run(3 * DELAY);
    let old = Txn::new().of(program(5, SECOND)).read(&x, &old).put(&x, "old");
    assert_eq!(commit(&mut cluster, 0, old), committed(1));
    let young = seen(end_read(&mut cluster, 2));
    assert_eq!(young.value, Some(bytes("old")), "it waited for that");
    let young = Txn::new().of(program(6, 0)).read(&x, &young).put(&x, "young");
    assert_eq!(commit(&mut cluster, 2, young), committed(1));
}

#[test]
fn program_that_waits_reads_what_was_prepared_when_it_came() {
    let (mut cluster, x, _) = with_x(3);
    let y = key(2, "y");
    // Prepared at the home of `x`, and decided later.
    begin(&mut cluster, 0, Txn::new().put(&x, "2").put(&y, "2"));
    cluster.run(DELAY + 10 * MILLISECOND);
    claim(&mut cluster, 1, program(5, 0), &x, false);
    assert_eq!(seen(end_read(&mut cluster, 1)).value, Some(bytes("2")));
}

#[test]
fn reads_whose_turn_comes_while_storage_is_read_are_answered_by_the_next_tick() {
    let (mut cluster, x, _) = with_x(3);
    let y = key(1, "y");
    assert_eq!(commit(&mut cluster, 1, Txn::new().put(&y, "1")), committed(1));
    for key in [&x, &y] {
        claim(&mut cluster, 0, program(5, SECOND), key, true);
        end_read(&mut cluster, 0);
    }

    // The younger reads of both wait, one a little longer than the other; when the first is due, the second comes due
    // while the home reads what the first needs.
    cluster.storage_takes = 10 * MILLISECOND;
    claim(&mut cluster, 2, program(6, 0), &x, false);
    cluster.run(5 * MILLISECOND);
    claim(&mut cluster, 2, program(7, 0), &y, false);
    for _ in 0..2 {
        assert_eq!(seen(end_read(&mut cluster, 2)).value, Some(bytes("1")));
    }
}

#[test]
fn read_with_little_time_is_answered_though_it_is_not_its_turn() {
    let (mut cluster, x, _) = with_x(3);
    claim(&mut cluster, 0, program(5, SECOND), &x, true);
    end_read(&mut cluster, 0);
    let claim = Claim { origin: program(6, 0), writes: vec![x.clone()], again: true, bars: false };
    // A turn lasts for longer.
    let read = Read { token: 7, gets: vec![x], fresh: true, timeout: 5 * DELAY, claim: Some(claim), ..Read::default() };
    cluster.request(2, 70, Request::Read(Box::new(read)));
    assert_eq!(seen(end_read(&mut cluster, 2)).value, Some(bytes("1")));
}

#[test]
fn no_right_is_issued_over_what_is_claimed() {
    let (mut cluster, x, _) = with_x(3);
    cluster.run(20 * SECOND);
    warm(&mut cluster, 0, &x);
    cluster.run(20 * SECOND);
    claim(&mut cluster, 1, program(5, SECOND), &x, true);
    let mine = seen(end_read(&mut cluster, 1));
    fresh(&mut cluster, 0, &x).expect("read");
    let mut hasty = Txn::new().of(program(5, SECOND)).read(&x, &mine).put(&x, "2");
    hasty.0.max_wait = 0;
    assert_eq!(commit(&mut cluster, 1, hasty), committed(1));
}

/// What holds the write up ends in the same moment as what the read waits for, so both are done in one call.
#[test]
fn no_right_is_issued_over_what_is_overwritten_in_the_same_call() {
    let (mut cluster, x, _) = with_x(3);
    let y = key(1, "y");
    assert_eq!(commit(&mut cluster, 1, Txn::new().put(&y, "1")), committed(1));
    cluster.run(20 * SECOND);
    warm(&mut cluster, 0, &x);
    cluster.run(200 * MILLISECOND);

    // A write of y is decided when its coordinator's third message arrives; one of x waits for a right, for a round trip.
    let write_y = begin(&mut cluster, 0, Txn::new().put(&y, "2").put(&key(0, "z"), "2"));
    cluster.run(DELAY / 2);
    let claim = Claim { origin: program(6, 0), writes: Vec::new(), again: true, bars: false };
    let gets = vec![x.clone(), y.clone()];
    let read = Read { token: 7, gets, fresh: true, timeout: 5 * SECOND, claim: Some(claim), ..Read::default() };
    cluster.request(2, 70, Request::Read(Box::new(read)));
    cluster.run(DELAY / 2);
    let write_x = begin(&mut cluster, 1, Txn::new().put(&x, "2"));
    let found = end_read(&mut cluster, 2).gets;
    cluster.run(DELAY);
    assert_eq!((cluster.outcome(0, write_y), cluster.outcome(1, write_x)), (Some(committed(2)), Some(committed(1))));
    let found = found.into_iter().map(|seen| seen.expect("read")).collect::<Vec<_>>();
    let is_old = found[0].value == Some(bytes("1"));
    let read = commit(&mut cluster, 2, Txn::new().read(&x, &found[0]));
    assert!(!is_old || cause(&read) == Some(Cause::Changed), "a right over what was overwritten: {read:?}");
}

#[test]
fn transaction_that_only_reads_locks_nothing_and_leaves_nothing_behind() {
    let (mut cluster, x, _) = with_x(3);
    let y = key(2, "y");
    assert_eq!(commit(&mut cluster, 2, Txn::new().put(&y, "1")), committed(1));
    let (one, other) = (fresh(&mut cluster, 0, &x).expect("read"), fresh(&mut cluster, 0, &y).expect("read"));
    let read = || Txn::new().read(&x, &one).read(&y, &other);
    begin(&mut cluster, 0, read());
    cluster.run(DELAY + 10 * MILLISECOND);
    for home in [1, 2] {
        let node = cluster.hosts[home].node.as_ref().expect("runs");
        assert!(
            node.chapters().txns.is_settled() && node.chapters().txns.under_way() == (0, 0),
            "checked, and nothing kept"
        );
    }
    assert_eq!(commit(&mut cluster, 0, read()), committed(1));
    // What is prepared, and may have taken effect elsewhere, is in its way.
    let write = begin(&mut cluster, 1, Txn::new().put(&x, "2").put(&y, "2"));
    cluster.run(10 * MILLISECOND);
    assert_eq!(cause(&commit(&mut cluster, 0, read())), Some(Cause::Busy));
    cluster.run(10 * DELAY);
    assert_eq!(cluster.outcome(1, write), Some(committed(2)));
    assert_eq!(cause(&commit(&mut cluster, 0, read())), Some(Cause::Changed));
    assert_eq!(value(&mut cluster, 0, &y), Some(bytes("2")));
}

/// An object is put together with one of another home, and deleted together with the next change of that. It was absent before and is
/// after, but not while the other one was what the reader has found.
#[test]
fn transaction_that_only_reads_does_not_take_what_came_and_went_for_absent() {
    let mut cluster = Cluster::new(3);
    let (x, y) = (key(1, "x"), key(0, "y"));
    let absent = fresh(&mut cluster, 0, &x).expect("read");
    assert_eq!(commit(&mut cluster, 1, Txn::new().put(&x, "1").put(&y, "1")), committed(2));
    cluster.run(10 * DELAY);
    let one = fresh(&mut cluster, 0, &y).expect("read");

    // Its question to the home of x is lost, and asked again when both have changed.
    cluster.cut = vec![(0, 1)];
    let read = begin(&mut cluster, 0, Txn::new().read(&x, &absent).read(&y, &one));
    cluster.run(2 * MILLISECOND);
    cluster.cut.clear();
    let next = Txn::new().write(&x, Change::Delete).put(&y, "2");
    let next = begin(&mut cluster, 1, next);
    cluster.run(10 * SECOND);
    assert_ne!(cluster.outcome(0, read), Some(committed(1)), "x was never absent while y was 1");
    assert!(cause(&cluster.outcome(0, read).expect("answered")).is_some(), "{:?}", cluster.outcome(1, next));
}

/// Two homes judge under locks what was absent at one of them; the other one dies before it answers. So does the one that asks, perhaps, and is
/// back at once.
#[test]
fn transaction_that_only_reads_locks_nothing_past_its_deadline_though_a_home_is_down() {
    for restarts in [false, true] {
        let mut cluster = Cluster::new(3);
        let (x, y) = (key(1, "x"), key(2, "y"));
        assert_eq!(commit(&mut cluster, 2, Txn::new().put(&y, "1")), committed(1));
        let absent = fresh(&mut cluster, 0, &x).expect("read");
        let one = fresh(&mut cluster, 0, &y).expect("read");
        cluster.kill(2);
        let read = begin(&mut cluster, 0, Txn::new().read(&x, &absent).read(&y, &one));
        cluster.run(2 * DELAY);
        assert_eq!(cause(&commit(&mut cluster, 1, Txn::new().put(&x, "1"))), Some(Cause::Busy), "it is locked");
        if restarts {
            cluster.kill(0);
            cluster.start(0);
        }
        cluster.run(15 * SECOND);
        if !restarts {
            assert!(cause(&cluster.outcome(0, read).expect("answered")).is_some());
        }
        assert_eq!(commit(&mut cluster, 1, Txn::new().put(&x, "1")), committed(1), "locked until the other is back");
    }
}

#[test]
fn check_is_repeated_until_it_is_answered_or_the_time_is_up() {
    let (mut cluster, x, seen) = with_x(3);
    cluster.cut = vec![(0, 1)];
    let read = begin(&mut cluster, 0, Txn::new().read(&x, &seen));
    cluster.run(3 * DELAY);
    assert_eq!(cluster.outcome(0, read), None);
    cluster.cut.clear();
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(0, read), Some(committed(1)));
}

#[test]
fn reading_of_one_home_is_whole_unless_a_write_of_it_is_prepared() {
    let (mut cluster, x, _) = with_x(3);
    let (near, y) = (key(1, "near"), key(2, "y"));
    let read = |cluster: &mut Cluster, gets: &[ObjectKey]| {
        let read = Read { token: 7, gets: gets.to_vec(), fresh: true, timeout: SECOND, ..Read::default() };
        cluster.request(0, 70, Request::Read(Box::new(read)));
        end_read(cluster, 0).is_whole
    };
    assert!(read(&mut cluster, &[x.clone(), near.clone()]));
    assert!(!read(&mut cluster, &[x.clone(), y.clone()]), "of two homes");
    // Until rights over it are over, the write waits, and is not prepared.
    cluster.run(20 * SECOND);
    let write = begin(&mut cluster, 1, Txn::new().put(&x, "2").put(&y, "2"));
    assert_eq!(cluster.outcome(1, write), None, "it is under way");
    assert!(!read(&mut cluster, &[x.clone(), near]), "it may have taken effect");
}
