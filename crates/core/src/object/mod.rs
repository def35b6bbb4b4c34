//! Objects, and the transactions over them: what they are made of, and their bounds.
//!
//! An **object** has a home region and a name; its value is bytes, or a counter. It lives at one site, its **home**,
//! which gives each of its values a **version**. A transaction names the versions that it read and the changes that it
//! wants; [`crate::txn`] decides whether it takes effect.
//!
//! A version's number is the home's count of writes, so it names one write of one object for ever. That no object is
//! there is a version too: number zero. Two reads that both found nothing are of the same version even if something was
//! there in between; validation compares states at one instant, so this is sound.

pub mod message;

use std::fmt;

use crate::codec::{Cursor, Malformed, put_bytes, put_i64, put_u64};
use crate::id::{Incarnation, SiteId};

/// The longest name of an object, in bytes.
pub const KEY_BYTES: usize = 512;
/// The largest value, in bytes.
pub const VALUE_BYTES: usize = 256 * 1024;
/// The most reads, scans and writes of one transaction, together.
pub const TRANSACTION_OPERATIONS: usize = 4096;
/// The most bytes that one transaction writes, names included.
pub const TRANSACTION_BYTES: usize = 1024 * 1024;
/// The most rows that one scan returns.
pub const SCAN_ROWS: usize = 1024;

/// Whether this can be an object's name: 1 to 512 bytes, no control characters.
pub fn is_key(name: &str) -> bool {
    !name.is_empty() && is_prefix(name)
}

/// Whether names can begin like this.
pub fn is_prefix(prefix: &str) -> bool {
    prefix.len() <= KEY_BYTES && !prefix.chars().any(char::is_control)
}

/// Names an object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ObjectKey {
    /// The position of its home region in the cluster's list of regions.
    pub home: u16,
    /// Its name there.
    pub name: String,
}

impl ObjectKey {
    /// The object of this name in this region.
    pub fn new(home: u16, name: impl Into<String>) -> Self {
        Self { home, name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.home, self.name)
    }
}

/// What an object holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Bytes, whose meaning is the program's.
    Bytes(Vec<u8>),
    /// A number to which transactions may add without reading it.
    Counter(i64),
}

impl Value {
    /// Its size as it counts towards bounds, in bytes.
    pub fn size(&self) -> usize {
        match self {
            Value::Bytes(bytes) => bytes.len(),
            Value::Counter(_) => 8,
        }
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Value::Bytes(bytes) => {
                out.push(0);
                put_bytes(out, bytes);
            }
            Value::Counter(count) => {
                out.push(1);
                put_i64(out, *count);
            }
        }
    }

    /// Reads what [`Value::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        match cursor.u8()? {
            0 => Ok(Value::Bytes(cursor.bytes()?.to_vec())),
            1 => Ok(Value::Counter(cursor.i64()?)),
            _ => Err(Malformed),
        }
    }
}

/// Names one value of one object, for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version {
    /// The incarnation of the home that wrote it, or found nothing.
    pub incarnation: Incarnation,
    /// The home's count of writes when it was written; zero if nothing is there.
    pub number: u64,
}

/// What a read finds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The version.
    pub version: Version,
    /// The value; none if nothing is there.
    pub value: Option<Value>,
}

/// What a transaction does to an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// It holds this from now on.
    Put(Value),
    /// It is gone.
    Delete,
    /// The counter grows by this; one that is not there begins at zero. Adds commute, so they do not exclude each other.
    Add(i64),
}

impl Change {
    /// Whether it is an add.
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
    /// What the names begin with.
    pub prefix: String,
    /// Only names after this one, if it is not empty.
    pub after: String,
    /// The first so many, at most [`SCAN_ROWS`].
    pub limit: u32,
}

/// What a transaction did and wants, at one home.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// Names that were read, with the number of the version; at most once each.
    pub reads: Vec<(String, u64)>,
    /// Spans that were read, with the version numbers of what was there.
    pub scans: Vec<(Span, Vec<u64>)>,
    /// Changes, in the order of names, at most one each.
    pub writes: Vec<(String, Change)>,
}

impl Part {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.scans.is_empty() && self.writes.is_empty()
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
            put_bytes(out, span.prefix.as_bytes());
            put_bytes(out, span.after.as_bytes());
            put_u64(out, u64::from(span.limit));
            put_u64(out, numbers.len() as u64);
            numbers.iter().for_each(|number| put_u64(out, *number));
        }
        put_u64(out, self.writes.len() as u64);
        for (name, change) in &self.writes {
            put_bytes(out, name.as_bytes());
            change.encode(out);
        }
    }

    /// Reads what [`Part::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let mut part = Part::default();
        for _ in 0..cursor.u64()? {
            part.reads.push((text(cursor)?, cursor.u64()?));
        }
        for _ in 0..cursor.u64()? {
            let span = Span { prefix: text(cursor)?, after: text(cursor)?, limit: cursor.u32()? };
            let numbers = (0..cursor.u64()?).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
            part.scans.push((span, numbers));
        }
        for _ in 0..cursor.u64()? {
            part.writes.push((text(cursor)?, Change::decode(cursor)?));
        }
        Ok(part)
    }
}

/// Reads text with its length in front.
pub fn text(cursor: &mut Cursor) -> Result<String, Malformed> {
    String::from_utf8(cursor.bytes()?.to_vec()).map_err(|_| Malformed)
}

/// A transaction as its client hands it over to be committed: what it read, and what it wants to change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    /// By home region, in any order, at most one each.
    pub homes: Vec<Home>,
    /// How long its writes may wait for rights of others to end, in microseconds.
    pub max_wait: u64,
}

/// A transaction's part at one region.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Home {
    /// The region's position.
    pub region: u16,
    /// The incarnation that what was read is of; zero if nothing was read there.
    pub incarnation: Incarnation,
    /// What it did and wants there.
    pub part: Part,
}

impl Transaction {
    /// Appends it; for its digest.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.max_wait);
        for home in &self.homes {
            put_u64(out, u64::from(home.region));
            put_u64(out, u64::from(home.incarnation.0));
            home.part.encode(out);
        }
    }

    /// Puts every part in order, and checks the bounds. A name that was read twice must have shown the same version.
    pub fn normalize(&mut self) -> Result<(), Abort> {
        let (mut operations, mut bytes) = (0, 0);
        self.homes.retain(|home| !home.part.is_empty());
        self.homes.sort_by_key(|home| home.region);
        let twice = self.homes.windows(2).any(|pair| pair[0].region == pair[1].region);
        for Home { region, part, .. } in &mut self.homes {
            let refuse =
                |cause, name: &str| Err(Abort { key: Some(ObjectKey::new(*region, name)), ..Abort::of(cause) });
            part.reads.sort();
            part.reads.dedup();
            if let Some(pair) = part.reads.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return refuse(Cause::Changed, &pair[0].0);
            }
            part.writes.sort_by(|(one, _), (other, _)| one.cmp(other));
            if twice || part.writes.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return Err(Abort::of(Cause::Malformed));
            }
            for name in part.reads.iter().map(|(name, _)| name).chain(part.writes.iter().map(|(name, _)| name)) {
                if !is_key(name) {
                    return refuse(Cause::InvalidKey, "");
                }
            }
            for (span, numbers) in &part.scans {
                let limit = span.limit as usize;
                let is_sound = is_prefix(&span.prefix) && is_prefix(&span.after);
                if !is_sound || limit == 0 || limit > SCAN_ROWS || numbers.len() > limit {
                    return Err(Abort::of(Cause::Malformed));
                }
                operations += numbers.len();
            }
            for (name, change) in &part.writes {
                if change.size() > VALUE_BYTES {
                    return refuse(Cause::TooLarge, name);
                }
                bytes += name.len() + change.size();
            }
            operations += part.reads.len() + part.scans.len() + part.writes.len();
        }
        if operations > TRANSACTION_OPERATIONS || bytes > TRANSACTION_BYTES {
            return Err(Abort::of(Cause::TooMuch));
        }
        Ok(())
    }
}

/// Why a transaction did not take effect, or a read gave nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abort {
    /// The reason.
    pub cause: Cause,
    /// The object that it is about.
    pub key: Option<ObjectKey>,
    /// The site that says so.
    pub site: Option<SiteId>,
    /// Who holds the rights that stand in the way.
    pub holders: Vec<SiteId>,
    /// When the last of them ends, in microseconds since 1970.
    pub until: Option<i64>,
}

/// The reason of an [`Abort`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// What was read has been changed since.
    Changed,
    /// Another transaction is about to change, or relies on, what this one reads or writes.
    Busy,
    /// Rights that others hold would make a write wait for longer than it may.
    WouldWait,
    /// The time was up before every participant was prepared.
    DeadlinePassed,
    /// It adds to an object that is no counter.
    NotACounter,
    /// A counter would leave the range of 64-bit integers.
    OutOfRange,
    /// The object's home lost its storage: restore it, or write the object anew.
    Lost,
    /// The object's home does not answer.
    Unreachable,
    /// The name is empty, too long, or has control characters.
    InvalidKey,
    /// No region has this position.
    UnknownRegion,
    /// A value is beyond [`VALUE_BYTES`].
    TooLarge,
    /// The transaction is beyond [`TRANSACTION_OPERATIONS`] or [`TRANSACTION_BYTES`].
    TooMuch,
    /// The transaction is not made as one must be.
    Malformed,
    /// A queue is at its bound.
    Overloaded,
    /// The site is starting, rejoining or stopping.
    NotReady,
    /// A question about it came before all were prepared, which refuses it for ever.
    Withdrawn,
}

/// Every cause, in the order of their codes.
const CAUSES: [Cause; 16] = [
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
];

impl Cause {
    /// Its code, in rows and on the wire; stable.
    pub fn code(self) -> u8 {
        CAUSES.iter().position(|cause| *cause == self).expect("every cause is listed") as u8
    }

    /// The cause with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        CAUSES.get(usize::from(code)).copied()
    }

    /// Whether the same program may succeed if it is run again, on what it then reads.
    pub fn is_transient(self) -> bool {
        matches!(self, Cause::Changed | Cause::Busy | Cause::DeadlinePassed)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Changed => "what was read has been changed since",
            Cause::Busy => "another transaction is about to change or relies on the same object",
            Cause::WouldWait => "others hold rights over what it writes, for longer than it may wait",
            Cause::DeadlinePassed => "the deadline passed before every site was prepared",
            Cause::NotACounter => "the object is no counter",
            Cause::OutOfRange => "the counter would leave the range of 64-bit integers",
            Cause::Lost => "lost: the object's home lost its storage; restore it, or write the object anew",
            Cause::Unreachable => "the object's home does not answer",
            Cause::InvalidKey => "the key is not valid: use 1 to 512 bytes without control characters",
            Cause::UnknownRegion => "there is no such region",
            Cause::TooLarge => "the value is too large: at most 262144 bytes",
            Cause::TooMuch => "the transaction is too large: at most 4096 operations and 1048576 bytes",
            Cause::Malformed => "the transaction is malformed",
            Cause::Overloaded => "overloaded: a queue is full; try again later",
            Cause::NotReady => "the site is not ready",
            Cause::Withdrawn => "withdrawn: it was asked about before every site was prepared",
        })
    }
}

impl Abort {
    /// For this reason, with no more to say.
    pub fn of(cause: Cause) -> Self {
        Self { cause, key: None, site: None, holders: Vec::new(), until: None }
    }

    /// For this reason, about this object, says this site.
    pub fn about(cause: Cause, site: SiteId, name: &str) -> Self {
        Self { key: Some(ObjectKey::new(site.region, name)), site: Some(site), ..Self::of(cause) }
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.cause.code());
        let flags =
            u8::from(self.key.is_some()) | u8::from(self.site.is_some()) << 1 | u8::from(self.until.is_some()) << 2;
        out.push(flags);
        if let Some(key) = &self.key {
            put_u64(out, u64::from(key.home));
            put_bytes(out, key.name.as_bytes());
        }
        self.site.iter().for_each(|site| put_site(out, *site));
        self.until.iter().for_each(|until| put_i64(out, *until));
        put_u64(out, self.holders.len() as u64);
        self.holders.iter().for_each(|site| put_site(out, *site));
    }

    /// Reads what [`Abort::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let cause = Cause::from_code(cursor.u8()?).ok_or(Malformed)?;
        let flags = cursor.u8()?;
        let mut abort = Abort::of(cause);
        if flags & 1 != 0 {
            let home = u16::try_from(cursor.u64()?).map_err(|_| Malformed)?;
            abort.key = Some(ObjectKey { home, name: text(cursor)? });
        }
        if flags & 2 != 0 {
            abort.site = Some(site(cursor)?);
        }
        if flags & 4 != 0 {
            abort.until = Some(cursor.i64()?);
        }
        abort.holders = (0..cursor.u64()?).map(|_| site(cursor)).collect::<Result<_, _>>()?;
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

    #[test]
    fn part_and_abort_survive_the_way_through_bytes() {
        let part = Part {
            reads: vec![("a".into(), 7), ("b".into(), 0)],
            scans: vec![(Span { prefix: "p/".into(), after: "p/x".into(), limit: 9 }, vec![3, 1 << 40])],
            writes: vec![
                ("a".into(), Change::Put(Value::Bytes(vec![1, 2]))),
                ("c".into(), Change::Add(-5)),
                ("d".into(), Change::Put(Value::Counter(i64::MIN))),
                ("e".into(), Change::Delete),
            ],
        };
        let mut bytes = Vec::new();
        part.encode(&mut bytes);
        let mut cursor = Cursor(&bytes);
        assert_eq!(Part::decode(&mut cursor), Ok(part));
        assert_eq!(cursor.end(), Ok(()));
        for cause in CAUSES {
            let mut abort = Abort::about(cause, SiteId::new(2, 1), "x");
            abort.holders = vec![SiteId::new(0, 0)];
            abort.until = Some(-4);
            let mut bytes = Vec::new();
            abort.encode(&mut bytes);
            assert_eq!(Abort::decode(&mut Cursor(&bytes)), Ok(abort));
        }
    }

    #[test]
    fn transaction_is_put_in_order_or_refused_by_name() {
        let home = |part| Transaction { homes: vec![Home { part, ..Home::default() }], max_wait: 0 };
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
        let put = |size| ("k".to_owned(), Change::Put(Value::Bytes(vec![0; size])));
        let writes = |writes| Part { writes, ..Part::default() };
        assert_eq!(cause(writes(vec![put(VALUE_BYTES + 1)])), Cause::TooLarge);
        assert_eq!(cause(writes(vec![put(1), put(1)])), Cause::Malformed);
        let large = |at: usize| (format!("k{at}"), put(VALUE_BYTES).1);
        assert_eq!(cause(writes((0..5).map(large).collect())), Cause::TooMuch);
    }
}
