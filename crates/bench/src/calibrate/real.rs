//! Loads against real sites, and what they take.

use std::time::{Duration, Instant};

use slackline::Client;
use slackline_core::api::Response;
use slackline_core::id::SiteId;
use slackline_session::time::Time;
use slackline_wire::v1::slackline_client::SlacklineClient;
use slackline_wire::{MESSAGE_BYTES, v1};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::load::{Caller, Load};
use crate::live::{LiveError, Server, Worked};

/// The time that one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The window of the callers' connection, in bytes: no caller waits for another.
const WINDOW: u32 = 4 << 20;

/// A load with its callers, who stay from round to round.
pub(super) struct Ready {
    /// The load.
    pub(super) load: Load,
    /// The callers.
    lines: Vec<Line>,
}

/// The time and the work of a load in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// Requests that were answered.
    pub(super) requests: u64,
    /// The real time that it took.
    pub(super) seconds: f64,
    /// Processor time of each site.
    pub(super) worked: [Worked; 2],
    /// Syncs of the site at which the callers are.
    pub(super) syncs: f64,
    /// The real time that these took.
    pub(super) sync_seconds: f64,
}

impl Ready {
    /// Connects the callers of a load to the first site, and has them make what they need.
    pub(super) async fn new(load: Load, order: usize, callers: usize, site: &Server) -> Result<Self, LiveError> {
        let endpoint = Endpoint::from_shared(format!("http://{}", site.address)).map_err(LiveError::failed)?;
        let endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);

        // One connection for all callers of a load, and a stream for each.
        let channel = endpoint.connect().await.map_err(LiveError::failed)?;
        let mut lines = Vec::with_capacity(callers);
        for number in 0..callers {
            let caller = Caller::new(load.kind, format!("a-{order:02}-{number:02}"), SiteId::new(0, 0));
            let mut line = Line::open(caller, channel.clone()).await?;
            while !line.caller.is_going() {
                line.ask().await?;
            }
            lines.push(line);
        }
        Ok(Self { load, lines })
    }

    /// All callers ask for this long.
    pub(super) async fn run(&mut self, length: Duration, sites: &[Server; 2]) -> Result<Taken, LiveError> {
        let before = Reading::of(sites)?;
        let (began, mut requests) = (Instant::now(), 0);

        let asking: Vec<_> = self.lines.drain(..).map(|line| tokio::spawn(line.ask_until(began + length))).collect();
        for asking in asking {
            let (line, asked) = asking.await.map_err(LiveError::failed)??;
            requests += asked;
            self.lines.push(line);
        }

        // Every caller has its last answer, so no site works for this load any more.
        let seconds = began.elapsed().as_secs_f64();
        Ok(Reading::of(sites)?.since(&before, requests, seconds))
    }
}

/// The grants that were told are what the books have.
pub(super) async fn verify(loads: &[Ready], site: &Server) -> Result<(), LiveError> {
    let client = Client::connect([site.address.to_string()]).await.map_err(LiveError::failed)?;
    for (quota, granted) in loads.iter().flat_map(|load| &load.lines).filter_map(|line| line.caller.granted()) {
        let shown = client.quota(quota).show().await.map_err(LiveError::failed)?;
        if shown.in_use.exact() != i64::try_from(granted).ok() {
            let in_use = shown.in_use;
            return Err(LiveError::failed(format!(
                "{granted} grants were told, but the books have {in_use:?}; this is a bug"
            )));
        }
    }
    client.close().await;
    Ok(())
}

/// Measures what the sites do of themselves for this long.
pub(super) async fn idle(length: Duration, sites: &[Server; 2]) -> Result<Taken, LiveError> {
    let (before, began) = (Reading::of(sites)?, Instant::now());
    tokio::time::sleep(length).await;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Reading::of(sites)?.since(&before, 0, seconds))
}

/// The sites' counters at one moment.
struct Reading {
    /// Processor time of each site since it started.
    worked: [Worked; 2],
    /// Syncs of the first site since it started.
    syncs: f64,
    /// The real time that these took.
    sync_seconds: f64,
}

impl Reading {
    fn of(sites: &[Server; 2]) -> Result<Self, LiveError> {
        let [here, there] = sites;
        let syncs = here.metric("slackline_sync_seconds_count")?;
        let sync_seconds = here.metric("slackline_sync_seconds_sum")?;
        Ok(Self { worked: [here.worked()?, there.worked()?], syncs, sync_seconds })
    }

    fn since(&self, before: &Self, requests: u64, seconds: f64) -> Taken {
        let worked = [0, 1].map(|site: usize| self.worked[site].since(before.worked[site]));
        let (syncs, sync_seconds) = (self.syncs - before.syncs, self.sync_seconds - before.sync_seconds);
        Taken { requests, seconds, worked, syncs, sync_seconds }
    }
}

/// A caller on a stream of its own.
struct Line {
    /// Its requests.
    caller: Caller,
    /// From when its clock counts.
    began: Instant,
    /// To the site.
    requests: UnboundedSender<v1::SessionRequest>,
    /// From the site.
    replies: Streaming<v1::SessionReply>,
}

impl Line {
    async fn open(caller: Caller, channel: Channel) -> Result<Self, LiveError> {
        // At most one request is in it.
        let (requests, outgoing) = unbounded_channel();
        let mut stub = SlacklineClient::new(channel).max_decoding_message_size(MESSAGE_BYTES);
        let replies =
            stub.session(UnboundedReceiverStream::new(outgoing)).await.map_err(LiveError::failed)?.into_inner();
        Ok(Self { caller, began: Instant::now(), requests, replies })
    }

    fn now(&self) -> Time {
        Time::default() + self.began.elapsed()
    }

    /// Asks once, and waits until all of it is answered.
    async fn ask(&mut self) -> Result<(), LiveError> {
        let request = self.caller.request(self.now()).map_err(LiveError::failed)?;
        let request = v1::SessionRequest::try_from(request).map_err(LiveError::failed)?;
        self.requests.send(request).map_err(LiveError::failed)?;
        loop {
            let reply = timeout(PATIENCE, self.replies.message())
                .await
                .map_err(LiveError::failed)?
                .map_err(LiveError::failed)?;
            let reply = reply.ok_or_else(|| LiveError::failed("the site ended the stream"))?;
            let response = Response::try_from(reply).map_err(LiveError::failed)?;
            if self.caller.take(response, self.now()).map_err(LiveError::failed)? {
                return Ok(());
            }
        }
    }

    /// Asks again and again. Returns itself, and how often it asked.
    async fn ask_until(mut self, end: Instant) -> Result<(Self, u64), LiveError> {
        let mut asked = 0;
        while Instant::now() < end {
            self.ask().await?;
            asked += 1;
        }
        Ok((self, asked))
    }
}
