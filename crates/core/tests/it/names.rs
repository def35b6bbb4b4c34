//! Names of deleted quotas go, at all sites together.

use slackline_core::api::{Hold, Operation, Outcome, Readiness, Refusal, Request, Response, SeatChange, UnknownReason};
use slackline_core::avantan::Message;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{OperationId, SiteSet};
use slackline_core::machine::{ClientId, Input};
use slackline_core::peer::Body;
use slackline_core::peer::quota::{Forget, QuotaMessage};
use slackline_core::rows::{FORGOTTEN, GRANT, QUOTA_COLD, QUOTA_HOT};

use crate::cluster::{Cluster, DELAY};

/// How long the sites of these scenarios keep names.
const KEPT: u64 = 20 * SECOND;

fn create(limit: i64) -> Operation {
    named("gpus", limit)
}

fn named(quota: &str, limit: i64) -> Operation {
    Operation::create(quota, limit)
}

fn delete() -> Operation {
    Operation::Delete { quota: "gpus".into() }
}

fn acquire(amount: i64) -> Operation {
    Operation::Acquire { quota: "gpus".into(), amount, hold: Hold::Counted, waits: false }
}

/// How many quotas a site knows; it has two rows for each.
fn known(cluster: &Cluster, at: usize) -> usize {
    let known = cluster.hosts[at].node.as_ref().expect("runs").chapters().quotas.len();
    assert_eq!(cluster.hosts[at].rows.keys().filter(|key| matches!(key[0], QUOTA_COLD | QUOTA_HOT)).count(), 2 * known);
    known
}

fn epoch(cluster: &Cluster, at: usize) -> u64 {
    cluster.hosts[at].node.as_ref().map_or(0, |node| node.chapters().quotas.epoch())
}

/// What a site has frozen, whoever proposed it.
fn frozen(cluster: &Cluster, at: usize) -> Vec<String> {
    let node = cluster.hosts[at].node.as_ref().expect("runs");
    node.chapters().quotas.forgetting().frozen.iter().flat_map(|freeze| freeze.names.clone()).collect()
}

fn wait_for(cluster: &mut Cluster, span: u64, found: impl Fn(&Cluster) -> bool) {
    let until = cluster.now + span;
    while !found(cluster) {
        assert!(cluster.now < until, "not in time");
        cluster.run(MILLISECOND);
    }
}

/// A site loses its disk, and starts on new storage.
fn replace(cluster: &mut Cluster, at: usize) {
    cluster.kill(at);
    cluster.hosts[at].put_back(Default::default());
    cluster.start(at);
}

/// Three sites that have deleted a quota.
fn deleted() -> Cluster {
    let mut cluster = Cluster::keeping(3, KEPT);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    assert_eq!(cluster.done(1, delete()), Outcome::Deleted);
    cluster
}

/// The same, when the others have frozen its name and their agreement is under way to site 0.
fn agreed() -> Cluster {
    let mut cluster = deleted();
    wait_for(&mut cluster, 2 * KEPT, |cluster| (0..3).all(|at| frozen(cluster, at) == ["gpus"]));
    assert_eq!(epoch(&cluster, 0), 0);
    cluster
}

#[test]
fn names_of_quotas_that_are_deleted_or_were_never_created_go_everywhere_and_the_others_stay() {
    let mut cluster = Cluster::keeping(3, KEPT);
    cluster.done(0, create(90));
    cluster.done(1, named("stays", 9));
    cluster.run(SECOND);
    let Outcome::Granted { grant, .. } =
        cluster.done(2, Operation::Acquire { quota: "gpus".into(), amount: 2, hold: Hold::Open, waits: false })
    else {
        panic!("tokens are there")
    };
    assert_eq!(cluster.done(1, delete()), Outcome::Deleted);
    // Nobody else ever hears of this one.
    cluster.cut = vec![(2, 0), (2, 1)];
    assert!(matches!(cluster.done(2, named("alone", 5)), Outcome::Refused(_)));
    cluster.cut.clear();
    cluster.run(KEPT / 2);
    assert_eq!((known(&cluster, 0), known(&cluster, 2)), (2, 3), "they are kept for a while");

    cluster.run(2 * KEPT);
    for at in 0..3 {
        assert_eq!(known(&cluster, at), 1);
        assert!(frozen(&cluster, at).is_empty());
    }
    assert_eq!(cluster.done(0, acquire(1)), Outcome::Refused(Refusal::UnknownQuota));
    assert_eq!(cluster.done(2, Operation::ReleaseGrant { grant, used: 0 }), Outcome::Refused(Refusal::QuotaDeleted));

    // What comes by the name now is new, also to grants and operations of its former life.
    assert_eq!(cluster.done(2, create(30)), Outcome::Created { limit: 30 });
    cluster.run(SECOND);
    assert_eq!(cluster.share(0, "gpus").table.generation, 1);
    assert_eq!(cluster.done(2, Operation::ReleaseGrant { grant, used: 0 }), Outcome::Refused(Refusal::UnknownGrant));
    assert_eq!(cluster.show(1, "gpus").in_use_max, 0);
    assert_eq!(cluster.show(1, "stays").limit, 9);
    cluster.run(700 * SECOND);
    assert_eq!(cluster.hosts[2].rows.keys().filter(|key| key[0] == GRANT).count(), 0);
}

#[test]
fn names_that_are_many_go_some_at_a_time() {
    let mut cluster = Cluster::keeping(3, KEPT);
    for at in 0..600 {
        cluster.done(at % 3, named(&format!("quota-{at}"), 3));
        cluster.done(at % 3, Operation::Delete { quota: format!("quota-{at}") });
    }
    cluster.run(3 * KEPT);
    for at in 0..3 {
        assert_eq!(known(&cluster, at), 0);
        assert!(epoch(&cluster, at) >= 3);
    }
}

#[test]
fn late_messages_of_a_former_life_change_nothing() {
    let mut cluster = Cluster::keeping(3, KEPT);
    cluster.log = Some(Vec::new());
    cluster.done(0, create(90));
    cluster.run(SECOND);
    assert!(matches!(cluster.done(1, acquire(70)), Outcome::Granted { .. }));
    cluster.run(2 * SECOND);
    assert_eq!(
        cluster.done(1, Operation::Release { quota: "gpus".into(), amount: 70 }),
        Outcome::Released { amount: 70 }
    );
    assert_eq!(cluster.done(1, delete()), Outcome::Deleted);
    cluster.run(SECOND);
    let late = cluster.log.take().expect("kept");
    let is = |kind: &str| late.iter().any(|(_, _, message)| format!("{:?}", message.body).contains(kind));
    for kind in ["Election", "Report", "Accept {", "Accepted", "Decided", "Digests"] {
        assert!(is(kind), "{kind}");
    }
    wait_for(&mut cluster, 3 * KEPT, |cluster| (0..3).all(|at| epoch(cluster, at) > 0));

    for is_created_anew in [false, true] {
        if is_created_anew {
            assert_eq!(cluster.done(2, create(30)), Outcome::Created { limit: 30 });
            cluster.run(2 * SECOND);
        }
        let shares = |cluster: &Cluster| -> Vec<_> {
            let quota = |at: usize| cluster.hosts[at].node.as_ref().expect("runs").chapters().quotas.find("gpus");
            (0..3).map(|at| quota(at).map(|quota| quota.avantan().share.clone())).collect()
        };
        let before = shares(&cluster);
        for (to, from, message) in late.clone() {
            if matches!(
                message.body,
                Body::Quota(QuotaMessage::Avantan { .. })
                    | Body::Quota(QuotaMessage::Digests(_))
                    | Body::Quota(QuotaMessage::NoVote { .. })
            ) {
                cluster.feed(to, Input::Message { from, message });
            }
        }
        assert_eq!(shares(&cluster), before);
    }
    cluster.run(SECOND);
    let shown = cluster.show(0, "gpus");
    assert_eq!((shown.limit, shown.in_use_min, shown.in_use_max), (30, 0, 0));
    assert!(matches!(cluster.done(0, acquire(30)), Outcome::Granted { .. }));
}

#[test]
fn member_that_is_away_keeps_names_from_going_and_nobody_from_creating_them() {
    let mut cluster = deleted();
    cluster.run(SECOND);
    cluster.kill(2);
    cluster.run(3 * KEPT);
    assert_eq!((known(&cluster, 0), epoch(&cluster, 0)), (1, 0));
    assert_eq!(cluster.done(0, create(30)), Outcome::Created { limit: 30 });
    assert_eq!(cluster.done(1, delete()), Outcome::Refused(Refusal::Unreachable { missing: missing(2) }));
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.done(1, delete()), Outcome::Deleted);
    cluster.run(2 * KEPT);
    assert!((0..3).all(|at| known(&cluster, at) == 0));
}

/// Nobody tells it of the creation by itself: all is quiet when it is back.
#[test]
fn site_that_missed_a_creation_hears_of_it_when_it_would_forget_the_name() {
    let mut cluster = deleted();
    cluster.cut = vec![(0, 2), (2, 0), (1, 2), (2, 1)];
    assert_eq!(cluster.done(0, create(30)), Outcome::Created { limit: 30 });
    cluster.run(KEPT / 2);
    cluster.cut.clear();
    assert_eq!(cluster.share(2, "gpus").table.limit, None);
    cluster.run(2 * KEPT);
    assert_eq!(cluster.share(2, "gpus").table.limit, Some(30));
    assert_eq!(epoch(&cluster, 2), 0);
}

fn missing(at: usize) -> SiteSet {
    let mut missing = SiteSet::default();
    missing.insert(at);
    missing
}

#[test]
fn creation_that_comes_while_a_name_is_frozen_is_that_of_a_new_quota() {
    let mut cluster = agreed();
    let sequence = cluster.submit(1, create(30));
    cluster.run(2 * SECOND);
    assert_eq!(cluster.outcome(1, sequence), Some(Outcome::Created { limit: 30 }));
    for at in 0..3 {
        assert_eq!((epoch(&cluster, at), known(&cluster, at)), (1, 1));
        assert_eq!(cluster.share(at, "gpus").table.generation, 1);
    }
    assert!(matches!(cluster.done(2, acquire(30)), Outcome::Granted { .. }));
}

#[test]
fn leader_that_stops_between_the_phases_gives_up_when_it_is_back() {
    let mut cluster = agreed();
    cluster.kill(0);
    cluster.run(5 * SECOND);
    // Nobody can tell whether it is forgotten.
    assert_eq!(frozen(&cluster, 1), ["gpus"]);
    assert!(matches!(cluster.done(1, create(30)), Outcome::Refused(Refusal::Unreachable { .. })));
    cluster.start(0);
    cluster.run(5 * SECOND);
    assert!((0..3).all(|at| frozen(&cluster, at).is_empty() && epoch(&cluster, at) == 0));
    assert_eq!(cluster.done(1, create(30)), Outcome::Created { limit: 30 });
    cluster.done(1, delete());
    cluster.run(3 * KEPT);
    assert!((0..3).all(|at| known(&cluster, at) == 0));
}

#[test]
fn proposal_that_comes_late_does_not_replace_the_one_after_it() {
    let mut cluster = deleted();
    cluster.log = Some(Vec::new());
    // The first comes to nothing, since the answers are lost.
    wait_for(&mut cluster, 2 * KEPT, |cluster| frozen(cluster, 0) == ["gpus"]);
    cluster.cut = vec![(1, 0), (2, 0)];
    wait_for(&mut cluster, 2 * KEPT, |cluster| frozen(cluster, 0).is_empty());
    let late = cluster.log.take().expect("kept").into_iter().filter(
        |(_, _, message)| matches!(&message.body, Body::Quota(QuotaMessage::Forget(message)) if matches!(**message, Forget::Propose { .. })),
    );
    let late: Vec<_> = late.collect();
    assert!(!late.is_empty());
    cluster.run(DELAY);
    cluster.cut.clear();
    wait_for(&mut cluster, 2 * KEPT, |cluster| (0..3).all(|at| frozen(cluster, at) == ["gpus"]));
    let numbers = |cluster: &Cluster| -> Vec<u64> {
        let node = |at: usize| cluster.hosts[at].node.as_ref().expect("runs");
        (0..3)
            .flat_map(|at| node(at).chapters().quotas.forgetting().frozen.iter().map(|freeze| freeze.number))
            .collect()
    };
    let before = numbers(&cluster);
    for (to, from, message) in late {
        cluster.feed(to, Input::Message { from, message });
    }
    assert_eq!(numbers(&cluster), before);
    cluster.run(KEPT);
    assert!((0..3).all(|at| known(&cluster, at) == 0));
}

/// It has told site 1 of its decision, or nobody.
#[test]
fn leader_that_loses_its_disk_leaves_nothing_frozen_for_good() {
    for is_told in [true, false] {
        let mut cluster = agreed();
        cluster.cut = if is_told { vec![(0, 2)] } else { vec![(0, 1), (0, 2)] };
        wait_for(&mut cluster, SECOND, |cluster| epoch(cluster, 0) == 1);
        cluster.kill(0);
        cluster.run(DELAY + MILLISECOND);
        assert_eq!((epoch(&cluster, 1), epoch(&cluster, 2)), (u64::from(is_told), 0));
        cluster.cut.clear();
        replace(&mut cluster, 0);
        cluster.run(20 * SECOND);
        for at in 0..3 {
            let node = cluster.hosts[at].node.as_ref().expect("runs");
            assert_eq!((node.readiness(), epoch(&cluster, at)), (Readiness::Ready, 1), "site {at}, told: {is_told}");
            assert!(frozen(&cluster, at).is_empty());
        }
        assert_eq!(cluster.done(2, create(30)), Outcome::Created { limit: 30 });
        cluster.run(5 * SECOND);
        cluster.responses.clear();
        let acquired = cluster.done(0, acquire(30));
        assert!(matches!(acquired, Outcome::Granted { .. }), "told: {is_told}: {acquired:?}");
    }
}

#[test]
fn new_storage_does_not_vote_for_what_its_site_had_agreed_to_forget() {
    let mut cluster = agreed();
    // What was agreed to is still under way to the leader, which stands still.
    let leader = cluster.hosts[0].node.take();
    replace(&mut cluster, 1);
    replace(&mut cluster, 2);
    cluster.run(5 * SECOND);
    cluster.hosts[0].node = leader;
    cluster.run(5 * SECOND);
    assert_eq!(epoch(&cluster, 0), 0, "it has heard of the new ones");
    cluster.run(3 * KEPT);
    assert!((0..3).all(|at| known(&cluster, at) == 0 && epoch(&cluster, at) > 0));

    // The agreement of site 1 is lost, and so is what the leader says to it when it gives up.
    let mut cluster = deleted();
    wait_for(&mut cluster, 2 * KEPT, |cluster| frozen(cluster, 0) == ["gpus"]);
    cluster.cut = vec![(1, 0)];
    wait_for(&mut cluster, SECOND, |cluster| (0..3).all(|at| frozen(cluster, at) == ["gpus"]));
    cluster.cut.push((0, 1));
    replace(&mut cluster, 2);
    cluster.run(3 * SECOND);
    assert_eq!(frozen(&cluster, 1), ["gpus"]);
    // Two of three are not enough, as one of them has agreed, and the other is new.
    assert!(matches!(cluster.done(2, create(30)), Outcome::Refused(_)));
    assert_eq!(cluster.share(1, "gpus").table.limit, None);
}

#[test]
fn site_that_is_restarted_knows_what_was_forgotten_and_numbers_on() {
    let mut cluster = deleted();
    cluster.run(2 * KEPT);
    assert_eq!(epoch(&cluster, 1), 1);
    cluster.kill(1);
    cluster.start(1);
    cluster.run(SECOND);
    assert_eq!((epoch(&cluster, 1), known(&cluster, 1)), (1, 0));
    cluster.done(1, create(30));
    cluster.run(SECOND);
    let number = |cluster: &Cluster| {
        let node = cluster.hosts[1].node.as_ref().expect("runs");
        node.chapters().quotas.find("gpus").expect("known").number()
    };
    assert_eq!(number(&cluster), 1, "0 is used");
    cluster.kill(1);
    cluster.start(1);
    cluster.run(SECOND);
    assert_eq!(number(&cluster), 1);
    assert!(matches!(cluster.done(1, acquire(30)), Outcome::Granted { .. }));
}

#[test]
fn site_that_missed_the_decision_is_told_and_one_that_missed_two_is_an_old_copy() {
    let mut cluster = deleted();
    cluster.run(SECOND);
    let copy = cluster.hosts[2].copy();
    wait_for(&mut cluster, 2 * KEPT, |cluster| (0..3).all(|at| frozen(cluster, at) == ["gpus"]));
    // It has agreed, and the outcome is lost.
    cluster.cut = vec![(0, 2), (1, 2)];
    cluster.run(SECOND);
    assert_eq!(epoch(&cluster, 0), 1);
    assert_eq!(epoch(&cluster, 2), 0);
    cluster.cut.clear();
    cluster.run(2 * SECOND);
    assert_eq!(epoch(&cluster, 2), 1);

    cluster.done(0, create(30));
    cluster.done(0, delete());
    cluster.run(2 * KEPT);
    assert_eq!(epoch(&cluster, 0), 2);
    // Nobody has heard of what this copy lacks, but for the names.
    cluster.kill(2);
    cluster.hosts[2].put_back((copy.0, u64::MAX / 2));
    cluster.start(2);
    cluster.run(SECOND);
    let node = cluster.hosts[2].node.as_ref().expect("runs");
    assert_eq!(node.readiness(), Readiness::Stale);
    assert_eq!(node.stale(), Some(slackline_core::node::Stale::Forgetful { epoch: 2 }));
}

#[test]
fn operations_in_doubt_about_a_forgotten_quota_are_settled() {
    for operation in [delete(), create(45)] {
        let is_creation = matches!(operation, Operation::Create { .. });
        let mut cluster = Cluster::keeping(3, KEPT);
        if !is_creation {
            cluster.done(0, create(90));
        }
        let sequence = cluster.submit(1, operation);
        // The others have reported; the value leaves, and no vote comes back.
        cluster.run(2 * DELAY + 1);
        cluster.cut = vec![(0, 1), (2, 1)];
        cluster.run(4 * SECOND);
        assert_eq!(cluster.outcome(1, sequence), Some(Outcome::Unknown(UnknownReason::Undecided)));
        let (site, incarnation, session) = cluster.hosts[1].session.expect("opened");
        cluster.cut.clear();
        cluster.run(4 * SECOND);
        if is_creation {
            assert_eq!(cluster.done(0, delete()), Outcome::Deleted);
        }
        wait_for(&mut cluster, 3 * KEPT, |cluster| (0..3).all(|at| epoch(cluster, at) == 1));
        cluster.done(0, create(7));
        cluster.run(SECOND);
        cluster.responses.clear();
        let operation = OperationId { site, incarnation, session, sequence };
        cluster.request(1, 9, Request::Ask { operation });
        let outcome = if is_creation { Outcome::Unknown(UnknownReason::Forgotten) } else { Outcome::Deleted };
        let answer = Response::Asked { operation, outcome };
        assert!(cluster.responses.contains(&(1, ClientId(9), answer)), "{:?}", cluster.responses);
    }
}

#[test]
fn storage_of_the_layout_before_has_forgotten_nothing() {
    let mut cluster = Cluster::keeping(3, KEPT);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    cluster.kill(1);
    assert!(!cluster.hosts[1].rows.contains_key(&vec![FORGOTTEN]), "nothing is written for names that stay");
    cluster.hosts[1].rows.get_mut(&vec![1u8]).expect("the row about the site")[0] = 4;
    cluster.start(1);
    cluster.run(2 * SECOND);
    assert!(matches!(cluster.done(1, acquire(90)), Outcome::Granted { .. }));
}

/// Grants of a forgotten quota have the highest numbers that a site gave out, and nothing else remembers them.
#[test]
fn grant_of_a_forgotten_quota_names_no_grant_that_comes_after_a_restart() {
    let open = |quota: &str| Operation::Acquire { quota: quota.into(), amount: 1, hold: Hold::Open, waits: false };
    let granted = |outcome: Outcome| match outcome {
        Outcome::Granted { grant, .. } => grant,
        other => panic!("{other:?}"),
    };
    // Storage that was written before the row had the number of the next grant has lost it already.
    for is_old in [false, true] {
        let mut cluster = Cluster::keeping(3, KEPT);
        cluster.done(1, named("cpus", 9));
        cluster.done(1, create(90));
        let first = granted(cluster.done(1, open("cpus")));
        let old: Vec<_> = (0..3).map(|_| granted(cluster.done(1, open("gpus")))).collect();
        assert_eq!(cluster.done(1, delete()), Outcome::Deleted);
        wait_for(&mut cluster, 3 * KEPT, |cluster| (0..3).all(|at| epoch(cluster, at) == 1));
        cluster.kill(1);
        if is_old {
            let row = cluster.hosts[1].rows.get_mut(&vec![FORGOTTEN]).expect("a name was forgotten");
            assert_eq!(row.pop(), Some(old[2].number as u8 + 1), "the number of the next grant stands last");
        }

        for _ in 0..2 {
            cluster.start(1);
            cluster.run(SECOND);
            let new = granted(cluster.done(1, open("cpus")));
            assert!(new.number > old[2].number && new.number > first.number, "{new:?} after {old:?}");
            assert!(new.number < 1 << 49, "numbers are left out once");
            for grant in &old {
                let refused = Outcome::Refused(Refusal::QuotaDeleted);
                let outcome = cluster.done(1, Operation::ReleaseGrant { grant: *grant, used: 0 });
                assert!(outcome == refused || outcome == Outcome::Refused(Refusal::UnknownGrant), "{outcome:?}");
            }
            assert_eq!(
                cluster.done(1, Operation::ReleaseGrant { grant: new, used: 0 }),
                Outcome::Released { amount: 1 }
            );
            cluster.kill(1);
        }
    }
}

/// A late decision of a former life comes to a site that has not entered the next epoch yet.
#[test]
fn name_that_is_frozen_hears_nothing() {
    let mut cluster = agreed();
    let before = cluster.share(1, "gpus").clone();
    let mut table = before.table.clone();
    table.limit = Some(90);
    table.generation += 1;
    let decided = Message::Decided { instance: before.applied + 1, table };
    let body = Body::Quota(QuotaMessage::Avantan { quota: "gpus".into(), message: Box::new(decided) });
    for epoch in 0..2 {
        let message = slackline_core::peer::PeerMessage {
            incarnation: slackline_core::id::Incarnation(1),
            position: 0,
            epoch,
            members: 0,
            body: body.clone(),
        };
        cluster.feed(1, Input::Message { from: Cluster::site(2), message });
        assert_eq!(*cluster.share(1, "gpus"), before);
    }
}

/// It had agreed to both, and has heard of neither. What tells of the one is of a membership that it does not know, and what tells of the
/// other of an epoch that it does not know.
#[test]
fn site_that_missed_that_names_were_forgotten_and_that_a_member_is_gone_catches_up() {
    let mut cluster = Cluster::keeping(5, KEPT);
    assert_eq!(cluster.done(0, create(90)), Outcome::Created { limit: 90 });
    cluster.run(SECOND);
    assert_eq!(cluster.done(0, delete()), Outcome::Deleted);
    wait_for(&mut cluster, 60 * SECOND, |cluster| !frozen(cluster, 4).is_empty());
    // It has agreed, and that has arrived; what is decided does not.
    cluster.cut = (0..4).map(|at| (at, 4)).collect();
    wait_for(&mut cluster, 10 * SECOND, |cluster| (0..4).all(|at| epoch(cluster, at) == 1));
    assert_eq!(epoch(&cluster, 4), 0);
    cluster.cut.extend((0..4).map(|at| (4, at)));
    cluster.run(10 * SECOND);
    cluster.kill(3);
    cluster.run(10 * SECOND);
    let lost = Operation::Seat { site: Cluster::site(3), change: SeatChange::Lost, label: "site 3".into() };
    assert_eq!(cluster.done(0, lost), Outcome::Seated { number: 1 });
    cluster.run(20 * SECOND);

    cluster.cut.clear();
    cluster.run(20 * SECOND);
    let node = cluster.hosts[4].node.as_ref().expect("runs");
    let members = node.chapters().quotas.roster().map_or(0, |roster| roster.number);
    assert_eq!((members, epoch(&cluster, 4)), (1, 1), "a site hears of neither");
    assert_eq!(cluster.done(4, create(70)), Outcome::Created { limit: 70 });
}
