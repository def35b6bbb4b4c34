//! What a site keeps of an entity's rounds among subsets, and its part of the share's row on storage.

use super::super::amount::Amount;
use super::super::bytes::{put_row, put_site, read_row, read_site};
use super::super::value::Row;
use super::message::Key;
use crate::codec::{Cursor, Malformed, put_u64};
use crate::id::{Incarnation, SiteId};

/// The round among a subset that a site is in.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Part<A = i64> {
    /// The round.
    pub key: Key,
    /// The share's number when it was reported: a row that this site accepts has it.
    pub share: u64,
    /// The amount set aside: until the vote what was reported, from then on what the row gives.
    pub held: A,
    /// The value that was accepted, a row for each member. Once there is one, only the outcome ends the round.
    pub accepted: Option<Vec<Row<A>>>,
}

/// The last decided round that names a member together with this site.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Outcome {
    /// The member; this site too.
    pub site: SiteId,
    /// The incarnation of it that the round names.
    pub incarnation: Incarnation,
    /// The round.
    pub key: Key,
    /// How it ended, see [`super::Message::Decided`].
    pub worse: bool,
}

/// The durable record of an entity's rounds among subsets at one site. Bounded: one round, and two entries for each site.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Record<A = i64> {
    /// The round that the site is in.
    pub part: Option<Part<A>>,
    /// The newest round of each leader that the site joined, as (leader, incarnation, sequence), by ascending leader. Its own entry
    /// numbers its own rounds.
    pub seen: Vec<(SiteId, Incarnation, u64)>,
    /// The last decided round with each site, by ascending site.
    pub settled: Vec<Outcome>,
}

impl<A> Default for Record<A> {
    fn default() -> Self {
        Self { part: None, seen: Vec::new(), settled: Vec::new() }
    }
}

impl<A: Amount> Record<A> {
    /// The newest round of a leader that the site has joined; nothing is before all.
    pub fn seen(&self, leader: SiteId) -> (Incarnation, u64) {
        let seen = self.seen.iter().find(|seen| seen.0 == leader);
        seen.map_or((Incarnation(0), 0), |seen| (seen.1, seen.2))
    }

    /// Notes that the site has joined a round: it never joins this one or an earlier one of its leader again.
    pub(super) fn see(&mut self, key: Key) {
        let entry = (key.leader, key.incarnation, key.sequence);
        match self.seen.binary_search_by_key(&key.leader, |seen| seen.0) {
            Ok(at) => self.seen[at] = entry,
            Err(at) => self.seen.insert(at, entry),
        }
    }

    /// How the last decided round with a site ended, if it is this one.
    pub(super) fn outcome(&self, site: SiteId, key: Key) -> Option<bool> {
        let settled = self.settled.iter().find(|settled| settled.site == site && settled.key == key);
        settled.map(|settled| settled.worse)
    }

    /// Notes the outcome of a round with a member.
    pub(super) fn settle(&mut self, (site, incarnation): (SiteId, Incarnation), key: Key, worse: bool) {
        let entry = Outcome { site, incarnation, key, worse };
        match self.settled.binary_search_by_key(&site, |settled| settled.site) {
            Ok(at) => self.settled[at] = entry,
            Err(at) => self.settled.insert(at, entry),
        }
    }

    /// Appends it to a row.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.seen.len() as u64);
        for (site, incarnation, sequence) in &self.seen {
            put_site(out, *site);
            put_u64(out, u64::from(incarnation.0));
            put_u64(out, *sequence);
        }
        put_u64(out, self.settled.len() as u64);
        for Outcome { site, incarnation, key, worse } in &self.settled {
            put_site(out, *site);
            put_u64(out, u64::from(incarnation.0));
            put_key(out, *key);
            out.push(u8::from(*worse));
        }
        let Some(part) = &self.part else { return out.push(0) };
        out.push(1 + u8::from(part.accepted.is_some()));
        put_key(out, part.key);
        put_u64(out, part.share);
        part.held.encode(out);
        if let Some(rows) = &part.accepted {
            put_u64(out, rows.len() as u64);
            rows.iter().for_each(|row| put_row(out, row));
        }
    }

    /// Reads what [`Record::encode`] wrote.
    pub fn decode(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let seen = (0..cursor.u64()?)
            .map(|_| Ok((read_site(cursor)?, Incarnation(cursor.u32()?), cursor.u64()?)))
            .collect::<Result<_, Malformed>>()?;
        let settled = (0..cursor.u64()?)
            .map(|_| {
                let (site, incarnation) = (read_site(cursor)?, Incarnation(cursor.u32()?));
                Ok(Outcome { site, incarnation, key: read_key(cursor)?, worse: read_bool(cursor)? })
            })
            .collect::<Result<_, Malformed>>()?;

        // A restart is in the round that it was in: what was set aside and accepted binds this life too.
        let kind = cursor.u8()?;
        let part = match kind {
            0 => None,
            1 | 2 => {
                let (key, share, held) = (read_key(cursor)?, cursor.u64()?, A::decode(cursor)?);
                let accepted = match kind {
                    1 => None,
                    _ => Some((0..cursor.u64()?).map(|_| read_row(cursor)).collect::<Result<_, _>>()?),
                };
                Some(Part { key, share, held, accepted })
            }
            _ => return Err(Malformed),
        };
        Ok(Self { part, seen, settled })
    }
}

fn put_key(out: &mut Vec<u8>, key: Key) {
    put_u64(out, u64::from(key.generation));
    put_site(out, key.leader);
    put_u64(out, u64::from(key.incarnation.0));
    put_u64(out, key.sequence);
}

fn read_key(cursor: &mut Cursor) -> Result<Key, Malformed> {
    Ok(Key {
        generation: cursor.u32()?,
        leader: read_site(cursor)?,
        incarnation: Incarnation(cursor.u32()?),
        sequence: cursor.u64()?,
    })
}

fn read_bool(cursor: &mut Cursor) -> Result<bool, Malformed> {
    match cursor.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed),
    }
}
