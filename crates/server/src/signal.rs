//! Running until the process is told to stop, and its logs.

use std::thread;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::site::{RunError, SiteHandle};

/// How often to look whether a site has stopped by itself.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Writes logs to standard error; `RUST_LOG` says which (`info` without).
pub fn init_logs() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Somebody else may have set up logs already; theirs stand.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).try_init();
}

/// Runs sites until Ctrl-C or SIGTERM, then drains them, for no longer than `drain`. If one stops by itself, the others
/// are drained too, and its error is returned.
///
/// Must not be called from within a tokio runtime.
pub fn run_until_signal(sites: Vec<SiteHandle>, drain: Duration) -> Result<(), RunError> {
    wait_for_signal(|| sites.iter().any(SiteHandle::has_stopped));
    // All at once, so that each has the whole time.
    for site in &sites {
        site.start_drain(drain);
    }
    let results = thread::scope(|scope| {
        let joins: Vec<_> = sites.into_iter().map(|site| scope.spawn(move || site.drain(drain))).collect();
        joins.into_iter().map(|join| join.join()).collect::<Vec<_>>()
    });
    results.into_iter().flatten().collect()
}

fn wait_for_signal(is_over: impl Fn() -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else {
        // Without signal handlers the default stands: the signal ends the process, which loses nothing.
        while !is_over() {
            thread::sleep(LOOK_INTERVAL);
        }
        return;
    };
    runtime.block_on(async {
        let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            while !is_over() {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            return;
        };
        loop {
            tokio::select! {
                _ = terminate.recv() => break info!("SIGTERM: draining"),
                _ = interrupt.recv() => break info!("interrupted: draining"),
                () = tokio::time::sleep(LOOK_INTERVAL) => if is_over() { break },
            }
        }
    });
}
