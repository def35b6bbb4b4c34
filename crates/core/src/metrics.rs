//! What a node counts. Plain numbers: the driver turns them into whatever its monitoring speaks.

/// Counters since the node was opened, and gauges.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Metrics {
    /// Acquires granted at once.
    pub granted_local: u64,
    /// Acquires granted after waiting for tokens of other sites.
    pub granted_waited: u64,
    /// Acquires refused at once.
    pub refused_local: u64,
    /// Acquires refused after waiting.
    pub refused_waited: u64,
    /// Releases done, by amount or by grant.
    pub released: u64,
    /// Holds whose time was up.
    pub expired: u64,
    /// Operations refused for any other reason.
    pub refused_other: u64,
    /// Operations answered from the record of an earlier try.
    pub repeated: u64,
    /// Rounds led because requests waited.
    pub rounds_reactive: u64,
    /// Rounds led because a forecast said so.
    pub rounds_proactive: u64,
    /// Rounds led to finish what a silent leader began, or to record a new incarnation.
    pub rounds_recovery: u64,
    /// Rounds applied that moved tokens.
    pub rebalances: u64,
    /// Gifts sent because requests wait at the receiver.
    pub gifts_asked: u64,
    /// Gifts sent because the receiver has less than its part.
    pub gifts_ahead: u64,
    /// Gifts sent because this site stops.
    pub gifts_leaving: u64,
    /// Times that a backlog was handed over to another site, to be refilled there.
    pub backlog_handed: u64,
    /// Gifts received.
    pub gifts_received: u64,
    /// Transactions committed that this site coordinated, by the number of phases.
    pub committed: [u64; 3],
    /// Transactions aborted that this site coordinated.
    pub aborted: u64,
    /// Questions to other homes for values.
    pub fetches: u64,
    /// Warranties issued and extended.
    pub rights_issued: u64,
    /// Warranties asked back before their end.
    pub revocations: u64,
    /// Parts of transactions that waited for warranties of others to end.
    pub defended: u64,
    /// Programs that were given a turn: others were barred from what they read and wanted to write.
    pub turns_given: u64,
    /// Reads that waited for their turn, or for what was prepared.
    pub turns_awaited: u64,
    /// Transactions in doubt whose outcome was learned.
    pub doubts_resolved: u64,
    /// Calls of memoized functions that were deleted because nobody used them.
    pub calls_evicted: u64,
    /// Treaties of this home that were retracted.
    pub treaties_retracted: u64,
    /// Names of deleted quotas that this site has forgotten.
    pub forgotten: u64,
    /// Messages sent to other sites.
    pub messages_sent: u64,
    /// Messages that fitted no rule and were ignored.
    pub ignored: u64,
    /// Requests that now wait for tokens.
    pub waiting: u64,
    /// Sessions open now.
    pub sessions: u64,
    /// Quotas known now.
    pub quotas: u64,
}

impl Metrics {
    /// Gifts sent, for any cause.
    pub fn gifts_sent(&self) -> u64 {
        self.gifts_asked + self.gifts_ahead + self.gifts_leaving
    }
}
