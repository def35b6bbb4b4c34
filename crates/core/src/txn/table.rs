//! Objects as storage has them.

use bytes::Bytes;

use crate::bounds::READ_BYTES;
use crate::clock::Now;
use crate::codec::{Cursor, Malformed, put_u64};
use crate::id::{Incarnation, SiteId};
use crate::machine::{Batch, KeyRange, KeySet, View};
use crate::object::{Abort, CALL_MARK, Cause, Derived, GONE, HOMES, Seen, Span, Value, Version, is_call, is_key};
use crate::rows::{CALL, OBJECT};
use crate::turn::Peer;
use crate::warranty::VOUCHED;

/// In a row, in place of a value's tag: the result of a memoized function, with the homes that it rests on first. Rows
/// of earlier versions have the result first.
const HOMES_FIRST: u8 = 3;
/// The length of the part of an object's row that holds its version, and the number of a counter, in bytes.
const OBJECT_HEAD: usize = 48;
/// The length of the part of a call's row that holds its version, the homes on which it rests and, of a treaty, the nonce of its making, in
/// bytes.
const CALL_HEAD: usize = 32 + 8 * HOMES;

/// The key of an object's row. Rows of an earlier incarnation, on a storage that turned out to be an old copy, are out
/// of the way of the present one.
pub(super) fn row_key(incarnation: Incarnation, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(5 + name.len());
    key.push(if name.starts_with(CALL_MARK) { CALL } else { OBJECT });
    key.extend_from_slice(&incarnation.0.to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

/// The rows of a span.
pub(super) fn row_range(incarnation: Incarnation, span: &Span) -> KeyRange {
    // The end is the first key after all that begin with the prefix.
    let mut to = row_key(incarnation, &span.prefix);
    while to.last() == Some(&u8::MAX) {
        to.pop();
    }
    *to.last_mut().expect("the tag is below the highest byte") += 1;

    // The beginning is the first key after `after`.
    let from = if span.after.as_bytes() >= span.prefix.as_bytes() {
        let mut from = row_key(incarnation, &span.after);
        from.push(0);
        from
    } else {
        row_key(incarnation, &span.prefix)
    };

    // If `after` comes after all names of the prefix, the range is empty, not one that goes backwards.
    KeyRange { from: from.min(to.clone()), to, limit: span.limit as usize }
}

/// The part of a span that is enough to judge whether it still holds exactly this number of rows: one row more, or the
/// limit.
pub(super) fn judged(span: &Span, rows: usize) -> Span {
    let limit = u32::try_from(rows + 1).unwrap_or(u32::MAX).min(span.limit);
    Span { limit, ..span.clone() }
}

/// True if the name is in the span, its limit aside.
pub(super) fn is_within(span: &Span, name: &str) -> bool {
    name.starts_with(&span.prefix)
        && !name.starts_with(CALL_MARK)
        && (span.after.is_empty() || name > span.after.as_str())
}

/// Adds the head of an object's row: its version, the number of a counter, and the homes on which a call rests.
pub(super) fn need_head(incarnation: Incarnation, name: &str, set: &mut KeySet) {
    let bytes = if name.starts_with(CALL_MARK) { CALL_HEAD } else { OBJECT_HEAD };
    set.heads.push((row_key(incarnation, name), bytes));
}

/// Adds the heads of the rows of a span.
pub(super) fn need_heads_of(incarnation: Incarnation, span: &Span, set: &mut KeySet) {
    set.head_ranges.push((row_range(incarnation, span), OBJECT_HEAD));
}

/// True if an object or a call can have this name.
pub(super) fn is_name(name: &str) -> bool {
    is_key(name) || is_call(name)
}

/// Adds the rows that reads need. A name or span that is not sound needs none: it is refused.
pub(super) fn need_reads<'a>(
    gets: impl Iterator<Item = &'a str>,
    scans: impl Iterator<Item = &'a Span>,
    incarnation: Incarnation,
    set: &mut KeySet,
) {
    set.keys.extend(gets.filter(|name| is_name(name)).map(|name| row_key(incarnation, name)));
    set.ranges.extend(scans.filter(|span| span.is_sound()).map(|span| row_range(incarnation, span)));
    set.room = Some(READ_BYTES);
}

/// The content of an object as far as the head of its row shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holds {
    /// Nothing is there.
    Nothing,
    /// A counter, and its number.
    Count(i64),
    /// Anything else.
    Other,
}

impl Holds {
    /// The content that the head of this value's row would show.
    pub(super) fn of(value: Option<&Value>) -> Self {
        match value {
            None => Self::Nothing,
            Some(Value::Counter(count)) => Self::Count(*count),
            Some(Value::Bytes(_) | Value::Derived(_)) => Self::Other,
        }
    }

    /// The number of a counter: zero if nothing is there, none if it is no counter.
    pub(super) fn count(self) -> Option<i64> {
        match self {
            Self::Nothing => Some(0),
            Self::Count(count) => Some(count),
            Self::Other => None,
        }
    }
}

/// The part of an object that is enough to judge whether it was changed since it was read, and to carry out adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// Its version.
    pub(super) version: Version,
    /// Its content.
    pub(super) holds: Holds,
}

fn decode_row(incarnation: Incarnation, row: &[u8]) -> Result<Seen, Malformed> {
    let mut cursor = Cursor(row);
    let version = Version { incarnation, number: cursor.u64()? };
    let value = if cursor.0.first() == Some(&HOMES_FIRST) {
        let homes = homes(&mut cursor)?;
        Value::Derived(Derived { bytes: Bytes::copy_from_slice(cursor.bytes()?), homes })
    } else {
        Value::decode(&mut cursor)?
    };
    cursor.end()?;
    Ok(Seen { version, value: Some(value) })
}

fn homes(cursor: &mut Cursor) -> Result<Vec<(u16, Incarnation)>, Malformed> {
    if cursor.u8()? != HOMES_FIRST {
        return Err(Malformed);
    }
    let home = |cursor: &mut Cursor| {
        let region = u16::try_from(cursor.u64()?).map_err(|_| Malformed)?;
        Ok((region, Incarnation(cursor.u32()?)))
    };
    (0..cursor.u64()?).map(|_| home(cursor)).collect()
}

/// Reads the head of an object's row, which may be all of it.
pub(super) fn decode_head(incarnation: Incarnation, head: &[u8]) -> Result<Head, Malformed> {
    let mut cursor = Cursor(head);
    let version = Version { incarnation, number: cursor.u64()? };
    let holds = match cursor.0.first() {
        Some(1) => Holds::of(Some(&Value::decode(&mut cursor)?)),
        Some(_) => Holds::Other,
        None => return Err(Malformed),
    };
    Ok(Head { version, holds })
}

/// The homes that a call rests on, from the head of its row; none if they do not stand there. A large row of an earlier
/// version has them at its end.
fn homes_in_head(head: &[u8]) -> Option<Vec<(u16, Incarnation)>> {
    let mut cursor = Cursor(head);
    cursor.u64().ok()?;
    if cursor.0.first() == Some(&HOMES_FIRST) {
        return homes(&mut cursor).ok();
    }
    match Value::decode(&mut cursor).ok()? {
        Value::Derived(derived) => Some(derived.homes),
        _ => None,
    }
}

/// The nonce of a treaty's making and the homes on which it rests besides its own, from the head of its row; none if they do not stand there.
pub(super) fn treaty_in_head(head: &[u8]) -> Option<(u64, Vec<(u16, Incarnation)>)> {
    let mut cursor = Cursor(head);
    cursor.u64().ok()?;
    let homes = homes(&mut cursor).ok()?;

    // After its length the result begins with the nonce.
    cursor.u64().ok()?;
    Some((cursor.u64().ok()?, homes))
}

/// Writes an object's row; removes it if there is no value.
pub(super) fn put_row(batch: &mut Batch, incarnation: Incarnation, name: &str, number: u64, value: Option<&Value>) {
    let key = row_key(incarnation, name);
    let Some(value) = value else { return batch.delete(&key) };

    // The homes on which a call rests come before its result: the head of the row is enough to judge it, whatever its
    // size.
    let mut row = Vec::with_capacity(16);
    put_u64(&mut row, number);
    if let Value::Derived(Derived { bytes, homes }) = value {
        row.push(HOMES_FIRST);
        put_u64(&mut row, homes.len() as u64);
        for (region, incarnation) in homes {
            put_u64(&mut row, u64::from(*region));
            put_u64(&mut row, u64::from(incarnation.0));
        }
        put_u64(&mut row, bytes.len() as u64);
        return batch.put_parts(&key, &row, bytes);
    }

    // What is large is copied once, into the batch.
    if let Value::Bytes(bytes) = value {
        row.push(0);
        put_u64(&mut row, bytes.len() as u64);
        return batch.put_parts(&key, &row, bytes);
    }
    value.encode(&mut row);
    batch.put(&key, &row);
}

/// The objects of a home, as far as an input's working set names them.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    /// The rows.
    pub view: &'a View,
    /// The home.
    pub site: SiteId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// True if an earlier incarnation's objects may be lost, so that an object without a row cannot be said to be
    /// absent.
    pub may_have_lost_data: bool,
    /// True if rights of an earlier life may still bind: until they are over, a call without a row cannot be said to be
    /// absent. Its result may have been lost, and what it was used for may still be shown.
    pub is_bound: bool,
    /// The sites that vouch for their storage, on which calls rest, and the time by which that is judged.
    pub vouchers: (&'a [Peer], Now),
}

impl<'a> Table<'a> {
    /// The objects as an earlier life left them: what stands in storage counts.
    pub(super) fn of_an_earlier_life(view: &'a View, site: SiteId, incarnation: Incarnation) -> Self {
        Self { view, site, incarnation, may_have_lost_data: false, is_bound: false, vouchers: (&[], Now::default()) }
    }

    /// The same of all names in a span, calls included; none if there was no room for them in the view.
    pub(super) fn all_as_written(&self, span: &Span) -> Option<Vec<(String, Value)>> {
        let range = row_range(self.incarnation, span);
        if !self.view.ranges().contains(&range) {
            return None;
        }
        let value = |(key, row): (&[u8], &[u8])| {
            let seen = decode_row(self.incarnation, row).expect("a row that storage vouches for");
            Some((String::from_utf8_lossy(&key[5..]).into_owned(), seen.value?))
        };
        Some(self.view.rows_of(&range).filter_map(value).collect())
    }

    /// The value that was written last, whatever became of the homes that it rests on; none if nothing is there.
    pub(super) fn as_written(&self, name: &str) -> Option<Value> {
        let row = self.view.get(&row_key(self.incarnation, name))?;
        decode_row(self.incarnation, row).expect("a row that storage vouches for").value
    }

    /// The value of a name, with its version.
    pub fn get(&self, name: &str) -> Result<Seen, Abort> {
        // A row for which there was no room is unknown. It is not to be taken for one that is not there.
        let key = row_key(self.incarnation, name);
        if self.view.is_cut() && !self.view.knows(&key) {
            return Err(Abort::of(Cause::TooMuch));
        }

        match self.view.get(&key) {
            Some(row) => {
                let seen = decode_row(self.incarnation, row).expect("a row that storage vouches for");
                if !is_call(name) {
                    return Ok(seen);
                }

                // By its head alone, although all of the row is here: validation has only the head, and must come to
                // the same version, or no transaction that read the call could ever commit.
                let head = &row[..row.len().min(CALL_HEAD)];
                match self.judge(name, head, seen.version)? {
                    Some(gone) => Ok(Seen { version: gone, value: None }),
                    None => Ok(seen),
                }
            }
            None => Ok(Seen { version: self.nothing(name)?, value: None }),
        }
    }

    /// The head of a name: its version, and the number of a counter.
    pub(super) fn head(&self, name: &str) -> Result<Head, Abort> {
        let Some(row) = self.view.head(&row_key(self.incarnation, name)) else {
            return Ok(Head { version: self.nothing(name)?, holds: Holds::Nothing });
        };
        let head = decode_head(self.incarnation, row).expect("a row that storage vouches for");
        if !is_call(name) {
            return Ok(head);
        }
        let gone = self.judge(name, row, head.version)?;
        Ok(gone.map_or(head, |version| Head { version, holds: Holds::Nothing }))
    }

    /// The version of a name without a row; an abort if its row may have been lost.
    fn nothing(&self, name: &str) -> Result<Version, Abort> {
        match is_call(name) {
            // A lost call is no loss: its function is run again. But a right over its old result may still be relied on
            // elsewhere.
            true if self.is_bound => Err(Abort::about(Cause::Unreachable, self.site, name)),
            false if self.may_have_lost_data => Err(Abort::about(Cause::Lost, self.site, name)),
            _ => Ok(Version { incarnation: self.incarnation, number: 0 }),
        }
    }

    /// Judges whether the homes on which a call rests still have their storage. None if they do. If one has lost it
    /// since, the call reads as nothing, in the version that is returned. An abort if one was not heard from lately.
    fn judge(&self, name: &str, head: &[u8], version: Version) -> Result<Option<Version>, Abort> {
        let gone = Version { number: version.number | GONE, ..version };
        let Some(homes) = homes_in_head(head) else { return Ok(Some(gone)) };
        let (peers, now) = self.vouchers;
        for (region, incarnation) in homes.iter().filter(|(region, _)| *region != self.site.region) {
            // A home that lost its storage has forgotten that the call depends on its objects: its writers no longer
            // cover it.
            let site = SiteId::new(*region, self.site.lane);
            let peer = peers.iter().find(|peer| peer.site == site);
            if peer.is_some_and(|peer| peer.incarnation > *incarnation) {
                return Ok(Some(gone));
            }

            // A result is used for at most `VOUCHED` after its home last confirmed its storage. That is safe because a
            // new incarnation changes nothing for longer than that (`LEASE`). By both clocks: the monotonic one may
            // have stood still while the machine was suspended, and the wall clock may have been set back since.
            let vouched = peer.filter(|peer| peer.incarnation == *incarnation).and_then(|peer| peer.vouched);
            let is_over = |asked: Now| {
                now.mono >= asked.mono.saturating_add(VOUCHED)
                    || now.wall >= asked.wall.saturating_add_unsigned(VOUCHED)
            };
            if vouched.is_none_or(is_over) {
                return Err(Abort { site: Some(site), ..Abort::about(Cause::Unreachable, self.site, name) });
            }
        }

        Ok(None)
    }

    /// The values of a span, with their versions, by name.
    pub fn scan(&self, span: &Span) -> Result<Vec<(String, Seen)>, Abort> {
        // A scan says what is not there as well, and nothing can be said of that where objects may have been lost.
        if self.may_have_lost_data {
            return Err(Abort::about(Cause::Lost, self.site, &span.prefix));
        }
        let range = row_range(self.incarnation, span);
        if self.view.is_cut() && !self.view.ranges().contains(&range) {
            return Err(Abort::of(Cause::TooMuch));
        }

        let rows = self.view.rows_of(&range);
        let decoded = rows.map(|(key, row)| {
            let name = String::from_utf8(key[5..].to_vec()).map_err(|_| Malformed)?;
            Ok((name, decode_row(self.incarnation, row)?))
        });
        Ok(decoded.collect::<Result<_, Malformed>>().expect("rows that storage vouches for"))
    }

    /// The version numbers of a span, by name.
    pub(super) fn numbers(&self, span: &Span) -> Result<Vec<(String, u64)>, Abort> {
        if self.may_have_lost_data {
            return Err(Abort::about(Cause::Lost, self.site, &span.prefix));
        }
        let range = row_range(self.incarnation, span);
        let rows = self.view.heads_of(&range).map(|(key, row)| {
            let name = String::from_utf8(key[5..].to_vec()).map_err(|_| Malformed)?;
            Ok((name, decode_head(self.incarnation, row)?.version.number))
        });
        Ok(rows.collect::<Result<_, Malformed>>().expect("rows that storage vouches for"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_names_the_rows_that_are_within_it() {
        let one = Incarnation(1);
        let names = ["", "a", "a/", "a/x", "a/y", "a/é", "a0", "b"];
        for (prefix, after) in [("a/", ""), ("a/", "a/x"), ("", ""), ("", "a/"), ("a", "Z"), ("a/", "b")] {
            let span = Span { prefix: prefix.into(), after: after.into(), limit: 9 };
            let range = row_range(one, &span);
            for name in names.iter().filter(|name| !name.is_empty()) {
                let key = row_key(one, name);
                assert_eq!(range.from <= key && key < range.to, is_within(&span, name), "{span:?} {name}");
            }
            assert!(row_key(Incarnation(2), "a/x") >= range.to);
        }
        let last = row_range(Incarnation(u32::MAX), &Span { limit: 1, ..Span::default() });
        assert!(last.from < last.to);
    }
}
