//! Who leads? Votes are counted in three regions. One treaty says that A leads, another one that A does not: the regions keep that one
//! alone that is true. So whoever asks knows at once, but for the first who asks after the lead has changed. Start a cluster in
//! another terminal, then run this with the address of any of its sites:
//!
//! ```sh
//! cargo run --release -- dev
//! cargo run --release -p slackline --example voting -- 127.0.0.1:7400
//! ```

use std::time::Instant;

use slackline::{Client, Key, Metric, Treaty, TxnError};

const REGIONS: [&str; 3] = ["us", "eu", "ap"];

fn votes(region: &str, candidate: &str) -> Key {
    Key::new(region, format!("election/{candidate}"))
}

/// By how many votes A leads.
fn lead() -> Metric {
    Metric::everywhere("election/a") - Metric::everywhere("election/b")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tour(std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".to_owned())).await?;
    Ok(())
}

/// Votes, and asks who leads; true if A does in the end.
pub(crate) async fn tour(address: String) -> Result<bool, Box<dyn std::error::Error>> {
    let client = Client::connect([address]).await?;
    // Two statements, of which one is true. Which one is kept true is known without reading a vote.
    let a_leads = client.treaty("election/a", lead().at_least(1));
    let b_leads = client.treaty("election/b", lead().at_most(0));
    begin(&client).await?;

    // Most of the first votes are for A, and then many for B.
    let mut answer = false;
    for (round, for_a) in [30, 30, 0].into_iter().enumerate() {
        for region in REGIONS {
            cast(&client, region, "a", for_a).await?;
            cast(&client, region, "b", 25).await?;
        }
        ask(&client, &a_leads, &b_leads).await?;
        let began = Instant::now();
        answer = ask(&client, &a_leads, &b_leads).await?;
        let who = if answer { "A leads" } else { "A does not lead" };
        println!("round {}: {who}; asked once more, that took {:.1?}", round + 1, began.elapsed());
    }
    client.close().await;
    Ok(answer)
}

/// No votes are cast yet.
async fn begin(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    let all: Vec<Key> =
        REGIONS.iter().flat_map(|region| ["a", "b"].map(|candidate| votes(region, candidate))).collect();
    let all = &all;
    let begun = client.transact(|txn| async move {
        all.iter().try_for_each(|counter| txn.put_count(counter, 0))?;
        Ok::<_, TxnError>(())
    });
    Ok(begun.await?.done()?)
}

/// Counts votes where they were cast. Nobody else is asked, unless they could change who leads.
async fn cast(client: &Client, region: &str, candidate: &str, count: i64) -> Result<(), Box<dyn std::error::Error>> {
    let counter = &votes(region, candidate);
    client.transact(|txn| async move { txn.add(counter, count) }).await?.done()?;
    Ok(())
}

/// True if A leads. While one of the treaties is valid, that is known from one object under a warranty. The first who asks when neither
/// is reads the votes, and makes the one that is true.
async fn ask(client: &Client, a_leads: &Treaty, b_leads: &Treaty) -> Result<bool, Box<dyn std::error::Error>> {
    let asked = client.transact(|txn| async move {
        if txn.valid(a_leads).await? {
            return Ok::<_, TxnError>(true);
        }
        if txn.valid(b_leads).await? {
            return Ok(false);
        }
        Ok(txn.holds(a_leads).await? || !txn.holds(b_leads).await?)
    });
    Ok(asked.await?.done()?)
}
