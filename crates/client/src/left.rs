//! What a client sees to for callers that do not wait for it.

use std::fmt;

use slackline_core::api;
use slackline_core::id::{GrantId, SiteId};

use slackline_session::command::{Command, Unsettled};
use slackline_session::outcome::{NotDone, Reason, Refused, Unknown, UnknownReason};
use slackline_session::topology::Topology;

use crate::client::Client;

/// Something that a client is to see to for a caller who did not wait for it, and that is not settled:
/// [now](crate::Client::left), or when the client is [closed](crate::Client::close).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}: {why}")]
#[non_exhaustive]
pub struct Left {
    /// What was to be done.
    pub what: LeftWhat,
    /// Its state: unknown, with an id that can be asked about, once the client is closed, as long as its site remembers it (ten
    /// minutes from when the site is back); or refused, which for a release means that the tokens are still out.
    pub why: NotDone,
}

/// What a client was to see to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LeftWhat {
    /// To give back what an acquire is granted, whose caller has gone elsewhere or away.
    Acquire {
        /// The quota.
        quota: String,
        /// The most tokens that it may be granted.
        amount: i64,
    },
    /// To give tokens back by amount.
    Release {
        /// The quota.
        quota: String,
        /// The number of tokens.
        amount: i64,
    },
    /// To give a grant back.
    ReleaseGrant {
        /// The grant.
        grant: GrantId,
        /// Its id as it is written for people, such as `eu-1-17`.
        name: String,
    },
    /// Something else, in words.
    Other(String),
}

impl fmt::Display for LeftWhat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeftWhat::Acquire { quota, amount } => write!(f, "acquire of {amount} of {quota}"),
            LeftWhat::Release { quota, amount } => write!(f, "release of {amount} of {quota}"),
            LeftWhat::ReleaseGrant { name, .. } => write!(f, "release of {name}"),
            LeftWhat::Other(words) => f.write_str(words),
        }
    }
}

impl Left {
    /// `open` is why it is unknown if it is not settled.
    pub(crate) fn new(left: Unsettled, open: UnknownReason, site: SiteId, topology: &Topology) -> Self {
        let what = match left.command {
            Command::Acquire { quota, amount, .. } => LeftWhat::Acquire { quota: quota.to_string(), amount },
            Command::Release { quota, amount } => LeftWhat::Release { quota: quota.to_string(), amount },
            Command::ReleaseGrant { grant, used: 1.. } => {
                LeftWhat::Other(format!("settling of {}", topology.grant_text(grant)))
            }
            Command::ReleaseGrant { grant, .. } => LeftWhat::ReleaseGrant { grant, name: topology.grant_text(grant) },
            Command::ExtendGrant { .. }
            | Command::Create { .. }
            | Command::SetLimit { .. }
            | Command::Reclaim { .. }
            | Command::Delete { .. }
            | Command::Commit { .. }
            | Command::Seat { .. }
            | Command::AcceptLoss => LeftWhat::Other("an operation".to_owned()),
        };

        // What has an id can be asked about; what has none never left.
        let why = match (left.id, left.outcome) {
            (operation, Some(api::Outcome::Refused(refusal))) => {
                Refused { reason: Reason::of(refusal, site.lane, topology), operation }.into()
            }
            (Some(id), Some(api::Outcome::Unknown(doubt))) => Unknown::new(topology, id, doubt.into()).into(),
            (Some(id), _) => Unknown::new(topology, id, open).into(),
            (None, _) => {
                Refused { reason: Reason::NotSent { sites: vec![topology.name(site)] }, operation: None }.into()
            }
        };
        Self { what, why }
    }
}

impl Client {
    /// Ends the client and all its clones: what is under way is given half a second, then sessions are closed. Calls
    /// that are still waiting end as refused or unknown. Dropping the last clone does the same in the background.
    ///
    /// Returns what is [left](Client::left). Nobody sees to that any more.
    pub async fn close(self) -> Vec<Left> {
        // All at once, so that the farewells of many sites take no longer than one.
        let connections = || self.shared.connections.iter().flatten();
        connections().for_each(|to| to.shut());
        for to in connections() {
            to.ended().await;
        }
        self.left_as(UnknownReason::Closed)
    }

    /// What the client sees to for callers that do not wait for it: acquires that were left behind or dropped, releases that
    /// were handed over (see [`Patience`](crate::Patience)). With what it could not settle, because nobody knows any more what
    /// became of it, or because the site refused a release; of that the last 1,024 for each site. Empty if nothing is left.
    pub fn left(&self) -> Vec<Left> {
        self.left_as(UnknownReason::HandedOver)
    }

    /// The same; what is still open is unknown for this reason.
    fn left_as(&self, why: UnknownReason) -> Vec<Left> {
        let links = self.shared.connections.iter().flatten().map(|to| &to.link);
        let left = links.flat_map(|link| {
            let left = link.left().into_iter();
            left.map(move |left| Left::new(left, why, link.site, &self.shared.topology))
        });
        left.collect()
    }

    /// Ends the client as [`Client::close`] does, but leaves its sessions: their sites end them when they have been silent for ten
    /// minutes, and until then tell what became of the operations. A site keeps 100,000 sessions at most; so this closes them all
    /// the same if some site had over 10,000 when the client connected.
    pub async fn leave(self) -> Vec<Left> {
        if !self.shared.is_crowded {
            self.shared.connections.iter().flatten().for_each(|to| to.leave());
        }
        self.close().await
    }
}
