//! Rounds among a subset of the sites: the paper's Avantan\[\*\]. They move shares without a majority.
//!
//! A site that runs short asks all others. Those that answer first are the **members** of the round's value; the rest go on. The
//! value is an atomic commitment among its members: it is decided if and only if all have accepted it, and a member that has not
//! accepted may leave permanently. So rounds of disjoint subsets run at once, and a part of the sites that is cut off from the majority
//! still moves what it has. An entity has such rounds beside those of the majority, which create, delete and resize it, and record new
//! incarnations.
//!
//! ```text
//!   leader        site B        site C                 durable before it is sent
//!     │─Election(K)──▶────────────▶│                     own join: set tokens aside
//!     │◀──Report──────│            │                     seen = K, set aside what the line offers
//!     │  value = reallocate(lines of the leader and B)
//!     │─Accept(K,V)──▶│            │                     own vote
//!     │◀──Accepted────│            │                     vote; what the row does not take is free again
//!     │  all have voted: decided
//!     │─Decided(K)───▶────────────▶│                     tokens moved, round over: one write. C leaves
//! ```
//!
//! A **key** names a round. A site enters a round once: `seen` has the newest of each leader. What a member has reported is set aside
//! until it votes, and from then on what its row gives, until the **outcome**: commit (it applies its row) or abort (it leaves without
//! effect). A member that voted and hears nothing **recovers** the round: it brings the value to the other members, each of which votes,
//! refuses because it has left, or tells the outcome.
//!
//! # A lost disk
//!
//! An incarnation is **dead** once a later one of its site was heard of. Six rules keep a round safe with dead members. None of them
//! needs a majority, nor that a new incarnation waits until it is recorded; quotas let it take part only then, for another reason
//! ([`super::Table::is_new`]).
//!
//! 1. Every message carries its sender's incarnation. A site durably remembers the newest of every other site ([`Known`]), drops what an
//!    older one sent, and no longer counts the votes of it that it has. Else a vote could count at one site that another took for unknown.
//! 2. A value names incarnations. A site votes only for a value that names its present one; of one that names an older one it says
//!    `Lost`, not `Refuse`: its predecessor may have voted.
//! 3. It votes for no value that names a dead incarnation, and leaves that round. Else the outcome of this round would overwrite that of an
//!    earlier one that the new incarnation may still ask for.
//! 4. A dead **leader** does no harm: it accepted the value before it sent it to anybody, so its vote is known.
//! 5. The vote of another dead member is unknown. The round ends without it only when *all* other members, the leader too, have said,
//!    knowing it to be dead, that they have accepted and have no outcome.
//! 6. The outcome is then read off the value: **commit if the dead member gains by it or keeps, abort if it gives**. It may have applied a
//!    gain and spent it; it may have left and spent what it was to give. Either way the outcome errs at the cost of the dead
//!    incarnation alone. If one dead member gives and another gains, both are taken for the worse: each member loses what its row
//!    takes, and none gains.
//!
//! # Beside rounds of the majority
//!
//! A share is in one round of either kind at a time ([`Subset::is_free`]). A site in a round among a subset still promises and votes in
//! instances of the majority, but offers nothing to them and does not close: so no generation ends while a round of it is open, and
//! what is reclaimed is reckoned from books in which nothing is half moved.
//!
//! # Why it is safe
//!
//! - *Agreement, all alive*: take the first member that leaves without applying. It had not voted, or somebody refused: one that left
//!   unvoted before it, or one whose memory of the outcome a later round with the asker overwrote. That round named the asker's present
//!   incarnation, which accepts nothing else while it is in this round; or an older one, which rule 3 forbids.
//! - *Agreement, with dead members*: once all survivors have said what rule 5 asks, nothing of the dead reaches any of them, and none has
//!   an outcome or refuses. So each ends by rule 6, which reads the same value.
//! - *Exactly once*: applying ends the round in the same write, and a site enters a round once.
//! - *Conservation*: every member checks that the rows add up, and that its own is what it reported. What it would give is set aside
//!   until the outcome.
//!
//! # What remains open
//!
//! Where a member is dead and another one is cut off, the rest wait with what they would give: that one may know the outcome. A
//! storage that was put back after its successor acted is outside the model; joining refuses it.
//!
//! # Where we depart from the paper (ICDE 2021, section 4.3.2)
//!
//! As printed, the same round is decided and aborted, and tokens are minted, by a time-out and a delayed message. There a member asks the
//! others *what they have*, and acts on "nothing"; here it brings them the value, and they vote or leave for good. There a leader's value
//! needs the sum that it wants; here it moves what it gets.

pub(super) mod known;
pub(super) mod message;
pub(super) mod pace;
pub(super) mod record;
pub(super) mod role;
pub(super) mod rounds;

#[cfg(test)]
mod tests;

pub use known::Known;
pub use message::{Key, Message};
pub use pace::Pace;
pub use record::{Outcome, Part, Record};
pub use role::{Role, Vote};
pub use rounds::{Step, Subset};
