//! When a site leads a round, how long it waits in each phase of it, and when it tries again. Why it leads, and what the outcome
//! means for whoever waits for it, is the owner's to say: for quotas see [`crate::quota`].
//!
//! | the site is | after | it |
//! | --- | --- | --- |
//! | electing, a majority has promised | a grace for the rest, or when the owner says that the offers suffice | builds the value |
//! | electing without a majority | three graces | withdraws, and tries again later |
//! | collecting votes | twice the round trip, then ever more slowly | asks again |
//! | the same, and outbid | eight round trips | leads a higher ballot |
//! | in another leader's round, no outcome | a patience and a random delay | leads a higher ballot, if a majority is up |
//! | the same, and no majority is up | a growing pause | looks again |
//! | told of a new incarnation that no round has recorded | a random delay | leads a round in which nothing moves |
//! | the same, and no majority is up | a growing pause | looks again |
//!
//! No time here is needed for safety. A leader that waits for too short a time is outbid or in vain; one that waits for too long
//! is slow.

use super::agreement::{Avantan, Intent, Offer, Role, Step};
use super::amount::Amount;
use super::clearance::Clearance;
use super::member::{Membership, Sight};
use crate::clock::{MILLISECOND, SECOND};
use crate::id::SiteSet;
use crate::stats::Rng;

/// The time of what is not to happen.
const NEVER: u64 = u64::MAX;
/// The time for which votes are collected for a ballot that was outbid, in round trips.
const PATIENCE: u64 = 8;
/// The longest pause between rounds that failed, in microseconds.
const BACK_OFF: u64 = 2 * SECOND;
/// The number of times that the pause of a second before new incarnations are recorded is doubled.
const RECORDINGS: u32 = 4;

/// The time of a step.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The monotonic time, in microseconds.
    pub now: u64,
    /// The longest round trip to a member that is up, in microseconds; not zero.
    pub round_trip: u64,
}

impl Moment {
    /// Returns the time for which a leader waits for reports once it may have a majority, in microseconds.
    pub(super) fn grace(self) -> u64 {
        self.round_trip * 5 / 4 + 20 * MILLISECOND
    }
}

/// The phase of the round that a site leads, if it leads one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It leads none.
    Idle,
    /// It asks for reports.
    Electing {
        /// True if the round is only to record new incarnations.
        records: bool,
    },
    /// It asks for votes.
    Collecting,
}

impl Phase {
    /// The phase in which an agreement is.
    pub fn of<A: Amount>(avantan: &Avantan<A>) -> Self {
        match avantan.role() {
            Role::Idle => Self::Idle,
            Role::Electing { intent, .. } => Self::Electing { records: matches!(intent, Intent::Record) },
            Role::Collecting { .. } => Self::Collecting,
        }
    }

    /// What a step of the agreement came to that began in this phase.
    pub fn progress<A: Amount>(self, avantan: &Avantan<A>, step: &Step<A>) -> Progress {
        match (self, Self::of(avantan)) {
            _ if step.adopted => Progress::Decided,
            (Self::Idle | Self::Electing { .. }, Self::Collecting) => Progress::Proposed,
            (Self::Electing { records }, Self::Idle) => Progress::Failed { records },
            _ => Progress::Nothing,
        }
    }
}

/// What a step of the agreement came to, for those who wait for a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing that they would have to know.
    Nothing,
    /// The site's value is out: only its outcome ends the round now.
    Proposed,
    /// An instance was decided and applied.
    Decided,
    /// The site's election came to nothing.
    Failed {
        /// True if it was only to record new incarnations: that says nothing of what others may hope for.
        records: bool,
    },
}

/// What comes of a phase whose time is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// The step is taken; its effects are the owner's to carry out.
    Stepped,
    /// A value that is out may never be brought to an end by anybody else: a higher ballot is to be led.
    Finish,
    /// Nothing is under way: a round is to be led if somebody waits for one.
    Idle,
}

/// The times by which a site leads rounds of one entity. Volatile: a restart begins without a past.
#[derive(Debug)]
pub struct Leader {
    /// When to do something about the round that is under way, or to look whether one is wanted; [`NEVER`] if no event but
    /// a message can make that necessary.
    phase_at: u64,
    /// When the present phase of the round began.
    phase_since: u64,
    /// No round for an amount is started before.
    retry_at: u64,
    /// No round at all is started before: elections failed. That others were in vain says nothing of one that asks for no amount.
    failed_until: u64,
    /// The rounds that failed or ended in vain in a row; halved by each that left nobody waiting.
    failures: u32,
    /// The members that did not answer the last election that came to nothing; empty once an instance is decided.
    unanswered: SiteSet,
    /// When to record new incarnations of members; [`NEVER`] if all that are known are recorded.
    record_at: u64,
    /// The number of times that this was tried, or put off, since all were recorded.
    recordings: u32,
    /// The answers of the others about votes of this site's predecessors.
    pub clearance: Clearance,
}

impl Leader {
    /// A leader of an entity in which nothing is under way.
    pub fn new(now: u64) -> Self {
        Self {
            phase_at: NEVER,
            phase_since: now,
            retry_at: 0,
            failed_until: 0,
            failures: 0,
            unanswered: SiteSet::default(),
            record_at: NEVER,
            recordings: 0,
            clearance: Clearance::default(),
        }
    }

    /// When something is next to be done, in monotonic microseconds; `u64::MAX` for never.
    pub fn deadline(&self) -> u64 {
        self.phase_at.min(self.record_at)
    }

    /// True if the present phase has an end.
    pub fn waits(&self) -> bool {
        self.phase_at != NEVER
    }

    /// True if the time of the present phase is over.
    pub fn is_phase_over(&self, now: u64) -> bool {
        self.phase_at <= now
    }

    /// True if new incarnations are to be recorded now.
    pub fn is_recording_due(&self, now: u64) -> bool {
        self.record_at <= now
    }

    /// True if new incarnations are to be recorded, now or later.
    pub fn records(&self) -> bool {
        self.record_at != NEVER
    }

    /// True if a round may be started: the last ones did not fail so lately that it would be in vain again.
    pub fn may_start(&self, now: u64) -> bool {
        now >= self.retry_at
    }

    /// True if a round may be started that asks for no amount.
    pub fn may_change(&self, now: u64) -> bool {
        now >= self.failed_until
    }

    /// The number of rounds that failed or ended in vain in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// True if the last election came to nothing because members did not answer, and none was decided since.
    pub fn lacks_answers(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// The members that a round cannot reach: those that are down; those that did not answer the last election, if that came to
    /// nothing, and have not answered the one under way. That one alone says nothing: it may have begun just now.
    pub fn unreachable<A: Amount>(&self, avantan: &Avantan<A>, site: Membership, sight: impl Sight) -> SiteSet {
        let silent = self.silent(avantan, site, &sight);
        let is_meant = |position: &usize| !self.unanswered.is_empty() || sight(*position).is_none();
        let mut unreachable = SiteSet::default();
        silent.positions().filter(is_meant).for_each(|position| unreachable.insert(position));
        unreachable
    }

    /// The members that have not answered the election under way; or else those that did not answer the last one, if that came to
    /// nothing, and those that are down.
    fn silent<A: Amount>(&self, avantan: &Avantan<A>, site: Membership, sight: impl Sight) -> SiteSet {
        let reports = match avantan.role() {
            Role::Electing { reports, .. } => Some(reports),
            _ => None,
        };
        let mut missing = if reports.is_none() && self.failures > 0 { self.unanswered } else { SiteSet::default() };
        let others = site.members.iter().enumerate().filter(|(_, member)| **member != site.me);
        for (position, member) in others.filter(|(_, member)| site.is_present(**member)) {
            let answered = match reports {
                Some(reports) => reports.iter().any(|report| report.line.site == *member),
                None => sight(position).is_some(),
            };
            if !answered {
                missing.insert(position);
            }
        }

        missing
    }

    /// Leads a round, or a higher ballot of the one that the site is in. The site may vote.
    pub fn lead<A: Amount>(
        &mut self,
        moment: Moment,
        avantan: &mut Avantan<A>,
        site: Membership,
        (intent, offer): (Intent<A>, Offer<A>),
        step: &mut Step<A>,
    ) {
        avantan.start(site, intent, offer, step);
        self.wait(moment.now, moment.grace());
    }

    /// Does what is due now that the time of the present phase is over.
    pub fn tick<A: Amount>(
        &mut self,
        moment: Moment,
        rng: &mut Rng,
        avantan: &mut Avantan<A>,
        site: Membership,
        sight: impl Sight,
        step: &mut Step<A>,
    ) -> Due {
        let Moment { now, round_trip } = moment;
        self.phase_at = NEVER;
        match avantan.role() {
            Role::Electing { .. } => {
                let last = self.phase_since + 3 * moment.grace();
                if avantan.build(site, step) {
                    // Built, or withdrawn because it came to nothing.
                } else if now < last {
                    avantan.repeat(site, step);
                    self.phase_at = last.min(now + moment.grace());
                } else {
                    // No majority has promised, so nothing was built at this ballot: it may be withdrawn, and what was
                    // reported to it alone is free again.
                    self.unanswered = self.silent(avantan, site, sight);
                    avantan.withdraw(site, step);
                }
                Due::Stepped
            }
            Role::Collecting { .. } => {
                let waited = now.saturating_sub(self.phase_since);

                // A site that bid higher may have given up: nobody else might finish what was begun here.
                if avantan.is_outbid() && waited > PATIENCE * round_trip {
                    return Due::Finish;
                }

                // A value that is out is never given up, as it may be chosen already.
                avantan.repeat(site, step);
                self.phase_at = now + waited.min(2 * SECOND).max(2 * round_trip);
                Due::Stepped
            }
            Role::Idle if !avantan.in_round() => Due::Idle,
            Role::Idle if avantan.share.table.has_majority(site, &sight) => Due::Finish,
            Role::Idle => {
                // Nobody could bring it to an end: an election would only cost writes.
                self.unanswered = self.silent(avantan, site, sight);
                self.failures = self.failures.max(1);
                self.phase_at = now + BACK_OFF + rng.below(BACK_OFF);
                Due::Stepped
            }
        }
    }

    /// A leader has shown a sign of life in whose round this site is: it is given its time from now on.
    pub fn follow(&mut self, moment: Moment, rng: &mut Rng) {
        let patience = 4 * moment.round_trip + 200 * MILLISECOND;
        self.wait(moment.now, patience + rng.below(patience));
    }

    /// Waits until `patience` microseconds from now for what was begun to come to something.
    pub fn wait(&mut self, now: u64, patience: u64) {
        (self.phase_since, self.phase_at) = (now, now + patience);
    }

    /// Looks again at this time, or before.
    pub fn look_at(&mut self, at: u64) {
        self.phase_at = self.phase_at.min(at);
    }

    /// Looks again when a round may be started.
    pub fn look_at_retry(&mut self) {
        self.look_at(self.retry_at);
    }

    /// Looks again when a round may be started that asks for no amount.
    pub fn look_at_change(&mut self) {
        self.look_at(self.failed_until);
    }

    /// News came that make a round worth while: it may be started at once.
    pub fn retry_now(&mut self, now: u64) {
        self.retry_at = self.retry_at.min(now);
        self.look_at(now);
    }

    /// The site may not vote yet: what it wanted to lead waits until it has asked again. Returns when that is.
    pub fn put_off(&mut self, moment: Moment) -> u64 {
        // A round trip that was measured while the clock stood still is no measure of how often to ask.
        self.retry_at = moment.now + moment.round_trip + 50 * MILLISECOND;
        self.failed_until = self.retry_at;
        self.look_at_retry();
        self.retry_at
    }

    /// The site was in a round when it stopped: its leader may wait for nothing but this site.
    pub fn resume(&mut self, moment: Moment, rng: &mut Rng) {
        self.phase_at = moment.now + moment.round_trip + rng.below(SECOND);
    }

    /// Another site's value was taken over from what it told: if nothing comes of it, it is brought to an end from here. Or it
    /// is decided, and that was lost on the way here: one that may not vote asks again, and is told.
    pub fn take_over(&mut self, moment: Moment, rng: &mut Rng) {
        self.look_at(moment.now + 8 * moment.round_trip + rng.below(SECOND));
    }

    /// The site's value is out, and its votes are collected.
    pub fn collect(&mut self, moment: Moment) {
        self.wait(moment.now, 2 * moment.round_trip);
    }

    /// An election came to nothing. A round is tried again after a pause that grows, if one is still `wanted`.
    pub fn fail(&mut self, moment: Moment, rng: &mut Rng, wanted: bool) {
        // The random part keeps two that failed by each other apart.
        let back_off = rng.below(2 * moment.round_trip);
        self.failures += 1;
        self.retry_at = moment.now + ((50 * MILLISECOND) << self.failures.min(6)).min(BACK_OFF) + back_off;
        self.failed_until = self.retry_at;
        self.phase_at = if wanted { self.retry_at } else { NEVER };
    }

    /// An election that was to record incarnations came to nothing. It says nothing of what others may hope for, and has a
    /// back-off of its own.
    pub fn fail_to_record(&mut self) {
        self.phase_at = NEVER;
    }

    /// An instance was decided and applied.
    pub fn decided(&mut self) {
        self.phase_at = NEVER;
        self.failed_until = 0;
        self.unanswered = SiteSet::default();
    }

    /// A decided round did not meet what was asked of it.
    pub fn end_in_vain(&mut self, now: u64) {
        // Long ago is not in a row.
        let in_a_row = now < self.retry_at + BACK_OFF;
        self.failures = if in_a_row { self.failures + 1 } else { 1 };
        self.retry_at = now + ((25 * MILLISECOND) << self.failures.min(7)).min(BACK_OFF);
    }

    /// A decided round left nobody waiting.
    pub fn end_well(&mut self) {
        self.failures /= 2;
    }

    /// A member is new, and no round has recorded it. Several sites hear of it at once, so one of them begins.
    pub fn record_soon(&mut self, moment: Moment, rng: &mut Rng) {
        let delay = rng.below(2 * moment.round_trip);

        // What was tried and put off before keeps its back-off, however often the new one is heard of.
        if !self.records() {
            self.record_at = moment.now + delay;
        }
    }

    /// What a client asks for waits until new incarnations are recorded: that is tried by `at`, whatever came of it before.
    pub fn record_by(&mut self, at: u64) {
        self.record_at = self.record_at.min(at);
    }

    /// A round that records new incarnations is tried now, or put off; or none `is_wanted` any more. One that does not get
    /// through costs each site two writes, and a site may have very many entities: so it is tried again ever later, whatever
    /// comes of it.
    pub fn record_again(&mut self, now: u64, rng: &mut Rng, is_wanted: bool) {
        let pause = rng.below(SECOND);
        if !is_wanted {
            return self.all_recorded();
        }
        self.record_at = now + (SECOND << self.recordings.min(RECORDINGS)) + pause;
        self.recordings += 1;
    }

    /// A round was decided, which records every incarnation that reported to it in time. If one `is_left`, it is not recorded
    /// at once again.
    pub fn note_recorded(&mut self, now: u64, rng: &mut Rng, is_left: bool) {
        let delay = SECOND + rng.below(SECOND);
        if !is_left {
            self.all_recorded();
        } else if !self.records() {
            self.record_at = now + delay;
        }
    }

    fn all_recorded(&mut self) {
        (self.record_at, self.recordings) = (NEVER, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::avantan::{Message, Share, Table};
    use crate::id::{Incarnation, SiteId};

    /// A round trip between any two sites.
    const ROUND_TRIP: u64 = 40 * MILLISECOND;

    /// One site: an agreement and its leader, and nothing else.
    struct Site {
        avantan: Avantan,
        leader: Leader,
        /// False if it is stopped: it hears nothing, and does nothing.
        is_up: bool,
    }

    /// Three sites that agree by hand: a message arrives when the test says so.
    struct World {
        sites: Vec<Site>,
        members: Vec<SiteId>,
        network: Vec<(usize, usize, Message)>,
        now: u64,
        rng: Rng,
    }

    impl World {
        /// Three sites of which none has heard of the entity.
        fn new() -> Self {
            let site = |_| Site { avantan: Avantan::restore(Share::default()), leader: Leader::new(0), is_up: true };
            Self {
                sites: (0..3).map(site).collect(),
                members: (0..3).map(|at| SiteId::new(at, 0)).collect(),
                network: Vec::new(),
                now: SECOND,
                rng: Rng::new(7),
            }
        }

        /// The same, when the first has created an entity of nine.
        fn created() -> Self {
            let mut world = Self::new();
            world.lead(0, Intent::Create { limit: 9, charter: Default::default() });
            world.deliver_all();
            assert_eq!(world.shares(), [3, 3, 3]);
            world
        }

        fn free(&self, at: usize) -> i64 {
            let site = Membership::first(self.members[at], Incarnation(1), &self.members);
            self.sites[at].avantan.share.free(site)
        }

        fn shares(&self) -> [i64; 3] {
            [0, 1, 2].map(|at: usize| self.sites[at].avantan.share.tokens)
        }

        fn moment(&self) -> Moment {
            Moment { now: self.now, round_trip: ROUND_TRIP }
        }

        fn lead(&mut self, at: usize, intent: Intent) {
            let (moment, mut step) = (self.moment(), Step::default());
            let was = Phase::of(&self.sites[at].avantan);
            let Site { avantan, leader, .. } = &mut self.sites[at];
            let site = Membership::first(self.members[at], Incarnation(1), &self.members);
            leader.lead(moment, avantan, site, (intent, Offer::default()), &mut step);
            self.conclude(at, was, step);
        }

        /// What an owner does with the effects of a step.
        fn conclude(&mut self, at: usize, was: Phase, step: Step) {
            let moment = self.moment();
            let Site { avantan, leader, .. } = &mut self.sites[at];
            match was.progress(avantan, &step) {
                Progress::Nothing => {}
                Progress::Proposed => leader.collect(moment),
                Progress::Decided => leader.decided(),
                Progress::Failed { .. } => leader.fail(moment, &mut self.rng, true),
            }
            let place = |site: SiteId| site.region as usize;
            self.network.extend(step.sends.into_iter().map(|(to, message)| (at, place(to), message)));
        }

        /// Delivers the first message under way from one site to another that is up.
        fn deliver(&mut self, from: usize, to: usize) {
            let first = self.network.iter().position(|(sender, receiver, _)| (*sender, *receiver) == (from, to));
            let (_, _, message) = self.network.remove(first.expect("under way"));
            if !self.sites[to].is_up {
                return;
            }
            let (moment, mut step) = (self.moment(), Step::default());
            let site = Membership::first(self.members[to], Incarnation(1), &self.members);
            let Site { avantan, leader, .. } = &mut self.sites[to];
            let was = Phase::of(avantan);
            avantan.handle(site, self.members[from], message, |_| Offer::default(), &mut step);
            if avantan.follows() {
                leader.follow(moment, &mut self.rng);
            }
            self.conclude(to, was, step);
        }

        fn deliver_all(&mut self) {
            while let Some((from, to, _)) = self.network.first() {
                let (from, to) = (*from, *to);
                self.deliver(from, to);
            }
        }

        /// Lets the time pass until the next phase of a site is over, and does what is due.
        fn tick(&mut self, at: usize) -> Due {
            self.now = self.now.max(self.sites[at].leader.deadline());
            let moment = self.moment();
            let up: Vec<bool> = self.sites.iter().map(|site| site.is_up).collect();
            let sight = |other: usize| up[other].then_some(Incarnation(1));
            let mut step = Step::default();
            let site = Membership::first(self.members[at], Incarnation(1), &self.members);
            let Site { avantan, leader, .. } = &mut self.sites[at];
            let was = Phase::of(avantan);
            assert!(leader.is_phase_over(moment.now));
            let due = leader.tick(moment, &mut self.rng, avantan, site, sight, &mut step);
            self.conclude(at, was, step);
            due
        }

        fn leads(&self, at: usize) -> bool {
            Phase::of(&self.sites[at].avantan) != Phase::Idle
        }

        /// Who did not answer the last election of a site, though all may be up by now.
        fn unreachable(&self, at: usize) -> Vec<usize> {
            let Site { avantan, leader, .. } = &self.sites[at];
            let site = Membership::first(self.members[at], Incarnation(1), &self.members);
            leader.unreachable(avantan, site, |_| Some(Incarnation(1))).positions().collect()
        }
    }

    #[test]
    fn leader_without_a_majority_withdraws_and_tries_again_ever_later() {
        let mut world = World::created();
        (world.sites[1].is_up, world.sites[2].is_up) = (false, false);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            world.lead(0, Intent::Move);
            let began = world.now;
            while world.leads(0) {
                assert_eq!(world.tick(0), Due::Stepped);
                world.deliver_all();
            }
            assert_eq!(world.now - began, 3 * world.moment().grace(), "not before, in case the others are late");
            assert_eq!(world.unreachable(0), [1, 2]);
            assert_eq!(world.free(0), 3, "what was set aside is free again");

            let retry = world.sites[0].leader.deadline();
            assert!(!world.sites[0].leader.may_start(retry - 1) && world.sites[0].leader.may_start(retry));
            pauses.push(retry - world.now);
            world.now = retry;
        }
        assert!(pauses[3] > 2 * pauses[0] && pauses[3] < 2 * BACK_OFF, "{pauses:?}");
    }

    #[test]
    fn leader_that_is_outbid_leads_again_if_the_other_comes_to_nothing() {
        let mut world = World::created();
        world.lead(0, Intent::Move);
        world.deliver(0, 1);
        world.deliver(1, 0);

        // A majority has promised and the grace is over. Before the value reaches anybody, the third site has bid higher, and
        // the second has promised that; then the third stops.
        assert_eq!(world.tick(0), Due::Stepped);
        world.lead(2, Intent::Move);
        world.lead(2, Intent::Move);
        world.network.retain(|(from, to, _)| (*from, *to) == (0, 1) || (*from, *to) == (2, 1));
        world.deliver(2, 1);
        world.deliver(2, 1);
        world.sites[2].is_up = false;
        world.network.retain(|(from, _, _)| *from == 0);
        world.deliver(0, 1);
        world.deliver(1, 0);
        assert!(world.sites[0].avantan.is_outbid());

        // It asks for votes a few times, each of which is refused, and then leads a higher ballot.
        let began = world.now;
        let mut repeats = 0;
        while world.tick(0) != Due::Finish {
            world.deliver_all();
            repeats += 1;
        }
        assert!(repeats > 1 && world.now - began > (PATIENCE - 2) * ROUND_TRIP, "after {repeats} repeats");
        world.lead(0, Intent::Move);
        world.deliver_all();
        while world.leads(0) {
            world.tick(0);
            world.deliver_all();
        }
        assert_eq!((world.sites[0].avantan.share.applied, world.sites[1].avantan.share.applied), (2, 2));
        assert_eq!(world.shares().iter().sum::<i64>(), 9);
    }

    #[test]
    fn site_finishes_the_round_of_a_leader_that_is_silent_once_a_majority_is_up() {
        let mut world = World::created();
        world.lead(0, Intent::Move);
        world.deliver(0, 1);
        world.sites[0].is_up = false;
        world.network.clear();
        assert!(world.sites[1].avantan.in_round());
        assert_eq!(world.free(1), 0, "no time-out frees what was offered");

        // Alone it could not bring it to an end.
        world.sites[2].is_up = false;
        for _ in 0..3 {
            let before = world.now;
            assert_eq!(world.tick(1), Due::Stepped);
            let pause = world.sites[1].leader.deadline() - world.now;
            assert!(world.now > before && (BACK_OFF..2 * BACK_OFF).contains(&pause));
            assert!(world.network.is_empty(), "an election would only cost writes");
        }
        assert_eq!(world.unreachable(1), [0, 2]);

        world.sites[2].is_up = true;
        assert_eq!(world.tick(1), Due::Finish);
        world.lead(1, Intent::Move);
        world.deliver_all();
        while world.leads(1) {
            world.tick(1);
            world.deliver_all();
        }
        assert_eq!(world.free(1), world.shares()[1]);
        assert_eq!(world.shares().iter().sum::<i64>(), 9);
    }

    #[test]
    fn new_incarnation_counts_for_a_majority_only_if_it_is_recorded_or_may_be_cleared() {
        let members = [0, 1, 2].map(|at| SiteId::new(at, 0));
        let table = Table::from_parts(1, 1, Some(9i64), Vec::new());
        let has_majority = |own: u32, seen: [Option<u32>; 2]| {
            let site = Membership::first(members[0], Incarnation(own), &members);
            table.has_majority(site, |position| seen[position - 1].map(Incarnation))
        };

        assert!(!has_majority(1, [None, None]), "alone");
        assert!(has_majority(1, [Some(1), None]));
        assert!(!has_majority(1, [None, Some(2)]), "one that is down may not be asked to clear the new one");
        assert!(has_majority(1, [Some(1), Some(2)]));
        assert!(
            has_majority(1, [Some(2), Some(2)]),
            "all are up: each may have told them that none of their votes counts"
        );
        assert!(has_majority(2, [None, Some(1)]), "a new one knows whether it is cleared, and leads only if it is");
    }

    #[test]
    fn recording_that_is_put_off_keeps_its_back_off_however_often_a_new_one_is_heard_of() {
        let (mut leader, mut rng) = (Leader::new(0), Rng::new(3));
        let moment = |now| Moment { now, round_trip: ROUND_TRIP };
        leader.record_soon(moment(0), &mut rng);
        assert!(leader.records() && leader.deadline() < 2 * ROUND_TRIP);
        let mut last = 0;
        for try_number in 0..8 {
            let now = leader.deadline();
            assert!(leader.is_recording_due(now));
            leader.record_again(now, &mut rng, true);
            leader.record_soon(moment(now), &mut rng);
            let pause = leader.deadline() - now;
            assert!(pause >= SECOND << try_number.min(RECORDINGS), "{pause} after {last}");
            assert!(pause < (SECOND << RECORDINGS) + SECOND);
            last = pause;
        }
        leader.note_recorded(leader.deadline(), &mut rng, false);
        assert!(!leader.records());
    }

    /// Who has tokens to ask for waits after rounds in vain; who has none, after failed elections alone.
    #[test]
    fn change_is_put_off_by_failed_elections_until_a_round_is_decided_and_never_by_rounds_in_vain() {
        let (mut leader, mut rng) = (Leader::new(0), Rng::new(3));
        leader.end_in_vain(SECOND);
        assert!(leader.may_change(SECOND) && !leader.may_start(SECOND));

        let moment = Moment { now: 9 * SECOND, round_trip: ROUND_TRIP };
        leader.fail(moment, &mut rng, false);
        leader.retry_now(moment.now);
        assert!(leader.may_start(moment.now) && !leader.may_change(moment.now));
        leader.wait(moment.now, NEVER - moment.now);
        leader.look_at_change();
        assert!(leader.deadline() > moment.now && leader.may_change(leader.deadline()), "it is not looked at in vain");

        leader.decided();
        leader.end_in_vain(moment.now);
        assert!(leader.may_change(moment.now) && !leader.may_start(moment.now));
    }
}
