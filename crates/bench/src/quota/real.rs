//! A trace played to real sites: real storage and gRPC over loopback, with the distances put in by the links.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use slackline::{Grant, Outcome, Quota};
use slackline_core::clock::Now;
use slackline_core::config::Warranties;
use slackline_core::node::{Config, Node};
use slackline_storage::{Embedded, Identity, Store};
use tokio::task::JoinSet;

use super::books::{Books, Drawn};
use super::prepare::{NAME, Prepared, QuotaError, TIMEOUT, config_name};
use crate::cluster::{self, Cluster};
use crate::live::{LiveError, runtime};
use crate::report::Run;
use crate::rtt::Matrix;
use crate::trace::{Event, Kind};

/// The time that sites may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(60);

/// Plays events to real sites in real time, stops them, and checks the books on their disks.
pub(super) fn play(
    prepared: &Prepared,
    matrix: &Matrix,
    directory: &Path,
    redistribute: bool,
) -> Result<(Run, Drawn), QuotaError> {
    if matrix.sites() > matrix.table.regions().len() {
        let known = matrix.table.regions().len();
        return Err(QuotaError::Option(format!("the RTT table has {known} regions: use --sites {known} or fewer")));
    }
    let terms = cluster::Terms {
        regions: matrix.regions.clone(),
        rtt: matrix.table.clone(),
        redistribute,
        warranties: Warranties::default(),
    };
    let cluster = Cluster::start(directory, terms)?;
    let (mut books, seconds, shown) = runtime()?.block_on(drive(prepared, &cluster))?;

    // What sites count is gone when they stop.
    let sent = cluster.total("slackline_messages_sent_total")?;
    let syncs = cluster.total("slackline_sync_seconds_count")?;
    books.local = local_acquires(&cluster)?;

    let scratch = cluster.drain()?;
    let name = config_name(redistribute);
    let wrong = |what| QuotaError::Books { config: name.into(), what };
    audit_disks(&books, matrix, &Cluster::data(&scratch), prepared.limit).map_err(wrong)?;

    let mut run = books.run(name, prepared, seconds);
    (run.rebalances, run.gifts, run.wan_messages) = (shown.rebalances, shown.gifts, Some(sent as u64));
    let run = run.with("syncs", syncs as u64).with("file_system", scratch.file_system.clone());
    Ok((run, books.drawn()))
}

/// The state that the clients of all sites share.
struct Shared {
    /// The outcomes that they were told.
    books: Mutex<Books>,
    /// Jobs that have begun, by their number in the trace.
    jobs: Mutex<BTreeMap<u32, Job>>,
}

/// A job whose acquire was sent, or that ended.
enum Job {
    /// Its acquire has no answer yet.
    Asked,
    /// It has its tokens.
    Granted(Grant),
    /// It ended before its acquire was answered.
    Ended,
    /// It was refused, or has given its tokens back.
    Over,
}

/// Plays the events, waits until every hold has ended, and counts.
async fn drive(prepared: &Prepared, cluster: &Cluster) -> Result<(Books, f64, slackline::Shown), QuotaError> {
    let clients = cluster.clients().await?;
    let regions = cluster.regions().iter();
    let quotas: Vec<Quota> = clients.iter().zip(regions).map(|(client, at)| client.quota(NAME).at(at)).collect();
    quotas[0].create(prepared.limit).await.done().map_err(LiveError::failed)?;
    // Every site hears of the quota.
    tokio::time::sleep(Duration::from_secs(2)).await;

    let books = Books::new(&prepared.trace, quotas.len());
    let shared = Arc::new(Shared { books: Mutex::new(books), jobs: Mutex::new(BTreeMap::new()) });
    let began = Instant::now();
    let mut calls = JoinSet::new();
    let mut held_until = began;
    for &event in &prepared.trace.events {
        tokio::time::sleep_until((began + Duration::from_micros(event.at)).into()).await;
        let site = event.site.expect("every event has its place");
        if let Kind::Hold { micros, .. } = event.kind {
            held_until = Instant::now() + Duration::from_micros(micros + TIMEOUT);
        }

        // A call is a task of its own: the next event happens in its time, whether this one is answered or not.
        calls.spawn(one(Arc::clone(&shared), quotas[site].clone(), site, event));
        while calls.try_join_next().is_some() {}
    }
    while calls.join_next().await.is_some() {}
    let seconds = began.elapsed().as_secs_f64();

    // Holds end a little after their time, and gifts need to arrive.
    tokio::time::sleep_until((held_until.max(Instant::now()) + Duration::from_secs(2)).into()).await;
    let shared = Arc::into_inner(shared).expect("every call has ended");
    let books = shared.books.into_inner().expect("no call panicked");
    let shown = count(&quotas[0], &books).await?;
    Ok((books, seconds, shown))
}

/// One event, from when it happens to its answer.
async fn one(shared: Arc<Shared>, quota: Quota, site: usize, event: Event) {
    let sent = Instant::now();
    let deadline = Duration::from_micros(TIMEOUT);
    let outcome = match event.kind {
        Kind::Acquire { amount } => quota.acquire(amount).deadline(deadline).await,
        Kind::Hold { amount, micros } => {
            quota.acquire(amount).hold_for(Duration::from_micros(micros)).deadline(deadline).await
        }
        Kind::Begin { amount, job } => {
            shared.jobs().insert(job, Job::Asked);
            quota.acquire(amount).tracked().deadline(deadline).await
        }
        Kind::Release { amount } => {
            if !shared.books().give_back(event.at, amount) {
                return;
            }
            return shared.note_release(site, event, sent, quota.release(amount).deadline(deadline).await);
        }
        Kind::End { job } => {
            // A job without an answer gives its tokens back when it is granted.
            let ended = match shared.jobs().get_mut(&job) {
                Some(state @ Job::Asked) => std::mem::replace(state, Job::Ended),
                Some(state) => std::mem::replace(state, Job::Over),
                None => Job::Over,
            };
            let Job::Granted(grant) = ended else { return };
            return shared.note_release(site, event, sent, grant.release().await);
        }
    };

    shared.note_acquire(site, event, sent, &outcome);
    let Kind::Begin { job, .. } = event.kind else { return };
    let granted = match outcome {
        Outcome::Done(grant) => Job::Granted(grant),
        _ => Job::Over,
    };

    // If the job ended in the meantime, nobody else gives its tokens back.
    let before = shared.jobs().insert(job, granted);
    if let Some(Job::Ended) = before {
        let granted = shared.jobs().insert(job, Job::Over);
        if let Some(Job::Granted(grant)) = granted {
            shared.note_release(site, event, Instant::now(), grant.release().await);
        }
    }
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no call panicked")
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<u32, Job>> {
        self.jobs.lock().expect("no call panicked")
    }

    /// Notes how an acquire ended.
    fn note_acquire(&self, site: usize, event: Event, sent: Instant, outcome: &Outcome<Grant>) {
        let mut books = self.books();
        books.latencies.note(sent.elapsed().as_nanos() as u64);
        match outcome {
            Outcome::Done(_) => books.note_granted(site, event.kind),
            Outcome::Refused(_) => books.note_refused(event.at, true),
            Outcome::Unknown(_) => books.unknown += 1,
        }
    }

    /// Notes how a release ended, by amount or of a job's grant.
    fn note_release(&self, site: usize, event: Event, sent: Instant, outcome: Outcome<i64>) {
        let mut books = self.books();
        books.latencies.note(sent.elapsed().as_nanos() as u64);
        match outcome {
            Outcome::Done(amount) => books.note_released(site, amount),
            Outcome::Refused(_) => {
                books.note_refused(event.at, false);
                if let Kind::Release { amount } = event.kind {
                    books.keep(amount);
                }
            }
            Outcome::Unknown(_) => books.unknown += 1,
        }
    }
}

/// Counts the quota over all sites, again until nothing moves.
async fn count(quota: &Quota, books: &Books) -> Result<slackline::Shown, QuotaError> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let shown = quota.show().await.map_err(LiveError::failed)?;
        let exact = shown.in_use.exact().map(i128::from);
        if exact == Some(books.in_use()) || books.unknown > 0 {
            return Ok(shown);
        }

        if Instant::now() > give_up {
            let what = format!("`show` says {:?} in use, not {}", shown.in_use, books.in_use());
            return Err(QuotaError::Books { config: "live".into(), what });
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Acquires that their site answered in the turn in which they arrived.
fn local_acquires(cluster: &Cluster) -> Result<u64, LiveError> {
    let of = |outcome: &str| cluster.total(&format!("slackline_acquires_total{{outcome=\"{outcome}\",waited=\"no\"}}"));
    Ok((of("granted")? + of("refused")?) as u64)
}

/// Opens the disks of sites that have stopped, and checks what is on them.
fn audit_disks(books: &Books, matrix: &Matrix, data: &Path, limit: i64) -> Result<(), String> {
    if books.unknown > 0 {
        return Err(format!("{} operations ended as unknown where nothing fails", books.unknown));
    }
    let members: Vec<_> = (0..matrix.sites() as u16).map(|region| slackline::SiteId { region, lane: 0 }).collect();
    let mut nodes = Vec::new();
    for (&me, region) in members.iter().zip(&matrix.regions) {
        let identity = Identity { cluster: "dev".into(), site: region.clone(), lanes: 1 };
        let store = Embedded::open(&data.join(region), &identity, slackline_storage::Options::default());
        let store = store.map_err(|error| error.to_string())?;

        // A machine reads all that it knows of quotas when it is opened, so it is looked at without its storage.
        let node = Node::open(Config::new(me, members.clone()), 1, store.last(), store.reader(), Now::default());
        nodes.push(node.map_err(|error| error.to_string())?);
        store.close();
    }
    books.audit(&nodes.iter().collect::<Vec<_>>(), limit)
}
