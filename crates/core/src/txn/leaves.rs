//! The leaves of treaties at a home: what this home keeps above which bounds (*Predictive Treaties*, EuroSys 2019; see
//! [`crate::object::treaty`]).
//!
//! A leaf has slack: by how much its part of a clause is above its bound. A write within the slack asks nobody, and knows
//! nothing of the treaty but two numbers. A write that needs more waits, holding nothing but the block on new rights, while
//! this home asks the others for slack:
//!
//! ```text
//!   this home                  another leaf's home        the treaty's home
//!      │──Ask (clauses)───────────────▶│                         │
//!      │◀─Report (slack, motion)───────│                         │   all that can be reached, or the near ones first
//!      │──Give (how much, how fast)───▶│                         │   by the best division of all slack (stats::split)
//!      │◀─Gifts (running totals)───────│ bound + gift            │   bound - gift: the write goes on
//!      │                               │                         │
//!      │──Retract ──────────────────────────────────────────────▶│   there is not enough: waits for rights over the treaty
//!      │◀─Retracted──────────────────────────────────────────────│   nobody relies on it any more: the write goes on
//! ```
//!
//! # Why the statement is true while the treaty is valid
//!
//! The bounds of a clause add up to its number when the treaty is made, and every home keeps its part above its own bound. A gift
//! raises the donor's bound durably before the receiver hears of it, and the receiver lowers its own by what the running total
//! shows beyond the last one ([`crate::gift`]). So at every instant the bounds add up to the number or more, whatever is lost,
//! repeated or late, whoever crashes, and whatever clocks show. Nobody agrees on anything: a division of slack is advice, and
//! the donor alone judges what it can spare. (Decision: slack moves by gifts alone.)
//!
//! # Undecided transactions
//!
//! What is prepared and undecided may take effect or not. A part is judged, and slack is reported and given away, as if every
//! undecided decrement had happened and no undecided increment.
//!
//! # A home that is cut off
//!
//! A home that lacks slack, and can reach neither a donor nor the treaty's home, stops vouching for the storage on which the
//! treaty rests ([`Leaves::withholds_from`]), durably. The treaty's home then lets nobody rely on it for longer than
//! [`VOUCHED`](crate::warranty::VOUCHED), and no right over it lasts longer than [`LONGEST`](crate::warranty::LONGEST) beyond
//! that. So [`LEASE`] later this home is free, and the write goes on. It vouches again once the treaty's home has said that the
//! treaty is retracted.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::locks::Locks;
use super::waits::Wait;
use crate::api::{ClauseHere, LeafHere};
use crate::bounds::AT_ONCE;
use crate::clock::{MILLISECOND, Now, SECOND};
use crate::codec::{Cursor, Malformed, put_i64, put_u64};
use crate::config::Slack;
use crate::gift::Totals;
use crate::id::{Incarnation, OperationId, SiteId};
use crate::machine::Batch;
use crate::object::message::{Gave, Message, Reported, Says, Wanted};
use crate::object::treaty::{TREATIES, Term, Tree, put_terms, read_terms};
use crate::object::{Abort, Cause, Change, ObjectKey, Part, Value};
use crate::rows::LEAF;
use crate::stats::split::{Outlook, Share, fixed, lasts, moving};
use crate::stats::trend::{Motion, Trend};
use crate::turn::{Here, Out, Turn};
use crate::warranty::LEASE;

/// The most notes of leaves at a home; a transaction that brings one more is refused.
const NOTES: usize = 10_000;
/// A standing order to give is carried out this often, in microseconds.
const PERIOD: u64 = 2 * SECOND;
/// A leaf that is expected to fail sooner than this asks for slack before it does, in microseconds.
const AHEAD: u64 = 6 * SECOND;
/// The shortest time between two looks at how long a clause is expected to last, in microseconds.
const LOOK: u64 = 200 * MILLISECOND;
/// When a treaty is new, its slack is divided again after this time, and after twice, four times, … of it, in microseconds: nobody
/// knew before how the leaf's part moves.
const FIRST_PLAN: u64 = SECOND;
/// The number of times that the slack of a new treaty is divided again.
const PLANS: u32 = 5;
/// The most clauses whose slack is divided again in one go, where nobody waits for it.
const PLANNED: usize = 256;
/// The pause between two questions to a treaty's home, in microseconds.
const AGAIN: u64 = 250 * MILLISECOND;
/// A home asks this often whether its leaves' treaties are still there, in microseconds.
const CONFIRM: u64 = 60 * SECOND;
/// The number of times that the others are asked for slack for one shortage, while they have enough together.
const TRIES: u32 = 6;
/// What stands in the key of a leaf's own row in place of a clause.
const WHOLE: u64 = u64::MAX;

/// One making of a treaty: its object, and the nonce of the making.
pub(super) type Making = (ObjectKey, u64);

/// The stage of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The transaction that makes the treaty is prepared here: the bounds are kept already.
    Prepared,
    /// The bounds are kept.
    Kept,
    /// They are kept, and the treaty's home is asked to retract the treaty.
    Retracting,
    /// They are kept until this monotonic time. The treaty's home cannot be reached, and this home no longer vouches to it.
    Leaving(u64),
    /// They are kept no longer; but this home does not vouch before the treaty's home says that the treaty is retracted.
    Free,
}

/// A leaf.
#[derive(Clone, Debug)]
struct Leaf {
    /// Its stage.
    stage: Stage,
    /// The homes of all leaves, in ascending order, in the incarnations on which the treaty rests.
    homes: Vec<(u16, Incarnation)>,
    /// Whom it asks for slack.
    tree: Tree,
    /// The clauses that have terms here, by position.
    clauses: BTreeMap<u32, Held>,
    /// The question for slack that is under way.
    asking: Option<Asking>,
    /// The number of times that slack was divided again since the treaty was new.
    plans: u32,
    /// What it has counted since this life of the site began.
    counts: Counts,
}

/// What a leaf counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    /// The times that slack was divided again because somebody waited for it.
    rebalances: u64,
    /// The gifts that it gave although nobody waited.
    gifts: u64,
    /// The gifts that it gave by a standing order.
    extensions: u64,
}

/// A clause at this home.
#[derive(Clone, Debug)]
struct Held {
    /// Its terms here.
    terms: Vec<Term>,
    /// The bound as it was noted when the treaty was made.
    noted: i64,
    /// The gifts of slack, by home.
    totals: Totals,
    /// The bound now: as noted, plus all that was given, less all that was received.
    bound: i128,
    /// The standing orders to give, by receiver.
    orders: BTreeMap<u16, Order>,
    /// The rates at which others have said that they go on giving, by donor, in millionths a second.
    incoming: BTreeMap<u16, u64>,
    /// How its part moves.
    trend: Trend,
    /// The monotonic time of the next look at how long it is expected to last.
    look_at: u64,
}

/// A standing order to give slack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Order {
    /// The rate, in millionths a second.
    rate: u64,
    /// The monotonic time up to which it has been carried out.
    done: u64,
}

/// A question for slack.
#[derive(Clone, Debug)]
struct Asking {
    /// Repeated in the answers.
    token: u64,
    /// The clauses.
    clauses: BTreeSet<u32>,
    /// True if a part waits for it.
    is_awaited: bool,
    /// The number of groups of homes that are asked.
    groups: usize,
    /// The homes that are asked and have not answered.
    missing: BTreeSet<u16>,
    /// The answers, by home.
    reports: BTreeMap<u16, Vec<Reported>>,
    /// True once donors have been told what to give.
    is_planned: bool,
    /// The number of times that donors were told so.
    tries: u32,
    /// The monotonic time when it goes on without those that have not answered.
    until: u64,
}

/// A part that waits for slack.
#[derive(Clone, Debug, Default)]
struct Want {
    /// What it lacks, by clause.
    lacks: BTreeMap<(Making, u32), i128>,
    /// The treaties that it relies upon: they are not retracted for it.
    relies: Vec<ObjectKey>,
}

/// Something that a part lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Lack {
    making: Making,
    clause: u32,
    /// The slack that is missing.
    amount: i128,
    /// The counter whose change takes it; the first of several.
    name: String,
}

/// What is done at a time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// The slack of a new treaty is divided again.
    Plan(Making),
    /// Standing orders of a clause are carried out.
    Give(Making, u32),
    /// A question for slack has waited for long enough.
    Asked(Making),
    /// The treaty's home is asked again to retract the treaty; or a leaf becomes free.
    Retract(Making),
    /// The treaty's home is asked whether the treaty is still there.
    Confirm(Making),
}

/// A counter on which clauses rest.
#[derive(Clone, Debug, Default)]
struct Noted {
    /// The number that it has come to.
    count: i64,
    /// The clauses.
    clauses: BTreeSet<(Making, u32)>,
}

/// The leaves of treaties at a home.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaves {
    /// The leaves, by making.
    leaves: BTreeMap<Making, Leaf>,
    /// The counters on which they rest. None without clauses.
    noted: FxHashMap<String, Noted>,
    /// The parts that wait for slack.
    wants: BTreeMap<OperationId, Want>,
    /// When each thing is due, in monotonic microseconds. A timer of a leaf that is gone is ignored.
    timers: BTreeSet<(u64, Timer)>,
    /// The last token that was given.
    tokens: u64,
    /// Parts that are to be looked at again, because slack came or a leaf is gone. Taken within the call.
    woken: BTreeSet<OperationId>,
    /// Parts that are refused: a treaty that they rely upon has not enough slack. Taken when they are looked at.
    denied: BTreeMap<OperationId, ObjectKey>,
}

impl Held {
    /// What its terms have come to, at the least: undecided changes count as far as they lower it.
    fn least(&self, noted: &FxHashMap<String, Noted>, locks: &Locks) -> i128 {
        let count = |term: &Term| noted.get(&term.name).map_or(0, |noted| noted.count);
        self.terms.iter().map(|term| term.least(locks.range(&term.name, count(term)))).sum()
    }

    /// The slack that may be given away or used.
    fn slack(&self, noted: &FxHashMap<String, Noted>, locks: &Locks) -> i128 {
        self.least(noted, locks) - self.bound
    }

    /// The rate at which the bound rises by standing orders, in millionths a second.
    fn rate(&self) -> i64 {
        let sum =
            |rates: &mut dyn Iterator<Item = u64>| rates.fold(0i64, |sum, rate| sum.saturating_add_unsigned(rate));
        sum(&mut self.orders.values().map(|order| order.rate)) - sum(&mut self.incoming.values().copied())
    }

    /// Its outlook.
    fn outlook(&self, now: Now, noted: &FxHashMap<String, Noted>, locks: &Locks) -> Outlook {
        Outlook { slack: clamped(self.slack(noted, locks)), motion: self.trend.motion(now.mono) }
    }

    /// Asserts what holds between any two calls.
    fn check(&self) {
        let total = |totals: &dyn Fn(usize) -> u128| (0..64).map(totals).sum::<u128>() as i128;
        let given = total(&|home| self.totals.given(home).amount);
        let received = total(&|home| self.totals.received(home).amount);
        assert!(self.bound == i128::from(self.noted) + given - received, "a bound moves by gifts alone");
    }
}

impl Leaf {
    /// True if its bounds are kept.
    fn is_kept(&self) -> bool {
        self.stage != Stage::Free
    }

    /// The incarnation of a home on which the treaty rests.
    fn incarnation(&self, home: u16) -> Option<Incarnation> {
        let at = self.homes.binary_search_by_key(&home, |(home, _)| *home).ok()?;
        Some(self.homes[at].1)
    }

    /// The other homes, in the groups in which they are asked: each time those of one more group.
    fn groups(&self, here: &Here) -> Vec<Vec<u16>> {
        let me = here.site.me;
        let others = || self.homes.iter().map(|(home, _)| *home).filter(|home| *home != me.region);
        let mut groups: Vec<Vec<u16>> = match &self.tree {
            Tree::Flat => vec![others().collect()],
            Tree::Near => {
                let mut near: Vec<u16> = others().collect();
                near.sort_by_key(|home| (here.round_trip(SiteId::new(*home, me.lane)), *home));
                let mut groups = Vec::new();
                while !near.is_empty() {
                    let size = (1 << groups.len()).min(near.len());
                    groups.push(near.drain(..size).collect());
                }
                groups
            }
            Tree::Given(given) => {
                let (mut groups, mut left): (Vec<Vec<u16>>, BTreeSet<u16>) = (Vec::new(), others().collect());
                let mut mine: Vec<&BTreeSet<u16>> = given.iter().filter(|group| group.contains(&me.region)).collect();
                mine.sort_by_key(|group| group.len());
                for group in mine {
                    let next: Vec<u16> = group.iter().copied().filter(|home| left.remove(home)).collect();
                    groups.push(next);
                }
                groups.push(left.into_iter().collect());
                groups
            }
        };
        groups.retain(|group| !group.is_empty());
        groups
    }
}

/// A number as it fits a forecast or a message.
fn clamped(number: i128) -> i64 {
    number.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// The key of the row of a leaf, or of a clause of it.
fn key((treaty, nonce): &Making, clause: u64) -> Vec<u8> {
    let mut key = vec![LEAF];
    treaty.encode(&mut key);
    key.extend_from_slice(&nonce.to_be_bytes());
    key.extend_from_slice(&clause.to_be_bytes());
    key
}

impl Leaves {
    // Judging parts.

    /// The names whose heads a part with these notes needs.
    pub(super) fn names(part: &Part) -> impl Iterator<Item = &String> {
        let clauses = part.notes.iter().flat_map(|note| &note.clauses);
        clauses.flat_map(|(_, terms, _)| terms.iter().map(|term| &term.name))
    }

    /// What a part lacks: the slack that its writes take beyond what is here.
    fn lacks(&self, locks: &Locks, part: &Part) -> Vec<Lack> {
        if self.noted.is_empty() {
            return Vec::new();
        }

        // Each clause is judged once, by all that the part writes to its counters.
        let mut touched: BTreeMap<&(Making, u32), &String> = BTreeMap::new();
        for (name, _) in &part.writes {
            for clause in self.noted.get(name).into_iter().flat_map(|noted| &noted.clauses) {
                touched.entry(clause).or_insert(name);
            }
        }
        let lack = |((making, clause), name): (&(Making, u32), &String)| {
            let leaf = self.leaves.get(making).filter(|leaf| leaf.is_kept())?;
            let held = &leaf.clauses[clause];
            let (before, after) = self.around(locks, held, part);
            let is_enough = after.is_some_and(|after| after >= before || after >= held.bound);
            let amount = held.bound - after.unwrap_or(i128::from(i64::MIN));
            let lack = || Lack { making: making.clone(), clause: *clause, amount, name: name.clone() };
            (!is_enough).then(lack)
        };
        touched.into_iter().filter_map(lack).collect()
    }

    /// What the terms of a clause come to at the least, before a part and after it; none if it leaves no counter there.
    fn around(&self, locks: &Locks, held: &Held, part: &Part) -> (i128, Option<i128>) {
        let (mut before, mut after) = (0, Some(0));
        for term in &held.terms {
            let count = self.noted.get(&term.name).map_or(0, |noted| noted.count);
            let range = locks.range(&term.name, count);
            before += term.least(range);

            // Its own changes count as they are; those of others that are undecided, as far as they lower the sum.
            let write = part.writes.binary_search_by(|(name, _)| name.as_str().cmp(&term.name));
            let then = match write.map(|at| &part.writes[at].1) {
                Err(_) => Some(range),
                Ok(Change::Add(delta)) => Some((range.0.saturating_add(*delta), range.1.saturating_add(*delta))),
                Ok(Change::Put(Value::Counter(count))) => Some((*count, *count)),
                Ok(Change::Delete) => Some((0, 0)),
                Ok(Change::Put(Value::Bytes(_) | Value::Derived(_))) => None,
            };
            after = after.zip(then).map(|(sum, range)| sum + term.least(range));
        }
        (before, after)
    }

    /// Adds what a part waits for.
    pub(super) fn waits(&self, here: &Here, locks: &Locks, part: &Part, waits: &mut Vec<Wait>) {
        for Lack { making, name, .. } in self.lacks(locks, part) {
            let leaf = &self.leaves[&making];
            let others = leaf.homes.iter().map(|(home, _)| SiteId::new(*home, here.site.me.lane));
            let holders: Vec<SiteId> = others.filter(|site| *site != here.site.me).collect();

            // Two round trips to the nearest that can be asked, or one to the treaty's home: which it will be is not known yet. At
            // the latest this home is free when the lease is over.
            let home = SiteId::new(making.0.home, here.site.me.lane);
            let near = holders.iter().copied().chain([home]).filter(|site| here.is_reachable(*site));
            let expected = near.map(|site| here.round_trip(site)).min().unwrap_or(LEASE);
            waits.push(Wait::for_slack(name, holders, here.now.mono.saturating_add(LEASE), expected));
        }
    }

    /// Judges the notes that a part brings: its clauses are true here, and there is room.
    pub(super) fn check(
        &self,
        locks: &Locks,
        site: SiteId,
        part: &Part,
        counts: &FxHashMap<String, i64>,
    ) -> Result<(), Abort> {
        for note in &part.notes {
            if self.leaves.len() >= NOTES {
                return Err(Abort { site: Some(site), ..Abort::of(Cause::Overloaded) });
            }
            for (_, terms, bound) in &note.clauses {
                // Inequalities are validated, not versions: counters change all the time, and a treaty could never be made
                // otherwise. What is undecided counts as where a write is judged.
                let least: i128 =
                    terms.iter().map(|term| term.least(locks.range(&term.name, counts[&term.name]))).sum();
                if least < i128::from(*bound) {
                    return Err(Abort::about(Cause::Changed, site, &terms[0].name));
                }

                for term in terms {
                    let others = self.noted.get(&term.name).into_iter().flat_map(|noted| &noted.clauses);
                    let treaties: BTreeSet<&ObjectKey> =
                        others.map(|((treaty, _), _)| treaty).filter(|treaty| **treaty != note.treaty).collect();
                    if treaties.len() >= TREATIES {
                        return Err(Abort::about(Cause::TooManyTreaties, site, &term.name));
                    }
                }
            }
        }
        Ok(())
    }

    /// Keeps the notes of a part that is prepared, from now on.
    pub(super) fn take(&mut self, now: Now, part: &Part, counts: &FxHashMap<String, i64>) {
        for note in &part.notes {
            let clauses = note.clauses.iter().map(|(position, terms, bound)| {
                let held = Held {
                    terms: terms.clone(),
                    noted: *bound,
                    totals: Totals::default(),
                    bound: i128::from(*bound),
                    orders: BTreeMap::new(),
                    incoming: BTreeMap::new(),
                    trend: Trend::new(now.mono),
                    look_at: now.mono,
                };
                (*position, held)
            });
            let leaf = Leaf {
                stage: Stage::Prepared,
                homes: note.homes.clone(),
                tree: note.tree.clone(),
                clauses: clauses.collect(),
                asking: None,
                plans: 0,
                counts: Counts::default(),
            };
            for name in note.clauses.iter().flat_map(|(_, terms, _)| terms.iter().map(|term| &term.name)) {
                self.noted.entry(name.clone()).or_insert_with(|| Noted { count: counts[name], ..Noted::default() });
            }
            self.insert((note.treaty.clone(), note.nonce), leaf);
        }
    }

    /// Lets go of the notes of a part that was refused, and of what it waited for.
    pub(super) fn let_go(&mut self, id: OperationId, part: &Part) {
        self.wants.remove(&id);
        self.denied.remove(&id);
        for note in &part.notes {
            let making = (note.treaty.clone(), note.nonce);
            if self.leaves.get(&making).is_some_and(|leaf| leaf.stage == Stage::Prepared) {
                self.remove(&making);
            }
        }
    }

    /// Makes the notes of a part durable that is carried out. What an earlier making of the same treaty has noted here goes.
    pub(super) fn keep(&mut self, now: Now, me: u16, batch: &mut Batch, part: &Part) {
        for note in &part.notes {
            let making = (note.treaty.clone(), note.nonce);
            let earlier: Vec<Making> = self.makings_of(&note.treaty).filter(|other| *other != making).collect();
            for earlier in earlier {
                let is_prepared = self.leaves[&earlier].stage == Stage::Prepared;
                assert!(!is_prepared, "two transactions make one treaty at a time");
                self.drop_leaf(batch, &earlier);
            }

            let leaf = self.leaves.get_mut(&making).expect("taken when it was prepared");
            leaf.stage = Stage::Kept;
            self.write(batch, &making);
            self.watch(now, me, &making);
        }
    }

    /// Begins to look after a leaf that is kept.
    fn watch(&mut self, now: Now, me: u16, making: &Making) {
        let leaf = &self.leaves[making];
        // One of the leaves is enough to divide the slack of a new treaty again.
        if leaf.homes.len() > 1 && leaf.homes[0].0 == me {
            self.timers.insert((now.mono + FIRST_PLAN, Timer::Plan(making.clone())));
        }
        self.timers.insert((now.mono + CONFIRM, Timer::Confirm(making.clone())));
    }

    /// Notes that an object has another value now. `None` for nothing.
    pub(super) fn note_write(&mut self, now: Now, name: &str, value: Option<&Value>) {
        let Some(noted) = self.noted.get_mut(name) else { return };
        let after = if let Some(Value::Counter(count)) = value { *count } else { 0 };
        let before = std::mem::replace(&mut noted.count, after);
        for (making, clause) in &noted.clauses {
            let leaf = self.leaves.get_mut(making).expect("a counter names leaves that are there");
            let held = leaf.clauses.get_mut(clause).expect("a counter names clauses that are there");
            let term = held.terms.iter().filter(|term| term.name == name);
            let change: i128 = term.map(|term| term.of(after) - term.of(before)).sum();
            held.trend.note(now.mono, clamped(change));
        }
    }

    /// Looks whether clauses that were lowered are expected to fail soon, and asks for slack before they do.
    pub(super) fn look_ahead(&mut self, turn: &mut Turn, locks: &Locks, name: &str) {
        let Some(noted) = self.noted.get(name) else { return };
        if turn.here.config.slack != Slack::Ahead {
            return;
        }
        let now = turn.here.now;
        let mut short: Vec<(Making, u32)> = Vec::new();
        for (making, clause) in &noted.clauses {
            let leaf = &self.leaves[making];
            let held = &leaf.clauses[clause];
            if leaf.stage == Stage::Kept && leaf.asking.is_none() && leaf.homes.len() > 1 && now.mono >= held.look_at {
                short.push((making.clone(), *clause));
            }
        }
        for (making, clause) in short {
            let noted = &self.noted;
            let held =
                self.leaves.get_mut(&making).and_then(|leaf| leaf.clauses.get_mut(&clause)).expect("looked up above");
            let left = lasts(&held.outlook(now, noted, locks), held.rate());
            held.look_at = now.mono + LOOK;
            if left.is_some_and(|left| left < AHEAD) {
                // Asked in vain it is not asked again at once: what is left for all may simply not last longer.
                held.look_at = now.mono + SECOND;
                self.ask(turn, &making, BTreeSet::from([clause]), false);
            }
        }
    }

    // Waiting for slack.

    /// Notes what a part waits for, and asks for it.
    pub(super) fn want(&mut self, turn: &mut Turn, locks: &Locks, id: OperationId, part: &Part) {
        let mut want = Want { lacks: BTreeMap::new(), relies: part.relies.clone() };
        for Lack { making, clause, amount, .. } in self.lacks(locks, part) {
            want.lacks.insert((making, clause), amount);
        }
        let makings: BTreeSet<Making> = want.lacks.keys().map(|(making, _)| making.clone()).collect();
        if want.lacks.is_empty() {
            self.wants.remove(&id);
            return;
        }
        self.wants.insert(id, want);
        makings.iter().for_each(|making| self.ask_for_wanted(turn, making));
    }

    /// A part that waited is judged now.
    pub(super) fn waits_no_more(&mut self, id: OperationId) {
        self.wants.remove(&id);
    }

    /// The treaty that a part relies upon and for which there is not enough slack: it is refused.
    pub(super) fn take_denied(&mut self, id: OperationId) -> Option<ObjectKey> {
        self.denied.remove(&id)
    }

    /// The parts that are to be looked at again.
    pub(super) fn take_woken(&mut self) -> BTreeSet<OperationId> {
        std::mem::take(&mut self.woken)
    }

    /// What parts lack of each clause of a leaf, in sum.
    fn wanted(&self, making: &Making) -> BTreeMap<u32, i128> {
        let mut wanted: BTreeMap<u32, i128> = BTreeMap::new();
        for ((of, clause), amount) in self.wants.values().flat_map(|want| &want.lacks) {
            if of == making {
                *wanted.entry(*clause).or_default() += amount;
            }
        }
        wanted
    }

    /// Wakes the parts that wait for a leaf.
    fn wake(&mut self, making: &Making) {
        let waits = |want: &Want| want.lacks.keys().any(|(of, _)| of == making);
        self.woken.extend(self.wants.iter().filter(|(_, want)| waits(want)).map(|(id, _)| *id));
    }

    /// Asks for the slack that parts lack, if nobody is asked yet.
    fn ask_for_wanted(&mut self, turn: &mut Turn, making: &Making) {
        let Some(leaf) = self.leaves.get(making) else { return };
        let is_asking = leaf.asking.as_ref().is_some_and(|asking| asking.is_awaited);
        if is_asking || matches!(leaf.stage, Stage::Leaving(_) | Stage::Free) {
            return;
        }

        // While the treaty is being retracted, there is nothing to divide.
        if leaf.stage == Stage::Retracting {
            return self.deny(making);
        }
        let clauses: BTreeSet<u32> = self.wanted(making).into_keys().collect();
        if !clauses.is_empty() {
            self.ask(turn, making, clauses, true);
        }
    }

    /// Asks the other leaves what slack they have.
    fn ask(&mut self, turn: &mut Turn, making: &Making, clauses: BTreeSet<u32>, is_awaited: bool) {
        self.tokens += 1;
        let token = self.tokens;
        let leaf = self.leaves.get_mut(making).expect("looked up by the caller");
        let tries =
            leaf.asking.as_ref().filter(|asking| asking.is_awaited && is_awaited).map_or(0, |asking| asking.tries);
        leaf.asking = Some(Asking {
            token,
            clauses,
            is_awaited,
            groups: 0,
            missing: BTreeSet::new(),
            reports: BTreeMap::new(),
            is_planned: false,
            tries,
            until: 0,
        });
        self.ask_more(turn, making);
    }

    /// Asks one more group of leaves; if there is none, gives up.
    fn ask_more(&mut self, turn: &mut Turn, making: &Making) {
        let lane = turn.here.site.me.lane;
        loop {
            let leaf = self.leaves.get_mut(making).expect("looked up by the caller");
            let groups = leaf.groups(&turn.here);
            let asking = leaf.asking.as_mut().expect("somebody is asked");

            // Where nobody waits, all are asked: the whole slack is divided again.
            let from = asking.groups;
            asking.groups = if asking.is_awaited { (from + 1).min(groups.len()) } else { groups.len() };
            if asking.groups == from {
                return self.give_up(turn, making);
            }
            let is_there = |home: &u16| turn.here.is_reachable(SiteId::new(*home, lane));
            let next: Vec<u16> = groups[from..asking.groups].iter().flatten().copied().filter(is_there).collect();
            if next.is_empty() {
                continue;
            }

            let farthest = next.iter().map(|home| turn.here.round_trip(SiteId::new(*home, lane))).max().unwrap_or(0);
            asking.missing = next.iter().copied().collect();
            asking.until = turn.here.now.mono + 2 * farthest + 50 * MILLISECOND;
            self.timers.insert((asking.until, Timer::Asked(making.clone())));
            let says = Says::Ask { token: asking.token, clauses: asking.clauses.iter().copied().collect() };
            for home in next {
                say(&mut turn.out, SiteId::new(home, lane), making, says.clone());
            }
            return;
        }
    }

    /// Takes a report. When all have answered, slack is divided.
    fn reported(
        &mut self,
        turn: &mut Turn,
        locks: &Locks,
        making: &Making,
        from: u16,
        token: u64,
        lines: Vec<Reported>,
    ) {
        let Some(asking) = self.leaves.get_mut(making).and_then(|leaf| leaf.asking.as_mut()) else { return };
        if asking.token != token || !asking.missing.remove(&from) {
            return;
        }
        asking.reports.insert(from, lines);
        if asking.missing.is_empty() {
            self.divide(turn, locks, making);
        }
    }

    /// Divides the slack of those that have answered: tells each what to give to whom. Asks more if it is not enough.
    fn divide(&mut self, turn: &mut Turn, locks: &Locks, making: &Making) {
        let (me, now) = (turn.here.site.me, turn.here.now);
        let wanted = self.wanted(making);
        let Self { leaves, noted, .. } = self;
        let leaf = leaves.get_mut(making).expect("looked up by the caller");
        let asking = leaf.asking.as_mut().expect("somebody was asked");

        let mut gives: BTreeMap<u16, Vec<Wanted>> = BTreeMap::new();
        for clause in &asking.clauses {
            let Some(held) = leaf.clauses.get(clause) else { continue };
            let lack = wanted.get(clause).copied().unwrap_or(0);
            let mut parts = vec![(me.region, held.outlook(now, noted, locks))];
            let lines = asking.reports.iter().flat_map(|(home, lines)| lines.iter().map(move |line| (*home, line)));
            parts.extend(lines.filter(|(_, line)| line.clause == *clause).map(|(home, line)| {
                (home, Outlook { slack: line.slack, motion: Motion { velocity: line.velocity, noise: line.noise } })
            }));

            // What is lacking here comes first, and only the rest is divided. Where the others have not that much, it is no use to ask
            // them for part of it.
            let spare: i128 = parts[1..].iter().map(|(_, part)| i128::from(part.slack.max(0))).sum();
            if spare < lack {
                return self.ask_more(turn, making);
            }
            let mut rest: Vec<Outlook> = parts.iter().map(|(_, part)| *part).collect();
            let own = rest[0].slack;
            if lack > 0 {
                rest[0].slack = clamped(-lack);
            }
            let mut shares: Vec<Share> = match turn.here.config.slack {
                Slack::Fixed => fixed(&rest).into_iter().map(|slack| Share { slack, rate: 0 }).collect(),
                _ => moving(&rest),
            };
            if lack > 0 {
                shares[0].slack = shares[0].slack.saturating_add(own).saturating_add(clamped(lack));
            }
            plan(*clause, &parts, &shares, &mut gives);

            // A standing order to give here that is not in the plan ends.
            for donor in held.incoming.keys() {
                let gives = gives.entry(*donor).or_default();
                if !gives.iter().any(|give| (give.clause, give.to) == (*clause, me.region)) {
                    gives.push(Wanted { clause: *clause, to: me.region, amount: 0, rate: 0 });
                }
            }
        }

        asking.is_planned = true;
        asking.tries += 1;
        let farthest = gives.keys().map(|home| turn.here.round_trip(SiteId::new(*home, me.lane))).max().unwrap_or(0);
        asking.until = now.mono + 2 * farthest + 50 * MILLISECOND;
        let until = asking.until;
        if asking.is_awaited && asking.tries == 1 {
            leaf.counts.rebalances += 1;
        }
        if !asking.is_awaited {
            leaf.asking = None;
        } else {
            self.timers.insert((until, Timer::Asked(making.clone())));
        }
        for (home, gives) in gives {
            match home == me.region {
                true => self.give(turn, locks, making, gives),
                false => say(&mut turn.out, SiteId::new(home, me.lane), making, Says::Give { gives }),
            }
        }
    }

    /// A question has waited for long enough.
    fn asked_for_long(&mut self, turn: &mut Turn, locks: &Locks, making: &Making) {
        let Some(leaf) = self.leaves.get_mut(making) else { return };
        let Some(asking) = leaf.asking.as_mut().filter(|asking| asking.until <= turn.here.now.mono) else { return };

        // Those that have not answered are left out: a site that has crashed does not stop the others.
        if !asking.is_planned {
            asking.missing.clear();
            return self.divide(turn, locks, making);
        }

        // Donors have given to others meanwhile, or what they said was lost. They are asked again, a few times.
        let (clauses, tries) = (asking.clauses.clone(), asking.tries);
        let is_wanted = self.wanted(making).keys().any(|clause| clauses.contains(clause));
        match is_wanted {
            false => self.leaves.get_mut(making).expect("looked up above").asking = None,
            true if tries >= TRIES => self.give_up(turn, making),
            true => {
                let clauses = self.wanted(making).into_keys().collect();
                self.ask(turn, making, clauses, true);
            }
        }
    }

    /// There is not enough slack: parts that rely on the treaty are refused, and for the others it is retracted.
    fn give_up(&mut self, turn: &mut Turn, making: &Making) {
        let leaf = self.leaves.get_mut(making).expect("looked up by the caller");
        let is_awaited = leaf.asking.take().is_some_and(|asking| asking.is_awaited);
        if !is_awaited {
            return;
        }
        self.deny(making);
        if !self.wanted(making).is_empty() && self.leaves[making].stage == Stage::Kept {
            self.leaves.get_mut(making).expect("looked up above").stage = Stage::Retracting;
            self.ask_to_retract(turn, making);
        }
    }

    /// Refuses the parts that lack slack of a treaty on which they rely.
    fn deny(&mut self, making: &Making) {
        let relies = |want: &Want| want.lacks.keys().any(|(of, _)| of == making) && want.relies.contains(&making.0);
        let denied: Vec<OperationId> = self.wants.iter().filter(|(_, want)| relies(want)).map(|(id, _)| *id).collect();
        for id in denied {
            self.wants.remove(&id);
            self.denied.insert(id, making.0.clone());
            self.woken.insert(id);
        }
    }

    // Giving.

    /// Answers a question for slack.
    fn answer(&mut self, turn: &mut Turn, locks: &Locks, making: &Making, from: u16, token: u64, clauses: &[u32]) {
        let me = turn.here.site.me;
        let leaf = self.leaves.get(making).filter(|leaf| leaf.stage == Stage::Kept);
        let line = |clause: &u32| {
            let held = leaf?.clauses.get(clause)?;
            let Outlook { slack, motion: Motion { velocity, noise } } = held.outlook(turn.here.now, &self.noted, locks);
            Some(Reported { clause: *clause, slack, velocity, noise })
        };
        let lines = clauses.iter().filter_map(line).collect();
        say(&mut turn.out, SiteId::new(from, me.lane), making, Says::Report { token, lines });

        // What was given before may have been lost on its way: it is told again, to one who asks.
        self.tell_gifts(turn, making, from, clauses);
    }

    /// Tells a home the totals of what it was given.
    fn tell_gifts(&self, turn: &mut Turn, making: &Making, to: u16, clauses: &[u32]) {
        let Some(leaf) = self.leaves.get(making) else { return };
        let gift = |clause: &u32| {
            let held = leaf.clauses.get(clause)?;
            let total = held.totals.given(usize::from(to)).amount;
            let rate = held.orders.get(&to).map_or(0, |order| order.rate);
            (total > 0).then_some(Gave { clause: *clause, total, rate })
        };
        let gifts: Vec<Gave> = clauses.iter().filter_map(gift).collect();
        if !gifts.is_empty() {
            say(&mut turn.out, SiteId::new(to, turn.here.site.me.lane), making, Says::Gifts { gifts });
        }
    }

    /// Gives slack as it was advised, as far as it is here.
    fn give(&mut self, turn: &mut Turn, locks: &Locks, making: &Making, gives: Vec<Wanted>) {
        let now = turn.here.now;
        let mut given: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
        let Some(leaf) = self.leaves.get(making).filter(|leaf| leaf.stage == Stage::Kept) else { return };
        let receivers: BTreeSet<u16> = leaf.homes.iter().map(|(home, _)| *home).collect();
        for Wanted { clause, to, amount, rate } in gives {
            if to == turn.here.site.me.region || !receivers.contains(&to) {
                turn.out.metrics.ignored += 1;
                continue;
            }
            let Some(held) = self.leaves.get_mut(making).and_then(|leaf| leaf.clauses.get_mut(&clause)) else {
                continue;
            };
            let began = rate > 0 && !held.orders.contains_key(&to);
            match rate {
                0 => drop(held.orders.remove(&to)),
                _ => held.orders.entry(to).or_insert(Order { rate, done: now.mono }).rate = rate,
            }
            if began {
                self.timers.insert((now.mono + PERIOD, Timer::Give(making.clone(), clause)));
            }
            if self.give_some(turn, locks, making, clause, to, i128::from(amount)) > 0 || began {
                given.entry(to).or_default().push(clause);
                self.leaves.get_mut(making).expect("looked up above").counts.gifts += 1;
            }
        }
        for (to, clauses) in given {
            self.tell_gifts(turn, making, to, &clauses);
        }
    }

    /// Gives slack of a clause, at most what is here; returns the amount. Its row is in this call's batch, before anybody hears.
    fn give_some(
        &mut self,
        turn: &mut Turn,
        locks: &Locks,
        making: &Making,
        clause: u32,
        to: u16,
        amount: i128,
    ) -> i128 {
        let Self { leaves, noted, .. } = self;
        let leaf = leaves.get_mut(making).expect("looked up by the caller");
        let receiver = leaf.incarnation(to).expect("one of the leaves");
        let held = leaf.clauses.get_mut(&clause).expect("looked up by the caller");

        // As if every undecided decrement had happened: what is given away cannot be called back when it does.
        let amount = amount.min(held.slack(noted, locks)).clamp(0, i64::MAX.into());
        if amount > 0 {
            held.totals.give(usize::from(to), receiver, amount as u64);
            held.bound += amount;
            held.check();
            self.write_clause(&mut turn.out.batch, making, clause);
        }
        amount
    }

    /// Carries out the standing orders of a clause.
    fn give_on(&mut self, turn: &mut Turn, locks: &Locks, making: &Making, clause: u32) {
        let now = turn.here.now;
        let Some(leaf) = self.leaves.get(making).filter(|leaf| leaf.stage == Stage::Kept) else { return };
        let Some(held) = leaf.clauses.get(&clause) else { return };
        let orders: Vec<(u16, Order)> = held.orders.iter().map(|(to, order)| (*to, *order)).collect();
        let rate = held.orders.values().fold(0i64, |sum, order| sum.saturating_add_unsigned(order.rate));
        for (to, order) in &orders {
            let elapsed = now.mono.saturating_sub(order.done);
            let amount = i128::from(order.rate) * i128::from(elapsed) / i128::from(SECOND * SECOND);

            // A home that is to fail itself keeps what it has: whoever is short will ask, and all of it is divided again.
            let held = &self.leaves[making].clauses[&clause];
            let outlook = held.outlook(now, &self.noted, locks);
            let left = Outlook { slack: clamped(i128::from(outlook.slack) - amount), ..outlook };
            let is_soon = lasts(&left, rate).is_some_and(|left| left < 2 * PERIOD);
            let amount = if is_soon { 0 } else { amount };
            if is_soon || amount > 0 {
                let given = self.give_some(turn, locks, making, clause, *to, amount);
                let leaf = self.leaves.get_mut(making).expect("looked up above");
                leaf.counts.extensions += u64::from(given > 0);
                let held = leaf.clauses.get_mut(&clause).expect("looked up above");
                if let Some(order) = held.orders.get_mut(to) {
                    // Only what was carried out: a part of a unit is given the next time.
                    let took = amount * i128::from(SECOND * SECOND) / i128::from(order.rate.max(1));
                    order.done = if is_soon { now.mono } else { order.done.saturating_add(took as u64) };
                }
                if given > 0 {
                    self.tell_gifts(turn, making, *to, &[clause]);
                }
            }
        }
        if !orders.is_empty() {
            self.timers.insert((now.mono + PERIOD, Timer::Give(making.clone(), clause)));
        }
    }

    /// Takes gifts: what their totals show beyond the last ones.
    fn take_gifts(&mut self, turn: &mut Turn, making: &Making, from: u16, gifts: Vec<Gave>) {
        let mut is_more = false;
        for Gave { clause, total, rate } in gifts {
            let Some(leaf) = self.leaves.get_mut(making).filter(|leaf| leaf.stage != Stage::Prepared) else { return };
            let Some(donor) = leaf.incarnation(from) else { return };
            let Some(held) = leaf.clauses.get_mut(&clause) else { continue };
            match rate {
                0 => drop(held.incoming.remove(&from)),
                _ => drop(held.incoming.insert(from, rate)),
            }
            let missing = held.totals.missing(usize::from(from), donor, total);
            if missing > 0 {
                // Durable before it is used: the bound is lowered in this call's batch.
                held.totals.receive(usize::from(from), donor, total);
                held.bound -= missing as i128;
                held.check();
                is_more = true;
                self.write_clause(&mut turn.out.batch, making, clause);
            }
        }
        if is_more {
            self.wake(making);
        }
    }

    // Retracting.

    /// Asks the treaty's home to retract it; a home that is cut off from it stops vouching instead.
    fn ask_to_retract(&mut self, turn: &mut Turn, making: &Making) {
        let (here, now) = (&turn.here, turn.here.now);
        let home = SiteId::new(making.0.home, here.site.me.lane);
        let Some(leaf) = self.leaves.get_mut(making) else { return };
        match leaf.stage {
            Stage::Prepared | Stage::Kept => return,
            Stage::Retracting if !here.is_reachable(home) => {
                leaf.stage = Stage::Leaving(now.mono + LEASE + 2 * here.config.epsilon);
                self.write(&mut turn.out.batch, making);
            }
            Stage::Leaving(free_at) if now.mono >= free_at => {
                leaf.stage = Stage::Free;
                self.wake(making);
            }
            Stage::Retracting | Stage::Leaving(_) | Stage::Free => {}
        }
        // While the home is cut off, only the end of the lease is waited for.
        let is_there = turn.here.is_reachable(home);
        let pause = if is_there { AGAIN.max(2 * turn.here.round_trip(home)) } else { SECOND };
        self.timers.insert((now.mono + pause, Timer::Retract(making.clone())));
        say(&mut turn.out, home, making, Says::Retract { is_question: false });
    }

    /// The treaty's home says that nobody relies on this making any more, nor will.
    fn retracted(&mut self, turn: &mut Turn, making: &Making) {
        if self.leaves.get(making).is_some_and(|leaf| leaf.stage != Stage::Prepared) {
            self.wake(making);
            self.drop_leaf(&mut turn.out.batch, making);
        }
    }

    /// True if this home must not vouch to another one: that may still count on a leaf that is no longer kept, or soon is not.
    pub(super) fn withholds_from(&self, home: u16) -> bool {
        let leaves = self.leaves.iter().filter(|((treaty, _), _)| treaty.home == home);
        leaves.map(|(_, leaf)| leaf.stage).any(|stage| matches!(stage, Stage::Leaving(_) | Stage::Free))
    }

    // Messages and timers.

    /// Handles what another leaf, or the treaty's home, says of a treaty.
    pub(super) fn hear(&mut self, turn: &mut Turn, locks: &Locks, from: u16, making: &Making, says: Says) {
        match says {
            Says::Ask { token, clauses } => self.answer(turn, locks, making, from, token, &clauses),
            Says::Report { token, lines } => self.reported(turn, locks, making, from, token, lines),
            Says::Give { gives } => self.give(turn, locks, making, gives),
            Says::Gifts { gifts } => self.take_gifts(turn, making, from, gifts),
            Says::Retracted if from == making.0.home => self.retracted(turn, making),
            Says::Retracted | Says::Retract { .. } => turn.out.metrics.ignored += 1,
        }
    }

    /// The earliest time at which something is due, in monotonic microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due, at most [`AT_ONCE`] things a call.
    pub(super) fn tick(&mut self, turn: &mut Turn, locks: &Locks) {
        let now = turn.here.now.mono;
        for _ in 0..AT_ONCE {
            let Some((at, _)) = self.timers.first().filter(|(at, _)| *at <= now) else { return };
            let timer = (*at, self.timers.pop_first().expect("looked at just now").1);
            match timer.1 {
                Timer::Plan(making) => self.plan_again(turn, &making),
                Timer::Give(making, clause) => self.give_on(turn, locks, &making, clause),
                Timer::Asked(making) => self.asked_for_long(turn, locks, &making),
                Timer::Retract(making) => self.ask_to_retract(turn, &making),
                Timer::Confirm(making) => {
                    if self.leaves.contains_key(&making) {
                        let home = SiteId::new(making.0.home, turn.here.site.me.lane);
                        self.timers.insert((now + CONFIRM, Timer::Confirm(making.clone())));
                        say(&mut turn.out, home, &making, Says::Retract { is_question: true });
                    }
                }
            }
        }
    }

    /// Divides the slack of a new treaty again: by now more is known of how its parts move.
    fn plan_again(&mut self, turn: &mut Turn, making: &Making) {
        let Some(leaf) = self.leaves.get_mut(making).filter(|leaf| leaf.stage == Stage::Kept) else { return };
        if turn.here.config.slack == Slack::Fixed || leaf.plans >= PLANS {
            return;
        }
        leaf.plans += 1;
        let next = turn.here.now.mono + (FIRST_PLAN << leaf.plans);
        let clauses: BTreeSet<u32> = leaf.clauses.keys().copied().take(PLANNED).collect();
        let is_asking = leaf.asking.is_some();
        self.timers.insert((next, Timer::Plan(making.clone())));
        if !is_asking {
            self.ask(turn, making, clauses, false);
        }
    }

    // Storage.

    /// Writes a leaf's rows.
    fn write(&self, batch: &mut Batch, making: &Making) {
        let leaf = &self.leaves[making];
        let mut row = vec![u8::from(matches!(leaf.stage, Stage::Leaving(_) | Stage::Free))];
        put_u64(&mut row, leaf.homes.len() as u64);
        for (home, incarnation) in &leaf.homes {
            put_u64(&mut row, u64::from(*home));
            put_u64(&mut row, u64::from(incarnation.0));
        }
        leaf.tree.encode(&mut row);
        batch.put(&key(making, WHOLE), &row);
        leaf.clauses.keys().for_each(|clause| self.write_clause(batch, making, *clause));
    }

    /// Writes the row of a clause.
    fn write_clause(&self, batch: &mut Batch, making: &Making, clause: u32) {
        let held = &self.leaves[making].clauses[&clause];
        let mut row = Vec::new();
        put_terms(&mut row, &held.terms);
        put_i64(&mut row, held.noted);
        held.totals.encode(&mut row);
        batch.put(&key(making, u64::from(clause)), &row);
    }

    /// Restores a row of an earlier life. The rows of clauses come before the one of the leaf.
    pub(super) fn restore(&mut self, row_key: &[u8], row: &[u8]) -> Result<(), Malformed> {
        let mut cursor = Cursor(&row_key[1..]);
        let making = (ObjectKey::decode(&mut cursor)?, cursor.be_u64()?);
        let clause = cursor.be_u64()?;
        cursor.end()?;
        let empty = || Leaf {
            stage: Stage::Kept,
            homes: Vec::new(),
            tree: Tree::Flat,
            clauses: BTreeMap::new(),
            asking: None,
            plans: PLANS,
            counts: Counts::default(),
        };
        let leaf = self.leaves.entry(making).or_insert_with(empty);
        let mut cursor = Cursor(row);
        if clause == WHOLE {
            // The lease begins again: how much of it the earlier life had waited is not known.
            if cursor.u8()? != 0 {
                leaf.stage = Stage::Leaving(u64::MAX);
            }
            let home = |cursor: &mut Cursor| {
                Ok((u16::try_from(cursor.u64()?).map_err(|_| Malformed)?, Incarnation(cursor.u32()?)))
            };
            leaf.homes = (0..cursor.u64()?).map(|_| home(&mut cursor)).collect::<Result<_, _>>()?;
            leaf.tree = Tree::decode(&mut cursor)?;
            return cursor.end();
        }

        let (terms, noted, totals) = (read_terms(&mut cursor)?, cursor.i64()?, Totals::decode(&mut cursor)?);
        cursor.end()?;
        let sum = |amount: &dyn Fn(usize) -> u128| (0..64).map(amount).sum::<u128>() as i128;
        let given = sum(&|home| totals.given(home).amount);
        let received = sum(&|home| totals.received(home).amount);
        let bound = i128::from(noted) + given - received;
        let (orders, incoming) = (BTreeMap::new(), BTreeMap::new());
        let held = Held { terms, noted, totals, bound, orders, incoming, trend: Trend::default(), look_at: 0 };
        let clause = u32::try_from(clause).map_err(|_| Malformed)?;
        leaf.clauses.insert(clause, held);
        Ok(())
    }

    /// The names of all counters on which restored leaves rest.
    pub(super) fn counters(&self) -> BTreeSet<String> {
        let held = self.leaves.values().flat_map(|leaf| leaf.clauses.values());
        held.flat_map(|held| held.terms.iter().map(|term| term.name.clone())).collect()
    }

    /// All rows are restored, and this is what the counters have come to.
    pub(super) fn restored(&mut self, counts: &FxHashMap<String, i64>) {
        let leaves = std::mem::take(&mut self.leaves);
        for (making, leaf) in leaves {
            for term in leaf.clauses.values().flat_map(|held| &held.terms) {
                let count = counts[&term.name];
                self.noted.entry(term.name.clone()).or_insert_with(|| Noted { count, ..Noted::default() });
            }
            self.insert(making, leaf);
        }
    }

    /// The site serves, in this start.
    pub(super) fn resume(&mut self, here: &Here) {
        let makings: Vec<Making> = self.leaves.keys().cloned().collect();
        for making in makings {
            let leaf = self.leaves.get_mut(&making).expect("listed above");
            for held in leaf.clauses.values_mut() {
                (held.trend, held.look_at) = (Trend::new(here.now.mono), here.now.mono);
            }
            if matches!(leaf.stage, Stage::Leaving(_)) {
                leaf.stage = Stage::Leaving(here.now.mono + LEASE + 2 * here.config.epsilon);
                self.timers.insert((here.now.mono, Timer::Retract(making.clone())));
            }
            self.timers.insert((here.now.mono + SECOND, Timer::Confirm(making)));
        }
    }

    /// The keys of its rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = Vec<u8>> {
        let durable = self.leaves.iter().filter(|(_, leaf)| leaf.stage != Stage::Prepared);
        durable.flat_map(|(making, leaf)| {
            leaf.clauses.keys().map(|clause| u64::from(*clause)).chain([WHOLE]).map(|clause| key(making, clause))
        })
    }

    /// Deletes a leaf's rows, and forgets it.
    fn drop_leaf(&mut self, batch: &mut Batch, making: &Making) {
        let clauses: Vec<u32> = self.leaves[making].clauses.keys().copied().collect();
        batch.delete(&key(making, WHOLE));
        clauses.into_iter().for_each(|clause| batch.delete(&key(making, u64::from(clause))));
        self.remove(making);
    }

    /// The makings of a treaty that are noted here.
    fn makings_of(&self, treaty: &ObjectKey) -> impl Iterator<Item = Making> {
        let range = (treaty.clone(), 0)..=(treaty.clone(), u64::MAX);
        self.leaves.range(range).map(|(making, _)| making.clone())
    }

    /// Adds a leaf, and its clauses to its counters.
    fn insert(&mut self, making: Making, leaf: Leaf) {
        for (clause, held) in &leaf.clauses {
            for term in &held.terms {
                let noted = self.noted.get_mut(&term.name).expect("its count is known");
                noted.clauses.insert((making.clone(), *clause));
            }
        }
        self.leaves.insert(making, leaf);
    }

    /// Removes a leaf.
    fn remove(&mut self, making: &Making) {
        let Some(leaf) = self.leaves.remove(making) else { return };
        for (clause, held) in &leaf.clauses {
            for term in &held.terms {
                let Some(noted) = self.noted.get_mut(&term.name) else { continue };
                noted.clauses.remove(&(making.clone(), *clause));
                if noted.clauses.is_empty() {
                    self.noted.remove(&term.name);
                }
            }
        }
    }

    // For answers and invariants.

    /// The leaves whose bounds are kept here; those of one treaty, if one is given. No more than `limit` clauses in all, about.
    pub(super) fn show(&self, now: Now, locks: &Locks, treaty: Option<&ObjectKey>, limit: usize) -> Vec<LeafHere> {
        let is_wanted = |making: &Making| treaty.is_none_or(|treaty| making.0 == *treaty);
        let clause = |(clause, held): (&u32, &Held)| {
            let Motion { velocity, noise } = held.trend.motion(now.mono);
            ClauseHere {
                clause: *clause,
                value: clamped(held.least(&self.noted, locks)),
                bound: clamped(held.bound),
                velocity,
                noise,
                rate: held.rate(),
            }
        };
        let mut left = limit;
        let kept = self.leaves.iter().filter(|(making, leaf)| leaf.is_kept() && is_wanted(making));
        let shown = kept.take_while(|(_, leaf)| {
            let is_room = left > 0;
            left = left.saturating_sub(leaf.clauses.len());
            is_room
        });
        shown
            .map(|((treaty, nonce), leaf)| {
                let Counts { rebalances, gifts, extensions } = leaf.counts;
                let clauses = leaf.clauses.iter().map(clause).collect();
                LeafHere { treaty: treaty.clone(), nonce: *nonce, clauses, rebalances, gifts, extensions }
            })
            .collect()
    }
}

/// Says something of a treaty.
fn say(out: &mut Out, to: SiteId, making: &Making, says: Says) {
    let (treaty, nonce) = making.clone();
    out.send(to, Message::Treaty { treaty, nonce, says });
}

/// Who gives what to whom so that everybody has its share: adds it by donor.
fn plan(clause: u32, parts: &[(u16, Outlook)], shares: &[Share], gives: &mut BTreeMap<u16, Vec<Wanted>>) {
    let mut more: Vec<(u16, i128, i128)> = Vec::new();
    let mut less: Vec<(u16, i128, i128)> = Vec::new();
    for ((home, part), share) in parts.iter().zip(shares) {
        let (slack, rate) = (i128::from(share.slack) - i128::from(part.slack), i128::from(share.rate));
        more.push((*home, slack.max(0), (-rate).max(0)));
        less.push((*home, (-slack).max(0), rate.max(0)));
    }

    // From each that has too much to each that has too little, in order, until nobody has. The same for rates.
    for (from, has, gains) in &mut less {
        for (to, lacks, falls) in more.iter_mut().filter(|(to, ..)| to != from) {
            let (amount, rate) = ((*has).min(*lacks), (*gains).min(*falls));
            (*has, *lacks) = (*has - amount, *lacks - amount);
            (*gains, *falls) = (*gains - rate, *falls - rate);
            if amount > 0 || rate > 0 {
                let wanted = Wanted { clause, to: *to, amount: clamped(amount) as u64, rate: clamped(rate) as u64 };
                gives.entry(*from).or_default().push(wanted);
            }
        }
    }
}
