//! One test binary for the crate: every value survives the wire, and no bytes make a decoder panic.

mod generate;
mod round_trip;
mod rtt;
