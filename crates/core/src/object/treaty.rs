//! Treaties: statements about counters of several homes that the homes keep true alone (*Predictive Treaties*, EuroSys 2019).
//!
//! # Words
//!
//! - A **metric** is a number computed from counters ([`Metric`]); a **statement** compares metrics with numbers
//!   ([`Statement`]).
//! - A **clause** is an inequality over a sum of counters, `Σ weight · f(counter) ≥ least`. A statement that is true is implied by
//!   clauses that are true ([`Statement::clauses`]).
//! - A **leaf** is everything that the clauses of a treaty take from one home. For each clause it has a **bound**: the least that
//!   its part of the sum may come to. The bounds of a clause over all leaves add up to `least` or more, so while every home
//!   keeps to its own, the statement is true.
//! - The **slack** of a leaf is by how much its part is above its bound. Gifts move slack: the donor's bound rises, and the
//!   receiver's falls by as much.
//! - A **treaty** is an object at one home that says that its statement is true ([`Treaty`]). Like the result of a memoized
//!   function it is a [call](crate::object::is_call), and rests on the homes of its leaves.
//!
//! # Templates
//!
//! By form (section 4.5 of the paper), with what the counters hold now:
//!
//! | statement | clauses |
//! | --- | --- |
//! | `m ≥ k`, `m` a sum | one: the sum is at least `k` |
//! | `min(x, y) ≥ k` | two: each is at least `k` |
//! | `min(x, y) ≤ k` | one: the one that is smallest now is at most `k` |
//! | `m = k` | those of `m ≥ k` and of `m ≤ k`; so the smallest of a minimum is pinned, and the others are bounded |
//!
//! A minimum within a sum is multiplied out: `min(x, y) + z ≥ k` is `x + z ≥ k` and `y + z ≥ k`.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashSet;

use super::value::{CALL_MARK, Derived, ObjectKey, Value, text};
use crate::bounds::ENTRY_BYTES;
use crate::codec::{Cursor, Malformed, clamped, len_i64, len_u64, put_bytes, put_i64, put_u64};
use crate::id::Incarnation;

/// The most homes of one treaty.
pub const LEAVES: usize = 64;
/// The most clauses of one treaty.
pub const CLAUSES: usize = 4096;
/// The most terms of all clauses of one treaty at one home.
pub const TERMS: usize = 4096;
/// The most treaties that rest on one counter.
pub const TREATIES: usize = 16;
/// The deepest that metrics and statements may nest.
const DEPTH: usize = 64;
/// The first characters of a treaty's object, before its name.
const MARK: &str = "\u{1}treaty/";

/// The object of a treaty.
pub fn treaty_key(home: u16, name: &str) -> ObjectKey {
    ObjectKey::new(home, format!("{MARK}{name}"))
}

/// The name of a treaty, from that of its object; none if it is no treaty's.
pub fn treaty_name(object: &str) -> Option<&str> {
    object.strip_prefix(MARK)
}

/// The first character of the name of a treaty that a client makes for itself, of a statement that has no name.
pub const UNNAMED: char = '=';

/// True if a client has made the treaty of this name for itself.
pub fn is_unnamed(treaty: &str) -> bool {
    treaty.starts_with(UNNAMED)
}

/// The span's beginning under which all treaties of a home stand.
pub fn treaty_prefix() -> String {
    debug_assert!(MARK.starts_with(CALL_MARK), "a treaty is a call");
    MARK.to_owned()
}

/// A number computed from counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Metric {
    /// A counter; zero if it is not there.
    Counter(ObjectKey),
    /// The binary logarithm of a counter, rounded down; -1 if the counter is below one.
    Log2(ObjectKey),
    /// The sum of the counters of one name at several homes, in ascending order. As a sum of counters, but much smaller: what many
    /// regions count of many things takes no more room than there are things.
    Everywhere(String, Vec<u16>),
    /// The sum of several.
    Sum(Vec<Metric>),
    /// A multiple of one.
    Times(i64, Box<Metric>),
    /// The smallest of several; at least one.
    Min(Vec<Metric>),
}

/// Something that can be said of metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Statement {
    /// It is this number or more.
    AtLeast(Metric, i64),
    /// It is this number or less.
    AtMost(Metric, i64),
    /// It is this number.
    Equals(Metric, i64),
    /// All of these are true; at least one.
    All(Vec<Statement>),
}

/// Why a statement cannot be kept as a treaty, or not now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// It is about no counter.
    NoCounter,
    /// It is false: the value of the first metric that says so.
    NotTrue(i64),
    /// A value is out of the range of 64-bit integers, or some multiple of a counter may be.
    OutOfRange,
    /// It has more than [`CLAUSES`] clauses, or more than [`TERMS`] terms at a home.
    TooManyParts,
    /// It is about counters of more than [`LEAVES`] homes.
    TooManyHomes,
    /// It nests too deeply.
    TooDeep,
}

/// True if what terms come to can be computed, whatever their counters come to: no multiple of a counter leaves 126 bits then.
fn have_sound_weights<'a>(terms: impl Iterator<Item = &'a Term>) -> bool {
    terms.map(|term| u128::from(term.weight.unsigned_abs())).sum::<u128>() <= i64::MAX as u128
}

/// One counter in a sum.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Term {
    /// Its name at its home.
    pub name: String,
    /// True if its logarithm counts.
    pub is_log: bool,
    /// The number by which it counts; not zero.
    pub weight: i64,
}

impl Term {
    /// What it adds to its sum when the counter has come to `count`.
    pub fn of(&self, count: i64) -> i128 {
        let counted = if self.is_log { log2(count) } else { count };
        i128::from(self.weight) * i128::from(counted)
    }

    /// The least that it adds while the counter may be anywhere between two numbers: both kinds of term only rise, or only fall.
    pub fn least(&self, (low, high): (i64, i64)) -> i128 {
        self.of(if self.weight > 0 { low } else { high })
    }
}

/// The binary logarithm of a counter, as [`Metric::Log2`] has it.
fn log2(count: i64) -> i64 {
    if count < 1 { -1 } else { i64::from(count.ilog2()) }
}

/// An inequality over a sum of counters: what they add up to is at least a number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Clause {
    /// Its terms by home, each in ascending order; no home is without.
    pub homes: BTreeMap<u16, Vec<Term>>,
    /// The number.
    pub least: i64,
}

/// A sum while clauses are made: the weight of each counter, or of its logarithm.
type Sum = BTreeMap<(ObjectKey, bool), i128>;

impl Metric {
    /// Its value. `count` tells what a counter holds.
    pub fn value(&self, count: &impl Fn(&ObjectKey) -> i64) -> Result<i64, Unfit> {
        i64::try_from(self.exact(count, 0)?).map_err(|_| Unfit::OutOfRange)
    }

    /// Its value, which may be out of the range of 64 bits, as may that of each metric in it: what they add up to need not be.
    fn exact(&self, count: &impl Fn(&ObjectKey) -> i64, depth: usize) -> Result<i128, Unfit> {
        let at = |name: &String, home: &u16| i128::from(count(&ObjectKey::new(*home, name.clone())));
        if depth > DEPTH {
            return Err(Unfit::TooDeep);
        }
        let each = |metric: &Metric| metric.exact(count, depth + 1);
        match self {
            Metric::Counter(key) => Ok(i128::from(count(key))),
            Metric::Log2(key) => Ok(i128::from(log2(count(key)))),
            Metric::Everywhere(name, homes) => Ok(homes.iter().map(|home| at(name, home)).sum()),
            Metric::Sum(metrics) => {
                metrics.iter().try_fold(0i128, |sum, metric| sum.checked_add(each(metric)?).ok_or(Unfit::OutOfRange))
            }
            Metric::Times(factor, metric) => i128::from(*factor).checked_mul(each(metric)?).ok_or(Unfit::OutOfRange),
            Metric::Min(metrics) => {
                let values = metrics.iter().map(each).collect::<Result<Vec<_>, _>>()?;
                values.into_iter().min().ok_or(Unfit::NoCounter)
            }
        }
    }

    /// Adds the counters that it is about.
    pub fn counters(&self, found: &mut BTreeSet<ObjectKey>) {
        match self {
            Metric::Counter(key) | Metric::Log2(key) => drop(found.insert(key.clone())),
            Metric::Everywhere(name, homes) => {
                found.extend(homes.iter().map(|home| ObjectKey::new(*home, name.clone())));
            }
            Metric::Sum(metrics) | Metric::Min(metrics) => metrics.iter().for_each(|metric| metric.counters(found)),
            Metric::Times(_, metric) => metric.counters(found),
        }
    }

    /// The first of the homes of its counters; none if it is about no counter.
    fn first_home(&self) -> Option<u16> {
        match self {
            Metric::Counter(key) | Metric::Log2(key) => Some(key.home),
            Metric::Everywhere(_, homes) => homes.first().copied(),
            Metric::Sum(metrics) | Metric::Min(metrics) => metrics.iter().filter_map(Metric::first_home).min(),
            Metric::Times(_, metric) => metric.first_home(),
        }
    }

    /// Sums such that the metric is always at least the smallest of them (`is_lower`), or else at most the largest; and such
    /// that it is exactly that now, by what counters hold.
    fn sums(&self, is_lower: bool, count: &impl Fn(&ObjectKey) -> i64) -> Result<Vec<Sum>, Unfit> {
        match self {
            Metric::Counter(key) => Ok(vec![Sum::from([((key.clone(), false), 1)])]),
            Metric::Log2(key) => Ok(vec![Sum::from([((key.clone(), true), 1)])]),
            Metric::Everywhere(name, homes) => {
                let counter = |home: &u16| ((ObjectKey::new(*home, name.clone()), false), 1);
                Ok(vec![homes.iter().map(counter).collect()])
            }
            Metric::Sum(metrics) => metrics.iter().try_fold(vec![Sum::new()], |mut sums, metric| {
                let more = metric.sums(is_lower, count)?;

                // Most are one sum, of perhaps thousands of counters: added to in place.
                if let ([sum], [other]) = (&mut sums[..], &more[..]) {
                    add(sum, other);
                    return Ok(sums);
                }

                // Each is copied for each of the others, so all their terms together are bounded, too, before they are made.
                let terms = |sums: &[Sum]| sums.iter().map(Sum::len).sum::<usize>();
                let all = terms(&sums) * more.len() + terms(&more) * sums.len();
                if sums.len() * more.len() > CLAUSES || all > TERMS * LEAVES {
                    return Err(Unfit::TooManyParts);
                }
                Ok(sums.iter().flat_map(|sum| more.iter().map(|other| added(sum, other))).collect())
            }),
            // A negative multiple turns the bound around.
            Metric::Times(factor, metric) => {
                let sums = metric.sums(is_lower == (*factor >= 0), count)?;
                let times = |weight: i128| {
                    let weight =
                        weight.checked_mul(i128::from(*factor)).filter(|weight| i64::try_from(*weight).is_ok());
                    weight.ok_or(Unfit::OutOfRange)
                };
                let each = |sum: Sum| sum.into_iter().map(|(key, weight)| Ok((key, times(weight)?))).collect();
                sums.into_iter().map(each).collect()
            }
            // The smallest is at least k if all are, and at most k if one is: the one that is smallest now.
            Metric::Min(metrics) if is_lower => {
                let mut sums = Vec::new();
                for metric in metrics {
                    sums.append(&mut metric.sums(true, count)?);
                    if sums.len() > CLAUSES {
                        return Err(Unfit::TooManyParts);
                    }
                }
                Ok(sums)
            }
            Metric::Min(metrics) => {
                let valued = metrics.iter().map(|metric| Ok((metric.exact(count, 0)?, metric)));
                let valued = valued.collect::<Result<Vec<_>, Unfit>>()?;
                let (_, smallest) = valued.into_iter().min_by_key(|(value, _)| *value).ok_or(Unfit::NoCounter)?;
                smallest.sums(false, count)
            }
        }
    }
}

/// The sum of two sums.
fn added(one: &Sum, other: &Sum) -> Sum {
    let mut sum = one.clone();
    add(&mut sum, other);
    sum
}

/// Adds a sum to another.
fn add(sum: &mut Sum, other: &Sum) {
    other.iter().for_each(|(key, weight)| *sum.entry(key.clone()).or_default() += weight);
}

impl Statement {
    /// Adds the counters that it is about.
    pub fn counters(&self, found: &mut BTreeSet<ObjectKey>) {
        match self {
            Statement::AtLeast(metric, _) | Statement::AtMost(metric, _) | Statement::Equals(metric, _) => {
                metric.counters(found);
            }
            Statement::All(statements) => statements.iter().for_each(|statement| statement.counters(found)),
        }
    }

    /// The first of the homes of its counters; none if it is about no counter.
    pub fn first_home(&self) -> Option<u16> {
        match self {
            Statement::AtLeast(metric, _) | Statement::AtMost(metric, _) | Statement::Equals(metric, _) => {
                metric.first_home()
            }
            Statement::All(statements) => statements.iter().filter_map(Statement::first_home).min(),
        }
    }

    /// Judges it by what counters hold: `Err(Unfit::NotTrue)` if it is false.
    pub fn judge(&self, count: &impl Fn(&ObjectKey) -> i64) -> Result<(), Unfit> {
        self.judge_within(count, 0)
    }

    fn judge_within(&self, count: &impl Fn(&ObjectKey) -> i64, depth: usize) -> Result<(), Unfit> {
        // A value out of the range of 64 bits is told as the end of that range.
        let says = |metric: &Metric, is_true: &dyn Fn(i128) -> bool| {
            let value = metric.exact(count, 0)?;
            if is_true(value) { Ok(()) } else { Err(Unfit::NotTrue(clamped(value))) }
        };
        match self {
            _ if depth > DEPTH => Err(Unfit::TooDeep),
            Statement::AtLeast(metric, least) => says(metric, &|value| value >= i128::from(*least)),
            Statement::AtMost(metric, most) => says(metric, &|value| value <= i128::from(*most)),
            Statement::Equals(metric, other) => says(metric, &|value| value == i128::from(*other)),
            Statement::All(statements) => statements.iter().try_for_each(|one| one.judge_within(count, depth + 1)),
        }
    }

    /// A statement that is true now and excludes this one; none if this one is not false, or it cannot be said.
    pub fn denial(&self, count: &impl Fn(&ObjectKey) -> i64) -> Option<Statement> {
        let value = |metric: &Metric| metric.exact(count, 0).ok();
        let below = |metric: &Metric, number: i64| {
            let most = (value(metric)? < i128::from(number)).then(|| number.checked_sub(1))??;
            Some(Statement::AtMost(metric.clone(), most))
        };
        let above = |metric: &Metric, number: i64| {
            let least = (value(metric)? > i128::from(number)).then(|| number.checked_add(1))??;
            Some(Statement::AtLeast(metric.clone(), least))
        };
        match self {
            Statement::AtLeast(metric, least) => below(metric, *least),
            Statement::AtMost(metric, most) => above(metric, *most),
            Statement::Equals(metric, number) => below(metric, *number).or_else(|| above(metric, *number)),
            Statement::All(statements) => statements.iter().find_map(|statement| statement.denial(count)),
        }
    }

    /// Clauses that are true now, by what counters hold, and that imply the statement while they are true. An error if the
    /// statement is false, or cannot be kept.
    pub fn clauses(&self, count: &impl Fn(&ObjectKey) -> i64) -> Result<Vec<Clause>, Unfit> {
        self.judge(count)?;
        let mut sums = Vec::new();
        self.add_sums(count, &mut sums)?;

        let (mut clauses, mut known): (Vec<Clause>, FxHashSet<Clause>) = (Vec::new(), FxHashSet::default());
        let mut terms: BTreeMap<u16, usize> = BTreeMap::new();
        for (sum, least) in sums {
            let mut clause =
                Clause { homes: BTreeMap::new(), least: i64::try_from(least).map_err(|_| Unfit::OutOfRange)? };
            for ((key, is_log), weight) in sum {
                let weight = i64::try_from(weight).map_err(|_| Unfit::OutOfRange)?;
                if weight != 0 {
                    let term = Term { name: key.name, is_log, weight };
                    clause.homes.entry(key.home).or_default().push(term);
                    *terms.entry(key.home).or_default() += 1;
                }
            }
            if !have_sound_weights(clause.homes.values().flatten()) {
                return Err(Unfit::OutOfRange);
            }

            // What cancels out is as true as it is now, always.
            if !clause.homes.is_empty() && known.insert(clause.clone()) {
                clauses.push(clause);
            }
        }

        match () {
            () if clauses.is_empty() => Err(Unfit::NoCounter),
            () if clauses.len() > CLAUSES || terms.values().any(|terms| *terms > TERMS) => Err(Unfit::TooManyParts),
            () if terms.len() > LEAVES => Err(Unfit::TooManyHomes),
            () => Ok(clauses),
        }
    }

    /// Adds sums, each with the number that it must be at least.
    fn add_sums(&self, count: &impl Fn(&ObjectKey) -> i64, sums: &mut Vec<(Sum, i128)>) -> Result<(), Unfit> {
        let least = |metric: &Metric, least: i64| {
            Ok::<_, Unfit>(metric.sums(true, count)?.into_iter().map(move |sum| (sum, i128::from(least))))
        };
        let most = |metric: &Metric, most: i64| {
            let turned = |sum: Sum| sum.into_iter().map(|(key, weight)| (key, -weight)).collect();
            Ok::<_, Unfit>(metric.sums(false, count)?.into_iter().map(move |sum| (turned(sum), -i128::from(most))))
        };
        match self {
            // What has no number of 64 bits now is true or false, but nobody could be told of its slack.
            Statement::AtLeast(metric, _) | Statement::AtMost(metric, _) | Statement::Equals(metric, _)
                if metric.value(count).is_err() =>
            {
                return Err(Unfit::OutOfRange);
            }
            Statement::AtLeast(metric, number) => sums.extend(least(metric, *number)?),
            Statement::AtMost(metric, number) => sums.extend(most(metric, *number)?),
            Statement::Equals(metric, number) => {
                sums.extend(least(metric, *number)?);
                sums.extend(most(metric, *number)?);
            }
            Statement::All(statements) => {
                statements.iter().try_for_each(|statement| statement.add_sums(count, sums))?;
            }
        }

        if sums.len() > CLAUSES { Err(Unfit::TooManyParts) } else { Ok(()) }
    }
}

/// Which other leaves a leaf asks for slack, and in which order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Tree {
    /// All at once.
    #[default]
    Flat,
    /// The near ones first, by round trip: as many as are asked at a time, doubled each time.
    Near,
    /// Groups of homes that ask each other first, from small to large; those that stand in no group come last.
    Given(Vec<BTreeSet<u16>>),
}

/// A leaf as its home is told of it: what it must keep above which bounds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Note {
    /// The treaty's object.
    pub treaty: ObjectKey,
    /// The name of this making of the treaty: each has another one, so that nothing that is said of one counts for the next.
    pub nonce: u64,
    /// The homes of all leaves, in the incarnations that the treaty rests on, in ascending order.
    pub homes: Vec<(u16, Incarnation)>,
    /// Whom it asks for slack.
    pub tree: Tree,
    /// The clauses that have terms here, by their position in the treaty, in ascending order.
    pub clauses: Vec<(u32, Vec<Term>, i64)>,
}

/// A treaty, as its object has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Treaty {
    /// The name of this making; see [`Note::nonce`].
    pub nonce: u64,
    /// True if the statement is true, and kept so. False from when it was retracted.
    pub is_valid: bool,
    /// The number of times that it was retracted, in earlier makings too.
    pub retracts: u64,
    /// The statement.
    pub statement: Statement,
    /// Whom leaves ask for slack.
    pub tree: Tree,
}

/// The division of the slack of a clause among its homes: the slack of each, in the order of homes, from the value of each part.
pub type Division<'a> = &'a dyn Fn(&Clause, i128) -> Vec<i128>;

/// Divides slack equally; what is left by rounding goes to the first ones, a unit each.
pub fn equally(clause: &Clause, slack: i128) -> Vec<i128> {
    let count = clause.homes.len() as i128;
    (0..count).map(|at| slack.div_euclid(count) + i128::from(at < slack.rem_euclid(count))).collect()
}

impl Treaty {
    /// The notes of the leaves, by home, with bounds by which the slack that is there now is divided.
    pub fn notes(
        &self,
        key: &ObjectKey,
        homes: &BTreeMap<u16, Incarnation>,
        count: &impl Fn(&ObjectKey) -> i64,
        divide: Division,
    ) -> Result<BTreeMap<u16, Note>, Unfit> {
        let clauses = self.statement.clauses(count)?;
        let all: BTreeSet<u16> = clauses.iter().flat_map(|clause| clause.homes.keys().copied()).collect();
        let incarnation = |home: &u16| (*home, homes.get(home).copied().unwrap_or_default());
        let rests: Vec<(u16, Incarnation)> = all.iter().map(incarnation).collect();
        let empty = || Note {
            treaty: key.clone(),
            nonce: self.nonce,
            homes: rests.clone(),
            tree: self.tree.clone(),
            clauses: Vec::new(),
        };
        let mut notes: BTreeMap<u16, Note> = all.iter().map(|home| (*home, empty())).collect();

        for (position, clause) in clauses.iter().enumerate() {
            let value = |(home, terms): (&u16, &Vec<Term>)| {
                terms.iter().map(|term| term.of(count(&ObjectKey::new(*home, term.name.clone())))).sum::<i128>()
            };
            let values: Vec<i128> = clause.homes.iter().map(value).collect();
            let slack = values.iter().sum::<i128>() - i128::from(clause.least);
            let slacks = divide(clause, slack);
            assert!(slacks.iter().sum::<i128>() == slack, "slack is made, or lost, where it is divided");

            // The bounds add up to the clause's number exactly.
            for (((home, terms), value), slack) in clause.homes.iter().zip(&values).zip(&slacks) {
                let bound = i64::try_from(value - slack).map_err(|_| Unfit::OutOfRange)?;
                let note = notes.get_mut(home).expect("made above");
                note.clauses.push((position as u32, terms.clone(), bound));
            }
        }

        Ok(notes)
    }

    /// The value of its object. `homes` are those of the leaves.
    pub fn to_value(&self, key: &ObjectKey, homes: &[(u16, Incarnation)]) -> Value {
        let mut bytes = Vec::new();
        put_u64(&mut bytes, self.nonce);
        bytes.push(u8::from(self.is_valid));
        put_u64(&mut bytes, self.retracts);
        self.tree.encode(&mut bytes);
        self.statement.encode(&mut bytes);
        let homes = homes.iter().filter(|(home, _)| *home != key.home).copied().collect();
        Value::Derived(Derived { bytes: bytes.into(), homes })
    }

    /// True if a value is that of a valid treaty.
    pub fn is_valid_in(value: &Value) -> bool {
        Self::of_value(value).is_ok_and(|treaty| treaty.is_valid)
    }

    /// Reads what [`Treaty::to_value`] made.
    pub fn of_value(value: &Value) -> Result<Self, Malformed> {
        let Value::Derived(derived) = value else { return Err(Malformed) };
        let mut cursor = Cursor(&derived.bytes);
        let treaty = Self {
            nonce: cursor.u64()?,
            is_valid: cursor.u8()? != 0,
            retracts: cursor.u64()?,
            tree: Tree::decode(&mut cursor)?,
            statement: Statement::decode(&mut cursor, 0)?,
        };
        cursor.end()?;
        Ok(treaty)
    }
}

impl Note {
    /// True if it keeps the bounds, and is in order.
    pub fn is_sound(&self) -> bool {
        let terms = |(_, terms, _): &(u32, Vec<Term>, i64)| !terms.is_empty() && have_sound_weights(terms.iter());
        treaty_name(&self.treaty.name).is_some_and(|name| !name.is_empty())
            && (1..=LEAVES).contains(&self.homes.len())
            && self.homes.windows(2).all(|pair| pair[0].0 < pair[1].0)
            && (1..=CLAUSES).contains(&self.clauses.len())
            && self.clauses.windows(2).all(|pair| pair[0].0 < pair[1].0)
            && self.clauses.iter().all(terms)
            && self.terms() <= TERMS
            && self.tree.is_sound()
    }

    /// The number of its terms.
    pub fn terms(&self) -> usize {
        self.clauses.iter().map(|(_, terms, _)| terms.len()).sum()
    }

    /// The size of the rows of its leaf, about, in bytes: each clause has one, under the name of the treaty.
    pub fn row_bytes(&self) -> usize {
        self.bytes() + self.clauses.len() * (self.treaty.name.len() + ENTRY_BYTES)
    }

    /// Its size in a message, about, in bytes.
    pub fn bytes(&self) -> usize {
        let term = |term: &Term| len_u64(term.name.len() as u64) + term.name.len() + 1 + len_i64(term.weight);
        let terms = |(position, terms, bound): &(u32, Vec<Term>, i64)| {
            let around = len_u64(u64::from(*position)) + len_u64(terms.len() as u64) + len_i64(*bound);
            around + terms.iter().map(term).sum::<usize>()
        };
        let homes = 16 * self.homes.len() + self.tree.bytes();
        self.treaty.name.len() + homes + self.clauses.iter().map(terms).sum::<usize>()
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.treaty.encode(out);
        put_u64(out, self.nonce);
        put_u64(out, self.homes.len() as u64);
        for (home, incarnation) in &self.homes {
            put_u64(out, u64::from(*home));
            put_u64(out, u64::from(incarnation.0));
        }
        self.tree.encode(out);
        put_u64(out, self.clauses.len() as u64);
        for (position, terms, bound) in &self.clauses {
            put_u64(out, u64::from(*position));
            put_terms(out, terms);
            put_i64(out, *bound);
        }
    }

    /// Reads what [`Note::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let (treaty, nonce) = (ObjectKey::decode(cursor)?, cursor.u64()?);
        let home = |cursor: &mut Cursor| Ok((region(cursor)?, Incarnation(cursor.u32()?)));
        let homes = (0..cursor.u64()?).map(|_| home(cursor)).collect::<Result<_, _>>()?;
        let tree = Tree::decode(cursor)?;
        let clause = |cursor: &mut Cursor| Ok((cursor.u32()?, read_terms(cursor)?, cursor.i64()?));
        let clauses = (0..cursor.u64()?).map(|_| clause(cursor)).collect::<Result<_, _>>()?;
        Ok(Self { treaty, nonce, homes, tree, clauses })
    }
}

/// Appends terms.
pub fn put_terms(out: &mut Vec<u8>, terms: &[Term]) {
    put_u64(out, terms.len() as u64);
    for Term { name, is_log, weight } in terms {
        put_bytes(out, name.as_bytes());
        out.push(u8::from(*is_log));
        put_i64(out, *weight);
    }
}

/// Reads what [`put_terms`] wrote.
pub fn read_terms(cursor: &mut Cursor) -> Result<Vec<Term>, Malformed> {
    let term = |cursor: &mut Cursor| Ok(Term { name: text(cursor)?, is_log: cursor.u8()? != 0, weight: cursor.i64()? });
    (0..cursor.u64()?).map(|_| term(cursor)).collect()
}

fn region(cursor: &mut Cursor) -> Result<u16, Malformed> {
    u16::try_from(cursor.u64()?).map_err(|_| Malformed)
}

impl Tree {
    /// True if it is not larger than a statement could want it.
    fn is_sound(&self) -> bool {
        let Tree::Given(groups) = self else { return true };
        groups.len() <= CLAUSES && groups.iter().all(|group| group.len() <= LEAVES)
    }

    /// Its size, in bytes, about.
    fn bytes(&self) -> usize {
        let Tree::Given(groups) = self else { return 1 };
        groups.iter().map(|group| 8 + 8 * group.len()).sum()
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Tree::Flat => out.push(0),
            Tree::Near => out.push(1),
            Tree::Given(groups) => {
                out.push(2);
                put_u64(out, groups.len() as u64);
                for group in groups {
                    put_u64(out, group.len() as u64);
                    group.iter().for_each(|home| put_u64(out, u64::from(*home)));
                }
            }
        }
    }

    /// Reads what [`Tree::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        match cursor.u8()? {
            0 => Ok(Tree::Flat),
            1 => Ok(Tree::Near),
            2 => {
                let group = |cursor: &mut Cursor| (0..cursor.u64()?).map(|_| region(cursor)).collect();
                Ok(Tree::Given((0..cursor.u64()?).map(|_| group(cursor)).collect::<Result<_, _>>()?))
            }
            _ => Err(Malformed),
        }
    }
}

impl Metric {
    fn encode(&self, out: &mut Vec<u8>) {
        let list = |tag, metrics: &[Metric], out: &mut Vec<u8>| {
            out.push(tag);
            put_u64(out, metrics.len() as u64);
            metrics.iter().for_each(|metric| metric.encode(out));
        };
        match self {
            Metric::Counter(key) => {
                out.push(0);
                key.encode(out);
            }
            Metric::Log2(key) => {
                out.push(1);
                key.encode(out);
            }
            Metric::Sum(metrics) => list(2, metrics, out),
            Metric::Times(factor, metric) => {
                out.push(3);
                put_i64(out, *factor);
                metric.encode(out);
            }
            Metric::Min(metrics) => list(4, metrics, out),
            Metric::Everywhere(name, homes) => {
                out.push(5);
                put_bytes(out, name.as_bytes());
                put_u64(out, homes.len() as u64);
                homes.iter().for_each(|home| put_u64(out, u64::from(*home)));
            }
        }
    }

    fn decode(cursor: &mut Cursor, depth: usize) -> Result<Self, Malformed> {
        if depth > DEPTH {
            return Err(Malformed);
        }
        let list = |cursor: &mut Cursor| -> Result<Vec<Self>, Malformed> {
            (0..cursor.u64()?).map(|_| Self::decode(cursor, depth + 1)).collect()
        };
        match cursor.u8()? {
            0 => Ok(Metric::Counter(ObjectKey::decode(cursor)?)),
            1 => Ok(Metric::Log2(ObjectKey::decode(cursor)?)),
            2 => Ok(Metric::Sum(list(cursor)?)),
            3 => Ok(Metric::Times(cursor.i64()?, Box::new(Self::decode(cursor, depth + 1)?))),
            4 => Ok(Metric::Min(list(cursor)?)),
            5 => {
                let name = text(cursor)?;
                Ok(Metric::Everywhere(name, (0..cursor.u64()?).map(|_| region(cursor)).collect::<Result<_, _>>()?))
            }
            _ => Err(Malformed),
        }
    }
}

impl Statement {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut one = |tag, metric: &Metric, number: i64| {
            out.push(tag);
            metric.encode(out);
            put_i64(out, number);
        };
        match self {
            Statement::AtLeast(metric, number) => one(0, metric, *number),
            Statement::AtMost(metric, number) => one(1, metric, *number),
            Statement::Equals(metric, number) => one(2, metric, *number),
            Statement::All(statements) => {
                out.push(3);
                put_u64(out, statements.len() as u64);
                statements.iter().for_each(|statement| statement.encode(out));
            }
        }
    }

    fn decode(cursor: &mut Cursor, depth: usize) -> Result<Self, Malformed> {
        if depth > DEPTH {
            return Err(Malformed);
        }
        let tag = cursor.u8()?;
        if tag == 3 {
            let statements = (0..cursor.u64()?).map(|_| Self::decode(cursor, depth + 1)).collect::<Result<_, _>>()?;
            return Ok(Statement::All(statements));
        }
        let (metric, number) = (Metric::decode(cursor, 0)?, cursor.i64()?);
        match tag {
            0 => Ok(Statement::AtLeast(metric, number)),
            1 => Ok(Statement::AtMost(metric, number)),
            2 => Ok(Statement::Equals(metric, number)),
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(home: u16, name: &str) -> ObjectKey {
        ObjectKey::new(home, name)
    }

    fn counter(home: u16, name: &str) -> Metric {
        Metric::Counter(key(home, name))
    }

    fn minus(one: Metric, other: Metric) -> Metric {
        Metric::Sum(vec![one, Metric::Times(-1, Box::new(other))])
    }

    /// What a clause comes to.
    fn value(clause: &Clause, count: &impl Fn(&ObjectKey) -> i64) -> i128 {
        let terms = clause.homes.iter().flat_map(|(home, terms)| terms.iter().map(move |term| (home, term)));
        terms.map(|(home, term)| term.of(count(&key(*home, &term.name)))).sum()
    }

    /// A small generator, for metrics and counts.
    fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed;
        move |bound| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        }
    }

    fn any_metric(below: &mut impl FnMut(u64) -> u64, depth: u32) -> Metric {
        let leaf = depth == 0 || below(3) == 0;
        match below(if leaf { 5 } else { 9 }) {
            8 => Metric::Everywhere(["a", "b"][below(2) as usize].to_owned(), vec![0, 2]),
            0 => Metric::Log2(key(below(3) as u16, ["a", "b"][below(2) as usize])),
            1..=4 => counter(below(3) as u16, ["a", "b"][below(2) as usize]),
            5 => Metric::Sum((0..1 + below(3)).map(|_| any_metric(below, depth - 1)).collect()),
            6 => Metric::Times(below(7) as i64 - 3, Box::new(any_metric(below, depth - 1))),
            _ => Metric::Min((0..1 + below(3)).map(|_| any_metric(below, depth - 1)).collect()),
        }
    }

    /// Whatever the statement: while its clauses are true, it is. And they are true when they are made.
    #[test]
    fn clauses_of_a_statement_imply_it() {
        let mut below = numbers(5);
        let (mut made, mut true_later) = (0, 0);
        for _ in 0..4_000 {
            let mut counts = BTreeMap::new();
            let mut shuffle = |below: &mut dyn FnMut(u64) -> u64, span: u64| {
                for (home, name) in (0..3).flat_map(|home| [(home, "a"), (home, "b")]) {
                    let count = counts.entry(key(home, name)).or_insert(0i64);
                    *count += below(2 * span + 1) as i64 - span as i64;
                }
                counts.clone()
            };
            let now = shuffle(&mut below, 20);
            let count = |key: &ObjectKey| now[key];
            let metric = any_metric(&mut below, 3);
            let Ok(present) = metric.value(&count) else { continue };
            let statement = match below(4) {
                0 => Statement::AtLeast(metric, present - below(9) as i64),
                1 => Statement::AtMost(metric, present + below(9) as i64),
                2 => Statement::Equals(metric, present),
                _ => Statement::All(vec![
                    Statement::AtLeast(metric.clone(), present - 3),
                    Statement::AtMost(metric, present + 3),
                ]),
            };
            let clauses = match statement.clauses(&count) {
                Ok(clauses) => clauses,
                Err(why) => {
                    assert!(matches!(why, Unfit::NoCounter | Unfit::TooManyParts), "{statement:?}: {why:?}");
                    continue;
                }
            };
            made += 1;
            assert!(clauses.iter().all(|clause| value(clause, &count) >= i128::from(clause.least)), "{statement:?}");
            for _ in 0..20 {
                let later = shuffle(&mut below, 3);
                let count = |key: &ObjectKey| later[key];
                if clauses.iter().all(|clause| value(clause, &count) >= i128::from(clause.least)) {
                    true_later += 1;
                    assert_eq!(statement.judge(&count), Ok(()), "{statement:?}");
                }
            }
        }
        assert!(made > 3_000 && true_later > 5_000, "{made} statements, {true_later} times true later");
    }

    #[test]
    fn templates_are_those_of_the_paper() {
        let count = |key: &ObjectKey| if key.name == "x" { 5 } else { 8 };
        let smallest = || Metric::Min(vec![counter(0, "x"), counter(1, "y"), counter(2, "z")]);
        let bounded = |home: u16, name: &str, weight: i64, least: i64| {
            let term = Term { name: name.to_owned(), is_log: false, weight };
            Clause { homes: BTreeMap::from([(home, vec![term])]), least }
        };
        let lower = [bounded(0, "x", 1, 5), bounded(1, "y", 1, 5), bounded(2, "z", 1, 5)];
        assert_eq!(Statement::AtLeast(smallest(), 5).clauses(&count), Ok(lower.to_vec()));
        assert_eq!(Statement::AtMost(smallest(), 6).clauses(&count), Ok(vec![bounded(0, "x", -1, -6)]));
        let pinned = [&lower[..], &[bounded(0, "x", -1, -5)]].concat();
        assert_eq!(Statement::Equals(smallest(), 5).clauses(&count), Ok(pinned));

        // What a home has is one leaf, whatever the order in which the metric names it.
        let margin = |home| minus(counter(home, "x"), counter(home, "y"));
        let lead = Metric::Sum(vec![margin(0), margin(1), margin(0)]);
        let clauses = Statement::AtLeast(lead, -100).clauses(&count).expect("true");
        assert_eq!(clauses.len(), 1);
        let weights: Vec<i64> = clauses[0].homes[&0].iter().map(|term| term.weight).collect();
        assert_eq!((clauses[0].homes.len(), weights), (2, vec![2, -2]));
    }

    /// A part of a sum may leave the range in which the sum is. A statement is as true then as by a pencil.
    #[test]
    fn statement_near_the_limits_of_counters_is_judged_exactly() {
        let count = |key: &ObjectKey| if key.name == "x" { i64::MAX } else { i64::MIN };
        let both = || Metric::Sum(vec![counter(0, "x"), counter(1, "x")]);
        let around = Metric::Sum(vec![both(), counter(0, "y"), counter(1, "y")]);
        assert_eq!((both().value(&count), around.value(&count)), (Err(Unfit::OutOfRange), Ok(-2)));
        assert_eq!(Statement::AtLeast(both(), i64::MAX).judge(&count), Ok(()));
        let most = Statement::AtMost(both(), 0);
        assert_eq!(most.judge(&count), Err(Unfit::NotTrue(i64::MAX)));
        assert_eq!(most.denial(&count), Some(Statement::AtLeast(both(), 1)));
        assert_eq!(Statement::AtMost(counter(0, "x"), i64::MAX).denial(&count), None);

        // A multiple that no number could hold is refused where the treaty is made, and where its counters are kept.
        let half = || Metric::Times(1 << 62, Box::new(counter(0, "z")));
        let nothing = |_: &ObjectKey| 0;
        let clauses = |metric| Statement::AtLeast(metric, 0).clauses(&nothing);
        assert_eq!(
            clauses(Metric::Sum(vec![half(), Metric::Times(1 << 62, Box::new(counter(1, "z")))])),
            Err(Unfit::OutOfRange)
        );
        assert!(clauses(half()).is_ok());
        let huge = Metric::Times(
            i64::MAX,
            Box::new(Metric::Times(i64::MAX, Box::new(Metric::Times(i64::MAX, Box::new(counter(0, "x")))))),
        );
        assert_eq!(Statement::AtLeast(huge, 0).judge(&count), Err(Unfit::OutOfRange));
    }

    #[test]
    fn denial_is_true_now_and_excludes_what_it_denies() {
        let metric = || Metric::Sum(vec![counter(0, "x"), counter(1, "x")]);
        let smaller = || Metric::Min(vec![counter(0, "x"), counter(1, "x")]);
        let all = |statements: &[Statement]| Statement::All(statements.to_vec());
        for (x, y) in [(0, 0), (3, 4), (-2, 9), (5, -5)] {
            let count = |key: &ObjectKey| if key.home == 0 { x } else { y };
            for number in -3..9 {
                let (least, most) = (Statement::AtLeast(metric(), number), Statement::AtMost(smaller(), number));
                let both = all(&[least.clone(), most.clone()]);
                for statement in [least, most, both, Statement::Equals(metric(), number)] {
                    let denial = statement.denial(&count);
                    assert_eq!(denial.is_some(), statement.judge(&count).is_err(), "{statement:?}");
                    let Some(denial) = denial else { continue };
                    assert_eq!(denial.judge(&count), Ok(()), "{denial:?} is true");
                    for (x, y) in [(0, 0), (1, 1), (4, 3), (9, -2), (-4, -4)] {
                        let count = |key: &ObjectKey| if key.home == 0 { x } else { y };
                        assert!(denial.judge(&count).is_err() || statement.judge(&count).is_err(), "not both are true");
                    }
                }
            }
        }
    }

    #[test]
    fn statement_that_cannot_be_kept_is_refused_with_the_reason() {
        let count = |_: &ObjectKey| 3;
        let clauses = |statement: Statement| statement.clauses(&count).expect_err("it cannot be kept");
        assert_eq!(clauses(Statement::AtLeast(counter(0, "x"), 4)), Unfit::NotTrue(3));
        assert_eq!(clauses(Statement::AtLeast(Metric::Sum(Vec::new()), 0)), Unfit::NoCounter);
        assert_eq!(clauses(Statement::AtLeast(Metric::Min(Vec::new()), 0)), Unfit::NoCounter);
        assert_eq!(clauses(Statement::AtLeast(minus(counter(0, "x"), counter(0, "x")), 0)), Unfit::NoCounter);
        let huge = Metric::Times(i64::MAX, Box::new(counter(0, "x")));
        assert_eq!(clauses(Statement::AtLeast(huge, 0)), Unfit::OutOfRange);
        let many = Metric::Sum((0..65).map(|home| counter(home, "x")).collect());
        assert_eq!(clauses(Statement::AtLeast(many, 0)), Unfit::TooManyHomes);
        let pair = |at: u32| Metric::Min(vec![counter(0, &format!("a{at}")), counter(0, &format!("b{at}"))]);
        let product = Metric::Sum((0..13).map(pair).collect());
        assert_eq!(clauses(Statement::AtLeast(product, 0)), Unfit::TooManyParts);
        let deep = (0..100).fold(counter(0, "x"), |metric, _| Metric::Sum(vec![metric]));
        assert_eq!(clauses(Statement::AtLeast(deep, 0)), Unfit::TooDeep);
    }

    #[test]
    fn notes_divide_all_of_the_slack_and_survive_the_way_through_bytes() {
        let count = |key: &ObjectKey| if key.home == 0 { 10 } else { 3 };
        let metric = Metric::Sum(vec![counter(0, "x"), counter(1, "x"), Metric::Log2(key(2, "x"))]);
        let statement = Statement::All(vec![Statement::AtLeast(metric, 4), Statement::AtMost(counter(0, "x"), 11)]);
        let tree = Tree::Given(vec![BTreeSet::from([0, 1])]);
        let treaty = Treaty { nonce: 7, is_valid: true, retracts: 2, statement, tree };
        let homes = BTreeMap::from([(0, Incarnation(1)), (1, Incarnation(2)), (2, Incarnation(1))]);
        let key = treaty_key(1, "lead");
        let notes = treaty.notes(&key, &homes, &count, &equally).expect("true");
        // 10 + 3 + 1 is ten more than 4.
        let bounds = |home: u16| notes[&home].clauses.iter().map(|(at, _, bound)| (*at, *bound)).collect::<Vec<_>>();
        assert_eq!((bounds(0), bounds(1), bounds(2)), (vec![(0, 6), (1, -11)], vec![(0, 0)], vec![(0, -2)]));
        for note in notes.values() {
            assert!(note.is_sound());
            let mut bytes = Vec::new();
            note.encode(&mut bytes);
            let mut cursor = Cursor(&bytes);
            assert_eq!(Note::decode(&mut cursor).as_ref(), Ok(note));
            assert_eq!(cursor.end(), Ok(()));
        }
        let value = treaty.to_value(&key, &notes[&0].homes);
        assert!(matches!(&value, Value::Derived(derived) if derived.homes.len() == 2), "it rests on the other homes");
        assert_eq!(Treaty::of_value(&value), Ok(treaty));
        assert_eq!(treaty_name(&key.name), Some("lead"));
        assert!(super::super::value::is_call(&key.name));
    }
}
