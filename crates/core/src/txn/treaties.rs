//! Treaties at a participant: notes of leaves that a part brings, parts that wait for slack, and the retraction of treaties that
//! are at home here.
//!
//! # Retraction
//!
//! Whoever wants to break a treaty asks its home first. The home lets nobody prepare on it any more, issues no right over it,
//! asks for the rights that are out, waits for them and for prepared parts that have read it, and then writes that the
//! treaty is no longer valid: a write of one object, defended like any other. Only then it tells the leaves, durably. So
//! nothing that broke the statement was carried out while somebody could still rely on it.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::calls::Calls;
use super::leaves::{Leaves, say};
use super::participant::{ASK, Participant, Timer};
use super::participation::Stage;
use super::retraction::{Retraction, note_needs, treaty_here};
use super::table::{Table, need_head, row_key, row_range};
use crate::api::{TreatiesHere, TreatyHere};
use crate::bounds::{READ_BYTES, READING_BYTES};
use crate::clock::{MILLISECOND, Now};
use crate::id::{Incarnation, OperationId, SiteId};
use crate::machine::{KeySet, Overlay, ReadError, Reader, View};
use crate::object::message::Says;
use crate::object::treaty::{Treaty, treaty_name, treaty_prefix};
use crate::object::{Abort, Cause, Change, ObjectKey, Part, Span, Value};
use crate::right::WarrantyNumber;
use crate::turn::{Here, Turn};

/// The pause before a retraction looks again at parts that are prepared on the treaty, in microseconds.
const SOON: u64 = 20 * MILLISECOND;
/// The most treaties, and the most clauses of leaves, that one answer shows.
const SHOWN: usize = 1000;
/// The most retractions under way at a home; one more is not begun, and asked for again.
const RETRACTIONS: usize = 4096;

/// Adds the rows that a message about a treaty needs.
pub(super) fn message_needs(here: &Here, treaty: &ObjectKey, says: &Says, set: &mut KeySet) {
    if matches!(says, Says::Retract { .. }) && treaty.home == here.site.me.region {
        set.keys.push(row_key(here.site.incarnation, &treaty.name));
    }
}

/// Adds the rows that an answer about treaties needs.
pub(super) fn show_needs(here: &Here, treaty: Option<&ObjectKey>, set: &mut KeySet) {
    match treaty {
        Some(treaty) if treaty.home != here.site.me.region => {}
        Some(treaty) => set.keys.push(row_key(here.site.incarnation, &treaty.name)),
        None => set.ranges.push(row_range(here.site.incarnation, &all_treaties())),
    }
    set.room = Some(READ_BYTES);
}

/// The span of all treaties of a home that one answer shows, and one more.
fn all_treaties() -> Span {
    Span { prefix: treaty_prefix(), after: String::new(), limit: SHOWN as u32 + 1 }
}

impl Participant {
    /// The treaties that are at home here, and the leaves that are kept here; those of one treaty, if one is given.
    pub(super) fn show_treaties(&self, here: &Here, table: &Table, treaty: Option<&ObjectKey>) -> TreatiesHere {
        let (found, has_more) = match treaty {
            Some(treaty) if treaty.home != here.site.me.region => (Vec::new(), false),
            Some(ObjectKey { name, .. }) => {
                (table.as_written(name).map(|value| (name.clone(), value)).into_iter().collect(), false)
            }
            // Where what they hold is more than there is room for, none of it is at hand.
            None => {
                let found = table.all_as_written(&all_treaties());
                let has_more = found.as_ref().is_none_or(|found| found.len() > SHOWN);
                (found.into_iter().flatten().take(SHOWN).collect(), has_more)
            }
        };
        let home = |(name, value): (String, Value)| {
            let holders = self.issuer.issued_over(&name).iter().map(|right| right.holder).collect();
            TreatyHere { name, value, holders }
        };

        // What was read may be more than an answer has room for.
        let mut homes: Vec<TreatyHere> = found.into_iter().map(home).collect();
        let mut room = READING_BYTES;
        let take_room = |home: &TreatyHere| {
            room = room.checked_sub(home.bytes())?;
            Some(())
        };
        let fitting = homes.iter().map_while(take_room).count();
        let has_more = has_more || fitting < homes.len();
        homes.truncate(fitting);
        let leaves = self.leaves.show(here.now, &self.locks, treaty, SHOWN);
        let synchronizations = treaty.map(|treaty| self.leaves.waited_for(treaty)).unwrap_or_default();
        TreatiesHere { homes, leaves, synchronizations, has_more }
    }

    /// The numbers that the counters of the leaves have come to that a part brings.
    fn counts(&self, table: &Table, part: &Part) -> Result<FxHashMap<String, i64>, Abort> {
        let mut counts = FxHashMap::default();
        for name in Leaves::names(part) {
            let head = self.locks.head(table, name)?;
            let count = head.holds.count().ok_or_else(|| Abort::about(Cause::NotACounter, table.site, name))?;
            counts.insert(name.clone(), count);
        }
        Ok(counts)
    }

    /// Judges the notes of leaves that a part brings.
    pub(super) fn check_notes(&self, table: &Table, part: &Part) -> Result<(), Abort> {
        if part.notes.is_empty() {
            return Ok(());
        }
        let counts = self.counts(table, part)?;
        self.leaves.check(&self.locks, table.site, part, &counts)
    }

    /// Keeps the notes of a part that was judged, from now on. The bounds hold before anybody can hear that they do.
    pub(super) fn take_notes(&mut self, here: &Here, table: &Table, part: &Part) {
        if !part.notes.is_empty() {
            let counts = self.counts(table, part).expect("judged just now");
            self.leaves.take(here.now, part, &counts);
        }
    }

    /// All rows are restored. What the counters of leaves have come to is read now; then the notes of prepared parts are kept
    /// again.
    pub(super) fn restored(
        &mut self,
        (site, incarnation): (SiteId, Incarnation),
        reader: &dyn Reader,
    ) -> Result<(), ReadError> {
        let mut prepared: Vec<OperationId> = self.entries.keys().copied().collect();
        prepared.retain(|id| self.entries[id].part().is_some_and(|part| !part.notes.is_empty()));
        prepared.sort_unstable();
        let parts: Vec<Part> = prepared.iter().filter_map(|id| self.entries[id].part()).cloned().collect();

        // By heads: a counter's number stands in its head, and there may be many.
        let mut set = KeySet::default();
        let names = self.leaves.counters();
        names.iter().for_each(|name| need_head(incarnation, name, &mut set));
        parts.iter().for_each(|part| note_needs(part, incarnation, &mut set));
        if set.heads.is_empty() {
            return Ok(());
        }
        let view = View::prepare(set, &Overlay::default(), reader)?;
        let table = Table::of_an_earlier_life(&view, site, incarnation);
        let count = |name: &String| table.head(name).ok().and_then(|head| head.holds.count()).unwrap_or(0);
        self.leaves.restored(&names.iter().map(|name| (name.clone(), count(name))).collect());
        for part in &parts {
            let counts = Leaves::names(part).map(|name| (name.clone(), count(name))).collect();
            self.leaves.take(Now::default(), part, &counts);
        }

        Ok(())
    }

    /// Handles what another site says of a treaty.
    pub(super) fn hear_of_treaty(
        &mut self,
        turn: &mut Turn,
        table: &Table,
        calls: &mut Calls,
        from: SiteId,
        (treaty, nonce): (ObjectKey, u64),
        says: Says,
    ) {
        match says {
            Says::Retract { is_question } => {
                if treaty.home == turn.here.site.me.region && treaty_name(&treaty.name).is_some() {
                    self.asked_to_retract(turn, table, calls, from, (treaty, nonce), is_question);
                }
            }
            says => self.leaves.hear(turn, &self.locks, from.region, &(treaty, nonce), says),
        }

        self.wake_for_slack(turn.here.now.mono);
    }

    /// Does what is due for leaves.
    pub(super) fn tick_leaves(&mut self, turn: &mut Turn) {
        self.leaves.tick(turn, &self.locks);
        self.wake_for_slack(turn.here.now.mono);
    }

    /// A part that waits: asks for the slack that it lacks.
    pub(super) fn ask_for_slack(&mut self, turn: &mut Turn, id: OperationId) {
        if let Some(part) = self.entries[&id].part() {
            self.leaves.want(turn, &self.locks, id, part);
        }
        self.wake_for_slack(turn.here.now.mono);
    }

    /// A part is refused that does not wait any longer: what it lacks is asked for as if it waited.
    pub(super) fn press_for_slack(&mut self, turn: &mut Turn, id: OperationId) {
        if let Some(part) = self.entries[&id].part() {
            self.leaves.press(turn, &self.locks, part);
        }
    }

    /// Has the parts looked at for which slack came, or a treaty went.
    pub(super) fn wake_for_slack(&mut self, now: u64) {
        for id in self.leaves.take_woken() {
            if self.entries.get(&id).is_some_and(|entry| entry.stage() == Stage::Defending) {
                self.look_at(id, now);
            }
        }
    }

    /// The refusal of a part that lacks slack of a treaty on which it relies; none if there is no such treaty.
    pub(super) fn denied(&mut self, here: &Here, id: OperationId) -> Option<Abort> {
        let treaty = self.leaves.take_denied(id)?;
        Some(Abort { key: Some(treaty), site: Some(here.site.me), ..Abort::of(Cause::NotMet) })
    }

    // The home of a treaty.

    /// A leaf asks to retract a treaty, or whether it was retracted.
    fn asked_to_retract(
        &mut self,
        turn: &mut Turn,
        table: &Table,
        calls: &mut Calls,
        from: SiteId,
        (treaty, nonce): (ObjectKey, u64),
        is_question: bool,
    ) {
        let is_same = |retraction: &Retraction| (&retraction.name, retraction.nonce) == (&treaty.name, nonce);
        let under_way = self.retractions.iter().find(|(_, retraction)| is_same(retraction)).map(|(token, _)| *token);
        let token = match under_way {
            Some(token) => token,
            // A leaf of this home may be free some time later, whatever is said here: so that one is never turned away.
            None if self.retractions.len() >= RETRACTIONS && from != turn.here.site.me => return,
            None => {
                let token = self.next_token();
                let (asked_by, name) = (BTreeSet::new(), treaty.name);
                let new = Retraction { name, nonce, asked_by, is_wanted: false, is_begun: false, look_at: 0 };
                self.retractions.insert(token, new);
                token
            }
        };
        let retraction = self.retractions.get_mut(&token).expect("found or made just now");
        retraction.asked_by.insert(from.region);
        retraction.is_wanted |= !is_question;
        self.go_on_retracting(turn, table, calls, token);
    }

    /// The site serves, in this start. A treaty of this home whose leaf here has let go of its bounds was being retracted: nobody may rely on
    /// it in this life either, from the beginning. To other homes this site does not vouch; to itself it has nothing to say.
    pub(super) fn resume_retractions(&mut self, here: &Here) {
        let me = here.site.me.region;
        let given_up: Vec<(ObjectKey, u64)> =
            self.leaves.given_up().filter(|(treaty, _)| treaty.home == me).cloned().collect();
        for (ObjectKey { name, .. }, nonce) in given_up {
            let token = self.next_token();
            self.issuer.block(&name);
            self.locks.bar(&name);
            let asked_by = BTreeSet::from([me]);
            let begun = Retraction { name, nonce, asked_by, is_wanted: true, is_begun: true, look_at: 0 };
            self.retractions.insert(token, begun);
            self.look_at_retraction(token, here.now.mono);
        }
    }

    /// Adds the rows that a retraction needs.
    pub(super) fn retraction_needs(&self, token: u64, incarnation: Incarnation, set: &mut KeySet) {
        if let Some(retraction) = self.retractions.get(&token) {
            set.keys.push(row_key(incarnation, &retraction.name));
            need_head(incarnation, &retraction.name, set);
        }
    }

    /// Holders gave up rights over these: retractions that waited for them go on, in the next call.
    pub(super) fn wake_retractions(&mut self, now: u64, names: &[(String, WarrantyNumber)]) {
        let is_concerned = |retraction: &Retraction| names.iter().any(|(name, _)| *name == retraction.name);
        let tokens =
            self.retractions.iter().filter(|(_, retraction)| is_concerned(retraction)).map(|(token, _)| *token);
        let tokens: Vec<u64> = tokens.collect();
        tokens.into_iter().for_each(|token| self.look_at_retraction(token, now));
    }

    /// Sets when a retraction is looked at next, in place of any other time.
    fn look_at_retraction(&mut self, token: u64, at: u64) {
        let retraction = self.retractions.get_mut(&token).expect("looked up by the caller");
        self.timers.remove(&(retraction.look_at, Timer::Retraction(token)));
        retraction.look_at = at;
        self.timers.insert((at, Timer::Retraction(token)));
    }

    /// Retracts a treaty if nobody can rely on it any more; else waits. Answers at once if that was done before.
    pub(super) fn go_on_retracting(&mut self, turn: &mut Turn, table: &Table, calls: &mut Calls, token: u64) {
        let Some(retraction) = self.retractions.get_mut(&token) else { return };
        let (now, me) = (turn.here.now, turn.here.site.me);

        // From now on nobody comes to rely on it, however long the rest takes: this home does not vouch to itself, so nothing else would
        // keep rights off a treaty whose leaf here has let go.
        if retraction.is_wanted && !std::mem::replace(&mut retraction.is_begun, true) {
            self.issuer.block(&retraction.name);
            self.locks.bar(&retraction.name);
        }
        let Retraction { name, nonce, is_wanted, .. } = retraction.clone();

        // It was asked for after the working set was named, or this call has written it: the next call has the row. And where a part is
        // prepared that writes the treaty, what was asked for may be about to be made.
        let is_changing = self.locks.is_changing(&name);
        let is_known = table.view.knows(&row_key(table.incarnation, &name)) && !self.locks.is_written(&name);
        if is_changing || !is_known {
            return self.look_at_retraction(token, if is_changing { now.mono + SOON } else { now.mono });
        }

        let present = treaty_here(table, &name).filter(|(there, _)| there.nonce == nonce && there.is_valid);
        let Some((treaty, homes)) = present else {
            // Nobody can come to rely on it any more. But rights of an earlier life may still be out, of which nothing is known: then
            // nothing is said, and the leaf asks again.
            self.end_retraction(token);
            return match self.issuer.is_bound_by_the_past(now) {
                true => drop(self.retractions.remove(&token)),
                false => self.tell_retracted(turn, token, &[]),
            };
        };
        if !is_wanted {
            self.retractions.remove(&token);
            return;
        }

        // Defend first: every right over it has ended or was given up.
        if let Some(over_at) = self.issuer.over_at(now, &name) {
            self.ask_back_names(turn, &[name]);
            let again = now.mono + (2 * turn.here.longest_round_trip()).max(ASK);
            return self.look_at_retraction(token, over_at.min(again));
        }
        if self.locks.is_locked(&name) {
            return self.look_at_retraction(token, now.mono + SOON);
        }

        self.end_retraction(token);
        let value = Treaty { is_valid: false, retracts: treaty.retracts + 1, ..treaty }
            .to_value(&ObjectKey::new(me.region, name.clone()), &homes);
        let part = Part { writes: vec![(name, Change::Put(value))], ..Part::default() };
        self.apply(turn, Some(table), calls, &part);
        turn.out.metrics.treaties_retracted += 1;
        let homes: Vec<u16> = homes.iter().map(|(home, _)| *home).chain([me.region]).collect();
        self.tell_retracted(turn, token, &homes);
    }

    /// Lets new rights be issued over a treaty again, and parts be prepared that read it.
    fn end_retraction(&mut self, token: u64) {
        let retraction = self.retractions.get_mut(&token).expect("looked up by the caller");
        if std::mem::take(&mut retraction.is_begun) {
            self.issuer.unblock(&retraction.name);
            self.locks.unbar(&retraction.name);
        }
    }

    /// Tells those that have asked, and other leaves, that a making is retracted. That leaves when it is durable: a leaf is free then.
    fn tell_retracted(&mut self, turn: &mut Turn, token: u64, others: &[u16]) {
        let Retraction { name, nonce, mut asked_by, .. } =
            self.retractions.remove(&token).expect("looked up by the caller");
        asked_by.extend(others);
        let me = turn.here.site.me;
        let making = (ObjectKey::new(me.region, name), nonce);
        for home in asked_by {
            say(&mut turn.out, SiteId::new(home, me.lane), &making, Says::Retracted);
        }
    }
}
