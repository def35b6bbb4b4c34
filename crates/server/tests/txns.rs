//! Transactions of the client over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use slackline::{
    Cause, Client, Effect, Key, Metric, Options, Outcome, Reason, Treaty, TreatyRefusal, TreatyShown, Txn, TxnError,
    Value,
};
use slackline_server::{Dev, DevConfig, Ports, RttTable, SiteHandle};

use crate::support::{block_on, cluster};

const DRAIN: Duration = Duration::from_secs(5);

fn key(text: &str) -> Key {
    text.parse().expect("a key")
}

async fn connect(site: &SiteHandle, region: &str) -> Client {
    let options = Options { region: Some(region.to_owned()), ..Options::default() };
    Client::connect_with([site.address().to_string()], options).await.expect("connected")
}

/// The accounts that `transfers_keep_the_sum_for_every_reader` moves money between.
const REGIONS: [&str; 3] = ["us", "eu", "ap"];
const ACCOUNTS: usize = 4;
const SUM: i64 = 3 * ACCOUNTS as i64 * 100;

fn account(number: usize) -> Key {
    Key::new(REGIONS[number % 3], format!("accounts/{:02}", number / 3))
}

#[test]
fn transfers_keep_the_sum_for_every_reader() {
    let dev = cluster(&REGIONS, 1);
    block_on(async {
        let us = connect(&dev.sites()[0], "us").await;
        let open = |txn: Txn| async move { (0..3 * ACCOUNTS).try_for_each(|number| txn.put(&account(number), &100)) };
        us.transact(open).await.expect("no error").done().expect("committed");
        let stop = Arc::new(AtomicBool::new(false));
        let (mut movers, mut readers) = (Vec::new(), Vec::new());
        for (site, region) in REGIONS.iter().enumerate() {
            let client = connect(&dev.sites()[site], region).await;
            for mover in 0..3 {
                let client = client.clone();
                movers.push(tokio::spawn(async move {
                    for step in 0..20 {
                        let (from, to) = (site + 5 * mover + step, 7 * site + mover + 3 * step + 1);
                        let (from, to) = (account(from % 12), account(to % 12));
                        let transfer = |txn: Txn| {
                            let (from, to) = (from.clone(), to.clone());
                            async move {
                                let left: i64 = txn.get(&from).await?.expect("opened");
                                txn.put(&from, &(left - 1))?;
                                let right: i64 = txn.get(&to).await?.expect("opened");
                                txn.put(&to, &(right + 1))?;
                                txn.add(&key("eu:transfers"), 1)
                            }
                        };
                        client.transact(transfer).await.expect("no error").done().expect("committed");
                    }
                }));
            }
            let stop = Arc::clone(&stop);
            readers.push(tokio::spawn(async move {
                let mut sums = 0;
                while !stop.load(Ordering::Relaxed) {
                    let sum = |txn: Txn| async move {
                        let mut sum = 0;
                        for region in REGIONS {
                            let rows = txn.scan_as::<i64>(&Key::new(region, "accounts/")).await?;
                            assert_eq!(rows.len(), ACCOUNTS);
                            sum += rows.into_iter().map(|(_, balance)| balance).sum::<i64>();
                        }
                        Ok::<_, TxnError>(sum)
                    };
                    match client.transaction().deadline(Duration::from_secs(2)).run(sum).await.expect("no error") {
                        Outcome::Done(sum) => assert_eq!(sum, SUM),
                        Outcome::Refused(refused) => match refused.reason {
                            Reason::Aborted(aborted) if matches!(aborted.cause, Cause::Changed | Cause::Busy) => {}
                            reason => panic!("{reason}"),
                        },
                        Outcome::Unknown(unknown) => panic!("{unknown}"),
                    }
                    sums += 1;
                }
                sums
            }));
        }
        for mover in movers {
            mover.await.expect("no panic");
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.await.expect("no panic") > 0);
        }
        let moved = us.transact(|txn| async move { txn.count(&key("eu:transfers")).await });
        assert_eq!(moved.await.expect("no error").done(), Ok(9 * 20));
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn read_often_elsewhere_is_judged_on_the_spot_and_its_write_waits_or_says_for_whom() {
    let rtt = Some(RttTable::aws());
    let dev = Dev::start(DevConfig { data: None, rtt, ports: Ports::Free, ..DevConfig::default() }).expect("starts");
    assert!(dev.wait_ready(Duration::from_secs(20)));
    block_on(async {
        let us = connect(&dev.sites()[0], "us").await;
        let eu = connect(&dev.sites()[1], "eu").await;
        let write = |txn: Txn| async move { txn.put(&key("eu:motd"), "hello") };
        eu.transact(write).await.expect("no error").done().expect("committed");
        let read = |txn: Txn| async move { txn.get::<String>(&key("eu:motd")).await };
        // Until its home thinks that it is worth a right.
        let until = Instant::now() + Duration::from_secs(20);
        let mut quick = 0;
        while quick < 3 {
            assert!(Instant::now() < until, "never judged on the spot");
            let done = us.transaction().run_and_tell(read).await.expect("no error").done().expect("committed");
            assert_eq!(done.value.as_deref(), Some("hello"));
            quick += u32::from(done.phases == 0);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let hasty = eu.transaction().max_wait(Duration::ZERO).run(write).await.expect("no error");
        let Some(Reason::Aborted(aborted)) = hasty.refusal() else { panic!("{hasty:?}") };
        assert_eq!((aborted.cause, &aborted.key), (Cause::WouldWait, &Some(key("eu:motd"))));
        assert_eq!(aborted.holders, ["us"]);
        assert!(aborted.until.is_some());
        let patient = |txn: Txn| async move { txn.put(&key("eu:motd"), "bye") };
        assert!(eu.transact(patient).await.expect("no error").is_done());
        let seen = us.transact(read).await.expect("no error").done().expect("committed");
        assert_eq!(seen.as_deref(), Some("bye"), "whoever saw the write end");
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn many_at_once_from_one_client_lose_no_update() {
    let dev = cluster(&["us", "eu"], 1);
    block_on(async {
        let client = connect(&dev.sites()[0], "us").await;
        let runs = Arc::new(AtomicU32::new(0));
        let tasks = (0..16).map(|task| {
            let (client, runs) = (client.clone(), Arc::clone(&runs));
            tokio::spawn(async move {
                for _ in 0..10 {
                    let increment = |txn: Txn| {
                        runs.fetch_add(1, Ordering::Relaxed);
                        async move {
                            let n: i64 = txn.get(&key("us:n")).await?.unwrap_or_default();
                            txn.put(&key("us:n"), &(n + 1))?;
                            txn.put(&Key::new("eu", format!("by/{task}")), &n)
                        }
                    };
                    client.transact(increment).await.expect("no error").done().expect("committed");
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
        let n = client.transact(|txn| async move { txn.value(&key("us:n")).await });
        assert_eq!(n.await.expect("no error").done(), Ok(Some(Value::Bytes(b"160".to_vec().into()))));
        assert!(runs.load(Ordering::Relaxed) >= 160);
    });
    dev.drain(DRAIN).expect("drains");
}

#[test]
fn site_of_a_participant_that_is_gone_is_named_and_the_others_go_on() {
    let mut dev = cluster(&REGIONS, 1);
    block_on(async {
        let client = connect(&dev.sites()[0], "us").await;
        let both = |txn: Txn| async move {
            txn.add(&key("us:n"), 1)?;
            txn.add(&key("eu:n"), 1)
        };
        let committed = client.transaction().run_and_tell(both).await.expect("no error").done().expect("committed");
        assert_eq!(committed.phases, 2);
        let operation = committed.operation.expect("it wrote");
        assert_eq!(client.outcome_of(operation).await, Outcome::Done(Effect::Committed { phases: 2 }));
        let eu = dev.take(1);
        std::thread::spawn(move || eu.drain(DRAIN)).join().expect("no panic").expect("drains");
        let alone = |txn: Txn| async move { txn.add(&key("us:n"), 1) };
        assert!(client.transact(alone).await.expect("no error").is_done());
        // Until it is known to be gone, what needs it may be undecided.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let refused = client.transaction().deadline(Duration::from_secs(2)).run(both).await.expect("no error");
        let Some(Reason::Aborted(aborted)) = refused.refusal() else { panic!("{refused:?}") };
        assert_eq!((aborted.cause, aborted.site.as_deref()), (Cause::Unreachable, Some("eu")));
        let n = client.transact(|txn| async move { txn.count(&key("us:n")).await });
        assert_eq!(n.await.expect("no error").done(), Ok(2));
        assert!(client.accept_loss("us").await.is_done());
    });
    dev.drain(DRAIN).expect("drains");
}

/// The program that the book shows, against a real cluster.
#[test]
fn transfer_example_runs_to_its_end() {
    let dev = Dev::start(DevConfig { data: None, ports: Ports::Free, ..DevConfig::default() }).expect("starts");
    assert!(dev.wait_ready(Duration::from_secs(20)));
    let address = dev.sites()[0].address().to_string();
    block_on(async { transfer::tour(address).await.expect("every transaction ends as the program expects") });
    dev.drain(DRAIN).expect("drains");
}

#[path = "../../client/examples/transfer.rs"]
#[allow(dead_code, reason = "its `main` is for the command line")]
mod transfer;

/// A statement about one name in all regions; and another one in its place while it is valid.
#[test]
fn treaty_over_all_regions_is_replaced_and_relied_upon() {
    let dev = Dev::start(DevConfig { data: None, ports: Ports::Free, ..DevConfig::default() }).expect("starts");
    assert!(dev.wait_ready(Duration::from_secs(20)));
    let address = dev.sites()[0].address().to_string();
    block_on(async {
        let client = Client::connect([address]).await.expect("connects");
        let hits = || Metric::everywhere("hits");
        let count = |region: &'static str, amount: i64| {
            let key = Key::new(region, "hits");
            client.transact(move |txn| {
                let key = key.clone();
                async move { txn.add(&key, amount) }
            })
        };
        let few = client.treaty("hits", hits().at_most(9));
        assert!(few.create().await.is_done());
        for region in REGIONS {
            assert!(count(region, 3).await.expect("no error").is_done());
        }
        let all = client.transact(|txn| async move { txn.measure(&hits()).await });
        assert_eq!(all.await.expect("no error").done(), Ok(9));
        assert_eq!(few.show().await.expect("it is there").statement.to_string(), "*:hits <= 9");

        // Its name is taken; but another one may take its place.
        let more = client.treaty("hits", hits().at_most(12));
        assert_eq!(more.create().await.refusal(), Some(&Reason::Treaty(TreatyRefusal::NameTaken)));
        let valid = |treaty: &Treaty| {
            let treaty = treaty.clone();
            client.transact(move |txn| {
                let treaty = treaty.clone();
                async move { txn.valid(&treaty).await }
            })
        };
        assert_eq!(valid(&few).await.expect("no error").done(), Ok(true));
        assert!(more.replace().await.is_done());
        assert_eq!(valid(&few).await.expect("no error").done(), Ok(false), "nothing is known of it");
        assert_eq!(valid(&more).await.expect("no error").done(), Ok(true));

        // What is not true takes nobody's place.
        let fewer = client.treaty("hits", hits().at_most(8));
        assert_eq!(fewer.replace().await.refusal(), Some(&Reason::Treaty(TreatyRefusal::NotTrue(9))));
        assert_eq!(valid(&more).await.expect("no error").done(), Ok(true));
        assert!(count("ap", 3).await.expect("no error").is_done());
        assert_eq!(more.show().await.expect("it is there").retracts, 0, "there was room for that");
    });
    dev.drain(DRAIN).expect("drains");
}

/// Whoever watches a treaty asks once; its sites tell of what changes, and a site that goes away is missed.
#[test]
fn treaty_that_is_watched_is_told_of_by_its_sites() {
    let mut dev = cluster(&REGIONS, 1);
    let ap = dev.take(2);
    block_on(async {
        let client = connect(&dev.sites()[0], "us").await;
        let add = |region: &'static str, amount: i64| {
            let key = Key::new(region, "seats");
            client.transact(move |txn| {
                let key = key.clone();
                async move { txn.add(&key, amount) }
            })
        };
        for region in REGIONS {
            assert!(add(region, 10).await.expect("no error").is_done());
        }
        let (seats, other) = ("seats", "other");
        let [seats, other] = [seats, other].map(|name| client.treaty(name, Metric::everywhere("seats").at_least(0)));
        assert_eq!(other.watch().expect("its home is a region").next().await, Err(UNKNOWN));
        assert!(seats.create().await.is_done() && other.create().await.is_done());

        let (mut watch, mut gone) = (seats.watch().expect("a region"), other.watch().expect("a region"));
        let node = |shown: &TreatyShown, of: &str| shown.nodes.iter().find(|node| node.node == of).cloned();
        let value = |shown: &TreatyShown, of: &str| node(shown, of).map(|node| node.value);
        let first = watch.next().await.expect("it is there");
        assert_eq!((first.valid, value(&first, "all"), value(&first, "eu")), (true, Some(30), Some(10)));
        assert!(gone.next().await.expect("it is there").valid);

        assert!(add("eu", -4).await.expect("no error").is_done());
        while value(&watch.next().await.expect("it is there"), "eu") != Some(6) {}
        assert!(other.drop().await.is_done());
        while gone.next().await != Err(UNKNOWN) {}

        // It does not keep a site from stopping.
        let began = Instant::now();
        tokio::task::spawn_blocking(|| ap.drain(DRAIN)).await.expect("no panic").expect("drains");
        assert!(began.elapsed() < DRAIN, "its client need not go away first");
        let shown = loop {
            match watch.next().await.expect("its home is there") {
                shown if shown.valid => {}
                shown => break shown,
            }
        };
        assert_eq!(node(&shown, "ap").map(|node| node.up), Some(false));
        assert_eq!(value(&shown, "eu"), Some(6));
    });
    dev.drain(DRAIN).expect("drains");
}

const UNKNOWN: Reason = Reason::Treaty(TreatyRefusal::Unknown);

/// The program that the page about treaties names, against a real cluster.
#[test]
fn voting_example_ends_with_another_winner() {
    let dev = Dev::start(DevConfig { data: None, ports: Ports::Free, ..DevConfig::default() }).expect("starts");
    assert!(dev.wait_ready(Duration::from_secs(20)));
    let address = dev.sites()[0].address().to_string();
    let a_leads = block_on(async { voting::tour(address).await.expect("every transaction ends as it expects") });
    assert!(!a_leads, "45 more votes for B");
    dev.drain(DRAIN).expect("drains");
}

#[path = "../../client/examples/voting.rs"]
#[allow(dead_code, reason = "its `main` is for the command line")]
mod voting;
