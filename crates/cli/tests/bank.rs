//! A bank: accounts in three regions, transfers between them that count themselves, and the sum of all.

use std::time::Duration;

use slackline::{Client, Effect, Key, Outcome, Txn, TxnError, Unknown};
use tokio::time::Instant;

pub(crate) const REGIONS: [&str; 3] = ["us", "eu", "ap"];
/// What is in each account at first.
pub(crate) const OPENING: i64 = 100;
/// How long what must happen may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

/// An account; each region has some.
pub(crate) fn account(site: usize, number: usize) -> Key {
    Key::new(REGIONS[site], format!("accounts/{number}"))
}

/// The counter of transfers; each region has one.
pub(crate) fn transfers(site: usize) -> Key {
    Key::new(REGIONS[site], "transfers")
}

/// Moves one from an account to another.
pub(crate) async fn transfer(txn: Txn, from: Key, to: Key, counter: Key) -> Result<(), TxnError> {
    let left: i64 = txn.get(&from).await?.unwrap_or_default();
    txn.put(&from, &(left - 1))?;
    let right: i64 = txn.get(&to).await?.unwrap_or_default();
    txn.put(&to, &(right + 1))?;
    txn.add(&counter, 1)
}

/// What is in all accounts together.
pub(crate) async fn sum(txn: Txn) -> Result<i64, TxnError> {
    let mut sum = 0;
    for region in REGIONS {
        let rows = txn.scan_as::<i64>(&Key::new(region, "accounts/")).await?;
        sum += rows.into_iter().map(|(_, balance)| balance).sum::<i64>();
    }
    Ok(sum)
}

/// How many transfers took effect, as they counted themselves.
pub(crate) async fn counted(txn: Txn) -> Result<i64, TxnError> {
    let mut counted = 0;
    for site in 0..REGIONS.len() {
        counted += txn.count(&transfers(site)).await?;
    }
    Ok(counted)
}

/// Opens this many accounts in each region.
pub(crate) async fn open(client: &Client, accounts: usize) {
    let open = |txn: Txn| async move {
        let mut all = (0..REGIONS.len()).flat_map(|site| (0..accounts).map(move |number| account(site, number)));
        all.try_for_each(|one| txn.put(&one, &OPENING))
    };
    let until = Instant::now() + PATIENCE;
    while !client.transact(open).await.expect("no error of its own").is_done() {
        assert!(Instant::now() < until, "the sites do not find each other");
    }
}

/// Asks what became of a transfer until it is known; whether it took effect.
pub(crate) async fn settle(client: &Client, unknown: &Unknown) -> bool {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.outcome_of(unknown.operation).await {
            Outcome::Done(Effect::Committed { .. }) => return true,
            Outcome::Done(effect) => panic!("a transaction, not {effect:?}"),
            Outcome::Refused(_) => return false,
            Outcome::Unknown(again) => assert!(Instant::now() < until, "never settled: {again}"),
        }
    }
}
