//! What a node is told when it is opened, and why it may refuse to be.

use std::fmt;

use crate::clock::{MILLISECOND, SECOND};
use crate::id::SiteId;
use crate::machine::ReadError;

/// What a node is told when it is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// The site that it is.
    pub me: SiteId,
    /// All sites of its lane, itself included; sorted when it is opened. At most 64.
    pub members: Vec<SiteId>,
    /// The bound on its wall clock's error, in microseconds.
    pub epsilon: u64,
    /// True if tokens move between sites by gifts and rounds. Off only as a benchmark's baseline.
    pub redistribute: bool,
    /// True if tokens move ahead of need, where demand is forecast. Off only as a benchmark's baseline.
    pub ahead: bool,
    /// Which warranties are issued and relied upon. Off and fewer only as a benchmark's baseline.
    pub warranties: Warranties,
    /// When the slack of treaties moves. Fixed and planned only as a benchmark's baseline.
    pub slack: Slack,
    /// A call of a memoized function that nobody has used for so long is deleted, in microseconds; 0 for never.
    pub idle_calls: u64,
    /// The time for which the name of a deleted quota is kept at least, in microseconds.
    pub names_kept: u64,
    /// True if a person has said that the storage of every earlier incarnation of this site is lost. Only storage without an
    /// incarnation looks at it.
    pub new_storage: bool,
    /// The number of the first session on new storage, at least 1. A cluster that is formed anew, on empty directories, has the sites and
    /// incarnations of the one before. A driver draws this at random ([`Config::random_session`]), so that a client which knew the former one
    /// finds its session unknown, and not a stranger's outcomes under its own ids.
    pub first_session: u64,
}

/// The usual [`Config::idle_calls`].
pub const IDLE_CALLS: u64 = 300 * SECOND;

/// The usual [`Config::names_kept`].
pub const NAMES_KEPT: u64 = 600 * SECOND;

/// Which warranties are issued and relied upon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Warranties {
    /// None: every read is validated at its home.
    Off,
    /// Over the values of objects.
    #[default]
    State,
}

/// When the slack of treaties moves between their leaves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Slack {
    /// When somebody waits for it; it is divided so that bounds need not move (the best static division).
    Fixed,
    /// When the treaty is new, and when somebody waits for it; from then on by standing orders (as in *Predictive Treaties*).
    Planned,
    /// Ahead of need, too.
    #[default]
    Ahead,
}

impl Config {
    /// The configuration of `me` among `members`, with the default ε of 10 ms.
    pub fn new(me: SiteId, members: impl Into<Vec<SiteId>>) -> Self {
        let mut members = members.into();
        members.sort();
        Self {
            me,
            members,
            epsilon: 10 * MILLISECOND,
            redistribute: true,
            ahead: true,
            warranties: Warranties::default(),
            slack: Slack::default(),
            idle_calls: IDLE_CALLS,
            names_kept: NAMES_KEPT,
            new_storage: false,
            first_session: 1,
        }
    }

    /// A number for the first session out of a random one: of two clusters they are far apart, and all take five bytes of a message.
    pub fn random_session(random: u64) -> u64 {
        (1 << 30) + (random >> 34)
    }
}

/// Why a node cannot be opened on its storage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// Storage could not be read.
    Read(ReadError),
    /// A row is not what this version writes.
    Malformed {
        /// The row's key.
        key: Vec<u8>,
    },
    /// The storage belongs to another site.
    OtherSite {
        /// Whose it is.
        owner: SiteId,
    },
    /// The storage belongs to a cluster of other sites.
    OtherMembers {
        /// The number that it has in this lane.
        before: usize,
        /// The number that is configured.
        now: usize,
    },
    /// The storage was written by a newer version.
    Newer {
        /// The layout of rows that it has.
        version: u64,
    },
    /// The configuration makes no sense.
    Config(&'static str),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Read(error) => error.fmt(f),
            OpenError::Malformed { key } => {
                write!(
                    f,
                    "the row under the key {key:02x?} is damaged; restore the site from its peers with new storage"
                )
            }
            OpenError::OtherSite { owner } => write!(
                f,
                "the storage belongs to the site whose number is {owner}: sites are numbered by the order of the regions in the \
                 configuration, which must not change"
            ),
            OpenError::OtherMembers { before, now } => write!(
                f,
                "the storage belongs to a cluster of {before} sites, and {now} are configured. A configuration does not \
                 change who the members are: configure those; `slackline site add` adds one while they run"
            ),
            OpenError::Newer { version } => {
                write!(
                    f,
                    "the storage has rows of layout {version}, which is newer than this program; run the newer one"
                )
            }
            OpenError::Config(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<ReadError> for OpenError {
    fn from(error: ReadError) -> Self {
        OpenError::Read(error)
    }
}
