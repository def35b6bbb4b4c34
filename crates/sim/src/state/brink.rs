//! A transaction that is held back until the brink of its time.

use slackline_core::clock::SECOND;
use slackline_core::id::OperationId;
use slackline_core::object::ObjectKey;
use slackline_core::stats::Rng;

/// The way by which a transaction is brought to its brink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The message arrives after its deadline, when the write is done; where wall clocks err, that of the participant is set back
    /// meanwhile.
    Late,
    /// It arrives at the last moment at which the participant's clock allows it. The clocks of participant and issuer are at the two
    /// ends of ε, and the issuer's monotonic clock runs fast.
    Last,
    /// It arrives in time, but its coordinator has crashed when the right was asked back, and is there again.
    Anew,
    /// It arrives in time, and storage takes until after the deadline to fetch what it needs.
    Fetched,
    /// No time runs out: the home of what a call has ceased to read is not told how the transaction ended.
    Overtaken,
}

/// One transaction that is held back.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// How.
    pub(crate) way: Way,
    /// The transaction.
    pub(crate) id: OperationId,
    /// The site that coordinates it.
    pub(crate) coordinator: usize,
    /// The site that its message is kept from.
    pub(crate) participant: usize,
    /// An object that it rests on under a right.
    pub(crate) under: ObjectKey,
    /// An object that it writes at the participant.
    pub(crate) written: ObjectKey,
    /// When the participant is to judge it.
    pub(crate) until: u64,
    /// True if the message is on its way.
    pub(crate) has_left: bool,
    /// True if the coordinator has crashed, as [`Way::Anew`] has it.
    pub(crate) has_crashed: bool,
}

/// The transaction that is held back now, and when the next one may be.
#[derive(Debug)]
pub(crate) struct Brink {
    /// The transaction.
    pub(crate) held: Option<Held>,
    /// None is held back before this.
    pub(crate) next: u64,
    /// The number of coordinators that have crashed this way.
    pub(crate) crashes: u32,
    /// Feeds its choices, so that they leave those of the other faults as they are.
    pub(crate) rng: Rng,
}

impl Brink {
    /// Nothing is held back.
    pub(crate) fn new(seed: u64) -> Self {
        Self { held: None, next: 5 * SECOND, crashes: 0, rng: Rng::new(seed ^ 0x6272_696e) }
    }
}
