//! Three sites over loopback, seen through the public interface.

use std::time::Duration;

use slackline_server::{Dev, DevConfig, Ports, RttTable};
use slackline_wire::v1::outcome::Result as Outcome;
use slackline_wire::{lane_of, v1};

use crate::support::{Client, block_on, cluster, outcomes, result};

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
        // Asking about what was never sent refuses it for ever.
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
        requests.send(client.batch(&"x".repeat(3_000), 1_000)).await.expect("the stream is open");
        let error = replies.message().await.expect_err("larger than a message may be");
        assert_eq!(error.code(), tonic::Code::OutOfRange, "{error}");

        assert_eq!(client.create("seats", 9).await, Outcome::Created(9));
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
        let rtt = loop {
            let status = client.rpc.status(v1::StatusRequest {}).await.expect("an answer").into_inner();
            if let Some(rtt) = status.peers[0].rtt_us {
                break rtt;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!((70_000..120_000).contains(&rtt), "us and eu are 70 ms apart, not {rtt} us");
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
