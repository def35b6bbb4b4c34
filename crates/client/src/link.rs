//! The connection to one site: a task that keeps a stream open, feeds the [`Book`] with what arrives, and minds the
//! deadlines. What is to be sent is fetched from the book by the stream itself ([`Outgoing`]), so that a call is on
//! its way after two wake-ups: the connection's, and nothing in between.

use std::collections::hash_map::RandomState;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use slackline_core::api::Response;
use slackline_core::id::{OperationId, SiteId};
use slackline_wire::MESSAGE_BYTES;
use slackline_wire::v1::{self, slackline_client::SlacklineClient};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep_until, timeout};
use tokio_stream::Stream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::book::{Act, Book, CallKey, Finished, NotTaken, Reply, Terms, Unsettled};
use crate::reads::{self, Wanted};

/// How long a connection may take to come up.
const CONNECT: Duration = Duration::from_secs(2);
/// How long a connection with calls under way may be silent before it is tested, and then until it is given up.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// The first and the longest pause between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long a stream through another site is used before the site itself is tried again.
const RELAY: Duration = Duration::from_secs(2);
/// How long a closing client waits for what is under way, and for its sessions to be closed.
const FAREWELL: Duration = Duration::from_millis(500);
/// Flow control windows: a batch of the longest names fits several times.
const WINDOW: u32 = 4 << 20;

/// A channel to `address` that connects when it is first used, and again when it has broken.
pub(crate) fn channel(address: &str) -> Option<Channel> {
    let uri = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let endpoint = Endpoint::from_shared(uri).ok()?;
    let endpoint = endpoint
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    Some(endpoint.connect_lazy())
}

/// The generated client over a channel, with the bounds that both sides agree on.
pub(crate) fn stub(channel: Channel) -> SlacklineClient<Channel> {
    SlacklineClient::new(channel).max_decoding_message_size(MESSAGE_BYTES)
}

/// The connection to one site.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) site: SiteId,
    pub(crate) name: String,
    pub(crate) channel: Channel,
    /// The other sites of its lane, which can relay to it.
    relays: Vec<Channel>,
    runtime: Handle,
    book: Mutex<Book>,
    /// Whether the last attempt to connect, or to open a session, failed; it is tried again all the time.
    down: AtomicBool,
    /// Whether a call's patience has passed since the site said anything.
    silent: AtomicBool,
    started: AtomicBool,
    closing: AtomicBool,
    /// Whether the sessions stay when it closes.
    leaving: AtomicBool,
    /// Something that the task must look at: an earlier deadline, or the end.
    news: Notify,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Link {
    pub(crate) fn new(site: SiteId, name: String, channel: Channel, relays: Vec<Channel>) -> Self {
        Self {
            site,
            name,
            channel,
            relays,
            runtime: Handle::current(),
            book: Mutex::new(Book::new(site)),
            down: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            started: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            news: Notify::new(),
            task: Mutex::new(None),
        }
    }

    /// Whether it makes sense to send a call here that may as well go elsewhere.
    pub(crate) fn is_usable(&self) -> bool {
        !self.down.load(Ordering::Relaxed)
    }

    /// Whether the site says nothing, though it is not known to be down: others come first.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Takes a call in.
    pub(crate) fn submit(self: &Arc<Self>, act: Act, terms: Terms) -> Result<CallKey, (NotTaken, Act)> {
        if !self.started.load(Ordering::Relaxed) {
            self.start();
        }
        let mut book = self.book();
        let due = book.sweep_at();
        let key = book.submit(act, terms, Instant::now())?;
        if book.sweep_at() != due {
            self.news.notify_one();
        }
        wake_sender(book);
        Ok(key)
    }

    /// Fetches the reply of a call. One whose patience has passed leaves if `may_leave`.
    pub(crate) fn poll(&self, key: CallKey, context: &Context<'_>, may_leave: impl FnOnce() -> bool) -> Poll<Finished> {
        let mut book = self.book();
        let finished = book.poll(key, context.waker(), may_leave);
        if matches!(&finished, Some(Finished { reply: Reply::LeftBehind, .. })) {
            wake_sender(book);
        }
        finished.map_or(Poll::Pending, Poll::Ready)
    }

    /// The caller of a call that was left behind takes it back.
    pub(crate) fn reclaim(&self, id: OperationId) -> Option<Finished> {
        self.book().reclaim(id, Instant::now())
    }

    /// What is not settled, or never will be.
    pub(crate) fn left(&self) -> Vec<Unsettled> {
        self.book().left()
    }

    /// Reads objects at this site.
    pub(crate) async fn read(self: &Arc<Self>, wanted: Wanted, deadline: Instant) -> reads::Result {
        if !self.started.load(Ordering::Relaxed) {
            self.start();
        }
        let token = {
            let mut book = self.book();
            let due = book.sweep_at();
            let token = book.read(wanted, deadline)?;
            if book.sweep_at() != due {
                self.news.notify_one();
            }
            wake_sender(book);
            token
        };
        let mut asked = Asked { link: self, token: Some(token) };
        poll_fn(|context| asked.poll(context)).await
    }

    /// The caller does not wait any longer.
    pub(crate) fn abandon(&self, key: CallKey) {
        let mut book = self.book();
        book.abandon(key, Instant::now());
        wake_sender(book);
    }

    /// Ends the task, after a short farewell, without closing the sessions.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.shut();
    }

    /// Ends the task, after a short farewell.
    pub(crate) fn shut(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.news.notify_one();
    }

    /// Waits until the task has ended.
    pub(crate) async fn ended(&self) {
        let task = self.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(mut task) = task
            && timeout(FAREWELL * 4, &mut task).await.is_err()
        {
            task.abort();
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no code panics while it holds the book")
    }

    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    #[cold]
    fn start(self: &Arc<Self>) {
        if !self.started.swap(true, Ordering::Relaxed) {
            let task = self.runtime.spawn(self.clone().run());
            *self.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(task);
        }
    }

    /// The task: connects, serves until the stream breaks, and again.
    async fn run(self: Arc<Self>) {
        let mut pause = PAUSES.0;
        while !self.is_closing() {
            if let Some(inbound) = self.open(&self.channel).await {
                let since = Instant::now();
                self.serve(inbound, false).await;
                if since.elapsed() > PAUSES.1 {
                    pause = PAUSES.0;
                }
            }
            if self.is_closing() {
                break;
            }
            self.set_down(true);
            self.change(|book, wakers| book.disconnected(Instant::now(), wakers));
            self.try_relays().await;
            self.rest(jittered(pause)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        self.change(|book, wakers| {
            book.next_stream();
            book.disconnected(Instant::now(), wakers);
            book.close(wakers);
        });
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// What can only be done by this site may get there through another.
    async fn try_relays(self: &Arc<Self>) {
        for relay in &self.relays {
            if self.is_closing() || !self.book().could_be_relayed() {
                return;
            }
            if let Some(inbound) = self.open(relay).await {
                self.serve(inbound, true).await;
                self.change(|book, wakers| book.disconnected(Instant::now(), wakers));
                return;
            }
        }
    }

    async fn open(self: &Arc<Self>, channel: &Channel) -> Option<Streaming<v1::SessionReply>> {
        let stream = self.change(|book, _| book.next_stream());
        let mut stub = stub(channel.clone());
        let opening = timeout(CONNECT + KEEP_ALIVE, stub.session(Outgoing { link: self.clone(), stream }));
        let reply = self.while_sweeping(opening, None).await?;
        Some(reply.ok()?.ok()?.into_inner())
    }

    /// Feeds the book from the stream until it breaks, or the client closes.
    async fn serve(&self, mut inbound: Streaming<v1::SessionReply>, relayed: bool) {
        let until = relayed.then(|| Instant::now() + RELAY);
        self.change(|book, _| book.connected(relayed));
        if !relayed && self.book().has_session() {
            self.set_down(false);
        }
        let mut wakers = Vec::new();
        let mut alarm = Alarm::new();
        loop {
            alarm.set(earliest(self.book().sweep_at(), until));
            tokio::select! {
                biased;
                message = inbound.message() => {
                    let Ok(Some(message)) = message else { return };
                    if !self.receive(message, &mut wakers) {
                        return;
                    }
                }
                () = alarm.rings() => {
                    let now = Instant::now();
                    self.change(|book, wakers| book.sweep(now, wakers));
                    let book = self.book();
                    if book.is_stalled(now) || until.is_some_and(|until| now >= until || !book.has_work()) {
                        return;
                    }
                }
                () = self.news.notified() => {
                    if self.is_closing() {
                        return self.farewell(inbound).await;
                    }
                }
            }
        }
    }

    /// Takes one message in; `false` if the stream is of no more use.
    fn receive(&self, message: v1::SessionReply, wakers: &mut Vec<Waker>) -> bool {
        // A message that makes no sense comes from a site of another version, or from something else altogether.
        let Ok(response) = Response::try_from(message) else { return false };
        let now = Instant::now();
        let mut useful = true;
        let mut book = self.book();
        book.heard();
        match response {
            Response::Batch { session, answers } => useful = !book.answers(session, answers, now, wakers),
            Response::Asked { operation, outcome } => useful = !book.asked(operation, outcome, now, wakers),
            Response::Opened { site, incarnation, session } if site == self.site => {
                book.opened(incarnation, session);
                self.set_down(false);
            }
            // Another site answers at this address.
            Response::Opened { .. } => useful = false,
            Response::NotOpened(refusal) => {
                book.not_opened(refusal, now, wakers);
                if !book.has_session() {
                    self.set_down(true);
                }
            }
            Response::Closed => {}
            Response::Read(reading) => book.found(reading, wakers),
            Response::Explained { .. }
            | Response::Shown(_)
            | Response::Listed(_)
            | Response::Status(_)
            | Response::Drained => useful = false,
        }
        self.silent.store(book.is_silent(), Ordering::Relaxed);
        drop(book);
        // Callers first: what they submit next then travels in one batch.
        wakers.drain(..).for_each(Waker::wake);
        wake_sender(self.book());
        useful
    }

    /// Lets what is under way finish, then closes the sessions, unless they are to stay.
    async fn farewell(&self, mut inbound: Streaming<v1::SessionReply>) {
        let mut wakers = Vec::new();
        let end = tokio::time::Instant::now() + FAREWELL;
        while self.book().has_work() {
            match tokio::time::timeout_at(end, inbound.message()).await {
                Ok(Ok(Some(message))) => {
                    if !self.receive(message, &mut wakers) {
                        break;
                    }
                }
                _ => break,
            }
        }
        if self.leaving.load(Ordering::Relaxed) {
            return self.change(Book::leave);
        }
        let mut closing = self.change(Book::close);
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
        self.while_sweeping(std::future::pending::<()>(), Some(Instant::now() + pause)).await;
    }

    /// Runs `work` until it is ready, `until` has come, or the client closes; minds deadlines meanwhile.
    async fn while_sweeping<F: Future>(&self, work: F, until: Option<Instant>) -> Option<F::Output> {
        let mut work = pin!(work);
        let mut alarm = Alarm::new();
        loop {
            alarm.set(earliest(self.book().sweep_at(), until));
            tokio::select! {
                biased;
                output = &mut work => return Some(output),
                () = alarm.rings() => {
                    let now = Instant::now();
                    self.change(|book, wakers| book.sweep(now, wakers));
                    if until.is_some_and(|until| now >= until) {
                        return None;
                    }
                }
                () = self.news.notified() => {
                    if self.is_closing() {
                        return None;
                    }
                }
            }
        }
    }

    /// Changes the book, then wakes whom that concerns.
    fn change<T>(&self, change: impl FnOnce(&mut Book, &mut Vec<Waker>) -> T) -> T {
        let mut wakers = Vec::new();
        let mut book = self.book();
        let changed = change(&mut book, &mut wakers);
        self.silent.store(book.is_silent(), Ordering::Relaxed);
        drop(book);
        wakers.into_iter().for_each(Waker::wake);
        wake_sender(self.book());
        changed
    }
}

/// A read under way; forgotten if its caller goes away.
struct Asked<'a> {
    link: &'a Link,
    token: Option<u64>,
}

impl Asked<'_> {
    fn poll(&mut self, context: &Context<'_>) -> Poll<reads::Result> {
        let token = self.token.expect("polled until it was ready");
        let found = self.link.book().poll_read(token, context.waker());
        if found.is_some() {
            self.token = None;
        }
        found.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.link.book().abandon_read(token);
        }
    }
}

/// What goes to the site: fetched from the book whenever the connection has room.
struct Outgoing {
    link: Arc<Link>,
    stream: u64,
}

impl Stream for Outgoing {
    type Item = v1::SessionRequest;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut book = self.link.book();
        if !book.is_current(self.stream) {
            return Poll::Ready(None);
        }
        match book.next_request(Instant::now()) {
            Some(request) => {
                drop(book);
                Poll::Ready(Some(request.try_into().expect("the book holds only what travels on streams")))
            }
            None => {
                book.sender = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Wakes the stream, if there is something to send.
fn wake_sender(mut book: MutexGuard<'_, Book>) {
    if book.sender.is_some() && book.has_something_to_send() {
        let sender = book.sender.take();
        drop(book);
        sender.into_iter().for_each(Waker::wake);
    }
}

/// A timer that can be set again and again.
struct Alarm {
    sleep: Pin<Box<Sleep>>,
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

fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    [one, other].into_iter().flatten().min()
}

/// Between half of `pause` and all of it, so that a thousand clients do not come back at the same instant.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0u8) % 1024;
    pause / 2 + pause / 2 * u32::try_from(random).expect("below 1024") / 1024
}
