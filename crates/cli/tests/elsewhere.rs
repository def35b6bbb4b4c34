//! One of five sites dies, or freezes, under its callers: they go on at another site, and the books are right afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use slackline::{Client, DEFAULT_PATIENCE, Options, Outcome, Reason};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::process::{Server, configs};

const REGIONS: [&str; 5] = ["us", "eu", "ap", "sa", "oc"];
/// Callers of each region's client.
const CALLERS: usize = 8;
const NAME: &str = "seats";
const LIMIT: i64 = 1000;
/// How long a caller's grant lasts if it is not given back.
const HOLD: Duration = Duration::from_secs(5);
/// The deadline of every call. A caller that goes on after a small part of it has not waited for a site that is away.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Callers that acquire and release all the time.
struct Callers {
    stop: Arc<AtomicBool>,
    /// For each caller how many grants it has had and has tried to give back.
    rounds: Vec<Arc<AtomicU64>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Callers {
    fn start(clients: &[Client]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut rounds, mut tasks) = (Vec::new(), Vec::new());
        for client in clients {
            for caller in 0..CALLERS {
                let count = Arc::new(AtomicU64::new(0));
                let habit = [Habit::Held, Habit::Tracked, Habit::Held, Habit::Counted][caller % 4];
                tasks.push(tokio::spawn(call(client.clone(), habit, count.clone(), stop.clone())));
                rounds.push(count);
            }
        }
        Self { stop, rounds, tasks }
    }

    /// Waits until each caller of every region has been through two more rounds. Returns how long that took.
    async fn go_on(&self) -> Duration {
        let since = Instant::now();
        let rounds = || self.rounds.iter().map(|count| count.load(Ordering::Relaxed));
        let before: Vec<u64> = rounds().collect();
        while !rounds().zip(&before).all(|(now, before)| now >= before + 2) {
            assert!(!self.tasks.iter().any(JoinHandle::is_finished), "a caller has panicked");
            assert!(since.elapsed() < PATIENCE, "from {before:?} to {:?}", rounds().collect::<Vec<_>>());
            sleep(Duration::from_millis(5)).await;
        }
        since.elapsed()
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("no caller panics");
        }
    }
}

/// How a caller acquires; it gives back what it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    /// For a time, as most do.
    Held,
    /// Without an end, released by its id.
    Tracked,
    /// Released by amount.
    Counted,
}

/// One caller: acquires for a while, releases, and again.
async fn call(client: Client, habit: Habit, rounds: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    let seats = client.quota(NAME);
    while !stop.load(Ordering::Relaxed) {
        let call = match habit {
            Habit::Held => seats.acquire(1).hold_for(HOLD),
            Habit::Tracked => seats.acquire(1).tracked().patience(DEFAULT_PATIENCE),
            Habit::Counted => seats.acquire(1).patience(DEFAULT_PATIENCE),
        };
        match call.await {
            Outcome::Done(grant) => {
                sleep(Duration::from_millis(2)).await;
                let release = match habit {
                    Habit::Held => grant.release(),
                    Habit::Tracked | Habit::Counted => grant.release().patience(DEFAULT_PATIENCE),
                };
                match release.await {
                    Outcome::Done(1) => {}
                    outcome if outcome.is_handed_over() => {}
                    // Its time was up.
                    Outcome::Refused(refused) if habit == Habit::Held && refused.reason == Reason::UnknownGrant => {}
                    other => panic!("not given back: {habit:?}: {other:?}"),
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            Outcome::Refused(refused) if matches!(refused.reason, Reason::NotReady | Reason::Exhausted { .. }) => {}
            other => panic!("not granted: {habit:?}: {other:?}"),
        }
    }
}

/// Waits until nothing is in use, as far as all sites know.
async fn nothing_is_in_use(client: &Client) {
    let until = Instant::now() + PATIENCE;
    loop {
        let shown = client.quota(NAME).show().await;
        if let Ok(shown) = &shown
            && shown.in_use.exact() == Some(0)
        {
            return assert_eq!(shown.released_above, 0, "given back twice: {shown:?}");
        }
        assert!(Instant::now() < until, "tokens are missing: {shown:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until a client uses its own region's site again.
async fn is_back_home(client: &Client, region: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let grant = client.quota(NAME).acquire(1).await.done().expect("granted");
        let site = grant.site();
        grant.release().await.done().expect("released");
        if site == region {
            return;
        }
        assert!(Instant::now() < until, "still at {site}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Five sites with their callers; the first site is away for a while. Then every token is back, once.
fn a_site_is_away(leave: impl Fn(&mut Option<Server>), come_back: impl Fn(&mut Option<Server>, &str)) {
    let folder = tempfile::tempdir().expect("a directory");
    let configs = configs(folder.path(), &REGIONS);
    let addresses: Vec<String> = configs.iter().map(|(_, address)| address.clone()).collect();
    // Dropped, a server is killed: none is left behind if this test fails.
    let mut servers: Vec<Option<Server>> = configs.iter().map(|(path, _)| Some(serve(path))).collect();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut clients = Vec::new();
        for region in REGIONS {
            let region = Some(region.to_owned());
            let options = Options { deadline: DEADLINE, connect: PATIENCE, region, ..Options::default() };
            clients.push(Client::connect_with(&addresses, options).await.expect("the cluster answers"));
        }
        while !clients[0].quota(NAME).create(LIMIT).await.is_done() {
            sleep(Duration::from_millis(50)).await;
        }
        let callers = Callers::start(&clients);
        // Its callers are at the site that goes away, and not at another one because it was not ready at first.
        is_back_home(&clients[0], REGIONS[0]).await;
        callers.go_on().await;

        leave(&mut servers[0]);
        let took = callers.go_on().await;
        println!("the callers went on after {took:?}");
        assert!(took < DEADLINE / 4, "they waited for the site that is away: {took:?}");
        callers.go_on().await;

        come_back(&mut servers[0], &configs[0].0);
        callers.go_on().await;
        is_back_home(&clients[0], REGIONS[0]).await;
        callers.end().await;
        nothing_is_in_use(&clients[1]).await;
        let since = Instant::now();
        while clients.iter().any(|client| !client.left().is_empty()) {
            assert!(since.elapsed() < PATIENCE, "not settled: {:?}", clients[0].left());
            sleep(Duration::from_millis(20)).await;
        }
        for client in clients {
            assert_eq!(client.close().await, []);
        }
    });
}

fn serve(config: &str) -> Server {
    Server::start(&["serve", "--json", "--config", config])
}

#[test]
fn site_killed_under_its_callers_they_go_on_and_the_books_are_right() {
    a_site_is_away(
        |server| server.take().expect("it runs").kill(),
        |server, config| *server = Some(tokio::task::block_in_place(|| serve(config))),
    );
}

#[test]
fn site_frozen_under_its_callers_they_go_on_and_the_books_are_right() {
    a_site_is_away(
        |server| server.as_ref().expect("it runs").freeze(),
        |server, _| server.as_ref().expect("it runs").thaw(),
    );
}
