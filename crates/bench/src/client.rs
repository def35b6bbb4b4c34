//! The product's client of one site, driven by hand.
//!
//! For benchmarks that must see each request and each response, to count them, to delay them or to send them on a stream of their
//! own. Sessions, ids, batches and what is asked again are those of [`Sessions`], as in the client that people use.

use std::task::Waker;
use std::time::Duration;

use slackline_core::api::{Outcome, Reading, Request, Response};
use slackline_core::id::SiteId;
use slackline_session::command::{CallKey, Command, Reply, Terms};
use slackline_session::reads::Wanted;
use slackline_session::sessions::Sessions;
use slackline_session::time::Time;

/// See the module.
#[derive(Debug)]
pub(crate) struct SiteClient {
    /// Calls and reads under way at the site.
    sessions: Sessions,
    /// The time that a call may take.
    timeout: Duration,
    /// Calls that have not ended, each with the time of its submission, in that order.
    calls: Vec<(CallKey, Time)>,
    /// The token of the read that has not ended, if there is one.
    reading: Option<u64>,
}

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The time of its submission.
    pub(crate) submitted: Time,
    /// The site's answer.
    pub(crate) outcome: Outcome,
}

impl SiteClient {
    /// A client with a stream to a site. Its first request opens a session.
    pub(crate) fn new(site: SiteId, timeout: Duration) -> Self {
        let mut sessions = Sessions::new(site);
        sessions.connected(false);
        Self { sessions, timeout, calls: Vec::new(), reading: None }
    }

    /// True if every call and every read has ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.reading.is_none()
    }

    /// Takes a call in; it leaves with one of the next requests.
    ///
    /// # Errors
    ///
    /// Too many calls wait.
    pub(crate) fn submit(&mut self, command: Command, now: Time) -> Result<(), String> {
        // No patience and no other site: it stays with this one until it is answered.
        let terms = Terms { deadline: now + self.timeout, pinned: true, patience: None };
        let taken = self.sessions.submit(command, terms, now);
        let key = taken.map_err(|(why, _)| format!("a call was not taken: {why:?}"))?;
        self.calls.push((key, now));
        Ok(())
    }

    /// Takes a read in; it leaves with one of the next requests. At most one is under way.
    ///
    /// # Errors
    ///
    /// Too many reads are under way.
    pub(crate) fn read(&mut self, wanted: Wanted, now: Time) -> Result<(), String> {
        let token = self.sessions.read(wanted, now + self.timeout);
        self.reading = Some(token.map_err(|why| format!("a read was not taken: {why:?}"))?);
        Ok(())
    }

    /// The next request to the site, if one may leave now.
    pub(crate) fn next_request(&mut self, now: Time) -> Option<Request> {
        self.sessions.next_request(now)
    }

    /// Takes a response in. Returns the calls that it ends.
    ///
    /// # Errors
    ///
    /// The site does not do what it is asked, where nothing fails.
    pub(crate) fn receive(&mut self, response: Response, now: Time) -> Result<Vec<Ended>, String> {
        // Nobody waits to be woken: the calls are polled below.
        let mut wakers = Vec::new();
        match response {
            Response::Opened { incarnation, session, .. } => self.sessions.opened(incarnation, session),
            Response::Batch { session, answers } => {
                self.sessions.answers(session, answers, now, &mut wakers);
            }
            Response::Read(reading) => self.sessions.found(reading, &mut wakers),
            other => return Err(format!("an answer to nothing: {other:?}")),
        }

        let mut ended = Vec::new();
        let (sessions, mut failure) = (&mut self.sessions, None);
        self.calls.retain(|&(key, submitted)| {
            let Some(finished) = sessions.poll(key, Waker::noop(), || false) else { return true };
            match finished.reply {
                Reply::Answered(outcome) => ended.push(Ended { submitted, outcome }),
                other => failure = Some(format!("a call was not answered: {other:?}")),
            }
            false
        });
        failure.map_or(Ok(ended), Err)
    }

    /// Fetches the result of the read, if it has ended.
    ///
    /// # Errors
    ///
    /// It was not answered.
    pub(crate) fn found(&mut self) -> Result<Option<Box<Reading>>, String> {
        let Some(result) = self.reading.and_then(|token| self.sessions.poll_read(token, Waker::noop())) else {
            return Ok(None);
        };
        // The sessions forget a token whose result was fetched.
        self.reading = None;
        result.map(Some).map_err(|why| format!("a read was not answered: {why:?}"))
    }
}
