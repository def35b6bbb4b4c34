//! Reads of objects under way at one site. They have no effect, so they need no session and no id: one whose answer is lost
//! ends, and whoever wanted it may read elsewhere. They travel on the site's stream beside the batches, each as it comes,
//! and are told apart by their tokens.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use slackline_core::api::{Claim, Read, Reading, Request};
use slackline_core::object::{ObjectKey, Span};

use crate::command::NotTaken;
use crate::time::{Time, time_at_the_site};

/// The most reads under way at one site; more are refused as overloaded.
pub const READS: usize = 16_384;

/// What is to be read.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Objects.
    pub gets: Vec<ObjectKey>,
    /// Spans, with their home regions.
    pub scans: Vec<(u16, Span)>,
    /// Whether copies are good enough only where they are known to be up to date.
    pub fresh: bool,
    /// Whether this is not to count as a use of what is read.
    pub upkeep: bool,
    /// The program for which it is, if that wants its turn; see [`Claim`].
    pub claim: Option<Claim>,
}

/// What came of a read.
pub type Result = std::result::Result<Box<Reading>, NotTaken>;

/// See the module.
#[derive(Debug, Default)]
pub struct Reads {
    tokens: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Those that have not left.
    queue: VecDeque<u64>,
}

#[derive(Debug)]
struct Waiting {
    /// Gone when it has left.
    wanted: Option<Wanted>,
    deadline: Time,
    waker: Option<Waker>,
    result: Option<Result>,
}

impl Reads {
    /// Takes a read in. Its caller polls it with the token until it has the result, or drops it.
    pub fn submit(&mut self, wanted: Wanted, deadline: Time) -> std::result::Result<u64, NotTaken> {
        if self.waiting.len() >= READS {
            return Err(NotTaken::Overloaded);
        }
        self.tokens += 1;
        self.waiting.insert(self.tokens, Waiting { wanted: Some(wanted), deadline, waker: None, result: None });
        self.queue.push_back(self.tokens);
        Ok(self.tokens)
    }

    /// Fetches a result, or leaves a waker for it.
    pub fn poll(&mut self, token: u64, waker: &Waker) -> Option<Result> {
        let waiting = self.waiting.get_mut(&token).expect("a caller's token names its read until it is taken");
        match waiting.result.take() {
            Some(result) => {
                self.waiting.remove(&token);
                Some(result)
            }
            None => {
                waiting.waker = Some(waker.clone());
                None
            }
        }
    }

    /// The caller goes away.
    pub fn abandon(&mut self, token: u64) {
        self.waiting.remove(&token);
    }

    /// Whether none is under way.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether one has not left.
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The next one to leave.
    pub fn next_request(&mut self, now: Time, round_trip: std::time::Duration) -> Option<Request> {
        loop {
            let token = self.queue.pop_front()?;
            let Some(waiting) = self.waiting.get_mut(&token).filter(|waiting| waiting.result.is_none()) else {
                continue;
            };
            let Wanted { gets, scans, fresh, upkeep, claim } = waiting.wanted.take().expect("it leaves once");
            let timeout = time_at_the_site(waiting.deadline, now, round_trip);
            return Some(Request::Read(Box::new(Read { token, gets, scans, fresh, upkeep, timeout, claim })));
        }
    }

    /// The site answers.
    pub fn answered(&mut self, reading: Box<Reading>, wakers: &mut Vec<Waker>) {
        let token = reading.token;
        self.finish(token, Ok(reading), wakers);
    }

    /// The site cannot be reached, or the client ends: nothing that is under way is answered any more.
    pub fn end(&mut self, why: NotTaken, wakers: &mut Vec<Waker>) {
        self.queue.clear();
        let tokens: Vec<u64> = self.waiting.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.finish(token, Err(why), wakers));
    }

    /// Ends those whose deadline has passed. Returns the next deadline.
    pub fn sweep(&mut self, now: Time, wakers: &mut Vec<Waker>) -> Option<Time> {
        let waiting = self.waiting.iter().filter(|(_, waiting)| waiting.result.is_none());
        let (over, left): (Vec<_>, Vec<_>) =
            waiting.map(|(token, waiting)| (*token, waiting)).partition(|(_, waiting)| waiting.deadline <= now);
        let next = left.into_iter().map(|(_, waiting)| waiting.deadline).min();
        let why = |has_left| if has_left { NotTaken::DeadlinePassed } else { NotTaken::Unreachable };
        let over: Vec<_> = over.into_iter().map(|(token, waiting)| (token, why(waiting.wanted.is_none()))).collect();
        over.into_iter().for_each(|(token, why)| self.finish(token, Err(why), wakers));
        next
    }

    fn finish(&mut self, token: u64, result: Result, wakers: &mut Vec<Waker>) {
        // Whoever asked may have gone, or was told that its deadline passed.
        if let Some(waiting) = self.waiting.get_mut(&token).filter(|waiting| waiting.result.is_none()) {
            waiting.result = Some(result);
            wakers.extend(waiting.waker.take());
        }
    }
}
