//! Clients that speak to sites themselves. Like the product's client they have sessions per site, batches of operations with ids,
//! time-outs, repetition under the same id at the same site (also through another), questions after doubt, and fail-over with new
//! ids. Unlike it they choose when they do so: they repeat what was answered, ask before they send, raise their marks late, use
//! one id for two things, and name ids that no sound client would (see `careless`). Sites must keep to what they promise all the
//! same, and the product's client, which `callers` run, would never put that to the test.
//!
//! They release only what they hold, and use a hold for a time only until ε before that time is over, counted from when they sent
//! the request: so what they hold at any time counts against the limit.
//!
//! | file | what it is about |
//! | --- | --- |
//! | `clients` | what a client does when it acts, and what it gives back |
//! | `inventions` | what it asks for |
//! | `sessions` | sessions, batches, repetitions and questions |
//! | `replies` | what it is told, what is judged by that, and what it makes of it |
//! | `careless` | what nobody should do |

mod careless;
mod inventions;
mod replies;
mod sessions;

use slackline_core::api::{Hold, Operation, Request};
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::id::OperationId;

use crate::quotas::{FLEETING, KINDS, METERS, PLENTY, PRUNED, TREE, creation};
use crate::state::clients::{Holding, Open};
use crate::state::post::Purpose;
use crate::state::timer::Timer;
use crate::state::{Phase, Simulation};
use crate::world::World;
use sessions::NEAR;

/// Holds that fall due at once, now and then: more than a site ends in one turn.
const MANY: u64 = 600;

impl Simulation {
    /// Opens the books of the usual quotas.
    pub(crate) fn open_books(&mut self) {
        for kind in KINDS {
            let book = self.oracle.book(kind.name);
            self.oracle.books[book].deletable = kind.name == KINDS[FLEETING].name;
        }
        for kind in TREE {
            let book = self.oracle.book(kind.name);
            self.oracle.books[book].deletable = kind.name == PRUNED;
        }
        for kind in METERS {
            let book = self.oracle.book(kind.name);
            self.oracle.books[book].refills = true;
        }
    }

    /// Returns true if every operation is sent, nothing is in doubt and nothing is held.
    pub(crate) fn clients_are_done(&self) -> bool {
        let is_over = self.is_finishing() && self.transactions_are_done() && self.faults.joining.is_none();
        self.callers_are_done(is_over) && is_over && self.treaties_are_done() && self.nothing_is_held()
    }

    /// True if no operation of a client is open, and none of them holds tokens.
    pub(crate) fn nothing_is_held(&self) -> bool {
        self.clients.all.iter().all(|client| client.open.is_empty() && client.holdings.is_empty())
    }

    /// What clients still wait for, in words.
    pub(crate) fn clients_wait_for(&self) -> String {
        let open = self.clients.all.iter().flat_map(|client| &client.open).map(|open| {
            let op = &self.oracle.ops[open.op as usize];
            format!("{} {:?} (durable: {:?})", op.id, op.operation, op.durable)
        });
        let held = self.clients.all.iter().flat_map(|client| &client.holdings).map(|holding| format!("{holding:?}"));

        let others = open.chain(held).chain(self.transactions_wait_for()).take(5);
        others.chain([self.callers_wait_for()]).collect::<Vec<_>>().join("; ")
    }

    /// A client acts: it sees to what it has, asks for more, and says when it acts again.
    pub(crate) fn client_acts(&mut self, world: &mut World, at: usize) {
        let now = world.now();
        if let Some((_, until)) = self.settings.silence.filter(|_| self.settings.is_silent(now)) {
            return self.fall_silent(world, at, until);
        }

        // What it has under way comes first: what it holds and knows decides what it may give back.
        self.press(world, at);
        self.see_to_open(world, at);
        self.close_retired(world, at);
        let is_finishing = self.is_finishing();
        if !self.phase.is_audit() {
            self.release_due(world, at, is_finishing);
        }

        // Then something new.
        if !is_finishing {
            self.work(world, at);
        }
        self.begin_transactions(world, at);
        for site in 0..world.len() {
            self.flush(world, at, site);
        }

        // Now and then a client is in a hurry for a while.
        let client = &mut self.clients.all[at];
        if client.burst_until < now && self.rng.one_in(400) {
            client.burst_until = now + SECOND / 2 + self.rng.below(2 * SECOND);
        }
        let think = if client.burst_until > now { 100_000 } else { 1_000_000 };
        let next = now + 1_000 + self.rng.below(think);
        world.wake_at(next, Timer::Client(at).token());
    }

    /// A caller of the product's client does not know how its operation ended: somebody asks, then.
    pub(crate) fn ask_later(&mut self, id: OperationId, op: u32, look_at: u64) {
        let at = usize::from(id.site.region);
        self.clients.all[at].open.push(Open { op, look_at, tries: 1, asks_only: true });
    }

    /// New operations, and what else a client comes up with.
    fn work(&mut self, world: &mut World, at: usize) {
        let now = world.now();
        let site = self.choose_site(world, at);
        if !self.ensure_session(world, at, site) {
            return;
        }
        if self.clients.submitted < 12 {
            // First of all there must be quotas.
            for kind in KINDS.iter().chain(&TREE).chain(&METERS) {
                let operation = creation(kind.name, kind.limit);
                self.submit(world, at, site, operation, 20 * SECOND);
            }
            return;
        }
        // Once after the last start of a site: a start looks at all that is due.
        let is_healed =
            self.phase == Phase::Healing && at == 0 && !std::mem::replace(&mut self.clients.all[at].held_many, true);
        if is_healed || self.rng.one_in(1_500) {
            self.hold_many(world, at, site);
        }
        // A few at a time, wherever this client is: not all of them are created.
        for _ in 0..self.clients.crowd.min(32) {
            let operation = Operation::create(format!("crowd-{}", self.clients.crowd), 60);
            self.submit(world, at, site, operation, 5 * SECOND);
            self.clients.crowd -= 1;
            self.probes.hit("quota: one of very many");
        }

        let burst = self.clients.all[at].burst_until > now;
        let count = if burst { 1 + self.rng.below(24) } else { 1 + self.rng.below(4) };
        for _ in 0..count {
            let (operation, timeout) = self.invent(world, at);
            self.submit(world, at, site, operation, timeout);
        }

        // Besides, what no sound client does, and questions that anybody may ask.
        if self.rng.one_in(8) {
            self.repeat_told(world, at);
        }
        match self.rng.below(300) {
            12..=16 => self.jump(world, at, site),
            0 => self.ask_before_sending(world, at, site),
            1..=3 => self.ask_again(world, at, site),
            4 => self.reuse_id(world, at, site),
            5 | 11 => self.retire_session(world, at, site),
            6..=8 => self.show(world, at, site),
            9 => {
                let after = KINDS[self.rng.below(7) as usize].name.to_owned();
                self.ask_site(world, now + NEAR, site, Purpose::Look, Request::List { after, limit: 3 });
            }
            10 => drop(self.ask_site(world, now + NEAR, site, Purpose::Look, Request::Status)),
            _ => {}
        }
    }

    /// Holds that are granted in one turn fall due at once: more than a site ends in one.
    fn hold_many(&mut self, world: &World, at: usize, site: usize) {
        let hold = Hold::For(SECOND + self.rng.below(4 * SECOND));
        let operation = Operation::Acquire { quota: PLENTY.name.to_owned(), amount: 1, hold, waits: false };
        let submitted = (0..MANY).filter_map(|_| self.submit(world, at, site, operation.clone(), SECOND)).count();
        if submitted as u64 == MANY {
            self.probes.hit("fault: holds beyond a page fall due at once");
        }
    }

    /// Nearly always the current one; another one when that does not answer, and now and then for no reason.
    fn choose_site(&mut self, world: &World, at: usize) -> usize {
        let now = world.now();
        let sites = world.len() as u64;
        if self.rng.one_in(20) {
            return self.rng.below(sites) as usize;
        }

        let client = &mut self.clients.all[at];
        if client.sites[client.current].suspect_until > now {
            client.current = (client.current + 1) % sites as usize;
            self.probes.hit("client: fails over");
        } else if client.current != client.home && client.sites[client.home].suspect_until <= now && self.rng.one_in(8)
        {
            client.current = client.home;
        }
        self.clients.all[at].current
    }

    /// Gives back what the client has held for long enough, or all that it holds.
    fn release_due(&mut self, world: &mut World, at: usize, all: bool) {
        let now = world.now();
        let mut position = 0;
        while position < self.clients.all[at].holdings.len() {
            let holding = self.clients.all[at].holdings[position];
            if holding.until.is_some_and(|until| until <= now) {
                self.clients.all[at].holdings.swap_remove(position);
                continue;
            }

            let is_due = all || holding.release_at <= now;
            // One without an end cannot be extended, and is asked for all the same now and then.
            let is_asked = if holding.until.is_some() { self.rng.one_in(30) } else { self.rng.one_in(2_000) };
            if !all && is_asked {
                self.extend(world, at, holding);
            }
            let released = if is_due { self.release(world, at, holding, all) } else { 0 };
            if released == 0 {
                position += 1;
                continue;
            }

            // From now on the site may take it back.
            self.oracle.let_go(now, holding.hold, released);
            let held = &mut self.clients.all[at].holdings[position];
            held.amount -= released;
            if held.amount == 0 {
                self.clients.all[at].holdings.swap_remove(position);
            } else {
                position += 1;
            }
            if holding.tracked.is_some() && self.rng.one_in(10) {
                self.release_twice(world, at, holding, holding.amount - released);
            }
        }
    }

    /// Has the end of a hold put off. The client goes by the earlier end all the same: it errs on the safe side.
    fn extend(&mut self, world: &mut World, at: usize, holding: Holding) {
        let Some(grant) = holding.tracked else { return };
        let site = self.oracle.ops[holding.op as usize].site;
        if self.ensure_session(world, at, site) {
            let micros = (1 + self.rng.below(5_000)) * MILLISECOND;
            self.submit(world, at, site, Operation::ExtendGrant { grant, micros }, SECOND);
        }
    }

    /// Sends a release of what is held, or of a part of it unless it is to be `all`; how much that is.
    fn release(&mut self, world: &mut World, at: usize, holding: Holding, all: bool) -> i64 {
        // Only the site of a grant knows it; an amount may be given back anywhere.
        let site = match holding.tracked {
            Some(_) => self.oracle.ops[holding.op as usize].site,
            None => self.rng.below(world.len() as u64) as usize,
        };

        let is_suspect = self.clients.all[at].sites[site].suspect_until > world.now();
        if is_suspect || !self.ensure_session(world, at, site) {
            return 0;
        }

        let mut amount = holding.amount;
        let operation = match (holding.tracked, &self.oracle.ops[holding.op as usize].operation) {
            // It keeps what it has used, and releases that later.
            (Some(grant), _) if amount > 1 && !all && self.rng.one_in(5) => {
                let used = 1 + self.rng.below(amount as u64 - 1) as i64;
                amount -= used;
                Operation::ReleaseGrant { grant, used }
            }
            (Some(grant), _) => Operation::ReleaseGrant { grant, used: 0 },
            (None, Operation::Acquire { quota, .. } | Operation::Release { quota, .. }) => {
                if amount > 1 && self.rng.one_in(4) {
                    amount = 1 + self.rng.below(amount as u64) as i64;
                }
                Operation::Release { quota: quota.clone(), amount }
            }
            _ => return 0,
        };
        if self.submit(world, at, site, operation, SECOND).is_some() { amount } else { 0 }
    }

    /// Releases a grant again that the client has just released, but for what is `used` of it: it comes back once.
    fn release_twice(&mut self, world: &World, at: usize, holding: Holding, used: i64) {
        let Some(grant) = holding.tracked else { return };
        self.probes.hit("client: releases twice");
        let site = self.oracle.ops[holding.op as usize].site;
        let used = if used > 0 && self.rng.one_in(8) { i64::MAX } else { used };
        self.submit(world, at, site, Operation::ReleaseGrant { grant, used }, SECOND);
    }

    /// Counts a quota.
    fn show(&mut self, world: &mut World, at: usize, site: usize) {
        let kind = KINDS[self.rng.below(7) as usize];
        let book = self.oracle.book(kind.name);
        let request =
            Request::Show { quota: kind.name.to_owned(), timeout: SECOND + self.rng.below(2 * SECOND), local: false };

        let arrives = world.now() + self.latency(world, at, site);
        let id = self.ask_site(world, arrives, site, Purpose::Show { book }, request);
        self.oracle.begin_counting(book, id);
    }
}
