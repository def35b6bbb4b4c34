//! Scenarios of transactions of which there are very many, or very large ones; named subject_condition_outcome.

use slackline_core::api::{Outcome, Read, Reading, Request, Response};
use slackline_core::clock::SECOND;
use slackline_core::id::{Incarnation, OperationId};
use slackline_core::machine::Input;
use slackline_core::object::message::Message;
use slackline_core::object::{Cause, Change, ObjectKey, Part, Value};

use crate::cluster::Cluster;
use crate::txns::{Txn, asked_by, commit, committed, end_read, key, prepare, tell};

/// The participant is slow, and heard of all the same. What it is to prepare would otherwise be as much as clients like.
#[test]
fn what_participants_are_to_prepare_is_bounded_by_bytes() {
    let mut cluster = Cluster::new(2);
    cluster.run(SECOND);
    cluster.cut = vec![(0, 1)];
    let value = Value::Bytes(vec![0u8; 250_000].into());
    let write = |from: usize| {
        let put = |txn: Txn, at| txn.write(&key(1, &format!("{from}-{at}")), Change::Put(value.clone()));
        (0..4).fold(Txn::new(), put).operation()
    };
    let writes: Vec<u64> = (0..300).map(|from| cluster.submit(0, write(from))).collect();
    let mut overloaded = |write| match cluster.outcome(0, write) {
        Some(Outcome::Aborted(abort)) if abort.cause == Cause::Overloaded => 1,
        None => 0,
        other => panic!("{other:?}"),
    };
    let refused: usize = writes.iter().map(|write| overloaded(*write)).sum();
    assert!((20..50).contains(&refused), "{refused} of 300 MB are beyond 256 MiB");

    // What is undecided ends by and by, and then there is room.
    cluster.run(20 * SECOND);
    cluster.cut.clear();
    cluster.run(20 * SECOND);
    let again: Vec<u64> = (300..400).map(|from| cluster.submit(0, write(from))).collect();
    cluster.run(10 * SECOND);
    assert!(again.into_iter().all(|write| cluster.outcome(0, write) == Some(committed(1))));
}

/// Another home is up and does not answer. What was found of the reads that wait for it would otherwise be as much as clients like.
#[test]
fn what_reads_hold_that_wait_for_another_home_is_bounded_by_bytes() {
    let mut cluster = Cluster::new(2);
    cluster.run(SECOND);
    let large = Value::Bytes(vec![0u8; 250_000].into());
    let keys: Vec<ObjectKey> = (0..30).map(|at| key(0, &format!("{at}"))).collect();
    for some in keys.chunks(4) {
        let write = some.iter().fold(Txn::new(), |txn, key| txn.write(key, Change::Put(large.clone())));
        assert_eq!(commit(&mut cluster, 0, write), committed(1));
    }
    cluster.cut = vec![(0, 1)];
    let gets: Vec<ObjectKey> = keys.iter().cloned().chain([key(1, "x")]).collect();
    let read = |cluster: &mut Cluster| {
        let read = Read { token: 7, gets: gets.clone(), fresh: true, timeout: 5 * SECOND, ..Read::default() };
        cluster.request(0, 70, Request::Read(Box::new(read)));
    };
    cluster.responses.clear();
    (0..50).for_each(|_| read(&mut cluster));
    let refused: Vec<Reading> = std::mem::take(&mut cluster.responses)
        .into_iter()
        .map(|(_, _, response)| match response {
            Response::Read(reading) => *reading,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!((10..20).contains(&refused.len()), "{} of 375 MB are beyond 256 MiB", refused.len());
    for Reading { gets, .. } in refused {
        let (last, found) = gets.split_last().expect("31");
        assert_eq!(last.as_ref().map_err(|abort| abort.cause), Err(Cause::Overloaded));
        assert!(found.iter().all(Result::is_ok), "what was found is told");
    }

    // Those that waited are answered when their time is up, and then there is room.
    cluster.run(6 * SECOND);
    assert!(cluster.responses.len() > 30);
    cluster.cut.clear();
    cluster.responses.clear();
    read(&mut cluster);
    cluster.run(SECOND);
    assert!(end_read(&mut cluster, 0).gets.iter().all(Result::is_ok));
}

/// Hundreds of parts were refused, and are to be forgotten now. They do not come few by few before everything else that is due.
#[test]
fn parts_that_are_to_be_forgotten_hold_up_nothing_else() {
    let mut cluster = Cluster::new(2);
    cluster.run(2 * SECOND);
    let participants = [0, 1].map(|at| (Cluster::site(at), Incarnation(1)));
    let deadline = cluster.time(0).wall + SECOND as i64;
    for sequence in 1..=400 {
        let id = OperationId { sequence, ..asked_by(1) };
        let stale = Part { reads: vec![("x".into(), 7)], ..Part::default() };
        tell(&mut cluster, 1, 0, Message::Prepare(Box::new(prepare(id, deadline, &participants, stale))));
    }
    let parts = |cluster: &Cluster| cluster.hosts[0].node.as_ref().expect("runs").chapters().txns.under_way().1;
    assert_eq!(parts(&cluster), 400, "each is kept until its deadline would refuse it");
    cluster.stand_still(2 * SECOND);
    (0..3).for_each(|_| cluster.feed(0, Input::Tick));
    assert_eq!(parts(&cluster), 0);
}
