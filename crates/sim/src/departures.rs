//! A site that leaves for good, at the end of a run: the books were found right, clients are done, and faults strike once more.
//!
//! ```text
//!   lost:     its disk is lost while tokens move ─▶ declared lost, again and again until it is so ─▶ every quota records it ─▶ reclaimed
//!   drained:  told to give its tokens away ─▶ leaves ─▶ every quota records it
//!                                          ╰▶ objects are at home there ─▶ serves again
//! ```
//!
//! Then the audit looks at the sites that are left as it did at all of them before: each must serve, and the whole limit must be there.

use std::rc::Rc;
use std::sync::Arc;

use slackline_core::api::{Hold, NoSeat, Outcome, Readiness, Refusal, SeatChange};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::stats::Rng;
use slackline_session::call::Place;
use slackline_session::command::Command;

use crate::audit::{REST, carry_out};
use crate::faults::CALM;
use crate::invariants::liveness;
use crate::quotas::is_one_of_many;
use crate::state::audit::Step as AuditStep;
use crate::state::departures::{Departure, Step, Way};
use crate::state::faults::Fault;
use crate::state::{Phase, Simulation};
use crate::world::{Keep, World};

/// The time for which faults strike.
const STORM: u64 = 30 * SECOND;
/// The longest time that the change, and what follows it, may take after that.
const LEAVING: u64 = 240 * SECOND;
/// The time between two requests of the operator, at least.
const PAUSE: u64 = SECOND;

impl Simulation {
    /// True if a site has left for good.
    pub(crate) fn is_gone(&self, site: usize) -> bool {
        self.departure.as_ref().is_some_and(|departure| departure.site == site && departure.is_gone)
    }

    /// Notes that a site does not serve because it has left; true if it was to.
    pub(crate) fn note_left(&mut self, site: usize) -> bool {
        let departure = self.departure.as_mut().filter(|departure| departure.site == site && !departure.is_gone);
        // It may know before the operator is answered, or after.
        let is_leaving = |departure: &&mut Departure| matches!(departure.step, Step::Changes | Step::Waits);
        let Some(departure) = departure.filter(is_leaving) else { return false };
        departure.is_gone = true;
        true
    }

    /// The sites that have not left.
    pub(crate) fn present(&self, world: &World) -> Vec<usize> {
        (0..world.len()).filter(|site| !self.is_gone(*site)).collect()
    }

    /// A site begins to leave, unless one has; true if it does.
    pub(crate) fn begin_departure(&mut self, world: &mut World) -> bool {
        if self.departure.is_some() || self.settings.options.faults == 0 {
            return false;
        }
        let mut rng = Rng::new(self.rng.draw());
        let mut site = rng.below(world.len() as u64) as usize;
        // One without objects can leave.
        let is_bare = self.settings.homes < world.len();
        if is_bare {
            site = self.settings.homes + site % (world.len() - self.settings.homes);
        }
        // The first change after a lost disk needs every site, if none was made before.
        let is_recorded = self.oracle.lost.is_empty() || world.node(site).is_some_and(|node| node.roster().number > 0);
        let way = if is_recorded && !is_bare && !rng.one_in(3) { Way::Lost } else { Way::Drained };
        let now = world.now();
        let step = if way == Way::Lost { Step::Changes } else { Step::Drains };
        self.trace(world, format_args!("site {site} leaves: {way:?}"));
        for fault in [Fault::Loss, Fault::Duplication, Fault::Reordering] {
            if rng.one_in(2) {
                self.begin(world, fault, STORM);
            }
        }
        let departure = Departure {
            site,
            way,
            step,
            rng,
            calm_at: now + STORM,
            is_calm: false,
            asks: false,
            next_at: now,
            is_gone: false,
            books: Vec::new(),
        };
        self.departure = Some(departure);
        self.phase = Phase::Departure;

        // What others want of it is under way when it dies.
        self.move_tokens(world);
        if way == Way::Lost {
            let at = self.departing().rng.below(2 * SECOND);
            self.departing().next_at = now + at;
        }
        true
    }

    fn departing(&mut self) -> &mut Departure {
        self.departure.as_mut().expect("a site leaves")
    }

    /// Goes on with it.
    pub(crate) fn go_on_with_departure(&mut self, world: &mut World) {
        let now = world.now();
        let departure = self.departing();
        let (site, way, step) = (departure.site, departure.way, departure.step);
        if now >= departure.calm_at && !departure.is_calm {
            departure.is_calm = true;
            *world.weather() = CALM;
        }
        let is_calm = self.departing().is_calm;
        if now > self.departing().calm_at + LEAVING {
            let what = format!("site {site} leaves, and this does not end: {:?}", self.departure);
            return self.oracle.blame(liveness::NAME, Err(what), format_args!("site {site}"));
        }

        // Once it is time, its machine and its disk are lost.
        if way == Way::Lost && !self.is_gone(site) {
            if now >= self.departing().next_at && world.node(site).is_some() {
                let keep = self.keep();
                self.bury(world, site, keep);
                self.departing().is_gone = true;
                self.probes.hit("members: a site dies for good");
            }
            return;
        }
        if !is_calm {
            self.trouble(world);
        }

        if self.departing().asks {
            let ended = self.callers.ledger.borrow_mut().audited.take();
            let Some(ended) = ended else { return };
            (self.departing().asks, self.departing().next_at) = (false, now + PAUSE);
            self.trace(world, format_args!("of the site that leaves: {step:?} ends as {ended:?}"));
            self.take_answer(world, ended.ok());
            return;
        }
        if now < self.departing().next_at {
            return;
        }
        let (id, from) = (self.settings.members[site], self.anyone(world));
        let seat = |change| Command::Seat { site: id, change, label: "".into() };
        match step {
            Step::Drains => self.asks(world, site, seat(SeatChange::Drains)),
            Step::Serves => self.asks(world, site, seat(SeatChange::Serves)),
            Step::Changes if self.is_gone(site) && way == Way::Drained => self.departing().step = Step::Waits,
            Step::Changes if way == Way::Drained => self.asks(world, site, seat(SeatChange::Leaves)),
            Step::Changes => self.asks(world, from, seat(SeatChange::Lost)),
            Step::Waits => self.wait_for_records(world),
            Step::Reclaims => match self.departing().books.last().copied() {
                Some(book) => match self.true_word(book) {
                    Some((lost, in_use)) if !lost.is_empty() => {
                        let quota = self.oracle.books[book].name.as_str().into();
                        self.asks(world, from, Command::Reclaim { quota, lost, in_use });
                    }
                    _ => drop(self.departing().books.pop()),
                },
                None => self.end_departure(world),
            },
        }
    }

    /// Whoever has left does nothing more: its storage goes with it.
    fn bury(&mut self, world: &mut World, site: usize, keep: Keep) {
        if world.node(site).is_some() {
            self.crash_for(world, site, keep, SECOND);
        }
        self.oracle.lose(site);
        self.lose_counters(site);
        world.lose_disk(site);
    }

    /// What came of a request.
    fn take_answer(&mut self, world: &mut World, outcome: Option<Outcome>) {
        let (site, step) = (self.departing().site, self.departing().step);
        let refused = |why: &[NoSeat]| matches!(outcome, Some(Outcome::Refused(Refusal::NoSeat { why: because, .. })) if why.contains(&because));
        match (step, &outcome) {
            (Step::Drains, Some(Outcome::Seated { .. })) => {
                self.probes.hit("members: a site is drained");
                self.departing().step = Step::Changes;
            }
            (Step::Changes, Some(Outcome::Seated { .. })) => self.departing().step = Step::Waits,
            // What is left there stays: nobody gives back the grants of clients in doubt.
            (Step::Changes, _) if refused(&[NoSeat::HasObjects, NoSeat::HasGrants]) => {
                self.probes.hit("members: a site with something of its own stays");
                self.departing().step = Step::Serves;
            }
            (Step::Serves, Some(Outcome::Seated { .. })) => self.end_departure(world),
            (Step::Reclaims, Some(Outcome::Reclaimed { .. } | Outcome::Refused(Refusal::NothingLost))) => {
                self.departing().books.pop();
            }
            // The sites that lost it had taken back more than they granted: no word brings that back.
            (Step::Reclaims, Some(Outcome::Refused(Refusal::AboveLost { at_most: ..0 }))) => {
                self.departing().books.pop();
            }
            // Refused, or in doubt: the operator asks again.
            _ => {}
        }
        let next = self.departing().step;
        self.trace(world, format_args!("site {site} leaves: {next:?} is next"));
    }

    /// Looks whether every quota of every site that is left has recorded the change.
    fn wait_for_records(&mut self, world: &mut World) {
        let (site, way) = (self.departing().site, self.departing().way);
        // It has led its own removal, and goes down as soon as it knows.
        if !self.is_gone(site) {
            return;
        }
        if way == Way::Drained && self.oracle.incarnation(site).0 > 0 {
            self.bury(world, site, Keep::Nothing);
        }
        let id = self.settings.members[site];
        let knows = |other: &usize| {
            world.node(*other).is_some_and(|node| {
                let gone = node.roster().seats.iter().any(|seat| seat.site == id && seat.gone);
                gone && node.readiness() == Readiness::Ready && node.chapters().quotas.behind() == 0
            })
        };
        if !self.present(world).iter().all(knows) || !self.departing().is_calm || !self.callers.are_done() {
            return;
        }
        match way {
            Way::Lost => {
                let books = &self.oracle.books;
                // Of many alike a few are enough. Of one without bounds more may have come and gone than books can tell of.
                let exists = |book: &usize| {
                    let newest = books[*book].decisions.newest();
                    let is_bounded = |limit: i64| limit < i64::MAX / 2;
                    let exists = newest.is_some_and(|(_, table)| table.limit.is_some_and(is_bounded));
                    let is_taken = book.is_multiple_of(16) || !is_one_of_many(&books[*book].name);
                    exists && is_taken && !books[*book].refills
                };
                self.departing().books = (0..self.oracle.books.len()).filter(exists).collect();
                self.departing().step = Step::Reclaims;
            }
            Way::Drained => {
                self.probes.hit("members: a site leaves");
                self.end_departure(world);
            }
        }
    }

    /// The audit looks at the sites that are left.
    fn end_departure(&mut self, world: &mut World) {
        if self.departing().way == Way::Lost {
            self.probes.hit("members: a site that was lost is reclaimed");
        }
        self.audit.rested.clear();
        (self.audit.idle_since, self.audit.step) = (None, AuditStep::Acquires);
        self.audit.resting_until = world.now() + REST;
        // While a member was down, no name went.
        self.audit.healed_at = world.now();
        self.phase = Phase::Audit;
    }

    /// Some site that is left.
    fn anyone(&mut self, world: &World) -> usize {
        let site = self.departing().site;
        let others: Vec<usize> = (0..world.len()).filter(|other| *other != site).collect();
        others[self.departing().rng.below(others.len() as u64) as usize]
    }

    /// The operator asks for something at a site.
    fn asks(&mut self, world: &mut World, at: usize, command: Command) {
        self.departing().asks = true;
        self.carry_out_at(world, at, command);
    }

    /// A site crashes now and then, while all others are up; tokens move.
    fn trouble(&mut self, world: &mut World) {
        if self.departing().rng.one_in(8) {
            self.move_tokens(world);
        }
        let other = self.anyone(world);
        let are_up = self.present(world).iter().all(|site| world.node(*site).is_some());
        if are_up && self.departing().rng.one_in(24) {
            let down_for = 100 * MILLISECOND + self.departing().rng.below(3 * SECOND);
            let keep = self.keep();
            self.probe_crash(keep);
            self.crash_for(world, other, keep, down_for);
        }
    }

    /// Clients acquire more than a site has, of some quotas, and give it back.
    fn move_tokens(&mut self, world: &mut World) {
        for book in 0..self.oracle.books.len() {
            let Ok(Some((_, sums))) = self.oracle.sums(book) else { continue };
            let amount = i64::try_from(sums.tokens / 2).unwrap_or(0);
            if amount == 0 || !self.departing().rng.one_in(4) {
                continue;
            }
            let at = self.anyone(world);
            let quota = Arc::from(self.oracle.books[book].name.as_str());
            let (seat, ledger) = (self.callers.clients[at].clone(), Rc::clone(&self.callers.ledger));
            let place = Place::Site(self.settings.members[at]);
            let command = Command::Acquire { quota, amount, hold: Hold::Counted, waits: false };
            self.callers.desk.spawn(async move {
                // Whatever comes of it: others may have had them.
                let _ = carry_out(&seat, &ledger, command, place).await;
            });
        }
        self.run_callers(world);
    }
}
