//! Giving slack away, and taking what others give: by running totals ([`crate::gift`]).

use std::collections::{BTreeMap, BTreeSet};

use super::held::Incoming;
use super::{Given, Leaves, Making, Order, PERIOD, Stage, Timer, say};
use crate::clock::{MILLISECOND, SECOND};
use crate::codec::clamped;
use crate::id::SiteId;
use crate::object::message::{Gave, Reported, Says, Wanted};
use crate::stats::split::{Outlook, lasts};
use crate::stats::trend::Motion;
use crate::turn::Turn;
use crate::txn::locks::Locks;

impl Leaves {
    /// Answers a question for slack.
    pub(super) fn answer(
        &mut self,
        turn: &mut Turn,
        locks: &Locks,
        making: &Making,
        from: u16,
        token: u64,
        clauses: &[u32],
    ) {
        let me = turn.here.site.me;

        // A plan may come of it that has its part for this leaf. Until then it asks for nothing ahead itself: of several plans that rest on
        // the same reports, each would have it give away what another one left it. That is not put off again while it is put off:
        // where others ask all the time, this leaf asks in between.
        let now = turn.here.now.mono;
        let plan_at = now + 2 * turn.here.round_trip(SiteId::new(from, me.lane)) + 50 * MILLISECOND;
        if let Some(leaf) = self.leaves.get_mut(making) {
            leaf.reported.insert(from, now);
            let put_off = if leaf.may_be_drained() { clauses } else { &[] };
            for clause in put_off {
                let held = leaf.clauses.get_mut(*clause).filter(|held| held.look_at <= now);
                held.into_iter().for_each(|held| held.look_at = plan_at);
            }
        }

        let leaf = self.leaves.get(making).filter(|leaf| leaf.stage == Stage::Kept);
        let line = |clause: &u32| {
            let held = leaf?.clauses.get(*clause)?;
            let Outlook { slack, motion: Motion { velocity, noise } } = held.outlook(turn.here.now, &self.noted, locks);
            Some(Reported { clause: *clause, slack, velocity, noise })
        };
        let lines = clauses.iter().filter_map(line).collect();

        // What was given before may have been lost on its way: it is told again to one who asks, and before the report. By the report the
        // asker may find that all together have too little, and retract the treaty.
        self.tell_given(turn, making, from, clauses);
        say(&mut turn.out, SiteId::new(from, me.lane), making, Says::Report { token, lines });
    }

    /// Tells a home again what it was given of these clauses, if it was given anything.
    pub(super) fn tell_given(&self, turn: &mut Turn, making: &Making, to: u16, clauses: &[u32]) {
        let is_to_be_told = |clause: &u32| {
            let held = self.leaves.get(making).and_then(|leaf| leaf.clauses.get(*clause));
            held.is_some_and(|held| held.totals.given(usize::from(to)).amount > 0 || held.rate_to(to) > 0)
        };
        let told: Vec<u32> = clauses.iter().copied().filter(is_to_be_told).collect();
        self.tell_gifts(turn, making, to, &told);
    }

    /// Tells a home the totals of what it was given, and the rates at which that goes on.
    pub(super) fn tell_gifts(&self, turn: &mut Turn, making: &Making, to: u16, clauses: &[u32]) {
        let Some(leaf) = self.leaves.get(making) else { return };
        let gift = |clause: &u32| {
            let held = leaf.clauses.get(*clause)?;
            let total = held.totals.given(usize::from(to)).amount;
            let rate = held.rate_to(to);
            Some(Gave { clause: *clause, total, rate })
        };
        let gifts: Vec<Gave> = clauses.iter().filter_map(gift).collect();
        if !gifts.is_empty() {
            say(&mut turn.out, SiteId::new(to, turn.here.site.me.lane), making, Says::Gifts { gifts });
        }
    }

    /// The clauses of which another home's plan rests on an outdated report: by another plan, this leaf gave some away since.
    pub(super) fn given_since_report(&self, making: &Making, planner: u16, gives: &[Wanted]) -> BTreeSet<u32> {
        let leaf = self.leaves.get(making).filter(|leaf| leaf.may_be_drained());
        let Some(leaf) = leaf else { return BTreeSet::new() };
        let reported = leaf.reported.get(&planner).copied().unwrap_or(0);
        let gave = |clause: &u32| leaf.gave.get(clause).is_some_and(|gave| *gave > reported);
        gives.iter().map(|give| give.clause).filter(gave).collect()
    }

    /// Gives slack as it was advised, as far as it is here. Of clauses of which the advice is `outdated`, only its rates count: the
    /// amounts together would be more than any of the plans meant to take from here.
    pub(super) fn give(
        &mut self,
        turn: &mut Turn,
        locks: &Locks,
        making: &Making,
        gives: Vec<Wanted>,
        outdated: &BTreeSet<u32>,
    ) {
        let now = turn.here.now;
        let mut given: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
        let Some(leaf) = self.leaves.get(making).filter(|leaf| leaf.stage == Stage::Kept) else { return };
        let receivers: BTreeSet<u16> = leaf.homes.iter().map(|(home, _)| *home).collect();
        for Wanted { clause, to, amount, rate } in gives {
            if to == turn.here.site.me.region || !receivers.contains(&to) {
                turn.out.metrics.ignored += 1;
                continue;
            }
            let Some(held) = self.leaves.get_mut(making).and_then(|leaf| leaf.clauses.get_mut(clause)) else {
                continue;
            };
            let rate_before = held.rate_to(to);
            match rate {
                0 => drop(held.orders.remove(&to)),
                _ => held.orders.entry(to).or_insert(Order { rate, done: now.mono }).rate = rate,
            }
            if rate_before == 0 && rate > 0 {
                self.timers.insert((next_give(now.mono), Timer::Give(making.clone(), clause)));
            }
            let amount = if outdated.contains(&clause) { 0 } else { i128::from(amount) };
            let given_now = self.give_some(turn, locks, making, clause, to, amount);
            let leaf = self.leaves.get_mut(making).expect("looked up above");
            if given_now > 0 {
                leaf.counts.gifts += 1;
                leaf.gave.insert(clause, now.mono);
            }

            // The receiver counts on the rate when it looks how long it will last. Who ends an order need not be the receiver.
            if given_now > 0 || rate != rate_before {
                given.entry(to).or_default().push(clause);
            }
        }

        for (to, clauses) in given {
            self.tell_gifts(turn, making, to, &clauses);
        }
    }

    /// Gives slack of a clause, at most what is here; returns the amount. Its row is in this call's batch, before anybody hears.
    pub(super) fn give_some(
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
        let held = leaf.clauses.get_mut(clause).expect("looked up by the caller");

        // As if every undecided decrement had happened: what is given away cannot be called back when it does.
        let amount = amount.min(held.slack(noted, locks)).clamp(0, i64::MAX.into());
        if amount > 0 {
            leaf.gave_at = turn.here.now.mono;
            held.totals.give(usize::from(to), receiver, amount as u64);
            held.bound += amount;
            held.check();
            self.write_clause(&mut turn.out.batch, making, clause);
        }

        amount
    }

    /// Carries out the standing orders of a clause. Who is to be told of what was given is added.
    pub(super) fn give_on(&mut self, turn: &mut Turn, locks: &Locks, making: &Making, clause: u32, told: &mut Given) {
        let now = turn.here.now;
        let Some(leaf) = self.leaves.get(making).filter(|leaf| leaf.stage == Stage::Kept) else { return };
        let Some(held) = leaf.clauses.get(clause) else { return };
        let orders: Vec<(u16, Order)> = held.orders.iter().map(|(to, order)| (*to, *order)).collect();
        let rate = held.orders.values().fold(0i64, |sum, order| sum.saturating_add_unsigned(order.rate));
        for (to, order) in &orders {
            let elapsed = now.mono.saturating_sub(order.done);
            let amount = i128::from(order.rate) * i128::from(elapsed) / i128::from(SECOND * SECOND);

            // A home that is to fail itself keeps what it has: whoever is short will ask, and all of it is divided again.
            let held = &self.leaves[making].clauses[clause];
            let outlook = held.outlook(now, &self.noted, locks);
            let left = Outlook { slack: clamped(i128::from(outlook.slack) - amount), ..outlook };
            let is_soon = lasts(&left, rate).is_some_and(|left| left < 2 * PERIOD);

            // Nor is anything given to one that is not heard: it uses none, and the others may need it.
            let is_there = turn.here.is_reachable(SiteId::new(*to, turn.here.site.me.lane));
            let keeps = is_soon || !is_there;
            let amount = if keeps { 0 } else { amount };
            if keeps || amount > 0 {
                let given = self.give_some(turn, locks, making, clause, *to, amount);
                let leaf = self.leaves.get_mut(making).expect("looked up above");
                leaf.counts.extensions += u64::from(given > 0);
                let held = leaf.clauses.get_mut(clause).expect("looked up above");
                if let Some(order) = held.orders.get_mut(to) {
                    // Only what was carried out: a part of a unit is given the next time.
                    let took = amount * i128::from(SECOND * SECOND) / i128::from(order.rate.max(1));
                    order.done = if keeps { now.mono } else { order.done.saturating_add(took as u64) };
                }
                if given > 0 {
                    told.entry((making.clone(), *to)).or_default().push(clause);
                }
            }
        }

        if !orders.is_empty() {
            self.timers.insert((next_give(now.mono), Timer::Give(making.clone(), clause)));
        }
    }

    /// Takes gifts: what their totals show beyond the last ones.
    pub(super) fn take_gifts(&mut self, turn: &mut Turn, locks: &Locks, making: &Making, from: u16, gifts: Vec<Gave>) {
        let mut is_more = false;
        for Gave { clause, total, rate } in gifts {
            let Some(leaf) = self.leaves.get_mut(making).filter(|leaf| leaf.stage != Stage::Prepared) else { return };
            let Some(donor) = leaf.incarnation(from) else { return };
            let Some(held) = leaf.clauses.get_mut(clause) else { continue };
            match rate {
                0 => drop(held.incoming.remove(&from)),
                _ => drop(held.incoming.insert(from, Incoming { rate, noted: turn.here.now.mono })),
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
            self.slack_came(locks, making);
        }
    }
}

/// When standing orders are carried out next. All clauses have the same times: an order that is stopped and given again would
/// otherwise begin a second row of timers beside the first.
fn next_give(now: u64) -> u64 {
    (now / PERIOD + 1) * PERIOD
}
