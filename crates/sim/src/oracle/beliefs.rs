//! What clients believe: the tokens that they hold, and the counts that they ask for.

use std::cmp::Reverse;

use slackline_core::avantan::Table;
use slackline_core::machine::ClientId;

use super::{Counting, Held, Oracle};
use crate::invariants::{holds, limit};

impl Oracle {
    /// A client believes to hold tokens from now on, until it says otherwise or until a true time.
    pub(crate) fn hold(&mut self, now: u64, op: u32, amount: i64, until: Option<u64>) -> usize {
        // What is over by now does not count any more against what is held from now on.
        self.end_holds(now);
        let at = self.believed.holds.len();
        let generation = self.ops[op as usize].generation;
        let book = self.ops[op as usize].book.expect("a grant is of a quota");

        let active = until.is_none_or(|until| until > now);
        self.believed.holds.push(Held { op, book, generation, amount, active });
        if !active {
            return at;
        }

        if let Some(until) = until {
            self.believed.ends.push(Reverse((until, at)));
        }
        for (book, generation) in self.levels(book, generation) {
            self.add_held(book, generation, amount, op);
        }
        at
    }

    /// The client no longer uses a part of what it held.
    pub(crate) fn let_go(&mut self, now: u64, hold: usize, amount: i64) {
        self.end_holds(now);
        let held = &mut self.believed.holds[hold];
        if !held.active {
            return;
        }
        held.amount -= amount;
        held.active = held.amount > 0;
        let (book, generation) = (held.book, held.generation);
        self.drop_held(book, generation, amount);
    }

    /// More of a quota is held.
    fn add_held(&mut self, book: usize, generation: u32, amount: i64, op: u32) {
        let of_book = &mut self.books[book];
        let held = of_book.held.entry(generation).or_default();
        *held += i128::from(amount);
        let held = *held;

        // Sites may not have taken the tokens of an earlier generation back; they count against its own limit alone.
        let table = of_book.decisions.newest().map(|(_, table)| table);
        let all = |table: &Table| Some(table.limit?.saturating_add(table.excess));
        if let Some(of) = table.filter(|table| table.generation == generation).and_then(all) {
            let found = limit::check(held, of, "the clients'").map_err(|what| what + &self.holders(book));
            if found.is_err() {
                let about = format!("quota {}, at {}", self.books[book].name, self.ops[op as usize].id);
                self.blame(limit::NAME, found, about);
            }
        }
    }

    /// Less of a quota is held, and of those above it.
    fn drop_held(&mut self, book: usize, generation: u32, amount: i64) {
        for (book, generation) in self.levels(book, generation) {
            *self.books[book].held.entry(generation).or_default() -= i128::from(amount);
        }
    }

    /// Ends what has ended by itself.
    fn end_holds(&mut self, now: u64) {
        while let Some(&Reverse((until, at))) = self.believed.ends.peek() {
            if until > now {
                return;
            }
            self.believed.ends.pop();
            let held = &mut self.believed.holds[at];
            if std::mem::take(&mut held.active) {
                let (book, generation, amount) = (held.book, held.generation, held.amount);
                self.drop_held(book, generation, amount);
            }
        }
    }

    /// Who believes to hold tokens of a quota.
    fn holders(&self, book: usize) -> String {
        let active = self.believed.holds.iter().filter(|held| held.active && held.book == book);
        active.map(|held| format!("\n  {held:?} by {}", self.ops[held.op as usize].id)).collect()
    }

    /// Tracked grants that should be over.
    pub(crate) fn check_holds(&mut self, now: u64, patience: u64) {
        let mut late = Vec::new();
        for (&(site, incarnation, _), &op) in &self.grants {
            let op = &self.ops[op as usize];
            let deleted = op.book.is_some_and(|book| self.books[book].deletable);
            if self.lost.contains(&(site, incarnation)) || deleted {
                continue;
            }
            if let Some(tracked) = &op.tracked {
                late.push((op.id, holds::check_rest(tracked, now, patience)));
            }
        }
        late.into_iter().for_each(|(about, found)| self.blame(holds::NAME, found, about));
    }

    /// A client asks for a count.
    pub(crate) fn begin_counting(&mut self, book: usize, request: ClientId) {
        let book = &mut self.books[book];
        let generation = book.decisions.newest().map_or(0, |(_, table)| table.generation);
        let in_use = book.in_use.get(&generation).copied().unwrap_or(0);
        book.countings.push(Counting { request, generation, least: in_use, most: in_use });
    }

    /// What may be told to a client that asked for a count; none if the quota was created again in between.
    pub(crate) fn end_counting(&mut self, book: usize, request: ClientId) -> Option<Counting> {
        let book = &mut self.books[book];
        let at = book.countings.iter().position(|counting| counting.request == request)?;
        let counting = book.countings.swap_remove(at);

        let (_, table) = book.decisions.newest()?;
        (table.generation == counting.generation && table.limit.is_some()).then_some(counting)
    }
}
