//! Scenarios of members that change, named subject_condition_outcome.

use std::ops::Range;

use slackline_core::api::{
    Batch, Hold, NoSeat, Operation, Outcome, Readiness, Refusal, Request, Response, SeatChange, Shown, Submission,
    UnknownReason,
};
use slackline_core::avantan::Charter;
use slackline_core::avantan::subset::{self, Key};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{Incarnation, OperationId};
use slackline_core::machine::{Effect, Input, Machine as _, View};
use slackline_core::node::Stale;
use slackline_core::object::message::Message;
use slackline_core::object::{Change, Part};
use slackline_core::peer::quota::QuotaMessage;
use slackline_core::peer::{Body, PeerMessage, SiteMessage};

use crate::cluster::Cluster;
use crate::quotas::granted;
use crate::reclaim::{lose, reclaim};
use crate::txns::{Txn, asked_by, bytes, commit, committed, key, prepare, tell, value};

fn seat(at: usize, change: SeatChange) -> Operation {
    Operation::Seat { site: Cluster::site(at), change, label: format!("site {at}") }
}

fn acquire(amount: i64) -> Operation {
    Operation::Acquire { quota: "gpus".into(), amount, hold: Hold::Counted, waits: false }
}

fn refused(why: NoSeat, count: u64) -> Outcome {
    Outcome::Refused(Refusal::NoSeat { why, count })
}

/// A cluster with a quota of 90 tokens.
fn cluster(sites: usize) -> Cluster {
    let mut cluster = Cluster::new(sites);
    assert_eq!(cluster.done(0, Operation::create("gpus", 90)), Outcome::Created { limit: 90 });
    cluster.run(SECOND);
    cluster
}

/// Three sites with a quota that refills.
fn refilling(limit: i64, refill: u64) -> Cluster {
    let mut cluster = Cluster::new(3);
    let charter = Charter { refill, ..Charter::default() };
    let create = Operation::Create { quota: "gpus".into(), limit, charter };
    assert_eq!(cluster.done(0, create), Outcome::Created { limit });
    cluster
}

/// A site joins.
fn join(cluster: &mut Cluster) -> usize {
    let new = cluster.add_host();
    assert_eq!(cluster.done(0, seat(new, SeatChange::Joins)), Outcome::Seated { number: 1 });
    new
}

/// The tokens of these sites, and what they have granted that is to be refilled.
fn held(cluster: &Cluster, range: Range<usize>) -> (i64, i64) {
    let backlog = |at: usize| {
        let node = cluster.hosts[at].node.as_ref().expect("runs");
        node.chapters().quotas.find("gpus").expect("exists").backlog()
    };
    (range.clone().map(|at| cluster.tokens(at, "gpus")).sum(), range.map(backlog).sum())
}

/// What is in use of it, by the count of a site, once nothing moves.
fn in_use(cluster: &mut Cluster, at: usize) -> i64 {
    cluster.run(4 * SECOND);
    let Shown { in_use_min, in_use_max, missing, .. } = cluster.show(at, "gpus");
    assert!(missing.is_empty(), "all members answer");
    assert_eq!(in_use_min, in_use_max, "the quota is at rest");
    in_use_max
}

/// The number of quotas that have not recorded the last change, as far as a site knows.
fn behind(cluster: &Cluster, at: usize) -> u64 {
    cluster.hosts[at].node.as_ref().expect("runs").chapters().quotas.behind()
}

/// One member is gone, and another joined of which this site has not heard yet. Both are told what was decided; the new one answers for
/// itself.
#[test]
fn member_that_is_not_known_yet_is_not_taken_for_one_that_is_gone() {
    let mut cluster = cluster(4);
    cluster.kill(3);
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(0, seat(3, SeatChange::Lost)), Outcome::Seated { number: 1 });
    cluster.run(2 * SECOND);
    cluster.cut = vec![(0, 2), (2, 0), (1, 2), (2, 1)];

    let id = asked_by(0);
    let part = Part { writes: vec![("x".into(), Change::Put(bytes("1")))], ..Part::default() };
    let participants = [2, 4].map(|at| (Cluster::site(at), Incarnation(1)));
    let asked = prepare(id, cluster.time(2).wall + 5 * SECOND as i64, &participants, part);
    tell(&mut cluster, 0, 2, Message::Prepare(Box::new(asked)));
    tell(&mut cluster, 0, 2, Message::Decide { id, commit: true });
    assert_eq!(value(&mut cluster, 2, &key(2, "x")), Some(bytes("1")), "it is carried out");
    cluster.run(20 * SECOND);
    let (_, parts) = cluster.hosts[2].node.as_ref().expect("runs").chapters().txns.under_way();
    assert_eq!(parts, 1, "the new member may ask what became of it");
}

fn number(cluster: &Cluster, at: usize) -> u64 {
    let node = cluster.hosts[at].node.as_ref().expect("runs");
    node.chapters().quotas.roster().map_or(0, |roster| roster.number)
}

fn readiness(cluster: &Cluster, at: usize) -> Readiness {
    cluster.hosts[at].node.as_ref().expect("runs").readiness()
}

#[test]
fn site_that_joins_serves_from_tokens_that_others_give() {
    let mut cluster = cluster(3);
    let new = cluster.add_host();
    cluster.run(SECOND);
    assert_eq!(readiness(&cluster, new), Readiness::Joining, "nobody knows it");

    assert_eq!(cluster.done(0, seat(new, SeatChange::Joins)), Outcome::Seated { number: 1 });
    cluster.run(2 * SECOND);
    assert_eq!(readiness(&cluster, new), Readiness::Ready);
    assert!(granted(&cluster.done(new, acquire(7))));
    assert!(granted(&cluster.done(1, acquire(5))));
    assert_eq!(in_use(&mut cluster, new), 12);
    assert_eq!(in_use(&mut cluster, 0), 12);
    for at in 0..4 {
        assert_eq!((number(&cluster, at), behind(&cluster, at)), (1, 0), "site {at}");
    }

    // It is asked for again: that is done already.
    assert_eq!(cluster.done(2, seat(new, SeatChange::Joins)), Outcome::Seated { number: 1 });

    // All of them start again, and know each other.
    for at in 0..4 {
        cluster.kill(at);
    }
    (0..4).for_each(|at| cluster.start(at));
    cluster.run(2 * SECOND);
    assert!(granted(&cluster.done(new, acquire(1))));
    assert_eq!(in_use(&mut cluster, 2), 13);
}

/// The quota may be gone by the word of the members before it, so that tokens would be lost with what it has.
#[test]
fn site_that_joined_is_given_nothing_of_a_quota_before_a_round_knows_it() {
    let mut cluster = cluster(3);
    let new = join(&mut cluster);
    while readiness(&cluster, new) != Readiness::Ready {
        cluster.run(MILLISECOND);
    }
    assert_eq!(cluster.share(0, "gpus").table.membership, 0, "a round was faster");
    let has = cluster.tokens(0, "gpus");

    // Two of four are no majority, so no round is decided. The one that has tokens hears that the other is short.
    cluster.cut = [1, 2].iter().flat_map(|at| [(*at, 0), (0, *at), (*at, new), (new, *at)]).collect();
    let asked = cluster.submit(new, acquire(5));
    cluster.run(4 * SECOND);
    assert_eq!(cluster.share(new, "gpus").table.limit, Some(90), "it knows the quota");
    assert_eq!(cluster.tokens(0, "gpus"), has, "a site that is new was given tokens");
    assert!(!cluster.outcome(new, asked).is_some_and(|outcome| granted(&outcome)));

    cluster.cut.clear();
    cluster.run(4 * SECOND);
    assert!(granted(&cluster.done(new, acquire(5))));
}

/// It answers others before it has its first incarnation: a part that it got then would name one that it never had, and is not lost.
#[test]
fn write_to_a_site_that_has_not_joined_yet_is_refused_and_nothing_is_said_to_be_lost() {
    let mut cluster = cluster(3);
    let new = join(&mut cluster);
    let write = || Txn::new().put(&key(new as u16, "a"), "1").operation();
    let mut asked = Vec::new();
    while readiness(&cluster, new) != Readiness::Ready {
        asked.push(cluster.submit(0, write()));
        cluster.run(5 * MILLISECOND);
    }
    cluster.run(3 * SECOND);
    let lost = Some(Outcome::Unknown(UnknownReason::HomeLost));
    assert!(asked.iter().all(|&asked| cluster.outcome(0, asked) != lost), "a home is said to be lost, and none is");
    assert_eq!(cluster.done(0, write()), committed(1));
}

/// Three sites and one that has joined and has heard of a quota. No round knows it: two of the four are a majority no more, and hear neither of the
/// others.
fn joined_and_not_recorded() -> (Cluster, usize) {
    let mut cluster = cluster(3);
    (0..3).for_each(|at| assert!(granted(&cluster.done(at, acquire(30)))));
    let new = join(&mut cluster);
    while readiness(&cluster, new) != Readiness::Ready {
        cluster.run(MILLISECOND);
    }
    cluster.cut = [1, 2].iter().flat_map(|at| [(*at, 0), (0, *at), (*at, new), (new, *at)]).collect();
    let quotas = |cluster: &Cluster| cluster.hosts[new].node.as_ref().expect("runs").chapters().quotas.len();
    while quotas(&cluster) < 2 {
        cluster.run(MILLISECOND);
    }
    assert_eq!(cluster.share(new, "gpus").table.membership, 0, "a round was faster");
    (cluster, new)
}

/// It may lead rounds, and a round that creates the quota again comes to nothing where others know that it exists.
#[test]
fn creation_at_a_site_that_joined_waits_for_the_round_that_knows_it() {
    let (mut cluster, new) = joined_and_not_recorded();
    let created = cluster.submit(new, Operation::create("gpus", 90));
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(new, created), None);
    let led = cluster.hosts[new].node.as_ref().expect("runs").metrics().rounds_reactive;
    assert_eq!(led, 0, "a round is led that comes to nothing");

    cluster.cut.clear();
    cluster.run(2 * SECOND);
    assert_eq!(cluster.outcome(new, created), Some(Outcome::Created { limit: 90 }));
}

/// It was cut off for long, and tried to have itself recorded ever more seldom. The others have done that meanwhile.
#[test]
fn creation_at_a_site_that_missed_that_it_was_recorded_is_answered_at_once() {
    let (mut cluster, new) = joined_and_not_recorded();
    cluster.run(SECOND);
    cluster.cut = (0..3).flat_map(|at| [(at, new), (new, at)]).collect();
    cluster.run(70 * SECOND);
    assert_eq!(cluster.share(0, "gpus").table.membership, 1, "the others record the change");
    assert_eq!(cluster.share(new, "gpus").table.membership, 0);

    cluster.cut.clear();
    cluster.run(2 * SECOND);
    let created = cluster.submit(new, Operation::create("gpus", 90));
    cluster.run(SECOND / 2);
    assert_eq!(cluster.outcome(new, created), Some(Outcome::Created { limit: 90 }));
}

#[test]
fn next_change_is_refused_until_every_quota_has_recorded_the_last() {
    let mut cluster = cluster(3);
    for name in ["a", "b", "c"] {
        assert_eq!(cluster.done(1, Operation::create(name, 9)), Outcome::Created { limit: 9 });
    }
    let new = join(&mut cluster);

    let next = cluster.add_host();
    assert_eq!(
        cluster.done(0, seat(next, SeatChange::Joins)),
        refused(NoSeat::Unrecorded, 5),
        "four, and who the members are"
    );
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(0, seat(next, SeatChange::Joins)), Outcome::Seated { number: 2 });
    cluster.run(10 * SECOND);
    assert!(granted(&cluster.done(next, acquire(7))));
    assert_eq!(in_use(&mut cluster, new), 7);
}

#[test]
fn site_that_is_lost_counts_as_in_use_until_it_is_reclaimed() {
    let mut cluster = cluster(4);
    assert!(granted(&cluster.done(3, acquire(4))));
    assert_eq!(cluster.done(0, seat(3, SeatChange::Lost)), refused(NoSeat::Lives, 0), "it was heard from lately");
    let had = cluster.tokens(3, "gpus") + 4;
    cluster.kill(3);
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(0, seat(3, SeatChange::Lost)), Outcome::Seated { number: 1 });
    assert_eq!(in_use(&mut cluster, 1), had, "nobody can tell its tokens from its grants");

    assert_eq!(cluster.done(2, reclaim(&[(3, 1)], 4)), Outcome::Reclaimed { brought: had - 4, in_use: 4 });
    assert_eq!(in_use(&mut cluster, 0), 4);
    assert_eq!((0..3).map(|at| cluster.tokens(at, "gpus")).sum::<i64>(), 86);

    // Two of the three that are left are a majority.
    cluster.kill(2);
    cluster.run(5 * SECOND);
    assert_eq!(cluster.done(0, Operation::create("more", 10)), Outcome::Created { limit: 10 });
}

/// It serves as soon as a majority has confirmed it, and does not hear the one that lives.
#[test]
fn site_that_has_just_started_declares_nobody_lost() {
    let mut cluster = cluster(4);
    cluster.kill(0);
    cluster.cut = vec![(3, 0)];
    cluster.start(0);
    while readiness(&cluster, 0) != Readiness::Ready {
        cluster.run(MILLISECOND);
    }
    assert_eq!(cluster.done(0, seat(3, SeatChange::Lost)), refused(NoSeat::Lives, 0), "it has not listened for long");
}

/// Whoever asks for it was cut off all the time that the lost site ran on new storage, and has not heard of that.
#[test]
fn site_that_is_declared_lost_by_one_that_was_away_is_reclaimed_with_all_that_it_had() {
    let mut cluster = cluster(4);
    let new = join(&mut cluster);
    cluster.run(10 * SECOND);
    cluster.cut = [0, 2, 3, new].into_iter().flat_map(|at| [(at, 1), (1, at)]).collect();
    lose(&mut cluster, 3);
    cluster.run(10 * SECOND);
    assert!(granted(&cluster.done(3, acquire(7))), "its new storage has tokens");
    cluster.run(2 * SECOND);
    cluster.kill(3);

    // Before anything arrives there of what was recorded.
    cluster.cut.clear();
    assert_eq!(cluster.done(1, seat(3, SeatChange::Lost)), Outcome::Seated { number: 2 });
    cluster.run(10 * SECOND);
    let left = [0, 1, 2, new];
    let tokens = |cluster: &Cluster| left.iter().map(|&at| cluster.tokens(at, "gpus")).sum::<i64>();
    assert_eq!(in_use(&mut cluster, 0), 90 - tokens(&cluster), "what all its storages had counts as in use");

    // Seven are in use, in truth.
    let had = 90 - tokens(&cluster);
    assert_eq!(cluster.done(2, reclaim(&[(3, 2)], 7)), Outcome::Reclaimed { brought: had - 7, in_use: 7 });
    assert_eq!(in_use(&mut cluster, 0), 7);
    assert_eq!(tokens(&cluster), 83);
    assert_eq!(cluster.done(0, reclaim(&[(3, 1)], 0)), Outcome::Refused(Refusal::NothingLost), "once");
}

#[test]
fn site_that_was_declared_lost_and_returns_does_nothing() {
    let mut cluster = cluster(4);
    cluster.kill(3);
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(0, seat(3, SeatChange::Lost)), Outcome::Seated { number: 1 });
    cluster.run(SECOND);
    cluster.start(3);
    cluster.run(2 * SECOND);
    let stale = |cluster: &Cluster| {
        let node = cluster.hosts[3].node.as_ref().expect("runs");
        (node.readiness(), node.stale())
    };
    assert_eq!(stale(&cluster), (Readiness::Stale, Some(Stale::Removed)));

    // Nor does it on new storage, whatever a person says.
    cluster.kill(3);
    cluster.hosts[3].put_back(Default::default());
    cluster.start(3);
    cluster.run(2 * SECOND);
    assert_eq!(stale(&cluster), (Readiness::Stale, Some(Stale::Removed)));
    assert_eq!(cluster.done(1, seat(3, SeatChange::Joins)), refused(NoSeat::WasMember, 0));
}

#[test]
fn site_that_was_declared_lost_and_still_runs_is_told() {
    let mut cluster = cluster(4);
    // It is cut off, and goes on: what it has is its own, until it hears of what was decided.
    cluster.cut = (0..3).flat_map(|at| [(at, 3), (3, at)]).collect();
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(0, seat(3, SeatChange::Lost)), Outcome::Seated { number: 1 });
    assert!(granted(&cluster.done(3, acquire(1))));
    cluster.cut.clear();
    cluster.run(3 * SECOND);
    let node = cluster.hosts[3].node.as_ref().expect("runs");
    let found = (node.readiness(), node.stale());
    assert_eq!(found, (Readiness::Stale, Some(Stale::Removed)), "a site that is gone does nothing more");
}

#[test]
fn site_that_drains_grants_nothing_and_leaves_when_nothing_is_left() {
    let mut cluster = cluster(3);
    let open = |amount| Operation::Acquire { quota: "gpus".into(), amount, hold: Hold::Open, waits: false };
    assert!(granted(&cluster.done(2, acquire(4))));
    let Outcome::Granted { grant, .. } = cluster.done(2, open(3)) else { panic!("there are enough") };
    assert_eq!(cluster.done(2, seat(2, SeatChange::Leaves)), refused(NoSeat::NotDrained, 0));
    assert_eq!(cluster.done(1, seat(2, SeatChange::Leaves)), refused(NoSeat::OtherSite, 0));
    assert_eq!(cluster.done(1, seat(2, SeatChange::Drains)), refused(NoSeat::OtherSite, 0));

    // Its word outlives a restart, and whoever is asked for tokens there is told to ask elsewhere.
    assert_eq!(cluster.done(2, seat(2, SeatChange::Drains)), Outcome::Seated { number: 0 });
    cluster.kill(2);
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.tokens(2, "gpus"), 0);
    assert_eq!(cluster.done(2, acquire(1)), Outcome::Refused(Refusal::NotReady));
    assert!(granted(&cluster.done(0, acquire(60))), "the others have them");
    assert_eq!(cluster.done(2, seat(2, SeatChange::Leaves)), refused(NoSeat::HasGrants, 1));

    // What is released there goes on to the others.
    assert_eq!(cluster.done(2, Operation::ReleaseGrant { grant, used: 0 }), Outcome::Released { amount: 3 });
    cluster.run(2 * SECOND);
    assert_eq!(cluster.tokens(2, "gpus"), 0);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Leaves)), Outcome::Seated { number: 1 });
    assert_eq!(readiness(&cluster, 2), Readiness::Stale);
    assert_eq!(in_use(&mut cluster, 0), 64, "exact: nothing was lost with it");
    assert_eq!(
        cluster.done(1, Operation::Release { quota: "gpus".into(), amount: 64 }),
        Outcome::Released { amount: 64 }
    );
    assert_eq!(in_use(&mut cluster, 1), 0);
    assert_eq!((0..2).map(|at| cluster.tokens(at, "gpus")).sum::<i64>(), 90);
}

#[test]
fn caller_in_line_at_a_site_that_drains_is_sent_to_another_one() {
    let mut cluster = cluster(3);
    assert!(granted(&cluster.done(0, acquire(90))));
    let waits =
        Operation::Acquire { quota: "gpus".into(), amount: 5, hold: slackline_core::api::Hold::Counted, waits: true };
    let waiting = cluster.submit(2, waits);
    cluster.run(100 * MILLISECOND);
    assert_eq!(cluster.outcome(2, waiting), None, "nothing is free");
    assert_eq!(cluster.done(2, seat(2, SeatChange::Drains)), Outcome::Seated { number: 0 });
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(2, waiting), Some(Outcome::Refused(Refusal::NotReady)), "before its time is up");
    cluster.run(3 * SECOND);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Leaves)), Outcome::Seated { number: 1 });
}

#[test]
fn outcome_that_only_a_site_knew_that_is_gone_is_lost() {
    let mut cluster = cluster(3);
    let (site, incarnation, session) = cluster.session(2);
    assert!(granted(&cluster.done(2, acquire(4))));
    cluster.kill(2);
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(0, seat(2, SeatChange::Lost)), Outcome::Seated { number: 1 });
    cluster.run(SECOND);
    let operation = OperationId { site, incarnation, session, sequence: 1 };
    cluster.request(1, 6, Request::Ask { operation });
    let Some((_, _, Response::Asked { outcome, .. })) = cluster.responses.pop() else { panic!("answered at once") };
    assert_eq!(outcome, Outcome::Unknown(UnknownReason::IncarnationLost));
}

#[test]
fn site_that_has_left_and_starts_again_does_nothing_though_it_would_be_all_that_is_needed() {
    let mut cluster = cluster(2);
    assert_eq!(cluster.done(1, seat(1, SeatChange::Drains)), Outcome::Seated { number: 0 });
    // Long enough for the quota to be put to rest: what was given is known to have arrived.
    cluster.run(200 * SECOND);
    assert_eq!(cluster.done(1, seat(1, SeatChange::Leaves)), Outcome::Seated { number: 1 });
    cluster.cut = vec![(0, 1), (1, 0)];
    cluster.kill(1);
    cluster.start(1);
    cluster.run(2 * SECOND);
    let node = cluster.hosts[1].node.as_ref().expect("runs");
    assert_eq!((node.readiness(), node.stale()), (Readiness::Stale, Some(Stale::Removed)));
    assert_eq!(in_use(&mut cluster, 0), 0);
    assert_eq!(cluster.tokens(0, "gpus"), 90);
}

#[test]
fn site_takes_nothing_in_while_it_may_be_leaving() {
    let mut cluster = cluster(3);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Drains)), Outcome::Seated { number: 0 });
    cluster.run(15 * SECOND);
    // Nobody hears of its wish, so it is not decided; what is asked of it meanwhile would be lost with it.
    cluster.cut = vec![(2, 0), (2, 1)];
    let leaves = cluster.submit(2, seat(2, SeatChange::Leaves));
    let put = Txn::new().write(&key(2, "x"), Change::Put(bytes("1"))).operation();
    assert_eq!(cluster.done(2, put), Outcome::Refused(Refusal::NotReady));
    let release = Operation::Release { quota: "gpus".into(), amount: 1 };
    assert_eq!(cluster.done(2, release), Outcome::Refused(Refusal::NotReady));
    assert_eq!(cluster.done(2, seat(2, SeatChange::Serves)), Outcome::Refused(Refusal::NotReady));
    cluster.run(3 * SECOND);
    assert!(matches!(cluster.outcome(2, leaves), Some(Outcome::Refused(Refusal::Unreachable { .. }))));

    // It was withdrawn before any value was out: the site goes on.
    cluster.cut.clear();
    cluster.run(2 * SECOND);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Serves)), Outcome::Seated { number: 0 });
}

#[test]
fn site_that_cannot_give_its_tokens_away_does_not_leave() {
    let mut cluster = cluster(3);
    cluster.cut = (0..2).flat_map(|at| [(at, 2), (2, at)]).collect();
    cluster.run(5 * SECOND);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Drains)), Outcome::Seated { number: 0 });
    cluster.run(2 * SECOND);
    let refused = refused(NoSeat::HasTokens, 1);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Leaves)), refused, "a site leaves with tokens");
}

#[test]
fn site_that_serves_again_after_it_was_drained_grants() {
    let mut cluster = cluster(3);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Drains)), Outcome::Seated { number: 0 });
    cluster.run(2 * SECOND);
    assert_eq!(cluster.done(2, acquire(1)), Outcome::Refused(Refusal::NotReady));
    assert_eq!(cluster.done(2, seat(2, SeatChange::Serves)), Outcome::Seated { number: 0 });
    assert!(granted(&cluster.done(2, acquire(50))));
    assert_eq!(in_use(&mut cluster, 0), 50);
}

#[test]
fn site_at_which_an_object_is_at_home_does_not_leave() {
    let mut cluster = cluster(3);
    let of = |change| Txn::new().write(&key(2, "x"), change);
    assert_eq!(commit(&mut cluster, 2, of(Change::Put(bytes("1")))), committed(1));
    assert_eq!(cluster.done(2, seat(2, SeatChange::Drains)), Outcome::Seated { number: 0 });
    cluster.run(15 * SECOND);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Leaves)), refused(NoSeat::HasObjects, 1));
    assert_eq!(commit(&mut cluster, 2, of(Change::Delete)), committed(1));
    cluster.run(15 * SECOND);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Leaves)), Outcome::Seated { number: 1 });
}

/// What became of the transaction would be known nowhere.
#[test]
fn site_that_coordinates_a_transaction_does_not_leave() {
    let mut cluster = cluster(3);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Drains)), Outcome::Seated { number: 0 });
    cluster.run(15 * SECOND);
    let write = cluster.submit(2, Txn::new().put(&key(0, "x"), "1").put(&key(1, "y"), "1").operation());
    let leaves = cluster.submit(2, seat(2, SeatChange::Leaves));
    assert_eq!(cluster.outcome(2, leaves), Some(refused(NoSeat::HasTransactions, 1)));
    cluster.run(15 * SECOND);
    assert_eq!(cluster.outcome(2, write), Some(committed(2)));
    assert_eq!(cluster.done(2, seat(2, SeatChange::Leaves)), Outcome::Seated { number: 1 });
}

/// It reaches nobody who could take its tokens, or whom those in line could ask.
#[test]
fn site_that_drains_and_is_cut_off_grants_nothing_to_those_in_line() {
    let mut cluster = cluster(3);
    assert!(granted(&cluster.done(2, acquire(25))));
    cluster.cut = (0..2).flat_map(|at| [(at, 2), (2, at)]).collect();
    cluster.run(10 * SECOND);
    let operation = Operation::Acquire { quota: "gpus".into(), amount: 10, hold: Hold::Counted, waits: true };
    let waiting = cluster.submit(2, operation);
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(2, waiting), None);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Drains)), Outcome::Seated { number: 0 });
    cluster.run(SECOND);
    let released = cluster.done(2, Operation::Release { quota: "gpus".into(), amount: 15 });
    assert_eq!(released, Outcome::Released { amount: 15 });
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(2, waiting), Some(Outcome::Refused(Refusal::NotReady)), "nothing is granted there");
}

/// Its storage is that of another cluster with the same name and the same site in it, which knows of the others what is not so here.
#[test]
fn site_that_joins_with_the_storage_of_another_cluster_is_not_confirmed() {
    let mut other = cluster(4);
    assert!(granted(&other.done(3, acquire(7))));
    other.run(60 * SECOND);
    let storage = other.hosts[3].copy();

    let mut cluster = cluster(3);
    let new = cluster.add_host();
    cluster.kill(new);
    cluster.hosts[new].put_back(storage);
    cluster.start(new);
    assert_eq!(cluster.done(0, seat(new, SeatChange::Joins)), Outcome::Seated { number: 1 });
    cluster.run(20 * SECOND);
    assert_eq!(readiness(&cluster, new), Readiness::Confirming, "a new seat has no past");
    assert!((0..3).all(|at| readiness(&cluster, at) == Readiness::Ready), "nobody believes it");

    // On new storage it joins.
    cluster.kill(new);
    cluster.hosts[new].put_back(Default::default());
    cluster.start(new);
    cluster.run(3 * SECOND);
    assert_eq!(readiness(&cluster, new), Readiness::Ready);
}

/// A message of a round tells that a member is gone, before the change that says so has arrived.
#[test]
fn site_that_hears_by_a_round_that_a_member_is_gone_gives_it_nothing() {
    let mut cluster = cluster(4);
    for at in 0..4 {
        let all = cluster.tokens(at, "gpus");
        assert!(granted(&cluster.done(at, acquire(all))));
    }
    let operation = Operation::Acquire { quota: "gpus".into(), amount: 10, hold: Hold::Counted, waits: true };
    cluster.submit(3, operation);
    cluster.run(SECOND);
    cluster.cut = (0..3).flat_map(|at| [(at, 3), (3, at)]).collect();

    let key = Key { generation: 1, leader: Cluster::site(0), incarnation: Incarnation(1), sequence: 1 };
    let message = Box::new(subset::Message::Accepted { key, dead: vec![(Cluster::site(3), Incarnation::GONE)] });
    let body = Body::Quota(QuotaMessage::Subset { quota: "gpus".into(), message });
    let message = PeerMessage { incarnation: Incarnation(1), position: 1, epoch: 0, members: 0, body };
    cluster.feed(1, Input::Message { from: Cluster::site(0), message });
    let released = cluster.done(1, Operation::Release { quota: "gpus".into(), amount: 15 });
    assert_eq!(released, Outcome::Released { amount: 15 });
    cluster.run(SECOND);
    assert_eq!(cluster.tokens(1, "gpus"), 15, "nothing is given to a member that is gone");

    // It is a member no longer, and the count is exact.
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(0, seat(3, SeatChange::Lost)), Outcome::Seated { number: 1 });
    cluster.run(10 * SECOND);
    assert_eq!(in_use(&mut cluster, 0), 75);
}

/// A batch brings what several callers ask for at once.
#[test]
fn site_that_may_leave_begins_nothing_of_the_same_batch() {
    for is_first in [true, false] {
        let mut cluster = cluster(3);
        assert_eq!(cluster.done(2, seat(2, SeatChange::Drains)), Outcome::Seated { number: 0 });
        cluster.run(5 * SECOND);
        let (site, incarnation, session) = cluster.session(2);
        let write = Txn::new().put(&key(2, "x"), "1").operation();
        let mut operations = vec![seat(2, SeatChange::Leaves), write];
        if !is_first {
            operations.reverse();
        }
        // The first was the word to drain.
        let first = 2;
        let operations = (first..).zip(operations);
        let operations = operations.map(|(sequence, operation)| Submission { sequence, timeout: 2_000_000, operation });
        let batch = Batch { site, incarnation, session, low: 1, operations: operations.collect() };
        cluster.request(2, 1, Request::Batch(batch));
        cluster.run(4 * SECOND);
        let outcomes = [first, first + 1].map(|sequence| cluster.outcome(2, sequence));
        let is_written = outcomes.contains(&Some(committed(1)));
        let has_left = readiness(&cluster, 2) == Readiness::Stale;
        assert!(!(is_written && has_left), "a write is acknowledged, and gone with the site: {outcomes:?}");
    }
}

/// One that is down may have a gift for it that has not left yet.
#[test]
fn site_does_not_leave_while_another_is_down() {
    let mut cluster = cluster(4);
    cluster.kill(1);
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Drains)), Outcome::Seated { number: 0 });
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Leaves)), refused(NoSeat::Unheard, 1));
    cluster.start(1);
    cluster.run(5 * SECOND);
    assert_eq!(cluster.done(2, seat(2, SeatChange::Leaves)), Outcome::Seated { number: 1 });
    assert_eq!(in_use(&mut cluster, 0), 0);
}

/// It has no part of the rate, and refills nothing. What it granted is refilled where the others are.
#[test]
fn site_that_joined_keeps_nothing_that_is_to_be_refilled() {
    for rate in [3, 12] {
        let mut cluster = refilling(300, rate * 1_000_000);
        let new = join(&mut cluster);
        cluster.run(10 * SECOND);
        for at in [new, 0, new, 1, new] {
            assert!(granted(&cluster.done(at, acquire(60))));
            cluster.run(SECOND / 2);
        }
        cluster.run(120 * SECOND);
        assert_eq!(
            (held(&cluster, 0..4).0, held(&cluster, new..new + 1).1),
            (300, 0),
            "a site that joined keeps backlog, at a rate of {rate}"
        );
    }
}

/// It was down before it could hand over what it granted, and nobody asks for anything since.
#[test]
fn site_that_joined_and_starts_again_hands_over_what_is_to_be_refilled() {
    let mut cluster = refilling(90, 3_000_000);
    let new = join(&mut cluster);
    cluster.run(10 * SECOND);
    let granted_there = cluster.submit(new, acquire(10));
    while cluster.outcome(new, granted_there).is_none() {
        cluster.run(MILLISECOND);
    }
    cluster.kill(new);
    cluster.start(new);
    cluster.run(60 * SECOND);
    assert_eq!(held(&cluster, 0..4).0, 90, "a site that starts again keeps backlog");
}

/// It hands all of it over when it is drained, and does not hear at first that this arrived. Nothing else goes on in the quota.
#[test]
fn site_that_drains_leaves_once_it_has_heard_that_what_is_to_be_refilled_arrived() {
    let mut cluster = refilling(90, 1_000);
    assert!(granted(&cluster.done(2, acquire(90))));
    cluster.run(10 * SECOND);

    cluster.cut = vec![(0, 2), (1, 2)].into_iter().collect();
    let drains = cluster.submit(2, seat(2, SeatChange::Drains));
    cluster.run(SECOND);
    cluster.cut.clear();
    assert_eq!(cluster.outcome(2, drains), Some(Outcome::Seated { number: 0 }));
    cluster.run(30 * SECOND);
    let leaves = cluster.done(2, seat(2, SeatChange::Leaves));
    assert_eq!(leaves, Outcome::Seated { number: 1 }, "who has it says so again");
    let (tokens, backlog) = held(&cluster, 0..2);
    assert_eq!(tokens + backlog, 90);
}

/// It stops when it has handed all of it over, and that was lost on the way.
#[test]
fn site_that_starts_again_tells_of_what_is_to_be_refilled_that_it_had_handed_over() {
    let mut cluster = refilling(90, 1_000);
    assert!(granted(&cluster.done(2, acquire(90))));
    cluster.run(10 * SECOND);
    cluster.cut = vec![(2, 0), (2, 1)].into_iter().collect();
    cluster.request(2, 7, Request::Drain { within: 5 * SECOND });
    cluster.run(SECOND);
    cluster.kill(2);
    cluster.cut.clear();
    cluster.start(2);
    cluster.run(30 * SECOND);
    let (tokens, backlog) = held(&cluster, 0..3);
    assert_eq!(tokens + backlog, 90, "what was handed over arrives once the site is back");
}

#[test]
fn site_that_was_away_while_members_changed_catches_up() {
    let mut cluster = cluster(3);
    cluster.kill(2);
    let new = cluster.add_host();
    cluster.run(5 * SECOND);
    // Two of three decide it; then three of four are needed, and there are three.
    assert_eq!(cluster.done(0, seat(new, SeatChange::Joins)), Outcome::Seated { number: 1 });
    cluster.run(5 * SECOND);
    // New storage is let in by a majority of the members, itself not among them.
    assert_eq!(readiness(&cluster, new), Readiness::Joining);
    cluster.start(2);
    cluster.run(10 * SECOND);
    assert_eq!(readiness(&cluster, new), Readiness::Ready);
    assert_eq!((number(&cluster, 2), behind(&cluster, 2)), (1, 0));
    assert!(granted(&cluster.done(2, acquire(3))));
    assert_eq!(in_use(&mut cluster, new), 3);
}

#[test]
fn two_changes_at_once_are_decided_one_after_the_other() {
    for seed in 0..8 {
        let mut cluster = cluster(5);
        cluster.kill(3);
        cluster.kill(4);
        cluster.run(10 * SECOND + seed * 7 * MILLISECOND);
        let (first, second) =
            (cluster.submit(0, seat(3, SeatChange::Lost)), cluster.submit(1, seat(4, SeatChange::Lost)));
        cluster.run(3 * SECOND);
        let (first, second) = (cluster.outcome(0, first), cluster.outcome(1, second));
        let is_done = |outcome: &Option<Outcome>| matches!(outcome, Some(Outcome::Seated { .. }));
        assert!(is_done(&first) || is_done(&second), "{first:?} {second:?}");
        cluster.run(20 * SECOND);
        for (gone, at) in [(3, 0), (4, 1)] {
            assert!(is_done(&Some(cluster.done(at, seat(gone, SeatChange::Lost)))));
            cluster.run(10 * SECOND);
        }
        let seats = |at: usize| cluster.hosts[at].node.as_ref().expect("runs").chapters().quotas.roster().cloned();
        assert_eq!((seats(0), seats(1)), (seats(1), seats(2)));
        assert_eq!(number(&cluster, 2), 2);
    }
}

/// Of two sites one loses its disk, and the other leaves as soon as it may. All that the first one needs of it was recorded before.
#[test]
fn site_that_is_left_alone_with_new_storage_goes_on() {
    let mut cluster = cluster(2);
    cluster.done(0, Operation::create("tpus", 10));
    assert!(granted(&cluster.done(0, acquire(5))));
    assert_eq!(cluster.done(1, seat(1, SeatChange::Drains)), Outcome::Seated { number: 0 });
    cluster.run(10 * SECOND);
    cluster.kill(0);
    cluster.hosts[0].put_back(Default::default());
    cluster.responses.clear();
    cluster.start(0);
    let mut refusals = Vec::new();
    while readiness(&cluster, 1) != Readiness::Stale && refusals.len() < 400 {
        cluster.run(300 * MILLISECOND);
        if let Outcome::Refused(Refusal::NoSeat { why, .. }) = cluster.done(1, seat(1, SeatChange::Leaves)) {
            refusals.push(why);
        }
    }
    assert!(refusals.contains(&NoSeat::Unrecorded), "it had to wait for that: {refusals:?}");
    cluster.run(10 * SECOND);
    assert_eq!((readiness(&cluster, 1), number(&cluster, 0)), (Readiness::Stale, 1), "{refusals:?}");
    assert_eq!(behind(&cluster, 0), 0, "every quota has recorded that it is alone");

    // What was lost comes back, and a quota is created: nobody else has a vote.
    let free = cluster.tokens(0, "gpus");
    let lost = reclaim(&[(0, 1), (1, 1)], 5);
    assert_eq!(cluster.done(0, lost), Outcome::Reclaimed { brought: 85 - free, in_use: 5 });
    assert!(granted(&cluster.done(0, acquire(85))));
    assert_eq!(cluster.done(0, Operation::create("seats", 7)), Outcome::Created { limit: 7 });
}

/// The disks of two of five are lost after a change, in turn, and recorded by the quota. Another site then dies for good.
#[test]
fn site_dies_for_good_after_disks_were_lost_since_the_last_change_is_still_declared_lost() {
    let mut cluster = cluster(4);
    join(&mut cluster);
    cluster.run(10 * SECOND);
    for at in [0, 1] {
        lose(&mut cluster, at);
        cluster.run(30 * SECOND);
        assert_eq!(readiness(&cluster, at), Readiness::Ready);
    }
    cluster.kill(3);
    cluster.run(10 * SECOND);
    let outcome = cluster.done(2, seat(3, SeatChange::Lost));
    assert_eq!(outcome, Outcome::Seated { number: 2 }, "enough of those with new storage may vote");
}

/// Whether a site vouches for its storage to another one, which asks.
fn vouches(cluster: &mut Cluster, at: usize, to: usize, leaving: bool) -> bool {
    let now = cluster.time(at);
    let (noted, known) = (Default::default(), Incarnation(1));
    let ping = SiteMessage::Ping { mono: now.mono, wall: now.wall, leaving, known, position: 0, noted, asks: false };
    let message =
        PeerMessage { incarnation: Incarnation(1), position: 0, epoch: 0, members: 0, body: Body::Site(ping) };
    let mut out = Vec::new();
    let node = cluster.hosts[at].node.as_mut().expect("runs");
    node.handle(now, Input::Message { from: Cluster::site(to), message }, &View::empty(), &mut out);
    let answer = out.into_iter().find_map(|effect| match effect {
        Effect::Send { message: PeerMessage { body: Body::Site(SiteMessage::Pong { withholds, .. }), .. }, .. } => {
            Some(!withholds)
        }
        _ => None,
    });
    answer.expect("it answers")
}

/// A site that leaves waits until all others have vouched. What one gave it while it was cut off, or before that one started again, is told
/// again some time later.
#[test]
fn site_does_not_vouch_to_one_that_leaves_before_what_it_gave_it_has_arrived() {
    let mut cluster = cluster(3);

    // The donor hears that requests wait there, and gives; nothing of it arrives.
    cluster.cut = vec![(1, 2)];
    let had = cluster.tokens(1, "gpus");
    assert!(granted(&cluster.done(2, acquire(45))));
    assert!(cluster.tokens(1, "gpus") < had, "it gives");
    cluster.run(60 * SECOND);
    for starts_again in [false, true] {
        if starts_again {
            cluster.kill(1);
            cluster.start(1);
            cluster.run(300 * MILLISECOND);
        }
        assert_eq!(readiness(&cluster, 1), Readiness::Ready);
        assert!(!vouches(&mut cluster, 1, 2, true), "what was given to it is lost with it");
        assert!(vouches(&mut cluster, 1, 2, false), "others may rely on its storage");
    }
    cluster.cut.clear();
    cluster.run(5 * SECOND);
    assert!(vouches(&mut cluster, 1, 2, true), "all has arrived");
    assert_eq!(in_use(&mut cluster, 0), 45);

    // It is used again there, and nothing was given since.
    cluster.run(200 * SECOND);
    cluster.submit(1, acquire(1));
    assert!(vouches(&mut cluster, 1, 2, true), "all had arrived before it was at rest");
}
