//! Scenarios of requests that stay in line, named subject_condition_outcome.

use slackline_core::api::{Hold, Operation, Outcome, Refusal, Request, Response};
use slackline_core::clock::SECOND;
use slackline_core::id::OperationId;
use slackline_core::machine::ClientId;

use crate::cluster::Cluster;
use crate::quotas::{acquire, create, granted, release};

/// The time for which a request of [`Cluster::submit`] may wait.
const TIME: u64 = 2 * SECOND;

fn in_line(amount: i64) -> Operation {
    Operation::Acquire { quota: "gpus".into(), amount, hold: Hold::Counted, waits: true }
}

fn is_exhausted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused(Refusal::Exhausted { .. }))
}

/// Three sites and a quota of 30 tokens, all of which are in use: 20 were granted at the first site.
fn cluster_in_full_use() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(30));
    assert!(granted(&cluster.done(0, acquire(20))));
    assert!(granted(&cluster.done(1, acquire(10))));
    cluster.run(SECOND);
    cluster
}

#[test]
fn acquire_in_line_is_granted_what_comes_back_at_another_site() {
    let mut cluster = cluster_in_full_use();
    let first = cluster.submit(0, in_line(5));
    let second = cluster.submit(0, in_line(3));
    assert!(is_exhausted(&cluster.done(0, acquire(1))), "one that does not stay is refused, as ever");
    cluster.run(SECOND / 2);
    assert_eq!((cluster.outcome(0, first), cluster.outcome(0, second)), (None, None));

    // Enough for the first, and not for both: it is given all the same.
    assert_eq!(cluster.done(2, release(5)), Outcome::Released { amount: 5 });
    cluster.run(SECOND / 4);
    assert!(cluster.outcome(0, first).is_some_and(|outcome| granted(&outcome)));
    assert_eq!(cluster.outcome(0, second), None);
    assert_eq!(cluster.done(1, release(3)), Outcome::Released { amount: 3 });
    cluster.run(SECOND / 4);
    assert!(cluster.outcome(0, second).is_some_and(|outcome| granted(&outcome)));
    cluster.run(5 * SECOND);
    assert_eq!(cluster.show(1, "gpus").in_use_max, 30);
}

#[test]
fn acquire_in_line_is_not_overtaken_by_a_smaller_one() {
    let mut cluster = cluster_in_full_use();
    let large = cluster.submit(0, in_line(6));
    let small = cluster.submit(0, in_line(1));
    cluster.run(SECOND / 4);
    assert_eq!(cluster.done(0, release(4)), Outcome::Released { amount: 4 });
    assert!(is_exhausted(&cluster.done(0, acquire(1))), "what is saved for it is not for others");
    assert_eq!(cluster.outcome(0, small), None, "nor for those behind it");
    assert_eq!(cluster.done(0, release(2)), Outcome::Released { amount: 2 });
    cluster.run(SECOND / 10);
    assert!(cluster.outcome(0, large).is_some_and(|outcome| granted(&outcome)));
    assert_eq!(cluster.outcome(0, small), None);
}

#[test]
fn acquire_in_line_is_refused_by_its_time_alone_and_those_behind_it_are_served() {
    let mut cluster = cluster_in_full_use();
    let large = cluster.submit(0, in_line(30));
    cluster.run(TIME / 2);
    let small = cluster.submit(0, in_line(2));
    cluster.done(0, release(2));
    cluster.run(TIME / 4);
    assert_eq!((cluster.outcome(0, large), cluster.outcome(0, small)), (None, None));
    cluster.run(TIME / 3);
    assert_eq!(cluster.outcome(0, large), Some(Outcome::Refused(Refusal::DeadlinePassed)));
    assert!(cluster.outcome(0, small).is_some_and(|outcome| granted(&outcome)));
}

/// Whatever is under way when its time is up: a round that has begun just now is no sign that others do not answer.
#[test]
fn acquire_in_line_whose_time_is_up_during_a_round_says_so_while_all_sites_are_up() {
    let mut cluster = cluster_in_full_use();
    let mut waiting = Vec::new();
    for _ in 0..100 {
        waiting.push(cluster.submit(0, in_line(30)));
        cluster.run(SECOND / 50);
    }
    cluster.run(TIME + SECOND);
    for sequence in waiting {
        assert_eq!(cluster.outcome(0, sequence), Some(Outcome::Refused(Refusal::DeadlinePassed)));
    }
}

/// Both save what they have, and neither has enough: a round that gathers all serves one of them.
#[test]
fn acquires_in_line_at_two_sites_do_not_hold_each_other_up() {
    let mut cluster = cluster_in_full_use();
    let waiting: Vec<(usize, u64)> = [0, 0, 1, 1].into_iter().map(|at| (at, cluster.submit(at, in_line(12)))).collect();
    cluster.run(SECOND / 10);
    for at in [0, 1, 2] {
        cluster.done(at, release(5));
    }
    cluster.run(SECOND);
    let served = waiting.iter().filter(|(at, sequence)| cluster.outcome(*at, *sequence).is_some_and(|o| granted(&o)));
    assert_eq!(served.count(), 1);
    cluster.run(5 * SECOND);
    assert_eq!(cluster.show(2, "gpus").in_use_max, 27);
}

/// Rounds in vain are no reason to put off a change that needs no tokens.
#[test]
fn limit_is_set_and_quota_deleted_while_requests_stay_in_line_everywhere() {
    let mut cluster = cluster_in_full_use();
    let waiting: Vec<(usize, u64)> = (0..3).map(|at| (at, cluster.submit(at, in_line(30)))).collect();
    cluster.run(SECOND);
    for limit in [31, 32, 33] {
        let at = limit as usize % 3;
        let set = cluster.submit(at, Operation::SetLimit { quota: "gpus".into(), limit });
        cluster.run(SECOND / 5);
        assert_eq!(cluster.outcome(at, set), Some(Outcome::LimitSet { limit, excess: 0 }));
    }
    let deleted = cluster.submit(0, Operation::Delete { quota: "gpus".into() });
    cluster.run(SECOND / 4);
    assert_eq!(cluster.outcome(0, deleted), Some(Outcome::Deleted));
    for (at, sequence) in waiting {
        assert_eq!(cluster.outcome(at, sequence), Some(Outcome::Refused(Refusal::QuotaDeleted)));
    }
}

/// Its holder counts from when it asked, the site from when it granted. What both clocks of the site say that it waited is added, less twice ε.
#[test]
fn hold_that_waited_in_line_lasts_for_its_time_from_then_on() {
    let mut cluster = cluster_in_full_use();
    let hold = Operation::Acquire { quota: "gpus".into(), amount: 5, hold: Hold::For(3 * SECOND), waits: true };
    let waiting = cluster.submit(0, hold);
    cluster.run(3 * SECOND / 2);
    cluster.done(0, release(5));
    let Some(Outcome::Granted { lasts: Some(lasts), .. }) = cluster.outcome(0, waiting) else { panic!("not granted") };
    assert!((4_470_000..=4_480_000).contains(&lasts), "lasts_for_its_time: {lasts}");
    cluster.run(5 * SECOND);
    assert_eq!(cluster.show(1, "gpus").in_use_max, 25, "it ended by itself");
}

#[test]
fn hold_that_waited_in_line_lasts_no_longer_for_a_clock_that_ran_ahead() {
    let mut cluster = cluster_in_full_use();
    let hold = Operation::Acquire { quota: "gpus".into(), amount: 5, hold: Hold::For(3 * SECOND), waits: true };
    let waiting = cluster.submit(0, hold);
    cluster.run(SECOND / 2);
    cluster.hosts[0].wall += 60 * SECOND as i64;
    cluster.run(SECOND / 2);
    cluster.done(0, release(5));
    let Some(Outcome::Granted { lasts: Some(lasts), .. }) = cluster.outcome(0, waiting) else { panic!("not granted") };
    assert!((3_970_000..=3_980_000).contains(&lasts), "lasts_for_its_time: {lasts}");
}

#[test]
fn acquire_in_line_that_is_withdrawn_holds_up_nobody() {
    let mut cluster = cluster_in_full_use();
    let large = cluster.submit(0, in_line(30));
    let small = cluster.submit(0, in_line(2));
    cluster.done(0, release(2));
    cluster.run(SECOND / 10);
    assert_eq!(cluster.outcome(0, small), None);
    let (site, incarnation, session) = cluster.session(0);
    let operation = OperationId { site, incarnation, session, sequence: large };
    cluster.request(0, 8, Request::Ask { operation });
    cluster.run(SECOND / 10);
    assert!(cluster.outcome(0, small).is_some_and(|outcome| granted(&outcome)));
}

#[test]
fn acquire_in_line_is_above_a_limit_that_is_lowered() {
    let mut cluster = cluster_in_full_use();
    let (large, small) = (cluster.submit(0, in_line(20)), cluster.submit(0, in_line(2)));
    let set = cluster.done(1, Operation::SetLimit { quota: "gpus".into(), limit: 12 });
    assert_eq!(set, Outcome::LimitSet { limit: 12, excess: 18 });
    cluster.run(SECOND / 10);
    assert_eq!(cluster.outcome(0, large), Some(Outcome::Refused(Refusal::AboveLimit { limit: 12, level: 0 })));
    assert_eq!(cluster.outcome(0, small), None, "it stays, although nothing is granted at present");
    cluster.done(1, release(20));
    cluster.run(3 * SECOND / 2);
    assert!(cluster.outcome(0, small).is_some_and(|outcome| granted(&outcome)));
}

#[test]
fn acquire_in_line_of_a_single_site_waits_for_a_release() {
    let mut cluster = Cluster::new(1);
    cluster.done(0, create(3));
    assert!(granted(&cluster.done(0, acquire(3))));
    let waiting = cluster.submit(0, in_line(2));
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(0, waiting), None);
    let before = cluster.share(0, "gpus").applied;
    cluster.done(0, release(2));
    assert!(cluster.outcome(0, waiting).is_some_and(|outcome| granted(&outcome)));
    assert_eq!(cluster.share(0, "gpus").applied, before, "no round could have helped");
}

/// Who stops a site gives those in line so much time, and not as much as they would wait.
#[test]
fn site_that_drains_waits_for_those_in_line_for_five_seconds() {
    let mut cluster = cluster_in_full_use();
    let waiting = cluster.submit_for(0, in_line(5), 60 * SECOND);
    cluster.request(0, 9, Request::Drain { within: 5 * SECOND });
    let is_drained = |cluster: &Cluster| cluster.responses.contains(&(0, ClientId(9), Response::Drained));
    cluster.run(9 * SECOND / 2);
    assert!(!is_drained(&cluster), "one is in line");
    assert_eq!(cluster.outcome(0, waiting), None);
    cluster.run(SECOND);
    assert!(is_drained(&cluster), "the time is up");
}
