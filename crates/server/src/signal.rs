//! Running until the process is told to stop, and its logs.

use std::time::Duration;
use std::{io, thread};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
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

/// Ctrl-C and SIGTERM, from when this is made on. To be made before sites are started, or a signal that comes meanwhile ends
/// the process at once.
#[derive(Debug)]
pub struct Signals {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Begins to listen. Not from within a tokio runtime.
    pub fn listen() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (interrupt, terminate) = {
            let _entered = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        Ok(Self { runtime, interrupt, terminate })
    }

    /// Waits for one of them, or until a site has stopped by itself. Returns whether it was a signal.
    pub fn wait(mut self, sites: &[SiteHandle]) -> bool {
        self.runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = self.interrupt.recv() => return true,
                    _ = self.terminate.recv() => return true,
                    () = tokio::time::sleep(LOOK_INTERVAL) => if sites.iter().any(SiteHandle::has_stopped) {
                        return false;
                    },
                }
            }
        })
    }
}

/// Runs sites until a signal comes, then drains them, for no longer than `drain`. If one stops by itself, the others are
/// drained too, and its error is returned.
pub fn run_until_signal(signals: Signals, sites: Vec<SiteHandle>, drain: Duration) -> Result<(), RunError> {
    if signals.wait(&sites) {
        info!("draining");
    }
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
