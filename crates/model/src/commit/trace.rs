//! A counterexample in words.

use std::fmt;

use slackline_core::object::message::{Message, Vote};
use stateright::Model;

use super::{Action, Fate, SITES, Setup};

/// One line for each step of a counterexample.
pub(crate) fn trace(setup: &Setup, actions: Vec<Action>) -> Vec<String> {
    let mut state = setup.init_states().remove(0);
    let mut lines = Vec::new();
    for action in actions {
        let text = match &action {
            Action::Submit(number) => {
                format!("S{} is asked to commit T{}", setup.plans[*number].coordinator + 1, number + 1)
            }
            Action::Ask(number) => format!("the client of T{} asks for its outcome", number + 1),
            Action::Deliver(place) => {
                let envelope = setup.envelope(*place);
                format!("S{} → S{}  {}", envelope.from + 1, envelope.to + 1, brief(&envelope.message))
            }
            Action::Look(at) => format!("S{}: its timers fire", at + 1),
            Action::Pass(at) => format!("S{}: its clock passes the deadline", at + 1),
            Action::PassAll => "all clocks pass the deadline".to_owned(),
            Action::Crash(at) => format!("S{} crashes{}", at + 1, if setup.restarts { " and restarts" } else { "" }),
            Action::LoseDisk(at) => format!("S{} loses its disk and comes back new", at + 1),
        };
        let Some(next) = setup.next_state(&state, action) else { break };
        state = next;
        let fates: Vec<String> = state.fates.iter().map(Fate::to_string).collect();
        lines.push(format!("{text:<60} {}", fates.join("; ")));
    }

    // What breaks only at rest is not in the last state's fates: it is said beside them.
    if setup.wrong_now(&state).is_none() {
        lines.extend(setup.wrong(&state).map(|(_, wrong)| format!("the rest is played to its end: {wrong}")));
    }
    lines
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sites = |bits: u8| -> String {
            (0..SITES).filter(|at| bits >> at & 1 == 1).map(|at| format!(" S{}", at + 1)).collect()
        };
        let told = |told: bool| if told { " (told)" } else { "" };
        write!(f, "prepared{}", sites(self.prepared))?;
        if self.took_effect() {
            write!(f, ", carried out{}{}", sites(self.carried), told(self.told_committed))?;
        }
        if self.did_not() {
            write!(f, ", refused{}{}", sites(self.refused), told(self.told_aborted))?;
        }
        Ok(())
    }
}

/// A message in a few words.
fn brief(message: &Message) -> String {
    match message {
        Message::Fetch(_) => "Fetch".to_owned(),
        Message::Fetched(_) => "Fetched".to_owned(),
        Message::Revoke { .. } => "Revoke".to_owned(),
        Message::Revoked { .. } => "Revoked".to_owned(),
        Message::ProbeCalls { .. } => "ProbeCalls".to_owned(),
        Message::AbsentCalls { .. } => "AbsentCalls".to_owned(),
        Message::Treaty { .. } => "Treaty".to_owned(),
        Message::Prepare(prepare) => {
            format!("Prepare(T{}, prepared {:03b})", prepare.id.sequence + 1, prepare.prepared.0)
        }
        Message::Vote { id, vote } => {
            let vote = match vote {
                Vote::Refused(abort) => format!("Refused: {:?}", abort.cause),
                vote => format!("{vote:?}"),
            };
            format!("Vote(T{}, {vote})", id.sequence + 1)
        }
        Message::Decide { id, commit } => {
            format!("Decide(T{}, {})", id.sequence + 1, if *commit { "commit" } else { "refuse" })
        }
        Message::Decided { id } => format!("Decided(T{})", id.sequence + 1),
        Message::Forget { id } => format!("Forget(T{})", id.sequence + 1),
        Message::Inquire { id, prepared, .. } => format!("Inquire(T{}, prepared {:03b})", id.sequence + 1, prepared.0),
        Message::Inquired { id, known, prepared } => {
            format!("Inquired(T{}, {known:?}, prepared {:03b})", id.sequence + 1, prepared.0)
        }
    }
}
