//! Three sites over loopback, seen through the public interface.

use std::time::Duration;

use slackline_server::{Dev, DevConfig, Ports, RttTable};
use slackline_wire::v1::outcome::Result as Outcome;
use slackline_wire::{lane_of, v1};

use crate::support::{Client, block_on, cluster, outcomes, put, result};

const DRAIN: Duration = Duration::from_secs(5);

#[test]
fn quota_is_shared_by_three_sites_and_never_exceeded() {
    let dev = cluster(&["us", "eu", "ap"], 1);
    block_on(async {
        let mut us = Client::connect(&dev.sites()[0]).await;
        let mut ap = Client::connect(&dev.sites()[2]).await;
        assert_eq!(us.create("seats", 30).await, Outcome::Created(30));
        // More than one site's share: the sites must agree on a new split.
        let mut granted = 0;
        for _ in 0..8 {
            for client in [&mut us, &mut ap] {
                match client.acquire("seats", 3).await {
                    Outcome::Granted(_) => granted += 3,
                    Outcome::Refused(refusal) => assert_eq!(refusal.reason(), v1::Reason::Exhausted),
                    other => panic!("not an answer to an acquire: {other:?}"),
                }
            }
        }
        assert_eq!(granted, 30, "every token is to be had, and none twice");
        let shown = ap.show("seats").await;
        assert_eq!((shown.limit, shown.in_use_min, shown.in_use_max), (30, 30, 30));
        assert!(shown.rebalances > 0);
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn stream_answers_batches_and_ends_when_the_client_has_said_all() {
    let dev = cluster(&["us", "eu", "ap"], 1);
    block_on(async {
        let mut client = Client::connect(&dev.sites()[1]).await;
        assert_eq!(client.create("gpus", 100_000).await, Outcome::Created(100_000));
        let (requests, mut replies) = client.stream().await;
        let mut granted = 0;
        for _ in 0..20 {
            requests.send(client.batch("gpus", 200)).await.expect("the stream is open");
            let reply = replies.message().await.expect("no error").expect("a reply");
            granted += outcomes(reply).iter().filter(|one| matches!(one.result, Some(Outcome::Granted(_)))).count();
        }
        assert_eq!(granted, 4_000);
        drop(requests);
        assert_eq!(replies.message().await.expect("a clean end"), None);
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn repeated_operation_takes_effect_once_and_its_outcome_can_be_asked() {
    let dev = cluster(&["us", "eu", "ap"], 1);
    block_on(async {
        let mut client = Client::connect(&dev.sites()[0]).await;
        client.create("seats", 9).await;
        let request = client.acquire_request("seats", 1);
        let first = result(client.rpc.acquire(request.clone()).await.expect("an answer").into_inner());
        let again = result(client.rpc.acquire(request.clone()).await.expect("an answer").into_inner());
        assert!(matches!(first, Outcome::Granted(_)));
        assert_eq!(first, again);
        let asked = client.rpc.outcome_of(v1::Ask { operation: request.operation }).await.expect("an answer");
        assert_eq!(result(asked.into_inner()), first);
        assert_eq!(client.show("seats").await.in_use_max, 1);
        // Asking about what was never sent refuses it permanently.
        let never = client.acquire_request("seats", 1);
        let asked = client.rpc.outcome_of(v1::Ask { operation: never.operation }).await.expect("an answer");
        let Outcome::Refused(refusal) = result(asked.into_inner()) else { panic!("must be refused") };
        assert_eq!(refusal.reason(), v1::Reason::Withdrawn);
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn senseless_request_is_refused_by_name_and_harms_nobody() {
    let dev = cluster(&["us"], 1);
    block_on(async {
        let mut client = Client::connect(&dev.sites()[0]).await;
        let error = client.rpc.acquire(v1::AcquireRequest::default()).await.expect_err("no id");
        assert_eq!((error.code(), error.message()), (tonic::Code::InvalidArgument, "operation is missing"));

        let (requests, mut replies) = client.stream().await;
        let mut senseless = client.batch("seats", 2);
        if let Some(v1::session_request::Request::Batch(batch)) = &mut senseless.request {
            batch.operations[1].kind = 77;
        }
        requests.send(senseless).await.expect("the stream is open");
        let error = replies.message().await.expect_err("an unknown kind");
        assert_eq!(error.message(), "batch.operations[1].kind has an unknown value");

        let (requests, mut replies) = client.stream().await;
        requests.send(client.batch(&"x".repeat(10_000), 1_000)).await.expect("the stream is open");
        let error = replies.message().await.expect_err("larger than a message may be");
        assert_eq!(error.code(), tonic::Code::OutOfRange, "{error}");

        assert_eq!(client.create("seats", 9).await, Outcome::Created(9));
    });
    dev.drain(DRAIN).expect("drains");
}

/// Writes an object of 256 KiB.
async fn write_large(client: &mut Client) {
    let large = vec![b'x'; 256 << 10];
    assert_eq!(client.commit(vec![put(0, "b", large)]).await, Outcome::Committed(v1::Committed { phases: 1 }));
}

/// Asks for it fifteen times: the answer has 3.75 MiB.
fn read_large(token: u64) -> v1::SessionRequest {
    let gets = vec![v1::ObjectKey { region: 0, name: "b".to_owned() }; 15];
    let read = v1::Read { token, gets, timeout_us: 5_000_000, ..Default::default() };
    v1::SessionRequest { request: Some(v1::session_request::Request::Read(read)) }
}

/// Some of the answers have the objects, and the others say that it is too much; who reads what it asks for is told all.
async fn some_are_refused(mut client: Client, answers: Vec<v1::SessionReply>) {
    let is_refused = |answer: &v1::SessionReply| {
        let Some(v1::session_reply::Reply::Read(reading)) = &answer.reply else { panic!("no reading: {answer:?}") };
        match reading.gets[0].result.as_ref().expect("a result") {
            v1::get_result::Result::Seen(_) => false,
            v1::get_result::Result::Failed(abort) => {
                assert_eq!(abort.cause(), v1::Cause::Overloaded);
                true
            }
        }
    };
    let told = answers.iter().filter(|answer| !is_refused(answer)).count();
    assert!((10..100).contains(&told), "{told} told, {} refused", answers.len() - told);
    for _ in 0..30 {
        let found = client.read(&[(0, "b"); 15]).await;
        assert!(found.iter().all(|one| matches!(one, v1::get_result::Result::Seen(_))), "refused");
    }
}

/// Nobody reads the answers: 64 MiB of them wait at the site. Some are on their way, or went while this one was still asking.
#[test]
fn client_that_asks_and_does_not_read_is_told_that_it_is_too_much_for_the_site() {
    const QUESTIONS: u64 = 200;
    let dev = cluster(&["us"], 1);
    block_on(async {
        let mut client = Client::connect(&dev.sites()[0]).await;
        write_large(&mut client).await;
        let (requests, mut replies) = client.stream().await;
        for token in 0..QUESTIONS {
            requests.send(read_large(token)).await.expect("the stream is open");
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut answers = Vec::new();
        for _ in 0..QUESTIONS {
            answers.push(replies.message().await.expect("no error").expect("a reply"));
        }
        some_are_refused(client, answers).await;
    });
    dev.drain(DRAIN).expect("drains");
}

/// Each stream has one answer, and the client takes none of them: what the connection holds counts, too. 256 MiB wait at the site.
#[test]
fn client_of_many_streams_that_does_not_read_is_too_much_for_the_site() {
    const STREAMS: u64 = 200;
    let dev = cluster(&["us"], 1);
    block_on(async {
        let mut client = Client::connect(&dev.sites()[0]).await;
        write_large(&mut client).await;
        let mut streams = Vec::new();
        for token in 0..STREAMS {
            let (requests, replies) = client.stream().await;
            requests.send(read_large(token)).await.expect("the stream is open");
            streams.push((requests, replies));
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        // Whoever comes now is answered after them: none is read before the site has answered all, however slow it is.
        for _ in 0..3 {
            drop(Client::connect(&dev.sites()[0]).await);
        }

        // All at once: what is not taken of one stream keeps the room of the connection.
        let reads = streams.into_iter().map(|(requests, mut replies)| {
            tokio::spawn(async move { (requests, replies.message().await.expect("no error").expect("a reply")) })
        });
        let mut answers = Vec::new();
        for read in reads.collect::<Vec<_>>() {
            answers.push(read.await.expect("it takes its answer").1);
        }
        some_are_refused(client, answers).await;
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn site_that_the_cluster_does_not_have_is_named_instead_of_waited_for() {
    let dev = cluster(&["us", "eu"], 2);
    block_on(async {
        let mut client = Client::connect(&dev.sites()[0]).await;
        for (site, word) in [
            (v1::SiteId { region: 9, lane: 0 }, "there is no site of region 9, lane 0"),
            (v1::SiteId { region: 1, lane: 2 }, "there is no site of region 1, lane 2"),
            (v1::SiteId { region: 1, lane: 1 }, "site eu:1 is of lane 1"),
        ] {
            let elsewhere =
                |operation: Option<v1::OperationId>| operation.map(|id| v1::OperationId { site: Some(site), ..id });
            let request = client.acquire_request("seats", 1);
            let operation = elsewhere(request.operation);
            let acquired = client.rpc.acquire(v1::AcquireRequest { operation, ..request }).await.expect_err("nobody");
            let asked = client.rpc.outcome_of(v1::Ask { operation }).await.expect_err("nobody");
            let explained = client.rpc.explain(v1::Ask { operation }).await.expect_err("nobody");
            let (requests, mut replies) = client.stream().await;
            let ask = v1::session_request::Request::Ask(v1::Ask { operation });
            requests.send(v1::SessionRequest { request: Some(ask) }).await.expect("the stream is open");
            let streamed = replies.message().await.expect_err("nobody");
            for error in [acquired, asked, explained, streamed] {
                assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
                assert!(error.message().contains(word), "{error}");
            }
        }
    });
    dev.drain(DRAIN).expect("drains");
}

/// Region 9 of three: wherever a request names it, the answer says that it is not there, and never that it cannot be reached.
#[test]
fn region_that_the_cluster_does_not_have_is_never_answered_as_unreachable() {
    let dev = cluster(&["us", "eu", "ap"], 1);
    block_on(async {
        let mut client = Client::connect(&dev.sites()[0]).await;
        let unknown = |abort: &v1::Abort| assert_eq!(abort.cause(), v1::Cause::UnknownRegion, "{abort:?}");

        let read = v1::Read {
            gets: vec![v1::ObjectKey { region: 9, name: "x".to_owned() }],
            scans: vec![v1::RegionSpan { region: 9, span: Some(v1::Span { limit: 1, ..Default::default() }) }],
            timeout_us: 5_000_000,
            ..Default::default()
        };
        let reading = client.rpc.read_objects(read).await.expect("an answer").into_inner();
        let Some(v1::get_result::Result::Failed(abort)) = &reading.gets[0].result else { panic!("{reading:?}") };
        unknown(abort);
        let Some(v1::scan_result::Result::Failed(abort)) = &reading.scans[0].result else { panic!("{reading:?}") };
        unknown(abort);

        let Outcome::Aborted(abort) = client.commit(vec![put(9, "x", "one".into())]).await else { panic!("no region") };
        unknown(&abort);

        let site = Some(v1::SiteId { region: 9, lane: 0 });
        let close = v1::Close { site, incarnation: 1, session: 1 };
        let error = client.rpc.close_session(close).await.expect_err("no such site");
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
        assert!(error.message().contains("there is no site of region 9"), "{error}");
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn transaction_over_several_sites_takes_effect_everywhere_or_nowhere() {
    use v1::get_result::Result::Seen;
    let dev = cluster(&["us", "eu", "ap"], 1);
    block_on(async {
        let mut us = Client::connect(&dev.sites()[0]).await;
        let mut ap = Client::connect(&dev.sites()[2]).await;
        let all = |text: &str| (0..3).map(|region| put(region, "x", text.into())).collect::<Vec<_>>();
        assert_eq!(us.commit(all("one")).await, Outcome::Committed(v1::Committed { phases: 2 }));
        let keys = [(0, "x"), (1, "x"), (2, "x"), (1, "nothing")];
        let read = ap.read(&keys).await;
        let values = read.iter().map(|found| match found {
            Seen(seen) => seen.value.clone().and_then(|value| value.kind),
            failed => panic!("{failed:?}"),
        });
        let values: Vec<_> = values.collect();
        let one = Some(v1::value::Kind::Bytes("one".into()));
        assert_eq!(values, [one.clone(), one.clone(), one, None]);

        // What was read before another wrote it.
        let Seen(old) = &read[1] else { panic!("seen above") };
        assert_eq!(us.commit(vec![put(1, "x", "two".into())]).await, Outcome::Committed(v1::Committed { phases: 1 }));
        let stale = v1::ReadVersion { name: "x".to_owned(), number: old.number };
        let mut parts = all("three");
        parts[1].incarnation = old.incarnation;
        parts[1].reads.push(stale);
        let operation = ap.id();
        let transaction = v1::Transaction { parts, max_wait_us: 0, origin: None };
        let request =
            v1::CommitTransactionRequest { operation, low: 1, timeout_us: 5_000_000, transaction: Some(transaction) };
        let reply = ap.rpc.commit_transaction(request.clone()).await.expect("an answer").into_inner();
        let Outcome::Aborted(abort) = result(reply) else { panic!("it read what is no more") };
        assert_eq!(
            (abort.cause(), abort.key.map(|key| (key.region, key.name))),
            (v1::Cause::Changed, Some((1, "x".into())))
        );
        let again = ap.rpc.commit_transaction(request).await.expect("an answer").into_inner();
        assert!(matches!(result(again), Outcome::Aborted(_)), "it is remembered");
        let asked = ap.rpc.outcome_of(v1::Ask { operation }).await.expect("an answer").into_inner();
        assert!(matches!(result(asked), Outcome::Aborted(_)));
        let Seen(seen) = &us.read(&[(2, "x")]).await[0] else { panic!("it is there") };
        assert_eq!(seen.value.clone().and_then(|value| value.kind), Some(v1::value::Kind::Bytes("one".into())));

        let accept = v1::AcceptLossRequest { operation: us.id(), low: 1, timeout_us: 1_000_000 };
        let accepted = us.rpc.accept_loss(accept).await.expect("an answer").into_inner();
        assert_eq!(result(accepted), Outcome::LossAccepted(v1::LossAccepted {}));
    });
    dev.drain(DRAIN).expect("drains");
}

/// Whoever waits for `ready` finds sites that know each other, however far away they are.
#[test]
fn sites_that_are_ready_take_transactions_over_all_of_them_at_once() {
    let dev =
        Dev::start(DevConfig { data: None, rtt: Some(RttTable::aws()), ports: Ports::Free, ..DevConfig::default() });
    let dev = dev.expect("starts");
    assert!(dev.wait_ready(Duration::from_secs(20)));
    block_on(async {
        for (site, name) in dev.sites().iter().zip(["a", "b", "c"]) {
            let mut client = Client::connect(site).await;
            let all = (0..3).map(|region| put(region, name, vec![1])).collect();
            assert_eq!(client.commit(all).await, Outcome::Committed(v1::Committed { phases: 2 }), "at {}", site.name());
        }
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn large_transactions_fit_and_large_answers_are_cut() {
    use v1::get_result::Result::{Failed, Seen};
    let dev = cluster(&["us", "eu"], 1);
    block_on(async {
        let mut us = Client::connect(&dev.sites()[0]).await;
        let names: Vec<String> = (0..24).map(|number| format!("large-{number}")).collect();
        for four in names.chunks(4) {
            let mut part = v1::Part { region: 1, ..Default::default() };
            four.iter().for_each(|name| part.writes.extend(put(1, name, vec![7; 255 << 10]).writes));
            assert_eq!(us.commit(vec![part]).await, Outcome::Committed(v1::Committed { phases: 1 }));
        }
        let mut missing: Vec<(u32, &str)> = names.iter().map(|name| (1, &**name)).collect();
        let mut rounds = 0;
        while !missing.is_empty() {
            rounds += 1;
            let read = us.read(&missing).await;
            let mut results = read.iter();
            missing.retain(|_| match results.next() {
                Some(Seen(seen)) => {
                    let Some(v1::value::Kind::Bytes(bytes)) = seen.value.clone().and_then(|value| value.kind) else {
                        panic!("there are bytes")
                    };
                    assert_eq!(bytes.len(), 255 << 10);
                    false
                }
                Some(Failed(abort)) => {
                    assert_eq!(abort.cause(), v1::Cause::TooMuch);
                    true
                }
                None => panic!("an answer for each"),
            });
        }
        assert_eq!(rounds, 2, "6 MiB in answers of 4");
        // On a stream, beside batches, told apart by their tokens.
        let (requests, mut replies) = us.stream().await;
        let span = v1::Span { prefix: "large-1".to_owned(), after: String::new(), limit: 1 };
        for (token, limit) in [(1, 1), (2, 1_024)] {
            let scans = vec![v1::RegionSpan { region: 1, span: Some(v1::Span { limit, ..span.clone() }) }];
            let read = v1::Read { token, scans, timeout_us: 5_000_000, ..Default::default() };
            let request = v1::SessionRequest { request: Some(v1::session_request::Request::Read(read)) };
            requests.send(request).await.expect("the stream is open");
        }
        for _ in 0..2 {
            let reply = replies.message().await.expect("no error").expect("a reply");
            let Some(v1::session_reply::Reply::Read(reading)) = reply.reply else { panic!("asked to read") };
            let Some(v1::scan_result::Result::Rows(rows)) = &reading.scans[0].result else { panic!("{reading:?}") };
            assert_eq!(rows.rows.len(), if reading.token == 1 { 1 } else { 11 });
        }
        drop(requests);
        assert_eq!(replies.message().await.expect("a clean end"), None);
        // A value beyond the bound.
        let outcome = us.commit(vec![put(0, "huge", vec![0; 300_000])]).await;
        let Outcome::Aborted(abort) = outcome else { panic!("{outcome:?}") };
        assert_eq!(abort.cause(), v1::Cause::TooLarge);
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn objects_live_in_the_first_lane() {
    let dev = cluster(&["us"], 2);
    block_on(async {
        let mut second = Client::connect(&dev.sites()[1]).await;
        let error = second.rpc.read_objects(v1::Read::default()).await.expect_err("the wrong lane");
        assert!(error.message().contains("objects live in lane 0"), "{error}");
        let accept = v1::AcceptLossRequest { operation: second.id(), low: 1, timeout_us: 1 };
        let error = second.rpc.accept_loss(accept).await.expect_err("the wrong lane");
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn quota_of_another_lane_is_sent_there() {
    let dev = cluster(&["us", "eu"], 2);
    block_on(async {
        let names: Vec<String> = (0..10).map(|number| format!("quota-{number}")).collect();
        for name in &names {
            let mut clients = [Client::connect(&dev.sites()[0]).await, Client::connect(&dev.sites()[1]).await];
            let lane = usize::from(lane_of(name, 2));
            let wrong = clients[1 - lane].acquire_request(name, 1);
            let error = clients[1 - lane].rpc.acquire(wrong).await.expect_err("the wrong lane");
            assert!(error.message().contains(&format!("lives in lane {lane}")), "{error}");
            assert_eq!(clients[lane].create(name, 10).await, Outcome::Created(10));
        }
        let lanes: std::collections::BTreeSet<u16> = names.iter().map(|name| lane_of(name, 2)).collect();
        assert_eq!(lanes.len(), 2, "the names must reach both lanes");
        let mut client = Client::connect(&dev.sites()[0]).await;
        let topology = client.rpc.topology(v1::TopologyRequest {}).await.expect("an answer").into_inner();
        assert_eq!((topology.lanes, topology.sites.len()), (2, 4));
        assert_eq!(topology.sites[3].region, "eu");
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn cluster_goes_on_where_it_stopped_at_the_same_addresses() {
    let data = tempfile::tempdir().expect("a directory");
    let config = DevConfig {
        data: Some(data.path().to_owned()),
        rtt: Some(RttTable::aws()),
        ports: Ports::Free,
        ..DevConfig::default()
    };
    let dev = Dev::start(config.clone()).expect("starts");
    assert!(dev.wait_ready(Duration::from_secs(20)));
    let addresses: Vec<_> = dev.sites().iter().map(|site| site.address()).collect();
    block_on(async {
        let mut client = Client::connect(&dev.sites()[0]).await;
        assert_eq!(client.create("seats", 90).await, Outcome::Created(90));
        assert!(matches!(client.acquire("seats", 7).await, Outcome::Granted(_)));
        // What is measured is never less; on a busy machine it is more, now and then.
        loop {
            let status = client.rpc.status(v1::StatusRequest {}).await.expect("an answer").into_inner();
            let rtt = status.peers[0].rtt_us;
            assert!(rtt.is_none_or(|rtt| rtt >= 70_000), "us and eu are 70 ms apart, not {rtt:?} us");
            if rtt.is_some_and(|rtt| rtt < 120_000) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let error = Dev::start(DevConfig { ports: Ports::Free, ..config.clone() }).expect_err("the data is in use");
    assert!(error.to_string().contains("in use"), "{error}");
    dev.drain(DRAIN).expect("drains");

    let fewer = DevConfig { regions: vec!["us".to_owned(), "eu".to_owned()], ..config.clone() };
    let error = Dev::start(fewer).expect_err("other sites").to_string();
    assert!(error.contains("holds a cluster of the sites us, eu, ap, not us, eu"), "{error}");

    let dev = Dev::start(config).expect("starts again");
    assert!(dev.wait_ready(Duration::from_secs(20)));
    assert_eq!(dev.sites().iter().map(|site| site.address()).collect::<Vec<_>>(), addresses);
    block_on(async {
        let mut client = Client::connect(&dev.sites()[1]).await;
        assert_eq!(client.show("seats").await.in_use_max, 7);
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn draining_site_ends_its_streams_and_the_others_go_on() {
    let mut dev = cluster(&["us", "eu", "ap"], 1);
    block_on(async {
        let mut us = Client::connect(&dev.sites()[0]).await;
        assert_eq!(us.create("seats", 300).await, Outcome::Created(300));
        let (_requests, mut replies) = us.stream().await;
        let first = dev.take(0);
        std::thread::spawn(move || first.drain(DRAIN)).join().expect("no panic").expect("drains");
        let error = replies.message().await.expect_err("the stream ends");
        assert_eq!(error.code(), tonic::Code::Unavailable);
        let mut eu = Client::connect(&dev.sites()[0]).await;
        assert!(matches!(eu.acquire("seats", 1).await, Outcome::Granted(_)));
    });
    dev.drain(DRAIN).expect("drains");
}

/// Somebody stays in line for what is not there, so it drains for as long as it may, and says so to whoever looks.
#[test]
fn site_that_drains_tells_its_state_and_takes_nothing() {
    let mut dev = cluster(&["us"], 1);
    block_on(async {
        let mut client = Client::connect(&dev.sites()[0]).await;
        client.create("seats", 1).await;
        assert!(matches!(client.acquire("seats", 1).await, Outcome::Granted(_)));
        let waits = v1::AcquireRequest { timeout_us: 20_000_000, wait: true, ..client.acquire_request("seats", 1) };
        let mut rpc = client.rpc.clone();
        let in_line = tokio::spawn(async move { rpc.acquire(waits).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let site = dev.take(0);
        site.start_drain(Duration::from_secs(3));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let status = client.rpc.status(v1::StatusRequest {}).await.expect("it says how it is").into_inner();
        assert_eq!(status.readiness(), v1::Readiness::Draining);
        let refused = client.rpc.list_quotas(v1::ListQuotasRequest::default()).await.expect_err("it takes nothing");
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        std::thread::spawn(move || site.drain(DRAIN)).join().expect("no panic").expect("drains");
        drop(in_line);
    });
}

/// The program that the quickstart shows, against a real cluster.
#[test]
fn quickstart_example_runs_to_its_end() {
    let dev = Dev::start(DevConfig { data: None, ports: Ports::Free, ..DevConfig::default() }).expect("starts");
    assert!(dev.wait_ready(Duration::from_secs(20)));
    let address = dev.sites()[0].address().to_string();
    block_on(async { quickstart::tour(address).await.expect("every call ends as the program expects") });
    dev.drain(DRAIN).expect("drains");
}

#[path = "../../client/examples/quickstart.rs"]
#[allow(dead_code, reason = "its `main` is for the command line")]
mod quickstart;
