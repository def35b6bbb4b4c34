//! The stream to one site: where it leads, what is under way on it, and what the site's silence says.

use std::collections::VecDeque;
use std::time::Duration;

use slackline_core::api::{Batch, Refusal};
use slackline_core::id::SessionId;

use crate::time::Time;

/// The most batches under way at a time; more than one only in a crowd.
pub(super) const FLIGHTS: usize = 3;
/// A batch that has no answer after this long: the connection is as good as dead. For as long a site that has not answered a read comes after
/// others.
pub const STALLED: Duration = Duration::from_secs(10);

/// Where a stream leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leads {
    /// There is none.
    Nowhere,
    /// To the site.
    ToSite,
    /// To another site, which relays. It can carry operations of known sessions, and nothing else.
    ToRelay,
}

/// A batch from when it leaves until its first answer, or the end of the stream.
#[derive(Debug)]
pub(super) struct Flight {
    /// Its session.
    session: SessionId,
    /// When it left.
    since: Time,
    /// The number of its operations.
    operations: usize,
    /// Its lowest and its highest sequence.
    pub(super) sequences: (u64, u64),
}

/// What is known of the stream to one site.
#[derive(Debug)]
pub(super) struct Stream {
    /// Counts the streams, so that one that is over sends nothing more.
    pub(super) number: u64,
    /// Where it leads.
    pub(super) leads: Leads,
    /// The batches that have no answer yet, oldest first; at most [`FLIGHTS`], and none without a stream.
    flights: VecDeque<Flight>,
    /// The time from when a batch leaves to its first answer, smoothed over streams; zero before the first.
    pub(super) round_trip: Duration,
    /// True from when a session is asked for until one is opened, or the pause after a refusal is over. Only with a stream.
    pub(super) opening: bool,
    /// Why the site opened no session when it was last asked; none once it has opened one.
    pub(super) closed_door: Option<Refusal>,
    /// True from when a call's patience has passed, or the time of a read, until anything is heard of the site, or nothing is under way
    /// there by which it could be heard.
    pub(super) silent: bool,
    /// Until when it counts as silent though nothing is under way there, since a read had no answer.
    silent_until: Time,
}

impl Stream {
    pub(super) fn new() -> Self {
        Self {
            number: 0,
            leads: Leads::Nowhere,
            flights: VecDeque::with_capacity(FLIGHTS),
            round_trip: Duration::ZERO,
            opening: false,
            closed_door: None,
            silent: false,
            silent_until: Time::default(),
        }
    }

    /// True if a stream is open, to the site or to one that relays.
    pub(super) fn is_open(&self) -> bool {
        self.leads != Leads::Nowhere
    }

    /// True if another site relays.
    pub(super) fn is_relayed(&self) -> bool {
        self.leads == Leads::ToRelay
    }

    /// A stream begins or ends: nothing is under way on the next one, and no session is being opened.
    pub(super) fn turn(&mut self, leads: Leads) {
        self.leads = leads;
        self.opening = false;
        self.flights.clear();
    }

    /// The site has said something. What a relay says tells nothing of the site.
    pub(super) fn heard(&mut self) {
        self.silent &= self.is_relayed();
    }

    /// The site has not answered a read. For some time others are tried first: what was read elsewhere is to be committed elsewhere.
    pub(super) fn unheard(&mut self, now: Time) {
        (self.silent, self.silent_until) = (true, now + STALLED);
    }

    /// The site is heard again only through what is under way: where nothing is, no read either, it does not count as silent, so that somebody
    /// tries it. Returns when to look at that again.
    pub(super) fn forgive(&mut self, has_reads: bool, now: Time) -> Option<Time> {
        let is_awaited = self.opening || has_reads || !self.flights.is_empty();
        self.silent &= self.leads != Leads::ToSite || is_awaited || now < self.silent_until;
        (self.silent && now < self.silent_until).then_some(self.silent_until)
    }

    /// The number of batches under way.
    pub(super) fn flights(&self) -> usize {
        self.flights.len()
    }

    /// The number of operations in the batches under way.
    pub(super) fn flying(&self) -> usize {
        self.flights.iter().map(|flight| flight.operations).sum()
    }

    /// A batch leaves.
    pub(super) fn take_off(&mut self, batch: &Batch, now: Time) {
        assert!(self.flights.len() < FLIGHTS, "rule 4: a bounded number of batches is under way");
        let sequences = || batch.operations.iter().map(|submission| submission.sequence);
        let sequences = (sequences().min().unwrap_or(0), sequences().max().unwrap_or(0));
        let operations = batch.operations.len();
        self.flights.push_back(Flight { session: batch.session, since: now, operations, sequences });
    }

    /// The site answers a session: its oldest batch under way has arrived, if there is one.
    pub(super) fn land(&mut self, id: SessionId, now: Time) -> Option<Flight> {
        // The first answers of a session since a batch of it left are those to the batch, or come with them.
        let landed = self.flights.iter().position(|flight| flight.session == id)?;
        let flight = self.flights.remove(landed)?;
        let sample = now.saturating_duration_since(flight.since);
        self.round_trip = if self.round_trip.is_zero() { sample } else { (self.round_trip * 7 + sample) / 8 };
        Some(flight)
    }

    /// When the oldest batch under way will have been without an answer for too long.
    pub(super) fn stalls_at(&self) -> Option<Time> {
        self.flights.front().map(|flight| flight.since + STALLED)
    }

    /// Asserts what always holds between the fields.
    pub(super) fn check(&self) {
        assert!(self.flights.len() <= FLIGHTS, "rule 4: {} batches are under way", self.flights.len());
        assert!(self.is_open() || self.flights.is_empty(), "without a stream nothing is under way");
        assert!(self.is_open() || !self.opening, "without a stream no session is being opened");
    }
}
