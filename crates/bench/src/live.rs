//! Real sites to measure: where their data lie, and one server in a process of its own.

use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use slackline_server::floor::Load;
use slackline_server::{ServeConfig, Site, SiteHandle};
use tokio::runtime::{Builder, Runtime};

/// The time that a server may take to serve, or to stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks whether it serves.
const LOOK: Duration = Duration::from_millis(2);
/// File systems that keep nothing when the power goes.
const VOLATILE: [&str; 4] = ["tmpfs", "ramfs", "devtmpfs", "hugetlbfs"];

/// Real sites cannot be run, or do not do what they should.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The data would lie in memory.
    #[error("{} is on {kind}, which is memory: durable grants cannot be measured there; run this in a directory on a disk", .path.display())]
    InMemory {
        /// The directory.
        path: PathBuf,
        /// The file system.
        kind: String,
    },
    /// The operating system refuses something.
    #[error("cannot {action}: {source}")]
    System {
        /// The attempt.
        action: String,
        /// Why not.
        source: io::Error,
    },
    /// A site or its client failed.
    #[error("{0}")]
    Failed(String),
}

impl LiveError {
    /// A site or its client failed: how.
    pub(crate) fn failed(why: impl std::fmt::Display) -> Self {
        Self::Failed(why.to_string())
    }

    /// For `map_err`: what was tried.
    pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }
}

/// A runtime for the clients of a benchmark: one thread, so that they take no more than one processor from the sites.
pub(crate) fn runtime() -> Result<Runtime, LiveError> {
    Builder::new_current_thread().enable_all().build().map_err(LiveError::system("start the client's runtime"))
}

/// A directory of its own for one benchmark's data. Removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    /// The absolute path.
    path: PathBuf,
    /// The type of the file system.
    pub file_system: String,
}

impl Scratch {
    /// A new directory below `parent`.
    pub fn below(parent: &Path) -> Result<Self, LiveError> {
        fs::create_dir_all(parent).map_err(LiveError::system(format!("create {}", parent.display())))?;
        let path = Self::fresh(parent.join(format!("slackline-bench-{}", std::process::id())), DirBuilder::new())?;
        let path = path.canonicalize().map_err(LiveError::system(format!("look at {}", path.display())))?;
        let file_system = file_system(&path);
        Ok(Self { path, file_system })
    }

    /// A new directory below the system's one for temporary files, which nobody else may enter.
    pub fn private() -> Result<Self, LiveError> {
        let parent = std::env::temp_dir();
        let parent = parent.canonicalize().map_err(LiveError::system(format!("look at {}", parent.display())))?;
        let mut builder = DirBuilder::new();
        builder.mode(0o700);

        let path = Self::fresh(parent.join(format!("slackline-bench-{}", std::process::id())), builder)?;
        Ok(Self { file_system: file_system(&path), path })
    }

    /// Makes a directory that nobody else has, named after `path`.
    fn fresh(path: PathBuf, builder: DirBuilder) -> Result<PathBuf, LiveError> {
        let mut number = 0;
        loop {
            // The first to create it has it: a test beside this one looks for another number.
            let path = path.with_extension(number.to_string());
            match builder.create(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(LiveError::system(format!("create {}", path.display()))(error)),
            }
        }
    }

    /// An error if the directory is in memory, where a sync makes nothing durable.
    pub fn refuse_memory(&self) -> Result<(), LiveError> {
        if !VOLATILE.contains(&self.file_system.as_str()) {
            return Ok(());
        }

        // The directory that was asked for, not the one below it that we made.
        let path = self.path.parent().unwrap_or(&self.path).to_owned();
        Err(LiveError::InMemory { path, kind: self.file_system.clone() })
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left; nothing depends on it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The type of the file system that holds a path, as the operating system's list of mounts names it.
fn file_system(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mount_of(&mounts, path).unwrap_or("unknown").to_owned()
}

/// The type of the mount with the longest path that leads to `path`; of equal ones the last, which hides the others.
fn mount_of<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mount = |line: &'a str| {
        // What is before the dash has the mount point as its fifth word; the type is the first word behind it.
        let (place, kind) = line.split_once(" - ")?;
        let place = place.split(' ').nth(4)?.replace("\\040", " ");
        path.starts_with(&place).then(|| (place.len(), kind.split(' ').next().unwrap_or_default()))
    };
    mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

/// A site, in a process of its own (`slackline serve`) or, for tests, on threads of this one.
#[derive(Debug)]
pub struct Server {
    /// The process or the threads, stopped when this is dropped.
    running: Running,
    /// The address for clients.
    pub address: SocketAddr,
    /// The address for health and metrics.
    http: SocketAddr,
    /// Its region, which its threads are named after.
    region: String,
    /// The time of its start.
    started: Instant,
}

/// Seconds of processor time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Worked {
    /// Of the thread that has the site's network and its machine.
    pub site: f64,
    /// Of the threads beside it: those of its log and its table.
    pub beside: f64,
}

impl Worked {
    /// The difference to an earlier reading.
    pub fn since(self, before: Self) -> Self {
        Self { site: self.site - before.site, beside: self.beside - before.beside }
    }

    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self { site: self.site + other.site, beside: self.beside + other.beside }
    }
}

#[derive(Debug)]
enum Running {
    /// A process of its own.
    Process(Child),
    /// Only kept: when it is dropped, the site stops.
    Threads {
        /// Its threads.
        _site: SiteHandle,
    },
}

impl Server {
    /// Starts a server on the data in a directory, which is made if it is not there: `binary`, or without one threads.
    pub fn start(binary: Option<&Path>, directory: &Path) -> Result<Self, LiveError> {
        Self::start_in(binary, directory, (&addresses(&["here"])?, 0), None)
    }

    /// Starts a floor in the place of the first region's site, where that is the only site that is asked.
    pub fn start_floor(
        binary: Option<&Path>,
        directory: &Path,
        regions: &[&str],
        load: Load,
    ) -> Result<Self, LiveError> {
        Self::start_in(binary, directory, (&addresses(regions)?, 0), Some(load))
    }

    /// Starts a server for each region, on data below a directory.
    pub fn start_cluster(binary: Option<&Path>, directory: &Path, regions: &[&str]) -> Result<Vec<Self>, LiveError> {
        let sites = addresses(regions)?;
        let start = |at: usize| Self::start_in(binary, &directory.join(&sites[at].0), (&sites, at), None);
        (0..sites.len()).map(start).collect()
    }

    /// Starts the server of one of the regions, each with the address of its site; or the floor in its place.
    fn start_in(
        binary: Option<&Path>,
        directory: &Path,
        (sites, at): (&[(String, SocketAddr)], usize),
        floor: Option<Load>,
    ) -> Result<Self, LiveError> {
        let ((region, address), http) = (&sites[at], free_address()?);
        let regions: Vec<&String> = sites.iter().map(|(region, _)| region).collect();

        // The configuration is a file, as people write it.
        let mut text = format!(
            "cluster = \"bench\"\nregions = {regions:?}\nregion = \"{region}\"\ndata = {:?}\nlisten = \"{address}\"\n\
             http = \"{http}\"\n",
            directory.display().to_string()
        );
        for (region, address) in sites {
            text += &format!("[[sites]]\nregion = \"{region}\"\naddress = \"{address}\"\n");
        }
        let file = directory.with_extension("toml");
        fs::write(&file, &text).map_err(LiveError::system(format!("write {}", file.display())))?;

        let started = Instant::now();
        let running = match binary {
            Some(binary) => Running::Process(start_process(binary, &file, floor)?),
            None => {
                let config = ServeConfig::parse(&text, &file).map_err(|error| LiveError::Failed(error.to_string()))?;
                let site = match floor {
                    None => Site::start(config.site()),
                    Some(load) => Site::start_floor(config.site(), load),
                };
                Running::Threads { _site: site.map_err(|error| LiveError::Failed(error.to_string()))? }
            }
        };
        Ok(Self { running, address: *address, http, region: region.clone(), started })
    }

    /// Waits until it serves. Returns how long that took from its start.
    pub fn wait_ready(&self) -> Result<Duration, LiveError> {
        while self.started.elapsed() < PATIENCE {
            // It listens before it serves: until then it says that it is not healthy.
            if get(self.http, "/healthz").is_ok_and(|reply| reply.starts_with("HTTP/1.1 200")) {
                return Ok(self.started.elapsed());
            }
            thread::sleep(LOOK);
        }
        Err(LiveError::Failed(format!("the server did not become ready within {} s", PATIENCE.as_secs())))
    }

    /// The sum of a metric over its labels.
    pub fn metric(&self, name: &str) -> Result<f64, LiveError> {
        metric(self.http, name)
    }

    /// The bound on its clock's error that the site assumes, in microseconds.
    pub fn epsilon(&self) -> Result<u64, LiveError> {
        self.metric("slackline_clock_epsilon_microseconds").map(|micros| micros as u64)
    }

    /// Bytes of memory that the process has now.
    pub fn resident_bytes(&self) -> Result<u64, LiveError> {
        let path = format!("/proc/{}/status", self.process());
        let status = fs::read_to_string(&path).map_err(LiveError::system(format!("read {path}")))?;

        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kibibytes.map(|kibibytes| kibibytes * 1024).ok_or_else(|| LiveError::Failed(format!("{path} has no VmRSS")))
    }

    /// The processor time that the site has had so far, as the kernel counts it, to the nanosecond.
    pub fn worked(&self) -> Result<Worked, LiveError> {
        let path = PathBuf::from(format!("/proc/{}/task", self.process()));
        let system = || LiveError::system(format!("read {}", path.display()));
        let (of_site, mut worked) = (format!("site-{}", self.region), Worked::default());
        for thread in fs::read_dir(&path).map_err(system())? {
            let thread = thread.map_err(system())?.path();
            // A thread may end at any time.
            let Ok(name) = fs::read_to_string(thread.join("comm")) else { continue };
            let Ok(times) = fs::read_to_string(thread.join("schedstat")) else { continue };

            // The first number of `schedstat` is the time on a processor; time spent waiting for one is not in it.
            let nanos = times.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0);
            let part = if name.starts_with(&of_site) { &mut worked.site } else { &mut worked.beside };
            *part += nanos as f64 / 1e9;
        }

        // Without the scheduler's statistics, or with another name of the thread, all figures would be 0.
        if worked.site == 0.0 {
            let path = path.display();
            return Err(LiveError::Failed(format!("{path} does not tell the time of thread {of_site}")));
        }
        Ok(worked)
    }

    /// The process in which it runs.
    fn process(&self) -> u32 {
        match &self.running {
            Running::Process(child) => child.id(),
            Running::Threads { .. } => std::process::id(),
        }
    }
}

/// A process ends as by `kill -9`; threads drain.
impl Drop for Server {
    fn drop(&mut self) {
        if let Running::Process(child) = &mut self.running {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts `slackline serve`, or `slackline bench floor`, and waits until it listens.
fn start_process(binary: &Path, config: &Path, floor: Option<Load>) -> Result<Child, LiveError> {
    // What a site warns of while the others start is not of interest, unless somebody asks for it.
    let level = std::env::var_os("RUST_LOG").unwrap_or_else(|| "error".into());
    let mut command = Command::new(binary);
    match floor {
        None => command.arg("serve"),
        Some(Load { request_bytes, operation_bytes, rows }) => {
            command.args(["bench", "floor", "--load"]).arg(format!("{request_bytes},{operation_bytes},{rows}"))
        }
    };

    let mut child = command
        .args(["--json", "--config"])
        .arg(config)
        .env("RUST_LOG", level)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(LiveError::system(format!("start {}", binary.display())))?;

    // The first line says that it listens; none, that it has ended.
    let mut line = String::new();
    let output = child.stdout.take().map(BufReader::new);
    let read = output.map(|mut output| output.read_line(&mut line)).transpose();
    if read.map_err(LiveError::system("read from the server"))?.unwrap_or(0) == 0 {
        let _ = child.wait();
        return Err(LiveError::Failed("the server did not start; its message is above".into()));
    }
    Ok(child)
}

/// The sum of a metric over its labels, from the `/metrics` of a site.
pub fn metric(http: SocketAddr, name: &str) -> Result<f64, LiveError> {
    let page = get(http, "/metrics").map_err(LiveError::system("read /metrics"))?;

    let value = |line: &str| {
        // Another metric's name may begin with this one.
        let rest = line.strip_prefix(name)?;
        if !rest.starts_with(['{', ' ']) {
            return None;
        }
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    };

    let values: Vec<f64> = page.lines().filter_map(value).collect();
    if values.is_empty() {
        return Err(LiveError::Failed(format!("/metrics has no {name}")));
    }
    Ok(values.into_iter().sum())
}

/// Regions, each with an address for its site.
fn addresses(regions: &[&str]) -> Result<Vec<(String, SocketAddr)>, LiveError> {
    regions.iter().map(|region| Ok(((*region).to_owned(), free_address()?))).collect()
}

/// An address of this machine that nobody listens at.
fn free_address() -> Result<SocketAddr, LiveError> {
    let ports = slackline_server::ports::free(1).map_err(LiveError::system("find a free port of 127.0.0.1"))?;
    Ok(SocketAddr::from(([127, 0, 0, 1], ports[0])))
}

/// A page of a site over HTTP, with its head.
///
/// # Errors
///
/// Nobody answers there within a few seconds.
pub fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_lies_on_the_mount_with_the_longest_name() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:1 / /tmp rw,x shared:4 - tmpfs tmpfs rw\n\
                      3 1 8:2 / /tmp/a\\040b rw - xfs /dev/b rw\n4 1 8:2 / /tmpfile rw - btrfs /dev/c rw\n";
        let kind = |path: &str| mount_of(mounts, Path::new(path));
        assert_eq!((kind("/home"), kind("/tmp/x"), kind("/tmp/a b/c")), (Some("ext4"), Some("tmpfs"), Some("xfs")));
        assert_eq!((kind("/tmpfile/x"), kind("/tmpf")), (Some("btrfs"), Some("ext4")));
    }

    #[test]
    fn memory_is_refused() {
        let shm = Path::new("/dev/shm");
        if file_system(shm) == "tmpfs" {
            let scratch = Scratch::below(shm).expect("a directory can be made");
            let error = scratch.refuse_memory().expect_err("tmpfs is memory").to_string();
            assert!(error.contains("/dev/shm is on tmpfs, which is memory"), "{error}");
        }
    }
}
