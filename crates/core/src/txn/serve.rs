//! A home answers reads, of its own clients and of other sites.
//!
//! Whatever is asked for, about [`READ_BYTES`] are read and answered at a time. In place of the rest stands
//! [`Cause::TooMuch`], and the client asks again for it.

use super::calls::Calls;
use super::participant::Participant;
use super::table::{Holds, Table, is_name, need_reads, row_key};
use crate::bounds::{READ_BYTES, READ_ITEMS};
use crate::config::Warranties;
use crate::id::{Incarnation, SiteId};
use crate::machine::{KeySet, View};
use crate::object::message::{Fetch, Fetched, Given, Message};
use crate::object::treaty::{Treaty, treaty_name};
use crate::object::{Abort, Cause, GONE, Seen, Span, Value, is_call};
use crate::right::Start;
use crate::turn::{Here, Trust, Turn};
use crate::warranty::LONGEST;

/// The room that a value takes in an answer besides its bytes and its name, about, in bytes.
const SEEN_BYTES: usize = 64;

type Result<T> = std::result::Result<T, Abort>;

/// True if the view has every row that these reads [need](need_reads).
pub(super) fn is_in_view(view: &View, fetch: &Fetch, incarnation: Incarnation) -> bool {
    let mut set = KeySet::default();
    need_reads(fetch.gets.iter().map(|(name, _)| &**name), fetch.scans.iter(), incarnation, &mut set);
    set.keys.iter().all(|key| view.knows(key)) && set.ranges.iter().all(|range| view.ranges().contains(range))
}

/// True if rights over objects are issued and relied upon: not while this site's clock is doubted, or was not compared.
pub(super) fn uses_rights(here: &Here) -> bool {
    here.config.warranties != Warranties::Off && here.trust() == Trust::Trusted
}

/// The room that is left in an answer, in bytes. A value that is asked for twice takes it twice; copies take it too.
pub(super) struct Room(usize);

impl Room {
    /// The room of an empty answer.
    pub(super) fn new() -> Self {
        Self(READ_BYTES)
    }

    /// Reads a value if there is room for it. After the first that does not fit, the room is zero and nothing is read.
    pub(super) fn hold<T>(&mut self, read: impl FnOnce() -> Result<T>, bytes: impl FnOnce(&T) -> usize) -> Result<T> {
        if self.0 == 0 {
            return Err(Abort::of(Cause::TooMuch));
        }
        let found = read()?;
        let left = self.0.checked_sub(bytes(&found));
        self.0 = left.unwrap_or(0);
        left.map(|_| found).ok_or_else(|| Abort::of(Cause::TooMuch))
    }

    /// Reads an object if there is room for it.
    pub(super) fn get(&mut self, table: &Table, name: &str) -> Result<Seen> {
        self.hold(|| table.get(name), seen_bytes)
    }

    /// Scans a span if there is room for it.
    pub(super) fn scan(&mut self, table: &Table, span: &Span) -> Result<Vec<(String, Seen)>> {
        self.hold(|| table.scan(span), |rows| rows_bytes(rows))
    }
}

/// The room that the rows of a scan take in an answer, about, in bytes.
pub(super) fn rows_bytes(rows: &[(String, Seen)]) -> usize {
    rows.iter().map(|(name, seen)| name.len() + seen_bytes(seen)).sum()
}

/// The room that a value takes in an answer, about, in bytes.
pub(super) fn seen_bytes(seen: &Seen) -> usize {
    seen.value.as_ref().map_or(0, Value::size) + SEEN_BYTES
}

impl Participant {
    /// Reads an object for this site's own client. A read for upkeep does not count as a use.
    pub(super) fn read_here(
        &mut self,
        here: &Here,
        table: &Table,
        calls: &mut Calls,
        (name, upkeep): (&str, bool),
        room: &mut Room,
    ) -> Result<Seen> {
        if !upkeep {
            self.issuer.note_reads(here.now, name, 1);
            calls.note_use(here.now, name);
        }

        room.get(table, name)
    }

    /// Takes a question for values: answers it, or parks it until its turn.
    pub(super) fn fetch(&mut self, turn: &mut Turn, table: &Table, calls: &mut Calls, from: SiteId, fetch: Fetch) {
        // A question beyond the bound is senseless: sites keep it. It needed no rows either, so it could not be
        // answered.
        let claimed = fetch.claim.as_ref().map_or(0, |claim| claim.writes.len());
        if fetch.gets.len() + fetch.scans.len() > READ_ITEMS || claimed > READ_ITEMS {
            turn.out.metrics.ignored += 1;
            return;
        }
        let fetch = if fetch.patience > 0 { self.park(turn, from, fetch) } else { Some(fetch) };
        if let Some(fetch) = fetch {
            self.answer_fetch(turn, table, calls, from, fetch);
        }
    }

    /// Answers a question with the values that are here now.
    pub(super) fn answer_fetch(
        &mut self,
        turn: &mut Turn,
        table: &Table,
        calls: &mut Calls,
        from: SiteId,
        fetch: Fetch,
    ) {
        let Fetch { token, start, gets, scans, rights, claim, .. } = fetch;
        let rights = rights && uses_rights(&turn.here);

        // If nothing that is read here is about to change, all of it is of one instant, now: a transaction that reads
        // nothing else has taken effect, and its claim is over. A call does not count: it rests on objects of other
        // homes, at other instants.
        let is_whole = !gets.iter().any(|(name, _)| is_call(name) || self.locks.is_changing(name))
            && !scans.iter().any(|span| self.locks.changing_in(span).next().is_some());
        if let Some(claim) = claim.filter(|claim| claim.ends && is_whole) {
            self.end_claim(turn.here.now.mono, claim.rank.nonce);
        }

        let mut room = Room::new();
        let mut given = Vec::with_capacity(gets.len());
        for (name, reads) in gets {
            if !is_name(&name) {
                given.push(Err(Abort::of(Cause::InvalidKey)));
                continue;
            }
            if reads > 0 {
                self.issuer.note_reads(turn.here.now, &name, reads);
                calls.note_use(turn.here.now, &name);
            }

            // No right is issued while a write is prepared, as the value may be changed already, nor over what this call has
            // written and the view does not show. Nor over what a program has claimed: it would have to be asked back at
            // once. Nor for a call that is not there yet: the one who asks is about to put it.
            given.push(room.get(table, &name).map(|seen| {
                let is_missing = seen.value.is_none() && is_call(&name);
                let is_written = self.locks.is_changing(&name) || self.locks.is_written(&name);
                let may = rights && !is_missing && !is_written && !self.claims.is_claimed(&name);
                let (now, epsilon) = (turn.here.now, turn.here.config.epsilon);
                let right = match may {
                    false => None,
                    // A valid treaty is there to be relied upon, and is not written before it would be false.
                    true if treaty_name(&name).is_some() && seen.value.as_ref().is_some_and(Treaty::is_valid_in) => {
                        self.issuer.issue_for(now, epsilon, &name, from, start, LONGEST)
                    }
                    true => self.issuer.issue(now, epsilon, &name, from, start),
                };
                turn.out.metrics.rights_issued += u64::from(right.is_some());
                Given { seen, right }
            }));
        }

        let scan = |span: &Span| match span.is_sound() {
            true => room.scan(table, span),
            false => Err(Abort::of(Cause::Malformed)),
        };
        let scans = scans.iter().map(scan).collect();
        let fetched = Fetched { token, start, gets: given, scans, is_whole };
        turn.out.send(from, Message::Fetched(Box::new(fetched)));
    }

    /// Answers another home that has notes of calls of this one: those that are not there, and are not about to be put.
    pub(super) fn tell_absent(
        &self,
        turn: &mut Turn,
        table: &Table,
        from: SiteId,
        (start, stamp): (Start, u64),
        names: Vec<String>,
    ) {
        if names.len() > READ_ITEMS {
            turn.out.metrics.ignored += 1;
            return;
        }
        let is_gone = |name: &String| {
            // A call that was registered after the working set was named is not in the view, and may be there.
            if !table.view.knows_head(&row_key(table.incarnation, name)) {
                return false;
            }

            // Nor is it gone if it reads as nothing because a home that it rests on lost its storage, or if this home
            // lost its own and cannot tell yet; nor if a prepared part may put it. Else a note would go that a result
            // still needs.
            let head = self.locks.head(table, name);
            let is_nothing = head.is_ok_and(|head| head.holds == Holds::Nothing && head.version.number & GONE == 0);
            is_call(name) && is_nothing && !self.locks.is_changing(name)
        };
        let names: Vec<String> = names.into_iter().filter(is_gone).collect();
        if !names.is_empty() {
            turn.out.send(from, Message::AbsentCalls { start, stamp, names });
        }
    }
}
