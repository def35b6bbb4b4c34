//! A first tour. Start a cluster in another terminal, then run this with the address of any of its sites:
//!
//! ```sh
//! cargo run --release -- dev
//! cargo run --release -p slackline --example quickstart -- 127.0.0.1:7400
//! ```

use std::time::Duration;

use slackline::{Client, Outcome, Reason};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tour(std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".to_owned())).await
}

pub(crate) async fn tour(address: String) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect([address]).await?;
    println!("connected; the nearest region is {}", client.nearest());

    // Creating it again with the same limit is fine, so this program can be run twice.
    let gpus = client.quota("gpus");
    gpus.create(5000).await.done()?;

    // Tracked: released by its id, once. The fence is for the resource itself, which can turn an older holder away.
    let grant = gpus.acquire(3).tracked().await.done()?;
    println!("granted {}: {} tokens of {}, fence {:?}", grant.name(), grant.amount(), grant.quota(), grant.fence());
    println!("in use: {:?}", gpus.total().await?);
    grant.release().await.done()?;

    // Held for a time: the site takes the tokens back by itself, also if this program crashes.
    let held = gpus.acquire(3).hold_for(Duration::from_secs(2)).await.done()?;
    println!("held for {:?} more", held.remaining().unwrap_or_default());

    // Counted: the fastest. Any release of as many, at any site, gives them back.
    gpus.acquire(10).await.done()?;
    gpus.release(10).await.done()?;

    // There are three ways for a call to end, and this is all of them. Not all can be had while some are held.
    match gpus.acquire(5000).deadline(Duration::from_secs(2)).await {
        Outcome::Done(grant) => println!("more than are free? {grant:?}"),
        Outcome::Refused(refused) if matches!(refused.reason, Reason::Exhausted { .. }) => println!("{refused}"),
        Outcome::Refused(refused) => return Err(refused.into()),
        Outcome::Unknown(unknown) => println!("{unknown}: {:?}", client.outcome_of(unknown.operation).await),
    }
    client.close().await;
    Ok(())
}
