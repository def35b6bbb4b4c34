//! When a site does something about the round among a subset that it is in.
//!
//! | the site is | after | it |
//! | --- | --- | --- |
//! | electing, another site has reported | a grace for the rest, or when the owner says that the offers suffice | builds the value |
//! | electing alone | three graces | withdraws |
//! | collecting votes | twice the round trip, then ever more slowly | asks again, and says who is known to be dead by now |
//! | in another site's round, without a vote | a patience and a random delay | leaves, and serves from all that it has |
//! | the same, with a vote | the same | recovers the round |
//!
//! No time here is needed for safety.

use super::super::amount::Amount;
use super::super::leader::Moment;
use super::role::Role;
use super::rounds::Subset;
use crate::clock::{MILLISECOND, SECOND};
use crate::stats::Rng;

/// The time of what is not to happen.
const NEVER: u64 = u64::MAX;
/// The longest pause between two questions for votes, in microseconds.
const LONGEST: u64 = 2 * SECOND;

/// The times of a site's round among a subset. Volatile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// When to do something; [`NEVER`] if it is in no round.
    at: u64,
    /// When the present phase began.
    since: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { at: NEVER, since: 0 }
    }
}

impl Pace {
    /// When something is next to be done, in monotonic microseconds; `u64::MAX` for never.
    pub fn deadline(&self) -> u64 {
        self.at
    }

    /// The site has asked for reports.
    pub fn elect(&mut self, moment: Moment) {
        self.wait(moment.now, moment.grace());
    }

    /// It has asked for votes.
    pub fn collect(&mut self, moment: Moment) {
        self.wait(moment.now, 2 * moment.round_trip);
    }

    /// Its leader has shown a sign of life: it is given its time from now on.
    pub fn follow(&mut self, moment: Moment, rng: &mut Rng) {
        let patience = 4 * moment.round_trip + 200 * MILLISECOND;
        self.wait(moment.now, patience + rng.below(patience));
    }

    /// It was in a round when it stopped: the others may wait for nothing but this site.
    pub fn resume(&mut self, moment: Moment, rng: &mut Rng) {
        self.wait(moment.now, moment.round_trip + rng.below(SECOND / 4));
    }

    /// It is in no round.
    pub fn rest(&mut self) {
        self.at = NEVER;
    }

    /// Does what is due now that the time of the present phase is over.
    pub fn tick<A: Amount>(&mut self, moment: Moment, subset: &mut Subset<A>) {
        let Moment { now, round_trip } = moment;
        self.at = NEVER;
        match subset.avantan.role_in_subset() {
            Role::Electing { .. } => {
                let last = self.since + 3 * moment.grace();
                if subset.build() {
                    return self.collect(moment);
                }

                // Whoever was asked sets what it offers aside until it hears: a round that gets nowhere is not led for long.
                if now < last {
                    subset.repeat();
                    self.at = last.min(now + moment.grace());
                } else {
                    subset.withdraw();
                }
            }
            Role::Collecting { .. } => {
                // A value that is out is never given up, as a member may have applied it. The pauses grow with the time that it takes.
                let waited = now.saturating_sub(self.since);
                subset.repeat();
                self.at = now + waited.min(LONGEST).max(2 * round_trip);
            }
            // Its leader says nothing, or this site was started with it.
            Role::Idle => match subset.avantan.share.part().map(|part| part.accepted.is_some()) {
                Some(true) => {
                    subset.recover();
                    self.collect(moment);
                }
                Some(false) => subset.withdraw(),
                None => {}
            },
        }
    }

    fn wait(&mut self, now: u64, patience: u64) {
        (self.since, self.at) = (now, now + patience);
    }
}
