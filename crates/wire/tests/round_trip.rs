//! Every value comes back as it was; senseless messages are named; random bytes never panic.

use std::fmt::Debug;

use prost::Message;
use slackline_core::api::{BATCH_OPERATIONS, Batch, Operation, Reading, Request, Response, Submission};
use slackline_core::id::{Incarnation, SiteId};
use slackline_core::object::message::{Fetched, Given, Message as ObjectMessage};
use slackline_core::object::{
    Abort, Cause, Change, Home, KEY_BYTES, Part, SCAN_ROWS, Seen, Span, TRANSACTION_BYTES, TRANSACTION_OPERATIONS,
    Transaction, VALUE_BYTES, Value, Version,
};
use slackline_core::peer::{Body, PeerMessage};
use slackline_core::txn::READ_ITEMS;
use slackline_wire::{Invalid, MESSAGE_BYTES, READING_BYTES, internal, limit_message, limit_reading, v1};

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
            Request::Open | Request::Batch(_) | Request::Ask { .. } | Request::Close { .. } | Request::Read(_) => {
                assert_eq!(through::<v1::SessionRequest, _>(request.clone()), request);
            }
            other => assert!(v1::SessionRequest::try_from(other).is_err()),
        }
    }
    for round in 0..ROUNDS * RESPONSES {
        let response = random.response(round % RESPONSES);
        assert_eq!(through::<internal::Response, _>(response.clone()), response);
        match response {
            Response::Explained { .. }
            | Response::Shown(_)
            | Response::Listed(_)
            | Response::Treaties(_)
            | Response::Status(_)
            | Response::Drained => {
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

/// Whoever receives it looks names up by their order.
#[test]
fn names_out_of_order_or_twice_are_refused() {
    let problem = |names: [&str; 2]| {
        let names = names.map(str::to_owned).to_vec();
        let body = internal::peer_message::Body::Forgotten(internal::Forgotten { epoch: 1, names });
        let message = internal::PeerMessage { incarnation: 1, body: Some(body), ..Default::default() };
        PeerMessage::try_from(message).err().map(|error| error.to_string())
    };
    assert_eq!(problem(["a", "b"]), None);
    for names in [["b", "a"], ["b", "b"]] {
        assert!(problem(names).is_some_and(|why| why.ends_with("names are not in ascending order")), "{names:?}");
    }
}

#[test]
fn senseless_transaction_or_read_is_named() {
    let problem = |request: v1::SessionRequest| Request::try_from(request).expect_err("must be refused").to_string();
    let commit = |transaction: Option<v1::Transaction>| {
        let kind = v1::OperationKind::Commit.into();
        let operation = v1::Operation { kind, transaction: transaction.map(Box::new), ..Default::default() };
        let site = Some(v1::SiteId::default());
        let batch = v1::Batch { site, operations: vec![operation], ..Default::default() };
        problem(v1::SessionRequest { request: Some(v1::session_request::Request::Batch(batch)) })
    };
    let part = |part: v1::Part| commit(Some(v1::Transaction { parts: vec![part], ..Default::default() }));
    let at = |field: &str| format!("batch.operations[0].transaction{field}");
    assert_eq!(commit(None), at(" is missing"));
    assert_eq!(part(v1::Part { region: 65_536, ..Default::default() }), at(".parts[0].region is above 65535"));
    let reads = vec![v1::ReadVersion::default(); TRANSACTION_OPERATIONS + 1];
    assert_eq!(part(v1::Part { reads, ..Default::default() }), at(".parts[0].reads has too many entries"));
    let scans = vec![v1::ScanVersions { span: Some(v1::Span::default()), numbers: vec![0; SCAN_ROWS + 1] }];
    assert_eq!(part(v1::Part { scans, ..Default::default() }), at(".parts[0].scans[0].numbers has too many entries"));
    let write =
        |change| part(v1::Part { writes: vec![v1::Write { change, ..Default::default() }], ..Default::default() });
    assert_eq!(write(None), at(".parts[0].writes[0].change is missing"));
    let empty = v1::write::Change::Put(v1::Value::default());
    assert_eq!(write(Some(empty)), at(".parts[0].writes[0].put.kind is missing"));
    let parts = vec![v1::Part::default(); 65];
    assert_eq!(commit(Some(v1::Transaction { parts, ..Default::default() })), at(".parts has too many entries"));

    let read = |read: v1::Read| problem(v1::SessionRequest { request: Some(v1::session_request::Request::Read(read)) });
    let scans = vec![v1::RegionSpan::default()];
    assert_eq!(read(v1::Read { scans, ..Default::default() }), "read.scans[0].span is missing");
    let gets = vec![v1::ObjectKey::default(); READ_ITEMS + 1];
    assert_eq!(read(v1::Read { gets, ..Default::default() }), "read.gets has too many entries");
    let abort = v1::outcome::Result::Aborted(Box::default());
    let outcome = v1::Outcome { sequence: 1, result: Some(abort) };
    let problem = slackline_core::api::Answer::try_from(outcome).expect_err("must be refused").to_string();
    assert_eq!(problem, "aborted.cause is missing");
}

#[test]
fn largest_transaction_fits_a_message() {
    let name = |at: usize| format!("{at:0>width$}", width = KEY_BYTES);
    let span = |at: usize| Span { prefix: name(at), after: name(at), limit: SCAN_ROWS as u32 };
    let writes =
        (0..4).map(|at| (name(at), Change::Put(Value::Bytes(vec![0; TRANSACTION_BYTES / 4 - KEY_BYTES].into()))));
    let scans = (4..TRANSACTION_OPERATIONS).map(|at| (span(at), Vec::new()));
    let part = Part { scans: scans.collect(), writes: writes.collect(), ..Part::default() };
    let mut transaction =
        Transaction { homes: vec![Home { part, ..Home::default() }], max_wait: u64::MAX, ..Transaction::default() };
    transaction.normalize().expect("it keeps the bounds");
    let operation = Operation::Commit(Box::new(transaction));
    let known = slackline_wire::operation_bytes(&operation);
    let encoded = v1::Operation::from(Submission { sequence: 1, timeout: u64::MAX, operation }).encoded_len();
    assert!((encoded..MESSAGE_BYTES).contains(&known), "{encoded} bytes, said to be {known}");
}

#[test]
fn answer_to_reads_is_cut_where_it_would_not_fit() {
    let version = Version { incarnation: Incarnation(1), number: u64::MAX };
    let seen = |size: usize| Seen { version, value: Some(Value::Bytes(vec![0; size].into())) };
    let rows = |count: usize| Ok((0..count).map(|at| (format!("{at:0>512}"), seen(VALUE_BYTES))).collect::<Vec<_>>());
    let too_much = Abort::of(Cause::TooMuch);
    let mut reading =
        Reading { token: 1, gets: vec![Ok(seen(VALUE_BYTES)); 40], scans: vec![rows(1)], is_whole: false };
    limit_reading(&mut reading);
    assert!(reading.gets[..15].iter().all(Result::is_ok));
    assert!(reading.gets[16..].iter().all(|result| result.as_ref() == Err(&too_much)));
    assert_eq!(reading.scans, [Err(too_much)]);
    let mut reading = Reading { token: 1, gets: Vec::new(), scans: vec![rows(SCAN_ROWS), rows(1)], is_whole: false };
    limit_reading(&mut reading);
    assert_eq!((reading.scans[0].is_ok(), reading.scans[1].is_ok()), (false, true));

    // Small values in great number, and everything that can be said about what failed.
    let failed = Abort {
        holders: vec![SiteId::new(u16::MAX, u16::MAX); 64],
        until: Some(i64::MIN),
        ..Abort::about(Cause::WouldWait, SiteId::new(u16::MAX, u16::MAX), &"x".repeat(KEY_BYTES))
    };
    let many = || Ok((0..SCAN_ROWS).map(|at| (format!("{at}"), seen(0))).collect::<Vec<_>>());
    for gets in [vec![Err(failed); READ_ITEMS], vec![Ok(seen(1_000)); READ_ITEMS]] {
        let scans = vec![many(); READ_ITEMS - 1];
        let mut reading = Reading { token: u64::MAX, gets, scans, is_whole: true };
        limit_reading(&mut reading);
        let encoded = v1::Reading::from(reading).encoded_len();
        assert!((READING_BYTES / 2..MESSAGE_BYTES).contains(&encoded), "{encoded}");
    }
    let given = Ok(Given { seen: seen(VALUE_BYTES), right: None });
    let fetched = Fetched {
        token: 1,
        start: Default::default(),
        gets: vec![given; READ_ITEMS / 16],
        scans: Vec::new(),
        is_whole: true,
    };
    let body = Body::Txn(Box::new(ObjectMessage::Fetched(Box::new(fetched))));
    let mut message = PeerMessage { incarnation: Incarnation(1), position: 1, epoch: 0, members: 0, body };
    limit_message(&mut message);
    assert!(slackline_wire::message_bytes(&message) <= READING_BYTES);
    assert!(internal::PeerMessage::from(message).encoded_len() < MESSAGE_BYTES);
}

#[test]
fn largest_batch_fits_a_message() {
    let site = v1::SiteId { region: u32::from(u16::MAX), lane: u32::from(u16::MAX) };
    let operation = v1::Operation {
        sequence: u64::MAX,
        timeout_us: u64::MAX,
        kind: v1::OperationKind::Acquire.into(),
        quota: "x".repeat(256),
        amount: i64::MAX,
        hold: v1::Hold::For.into(),
        hold_us: u64::MAX,
        grant: None,
        agreement: v1::Agreement::Any.into(),
        refill_millionths: u64::MAX,
        parent_bytes: u32::MAX,
        wait: true,
        transaction: None,
        site: Some(site),
        seat: v1::SeatChange::Lost.into(),
        label: "x".repeat(512),
        lost: vec![v1::LostIncarnation { site: Some(site), incarnation: u32::MAX }; 64],
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
