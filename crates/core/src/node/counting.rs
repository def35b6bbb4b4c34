//! `show`: two rounds of tallies from every site, see [`crate::quota::count`].

use std::collections::BTreeMap;

use crate::api::{Refusal, Response, is_name};
use crate::avantan::Message;
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
        if !is_name(&quota) {
            turn.responses.push((client, Response::Shown(Err(Refusal::InvalidName))));
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
        count.deadline = turn.now.mono.saturating_add(count.patience);
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

    /// The quota that is counted under this number.
    pub(super) fn asked(&self, token: u64) -> Option<&str> {
        self.open.get(&token).map(|count| count.quota.as_str())
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
                self.bring_up_to_date(turn, quotas, &count);
                count.first = Some(std::mem::take(&mut count.tallies));
                self.ask(turn, quotas, count);
            }
            Some(first) => {
                // Our own share may have caught up since we asked.
                count.tallies[turn.position] = Some(quotas.tally(turn, &count.quota).unwrap_or(nothing(turn.site.me)));
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

    /// Sites that missed instances get them before the second round of tallies, so that a quota at rest is counted exactly.
    fn bring_up_to_date(&self, turn: &mut Turn, quotas: &Quotas, count: &Count) {
        let ours = quotas.find(&count.quota).map(|quota| &quota.avantan().share);
        let applied = ours.map_or(0, |share| share.applied);
        for tally in count.tallies.iter().flatten().filter(|tally| tally.site != turn.site.me) {
            let message = match ours {
                Some(share) if tally.applied < applied => {
                    Message::Decided { instance: applied, table: share.table.clone() }
                }
                _ if tally.applied > applied => Message::Behind { applied },
                _ => continue,
            };
            turn.sends.push((tally.site, Body::Avantan { quota: count.quota.clone(), message: Box::new(message) }));
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
