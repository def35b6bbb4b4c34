//! Crash points: places at which a test ends this process in the middle of a two-phase commit, as `kill -9` would.
//!
//! Only with the feature `crash-points`, which is never on by default. Then the environment names a point when a site starts:
//! `SLACKLINE_CRASH_AT=POINT`, or `POINT:N` for the N-th time that it is reached. A transaction reaches a point once for all
//! messages of a kind that leave together. The points are a table in `point`.
//!
//! The machine does not know of this. The message that arrives or is about to leave names the step and the transaction; the place
//! at which the driver meets the message shows the step's progress:
//!
//! ```text
//!             arrived          gathered            durable              left
//!   message ────┼───▶ handle ─────┼──▶ batch, gate ───┼───▶ outbox ───────┼──▶
//!               │                 │    synced         │    to the wire    │
//! ```
//!
//! | moment | what is durable | what has left |
//! | --- | --- | --- |
//! | arrived | nothing of this step | nothing |
//! | gathered | nothing of this step; its batch is made | nothing |
//! | durable | the step | nothing |
//! | left | the step | the first effect of that kind, and none that was to leave with it or later |

#[cfg(not(feature = "crash-points"))]
mod absent;
#[cfg(feature = "crash-points")]
mod armed;
#[cfg(feature = "crash-points")]
mod point;

#[cfg(not(feature = "crash-points"))]
pub(crate) use absent::CrashPoints;
#[cfg(feature = "crash-points")]
pub(crate) use armed::CrashPoints;
