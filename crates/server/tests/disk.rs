//! A disk that is full, and one that fails.

use std::path::Path;
use std::time::{Duration, Instant};

use slackline_server::{Listen, RunError, ServeConfig, Site, SiteHandle, Storage};
use slackline_storage::{Faults, Role};
use slackline_wire::v1;
use slackline_wire::v1::outcome::Result as Outcome;
use slackline_wire::v1::slackline_client::SlacklineClient;

use crate::http::http;
use crate::support::{Client, block_on, channel, outcomes, put, small_log};

const ALONE: &str = r#"
cluster = "test"
regions = ["us"]
region = "us"
data = "unused"
listen = "127.0.0.1:0"
sites = [{ region = "us", address = "127.0.0.1:1" }]
"#;

/// A cluster of one site, on a disk that can be told to fail.
fn site(directory: &Path, faults: &Faults) -> SiteHandle {
    let site = start(directory, faults);
    assert!(site.wait_ready(Duration::from_secs(10)));
    site
}

fn start(directory: &Path, faults: &Faults) -> SiteHandle {
    let mut config = ServeConfig::parse(ALONE, Path::new("site.toml")).expect("a configuration").site();
    config.storage = Storage::Directory(directory.to_owned());
    config.storage_options = small_log(faults);
    config.listen = Listen::On("127.0.0.1:0".to_owned());
    config.http = Some(Listen::On("127.0.0.1:0".to_owned()));
    Site::start(config).expect("starts")
}

fn is_full(outcome: &v1::Outcome) -> bool {
    match &outcome.result {
        Some(Outcome::Granted(_)) => false,
        Some(Outcome::Refused(refusal)) if refusal.reason() == v1::Reason::StorageFull => true,
        other => panic!("neither granted nor full: {other:?}"),
    }
}

fn tracked(mut request: v1::SessionRequest) -> v1::SessionRequest {
    if let Some(v1::session_request::Request::Batch(batch)) = &mut request.request {
        batch.operations.iter_mut().for_each(|operation| operation.set_hold(v1::Hold::Open));
    }
    request
}

/// The client still cares about operations from this sequence on.
fn from(low: u64, mut request: v1::SessionRequest) -> v1::SessionRequest {
    if let Some(v1::session_request::Request::Batch(batch)) = &mut request.request {
        batch.low = low;
    }
    request
}

/// What the probes and `status` say of a site: the code and the body of `/healthz`, and the readiness.
async fn told(site: &SiteHandle, client: &mut Client) -> (String, String, i32) {
    let health = http(site, "/healthz");
    let status = client.rpc.status(v1::StatusRequest {}).await.expect("an answer").into_inner();
    let body = health.lines().last().unwrap_or_default().to_owned();
    (health[9..12].to_owned(), body, status.readiness)
}

/// How many bytes may still be written, as `/metrics` tells.
fn room(site: &SiteHandle) -> u64 {
    let metrics = http(site, "/metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix("slackline_storage_room_bytes ")).expect("a gauge");
    line.parse().expect("a number")
}

const FULL: &str = "{\"live\":true,\"ready\":false,\"because\":\"storage_full\",\"waiting_for\":[]}";

#[test]
fn full_disk_refuses_before_it_is_half_written_and_serves_again_with_room() {
    full_disk(&Faults::new());
}

#[test]
fn used_up_quota_is_a_full_disk() {
    let faults = Faults::new();
    faults.limit_by_quota();
    full_disk(&faults);
}

/// Not even the first segment of the log can be made, nor the table.
#[test]
fn site_whose_disk_is_full_at_the_first_start_waits_for_room_and_says_so() {
    for is_quota in [false, true] {
        let directory = tempfile::tempdir().expect("a directory");
        let faults = Faults::new();
        faults.set_space(Some(0));
        if is_quota {
            faults.limit_by_quota();
        }
        let site = start(directory.path(), &faults);
        assert!(!site.wait_ready(Duration::from_millis(600)));
        block_on(async {
            let mut rpc = SlacklineClient::new(channel(&site).await);
            let status = rpc.status(v1::StatusRequest {}).await.expect("an answer").into_inner();
            assert_eq!(status.readiness, v1::Readiness::StorageFull as i32);
            let refused = rpc.open_session(v1::OpenSessionRequest {}).await.expect_err("nothing can be written");
            assert!(refused.message().contains("disk is full"), "{refused}");
            let health = http(&site, "/healthz");
            assert!(health.starts_with("HTTP/1.1 503") && health.contains(FULL), "{health}");
            assert!(http(&site, "/metrics").contains("slackline_state{state=\"storage_full\"} 1\n"));
            faults.set_space(None);
            assert!(site.wait_ready(Duration::from_secs(20)), "there is room");
            let mut client = Client::connect(&site).await;
            client.create("seats", 100).await;
            assert!(matches!(client.acquire("seats", 5).await, Outcome::Granted(_)));
        });
        site.drain(Duration::from_secs(5)).expect("drains");
    }
}

fn full_disk(faults: &Faults) {
    let directory = tempfile::tempdir().expect("a directory");
    let site = site(directory.path(), faults);
    block_on(async {
        let mut client = Client::connect(&site).await;
        client.create("seats", 1 << 40).await;
        let (requests, mut replies) = client.stream().await;
        faults.set_space(Some(0));
        let mut granted = 0;
        let (mut last, mut low) = (None, 1);
        let full = ("503".to_owned(), FULL.to_owned(), v1::Readiness::StorageFull as i32);
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            // Tracked grants each have a row, so that the table needs more and more room.
            let request = from(low, tracked(client.batch("seats", 500)));
            requests.send(request.clone()).await.expect("the stream is open");
            let answered = outcomes(replies.message().await.expect("no error").expect("a reply"));
            assert_eq!(answered.len(), 500);
            if answered.iter().any(is_full) {
                assert!(answered.iter().all(is_full), "one batch has one fate");
                // Whoever asks is told so: a load balancer goes elsewhere. Only the table may have made room since, in the log that
                // is there: it is filled again.
                if told(&site, &mut client).await == full {
                    break;
                }
                assert!(Instant::now() < until, "refused for want of room, and ready");
                continue;
            }
            granted += 500;
            low = answered[0].sequence;
            last = Some(request);
        }
        // What was done is not refused when it is repeated.
        requests.send(last.expect("some were granted first")).await.expect("the stream is open");
        let answered = outcomes(replies.message().await.expect("no error").expect("a reply"));
        assert!(answered.len() == 500 && !answered.iter().any(is_full), "{answered:?}");
        // Reading still works, and nothing of what was refused was done.
        assert_eq!(client.show("seats").await.in_use_max, granted);
        faults.set_space(None);
        loop {
            requests.send(client.batch("seats", 1)).await.expect("the stream is open");
            let answered = outcomes(replies.message().await.expect("no error").expect("a reply"));
            if !is_full(&answered[0]) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(client.show("seats").await.in_use_max, granted + 1);
        assert!(site.wait_ready(Duration::from_secs(10)));
        let (code, _, readiness) = told(&site, &mut client).await;
        assert_eq!((&*code, readiness), ("200", v1::Readiness::Ready as i32));
    });
    site.drain(Duration::from_secs(5)).expect("drains");
}

/// Whoever is slow serves all the same: a load balancer that took it out would take out one site after the other.
#[test]
fn site_with_a_slow_disk_is_ready_while_its_clients_wait() {
    let directory = tempfile::tempdir().expect("a directory");
    let faults = Faults::new();
    let site = site(directory.path(), &faults);
    block_on(async {
        let mut client = Client::connect(&site).await;
        client.create("seats", 1 << 40).await;
        faults.slow_sync(Some((Role::Log, Duration::from_millis(400))));
        let (requests, mut replies) = client.stream().await;
        for _ in 0..3 {
            requests.send(tracked(client.batch("seats", 500))).await.expect("the stream is open");
        }
        let mut looks = 0;
        for _ in 0..3 {
            let answered = loop {
                tokio::select! {
                    biased;
                    reply = replies.message() => break outcomes(reply.expect("no error").expect("a reply")),
                    () = tokio::time::sleep(Duration::from_millis(20)) => {}
                }
                let health = http(&site, "/healthz");
                assert!(health.starts_with("HTTP/1.1 200"), "{health}");
                looks += 1;
            };
            assert!(answered.len() == 500 && !answered.iter().any(is_full));
        }
        assert!(looks > 0, "nobody looked while the disk was slow");
    });
    faults.slow_sync(None);
    site.drain(Duration::from_secs(5)).expect("drains");
}

/// What the table has not taken in is held in memory. Where it does not get on, what requests write is refused before there is too
/// much of it, and taken again once the table gets on.
#[test]
fn table_that_does_not_keep_up_bounds_what_is_held_in_memory() {
    const BYTES: usize = 256 << 10;
    let directory = tempfile::tempdir().expect("a directory");
    let faults = Faults::new();
    let mut config = ServeConfig::parse(ALONE, Path::new("site.toml")).expect("a configuration").site();
    config.storage = Storage::Directory(directory.path().to_owned());
    // The log has room for more than may be held in memory.
    let log = slackline_server::StorageOptions {
        segment_bytes: 16 << 20,
        segments_ahead: 10,
        segments_most: 14,
        ..small_log(&faults)
    };
    config.storage_options = log;
    config.listen = Listen::On("127.0.0.1:0".to_owned());
    config.http = Some(Listen::On("127.0.0.1:0".to_owned()));
    let site = Site::start(config).expect("starts");
    assert!(site.wait_ready(Duration::from_secs(10)));
    block_on(async {
        let mut client = Client::connect(&site).await;
        let mut written = 0;
        let mut write = async |client: &mut Client| {
            written += 1;
            let name = format!("o{written}");
            let outcome = client.commit(vec![put(0, &name, vec![7; BYTES])]).await;
            match outcome {
                Outcome::Committed(_) => true,
                Outcome::Refused(refusal) if refusal.reason() == v1::Reason::StorageFull => false,
                other => panic!("neither committed nor full: {other:?}"),
            }
        };

        // The log's segments are made one by one.
        while room(&site) < 90 << 20 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        faults.slow_sync(Some((Role::Table, Duration::from_secs(4))));
        let mut held = 0;
        while write(&mut client).await {
            held += BYTES;
            assert!(held < 160 << 20, "memory is not bounded");
        }
        assert!(held > 0, "there was room in the log");
        // Reading still works.
        assert_eq!(client.read(&[(0, "o1")]).await.len(), 1);

        faults.slow_sync(None);
        while !write(&mut client).await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    site.drain(Duration::from_secs(5)).expect("drains");
}

#[test]
fn failed_sync_stops_the_site_and_acknowledges_nothing_of_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let faults = Faults::new();
    let first = site(directory.path(), &faults);
    block_on(async {
        let mut client = Client::connect(&first).await;
        client.create("seats", 100).await;
        assert!(matches!(client.acquire("seats", 5).await, Outcome::Granted(_)));
        faults.fail_sync(Role::Log);
        let request = client.acquire_request("seats", 7);
        let error = client.rpc.acquire(request).await.expect_err("not durable, so not acknowledged");
        assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
    });
    let error = first.drain(Duration::from_secs(5)).expect_err("it stopped by itself");
    assert!(matches!(error, RunError::Sync { .. }) && error.to_string().starts_with("site us stopped: "), "{error}");

    let again = site(directory.path(), &Faults::new());
    block_on(async {
        let mut client = Client::connect(&again).await;
        assert_eq!(client.show("seats").await.in_use_max, 5);
    });
    again.drain(Duration::from_secs(5)).expect("drains");
}

/// The segment in use is gone when it is full and to be taken into the table. Hardly anything is written: the site must not go
/// on as one whose disk is full.
#[test]
fn storage_that_fails_behind_the_sites_back_stops_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let site = site(directory.path(), &Faults::new());
    block_on(async {
        let mut client = Client::connect(&site).await;
        client.create("seats", 1 << 40).await;
        let (requests, mut replies) = client.stream().await;
        // From now on it stops as soon as it looks, also when nothing is written for a while.
        std::fs::remove_file(directory.path().join("log/00000001.log")).expect("the segment in use");
        loop {
            let sent = requests.send(tracked(client.batch("seats", 500))).await.is_ok();
            let answered = replies.message().await;
            if !sent || !matches!(answered, Ok(Some(_))) || site.has_stopped() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let error = site.drain(Duration::from_secs(5)).expect_err("it stopped by itself").to_string();
    assert!(error.starts_with("site us stopped: ") && error.contains("00000001.log"), "{error}");
}
