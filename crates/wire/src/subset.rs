//! Rounds among subsets of the sites, as they travel.

use slackline_core::avantan::Row;
use slackline_core::avantan::subset::{Key, Message};
use slackline_core::id::{Incarnation, SiteId};

use crate::check::{Invalid, convert, convert_all, inner, required};
use crate::proto::internal;

/// The most members of a lane.
const MEMBERS: usize = 64;

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
            dead: dead_to_wire(dead),
        }),
        Message::Accepted { dead, .. } => Kind::Accepted(internal::SubsetVote { dead: dead_to_wire(dead) }),
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
                Message::Accept { key, rows, dead: dead(accept.dead)? }
            }
            Kind::Accepted(vote) => Message::Accepted { key, dead: dead(vote.dead)? },
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

fn dead_to_wire(dead: Vec<(SiteId, Incarnation)>) -> Vec<internal::KnownIncarnation> {
    let known = dead.into_iter();
    known.map(|(site, at)| internal::KnownIncarnation { site: Some(site.into()), incarnation: at.0 }).collect()
}

fn dead(dead: Vec<internal::KnownIncarnation>) -> Result<Vec<(SiteId, Incarnation)>, Invalid> {
    if dead.len() > MEMBERS {
        return Err(Invalid::new("dead", "has too many entries"));
    }
    let known = dead.into_iter();
    known.map(|known| Ok((convert(known.site, "dead.site")?, Incarnation(known.incarnation)))).collect()
}
