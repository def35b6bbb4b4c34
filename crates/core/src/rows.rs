//! The rows of a site's storage. The first byte of a key, its **tag**, tells what its row is about; here is every tag.
//!
//! | tag | key | value | of | kind |
//! | --- | --- | --- | --- | --- |
//! | [`META`] | | the site, its storage's nonce, incarnation, life, uptime, marks of sessions | site | resident |
//! | [`PEER`] | position | a peer's incarnation and log position, and the incarnation noted for its new storage | site | resident |
//! | [`QUOTA_COLD`] | quota | name, agreement without tokens, totals of gifts, counters | quotas | resident |
//! | [`QUOTA_HOT`] | quota | tokens, counters that change with every grant | quotas | resident |
//! | [`OUTCOME`] | session, slot | an operation's outcome, or the session's mark, see [`crate::session`] | sessions | resident |
//! | [`NUMBERS`] | | a home's numbers: versions, deadlines, ends of rights, an operator's word about lost objects | transactions | resident |
//! | [`PARTICIPANT`] | transaction | this site's part of a transaction | transactions | resident |
//! | [`COORDINATOR`] | session, sequence | the participants of a transaction that this site coordinates, and its deadline | transactions | resident |
//! | [`DEPENDENT`] | call | the dependencies of a call on objects here | transactions | resident |
//! | [`LEAF`] | treaty, making, clause | the leaf of a treaty here: homes, or a clause with its bound and the gifts of slack | transactions | resident |
//! | [`FORGOTTEN`] | | the names of quotas that were forgotten last, and those that are frozen | quotas | resident |
//! | [`GRANT`] | incarnation, number | a tracked grant: quota, generation, amount, term | quotas | paged |
//! | [`DUE`] | uptime, incarnation, number | the same grant by the time when it may end | quotas | paged |
//! | [`OBJECT`] | incarnation, name | an object's version and value | transactions | paged |
//! | [`CALL`] | incarnation, name | a call of a memoized function: version, result, the homes that it rests on | transactions | paged |
//!
//! **Resident** rows are read when the site starts and are in memory from then on. **Paged** rows stay on storage; an
//! input names those that it needs, and they are read before it is handled ([`crate::machine::Machine::working_set`]).
//! There may be more of them than fit into memory.

/// The site itself.
pub const META: u8 = 0x01;
/// A peer.
pub const PEER: u8 = 0x02;
/// The part of a quota that changes with rounds and gifts.
pub const QUOTA_COLD: u8 = 0x03;
/// The part of a quota that changes with grants.
pub const QUOTA_HOT: u8 = 0x04;
/// An operation's outcome, or a session's mark.
pub const OUTCOME: u8 = 0x05;
/// A home's numbers.
pub const NUMBERS: u8 = 0x06;
/// A transaction in which this site takes part.
pub const PARTICIPANT: u8 = 0x07;
/// A transaction that this site coordinates.
pub const COORDINATOR: u8 = 0x08;
/// A call that depends on objects here.
pub const DEPENDENT: u8 = 0x09;
/// Names of quotas that were forgotten.
pub const FORGOTTEN: u8 = 0x0a;
/// The leaf of a treaty over objects here.
pub const LEAF: u8 = 0x0b;
/// The first tag of paged rows.
pub const PAGED: u8 = 0x80;
/// A tracked grant.
pub const GRANT: u8 = PAGED;
/// The index of grants by the time when they may end.
pub const DUE: u8 = 0x81;
/// An object.
pub const OBJECT: u8 = 0x82;
/// A call of a memoized function. Spans do not show it.
pub const CALL: u8 = 0x83;

/// The owner of a row: the part of the node that writes it, and reads it when the site starts. Messages, operations and
/// requests have the same owners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The site, of itself and its peers.
    Site,
    /// Sessions.
    Sessions,
    /// Quotas.
    Quota,
    /// Objects and transactions.
    Txn,
}

/// Every tag, with the owner of its rows.
pub const TAGS: [(u8, Owner); 15] = [
    (META, Owner::Site),
    (PEER, Owner::Site),
    (QUOTA_COLD, Owner::Quota),
    (QUOTA_HOT, Owner::Quota),
    (OUTCOME, Owner::Sessions),
    (NUMBERS, Owner::Txn),
    (PARTICIPANT, Owner::Txn),
    (COORDINATOR, Owner::Txn),
    (DEPENDENT, Owner::Txn),
    (FORGOTTEN, Owner::Quota),
    (LEAF, Owner::Txn),
    (GRANT, Owner::Quota),
    (DUE, Owner::Quota),
    (OBJECT, Owner::Txn),
    (CALL, Owner::Txn),
];

/// The owner of the row under a key; none if this version writes no row with that tag.
pub fn owner(key: &[u8]) -> Option<Owner> {
    let tag = key.first()?;
    TAGS.iter().find(|(known, _)| known == tag).map(|(_, owner)| *owner)
}

/// True if the row under a key stays on storage until it is needed.
pub fn is_paged(key: &[u8]) -> bool {
    key.first().is_some_and(|tag| *tag >= PAGED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_told_apart_and_the_book_lists_them_all() {
        let book = include_str!("../../../docs/src/storage.md");
        for (at, (tag, owner_of_tag)) in TAGS.iter().enumerate() {
            assert!(TAGS[..at].iter().all(|(other, _)| other < tag), "in ascending order, each once");
            assert_eq!(owner(&[*tag, 7]), Some(*owner_of_tag));
            assert!(book.contains(&format!("`{tag:02x}`")), "the book does not list the tag {tag:02x}");
        }
        assert_eq!((owner(&[]), owner(&[0]), owner(&[0x7f])), (None, None, None));
        assert!(is_paged(&[CALL]) && !is_paged(&[FORGOTTEN]) && !is_paged(&[]));
    }
}
