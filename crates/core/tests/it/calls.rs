//! Calls of memoized functions, one rule a scenario. The function is one that gives the larger of two counters.

use slackline_core::api::{Operation, Outcome, SeatChange};
use slackline_core::clock::SECOND;
use slackline_core::config::IDLE_CALLS;
use slackline_core::draft::buffer::{ROOT, apply};
use slackline_core::draft::{Draft, Lookup, Recomputed};
use slackline_core::machine::Input;
use slackline_core::object::{Cause, Change, Dependency, GONE, Home, ObjectKey, Part, Transaction, Value};
use slackline_core::warranty::{LEASE, LONGEST, VOUCHED};

use crate::cluster::{Cluster, DELAY};
use crate::txns::{cause, committed, fresh as get, key, look, scan, value};

const MAX: &str = "\u{1}max(x,y)";
const TWICE: &str = "\u{1}twice(max(x,y))";

fn commit(cluster: &mut Cluster, at: usize, transaction: Transaction) -> Outcome {
    cluster.done(at, Operation::Commit(Box::new(transaction)))
}

fn set(cluster: &mut Cluster, at: usize, key: &ObjectKey, count: i64) -> Outcome {
    let mut draft = Draft::new();
    draft.buffer.write(ROOT, key.clone(), Change::Put(Value::Counter(count))).expect("a counter");
    commit(cluster, at, draft.to_commit(60 * SECOND))
}

/// What the transaction sees in a counter.
fn count(cluster: &mut Cluster, at: usize, draft: &mut Draft, key: &ObjectKey) -> i64 {
    if draft.snapshot.known(key).is_none() {
        let seen = get(cluster, at, key).expect("read");
        draft.snapshot.note_get(key, seen).expect("consistent");
    }
    let base = draft.snapshot.known(key).flatten();
    let change = draft.buffer.change(ROOT, key).expect("there");
    match change.map_or(Ok(base.clone()), |change| apply(base, &change)) {
        Ok(Some(Value::Counter(count))) => count,
        other => panic!("{other:?}"),
    }
}

/// Runs a function for its call, and closes its frame.
fn compute(cluster: &mut Cluster, at: usize, draft: &mut Draft, call: &ObjectKey) -> i64 {
    let frame = draft.open(call.clone());
    let result = if call.name == TWICE {
        let max = max();
        let result = result(cluster, at, draft, &max);
        draft.note_use(frame, &max);
        2 * result
    } else {
        let counts: Vec<i64> = [x(), y()].iter().map(|key| count(cluster, at, draft, key)).collect();
        [x(), y()].iter().for_each(|key| draft.note(frame, key));
        counts[0].max(counts[1])
    };
    draft.close(frame, result.to_le_bytes().to_vec());
    result
}

/// The result of a call, from its object or by running its function.
fn result(cluster: &mut Cluster, at: usize, draft: &mut Draft, call: &ObjectKey) -> i64 {
    match draft.lookup(call) {
        Lookup::Known(result) => i64::from_le_bytes(result.try_into().expect("eight bytes")),
        Lookup::Compute => compute(cluster, at, draft, call),
        Lookup::Fetch => {
            let seen = get(cluster, at, call).expect("read");
            draft.note_call(call, seen).expect("consistent");
            result(cluster, at, draft, call)
        }
        other => panic!("{other:?}"),
    }
}

fn x() -> ObjectKey {
    key(1, "x")
}

fn y() -> ObjectKey {
    key(2, "y")
}

/// Its call, which is kept at another home than what it reads.
fn max() -> ObjectKey {
    ObjectKey::new(0, MAX)
}

fn twice() -> ObjectKey {
    ObjectKey::new(2, TWICE)
}

/// A cluster in which 3 and 5 are written, and the draft in which a call was computed from them.
fn computed(call: &ObjectKey, expected: i64) -> (Cluster, Draft) {
    computed_among(3, call, expected)
}

fn computed_among(sites: usize, call: &ObjectKey, expected: i64) -> (Cluster, Draft) {
    let mut cluster = Cluster::new(sites);
    assert_eq!(set(&mut cluster, 1, &x(), 3), committed(1));
    assert_eq!(set(&mut cluster, 2, &y(), 5), committed(1));
    let mut draft = Draft::new();
    assert_eq!(result(&mut cluster, 0, &mut draft, call), expected);
    (cluster, draft)
}

/// A cluster in which both calls are registered: of 3 and 5.
fn registered() -> Cluster {
    let (mut cluster, draft) = computed(&twice(), 10);
    let proposal = draft.proposal(0).expect("both were computed").1;
    assert_eq!(commit(&mut cluster, 0, proposal), committed(2));
    cluster
}

/// The kept result of a call, if there is one.
fn kept(cluster: &mut Cluster, at: usize, call: &ObjectKey) -> Option<i64> {
    let mut draft = Draft::new();
    let seen = get(cluster, at, call).expect("read");
    draft.note_call(call, seen).expect("consistent");
    match draft.lookup(call) {
        Lookup::Known(result) => Some(i64::from_le_bytes(result.try_into().expect("eight bytes"))),
        _ => None,
    }
}

/// Writes a counter, recomputing what depends on it; how the recomputations ended, in their order.
fn write(cluster: &mut Cluster, at: usize, key: &ObjectKey, count: i64) -> (Outcome, Vec<Recomputed>) {
    let mut draft = Draft::new();
    draft.buffer.write(ROOT, key.clone(), Change::Put(Value::Counter(count))).expect("a counter");
    let mut recomputed = Vec::new();
    loop {
        let outcome = commit(cluster, at, draft.to_commit(60 * SECOND));
        let Outcome::Aborted(abort) = &outcome else { return (outcome, recomputed) };
        assert_eq!(abort.cause, Cause::Depended, "{abort}");
        draft.demand(abort.site.expect("a home says so").region, &abort.calls);
        while let Some(call) = draft.next_pending() {
            let seen = look(cluster, at, &call).expect("read");
            draft.note_call(&call, seen).expect("consistent");
            if draft.is_there(&call) == Some(false) {
                draft.settle_absent(&call);
                continue;
            }
            compute(cluster, at, &mut draft, &call);
            recomputed.push(draft.settle(&call));
        }
    }
}

#[test]
fn write_of_what_a_call_depends_on_is_refused_unless_it_covers_the_call() {
    let mut cluster = registered();
    let refused = set(&mut cluster, 0, &x(), 4);
    let Outcome::Aborted(abort) = refused else { panic!("{refused:?}") };
    assert_eq!((abort.cause, abort.key, abort.calls), (Cause::Depended, Some(x()), vec![max()]));
    assert_eq!(value(&mut cluster, 0, &x()), Some(Value::Counter(3)), "nothing is applied");
    // One that leaves the result as it is leaves its object alone, and those who rely on it.
    let before = get(&mut cluster, 1, &max()).expect("read").version;
    assert_eq!(write(&mut cluster, 0, &x(), 4), (committed(2), vec![Recomputed::Kept]));
    assert_eq!(get(&mut cluster, 1, &max()).expect("read").version, before);
    // One that changes it goes on to what was computed from it.
    assert_eq!(write(&mut cluster, 0, &x(), 9), (committed(2), vec![Recomputed::Changed, Recomputed::Changed]));
    assert_eq!((kept(&mut cluster, 1, &max()), kept(&mut cluster, 0, &twice())), (Some(9), Some(18)));
    // Whose code is not there is deleted, and nothing depends on it any more.
    let mut draft = Draft::new();
    draft.buffer.write(ROOT, y(), Change::Delete).expect("there");
    draft.demand(2, &[max()]);
    draft.revoke(&max());
    let Outcome::Aborted(abort) = commit(&mut cluster, 0, draft.to_commit(60 * SECOND)) else { panic!("refused") };
    assert_eq!((abort.cause, &abort.calls[..]), (Cause::Depended, &[twice()][..]));
    draft.demand(0, &abort.calls);
    draft.revoke(&twice());
    assert_eq!(commit(&mut cluster, 0, draft.to_commit(60 * SECOND)), committed(2));
    assert_eq!((kept(&mut cluster, 1, &max()), kept(&mut cluster, 0, &twice())), (None, None));
    assert_eq!(set(&mut cluster, 2, &y(), 1), committed(1));
}

/// A program finds no call, and writes what the function has read; before it commits somebody else registers the call.
#[test]
fn call_that_was_not_there_is_looked_for_again_when_it_depends_on_what_is_written() {
    let (mut cluster, mut draft) = computed(&max(), 5);
    let proposal = draft.proposal(0).expect("it was computed").1;
    assert_eq!(commit(&mut cluster, 1, proposal), committed(2));
    draft.buffer.write(ROOT, x(), Change::Put(Value::Counter(9))).expect("a counter");
    let Outcome::Aborted(abort) = commit(&mut cluster, 0, draft.to_commit(SECOND)) else { panic!("it depends on x") };
    assert_eq!((abort.cause, &abort.calls[..]), (Cause::Depended, &[max()][..]));
    draft.demand(1, &abort.calls);
    assert_eq!(draft.is_there(&max()), None);
    let seen = get(&mut cluster, 0, &max()).expect("read");
    draft.note_call(&max(), seen).expect("consistent");
    compute(&mut cluster, 0, &mut draft, &max());
    assert_eq!(draft.settle(&max()), Recomputed::Changed);
    cluster.run(SECOND);
    assert_eq!(commit(&mut cluster, 0, draft.to_commit(60 * SECOND)), committed(2));
    assert_eq!(kept(&mut cluster, 1, &max()), Some(9));
}

#[test]
fn call_is_registered_only_on_what_is_still_so() {
    let (mut cluster, draft) = computed(&max(), 5);
    assert_eq!(set(&mut cluster, 2, &y(), 6), committed(1));
    let refused = commit(&mut cluster, 0, draft.proposal(0).expect("it was computed").1);
    assert_eq!(cause(&refused), Some(Cause::Changed));
    assert_eq!(kept(&mut cluster, 0, &max()), None);
    cluster.run(SECOND);
    assert_eq!(set(&mut cluster, 1, &x(), 4), committed(1), "nothing depends on it");
}

#[test]
fn dependencies_survive_a_crash_of_their_home_and_of_the_call() {
    let mut cluster = registered();
    for at in 0..3 {
        cluster.kill(at);
        cluster.start(at);
    }
    cluster.run(4 * SECOND);
    assert_eq!(cause(&set(&mut cluster, 0, &y(), 1)), Some(Cause::Depended));
    let (outcome, recomputed) = write(&mut cluster, 1, &y(), 1);
    assert_eq!((outcome, recomputed), (committed(2), vec![Recomputed::Changed, Recomputed::Changed]));
    assert_eq!(kept(&mut cluster, 0, &twice()), Some(6));
}

#[test]
fn call_reads_as_nothing_when_what_it_rests_on_is_lost() {
    let mut cluster = registered();
    cluster.kill(1);
    cluster.hosts[1].rows.clear();
    cluster.hosts[1].put_back(Default::default());
    cluster.run(VOUCHED + SECOND);
    // Nobody knows whether its home has lost it already.
    let refused = get(&mut cluster, 0, &max()).expect_err("not vouched for");
    assert_eq!((refused.cause, refused.site), (Cause::Unreachable, Some(Cluster::site(1))));
    cluster.start(1);
    cluster.run(LEASE + SECOND);
    let seen = get(&mut cluster, 0, &max()).expect("known to be worth nothing");
    assert_eq!((seen.value, seen.version.number & GONE), (None, GONE));
    assert_eq!(kept(&mut cluster, 0, &twice()), None, "nor is what was computed from it");
    // It is computed again from what is written again, and put in its place.
    assert_eq!(set(&mut cluster, 1, &x(), 30), committed(1));
    let mut draft = Draft::new();
    assert_eq!(result(&mut cluster, 0, &mut draft, &max()), 30);
    let mut proposal = draft.proposal(0).expect("it was computed").1;
    let refused = commit(&mut cluster, 0, proposal.clone());
    let Outcome::Aborted(abort) = refused else { panic!("what was computed from it still stands there") };
    assert_eq!((abort.cause, &abort.calls[..]), (Cause::Depended, &[twice()][..]));
    Draft::revoke_in(&mut proposal, &abort.calls);
    cluster.run(SECOND);
    assert_eq!(commit(&mut cluster, 0, proposal), committed(2));
    assert_eq!((kept(&mut cluster, 0, &max()), kept(&mut cluster, 0, &twice())), (Some(30), None));
}

/// What a call is computed from is still there, and is written by somebody who cannot see the call any more: it is lost. What
/// was computed from the call may still be shown.
#[test]
fn lost_call_is_not_taken_for_one_that_never_was() {
    let mut cluster = registered();
    cluster.kill(0);
    cluster.hosts[0].rows.clear();
    cluster.hosts[0].put_back(Default::default());
    cluster.start(0);
    cluster.run(2 * SECOND);
    let refused = get(&mut cluster, 1, &max()).expect_err("it may have been there");
    assert_eq!((refused.cause, refused.site), (Cause::Unreachable, Some(Cluster::site(0))));
    cluster.run(LEASE);
    assert_eq!(get(&mut cluster, 1, &max()).map(|seen| seen.value), Ok(None));
    assert_eq!(kept(&mut cluster, 1, &twice()), None, "it rests on a home that has lost its storage");
    assert_eq!(write(&mut cluster, 1, &x(), 9), (committed(2), Vec::new()));
}

#[test]
fn home_that_lost_its_storage_changes_nothing_while_calls_may_rest_on_it() {
    let mut cluster = registered();
    cluster.kill(1);
    cluster.hosts[1].rows.clear();
    cluster.hosts[1].put_back(Default::default());
    cluster.start(1);
    cluster.responses.clear();
    let started = cluster.time(0).mono;
    cluster.run(2 * SECOND);
    loop {
        let outcome = set(&mut cluster, 1, &x(), 1);
        if outcome == committed(1) {
            break;
        }
        assert_eq!(cause(&outcome), Some(Cause::DeadlinePassed));
    }
    // As long as others use what it had vouched for, and then issue and prepare what rests on that.
    assert!(cluster.time(0).mono >= started + VOUCHED + LONGEST, "calls may still rest on it");
}

/// The home of a call is suspended, and its monotonic clock stands still. Meanwhile what the call rests on is lost, and written
/// again. Every wall clock is right.
#[test]
fn call_is_not_read_on_what_was_vouched_for_before_a_suspension() {
    let (mut cluster, draft) = computed_among(5, &max(), 5);
    let proposal = draft.proposal(0).expect("it was computed").1;
    assert_eq!(commit(&mut cluster, 0, proposal), committed(2));
    cluster.run(2 * SECOND);
    assert_eq!(kept(&mut cluster, 0, &max()), Some(5));

    cluster.kill(1);
    cluster.hosts[1].put_back(Default::default());
    cluster.start(1);
    cluster.suspend(0, 3 * SECOND + LEASE, false);
    let refused = get(&mut cluster, 0, &max()).map(|seen| seen.value.is_some());
    assert_eq!(refused.map_err(|abort| abort.cause), Err(Cause::Unreachable), "it may be lost by now, and is");
    cluster.run(2 * SECOND);
    assert_eq!(set(&mut cluster, 1, &x(), 30), committed(1));
    assert_eq!(kept(&mut cluster, 0, &max()), None);
}

/// Whoever finds nothing sees no version, and so nothing of the storage that was asked.
#[test]
fn call_that_found_nothing_in_a_span_is_kept_until_something_is_there() {
    let mut cluster = Cluster::new(3);
    let (call, mut draft) = (max(), Draft::new());
    let seen = get(&mut cluster, 0, &call).expect("read");
    draft.note_call(&call, seen).expect("consistent");
    let (span, rows) = scan(&mut cluster, 0, 1, "p/");
    draft.snapshot.note_scan(1, span.clone(), rows).expect("consistent");
    let frame = draft.open(call.clone());
    draft.note_span(frame, 1, &span);
    draft.close(frame, 0_i64.to_le_bytes().to_vec());
    let proposal = draft.proposal(0).expect("it was computed").1;
    assert_eq!(commit(&mut cluster, 0, proposal), committed(2));
    cluster.run(2 * SECOND);
    assert_eq!(kept(&mut cluster, 0, &call), Some(0), "its result is used again");
    assert_eq!(cause(&set(&mut cluster, 1, &key(1, "p/a"), 1)), Some(Cause::Depended));
}

#[test]
fn part_that_does_not_do_what_it_says_of_calls_is_refused() {
    let mut cluster = registered();
    let put = |name: &str, value: Value| (name.to_owned(), Change::Put(value));
    let at_home = |region, part| Home { region, part, ..Home::default() };
    let counter = || Value::Counter(1);
    let covers_nothing = at_home(1, Part { writes: vec![put("x", counter())], covers: vec![max()], ..Part::default() });
    let depends = vec![(Dependency::Name("z".into()), max())];
    let depends_unread = at_home(1, Part { depends: depends.clone(), ..Part::default() });
    let not_put = at_home(1, Part { reads: vec![("z".into(), 0)], depends, ..Part::default() });
    let no_derived = at_home(0, Part { writes: vec![put(MAX, counter())], ..Part::default() });
    let derived = at_home(0, Part { writes: vec![put("x", Value::Derived(Default::default()))], ..Part::default() });
    for home in [covers_nothing, depends_unread, not_put, no_derived, derived] {
        let told = format!("{home:?}");
        let transaction = Transaction { homes: vec![home], max_wait: 0, ..Transaction::default() };
        assert_eq!(cause(&commit(&mut cluster, 0, transaction)), Some(Cause::Malformed), "{told}");
    }
    assert_eq!(kept(&mut cluster, 0, &twice()), Some(10));
    // Spans do not show calls.
    let (_, found) = scan(&mut cluster, 0, 2, "");
    assert_eq!(found.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["y"]);
}

#[test]
fn call_that_nobody_uses_is_deleted_though_what_it_reads_is_written() {
    let mut cluster = registered();
    let evicted = |cluster: &Cluster| -> Vec<u64> {
        let nodes = cluster.hosts.iter().map(|host| host.node.as_ref().expect("it runs"));
        nodes.map(|node| node.metrics().calls_evicted).collect()
    };
    let steps = 2 * IDLE_CALLS / (60 * SECOND);
    for step in 0..steps as i64 {
        assert_eq!(kept(&mut cluster, 1, &twice()), Some(2 * (4 + step).max(5)));
        cluster.run(60 * SECOND);
        assert_eq!(write(&mut cluster, 1, &x(), 5 + step).1.len(), if step == 0 { 1 } else { 2 });
    }
    assert_eq!(evicted(&cluster), [0, 0, 0], "one is used, and the other one by that");
    // To compute them again for a write is no use.
    let mut recomputed = Vec::new();
    for step in 0..2 * steps as i64 {
        cluster.run(60 * SECOND);
        let (outcome, which) = write(&mut cluster, 1, &x(), 100 + step);
        assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
        recomputed.push(which.len());
    }
    assert!(recomputed.is_sorted_by(|before, after| before >= after), "{recomputed:?}");
    assert_eq!((recomputed.first(), recomputed.last()), (Some(&2), Some(&0)));
    assert_eq!(evicted(&cluster), [1, 0, 1]);
    // Who wants it computes it, and it is back.
    let mut draft = Draft::new();
    assert_eq!(result(&mut cluster, 1, &mut draft, &twice()), 2 * (99 + 2 * steps as i64));
    let proposal = draft.proposal(0).expect("both were computed").1;
    assert_eq!(commit(&mut cluster, 1, proposal), committed(2));
    assert_eq!(write(&mut cluster, 1, &x(), 1_000).1.len(), 2);
}

#[test]
fn call_is_not_deleted_before_it_could_have_been_used_since_its_home_started() {
    let mut cluster = registered();
    cluster.run(IDLE_CALLS - 20 * SECOND);
    cluster.kill(2);
    cluster.start(2);
    cluster.run(IDLE_CALLS - 20 * SECOND);
    assert_eq!(kept(&mut cluster, 2, &twice()), Some(10));
    cluster.run(IDLE_CALLS - 20 * SECOND);
    assert_eq!(kept(&mut cluster, 2, &twice()), Some(10), "it was used");
    cluster.run(2 * IDLE_CALLS);
    assert_eq!(kept(&mut cluster, 2, &twice()), None);
}

#[test]
fn notes_of_a_deleted_call_are_removed_though_nobody_writes_what_it_read() {
    let mut cluster = registered();
    let mut recomputed = Vec::new();
    for step in 0..40 {
        cluster.run(60 * SECOND);
        // The larger one stays the larger one, so the result stays.
        let (outcome, which) = write(&mut cluster, 1, &x(), step % 2);
        assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
        recomputed.push(which.len());
    }
    assert_eq!((recomputed[0], recomputed[39]), (1, 0), "{recomputed:?}");
    let rows = |cluster: &Cluster| -> usize {
        let notes = cluster.hosts.iter().flat_map(|host| host.rows.keys().filter(|key| key[0] == 9));
        notes.count()
    };
    assert_eq!(rows(&cluster), 0, "no home has notes left");
}

/// A home asks which calls are gone; one of them is registered again before the answer comes. What it depends on is noted by then.
#[test]
fn answer_that_a_call_is_gone_is_of_before_it_was_registered_again() {
    let mut cluster = registered();
    cluster.log = Some(Vec::new());
    cluster.run(3 * IDLE_CALLS);
    let mut late = cluster.log.take().expect("kept");
    late.retain(|(_, _, message)| format!("{:?}", message.body).contains("AbsentCalls"));
    assert!(!late.is_empty(), "the calls are deleted, and their notes were asked about");

    cluster.hosts.iter_mut().for_each(|host| host.session = None);
    let mut draft = Draft::new();
    assert_eq!(result(&mut cluster, 0, &mut draft, &twice()), 10);
    let proposal = draft.proposal(0).expect("both were computed").1;
    assert_eq!(commit(&mut cluster, 0, proposal), committed(2));
    cluster.run(SECOND);
    for (to, from, message) in late {
        cluster.feed(to, Input::Message { from, message });
    }
    let refused = set(&mut cluster, 0, &x(), 4);
    assert!(matches!(&refused, Outcome::Aborted(abort) if abort.cause == Cause::Depended), "{refused:?}");
}

#[test]
fn writer_of_what_many_deleted_calls_read_need_not_look_for_them() {
    let mut cluster = Cluster::new(3);
    assert_eq!(set(&mut cluster, 1, &x(), 3), committed(1));
    for number in 0..300 {
        let mut draft = Draft::new();
        let call = ObjectKey::new(0, format!("\u{1}f({number})"));
        let seen = get(&mut cluster, 0, &call).expect("read");
        draft.note_call(&call, seen).expect("consistent");
        let frame = draft.open(call.clone());
        count(&mut cluster, 0, &mut draft, &x());
        draft.note(frame, &x());
        draft.close(frame, Vec::new());
        let proposal = draft.proposal(0).expect("computed").1;
        assert_eq!(commit(&mut cluster, 0, proposal), committed(2));
    }
    cluster.run(2 * IDLE_CALLS);
    cluster.hosts.iter_mut().for_each(|host| host.session = None);
    let (outcome, recomputed) = write(&mut cluster, 1, &x(), 7);
    assert_eq!((outcome, recomputed.len()), (committed(1), 0), "no call is in the way");
}

#[test]
fn note_stays_while_its_call_is_there_or_its_home_is_silent() {
    let mut cluster = registered();
    cluster.cut = vec![(0, 1), (1, 0)];
    for _ in 0..30 {
        cluster.run(60 * SECOND);
        assert_eq!(kept(&mut cluster, 2, &twice()), Some(10));
    }
    cluster.cut.clear();
    cluster.run(SECOND);
    cluster.hosts.iter_mut().for_each(|host| host.session = None);
    let (outcome, recomputed) = write(&mut cluster, 1, &x(), 7);
    assert_eq!((outcome, &recomputed[..]), (committed(2), &[Recomputed::Changed, Recomputed::Changed][..]));
}

#[test]
fn what_a_call_depends_on_at_a_home_is_changed_by_one_at_a_time() {
    let mut cluster = Cluster::new(3);
    let other = key(1, "other");
    assert_eq!(set(&mut cluster, 1, &x(), 3), committed(1));
    assert_eq!(set(&mut cluster, 1, &other, 4), committed(1));
    // A call that depends on one name, or on another one.
    let register = |cluster: &mut Cluster, at: usize, read: &ObjectKey| {
        let mut draft = Draft::new();
        let seen = get(cluster, at, &max()).expect("read");
        draft.note_call(&max(), seen.clone()).expect("consistent");
        let seen_there = (seen.version.incarnation, seen.version.number);
        let frame = draft.open(max());
        let result = count(cluster, at, &mut draft, read);
        draft.note(frame, read);
        draft.close(frame, result.to_le_bytes().to_vec());
        let mut proposal = draft.proposal(0).expect("computed").1;
        // It replaces what it saw.
        let home = proposal.homes.iter_mut().find(|home| home.region == 0).expect("the call's home");
        home.incarnation = seen_there.0;
        home.part.reads = vec![(MAX.to_owned(), seen_there.1)];
        proposal
    };
    let first = register(&mut cluster, 2, &x());
    let first = cluster.submit(2, Operation::Commit(Box::new(first)));
    cluster.run(DELAY + DELAY / 2);
    // Its decision does not reach the home of what it read.
    cluster.cut = vec![(2, 1), (1, 2)];
    cluster.run(4 * DELAY);
    assert_eq!(cluster.outcome(2, first), Some(committed(2)));
    let second = register(&mut cluster, 0, &other);
    let outcome = commit(&mut cluster, 0, second);
    let Outcome::Aborted(abort) = outcome else { panic!("it could be carried out before the first: {outcome:?}") };
    assert_eq!((abort.cause, abort.key), (Cause::Busy, Some(max())));
    cluster.cut.clear();
    cluster.run(10 * SECOND);
    let second = register(&mut cluster, 0, &other);
    assert_eq!(commit(&mut cluster, 0, second), committed(2));
    cluster.run(4 * DELAY);
    assert_eq!(set(&mut cluster, 1, &x(), 5), committed(1), "nothing depends on it any more");
    assert_eq!(cause(&set(&mut cluster, 1, &other, 5)), Some(Cause::Depended));
}

/// Nobody can tell any more whether the call is there. Until a lease is over, somebody may rely on it.
#[test]
fn call_whose_home_is_gone_for_good_holds_no_write_up_for_long() {
    let (mut cluster, draft) = computed(&max(), 5);
    let proposal = draft.proposal(0).expect("it was computed").1;
    assert_eq!(commit(&mut cluster, 0, proposal), committed(2));
    cluster.run(SECOND);
    assert_eq!(cause(&set(&mut cluster, 1, &x(), 4)), Some(Cause::Depended));
    cluster.kill(0);
    cluster.run(10 * SECOND);
    let lost = Operation::Seat { site: Cluster::site(0), change: SeatChange::Lost, label: "site 0".into() };
    assert!(matches!(cluster.done(1, lost), Outcome::Seated { .. }));
    assert_eq!(cause(&set(&mut cluster, 1, &x(), 4)), Some(Cause::Depended), "somebody may rely on it");
    cluster.run(LEASE + SECOND);
    assert_eq!(set(&mut cluster, 1, &x(), 4), committed(1));

    // Nor does it after a restart.
    cluster.kill(2);
    cluster.start(2);
    cluster.run(LEASE + SECOND);
    assert_eq!(set(&mut cluster, 2, &y(), 4), committed(1));
}
