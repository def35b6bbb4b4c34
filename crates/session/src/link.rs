//! What callers and a driver share of one site: the [`Sessions`], and whether the site can be reached. A driver keeps the stream open,
//! sends what the sessions give it, feeds them with what comes, and sweeps them when something falls due.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slackline_core::api::{Request, Response};
use slackline_core::id::{OperationId, SiteId};

use crate::command::{CallKey, Command, Finished, NotTaken, Reply, Terms, Unsettled};
use crate::reads::{self, Wanted};
use crate::sessions::Sessions;
use crate::time::Time;

/// The first and the longest pause of a driver between attempts to connect; each is twice the one before, [jittered].
///
/// [jittered]: crate::time::jittered
pub const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The time for which a driver uses a stream through another site before it tries the site itself again.
pub const RELAY: Duration = Duration::from_secs(2);

/// Who carries out what a link's sessions ask for.
pub trait Driver: Send + Sync + 'static {
    /// Something falls due earlier than it did, or for the first time: connect, if that has not been done, and look at
    /// [`Link::sweep_at`] again. What is to be sent wakes the waker that [`Link::next_request`] left behind.
    fn look(&self);
}

/// The link to one site.
pub struct Link {
    /// The site.
    pub site: SiteId,
    /// Its name.
    pub name: String,
    /// Never locked while a waker is woken or the driver looks: both come back here.
    sessions: Mutex<Sessions>,
    driver: Arc<dyn Driver>,
    /// True from when an attempt to connect, or to open a session, failed, until one succeeds.
    down: AtomicBool,
    /// What [`Sessions::is_silent`] said when they last changed.
    silent: AtomicBool,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("name", &self.name).field("down", &self.down).finish_non_exhaustive()
    }
}

impl Link {
    /// A link without a connection, which a driver opens when it is first told to look.
    pub fn new(site: SiteId, name: String, driver: Arc<dyn Driver>) -> Self {
        let (down, silent) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { site, name, sessions: Mutex::new(Sessions::new(site)), driver, down, silent }
    }

    // What callers do.

    /// True if it makes sense to send a call here that may as well go elsewhere.
    pub fn is_usable(&self) -> bool {
        !self.down.load(Ordering::Relaxed)
    }

    /// True if the site says nothing, though it is not known to be down: others come first.
    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Takes a call in.
    ///
    /// # Errors
    ///
    /// Too many calls wait, or the client is closed; the command comes back.
    pub fn submit(&self, command: Command, terms: Terms, now: Time) -> Result<CallKey, (NotTaken, Command)> {
        self.take_in(|sessions| sessions.submit(command, terms, now))
    }

    /// Fetches the reply of a call. One whose patience has passed leaves if `may_leave`.
    pub fn poll(&self, key: CallKey, context: &Context<'_>, may_leave: impl FnOnce() -> bool) -> Poll<Finished> {
        let mut sessions = self.sessions();
        let finished = sessions.poll(key, context.waker(), may_leave);

        // What is left behind is asked about at once.
        if matches!(&finished, Some(Finished { reply: Reply::LeftBehind, .. })) {
            wake_sender(sessions);
        }
        finished.map_or(Poll::Pending, Poll::Ready)
    }

    /// The caller of a call that was left behind takes it back.
    pub fn reclaim(&self, id: OperationId, now: Time) -> Option<Finished> {
        self.sessions().reclaim(id, now)
    }

    /// The caller does not wait any longer.
    pub fn abandon(&self, key: CallKey, now: Time) {
        let mut sessions = self.sessions();
        sessions.abandon(key, now);
        wake_sender(sessions);
    }

    /// Reads objects at this site. Dropped before it is ready, the answer is thrown away.
    ///
    /// # Errors
    ///
    /// Too many reads are under way, the site cannot be reached, or the deadline has passed.
    pub async fn read(&self, wanted: Wanted, deadline: Time) -> reads::Result {
        let token = self.take_in(|sessions| sessions.read(wanted, deadline))?;
        let mut asked = Asked { link: self, token: Some(token) };
        poll_fn(|context| asked.poll(context)).await
    }

    /// What is not settled, or never will be.
    pub fn left(&self) -> Vec<Unsettled> {
        self.sessions().left()
    }

    // What a driver does.

    /// The next message to the site, for the newest stream. `Ready(None)` if `stream` is no longer the newest, so that it ends;
    /// `Pending` if there is nothing to send now, and then `waker` is woken when there is.
    pub fn next_request(&self, stream: u64, now: Time, waker: &Waker) -> Poll<Option<Request>> {
        let mut sessions = self.sessions();
        if !sessions.is_current(stream) {
            return Poll::Ready(None);
        }
        match sessions.next_request(now) {
            Some(request) => Poll::Ready(Some(request)),
            None => {
                sessions.sender = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    /// When [`Sessions::sweep`] wants to be called next.
    pub fn sweep_at(&self) -> Option<Time> {
        self.sessions().sweep_at()
    }

    /// A stream to the site is open, or through another that relays.
    pub fn connected(&self, relayed: bool) {
        self.change(|sessions, _| sessions.connected(relayed));

        // Without a session, calls may go elsewhere until one is opened. A relay does not make the site one that can be reached.
        if !relayed && self.sessions().has_session() {
            self.set_down(false);
        }
    }

    /// The stream is over, or could not be opened: calls that have not left go elsewhere.
    pub fn disconnected(&self, now: Time) {
        self.set_down(true);
        self.change(|sessions, wakers| sessions.disconnected(now, wakers));
    }

    /// Tells callers whose time is up, and takes up again what was put off. False if the stream is to be given up: its site has not
    /// answered a batch for [`STALLED`](crate::sessions::STALLED).
    pub fn sweep(&self, now: Time) -> bool {
        self.change(|sessions, wakers| {
            sessions.sweep(now, wakers);
            !sessions.is_stalled(now)
        })
    }

    /// Takes a message in. `false` if the stream is of no more use: it comes from another site, makes no sense, or from a relay
    /// that has lost the site.
    pub fn receive(&self, response: Response, now: Time) -> bool {
        let mut wakers = Vec::new();
        let mut is_useful = true;
        let mut sessions = self.sessions();
        sessions.heard(now);

        match response {
            Response::Batch { session, answers } => {
                is_useful = !sessions.answers(session, answers, now, &mut wakers);
            }
            Response::Asked { operation, outcome } => {
                is_useful = !sessions.asked(operation, outcome, now, &mut wakers);
            }
            Response::Opened { site, incarnation, session } if site == self.site => {
                sessions.opened(incarnation, session);
                self.set_down(false);
            }
            // Another site answers at this address.
            Response::Opened { .. } => is_useful = false,
            Response::NotOpened(refusal) => {
                sessions.not_opened(refusal, now, &mut wakers);
                if !sessions.has_session() {
                    self.set_down(true);
                }
            }
            Response::Closed => {}
            Response::Read(reading) => sessions.found(reading, &mut wakers),
            Response::Explained { .. }
            | Response::Shown(_)
            | Response::Listed(_)
            | Response::Treaties(_)
            | Response::Status(_)
            | Response::Drained => is_useful = false,
        }

        self.silent.store(sessions.is_silent(), Ordering::Relaxed);
        drop(sessions);

        // Callers first: what they submit next then travels in one batch.
        wakers.into_iter().for_each(Waker::wake);
        wake_sender(self.sessions());
        is_useful
    }

    /// Asserts what always holds; see [`Sessions::check`].
    pub fn check(&self) {
        self.sessions().check();
    }

    /// Changes the sessions, then wakes those whom that concerns.
    pub fn change<T>(&self, change: impl FnOnce(&mut Sessions, &mut Vec<Waker>) -> T) -> T {
        let mut wakers = Vec::new();
        let mut sessions = self.sessions();
        let changed = change(&mut sessions, &mut wakers);
        self.silent.store(sessions.is_silent(), Ordering::Relaxed);
        drop(sessions);

        // Callers first: what they submit next then travels in one batch.
        wakers.into_iter().for_each(Waker::wake);
        wake_sender(self.sessions());
        changed
    }

    /// Notes that a connection or a session could not be opened; or that one has been.
    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }

    /// Has the sessions take something in, and tells those whom that concerns.
    fn take_in<T, E>(&self, take: impl FnOnce(&mut Sessions) -> Result<T, E>) -> Result<T, E> {
        let mut sessions = self.sessions();
        let due = sessions.sweep_at();
        let taken = take(&mut sessions)?;
        let is_earlier = sessions.sweep_at() != due;
        wake_sender(sessions);

        // Without the lock: the driver looks at the sessions.
        if is_earlier {
            self.driver.look();
        }
        Ok(taken)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().expect("no code panics while it holds the sessions")
    }
}

/// Wakes the sender, if there is something to send.
fn wake_sender(mut sessions: MutexGuard<'_, Sessions>) {
    if sessions.sender.is_some() && sessions.has_something_to_send() {
        let sender = sessions.sender.take();
        drop(sessions);
        sender.into_iter().for_each(Waker::wake);
    }
}

/// A read under way; forgotten if its caller goes away.
struct Asked<'a> {
    link: &'a Link,
    /// None once its result was fetched.
    token: Option<u64>,
}

impl Asked<'_> {
    fn poll(&mut self, context: &Context<'_>) -> Poll<reads::Result> {
        let token = self.token.expect("polled until it was ready");

        // The token names nothing any more once the result is fetched.
        let found = self.link.sessions().poll_read(token, context.waker());
        if found.is_some() {
            self.token = None;
        }
        found.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.link.sessions().abandon_read(token);
        }
    }
}
