//! The rows of quotas and grants on storage, see [`crate::rows`].

use super::bucket::Refill;
use super::one::Quota;
use crate::avantan::Share;
use crate::codec::{Cursor, Malformed, put_bytes, put_i64, put_u64, put_u128};
use crate::gift::Totals;
use crate::id::Incarnation;
use crate::machine::{Batch, KeyRange};
use crate::right::Term;
use crate::rows::{DUE, GRANT, QUOTA_COLD, QUOTA_HOT};

/// Four bytes for the number while they suffice, then eight.
fn quota_key(tag: u8, number: u64) -> Vec<u8> {
    let mut key = vec![tag];
    match u32::try_from(number) {
        Ok(number) => key.extend_from_slice(&number.to_be_bytes()),
        Err(_) => key.extend_from_slice(&number.to_be_bytes()),
    }
    key
}

/// The number in the key of a quota's row.
pub fn quota_number(key: &[u8]) -> Result<u64, Malformed> {
    let number = key.get(1..).ok_or(Malformed)?;
    if let Ok(short) = number.try_into() {
        return Ok(u64::from(u32::from_be_bytes(short)));
    }
    number.try_into().map(u64::from_be_bytes).map_err(|_| Malformed)
}

/// Removes the rows of a quota.
pub(super) fn delete(batch: &mut Batch, number: u64) {
    batch.delete(&quota_key(QUOTA_HOT, number));
    batch.delete(&quota_key(QUOTA_COLD, number));
}

/// Writes the row that changes with grants. It is written most often, so it is short.
pub(super) fn put_hot(batch: &mut Batch, scratch: &mut Vec<u8>, quota: &Quota) {
    scratch.clear();
    put_i64(scratch, quota.avantan.share.tokens);
    put_u128(scratch, quota.counters.acquired);
    put_u128(scratch, quota.counters.released);
    put_u64(scratch, quota.counters.work.local);
    put_u64(scratch, quota.counters.last_grant);
    batch.put(&quota_key(QUOTA_HOT, quota.number), scratch);
}

/// Writes the row that changes with rounds and gifts.
pub(super) fn put_cold(batch: &mut Batch, scratch: &mut Vec<u8>, quota: &Quota) {
    scratch.clear();
    put_bytes(scratch, quota.name.as_bytes());
    quota.avantan.share.encode(scratch);
    quota.totals.encode(scratch);
    put_u64(scratch, quota.counters.work.rebalances);
    put_u64(scratch, quota.counters.work.gifts);
    if let Some(refill) = quota.refill.as_ref().filter(|refill| !refill.is_empty()) {
        refill.encode(scratch);
    }
    batch.put(&quota_key(QUOTA_COLD, quota.number), scratch);
}

/// One of a quota's rows, read back.
#[derive(Debug)]
pub(super) enum QuotaRow {
    /// The row that changes with rounds and gifts; its quota lacks the tokens.
    Cold(Box<Quota>),
    /// The row that changes with grants.
    Hot {
        /// The quota's number.
        number: u64,
        /// Tokens here.
        tokens: i64,
        /// Tokens ever granted.
        acquired: u128,
        /// Tokens ever taken back.
        released: u128,
        /// Operations answered without waiting.
        local: u64,
        /// The last grant's number.
        last_grant: u64,
    },
}

impl QuotaRow {
    /// Reads a row whose tag is [`QUOTA_COLD`] or [`QUOTA_HOT`].
    pub(super) fn decode(key: &[u8], value: &[u8]) -> Result<Self, Malformed> {
        // The tokens stand in the hot row, which is read later: all cold rows come before it.
        let number = quota_number(key)?;
        let mut cursor = Cursor(value);
        let row = if key[0] == QUOTA_HOT {
            QuotaRow::Hot {
                number,
                tokens: cursor.i64()?,
                acquired: cursor.u128()?,
                released: cursor.u128()?,
                local: cursor.u64()?,
                last_grant: cursor.u64()?,
            }
        } else {
            let name = std::str::from_utf8(cursor.bytes()?).map_err(|_| Malformed)?;
            let mut quota = Quota::new(name.into(), number);
            quota.avantan = crate::avantan::Avantan::restore(Share::decode(&mut cursor, 0)?);
            quota.totals = Totals::decode(&mut cursor)?;
            quota.counters.work.rebalances = cursor.u64()?;
            quota.counters.work.gifts = cursor.u64()?;

            // A quota that does not refill, or never handed over what is to be refilled, has nothing more.
            if !cursor.0.is_empty() {
                quota.refill = Some(Box::new(Refill::decode(&mut cursor)?));
            }
            QuotaRow::Cold(Box::new(quota))
        };
        cursor.end()?;
        Ok(row)
    }
}

/// The key of a tracked grant.
pub fn grant_key(incarnation: Incarnation, number: u64) -> [u8; 13] {
    let mut key = [GRANT; 13];
    key[1..5].copy_from_slice(&incarnation.0.to_be_bytes());
    key[5..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Reads back the key of a tracked grant: its incarnation and its number.
pub fn read_grant_key(key: &[u8]) -> Result<(Incarnation, u64), Malformed> {
    let mut cursor = Cursor(key.get(1..).ok_or(Malformed)?);
    let found = (read_incarnation(&mut cursor)?, cursor.be_u64()?);
    cursor.end()?;
    Ok(found)
}

/// An incarnation in a key: its bytes are in the order in which keys are sorted.
fn read_incarnation(cursor: &mut Cursor) -> Result<Incarnation, Malformed> {
    Ok(Incarnation((u32::from(cursor.be_u16()?) << 16) | u32::from(cursor.be_u16()?)))
}

/// A tracked grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grant {
    /// The quota's number.
    pub(super) quota: u64,
    /// The quota's generation in which it was granted: deleting the quota ends it.
    pub(super) generation: u32,
    /// The tokens; at least 1.
    pub(super) amount: i64,
    /// None for one without an end.
    pub(super) term: Option<Term>,
    /// True once what was not used of it is back.
    pub(super) settled: bool,
}

/// Stands for no end in the row of a grant that is settled. A hold ends after it began.
const NO_END: Term = Term { uptime: 0, wall: 0 };

impl Grant {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        put_u64(&mut out, self.quota);
        put_u64(&mut out, u64::from(self.generation));
        put_i64(&mut out, self.amount);

        // Most grants have no end, and their rows end here; few are settled.
        let end = if self.settled { Some(self.term.unwrap_or(NO_END)) } else { self.term };
        if let Some(term) = end {
            put_u64(&mut out, term.uptime);
            put_i64(&mut out, term.wall);
        }
        if self.settled {
            out.push(1);
        }

        out
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(value);
        let (quota, generation, amount) = (cursor.u64()?, cursor.u32()?, cursor.i64()?);
        let term = match cursor.0.is_empty() {
            true => None,
            false => Some(Term { uptime: cursor.u64()?, wall: cursor.i64()? }),
        };
        let settled = match cursor.0.is_empty() {
            true => false,
            false if cursor.u8()? == 1 => true,
            false => return Err(Malformed),
        };
        cursor.end()?;
        let term = term.filter(|term| !(settled && *term == NO_END));
        Ok(Self { quota, generation, amount, term, settled })
    }
}

/// The key of a grant in the index by time. Its value is the grant's.
pub(super) fn due_key(uptime: u64, incarnation: Incarnation, number: u64) -> [u8; 21] {
    let mut key = [DUE; 21];
    key[1..9].copy_from_slice(&uptime.to_be_bytes());
    key[9..13].copy_from_slice(&incarnation.0.to_be_bytes());
    key[13..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Reads back a key of the index by time: (uptime, incarnation, number).
pub fn read_due_key(key: &[u8]) -> Result<(u64, Incarnation, u64), Malformed> {
    let mut cursor = Cursor(key.get(1..).ok_or(Malformed)?);
    let uptime = cursor.be_u64()?;
    let incarnation = read_incarnation(&mut cursor)?;
    let number = cursor.be_u64()?;
    cursor.end()?;
    Ok((uptime, incarnation, number))
}

/// The uptime in a key of the index by time.
pub(super) fn due_uptime(key: &[u8]) -> Result<u64, Malformed> {
    read_due_key(key).map(|(uptime, _, _)| uptime)
}

/// What ends at this uptime or before, and the first that ends after it: two ranges of the index by time, in this order.
pub(super) fn due_ranges(uptime: u64) -> [KeyRange; 2] {
    // The second range tells when to look again.
    let mut after = vec![DUE];
    after.extend_from_slice(&uptime.saturating_add(1).to_be_bytes());
    [
        KeyRange { from: vec![DUE], to: after.clone(), limit: EXPIRIES },
        KeyRange { from: after, to: vec![DUE + 1], limit: 1 },
    ]
}

/// The most holds that end in one turn.
pub(super) const EXPIRIES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_the_way_through_bytes() {
        let mut quota = Quota::new("gpus".into(), 5);
        quota.avantan.share.tokens = 41;
        quota.counters.acquired = 1 << 90;
        quota.counters.last_grant = 7;
        quota.totals.give(2, Incarnation(2), 9);
        let (mut batch, mut scratch) = (Batch::new(), Vec::new());
        put_hot(&mut batch, &mut scratch, &quota);
        put_cold(&mut batch, &mut scratch, &quota);
        let rows: Vec<_> =
            batch.iter().map(|(key, value)| QuotaRow::decode(key, value.expect("a put")).expect("sound")).collect();
        assert!(
            matches!(rows[0], QuotaRow::Hot { number: 5, tokens: 41, last_grant: 7, acquired, .. } if acquired == 1 << 90)
        );
        let QuotaRow::Cold(back) = &rows[1] else { panic!("the second row is the cold one") };
        assert_eq!((&*back.name, back.number, &back.totals), ("gpus", 5, &quota.totals));
        let grant =
            Grant { quota: 1, generation: 2, amount: 3, term: Some(Term { uptime: 4, wall: -5 }), settled: false };
        for grant in [grant, Grant { term: None, ..grant }] {
            assert_eq!(Grant::decode(&grant.encode()), Ok(grant));
            let settled = Grant { settled: true, ..grant };
            assert_eq!(Grant::decode(&settled.encode()), Ok(settled));
        }
        assert_eq!(read_due_key(&due_key(9, Incarnation(70_000), 11)), Ok((9, Incarnation(70_000), 11)));
    }
}
