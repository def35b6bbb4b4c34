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

/// Objects and spans that are to be read together.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Objects.
    pub gets: Vec<ObjectKey>,
    /// Spans, with their home regions.
    pub scans: Vec<(u16, Span)>,
    /// True if copies are good enough only where they are known to be up to date.
    pub fresh: bool,
    /// True if this is not to count as a use of what is read.
    pub upkeep: bool,
    /// The program for which it is, if that wants its turn; see [`Claim`].
    pub claim: Option<Claim>,
}

/// The end of a read: with what it found, or why nothing came.
pub type Result = std::result::Result<Box<Reading>, NotTaken>;

/// The reads under way at one site; see the module.
#[derive(Debug, Default)]
pub struct Reads {
    /// The last token that was given. Each read has its own, so that a late answer finds no other read.
    tokens: u64,
    /// Each read until its caller has fetched the result or gone away; at most [`READS`].
    waiting: BTreeMap<u64, Waiting>,
    /// The tokens of reads that have not left, in their order. Some may be gone or have ended by the time they come first.
    queue: VecDeque<u64>,
    /// When the site was heard last.
    heard: Time,
}

/// What a look at the reads whose time may be up has found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swept {
    /// When to look again; none if no read waits.
    pub next: Option<Time>,
    /// True if the site has some read that it has not answered.
    pub is_out: bool,
    /// True if a read has just ended without an answer, and nothing else was heard of the site in the last half of its time.
    pub is_unheard: bool,
}

#[derive(Debug)]
struct Waiting {
    /// None once it has left.
    wanted: Option<Wanted>,
    /// When it left; zero before.
    left: Time,
    /// The time after which its caller is told that nothing came.
    deadline: Time,
    /// Wakes its caller; none once it has been woken.
    waker: Option<Waker>,
    /// None until it has ended; the caller fetches it once.
    result: Option<Result>,
}

impl Reads {
    /// Takes a read in. Its caller polls it with the token until it has the result, or drops it.
    pub fn submit(&mut self, wanted: Wanted, deadline: Time) -> std::result::Result<u64, NotTaken> {
        if self.waiting.len() >= READS {
            return Err(NotTaken::Overloaded);
        }
        self.tokens += 1;
        self.waiting.insert(
            self.tokens,
            Waiting { wanted: Some(wanted), left: Time::default(), deadline, waker: None, result: None },
        );
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

    /// The caller goes away. What has left has no effect, so its answer is thrown away when it comes.
    pub fn abandon(&mut self, token: u64) {
        self.waiting.remove(&token);
    }

    /// The site has said something.
    pub fn heard(&mut self, now: Time) {
        self.heard = now;
    }

    /// True if none is under way.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if one has not left.
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The next one to leave.
    pub fn next_request(&mut self, now: Time, round_trip: std::time::Duration) -> Option<Request> {
        loop {
            let token = self.queue.pop_front()?;

            // Its caller went away, or was told that its deadline passed.
            let Some(waiting) = self.waiting.get_mut(&token).filter(|waiting| waiting.result.is_none()) else {
                continue;
            };
            let Wanted { gets, scans, fresh, upkeep, claim } = waiting.wanted.take().expect("it leaves once");
            waiting.left = now;
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

    /// Ends those whose deadline has passed.
    pub fn sweep(&mut self, now: Time, wakers: &mut Vec<Waker>) -> Swept {
        let waiting = self.waiting.iter().filter(|(_, waiting)| waiting.result.is_none());
        let (over, left): (Vec<_>, Vec<_>) =
            waiting.map(|(token, waiting)| (*token, waiting)).partition(|(_, waiting)| waiting.deadline <= now);
        let has_left = |waiting: &&Waiting| waiting.wanted.is_none();
        let is_unheard = |waiting: &&Waiting| {
            let since = self.heard.max(waiting.left);
            has_left(waiting) && 2 * now.saturating_duration_since(since) >= now.saturating_duration_since(waiting.left)
        };
        let swept = Swept {
            next: left.iter().map(|(_, waiting)| waiting.deadline).min(),
            is_out: left.iter().any(|(_, waiting)| has_left(waiting)),
            is_unheard: over.iter().any(|(_, waiting)| is_unheard(waiting)),
        };

        // A site that was asked did not answer; one that was never asked could not be reached.
        let why = |has_left| if has_left { NotTaken::DeadlinePassed } else { NotTaken::Unreachable };
        let over: Vec<_> = over.into_iter().map(|(token, waiting)| (token, why(waiting.wanted.is_none()))).collect();
        over.into_iter().for_each(|(token, why)| self.finish(token, Err(why), wakers));
        swept
    }

    /// Asserts what always holds between the fields.
    pub fn check(&self) {
        assert!(self.waiting.len() <= READS, "{} reads are under way", self.waiting.len());
        let queued = |token| self.queue.iter().filter(|queued| *queued == token).count();
        for (token, waiting) in &self.waiting {
            assert!(*token <= self.tokens, "a token that was not given: {token}");
            let will_leave = waiting.wanted.is_some() && waiting.result.is_none();
            assert!(!will_leave || queued(token) == 1, "a read that has not left is in the queue once: {waiting:?}");
        }
    }

    fn finish(&mut self, token: u64, result: Result, wakers: &mut Vec<Waker>) {
        // Whoever asked may have gone, or was told that its deadline passed.
        if let Some(waiting) = self.waiting.get_mut(&token).filter(|waiting| waiting.result.is_none()) {
            waiting.result = Some(result);
            wakers.extend(waiting.waker.take());
        }
    }
}
