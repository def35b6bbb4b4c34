//! A site crashes in the middle of a two-phase commit: at every step of it, as coordinator or as participant, and is started
//! again or left down. Needs the binary with its crash points (feature `crash-points`).
//!
//! In each case a real cluster of three processes makes transfers until one of them comes to its crash point. Then:
//!
//! - **Left down**: those who are left decide whatever does not need the dead participant. Their accounts can be read and
//!   written again, the coordinator (if it lives) can say what became of each transfer, and new transfers are made.
//! - **Started again**, at once or after that: every transfer was done or refused, each account holds what follows from those
//!   that were done, the sum of all is what it was, each transfer counted itself once, and nothing stays under way anywhere.
//!
//! Steps of those who are in doubt come about by a crash before: the coordinator's, when both participants have prepared and
//! nobody knows that both have. Then whoever was started last asks first.

mod bank;
#[expect(dead_code, reason = "the other test binary uses the rest")]
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bank::{OPENING, PATIENCE, REGIONS, account, counted, open, settle, sum, transfer, transfers};
use process::{Server, slackline_with, three_configs};
use slackline::{Client, Options, Outcome, Txn, TxnError, Unknown};
use slackline_bench::live::metric;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const US: usize = 0;
const EU: usize = 1;
const AP: usize = 2;
/// Who coordinates, and so crashes as a coordinator; and who crashes as a participant.
const COORDINATOR: usize = US;
const VICTIM: usize = AP;

/// So many clusters are at work at the same time: most of a case is waiting.
const LANES: usize = 6;
/// How long a transfer may take; until then nobody asks what became of it who was not started again. In doubt it is for those
/// who were to ask first, so there it is longer.
const DEADLINE: Duration = Duration::from_millis(1500);
const LONG_DEADLINE: Duration = Duration::from_secs(6);
/// One that was to ask first may be told before it can: the others ask too if links come up slowly. Then it is tried again, so
/// often.
const ATTEMPTS: usize = 5;
const SOON: Duration = Duration::from_millis(10);

/// When both participants have prepared, and their coordinator alone knows.
const BEGINNING_OF_DOUBT: &str = "coordinator-decision-gathered";

/// How a point is come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// By a transfer.
    Transfer,
    /// By one that is started again while it is in doubt, and asks.
    Asking,
    /// By one that is asked, by another that is in doubt.
    Asked,
}
use Way::{Asked, Asking, Transfer as ByTransfer};

/// Every point, how it is come to, and whether the others can decide while the crashed site is down. Those cannot who do not
/// know whether the dead participant has prepared.
const POINTS: [(&str, Way, bool); 33] = [
    ("coordinator-record-gathered", ByTransfer, true),
    ("coordinator-record-durable", ByTransfer, true),
    ("coordinator-prepare-left", ByTransfer, true),
    ("coordinator-vote-arrived", ByTransfer, true),
    ("coordinator-vote-arrived:2", ByTransfer, true),
    ("coordinator-decision-gathered", ByTransfer, true),
    ("coordinator-decision-durable", ByTransfer, true),
    ("coordinator-answer-left", ByTransfer, true),
    ("coordinator-decide-left", ByTransfer, true),
    ("coordinator-decided-arrived", ByTransfer, true),
    ("coordinator-forget-gathered", ByTransfer, true),
    ("coordinator-forget-durable", ByTransfer, true),
    ("coordinator-forget-left", ByTransfer, true),
    ("coordinator-inquire-durable", Asking, true),
    ("coordinator-inquire-left", Asking, true),
    ("coordinator-inquired-arrived", Asking, true),
    ("participant-vote-gathered", ByTransfer, false),
    ("participant-vote-durable", ByTransfer, false),
    ("participant-vote-left", ByTransfer, true),
    ("participant-decide-arrived", ByTransfer, true),
    ("participant-decided-gathered", ByTransfer, true),
    ("participant-decided-durable", ByTransfer, true),
    ("participant-decided-left", ByTransfer, true),
    ("participant-forget-arrived", ByTransfer, true),
    ("participant-inquire-durable", Asking, false),
    ("participant-inquire-left", Asking, false),
    ("participant-answer-arrived", Asking, false),
    ("participant-recovery-gathered", Asking, false),
    ("participant-recovery-durable", Asking, false),
    ("participant-recovery-left", Asking, false),
    ("participant-inquired-gathered", Asked, false),
    ("participant-inquired-durable", Asked, false),
    ("participant-inquired-left", Asked, false),
];

#[derive(Clone, Copy, Debug)]
struct Case {
    point: &'static str,
    way: Way,
    is_decided_without: bool,
    is_left_down: bool,
}

impl Case {
    fn victim(self) -> usize {
        if self.point.starts_with("coordinator") { COORDINATOR } else { VICTIM }
    }

    /// What is transferred at the same time until the site crashes. Where a participant is left down it must be known which
    /// transfer it has crashed at; there its coordinator takes part too, so that the others are two.
    fn transfers(self) -> &'static [Transfer] {
        match (self.victim(), self.is_left_down) {
            (COORDINATOR, _) => &[APART, TOGETHER],
            (_, false) => &[APART],
            (_, true) => &[TOGETHER],
        }
    }
}

/// A transfer between two sites' accounts of this number; it is counted at one of them.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    at: usize,
    from: usize,
    to: usize,
    number: usize,
}

/// The coordinator takes no part, takes part.
const APART: Transfer = Transfer { at: COORDINATOR, from: EU, to: AP, number: 0 };
const TOGETHER: Transfer = Transfer { at: COORDINATOR, from: US, to: AP, number: 1 };
/// Accounts that no transfer of those touches.
const SPARE: usize = 2;
const ACCOUNTS: usize = 3;
/// Where the transfers between the coordinator and the victim are counted, so that three sites take part.
const COUNTED_AT: usize = EU;

/// One cluster, its client, and what should be in its accounts.
struct Lane {
    configs: Vec<(String, String)>,
    servers: [Option<Server>; 3],
    client: Client,
    under_way: Vec<JoinHandle<(Transfer, Outcome<()>)>>,
    unknown: Vec<(Transfer, Unknown)>,
    balances: BTreeMap<(usize, usize), i64>,
    done: i64,
    _folder: TempDir,
}

impl Lane {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let configs = three_configs(folder.path());
        let addresses: Vec<String> = configs.iter().map(|(_, address)| address.clone()).collect();
        let serve = |site: usize| Some(Server::start(&["serve", "--json", "--config", &configs[site].0]));
        let servers = [serve(US), serve(EU), serve(AP)];
        let options = Options { deadline: DEADLINE, ..Options::default() };
        let client = Client::connect_with(&addresses, options).await.expect("connected");
        open(&client, ACCOUNTS).await;
        let numbers = |site: usize| (0..ACCOUNTS).map(move |number| ((site, number), OPENING));
        let balances = (0..REGIONS.len()).flat_map(numbers).collect();
        let (under_way, unknown) = (Vec::new(), Vec::new());
        let lane = Self { configs, servers, client, under_way, unknown, balances, done: 0, _folder: folder };
        lane.comes_to_rest().await;
        lane
    }

    async fn run(&mut self, case: Case) {
        match case.way {
            ByTransfer => {
                self.start_again(case.victim(), Some(case.point)).await;
                self.transfer_until_crash(&[case.victim()], case.transfers(), DEADLINE).await;
            }
            Asking | Asked => self.crash_in_doubt(case).await,
        }
        if case.is_left_down {
            self.goes_on_without(case).await;
        }
        // Whoever crashed here is started first, unless it was to be left down.
        let is_down = |site: &usize| self.servers[*site].is_none();
        let mut down: Vec<usize> = [US, EU, AP].into_iter().filter(is_down).collect();
        if down.len() > 1 && !case.is_left_down {
            down.reverse();
        }
        for (position, site) in down.iter().enumerate() {
            self.start_again(*site, None).await;
            if position + 1 < down.len() && !case.is_left_down {
                // All participants are up: they need no coordinator.
                self.can_be_used(&[EU, AP], 0..ACCOUNTS).await;
            }
        }
        self.is_whole().await;
    }

    /// Lets a site crash that asks, or is asked, what became of a transfer.
    async fn crash_in_doubt(&mut self, case: Case) {
        for _ in 0..ATTEMPTS {
            if case.way == Asked {
                self.start_again(case.victim(), Some(case.point)).await;
            }
            self.start_again(COORDINATOR, Some(BEGINNING_OF_DOUBT)).await;
            self.transfer_until_crash(&[COORDINATOR, case.victim()], &[APART], LONG_DEADLINE).await;
            if case.victim() != COORDINATOR && self.note_crash(case.victim()) {
                return;
            }
            // One that is started has not heard of the coordinator, and asks at once.
            match case.way {
                Asked => self.start_again(EU, None).await,
                _ => self.start_again(case.victim(), Some(case.point)).await,
            }
            let until = Instant::now() + PATIENCE;
            loop {
                let is_over = self.is_nothing_under_way();
                if self.note_crash(case.victim()) {
                    return;
                }
                if is_over {
                    break;
                }
                assert!(Instant::now() < until, "neither crashed nor over");
                sleep(SOON).await;
            }
            for site in [US, EU, AP] {
                self.start_again(site, None).await;
            }
            self.is_whole().await;
        }
        panic!("the point is not come to in {ATTEMPTS} attempts");
    }

    /// Ends a site, if it runs, and starts it.
    async fn start_again(&mut self, site: usize, point: Option<&str>) {
        if let Some(server) = self.servers[site].take() {
            server.kill();
        }
        let (path, point) = (self.configs[site].0.clone(), point.map(str::to_owned));
        let start = move || {
            let words = ["serve", "--json", "--config", &path];
            match point {
                Some(point) => Server::start_to_crash(&words, &point),
                None => Server::start(&words),
            }
        };
        self.servers[site] = Some(tokio::task::spawn_blocking(start).await.expect("it starts"));
    }

    /// Notes that a site has ended at its crash point; true if it has, then or before.
    fn note_crash(&mut self, site: usize) -> bool {
        let Some(server) = &mut self.servers[site] else { return true };
        let Some(status) = server.has_ended() else { return false };
        assert_eq!(status.signal(), Some(6), "{} ended otherwise: {status}", REGIONS[site]);
        self.servers[site] = None;
        true
    }

    /// Makes these transfers, again and again, until one of these sites crashes. What was begun is over everywhere before it
    /// begins again: otherwise a participant might die before it has heard of the next transfer, which had to wait for it.
    async fn transfer_until_crash(&mut self, sites: &[usize], transfers: &[Transfer], deadline: Duration) {
        let until = Instant::now() + PATIENCE;
        loop {
            for transfer in transfers {
                self.begin(*transfer, deadline);
            }
            loop {
                let is_over = self.under_way.iter().all(JoinHandle::is_finished) && self.is_nothing_under_way();
                if sites.iter().any(|site| self.note_crash(*site)) {
                    return;
                }
                if is_over {
                    break;
                }
                assert!(Instant::now() < until, "{sites:?} do not come to their crash points");
                sleep(SOON).await;
            }
            self.note_ended().await;
        }
    }

    fn begin(&mut self, it: Transfer, deadline: Duration) {
        let transaction = self.client.transaction().at(REGIONS[it.at]).deadline(deadline);
        let (from, to) = (account(it.from, it.number), account(it.to, it.number));
        let program = move |txn: Txn| transfer(txn, from.clone(), to.clone(), transfers(it.counted_at()));
        let run = async move { (it, transaction.run(program).await.expect("no error of its own")) };
        self.under_way.push(tokio::spawn(run));
    }

    /// Waits for what is under way, and notes how it ended.
    async fn note_ended(&mut self) {
        for task in std::mem::take(&mut self.under_way) {
            match task.await.expect("no panic") {
                (transfer, Outcome::Done(())) => self.note_done(transfer),
                (_, Outcome::Refused(_)) => {}
                (transfer, Outcome::Unknown(unknown)) => self.unknown.push((transfer, unknown)),
            }
        }
    }

    fn note_done(&mut self, transfer: Transfer) {
        let Transfer { from, to, number, .. } = transfer;
        *self.balances.get_mut(&(from, number)).expect("an account") -= 1;
        *self.balances.get_mut(&(to, number)).expect("an account") += 1;
        self.done += 1;
    }

    /// Settles what is unknown. The coordinator of it is up.
    async fn settle(&mut self) {
        self.note_ended().await;
        for (transfer, unknown) in std::mem::take(&mut self.unknown) {
            if settle(&self.client, &unknown).await {
                self.note_done(transfer);
            }
        }
    }

    /// Those who are up decide what they can, and go on.
    async fn goes_on_without(&mut self, case: Case) {
        let up: Vec<usize> = [US, EU, AP].into_iter().filter(|site| self.servers[*site].is_some()).collect();
        if case.is_decided_without {
            self.can_be_used(&up, 0..ACCOUNTS).await;
            if up.contains(&COORDINATOR) {
                self.settle().await;
            }
        }
        self.can_be_used(&up, SPARE..ACCOUNTS).await;
        let (Some(first), Some(last)) = (up.first(), up.last()) else { return };
        let before = self.done;
        let until = Instant::now() + PATIENCE;
        let mut crashed = std::mem::take(&mut self.under_way);
        while self.done == before {
            assert!(Instant::now() < until, "no transfer between those who are left");
            self.begin(Transfer { at: *first, from: *first, to: *last, number: SPARE }, DEADLINE);
            self.note_ended().await;
        }
        self.under_way.append(&mut crashed);
    }

    /// The accounts of these sites with these numbers, and the counters, can be read and written: no transaction holds them.
    async fn can_be_used(&self, sites: &[usize], numbers: std::ops::Range<usize>) {
        for site in sites {
            let is_with_counter = numbers.start == 0;
            let program = |txn: Txn| {
                let numbers = numbers.clone();
                async move {
                    for number in numbers {
                        let key = account(*site, number);
                        let balance: Option<i64> = txn.get(&key).await?;
                        txn.put(&key, &balance.expect("it was opened"))?;
                    }
                    if is_with_counter {
                        txn.count(&transfers(*site)).await?;
                        txn.add(&transfers(*site), 0)?;
                    }
                    Ok::<_, TxnError>(())
                }
            };
            let until = Instant::now() + PATIENCE;
            loop {
                let transaction = self.client.transaction().at(REGIONS[*site]).deadline(DEADLINE);
                let outcome = transaction.run(program).await.expect("no error of its own");
                if outcome.is_done() {
                    break;
                }
                assert!(Instant::now() < until, "held at {}: {outcome:?}", REGIONS[*site]);
                sleep(SOON).await;
            }
        }
    }

    /// All are up: every transfer was done or not, the books say the same, and nothing stays under way.
    async fn is_whole(&mut self) {
        self.settle().await;
        self.can_be_used(&[US, EU, AP], 0..ACCOUNTS).await;
        let keys: Vec<(usize, usize)> = self.balances.keys().copied().collect();
        let program = |txn: Txn| {
            let keys = keys.clone();
            async move {
                let mut found = BTreeMap::new();
                for (site, number) in keys {
                    found.insert((site, number), txn.get(&account(site, number)).await?.unwrap_or(0));
                }
                Ok::<_, TxnError>((found, sum(txn.clone()).await?, counted(txn).await?))
            }
        };
        let until = Instant::now() + PATIENCE;
        let found = loop {
            // At the coordinator, whose copies are up to date then: the next transfer is not refused because of an old one.
            let transaction = self.client.transaction().at(REGIONS[COORDINATOR]);
            match transaction.run(program).await.expect("no error of its own") {
                Outcome::Done(found) => break found,
                outcome => assert!(Instant::now() < until, "all are up, and it cannot be read: {outcome:?}"),
            }
        };
        let opened = (REGIONS.len() * ACCOUNTS) as i64 * OPENING;
        assert_eq!(found, (self.balances.clone(), opened, self.done));
        self.comes_to_rest().await;
    }

    async fn comes_to_rest(&self) {
        let until = Instant::now() + PATIENCE;
        while !self.is_nothing_under_way() {
            assert!(Instant::now() < until, "transactions stay under way");
            sleep(SOON).await;
        }
    }

    /// Whether all answer that no transaction is under way. One that is just crashing does not answer, and may not yet have
    /// ended either: nothing is over then.
    fn is_nothing_under_way(&self) -> bool {
        let under_way = self.metrics("slackline_transactions_under_way");
        under_way.len() == self.servers.iter().flatten().count() && under_way.iter().all(|one| *one == 0.0)
    }

    fn metrics(&self, name: &str) -> Vec<f64> {
        let ask = |server: &Server| metric(server.said["http"].as_str()?.parse().ok()?, name).ok();
        self.servers.iter().flatten().filter_map(ask).collect()
    }
}

impl Transfer {
    fn counted_at(self) -> usize {
        if self.number == SPARE { self.from } else { COUNTED_AT }
    }
}

#[test]
fn site_that_crashes_at_any_step_of_a_commit_leaves_nobody_in_doubt() {
    let cases = POINTS.iter().flat_map(|(point, way, is_decided_without)| {
        let (way, is_decided_without) = (*way, *is_decided_without);
        [false, true].map(|is_left_down| Case { point, way, is_decided_without, is_left_down })
    });
    let cases: Vec<Case> = cases.collect();
    let (next, doubts) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = &|lane: usize| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut cluster = Lane::start().await;
            while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                let start = Instant::now();
                println!("lane {lane}: {case:?}");
                cluster.run(*case).await;
                let resolved = cluster.metrics("slackline_doubts_resolved_total").iter().sum::<f64>() as u64;
                println!("lane {lane}: {:.1} s, {resolved} doubts resolved", start.elapsed().as_secs_f64());
                doubts.fetch_add(resolved, Ordering::Relaxed);
            }
        });
    };
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let thread = std::thread::Builder::new().name(format!("lane {lane}"));
            thread.spawn_scoped(scope, move || work(lane)).expect("a thread");
        }
    });
    let doubts = doubts.into_inner();
    assert!(doubts > 0, "hardly tested");
}

#[test]
fn wrong_crash_point_is_refused_with_all_that_there_are() {
    let folder = tempfile::tempdir().expect("a directory");
    let configs = three_configs(folder.path());
    let ended = slackline_with("SLACKLINE_CRASH_AT", "nowhere", &["serve", "--config", &configs[0].0]);
    assert_eq!((ended.status, ended.stderr.lines().count()), (2, 1), "{ended:?}");
    let (before, listed) = ended.stderr.split_once("there are ").expect("a list");
    assert!(before.contains("SLACKLINE_CRASH_AT") && before.contains("\"nowhere\""), "{before}");
    let listed: BTreeSet<&str> = listed.trim_end().split(", ").collect();
    let tested = POINTS.iter().filter_map(|(point, ..)| point.split(':').next());
    assert_eq!(listed, tested.collect(), "each has its case");
    for point in ["participant-vote-left:0", "participant-vote-left:", "participant-vote-left:1:1"] {
        let ended = slackline_with("SLACKLINE_CRASH_AT", point, &["serve", "--config", &configs[0].0]);
        assert_eq!((ended.status, ended.stderr.lines().count()), (2, 1), "{ended:?}");
        assert!(ended.stderr.contains("number from 1"), "{ended:?}");
    }
}
