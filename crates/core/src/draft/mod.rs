//! A transaction as long as its program runs, in a client: what it has read, what it wants to write, and the calls of
//! memoized functions that it uses, computes and recomputes. No input or output: whoever runs the program reads for it.
//!
//! # Calls
//!
//! A memoized function, for some arguments, is a **call**: an object with the result ([`crate::object::Derived`]), and at the
//! homes of all that the function read the note that the call depends on it. Its name holds the function's name, a
//! fingerprint of its code, and the arguments.
//!
//! - **Using.** A program that calls the function reads the call's object, like any object: so under a state warranty it costs
//!   nothing, whatever the function would have read.
//! - **Proposing and registering.** Where no object is there, the function runs, and what it reads is taken down in a
//!   *frame*. Then [`Draft::proposal`] is a transaction of its own that validates all that was read, notes the dependencies,
//!   and puts the object.
//! - **Defending.** A write of what calls depend on is refused, with their names. The writer's client runs the functions anew,
//!   on what it is about to write and inside the same transaction, so that what they read is validated with it. If the
//!   result is the same, the object stays as it is, and whoever relies on it goes on undisturbed. If it is another, it is put,
//!   which waits for or revokes the rights over it, and the calls that depend on *it* are next. Who does not have the code
//!   deletes the object.
//!
//! So a call's right needs no rules of its own about expiry: it is a state warranty over an object that is never stale.
//! A function that reads other objects than before registers these in the same transaction.
//!
//! | module | what it is about |
//! | --- | --- |
//! | `buffer` | what a transaction wants to write, in the layers of nested blocks |
//! | `snapshot` | what it has read |
//! | `again` | how a program that others were in the way of is run again |
//! | here | calls, and the transaction that comes of it all |

pub mod again;
pub mod buffer;
pub mod snapshot;

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::SECOND;
use crate::codec::{Cursor, Malformed, put_bytes, put_u64};
use crate::id::Incarnation;
use crate::object::{Change, Derived, GONE, Home, ObjectKey, Seen, Span, Subject, Transaction, Value, is_call};
use buffer::Buffer;
use snapshot::{Contradiction, Snapshot};

/// A proposal of several calls registers no more than so many calls and things that they depend on.
const PROPOSAL: usize = 128;

/// How long a proposal may wait for rights over what its calls replace, in microseconds.
const WAIT: u64 = SECOND;

/// Names a computation under way.
pub type FrameId = usize;

/// What a function read: regions, each with a name or a span there.
pub type Subjects = BTreeSet<(u16, Subject)>;

/// See the module.
#[derive(Debug)]
pub struct Draft {
    /// What was read, and will be validated.
    pub snapshot: Snapshot,
    /// What will be written.
    pub buffer: Buffer,
    frames: Vec<Frame>,
    computed: BTreeMap<ObjectKey, Computed>,
    /// Calls that were looked for and are not there: the incarnation and the version of that.
    missing: BTreeMap<ObjectKey, (Incarnation, u64)>,
    /// Calls that depend on what is written, and are to be treated.
    pending: BTreeSet<ObjectKey>,
    treated: BTreeMap<ObjectKey, Treatment>,
    /// The regions at which a call is noted as one that depends on what is written there.
    told: BTreeMap<ObjectKey, BTreeSet<u16>>,
    /// What was computed from a call before that came to be pending.
    suspects: BTreeMap<ObjectKey, Vec<ObjectKey>>,
}

/// A computation under way.
#[derive(Debug)]
struct Frame {
    call: ObjectKey,
    subjects: Subjects,
    homes: BTreeMap<u16, Incarnation>,
}

/// What came of a computation.
#[derive(Debug)]
struct Computed {
    result: Vec<u8>,
    subjects: Subjects,
    homes: BTreeMap<u16, Incarnation>,
}

/// What a writer does about a call that depends on what it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Treatment {
    /// Nothing is there.
    Absent,
    /// It is deleted.
    Revoked,
    /// It was recomputed.
    Computed,
}

/// What is known of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// Its result.
    Known(Vec<u8>),
    /// It has to be fetched; [`Draft::note_call`].
    Fetch,
    /// It is not there, so it has to be computed, in a frame; [`Draft::open`].
    Compute,
    /// It has to be treated first: it depends on what is written. [`Draft::next_pending`] or this very one.
    Pending,
    /// It will be deleted: the function runs as if it were no memoized one.
    Inline,
}

/// How a recomputation compares with what was there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recomputed {
    /// The result is the same.
    Kept,
    /// It is another.
    Changed,
}

/// A call's value, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stored {
    result: Vec<u8>,
    subjects: Subjects,
}

impl Default for Draft {
    fn default() -> Self {
        Self::new()
    }
}

impl Draft {
    /// Of a transaction that has done nothing yet.
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
        }
    }

    // Using and computing.

    /// What is known of a call.
    pub fn lookup(&self, call: &ObjectKey) -> Lookup {
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

    /// Notes what was found of a call. That nothing is there is not validated, except by who writes what it depended on.
    pub fn note_call(&mut self, call: &ObjectKey, seen: Seen) -> Result<(), Contradiction> {
        let is_there = matches!(&seen.value, Some(Value::Derived(derived)) if decode(&derived.bytes).is_ok());
        if !is_there {
            self.missing.insert(call.clone(), (seen.version.incarnation, seen.version.number));
        }
        if is_there || self.pending.contains(call) { self.snapshot.note_get(call, seen) } else { Ok(()) }
    }

    /// A function begins to run for a call.
    pub fn open(&mut self, call: ObjectKey) -> FrameId {
        self.frames.push(Frame { call, subjects: Subjects::new(), homes: BTreeMap::new() });
        self.frames.len() - 1
    }

    /// What it read, which is in the snapshot.
    pub fn note(&mut self, frame: FrameId, key: &ObjectKey) {
        self.note_subject(frame, key.home, Subject::Name(key.name.clone()));
    }

    /// A span that it read, which is in the snapshot.
    pub fn note_span(&mut self, frame: FrameId, region: u16, span: &Span) {
        self.note_subject(frame, region, Subject::Span(span.clone()));
    }

    fn note_subject(&mut self, frame: FrameId, region: u16, subject: Subject) {
        let incarnation = self.snapshot.incarnation(region);
        let frame = &mut self.frames[frame];
        frame.subjects.insert((region, subject));
        frame.homes.insert(region, incarnation);
    }

    /// It used another call, whose result is [known](Lookup::Known).
    pub fn note_use(&mut self, frame: FrameId, call: &ObjectKey) {
        let mut homes = match self.computed.get(call) {
            Some(computed) => computed.homes.clone(),
            None => self.stored_homes(call),
        };
        // What a computed call is put upon is found there when it is looked for.
        let missing = self.missing.get(call).map(|(incarnation, _)| *incarnation);
        homes.insert(call.home, missing.unwrap_or_else(|| self.snapshot.incarnation(call.home)));
        let frame = &mut self.frames[frame];
        frame.subjects.insert((call.home, Subject::Name(call.name.clone())));
        frame.homes.extend(homes);
    }

    /// It has ended, with this result.
    pub fn close(&mut self, frame: FrameId, result: Vec<u8>) {
        let Frame { call, subjects, homes } = std::mem::replace(
            &mut self.frames[frame],
            Frame { call: ObjectKey::default(), subjects: Subjects::new(), homes: BTreeMap::new() },
        );
        self.computed.insert(call, Computed { result, subjects, homes });
    }

    /// What was computed, with the results.
    pub fn computed(&self) -> Vec<(ObjectKey, Vec<u8>)> {
        self.computed.iter().map(|(call, computed)| (call.clone(), computed.result.clone())).collect()
    }

    /// A transaction that validates a part of what was computed, registers it, and puts it; and the call at its top. None if
    /// nothing was computed, or it was computed on what this transaction writes.
    ///
    /// A small part stands in nobody's way for long, and several clients that have computed the same, and choose by different
    /// numbers, do not contend for it. What is not in it is computed from it the next time.
    pub fn proposal(&self, choice: u64) -> Option<(ObjectKey, Transaction)> {
        if !self.told.is_empty() {
            return None;
        }
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
        computed.subjects.iter().filter_map(|(region, subject)| match subject {
            Subject::Name(name) if is_call(name) => {
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

    /// A computed call that has used this one, and what is below it, if that is not too much for one proposal.
    fn user_of(&self, call: &ObjectKey) -> Option<(&ObjectKey, BTreeSet<&ObjectKey>)> {
        let subject = (call.home, Subject::Name(call.name.clone()));
        let (user, _) = self.computed.iter().find(|(_, computed)| computed.subjects.contains(&subject))?;
        let below = self.below(user);
        let size = below.iter().map(|call| 1 + self.computed[*call].subjects.len()).sum::<usize>();
        (size <= PROPOSAL).then_some((user, below))
    }

    /// A home says that these calls depend on what a proposal puts: they are of a time before it was lost, and deleted.
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

    /// Whether a home has said so, so that what is read from now on is read to compute calls anew.
    pub fn is_treating(&self) -> bool {
        !self.told.is_empty()
    }

    /// The calls that homes have said to depend on what is written there, by home.
    pub fn told(&self) -> BTreeMap<u16, Vec<ObjectKey>> {
        let mut told: BTreeMap<u16, Vec<ObjectKey>> = BTreeMap::new();
        for (call, homes) in &self.told {
            homes.iter().for_each(|home| told.entry(*home).or_default().push(call.clone()));
        }
        told
    }

    /// A home says that these calls depend on what is written there.
    pub fn demand(&mut self, home: u16, calls: &[ObjectKey]) {
        if self.told.is_empty() {
            // What was computed so far was computed without what is written.
            self.computed.clear();
        }
        for call in calls {
            self.told.entry(call.clone()).or_default().insert(home);
            if !self.treated.contains_key(call) {
                self.suspect(call);
            }
        }
    }

    fn suspect(&mut self, call: &ObjectKey) {
        let subject = (call.home, Subject::Name(call.name.clone()));
        let users = self.computed.iter().filter(|(_, computed)| computed.subjects.contains(&subject));
        self.suspects.insert(call.clone(), users.map(|(user, _)| user.clone()).collect());
        // That it was not there has not been validated; somebody has put it since.
        self.missing.remove(call);
        self.pending.insert(call.clone());
    }

    /// A call that is to be treated: fetch it, then recompute it and [`Draft::settle`], or [`Draft::revoke`].
    pub fn next_pending(&self) -> Option<ObjectKey> {
        self.pending.first().cloned()
    }

    /// Calls that are to be treated, and of which it is not known what is there.
    pub fn unread(&self) -> impl Iterator<Item = &ObjectKey> {
        self.pending.iter().filter(|call| self.is_there(call).is_none())
    }

    /// Whether what is there of a pending call is known: `Some(true)` if there is something.
    pub fn is_there(&self, call: &ObjectKey) -> Option<bool> {
        if self.stored(call).is_some() { Some(true) } else { self.missing.contains_key(call).then_some(false) }
    }

    /// A pending call is not there: nothing is to be done about it. One that rests on what was lost is deleted, so that its
    /// home names what was computed from it; that may still be shown.
    pub fn settle_absent(&mut self, call: &ObjectKey) {
        let is_gone = self.missing.get(call).is_some_and(|(_, number)| number & GONE != 0);
        let treatment = if is_gone { Treatment::Revoked } else { Treatment::Absent };
        self.finish(call, treatment, true);
    }

    /// A pending call cannot be recomputed, or is not worth it: it will be deleted.
    pub fn revoke(&mut self, call: &ObjectKey) {
        self.computed.remove(call);
        self.finish(call, Treatment::Revoked, true);
    }

    /// A pending call has been recomputed.
    pub fn settle(&mut self, call: &ObjectKey) -> Recomputed {
        let before = self.stored(call).map(|stored| stored.result);
        let is_same = self.computed.get(call).map(|computed| &computed.result) == before.as_ref();
        self.finish(call, Treatment::Computed, !is_same);
        if is_same { Recomputed::Kept } else { Recomputed::Changed }
    }

    fn finish(&mut self, call: &ObjectKey, treatment: Treatment, has_changed: bool) {
        self.pending.remove(call);
        self.treated.insert(call.clone(), treatment);
        let users = self.suspects.remove(call).unwrap_or_default();
        for user in users.iter().filter(|_| has_changed) {
            if self.computed.remove(user).is_some() {
                self.treated.remove(user);
                self.suspect(user);
            }
        }
    }

    // What comes of it.

    /// What is to be validated, of a program that wrote nothing, or whose error is to be handed over: it was one on what is
    /// true together, or the program is run again.
    pub fn to_validate(&self) -> Transaction {
        Transaction { homes: self.snapshot.to_homes().into_values().collect(), max_wait: 0, ..Transaction::default() }
    }

    /// What is to be committed. Its writes may wait so long for rights to end, in microseconds.
    pub fn to_commit(&self, max_wait: u64) -> Transaction {
        let mut homes = self.snapshot.to_homes();
        for (key, change) in self.buffer.changes() {
            part(&mut homes, key.home).part.writes.push((key.name.clone(), change.clone()));
        }
        if !self.told.is_empty() {
            self.put_calls(&mut homes);
        }
        Transaction { homes: homes.into_values().collect(), max_wait, ..Transaction::default() }
    }

    fn put_calls(&self, homes: &mut BTreeMap<u16, Home>) {
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
        for (call, computed) in &self.computed {
            let stored = self.stored(call);
            let is_kept = stored.is_some_and(|stored| {
                let known: BTreeMap<u16, Incarnation> = self.stored_homes(call);
                let stands = |(region, incarnation): (&u16, &Incarnation)| {
                    *region == call.home || known.get(region) == Some(incarnation)
                };
                stored.result == computed.result
                    && computed.subjects.is_subset(&stored.subjects)
                    && computed.homes.iter().all(stands)
            });
            if !is_kept {
                self.put(call, homes);
            }
        }
        for home in homes.values_mut().filter(|home| !home.part.writes.is_empty()) {
            home.part.covers.extend(self.treated.keys().cloned());
        }
    }

    /// Puts a call's value, and registers what it depends on.
    fn put(&self, call: &ObjectKey, homes: &mut BTreeMap<u16, Home>) {
        let Computed { result, subjects, homes: rests } = &self.computed[call];
        let stored = self.stored(call);
        let before = stored.iter().flat_map(|stored| &stored.subjects).map(|(region, _)| *region);
        for region in before.chain(subjects.iter().map(|(region, _)| *region)).collect::<BTreeSet<u16>>() {
            let forgets = &mut part(homes, region).part.forgets;
            if !forgets.contains(call) {
                forgets.push(call.clone());
            }
        }
        for (region, subject) in subjects {
            let key = match subject {
                Subject::Name(name) => Some(ObjectKey::new(*region, name.clone())),
                Subject::Span(_) => None,
            };
            let home = part(homes, *region);
            if let Some(key) = key.filter(|key| !self.computed.contains_key(key)) {
                home.incarnation = self.snapshot.incarnation(*region);
                home.part.reads.push((key.name.clone(), self.snapshot.number(&key)));
            } else if let Subject::Span(span) = subject {
                home.incarnation = self.snapshot.incarnation(*region);
                let scan = self.snapshot.scan_of(*region, span);
                if !home.part.scans.contains(&scan) {
                    home.part.scans.push(scan);
                }
            }
            home.part.depends.push((subject.clone(), call.clone()));
        }
        let rests = rests.iter().filter(|(region, _)| **region != call.home);
        let rests = rests.map(|(region, incarnation)| (*region, *incarnation)).collect();
        let value = Value::Derived(Derived { bytes: encode(result, subjects), homes: rests });
        let home = part(homes, call.home);
        if let Some((incarnation, number)) = self.missing.get(call) {
            home.incarnation = *incarnation;
            home.part.reads.push((call.name.clone(), *number));
        }
        home.part.writes.push((call.name.clone(), Change::Put(value)));
    }

    fn derived(&self, call: &ObjectKey) -> Option<Derived> {
        match self.snapshot.known(call).flatten() {
            Some(Value::Derived(derived)) => Some(derived),
            _ => None,
        }
    }

    fn stored(&self, call: &ObjectKey) -> Option<Stored> {
        self.derived(call).and_then(|derived| decode(&derived.bytes).ok())
    }

    fn stored_homes(&self, call: &ObjectKey) -> BTreeMap<u16, Incarnation> {
        self.derived(call).map(|derived| derived.homes.into_iter().collect()).unwrap_or_default()
    }
}

/// The part at a home.
fn part(homes: &mut BTreeMap<u16, Home>, region: u16) -> &mut Home {
    homes.entry(region).or_insert_with(|| Home { region, ..Home::default() })
}

fn encode(result: &[u8], subjects: &Subjects) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, result);
    put_u64(&mut bytes, subjects.len() as u64);
    for (region, subject) in subjects {
        put_u64(&mut bytes, u64::from(*region));
        subject.encode(&mut bytes);
    }
    bytes
}

fn decode(bytes: &[u8]) -> Result<Stored, Malformed> {
    let mut cursor = Cursor(bytes);
    let result = cursor.bytes()?.to_vec();
    let mut subjects = Subjects::new();
    for _ in 0..cursor.u64()? {
        let region = u16::try_from(cursor.u64()?).map_err(|_| Malformed)?;
        subjects.insert((region, Subject::decode(&mut cursor)?));
    }
    cursor.end()?;
    Ok(Stored { result, subjects })
}
