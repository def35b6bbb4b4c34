//! Transactions and memoized functions of a client.

use std::future::Future;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use slackline_session::call::Place;
use slackline_session::command::Command;
use slackline_session::key::Key;
use slackline_session::outcome::Outcome;
use slackline_session::topology::OBJECTS_LANE;
use slackline_session::txn::{Memo, Transaction, Txn};

use crate::call::{AcceptLoss, Call};
use crate::client::Client;

impl Client {
    /// The object of this name in this region.
    pub fn object(&self, region: impl Into<String>, name: impl Into<String>) -> Key {
        Key::new(region, name)
    }

    /// Runs a transaction on the terms of the client: within its deadline, at the nearest site. [`Client::transaction`] sets
    /// others.
    ///
    /// ```no_run
    /// # async fn example(client: slackline::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use slackline::TxnError;
    ///
    /// let alice = client.object("us", "users/alice/seats");
    /// let total = client.object("eu", "seats");
    /// let seats = client
    ///     .transact(|txn| {
    ///         let (alice, total) = (alice.clone(), total.clone());
    ///         async move {
    ///             let seats: Vec<String> = txn.get(&alice).await?.unwrap_or_default();
    ///             let seats = [seats, vec!["12A".to_owned()]].concat();
    ///             txn.put(&alice, &seats)?;
    ///             txn.add(&total, -1)?;
    ///             Ok::<_, TxnError>(seats)
    ///         }
    ///     })
    ///     .await?
    ///     .done()?;
    /// println!("alice has {seats:?}");
    /// # Ok(()) }
    /// ```
    ///
    /// See [`Transaction::run`] for what the program may do and how it ends.
    pub async fn transact<T, E, F, R>(&self, program: F) -> Result<Outcome<T>, E>
    where
        F: FnMut(Txn) -> R,
        R: Future<Output = Result<T, E>>,
    {
        self.transaction().run(program).await
    }

    /// A transaction whose terms are to be set.
    pub fn transaction(&self) -> Transaction {
        Transaction::over(self.port(), Arc::clone(&self.shared.memos)).deadline(self.shared.deadline())
    }

    /// Says that what the site of this region lost with its storage is gone for good: objects of which nothing is there count
    /// as absent from now on, instead of being refused as [lost](crate::Cause::Lost).
    pub fn accept_loss(&self, region: &str) -> Call<AcceptLoss> {
        Call::new(self.clone(), OBJECTS_LANE, Command::AcceptLoss, Place::Nearest).at(region)
    }

    /// Makes a memoized function known, so that writes of what it has read compute its results again, instead of deleting
    /// them. A function that was [called](Txn::call) is known.
    pub fn memoize<A, T>(&self, memo: &'static Memo<A, T>)
    where
        A: DeserializeOwned + 'static,
        T: Serialize + 'static,
    {
        self.shared.memos.add(memo);
    }

    /// The names of memoized functions that gave different results on the same reads. They run like other functions now, and
    /// should be mended.
    pub fn not_deterministic(&self) -> Vec<String> {
        self.shared.memos.not_deterministic()
    }
}
