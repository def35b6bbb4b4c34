//! How a client connects, and what its calls do by default.

use std::time::{Duration, Instant};

pub use slackline_session::command::DEFAULT_DEADLINE;

/// The time for which a hold, and the release of one, stay with a site that says nothing, unless the call or the client says
/// otherwise.
pub const DEFAULT_PATIENCE: Duration = slackline_session::sessions::PATIENCE;

/// The way a client connects, and what its calls do by default.
#[derive(Clone, Debug)]
pub struct Options {
    /// The longest time that a call may take, unless it says otherwise. 10 s.
    pub deadline: Duration,
    /// The longest time that connecting may take. 5 s.
    pub connect: Duration,
    /// When all that the client does ends, connecting too, whatever `deadline` and `connect` leave; none if it goes on. It is for a program
    /// that has so much time in all, as a command has.
    pub until: Option<Instant>,
    /// The region to use as long as it can be reached; otherwise the nearest, measured when the client connects.
    pub region: Option<String>,
    /// The time for which acquires and releases stay with a site that says nothing, unless they say otherwise.
    pub patience: Patience,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: DEFAULT_DEADLINE,
            connect: Duration::from_secs(5),
            until: None,
            region: None,
            patience: Patience::default(),
        }
    }
}

/// The time for which an acquire or a release that was sent stays with a site that says nothing: one that is dead, frozen, or
/// cut off. Time during which the site is known to have the call, and lets it wait for tokens, does not count.
///
/// When the time is up,
///
/// - an **acquire** goes elsewhere: it is issued at another site, under a new id, if another can be reached. The client *settles* the
///   first one when its site is back: it asks, which ends what still waits, and gives back what was granted. Until then both may be in
///   use. An acquire [at a region](crate::Call::at) stays there;
/// - a **release** is *handed over*: it ends as [unknown](crate::Outcome::Unknown), [`crate::UnknownReason::HandedOver`], and the client sends it under
///   that id until its site has an answer. So nothing is released twice. A release that never left, and may go to any site, goes to
///   another one instead.
///
/// The client sees to these as long as it lives; [`crate::Client::close`] says what is left. At most 4,096 at a time for each
/// site; a call beyond these waits. Less time than a round trip takes makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Patience {
    /// [`DEFAULT_PATIENCE`](crate::DEFAULT_PATIENCE) (1 s) for an acquire that is [held for a time](crate::Call::hold_for), and
    /// for the [release of its grant](crate::Grant::release): should this program end before it has settled them, the site
    /// takes the tokens back by itself. Everything else waits.
    #[default]
    ByKind,
    /// Until the deadline.
    Wait,
    /// For this long.
    For(Duration),
}

impl From<Duration> for Patience {
    fn from(duration: Duration) -> Self {
        Patience::For(duration)
    }
}
