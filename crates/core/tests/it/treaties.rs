//! Treaties under faults: whatever is lost, repeated and late, whoever crashes, loses its disk or is cut off, a statement is true
//! whenever somebody relies on it, and the statement's slack is neither made nor lost. The simulator's sweep goes further; this one
//! looks at every single step.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::api::{LeafHere, Operation, Outcome, Read, Request, Response, SeatChange};
use slackline_core::bounds::READING_BYTES;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::draft::Draft;
use slackline_core::draft::buffer::ROOT;
use slackline_core::id::Incarnation;
use slackline_core::machine::ClientId;
use slackline_core::object::message::Message;
use slackline_core::object::treaty::{Metric, Statement, TREATIES, Treaty, Tree, equally, treaty_key};
use slackline_core::object::{Cause, Change, Derived, Home, ObjectKey, Part, Seen, Transaction, Value};
use slackline_core::stats::Rng;
use slackline_core::txn::counter_of_row;

use crate::cluster::Cluster;
use crate::txns::{asked_by, prepare, tell};

/// The sites of a world.
const SITES: usize = 3;

/// The bounds that homes keep of a treaty, as they were seen.
#[derive(Default)]
struct Bounds {
    /// The bound of each clause at each home, as it was seen last, by the nonce of the making.
    seen: BTreeMap<(u64, u32), BTreeMap<u16, i64>>,
    /// The number of each clause, and the number of homes that it has terms of, by the nonce of the making.
    clauses: BTreeMap<(u64, u32), (i64, usize)>,
    gifts: u32,
    /// True if a clause has several counters at a home.
    has_transfers: bool,
}

impl Bounds {
    /// Every home keeps its part above its bound, and the bounds of a making add up. A donor may give, and be told at once that the treaty
    /// is over: so this is looked at after every step.
    fn look(&mut self, cluster: &Cluster) {
        for at in 0..SITES {
            let Some(node) = &cluster.hosts[at].node else { continue };
            for leaf in node.chapters().txns.leaves(cluster.time(at)) {
                for clause in leaf.clauses {
                    // A part in doubt that moves something from one counter to another counts as if it had only taken it.
                    let is_kept = clause.value >= clause.bound || self.has_transfers;
                    assert!(is_kept, "slack is conserved: {at} keeps {clause:?}");
                    let (least, homes) = self.clauses[&(leaf.nonce, clause.clause)];
                    let bounds = self.seen.entry((leaf.nonce, clause.clause)).or_default();
                    let before = bounds.insert(at as u16, clause.bound);
                    self.gifts += u32::from(before.is_some_and(|before| before < clause.bound));
                    let sum: i64 = bounds.values().sum();
                    let is_enough = bounds.len() < homes || sum >= least;
                    assert!(is_enough, "slack is conserved: bounds {bounds:?} for {least}");
                }
            }
        }
    }
}

/// A cluster, one treaty over its counters, and what is known of both.
struct World {
    cluster: Cluster,
    rng: Rng,
    statement: Statement,
    key: ObjectKey,
    tree: Tree,
    bounds: Bounds,
    /// What the counters of lost disks had come to.
    lost: BTreeMap<ObjectKey, i64>,
    made: u64,
    relied: u32,
}

/// The names of the counters of each home.
const NAMES: [&str; 2] = ["n", "m"];

fn counter(home: u16) -> ObjectKey {
    ObjectKey::new(home, "n")
}

/// All counters, in ascending order of their keys.
fn counters() -> Vec<ObjectKey> {
    let of = |home| NAMES.map(|name| ObjectKey::new(home, name));
    (0..SITES as u16).flat_map(of).collect::<BTreeSet<_>>().into_iter().collect()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut cluster = Cluster::new(SITES);
        let sum_of = |metric: &dyn Fn(u16) -> Metric| Metric::Sum((0..SITES as u16).map(metric).collect());
        let other = |home| ObjectKey::new(home, NAMES[1]);
        let sum = sum_of(&|home| Metric::Counter(counter(home)));
        let minus = |home| Metric::Times(-1, Box::new(Metric::Counter(other(home))));
        let kind = rng.below(7);
        let statement = match kind {
            0 => {
                Statement::AtLeast(Metric::Min(vec![sum, Metric::Times(3, Box::new(Metric::Counter(counter(1))))]), 30)
            }
            1 => Statement::AtMost(Metric::Times(-2, Box::new(sum)), -50),
            2 => Statement::All(vec![Statement::AtLeast(sum.clone(), 30), Statement::AtMost(sum, 200)]),
            // Two counters of a home in one clause; a logarithm among them; two sums that are written by turns.
            3 => Statement::AtLeast(sum_of(&|home| Metric::Sum(vec![Metric::Counter(counter(home)), minus(home)])), 30),
            4 => {
                let log = |home| Metric::Times(4, Box::new(Metric::Log2(other(home))));
                Statement::AtLeast(sum_of(&|home| Metric::Sum(vec![Metric::Counter(counter(home)), log(home)])), 30)
            }
            5 => Statement::All(vec![Statement::AtLeast(sum, 30), Statement::AtLeast(sum_of(&minus), -60)]),
            _ => Statement::AtLeast(sum, 30),
        };
        let tree = [Tree::Flat, Tree::Near][rng.below(2) as usize].clone();
        for home in 0..SITES {
            let add = Part { writes: vec![("n".into(), Change::Add(30))], ..Part::default() };
            let home = Home { region: home as u16, incarnation: Incarnation(1), part: add };
            cluster.done(0, Operation::Commit(Box::new(Transaction { homes: vec![home], ..Transaction::default() })));
        }
        cluster.unruly = Some(Rng::new(seed + 1_000));
        let has_transfers = matches!(kind, 3 | 4);
        let (bounds, lost) = (Bounds { has_transfers, ..Bounds::default() }, BTreeMap::new());
        let key = treaty_key(rng.below(SITES as u64) as u16, "t");
        Self { cluster, rng, statement, key, tree, bounds, lost, made: 0, relied: 0 }
    }

    /// A world in which nothing is lost or late, and the treaty is at home at the first site; it says this, if that is given.
    fn calm(statement: Option<Statement>) -> Self {
        let mut world = Self::new(1);
        world.cluster.unruly = None;
        world.key = treaty_key(0, "t");
        world.statement = statement.unwrap_or(world.statement);
        world
    }

    /// What a counter has come to: of its home's last incarnation, as its disk has it.
    fn count(&self, key: &ObjectKey) -> i64 {
        let host = &self.cluster.hosts[usize::from(key.home)];
        let counters = host.rows.iter().filter_map(|(row, value)| counter_of_row(row, Some(value)));
        let last = counters.filter(|(_, name, _)| *name == key.name).max_by_key(|(incarnation, _, _)| *incarnation);
        // What was lost counts until its home writes again: nobody can tell the difference before.
        last.map_or(self.lost.get(key).copied().unwrap_or(0), |(_, _, count)| count)
    }

    /// A home loses its disk. It is started at once.
    fn lose_disk(&mut self, home: usize) {
        for key in counters().into_iter().filter(|key| usize::from(key.home) == home) {
            let count = self.count(&key);
            self.lost.insert(key, count);
        }
        self.cluster.kill(home);
        self.cluster.hosts[home].put_back(Default::default());
        self.cluster.start(home);
    }

    fn is_true(&self) -> bool {
        self.statement.judge(&|key| self.count(key)).is_ok()
    }

    /// The leaves that a home keeps.
    fn leaves(&self, at: usize) -> Vec<LeafHere> {
        let node = self.cluster.hosts[at].node.as_ref().expect("runs");
        node.chapters().txns.leaves(self.cluster.time(at))
    }

    /// Lets time pass, and looks at what must always hold after each step.
    fn run(&mut self, span: u64) {
        let Self { cluster, bounds, .. } = self;
        cluster.run_and_look(span, |cluster| bounds.look(cluster));
    }

    fn is_up(&self, at: usize) -> bool {
        let node = self.cluster.hosts[at].node.as_ref();
        node.is_some_and(|node| node.readiness() == slackline_core::api::Readiness::Ready)
    }

    /// Reads objects at a site; nothing if it does not answer in time.
    fn read(&mut self, at: usize, gets: Vec<ObjectKey>) -> Option<Vec<Seen>> {
        let read = Read { token: 9, gets, scans: Vec::new(), fresh: true, upkeep: false, timeout: SECOND, claim: None };
        self.cluster.responses.retain(|(_, client, _)| *client != ClientId(50));
        self.cluster.request(at, 50, Request::Read(Box::new(read)));
        for _ in 0..240 {
            let found = self.cluster.responses.iter().position(|(_, client, _)| *client == ClientId(50));
            if let Some(found) = found {
                let (_, _, Response::Read(reading)) = self.cluster.responses.remove(found) else { return None };
                return reading.gets.into_iter().collect::<Result<_, _>>().ok();
            }
            self.run(5 * MILLISECOND);
        }
        None
    }

    /// The version of the treaty that a site sees, if it is valid.
    fn valid_at(&mut self, at: usize) -> Option<Seen> {
        let seen = self.read(at, vec![self.key.clone()])?.pop()?;
        let treaty = Treaty::of_value(seen.value.as_ref()?).ok()?;
        treaty.is_valid.then_some(seen)
    }

    /// Somebody relies on the treaty, and it is judged at once: it must be true then.
    fn rely(&mut self, at: usize) {
        let Some(seen) = self.valid_at(at) else { return };
        let part = Part { reads: vec![(self.key.name.clone(), seen.version.number)], ..Part::default() };
        let home = Home { region: self.key.home, incarnation: seen.version.incarnation, part };
        let commit = Operation::Commit(Box::new(Transaction { homes: vec![home], ..Transaction::default() }));
        let sequence = self.cluster.submit(at, commit);
        if let Some(Outcome::Committed { phases: 0 }) = self.cluster.outcome(at, sequence) {
            self.relied += 1;
            let counts: Vec<i64> = counters().iter().map(|key| self.count(key)).collect();
            assert!(
                self.is_true(),
                "treaties are true: {at} relies on what is false: {counts:?}, {:?}",
                self.statement
            );
        }
    }

    /// Somebody makes the treaty, if it is not there, and the statement is true.
    fn make(&mut self, at: usize) {
        let counters = counters();
        let Some(mut seen) = self.read(at, counters.iter().cloned().chain([self.key.clone()]).collect()) else {
            return;
        };
        let found = seen.pop().expect("the treaty's");
        let before = found.value.as_ref().and_then(|value| Treaty::of_value(value).ok());
        if before.is_some_and(|before| before.is_valid) {
            return;
        }
        let seen: BTreeMap<ObjectKey, Seen> = counters.into_iter().zip(seen).collect();
        let count = |key: &ObjectKey| match &seen[key].value {
            Some(Value::Counter(count)) => *count,
            _ => 0,
        };
        let homes = (0..SITES as u16).map(|home| (home, seen[&counter(home)].version.incarnation)).collect();
        self.made += 1;
        let (statement, tree) = (self.statement.clone(), self.tree.clone());
        let treaty = Treaty { nonce: self.made, is_valid: true, retracts: 0, statement, tree };
        let Ok(clauses) = self.statement.clauses(&count) else { return };
        let Ok(notes) = treaty.notes(&self.key, &homes, &count, &equally) else { return };
        for (position, clause) in clauses.iter().enumerate() {
            self.bounds.clauses.insert((self.made, position as u32), (clause.least, clause.homes.len()));
        }
        let rests = notes.values().next().expect("some").homes.clone();
        let mut parts: BTreeMap<u16, Part> = BTreeMap::new();
        notes.into_iter().for_each(|(home, note)| parts.entry(home).or_default().notes.push(note));
        let part = parts.entry(self.key.home).or_default();
        part.reads.push((self.key.name.clone(), found.version.number));
        part.writes.push((self.key.name.clone(), Change::Put(treaty.to_value(&self.key, &rests))));
        let home = |(region, part): (u16, Part)| {
            let is_home = region == self.key.home;
            Home { region, incarnation: if is_home { found.version.incarnation } else { homes[&region] }, part }
        };
        let homes = parts.into_iter().map(home).collect();
        let transaction = Transaction { homes, max_wait: 2 * SECOND, ..Transaction::default() };
        self.cluster.submit(at, Operation::Commit(Box::new(transaction)));
    }

    /// Somebody adds to one or two counters.
    fn add(&mut self, at: usize) {
        let mut homes = BTreeMap::new();
        for _ in 0..=self.rng.below(2) {
            let home = self.rng.below(SITES as u64) as u16;
            let delta = self.rng.below(15) as i64 - 7;
            let count = Change::Put(Value::Counter(self.rng.below(40) as i64));
            let change = match self.rng.below(12) {
                0 => count,
                1 => Change::Delete,
                _ => Change::Add(delta),
            };
            // One counter, or something is moved from one to the other.
            let writes = match self.rng.below(3) {
                0 => vec![("m".into(), change)],
                1 => vec![("m".into(), Change::Add(delta)), ("n".into(), Change::Add(delta))],
                _ => vec![("n".into(), Change::Add(delta))],
            };
            let (part, region) = (Part { writes, ..Part::default() }, home);
            homes.insert(home, Home { region, incarnation: Incarnation(0), part });
        }
        let relies = self.rng.one_in(4).then(|| self.key.clone());
        homes.values_mut().for_each(|home| home.part.relies.extend(relies.iter().cloned()));
        let max_wait = [0, SECOND, 8 * SECOND][self.rng.below(3) as usize];
        let transaction = Transaction { homes: homes.into_values().collect(), max_wait, ..Transaction::default() };
        self.cluster.submit(at, Operation::Commit(Box::new(transaction)));
    }

    /// A home is cut off for longer than a lease, and wants to break the treaty all the time. When it is back, others rely on it at once.
    fn cut_off(&mut self, at: usize) {
        let others = (0..SITES).filter(|other| *other != at);
        self.cluster.cut = others.flat_map(|other| [(at, other), (other, at)]).collect();
        for second in 0..32 {
            // By now it is free of its bounds, and has written below them. What it starts on again must be so, too.
            if second == 28 {
                self.cluster.kill(at);
                self.cluster.start(at);
            }
            if self.is_up(at) {
                let lower = Part { writes: vec![("n".into(), Change::Add(-40))], ..Part::default() };
                let home = Home { region: at as u16, incarnation: Incarnation(0), part: lower };
                let transaction = Transaction { homes: vec![home], max_wait: 8 * SECOND, ..Transaction::default() };
                self.cluster.submit(at, Operation::Commit(Box::new(transaction)));
            }
            self.run(SECOND);
        }
        self.cluster.cut.clear();
        for round in 0..40 {
            if self.is_up(round % SITES) {
                self.rely(round % SITES);
            }
            self.run(40 * MILLISECOND);
        }
    }

    /// The treaty's home loses its disk while one who relies on the treaty is cut off from it, and another home breaks the statement.
    fn lose_home(&mut self) {
        let home = usize::from(self.key.home);
        let (reader, writer) = ((home + 1) % SITES, (home + 2) % SITES);
        self.rely(reader);
        self.cluster.cut = vec![(home, reader), (reader, home), (reader, writer), (writer, reader)];
        self.lose_disk(home);
        for round in 0..120 {
            if round % 20 == 10 && self.is_up(writer) {
                let lower = Part { writes: vec![("n".into(), Change::Add(-40))], ..Part::default() };
                let home = Home { region: writer as u16, incarnation: Incarnation(0), part: lower };
                let transaction = Transaction { homes: vec![home], max_wait: 8 * SECOND, ..Transaction::default() };
                self.cluster.submit(writer, Operation::Commit(Box::new(transaction)));
            }
            self.rely(reader);
            self.run(100 * MILLISECOND);
        }
        self.cluster.cut.clear();
    }

    /// Something goes wrong.
    fn strike(&mut self) {
        let (at, other) = (self.rng.below(SITES as u64) as usize, self.rng.below(SITES as u64) as usize);
        match self.rng.below(10) {
            8 => self.cut_off(at),
            9 => self.lose_home(),
            0 | 1 => {
                self.cluster.kill(at);
                let span = self.rng.below(3 * SECOND);
                self.run(span);
                self.cluster.start(at);
            }
            2 => self.lose_disk(at),
            3 => self.cluster.cut.extend([(at, other), (other, at)]),
            4 => self.cluster.cut.push((at, other)),
            _ => self.cluster.cut.clear(),
        }
    }
}

#[test]
fn statement_is_true_whenever_somebody_relies_on_it() {
    let (mut relied, mut made, mut gifts) = (0, 0, 0);
    for seed in 1..=200 {
        let mut world = World::new(seed);
        for step in 0..500 {
            let at = world.rng.below(SITES as u64) as usize;
            if step % 60 == 59 {
                world.strike();
            }
            if world.is_up(at) {
                match world.rng.below(10) {
                    0..=4 => world.add(at),
                    5..=8 => world.rely(at),
                    _ => world.make(at),
                }
            }
            let span = world.rng.below(120 * MILLISECOND);
            world.run(span);
        }

        // Everybody can be reached again: a write that takes more than there is goes on within the lease, and so does what waits.
        world.cluster.cut.clear();
        world.cluster.unruly = None;
        for at in 0..SITES {
            if world.cluster.hosts[at].node.is_none() {
                world.cluster.start(at);
            }
        }
        world.run(30 * SECOND);
        let lower = Part { writes: vec![("n".into(), Change::Add(-1_000_000))], ..Part::default() };
        let home = Home { region: 0, incarnation: Incarnation(0), part: lower };
        // A client without patience comes again, and is not held up for good either.
        let max_wait = [10 * SECOND, 0][usize::from(seed % 2 == 0)];
        let transaction = Transaction { homes: vec![home], max_wait, ..Transaction::default() };
        let (mut outcome, mut last) = (None, String::new());
        for _ in 0..6 {
            world.cluster.responses.clear();
            match world.cluster.done(0, Operation::Commit(Box::new(transaction.clone()))) {
                Outcome::Committed { .. } => outcome = Some(()),
                other => {
                    // Objects of a disk that was lost may not be known to be gone.
                    last = format!("{other:?}");
                    outcome = last.contains("Lost").then_some(());
                    world.run(3 * SECOND);
                }
            }
            if outcome.is_some() {
                break;
            }
        }
        let leaves = (0..SITES).filter_map(|at| {
            Some((at, world.cluster.hosts[at].node.as_ref()?.chapters().txns.leaves(world.cluster.time(at))))
        });
        assert!(
            outcome.is_some(),
            "liveness after healing: seed {seed}: a write is held up for good: {last}; {:?}",
            leaves.collect::<Vec<_>>()
        );
        (relied, made, gifts) = (relied + world.relied, made + world.made, gifts + world.bounds.gifts);
    }
    assert!(relied > 6_000 && made > 500 && gifts > 3_000, "{relied} relied, {made} made, {gifts} gifts");
}

/// What the homes judge is the state before a transaction and the one after it. A program that asks in between is told nothing
/// that neither of them shows.
#[test]
fn reliance_between_two_writes_is_misjudged() {
    let (treaty, x, y) = (ObjectKey::new(0, "t"), ObjectKey::new(0, "x"), ObjectKey::new(1, "y"));
    let rely = |draft: &mut Draft, layer| {
        draft.rely(layer, treaty.clone(), || BTreeSet::from([x.clone(), y.clone()])).expect("the layer is there");
    };
    let add = |draft: &mut Draft, layer, delta| {
        draft.buffer.write(layer, x.clone(), Change::Add(delta)).expect("in range");
    };

    // Before all writes, and after them.
    let mut draft = Draft::new();
    rely(&mut draft, ROOT);
    add(&mut draft, ROOT, -100);
    rely(&mut draft, ROOT);
    assert_eq!(draft.misjudged(true), None);

    // Nothing of it is judged if the program ends with an error; and another write makes up for the first.
    assert_eq!(draft.misjudged(false), Some(&treaty));
    add(&mut draft, ROOT, 100);
    assert_eq!(draft.misjudged(true), Some(&treaty));

    // In a block that is undone.
    let mut draft = Draft::new();
    let layer = draft.buffer.open(ROOT).expect("the root is there");
    add(&mut draft, layer, -100);
    rely(&mut draft, layer);
    draft.buffer.discard(layer);
    assert_eq!(draft.misjudged(true), Some(&treaty));
}

/// The treaties of a counter are bounded, also where one transaction brings them all.
#[test]
fn too_many_treaties_on_a_counter_in_one_transaction_are_refused() {
    for (count, is_taken) in [(TREATIES as u64, true), (TREATIES as u64 + 1, false)] {
        let mut world = World::new(1);
        world.cluster.unruly = None;
        let homes = BTreeMap::from([(0, Incarnation(1))]);
        let mut part = Part::default();
        for nonce in 1..=count {
            let key = treaty_key(0, &nonce.to_string());
            let statement = Statement::AtLeast(Metric::Counter(counter(0)), -5);
            let treaty = Treaty { nonce, is_valid: true, retracts: 0, statement, tree: Tree::Near };
            let notes = treaty.notes(&key, &homes, &|_| 0, &equally).expect("it is true");
            let note = notes.into_values().next().expect("of its one home");
            part.writes.push((key.name.clone(), Change::Put(treaty.to_value(&key, &note.homes))));
            part.notes.push(note);
        }
        let home = Home { region: 0, incarnation: Incarnation(1), part };
        let transaction = Transaction { homes: vec![home], ..Transaction::default() };
        let id = world.cluster.submit(0, Operation::Commit(Box::new(transaction)));
        world.cluster.run(SECOND);
        let outcome = world.cluster.outcome(0, id).expect("it is answered");
        match outcome {
            Outcome::Aborted(ref abort) => assert!(!is_taken && abort.cause == Cause::TooManyTreaties, "{outcome:?}"),
            _ => assert!(is_taken, "{outcome:?}"),
        }
    }
}

/// A home that gives at a rate tells so, and tells when it ends, whoever ended it: the receiver counts on it.
#[test]
fn rate_is_counted_on_as_long_as_it_is_given() {
    let mut rates = 0;
    for seed in 1..=30 {
        let mut world = World::new(seed);
        world.cluster.unruly = None;
        world.make(0);
        world.run(SECOND);
        for phase in 0..4 {
            // Up to five units a second, up or down, in turns that are not known before.
            let velocities: [i64; SITES] = std::array::from_fn(|_| world.rng.below(11) as i64 - 5);
            for step in 0..200i64 {
                for (at, velocity) in velocities.iter().enumerate() {
                    let delta = (step + 1) * velocity / 10 - step * velocity / 10;
                    if delta != 0 {
                        let writes = vec![("n".into(), Change::Add(delta))];
                        let part = Part { writes, ..Part::default() };
                        let home = Home { region: at as u16, incarnation: Incarnation(1), part };
                        let max_wait = 8 * SECOND;
                        let transaction = Transaction { homes: vec![home], max_wait, ..Transaction::default() };
                        world.cluster.submit(at, Operation::Commit(Box::new(transaction)));
                    }
                }
                world.run(100 * MILLISECOND);
            }

            // What was said has arrived.
            world.run(SECOND);
            let mut given: BTreeMap<u32, (usize, i64, i64)> = BTreeMap::new();
            for host in &world.cluster.hosts {
                let node = host.node.as_ref().expect("nobody is killed");
                let leaves = node.chapters().txns.leaves(world.cluster.time(0));
                for clause in leaves.into_iter().flat_map(|leaf| leaf.clauses) {
                    let of = given.entry(clause.clause).or_default();
                    *of = (of.0 + 1, of.1 + clause.rate, of.2 + clause.rate.abs());
                }
            }
            for (clause, (homes, sum, all)) in given {
                if homes == world.bounds.clauses[&(world.made, clause)].1 {
                    assert_eq!(sum, 0, "what one home gives at, another counts on: seed {seed}, phase {phase}");
                    rates += u32::from(all > 0);
                }
            }
        }
    }
    assert!(rates > 20, "{rates} clauses with rates");
}

/// The bound is as low as a number can be. Bytes in place of the counter leave no number of it at all, and no slack would be enough.
#[test]
fn bytes_in_place_of_a_counter_end_its_treaty() {
    let mut world = World::calm(Some(Statement::AtLeast(Metric::Counter(counter(0)), i64::MIN)));
    world.make(0);
    world.run(SECOND);
    assert!(world.valid_at(0).is_some());
    let part =
        Part { writes: vec![("n".into(), Change::Put(Value::Bytes(b"no number"[..].into())))], ..Part::default() };
    let home = Home { region: 0, incarnation: Incarnation(1), part };
    let transaction = Transaction { homes: vec![home], max_wait: 2 * SECOND, ..Transaction::default() };
    let put = world.cluster.submit(0, Operation::Commit(Box::new(transaction)));
    world.cluster.run(3 * SECOND);
    assert_eq!(world.cluster.outcome(0, put), Some(Outcome::Committed { phases: 1 }));
    assert!(world.valid_at(0).is_none(), "it is retracted");
}

/// Each write lacks more slack than an `i64` holds many times over, and all of them wait at once.
#[test]
fn writes_that_lack_more_than_numbers_hold_are_answered() {
    let [here, there] = [0, 1].map(|home| Metric::Counter(ObjectKey::new(home, NAMES[1])));
    let sum = Metric::Sum(vec![Metric::Times(1 << 62, Box::new(here)), there]);
    let mut world = World::calm(Some(Statement::AtLeast(sum, 0)));
    world.make(0);
    world.run(SECOND);
    assert!(world.valid_at(0).is_some());
    let writes: Vec<u64> = (0..9)
        .map(|_| {
            let part = Part { writes: vec![(NAMES[1].into(), Change::Add(i64::MIN))], ..Part::default() };
            let home = Home { region: 0, incarnation: Incarnation(1), part };
            let transaction = Transaction { homes: vec![home], max_wait: 2 * SECOND, ..Transaction::default() };
            world.cluster.submit(0, Operation::Commit(Box::new(transaction)))
        })
        .collect();
    world.cluster.run(5 * SECOND);
    assert!(world.is_up(0));
    assert!(writes.iter().all(|write| world.cluster.outcome(0, *write).is_some()), "each is answered");
}

/// The counters of all homes add up to at least 30; each is 30, so each home has a slack of 20.
fn at_least_30() -> World {
    let sum = Metric::Sum((0..SITES as u16).map(|home| Metric::Counter(counter(home))).collect());
    let mut world = World::calm(Some(Statement::AtLeast(sum, 30)));
    world.make(0);
    world.run(SECOND);
    assert!(world.valid_at(0).is_some());
    world
}

/// Commits writes at a home, of which the client waits for slack for two seconds.
fn write(world: &mut World, home: usize, reads: &[(&str, u64)], writes: &[(&str, i64)]) -> u64 {
    let reads = reads.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect();
    let writes = writes.iter().map(|(name, delta)| ((*name).to_owned(), Change::Add(*delta))).collect();
    let part = Part { reads, writes, ..Part::default() };
    let part = Home { region: home as u16, incarnation: Incarnation(1), part };
    let transaction = Transaction { homes: vec![part], max_wait: 2 * SECOND, ..Transaction::default() };
    world.cluster.submit(home, Operation::Commit(Box::new(transaction)))
}

/// Each write at the first home is carried out, and the treaty is not retracted for them.
fn are_committed_and_it_stands(world: &mut World, writes: impl IntoIterator<Item = u64>) {
    for write in writes {
        assert_eq!(world.cluster.outcome(0, write), Some(Outcome::Committed { phases: 1 }));
    }
    assert!(world.valid_at(0).is_some(), "a treaty is retracted of which there is enough");
}

/// While something is undecided a home may be below its bound, by 30 here. Two writes wait for it, and the others have what both take and
/// these 30; not what both take and twice these 30.
#[test]
fn what_is_missing_while_a_transfer_is_in_doubt_counts_once_for_all_writes_that_wait() {
    let of = |home| Metric::Counter(counter(home));
    let sum = vec![of(0), Metric::Counter(ObjectKey::new(0, "m")), of(1), of(2)];
    let mut world = World::calm(Some(Statement::AtLeast(Metric::Sum(sum), 30)));
    world.bounds.has_transfers = true;
    world.make(0);
    world.run(2 * SECOND);
    assert!(world.valid_at(0).is_some());
    let participants = [0, 1].map(|at| (Cluster::site(at), Incarnation(1)));
    let writes = vec![("m".into(), Change::Add(50)), ("n".into(), Change::Add(-50))];
    let asked = prepare(
        asked_by(1),
        world.cluster.time(0).wall + 5 * SECOND as i64,
        &participants,
        Part { writes, ..Part::default() },
    );
    tell(&mut world.cluster, 1, 0, Message::Prepare(Box::new(asked)));
    world.run(10 * MILLISECOND);
    let leaves = world.leaves(0);
    assert_eq!(leaves[0].clauses[0].value - leaves[0].clauses[0].bound, -30, "{leaves:?}");

    let waiting = [write(&mut world, 0, &[], &[("n", -5)]), write(&mut world, 0, &[], &[("n", -5)])];
    world.run(2 * SECOND);
    are_committed_and_it_stands(&mut world, waiting);
}

/// Each write takes more than its home has. It comes when the one before it has had its slack, and before anybody has looked whether that has
/// come: one question follows upon the other. The others have plenty each time.
#[test]
fn treaty_with_plenty_of_slack_stands_however_many_writes_lack_some_one_after_the_other() {
    let mut world = at_least_30();
    let mut writes: Vec<u64> = Vec::new();
    while writes.len() < 20 {
        for home in 1..SITES {
            write(&mut world, home, &[], &[("n", 40)]);
        }
        let leaves = world.leaves(0);
        assert_eq!(leaves.len(), 1, "a treaty is retracted of which there is enough");
        let clause = &leaves[0].clauses[0];
        if writes.last().is_none_or(|last| world.cluster.outcome(0, *last).is_some()) {
            writes.push(write(&mut world, 0, &[], &[("n", clause.bound - clause.value - 10)]));
        }
        world.run(60 * MILLISECOND);
    }
    world.run(2 * SECOND);
    are_committed_and_it_stands(&mut world, writes);
}

fn version_of_m(world: &mut World) -> u64 {
    world.read(0, vec![ObjectKey::new(0, "m")]).expect("it is read")[0].version.number
}

fn is_refused_as_changed(world: &mut World, write: u64) {
    let Some(Outcome::Aborted(abort)) = world.cluster.outcome(0, write) else { panic!("it is refused") };
    assert_eq!(abort.cause, Cause::Changed);
}

/// All homes together have not what the write takes. It will be refused in any case, since what it read has changed.
#[test]
fn treaty_is_not_retracted_for_a_write_that_never_is() {
    let mut world = at_least_30();
    let write = write(&mut world, 0, &[("m", 7)], &[("n", -100)]);
    world.run(SECOND);
    is_refused_as_changed(&mut world, write);
    world.run(4 * SECOND);
    assert!(world.valid_at(0).is_some(), "the treaty is retracted for nothing");
}

/// All homes together have not what the write takes, and what it read is written while the others are asked. Then it never is carried out.
#[test]
fn treaty_is_not_retracted_for_a_write_whose_reads_change_while_it_waits() {
    let mut world = at_least_30();
    let read = version_of_m(&mut world);
    let waits = write(&mut world, 0, &[("m", read)], &[("n", -100)]);
    world.run(5 * MILLISECOND);
    let changes = write(&mut world, 0, &[], &[("m", 1)]);
    world.run(SECOND);
    assert_eq!(world.cluster.outcome(0, changes), Some(Outcome::Committed { phases: 1 }));
    is_refused_as_changed(&mut world, waits);
    world.run(4 * SECOND);
    assert!(world.valid_at(0).is_some(), "the treaty is retracted for nothing");
}

/// Another write waits beside it, for which there is enough.
#[test]
fn treaty_is_not_retracted_for_one_that_waits_beside_a_write_whose_reads_change() {
    for is_first in [true, false] {
        let mut world = at_least_30();
        let read = version_of_m(&mut world);
        let waits_too = |world: &mut World| write(world, 0, &[], &[("n", -25)]);
        let before = is_first.then(|| waits_too(&mut world));
        let waits = write(&mut world, 0, &[("m", read)], &[("n", -100)]);
        let other = before.unwrap_or_else(|| waits_too(&mut world));
        world.run(5 * MILLISECOND);
        write(&mut world, 0, &[], &[("m", 1)]);
        world.run(2 * SECOND);
        is_refused_as_changed(&mut world, waits);
        are_committed_and_it_stands(&mut world, [other]);
    }
}

/// The same, and what it read stays as it is: the treaty goes, and the write is carried out.
#[test]
fn treaty_is_retracted_for_a_write_that_takes_more_than_there_is() {
    let mut world = at_least_30();
    let read = version_of_m(&mut world);
    let waits = write(&mut world, 0, &[("m", read)], &[("n", -100)]);
    world.run(SECOND);
    assert_eq!(world.cluster.outcome(0, waits), Some(Outcome::Committed { phases: 1 }));
    assert!(world.valid_at(0).is_none(), "it is broken, and stands");
}

/// A home writes three at a time, and will lack slack soon. The two groups of others that it asks first have less than it wants ahead, and the
/// last home is down: what the first have comes without it.
#[test]
fn slack_comes_ahead_of_need_while_the_last_group_of_homes_is_down() {
    let mut cluster = Cluster::new(4);
    let homes: BTreeMap<u16, Incarnation> = (0..4).map(|home| (home, Incarnation(1))).collect();
    for home in 0..4 {
        let part = Part { writes: vec![("n".into(), Change::Add(30))], ..Part::default() };
        let home = Home { region: home, incarnation: Incarnation(1), part };
        cluster.done(0, Operation::Commit(Box::new(Transaction { homes: vec![home], ..Transaction::default() })));
    }
    let sum = Metric::Sum((0..4).map(|home| Metric::Counter(counter(home))).collect());
    let tree = Tree::Given(vec![BTreeSet::from([0, 1]), BTreeSet::from([0, 1, 2])]);
    let treaty = Treaty { nonce: 1, is_valid: true, retracts: 0, statement: Statement::AtLeast(sum, 40), tree };
    let key = treaty_key(0, "t");
    let notes = treaty.notes(&key, &homes, &|_| 30, &equally).expect("it is true");
    let mut parts: BTreeMap<u16, Part> =
        notes.into_iter().map(|(home, note)| (home, Part { notes: vec![note], ..Part::default() })).collect();
    let rests: Vec<_> = homes.into_iter().collect();
    parts.entry(0).or_default().writes = vec![(key.name.clone(), Change::Put(treaty.to_value(&key, &rests)))];
    let homes = parts.into_iter().map(|(region, part)| Home { region, incarnation: Incarnation(1), part }).collect();
    let made =
        cluster.done(0, Operation::Commit(Box::new(Transaction { homes, max_wait: SECOND, ..Transaction::default() })));
    assert_eq!(made, Outcome::Committed { phases: 2 });
    cluster.kill(3);
    cluster.run(10 * SECOND);

    // The slack of each is 20: alone it would be enough for six.
    for written in 0..14 {
        let part = Part { writes: vec![("n".into(), Change::Add(-3))], ..Part::default() };
        let home = Home { region: 0, incarnation: Incarnation(1), part };
        let transaction = Transaction { homes: vec![home], max_wait: SECOND, ..Transaction::default() };
        let write = cluster.submit(0, Operation::Commit(Box::new(transaction)));
        cluster.run(MILLISECOND);
        assert_eq!(
            cluster.outcome(0, write),
            Some(Outcome::Committed { phases: 1 }),
            "write {written} waits for slack"
        );
        cluster.run(150 * MILLISECOND);
    }
}

/// One write leaves a home short of two clauses. Nobody else has slack of the second; of the first it comes all the same.
#[test]
fn slack_of_one_clause_comes_ahead_though_another_one_has_none_elsewhere() {
    let of = |home| Metric::Counter(counter(home));
    let sum = Statement::AtLeast(Metric::Sum(vec![of(0), of(1)]), 40);
    let mut world = World::calm(Some(Statement::All(vec![sum, Statement::AtLeast(of(0), 20)])));
    world.make(0);

    // New treaties divide their slack again and again.
    world.run(60 * SECOND);
    let slack = |world: &World| -> Vec<i64> {
        world.leaves(0)[0].clauses.iter().map(|clause| clause.value - clause.bound).collect()
    };
    assert_eq!(slack(&world), [10, 10]);
    let write = write(&mut world, 0, &[], &[("n", -9)]);
    assert_eq!(slack(&world), [1, 1], "short of the next write like this one");
    world.run(500 * MILLISECOND);
    are_committed_and_it_stands(&mut world, [write]);
    assert!(slack(&world)[0] > 1, "none came: {:?}", slack(&world));
}

/// What it says of all treaties has to fit a message.
#[test]
fn list_of_treaties_is_cut_to_what_an_answer_has_room_for() {
    let mut cluster = Cluster::new(1);
    let put = |at: usize| {
        let derived = Derived { bytes: vec![0u8; 250_000].into(), homes: Vec::new() };
        let writes = vec![(treaty_key(0, &at.to_string()).name, Change::Put(Value::Derived(derived)))];
        let home = Home { region: 0, incarnation: Incarnation(1), part: Part { writes, ..Part::default() } };
        Operation::Commit(Box::new(Transaction { homes: vec![home], ..Transaction::default() }))
    };
    for at in 0..20 {
        assert_eq!(cluster.done(0, put(at)), Outcome::Committed { phases: 1 });
    }
    cluster.request(0, 5, Request::Treaties { treaty: None });
    let Some((_, _, Response::Treaties(told))) = cluster.responses.pop() else { panic!("told at once") };
    assert!(told.has_more && told.homes.len() == READING_BYTES / 250_100, "{}", told.homes.len());
    assert!((READING_BYTES - 250_100..=READING_BYTES).contains(&told.bytes()));
}

/// Each of those that wait gives the counter the same value: all of them take no more than one.
#[test]
fn writes_that_put_a_value_take_no_more_than_one_of_them() {
    let mut world = at_least_30();
    let puts: Vec<u64> = (0..5)
        .map(|_| {
            let part = Part { writes: vec![("n".into(), Change::Put(Value::Counter(-20)))], ..Part::default() };
            let home = Home { region: 0, incarnation: Incarnation(1), part };
            let transaction = Transaction { homes: vec![home], max_wait: 2 * SECOND, ..Transaction::default() };
            world.cluster.submit(0, Operation::Commit(Box::new(transaction)))
        })
        .collect();
    world.run(3 * SECOND);
    are_committed_and_it_stands(&mut world, puts);
}

/// A making goes in the midst of a batch and comes again under its name with other clauses, while a write waits for one that it had before.
#[test]
fn making_that_comes_again_with_fewer_clauses_harms_nobody_who_waits() {
    let of = |home| Metric::Counter(counter(home));
    let sum = |number| Statement::AtLeast(Metric::Sum(vec![of(0), of(1)]), number);
    let other = Statement::AtLeast(Metric::Sum(vec![Metric::Counter(ObjectKey::new(0, "m")), of(2)]), -30);
    let mut world = World::calm(Some(Statement::All(vec![sum(30), other])));
    world.make(0);
    world.run(SECOND);
    assert!(world.valid_at(0).is_some());
    let waiting = write(&mut world, 0, &[], &[("m", -31)]);
    assert_eq!(world.cluster.outcome(0, waiting), None, "it waits for slack of the second clause");

    // Any client may name a making as it likes.
    let homes = BTreeMap::from([(0, Incarnation(1))]);
    let rests: Vec<_> = homes.clone().into_iter().collect();
    let makes = |nonce: u64, least: i64| {
        let statement = Statement::AtLeast(of(0), least);
        let treaty = Treaty { nonce, is_valid: true, retracts: 0, statement, tree: Tree::Flat };
        let notes = treaty.notes(&world.key, &homes, &|_| 30, &equally).expect("it is true").into_values().collect();
        let put = Change::Put(treaty.to_value(&world.key, &rests));
        Part { notes, writes: vec![(world.key.name.clone(), put)], ..Part::default() }
    };
    let adds = Part { writes: vec![("n".into(), Change::Add(-1))], ..Part::default() };
    let batch = [makes(2, 0), makes(1, 30), adds].map(|part| {
        let home = Home { region: 0, incarnation: Incarnation(1), part };
        Operation::Commit(Box::new(Transaction { homes: vec![home], max_wait: SECOND, ..Transaction::default() }))
    });
    world.cluster.submit_all(0, batch);
    for made in [1, 2] {
        let outcome = world.cluster.outcome(0, waiting + made);
        assert_eq!(outcome, Some(Outcome::Committed { phases: 1 }), "it goes, and comes again");
    }
    world.cluster.run(3 * SECOND);
    assert!(world.is_up(0));
    assert!(world.cluster.outcome(0, waiting).is_some());
}

/// The bytes are prepared when the treaty is made: it is not, since nothing could retract it when they are carried out.
#[test]
fn treaty_is_not_made_of_what_may_be_no_counter_soon() {
    let mut world = World::calm(Some(Statement::AtLeast(Metric::Counter(counter(0)), i64::MIN)));
    world.cluster.run(2 * SECOND);
    let id = asked_by(1);
    let participants = [0, 1].map(|at| (Cluster::site(at), Incarnation(1)));
    let put = Change::Put(Value::Bytes(b"no number"[..].into()));
    let part = Part { writes: vec![("n".into(), put)], ..Part::default() };
    let asked = prepare(id, world.cluster.time(0).wall + 5 * SECOND as i64, &participants, part);
    tell(&mut world.cluster, 1, 0, Message::Prepare(Box::new(asked)));
    world.make(0);
    world.run(SECOND);
    assert!(world.valid_at(0).is_none(), "it could never be retracted");
}

/// A site breaks a treaty while it is cut off, and then its disk is replaced by an older copy, which starts again and again. Others ask it
/// whether it still has its storage before anybody has told it that it has not.
#[test]
fn old_copy_that_nobody_has_betrayed_yet_vouches_for_no_treaty() {
    let sum = Metric::Sum((0..SITES as u16).map(|home| Metric::Counter(counter(home))).collect());
    let mut world = World::calm(Some(Statement::AtLeast(sum, 30)));
    world.make(0);
    world.run(2 * SECOND);
    assert!(world.valid_at(0).is_some());
    let copy = world.cluster.hosts[1].copy();
    // What others have heard of since betrays the copy.
    let write = |name: &str, delta: i64| {
        let part = Part { writes: vec![(name.into(), Change::Add(delta))], ..Part::default() };
        let home = Home { region: 1, incarnation: Incarnation(0), part };
        let transaction = Transaction { homes: vec![home], max_wait: 8 * SECOND, ..Transaction::default() };
        Operation::Commit(Box::new(transaction))
    };
    world.cluster.done(1, write("other", 1));
    world.run(2 * SECOND);
    world.cluster.cut = vec![(1, 0), (0, 1), (1, 2), (2, 1)];
    for _ in 0..40 {
        world.cluster.submit(1, write("n", -90));
        world.run(SECOND);
    }
    assert!(!world.is_true(), "it is free of its bound by now");

    world.cluster.kill(1);
    world.cluster.hosts[1].put_back(copy);
    world.cluster.cut.clear();
    for _ in 0..30 {
        world.cluster.start(1);
        world.run(70 * MILLISECOND);
        world.cluster.kill(1);
        assert!(world.valid_at(0).is_none(), "treaties are true");
    }
}

/// Nobody will ever say that it is retracted.
#[test]
fn treaty_ends_with_its_home_that_is_lost_for_good() {
    let mut world = World::calm(None);
    world.make(0);
    world.run(SECOND);
    let leaves = |world: &World, at: usize| {
        let node = world.cluster.hosts[at].node.as_ref().expect("runs");
        node.chapters().txns.leaves(world.cluster.time(at)).len()
    };
    assert_eq!((leaves(&world, 1), leaves(&world, 2)), (1, 1));
    world.cluster.kill(0);
    world.cluster.run(10 * SECOND);
    let lost = Operation::Seat { site: Cluster::site(0), change: SeatChange::Lost, label: "site 0".into() };
    assert!(matches!(world.cluster.done(1, lost), Outcome::Seated { .. }));
    world.cluster.run(90 * SECOND);
    assert_eq!((leaves(&world, 1), leaves(&world, 2)), (0, 0), "a treaty whose home is gone is kept for ever");
}
