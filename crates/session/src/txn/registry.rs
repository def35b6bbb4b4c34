//! The memoized functions that a client knows, and the calls that it does not propose for a while. Results are not kept here: they are
//! objects, and what a run computed and did not propose is dropped with the run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackline_core::object::treaty::Statement;
use slackline_core::object::{CALL_MARK, ObjectKey};

use super::failure::TxnError;
use super::treaty::Placed;
use crate::port::Pending;
use crate::time::{Time, jittered};

/// The first pause before a call whose registration failed is proposed again, and the longest; each is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The most calls whose failed proposals are remembered, and proposals under way.
const REFUSED: usize = 4096;
const PROPOSALS: usize = 64;
/// A function is run twice when its result is proposed, to see if it is deterministic: the first few times, then one time in this many.
const FIRST_CHECKS: u32 = 3;
const CHECK_ONE_IN: u32 = 64;

/// A memoized function whose types are not known; it reads through a handle `H`.
pub trait Function<H>: Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// The fingerprint of its code.
    fn fingerprint(&self) -> u64;
    /// Runs it, with arguments and result as JSON.
    fn run(&self, handle: H, arguments: &str) -> Pending<Result<Vec<u8>, TxnError>>;
}

/// A function's name and fingerprint.
type Id = (String, u64);

/// The function that a call is of, and its arguments, as the call's name has them.
pub(super) fn parse(call: &str) -> Option<(Id, &str)> {
    let (name, rest) = call.strip_prefix(CALL_MARK)?.split_once('#')?;
    let (fingerprint, arguments) = rest.split_at_checked(16)?;
    Some(((name.to_owned(), u64::from_str_radix(fingerprint, 16).ok()?), arguments))
}

/// The memoized functions that a client knows.
pub struct Registry<H: 'static> {
    known: Mutex<Known<H>>,
}

struct Known<H: 'static> {
    /// Functions from when they are first used or made known; none is ever forgotten.
    functions: BTreeMap<Id, Entry<H>>,
    /// Calls that were proposed in vain: until when they are left alone, and for how long the next time. At most [`REFUSED`].
    refused: BTreeMap<ObjectKey, (Time, Duration)>,
    /// Statements of treaties that were found false, by the treaty: the last one, and what is true instead, as a treaty. At most
    /// [`REFUSED`].
    denials: BTreeMap<ObjectKey, (Statement, Placed)>,
    /// The number of proposals under way; at most [`PROPOSALS`].
    under_way: usize,
    /// True once [`Registry::turn_off`] was called.
    is_off: bool,
}

struct Entry<H: 'static> {
    function: &'static dyn Function<H>,
    /// False from when it gave two results on the same reads.
    is_deterministic: bool,
    /// The number of its results that were to be proposed; wraps.
    proposals: u32,
}

impl<H> fmt::Debug for Registry<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("functions", &self.known().functions.keys()).finish_non_exhaustive()
    }
}

impl<H> Registry<H> {
    fn known(&self) -> MutexGuard<'_, Known<H>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a function in. True if its results may be kept.
    pub fn add(&self, function: &'static dyn Function<H>) -> bool {
        let mut known = self.known();

        // One that is known already keeps what was found out about it.
        let id = (function.name().to_owned(), function.fingerprint());
        let entry = Entry { function, is_deterministic: true, proposals: 0 };
        let is_deterministic = known.functions.entry(id).or_insert(entry).is_deterministic;
        is_deterministic && !known.is_off
    }

    /// The function of a call, if it is known and deterministic as far as is known.
    pub(super) fn find(&self, id: &Id) -> Option<&'static dyn Function<H>> {
        let known = self.known();
        known.functions.get(id).filter(|entry| entry.is_deterministic).map(|entry| entry.function)
    }

    /// Counts a result that is to be proposed. True if this one is to be computed twice.
    pub(super) fn count_for_check(&self, id: &Id) -> bool {
        let mut known = self.known();
        let Some(entry) = known.functions.get_mut(id) else { return false };
        entry.proposals = entry.proposals.wrapping_add(1);
        entry.proposals <= FIRST_CHECKS || entry.proposals.is_multiple_of(CHECK_ONE_IN)
    }

    /// A function gave two results on the same reads.
    pub(super) fn distrust(&self, id: &Id) {
        if let Some(entry) = self.known().functions.get_mut(id) {
            entry.is_deterministic = false;
        }
    }

    /// The names of functions that gave different results on the same reads.
    pub fn not_deterministic(&self) -> Vec<String> {
        let known = self.known();
        let found = known.functions.iter().filter(|(_, entry)| !entry.is_deterministic);
        found.map(|((name, _), _)| name.clone()).collect()
    }

    /// Functions run as if they were no memoized ones, and what others have kept is not used; for comparisons.
    pub fn turn_off(&self) {
        self.known().is_off = true;
    }

    /// Reserves a place for a proposal of a call; none if it may not be proposed now.
    pub(super) fn reserve_proposal(self: &Arc<Self>, call: &ObjectKey, now: Time) -> Option<Place<H>> {
        let mut known = self.known();
        let waits = known.refused.get(call).is_some_and(|(until, _)| now < *until);
        if waits || known.under_way >= PROPOSALS {
            return None;
        }
        known.under_way += 1;
        Some(Place { registry: Arc::clone(self), call: call.clone() })
    }

    /// The treaty that says that another one's statement is false, as it was found last.
    pub(super) fn denial(&self, treaty: &Placed) -> Option<Placed> {
        // One name may have been given to several statements.
        let known = self.known();
        let (denied, denial) = known.denials.get(&treaty.key)?;
        (*denied == treaty.statement).then(|| denial.clone())
    }

    /// A treaty's statement was found false, and this is true instead. True if the same was found before.
    pub(super) fn deny(&self, treaty: &Placed, denial: Placed) -> bool {
        let mut known = self.known();
        // Where there is no room, one is forgotten: what it says is read the next time, and found again.
        if known.denials.len() >= REFUSED && !known.denials.contains_key(&treaty.key) {
            known.denials.pop_first();
        }
        let denial_key = denial.key.clone();
        let before = known.denials.insert(treaty.key.clone(), (treaty.statement.clone(), denial));
        before.is_some_and(|(denied, before)| denied == treaty.statement && before.key == denial_key)
    }
}

/// A place for a proposal. It is given back when this is dropped: a program that waits for a proposal may be given up.
pub(super) struct Place<H: 'static> {
    registry: Arc<Registry<H>>,
    call: ObjectKey,
}

impl<H: 'static> Place<H> {
    /// The call was proposed, and registered or not. `random` spreads clients that proposed the same.
    pub(super) fn proposed(self, now: Time, random: u64, was_registered: bool) {
        // The lock is let go before this place is dropped, which takes it again.
        let (mut known, call) = (self.registry.known(), &self.call);
        if was_registered {
            known.refused.remove(call);
            return;
        }

        // Where there is no room for it, it is proposed again too early, which costs a transaction that is refused.
        if known.refused.len() >= REFUSED {
            known.refused.retain(|_, (until, _)| now < *until);
        }
        if known.refused.len() < REFUSED {
            let entry = known.refused.entry(call.clone()).or_insert((now, PAUSES.0));
            *entry = (now + jittered(entry.1, random), (entry.1 * 2).min(PAUSES.1));
        }
    }
}

impl<H: 'static> Drop for Place<H> {
    fn drop(&mut self) {
        let mut known = self.registry.known();
        assert!(known.under_way > 0, "each proposal reserves its place and gives it back once");
        known.under_way -= 1;
    }
}

impl<H> Default for Registry<H> {
    fn default() -> Self {
        let known = Known {
            functions: BTreeMap::new(),
            refused: BTreeMap::new(),
            denials: BTreeMap::new(),
            under_way: 0,
            is_off: false,
        };
        Self { known: Mutex::new(known) }
    }
}

#[cfg(test)]
mod tests {
    use slackline_core::object::treaty::{Metric, Tree};

    use super::*;

    #[test]
    fn call_that_was_not_registered_is_left_alone_for_longer_and_longer() {
        let (memos, call, now) = (Arc::new(Registry::<()>::default()), ObjectKey::new(0, "\u{1}f"), Time(0));
        let reserve = |now| memos.reserve_proposal(&call, now);
        reserve(now).expect("it was never tried").proposed(now, 1023, false);
        assert!(reserve(now + PAUSES.0 / 2).is_none());
        reserve(now + PAUSES.0).expect("the pause is over").proposed(now + PAUSES.0, 1023, false);
        assert!(reserve(now + PAUSES.0 * 2).is_none());
        reserve(now + PAUSES.0 * 3).expect("twice the pause is over").proposed(now, 0, true);
        assert!(reserve(now).is_some());
    }

    /// A program that waits for its proposal may be given up, any number of times.
    #[test]
    fn place_of_a_proposal_that_is_given_up_is_given_back() {
        let (memos, call) = (Arc::new(Registry::<()>::default()), ObjectKey::new(0, "\u{1}f"));
        let reserve = || memos.reserve_proposal(&call, Time(0));
        let places: Vec<_> = (0..PROPOSALS).map_while(|_| reserve()).collect();
        assert!(places.len() == PROPOSALS && reserve().is_none());
        drop(places);
        assert!(reserve().is_some());
    }

    /// One client may give one name to several statements: what is true instead of one says nothing of the others.
    #[test]
    fn denial_is_of_the_statement_that_was_found_false() {
        let memos = Registry::<()>::default();
        let stock = || Metric::Counter(ObjectKey::new(0, "stock"));
        let named = |name: &str, statement| Placed { key: ObjectKey::new(0, name), statement, tree: Tree::Near };
        let (most, least) = (Statement::AtLeast(stock(), 100), Statement::AtLeast(stock(), 10));
        let denial = || named("stock is at most 99", Statement::AtMost(stock(), 99));

        assert!(!memos.deny(&named("enough", most.clone()), denial()));
        assert!(memos.deny(&named("enough", most.clone()), denial()), "it was found so before");
        assert_eq!(memos.denial(&named("enough", most.clone())).map(|denial| denial.key), Some(denial().key));
        assert!(memos.denial(&named("enough", least.clone())).is_none());
        assert!(memos.denial(&named("other", most)).is_none());

        // The same is true instead of the other one, and was not found so before.
        assert!(!memos.deny(&named("enough", least), denial()));
    }
}
