//! Rights: something that a site, or a client, may rely on until a time.
//!
//! # One vocabulary
//!
//! - The **subject** of a right is what may be relied upon: the value of an object in a version, or tokens that are held.
//! - The **issuer** keeps the promise; the **holder** relies on it.
//! - The **number** names a right in grants, extensions, revocations and acknowledgements, so that a late one is told apart from
//!   one about a later right. It is never used twice.
//! - Each right has **two ends**, each by two clocks. The holder stops when *either* of its clocks says so; the issuer is bound
//!   until *both* of its clocks say that it is over. So the holder stops first, even if one clock of each is wrong.
//! - An **extension** is a right with a later end in place of the one before. It is never acknowledged, and may be lost.
//! - The **mark** is a durable time above every end that an issuer has told anybody. A life that has forgotten what it issued
//!   waits for that.
//! - A holder **gives up** a right before its end, and says so. It never does for an earlier life of itself, which may have
//!   let something rest on the right.
//!
//! | | holds, over tokens | warranties, over objects |
//! | --- | --- | --- |
//! | number | [`GrantId`](crate::id::GrantId) | [`WarrantyNumber`] |
//! | the issuer's end | [`Term`], in a row | [`End`], in memory |
//! | the holder's end | [`held_until`], from before the client asked | [`HeldRight`], from before its site asked |
//! | after a restart of the issuer | goes on, by its uptime | all that were issued may bind until the [`Mark`] |
//! | given up by | a release | an acknowledgement that names the number |
//!
//! How long a right should last, and whether one is worth issuing, is in [`crate::warranty`].

mod end;
mod mark;
mod number;
mod term;

pub use end::{End, HeldRight, Offer};
pub use mark::Mark;
pub use number::{Start, WarrantyNumber};
pub use term::{POSTPONED, Term, held_until};
