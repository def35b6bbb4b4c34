//! Running until the process is told to stop, and its logs.

use std::time::Duration;
use std::{io, thread};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::site::{RunError, SiteHandle};

/// The pause between two looks for a site that has stopped by itself.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Writes logs to standard error, of the levels that `RUST_LOG` names; without it, from `info` on.
pub fn init_logs() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Where nobody can be told, a site goes on: the disk under the log file may be full, or the terminal gone. By default the error would be
    // written to the same place, by a macro that panics then.
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // A program that embeds sites may have set up logs already; those stay.
    let _ = logs.log_internal_errors(false).try_init();
}

/// Ctrl-C, SIGTERM and SIGHUP, from when this value is made. Make it before the sites are started: a signal that comes before ends the
/// process at once.
#[derive(Debug)]
pub struct Signals {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
    /// Told to load models again.
    reload: Signal,
}

impl Signals {
    /// Begins to listen. Must not be called within a tokio runtime.
    pub fn listen() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (interrupt, terminate, reload) = {
            let _entered = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
        };
        Ok(Self { runtime, interrupt, terminate, reload })
    }

    /// Waits to be told to stop, or until a site has stopped by itself. Returns true for a signal. At SIGHUP the sites load their models
    /// again.
    pub fn wait(mut self, sites: &[SiteHandle]) -> bool {
        self.runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = self.interrupt.recv() => return true,
                    _ = self.terminate.recv() => return true,
                    _ = self.reload.recv() => sites.iter().for_each(SiteHandle::reload_models),
                    () = tokio::time::sleep(LOOK_INTERVAL) => if sites.iter().any(SiteHandle::has_stopped) {
                        return false;
                    },
                }
            }
        })
    }
}

/// Runs sites until a signal comes, then drains them, for at most `drain`. If one stops by itself, the others are
/// drained too, and its error is returned.
pub fn run_until_signal(signals: Signals, sites: Vec<SiteHandle>, drain: Duration) -> Result<(), RunError> {
    if signals.wait(&sites) {
        info!("draining");
    }

    // All together, so that each has the whole time.
    for site in &sites {
        site.start_drain(drain);
    }
    let results = thread::scope(|scope| {
        let joins: Vec<_> = sites.into_iter().map(|site| scope.spawn(move || site.drain(drain))).collect();
        joins.into_iter().map(|join| join.join()).collect::<Vec<_>>()
    });
    results.into_iter().flatten().collect()
}
