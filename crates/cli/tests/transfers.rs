//! Transfers between accounts of three sites, while one site after the other is ended by `kill -9`.
//!
//! Every transfer keeps the sum of all accounts and counts itself. At each site there are movers, and a reader that adds all
//! accounts up. What is checked: no reader ever sees another sum; each transfer that was done took effect once, each that was
//! refused never, and each that was unknown is settled by asking; at the end the counter says the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slackline::{Client, Key, Options, Outcome, Txn, TxnError};
use tokio::time::{Instant, sleep};

use super::bank::{OPENING, PATIENCE, REGIONS, account, counted, open, settle, sum, transfer, transfers};
use super::process::{Server, three_configs};

/// Accounts in each region.
const ACCOUNTS: usize = 3;
/// Movers at each site.
const MOVERS: usize = 3;
/// Who is killed, in turn, and for how long it is away: longer than the shorter deadline of movers.
const VICTIMS: [&[usize]; 5] = [&[0], &[1], &[2], &[0, 1], &[1]];
const AWAY: Duration = Duration::from_millis(700);
const IMPATIENT: Duration = Duration::from_millis(400);
const PATIENT: Duration = Duration::from_secs(10);
/// So many more transfers at all sites show that it goes on.
const PROGRESS: u64 = 60;

fn numbered(number: usize) -> Key {
    account(number % 3, number / 3 % ACCOUNTS)
}

/// What happened so far.
#[derive(Default, Debug)]
struct Told {
    done: AtomicU64,
    refused: AtomicU64,
    unknown: AtomicU64,
    sums: AtomicU64,
    stop: AtomicBool,
}

impl Told {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Moves money until it is told to stop.
async fn run_mover(client: Client, told: Arc<Told>, site: usize, mover: usize) {
    let mut step = 7 * site + 3 * mover;
    while told.goes_on() {
        step += 1;
        let (from, to) = (numbered(step * 5 + mover), numbered(step * 7 + site + 1));
        let deadline = if step.is_multiple_of(3) { IMPATIENT } else { PATIENT };
        let program = |txn: Txn| transfer(txn, from.clone(), to.clone(), transfers(site));
        let transaction = client.transaction().at(REGIONS[site]).deadline(deadline);
        match transaction.run(program).await.expect("no error of its own") {
            Outcome::Done(()) => count(&told.done),
            Outcome::Refused(_) => count(&told.refused),
            Outcome::Unknown(unknown) => {
                count(&told.unknown);
                count(if settle(&client, &unknown).await { &told.done } else { &told.refused });
            }
        }
        // Gentle, so that all of them get on.
        sleep(Duration::from_millis(2)).await;
    }
}

/// Adds all accounts up until it is told to stop.
async fn run_reader(client: Client, told: Arc<Told>, site: usize) {
    while told.goes_on() {
        let reading = client.transaction().at(REGIONS[site]).deadline(Duration::from_secs(2)).run(sum).await;
        if let Outcome::Done(sum) = reading.expect("no error of its own") {
            assert_eq!(sum, 3 * ACCOUNTS as i64 * OPENING, "at {}", REGIONS[site]);
            count(&told.sums);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

async fn wait_for_progress(told: &Told) {
    let (goal, until) = (told.done.load(Ordering::Relaxed) + PROGRESS, Instant::now() + PATIENCE);
    while told.done.load(Ordering::Relaxed) < goal {
        assert!(Instant::now() < until, "it does not go on: {told:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn transfers_survive_the_death_of_sites() {
    let folder = tempfile::tempdir().expect("a directory");
    let configs = three_configs(folder.path());
    let addresses: Vec<String> = configs.iter().map(|(_, address)| address.clone()).collect();
    let serve = |site: usize| {
        let path = configs[site].0.clone();
        move || Server::start(&["serve", "--json", "--config", &path])
    };
    let mut servers: Vec<Option<Server>> = (0..3).map(|site| Some(serve(site)())).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let options = |site: usize| Options { region: Some(REGIONS[site].to_owned()), ..Options::default() };
        let first = Client::connect_with(&addresses, options(0)).await.expect("connected");
        open(&first, ACCOUNTS).await;
        let told = Arc::new(Told::default());
        let mut tasks = Vec::new();
        for site in 0..3 {
            let client = Client::connect_with(&addresses, options(site)).await.expect("connected");
            for mover in 0..MOVERS {
                tasks.push(tokio::spawn(run_mover(client.clone(), Arc::clone(&told), site, mover)));
            }
            tasks.push(tokio::spawn(run_reader(client, Arc::clone(&told), site)));
        }
        for victims in VICTIMS {
            wait_for_progress(&told).await;
            for victim in victims {
                servers[*victim].take().expect("it runs").kill();
            }
            sleep(AWAY).await;
            for victim in victims {
                let server = tokio::task::spawn_blocking(serve(*victim)).await;
                servers[*victim] = Some(server.expect("it starts again"));
            }
        }
        wait_for_progress(&told).await;
        told.stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("no panic");
        }
        let all = |txn: Txn| async move { Ok::<_, TxnError>((sum(txn.clone()).await?, counted(txn).await?)) };
        let (sum, done) = first.transact(all).await.expect("no error of its own").done().expect("all are up");
        assert_eq!(sum, 3 * ACCOUNTS as i64 * OPENING);
        assert_eq!(u64::try_from(done).expect("none was undone"), told.done.load(Ordering::Relaxed), "{told:?}");
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let disturbed = count(&told.unknown) + count(&told.refused);
        assert!(disturbed > 0 && count(&told.sums) > 0, "hardly tested: {told:?}");
    });
}
