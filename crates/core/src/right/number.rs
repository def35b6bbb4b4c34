//! The names of rights over objects.

use crate::id::{Incarnation, Life};

/// One start of one site: rights that live in memory are issued to a start, and end with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Start {
    /// The site's incarnation.
    pub incarnation: Incarnation,
    /// Its life.
    pub life: Life,
}

/// The number of a right that a home issues over one of its objects: it rises with every right, over the home's lives
/// too. Grants, extensions, revocations and acknowledgements name it, so that a late one is told apart from one about a
/// later right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WarrantyNumber {
    /// The home's start.
    pub start: Start,
    /// The count within that start.
    pub count: u64,
}
