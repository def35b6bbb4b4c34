//! Transactions: money moves between accounts in two regions, and a reader sees the same sum at every moment. Start a cluster
//! in another terminal, then run this with the address of any of its sites:
//!
//! ```sh
//! cargo run --release -- dev
//! cargo run --release -p slackline --example transfer -- 127.0.0.1:7400
//! ```

use std::fmt;

use slackline::{Client, Key, Outcome, Txn, TxnError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tour(std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".to_owned())).await
}

/// Why a transfer is not made.
#[derive(Debug)]
enum NotMade {
    /// The account has only so much.
    Poor(i64),
    /// The transaction has a problem of its own; `?` brings it here.
    Txn(TxnError),
}

impl From<TxnError> for NotMade {
    fn from(error: TxnError) -> Self {
        NotMade::Txn(error)
    }
}

impl fmt::Display for NotMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotMade::Poor(balance) => write!(f, "there are only {balance} in the account"),
            NotMade::Txn(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NotMade {}

/// Moves an amount from one account to another. It may be run several times, so it does nothing but read and write.
async fn transfer(txn: Txn, from: Key, to: Key, amount: i64) -> Result<i64, NotMade> {
    let balance: i64 = txn.get(&from).await?.unwrap_or_default();
    if balance < amount {
        // What was read is validated before anybody hears of this.
        return Err(NotMade::Poor(balance));
    }
    let other: i64 = txn.get(&to).await?.unwrap_or_default();
    txn.put(&from, &(balance - amount))?;
    txn.put(&to, &(other + amount))?;
    // A counter: transactions that only add to it do not get in each other's way.
    txn.add(&Key::new(to.region(), "transfers"), 1)?;
    Ok(balance - amount)
}

pub(crate) async fn tour(address: String) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect([address]).await?;
    let regions = &client.topology().regions;
    let alice = client.object(&regions[0], "accounts/alice");
    let bob = client.object(regions.last().expect("a cluster has regions"), "accounts/bob");

    let opening = client.transact(|txn| {
        let (alice, bob) = (alice.clone(), bob.clone());
        async move {
            txn.put(&alice, &100)?;
            txn.put(&bob, &0)
        }
    });
    opening.await?.done()?;

    for amount in [30, 50] {
        let made = client.transact(|txn| transfer(txn, alice.clone(), bob.clone(), amount));
        println!("moved {amount}; alice has {} left", made.await?.done()?);
    }

    // Too much: the program's own error, and nothing is written.
    match client.transact(|txn| transfer(txn, alice.clone(), bob.clone(), 50)).await {
        Err(NotMade::Poor(balance)) => println!("not made: alice has {balance}"),
        Err(error) => return Err(error.into()),
        Ok(Outcome::Done(left)) => println!("more than there is? {left} left"),
        Ok(Outcome::Refused(refused)) => return Err(refused.into()),
        // It may have been made: ask, which settles it.
        Ok(Outcome::Unknown(unknown)) => println!("{unknown}: {:?}", client.outcome_of(unknown.operation).await),
    }

    let sum = client.transact(|txn| {
        let accounts = [alice.clone(), bob.clone()];
        async move {
            let balances = txn.get_many::<i64>(&accounts).await?;
            Ok::<_, TxnError>(balances.into_iter().flatten().sum::<i64>())
        }
    });
    println!("together they have {}", sum.await?.done()?);
    client.close().await;
    Ok(())
}
