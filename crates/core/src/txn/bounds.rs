//! Bounds that several rooms keep.

/// The most gets and scans in one batch of reads, and the most names in one message about calls.
pub const READ_ITEMS: usize = 4096;
/// The most things that are due that one room does in a call; the next call comes at once.
pub(super) const AT_ONCE: usize = 16;
