//! The common part of all commands that talk to a cluster: its addresses, and the time that they may take.

use std::time::{Duration, Instant};

use clap::Args;
use slackline::{Client, ConnectError, Left, Options};
use tokio::signal::unix::SignalKind;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::duration;
use crate::end::{End, Finish};

/// The source of the cluster's addresses where nobody has named any.
const DEFAULT: &str = "the default";

/// The addresses of `slackline dev`.
const DEV: &str = "127.0.0.1:7400,127.0.0.1:7401,127.0.0.1:7402";

/// The time for which an interrupted command still waits to hear what became of what it changes.
const HEARING: Duration = Duration::from_millis(500);

/// The time that an interrupted command stays to give back the tokens that it was acquiring.
const GIVING_BACK: Duration = Duration::from_millis(1500);

/// The time that the first site of `slackline dev` may take to answer before the others are asked.
const FIRST: Duration = Duration::from_millis(500);

/// The time that one site may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The most quotas that a command asks about at the same time.
const AT_ONCE: usize = 64;

/// The environment variable that names a cluster.
const CONNECT: &str = "SLACKLINE_CONNECT";

/// What a command does when it is interrupted.
#[derive(Clone, Copy)]
enum AtInterrupt {
    /// It ends: it changes nothing.
    Ends,
    /// It waits a little for the outcome of what it changes.
    Hears,
    /// It has what it acquires given back, granted or not.
    GivesBack,
}

/// The cluster's addresses, and the command's deadline.
#[derive(Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Connection {
    /// Addresses of some of the cluster's sites; one is enough, the others are learned from it
    #[arg(
        long,
        value_name = "HOST:PORT,…",
        value_delimiter = ',',
        long_help = "\
Addresses of some of the cluster's sites. One is enough, the others are learned from it; with several, one that is down \
does no harm. By default those in the environment variable SLACKLINE_CONNECT, or else those of `slackline dev` on this \
machine: 127.0.0.1:7400 to 7402"
    )]
    connect: Vec<String>,

    /// The time that the command may take, waits included
    #[arg(long, value_name = "DURATION", default_value = "10s", allow_hyphen_values = true, value_parser = duration::parse_positive)]
    pub(crate) deadline: Duration,
}

impl Connection {
    /// The time that one site may take to answer what is asked of several of them: there is as much for what comes after.
    pub(crate) fn patience(&self) -> Duration {
        PATIENCE.min(self.deadline / 2)
    }

    /// Connects, does the work, and closes. With `json` the output is for a program, which is not told of the time.
    pub(crate) fn run<F: Future<Output = Result<End, Finish>>>(
        &self,
        json: bool,
        work: impl FnOnce(Client) -> F,
    ) -> Result<End, Finish> {
        self.run_and_end(json, AtInterrupt::Hears, self.until(), work, Client::close)
    }

    /// The same for work that acquires tokens.
    pub(crate) fn acquire<F: Future<Output = Result<End, Finish>>>(
        &self,
        json: bool,
        work: impl FnOnce(Client) -> F,
    ) -> Result<End, Finish> {
        self.run_and_end(json, AtInterrupt::GivesBack, self.until(), work, Client::close)
    }

    /// The same for work that changes nothing.
    pub(crate) fn read<F: Future<Output = Result<End, Finish>>>(
        &self,
        json: bool,
        work: impl FnOnce(Client) -> F,
    ) -> Result<End, Finish> {
        self.run_and_end(json, AtInterrupt::Ends, self.until(), work, Client::close)
    }

    /// The same for work that goes on until it is interrupted, and has the deadline for each of its questions.
    pub(crate) fn watch<F: Future<Output = Result<End, Finish>>>(
        &self,
        work: impl FnOnce(Client) -> F,
    ) -> Result<End, Finish> {
        self.run_and_end(false, AtInterrupt::Ends, None, work, Client::close)
    }

    /// Connects, does work that has an operation's id, and leaves the session open: for some time the outcome of the operation can
    /// be asked for.
    pub(crate) fn run_and_leave<F: Future<Output = Result<End, Finish>>>(
        &self,
        json: bool,
        work: impl FnOnce(Client) -> F,
    ) -> Result<End, Finish> {
        self.run_and_end(json, AtInterrupt::Hears, self.until(), work, Client::leave)
    }

    /// When a command that begins now ends.
    fn until(&self) -> Option<Instant> {
        Some(Instant::now() + self.deadline)
    }

    fn run_and_end<F: Future<Output = Result<End, Finish>>, E: Future<Output = Vec<Left>>>(
        &self,
        json: bool,
        at_interrupt: AtInterrupt,
        until: Option<Instant>,
        work: impl FnOnce(Client) -> F,
        end_client: impl FnOnce(Client) -> E,
    ) -> Result<End, Finish> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Finish::Failed(format!("cannot start: {error}")))?;
        let ended = runtime.block_on(async {
            let client = self.connect(until).await?;
            let asked_at = Instant::now();
            let mut work = Box::pin(work(client.clone()));
            let end = tokio::select! {
                // What is done is done; and a command that runs until it is interrupted ends by itself.
                biased;
                end = &mut work => end,
                _ = interrupted() => match at_interrupt {
                    AtInterrupt::Ends => Err(Finish::Failed("interrupted".to_owned())),
                    AtInterrupt::GivesBack => Err(Finish::Withdrawn),
                    // Mostly its outcome is on its way, and better than a doubt.
                    AtInterrupt::Hears => timeout(HEARING, &mut work).await.unwrap_or(Err(Finish::Interrupted)),
                },
            };
            drop(work);
            let took = asked_at.elapsed();

            // What is still asked for people delays the command, but nothing that was done is lost by it any more.
            let end = match end {
                Ok(end) if !json => Ok(end.told(&client, took).await),
                end => end,
            };

            if matches!(end, Err(Finish::Withdrawn)) {
                // The client asks about an acquire that was dropped unanswered, and gives it back if it was granted: tokens that
                // nobody knows of would be out permanently. It needs this time for it.
                tokio::time::sleep(GIVING_BACK.min(self.deadline)).await;
            }

            // A client that lives on would settle these operations later. This one ends here, so the user is told of them.
            let left = end_client(client).await;
            match end {
                end if left.is_empty() => end,
                Ok(end) => Ok(end.leaving(&left)),
                Err(finish) => Err(Finish::Leaving(Box::new(finish), left)),
            }
        });

        // The name of a site may be looked up just now, by a thread that nothing can interrupt: the command does not wait for it.
        runtime.shutdown_background();
        ended
    }

    /// Connects to the cluster, for work that ends then.
    async fn connect(&self, until: Option<Instant>) -> Result<Client, Finish> {
        let options = Options { deadline: self.deadline, connect: self.deadline, until, ..Options::default() };
        let (source, addresses) = self.addresses();

        // Two clusters of `slackline dev` may have ports in common. Commands are told to look at the first one's first port, so that one is
        // meant if it is there.
        if source == DEFAULT {
            let first = Options { connect: FIRST.min(self.deadline / 2), ..options.clone() };
            match Client::connect_with(&addresses[..1], first).await {
                Err(ConnectError::Unreachable { .. }) => {}
                connected => return connected.map_err(|error| explain(source, error)),
            }
        }
        Client::connect_with(addresses, options).await.map_err(|error| explain(source, error))
    }

    /// The source of the cluster's addresses, for error sentences, and the addresses.
    fn addresses(&self) -> (&'static str, Vec<String>) {
        if !self.connect.is_empty() {
            return ("--connect", self.connect.clone());
        }
        let split = |text: &str| text.split(',').map(str::to_owned).collect();
        // An empty variable counts as one that is not set.
        match std::env::var_os(CONNECT).filter(|value| !value.is_empty()) {
            Some(value) => (CONNECT, split(&value.to_string_lossy())),
            None => (DEFAULT, split(DEV)),
        }
    }
}

/// Does the same for each item, for [`AT_ONCE`] at a time, and returns what came of each, in their order; none for those that were not
/// begun in time. In the last part of the time that is given none is begun: sites far away could not answer any more.
pub(crate) async fn each<T, R: Send + 'static, F: Future<Output = R> + Send + 'static>(
    items: Vec<T>,
    until: Instant,
    work: impl Fn(T, Duration) -> F,
) -> Vec<Option<R>> {
    let least = until.saturating_duration_since(Instant::now()) / 4;
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let (mut left, mut tasks) = (items.into_iter().enumerate(), JoinSet::new());
    loop {
        while tasks.len() < AT_ONCE {
            let time = until.saturating_duration_since(Instant::now());
            let Some((at, item)) = left.next().filter(|_| time > least) else { break };
            let task = work(item, time);
            tasks.spawn(async move { (at, task.await) });
        }
        match tasks.join_next().await {
            Some(ended) => {
                let (at, result) = ended.expect("nobody aborts it, and it does not panic");
                results[at] = Some(result);
            }
            None => return results,
        }
    }
}

/// Waits until the user, or the system, wants the command to end: by Ctrl-C, by SIGTERM, or because its terminal is closed.
async fn interrupted() {
    let signal = |kind| tokio::signal::unix::signal(kind).ok();
    let told = async |kind: SignalKind| match signal(kind) {
        Some(mut signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    };

    // Whoever starts it by `nohup` wants it to go on without the terminal.
    let hung_up = async || match slackline_server::ignores_hangup() {
        true => std::future::pending().await,
        false => told(SignalKind::hangup()).await,
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = told(SignalKind::terminate()) => {}
        () = hung_up() => {}
    }
}

/// The end of a command that could not connect.
fn explain(source: &str, error: ConnectError) -> Finish {
    match error {
        ConnectError::Unreachable { addresses, why } => {
            // Who named addresses knows that; what answers there may be another port of a site.
            let advice = match source {
                DEFAULT => "start a cluster with `slackline dev`, or name one with --connect".to_owned(),
                source => format!("{source} names the gRPC ports of sites, which the key `listen` of each has"),
            };
            Finish::Failed(format!("no site answers at {addresses} ({why}); {advice}"))
        }
        error => Finish::WrongUse(format!("{source}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_few_at_a_time_are_done_in_any_order_and_none_is_begun_too_late() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("it starts");
        runtime.block_on(async {
            let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let work = |item: usize, _: Duration| {
                let (running, most) = (Arc::clone(&running), Arc::clone(&most));
                async move {
                    most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis((item % 3) as u64)).await;
                    running.fetch_sub(1, Ordering::Relaxed);
                    item
                }
            };
            let all: Vec<usize> = (0..3 * AT_ONCE).collect();
            let done = each(all.clone(), Instant::now() + Duration::from_secs(60), work).await;
            assert_eq!(done, all.iter().copied().map(Some).collect::<Vec<_>>());
            assert_eq!(most.load(Ordering::Relaxed), AT_ONCE);
            assert_eq!(each(vec![1, 2], Instant::now(), work).await, [None, None]);
        });
    }
}
