//! State warranties: rights to rely on the value of an object until a time (Warranties, NSDI 2014).
//!
//! The object's home, the **backer**, issues a warranty together with a value. Its **holder** is a site, which may then
//! judge reads of that value by itself. The backer keeps the promise: before it changes the value, every warranty on it has
//! ended or was given up.
//!
//! ```text
//!   holder  ── Fetch ──▶  backer          a read; the backer may add a right to its answer
//!           ◀── value, right until t ──
//!           ◀── Revoke ──                 a write waits: give it up, if nothing rests on it
//!           ── Revoked ──▶
//! ```
//!
//! # When it ends
//!
//! Each end errs to its own cost, on both of its clocks. The holder relies on it while its wall clock is before
//! `expiry - ε` **and** its monotonic clock has not advanced by the duration since it *sent* the question. The backer
//! takes it as binding until its wall clock is past `expiry + ε` **and** its monotonic clock is past the duration and 2ε
//! since it was issued. So either pair of clocks suffices to keep the promise, where the holder judges alone (0 phases). Where
//! it asks participants, these refuse by their wall clocks; see [`crate::txn`].
//!
//! # Crashes
//!
//! Warranties live in memory at both ends. A holder that starts anew holds nothing, but what its earlier life sent may
//! still rest on what that life held: it never acknowledges for an earlier life. A backer that starts anew does not know
//! what it issued; it knows a durable **mark** above every expiry that it ever sent, and writes wait until that is over, by its
//! wall clock and by the time that a majority agrees has come. One that lost its storage waits for as long as any warranty may
//! last, by both its clocks.
//!
//! # A wall clock that was ahead
//!
//! An end far in the future would keep writes waiting for as long as the clock was ahead. So none is issued that is farther
//! ahead than [`FARTHEST`] of the time that a majority agrees on; and an end, or the mark, that is found to stand farther ahead
//! of it than [`LEASE`] (and a second for clock errors) is brought back to that: whatever rests on it is over by then, because its
//! holder stops by its monotonic clock, and no transaction lasts longer than [`LONGEST`].
//!
//! # How long
//!
//! [`Popularity`] says how long a warranty should last, by object, from how often it is read and written. Most objects get
//! none.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::clock::{MILLISECOND, Now, SECOND};
use crate::id::SiteId;
use crate::object::message::Offer;
use crate::right::{Start, WarrantyNumber};
use crate::stats::Popularity;

/// The longest warranty, in microseconds.
pub const LONGEST: u64 = 10 * SECOND;
/// How long after a home was asked, and answered, it is known to have its storage still, in microseconds, by either clock.
pub const VOUCHED: u64 = LONGEST;
/// A home that has lost its storage changes nothing for so long: what rests on its answers of before is over then. Such
/// may be judged for [`VOUCHED`] since it was asked, by a right that lasts for [`LONGEST`], or a transaction that is prepared
/// within that.
pub const LEASE: u64 = VOUCHED + LONGEST + SECOND;
/// No end of a right and no deadline of a transaction is set farther ahead than [`LONGEST`]. What is farther ahead than this
/// was set by a wall clock that is wrong; the difference is for clocks that err and nobody has noticed yet.
pub const FARTHEST: u64 = LONGEST + SECOND;
/// A shorter one is not worth issuing.
const SHORTEST: u64 = 20 * MILLISECOND;
/// A right is asked back no more often than this, whoever waits for it.
const ASK_AGAIN: u64 = 200 * MILLISECOND;
/// How far ahead of the last expiry the durable mark is raised, so that it is raised seldom.
const AHEAD: i64 = SECOND as i64;
/// The most objects whose popularity is remembered; beyond it, those that were not used for longest are forgotten.
const POPULAR: usize = 65_536;
/// After a write that may not wait was refused, no right over what it writes is issued for this long: its client may come
/// again before those that hold rights have read again.
const RESPITE: u64 = SECOND;
/// The most objects over which no right is issued for [`RESPITE`]; beyond it, those of all are over.
const RESPITES: usize = 65_536;
/// The most objects that have warranties out at a time; beyond it none is issued.
const ISSUED: usize = 1_000_000;

/// A warranty, as its backer remembers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Issued {
    /// Who holds it.
    pub holder: SiteId,
    /// The holder's start.
    pub start: Start,
    /// Its number; the last one, if it was extended.
    pub number: WarrantyNumber,
    /// Binding until the wall clock is past this, in microseconds since 1970.
    pub wall: i64,
    /// And the monotonic clock past this.
    pub mono: u64,
    /// When its holder was last asked to give it up, on the monotonic clock.
    asked_back: Option<u64>,
}

impl Issued {
    /// Whether it may be taken as over.
    fn is_over(&self, now: Now) -> bool {
        now.wall > self.wall && now.mono > self.mono
    }

    /// When it will be over on the monotonic clock, if the wall clock goes as fast.
    pub fn over_at(&self, now: Now) -> u64 {
        let wall = u64::try_from(self.wall.saturating_sub(now.wall)).unwrap_or(0);
        self.mono.max(now.mono.saturating_add(wall)) + 1
    }
}

/// What a home knows of the warranties that it issued.
#[derive(Clone, Debug, Default)]
pub struct Backer {
    start: Start,
    count: u64,
    issued: BTreeMap<String, Vec<Issued>>,
    /// When to look whether an object's warranties are over.
    ends: BTreeSet<(u64, String)>,
    /// Objects with writes that wait or are prepared, and how many: no right over them is issued or extended.
    barred: FxHashMap<String, u32>,
    /// Until when, on the monotonic clock, no right over an object is issued because a write of it was refused.
    respites: FxHashMap<String, u64>,
    popularity: FxHashMap<String, Popularity>,
    /// Above every expiry ever sent, durable.
    mark: i64,
    is_dirty: bool,
    /// What an earlier life may have issued is binding until this is over.
    before: Option<Before>,
    /// The time that a majority agreed had come, when this was last told.
    agreed: Option<i64>,
    /// What rests on any right that was ever issued is over by then.
    farthest: Option<i64>,
}

/// When rights of an earlier life are over.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// The wall clock must be past this, and so must be the time that a majority agrees has come.
    wall: i64,
    /// The monotonic clock must have got here.
    mono: u64,
    /// When it gets here they are over, whatever the wall clocks show: nobody may be there to compare them with.
    at_most: u64,
}

impl Backer {
    /// A backer whose durable mark is this.
    pub fn restore(mark: i64) -> Self {
        Self { mark, ..Self::default() }
    }

    /// The site serves, in this start. `was_lost` tells that an earlier incarnation's storage is gone, and its mark with it.
    pub fn resume(&mut self, now: Now, epsilon: u64, start: Start, was_lost: bool) {
        let mark = if was_lost { now.wall.saturating_add_unsigned(LEASE) } else { self.mark };
        if was_lost {
            (self.mark, self.is_dirty) = (mark, true);
        }
        let wall = mark.saturating_add_unsigned(epsilon);
        let least = if was_lost { LEASE } else { 0 };
        let mono = now.mono + least + if was_lost { 2 * epsilon } else { 0 };
        // A right lasts no longer than a lease, nor does what rests on it.
        let at_most = mono + LEASE + 2 * epsilon;
        self.before = (mark > 0).then_some(Before { wall, mono, at_most });
        self.start = start;
    }

    /// Takes note of the time that a majority agrees has come, and of the one that it agrees has not passed. Nothing of what stands too far ahead of it need be waited for: the
    /// wall clock was ahead when it was set.
    pub fn note_agreed(&mut self, now: Now, agreed: Option<i64>, at_most: Option<i64>, epsilon: u64) {
        self.agreed = agreed;
        self.farthest = at_most.map(|at_most| at_most.saturating_add_unsigned(LEASE + SECOND + 2 * epsilon));
        let Some(farthest) = self.farthest else { return };
        if self.mark > farthest {
            (self.mark, self.is_dirty) = (farthest, true);
        }
        if let Some(before) = &mut self.before {
            before.wall = before.wall.min(farthest);
        }

        // What is left of the time after a lost storage must be waited for after another start too, and the clock was behind.
        let left = self.before.map_or(0, |before| before.mono.saturating_sub(now.mono));
        let until = at_most.map_or(0, |at_most| at_most.saturating_add_unsigned(left));
        if left > 0 && self.mark.saturating_add_unsigned(SECOND) < until {
            (self.mark, self.is_dirty) = (until, true);
        }
    }

    /// The durable mark, and whether it has changed since it was last asked for.
    pub fn take_mark(&mut self) -> (i64, bool) {
        (self.mark, std::mem::take(&mut self.is_dirty))
    }

    /// How many objects have warranties out.
    pub fn len(&self) -> usize {
        self.issued.len()
    }

    /// Whether none is out.
    pub fn is_empty(&self) -> bool {
        self.issued.is_empty()
    }

    /// Notes reads of an object.
    pub fn note_reads(&mut self, now: Now, name: &str, reads: u32) {
        if let Some(popularity) = self.popularity.get_mut(name) {
            return popularity.note_reads(now.mono, reads);
        }
        if self.popularity.len() >= POPULAR {
            let mut last: Vec<u64> = self.popularity.values().map(Popularity::last).collect();
            let middle = last.len() / 2;
            let (_, median, _) = last.select_nth_unstable(middle);
            let median = *median;
            self.popularity.retain(|_, popularity| popularity.last() > median);
        }
        let mut popularity = Popularity::new(now.mono);
        popularity.note_reads(now.mono, reads);
        self.popularity.insert(name.to_owned(), popularity);
    }

    /// Notes a write of an object.
    pub fn note_write(&mut self, now: Now, name: &str) {
        if let Some(popularity) = self.popularity.get_mut(name) {
            popularity.note_write(now.mono);
        }
    }

    /// A right over the object's present value for `holder`, if one is worth it and may be issued.
    pub fn issue(&mut self, now: Now, epsilon: u64, name: &str, holder: SiteId, start: Start) -> Option<Offer> {
        let duration = self.popularity.get(name)?.duration(now.mono, LONGEST);
        if duration < SHORTEST.max(4 * epsilon) || self.is_barred(name) || self.issued.len() >= ISSUED {
            return None;
        }
        let expiry = now.wall.saturating_add_unsigned(duration);
        // A clock that is ahead, and that nobody may have noticed yet, must not bind this home for as long as it is ahead.
        if self.agreed.is_none_or(|agreed| expiry > agreed.saturating_add_unsigned(FARTHEST + 2 * epsilon)) {
            return None;
        }
        if self.check_respite(now, name) {
            return None;
        }
        self.count += 1;
        let number = WarrantyNumber { start: self.start, count: self.count };
        if expiry > self.mark {
            self.mark = expiry.saturating_add(AHEAD);
            self.is_dirty = true;
        }
        let rights = self.issued.entry(name.to_owned()).or_default();
        let (mut wall, mut mono) = (expiry.saturating_add_unsigned(epsilon), now.mono + duration + 2 * epsilon);
        // An extension never ends before what it extends.
        rights.retain(|right| {
            let same = (right.holder, right.start) == (holder, start);
            if same {
                (wall, mono) = (wall.max(right.wall), mono.max(right.mono));
            }
            !same
        });
        rights.push(Issued { holder, start, number, wall, mono, asked_back: None });
        if rights.len() == 1 {
            self.ends.insert((mono, name.to_owned()));
        }
        Some(Offer { number, expiry, duration })
    }

    /// A write of the object waits or is prepared: no right over it is issued until [`Backer::unbar`].
    pub fn bar(&mut self, name: &str) {
        *self.barred.entry(name.to_owned()).or_default() += 1;
    }

    /// The write is applied or given up.
    pub fn unbar(&mut self, name: &str) {
        match self.barred.get_mut(name) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => drop(self.barred.remove(name)),
            None => panic!("a write of {name} ends that never began"),
        }
    }

    /// Whether a write of it waits or is prepared.
    pub fn is_barred(&self, name: &str) -> bool {
        self.barred.contains_key(name)
    }

    /// The rights over an object whose holders are now asked to give them up: those that are `worth` it, and were not asked back
    /// lately, for another that waits for the same object. However many wait, a holder is asked so often and no more.
    pub fn ask_back(&mut self, now: Now, name: &str, worth: impl Fn(&Issued) -> bool) -> Vec<Issued> {
        self.binding(now, name);
        let Some(rights) = self.issued.get_mut(name) else { return Vec::new() };
        let is_due = |right: &Issued| right.asked_back.is_none_or(|asked| asked + ASK_AGAIN <= now.mono);
        let due = rights.iter_mut().filter(|right| is_due(right) && worth(right));
        due.map(|right| {
            right.asked_back = Some(now.mono);
            *right
        })
        .collect()
    }

    /// A write of the object was refused because it may not wait for rights: none is issued for a while.
    pub fn give_respite(&mut self, now: Now, name: &str) {
        if self.respites.len() >= RESPITES {
            self.respites.clear();
        }
        self.respites.insert(name.to_owned(), now.mono.saturating_add(RESPITE));
    }

    /// Whether a write of it was refused within [`RESPITE`]; forgets a refusal that is longer ago.
    fn check_respite(&mut self, now: Now, name: &str) -> bool {
        let is_over = self.respites.get(name).map(|until| now.mono >= *until);
        if is_over == Some(true) {
            self.respites.remove(name);
        }
        is_over == Some(false)
    }

    /// The rights over an object that are still binding.
    pub fn binding(&mut self, now: Now, name: &str) -> &[Issued] {
        let farthest = self.farthest;
        let Some(rights) = self.issued.get_mut(name) else { return &[] };
        if let Some(farthest) = farthest {
            rights.iter_mut().for_each(|right| right.wall = right.wall.min(farthest));
        }
        rights.retain(|right| !right.is_over(now));
        if rights.is_empty() {
            self.issued.remove(name);
        }
        self.issued.get(name).map_or(&[], Vec::as_slice)
    }

    /// The object over which the right with this number is, if it is out. For those who check.
    pub fn object_of(&self, number: WarrantyNumber) -> Option<&String> {
        let is_it = |rights: &Vec<Issued>| rights.iter().any(|right| right.number == number);
        self.issued.iter().find(|(_, rights)| is_it(rights)).map(|(name, _)| name)
    }

    /// Whether an earlier life may have issued rights that are still binding.
    pub fn is_bound_by_the_past(&self, now: Now) -> bool {
        self.before.is_some_and(|before| {
            // The wall clock may have been right when the rights were issued, and be ahead now: so it is not believed alone.
            let is_past = self.agreed.is_some_and(|agreed| agreed.min(now.wall) > before.wall);
            !(is_past && now.mono >= before.mono) && now.mono < before.at_most
        })
    }

    /// When what an earlier life may have issued will be over on the monotonic clock, as far as can be told; none if it is.
    pub fn past_over_at(&mut self, now: Now) -> Option<u64> {
        if !self.is_bound_by_the_past(now) {
            self.before = None;
        }
        let Before { wall, mono, at_most } = self.before?;
        let shown = self.agreed.map_or(now.wall, |agreed| agreed.min(now.wall));
        let missing = u64::try_from(wall.saturating_sub(shown)).unwrap_or(0);
        // Where nothing is missing but the others' word for it, that comes soon.
        Some(mono.max(now.mono + missing.max(MILLISECOND) + 1).min(at_most))
    }

    /// When the rights over an object will be over on the monotonic clock, if none is given up; none if there is none.
    pub fn over_at(&mut self, now: Now, name: &str) -> Option<u64> {
        let before = self.past_over_at(now);
        let issued = self.binding(now, name).iter().map(|right| right.over_at(now)).max();
        before.max(issued)
    }

    /// A holder gave up its rights over an object, up to this number.
    pub fn give_up(&mut self, name: &str, holder: SiteId, start: Start, number: WarrantyNumber) {
        let Some(rights) = self.issued.get_mut(name) else { return };
        rights.retain(|right| (right.holder, right.start) != (holder, start) || right.number > number);
        if rights.is_empty() {
            self.issued.remove(name);
        }
    }

    /// When [`Backer::sweep`] has something to do.
    pub fn deadline(&self) -> Option<u64> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// Forgets what is over.
    pub fn sweep(&mut self, now: Now) {
        while let Some((at, _)) = self.ends.first()
            && *at <= now.mono
        {
            let (_, name) = self.ends.pop_first().expect("looked at above");
            if let Some(last) = self.binding(now, &name).iter().map(|right| right.over_at(now)).max() {
                self.ends.insert((last, name));
            }
        }
    }
}

/// A right over a value, as its holder has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its number.
    pub number: WarrantyNumber,
    /// When it ends, in microseconds since 1970; the holder stops ε before.
    pub expiry: i64,
    /// Nor is it relied on from this monotonic time on.
    pub mono: u64,
    /// How long it was to last when it was issued.
    pub duration: u64,
}

impl Held {
    /// The right in an answer to a question that was sent at `asked` (monotonic).
    pub fn new(offer: Offer, asked: u64) -> Self {
        let Offer { number, expiry, duration } = offer;
        Self { number, expiry, mono: asked.saturating_add(duration), duration }
    }

    /// Until when, on the wall clock, a transaction that rests on it must be prepared everywhere.
    pub fn relied_until(&self, epsilon: u64) -> i64 {
        self.expiry.saturating_sub_unsigned(epsilon)
    }

    /// Whether the holder may rely on it.
    pub fn is_live(&self, now: Now, epsilon: u64) -> bool {
        now.wall < self.relied_until(epsilon) && now.mono < self.mono
    }

    /// How much of it is left, in microseconds.
    pub fn left(&self, now: Now, epsilon: u64) -> u64 {
        let wall = u64::try_from(self.relied_until(epsilon).saturating_sub(now.wall)).unwrap_or(0);
        wall.min(self.mono.saturating_sub(now.mono))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Incarnation, Life};

    const EPSILON: u64 = 1_000;

    fn at(micros: u64) -> Now {
        Now { wall: 1 << 50 | micros as i64, mono: micros }
    }

    fn start(life: u64) -> Start {
        Start { incarnation: Incarnation(1), life: Life(life) }
    }

    /// A backer of an object that was read often enough.
    fn backer() -> Backer {
        let mut backer = Backer::default();
        backer.resume(at(0), EPSILON, start(1), false);
        backer.note_agreed(at(0), Some(at(0).wall), Some(at(0).wall), EPSILON);
        for read in 1..=5 {
            backer.note_reads(at(read * 100 * MILLISECOND), "x", 1);
        }
        backer
    }

    #[test]
    fn right_binds_its_backer_for_longer_than_its_holder_relies_on_it() {
        let mut backer = backer();
        let (asked, issued) = (at(2 * SECOND), at(2 * SECOND + 40 * MILLISECOND));
        let offer = backer.issue(issued, EPSILON, "x", SiteId::new(1, 0), start(1)).expect("popular");
        let held = Held::new(offer, asked.mono);
        for step in 0..200 {
            let now = at(2 * SECOND + step * 20 * MILLISECOND);
            let skewed = |offset: i64| Now { wall: now.wall + offset, mono: now.mono };
            for (ours, theirs) in [(0, 0), (EPSILON as i64, -(EPSILON as i64)), (-(EPSILON as i64), EPSILON as i64)] {
                let live = held.is_live(skewed(ours), EPSILON);
                let binding = !backer.binding(skewed(theirs), "x").is_empty();
                assert!(!live || binding, "relied on after its backer has forgotten it, at {now:?}");
            }
        }
        assert!(backer.binding(at(20 * SECOND), "x").is_empty());
    }

    #[test]
    fn right_is_not_issued_while_a_write_is_pending_nor_for_what_is_written_too_often() {
        let mut backer = backer();
        let issue = |backer: &mut Backer, micros| backer.issue(at(micros), EPSILON, "x", SiteId::new(1, 0), start(1));
        backer.bar("x");
        assert_eq!(issue(&mut backer, 2 * SECOND), None);
        backer.unbar("x");
        assert!(issue(&mut backer, 2 * SECOND).is_some());
        for write in 0..50 {
            backer.note_write(at(3 * SECOND + write * 10 * MILLISECOND), "x");
        }
        assert_eq!(issue(&mut backer, 3 * SECOND + 510 * MILLISECOND), None);
    }

    #[test]
    fn right_that_was_extended_meanwhile_outlives_an_old_acknowledgement() {
        let mut backer = backer();
        let holder = SiteId::new(1, 0);
        let first = backer.issue(at(2 * SECOND), EPSILON, "x", holder, start(1)).expect("popular");
        let second = backer.issue(at(3 * SECOND), EPSILON, "x", holder, start(1)).expect("popular");
        backer.give_up("x", holder, start(1), first.number);
        assert_eq!(backer.binding(at(3 * SECOND), "x").len(), 1);
        // Nor does one for another life count.
        backer.give_up("x", holder, start(2), second.number);
        assert_eq!(backer.binding(at(3 * SECOND), "x").len(), 1);
        backer.give_up("x", holder, start(1), second.number);
        assert!(backer.binding(at(3 * SECOND), "x").is_empty());
    }

    #[test]
    fn holder_is_asked_for_a_right_so_often_and_no_more() {
        let mut backer = backer();
        let (holder, now) = (SiteId::new(1, 0), at(2 * SECOND));
        backer.issue(now, EPSILON, "x", holder, start(1)).expect("popular");
        assert_eq!(backer.ask_back(now, "x", |_| false).len(), 0);
        assert_eq!(backer.ask_back(now, "x", |_| true).len(), 1);
        assert_eq!(backer.ask_back(at(2 * SECOND + ASK_AGAIN - 1), "x", |_| true).len(), 0, "another waits for it");
        assert_eq!(backer.ask_back(at(2 * SECOND + ASK_AGAIN), "x", |_| true).len(), 1, "the question may be lost");
        // An extension is another right.
        let later = at(2 * SECOND + ASK_AGAIN + 1);
        backer.issue(later, EPSILON, "x", holder, start(1)).expect("popular");
        assert_eq!(backer.ask_back(later, "x", |_| true).len(), 1);
    }

    #[test]
    fn writes_wait_after_a_start_for_what_an_earlier_life_may_have_issued() {
        let mut backer = backer();
        backer.issue(at(2 * SECOND), EPSILON, "x", SiteId::new(1, 0), start(1)).expect("popular");
        let (mark, dirty) = backer.take_mark();
        assert!(dirty);
        let restored = || {
            let mut next = Backer::restore(mark);
            next.resume(at(2 * SECOND), EPSILON, start(2), false);
            next
        };
        let mut next = restored();
        next.note_agreed(at(2 * SECOND), Some(at(2 * SECOND).wall), Some(at(2 * SECOND).wall), EPSILON);
        let over = next.over_at(at(2 * SECOND), "any").expect("something may be out");
        assert!(at(over).wall > mark);
        next.note_agreed(at(over), Some(at(over).wall), Some(at(over).wall), EPSILON);
        assert_eq!(next.over_at(at(over), "any"), None);
        // A clock that is ahead, and that nobody can be asked about, is not believed; for so long as anything may be out.
        let mut alone = restored();
        let ahead = Now { wall: mark + 3_600 * SECOND as i64, mono: 2 * SECOND };
        assert!(alone.over_at(ahead, "any").is_some());
        assert!(alone.over_at(Now { mono: 2 * SECOND + LEASE + 2 * EPSILON, ..ahead }, "any").is_none());
        // A mark that a clock set which was ahead is brought back.
        let mut far = Backer::restore(mark + 3_600 * SECOND as i64);
        far.resume(at(2 * SECOND), EPSILON, start(2), false);
        far.note_agreed(at(2 * SECOND), Some(at(2 * SECOND).wall), Some(at(2 * SECOND).wall), EPSILON);
        assert_eq!(far.take_mark(), (at(3 * SECOND + LEASE + 2 * EPSILON).wall, true));
        let mut lost = Backer::default();
        lost.resume(at(2 * SECOND), EPSILON, start(1), true);
        assert!(lost.over_at(at(2 * SECOND), "any").expect("something may be out") > 2 * SECOND + LEASE);
        // One clock that shows an earlier time is no reason to take it for one that was ahead.
        let mut doubted = restored();
        let (behind, now) = (at(2 * SECOND).wall - 3_600 * SECOND as i64, at(2 * SECOND));
        doubted.note_agreed(now, Some(behind), Some(now.wall), EPSILON);
        assert_eq!(doubted.take_mark(), (mark, false));
        // A clock that was far behind when the storage was lost leaves no mark in the past.
        let mut behind = Backer::default();
        behind.resume(Now { wall: 5, mono: 2 * SECOND }, EPSILON, start(1), true);
        behind.note_agreed(at(2 * SECOND), Some(at(2 * SECOND).wall), Some(at(2 * SECOND).wall), EPSILON);
        assert!(behind.take_mark().0 >= at(2 * SECOND + LEASE).wall);
    }
}
