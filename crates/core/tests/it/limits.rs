//! Scenarios of limits that change while a quota is in use, named subject_condition_outcome.

use slackline_core::api::{Batch, Hold, Operation, Outcome, Refusal, Request, Submission};
use slackline_core::clock::SECOND;
use slackline_core::id::OperationId;

use crate::cluster::Cluster;
use crate::quotas::{acquire, create, granted, release};

fn set(limit: i64) -> Operation {
    Operation::SetLimit { quota: "gpus".into(), limit }
}

fn is_exhausted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused(Refusal::Exhausted { .. }))
}

/// The limit, the excess, and what is in use, which is known exactly.
fn standing(cluster: &mut Cluster, at: usize) -> (i64, i64, i64) {
    let shown = cluster.show(at, "gpus");
    assert_eq!(shown.in_use_min, shown.in_use_max, "{shown:?}");
    (shown.limit, shown.excess, shown.in_use_min)
}

fn all_tokens(cluster: &Cluster) -> i64 {
    (0..3).map(|at| cluster.tokens(at, "gpus")).sum()
}

#[test]
fn limit_raised_adds_tokens_at_once() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(1, acquire(90))));
    assert_eq!(cluster.done(2, set(120)), Outcome::LimitSet { limit: 120, excess: 0 });
    cluster.run(SECOND);
    assert_eq!(all_tokens(&cluster), 30);
    assert!(granted(&cluster.done(0, acquire(30))));
    assert!(is_exhausted(&cluster.done(1, acquire(1))));
    assert_eq!(standing(&mut cluster, 0), (120, 0, 120));
}

#[test]
fn limit_lowered_takes_free_tokens_at_once() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(1, acquire(10))));
    assert_eq!(cluster.done(2, set(30)), Outcome::LimitSet { limit: 30, excess: 0 });
    cluster.run(SECOND);
    assert_eq!(all_tokens(&cluster), 20);
    assert_eq!(cluster.done(1, acquire(31)), Outcome::Refused(Refusal::AboveLimit { limit: 30, level: 0 }));
    assert!(granted(&cluster.done(1, acquire(20))));
    assert_eq!(standing(&mut cluster, 0), (30, 0, 30));
}

#[test]
fn limit_lowered_below_what_is_in_use_leaves_an_excess_that_is_paid_by_what_comes_back() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(100));
    assert!(granted(&cluster.done(0, acquire(80))));
    // A gift may be under way; it is taken when it has arrived.
    let set = cluster.done(1, set(50));
    assert!(matches!(set, Outcome::LimitSet { limit: 50, excess: 30..50 }), "{set:?}");
    cluster.run(3 * SECOND);
    assert_eq!(standing(&mut cluster, 2), (50, 30, 80));

    // Nobody grants, wherever the tokens come back.
    assert_eq!(cluster.done(2, release(20)), Outcome::Released { amount: 20 });
    for at in 0..3 {
        assert!(is_exhausted(&cluster.done(at, acquire(1))));
    }
    cluster.run(3 * SECOND);
    assert_eq!(standing(&mut cluster, 0), (50, 10, 60));
    assert_eq!(all_tokens(&cluster), 0);

    // The last of it, and more: what is over stays free.
    assert_eq!(cluster.done(1, release(25)), Outcome::Released { amount: 25 });
    cluster.run(3 * SECOND);
    assert_eq!(standing(&mut cluster, 0), (50, 0, 35));
    assert!(granted(&cluster.done(0, acquire(15))));
    assert!(is_exhausted(&cluster.done(0, acquire(1))));
}

#[test]
fn limit_raised_pays_the_excess_first() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(100));
    assert!(granted(&cluster.done(0, acquire(100))));
    assert_eq!(cluster.done(0, set(40)), Outcome::LimitSet { limit: 40, excess: 60 });
    assert_eq!(cluster.done(1, set(70)), Outcome::LimitSet { limit: 70, excess: 30 });
    assert_eq!(cluster.done(2, set(110)), Outcome::LimitSet { limit: 110, excess: 0 });
    cluster.run(SECOND);
    assert_eq!(all_tokens(&cluster), 10);
    assert_eq!(standing(&mut cluster, 2), (110, 0, 100));
}

#[test]
fn site_that_was_away_when_the_limit_was_lowered_has_its_tokens_taken_when_it_is_back() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.kill(2);
    cluster.run(10 * SECOND);

    // What it has counts as out.
    assert_eq!(cluster.done(0, set(20)), Outcome::LimitSet { limit: 20, excess: 10 });
    assert!(is_exhausted(&cluster.done(1, acquire(1))));
    cluster.start(2);
    cluster.run(10 * SECOND);
    assert_eq!(standing(&mut cluster, 2), (20, 0, 0));
    assert!(granted(&cluster.done(2, acquire(20))));
}

/// Nobody asks anything of the quota meanwhile: the others have to tell by themselves.
#[test]
fn site_that_was_cut_off_when_the_limit_was_lowered_is_told_once_it_can_be() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(200 * SECOND);
    cluster.cut = vec![(0, 2), (1, 2)];
    cluster.run(5 * SECOND);
    assert_eq!(cluster.done(0, set(20)), Outcome::LimitSet { limit: 20, excess: 10 });
    cluster.run(100 * SECOND);
    assert_eq!(cluster.tokens(2, "gpus"), 30);
    cluster.cut.clear();
    cluster.run(30 * SECOND);
    assert_eq!((0..3).map(|at| cluster.share(at, "gpus").table.limit).collect::<Vec<_>>(), [Some(20); 3]);
    assert_eq!((all_tokens(&cluster), cluster.share(2, "gpus").table.excess), (20, 0));
}

/// It misses the round that pays the excess, and starts again when the quota is at rest: nobody tells it by himself.
#[test]
fn site_that_missed_that_the_excess_is_paid_asks_when_it_refuses() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(0, acquire(80))));
    cluster.run(3 * SECOND);
    assert!(matches!(cluster.done(1, set(50)), Outcome::LimitSet { limit: 50, .. }));
    cluster.run(3 * SECOND);
    cluster.cut = vec![(0, 2), (1, 2)];
    assert_eq!(cluster.done(0, release(45)), Outcome::Released { amount: 45 });
    cluster.run(3 * SECOND);
    assert_eq!(cluster.share(0, "gpus").table.excess, 0);
    cluster.kill(2);
    cluster.run(200 * SECOND);
    cluster.cut.clear();
    cluster.start(2);
    cluster.run(60 * SECOND);
    assert!(cluster.share(2, "gpus").table.excess > 0, "it has not heard of it");

    assert!(is_exhausted(&cluster.done(2, acquire(1))));
    cluster.run(2 * SECOND);
    assert!(granted(&cluster.done(2, acquire(1))), "it is told that the excess is paid");
}

#[test]
fn limit_lowered_while_a_site_grants_what_it_kept_is_never_exceeded_by_more_than_the_excess() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(900));
    for round in 0..20 {
        for at in 0..3 {
            cluster.done(at, acquire(5));
        }
        if round == 10 {
            cluster.done(1, set(250));
        }
    }
    cluster.run(5 * SECOND);
    assert_eq!(standing(&mut cluster, 0), (250, 0, 250));
}

#[test]
fn limits_set_at_two_sites_at_once_both_take_effect() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let (one, other) = (cluster.submit(0, set(60)), cluster.submit(2, set(30)));
    cluster.run(10 * SECOND);
    for (at, sequence, limit) in [(0, one, 60), (2, other, 30)] {
        // The one that was first may have been replaced before its site heard of it.
        let outcome = cluster.outcome(at, sequence).expect("answered");
        assert!(
            matches!(outcome, Outcome::LimitSet { limit: set, .. } if set == limit)
                || matches!(outcome, Outcome::Unknown(_)),
            "{outcome:?}"
        );
    }
    let (limit, excess, in_use) = standing(&mut cluster, 1);
    assert!([30, 60].contains(&limit) && (excess, in_use) == (0, 0));
    assert_eq!(all_tokens(&cluster), limit);
}

#[test]
fn limit_that_makes_no_sense_is_refused() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.done(0, set(5)), Outcome::Refused(Refusal::UnknownQuota));
    cluster.done(0, create(90));
    for limit in [0, -1, i64::MIN] {
        assert_eq!(cluster.done(0, set(limit)), Outcome::Refused(Refusal::InvalidAmount));
    }
    assert_eq!(cluster.done(0, set(i64::MAX)), Outcome::LimitSet { limit: i64::MAX, excess: 0 });
    assert!(granted(&cluster.done(0, acquire(7))));
    assert_eq!(cluster.done(1, set(1)), Outcome::LimitSet { limit: 1, excess: 6 });
    assert_eq!(cluster.done(1, set(i64::MAX)), Outcome::LimitSet { limit: i64::MAX, excess: 0 });
    assert_eq!(standing(&mut cluster, 0), (i64::MAX, 0, 7));
    cluster.done(0, Operation::Delete { quota: "gpus".into() });
    cluster.run(SECOND);
    assert_eq!(cluster.done(0, set(5)), Outcome::Refused(Refusal::UnknownQuota));
}

#[test]
fn limit_survives_a_restart_of_every_site() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(0, acquire(80))));
    cluster.done(0, set(50));
    for at in 0..3 {
        cluster.kill(at);
    }
    cluster.run(SECOND);
    for at in 0..3 {
        cluster.start(at);
    }
    cluster.run(5 * SECOND);
    assert_eq!(standing(&mut cluster, 1), (50, 30, 80));
    assert!(is_exhausted(&cluster.done(2, acquire(1))));
    assert_eq!(cluster.done(1, release(31)), Outcome::Released { amount: 31 });
    cluster.run(5 * SECOND);
    assert!(granted(&cluster.done(2, acquire(1))));
}

#[test]
fn limit_set_whose_answer_was_lost_is_answered_the_same_and_not_set_again() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let sequence = cluster.submit(0, set(60));
    cluster.run(5 * SECOND);
    assert_eq!(cluster.outcome(0, sequence), Some(Outcome::LimitSet { limit: 60, excess: 0 }));
    assert_eq!(cluster.done(1, set(30)), Outcome::LimitSet { limit: 30, excess: 0 });

    let (site, incarnation, session) = cluster.session(0);
    let operations = vec![Submission { sequence, timeout: SECOND, operation: set(60) }];
    let batch = Batch { site, incarnation, session, low: 1, operations };
    cluster.responses.clear();
    cluster.request(0, 9, Request::Batch(batch));
    cluster.run(5 * SECOND);
    assert_eq!(cluster.outcome(0, sequence), Some(Outcome::LimitSet { limit: 60, excess: 0 }));
    assert_eq!(standing(&mut cluster, 2), (30, 0, 0));
}

#[test]
fn limit_set_where_one_site_is_all_is_set_at_once() {
    let mut cluster = Cluster::new(1);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(0, acquire(80))));
    assert_eq!(cluster.done(0, set(50)), Outcome::LimitSet { limit: 50, excess: 30 });
    assert!(is_exhausted(&cluster.done(0, acquire(1))));
    assert_eq!(cluster.done(0, release(40)), Outcome::Released { amount: 40 });
    cluster.run(3 * SECOND);
    assert_eq!(standing(&mut cluster, 0), (50, 0, 40));
    assert_eq!(cluster.done(0, set(50)), Outcome::LimitSet { limit: 50, excess: 0 });
}

#[test]
fn limit_that_was_withdrawn_is_not_set_because_another_one_waits() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    cluster.cut = vec![(0, 1), (0, 2)];
    let (one, other) = (cluster.submit(0, set(10)), cluster.submit(0, set(60)));

    // Asked about, the first one is withdrawn; the second one goes on.
    let (site, incarnation, session) = cluster.session(0);
    let operation = OperationId { site, incarnation, session, sequence: one };
    cluster.request(0, 8, Request::Ask { operation });
    cluster.cut.clear();
    cluster.run(5 * SECOND);
    assert_eq!(cluster.outcome(0, one), Some(Outcome::Refused(Refusal::Withdrawn)));
    assert_eq!(cluster.outcome(0, other), Some(Outcome::LimitSet { limit: 60, excess: 0 }));
    let table = &cluster.share(1, "gpus").table;
    assert_eq!((table.limit, cluster.share(0, "gpus").applied), (Some(60), 2), "one round, and no other limit before");
}

#[test]
fn hold_of_a_quota_that_was_deleted_is_neither_extended_nor_settled() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let hold = |hold| Operation::Acquire { quota: "gpus".into(), amount: 5, hold, waits: false };
    let mut grants = Vec::new();
    for _ in 0..2 {
        let outcome = cluster.done(0, hold(Hold::For(60 * SECOND)));
        let Outcome::Granted { grant, .. } = outcome else { panic!("{outcome:?}") };
        grants.push(grant);
    }
    cluster.done(0, Operation::Delete { quota: "gpus".into() });
    cluster.done(0, create(90));
    let extend = Operation::ExtendGrant { grant: grants[0], micros: 90 * SECOND };
    assert_eq!(cluster.done(0, extend.clone()), Outcome::Refused(Refusal::QuotaDeleted));
    assert_eq!(cluster.done(0, extend), Outcome::Refused(Refusal::UnknownGrant));
    let settle = Operation::ReleaseGrant { grant: grants[1], used: 1 };
    assert_eq!(cluster.done(0, settle.clone()), Outcome::Refused(Refusal::QuotaDeleted));
    assert_eq!(cluster.done(0, settle), Outcome::Refused(Refusal::UnknownGrant));
}

/// The quota is at rest when it can be reached again: nobody tells it that the limit is another one. What it refuses it does not count as
/// demand either, so it has to ask.
#[test]
fn site_that_missed_that_the_limit_was_raised_asks_when_it_refuses() {
    for operation in [acquire(200), release(200), create(900)] {
        let mut cluster = Cluster::new(3);
        cluster.done(0, create(90));
        cluster.run(200 * SECOND);
        cluster.cut = vec![(0, 2), (1, 2), (2, 0), (2, 1)];
        cluster.run(5 * SECOND);
        assert_eq!(cluster.done(0, set(900)), Outcome::LimitSet { limit: 900, excess: 0 });
        cluster.run(200 * SECOND);
        cluster.cut.clear();
        cluster.run(60 * SECOND);
        let outcome = cluster.done(2, operation);
        assert!(
            matches!(
                outcome,
                Outcome::Refused(
                    Refusal::AboveLimit { limit: 90, .. }
                        | Refusal::AboveOut { .. }
                        | Refusal::LimitDiffers { limit: 90 }
                )
            ),
            "it has not heard of it: {outcome:?}"
        );
        cluster.run(2 * SECOND);
        assert!(granted(&cluster.done(2, acquire(200))), "it is told that the limit was raised");
    }
}
