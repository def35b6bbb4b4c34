//! The protocols of Slackline, *sans-IO*: state machines that have no clock, socket, disk, thread or random source of
//! their own. The same machine runs in the simulator (`slackline-sim`) and in the server (`slackline-server`).
//!
//! Read in this order; a module uses only the modules above it:
//!
//! | module | what it is about |
//! | --- | --- |
//! | [`bounds`] | how long names, values, transactions and messages may be |
//! | [`id`] | names of sites, boots, sessions, operations and grants |
//! | [`codec`] | how rows are laid out in bytes |
//! | [`clock`] | what a site knows of the time, of its clock's error, and of its peers' clocks |
//! | [`machine`] | the contract between a machine and its driver; batches, views, the release rule |
//! | [`rows`] | the rows of a site's storage: every tag, and who writes it |
//! | [`right`] | what all rights have: names, ends by two clocks, marks, giving up; holds, the rights over tokens that end by themselves |
//! | [`object`] | objects and transactions: what they are made of, and what sites say about them |
//! | [`draft`] | a transaction while its program runs, in a client: what it has read, what it writes, calls of memoized functions |
//! | [`api`] | what clients ask and are told |
//! | [`stats`] | estimators: of demand for tokens, and of how often objects are read and written |
//! | [`gift`] | running totals, by which an amount moves one way without an answer |
//! | [`warranty`] | rights over the values of objects |
//! | [`avantan`] | the agreement by which sites move tokens |
//! | `words` | codes and sentences of refusals, doubts and causes of an abort |
//! | [`peer`] | what sites say to each other |
//! | [`session`] | operation ids: nothing takes effect twice, and outcomes can be asked for |
//! | [`config`], [`metrics`] | what a node is told when it is opened, and what it counts |
//! | [`turn`] | what one call of `handle` works with |
//! | [`chapter`] | the face that a part of the machine with its own state, messages and rows has |
//! | [`txn`] | strictly serializable transactions over objects, and memoized calls |
//! | [`quota`] | the quotas of a site: acquire, release, holds, offers, when to give, forecasts |
//! | [`node`] | all of it as one machine: routing, recovery, what is persisted where |
//!
//! The words are explained in the book's glossary, `docs/src/glossary.md`.

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
pub mod words;
