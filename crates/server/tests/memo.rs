//! Memoized functions of the client, over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use slackline::{Client, Key, Options, Outcome, Txn, TxnError, memoized};
use slackline_server::{Dev, DevConfig, Ports, SiteHandle};

use crate::support::{block_on, cluster};

const REGIONS: [&str; 3] = ["us", "eu", "ap"];
const USERS: u32 = 12;
/// How often `TOP` has run; only one test may call it.
static RUNS: AtomicU32 = AtomicU32::new(0);
static RANDOM: AtomicU32 = AtomicU32::new(0);

fn followers(user: u32) -> Key {
    Key::new(REGIONS[user as usize % 3], format!("followers/{user:02}"))
}

async fn run_top(txn: &Txn, from: u32, to: u32) -> Result<Vec<(i64, u32)>, TxnError> {
    let mut top = Vec::new();
    for user in from..to {
        top.push((txn.count(&followers(user)).await?, user));
    }
    Ok(best(top))
}

fn best(mut top: Vec<(i64, u32)>) -> Vec<(i64, u32)> {
    top.sort_unstable_by(|one, other| other.cmp(one));
    top.truncate(2);
    top
}

memoized! {
    /// The two most followed of some users.
    static TOP: async fn(txn: Txn, from: u32, to: u32) -> Result<Vec<(i64, u32)>, TxnError> {
        RUNS.fetch_add(1, Ordering::Relaxed);
        if to - from <= 3 {
            return run_top(&txn, from, to).await;
        }
        let middle = from + (to - from) / 2;
        let (low, high) = (txn.call(&TOP, (from, middle)).await?, txn.call(&TOP, (middle, to)).await?);
        Ok(best([low, high].concat()))
    }

    /// As `TOP`, in another way: for whom it does not matter how often it runs.
    static LEADERS: async fn(txn: Txn, from: u32, to: u32) -> Result<Vec<(i64, u32)>, TxnError> {
        if to - from <= 3 {
            return run_top(&txn, from, to).await;
        }
        let middle = from + (to - from) / 2;
        let (low, high) = (txn.call(&LEADERS, (from, middle)).await?, txn.call(&LEADERS, (middle, to)).await?);
        Ok(best([low, high].concat()))
    }

    /// How many there are.
    static SIZE: async fn(txn: Txn) -> Result<usize, TxnError> {
        Ok(txn.scan(&Key::new("eu", "members/")).await?.len())
    } => |_| "eu".to_owned();

    static WRITES: async fn(txn: Txn) -> Result<(), TxnError> {
        txn.put(&Key::new("us", "x"), &1)
    }

    static NOT_DETERMINISTIC: async fn(txn: Txn) -> Result<u32, TxnError> {
        txn.count(&Key::new("us", "n")).await?;
        Ok(RANDOM.fetch_add(1, Ordering::Relaxed))
    }
}

async fn connect(site: &SiteHandle, region: &str) -> Client {
    let options = Options { region: Some(region.to_owned()), ..Options::default() };
    Client::connect_with([site.address().to_string()], options).await.expect("connected")
}

/// Says how often the transaction was run: others may have been in its way.
async fn follow(client: &Client, user: u32, by: i64) -> u32 {
    let follow = |txn: Txn| async move { txn.add(&followers(user), by) };
    client.transaction().run_and_tell(follow).await.expect("no error").done().expect("committed").runs
}

async fn top(client: &Client) -> Vec<(i64, u32)> {
    let top = |txn: Txn| async move { txn.call(&TOP, (0, USERS)).await };
    client.transact(top).await.expect("no error").done().expect("committed")
}

/// Calls until the function does not run any more.
async fn warm(client: &Client) -> Vec<(i64, u32)> {
    for _ in 0..200 {
        let before = RUNS.load(Ordering::Relaxed);
        let found = top(client).await;
        if RUNS.load(Ordering::Relaxed) == before {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("its result is never kept");
}

#[test]
fn result_is_computed_once_for_all_and_anew_by_who_writes_what_it_was_computed_from() {
    let dev = cluster(&REGIONS, 1);
    block_on(async {
        let us = connect(&dev.sites()[0], "us").await;
        let ap = connect(&dev.sites()[2], "ap").await;
        for user in 0..USERS {
            follow(&us, user, i64::from(user)).await;
        }
        assert_eq!(warm(&us).await, [(11, 11), (10, 10)]);
        // Nor does it run for another client.
        let before = RUNS.load(Ordering::Relaxed);
        assert_eq!(top(&ap).await, [(11, 11), (10, 10)]);
        assert_eq!(RUNS.load(Ordering::Relaxed), before);
        // A write that changes a result changes those above; one that does not change it stops there.
        follow(&us, 2, 20).await;
        let after = RUNS.load(Ordering::Relaxed);
        assert!(after >= before + 3, "three levels: {}", after - before);
        assert_eq!(top(&ap).await, [(22, 2), (11, 11)]);
        let runs = follow(&us, 0, 1).await;
        assert_eq!(top(&ap).await, [(22, 2), (11, 11)]);
        assert!(RUNS.load(Ordering::Relaxed) <= after + runs, "the lowest level only");
        // Who does not know the function deletes its results.
        let stranger = connect(&dev.sites()[1], "eu").await;
        follow(&stranger, 4, 50).await;
        assert_eq!(top(&ap).await, [(54, 4), (22, 2)]);
        assert!(RUNS.load(Ordering::Relaxed) > after + runs);
        assert_eq!(warm(&ap).await, [(54, 4), (22, 2)]);
        // Own writes are seen.
        let own = |txn: Txn| async move {
            txn.add(&followers(5), 1000)?;
            txn.call(&TOP, (0, USERS)).await
        };
        let found = us.transact(own).await.expect("no error").done().expect("committed");
        assert_eq!(found, [(1005, 5), (54, 4)]);
        assert_eq!(top(&ap).await, [(1005, 5), (54, 4)]);
    });
    dev.drain(Duration::from_secs(5)).expect("drains");
}

#[test]
fn result_is_never_another_than_the_function_would_give() {
    let dev = cluster(&REGIONS, 1);
    block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let mut writers = Vec::new();
        for (site, region) in REGIONS.iter().enumerate() {
            let client = connect(&dev.sites()[site], region).await;
            if site < 2 {
                client.memoize(&LEADERS);
                client.memoize(&SIZE);
            }
            let stop = Arc::clone(&stop);
            writers.push(tokio::spawn(async move {
                let mut step = site as u32;
                while !stop.load(Ordering::Relaxed) {
                    step += 1;
                    follow(&client, step * 7 % USERS, i64::from(step % 5)).await;
                    let insert =
                        |txn: Txn| async move { txn.put(&Key::new("eu", format!("members/{site}-{step:06}")), &step) };
                    if step.is_multiple_of(4) {
                        client.transact(insert).await.expect("no error").done().expect("committed");
                    }
                    tokio::time::sleep(Duration::from_millis(30)).await;
                }
            }));
        }
        let (mut equal, mut sizes) = (0, 0);
        let reader = connect(&dev.sites()[1], "eu").await;
        for _ in 0..150 {
            let both = |txn: Txn| async move {
                let kept = txn.call(&LEADERS, (0, USERS)).await?;
                let size = txn.call(&SIZE, ()).await?;
                let now = run_top(&txn, 0, USERS).await?;
                Ok::<_, TxnError>((kept, now, size, txn.scan(&Key::new("eu", "members/")).await?.len()))
            };
            match reader.transaction().deadline(Duration::from_secs(2)).run(both).await.expect("no error") {
                Outcome::Done((kept, now, size, members)) => {
                    assert_eq!(kept, now);
                    assert_eq!(size, members);
                    equal += 1;
                    sizes += usize::from(size > 0);
                }
                // Somebody was always faster.
                Outcome::Refused(_) => {}
                Outcome::Unknown(unknown) => panic!("{unknown}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.expect("no panic");
        }
        assert!(equal > 20 && sizes > 0, "{equal} {sizes}");
    });
    dev.drain(Duration::from_secs(5)).expect("drains");
}

#[test]
fn function_that_writes_or_is_not_deterministic_is_found_out() {
    let dev = cluster(&REGIONS, 1);
    block_on(async {
        let us = connect(&dev.sites()[0], "us").await;
        let writes = us.transact(|txn| async move { txn.call(&WRITES, ()).await }).await;
        let error = writes.expect_err("it writes");
        assert_eq!(error.to_string(), "WRITES cannot be a memoized function: it writes us:x");
        let call = |txn: Txn| async move { txn.call(&NOT_DETERMINISTIC, ()).await };
        us.transact(call).await.expect("no error").done().expect("committed");
        assert_eq!(us.not_deterministic(), ["NOT_DETERMINISTIC"]);
        let before = RANDOM.load(Ordering::Relaxed);
        us.transact(call).await.expect("no error").done().expect("committed");
        assert_eq!(RANDOM.load(Ordering::Relaxed), before + 1, "it runs every time");
    });
    dev.drain(Duration::from_secs(5)).expect("drains");
}

/// How many members there are, who are looked for in all that is at home in `eu`; the calls are there too.
async fn members(txn: &Txn) -> Result<(usize, usize), TxnError> {
    Ok((txn.call(&SIZE, ()).await?, txn.scan(&Key::new("eu", "")).await?.len()))
}

fn member(number: u32) -> Key {
    Key::new("eu", format!("members/{number}"))
}

#[test]
fn what_a_program_writes_beside_a_call_is_not_taken_for_what_the_call_read() {
    let dev = cluster(&REGIONS, 1);
    block_on(async {
        let us = connect(&dev.sites()[0], "us").await;
        let done = |outcome: Result<Outcome<_>, TxnError>| outcome.expect("no error").done().expect("committed");
        for number in 0..5 {
            let joins = |txn: Txn| async move {
                let found = members(&txn).await?;
                txn.put(&member(number), &number)?;
                Ok::<_, TxnError>(found)
            };
            assert_eq!(done(us.transact(joins).await), (number as usize, number as usize));
            assert_eq!(us.not_deterministic(), Vec::<String>::new());
        }
        // One branch of a block computes the call while another one writes what it reads, and then the block fails.
        let eu = connect(&dev.sites()[1], "eu").await;
        let branches = |txn: Txn| async move {
            let block = txn.atomic(|block| async move {
                let write = async { block.put(&member(99), &99) };
                let (size, written) = tokio::join!(block.call(&SIZE, ()), write);
                written?;
                Err::<(), _>(TxnError::NotMemoizable { name: "a block", why: size?.to_string() })
            });
            let failed = block.await.expect_err("it says so").to_string();
            Ok::<_, TxnError>((failed, members(&txn).await?))
        };
        for _ in 0..5 {
            let found = eu.transact(branches).await.expect("no error").done().expect("committed");
            assert_eq!(found.1, (5, 5), "{}", found.0);
            let found = us.transact(|txn: Txn| async move { members(&txn).await }).await;
            assert_eq!(done(found), (5, 5));
        }
    });
    dev.drain(Duration::from_secs(5)).expect("drains");
}

/// The program that the tutorial shows, against a real cluster.
#[test]
fn tutorial_runs_to_its_end() {
    let dev = Dev::start(DevConfig { data: None, ports: Ports::Free, ..DevConfig::default() }).expect("starts");
    assert!(dev.wait_ready(Duration::from_secs(20)));
    let address = dev.sites()[0].address().to_string();
    let leaders = block_on(async { leaderboard::tour(address).await.expect("every call ends as the program expects") });
    assert_eq!(leaders, [(3, 3), (2, 7), (1, 12)]);
    dev.drain(Duration::from_secs(5)).expect("drains");
}

#[path = "../../client/examples/leaderboard.rs"]
#[allow(dead_code, reason = "its `main` is for the command line")]
mod leaderboard;

/// And the tutorial shows that program, in parts.
#[test]
fn tutorial_shows_the_program_that_runs() {
    let page = include_str!("../../../docs/src/memoized.md");
    let program = include_str!("../../client/examples/leaderboard.rs");
    let blocks: Vec<&str> =
        page.split("```rust,ignore\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 4);
    for block in blocks {
        assert!(program.contains(block), "not in the example:\n{block}");
    }
}
