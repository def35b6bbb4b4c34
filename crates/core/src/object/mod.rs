//! Objects, and the transactions over them: their structure, and their bounds.
//!
//! An **object** has a home region and a name; its value is bytes, or a counter. It lives at one site, its **home**,
//! which gives each of its values a **version**. A transaction names the versions that it read and the changes that it
//! wants; [`crate::txn`] decides whether it takes effect.
//!
//! A version's number is the home's count of writes, so it names one write of one object permanently. The absence of an
//! object is a version too: number zero. Two reads that both found nothing are of the same version even if something
//! was there in between. That is sound where all that was read is judged at one instant: so it is, but for transactions that only read and
//! that several homes check each at its own, which must not have found nothing.

pub mod message;
pub mod trace;
pub mod treaty;
mod value;

use std::fmt;

pub use crate::bounds::{
    CALL_BYTES, ENTRY_BYTES, KEY_BYTES, LEAF_BYTES, NOTES_BYTES, SCAN_ROWS, TRANSACTION_BYTES, TRANSACTION_OPERATIONS,
    VALUE_BYTES,
};
use crate::clock::SECOND;
use crate::codec::{Cursor, Malformed, put_bytes, put_i64, put_u64};
use crate::id::{Incarnation, SiteId};
use treaty::Note;
pub use value::{CALL_MARK, Derived, HOMES, ObjectKey, Value, is_call, is_key, is_prefix, text};

/// The name of one value of one object: no other value of it ever has the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version {
    /// The incarnation of the home that wrote it, or found nothing.
    pub incarnation: Incarnation,
    /// The home's count of writes when it was written; zero if nothing is there. The [`GONE`] bit is set for a call
    /// whose value no longer counts.
    pub number: u64,
}

/// The bit of [`Version::number`] that marks a call whose value rests on objects that have been lost since; it reads as
/// nothing.
pub const GONE: u64 = 1 << 63;

/// The result of a read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The version.
    pub version: Version,
    /// The value; none if nothing is there.
    pub value: Option<Value>,
}

/// A transaction's change of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The object gets this value.
    Put(Value),
    /// The object is deleted.
    Delete,
    /// The counter grows by this; one that is not there begins at zero. Adds commute, so they do not exclude each
    /// other.
    Add(i64),
}

impl Change {
    /// True if it is an add.
    pub fn is_add(&self) -> bool {
        matches!(self, Change::Add(_))
    }

    fn size(&self) -> usize {
        match self {
            Change::Put(value) => value.size(),
            Change::Delete => 0,
            Change::Add(_) => 8,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Change::Put(value) => {
                out.push(0);
                value.encode(out);
            }
            Change::Delete => out.push(1),
            Change::Add(delta) => {
                out.push(2);
                put_i64(out, *delta);
            }
        }
    }

    fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        match cursor.u8()? {
            0 => Ok(Change::Put(Value::decode(cursor)?)),
            1 => Ok(Change::Delete),
            2 => Ok(Change::Add(cursor.i64()?)),
            _ => Err(Malformed),
        }
    }
}

/// A part of the names of one region, in order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Span {
    /// The beginning of all its names.
    pub prefix: String,
    /// If not empty, the name after which its names come.
    pub after: String,
    /// The number of names, the first ones in order, that it holds at most; at most [`SCAN_ROWS`].
    pub limit: u32,
}

impl Span {
    /// True if it can be scanned.
    pub fn is_sound(&self) -> bool {
        is_prefix(&self.prefix) && is_prefix(&self.after) && (1..=SCAN_ROWS).contains(&(self.limit as usize))
    }
}

/// Something at one home on which a call depends.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dependency {
    /// An object, there or not.
    Name(String),
    /// The objects in a span, those that are not there included. Its limit does not count.
    Span(Span),
}

impl Dependency {
    fn size(&self) -> usize {
        match self {
            Dependency::Name(name) => name.len(),
            Dependency::Span(span) => span.prefix.len() + span.after.len(),
        }
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Dependency::Name(name) => {
                out.push(0);
                put_bytes(out, name.as_bytes());
            }
            Dependency::Span(span) => {
                out.push(1);
                span.encode(out);
            }
        }
    }

    /// Reads what [`Dependency::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        match cursor.u8()? {
            0 => Ok(Dependency::Name(text(cursor)?)),
            1 => Ok(Dependency::Span(Span::decode(cursor)?)),
            _ => Err(Malformed),
        }
    }
}

impl Span {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.prefix.as_bytes());
        put_bytes(out, self.after.as_bytes());
        put_u64(out, u64::from(self.limit));
    }

    fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        Ok(Span { prefix: text(cursor)?, after: text(cursor)?, limit: cursor.u32()? })
    }
}

/// The part of a transaction at one home: its reads and its changes there.
///
/// # Calls
///
/// The result of a memoized function for some arguments is kept as an object, its *call*. The homes of the objects that
/// the function read note that the call **depends** on them. A write of one of these objects is refused, as
/// [`Cause::Depended`], unless its transaction **covers** the call: it has run the function again on the new values,
/// and puts the new result, if that is another, or deletes the call. All of this is one transaction, so a call is never
/// seen with a result that its function would not give.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// The names that were read, with the number of the version; at most once each.
    pub reads: Vec<(String, u64)>,
    /// The spans that were read, with the version numbers of the objects that were there.
    pub scans: Vec<(Span, Vec<u64>)>,
    /// The changes, in the order of names, at most one each.
    pub writes: Vec<(String, Change)>,
    /// The calls that depend on what is written here and that this transaction covers: it reads or writes each.
    pub covers: Vec<ObjectKey>,
    /// The calls that depend on nothing here any more.
    pub forgets: Vec<ObjectKey>,
    /// New dependencies of calls on something here that is read or written in this part. Each call is put in this
    /// transaction.
    pub depends: Vec<(Dependency, ObjectKey)>,
    /// The leaves here of treaties that this transaction makes: it puts each treaty's object.
    pub notes: Vec<Note>,
    /// The treaties that the transaction relies upon: none of them is retracted for what is written here. Where it would have to
    /// be, the part is refused, as [`Cause::NotMet`].
    pub relies: Vec<ObjectKey>,
}

impl Part {
    /// True if it neither reads nor changes anything.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.scans.is_empty() && !self.changes()
    }

    /// True if it changes anything.
    pub fn changes(&self) -> bool {
        let Self { writes, forgets, depends, notes, .. } = self;
        !(writes.is_empty() && forgets.is_empty() && depends.is_empty() && notes.is_empty())
    }

    /// Returns its size in a message, about, in bytes.
    pub fn bytes(&self) -> usize {
        let reads = self.reads.iter().map(|(name, _)| name.len() + ENTRY_BYTES);
        let scans = self.scans.iter().map(|(span, numbers)| {
            span.prefix.len() + span.after.len() + ENTRY_BYTES + numbers.len() * size_of::<u64>()
        });
        let writes = self.writes.iter().map(|(name, change)| {
            let value = if let Change::Put(value) = change { value.size() } else { 0 };
            name.len() + value + ENTRY_BYTES
        });
        let depends =
            self.depends.iter().map(|(dependency, call)| dependency.size() + call.name.len() + 2 * ENTRY_BYTES);
        let calls = self.covers.iter().chain(&self.forgets).chain(&self.relies);
        let calls = calls.map(|call| call.name.len() + 2 * ENTRY_BYTES).chain(depends);
        let notes = self.notes.iter().map(Note::bytes);
        reads.chain(scans).chain(writes).chain(calls).chain(notes).sum()
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.reads.len() as u64);
        for (name, number) in &self.reads {
            put_bytes(out, name.as_bytes());
            put_u64(out, *number);
        }
        put_u64(out, self.scans.len() as u64);
        for (span, numbers) in &self.scans {
            span.encode(out);
            put_u64(out, numbers.len() as u64);
            numbers.iter().for_each(|number| put_u64(out, *number));
        }
        put_u64(out, self.writes.len() as u64);
        for (name, change) in &self.writes {
            put_bytes(out, name.as_bytes());
            change.encode(out);
        }
        for calls in [&self.covers, &self.forgets] {
            put_u64(out, calls.len() as u64);
            calls.iter().for_each(|call| call.encode(out));
        }
        put_u64(out, self.depends.len() as u64);
        for (dependency, call) in &self.depends {
            dependency.encode(out);
            call.encode(out);
        }

        // As a part was written before there were treaties, if it has nothing to do with any.
        if !(self.notes.is_empty() && self.relies.is_empty()) {
            put_u64(out, self.notes.len() as u64);
            self.notes.iter().for_each(|note| note.encode(out));
            put_u64(out, self.relies.len() as u64);
            self.relies.iter().for_each(|treaty| treaty.encode(out));
        }
    }

    /// Reads what [`Part::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let mut part = Part::default();
        for _ in 0..cursor.u64()? {
            part.reads.push((text(cursor)?, cursor.u64()?));
        }
        for _ in 0..cursor.u64()? {
            let span = Span::decode(cursor)?;
            let numbers = (0..cursor.u64()?).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
            part.scans.push((span, numbers));
        }
        for _ in 0..cursor.u64()? {
            part.writes.push((text(cursor)?, Change::decode(cursor)?));
        }

        // A row of a layout that knew no calls ends here.
        if cursor.0.is_empty() {
            return Ok(part);
        }
        for calls in [&mut part.covers, &mut part.forgets] {
            *calls = (0..cursor.u64()?).map(|_| ObjectKey::decode(cursor)).collect::<Result<_, _>>()?;
        }
        for _ in 0..cursor.u64()? {
            part.depends.push((Dependency::decode(cursor)?, ObjectKey::decode(cursor)?));
        }
        if !cursor.0.is_empty() {
            part.notes = (0..cursor.u64()?).map(|_| Note::decode(cursor)).collect::<Result<_, _>>()?;
            part.relies = (0..cursor.u64()?).map(|_| ObjectKey::decode(cursor)).collect::<Result<_, _>>()?;
        }

        Ok(part)
    }
}

/// A transaction as its client hands it over to be committed: its reads, and the changes that it wants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    /// Its parts by home region, in any order, at most one each.
    pub homes: Vec<Home>,
    /// The longest time that its writes may wait for rights of other sites to end, in microseconds.
    pub max_wait: u64,
    /// The program that it is a run of. No part of its digest: it decides only which program goes first.
    pub origin: Origin,
}

/// The program that a transaction is a run of. Its client runs it again if it was aborted; of those that want the same
/// objects, the older goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// The program's name, the same in every run. Zero for none: it never goes before another.
    pub nonce: u64,
    /// The time for which it has been waiting for its turn, in microseconds: since this run began, or, if other
    /// programs were in its way several times, since an earlier run began ([`crate::draft::again`]).
    pub age: u64,
}

/// The place of a program in the order in which those that want the same objects have their turn: the lower goes first.
/// Sites' clocks decide it, so it is fair as far as they agree. Nothing but fairness rests on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rank {
    /// The time since which it has been waiting for its turn, in microseconds since 1970 by the wall clock of the site
    /// that runs it.
    pub began: i64,
    /// The program's nonce.
    pub nonce: u64,
}

impl Rank {
    /// The rank of a program of which nothing is known: it comes last.
    pub const LAST: Self = Self { began: i64::MAX, nonce: 0 };
    /// The longest wait that counts, in microseconds: a client that claims to be older gains nothing by it.
    const OLDEST: u64 = 60 * SECOND;

    /// The rank of a program, when its site's wall clock shows `wall`.
    pub fn of(origin: Origin, wall: i64) -> Self {
        if origin.nonce == 0 {
            return Self::LAST;
        }
        Self { began: wall.saturating_sub_unsigned(origin.age.min(Self::OLDEST)), nonce: origin.nonce }
    }
}

impl Default for Rank {
    fn default() -> Self {
        Self::LAST
    }
}

/// A transaction's part at one region.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Home {
    /// The region's position.
    pub region: u16,
    /// The home's incarnation in which everything was read there; zero if nothing was.
    pub incarnation: Incarnation,
    /// The part itself.
    pub part: Part,
}

impl Home {
    /// Notes that something was read there in an incarnation; zero for one that is not known. Of two the earlier stays: then the home refuses
    /// the part, which could not hold together.
    pub(crate) fn rest_on(&mut self, incarnation: Incarnation) {
        if incarnation > Incarnation(0) && (self.incarnation == Incarnation(0) || incarnation < self.incarnation) {
            self.incarnation = incarnation;
        }
    }
}

impl Transaction {
    /// Returns its size in a message, about, in bytes.
    pub fn bytes(&self) -> usize {
        self.homes.iter().map(|home| home.part.bytes()).sum()
    }

    /// Appends it; for its digest.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.max_wait);
        for home in &self.homes {
            put_u64(out, u64::from(home.region));
            put_u64(out, u64::from(home.incarnation.0));
            home.part.encode(out);
        }
    }

    /// The number of its reads, scans, writes and notes; a name that stands twice counts twice.
    fn operations(&self) -> usize {
        self.homes.iter().map(|home| home.part.operations()).sum()
    }

    /// About the number of rows that it reads and writes.
    pub fn rows(&self) -> usize {
        let notes = self.homes.iter().flat_map(|home| &home.part.notes);
        self.operations() + notes.map(|note| note.clauses.len().max(note.terms())).sum::<usize>()
    }

    /// The size of its notes in a message, about, in bytes.
    fn notes_bytes(&self) -> usize {
        self.homes.iter().flat_map(|home| &home.part.notes).map(Note::bytes).sum()
    }

    /// Puts every part in order, and checks the bounds. A name that was read twice must have shown the same version.
    pub fn normalize(&mut self) -> Result<(), Abort> {
        // A client may have written anything here: whatever is not refused now, homes rely on.
        self.homes.retain(|home| !home.part.is_empty());
        self.homes.sort_by_key(|home| home.region);
        if self.homes.windows(2).any(|pair| pair[0].region == pair[1].region) {
            return Err(Abort::of(Cause::Malformed));
        }

        let (mut operations, mut bytes) = (0, 0);
        for home in &mut self.homes {
            let (more_operations, more_bytes) = home.normalize()?;
            (operations, bytes) = (operations + more_operations, bytes + more_bytes);
        }
        let notes = self.notes_bytes();
        let are_leaves_large = self.homes.iter().any(|home| home.part.leaf_bytes() > LEAF_BYTES);
        if operations > TRANSACTION_OPERATIONS || bytes > TRANSACTION_BYTES || notes > NOTES_BYTES || are_leaves_large {
            return Err(Abort::of(Cause::TooMuch));
        }

        // A call that is registered and not put in this transaction, or covered and not looked at, would be shown with
        // a result that its function does not give.
        if self.homes.iter().all(|home| self.has_its_calls(&home.part)) {
            Ok(())
        } else {
            Err(Abort::of(Cause::Malformed))
        }
    }

    /// True if its reads keep the bounds, so that storage may be asked for them. True of every transaction that can be
    /// [put in order](Transaction::normalize).
    pub fn keeps_bounds(&self) -> bool {
        // A name that stands here twice counts once, which shows only when it is in order.
        (self.operations() <= TRANSACTION_OPERATIONS || self.clone().normalize().is_ok())
            && self.notes_bytes() <= NOTES_BYTES
            && self.homes.iter().all(|home| home.part.has_sound_scans() && home.part.notes.iter().all(Note::is_sound))
    }

    /// True if the transaction reads and writes the calls that a part covers, registers or forgets, as the part says.
    fn has_its_calls(&self, part: &Part) -> bool {
        debug_assert!(
            part.writes.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "a part is searched that is not in order"
        );
        let home = |call: &ObjectKey| self.homes.iter().find(|home| home.region == call.home).map(|home| &home.part);
        let writes = |call: &ObjectKey| home(call).and_then(|part| part.write_of(&call.name));
        let covers =
            |call: &ObjectKey| writes(call).is_some() || home(call).is_some_and(|part| part.has_read(&call.name));
        let is_put = |call: &ObjectKey| matches!(writes(call), Some(Change::Put(_)));

        // A dependency must be read or written in the same part: a note of something that was not validated could be
        // out of date before it is made.
        let is_known = |dependency: &Dependency| match dependency {
            Dependency::Name(name) => part.has_read(name) || part.write_of(name).is_some(),
            Dependency::Span(span) => part.scans.iter().any(|(read, _)| read == span),
        };

        let mut calls = part.covers.iter().chain(&part.forgets).chain(part.depends.iter().map(|(_, call)| call));
        calls.all(|call| is_call(&call.name))
            && part.notes.iter().all(|note| is_put(&note.treaty))
            && part.covers.iter().all(covers)
            && part.depends.iter().all(|(dependency, call)| is_known(dependency) && is_put(call))
    }
}

impl Part {
    /// True if its reads keep the bounds, so that storage may be asked for them, and it brings one note of a treaty at most. A part that was
    /// put in order in its transaction is so.
    pub fn keeps_bounds(&self) -> bool {
        self.operations() <= TRANSACTION_OPERATIONS
            && self.has_sound_scans()
            && self.is_in_order()
            && self.notes.windows(2).all(|pair| pair[0].treaty < pair[1].treaty)
            && self.notes.iter().all(Note::is_sound)
            && self.leaf_bytes() <= LEAF_BYTES
    }

    /// The size of the rows of leaves that its notes make, about, in bytes.
    fn leaf_bytes(&self) -> usize {
        self.notes.iter().map(Note::row_bytes).sum()
    }

    /// True if each name stands among its reads, and among its writes, once and in order: names are searched by halves, and
    /// locks are taken and freed once for each.
    fn is_in_order(&self) -> bool {
        self.reads.windows(2).all(|pair| pair[0].0 < pair[1].0)
            && self.writes.windows(2).all(|pair| pair[0].0 < pair[1].0)
    }

    /// True if its spans can be scanned, and none shows more rows than its limit.
    fn has_sound_scans(&self) -> bool {
        self.scans.iter().all(|(span, numbers)| span.is_sound() && numbers.len() <= span.limit as usize)
    }

    /// The number of operations that it counts as.
    fn operations(&self) -> usize {
        let Self { reads, scans, writes, covers, forgets, depends, notes, relies } = self;
        let rows: usize = scans.iter().map(|(_, numbers)| numbers.len()).sum();
        let calls = covers.len() + forgets.len() + depends.len() + notes.len() + relies.len();
        rows + reads.len() + scans.len() + writes.len() + calls
    }

    /// True if it read this name. Its reads must be in order.
    fn has_read(&self, name: &str) -> bool {
        self.reads.binary_search_by(|(other, _)| other.as_str().cmp(name)).is_ok()
    }

    /// Its change of this name. Its writes must be in order.
    pub(crate) fn write_of(&self, name: &str) -> Option<&Change> {
        let at = self.writes.binary_search_by(|(other, _)| other.as_str().cmp(name)).ok()?;
        Some(&self.writes[at].1)
    }
}

impl Home {
    /// Puts the part in order. Returns the number of operations that it counts as, and of bytes that it writes; notes not included.
    fn normalize(&mut self) -> Result<(usize, usize), Abort> {
        let Home { region, part, .. } = self;
        let refuse = |cause, name: &str| Err(Abort { key: Some(ObjectKey::new(*region, name)), ..Abort::of(cause) });
        let malformed = || Err(Abort::of(Cause::Malformed));

        // One name with two versions: it was changed between the two reads, and no instant has both.
        part.reads.sort();
        part.reads.dedup();
        if let Some(pair) = part.reads.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return refuse(Cause::Changed, &pair[0].0);
        }

        // One change for each name: locks are taken and given back once for each.
        part.writes.sort_by(|(one, _), (other, _)| one.cmp(other));
        if part.writes.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return malformed();
        }

        let mut names = part.reads.iter().map(|(name, _)| name).chain(part.writes.iter().map(|(name, _)| name));
        if names.any(|name| !is_key(name) && !is_call(name)) {
            return refuse(Cause::InvalidKey, "");
        }
        if !part.has_sound_scans() {
            return malformed();
        }

        // A call holds a derived value, and no other object does: what a derived value rests on is kept up to date only
        // for calls.
        let mut bytes = 0;
        for (name, change) in &part.writes {
            if change.size() > VALUE_BYTES {
                return refuse(Cause::TooLarge, name);
            }
            let is_derived = matches!(change, Change::Put(Value::Derived(_)));
            if *change != Change::Delete && is_derived != is_call(name) {
                return malformed();
            }
            if matches!(change, Change::Put(Value::Derived(derived)) if derived.homes.len() > HOMES) {
                return malformed();
            }
            bytes += name.len() + change.size();
        }

        for calls in [&mut part.covers, &mut part.forgets, &mut part.relies] {
            calls.sort_unstable();
            calls.dedup();
        }

        // One leaf of a treaty at each home.
        part.notes.sort_by(|one, other| one.treaty.cmp(&other.treaty));
        let is_twice = part.notes.windows(2).any(|pair| pair[0].treaty == pair[1].treaty);
        if is_twice || !part.notes.iter().all(Note::is_sound) {
            return malformed();
        }
        part.depends.sort_unstable();
        part.depends.dedup();
        bytes += part.depends.iter().map(|(dependency, call)| dependency.size() + call.name.len()).sum::<usize>();
        Ok((part.operations(), bytes))
    }
}

/// The reason why a transaction did not take effect, or a read found nothing, with its circumstances.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abort {
    /// The reason.
    pub cause: Cause,
    /// The object that it is about.
    pub key: Option<ObjectKey>,
    /// The site that refused it, or that is concerned.
    pub site: Option<SiteId>,
    /// The holders of the rights that stand in the way.
    pub holders: Vec<SiteId>,
    /// The end of the last of these rights, in microseconds since 1970.
    pub until: Option<i64>,
    /// The calls that depend on what it writes, and that it does not cover; as many as fit into [`NAMED_BYTES`](crate::bounds::NAMED_BYTES),
    /// and none where the outcome is told once more.
    pub calls: Vec<ObjectKey>,
}

/// The reason of an [`Abort`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// An object that was read has been changed since.
    Changed,
    /// Another transaction is about to change, or relies on, what this one reads or writes.
    Busy,
    /// Rights that other sites hold would make a write wait for longer than it may.
    WouldWait,
    /// The time was up before every participant was prepared, or before the object's home, which is up, had answered.
    DeadlinePassed,
    /// It adds to an object that is no counter.
    NotACounter,
    /// A counter would leave the range of 64-bit integers.
    OutOfRange,
    /// The home lost its storage, and an object that is not there may have been there: write it again, or accept the
    /// loss.
    Lost,
    /// The object's home does not answer.
    Unreachable,
    /// The name is empty, too long, or has control characters.
    InvalidKey,
    /// No region has this position.
    UnknownRegion,
    /// A value is beyond [`VALUE_BYTES`].
    TooLarge,
    /// The transaction is beyond [`TRANSACTION_OPERATIONS`], [`TRANSACTION_BYTES`], [`NOTES_BYTES`] or
    /// [`LEAF_BYTES`]; or a call would rest on more at one home than one run of its function may read.
    TooMuch,
    /// The transaction breaks a rule of its structure, which no correct client does.
    Malformed,
    /// A queue is at its bound.
    Overloaded,
    /// The site is starting, rejoining or stopping.
    NotReady,
    /// A question about it came before all were prepared, which refuses it permanently.
    Withdrawn,
    /// Results of memoized functions depend on what it writes: it must recompute them, or delete them.
    Depended,
    /// The clocks of two sites are too far apart: a deadline that one of them sets means nothing to the other.
    ClocksDisagree,
    /// What it requires would not be true after it; or a treaty that it relies upon would be broken by what it writes.
    NotMet,
    /// Too many treaties rest on a counter.
    TooManyTreaties,
}

/// Every cause, in the order of their numbers.
const CAUSES: [Cause; 20] = [
    Cause::Changed,
    Cause::Busy,
    Cause::WouldWait,
    Cause::DeadlinePassed,
    Cause::NotACounter,
    Cause::OutOfRange,
    Cause::Lost,
    Cause::Unreachable,
    Cause::InvalidKey,
    Cause::UnknownRegion,
    Cause::TooLarge,
    Cause::TooMuch,
    Cause::Malformed,
    Cause::Overloaded,
    Cause::NotReady,
    Cause::Withdrawn,
    Cause::Depended,
    Cause::ClocksDisagree,
    Cause::NotMet,
    Cause::TooManyTreaties,
];

impl Cause {
    /// Its number, in rows and between sites; stable.
    pub fn number(self) -> u8 {
        CAUSES.iter().position(|cause| *cause == self).expect("every cause is listed") as u8
    }

    /// The cause with this number.
    pub fn numbered(number: u8) -> Option<Self> {
        CAUSES.get(usize::from(number)).copied()
    }

    /// True if the same program may succeed if it is run again, on new reads.
    pub fn is_transient(self) -> bool {
        matches!(self, Cause::Changed | Cause::Busy | Cause::DeadlinePassed)
    }
}

impl Abort {
    /// An abort for this reason, without circumstances.
    pub fn of(cause: Cause) -> Self {
        Self { cause, key: None, site: None, holders: Vec::new(), until: None, calls: Vec::new() }
    }

    /// An abort for this reason, about an object of this site, by this site.
    pub fn about(cause: Cause, site: SiteId, name: &str) -> Self {
        Self { key: Some(ObjectKey::new(site.region, name)), site: Some(site), ..Self::of(cause) }
    }

    /// Appends it, without the names of calls: outcomes are kept by the thousand, in memory too.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.cause.number());
        let flags =
            u8::from(self.key.is_some()) | u8::from(self.site.is_some()) << 1 | u8::from(self.until.is_some()) << 2;
        out.push(flags);
        self.key.iter().for_each(|key| key.encode(out));
        self.site.iter().for_each(|site| put_site(out, *site));
        self.until.iter().for_each(|until| put_i64(out, *until));
        put_u64(out, self.holders.len() as u64);
        self.holders.iter().for_each(|site| put_site(out, *site));
    }

    /// The bytes of the names of calls in it, about.
    pub fn named_bytes(&self) -> usize {
        self.calls.iter().map(|call| call.name.len() + ENTRY_BYTES).sum()
    }

    /// Reads what [`Abort::encode`] wrote; earlier versions wrote the names of calls too.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let cause = Cause::numbered(cursor.u8()?).ok_or(Malformed)?;
        let flags = cursor.u8()?;
        let mut abort = Abort::of(cause);
        if flags & 1 != 0 {
            abort.key = Some(ObjectKey::decode(cursor)?);
        }
        if flags & 2 != 0 {
            abort.site = Some(site(cursor)?);
        }
        if flags & 4 != 0 {
            abort.until = Some(cursor.i64()?);
        }
        abort.holders = (0..cursor.u64()?).map(|_| site(cursor)).collect::<Result<_, _>>()?;

        if !cursor.0.is_empty() {
            (0..cursor.u64()?).try_for_each(|_| ObjectKey::decode(cursor).map(drop))?;
        }
        Ok(abort)
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cause)?;
        self.key.iter().try_for_each(|key| write!(f, " ({key})"))
    }
}

/// Appends a site's id.
pub fn put_site(out: &mut Vec<u8>, site: SiteId) {
    put_u64(out, u64::from(site.region));
    put_u64(out, u64::from(site.lane));
}

/// Reads what [`put_site`] wrote.
pub fn site(cursor: &mut Cursor) -> Result<SiteId, Malformed> {
    let mut part = || u16::try_from(cursor.u64()?).map_err(|_| Malformed);
    Ok(SiteId { region: part()?, lane: part()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::treaty::Term;

    #[test]
    fn notes_whose_rows_no_batch_holds_are_refused() {
        let note = |letter: char| {
            let name = |at: u32| Term { name: "n".into(), is_log: false, weight: i64::from(at) + 1 };
            let clauses = (0..4096).map(|at| (at, vec![name(at)], 0)).collect();
            let treaty = treaty::treaty_key(0, &letter.to_string().repeat(1000));
            let homes = vec![(0, Incarnation(1))];
            Note { treaty, nonce: 1, homes, tree: treaty::Tree::Flat, clauses }
        };
        let is_too_much = |notes: Vec<Note>| {
            let home = Home { region: 0, incarnation: Incarnation(1), part: Part { notes, ..Part::default() } };
            let mut transaction = Transaction { homes: vec![home], ..Transaction::default() };
            assert!(transaction.rows() >= 4096, "each clause is a row");
            let is_too_much = transaction.normalize().is_err_and(|abort| abort.cause == Cause::TooMuch);
            assert_eq!(is_too_much, !transaction.homes[0].part.keeps_bounds(), "a participant judges alike");
            is_too_much
        };
        assert!(!is_too_much(vec![note('a')]));
        assert!(is_too_much(vec![note('a'), note('b')]), "no batch holds their rows");
    }

    /// A request of 8 MiB has room for more than a million terms, all of which may name one large object.
    #[test]
    fn storage_is_asked_for_nothing_that_notes_beyond_their_bound_name() {
        let note = |number: u32| {
            let term = |weight| Term { name: "n".into(), is_log: false, weight };
            let (treaty, homes) = (treaty::treaty_key(0, &number.to_string()), vec![(0, Incarnation(1))]);
            let clauses = vec![(0, (1..=4096).map(term).collect(), 0)];
            Note { treaty, nonce: 1, homes, tree: treaty::Tree::Flat, clauses }
        };
        let of = |notes: u32| {
            let part = Part { notes: (0..notes).map(note).collect(), ..Part::default() };
            let home = Home { region: 0, incarnation: Incarnation(1), part };
            Transaction { homes: vec![home], ..Transaction::default() }
        };
        let (few, many) = (of(64), of(400));
        assert!(few.notes_bytes() < NOTES_BYTES && few.keeps_bounds());
        assert_eq!(few.rows(), 64 * 4097, "each term is a row that is read");
        assert!(many.operations() < TRANSACTION_OPERATIONS && !many.keeps_bounds());
    }

    #[test]
    fn part_and_abort_survive_the_way_through_bytes() {
        let part = Part {
            reads: vec![("a".into(), 7), ("b".into(), 0)],
            scans: vec![(Span { prefix: "p/".into(), after: "p/x".into(), limit: 9 }, vec![3, 1 << 40])],
            writes: vec![
                ("a".into(), Change::Put(Value::Bytes(vec![1, 2].into()))),
                ("c".into(), Change::Add(-5)),
                ("d".into(), Change::Put(Value::Counter(i64::MIN))),
                ("e".into(), Change::Delete),
                (
                    "\u{1}f(1)".into(),
                    Change::Put(Value::Derived(Derived { bytes: vec![4].into(), homes: vec![(2, Incarnation(3))] })),
                ),
            ],
            covers: vec![ObjectKey::new(1, "\u{1}g()")],
            forgets: vec![ObjectKey::new(0, "\u{1}f(1)")],
            depends: vec![
                (Dependency::Name("a".into()), ObjectKey::new(0, "\u{1}f(1)")),
                (Dependency::Span(Span { prefix: "p/".into(), ..Span::default() }), ObjectKey::new(0, "\u{1}f(1)")),
            ],
            notes: vec![Note {
                treaty: treaty::treaty_key(1, "t"),
                nonce: 7,
                homes: vec![(0, Incarnation(1)), (1, Incarnation(2))],
                tree: treaty::Tree::Near,
                clauses: vec![(3, vec![treaty::Term { name: "a".into(), is_log: true, weight: -2 }], -9)],
            }],
            relies: vec![treaty::treaty_key(2, "u")],
        };
        let mut bytes = Vec::new();
        part.encode(&mut bytes);
        let mut cursor = Cursor(&bytes);
        assert_eq!(Part::decode(&mut cursor).as_ref(), Ok(&part));
        assert_eq!(cursor.end(), Ok(()));
        // As it was written before there were calls.
        let without = Part { notes: Vec::new(), relies: Vec::new(), ..part };
        bytes.clear();
        without.encode(&mut bytes);
        assert_eq!(
            Part::decode(&mut Cursor(&bytes)),
            Ok(without.clone()),
            "as it was written before there were treaties"
        );
        let before = Part { covers: Vec::new(), forgets: Vec::new(), depends: Vec::new(), ..without };
        bytes.clear();
        before.encode(&mut bytes);
        assert_eq!(Part::decode(&mut Cursor(&bytes[..bytes.len() - 3])), Ok(before));
        for cause in CAUSES {
            let mut abort = Abort::about(cause, SiteId::new(2, 1), "x");
            abort.holders = vec![SiteId::new(0, 0)];
            abort.until = Some(-4);
            abort.calls = vec![ObjectKey::new(7, "\u{1}f(1)")];
            let mut bytes = Vec::new();
            abort.encode(&mut bytes);
            let kept = Abort { calls: Vec::new(), ..abort.clone() };
            assert_eq!(Abort::decode(&mut Cursor(&bytes)), Ok(kept.clone()));
            // As it was written when the names of calls were kept.
            put_u64(&mut bytes, 1);
            abort.calls[0].encode(&mut bytes);
            assert_eq!(Abort::decode(&mut Cursor(&bytes)), Ok(kept));
        }
    }

    #[test]
    fn part_that_names_an_object_twice_or_out_of_order_is_not_taken() {
        let write = |name: &str| (name.to_owned(), Change::Delete);
        let part = |names: &[&str]| Part { writes: names.iter().map(|name| write(name)).collect(), ..Part::default() };
        assert!(part(&["a", "b"]).keeps_bounds());
        assert!(!part(&["a", "a"]).keeps_bounds());
        assert!(!part(&["b", "a"]).keeps_bounds());
    }

    #[test]
    fn part_that_brings_two_notes_of_one_treaty_is_not_taken() {
        let note = |treaty, nonce| Note {
            treaty: treaty::treaty_key(1, treaty),
            nonce,
            homes: vec![(0, Incarnation(1))],
            tree: treaty::Tree::Flat,
            clauses: vec![(0, vec![treaty::Term { name: "a".into(), is_log: false, weight: 1 }], 3)],
        };
        let part = |notes| Part { notes, ..Part::default() };
        assert!(part(vec![note("t", 7), note("u", 7)]).keeps_bounds());
        for nonce in [7, 8] {
            assert!(!part(vec![note("t", 7), note("t", nonce)]).keeps_bounds(), "two makings of one treaty at once");
        }
    }

    #[test]
    fn transaction_is_put_in_order_or_refused_by_name() {
        let home =
            |part| Transaction { homes: vec![Home { part, ..Home::default() }], max_wait: 0, ..Transaction::default() };
        let reads = |reads: &[(&str, u64)]| Part {
            reads: reads.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect(),
            ..Part::default()
        };
        let mut sound = home(reads(&[("b", 2), ("a", 1), ("b", 2)]));
        assert_eq!(sound.normalize(), Ok(()));
        assert_eq!(sound.homes[0].part, reads(&[("a", 1), ("b", 2)]));
        let cause = |part| home(part).normalize().expect_err("not sound").cause;
        assert_eq!(cause(reads(&[("a", 1), ("a", 2)])), Cause::Changed);
        assert_eq!(cause(reads(&[("", 1)])), Cause::InvalidKey);
        let put = |size| ("k".to_owned(), Change::Put(Value::Bytes(vec![0; size].into())));
        let writes = |writes| Part { writes, ..Part::default() };
        assert_eq!(cause(writes(vec![put(VALUE_BYTES + 1)])), Cause::TooLarge);
        assert_eq!(cause(writes(vec![put(1), put(1)])), Cause::Malformed);
        let large = |at: usize| (format!("k{at}"), put(VALUE_BYTES).1);
        assert_eq!(cause(writes((0..5).map(large).collect())), Cause::TooMuch);
    }
}
