//! Scenarios of quotas that refill, named subject_condition_outcome.

use slackline_core::api::{Hold, Operation, Outcome, Refusal};
use slackline_core::avantan::Charter;
use slackline_core::clock::{MILLISECOND, SECOND};

use crate::cluster::Cluster;
use crate::quotas::{acquire, granted, release};
use crate::reclaim::{lose, reclaim};

/// A quota of `limit` tokens that gets back `rate` a second.
fn create(limit: i64, rate: u64) -> Operation {
    let charter = Charter { refill: rate * 1_000_000, ..Charter::default() };
    Operation::Create { quota: "gpus".into(), limit, charter }
}

/// Asks at each of the sites for one token every 20 ms, for so long. Returns how many were granted, by site.
fn ask(cluster: &mut Cluster, at: &[usize], lasts: u64) -> Vec<i64> {
    let mut asked = vec![Vec::new(); at.len()];
    for _ in 0..lasts / (20 * MILLISECOND) {
        for (of, &site) in at.iter().enumerate() {
            asked[of].push(cluster.submit(site, acquire(1)));
        }
        cluster.run(20 * MILLISECOND);
    }
    cluster.run(3 * SECOND);
    let mut count = |site: usize, sequences: &[u64]| {
        sequences.iter().filter(|&&sequence| cluster.outcome(site, sequence).is_some_and(|o| granted(&o))).count()
            as i64
    };
    at.iter().zip(&asked).map(|(&site, sequences)| count(site, sequences)).collect()
}

#[test]
fn quota_that_refills_grants_its_limit_and_then_its_rate_where_demand_is() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(30, 12));
    assert!(granted(&cluster.done(0, acquire(30))), "the limit at once");

    // Two of three parts of the rate belong to sites that are not asked.
    let lasts = 20 * SECOND;
    let count = ask(&mut cluster, &[0], lasts)[0];
    let brought = 12 * (lasts / SECOND) as i64;
    assert!(count <= brought + 3 * 12, "{count} of {brought}, and of what came while the last ones waited");
    assert!(count >= brought * 8 / 10, "{count} of {brought}: the rate of idle sites goes where demand is");

    // Left alone it is full again, and no fuller.
    cluster.run(10 * SECOND);
    let shown = cluster.show(1, "gpus");
    assert_eq!((shown.in_use_min, shown.in_use_max, shown.refill), (0, 0, 12_000_000));
    assert!(granted(&cluster.done(2, acquire(30))));
    let more = cluster.done(2, acquire(30));
    let Outcome::Refused(Refusal::Exhausted { retry_after: Some(after), .. }) = more else {
        panic!("the bucket is empty: {more:?}")
    };
    assert!((1_500..=2_500).contains(&after), "30 tokens at 12 a second, in milliseconds: {after}");
}

/// The time for which it waited for tokens of other sites, with nothing to refill here, is not that of what it is granted.
#[test]
fn quota_that_refills_begins_to_refill_when_what_waited_is_granted() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(3_000, 3_000));
    let all = cluster.submit(0, acquire(3_000));
    while cluster.outcome(0, all).is_none() {
        cluster.run(MILLISECOND);
    }
    assert!(cluster.outcome(0, all).is_some_and(|outcome| granted(&outcome)));
    let more = cluster.submit(0, acquire(3_000));
    assert_eq!(cluster.outcome(0, more), None);
    let refilled = cluster.tokens(0, "gpus");
    assert!(refilled <= 10, "a thousand a second, and it was granted just now: {refilled}");
}

#[test]
fn quota_that_refills_serves_those_in_line_as_it_refills() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(30, 12));
    assert!(granted(&cluster.done(0, acquire(30))));
    let operation = Operation::Acquire { quota: "gpus".into(), amount: 9, hold: Hold::Counted, waits: true };
    let waiting = cluster.submit(1, operation);
    cluster.run(SECOND / 2);
    assert_eq!(cluster.outcome(1, waiting), None);
    cluster.run(SECOND);
    assert!(cluster.outcome(1, waiting).is_some_and(|outcome| granted(&outcome)));
}

#[test]
fn site_that_was_down_refills_nothing_for_that_time() {
    let mut cluster = Cluster::new(1);
    cluster.done(0, create(100, 5));
    assert!(granted(&cluster.done(0, acquire(100))));
    cluster.kill(0);
    cluster.run(60 * SECOND);
    cluster.start(0);
    cluster.run(SECOND);
    assert!(
        (95..=99).contains(&cluster.show(0, "gpus").in_use_max),
        "one second brings five: {:?}",
        cluster.show(0, "gpus")
    );
    cluster.run(30 * SECOND);
    assert_eq!(cluster.show(0, "gpus").in_use_max, 0);
}

#[test]
fn wall_clock_that_is_set_refills_nothing() {
    let mut cluster = Cluster::new(1);
    cluster.done(0, create(1_000, 5));
    assert!(granted(&cluster.done(0, acquire(1_000))));
    // The machine was suspended: its wall clock went on, its other clock stood.
    cluster.suspend(0, 60 * SECOND, false);
    cluster.run(SECOND);
    let in_use = cluster.show(0, "gpus").in_use_max;
    assert!((990..=999).contains(&in_use), "one second brings five: {in_use}");
}

#[test]
fn what_a_lost_disk_had_to_refill_comes_back_on_a_word() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90, 10));
    assert!(granted(&cluster.done(1, acquire(30))), "its own third");
    lose(&mut cluster, 1);
    cluster.run(30 * SECOND);
    let shown = cluster.show(0, "gpus");
    let lost = shown.in_use_max;
    assert!(shown.in_use_min == lost && (1..=30).contains(&lost), "what was not handed over is lost: {shown:?}");
    cluster.run(30 * SECOND);
    assert_eq!(cluster.show(0, "gpus").in_use_max, lost);

    // On an operator's word it is back, and once.
    assert_eq!(cluster.done(0, reclaim(&[(1, 1)], 0)), Outcome::Reclaimed { brought: lost, in_use: 0 });
    cluster.run(SECOND);
    assert_eq!(cluster.show(2, "gpus").in_use_max, 0);
    assert_eq!((0..3).map(|at| cluster.tokens(at, "gpus")).sum::<i64>(), 90);
}

#[test]
fn quota_that_refills_is_not_released_nor_held_and_knows_its_rate() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(30, 12));
    assert!(granted(&cluster.done(0, acquire(5))));
    assert_eq!(cluster.done(0, release(5)), Outcome::Refused(Refusal::Refills));
    let held = |hold| Operation::Acquire { quota: "gpus".into(), amount: 1, hold, waits: false };
    assert_eq!(cluster.done(0, held(Hold::For(SECOND))), Outcome::Refused(Refusal::Refills));
    let Outcome::Granted { grant, .. } = cluster.done(0, held(Hold::Open)) else { panic!("it is granted") };
    let released = cluster.done(0, Operation::ReleaseGrant { grant, used: 0 });
    assert_eq!(released, Outcome::Refused(Refusal::UnknownGrant), "it has no row");

    assert_eq!(cluster.done(1, create(30, 12)), Outcome::Created { limit: 30 });
    let refill = 12_000_000;
    assert_eq!(cluster.done(1, create(30, 13)), Outcome::Refused(Refusal::RefillDiffers { refill }));
    assert_eq!(cluster.done(1, create(30, 0)), Outcome::Refused(Refusal::RefillDiffers { refill }));
    assert_eq!(cluster.done(1, Operation::Delete { quota: "gpus".into() }), Outcome::Deleted);
    assert_eq!(cluster.done(1, create(40, 0)), Outcome::Created { limit: 40 });
    assert!(granted(&cluster.done(1, acquire(5))));
    assert_eq!(cluster.done(0, release(5)), Outcome::Released { amount: 5 }, "the next of this name is another");
}

#[test]
fn limit_below_what_was_granted_is_paid_as_it_refills() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90, 10));
    assert!(granted(&cluster.done(0, acquire(90))));
    let set = cluster.done(1, Operation::SetLimit { quota: "gpus".into(), limit: 40 });
    let Outcome::LimitSet { limit: 40, excess } = set else { panic!("{set:?}") };
    assert!((40..=50).contains(&excess), "{excess}");
    assert!(!granted(&cluster.done(0, acquire(1))), "nothing is granted in excess");
    cluster.run(20 * SECOND);
    let shown = cluster.show(1, "gpus");
    assert_eq!((shown.excess, shown.in_use_max, shown.limit), (0, 0, 40));
    assert_eq!((0..3).map(|at| cluster.tokens(at, "gpus")).sum::<i64>(), 40);
}

#[test]
fn site_that_drains_leaves_what_is_to_be_refilled_to_the_others() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90, 10));
    assert!(granted(&cluster.done(0, acquire(90))));
    cluster.request(0, 7, slackline_core::api::Request::Drain { within: 5 * SECOND });
    cluster.run(2 * SECOND);
    cluster.kill(0);
    cluster.run(30 * SECOND);
    let there: i64 = [1, 2].into_iter().map(|at| cluster.tokens(at, "gpus")).sum();
    assert!(there >= 85, "{there} of 90 came back without it");
}

/// What is granted begins to come back then, and not a few milliseconds before, whenever the site last looked at its clocks.
#[test]
fn quota_that_refills_grants_no_more_than_its_rate_in_a_millisecond() {
    for pause in [100, 1_900, 4_900, 5_100, 9_900] {
        let mut cluster = Cluster::new(1);
        cluster.done(0, create(5, 1_000));
        cluster.run(SECOND);
        cluster.show(0, "gpus");
        cluster.run(pause);
        let ask = |cluster: &mut Cluster| {
            let sequence = cluster.submit(0, acquire(5));
            cluster.outcome(0, sequence).is_some_and(|outcome| granted(&outcome))
        };
        assert!(ask(&mut cluster));
        cluster.run(200);
        assert!(!ask(&mut cluster), "five are granted in 0.2 ms, {pause} µs after the last look");
        cluster.run(5 * MILLISECOND);
        assert!(ask(&mut cluster));
    }
}

/// All that there is to refill was granted at one site, and its part of the rate alone would take three times as long.
#[test]
fn rate_that_brings_the_limit_in_a_second_is_used_at_all_sites() {
    for (limit, rate) in [(1_000, 1_000), (300, 1_000), (2_100, 1_500), (90, 30)] {
        let mut cluster = Cluster::new(3);
        cluster.done(0, create(limit, rate));
        assert!(granted(&cluster.done(0, acquire(limit))));
        cluster.run(limit as u64 * SECOND / rate + SECOND / 2);
        let back: i64 = (0..3).map(|at| cluster.tokens(at, "gpus")).sum();
        // Sites refill when they look.
        cluster.show(0, "gpus");
        let back = back.max((0..3).map(|at| cluster.tokens(at, "gpus")).sum());
        assert!(back >= limit * 9 / 10, "{back} of {limit} are back at {rate} a second, all parts of the rate used");
    }
}

#[test]
fn what_was_lost_of_a_quota_that_refills_cannot_be_said_to_be_in_use() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90, 10));
    assert!(granted(&cluster.done(1, acquire(30))));
    lose(&mut cluster, 1);
    let refused = cluster.done(0, reclaim(&[(1, 1)], 5));
    assert_eq!(refused, Outcome::Refused(Refusal::Refills), "nobody would ever give them back");
}

/// What was refilled pays the excess first.
#[test]
fn retry_after_counts_what_is_out_beyond_the_limit() {
    let mut cluster = Cluster::new(1);
    cluster.done(0, create(300, 10));
    assert!(granted(&cluster.done(0, acquire(300))));
    let set = cluster.done(0, Operation::SetLimit { quota: "gpus".into(), limit: 100 });
    assert!(matches!(set, Outcome::LimitSet { limit: 100, excess: 190..=200 }), "{set:?}");
    let refused = cluster.done(0, acquire(10));
    let Outcome::Refused(Refusal::Exhausted { retry_after: Some(millis), .. }) = refused else { panic!("{refused:?}") };
    assert!((19_000..=22_000).contains(&millis), "200 and 10 tokens at 10 a second: {millis} ms");
}

/// Backlog that was handed over of the one that is gone would bring back more than was ever granted of the next one.
#[test]
fn quota_that_is_made_anew_refills_nothing_of_what_was_handed_over_before() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90, 10));
    assert!(granted(&cluster.done(0, acquire(90))));
    cluster.run(3 * SECOND);
    assert!(cluster.hosts[0].node.as_ref().expect("runs").metrics().backlog_handed > 0);
    assert_eq!(cluster.done(0, Operation::Delete { quota: "gpus".into() }), Outcome::Deleted);
    assert_eq!(cluster.done(0, create(90, 10)), Outcome::Created { limit: 90 });
    cluster.run(30 * SECOND);
    assert_eq!((0..3).map(|at| cluster.tokens(at, "gpus")).sum::<i64>(), 90, "nothing was granted of this one");
}

/// Two sites have not looked at the quota for minutes when a third hands them what it granted just now.
#[test]
fn backlog_that_is_handed_over_to_sites_that_were_idle_comes_back_by_the_rate() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(9_000, 300));
    cluster.run(180 * SECOND);
    assert!(granted(&cluster.done(0, acquire(3_000))));
    cluster.run(SECOND);
    let in_use = cluster.show(0, "gpus").in_use_max;
    assert!(cluster.hosts[0].node.as_ref().expect("runs").metrics().backlog_handed > 0);
    assert!(
        (2_400..=2_900).contains(&in_use),
        "of 3000 a second brings 300 back, and the count takes a part of one: {in_use}"
    );
}

/// All of a small bucket is taken at one site, and waited for there once more. Each of five sites has a fifth of the rate, and should have a backlog
/// of two tokens: one that has refilled what it was handed says so, or its part of the rate would lie idle.
#[test]
fn all_of_a_small_bucket_is_back_at_one_site_by_the_rate_of_all() {
    let mut cluster = Cluster::new(5);
    cluster.done(0, create(17, 3));
    cluster.run(SECOND);
    for at in [4, 1, 3] {
        assert!(granted(&cluster.done(at, acquire(17))), "all of it is there");
        let wait = Operation::Acquire { quota: "gpus".into(), amount: 17, hold: Hold::Counted, waits: true };
        let all = cluster.submit_for(at, wait, 60 * SECOND);
        let mut took = 0;
        while cluster.outcome(at, all).is_none() {
            cluster.run(SECOND / 4);
            took += SECOND / 4;
        }
        assert!(cluster.outcome(at, all).is_some_and(|outcome| granted(&outcome)));
        assert!(took <= 10 * SECOND, "17 tokens at 3 a second take {took} us");
        cluster.run(20 * SECOND);
    }
}
