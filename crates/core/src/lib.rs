//! The protocols of Slackline, *sans-IO*: state machines that have no clock, socket, disk, thread or random source of
//! their own. The same machine runs in the simulator (`slackline-sim`) and in the server (`slackline-server`).
//!
//! Read in this order; a module uses only the modules above it:
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`id`] | names of sites, lives, sessions, operations and grants |
//! | [`codec`] | how rows are laid out in bytes |
//! | [`clock`] | what a site knows of the time, of its clock's error, and of its peers' clocks |
//! | [`machine`] | the contract between a machine and its driver; batches, views, the release rule |
//! | [`right`] | names of rights; holds, the rights over tokens that end by themselves |
//! | [`rows`] | the rows of a site's storage: every tag, and who writes it |
//! | [`object`] | objects and transactions: what they are made of, and what sites say about them |
//! | [`draft`] | a transaction while its program runs, in a client: what it has read, what it writes, calls of memoized functions |
//! | [`api`] | what clients ask and are told |
//! | [`stats`] | estimators of demand |
//! | [`warranty`] | rights over the values of objects |
//! | [`avantan`] | the agreement by which sites move tokens |
//! | [`peer`] | what sites say to each other |
//! | [`session`] | operation ids: nothing takes effect twice, and outcomes can be asked for |
//! | [`config`], [`metrics`] | what a node is told when it is opened, and what it counts |
//! | [`turn`] | what one call of `handle` works with |
//! | [`txn`] | strictly serializable transactions over objects |
//! | [`quota`] | one quota at one site: acquire, release, offers, gifts, forecasts |
//! | [`node`] | all of it as one machine: routing, recovery, what is persisted where |
//!
//! # Glossary
//!
//! - **site**: one region's process for one lane; it runs one machine on one log.
//! - **token**: a unit of a quota. Tokens are moved between sites, never made.
//! - **free**: tokens that a site may spend at once. **Set aside** (held): tokens offered to a round, not to be spent
//!   until the round's outcome is known.
//! - **round**: one run of the Avantan agreement, which moves shares. **Gift**: a one-way move that needs no round.
//! - **incarnation**: changes when a site's storage is new, lost or restored. **Life**: changes at every start.
//! - **outcome**: how an operation ended: done, refused (why) or unknown.

pub mod api;
pub mod avantan;
pub mod bounds;
pub mod chapter;
pub mod clock;
pub mod codec;
pub mod config;
pub mod draft;
pub mod gift;
pub mod id;
pub mod machine;
pub mod metrics;
pub mod node;
pub mod object;
pub mod peer;
pub mod quota;
pub mod right;
pub mod rows;
pub mod session;
pub mod stats;
pub mod turn;
pub mod txn;
pub mod warranty;
mod words;
