//! Objects as storage has them.

use crate::codec::{Cursor, Malformed, put_u64};
use crate::id::{Incarnation, SiteId};
use crate::machine::{Batch, KeyRange, View};
use crate::object::{Abort, CALL_MARK, Cause, GONE, Seen, Span, Value, Version, is_call};
use crate::turn::Peer;
use crate::warranty::VOUCHED;

/// Tag of the rows of objects, and of those of calls, which spans do not show.
pub(super) const OBJECT: u8 = 0x82;
const CALL: u8 = 0x83;

/// The key of an object's row. Rows of an earlier incarnation, on a storage that turned out to be an old copy, are out of
/// the way of the present one.
pub(super) fn row_key(incarnation: Incarnation, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(5 + name.len());
    key.push(if name.starts_with(CALL_MARK) { CALL } else { OBJECT });
    key.extend_from_slice(&incarnation.0.to_be_bytes());
    key.extend_from_slice(name.as_bytes());
    key
}

/// The rows of a span.
pub(super) fn row_range(incarnation: Incarnation, span: &Span) -> KeyRange {
    let mut to = row_key(incarnation, &span.prefix);
    while to.last() == Some(&u8::MAX) {
        to.pop();
    }
    *to.last_mut().expect("the tag is below the highest byte") += 1;
    let from = if span.after.as_bytes() >= span.prefix.as_bytes() {
        let mut from = row_key(incarnation, &span.after);
        from.push(0);
        from
    } else {
        row_key(incarnation, &span.prefix)
    };
    // What comes after all names of the prefix is an empty range, and not one that goes backwards.
    KeyRange { from: from.min(to.clone()), to, limit: span.limit as usize }
}

/// What of a span must be looked at to judge whether it still holds just so many rows: not all that it may hold.
pub(super) fn judged(span: &Span, rows: usize) -> Span {
    let limit = u32::try_from(rows + 1).unwrap_or(u32::MAX).min(span.limit);
    Span { limit, ..span.clone() }
}

/// Whether the name is in the span, its limit aside.
pub(super) fn is_within(span: &Span, name: &str) -> bool {
    name.starts_with(&span.prefix)
        && !name.starts_with(CALL_MARK)
        && (span.after.is_empty() || name > span.after.as_str())
}

fn decode_row(incarnation: Incarnation, row: &[u8]) -> Result<Seen, Malformed> {
    let mut cursor = Cursor(row);
    let version = Version { incarnation, number: cursor.u64()? };
    let value = Value::decode(&mut cursor)?;
    cursor.end()?;
    Ok(Seen { version, value: Some(value) })
}

/// Writes an object's row, or removes it.
pub(super) fn put_row(batch: &mut Batch, incarnation: Incarnation, name: &str, number: u64, value: Option<&Value>) {
    let key = row_key(incarnation, name);
    let Some(value) = value else { return batch.delete(&key) };
    let mut row = Vec::with_capacity(16 + value.size());
    put_u64(&mut row, number);
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
    /// Whether an earlier incarnation's objects are lost, so that nothing can be said of what is not there.
    pub is_bereft: bool,
    /// Whether rights of an earlier life may still be binding: until they are over, nothing may be concluded from a call that
    /// is not there. What it was used for, before it was lost, may still be shown.
    pub is_bound: bool,
    /// Who vouches that what calls rest on is still there, and the time by which that is judged, in monotonic microseconds.
    pub vouchers: (&'a [Peer], u64),
}

impl Table<'_> {
    /// What a name holds.
    pub fn get(&self, name: &str) -> Result<Seen, Abort> {
        let key = row_key(self.incarnation, name);
        if self.view.is_cut() && !self.view.knows(&key) {
            return Err(Abort::of(Cause::TooMuch));
        }
        match self.view.get(&key) {
            Some(row) => {
                let seen = decode_row(self.incarnation, row).expect("a row that storage vouches for");
                if let Some(Value::Derived(derived)) = &seen.value {
                    return self.judge(name, &derived.homes, seen.version).map(|gone| gone.unwrap_or(seen));
                }
                Ok(seen)
            }
            // Calls are no loss: they are computed anew.
            None if is_call(name) && self.is_bound => Err(Abort::about(Cause::Unreachable, self.site, name)),
            None if is_call(name) => Ok(self.nothing()),
            None if self.is_bereft => Err(Abort::about(Cause::Lost, self.site, name)),
            None => Ok(self.nothing()),
        }
    }

    /// Whether what a call rests on is still there. If a home has lost its storage since, the call reads as nothing. Whether
    /// one has is known if it was heard from lately: one that has lost its storage changes nothing for a while ([`LEASE`](crate::warranty::LEASE)).
    fn judge(&self, name: &str, homes: &[(u16, Incarnation)], version: Version) -> Result<Option<Seen>, Abort> {
        let (peers, now) = self.vouchers;
        for (region, incarnation) in homes.iter().filter(|(region, _)| *region != self.site.region) {
            let site = SiteId::new(*region, self.site.lane);
            let peer = peers.iter().find(|peer| peer.site == site);
            if peer.is_some_and(|peer| peer.incarnation > *incarnation) {
                let version = Version { number: version.number | GONE, ..version };
                return Ok(Some(Seen { version, value: None }));
            }
            let vouched = peer.filter(|peer| peer.incarnation == *incarnation).and_then(|peer| peer.vouched);
            if vouched.is_none_or(|asked| now >= asked.saturating_add(VOUCHED)) {
                return Err(Abort { site: Some(site), ..Abort::about(Cause::Unreachable, self.site, name) });
            }
        }
        Ok(None)
    }

    /// What a span holds.
    pub fn scan(&self, span: &Span) -> Result<Vec<(String, Seen)>, Abort> {
        if self.is_bereft {
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

    /// The version of what is not there.
    pub fn nothing(&self) -> Seen {
        Seen { version: Version { incarnation: self.incarnation, number: 0 }, value: None }
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
