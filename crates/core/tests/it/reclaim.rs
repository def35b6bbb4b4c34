//! Scenarios of what lost storage had, and an operator brings back; named subject_condition_outcome.

use slackline_core::api::{Operation, Outcome, Refusal, SeatChange};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{Incarnation, SiteSet};

use crate::cluster::{Cluster, DELAY};
use crate::quotas::{acquire, create, granted, release};

const US: usize = 0;
const EU: usize = 1;
const AP: usize = 2;

/// An operator's word: these incarnations are lost, and so many tokens that they granted are in use.
pub(crate) fn reclaim(lost: &[(usize, u32)], in_use: i64) -> Operation {
    let lost = lost.iter().map(|&(at, incarnation)| (Cluster::site(at), Incarnation(incarnation))).collect();
    Operation::Reclaim { quota: "gpus".into(), lost, in_use }
}

fn refused(refusal: Refusal) -> Outcome {
    Outcome::Refused(refusal)
}

/// A site loses its disk, and starts on new storage, which all quotas record.
pub(crate) fn lose(cluster: &mut Cluster, at: usize) {
    cluster.kill(at);
    cluster.hosts[at].put_back(Default::default());
    // Its sessions begin again at the first.
    cluster.responses.clear();
    cluster.start(at);
    cluster.run(3 * SECOND);
}

/// What is in use, which is known exactly.
fn in_use(cluster: &mut Cluster) -> i64 {
    cluster.run(3 * SECOND);
    let shown = cluster.show(EU, "gpus");
    assert_eq!(shown.in_use_min, shown.in_use_max, "{shown:?}");
    shown.in_use_min
}

/// Three sites of a quota of 90, of which the third has granted 20.
fn with_twenty_granted() -> Cluster {
    of_sites(3)
}

fn of_sites(sites: usize) -> Cluster {
    let mut cluster = Cluster::new(sites);
    cluster.done(US, create(90));
    assert!(granted(&cluster.done(AP, acquire(20))));
    cluster.run(3 * SECOND);
    cluster
}

#[test]
fn tokens_of_lost_storage_come_back_but_for_those_in_use() {
    let mut cluster = with_twenty_granted();
    let had = cluster.tokens(AP, "gpus");
    assert!(had > 0);
    lose(&mut cluster, AP);
    assert_eq!(in_use(&mut cluster), had + 20, "what it had and what it granted counts as in use");

    assert_eq!(cluster.done(US, reclaim(&[(AP, 1)], 20)), Outcome::Reclaimed { brought: had, in_use: 20 });
    assert_eq!(in_use(&mut cluster), 20);
    assert!(granted(&cluster.done(AP, acquire(70))), "all that is free can be had, anywhere");

    assert_eq!(cluster.done(EU, release(90)), Outcome::Released { amount: 90 });
    assert_eq!(in_use(&mut cluster), 0);
    assert!(granted(&cluster.done(US, acquire(90))));
}

/// An election to reclaim what the third had begins while the fourth is declared lost, and ends when it is so. What the fourth has granted is no
/// part of what was lost with the third.
#[test]
fn word_that_is_given_during_a_change_of_the_members_brings_back_nothing_of_who_leaves() {
    for step in 0..30 {
        let mut cluster = Cluster::new(5);
        cluster.done(US, create(500));
        cluster.run(3 * SECOND);
        assert!(granted(&cluster.done(3, acquire(60))));
        lose(&mut cluster, AP);
        cluster.kill(3);
        cluster.run(10 * SECOND);
        let tokens = |cluster: &Cluster| [US, EU, AP, 4].iter().map(|&at| cluster.tokens(at, "gpus")).sum::<i64>();
        let before = tokens(&cluster);
        let label = "site 3".to_owned();
        cluster.submit(US, Operation::Seat { site: Cluster::site(3), change: SeatChange::Lost, label });
        cluster.run(step * 10 * MILLISECOND);
        let word = cluster.submit(US, reclaim(&[(AP, 1)], 0));
        cluster.run(20 * SECOND);
        let brought = match cluster.outcome(US, word) {
            Some(Outcome::Reclaimed { brought, .. }) => brought,
            _ => 0,
        };
        assert!(brought <= 100, "conservation: {brought} of 100 come back, asked for {step}0 ms later");
        assert_eq!(tokens(&cluster), before + brought);
    }
}

#[test]
fn tokens_that_were_reclaimed_are_reclaimed_no_second_time() {
    let mut cluster = with_twenty_granted();
    lose(&mut cluster, AP);
    assert!(matches!(cluster.done(US, reclaim(&[(AP, 1)], 20)), Outcome::Reclaimed { .. }));
    for at in [US, EU, AP] {
        assert_eq!(cluster.done(at, reclaim(&[(AP, 1)], 0)), refused(Refusal::NothingLost));
    }

    // The next loss brings back what was lost then, and nothing of what was said to be in use before.
    let had = cluster.tokens(AP, "gpus");
    lose(&mut cluster, AP);
    let above = cluster.done(US, reclaim(&[(AP, 2)], had + 1));
    assert_eq!(above, refused(Refusal::AboveLost { at_most: had }), "reclaimed twice: conservation");
    assert_eq!(cluster.done(US, reclaim(&[(AP, 2)], 0)), Outcome::Reclaimed { brought: had, in_use: 0 });
    assert_eq!(in_use(&mut cluster), 20);
    assert_eq!(cluster.done(EU, release(20)), Outcome::Released { amount: 20 });
    assert!(granted(&cluster.done(EU, acquire(90))));
}

#[test]
fn word_about_what_is_not_lost_is_refused() {
    let mut cluster = with_twenty_granted();
    assert_eq!(cluster.done(US, reclaim(&[(AP, 1)], 0)), refused(Refusal::IncarnationLives));
    assert_eq!(cluster.done(AP, reclaim(&[(AP, 1)], 0)), refused(Refusal::IncarnationLives));
    for incarnation in [0, 2, 7] {
        assert_eq!(cluster.done(US, reclaim(&[(AP, incarnation)], 0)), refused(Refusal::NothingLost));
    }
    assert_eq!(cluster.done(US, reclaim(&[(AP, 1)], -1)), refused(Refusal::InvalidAmount));

    // Nor can what was lost before there was the quota be reclaimed.
    lose(&mut cluster, AP);
    cluster.done(US, Operation::Delete { quota: "gpus".into() });
    cluster.done(US, create(90));
    cluster.run(SECOND);
    assert_eq!(cluster.done(US, reclaim(&[(AP, 1)], 0)), refused(Refusal::NothingLost));
    assert_eq!(in_use(&mut cluster), 0);
}

#[test]
fn word_that_the_books_refute_is_refused_and_changes_nothing() {
    let mut cluster = with_twenty_granted();
    let had = cluster.tokens(AP, "gpus");
    lose(&mut cluster, AP);
    let too_much = reclaim(&[(AP, 1)], had + 21);
    assert_eq!(cluster.done(US, too_much), refused(Refusal::AboveLost { at_most: had + 20 }));

    // They are released elsewhere: that site's books have a release too many, so the lost ones had a grant.
    assert_eq!(cluster.done(US, release(20)), Outcome::Released { amount: 20 });
    assert_eq!(in_use(&mut cluster), had);
    assert_eq!(cluster.done(EU, reclaim(&[(AP, 1)], 19)), refused(Refusal::BelowReleased { at_least: 20 }));
    assert_eq!(in_use(&mut cluster), had);
    assert_eq!(cluster.done(EU, reclaim(&[(AP, 1)], 20)), Outcome::Reclaimed { brought: had, in_use: 20 });
    assert_eq!(in_use(&mut cluster), 0);
}

#[test]
fn word_that_leaves_out_another_lost_site_is_refused() {
    let mut cluster = with_twenty_granted();
    assert!(granted(&cluster.done(EU, acquire(5))));
    lose(&mut cluster, AP);
    lose(&mut cluster, EU);
    let also = |at| refused(Refusal::AlsoLost { sites: SiteSet::of(at) });
    assert_eq!(cluster.done(US, reclaim(&[(AP, 1)], 20)), also(EU));
    assert_eq!(cluster.done(US, reclaim(&[(EU, 1)], 5)), also(AP));

    let lost = in_use(&mut cluster);
    let both = cluster.done(US, reclaim(&[(AP, 1), (EU, 1)], 25));
    assert_eq!(both, Outcome::Reclaimed { brought: lost - 25, in_use: 25 });
    assert_eq!(in_use(&mut cluster), 25);

    // The newest that is lost stands for those before it, and is named.
    lose(&mut cluster, AP);
    lose(&mut cluster, AP);
    assert_eq!(cluster.done(US, reclaim(&[(AP, 2)], 0)), also(AP));
    assert!(matches!(cluster.done(US, reclaim(&[(AP, 3)], 0)), Outcome::Reclaimed { .. }));
    assert_eq!(in_use(&mut cluster), 25);
}

/// A gift that it gave to the site's lost incarnation would be taken for one that is under way to the present one.
#[test]
fn word_comes_to_nothing_while_a_site_does_not_know_of_the_new_incarnation() {
    let mut cluster = of_sites(5);
    let had = cluster.tokens(AP, "gpus");
    cluster.cut = vec![(US, AP), (AP, US)];
    lose(&mut cluster, AP);
    let share = cluster.share(US, "gpus");
    assert_eq!(share.table.recorded(Cluster::site(AP)), Incarnation(2), "it knows from the others' round");

    let early = cluster.done(EU, reclaim(&[(AP, 1)], 20));
    assert_eq!(early, refused(Refusal::DeadlinePassed), "books of other incarnations are no books");
    cluster.cut.clear();
    cluster.run(3 * SECOND);
    assert_eq!(cluster.done(EU, reclaim(&[(AP, 1)], 20)), Outcome::Reclaimed { brought: had, in_use: 20 });
    assert_eq!(in_use(&mut cluster), 20);
}

#[test]
fn word_needs_every_site() {
    let mut cluster = with_twenty_granted();
    lose(&mut cluster, AP);
    cluster.kill(EU);
    cluster.run(4 * SECOND);
    let missing = SiteSet::of(EU);
    assert_eq!(cluster.done(US, reclaim(&[(AP, 1)], 20)), refused(Refusal::Unreachable { missing }));
    cluster.start(EU);
    cluster.run(SECOND);
    assert!(matches!(cluster.done(US, reclaim(&[(AP, 1)], 20)), Outcome::Reclaimed { .. }));
    assert_eq!(in_use(&mut cluster), 20);
}

/// What is brought back while more is out than the limit pays for that first.
#[test]
fn tokens_that_come_back_pay_the_excess_first() {
    let mut cluster = with_twenty_granted();
    lose(&mut cluster, AP);
    assert!(matches!(cluster.done(US, acquire(30)), Outcome::Granted { .. }));
    let lowered = cluster.done(US, Operation::SetLimit { quota: "gpus".into(), limit: 55 });
    let Outcome::LimitSet { excess, .. } = lowered else { panic!("{lowered:?}") };
    assert!(excess > 0, "what is lost counts as in use");

    assert!(matches!(cluster.done(EU, reclaim(&[(AP, 1)], 20)), Outcome::Reclaimed { .. }));
    cluster.run(3 * SECOND);
    let shown = cluster.show(US, "gpus");
    assert_eq!((shown.limit, shown.excess, shown.in_use_min), (55, 0, 50));
    assert!(granted(&cluster.done(AP, acquire(5))));
}

/// Two operators at one site say the same number, of different incarnations; whether the first brings anything back or not.
#[test]
fn word_is_not_answered_by_the_round_of_another() {
    for is_all_granted in [false, true] {
        let mut cluster = with_twenty_granted();
        let mut in_use = 20;
        if is_all_granted {
            let rest = cluster.tokens(AP, "gpus");
            assert!(granted(&cluster.done(AP, acquire(rest))));
            in_use += rest;
        }
        let had = cluster.tokens(AP, "gpus");
        assert_eq!(had == 0, is_all_granted);
        lose(&mut cluster, AP);
        let first = cluster.submit(US, reclaim(&[(AP, 1)], in_use));
        // The value is out, and not decided.
        cluster.run(5 * DELAY / 2);
        assert_eq!(cluster.outcome(US, first), None);
        let second = cluster.submit(US, reclaim(&[(EU, 1)], in_use));
        cluster.run(SECOND);
        assert_eq!(cluster.outcome(US, first), Some(Outcome::Reclaimed { brought: had, in_use }));
        let answer = cluster.outcome(US, second);
        assert_eq!(answer, Some(refused(Refusal::IncarnationLives)), "told what another's round has done");
    }
}

/// A change of a limit that comes while the value is out that deletes the quota has certainly not happened.
#[test]
fn limit_that_is_set_while_a_deletion_is_out_is_refused() {
    let mut cluster = with_twenty_granted();
    assert_eq!(
        cluster.done(US, Operation::Create { quota: "other".into(), limit: 10, charter: Default::default() }),
        Outcome::Created { limit: 10 }
    );
    let deletion = cluster.submit(US, Operation::Delete { quota: "other".into() });
    cluster.run(5 * DELAY / 2);
    assert_eq!(cluster.outcome(US, deletion), None);
    let change = cluster.submit(US, Operation::SetLimit { quota: "other".into(), limit: 20 });
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(US, deletion), Some(Outcome::Deleted));
    assert_eq!(cluster.outcome(US, change), Some(refused(Refusal::QuotaDeleted)));
}
