//! The binary as a process: run to its end, or kept running until the test is over.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

/// No process of a test runs longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Standard output, which must be one JSON object in one line.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{self:?}");
        let value: Value = serde_json::from_str(&self.stdout).expect("JSON");
        assert!(value.is_object());
        value
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(words).env_remove("SLACKLINE_CONNECT").env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the binary to its end.
pub(crate) fn slackline(words: &[&str]) -> Ended {
    ended(command(words).spawn().expect("the binary starts"))
}

/// Runs the binary to its end with an environment variable.
pub(crate) fn slackline_with(variable: &str, value: &str, words: &[&str]) -> Ended {
    ended(command(words).env(variable, value).spawn().expect("the binary starts"))
}

/// Runs the binary to its end in a directory.
pub(crate) fn slackline_in(directory: &Path, words: &[&str]) -> Ended {
    ended(command(words).current_dir(directory).spawn().expect("the binary starts"))
}

fn ended(mut child: Child) -> Ended {
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            if let Some(mut pipe) = pipe {
                pipe.read_to_string(&mut text).expect("text");
            }
            let _ = sender.send(text);
        });
        receiver
    };
    let stdout = read(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = read(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child of this process") {
            break status;
        }
        if Instant::now() >= until {
            child.kill().expect("a child of this process");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Ended {
        status: status.code().unwrap_or(-1),
        stdout: stdout.recv().expect("its reader ends"),
        stderr: stderr.recv().expect("its reader ends"),
    }
}

/// A process that runs until the test is over; killed then at the latest.
pub(crate) struct Server {
    child: Option<Child>,
    /// What it said when it was up.
    pub(crate) said: Value,
    /// Where it is reached.
    pub(crate) connect: String,
}

impl Server {
    /// Starts the binary and waits until it has printed its JSON object.
    pub(crate) fn start(words: &[&str]) -> Self {
        Self::start_with(words, Stdio::inherit())
    }

    /// The same; what it writes to standard error goes there. If that is a pipe, it is read at the end.
    pub(crate) fn start_with(words: &[&str], stderr: Stdio) -> Self {
        let mut command = command(words);
        command.stderr(stderr);
        let (mut server, line) = Self::start_command(command);
        server.said = serde_json::from_str(&line).expect("JSON");
        if let Some(address) = server.said["sites"][0]["address"].as_str() {
            server.connect = address.to_owned();
        }
        server
    }

    /// The same, in a build that has crash points: it ends by itself at this one, perhaps before it has said anything.
    #[allow(dead_code, reason = "only the other test binary needs it")]
    pub(crate) fn start_to_crash(words: &[&str], point: &str) -> Self {
        let mut command = command(words);
        command.env("SLACKLINE_CRASH_AT", point).stderr(Stdio::inherit());
        let (mut server, line) = Self::start_command(command);
        server.said = serde_json::from_str(&line).unwrap_or_default();
        server
    }

    /// The same, traced by `strace` with these options, which have `-D`: so the process is the binary's own.
    #[allow(dead_code, reason = "only one of the test binaries needs it")]
    pub(crate) fn start_traced(options: &[&str], words: &[&str]) -> Self {
        let mut command = Command::new("strace");
        command.args(options).arg(env!("CARGO_BIN_EXE_slackline")).args(words).env_remove("SLACKLINE_CONNECT");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let (mut server, line) = Self::start_command(command);
        server.said = serde_json::from_str(&line).expect("JSON");
        server
    }

    /// Starts a process that says nothing, and is reached at this address.
    #[allow(dead_code, reason = "only one of the test binaries needs it")]
    pub(crate) fn start_silent(mut command: Command, address: String) -> Self {
        let child = command.stdin(Stdio::null()).spawn().expect("the binary starts");
        Self { child: Some(child), said: Value::Null, connect: address }
    }

    /// The process, and the first line that it prints.
    fn start_command(mut command: Command) -> (Self, String) {
        let command = command.env("RUST_LOG", "error");
        let mut child = command.spawn().expect("the binary starts");
        let stdout = child.stdout.take().expect("piped");
        let server = Self { child: Some(child), said: Value::Null, connect: String::new() };
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
        let line = receiver.recv_timeout(PATIENCE).expect("it comes up in time");
        (server, line)
    }

    /// How it has ended by itself, if it has.
    #[allow(dead_code, reason = "only the other test binary needs it")]
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().expect("it was not killed").try_wait().expect("a child of this process")
    }

    /// Runs a command against it.
    pub(crate) fn run(&self, words: &[&str]) -> Ended {
        let mut command = command(words);
        ended(command.env("SLACKLINE_CONNECT", &self.connect).spawn().expect("the binary starts"))
    }

    /// Runs a command against it that has these bytes as its standard input.
    pub(crate) fn run_with(&self, words: &[&str], input: &[u8]) -> Ended {
        let mut command = command(words);
        command.env("SLACKLINE_CONNECT", &self.connect).stdin(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        child.stdin.take().expect("it is a pipe").write_all(input).expect("it reads");
        ended(child)
    }

    /// Runs a command against it, and breaks it off as Ctrl-C would.
    pub(crate) fn run_interrupted(&self, words: &[&str], after: Duration) -> Ended {
        let mut command = command(words);
        let child = command.env("SLACKLINE_CONNECT", &self.connect).spawn().expect("the binary starts");
        std::thread::sleep(after);
        send(&child, "-INT");
        ended(child)
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("a child of this process");
        child.wait().expect("a child of this process");
    }

    /// Ends it as Ctrl-C would.
    pub(crate) fn interrupt(self) -> Ended {
        self.signal("-INT")
    }

    /// Ends it as a terminal that is closed does.
    #[allow(dead_code, reason = "only one of the test binaries needs it")]
    pub(crate) fn hang_up(self) -> Ended {
        self.signal("-HUP")
    }

    /// Ends it as a service manager would.
    pub(crate) fn terminate(self) -> Ended {
        self.signal("-TERM")
    }

    /// Stops it in its tracks, as a virtual machine that is suspended: its connections stay, and it says nothing.
    pub(crate) fn freeze(&self) {
        send(self.child.as_ref().expect("it runs"), "-STOP");
    }

    /// Lets it go on after [`Server::freeze`].
    pub(crate) fn thaw(&self) {
        send(self.child.as_ref().expect("it runs"), "-CONT");
    }

    /// Tells it to load models again.
    #[allow(dead_code, reason = "only one of the test binaries needs it")]
    pub(crate) fn reload(&self) {
        send(self.child.as_ref().expect("it runs"), "-HUP");
    }

    fn signal(mut self, signal: &str) -> Ended {
        let child = self.child.take().expect("it runs");
        send(&child, signal);
        ended(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn send(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill is there");
    assert!(sent.success());
}

/// Ports of this machine that nobody listens at.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    slackline_server::ports::free(count).expect("free ports")
}

/// Configuration files for three sites on free ports.
pub(crate) fn three_configs(folder: &Path) -> Vec<(String, String)> {
    configs(folder, &["us", "eu", "ap"])
}

/// Configuration files for sites of these regions on free ports, and their addresses.
pub(crate) fn configs(folder: &Path, regions: &[&str]) -> Vec<(String, String)> {
    let ports = free_ports(regions.len());
    let sites: String = regions
        .iter()
        .zip(&ports)
        .map(|(region, port)| format!("\n[[sites]]\nregion = \"{region}\"\naddress = \"127.0.0.1:{port}\"\n"))
        .collect();
    let config = |(region, port): (&&str, &u16)| {
        let path = folder.join(format!("{region}.toml"));
        let text = format!(
            "cluster = \"test\"\nregions = {regions:?}\nregion = \"{region}\"\ndata = {:?}\n\
             listen = \"127.0.0.1:{port}\"\nhttp = \"127.0.0.1:0\"\n{sites}",
            folder.join(region)
        );
        std::fs::write(&path, text).expect("written");
        (path.to_str().expect("a path of this test").to_owned(), format!("127.0.0.1:{port}"))
    };
    regions.iter().zip(&ports).map(config).collect()
}
