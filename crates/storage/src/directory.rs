//! The data directory of one site: it bears the site's name, and only one process has it at a time.

use std::fs::{File, TryLockError};
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use slackline_core::machine::Seq;

use crate::error::OpenError;
use crate::medium::sync_directory;
use crate::store::Torn;

/// The format of the data directory that this version writes.
const FORMAT: u32 = 1;

/// The file with the place of a group at the end of the log that could not be read.
const TORN: &str = "TORN";

/// The owner of a data directory. Neither name may be empty or hold a line break.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The cluster's name.
    pub cluster: String,
    /// The site's name, unique in the cluster.
    pub site: String,
    /// The number of the cluster's lanes. A name is hashed to one of them: of another number, it would be another lane's.
    pub lanes: u16,
}

/// What a data directory says of its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// Nothing: it is not complete.
    Not,
    /// Who it is, but not the number of lanes: it was made before that was noted.
    WithoutLanes,
    /// All of it.
    Whole,
}

/// A data directory that this process owns until the value is dropped.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The open file `LOCK` and the open directory. The operating system gives a lock back when its file is closed, also by a crash.
    _locks: [File; 2],
}

/// Makes a directory, with those above it that are missing. Their names are durable then: what is in a directory is worth nothing without
/// it.
fn make_directories(path: &Path) -> io::Result<()> {
    // A link to a directory that is not there: one was moved aside, and the process ended before it had made another.
    for link in path.ancestors().filter(|above| above.is_symlink() && !above.exists()) {
        std::fs::create_dir_all(link.with_file_name("").join(std::fs::read_link(link)?))?;
    }
    let made: Vec<&Path> = path.ancestors().take_while(|above| !above.exists()).collect();
    std::fs::create_dir_all(path)?;
    made.into_iter().try_for_each(sync_name)
}

/// Makes the name of a directory durable.
fn sync_name(directory: &Path) -> io::Result<()> {
    let above = directory.parent().filter(|above| !above.as_os_str().is_empty());
    sync_directory(above.unwrap_or(Path::new(".")))
}

impl Directory {
    /// Takes the directory, which is made if it does not exist.
    pub(crate) fn lock(path: &Path) -> Result<Self, OpenError> {
        let io = |action| move |source| OpenError::io(action, path, source);
        make_directories(&path.join("log")).map_err(io("create"))?;
        let file = File::create(path.join("LOCK")).map_err(io("create the lock in"))?;
        let directory = File::open(path).map_err(io("open"))?;
        let in_use = || OpenError::InUse { path: path.to_path_buf() };
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => in_use(),
            TryLockError::Error(source) => io("lock")(source),
        })?;
        // Who takes `LOCK` for a left-over and removes it must not let a second process in, so the directory is locked too. Some
        // network file systems cannot lock a directory; there the file has to do.
        if matches!(directory.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(in_use());
        }

        // Before anything is in it: somebody else may have made it, or this program, which ended before the name was durable. Who may not
        // read the directory above cannot see to that.
        if !path.join("IDENTITY").exists() {
            match sync_name(path) {
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                    return Err(io("sync the name of")(error));
                }
                _ => {}
            }
        }
        Ok(Self { path: path.to_path_buf(), _locks: [file, directory] })
    }

    /// The directory of the segments.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The table's file.
    pub(crate) fn table(&self) -> PathBuf {
        self.path.join("table.redb")
    }

    /// Compares the directory's owner with `wanted`. Another one is an error.
    pub(crate) fn check_identity(&self, wanted: &Identity) -> Result<Named, OpenError> {
        for name in [&wanted.cluster, &wanted.site] {
            if name.is_empty() || name.contains(['\n', '\r']) {
                return Err(OpenError::Unusable(format!("{name:?} cannot be the name of a cluster or a site")));
            }
        }

        let path = self.identity();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Named::Not),
            Err(source) => return Err(OpenError::Io { action: "read", path, source }),
        };
        let mut lines = text.lines();
        let mut field = |name: &str| lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let format = field("slackline-storage").and_then(|format| format.parse().ok());
        let (cluster, site, lanes) = (field("cluster"), field("site"), field("lanes"));

        // A site that ran on another site's data would vote and spend in that one's name. Whatever is not exactly the wanted name
        // stops the opening, before anything is written.
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
            (Some(_), Some(_), Some(_)) => match lanes.map(str::parse) {
                None => Ok(Named::WithoutLanes),
                Some(Ok(found)) if found == wanted.lanes => Ok(Named::Whole),
                Some(Ok(found)) => Err(OpenError::OtherLanes { path: self.path.clone(), found, wanted: wanted.lanes }),
                Some(Err(_)) => Err(OpenError::Damaged { path, at: 0, what: "it does not name a number of lanes" }),
            },
            _ => Err(OpenError::Damaged { path, at: 0, what: "it does not name a format, a cluster and a site" }),
        }
    }

    /// Writes the owner, as the last step of making a data directory: a directory that bears a name is complete.
    pub(crate) fn write_identity(&self, identity: &Identity) -> Result<(), OpenError> {
        let path = self.identity();
        let write = || {
            // The file is renamed only when its content is durable, so it is there whole or not at all after a crash.
            let half_made = path.with_extension("tmp");
            let mut file = File::create(&half_made)?;
            let Identity { cluster, site, lanes } = identity;
            writeln!(file, "slackline-storage {FORMAT}\ncluster {cluster}\nsite {site}\nlanes {lanes}")?;
            file.sync_all()?;
            std::fs::rename(&half_made, &path)?;
            sync_directory(&self.path)
        };
        write().map_err(|source| OpenError::io("write", &path, source))
    }

    /// Notes durably the place of a group at the end of the log that cannot be read. To be called before the segment is given
    /// another number: the group is gone then.
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

    /// The group after the batch `last`, if it was noted that it could not be read.
    pub(crate) fn torn(&self, last: Seq) -> Option<Torn> {
        let text = std::fs::read_to_string(self.path.join(TORN)).ok()?;
        let mut words = text.trim_end().splitn(3, ' ');
        let torn = Torn {
            last: words.next()?.parse().ok()?,
            at: words.next()?.parse().ok()?,
            path: PathBuf::from(words.next()?),
        };
        // Any other note is of an earlier end of the log: batches were appended since.
        (torn.last == last).then_some(torn)
    }

    fn identity(&self) -> PathBuf {
        self.path.join("IDENTITY")
    }
}
