//! The parts of a share's row on storage that both kinds of rounds have.

use std::sync::Arc;

use super::amount::Amount;
use super::value::{Ballot, Lifecycle, Row, Value};
use crate::api::{Agreement, Charter, Parent};
use crate::codec::{Cursor, Malformed, put_bytes, put_u64};
use crate::id::{Incarnation, SiteId};

impl Charter {
    /// Appends it to a row.
    pub fn encode(self, out: &mut Vec<u8>) {
        let below = if self.parent.is_some() { BELOW } else { 0 };
        out.push(below + u8::from(self.agreement == Agreement::Any));
        put_u64(out, self.refill);
        if let Some(Parent { length, generation }) = self.parent {
            put_u64(out, u64::from(length));
            put_u64(out, u64::from(generation));
        }
    }

    /// Reads what [`Charter::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let kind = cursor.u8()?;
        let agreement = match kind & !BELOW {
            0 => Agreement::Majority,
            1 => Agreement::Any,
            _ => return Err(Malformed),
        };
        let refill = cursor.u64()?;
        let mut parent = || {
            let length = u16::try_from(cursor.u64()?).map_err(|_| Malformed)?;
            Ok(Parent { length, generation: cursor.u32()? })
        };
        let parent = if kind & BELOW != 0 { Some(parent()?) } else { None };
        Ok(Self { agreement, refill, parent })
    }
}

/// Comes before the number of the last change of the members, in a value that knows of one.
const CHANGED: u8 = 0x80;
/// Set in the first byte of a charter that has a parent.
const BELOW: u8 = 2;

/// Appends a site.
pub(super) fn put_site(out: &mut Vec<u8>, site: SiteId) {
    put_u64(out, u64::from(site.region));
    put_u64(out, u64::from(site.lane));
}

/// Reads a site.
pub(super) fn read_site(cursor: &mut Cursor) -> Result<SiteId, Malformed> {
    let mut part = || u16::try_from(cursor.u64()?).map_err(|_| Malformed);
    Ok(SiteId { region: part()?, lane: part()? })
}

/// Writes whether a seat is empty for good: as the incarnation that rounds record of who had it, or zero.
pub(crate) fn put_gone(out: &mut Vec<u8>, gone: bool) {
    put_u64(out, if gone { u64::from(Incarnation::GONE.0) } else { 0 });
}

/// Reads what [`put_gone`] wrote. Once, the incarnation was one that the site which asked for the change had thought of.
pub(crate) fn read_gone(cursor: &mut Cursor) -> Result<bool, Malformed> {
    Ok(cursor.u32()? > 0)
}

/// Appends a ballot.
pub(super) fn put_ballot(out: &mut Vec<u8>, ballot: Ballot) {
    put_u64(out, ballot.number);
    put_site(out, ballot.site);
}

/// Reads a ballot.
pub(super) fn read_ballot(cursor: &mut Cursor) -> Result<Ballot, Malformed> {
    Ok(Ballot { number: cursor.u64()?, site: read_site(cursor)? })
}

/// Appends a row of a value.
pub(super) fn put_row<A: Amount>(out: &mut Vec<u8>, row: &Row<A>) {
    put_site(out, row.site);
    put_u64(out, u64::from(row.incarnation.0));
    put_u64(out, row.share);
    row.before.encode(out);
    row.kept.encode(out);
    row.away.encode(out);
    row.after.encode(out);
}

/// Reads a row of a value.
pub(super) fn read_row<A: Amount>(cursor: &mut Cursor) -> Result<Row<A>, Malformed> {
    Ok(Row {
        site: read_site(cursor)?,
        incarnation: Incarnation(cursor.u32()?),
        share: cursor.u64()?,
        before: A::decode(cursor)?,
        kept: A::decode(cursor)?,
        away: A::decode(cursor)?,
        after: A::decode(cursor)?,
    })
}

/// Appends a value.
pub(super) fn put_value<A: Amount>(out: &mut Vec<u8>, value: &Value<A>) {
    if value.membership > 0 {
        out.push(CHANGED);
        put_u64(out, value.membership);
    }
    match value.lifecycle {
        Lifecycle::Keep => out.push(0),
        Lifecycle::Create { limit, charter } if charter == Charter::default() => {
            out.push(1);
            limit.encode(out);
        }
        Lifecycle::Create { limit, charter } => {
            out.push(5);
            limit.encode(out);
            charter.encode(out);
        }
        Lifecycle::Delete => out.push(2),
        Lifecycle::Resize { limit } => {
            out.push(3);
            limit.encode(out);
        }
        Lifecycle::Reclaim { brought, in_use } => {
            out.push(4);
            brought.encode(out);
            in_use.encode(out);
        }
        Lifecycle::Seat { site, gone } => {
            out.push(6);
            put_site(out, site);
            put_gone(out, gone);
            put_bytes(out, value.label.as_bytes());
        }
    }
    put_u64(out, value.rows.len() as u64);
    for row in &value.rows {
        put_row(out, row);
    }
}

/// Reads a value.
pub(super) fn read_value<A: Amount>(cursor: &mut Cursor) -> Result<Value<A>, Malformed> {
    let mut kind = cursor.u8()?;
    let mut membership = 0;
    if kind == CHANGED {
        membership = cursor.u64()?;
        kind = cursor.u8()?;
    }
    let mut label = Arc::default();
    let lifecycle = match kind {
        0 => Lifecycle::Keep,
        1 => Lifecycle::Create { limit: A::decode(cursor)?, charter: Charter::default() },
        5 => Lifecycle::Create { limit: A::decode(cursor)?, charter: Charter::decode(cursor)? },
        2 => Lifecycle::Delete,
        3 => Lifecycle::Resize { limit: A::decode(cursor)? },
        4 => Lifecycle::Reclaim { brought: A::decode(cursor)?, in_use: A::decode(cursor)? },
        6 => {
            let (site, gone) = (read_site(cursor)?, read_gone(cursor)?);
            label = std::str::from_utf8(cursor.bytes()?).map_err(|_| Malformed)?.into();
            Lifecycle::Seat { site, gone }
        }
        _ => return Err(Malformed),
    };
    let rows = (0..cursor.u64()?).map(|_| read_row(cursor)).collect::<Result<_, _>>()?;
    Ok(Value { lifecycle, membership, label, rows })
}
