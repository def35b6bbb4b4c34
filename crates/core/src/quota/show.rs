//! `show`: two rounds of tallies from every site, see [`super::count`].

use super::book::Quotas;
use super::counting::{COUNTS, Count};
use super::tally;
use crate::api::{Refusal, Response, is_name};
use crate::avantan::Message;
use crate::clock::MILLISECOND;
use crate::id::SiteId;
use crate::machine::ClientId;
use crate::peer::quota::{QuotaMessage, Tally};
use crate::turn::{Here, Turn};

impl Quotas {
    /// Counts a quota for a client.
    pub(super) fn show(&mut self, turn: &mut Turn, client: ClientId, quota: String, timeout: u64) {
        let refusal = match () {
            () if self.counts.open.len() >= COUNTS => Some(Refusal::Overloaded),
            () if !is_name(&quota) => Some(Refusal::InvalidName),
            () => None,
        };
        if let Some(refusal) = refusal {
            return turn.out.responses.push((client, Response::Shown(Err(refusal))));
        }

        // Two rounds of tallies share the time that the client has.
        let patience = (timeout / 2).max(MILLISECOND);
        self.ask_for_tallies(turn, Count { client, quota, first: None, tallies: Vec::new(), deadline: 0, patience });
    }

    /// Starts a round of tallies with our own.
    fn ask_for_tallies(&mut self, turn: &mut Turn, mut count: Count) {
        // The second round has a name of its own: a late tally of the first would be a reading of before.
        self.counts.next += 1;
        let token = self.counts.next;
        count.deadline = turn.here.now.mono.saturating_add(count.patience);
        count.tallies = vec![None; turn.here.peers.len()];
        count.tallies[turn.here.position] = Some(self.own_tally(turn, &count.quota));
        for (position, peer) in turn.here.peers.iter().enumerate() {
            if position != turn.here.position {
                turn.out.send(peer.site, QuotaMessage::Count { token, quota: count.quota.clone() });
            }
        }
        if turn.here.peers.len() == 1 {
            return self.complete_round(turn, count);
        }
        self.counts.open.insert(token, count);
    }

    /// This site's tally of a quota.
    fn own_tally(&self, turn: &Turn, quota: &str) -> Tally {
        self.tally(&turn.here, quota).unwrap_or(nothing(turn.here.site.me))
    }

    /// A member answers, in an epoch of names.
    pub(super) fn counted(&mut self, turn: &mut Turn, from: usize, epoch: u64, token: u64, tally: Option<Tally>) {
        let Some(count) = self.counts.open.get(&token) else { return };

        // The tally of a quota that has had this name before says nothing of the one that has it now.
        if !self.is_of_this_life(epoch, &count.quota) {
            return;
        }
        let count = self.counts.open.get_mut(&token).expect("looked at above");
        count.tallies[from] = Some(tally.unwrap_or(nothing(turn.here.peers[from].site)));
        if count.tallies.iter().all(Option::is_some) {
            let count = self.counts.open.remove(&token).expect("looked at above");
            self.complete_round(turn, count);
        }
    }

    /// A round of tallies is complete, or takes too long: the second one follows, or the answer.
    fn complete_round(&mut self, turn: &mut Turn, mut count: Count) {
        let Some(first) = count.first.take() else {
            self.bring_up_to_date(turn, &count);
            count.first = Some(std::mem::take(&mut count.tallies));
            return self.ask_for_tallies(turn, count);
        };

        // Our own share may have caught up since we asked.
        assert_eq!(first.len(), count.tallies.len(), "two rounds of tallies are of the same members");
        let here = turn.here;
        count.tallies[here.position] = Some(self.own_tally(turn, &count.quota));
        let incarnations = here.peers.iter().enumerate().map(|(position, peer)| match position == here.position {
            true => here.site.incarnation,
            false => peer.incarnation,
        });
        let incarnations: Vec<_> = incarnations.collect();
        let shown = tally::count(&count.quota, here.site.members, &first, &count.tallies, &incarnations);
        turn.out.responses.push((count.client, Response::Shown(shown)));
    }

    /// Sites that missed instances get them before the second round of tallies, so that a quota at rest is counted exactly.
    fn bring_up_to_date(&self, turn: &mut Turn, count: &Count) {
        // A tally of a site that missed a round accounts for tokens that are elsewhere by now.
        let ours = self.find(&count.quota).map(|quota| &quota.avantan.share);
        let applied = ours.map_or(0, |share| share.applied);
        for tally in count.tallies.iter().flatten().filter(|tally| tally.site != turn.here.site.me) {
            let message = match ours {
                Some(share) if tally.applied < applied => {
                    Message::Decided { instance: applied, table: share.table.clone() }
                }
                _ if tally.applied > applied => Message::Behind { applied },
                _ => continue,
            };
            turn.out.send(tally.site, QuotaMessage::agreement(&*count.quota, message));
        }
    }

    /// Goes on without the sites that did not answer in time.
    pub(super) fn complete_overdue(&mut self, turn: &mut Turn) {
        for count in self.counts.take_overdue(turn.here.now) {
            self.complete_round(turn, count);
        }
    }

    /// This site's tally of a quota, if it has ever existed here; a deleted one has the limit 0.
    pub(super) fn tally(&self, here: &Here, name: &str) -> Option<Tally> {
        // A quota that was never created here has no tally, whatever was promised for it.
        let quota = self.find(name).filter(|quota| quota.avantan.share.applied > 0)?;
        let share = &quota.avantan.share;
        let members = 0..here.peers.len();
        Some(Tally {
            site: here.site.me,
            generation: share.table.generation,
            limit: (share.table.limit.unwrap_or(0), share.table.excess),
            applied: share.applied,
            in_round: quota.avantan.in_round(),
            tokens: share.tokens,
            held: share.held(),
            acquired: quota.counters.acquired,
            released: quota.counters.released,
            given: members.clone().map(|peer| quota.given(peer)).collect(),
            received: members.map(|peer| quota.received(peer)).collect(),
            work: quota.counters.work,
        })
    }
}

/// The tally of a site that does not know the quota: it has nothing of it.
fn nothing(site: SiteId) -> Tally {
    Tally { site, ..Tally::default() }
}
