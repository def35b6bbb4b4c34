//! One site: its threads, from start to stop.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use slackline_core::api::Readiness;
use slackline_core::id::SiteId;
use slackline_core::node;
use slackline_storage::{Embedded, Identity, Memory, Options, Store, WriteError};
use slackline_wire::internal::peer_server::PeerServer;
use slackline_wire::v1::slackline_server::SlacklineServer;
use slackline_wire::{MESSAGE_BYTES, v1};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::{error, error_span, info, warn};

use crate::clock;
use crate::config::{ConfigError, Listen, SiteConfig, Storage};
use crate::crash::CrashPoints;
use crate::engine::{Engine, Failure, OpenFailure, Parts};
use crate::http;
use crate::incoming::Incoming;
use crate::link::{LINK_BYTES, Outbox, PeerService, keep};
use crate::mailbox::{Mailbox, Phase};
use crate::metrics::{Gauges, Sources, SyncTimes};
use crate::service::ClientService;
use crate::topology::Topology;

/// How often the machine is asked how it is: while it does not serve, and while it does.
const HEALTH_INTERVAL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How long a stopping site waits for its last messages to leave, delays put in included.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a stopping site waits for its clients to take their last replies.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a client may be silent before it is asked whether it is there, and then until it is given up: those that vanished
/// without a word must not take up room for ever.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// HTTP/2 flow control: a stream's window, and a connection's, in bytes. Some batches of 512 operations fit.
const WINDOWS: (u32, u32) = (1 << 20, 4 << 20);

/// A site could not be started. Nothing runs.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; stop what uses that address, or configure another")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The storage cannot be opened.
    #[error(transparent)]
    Storage(#[from] slackline_storage::OpenError),
    /// What is in the storage cannot be used.
    #[error("site {site} cannot go on with its data in {data}: {source}")]
    Node {
        /// The site.
        site: String,
        /// The data directory.
        data: String,
        /// Why.
        source: node::OpenError,
    },
    /// The operating system refuses something else that a site needs.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// A running site stopped by itself. What it had acknowledged is durable.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log could not be written.
    #[error("site {site} stopped: {source}")]
    Sync {
        /// The site.
        site: String,
        /// Why.
        source: WriteError,
    },
    /// The storage could not be read.
    #[error("site {site} stopped: {problem}")]
    Read {
        /// The site.
        site: String,
        /// Why.
        problem: String,
    },
    /// The site was restarted from its storage, which failed.
    #[error("site {site} stopped: it was held up, and then could not start again: {source}")]
    Restart {
        /// The site.
        site: String,
        /// Why.
        source: Box<StartError>,
    },
    /// The site's thread ended in a panic: an invariant is broken.
    #[error("site {site} stopped: an invariant is broken ({message}); keep its data and report this")]
    Panicked {
        /// The site.
        site: String,
        /// What the panic said.
        message: String,
    },
}

/// Starts sites.
#[derive(Debug)]
pub struct Site;

/// A running site. Dropping it drains the site, for a second at most.
#[derive(Debug)]
pub struct SiteHandle {
    topology: Arc<Topology>,
    address: SocketAddr,
    http: Option<SocketAddr>,
    epsilon: u64,
    stop: watch::Sender<Option<Duration>>,
    ready: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Site {
    /// Opens a site's storage and listeners and runs it on a thread of its own. Returns when it can be reached; it serves
    /// when it is ready ([`SiteHandle::wait_ready`]).
    pub fn start(config: SiteConfig) -> Result<SiteHandle, StartError> {
        let topology = Arc::new(config.topology()?);
        let name = topology.name(topology.me);
        let epsilon = clock::epsilon(config.epsilon);
        let crash_points = Arc::new(CrashPoints::from_environment(topology.me)?);
        let listener = bind(config.listen)?;
        let address = local_address(&listener)?;
        let http_listener = config.http.map(bind).transpose()?;
        let http_address = http_listener.as_ref().map(local_address).transpose()?;
        let (stop, stopped) = watch::channel(None);
        let ready = Arc::new(AtomicBool::new(false));
        let blueprint = Blueprint {
            node: node::Config {
                me: topology.me,
                members: topology.members().collect(),
                epsilon,
                redistribute: config.redistribute,
                warranties: config.warranties,
                idle_calls: slackline_core::config::IDLE_CALLS,
            },
            topology: Arc::clone(&topology),
            name: name.clone(),
            storage: config.storage,
            storage_options: config.storage_options,
            delays: config.delays,
            crash_points,
            listener,
            http_listener,
            stop: stopped,
            ready: Arc::clone(&ready),
        };
        let (started, starting) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name(format!("site-{name}"))
            .spawn(move || run(blueprint, &started))
            .map_err(|source| StartError::System { action: "start the site's thread", source })?;
        let mut handle =
            SiteHandle { topology, address, http: http_address, epsilon, stop, ready, thread: Some(thread) };
        match starting.recv() {
            Ok(Ok(())) => Ok(handle),
            Ok(Err(error)) => Err(error),
            Err(mpsc::RecvError) => {
                let source = match handle.join() {
                    Err(error) => io::Error::other(error),
                    Ok(()) => io::Error::other("its thread ended"),
                };
                Err(StartError::System { action: "start the site", source })
            }
        }
    }
}

impl SiteHandle {
    /// The site's id.
    pub fn id(&self) -> SiteId {
        self.topology.me
    }

    /// The site's name, for people: its region, and its lane if there are several.
    pub fn name(&self) -> String {
        self.topology.name(self.topology.me)
    }

    /// Where it listens for clients and other sites.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it serves `/healthz` and `/metrics`.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// The bound on its clock's error, in microseconds.
    pub fn epsilon(&self) -> u64 {
        self.epsilon
    }

    /// Whether it serves.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Waits until it serves, for no longer than `timeout`. Returns whether it does.
    pub fn wait_ready(&self, timeout: Duration) -> bool {
        let give_up = Instant::now() + timeout;
        while !self.is_ready() && Instant::now() < give_up && !self.has_stopped() {
            thread::sleep(Duration::from_millis(5));
        }
        self.is_ready()
    }

    /// Whether it runs no more; [`SiteHandle::drain`] tells why.
    pub fn has_stopped(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells the site to stop taking requests, to finish what waits for no longer than `timeout`, to sync and to stop.
    /// Does not wait for it.
    pub fn start_drain(&self, timeout: Duration) {
        self.stop.send_replace(Some(timeout));
    }

    /// Stops the site as [`SiteHandle::start_drain`] does and waits until it has stopped. An error says that it had
    /// stopped by itself before.
    pub fn drain(mut self, timeout: Duration) -> Result<(), RunError> {
        self.start_drain(timeout);
        self.join()
    }

    fn join(&mut self) -> Result<(), RunError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(RunError::Panicked { site: self.name(), message })
        })
    }
}

impl Drop for SiteHandle {
    fn drop(&mut self) {
        self.start_drain(Duration::from_secs(1));
        if let Err(error) = self.join() {
            error!(%error);
        }
    }
}

fn bind(listen: Listen) -> Result<TcpListener, StartError> {
    let (listener, address) = match listen {
        Listen::On(address) => (TcpListener::bind(&address), address),
        Listen::Bound(listener) => (Ok(listener), "a bound socket".to_owned()),
    };
    let listener = listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(|source| StartError::Listen { address, source })
}

fn local_address(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::System { action: "read a socket's address", source })
}

/// What a site's thread is made from.
struct Blueprint {
    node: node::Config,
    topology: Arc<Topology>,
    name: String,
    storage: Storage,
    storage_options: Options,
    delays: BTreeMap<SiteId, Duration>,
    crash_points: Arc<CrashPoints>,
    listener: TcpListener,
    http_listener: Option<TcpListener>,
    stop: watch::Receiver<Option<Duration>>,
    ready: Arc<AtomicBool>,
}

/// The life of a site's thread.
fn run(blueprint: Blueprint, started: &mpsc::SyncSender<Result<(), StartError>>) -> Result<(), RunError> {
    // Everything of a site runs on this thread, so all that it logs bears its name. An error's level, so that no filter by
    // level leaves the name out.
    let _named = error_span!("site", name = %blueprint.name).entered();
    let prepared = open(&blueprint).and_then(|engine| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| StartError::System { action: "start the runtime", source })?;
        Ok((runtime, engine))
    });
    match prepared {
        Ok((runtime, (parts, engine))) => serve(&runtime, blueprint, &parts, engine, started),
        Err(error) => {
            // Nobody to tell means that nobody waits for this site any more.
            let _ = started.send(Err(error));
            Ok(())
        }
    }
}

fn open(blueprint: &Blueprint) -> Result<(Arc<Parts>, Engine), StartError> {
    let outbox = |to: SiteId| {
        let delay = blueprint.delays.get(&to).copied().unwrap_or_default();
        (to, Arc::new(Outbox::new(to, delay)))
    };
    let topology = &blueprint.topology;
    let parts = Arc::new(Parts {
        config: blueprint.node.clone(),
        mailbox: Arc::new(Mailbox::new()),
        outboxes: topology.members().filter(|member| *member != topology.me).map(outbox).collect(),
        gauges: Arc::new(Mutex::new(Gauges::default())),
        sync_times: Arc::new(SyncTimes::new()),
        crash_points: Arc::clone(&blueprint.crash_points),
    });
    let store = open_store(blueprint)?;
    let engine = open_engine(blueprint, &parts, store)?;
    Ok((parts, engine))
}

fn open_store(blueprint: &Blueprint) -> Result<Box<dyn Store>, StartError> {
    match &blueprint.storage {
        Storage::Memory => Ok(Box::new(Memory::new())),
        Storage::Directory(path) => {
            let identity = Identity { cluster: blueprint.topology.cluster.clone(), site: blueprint.name.clone() };
            Ok(Box::new(Embedded::open(path, &identity, blueprint.storage_options.clone())?))
        }
    }
}

fn open_engine(blueprint: &Blueprint, parts: &Arc<Parts>, store: Box<dyn Store>) -> Result<Engine, StartError> {
    let data = match &blueprint.storage {
        Storage::Memory => PathBuf::from("memory"),
        Storage::Directory(path) => path.clone(),
    };
    Engine::open(Arc::clone(parts), store, &blueprint.name).map_err(|failure| match failure {
        OpenFailure::Node(source) => {
            StartError::Node { site: blueprint.name.clone(), data: data.display().to_string(), source }
        }
        OpenFailure::Thread(source) => StartError::System { action: "start the log's thread", source },
        OpenFailure::NoWriter => {
            StartError::System { action: "write the log", source: io::Error::other("its writer is taken") }
        }
    })
}

fn serve(
    runtime: &Runtime,
    mut blueprint: Blueprint,
    parts: &Arc<Parts>,
    engine: Engine,
    started: &mpsc::SyncSender<Result<(), StartError>>,
) -> Result<(), RunError> {
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        let (goodbye, server) = match start_services(&mut blueprint, parts, &mut tasks) {
            Ok(services) => services,
            Err(error) => {
                let _ = started.send(Err(error));
                return Ok(());
            }
        };
        let _ = started.send(Ok(()));
        info!(epsilon_us = blueprint.node.epsilon, "started");
        let result = drive(&blueprint, parts, engine).await;
        parts.mailbox.hang_up(Phase::Stopped);
        blueprint.ready.store(false, Ordering::Relaxed);
        goodbye.send_replace(true);
        // A client that does not take its last replies must not keep the site.
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, server).await;
        match &result {
            Ok(()) => info!("stopped"),
            Err(error) => error!(%error, "stopped"),
        }
        result
    })
}

/// Runs the machine until the site is told to stop; starts it anew from storage if it was held up.
async fn drive(blueprint: &Blueprint, parts: &Arc<Parts>, mut engine: Engine) -> Result<(), RunError> {
    let site = || blueprint.name.clone();
    loop {
        let mut stop = blueprint.stop.clone();
        let stopped = async move {
            match stop.wait_for(Option::is_some).await {
                Ok(timeout) => timeout.unwrap_or_default(),
                // The handle is gone, and with it whoever could tell us.
                Err(_) => Duration::ZERO,
            }
        };
        match engine.run(stopped).await {
            Ok(()) => break,
            Err(Failure::Sync(source)) => return Err(RunError::Sync { site: site(), source }),
            Err(Failure::Read(source)) => return Err(RunError::Read { site: site(), problem: source.to_string() }),
            Err(failure @ Failure::Stalled { .. }) => {
                warn!(%failure, "starting anew from storage");
                parts.mailbox.hang_up(Phase::Open);
                let restart = |source| RunError::Restart { site: site(), source: Box::new(source) };
                engine = reopen(blueprint, parts, engine).map_err(restart)?;
            }
        }
    }
    flush(parts).await;
    drop(engine.close());
    Ok(())
}

fn reopen(blueprint: &Blueprint, parts: &Arc<Parts>, engine: Engine) -> Result<Engine, StartError> {
    // The directory must be free before it is opened again.
    drop(engine.close());
    if blueprint.storage == Storage::Memory {
        let source = io::Error::other("what was in memory is lost");
        return Err(StartError::System { action: "go on", source });
    }
    open_engine(blueprint, parts, open_store(blueprint)?)
}

/// Lets the last messages leave.
async fn flush(parts: &Parts) {
    let give_up = Instant::now() + FLUSH_TIMEOUT;
    while !parts.outboxes.values().all(|outbox| outbox.is_flushed()) && Instant::now() < give_up {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

type Server = tokio::task::JoinHandle<()>;

/// Starts everything around the machine: gRPC, HTTP, links, health.
fn start_services(
    blueprint: &mut Blueprint,
    parts: &Arc<Parts>,
    tasks: &mut JoinSet<()>,
) -> Result<(watch::Sender<bool>, Server), StartError> {
    let topology = &blueprint.topology;
    let mailbox = &parts.mailbox;
    let (goodbye, mut leave) = watch::channel(false);
    let system = |action| move |source| StartError::System { action, source };

    for outbox in parts.outboxes.values() {
        tasks.spawn(keep(Arc::clone(topology), Arc::clone(outbox)));
    }

    let (reporter, health) = tonic_health::server::health_reporter();
    tasks.spawn(watch_health(Arc::clone(mailbox), reporter, Arc::clone(&blueprint.ready)));

    if let Some(listener) = blueprint.http_listener.take() {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(system("listen for HTTP"))?;
        let sources = Sources {
            topology: Arc::clone(topology),
            mailbox: Arc::clone(mailbox),
            outboxes: parts.outboxes.values().cloned().collect(),
            gauges: Arc::clone(&parts.gauges),
            sync_times: Arc::clone(&parts.sync_times),
        };
        let routes = http::routes(Arc::new(sources), Arc::clone(&blueprint.ready));
        tasks.spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                error!(%error, "HTTP is served no more");
            }
        });
    }

    let clients = ClientService { topology: Arc::clone(topology), mailbox: Arc::clone(mailbox) };
    let peers = PeerService { topology: Arc::clone(topology), mailbox: Arc::clone(mailbox) };
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(v1::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let unusable = |error| StartError::System { action: "describe the service", source: io::Error::other(error) };
    let listener = blueprint.listener.try_clone().and_then(tokio::net::TcpListener::from_std);
    let listener = listener.map_err(system("listen for gRPC"))?;
    let router = tonic::transport::Server::builder()
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(SlacklineServer::new(clients).max_decoding_message_size(MESSAGE_BYTES))
        .add_service(PeerServer::new(peers).max_decoding_message_size(LINK_BYTES))
        .add_service(health)
        .add_service(reflection().build_v1().map_err(unusable)?)
        // Older tools know only this version.
        .add_service(reflection().build_v1alpha().map_err(unusable)?);
    let server = tokio::spawn(async move {
        let incoming = Incoming::new(listener);
        let leave = async move {
            // No sender means that the site is gone.
            let _ = leave.wait_for(|leave| *leave).await;
        };
        if let Err(error) = router.serve_with_incoming_shutdown(incoming, leave).await {
            error!(%error, "gRPC is served no more");
        }
    });
    Ok((goodbye, server))
}

/// Keeps the health service and the ready flag true to what the machine says.
async fn watch_health(mailbox: Arc<Mailbox>, reporter: HealthReporter, ready: Arc<AtomicBool>) {
    let mut last = None;
    loop {
        let readiness = http::status(&mailbox).await.map(|status| status.readiness);
        let serves = readiness == Some(Readiness::Ready);
        ready.store(serves, Ordering::Relaxed);
        if last != Some(readiness) {
            match readiness {
                Some(readiness) => info!("the site is {}", format!("{readiness:?}").to_lowercase()),
                None => info!("the site does not serve"),
            }
            let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
            reporter.set_service_status("", status).await;
            reporter.set_service_status("slackline.v1.Slackline", status).await;
            last = Some(readiness);
        }
        tokio::time::sleep(if serves { HEALTH_INTERVAL.1 } else { HEALTH_INTERVAL.0 }).await;
    }
}
