//! What was seen of sites, by which they are judged: who could hear whom, what they said, what they were.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::api::Readiness;
use slackline_core::id::{OperationId, SiteId};
use slackline_core::node::Metrics;

use crate::invariants::bounded_work::{Talk, Work};
use crate::invariants::clock_errors::Ear;
use crate::invariants::quorums::Promises;
use crate::invariants::refusal::Standing;
use crate::quotas::KINDS;

/// All of it.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Of all that happened: the same seed gives the same.
    pub(crate) digest: u64,
    /// What each site was when it was last looked at.
    pub(crate) seen: Vec<Seen>,
    /// The turns of all sites so far.
    pub(crate) turns: u64,
    /// The input that is being handled tells a site of a quota that it did not know.
    pub(crate) meets_quota: bool,
    /// What sites have promised in rounds.
    pub(crate) promises: Promises,
    /// Who can hear whom while a clock is far off.
    pub(crate) vigil: Vigil,
    /// What each site has done since it was started.
    pub(crate) works: Vec<Works>,
    /// Who is up and connected.
    pub(crate) refusals: Refusals,
}

/// What a site was when it was last looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The step on its way to serving that it had reached.
    pub(crate) readiness: Readiness,
    /// What it had counted.
    pub(crate) metrics: Metrics,
    /// The kind of input that it has handled last.
    pub(crate) kind: usize,
}

/// See [`crate::vigil`].
#[derive(Debug)]
pub(crate) struct Vigil {
    /// What each site could hear.
    pub(crate) ears: Vec<Ear>,
    /// Sites whose present error was judged.
    pub(crate) judged: Vec<bool>,
    /// True if clocks are looked at.
    pub(crate) is_on: bool,
}

/// What one site has done since it was started, see [`crate::work`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Works {
    /// What it has said of each quota.
    pub(crate) quotas: BTreeMap<String, Work>,
    /// What it has said of each transaction.
    pub(crate) transactions: BTreeMap<OperationId, Talk>,
    /// The number of times that it has asked for rights over each object back.
    pub(crate) rights: BTreeMap<String, Talk>,
    /// The number of elections that it has led ahead of need.
    pub(crate) foreseen: u64,
}

/// See [`crate::refusals`].
#[derive(Debug)]
pub(crate) struct Refusals {
    /// Since when sites, links and clocks have been well.
    pub(crate) standing: Standing,
    /// By site: a fault holds something up there until then.
    pub(crate) held_up: Vec<u64>,
    /// By site and kind of quota: since when there are enough tokens within reach.
    pub(crate) plenty: Vec<Vec<Option<u64>>>,
    /// Since when each site is new to each kind of quota, if it is.
    pub(crate) new: Vec<Vec<Option<u64>>>,
    /// By site: its life, and since when it has served in it.
    pub(crate) serving: Vec<(u32, Option<u64>)>,
    /// Transactions of which a part was seen to wait for rights.
    pub(crate) waited: BTreeSet<OperationId>,
    /// By home, holder and object: when the one asked the other to give its right up.
    pub(crate) asked_back: BTreeMap<(usize, SiteId, String), u64>,
    /// Transactions that homes have refused because they may not wait.
    pub(crate) would_wait: BTreeSet<(usize, OperationId)>,
    /// The number of times that sites and links were looked at.
    pub(crate) looks: u64,
}

impl Watch {
    /// Nothing was seen yet.
    pub(crate) fn new(sites: usize) -> Self {
        Self {
            digest: 0xcbf2_9ce4_8422_2325,
            seen: vec![Seen::default(); sites],
            turns: 0,
            meets_quota: false,
            promises: Promises::default(),
            vigil: Vigil { ears: vec![Ear::new(sites); sites], judged: vec![false; sites], is_on: false },
            works: vec![Works::default(); sites],
            refusals: Refusals::new(sites),
        }
    }

    /// Adds something that happened to the digest.
    pub(crate) fn mix(&mut self, word: u64) {
        self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// Adds bytes that were written to the digest.
    pub(crate) fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.mix(u64::from(*byte)));
    }
}

impl Refusals {
    fn new(sites: usize) -> Self {
        Self {
            standing: Standing::new(sites),
            held_up: vec![0; sites],
            plenty: vec![vec![None; KINDS.len()]; sites],
            new: vec![vec![None; KINDS.len()]; sites],
            serving: vec![(0, None); sites],
            waited: BTreeSet::new(),
            asked_back: BTreeMap::new(),
            would_wait: BTreeSet::new(),
            looks: 0,
        }
    }
}
