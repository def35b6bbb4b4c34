//! `show`: two rounds of tallies from every site, see [`crate::quota::count`].

use std::collections::BTreeMap;

use crate::api::Refusal;
use crate::api::Response;
use crate::clock::MILLISECOND;
use crate::machine::ClientId;
use crate::peer::{Body, Tally};
use crate::quota::{Quotas, count};
use crate::turn::Turn;

/// The most counts under way at a time.
const COUNTS: usize = 1024;

/// Counts under way.
#[derive(Debug, Default)]
pub(super) struct Counts {
    next: u64,
    open: BTreeMap<u64, Count>,
}

#[derive(Debug)]
struct Count {
    client: ClientId,
    quota: String,
    /// The round of tallies that is complete, once the second one is asked for.
    first: Option<Vec<Option<Tally>>>,
    tallies: Vec<Option<Tally>>,
    deadline: u64,
    /// How long each round may take.
    patience: u64,
}

impl Counts {
    /// Names counts from here on: another number in each life.
    pub(super) fn starting(from: u64) -> Self {
        Self { next: from, ..Self::default() }
    }

    pub(super) fn begin(&mut self, turn: &mut Turn, quotas: &Quotas, client: ClientId, quota: String, timeout: u64) {
        if self.open.len() >= COUNTS {
            turn.responses.push((client, Response::Shown(Err(Refusal::Overloaded))));
            return;
        }
        let patience = (timeout / 2).max(MILLISECOND);
        let count = Count { client, quota, first: None, tallies: Vec::new(), deadline: 0, patience };
        self.ask(turn, quotas, count);
    }

    /// Starts a round of tallies with our own.
    fn ask(&mut self, turn: &mut Turn, quotas: &Quotas, mut count: Count) {
        self.next += 1;
        let token = self.next;
        count.deadline = turn.now.mono + count.patience;
        count.tallies = vec![None; turn.peers.len()];
        count.tallies[turn.position] = Some(quotas.tally(turn, &count.quota).unwrap_or(nothing(turn.site.me)));
        for (_, peer) in turn.peers.iter().enumerate().filter(|(position, _)| *position != turn.position) {
            turn.sends.push((peer.site, Body::Count { token, quota: count.quota.clone() }));
        }
        if turn.peers.len() == 1 {
            return self.complete(turn, quotas, count);
        }
        self.open.insert(token, count);
    }

    pub(super) fn counted(&mut self, turn: &mut Turn, quotas: &Quotas, from: usize, token: u64, tally: Option<Tally>) {
        let Some(count) = self.open.get_mut(&token) else { return };
        count.tallies[from] = Some(tally.unwrap_or(nothing(turn.peers[from].site)));
        if count.tallies.iter().all(Option::is_some) {
            let count = self.open.remove(&token).expect("looked at above");
            self.complete(turn, quotas, count);
        }
    }

    fn complete(&mut self, turn: &mut Turn, quotas: &Quotas, mut count: Count) {
        match count.first.take() {
            None => {
                count.first = Some(std::mem::take(&mut count.tallies));
                self.ask(turn, quotas, count);
            }
            Some(first) => {
                let incarnations: Vec<_> = turn
                    .peers
                    .iter()
                    .enumerate()
                    .map(|(at, peer)| if at == turn.position { turn.site.incarnation } else { peer.incarnation })
                    .collect();
                let shown =
                    super::counting::count(&count.quota, turn.site.members, &first, &count.tallies, &incarnations);
                turn.responses.push((count.client, Response::Shown(shown)));
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        self.open.values().map(|count| count.deadline).min()
    }

    /// Goes on without the sites that did not answer in time.
    pub(super) fn tick(&mut self, turn: &mut Turn, quotas: &Quotas) {
        let over: Vec<u64> =
            self.open.iter().filter(|(_, count)| count.deadline <= turn.now.mono).map(|(token, _)| *token).collect();
        for token in over {
            let count = self.open.remove(&token).expect("listed above");
            self.complete(turn, quotas, count);
        }
    }
}

/// The tally of a site that does not know the quota: it has nothing of it.
fn nothing(site: crate::id::SiteId) -> Tally {
    Tally { site, ..Tally::default() }
}
