//! The contract between a protocol and what drives it.
//!
//! A [`Machine`] is a plain struct. A *driver* (the simulator, the server) feeds it [`Input`]s and carries out the
//! [`Effect`]s that it appends. The machine has no clock (each call brings [`Now`]), no socket, no disk, no thread.
//!
//! ```text
//!             Input: Message | Request | Tick
//!   driver ───────────────────────────────────▶  machine.handle(now, input, view, out)
//!          ◀───────────────────────────────────  Effect: Persist | Send | Respond      + deadline()
//! ```
//!
//! # What the driver promises
//!
//! 1. **Release rule.** A `Send` or a `Respond` leaves only when every batch handed out before it is durable. A machine
//!    cannot opt out, so whatever anyone outside has seen survives a crash, reads of unsynced state are safe, and many
//!    batches can share one sync. [`Gate`] is that rule; both drivers use it. (There is no `Persisted` input for that
//!    reason: a machine never needs to wait for its own disk.)
//! 2. After a crash the durable batches are a **prefix** of those handed out; each batch is whole or absent.
//! 3. The **view** is storage plus every batch handed out so far, synced or not ([`Overlay`]), restricted to what
//!    [`Machine::working_set`] named. Reading outside it is an assertion.
//! 4. **Now** is read after the view is complete, immediately before `handle`, and never goes back (its monotonic part,
//!    which also goes on while the machine is suspended, where the platform can tell). If the driver was stalled past
//!    [`STALL_BOUND`] between reading the clock and the first effect, it starts none of them and restarts the machine
//!    from storage.
//!
//! # What the machine promises
//!
//! It never panics on a request, nor on a message of another site of its cluster, however stale, repeated or reordered:
//! it ignores and counts what makes no sense. The other sites are trusted: what they say is decided contradicts no
//! assertion. A broken invariant is an assertion, also in release builds. The same inputs give the same effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::clock::Now;
use crate::codec::{Cursor, Malformed, put_u64};
use crate::id::SiteId;

/// A driver that was held up this long between reading the clock and the first effect drops the effects and restarts
/// the machine from storage, in microseconds.
pub const STALL_BOUND: u64 = 5_000_000;

/// A state machine that one driver runs.
pub trait Machine {
    /// A message between machines of this kind.
    type Message: fmt::Debug;
    /// A client's request.
    type Request: fmt::Debug;
    /// The answer to a client.
    type Response: fmt::Debug;

    /// The rows that this input needs from storage. Most inputs need none: rights, shares and protocol state are in
    /// memory.
    fn working_set(&self, now: Now, input: &Input<Self>) -> KeySet;

    /// Handles one input, appending its effects: at most one `Persist`, before all others.
    fn handle(&mut self, now: Now, input: Input<Self>, view: &View, out: &mut Vec<Effect<Self>>);

    /// The monotonic time, in microseconds, at which the machine next wants [`Input::Tick`].
    fn deadline(&self) -> Option<u64>;

    /// True if the row under this key is read through the view while running. All others are *resident*: the machine
    /// holds them in memory and reads them back only when it is opened, so no index is kept for them.
    fn is_paged(key: &[u8]) -> bool;
}

/// The client for which a response is. The driver chooses the number, the machine hands it back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u64);

/// One input, which a driver hands to a machine.
#[derive(Debug)]
pub enum Input<M: Machine + ?Sized> {
    /// A message from another site. It may be stale, repeated, out of order, or senseless.
    Message {
        /// The site that sent it.
        from: SiteId,
        /// The message.
        message: M::Message,
    },
    /// A client's request.
    Request {
        /// The client, to be named in the responses.
        client: ClientId,
        /// The request.
        request: M::Request,
    },
    /// The time of [`Machine::deadline`] has come (or the driver had a reason to wake the machine).
    Tick,
}

/// One effect, which a machine hands to its driver.
#[derive(Debug)]
pub enum Effect<M: Machine + ?Sized> {
    /// Make this durable, whole or not at all, after all batches handed out before.
    Persist(Batch),
    /// Send, after everything handed out before is durable. May be lost, repeated, reordered.
    Send {
        /// The site to send it to.
        to: SiteId,
        /// The message.
        message: M::Message,
    },
    /// Answer a client, after everything handed out before is durable.
    Respond {
        /// The client that asked.
        client: ClientId,
        /// The answer.
        response: M::Response,
    },
}

/// Writes that become durable together. Held encoded, as storage keeps them, so that a write on the hot path is one
/// copy.
///
/// Layout, repeated for each write: length of the key, length of the value plus one (zero for a deletion), both LEB128;
/// key; value.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// The encoded writes, in order; always well formed.
    bytes: Vec<u8>,
    /// The number of writes in `bytes`.
    writes: u32,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch that has room for this many encoded bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), writes: 0 }
    }

    /// Sets `key` to `value`.
    #[inline]
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        put_u64(&mut self.bytes, key.len() as u64);
        put_u64(&mut self.bytes, value.len() as u64 + 1);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.writes += 1;
    }

    /// Sets `key` to a value that is given in two parts.
    pub fn put_parts(&mut self, key: &[u8], head: &[u8], rest: &[u8]) {
        let length = head.len() + rest.len();
        self.bytes.reserve(16 + key.len() + length);
        put_u64(&mut self.bytes, key.len() as u64);
        put_u64(&mut self.bytes, length as u64 + 1);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(rest);
        self.writes += 1;
    }

    /// Removes `key`.
    #[inline]
    pub fn delete(&mut self, key: &[u8]) {
        put_u64(&mut self.bytes, key.len() as u64);
        put_u64(&mut self.bytes, 0);
        self.bytes.extend_from_slice(key);
        self.writes += 1;
    }

    /// True if it holds no write.
    pub fn is_empty(&self) -> bool {
        self.writes == 0
    }

    /// The number of writes.
    pub fn len(&self) -> usize {
        self.writes as usize
    }

    /// The encoded writes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads back what [`Batch::as_bytes`] gave.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Malformed> {
        let mut writes = 0;
        for write in (Writes { cursor: Cursor(&bytes) }) {
            write?;
            writes += 1;
        }
        Ok(Self { bytes, writes })
    }

    /// The writes in order; a value of `None` is a deletion. A later write of the same key wins.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        Writes { cursor: Cursor(&self.bytes) }.map(|write| write.expect("a batch is checked when it is made"))
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} writes, {} bytes)", self.writes, self.bytes.len())
    }
}

/// A value that was taken out of a batch. It shares the batch's memory where it is most of it, and is a copy otherwise: a
/// small row does not keep a large batch in memory.
#[derive(Clone, Debug)]
pub enum Taken {
    /// A copy.
    Copied(Vec<u8>),
    /// The bytes of a batch at this place.
    Shared(Arc<Batch>, Range<usize>),
}

impl Taken {
    /// Takes `value`, which must lie in the batch.
    pub fn of(batch: &Arc<Batch>, value: &[u8]) -> Self {
        if !Self::is_shared(batch, value) {
            return Taken::Copied(value.to_vec());
        }
        let start = value.as_ptr() as usize - batch.bytes.as_ptr() as usize;
        assert!(start + value.len() <= batch.bytes.len(), "the value is of another batch");
        Taken::Shared(Arc::clone(batch), start..start + value.len())
    }

    /// True if a value of the batch would share its memory.
    pub fn is_shared(batch: &Batch, value: &[u8]) -> bool {
        value.len() >= SHARED_BYTES && value.len() >= batch.bytes.len() / 2
    }

    /// The value as a vector of its own.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Taken::Copied(value) => value,
            Taken::Shared(..) => self.to_vec(),
        }
    }
}

impl Deref for Taken {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Taken::Copied(value) => value,
            Taken::Shared(batch, place) => &batch.bytes[place.clone()],
        }
    }
}

/// A value below this many bytes is copied out of its batch in any case: the copy costs less than the sharing.
const SHARED_BYTES: usize = 1024;

struct Writes<'a> {
    /// What is left of the batch, from the beginning of a write.
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Writes<'a> {
    type Item = Result<(&'a [u8], Option<&'a [u8]>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.cursor.0.is_empty() {
            return None;
        }
        let write = read_write(&mut self.cursor);
        if write.is_err() {
            self.cursor = Cursor(&[]);
        }
        Some(write)
    }
}

/// Reads one write of a batch: its key, and its value unless it is a deletion.
fn read_write<'a>(cursor: &mut Cursor<'a>) -> Result<(&'a [u8], Option<&'a [u8]>), Malformed> {
    let key_length = usize::try_from(cursor.u64()?).map_err(|_| Malformed)?;
    let value_length = usize::try_from(cursor.u64()?).map_err(|_| Malformed)?;

    // Lengths are compared before anything is split: the bytes may come from a file that is damaged.
    if key_length > cursor.0.len() {
        return Err(Malformed);
    }
    let (key, rest) = cursor.0.split_at(key_length);

    // Zero is a deletion; one is a value without bytes.
    let Some(value_length) = value_length.checked_sub(1) else {
        cursor.0 = rest;
        return Ok((key, None));
    };
    if value_length > rest.len() {
        return Err(Malformed);
    }
    let (value, rest) = rest.split_at(value_length);
    cursor.0 = rest;
    Ok((key, Some(value)))
}

/// Part of the rows between two keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeyRange {
    /// The first key that belongs to it.
    pub from: Vec<u8>,
    /// The first key that no longer belongs to it.
    pub to: Vec<u8>,
    /// No more rows than this are read; the first ones in order.
    pub limit: usize,
}

/// The rows that an input needs from storage.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct KeySet {
    /// Single rows.
    pub keys: Vec<Vec<u8>>,
    /// Ranges of rows.
    pub ranges: Vec<KeyRange>,
    /// Single rows of which the first bytes are enough, with the number of these bytes. The rest of a row is not copied.
    pub heads: Vec<(Vec<u8>, usize)>,
    /// Ranges of rows of which the first bytes are enough, with the number of these bytes.
    pub head_ranges: Vec<(KeyRange, usize)>,
    /// About the most bytes of rows that are read; everything, if there is none. A chapter that sets it asks
    /// [`View::is_cut`] whether something was left out. Heads take up none.
    pub room: Option<usize>,
}

impl KeySet {
    /// True if nothing is needed.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty() && self.heads.is_empty() && self.head_ranges.is_empty()
    }
}

/// Storage could not be read; the site stops, and says why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadError(pub String);

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReadError {}

/// A row: its key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// The rows that are read at a time from a range where the bytes read are bounded: the bound is exceeded by one page at
/// most.
const PAGE_ROWS: usize = 64;
/// The memory of a row besides its key and its value, about, in bytes.
const ROW_BYTES: usize = 64;

/// Reads from storage, of the batches that it has absorbed (see [`Overlay::retire`] for the rest).
pub trait Reader {
    /// The value under `key`.
    fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError>;

    /// The first `limit` rows with `from <= key < to`, in key order.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Row>, ReadError>;

    /// The first `bytes` bytes of the value under `key`; all of one that has fewer.
    fn read_head(&self, key: &[u8], bytes: usize) -> Result<Option<Vec<u8>>, ReadError> {
        Ok(self.read(key)?.map(|value| head_of(&value, bytes).to_vec()))
    }

    /// Like [`Reader::scan`], with the first `bytes` bytes of each value.
    fn scan_heads(&self, from: &[u8], to: &[u8], limit: usize, bytes: usize) -> Result<Vec<Row>, ReadError> {
        let head = |(key, value): Row| (key, head_of(&value, bytes).to_vec());
        Ok(self.scan(from, to, limit)?.into_iter().map(head).collect())
    }
}

/// The first bytes of a value.
fn head_of(value: &[u8], bytes: usize) -> &[u8] {
    &value[..value.len().min(bytes)]
}

/// The rows of an input's working set.
#[derive(Default, Debug)]
pub struct View {
    /// The rows that were read, those of ranges included; none as a value if there is no row.
    rows: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// The ranges that were read whole.
    ranges: Vec<KeyRange>,
    /// The heads that were read, those of ranges included; none as a value if there is no row.
    heads: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// The ranges whose heads were read. A batch of transactions may have tens of thousands, and each is looked up.
    head_ranges: BTreeSet<KeyRange>,
    /// True if a row or range is missing because there was no room.
    is_cut: bool,
}

impl View {
    /// The view of an input that needs nothing.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Reads `needed` through `overlay` from `reader`.
    pub fn prepare(needed: KeySet, overlay: &Overlay, reader: &dyn Reader) -> Result<Self, ReadError> {
        // Most inputs need nothing.
        if needed.is_empty() {
            return Ok(Self::empty());
        }

        let mut view = Self::default();
        let mut room = needed.room;

        // The overlay comes first: it has what was written since storage last absorbed a batch. A row that did not fit
        // is left out whole, and is then unknown, not absent.
        for key in needed.keys {
            if room == Some(0) {
                view.is_cut = true;
                break;
            }
            let value = match overlay.rows.get(&key) {
                Some((_, value)) => value.as_deref().map(<[u8]>::to_vec),
                None => reader.read(&key)?,
            };
            room = room.map(|room| room.saturating_sub(value.as_ref().map_or(0, Vec::len)));
            view.rows.insert(key, value);
        }

        for range in needed.ranges {
            let is_whole = match &mut room {
                Some(room) => view.read_pages(&range, room, overlay, reader)?,
                None => {
                    let rows = overlay.scan(&range, reader, None)?.into_iter();
                    view.rows.extend(rows.map(|(key, value)| (key, Some(value))));
                    true
                }
            };
            if !is_whole {
                view.is_cut = true;
                break;
            }
            view.ranges.push(range);
        }

        // To read a row's head, storage checks all of it, and a client may name one row as often as its request has room.
        for (key, bytes) in once(needed.heads) {
            let head = match overlay.rows.get(&key) {
                Some((_, value)) => value.as_ref().map(|value| head_of(value, bytes).to_vec()),
                None => reader.read_head(&key, bytes)?,
            };
            view.note_head(key, head);
        }
        for (range, bytes) in once(needed.head_ranges) {
            for (key, head) in overlay.scan(&range, reader, Some(bytes))? {
                view.note_head(key, Some(head));
            }
            view.head_ranges.insert(range);
        }

        Ok(view)
    }

    /// Adds a head. Of a row that is named twice, the longer head is kept.
    fn note_head(&mut self, key: Vec<u8>, head: Option<Vec<u8>>) {
        let length = |head: &Option<Vec<u8>>| head.as_ref().map_or(0, Vec::len);
        let known = self.heads.entry(key).or_default();
        if length(known) <= length(&head) {
            *known = head;
        }
    }

    /// Reads a range page by page; returns true if there was room for all of it.
    fn read_pages(
        &mut self,
        range: &KeyRange,
        room: &mut usize,
        overlay: &Overlay,
        reader: &dyn Reader,
    ) -> Result<bool, ReadError> {
        let mut left = range.clone();
        while left.limit > 0 {
            if *room == 0 {
                return Ok(false);
            }

            // The next page begins right after the last key of this one. A page that is not full was the last.
            let page = KeyRange { limit: left.limit.min(PAGE_ROWS), ..left.clone() };
            let rows = overlay.scan(&page, reader, None)?;
            left.limit = if rows.len() < page.limit { 0 } else { left.limit - rows.len() };
            if let Some((last, _)) = rows.last() {
                left.from = [&last[..], &[0]].concat();
            }

            for (key, value) in rows {
                *room = room.saturating_sub(key.len() + value.len() + ROW_BYTES);
                self.rows.insert(key, Some(value));
            }
        }

        Ok(true)
    }

    /// True if there was no [room](KeySet::room) for everything that the working set named. A row that is missing is
    /// unknown: it may be there or not.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The value under `key`, which the working set must have named.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        match self.rows.get(key) {
            Some(value) => value.as_deref(),
            None => panic!("read outside the working set: {key:?}"),
        }
    }

    /// True if the working set named this key.
    pub fn knows(&self, key: &[u8]) -> bool {
        self.rows.contains_key(key)
    }

    /// The beginning of the value under `key`, which the working set must have named as a head.
    pub fn head(&self, key: &[u8]) -> Option<&[u8]> {
        match self.heads.get(key) {
            Some(head) => head.as_deref(),
            None => panic!("read outside the working set: the head of {key:?}"),
        }
    }

    /// True if the working set named this key as a head. Of one that was found in a range of which it wants the keys alone, nothing
    /// is known but that it is there.
    pub fn knows_head(&self, key: &[u8]) -> bool {
        self.heads.get(key).is_some_and(|head| head.as_ref().is_none_or(|head| !head.is_empty()))
    }

    /// True if the working set named exactly this range of heads.
    pub fn has_heads_of(&self, range: &KeyRange) -> bool {
        self.head_ranges.contains(range)
    }

    /// The heads in a range, which the working set must have named exactly.
    pub fn heads_of(&self, range: &KeyRange) -> impl Iterator<Item = (&[u8], &[u8])> {
        assert!(self.has_heads_of(range), "scan outside the working set: the heads of {range:?}");
        within(&self.heads, range).take(range.limit)
    }

    /// The size of its rows and heads, keys included, in bytes.
    pub fn size(&self) -> usize {
        self.rows.iter().chain(&self.heads).map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum()
    }

    /// The ranges that the working set named, in its order.
    pub fn ranges(&self) -> &[KeyRange] {
        &self.ranges
    }

    /// True if the working set named a range that starts with this key.
    pub fn covers(&self, from: &[u8]) -> bool {
        self.ranges.iter().any(|range| range.from == from)
    }

    /// The rows of a range, which the working set must have named exactly.
    pub fn rows_of(&self, range: &KeyRange) -> impl Iterator<Item = (&[u8], &[u8])> {
        assert!(self.ranges.contains(range), "scan outside the working set: {range:?}");

        // Other parts of the working set may lie in the range, beyond its limit; up to its limit every row is there.
        within(&self.rows, range).take(range.limit)
    }

    /// The rows of a range that the working set named by its first key.
    pub fn range(&self, from: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
        let range = self.ranges.iter().find(|range| range.from == from);
        let range = range.unwrap_or_else(|| panic!("scan outside the working set: {from:?}"));
        within(&self.rows, range)
    }
}

/// Each of what is named once, with the longest head of those that were asked for.
fn once<T: Ord>(mut named: Vec<(T, usize)>) -> Vec<(T, usize)> {
    named.sort_unstable_by(|(one, short), (other, long)| one.cmp(other).then(long.cmp(short)));
    named.dedup_by(|(one, _), (other, _)| one == other);
    named
}

/// The rows between the ends of a range that are there.
fn within<'a>(
    rows: &'a BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    range: &KeyRange,
) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
    let bounds = (std::ops::Bound::Included(&range.from[..]), std::ops::Bound::Excluded(&range.to[..]));
    rows.range::<[u8], _>(bounds).filter_map(|(key, value)| Some((&key[..], value.as_deref()?)))
}

/// The number of a batch that a machine has handed out; the first is 1.
pub type Seq = u64;

/// The memory of a paged row besides its value and its key, which stands in it twice, about, in bytes.
const HELD_BYTES: usize = 224;
/// The memory of a row in the overlay, without its value, about, in bytes.
fn held_bytes(key: &[u8]) -> usize {
    2 * key.len() + HELD_BYTES
}

/// The length of a value, in bytes; none for a deletion.
fn length(value: Option<&Taken>) -> usize {
    value.map_or(0, |value| value.len())
}

/// The most rows that are forgotten at a time.
const RETIRED_AT_ONCE: usize = 8192;

/// The paged rows of batches that storage has not absorbed yet.
#[derive(Default, Debug)]
pub struct Overlay {
    /// The last write of each row, with the number of its batch; none as a value for a deletion.
    rows: BTreeMap<Vec<u8>, (Seq, Option<Taken>)>,
    /// The key of each row once, by rising numbers: the row is not forgotten before storage has absorbed the batch of that number. A
    /// row that was written again since goes to the back then. So a row costs the same however often it is written.
    written: VecDeque<(Seq, Vec<u8>)>,
    /// The memory that both take, about, in bytes.
    bytes: usize,
    /// The rows that are deletions.
    deletions: usize,
}

impl Overlay {
    /// Notes the paged rows of the batch numbered `seq`.
    pub fn apply<M: Machine + ?Sized>(&mut self, seq: Seq, batch: &Arc<Batch>) {
        // Rows are forgotten by the number of their last batch: out of order, one could go before storage shows it.
        let is_newest = self.written.back().is_none_or(|(last, _)| *last <= seq);
        assert!(is_newest, "batch {seq} is noted after a later one");
        for (key, value) in batch.iter().filter(|(key, _)| M::is_paged(key)) {
            let value = value.map(|value| Taken::of(batch, value));
            self.bytes += length(value.as_ref());
            self.deletions += usize::from(value.is_none());
            match self.rows.get_mut(key) {
                Some((last, before)) => {
                    assert!(*last <= seq, "batch {seq} is noted after a later one");
                    self.bytes -= length(before.as_ref());
                    self.deletions -= usize::from(before.is_none());
                    (*last, *before) = (seq, value);
                }
                None => {
                    self.bytes += held_bytes(key);
                    self.rows.insert(key.to_vec(), (seq, value));
                    self.written.push_back((seq, key.to_vec()));
                }
            }
        }
    }

    /// Forgets the batches that storage has absorbed: its [`Reader`] now shows every batch up to `absorbed`. It takes a
    /// bounded time, and returns true if there is more to forget.
    pub fn retire(&mut self, absorbed: Seq) -> bool {
        for _ in 0..RETIRED_AT_ONCE {
            if self.written.front().is_none_or(|(seq, ..)| *seq > absorbed) {
                return false;
            }

            // The row goes only if no later batch wrote it again: storage would show the older value.
            let (_, key) = self.written.pop_front().expect("looked at above");
            let (seq, value) = self.rows.get(&key).expect("each row has its key there once");
            if *seq > absorbed {
                let last = self.written.back().map_or(*seq, |(last, _)| *seq.max(last));
                self.written.push_back((last, key));
                continue;
            }
            let bytes = held_bytes(&key) + length(value.as_ref());
            assert!(self.bytes >= bytes, "the overlay takes less memory than one of its rows");
            self.bytes -= bytes;
            self.deletions -= usize::from(value.is_none());
            self.rows.remove(&key);
        }

        true
    }

    /// The memory that the rows take, about, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The rows that are deletions. Each scan over their keys reads what they hide.
    pub fn deletions(&self) -> usize {
        self.deletions
    }

    /// The number of rows held in memory.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True if no row is held.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows of a range; of each value no more than the first `head` bytes, if that is some.
    fn scan(&self, range: &KeyRange, reader: &dyn Reader, head: Option<usize>) -> Result<Vec<Row>, ReadError> {
        let mut found = Vec::new();
        let part = |value: &[u8]| head_of(value, head.unwrap_or(usize::MAX)).to_vec();
        let mut newer = self.rows.range(range.from.clone()..range.to.clone()).peekable();
        let mut from = range.from.clone();

        // Storage and overlay are merged in the order of keys; where both have a row, the overlay's is newer. Rows that
        // the overlay deletes use up the reader's limit, so more pages may have to be read to fill the range's: ever larger ones. Where the
        // first of many rows is taken away again and again, each page would else be one row.
        let mut rows = range.limit;
        loop {
            let page = match head {
                Some(bytes) => reader.scan_heads(&from, &range.to, rows, bytes)?,
                None => reader.scan(&from, &range.to, rows)?,
            };
            let last_page = page.len() < rows;
            rows = rows.max((2 * rows).min(PAGE_ROWS));
            for (key, value) in page {
                while let Some((newer_key, (_, newer_value))) = newer.next_if(|(newer, _)| **newer <= key) {
                    if let Some(newer_value) = newer_value {
                        found.push((newer_key.clone(), part(newer_value)));
                    }
                    if *newer_key == key {
                        break;
                    }
                }
                if !self.rows.contains_key(&key) {
                    found.push((key.clone(), value));
                }
                if found.len() >= range.limit {
                    found.truncate(range.limit);
                    return Ok(found);
                }
                from = key;
                from.push(0);
            }
            if last_page {
                break;
            }
        }

        // Storage has no more rows: the rest is the overlay's alone.
        let room = range.limit.saturating_sub(found.len());
        found.extend(newer.filter_map(|(key, (_, value))| Some((key.clone(), part(value.as_ref()?)))).take(room));
        found.truncate(range.limit);
        Ok(found)
    }
}

/// The release rule: holds sends and responses back until every batch that was handed out before them is durable.
#[derive(Debug)]
pub struct Gate<M: Machine> {
    /// The number of the last batch handed out.
    issued: Seq,
    /// The number of the last batch that is durable; at most `issued`.
    durable: Seq,
    /// The effects that are held back, each with the number of the batch it waits for: ascending, above `durable`.
    waiting: VecDeque<(Seq, Effect<M>)>,
}

impl<M: Machine> Gate<M> {
    /// A gate on storage whose last durable batch is `last`.
    pub fn new(last: Seq) -> Self {
        Self { issued: last, durable: last, waiting: VecDeque::new() }
    }

    /// Takes the effects of one `handle`. Batches go to `persist` with their number; what may leave at once goes to
    /// `release`, the rest waits for [`Gate::durable`].
    pub fn admit(
        &mut self,
        effects: &mut Vec<Effect<M>>,
        mut persist: impl FnMut(Seq, Batch),
        mut release: impl FnMut(Effect<M>),
    ) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Persist(batch) => {
                    self.issued += 1;
                    persist(self.issued, batch);
                }
                // The line that keeps a response back until the sync: it leaves at once only if nothing is unsynced,
                // since what it says may rest on any earlier batch, not on its own alone.
                other if self.durable == self.issued => release(other),
                other => self.waiting.push_back((self.issued, other)),
            }
        }
    }

    /// Notes that storage has synced every batch up to `seq`, and lets out, in order, the effects that waited for no
    /// more than that.
    pub fn durable(&mut self, seq: Seq, mut release: impl FnMut(Effect<M>)) {
        assert!(seq <= self.issued, "batch {seq} is said to be durable, and {} is the last handed out", self.issued);
        debug_assert!(seq >= self.durable, "batch {} is durable, and only {seq} is said to be", self.durable);
        self.durable = seq;
        while self.waiting.front().is_some_and(|(needs, _)| *needs <= seq) {
            release(self.waiting.pop_front().expect("looked at above").1);
        }
    }

    /// The number of the last batch handed out.
    pub fn issued(&self) -> Seq {
        self.issued
    }

    /// The number of effects that wait for a sync.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// A [`Reader`] over rows in memory; for tests, the simulator and the memory store.
impl Reader for BTreeMap<Vec<u8>, Vec<u8>> {
    fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        Ok(self.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Row>, ReadError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Excluded(to));
        Ok(self.range::<[u8], _>(bounds).take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[derive(Debug)]
    struct Nothing;

    impl Machine for Nothing {
        type Message = u32;
        type Request = ();
        type Response = u32;

        fn working_set(&self, _: Now, _: &Input<Self>) -> KeySet {
            KeySet::default()
        }
        fn handle(&mut self, _: Now, _: Input<Self>, _: &View, _: &mut Vec<Effect<Self>>) {}
        fn deadline(&self) -> Option<u64> {
            None
        }
        fn is_paged(key: &[u8]) -> bool {
            key[0] >= b'a'
        }
    }

    fn batch(writes: &[(&str, Option<&str>)]) -> Arc<Batch> {
        let mut batch = Batch::new();
        for (key, value) in writes {
            match value {
                Some(value) => batch.put(key.as_bytes(), value.as_bytes()),
                None => batch.delete(key.as_bytes()),
            }
        }
        batch.into()
    }

    #[test]
    fn batch_survives_the_way_through_bytes_and_refuses_a_torn_one() {
        let whole = batch(&[("k", Some("v")), ("gone", None), ("empty", Some(""))]);
        let back = Batch::from_bytes(whole.as_bytes().to_vec()).expect("well formed");
        assert_eq!(back, *whole);
        assert_eq!(back.iter().nth(1), Some((&b"gone"[..], None)));
        for cut in 1..whole.as_bytes().len() {
            // A cut between two writes is a shorter, well-formed batch; that is why storage adds a checksum.
            if let Ok(short) = Batch::from_bytes(whole.as_bytes()[..cut].to_vec()) {
                assert!(short.len() < whole.len());
            }
        }
    }

    #[test]
    fn gate_holds_back_until_all_before_is_durable() {
        let mut gate = Gate::<Nothing>::new(0);
        let mut released = Vec::new();
        let mut persisted = Vec::new();
        let send = |message| Effect::Send { to: SiteId::default(), message };
        let number = |effect| match effect {
            Effect::Send { message, .. } => message,
            _ => 0,
        };
        let mut effects = vec![send(1), Effect::Persist(Arc::unwrap_or_clone(batch(&[("k", Some("v"))]))), send(2)];
        gate.admit(&mut effects, |seq, _| persisted.push(seq), |effect| released.push(number(effect)));
        assert_eq!((&persisted[..], &released[..]), (&[1][..], &[1][..]));
        // Later effects that persist nothing still wait: they may have read what is not durable yet.
        gate.admit(&mut vec![send(3)], |_, _| unreachable!(), |_| unreachable!());
        gate.durable(1, |effect| released.push(number(effect)));
        assert_eq!(released, [1, 2, 3]);
    }

    #[test]
    fn view_with_room_is_the_whole_or_says_what_it_lacks() {
        let key = |at: u64| format!("a{at:03}").into_bytes();
        let mut stored: BTreeMap<Vec<u8>, Vec<u8>> = (0..300).map(|at| (key(at), vec![1; 100])).collect();
        let (mut overlay, mut newer) = (Overlay::default(), Batch::new());
        (0..300).filter(|at| at % 3 == 0).for_each(|at| newer.delete(&key(at)));
        (250..400).filter(|at| at % 2 == 0).for_each(|at| newer.put(&key(at), &[2; 100]));
        overlay.apply::<Nothing>(1, &newer.into());
        stored.insert(b"b".to_vec(), vec![3; 100]);
        let range = |limit| KeyRange { from: b"a".to_vec(), to: b"b".to_vec(), limit };
        let view = |keys: &[&[u8]], ranges: Vec<KeyRange>, room| {
            let keys = keys.iter().map(|key| key.to_vec()).collect();
            View::prepare(KeySet { keys, ranges, room, ..KeySet::default() }, &overlay, &stored).expect("readable")
        };
        for limit in [1, 64, 65, 128, 200, 265, 1000] {
            let (whole, paged) = (view(&[], vec![range(limit)], None), view(&[], vec![range(limit)], Some(1 << 20)));
            assert_eq!(whole.rows, paged.rows);
            assert!(paged.covers(b"a") && !paged.is_cut());
        }
        let cut = view(&[b"b", b"none"], vec![range(1), range(100), range(1)], Some(1000));
        assert!(cut.is_cut() && cut.knows(b"none"));
        assert_eq!(cut.ranges(), [range(1)]);
        assert!(cut.rows.len() <= 3 + PAGE_ROWS);
        let cut = view(&[b"b", b"none"], vec![range(1)], Some(100));
        assert!(cut.is_cut() && cut.knows(b"b") && !cut.knows(b"none") && cut.ranges().is_empty());
    }

    #[test]
    fn overlay_counts_what_it_holds_and_forgets_it_in_bounded_steps() {
        let mut overlay = Overlay::default();
        let rows = RETIRED_AT_ONCE as Seq + 10;
        (1..=rows).for_each(|seq| overlay.apply::<Nothing>(seq, &batch(&[(&format!("a{seq}"), Some("v"))])));
        assert!(overlay.bytes() > HELD_BYTES * rows as usize);
        assert!(!overlay.retire(0) && overlay.len() as Seq == rows);
        assert!(overlay.retire(rows), "there is more to forget");
        assert_eq!(overlay.len(), 10);
        assert!(!overlay.retire(rows));
        assert_eq!((overlay.len(), overlay.bytes()), (0, 0));

        // A row costs the same however often it is written, and goes when its last batch is absorbed.
        let large = "v".repeat(4 * SHARED_BYTES);
        let last = 2 * rows;
        (rows + 1..=last).for_each(|seq| overlay.apply::<Nothing>(seq, &batch(&[("a", Some(&large)), ("b", None)])));
        assert_eq!(overlay.bytes(), 2 * held_bytes(b"a") + large.len());
        overlay.apply::<Nothing>(last + 1, &batch(&[("a", None)]));
        assert_eq!(overlay.bytes(), 2 * held_bytes(b"a"));
        assert!(!overlay.retire(last));
        assert_eq!(overlay.rows.keys().collect::<Vec<_>>(), [b"a"]);
        assert!(!overlay.retire(last + 1) && overlay.is_empty());
        assert_eq!(overlay.bytes(), 0);
    }

    /// Against a plain map: the overlay over any split of the history reads as if all had been absorbed.
    #[test]
    fn overlay_reads_as_if_everything_were_absorbed() {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let mut truth = BTreeMap::new();
            let mut stored: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            let mut overlay = Overlay::default();
            let absorbed = random(20);
            for seq in 1..=20u64 {
                let key = format!("a{}", random(9)).into_bytes();
                let mut one = Batch::new();
                if random(3) == 0 {
                    one.delete(&key);
                    truth.remove(&key);
                } else {
                    // Large ones are shared with their batch.
                    let value = seq.to_be_bytes().repeat(if random(2) == 0 { 1 } else { SHARED_BYTES });
                    one.put(&key, &value);
                    truth.insert(key.clone(), value);
                }
                let one = one.into();
                overlay.apply::<Nothing>(seq, &one);
                if seq <= absorbed {
                    for (key, value) in one.iter() {
                        match value {
                            Some(value) => stored.insert(key.to_vec(), value.to_vec()),
                            None => stored.remove(key),
                        };
                    }
                }
            }
            overlay.retire(absorbed);
            let limit = 1 + random(10) as usize;
            let range = KeyRange { from: b"a0".to_vec(), to: b"a8".to_vec(), limit };
            let (keys, ranges) = (vec![b"a8".to_vec()], vec![range.clone()]);
            let heads = vec![(b"a8".to_vec(), 3), (b"a8".to_vec(), 7)];
            let needed = KeySet { keys, ranges, heads, head_ranges: vec![(range.clone(), 5)], room: None };
            let view = View::prepare(needed, &overlay, &stored).expect("readable");
            assert_eq!(view.head(b"a8"), truth.get(&b"a8"[..]).map(|value| &value[..7]));
            assert_eq!(view.get(b"a8"), truth.get(&b"a8"[..]).map(|value| &value[..]));
            let seen: Vec<_> = view.range(b"a0").map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            let expected: Vec<_> =
                truth.range(b"a0".to_vec()..b"a8".to_vec()).take(limit).map(|(k, v)| (k.clone(), v.clone())).collect();
            assert_eq!(seen, expected);
            let heads: Vec<_> = view.heads_of(&range).map(|(key, head)| (key.to_vec(), head.len())).collect();
            assert_eq!(heads, expected.into_iter().map(|(key, _)| (key, 5)).collect::<Vec<_>>());
        }
    }

    /// Counts how often it is read.
    struct Counting<'a>(&'a BTreeMap<Vec<u8>, Vec<u8>>, Cell<usize>);

    impl Reader for Counting<'_> {
        fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
            self.1.set(self.1.get() + 1);
            self.0.read(key)
        }

        fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Row>, ReadError> {
            self.1.set(self.1.get() + 1);
            self.0.scan(from, to, limit)
        }
    }

    #[test]
    fn what_is_named_many_times_is_read_once() {
        let stored = BTreeMap::from([(b"a1".to_vec(), b"value".to_vec())]);
        let reader = Counting(&stored, Cell::new(0));
        let range = KeyRange { from: b"a".to_vec(), to: b"b".to_vec(), limit: 9 };
        let heads = (0..1000).map(|bytes| (b"a1".to_vec(), bytes % 4)).collect();
        let head_ranges = (0..1000).map(|bytes| (range.clone(), bytes % 3)).collect();
        let needed = KeySet { heads, head_ranges, ..KeySet::default() };
        let view = View::prepare(needed, &Overlay::default(), &reader).expect("readable");
        assert_eq!((reader.1.get(), view.head(b"a1")), (2, Some(&b"val"[..])), "the longest head counts");
    }

    /// The first of many rows is taken away again and again, faster than storage takes deletions in.
    #[test]
    fn scan_behind_many_deletions_reads_few_pages() {
        let rows = 3_000;
        let key = |at: usize| format!("a{at:05}");
        let stored: BTreeMap<Vec<u8>, Vec<u8>> =
            (0..rows).map(|at| (key(at).into_bytes(), b"value".to_vec())).collect();
        let mut overlay = Overlay::default();
        (0..rows - 1).for_each(|at| overlay.apply::<Nothing>(at as Seq + 1, &batch(&[(&key(at), None)])));
        assert_eq!(overlay.deletions(), rows - 1);
        for head in [None, Some(2)] {
            let reader = Counting(&stored, Cell::new(0));
            let range = KeyRange { from: b"a".to_vec(), to: b"b".to_vec(), limit: 1 };
            let found = overlay.scan(&range, &reader, head).expect("readable");
            assert_eq!(found.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), [key(rows - 1).into_bytes()]);
            assert!(reader.1.get() < 10 + rows / PAGE_ROWS, "{} pages for one row", reader.1.get());
        }
        overlay.apply::<Nothing>(rows as Seq, &batch(&[(&key(0), Some("v"))]));
        assert_eq!(overlay.deletions(), rows - 2);
        overlay.retire(rows as Seq);
        assert_eq!(overlay.deletions(), 0);
    }

    #[test]
    fn head_of_a_key_that_was_only_listed_is_not_known() {
        let stored = BTreeMap::from([(b"a1".to_vec(), b"value".to_vec()), (b"a2".to_vec(), b"value".to_vec())]);
        let range = KeyRange { from: b"a".to_vec(), to: b"b".to_vec(), limit: 9 };
        let heads = vec![(b"a2".to_vec(), 3), (b"c".to_vec(), 3)];
        let needed = KeySet { heads, head_ranges: vec![(range.clone(), 0)], ..KeySet::default() };
        let view = View::prepare(needed, &Overlay::default(), &stored).expect("readable");
        assert_eq!(view.heads_of(&range).map(|(key, _)| key).collect::<Vec<_>>(), [b"a1", b"a2"]);
        assert!(!view.knows_head(b"a1"), "that it is there is all that is known");
        assert!(view.knows_head(b"a2") && view.knows_head(b"c"), "read, and read as nothing");
    }
}
