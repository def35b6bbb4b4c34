//! What several tests need: a cluster in memory, and a plain client on the generated code.

use std::time::Duration;

use slackline_server::{Dev, DevConfig, Ports, SiteHandle, StorageOptions};
use slackline_storage::{Faults, Medium};
use slackline_wire::v1;
use slackline_wire::v1::slackline_client::SlacklineClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

/// A cluster in memory on any free ports, ready to serve.
pub(crate) fn cluster(regions: &[&str], lanes: u16) -> Dev {
    let dev = Dev::start(DevConfig {
        regions: regions.iter().map(|region| (*region).to_owned()).collect(),
        lanes,
        data: None,
        rtt: None,
        ports: Ports::Free,
        ..DevConfig::default()
    });
    let dev = dev.expect("a cluster in memory starts");
    assert!(dev.wait_ready(Duration::from_secs(20)), "the cluster must become ready");
    dev
}

/// Runs a client's side of a test.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), future).await.expect("in time") })
}

/// A client of one site, with a session.
pub(crate) struct Client {
    pub(crate) rpc: SlacklineClient<Channel>,
    pub(crate) opened: v1::Opened,
    sequence: u64,
}

pub(crate) async fn channel(site: &SiteHandle) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", site.address())).expect("an address");
    endpoint.connect().await.expect("the site listens")
}

impl Client {
    pub(crate) async fn connect(site: &SiteHandle) -> Self {
        let mut rpc = SlacklineClient::new(channel(site).await);
        loop {
            match rpc.open_session(v1::OpenSessionRequest {}).await {
                Ok(opened) => return Self { rpc, opened: opened.into_inner(), sequence: 0 },
                // The segments of a small log are still being made.
                Err(status) if status.code() == tonic::Code::Unavailable => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(status) => panic!("no session: {status}"),
            }
        }
    }

    /// The next operation's id.
    pub(crate) fn id(&mut self) -> Option<v1::OperationId> {
        self.sequence += 1;
        let v1::Opened { site, incarnation, session } = self.opened;
        Some(v1::OperationId { site, incarnation, session, sequence: self.sequence })
    }

    pub(crate) async fn create(&mut self, quota: &str, limit: i64) -> v1::outcome::Result {
        let request = v1::CreateQuotaRequest {
            operation: self.id(),
            low: 1,
            timeout_us: 5_000_000,
            quota: quota.to_owned(),
            limit,
            refill_millionths: 0,
            parent_bytes: 0,
            agreement: v1::Agreement::Majority.into(),
        };
        result(self.rpc.create_quota(request).await.expect("an answer").into_inner())
    }

    /// Commits a transaction.
    pub(crate) async fn commit(&mut self, parts: Vec<v1::Part>) -> v1::outcome::Result {
        let transaction = v1::Transaction { parts, max_wait_us: 5_000_000, origin: None };
        let request = v1::CommitTransactionRequest {
            operation: self.id(),
            low: 1,
            timeout_us: 5_000_000,
            transaction: Some(transaction),
        };
        result(self.rpc.commit_transaction(request).await.expect("an answer").into_inner())
    }

    /// Reads objects of regions.
    pub(crate) async fn read(&mut self, keys: &[(u32, &str)]) -> Vec<v1::get_result::Result> {
        let gets = keys.iter().map(|(region, name)| v1::ObjectKey { region: *region, name: (*name).to_owned() });
        let read =
            v1::Read { token: 7, gets: gets.collect(), fresh: true, timeout_us: 5_000_000, ..Default::default() };
        let reading = self.rpc.read_objects(read).await.expect("an answer").into_inner();
        assert_eq!((reading.token, reading.gets.len()), (7, keys.len()));
        reading.gets.into_iter().map(|one| one.result.expect("a result")).collect()
    }

    pub(crate) async fn acquire(&mut self, quota: &str, amount: i64) -> v1::outcome::Result {
        let request = self.acquire_request(quota, amount);
        result(self.rpc.acquire(request).await.expect("an answer").into_inner())
    }

    pub(crate) fn acquire_request(&mut self, quota: &str, amount: i64) -> v1::AcquireRequest {
        v1::AcquireRequest {
            operation: self.id(),
            low: 1,
            timeout_us: 5_000_000,
            quota: quota.to_owned(),
            amount,
            ..Default::default()
        }
    }

    pub(crate) async fn show(&mut self, quota: &str) -> v1::Shown {
        let request = v1::ShowQuotaRequest { quota: quota.to_owned(), timeout_us: 2_000_000, local: false };
        match self.rpc.show_quota(request).await.expect("an answer").into_inner().result {
            Some(v1::show_quota_reply::Result::Shown(shown)) => shown,
            other => panic!("no count: {other:?}"),
        }
    }

    /// A session stream: where to put requests, and where replies come from.
    pub(crate) async fn stream(&mut self) -> (mpsc::Sender<v1::SessionRequest>, tonic::Streaming<v1::SessionReply>) {
        let (requests, outgoing) = mpsc::channel(16);
        let replies = self.rpc.session(ReceiverStream::new(outgoing)).await.expect("a stream").into_inner();
        (requests, replies)
    }

    /// A batch of acquires with new ids.
    pub(crate) fn batch(&mut self, quota: &str, count: u64) -> v1::SessionRequest {
        let first = self.sequence + 1;
        self.sequence += count;
        let operation = |sequence| v1::Operation {
            sequence,
            timeout_us: 5_000_000,
            kind: v1::OperationKind::Acquire.into(),
            quota: quota.to_owned(),
            amount: 1,
            ..Default::default()
        };
        let v1::Opened { site, incarnation, session } = self.opened;
        let batch = v1::Batch {
            site,
            incarnation,
            session,
            low: first,
            operations: (first..=self.sequence).map(operation).collect(),
        };
        v1::SessionRequest { request: Some(v1::session_request::Request::Batch(batch)) }
    }
}

pub(crate) fn result(reply: v1::OutcomeReply) -> v1::outcome::Result {
    reply.outcome.and_then(|outcome| outcome.result).expect("an outcome has a result")
}

/// A part of a transaction that puts bytes.
pub(crate) fn put(region: u32, name: &str, bytes: Vec<u8>) -> v1::Part {
    let value = v1::Value { kind: Some(v1::value::Kind::Bytes(bytes.into())) };
    let write = v1::Write { name: name.to_owned(), change: Some(v1::write::Change::Put(value)) };
    v1::Part { region, writes: vec![write], ..Default::default() }
}

/// The outcomes in a reply to a batch.
pub(crate) fn outcomes(reply: v1::SessionReply) -> Vec<v1::Outcome> {
    match reply.reply {
        Some(v1::session_reply::Reply::Batch(answers)) => answers.outcomes,
        other => panic!("not an answer to a batch: {other:?}"),
    }
}

/// A log of small segments on a disk that can be told to fail, so that the table takes in some of them in a short test.
pub(crate) fn small_log(faults: &Faults) -> StorageOptions {
    StorageOptions {
        segment_bytes: 1 << 20,
        segments_ahead: 10,
        segments_most: 14,
        medium: Medium::Lossy(faults.clone()),
        ..StorageOptions::default()
    }
}
