//! The generated code.

/// The public interface, as generated from `slackline.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("slackline.v1");

    /// The descriptors of the public interface, for gRPC reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/slackline_v1.bin"));
}

/// The messages between sites, as generated from `peer.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod internal {
    // The generated code looks for the public package at the same path as in the proto files.
    pub(crate) mod slackline {
        pub(crate) mod v1 {
            pub(crate) use crate::proto::v1::*;
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
