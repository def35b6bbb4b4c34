//! Running a program again: what the run before has read is read ahead, at once and from its homes, and the program asks for its turn
//! where others want the same objects.

use std::collections::BTreeMap;
use std::time::Duration;

use slackline_core::draft::Draft;
use slackline_core::draft::again::Footprint;
use slackline_core::id::SiteId;
use slackline_core::object::{ObjectKey, Origin, Seen, Span};

use super::failure::{Failure, OUTAGE};
use crate::port::Port;
use crate::time::{Time, jittered};
use crate::topology::OBJECTS_LANE;

/// The first pause before a transaction is run again, and the longest; each is twice the one before, less up to half of it by
/// chance.
const PAUSES: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(500));

/// A program, whichever run of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    /// Tells it from other programs, at every site. Never 0.
    pub(super) nonce: u64,
    /// Since when it counts as waiting for its turn.
    pub(super) since: Time,
}

impl Program {
    /// What sites are told of it.
    pub(super) fn origin(self, now: Time) -> Origin {
        let age = now.saturating_duration_since(self.since).as_micros();
        Origin { nonce: self.nonce, age: u64::try_from(age).unwrap_or(u64::MAX) }
    }
}

/// The objects of a span, by name.
type Rows = Vec<(String, Seen)>;

/// What was read ahead of the program, and it has not asked for yet. What it never asks for is not validated.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Objects, by key.
    pub(super) gets: BTreeMap<ObjectKey, Seen>,
    /// Spans, each with its region and what it holds.
    pub(super) scans: Vec<(u16, Span, Rows)>,
}

impl Ahead {
    pub(super) fn scan(&mut self, home: u16, span: &Span) -> Option<Rows> {
        let found = self.scans.iter().position(|(region, other, _)| (*region, other) == (home, span))?;
        Some(self.scans.swap_remove(found).2)
    }
}

/// The course of a program over its runs: what one leaves to the next. No value that a run has read or computed is here, so that none
/// gets from one run into another.
#[derive(Debug)]
pub(super) struct Course {
    /// As old as the run under way, until others were in the way so often that it keeps its age.
    pub(super) program: Program,
    /// The number of runs that have begun.
    pub(super) runs: u32,
    /// The number of runs that others were in the way of.
    pub(super) contended: u32,
    /// The names of what the last run read and wanted to write, if others were in its way; taken by the next.
    before: Option<Footprint>,
    /// The pause before the next run, before chance shortens it.
    pause: Duration,
    /// The sites at which runs failed because of the site, since there was no other.
    avoid: Vec<SiteId>,
    /// Why the last run came to nothing.
    last: Option<Failure>,
    /// Since when homes have not answered, run after run; none if the last run failed for another reason.
    outage: Option<Time>,
}

/// A run as it begins.
#[derive(Debug)]
pub(super) struct Begun {
    /// The site against which it runs: all that it reads comes from there.
    pub(super) site: SiteId,
    /// When it began.
    pub(super) at: Time,
    /// The names of what the run before it read and wanted to write, if others were in the way of that one.
    pub(super) before: Option<Footprint>,
}

impl Course {
    /// A program that has not been run.
    pub(super) fn new(port: &dyn Port) -> Self {
        Self {
            program: Program { nonce: port.random() | 1, since: port.now() },
            runs: 0,
            contended: 0,
            before: None,
            pause: PAUSES.0,
            avoid: Vec::new(),
            last: None,
            outage: None,
        }
    }

    /// Begins another run, in this region if one is given.
    pub(super) fn begin(&mut self, port: &dyn Port, region: Option<u16>) -> Begun {
        self.runs += 1;
        let (site, at) = (self.choose(port, region), port.now());

        // A program that has read goes before one that reads later. Only one that this does not help gets older than its run is.
        let before = self.before.take();
        if !before.as_ref().is_some_and(|footprint| footprint.keeps_age(self.contended)) {
            self.program.since = at;
        }
        Begun { site, at, before }
    }

    /// The site for a run: the nearest of those that can be reached, one that says nothing last. Those to avoid have just failed; if there
    /// is no other, they are forgotten.
    fn choose(&mut self, port: &dyn Port, region: Option<u16>) -> SiteId {
        let is_there = |site: SiteId| region.is_none_or(|region| region == site.region);
        let links = || port.links(OBJECTS_LANE).iter().filter(|link| is_there(link.site));
        let found = links().filter(|link| link.is_usable() && !self.avoid.contains(&link.site));
        let found = found.min_by_key(|link| link.is_silent());
        if found.is_none() {
            self.avoid.clear();
        }
        let found = found.or_else(|| links().find(|link| link.is_usable())).or_else(|| links().next());
        found.expect("a lane has a site in each region").site
    }

    /// Why a transaction is refused whose deadline passed while its program ran.
    pub(super) fn interrupted(self, run: &Begun, failure: Failure, now: Time) -> Failure {
        failure.or_before(self.last, now - run.at)
    }

    /// A run came to nothing. Returns until when to rest before the next one, or why there is none.
    pub(super) fn rest(
        &mut self,
        port: &dyn Port,
        run: &Begun,
        failure: Failure,
        draft: &Draft,
        deadline: Time,
    ) -> Result<Time, Failure> {
        if failure.is_of_the_site {
            self.avoid.push(run.site);
        }

        // Only names go on to the next run. What the functions of this one gave rests on reads that were not validated, and is dropped
        // with its draft.
        let footprint = failure.is_contention().then(|| Footprint::of(draft));
        self.before = footprint.filter(|footprint| !footprint.is_empty());

        // It waits for its turn at the homes. To wait here, too, would be to lose it. But what computes calls again is judged several
        // times in a run, and would lose its turn at the first: that one waits here.
        if self.before.is_some() && !draft.is_treating() {
            self.contended += 1;
            self.pause = PAUSES.0;
        }

        let (now, rest) = (port.now(), jittered(self.pause, port.random()));
        let failure = failure.or_before(self.last.take(), now - run.at);
        self.outage = failure.is_outage().then(|| self.outage.unwrap_or(now));
        let is_brief = self.outage.is_some_and(|since| now < since + OUTAGE);
        if !(failure.is_transient || is_brief) || now + rest >= deadline {
            return Err(failure);
        }
        self.last = Some(failure);
        self.pause = (self.pause * 2).min(PAUSES.1);
        Ok(now + rest)
    }
}
