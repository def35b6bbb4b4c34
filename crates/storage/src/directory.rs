//! The data directory of one site: whose it is, and that only one process has it.

use std::fs::{File, TryLockError};
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use slackline_core::machine::Seq;

use crate::Torn;
use crate::error::OpenError;
use crate::medium::sync_directory;

/// The format of the data directory that this version writes.
const FORMAT: u32 = 1;

/// The file that says where the log ended in a group that could not be read.
const TORN: &str = "TORN";

/// Whose data it is. Neither name may hold a line break.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster's name.
    pub cluster: String,
    /// The site's name, unique in the cluster.
    pub site: String,
}

/// A data directory that this process owns until the value is dropped.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Takes the directory, which is made if it does not exist.
    pub(crate) fn lock(path: &Path) -> Result<Self, OpenError> {
        let io = |action| move |source| OpenError::io(action, path, source);
        std::fs::create_dir_all(path.join("log")).map_err(io("create"))?;
        let lock = File::create(path.join("LOCK")).map_err(io("create the lock in"))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_path_buf(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_path_buf() }),
            Err(TryLockError::Error(source)) => Err(io("lock")(source)),
        }
    }

    /// Where the segments are.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The table's file.
    pub(crate) fn table(&self) -> PathBuf {
        self.path.join("table.redb")
    }

    /// Whether the directory bears `wanted`'s name (`false`: it bears none yet).
    pub(crate) fn check_identity(&self, wanted: &Identity) -> Result<bool, OpenError> {
        for name in [&wanted.cluster, &wanted.site] {
            if name.is_empty() || name.contains(['\n', '\r']) {
                return Err(OpenError::Unusable(format!("{name:?} cannot be the name of a cluster or a site")));
            }
        }
        let path = self.identity();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(source) => return Err(OpenError::Io { action: "read", path, source }),
        };
        let mut lines = text.lines();
        let mut field = |name: &str| lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let format = field("slackline-storage").and_then(|format| format.parse().ok());
        let (cluster, site) = (field("cluster"), field("site"));
        match (format, cluster, site) {
            (Some(found), _, _) if found > FORMAT => Err(OpenError::NewerFormat { path, found, known: FORMAT }),
            (Some(_), Some(cluster), _) if cluster != wanted.cluster => Err(OpenError::OtherCluster {
                path: self.path.clone(),
                found: cluster.to_owned(),
                wanted: wanted.cluster.clone(),
            }),
            (Some(_), Some(_), Some(site)) if site != wanted.site => Err(OpenError::OtherSite {
                path: self.path.clone(),
                found: site.to_owned(),
                wanted: wanted.site.clone(),
            }),
            (Some(_), Some(_), Some(_)) => Ok(true),
            _ => Err(OpenError::Damaged { path, at: 0, what: "it does not name a format, a cluster and a site" }),
        }
    }

    /// Writes the name, once, as the last step of making a data directory.
    pub(crate) fn write_identity(&self, identity: &Identity) -> Result<(), OpenError> {
        let path = self.identity();
        let write = || {
            let half_made = path.with_extension("tmp");
            let mut file = File::create(&half_made)?;
            writeln!(file, "slackline-storage {FORMAT}\ncluster {}\nsite {}", identity.cluster, identity.site)?;
            file.sync_all()?;
            std::fs::rename(&half_made, &path)?;
            sync_directory(&self.path)
        };
        write().map_err(|source| OpenError::io("write", &path, source))
    }

    /// Notes durably where the log ends in a group that cannot be read, before the segment is given another number.
    pub(crate) fn note_torn(&self, torn: &Torn) -> Result<(), OpenError> {
        let path = self.path.join(TORN);
        let write = || {
            let half_made = path.with_extension("tmp");
            let mut file = File::create(&half_made)?;
            writeln!(file, "{} {} {}", torn.last, torn.at, torn.path.display())?;
            file.sync_all()?;
            std::fs::rename(&half_made, &path)?;
            sync_directory(&self.path)
        };
        write().map_err(|source| OpenError::io("write", &path, source))
    }

    /// What was noted of the group after the batch `last`, if anything.
    pub(crate) fn torn(&self, last: Seq) -> Option<Torn> {
        let text = std::fs::read_to_string(self.path.join(TORN)).ok()?;
        let mut words = text.trim_end().splitn(3, ' ');
        let torn = Torn {
            last: words.next()?.parse().ok()?,
            at: words.next()?.parse().ok()?,
            path: PathBuf::from(words.next()?),
        };
        // What was appended since says nothing of what was there before.
        (torn.last == last).then_some(torn)
    }

    fn identity(&self) -> PathBuf {
        self.path.join("IDENTITY")
    }
}
