//! Health and metrics.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use slackline_server::{Listen, ServeConfig, Site, SiteHandle, Storage};
use slackline_wire::v1::outcome::Result as Outcome;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::{Client, block_on, channel, cluster, put};

pub(crate) fn fetch(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("HTTP is served");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: site\r\nconnection: close\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("received");
    text
}

pub(crate) fn http(site: &SiteHandle, path: &str) -> String {
    fetch(site.http_address().expect("HTTP is configured"), path)
}

#[test]
fn site_reports_health_and_metrics() {
    let dev = cluster(&["us", "eu", "ap"], 1);
    let site = &dev.sites()[0];
    block_on(async {
        let mut client = Client::connect(site).await;
        client.create("se\"ats", 30).await;
        for _ in 0..3 {
            assert!(matches!(client.acquire("se\"ats", 1).await, Outcome::Granted(_)));
        }
        let parts = vec![put(0, "x", vec![1]), put(1, "x", vec![1])];
        assert!(matches!(client.commit(parts).await, Outcome::Committed(_)));
        client.read(&[(2, "x")]).await;
    });
    let health = http(site, "/healthz");
    assert!(
        health.starts_with("HTTP/1.1 200")
            && health.ends_with("{\"live\":true,\"ready\":true,\"because\":null,\"waiting_for\":[]}\n"),
        "{health}"
    );
    let metrics = http(site, "/metrics");
    for expected in [
        "slackline_acquires_total{outcome=\"granted\",waited=\"no\"} 3\n",
        "slackline_requests_total{outcome=\"granted\"} 3\n",
        "slackline_limit{quota=\"se\\\"ats\"} 30\n",
        "slackline_rounds_total{cause=\"proactive\"}",
        "slackline_gifts_sent_total{cause=\"asked\"}",
        "slackline_transactions_committed_total{phases=\"2\"} 1\n",
        "slackline_transactions_aborted_total 0\n",
        "slackline_transactions_under_way{role=\"participant\"} ",
        "slackline_fetches_total 1\n",
        "slackline_warranties_issued_total 0\n",
        "slackline_warranties_revoked_total 0\n",
        "slackline_writes_defended_total 0\n",
        "slackline_calls_evicted_total 0\n",
        "slackline_doubts_resolved_total 0\n",
        "slackline_warranties 0\n",
        "slackline_copies 1\n",
        "slackline_sync_seconds_bucket{le=\"+Inf\"}",
        "slackline_queue_length{queue=\"requests\"}",
        "slackline_clock_error_microseconds ",
        "slackline_clock_epsilon_microseconds 1000\n",
        "slackline_link_up{peer=\"ap\"} 1\n",
        "slackline_peer_up{peer=\"eu\"} 1\n",
        "slackline_build_info{version=",
        "slackline_ready 1\n",
        "slackline_state{state=\"storage_full\"} 0\n",
        "slackline_incarnations_lost 0\n",
        "# EOF\n",
    ] {
        assert!(metrics.contains(expected), "{expected} is missing in:\n{metrics}");
    }
    assert!(http(site, "/nothing").starts_with("HTTP/1.1 404"));
    dev.drain(Duration::from_secs(5)).expect("drains");
}

/// A probe asks nothing of the machine: it does not wait behind clients.
#[test]
fn full_queue_of_clients_leaves_the_site_ready_and_its_metrics_whole() {
    let dev = cluster(&["us"], 1);
    let site = &dev.sites()[0];
    block_on(async {
        let mut client = Client::connect(site).await;
        client.create("seats", 1 << 40).await;
        // Far more than is handled in a turn, all the time, from clients that do not take their answers.
        let mut clients = Vec::new();
        for _ in 0..24 {
            let mut client = Client::connect(site).await;
            let stream = client.stream().await;
            clients.push((client, stream));
        }
        let mut streams = Vec::new();
        for (mut client, (requests, replies)) in clients {
            let feeder =
                tokio::spawn(async move { while requests.send(client.batch("seats", 1_000)).await.is_ok() {} });
            streams.push((feeder, replies));
        }
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let address = site.http_address().expect("HTTP is configured");
            let page = |path| tokio::task::spawn_blocking(move || fetch(address, path));
            let health = page("/healthz").await.expect("it is served");
            assert!(health.starts_with("HTTP/1.1 200"), "{health}");
            let metrics = page("/metrics").await.expect("it is served");
            assert!(metrics.contains("slackline_ready 1\n") && metrics.contains("slackline_limit{quota=\"seats\"}"));
        }
        streams.iter().for_each(|(feeder, _)| feeder.abort());
    });
    dev.drain(Duration::from_secs(5)).expect("drains");
}

#[test]
fn site_alone_is_live_but_not_ready() {
    let example = include_str!("../site.example.toml");
    let file = ServeConfig::parse(example, Path::new("site.toml")).expect("the example is right");
    let mut config = file.site();
    config.storage = Storage::Memory;
    config.listen = Listen::On("127.0.0.1:0".to_owned());
    config.http = Some(Listen::On("127.0.0.1:0".to_owned()));
    (1..).zip(&mut config.sites).for_each(|(port, site)| site.address = format!("127.0.0.1:{port}"));
    let site = Site::start(config).expect("starts");
    assert!(!site.wait_ready(Duration::from_millis(300)));
    let health = http(&site, "/healthz");
    let body = "{\"live\":true,\"ready\":false,\"because\":\"joining\",\"waiting_for\":[\"eu\",\"ap\"]}\n";
    assert!(health.starts_with("HTTP/1.1 503") && health.ends_with(body), "{health}");
    let metrics = http(&site, "/metrics");
    for expected in [
        "slackline_ready 0\n",
        "slackline_state{state=\"joining\"} 1\n",
        "slackline_peer_rtt_microseconds{peer=\"eu\"} NaN\n",
    ] {
        assert!(metrics.contains(expected), "{expected} is missing in:\n{metrics}");
    }
    assert!(http(&site, "/metrics").contains("slackline_link_up{peer=\"eu\"} 0\n"));
    let address = site.http_address().expect("HTTP is configured");
    site.drain(Duration::from_secs(5)).expect("drains");
    assert!(TcpStream::connect(address).is_err(), "a drained site listens no more");
}

/// Asks for the services in one version of gRPC reflection; tools use either.
macro_rules! reflect {
    ($version:ident, $channel:expr) => {{
        use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
        let request = tonic_reflection::pb::$version::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let replies = ServerReflectionClient::new($channel).server_reflection_info(tokio_stream::once(request)).await;
        let reply = replies.expect("an answer").into_inner().message().await.expect("no error").expect("a reply");
        let Some(MessageResponse::ListServicesResponse(list)) = reply.message_response else { panic!("{reply:?}") };
        let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
        assert!(names.contains(&"slackline.v1.Slackline".to_owned()), "{names:?}");
    }};
}

#[test]
fn stock_tools_find_health_and_the_service() {
    let dev = cluster(&["us"], 1);
    block_on(async {
        let channel = channel(&dev.sites()[0]).await;
        let mut health = HealthClient::new(channel.clone());
        for service in ["", "slackline.v1.Slackline"] {
            let reply = health.check(HealthCheckRequest { service: service.to_owned() }).await.expect("an answer");
            assert_eq!(reply.into_inner().status, 1, "serving");
        }
        reflect!(v1, channel.clone());
        reflect!(v1alpha, channel);
    });
    dev.drain(Duration::from_secs(5)).expect("drains");
}

/// Each takes one of the files that the site may have open.
#[test]
fn connection_that_never_speaks_is_closed() {
    let dev = cluster(&["us"], 1);
    let site = &dev.sites()[0];
    let addresses = [site.address(), site.http_address().expect("HTTP is configured")];
    let silent: Vec<TcpStream> = addresses.iter().map(|at| TcpStream::connect(at).expect("accepted")).collect();
    let half_spoken: Vec<TcpStream> = addresses.iter().map(|at| TcpStream::connect(at).expect("accepted")).collect();
    for mut stream in half_spoken.iter() {
        stream.write_all(b"PRI *").expect("taken");
    }
    for mut stream in silent.iter().chain(&half_spoken) {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        let ended = stream.read(&mut [0; 8]).map_err(|error| error.kind());
        assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "it is still open: {ended:?}");
    }
    assert!(http(site, "/healthz").starts_with("HTTP/1.1 200"));
    dev.drain(Duration::from_secs(5)).expect("drains");
}
