//! What a program sees of its transaction: reading and writing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use slackline_core::api::{Claim, Reading};
use slackline_core::draft::again::Footprint;
use slackline_core::draft::buffer::{LayerId, Misfit, ROOT, apply};
use slackline_core::draft::snapshot::{Contradiction, end_of, is_within};
use slackline_core::draft::{Draft, FrameId};
use slackline_core::id::SiteId;
use slackline_core::object::{
    self, Cause, Change, ObjectKey, Origin, SCAN_ROWS, Seen, Span, TRANSACTION_OPERATIONS, Value, is_key, is_prefix,
};
use slackline_core::txn::READ_ITEMS;

use super::again::{Ahead, Program};
use super::failure::{Failure, TxnError};
use super::registry::Registry;
use crate::command::NotTaken;
use crate::key::Key;
use crate::link::Link;
use crate::outcome::{Aborted, Reason};
use crate::port::Port;
use crate::reads::Wanted;
use crate::time::Time;
use crate::topology::OBJECTS_LANE;

/// The rows that a scan asks for at a time.
const PAGE: u32 = 256;

/// The memoized functions that a client knows.
pub type Memos = Registry<Txn>;

/// A transaction that runs: reads and writes. Cheap to clone; clones are the same transaction.
///
/// Values are JSON, by [serde]: so the command line and programs in other languages can read them. Raw bytes are there too,
/// and **counters**: numbers to which transactions add without reading them, and so without excluding each other.
///
/// It reads its own writes. It sees one version of each object, however often it reads it.
#[derive(Clone)]
pub struct Txn {
    /// The run that this is a handle of; all handles of a run share it.
    pub(super) run: Arc<Run>,
    /// The block in which it writes: the whole transaction, or an [atomic](Txn::atomic) block.
    pub(super) layer: LayerId,
    pub(super) scope: Scope,
}

/// The memoized function that a handle belongs to; the default is the program itself.
#[derive(Clone, Copy, Default)]
pub(super) struct Scope {
    /// Where what it reads is taken down, because its result rests on that.
    pub(super) frame: Option<FrameId>,
    /// Its name. A handle that has one must not write.
    pub(super) function: Option<&'static str>,
    /// The number of calls within which it runs.
    pub(super) depth: u32,
}

/// One run of a program, from its beginning until it is judged.
pub(super) struct Run {
    pub(super) port: Arc<dyn Port>,
    pub(super) memos: Arc<Memos>,
    /// The site through which everything is read.
    pub(super) site: SiteId,
    /// True if stale copies will not do: an earlier run may have failed because of one.
    pub(super) fresh: bool,
    /// When reads end; a little before the transaction does.
    pub(super) deadline: Time,
    /// True if no other site may be asked in place of this one.
    pub(super) is_pinned: bool,
    /// True if the program has ended, and calls that depend on what it wrote are computed again.
    pub(super) is_treating: bool,
    pub(super) program: Program,
    /// The treaties on which it does not rely, because an earlier run would have broken them: their counters are read instead.
    pub(super) measured: BTreeSet<ObjectKey>,
    /// What the run has done so far. It is never locked while something is waited for.
    pub(super) state: Mutex<State>,
}

/// What a run has done so far.
#[derive(Debug)]
pub(super) struct State {
    /// One version of each object that was read, and what is written.
    pub(super) draft: Draft,
    /// Why the run cannot succeed, unless the program does without; the first reason stays.
    pub(super) failure: Option<Failure>,
    /// True once the run is judged: handles that the program has kept are of no use then.
    pub(super) is_over: bool,
    /// True while every call that was used could be looked for, so that what was computed rests on calls and not on what they read.
    pub(super) may_propose: bool,
    /// What was read before the program asked for it. It gets into the draft when it does.
    pub(super) ahead: Ahead,
    /// The number of times that the site was asked.
    pub(super) reads: u32,
    /// True if all that was read was so at one time, since the site answered it as one.
    pub(super) is_whole: bool,
}

impl State {
    fn new(draft: Draft) -> Self {
        Self {
            draft,
            failure: None,
            is_over: false,
            may_propose: true,
            ahead: Ahead::default(),
            reads: 0,
            is_whole: false,
        }
    }
}

impl fmt::Debug for Txn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Txn").field("at", &self.run.port.topology().name(self.run.site)).finish_non_exhaustive()
    }
}

impl Txn {
    pub(super) fn new(
        port: Arc<dyn Port>,
        memos: Arc<Memos>,
        (site, is_pinned): (SiteId, bool),
        fresh: bool,
        deadline: Time,
        program: Program,
    ) -> Self {
        let state = Mutex::new(State::new(Draft::new()));
        let measured = BTreeSet::new();
        let run = Run { port, memos, site, fresh, deadline, is_pinned, is_treating: false, program, measured, state };
        Self { run: Arc::new(run), layer: ROOT, scope: Scope::default() }
    }

    /// A handle of a run that has not begun, which reads the counters of these treaties.
    pub(super) fn measuring(mut self, measured: &BTreeSet<ObjectKey>) -> Self {
        Arc::get_mut(&mut self.run).expect("nobody else has a handle yet").measured.clone_from(measured);
        self
    }

    /// A new handle that goes on with what a run that has ended has done; it is to compute calls anew that depend on that, if it `is_treating`.
    pub(super) fn resume(&self, draft: Draft, ahead: Ahead, is_treating: bool) -> Self {
        let state = Mutex::new(State { ahead, ..State::new(draft) });
        let Run { port, memos, site, fresh, deadline, is_pinned, program, .. } = &*self.run;
        let (port, memos) = (Arc::clone(port), Arc::clone(memos));
        let (site, fresh, deadline, is_pinned, program) = (*site, *fresh, *deadline, *is_pinned, *program);
        let measured = self.run.measured.clone();
        let run = Run { port, memos, site, fresh, deadline, is_pinned, is_treating, program, measured, state };
        Self { run: Arc::new(run), layer: ROOT, scope: Scope::default() }
    }

    // Reads.

    /// What an object holds; `None` if nothing is there.
    ///
    /// # Errors
    ///
    /// It cannot be read ([`TxnError::NotRead`]), or is no JSON of such a value ([`TxnError::Unexpected`]).
    pub async fn get<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<T>, TxnError> {
        Ok(self.get_many(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// What several objects hold, in their order. Costs about as much time as one.
    ///
    /// # Errors
    ///
    /// As [`Txn::get`].
    pub async fn get_many<T: DeserializeOwned>(&self, keys: &[Key]) -> Result<Vec<Option<T>>, TxnError> {
        let values = self.values(keys).await?.into_iter().zip(keys);
        values.map(|(value, key)| value.map(|value| decode(key, &value)).transpose()).collect()
    }

    /// The bytes that an object holds.
    ///
    /// # Errors
    ///
    /// As [`Txn::get`]; a counter has no bytes.
    pub async fn get_bytes(&self, key: &Key) -> Result<Option<Vec<u8>>, TxnError> {
        match self.value(key).await? {
            Some(Value::Bytes(bytes)) => Ok(Some(bytes.to_vec())),
            Some(_) => Err(is_counter(key)),
            None => Ok(None),
        }
    }

    /// What a counter has come to; 0 if it is not there.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is no counter.
    pub async fn count(&self, key: &Key) -> Result<i64, TxnError> {
        match self.value(key).await? {
            Some(Value::Counter(count)) => Ok(count),
            Some(_) => Err(self.misfit(Misfit::NotACounter, key)),
            None => Ok(0),
        }
    }

    /// What an object holds, as it is.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub async fn value(&self, key: &Key) -> Result<Option<Value>, TxnError> {
        Ok(self.values(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// What several objects hold, as it is, in their order.
    ///
    /// # Errors
    ///
    /// One of them cannot be read.
    pub async fn values(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, TxnError> {
        let places = keys.iter().map(|key| self.place(key)).collect::<Result<Vec<_>, _>>()?;

        // What was read before is not read again: the run would see it in two versions, and come to nothing.
        let mut missing: Vec<ObjectKey> = Vec::new();
        {
            let state = self.state()?;
            for (place, key) in places.iter().zip(keys) {
                let change = state.draft.buffer.change(self.layer, place).map_err(|misfit| self.misfit(misfit, key))?;

                // What a memoized function reads is validated even if the transaction writes it.
                let is_ours = matches!(change, Some(Change::Put(_) | Change::Delete)) && self.scope.frame.is_none();
                if !is_ours && state.draft.snapshot.known(place).is_none() {
                    missing.push(place.clone());
                }
            }
        }
        missing.sort_unstable();
        missing.dedup();
        self.fetch(missing).await?;

        // All of them are in the snapshot now, each in the one version that this run sees of it.
        let mut state = self.state()?;
        if let Some(frame) = self.scope.frame {
            places.iter().for_each(|place| state.draft.note(frame, place));
        }

        // The run reads its own writes.
        let values = places.iter().zip(keys).map(|(place, key)| {
            let change = state.draft.buffer.change(self.layer, place).map_err(|misfit| self.misfit(misfit, key))?;
            let base = state.draft.snapshot.known(place).flatten();
            match change {
                Some(change) => apply(base, &change).map_err(|misfit| self.misfit(misfit, key)),
                None => Ok(base),
            }
        });
        values.collect()
    }

    /// All objects of a region whose names begin like this key's, in the order of their names, as they are: up to 4,096 of
    /// them. `eu:` alone stands for all.
    ///
    /// # Errors
    ///
    /// They cannot be read; there are too many ([`Cause::TooMuch`]): read them by [pages](Txn::scan_page), perhaps in several
    /// transactions.
    pub async fn scan(&self, prefix: &Key) -> Result<Vec<(Key, Value)>, TxnError> {
        let mut rows = Vec::new();
        let mut after = String::new();
        loop {
            let mut page = self.scan_page(prefix, &after, PAGE as usize).await?;
            rows.append(&mut page.rows);
            match page.next {
                Some(next) => after = next,
                None => return Ok(rows),
            }
        }
    }

    /// As [`Txn::scan`], with values read as JSON.
    ///
    /// # Errors
    ///
    /// As [`Txn::scan`] and [`Txn::get`].
    pub async fn scan_as<T: DeserializeOwned>(&self, prefix: &Key) -> Result<Vec<(Key, T)>, TxnError> {
        let rows = self.scan(prefix).await?.into_iter();
        rows.map(|(key, value)| decode(&key, &value).map(|value| (key, value))).collect()
    }

    /// A page of what [`Txn::scan`] gives: about `limit` objects (1 to 1,024) whose names come after `after`.
    ///
    /// # Errors
    ///
    /// As [`Txn::scan`].
    pub async fn scan_page(&self, prefix: &Key, after: &str, limit: usize) -> Result<Page, TxnError> {
        let home = self.region(prefix)?;
        if !is_prefix(prefix.name()) || !is_prefix(after) {
            return Err(self.fail(Failure::of(Cause::InvalidKey, Some(prefix.clone()))));
        }

        let mut limit = u32::try_from(limit.clamp(1, SCAN_ROWS)).expect("clamped");
        let (span, base) = loop {
            let span = Span { prefix: prefix.name().to_owned(), after: after.to_owned(), limit };
            match self.fetch_span(home, &span).await? {
                Some(rows) => break (span, rows),
                // The values are so large that fewer fit an answer.
                None => limit = (limit / 2).max(1),
            }
        };

        // A page ends where its span does, and not where what is written ends: the next one begins there.
        let end = end_of(&span, &base);
        let mut state = self.state()?;
        if let Some(frame) = self.scope.frame {
            state.draft.note_span(frame, home, &span);
        }

        // The run reads its own writes.
        let is_wanted = |name: &str| is_within(&span, end.as_deref(), name);
        let changed = state.draft.buffer.changed(self.layer, home, is_wanted);
        let mut rows: BTreeMap<String, Value> = base.into_iter().collect();
        for (ObjectKey { name, .. }, change) in changed.map_err(|misfit| self.misfit(misfit, prefix))? {
            let key = || Key::new(prefix.region(), name.clone());
            let value = apply(rows.remove(&name), &change).map_err(|misfit| self.misfit(misfit, &key()))?;
            if let Some(value) = value {
                rows.insert(name, value);
            }
        }
        let rows = rows.into_iter().map(|(name, value)| (Key::new(prefix.region(), name), value)).collect();
        Ok(Page { rows, next: end })
    }

    // Writes: they stay here until the end.

    /// Writes a value as JSON.
    ///
    /// # Errors
    ///
    /// It cannot be written as JSON ([`TxnError::NotWritable`]).
    pub fn put<T: Serialize + ?Sized>(&self, key: &Key, value: &T) -> Result<(), TxnError> {
        let json = serde_json::to_vec(value);
        let json = json.map_err(|error| TxnError::NotWritable { key: key.clone(), why: error.to_string() })?;
        self.put_bytes(key, json)
    }

    /// Writes bytes.
    ///
    /// # Errors
    ///
    /// The key names no object of this cluster ([`TxnError::NotRead`]).
    pub fn put_bytes(&self, key: &Key, bytes: impl Into<Vec<u8>>) -> Result<(), TxnError> {
        self.write(key, Change::Put(Value::Bytes(bytes.into().into())))
    }

    /// Sets a counter, whatever was there. To count, [add](Txn::add).
    ///
    /// # Errors
    ///
    /// As [`Txn::put_bytes`].
    pub fn put_count(&self, key: &Key, count: i64) -> Result<(), TxnError> {
        self.write(key, Change::Put(Value::Counter(count)))
    }

    /// Deletes an object. It does not matter whether it is there.
    ///
    /// # Errors
    ///
    /// As [`Txn::put_bytes`].
    pub fn delete(&self, key: &Key) -> Result<(), TxnError> {
        self.write(key, Change::Delete)
    }

    /// Adds to a counter; one that is not there begins at 0. Transactions that add to the same counter, and do not read it, do
    /// not exclude each other.
    ///
    /// # Errors
    ///
    /// As [`Txn::put_bytes`]; this transaction has written something that is no counter, or the sum of what it adds is out of
    /// range. What others have written there is found when it is committed ([`Cause::NotACounter`], [`Cause::OutOfRange`]).
    pub fn add(&self, key: &Key, delta: i64) -> Result<(), TxnError> {
        self.write(key, Change::Add(delta))
    }

    /// Runs a block that takes effect as a whole or not at all: if it ends with an error, what it wrote is undone, and the
    /// transaction may go on. What it read stays read. Blocks may have blocks in them.
    ///
    /// # Errors
    ///
    /// The block's own.
    pub async fn atomic<T, E, F, R>(&self, block: F) -> Result<T, E>
    where
        F: FnOnce(Txn) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<TxnError>,
    {
        let layer =
            self.state().and_then(|mut state| state.draft.buffer.open(self.layer).map_err(|_| TxnError::Over))?;

        // If the block ends with an error, or is dropped before it ends, its layer goes with the handle.
        let inner = Nested(Txn { run: Arc::clone(&self.run), layer, scope: self.scope });
        let value = block(inner.0.clone()).await?;

        // Only what another block of the same transaction did at the same time can make this fail.
        self.state()?.draft.buffer.merge(layer).map_err(|misfit| match misfit {
            Misfit::Over => TxnError::Over,
            misfit => TxnError::NotRead(Reason::Aborted(Box::new(Aborted::of(cause_of(misfit), None)))),
        })?;
        Ok(value)
    }

    // Private from here.

    /// Reads what the run before has read. What cannot be read is left to the program: it may not want it any more.
    pub(super) async fn read_ahead(&self, footprint: &Footprint, origin: Origin, bars: bool) {
        let Footprint { gets, scans, writes, told, .. } = footprint;
        if gets.len() + scans.len() > READ_ITEMS || writes.len() > READ_ITEMS || gets.is_empty() && scans.is_empty() {
            return;
        }

        // What computes calls again is judged several times in a run, and would lose its turn at the first: it waits by itself.
        let claim = told.is_empty().then_some(Claim { origin, writes: writes.clone(), again: true, bars });
        // What is read to compute calls again is no use of them.
        let upkeep = !told.is_empty();
        let wanted = Wanted { gets: gets.clone(), scans: scans.clone(), upkeep, claim, ..Wanted::default() };
        let Ok(reading) = self.read(wanted).await else { return };

        // It is kept beside the draft: what this run does not ask for is not validated, and does not make it fail.
        let Ok(mut state) = self.state() else { return };
        let found = gets.iter().zip(reading.gets);
        state.ahead.gets = found.filter_map(|(key, seen)| Some((key.clone(), seen.ok()?))).collect();
        let found = scans.iter().zip(reading.scans);
        state.ahead.scans = found.filter_map(|((home, span), rows)| Some((*home, span.clone(), rows.ok()?))).collect();
    }

    pub(super) fn state(&self) -> Result<MutexGuard<'_, State>, TxnError> {
        let state = self.run.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_over { Err(TxnError::Over) } else { Ok(state) }
    }

    /// Ends the run: handles of it are of no use any more.
    pub(super) fn end(self) -> State {
        // The program may have kept handles, or go on in a task of its own. What it does from here on is not judged, so it must fail.
        let mut state = self.run.state.lock().unwrap_or_else(PoisonError::into_inner);
        let over = State { is_over: true, may_propose: false, ..State::new(Draft::new()) };
        std::mem::replace(&mut state, over)
    }

    /// Notes that the run cannot succeed, unless the program does without.
    pub(super) fn fail(&self, failure: Failure) -> TxnError {
        // The first failure is the one that led to the others.
        let reason = failure.reason.clone();
        if let Ok(mut state) = self.state() {
            state.failure.get_or_insert(failure);
        }
        TxnError::NotRead(reason)
    }

    pub(super) fn misfit(&self, misfit: Misfit, key: &Key) -> TxnError {
        match misfit {
            Misfit::NotACounter => TxnError::Unexpected { key: key.clone(), why: "it is no counter".to_owned() },
            Misfit::OutOfRange => TxnError::OutOfRange(key.clone()),
            Misfit::Over => TxnError::Over,
        }
    }

    fn region(&self, key: &Key) -> Result<u16, TxnError> {
        let topology = self.run.port.topology();
        topology.region(key.region()).ok_or_else(|| {
            let reason = Reason::UnknownRegion { region: key.region().to_owned(), known: topology.regions.clone() };
            self.fail(Failure { reason, operation: None, is_transient: false, is_of_the_site: false })
        })
    }

    fn place(&self, key: &Key) -> Result<ObjectKey, TxnError> {
        let home = self.region(key)?;
        if !is_key(key.name()) {
            return Err(self.fail(Failure::of(Cause::InvalidKey, Some(key.clone()))));
        }
        Ok(ObjectKey::new(home, key.name()))
    }

    fn write(&self, key: &Key, change: Change) -> Result<(), TxnError> {
        if let Some(name) = self.scope.function {
            return Err(TxnError::NotMemoizable { name, why: format!("it writes {key}") });
        }

        // It stays in the buffer until the run is judged, so nobody else sees it before.
        let place = self.place(key)?;
        let written = self.state()?.draft.buffer.write(self.layer, place, change);
        written.map_err(|misfit| self.misfit(misfit, key))
    }

    /// Reads objects into the snapshot.
    async fn fetch(&self, mut missing: Vec<ObjectKey>) -> Result<(), TxnError> {
        // What was read ahead is as good as what is read now: either is validated when the run is judged.
        for (key, seen) in self.take_ahead(&mut missing)? {
            self.check_size(1)?;
            self.note(|snapshot| snapshot.note_get(&key, seen))?;
        }

        while !missing.is_empty() {
            self.check_size(missing.len())?;
            let gets: Vec<ObjectKey> = missing.iter().take(READ_ITEMS).cloned().collect();
            let reading = self.read(Wanted { gets: gets.clone(), ..Wanted::default() }).await?;
            if reading.gets.len() != gets.len() {
                return Err(self.fail(self.senseless()));
            }

            // An answer has a bound. What did not fit is asked for again, with what has not been asked for yet.
            let mut left_out = Vec::new();
            for (at, (key, result)) in gets.into_iter().zip(reading.gets).enumerate() {
                match result {
                    Ok(seen) => self.note(|snapshot| snapshot.note_get(&key, seen))?,
                    // It did not fit the answer; the first always does.
                    Err(abort) if abort.cause == Cause::TooMuch && at > 0 => left_out.push(key),
                    Err(abort) => {
                        let key = abort.key.or(Some(key));
                        let abort = object::Abort { key, ..abort };
                        return Err(self.fail(Failure::of_abort(abort, self.run.port.topology())));
                    }
                }
            }

            missing.drain(..missing.len().min(READ_ITEMS));
            left_out.append(&mut missing);
            missing = left_out;
        }
        Ok(())
    }

    /// What was read ahead of what is missing.
    fn take_ahead(&self, missing: &mut Vec<ObjectKey>) -> Result<Vec<(ObjectKey, Seen)>, TxnError> {
        let mut state = self.state()?;
        let mut found = Vec::new();
        missing.retain(|key| match state.ahead.gets.remove(key) {
            Some(seen) => {
                found.push((key.clone(), seen));
                false
            }
            None => true,
        });
        Ok(found)
    }

    /// What a span holds, of the snapshot or now read into it; `None` if it does not fit an answer.
    async fn fetch_span(&self, home: u16, span: &Span) -> Result<Option<Vec<(String, Value)>>, TxnError> {
        if let Some(rows) = self.state()?.draft.snapshot.scanned(home, span) {
            return Ok(Some(rows));
        }

        self.check_size(1)?;
        let ahead = self.state()?.ahead.scan(home, span);
        let rows = match ahead {
            Some(rows) => rows,
            None => {
                let scans = vec![(home, span.clone())];
                let reading = self.read(Wanted { scans, ..Wanted::default() }).await?;
                match reading.scans.into_iter().next() {
                    Some(Ok(rows)) => rows,
                    Some(Err(abort)) if abort.cause == Cause::TooMuch && span.limit > 1 => return Ok(None),
                    Some(Err(abort)) => return Err(self.fail(Failure::of_abort(abort, self.run.port.topology()))),
                    None => return Err(self.fail(self.senseless())),
                }
            }
        };

        let values = rows.iter().filter_map(|(name, seen)| Some((name.clone(), seen.value.clone()?))).collect();
        self.check_size(1 + rows.len())?;
        self.note(|snapshot| snapshot.note_scan(home, span.clone(), rows))?;
        Ok(Some(values))
    }

    /// Fails if this much more cannot be read and still be committed.
    fn check_size(&self, more: usize) -> Result<(), TxnError> {
        let operations = self.state()?.draft.snapshot.operations() + more;
        if operations <= TRANSACTION_OPERATIONS {
            return Ok(());
        }
        Err(self.fail(Failure::of(Cause::TooMuch, None)))
    }

    /// Takes something into the snapshot, which has one version of each object. Where another one is there already, what the
    /// run has read does not belong together: it comes to nothing, instead of showing its program two states.
    fn note(
        &self,
        note: impl FnOnce(&mut slackline_core::draft::snapshot::Snapshot) -> Result<(), Contradiction>,
    ) -> Result<(), TxnError> {
        let noted = note(&mut self.state()?.draft.snapshot);
        noted.map_err(|contradiction| self.contradiction(contradiction))
    }

    pub(super) fn contradiction(&self, Contradiction(key): Contradiction) -> TxnError {
        let key = self.run.port.topology().key(&key);
        self.fail(Failure::of(Cause::Changed, Some(key)))
    }

    pub(super) async fn read(&self, wanted: Wanted) -> Result<Reading, TxnError> {
        let Run { port, site, fresh, is_treating, .. } = &*self.run;
        // What a first run reads later would keep waiting those whom its first reads bar.
        let first = || Claim { origin: self.run.program.origin(port.now()), ..Claim::default() };
        let is_first = self.state()?.reads == 0 && !*is_treating;
        let claim = wanted.claim.or_else(|| is_first.then(first));
        let fresh = *fresh || *is_treating || wanted.fresh;
        let wanted = Wanted { fresh, upkeep: wanted.upkeep || *is_treating, claim, ..wanted };

        // Two answers may be of two times, even of one site; only a single one can be of one.
        let link = port.links(OBJECTS_LANE).iter().find(|link| link.site == *site).expect("the site that was chosen");
        let noted = |reading: Box<Reading>| {
            if let Ok(mut state) = self.state() {
                state.reads += 1;
                state.is_whole = reading.is_whole && state.reads == 1;
            }
            *reading
        };

        // Nothing was written, so another site may be asked by the next run, whatever this one did.
        link.read(wanted, self.read_until()).await.map(noted).map_err(|why| {
            let (site, topology) = (port.topology().name(*site), port.topology());
            let reason = match why {
                NotTaken::DeadlinePassed => {
                    let late = Aborted::of(Cause::DeadlinePassed, None);
                    Reason::Aborted(Box::new(Aborted { site: Some(site), ..late }))
                }
                why => Reason::not_taken(why, OBJECTS_LANE, vec![site], topology),
            };
            let is_transient = matches!(why, NotTaken::Unreachable | NotTaken::DeadlinePassed);
            self.fail(Failure { reason, operation: None, is_transient, is_of_the_site: true })
        })
    }

    /// When a read that begins now ends. A site that says nothing does not get all the time, where the next run may ask another.
    fn read_until(&self) -> Time {
        let Run { port, site, deadline, is_pinned, .. } = &*self.run;
        let now = port.now();
        let is_other = |link: &Arc<Link>| link.site != *site && link.is_usable();
        match !is_pinned && port.links(OBJECTS_LANE).iter().any(is_other) {
            true => now + deadline.saturating_duration_since(now) / 2,
            false => *deadline,
        }
    }

    /// Why a run fails whose site answered something else than what it was asked for.
    fn senseless(&self) -> Failure {
        Failure::of(Cause::Malformed, None)
    }
}

/// A block's handle: its layer is gone when the block is, unless it was merged before.
struct Nested(Txn);

impl Drop for Nested {
    fn drop(&mut self) {
        if let Ok(mut state) = self.0.state() {
            state.draft.buffer.discard(self.0.layer);
        }
    }
}

/// A page of a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The objects, in the order of their names.
    pub rows: Vec<(Key, Value)>,
    /// The name after which the next page begins; none if this is the last.
    pub next: Option<String>,
}

fn decode<T: DeserializeOwned>(key: &Key, value: &Value) -> Result<T, TxnError> {
    match value {
        Value::Bytes(bytes) => serde_json::from_slice(bytes)
            .map_err(|error| TxnError::Unexpected { key: key.clone(), why: error.to_string() }),
        Value::Counter(_) | Value::Derived(_) => Err(is_counter(key)),
    }
}

fn is_counter(key: &Key) -> TxnError {
    TxnError::Unexpected { key: key.clone(), why: "it is a counter; read it with `count`".to_owned() }
}

fn cause_of(misfit: Misfit) -> Cause {
    match misfit {
        Misfit::NotACounter => Cause::NotACounter,
        Misfit::OutOfRange => Cause::OutOfRange,
        Misfit::Over => Cause::Withdrawn,
    }
}
