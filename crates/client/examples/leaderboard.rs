//! The program of the book's tutorial: votes of several regions, and a leaderboard that every region reads without leaving home.
//! Start a cluster in another terminal, then run this with the address of any of its sites:
//!
//! ```sh
//! cargo run --release -- dev
//! cargo run --release -p slackline --example leaderboard -- 127.0.0.1:7400
//! ```

use slackline::{Client, Key, Txn, TxnError, memoized};

/// How many songs can be voted for.
const SONGS: u32 = 16;

/// The counter of a song's votes. The songs are spread over the regions.
fn votes(song: u32) -> Key {
    let region = ["us", "eu", "ap"][song as usize % 3];
    Key::new(region, format!("votes/{song:02}"))
}

memoized! {
    /// The three songs of `from..to` with the most votes, each with its number of votes.
    static LEADERS: async fn(txn: Txn, from: u32, to: u32) -> Result<Vec<(i64, u32)>, TxnError> {
        let mut leaders = Vec::new();
        if to - from <= 4 {
            for song in from..to {
                leaders.push((txn.count(&votes(song)).await?, song));
            }
        } else {
            // By divide and conquer: a vote changes one of the parts, and what is above it only if that changes too.
            let middle = from.midpoint(to);
            leaders.extend(txn.call(&LEADERS, (from, middle)).await?);
            leaders.extend(txn.call(&LEADERS, (middle, to)).await?);
        }
        leaders.sort_unstable_by_key(|(votes, song)| (-votes, *song));
        leaders.truncate(3);
        Ok(leaders)
    }
}

/// One vote: it is counted, and the voter cannot vote for the same song again.
async fn vote(txn: Txn, voter: &str, song: u32) -> Result<bool, TxnError> {
    let voter = Key::new("us", format!("voters/{voter}"));
    let mut voted: Vec<u32> = txn.get(&voter).await?.unwrap_or_default();
    if voted.contains(&song) {
        return Ok(false);
    }
    voted.push(song);
    txn.put(&voter, &voted)?;
    // A counter: votes for the same song do not exclude each other.
    txn.add(&votes(song), 1)?;
    Ok(true)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tour(std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".to_owned())).await?;
    Ok(())
}

/// Votes, and looks; gives the leaders in the end.
pub(crate) async fn tour(address: String) -> Result<Vec<(i64, u32)>, Box<dyn std::error::Error>> {
    let client = Client::connect([address]).await?;
    // It will change what the function reads, so it must be able to run it.
    client.memoize(&LEADERS);
    for (voter, song) in [("ann", 3), ("ben", 3), ("cid", 7), ("ann", 7), ("dot", 3), ("eve", 12), ("eve", 12)] {
        let counted = client.transact(|txn| vote(txn, voter, song)).await?.done()?;
        println!("{voter} votes for song {song}{}", if counted { "" } else { ": again, so it does not count" });
    }
    let leaders = client.transact(|txn| async move { txn.call(&LEADERS, (0, SONGS)).await }).await?.done()?;
    for (votes, song) in leaders.iter().filter(|(votes, _)| *votes > 0) {
        println!("song {song:2}: {votes} votes");
    }
    client.close().await;
    Ok(leaders)
}
