//! What computing and syncing cost, so that virtual time passes at a site as it would at a real one.

/// Times that work takes at a site. A site does one thing at a time; its disk syncs beside it, one sync at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// Handling one input, in nanoseconds.
    pub input_ns: u64,
    /// Handling one operation of a batch, in nanoseconds, besides its input.
    pub operation_ns: u64,
    /// Sending one message or response, in nanoseconds.
    pub send_ns: u64,
    /// Handing out one byte of a batch, in nanoseconds.
    pub byte_ns: u64,
    /// One sync, in microseconds.
    pub sync_us: u64,
    /// Syncing one byte, in nanoseconds, besides.
    pub sync_byte_ns: u64,
}

impl Costs {
    /// Nothing costs time.
    pub const NONE: Self = Self { input_ns: 0, operation_ns: 0, send_ns: 0, byte_ns: 0, sync_us: 0, sync_byte_ns: 0 };
}

impl Default for Costs {
    /// A small server with a fast disk.
    fn default() -> Self {
        Self { input_ns: 2_000, operation_ns: 500, send_ns: 1_000, byte_ns: 1, sync_us: 120, sync_byte_ns: 1 }
    }
}
