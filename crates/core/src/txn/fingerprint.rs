//! Comparing the states of a site, for the model check.
//!
//! Two states with the same fingerprint take every input alike, as far as commitment goes. Left out are times at which
//! timers are due, and numbers of questions, which only space the next ones: a check that fires timers in any order
//! does not see these. Left out are also rights and copies: a check that has them must add them.

use std::hash::{Hash, Hasher};

use super::participant::Timer;
use super::row::{self, ParticipantRow};
use super::{Stage, Txns};
use crate::codec::Malformed;
use crate::id::OperationId;
use crate::rows::PARTICIPANT;

impl Txns {
    /// Feeds the state of the site to a hasher, in an order that does not depend on its history.
    pub fn fingerprint(&self, state: &mut impl Hasher) {
        let Self { participant, coordinator, .. } = self;
        let numbers = &participant.numbers;
        (numbers.versions, numbers.deadline, numbers.rights, participant.version).hash(state);
        (participant.issuer.len(), participant.issuer.deadline().is_some()).hash(state);
        participant.locks.fingerprint(state);

        // Hash maps are fed in the order of their keys: theirs depends on the order of insertions.
        let mut entries: Vec<_> = participant.entries.iter().collect();
        entries.sort_unstable_by_key(|(id, _)| **id);
        entries.len().hash(state);
        for (id, entry) in entries {
            // When a timer fires is no part of the state, but whether there is one that counts: an entry that nobody looks at again is not
            // in the state of one that is looked at.
            (id, participant.timers.contains(&(entry.look_at, Timer::Part(*id)))).hash(state);
            entry.fingerprint(state);
        }

        let mut coordination: Vec<_> = coordinator.coordination.iter().collect();
        coordination.sort_unstable_by_key(|(id, _)| **id);
        for (id, coordination) in coordination {
            (id, coordinator.is_looked_at(id, coordination)).hash(state);
            coordination.fingerprint(state);
        }
    }

    /// The transaction of a participant's row, with the stage of the part; none for other rows.
    pub fn stage_of_row(key: &[u8], value: &[u8]) -> Result<Option<(OperationId, Stage)>, Malformed> {
        if key.first() != Some(&PARTICIPANT) {
            return Ok(None);
        }
        let row = ParticipantRow::decode(value)?;
        Ok(Some((row::participant_of(key)?, Stage::DURABLE[usize::from(row.stage)])))
    }
}
