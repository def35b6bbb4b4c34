//! Scenarios of quotas in trees, named subject_condition_outcome.

use slackline_core::api::{Batch, Charter, Hold, Operation, Outcome, Parent, Refusal, Request, Shown, Submission};
use slackline_core::clock::{MILLISECOND, SECOND};

use crate::cluster::Cluster;
use crate::quotas::granted;
use crate::reclaim::lose;

/// A quota right below `parent`; of no tree if that is empty.
fn create(name: &str, limit: i64, parent: &str) -> Operation {
    let parent = (!parent.is_empty()).then_some(Parent { length: parent.len() as u16, generation: 0 });
    Operation::Create { quota: name.into(), limit, charter: Charter { parent, ..Charter::default() } }
}

fn acquire(name: &str, amount: i64, hold: Hold) -> Operation {
    Operation::Acquire { quota: name.into(), amount, hold, waits: false }
}

fn release(name: &str, amount: i64) -> Operation {
    Operation::Release { quota: name.into(), amount }
}

fn delete(name: &str) -> Operation {
    Operation::Delete { quota: name.into() }
}

fn refused(refusal: Refusal) -> Outcome {
    Outcome::Refused(refusal)
}

/// A company of 90 tokens, its web team with 60 and its batch team with 90, and one job of the web team with 60.
fn company(sites: usize) -> Cluster {
    let mut cluster = Cluster::new(sites);
    let levels =
        [("acme", 90, ""), ("acme/web", 60, "acme"), ("acme/batch", 90, "acme"), ("acme/web/a", 60, "acme/web")];
    for (name, limit, parent) in levels {
        assert_eq!(cluster.done(0, create(name, limit, parent)), Outcome::Created { limit });
    }
    cluster.run(SECOND);
    cluster
}

/// What is in use of each of them.
fn in_use(cluster: &mut Cluster) -> [i64; 4] {
    cluster.run(3 * SECOND);
    ["acme", "acme/web", "acme/batch", "acme/web/a"].map(|name| {
        let Shown { in_use_min, in_use_max, .. } = cluster.show(1, name);
        assert_eq!(in_use_min, in_use_max, "{name} is at rest");
        in_use_max
    })
}

#[test]
fn grant_counts_at_all_levels_and_goes_back_to_all() {
    let mut cluster = company(3);
    assert!(granted(&cluster.done(0, acquire("acme/web/a", 4, Hold::Counted))));
    assert!(granted(&cluster.done(1, acquire("acme/web", 2, Hold::Counted))));
    assert!(granted(&cluster.done(2, acquire("acme/batch", 9, Hold::Counted))));
    assert!(granted(&cluster.done(2, acquire("acme", 1, Hold::Counted))));
    assert_eq!(in_use(&mut cluster), [16, 6, 9, 4]);

    // Wherever it is released.
    assert_eq!(cluster.done(2, release("acme/web/a", 3)), Outcome::Released { amount: 3 });
    assert_eq!(in_use(&mut cluster), [13, 3, 9, 1]);
}

#[test]
fn tracked_grants_go_back_to_all_levels_by_release_settling_and_end() {
    let mut cluster = company(3);
    let mut take = |amount, hold| match cluster.done(0, acquire("acme/web/a", amount, hold)) {
        Outcome::Granted { grant, .. } => grant,
        other => panic!("{other:?}"),
    };
    let (open, _) = (take(10, Hold::Open), take(5, Hold::For(20 * SECOND)));
    assert_eq!(in_use(&mut cluster), [15, 15, 0, 15]);
    assert_eq!(cluster.done(0, Operation::ReleaseGrant { grant: open, used: 7 }), Outcome::Released { amount: 3 });
    assert_eq!(in_use(&mut cluster), [12, 12, 0, 12]);
    cluster.run(30 * SECOND);
    assert_eq!(in_use(&mut cluster), [7, 7, 0, 7], "the hold has ended");
    assert_eq!(cluster.done(0, Operation::ReleaseGrant { grant: open, used: 0 }), Outcome::Released { amount: 7 });
    assert_eq!(in_use(&mut cluster), [0, 0, 0, 0]);
}

/// Tokens of all sites are needed at several levels, one after the other.
#[test]
fn request_that_is_short_at_several_levels_is_granted_at_all_or_none() {
    let mut cluster = company(3);
    assert!(granted(&cluster.done(1, acquire("acme/web/a", 55, Hold::Counted))));
    assert_eq!(in_use(&mut cluster), [55, 55, 0, 55]);

    // The first level above it that has too little is named; nothing is left of the attempt.
    let level = "acme".len() as u16;
    match cluster.done(0, acquire("acme/batch", 40, Hold::Counted)) {
        Outcome::Refused(Refusal::Exhausted { level: named, .. }) => assert_eq!(named, level),
        other => panic!("{other:?}"),
    }
    match cluster.done(0, acquire("acme/web/a", 6, Hold::Counted)) {
        Outcome::Refused(Refusal::Exhausted { level: 0, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(in_use(&mut cluster), [55, 55, 0, 55]);
    assert!(granted(&cluster.done(2, acquire("acme/batch", 35, Hold::Counted))));
    assert_eq!(in_use(&mut cluster), [90, 55, 35, 55]);
    let above = refused(Refusal::AboveLimit { limit: 60, level: 0 });
    assert_eq!(cluster.done(0, acquire("acme/web/a", 61, Hold::Counted)), above);
}

#[test]
fn limit_of_a_child_above_its_parents_is_bound_by_that() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create("a", 10, ""));
    cluster.done(0, create("a/b", 50, "a"));
    let above = refused(Refusal::AboveLimit { limit: 10, level: 1 });
    assert_eq!(cluster.done(1, acquire("a/b", 11, Hold::Counted)), above);
    assert!(granted(&cluster.done(1, acquire("a/b", 10, Hold::Counted))));
}

#[test]
fn request_in_line_is_served_by_what_comes_back_at_another_level() {
    let mut cluster = company(3);
    assert!(granted(&cluster.done(0, acquire("acme/batch", 80, Hold::Counted))));
    let waits = Operation::Acquire { quota: "acme/web/a".into(), amount: 30, hold: Hold::Counted, waits: true };
    let waiting = cluster.submit(1, waits);
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(1, waiting), None);
    assert_eq!(cluster.done(2, release("acme/batch", 25)), Outcome::Released { amount: 25 });
    cluster.run(4 * SECOND);
    assert!(cluster.outcome(1, waiting).is_some_and(|outcome| granted(&outcome)));
    assert_eq!(in_use(&mut cluster), [85, 30, 55, 30]);
}

#[test]
fn crash_between_grants_keeps_all_levels_alike() {
    let mut cluster = company(3);
    assert!(granted(&cluster.done(0, acquire("acme/web/a", 7, Hold::Counted))));
    cluster.kill(0);
    cluster.run(SECOND);
    cluster.start(0);
    cluster.run(2 * SECOND);
    assert!(granted(&cluster.done(0, acquire("acme/web/a", 1, Hold::Counted))));
    assert_eq!(in_use(&mut cluster), [8, 8, 0, 8]);
}

#[test]
fn site_that_missed_a_tree_looks_it_up_level_by_level() {
    let mut cluster = Cluster::new(3);
    cluster.cut = vec![(0, 2), (1, 2)];
    cluster.done(0, create("acme", 90, ""));
    cluster.done(0, create("acme/web", 60, "acme"));
    cluster.cut.clear();
    let first = cluster.submit(2, acquire("acme/web", 5, Hold::Counted));
    cluster.run(5 * SECOND);
    assert!(cluster.outcome(2, first).is_some_and(|outcome| granted(&outcome)), "{:?}", cluster.outcome(2, first));
}

#[test]
fn creations_that_make_no_sense_are_refused() {
    let mut cluster = company(3);
    let mut refusal = |name: &str, parent: &str| match cluster.done(1, create(name, 5, parent)) {
        Outcome::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    for name in ["acme", "acme/", "acme-web", "other", "ac"] {
        assert_eq!(refusal(name, "acme"), Refusal::InvalidParent, "{name}");
    }
    assert_eq!(refusal("nobody/web", "nobody"), Refusal::NoParent);
    assert_eq!(refusal("acme/web", "acme"), Refusal::LimitDiffers { limit: 60 });
    assert_eq!(cluster.done(1, create("acme/web", 60, "acme")), Outcome::Created { limit: 60 });
    assert_eq!(cluster.done(1, create("acme/web", 60, "")), refused(Refusal::ParentDiffers));

    let parent = Some(Parent { length: 4, generation: 0 });
    let charter = Charter { refill: 1_000_000, parent, ..Charter::default() };
    let refills = Operation::Create { quota: "acme/rate".into(), limit: 5, charter };
    assert_eq!(cluster.done(1, refills), refused(Refusal::MixedRefill));

    let mut name = "acme/web/a".to_owned();
    for _ in 4..=8 {
        let parent = name.clone();
        name += "/b";
        assert_eq!(cluster.done(0, create(&name, 60, &parent)), Outcome::Created { limit: 60 });
    }
    assert!(granted(&cluster.done(0, acquire(&name, 3, Hold::Counted))));
    let parent = name.clone();
    name += "/b";
    assert_eq!(cluster.done(0, create(&name, 60, &parent)), refused(Refusal::TooDeep));
}

/// Where one site is all, a creation is decided in the call in which it comes.
#[test]
fn parent_stays_for_a_child_of_the_same_batch() {
    let mut cluster = Cluster::new(1);
    assert_eq!(cluster.done(0, create("acme", 90, "")), Outcome::Created { limit: 90 });
    let (site, incarnation, session) = cluster.session(0);
    let operations = [create("acme/web", 60, "acme"), delete("acme")].into_iter().zip(11..);
    let operations = operations.map(|(operation, sequence)| Submission { sequence, timeout: SECOND, operation });
    let batch = Batch { site, incarnation, session, low: 11, operations: operations.collect() };
    cluster.request(0, 1, Request::Batch(batch));
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(0, 11), Some(Outcome::Created { limit: 60 }));
    assert_eq!(cluster.outcome(0, 12), Some(refused(Refusal::HasChildren)), "it counts in what is gone");
}

#[test]
fn parent_stays_while_it_has_children_and_a_child_while_it_is_in_use() {
    let mut cluster = company(3);
    assert!(granted(&cluster.done(0, acquire("acme/web/a", 4, Hold::Counted))));
    assert_eq!(cluster.done(1, delete("acme/web")), refused(Refusal::HasChildren));
    assert_eq!(cluster.done(1, delete("acme/web/a")), refused(Refusal::InUse { amount: 4 }));
    assert!(granted(&cluster.done(1, acquire("acme/web/a", 1, Hold::Counted))), "it goes on");

    // Granted at one site and released at another, nothing is left in use.
    assert_eq!(cluster.done(2, release("acme/web/a", 5)), Outcome::Released { amount: 5 });
    assert_eq!(cluster.done(2, delete("acme/web/a")), Outcome::Deleted);
    assert_eq!(cluster.done(2, delete("acme/web")), Outcome::Deleted);
    cluster.run(3 * SECOND);
    let shown = cluster.show(0, "acme");
    assert_eq!((shown.in_use_min, shown.in_use_max), (0, 0));
    assert!(granted(&cluster.done(0, acquire("acme", 90, Hold::Counted))));
}

/// The creation of a child is decided where the deletion of its parent is not known yet.
#[test]
fn child_of_a_parent_that_was_deleted_grants_nothing_and_can_be_deleted() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create("a", 30, ""));
    cluster.run(SECOND);
    let child = cluster.submit(1, create("a/b", 20, "a"));
    let gone = cluster.submit(0, delete("a"));
    cluster.run(5 * SECOND);
    let both = (cluster.outcome(1, child).expect("ended"), cluster.outcome(0, gone).expect("ended"));
    assert_eq!(both, (Outcome::Created { limit: 20 }, Outcome::Deleted));
    assert_eq!(cluster.done(2, acquire("a/b", 1, Hold::Counted)), refused(Refusal::NoParent));
    // Nor is it what somebody who makes sure of it asks for.
    assert_eq!(cluster.done(2, create("a/b", 20, "a")), refused(Refusal::NoParent));

    // One of the same name is another quota.
    assert_eq!(cluster.done(2, create("a", 30, "")), Outcome::Created { limit: 30 });
    cluster.run(SECOND);
    assert_eq!(cluster.done(1, create("a/b", 20, "a")), refused(Refusal::NoParent));
    assert_eq!(cluster.share(0, "a").table.limit, Some(30), "the site that is asked has heard of it");
    assert_eq!(cluster.done(0, acquire("a/b", 1, Hold::Counted)), refused(Refusal::NoParent));
    assert_eq!(cluster.done(0, delete("a/b")), Outcome::Deleted);
}

#[test]
fn what_a_lost_site_had_granted_keeps_a_child_until_it_is_reclaimed() {
    let mut cluster = company(3);
    assert!(granted(&cluster.done(2, acquire("acme/web/a", 4, Hold::Counted))));
    cluster.run(3 * SECOND);
    lose(&mut cluster, 2);
    cluster.run(5 * SECOND);
    match cluster.done(0, delete("acme/web/a")) {
        Outcome::Refused(Refusal::InUse { amount }) => assert!((4..=60).contains(&amount), "{amount}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn parent_is_not_deleted_where_a_site_missed_its_child() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create("a", 30, ""));
    cluster.run(SECOND);
    cluster.cut = vec![(0, 2), (1, 2)];
    assert_eq!(cluster.done(0, create("a/b", 20, "a")), Outcome::Created { limit: 20 });
    cluster.run(SECOND);
    cluster.cut.clear();

    // The others do not close it.
    let gone = cluster.submit(2, delete("a"));
    cluster.run(30 * SECOND);
    assert_eq!(cluster.outcome(2, gone), Some(refused(Refusal::DeadlinePassed)));
    assert!(granted(&cluster.done(2, acquire("a/b", 20, Hold::Counted))));
}

#[test]
fn request_in_line_above_ends_with_its_quota_and_with_its_limit() {
    let mut cluster = company(3);
    assert!(granted(&cluster.done(0, acquire("acme/batch", 80, Hold::Counted))));
    let waits = |amount| Operation::Acquire { quota: "acme/web".into(), amount, hold: Hold::Counted, waits: true };
    let first = cluster.submit(1, waits(30));
    let second = cluster.submit(1, waits(20));
    cluster.run(SECOND / 4);
    let set = Operation::SetLimit { quota: "acme/web".into(), limit: 25 };
    assert_eq!(cluster.done(0, set), Outcome::LimitSet { limit: 25, excess: 0 });
    cluster.run(SECOND / 4);
    assert_eq!(cluster.outcome(1, first), Some(refused(Refusal::AboveLimit { limit: 25, level: 0 })));
    assert_eq!(cluster.outcome(1, second), None);

    // It held up its siblings.
    for name in ["acme/web/a", "acme/web"] {
        assert_eq!(cluster.done(0, delete(name)), Outcome::Deleted);
    }
    cluster.run(SECOND / 4);
    assert_eq!(cluster.outcome(1, second), Some(refused(Refusal::QuotaDeleted)));
    assert!(granted(&cluster.done(1, acquire("acme/batch", 10, Hold::Counted))));
}

/// Each waits in the line of another level than the one whose limit is lowered, or of its own.
#[test]
fn request_in_line_ends_with_the_limit_of_any_level_above_it_or_below() {
    // One in the line of the company, whose team gets a lower limit; one in its own line, whose company does.
    for (short, lowered, level) in [("acme/batch", "acme/web", 8), ("acme/web/a", "acme", 4)] {
        let mut cluster = company(3);
        let amount = if short == "acme/batch" { 85 } else { 55 };
        assert!(granted(&cluster.done(0, acquire(short, amount, Hold::Counted))));
        let waits =
            |amount| Operation::Acquire { quota: "acme/web/a".into(), amount, hold: Hold::Counted, waits: true };
        let waiting = cluster.submit(1, waits(30));
        cluster.run(SECOND / 4);
        assert_eq!(cluster.outcome(1, waiting), None);
        let set = Operation::SetLimit { quota: lowered.into(), limit: 25 };
        assert!(matches!(cluster.done(0, set), Outcome::LimitSet { limit: 25, .. }));
        cluster.run(SECOND / 2);
        let refused = refused(Refusal::AboveLimit { limit: 25, level });
        assert_eq!(cluster.outcome(1, waiting), Some(refused), "no release would serve it: {lowered}");
    }
}

/// It has missed that the parent was deleted and created again, and only knows that it was about to be deleted.
#[test]
fn creation_below_a_parent_that_was_about_to_be_deleted_waits_for_what_became_of_it() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.done(0, create("p", 90, "")), Outcome::Created { limit: 90 });
    cluster.run(SECOND);
    let deleted = cluster.submit(0, delete("p"));
    while cluster.outcome(0, deleted).is_none() {
        cluster.run(1_000);
        // What is decided does not arrive there.
        let is_closing = cluster.share(2, "p").round.as_ref().is_some_and(|round| round.closing);
        if is_closing {
            cluster.cut = vec![(0, 2), (1, 2)];
        }
    }
    assert_eq!(cluster.outcome(0, deleted), Some(Outcome::Deleted));
    assert_eq!(cluster.done(0, create("p", 80, "")), Outcome::Created { limit: 80 });
    assert!(cluster.share(2, "p").round.is_some(), "the third has heard of neither");
    cluster.cut.clear();
    assert_eq!(cluster.done(2, create("p/x", 9, "p")), Outcome::Created { limit: 9 });
    assert!(granted(&cluster.done(2, acquire("p/x", 3, Hold::Counted))), "below the one that is there now");
}

/// The name begins anew with its first generation, which is another quota's.
#[test]
fn name_is_not_forgotten_while_a_quota_is_below_it() {
    let mut cluster = Cluster::keeping(3, 5 * SECOND);
    cluster.done(0, create("a", 30, ""));
    cluster.run(SECOND);
    let (child, gone) = (cluster.submit(1, create("a/b", 20, "a")), cluster.submit(0, delete("a")));
    cluster.run(60 * SECOND);
    assert_eq!(cluster.outcome(1, child), Some(Outcome::Created { limit: 20 }));
    assert_eq!(cluster.outcome(0, gone), Some(Outcome::Deleted));
    assert_eq!(cluster.done(2, create("a", 30, "")), Outcome::Created { limit: 30 });
    assert_eq!(cluster.done(0, acquire("a/b", 1, Hold::Counted)), refused(Refusal::NoParent));
    assert_eq!(cluster.done(0, delete("a")), refused(Refusal::HasChildren));
    assert_eq!(cluster.done(0, delete("a/b")), Outcome::Deleted);
    assert_eq!(cluster.done(0, delete("a")), Outcome::Deleted);
    cluster.run(60 * SECOND);
    assert_eq!(cluster.done(2, create("a", 30, "")), Outcome::Created { limit: 30 });
}

/// A creation waits at a site that is cut off, and meanwhile what it is to be below is deleted.
#[test]
fn creation_that_waited_while_its_parent_was_deleted_is_refused() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create("p", 30, ""));
    cluster.run(SECOND);
    let links = vec![(1, 0), (0, 1), (1, 2), (2, 1)];
    cluster.cut = links.clone();
    let (site, incarnation, session) = cluster.session(1);
    let operations = vec![Submission { sequence: 1, timeout: 60 * SECOND, operation: create("p/x", 20, "p") }];
    cluster.request(1, 1, Request::Batch(Batch { site, incarnation, session, low: 1, operations }));
    cluster.run(20 * SECOND);

    // What the others ask of it arrives, and what it says to the one that deletes; but it reaches no majority by itself.
    cluster.cut = vec![(1, 0)];
    let gone = cluster.submit(2, delete("p"));
    while cluster.outcome(2, gone).is_none() {
        cluster.run(10 * MILLISECOND);
    }
    assert_eq!(cluster.outcome(2, gone), Some(Outcome::Deleted));
    cluster.cut.clear();
    cluster.run(10 * SECOND);
    assert_eq!(cluster.outcome(1, 1), Some(refused(Refusal::NoParent)));
}

/// A company and its web team at one site. Each has so many tokens, and so many come back a second.
fn refilling(company: (i64, u64), web: (i64, u64)) -> Cluster {
    let mut cluster = Cluster::new(1);
    for (name, (limit, rate), above) in [("acme", company, 0), ("acme/web", web, 4)] {
        let parent = (above > 0).then_some(Parent { length: above, generation: 0 });
        let charter = Charter { refill: rate * 1_000_000, parent, ..Charter::default() };
        let create = Operation::Create { quota: name.into(), limit, charter };
        assert_eq!(cluster.done(0, create), Outcome::Created { limit });
    }
    cluster
}

/// What the company could have refilled while it was idle is not saved up for what is granted of its team then.
#[test]
fn parent_that_was_idle_refills_no_more_than_its_rate() {
    let mut cluster = refilling((60, 1), (60, 60));
    cluster.run(180 * SECOND);
    assert!(granted(&cluster.done(0, acquire("acme/web", 60, Hold::Counted))));
    cluster.run(5 * SECOND);
    let left = cluster.show(0, "acme").in_use_max;
    assert!((54..=56).contains(&left), "five seconds bring five of 60 back: {left}");
}

/// The request waits for tokens of the company. The time for which it waited is not that of what it is granted of its team in the end.
#[test]
fn quota_below_the_short_one_begins_to_refill_when_what_waited_is_granted() {
    let mut cluster = refilling((10, 1_000), (5, 1_000));
    assert!(granted(&cluster.done(0, acquire("acme", 10, Hold::Counted))));
    let waits = Operation::Acquire { quota: "acme/web".into(), amount: 5, hold: Hold::Counted, waits: true };
    let waiting = cluster.submit(0, waits);
    assert_eq!(cluster.outcome(0, waiting), None, "nothing is left of the company's");
    while cluster.outcome(0, waiting).is_none() {
        cluster.run(MILLISECOND);
    }
    assert!(cluster.outcome(0, waiting).is_some_and(|outcome| granted(&outcome)));
    let more = cluster.submit(0, acquire("acme/web", 5, Hold::Counted));
    let is_more = cluster.outcome(0, more).is_some_and(|outcome| granted(&outcome));
    assert!(!is_more, "five were granted within the last millisecond, and it brings one");
}

/// `acme` and `acme/web` below it, with these limits.
fn two_levels(above: i64, below: i64) -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create("acme", above, ""));
    cluster.done(0, create("acme/web", below, "acme"));
    cluster.run(SECOND);
    cluster
}

/// An acquire of the lower one that stays in line at the first site.
fn stand_in_line(cluster: &mut Cluster, amount: i64) -> u64 {
    let wait = Operation::Acquire { quota: "acme/web".into(), amount, hold: Hold::Counted, waits: true };
    cluster.submit_for(0, wait, 600 * SECOND)
}

/// The first in the line below is refused by a limit that is lowered above; the next one comes from there to the line above, which has what it
/// needs nowhere: it leads the next round, while the round that lowered the limit is being taken over.
#[test]
fn round_that_is_led_while_a_lower_limit_is_taken_over_is_looked_after() {
    let mut cluster = two_levels(3000, 3000);
    assert!(granted(&cluster.done(0, acquire("acme/web", 80, Hold::Counted))));
    for (at, amount) in [(0, 900), (1, 1000), (2, 1000)] {
        assert!(granted(&cluster.done(at, acquire("acme", amount, Hold::Counted))), "{at}");
    }
    let (too_many, next) = (stand_in_line(&mut cluster, 2995), stand_in_line(&mut cluster, 50));
    cluster.run(5 * SECOND);
    assert!((50..2995).contains(&cluster.free(0, "acme/web")) && cluster.free(0, "acme") == 20);

    let lower = cluster.submit(0, Operation::SetLimit { quota: "acme".into(), limit: 2990 });
    cluster.run_and_look(3 * SECOND, |cluster| {
        for host in &cluster.hosts {
            let mut quotas = host.node.as_ref().expect("it runs").chapters().quotas.iter();
            assert!(quotas.all(|quota| quota.is_looked_after()), "what goes on in a quota has no timer");
        }
    });
    assert_eq!(cluster.outcome(0, lower), Some(Outcome::LimitSet { limit: 2990, excess: 0 }));
    let level = "acme".len() as u16;
    assert_eq!(cluster.outcome(0, too_many), Some(refused(Refusal::AboveLimit { limit: 2990, level })));
    assert_eq!(cluster.outcome(0, next), None);

    cluster.done(1, release("acme", 100));
    cluster.run(3 * SECOND);
    assert!(cluster.outcome(0, next).is_some_and(|outcome| granted(&outcome)), "it is met by what came back");
}

/// A thousand wait at one site, while at another one comes back at a time, of the level below and of the one above in turn. Each is granted what
/// came back, and the line stays where it is: it does not go from one level to the other with each token.
#[test]
fn line_of_a_thousand_stays_where_it_is_while_single_tokens_come_back() {
    const WAIT: u64 = 1000;
    let mut cluster = two_levels(100, 100);
    for _ in 0..100 {
        assert!(granted(&cluster.done(1, acquire("acme/web", 1, Hold::Counted))));
    }
    let line: Vec<u64> = (0..WAIT).map(|_| stand_in_line(&mut cluster, 1)).collect();
    cluster.run(2 * SECOND);

    let waiting = |cluster: &Cluster, name: &str| {
        let node = cluster.hosts[0].node.as_ref().expect("it runs");
        node.chapters().quotas.find(name).expect("it is there").waiting()
    };
    for released in 1..=20 {
        cluster.done(1, release("acme/web", 1));
        cluster.run_and_look(SECOND, |cluster| {
            let above = waiting(cluster, "acme");
            assert!(above < 64, "{above} wait above");
        });
        let left = waiting(&cluster, "acme") + waiting(&cluster, "acme/web");
        assert_eq!(left, WAIT as usize - released, "each token that came back is granted");
        let first = cluster.outcome(0, line[released - 1]);
        assert!(first.is_some_and(|outcome| granted(&outcome)), "{released} is the first");
    }

    // There is much of the level below now, and much comes back of the one above: those that stayed below follow at once.
    let raised = cluster.done(1, Operation::SetLimit { quota: "acme/web".into(), limit: 1000 });
    assert_eq!(raised, Outcome::LimitSet { limit: 1000, excess: 0 });
    cluster.run(5 * SECOND);
    let above = waiting(&cluster, "acme");
    assert!((1..64).contains(&above), "{above} wait above");
    cluster.submit(0, release("acme", 70));
    cluster.run(MILLISECOND);
    let left = waiting(&cluster, "acme") + waiting(&cluster, "acme/web");
    assert_eq!(left, WAIT as usize - 90, "each token that came back is granted");
}

/// One token comes of the level below, and then one of the level above, again and again. Whoever is first in the line below goes up with the
/// first of them, and is granted with the second: nobody takes its place meanwhile.
#[test]
fn first_of_a_line_that_goes_up_stays_the_first() {
    let mut cluster = two_levels(200, 100);
    for _ in 0..100 {
        assert!(granted(&cluster.done(1, acquire("acme/web", 1, Hold::Counted))));
        assert!(granted(&cluster.done(1, acquire("acme", 1, Hold::Counted))));
    }
    let waiting: Vec<u64> = (0..20).map(|_| stand_in_line(&mut cluster, 1)).collect();
    cluster.run(2 * SECOND);
    for (number, first) in waiting.iter().enumerate() {
        let limit = 101 + number as i64;
        cluster.done(1, Operation::SetLimit { quota: "acme/web".into(), limit });
        cluster.run(SECOND);
        cluster.done(1, release("acme", 1));
        cluster.run(SECOND);
        assert!(cluster.outcome(0, *first).is_some_and(|outcome| granted(&outcome)), "{number} is the first");
    }
}
