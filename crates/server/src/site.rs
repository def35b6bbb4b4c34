//! One site: its threads, from start to stop.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use slackline_core::api::Readiness;
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::node::{self, Stale};
use slackline_storage::{Embedded, Identity, Memory, OpenError, Options, Store, WriteError};
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
use crate::config::{ConfigError, Listen, NewStorage, SiteConfig, Storage};
use crate::crash::CrashPoints;
use crate::demand::{DemandDesk, Forecaster};
use crate::engine::{Engine, Failure, OpenFailure, Parts};
use crate::floor::{Floor, Load};
use crate::health::{FigureDesk, Health};
use crate::http;
use crate::incoming::{HTTP1_REQUEST, HTTP2_PREFACE, Incoming};
use crate::link::{LINK_BYTES, PeerService};
use crate::links::Links;
use crate::mailbox::{Mailbox, Phase};
use crate::metrics::{Gauges, Sources, SyncTimes};
use crate::service::ClientService;
use crate::topology::Topology;
use crate::unsent::Pieces;

/// The first and the longest pause before storage is opened again that found no room on the disk.
const ROOM_PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// The time that a stopping site waits for its last messages to leave, delays put in included.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// The time that a stopping site waits for its clients to take their last replies.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);
/// The most streams on one gRPC connection; further ones wait.
const STREAMS: u32 = 1_024;
/// The time after which a silent client is probed, and then the time after which it is given up: a client that vanished without a
/// word must not take up room permanently.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// The largest HTTP/2 frame that is taken, in bytes: large values come in few pieces.
const FRAME: u32 = 256 << 10;
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
        /// The operating system's reason.
        source: io::Error,
    },
    /// The storage cannot be opened.
    #[error(transparent)]
    Storage(#[from] slackline_storage::OpenError),
    /// The rows in the storage cannot be used.
    #[error("site {site} cannot go on with its data in {data}: {source}")]
    Node {
        /// The site.
        site: String,
        /// The data directory.
        data: String,
        /// The machine's reason.
        source: node::OpenError,
    },
    /// A person says that new storage may join, and the storage is not new.
    #[error(
        "{data} is not new, it is incarnation {incarnation} of site {site}: start the site without --new-storage, which is said \
         once, to a data directory that is empty because the earlier one is lost"
    )]
    NotNew {
        /// The site.
        site: String,
        /// The data directory.
        data: String,
        /// The site's incarnation in it.
        incarnation: u32,
    },
    /// The operating system refuses something else that a site needs.
    #[error("cannot {action}: {source}")]
    System {
        /// The act that failed, as a verb.
        action: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}

impl StartError {
    /// True if the configuration, or the command line, does not fit the data directory: nothing failed.
    pub fn is_of_the_configuration(&self) -> bool {
        match self {
            StartError::Config(_) | StartError::NotNew { .. } => true,
            StartError::Node { source, .. } => {
                matches!(source, node::OpenError::OtherSite { .. } | node::OpenError::OtherMembers { .. })
            }
            StartError::Storage(error) => {
                use slackline_storage::OpenError::{OtherCluster, OtherLanes, OtherSite};
                matches!(error, OtherCluster { .. } | OtherSite { .. } | OtherLanes { .. })
            }
            StartError::Listen { .. } | StartError::System { .. } => false,
        }
    }
}

/// A running site stopped by itself. What it had acknowledged is durable.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log could not be written.
    #[error("site {site} stopped: {source}")]
    Sync {
        /// The site.
        site: String,
        /// The storage's reason.
        source: WriteError,
    },
    /// The storage could not be read.
    #[error("site {site} stopped: {problem}")]
    Read {
        /// The site.
        site: String,
        /// The storage's reason.
        problem: String,
    },
    /// The site was restarted from its storage, which failed.
    #[error("site {site} stopped: it could not start again from storage: {source}")]
    Restart {
        /// The site.
        site: String,
        /// The reason why it could not start.
        source: Box<StartError>,
    },
    /// The log ends in a group that cannot be read, and other sites have heard of its batches.
    #[error(
        "site {site} stopped: {} is damaged at byte {at}: batch {} cannot be read there, and other sites have heard of it; keep \
         {} aside, and start the site once with an empty data directory and --new-storage, as one that has lost its disk", 
        .path.display(), .last + 1, .data.display()
    )]
    Damaged {
        /// The site.
        site: String,
        /// The segment of the log.
        path: PathBuf,
        /// The place in it, in bytes.
        at: u64,
        /// The last batch that can be read.
        last: u64,
        /// The data directory.
        data: PathBuf,
    },
    /// The data directory is an old copy, and cannot be moved.
    #[error(
        "site {site} stopped: {} is an old copy of its data ({why}), and cannot be moved aside to {}: {source}; move it \
         yourself, and start the site on an empty directory", .data.display(), .aside.display()
    )]
    Stale {
        /// The site.
        site: String,
        /// The data directory.
        data: PathBuf,
        /// The evidence that it is an old copy.
        why: String,
        /// The name that it was to get.
        aside: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The site's thread ended in a panic: an invariant is broken.
    #[error("site {site} stopped: an invariant is broken ({message}); keep its data and report this")]
    Panicked {
        /// The site.
        site: String,
        /// The panic's message.
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
    /// The bound on its clock's error, in microseconds.
    epsilon: u64,
    /// The time to drain, once the site is told to stop.
    stop: watch::Sender<Option<Duration>>,
    health: watch::Receiver<Health>,
    demand: Arc<DemandDesk>,
    /// The site's thread, until it is joined.
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Site {
    /// Opens a site's storage and listeners and runs it on a thread of its own. Returns when it can be reached; it serves
    /// when it is ready ([`SiteHandle::wait_ready`]).
    pub fn start(config: SiteConfig) -> Result<SiteHandle, StartError> {
        Self::start_as(config, None)
    }

    /// Starts what benchmarks compare a site with: it appends a load and answers, and promises nothing; see [`crate::floor`].
    pub fn start_floor(config: SiteConfig, load: Load) -> Result<SiteHandle, StartError> {
        Self::start_as(config, Some(load))
    }

    fn start_as(config: SiteConfig, floor: Option<Load>) -> Result<SiteHandle, StartError> {
        let topology = Arc::new(Topology::of(&config)?);
        let name = topology.name(topology.me);
        let epsilon = clock::epsilon(config.epsilon);
        let crash_points = Arc::new(CrashPoints::from_environment(topology.me)?);

        // The sockets before the storage: a second process with the same configuration fails here and touches no data.
        let listener = bind(config.listen)?;
        let address = local_address(&listener)?;
        let http_listener = config.http.map(bind).transpose()?;
        let http_address = http_listener.as_ref().map(local_address).transpose()?;

        let (stop, stopped) = watch::channel(None);
        let (publisher, health) = watch::channel(Health::stopped());
        let demand = Arc::new(DemandDesk::new(config.demand));
        let blueprint = Blueprint {
            node: node::Config {
                me: topology.me,
                members: topology.members(),
                epsilon,
                redistribute: config.redistribute,
                ahead: true,
                warranties: config.warranties,
                slack: slackline_core::config::Slack::default(),
                idle_calls: slackline_core::config::IDLE_CALLS,
                names_kept: slackline_core::config::NAMES_KEPT,
                new_storage: config.new_storage != NewStorage::Waits,
                first_session: node::Config::random_session(RandomState::new().hash_one(&name)),
            },
            new_storage: config.new_storage,
            topology: Arc::clone(&topology),
            name: name.clone(),
            storage: config.storage,
            storage_options: config.storage_options,
            delays: config.delays,
            crash_points,
            listener,
            http_listener,
            stop: stopped,
            health: publisher,
            demand: Arc::clone(&demand),
        };

        // The storage is opened on the site's own thread, which logs under its name. This one waits for the result, so that an error
        // of opening is returned here.
        let (started, starting) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name(format!("site-{name}"))
            .spawn(move || run(blueprint, floor, &started))
            .map_err(|source| StartError::System { action: "start the site's thread", source })?;
        let mut handle =
            SiteHandle { topology, address, http: http_address, epsilon, stop, health, demand, thread: Some(thread) };
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

    /// The address at which it listens for clients and other sites.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address at which it serves `/healthz` and `/metrics`, if it does.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// The bound on its clock's error, in microseconds.
    pub fn epsilon(&self) -> u64 {
        self.epsilon
    }

    /// True while it serves reads and writes.
    pub fn is_ready(&self) -> bool {
        self.health.borrow().is_ready()
    }

    /// Waits until it serves, for at most `timeout`. Returns true if it does.
    pub fn wait_ready(&self, timeout: Duration) -> bool {
        let give_up = Instant::now() + timeout;
        while !self.is_ready() && Instant::now() < give_up && !self.has_stopped() {
            thread::sleep(Duration::from_millis(5));
        }
        self.is_ready()
    }

    /// True once it has ended; [`SiteHandle::drain`] returns the reason.
    pub fn has_stopped(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Has the site load the models of its quotas again. Does not wait for it. What is wrong with one is logged, and the one before
    /// stays.
    pub fn reload_models(&self) {
        self.demand.reload();
    }

    /// Tells the site to take no further request, to finish those that wait within `timeout`, to sync and to stop.
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

/// The configuration and the sockets from which a site's thread is made.
struct Blueprint {
    node: node::Config,
    topology: Arc<Topology>,
    /// The site's name, for people.
    name: String,
    storage: Storage,
    storage_options: Options,
    /// One-way delays put in before messages to other sites leave.
    delays: BTreeMap<SiteId, Duration>,
    crash_points: Arc<CrashPoints>,
    listener: TcpListener,
    /// The socket for HTTP, until it is served; `None` if the site serves none.
    http_listener: Option<TcpListener>,
    /// The time to drain, once the site is told to stop.
    stop: watch::Receiver<Option<Duration>>,
    health: watch::Sender<Health>,
    demand: Arc<DemandDesk>,
    new_storage: NewStorage,
}

/// What a site's thread drives.
enum Driven {
    /// The site's machine, and whether it is on the site's storage.
    Machine(Box<Engine>, bool),
    /// What it is compared with.
    Floor(Box<Floor>),
}

/// The life of a site's thread.
fn run(
    blueprint: Blueprint,
    floor: Option<Load>,
    started: &mpsc::SyncSender<Result<(), StartError>>,
) -> Result<(), RunError> {
    // Everything of a site runs on this thread, so all that it logs bears its name. An error's level, so that no filter by
    // level leaves the name out.
    let _named = error_span!("site", name = %blueprint.name).entered();
    let opened = match floor {
        None => open(&blueprint),
        Some(load) => open_floor(&blueprint, load),
    };
    let prepared = opened.and_then(|(parts, driven)| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| StartError::System { action: "start the runtime", source })?;
        Ok((runtime, parts, driven))
    });

    match prepared {
        Ok((runtime, parts, driven)) => {
            let ended = serve(&runtime, blueprint, &parts, driven, started);
            // Names of other sites may be looked up just now, by threads that nothing can interrupt. They have nothing of the site's.
            runtime.shutdown_background();
            ended
        }
        Err(error) => {
            // It cannot be sent only if the thread that starts the site is gone; then nobody wants to know.
            let _ = started.send(Err(error));
            Ok(())
        }
    }
}

/// Opens the site's storage and a machine on it; see [`open_with_room`].
fn open(blueprint: &Blueprint) -> Result<(Arc<Parts>, Driven), StartError> {
    let topology = &blueprint.topology;
    let others = topology.members().into_iter().filter(|member| *member != topology.me);
    let parts = parts(blueprint, Links::new(others, blueprint.delays.clone()));
    let (engine, has_storage) = open_with_room(blueprint, &parts)?;
    Ok((parts, Driven::Machine(Box::new(engine), has_storage)))
}

fn parts(blueprint: &Blueprint, links: Links) -> Arc<Parts> {
    Arc::new(Parts {
        config: blueprint.node.clone(),
        mailbox: Arc::new(Mailbox::new()),
        links: Arc::new(links),
        topology: Arc::clone(&blueprint.topology),
        gauges: Arc::new(Mutex::new(Gauges::default())),
        sync_times: Arc::new(SyncTimes::new()),
        crash_points: Arc::clone(&blueprint.crash_points),
        health: blueprint.health.clone(),
        figures: Arc::new(FigureDesk::new()),
        demand: Arc::clone(&blueprint.demand),
        permission: AtomicBool::new(true),
    })
}

fn open_floor(blueprint: &Blueprint, load: Load) -> Result<(Arc<Parts>, Driven), StartError> {
    let parts = parts(blueprint, Links::new(std::iter::empty(), BTreeMap::new()));
    let floor = Floor::open(Arc::clone(&parts), open_store(blueprint)?, &blueprint.name, load);
    let floor = floor.map_err(|failure| unopened(blueprint, failure))?;
    Ok((parts, Driven::Floor(Box::new(floor))))
}

/// Opens the site's storage and a machine on it. If there is no room on the disk to open it, opens a machine on an empty memory
/// without room: it takes no message, sends none, and refuses each operation that would write. Returns true last if the machine
/// has the site's storage.
fn open_with_room(blueprint: &Blueprint, parts: &Arc<Parts>) -> Result<(Engine, bool), StartError> {
    match open_store(blueprint) {
        Ok(store) => {
            let engine = open_engine(blueprint, parts, store)?;
            // The permission would work again each time that the volume is not mounted. So a site with data refuses it at once, and it
            // does not stay in a script.
            let is_permitted = blueprint.new_storage == NewStorage::Permitted && parts.permission.load(Relaxed);
            if is_permitted && engine.incarnation() > Incarnation(0) {
                let (site, incarnation) = (blueprint.name.clone(), engine.incarnation().0);
                return Err(StartError::NotNew { site, data: data(blueprint).display().to_string(), incarnation });
            }
            Ok((engine, true))
        }
        Err(StartError::Storage(full @ OpenError::Full { .. })) => {
            if parts.health.borrow().readiness != Some(Readiness::StorageFull) {
                error!("{full}; the site does not serve until then");
            }
            let mut nothing = Memory::new();
            nothing.set_room(0);
            Ok((open_engine(blueprint, parts, Box::new(nothing))?, false))
        }
        Err(error) => Err(error),
    }
}

fn open_store(blueprint: &Blueprint) -> Result<Box<dyn Store>, StartError> {
    match &blueprint.storage {
        Storage::Memory => Ok(Box::new(Memory::new())),
        Storage::Directory(path) => {
            let Topology { cluster, lanes, .. } = &*blueprint.topology;
            let identity = Identity { cluster: cluster.clone(), site: blueprint.name.clone(), lanes: *lanes };
            Ok(Box::new(Embedded::open(path, &identity, blueprint.storage_options.clone())?))
        }
    }
}

fn open_engine(blueprint: &Blueprint, parts: &Arc<Parts>, store: Box<dyn Store>) -> Result<Engine, StartError> {
    let mut config = parts.config.clone();
    config.new_storage &= blueprint.new_storage == NewStorage::Joins || parts.permission.load(Relaxed);
    Engine::open(Arc::clone(parts), config, store, &blueprint.name).map_err(|failure| unopened(blueprint, failure))
}

fn unopened(blueprint: &Blueprint, failure: OpenFailure) -> StartError {
    match failure {
        OpenFailure::Node(source) => {
            StartError::Node { site: blueprint.name.clone(), data: data(blueprint).display().to_string(), source }
        }
        OpenFailure::Thread(source) => StartError::System { action: "start the log's thread", source },
        OpenFailure::NoWriter => {
            StartError::System { action: "write the log", source: io::Error::other("its writer is taken") }
        }
    }
}

/// The place of the site's data, for messages.
fn data(blueprint: &Blueprint) -> &Path {
    match &blueprint.storage {
        Storage::Memory => Path::new("memory"),
        Storage::Directory(path) => path,
    }
}

/// Starts the services around the machine, runs it to its end, and ends them.
fn serve(
    runtime: &Runtime,
    mut blueprint: Blueprint,
    parts: &Arc<Parts>,
    driven: Driven,
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
        let forecaster = match Forecaster::start(&parts.demand, &parts.mailbox, &blueprint.name) {
            Ok(forecaster) => forecaster,
            Err(source) => {
                let _ = started.send(Err(StartError::System { action: "start the thread of forecasts", source }));
                return Ok(());
            }
        };
        let _ = started.send(Ok(()));
        info!(epsilon_us = blueprint.node.epsilon, "started");
        let result = match driven {
            Driven::Machine(engine, has_storage) => drive(&blueprint, parts, *engine, has_storage).await,
            Driven::Floor(floor) => {
                let ended = floor.run(stopped(&blueprint)).await;
                ended.map_err(|source| RunError::Sync { site: blueprint.name.clone(), source })
            }
        };

        // The machine is gone, so nobody answers what still waits. Clients learn that now, not by a time-out. One that does not take
        // its last replies must not keep the site.
        parts.mailbox.hang_up(Phase::Stopped);
        parts.health.send_replace(Health::stopped());
        goodbye.send_replace(true);
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, server).await;
        drop(forecaster);
        match &result {
            Ok(()) => info!("stopped"),
            Err(error) => error!(%error, "stopped"),
        }
        result
    })
}

/// Runs the machine until the site is told to stop. Starts it again from storage if it was held up; on new storage if its storage
/// is an old copy; and on its own storage as soon as there is room to open that.
async fn drive(
    blueprint: &Blueprint,
    parts: &Arc<Parts>,
    mut engine: Engine,
    mut has_storage: bool,
) -> Result<(), RunError> {
    let site = || blueprint.name.clone();
    let restart = |source| RunError::Restart { site: site(), source: Box::new(source) };
    let mut pause = ROOM_PAUSE.0;
    loop {
        let stop = stopped(blueprint);

        // A machine without the site's storage is only there to say so. It is given up after each pause, and loses nothing: it
        // has written nothing and promised nothing.
        let ended = match has_storage {
            true => engine.run(stop).await,
            false => match tokio::time::timeout(pause, engine.run(stop)).await {
                Ok(ended) => ended,
                Err(_) => {
                    (engine, has_storage) = open_with_room(blueprint, parts).map_err(restart)?;
                    pause = (pause * 2).min(ROOM_PAUSE.1);
                    continue;
                }
            },
        };

        // A person's word is about the storage with which the process began. It is used up once that has an incarnation, and says nothing of
        // what takes its place: else two processes that are one site by mistake would replace each other for ever.
        if engine.incarnation() > Incarnation(0) || matches!(ended, Err(Failure::Stale(_))) {
            parts.permission.store(false, Relaxed);
        }
        match ended {
            Ok(()) => break,
            // Storage that failed once is not trusted again in this process: a person looks at the disk, then starts the site.
            Err(Failure::Sync(source)) => return Err(RunError::Sync { site: site(), source }),
            Err(Failure::Read(source)) => return Err(RunError::Read { site: site(), problem: source.to_string() }),
            // Its memory may hold decisions of a time long past; its storage holds only what was decided in time.
            Err(failure @ Failure::Stalled { .. }) => {
                warn!(%failure, "starting again from storage");
                parts.mailbox.hang_up(Phase::Open);
                (engine, has_storage) = reopen(blueprint, parts, engine).map_err(restart)?;
                pause = ROOM_PAUSE.0;
            }
            // The machine has told nobody anything since it found out. A new incarnation takes its place, with nothing of its past.
            Err(Failure::Stale(stale)) => {
                parts.mailbox.hang_up(Phase::Open);
                put_aside(blueprint, engine, stale)?;
                (engine, has_storage) = open_with_room(blueprint, parts).map_err(restart)?;
                pause = ROOM_PAUSE.0;
            }
        }
    }

    flush(parts).await;
    drop(engine.close());
    Ok(())
}

/// Waits until the site is told to stop; returns how long that may take.
async fn stopped(blueprint: &Blueprint) -> Duration {
    match blueprint.stop.clone().wait_for(Option::is_some).await {
        Ok(timeout) => timeout.unwrap_or_default(),
        // The handle is gone, and nobody else can tell the site to stop.
        Err(_) => Duration::ZERO,
    }
}

/// Moves the site's data directory, which is an old copy, aside: whole, because it may be the only copy of something. But if
/// other sites know only of later batches of the same log, and the log ends in a group that cannot be read, then this is the
/// newest copy, and damaged: it stays, and a person has to look at it.
fn put_aside(blueprint: &Blueprint, engine: Engine, stale: Stale) -> Result<(), RunError> {
    let (site, incarnation, torn) = (blueprint.name.clone(), engine.incarnation().0, engine.torn());
    // The directory must be free before it is moved, by this process or by a person.
    drop(engine.close());
    let data = data(blueprint).to_owned();
    if let (Stale::Behind { .. }, Some(torn)) = (stale, torn) {
        return Err(RunError::Damaged { site, path: torn.path, at: torn.at, last: torn.last, data });
    }
    let why = match stale {
        Stale::Replaced { by } => format!("it is incarnation {incarnation}, and other sites know incarnation {}", by.0),
        Stale::Forgetful { epoch } => {
            format!("other sites have forgotten deleted quotas {epoch} times, and it has missed that")
        }
        Stale::Removed => "it is a member of the cluster no longer".to_owned(),
        Stale::Behind { position } => format!("other sites have heard of batch {position}, which it does not have"),
    };

    // In memory there is nothing to keep, and a directory of that name in the working directory is somebody else's.
    if blueprint.storage == Storage::Memory {
        error!("the site's data in memory are old ({why}): the site starts on empty ones");
        return Ok(());
    }

    // What is moved is the directory itself, whatever the configuration calls it: `data/`, or a link to it. And the new name is one that
    // was never used: an earlier copy is not overwritten.
    let data = std::fs::canonicalize(&data).unwrap_or(data);
    let mut aside = data.clone().into_os_string();
    aside.push(format!(".stale-{incarnation}"));
    let names = (1..).map(|number| match number {
        1 => PathBuf::from(&aside),
        _ => PathBuf::from(format!("{}.{number}", aside.display())),
    });
    let aside = names.into_iter().find(|name| !name.exists()).unwrap_or_default();
    std::fs::rename(&data, &aside).map_err(|source| RunError::Stale {
        site,
        data: data.clone(),
        why: why.clone(),
        aside: aside.clone(),
        source,
    })?;

    // A link would lead nowhere. If this fails, so does the start on what is new, and says why; and if the new names are lost with the power, the
    // old copy is there again, and is moved again.
    let _ = std::fs::create_dir(&data).and_then(|()| File::open(data.parent().unwrap_or(Path::new("/")))?.sync_all());
    error!(
        "{} is an old copy of the site's data ({why}): moved to {}, and the site starts on an empty directory",
        data.display(),
        aside.display()
    );
    Ok(())
}

/// Closes a machine and opens another one on the same storage.
fn reopen(blueprint: &Blueprint, parts: &Arc<Parts>, engine: Engine) -> Result<(Engine, bool), StartError> {
    // The directory must be free before it is opened again.
    drop(engine.close());
    if blueprint.storage == Storage::Memory {
        let source = io::Error::other("the data in memory are lost");
        return Err(StartError::System { action: "go on", source });
    }
    open_with_room(blueprint, parts)
}

/// Lets the last messages leave: the totals of the tokens that this site gave away when it drained.
async fn flush(parts: &Parts) {
    let give_up = Instant::now() + FLUSH_TIMEOUT;
    while !parts.links.are_flushed() && Instant::now() < give_up {
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

    let (links, map) = (Arc::clone(&parts.links), Arc::clone(topology));
    tasks.spawn(async move { links.keep(map).await });

    let (reporter, health) = tonic_health::server::health_reporter();
    tasks.spawn(watch_health(parts.health.subscribe(), reporter));

    if let Some(listener) = blueprint.http_listener.take() {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(system("listen for HTTP"))?;
        let sources = Sources {
            topology: Arc::clone(topology),
            mailbox: Arc::clone(mailbox),
            links: Arc::clone(&parts.links),
            gauges: Arc::clone(&parts.gauges),
            sync_times: Arc::clone(&parts.sync_times),
            figures: Arc::clone(&parts.figures),
        };
        let routes = http::routes(Arc::new(sources), parts.health.subscribe());
        tasks.spawn(async move {
            if let Err(error) = axum::serve(Incoming::new(listener, HTTP1_REQUEST), routes).await {
                error!(%error, "HTTP is no longer served");
            }
        });
    }

    let demand = Arc::clone(&parts.demand);
    let clients = ClientService { topology: Arc::clone(topology), mailbox: Arc::clone(mailbox), demand };
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
        .max_frame_size(FRAME)
        .max_concurrent_streams(Some(STREAMS))
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(Pieces::new(
            SlacklineServer::new(clients).max_decoding_message_size(MESSAGE_BYTES),
            mailbox.unsent(),
        ))
        .add_service(PeerServer::new(peers).max_decoding_message_size(LINK_BYTES))
        .add_service(health)
        .add_service(reflection().build_v1().map_err(unusable)?)
        // Older tools know only this version.
        .add_service(reflection().build_v1alpha().map_err(unusable)?);
    let server = tokio::spawn(async move {
        let incoming = Incoming::new(listener, HTTP2_PREFACE);
        let leave = async move {
            // Also when the sender is gone, and with it the site.
            let _ = leave.wait_for(|leave| *leave).await;
        };
        if let Err(error) = router.serve_with_incoming_shutdown(incoming, leave).await {
            error!(%error, "gRPC is no longer served");
        }
    });
    Ok((goodbye, server))
}

/// Sets the health service to the state that the engine publishes, after each change.
async fn watch_health(mut health: watch::Receiver<Health>, reporter: HealthReporter) {
    let mut last = None;
    loop {
        let (ready, name) = {
            let health = health.borrow_and_update();
            (health.is_ready(), health.readiness.map(|_| health.name()))
        };
        // The sites that it waits for may have changed alone; and its end is logged by `serve`.
        if last != name {
            name.into_iter().for_each(|name| info!("the site is {name}"));
            last = name;
        }
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        reporter.set_service_status("", status).await;
        reporter.set_service_status("slackline.v1.Slackline", status).await;

        // The sender is gone, and with it the site.
        if health.changed().await.is_err() {
            return;
        }
    }
}
