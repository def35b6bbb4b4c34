//! Slackline's wire format: the only crate that knows it.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`v1`] | generated: the public interface, `proto/slackline/v1/slackline.proto` |
//! | [`internal`] | generated: what sites say to each other, `proto/slackline/internal/v1/peer.proto` |
//! | [`rtt`] | round-trip times between regions, for whoever puts delays in |
//! | `public`, `object`, `trace`, `peer` | conversions between those and the vocabulary of `slackline_core` |
//! | `fields` | what such conversions have in common |
//!
//! Conversions from core to the wire are total (`From`); those back are checked (`TryFrom`) and name the field that is
//! [`Invalid`]. Whatever bytes arrive, nothing here panics.

mod fields;
mod object;
mod peer;
mod public;
pub mod rtt;
mod trace;

pub use object::{READING_BYTES, limit_message, limit_reading, message_bytes, operation_bytes, request_bytes};
pub use public::{lane_of, operation_id, single};

/// The public interface, as generated from `slackline.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("slackline.v1");

    /// The descriptors of the public interface, for gRPC reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/slackline_v1.bin"));
}

/// What sites say to each other, as generated from `peer.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod internal {
    // The generated code looks for the public package at the same path as in the proto files.
    pub(crate) mod slackline {
        pub(crate) mod v1 {
            pub(crate) use crate::v1::*;
        }
        pub(crate) mod internal {
            #[allow(missing_docs, unreachable_pub)]
            pub(crate) mod v1 {
                tonic::include_proto!("slackline.internal.v1");
            }
        }
    }
    pub use slackline::internal::v1::*;
}

/// The versions of the link between sites that this build speaks: its own and the one before (there is none yet).
pub const LINK_VERSIONS: std::ops::RangeInclusive<u32> = 1..=1;

/// The largest message that a site or a client takes, in bytes. A batch of 1,024 operations with the longest names fits, and
/// so does the largest transaction, and the largest answer to reads.
pub const MESSAGE_BYTES: usize = 8 << 20;

/// The most messages between sites in one frame.
pub const FRAME_MESSAGES: usize = 1024;

/// A message's field is missing or makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field} {problem}")]
pub struct Invalid {
    /// The path to the field, as in the proto file.
    pub field: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl Invalid {
    fn new(field: &str, problem: &'static str) -> Self {
        Self { field: field.to_owned(), problem }
    }

    /// The same, seen from the message around it.
    fn within(mut self, outer: &str) -> Self {
        self.field.insert(0, '.');
        self.field.insert_str(0, outer);
        self
    }
}

/// The content of a field that must be there.
fn required<T>(value: Option<T>, field: &str) -> Result<T, Invalid> {
    value.ok_or_else(|| Invalid::new(field, "is missing"))
}

/// The converted content of a field.
fn inner<T, U: TryFrom<T, Error = Invalid>>(value: T, field: &str) -> Result<U, Invalid> {
    value.try_into().map_err(|invalid: Invalid| invalid.within(field))
}

/// The converted content of a field that must be there.
fn convert<T, U: TryFrom<T, Error = Invalid>>(value: Option<T>, field: &str) -> Result<U, Invalid> {
    inner(required(value, field)?, field)
}

/// The converted content of a field that may be there.
fn optional<T, U: TryFrom<T, Error = Invalid>>(value: Option<T>, field: &str) -> Result<Option<U>, Invalid> {
    value.map(|value| inner(value, field)).transpose()
}

/// The converted content of a repeated field.
fn convert_all<T, U: TryFrom<T, Error = Invalid>>(
    values: Vec<T>,
    at_most: usize,
    field: &str,
) -> Result<Vec<U>, Invalid> {
    if values.len() > at_most {
        return Err(Invalid::new(field, "has too many entries"));
    }
    let mut converted = Vec::with_capacity(values.len());
    for (position, value) in values.into_iter().enumerate() {
        converted.push(value.try_into().map_err(|invalid: Invalid| invalid.within(&format!("{field}[{position}]")))?);
    }
    Ok(converted)
}
