//! `bench footprint`: what many quotas, or many tracked grants, cost one site: memory, and time to start.
//!
//! One `serve` in a process of its own; each quota is created and one token of it is acquired; then tracked grants of the first
//! one are. The process is killed and started again on the same data. Then every quota must be there with its tokens out, and
//! grants can be given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use slackline::{Client, GrantId, ReadError};

use crate::live::{LiveError, Scratch, Server, runtime};
use crate::report::{Mode, Report, Run};
use crate::turns::Live;

/// Options of `bench footprint`.
#[derive(Clone, Debug)]
pub struct FootprintOptions {
    /// The number of quotas.
    pub quotas: usize,
    /// The number of tracked grants of the first quota besides.
    pub grants: usize,
    /// The server to measure, and the place of its data.
    pub live: Live,
    /// The seed that is reported; nothing here is random.
    pub seed: u64,
}

impl FootprintOptions {
    /// 100,000 quotas, and no tracked grants.
    pub fn new(live: Live) -> Self {
        Self { quotas: 100_000, grants: 0, live, seed: 1 }
    }
}

/// Callers at a time.
const CALLERS: usize = 256;
/// Tokens of each quota.
const LIMIT: i64 = 1_000;

/// Runs `bench footprint`.
pub fn footprint(options: &FootprintOptions) -> Result<Report, LiveError> {
    let scratch = Scratch::below(&options.live.directory)?;
    let directory = scratch.path().join("site");
    let runtime = runtime()?;

    let server = Server::start(options.live.binary.as_deref(), &directory)?;
    server.wait_ready()?;

    let began = Instant::now();
    let samples = runtime.block_on(fill(&server, options))?;
    let seconds = began.elapsed().as_secs_f64();
    let before = server.resident_bytes()?;

    // As by `kill -9`: nothing is tidied up before the restart.
    drop(server);
    let server = Server::start(options.live.binary.as_deref(), &directory)?;
    // Memory is looked at when the site serves, and again after every quota was looked at.
    let ready = server.wait_ready()?;
    let after = server.resident_bytes()?;
    runtime.block_on(check(&server, options, samples))?;
    let listed = server.resident_bytes()?;

    let megabytes = |bytes: u64| (bytes as f64 / 1e5).round() / 10.0;
    let mut run = Run::new("slackline");
    run.committed = (2 * options.quotas + options.grants) as u64;
    // Tracked grants take memory until they are absorbed: that of before counts too.
    let most = after.max(listed).max(if options.grants > 0 { before } else { 0 });

    let run = run
        .took(seconds)
        .with("quotas", options.quotas)
        .with("grants", options.grants)
        .with("rss_mb", megabytes(most))
        .with("ready_s", (ready.as_secs_f64() * 1e3).round() / 1e3)
        .with("rss_before_restart_mb", megabytes(before))
        .with("file_system", scratch.file_system.clone());
    Ok(Report {
        workload: "footprint".into(),
        mode: Mode::Live,
        seed: options.seed,
        data: "generated".into(),
        epsilon_us: server.epsilon()?,
        cost_model: None,
        runs: vec![run],
        verified: true,
        facts: vec![
            (
                "timed".into(),
                "one creation and one acquire for each quota, and one acquire for each tracked grant; `ready_s` is from \
                 the start of the process after a kill to when it serves"
                    .into(),
            ),
            (
                "memory".into(),
                "`rss_mb` is the larger of what the process has when it serves again and after all quotas were \
                 listed; with tracked grants also of what it has before the restart"
                    .into(),
            ),
            ("round trips".into(), "one site; its client is on the same machine".into()),
            ("paper".into(), "Samya gives no figure for many quotas".into()),
        ],
        figures: Vec::new(),
    })
}

/// Creates the quotas, acquires a token of each, and then the tracked grants; some of those.
async fn fill(server: &Server, options: &FootprintOptions) -> Result<Vec<GrantId>, LiveError> {
    let client = Client::connect([server.address.to_string()]).await.map_err(LiveError::failed)?;
    let next = Arc::new(AtomicUsize::new(0));
    let (quotas, limit) = (options.quotas, limit(options));

    // Callers take the next number each, so that all are busy until the last.
    let caller = |_| {
        let (client, next) = (client.clone(), Arc::clone(&next));
        tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= quotas {
                    return Ok::<(), slackline::NotDone>(());
                }
                let quota = client.quota(name(number));
                quota.create(limit).await.done()?;
                quota.acquire(1).await.done()?;
            }
        })
    };
    let callers: Vec<_> = (0..CALLERS).map(caller).collect();
    for caller in callers {
        caller.await.map_err(LiveError::failed)?.map_err(LiveError::failed)?;
    }

    // Of each caller the last grant is kept, to be given back after the restart.
    let (next, grants) = (Arc::new(AtomicUsize::new(0)), options.grants);
    let caller = |_| {
        let (client, next) = (client.clone(), Arc::clone(&next));
        tokio::spawn(async move {
            let mut last = None;
            while next.fetch_add(1, Ordering::Relaxed) < grants {
                last = Some(client.quota(name(0)).acquire(1).tracked().await.done()?.id());
            }
            Ok::<_, slackline::NotDone>(last)
        })
    };
    let callers: Vec<_> = (0..CALLERS).map(caller).collect();
    let mut samples = Vec::new();
    for caller in callers {
        samples.extend(caller.await.map_err(LiveError::failed)?.map_err(LiveError::failed)?);
    }
    client.close().await;
    Ok(samples)
}

/// Every quota is there with its tokens out, and grants are given back.
async fn check(server: &Server, options: &FootprintOptions, samples: Vec<GrantId>) -> Result<(), LiveError> {
    let (quotas, limit) = (options.quotas, limit(options));
    let client = Client::connect([server.address.to_string()]).await.map_err(LiveError::failed)?;
    let listed = client.list().await.map_err(|error: ReadError| LiveError::failed(error))?;

    let out = |name: &str| if name == self::name(0) { 1 + options.grants as i64 } else { 1 };
    let right = listed.iter().filter(|quota| quota.limit == limit && quota.tokens == limit - out(&quota.name)).count();
    if (listed.len(), right) != (quotas, quotas) {
        let found = listed.len();
        return Err(LiveError::failed(format!(
            "after the restart there are {found} quotas, {right} of them with the right tokens out, not {quotas}; this is a bug"
        )));
    }

    for grant in samples {
        client.release_grant(grant).await.done().map_err(LiveError::failed)?;
    }
    client.close().await;
    Ok(())
}

/// The tokens of each quota.
fn limit(options: &FootprintOptions) -> i64 {
    LIMIT + options.grants as i64
}

/// The name of a quota.
fn name(number: usize) -> String {
    format!("footprint-{number:06}")
}
