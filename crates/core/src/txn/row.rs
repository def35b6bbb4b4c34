//! The rows of transactions that are under way, see [`crate::rows`].

use crate::codec::{Cursor, Malformed, put_i64, put_u64};
use crate::id::{Incarnation, OperationId, SessionId, SiteId, SiteSet};
use crate::object::{Part, put_site, site};
use crate::rows::{COORDINATOR, PARTICIPANT};

/// A home's durable numbers. Each but `loss` only rises, but for `rights` after a wall clock was ahead (see
/// [`crate::warranty`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Numbers {
    /// The highest version number that is reserved: a start gives numbers above it.
    pub(super) versions: u64,
    /// The mark of deadlines, in microseconds since 1970: a transaction with a deadline up to it that is not known here
    /// is refused.
    pub(super) deadline: i64,
    /// The mark of rights, in microseconds since 1970: above every expiry of a right that was ever sent.
    pub(super) rights: i64,
    /// An operator's word about the objects of earlier incarnations.
    pub(super) loss: Loss,
    /// The uptime of the site, over all its lives, until which something may rest on what its lost predecessor had; zero if that is over. A
    /// mark of rights does not tell: the wall clock may have been behind when it was set.
    pub(super) lost_until: u64,
}

/// An operator's word about objects that were lost with an earlier incarnation's storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Loss {
    /// None yet: an object that is not there may have been lost.
    #[default]
    Open,
    /// They are gone. An object that is not there is absent once no right over a lost object can be relied on any more.
    Accepted,
    /// They are gone, and the rights over them have ended: an object that is not there is absent.
    Settled,
}

impl Numbers {
    /// The row.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(32);
        put_u64(&mut row, self.versions);
        put_i64(&mut row, self.deadline);
        put_i64(&mut row, self.rights);
        row.push(self.loss as u8);

        // An earlier version has no such number, and opens what this one wrote once it is zero.
        if self.lost_until > 0 {
            put_u64(&mut row, self.lost_until);
        }

        row
    }

    /// Reads what [`Numbers::encode`] wrote.
    pub(super) fn decode(row: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(row);
        let numbers = Self {
            versions: cursor.u64()?,
            deadline: cursor.i64()?,
            rights: cursor.i64()?,
            loss: match cursor.u8()? {
                0 => Loss::Open,
                1 => Loss::Accepted,
                _ => Loss::Settled,
            },
            lost_until: if cursor.0.is_empty() { 0 } else { cursor.u64()? },
        };
        cursor.end()?;
        Ok(numbers)
    }
}

/// The key of the row of a transaction in which this site takes part.
pub(super) fn participant_key(id: OperationId) -> Vec<u8> {
    let mut key = Vec::with_capacity(25);
    key.push(PARTICIPANT);
    key.extend_from_slice(&id.site.region.to_be_bytes());
    key.extend_from_slice(&id.site.lane.to_be_bytes());
    key.extend_from_slice(&id.incarnation.0.to_be_bytes());
    key.extend_from_slice(&id.session.0.to_be_bytes());
    key.extend_from_slice(&id.sequence.to_be_bytes());
    key
}

/// The transaction that a participant's row is about.
pub(super) fn participant_of(key: &[u8]) -> Result<OperationId, Malformed> {
    let mut cursor = Cursor(&key[1..]);
    let site = SiteId { region: cursor.be_u16()?, lane: cursor.be_u16()? };
    let incarnation = Incarnation(u32::from(cursor.be_u16()?) << 16 | u32::from(cursor.be_u16()?));
    let id = OperationId { site, incarnation, session: SessionId(cursor.be_u64()?), sequence: cursor.be_u64()? };
    cursor.end()?;
    Ok(id)
}

/// The row of a transaction in which this site takes part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ParticipantRow {
    /// 0 prepared, 1 committed, 2 refused.
    pub(super) stage: u8,
    /// Its deadline, in microseconds since 1970.
    pub(super) deadline: i64,
    /// The participants, each in the incarnation that was asked.
    pub(super) participants: Vec<(SiteId, Incarnation)>,
    /// While it is prepared, the participants that are known to be prepared; once it is committed, those that are known
    /// to know that.
    pub(super) known: SiteSet,
    /// This site's part while it is prepared; empty otherwise.
    pub(super) part: Part,
}

impl ParticipantRow {
    /// The row.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(64);
        row.push(self.stage);
        put_i64(&mut row, self.deadline);
        put_sites(&mut row, &self.participants);
        put_u64(&mut row, self.known.0);
        self.part.encode(&mut row);
        row
    }

    /// Reads what [`ParticipantRow::encode`] wrote.
    pub(super) fn decode(row: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(row);
        let stage = cursor.u8()?;
        let deadline = cursor.i64()?;
        let participants = sites(&mut cursor)?;
        let known = SiteSet(cursor.u64()?);
        let part = Part::decode(&mut cursor)?;
        cursor.end()?;
        if stage > 2 { Err(Malformed) } else { Ok(Self { stage, deadline, participants, known, part }) }
    }
}

/// The key of the row of a transaction that this site coordinates.
pub(super) fn coordinator_key(session: SessionId, sequence: u64) -> [u8; 17] {
    let mut key = [COORDINATOR; 17];
    key[1..9].copy_from_slice(&session.0.to_be_bytes());
    key[9..].copy_from_slice(&sequence.to_be_bytes());
    key
}

/// The row of a transaction that this site coordinates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CoordinatorRow {
    /// The session's mark; above the operation's sequence if no client waits for it any more.
    pub(super) low: u64,
    /// The digest of its content.
    pub(super) digest: u64,
    /// Its deadline, in microseconds since 1970.
    pub(super) deadline: i64,
    /// The participants, each in the incarnation that is asked.
    pub(super) participants: Vec<(SiteId, Incarnation)>,
    /// True if it took effect: the row is kept until every participant knows that. A transaction that was aborted has
    /// no row.
    pub(super) is_committed: bool,
    /// True if no part of it writes anything.
    pub(super) only_reads: bool,
}

impl CoordinatorRow {
    /// The row.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(48);
        put_u64(&mut row, self.low);
        put_u64(&mut row, self.digest);
        put_i64(&mut row, self.deadline);
        put_sites(&mut row, &self.participants);
        row.push(u8::from(self.is_committed));

        // Rows of earlier versions do not say so of any.
        if self.only_reads {
            row.push(1);
        }
        row
    }

    /// Reads what [`CoordinatorRow::encode`] wrote, with the session and the sequence that the key names.
    pub(super) fn decode(key: &[u8], row: &[u8]) -> Result<(SessionId, u64, Self), Malformed> {
        let mut cursor = Cursor(&key[1..]);
        let (session, sequence) = (SessionId(cursor.be_u64()?), cursor.be_u64()?);
        cursor.end()?;
        let mut cursor = Cursor(row);
        let (low, digest) = (cursor.u64()?, cursor.u64()?);
        let row = Self {
            low,
            digest,
            deadline: cursor.i64()?,
            participants: sites(&mut cursor)?,
            is_committed: cursor.u8()? != 0,
            only_reads: !cursor.0.is_empty() && cursor.u8()? != 0,
        };
        cursor.end()?;
        Ok((session, sequence, row))
    }
}

fn put_sites(out: &mut Vec<u8>, sites: &[(SiteId, Incarnation)]) {
    put_u64(out, sites.len() as u64);
    for (site, incarnation) in sites {
        put_site(out, *site);
        put_u64(out, u64::from(incarnation.0));
    }
}

fn sites(cursor: &mut Cursor) -> Result<Vec<(SiteId, Incarnation)>, Malformed> {
    (0..cursor.u64()?).map(|_| Ok((site(cursor)?, Incarnation(cursor.u32()?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Change, Value};

    #[test]
    fn rows_survive_the_way_through_bytes() {
        let id = OperationId {
            site: SiteId::new(3, 1),
            incarnation: Incarnation(70_000),
            session: SessionId(1 << 40),
            sequence: 1025,
        };
        assert_eq!(participant_of(&participant_key(id)), Ok(id));
        let participants = vec![(SiteId::new(0, 0), Incarnation(1)), (SiteId::new(2, 0), Incarnation(3))];
        let part = Part { writes: vec![("x".into(), Change::Put(Value::Counter(4)))], ..Part::default() };
        let row =
            ParticipantRow { stage: 1, deadline: -5, participants: participants.clone(), known: SiteSet(3), part };
        assert_eq!(ParticipantRow::decode(&row.encode()), Ok(row));
        let key = coordinator_key(id.session, id.sequence);
        for (is_committed, only_reads) in [(true, false), (false, true), (false, false)] {
            let (low, digest, participants) = (1000, u64::MAX, participants.clone());
            let row = CoordinatorRow { low, digest, deadline: 9, participants, is_committed, only_reads };
            assert_eq!(CoordinatorRow::decode(&key, &row.encode()), Ok((id.session, id.sequence, row)));
        }
        for lost_until in [0, 21] {
            let numbers = Numbers { versions: 9, deadline: -1, rights: i64::MAX, loss: Loss::Accepted, lost_until };
            assert_eq!(Numbers::decode(&numbers.encode()), Ok(numbers));
        }
    }
}
