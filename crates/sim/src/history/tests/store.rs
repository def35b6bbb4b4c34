//! An obvious store that does one transaction after another, and a seeded source of chance.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;

/// What a good system would have after some transactions.
#[derive(Clone, Default)]
pub(super) struct Store {
    lists: BTreeMap<Key, Vec<u64>>,
    registers: BTreeMap<Key, u64>,
    sets: BTreeMap<Key, BTreeSet<u64>>,
    counters: BTreeMap<Key, i64>,
    /// What was added since the register of that name was written.
    since: BTreeMap<Key, i64>,
    incarnations: BTreeMap<Key, u64>,
}

impl Store {
    /// Carries an op out: what it returns, in its own form.
    pub(super) fn execute(&mut self, op: &Op) -> Op {
        let mut op = op.clone();
        match &mut op {
            Op::Append { key, element } => self.lists.entry(*key).or_default().push(*element),
            Op::List { key, elements } => *elements = self.lists.get(key).cloned().unwrap_or_default(),
            Op::Write { key, value } => {
                self.registers.insert(*key, *value);
                self.since.remove(key);
            }
            Op::Delete { key } => {
                self.registers.remove(key);
                self.since.remove(key);
            }
            Op::Read { key, value } => *value = self.registers.get(key).copied(),
            Op::Insert { prefix, element } => _ = self.sets.entry(*prefix).or_default().insert(*element),
            Op::Remove { prefix, element } => _ = self.sets.entry(*prefix).or_default().remove(element),
            Op::Page { prefix, from, to, elements } => {
                *elements = self.sets.get(prefix).into_iter().flat_map(|set| set.range(*from..=*to)).copied().collect();
            }
            Op::Members { prefix, elements } => {
                *elements = self.sets.get(prefix).into_iter().flatten().copied().collect();
            }
            Op::Count { prefix, count } => *count = self.sets.get(prefix).map_or(0, |set| set.len() as u64),
            Op::Add { key, delta } => {
                *self.counters.entry(*key).or_default() += *delta;
                *self.since.entry(*key).or_default() += *delta;
            }
            Op::Since { key, sum } => *sum = self.since.get(key).copied().unwrap_or(0),
            Op::Sum { key, value } => *value = self.counters.get(key).copied().unwrap_or(0),
            // Its storage may be lost at any time before.
            Op::Incarnation { home, number } => {
                let present = self.incarnations.entry(*home).or_default();
                *present = (*present).max(*number);
                *number = *present;
            }
        }
        op
    }

    /// What it has of the objects that some ops are about.
    fn part(&self, ops: &[Op]) -> Self {
        let mut part = Self::default();
        for key in ops.iter().map(|op| op.object().key()) {
            part.lists.extend(self.lists.get_key_value(&key).map(|(key, list)| (*key, list.clone())));
            part.registers.extend(self.registers.get_key_value(&key));
            part.sets.extend(self.sets.get_key_value(&key).map(|(key, set)| (*key, set.clone())));
            part.counters.extend(self.counters.get_key_value(&key));
            part.since.extend(self.since.get_key_value(&key));
            part.incarnations.extend(self.incarnations.get_key_value(&key));
        }
        part
    }

    /// Whether each op of a transaction returns here what it says. The store is changed even if not.
    pub(super) fn agrees(&mut self, ops: &[Op]) -> bool {
        let mut same = ops.to_vec();
        meet_one_incarnation(&mut same);
        same == ops
            && ops.iter().all(|op| match (op, self.has_to_take_out(op), self.execute(op)) {
                (_, false, _) => false,
                (Op::Members { elements, .. }, _, Op::Members { elements: all, .. })
                | (Op::Page { elements, .. }, _, Op::Page { elements: all, .. }) => {
                    // In any order, but each once.
                    let mut sorted = elements.clone();
                    sorted.sort_unstable();
                    sorted == all
                }
                (op, _, done) => *op == done,
            })
    }

    /// Whether an element is there that an op takes out, if it does.
    fn has_to_take_out(&self, op: &Op) -> bool {
        let Op::Remove { prefix, element } = op else { return true };
        self.sets.get(prefix).is_some_and(|set| set.contains(element))
    }
}

/// Storage is lost between two transactions: to each, a home has one incarnation.
fn meet_one_incarnation(ops: &mut [Op]) {
    let mut met = BTreeMap::new();
    for op in ops {
        if let Op::Incarnation { home, number } = op {
            *number = *met.entry(*home).or_insert(*number);
        }
    }
}

/// Xorshift.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

/// How random histories are to be.
#[derive(Clone, Copy)]
pub(super) struct Workload {
    pub(super) transactions: u64,
    pub(super) keys: u64,
    /// The most ops that a transaction has.
    pub(super) ops: u64,
    /// The shape of all objects; any but homes if none.
    pub(super) only: Option<Shape>,
    /// How far from the moment of its effect a transaction is invoked, and completes, at most. Moments are ten apart.
    pub(super) spread: u64,
    /// How many in a hundred abort, and of how many nobody knows.
    pub(super) aborted: u64,
    pub(super) unknown: u64,
}

/// What a system did wrong with the transaction whose number it is given.
pub(super) enum Fault {
    None,
    /// Its effects were lost.
    Drop(u64),
    /// It read from the state that was so many transactions ago, and wrote to the present one.
    Old(u64, usize),
}

/// A history of transactions that took effect one after another, and the moment at which each did.
pub(super) fn generate(chance: &mut Chance, workload: Workload, fault: Fault) -> (History, Vec<u64>) {
    let mut history = History::new();
    let keys: Vec<Key> = (0..workload.keys).map(|key| history.key(&format!("k{key}"))).collect();
    let mut store = Store::default();
    let mut past: VecDeque<Store> = VecDeque::new();
    let mut moments = Vec::new();
    let mut fresh = 0;
    for label in 0..workload.transactions {
        let mut ops = Vec::new();
        for _ in 0..=chance.below(workload.ops) {
            let key = *chance.pick(&keys);
            fresh += 1;
            let op = random_op(chance, key, workload.only, fresh, &store);
            if is_allowed(&ops, &op) {
                ops.push(op);
            }
        }
        if ops.is_empty() {
            ops.push(absent(keys[0]));
        }
        meet_one_incarnation(&mut ops);
        let dice = chance.below(100);
        let (fate, applied) = match dice {
            _ if dice < workload.aborted => (Fate::Aborted, false),
            _ if dice < workload.aborted + workload.unknown => (Fate::Unknown, chance.percent(50)),
            _ => (Fate::Committed, true),
        };
        let old = match fault {
            Fault::Old(number, back) if number == label && past.len() == back => Some(&past[0]),
            _ => None,
        };
        let mut view = old.unwrap_or(&store).part(&ops);
        ops.iter_mut().for_each(|op| *op = view.execute(op));
        if let Fault::Old(_, back) = fault {
            past.push_back(store.clone());
            if past.len() > back {
                past.pop_front();
            }
        }
        let dropped = matches!(fault, Fault::Drop(number) if number == label);
        if applied && !dropped {
            ops.iter().for_each(|op| _ = store.execute(op));
        }
        let moment = workload.spread.max(1_000) + label * 10;
        let invoked = moment - chance.below(workload.spread + 1);
        // The client of an unknown one may give up before it takes effect.
        let completed = if fate == Fate::Unknown { invoked } else { moment + chance.below(workload.spread + 1) };
        let completed = Some(completed).filter(|_| fate == Fate::Committed || chance.percent(50));
        moments.push(moment);
        history.push(Transaction { label, process: chance.below(8), invoked, completed, fate, ops });
    }
    (history, moments)
}

/// Whether an op may follow on others in one transaction; see [`Op`].
fn is_allowed(ops: &[Op], op: &Op) -> bool {
    let is_page = |other: &Op| matches!(other, Op::Page { .. });
    let reads_set = |other: &Op| is_page(other) || matches!(other, Op::Members { .. });
    let own = |other: &&Op| match (other, op) {
        (Op::Remove { element, .. } | Op::Insert { element, .. }, Op::Remove { element: this, .. }) => element == this,
        (Op::Write { key, .. } | Op::Delete { key }, Op::Since { key: this, .. }) => key == this,
        (one, other) => {
            one.object() == other.object() && (is_page(one) && reads_set(other) || is_page(other) && reads_set(one))
        }
    };
    !ops.iter().any(|other| own(&other))
}

/// An op whose result is still to be filled in. Half of the keys have counters that never shrink, and registers and sets of
/// which nothing is ever deleted.
fn random_op(chance: &mut Chance, key: Key, only: Option<Shape>, fresh: u64, store: &Store) -> Op {
    if only == Some(Shape::Home) {
        // With lists at them, by which transactions depend on each other.
        return match chance.below(4) {
            0 => append(key, fresh),
            1 => list(key, &[]),
            _ => saw(key, 1 + chance.below(3)),
        };
    }
    let delta = chance.below(4) as i64 + 1;
    let shrinks = key.0 % 2 == 1;
    let members: Vec<u64> = store.sets.get(&key).into_iter().flatten().copied().collect();
    let op = match chance.below(14) {
        0 => append(key, fresh),
        1 | 2 => list(key, &[]),
        3 => write(key, fresh),
        4 => absent(key),
        5 if shrinks => delete(key),
        5 | 6 => insert(key, fresh),
        7 => scan(key, &[]),
        8 => count(key, 0),
        9 if shrinks && !members.is_empty() => remove(key, *chance.pick(&members)),
        10 => {
            let from = chance.below(fresh + 1);
            page(key, from, from + chance.below(fresh + 1), &[])
        }
        11 => since(key, 0),
        12 => add(key, if shrinks && chance.percent(50) { -delta } else { delta }),
        _ => sum(key, 0),
    };
    if only.is_some_and(|only| only != op.object().shape()) { random_op(chance, key, only, fresh, store) } else { op }
}
