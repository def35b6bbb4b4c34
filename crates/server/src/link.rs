//! Links between sites.
//!
//! Each site dials each other site of its lane and keeps one stream, on which its messages flow; the other's messages
//! come on the stream that the other dialled. A link loses messages when it breaks and when its queue is full: the
//! protocols repeat what matters. While a link is down its queue is emptied at each failed attempt, so that the messages
//! that arrive after a long silence are new ones.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use prost::Message;
use slackline_core::id::SiteId;
use slackline_core::peer::PeerMessage;
use slackline_wire::internal::peer_client::PeerClient;
use slackline_wire::internal::peer_server::Peer;
use slackline_wire::internal::{self, Link, LinkFrame, LinkReply, Linked};
use slackline_wire::{FRAME_MESSAGES, Invalid, LINK_VERSIONS, MESSAGE_BYTES, limit_message};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status, Streaming};
use tracing::{debug, info, warn};

use crate::mailbox::Mailbox;
use crate::topology::Topology;

/// The most messages that wait to be sent to one peer; beyond it the oldest is dropped.
const OUTBOX_MESSAGES: usize = 16_384;
/// The most bytes of these messages, and one more message.
const OUTBOX_BYTES: usize = 64 << 20;
/// A frame is closed when its messages take up this many bytes; with one more message it stays below [`LINK_BYTES`].
const FRAME_BYTES: usize = 512 << 10;
/// The largest frame that a site takes, in bytes: a full one, and a message as large as a client may send.
pub(crate) const LINK_BYTES: usize = FRAME_BYTES + MESSAGE_BYTES + (64 << 10);
/// The time that an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time after which a silent link is probed, and then the time after which it is given up.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// The shortest time between two log lines about a link's messages that make no sense.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(1);
/// The first and the longest wait between two attempts; each has up to half of it added by chance, so that sites that lost their
/// links together do not dial together.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The messages that wait to be sent to one peer.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// The peer.
    pub(crate) to: SiteId,
    /// The time put in between sending and leaving, to stand for the distance.
    delay: Duration,
    state: Mutex<Waiting>,
}

#[derive(Default, Debug)]
struct Waiting {
    /// The messages in the order of sending, and so by rising `due`.
    queue: VecDeque<Queued>,
    /// Their encoded bytes: always the sum of theirs.
    bytes: usize,
    /// True while the link stands.
    linked: bool,
    /// Wakes the stream of frames, if it waits.
    waker: Option<Waker>,
    /// The number of messages that were dropped before they were sent, since the start.
    dropped: u64,
}

#[derive(Debug)]
struct Queued {
    /// The time before which it may not leave.
    due: Instant,
    /// What is to be sent.
    message: internal::PeerMessage,
    /// Its encoded length.
    bytes: usize,
}

/// The state of a link, for the metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkState {
    /// The peer.
    pub(crate) to: SiteId,
    /// True while the link stands.
    pub(crate) linked: bool,
    /// The number of messages that wait.
    pub(crate) queued: usize,
    /// The number of messages that were dropped, since the start.
    pub(crate) dropped: u64,
}

impl Outbox {
    pub(crate) fn new(to: SiteId, delay: Duration) -> Self {
        Self { to, delay, state: Mutex::default() }
    }

    /// Queues a message.
    pub(crate) fn send(&self, mut message: PeerMessage) {
        let due = Instant::now() + self.delay;
        limit_message(&mut message);
        let message = internal::PeerMessage::from(message);
        let bytes = message.encoded_len();

        // The oldest goes: of what a site says of itself, the newest message holds all that the earlier ones do.
        let mut state = self.state();
        while state.queue.len() >= OUTBOX_MESSAGES || state.bytes > OUTBOX_BYTES {
            state.pop();
            state.dropped += 1;
        }
        state.bytes += bytes;
        state.queue.push_back(Queued { due, message, bytes });
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    pub(crate) fn state_of_link(&self) -> LinkState {
        let state = self.state();
        LinkState { to: self.to, linked: state.linked, queued: state.queue.len(), dropped: state.dropped }
    }

    /// True if no message waits that could still be sent.
    pub(crate) fn is_flushed(&self) -> bool {
        let state = self.state();
        !state.linked || state.queue.is_empty()
    }

    /// Notes that the link stands, or that it does not. Empties the queue of a link that is down.
    fn set_linked(&self, linked: bool) {
        let mut state = self.state();
        state.linked = linked;

        // Messages that have waited through an outage would be taken for new ones: a peer would answer questions that are long over.
        if !linked {
            state.dropped += state.queue.len() as u64;
            state.queue.clear();
            state.bytes = 0;
        }
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn pop(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.bytes -= queued.bytes;
        Some(queued)
    }
}

/// Keeps a link to one peer, until it is dropped.
pub(crate) async fn keep(topology: Arc<Topology>, outbox: Arc<Outbox>) {
    let address = topology.address(outbox.to);
    let peer = topology.name(outbox.to);
    let mut pause = BACK_OFF.0;
    let mut last_problem = String::new();
    loop {
        let mut linked_at = None;
        let status = match run(&topology, &outbox, &address, &mut linked_at).await {
            Ok(()) => Status::unavailable("the peer ended the link"),
            Err(status) => status,
        };
        outbox.set_linked(false);

        // A peer that is down for a day is one line in the log, not forty thousand.
        let problem = status.message().to_owned();
        if problem != last_problem {
            warn!(%peer, %address, %problem, "no link; trying again");
            last_problem = problem;
        } else {
            debug!(%peer, %address, "still no link");
        }

        // A link that stood for a while was a good one: the next attempt need not wait for long.
        if linked_at.is_some_and(|at: Instant| at.elapsed() > KEEP_ALIVE) {
            pause = BACK_OFF.0;
            last_problem.clear();
        }
        tokio::time::sleep(pause + jitter(pause / 2)).await;
        pause = (pause * 2).min(BACK_OFF.1);
    }
}

/// Connects, introduces us, and sends until the link breaks. Notes when it stood: a peer that is suspended takes a connection, and says
/// nothing.
async fn run(
    topology: &Topology,
    outbox: &Arc<Outbox>,
    address: &str,
    linked_at: &mut Option<Instant>,
) -> Result<(), Status> {
    let unusable = |error: tonic::transport::Error| Status::unavailable(describe(&error));
    let channel = Endpoint::from_shared(format!("http://{address}"))
        .map_err(unusable)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .connect()
        .await
        .map_err(unusable)?;

    // Ids of sites are positions in the list of regions. Both ends compare all of it before a message flows, so that no site takes
    // another one for a third.
    let introduction = Link {
        version_min: *LINK_VERSIONS.start(),
        version_max: *LINK_VERSIONS.end(),
        cluster: topology.cluster.clone(),
        from: Some(topology.me.into()),
        to: Some(outbox.to.into()),
        regions: topology.regions(),
        lanes: topology.lanes.into(),
    };

    let frames = Frames { introduction: Some(introduction), outbox: Arc::clone(outbox), timer: None };
    let mut replies = PeerClient::new(channel).link(frames).await?.into_inner();
    let reply = replies.message().await?;
    let version = reply.and_then(|reply| reply.linked).map(|linked| linked.version);
    if !version.is_some_and(|version| LINK_VERSIONS.contains(&version)) {
        return Err(Status::failed_precondition(
            "the peer answered with a version of the protocol that this site does not speak",
        ));
    }

    outbox.set_linked(true);
    *linked_at = Some(Instant::now());
    info!(peer = %topology.name(outbox.to), %address, "linked");
    while replies.message().await?.is_some() {}
    Ok(())
}

/// The innermost cause of an error: the others only name the layers that it went through.
fn describe(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A random time up to `most`.
fn jitter(most: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as u32;
    most * (random >> 16) / (1 << 16)
}

/// The frames that this site sends on a link.
struct Frames {
    /// The content of the first frame, until it is sent.
    introduction: Option<Link>,
    outbox: Arc<Outbox>,
    /// Ends when the next message is due, if none is yet.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stream for Frames {
    type Item = LinkFrame;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<LinkFrame>> {
        let this = self.get_mut();
        if let Some(link) = this.introduction.take() {
            return Poll::Ready(Some(LinkFrame { link: Some(link), messages: Vec::new() }));
        }

        loop {
            if let Some(timer) = &mut this.timer {
                ready!(timer.as_mut().poll(context));
                this.timer = None;
            }

            // Nothing before the peer's answer: it may refuse the link, and the messages would be lost.
            let now = Instant::now();
            let mut state = this.outbox.state();
            if !state.linked || state.queue.is_empty() {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            if let Some(Queued { due, .. }) = state.queue.front()
                && *due > now
            {
                this.timer = Some(Box::pin(tokio::time::sleep_until((*due).into())));
                continue;
            }
            return Poll::Ready(Some(LinkFrame { link: None, messages: due_messages(&mut state, now) }));
        }
    }
}

/// Takes the messages that are due from the queue, up to the bounds of a frame.
fn due_messages(state: &mut Waiting, now: Instant) -> Vec<internal::PeerMessage> {
    let mut messages = Vec::new();
    let mut total = 0;
    while messages.len() < FRAME_MESSAGES
        && total < FRAME_BYTES
        && state.queue.front().is_some_and(|queued| queued.due <= now)
    {
        let Some(Queued { message, bytes, .. }) = state.pop() else { break };
        total += bytes;
        messages.push(message);
    }
    messages
}

/// Takes links that other sites dial.
#[derive(Debug)]
pub(crate) struct PeerService {
    pub(crate) topology: Arc<Topology>,
    pub(crate) mailbox: Arc<Mailbox>,
}

#[tonic::async_trait]
impl Peer for PeerService {
    type LinkStream = Taken;

    async fn link(&self, request: Request<Streaming<LinkFrame>>) -> Result<Response<Taken>, Status> {
        let mut frames = request.into_inner();
        let introduction = frames.message().await?.and_then(|frame| frame.link);
        let introduction =
            introduction.ok_or_else(|| Status::invalid_argument("the first frame has no introduction"))?;
        let (from, version) = check(&self.topology, introduction)?;
        let linked = Some(LinkReply { linked: Some(Linked { version }) });
        let complaints = Complaints::about(self.topology.name(from));
        Ok(Response::new(Taken { from, linked, frames, mailbox: Arc::clone(&self.mailbox), complaints }))
    }
}

/// Checks an introduction. Returns the site that dials, and the version to speak.
fn check(topology: &Topology, link: Link) -> Result<(SiteId, u32), Status> {
    let refuse = |why: String| Err(Status::failed_precondition(why));
    let site = |site: Option<slackline_wire::v1::SiteId>| site.and_then(|site| SiteId::try_from(site).ok());
    let (Some(from), Some(to)) = (site(link.from), site(link.to)) else {
        return Err(Status::invalid_argument("the introduction does not name both sites"));
    };

    // A message of another cluster, or by another list of regions, would name other quotas and other sites than it means.
    if link.cluster != topology.cluster {
        return refuse(format!(
            "this site belongs to cluster {:?}, and the caller to {:?}: correct the address or the cluster's name",
            topology.cluster, link.cluster
        ));
    }
    if link.lanes != 0 && link.lanes != u32::from(topology.lanes) {
        return refuse(format!(
            "this site has {} lanes, and the caller {}: all sites need the same, and it never changes",
            topology.lanes, link.lanes
        ));
    }

    // One of the two may know of regions that joined since.
    let regions = topology.regions();
    let common = regions.len().min(link.regions.len());
    if link.regions[..common] != regions[..common] {
        return refuse(format!(
            "this site has the regions {regions:?}, and the caller {:?}: all sites need the same list in the same order",
            link.regions
        ));
    }
    // But those that were there from the beginning everybody counts, or majorities of the one list and of the other need not meet.
    if let Some(left_out) = topology.first_founder(common) {
        return refuse(format!(
            "the caller leaves out region {left_out}, which has been there from the beginning: all sites need the same list"
        ));
    }
    if to != topology.me {
        return refuse(format!(
            "this is site {}, and the caller looks for {}: correct the addresses in `sites`",
            topology.name(topology.me),
            topology.name(to)
        ));
    }
    if from == topology.me || from.lane != topology.me.lane || !topology.has(from) {
        let name = link.regions.get(usize::from(from.region)).cloned().unwrap_or_else(|| topology.name(from));
        return refuse(format!(
            "site {name} is not a peer of site {}; a new region joins by `slackline site add`",
            topology.name(topology.me)
        ));
    }

    // The highest version that both speak. There is one as long as sites are upgraded one version at a time.
    let version = link.version_max.min(*LINK_VERSIONS.end());
    if version < link.version_min.max(*LINK_VERSIONS.start()) {
        return refuse(format!(
            "this site speaks the versions {} to {} of the protocol between sites, and the caller {} to {}: upgrade one version \
             at a time",
            LINK_VERSIONS.start(),
            LINK_VERSIONS.end(),
            link.version_min,
            link.version_max
        ));
    }
    Ok((from, version))
}

/// A link that another site dialled. Polling it takes the frames in.
pub(crate) struct Taken {
    /// The site that dialled.
    from: SiteId,
    /// The answer to the introduction, until it is sent.
    linked: Option<LinkReply>,
    frames: Streaming<LinkFrame>,
    mailbox: Arc<Mailbox>,
    /// What was logged of it lately, so that it does not fill the log.
    complaints: Complaints,
}

impl Stream for Taken {
    type Item = Result<LinkReply, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(linked) = this.linked.take() {
            return Poll::Ready(Some(Ok(linked)));
        }

        while let Some(frame) = ready!(Pin::new(&mut this.frames).poll_next(context)) {
            let frame = match frame {
                Ok(frame) => frame,
                Err(status) => return Poll::Ready(Some(Err(status))),
            };
            // A senseless message ends nothing: the others of its frame may carry an agreement.
            for message in frame.messages {
                match PeerMessage::try_from(message) {
                    Ok(message) => this.mailbox.tell(this.from, message),
                    Err(invalid) => this.complaints.add(&invalid),
                }
            }
        }
        Poll::Ready(None)
    }
}

/// Logs messages of a peer that make no sense: the first at once, then their number, so that a peer cannot fill the log.
struct Complaints {
    peer: String,
    /// The number of messages since the last line.
    count: u64,
    /// The time of the last line.
    last: Option<Instant>,
}

impl Complaints {
    fn about(peer: String) -> Self {
        Self { peer, count: 0, last: None }
    }

    fn add(&mut self, invalid: &Invalid) {
        self.count += 1;
        if self.last.is_none_or(|last| last.elapsed() >= COMPLAINT_INTERVAL) {
            warn!(peer = %self.peer, count = self.count, last = %invalid, "messages make no sense and are ignored");
            (self.count, self.last) = (0, Some(Instant::now()));
        }
    }
}

impl Drop for Complaints {
    fn drop(&mut self) {
        if self.count > 0 {
            warn!(peer = %self.peer, count = self.count, "messages made no sense and were ignored");
        }
    }
}

#[cfg(test)]
mod tests {
    use slackline_core::id::Incarnation;
    use slackline_core::peer::Body;
    use slackline_core::peer::quota::QuotaMessage;

    use super::*;

    fn topology() -> Topology {
        let regions = vec!["us".to_owned(), "eu".to_owned()];
        let sites = [(SiteId::new(0, 0), "a:1".to_owned()), (SiteId::new(1, 0), "b:1".to_owned())].into();
        Topology::new("shop".to_owned(), SiteId::new(0, 0), 1, regions, sites)
    }

    fn link() -> Link {
        Link {
            version_min: 1,
            version_max: 1,
            cluster: "shop".to_owned(),
            from: Some(SiteId::new(1, 0).into()),
            to: Some(SiteId::new(0, 0).into()),
            regions: topology().regions(),
            lanes: 1,
        }
    }

    /// A peer would answer questions that are long over.
    #[test]
    fn messages_do_not_outlive_the_link() {
        let body = Body::Quota(QuotaMessage::Count { quota: "gpus".to_owned(), token: 1 });
        let message = PeerMessage { incarnation: Incarnation(1), position: 0, epoch: 0, members: 0, body };
        let outbox = Outbox::new(SiteId::new(1, 0), Duration::ZERO);
        outbox.set_linked(true);
        outbox.send(message);
        outbox.set_linked(false);
        outbox.set_linked(true);
        let LinkState { queued, dropped, .. } = outbox.state_of_link();
        assert_eq!((queued, dropped), (0, 1));
    }

    #[test]
    fn frame_has_what_is_due_and_no_more_than_a_peer_takes() {
        let now = Instant::now();
        let queued = |due| Queued { due, message: internal::PeerMessage::default(), bytes: 300 << 10 };
        let mut waiting = Waiting { bytes: 6 * (300 << 10), ..Waiting::default() };
        waiting.queue.extend([now, now, now, now, now, now + Duration::from_secs(3600)].map(queued));
        let sizes: Vec<usize> = (0..4).map(|_| due_messages(&mut waiting, now).len()).collect();
        assert_eq!(sizes, [2, 2, 1, 0], "a frame ends with the message that fills it, and the last is not due");
    }

    #[test]
    fn link_takes_the_highest_version_that_both_speak() {
        let newer = Link { version_min: 1, version_max: 2, ..link() };
        assert_eq!(check(&topology(), newer).expect("one version overlaps"), (SiteId::new(1, 0), 1));
    }

    #[test]
    fn link_is_refused_with_what_differs() {
        let refused = |link: Link| check(&topology(), link).expect_err("must be refused").message().to_owned();
        assert!(refused(Link { cluster: "other".to_owned(), ..link() }).contains("\"shop\""));
        assert!(refused(Link { version_min: 2, version_max: 3, ..link() }).contains("versions 1 to 1"));
        assert!(refused(Link { to: Some(SiteId::new(1, 0).into()), ..link() }).contains("this is site us"));
        assert!(refused(Link { from: Some(SiteId::new(0, 0).into()), ..link() }).contains("not a peer"));
        assert!(refused(Link { from: Some(SiteId::new(7, 0).into()), ..link() }).contains("not a peer"));
        assert!(refused(Link { regions: vec!["eu".to_owned(), "us".to_owned()], ..link() }).contains("same order"));
        assert!(refused(Link { from: None, ..link() }).contains("both sites"));
        assert!(refused(Link { lanes: 2, ..link() }).contains("this site has 1 lanes, and the caller 2"));
        assert!(check(&topology(), Link { lanes: 0, ..link() }).is_ok(), "a site of before did not say");
    }

    /// A site that is given new storage, and a list that is too short, would count majorities of its own.
    #[test]
    fn region_that_was_there_from_the_beginning_is_left_out_by_nobody() {
        let longer = topology();
        longer.join(SiteId::new(2, 0), "ap c:1");
        assert!(check(&longer, link()).is_ok(), "the caller has not heard that ap has joined");
        let mut short = link();
        short.regions.pop();
        let refused = check(&longer, short).expect_err("must be refused");
        assert!(refused.message().contains("leaves out region eu"), "{refused}");
    }
}
