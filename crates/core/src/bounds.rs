//! What one request may ask for and one answer may carry: the bounds that several places keep, and how they fit into
//! each other. A bound that only one place keeps stands there.
//!
//! ```text
//! a name ─┬─▶ an entry ─▶ a transaction ─▶ a batch on the wire ─┐
//! a value ┘             ╲                                       ├─▶ a message
//!                        ╲▶ an answer to reads, on the wire ────┘
//! ```

/// The longest name of a quota, in bytes.
pub const NAME_BYTES: usize = 256;
/// The longest name of an object, in bytes.
pub const KEY_BYTES: usize = 512;
/// The longest name of a call, in bytes.
pub const CALL_BYTES: usize = 1024;
/// The largest value, in bytes.
pub const VALUE_BYTES: usize = 256 * 1024;
/// The bytes that an entry of a message takes besides its name and value, at most.
pub const ENTRY_BYTES: usize = 40;

/// The most reads, scans and writes of one transaction, together.
pub const TRANSACTION_OPERATIONS: usize = 4096;
/// The most bytes that one transaction writes, names included.
pub const TRANSACTION_BYTES: usize = 1024 * 1024;

/// The most bytes of the notes of leaves that one transaction brings, for all homes together: a treaty about 2,000 things that 33
/// regions count takes 1 MiB.
pub const NOTES_BYTES: usize = 2 * 1024 * 1024;

/// The most bytes of the rows of leaves that one transaction makes at one home. They stand in one batch of the log. A treaty with
/// the longest name and the most clauses takes half of it, and its terms.
pub const LEAF_BYTES: usize = 8 * 1024 * 1024;

/// The most gets and scans in one batch of reads, and the most names in one message about calls.
pub const READ_ITEMS: usize = 4096;
/// The most rows that one scan returns.
pub const SCAN_ROWS: usize = 1024;
/// The most bytes that are read from storage, and answered, at a time, about.
pub const READ_BYTES: usize = 8 << 20;
/// The most bytes of values that one answer to reads carries on the wire, names in spans included.
pub const READING_BYTES: usize = 4 << 20;

/// The most bytes of names of calls that one refusal carries, what stands beside each included: 140 names of 80 bytes. They go with the first
/// answer alone and are not kept: who misses it commits once more, under another id, and is told them then.
pub const NAMED_BYTES: usize = 16 * 1024;
/// The most bytes of such names in one response to a batch; the other refusals in it name none, and their clients commit once more.
pub const RESPONSE_NAMED_BYTES: usize = 16 * NAMED_BYTES;

/// The most things that are due that one room of transactions does in a call, where storage is read for them; the next call comes at once.
pub(crate) const AT_ONCE: usize = 16;

/// The largest message that a site or a client takes, in bytes. A batch of 1,024 operations with the longest names fits,
/// and so do the largest transaction and the largest answer to reads.
pub const MESSAGE_BYTES: usize = 8 << 20;

// A value that is asked for alone fits into an answer, and is not cut from it on the wire either: else a client would ask
// for it again and again.
const _: () = assert!(VALUE_BYTES + CALL_BYTES + ENTRY_BYTES <= READING_BYTES && READING_BYTES <= READ_BYTES);
// A transaction can write the largest value.
const _: () = assert!(VALUE_BYTES + KEY_BYTES + ENTRY_BYTES <= TRANSACTION_BYTES);
// What a client reads and writes in one transaction travels in one message: besides what it writes, it names what it read.
const _: () =
    assert!(TRANSACTION_BYTES + NOTES_BYTES + TRANSACTION_OPERATIONS * (CALL_BYTES + ENTRY_BYTES) <= MESSAGE_BYTES);
// One treaty can be as large as notes may be.
const _: () = assert!(NOTES_BYTES + TRANSACTION_OPERATIONS * (CALL_BYTES + ENTRY_BYTES) <= LEAF_BYTES);
// A refusal names at least one call, or its client would make no progress.
const _: () = assert!(CALL_BYTES + ENTRY_BYTES <= NAMED_BYTES);
// An answer has room for what stands beside the values: a refusal in the place of each that did not fit.
const _: () = assert!(READING_BYTES + READ_ITEMS * (KEY_BYTES + ENTRY_BYTES) <= MESSAGE_BYTES);
