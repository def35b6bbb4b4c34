//! Rounds among subsets of the sites, as they travel.

use slackline_core::avantan::Row;
use slackline_core::avantan::subset::{Key, Message};
use slackline_core::id::Incarnation;

use crate::check::{Invalid, MEMBERS, convert, convert_all, inner, required};
use crate::fields::Field;
use crate::proto::internal;

/// A message of a quota's rounds among subsets, as it travels: the key, which each kind has, stands outside.
pub(crate) fn subset(quota: String, message: Message) -> internal::Subset {
    use internal::subset::Message as Kind;
    let key = message.key();
    let message = match message {
        Message::Election { gathers, .. } => Kind::Election(gathers),
        Message::Report { line, .. } => Kind::Report(line.into()),
        Message::Busy { .. } => Kind::Busy(internal::Nothing {}),
        Message::Accept { rows, dead, .. } => Kind::Accept(internal::SubsetAccept {
            rows: rows.into_iter().map(Into::into).collect(),
            dead: dead.to_wire(),
        }),
        Message::Accepted { dead, .. } => Kind::Accepted(internal::SubsetVote { dead: dead.to_wire() }),
        Message::Refuse { .. } => Kind::Refuse(internal::Nothing {}),
        Message::Lost { .. } => Kind::Lost(internal::Nothing {}),
        Message::Decided { worse, .. } => Kind::Decided(worse),
        Message::Withdraw { .. } => Kind::Withdraw(internal::Nothing {}),
    };
    internal::Subset { quota, key: Some(key.into()), message: Some(message) }
}

impl TryFrom<internal::Subset> for Message {
    type Error = Invalid;

    fn try_from(subset: internal::Subset) -> Result<Self, Invalid> {
        use internal::subset::Message as Kind;
        let key: Key = convert(subset.key, "key")?;
        Ok(match required(subset.message, "message")? {
            Kind::Election(gathers) => Message::Election { key, gathers },
            Kind::Report(line) => Message::Report { key, line: inner(line, "report")? },
            Kind::Busy(_) => Message::Busy { key },
            Kind::Accept(accept) => {
                let rows: Vec<Row> = convert_all(accept.rows, MEMBERS, "accept.rows")?;
                Message::Accept { key, rows, dead: Field::from_wire(accept.dead, "accept.dead")? }
            }
            Kind::Accepted(vote) => Message::Accepted { key, dead: Field::from_wire(vote.dead, "accepted.dead")? },
            Kind::Refuse(_) => Message::Refuse { key },
            Kind::Lost(_) => Message::Lost { key },
            Kind::Decided(worse) => Message::Decided { key, worse },
            Kind::Withdraw(_) => Message::Withdraw { key },
        })
    }
}

impl From<Key> for internal::Key {
    fn from(key: Key) -> Self {
        let Key { generation, leader, incarnation, sequence } = key;
        Self { generation, leader: Some(leader.into()), incarnation: incarnation.0, sequence }
    }
}

impl TryFrom<internal::Key> for Key {
    type Error = Invalid;

    fn try_from(key: internal::Key) -> Result<Self, Invalid> {
        let internal::Key { generation, leader, incarnation, sequence } = key;
        Ok(Self { generation, leader: convert(leader, "key.leader")?, incarnation: Incarnation(incarnation), sequence })
    }
}
