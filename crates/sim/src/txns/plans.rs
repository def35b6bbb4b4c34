//! What a transaction does: drawn before it begins.

use slackline_core::object::{ObjectKey, SCAN_ROWS};

use crate::calls::{Functions, REGISTERS};
use crate::state::Simulation;
use crate::state::txns::{Blind, Look, Plan, SETS, SetPart, member};

/// Lists; the first are read much and written seldom.
const LISTS: u64 = 22;
/// Those that are read much.
const POPULAR: u64 = 6;
/// Counters; see [`Simulation::delta`].
const COUNTERS: u64 = 6;
/// Mixed objects.
const MIXED: u64 = 4;

impl Simulation {
    /// The lists at a home that are read much.
    pub(crate) fn popular_at(&self, site: usize) -> Vec<ObjectKey> {
        let lists = (0..POPULAR).map(|number| self.object('l', number));
        lists.filter(|key| usize::from(key.home) == site).collect()
    }

    /// A transaction of some kind.
    pub(super) fn plan_transaction(&mut self) -> Plan {
        let mut plan = Plan { fresh: self.rng.one_in(4), ..Plan::default() };

        let draw = self.rng.below(100);
        let add = |plan: &mut Plan, key: ObjectKey| {
            if !plan.gets.contains(&key) {
                plan.gets.push(key);
            }
        };

        match draw {
            // Reads only.
            0..=41 => {
                for _ in 0..=self.rng.below(3) {
                    let key = self.list(false);
                    add(&mut plan, key);
                }
                if self.rng.one_in(5) {
                    let key = self.any('r', REGISTERS);
                    add(&mut plan, key);
                }
            }
            // Appends to lists that it reads, and perhaps reads others.
            42..=66 => {
                for _ in 0..=self.rng.below(2) {
                    let key = self.list(true);
                    if !plan.gets.contains(&key) {
                        plan.updates.push(plan.gets.len());
                        plan.gets.push(key);
                    }
                }
                for _ in 0..self.rng.below(3) {
                    let key = self.list(false);
                    add(&mut plan, key);
                }
            }
            // Registers, read and written or deleted, or blindly.
            67..=75 => {
                let key = self.any('r', REGISTERS);
                self.change_first(&mut plan, key);
                let key = self.any('r', REGISTERS);
                add(&mut plan, key);
            }

            // Without reading, so that writers do not depend on each other.
            76..=79 => {
                let key = self.any('r', REGISTERS);
                let blind = if self.rng.one_in(4) { Blind::Delete } else { Blind::Write(self.value()) };
                plan.blind.push((key, blind));
            }

            // Unseen changes of two homes.
            80..=85 => self.plan_adds(&mut plan),

            // Sums, of which others add meanwhile.
            86..=87 => {
                for _ in 0..2 {
                    let key = self.any('n', COUNTERS);
                    add(&mut plan, key);
                }
            }

            // What refuses some of that, and what comes and goes.
            88..=92 => self.plan_mixed(&mut plan),
            _ => self.plan_sets(&mut plan),
        }

        self.plan_calls(&mut plan);
        plan
    }

    /// Amounts are added to one or two counters.
    fn plan_adds(&mut self, plan: &mut Plan) {
        let (one, other) = (self.rng.below(COUNTERS), self.rng.below(COUNTERS));
        for number in if one == other { vec![one] } else { vec![one, other] } {
            let delta = self.delta(number);
            plan.blind.push((self.object('n', number), Blind::Add(delta)));
        }
    }

    /// Something is done with one to three mixed objects, which live at different homes.
    fn plan_mixed(&mut self, plan: &mut Plan) {
        let first = self.rng.below(MIXED);
        for number in 0..=self.rng.below(3) {
            let key = self.object('m', (first + number) % MIXED);
            let blind = match self.rng.below(10) {
                0 => Blind::Write(self.value()),
                1 => Blind::Put(self.value()),
                2 => Blind::Delete,
                3..=5 => Blind::Add(self.rng.below(19) as i64 - 9),
                kind => {
                    match kind {
                        6 => plan.updates.push(plan.gets.len()),
                        7 => plan.deletes.push(plan.gets.len()),
                        _ => {}
                    }
                    plan.gets.push(key);
                    continue;
                }
            };
            plan.blind.push((key, blind));
        }
        if plan.gets.is_empty() && plan.blind.len() == 1 && self.rng.one_in(2) {
            let key = self.any('r', REGISTERS);
            self.change_first(plan, key);
        }
    }

    /// Sets: an insert, a look, or both; what is found may be taken out.
    fn plan_sets(&mut self, plan: &mut Plan) {
        let number = self.rng.below(SETS);
        let (home, prefix) = self.set(number);

        let draw = self.rng.below(8);

        if draw >= 2 {
            let inserted = &self.txns.inserted[number as usize];
            let known = match inserted.len() as u64 {
                0 => 0,
                count => inserted[self.rng.below(count) as usize],
            };
            let part = match draw {
                2..=4 => SetPart::All { page: [3, 16, SCAN_ROWS as u32][self.rng.below(3) as usize] },
                5 => SetPart::After { element: known, limit: 1 + self.rng.below(6) as u32 },
                _ => SetPart::One { element: known },
            };
            plan.looks.push(Look { home, prefix: prefix.clone(), part, takes_out: self.rng.one_in(3) });
        }

        if draw <= 2 || draw == 7 {
            let element = self.value();
            self.txns.inserted[number as usize].push(element);
            plan.blind.push((ObjectKey::new(home, member(&prefix, element)), Blind::Insert(element)));
        }

        if self.rng.one_in(4) {
            let key = self.any('r', REGISTERS);
            self.change_first(plan, key);
        }
    }

    /// Some call memoized functions, and some end with an error of their own.
    fn plan_calls(&mut self, plan: &mut Plan) {
        let functions = Functions { sites: self.settings.homes as u64 };
        if self.rng.one_in(5) {
            // A plan that only reads makes room for what the calls read.
            if plan.updates.is_empty() {
                (plan.gets, plan.looks, plan.blind, plan.deletes) = Default::default();
            }
            for _ in 0..=self.rng.below(2) {
                let number = self.rng.below(REGISTERS);
                let call = match self.rng.below(6) {
                    0..=2 => functions.pick(number),
                    3..=4 => functions.both(number % 4),
                    _ => {
                        let (home, prefix) = self.set(number % SETS);
                        functions.count(home, &prefix)
                    }
                };
                plan.calls.push(call);
            }
        }

        plan.fails = self.rng.one_in(25);
    }

    /// At the end: every object at a home is written in one transaction.
    pub(super) fn plan_of_writes(&mut self, home: usize) -> Plan {
        let mut plan = Plan { fresh: true, ..Plan::default() };
        let at_home = |key: &ObjectKey| usize::from(key.home) == home;
        for (kind, count) in [('l', LISTS), ('r', REGISTERS)] {
            plan.gets.extend((0..count).map(|number| self.object(kind, number)).filter(at_home));
        }
        plan.updates = (0..plan.gets.len()).collect();

        // One fits, up or down: of those that may be at an end of the range it is drawn anew at each try. A number takes the place of
        // whatever is there.
        for number in 0..COUNTERS {
            let one = if number >= 2 && self.rng.one_in(2) { -1 } else { 1 };
            plan.blind.extend([self.object('n', number)].into_iter().filter(at_home).map(|key| (key, Blind::Add(one))));
        }
        let mixed: Vec<ObjectKey> = (0..MIXED).map(|number| self.object('m', number)).filter(at_home).collect();
        plan.blind.extend(mixed.into_iter().map(|key| (key, Blind::Put(self.value()))));
        plan
    }

    /// At the end: everything is read in one transaction.
    pub(super) fn plan_of_everything(&mut self) -> Plan {
        let mut plan = Plan { fresh: true, ..Plan::default() };
        for (kind, count) in [('l', LISTS), ('r', REGISTERS), ('n', COUNTERS), ('m', MIXED)] {
            plan.gets.extend((0..count).map(|number| self.object(kind, number)));
        }

        for number in 0..SETS {
            let (home, prefix) = self.set(number);
            plan.looks.push(Look { home, prefix, part: SetPart::All { page: 16 }, takes_out: false });
        }

        let functions = Functions { sites: self.settings.homes as u64 };
        plan.calls.extend((0..4).map(|number| functions.both(number)));
        plan
    }

    /// The object of a kind and number, and its home.
    fn object(&self, kind: char, number: u64) -> ObjectKey {
        ObjectKey::new((number % self.settings.homes as u64) as u16, format!("{kind}{number}"))
    }

    /// Some object of a kind.
    fn any(&mut self, kind: char, count: u64) -> ObjectKey {
        let number = self.rng.below(count);
        self.object(kind, number)
    }

    /// Some list: one that is read much, most of the time, unless it is to be written.
    fn list(&mut self, for_update: bool) -> ObjectKey {
        let popular = self.rng.below(100) < if for_update { 8 } else { 70 };
        let number = if popular { self.rng.below(POPULAR) } else { POPULAR + self.rng.below(LISTS - POPULAR) };
        self.object('l', number)
    }

    /// The home and the prefix of the set of a number that is in use.
    fn set(&self, number: u64) -> (u16, String) {
        let home = (number % self.settings.homes as u64) as u16;
        (home, format!("s{number}.{}/", self.txns.epochs[number as usize]))
    }

    /// The first object that is read is written, or now and then deleted.
    fn change_first(&mut self, plan: &mut Plan, key: ObjectKey) {
        plan.gets.push(key);
        if self.rng.one_in(4) { plan.deletes.push(0) } else { plan.updates.push(0) }
    }

    /// What is added to a counter. The first ones only grow. To the last ones so much is added, or taken away, that two of the
    /// same sign never fit: of those that are under way together only one may be prepared.
    fn delta(&mut self, number: u64) -> i64 {
        let amount = 1 + self.rng.below(9) as i64;
        let amount = if number >= 4 { (1 << 62) + amount } else { amount };
        if number >= 2 && self.rng.one_in(2) { -amount } else { amount }
    }

    /// A value that nobody has written yet.
    pub(super) fn value(&mut self) -> u64 {
        self.txns.values += 1;
        self.txns.values
    }
}
