//! Transactions against sites that do what a test tells them to.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use slackline::{Cause, Client, Committed, Effect, Key, Options, Outcome, Reason, Txn, TxnError, UnknownReason, Value};
use slackline_core::object::ObjectKey;

use crate::site::{Cluster, Fault};
use crate::{SHORT, at_us, run};

fn key(text: &str) -> Key {
    text.parse().expect("a key")
}

fn json(value: &str) -> Value {
    Value::Bytes(value.to_owned().into())
}

/// Runs a program that goes well.
async fn commit<T, R: Future<Output = Result<T, TxnError>>>(
    client: &Client,
    program: impl FnMut(Txn) -> R,
) -> Committed<T> {
    client.transaction().run_and_tell(program).await.expect("no error of its own").done().expect("committed")
}

#[test]
fn transaction_reads_its_own_writes_and_leaves_them_all_at_once() {
    run(async {
        let cluster = Cluster::start(&["us", "eu"], 1);
        let site = cluster.site("us");
        site.put(ObjectKey::new(1, "list/b"), json("2"));
        site.put(ObjectKey::new(1, "list/d"), json("4"));
        site.put(ObjectKey::new(0, "n"), Value::Counter(10));
        let client = at_us(&cluster).await;
        let committed = commit(&client, |txn| async move {
            let (b, c, d) = (key("eu:list/b"), key("eu:list/c"), key("eu:list/d"));
            txn.put(&c, &vec!["three"])?;
            assert_eq!(txn.get::<Vec<String>>(&c).await?, Some(vec!["three".to_owned()]));
            txn.delete(&d)?;
            assert_eq!(txn.get::<i64>(&d).await?, None);
            let rows = txn.scan(&key("eu:list/")).await?;
            assert_eq!(rows, [(b.clone(), json("2")), (c, json("[\"three\"]"))]);
            assert_eq!(txn.get::<i64>(&b).await?, Some(2));
            assert_eq!(txn.get::<i64>(&key("eu:list/e")).await?, None, "known from the scan");
            txn.add(&key("us:n"), 5)?;
            txn.add(&key("us:n"), -1)?;
            assert_eq!(txn.count(&key("us:n")).await?, 14);
            txn.add(&key("us:new"), 3)?;
            assert_eq!(txn.count(&key("us:new")).await?, 3);
            assert_eq!(txn.count(&key("us:none")).await?, 0);
            txn.put_bytes(&key("us:raw"), [0xff])?;
            assert_eq!(txn.get_bytes(&key("us:raw")).await?, Some(vec![0xff]));
            Ok(rows.len())
        })
        .await;
        assert_eq!((committed.value, committed.phases, committed.runs), (2, 1, 1));
        assert_eq!(site.object(&ObjectKey::new(1, "list/c")), Some(json("[\"three\"]")));
        assert_eq!(site.object(&ObjectKey::new(1, "list/d")), None);
        assert_eq!(site.object(&ObjectKey::new(0, "n")), Some(Value::Counter(14)));
        let transaction = &site.transactions()[0];
        let names = |region: usize| transaction.homes[region].part.reads.iter().map(|(name, _)| name.clone());
        assert_eq!(names(0).collect::<Vec<_>>(), ["n", "new", "none"]);
        assert_eq!(names(1).count(), 0, "the scan tells of them");
        assert_eq!(transaction.homes[1].part.scans.len(), 1);
        let operation = committed.operation.expect("it wrote");
        assert_eq!(client.outcome_of(operation).await, Outcome::Done(Effect::Committed { phases: 1 }));
    });
}

#[test]
fn block_that_fails_is_undone_alone() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        cluster.site("us").put(ObjectKey::new(0, "n"), Value::Counter(1));
        let client = at_us(&cluster).await;
        commit(&client, |txn| async move {
            txn.put(&key("us:a"), &1)?;
            let inner = txn.atomic(|txn| async move {
                txn.put(&key("us:a"), &2)?;
                txn.put(&key("us:b"), &2)?;
                txn.add(&key("us:n"), 1)?;
                let deeper = txn.atomic(|txn| async move {
                    txn.add(&key("us:n"), 10)?;
                    txn.count(&key("us:n")).await
                });
                assert_eq!(deeper.await?, 12);
                assert_eq!(txn.get::<i64>(&key("us:a")).await?, Some(2));
                Err::<(), _>(TxnError::OutOfRange(key("us:b")))
            });
            assert_eq!(inner.await, Err(TxnError::OutOfRange(key("us:b"))));
            assert_eq!(txn.get::<i64>(&key("us:a")).await?, Some(1));
            assert_eq!(txn.get::<i64>(&key("us:b")).await?, None);
            let kept = txn.atomic(|txn| async move { txn.add(&key("us:n"), 5) });
            kept.await?;
            let mut escaped = None;
            txn.atomic(|txn| {
                escaped = Some(txn.clone());
                async move { Ok::<_, TxnError>(()) }
            })
            .await?;
            let escaped = escaped.expect("the block ran");
            assert_eq!(escaped.put(&key("us:a"), &3), Err(TxnError::Over));
            Ok(())
        })
        .await;
        let site = cluster.site("us");
        assert_eq!(site.object(&ObjectKey::new(0, "a")), Some(json("1")));
        assert_eq!(site.object(&ObjectKey::new(0, "b")), None);
        assert_eq!(site.object(&ObjectKey::new(0, "n")), Some(Value::Counter(6)));
        let reads = &site.transactions()[0].homes[0].part.reads;
        assert!(reads.iter().any(|(name, _)| name == "n"), "what the block read stays read");
    });
}

#[test]
fn transient_abort_runs_the_program_again_on_fresh_reads() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let site = cluster.site("us");
        site.put(ObjectKey::new(0, "x"), json("1"));
        let runs = AtomicU32::new(0);
        let committed = commit(&client, |txn| {
            let first = runs.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                let x: i64 = txn.get(&key("us:x")).await?.expect("it is there");
                if first {
                    // Another is quicker.
                    site.put(ObjectKey::new(0, "x"), json("5"));
                    assert_eq!(txn.get::<i64>(&key("us:x")).await?, Some(x), "one version");
                }
                txn.put(&key("us:x"), &(x + 1))?;
                Ok(x)
            }
        });
        let committed = committed.await;
        assert_eq!((committed.value, committed.runs), (5, 2));
        assert_eq!(site.object(&ObjectKey::new(0, "x")), Some(json("6")));
        assert_eq!(site.reads().iter().map(|read| read.fresh).collect::<Vec<_>>(), [false, true]);

        site.set_aborts(&[Cause::Withdrawn, Cause::Busy, Cause::DeadlinePassed]);
        let committed = commit(&client, |txn| async move { txn.add(&key("us:n"), 1) }).await;
        assert_eq!(committed.runs, 4);
        assert_eq!(site.object(&ObjectKey::new(0, "n")), Some(Value::Counter(1)), "once");

        site.set_aborts(&[Cause::WouldWait]);
        let refused = client.transact(|txn| async move { txn.add(&key("us:n"), 1) }).await.expect("no error");
        let Some(Reason::Aborted(aborted)) = refused.refusal() else { panic!("{refused:?}") };
        assert_eq!(
            (aborted.cause, &aborted.key, aborted.site.as_deref()),
            (Cause::WouldWait, &Some(key("us:x")), Some("us"))
        );

        site.set_aborts(&[Cause::Busy; 1_000]);
        let outcome = client.transaction().deadline(SHORT).run(|txn| async move { txn.add(&key("us:n"), 1) }).await;
        let outcome = outcome.expect("no error");
        let Some(Reason::Aborted(aborted)) = outcome.refusal() else { panic!("{outcome:?}") };
        assert_eq!(aborted.cause, Cause::Busy, "what kept it from being committed until the deadline");
        let tries = site.transactions().len();
        assert!((8..40).contains(&tries), "pauses grow: {tries}");
    });
}

#[derive(Debug, PartialEq)]
enum Mine {
    Poor(i64),
    Txn(TxnError),
}

impl From<TxnError> for Mine {
    fn from(error: TxnError) -> Self {
        Mine::Txn(error)
    }
}

#[test]
fn error_of_the_program_is_handed_over_when_what_it_rests_on_was_true() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let site = cluster.site("us");
        site.put(ObjectKey::new(0, "x"), json("1"));
        let runs = AtomicU32::new(0);
        let poor = |txn: Txn| {
            let first = runs.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                let x: i64 = txn.get(&key("us:x")).await?.unwrap_or_default();
                if first {
                    site.put(ObjectKey::new(0, "x"), json("2"));
                }
                txn.put(&key("us:y"), &x)?;
                Err::<(), _>(Mine::Poor(x))
            }
        };
        assert_eq!(client.transact(poor).await, Err(Mine::Poor(2)), "the first one had read what was no more");
        assert_eq!(site.object(&ObjectKey::new(0, "y")), None);
        assert!(site.transactions().iter().all(|transaction| transaction.homes[0].part.writes.is_empty()));

        // What does not fit its type is the program's to judge, too.
        site.put(ObjectKey::new(0, "x"), json("\"text\""));
        let wrong = |txn: Txn| async move { txn.get::<i64>(&key("us:x")).await.map_err(Mine::Txn) };
        let Err(Mine::Txn(TxnError::Unexpected { key: at, .. })) = client.transact(wrong).await else {
            panic!("it is no number")
        };
        assert_eq!(at, key("us:x"));
        let counted = |txn: Txn| async move { txn.count(&key("us:x")).await };
        assert!(matches!(client.transact(counted).await, Err(TxnError::Unexpected { .. })));

        // Nothing read, nothing to validate.
        let before = site.transactions().len();
        let at_once = |_: Txn| async move { Err::<(), _>(Mine::Poor(0)) };
        assert_eq!(client.transact(at_once).await, Err(Mine::Poor(0)));
        assert_eq!(client.transact(|_| async move { Ok::<_, Mine>(7) }).await, Ok(Outcome::Done(7)));
        assert_eq!(site.transactions().len(), before);
    });
}

#[test]
fn reads_are_batched_and_what_does_not_fit_is_asked_for_again() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let site = cluster.site("us");
        for number in 0..600 {
            site.put(ObjectKey::new(0, format!("row/{number:03}")), json(&number.to_string()));
        }
        let keys: Vec<Key> = (0..600).map(|number| key(&format!("us:row/{number:03}"))).collect();
        let expected: Vec<Option<i64>> = (0..600).map(Some).collect();
        let read = |txn: Txn| {
            let keys = keys.clone();
            async move { txn.get_many::<i64>(&keys).await }
        };
        assert_eq!(commit(&client, read).await.value, expected);
        assert_eq!(site.reads().len(), 1);
        site.set_most_read(250);
        assert_eq!(commit(&client, read).await.value, expected);
        assert_eq!(site.reads().len(), 1 + 3);

        site.set_most_read(100);
        let scan = |txn: Txn| async move {
            assert_eq!(txn.scan_as::<i64>(&key("us:row/")).await?.len(), 600);
            let page = txn.scan_page(&key("us:row/"), "row/009", 3).await?;
            assert_eq!(page.next.as_deref(), Some("row/012"));
            txn.put(&key("us:row/011x"), &0)?;
            txn.put(&key("us:row/012x"), &0)?;
            txn.delete(&key("us:row/010"))?;
            let page = txn.scan_page(&key("us:row/"), "row/009", 3).await?;
            Ok(page.rows.into_iter().map(|(key, _)| key.name().to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(commit(&client, scan).await.value, ["row/011", "row/011x", "row/012"]);
    });
}

#[test]
fn site_that_breaks_at_a_read_is_replaced_in_the_next_run() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        cluster.site("eu").put(ObjectKey::new(0, "x"), json("2"));
        let client = at_us(&cluster).await;
        cluster.site("us").put(ObjectKey::new(0, "x"), json("1"));
        cluster.site("us").set_fault(Fault::BreakBeforeReading);
        let read = |txn: Txn| async move { txn.get::<i64>(&key("us:x")).await };
        let committed = commit(&client, read).await;
        assert_eq!((committed.value, committed.runs), (Some(2), 2));
        let pinned = client.transaction().at("us").run(read).await.expect("no error");
        assert_eq!(pinned, Outcome::Done(Some(1)));
        cluster.site("us").set_fault(Fault::MuteBeforeReading);
        let pinned = client.transaction().at("us").deadline(SHORT).run(read).await.expect("no error");
        let Some(Reason::Aborted(silent)) = pinned.refusal() else { panic!("{pinned:?}") };
        assert_eq!((silent.cause, silent.site.as_deref()), (Cause::DeadlinePassed, Some("us")));
        cluster.kill("us");
        let pinned = client.transaction().at("us").deadline(SHORT).run(read).await.expect("no error");
        assert_eq!(pinned.refusal(), Some(&Reason::NotSent { sites: vec!["us".into()] }));
        let elsewhere = client.transaction().run(read).await.expect("no error");
        assert_eq!(elsewhere, Outcome::Done(Some(2)));
        let nowhere = client.transaction().at("mars").run(read).await.expect("no error");
        assert!(matches!(nowhere.refusal(), Some(Reason::UnknownRegion { .. })));
        let nowhere = |txn: Txn| async move { txn.get::<i64>(&key("mars:x")).await };
        let outcome = client.transact(nowhere).await.expect("no error");
        assert!(matches!(outcome.refusal(), Some(Reason::UnknownRegion { .. })));
    });
}

/// The site takes the read, and says nothing, while its connection stands.
#[test]
fn site_that_is_silent_at_a_read_is_replaced_in_the_next_run() {
    run(async {
        let cluster = Cluster::start(&["us", "eu"], 1);
        cluster.site("eu").put(ObjectKey::new(0, "x"), json("2"));
        let client = at_us(&cluster).await;
        cluster.site("us").set_fault(Fault::MuteBeforeReading);
        let read = |txn: Txn| async move { txn.get::<i64>(&key("us:x")).await };
        let (transaction, began) = (client.transaction().deadline(Duration::from_secs(8)), Instant::now());
        let outcome = transaction.run_and_tell(read).await.expect("no error");
        let Outcome::Done(committed) = outcome else { panic!("{outcome:?}") };
        assert_eq!((committed.value, committed.runs), (Some(2), 2));
        assert!(began.elapsed() < Duration::from_secs(7), "half of the time is left for another site");
    });
}

#[test]
fn answer_to_a_commit_that_is_lost_is_fetched_or_unknown_but_never_a_second_commit() {
    run(async {
        let cluster = Cluster::start(&["us", "eu"], 1);
        let options = Options { deadline: Duration::from_secs(5), region: Some("us".into()), ..Options::default() };
        let client = Client::connect_with(cluster.addresses(), options).await.expect("connected");
        let site = cluster.site("us");
        let add = |txn: Txn| async move { txn.add(&key("us:n"), 1) };
        for fault in [Fault::BreakAfterExecuting, Fault::BreakBeforeExecuting] {
            site.set_fault(fault);
            assert_eq!(client.transact(add).await, Ok(Outcome::Done(())), "{fault:?}");
        }
        assert_eq!(site.object(&ObjectKey::new(0, "n")), Some(Value::Counter(2)));
        site.set_fault(Fault::MuteAfterExecuting);
        let outcome = client.transaction().deadline(SHORT).run(add).await.expect("no error");
        let Outcome::Unknown(unknown) = outcome else { panic!("{outcome:?}") };
        assert_eq!(unknown.why, UnknownReason::DeadlinePassed);
        let settled = client.outcome_of(unknown.operation).await;
        assert_eq!(settled, Outcome::Done(Effect::Committed { phases: 1 }));
        assert_eq!(site.object(&ObjectKey::new(0, "n")), Some(Value::Counter(3)));
        assert_eq!(cluster.site("eu").transactions().len(), 0);
    });
}

#[test]
fn program_that_does_not_end_and_bad_values_are_refused_without_asking() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let endless = |txn: Txn| async move {
            txn.put(&key("us:x"), &1)?;
            std::future::pending::<()>().await;
            Ok::<_, TxnError>(())
        };
        let outcome = client.transaction().deadline(SHORT).run(endless).await.expect("no error");
        let cause = |outcome: &Outcome<()>| match outcome.refusal() {
            Some(Reason::Aborted(aborted)) => Some(aborted.cause),
            _ => None,
        };
        assert_eq!(cause(&outcome), Some(Cause::DeadlinePassed));
        let large = |txn: Txn| async move { txn.put_bytes(&key("us:x"), vec![0; 300_000]) };
        assert_eq!(cause(&client.transact(large).await.expect("no error")), Some(Cause::TooLarge));
        let unnamed = |txn: Txn| async move { txn.put(&key("us:"), &1) };
        assert_eq!(cause(&client.transact(unnamed).await.expect("no error")), Some(Cause::InvalidKey));
        let clash = |txn: Txn| async move {
            txn.put(&key("us:x"), &1)?;
            txn.add(&key("us:x"), 1)
        };
        assert!(matches!(client.transact(clash).await, Err(TxnError::Unexpected { .. })));
        assert_eq!(cluster.site("us").transactions().len(), 0);
        let mut escaped = None;
        let leak = |txn: Txn| {
            escaped = Some(txn);
            async move { Ok::<_, TxnError>(()) }
        };
        client.transact(leak).await.expect("no error").done().expect("nothing to do");
        let escaped = escaped.expect("it ran");
        assert_eq!(escaped.put(&key("us:x"), &1), Err(TxnError::Over));
        assert_eq!(escaped.value(&key("us:x")).await, Err(TxnError::Over));
        assert!(client.accept_loss("us").await.is_done());
    });
}

#[test]
fn concurrent_transactions_of_one_client_do_not_lose_updates() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let tasks = (0..8).map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    let increment = |txn: Txn| async move {
                        let x: i64 = txn.get(&key("us:x")).await?.unwrap_or_default();
                        txn.put(&key("us:x"), &(x + 1))
                    };
                    client.transact(increment).await.expect("no error").done().expect("committed");
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
        assert_eq!(cluster.site("us").object(&ObjectKey::new(0, "x")), Some(json("40")));
    });
}
