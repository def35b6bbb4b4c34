//! The connection to one site: a task that keeps a stream open, feeds the [`Link`] with what arrives, and minds the
//! deadlines. What is to be sent is fetched from the link by the stream itself ([`Outgoing`]), so that a call is on
//! its way after two wake-ups: the connection's, and nothing in between.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use slackline_core::api::Response;
use slackline_core::id::SiteId;
use slackline_session::link::{Driver, Link, PAUSES, RELAY};
use slackline_session::time::{Time, jittered};
use slackline_wire::MESSAGE_BYTES;
use slackline_wire::v1::{self, slackline_client::SlacklineClient};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep_until, timeout};
use tokio_stream::Stream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

/// The longest time that a connection may take to come up.
const CONNECT: Duration = Duration::from_secs(2);
/// The longest time that a connection with calls under way may be silent before it is tested, and then until it is given up.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// The time for which a closing client waits for what is under way, and for its sessions to be closed.
const FAREWELL: Duration = Duration::from_millis(500);
/// Flow control windows: a batch of the longest names fits several times.
const WINDOW: u32 = 4 << 20;
/// The largest HTTP/2 frame that is taken: large values come in few pieces.
const FRAME: u32 = 256 << 10;

/// When the first client of this process was connected. All clients of a process have the same clock, so that their times can
/// be compared.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time as the links know it: microseconds since [`START`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: *START }
    }

    pub(crate) fn now(self) -> Time {
        Time::default() + self.start.elapsed()
    }

    /// The same time as the operating system knows it; what is centuries away is as good as any other time then.
    pub(crate) fn instant(self, at: Time) -> Instant {
        self.start.checked_add(at - Time::default()).unwrap_or(self.start + Duration::from_secs(1 << 33))
    }
}

/// A number that nobody can foresee: the standard library seeds every such state from the operating system.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// A channel to `address` that connects when it is first used, and again when it has broken.
pub(crate) fn channel(address: &str) -> Option<Channel> {
    let uri = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let endpoint = Endpoint::from_shared(uri).ok()?;
    let endpoint = endpoint
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME);
    Some(endpoint.connect_lazy())
}

/// The generated client over a channel, with the bounds that both sides agree on.
pub(crate) fn stub(channel: Channel) -> SlacklineClient<Channel> {
    SlacklineClient::new(channel).max_decoding_message_size(MESSAGE_BYTES)
}

/// The connection to one site: what carries out what its link asks for.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) link: Arc<Link>,
    /// To the site itself; connects when it is used.
    pub(crate) channel: Channel,
    /// The other sites of its lane, which can relay to it.
    relays: Vec<Channel>,
    clock: Clock,
    bell: Arc<Bell>,
    /// True from when the client ends: the task ends after a short farewell, and does not connect again.
    closing: AtomicBool,
    /// True if the sessions stay when it closes. Set before `closing`.
    leaving: AtomicBool,
    /// The task, from when a call first needs it until somebody waits for its end.
    task: Mutex<Option<JoinHandle<()>>>,
}

/// What a link rings when something falls due earlier; the first time starts the connection's task.
struct Bell {
    /// The runtime in which the client was connected; the task runs there, whichever thread needs it first.
    runtime: Handle,
    /// True from when the task is started, which happens once.
    started: AtomicBool,
    /// Set once, when both are made. Weak, because the connection holds the bell.
    connection: OnceLock<Weak<Connection>>,
    /// Something that the task must look at: an earlier deadline, or the end.
    news: Notify,
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("started", &self.started).finish_non_exhaustive()
    }
}

impl Driver for Bell {
    fn look(&self) {
        if !self.started.load(Ordering::Relaxed) && !self.started.swap(true, Ordering::Relaxed) {
            self.start();
        }
        self.news.notify_one();
    }
}

impl Bell {
    #[cold]
    fn start(&self) {
        let connection = self.connection.get().and_then(Weak::upgrade);
        if let Some(connection) = connection {
            let task = self.runtime.spawn(Arc::clone(&connection).run());
            *connection.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(task);
        }
    }
}

impl Connection {
    pub(crate) fn new(site: SiteId, name: String, channel: Channel, relays: Vec<Channel>, clock: Clock) -> Arc<Self> {
        // Nothing is connected before a call needs it: a client of many lanes uses few of them.
        let bell = Arc::new(Bell {
            runtime: Handle::current(),
            started: AtomicBool::new(false),
            connection: OnceLock::new(),
            news: Notify::new(),
        });
        let connection = Arc::new(Self {
            link: Arc::new(Link::new(site, name, Arc::clone(&bell) as Arc<dyn Driver>)),
            channel,
            relays,
            clock,
            bell: Arc::clone(&bell),
            closing: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            task: Mutex::new(None),
        });
        bell.connection.set(Arc::downgrade(&connection)).expect("it is set here and nowhere else");
        connection
    }

    /// Ends the task, after a short farewell, without closing the sessions.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.shut();
    }

    /// Ends the task, after a short farewell.
    pub(crate) fn shut(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.bell.news.notify_one();
    }

    /// Waits until the task has ended.
    pub(crate) async fn ended(&self) {
        let task = self.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();

        // The task ends by itself after its farewells; a site that does not read must not hold the client up.
        if let Some(mut task) = task
            && timeout(FAREWELL * 4, &mut task).await.is_err()
        {
            task.abort();
        }
    }

    /// The task: connects, serves until the stream breaks, and again.
    async fn run(self: Arc<Self>) {
        let mut pause = PAUSES.0;
        while !self.is_closing() {
            if let Some(inbound) = self.open(&self.channel).await {
                let since = Instant::now();
                self.serve(inbound, false).await;

                // A site that takes streams and drops them at once is not tried faster for that.
                if since.elapsed() > PAUSES.1 {
                    pause = PAUSES.0;
                }
            }
            if self.is_closing() {
                break;
            }

            // Callers first: those that may go elsewhere do not wait for the next attempt.
            self.link.disconnected(self.clock.now());
            self.try_relays().await;
            self.rest(jittered(pause, random())).await;
            pause = (pause * 2).min(PAUSES.1);
        }

        // A stream of another number sends nothing more, so nothing leaves behind the back of callers that are told now.
        self.link.change(|sessions, wakers| {
            let now = self.clock.now();
            sessions.next_stream();
            sessions.disconnected(now, wakers);
            sessions.close(now, wakers);
        });
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// What can only be done by this site may get there through another.
    async fn try_relays(self: &Arc<Self>) {
        for relay in &self.relays {
            if self.is_closing() || !self.link.change(|sessions, _| sessions.could_be_relayed()) {
                return;
            }

            // One is enough: the site itself is tried again before another.
            if let Some(inbound) = self.open(relay).await {
                self.serve(inbound, true).await;
                self.link.disconnected(self.clock.now());
                return;
            }
        }
    }

    async fn open(self: &Arc<Self>, channel: &Channel) -> Option<Streaming<v1::SessionReply>> {
        // From here on an older stream has nothing to send, should it still be read by the other side.
        let stream = self.link.change(|sessions, _| sessions.next_stream());
        let mut stub = stub(channel.clone());
        let opening = timeout(CONNECT + KEEP_ALIVE, stub.session(Outgoing { connection: self.clone(), stream }));
        let reply = self.while_sweeping(opening, None).await?;
        Some(reply.ok()?.ok()?.into_inner())
    }

    /// Feeds the link from the stream until it breaks, or the client closes.
    async fn serve(&self, mut inbound: Streaming<v1::SessionReply>, relayed: bool) {
        let until = relayed.then(|| self.clock.now() + RELAY);
        self.link.connected(relayed);
        let mut alarm = Alarm::new();
        loop {
            // What comes is taken in first: an answer that is here already is not overtaken by its call's deadline.
            alarm.set(earliest(self.link.sweep_at(), until).map(|at| self.clock.instant(at)));
            tokio::select! {
                biased;
                message = inbound.message() => {
                    let Ok(Some(message)) = message else { return };
                    if !self.receive(message) {
                        return;
                    }
                }
                () = alarm.rings() => {
                    let now = self.clock.now();
                    let is_alive = self.link.sweep(now);

                    // A relay is for what is under way, and only until the site itself is tried again.
                    let has_work = || self.link.change(|sessions, _| sessions.has_work());
                    if !is_alive || until.is_some_and(|until| now >= until || !has_work()) {
                        return;
                    }
                }
                () = self.bell.news.notified() => {
                    if self.is_closing() {
                        return self.farewell(inbound).await;
                    }
                }
            }
        }
    }

    /// Takes one message in; `false` if the stream is of no more use.
    fn receive(&self, message: v1::SessionReply) -> bool {
        // A message that makes no sense comes from a site of another version, or from something else altogether.
        let Ok(response) = Response::try_from(message) else { return false };
        self.link.receive(response, self.clock.now())
    }

    /// Lets what is under way finish, then closes the sessions, unless they are to stay.
    async fn farewell(&self, mut inbound: Streaming<v1::SessionReply>) {
        // An answer that comes now spares its caller an unknown outcome.
        let end = tokio::time::Instant::now() + FAREWELL;
        while self.link.change(|sessions, _| sessions.has_work()) {
            match tokio::time::timeout_at(end, inbound.message()).await {
                Ok(Ok(Some(message))) => {
                    if !self.receive(message) {
                        break;
                    }
                }
                _ => break,
            }
        }

        if self.leaving.load(Ordering::Relaxed) {
            return self.link.change(|sessions, wakers| sessions.leave(self.clock.now(), wakers));
        }

        // The site need not keep what nobody can ask about. It answers each, so that the stream is not cut off before it has read them.
        let mut closing = self.link.change(|sessions, wakers| sessions.close(self.clock.now(), wakers));
        let end = tokio::time::Instant::now() + FAREWELL;
        while closing > 0 {
            match tokio::time::timeout_at(end, inbound.message()).await {
                Ok(Ok(Some(message))) => {
                    closing -= usize::from(matches!(message.reply, Some(v1::session_reply::Reply::Closed(_))));
                }
                _ => break,
            }
        }
    }

    /// Pauses, minding deadlines.
    async fn rest(&self, pause: Duration) {
        self.while_sweeping(std::future::pending::<()>(), Some(self.clock.now() + pause)).await;
    }

    /// Runs `work` until it is ready, `until` has come, or the client closes; minds deadlines meanwhile.
    async fn while_sweeping<F: Future>(&self, work: F, until: Option<Time>) -> Option<F::Output> {
        let mut work = pin!(work);
        let mut alarm = Alarm::new();
        loop {
            // Calls wait here for a connection. Their deadlines pass all the same, and their callers are told.
            alarm.set(earliest(self.link.sweep_at(), until).map(|at| self.clock.instant(at)));
            tokio::select! {
                biased;
                output = &mut work => return Some(output),
                () = alarm.rings() => {
                    let now = self.clock.now();
                    self.link.sweep(now);
                    if until.is_some_and(|until| now >= until) {
                        return None;
                    }
                }
                () = self.bell.news.notified() => {
                    if self.is_closing() {
                        return None;
                    }
                }
            }
        }
    }
}

/// What goes to the site: fetched from the link whenever the connection has room.
struct Outgoing {
    connection: Arc<Connection>,
    /// Its number. A newer one makes it end.
    stream: u64,
}

impl Stream for Outgoing {
    type Item = v1::SessionRequest;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Connection { link, clock, .. } = &*self.connection;
        let request = link.next_request(self.stream, clock.now(), context.waker());
        request.map(|request| Some(request?.try_into().expect("sessions hold only what travels on streams")))
    }
}

/// A timer that can be set again and again.
struct Alarm {
    sleep: Pin<Box<Sleep>>,
    /// The time that `sleep` is set to; none if it is not to ring.
    at: Option<Instant>,
}

impl Alarm {
    fn new() -> Self {
        Self { sleep: Box::pin(sleep_until(tokio::time::Instant::now())), at: None }
    }

    fn set(&mut self, at: Option<Instant>) {
        if self.at != at {
            self.at = at;
            if let Some(at) = at {
                self.sleep.as_mut().reset(at.into());
            }
        }
    }

    /// Ready when it is time; never, if it is not set.
    async fn rings(&mut self) {
        match self.at {
            Some(_) => self.sleep.as_mut().await,
            None => std::future::pending().await,
        }
        self.at = None;
    }
}

fn earliest(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    [one, other].into_iter().flatten().min()
}
