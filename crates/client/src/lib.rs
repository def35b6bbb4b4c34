//! Quotas and objects that several regions share: the client of Slackline.
//!
//! A **quota** is a number of tokens of a shared resource: seats, GPUs, model tokens per minute. It is spread over sites
//! in several regions; each grants and takes back tokens on its own, at local latency, and the sites move tokens among
//! each other. The limit is never exceeded.
//!
//! ```no_run
//! use std::time::Duration;
//! use slackline::Client;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // One address would do; the other sites are learned from it, and the nearest is used.
//! let client = Client::connect(["127.0.0.1:7400"]).await?;
//! let gpus = client.quota("gpus");
//! gpus.create(5000).await.done()?;
//!
//! // Tokens that are the caller's until it gives them back.
//! let grant = gpus.acquire(3).tracked().await.done()?;
//! println!("granted {} by {}, fence {:?}", grant.name(), grant.site(), grant.fence());
//! grant.release().await.done()?;
//!
//! // Tokens for a minute: the site takes them back by itself, also if this program crashes.
//! let grant = gpus.acquire(3).hold_for(Duration::from_secs(60)).at("eu").await.done()?;
//! println!("{:?} left; in use: {:?}", grant.remaining(), gpus.total().await?);
//! client.close().await;
//! # Ok(()) }
//! ```
//!
//! # Outcomes
//!
//! Every call has a deadline and an operation id, and ends as an [`Outcome`]: [done](Outcome::Done),
//! [refused](Outcome::Refused) or [unknown](Outcome::Unknown). Unknown is not an error that can be retried blindly: the
//! call may have taken effect. [`Client::outcome_of`] settles it.
//!
//! # Where calls go
//!
//! To the nearest site that can be reached, or to the region that the call [names](Call::at). A call that has not been
//! sent yet fails over to another site. A call that *was* sent, and whose answer the connection took with it, is sent
//! again to the same site under the same id, which cannot take effect twice, until its deadline; then it is unknown. It
//! is never silently issued elsewhere; but acquires and releases have a [`Patience`] with a site that says nothing. Holds
//! go elsewhere after a second, and the client settles the first one.
//!
//! # Transactions
//!
//! [`Client::transact`] runs a program that reads and writes objects of any regions; it takes effect as a whole, strictly
//! serializable, or not at all. [`Transaction::run`] has the rules.
//!
//! # Many calls at once
//!
//! Calls of one client to one site share a stream. While a batch is under way, new calls gather; when the site has
//! answered, they go as the next batch. A thousand concurrent callers therefore cost little more than one. Bounds, per
//! site: 65,536 calls may wait to be sent, beyond which calls are refused as [overloaded](Reason::Overloaded); 65,536 may wait
//! there, half of them in line for as long as their callers like; the others wait here until there is room.

mod asking;
mod call;
mod client;
mod connection;
mod discovery;
mod explain;
mod grant;
mod left;
mod members;
mod options;
mod quota;
mod transactions;
mod treaties;

pub use asking::{Effect, SiteStatus};
pub use call::{
    AcceptLoss, Acquire, Call, Calling, Create, Delete, Extend, Kind, Limit, Reclaim, Reclaimed, Release, ReleaseGrant,
    Seat, SetLimit, refill_millionths,
};
pub use client::Client;
pub use discovery::{Introduced, introduce};
pub use explain::{End, Explanation, PartAsked, RightUsed, Step, What};
pub use grant::{Fence, Grant};
pub use left::{Left, LeftWhat};
pub use options::{DEFAULT_DEADLINE, DEFAULT_PATIENCE, Options, Patience};
pub use quota::{Demand, DemandMinute, Known, KnownSite, Listed, Quota, Shown, ShownSite, Total};
pub use slackline_core::api::{Agreement, NoSeat, PeerStatus, Readiness, SeatChange, Status};
pub use slackline_core::id::{GrantId, Incarnation, OperationId, SiteId};
pub use slackline_core::object::{Cause, Derived, Value};
pub use slackline_core::words::per_second;
pub use slackline_session::key::{Key, ParseKeyError};
pub use slackline_session::memoized;
pub use slackline_session::metric::{Metric, Statement};
pub use slackline_session::outcome::{
    Aborted, ConnectError, NotDone, Outcome, ReadError, Reason, Refused, TreatyRefusal, Unknown, UnknownReason,
};
pub use slackline_session::topology::{ParseNameError, Site, Topology};
pub use slackline_session::txn::treaties::Order;
pub use slackline_session::txn::{Committed, Memo, Page, Transaction, Txn, TxnError, fingerprint};
pub use slackline_wire::lane_of;
pub use treaties::{
    SynchronizationCause, TreatiesFound, Treaty, TreatyFound, TreatyNode, TreatyShown, TreatySynchronization,
    TreatyWatch,
};

/// The README's code is compiled with the tests, so that it stays true.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// And so is the book's.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/transactions.md")]
struct Transactions;

/// And that of treaties.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/treaties.md")]
struct Treaties;

/// And that of the recipes.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/recipes.md")]
struct Recipes;
