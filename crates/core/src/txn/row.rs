//! The rows of transactions that are under way: `06` is the numbers of the home, `07` a participant's part, `08` what a
//! coordinator asked for.

use crate::codec::{Cursor, Malformed, put_i64, put_u64};
use crate::id::{Incarnation, OperationId, SessionId, SiteId};
use crate::object::{Part, put_site, site};

/// Tag of the row of a home's numbers.
pub(super) const NUMBERS: u8 = 0x06;
/// Tag of the rows of transactions in which this site takes part.
pub(super) const PARTICIPANT: u8 = 0x07;
/// Tag of the rows of transactions that this site coordinates.
pub(super) const COORDINATOR: u8 = 0x08;
/// Tag of the rows of calls that depend on what is here.
pub(super) const DEPENDENT: u8 = 0x09;

/// A home's durable numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Numbers {
    /// Version numbers below are used up.
    pub(super) versions: u64,
    /// Transactions with a deadline up to this that are not known here are refused, in microseconds since 1970.
    pub(super) deadline: i64,
    /// Above every expiry of a right that was ever sent, in microseconds since 1970.
    pub(super) rights: i64,
    /// What an operator said of the objects of earlier incarnations.
    pub(super) loss: Loss,
}

/// What an operator said of objects that were lost with an earlier incarnation's storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Loss {
    /// Nothing yet: what is not there may have been lost.
    #[default]
    Open,
    /// They are gone. What is not there is absent once no right over what was lost can be relied on any more.
    Accepted,
    /// They are gone, and so are the rights: what is not there is absent.
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

/// What is durable of a transaction in which this site takes part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ParticipantRow {
    /// 0 prepared, 1 committed, 2 refused.
    pub(super) stage: u8,
    /// Its deadline.
    pub(super) deadline: i64,
    /// Who takes part.
    pub(super) participants: Vec<(SiteId, Incarnation)>,
    /// Which of them are known to be prepared, or, if it is committed, to know that.
    pub(super) known: u64,
    /// This site's part, while it is prepared.
    pub(super) part: Part,
}

impl ParticipantRow {
    /// The row.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(64);
        row.push(self.stage);
        put_i64(&mut row, self.deadline);
        put_sites(&mut row, &self.participants);
        put_u64(&mut row, self.known);
        self.part.encode(&mut row);
        row
    }

    /// Reads what [`ParticipantRow::encode`] wrote.
    pub(super) fn decode(row: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(row);
        let stage = cursor.u8()?;
        let deadline = cursor.i64()?;
        let participants = sites(&mut cursor)?;
        let known = cursor.u64()?;
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

/// What is durable of a transaction that this site coordinates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CoordinatorRow {
    /// The session's mark; above the operation's sequence if nobody waits for it any more.
    pub(super) low: u64,
    /// The digest of its content.
    pub(super) digest: u64,
    /// Its deadline.
    pub(super) deadline: i64,
    /// Who takes part.
    pub(super) participants: Vec<(SiteId, Incarnation)>,
    /// Whether it took effect, and it is kept only until every participant knows that. One that did not has no row.
    pub(super) is_committed: bool,
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
        let row = ParticipantRow { stage: 1, deadline: -5, participants: participants.clone(), known: 3, part };
        assert_eq!(ParticipantRow::decode(&row.encode()), Ok(row));
        let row = CoordinatorRow { low: 1000, digest: u64::MAX, deadline: 9, participants, is_committed: true };
        let key = coordinator_key(id.session, id.sequence);
        assert_eq!(CoordinatorRow::decode(&key, &row.encode()), Ok((id.session, id.sequence, row)));
        let numbers = Numbers { versions: 9, deadline: -1, rights: i64::MAX, loss: Loss::Accepted };
        assert_eq!(Numbers::decode(&numbers.encode()), Ok(numbers));
    }
}
