//! The driver's side: counts the times that the point is reached, and ends the process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use slackline_core::id::SiteId;
use slackline_core::machine::{Effect, Input};
use slackline_core::node::Node;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::point::{Moment, POINTS, Point, step_of_effect, step_of_message};
use crate::config::ConfigError;
use crate::link::Outbox;
use crate::links::Links;

/// The environment variable that names the point.
const VARIABLE: &str = "SLACKLINE_CRASH_AT";
/// The time that the last effect may take to leave; the link may have to be made first.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// The pause between two looks at the last effect, and the time of its way to the socket once it has left.
const STEP: Duration = Duration::from_millis(5);
const TO_THE_SOCKET: Duration = Duration::from_millis(50);

/// The point at which this process ends, if the environment names one.
#[derive(Debug)]
pub(crate) struct CrashPoints {
    me: SiteId,
    armed: Option<Armed>,
    /// Set once the last effect leaves: a message to this site, or an answer to a client. Nothing is done after that.
    last: OnceLock<Option<SiteId>>,
}

#[derive(Debug)]
struct Armed {
    point: &'static Point,
    /// The number of times that it is still to be reached; the process ends at the last.
    left: AtomicU64,
}

impl CrashPoints {
    /// Reads the environment.
    pub(crate) fn from_environment(me: SiteId) -> Result<Self, ConfigError> {
        let armed = match std::env::var(VARIABLE) {
            Ok(text) => Some(Armed::parse(&text).map_err(wrong)?),
            Err(std::env::VarError::NotPresent) => None,
            Err(error) => return Err(wrong(error.to_string())),
        };
        Ok(Self { me, armed, last: OnceLock::new() })
    }

    /// An input is about to be handled.
    pub(crate) fn arrived(&self, input: &Input<Node>) {
        let Some(armed) = self.armed_for(Moment::Arrived) else { return };
        if let Input::Message { message, .. } = input
            && step_of_message(message, self.me).is_some_and(|(step, _)| step == armed.point.step)
            && armed.count_down()
        {
            armed.crash();
        }
    }

    /// An input was handled; its effects are not durable. A message that is only repeated needs no batch, and is no step.
    pub(crate) fn gathered(&self, effects: &[Effect<Node>]) {
        if let Some(armed) = self.armed_for(Moment::Gathered)
            && effects.iter().any(|effect| matches!(effect, Effect::Persist(_)))
            && self.find(armed, effects).is_some()
        {
            armed.crash();
        }
    }

    /// These effects are about to leave; the batches before them are durable. Takes those out that must not leave.
    pub(crate) fn leaving(&self, released: &mut Vec<Effect<Node>>) {
        if self.is_ending() {
            return released.clear();
        }

        if let Some(armed) = self.armed_for(Moment::Durable)
            && self.find(armed, released).is_some()
        {
            armed.crash();
        }

        if let Some(armed) = self.armed_for(Moment::Left)
            && let Some(position) = self.find(armed, released)
        {
            let last = released.swap_remove(position);
            let to = if let Effect::Send { to, .. } = &last { Some(*to) } else { None };
            // It can be set: the process is not ending yet, see above.
            let _ = self.last.set(to);
            released.clear();
            released.push(last);
        }
    }

    /// True if nothing more may be handled: [`CrashPoints::end`] is next.
    pub(crate) fn is_ending(&self) -> bool {
        self.last.get().is_some()
    }

    /// Lets the last effect leave, and ends the process.
    pub(crate) async fn end(&self, links: &Links) {
        let Some((to, armed)) = self.last.get().zip(self.armed.as_ref()) else { return };
        let give_up = Instant::now() + LAST_WORDS;
        let waits = |outbox: &Arc<Outbox>| {
            let state = outbox.state_of_link();
            !state.linked || state.queued > 0
        };
        while to.and_then(|to| links.outbox(to)).as_ref().is_some_and(waits) && Instant::now() < give_up {
            sleep(STEP).await;
        }
        sleep(TO_THE_SOCKET).await;
        armed.crash();
    }

    fn armed_for(&self, moment: Moment) -> Option<&Armed> {
        self.armed.as_ref().filter(|armed| armed.point.moment == moment)
    }

    /// The effect at which the point is reached for the last time.
    fn find(&self, armed: &Armed, effects: &[Effect<Node>]) -> Option<usize> {
        let mut before = None;
        let is_reached = |effect: &Effect<Node>| {
            let Some((_, transaction)) = step_of_effect(effect, self.me).filter(|(step, _)| *step == armed.point.step)
            else {
                return false;
            };
            before.replace(transaction) != Some(transaction) && armed.count_down()
        };
        effects.iter().position(is_reached)
    }
}

impl Armed {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, times) = text.split_once(':').unwrap_or((text, "1"));
        let Some(point) = POINTS.iter().find(|point| point.name == name) else {
            let names: Vec<&str> = POINTS.iter().map(|point| point.name).collect();
            return Err(format!("no point is called {name:?}; there are {}", names.join(", ")));
        };
        match times.parse() {
            Ok(times) if times > 0 => Ok(Self { point, left: AtomicU64::new(times) }),
            _ => Err(format!("{times:?} after the colon is not a number from 1, of times that the point is reached")),
        }
    }

    /// Counts one time that the point is reached. Returns true if it was the last.
    fn count_down(&self) -> bool {
        self.left.fetch_sub(1, Ordering::Relaxed) == 1
    }

    fn crash(&self) -> ! {
        warn!(point = self.point.name, "the process ends at its crash point");
        std::process::abort()
    }
}

fn wrong(problem: String) -> ConfigError {
    ConfigError::Value { key: VARIABLE.to_owned(), problem }
}
