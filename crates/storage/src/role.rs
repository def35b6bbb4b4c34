//! The purposes of a store's files; tests choose by them which disk fails.

/// The purpose of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// A segment of the log.
    Log,
    /// The table.
    Table,
}
