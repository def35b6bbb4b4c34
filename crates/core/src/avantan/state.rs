//! The durable state of one entity's agreement at one site, and its row on storage.

use super::member::Membership;
use super::value::{Ballot, Lifecycle, Row, Value};
use crate::codec::{Cursor, Malformed, put_i64, put_u64};
use crate::id::{Incarnation, SiteId};

/// The instance that this site has promised, offered or accepted something in.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Round {
    /// The instance; always the one after the last applied.
    pub instance: u64,
    /// The highest ballot promised.
    pub promised: Ballot,
    /// The first ballot to which a line was reported that still counts.
    pub first: Option<Ballot>,
    /// Tokens set aside; not spent until the outcome is known.
    pub held: i64,
    /// Nothing is granted until the outcome is known.
    pub closing: bool,
    /// The value accepted, with its ballot.
    pub accepted: Option<(Ballot, Value)>,
}

impl Round {
    /// A round in which nothing is reported or accepted yet.
    pub fn new(instance: u64, promised: Ballot) -> Self {
        Self { instance, promised, first: None, held: 0, closing: false, accepted: None }
    }
}

/// The last decided row that names a site.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Settled {
    /// The instance that decided it.
    pub instance: u64,
    /// The row.
    pub row: Row,
}

/// What all decided instances came to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Table {
    /// Counts the creations of this name.
    pub generation: u32,
    /// The instance that created the present generation.
    pub created: u64,
    /// The limit of the present generation; none if it does not exist (yet, or any more).
    pub limit: Option<i64>,
    rows: Vec<Settled>,
}

impl Table {
    /// A table from its parts, as a message brings them.
    pub fn from_parts(generation: u32, created: u64, limit: Option<i64>, mut rows: Vec<Settled>) -> Self {
        rows.sort_by_key(|settled| settled.row.site);
        Self { generation, created, limit, rows }
    }

    /// The last decided row of each site that has one, in ascending order.
    pub fn rows(&self) -> &[Settled] {
        &self.rows
    }

    /// The last decided row that names `site`.
    pub fn settled(&self, site: SiteId) -> Option<&Settled> {
        self.rows.iter().find(|settled| settled.row.site == site)
    }

    /// The table after `instance` decided `value`.
    pub fn after(&self, instance: u64, value: &Value) -> Self {
        let mut table = self.clone();
        match value.lifecycle {
            Lifecycle::Keep => {}
            Lifecycle::Create { limit } => {
                table.generation += 1;
                table.created = instance;
                table.limit = Some(limit);
            }
            Lifecycle::Delete => table.limit = None,
        }
        for row in &value.rows {
            let settled = Settled { instance, row: row.clone() };
            match table.rows.binary_search_by_key(&row.site, |settled| settled.row.site) {
                Ok(at) => table.rows[at] = settled,
                Err(at) => table.rows.insert(at, settled),
            }
        }
        table
    }
}

/// One site's share of one entity. Every change is one atomic write.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Share {
    /// Tokens here, those set aside included.
    pub tokens: i64,
    /// Counts the decided rows applied in this incarnation.
    pub number: u64,
    /// Every instance up to this one is decided, and applied if it names this share.
    pub applied: u64,
    /// What those instances came to.
    pub table: Table,
    /// The instance under way, if this site has a part in it.
    pub round: Option<Round>,
    /// The incarnation of this site that may vote although no decided instance recorded it: every other site has said that no
    /// vote of its predecessors counts there.
    pub fresh: Incarnation,
}

impl Share {
    /// Tokens set aside.
    #[inline]
    pub fn held(&self) -> i64 {
        self.round.as_ref().map_or(0, |round| round.held)
    }

    /// Tokens that may be granted or given away now.
    #[inline]
    pub fn free(&self) -> i64 {
        match &self.round {
            Some(round) if round.closing => 0,
            Some(round) => self.tokens - round.held,
            None => self.tokens,
        }
    }

    /// Takes over the outcome of the instances up to `instance`.
    pub(super) fn adopt(&mut self, site: Membership, instance: u64, table: Table) {
        assert!(instance > self.applied);
        let reborn = table.generation != self.table.generation;
        let mut change = 0;
        if let Some(settled) = table.settled(site.me)
            && settled.row.incarnation == site.incarnation
            && settled.row.share == self.number
        {
            let held = self.round.as_ref().filter(|round| round.instance == settled.instance).map_or(0, |r| r.held);
            assert_eq!(held, settled.row.before, "a decided row takes what was set aside for it");
            // Tokens of a generation that is gone went with it.
            let of_this_generation = settled.instance >= table.created;
            change = if of_this_generation { settled.row.after - settled.row.before } else { 0 };
            self.number += 1;
        }
        if reborn || table.limit.is_none() {
            self.tokens = if reborn && table.limit.is_some() { change } else { 0 };
        } else {
            // Beyond `i64` only if clients released what they never had; the books then show it.
            self.tokens = self.tokens.saturating_add(change);
        }
        assert!(self.tokens >= 0, "a share is never negative");
        self.applied = instance;
        self.table = table;
        self.round = None;
    }

    /// Appends everything but `tokens`, which stands in the quota's hot row.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.number);
        put_u64(out, self.applied);
        put_u64(out, u64::from(self.fresh.0));
        put_table(out, &self.table);
        match &self.round {
            None => out.push(0),
            Some(round) => {
                out.push(1 + u8::from(round.closing));
                put_u64(out, round.instance);
                put_ballot(out, round.promised);
                put_ballot(out, round.first.unwrap_or_default());
                put_i64(out, round.held);
                match &round.accepted {
                    None => out.push(0),
                    Some((ballot, value)) => {
                        out.push(1);
                        put_ballot(out, *ballot);
                        put_value(out, value);
                    }
                }
            }
        }
    }

    /// Reads what [`Share::encode`] wrote; `tokens` comes from the hot row.
    pub fn decode(cursor: &mut Cursor, tokens: i64) -> Result<Self, Malformed> {
        let (number, applied) = (cursor.u64()?, cursor.u64()?);
        let (fresh, table) = (Incarnation(cursor.u32()?), read_table(cursor)?);
        let kind = cursor.u8()?;
        let round = match kind {
            0 => None,
            1 | 2 => {
                let (instance, promised, first) = (cursor.u64()?, read_ballot(cursor)?, read_ballot(cursor)?);
                let held = cursor.i64()?;
                let accepted = match cursor.u8()? {
                    0 => None,
                    1 => Some((read_ballot(cursor)?, read_value(cursor)?)),
                    _ => return Err(Malformed),
                };
                // Ballot numbers start at 1, so number 0 stands for "none".
                let first = (first.number > 0).then_some(first);
                Some(Round { instance, promised, first, held, closing: kind == 2, accepted })
            }
            _ => return Err(Malformed),
        };
        Ok(Self { tokens, number, applied, table, round, fresh })
    }
}

fn put_site(out: &mut Vec<u8>, site: SiteId) {
    put_u64(out, u64::from(site.region));
    put_u64(out, u64::from(site.lane));
}

fn read_site(cursor: &mut Cursor) -> Result<SiteId, Malformed> {
    let mut part = || u16::try_from(cursor.u64()?).map_err(|_| Malformed);
    Ok(SiteId { region: part()?, lane: part()? })
}

fn put_ballot(out: &mut Vec<u8>, ballot: Ballot) {
    put_u64(out, ballot.number);
    put_site(out, ballot.site);
}

fn read_ballot(cursor: &mut Cursor) -> Result<Ballot, Malformed> {
    Ok(Ballot { number: cursor.u64()?, site: read_site(cursor)? })
}

fn put_row(out: &mut Vec<u8>, row: &Row) {
    put_site(out, row.site);
    put_u64(out, u64::from(row.incarnation.0));
    put_u64(out, row.share);
    put_i64(out, row.before);
    put_i64(out, row.kept);
    put_i64(out, row.away);
    put_i64(out, row.after);
}

fn read_row(cursor: &mut Cursor) -> Result<Row, Malformed> {
    Ok(Row {
        site: read_site(cursor)?,
        incarnation: Incarnation(cursor.u32()?),
        share: cursor.u64()?,
        before: cursor.i64()?,
        kept: cursor.i64()?,
        away: cursor.i64()?,
        after: cursor.i64()?,
    })
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value.lifecycle {
        Lifecycle::Keep => out.push(0),
        Lifecycle::Create { limit } => {
            out.push(1);
            put_i64(out, limit);
        }
        Lifecycle::Delete => out.push(2),
    }
    put_u64(out, value.rows.len() as u64);
    for row in &value.rows {
        put_row(out, row);
    }
}

fn read_value(cursor: &mut Cursor) -> Result<Value, Malformed> {
    let lifecycle = match cursor.u8()? {
        0 => Lifecycle::Keep,
        1 => Lifecycle::Create { limit: cursor.i64()? },
        2 => Lifecycle::Delete,
        _ => return Err(Malformed),
    };
    let rows = (0..cursor.u64()?).map(|_| read_row(cursor)).collect::<Result<_, _>>()?;
    Ok(Value { lifecycle, rows })
}

fn put_table(out: &mut Vec<u8>, table: &Table) {
    put_u64(out, u64::from(table.generation));
    put_u64(out, table.created);
    put_i64(out, table.limit.unwrap_or(0));
    put_u64(out, table.rows.len() as u64);
    for settled in &table.rows {
        put_u64(out, settled.instance);
        put_row(out, &settled.row);
    }
}

fn read_table(cursor: &mut Cursor) -> Result<Table, Malformed> {
    let (generation, created, limit) = (cursor.u32()?, cursor.u64()?, cursor.i64()?);
    let rows = (0..cursor.u64()?)
        .map(|_| Ok(Settled { instance: cursor.u64()?, row: read_row(cursor)? }))
        .collect::<Result<_, Malformed>>()?;
    // A limit is positive, so 0 stands for "none".
    Ok(Table { generation, created, limit: (limit != 0).then_some(limit), rows })
}

impl Value {
    /// Whether the value may follow `table`: rows are of members, in order, with the share numbers that the table
    /// implies; no amount is negative; the rows add up.
    pub fn fits(&self, table: &Table, members: &[SiteId]) -> bool {
        let in_order = self.rows.windows(2).all(|pair| pair[0].site < pair[1].site);
        let sound = self.rows.iter().all(|row| {
            let expected = match table.settled(row.site) {
                Some(last) if last.row.incarnation == row.incarnation => row.share == last.row.share + 1,
                // A new incarnation starts with nothing; its predecessor's tokens count as spent.
                Some(last) => row.incarnation > last.row.incarnation && row.share == 0 && row.before == 0,
                // No round has named it yet; gifts it may have.
                None => row.share == 0 && (row.before == 0 || row.incarnation == Incarnation(1)),
            };
            expected && row.before >= 0 && row.after >= 0 && row.kept >= 0 && members.contains(&row.site)
        });
        let before: i128 = self.rows.iter().map(|row| i128::from(row.before)).sum();
        let after: i128 = self.rows.iter().map(|row| i128::from(row.after)).sum();
        let adds_up = match self.lifecycle {
            Lifecycle::Keep => table.limit.is_some() && before == after,
            Lifecycle::Create { limit } => {
                table.limit.is_none() && limit > 0 && before == 0 && after == i128::from(limit)
            }
            Lifecycle::Delete => table.limit.is_some() && after == 0 && self.rows.len() == members.len(),
        };
        in_order && sound && adds_up && !self.rows.is_empty()
    }
}
