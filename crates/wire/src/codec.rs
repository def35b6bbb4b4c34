//! Protocol Buffers, but for messages that would take far more memory than they have bytes.
//!
//! An entry of a list may take two bytes of a message, and hundreds of memory: eight million bytes of empty operations, or of empty parts of
//! one transaction, are a gigabyte before anybody can count them. So what is large is looked at before it is decoded.

use std::marker::PhantomData;

use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};
use prost::{Message, Name};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use crate::internal;

/// The most memory that a message may take besides the bytes that it has, about, in bytes. A transaction with the most notes of treaties takes
/// less than half of it. A frame between sites holds a message of a client, and others: it may take twice as much.
const MEMORY: usize = 192 << 20;
/// A smaller message is decoded as it is, in bytes: it takes some ten million bytes at the most.
const LARGE: usize = 64 << 10;
/// The memory that a field takes besides what it holds, in bytes: a string, or a list.
const FIELD: usize = 24;
/// Messages in messages are decoded to this depth, and refused beyond it.
const DEPTH: usize = 100;

/// The messages, in the order of their names.
const MESSAGES: &[Described] = include!(concat!(env!("OUT_DIR"), "/messages.rs"));

/// A message as its definition has it.
struct Described {
    /// Its name, with that of its package.
    name: &'static str,
    /// The number of its fields.
    fields: usize,
    /// The numbers of those that hold a message, each with the place of that among all.
    holds: &'static [(u32, usize)],
}

/// The codec of all services here.
#[derive(Debug)]
pub(crate) struct Counting<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Counting<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Message + Name + Default + Send + 'static> Codec for Counting<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CountingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        CountingDecoder(ProstCodec::<T, U>::default().decoder())
    }
}

/// Decodes messages that take no more memory than they may.
#[derive(Debug)]
pub(crate) struct CountingDecoder<U>(ProstDecoder<U>);

impl<U: Message + Name + Default> Decoder for CountingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // A message lies in one piece.
        if buffer.remaining() >= LARGE && takes_too_much::<U>(buffer.chunk()) {
            let bytes = buffer.remaining();
            return Err(Status::invalid_argument(format!(
                "a message of {bytes} bytes has far more entries than it may, or is none of this version"
            )));
        }
        self.0.decode(buffer)
    }
}

/// True if a message would take more memory than it may.
fn takes_too_much<U: Name>(message: &[u8]) -> bool {
    let place = MESSAGES.binary_search_by(|described| described.name.cmp(&U::full_name()));
    let mut room = if U::NAME == internal::LinkFrame::NAME { 2 * MEMORY } else { MEMORY };
    place.is_ok_and(|place| !has_room(message, place, DEPTH, &mut room))
}

/// Takes what the fields of a message and all that it holds would take from `room`; false once that is not there, or where the bytes are no such
/// message: who decodes them may find a way through them that this one does not.
fn has_room(mut message: &[u8], place: usize, depth: usize, room: &mut usize) -> bool {
    let Described { holds, .. } = MESSAGES[place];
    while let Some((number, content)) = next_field(&mut message) {
        let held = content.and_then(|content| Some((content, holds.iter().find(|(field, _)| *field == number)?.1)));
        let fields = held.map_or(0, |(_, place)| MESSAGES[place].fields);
        match room.checked_sub(FIELD * (1 + fields)) {
            Some(left) => *room = left,
            None => return false,
        }
        if let Some((content, place)) = held
            && (depth == 0 || !has_room(content, place, depth - 1, room))
        {
            return false;
        }
    }
    message.is_empty()
}

/// Goes past a field: its number, and its content if that has a length. None at the end; or where there is no field that ours have, and bytes are
/// left then.
fn next_field<'a>(bytes: &mut &'a [u8]) -> Option<(u32, Option<&'a [u8]>)> {
    if bytes.is_empty() {
        return None;
    }
    let mut left = *bytes;
    let (number, kind) = decode_key(&mut left).ok()?;
    let length = match kind {
        WireType::Varint => decode_varint(&mut left).map(|_| 0).ok()?,
        WireType::ThirtyTwoBit => 4,
        WireType::SixtyFourBit => 8,
        WireType::LengthDelimited => usize::try_from(decode_varint(&mut left).ok()?).ok()?,
        WireType::StartGroup | WireType::EndGroup => return None,
    };
    let (content, rest) = left.split_at_checked(length)?;
    *bytes = rest;
    Some((number, (kind == WireType::LengthDelimited).then_some(content)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn refuses<U: Message + Name>(message: &U) -> bool {
        takes_too_much::<U>(&message.encode_to_vec())
    }

    fn commit(transaction: v1::Transaction) -> v1::SessionRequest {
        let operation = v1::Operation { transaction: Some(Box::new(transaction)), ..v1::Operation::default() };
        let batch = v1::Batch { operations: vec![operation], ..v1::Batch::default() };
        v1::SessionRequest { request: Some(v1::session_request::Request::Batch(batch)) }
    }

    /// Each entry takes two bytes of the message, and the message is no longer than one may be.
    #[test]
    fn message_with_far_more_entries_than_it_may_have_is_refused_before_it_is_decoded() {
        let many = slackline_core::bounds::MESSAGE_BYTES / 2 - 100;
        let operations =
            |count| v1::Batch { operations: vec![v1::Operation::default(); count], ..v1::Batch::default() };
        assert!(refuses(&operations(many)) && !refuses(&operations(100_000)));
        let parts = vec![v1::Part::default(); many];
        assert!(refuses(&commit(v1::Transaction { parts, ..v1::Transaction::default() })));
        let reads = vec![v1::ReadVersion::default(); many];
        let parts = vec![v1::Part { reads, ..v1::Part::default() }];
        assert!(refuses(&commit(v1::Transaction { parts, ..v1::Transaction::default() })));
    }

    #[test]
    fn largest_transaction_is_not_refused() {
        let term = v1::Term { name: "n".into(), weight: 1, ..v1::Term::default() };
        let clause = v1::LeafClause { terms: vec![term; 4096], ..v1::LeafClause::default() };
        let leaves = vec![v1::Leaf { clauses: vec![clause], ..v1::Leaf::default() }; 80];
        let value = v1::Value { kind: Some(v1::value::Kind::Bytes([0x0a, 0].repeat(100_000).into())) };
        let write = v1::Write { name: "x".repeat(400), change: Some(v1::write::Change::Put(value)) };
        let parts = vec![v1::Part { leaves, writes: vec![write; 5], ..v1::Part::default() }];
        let large = commit(v1::Transaction { parts, ..v1::Transaction::default() });
        assert!(large.encoded_len() > 3 << 20 && !refuses(&large), "bytes of a value are no entries");
    }

    /// The library that decodes goes past groups, and looks at an inner length before an outer one.
    #[test]
    fn whatever_is_no_message_of_ours_is_refused() {
        for bytes in
            [&[0x0a][..], &[0x0a, 5, 1], &[0xff; 12], &[0x0b, 0x0c], &[0x09, 1, 2], &[0x12, 2, 0x2a, 9, 0x4a, 0]]
        {
            assert!(takes_too_much::<v1::SessionRequest>(bytes), "{bytes:?}");
        }
        for bytes in [&[][..], &[0x9a, 6, 1, 7], &[0x98, 6, 1]] {
            assert!(!takes_too_much::<v1::SessionRequest>(bytes), "a later version may have more fields: {bytes:?}");
        }
    }
}
