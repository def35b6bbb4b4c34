//! Running until the process is told to stop, and its logs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, thread};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::site::{RunError, SiteHandle};

/// The pause between two looks for a site that has stopped by itself.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Signals that come within this time are one: a terminal tells all processes of a group, and one of them may tell another.
const SAME: Duration = Duration::from_secs(1);

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
    hangup: Signal,
    /// True if SIGHUP has the sites load their models again; false if it ends them, as the terminal is gone that they were started from.
    reloads: bool,
}

impl Signals {
    /// Begins to listen, for sites that outlive the terminal: at SIGHUP they load their models again. Must not be called within a tokio
    /// runtime.
    pub fn listen() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (interrupt, terminate, hangup) = {
            let _entered = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
        };
        Ok(Self { runtime, interrupt, terminate, hangup, reloads: true })
    }

    /// The same for sites that end with the terminal that they were started from.
    pub fn listen_at_a_terminal() -> io::Result<Self> {
        Ok(Self { reloads: false, ..Self::listen()? })
    }

    /// Waits to be told to stop, or until a site has stopped by itself. Returns true for a signal.
    pub fn wait(&mut self, sites: &[SiteHandle]) -> bool {
        self.runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = self.interrupt.recv() => return true,
                    _ = self.terminate.recv() => return true,
                    _ = self.hangup.recv() => match self.reloads {
                        true => sites.iter().for_each(SiteHandle::reload_models),
                        false => return true,
                    },
                    () = tokio::time::sleep(LOOK_INTERVAL) => if sites.iter().any(SiteHandle::has_stopped) {
                        return false;
                    },
                }
            }
        })
    }
}

/// Runs sites until a signal comes, then drains them, for at most `drain`; a second signal ends the process at once, which loses nothing that
/// was answered. If one site stops by itself, the others are drained too, and its error is returned.
pub fn run_until_signal(mut signals: Signals, sites: Vec<SiteHandle>, drain: Duration) -> Result<(), RunError> {
    let is_told = signals.wait(&sites);
    if is_told {
        info!("draining; a second signal ends the site at once");
    }
    let is_drained = Arc::new(AtomicBool::new(false));
    let at_second = Arc::clone(&is_drained);
    thread::spawn(move || {
        // Whoever listens anew hears of none that came before. A site that has stopped by itself was told nothing yet.
        for _ in 0..if is_told { 1 } else { 2 } {
            thread::sleep(SAME);
            let Ok(mut signals) = Signals::listen() else { return };
            signals.wait(&[]);
        }
        if !at_second.load(Ordering::Relaxed) {
            warn!("ended by a second signal before all was drained");
            std::process::exit(1);
        }
    });

    // All together, so that each has the whole time.
    for site in &sites {
        site.start_drain(drain);
    }
    let results = thread::scope(|scope| {
        let joins: Vec<_> = sites.into_iter().map(|site| scope.spawn(move || site.drain(drain))).collect();
        joins.into_iter().map(|join| join.join()).collect::<Vec<_>>()
    });
    is_drained.store(true, Ordering::Relaxed);
    results.into_iter().flatten().collect()
}
