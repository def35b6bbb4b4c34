//! Quotas: tokens of a shared resource, spread over sites.
//!
//! Each site holds a share. An acquire that fits the free part of the share is granted at once, durably, at local
//! latency; a release puts tokens back where it is made. Three things move tokens between sites:
//!
//! - **gifts** (`share.rs`): a site whose free tokens exceed its part of all free tokens, by demand, gives some away, one
//!   way. Most shortages are prevented, or ended, so.
//! - **reactive rounds** (`rounds.rs`): requests wait, and what peers said they have does not suffice or did not come.
//! - **proactive rounds**: the forecast exceeds what is here while others have enough, and no gift comes.
//!
//! A quota may be part of a tree (`tree.rs`): what is granted of it counts in all that are above it.
//!
//! A site forecasts by the mean of what was asked for lately. Its driver may tell it what a model expects (`expected.rs`).
//!
//! The books: over all sites, Σ tokens + Σ (given − received) + in use = limit, at every moment. `tokens` includes what is
//! set aside for a round. Tokens of a lost incarnation count as in use,
//! until an operator reclaims them (`reclaim.rs`).

mod announce;
mod any;
mod book;
mod bucket;
mod chapter;
mod counting;
mod dead;
mod expected;
mod forget;
mod line;
mod lookup;
mod names;
mod one;
mod reclaim;
mod refill;
mod rounds;
mod row;
mod seats;
mod serve;
mod share;
mod show;
mod tally;
mod timers;
mod tree;
mod unknown;
mod walk;

pub use book::{QUOTAS, Quotas, RELAXED_TICK, TICK, WAKES};
pub use names::{Forgetting, Freeze};
pub use one::Quota;
pub use row::{grant_key, quota_number, read_due_key, read_grant_key};
pub use seats::MEMBERS;
pub use tally::count;
pub use walk::KEPT;

pub use crate::turn::WAITING;
