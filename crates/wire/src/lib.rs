//! Slackline's wire format: the only crate that knows it.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`v1`] | generated: the public interface, `proto/slackline/v1/slackline.proto` |
//! | [`internal`] | generated: the messages between sites, `proto/slackline/internal/v1/peer.proto` |
//! | [`rtt`] | round-trip times between regions, for the delays of clusters on one machine |
//! | `public`, `object`, `trace`, `peer`, `subset` | conversions between those and the vocabulary of `slackline_core` |
//! | `check`, `fields` | the common parts of these conversions |
//! | `codec` | what is large is looked at before it is decoded |
//!
//! Conversions from core to the wire are total (`From`); those back are checked (`TryFrom`) and name the field that is
//! [`Invalid`]. No bytes that arrive make anything here panic.

mod check;
mod codec;
mod fields;
mod object;
mod peer;
mod proto;
mod public;
pub mod rtt;
mod subset;
mod trace;

pub use check::Invalid;
pub use object::{limit_message, limit_reading, message_bytes, operation_bytes, request_bytes};
pub use proto::{internal, v1};
pub use public::{lane_of, operation_id, single};
pub use slackline_core::bounds::{MESSAGE_BYTES, READING_BYTES};

/// The versions of the link between sites that this build speaks: its own and the one before (there is none yet).
pub const LINK_VERSIONS: std::ops::RangeInclusive<u32> = 1..=1;

/// The most messages between sites in one frame.
pub const FRAME_MESSAGES: usize = 1024;

/// A site tells what it knows of a treaty that is watched again after this time, though it has not changed. A client that hears nothing for
/// more than twice as long knows that the site does not answer.
pub const WATCH_ALIVE: std::time::Duration = std::time::Duration::from_secs(2);
