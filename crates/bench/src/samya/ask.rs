//! What clients ask, what they hear, and what a system is that answers them: the face that all configurations have.

/// What a client asks of a system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    /// Tokens, if the client can know of them by its deadline, in microseconds of virtual time.
    Acquire {
        /// The number of tokens.
        amount: i64,
        /// The last time at which the answer is of use.
        deadline: u64,
    },
    /// Tokens are given back.
    Release {
        /// The number of tokens.
        amount: i64,
    },
    /// The number of tokens in use.
    Read,
}

/// An answer, as its client hears it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Heard {
    /// The call that is answered.
    pub(super) call: u32,
    /// The answer.
    pub(super) told: Told,
    /// True if no message over the wide area was awaited.
    pub(super) is_local: bool,
}

/// What a system says of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// The tokens are the client's.
    Granted,
    /// They are not, and will not be.
    Refused,
    /// The tokens are taken back, or the number is told.
    Done,
}

/// What happens to the sites and clients from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The site and the clients of this region end, for good.
    Lose(usize),
    /// The network falls into two parts, or is whole again.
    Part(bool),
}

/// What a system counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    /// Rounds that moved tokens.
    pub(super) rebalances: u64,
    /// One-way moves of tokens.
    pub(super) gifts: u64,
    /// Messages that left a region: between sites, and between clients and a site elsewhere.
    pub(super) wan_messages: u64,
    /// Syncs of all sites' logs.
    pub(super) syncs: u64,
}

/// One configuration, running in virtual time.
pub(super) trait System {
    /// The time, in microseconds.
    fn now(&self) -> u64;

    /// Lets time pass until `until`, or until clients hear something, if that is earlier.
    fn advance(&mut self, until: u64, heard: &mut Vec<Heard>);

    /// A client of a region sends a request now.
    fn ask(&mut self, region: usize, call: u32, ask: Ask);

    /// Something happens to it now.
    fn strike(&mut self, fault: Fault);

    /// Checks what must hold at any time: no more in use than the limit, no token made or lost. An error is a bug.
    fn audit(&mut self) -> Result<(), String>;

    /// Lets everything come to rest, and checks the books of all sites; `held` is what clients have in the end, if they know.
    fn close(&mut self, held: Option<i64>) -> Result<(), String>;

    /// What it has counted so far.
    fn counts(&self) -> Counts;
}
