//! What a client sees to for callers that do not wait for it.

use std::fmt;

use slackline_core::api;
use slackline_core::id::{GrantId, SiteId};

use crate::book::{Act, Unsettled};
use crate::outcome::{NotDone, Reason, Refused, WhyUnknown};
use crate::topology::Topology;

/// Something that a client is to see to for a caller who did not wait for it, and that is not settled:
/// [now](crate::Client::left), or when the client is [closed](crate::Client::close).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}: {why}")]
#[non_exhaustive]
pub struct Left {
    /// What was to be done.
    pub what: LeftWhat,
    /// How it stands: unknown, with an id that can be asked about, once the client is closed, as long as its site remembers it (ten
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
        /// How many tokens it may be granted.
        amount: i64,
    },
    /// To give tokens back by amount.
    Release {
        /// The quota.
        quota: String,
        /// How many.
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
    pub(crate) fn new(left: Unsettled, open: WhyUnknown, site: SiteId, topology: &Topology) -> Self {
        let what = match left.act {
            Act::Acquire { quota, amount, .. } => LeftWhat::Acquire { quota: quota.to_string(), amount },
            Act::Release { quota, amount } => LeftWhat::Release { quota: quota.to_string(), amount },
            Act::ReleaseGrant { grant } => LeftWhat::ReleaseGrant { grant, name: topology.grant_text(grant) },
            Act::Create { .. } | Act::Delete { .. } | Act::Commit { .. } | Act::AcceptLoss => {
                LeftWhat::Other("an operation".to_owned())
            }
        };
        let why = match (left.id, left.outcome) {
            (operation, Some(api::Outcome::Refused(refusal))) => {
                Refused { reason: Reason::of(refusal, site.lane, topology), operation }.into()
            }
            (Some(id), Some(api::Outcome::Unknown(doubt))) => topology.unknown(id, doubt.into()).into(),
            (Some(id), _) => topology.unknown(id, open).into(),
            (None, _) => {
                Refused { reason: Reason::NotSent { sites: vec![topology.name(site)] }, operation: None }.into()
            }
        };
        Self { what, why }
    }
}
