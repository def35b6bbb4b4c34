//! Treaties in a transaction: relying on one in place of reads, making one, and postconditions.
//!
//! A transaction that asks whether a statement holds reads the treaty's object, like any object. While the treaty is valid the
//! statement is true, so nothing else is read. Where there is no valid treaty, the counters are looked at; if the
//! statement is true, a treaty is made, in a transaction of its own, and then relied upon. Else the counters are read as any
//! objects are, and validated.
//!
//! A transaction that relies on a treaty says so to the homes at which it writes. They refuse what would break it
//! ([`Cause::NotMet`]) instead of retracting it. Then the program is run again, and reads the counters itself: so a
//! statement is found false only on what was so at one time.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future as _, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use slackline_core::api::Reading;
use slackline_core::draft::buffer::ROOT;
use slackline_core::id::{Incarnation, OperationId, SiteId};
use slackline_core::object::treaty::{self, Unfit, equally};
use slackline_core::object::{self, Cause, Change, Home, ObjectKey, Part, Seen, Value};
use slackline_core::txn::READ_ITEMS;

use super::failure::{Failure, TxnError};
use super::handle::Txn;
use super::runner::commit;
pub use super::treaty::{Order, Placed, Treaty};
use crate::command::NotTaken;
use crate::metric::{Metric, Statement};
use crate::outcome::{Outcome, Reason, Refused, TreatyRefusal};
use crate::port::Port;
use crate::reads::Wanted;
use crate::time::Time;
use crate::topology::OBJECTS_LANE;

/// The number of times that a treaty is tried to be made, while its counters keep changing.
const TRIES: u32 = 8;
/// The longest time that a run waits for a treaty to be made: it can do without. If its site has died, it goes on at another
/// site once it does not wait any longer.
const MAKING: Duration = Duration::from_secs(3);

impl Txn {
    /// The value of a metric. What it is computed from is read, and so validated.
    ///
    /// # Errors
    ///
    /// A counter cannot be read, or is no counter; the value is out of range.
    pub async fn measure(&self, metric: &Metric) -> Result<i64, TxnError> {
        let metric = metric.place(self.run.port.topology()).map_err(|reason| self.refused(reason))?;
        let mut counters = BTreeSet::new();
        metric.counters(&mut counters);
        let counts = self.counts(counters).await?;
        metric.value(&|key| counts[key]).map_err(|unfit| self.unfit(unfit))
    }

    /// True if the treaty's statement is true. While the treaty is valid, that costs as much as reading one object, whatever the
    /// statement is about; and where this region holds a right over the treaty, no message. So it does where the statement stays
    /// false: a treaty of its own says that, once a client has found it so twice.
    ///
    /// # Errors
    ///
    /// As [`Txn::measure`].
    pub async fn holds(&self, treaty: &Treaty) -> Result<bool, TxnError> {
        let placed = treaty.place(self.run.port.topology()).map_err(|reason| self.refused(reason))?;
        if self.may_rely(&placed) && self.rely(&placed).await? {
            return Ok(true);
        }
        let counters = placed.counters();
        let is_untouched = self.has_not_written(&counters)?;
        let denial = self.run.memos.denial(&placed).filter(|denial| is_untouched && self.may_rely(denial));
        if let Some(denial) = denial
            && self.rely(&denial).await?
        {
            return Ok(false);
        }

        // Reads that are validated would hardly ever be so while the counters keep changing. The treaty's bounds are.
        if self.may_rely(&placed) && self.make(&placed).await && self.rely(&placed).await? {
            return Ok(true);
        }
        let counts = self.counts(counters).await?;
        let count = |key: &ObjectKey| counts[key];
        match placed.statement.judge(&count) {
            Ok(()) => Ok(true),
            Err(Unfit::NotTrue(_)) => {
                // What is false only with what this run has written says nothing about what the next one finds.
                if is_untouched {
                    self.deny(&placed, placed.statement.denial(&count));
                }
                Ok(false)
            }
            Err(unfit) => Err(self.unfit(unfit)),
        }
    }

    /// True if the treaty is valid; then its statement is true. Else nothing is known of that, and nothing more is done: no counter is
    /// read, and no treaty made.
    ///
    /// # Errors
    ///
    /// It is about no counter, or a region that is not there.
    pub async fn valid(&self, treaty: &Treaty) -> Result<bool, TxnError> {
        let placed = treaty.place(self.run.port.topology()).map_err(|reason| self.refused(reason))?;
        Ok(self.may_rely(&placed) && self.rely(&placed).await?)
    }

    /// Requires that a statement is true after the [atomic](Txn::atomic) block in which it stands, or after the transaction. What the
    /// block has written up to here counts. Write first, and require then.
    ///
    /// It is not known yet whether it will be so when the transaction commits. If it turns out not to be, the program is run
    /// again, and this fails.
    ///
    /// # Errors
    ///
    /// It is not true ([`TxnError::NotMet`]): pass that on, and the block is undone, or the transaction refused. Else as
    /// [`Txn::measure`].
    pub async fn require(&self, statement: impl Into<Treaty>) -> Result<(), TxnError> {
        let treaty: Treaty = statement.into();
        if self.holds(&treaty).await? {
            return Ok(());
        }

        // Of the transaction as a whole there is nothing that could be undone: it is refused, if the program ends so. A treaty with a name
        // is named.
        if self.layer == ROOT {
            let topology = self.run.port.topology();
            let placed = treaty.place(topology).ok().filter(|_| !treaty.is_unnamed());
            self.fail(Failure::of(Cause::NotMet, placed.map(|placed| topology.key(&placed.key))));
        }
        Err(TxnError::NotMet(treaty.statement().to_string()))
    }

    /// True if this handle has written none of these counters.
    fn has_not_written(&self, counters: &BTreeSet<ObjectKey>) -> Result<bool, TxnError> {
        let state = self.state()?;
        let is_written = |key: &ObjectKey| !matches!(state.draft.buffer.change(self.layer, key), Ok(None));
        Ok(!counters.iter().any(is_written))
    }

    /// True if this run may rely on a treaty. Not where a run before this one was told that what it wrote would break it: this one
    /// reads the counters.
    fn may_rely(&self, placed: &Placed) -> bool {
        !self.run.measured.contains(&placed.key) && self.scope.function.is_none()
    }

    /// Makes a treaty, if its statement is true; false if it was not made, or in vain lately.
    async fn make(&self, placed: &Placed) -> bool {
        let run = &self.run;
        let Some(place) = run.memos.reserve_proposal(&placed.key, run.port.now()) else { return false };
        let until = run.deadline.min(run.port.now() + MAKING);
        let making = make(Arc::clone(&run.port), run.site, placed, Existing::Kept, until);
        let was_made = matches!(making.await, Outcome::Done(_));
        place.proposed(run.port.now(), run.port.random(), was_made);
        was_made
    }

    /// A treaty's statement was found false. Where that is so again, a treaty is made that says so, beside this run: whoever asks next need
    /// not read the counters, which would keep writers off them all the time.
    fn deny(&self, placed: &Placed, denial: Option<treaty::Statement>) {
        let run = Arc::clone(&self.run);
        let Some(statement) = denial.filter(|_| self.scope.function.is_none()) else { return };
        let named = Treaty::from(&Statement::named(&statement, run.port.topology()));
        let Ok(mut denial) = named.place(run.port.topology()) else { return };
        denial.tree = placed.tree.clone();
        let is_again = run.memos.deny(placed, denial.clone());
        if !is_again {
            return;
        }
        let Some(place) = run.memos.reserve_proposal(&denial.key, run.port.now()) else { return };
        let (port, site, deadline) = (Arc::clone(&run.port), run.site, run.deadline);
        run.port.spawn(Box::pin(async move {
            let making = make(Arc::clone(&port), site, &denial, Existing::Kept, deadline);
            let was_made = matches!(making.await, Outcome::Done(_));
            place.proposed(port.now(), port.random(), was_made);
        }));
    }

    /// Relies on a treaty if it is there, valid, and says just this.
    async fn rely(&self, placed: &Placed) -> Result<bool, TxnError> {
        let known = self.state()?.draft.snapshot.known(&placed.key);
        let seen = match known {
            Some(value) => Seen { value, ..Seen::default() },
            None => {
                let wanted = Wanted { gets: vec![placed.key.clone()], fresh: true, ..Wanted::default() };
                // One whose home cannot be reached, or that rests on a home that cannot, is not to be relied upon.
                match self.read(wanted).await?.gets.into_iter().next() {
                    Some(Ok(seen)) => seen,
                    _ => return Ok(false),
                }
            }
        };
        let found = seen.value.as_ref().and_then(|value| treaty::Treaty::of_value(value).ok());
        if !found.is_some_and(|found| found.is_valid && found.statement == placed.statement) {
            return Ok(false);
        }

        // Its version is validated like that of any object that was read.
        let mut state = self.state()?;
        if seen.version != object::Version::default() {
            let noted = state.draft.snapshot.note_get(&placed.key, seen);
            drop(state);
            noted.map_err(|contradiction| self.contradiction(contradiction))?;
            state = self.state()?;
        }
        let relied = state.draft.rely(self.layer, placed.key.clone(), || placed.counters());
        drop(state);
        relied.map_err(|misfit| self.misfit(misfit, &self.run.port.topology().key(&placed.key)))?;
        Ok(true)
    }

    /// What counters have come to, with what this handle has written.
    async fn counts(&self, counters: BTreeSet<ObjectKey>) -> Result<BTreeMap<ObjectKey, i64>, TxnError> {
        let topology = self.run.port.topology();
        let keys: Vec<_> = counters.iter().map(|key| topology.key(key)).collect();
        let values = self.values(&keys).await?;
        let count = |((key, named), value): ((ObjectKey, _), Option<Value>)| match value {
            None => Ok((key, 0)),
            Some(Value::Counter(count)) => Ok((key, count)),
            Some(_) => Err(TxnError::Unexpected { key: named, why: "it is no counter".to_owned() }),
        };
        counters.into_iter().zip(keys).zip(values).map(count).collect()
    }

    fn refused(&self, reason: Reason) -> TxnError {
        self.fail(Failure { reason, operation: None, is_transient: false, is_of_the_site: false })
    }

    fn unfit(&self, unfit: Unfit) -> TxnError {
        self.refused(Reason::Treaty(unfit.into()))
    }
}

/// What becomes of a treaty of the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// A valid one with the same statement is as good as a new one.
    Kept,
    /// Any treaty of the name is in the way, unless it was retracted and says the same.
    Refused,
    /// The new one takes its place, whatever it said, once nobody relies on that any more.
    Replaced,
}

/// The division of slack when a treaty is made.
type Divide = fn(&treaty::Clause, i128) -> Vec<i128>;

/// Makes a treaty, at a site: reads its counters, divides the slack that is there equally, and has all homes note it at once.
pub async fn make(
    port: Arc<dyn Port>,
    site: SiteId,
    placed: &Placed,
    existing: Existing,
    deadline: Time,
) -> Outcome<Option<OperationId>> {
    make_divided(port, site, placed, existing, deadline, equally as Divide).await
}

/// As [`make`], with another division of the slack.
pub async fn make_divided(
    port: Arc<dyn Port>,
    site: SiteId,
    placed: &Placed,
    existing: Existing,
    deadline: Time,
    divide: impl Fn(&treaty::Clause, i128) -> Vec<i128>,
) -> Outcome<Option<OperationId>> {
    let refuse = |reason| Outcome::Refused(Refused { reason, operation: None });
    let mut last = Reason::DeadlinePassed;
    for _ in 0..TRIES {
        let (found, counts, homes) = match look(&*port, site, placed, deadline).await {
            Ok(found) => found,
            Err(reason) => return refuse(reason),
        };
        let before = found.value.as_ref().and_then(|value| treaty::Treaty::of_value(value).ok());
        match &before {
            Some(before) if before.is_valid && before.statement == placed.statement && existing == Existing::Kept => {
                return Outcome::Done(None);
            }
            Some(before)
                if existing != Existing::Replaced && (before.is_valid || before.statement != placed.statement) =>
            {
                return refuse(Reason::Treaty(TreatyRefusal::NameTaken));
            }
            _ => {}
        }

        let treaty = treaty::Treaty {
            nonce: port.random(),
            is_valid: true,
            retracts: before.map_or(0, |before| before.retracts),
            statement: placed.statement.clone(),
            tree: placed.tree.clone(),
        };
        let notes = match treaty.notes(&placed.key, &homes, &|key| counts[key], &divide) {
            Ok(notes) => notes,
            Err(unfit) => return refuse(Reason::Treaty(unfit.into())),
        };
        let transaction = making(&placed.key, &treaty, notes, found.version, &homes);
        match commit(Arc::clone(&port), Some(site.region), transaction, deadline).await {
            Outcome::Done((_, operation)) => return Outcome::Done(Some(operation)),
            Outcome::Unknown(unknown) => return Outcome::Unknown(unknown),
            // The counters have changed by more than the slack, or somebody else has made it: looked at again.
            Outcome::Refused(Refused { reason: Reason::Aborted(aborted), .. })
                if matches!(aborted.cause, Cause::Changed | Cause::Busy) =>
            {
                last = Reason::Aborted(aborted);
            }
            Outcome::Refused(refused) => return Outcome::Refused(refused),
        }
    }
    refuse(last)
}

/// The transaction that makes a treaty whose object is `key`. `found` is the version that that object had, and `homes` the incarnations in
/// which the counters were read.
pub fn making(
    key: &ObjectKey,
    treaty: &treaty::Treaty,
    notes: BTreeMap<u16, treaty::Note>,
    found: object::Version,
    homes: &BTreeMap<u16, Incarnation>,
) -> object::Transaction {
    let rests = notes.values().next().map(|note| note.homes.clone()).unwrap_or_default();
    let mut parts: BTreeMap<u16, Home> = BTreeMap::new();
    for (region, note) in notes {
        let incarnation = homes.get(&region).copied().unwrap_or_default();
        parts.insert(region, Home { region, incarnation, part: Part { notes: vec![note], ..Part::default() } });
    }
    let ObjectKey { home, name } = key.clone();
    let at_home = parts.entry(home).or_insert_with(|| Home { region: home, ..Home::default() });
    at_home.incarnation = found.incarnation;
    at_home.part.reads.push((name.clone(), found.number));
    at_home.part.writes.push((name, Change::Put(treaty.to_value(key, &rests))));
    let wait = 2 * slackline_core::clock::SECOND;
    object::Transaction { homes: parts.into_values().collect(), max_wait: wait, ..object::Transaction::default() }
}

/// What a treaty's object and its counters hold, read at once but not at one time.
async fn look(
    port: &dyn Port,
    site: SiteId,
    placed: &Placed,
    deadline: Time,
) -> Result<(Seen, BTreeMap<ObjectKey, i64>, BTreeMap<u16, Incarnation>), Reason> {
    let topology = port.topology();
    let counters = placed.counters();
    let gets: Vec<ObjectKey> = counters.iter().cloned().chain([placed.key.clone()]).collect();
    let mut seen = read_all(port, site, &gets, deadline).await?;
    let found = seen.pop().ok_or(Reason::DeadlinePassed)?;

    let (mut counts, mut homes) = (BTreeMap::new(), BTreeMap::new());
    for (key, seen) in counters.into_iter().zip(seen) {
        homes.insert(key.home, seen.version.incarnation);
        let count = match seen.value {
            None => 0,
            Some(Value::Counter(count)) => count,
            Some(_) => {
                let about = object::Abort { key: Some(key), ..object::Abort::of(Cause::NotACounter) };
                return Err(Reason::of_abort(about, topology));
            }
        };
        counts.insert(key, count);
    }
    Ok((found, counts, homes))
}

/// Reads any number of objects at a site, each as it is at some time, in as many batches as that takes.
///
/// # Errors
///
/// One of them cannot be read.
pub async fn read_all(port: &dyn Port, site: SiteId, keys: &[ObjectKey], deadline: Time) -> Result<Vec<Seen>, Reason> {
    let batch = |keys: &[ObjectKey]| {
        // Nothing will rest on these reads: rights over what is read would only hold up whoever writes it next.
        let wanted = Wanted { gets: keys.to_vec(), fresh: true, upkeep: true, ..Wanted::default() };
        read_at(port, site, wanted, deadline)
    };

    // All at once: their homes are far away.
    let mut under_way: Vec<_> = keys.chunks(READ_ITEMS).map(|keys| Box::pin(batch(keys))).collect();
    let mut readings: Vec<Option<Box<Reading>>> = vec![None; under_way.len()];
    poll_fn(|context| {
        let mut is_missing = false;
        for (reading, place) in under_way.iter_mut().zip(&mut readings).filter(|(_, place)| place.is_none()) {
            match reading.as_mut().poll(context) {
                Poll::Ready(Ok(found)) => *place = Some(found),
                Poll::Ready(Err(reason)) => return Poll::Ready(Err(reason)),
                Poll::Pending => is_missing = true,
            }
        }
        if is_missing { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await?;

    let found = readings.into_iter().flatten().flat_map(|reading| reading.gets);
    found.map(|got| got.map_err(|abort| Reason::of_abort(abort, port.topology()))).collect()
}

/// Reads objects at a site.
pub async fn read_at(port: &dyn Port, site: SiteId, wanted: Wanted, deadline: Time) -> Result<Box<Reading>, Reason> {
    let failed =
        |why: NotTaken| Reason::not_taken(why, OBJECTS_LANE, vec![port.topology().name(site)], port.topology());

    // The map that a client has may leave a site out that joined.
    let link = port.links(OBJECTS_LANE).iter().find(|link| link.site == site);
    link.ok_or_else(|| failed(NotTaken::Unreachable))?.read(wanted, deadline).await.map_err(failed)
}

/// The treaty of this name at a home, and its value; none if there is none.
pub async fn find(
    port: &dyn Port,
    site: SiteId,
    key: &ObjectKey,
    deadline: Time,
) -> Result<Option<(treaty::Treaty, Seen)>, Reason> {
    let wanted = Wanted { gets: vec![key.clone()], fresh: true, ..Wanted::default() };
    let got = read_at(port, site, wanted, deadline).await?.gets.into_iter().next();
    let seen = got.ok_or(Reason::DeadlinePassed)?.map_err(|abort| Reason::of_abort(abort, port.topology()))?;
    let treaty = seen.value.as_ref().and_then(|value| treaty::Treaty::of_value(value).ok());
    Ok(treaty.map(|treaty| (treaty, seen)))
}

/// Ends a treaty: its object is deleted, once nobody relies on it. Its leaves forget it by and by.
pub async fn end(port: Arc<dyn Port>, site: SiteId, key: &ObjectKey, deadline: Time) -> Outcome<OperationId> {
    let refuse = |reason| Outcome::Refused(Refused { reason, operation: None });
    let mut last = Reason::DeadlinePassed;
    for _ in 0..TRIES {
        let wanted = Wanted { gets: vec![key.clone()], fresh: true, ..Wanted::default() };
        let got = match read_at(&*port, site, wanted, deadline).await {
            Ok(mut reading) => reading.gets.pop(),
            Err(reason) => return refuse(reason),
        };
        let (reads, incarnation) = match got {
            // One that rests on storage that was lost reads as nothing. Its version says that it is there.
            Some(Ok(seen)) if seen.version.number != 0 => {
                (vec![(key.name.clone(), seen.version.number)], seen.version.incarnation)
            }
            Some(Ok(_)) => return refuse(Reason::Treaty(TreatyRefusal::Unknown)),
            // One that rests on a home that is not heard cannot be read. It is ended all the same.
            Some(Err(abort))
                if abort.cause == Cause::Unreachable && abort.site.is_some_and(|of| of.region != key.home) =>
            {
                (Vec::new(), Incarnation(0))
            }
            Some(Err(abort)) => return refuse(Reason::of_abort(abort, port.topology())),
            None => return refuse(Reason::DeadlinePassed),
        };
        let writes = vec![(key.name.clone(), Change::Delete)];
        let home = Home { region: key.home, incarnation, part: Part { reads, writes, ..Part::default() } };
        let wait = u64::try_from(deadline.saturating_duration_since(port.now()).as_micros()).unwrap_or(u64::MAX);
        let transaction = object::Transaction { homes: vec![home], max_wait: wait, ..object::Transaction::default() };
        match commit(Arc::clone(&port), Some(site.region), transaction, deadline).await {
            Outcome::Done((_, operation)) => return Outcome::Done(operation),
            Outcome::Unknown(unknown) => return Outcome::Unknown(unknown),
            Outcome::Refused(Refused { reason: Reason::Aborted(aborted), .. })
                if matches!(aborted.cause, Cause::Changed | Cause::Busy) =>
            {
                last = Reason::Aborted(aborted);
            }
            Outcome::Refused(refused) => return Outcome::Refused(refused),
        }
    }
    refuse(last)
}
