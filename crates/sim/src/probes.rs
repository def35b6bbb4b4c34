//! Probes: named counters of what a run came across. A sweep fails if one was hit in too few seeds, because then what
//! it stands for is hardly tested.

use std::fmt;

use crate::kinds::{MESSAGES, PERSISTING};

/// Everything that a sweep must come across, besides what is made of message kinds and persist points.
const NAMED: &[&str] = &[
    "caller: a program ends as unknown",
    "caller: a release is handed over",
    "caller: goes away",
    "caller: its deadline passes in doubt",
    "caller: its site falls silent",
    "caller: its stream breaks",
    // Faults.
    "fault: crash, unsynced lost",
    "fault: crash, unsynced partly kept",
    "fault: crash, unsynced kept",
    "fault: disk lost",
    "fault: disk lost after a vote",
    "fault: old copy restored",
    "fault: old copy restored, others crash",
    "fault: disk lost again",
    "fault: empty mount",
    "fault: empty mount ends",
    "fault: pause",
    "fault: pause between clock and effect",
    "fault: stall past the bound",
    "fault: wall clock within epsilon",
    "fault: wall clock beyond epsilon",
    "fault: wall clock stepped while warranties are used",
    "fault: new storage on a wrong wall clock",
    "fault: wall clock set back before a prepare",
    "fault: wall clock set wrong as another is set right",
    "fault: new incarnation not heard of",
    "fault: monotonic drift",
    "fault: suspended",
    "fault: suspended, clock stands",
    "fault: holds beyond a page fall due at once",
    "fault: one-way partition",
    "fault: partial partition",
    "fault: site isolated",
    "fault: split",
    "fault: swizzle",
    "fault: slow link",
    "fault: loss burst",
    "fault: duplication burst",
    "fault: reordering burst",
    "fault: slow disk",
    "fault: full disk",
    "fault: crash after a session ended with a commit under way",
    "fault: slow fetch",
    "fault: slow fetch of a tick",
    "fault: drain and restart",
    "fault: prepare after its deadline",
    "fault: prepare in the last moment",
    "fault: prepare held back",
    "fault: fetched after the deadline",
    "fault: outcome held back",
    "fault: holder starts again when a right is asked back",
    "fault: message of a former life of a quota's name",
    "fault: late copy of a message about a site",
    "fault: late copy of a message about a quota",
    "fault: late copy of a message about a transaction",
    "fault: late copy of a relayed message",
    // Quotas.
    "quota: one of very many",
    "quota: forgotten",
    "quota: forgotten and created again",
    // Sites.
    "members: a site dies for good",
    "members: a site that was lost is reclaimed",
    "members: a site is drained",
    "members: a site with something of its own stays",
    "members: a site leaves",
    "site: joins as the first incarnation",
    "site: joins as a later incarnation",
    "site: confirmed",
    "site: old copy noticed",
    "site: awaits a person's word",
    "site: drained",
    "site: drained before it served",
    "site: clock distrusted",
    "site: clock error noticed in time",
    "site: marks looked at after a clock error",
    "site: restarted in a round",
    "site: restarted with an accepted value",
    // Rounds.
    "round: reactive",
    "round: proactive",
    "round: recovery",
    "round: tokens moved",
    "round: rivals",
    "round: withdrawn",
    "round: offer freed by a withdrawal",
    "round: accepted value reported",
    "round: accepted value taken up",
    "round: report without a promise",
    "round: new incarnation recorded",
    "round: caught up over a gap",
    "round: grants while tokens are set aside",
    "round: release while tokens are set aside",
    // Rounds among any sites.
    "any: a round decided among a subset",
    "any: two disjoint rounds at once",
    "any: rivals",
    "any: recovered by a member",
    "any: restarted before the vote",
    "any: restarted with an accepted value",
    "any: told that a member is dead",
    "any: a dead leader",
    "any: a dead cohort settled by the sign",
    // Gifts.
    "gift: sent",
    "gift: received",
    "refill: backlog handed over",
    "gift: to an incarnation that is lost",
    "gift: total told again",
    // Forecasts.
    "forecast: nothing",
    "forecast: up to all tokens",
    "forecast: a thousand times all tokens",
    "forecast: senseless",
    // Operations.
    "operation: granted at once",
    "operation: granted after waiting",
    "operation: released by amount",
    "operation: released by grant",
    "operation: hold ended by itself",
    "operation: answered from the record",
    "operation: created",
    "operation: deleted",
    "operation: extended",
    "operation: granted after a time in line",
    "operation: granted by a quota that refills",
    "operation: in line until its time was up",
    "tree: granted at several levels",
    "tree: a level above is short",
    "tree: limit set",
    "tree: deleted",
    "operation: settled",
    "members: a site joined",
    "members: refused as the last change is not recorded",
    "operation: limit set",
    "operation: limit set below what is in use",
    "operation: reclaimed",
    "operation: reclaimed nothing",
    "operation: deleted and created again",
    "operation: waits for a name that then exists",
    "refused: unknown_quota",
    "refused: no_parent",
    "refused: has_children",
    "refused: in_use",
    "refused: exhausted",
    "refused: invalid_amount",
    "refused: invalid_name",
    "refused: limit_differs",
    "refused: refill_differs",
    "refused: refills",
    "refused: agreement_differs",
    "refused: above_out",
    "refused: above_limit",
    "refused: unknown_grant",
    "refused: above_grant",
    "refused: settled",
    "refused: no_end",
    "refused: incarnation_lives",
    "refused: nothing_lost",
    "refused: also_lost",
    "refused: above_lost",
    "refused: quota_deleted",
    "refused: deadline_passed",
    "refused: unreachable",
    "refused: withdrawn",
    "refused: other_content",
    "refused: session_ended",
    "refused: not_ready",
    "refused: storage_full",
    "unknown: site_unreachable",
    "unknown: incarnation_lost",
    "unknown: forgotten",
    "unknown: undecided",
    "unknown: home_lost",
    "unknown: not_ready",
    "unknown: storage_full",
    "unknown: resolved by asking",
    // Transactions.
    "transaction: committed in 0 phases",
    "transaction: committed in 1 phase",
    "transaction: committed in 2 phases",
    "transaction: aborted, changed",
    "transaction: aborted, busy",
    "transaction: aborted, would_wait",
    "transaction: aborted, not_in_time",
    "transaction: aborted, lost",
    "transaction: aborted, home_unreachable",
    "transaction: aborted, asked_too_early",
    "transaction: aborted, home_not_ready",
    "transaction: aborted, calls_depend",
    "transaction: aborted, not_a_counter",
    "transaction: aborted, out_of_range",
    "transaction: aborted, clocks_disagree",
    "transaction: waited for warranties",
    "transaction: run again",
    "transaction: needs no judgement",
    "transaction: was given its turn",
    "transaction: waited for its turn",
    "transaction: its turn ended with a crash",
    "transaction: doubt resolved",
    "call: registered",
    "call: not registered",
    "call: recomputed, the same",
    "call: recomputed, another",
    "call: recomputed before any home asked",
    "call: revoked",
    "call: deleted, nobody used it",
    "call: noted as dependent, not there",
    "warranty: issued",
    "warranty: asked back",
    "object: loss accepted",
    // Treaties.
    "treaty: holds",
    "treaty: does not hold",
    "treaty: its statement turns false",
    "treaty: slack moves",
    "treaty: retracted",
    "treaty: made anew",
    "treaty: ended",
    "treaty: required, and met",
    "treaty: required, and not met",
    "treaty: its slack not waited for",
    // Clients.
    "client: repeats",
    "client: repeats through another site",
    "client: asks",
    "client: asks through another site",
    "client: asks before sending",
    "client: fails over",
    "client: closes a session",
    "client: closes a session with operations under way",
    "client: jumps its window",
    "client: jumps its window over what waits",
    "client: repeats what it was told of",
    "client: repeats what was withdrawn",
    "client: repeats in a session that ended",
    "client: sends what it passed over",
    "client: silent for longer than outcomes are kept",
    "client: wants a name that is being forgotten",
    "client: releases twice",
    "client: reuses an id",
    "client: asks about what was answered",
    "show: exact",
    "show: an interval",
    "show: sites missing",
    "audit: counted at a second try",
];

/// The fates of messages that are counted by kind.
const FATES: [&str; 3] = ["lost", "duplicated", "reordered"];

/// Counters of one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probes {
    /// The number of times that each was hit: those that are named, then fates by kind of message, then recoveries by persist point.
    counts: Vec<u64>,
}

impl Default for Probes {
    fn default() -> Self {
        Self { counts: vec![0; NAMED.len() + MESSAGES.len() * FATES.len() + PERSISTING.len()] }
    }
}

impl Probes {
    /// The run came across what a probe names.
    pub(crate) fn hit(&mut self, name: &str) {
        self.add(name, 1);
    }

    /// It did so this many times.
    pub(crate) fn add(&mut self, name: &str, times: u64) {
        let at = NAMED.iter().position(|known| *known == name);
        self.counts[at.unwrap_or_else(|| panic!("no probe is called {name}"))] += times;
    }

    /// A message of this kind was lost (0), duplicated (1) or reordered (2).
    pub(crate) fn message(&mut self, kind: usize, fate: usize) {
        self.counts[NAMED.len() + kind * FATES.len() + fate] += 1;
    }

    /// A site crashed when it handed out a batch for an input of this kind, and was started again.
    pub(crate) fn recovered(&mut self, input: &str) {
        if let Some(at) = PERSISTING.iter().position(|known| *known == input) {
            self.counts[NAMED.len() + MESSAGES.len() * FATES.len() + at] += 1;
        }
    }

    /// Names and counts.
    pub fn iter(&self) -> impl Iterator<Item = (String, u64)> {
        let messages = MESSAGES.iter().flat_map(|kind| FATES.iter().map(move |fate| format!("{fate}: {kind}")));
        let recoveries = PERSISTING.iter().map(|input| format!("recovered at the persist of: {input}"));
        let names = NAMED.iter().map(|name| (*name).to_owned()).chain(messages).chain(recoveries);
        names.zip(self.counts.iter().copied())
    }
}

/// In how many runs each probe was hit, and how often over all of them.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Runs counted.
    pub runs: u64,
    /// Each probe's name, the runs in which it was hit, and how often in all.
    rows: Vec<(String, u64, u64)>,
}

impl Table {
    /// Counts one run.
    pub fn add(&mut self, probes: &Probes) {
        self.runs += 1;
        if self.rows.is_empty() {
            self.rows = probes.iter().map(|(name, _)| (name, 0, 0)).collect();
        }
        for (row, (_, count)) in self.rows.iter_mut().zip(probes.iter()) {
            row.1 += u64::from(count > 0);
            row.2 += count;
        }
    }

    /// The probes that were hit in fewer than `seeds` runs.
    pub fn missed(&self, seeds: u64) -> impl Iterator<Item = &str> {
        self.rows.iter().filter(move |(_, runs, _)| *runs < seeds).map(|(name, _, _)| &name[..])
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<58} {:>7} {:>13}", "probe", "seeds", "hits")?;
        for (name, runs, hits) in &self.rows {
            writeln!(f, "{name:<58} {runs:>7} {hits:>13}")?;
        }
        Ok(())
    }
}
