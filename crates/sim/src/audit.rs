//! The cluster at rest is looked at: it must serve everywhere, and its books must be exact. What the audit asks for, it asks for
//! through the product's client: sessions, ids and repetition are not what it is about.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use slackline_core::api::{Hold, Outcome, Refusal, Request, Shown, is_name};
use slackline_core::chapter::Chapter as _;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::OperationId;
use slackline_core::quota::MEMBERS;
use slackline_core::quota::Quota;
use slackline_core::right::POSTPONED;
use slackline_session::call::Place;
use slackline_session::command::Command;

use crate::callers::told;
use crate::invariants::{bounded_work, forgetting, liveness, refill};
use crate::oracle::Book;
use crate::quotas::{METER_REFILL, charter_of, is_one_of_many};
use crate::state::audit::{Current, Step, Task};
use crate::state::callers::{Event, Ledger, Seat};
use crate::state::post::Purpose;
use crate::state::{Phase, Simulation};
use crate::world::World;

/// The longest time that clients may take, after the last fault has ended, to settle what is in doubt and to give back what
/// they hold.
const SETTLING: u64 = 240 * SECOND;
/// The longest time that callers may take after that for the rest of their transactions over treaties.
const HURRYING: u64 = 400 * SECOND;
/// The time that the cluster is left alone before its books are looked at: longer than any hold, and than any gift takes.
pub(crate) const REST: u64 = 140 * SECOND;
/// The longest time that tokens may go on moving after that.
const RESTLESS: u64 = 90 * SECOND;
/// The longest time that a hold may take to come back after its time, with clocks that were wrong for a while: a site looks
/// again within a minute of the time at which it was found not to be over, and one that was granted on a clock ahead ends by so
/// much later.
const LATE: u64 = 2 * POSTPONED + 15 * SECOND;
/// The longest time that one site may take to answer in the audit.
const TASK: u64 = 25 * SECOND;
/// The longest time that the product's client may take for an operation of it.
const DEADLINE: u64 = 20 * SECOND;

/// The number of times that an acquire of all that is free may be refused because gifts are under way, and the time that is
/// waited then.
const PATIENCE: u64 = 5;
const PAUSE: u64 = 3 * SECOND;

/// The longest time that an answer is under way to a caller, at rest.
const UNDER_WAY: u64 = SECOND / 2;
/// The longest time that it takes until the tokens that the rate has brought, at each site a part, are together at one.
const FULL_LATE: u64 = 8 * SECOND;
/// The number of names that do not exist and are created.
const CREATIONS: usize = 6;

impl Simulation {
    /// Returns true if clients take too long.
    pub(crate) fn check_settling(&mut self, world: &World) {
        if self.phase != Phase::Healing {
            return;
        }

        // Only once everything else is done do callers hurry with what is left to them of their transactions over treaties.
        let is_rest_done = self.callers.ledger.borrow().is_over && self.nothing_is_held();
        if is_rest_done && self.audit.hurried_at == 0 {
            self.audit.hurried_at = world.now();
        }
        let hurried = if self.audit.hurried_at > 0 { self.audit.hurried_at + HURRYING } else { 0 };
        if world.now() > hurried.max(self.audit.healed_at + SETTLING) {
            for site in 0..world.len() {
                let readiness = world.node(site).map_or_else(Default::default, |node| node.readiness());
                self.oracle.blame(liveness::NAME, liveness::check_ready(readiness), format_args!("site {site}"));
            }
            let what = format!("clients still wait for: {}", self.clients_wait_for());
            self.oracle.blame(liveness::NAME, Err(what), "all sites");
        }
    }

    /// Clients are done: the cluster is left alone from now on.
    pub(crate) fn begin_audit(&mut self, world: &mut World) {
        self.audit.resting_until = world.now() + REST;
        self.take_over_from_callers(world);
        self.read_pairs(world);
        self.trace(world, format_args!("clients are done"));
    }

    /// Looks whether the present task is done, and begins the next one.
    pub(crate) fn go_on_with_audit(&mut self, world: &mut World) {
        let now = world.now();
        if now < self.audit.resting_until {
            return;
        }
        if self.audit.tasks.is_empty() && self.audit.current.is_none() && !self.go_a_step_on(world) {
            return;
        }

        if let Some(current) = self.audit.current {
            if !self.judge_answer_to_audit(world, current) {
                if now > current.since + TASK {
                    self.blame_silence(current.task);
                }
                return;
            }
            self.audit.current = None;
        }

        let Some(task) = self.audit.tasks.pop() else { return };
        if now >= self.audit.pause_until {
            self.begin_task(world, task);
        } else {
            self.audit.tasks.push(task);
        }
    }

    /// All tasks are done: plans the next ones, when everything is at rest; true if it did.
    fn go_a_step_on(&mut self, world: &mut World) -> bool {
        if self.audit.step == Step::Ends {
            self.judge_the_end(world);
            if self.oracle.violation.is_none() && self.begin_departure(world) {
                return false;
            }
            self.phase = Phase::Over;
            world.stop();
            return false;
        }

        // What moves tokens for longer than that, counted from the last task, does not come to rest at all.
        let idle_since = *self.audit.idle_since.get_or_insert(world.now());
        if !self.note_rest(world) && world.now() < idle_since + RESTLESS {
            return false;
        }
        self.audit.idle_since = None;
        self.look_at_rest(world);

        if self.audit.step == Step::Counts {
            self.plan(world, |book, site| Task::Show { book, site });
            self.audit.step = Step::Ends;
            return true;
        }

        // Nothing of a quota that refills is given back. While a site is gone, its part of the rate is missing.
        self.plan(world, |book, site| Task::Acquire { book, site });
        let (books, are_all_there) = (&self.oracle.books, self.present(world).len() == world.len());
        self.audit.tasks.retain_mut(|task| match *task {
            Task::Acquire { book, site } if books[book].refills => {
                *task = Task::Refill { book, site };
                are_all_there
            }
            _ => true,
        });
        let absent = |&book: &usize| {
            let Book { name, life, .. } = &self.oracle.books[book];
            !self.exists(book)
                && !self.oracle.books[book].refills
                && self.oracle.above(book).is_none_or(|above| self.exists(above))
                && is_name(name)
                && self.oracle.life_in(name, u64::MAX) == *life
        };
        let absent = (0..self.oracle.books.len()).rev().filter(absent).take(CREATIONS);
        let present = self.present(world);
        let creations = absent.map(|book| Task::Create { book, site: present[book % present.len()] });
        let creations: Vec<Task> = creations.collect();
        self.audit.tasks.extend(creations);

        // What that moves comes to rest before the books are looked at once more.
        self.audit.rested.clear();
        self.audit.resting_until = world.now() + REST;
        self.audit.step = Step::Counts;
        true
    }

    /// Nothing is under way any more, and nothing is left of what was.
    fn judge_the_end(&mut self, world: &mut World) {
        self.oracle.conserve_all();
        self.judge_refills();
        self.judge_callers();
        for site in 0..world.len() {
            let about = format!("site {site}");
            let txns = world.node(site).map(|node| &node.chapters().txns);
            let under_way = txns.map_or((0, 0), |txns| txns.under_way());
            let is_settled = txns.is_none_or(|txns| txns.is_settled());

            let found = liveness::check_transactions(under_way, is_settled);
            self.oracle.blame(liveness::NAME, found, &about);

            let found = bounded_work::check_rows(self.leftovers(world, site));
            self.oracle.blame(bounded_work::NAME, found, &about);

            let turns = world.node(site).map_or(0, |node| node.chapters().txns.turns());
            self.oracle.blame(liveness::NAME, liveness::check_turns(turns), &about);
        }
    }

    /// Quotas that refill have kept to their rate, and are full again: all sites were asked for their tokens just now.
    fn judge_refills(&mut self) {
        let no_loss = self.oracle.lost.is_empty();
        for book in (0..self.oracle.books.len()).filter(|&book| self.oracle.books[book].refills).collect::<Vec<_>>() {
            let about = format!("quota {}", self.oracle.books[book].name);
            let Ok(Some((limit, sums))) = self.oracle.sums(book) else { continue };
            let bucket = refill::Bucket { limit, rate: METER_REFILL, late: slackline_core::machine::STALL_BOUND };
            let found = refill::check(bucket, &mut self.oracle.books[book].granted);
            self.oracle.blame(refill::NAME, found, &about);
            if no_loss {
                let found = liveness::check_returned(sums.in_use, 0);
                let found = found.map_err(|what| what + &self.oracle.accounts(book));
                self.oracle.blame(liveness::NAME, found, &about);
            }
        }
    }

    /// The cluster at rest: every site serves, nobody waits, all tokens are where they belong, and holds are over.
    fn look_at_rest(&mut self, world: &mut World) {
        self.oracle.conserve_all();
        self.oracle.check_holds(world.now(), LATE);
        for site in self.present(world) {
            let readiness = world.node(site).map_or_else(Default::default, |node| node.readiness());
            self.oracle.blame(liveness::NAME, liveness::check_ready(readiness), format_args!("site {site}"));
            let waiting = world.node(site).map_or(0, |node| node.chapters().quotas.waiting());
            self.oracle.blame(bounded_work::NAME, bounded_work::check_rest(waiting), format_args!("site {site}"));
        }

        self.look_at_names(world);
        let no_loss = self.oracle.lost.is_empty();
        for book in (0..self.oracle.books.len()).rev() {
            let name = self.oracle.books[book].name.clone();
            let Ok(Some((_, sums))) = self.oracle.sums(book) else { continue };
            for site in 0..world.len() {
                let quota = world.node(site).and_then(|node| node.chapters().quotas.find(&name));
                let in_round = quota.is_some_and(is_in_round);
                let about = format!("quota {name} at site {site}");

                // One that was seen at rest once can come to rest: what it does now, it does ahead of need.
                if self.audit.rested[book] {
                    continue;
                }
                let found = liveness::check_rest(in_round, sums).map_err(|what| what + &self.oracle.accounts(book));
                self.oracle.blame(liveness::NAME, found, &about);
            }

            let excess = self.oracle.books[book].decisions.newest().map_or(0, |(_, table)| table.excess);
            let found = liveness::check_paid(excess, sums).map_err(|what| what + &self.oracle.accounts(book));
            self.oracle.blame(liveness::NAME, found, format_args!("quota {name}"));

            // With a loss, tokens of the lost incarnation are out of everybody's reach; without, all that is not in doubt has come back.
            if no_loss && !self.oracle.books[book].refills {
                let found = liveness::check_returned(sums.in_use, self.oracle.in_doubt(book));
                let found = found.map_err(|what| what + &self.oracle.differences(book));
                self.oracle.blame(liveness::NAME, found, format_args!("quota {name}"));
            }
        }
    }

    /// Names that do not exist any more go, unless that was lately, or somebody was away lately.
    fn look_at_names(&mut self, world: &World) {
        let now = world.now();
        for site in 0..world.len() {
            let Some(node) = world.node(site) else { continue };
            let absent = node.chapters().quotas.iter().filter(|quota| quota.limit().is_none());
            for quota in absent.filter(|quota| quota.name() != MEMBERS) {
                let book = self.oracle.book(quota.name());
                let since = self.oracle.books[book].changed[site].max(self.audit.healed_at);
                let found = forgetting::check_left(now - since, self.settings.names_kept);
                self.oracle.blame(forgetting::NAME, found, format_args!("quota {} at site {site}", quota.name()));
            }
        }
    }

    /// Notes which quotas are at rest. True once every quota has been seen so: no gift under way, no round going on.
    fn note_rest(&mut self, world: &World) -> bool {
        self.audit.rested.resize(self.oracle.books.len(), false);
        for book in 0..self.oracle.books.len() {
            let name = &self.oracle.books[book].name;
            let in_round = (0..world.len()).any(|site| {
                let quota = world.node(site).and_then(|node| node.chapters().quotas.find(name));
                quota.is_some_and(is_in_round)
            });

            let sums = self.oracle.sums(book);
            let moving = sums.is_ok_and(|sums| sums.is_some_and(|(_, sums)| sums.under_way != 0));
            self.audit.rested[book] |= !in_round && !moving;
        }
        self.audit.rested.iter().all(|rested| *rested)
    }

    /// Returns true if a quota exists now.
    fn exists(&self, book: usize) -> bool {
        self.oracle.books[book].decisions.newest().is_some_and(|(_, table)| table.limit.is_some())
    }

    /// The same for every quota at every site.
    fn plan(&mut self, world: &World, task: impl Fn(usize, usize) -> Task) {
        let present = self.present(world);
        for book in (0..self.oracle.books.len()).rev() {
            let exists = self.exists(book);
            // The last of those that clients make on the way stand for all of them.
            let name = &self.oracle.books[book].name;
            let passed = is_one_of_many(name) && book + 3 < self.oracle.books.len();
            if exists && !passed {
                self.audit.tasks.extend(present.iter().map(|&site| task(book, site)));
            }
        }
    }

    /// Asks a site for what a task is about.
    fn begin_task(&mut self, world: &mut World, task: Task) {
        let now = world.now();
        match task {
            Task::Show { book, site } => {
                let quota = self.oracle.books[book].name.clone();
                let request = Request::Show { quota, timeout: 5 * SECOND, local: false };
                self.ask_site(world, now, site, Purpose::Audit { book, site }, request);
                self.audit.current = Some(Current { task, since: now, is_shown: false });
            }
            Task::Create { book, site } => {
                let quota: Arc<str> = Arc::from(self.oracle.books[book].name.as_str());
                let charter = charter_of(&quota);
                self.begin_operation(world, task, site, Command::Create { quota, limit: 40, charter });
            }
            Task::Refill { book, site } => {
                // All of it, but what was lost with disks.
                let Ok(Some((_, sums))) = self.oracle.sums(book) else { return };
                let Some(all) = i64::try_from(sums.tokens + sums.under_way).ok().filter(|all| *all > 0) else { return };
                let quota = Arc::from(self.oracle.books[book].name.as_str());
                self.audit.current = Some(Current { task, since: now, is_shown: false });
                self.work_at(world, site, async move |seat, ledger, place| {
                    refills(&seat, &ledger, quota, all, place).await
                });
            }
            Task::Acquire { book, site } => {
                // All that is free, wherever it is: the site must bring it together.
                let (mut amount, mut under_way) = (i64::MAX, 0);
                for (level, _) in self.oracle.levels(book, 0) {
                    let Ok(Some((limit, sums))) = self.oracle.sums(level) else { return };
                    let all = i64::try_from(sums.tokens + sums.under_way).unwrap_or(i64::MAX);
                    // For so little of the limit a request does not wait until gifts have arrived elsewhere.
                    amount = amount.min(if all > limit / 64 { all } else { all / 2 });
                    under_way += sums.under_way;
                }
                if amount == 0 {
                    return;
                }

                if under_way > 0 && self.audit.restless < PATIENCE {
                    // What the task before moved has not come to rest.
                    self.audit.restless += 1;
                    self.audit.pause_until = now + SECOND;
                    return self.audit.tasks.push(task);
                }

                self.audit.restless = 0;
                self.audit.amount = amount;
                let quota = Arc::from(self.oracle.books[book].name.as_str());
                self.begin_operation(
                    world,
                    task,
                    site,
                    Command::Acquire { quota, amount, hold: Hold::Counted, waits: false },
                );
            }
        }
    }

    /// Hands an operation to the product's client of the site's region, which carries it out there and nowhere else.
    fn begin_operation(&mut self, world: &mut World, task: Task, site: usize, command: Command) {
        self.audit.current = Some(Current { task, since: world.now(), is_shown: false });
        self.carry_out_at(world, site, command);
    }

    /// The same of an operation that is no task; its end is noted in the ledger of callers.
    pub(crate) fn carry_out_at(&mut self, world: &mut World, site: usize, command: Command) {
        self.work_at(world, site, async move |seat, ledger, place| carry_out(&seat, &ledger, command, place).await);
    }

    /// Has the product's client of a site's region do some work there; its end is noted in the ledger of callers.
    fn work_at<W>(&mut self, world: &mut World, site: usize, work: W)
    where
        W: AsyncFnOnce(Seat, Rc<RefCell<Ledger>>, Place) -> Result<Outcome, String> + 'static,
    {
        let (seat, ledger) = (self.callers.clients[site].clone(), Rc::clone(&self.callers.ledger));
        let place = Place::Site(self.settings.members[site]);
        ledger.borrow_mut().audited = None;
        self.callers.desk.spawn(async move {
            let ended = work(seat, Rc::clone(&ledger), place).await;
            ledger.borrow_mut().audited = Some(ended);
        });
        self.run_callers(world);
    }

    /// A site has counted a quota, which must be exact now.
    pub(crate) fn audited_show(&mut self, world: &World, book: usize, site: usize, shown: Result<Box<Shown>, Refusal>) {
        if let Some(current) = &mut self.audit.current {
            current.is_shown = true;
        }

        let Ok(Some((_, sums))) = self.oracle.sums(book) else { return };
        let about = format!("quota {} at site {site}", self.oracle.books[book].name);
        let exact = shown.as_ref().is_ok_and(|shown| shown.in_use_min == shown.in_use_max);
        if !exact && self.audit.refused < PATIENCE {
            // Something moved while it counted.
            self.probes.hit("audit: counted at a second try");
            return self.try_again(world, Task::Show { book, site });
        }

        self.audit.refused = 0;
        let found =
            liveness::check_shown(shown.ok().as_deref(), sums).map_err(|what| what + &self.oracle.accounts(book));
        self.oracle.blame(liveness::NAME, found, &about);
    }

    /// Judges the answer to a task; true if there is one.
    fn judge_answer_to_audit(&mut self, world: &World, current: Current) -> bool {
        let (Task::Acquire { book, site } | Task::Refill { book, site } | Task::Create { book, site }) = current.task
        else {
            return current.is_shown;
        };
        let Some(ended) = self.callers.ledger.borrow_mut().audited.take() else { return false };
        let is_acquire = matches!(current.task, Task::Acquire { .. });

        // Gifts may be on their way back from the site that was asked before.
        let may_come = is_acquire && matches!(ended, Ok(Outcome::Refused(Refusal::Exhausted { .. })));
        if may_come && self.audit.refused < PATIENCE {
            self.try_again(world, current.task);
            return true;
        }
        self.audit.refused = 0;
        let found = ended.and_then(|outcome| match outcome {
            outcome if is_acquire => liveness::check_granted(self.audit.amount, Some(&outcome)),
            Outcome::Granted { .. } => Ok(()),
            Outcome::Created { .. }
            | Outcome::Refused(Refusal::LimitDiffers { .. } | Refusal::AgreementDiffers { .. }) => Ok(()),
            outcome => Err(format!("creating it ends as {outcome:?}")),
        });
        let about = format!("quota {} at site {site}", self.oracle.books[book].name);
        self.oracle.blame(liveness::NAME, found, &about);
        true
    }

    /// A task is begun once more, after a pause.
    fn try_again(&mut self, world: &World, task: Task) {
        self.audit.refused += 1;
        self.audit.pause_until = world.now() + PAUSE;
        self.audit.tasks.push(task);
    }

    /// A task has no answer.
    fn blame_silence(&mut self, task: Task) {
        let (Task::Acquire { book, site }
        | Task::Refill { book, site }
        | Task::Create { book, site }
        | Task::Show { book, site }) = task;
        let about = format!("quota {} at site {site}", self.oracle.books[book].name);
        let found = match task {
            Task::Acquire { .. } => liveness::check_granted(self.audit.amount, None),
            Task::Refill { .. } => Err("it does not refill".to_owned()),
            Task::Create { .. } => Err("creating it is not answered".to_owned()),
            Task::Show { .. } => Err("show is not answered".to_owned()),
        };
        self.oracle.blame(liveness::NAME, found, &about);
    }
}

/// Carries an operation of the audit out. What is granted is given back at the same site.
pub(crate) async fn carry_out(
    seat: &Seat,
    ledger: &Rc<RefCell<Ledger>>,
    command: Command,
    place: Place,
) -> Result<Outcome, String> {
    let (told_of, outcome) = call(seat, ledger, command.clone(), place.clone()).await?;
    let (Command::Acquire { quota, amount, .. }, Outcome::Granted { .. }) = (command, &outcome) else {
        return Ok(outcome);
    };
    let holder = ledger.borrow_mut().hold(told_of, amount, None);

    // From now on the site may take them back.
    ledger.borrow_mut().events.push(Event::LetGo { holder });
    match call(seat, ledger, Command::Release { quota, amount }, place).await? {
        (_, Outcome::Released { .. }) => Ok(outcome),
        (_, other) => Err(format!("{amount} tokens were granted, and giving them back ends as {other:?}")),
    }
}

/// Takes all that there is of a quota that refills, is told when that is there again, and takes it once more: it must be there by then.
async fn refills(
    seat: &Seat,
    ledger: &Rc<RefCell<Ledger>>,
    quota: Arc<str>,
    all: i64,
    place: Place,
) -> Result<Outcome, String> {
    let takes = |waits| Command::Acquire { quota: Arc::clone(&quota), amount: all, hold: Hold::Counted, waits };
    let is_granted = |outcome: &Outcome| matches!(outcome, Outcome::Granted { .. });
    let (_, first) = call(seat, ledger, takes(true), place.clone()).await?;
    if !is_granted(&first) {
        return Err(format!("all of it is asked for at rest, and that ends as {first:?}"));
    }

    let began = seat.port.now();
    let due = (all as u64 * 1_000_000).saturating_mul(SECOND) / METER_REFILL;
    let (_, second) = call(seat, ledger, takes(false), place.clone()).await?;
    match second {
        Outcome::Refused(Refusal::Exhausted { retry_after: Some(after), level: 0, .. })
            if (due / 2..due + FULL_LATE).contains(&(u64::from(after) * MILLISECOND)) => {}
        // What is so little that it is back before the next who asks has arrived; that one and the answer before it were under way.
        Outcome::Granted { .. } if seat.port.now().0 - began.0 + UNDER_WAY >= due => {}
        other => {
            return Err(format!(
                "{all} tokens were granted, they are back in {due} us, and who asks is told {other:?}"
            ));
        }
    }

    let (_, third) = call(seat, ledger, takes(true), place).await?;
    // Backlog goes from site to site in messages, and what is not worth one comes back at its own part of the rate.
    let took = seat.port.now().0 - began.0;
    match is_granted(&third) && took <= due + due / 2 + FULL_LATE {
        true => Ok(third),
        false => {
            Err(format!("{all} tokens should be back in {due} us, and after {took} us who waits is told {third:?}"))
        }
    }
}

/// One call, and its outcome with its id.
async fn call(
    seat: &Seat,
    ledger: &Rc<RefCell<Ledger>>,
    command: Command,
    place: Place,
) -> Result<(OperationId, Outcome), String> {
    let verdict = seat.call(command.clone(), place, DEADLINE, None).await;
    let unanswered = format!("{command:?} ends without an outcome: {verdict:?}");
    let (finished, outcome) = told(ledger, command, verdict).ok_or(unanswered)?;
    Ok((finished.id.expect("what was answered has an id"), outcome))
}

/// True if a site is in a round of a quota, of whichever kind.
fn is_in_round(quota: &Quota) -> bool {
    quota.avantan().in_round() || quota.avantan().share.part().is_some()
}
