//! `bench footprint`: what many quotas cost one site: memory, and time to start.
//!
//! One `serve` in a process of its own; each quota is created and one token of it is acquired; the process is killed and
//! started again on the same data. Then every quota must be there, with its one token out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use slackline::{Client, ReadError};

use crate::hot::Live;
use crate::live::{LiveError, Scratch, Server};
use crate::report::{Mode, Report, Run};

/// What `bench footprint` is told.
#[derive(Clone, Debug)]
pub struct FootprintOptions {
    /// How many quotas there are.
    pub quotas: usize,
    /// Where to measure.
    pub live: Live,
    /// What every random choice comes from; there is none.
    pub seed: u64,
}

impl FootprintOptions {
    /// 100,000 quotas.
    pub fn new(live: Live) -> Self {
        Self { quotas: 100_000, live, seed: 1 }
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|source| LiveError::System { action: "start the client's runtime".into(), source })?;

    let server = Server::start(options.live.binary.as_deref(), &directory)?;
    server.wait_ready()?;
    let began = Instant::now();
    runtime.block_on(fill(&server, options.quotas))?;
    let seconds = began.elapsed().as_secs_f64();
    let before = server.resident_bytes()?;
    drop(server);

    let server = Server::start(options.live.binary.as_deref(), &directory)?;
    let ready = server.wait_ready()?;
    let after = server.resident_bytes()?;
    runtime.block_on(check(&server, options.quotas))?;
    let listed = server.resident_bytes()?;

    let megabytes = |bytes: u64| (bytes as f64 / 1e5).round() / 10.0;
    let mut run = Run::new("slackline");
    run.committed = 2 * options.quotas as u64;
    let run = run
        .took(seconds)
        .with("quotas", options.quotas)
        .with("rss_mb", megabytes(after.max(listed)))
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
                "one creation and one acquire for each quota; `ready_s` is from the start of the process after \
              a kill to when it serves"
                    .into(),
            ),
            (
                "memory".into(),
                "`rss_mb` is the larger of what the process has when it serves again and after all quotas were \
              listed"
                    .into(),
            ),
            ("round trips".into(), "one site; its client is on the same machine".into()),
            ("paper".into(), "Samya gives no figure for many quotas".into()),
        ],
        figures: Vec::new(),
    })
}

/// Creates the quotas and acquires a token of each.
async fn fill(server: &Server, quotas: usize) -> Result<(), LiveError> {
    let client = Client::connect([server.address.to_string()]).await.map_err(failed)?;
    let next = Arc::new(AtomicUsize::new(0));
    let caller = |_| {
        let (client, next) = (client.clone(), Arc::clone(&next));
        tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= quotas {
                    return Ok::<(), slackline::NotDone>(());
                }
                let quota = client.quota(name(number));
                quota.create(LIMIT).await.done()?;
                quota.acquire(1).await.done()?;
            }
        })
    };
    let callers: Vec<_> = (0..CALLERS).map(caller).collect();
    for caller in callers {
        caller.await.map_err(failed)?.map_err(failed)?;
    }
    client.close().await;
    Ok(())
}

/// Every quota is there, and one token of it is out.
async fn check(server: &Server, quotas: usize) -> Result<(), LiveError> {
    let client = Client::connect([server.address.to_string()]).await.map_err(failed)?;
    let listed = client.list().await.map_err(|error: ReadError| failed(error))?;
    let right = listed.iter().filter(|quota| quota.limit == LIMIT && quota.tokens == LIMIT - 1).count();
    client.close().await;
    if (listed.len(), right) != (quotas, quotas) {
        let found = listed.len();
        return Err(failed(format!(
            "after the restart there are {found} quotas, {right} of them with one token out, not {quotas}; this is a bug"
        )));
    }
    Ok(())
}

fn name(number: usize) -> String {
    format!("footprint-{number:06}")
}

fn failed(error: impl std::fmt::Display) -> LiveError {
    LiveError::Failed(error.to_string())
}
