//! What an object is called, and what it holds.

use std::fmt;

use bytes::Bytes;

use crate::bounds::{CALL_BYTES, KEY_BYTES};
use crate::codec::{Cursor, Malformed, put_bytes, put_i64, put_u64};
use crate::id::Incarnation;

/// The most regions that a call's value rests on: a cluster has no more.
pub const HOMES: usize = 64;
/// The first character of the name of a [call](is_call); no other name has it.
pub const CALL_MARK: char = '\u{1}';

/// True if this can be an object's name: 1 to 512 bytes, no control characters.
pub fn is_key(name: &str) -> bool {
    !name.is_empty() && is_prefix(name)
}

/// True if this names a **call**: an object that holds the result of a memoized function for some arguments, a
/// [`Derived`] value. Spans do not show calls. At most 1,024 bytes, with no control characters after the mark.
pub fn is_call(name: &str) -> bool {
    let call = name.strip_prefix(CALL_MARK);
    call.is_some_and(|call| !call.is_empty() && name.len() <= CALL_BYTES && !call.chars().any(char::is_control))
}

/// True if names can begin with this.
pub fn is_prefix(prefix: &str) -> bool {
    prefix.len() <= KEY_BYTES && !prefix.chars().any(char::is_control)
}

/// The name of an object in the cluster.
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

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, u64::from(self.home));
        put_bytes(out, self.name.as_bytes());
    }

    /// Reads what [`ObjectKey::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let home = u16::try_from(cursor.u64()?).map_err(|_| Malformed)?;
        Ok(Self { home, name: text(cursor)? })
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.home, self.name)
    }
}

/// The value of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Bytes, whose meaning is the program's.
    Bytes(Bytes),
    /// A number to which transactions may add without reading it.
    Counter(i64),
    /// The result of a memoized function.
    Derived(Derived),
}

/// The result of a memoized function for some arguments: its **call**'s value. The function would give the same now,
/// while nothing that it read has changed; a transaction that changes something that it read changes the call too (see
/// [`super::Part::depends`]).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Derived {
    /// The result and its dependencies, as the client encodes them; see [`crate::draft`].
    pub bytes: Bytes,
    /// The other regions whose objects it rests on, directly or through other calls, in the incarnations that were
    /// read, in ascending order, at most [`HOMES`]. A home that loses its storage loses its notes of the calls that
    /// depend on its objects.
    pub homes: Vec<(u16, Incarnation)>,
}

impl Value {
    /// Its size as it counts towards bounds, in bytes.
    pub fn size(&self) -> usize {
        match self {
            Value::Bytes(bytes) => bytes.len(),
            Value::Counter(_) => 8,
            Value::Derived(Derived { bytes, homes }) => bytes.len() + 8 * homes.len(),
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
            Value::Derived(Derived { bytes, homes }) => {
                out.push(2);
                put_bytes(out, bytes);
                put_u64(out, homes.len() as u64);
                for (region, incarnation) in homes {
                    put_u64(out, u64::from(*region));
                    put_u64(out, u64::from(incarnation.0));
                }
            }
        }
    }

    /// Reads what [`Value::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        match cursor.u8()? {
            0 => Ok(Value::Bytes(Bytes::copy_from_slice(cursor.bytes()?))),
            1 => Ok(Value::Counter(cursor.i64()?)),
            2 => {
                let bytes = Bytes::copy_from_slice(cursor.bytes()?);
                let home = |cursor: &mut Cursor| {
                    let region = u16::try_from(cursor.u64()?).map_err(|_| Malformed)?;
                    Ok((region, Incarnation(cursor.u32()?)))
                };
                let homes = (0..cursor.u64()?).map(|_| home(cursor)).collect::<Result<_, _>>()?;
                Ok(Value::Derived(Derived { bytes, homes }))
            }
            _ => Err(Malformed),
        }
    }
}

/// Reads text with its length in front.
pub fn text(cursor: &mut Cursor) -> Result<String, Malformed> {
    String::from_utf8(cursor.bytes()?.to_vec()).map_err(|_| Malformed)
}
