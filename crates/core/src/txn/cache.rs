//! Copies of other homes' objects, and the warranties held over them.
//!
//! A copy without a right may be stale: a transaction that used it is validated at the object's home. A copy under a
//! live right is up to date. A right is **pinned** while a transaction that rests on it is under way, and is not given
//! up then.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::clock::{Now, SECOND};
use crate::id::{Incarnation, OperationId};
use crate::object::message::Given;
use crate::object::treaty::treaty_name;
use crate::object::{ObjectKey, Seen, Value, Version};
use crate::right::{HeldRight, WarrantyNumber};

/// The most copies.
const COPIES: usize = 200_000;
/// The most bytes of copies, names and values.
const BYTES: usize = 64 << 20;
/// The memory of a copy besides its name and value, in bytes.
const OVERHEAD: usize = 200;
/// The most doubts that are counted about one object, so that it is trusted again after this many reads that were up to
/// date.
const MOST_DOUBTS: u8 = 4;
/// The most objects whose copies are in doubt; beyond it, all are trusted again.
const DOUBTED: usize = 65_536;
/// The part of a right's duration, in tenths, below which it is renewed when it is used.
const RENEW_TENTHS: u64 = 3;
/// The right over a treaty is renewed for this long after its last use, in microseconds. A treaty stands for what its users would else
/// have to ask for each time, however seldom that is; and nobody writes it as long as it is valid.
const TREATY_IN_USE: u64 = 3600 * SECOND;
/// The most treaties whose rights are renewed in one go.
const RENEWED: usize = 8192;

/// Copies of objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    /// The copies, by object.
    copies: FxHashMap<ObjectKey, Copy>,
    /// The key of each copy once, at its `place`. A clock hand goes round, and drops copies that were not used since it
    /// last came by.
    order: Vec<ObjectKey>,
    /// The place in `order` at which the clock hand is.
    hand: usize,
    /// The size of all copies; at most [`BYTES`], but for pinned copies.
    bytes: usize,
    /// The treaties of which there are copies that were used lately.
    treaties: BTreeSet<ObjectKey>,
    /// By object, by how much more often copies were found stale than up to date, of late. Between 1 and
    /// [`MOST_DOUBTS`]: objects whose copies are mostly up to date are not here.
    doubts: FxHashMap<ObjectKey, u8>,
    /// By home region, the highest number of a right that was given up: none with a number up to this is accepted.
    revoked: FxHashMap<u16, WarrantyNumber>,
    /// By home region, the highest number of a right that was offered.
    highest: FxHashMap<u16, WarrantyNumber>,
}

/// A copy of one object.
#[derive(Clone, Debug)]
struct Copy {
    /// The value and its version.
    seen: Seen,
    /// The last right over that version, live or over.
    right: Option<HeldRight>,
    /// The place of its key in the order.
    place: usize,
    /// The number of reads since its home was last told.
    reads: u32,
    /// The monotonic time of its last use.
    used: u64,
    /// True if it was used since the clock hand last came by.
    is_recent: bool,
    /// True while a question that is to renew its right is under way.
    is_renewing: bool,
    /// The transactions under way that rest on its right.
    pins: Vec<Pin>,
    /// The number up to which rights are to be given up as soon as nothing rests on them; none if none was asked back.
    asked_back: Option<WarrantyNumber>,
}

/// A transaction that rests on a right.
#[derive(Clone, Copy, Debug)]
struct Pin {
    /// The transaction.
    id: OperationId,
    /// The pin ends by itself when both clocks are past this. Its participants refuse by their clocks, and this site's
    /// wall clock may be set ahead meanwhile, so one clock alone is not believed.
    until: Now,
}

impl Copy {
    /// True if it has a right that is over, or soon will be, and no question about it is under way.
    fn is_to_renew(&self, now: Now, epsilon: u64) -> bool {
        let is_soon = |right: HeldRight| right.left(now, epsilon) * 10 < right.duration * RENEW_TENTHS;
        !self.is_renewing && self.right.is_some_and(is_soon)
    }
}

impl Pin {
    /// True if both clocks are past its end.
    fn is_over(&self, now: Now) -> bool {
        now.wall >= self.until.wall && now.mono >= self.until.mono
    }
}

/// A copy that is used.
#[derive(Debug)]
pub(super) struct Used<'a> {
    /// The value and its version.
    pub(super) seen: &'a Seen,
    /// True if its home is to be asked for a right now. It is true once for each question.
    pub(super) renew: bool,
}

/// The memory that a copy takes, about, in bytes.
fn size(key: &ObjectKey, seen: &Seen) -> usize {
    OVERHEAD + 2 * key.name.len() + seen.value.as_ref().map_or(0, Value::size)
}

impl Cache {
    /// The number of copies.
    pub(super) fn len(&self) -> usize {
        self.copies.len()
    }

    /// A copy to be read: any, or if `fresh` only one under a live right. A read for upkeep does not count as a use.
    pub(super) fn read(
        &mut self,
        now: Now,
        epsilon: u64,
        key: &ObjectKey,
        fresh: bool,
        upkeep: bool,
    ) -> Option<Used<'_>> {
        let is_doubted = self.is_doubted(key);
        let copy = self.copies.get_mut(key)?;
        let live = copy.right.filter(|right| right.is_live(now, epsilon));
        if !upkeep {
            copy.used = now.mono;
        }
        if (fresh || is_doubted) && live.is_none() {
            // It was let go, perhaps: it is in use again.
            if treaty_name(&key.name).is_some() {
                self.treaties.insert(key.clone());
            }
            return None;
        }
        copy.is_recent = true;
        if upkeep {
            return Some(Used { seen: &copy.seen, renew: false });
        }

        // A right is renewed before it ends, so that reads of a popular object never wait. Of a copy without a right
        // the home hears now and then how often it is read, and may think it worth one.
        copy.reads = copy.reads.saturating_add(1);
        let is_to_tell = copy.right.is_none() && !copy.is_renewing && copy.reads.is_power_of_two() && copy.reads >= 4;
        let renew = is_to_tell || copy.is_to_renew(now, epsilon);
        copy.is_renewing |= renew;
        Some(Used { seen: &copy.seen, renew })
    }

    /// Counts a doubt: a transaction found its copy stale, or about to be.
    pub(super) fn doubt(&mut self, key: &ObjectKey) {
        if self.doubts.len() >= DOUBTED {
            self.doubts.clear();
        }
        let doubts = self.doubts.entry(key.clone()).or_default();
        *doubts = (*doubts + 1).min(MOST_DOUBTS);
    }

    /// Takes a doubt back: a copy turned out to be up to date.
    fn trust(&mut self, key: &ObjectKey) {
        if let Some(doubts) = self.doubts.get_mut(key) {
            *doubts -= 1;
            if *doubts == 0 {
                self.doubts.remove(key);
            }
        }
    }

    /// True if copies of it were found stale more often than up to date.
    pub(super) fn is_doubted(&self, key: &ObjectKey) -> bool {
        self.doubts.contains_key(key)
    }

    /// True if copies of it were found stale more often than up to date, by at least two.
    pub(super) fn is_contended(&self, key: &ObjectKey) -> bool {
        self.doubts.get(key).is_some_and(|doubts| *doubts > 1)
    }

    /// The answer to a question that was to renew a copy was lost: another may be asked.
    pub(super) fn not_renewed(&mut self, key: &ObjectKey) {
        if let Some(copy) = self.copies.get_mut(key) {
            copy.is_renewing = false;
        }
    }

    /// True if there are treaties whose rights are to be renewed from time to time.
    pub(super) fn has_treaties(&self) -> bool {
        !self.treaties.is_empty()
    }

    /// Treaties in use over which the rights are soon to end, or have ended and were not asked back. Each is named once for each question.
    pub(super) fn treaties_to_renew(&mut self, now: Now, epsilon: u64) -> Vec<ObjectKey> {
        let Self { copies, treaties, .. } = self;
        treaties.retain(|key| now.mono < copies[key].used + TREATY_IN_USE);
        let is_due = |key: &&ObjectKey| copies[*key].is_to_renew(now, epsilon);
        let due: Vec<ObjectKey> = treaties.iter().filter(is_due).take(RENEWED).cloned().collect();
        for key in &due {
            copies.get_mut(key).expect("a treaty of which there is a copy").is_renewing = true;
        }
        due
    }

    /// Takes the number of reads of a copy since its home was told.
    pub(super) fn take_reads(&mut self, key: &ObjectKey) -> u32 {
        self.copies.get_mut(key).map_or(0, |copy| std::mem::take(&mut copy.reads))
    }

    /// The right by which this version may be relied upon now, if there is one.
    pub(super) fn right(&self, now: Now, epsilon: u64, key: &ObjectKey, version: Version) -> Option<HeldRight> {
        // A right that was asked back is kept only for the transactions that rest on it already. A new one would hold
        // up the home's writer once more, and so on without end.
        let copy = self.copies.get(key).filter(|copy| copy.seen.version == version && copy.asked_back.is_none())?;
        copy.right.filter(|right| right.is_live(now, epsilon))
    }

    /// The copy of an object that a live right is over; none if a transaction may not come to rest on it now.
    pub(super) fn relied(&self, now: Now, epsilon: u64, key: &ObjectKey) -> Option<&Seen> {
        let seen = &self.copies.get(key)?.seen;
        self.right(now, epsilon, key, seen.version).map(|_| seen)
    }

    /// The right over an object, live or not.
    pub(super) fn held(&self, key: &ObjectKey) -> Option<HeldRight> {
        self.copies.get(key)?.right
    }

    /// Pins the right over an object for a transaction, until it is decided or both clocks are past `until`.
    pub(super) fn pin(&mut self, key: &ObjectKey, id: OperationId, until: Now) {
        if let Some(copy) = self.copies.get_mut(key) {
            copy.pins.push(Pin { id, until });
        }
    }

    /// Ends the pin of a decided transaction. Returns the number up to which rights may be given up now, if they were
    /// asked back.
    pub(super) fn unpin(&mut self, now: Now, key: &ObjectKey, id: OperationId) -> Option<WarrantyNumber> {
        let copy = self.copies.get_mut(key)?;
        copy.pins.retain(|pin| pin.id != id && !pin.is_over(now));
        if copy.pins.is_empty() { copy.asked_back.take() } else { None }
    }

    /// Stores a value with the right that came with it, in answer to a question that was sent at `asked`.
    pub(super) fn store(&mut self, now: Now, epsilon: u64, key: ObjectKey, given: Given, asked: u64) {
        let Given { seen, right: offer } = given;
        let revoked = self.revoked.get(&key.home).copied().unwrap_or_default();
        if let Some(offer) = offer {
            let highest = self.highest.entry(key.home).or_default();
            *highest = offer.number.max(*highest);
        }

        // A right with a number that was given up already is not used: the answer was overtaken by the revocation, and
        // the home has let the right end, and may have written since.
        let right = offer.filter(|offer| offer.number > revoked).map(|offer| HeldRight::new(offer, asked));
        let bytes = size(&key, &seen);
        match self.copies.get(&key).map(|copy| copy.seen.version == seen.version) {
            Some(true) => self.trust(&key),
            Some(false) if self.doubts.contains_key(&key) => self.doubt(&key),
            _ => {}
        }

        let Some(copy) = self.copies.get_mut(&key) else {
            self.bytes += bytes;
            let copy = Copy {
                seen,
                right,
                place: self.order.len(),
                reads: 0,
                used: now.mono,
                is_recent: true,
                is_renewing: false,
                pins: Vec::new(),
                asked_back: None,
            };
            if treaty_name(&key.name).is_some() {
                self.treaties.insert(key.clone());
            }
            self.order.push(key.clone());
            self.copies.insert(key, copy);
            return self.shrink();
        };

        // A copy under a live right is up to date: an answer that brings no newer right was overtaken by the one that
        // did, and its value may be older.
        copy.is_renewing = false;
        let is_newer = right.is_some_and(|right| copy.right.is_none_or(|held| right.number > held.number));
        if is_newer || !copy.right.is_some_and(|held| held.is_live(now, epsilon)) {
            self.bytes = self.bytes - size(&key, &copy.seen) + bytes;
            copy.right = right;
            copy.seen = seen;
            self.shrink();
        }
    }

    /// Gives up the rights over an object that its home asks back, up to this number. Returns true if they are given up
    /// at once; if not, a transaction rests on them, and [`Cache::unpin`] will say when they are.
    pub(super) fn give_up(&mut self, now: Now, key: &ObjectKey, number: WarrantyNumber) -> bool {
        // Noted first, whether there is a copy or not: an answer with this right may still be on its way.
        let revoked = self.revoked.entry(key.home).or_default();
        *revoked = number.max(*revoked);
        let Some(copy) = self.copies.get_mut(key) else { return true };
        if copy.right.is_some_and(|right| right.number <= number) {
            copy.right = None;
        }

        // From here on no new transaction rests on it. Those that are under way may have been prepared elsewhere on the
        // strength of it, so its home must not take it as over before they are decided.
        copy.pins.retain(|pin| !pin.is_over(now));
        if copy.pins.is_empty() {
            return true;
        }
        copy.asked_back = copy.asked_back.max(Some(number));
        false
    }

    /// Gives up this site's rights over objects of a home that it is about to write, unless one is pinned. Returns the
    /// number up to which they are given up.
    pub(super) fn release<'a>(
        &mut self,
        now: Now,
        home: u16,
        names: impl Iterator<Item = &'a String>,
    ) -> WarrantyNumber {
        let number = self.highest.get(&home).copied().unwrap_or_default();
        let mut all = true;
        for name in names {
            all &= self.give_up_for_write(now, &ObjectKey { home, name: name.clone() });
        }

        // All or nothing: one number speaks for all of them, and the home takes every right up to it as over.
        if !all {
            return WarrantyNumber::default();
        }
        let revoked = self.revoked.entry(home).or_default();
        *revoked = number.max(*revoked);
        number
    }

    fn give_up_for_write(&mut self, now: Now, key: &ObjectKey) -> bool {
        let Some(copy) = self.copies.get_mut(key) else { return true };
        copy.pins.retain(|pin| !pin.is_over(now));
        if copy.pins.is_empty() {
            copy.right = None;
        }
        copy.pins.is_empty()
    }

    /// Drops a copy that is known to be stale; one that is pinned only loses its right.
    pub(super) fn drop_copy(&mut self, key: &ObjectKey) {
        let Some(copy) = self.copies.get_mut(key) else { return };
        if copy.pins.is_empty() {
            let place = copy.place;
            self.remove(place);
        } else {
            copy.right = None;
        }
    }

    /// Drops the copies of a home's earlier incarnations: their values were lost with it.
    pub(super) fn forget_home(&mut self, home: u16, incarnation: Incarnation) {
        // From the end on: what takes the place of one that is removed was looked at before.
        for place in (0..self.order.len()).rev() {
            let key = &self.order[place];
            if key.home == home && self.copies[key].seen.version.incarnation < incarnation {
                self.remove(place);
            }
        }
    }

    /// Removes the copy at this place of the order; the last one takes its place.
    fn remove(&mut self, place: usize) {
        let key = self.order.swap_remove(place);
        let copy = self.copies.remove(&key).expect("what is in the order is there");
        self.treaties.remove(&key);
        self.bytes -= size(&key, &copy.seen);
        if let Some(moved) = self.order.get(place) {
            self.copies.get_mut(moved).expect("what is in the order is there").place = place;
        }
    }

    /// Drops copies that were not used lately until the bounds are kept, but for pinned ones.
    fn shrink(&mut self) {
        debug_assert!(self.order.len() == self.copies.len(), "a copy is not in the order, and could never be dropped");

        // After two rounds, each copy that is left is pinned.
        for _ in 0..2 * self.order.len() {
            if self.copies.len() <= COPIES && self.bytes <= BYTES {
                return;
            }
            if self.hand >= self.order.len() {
                self.hand = 0;
            }
            let copy = self.copies.get_mut(&self.order[self.hand]).expect("what is in the order is there");
            if !std::mem::take(&mut copy.is_recent) && copy.pins.is_empty() {
                self.remove(self.hand);
            }

            // Also past what took the place of one that was removed: that is the newest.
            self.hand += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Life;
    use crate::object::message::Offer;
    use crate::object::treaty::treaty_key;
    use crate::right::Start;

    const NOW: Now = Now { wall: 1 << 50, mono: 1_000_000 };
    const EPSILON: u64 = 1_000;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(1, name)
    }

    /// A version of an object with a value of so many bytes, and a right over it.
    fn given(number: u64, size: usize) -> Given {
        let start = Start { incarnation: Incarnation(1), life: Life(1) };
        let offer = Offer {
            number: WarrantyNumber { start, count: number },
            expiry: NOW.wall + 10_000_000,
            duration: 10_000_000,
        };
        let version = Version { incarnation: Incarnation(1), number };
        Given { seen: Seen { version, value: Some(Value::Bytes(vec![0; size].into())) }, right: Some(offer) }
    }

    fn store(cache: &mut Cache, name: &str, number: u64, size: usize) {
        cache.store(NOW, EPSILON, key(name), given(number, size), NOW.mono);
    }

    #[test]
    fn copy_that_is_dropped_and_taken_in_again_and_again_can_still_be_kept() {
        let mut cache = Cache::default();
        for number in 1..=2 * COPIES as u64 + 1 {
            cache.drop_copy(&key("contended"));
            store(&mut cache, "contended", number, 1);
        }
        assert_eq!(cache.len(), 1);
        assert!(cache.held(&key("contended")).is_some());
    }

    #[test]
    fn copies_that_are_rested_on_and_the_newest_stay_at_the_bound() {
        let size = BYTES / 16;
        let mut cache = Cache::default();
        store(&mut cache, "pinned", 1, size);
        cache.pin(&key("pinned"), OperationId::default(), Now { wall: i64::MAX, mono: u64::MAX });
        for number in 2..100 {
            store(&mut cache, &number.to_string(), number, size);
            assert!(cache.held(&key(&number.to_string())).is_some(), "the newest stays");
            assert!(cache.held(&key("pinned")).is_some());
            if number % 3 == 0 {
                cache.drop_copy(&key(&(number - 1).to_string()));
            }
            assert!(cache.bytes <= BYTES);
            assert_eq!(cache.order.len(), cache.len());
        }
        cache.forget_home(1, Incarnation(2));
        assert_eq!((cache.len(), cache.order.len(), cache.bytes), (0, 0, 0));
    }

    #[test]
    fn copies_that_were_used_outlast_others_at_the_bound() {
        let mut cache = Cache::default();
        // The last one is too much; all are as if they had not been used since.
        (1..=16).for_each(|number| store(&mut cache, &number.to_string(), number, BYTES / 16));
        assert!(cache.held(&key("1")).is_none());
        for used in ["2", "3", "5"] {
            cache.read(NOW, EPSILON, &key(used), false, true).expect("kept");
        }
        (17..=18).for_each(|number| store(&mut cache, &number.to_string(), number, BYTES / 16));
        let lost: Vec<u64> = (2..=18).filter(|number| cache.held(&key(&number.to_string())).is_none()).collect();
        assert_eq!(lost, [4, 6]);
    }

    #[test]
    fn right_over_a_treaty_is_renewed_as_long_as_the_treaty_is_in_use() {
        let (mut cache, treaty) = (Cache::default(), treaty_key(1, "stock"));
        let at = |seconds: u64| Now { wall: NOW.wall + (seconds * SECOND) as i64, mono: NOW.mono + seconds * SECOND };
        let expected = |key: &ObjectKey| vec![key.clone()];
        cache.store(NOW, EPSILON, treaty.clone(), given(1, 1), NOW.mono);
        store(&mut cache, "other", 2, 1);
        assert_eq!(cache.treaties_to_renew(at(5), EPSILON), []);
        assert_eq!(cache.treaties_to_renew(at(8), EPSILON), expected(&treaty));
        assert_eq!(cache.treaties_to_renew(at(8), EPSILON), [], "a question is under way");
        cache.not_renewed(&treaty);
        assert_eq!(cache.treaties_to_renew(at(20), EPSILON), expected(&treaty), "though it has ended");

        // What was asked back is not asked for again, and what nobody uses is let go.
        cache.not_renewed(&treaty);
        assert!(cache.give_up(at(21), &treaty, given(1, 1).right.expect("it has one").number));
        assert_eq!(cache.treaties_to_renew(at(22), EPSILON), []);
        assert!(cache.has_treaties());
        assert_eq!(cache.treaties_to_renew(at(3601), EPSILON), []);
        assert!(!cache.has_treaties());
        assert!(cache.read(at(3602), EPSILON, &treaty, true, false).is_none());
        assert!(cache.has_treaties(), "it is in use again");
    }

    #[test]
    fn copies_that_are_all_rested_on_may_exceed_the_bound() {
        let mut cache = Cache::default();
        store(&mut cache, "x", 1, 1);
        cache.pin(&key("x"), OperationId::default(), Now { wall: i64::MAX, mono: u64::MAX });
        store(&mut cache, "x", 2, BYTES);
        assert!(cache.bytes > BYTES);
        store(&mut cache, "y", 3, 1);
        assert_eq!((cache.held(&key("x")).is_some(), cache.len()), (true, 1));
    }
}
