//! Every value comes back as it was; senseless messages are named; random bytes never panic.

use std::fmt::Debug;

use prost::Message;
use slackline_core::api::{BATCH_OPERATIONS, Batch, Request, Response};
use slackline_core::peer::PeerMessage;
use slackline_wire::{Invalid, MESSAGE_BYTES, internal, v1};

use crate::generate::{BODIES, Generator, REQUESTS, RESPONSES};

/// Values of each kind.
const ROUNDS: u64 = 500;

fn through<W, T>(value: T) -> T
where
    T: TryFrom<W, Error = Invalid> + Clone,
    W: Message + Default + TryFrom<T>,
    <W as TryFrom<T>>::Error: Debug,
{
    let message = W::try_from(value).expect("it travels this way");
    let bytes = message.encode_to_vec();
    assert_eq!(bytes.len(), message.encoded_len());
    T::try_from(W::decode(&bytes[..]).expect("just encoded")).expect("just converted")
}

#[test]
fn messages_between_sites_survive() {
    let mut random = Generator::new(1);
    for round in 0..ROUNDS * BODIES {
        let message = random.message(round % BODIES);
        assert_eq!(through::<internal::PeerMessage, _>(message.clone()), message);
    }
}

#[test]
fn requests_and_responses_survive_relayed_and_on_a_stream() {
    let mut random = Generator::new(2);
    for round in 0..ROUNDS * REQUESTS {
        let request = random.request(round % REQUESTS);
        assert_eq!(through::<internal::Request, _>(request.clone()), request);
        match request {
            Request::Open | Request::Batch(_) | Request::Ask { .. } | Request::Close { .. } => {
                assert_eq!(through::<v1::SessionRequest, _>(request.clone()), request);
            }
            other => assert!(v1::SessionRequest::try_from(other).is_err()),
        }
    }
    for round in 0..ROUNDS * RESPONSES {
        let response = random.response(round % RESPONSES);
        assert_eq!(through::<internal::Response, _>(response.clone()), response);
        match response {
            Response::Shown(_) | Response::Listed(_) | Response::Status(_) | Response::Drained => {
                assert!(v1::SessionReply::try_from(response).is_err());
            }
            response => assert_eq!(through::<v1::SessionReply, _>(response.clone()), response),
        }
    }
}

#[test]
fn senseless_field_is_named() {
    let problem = |request: v1::SessionRequest| Request::try_from(request).expect_err("must be refused").to_string();
    let batch = |batch: v1::Batch| v1::SessionRequest { request: Some(v1::session_request::Request::Batch(batch)) };
    let sound = v1::Batch { site: Some(v1::SiteId::default()), ..Default::default() };
    let operation = |operation: v1::Operation| batch(v1::Batch { operations: vec![operation], ..sound.clone() });

    assert_eq!(problem(v1::SessionRequest { request: None }), "request is missing");
    assert_eq!(problem(batch(v1::Batch::default())), "batch.site is missing");
    let far = v1::SiteId { region: 65_536, lane: 0 };
    assert_eq!(problem(batch(v1::Batch { site: Some(far), ..sound.clone() })), "batch.site.region is above 65535");
    assert_eq!(problem(operation(v1::Operation::default())), "batch.operations[0].kind is missing");
    let kind = v1::Operation { kind: 99, ..Default::default() };
    assert_eq!(problem(operation(kind)), "batch.operations[0].kind has an unknown value");
    let grant = v1::Operation { kind: v1::OperationKind::ReleaseGrant.into(), ..Default::default() };
    assert_eq!(problem(operation(grant)), "batch.operations[0].grant is missing");
    let hold = v1::Operation { kind: v1::OperationKind::Acquire.into(), hold_us: 5, ..Default::default() };
    assert_eq!(problem(operation(hold)), "batch.operations[0].hold_us is given but hold is not HOLD_FOR");
    let many = vec![v1::Operation::default(); BATCH_OPERATIONS + 1];
    let many = batch(v1::Batch { operations: many, ..sound.clone() });
    assert_eq!(problem(many), "batch.operations has too many entries");
}

#[test]
fn largest_batch_fits_a_message() {
    let operation = v1::Operation {
        sequence: u64::MAX,
        timeout_us: u64::MAX,
        kind: v1::OperationKind::Acquire.into(),
        quota: "x".repeat(256),
        amount: i64::MAX,
        hold: v1::Hold::For.into(),
        hold_us: u64::MAX,
        grant: None,
    };
    let batch = v1::Batch { operations: vec![operation; BATCH_OPERATIONS], ..Default::default() };
    assert!(batch.encoded_len() < MESSAGE_BYTES / 2);
}

/// Random bytes, and sound messages with a few bytes changed, cut off or repeated.
#[test]
fn no_bytes_make_the_decoder_panic() {
    let mut random = Generator::new(3);
    let mut understood = 0;
    for round in 0..40_000 {
        let mut bytes = match round % 3 {
            0 => {
                let kind = random.below(BODIES);
                internal::PeerMessage::from(random.message(kind)).encode_to_vec()
            }
            1 => v1::Batch::from(random.batch()).encode_to_vec(),
            _ => (0..random.below(60)).map(|_| random.next() as u8).collect(),
        };
        for _ in 0..random.below(4) {
            if bytes.is_empty() {
                break;
            }
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes.truncate(at),
                _ => bytes.extend_from_within(at..),
            }
        }
        understood += decode_all(&bytes);
    }
    assert!(understood > 5_000, "many must get past the decoder to test the conversions: {understood}");
}

/// Takes the bytes for each kind of message, and back to bytes where they are one.
fn decode_all(bytes: &[u8]) -> u32 {
    let mut understood = 0;
    if let Ok(message) = internal::PeerMessage::decode(bytes)
        && let Ok(message) = PeerMessage::try_from(message)
    {
        let _ = internal::PeerMessage::from(message).encode_to_vec();
        understood += 1;
    }
    if let Ok(batch) = v1::Batch::decode(bytes)
        && let Ok(batch) = Batch::try_from(batch)
    {
        let _ = v1::Batch::from(batch).encode_to_vec();
        understood += 1;
    }
    if let Ok(request) = v1::SessionRequest::decode(bytes) {
        let _ = Request::try_from(request);
    }
    if let Ok(reply) = v1::SessionReply::decode(bytes) {
        let _ = Response::try_from(reply);
    }
    if let Ok(response) = internal::Response::decode(bytes) {
        let _ = Response::try_from(response);
    }
    if let Ok(frame) = internal::LinkFrame::decode(bytes) {
        for message in frame.messages {
            let _ = PeerMessage::try_from(message);
        }
    }
    understood
}
