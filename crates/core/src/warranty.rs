//! State warranties: rights to rely on the value of an object until a time (Warranties, NSDI 2014).
//!
//! The object's home, the **issuer**, issues a warranty together with a value. Its **holder** is a site, which may then
//! judge reads of that value by itself. The issuer keeps the promise: before it changes the value, every warranty on it
//! has ended or was given up.
//!
//! ```text
//!   holder  ── Fetch ──▶  issuer          a read; the issuer may add a right to its answer
//!           ◀── value, right until t ──
//!           ◀── Revoke ──                 a write waits: give it up, if nothing rests on it
//!           ── Revoked ──▶
//! ```
//!
//! # When it ends
//!
//! Each end errs to its own cost, on both of its clocks. The holder relies on it while its wall clock is before `expiry
//! - ε` **and** its monotonic clock has not advanced by the duration since it *sent* the question. The issuer takes it
//! as binding until its wall clock is past `expiry + ε` **and** its monotonic clock is past the duration and 2ε since
//! it was issued. So either pair of clocks suffices to keep the promise, where the holder judges alone (0 phases).
//! Where it asks participants, these refuse by their wall clocks; see [`crate::txn`].
//!
//! # Crashes
//!
//! Warranties live in memory at both ends. A holder that starts again holds nothing, but what its earlier life sent may
//! still rest on what that life held: it never acknowledges for an earlier life. An issuer that starts again does not
//! know what it issued; it knows a durable **mark** above every expiry that it ever sent, and writes wait until that is
//! over, by its wall clock and by the time that a majority agrees has come. One that lost its storage waits for as long
//! as any warranty may last, by both its clocks.
//!
//! # A wall clock that was ahead
//!
//! An end far in the future would keep writes waiting for as long as the clock was ahead. So none is issued that is
//! farther ahead than [`FARTHEST`] of the time that a majority agrees on; and an end, or the mark, that is found to
//! stand farther ahead of it than [`LEASE`] (and a second for clock errors) is brought back to that: whatever rests on
//! it is over by then, because its holder stops by its monotonic clock, and no transaction lasts longer than
//! [`LONGEST`].
//!
//! # How long
//!
//! [`Popularity`] says how long a warranty should last, by object, from how often it is read and written. Most objects
//! get none.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::clock::{MILLISECOND, Now, SECOND};
use crate::id::SiteId;
use crate::right::{End, Mark, Offer, Start, WarrantyNumber};
use crate::stats::Popularity;

/// The longest warranty, in microseconds.
pub const LONGEST: u64 = 10 * SECOND;
/// A site takes another one to have its storage still for at most this long since it sent the last question that the
/// other has answered, by whichever of its clocks shows more, in microseconds.
pub const VOUCHED: u64 = LONGEST;
/// A home that has lost its storage changes no object for this long after it joins, in microseconds. Nothing rests on
/// its earlier answers any more then: other sites use results that rest on them for at most [`VOUCHED`], and what they
/// issue or prepare until then lasts for at most [`LONGEST`]. The second is for the errors of clocks.
pub const LEASE: u64 = VOUCHED + LONGEST + SECOND;
/// An end of a right, or a deadline, that is farther ahead than this was set by a wrong wall clock: none is set farther
/// ahead than [`LONGEST`]. The second between the two is for errors that no site has noticed yet.
pub const FARTHEST: u64 = LONGEST + SECOND;
/// The shortest warranty that is worth issuing, in microseconds.
const SHORTEST: u64 = 20 * MILLISECOND;
/// The pause between two requests to one holder to give a right up, however many writes wait for it.
const ASK_AGAIN: u64 = 200 * MILLISECOND;
/// The durable mark is raised to this far beyond an expiry, so that one sync serves many warranties.
const AHEAD: u64 = SECOND;
/// The most objects whose popularity is remembered; beyond it, those that were not used for longest are forgotten.
const POPULAR: usize = 65_536;
/// No right over an object is issued for this long after a write of it was refused because it may not wait. Otherwise
/// the sites that read the object would hold new rights when the writer tries again.
const RESPITE: u64 = SECOND;
/// The most objects that have a respite at a time; one more ends the respites of all.
const RESPITES: usize = 65_536;
/// The most objects that have warranties at a time; beyond it none is issued.
const ISSUED: usize = 1_000_000;

/// A warranty at its issuer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Issued {
    /// The site that holds it.
    pub holder: SiteId,
    /// The start of the holder that asked for it. A later start of the same site holds nothing of it.
    pub start: Start,
    /// Its number; that of its last extension, if it was extended.
    pub number: WarrantyNumber,
    /// When it ends, if it is not given up.
    end: End,
    /// The monotonic time at which its holder was last asked to give it up; none if never.
    asked_back: Option<u64>,
}

impl Issued {
    /// The monotonic time at which it will be over, if the wall clock advances as fast.
    pub fn over_at(&self, now: Now) -> u64 {
        self.end.over_at(now)
    }
}

/// The warranties that a home has issued over its objects.
#[derive(Clone, Debug, Default)]
pub struct Issuer {
    /// This start of the home; a part of each warranty's number.
    start: Start,
    /// The number of warranties that this start has issued.
    count: u64,
    /// By object, one for each holder and start of it, in the order in which they were issued. No entry is empty.
    issued: BTreeMap<String, Vec<Issued>>,
    /// Objects by the monotonic time at which [`Issuer::sweep`] looks whether their warranties are over.
    ends: BTreeSet<(u64, String)>,
    /// The number of writes of an object that wait or are prepared; no entry is zero. No right over an object with an
    /// entry is issued or extended.
    blocked: FxHashMap<String, u32>,
    /// The monotonic time until which an object has a respite; see [`RESPITE`].
    respites: FxHashMap<String, u64>,
    /// The estimated frequencies of reads and writes, by object.
    popularity: FxHashMap<String, Popularity>,
    /// The mark above every expiry that was ever sent.
    mark: Mark,
    /// Binds like a warranty over every object, for those that an earlier life may have issued; none once that is over.
    before: Option<Before>,
    /// The wall-clock time that a majority agreed had come, at the last [`Issuer::note_agreed`]; none if no majority
    /// was heard.
    agreed: Option<i64>,
    /// The wall-clock time by which everything is over that rests on any right issued so far; none if no majority was
    /// heard.
    farthest: Option<i64>,
}

/// The end of all rights that an earlier life may have issued.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// They bind until the wall clock, and the time that a majority agrees has come, are past this.
    wall: i64,
    /// They also bind until the monotonic clock reaches this.
    mono: u64,
    /// They are over when the monotonic clock reaches this, whatever the wall clocks show: perhaps no majority can be
    /// heard.
    at_most: u64,
}

impl Issuer {
    /// An issuer with this durable mark and no warranties.
    pub fn restore(mark: i64) -> Self {
        Self { mark: Mark::restore(mark), ..Self::default() }
    }

    /// Begins to serve, in this start. For so long from now something may rest on what an earlier incarnation's storage had, which is gone,
    /// and its mark with it: `lost_for`, zero if nothing does.
    pub fn resume(&mut self, now: Now, epsilon: u64, start: Start, lost_for: u64) {
        let until = now.wall.saturating_add_unsigned(lost_for);
        if lost_for > 0 && self.mark.wall() < until {
            self.mark.set(until);
        }

        let mark = self.mark.wall();
        let wall = mark.saturating_add_unsigned(epsilon);
        let mono = now.mono + lost_for;

        // A right lasts no longer than a lease, nor does what rests on it: by the monotonic clock it is over then in
        // any case.
        let at_most = mono + LEASE + 2 * epsilon;
        self.before = (mark > 0).then_some(Before { wall, mono, at_most });
        assert!(self.issued.is_empty(), "a start begins with rights that it has not issued");
        self.start = start;
    }

    /// Takes note of two wall-clock times: `agreed`, which a majority agrees has come, and `at_most`, which a majority
    /// agrees has not passed. An end that stands too far ahead of the second is brought back, because the wall clock
    /// was ahead when it was set.
    pub fn note_agreed(&mut self, now: Now, agreed: Option<i64>, at_most: Option<i64>, epsilon: u64) {
        self.agreed = agreed;
        self.farthest = at_most.map(|at_most| at_most.saturating_add_unsigned(LEASE + SECOND + 2 * epsilon));
        let Some(farthest) = self.farthest else { return };

        // A mark that is too far ahead would keep the writes of the next life waiting for nothing.
        if self.mark.wall() > farthest {
            self.mark.set(farthest);
        }
        if let Some(before) = &mut self.before {
            before.wall = before.wall.min(farthest);
        }

        // The wall clock was behind when the storage was found lost. The rest of the lease must be waited for after
        // another start too, and a start knows only the mark.
        let left = self.before.map_or(0, |before| before.mono.saturating_sub(now.mono));
        let until = at_most.map_or(0, |at_most| at_most.saturating_add_unsigned(left));
        if left > 0 && self.mark.wall().saturating_add_unsigned(SECOND) < until {
            self.mark.set(until);
        }
    }

    /// The durable mark, and true if it has changed since the last call.
    pub fn take_mark(&mut self) -> (i64, bool) {
        self.mark.take()
    }

    /// The number of objects that have warranties.
    pub fn len(&self) -> usize {
        self.issued.len()
    }

    /// True if no object has a warranty.
    pub fn is_empty(&self) -> bool {
        self.issued.is_empty()
    }

    /// Notes reads of an object.
    pub fn note_reads(&mut self, now: Now, name: &str, reads: u32) {
        if let Some(popularity) = self.popularity.get_mut(name) {
            return popularity.note_reads(now.mono, reads);
        }

        // Where there is no room, the half that was used least lately is forgotten: a warranty is only an optimization.
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

    /// Issues a right over the object's present value to `holder`, if one may be issued and is worth it. The mark that
    /// it needs must be durable before the right leaves.
    pub fn issue(&mut self, now: Now, epsilon: u64, name: &str, holder: SiteId, start: Start) -> Option<Offer> {
        let duration = self.popularity.get(name)?.duration(now.mono, LONGEST);
        self.issue_for(now, epsilon, name, holder, start, duration)
    }

    /// Issues a right likewise, of this duration: of what is made to be relied upon, the reads need not be counted first.
    pub fn issue_for(
        &mut self,
        now: Now,
        epsilon: u64,
        name: &str,
        holder: SiteId,
        start: Start,
        duration: u64,
    ) -> Option<Offer> {
        if duration < SHORTEST.max(4 * epsilon) || self.is_blocked(name) || self.issued.len() >= ISSUED {
            return None;
        }

        // A wall clock that is ahead, and that nobody has noticed yet, must not bind this home for as long as it is
        // ahead.
        let expiry = now.wall.saturating_add_unsigned(duration);
        if self.agreed.is_none_or(|agreed| expiry > agreed.saturating_add_unsigned(FARTHEST + 2 * epsilon)) {
            return None;
        }
        if self.check_respite(now, name) {
            return None;
        }

        // A next life knows nothing of this right but the mark, below which it lets writes wait.
        self.mark.cover(expiry, AHEAD);

        self.count += 1;
        let number = WarrantyNumber { start: self.start, count: self.count };
        let offer = Offer { number, expiry, duration };
        let rights = self.issued.entry(name.to_owned()).or_default();
        let mut end = End::new(now, offer, epsilon);

        // An extension never ends before what it extends: the holder may still rely on the older end.
        rights.retain(|right| {
            let same = (right.holder, right.start) == (holder, start);
            if same {
                end = end.extending(right.end);
            }
            !same
        });
        rights.push(Issued { holder, start, number, end, asked_back: None });
        if rights.len() == 1 {
            self.ends.insert((end.mono, name.to_owned()));
        }

        Some(offer)
    }

    /// Begins a write of the object: no right over it is issued until [`Issuer::unblock`].
    pub fn block(&mut self, name: &str) {
        *self.blocked.entry(name.to_owned()).or_default() += 1;
    }

    /// Ends a write of the object, which was applied or given up.
    pub fn unblock(&mut self, name: &str) {
        match self.blocked.get_mut(name) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => drop(self.blocked.remove(name)),
            None => panic!("a write of {name} ends that never began"),
        }
    }

    /// True if a write of the object waits or is prepared.
    pub fn is_blocked(&self, name: &str) -> bool {
        self.blocked.contains_key(name)
    }

    /// The rights over an object whose holders are to be asked now to give them up: those that are `worth` it and were
    /// not asked back a moment ago (`ASK_AGAIN`), also not for another write of the same object.
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

    /// Gives an object a respite, because a write of it was refused that may not wait for rights: none is issued
    /// for a while (`RESPITE`).
    pub fn give_respite(&mut self, now: Now, name: &str) {
        if self.respites.len() >= RESPITES {
            self.respites.clear();
        }
        self.respites.insert(name.to_owned(), now.mono.saturating_add(RESPITE));
    }

    /// True if the object has a respite. Forgets one that is over.
    fn check_respite(&mut self, now: Now, name: &str) -> bool {
        let is_over = self.respites.get(name).map(|until| now.mono >= *until);
        if is_over == Some(true) {
            self.respites.remove(name);
        }
        is_over == Some(false)
    }

    /// The rights over an object that were issued and not given up; some may be over.
    pub fn issued_over(&self, name: &str) -> &[Issued] {
        self.issued.get(name).map_or(&[], Vec::as_slice)
    }

    /// The rights over an object that still bind. Forgets those that are over.
    pub fn binding(&mut self, now: Now, name: &str) -> &[Issued] {
        let farthest = self.farthest;
        let Some(rights) = self.issued.get_mut(name) else { return &[] };

        // An end that a wrong wall clock set binds no longer than everything that may rest on the right.
        if let Some(farthest) = farthest {
            rights.iter_mut().for_each(|right| right.end.wall = right.end.wall.min(farthest));
        }

        // Only here does a right end by time, and by both clocks: a write that went ahead sooner would break the
        // promise.
        rights.retain(|right| !right.end.is_over(now));
        if rights.is_empty() {
            self.issued.remove(name);
        }

        self.issued.get(name).map_or(&[], Vec::as_slice)
    }

    /// The object of the right with this number, if there is one; for invariants.
    pub fn object_of(&self, number: WarrantyNumber) -> Option<&String> {
        let is_it = |rights: &Vec<Issued>| rights.iter().any(|right| right.number == number);
        self.issued.iter().find(|(_, rights)| is_it(rights)).map(|(name, _)| name)
    }

    /// True if rights that an earlier life may have issued still bind.
    pub fn is_bound_by_the_past(&self, now: Now) -> bool {
        self.before.is_some_and(|before| {
            // The wall clock may have been right when the rights were issued, and be ahead now: it is not believed
            // alone.
            let is_past = self.agreed.is_some_and(|agreed| agreed.min(now.wall) > before.wall);
            !(is_past && now.mono >= before.mono) && now.mono < before.at_most
        })
    }

    /// The monotonic time at which everything that an earlier life may have issued will be over, by what is known now;
    /// none if it is over.
    pub fn past_over_at(&mut self, now: Now) -> Option<u64> {
        if !self.is_bound_by_the_past(now) {
            self.before = None;
        }
        let Before { wall, mono, at_most } = self.before?;

        let shown = self.agreed.map_or(now.wall, |agreed| agreed.min(now.wall));
        let missing = u64::try_from(wall.saturating_sub(shown)).unwrap_or(0);

        // Perhaps only the agreement of a majority is missing, which comes soon.
        Some(mono.max(now.mono + missing.max(MILLISECOND) + 1).min(at_most))
    }

    /// The monotonic time at which all rights over an object will be over, if none is given up; none if none binds.
    pub fn over_at(&mut self, now: Now, name: &str) -> Option<u64> {
        let before = self.past_over_at(now);
        let issued = self.binding(now, name).iter().map(|right| right.over_at(now)).max();
        before.max(issued)
    }

    /// Ends the rights over an object that a start of a holder gave up: those up to this number. A later one was issued
    /// since.
    pub fn give_up(&mut self, name: &str, holder: SiteId, start: Start, number: WarrantyNumber) {
        let Some(rights) = self.issued.get_mut(name) else { return };

        // The number tells an extension apart that was issued after the holder gave the earlier right up.
        rights.retain(|right| (right.holder, right.start) != (holder, start) || right.number > number);
        if rights.is_empty() {
            self.issued.remove(name);
        }
    }

    /// The monotonic time at which [`Issuer::sweep`] has something to do.
    pub fn deadline(&self) -> Option<u64> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// Forgets rights that are over.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Incarnation, Life};
    use crate::right::HeldRight;

    const EPSILON: u64 = 1_000;

    fn at(micros: u64) -> Now {
        Now { wall: 1 << 50 | micros as i64, mono: micros }
    }

    fn start(life: u64) -> Start {
        Start { incarnation: Incarnation(1), life: Life(life) }
    }

    /// An issuer of an object that was read often enough.
    fn issuer() -> Issuer {
        let mut issuer = Issuer::default();
        issuer.resume(at(0), EPSILON, start(1), 0);
        issuer.note_agreed(at(0), Some(at(0).wall), Some(at(0).wall), EPSILON);
        for read in 1..=5 {
            issuer.note_reads(at(read * 100 * MILLISECOND), "x", 1);
        }
        issuer
    }

    #[test]
    fn right_binds_its_backer_for_longer_than_its_holder_relies_on_it() {
        let mut issuer = issuer();
        let (asked, issued) = (at(2 * SECOND), at(2 * SECOND + 40 * MILLISECOND));
        let offer = issuer.issue(issued, EPSILON, "x", SiteId::new(1, 0), start(1)).expect("popular");
        let held = HeldRight::new(offer, asked.mono);
        for step in 0..200 {
            let now = at(2 * SECOND + step * 20 * MILLISECOND);
            let skewed = |offset: i64| Now { wall: now.wall + offset, mono: now.mono };
            for (ours, theirs) in [(0, 0), (EPSILON as i64, -(EPSILON as i64)), (-(EPSILON as i64), EPSILON as i64)] {
                let live = held.is_live(skewed(ours), EPSILON);
                let binding = !issuer.binding(skewed(theirs), "x").is_empty();
                assert!(!live || binding, "relied on after its issuer has forgotten it, at {now:?}");
            }
        }
        assert!(issuer.binding(at(20 * SECOND), "x").is_empty());
    }

    #[test]
    fn right_is_not_issued_while_a_write_is_pending_nor_for_what_is_written_too_often() {
        let mut issuer = issuer();
        let issue = |issuer: &mut Issuer, micros| issuer.issue(at(micros), EPSILON, "x", SiteId::new(1, 0), start(1));
        issuer.block("x");
        assert_eq!(issue(&mut issuer, 2 * SECOND), None);
        issuer.unblock("x");
        assert!(issue(&mut issuer, 2 * SECOND).is_some());
        for write in 0..50 {
            issuer.note_write(at(3 * SECOND + write * 10 * MILLISECOND), "x");
        }
        assert_eq!(issue(&mut issuer, 3 * SECOND + 510 * MILLISECOND), None);
    }

    #[test]
    fn right_that_was_extended_meanwhile_outlives_an_old_acknowledgement() {
        let mut issuer = issuer();
        let holder = SiteId::new(1, 0);
        let first = issuer.issue(at(2 * SECOND), EPSILON, "x", holder, start(1)).expect("popular");
        let second = issuer.issue(at(3 * SECOND), EPSILON, "x", holder, start(1)).expect("popular");
        issuer.give_up("x", holder, start(1), first.number);
        assert_eq!(issuer.binding(at(3 * SECOND), "x").len(), 1);
        // Nor does one for another life count.
        issuer.give_up("x", holder, start(2), second.number);
        assert_eq!(issuer.binding(at(3 * SECOND), "x").len(), 1);
        issuer.give_up("x", holder, start(1), second.number);
        assert!(issuer.binding(at(3 * SECOND), "x").is_empty());
    }

    #[test]
    fn holder_is_asked_for_a_right_so_often_and_no_more() {
        let mut issuer = issuer();
        let (holder, now) = (SiteId::new(1, 0), at(2 * SECOND));
        issuer.issue(now, EPSILON, "x", holder, start(1)).expect("popular");
        assert_eq!(issuer.ask_back(now, "x", |_| false).len(), 0);
        assert_eq!(issuer.ask_back(now, "x", |_| true).len(), 1);
        assert_eq!(issuer.ask_back(at(2 * SECOND + ASK_AGAIN - 1), "x", |_| true).len(), 0, "another waits for it");
        assert_eq!(issuer.ask_back(at(2 * SECOND + ASK_AGAIN), "x", |_| true).len(), 1, "the question may be lost");
        // An extension is another right.
        let later = at(2 * SECOND + ASK_AGAIN + 1);
        issuer.issue(later, EPSILON, "x", holder, start(1)).expect("popular");
        assert_eq!(issuer.ask_back(later, "x", |_| true).len(), 1);
    }

    #[test]
    fn writes_wait_after_a_start_for_what_an_earlier_life_may_have_issued() {
        let mut issuer = issuer();
        issuer.issue(at(2 * SECOND), EPSILON, "x", SiteId::new(1, 0), start(1)).expect("popular");
        let (mark, dirty) = issuer.take_mark();
        assert!(dirty);
        let restored = || {
            let mut next = Issuer::restore(mark);
            next.resume(at(2 * SECOND), EPSILON, start(2), 0);
            next
        };
        let mut next = restored();
        next.note_agreed(at(2 * SECOND), Some(at(2 * SECOND).wall), Some(at(2 * SECOND).wall), EPSILON);
        let over = next.over_at(at(2 * SECOND), "any").expect("something may be out");
        assert!(at(over).wall > mark);
        next.note_agreed(at(over), Some(at(over).wall), Some(at(over).wall), EPSILON);
        assert_eq!(next.over_at(at(over), "any"), None);
        // A clock that is ahead, and that nobody can be asked about, is not believed; for so long as anything may be
        // out.
        let mut alone = restored();
        let ahead = Now { wall: mark + 3_600 * SECOND as i64, mono: 2 * SECOND };
        assert!(alone.over_at(ahead, "any").is_some());
        assert!(alone.over_at(Now { mono: 2 * SECOND + LEASE + 2 * EPSILON, ..ahead }, "any").is_none());
        // A mark that a clock set which was ahead is brought back.
        let mut far = Issuer::restore(mark + 3_600 * SECOND as i64);
        far.resume(at(2 * SECOND), EPSILON, start(2), 0);
        far.note_agreed(at(2 * SECOND), Some(at(2 * SECOND).wall), Some(at(2 * SECOND).wall), EPSILON);
        assert_eq!(far.take_mark(), (at(3 * SECOND + LEASE + 2 * EPSILON).wall, true));
        let mut lost = Issuer::default();
        lost.resume(at(2 * SECOND), EPSILON, start(1), LEASE + 2 * EPSILON);
        assert!(lost.over_at(at(2 * SECOND), "any").expect("something may be out") > 2 * SECOND + LEASE);
        // One clock that shows an earlier time is no reason to take it for one that was ahead.
        let mut doubted = restored();
        let (behind, now) = (at(2 * SECOND).wall - 3_600 * SECOND as i64, at(2 * SECOND));
        doubted.note_agreed(now, Some(behind), Some(now.wall), EPSILON);
        assert_eq!(doubted.take_mark(), (mark, false));
        // A clock that was far behind when the storage was lost leaves no mark in the past.
        let mut behind = Issuer::default();
        behind.resume(Now { wall: 5, mono: 2 * SECOND }, EPSILON, start(1), LEASE);
        behind.note_agreed(at(2 * SECOND), Some(at(2 * SECOND).wall), Some(at(2 * SECOND).wall), EPSILON);
        assert!(behind.take_mark().0 >= at(2 * SECOND + LEASE).wall);
    }
}
