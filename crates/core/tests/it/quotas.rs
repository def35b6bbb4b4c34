//! Scenarios of quotas, named subject_condition_outcome.

use slackline_core::api::{
    Answer, BATCH_OPERATIONS, Batch, Forecast, Hold, Operation, Outcome, Readiness, Refusal, Request, Response,
    Submission, UnknownReason,
};
use slackline_core::avantan::Membership;
use slackline_core::chapter::Chapter as _;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{GrantId, Incarnation, OperationId, SiteId, SiteSet};
use slackline_core::machine::{ClientId, Input};
use slackline_core::peer::quota::{Digest, QuotaMessage, Rounds, Tally};
use slackline_core::peer::{Body, PeerMessage};
use slackline_core::quota::{KEPT, WAITING, count};
use slackline_core::rows::{DUE, GRANT};

use crate::cluster::{Cluster, DELAY};

fn delete() -> Operation {
    Operation::Delete { quota: "gpus".into() }
}

pub(crate) fn create(limit: i64) -> Operation {
    Operation::create("gpus", limit)
}

pub(crate) fn acquire(amount: i64) -> Operation {
    Operation::Acquire { quota: "gpus".into(), amount, hold: Hold::Counted, waits: false }
}

fn hold(amount: i64, hold: Hold) -> Operation {
    Operation::Acquire { quota: "gpus".into(), amount, hold, waits: false }
}

pub(crate) fn release(amount: i64) -> Operation {
    Operation::Release { quota: "gpus".into(), amount }
}

pub(crate) fn granted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Granted { .. })
}

#[test]
fn quota_created_is_split_and_counted() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.done(0, create(100)), Outcome::Created { limit: 100 });
    assert_eq!(cluster.done(1, create(100)), Outcome::Created { limit: 100 });
    assert_eq!(cluster.done(2, create(7)), Outcome::Refused(Refusal::LimitDiffers { limit: 100 }));
    assert_eq!((0..3).map(|at| cluster.tokens(at, "gpus")).collect::<Vec<_>>(), [34, 33, 33]);
    assert!(granted(&cluster.done(1, acquire(3))));
    let shown = cluster.show(2, "gpus");
    assert_eq!((shown.limit, shown.in_use_min, shown.in_use_max, shown.work.local), (100, 3, 3, 1));
}

#[test]
fn acquire_beyond_the_share_gets_tokens_of_others() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(0, acquire(80))));
    assert!(granted(&cluster.done(2, acquire(10))));
    let refused = cluster.done(1, acquire(1));
    assert!(matches!(refused, Outcome::Refused(Refusal::Exhausted { .. })), "{refused:?}");
    assert_eq!(cluster.done(1, release(90)), Outcome::Released { amount: 90 });
    assert!(granted(&cluster.done(0, acquire(90))));
    cluster.run(5 * SECOND);
    let shown = cluster.show(1, "gpus");
    assert_eq!((shown.in_use_min, shown.in_use_max), (90, 90));
}

#[test]
fn hold_ends_by_itself_once_also_across_a_restart() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(9));
    assert!(granted(&cluster.done(0, hold(3, Hold::For(10 * SECOND)))));
    let Outcome::Granted { grant, .. } = cluster.done(0, hold(2, Hold::For(10 * SECOND))) else { panic!() };
    assert_eq!(cluster.done(0, Operation::ReleaseGrant { grant, used: 0 }), Outcome::Released { amount: 2 });
    assert_eq!(cluster.done(0, Operation::ReleaseGrant { grant, used: 0 }), Outcome::Refused(Refusal::UnknownGrant));
    cluster.run(4 * SECOND);
    assert_eq!(cluster.show(0, "gpus").in_use_max, 3);
    cluster.kill(0);
    cluster.run(2 * SECOND);
    cluster.start(0);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.show(0, "gpus").in_use_max, 3, "the time that the site was down does not count");
    cluster.run(9 * SECOND);
    let shown = cluster.show(0, "gpus");
    assert_eq!((shown.in_use_min, shown.in_use_max), (0, 0));
}

#[test]
fn operation_repeated_is_answered_from_its_record_also_after_a_restart() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let first = cluster.done(0, acquire(5));
    let (site, incarnation, session) = cluster.hosts[0].session.expect("open");
    cluster.kill(0);
    cluster.start(0);
    cluster.run(SECOND);
    cluster.responses.clear();
    let again = |operation| slackline_core::api::Batch {
        site,
        incarnation,
        session,
        low: 1,
        operations: vec![slackline_core::api::Submission { sequence: 2, timeout: SECOND, operation }],
    };
    // By way of another site: it relays, it does not carry out.
    cluster.request(1, 5, Request::Batch(again(acquire(5))));
    cluster.run(SECOND);
    cluster.request(0, 6, Request::Batch(again(acquire(6))));
    let answers: Vec<Outcome> = cluster
        .responses
        .iter()
        .filter_map(|(_, _, response)| match response {
            Response::Batch { answers, .. } => answers.first().map(|answer| answer.outcome.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(answers, [first, Outcome::Refused(Refusal::OtherContent)]);
    assert_eq!(cluster.show(1, "gpus").in_use_max, 5);
}

#[test]
fn site_without_its_disk_gets_a_new_incarnation_and_counts_as_spent() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(2, acquire(10))));
    cluster.kill(2);
    cluster.hosts[2].rows.clear();
    cluster.run(SECOND);
    cluster.start(2);
    cluster.run(10 * SECOND);
    let node = cluster.hosts[2].node.as_ref().expect("runs");
    assert_eq!((node.readiness(), node.incarnation()), (Readiness::Ready, Incarnation(2)));
    let shown = cluster.show(0, "gpus");
    assert_eq!((shown.in_use_min, shown.in_use_max), (30, 30), "what it had counts as in use");
    assert!(granted(&cluster.done(2, acquire(60))));
    let refused = cluster.done(2, acquire(1));
    assert!(matches!(refused, Outcome::Refused(Refusal::Exhausted { .. })));
}

/// It is told of the quota once it serves, and that is lost. Nothing else goes on.
#[test]
fn site_without_its_disk_is_told_again_of_a_quota_that_has_not_recorded_it() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(400 * SECOND);
    cluster.kill(2);
    cluster.hosts[2].put_back(Default::default());
    cluster.start(2);
    let serves =
        |cluster: &Cluster| cluster.hosts[2].node.as_ref().is_some_and(|node| node.readiness() == Readiness::Ready);
    while !serves(&cluster) {
        cluster.run(MILLISECOND);
    }
    cluster.cut = vec![(0, 2), (1, 2)];
    cluster.run(2 * SECOND);
    cluster.cut.clear();
    cluster.run(60 * SECOND);
    let recorded = cluster.share(0, "gpus").table.recorded(Cluster::site(2));
    assert_eq!(recorded, Incarnation(2), "it is told again, and a round records it");
}

#[test]
fn site_without_its_disk_is_unrecorded_by_every_quota_until_a_round() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.done(0, Operation::create("seats", 30));
    cluster.run(SECOND);
    let unrecorded = |cluster: &Cluster, at: usize| {
        let status = cluster.hosts[at].node.as_ref().expect("runs").status(cluster.time(at));
        match status.peers.iter().find(|peer| peer.site == Cluster::site(2)) {
            Some(peer) => (peer.incarnation, peer.unrecorded),
            None => (status.incarnation, status.unrecorded),
        }
    };
    assert_eq!(unrecorded(&cluster, 0), (Incarnation(1), 0));
    cluster.kill(2);
    cluster.hosts[2].rows.clear();
    cluster.run(SECOND);
    cluster.start(2);

    // Both others hear of it before a round has recorded it.
    let mut most = 0;
    cluster.run_and_look(2 * SECOND, |cluster| most = most.max(unrecorded(cluster, 0).1));
    assert_eq!(most, 2);
    cluster.run(20 * SECOND);
    assert_eq!((0..3).map(|at| unrecorded(&cluster, at)).collect::<Vec<_>>(), [(Incarnation(2), 0); 3]);
}

#[test]
fn site_that_is_alone_tells_what_it_knows_and_never_too_little() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(0, acquire(10))));
    assert!(granted(&cluster.done(1, acquire(4))));
    cluster.run(SECOND);
    let known = cluster.known(0, "gpus");
    assert_eq!((known.limit, known.in_use_max, known.estimate), (90, 70, Some(14)));
    let tokens: Vec<(i64, bool)> = known.sites.iter().map(|site| (site.tokens, site.age.is_some())).collect();
    assert_eq!(tokens, [(20, true), (26, true), (30, true)]);

    // What is set aside for a round may be elsewhere by now, and in use.
    cluster.submit(2, acquire(70));
    cluster.run(3 * DELAY / 2);
    let held = cluster.share(1, "gpus").held();
    assert!(held > 0, "the round is under way");
    let known = cluster.known(1, "gpus");
    assert_eq!(known.in_use_max, 90 - (26 - held));
    assert_eq!(known.sites[1].set_aside, held);
    cluster.run(SECOND);

    // What it cannot know of is in what may be in use at most.
    let tokens = cluster.tokens(0, "gpus");
    cluster.kill(0);
    cluster.start(0);
    cluster.run(SECOND);
    for at in [1, 2] {
        cluster.kill(at);
    }
    let known = cluster.known(0, "gpus");
    assert_eq!(known.in_use_max, 90 - tokens);
    assert!(known.estimate.is_some_and(|estimate| (0..=90 - tokens).contains(&estimate)), "{known:?}");
}

/// A donor's total belongs to one incarnation of the receiver. Were it begun again for one that is gone, it would begin again for
/// the present one too, which takes nothing below what it has had.
#[test]
fn late_message_of_a_lost_incarnation_does_not_begin_a_total_of_gifts_again() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    cluster.kill(2);
    cluster.hosts[2].put_back(Default::default());
    cluster.start(2);
    cluster.run(5 * SECOND);
    assert!(granted(&cluster.done(2, acquire(20))));
    cluster.run(SECOND);
    let given = |cluster: &Cluster| {
        let node = cluster.hosts[0].node.as_ref().expect("runs");
        node.chapters().quotas.find("gpus").expect("known").given(2)
    };
    let before = given(&cluster);
    assert!(before.0 == Incarnation(2) && before.1 > 0, "{before:?}");

    // The lost one was short, and says so again and again: before the donor is confirmed, and when it serves.
    cluster.kill(0);
    cluster.start(0);
    let digest = Digest { quota: "gpus".into(), generation: 1, applied: 1, short: 5, ..Digest::default() };
    let body = Body::Quota(QuotaMessage::Digests(vec![digest]));
    let late = PeerMessage { incarnation: Incarnation(1), position: 1, epoch: 0, members: 0, body };
    for _ in 0..20 {
        cluster.feed(0, Input::Message { from: Cluster::site(2), message: late.clone() });
        cluster.run(100 * MILLISECOND);
        assert_eq!(given(&cluster), before);
    }
    assert!(granted(&cluster.done(2, acquire(40))));
    let shown = cluster.show(1, "gpus");
    assert_eq!((shown.in_use_min, shown.in_use_max), (90, 90), "30 were lost with the disk, and all others are in use");
}

#[test]
fn old_copy_of_a_disk_is_noticed_and_counts_as_lost() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let copy = cluster.hosts[2].copy();
    for _ in 0..10 {
        assert!(granted(&cluster.done(2, acquire(1))));
    }
    cluster.run(3 * SECOND);
    cluster.kill(2);
    cluster.hosts[2].put_back(copy);
    cluster.start(2);
    cluster.run(10 * SECOND);
    cluster.put_aside_old_copy(2);
    cluster.run(10 * SECOND);
    let node = cluster.hosts[2].node.as_ref().expect("runs");
    assert_eq!((node.readiness(), node.incarnation()), (Readiness::Ready, Incarnation(2)));
    assert_eq!(cluster.show(0, "gpus").in_use_max, 30);
}

/// What a start writes before anybody has vouched for the copy would make up for what it lacks.
#[test]
fn old_copy_that_lacks_one_batch_is_noticed_after_starts_that_were_cut_short() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(2, acquire(1))));
    let copy = cluster.hosts[2].copy();
    assert!(granted(&cluster.done(2, acquire(1))));
    assert_eq!(cluster.hosts[2].copy().1, copy.1 + 1);
    cluster.request(2, 5, Request::Show { quota: "gpus".into(), timeout: 1_000_000, local: false });
    cluster.run(DELAY * 4);
    cluster.kill(2);
    cluster.hosts[2].put_back(copy);
    for _ in 0..3 {
        cluster.start(2);
        cluster.run(DELAY);
        cluster.kill(2);
    }
    cluster.start(2);
    cluster.run(10 * SECOND);
    let node = cluster.hosts[2].node.as_ref().expect("runs");
    assert_eq!(node.readiness(), Readiness::Stale);
}

/// How many rows of tracked grants a site has.
fn tracked(cluster: &Cluster, at: usize) -> usize {
    cluster.hosts[at].rows.keys().filter(|key| key[0] == GRANT).count()
}

#[test]
fn grants_of_a_deleted_quota_go_ten_minutes_after_it_and_those_of_others_stay() {
    for is_restarted in [false, true] {
        let mut cluster = Cluster::new(3);
        cluster.done(0, create(900));
        cluster.done(0, Operation::create("other", 9));
        cluster.run(SECOND);
        let other = Operation::Acquire { quota: "other".into(), amount: 1, hold: Hold::Open, waits: false };
        let Outcome::Granted { grant: kept, .. } = cluster.done(1, other) else { panic!("tokens are there") };
        let mut dead = Vec::new();
        for number in 0..300 {
            let how = if number % 2 == 0 { Hold::Open } else { Hold::For(30 * 86_400 * SECOND) };
            let Outcome::Granted { grant, .. } = cluster.done(1, hold(1, how)) else { panic!("tokens are there") };
            dead.push(grant);
        }
        assert_eq!(cluster.done(2, delete()), Outcome::Deleted);
        // A grant of the next life of the name stays too.
        assert_eq!(cluster.done(1, create(30)), Outcome::Created { limit: 30 });
        let Outcome::Granted { grant: new, .. } = cluster.done(1, hold(5, Hold::Open)) else {
            panic!("tokens are there")
        };
        if is_restarted {
            cluster.kill(1);
            cluster.start(1);
            cluster.run(SECOND);
        }

        // For a while its holder is told why.
        cluster.run(KEPT - 20 * SECOND);
        let release = |grant| Operation::ReleaseGrant { grant, used: 0 };
        assert_eq!(cluster.done(1, release(dead[0])), Outcome::Refused(Refusal::QuotaDeleted));
        assert_eq!(tracked(&cluster, 1), 301);
        cluster.run(30 * SECOND);
        assert_eq!(tracked(&cluster, 1), 2, "restarted: {is_restarted}");
        assert!(cluster.hosts[1].rows.keys().all(|key| key[0] != DUE), "no hold of it is looked at any more");
        assert_eq!(cluster.done(1, release(dead[1])), Outcome::Refused(Refusal::UnknownGrant));
        assert_eq!(cluster.done(1, release(kept)), Outcome::Released { amount: 1 });
        assert_eq!(cluster.done(1, release(new)), Outcome::Released { amount: 5 });
    }
}

#[test]
fn quota_deleted_is_gone_everywhere_and_comes_back_as_a_new_generation() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let Outcome::Granted { grant, .. } = cluster.done(1, hold(5, Hold::Open)) else { panic!() };
    assert_eq!(cluster.done(2, delete()), Outcome::Deleted);
    cluster.run(SECOND);
    assert_eq!(cluster.done(0, acquire(1)), Outcome::Refused(Refusal::UnknownQuota));
    assert_eq!(cluster.done(1, create(30)), Outcome::Created { limit: 30 });
    assert_eq!(cluster.done(1, Operation::ReleaseGrant { grant, used: 0 }), Outcome::Refused(Refusal::QuotaDeleted));
    let shown = cluster.show(0, "gpus");
    assert_eq!((shown.limit, shown.in_use_max), (30, 0));
    cluster.cut = vec![(0, 2), (2, 0)];
    let outcome = cluster.done(1, delete());
    assert_eq!(outcome, Outcome::Deleted, "the leader reaches every site");
}

#[test]
fn create_without_a_majority_is_refused_and_never_takes_effect() {
    let mut cluster = Cluster::new(3);
    cluster.kill(1);
    cluster.kill(2);
    let outcome = cluster.done(0, create(90));
    assert!(matches!(outcome, Outcome::Refused(Refusal::Unreachable { .. })), "{outcome:?}");
    cluster.start(1);
    cluster.start(2);
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(1, acquire(1)), Outcome::Refused(Refusal::UnknownQuota));
}

#[test]
fn leader_killed_after_its_value_is_out_does_not_lose_tokens() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    for at in 1..3 {
        let (from, _) = (at, ());
        assert!(granted(&cluster.done(from, acquire(30))));
    }
    cluster.submit(1, acquire(20));
    cluster.run(150_000);
    cluster.kill(1);
    cluster.run(20 * SECOND);
    cluster.start(1);
    cluster.run(20 * SECOND);
    let shown = cluster.show(0, "gpus");
    assert_eq!(shown.in_use_min, shown.in_use_max);
    let free: i64 = shown.sites.iter().map(|site| site.tokens).sum();
    assert_eq!(shown.in_use_max + free, 90);
    assert!(shown.sites.iter().all(|site| site.set_aside == 0), "{shown:?}");
}

#[test]
fn count_while_tokens_come_and_go_is_never_more_than_the_limit() {
    let members = [SiteId::new(0, 0), SiteId::new(1, 0)];
    let incarnations = [Incarnation(1); 2];
    let tally = |site, acquired, released| {
        let (given, received) = (vec![(Incarnation(1), 0); 2], vec![(Incarnation(1), 0); 2]);
        Some(Tally { site, limit: (60, 0), acquired, released, given, received, ..Tally::default() })
    };
    let round = |acquired, released| members.map(|site| tally(site, acquired, released));
    // Each site granted 30, took them back and granted them again between the readings.
    let shown = count(
        "gpus",
        slackline_core::avantan::Membership::first(members[0], Incarnation(1), &members),
        &round(30, 0),
        &round(60, 30),
        &incarnations,
    )
    .expect("counted");
    assert_eq!((shown.in_use_min, shown.in_use_max), (0, 60));
}

/// A member that left had granted 10 tokens, of which another took 4 back; meanwhile the others grant and take back.
#[test]
fn count_after_a_member_has_left_holds_what_it_granted_and_calls_none_of_it_wrong() {
    let members = [SiteId::new(0, 0), SiteId::new(1, 0), SiteId::new(2, 0)];
    let gone = [members[2]];
    let left = slackline_core::avantan::Membership {
        number: 1,
        gone: &gone,
        ..slackline_core::avantan::Membership::first(members[0], Incarnation(1), &members)
    };
    let tally = |site, tokens, acquired, released| {
        let none = vec![(Incarnation(1), 0); 3];
        let (given, received) = (none.clone(), none);
        Some(Tally { site, limit: (60, 0), tokens, acquired, released, given, received, ..Tally::default() })
    };
    let count = |first: [Option<Tally>; 3], second: [Option<Tally>; 3]| {
        count("gpus", left, &first, &second, &[Incarnation(1); 3]).expect("counted")
    };

    let rest = [tally(members[0], 34, 0, 4), tally(members[1], 20, 0, 0), None];
    let shown = count(rest.clone(), rest.clone());
    assert_eq!((shown.in_use_min, shown.in_use_max, shown.released_above), (6, 6, 0));

    // Three granted, two of them taken back, between the readings.
    let later = [tally(members[0], 33, 3, 6), tally(members[1], 20, 0, 0), None];
    let shown = count(rest.clone(), later);
    assert_eq!((shown.in_use_min, shown.in_use_max, shown.released_above), (4, 9, 0));

    // A gift has moved five as well: only the limit is certain.
    let moved = [tally(members[0], 28, 3, 6), tally(members[1], 25, 0, 0), None];
    let shown = count(rest, moved);
    assert_eq!((shown.in_use_min, shown.in_use_max, shown.released_above), (0, 60, 0));
}

/// What was granted at one site is given back at another, while the first does not answer, or was read before it granted; a gift is read at
/// both ends. No client did anything wrong.
#[test]
fn nobody_is_blamed_for_what_one_site_has_told_and_the_other_has_not() {
    let members = [SiteId::new(0, 0), SiteId::new(1, 0)];
    let incarnations = [Incarnation(1); 2];
    let site = slackline_core::avantan::Membership::first(members[0], Incarnation(1), &members);
    let tally = |site, tokens, acquired, released| {
        let none = vec![(Incarnation(1), 0); 2];
        let (given, received) = (none.clone(), none);
        Some(Tally { site, limit: (60, 0), tokens, acquired, released, given, received, ..Tally::default() })
    };
    let count = |first: [Option<Tally>; 2], second: [Option<Tally>; 2]| {
        count("gpus", site, &first, &second, &incarnations).expect("counted")
    };
    let rest = [tally(members[0], 30, 0, 0), tally(members[1], 30, 0, 0)];

    // Ten were granted by the other, which is down, and given back here.
    let silent = [tally(members[0], 40, 0, 10), None];
    assert_eq!(count(silent.clone(), silent).released_above, 0);

    // Five were granted by the other after it was read, and given back here before this site was read.
    let later = [tally(members[0], 35, 0, 5), tally(members[1], 30, 0, 0)];
    assert_eq!(count(rest.clone(), later.clone()).released_above, 0);

    // The other gave this site 20 after it was read.
    let mut given = [tally(members[0], 50, 0, 0), tally(members[1], 30, 0, 0)];
    given[0].iter_mut().for_each(|tally| tally.received[1].1 = 20);
    assert_eq!(count(rest, given).released_above, 0);

    // It stays so: then it is sure that somebody gave back what was never granted.
    let shown = count(later.clone(), later);
    assert_eq!((shown.in_use_max, shown.released_above), (0, 5));
}

#[test]
fn everything_free_is_had_at_one_site_after_another_although_sites_keep_some_for_their_demand() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(900));
    for at in [0, 1, 2, 0] {
        assert!(granted(&cluster.done(at, acquire(900))), "at site {at}");
        assert_eq!(cluster.done(at, release(900)), Outcome::Released { amount: 900 });
        cluster.run(SECOND);
    }
}

/// Site 2 asks before the creation, and its question is answered before; the operation that comes after the creation must
/// not be refused by that answer.
#[test]
fn answer_to_an_earlier_question_about_a_name_refuses_no_later_operation() {
    let mut cluster = Cluster::new(3);
    let early = cluster.submit(2, acquire(1));
    cluster.run(DELAY + 1);
    // Site 2's questions have been answered, and the answers are under way, when sites 0 and 1 agree.
    cluster.cut = vec![(0, 2), (1, 2), (2, 0), (2, 1)];
    cluster.submit(0, create(90));
    cluster.run(DELAY / 2);
    let late = cluster.submit(2, acquire(1));
    cluster.run(SECOND / 2);
    assert_eq!(cluster.outcome(2, early), Some(Outcome::Refused(Refusal::UnknownQuota)));
    assert_eq!(cluster.outcome(2, late), None, "it was asked after the answers had left");
    cluster.cut.clear();
    cluster.run(SECOND);
    assert!(granted(&cluster.outcome(2, late).expect("answered")));
}

#[test]
fn name_is_settled_by_sites_that_never_lost_a_vote_or_by_all() {
    let mut cluster = Cluster::new(3);
    cluster.cut = vec![(0, 2), (1, 2), (2, 0), (2, 1)];
    assert_eq!(cluster.done(0, create(90)), Outcome::Created { limit: 90 });
    cluster.cut.clear();
    // Site 1 voted for it and forgets, site 2 never heard of it, and site 0 can be reached no longer than it takes to join.
    cluster.kill(1);
    cluster.hosts[1].rows.clear();
    cluster.start(1);
    cluster.run(3 * DELAY + 1);
    cluster.cut = vec![(0, 1), (0, 2), (1, 0), (2, 0)];
    cluster.run(DELAY * 2);
    assert_eq!(cluster.hosts[1].node.as_ref().expect("runs").readiness(), Readiness::Ready);
    let outcome = cluster.done(2, acquire(1));
    assert!(matches!(outcome, Outcome::Refused(Refusal::Unreachable { .. })), "{outcome:?}");
}

/// No round can record a new incarnation in a quota that does not exist any more.
#[test]
fn site_that_lost_its_disk_after_a_deletion_creates_the_name_anew() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert_eq!(cluster.done(0, delete()), Outcome::Deleted);
    cluster.run(SECOND);
    cluster.kill(2);
    cluster.hosts[2].rows.clear();
    cluster.start(2);
    cluster.run(10 * SECOND);
    assert_eq!(cluster.done(2, create(60)), Outcome::Created { limit: 60 });
    assert!(granted(&cluster.done(2, acquire(60))));
    assert_eq!(cluster.show(0, "gpus").in_use_max, 60);
}

/// A new incarnation is told of a value before all have said that it may vote, and the outcome is lost on the way to it: it asks
/// until somebody tells it, also who has answered before.
#[test]
fn new_incarnation_that_took_a_value_over_learns_its_outcome() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(2 * SECOND);
    let instance = cluster.share(0, "gpus").applied + 1;
    cluster.kill(2);
    cluster.hosts[2].rows.clear();
    cluster.start(2);
    let has_accepted = |cluster: &Cluster, at: usize| {
        let quota = cluster.hosts[at].node.as_ref().and_then(|node| node.chapters().quotas.find("gpus"));
        let round = quota.and_then(|quota| quota.avantan().share.round.as_ref());
        round.is_some_and(|round| round.instance == instance && round.accepted.is_some())
    };
    let wait_for = |cluster: &mut Cluster, found: &dyn Fn(&Cluster) -> bool| {
        let until = cluster.now + 10 * SECOND;
        while !found(cluster) {
            assert!(cluster.now < until, "not within ten seconds");
            cluster.run(MILLISECOND);
        }
    };
    wait_for(&mut cluster, &|cluster| cluster.hosts[2].node.as_ref().expect("runs").readiness() == Readiness::Ready);
    // Only site 0 knows that there is something to record, and leads. Its value is out, and the vote for it is lost.
    cluster.cut = vec![(2, 1)];
    wait_for(&mut cluster, &|cluster| has_accepted(cluster, 0));
    cluster.cut = vec![(0, 2), (1, 0)];
    wait_for(&mut cluster, &|cluster| has_accepted(cluster, 1));
    // Site 1 leads a higher ballot that nobody else promises, and withdraws. Then site 2 asks, and hears of the value from it.
    cluster.cut.push((0, 1));
    wait_for(&mut cluster, &|cluster| has_accepted(cluster, 2));
    // The two decide it.
    cluster.cut = vec![(0, 2), (1, 2)];
    wait_for(&mut cluster, &|cluster| (0..2).all(|at| cluster.share(at, "gpus").applied >= instance));
    cluster.run(SECOND);
    assert!(has_accepted(&cluster, 2), "nobody told it");
    // One of them is gone, and the other has answered already.
    cluster.kill(0);
    cluster.cut.clear();
    cluster.run(2 * SECOND);
    assert_eq!(cluster.share(2, "gpus").applied, cluster.share(1, "gpus").applied);
    assert!(granted(&cluster.done(2, acquire(25))));
}

/// All tokens are out, and an operation at site 1 waits for some.
fn one_that_waits() -> (Cluster, u64) {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(0, acquire(90))));
    let waiting = cluster.submit(1, acquire(5));
    assert_eq!(cluster.outcome(1, waiting), None);
    (cluster, waiting)
}

#[test]
fn session_that_ends_takes_what_waits_with_it() {
    let (mut cluster, _) = one_that_waits();
    let (site, incarnation, session) = cluster.hosts[1].session.expect("opened");
    cluster.request(1, 1, Request::Close { site, incarnation, session });
    assert_eq!(cluster.done(0, release(90)), Outcome::Released { amount: 90 });
    cluster.run(5 * SECOND);
    let shown = cluster.show(0, "gpus");
    assert_eq!((shown.in_use_min, shown.in_use_max), (0, 0));
}

/// A copy of a disk is put back while an answer to the start before is still under way: it must not vouch for the copy.
#[test]
fn answer_to_an_earlier_start_does_not_confirm_an_old_copy() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(2 * SECOND);
    cluster.kill(1);
    cluster.start(1);
    // Its questions arrive, and the answers are on their way.
    cluster.run(DELAY + 1);
    cluster.kill(1);
    cluster.start(1);
    cluster.run(DELAY);
    let readiness = cluster.hosts[1].node.as_ref().expect("runs").readiness();
    assert_eq!(readiness, Readiness::Confirming, "the answers are to the start before");
    cluster.run(2 * DELAY);
    let readiness = cluster.hosts[1].node.as_ref().expect("runs").readiness();
    assert_eq!(readiness, Readiness::Ready);
}

/// A deletion that nobody can say the outcome of is repeated after the quota was deleted and created again: it must not delete
/// what it was never meant for, and asking settles it.
#[test]
fn deletion_in_doubt_is_settled_by_what_the_quota_has_become() {
    for asks in [true, false] {
        let mut cluster = Cluster::new(3);
        cluster.done(0, create(90));
        let sequence = cluster.submit(1, delete());
        // Both others have reported; the value leaves, and no vote comes back.
        cluster.run(2 * DELAY + 1);
        cluster.cut = vec![(0, 1), (2, 1)];
        cluster.run(4 * SECOND);
        let undecided = Outcome::Unknown(UnknownReason::Undecided);
        assert_eq!(cluster.outcome(1, sequence), Some(undecided));
        let (site, incarnation, session) = cluster.hosts[1].session.expect("opened");
        cluster.cut.clear();
        cluster.run(4 * SECOND);
        assert_eq!(cluster.done(0, create(7)), Outcome::Created { limit: 7 });
        cluster.run(SECOND);
        cluster.kill(1);
        cluster.start(1);
        cluster.run(SECOND);
        cluster.responses.clear();
        let operation = OperationId { site, incarnation, session, sequence };
        if asks {
            cluster.request(1, 9, Request::Ask { operation });
            let answer = Response::Asked { operation, outcome: Outcome::Deleted };
            assert!(cluster.responses.contains(&(1, ClientId(9), answer)), "{:?}", cluster.responses);
        } else {
            let operations = vec![Submission { sequence, timeout: 2_000_000, operation: delete() }];
            cluster.request(1, 9, Request::Batch(Batch { site, incarnation, session, low: 1, operations }));
            let answers = vec![Answer { sequence, outcome: Outcome::Deleted }];
            assert!(cluster.responses.contains(&(1, ClientId(9), Response::Batch { session, answers })));
        }
        cluster.run(4 * SECOND);
        assert_eq!(cluster.show(2, "gpus").limit, 7);
    }
}

/// The site at which it is created again has not heard that the deletion, which it had a part in, is decided.
#[test]
fn quota_created_right_after_its_deletion_is_a_new_one() {
    let mut cluster = Cluster::new(3);
    for round in 0..5 {
        assert_eq!(cluster.done(0, create(90)), Outcome::Created { limit: 90 });
        assert!(granted(&cluster.done(2, acquire(10))));
        assert_eq!(cluster.done(0, delete()), Outcome::Deleted);
        assert_eq!(cluster.done(2, create(90)), Outcome::Created { limit: 90 }, "round {round}");
        cluster.run(SECOND);
        assert!(granted(&cluster.done(1, acquire(90))), "a new generation");
        assert_eq!(cluster.done(1, delete()), Outcome::Deleted);
        cluster.run(SECOND);
    }
}

/// What a leader set aside for a ballot that came to nothing serves those who have waited meanwhile.
#[test]
fn tokens_freed_by_a_withdrawal_serve_those_who_wait() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.cut = vec![(0, 1), (0, 2), (1, 0), (2, 0)];
    let large = cluster.submit(0, acquire(40));
    cluster.run(250 * MILLISECOND);
    assert_eq!(cluster.free(0, "gpus"), 0);
    let small = cluster.submit(0, acquire(5));
    assert_eq!(cluster.outcome(0, small), None, "everything is set aside");
    cluster.run(1_500 * MILLISECOND);
    assert!(granted(&cluster.outcome(0, small).expect("answered before its time is over")));
    assert_eq!(cluster.outcome(0, large), None);
}

/// The site has accepted a value that moves tokens: that says nothing of a deletion.
#[test]
fn deletion_that_was_never_proposed_is_refused_and_not_in_doubt() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    // Too much for gifts of those who are there: a round is led.
    cluster.kill(2);
    cluster.run(5 * SECOND);
    cluster.submit(0, acquire(80));
    let until = cluster.now + SECOND;
    while cluster.share(1, "gpus").round.as_ref().is_none_or(|round| round.accepted.is_none()) {
        assert!(cluster.now < until, "no value within a second");
        cluster.run(MILLISECOND);
    }
    cluster.cut = vec![(0, 1), (1, 0)];
    let deletion = cluster.submit(1, delete());
    cluster.run(3 * SECOND);
    let outcome = cluster.outcome(1, deletion);
    assert!(matches!(outcome, Some(Outcome::Refused(Refusal::Unreachable { .. }))), "{outcome:?}");
}

/// The value that deletes was out, nobody got it, and the others decided to go on without it.
#[test]
fn deletion_whose_value_lost_is_withdrawn_when_asked() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let lost = cluster.submit(1, delete());
    // Both others have reported; the value leaves, and is lost.
    cluster.run(2 * DELAY - 1);
    cluster.cut = vec![(1, 0), (1, 2)];
    cluster.run(2);
    cluster.cut.extend([(0, 1), (2, 1)]);
    cluster.run(4 * SECOND);
    assert_eq!(cluster.outcome(1, lost), Some(Outcome::Unknown(UnknownReason::Undecided)));
    cluster.cut.clear();
    cluster.run(4 * SECOND);
    let (site, incarnation, session) = cluster.hosts[1].session.expect("opened");
    let operation = OperationId { site, incarnation, session, sequence: lost };
    cluster.request(1, 9, Request::Ask { operation });
    let answer = Response::Asked { operation, outcome: Outcome::Refused(Refusal::Withdrawn) };
    assert!(cluster.responses.contains(&(1, ClientId(9), answer)), "{:?}", cluster.responses);
    assert_eq!(cluster.show(1, "gpus").limit, 90);
}

/// A deletion is in doubt while a thousand later operations of its session take over its place in the window: their rows stay.
#[test]
fn deletion_that_left_the_window_overwrites_no_other_outcome() {
    let mut cluster = Cluster::new(3);
    cluster.done(1, create(90));
    let first = cluster.submit(1, delete());
    cluster.run(2 * DELAY + 1);
    cluster.cut = vec![(0, 1), (2, 1)];
    let (site, incarnation, session) = cluster.hosts[1].session.expect("opened");
    let last = first + slackline_core::api::SESSION_WINDOW;
    let operation = Operation::create("other", 0);
    let operations = vec![Submission { sequence: last, timeout: 2_000_000, operation: operation.clone() }];
    let batch = Batch { site, incarnation, session, low: last, operations };
    cluster.request(1, 5, Request::Batch(batch.clone()));
    let answers = vec![Answer { sequence: last, outcome: Outcome::Refused(Refusal::InvalidAmount) }];
    let answer = (1, ClientId(5), Response::Batch { session, answers: answers.clone() });
    assert!(cluster.responses.contains(&answer), "{:?}", cluster.responses);
    cluster.run(4 * SECOND);
    cluster.cut.clear();
    cluster.kill(1);
    cluster.start(1);
    cluster.run(SECOND);
    let operation = OperationId { site, incarnation, session, sequence: last };
    cluster.request(1, 6, Request::Ask { operation });
    let outcome = Outcome::Refused(Refusal::InvalidAmount);
    assert!(
        cluster.responses.contains(&(1, ClientId(6), Response::Asked { operation, outcome })),
        "{:?}",
        cluster.responses
    );
}

/// Every call ends: also one whose place in the window is taken, whose session is closed, or whose id somebody else repeats.
#[test]
fn operation_that_waits_is_answered_when_its_session_moves_on() {
    for how in 0..3 {
        let (mut cluster, waiting) = one_that_waits();
        let (site, incarnation, session) = cluster.hosts[1].session.expect("opened");
        let batch = |sequence, operation| {
            let operations = vec![Submission { sequence, timeout: 2_000_000, operation }];
            Request::Batch(Batch { site, incarnation, session, low: 1, operations })
        };
        let (request, expected) = match how {
            0 => {
                (batch(waiting + slackline_core::api::SESSION_WINDOW, release(1)), Outcome::Refused(Refusal::Withdrawn))
            }
            1 => (Request::Close { site, incarnation, session }, Outcome::Refused(Refusal::Withdrawn)),
            _ => (batch(waiting, acquire(5)), Outcome::Unknown(UnknownReason::Undecided)),
        };
        cluster.request(1, 5, request);
        assert_eq!(cluster.outcome(1, waiting), Some(expected), "case {how}");
        cluster.run(5 * SECOND);
        assert_eq!(cluster.show(0, "gpus").in_use_max, if how == 0 { 89 } else { 90 }, "nobody was granted it");
    }
}

/// Everything that waits at a site waits under one bound, whether its name is known or not.
#[test]
fn operations_on_unknown_names_beyond_the_bound_are_refused_as_overloaded() {
    let mut cluster = Cluster::new(3);
    cluster.cut = vec![(0, 1), (0, 2), (1, 0), (2, 0)];
    let mut offered = 0;
    while offered <= WAITING {
        cluster.request(0, 1, Request::Open);
        let Some((_, _, Response::Opened { site, incarnation, session })) = cluster.responses.pop() else { panic!() };
        let operation = |at: usize| {
            let quota = format!("unknown-{}", at % 700);
            Operation::Acquire { quota, amount: 1, hold: Hold::Counted, waits: false }
        };
        let last = (offered + BATCH_OPERATIONS).min(WAITING + 1);
        let operations = (offered..last).zip(1..);
        let operations =
            operations.map(|(at, sequence)| Submission { sequence, timeout: SECOND, operation: operation(at) });
        let batch = Batch { site, incarnation, session, low: 1, operations: operations.collect() };
        cluster.request(0, 1, Request::Batch(batch));
        offered = last;
    }
    let refused = |response: &(usize, ClientId, Response)| match &response.2 {
        Response::Batch { answers, .. } => {
            answers.iter().filter(|answer| answer.outcome == Outcome::Refused(Refusal::Overloaded)).count()
        }
        _ => 0,
    };
    assert_eq!(cluster.responses.iter().map(refused).sum::<usize>(), 1, "all but one wait");
    let node = cluster.hosts[0].node.as_ref().expect("runs");
    assert_eq!(node.chapters().quotas.waiting(), WAITING);
    // Their time passes: the room is free again.
    cluster.run(2 * SECOND);
    assert_eq!(cluster.hosts[0].node.as_ref().expect("runs").chapters().quotas.waiting(), 0);
}

fn settle(grant: GrantId, used: i64) -> Operation {
    Operation::ReleaseGrant { grant, used }
}

fn extend(grant: GrantId, micros: u64) -> Operation {
    Operation::ExtendGrant { grant, micros }
}

/// A grant, which must be had.
fn grant(cluster: &mut Cluster, at: usize, operation: Operation) -> GrantId {
    let outcome = cluster.done(at, operation);
    let Outcome::Granted { grant, .. } = outcome else { panic!("{outcome:?}") };
    grant
}

#[test]
fn grant_settled_returns_what_was_not_used_once_and_the_rest_when_it_is_released() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let open = grant(&mut cluster, 0, hold(20, Hold::Open));
    assert_eq!(cluster.done(0, settle(open, 21)), Outcome::Refused(Refusal::AboveGrant { amount: 20 }));
    assert_eq!(cluster.done(0, settle(open, -1)), Outcome::Refused(Refusal::InvalidAmount));
    assert_eq!(cluster.done(0, settle(open, 7)), Outcome::Released { amount: 13 });
    assert_eq!(cluster.show(1, "gpus").in_use_max, 7);
    for used in [1, 7] {
        assert_eq!(cluster.done(0, settle(open, used)), Outcome::Refused(Refusal::Settled));
    }
    cluster.kill(0);
    cluster.start(0);
    cluster.run(2 * SECOND);
    assert_eq!(cluster.done(0, settle(open, 2)), Outcome::Refused(Refusal::Settled));
    assert_eq!(cluster.done(0, settle(open, 0)), Outcome::Released { amount: 7 });
    assert_eq!(cluster.done(0, settle(open, 0)), Outcome::Refused(Refusal::UnknownGrant));
    assert_eq!(cluster.show(1, "gpus").in_use_max, 0);

    // All of it is used.
    let whole = grant(&mut cluster, 0, hold(5, Hold::Open));
    assert_eq!(cluster.done(0, settle(whole, 5)), Outcome::Released { amount: 0 });
    assert_eq!(cluster.done(0, settle(whole, 3)), Outcome::Refused(Refusal::Settled));
    assert_eq!(cluster.show(1, "gpus").in_use_max, 5);
}

#[test]
fn hold_settled_ends_with_what_is_left_of_it() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let held = grant(&mut cluster, 0, hold(20, Hold::For(10 * SECOND)));
    assert_eq!(cluster.done(0, settle(held, 4)), Outcome::Released { amount: 16 });
    cluster.run(5 * SECOND);
    assert_eq!(cluster.show(1, "gpus").in_use_max, 4);
    cluster.run(7 * SECOND);
    assert_eq!(cluster.show(1, "gpus").in_use_max, 0);
    assert_eq!(cluster.done(0, settle(held, 1)), Outcome::Refused(Refusal::UnknownGrant));
}

#[test]
fn operations_of_one_batch_that_settle_one_grant_take_effect_once() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let open = grant(&mut cluster, 0, hold(20, Hold::Open));
    let (site, incarnation, session) = cluster.session(0);
    let each = [settle(open, 5), settle(open, 5), settle(open, 0), settle(open, 0)];
    let submission = |(operation, sequence)| Submission { sequence, timeout: SECOND, operation };
    let operations = each.into_iter().zip(10..).map(submission).collect();
    cluster.request(0, 7, Request::Batch(Batch { site, incarnation, session, low: 1, operations }));
    cluster.run(SECOND);
    let outcomes: Vec<_> = (10..14).map(|sequence| cluster.outcome(0, sequence).expect("answered")).collect();
    let refused = |refusal| Outcome::Refused(refusal);
    let released = |amount| Outcome::Released { amount };
    assert_eq!(outcomes, [released(15), refused(Refusal::Settled), released(5), refused(Refusal::UnknownGrant)]);
    assert_eq!(cluster.show(1, "gpus").in_use_max, 0);
}

#[test]
fn hold_extended_lasts_from_then_on_and_never_ends_earlier() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let held = grant(&mut cluster, 0, hold(3, Hold::For(10 * SECOND)));
    cluster.run(8 * SECOND);
    assert_eq!(cluster.done(0, extend(held, 10 * SECOND)), Outcome::Extended { lasts: 10 * SECOND });
    cluster.run(8 * SECOND);
    assert_eq!(cluster.show(1, "gpus").in_use_max, 3);

    // A shorter time does not bring the end forward; nor does a restart.
    assert_eq!(cluster.done(0, extend(held, SECOND / 100)), Outcome::Extended { lasts: SECOND / 100 });
    cluster.kill(0);
    cluster.start(0);
    cluster.run(SECOND);
    assert_eq!(cluster.show(1, "gpus").in_use_max, 3);
    cluster.run(4 * SECOND);
    assert_eq!(cluster.show(1, "gpus").in_use_max, 0);
    assert_eq!(cluster.done(0, extend(held, SECOND)), Outcome::Refused(Refusal::UnknownGrant));

    let open = grant(&mut cluster, 0, hold(3, Hold::Open));
    assert_eq!(cluster.done(0, extend(open, SECOND)), Outcome::Refused(Refusal::NoEnd));
    assert_eq!(cluster.done(0, extend(held, 0)), Outcome::Refused(Refusal::InvalidAmount));
    assert_eq!(cluster.done(1, extend(open, SECOND)), Outcome::Refused(Refusal::UnknownGrant), "another site's");
}

/// Two of three sites have free tokens. The third has none, and got back what it granted, ten tokens in 30 ms, for some time.
fn with_tokens_that_come_back() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    for _ in 0..100 {
        assert!(granted(&cluster.done(2, acquire(10))));
        cluster.run(10_000);
        cluster.done(2, release(10));
    }
    let all = cluster.tokens(2, "gpus");
    assert!(granted(&cluster.done(2, acquire(all))));
    cluster
}

#[test]
fn acquire_where_tokens_come_back_soon_asks_nobody() {
    let mut cluster = with_tokens_that_come_back();
    let sent = cluster.hosts[0].node.as_ref().expect("runs").metrics().gifts_asked;
    let waiting = cluster.submit(2, acquire(1));
    cluster.run(10_000);
    assert_eq!(cluster.outcome(2, waiting), None);
    cluster.done(2, release(1));
    assert!(cluster.outcome(2, waiting).is_some_and(|outcome| granted(&outcome)));
    cluster.run(SECOND);
    assert_eq!(cluster.hosts[0].node.as_ref().expect("runs").metrics().gifts_asked, sent, "others were not asked");
}

#[test]
fn acquire_where_tokens_come_back_no_more_asks_the_others() {
    let mut cluster = with_tokens_that_come_back();
    let waiting = cluster.submit(2, acquire(1));
    // Half a round trip of hope, one for gifts.
    cluster.run(200_000);
    let outcome = cluster.outcome(2, waiting);
    assert!(outcome.as_ref().is_some_and(granted), "hope has an end: {outcome:?}");
}

/// The last that was heard of a site that is down is that it has tokens. Nobody can have those, so nobody hopes for them.
#[test]
fn tokens_of_a_site_that_is_down_are_not_hoped_for() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    cluster.kill(2);
    cluster.run(10 * SECOND);
    let there = cluster.free(0, "gpus") + cluster.free(1, "gpus");
    assert!(granted(&cluster.done(0, acquire(there))), "all that the two have");
    cluster.run(10 * SECOND);

    for most in [1, 0] {
        let before = cluster.share(0, "gpus").applied;
        let outcome = cluster.done(0, acquire(5));
        assert!(matches!(outcome, Outcome::Refused(Refusal::Exhausted { .. })), "{outcome:?}");
        let rounds = cluster.share(0, "gpus").applied - before;
        assert!(rounds <= most, "{rounds} rounds for what a site has that is down, not {most}");
    }
}

/// A round that moves tokens has asked a site before the deletion does, which then cannot close it. The deletion is tried again and again;
/// each time it must not put off what ends that round.
#[test]
fn deletion_that_meets_an_earlier_offer_waits_for_the_end_of_that_round() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    cluster.log = Some(Vec::new());
    cluster.submit(0, acquire(80));
    let asks = |cluster: &Cluster| {
        let log = cluster.log.as_ref().expect("kept");
        log.iter().any(|(_, _, message)| format!("{:?}", message.body).contains("Election"))
    };
    while !asks(&cluster) {
        cluster.run(MILLISECOND);
    }

    // It arrives everywhere before the deletion's, and the site that deletes prefers its own.
    cluster.run(DELAY - MILLISECOND);
    let gone = cluster.submit(2, delete());
    cluster.run(1_500 * MILLISECOND);
    assert_eq!(cluster.outcome(2, gone), Some(Outcome::Deleted));
}

/// A round among a subset has moved 15 tokens from the first member to the second. One tally is of before, and one of after.
#[test]
fn count_in_the_middle_of_a_round_among_a_subset_does_not_go_by_tokens() {
    let members = [0, 1, 2].map(|at| SiteId::new(at, 0));
    let tally = |at: usize, tokens, with: [u64; 3]| {
        let none = vec![(Incarnation(1), 0); 3];
        let rounds = Rounds { subset: with.to_vec(), ..Rounds::default() };
        let (given, received) = (none.clone(), none);
        let (site, limit, acquired) = (members[at], (90, 0), 10);
        Some(Tally { site, limit, rounds, tokens, acquired, given, received, ..Tally::default() })
    };
    let count = |first: Option<Tally>, third: Incarnation| {
        let tallies = [first, tally(1, 35, [7, 0, 0]), tally(2, 20, [0, 0, 0])];
        let membership = Membership::first(members[0], Incarnation(1), &members);
        let incarnations = [Incarnation(1), Incarnation(1), third];
        let shown = count("gpus", membership, &tallies, &tallies, &incarnations).expect("counted");
        (shown.in_use_min, shown.in_use_max)
    };
    let (before, after) = (tally(0, 20, [0, 0, 0]), tally(0, 5, [0, 7, 0]));
    assert_eq!(count(before.clone(), Incarnation(1)), (30, 30), "each has granted ten");
    assert_eq!(count(before, Incarnation(2)), (0, 90), "what lost storage granted is in no total");
    assert_eq!(count(after, Incarnation(2)), (30, 30), "both are of after it");
}

/// Those that know it do not answer.
#[test]
fn count_of_a_quota_that_is_not_known_where_it_is_counted_says_who_is_missing() {
    let mut cluster = Cluster::new(3);
    cluster.cut = vec![(0, 2), (1, 2), (2, 0), (2, 1)];
    assert_eq!(cluster.done(0, create(90)), Outcome::Created { limit: 90 });
    let mut missing = SiteSet::default();
    (0..2).for_each(|position| missing.insert(position));
    let counted = |cluster: &mut Cluster| {
        cluster.request(2, 77, Request::Show { quota: "gpus".into(), timeout: SECOND, local: false });
        cluster.run(3 * SECOND);
        let Some((_, _, Response::Shown(shown))) = cluster.responses.pop() else { panic!("no answer") };
        shown.map(|shown| shown.limit)
    };
    assert_eq!(counted(&mut cluster), Err(Refusal::Unreachable { missing }), "said to be unknown by who cannot know");
    cluster.cut.clear();
    cluster.run(5 * SECOND);
    assert_eq!(counted(&mut cluster), Ok(90));
}

/// It has heard of the new storage, and of none of the quotas that are at rest; the only one who could tell it starts again.
#[test]
fn new_storage_is_told_of_quotas_at_rest_by_a_site_that_starts_again() {
    let mut cluster = Cluster::new(2);
    let names: Vec<String> = (0..600).map(|n| format!("quota-{n}")).collect();
    for name in &names {
        cluster.submit(0, Operation::create(name.as_str(), 10));
        cluster.run(2 * MILLISECOND);
    }
    cluster.run(200 * SECOND);
    cluster.kill(1);
    cluster.hosts[1].put_back(Default::default());
    cluster.start(1);
    cluster.run(300 * MILLISECOND);
    cluster.kill(0);
    cluster.start(0);
    cluster.run(200 * SECOND);
    let new = cluster.hosts[1].node.as_ref().expect("runs").membership().incarnation;
    assert_eq!(new, Incarnation(2), "its storage is new");
    let recorded = |name: &&String| cluster.share(0, name).table.recorded(SiteId::new(1, 0)) == new;
    let unrecorded = names.iter().filter(|name| !recorded(name)).count();
    assert_eq!(unrecorded, 0, "quotas that have not recorded the new storage");
}

#[test]
fn forecast_that_no_round_can_meet_leads_ever_more_slowly() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(1_000));
    cluster.run(SECOND);

    // Two regions expect so much more that what a round brings to the first is far below what it expects in a second.
    for (at, a_second) in [(0, 100), (1, 100_000), (2, 100_000)] {
        let forecast = Forecast { quota: "gpus".into(), tokens: 600 * a_second, micros: 600 * SECOND };
        cluster.request(at, 79, Request::Expect(vec![forecast]));
    }
    cluster.run(60 * SECOND);
    let led =
        |cluster: &Cluster, at: usize| cluster.hosts[at].node.as_ref().expect("it runs").metrics().rounds_proactive;
    let first = led(&cluster, 0);
    assert!((2..=7).contains(&first), "{first} rounds in a minute in which nobody asked for anything");

    // Others' forecasts end: this site has what it expects, and the next shortage is met at once.
    for at in 1..3 {
        cluster.request(at, 79, Request::Expect(vec![Forecast { quota: "gpus".into(), tokens: 0, micros: SECOND }]));
    }
    cluster.run(5 * SECOND);
    assert!(cluster.free(0, "gpus") >= 100, "{} tokens here", cluster.free(0, "gpus"));
}
