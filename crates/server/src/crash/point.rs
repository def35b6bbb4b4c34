//! The points, and the recognition of steps.

use slackline_core::api::{Outcome, Response};
use slackline_core::id::{OperationId, SiteId};
use slackline_core::machine::Effect;
use slackline_core::node::Node;
use slackline_core::object::message::{Message, Vote};
use slackline_core::peer::{Body, PeerMessage};

/// A place in the two-phase commit where a site may crash.
#[derive(Debug)]
pub(super) struct Point {
    /// Its name, as the environment gives it.
    pub(super) name: &'static str,
    /// The message at which it is.
    pub(super) step: Step,
    /// How far the message has come there.
    pub(super) moment: Moment,
}

/// A kind of message, and the role in which the site sends or receives it: the coordinator's, if the transaction is its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) role: Role,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Coordinator,
    Participant,
}

/// The messages of the two-phase commit, and the answer to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Prepare,
    Vote,
    Decide,
    Decided,
    Forget,
    Inquire,
    Inquired,
    Answer,
}

/// The progress of a step; see the table of the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moment {
    Arrived,
    Gathered,
    Durable,
    Left,
}

const fn coordinator(name: &'static str, kind: Kind, moment: Moment) -> Point {
    Point { name, step: Step { role: Role::Coordinator, kind }, moment }
}

const fn participant(name: &'static str, kind: Kind, moment: Moment) -> Point {
    Point { name, step: Step { role: Role::Participant, kind }, moment }
}

/// Every point.
pub(super) const POINTS: &[Point] = &[
    // It notes the participants that it asks, with its own part if it has one; then it asks them.
    coordinator("coordinator-record-gathered", Kind::Prepare, Moment::Gathered),
    coordinator("coordinator-record-durable", Kind::Prepare, Moment::Durable),
    coordinator("coordinator-prepare-left", Kind::Prepare, Moment::Left),
    coordinator("coordinator-vote-arrived", Kind::Vote, Moment::Arrived),
    // All have voted, or it has learned the outcome from them; it notes the outcome, then it tells the client and the others.
    coordinator("coordinator-decision-gathered", Kind::Decide, Moment::Gathered),
    coordinator("coordinator-decision-durable", Kind::Decide, Moment::Durable),
    coordinator("coordinator-answer-left", Kind::Answer, Moment::Left),
    coordinator("coordinator-decide-left", Kind::Decide, Moment::Left),
    coordinator("coordinator-decided-arrived", Kind::Decided, Moment::Arrived),
    // All know. It removes its record, then it lets them forget.
    coordinator("coordinator-forget-gathered", Kind::Forget, Moment::Gathered),
    coordinator("coordinator-forget-durable", Kind::Forget, Moment::Durable),
    coordinator("coordinator-forget-left", Kind::Forget, Moment::Left),
    // It is in doubt, after a restart: it asks the participants.
    coordinator("coordinator-inquire-durable", Kind::Inquire, Moment::Durable),
    coordinator("coordinator-inquire-left", Kind::Inquire, Moment::Left),
    coordinator("coordinator-inquired-arrived", Kind::Inquired, Moment::Arrived),
    // Asked to prepare, it does, and votes.
    participant("participant-vote-gathered", Kind::Vote, Moment::Gathered),
    participant("participant-vote-durable", Kind::Vote, Moment::Durable),
    participant("participant-vote-left", Kind::Vote, Moment::Left),
    // Told the decision, it carries its part out, and says so.
    participant("participant-decide-arrived", Kind::Decide, Moment::Arrived),
    participant("participant-decided-gathered", Kind::Decided, Moment::Gathered),
    participant("participant-decided-durable", Kind::Decided, Moment::Durable),
    participant("participant-decided-left", Kind::Decided, Moment::Left),
    participant("participant-forget-arrived", Kind::Forget, Moment::Arrived),
    // It is in doubt: it asks the others, learns the outcome, carries its part out, and tells them.
    participant("participant-inquire-durable", Kind::Inquire, Moment::Durable),
    participant("participant-inquire-left", Kind::Inquire, Moment::Left),
    participant("participant-answer-arrived", Kind::Inquired, Moment::Arrived),
    participant("participant-recovery-gathered", Kind::Decide, Moment::Gathered),
    participant("participant-recovery-durable", Kind::Decide, Moment::Durable),
    participant("participant-recovery-left", Kind::Decide, Moment::Left),
    // Another site is in doubt and asks it: it notes the knowledge of that one, and answers.
    participant("participant-inquired-gathered", Kind::Inquired, Moment::Gathered),
    participant("participant-inquired-durable", Kind::Inquired, Moment::Durable),
    participant("participant-inquired-left", Kind::Inquired, Moment::Left),
];

/// The step that a message is, for the site that sends or receives it, and the transaction that it is about.
pub(super) fn step_of_message(message: &PeerMessage, me: SiteId) -> Option<(Step, Option<OperationId>)> {
    let Body::Txn(message) = &message.body else { return None };
    let (kind, id) = match &**message {
        Message::Prepare(prepare) if prepare.participants.len() > 1 => (Kind::Prepare, prepare.id),
        Message::Vote { id, vote: Vote::Prepared } => (Kind::Vote, *id),
        Message::Decide { id, commit: true } => (Kind::Decide, *id),
        Message::Decided { id } => (Kind::Decided, *id),
        Message::Forget { id } => (Kind::Forget, *id),
        Message::Inquire { id, .. } => (Kind::Inquire, *id),
        Message::Inquired { id, .. } => (Kind::Inquired, *id),
        _ => return None,
    };

    let role = if id.site == me { Role::Coordinator } else { Role::Participant };
    Some((Step { role, kind }, Some(id)))
}

/// The step that an effect belongs to.
pub(super) fn step_of_effect(effect: &Effect<Node>, me: SiteId) -> Option<(Step, Option<OperationId>)> {
    match effect {
        Effect::Send { message, .. } => step_of_message(message, me),
        Effect::Respond { response: Response::Batch { answers, .. }, .. } => {
            let is_decided = answers.iter().any(|answer| matches!(answer.outcome, Outcome::Committed { phases: 2 }));
            is_decided.then_some((Step { role: Role::Coordinator, kind: Kind::Answer }, None))
        }
        _ => None,
    }
}
