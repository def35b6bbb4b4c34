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
//! # Parts
//!
//! Here: judging parts, messages, timers. `asking`: who is asked for slack, and how it is divided. `giving`: gifts. `rows`: storage.
//! `leaf` and `held`: a leaf, and a clause of it. `wants`: the parts that wait. `book` and `clauses`: where leaves and their clauses are found.
//! `room`: how much of it there may be.
//!
//! # A home that is cut off
//!
//! A home that lacks slack, and can reach neither a donor nor the treaty's home, stops vouching for the storage on which the
//! treaty rests ([`Leaves::withholds_from`]), durably. The treaty's home then lets nobody rely on it for longer than
//! [`VOUCHED`](crate::warranty::VOUCHED), and no right over it lasts longer than [`LONGEST`](crate::warranty::LONGEST) beyond
//! that. So [`LEASE`] later this home is free, and the write goes on. It vouches again once the treaty's home has said that the
//! treaty is retracted.

mod asking;
mod book;
mod clauses;
mod giving;
mod held;
mod leaf;
mod room;
mod rows;
mod wants;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rustc_hash::FxHashMap;

use self::book::Book;
use self::held::{Held, Lack, Making, Noted, Number, Order, least_of};
use self::leaf::{Asking, Counts, Leaf, Purpose, Stage, lease};
use self::room::Room;
use self::wants::{Want, Wants};
use super::locks::Locks;
use super::waits::Wait;
use crate::api::{ClauseHere, LeafHere, Synchronization};
use crate::bounds::AT_ONCE;
use crate::clock::{MILLISECOND, Now, SECOND};
use crate::codec::clamped;
use crate::config::Slack;
use crate::gift::Totals;
use crate::id::{OperationId, SiteId};
use crate::machine::Batch;
use crate::object::message::{Message, Says};
use crate::object::treaty::{TREATIES, Term};
use crate::object::{Abort, Cause, Change, ObjectKey, Part, Value};
use crate::rows::LEAF;
use crate::stats::split::needs;
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
/// The most parts that are remembered because they waited for slack; and those of one treaty that are shown.
const WAITED: usize = 4096;
const WAITED_SHOWN: usize = 64;
/// What stands in the key of a leaf's own row in place of a clause.
const WHOLE: u64 = u64::MAX;

/// The clauses of which something was given, by treaty and receiver.
type Given = BTreeMap<(Making, u16), Vec<u32>>;

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

/// The leaves of treaties at a home.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaves {
    /// The leaves.
    leaves: Book,
    /// What all of them take.
    taken: Room,
    /// The counters on which they rest. None without clauses.
    noted: FxHashMap<String, Noted>,
    /// The parts that wait for slack.
    wants: Wants,
    /// When each thing is due, in monotonic microseconds. A timer of a leaf that is gone is ignored.
    timers: BTreeSet<(u64, Timer)>,
    /// The last token that was given.
    tokens: u64,
    /// Parts that are to be looked at again, because slack came or a leaf is gone. Taken within the call.
    woken: BTreeSet<OperationId>,
    /// Parts that are refused: a treaty that they rely upon has not enough slack. Taken when they are looked at.
    denied: BTreeMap<OperationId, ObjectKey>,
    /// The parts that waited for slack last, each with the treaty, for whoever asks; at most [`WAITED`].
    waited: VecDeque<(ObjectKey, Synchronization)>,
}

/// Where a counter may be after a change, if it may be anywhere in a range before. The part's own changes count as they are; those of
/// others that are undecided, as far as they lower the sum. None if it is no counter then.
fn changed((low, high): (i64, i64), change: &Change) -> Option<(i64, i64)> {
    match change {
        Change::Add(delta) => Some((low.saturating_add(*delta), high.saturating_add(*delta))),
        Change::Put(Value::Counter(count)) => Some((*count, *count)),
        Change::Delete => Some((0, 0)),
        Change::Put(Value::Bytes(_) | Value::Derived(_)) => None,
    }
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
    /// No leaves. Questions have tokens above this one: what answers those of an earlier life answers none of this one.
    pub(super) fn new(token: u64) -> Self {
        Self { tokens: token, ..Self::default() }
    }

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

        let (mut lacks, mut several) = (Vec::new(), Vec::new());
        for (name, change) in &part.writes {
            let Some(noted) = self.noted.get(name) else { continue };
            for &(number, clause) in &noted.clauses {
                let (making, leaf) = self.leaves.of(number);
                let held = &leaf.clauses[clause];
                if !leaf.is_kept() {
                    continue;
                }
                let Some(weight) = held.sole else {
                    several.push((number, clause));
                    continue;
                };

                // Most clauses have one counter here. It is the one that is written: neither its name nor its count is looked up again.
                let range = locks.range(name, noted.count);
                let after = changed(range, change).map(|range| least_of(weight, range));
                lacks.extend(held.lack((making, clause), least_of(weight, range), after, !change.is_add()));
            }
        }

        // Each of the others is judged once, by all that the part writes to its counters.
        several.sort_unstable();
        several.dedup();
        for (number, clause) in several {
            let (making, leaf) = self.leaves.of(number);
            let held = &leaf.clauses[clause];
            let (before, after) = self.around(locks, held, part);
            let is_put = held.terms.iter().any(|term| part.write_of(&term.name).is_some_and(|change| !change.is_add()));
            lacks.extend(held.lack((making, clause), before, after, is_put));
        }

        lacks
    }

    /// What the terms of a clause come to at the least, before a part and after it; none if it leaves no counter there.
    fn around(&self, locks: &Locks, held: &Held, part: &Part) -> (i128, Option<i128>) {
        let (mut before, mut after) = (0, Some(0));
        for term in &held.terms {
            let count = self.noted.get(&term.name).map_or(0, |noted| noted.count);
            let range = locks.range(&term.name, count);
            before += term.least(range);
            let then = part.write_of(&term.name).map_or(Some(range), |change| changed(range, change));
            after = after.zip(then).map(|(sum, range)| sum + term.least(range));
        }
        (before, after)
    }

    /// Adds what a part waits for.
    pub(super) fn waits(&self, here: &Here, locks: &Locks, part: &Part, waits: &mut Vec<Wait>) {
        for Lack { making, .. } in self.lacks(locks, part) {
            let leaf = &self.leaves[&making];
            let others = leaf.homes.iter().map(|(home, _)| SiteId::new(*home, here.site.me.lane));
            let holders: Vec<SiteId> = others.filter(|site| *site != here.site.me).collect();

            // Two round trips to the nearest that can be asked, or one to the treaty's home: which it will be is not known yet. Where
            // the treaty is at home here that takes no round trip, but the others are asked before.
            let home = SiteId::new(making.0.home, here.site.me.lane);
            let near = holders.iter().copied().chain([home]).filter(|site| *site != here.site.me);
            let near = near.filter(|site| here.may_be_reachable(*site)).map(|site| here.round_trip(site)).min();
            let is_alone = holders.is_empty() && home == here.site.me;
            let expected = near.unwrap_or(if is_alone { 0 } else { LEASE });
            let over_at = leaf.stage.free_at(here.now.mono, here.config.epsilon);
            waits.push(Wait { about: making.0, holders, over_at, expected });
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
        // What the part itself brings counts as well.
        let mut treaties: BTreeMap<&str, BTreeSet<&ObjectKey>> = BTreeMap::new();
        let mut taken = self.taken;
        for (position, note) in part.notes.iter().enumerate() {
            taken = taken.and(Room::of(&note.treaty, note.clauses.iter().map(|(_, terms, _)| &terms[..])));
            if self.leaves.len() + position >= NOTES || taken.is_too_much() {
                return Err(Abort { site: Some(site), ..Abort::of(Cause::Overloaded) });
            }

            // A making is noted once, and what is noted is judged on the counts as they are: a part that writes them as well would
            // not be. No client of ours asks for either.
            let making = (note.treaty.clone(), note.nonce);
            let mut names = note.clauses.iter().flat_map(|(_, terms, _)| terms.iter().map(|term| &term.name));
            if self.leaves.contains(&making) || names.any(|name| part.write_of(name).is_some()) {
                return Err(Abort { site: Some(site), ..Abort::of(Cause::Malformed) });
            }
            for (_, terms, bound) in &note.clauses {
                // What may be no counter soon would be in no number, and no slack enough for the write that is prepared already.
                if let Some(term) = terms.iter().find(|term| locks.may_be_no_counter(&term.name)) {
                    return Err(Abort::about(Cause::Changed, site, &term.name));
                }

                // Inequalities are validated, not versions: counters change all the time, and a treaty could never be made
                // otherwise. What is undecided counts as where a write is judged.
                let least: i128 =
                    terms.iter().map(|term| term.least(locks.range(&term.name, counts[&term.name]))).sum();
                if least < i128::from(*bound) {
                    return Err(Abort::about(Cause::Changed, site, &terms[0].name));
                }

                for term in terms {
                    let known = treaties.entry(&term.name).or_insert_with(|| self.treaties_on(&term.name));
                    known.insert(&note.treaty);
                    if known.len() > TREATIES {
                        return Err(Abort::about(Cause::TooManyTreaties, site, &term.name));
                    }
                }
            }
        }

        Ok(())
    }

    /// The treaties that rest on a counter.
    fn treaties_on(&self, counter: &str) -> BTreeSet<&ObjectKey> {
        // A leaf may have thousands of clauses on it; they have one number.
        let clauses = self.noted.get(counter).into_iter().flat_map(|noted| &noted.clauses);
        let leaves: BTreeSet<Number> = clauses.map(|(number, _)| *number).collect();
        leaves.into_iter().map(|number| &self.leaves.of(number).0.0).collect()
    }

    /// Keeps the notes of a part that is prepared, from now on.
    pub(super) fn take(&mut self, now: Now, part: &Part, counts: &FxHashMap<String, i64>) {
        for note in &part.notes {
            // What is made in place of another making knows how its parts move, if that had them.
            let earlier = self.leaves.makings_of(&note.treaty).next().map(|making| &self.leaves[making]);
            let earlier = earlier.into_iter().flat_map(|leaf| leaf.clauses.iter().map(|(_, held)| held));
            let known: FxHashMap<&[Term], &Held> = earlier.map(|held| (&held.terms[..], held)).collect();
            let plans = if known.is_empty() { 0 } else { PLANS - 1 };
            let clauses = note.clauses.iter().map(|(position, terms, bound)| {
                let known = known.get(&terms[..]);
                let trend = known.map_or_else(|| Trend::new(now.mono), |held| held.trend);
                let mut held = Held::new(terms.clone(), *bound, Totals::default(), trend);
                held.largest = known.map_or(0, |held| held.largest);
                held.look_at = now.mono;
                (*position, held)
            });
            let leaf = Leaf {
                stage: Stage::Prepared,
                homes: note.homes.clone(),
                tree: note.tree.clone(),
                clauses: clauses.collect(),
                asking: None,
                pressed: BTreeMap::new(),
                plans,
                gave_at: 0,
                reported: BTreeMap::new(),
                gave: BTreeMap::new(),
                counts: Counts::default(),
            };
            for name in note.clauses.iter().flat_map(|(_, terms, _)| terms.iter().map(|term| &term.name)) {
                self.noted.entry(name.clone()).or_insert_with(|| Noted { count: counts[name], ..Noted::default() });
            }
            self.insert((note.treaty.clone(), note.nonce), leaf);
        }
    }

    /// Lets go of the notes of a part that was refused, and of what it waited for. One that was never prepared has no notes here: a
    /// leaf by the same name is another part's.
    pub(super) fn let_go(&mut self, locks: &Locks, mono: u64, id: OperationId, part: &Part, was_prepared: bool) {
        self.end_want(mono, id, true);
        self.denied.remove(&id);
        if !was_prepared {
            return;
        }

        // What it would have taken is slack again, and the bounds that it brought are gone: whoever waits for either need not wait longer.
        let noted = part.writes.iter().filter_map(|(name, _)| self.noted.get(name)).flat_map(|noted| &noted.clauses);
        let is_lacking = |leaf: &Leaf| !leaf.pressed.is_empty() || !self.wants.is_empty();
        let of = noted.map(|(number, _)| self.leaves.of(*number)).filter(|(_, leaf)| is_lacking(leaf));
        let moved: BTreeSet<Making> = of.map(|(making, _)| making.clone()).collect();
        let brought = part.notes.iter().map(|note| (note.treaty.clone(), note.nonce));
        let is_prepared = |making: &Making| self.leaves.get(making).is_some_and(|leaf| leaf.stage == Stage::Prepared);
        let gone: Vec<Making> = brought.filter(is_prepared).collect();
        moved.iter().for_each(|making| self.slack_came(locks, making));
        for making in gone {
            self.wake(&making);
            self.remove(&making);
        }
    }

    /// Makes the notes of a part durable that is carried out. What an earlier making of the same treaty has noted here goes.
    pub(super) fn keep(&mut self, now: Now, me: u16, batch: &mut Batch, part: &Part) {
        for note in &part.notes {
            let making = (note.treaty.clone(), note.nonce);
            let others = self.leaves.makings_of(&note.treaty).filter(|other| **other != making);
            let earlier: Vec<Making> = others.cloned().collect();
            for earlier in earlier {
                let is_prepared = self.leaves[&earlier].stage == Stage::Prepared;
                assert!(!is_prepared, "two transactions make one treaty at a time");
                self.wake(&earlier);
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
    pub(super) fn note_write(&mut self, now: Now, locks: &Locks, name: &str, value: Option<&Value>) {
        let Self { leaves, noted, wants, .. } = self;
        let Some(counter) = noted.get_mut(name) else { return };
        let after = if let Some(Value::Counter(count)) = value { *count } else { 0 };
        let before = std::mem::replace(&mut counter.count, after);
        let mut raised: Vec<Number> = Vec::new();
        for (number, clause) in &noted[name].clauses {
            let leaf = leaves.of_mut(*number);
            let held = leaf.clauses.get_mut(*clause).expect("a counter names clauses that are there");
            let change = match held.sole {
                Some(weight) => i128::from(weight) * (i128::from(after) - i128::from(before)),
                None => {
                    let terms = held.terms.iter().filter(|term| term.name == name);
                    terms.map(|term| term.of(after) - term.of(before)).sum()
                }
            };
            let change = clamped(change);
            if change > 0 && (!wants.is_empty() || !leaf.pressed.is_empty()) {
                raised.push(*number);
            }

            // Slack that is added all at once says nothing of how the part moves from now on.
            if change > held.largest && held.slack(noted, locks) < 2 * i128::from(change) {
                held.has_jumped = true;
                continue;
            }
            held.trend.note(now.mono, change);
            if change < 0 {
                // The largest is forgotten by and by.
                held.largest = (held.largest - held.largest / 16).max(change.saturating_neg());
            }
        }

        for number in raised {
            let making = self.leaves.of(number).0.clone();
            self.slack_came(locks, &making);
        }
    }

    /// Looks whether the clauses of a counter that was written are expected to fail soon, and asks for slack before they do. Slack that was
    /// just added is divided: the others may be short of it.
    pub(super) fn look_ahead(&mut self, turn: &mut Turn, locks: &Locks, name: &str) {
        let Some(noted) = self.noted.get(name) else { return };
        let slack = turn.here.config.slack;
        if slack == Slack::Fixed {
            return;
        }
        let now = turn.here.now;
        let lane = turn.here.site.me.lane;
        let is_due = |(number, clause): &(Number, u32)| {
            let (_, leaf) = self.leaves.of(*number);
            let held = &leaf.clauses[*clause];
            let is_time = held.has_jumped || (slack == Slack::Ahead && now.mono >= held.look_at);
            is_time && leaf.stage == Stage::Kept && leaf.asking.is_none() && leaf.homes.len() > 1
        };
        let due: Vec<(Number, u32)> = noted.clauses.iter().copied().filter(is_due).collect();

        // A leaf has one question under way: what several of its clauses lack is asked for together, for one after the other would take each
        // other's place. What is beyond the bound is looked at by the next write.
        let mut asked: BTreeMap<Number, (bool, BTreeMap<u32, i128>)> = BTreeMap::new();
        for (number, clause) in due {
            if asked.get(&number).is_some_and(|(_, lacking)| lacking.len() >= PLANNED) {
                continue;
            }
            let noted = &self.noted;
            let held = self.leaves.of_mut(number).clauses.get_mut(clause).expect("looked up above");

            // A donor that has been down since has forgotten its order; what it says next tells whether it goes on.
            let goes_on =
                |donor: SiteId, noted: u64| turn.here.is_reachable(donor) && turn.here.up_since(donor) <= noted;
            held.incoming.retain(|donor, order| goes_on(SiteId::new(*donor, lane), order.noted));
            let outlook = held.outlook(now, noted, locks);
            let has_jumped = std::mem::take(&mut held.has_jumped);
            held.look_at = now.mono + LOOK;

            // A forecast knows amounts and no sizes: where few large writes come, the next one may take all that is left.
            let needed = held.largest.max(needs(&outlook, held.rate(), AHEAD));
            let lack = i128::from(needed) - i128::from(outlook.slack);
            if has_jumped || lack > 0 {
                // Asked in vain it is not asked again at once: what is left for all may simply not last longer.
                if lack > 0 {
                    held.look_at = now.mono + SECOND;
                }
                let (is_divided, lacking) = asked.entry(number).or_default();
                *is_divided |= has_jumped;
                lacking.insert(clause, lack);
            }
        }
        for (number, (is_divided, lacking)) in asked {
            let making = self.leaves.of(number).0.clone();
            let clauses = lacking.keys().copied().collect();
            let purpose = if is_divided { Purpose::Divide } else { Purpose::Ahead(lacking) };
            self.ask(turn, locks, &making, clauses, purpose);
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
            // Nobody is left to say that it is retracted, or to vouch to.
            Stage::Free if !here.site.is_present(home) => return self.drop_leaf(&mut turn.out.batch, making),
            // It may be up, and what it says be lost on its way.
            Stage::Retracting(since) if !here.may_be_reachable(home) || now.mono > since + LEASE => {
                leaf.stage = Stage::Leaving(now.mono + lease(here.config.epsilon));
                self.write_stage(&mut turn.out.batch, making);
            }
            Stage::Leaving(free_at) if now.mono >= free_at => {
                // Durable before anything is prepared below the bounds: what is restored then is a leaf without bounds, too.
                leaf.stage = Stage::Free;
                self.write_stage(&mut turn.out.batch, making);
                self.wake(making);
            }
            Stage::Retracting(_) | Stage::Leaving(_) | Stage::Free => {}
        }

        // While the home is cut off, only the end of the lease is waited for.
        let is_there = turn.here.may_be_reachable(home);
        let pause = if is_there { AGAIN.max(2 * turn.here.round_trip(home)) } else { SECOND };
        let again = match self.leaves[making].stage {
            Stage::Leaving(free_at) => free_at.min(now.mono + pause),
            _ => now.mono + pause,
        };
        self.timers.insert((again, Timer::Retract(making.clone())));
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
        self.given_up().any(|(treaty, _)| treaty.home == home)
    }

    /// The leaves whose bounds are no longer kept, or soon are not, although their treaty's home has not said that it is retracted.
    pub(super) fn given_up(&self) -> impl Iterator<Item = &Making> {
        let given_up = |leaf: &Leaf| matches!(leaf.stage, Stage::Leaving(_) | Stage::Free);
        self.leaves.iter().filter(move |(_, leaf)| given_up(leaf)).map(|(making, _)| making)
    }

    // Messages and timers.

    /// Handles what another leaf, or the treaty's home, says of a treaty.
    pub(super) fn hear(&mut self, turn: &mut Turn, locks: &Locks, from: u16, making: &Making, says: Says) {
        match says {
            Says::Ask { token, clauses } => self.answer(turn, locks, making, from, token, &clauses),
            Says::Report { token, lines } => self.reported(turn, locks, making, from, token, lines),
            Says::Give { gives, awaited } => {
                // What a write waits for it gets even if the plan reckoned with what others got since.
                let outdated = if awaited { BTreeSet::new() } else { self.given_since_report(making, from, &gives) };
                self.give(turn, locks, making, gives, &outdated);
            }
            Says::Gifts { gifts } => self.take_gifts(turn, locks, making, from, gifts),
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
        let mut given = Given::new();
        for _ in 0..AT_ONCE {
            let Some((at, _)) = self.timers.first().filter(|(at, _)| *at <= now) else { break };
            let timer = (*at, self.timers.pop_first().expect("looked at just now").1);
            match timer.1 {
                Timer::Plan(making) => self.plan_again(turn, locks, &making),
                Timer::Give(making, clause) => self.give_on(turn, locks, &making, clause, &mut given),
                Timer::Asked(making) => self.asked_for_long(turn, locks, &making),
                Timer::Retract(making) => self.ask_to_retract(turn, &making),
                Timer::Confirm(making) => {
                    let Some(leaf) = self.leaves.get_mut(&making) else { continue };
                    self.timers.insert((now + CONFIRM, Timer::Confirm(making.clone())));

                    // A treaty ends with its home, if that is a member no longer. Programs may still rely on it until the lease is over.
                    let home = SiteId::new(making.0.home, turn.here.site.me.lane);
                    if leaf.stage == Stage::Kept && !turn.here.site.is_present(home) {
                        leaf.stage = Stage::Retracting(now);
                        self.ask_to_retract(turn, &making);
                        continue;
                    }

                    // The home of a treaty that is still being made may not have heard of it yet, and would take it for one that
                    // is over. The answer could arrive when this leaf is kept, and delete it under a valid treaty.
                    if leaf.stage != Stage::Prepared {
                        say(&mut turn.out, home, &making, Says::Retract { is_question: true });
                    }
                }
            }
        }

        // Standing orders fall due together: each receiver is told of all of a treaty's clauses by one message.
        for ((making, to), clauses) in given {
            self.tell_gifts(turn, &making, to, &clauses);
        }
    }

    /// Divides the slack of a new treaty again: by now more is known of how its parts move.
    fn plan_again(&mut self, turn: &mut Turn, locks: &Locks, making: &Making) {
        let Some(leaf) = self.leaves.get_mut(making).filter(|leaf| leaf.stage == Stage::Kept) else { return };
        if turn.here.config.slack == Slack::Fixed || leaf.plans >= PLANS {
            return;
        }
        leaf.plans += 1;
        let next = turn.here.now.mono + (FIRST_PLAN << leaf.plans);
        let clauses: BTreeSet<u32> = leaf.clauses.keys().take(PLANNED).collect();
        let is_asking = leaf.asking.is_some();
        self.timers.insert((next, Timer::Plan(making.clone())));
        if !is_asking {
            self.ask(turn, locks, making, clauses, Purpose::Divide);
        }
    }

    /// Adds a leaf, and its clauses to its counters.
    fn insert(&mut self, making: Making, leaf: Leaf) {
        self.taken = self.taken.and(leaf.takes(&making.0));
        let number = self.leaves.insert(making, leaf);
        for (clause, held) in self.leaves.of(number).1.clauses.iter() {
            for term in &held.terms {
                let noted = self.noted.get_mut(&term.name).expect("its count is known");

                // It is the last of all: only a clause that has the counter twice is there.
                if noted.clauses.last() != Some(&(number, clause)) {
                    noted.clauses.push((number, clause));
                }
            }
        }
    }

    /// Removes a leaf.
    fn remove(&mut self, making: &Making) {
        let Some((number, leaf)) = self.leaves.remove(making) else { return };
        self.taken = self.taken.without(leaf.takes(&making.0));
        for (clause, held) in leaf.clauses.iter() {
            for term in &held.terms {
                let Some(noted) = self.noted.get_mut(&term.name) else { continue };
                noted.clauses.retain(|other| *other != (number, clause));
                if noted.clauses.is_empty() {
                    self.noted.remove(&term.name);
                }
            }
        }
    }

    // For answers and invariants.

    /// True if a leaf of a treaty is prepared, and undecided.
    pub(super) fn is_making(&self, treaty: &ObjectKey) -> bool {
        self.leaves.makings_of(treaty).any(|making| self.leaves[making].stage == Stage::Prepared)
    }

    /// The leaves whose bounds are kept here; those of one treaty, if one is given. No more than `limit` clauses in all, about.
    pub(super) fn show(&self, now: Now, locks: &Locks, treaty: Option<&ObjectKey>, limit: usize) -> Vec<LeafHere> {
        let is_wanted = |making: &Making| treaty.is_none_or(|treaty| making.0 == *treaty);
        let clause = |(clause, held): (u32, &Held)| {
            let Motion { velocity, noise } = held.trend.motion(now.mono);
            ClauseHere {
                clause,
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
pub(super) fn say(out: &mut Out, to: SiteId, making: &Making, says: Says) {
    let (treaty, nonce) = making.clone();
    out.send(to, Message::Treaty { treaty, nonce, says });
}
