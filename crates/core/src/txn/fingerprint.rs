//! Comparing the states of a site, for the model check.
//!
//! Two states with the same fingerprint take every input alike, as far as commitment goes. Left out is what a check that fires
//! timers in any order does not see: when they are due, and how often was asked, which only spaces the questions. Left out
//! are also rights and copies: a check that has them must add them.

use std::hash::{Hash, Hasher};

use super::row::{self, ParticipantRow};
use super::{PARTICIPANT, Stage, Txns};
use crate::codec::Malformed;
use crate::id::OperationId;

impl Txns {
    /// Feeds what the site has in memory, in an order that does not depend on how it came about.
    pub fn fingerprint(&self, state: &mut impl Hasher) {
        (self.numbers.versions, self.numbers.deadline, self.numbers.rights, self.version).hash(state);
        (self.backer.len(), self.backer.deadline().is_some()).hash(state);
        self.locks.fingerprint(state);
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(id, _)| **id);
        entries.len().hash(state);
        for (id, entry) in entries {
            id.hash(state);
            entry.fingerprint(state);
        }
        let mut coordinated: Vec<_> = self.coordinated.iter().collect();
        coordinated.sort_unstable_by_key(|(id, _)| **id);
        for (id, coordinated) in coordinated {
            id.hash(state);
            coordinated.fingerprint(state);
        }
    }

    /// Which transaction a resident row is about, and how far the site is with its part; none for other rows.
    pub fn stage_of_row(key: &[u8], value: &[u8]) -> Result<Option<(OperationId, Stage)>, Malformed> {
        if key.first() != Some(&PARTICIPANT) {
            return Ok(None);
        }
        let row = ParticipantRow::decode(value)?;
        Ok(Some((row::participant_of(key)?, Stage::DURABLE[usize::from(row.stage)])))
    }
}
