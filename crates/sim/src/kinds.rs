//! Kinds of messages, inputs and persist points, for probes and for faults that strike at one of them.

use slackline_core::api::Request;
use slackline_core::avantan::{self, subset};
use slackline_core::machine::Input;
use slackline_core::node::Node;
use slackline_core::object::message as object;
use slackline_core::peer::quota::{Forget, QuotaMessage};
use slackline_core::peer::{Body, RelayMessage, SiteMessage};

/// Names of the kinds of messages, by [`message`].
pub(crate) const MESSAGES: [&str; 51] = [
    "Hello",
    "Welcome",
    "Ping",
    "Pong",
    "Election",
    "Report",
    "Accept",
    "Accepted",
    "Refuse",
    "Decided",
    "Withdraw",
    "Behind",
    "Digests",
    "Lookup",
    "NotKnown",
    "Count",
    "Counted",
    "Relay",
    "Relayed",
    "NoVote",
    "Fetch",
    "Fetched",
    "Revoke",
    "Revoked",
    "Prepare",
    "Vote",
    "Decide",
    "Decided to",
    "Forget",
    "Inquire",
    "Inquired",
    "ProbeCalls",
    "AbsentCalls",
    "Propose",
    "Agree",
    "Cancel",
    "Forgotten",
    "AskSlack",
    "ReportSlack",
    "GiveSlack",
    "SlackGifts",
    "Retract",
    "IsRetracted",
    "Retracted",
    "SubsetElection",
    "SubsetReport",
    "SubsetBusy or Withdraw",
    "SubsetAccept",
    "SubsetAccepted",
    "SubsetRefuse or Lost",
    "SubsetDecided",
];

/// Names of the kinds of inputs, by [`input`]: those of messages, then these.
pub(crate) const INPUTS: [&str; 13] = [
    "Tick", "Open", "Batch", "Ask", "Close", "Show", "List", "Status", "Drain", "Read", "Explain", "Treaties", "Expect",
];

/// The kind of a message.
#[inline]
pub(crate) fn message(body: &Body) -> usize {
    match body {
        Body::Site(SiteMessage::Hello { .. }) => 0,
        Body::Site(SiteMessage::Welcome { .. }) => 1,
        Body::Site(SiteMessage::Ping { .. }) => 2,
        Body::Site(SiteMessage::Pong { .. }) => 3,
        Body::Quota(QuotaMessage::Avantan { message, .. }) => match **message {
            avantan::Message::Election { .. } => 4,
            avantan::Message::Report { .. } => 5,
            avantan::Message::Accept { .. } => 6,
            avantan::Message::Accepted { .. } => 7,
            avantan::Message::Refuse { .. } => 8,
            avantan::Message::Decided { .. } => 9,
            avantan::Message::Withdraw { .. } => 10,
            avantan::Message::Behind { .. } => 11,
        },
        Body::Quota(QuotaMessage::Subset { message, .. }) => match **message {
            subset::Message::Election { .. } => 44,
            subset::Message::Report { .. } => 45,
            subset::Message::Busy { .. } | subset::Message::Withdraw { .. } => 46,
            subset::Message::Accept { .. } => 47,
            subset::Message::Accepted { .. } => 48,
            subset::Message::Refuse { .. } | subset::Message::Lost { .. } => 49,
            subset::Message::Decided { .. } => 50,
        },
        Body::Quota(QuotaMessage::Digests(_)) => 12,
        Body::Quota(QuotaMessage::Lookup { .. }) => 13,
        Body::Quota(QuotaMessage::NotKnown { .. }) => 14,
        Body::Quota(QuotaMessage::Count { .. }) => 15,
        Body::Quota(QuotaMessage::Counted { .. }) => 16,
        Body::Relay(RelayMessage::Ask { .. }) => 17,
        Body::Relay(RelayMessage::Answer { .. }) => 18,
        Body::Quota(QuotaMessage::NoVote { .. }) => 19,
        Body::Txn(message) => match **message {
            object::Message::Fetch(_) => 20,
            object::Message::Fetched(_) => 21,
            object::Message::Revoke { .. } => 22,
            object::Message::Revoked { .. } => 23,
            object::Message::Prepare(_) => 24,
            object::Message::Vote { .. } => 25,
            object::Message::Decide { .. } => 26,
            object::Message::Decided { .. } => 27,
            object::Message::Forget { .. } => 28,
            object::Message::Inquire { .. } => 29,
            object::Message::Inquired { .. } => 30,
            object::Message::ProbeCalls { .. } => 31,
            object::Message::AbsentCalls { .. } => 32,
            object::Message::Treaty { ref says, .. } => match says {
                object::Says::Ask { .. } => 37,
                object::Says::Report { .. } => 38,
                object::Says::Give { .. } => 39,
                object::Says::Gifts { .. } => 40,
                object::Says::Retract { is_question: false } => 41,
                object::Says::Retract { is_question: true } => 42,
                object::Says::Retracted => 43,
            },
        },
        Body::Quota(QuotaMessage::Forget(message)) => match **message {
            Forget::Propose { .. } => 33,
            Forget::Agree { .. } => 34,
            Forget::Cancel { .. } => 35,
            Forget::Forgotten(_) => 36,
        },
    }
}

/// The kind of an input.
#[inline]
pub(crate) fn input(input: &Input<Node>) -> usize {
    MESSAGES.len()
        + match input {
            Input::Message { message: from_peer, .. } => return message(&from_peer.body),
            Input::Tick => 0,
            Input::Request { request, .. } => match request {
                Request::Open => 1,
                Request::Batch(_) => 2,
                Request::Ask { .. } => 3,
                Request::Close { .. } => 4,
                Request::Show { .. } => 5,
                Request::List { .. } => 6,
                Request::Status => 7,
                Request::Drain { .. } => 8,
                Request::Read(_) => 9,
                Request::Explain { .. } => 10,
                Request::Treaties { .. } => 11,
                Request::Expect(_) => 12,
            },
        }
}

/// The name of a kind of input.
pub(crate) fn input_name(kind: usize) -> &'static str {
    if kind < MESSAGES.len() { MESSAGES[kind] } else { INPUTS[kind - MESSAGES.len()] }
}

/// The kinds of inputs whose handling hands out a batch.
pub(crate) const PERSISTING: [&str; 26] = [
    "Hello",
    "Welcome",
    "Election",
    "Report",
    "Accept",
    "Accepted",
    "Refuse",
    "Decided",
    "Withdraw",
    "Digests",
    "NotKnown",
    "Relay",
    "Tick",
    "Open",
    "Batch",
    "Ask",
    "Close",
    "Fetch",
    "Prepare",
    "Vote",
    "Decide",
    "Inquire",
    "Inquired",
    "Propose",
    "Agree",
    "Forgotten",
];
