//! Running until the process is told to stop, and its logs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::site::{RunError, SiteHandle};

/// The pause between two looks for a site that has stopped by itself.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The same while sites start, which takes little time.
const START_INTERVAL: Duration = Duration::from_millis(5);

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
    /// None where SIGHUP is ignored, and is to be.
    hangup: Option<Signal>,
    /// True if SIGHUP has the sites load their models again; false if it ends them, as the terminal is gone that they were started from.
    reloads: bool,
}

impl Signals {
    /// Begins to listen, for sites that outlive the terminal: at SIGHUP they load their models again. Must not be called within a tokio
    /// runtime.
    pub fn listen() -> io::Result<Self> {
        Self::listen_to(true)
    }

    /// The same for sites that end with the terminal that they were started from. Whoever starts them by `nohup` wants them to outlive it.
    pub fn listen_at_a_terminal() -> io::Result<Self> {
        Ok(Self { reloads: false, ..Self::listen_to(!ignores_hangup())? })
    }

    fn listen_to(hangup: bool) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (interrupt, terminate, hangup) = {
            let _entered = runtime.enter();
            let hangup = hangup.then(|| signal(SignalKind::hangup())).transpose()?;
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, hangup)
        };
        Ok(Self { runtime, interrupt, terminate, hangup, reloads: true })
    }

    /// Starts sites, which may take long: a log may have to be read again. A signal that comes meanwhile ends the process at once. Nothing
    /// was answered yet, so nothing is lost.
    pub fn during<T>(&mut self, start: impl FnOnce() -> T) -> T {
        let has_started = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                if self.wait_while(&[], START_INTERVAL, || !has_started.load(Ordering::Relaxed)) {
                    warn!("ended by a signal before the site had started");
                    std::process::exit(1);
                }
            });
            let started = start();
            has_started.store(true, Ordering::Relaxed);
            started
        })
    }

    /// Waits to be told to stop, or until a site has stopped by itself. Returns true for a signal.
    pub fn wait(&mut self, sites: &[SiteHandle]) -> bool {
        self.wait_while(sites, LOOK_INTERVAL, || !sites.iter().any(SiteHandle::has_stopped))
    }

    /// Waits to be told to stop, or until all sites serve or one has stopped, for at most this time. Returns true for a signal.
    pub fn wait_ready(&mut self, sites: &[SiteHandle], at_most: Duration) -> bool {
        let since = Instant::now();
        self.wait_while(sites, START_INTERVAL, || {
            let is_starting = !sites.iter().all(SiteHandle::is_ready) && !sites.iter().any(SiteHandle::has_stopped);
            is_starting && since.elapsed() < at_most
        })
    }

    /// Waits to be told to stop as long as something is so, which is looked at again after each pause. Returns true for a signal.
    fn wait_while(&mut self, sites: &[SiteHandle], pause: Duration, is_so: impl Fn() -> bool) -> bool {
        self.runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = self.interrupt.recv() => return true,
                    _ = self.terminate.recv() => return true,
                    () = received(&mut self.hangup) => match self.reloads {
                        true => sites.iter().for_each(SiteHandle::reload_models),
                        false => return true,
                    },
                    () = tokio::time::sleep(pause) => if !is_so() {
                        return false;
                    },
                }
            }
        })
    }
}

/// Waits for a signal; for ever if there is none to wait for.
async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// True if this process was started with SIGHUP ignored, as `nohup` does. To listen to it would end that.
pub fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_ignored(&status, SignalKind::hangup())
}

/// Reads the signals that a process ignores from what the kernel says of it.
fn is_ignored(status: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw_value() - 1) & 1 == 1
}

/// Runs sites until a signal comes, then drains them, for at most `drain`; a second signal ends the process at once, which loses nothing that
/// was answered. If one site stops by itself, the others are drained too, and its error is returned.
pub fn run_until_signal(mut signals: Signals, sites: Vec<SiteHandle>, drain: Duration) -> Result<(), RunError> {
    let is_told = signals.wait(&sites);
    if is_told {
        info!("draining; a second signal ends the site at once");
    }
    drain_or_end(is_told, || {
        // All together, so that each has the whole time.
        for site in &sites {
            site.start_drain(drain);
        }
        let results = thread::scope(|scope| {
            let joins: Vec<_> = sites.into_iter().map(|site| scope.spawn(move || site.drain(drain))).collect();
            joins.into_iter().map(|join| join.join()).collect::<Vec<_>>()
        });
        results.into_iter().flatten().collect()
    })
}

/// Drains sites, because a signal has come (`is_told`) or one has stopped by itself. The second signal in all ends the process at once.
pub fn drain_or_end<T>(is_told: bool, drain: impl FnOnce() -> T) -> T {
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
    let drained = drain();
    is_drained.store(true, Ordering::Relaxed);
    drained
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_a_process_ignores_are_read_from_its_status() {
        let status = "Name:\tdev\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert!(is_ignored(status, SignalKind::hangup()));
        assert!(!is_ignored(status, SignalKind::interrupt()) && is_ignored(status, SignalKind::pipe()));
        assert!(!is_ignored("", SignalKind::hangup()));
    }
}
