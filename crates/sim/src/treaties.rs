//! Treaties under faults: callers of the product's client make them, rely on them, require them and change their counters, and
//! every site is watched meanwhile.
//!
//! | treaty | says | what is done |
//! | --- | --- | --- |
//! | `sum`, `least`, `band` | of a sum over all regions, of the smaller of two metrics, and of a sum with two ends, that it is within bounds | amounts are added unseen; some ask whether it holds, and add something then |
//! | `same` | that the counters of two regions are equal | the same is added to both |
//! | `guarded` | that a sum is not negative | what lowers it requires it, in a block that is undone otherwise |
//! | `ordered` | of a sum, that it is large enough | every program appends to one list, so that each sees all that was done before it |
//!
//! Judged is, see [`treaties`]: that no site holds a live right over a treaty that is false, by what the batches of
//! the counters' homes say (at each turn of a site, while one is false); that bounds add up; that what everybody requires stays true; that
//! what a program was told was so at some time while it ran; and of `ordered`, that it was so at the very time at which the
//! program took effect.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slackline_core::clock::MILLISECOND;
use slackline_core::id::Incarnation;
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::object::{Cause, ObjectKey};
use slackline_core::rows::{LEAF, OBJECT};
use slackline_core::stats::Rng;
use slackline_core::txn::counter_of_row;
use slackline_session::key::Key;
use slackline_session::metric::{Metric, Statement};
use slackline_session::outcome::{Outcome as Ended, Reason, Refused};
use slackline_session::port::Port;
use slackline_session::topology::OBJECTS_LANE;
use slackline_session::txn::treaties::{Existing, Order, Treaty, end, make};
use slackline_session::txn::{Committed, Transaction, Txn, TxnError};

use crate::callers::{TRANSACTION, pause};
use crate::clock::EPSILON;
use crate::invariants::treaties;
use crate::state::Simulation;
use crate::state::callers::{Entry, Event, Ledger, Seat};
use crate::state::treaties::Watched;
use crate::world::World;

/// Callers that use treaties, over all clients.
const CALLERS: usize = 6;
/// The longest pause between two things that such a caller does, in microseconds; and once all is to come to an end.
const THINK: u64 = 2_600 * MILLISECOND;
const HURRY: u64 = 200 * MILLISECOND;
/// Of so many things that such a caller does, one is to make a treaty anew, or to end it.
const ANEW: u64 = 40;
/// The most elements of the list of `ordered`: it is left as it is then.
const ELEMENTS: u64 = 400;

/// The position of each treaty.
const SAME: usize = 3;
const GUARDED: usize = 4;
const ORDERED: usize = 5;

/// The number of `ordered`.
const ENOUGH: i64 = 20;

fn region(home: usize) -> String {
    format!("r{home}")
}

/// A counter of a treaty. Its name begins as no other counter's does.
fn counter(home: usize, treaty: &str) -> Key {
    Key::new(region(home), format!("t/{treaty}"))
}

/// The treaties of a run with so many sites, at the first of which objects are at home. Their homes lie apart from their counters'
/// where they may.
fn all(sites: usize, homes: usize) -> Vec<Treaty> {
    let of = |treaty: &str, homes: std::ops::Range<usize>| -> Metric {
        Metric::sum(homes.map(|home| counter(home, treaty).metric()))
    };
    let sum = if homes == sites { Metric::everywhere("t/sum") } else { of("sum", 0..homes) };
    let least = of("least", 0..homes).min(counter(1, "least").metric() * 3);
    let band = Statement::all([of("band", 0..homes).at_least(10), of("band", 0..homes).at_most(60)]);
    let groups = vec![vec![region(0), region(1)], vec![region(0), region(1), region(2)]];
    let same = counter(0, "same").metric() - counter(1, "same").metric();
    vec![
        Treaty::new("sum", sum.at_least(20)),
        Treaty::new("least", least.at_least(20)).home(&region(homes - 1)).order(Order::Flat),
        Treaty::new("band", band).home(&region(1)).order(Order::Given(groups)),
        Treaty::new("same", same.equals(0)).home(&region(2)),
        Treaty::new("guarded", of("guarded", 0..homes).at_least(0)),
        Treaty::new("ordered", of("ordered", 0..2).at_least(ENOUGH)).home(&region(2)),
    ]
}

impl Simulation {
    /// Lets callers begin that use treaties.
    pub(crate) fn begin_treaties(&mut self, world: &World) {
        let sites = world.len();
        let treaties = all(sites, self.settings.homes);
        for treaty in treaties.clone() {
            let placed = treaty.place(self.callers.clients[0].port.topology()).expect("regions that are there");
            let counters: Vec<ObjectKey> = placed.counters().into_iter().collect();
            self.treaties.counts.extend(counters.iter().map(|key| (key.clone(), (Incarnation(0), 0))));
            let turns = vec![(0, placed.statement().judge(&|_| 0).is_ok())];
            self.treaties.all.push(Watched {
                key: placed.object().clone(),
                statement: placed.statement().clone(),
                counters,
                turns,
                blurred_until: 0,
                is_guarded: treaty.name() == "guarded",
                bounds: BTreeMap::new(),
                clauses: Vec::new(),
                treaty,
            });
        }

        let mut rng = Rng::new(self.callers.rng.draw());
        let treaties: Rc<[Treaty]> = treaties.into();
        for number in 0..CALLERS {
            let (seat, ledger) = (self.callers.clients[number % sites].clone(), Rc::clone(&self.callers.ledger));
            let (rng, goal) = (Rng::new(rng.draw()), self.settings.options.treaties);
            let treaties = Rc::clone(&treaties);
            self.callers.desk.spawn(caller(seat, ledger, treaties, rng, self.settings.silence, goal));
        }
        self.treaties.has_begun = true;
    }

    /// Looks at what a turn of a site means for treaties.
    pub(crate) fn look_at_treaties(&mut self, world: &World, site: usize, effects: &[Effect<Node>]) {
        if !self.treaties.has_begun {
            return;
        }
        let (is_changed, is_leaf) = self.note_counters(world, site, effects);
        if is_changed {
            self.judge_statements(world, site as u16);
        }
        if is_changed || is_leaf {
            self.look_at_leaves(world, site);
        }
        // Whoever was asked while a statement was false comes to rely upon it now, if ever.
        for at in 0..self.treaties.all.len() {
            if !self.treaties.all[at].is_true() {
                self.look_who_relies(world, site, at);
            }
        }
    }

    /// Notes what a site writes to counters of treaties. True if it wrote to one; and if it wrote to a leaf.
    fn note_counters(&mut self, world: &World, site: usize, effects: &[Effect<Node>]) -> (bool, bool) {
        let (mut is_changed, mut is_leaf) = (false, false);
        for effect in effects {
            let Effect::Persist(batch) = effect else { continue };
            for (key, row) in batch.iter() {
                is_leaf |= key[0] == LEAF;
                if key[0] != OBJECT || !key[5..].starts_with(b"t/") {
                    continue;
                }
                let Some((incarnation, name, count)) = counter_of_row(key, row) else { continue };
                if self.oracle.lost.contains(&(site, incarnation)) {
                    continue;
                }
                is_changed |= self.treaties.note(&ObjectKey::new(site as u16, name), incarnation, count);
            }
        }
        if is_changed {
            self.clear_up(world.now(), site as u16);
        }
        (is_changed, is_leaf)
    }

    /// A home has written: its counters may be known again.
    fn clear_up(&mut self, now: u64, home: u16) {
        let is_known = |watched: &Watched| watched.counters.iter().all(|key| self.is_known(key));
        let is_cleared =
            |watched: &Watched| watched.blurred_until == u64::MAX && watched.rests_on(home) && is_known(watched);
        let cleared: Vec<bool> = self.treaties.all.iter().map(is_cleared).collect();
        for (watched, is_cleared) in self.treaties.all.iter_mut().zip(cleared) {
            if is_cleared {
                watched.blurred_until = now;
            }
        }
    }

    /// True if what a counter has come to is of its home's present storage. Of a home that has lost its storage and has none yet, the
    /// present one is the lost one.
    fn is_known(&self, key: &ObjectKey) -> bool {
        let site = usize::from(key.home);
        let present = self.oracle.incarnation(site);
        self.treaties.counts[key].0 == present && !self.oracle.lost.contains(&(site, present))
    }

    /// Judges the statements again that are about a counter of a home.
    fn judge_statements(&mut self, world: &World, home: u16) {
        let now = world.now();
        let mut turned_false = Vec::new();
        for at in 0..self.treaties.all.len() {
            let of = &self.treaties.all[at];
            if !of.rests_on(home) {
                continue;
            }

            // Of a home that was lost and has not written since, some may still rely on what it had, and others know that it is gone; of
            // several such homes, each some of them.
            let count = |key: &ObjectKey| self.treaties.count(key);
            let unknown: Vec<u16> = match of.blurred_until {
                u64::MAX => of.counters.iter().filter(|key| !self.is_known(key)).map(|key| key.home).collect(),
                _ => Vec::new(),
            };
            let is_true = (0..1u32 << unknown.len()).any(|gone| {
                let is_gone =
                    |home: u16| unknown.iter().position(|other| *other == home).is_some_and(|at| gone >> at & 1 == 1);
                of.statement.judge(&|key| if is_gone(key.home) { 0 } else { count(key) }).is_ok()
            });
            if of.clauses.is_empty()
                && let Ok(clauses) = of.statement.clauses(&count)
            {
                let known = clauses.iter().map(|clause| (clause.least, clause.homes.len())).collect();
                self.treaties.all[at].clauses = known;
            }
            let of = &mut self.treaties.all[at];
            if of.is_true() != is_true {
                of.turns.push((now, is_true));
                if !is_true {
                    turned_false.push(at);
                }
            }
        }

        for at in turned_false {
            self.probes.hit("treaty: its statement turns false");
            let found = treaties::check_met(self.treaties.all[at].is_guarded, &self.treaties.counts_of(at));
            self.blame_treaty(treaties::MET, found, at);
            for site in 0..world.len() {
                self.look_who_relies(world, site, at);
            }
        }
    }

    /// A site must not rely on a treaty, which is false.
    fn look_who_relies(&mut self, world: &World, site: usize, at: usize) {
        let Some(node) = world.node(site) else { return };
        // One that stands still looks at its clocks again before it relies on anything.
        if world.is_held_up(site) {
            return;
        }
        let relies = node.chapters().txns.relies_on(world.time_at(site), EPSILON as u64, &self.treaties.all[at].key);
        let found = treaties::check_relied(relies, || self.treaties.counts_of(at));
        if found.is_err() {
            self.oracle.blame(treaties::TRUE, found, format_args!("site {site}, treaty {}", self.name_of(at)));
        }
    }

    /// The leaves of a site: their parts are above their bounds, and the bounds of all homes add up.
    fn look_at_leaves(&mut self, world: &World, site: usize) {
        let Some(node) = world.node(site) else { return };
        let leaves = node.chapters().txns.leaves(world.time_at(site));
        for leaf in leaves {
            let Some(at) = self.treaties.all.iter().position(|watched| watched.key == leaf.treaty) else { continue };
            for clause in leaf.clauses {
                let found = treaties::check_part(clause.value, clause.bound);
                self.blame_treaty(treaties::SLACK, found, at);

                let of = &mut self.treaties.all[at];
                let bounds = of.bounds.entry((leaf.nonce, clause.clause)).or_default();
                let before = bounds.insert(site as u16, clause.bound);
                let Some((least, homes)) = of.clauses.get(clause.clause as usize).copied() else { continue };
                let all: Vec<(u16, i64)> = bounds.iter().map(|(home, bound)| (*home, *bound)).collect();
                if before.is_some_and(|before| before < clause.bound) {
                    self.probes.hit("treaty: slack moves");
                }
                if all.len() == homes {
                    let found = treaties::check_bounds(&all, least);
                    self.blame_treaty(treaties::SLACK, found, at);
                }
            }
        }
    }

    /// A site crashed: what it had not made durable never was.
    pub(crate) fn reread_counters(&mut self, world: &mut World, site: usize, incarnation: Incarnation) {
        if !self.treaties.has_begun {
            return;
        }
        for watched in &mut self.treaties.all {
            for bounds in watched.bounds.values_mut() {
                bounds.remove(&(site as u16));
            }
        }
        if incarnation.0 > 0 && incarnation == self.oracle.incarnation(site) {
            let rows = world.copy(site).rows;
            self.treaties.reread(site as u16, incarnation, &rows);
            self.judge_statements(world, site as u16);
        }
    }

    /// A site has lost its storage.
    pub(crate) fn lose_counters(&mut self, site: usize) {
        let home = site as u16;
        for watched in self.treaties.all.iter_mut().filter(|watched| watched.rests_on(home)) {
            watched.blurred_until = u64::MAX;
            watched.is_guarded = false;
        }
    }

    /// Judges what a program was told of a statement.
    pub(crate) fn judge_verdict(&mut self, now: u64, at: usize, began: u64, verdict: bool) {
        let of = &self.treaties.all[at];
        if of.blurred_until < began {
            let found = treaties::check_verdict(verdict, (began, now), &of.turns);
            self.blame_treaty(treaties::ONE_STATE, found, at);
        }
    }

    /// Judges what a program over `ordered` was told, which has seen all that was done before it.
    pub(crate) fn judge_ordered(&mut self, entry: Entry, seen: &[u64], told: [Option<bool>; 2]) {
        let of = &self.treaties.all[ORDERED];
        if of.counters.iter().any(|key| self.oracle.lost.iter().any(|(site, _)| *site == usize::from(key.home))) {
            return;
        }
        let ledger = self.callers.ledger.borrow();
        let mut counts = [0, 0];
        for element in seen {
            let known = ledger.entries.get(&(element >> 1)).copied().unwrap_or_default();
            counts[0] += known.adds;
            counts[1] += if element & 1 == 1 { known.block } else { 0 };
        }
        drop(ledger);

        let is_enough = |counts: [i64; 2]| counts[0] + counts[1] >= ENOUGH;
        let with_adds = [counts[0] + entry.adds, counts[1]];
        let with_block = [with_adds[0], with_adds[1] + entry.block];
        for (told, counts) in told.into_iter().zip([with_adds, with_block]) {
            if let Some(told) = told {
                let found = treaties::check_exact(told, is_enough(counts), counts);
                self.blame_treaty(treaties::ONE_STATE, found, ORDERED);
            }
        }
    }

    fn name_of(&self, at: usize) -> String {
        self.treaties.all[at].treaty.name().to_owned()
    }

    fn blame_treaty(&mut self, invariant: &'static str, found: Result<(), String>, at: usize) {
        if found.is_err() {
            let about = format!("treaty {}", self.name_of(at));
            self.oracle.blame(invariant, found, &about);
        }
    }

    /// Returns true if enough transactions have used treaties.
    pub(crate) fn treaties_are_done(&self) -> bool {
        self.callers.ledger.borrow().treaties >= self.settings.options.treaties
    }
}

/// One caller: one program after another, until the run is about to end and enough were committed.
async fn caller(
    seat: Seat,
    ledger: Rc<RefCell<Ledger>>,
    treaties: Rc<[Treaty]>,
    mut rng: Rng,
    silence: Option<(u64, u64)>,
    goal: u64,
) {
    loop {
        let hurries = ledger.borrow().is_over;
        pause(&seat, &mut rng, if hurries { HURRY } else { THINK }, silence).await;
        let is_done = {
            let ledger = ledger.borrow();
            ledger.is_over && ledger.treaties >= goal
        };
        if is_done {
            return;
        }
        if rng.one_in(ANEW) {
            make_anew(&seat, &ledger, &treaties, &mut rng).await;
            continue;
        }
        match rng.below(10) {
            0 => run_ordered(&seat, &ledger, &treaties[ORDERED], &mut rng).await,
            1..=2 => run_guarded(&seat, &ledger, &treaties[GUARDED], &mut rng).await,
            _ => run_free(&seat, &ledger, &treaties, &mut rng).await,
        }
    }
}

/// Runs a program, and counts it if it is committed and relies on a treaty; when its last run began, and what it gave.
async fn run<T, R>(
    seat: &Seat,
    ledger: &Rc<RefCell<Ledger>>,
    rng: &mut Rng,
    relies: bool,
    mut program: impl FnMut(Txn) -> R,
) -> Option<(u64, T)>
where
    R: Future<Output = Result<T, TxnError>>,
{
    let began = Cell::new(0);
    let transaction = Transaction::over(Arc::clone(&seat.port) as Arc<dyn Port>, Arc::clone(&seat.memos));
    let deadline = Duration::from_micros(TRANSACTION[rng.below(3) as usize]);
    // Some wait neither for rights nor for slack.
    let is_patient = !rng.one_in(8);
    let transaction = if is_patient { transaction } else { transaction.max_wait(Duration::ZERO) };
    let ended = transaction.deadline(deadline).run_and_tell(|txn| {
        began.set(seat.port.now().0);
        program(txn)
    });
    match ended.await {
        Ok(Ended::Done(Committed { value, .. })) => {
            ledger.borrow_mut().treaties += u64::from(relies);
            Some((began.get(), value))
        }
        Ok(Ended::Refused(Refused { reason: Reason::Aborted(aborted), .. })) => {
            let is_for_slack = aborted.key.as_ref().is_some_and(|key| key.treaty().is_some());
            if aborted.cause == Cause::WouldWait && is_for_slack {
                ledger.borrow_mut().events.push(Event::Probe("treaty: its slack not waited for"));
            }
            None
        }
        _ => None,
    }
}

/// Makes a treaty in place of the one that there is, valid or not; or ends it.
async fn make_anew(seat: &Seat, ledger: &Rc<RefCell<Ledger>>, treaties: &[Treaty], rng: &mut Rng) {
    let placed = treaties[rng.below(treaties.len() as u64) as usize].place(seat.port.topology());
    let placed = placed.expect("regions that are there");
    let links = seat.port.links(OBJECTS_LANE);
    let site = links.iter().find(|link| link.is_usable()).unwrap_or(&links[0]).site;
    let deadline = seat.port.now() + Duration::from_micros(TRANSACTION[0]);
    let port = Arc::clone(&seat.port) as Arc<dyn Port>;
    let (is_done, probe) = if rng.one_in(4) {
        (matches!(end(port, site, placed.object(), deadline).await, Ended::Done(_)), "treaty: ended")
    } else {
        let made = make(port, site, &placed, Existing::Replaced, deadline).await;
        (matches!(made, Ended::Done(_)), "treaty: made anew")
    };
    if is_done {
        ledger.borrow_mut().events.push(Event::Probe(probe));
    }
}

/// A program over one of the treaties to whose counters anything is added.
async fn run_free(seat: &Seat, ledger: &Rc<RefCell<Ledger>>, treaties: &[Treaty], rng: &mut Rng) {
    let at = rng.below(GUARDED as u64) as usize;
    let treaty = &treaties[at];
    let (asks, adds) = match rng.below(8) {
        0..=2 => (false, true),
        3..=6 => (true, false),
        _ => (true, true),
    };

    // What is added: to both counters of `same`, and else to one or two of any homes.
    let delta = rng.below(13) as i64 - 5;
    let homes = match at {
        SAME => vec![0, 1],
        _ => (0..=rng.below(2)).map(|_| rng.below(seat.homes as u64) as usize).collect(),
    };
    let pause = rng.one_in(4).then(|| rng.below(300 * MILLISECOND));
    let program = |txn: Txn| {
        let homes = homes.clone();
        async move {
            let held = if asks { Some(txn.holds(treaty).await?) } else { None };
            if let Some(pause) = pause {
                seat.port.sleep_until(seat.at_most(pause)).await;
            }
            if adds {
                homes.iter().try_for_each(|home| txn.add(&counter(*home, treaty.name()), delta))?;
            }
            Ok(held)
        }
    };
    if let Some((began, Some(verdict))) = run(seat, ledger, rng, asks, program).await {
        let events = &mut ledger.borrow_mut().events;
        events.push(Event::Probe(if verdict { "treaty: holds" } else { "treaty: does not hold" }));
        events.push(Event::Verdict { treaty: at, began, verdict });
    }
}

/// A program that lowers a sum only where it stays as required.
async fn run_guarded(seat: &Seat, ledger: &Rc<RefCell<Ledger>>, treaty: &Treaty, rng: &mut Rng) {
    let home = rng.below(seat.homes as u64) as usize;
    let (amount, grows) = (1 + rng.below(9) as i64, rng.one_in(2));
    let program = |txn: Txn| async move {
        if grows {
            txn.add(&counter(home, treaty.name()), amount)?;
            return Ok(true);
        }
        let made = txn.atomic(|txn| async move {
            txn.add(&counter(home, treaty.name()), -amount)?;
            txn.require(treaty).await
        });
        match made.await {
            Ok(()) => Ok(true),
            Err(TxnError::NotMet(_)) => Ok(false),
            Err(other) => Err(other),
        }
    };
    if let Some((_, made)) = run(seat, ledger, rng, !grows, program).await {
        let probe = if made { "treaty: required, and met" } else { "treaty: required, and not met" };
        ledger.borrow_mut().events.push(Event::Probe(probe));
    }
}

/// A program that sees all that was done before it, by the list that each appends to.
async fn run_ordered(seat: &Seat, ledger: &Rc<RefCell<Ledger>>, treaty: &Treaty, rng: &mut Rng) {
    let entry =
        Entry { adds: if rng.one_in(2) { rng.below(21) as i64 - 9 } else { 0 }, block: rng.below(21) as i64 - 12 };
    if ledger.borrow().entries.len() as u64 > ELEMENTS {
        return;
    }
    let number = {
        let mut ledger = ledger.borrow_mut();
        let number = ledger.entries.len() as u64 + 1;
        ledger.entries.insert(number, entry);
        number
    };
    let (asks, requires, reads_first, writes) = (rng.one_in(2), !rng.one_in(3), rng.one_in(2), !rng.one_in(4));
    let pause = rng.one_in(3).then(|| rng.below(400 * MILLISECOND));
    let program = |txn: Txn| async move {
        let list = Key::new(region(0), "t/list");
        let read = |txn: Txn, list: Key| async move { txn.get::<Vec<u64>>(&list).await.map(Option::unwrap_or_default) };
        let early = if reads_first { Some(read(txn.clone(), list.clone()).await?) } else { None };
        if entry.adds != 0 {
            txn.add(&counter(0, treaty.name()), entry.adds)?;
        }
        let held = if asks { Some(txn.holds(treaty).await?) } else { None };
        let mut made = None;
        if requires {
            let block = txn.atomic(|txn| async move {
                txn.add(&counter(1, treaty.name()), entry.block)?;
                txn.require(treaty).await
            });
            made = Some(match block.await {
                Ok(()) => true,
                Err(TxnError::NotMet(_)) => false,
                Err(other) => return Err(other),
            });
        }
        if let Some(pause) = pause {
            seat.port.sleep_until(seat.at_most(pause)).await;
        }
        let seen = match early {
            Some(seen) => seen,
            None => read(txn.clone(), list.clone()).await?,
        };

        // One that writes nothing is not in the list.
        let changes = entry.adds != 0 || made == Some(true);
        if changes || writes {
            let element = number << 1 | u64::from(made == Some(true));
            txn.put(&list, &[seen.clone(), vec![element]].concat())?;
        }
        Ok((seen, [held, made]))
    };
    if let Some((_, (seen, told))) = run(seat, ledger, rng, asks || requires, program).await {
        ledger.borrow_mut().events.push(Event::Ordered { entry, seen, told });
    }
}
