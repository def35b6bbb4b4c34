//! A transaction in which this site takes part, and the stage of its part.

use std::hash::{Hash, Hasher};

use super::row::ParticipantRow;
use crate::id::{Incarnation, OperationId, SiteId, SiteSet};
use crate::object::{Abort, Part, Rank};

/// Among the bits of participants: the coordinator, where it does not take part itself.
const COORDINATOR: SiteSet = SiteSet(1 << 63);
/// The most participants of one transaction: each has a bit of its own.
const MOST_PARTICIPANTS: usize = 64;

/// True if each participant has a bit, and the coordinator too. It has the last one where it does not take part; where all 64 sites of a
/// lane take part it is one of them.
pub(super) fn have_bits(participants: &[(SiteId, Incarnation)], coordinator: SiteId) -> bool {
    let takes_part = || participants.iter().any(|(site, _)| *site == coordinator);
    participants.len() < MOST_PARTICIPANTS || participants.len() == MOST_PARTICIPANTS && takes_part()
}

/// The stage of a participant's part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// It waits for rights of other sites to end.
    Defending,
    /// It is durable, and in doubt.
    Prepared,
    /// It is carried out.
    Committed,
    /// It is refused permanently.
    Refused,
}

impl Stage {
    /// The stages by the number that stands in a row. A part that is defended has no row.
    pub(super) const DURABLE: [Stage; 3] = [Stage::Prepared, Stage::Committed, Stage::Refused];
}

/// A transaction in which this site takes part. Sets of participants are bits, by their position in `participants`.
#[derive(Clone, Debug)]
pub(super) struct Participation {
    /// The end of the time in which it may be prepared, in microseconds since 1970. It is refused when that may be past.
    pub(super) deadline: i64,
    /// The participants, each in the incarnation that was asked; no more than [have bits](have_bits).
    pub(super) participants: Vec<(SiteId, Incarnation)>,
    /// Its stage, with the data of that stage.
    pub(super) state: State,
    /// The timer that counts, in monotonic microseconds; zero before the first.
    pub(super) look_at: u64,
    /// The monotonic time at which its deadline is past: reckoned when this site was first asked to prepare it; after a
    /// start, the latest that it can be.
    pub(super) late_at: u64,
}

/// The stage, with the data that it needs. It only moves forward: a part that is defended is prepared, carried out or
/// refused; one that is prepared is carried out or refused; and one that is carried out or refused stays in that stage.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// It waits for rights of other sites to end. In memory only: it was promised to nobody.
    Defending(Defence),
    /// It is durable, locked, and in doubt.
    Prepared(InDoubt),
    /// It is carried out. `known`: the participants, and the coordinator, that are known to know; always includes this
    /// site.
    Committed { known: SiteSet },
    /// It is refused. `abort` says why, in memory only, for a coordinator that asks again in this life.
    Refused { abort: Option<Abort> },
}

/// A part that waits for rights of other sites to end.
#[derive(Clone, Debug)]
pub(super) struct Defence {
    /// What is to be validated and written here.
    pub(super) part: Part,
    /// The other participants that are known to have prepared.
    pub(super) prepared: SiteSet,
    /// The program's place in the order of those that want the same objects.
    pub(super) rank: Rank,
    /// The monotonic time after which it no longer waits for rights, and is refused.
    pub(super) patience: u64,
    /// True if nothing rests on its deadline: no other site takes part, and it rests on no site's rights.
    pub(super) is_untimed: bool,
    /// True from when it has to wait: no new rights are issued over what it writes.
    pub(super) is_blocked: bool,
}

/// A part that is prepared, with what is known of the other participants.
#[derive(Clone, Debug, Default)]
pub(super) struct InDoubt {
    /// What is locked, and is to be written if the transaction commits.
    pub(super) part: Part,
    /// The participants that are known to be prepared; always includes this site. It stands in this part's row before
    /// anybody is told of it.
    pub(super) known: SiteSet,
    /// The participants whose preparing is durable at a site other than this one. Always within `known`, but for bits
    /// that a peer sent of no participant.
    pub(super) confirmed: SiteSet,
    /// The participants that are known to have lost what they knew.
    pub(super) lost: SiteSet,
    /// The participants, and the coordinator, that know of a loss.
    pub(super) know_of_loss: SiteSet,
    /// The number of times that the others were asked in this life.
    pub(super) asked: u32,
}

impl Participation {
    /// A participation without a timer.
    pub(super) fn new(deadline: i64, participants: Vec<(SiteId, Incarnation)>, state: State) -> Self {
        Self { deadline, participants, state, look_at: 0, late_at: u64::MAX }
    }

    /// The stage of its part.
    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Defending(_) => Stage::Defending,
            State::Prepared(_) => Stage::Prepared,
            State::Committed { .. } => Stage::Committed,
            State::Refused { .. } => Stage::Refused,
        }
    }

    /// Its part; none once it is carried out or refused.
    pub(super) fn part(&self) -> Option<&Part> {
        match &self.state {
            State::Defending(defence) => Some(&defence.part),
            State::Prepared(doubt) => Some(&doubt.part),
            State::Committed { .. } | State::Refused { .. } => None,
        }
    }

    /// The data of a part that waits for rights to end.
    pub(super) fn defence(&self) -> Option<&Defence> {
        if let State::Defending(defence) = &self.state { Some(defence) } else { None }
    }

    /// The data of a part that is in doubt.
    pub(super) fn doubt(&self) -> Option<&InDoubt> {
        if let State::Prepared(doubt) = &self.state { Some(doubt) } else { None }
    }

    /// All participants.
    pub(super) fn all(&self) -> SiteSet {
        SiteSet::first(self.participants.len())
    }

    /// The set of one site alone; empty if that site has nothing to do with the transaction.
    pub(super) fn only(&self, id: OperationId, site: SiteId) -> SiteSet {
        match self.participants.iter().position(|(other, _)| *other == site) {
            Some(position) => SiteSet::of(position),
            None if site == id.site => COORDINATOR,
            None => SiteSet::default(),
        }
    }

    /// True if it is carried out, and every participant and the coordinator know.
    pub(super) fn is_known_by_all(&self, id: OperationId) -> bool {
        let all = self.all() | self.only(id, id.site);
        matches!(self.state, State::Committed { known } if known.has_all(all))
    }

    /// Its row.
    pub(super) fn row(&self) -> Vec<u8> {
        let (stage, known, part) = match &self.state {
            State::Defending(_) => unreachable!("a part that is defended is not durable"),
            State::Prepared(doubt) => (0, doubt.known, doubt.part.clone()),
            State::Committed { known } => (1, *known, Part::default()),
            State::Refused { .. } => (2, SiteSet::default(), Part::default()),
        };

        let (deadline, participants) = (self.deadline, self.participants.clone());
        ParticipantRow { stage, deadline, participants, known, part }.encode()
    }

    /// See [`super::Txns::fingerprint`].
    pub(super) fn fingerprint(&self, state: &mut impl Hasher) {
        (self.deadline, &self.participants, self.stage(), self.look_at > 0).hash(state);

        // The content of a part is given by its transaction, so its sizes are enough.
        self.part().map(|part| (part.writes.len(), part.reads.len())).hash(state);
        match &self.state {
            State::Defending(defence) => (defence.prepared, defence.is_blocked).hash(state),
            State::Prepared(InDoubt { known, confirmed, lost, know_of_loss, .. }) => {
                (known, confirmed, lost, know_of_loss).hash(state);
            }
            State::Committed { known } => known.hash(state),
            State::Refused { abort } => abort.as_ref().map(|abort| abort.cause).hash(state),
        }
    }
}
