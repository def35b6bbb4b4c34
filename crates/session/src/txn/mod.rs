//! Transactions over objects, strictly serializable: they take effect one after the other, in an order that agrees with the
//! order in which callers see them end.
//!
//! A program runs here, in the client, against one site: it reads through [`Txn`], and what it writes stays in a buffer. At
//! its end the site is told which versions it read and what it wants to write, and finds out whether all of that is still
//! so. If it is, everything is written; if not, nothing is, and the program is run again.
//!
//! | module | what it is about |
//! | --- | --- |
//! | `failure` | why a run comes to nothing, and whether another may do better |
//! | `again` | what a run that is not the first reads ahead, and since when its program waits for its turn |
//! | `handle` | reading and writing: what a program sees of its transaction |
//! | `registry`, `memo`, `fingerprint` | memoized functions: which are known, what they are, what names their code |
//! | `calls` | calls of memoized functions in a transaction |
//! | `treaty`, [`treaties`] | a treaty as a program names it; relying on treaties, making them, postconditions |
//! | `runner` | running a program, committing, and running it again |

mod again;
mod calls;
mod failure;
mod fingerprint;
mod handle;
mod memo;
mod registry;
mod runner;
pub mod treaties;
mod treaty;

pub use failure::TxnError;
pub use fingerprint::fingerprint;
pub use handle::{Memos, Page, Txn};
pub use memo::Memo;
pub use runner::{Committed, Transaction};
