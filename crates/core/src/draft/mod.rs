//! A transaction while its program runs, in a client: its reads, its changes, and the calls of memoized functions that
//! it uses, computes and recomputes. No input or output: the runner of the program reads for it.
//!
//! # Calls
//!
//! A memoized function, for some arguments, is a **call**: an object with the result ([`crate::object::Derived`]), and
//! notes at the homes of all objects that the function read, that the call depends on them. Its name holds the
//! function's name, a fingerprint of its code, and the arguments.
//!
//! - **Using.** A program that calls the function reads the call's object, like any object: so under a state warranty
//!   it costs nothing, whatever the function would have read.
//! - **Proposing and registering.** Where there is no object, the function runs, and its reads are noted in a
//!   *frame*. Then [`Draft::proposal`] is a transaction of its own that validates these reads, notes the dependencies,
//!   and puts the object.
//! - **Defending.** A write of an object on which calls depend is refused, with their names. The writer's client runs
//!   the functions again, on the new values and inside the same transaction, so that their reads are validated with it.
//!   If the result is the same, the object stays as it is, and a site that relies on it notices nothing. If it is
//!   another, it is put, which waits for or revokes the rights over it, and the calls that depend on *it* are next. A
//!   client that does not have the code deletes the object.
//!
//! So a call's right needs no rules of its own about expiry: it is a state warranty over an object that is never stale.
//! A function that reads other objects than before registers these in the same transaction.
//!
//! | module | its subject |
//! | --- | --- |
//! | `buffer` | the changes that a transaction wants, in the layers of nested blocks |
//! | `snapshot` | its reads |
//! | `again` | running a program again after others were in its way |
//! | here | calls, and the transaction that is handed over in the end |

pub mod again;
pub mod buffer;
pub mod snapshot;

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::SECOND;
use crate::codec::{Cursor, Malformed, put_bytes, put_u64};
use crate::id::Incarnation;
use crate::object::{Change, Dependency, Derived, GONE, Home, ObjectKey, Seen, Span, Transaction, Value, is_call};
use buffer::{Buffer, LayerId, Misfit, ROOT};
use snapshot::{Contradiction, Snapshot};

/// The most calls and dependencies that a proposal of several calls registers.
const PROPOSAL: usize = 128;

/// The longest time that a proposal may wait for rights over the calls that it replaces, in microseconds.
const WAIT: u64 = SECOND;

/// The position of a computation.
pub type FrameId = usize;

/// The reads of a function: regions, each with a name or a span there.
pub type Subjects = BTreeSet<(u16, Dependency)>;

/// A transaction while its program runs.
#[derive(Debug)]
pub struct Draft {
    /// The reads, which will be validated.
    pub snapshot: Snapshot,
    /// The changes, which will be written.
    pub buffer: Buffer,
    /// The computations, by position; empty frames for those that have ended.
    frames: Vec<Frame>,
    /// The results of computations that have ended.
    computed: BTreeMap<ObjectKey, Computed>,
    /// Calls that were looked for and are not there, with the incarnation and the version of that.
    missing: BTreeMap<ObjectKey, (Incarnation, u64)>,
    /// Calls that depend on what is written, and are to be treated; none of them is in `treated`.
    pending: BTreeSet<ObjectKey>,
    /// The treatments of calls that depended on what is written.
    treated: BTreeMap<ObjectKey, Treatment>,
    /// The regions that named a call as one that depends on what is written there.
    told: BTreeMap<ObjectKey, BTreeSet<u16>>,
    /// For each pending call, the calls that were computed from it before it was pending.
    suspects: BTreeMap<ObjectKey, Vec<ObjectKey>>,
    /// The treaties that it relies upon, or requires to hold after it. Each was read, and is valid. For each time that it did so: the
    /// changes that it had made to the treaty's counters by then, by counter.
    relies: BTreeMap<ObjectKey, Vec<Changes>>,
}

/// What a transaction has changed of the counters of a treaty at one time, by counter.
type Changes = BTreeMap<ObjectKey, Option<Change>>;

/// A computation under way.
#[derive(Debug)]
struct Frame {
    /// The call whose function runs.
    call: ObjectKey,
    /// The reads of the function until now.
    dependencies: Subjects,
    /// The regions on which it rests, directly or through other calls, in the incarnations that were read.
    homes: BTreeMap<u16, Incarnation>,
}

/// The result of a computation.
#[derive(Debug)]
struct Computed {
    /// The result, as the function's type is encoded.
    result: Vec<u8>,
    /// The reads of the function.
    dependencies: Subjects,
    /// The regions on which it rests, directly or through other calls, in the incarnations that were read.
    homes: BTreeMap<u16, Incarnation>,
}

/// The treatment of a call by a writer of something on which it depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Treatment {
    /// It is not there.
    Absent,
    /// It is deleted.
    Revoked,
    /// It was recomputed.
    Computed,
}

/// The state of a call for a program that wants its result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// Its result.
    Known(Vec<u8>),
    /// It has to be fetched; [`Draft::note_call`].
    Fetch,
    /// It is not there, so it has to be computed, in a frame; [`Draft::open`].
    Compute,
    /// It depends on what is written, and has to be treated first; see [`Draft::next_pending`].
    Pending,
    /// It will be deleted: the function runs as if it were not memoized.
    Inline,
}

/// The result of a recomputation, compared with the stored one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recomputed {
    /// The result is the same.
    Kept,
    /// The result is another.
    Changed,
}

/// A call's value, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stored {
    /// The result, as its function's type is encoded.
    result: Vec<u8>,
    /// What the function read.
    dependencies: Subjects,
}

impl Default for Draft {
    fn default() -> Self {
        Self::new()
    }
}

impl Draft {
    /// A transaction that has neither read nor changed anything.
    pub fn new() -> Self {
        Self {
            snapshot: Snapshot::default(),
            buffer: Buffer::new(),
            frames: Vec::new(),
            computed: BTreeMap::new(),
            missing: BTreeMap::new(),
            pending: BTreeSet::new(),
            treated: BTreeMap::new(),
            told: BTreeMap::new(),
            suspects: BTreeMap::new(),
            relies: BTreeMap::new(),
        }
    }

    /// Relies on a treaty that was read, and is valid: what this transaction writes must not break it. The program is told that the
    /// treaty's statement, which is about these counters, is true of what it sees in a layer.
    ///
    /// # Errors
    ///
    /// [`Misfit::Over`] if the layer is.
    pub fn rely(
        &mut self,
        layer: LayerId,
        treaty: ObjectKey,
        counters: impl FnOnce() -> BTreeSet<ObjectKey>,
    ) -> Result<(), Misfit> {
        // What was told before anything was written is true before the transaction: nothing is to be compared later. Most ask so, and
        // the counters may be many thousands.
        let counters = if self.buffer.is_empty(layer) { BTreeSet::new() } else { counters() };
        let change = |counter: ObjectKey| {
            let change = self.buffer.change(layer, &counter)?.filter(|change| *change != Change::Add(0));
            Ok((counter, change))
        };
        let changes = counters.into_iter().map(change).collect::<Result<Changes, _>>()?;
        let times = self.relies.entry(treaty).or_default();
        if !times.contains(&changes) {
            times.push(changes);
        }

        Ok(())
    }

    /// A treaty of which the program was told more than will be judged, if there is one.
    ///
    /// A valid treaty is true before the transaction; and its homes see to it that the treaty is true after it. What lies between
    /// them nobody judges: a statement that was false there, and that a later write or an undone block has mended. If the program
    /// ends with an error, nothing of what it wrote is judged.
    pub fn misjudged(&self, is_done: bool) -> Option<&ObjectKey> {
        let last = |counter: &ObjectKey| {
            let change = self.buffer.change(ROOT, counter).ok().flatten().filter(|_| is_done);
            change.filter(|change| *change != Change::Add(0))
        };
        let is_before = |changes: &Changes| changes.values().all(Option::is_none);
        let is_after = |changes: &Changes| changes.iter().all(|(counter, change)| *change == last(counter));
        let mut relies = self.relies.iter();
        let found = relies.find(|(_, times)| times.iter().any(|changes| !is_before(changes) && !is_after(changes)));
        found.map(|(treaty, _)| treaty)
    }

    // Using and computing.

    /// The state of a call.
    pub fn lookup(&self, call: &ObjectKey) -> Lookup {
        // A stored result of a pending call may not be what the function gives on what this transaction writes.
        if self.pending.contains(call) {
            return Lookup::Pending;
        }
        if let Some(computed) = self.computed.get(call) {
            return Lookup::Known(computed.result.clone());
        }
        match self.treated.get(call) {
            Some(Treatment::Revoked) => return Lookup::Inline,
            Some(Treatment::Absent) => return Lookup::Compute,
            _ => {}
        }

        match self.stored(call) {
            Some(stored) => Lookup::Known(stored.result),
            None if self.missing.contains_key(call) => Lookup::Compute,
            None => Lookup::Fetch,
        }
    }

    /// Notes the object of a call, or its absence.
    pub fn note_call(&mut self, call: &ObjectKey, seen: Seen) -> Result<(), Contradiction> {
        // The absence of a call needs no validation: the program goes by what the function reads instead. Only a writer
        // that treats the call as absent has to be right about it.
        let is_there = matches!(&seen.value, Some(Value::Derived(derived)) if decode(&derived.bytes).is_ok());
        if !is_there {
            self.missing.insert(call.clone(), (seen.version.incarnation, seen.version.number));
        }
        if is_there || self.pending.contains(call) { self.snapshot.note_get(call, seen) } else { Ok(()) }
    }

    /// Opens a frame: a function begins to run for a call.
    pub fn open(&mut self, call: ObjectKey) -> FrameId {
        self.frames.push(Frame { call, dependencies: Subjects::new(), homes: BTreeMap::new() });
        self.frames.len() - 1
    }

    /// Notes an object that the function read, which is in the snapshot.
    pub fn note(&mut self, frame: FrameId, key: &ObjectKey) {
        self.note_dependency(frame, key.home, Dependency::Name(key.name.clone()));
    }

    /// Notes a span that the function read, which is in the snapshot.
    pub fn note_span(&mut self, frame: FrameId, region: u16, span: &Span) {
        self.note_dependency(frame, region, Dependency::Span(span.clone()));
    }

    /// Notes something that the function read.
    fn note_dependency(&mut self, frame: FrameId, region: u16, dependency: Dependency) {
        let incarnation = self.snapshot.incarnation(region);
        let frame = &mut self.frames[frame];
        frame.dependencies.insert((region, dependency));
        frame.homes.insert(region, incarnation);
    }

    /// Notes another call that the function used, and whose result is [known](Lookup::Known).
    pub fn note_use(&mut self, frame: FrameId, call: &ObjectKey) {
        // It rests on everything that the other call rests on: a loss of storage at any of these homes counts for both.
        let mut homes = match self.computed.get(call) {
            Some(computed) => computed.homes.clone(),
            None => self.stored_homes(call),
        };

        // And on the home of the other call itself. If that was computed here, its home's incarnation was seen when the
        // call was looked for there and not found.
        let missing = self.missing.get(call).map(|(incarnation, _)| *incarnation);
        homes.insert(call.home, missing.unwrap_or_else(|| self.snapshot.incarnation(call.home)));
        let frame = &mut self.frames[frame];
        frame.dependencies.insert((call.home, Dependency::Name(call.name.clone())));
        frame.homes.extend(homes);
    }

    /// Closes a frame: the function has ended with this result.
    pub fn close(&mut self, frame: FrameId, result: Vec<u8>) {
        let Frame { call, dependencies, homes } = std::mem::replace(
            &mut self.frames[frame],
            Frame { call: ObjectKey::default(), dependencies: Subjects::new(), homes: BTreeMap::new() },
        );
        debug_assert!(call != ObjectKey::default(), "a computation ends that has ended before");
        self.computed.insert(call, Computed { result, dependencies, homes });
    }

    /// The calls that were computed, with the results.
    pub fn computed(&self) -> Vec<(ObjectKey, Vec<u8>)> {
        self.computed.iter().map(|(call, computed)| (call.clone(), computed.result.clone())).collect()
    }

    /// A transaction that validates, registers and puts some of the calls that were computed; and the call at its top.
    /// None if nothing was computed, or it was computed on what this transaction writes.
    ///
    /// It is small, so that it locks little and for a short time. Several clients that have computed the same calls
    /// choose by different numbers, and so do not contend for them. A call that is not in it is computed from these the
    /// next time.
    pub fn proposal(&self, choice: u64) -> Option<(ObjectKey, Transaction)> {
        if !self.told.is_empty() {
            return None;
        }

        // It begins with one of the calls that use no other computed one, and goes up to users of it while there is
        // room.
        let is_lowest = |computed: &Computed| self.computed_calls(computed).next().is_none();
        let lowest: Vec<&ObjectKey> =
            self.computed.iter().filter(|(_, computed)| is_lowest(computed)).map(|(call, _)| call).collect();
        let mut top = *lowest.get((choice % lowest.len().max(1) as u64) as usize)?;
        let mut below = self.below(top);
        while let Some((user, more)) = self.user_of(top) {
            (top, below) = (user, more);
        }

        let mut homes = BTreeMap::new();
        below.into_iter().for_each(|call| self.put(call, &mut homes));
        Some((
            top.clone(),
            Transaction { homes: homes.into_values().collect(), max_wait: WAIT, ..Transaction::default() },
        ))
    }

    /// The computed calls that a computed one has used.
    fn computed_calls<'a>(&'a self, computed: &'a Computed) -> impl Iterator<Item = &'a ObjectKey> {
        computed.dependencies.iter().filter_map(|(region, dependency)| match dependency {
            Dependency::Name(name) if is_call(name) => {
                self.computed.get_key_value(&ObjectKey::new(*region, name.clone())).map(|(call, _)| call)
            }
            _ => None,
        })
    }

    /// A computed call and all computed ones that it rests on.
    fn below<'a>(&'a self, top: &'a ObjectKey) -> BTreeSet<&'a ObjectKey> {
        let (mut found, mut left) = (BTreeSet::new(), vec![top]);
        while let Some(call) = left.pop() {
            if found.insert(call) {
                left.extend(self.computed_calls(&self.computed[call]));
            }
        }
        found
    }

    /// A computed call that has used this one, with all that it rests on, if that is not too much for one proposal.
    fn user_of(&self, call: &ObjectKey) -> Option<(&ObjectKey, BTreeSet<&ObjectKey>)> {
        let dependency = (call.home, Dependency::Name(call.name.clone()));
        let (user, _) = self.computed.iter().find(|(_, computed)| computed.dependencies.contains(&dependency))?;
        let below = self.below(user);
        let size = below.iter().map(|call| 1 + self.computed[*call].dependencies.len()).sum::<usize>();
        (size <= PROPOSAL).then_some((user, below))
    }

    /// Deletes calls in a proposal of which a home says that they depend on the calls it puts. They are left over from
    /// before those were lost.
    pub fn revoke_in(proposal: &mut Transaction, calls: &[ObjectKey]) {
        let mut homes: BTreeMap<u16, Home> =
            std::mem::take(&mut proposal.homes).into_iter().map(|home| (home.region, home)).collect();
        for call in calls {
            let writes = &mut part(&mut homes, call.home).part.writes;
            if !writes.iter().any(|(name, _)| *name == call.name) {
                writes.push((call.name.clone(), Change::Delete));
            }
        }
        for home in homes.values_mut().filter(|home| !home.part.writes.is_empty()) {
            home.part.covers.extend(calls.iter().cloned());
        }

        proposal.homes = homes.into_values().collect();
    }

    // Treating what depends on what is written.

    /// True if a home has named calls that depend on what is written: from then on reads serve to compute these again.
    pub fn is_treating(&self) -> bool {
        !self.told.is_empty()
    }

    /// The calls that homes have named, by home, as depending on what is written there.
    pub fn told(&self) -> BTreeMap<u16, Vec<ObjectKey>> {
        let mut told: BTreeMap<u16, Vec<ObjectKey>> = BTreeMap::new();
        for (call, homes) in &self.told {
            homes.iter().for_each(|home| told.entry(*home).or_default().push(call.clone()));
        }
        told
    }

    /// Notes the calls that a home names as depending on what is written there: they are to be treated.
    pub fn demand(&mut self, home: u16, calls: &[ObjectKey]) {
        // Results that were computed so far were computed without what this transaction writes, and do not count.
        if self.told.is_empty() {
            self.computed.clear();
        }

        for call in calls {
            self.told.entry(call.clone()).or_default().insert(home);
            if !self.treated.contains_key(call) {
                self.suspect(call);
            }
        }
    }

    /// Makes a call pending, and notes the calls that were computed from it.
    fn suspect(&mut self, call: &ObjectKey) {
        let dependency = (call.home, Dependency::Name(call.name.clone()));
        let users = self.computed.iter().filter(|(_, computed)| computed.dependencies.contains(&dependency));
        self.suspects.insert(call.clone(), users.map(|(user, _)| user.clone()).collect());

        // Its absence was not validated: another client has put it since, and it has to be looked for again.
        self.missing.remove(call);
        self.pending.insert(call.clone());
    }

    /// A call that is to be treated: fetch it, then recompute it and [`Draft::settle`], or [`Draft::revoke`].
    pub fn next_pending(&self) -> Option<ObjectKey> {
        self.pending.first().cloned()
    }

    /// The calls that are to be treated and were not looked for yet.
    pub fn unread(&self) -> impl Iterator<Item = &ObjectKey> {
        self.pending.iter().filter(|call| self.is_there(call).is_none())
    }

    /// True if a pending call is there; none if it was not looked for yet.
    pub fn is_there(&self, call: &ObjectKey) -> Option<bool> {
        if self.stored(call).is_some() { Some(true) } else { self.missing.contains_key(call).then_some(false) }
    }

    /// Treats a pending call that is not there.
    pub fn settle_absent(&mut self, call: &ObjectKey) {
        // A call that reads as nothing because a home lost its storage is deleted, so that its own home names the calls
        // that were computed from it: these may still be shown.
        let is_gone = self.missing.get(call).is_some_and(|(_, number)| number & GONE != 0);
        let treatment = if is_gone { Treatment::Revoked } else { Treatment::Absent };
        self.finish(call, treatment, true);
    }

    /// Treats a pending call that cannot be recomputed, or is not worth it: it will be deleted.
    pub fn revoke(&mut self, call: &ObjectKey) {
        self.computed.remove(call);
        self.finish(call, Treatment::Revoked, true);
    }

    /// Treats a pending call that has been recomputed.
    pub fn settle(&mut self, call: &ObjectKey) -> Recomputed {
        let before = self.stored(call).map(|stored| stored.result);
        let is_same = self.computed.get(call).map(|computed| &computed.result) == before.as_ref();
        self.finish(call, Treatment::Computed, !is_same);
        if is_same { Recomputed::Kept } else { Recomputed::Changed }
    }

    /// Notes the treatment of a call. If its result has changed, the calls that were computed from it are pending next.
    fn finish(&mut self, call: &ObjectKey, treatment: Treatment, has_changed: bool) {
        self.pending.remove(call);
        self.treated.insert(call.clone(), treatment);

        // A result that was computed from the old one is not what the function would give on what this transaction
        // writes.
        let users = self.suspects.remove(call).unwrap_or_default();
        for user in users.iter().filter(|_| has_changed) {
            if self.computed.remove(user).is_some() {
                self.treated.remove(user);
                self.suspect(user);
            }
        }

        debug_assert!(
            self.treated.keys().all(|call| !self.pending.contains(call)),
            "a call is treated and to be treated"
        );
    }

    // The transaction that is handed over.

    /// The transaction of a program that changed nothing, or that ended in an error of its own. If its reads do not
    /// hold together, the program is run again: its error may come of values that were never there at one time.
    pub fn to_validate(&self) -> Transaction {
        Transaction { homes: self.snapshot.to_homes().into_values().collect(), max_wait: 0, ..Transaction::default() }
    }

    /// The transaction that is to be committed. Its writes may wait for `max_wait` microseconds for rights to end.
    pub fn to_commit(&self, max_wait: u64) -> Transaction {
        let mut homes = self.snapshot.to_homes();
        for (key, change) in self.buffer.changes() {
            part(&mut homes, key.home).part.writes.push((key.name.clone(), change.clone()));
        }
        if !self.told.is_empty() {
            self.put_calls(&mut homes);
        }
        for home in homes.values_mut().filter(|home| !home.part.writes.is_empty()) {
            home.part.relies.extend(self.relies.keys().cloned());
        }

        Transaction { homes: homes.into_values().collect(), max_wait, ..Transaction::default() }
    }

    /// Adds what was done about the calls that depend on the transaction's writes.
    fn put_calls(&self, homes: &mut BTreeMap<u16, Home>) {
        // A call that is not there, or is deleted, depends on nothing any more: the notes of it go.
        for (call, treatment) in &self.treated {
            let told = self.told.get(call).into_iter().flatten();
            match treatment {
                Treatment::Computed => {}
                Treatment::Absent => told.for_each(|home| part(homes, *home).part.forgets.push(call.clone())),
                Treatment::Revoked => {
                    told.for_each(|home| part(homes, *home).part.forgets.push(call.clone()));
                    part(homes, call.home).part.writes.push((call.name.clone(), Change::Delete));
                }
            }
        }

        // A call whose result, dependencies and homes are noted already stays as it is, and rights over it go on. Every
        // other one is put, and registered.
        for (call, computed) in &self.computed {
            let stored = self.stored(call);
            let known: BTreeMap<u16, Incarnation> = self.stored_homes(call);

            // Where nothing was found, no incarnation was seen: it is judged by the one that is noted.
            let is_unseen = |incarnation: &Incarnation| *incarnation == Incarnation(0);
            let is_kept = stored.is_some_and(|stored| {
                let stands = |(region, incarnation): (&u16, &Incarnation)| {
                    let noted = known.get(region);
                    *region == call.home || noted.is_some_and(|noted| noted == incarnation || is_unseen(incarnation))
                };
                stored.result == computed.result
                    && computed.dependencies.is_subset(&stored.dependencies)
                    && computed.homes.iter().all(stands)
            });
            if !is_kept {
                self.put(call, homes);
                continue;
            }
            for (region, _) in computed.homes.iter().filter(|(_, incarnation)| is_unseen(incarnation)) {
                known.get(region).into_iter().for_each(|noted| part(homes, *region).rest_on(*noted));
            }
        }

        // Every home at which something is written hears that all these calls are covered; a home ignores those that do
        // not depend on it.
        for home in homes.values_mut().filter(|home| !home.part.writes.is_empty()) {
            home.part.covers.extend(self.treated.keys().cloned());
        }
    }

    /// Puts a call's value, and registers its dependencies.
    fn put(&self, call: &ObjectKey, homes: &mut BTreeMap<u16, Home>) {
        let Computed { result, dependencies, homes: rests } = &self.computed[call];

        // The old notes go at every home that has some, and the new ones take their place in the same transaction.
        let stored = self.stored(call);
        let before = stored.iter().flat_map(|stored| &stored.dependencies).map(|(region, _)| *region);
        for region in before.chain(dependencies.iter().map(|(region, _)| *region)).collect::<BTreeSet<u16>>() {
            let forgets = &mut part(homes, region).part.forgets;
            if !forgets.contains(call) {
                forgets.push(call.clone());
            }
        }

        // Everything that the function read is validated where it is noted: a note of an object that has changed since
        // would come too late. A call that is computed in this transaction too is written in it, and needs no
        // validation.
        for (region, dependency) in dependencies {
            let key = match dependency {
                Dependency::Name(name) => Some(ObjectKey::new(*region, name.clone())),
                Dependency::Span(_) => None,
            };
            let home = part(homes, *region);
            if let Some(key) = key.filter(|key| !self.computed.contains_key(key)) {
                home.rest_on(self.snapshot.incarnation(*region));
                home.part.reads.push((key.name.clone(), self.snapshot.number(&key)));
            } else if let Dependency::Span(span) = dependency {
                home.rest_on(self.snapshot.incarnation(*region));
                let scan = self.snapshot.scan_of(*region, span);
                if !home.part.scans.contains(&scan) {
                    home.part.scans.push(scan);
                }
            }
            home.part.depends.push((dependency.clone(), call.clone()));
        }

        // If it was not there, that is validated by its home: another client may have put it meanwhile.
        let rests = rests.iter().filter(|(region, _)| **region != call.home);
        let rests = rests.map(|(region, incarnation)| (*region, *incarnation)).collect();
        let value = Value::Derived(Derived { bytes: encode(result, dependencies).into(), homes: rests });
        let home = part(homes, call.home);
        if let Some((incarnation, number)) = self.missing.get(call) {
            home.rest_on(*incarnation);
            home.part.reads.push((call.name.clone(), *number));
        }

        home.part.writes.push((call.name.clone(), Change::Put(value)));
    }

    /// The stored value of a call, if it was read.
    fn derived(&self, call: &ObjectKey) -> Option<Derived> {
        match self.snapshot.known(call).flatten() {
            Some(Value::Derived(derived)) => Some(derived),
            _ => None,
        }
    }

    /// The stored value of a call, decoded.
    fn stored(&self, call: &ObjectKey) -> Option<Stored> {
        self.derived(call).and_then(|derived| decode(&derived.bytes).ok())
    }

    /// The homes on which the stored value of a call rests.
    fn stored_homes(&self, call: &ObjectKey) -> BTreeMap<u16, Incarnation> {
        self.derived(call).map(|derived| derived.homes.into_iter().collect()).unwrap_or_default()
    }
}

/// The part at a home; begins one if there is none.
fn part(homes: &mut BTreeMap<u16, Home>, region: u16) -> &mut Home {
    homes.entry(region).or_insert_with(|| Home { region, ..Home::default() })
}

/// The bytes of a call's value.
fn encode(result: &[u8], dependencies: &Subjects) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, result);
    put_u64(&mut bytes, dependencies.len() as u64);
    for (region, dependency) in dependencies {
        put_u64(&mut bytes, u64::from(*region));
        dependency.encode(&mut bytes);
    }
    bytes
}

/// Reads what [`encode`] wrote.
fn decode(bytes: &[u8]) -> Result<Stored, Malformed> {
    let mut cursor = Cursor(bytes);
    let result = cursor.bytes()?.to_vec();
    let mut dependencies = Subjects::new();
    for _ in 0..cursor.u64()? {
        let region = u16::try_from(cursor.u64()?).map_err(|_| Malformed)?;
        dependencies.insert((region, Dependency::decode(&mut cursor)?));
    }
    cursor.end()?;
    Ok(Stored { result, dependencies })
}
