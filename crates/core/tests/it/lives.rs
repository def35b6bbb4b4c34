//! Sites that stop, lose their disks, or come back on old copies of them.

use slackline_core::api::{
    Hold, Operation, Outcome, Parent, Readiness, Refusal, Request, Response, SeatChange, UnknownReason,
};
use slackline_core::avantan::Charter;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::{Incarnation, OperationId};
use slackline_core::machine::ClientId;
use slackline_core::machine::Input;
use slackline_core::node::Stale;
use slackline_core::peer::quota::QuotaMessage;
use slackline_core::peer::{Body, PeerMessage, SiteMessage};
use slackline_core::quota::MEMBERS;
use slackline_core::session::RETENTION;

use crate::cluster::{Cluster, DELAY};
use crate::quotas::{acquire, create, granted, release};
use crate::txns::{Txn, commit, key};

/// What an old copy shows as free was granted since. It must not be given away by a site that nobody has vouched for.
#[test]
fn drain_before_the_site_is_confirmed_gives_nothing_away() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    let copy = cluster.hosts[2].copy();
    assert!(granted(&cluster.done(2, acquire(30))));
    cluster.run(3 * SECOND);
    cluster.kill(2);
    cluster.hosts[2].put_back(copy);
    cluster.cut = vec![(0, 2), (1, 2)];
    cluster.start(2);
    cluster.run(SECOND);
    // The others can hear it, and it cannot hear them.
    let before = cluster.tokens(0, "gpus") + cluster.tokens(1, "gpus");
    cluster.request(2, 9, Request::Drain { within: 5 * SECOND });
    assert!(cluster.responses.contains(&(2, ClientId(9), Response::Drained)), "there is nothing to wait for");
    cluster.run(2 * SECOND);
    assert_eq!(cluster.hosts[2].node.as_ref().expect("runs").readiness(), Readiness::Confirming);
    assert_eq!(cluster.tokens(0, "gpus") + cluster.tokens(1, "gpus"), before, "all that it had is out");
}

/// A majority does not know better, and lets it serve. One that does answers later.
#[test]
fn old_copy_that_serves_is_betrayed_by_a_late_answer() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    let copy = cluster.hosts[1].copy();
    cluster.cut = vec![(0, 1), (1, 0)];
    assert!(granted(&cluster.done(1, acquire(3))));
    cluster.run(2 * SECOND);
    cluster.kill(1);
    cluster.hosts[1].put_back(copy);
    cluster.cut = vec![(2, 1)];
    cluster.log = Some(Vec::new());
    cluster.start(1);
    cluster.run(SECOND / 4);
    let readiness = |cluster: &Cluster| cluster.hosts[1].node.as_ref().expect("runs").readiness();
    assert_eq!(readiness(&cluster), Readiness::Ready);
    let said = cluster.log.take().expect("it was made above").into_iter();
    let mut answers = said.filter(|(to, from, message)| {
        (*to, *from) == (1, Cluster::site(2)) && matches!(message.body, Body::Site(SiteMessage::Welcome { .. }))
    });
    let (_, from, message) = answers.next().expect("it answers");
    cluster.feed(1, Input::Message { from, message });
    assert_eq!(readiness(&cluster), Readiness::Stale, "what came later counts");
}

/// A site that starts again without its disk is there, and takes nothing before it has an incarnation.
#[test]
fn site_that_joins_is_given_nothing_before_it_serves() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    // Site 2 asks much more than the others, so gifts go there.
    for _ in 0..20 {
        assert!(granted(&cluster.done(2, acquire(1))));
        cluster.run(SECOND / 4);
    }
    cluster.kill(1);
    cluster.kill(2);
    cluster.hosts[2].rows.clear();
    cluster.start(2);
    cluster.run(5 * SECOND);
    let before = cluster.tokens(0, "gpus");
    assert_eq!(cluster.hosts[2].node.as_ref().expect("runs").readiness(), Readiness::Joining);
    assert!(!cluster.hosts[0].node.as_ref().expect("runs").peers()[2].is_up(cluster.time(0)));
    cluster.request(0, 9, Request::Drain { within: 5 * SECOND });
    cluster.run(2 * SECOND);
    assert_eq!(cluster.tokens(0, "gpus"), before, "there is nobody to give anything to");
}

/// The volume is not mounted when the site starts: what is there is empty, and may not speak for what is on the volume.
#[test]
fn empty_mount_joins_nothing_and_the_healthy_disk_comes_back_whole() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(2, acquire(20))));
    let (site, incarnation, session) = cluster.hosts[2].session.expect("opened");
    let operation = OperationId { site, incarnation, session, sequence: 1 };
    cluster.run(3 * SECOND);
    let before = cluster.tokens(2, "gpus");
    cluster.kill(2);
    let healthy = cluster.hosts[2].copy();

    cluster.hosts[2].put_back(Default::default());
    cluster.hosts[2].new_storage = false;
    cluster.start(2);
    cluster.run(5 * SECOND);
    let node = cluster.hosts[2].node.as_ref().expect("runs");
    assert_eq!((node.incarnation().0, node.readiness()), (0, Readiness::AwaitingNewStorage));
    // Nor does it say that anything is lost.
    cluster.request(2, 9, Request::Ask { operation });
    let answer = Response::Asked { operation, outcome: Outcome::Unknown(UnknownReason::NotReady) };
    assert!(cluster.responses.contains(&(2, ClientId(9), answer)), "{:?}", cluster.responses);

    cluster.kill(2);
    cluster.hosts[2].put_back(healthy);
    cluster.start(2);
    cluster.run(5 * SECOND);
    assert_eq!(lived(&cluster, 2), (Readiness::Ready, 1));
    assert_eq!(cluster.tokens(2, "gpus"), before);
    assert!(granted(&cluster.done(2, acquire(70))), "all that is free can be had");
}

/// A second process was started for a site, on new storage and with a person's word that the site's own is lost. It has gone again before
/// anybody heard its incarnation. What the site would answer from now on would be lost with its next start.
#[test]
fn site_in_whose_place_new_storage_was_noted_stops() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(2 * SECOND);
    let (living, rows) = (cluster.hosts[2].node.take(), cluster.hosts[2].copy());
    cluster.hosts[2].put_back(Default::default());
    cluster.start(2);
    // It is told what it takes the place of, asks once more, and the answers are lost.
    cluster.run(2 * DELAY + DELAY / 2);
    cluster.cut = vec![(0, 2), (1, 2)];
    cluster.run(SECOND);
    cluster.cut.clear();

    cluster.hosts[2].put_back(rows);
    cluster.hosts[2].node = living;
    cluster.run(3 * SECOND);
    assert_eq!(cluster.hosts[2].node.as_ref().expect("runs").readiness(), Readiness::Stale);
}

/// A question of new storage that was lost itself before it joined comes when its successor serves: what a person said then was about
/// what came before.
#[test]
fn question_with_a_persons_word_that_comes_late_replaces_nothing_that_came_since() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.kill(2);
    cluster.hosts[2].put_back(Default::default());
    cluster.start(2);
    cluster.run(3 * SECOND);
    let state = |cluster: &Cluster| {
        let node = cluster.hosts[2].node.as_ref().expect("runs");
        (node.readiness(), node.incarnation().0)
    };
    assert_eq!(state(&cluster), (Readiness::Ready, 2));
    for at in 0..2 {
        for replaces in [None, Some(Incarnation(0)), Some(Incarnation(1))] {
            hello_of_other_storage(&mut cluster, at, replaces);
        }
    }
    cluster.run(3 * SECOND);
    assert_eq!(state(&cluster), (Readiness::Ready, 2));
    hello_of_other_storage(&mut cluster, 0, Some(Incarnation(2)));
    cluster.run(3 * SECOND);
    assert_eq!(state(&cluster), (Readiness::Stale, 2), "a person has said so");
}

/// A second process that runs as a site, on other storage, keeps asking: the site that serves is as much there as before.
#[test]
fn questions_of_a_stray_process_do_not_make_its_site_look_down() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(2 * SECOND);
    hello_of_other_storage(&mut cluster, 0, None);
    let outcome = commit(&mut cluster, 0, Txn::new().put(&key(2, "x"), "value"));
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
}

/// How far the start of a site is, and its incarnation.
fn lived(cluster: &Cluster, at: usize) -> (Readiness, u32) {
    let node = cluster.hosts[at].node.as_ref().expect("runs");
    (node.readiness(), node.incarnation().0)
}

/// Site `at` hears new storage ask that is not the storage of site 2, under its name.
fn hello_of_other_storage(cluster: &mut Cluster, at: usize, replaces: Option<Incarnation>) {
    let body = Body::Site(SiteMessage::Hello { nonce: 77, start: 1, is_new: true, replaces });
    let message = PeerMessage { incarnation: Default::default(), position: 0, epoch: 0, members: 0, body };
    cluster.feed(at, Input::Message { from: Cluster::site(2), message });
}

/// One site that knows an earlier incarnation is enough, whoever else answers, and however often the storage asks.
#[test]
fn new_storage_that_one_site_knows_waits_for_a_persons_word() {
    let mut cluster = Cluster::new(3);
    cluster.run(2 * SECOND);
    // Site 1 has lost its disk, and has not heard of site 2 since.
    cluster.cut = vec![(2, 1), (1, 2)];
    cluster.kill(1);
    cluster.hosts[1].put_back(Default::default());
    cluster.start(1);
    cluster.run(2 * SECOND);
    cluster.kill(2);
    cluster.hosts[2].put_back(Default::default());
    cluster.hosts[2].new_storage = false;
    cluster.cut.clear();
    for _ in 0..3 {
        cluster.start(2);
        cluster.run(3 * SECOND);
        let node = cluster.hosts[2].node.as_ref().expect("runs");
        assert_eq!((node.incarnation().0, node.readiness()), (0, Readiness::AwaitingNewStorage));
        cluster.kill(2);
    }

    cluster.hosts[2].new_storage = true;
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!(lived(&cluster, 2), (Readiness::Ready, 2));
}

/// A majority could decide that it is lost for good, and it would serve as a member that is gone.
#[test]
fn new_storage_is_not_let_in_while_its_site_is_being_declared_lost() {
    let mut cluster = Cluster::new(3);
    cluster.kill(2);
    cluster.run(10 * SECOND);
    let label = "site 2".to_owned();
    let lost = cluster.submit(0, Operation::Seat { site: Cluster::site(2), change: SeatChange::Lost, label });
    // The change waits at the first, and then the second has accepted it.
    for at in 0..2 {
        let is_accepted = |cluster: &Cluster| {
            let quotas = &cluster.hosts[at].node.as_ref().expect("runs").chapters().quotas;
            let round = quotas.find(MEMBERS).and_then(|members| members.avantan().share.round.as_ref());
            round.is_some_and(|round| round.accepted.is_some())
        };
        while at == 1 && !is_accepted(&cluster) {
            cluster.run(MILLISECOND);
        }
        assert_eq!(cluster.outcome(0, lost), None);
        hello_of_other_storage(&mut cluster, at, Some(Incarnation(1)));
        let noted = cluster.hosts[at].node.as_ref().expect("runs").peers()[2].noted.0;
        assert_eq!(noted, Incarnation(1), "site {at} lets new storage in");
    }
    cluster.run(3 * SECOND);
    assert_eq!(cluster.outcome(0, lost), Some(Outcome::Seated { number: 1 }));
}

/// Two storages of one site ask at once, each with a person's word, and some sites hear the one first and some the other. Were the highest
/// number taken that one site has noted, both could take the same.
#[test]
fn two_new_storages_that_ask_at_once_get_different_numbers() {
    let mut cluster = Cluster::new(5);
    cluster.run(2 * SECOND);
    cluster.kill(2);
    hello_of_other_storage(&mut cluster, 4, Some(Incarnation(1)));
    hello_of_other_storage(&mut cluster, 0, Some(Incarnation(1)));
    let noted =
        |cluster: &Cluster| [0, 1, 3, 4].map(|at| cluster.hosts[at].node.as_ref().expect("runs").peers()[2].noted);
    assert_eq!(noted(&cluster).map(|(number, _)| number.0), [2, 1, 1, 2]);

    // This one is heard by a majority, of which one knows the other storage: each of these notes the number that it takes.
    cluster.hosts[2].put_back(Default::default());
    cluster.cut = vec![(0, 2), (2, 0)];
    cluster.start(2);
    cluster.run(SECOND);
    assert_eq!(lived(&cluster, 2), (Readiness::Ready, 3));
    let [(zero, other), rest @ ..] = noted(&cluster);
    assert_eq!((zero, other), (Incarnation(2), 77));
    assert!(
        rest.iter().all(|&(number, nonce)| number == Incarnation(3) && nonce == rest[0].1 && nonce != 77),
        "it takes a number that others have not noted: {rest:?}"
    );

    // The other one asks again, and is to come after it.
    hello_of_other_storage(&mut cluster, 1, Some(Incarnation(2)));
    assert_eq!(noted(&cluster)[1], rest[0], "it was told of no more than 2");
    hello_of_other_storage(&mut cluster, 1, Some(Incarnation(3)));
    assert_eq!(noted(&cluster)[1], (Incarnation(4), 77));
    hello_of_other_storage(&mut cluster, 0, Some(Incarnation(3)));
    assert_eq!(noted(&cluster)[0], (Incarnation(4), 77), "the number that was noted for it here is raised");
}

/// Who waits for a person's word knows that the cluster is not new, and has forgotten what it knew of the others: it vouches for
/// nobody. Else sites that have all forgotten would begin again together.
#[test]
fn sites_that_wait_for_a_persons_word_vouch_for_nobody() {
    let mut cluster = Cluster::new(3);
    cluster.run(2 * SECOND);
    let start_empty = |cluster: &mut Cluster, at: usize, new_storage: bool| {
        cluster.kill(at);
        cluster.hosts[at].put_back(Default::default());
        cluster.hosts[at].new_storage = new_storage;
        cluster.start(at);
        cluster.run(2 * SECOND);
        lived(cluster, at)
    };
    let healthy = [cluster.hosts[0].copy(), cluster.hosts[1].copy()];
    assert_eq!(start_empty(&mut cluster, 2, false), (Readiness::AwaitingNewStorage, 0));
    assert_eq!(start_empty(&mut cluster, 1, false), (Readiness::AwaitingNewStorage, 0));
    assert_eq!(start_empty(&mut cluster, 0, false), (Readiness::AwaitingNewStorage, 0));
    cluster.kill(2);
    cluster.hosts[2].new_storage = true;
    cluster.start(2);
    cluster.run(5 * SECOND);
    assert_eq!(lived(&cluster, 2), (Readiness::Joining, 0), "nobody knows what it was");

    // Their volumes are mounted.
    for (at, healthy) in healthy.into_iter().enumerate() {
        cluster.kill(at);
        cluster.hosts[at].put_back(healthy);
        cluster.start(at);
    }
    cluster.run(5 * SECOND);
    let incarnations = (0..3).map(|at| cluster.hosts[at].node.as_ref().expect("runs").incarnation().0);
    assert_eq!(incarnations.collect::<Vec<_>>(), [1, 1, 2]);
}

/// The first start is slow, and the questions of a storage that has long joined arrive late.
#[test]
fn question_that_comes_late_does_not_make_the_storage_that_asked_it_old() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let nonce_of = |cluster: &Cluster| {
        // The row about the site: version, region, lane, nonce.
        let mut row = slackline_core::codec::Cursor(&cluster.hosts[2].rows[&vec![1u8]]);
        for _ in 0..3 {
            row.u64().expect("a field");
        }
        row.u64().expect("the nonce")
    };
    let body = Body::Site(SiteMessage::Hello { nonce: nonce_of(&cluster), start: 1, is_new: true, replaces: None });
    for at in 0..2 {
        let message =
            PeerMessage { incarnation: Default::default(), position: 0, epoch: 0, members: 0, body: body.clone() };
        cluster.feed(at, Input::Message { from: Cluster::site(2), message });
    }
    cluster.kill(2);
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!(lived(&cluster, 2), (Readiness::Ready, 1));
}

/// A number is noted at one site for each storage that asks there, so that one may have noted a higher one for a storage than it took by
/// the answers of the others.
#[test]
fn number_that_was_noted_for_a_storage_and_never_heard_by_it_does_not_make_it_old() {
    let mut cluster = Cluster::new(5);
    cluster.run(2 * SECOND);
    cluster.kill(2);
    // Site 0 alone hears of a storage that is gone again.
    hello_of_other_storage(&mut cluster, 0, Some(Incarnation(1)));

    // The next one reaches it alone too, in its first start, and is to come after that.
    let others = [1, 3, 4];
    cluster.hosts[2].put_back(Default::default());
    cluster.cut = others.iter().flat_map(|&at| [(at, 2), (2, at)]).collect();
    cluster.start(2);
    cluster.run(3 * SECOND);
    let noted = cluster.hosts[0].node.as_ref().expect("runs").peers()[2].noted.0;
    assert_eq!((noted, lived(&cluster, 2)), (Incarnation(3), (Readiness::Joining, 0)));

    // In the second start the others let it in, and site 0 cannot be heard.
    cluster.kill(2);
    cluster.cut = vec![(0, 2)];
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!(lived(&cluster, 2), (Readiness::Ready, 2));
    cluster.kill(2);
    cluster.cut.clear();
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!(lived(&cluster, 2), (Readiness::Ready, 2), "site 0 has noted 3 for it");
}

/// The others crash at the moment when an old copy is put back, and know only what they have noted durably. A new incarnation
/// counts its batches from one again.
#[test]
fn old_copy_of_a_new_incarnation_is_found_out_by_sites_that_have_crashed() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90_000));
    for _ in 0..200 {
        assert!(granted(&cluster.done(2, acquire(1))));
    }
    cluster.run(2 * SECOND);
    cluster.kill(2);
    cluster.hosts[2].put_back(Default::default());
    cluster.start(2);
    cluster.run(5 * SECOND);
    cluster.responses.clear();
    let copy = cluster.hosts[2].copy();
    for _ in 0..100 {
        assert!(granted(&cluster.done(2, acquire(1))));
    }
    cluster.run(3 * SECOND);
    for at in 0..3 {
        cluster.kill(at);
    }
    cluster.hosts[2].put_back(copy);
    for at in 0..3 {
        cluster.start(at);
    }
    cluster.run(5 * SECOND);
    assert_eq!(cluster.hosts[2].node.as_ref().expect("runs").readiness(), Readiness::Stale);
}

/// The same of a site that does too little to be noted for that: it is noted in time.
#[test]
fn old_copy_of_a_quiet_site_is_found_out_by_sites_that_have_crashed() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    let copy = cluster.hosts[2].copy();
    for _ in 0..10 {
        assert!(granted(&cluster.done(2, acquire(1))));
    }
    cluster.run(35 * SECOND);
    (0..3).for_each(|at| cluster.kill(at));
    cluster.hosts[2].put_back(copy);
    (0..3).for_each(|at| cluster.start(at));
    cluster.run(5 * SECOND);
    assert_eq!(lived(&cluster, 2), (Readiness::Stale, 1), "others note what they heard within 30 seconds");
}

/// What is on an old copy may be all that is left of something: it is left as it is.
#[test]
fn old_copy_is_not_written_to_once_it_is_found_out() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(SECOND);
    let copy = cluster.hosts[2].copy();
    assert!(granted(&cluster.done(2, acquire(30))));
    cluster.run(3 * SECOND);
    let heard = cluster.hosts[0].node.as_ref().expect("runs").peers()[2].position;
    cluster.kill(2);
    cluster.hosts[2].put_back(copy.clone());
    cluster.start(2);
    cluster.run(5 * SECOND);
    cluster.request(2, 9, Request::Open);
    let node = cluster.hosts[2].node.as_ref().expect("runs");
    assert_eq!((node.readiness(), node.stale()), (Readiness::Stale, Some(Stale::Behind { position: heard })));
    assert!(cluster.responses.contains(&(2, ClientId(9), Response::NotOpened(Refusal::NotReady))));
    assert_eq!(cluster.hosts[2].copy(), copy);

    // Its driver opens the site on new storage; the copy is old permanently.
    cluster.put_aside_old_copy(2);
    cluster.run(5 * SECOND);
    assert_eq!(lived(&cluster, 2), (Readiness::Ready, 2));
    cluster.kill(2);
    cluster.hosts[2].put_back(copy);
    cluster.start(2);
    cluster.run(5 * SECOND);
    let node = cluster.hosts[2].node.as_ref().expect("runs");
    assert_eq!(node.stale(), Some(Stale::Replaced { by: Incarnation(2) }));
}

/// A majority that was away when the copy became old confirms it. The one that knows better ends that as soon as it is back.
#[test]
fn old_copy_that_serves_stops_when_one_is_back_that_knows_better() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(900));
    cluster.run(3 * SECOND);
    let copy = cluster.hosts[2].copy();
    cluster.kill(1);
    for _ in 0..100 {
        assert!(granted(&cluster.done(2, acquire(1))));
    }
    cluster.run(3 * SECOND);
    let heard = cluster.hosts[0].node.as_ref().expect("runs").peers()[2].position;
    cluster.kill(0);
    cluster.kill(2);
    cluster.hosts[2].put_back(copy);
    cluster.start(1);
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.hosts[2].node.as_ref().expect("runs").readiness(), Readiness::Ready, "nobody knows better");
    cluster.start(0);
    cluster.run(3 * SECOND);
    let node = cluster.hosts[2].node.as_ref().expect("runs");
    assert_eq!((node.readiness(), node.stale()), (Readiness::Stale, Some(Stale::Behind { position: heard })));
    let others = [0, 1].map(|at| cluster.hosts[at].node.as_ref().expect("runs").readiness());
    assert_eq!(others, [Readiness::Ready; 2], "what those have is the newest");
}

/// A site that has just lost its disk has heard of nothing, and so can vouch for nobody.
#[test]
fn site_that_joins_confirms_no_old_copy() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let copy = cluster.hosts[2].copy();
    assert!(granted(&cluster.done(2, acquire(30))));
    cluster.run(3 * SECOND);
    cluster.cut = vec![(0, 1), (0, 2), (1, 0), (2, 0)];
    cluster.kill(1);
    cluster.kill(2);
    cluster.hosts[1].rows.clear();
    cluster.hosts[2].put_back(copy);
    cluster.start(1);
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.hosts[2].node.as_ref().expect("runs").readiness(), Readiness::Confirming);
    cluster.cut.clear();
    cluster.run(10 * SECOND);
    cluster.put_aside_old_copy(2);
    cluster.run(10 * SECOND);
    assert_eq!(lived(&cluster, 2), (Readiness::Ready, 2));
}

/// All sites stop in the middle of the first start: one has joined, the others have not.
#[test]
fn new_cluster_whose_sites_stop_while_they_join_comes_up() {
    for stops in 1..12 {
        let mut cluster = Cluster::unjoined(3);
        cluster.run(stops * DELAY / 4);
        for site in 0..3 {
            cluster.kill(site);
            cluster.start(site);
        }
        cluster.cut = vec![(0, 1), (1, 0)];
        cluster.run(SECOND);
        cluster.cut.clear();
        cluster.run(3 * SECOND);
        assert_eq!(cluster.done(0, create(90)), Outcome::Created { limit: 90 }, "stopped after {stops}");
    }
}

/// Nobody answers for a site that does not serve, or that does not come back: the request is answered all the same.
#[test]
fn request_that_another_site_never_answers_is_unknown_in_the_end() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let sequence = cluster.submit(1, acquire(1));
    let (site, incarnation, session) = cluster.hosts[1].session.expect("opened");
    let operation = OperationId { site, incarnation, session, sequence };
    // The question leaves, and its answer is lost.
    cluster.cut = vec![(1, 0)];
    cluster.request(0, 9, Request::Ask { operation });
    cluster.run(15 * SECOND);
    let unknown = Outcome::Unknown(UnknownReason::SiteUnreachable);
    let answer = Response::Asked { operation, outcome: unknown };
    assert!(cluster.responses.contains(&(0, ClientId(9), answer.clone())), "{:?}", cluster.responses);
    // Once the site counts as down, at once.
    cluster.request(0, 10, Request::Ask { operation });
    assert!(cluster.responses.contains(&(0, ClientId(10), answer)), "{:?}", cluster.responses);
    // One that does not serve says so.
    cluster.kill(2);
    cluster.cut = vec![(0, 2), (1, 2)];
    cluster.start(2);
    cluster.request(2, 11, Request::Show { quota: "gpus".into(), timeout: 1_000_000, local: false });
    let refused = Response::Shown(Err(Refusal::NotReady));
    assert!(cluster.responses.contains(&(2, ClientId(11), refused)), "{:?}", cluster.responses);
}

/// The answer takes a round trip, and nothing in the question says how long it may take. Sites look once a second for what took too long.
#[test]
fn request_that_another_site_answers_is_not_given_up_before() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let outcome = cluster.done(1, acquire(1));
    let (site, incarnation, session) = cluster.hosts[1].session.expect("opened");
    let operation = OperationId { site, incarnation, session, sequence: 1 };
    let answer = (0, ClientId(9), Response::Asked { operation, outcome });
    for _ in 0..30 {
        cluster.request(0, 9, Request::Ask { operation });
        cluster.run(DELAY);
    }
    cluster.run(2 * DELAY);
    let answered = cluster.responses.iter().filter(|response| **response == answer).count();
    assert_eq!(answered, 30, "an answer on its way is not waited for");
}

/// Sessions that are silent for longer than the retention end, with their rows; what is asked about them then is honest.
#[test]
fn silent_session_ends_with_its_rows_and_its_outcomes_are_forgotten() {
    let mut cluster = Cluster::new(3);
    cluster.done(1, create(90));
    cluster.run(SECOND);
    let rows = cluster.hosts[0].rows.len();
    let sequence = cluster.submit(0, acquire(1));
    assert!(granted(&cluster.outcome(0, sequence).expect("at once")));
    let (site, incarnation, session) = cluster.hosts[0].session.expect("opened");
    assert!(cluster.hosts[0].rows.len() > rows);
    // Many at once, which their clients forget: they end soon after the retention, not a few at a time.
    for _ in 0..1_000 {
        cluster.request(0, 5, Request::Open);
    }
    let count = |cluster: &Cluster| cluster.hosts[0].node.as_ref().expect("runs").status(cluster.time(0)).sessions;
    assert_eq!(count(&cluster), 1_001);
    cluster.run(RETENTION + 15 * SECOND);
    assert_eq!(count(&cluster), 0);
    assert_eq!(cluster.hosts[0].rows.len(), rows, "its outcomes went with it");
    let operation = OperationId { site, incarnation, session, sequence };
    let forgotten = Response::Asked { operation, outcome: Outcome::Unknown(UnknownReason::Forgotten) };
    cluster.request(0, 9, Request::Ask { operation });
    assert!(cluster.responses.contains(&(0, ClientId(9), forgotten)), "{:?}", cluster.responses);
    cluster.responses.clear();
    let again = cluster.submit(0, acquire(1));
    // Nobody can tell any more whether it was done in that session.
    assert_eq!(cluster.outcome(0, again), Some(Outcome::Unknown(UnknownReason::Forgotten)));
}

/// What a site gives away when it drains stays with the others, also what they give it before they hear of that.
#[test]
fn drained_site_leaves_its_tokens_with_the_others() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(900));
    // Site 2 asks for most, so the others would give it more.
    for _ in 0..40 {
        assert!(granted(&cluster.done(2, acquire(5))));
        cluster.run(SECOND / 20);
    }
    cluster.request(2, 9, Request::Drain { within: 5 * SECOND });
    cluster.run(3 * SECOND);
    assert!(cluster.responses.contains(&(2, ClientId(9), Response::Drained)));
    assert_eq!(cluster.tokens(2, "gpus"), 0);
    cluster.kill(2);
    cluster.run(SECOND);
    assert_eq!(cluster.tokens(0, "gpus") + cluster.tokens(1, "gpus"), 700);
    assert!(granted(&cluster.done(0, acquire(700))), "all that is free can be had");
    cluster.start(2);
    cluster.run(3 * SECOND);
    assert_eq!((cluster.show(0, "gpus").in_use_min, cluster.show(2, "gpus").in_use_max), (900, 900));
}

/// A leader has the word of a site that it grants nothing any more, and is suspended. The site loses its disk, and its new incarnation hears of
/// the quota, of which 10 tokens are to be released there. The quota will be deleted before a round has recorded it. The numbers of the
/// deletion and of the release.
fn before_a_deletion_by_the_word_of_a_lost_incarnation() -> (Cluster, u64, u64) {
    let mut cluster = Cluster::new(5);
    let [leader, lost] = [0, 2];
    cluster.done(0, create(90));
    assert!(granted(&cluster.done(lost, acquire(10))));
    cluster.run(SECOND);
    cluster.cut = [1, 3, 4].into_iter().flat_map(|at| [(leader, at), (at, leader)]).collect();
    let deleted = cluster.submit(leader, Operation::Delete { quota: "gpus".into() });
    cluster.run(2 * DELAY);
    assert!(cluster.share(lost, "gpus").round.as_ref().is_some_and(|round| round.closing));

    cluster.kill(lost);
    cluster.hosts[lost].put_back(Default::default());
    cluster.responses.clear();
    cluster.start(lost);
    let until = |cluster: &mut Cluster, is_so: &dyn Fn(&Cluster) -> bool| {
        let mut steps = 0..400;
        while !is_so(cluster) {
            steps.next().expect("it comes to that");
            cluster.suspend(leader, DELAY / 8, false);
        }
    };
    until(&mut cluster, &|cluster| lived(cluster, lost).0 == Readiness::Ready);

    // Those that would record it are down meanwhile.
    (3..5).for_each(|at| cluster.kill(at));
    let released = cluster.submit(lost, release(10));
    let quotas = |cluster: &Cluster| cluster.hosts[lost].node.as_ref().expect("runs").chapters().quotas.len();
    until(&mut cluster, &|cluster| quotas(cluster) > 0);
    assert_eq!(cluster.share(lost, "gpus").table.limit, Some(90));
    (3..5).for_each(|at| cluster.start(at));

    // All but the new incarnation hear the leader.
    cluster.cut = [leader, 1, 3, 4].into_iter().flat_map(|at| [(lost, at), (at, lost)]).collect();
    (cluster, deleted, released)
}

/// The same, once the deletion is decided, and the third site has missed it.
fn after_a_deletion_by_the_word_of_a_lost_incarnation() -> (Cluster, u64) {
    let (mut cluster, deleted, released) = before_a_deletion_by_the_word_of_a_lost_incarnation();
    cluster.run(2 * SECOND);
    assert_eq!(cluster.outcome(0, deleted), Some(Outcome::Deleted));
    (cluster, released)
}

#[test]
fn quota_that_is_deleted_by_the_word_of_a_lost_incarnation_is_not_granted_by_the_next() {
    let (mut cluster, deleted, _) = before_a_deletion_by_the_word_of_a_lost_incarnation();
    let [leader, lost] = [0, 2];
    let waiting = cluster.submit(lost, acquire(1));
    assert!(cluster.outcome(lost, waiting).is_none(), "no round has recorded it");
    cluster.run(2 * SECOND);
    assert_eq!(cluster.outcome(leader, deleted), Some(Outcome::Deleted));
    let there = cluster.submit(lost, acquire(1));
    cluster.run(2 * SECOND);
    for sequence in [waiting, there] {
        let outcome = cluster.outcome(lost, sequence);
        assert!(!outcome.is_some_and(|outcome| granted(&outcome)), "what does not exist any more is granted");
    }
}

/// Its client has heard that the quota is gone, and makes another.
#[test]
fn creation_where_the_deletion_was_missed_is_not_answered_by_what_was_there() {
    let (mut cluster, _) = after_a_deletion_by_the_word_of_a_lost_incarnation();
    let [leader, lost] = [0, 2];
    let created = cluster.submit(lost, create(90));
    assert_eq!(cluster.outcome(lost, created), None, "what is gone is said to be there");
    let below = Operation::Create {
        quota: "gpus/team".into(),
        limit: 9,
        charter: Charter { parent: Some(Parent { length: 4, generation: 0 }), ..Charter::default() },
    };
    let below = cluster.submit(lost, below);
    assert_eq!(cluster.outcome(lost, below), None);

    // It is made anew, and can be used.
    cluster.cut.clear();
    cluster.run(4 * SECOND);
    assert_eq!(cluster.done(leader, create(90)), Outcome::Created { limit: 90 });
    cluster.run(2 * SECOND);
    assert_eq!(cluster.share(leader, "gpus").table.generation, 2);
    assert!(granted(&cluster.done(lost, acquire(1))));
}

/// Tokens of a quota that was made anew are given back where nobody has heard of that: there they would go with those of the one that is gone.
#[test]
fn release_where_the_deletion_was_missed_is_of_what_was_created_since() {
    let (mut cluster, early) = after_a_deletion_by_the_word_of_a_lost_incarnation();
    let [leader, lost] = [0, 2];
    cluster.cut.retain(|&(from, to)| from == lost || to == lost);
    assert_eq!(cluster.done(leader, create(40)), Outcome::Created { limit: 40 });
    assert!(granted(&cluster.done(leader, acquire(20))));
    let late = cluster.submit(lost, release(10));
    cluster.run(SECOND);
    let is_back = |outcome: Option<Outcome>| outcome == Some(Outcome::Released { amount: 10 });
    let is_any_back = [early, late].iter().any(|&released| is_back(cluster.outcome(lost, released)));
    assert!(!is_any_back, "what is given back is lost");

    cluster.cut.clear();
    cluster.run(4 * SECOND);
    assert!(is_back(cluster.outcome(lost, late)));
    let shown = cluster.show(leader, "gpus");
    assert_eq!((shown.in_use_min, shown.in_use_max), (10, 10));
}

/// A site that knows the quota, and may not say so while it is deleted, is not one of those that do not know it.
#[test]
fn quota_that_is_deleted_is_not_said_to_be_unknown_because_two_missed_its_creation() {
    let mut cluster = Cluster::new(5);
    let apart = |one: &[usize], other: &[usize]| {
        let pairs = one.iter().flat_map(|&from| other.iter().map(move |&to| (from, to)));
        pairs.flat_map(|(from, to)| [(from, to), (to, from)]).collect::<Vec<_>>()
    };
    cluster.cut = apart(&[0, 1, 2], &[3, 4]);
    assert_eq!(cluster.done(0, create(90)), Outcome::Created { limit: 90 });
    assert!(granted(&cluster.done(2, acquire(5))));
    cluster.run(SECOND);
    let deleted = cluster.submit(0, Operation::Delete { quota: "gpus".into() });
    cluster.run(2 * DELAY);
    assert!(cluster.share(2, "gpus").round.as_ref().is_some_and(|round| round.closing));

    // Now it hears those two alone, and they have not heard of the quota yet.
    cluster.cut = apart(&[0, 1], &[2, 3, 4]);
    let released = cluster.submit(2, release(5));
    cluster.run(3 * DELAY);
    assert_eq!(cluster.outcome(2, released), None, "it is said that there is no such quota");
    assert_eq!(cluster.outcome(0, deleted), None);

    cluster.cut.clear();
    cluster.run(4 * SECOND);
    assert_eq!(cluster.outcome(2, released), Some(Outcome::Refused(Refusal::UnknownQuota)), "it is deleted now");
}

/// Three sites and a quota, of which the third carries out an operation. It has just closed for a deletion, and not been heard yet: the number
/// of that, and the outcome.
fn closed_for_a_deletion(operation: Operation) -> (Cluster, u64, Outcome) {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    let outcome = cluster.done(2, operation);
    cluster.run(SECOND);
    let deleted = cluster.submit(0, Operation::Delete { quota: "gpus".into() });
    cluster.run(DELAY + DELAY / 8);
    assert!(cluster.share(2, "gpus").round.as_ref().is_some_and(|round| round.closing));
    (cluster, deleted, outcome)
}

/// The deletion may be decided by then, and the token granted by the next quota of that name: two would hold it.
#[test]
fn hold_is_not_extended_once_its_site_has_closed_for_a_deletion() {
    let hold = Operation::Acquire { quota: "gpus".into(), amount: 1, hold: Hold::For(60 * SECOND), waits: false };
    let (mut cluster, deleted, outcome) = closed_for_a_deletion(hold);
    let Outcome::Granted { grant, .. } = outcome else { panic!("it is granted") };
    cluster.cut = vec![(0, 2), (1, 2)];
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(0, deleted), Some(Outcome::Deleted));
    assert!(cluster.share(2, "gpus").round.as_ref().is_some_and(|round| round.closing));

    let extended = cluster.done(2, Operation::ExtendGrant { grant, micros: 60 * SECOND });
    assert!(matches!(extended, Outcome::Refused(Refusal::Unreachable { .. })), "{extended:?}");
}

/// Those that it asks still know the quota.
#[test]
fn release_that_crosses_a_deletion_is_refused_as_soon_as_that_is_decided() {
    let (mut cluster, deleted, _) = closed_for_a_deletion(acquire(5));
    let released = cluster.submit(2, release(5));
    cluster.run(8 * DELAY);
    assert_eq!(cluster.outcome(0, deleted), Some(Outcome::Deleted));
    assert_eq!(cluster.outcome(2, released), Some(Outcome::Refused(Refusal::UnknownQuota)), "it waits for nothing");
}

/// One of three has answered that it knows no such quota, and the third is down. Then the site hears of the deletion.
#[test]
fn release_that_waits_is_refused_once_the_deletion_is_known_here() {
    let (mut cluster, deleted, _) = closed_for_a_deletion(acquire(5));
    cluster.cut = [0, 1].iter().flat_map(|&at| [(at, 2), (2, at)]).collect();
    cluster.cut.retain(|pair| *pair != (2, 0));
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(0, deleted), Some(Outcome::Deleted));
    cluster.kill(0);

    cluster.cut.clear();
    let released = cluster.submit(2, release(5));
    cluster.run(SECOND);
    assert_eq!(cluster.share(2, "gpus").table.limit, None);
    assert_eq!(cluster.outcome(2, released), Some(Outcome::Refused(Refusal::UnknownQuota)));
}

/// Nobody asks there, so that it leads nothing by which it would hear of the deletion.
#[test]
fn site_that_missed_a_deletion_and_was_not_asked_about_it_is_told() {
    let (mut cluster, _) = after_a_deletion_by_the_word_of_a_lost_incarnation();
    let lost = 2;
    assert_eq!(cluster.share(lost, "gpus").table.limit, Some(90));
    cluster.cut.clear();
    cluster.run(20 * SECOND);
    assert_eq!(cluster.share(lost, "gpus").table.limit, None, "nobody tells it");
}

/// Each of the two waits for all others to say that no vote of its predecessor counts, and that they take nothing of the other's. One of the
/// others cannot say that yet.
#[test]
fn two_sites_that_lost_their_disks_create_once_all_know_of_both() {
    let mut cluster = Cluster::new(5);
    cluster.run(SECOND);
    cluster.cut = vec![(0, 4), (4, 0)];
    for at in [0, 2] {
        cluster.kill(at);
        cluster.hosts[at].put_back(Default::default());
        cluster.start(at);
    }
    cluster.run(2 * SECOND);
    cluster.log = Some(Vec::new());
    let created = cluster.submit(2, create(90));
    cluster.run(SECOND);
    assert_eq!(cluster.outcome(2, created), None, "one has not heard that the other lost its disk");
    let reborn = |message: &PeerMessage| match &message.body {
        Body::Quota(QuotaMessage::NoVote { answer, .. }) => Some(answer.reborn.clone()),
        _ => None,
    };
    let told = |cluster: &Cluster, by: usize| {
        let log = cluster.log.as_ref().expect("kept").iter().rev();
        let mut answers = log.filter(|(to, from, _)| (*to, *from) == (2, Cluster::site(by)));
        answers.find_map(|(_, _, message)| reborn(message)).expect("it has answered")
    };
    let other = (Cluster::site(0), Incarnation(2));
    assert_eq!([1, 3, 4].map(|by| told(&cluster, by).contains(&other)), [true, true, false], "tells of the other");

    cluster.cut.clear();
    cluster.run(2 * SECOND);
    assert_eq!(cluster.outcome(2, created), Some(Outcome::Created { limit: 90 }));
    assert!(told(&cluster, 4).contains(&other));
}

/// A name that is gone is created again by a new incarnation, though another one missed that it is gone.
#[test]
fn new_incarnation_creates_what_is_gone_though_another_one_never_heard_of_it() {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    assert_eq!(cluster.done(0, Operation::Delete { quota: "gpus".into() }), Outcome::Deleted);
    for at in [2, 0] {
        cluster.run(2 * SECOND);
        cluster.kill(at);
        cluster.hosts[at].put_back(Default::default());
        cluster.start(at);
        cluster.responses.clear();
        while cluster.hosts[at].node.as_ref().expect("runs").readiness() != Readiness::Ready {
            cluster.run(DELAY / 40);
        }
        if at == 0 {
            // What it is told of names that are gone is lost.
            cluster.cut = vec![(1, 0), (2, 0)];
            cluster.run(2 * SECOND);
            cluster.cut.clear();
        }
    }
    cluster.run(2 * SECOND);
    assert_eq!(cluster.done(2, create(70)), Outcome::Created { limit: 70 });
}

#[test]
fn answer_that_was_overtaken_does_not_hide_that_the_clock_is_off() {
    let mut cluster = Cluster::new(3);
    cluster.run(5 * SECOND);
    // Answers to pings of before the clock is set back are kept on their way until later ones have come.
    let late: Vec<_> = (1..3)
        .map(|peer: usize| {
            let (sent, there) = (cluster.time(0), cluster.time(peer).wall);
            let node = |at: usize| cluster.hosts[at].node.as_ref().expect("it runs");
            let mono = node(0).ping_name(sent.mono);
            assert_eq!(node(0).pinged_at(sent, mono), Some(sent.mono));
            let body = Body::Site(SiteMessage::Pong { mono, wall: sent.wall, there, withholds: false, attests: 0 });
            let message =
                PeerMessage { incarnation: node(peer).incarnation(), position: 0, epoch: 0, members: 0, body };
            Input::Message { from: Cluster::site(peer), message }
        })
        .collect();
    let is_trusted = |cluster: &Cluster| {
        let node = cluster.hosts[0].node.as_ref().expect("it runs");
        node.status(cluster.time(0)).clock.is_trusted
    };
    cluster.hosts[0].wall -= 8 * SECOND as i64;
    cluster.run(2 * SECOND);
    assert!(!is_trusted(&cluster), "both others have said so");
    late.into_iter().for_each(|input| cluster.feed(0, input));
    assert!(!is_trusted(&cluster));
}

/// The clock of a machine that was started anew begins again, so that the time alone would not tell.
#[test]
fn answer_to_a_ping_of_an_earlier_start_names_none_of_this() {
    let mut cluster = Cluster::new(3);
    cluster.run(SECOND);
    let earlier = cluster.hosts[0].node.take().expect("it runs");
    cluster.start(0);
    cluster.run(2 * SECOND);
    let (now, node) = (cluster.time(0), cluster.hosts[0].node.as_ref().expect("it runs"));
    let pinged = now.mono - SECOND;
    assert_eq!(node.pinged_at(now, node.ping_name(pinged)), Some(pinged));
    assert_eq!(node.pinged_at(now, earlier.ping_name(pinged)), None);
}

/// How many rounds the sites have led so far, for any cause.
fn rounds(cluster: &Cluster) -> u64 {
    let nodes = cluster.hosts.iter().filter_map(|host| host.node.as_ref());
    let rounds = nodes.map(|node| node.metrics());
    rounds.map(|metrics| metrics.rounds_reactive + metrics.rounds_proactive + metrics.rounds_recovery).sum()
}

/// Three sites with a quota at rest, of which the last has just joined on new storage.
fn one_is_new() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.done(0, create(90));
    cluster.run(70 * SECOND);
    cluster.kill(2);
    cluster.hosts[2].rows.clear();
    cluster.start(2);
    let until = cluster.now + 5 * SECOND;
    while cluster.hosts[2].node.as_ref().expect("runs").readiness() != Readiness::Ready {
        assert!(cluster.now < until, "two others are enough to join");
        cluster.run(SECOND / 1000);
    }
    cluster
}

/// One site is new, another one is away, and so no round can record the new one: nobody writes anything for it meanwhile.
#[test]
fn new_incarnation_is_not_recorded_while_too_few_may_vote_and_is_once_they_can() {
    let mut cluster = one_is_new();
    cluster.kill(1);
    // Until it is known to be down, a round is worth trying.
    cluster.run(10 * SECOND);
    let before = (rounds(&cluster), cluster.hosts[0].copy().1);
    for _ in 0..600 {
        cluster.run(SECOND / 10);
        assert_eq!(cluster.free(0, "gpus"), cluster.tokens(0, "gpus"), "nothing is set aside");
    }
    assert_eq!(rounds(&cluster), before.0, "no election could come to anything");
    cluster.start(1);
    cluster.run(40 * SECOND);
    let recorded =
        cluster.share(0, "gpus").table.settled(Cluster::site(2)).expect("it has been in a round").row.incarnation;
    assert_eq!(recorded.0, 2, "it is recorded once a majority may vote");
}

/// Elections to record a new incarnation do not get through, although the others seem to be up: each comes later than the one
/// before, and the tokens of the idle quota can be had all the time.
#[test]
fn recording_that_does_not_get_through_backs_off_and_sets_nothing_aside() {
    let mut cluster = one_is_new();
    // Site 0 hears the others, and they do not hear it; site 1 hears nobody, so nobody else can record it.
    cluster.cut = vec![(0, 1), (2, 1), (1, 2)];
    cluster.run(SECOND);
    let mut led = Vec::new();
    for _ in 0..2 {
        let before = rounds(&cluster);
        for _ in 0..1_200 {
            cluster.run(SECOND / 10);
            assert_eq!(cluster.free(0, "gpus"), cluster.tokens(0, "gpus"), "nothing is set aside");
        }
        led.push(rounds(&cluster) - before);
    }
    assert!(led[1] > 0 && led[1] < led[0], "{led:?} elections in two minutes each");
    cluster.cut.clear();
    cluster.run(40 * SECOND);
    let recorded =
        cluster.share(0, "gpus").table.settled(Cluster::site(2)).expect("it has been in a round").row.incarnation;
    assert_eq!(recorded.0, 2);
}

/// A site that starts does not know who serves, and nobody has compared clocks with new storage. Both are made up for at once, not
/// with the next ping: until then no transaction is started over their objects.
#[test]
fn sites_that_start_take_part_in_transactions_once_they_have_met() {
    let over_all = |name: &str| (0..3).fold(Txn::new(), |txn, home| txn.put(&key(home, name), "value"));
    let have_met = |cluster: &Cluster, site: usize| {
        let node = cluster.hosts[site].node.as_ref().expect("runs");
        node.readiness() == Readiness::Ready && node.unmet(cluster.time(site)).is_empty()
    };
    let meet = |cluster: &mut Cluster, site: usize, is_lost: bool| {
        // A question and its answer, and once more where something is replaced; then the first ping, that of the other, and one more with
        // its answer.
        let most = cluster.now + if is_lost { 8 } else { 6 } * DELAY + DELAY / 2;
        while !have_met(cluster, site) {
            assert!(cluster.now < most, "site {site} has not met the others");
            cluster.run(DELAY / 8);
        }
        assert!((0..3).all(|other| have_met(cluster, other)), "they have met it");
    };
    let commit_at_all = |cluster: &mut Cluster, name: &str| {
        for site in [2, 0, 1] {
            cluster.responses.clear();
            let outcome = commit(cluster, site, over_all(&format!("{name}{site}")));
            assert_eq!(outcome, Outcome::Committed { phases: 2 }, "at site {site}, {name}");
        }
    };

    let mut cluster = Cluster::unjoined(3);
    meet(&mut cluster, 0, false);
    commit_at_all(&mut cluster, "first");

    for is_lost in [false, true] {
        // The next pings of the others are far away.
        cluster.run(2 * SECOND);
        cluster.kill(2);
        if is_lost {
            cluster.hosts[2].put_back(Default::default());
        }
        cluster.run(SECOND / 3);
        cluster.start(2);
        meet(&mut cluster, 2, is_lost);
        // What is new instead of what was lost refuses writes for as long as a right over it may live.
        if !is_lost {
            commit_at_all(&mut cluster, "again");
        }
    }
}
