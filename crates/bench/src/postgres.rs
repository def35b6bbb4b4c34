//! A PostgreSQL to compare with: a cluster of our own in a folder that only it and we may enter, reached by a Unix socket there.
//!
//! It has the defaults of PostgreSQL for durability (`fsync` and `synchronous_commit` on). A shell watches over it, and reads from
//! a pipe that ends with this process, however that ends: then the server is stopped and the folder removed.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tokio::net::UnixStream;
use tokio_postgres::{Client, Config, NoTls};

use crate::live::{LiveError, Scratch};

/// The folder in which Debian's packages put each version.
const PACKAGED: &str = "/usr/lib/postgresql";
/// The user that the server runs as when we are root, which it refuses to be.
const SERVER_USER: &str = "postgres";
/// The owner of the database.
const OWNER: &str = "bench";
/// Shared buffers, in megabytes: more than all that is in the tables.
const SHARED_BUFFERS: usize = 256;
/// Connections besides those of the clients.
const SPARE: usize = 8;
/// Makes the cluster, and watches over its server: told where the programs and the folder are, the owner, and the settings.
const WATCH: &str = r#"
"$1/initdb" --auth-local=trust --auth-host=reject --encoding=UTF8 --locale=C --username="$3" -D "$2/data" \
    >"$2/log" 2>&1 || exit 1
echo "$4" >>"$2/data/postgresql.conf"
"$1/postgres" -D "$2/data" >>"$2/log" 2>&1 &
tries=0
until "$1/pg_isready" -q -h "$2" -p 5432; do
    tries=$((tries + 1))
    kill -0 $! && [ $tries -lt 3000 ] || exit 1
    sleep 0.02
done
echo ready
read -r _
kill -QUIT $!
wait $!
rm -rf "$2"
"#;

/// PostgreSQL's programs on this machine, and whom they are run as.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The folder that they are in.
    programs: PathBuf,
    /// User and group, if we are root.
    user: Option<(u32, u32)>,
}

impl Installation {
    /// Looks in `PATH`, then for the newest of the packaged versions.
    pub fn find() -> Result<Self, LiveError> {
        let is_there =
            |folder: &PathBuf| ["initdb", "postgres", "pg_isready"].iter().all(|name| folder.join(name).is_file());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs = std::env::split_paths(&path).find(is_there).or_else(|| packaged().find(is_there));

        let programs = programs.ok_or_else(|| {
            let why = format!("PostgreSQL is neither in PATH nor below {PACKAGED}: apt-get install postgresql");
            LiveError::Failed(why)
        })?;

        // PostgreSQL refuses to be run by root.
        let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        let user = if is_root { Some(server_user()?) } else { None };
        Ok(Self { programs, user })
    }

    /// For tests: as [`Installation::find`]; installed by the project's script where it is missing. None, and the reason on
    /// standard error, where that cannot be done.
    #[doc(hidden)]
    pub fn find_or_install() -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install-postgres.sh");
        let installed = || match Command::new(&script).stdout(Stdio::null()).status() {
            Ok(status) if status.success() => Self::find().map_err(|error| error.to_string()),
            Ok(status) => Err(format!("{}: {status}", script.display())),
            Err(error) => Err(format!("{}: {error}", script.display())),
        };

        let found = Self::find().or_else(|_| installed());
        // Not by `eprintln`, which is shown only of tests that fail.
        found.map_err(|why| writeln!(io::stderr(), "a test is left out, for want of PostgreSQL: {why}")).ok()
    }
}

/// The folders of programs of the packaged versions, the newest first.
fn packaged() -> impl Iterator<Item = PathBuf> {
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let folders = fs::read_dir(PACKAGED).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = folders.filter(|path| version(path).is_some()).collect();
    folders.sort_by_key(|path| std::cmp::Reverse(version(path)));
    folders.into_iter().map(|path| path.join("bin"))
}

/// The ids of the server's user and group.
fn server_user() -> Result<(u32, u32), LiveError> {
    let users = fs::read_to_string("/etc/passwd").map_err(LiveError::system("read /etc/passwd"))?;
    let ids = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find_map(|user| match user[..] {
        [SERVER_USER, _, user, group, ..] => Some((user.parse().ok()?, group.parse().ok()?)),
        _ => None,
    });
    ids.ok_or_else(|| {
        let why = format!("PostgreSQL refuses to be run by root, and there is no user {SERVER_USER} to run it as");
        LiveError::Failed(why)
    })
}

/// A running server. Stopped, and its folder removed, when dropped.
#[derive(Debug)]
pub struct Server {
    /// The shell that watches over the server, and stops it at the end of its input.
    watch: Child,
    /// The cluster's folder.
    scratch: Scratch,
}

impl Server {
    /// Makes a cluster for this number of clients, and starts its server.
    pub fn start(installation: &Installation, clients: usize) -> Result<Self, LiveError> {
        let scratch = Scratch::private()?;
        let folder = scratch.path();
        let mut command = Command::new("sh");
        if let Some((user, group)) = installation.user {
            let why = LiveError::system(format!("give {} to {SERVER_USER}", folder.display()));
            chown(folder, Some(user), Some(group)).map_err(why)?;
            command.uid(user).gid(group);
        }

        // No port of the machine: only who may enter the folder can connect.
        let settings = format!(
            "listen_addresses = ''\nport = 5432\nunix_socket_directories = '{}'\nmax_connections = {}\n\
             shared_buffers = {SHARED_BUFFERS}MB",
            folder.display().to_string().replace('\'', "''"),
            clients + SPARE
        );

        // In a group of its own, so that it outlives an interrupt from the terminal.
        let mut watch = command
            .args(["-c", WATCH, "sh"])
            .args([&installation.programs, folder])
            .args([OWNER, &settings])
            .current_dir(folder)
            .env("LC_ALL", "C")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(LiveError::system("start sh"))?;
        let output = watch.stdout.take();
        let server = Self { watch, scratch };

        // The first line says that it serves; none, that it has ended.
        let mut line = String::new();
        let read = output.map(|output| BufReader::new(output).read_line(&mut line)).transpose();
        if read.map_err(LiveError::system("read from sh"))?.unwrap_or(0) == 0 {
            return Err(LiveError::Failed(format!("PostgreSQL does not start: {}", server.last_words())));
        }
        Ok(server)
    }

    /// The file system that its data lie on.
    pub fn file_system(&self) -> &str {
        &self.scratch.file_system
    }

    /// A connection of its own, served by a local task.
    pub async fn connect(&self) -> Result<Client, LiveError> {
        let socket = UnixStream::connect(self.scratch.path().join(".s.PGSQL.5432")).await;
        let socket = socket.map_err(LiveError::system("connect to PostgreSQL"))?;

        let connected = Config::new().user(OWNER).dbname("postgres").connect_raw(socket, NoTls).await;
        let (client, connection) = connected.map_err(|error| LiveError::Failed(format!("PostgreSQL: {error}")))?;
        // If it fails, so does each request on it.
        tokio::task::spawn_local(connection);
        Ok(client)
    }

    /// The end of the log, from the last error on.
    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let is_error = |line: &&str| line.contains("FATAL") || line.contains("error:");
        let from = lines.iter().rposition(is_error).unwrap_or(lines.len().saturating_sub(1));
        lines[from..].join("; ")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of the pipe ends it.
        drop(self.watch.stdin.take());
        let _ = self.watch.wait();
    }
}
