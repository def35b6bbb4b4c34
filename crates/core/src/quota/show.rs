//! `show`: two rounds of tallies from every site, see [`super::count`]; or what this site knows.

use super::book::Quotas;
use super::counting::{COUNTS, Count};
use super::one::Quota;
use super::tally;
use crate::api::{Refusal, Response, Shown, ShownSite, is_name};
use crate::avantan::Message;
use crate::clock::MILLISECOND;
use crate::id::{SiteId, SiteSet};
use crate::machine::ClientId;
use crate::peer::quota::{QuotaMessage, Rounds, Tally};
use crate::turn::{Here, Peer, Turn};

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

    /// Tells a client what this site knows of a quota, and asks nobody.
    pub(super) fn show_what_is_known(&mut self, turn: &mut Turn, client: ClientId, name: &str) {
        self.refill_named(&turn.here, name);
        let shown = match self.find(name) {
            _ if !is_name(name) => Err(Refusal::InvalidName),
            Some(quota) => self.known(&turn.here, quota).ok_or(Refusal::UnknownQuota),
            None => Err(Refusal::UnknownQuota),
        };
        turn.out.responses.push((client, Response::Shown(shown.map(Box::new))));
    }

    /// What this site knows of a quota, if it exists.
    fn known(&self, here: &Here, quota: &Quota) -> Option<Shown> {
        let share = &quota.avantan.share;
        let all = quota.all()?;
        let activity = quota.activity.as_ref();

        // What an incarnation had that is gone counts as in use.
        let of = |position: usize| {
            let peer = &here.peers[position];
            let said = activity.map(|activity| &activity.peers[position]).filter(|said| said.heard_at > 0);
            match said {
                _ if position == here.position => (share.tokens, Some(0)),
                Some(said) if said.said_by == peer.incarnation => {
                    let coming = quota.under_way(here, position, said);
                    (said.free.max(0).saturating_add(coming), Some(here.now.mono.saturating_sub(said.heard_at)))
                }
                Some(_) => (0, None),
                None => {
                    let settled = share.table.settled(peer.site);
                    let settled = settled.filter(|settled| settled.row.incarnation == peer.incarnation);
                    (settled.map_or(0, |settled| settled.row.after.saturating_add(settled.row.kept)), None)
                }
            }
        };
        let sites: Vec<ShownSite> = (0..here.peers.len())
            .filter(|&position| !here.peers[position].gone)
            .map(|position| {
                let (tokens, age) = of(position);
                let is_own = position == here.position;
                let incarnation = if is_own { here.site.incarnation } else { here.peers[position].incarnation };
                let set_aside = if is_own { share.held() } else { 0 };
                ShownSite { site: here.peers[position].site, tokens, set_aside, incarnation, age }
            })
            .collect();

        // What is here and free is not in use, whatever the others have done. What is set aside may be elsewhere by now, and in use.
        let at_most = all.saturating_sub(share.tokens - share.held()).clamp(0, all);
        let tokens: i128 = sites.iter().map(|site| i128::from(site.tokens)).sum();
        let estimate = (i128::from(all) - tokens).clamp(0, i128::from(at_most)) as i64;
        Some(Shown {
            name: quota.name.to_string(),
            limit: quota.limit()?,
            agreement: share.table.charter.agreement,
            excess: share.table.excess,
            in_use_min: 0,
            in_use_max: at_most,
            estimate: Some(estimate),
            sites,
            missing: SiteSet::default(),
            work: quota.counters.work,
            released_above: 0,
            refill: share.table.charter.refill,
        })
    }

    /// Starts a round of tallies with our own.
    fn ask_for_tallies(&mut self, turn: &mut Turn, mut count: Count) {
        // The second round has a name of its own: a late tally of the first would be a reading of before.
        self.counts.next += 1;
        let token = self.counts.next;
        count.deadline = turn.here.now.mono.saturating_add(count.patience);
        count.tallies = vec![None; turn.here.peers.len()];
        self.refill_named(&turn.here, &count.quota);
        count.tallies[turn.here.position] = Some(self.own_tally(turn, &count.quota));
        for (position, peer) in turn.here.peers.iter().enumerate() {
            if position != turn.here.position && !peer.gone {
                turn.out.send(peer.site, QuotaMessage::Count { token, quota: count.quota.clone() });
            }
        }
        if turn.here.site.count() == 1 {
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

        // One that has joined since it was begun was not asked.
        let Some(told) = count.tallies.get_mut(from) else { return };
        *told = Some(tally.unwrap_or(nothing(turn.here.peers[from].site)));
        let is_told = |(tally, peer): (&Option<Tally>, &Peer)| tally.is_some() || peer.gone;
        if count.tallies.iter().zip(turn.here.peers).all(is_told) {
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
        let here = turn.here;
        if first.len() != here.peers.len() || count.tallies.len() != here.peers.len() {
            // The members have changed since it was begun.
            turn.out.responses.push((count.client, Response::Shown(Err(Refusal::NotReady))));
            return;
        }
        count.tallies[here.position] = Some(self.own_tally(turn, &count.quota));
        let incarnations = here.peers.iter().enumerate().map(|(position, peer)| match position == here.position {
            true => here.site.incarnation,
            false => peer.incarnation,
        });
        let incarnations: Vec<_> = incarnations.collect();
        let mut shown = tally::count(&count.quota, here.site, &first, &count.tallies, &incarnations);
        if let (Ok(shown), Some(quota)) = (&mut shown, self.find(&count.quota)) {
            // Tallies do not tell, as it never changes; between the two rounds this site has heard of the quota.
            shown.refill = quota.avantan.share.table.charter.refill;
        }

        turn.out.responses.push((count.client, Response::Shown(shown.map(Box::new))));
    }

    /// Sites that missed instances get them before the second round of tallies, so that a quota at rest is counted exactly.
    fn bring_up_to_date(&self, turn: &mut Turn, count: &Count) {
        // A tally of a site that missed a round accounts for tokens that are elsewhere by now.
        let ours = self.find(&count.quota).map(|quota| &quota.avantan.share);
        let applied = ours.map_or(0, |share| share.applied);
        for tally in count.tallies.iter().flatten().filter(|tally| tally.site != turn.here.site.me) {
            let message = match ours {
                Some(share) if tally.rounds.applied < applied => {
                    Message::Decided { instance: applied, table: share.table.clone() }
                }
                _ if tally.rounds.applied > applied => Message::Behind { applied },
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
            agreement: share.table.charter.agreement,
            rounds: Rounds {
                applied: share.applied,
                is_open: quota.avantan.in_round() || share.part().is_some(),
                subset: members.clone().map(|peer| quota.last_round_with(here, peer)).collect(),
            },
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
