//! The program of a transaction: what it learns from what it has read, and what it writes then.

use slackline_core::draft::Draft;
use slackline_core::draft::buffer::ROOT;
use slackline_core::id::Incarnation;
use slackline_core::object::{Change, ObjectKey, Span, Value};

use super::records::name;
use crate::calls::{Fact, Functions, Missing, facts, register};
use crate::history::Op;
use crate::state::Simulation;
use crate::state::txns::{Blind, Look, Plan, Running, SETS, SetPart, member};

/// A number that is put into a mixed object is a value times this; what is added since stays far below.
const UNIT: i64 = 1 << 20;
/// A set that has this many elements is left for the next one.
const MEMBERS: usize = 40;
/// The same for what it ever had.
const EVER_MEMBERS: usize = 120;

/// What a look at a set has found.
struct Found {
    /// The set's home.
    home: u16,
    /// What the names of its members begin with.
    prefix: String,
    /// The least element that would have been found.
    from: u64,
    /// The greatest one.
    to: u64,
    /// The elements.
    elements: Vec<u64>,
    /// True if one of them is taken out.
    takes_out: bool,
}

/// The elements of a list, or of a register that holds one.
fn elements(value: Option<&Value>) -> Vec<u64> {
    let Some(Value::Bytes(bytes)) = value else { return Vec::new() };
    bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes"))).collect()
}

/// Returns true if an object is a list.
pub(super) fn is_list(key: &ObjectKey) -> bool {
    key.name.starts_with('l')
}

/// Returns true if an object is a counter.
fn is_counter(key: &ObjectKey) -> bool {
    key.name.starts_with('n')
}

/// Returns true if an object is a mixed one.
fn is_mixed(key: &ObjectKey) -> bool {
    key.name.starts_with('m')
}

/// What a mixed object was put to last, and what was added since.
fn mixed(value: Option<&Value>) -> (Option<u64>, i64) {
    match value {
        Some(Value::Counter(count)) => {
            let put = count.saturating_add(UNIT / 2).div_euclid(UNIT);
            (u64::try_from(put).ok().filter(|put| *put > 0), count - put * UNIT)
        }
        value => (elements(value).first().copied(), 0),
    }
}

impl Simulation {
    /// The program itself: what it learns, and what it writes.
    pub(super) fn run_program(&mut self, functions: Functions, running: &mut Running) -> Result<(), Missing> {
        let plan = running.plan.clone();

        // What reads more comes first: until all of it is there, nothing is noted, and the program begins from the front each time.
        let mut facts_of_calls = Vec::new();
        for call in &plan.calls {
            let result = functions.call(&mut running.draft, None, call)?;
            facts_of_calls.extend(facts(call, &result));
        }
        let found = plan.looks.iter().map(|look| look.find(&running.draft)).collect::<Result<Vec<Found>, Missing>>()?;

        for fact in facts_of_calls {
            running.record.ops.extend(self.ops_of(functions, fact));
        }

        for (place, key) in plan.gets.iter().enumerate() {
            self.learn_of_object(&plan, place, key, running);
        }

        for found in found {
            self.learn_of_set(&plan, found, running);
        }

        // What is not read goes by the name without an incarnation: which one it met is known only in the end, if at all.
        for (key, blind) in plan.blind.into_iter().filter(|_| !plan.fails) {
            let (change, object) = match blind {
                Blind::Write(value) => {
                    (Change::Put(Value::Bytes(value.to_le_bytes().to_vec().into())), key.name.clone())
                }
                Blind::Put(value) => (Change::Put(Value::Counter(value as i64 * UNIT)), key.name.clone()),
                Blind::Delete => (Change::Delete, key.name.clone()),
                Blind::Add(delta) => (Change::Add(delta), key.name.clone()),
                Blind::Insert(element) => {
                    let prefix = key.name.rsplit_once('/').map_or("", |(prefix, _)| prefix);
                    (Change::Put(Value::Bytes(element.to_le_bytes().to_vec().into())), format!("{prefix}/"))
                }
            };

            running.record.blind.push((usize::from(key.home), object, blind));
            write(&mut running.draft, key, change);
        }
        running.has_written = true;
        Ok(())
    }

    /// What an object was found to hold, for the history; perhaps it is written or deleted.
    fn learn_of_object(&mut self, plan: &Plan, place: usize, key: &ObjectKey, running: &mut Running) {
        let incarnation = running.draft.snapshot.incarnation(key.home);
        running.record.homes[usize::from(key.home)] = incarnation;

        let value = running.draft.snapshot.known(key).flatten();
        let named = self.txns.history.key(&name(&key.name, key.home, incarnation));
        running.record.ops.push(self.saw(key.home, incarnation));
        if is_mixed(key) {
            let (value, sum) = mixed(value.as_ref());
            running.record.ops.extend([Op::Read { key: named, value }, Op::Since { key: named, sum }]);
        } else {
            running.record.ops.push(if is_list(key) {
                Op::List { key: named, elements: elements(value.as_ref()) }
            } else if is_counter(key) {
                let value = if let Some(Value::Counter(count)) = value { count } else { 0 };
                Op::Sum { key: named, value }
            } else {
                Op::Read { key: named, value: elements(value.as_ref()).first().copied() }
            });
        }

        if plan.deletes.contains(&place) {
            write(&mut running.draft, key.clone(), Change::Delete);
            if !plan.fails {
                running.record.ops.push(Op::Delete { key: named });
            }
        }

        if plan.updates.contains(&place) {
            let element = self.value();
            let mut all = if is_list(key) { elements(value.as_ref()) } else { Vec::new() };
            all.push(element);
            let bytes = all.iter().flat_map(|element| element.to_le_bytes()).collect();
            let is_number = is_mixed(key) && self.rng.one_in(2);
            let put = if is_number { Value::Counter(element as i64 * UNIT) } else { Value::Bytes(bytes) };
            write(&mut running.draft, key.clone(), Change::Put(put));
            if !plan.fails {
                running.record.ops.push(if is_list(key) {
                    Op::Append { key: named, element }
                } else {
                    Op::Write { key: named, value: element }
                });
            }
        }
    }

    /// That a home was found in this incarnation: once somebody has seen that its objects are lost, nobody sees them again.
    fn saw(&mut self, home: u16, incarnation: Incarnation) -> Op {
        let home = self.txns.history.key(&format!("{home}"));
        Op::Incarnation { home, number: u64::from(incarnation.0) }
    }

    /// What the result of a call tells, for the history.
    fn ops_of(&mut self, functions: Functions, fact: Fact) -> [Op; 2] {
        match fact {
            Fact::Holds { register: number, value, incarnation } => {
                let key = register(functions.sites, number);
                let named = name(&key.name, key.home, Incarnation(incarnation));
                let read = Op::Read { key: self.txns.history.key(&named), value };
                [self.saw(key.home, Incarnation(incarnation)), read]
            }
            Fact::Counts { prefix, count, incarnation } => {
                let number: u64 = prefix[1..2].parse().expect("a set's number");
                let home = (number % functions.sites) as u16;
                let prefix = self.txns.history.key(&name(&prefix, home, Incarnation(incarnation)));
                [self.saw(home, Incarnation(incarnation)), Op::Count { prefix, count }]
            }
        }
    }

    /// What a look at a set has found, for the history; perhaps one of the members is taken out.
    fn learn_of_set(&mut self, plan: &Plan, found: Found, running: &mut Running) {
        let Found { home, prefix: of, from, to, elements, takes_out } = found;

        // An empty set tells of no incarnation. The history then has the one that was known before.
        let incarnation = running.draft.snapshot.incarnation(home);
        if incarnation > Incarnation(0) {
            running.record.homes[usize::from(home)] = incarnation;
        }
        let incarnation = running.record.homes[usize::from(home)];

        let prefix = self.txns.history.key(&name(&of, home, incarnation));
        running.record.ops.push(self.saw(home, incarnation));

        let is_all = (from, to) == (0, u64::MAX);
        if is_all {
            self.note_members(&of, elements.len());
        }

        let taken = elements.get(self.rng.below(elements.len().max(1) as u64) as usize).copied();
        running.record.ops.push(match is_all {
            true if self.rng.one_in(3) => Op::Count { prefix, count: elements.len() as u64 },
            true => Op::Members { prefix, elements },
            false => Op::Page { prefix, from, to, elements },
        });

        if let Some(element) = taken.filter(|_| takes_out) {
            write(&mut running.draft, ObjectKey::new(home, member(&of, element)), Change::Delete);
            if !plan.fails {
                running.record.ops.push(Op::Remove { prefix, element });
            }
        }
    }

    /// A set that is full is left for the next one.
    fn note_members(&mut self, prefix: &str, members: usize) {
        for number in 0..SETS as usize {
            let is_full = members >= MEMBERS || self.txns.inserted[number].len() >= EVER_MEMBERS;
            if is_full && prefix.starts_with(&format!("s{number}.{}/", self.txns.epochs[number])) {
                self.txns.epochs[number] += 1;
                self.txns.inserted[number].clear();
            }
        }
    }
}

impl Look {
    /// What it reads first.
    pub(super) fn first(&self) -> Missing {
        let span = |after, limit| Missing::Scan(self.home, Span { prefix: self.prefix.clone(), after, limit });
        match self.part {
            SetPart::All { page } => span(String::new(), page),
            SetPart::After { element, limit } => span(member(&self.prefix, element), limit),
            SetPart::One { element } => Missing::Get(ObjectKey::new(self.home, member(&self.prefix, element))),
        }
    }

    /// What it finds in what was read, or what it reads next.
    fn find(&self, draft: &Draft) -> Result<Found, Missing> {
        let found = |from, to, elements| {
            let Look { home, prefix, takes_out, .. } = self.clone();
            Ok(Found { home, prefix, from, to, elements, takes_out })
        };

        let mut next = self.first();
        let mut all = Vec::new();
        loop {
            let (region, mut span) = match next {
                Missing::Scan(region, span) => (region, span),
                Missing::Get(key) => {
                    let value = draft.snapshot.known(&key).ok_or(Missing::Get(key))?;
                    let SetPart::One { element } = self.part else { unreachable!("scans look for no name") };
                    return found(element, element, elements(value.as_ref()));
                }
                other => return Err(other),
            };

            let missing = || Missing::Scan(region, span.clone());
            let rows = draft.snapshot.scanned(region, &span).ok_or_else(missing)?;
            all.extend(rows.iter().flat_map(|(_, value)| elements(Some(value))));

            let last = rows.last().filter(|_| rows.len() >= span.limit as usize);
            match (self.part, last) {
                (SetPart::All { .. }, Some((last, _))) => {
                    span.after = last.clone();
                    next = Missing::Scan(region, span);
                }
                (SetPart::After { element, .. }, last) => {
                    let to = last.and_then(|_| all.last().copied()).unwrap_or(u64::MAX);
                    return found(element + 1, to, all);
                }
                _ => return found(0, u64::MAX, all),
            }
        }
    }
}

/// Writes an object.
fn write(draft: &mut Draft, key: ObjectKey, change: Change) {
    draft.buffer.write(ROOT, key, change).expect("what it writes fits what it wrote");
}
