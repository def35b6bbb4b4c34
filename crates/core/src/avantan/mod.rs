//! Avantan: the agreement by which sites move tokens, or another [`Amount`] that they share, in its majority version.
//!
//! Sites hold shares of one entity. When a site runs short it leads a **round**: it learns what each site
//! offers and wants, computes what each shall hold afterwards, and has a majority accept that as the one value of the
//! round's Paxos instance. Instances of an entity are numbered 1, 2, 3… without a gap; instance 1 creates the entity.
//!
//! ```text
//!   leader        site B        site C          durable before it is sent
//!     │─Election(t,b)─▶──────────▶│             own join: promise b, set tokens aside
//!     │◀──Report──────│           │             promise b, set aside what the line offers
//!     │◀──────────────────Report──│
//!     │  value = reallocate(lines)
//!     │─Accept(t,b,V)─▶──────────▶│             accepted = (b, V)
//!     │◀──Accepted────│           │             accepted = (b, V)
//!     │  majority: decided
//!     │─Decided(t)────▶──────────▶│             applied = t, tokens moved, round over: one write
//! ```
//!
//! What a round is led for, and what its outcome means, is the owner's of the entity: [`crate::quota`]. How long its leader waits
//! in each phase is [`Leader`]'s. Neither is needed for safety.
//!
//! # What is agreed on
//!
//! An **entity**, such as a quota, is what is shared out; its name and its generation tell it from others. An [`Amount`] is what its
//! shares are counted in. A site reports a line: how much it sets aside for the round, how much it keeps, what it wants. A value has a
//! row for each site whose share changes: (site, incarnation, share number, before, after). So sites agree on *results*, and may
//! differ in version, policy or forecast. A row is applied exactly when its number is the share's, and applying counts that up: that
//! is "exactly once". The table, the last decided row of each site, travels with elections and decisions, so a site that missed
//! instances catches up from the newest table alone. The other words are in the book's glossary, `docs/src/glossary.md`.
//!
//! # Why it is safe
//!
//! - *Agreement*: within an instance it is single-decree Paxos; `promised` and `accepted` are durable per instance, and a
//!   site takes part in instance t only after applying t-1.
//! - *Set aside is set aside*: what a line offered is not spent until the instance is decided, or until its leader has
//!   durably withdrawn the only ballot that the line was reported to. No time-out frees it.
//! - *Exactly once*: at most one decided instance names a site and is not applied there, and the newest table has it.
//! - *Conservation*: every acceptor checks that a value's rows add up to what they take, and that its own row is what it
//!   offered.
//! - *A lost disk*: a new incarnation neither votes nor offers until a decided instance has recorded it. That instance
//!   was carried by a majority counted without the site, so every instance in which its forgotten votes could matter is
//!   decided by then. An entity that does not exist (yet, or any more) has no such instance, nor has one of which most sites
//!   are new: there a new incarnation votes once every other site has said that no vote of its predecessors counts
//!   ([`Clearance`]), and offers nothing until it is recorded.
//!
//! # Where we depart from the paper (ICDE 2021, section 4.3)
//!
//! As printed the protocol breaks agreement and mints tokens: the reset after a decision erases what the recovery
//! rules ask for. Ballots here live within a numbered instance; a decision carries the table; a new leader's offer is
//! not given back by a time-out; Algorithm 2 is replaced (see [`reallocate()`]). Creation and deletion are values of the
//! same sequence, so that two creators cannot both succeed.

mod agreement;
mod amount;
mod bytes;
mod clearance;
mod leader;
mod member;
mod message;
mod reallocate;
mod state;
pub mod subset;
mod tokens;
mod value;

pub use crate::api::{Agreement, Charter};
pub use agreement::{Avantan, Intent, Offer, Role, Step};
pub use amount::{Accounts, Amount};
pub(crate) use bytes::{put_gone, read_gone};
pub use clearance::{Clearance, Heard, NoVote};
pub use leader::{Due, Leader, Moment, Phase, Progress};
pub use member::{Membership, Roster, SEATS, Seat, Sight, counts_alike};
pub use message::{Message, Report, Scope};
pub use reallocate::reallocate;
pub use state::{Reclaimed, Round, Settled, Share, Table, Unfit};
pub use value::{Ballot, Lifecycle, Line, Row, Value};
