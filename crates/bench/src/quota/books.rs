//! What the clients of a run know, and whether the sites' books say the same.

use slackline_core::node::Node;
use slackline_core::quota::Quota;

use super::prepare::{NAME, Prepared};
use crate::histogram::Histogram;
use crate::report::{Latency, Run};
use crate::trace::{Kind, Trace};

/// Into how many parts figures divide a trace's time.
pub(super) const PARTS: usize = 240;

/// The number of operations by their outcomes, and the tokens that clients had of each site.
pub(super) struct Books {
    /// Acquires granted.
    granted: u64,
    /// Acquires refused.
    refused: u64,
    /// Releases done, ends of jobs included.
    released: u64,
    /// Releases refused, or not sent because clients did not have the tokens.
    refused_releases: u64,
    /// Operations of which it is not known how they ended.
    pub(super) unknown: u64,
    /// Acquires that were answered with nothing awaited.
    pub(super) local: u64,
    /// From when each operation was sent until its client knew how it ended.
    pub(super) latencies: Histogram,
    /// Tokens granted and given back, by site.
    sites: Vec<Ledger>,
    /// Tokens that clients have and give back by amount, those left out that are on their way back.
    counted: i128,
    /// Refusals and tokens in use, by part of the trace's time.
    pub(super) timeline: Vec<Moment>,
    /// The trace's time, in microseconds.
    length: u64,
}

/// Tokens that the clients of one site were granted and gave back.
#[derive(Clone, Copy, Debug, Default)]
struct Ledger {
    /// Tokens granted in any way.
    granted: u128,
    /// Tokens given back by a client, by amount or with a grant.
    released: u128,
    /// Tokens granted for a time, which come back by themselves.
    held: u128,
}

/// Refusals and tokens in use in one part of a trace's time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// Acquires refused.
    pub(super) refused: u64,
    /// Tokens in use at its end.
    pub(super) in_use: i128,
}

/// The part of the books that figures show.
pub(super) struct Drawn {
    /// Of all operations.
    pub(super) latencies: Histogram,
    /// Refusals and tokens in use, by part of the trace's time.
    pub(super) timeline: Vec<Moment>,
}

impl Books {
    /// Nothing has happened yet.
    pub(super) fn new(trace: &Trace, sites: usize) -> Self {
        Self {
            granted: 0,
            refused: 0,
            released: 0,
            refused_releases: 0,
            unknown: 0,
            local: 0,
            latencies: Histogram::default(),
            sites: vec![Ledger::default(); sites],
            counted: 0,
            timeline: vec![Moment::default(); PARTS],
            length: trace.length(),
        }
    }

    /// The part of the trace's time that a moment belongs to.
    pub(super) fn moment(&mut self, at: u64) -> &mut Moment {
        let part = u128::from(at) * PARTS as u128 / (u128::from(self.length) + 1);
        &mut self.timeline[part as usize]
    }

    /// The times at which the parts of the trace's time end.
    pub(super) fn ends(&self) -> Vec<u64> {
        (1..=PARTS as u128).map(|part| (u128::from(self.length) * part / PARTS as u128) as u64).collect()
    }

    /// An acquire was granted.
    pub(super) fn note_granted(&mut self, site: usize, kind: Kind) {
        let amount = kind.wanted().expect("only an acquire is granted") as u128;
        self.granted += 1;
        self.sites[site].granted += amount;
        match kind {
            // It ends by itself, so by the time of the audit it is back.
            Kind::Hold { .. } => self.sites[site].held += amount,
            Kind::Acquire { .. } => self.counted += amount as i128,
            // Its grant is given back when its job ends.
            _ => {}
        }
    }

    /// Clients are to give this many tokens back by amount, at this time of the trace. They do not if they have fewer: what was
    /// refused, or not granted yet, is not theirs to give, and the release counts as refused.
    pub(super) fn give_back(&mut self, at: u64, amount: i64) -> bool {
        let has_enough = self.counted >= i128::from(amount);
        match has_enough {
            true => self.counted -= i128::from(amount),
            false => self.note_refused(at, false),
        }
        has_enough
    }

    /// A release by amount was refused: the clients have the tokens still.
    pub(super) fn keep(&mut self, amount: i64) {
        self.counted += i128::from(amount);
    }

    /// Tokens were given back.
    pub(super) fn note_released(&mut self, site: usize, amount: i64) {
        self.released += 1;
        self.sites[site].released += amount as u128;
    }

    /// An acquire or a release was refused, at this time of the trace.
    pub(super) fn note_refused(&mut self, at: u64, is_acquire: bool) {
        match is_acquire {
            true => {
                self.refused += 1;
                self.moment(at).refused += 1;
            }
            false => self.refused_releases += 1,
        }
    }

    /// The run's figures, as far as clients know them.
    pub(super) fn run(&self, name: &str, prepared: &Prepared, seconds: f64) -> Run {
        let mut run = Run::new(name);
        run.committed = self.granted + self.released;
        run.refused = self.refused + self.refused_releases;
        run.unknown = self.unknown;
        run.latency_ms = Latency::from(&self.latencies);
        run.local_ratio = Some(self.local as f64 / prepared.trace.acquires().max(1) as f64);

        // To 1 if the central counter refuses none, so that there is a ratio at all.
        let of_central = self.refused as f64 / prepared.central.refused.max(1) as f64;
        run.took(seconds)
            .with("limit", prepared.limit)
            .with("refused_acquires", self.refused)
            .with("refused_of_central", (of_central * 1e4).round() / 1e4)
    }

    /// The part of them that figures show.
    pub(super) fn drawn(self) -> Drawn {
        Drawn { latencies: self.latencies, timeline: self.timeline }
    }

    /// Tokens that the clients have when every hold has ended.
    pub(super) fn in_use(&self) -> i128 {
        self.sites.iter().map(|site| site.granted as i128 - site.released as i128 - site.held as i128).sum()
    }

    /// Checks the books once every hold has ended: each site's must agree with what its clients know, and all together with the
    /// limit. Gifts may be under way, and a site may have been stopped before it heard of the last decided round.
    pub(super) fn audit(&self, nodes: &[&Node], limit: i64) -> Result<(), String> {
        for (site, (node, ledger)) in nodes.iter().zip(&self.sites).enumerate() {
            let quota = find(node, site)?;
            let (granted, back) = quota.used();

            // Each site alone: what it booked is what its own clients were told.
            let known = (ledger.granted, ledger.released + ledger.held);
            if (granted, back) != known {
                return Err(format!(
                    "site {site} has granted {granted} tokens and taken back {back}, but its clients know of {} and {}",
                    known.0, known.1
                ));
            }
        }

        conserve(nodes, self.in_use(), limit)
    }
}

/// The quota at a site.
fn find(node: &Node, site: usize) -> Result<&Quota, String> {
    node.chapters().quotas.find(NAME).ok_or_else(|| format!("site {site} does not know the quota"))
}

/// Checks that no token was made or lost: those at the sites, under way between them and in use are as many as the limit.
pub(crate) fn conserve(nodes: &[&Node], in_use: i128, limit: i64) -> Result<(), String> {
    let (mut tokens, mut under_way) = (0i128, 0i128);

    // Every decided round is in the share of some site: the one that has applied most of them.
    let shares = nodes.iter().filter_map(|node| Some(&node.chapters().quotas.find(NAME)?.avantan().share));
    let newest = shares.max_by_key(|share| share.applied).map(|share| (share.applied, share.table.clone()));
    let (decided, table) = newest.unwrap_or_default();
    for (site, node) in nodes.iter().enumerate() {
        let quota = find(node, site)?;

        // A site that has not applied the last decided round still has its tokens of before; the others have theirs of after.
        let share = &quota.avantan().share;
        tokens += i128::from(share.tokens);
        let missed = table.settled(node.config().me).filter(|last| last.instance > share.applied);
        if let Some(last) = missed.filter(|last| share.applied < decided && last.row.share == share.number) {
            tokens += i128::from(last.row.after) - i128::from(last.row.before);
        }

        // A gift has left one site and not arrived at the other: running totals tell by how much.
        under_way += (0..nodes.len())
            .filter_map(|to| nodes[to].chapters().quotas.find(NAME).map(|there| (to, there)))
            .map(|(to, there)| (quota.given(to).1 - there.received(site).1) as i128)
            .sum::<i128>();
    }

    if tokens + under_way + in_use != i128::from(limit) {
        return Err(format!(
            "{tokens} tokens at the sites, {under_way} under way between them and {in_use} in use are not {limit}"
        ));
    }
    Ok(())
}

/// True if no gift and no round is under way: only then are totals exact.
pub(crate) fn is_at_rest(nodes: &[&Node]) -> bool {
    let quotas: Option<Vec<&Quota>> = nodes.iter().map(|node| node.chapters().quotas.find(NAME)).collect();
    let Some(quotas) = quotas else { return false };
    let newest = quotas.iter().map(|quota| quota.avantan().share.applied).max();
    quotas.iter().enumerate().all(|(from, here)| {
        let share = &here.avantan().share;
        let arrived = quotas.iter().enumerate().all(|(to, there)| there.received(from).1 == here.given(to).1);
        share.round.is_none() && Some(share.applied) == newest && arrived
    })
}

/// Tokens in use by the books of all sites.
pub(crate) fn booked<'a>(nodes: impl Iterator<Item = &'a Node>) -> i128 {
    let used = |node: &Node| node.chapters().quotas.find(NAME).map_or((0, 0), |quota| quota.used());
    nodes.map(used).map(|(acquired, released)| acquired as i128 - released as i128).sum()
}
